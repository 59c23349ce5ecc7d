"""Products of one row or one column, with any of their gradients, differentiated again: nothing is contracted there,
and an axis may have the name that another had in the op it is derived from."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from tests.support import products

Shapes = list[tuple[int, ...]]


@fg.op
def two(a: Any, b: Any, c: Any, d: Any) -> Any:
    return a @ fg.tanh(b), c @ d


def torch_two(a: Any, b: Any, c: Any, d: Any) -> Any:
    return a @ torch.tanh(b), c @ d


@fg.op
def gate(x: Any, w: Any, v: Any) -> Any:
    return (x @ w) * fg.sigmoid(x @ v)


def torch_gate(x: Any, w: Any, v: Any) -> Any:
    return (x @ w) * torch.sigmoid(x @ v)


CASES: dict[str, tuple[Any, Callable[..., Any], Shapes]] = {
    "columns": (two, torch_two, [(7, 4), (4, 1), (6, 8), (8, 1)]),
    "a row and a matrix": (two, torch_two, [(1, 4), (4, 5), (6, 8), (8, 3)]),
    "vectors": (two, torch_two, [(7, 4), (4,), (8,), (8, 3)]),
    "a gate of one row": (gate, torch_gate, [(1, 4), (4, 5), (4, 5)]),
    "layers of one row": (fg.ops.mlp, functools.partial(products.mlp, F.gelu), [(1, 4), (5, 4), (5,), (3, 5), (3,)]),
    "a layer of a vector": (fg.ops.linear, F.linear, [(4,), (5, 4), (5,)]),
}


def again(function: Callable[..., Any], arguments: list[torch.Tensor], wanted: tuple[int, ...]) -> list[Any]:
    """Gradients of gradients, of everything that they depend on."""
    own = [argument.clone().requires_grad_() for argument in arguments]
    results = function(*own)
    results = results if isinstance(results, tuple) else (results,)
    generator = torch.Generator().manual_seed(1)

    def like(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)

    cotangents = [like(result).requires_grad_() for result in results]
    found = torch.autograd.grad(results, [own[i] for i in wanted], cotangents, create_graph=True)
    second = torch.autograd.grad(found, own + cotangents, [like(f) for f in found], allow_unused=True)
    zeros = [torch.zeros_like(t) for t in own + cotangents]  # as good as None: nothing depends on it
    return [*found, *(zero if s is None else s for s, zero in zip(second, zeros, strict=True))]


@pytest.mark.parametrize("name", CASES)
def test_every_subset_of_gradients_has_gradients(name: str) -> None:
    function, theirs, shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    arguments = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    for count in range(1, len(shapes) + 1):
        for wanted in itertools.combinations(range(len(shapes)), count):
            torch.testing.assert_close(again(function, arguments, wanted), again(theirs, arguments, wanted))

"""Every activation behind a bias, a residual and a linear layer: values and gradients beside torch's own composite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from tests.support.oracles import check_no_worse, check_same, cotangents_of, draw
from tools.accuracy_cases import ACTIVATIONS

Function = Callable[..., Any]
FORMS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "bias": (lambda act, x, b: act(x + b), [(2, 3, 5), (5,)]),
    "residual_bias": (lambda act, x, b, r: act(x + b + r), [(2, 3, 5), (5,), (2, 3, 5)]),
    "linear": (lambda act, x, w, b: act(F.linear(x, w, b)), [(2, 3, 6), (5, 6), (5,)]),
}
HALVES = {"bias": torch.bfloat16, "residual_bias": torch.float16, "linear": torch.bfloat16}
CASES = [(form, name) for form in FORMS for name in ACTIVATIONS]
# Torch's own gradients of these hold a float32 sixth, in float64 too.
EXACT: dict[str, Function] = {
    "hardsigmoid": lambda x: torch.clamp(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * torch.clamp(x + 3, 0, 6) / 6,
}


def case(form: str, name: str) -> tuple[Function, Function, list[tuple[int, ...]]]:
    """Ours, torch's, and the shapes of their arguments."""
    activation, _, _, options = ACTIVATIONS[name]
    composite, shapes = FORMS[form]
    fused = getattr(fg.ops, f"{form}_{name.partition(',')[0]}")

    def ours(*tensors: torch.Tensor) -> Any:
        return fused(*tensors, **options)

    def theirs(*tensors: torch.Tensor) -> Any:
        exact = tensors[0].dtype is torch.float64 and name in EXACT
        return composite(EXACT[name] if exact else lambda x: activation(x, **options), *tensors)

    return ours, theirs, shapes


def drawn(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[torch.Tensor]:
    """On both sides of every activation's kinks, and of where it saturates."""
    return [draw(*shape, low=-3, high=3, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]


def test_every_op_with_an_activation_is_here() -> None:
    declared = {n for n in fg.ops.__all__ if getattr(fg.ops, n).__module__.rpartition(".")[2] in ("bias", "linear")}
    here = {f"{form}_{name.partition(',')[0]}" for form, name in CASES}
    assert declared - here == {"bias_add", "linear", "linear_residual", "conv1x1"}  # tests/ops/test_ops_blocks.py


@pytest.mark.parametrize(("form", "name"), CASES, ids=str)
def test_gradients_are_torchs(form: str, name: str) -> None:
    ours, theirs, shapes = case(form, name)
    check_same(ours, theirs, drawn(shapes, torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_of_gradients_are_torchs(name: str) -> None:
    """Behind a bias; behind a residual the sum is longer, and behind a product it is the product's."""
    ours, theirs, shapes = case("bias", name)
    arguments = drawn(shapes, torch.float64)
    cotangent = draw(2, 3, 5, seed=9)  # a leaf too: where a slope is constant nothing else has a gradient
    found = []
    for function in (ours, theirs):
        first = torch.autograd.grad(function(*arguments), arguments, cotangent, create_graph=True)
        leaves = [*arguments, cotangent]
        found.append(torch.autograd.grad(first, leaves, cotangents_of(first), materialize_grads=True))
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("form", "name"), CASES, ids=str)
def test_gradients_in_halves_are_no_further_off_than_torchs(form: str, name: str) -> None:
    ours, theirs, shapes = case(form, name)
    check_no_worse(ours, theirs, drawn(shapes, HALVES[form]))

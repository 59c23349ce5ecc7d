"""Sums over tensors whose rows, columns or middle are one row, column or middle many times over (strides of 0)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg

pytestmark = pytest.mark.emulator

EVERY: dict[str, tuple[Any, Callable[..., torch.Tensor]]] = {
    "var": (fg.ops.var, torch.var),
    "std": (fg.ops.std, torch.std),
    "logsumexp": (
        fg.op(lambda x: fg.logsumexp(x), name="logsumexp_of_all"),
        lambda x: torch.logsumexp(x.flatten(), 0),
    ),
}
# Of a tensor, and of what it becomes: rows of more bytes than a block keeps, and more than one block streams.
LAYOUTS = {
    "rows": ((64,), (300, 64)),
    "columns": ((8191, 1), (8191, 2)),
    "middle": ((5, 1, 64), (5, 61, 64)),
    "around": ((1, 300, 1), (9, 300, 8)),
    "many blocks": ((64,), (4100, 64)),
}
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5, torch.float64: 1e-12}


def agrees(op: Any, function: Callable[..., torch.Tensor], x: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Result and gradient are those of the function in float64."""
    leaf, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    ours, theirs = op(leaf.expand(shape)), function(exact.expand(shape))
    (gradient,) = torch.autograd.grad(ours.sum(), leaf)
    (expected,) = torch.autograd.grad(theirs.sum(), exact)
    assert ours.dtype is x.dtype and gradient.shape == x.shape
    near = TOLERANCE[x.dtype]
    torch.testing.assert_close(ours.double(), theirs, rtol=near, atol=near)
    # torch adds up what the elements of one get, in the dtype of x.
    torch.testing.assert_close(gradient.double(), expected, rtol=50 * near, atol=near)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", EVERY)
def test_all_elements_of_an_expanded_tensor(name: str, layout: str) -> None:
    small, large = LAYOUTS[layout]
    agrees(*EVERY[name], torch.randn(small, generator=torch.Generator().manual_seed(1)), large)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_in_every_dtype(name: str, dtype: torch.dtype) -> None:
    agrees(*EVERY[name], torch.randn(48, generator=torch.Generator().manual_seed(2)).to(dtype), (600, 48))


@pytest.mark.parametrize("small", [(1, 1, 9000), (3, 1, 9000), (3, 9000, 1)], ids=str)
def test_long_rows_that_are_alike(small: tuple[int, ...]) -> None:
    """Also where all rows are one and the same."""
    shape = (3, *(4 if size == 1 else size for size in small[1:]))
    x = torch.randn(small, generator=torch.Generator().manual_seed(3))
    op = fg.op(lambda x: fg.logsumexp(x, axis=(1, 2)), name="logsumexp_of_rows")
    agrees(op, lambda x: torch.logsumexp(x, (1, 2)), x, shape)


def test_two_that_are_expanded_otherwise() -> None:
    op = fg.op(lambda x, y: fg.logsumexp(x * y), name="logsumexp_of_products")
    x, y = torch.randn(64, dtype=torch.float64), torch.randn(300, 1, dtype=torch.float64)
    for a, b in ((x, y), (y, x), (x, x), (y, y)):
        expected = torch.logsumexp((a * b).expand(300, 64).flatten(), 0)
        torch.testing.assert_close(op(a.expand(300, 64), b.expand(300, 64)), expected)


@pytest.mark.parametrize("rows", [3, 40, 500])
def test_columns_beside_an_expanded_tensor(rows: int) -> None:
    """Which is the same for all elements of a sum, as only its strides tell."""
    op = fg.op(lambda x, y, z: fg.sum(x * fg.exp(y / z), 0), name="columns_beside")
    x, z = torch.randn(rows, 64, dtype=torch.float64), torch.rand(64, dtype=torch.float64) + 0.5
    y = torch.randn(64, dtype=torch.float64).expand(rows, 64)
    torch.testing.assert_close(op(x, y, z), (x * (y / z).exp()).sum(0))


def test_a_matrix_of_second_derivatives() -> None:
    """torch expands a cotangent along what is mapped over."""
    op = fg.op(lambda x: fg.logsumexp(x, 0), name="logsumexp_of_columns")
    x = torch.randn(3, 4, dtype=torch.float64)
    found, expected = (
        torch.func.jacrev(torch.func.jacrev(lambda x, function=function: function(x).square().sum()))(x)
        for function in (op, lambda x: x.logsumexp(0))
    )
    torch.testing.assert_close(found, expected)

"""Products with factors that are the same all along a dimension: made in the declaration, or of no elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg

Function = Callable[[Any], Any]


def ones(w: Any, *shape: int) -> Any:
    """As many, of the dtype of w."""
    return torch.ones(shape, dtype=w.dtype)


FLAT: dict[str, Function] = {
    "a matrix of ones": lambda w: (ones(w, 5, 4) @ w).sum(),
    "rows": lambda w: (ones(w, 5, 4) @ w + w.sum()).sum(0),
    "a number": lambda w: ((ones(w, 5, 4) * w.sum()) @ w).sum((0, 1)),
    "batches": lambda w: ((ones(w, 2, 5, 4) * w.sum()) @ (ones(w, 2, 4, 6) * w)).sum(),
    "means": lambda w: ((ones(w, 2, 5, 4) * w.sum()) @ (ones(w, 2, 1, 1) * w)).mean(0),
    "in groups": lambda w: (ones(w, 5, 4) @ w).flatten().reshape(3, 10).sum(0),
    "the other side": lambda w: (w.mT @ ones(w, 4, 5)).sum(1),
    "an extremum": lambda w: (w.mT @ ones(w, 4, 5)).amax(0),
    "positions": lambda w: ((ones(w, 5, 4) @ w) * torch.arange(5.0, dtype=w.dtype)[:, None]).sum(0),
}  # fmt: skip


@pytest.mark.cpu
@pytest.mark.parametrize("name", FLAT)
def test_sums_along_what_factors_are_the_same_along(name: str) -> None:
    """A product is the same there, too, and a sum of it a multiple: it had been a reduction over an axis too many."""
    torch.manual_seed(0)
    w, function = torch.randn(4, 6, dtype=torch.float64), FLAT[name]
    op, tangent = fg.op(function, name="flat"), torch.randn_like(w)
    torch.testing.assert_close(op(w), function(w))
    torch.testing.assert_close(torch.func.jvp(op, (w,), (tangent,))[1], torch.func.jvp(function, (w,), (tangent,))[1])
    several = torch.randn(3, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(op)(several), torch.vmap(function)(several))
    assert torch.autograd.gradcheck(op, w.clone().requires_grad_())
    assert torch.autograd.gradgradcheck(op, w.clone().requires_grad_())


@pytest.mark.cpu
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_windows_of_a_batch(batch: int) -> None:
    """Also of an empty one, whose windows vary along nothing."""

    def windows(x: Any, b: Any) -> Any:
        n, h, w, c = x.shape
        y = x.reshape(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        return ((y @ y.mT + b) @ y).reshape(n, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)

    torch.manual_seed(batch)
    x, b = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((batch, 4, 4, 3), (4, 4)))
    ours, theirs = fg.op(windows)(x, b), windows(x, b)
    torch.testing.assert_close(ours, theirs)
    g = torch.randn_like(theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, (x, b), g), torch.autograd.grad(theirs, (x, b), g))

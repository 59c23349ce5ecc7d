"""Variances of what is printed as ``condition ? a : b``, and of other expressions that a minus would take a part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg

# What is taken the variance of, for fusegen and for torch.
WHOLE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (fg.ops.relu, torch.relu),
    "a select": (lambda x: fg.where(x > 0.3, x, 0.1 * x), lambda x: torch.where(x > 0.3, x, 0.1 * x)),
    "a comparison": (lambda x: fg.cast(x > 0, x.dtype), lambda x: (x > 0).to(x.dtype)),
    "a difference": (lambda x: 1 - x, lambda x: 1 - x),
    "limits": (lambda x: fg.minimum(fg.maximum(x, -0.5), 0.5), lambda x: x.clamp(-0.5, 0.5)),
}
# Rows of a few threads, of a block and of several, columns, and what lies between.
LAYOUTS = {(3, 5): -1, (3, 1000): -1, (300, 7): 0, (4, 9, 33): 1, (2, 6000): -1, (4, 5, 6): (0, 2), (8, 16): (0, 1)}


@pytest.mark.parametrize("shape", LAYOUTS, ids=str)
@pytest.mark.parametrize("what", WHOLE)
def test_the_mean_is_subtracted_from_all_of_it(what: str, shape: tuple[int, ...]) -> None:
    ours, theirs = WHOLE[what]
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for reduction in ("var", "std"):
        op = fg.op(lambda x: getattr(fg, reduction)(ours(x), LAYOUTS[shape]), name="spread")  # noqa: B023
        exact = getattr(torch, reduction)(theirs(x), dim=LAYOUTS[shape])
        torch.testing.assert_close(op(x), exact)
        torch.testing.assert_close(op(x.float()), exact.float(), rtol=1e-5, atol=1e-6)
        given = x.bfloat16()
        exact = getattr(torch, reduction)(theirs(given.double()), dim=LAYOUTS[shape])
        torch.testing.assert_close(op(given).double(), exact, rtol=1e-2, atol=1e-3)
        own, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        results = op(own), getattr(torch, reduction)(theirs(other), dim=LAYOUTS[shape])
        cotangent = torch.linspace(-1, 2, results[1].numel(), dtype=torch.float64).reshape(results[1].shape)
        if results[1].requires_grad:
            torch.testing.assert_close(
                torch.autograd.grad(results[0], own, cotangent), torch.autograd.grad(results[1], other, cotangent)
            )

"""Functions of torch in declarations at ties, at the ends of their domains and far from the middle."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg


def check(function: Callable[..., Any], *given: torch.Tensor, steep: float = 0) -> None:
    """Values and gradients are torch's, these but for what a steep slope makes of the last bit of a value."""
    leaves = [x for x in given if x.requires_grad]
    ours, theirs = fg.op(function, name="torchs")(*given), function(*given)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    cotangent = torch.linspace(-1, 2, theirs.numel(), dtype=theirs.dtype).view(theirs.shape)
    mine, other = (torch.autograd.grad(out, leaves, cotangent) for out in (ours, theirs))
    tolerance = {"rtol": steep, "atol": 0.0} if steep else {}
    torch.testing.assert_close(mine, other, equal_nan=True, **tolerance)


def leaf(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("p", [1, 2])
def test_a_margin_that_is_just_kept_has_no_gradient(p: int) -> None:
    x, label = leaf([0.0, -1.0, 1.0, 0.5], [1.0, -0.5, 0.0, -1.0]), torch.tensor([0, 2])
    check(lambda x, label: F.multi_margin_loss(x, label, p=p, reduction="none"), x, label)


def test_a_triplet_that_just_keeps_its_margin_has_all_of_the_gradient() -> None:
    def loss(anchor: Any, near: Any, far: Any) -> Any:
        return F.triplet_margin_with_distance_loss(
            anchor, near, far, distance_function=lambda a, b: (a - b).sum(-1), reduction="none"
        )

    check(loss, leaf([0.0], [1.0], [0.5]), leaf([0.0], [2.0], [0.0]), leaf([-1.0], [3.0], [-2.0]))


@pytest.mark.parametrize("eps", [None, 0.1])
def test_the_slope_of_logit_is_torchs_at_and_outside_of_its_domains_ends(eps: float | None) -> None:
    check(lambda x: torch.special.logit(x, eps), leaf(0.0, 1.0, -1.5, 2.0, math.inf, 0.5, 1e-9, 1 - 1e-12, 0.1, 0.3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_quantiles_of_the_normal_distribution_far_out(dtype: torch.dtype) -> None:
    """Twice the number less one is -1 there."""
    tail = torch.tensor([1e-37, 1e-20, 1e-9, 3e-8, 1e-6, 1e-4, 0.02, 0.24, 0.26], dtype=dtype)
    x = torch.cat([tail, 1 - tail[2:], torch.tensor([0.0, 1.0, 0.5, -0.5, 1.5], dtype=dtype)]).requires_grad_()
    check(lambda x: torch.special.ndtri(x), x, steep=200 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("ord", [1, math.inf])
@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (3, 0, 2)])
def test_the_norm_of_a_matrix_of_nothing_is_zero(shape: tuple[int, ...], ord: float) -> None:
    x = torch.zeros(shape)
    found = fg.op(lambda x: torch.linalg.matrix_norm(x, ord), name="torchs")(x)
    assert torch.equal(found, torch.linalg.matrix_norm(x, ord)) and not found.any()


@pytest.mark.parametrize("ord", [1, math.inf])
def test_the_norm_of_a_matrix_of_zeros_has_torchs_gradient(ord: float) -> None:
    x = torch.randn(3, 2, 2, dtype=torch.float64)
    x[1] = 0
    check(lambda x: torch.linalg.matrix_norm(x, ord), x.requires_grad_())


def test_a_slope_of_ones_own() -> None:
    x = torch.tensor([-2.0, -0.5, 0.0, 3.0, math.nan], requires_grad=True)
    middle = fg.op(lambda x: F.rrelu(x, 0.1, 0.4) + torch.rrelu(x), name="slopes")
    torch.testing.assert_close(middle(x), F.rrelu(x, 0.1, 0.4) + torch.rrelu(x), equal_nan=True)
    many = torch.randn(1000, requires_grad=True)
    drawn = fg.op(lambda x: F.rrelu(x, 0.1, 0.4, training=True), name="drawn", random=True)(many)
    slopes = drawn / many
    assert torch.equal(drawn[many > 0], many[many > 0])
    assert 0.1 <= slopes[many < 0].min() < 0.15 < 0.35 < slopes[many < 0].max() <= 0.4
    torch.testing.assert_close(torch.autograd.grad(drawn.sum(), many)[0], slopes.detach())


def test_a_norm_in_a_wider_dtype() -> None:
    x = torch.full((3, 4), 300.0, dtype=torch.float16)
    found = fg.op(lambda x: (x.norm(dtype=torch.float32), x.norm(2, -1, True, dtype=torch.float64)), name="norms")(x)
    for mine, theirs in zip(found, (x.norm(dtype=torch.float32), x.double().norm(2, -1, True)), strict=True):
        torch.testing.assert_close(mine, theirs)

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


@pytest.mark.parametrize("name", ["clamp_min", "clamp_max"])
def test_an_infinite_bound_has_its_gradient(name: str) -> None:
    bound = torch.tensor([math.inf, -math.inf, 0.5, math.nan, 0.0], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[1.0, 2, 0.5, 1, math.nan], [-1, -math.inf, 3, 2, math.inf]], dtype=torch.float64)
    x.requires_grad_()
    function = getattr(torch, name)
    found, expected = fg.op(lambda x, b: function(x, b), name="bounded")(x, bound), function(x, bound)
    torch.testing.assert_close(found, expected, equal_nan=True)
    cotangent = torch.arange(1.0, 11).view(2, 5).double()
    mine, theirs = (torch.autograd.grad(y, (x, bound), cotangent) for y in (found, expected))
    torch.testing.assert_close(mine[0], theirs[0])
    is_number = ~bound.isnan()  # whose gradient is none
    torch.testing.assert_close(mine[1][is_number], theirs[1][is_number])


def test_a_norm_of_one_has_room_for_it() -> None:
    x = torch.tensor([[1e30], [-3e38], [0.0], [1e-30]], requires_grad=True)

    def norms(x: Any) -> Any:
        return x.norm(dim=-1), torch.linalg.vector_norm(x, 3, -1, keepdim=True), F.normalize(x, dim=-1)

    found, expected = fg.op(norms, name="norms")(x), norms(x)
    torch.testing.assert_close([*found], [*expected])
    along = torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.testing.assert_close(torch.autograd.grad(found[0], x, along), torch.autograd.grad(expected[0], x, along))


def test_bytes_wrap_around_in_a_margin() -> None:
    x, y, target = torch.tensor([[3, 200, 7], [5, 100, 7], [1, 1, 1]], dtype=torch.uint8)
    found = fg.op(lambda *xs: F.margin_ranking_loss(*xs, margin=0.5), name="margin")(x, y, target)
    torch.testing.assert_close(found, F.margin_ranking_loss(x, y, target, margin=0.5))


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss], ids=lambda loss: loss.__name__)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_target_without_dimensions_counts_as_one_with(loss: Callable[..., Any]) -> None:
    x, y = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float16), torch.tensor(1.5)
    for of in ((x, y), (y, x)):
        torch.testing.assert_close(fg.op(lambda a, b: loss(a, b), name="loss")(*of), loss(*of))


@pytest.mark.parametrize("bounds", [(0,), (0, 2), (0.5,), (None, 0)], ids=str)
def test_truths_are_bounded_as_numbers(bounds: tuple[Any, ...]) -> None:
    x = torch.tensor([True, False])
    found = fg.op(lambda x: x.clamp(*bounds), name="bounded")(x)
    assert found.dtype == x.clamp(*bounds).dtype and torch.equal(found, x.clamp(*bounds))
    with pytest.raises(fg.DtypeError):
        fg.op(lambda x: x.clamp(min=x), name="bounded")(x)

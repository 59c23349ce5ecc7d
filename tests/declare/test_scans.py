"""Sums of what stands before each element. The functions are torch code, run as they stand and as an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import fusegen as fg
from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.fuse.products import chain
from fusegen.fuse.steps import Scan
from fusegen.inspect.passes import passes
from fusegen.inspect.product_cost import ScanCost, steps_of
from tests.support.call_paths import DEVICE
from tests.support.modes import MODES

CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {}


def case(*shapes: tuple[int, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of torch, and shapes of its arguments."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__] = function, list(shapes)
        return function

    return add


@case((4, 6))
def alone(x: Any) -> Any:
    return torch.cumsum(x, 1)


@case((4, 6), (4, 6))
def of_what_is_computed(x: Any, y: Any) -> Any:
    return (x * y).exp().cumsum(0).sin() * x


@case((2, 3, 5))
def along_the_middle(x: Any) -> Any:
    return x.cumsum(-2).tanh()


@case((7,), (3, 7))
def of_a_row_beside_a_matrix(x: Any, y: Any) -> Any:
    return torch.cumsum(x, 0) * y


@case((4, 6))
def one_of_another(x: Any) -> Any:
    return x.cumsum(0).sin().cumsum(1) * x


@case((4, 6))
def around_a_softmax(x: Any) -> Any:
    return torch.softmax(x.cumsum(-1), -1).cumsum(-1)


@case((4, 6), (6, 5))
def around_products(x: Any, weight: Any) -> Any:
    return torch.tanh(x @ weight).cumsum(0) @ weight.mT


@case((4, 6), (5, 6), (5,))
def behind_a_product_with_a_bias(x: Any, weight: Any, bias: Any) -> Any:
    return (torch.nn.functional.linear(x, weight, bias) * 0.5).cumsum(0)


@case((4, 6), (4, 1))
def of_what_lacks_the_axis(x: Any, y: Any) -> Any:
    return (y.exp() + torch.zeros_like(x)).cumsum(1) * x


@case((4, 6), (4, 6))
def summed(x: Any, y: Any) -> Any:
    return x.cumsum(1).mean(1), (x.cumsum(1) * y).sum(0), x.cumsum(1).amax(-1)


@case((4, 6))
def rows_that_are_chosen(x: Any) -> Any:
    mean = x.mean(-1, keepdim=True)
    root = torch.sqrt(torch.where(mean > 0, mean, 1))
    return torch.where(mean > 0, (root * x).cumsum(-1), x)


@case((4, 3, 2))
def beside_blocks(x: Any) -> Any:
    first, second = x.chunk(2, -1)
    return (first * second.sin()).cumsum(1), second.cumsum(0)


@case((4, 6), (4, 6))
def of_blocks(x: Any, y: Any) -> Any:
    first, second = x.exp().cumsum(1).chunk(2, 1)
    beside = torch.cat([x.mean(1, keepdim=True) + 0 * y, y], 1).cumsum(1)
    return torch.cat([second, first], 1) * y, beside


@case((6, 3))
def of_blocks_of_one_row(x: Any) -> Any:
    return torch.cat([x.sin()[1:], x[:1]], 0).cumsum(0) * 2


@case((5, 6))
def several_results(x: Any) -> Any:
    total = x.cumsum(0)
    return total, total * total, x.cumsum(1)


@case((4, 6))
def products(x: Any) -> Any:
    return torch.cumprod(x, 1)


@case((4, 6), (4, 6))
def products_of_what_is_computed(x: Any, y: Any) -> Any:
    return (x * y + 1).cumprod(0).sin() * x


@case((3, 8), (8,))
def products_with_zeros(x: Any, y: Any) -> Any:
    return (torch.where(x > 0.5, 0, x) * y).cumprod(1)


@case((4, 9))
def running_maximum(x: Any) -> Any:
    return torch.cummax(x, 1).values * x


@case((4, 9), (9,))
def extrema_of_what_is_computed(x: Any, y: Any) -> Any:
    return (x * y + y).cummax(0).values, (x * y + y).cummin(1)[0].sin()


@case((3, 7))
def sums_of_exponentials(x: Any) -> Any:
    return torch.logcumsumexp(3 * x, 1) * x


@case((4, 6), (4, 6))
def a_product_of_sums(x: Any, y: Any) -> Any:
    return (x.cumsum(1) * 0.3 + y).cumprod(1).logcumsumexp(0)


@case((4, 6), (4, 6))
def products_and_extrema_of_blocks(x: Any, y: Any) -> Any:
    beside = torch.cat([x.mean(1, keepdim=True) + 0 * y, y], 1)
    first, second = x.exp().cumprod(1).chunk(2, 1)
    return torch.cat([second, first], 1), beside.cummax(1).values, beside.logcumsumexp(1), beside.cumprod(1)


@case((2, 3, 4))
def of_a_flattened_tensor(x: Any) -> Any:
    return x.sin().flatten(1).cumsum(1).view(2, 3, 4) * x, x.permute(2, 0, 1).reshape(4, -1).cumprod(-1)


@case((3, 8), (3, 8))
def seen_in_groups(x: Any, y: Any) -> Any:
    return (x * y).cumsum(1).unflatten(1, (2, -1)).sum(2), x.exp().cumsum(1).view(3, 4, 2) * y.view(3, 4, 2)


@case((3, 8), (8,))
def chunk_by_chunk(x: Any, w: Any) -> Any:
    chunks = (x * w).view(3, 4, 2)
    totals = chunks.sum(2, keepdim=True)
    return (chunks.cumsum(2) + totals.cumsum(1) - totals).view(3, 8) * x, x.view(-1).cummax(0)[0]


def leaves_of(name: str, dtype: torch.dtype = torch.float64, device: Any = DEVICE) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in CASES[name][1]]
    return [leaf.to(device, dtype).requires_grad_() for leaf in drawn]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_every_mode(name: str, mode: str) -> None:
    with_cotangents = mode in ("all", "compiled", "halves", "arrays")  # which the modes have on the CPU
    leaves = leaves_of(name, device="cpu" if with_cotangents else DEVICE)
    function = CASES[name][0]
    MODES[mode](fg.op(function), function, leaves)


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name: str) -> None:
    op, leaves = fg.op(CASES[name][0]), leaves_of(name)
    assert gradcheck(op, leaves, check_forward_ad=True)
    assert gradgradcheck(op, leaves)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (0, 4), (4, 0), (3, 1000), (4099,)], ids=str)
def test_sizes_and_both_ways(shape: tuple[int, ...], reverse: bool) -> None:
    x = torch.randn(shape, dtype=torch.float64, device=DEVICE, requires_grad=True)
    for axis in range(len(shape)):
        found = fg.op(lambda x, axis=axis: fg.cumsum(torch.sin(x), axis, reverse=reverse))(x)
        value = torch.sin(x).flip(axis) if reverse else torch.sin(x)
        expected = value.cumsum(axis).flip(axis) if reverse else value.cumsum(axis)
        torch.testing.assert_close(found, expected)
        weight = torch.randn_like(expected)
        torch.testing.assert_close(*(torch.autograd.grad(result, x, weight)[0] for result in (found, expected)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_added_up_in_single_precision(dtype: torch.dtype) -> None:
    x = torch.full((1, 4096), 0.001, device=DEVICE).to(dtype)
    found = fg.op(lambda x: torch.cumsum(x, 1) * 2)(x)
    assert found.dtype is dtype
    torch.testing.assert_close(found, (x.double().cumsum(1) * 2).to(dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool], ids=str)
def test_integers(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (3, 7), device=DEVICE).to(dtype)
    found = fg.op(lambda x: x.cumsum(1))(x)
    assert found.dtype is torch.int64
    torch.testing.assert_close(found, x.cumsum(1))
    for other in (torch.float32, torch.int32, torch.bfloat16):
        torch.testing.assert_close(fg.op(lambda x, d=other: torch.cumsum(x, 0, dtype=d))(x), x.cumsum(0).to(other))


def test_numpy() -> None:
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(fg.op(lambda x: np.cumsum(x, axis=0) + 1)(x), x.cumsum(0) + 1)
    np.testing.assert_allclose(fg.op(lambda x: fg.cumsum(x, 1, reverse=True))(x), x[:, ::-1].cumsum(1)[:, ::-1])


@pytest.mark.parametrize("shape", [(5000,), (3, 40), (1, 7)], ids=str)
def test_where_torch_is_to_be_deterministic(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, device=DEVICE, requires_grad=True)
    op = fg.op(lambda x: torch.cumsum(torch.sin(x), -1))
    expected = op(x)
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        found = op(x)
        (gradient,) = torch.autograd.grad(found, x, torch.ones_like(found))
        assert torch.get_deterministic_debug_mode() == 2
    finally:
        torch.set_deterministic_debug_mode(before)
    assert torch.equal(found, expected) and gradient.isfinite().all()


def test_the_same_bits_each_time() -> None:
    x = torch.randn(100_000, device=DEVICE)
    op = fg.op(lambda x: torch.cumsum(torch.sin(x), 0))
    first = op(x)
    assert all(torch.equal(first, op(x)) for _ in range(9))


def test_a_scan_is_a_step_and_its_gradient_another() -> None:
    op = fg.op(lambda x: torch.exp(x).cumsum(1) * 2)
    x = torch.randn(4, 6, device=DEVICE, requires_grad=True)
    forward, backward = passes(op, (x,), {}, "backward")
    for item in (forward, backward):
        cut = chain(item.op)
        assert cut is not None and cut.text == "1 scan"
        (step,) = [step for step in cut.steps if isinstance(step, Scan)]
        assert step.how.reverse is (item is backward)
        (cost,) = [part for part in steps_of(item, cut) if isinstance(part, ScanCost)]
        assert (cost.m, cost.n, cost.operations) == (4, 6, 24)
        assert sum(cost.written.values()) == 4 * 6 * 4
        assert sum(cost.read.values()) == 4 * 6 * 4 * (2 if item is backward else 1)  # of exp(x) its derivative


@pytest.mark.parametrize(
    "function, error, says",
    [
        (lambda x: fg.cumsum(x, 2), ShapeError, "axis 2"),
        (lambda x: fg.cumsum(x, 1) + fg.unflatten(x * 2, 1, (2, -1)).flatten(1), DeclarationError, "in groups"),
        (lambda x: np.cumsum(x), DeclarationError, "no axis"),
    ],
)
def test_what_cannot_be_is_explained(function: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        fg.op(function, name="wrong")(torch.ones(3, 4))

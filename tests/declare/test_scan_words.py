"""Scans that torch has no word for, beside loops in torch: recurrences, exclusive scans, those from the other end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import fusegen as fg
from fusegen.core.errors import DtypeError, ShapeError
from tests.support.call_paths import DEVICE
from tests.support.modes import MODES

Function = Callable[..., Any]
# What is declared, the same in torch, and shapes of the arguments.
CASES: dict[str, tuple[Function, Function, list[tuple[int, ...]]]] = {}


def loop(a: torch.Tensor, b: torch.Tensor, dim: int, reverse: bool = False) -> torch.Tensor:
    a, b = torch.broadcast_tensors(a, b)
    steps = range(b.shape[dim])
    state, found = torch.zeros_like(b.select(dim, 0)), []
    for t in reversed(steps) if reverse else steps:
        state = a.select(dim, t) * state + b.select(dim, t)
        found.append(state)
    return torch.stack(found[::-1] if reverse else found, dim)


def shifted(y: torch.Tensor, dim: int, start: float) -> torch.Tensor:
    first = torch.full_like(y.narrow(dim, 0, 1), start)
    return torch.cat([first, y.narrow(dim, 0, y.shape[dim] - 1)], dim)


def case(name: str, declared: Function, *shapes: tuple[int, ...]) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        CASES[name] = declared, function, list(shapes)
        return function

    return add


@case("a recurrence", lambda a, b: fg.linear_recurrence(a, b, 1), (4, 6), (4, 6))
def recurrence(a: Any, b: Any) -> Any:
    return loop(a, b, 1)


@case(
    "a recurrence of what is computed",
    lambda a, b: fg.linear_recurrence(fg.sigmoid(a), a * b, 0, reverse=True).sin() * b, (5, 3), (5, 3),
)  # fmt: skip
def computed(a: Any, b: Any) -> Any:
    return loop(torch.sigmoid(a), a * b, 0, reverse=True).sin() * b


@case("factors that lack axes", lambda a, b: fg.linear_recurrence(fg.tanh(a), b, 1), (5, 1), (2, 5, 3))
def few_factors(a: Any, b: Any) -> Any:
    return loop(torch.tanh(a), b, 1)


@case("terms that lack axes", lambda a, b: fg.linear_recurrence(a, b, -1), (3, 5), (5,))
def few_terms(a: Any, b: Any) -> Any:
    return loop(a, b, -1)


@case("one factor for all", lambda a, b: fg.linear_recurrence(fg.sigmoid(a), b, 0), (1, 1), (6, 2))
def one_factor(a: Any, b: Any) -> Any:
    return loop(torch.sigmoid(a), b, 0)


@case("both the same", lambda a: fg.linear_recurrence(a, a, 1), (3, 5))
def the_same(a: Any) -> Any:
    return loop(a, a, 1)


@case("exclusive sums", lambda x: fg.cumsum(x, 1, exclusive=True) * x, (4, 6))
def exclusive_sums(x: Any) -> Any:
    return shifted(x.cumsum(1), 1, 0.0) * x


@case("exclusive products", lambda x: fg.cumprod(x, 0, exclusive=True).sin(), (6, 3))
def exclusive_products(x: Any) -> Any:
    return shifted(x.cumprod(0), 0, 1.0).sin()


@case("products from the end", lambda x: fg.cumprod(x, 1, reverse=True, exclusive=True) * x, (4, 6))
def products_from_the_end(x: Any) -> Any:
    return shifted(x.flip(1).cumprod(1), 1, 1.0).flip(1) * x


@case("extrema from the end", lambda x: fg.cummin(x, 1, reverse=True).values * x.cummax(0)[0], (4, 6))
def extrema_from_the_end(x: Any) -> Any:
    return x.flip(1).cummin(1).values.flip(1) * x.cummax(0).values


@case("exponentials from the end", lambda x: fg.logcumsumexp(x, 0, reverse=True), (6, 3))
def exponentials_from_the_end(x: Any) -> Any:
    return x.flip(0).logcumsumexp(0).flip(0)


def of_blocks(a: Any, b: Any) -> Any:
    found = fg.linear_recurrence(fg.concat([a, a * b], 1), fg.concat([b, a], 1), 1)
    return fg.concat(fg.split(found, 2, 1)[::-1], 1)


@case("blocks", of_blocks, (3, 4), (3, 4))
def blocks(a: Any, b: Any) -> Any:
    return torch.cat(loop(torch.cat([a, a * b], 1), torch.cat([b, a], 1), 1).chunk(2, 1)[::-1], 1)


def leaves_of(name: str, device: Any = DEVICE) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(name))
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in CASES[name][2]]
    return [leaf.to(device).requires_grad_() for leaf in drawn]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "arrays"])  # a loop in torch is not one in NumPy
@pytest.mark.parametrize("name", CASES)
def test_every_mode(name: str, mode: str) -> None:
    declared, theirs, _ = CASES[name]
    on_cpu = mode in ("all", "compiled", "halves")
    MODES[mode](fg.op(declared), theirs, leaves_of(name, device="cpu" if on_cpu else DEVICE))


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name: str) -> None:
    op, leaves = fg.op(CASES[name][0]), leaves_of(name)
    assert gradcheck(op, leaves, check_forward_ad=True)
    assert gradgradcheck(op, leaves)


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (0, 4), (4, 0), (2, 3000), (1500, 40)], ids=str)
def test_sizes(shape: tuple[int, ...]) -> None:
    a, b = (torch.rand(shape, dtype=torch.float64, device=DEVICE, requires_grad=True) for _ in "ab")
    for dim in (0, 1):
        if not shape[dim]:
            assert fg.op(lambda a, b, dim=dim: fg.linear_recurrence(a, b, dim))(a, b).shape == shape
            continue
        found, expected = fg.op(lambda a, b, dim=dim: fg.linear_recurrence(a, b, dim))(a, b), loop(a, b, dim)
        torch.testing.assert_close(found, expected)
        weight = torch.randn_like(expected)
        ours, theirs = (  # of one element the factor is not read
            torch.autograd.grad(result, (a, b), weight, allow_unused=True, materialize_grads=True)
            for result in (found, expected)
        )
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_carried_in_single_precision(dtype: torch.dtype) -> None:
    a = torch.full((1, 3000), 0.999, device=DEVICE).to(dtype)
    b = torch.full((1, 3000), 0.01, device=DEVICE).to(dtype)
    found = fg.op(lambda a, b: fg.linear_recurrence(a, b, 1))(a, b)
    assert found.dtype is dtype
    torch.testing.assert_close(found, loop(a.double(), b.double(), 1).to(dtype))


def test_dtypes_and_numpy() -> None:
    a, b = np.random.default_rng(0).random((2, 3, 4))
    expected = loop(torch.from_numpy(a), torch.from_numpy(b), 1).numpy()
    op = fg.op(lambda a, b: fg.linear_recurrence(a, b, 1))
    np.testing.assert_allclose(op(a, b), expected)
    np.testing.assert_allclose(fg.op(lambda x: np.cumprod(x, axis=1))(a), a.cumprod(1))
    ones = torch.ones(3, 4, dtype=torch.int32)
    assert op(ones, ones).dtype is torch.float32
    assert op(ones.float(), ones.double()).dtype is torch.float64
    counts = torch.arange(1, 7, dtype=torch.int32)
    assert torch.equal(fg.op(lambda x: fg.cumprod(x, exclusive=True))(counts), torch.tensor([1, 1, 2, 6, 24, 120]))


def test_numbers_and_tensors_without_dimensions() -> None:
    x = torch.tensor(3.0)
    assert fg.op(lambda x: fg.linear_recurrence(0.5, x, 0))(x) == 3
    assert fg.op(lambda x: fg.cumprod(x, 0, exclusive=True) + x)(x) == 4
    assert [float(found) for found in fg.op(lambda x: tuple(fg.cummax(x, 0)))(x)] == [3, 0]
    many = torch.ones(4)
    assert fg.op(lambda x: fg.linear_recurrence(0.5, x, 0))(many).tolist() == [1, 1.5, 1.75, 1.875]


@pytest.mark.parametrize("shape, axis", [((3, 1), 1), ((2, 1, 4), -2), ((1,), 0)])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_of_one_element_the_place_is_the_first(name: str, shape: tuple[int, ...], axis: int) -> None:
    x = torch.randn(shape)
    for given in (x, x.half(), x.int(), x > 0):
        found = fg.op(lambda x: tuple(getattr(fg, name)(x, axis)))(given)
        for ours, theirs in zip(found, getattr(torch, name)(given, axis), strict=True):
            torch.testing.assert_close(ours, theirs)
    classes = fg.op(lambda x: fg.one_hot(getattr(fg, name)(x, axis).indices % 5, 5))(x)
    assert torch.equal(classes, torch.nn.functional.one_hot(torch.zeros(shape, dtype=torch.int64), 5))


def test_a_gated_recurrence_runs_as_in_a_loop_over_many_steps() -> None:
    gate, x = torch.randn(2, 2, 200, 8)
    ours = fg.op(lambda gate, x: fg.linear_recurrence(fg.sigmoid(gate), (1 - fg.sigmoid(gate)) * x, 1))
    decay = torch.sigmoid(gate)
    torch.testing.assert_close(ours(gate, x), loop(decay, (1 - decay) * x, 1))


@pytest.mark.parametrize(
    "function, error, says",
    [
        (lambda x: fg.linear_recurrence(x, x, 2), ShapeError, "axis 2"),
        (lambda x: fg.linear_recurrence(x, x[:, :2], 1), ShapeError, "equal sizes"),
        (lambda x: fg.logcumsumexp(fg.cast(x, "int32"), 1), DtypeError, "float dtype"),
    ],
)
def test_what_cannot_be_is_explained(function: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        fg.op(function, name="wrong")(torch.ones(3, 4))


def test_places_of_a_flattened_tensor_are_counted_in_it() -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = fg.op(lambda x: (*x.flatten(1).cummax(1), *torch.cummin(x.permute(2, 0, 1).reshape(-1), 0)))(x)
    expected = (*x.flatten(1).cummax(1), *torch.cummin(x.permute(2, 0, 1).reshape(-1), 0))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("function", [fg.cumsum, fg.cumprod])
def test_what_has_no_element_before_it_has_a_gradient_of_zeros(function: Any) -> None:
    for shape in ((1,), (3, 1)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        found = fg.op(lambda x: function(x, -1, exclusive=True))(x)
        assert found.tolist() == torch.full(shape, float(function is fg.cumprod)).tolist()
        assert torch.autograd.grad(found.sum(), x)[0].tolist() == torch.zeros(shape).tolist()

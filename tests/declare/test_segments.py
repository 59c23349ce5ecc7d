"""Segments and counts, beside torch code that says the same by a dense comparison or by torch's own scatter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import fusegen as fg
from fusegen.core.errors import DeclarationError, DtypeError, ShapeError
from tests.support.call_paths import DEVICE
from tests.support.modes import MODES

IDS = torch.tensor([3, 0, 3, -1, 1, 0, 9, 3], device=DEVICE)  # none in 2 and 4, two in none
SORTED = torch.tensor([0, 0, 1, 3, 3, 3, 4, 4], device=DEVICE)
COUNT = 5
INF = float("inf")


def hot(ids: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Whether each element is in each segment: [i, s, 1, ...], beside ``data[:, None]``."""
    found = ids.to(data.device)[:, None] == torch.arange(COUNT, device=data.device)
    return found.reshape(*found.shape, *[1] * (data.ndim - 1))


def dense_sum(data: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.where(hot(ids, data), data[:, None], 0).sum(0)


def dense_mean(data: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return dense_sum(data, ids) / hot(ids, data).sum(0).clamp(min=1)


def dense_prod(data: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.where(hot(ids, data), data[:, None], 1).prod(0)


def dense_max(data: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.where(hot(ids, data), data[:, None], -INF).amax(0)


def dense_min(data: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.where(hot(ids, data), data[:, None], INF).amin(0)


def dense_softmax(data: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    is_in = hot(ids, data)
    shares = torch.where(is_in, data[:, None], -1e4).softmax(0)
    return torch.where(is_in, shares, 0).sum(1)


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (fg.segment_sum, dense_sum),
    "mean": (fg.segment_mean, dense_mean),
    "prod": (fg.segment_prod, dense_prod),
    "max": (fg.segment_max, dense_max),
    "min": (fg.segment_min, dense_min),
    "softmax": (fg.segment_softmax, dense_softmax),
}
FINITE = ("sum", "mean", "prod", "softmax")


def of(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An op, and its twin. Extrema of nothing are masked: infinities have no sine."""
    ours, theirs = PAIRS[name]
    op = fg.op(lambda data, ids: ours(data, ids, COUNT), name=f"segment_{name}")

    def finite(value: torch.Tensor) -> torch.Tensor:
        return value if name in FINITE else torch.where(value.isinf(), 0, value)

    return lambda data, ids: finite(op(data, ids)), lambda data, ids: finite(theirs(data, ids))


def data_of(*shape: int, device: str = DEVICE) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, device=device, requires_grad=True)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("halves", "arrays", "out")])
@pytest.mark.parametrize("name", PAIRS)
def test_every_mode(name: str, mode: str) -> None:
    device = "cpu" if mode in ("all", "compiled") else DEVICE
    ours, theirs = of(name)
    ids = IDS.to(device)
    MODES[mode](lambda data: ours(data, ids), lambda data: theirs(data, ids), [data_of(8, 3, device=device)])


@pytest.mark.parametrize("name", PAIRS)
def test_gradcheck_and_zeros_in_products(name: str) -> None:
    op, ids = of(name)[0], IDS
    data = data_of(8, 2)
    if name == "prod":
        with torch.no_grad():
            data[0, 0] = data[2, 0] = data[1, 1] = 0
    assert gradcheck(lambda data: op(data, ids), data, check_forward_ad=True)
    assert gradgradcheck(lambda data: op(data, ids), data)


@pytest.mark.parametrize("ids", [IDS, SORTED, IDS.to(torch.int32), IDS[:, None].expand(8, 2)[:, 0]], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_ids_and_axes(name: str, ids: torch.Tensor) -> None:
    ours, theirs = PAIRS[name]
    for data in (data_of(8), data_of(8, 3), data_of(8, 3, 2), data_of(3, 8).t()):
        found = fg.op(lambda data, ids: ours(data, ids, COUNT))(data, ids)
        torch.testing.assert_close(found, theirs(data, ids))
    across = fg.op(lambda data, ids: ours(data, ids, COUNT, axis=-1))(data_of(3, 8), ids)
    torch.testing.assert_close(across, theirs(data_of(3, 8).t(), ids).t())


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_float_dtypes(name: str, dtype: torch.dtype) -> None:
    ours, theirs = PAIRS[name]
    data = data_of(8, 3).detach().to(dtype)
    found = fg.op(lambda data, ids: ours(data, ids, COUNT))(data, IDS)
    assert found.dtype is dtype
    torch.testing.assert_close(found, theirs(data.double(), IDS).to(dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_integers_and_what_is_empty(dtype: torch.dtype) -> None:
    data, limits = torch.arange(8, device=DEVICE).to(dtype), torch.iinfo(dtype)
    for name, empty in {"sum": 0, "prod": 1, "max": limits.min, "min": limits.max}.items():
        found = fg.op(lambda data, ids, f=PAIRS[name][0]: f(data, ids, COUNT))(data, IDS)
        assert found.dtype is dtype
        expected = torch.full((COUNT,), empty, dtype=dtype, device=DEVICE)
        for segment, own in {0: data[[1, 5]], 1: data[[4]], 3: data[[0, 2, 7]]}.items():
            expected[segment] = getattr(own, name)()
        assert torch.equal(found, expected)


def test_bools_are_counted() -> None:
    data = torch.tensor([1, 1, 0, 1, 1, 1, 1, 1], device=DEVICE).bool()
    found = fg.op(lambda data, ids: fg.segment_sum(data, ids, COUNT))(data, IDS)
    assert found.dtype is torch.int64 and found.tolist() == [2, 1, 0, 2, 0]


@pytest.mark.parametrize("name", PAIRS)
def test_no_elements_and_one_segment(name: str) -> None:
    ours, theirs = PAIRS[name]
    none = torch.zeros(0, 3, device=DEVICE)
    found = fg.op(lambda data, ids: ours(data, ids, COUNT))(none, IDS[:0])
    start = {"prod": 1.0, "max": -INF, "min": INF}.get(name, 0.0)
    assert torch.equal(found, none if name == "softmax" else torch.full((COUNT, 3), start, device=DEVICE))
    one = fg.op(lambda data, ids: ours(data, ids, 1))(data_of(8, 3), IDS)
    expected = theirs(data_of(8, 3), torch.where(IDS == 0, 0, -1))
    torch.testing.assert_close(one, expected if name == "softmax" else expected[:1])


@pytest.mark.parametrize("name", PAIRS)
def test_vmap_of_data_and_ids(name: str) -> None:
    op, theirs = of(name)
    data, ids = torch.stack([data_of(8, 3), data_of(8, 3) * 2]).detach(), torch.stack([IDS, IDS.flip(0)])
    torch.testing.assert_close(torch.vmap(op)(data, ids), torch.vmap(theirs)(data, ids))

    def slope(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.func.grad(lambda data, ids: function(data, ids).sin().sum())

    torch.testing.assert_close(torch.vmap(slope(op))(data, ids), torch.vmap(slope(theirs))(data, ids))


def test_what_is_in_no_segment_has_no_influence() -> None:
    data = torch.tensor([1.0, INF, 900.0, 2.0], device=DEVICE, requires_grad=True)
    ids = torch.tensor([0, -1, 7, 0], device=DEVICE)
    found = fg.op(lambda data, ids: fg.segment_softmax(data, ids, 2))(data, ids)
    expected = torch.tensor([1.0, 2.0]).softmax(0)
    torch.testing.assert_close(found.cpu(), torch.tensor([expected[0], 0, 0, expected[1]]))
    (gradient,) = torch.autograd.grad(found, data, torch.arange(4.0, device=DEVICE))
    slope = 3 * expected[0] * expected[1]
    torch.testing.assert_close(gradient.cpu(), torch.tensor([-slope, 0, 0, slope]))


def test_bincount() -> None:
    ids, weights = IDS[IDS >= 0], data_of(8)[IDS >= 0].detach().requires_grad_()
    found = fg.op(lambda ids: fg.bincount(ids, 12))(ids)
    assert torch.equal(found, torch.bincount(ids, minlength=12))
    weighted = fg.op(lambda ids, weights: fg.bincount(ids, 12, weights))(ids, weights)
    torch.testing.assert_close(weighted, torch.bincount(ids, weights, minlength=12))
    cotangent = torch.randn_like(weighted)
    (gradient,) = torch.autograd.grad(weighted, weights, cotangent)
    torch.testing.assert_close(gradient, cotangent[ids])
    assert fg.op(lambda ids: fg.bincount(ids, 3))(IDS).tolist() == [2, 1, 0]


def test_rows_by_offsets() -> None:
    data, offsets = data_of(8, 3), torch.tensor([0, 2, 2, 5, 8], device=DEVICE)

    @fg.op
    def means(data, offsets):  # type: ignore[no-untyped-def]
        return fg.segment_sum(data, fg.segment_ids(offsets, data.shape[0]), offsets.shape[0] - 1)

    found = means(data, offsets)
    expected = torch.segment_reduce(data, "sum", offsets=offsets, axis=0)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(result, data, weight)[0] for result in (found, expected))
    torch.testing.assert_close(ours, theirs)
    ids = fg.op(lambda offsets: fg.segment_ids(offsets, 6))(torch.tensor([1, 3, 3, 5], device=DEVICE))
    assert ids.tolist() == [-1, 0, 0, 2, 2, 3]


def test_numpy_and_the_same_bits() -> None:
    data, ids = np.arange(6.0), np.array([0, 1, 0, 1, 2, 2])
    np.testing.assert_array_equal(fg.op(lambda data, ids: fg.segment_max(data, ids, 3))(data, ids), [2.0, 3.0, 5.0])
    many, places = torch.randn(5000, device=DEVICE), torch.randint(0, 7, (5000,), device=DEVICE)
    op = fg.op(lambda data, ids: fg.segment_sum(data, ids, 7))
    first = op(many, places)
    assert all(torch.equal(first, op(many, places)) for _ in range(3))
    out = torch.empty_like(first)
    assert op(many, places, out=out) is out and torch.equal(out, first)


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda x, i: fg.segment_sum(x, i.to(fg.float32), 3), DtypeError, "numbers of segments of float32"),
        (lambda x, i: fg.segment_sum(x, i, 3, axis=1), ShapeError, "along axis 1"),
        (lambda x, i: fg.segment_max(x, x.to(fg.int64), 3), ShapeError, "a vector with a number for each"),
        (lambda x, i: fg.segment_sum(x, i, -1), DeclarationError, "from 0 on"),
        (lambda x, i: fg.segment_mean(i, i, 3), DtypeError, "floats"),
        (lambda x, i: fg.segment_softmax(i, i, 3), DtypeError, "floats"),
        (lambda x, i: fg.bincount(x.to(fg.int64), 3), ShapeError, "a vector of integers"),
        (lambda x, i: fg.bincount(i, 3, x[:, 0][:2]), ShapeError, "a number for each element"),
        (lambda x, i: torch.bincount(i), DeclarationError, "fg.bincount"),
    ],
)
def test_refused(function: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        fg.op(function, name="refused").trace(torch.ones(4, 3), torch.ones(4, dtype=torch.int64))

"""Numbers that take the place of elements: in integers they are integers, and the others stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg

pytestmark = pytest.mark.emulator


def written(write: Callable[[Any], None]) -> Callable[[Any], Any]:
    """A copy of a tensor that has been written to."""

    def of(x: Any) -> Any:
        y = x.clone()
        write(y)
        return y

    return of


def put(key: Callable[[Any], Any], new: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return written(lambda y: y.__setitem__(key(y), new(y)))


def third(y: Any) -> Any:
    return (y % 4)[:2].to(torch.int64)


FILLED: dict[str, Callable[[Any], Any]] = {
    "pad": lambda x: F.pad(x, (1, 2), value=2.7),
    "pad by a whole float": lambda x: F.pad(x, (1, 2), value=1.0),
    "masked_fill": lambda x: x.masked_fill(x == 7, 2.7),
    "masked_fill by a tensor": lambda x: x.masked_fill(x == 7, x.float().mean() * 0 + 2.7),
    "masked_fill_": written(lambda y: y.masked_fill_(y == 7, 2.7)),
    "threshold": lambda x: F.threshold(x, 3.0, 2.0),
    "hardtanh": lambda x: F.hardtanh(x, 5.0, 200.0 if x.dtype == torch.uint8 else 1e9),
    "index_fill": lambda x: x.index_fill(0, third(x), 2.7),
    "scatter": lambda x: x.scatter(0, third(x), 2.7),
    "scatter, added": lambda x: x.scatter(0, third(x), 2.7, reduce="add"),
    "fill_": written(lambda y: y.fill_(2.7)),
    "copy_": written(lambda y: y.copy_(y * 0.5)),
    "an element": put(lambda y: 0, lambda y: 2.7),
    "a slice": put(lambda y: slice(1, 3), lambda y: 2.7),
    "a slice by a tensor": put(lambda y: slice(1, None), lambda y: y[1:] * 0.5),
    "a mask": put(lambda y: y == 7, lambda y: 2.7),
    "a mask by a tensor": put(lambda y: y == 7, lambda y: (y * 0.5).max()),
    "places": put(third, lambda y: 2.7),
    "a list of places": put(lambda y: [0, 2], lambda y: 2.7),
    "bools": lambda x: put(lambda y: y, lambda y: 2.7)(x > 7),
    "bools by an integer": lambda x: put(lambda y: 0, lambda y: 2)(x > 7),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("name", FILLED)
def test_a_number_among_integers_makes_no_floats_of_the_others(name: str, dtype: torch.dtype) -> None:
    """Which no float32 holds, and the largest no float64."""
    x = torch.tensor([2**53 + 1, 2**24 + 1, 3, 7], dtype=torch.int64).to(dtype)
    found, expected = fg.op(FILLED[name], name="filled")(x), FILLED[name](x)
    assert found.dtype is expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
def test_windows_of_integers_that_are_padded_have_their_largest(dtype: torch.dtype) -> None:
    """Behind the ends are the least integers, which minus infinity became in some kernels and zero in others."""
    x = torch.stack([-(torch.arange(36) ** 2) - 2**24, torch.arange(36)]).view(2, 6, 6).to(dtype)
    for size, step in (((3, 2), None), (3, 1)):
        found = fg.op(lambda x, size=size, step=step: F.max_pool2d(x, size, step, 1), name="pooled")(x)
        assert torch.equal(found, F.max_pool2d(x.double(), size, step, 1).to(dtype))


def test_arithmetic_in_place_is_refused_where_torch_refuses_it() -> None:
    with pytest.raises(fg.DtypeError, match="a dtype that it holds"):
        fg.op(written(lambda y: y.add_(0.5)), name="written")(torch.arange(4))


def test_numbers_of_calls_are_integers_among_these() -> None:
    x, i = torch.tensor([2**24 + 1, 3, 7]), torch.tensor([1])
    for value in (2.7, -3.0, 5):
        assert torch.equal(fg.ops.masked_fill(x, x == 7, value), x.masked_fill(x == 7, value))
        assert torch.equal(fg.ops.pad(x, (1, 0), value=value), F.pad(x, (1, 0), value=value))
        assert torch.equal(fg.ops.scatter(x, 0, i, value), x.scatter(0, i, value))
        assert torch.equal(fg.ops.threshold(x, 3, value), F.threshold(x, 3, value))

"""torch's functions that take a dimension apart and put it together otherwise, as blocks (declare/blocks)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusegen.core.errors import ShapeError
from fusegen.declare.memory import shares
from fusegen.declare.torch_functions import library, torchs
from fusegen.declare.value import Like, Value, current, lift, one_axis, plain_number, shape_of


def _dim(value: Value, dim: int, what: str) -> int:
    found = one_axis(value, dim, what)
    if found is None:
        raise ShapeError(
            f"{current().where}, {what}", given=f"dimension {dim} of {shape_of(value)}",
            expected="a tensor with dimensions", fix="leave it away",
        )  # fmt: skip
    return found


def _along(value: Value, dim: int, key: Any) -> Value:
    """``value[:, ..., key]`` with the key at one dimension."""
    return value[(*[slice(None)] * dim, key)]  # type: ignore[return-value]


@torchs("narrow")
@shares("same")
def narrow(input: Like, dim: int, start: int, length: int) -> Value:
    """``x[..., start : start + length]``."""
    value = lift(input)
    place = _dim(value, dim, "narrow")
    start, length, size = plain_number(start), plain_number(length), value.sizes[place]
    first = start + size if start < 0 else start
    if not 0 <= first <= first + length <= size:
        raise ShapeError(
            f"{current().where}, narrow", given=f"{length} elements from {start} on, of {size}",
            expected="elements that are there", fix="check start and length",
        )  # fmt: skip
    return _along(value, place, slice(first, first + length))


@torchs("select")
@shares("same")
def select(input: Like, dim: int, index: int) -> Value:
    """``x[..., index]``."""
    value = lift(input)
    return _along(value, _dim(value, dim, "select"), index)


def _listed(given: int | Sequence[int] | None) -> list[int]:
    return [] if given is None else [given] if isinstance(given, int) else [*given]


@torchs("roll")
def roll(input: Like, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Any:
    """``fg.ops.roll``."""
    return library("roll")(input, shifts, dims)


@torchs(numpy=["roll"])
def numpy_roll(input: Like, shift: int | Sequence[int], dim: int | Sequence[int] | None = None) -> Any:
    """As ``torch.roll``."""
    return roll(input, shift, dim)


@torchs("flip")
def flip(input: Like, dims: int | Sequence[int], *more: int) -> Any:
    """``fg.ops.flip``."""
    return library("flip")(input, (*_listed(dims), *more))


@torchs(numpy=["flip"])
def numpy_flip(input: Like, dim: int | Sequence[int] | None = None) -> Any:
    """As ``torch.flip``, of all dimensions if none is named."""
    return flip(input, range(lift(input).ndim) if dim is None else dim)


@torchs("nn.functional.pad")
def pad(input: Like, pad: Sequence[int], mode: str = "constant", value: Like | None = None) -> Any:
    """``fg.ops.pad``."""
    return library("pad")(input, tuple(map(plain_number, pad)), mode, value)

"""torch's functions that take a dimension apart and put it together otherwise, as blocks (declare/blocks)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.declare.axes import AxisVar
from fusegen.declare.parts import concat, item, pieces
from fusegen.declare.torch_functions import torchs
from fusegen.declare.value import Like, Value, convert, current, lift, one_axis, plain_number, shape_of


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
    return item(value, (*[slice(None)] * dim, key))


@torchs("narrow")
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
def select(input: Like, dim: int, index: int) -> Value:
    """``x[..., index]``."""
    value = lift(input)
    return _along(value, _dim(value, dim, "select"), index)


@torchs("roll", numpy=["roll"])
def roll(input: Like, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Value:
    """``fg.concat([x[..., -n:], x[..., :-n]])``."""
    value = lift(input)
    by, along = ([*x] if isinstance(x, (tuple, list)) else [x] for x in (shifts, dims))
    if dims is None or len(by) != len(along):
        raise DeclarationError(
            f"{current().where}, roll", given=f"shifts={shifts!r}, dims={dims!r}",
            expected="a shift for each dimension", fix="name the dimensions",
        )  # fmt: skip
    for shift, dim in zip(by, along, strict=True):
        place = _dim(value, dim, "roll")
        size = value.sizes[place]
        last = shift % size if size else 0
        if last:
            front, back = pieces(value, [size - last, last], place)
            value = concat([back, front], place)
    return value


@torchs("flip", numpy=["flip"])
def flip(input: Like, dims: int | Sequence[int], *more: int) -> Value:
    """``fg.concat`` of single elements in the other order."""
    value = lift(input)
    for dim in [*(dims if isinstance(dims, (tuple, list)) else [dims]), *more]:
        place = _dim(value, dim, "flip")
        size = value.sizes[place]
        value = concat(pieces(value, [1] * size, place)[::-1], place) if size > 1 else value
    return value


@torchs("nn.functional.pad")
def pad(input: Like, pad: Sequence[int], mode: str = "constant", value: Like | None = None) -> Value:
    """``fg.concat`` with constants in front and behind."""
    x = lift(input)
    widths = [plain_number(width) for width in pad]
    whole = len(widths) % 2 == 0 and len(widths) <= 2 * x.ndim and all(isinstance(w, int) and w >= 0 for w in widths)
    if mode != "constant" or not whole:
        raise DeclarationError(
            f"{current().where}, pad", given=f"pad={list(pad)}, mode={mode!r} of {shape_of(x)}",
            expected='mode="constant", and two widths from 0 on for each of the last dimensions',
            fix="pad the argument outside the op",
        )  # fmt: skip
    filling = convert(lift(0.0 if value is None else value).expr, x.dtype)

    def constant(width: int, dims: int, behind: int) -> Value:
        axis = AxisVar(width, "padding") if width > 1 else None
        return Value(filling, x.dtype, (*[None] * (dims - 1 - behind), axis, *[None] * behind))

    for behind, (front, back) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
        parts = [constant(front, x.ndim, behind)] * (front > 0) + [x] + [constant(back, x.ndim, behind)] * (back > 0)
        x = concat(parts, x.ndim - 1 - behind) if len(parts) > 1 else x
    return x

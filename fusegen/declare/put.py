"""What is put at indices: ``y[rows, columns] = v``, ``y[:, i, 0] = v``, ``boxes[mask, 1] = 0``.

Slices and ints say a part, whose memory is the tensor's. Of that part a mask, or tensors of positions, say the rest.
Positions in several dimensions are positions in all of these as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.declare import indexing, scattering
from fusegen.declare.language import expand_dims
from fusegen.declare.listed import positions
from fusegen.declare.memory import is_plain
from fusegen.declare.parts import flatten, is_position, shown_key, unflatten
from fusegen.declare.reductions import index
from fusegen.declare.value import Value, broadcast, cast, current, elementwise, plain_number, shape_of


def told(x: Value, key: Any) -> list[Any]:
    """A key for each dimension: ints, slices, and the masks and positions among them as tensors.

    Raises:
        DeclarationError: there is something else, or more than there are dimensions.
    """
    keys = [plain_number(k) for k in (key if isinstance(key, tuple) else (key,))]
    keys = [positions(k) if _is_list(k) else k for k in keys]
    taken = sum(_rank(k) for k in keys if k is not Ellipsis)
    dots = [number for number, k in enumerate(keys) if k is Ellipsis] or [len(keys)]
    known = all(k is Ellipsis or _is_told(k) or (is_plain(k) and k is not None) for k in keys)
    if not known or len(dots) > 1 or taken > x.ndim:
        raise refused(x, key)
    return [*keys[: dots[0]], *[slice(None)] * (x.ndim - taken), *keys[dots[0] + 1 :]]


def refused(x: Value, key: Any) -> DeclarationError:
    """The error of a key that says no elements."""
    what = f"[{shown_key(key)}] ="
    return DeclarationError(
        f"{current().where}, {what}", given=f"x{what} ... of {shape_of(x)}",
        expected="ints, slices, None and ..., a mask, or positions in one or more dimensions",
        fix="use x.scatter(...), or torch.where(condition, new, x)",
    )  # fmt: skip


def _is_list(key: Any) -> bool:
    return isinstance(key, (list, range)) and bool(key) and all(map(is_position, key))


def _is_told(key: Any) -> bool:
    kinds = (dtypes.Category.INTEGER, dtypes.Category.BOOL)
    return isinstance(key, Value) and not key.weak and key.dtype.category in kinds


def _rank(key: Any) -> int:
    """How many dimensions a key is about."""
    return key.ndim if isinstance(key, Value) and key.dtype is dtypes.bool_ else 1


def plain_part(keys: Sequence[Any]) -> tuple[Any, ...]:
    """What slices and ints say by themselves."""
    found = list[Any]()
    for key in keys:
        found += [slice(None)] * _rank(key) if isinstance(key, Value) else [key]
    return tuple(found)


def put(x: Value, keys: Sequence[Any], value: Value, what: str, *, adds: bool = False) -> Value:
    """``x`` with ``value`` where tensors among the keys say, the others of which leave dimensions as they are.

    Args:
        adds: to what is there, each of several for one place; else the last of these counts.

    Raises:
        DeclarationError: there are masks beside others.
        ShapeError: the value does not fit there.
    """
    axes, dim = list[int](), 0
    for key in keys:
        axes += [dim] if isinstance(key, Value) else []
        dim += _rank(key)
    tensors = [key for key in keys if isinstance(key, Value)]
    masks = [key for key in tensors if key.dtype is dtypes.bool_]
    if masks and len(tensors) > 1:
        raise refused(x, tuple(keys))
    if masks:
        into = Value(cast(0, x.dtype).expr, x.dtype, x.dims) if adds else x
        chosen = where(into, axes[0], masks[0], value, what)
        return elementwise("add", x, chosen) if adds else chosen
    if len(tensors) == 1 and not tensors[0].ndim and not adds:
        return _at_one(x, axes[0], tensors[0], value)
    return _at_each(x, axes, tensors, value, what, adds)


def where(x: Value, dim: int, mask: Value, value: Value, what: str) -> Value:
    """``value`` where a mask of some dimensions, from ``dim`` on, holds."""
    behind = x.ndim - dim - mask.ndim
    if behind >= 0 and value.ndim > behind and value.dims[-1 - behind] is None:  # one for all that the mask chooses
        dims = (*value.dims[: -1 - behind], *[None] * mask.ndim, *value.dims[len(value.dims) - behind :])
        value = Value(value.expr, value.dtype, dims, value.weak)
    elif behind < 0 or value.ndim > behind:
        raise ShapeError(
            f"{current().where}, {what}", given=f"{shape_of(value)} where {shape_of(mask)} of {shape_of(x)} holds",
            expected="a number, or what is the same wherever it holds: how many these are, only values tell",
            fix="use torch.where(mask, new, x), with a new element for each of x",
        )  # fmt: skip
    wide = Value(mask.expr, mask.dtype, (*mask.dims, *[None] * behind))
    return elementwise("where", wide, value, x)


def _at_one(x: Value, dim: int, place: Value, value: Value) -> Value:
    """``value`` at one position along one dimension."""
    here = elementwise("where", elementwise("lt", place, 0), elementwise("add", place, x.sizes[dim]), place)
    value = without_ones(value, x.ndim - 1)
    value = expand_dims(value, dim - x.ndim) if value.ndim >= x.ndim - dim else value
    return elementwise("where", elementwise("eq", index(x, dim), here), value, x)


def _at_each(x: Value, axes: Sequence[int], places: Sequence[Value], value: Value, what: str, adds: bool) -> Value:
    """``value`` at positions, each of which tells as many dimensions as there are tensors of them."""
    like = indexing.take_each(x, axes, places)
    rank = max(place.ndim for place in places)
    first = axes[0] if [*axes] == [*range(axes[0], axes[0] + len(axes))] else 0
    value = without_ones(value, like.ndim)
    beside = zip(reversed(value.dims), reversed(like.dims), strict=False)
    if value.ndim > like.ndim or any(own is not None and place is None for own, place in beside):
        raise ShapeError(
            f"{current().where}, {what}", given=f"{shape_of(value)} for the {shape_of(like)} that are told",
            expected="a number, or a shape that broadcasts to what is told", fix="put as many as there are places",
        )  # fmt: skip
    dims = broadcast([like, value], what)
    # What is told stands in front, as one dimension, on both sides.
    order = (*axes, *(dim for dim in range(x.ndim) if dim not in axes))
    sizes = [x.sizes[dim] for dim in axes]
    front = Value(x.expr, x.dtype, tuple(x.dims[dim] for dim in order))
    turned = (*dims[first : first + rank], *dims[:first], *dims[first + rank :])
    source = Value(value.expr, value.dtype, turned, value.weak)
    source = cast(source, x.dtype) if rank else expand_dims(cast(source, x.dtype), 0)
    at = _as_one(places, sizes) if len(axes) > 1 else places[0]
    at = Value(at.expr, at.dtype, (*[None] * (rank - at.ndim), *at.dims))
    at = Value(at.expr, at.dtype, tuple(mine or own for mine, own in zip(at.dims, source.dims, strict=False)))
    front, source, at = (
        flatten(front, 0, len(axes) - 1), flatten(source, 0, max(rank, 1) - 1), flatten(at, 0, max(rank, 1) - 1)
    )  # fmt: skip
    found = (scattering.index_add if adds else scattering.index_copy)(front, 0, at, source)
    found = unflatten(found, 0, (*sizes[:-1], -1)) if len(axes) > 1 else found
    return Value(found.expr, found.dtype, tuple(found.dims[order.index(dim)] for dim in range(x.ndim)))


def _as_one(places: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Positions in several dimensions as one of all: out of range where one of them is."""
    flat: Value | None = None
    is_there: Value | None = None
    total = 1
    for place, size in zip(places, sizes, strict=True):
        place = cast(place, dtypes.int64)
        inside = elementwise("logical_and", elementwise("ge", place, -size), elementwise("lt", place, size))
        is_there = inside if is_there is None else elementwise("logical_and", is_there, inside)
        here = elementwise("where", elementwise("lt", place, 0), elementwise("add", place, size), place)
        flat = here if flat is None else elementwise("add", elementwise("mul", flat, size), here)
        total *= size
    assert flat is not None and is_there is not None
    return elementwise("where", is_there, flat, cast(total, dtypes.int64))


def without_ones(value: Value, rank: int) -> Value:
    """Dimensions of size one in front are none to torch here."""
    dims = value.dims
    while len(dims) > rank and dims[0] is None:
        dims = dims[1:]
    return value if dims is value.dims else Value(value.expr, value.dtype, dims, value.weak)

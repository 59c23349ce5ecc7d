"""What is written in place: ``y[..., 0] = a``, ``h.mul_(2)``, ``F.relu(h, inplace=True)``, as new expressions.

An item is a part of a tensor, which another one takes the place of: with blocks where there are few, else by position.
What shares memory with what is written is declare/memory's.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from math import gcd
from typing import Any

from fusegen.core import dtypes
from fusegen.core.errors import ShapeError
from fusegen.declare import creation, foreign, indexing, put
from fusegen.declare.language import expand_dims
from fusegen.declare.memory import got, is_all, is_plain, turn, write
from fusegen.declare.parts import concat, is_position, item, masked_part, shown_key
from fusegen.declare.reductions import index
from fusegen.declare.selected import Selected
from fusegen.declare.value import (
    FEW_BLOCKS,
    Value,
    broadcast,
    cast,
    current,
    elementwise,
    lift,
    plain_number,
    shape_of,
)

# -- items -------------------------------------------------------------------------------------------------------------


def set_item(x: Value, key: Any, new: Any) -> None:
    """``x[key] = new``.

    Raises:
        DeclarationError: it cannot be told which elements the key means, or see ``write``.
        ShapeError, DtypeError: ``new`` does not fit there.
    """
    what = f"[{shown_key(key)}] ="
    if isinstance(new, Selected):
        masked = masked_part(x, key)
        if masked is None or not new.is_of(masked[1], masked[2]):
            raise new.refused("what is put elsewhere than where it was")
        write(masked[0], elementwise("where", new.where_it_holds(), new.value, masked[0]), what)
        return
    value, keys = lift(new), key if isinstance(key, tuple) else (key,)
    if is_plain(key) or value.weak or (not value.ndim and isinstance(key, Value) and key.dtype is dtypes.bool_):
        value = _copied(x, value)
    if is_plain(key):
        view = value.viewed
        if view is not None and view.base is x and view.key is not None and view.key == key:
            return  # x[key] += new has written it
        part = got(x, key, item)
        write(part, put.without_ones(value, part.ndim), what)
        return
    lists = [number for number, k in enumerate(keys) if isinstance(k, list)]
    if len(lists) == 1 and is_plain((*keys[: lists[0]], *keys[lists[0] + 1 :])) and is_plain(tuple(keys[lists[0]])):
        _set_listed(x, keys, lists[0], value, what)
        return
    told = put.told(x, key)
    plain = put.plain_part(told)
    if all(map(is_all, plain)):
        write(x, put.put(x, told, value, what), what)
    else:  # slices and ints say a part, and the others what of it
        rest = (k if isinstance(k, Value) else slice(None) for k in told if not is_position(k))
        set_item(got(x, plain, item), tuple(rest), value)


def _set_listed(x: Value, keys: tuple[Any, ...], at: int, new: Value, what: str) -> None:
    """``x[..., [0, 2]] = new``: element by element along that dimension."""
    like = item(x, keys)
    new = put.without_ones(new, like.ndim)
    spread = Value(new.expr, new.dtype, broadcast([like, new], what), new.weak)
    behind = [k for k in keys[at + 1 :] if k is not Ellipsis and not is_position(k)]
    before = [k for k in keys[:at] if not is_position(k)]
    dim = like.ndim - 1 - len(behind) if any(k is Ellipsis for k in keys[:at]) else len(before)
    for number, place in enumerate(keys[at]):
        part = item(spread, (*[slice(None)] * dim, number)) if new.dims else new
        set_item(x, (*keys[:at], place, *keys[at + 1 :]), part)


def put_item(x: Value, key: Any, new: Value) -> Value:
    """``x`` with ``new`` in the place of ``x[key]``."""
    keys = [plain_number(k) for k in (key if isinstance(key, tuple) else (key,))]
    if all(k is not Ellipsis for k in keys):
        keys.append(Ellipsis)
    taking = sum(k is not None and k is not Ellipsis for k in keys)
    ranges, dims, rest = list[range | None](), list[Any](), iter(new.dims)
    for k in keys:
        if k is None:
            next(rest)
        elif k is Ellipsis:
            ranges += [None] * (x.ndim - taking)
            dims += [next(rest) for _ in range(x.ndim - taking)]
        else:
            size = x.sizes[len(ranges)]
            is_part = isinstance(k, slice)
            ranges.append(range(*k.indices(size)) if is_part else range(k % size, k % size + 1))
            dims.append(next(rest) if is_part else None)
    steps = [(dim, r) for dim, r in enumerate(ranges) if r is not None and r != range(x.sizes[dim])]
    return _placed(x, steps, Value(new.expr, new.dtype, tuple(dims)))


def _placed(x: Value, steps: Sequence[tuple[int, range]], new: Value) -> Value:
    """``x`` with ``new`` where all dimensions are in a range."""
    if not steps:
        return new
    (dim, places), *others = steps
    if not places:
        return x
    if others:
        key: list[Any] = [slice(None)] * dim
        new = _placed(item(x, (*key, slice(places.start, places.stop, places.step))), others, new)
    axis, size = new.dims[dim], x.sizes[dim]
    same = axis is None or axis.find() not in current().axes_of(new.expr)
    if same and axis is not None:  # along it all are the same
        new = Value(new.expr, new.dtype, (*new.dims[:dim], None, *new.dims[dim + 1 :]))
    if not same and places.step == 1 and size // gcd(size, places.start, places.stop) <= FEW_BLOCKS:
        whole = [slice(None)] * dim
        before, behind = slice(None, places.start), slice(places.stop, None)
        parts = [item(x, (*whole, before))] * (places.start > 0), [item(x, (*whole, behind))] * (places.stop < size)
        return concat([*parts[0], new, *parts[1]], dim)
    along = index(x, dim)
    away = elementwise("sub", along, places.start) if places.start else along
    inside = elementwise("eq", along, places.start)
    if len(places) > 1:
        inside = elementwise("lt", along, places.stop)
        inside = elementwise("logical_and", elementwise("ge", along, places.start), inside) if places.start else inside
        if places.step > 1:
            on_step = elementwise("eq", elementwise("remainder", away, places.step), 0)
            inside = elementwise("logical_and", inside, on_step)
    if not same:
        at = creation.arange(size)
        at = elementwise("sub", at, places.start) if places.start else at
        at = elementwise("floor_divide", at, places.step) if places.step > 1 else at
        with indexing.own_places():
            new = indexing.take(new, at, dim, negative=False)
    return elementwise("where", inside, new, x)


def with_rows(x: Value, dim: int, rows: Mapping[int, Value]) -> Value:
    """``x`` with other elements at single positions along one dimension: where all are others, they are put side by
    side, and nothing of ``x`` is left."""
    size = x.sizes[dim]
    parts = {at % size: expand_dims(row, dim) for at, row in rows.items()}
    if len(parts) == size:
        return concat([parts[at] for at in range(size)], dim) if size > 1 else parts[0]
    for at, part in parts.items():
        x = _placed(x, [(dim, range(at, at + 1))], part)
    return x


# -- methods -----------------------------------------------------------------------------------------------------------


def _filled(x: Value, value: Any) -> Value:
    return _copied(x, value)


def _zero(x: Value) -> Any:
    return 0


def _copied(x: Value, src: Any, non_blocking: bool = False) -> Value:
    """What is copied into ``x``, in a dtype that it holds: torch's copies make integers of floats."""
    value = lift(src)
    return cast(value, x.dtype) if value.dtype.category > x.dtype.category else value


def _diagonal_filled(x: Value, fill_value: Any, wrap: bool = False) -> Value:
    if x.ndim != 2 or wrap:
        raise ShapeError(
            f"{current().where}, fill_diagonal_", given=f"{shape_of(x)}, wrap={wrap}", expected="a matrix, and no wrap",
            fix="use torch.where(position == position, value, x)",
        )  # fmt: skip
    is_on = elementwise("eq", index(x, 0), index(x, 1))
    return elementwise("where", is_on, cast(fill_value, x.dtype), x)


METHODS: dict[str, Callable[..., Any]] = {
    "fill": _filled, "zero": _zero, "copy": _copied, "fill_diagonal": _diagonal_filled,
}  # fmt: skip
# Methods of this kind that make a tensor a view of itself, and those that change what else it is beside its numbers.
TURNING = ("squeeze", "unsqueeze", "t", "transpose", "swapaxes", "swapdims")
OTHERS = ("detach", "resize", "requires_grad", "set")


@functools.cache
def method(name: str) -> Callable[..., Value] | None:
    """``x.mul_``, for what torch calls so: ``x`` becomes what ``x.mul`` gives. None: there is no such function."""
    plain = name.removesuffix("_")
    if plain in OTHERS:
        return None
    table = importlib.import_module("fusegen.declare.torch_names")
    known = METHODS.get(plain) or table.in_place_of(plain) or vars(Value).get(plain)
    if not callable(known):
        return None

    if plain in TURNING:
        return lambda x, *args, **kwargs: turn(x, foreign.called(name, known, (x, *args), kwargs), f".{name}")

    def put(x: Value, *args: Any, **kwargs: Any) -> Value:
        return write(x, foreign.called(name, known, (x, *args), kwargs), f".{name}")

    return put

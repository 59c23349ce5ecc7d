"""Functions of torch that read and add at positions, as expressions of the language (declare/indexing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.declare import creation, indexing, put, scattering
from fusegen.declare.axes import AxisVar
from fusegen.declare.parts import flatten
from fusegen.declare.selected import selected
from fusegen.declare.torch_functions import torchs
from fusegen.declare.value import (
    Like,
    Value,
    broadcast,
    cast,
    current,
    elementwise,
    lift,
    one_axis,
    plain_number,
    shape_of,
    wrong_dtype,
)


@torchs(numpy=["take"])
def numpy_take(input: Like, indices: Like, dim: int | None = None) -> Value:
    """``fg.take(x, i, axis)``; without an axis of the flattened tensor."""
    return flat_take(input, indices) if dim is None else indexing.take(input, indices, dim)


@torchs("take")
def flat_take(input: Like, index: Like) -> Value:
    """``fg.take(fg.flatten(x), i)``."""
    value = _as_vector(input)
    return indexing.take(value if value.ndim == 1 else flatten(value), index, 0)


@torchs("nn.functional.one_hot")
def one_hot(tensor: Like, num_classes: int = -1) -> Value:
    """``fg.one_hot(x, num_classes)``; the number must be told."""
    if isinstance(num_classes, int) and num_classes == -1:
        raise DeclarationError(
            f"{current().where}, one_hot", given="no num_classes",
            expected="the number of classes: the largest one of a tensor is not known before it is read",
            fix="say num_classes=, a number that the op is traced for",
        )  # fmt: skip
    return creation.one_hot(tensor, num_classes)


@torchs("bincount")
def bincount(input: Like, weights: Like | None = None, minlength: int = 0) -> Value:
    """How many of each number there are, of ``minlength`` numbers: one that is not among them is an error."""
    value, count = lift(input), plain_number(minlength)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise DeclarationError(
            f"{current().where}, bincount", given=f"minlength={minlength!r}",
            expected="how many numbers there are: the largest one of a tensor is not known before it is read",
            fix="say minlength=, a number that the op is traced for; or use fg.bincount(ids, num)",
        )  # fmt: skip
    if value.dtype.category is not dtypes.Category.INTEGER:
        raise wrong_dtype("bincount", value.dtype, "integers", "cast with .to(fg.int64)")
    if value.ndim != 1:
        raise ShapeError(
            f"{current().where}, bincount", given=shape_of(value), expected="a vector", fix="flatten it: x.flatten()",
        )  # fmt: skip
    one = Value(cast(1, dtypes.int64).expr, dtypes.int64, value.dims) if weights is None else lift(weights)
    kept = one.dtype is dtypes.float32 or weights is None
    source = one if kept else cast(one, dtypes.float64)  # as torch adds them up
    is_below = elementwise("lt", value, 0)  # torch counts none from the end
    place = elementwise("where", is_below, cast(count, dtypes.int64), cast(value, dtypes.int64))
    return scattering.index_add(creation.zeros(count, dtype=source.dtype), 0, place, source)


@torchs("masked_select")
def masked_select(input: Like, mask: Like) -> Any:
    """``x[mask]``, both of one shape: what may be done with it is said there."""
    value, where = lift(input), lift(mask)
    dims = broadcast([value, where], "masked_select")
    whole = Value(value.expr, value.dtype, dims)
    if not whole.ndim:
        raise ShapeError(
            f"{current().where}, masked_select", given=shape_of(whole), expected="a dimension", fix="use fg.where",
        )  # fmt: skip
    return selected(whole, Value(where.expr, where.dtype, dims))


@torchs("index_fill")
def index_fill(input: Like, dim: int, index: Like, value: Like) -> Value:
    """``fg.scatter(x, axis, i, value)``, with ``i`` of one dimension."""
    into, places = _as_vector(input), _as_vector(index)
    if lift(value).ndim:
        raise ShapeError(
            f"{current().where}, index_fill", given=shape_of(lift(value)), expected="a number",
            fix="use index_copy for several numbers",
        )  # fmt: skip
    found = scattering.scatter(into, dim, _along(places, into, dim, "index_fill"), cast(value, into.dtype))
    return found if lift(input).ndim else _number(found)


@torchs("index_put")
def index_put(input: Like, indices: Sequence[Any], values: Like, accumulate: bool = False) -> Value:
    """``y[i, j] = v`` of a copy; with ``accumulate`` ``v`` is added, each time that a place is told."""
    x = lift(input)
    keys = tuple(slice(None) if index is None else index for index in indices)
    return put.put(x, put.told(x, keys), lift(values), "index_put", adds=accumulate)


@torchs("index_reduce")
def index_reduce(
    input: Like, dim: int, index: Like, source: Like, reduce: str, *, include_self: bool = True
) -> Value:  # fmt: skip
    """``fg.scatter_reduce(x, axis, i, source, "amax")``, with ``i`` of one dimension."""
    into, places, of = _as_vector(input), _as_vector(index), _as_vector(source)
    along = _along(places, into, dim, "index_reduce")
    found = scattering.scatter_reduce(into, dim, along, of, reduce, include_self=include_self)
    return found if lift(input).ndim else _number(found)


def _along(places: Value, value: Value, dim: int, what: str) -> Value:
    """Places of one dimension, as a tensor of as many as ``value``."""
    position = one_axis(value, dim, what)
    assert position is not None
    if places.ndim > 1:
        raise ShapeError(
            f"{current().where}, {what}", given=shape_of(places), expected="an index of one dimension",
            fix="use scatter_reduce",
        )  # fmt: skip
    dims: list[AxisVar | None] = [None] * value.ndim
    dims[position] = places.dims[0]
    return Value(places.expr, places.dtype, tuple(dims))


def _as_vector(given: Like) -> Value:
    """A tensor without dimensions as one of a single element, as torch sees it here."""
    value = lift(given)
    return value if value.ndim or value.weak else Value(value.expr, value.dtype, (None,))


def _number(value: Value) -> Value:
    return Value(value.expr, value.dtype, ())

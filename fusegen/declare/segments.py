"""Sums, means, extrema and products of the elements that have one number, a segment's: for graphs and ragged rows.

Each is a scatter (declare/scattering) into a tensor with an axis that the declaration makes (declare/creation). Numbers
need not be sorted. An element whose number is outside of ``[0, num_segments)`` belongs to no segment, as in jax.ops.
"""

from __future__ import annotations

from fusegen.core import dtypes
from fusegen.core.errors import DtypeError, ShapeError
from fusegen.core.ir import Call, const
from fusegen.declare.creation import full, whole
from fusegen.declare.indexing import own_places, take
from fusegen.declare.scans import cumsum
from fusegen.declare.scattering import index_add, scatter_reduce
from fusegen.declare.value import (
    Like,
    Value,
    cast,
    convert,
    current,
    elementwise,
    lift,
    one_axis,
    shape_of,
    wrong_dtype,
)


def segment_sum(data: Like, ids: Like, num_segments: int, axis: int = 0) -> Value:
    """``out[s] = sum of data[i] where ids[i] == s``, along ``axis``; 0 where there are none.

    ``ids`` is a vector as long as ``data`` along the axis, which has size ``num_segments`` in the result, and need not
    be sorted. The dtype is that of ``data``, int64 for bools. An id outside of ``[0, num_segments)`` is left out.
    Numbers are added up in one order: the same bits each time. Source: jax.ops.segment_sum.

    Raises:
        DtypeError: the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
    value = _data("segment_sum", data)
    return _reduced("segment_sum", value, ids, num_segments, axis, "sum", 0)


def segment_mean(data: Like, ids: Like, num_segments: int, axis: int = 0) -> Value:
    """The mean of ``data[i]`` where ``ids[i] == s``, along ``axis``; 0 where there are none. See ``segment_sum``.
    Source: torch_scatter.scatter_mean.

    Raises:
        DtypeError: ``data`` is not of floats, or the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
    value = lift(data)
    if not value.dtype.is_float:
        raise wrong_dtype("segment_mean", value.dtype, "floats", "cast with .to(fg.float32)")
    return _reduced("segment_mean", value, ids, num_segments, axis, "mean", 0)


def segment_prod(data: Like, ids: Like, num_segments: int, axis: int = 0) -> Value:
    """The product of ``data[i]`` where ``ids[i] == s``, along ``axis``; 1 where there are none. See ``segment_sum``.
    Source: jax.ops.segment_prod.

    Raises:
        DtypeError: the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
    return _reduced("segment_prod", _data("segment_prod", data), ids, num_segments, axis, "prod", 1)


def segment_max(data: Like, ids: Like, num_segments: int, axis: int = 0) -> Value:
    """The maximum of ``data[i]`` where ``ids[i] == s``, along ``axis``. NaN wins; elements that tie share the gradient.

    Where there are none it is -inf, or the lowest integer, as in JAX (torch_scatter has 0 there). See ``segment_sum``.
    Source: jax.ops.segment_max.

    Raises:
        DtypeError: the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
    value = _data("segment_max", data)
    return _reduced("segment_max", value, ids, num_segments, axis, "amax", value.dtype.limits[0])


def segment_min(data: Like, ids: Like, num_segments: int, axis: int = 0) -> Value:
    """The minimum of ``data[i]`` where ``ids[i] == s``, along ``axis``. NaN wins; elements that tie share the gradient.

    Where there are none it is inf, or the highest integer, as in JAX (torch_scatter has 0 there). See ``segment_sum``.
    Source: jax.ops.segment_min.

    Raises:
        DtypeError: the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
    value = _data("segment_min", data)
    return _reduced("segment_min", value, ids, num_segments, axis, "amin", value.dtype.limits[1])


def segment_softmax(data: Like, ids: Like, num_segments: int, axis: int = 0) -> Value:
    """``exp(data[i] - max) / sum of exp(data - max)`` over the segment of ``i``, in the shape of ``data``.

    What is in no segment is 0. See ``segment_sum``. Source: torch_geometric.utils.softmax.

    Raises:
        DtypeError: ``data`` is not of floats, or the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
    value, count = lift(data), whole(num_segments, "segment_softmax")
    if not value.dtype.is_float:
        raise wrong_dtype("segment_softmax", value.dtype, "floats", "cast with .to(fg.float32)")
    places, position = _places("segment_softmax", value, ids, count, axis)
    behind = (None,) * (value.ndim - 1 - position)
    is_in = elementwise("lt", Value(places.expr, places.dtype, (*places.dims, *behind)), count)
    # Masked first: what is in no segment could overflow, and infinity times the gradient 0 is NaN.
    known = elementwise("where", is_in, value, 0)
    with own_places():
        largest = take(_constant(segment_max(known, places, count, position)), places, position)
        raised = elementwise("exp", elementwise("sub", known, largest))
        total = take(segment_sum(raised, places, count, position), places, position)
    return elementwise("where", is_in, elementwise("div", raised, elementwise("where", is_in, total, 1)), 0)


def segment_ids(offsets: Like, length: int) -> Value:
    """The row of each of ``length`` elements: row ``s`` is from ``offsets[s]`` up to, not with, ``offsets[s + 1]``.

    A vector of int64, for ``segment_sum`` and its like. Offsets never fall; rows may be empty. Elements in front of the
    first offset have -1, and those from the last on ``len(offsets) - 1``, the number of rows: they are in no segment.
    Offsets are counted at each place, and the counts added up, in time linear in both. Source: the offsets of
    torch.nested tensors.

    Raises:
        DtypeError: the offsets are no integers.
        ShapeError: they are no vector.
        DeclarationError: ``length`` is no int when the op is traced.
    """
    return elementwise("sub", cumsum(_counted("segment_ids", offsets, length, None), 0), 1)


def bincount(ids: Like, num: int, weights: Like | None = None) -> Value:
    """``out[n] = how many i there are with ids[i] == n``, or the sum of their weights; for ``n`` below ``num``.

    A vector of int64, or of the dtype of ``weights`` (torch has float64). What is outside of ``[0, num)`` is left out:
    torch's result is as long as the largest number says, which no declaration knows. Source: jax.numpy.bincount.

    Raises:
        DtypeError: the numbers are no integers.
        ShapeError: they are no vector, or the weights are not as many.
        DeclarationError: ``num`` is no int when the op is traced.
    """
    return _counted("bincount", ids, num, weights)


def _counted(what: str, ids: Like, num: int, weights: Like | None) -> Value:
    value = lift(ids)
    if value.ndim != 1:
        raise ShapeError(
            f"{current().where}, {what}", given=shape_of(value), expected="a vector of integers",
            fix="flatten it outside the op",
        )  # fmt: skip
    given = Value(const(1, dtypes.int64), dtypes.int64, value.dims) if weights is None else _data(what, weights)
    return _reduced(what, given, value, num, 0, "sum", 0)


def _data(what: str, data: Like) -> Value:
    """What is combined; truths as numbers."""
    value = lift(data)
    return cast(value, dtypes.int64) if value.dtype is dtypes.bool_ else value


def _constant(value: Value) -> Value:
    """A value through which no gradient flows: a maximum that is subtracted above and below changes nothing."""
    return Value(Call("stop_gradient", (value.expr,), value.expr.dtype), value.dtype, value.dims)


def _places(what: str, value: Value, ids: Like, count: int, axis: int) -> tuple[Value, int]:
    """The numbers of segments, with ``count`` for all that are of none, and the dimension that they are along."""
    places, where = lift(ids), f"{current().where}, {what}"
    if places.dtype.category is not dtypes.Category.INTEGER:
        raise DtypeError(
            where, given=f"numbers of segments of {places.dtype}", expected="integers", fix="cast with .to(fg.int64)"
        )
    position = one_axis(value, axis, what) if value.ndim else None
    if position is None or places.ndim != 1 or places.sizes[0] != value.sizes[position]:
        raise ShapeError(
            where, given=f"{shape_of(places)} for {shape_of(value)} along axis {axis}",
            expected="a vector with a number for each element along the axis",
            fix="pass one, and name its axis: axis=",
        )  # fmt: skip
    number = Value(convert(places.expr, dtypes.int64), dtypes.int64, places.dims)
    is_in = elementwise("logical_and", elementwise("ge", number, 0), elementwise("lt", number, count))
    return elementwise("where", is_in, number, count), position


def _reduced(
    what: str, value: Value, ids: Like, num_segments: int, axis: int, how: str, empty: float
) -> Value:  # fmt: skip
    """What the elements of each segment are combined to; ``empty`` where there are none."""
    count = whole(num_segments, what)
    places, position = _places(what, value, ids, count, axis)
    (made,) = full(count, 0).dims
    dims = (*value.dims[:position], made, *value.dims[position + 1 :])
    into = Value(convert(lift(empty).expr, value.dtype), value.dtype, dims)
    behind = (None,) * (value.ndim - 1 - position)
    along = Value(places.expr, places.dtype, (*(None,) * position, *places.dims, *behind))
    with own_places():  # an id that is no segment's is none of an error
        if how == "sum":
            return index_add(into, position, places, value)
        return scatter_reduce(into, position, along, value, how, include_self=False)


FUNCTIONS = (
    bincount, segment_ids, segment_max, segment_mean, segment_min, segment_prod, segment_softmax, segment_sum,
)  # fmt: skip

"""What is put, added or combined at positions that a tensor tells: ``fg.scatter``, ``fg.index_add`` and their like.

Sums are of one term (core/one_term), as what is read is (declare/indexing): what is added at a place that there is none
of is left out. ``fg.scatter`` is made of an extremum and a gather: the last of the updates for a place is the one whose
position is the largest, and it is read there. ``fg.scatter_reduce`` has declared gradients, since those of a product or
an extremum would be taken of all updates for all places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fusegen.core import dtypes
from fusegen.core.casts import rounded
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError, DtypeError, ShapeError
from fusegen.core.ir import Call, Expr, Index, call, const
from fusegen.core.one_term import start
from fusegen.declare.axes import AxisVar, Dims
from fusegen.declare.gradients import with_gradient
from fusegen.declare.indexing import own_places, same_rank, sides, take_along_axis
from fusegen.declare.reductions import reduce
from fusegen.declare.value import Like, Value, broadcast, cast, convert, current, elementwise, lift, shape_of


def index_add(x: Like, axis: int, index: Like, source: Like, alpha: Like = 1) -> Value:
    """``x`` with ``alpha * source[.., i, ..]`` added at ``index[i]`` along ``axis``.

    Numbers for one place are added up in one order: the same bits each time. Negative positions count from the end;
    one that is out of range is an error (``fg.PlaceError``). Source: torch.index_add.

    Raises:
        DtypeError: the index is not of integers.
        ShapeError: the index has more than one dimension, or not as many elements as the source along the axis.
    """
    value, places, position, axis_of = sides("index_add", x, index, axis, source=source)
    added = lift(source)
    along = _rows_of("index_add", value, places, added, position, axis, instead="fg.scatter_add")
    scaled = added if isinstance(alpha, (int, float)) and alpha == 1 else elementwise("mul", added, alpha)
    return _added("index_add", value, along, scaled, position, axis_of)


def scatter_add(x: Like, axis: int, index: Like, source: Like) -> Value:
    """``x`` with ``source`` added at ``index`` along ``axis``, all of as many dimensions.

    Numbers for one place are added up in one order: the same bits each time. Negative positions count from the end;
    one that is out of range is an error (``fg.PlaceError``). Source: torch.scatter_add.

    Raises:
        DtypeError: the index is not of integers.
        ShapeError: another number of dimensions, or sizes that do not fit.
    """
    value, places, position, axis_of = sides("scatter_add", x, index, axis, source=source)
    same_rank("scatter_add", value, places)
    return _added("scatter_add", value, places, lift(source), position, axis_of)


def scatter(x: Like, axis: int, index: Like, source: Like) -> Value:
    """``x`` with ``source`` in place of what is at ``index`` along ``axis``, all of as many dimensions.

    Of several for one place the last one counts, and has the gradient. A number is put at each place. Negative
    positions count from the end; one that is out of range is an error (``fg.PlaceError``). Source: torch.scatter.

    Raises:
        DtypeError: the index is not of integers, or the source is of floats and ``x`` is not.
        ShapeError: another number of dimensions, or sizes that do not fit.
    """
    value, places, position, axis_of = sides("scatter", x, index, axis, source=source)
    same_rank("scatter", value, places)
    return _put("scatter", value, places, lift(source), position, axis_of)


def index_copy(x: Like, axis: int, index: Like, source: Like) -> Value:
    """``x`` with ``source[.., i, ..]`` in place of what is at ``index[i]`` along ``axis``.

    Of several for one place the last one counts, and has the gradient. Negative positions count from the end; one that
    is out of range is an error (``fg.PlaceError``). Source: torch.index_copy.

    Raises:
        DtypeError: the index is not of integers, or the source is of floats and ``x`` is not.
        ShapeError: the index has more than one dimension, or not as many elements as the source along the axis.
    """
    value, places, position, axis_of = sides("index_copy", x, index, axis, source=source)
    source = lift(source)
    along = _rows_of("index_copy", value, places, source, position, axis, instead="fg.scatter")
    return _put("index_copy", value, along, source, position, axis_of)


def scatter_reduce(
    x: Like, axis: int, index: Like, source: Like, reduce: str = "sum", *, include_self: bool = True
) -> Value:  # fmt: skip
    """``x`` combined with ``source`` at ``index`` along ``axis``, all of as many dimensions.

    The gradient of an extremum is shared by elements that tie, that of a product is right for zeros too. Negative
    positions count from the end; one that is out of range is an error (``fg.PlaceError``).

    Source: torch.scatter_reduce.

    Args:
        reduce: "sum", "prod", "mean", "amax" or "amin".
        include_self: whether what ``x`` has there counts. Where nothing is put, it stays in any case.

    Raises:
        DeclarationError: another way to combine.
        DtypeError: the index is not of integers, or the source is of floats and ``x`` is not.
        ShapeError: another number of dimensions, or sizes that do not fit.
    """
    value, places, position, axis_of = sides("scatter_reduce", x, index, axis, source=source)
    same_rank("scatter_reduce", value, places)
    put = _Put("scatter_reduce", places, position, axis_of)
    return _reduced(put, value, cast(lift(source), value.dtype), reduce, include_self)


def _rows_of(
    what: str, value: Value, places: Value, source: Value, position: int, axis: int, *, instead: str
) -> Value:  # fmt: skip
    """One place for each row of a source, as a tensor of as many dimensions."""
    if places.ndim > 1 or source.ndim != value.ndim:
        raise ShapeError(
            f"{current().where}, {what}", given=f"{shape_of(places)} for {shape_of(source)}",
            expected="an index of one dimension, and a source of as many dimensions as x", fix=f"use {instead}",
        )  # fmt: skip
    if (source.dims[position] is None) != (places.dims in ((), (None,))):  # one place for several, or several for one
        raise ShapeError(
            f"{current().where}, {what}", given=f"{shape_of(places)} for {shape_of(source)}",
            expected=f"as many places as the source has elements along axis {axis}", fix="expand one of them",
        )  # fmt: skip
    behind = (None,) * (source.ndim - 1 - position)
    return Value(places.expr, dtypes.int64, (*places.dims, *behind) if places.dims else ())


@dataclass(frozen=True)
class _Put:
    """What is put at ``places`` along the dimension ``position`` of a tensor, by the function ``what``."""

    what: str
    places: Value
    position: int
    axis: AxisVar | None

    def fit(self, value: Value, source: Value) -> tuple[Dims, AxisVar | None]:
        """The dimensions of ``value`` with another one in the place of its axis, and that of what is put there.

        Raises:
            DtypeError: floats are put into what has none.
            ShapeError, DeclarationError: sizes that do not fit, or a source that varies along the axis itself.
        """
        position, axis, tracer = self.position, self.axis, current()
        if source.dtype.is_float and not value.dtype.is_float:
            raise DtypeError(
                f"{tracer.where}, {self.what}", given=f"a source of {source.dtype} for {value.dtype}",
                expected="one dtype (as torch)", fix="cast one with .to()",
            )  # fmt: skip
        dims = broadcast([self.places, source], self.what)
        dims = (*[None] * (value.ndim - len(dims)), *dims)
        others = Value(value.expr, value.dtype, (*value.dims[:position], None, *value.dims[position + 1 :]))
        theirs = Value(source.expr, source.dtype, (*dims[:position], None, *dims[position + 1 :]))
        rows, inner = broadcast([others, theirs], self.what), dims[position]
        if any(row and not own for row, own in zip(rows, others.dims, strict=True)):
            raise ShapeError(
                f"{tracer.where}, {self.what}",
                given=f"{shape_of(self.places)} and {shape_of(source)} for {shape_of(value)}",
                expected="the sizes of x, but along the axis", fix="expand x first",
            )  # fmt: skip
        if axis is not None and axis.find() in tracer.axes_of(self.places.expr) | tracer.axes_of(source.expr):
            raise DeclarationError(
                f"{tracer.where}, {self.what}",
                given=f"an index or source that varies along the dimension of x: {axis.origin}",
                expected="tensors with a dimension of their own there", fix="pass x as one more argument",
            )  # fmt: skip
        return rows, inner

    def combined(self, kind: str, value: Value, source: Value) -> Value:
        """For each place in ``value`` what is put there, combined; where there is nothing, what that starts from."""
        rows, inner = self.fit(value, source)
        axis, dtype = self.axis, value.dtype if kind == "sum" else _wide(value.dtype)
        here: Expr = Index(current().name_of(axis)) if axis is not None else const(0, dtypes.int64)
        expr = cast(source, dtype).expr
        test = call("eq", here, self.places.expr, dtype=dtypes.bool_)
        chosen = Call("where", (test, expr, const(start(kind, expr.dtype), expr.dtype)), expr.dtype)
        kept: Dims = (*rows[: self.position], axis, *rows[self.position + 1 :])
        return reduce(kind, Value(chosen, dtype, (*kept, inner)), value.ndim, dtype=dtype)

    def count(self, value: Value) -> Value:
        """How much is put at each place of ``value``."""
        return self.combined("sum", Value(value.expr, dtypes.int64, value.dims), self._ones())

    def touched(self, value: Value) -> Value:
        """Whether anything is put at each place of ``value``."""
        found = self.combined("max", Value(value.expr, dtypes.int64, value.dims), self._ones())
        return elementwise("gt", found, 0)

    def at_places(self, value: Value) -> Value:
        """What ``value`` has at the places."""
        with own_places():
            return take_along_axis(value, self.places, self.position)

    def _ones(self) -> Value:
        return Value(const(1, dtypes.int64), dtypes.int64, ())


def _wide(dtype: DType) -> DType:
    return dtype if dtype.is_float else dtypes.int64


def _added(what: str, value: Value, places: Value, source: Value, position: int, axis: AxisVar | None) -> Value:
    """``value`` with what is added at places along its dimension ``position``."""
    total = _Put(what, places, position, axis).combined("sum", value, source)
    return cast(elementwise("add", value, total), value.dtype)


def _put(what: str, value: Value, places: Value, source: Value, position: int, axis: AxisVar | None) -> Value:
    """``value`` with what is put at places along its dimension ``position``, the last of several."""
    put = _Put(what, places, position, axis)
    source = cast(source, value.dtype) if value.dtype.is_float or not source.dtype.is_float else source
    put.fit(value, source)
    if source.ndim == 0:
        return elementwise("where", put.touched(value), source, value)
    inner = broadcast([places, source], what)[position]
    number: Expr = Index(current().name_of(inner)) if inner is not None else const(0, dtypes.int64)
    numbers = Value(number, dtypes.int64, (inner, *[None] * (value.ndim - 1 - position)))
    last = put.combined("max", Value(value.expr, dtypes.int64, value.dims), numbers)
    with own_places():
        found = take_along_axis(source, last, position) if inner is not None else source
    return elementwise("where", elementwise("ge", last, 0), found, value)


def _reduced(put: _Put, value: Value, source: Value, how: str, include_self: bool) -> Value:
    """``value`` combined with a source: see ``scatter_reduce``."""
    if how in ("sum", "mean"):
        total = put.combined("sum", value, source)
        if how == "sum" and include_self:
            return elementwise("add", value, total)
        count = put.count(value)
        is_put = elementwise("gt", count, 0)
        found = elementwise("add", value, total) if include_self else total
        if how == "mean":
            number = elementwise("add", count, 1) if include_self else count
            number = elementwise("where", is_put, number, 1)
            number = Value(convert(number.expr, value.dtype), value.dtype, number.dims)  # a half could not hold it
            found = elementwise("div" if value.dtype.is_float else "floor_divide", found, number)
        return elementwise("where", is_put, cast(found, value.dtype), value)
    kinds = {"prod": ("prod", "mul"), "amax": ("max", "maximum"), "amin": ("min", "minimum")}
    if how not in kinds:
        raise DeclarationError(
            f"{current().where}, {put.what}", given=f"reduce={how!r}", expected=f"sum, mean, {', '.join(kinds)}",
            fix="name one of these",
        )  # fmt: skip
    kind, with_own = kinds[how]

    def made(arguments: Mapping[str, Any]) -> Value:
        x, of = lift(arguments["x"]), lift(arguments["source"])
        there = replace(put, places=lift(arguments["index"]))
        found, own = there.combined(kind, x, of), cast(x, _wide(x.dtype))
        chosen = (
            elementwise(with_own, own, found) if include_self else elementwise("where", there.touched(x), found, own)
        )
        return cast(chosen, x.dtype)

    def gradient(d_out: Value, x: Value, index: Value, source: Value, *, out: Value) -> tuple[Value, None, Value]:
        there = replace(put, places=index)
        if how == "prod":
            d_x, d_source = _of_product(there, include_self, d_out, x, source)
        else:
            d_x, d_source = _of_extremum(there, include_self, d_out, x, source, out)
        return d_x, None, d_source

    if how != "prod":  # whose result is compared with them
        value, source = (Value(rounded(v.expr, v.dtype), v.dtype, v.dims) for v in (value, source))
    values = {"x": value, "index": put.places, "source": source}
    return lift(with_gradient(put.what, current().where, gradient, values, made(values), made))


def _of_extremum(
    put: _Put, include_self: bool, d_out: Value, x: Value, source: Value, out: Value
) -> tuple[Value, Value]:  # fmt: skip
    """An extremum's cotangent is shared by the elements that it is."""
    there = put.at_places(out)
    theirs = elementwise("eq", source, there)
    ties = put.combined("sum", x, cast(theirs, x.dtype))
    mine = elementwise("eq", x, out) if include_self else elementwise("logical_not", put.touched(x))
    ties = elementwise("add", ties, cast(mine, x.dtype)) if include_self else ties
    share = elementwise("div", d_out, elementwise("where", elementwise("eq", ties, 0), 1, ties))
    d_source = elementwise("where", theirs, put.at_places(share), _no_share(there, put.at_places(d_out)))
    return elementwise("where", mine, share, _no_share(out, d_out) if include_self else 0), d_source


def _no_share(extremum: Value, cotangent: Value) -> Value:
    """What elements get that are not the extremum: nothing, but NaN where NaN won."""
    is_nan = elementwise("ne", extremum, extremum)
    return elementwise("where", is_nan, elementwise("mul", cotangent, extremum), 0)


def _of_product(put: _Put, include_self: bool, d_out: Value, x: Value, source: Value) -> tuple[Value, Value]:
    """The product of the others, as the polynomial that it is in one or two factors that are zero: what these add up to
    is zero, but its derivative is not. (Third derivatives are wrong where two are zero.)"""

    def other(zero: Value, value: Value) -> Value:
        return elementwise("where", zero, 1, value)

    def alone(zero: Value, value: Value) -> Value:
        return elementwise("where", zero, value, 0)

    is_zero, own_zero = elementwise("eq", source, 0), elementwise("eq", x, 0)
    zeros = put.combined("sum", x, cast(is_zero, x.dtype))
    total = put.combined("sum", x, alone(is_zero, source))
    rest = cast(put.combined("prod", x, other(is_zero, source)), x.dtype)
    if include_self:
        zeros = elementwise("add", zeros, cast(own_zero, x.dtype))
        total = elementwise("add", total, alone(own_zero, x))
        rest = elementwise("mul", rest, other(own_zero, x))

    def of(zero: Value, value: Value, at: Callable[[Value], Value]) -> Value:
        count, sum_of_zeros = at(zeros), at(total)

        def by_count(values: dict[int, Any]) -> Value:
            found = lift(0)
            for number, value in values.items():
                found = elementwise("where", elementwise("eq", count, number), value, found)
            return found

        others = by_count({1: 1, 2: elementwise("sub", sum_of_zeros, alone(zero, value))})
        beside = elementwise("div", by_count({0: 1, 1: sum_of_zeros}), other(zero, value))
        return elementwise("mul", elementwise("mul", at(d_out), at(rest)), elementwise("where", zero, others, beside))

    d_source = of(is_zero, source, put.at_places)
    if include_self:
        return of(own_zero, x, lambda value: value), d_source
    return elementwise("where", put.touched(x), 0, d_out), d_source


FUNCTIONS = (index_add, index_copy, scatter, scatter_add, scatter_reduce)

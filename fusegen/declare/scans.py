"""Scans as a declaration writes them: running sums, products and extrema, and linear recurrences (core/scans).

Names, axes and results are torch's (``axis`` is its ``dim``). Half types are carried in float32 and rounded where they
are stored. Of a tensor without dimensions a scan is that tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import SCAN, Index, Reduce, const
from fusegen.core.scans import AFFINE, LOGADDEXP, PLACES, How, Scanned
from fusegen.declare.axes import leaves
from fusegen.declare.indexing import picked
from fusegen.declare.meeting import met_apart
from fusegen.declare.parts import read_anew
from fusegen.declare.reductions import _float
from fusegen.declare.value import (
    Like,
    Value,
    broadcast,
    cast,
    convert,
    current,
    elementwise,
    lift,
    one_axis,
    result_type,
)


class Cumulative(NamedTuple):
    """What ``cummax`` and ``cummin`` return."""

    values: Value
    indices: Value


def in_groups(where: str) -> DeclarationError:
    """The error of a scan along an axis that met one in groups behind it."""
    return DeclarationError(
        f"{where}, a scan", given="a scan along a dimension that is in groups (fg.unflatten)",
        expected="a dimension that is in none", fix="do one of the two in an op of its own",
    )  # fmt: skip


def scan(what: str, how: How, values: Sequence[Value], axis: Any, dtype: DType) -> Value:
    """All partial results of values along an axis, computed in ``dtype``.

    Args:
        what: the function, for errors.

    Raises:
        ShapeError: there is no such dimension, or sizes differ.
    """
    values = met_apart(values, what)
    dims = broadcast(values, what)
    exprs = [convert(value.expr, dtype) for value in values]
    position = one_axis(Value(exprs[-1], dtype, dims), axis, what)
    dim = dims[position] if position is not None else None
    if dim is None:  # one element, which has a gradient of zeros where it is not in the result
        if how.combine in PLACES:
            return Value(const(0, dtypes.int64), dtypes.int64, dims)
        only = Value(exprs[-1], dtype, dims)
        return elementwise("where", False, only, Value(how.neutral(dtype), dtype, ())) if how.exclusive else only
    tracer = current()
    assert position is not None
    if len(leaves([dim])) > 1:  # along an axis that is in none, which reads the elements and is read at their places
        behind = len(dims) - position
        apart = [read_anew(v, v.ndim - behind) if v.ndim >= behind and v.dims[-behind] else v for v in values]
        found = scan(what, how, apart, position, dtype)
        axis = found.dims[position]
        assert axis is not None
        return picked(found, Index(tracer.name_of(dim)), axis, dims, what)
    tracer.distinct.append((f"what {what} combines", dims))
    made = Scanned(tuple(exprs), Index(tracer.name_of(dim)), how).expr
    for known, _ in tracer.reduces:
        if (known.kind, known.expr) == (SCAN, made):
            return Value(known.ref, how.dtype(dtype), dims)
    node = Reduce(tracer.new_name("r"), SCAN, made, ())
    tracer.varying[node.name] = frozenset(tracer.axes_of(made))
    tracer.reduces.append((node, ()))
    return Value(node.ref, how.dtype(dtype), dims)


def _cumulative(what: str, how: How, x: Like, axis: Any, dtype: Any) -> Value:
    """Sums or products, of integers and bools in int64."""
    if dtype is not None:
        return cast(_cumulative(what, how, cast(x, dtype), axis, None), dtype)
    value = lift(x)
    return scan(what, how, [value], axis, value.dtype if value.dtype.is_float else dtypes.int64)


def cumsum(x: Like, axis: int = -1, *, reverse: bool = False, exclusive: bool = False, dtype: Any = None) -> Value:
    """y[i] = x[0] + ... + x[i] along ``axis``; x[i] + ... + x[last] if ``reverse``.

    If ``exclusive`` x[i] is not in y[i], and the first is zero. Integers and bools are added up as int64; halves are in
    float32, and rounded where they are stored. ``dtype`` casts before, and is the result's. Source: torch.cumsum.

    Raises:
        ShapeError: there is no such dimension.
        DeclarationError: a result meets what is in groups (fg.unflatten) along it.
    """
    return _cumulative("cumsum", How("sum", reverse, exclusive), x, axis, dtype)


def cumprod(x: Like, axis: int = -1, *, reverse: bool = False, exclusive: bool = False, dtype: Any = None) -> Value:
    """y[i] = x[0] * ... * x[i] along ``axis``; x[i] * ... * x[last] if ``reverse``.

    If ``exclusive`` x[i] is not in y[i], and the first is one. Its gradient divides by nothing, so elements may be
    zero. Dtypes and errors are those of ``cumsum``. Source: torch.cumprod.
    """
    return _cumulative("cumprod", How("prod", reverse, exclusive), x, axis, dtype)


def _running(what: str, combine: str, x: Like, axis: Any, reverse: bool) -> Cumulative:
    value = lift(x)
    if value.dtype is dtypes.bool_:
        wide = _running(what, combine, cast(value, dtypes.uint8), axis, reverse)
        return Cumulative(cast(wide.values, dtypes.bool_), wide.indices)
    if not value.ndim:
        return Cumulative(value, lift(cast(0, dtypes.int64)))
    best, places = (scan(what, How(way, reverse), [value], axis, value.dtype) for way in (combine, f"arg{combine}"))
    return Cumulative(best, places)


def cummax(x: Like, axis: int = -1, *, reverse: bool = False) -> Cumulative:
    """The largest of x[0], ..., x[i] along ``axis``, and where it stands: ``values`` and ``indices`` (int64).

    From the last element if ``reverse``. Of several that are equal, the place is that of the last that the scan meets,
    which has the gradient; NaN is larger than all. Source: torch.cummax.

    Raises:
        ShapeError: there is no such dimension.
        DeclarationError: a result meets what is in groups (fg.unflatten) along it.
    """
    return _running("cummax", "max", x, axis, reverse)


def cummin(x: Like, axis: int = -1, *, reverse: bool = False) -> Cumulative:
    """The smallest of x[0], ..., x[i] along ``axis``, and where it stands. See ``cummax``. Source: torch.cummin."""
    return _running("cummin", "min", x, axis, reverse)


def logcumsumexp(x: Like, axis: int = -1, *, reverse: bool = False) -> Value:
    """y[i] = log(exp(x[0]) + ... + exp(x[i])) along ``axis``; from the last element if ``reverse``.

    Sums are kept relative to the largest element so far, so that nothing overflows. No gradient flows where y is
    infinite. Source: torch.logcumsumexp.

    Raises:
        ShapeError: there is no such dimension.
        DeclarationError: a result meets what is in groups (fg.unflatten) along it.
    """
    value = _float("logcumsumexp", lift(x))
    return scan("logcumsumexp", How(LOGADDEXP, reverse), [value], axis, value.dtype) if value.ndim else value


def linear_recurrence(a: Like, b: Like, axis: int = -1, *, reverse: bool = False) -> Value:
    """h[i] = a[i] * h[i - 1] + b[i] along ``axis``, from h = 0 before the first element; from the last if ``reverse``.

    ``a`` and ``b`` broadcast and promote; integers count as float32. A first state h0 goes into the first term: b[0] +
    a[0] * h0. State space models, minGRU and RG-LRU are such recurrences. Halves are carried in float32. Blocks of the
    axis are combined with products of their factors; where such a product overflows beside a state of zero, it counts
    for nothing, as in a loop. Source: Blelloch, Prefix Sums and Their Applications, 1990.

    Raises:
        ShapeError: there is no such dimension, or sizes differ.
        DeclarationError: a result meets what is in groups (fg.unflatten) along it.
    """
    factor, term = lift(a), lift(b)
    dtype = result_type([factor, term])
    dtype = dtype if dtype.is_float else dtypes.float32
    return scan("linear_recurrence", How(AFFINE, reverse), [factor, term], axis, dtype)


FUNCTIONS = (cummax, cummin, cumprod, cumsum, linear_recurrence, logcumsumexp)

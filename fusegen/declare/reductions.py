"""Reductions as a declaration writes them, composed of the monoids of core/monoids.

Names, axes and results are torch's (``axis`` is its ``dim``: an int, several, or None for all). Half types accumulate
in float32, integers in int64 where torch widens them. Over no elements: 0 for sums, 1 for products, NaN for means, the
dtype's lowest value for a maximum and its highest for a minimum (torch refuses those two; so does fg.ops).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import Call, Expr, Index, Reduce, const
from fusegen.core.rewriting import of_one, repeated
from fusegen.declare.axes import AxisVar, Dims, leaves
from fusegen.declare.value import (
    Like,
    Value,
    cast,
    convert,
    current,
    elementwise,
    lift,
    normalize_axes,
    one_axis,
    plain_number,
    wrong_dtype,
)

Axis = int | Sequence[int] | None


def reduce(kind: str, x: Like, axis: Axis = None, keepdims: bool = False, dtype: DType | None = None) -> Value:
    """``x`` folded over ``axis`` by one monoid, in ``dtype`` (its own where None)."""
    value = lift(x)
    positions = normalize_axes(value, axis, kind)
    dtype = dtype or value.dtype
    tracer = current()
    tracer.distinct.append((f"what {kind} reduces", value.dims))
    expr = convert(value.expr, dtype)
    wanted = leaves(value.dims[p] for p in positions)
    varying = tracer.axes_of(expr)
    over = tuple(a for a in wanted if a in varying)
    expr = _fold(kind, expr, over)
    for missing in (a for a in wanted if a not in varying):
        expr = repeated(kind, expr, convert(tracer.size(missing), dtype))
    return Value(expr, dtype, _kept_dims(value, positions, keepdims))


def _fold(kind: str, expr: Expr, over: tuple[AxisVar, ...]) -> Expr:
    if not over:  # every reduced dimension has size one
        return of_one(kind, expr)
    tracer = current()
    for known, axes in tracer.reduces:
        if (known.kind, known.expr) == (kind, expr) and set(leaves(axes)) == set(over):
            return known.ref
    node = Reduce(tracer.new_name("r"), kind, expr, ())
    tracer.varying[node.name] = frozenset(tracer.axes_of(expr) - set(over))
    tracer.reduces.append((node, over))
    return node.ref


def _stop_gradient(expr: Expr) -> Expr:
    return Call("stop_gradient", (expr,), expr.dtype)


def _kept_dims(value: Value, positions: Sequence[int], keepdims: bool) -> Dims:
    kept = [None if p in positions else dim for p, dim in enumerate(value.dims)]
    return tuple(kept if keepdims else [dim for p, dim in enumerate(kept) if p not in positions])


def _count(value: Value, axis: Axis, what: str) -> Expr | None:
    """Number of elements along ``axis`` (an integer known at launch); None where it is one."""
    total: Expr | None = None
    for p in normalize_axes(value, axis, what):
        dim = value.dims[p]
        if dim is not None:
            factor = current().size(dim)
            total = factor if total is None else total * factor
    return total


def _as(x: Like, dtype: Any) -> Value:
    return lift(x) if dtype is None else cast(x, dtype)


def _float(name: str, x: Like) -> Value:
    value = lift(x)
    if not value.dtype.is_float:
        raise wrong_dtype(name, value.dtype, "a float dtype (as torch)", "cast with .to(fg.float32)")
    return value


def sum(x: Like, axis: Axis = None, keepdims: bool = False, dtype: Any = None) -> Value:
    """Sum over ``axis``; of integers and bools in int64. ``dtype``: what ``x`` is cast to first."""
    value = _as(x, dtype)
    return reduce("sum", value, axis, keepdims, value.dtype if value.dtype.is_float or dtype else dtypes.int64)


def prod(x: Like, axis: Axis = None, keepdims: bool = False, dtype: Any = None) -> Value:
    """Product over ``axis``; of integers and bools in int64. Of four zeros in it the fourth gradient is zero.

    ``dtype``: what ``x`` is cast to first.
    """
    value = _as(x, dtype)
    return reduce("prod", value, axis, keepdims, value.dtype if value.dtype.is_float or dtype else dtypes.int64)


def amax(x: Like, axis: Axis = None, keepdims: bool = False) -> Value:
    """Maximum over ``axis``; NaN wins. Its gradient is shared evenly by elements that tie."""
    return reduce("max", x, axis, keepdims)


def amin(x: Like, axis: Axis = None, keepdims: bool = False) -> Value:
    """Minimum over ``axis``; NaN wins. Its gradient is shared evenly by elements that tie."""
    return reduce("min", x, axis, keepdims)


def any(x: Like, axis: Axis = None, keepdims: bool = False) -> Value:
    """Whether some element is not zero; of nothing: False. A bool, of uint8 a uint8, as torch's."""
    return _answer(x, elementwise("gt", reduce("sum", _truth(x), axis, keepdims), 0))


def all(x: Like, axis: Axis = None, keepdims: bool = False) -> Value:
    """Whether no element is zero; of nothing: True. A bool, of uint8 a uint8, as torch's."""
    zeros = reduce("sum", elementwise("logical_not", _truth(x)), axis, keepdims, dtypes.int64)
    return _answer(x, elementwise("eq", zeros, 0))


def _answer(x: Like, answer: Value) -> Value:
    return cast(answer, dtypes.uint8) if lift(x).dtype is dtypes.uint8 else answer


def _truth(x: Like) -> Value:
    value = lift(x)
    truth = value if value.dtype is dtypes.bool_ else elementwise("ne", value, 0)
    return Value(convert(truth.expr, dtypes.int64), dtypes.int64, truth.dims)


def index(x: Value, axis: int) -> Value:
    """The position along one axis of ``x``, from 0, as an int64 tensor of that one dimension that broadcasts with x."""
    x = lift(x)
    position = one_axis(x, axis, "index") or 0
    dim = x.dims[position] if x.dims else None
    after = (None,) * (x.ndim - 1 - position)
    if dim is None:
        return Value(const(0, dtypes.int64), dtypes.int64, (None, *after) if x.dims else ())
    return Value(Index(current().name_of(dim)), dtypes.int64, (dim, *after))


def argmax(x: Like, axis: int | None = None, keepdims: bool = False) -> Value:
    """Position of the maximum along ``axis`` (None: in the flattened tensor), the first where several tie; NaN wins."""
    return _first("max", x, axis, keepdims)


def argmin(x: Like, axis: int | None = None, keepdims: bool = False) -> Value:
    """Position of the minimum along ``axis`` (None: in the flattened tensor), the first where several tie; NaN wins."""
    return _first("min", x, axis, keepdims)


def _first(kind: str, x: Like, axis: int | None, keepdims: bool) -> Value:
    value = lift(x)
    if axis is not None and not isinstance(axis, int):
        raise DeclarationError(
            f"{current().where}, arg{kind}", given=f"axis={axis!r}", expected="one int, or None",
            fix="flatten the axes first, or reduce one after the other",
        )  # fmt: skip
    best = reduce(kind, value, axis, keepdims=True)
    hit = elementwise("logical_or", elementwise("eq", value, best), elementwise("ne", value, value))
    place: Value | None = None
    for position in normalize_axes(value, axis, f"arg{kind}"):
        dim = value.dims[position]
        if dim is not None:
            along = index(value, position)
            place = along if place is None else elementwise("add", elementwise("mul", place, _size(dim)), along)
    first, last = (Value(const(n, dtypes.int64), dtypes.int64) for n in (0, 2**63 - 1))
    return reduce("min", elementwise("where", hit, first if place is None else place, last), axis, keepdims)


def _size(dim: AxisVar) -> Value:
    return Value(current().size(dim), dtypes.int64)


def mean(x: Like, axis: Axis = None, keepdims: bool = False, dtype: Any = None) -> Value:
    """Arithmetic mean over ``axis``; of no elements NaN. ``dtype``: what ``x`` is cast to first."""
    value = _float("mean", _as(x, dtype))
    total, count = reduce("sum", value, axis, keepdims), _count(value, axis, "mean")
    return total if count is None else Value(total.expr / convert(count, total.dtype), total.dtype, total.dims)


def var(
    x: Like, axis: Axis = None, correction: Like | None = 1, keepdims: bool = False, unbiased: bool | None = None
) -> Value:
    """sum((x - mean(x))^2) / max(n - correction, 0) over ``axis``, n elements each; one pass, without cancellation.

    No ``correction`` is one of 1, as in torch; ``unbiased`` says 1 or 0, as a bool in the place of ``correction`` or
    of ``axis`` does.
    """
    value = _float("var", x)
    if isinstance(axis, bool):
        axis, unbiased = None, axis
    correction = 1 if correction is None else plain_number(correction)
    if unbiased is not None or isinstance(correction, bool):
        correction = int(correction if unbiased is None else unbiased)
    count = _count(value, axis, "var")
    if count is None and isinstance(correction, (int, float)) and correction >= 1:
        return reduce("sum", elementwise("mul", value, math.nan), axis, keepdims)  # 0 / 0, whose gradient is NaN too
    total = reduce("squared_deviation", value, axis, keepdims)
    n: Expr = const(1, total.dtype) if count is None else convert(count, total.dtype)
    divisor = Value(n, total.dtype)
    if not isinstance(correction, (int, float)) or correction:
        divisor = elementwise("maximum", elementwise("sub", divisor, lift(correction)), 0.0)
    return Value(total.expr / convert(divisor.expr, total.dtype), total.dtype, total.dims)


def std(
    x: Like, axis: Axis = None, correction: Like | None = 1, keepdims: bool = False, unbiased: bool | None = None
) -> Value:
    """sqrt(var(x)); where that is 0 no gradient flows, as in torch."""
    return _root(var(x, axis, correction, keepdims, unbiased))


def _root(value: Value) -> Value:
    """The square root, with a gradient of zero at zero."""
    zero = elementwise("eq", value, 0.0)
    return elementwise("where", zero, value, elementwise("sqrt", elementwise("where", zero, 1.0, value)))


def norm(
    x: Like, ord: float | str | None = 2, axis: Axis = None, keepdims: bool = False, dtype: Any = None
) -> Value:  # fmt: skip
    """(sum |x|^ord)^(1/ord) over ``axis``; the largest |x| for infinity, the smallest for -infinity, the number of
    nonzeros for 0. ``dtype``: what ``x`` is cast to first. Source: torch.linalg.vector_norm, also for gradients at
    zero."""
    value = _float("norm", _as(x, dtype))
    if isinstance(ord, str) and ord != "fro":
        raise DeclarationError(
            f"{current().where}, norm", given=f"ord={ord!r}", expected='a number, or "fro"', fix="do it outside the op"
        )
    p = 2 if ord is None or isinstance(ord, str) else ord  # torch's words for it
    if p != 0 and _count(value, axis, "norm") is None:  # one element, whose power may have no room
        return reduce("sum", elementwise("abs", value), axis, keepdims)
    if p == 2:
        return _root(reduce("sum", elementwise("mul", value, value), axis, keepdims))
    size = elementwise("abs", value)
    if p == math.inf or p == -math.inf:
        return reduce("max" if p > 0 else "min", size, axis, keepdims)
    if p == 0:
        counted = elementwise("where", elementwise("ne", value, 0.0), 1.0, elementwise("floor", value))
        return reduce("sum", counted, axis, keepdims)  # with a gradient of zeros, as torch's
    if p == 1:
        return reduce("sum", size, axis, keepdims)
    zero = elementwise("eq", value, 0.0)
    power = elementwise("pow", elementwise("where", zero, 1.0, size), p)
    powers = elementwise("where", zero, 0.0 if p > 0 else math.inf, power)
    total = reduce("sum", powers, axis, keepdims)
    none = elementwise("eq", total, 0.0)
    root = elementwise("pow", elementwise("where", none, 1.0, total), 1.0 / p)
    return elementwise("where", none, 0.0 if p > 0 else math.inf, root)


def _stopped(value: Value) -> Value:
    return Value(_stop_gradient(value.expr), value.dtype, value.dims)


def sum_exp(x: Like, axis: Axis = None, keepdims: bool = False) -> Value:
    """sum(exp(x - max(x))) over ``axis``, in one pass; in its gradient the maximum counts as a constant."""
    return reduce("sum_exp", _float("sum_exp", x), axis, keepdims)


def logsumexp(x: Like, axis: Axis = None, keepdims: bool = False) -> Value:
    """log(sum(exp(x))) over ``axis``, without overflow: max + log(sum(exp(x - max))); of integers in float32."""
    value = lift(x)
    value = value if value.dtype.is_float else cast(value, dtypes.float32)
    top = _stopped(reduce("max", value, axis, keepdims))
    total = reduce("sum_exp", value, axis, keepdims)
    infinite = elementwise("eq", elementwise("abs", top), math.inf)
    return elementwise("where", infinite, top, elementwise("add", top, elementwise("log", total)))


def softmax(x: Like, axis: int = -1, dtype: Any = None) -> Value:
    """exp(x - max) / sum(exp(x - max)) along ``axis``. ``dtype``: what ``x`` is cast to first."""
    value = _float("softmax", _as(x, dtype))
    top = _stopped(reduce("max", value, axis, keepdims=True))
    return elementwise("div", elementwise("exp", elementwise("sub", value, top)), reduce("sum_exp", value, axis, True))


def log_softmax(x: Like, axis: int = -1, dtype: Any = None) -> Value:
    """x - max - log(sum(exp(x - max))) along ``axis``. ``dtype``: what ``x`` is cast to first."""
    value = _float("log_softmax", _as(x, dtype))
    top = _stopped(reduce("max", value, axis, keepdims=True))
    total = reduce("sum_exp", value, axis, keepdims=True)
    return elementwise("sub", elementwise("sub", value, top), elementwise("log", total))


def size(x: Value, axis: Axis = None) -> Value:
    """Number of elements along ``axis`` (None: all), as a weak integer known at launch."""
    return Value(_count(lift(x), axis, "size") or const(1, dtypes.int64), dtypes.int64, weak=True)


FUNCTIONS = (
    all, amax, amin, any, argmax, argmin, index, log_softmax, logsumexp, mean, norm, prod, size, softmax, std,
    sum, sum_exp, var,
)  # fmt: skip

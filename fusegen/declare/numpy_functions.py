"""NumPy's functions that torch has with other arguments, or not at all, as expressions of the language.

Each definition takes NumPy's arguments by NumPy's names. What is the same in torch has its NumPy name there
(declare/torch_functions and those beside it).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError
from fusegen.declare import indexing, reductions, torch_algebra, torch_arrays
from fusegen.declare.language import expand_dims
from fusegen.declare.memory import shares
from fusegen.declare.torch_functions import DEFINED, Function, TorchFunction, library, permute, split_by_size, transpose
from fusegen.declare.value import Like, Value, cast, current, elementwise, lift, plain_number

F = TypeVar("F", bound=Function)


def numpys(*names: str) -> Callable[[F], F]:
    """Say that a definition, whose docstring is what it stands for, is NumPy's function of these names."""

    def add(function: F) -> F:
        DEFINED.append(TorchFunction((), function, names, own_words=True))
        return function

    return add


# -- shapes ------------------------------------------------------------------------------------------------------------


@numpys("shape")
def shape(a: Like) -> tuple[int, ...]:
    """``x.shape``."""
    return tuple(lift(a).shape)


@numpys("ndim")
def ndim(a: Like) -> int:
    """``x.ndim``."""
    return lift(a).ndim


@numpys("size")
def size(a: Like, axis: int | None = None) -> int:
    """``fg.size(x)``, or one of ``x.shape``."""
    sizes = lift(a).shape
    return math.prod(sizes) if axis is None else sizes[axis]


@numpys("transpose", "permute_dims")
@shares("view")
def transposed(a: Like, axes: Sequence[int] | None = None) -> Value:
    """``x.permute(axes)``; without axes all in the other order."""
    value = lift(a)
    order = tuple(reversed(range(value.ndim))) if axes is None else tuple(axes)
    return permute(value, order) if order else value


@numpys("matrix_transpose")
@shares("view")
def matrix_transpose(x: Like, /) -> Value:
    """``x.mT``."""
    return transpose(x, -2, -1)


# -- side by side, repeated, padded ------------------------------------------------------------------------------------


@numpys("hstack")
def hstack(tup: Sequence[Like]) -> Value:
    """As ``torch.hstack``."""
    return torch_arrays.hstack(tup)


@numpys("vstack", "row_stack")
def vstack(tup: Sequence[Like]) -> Value:
    """As ``torch.vstack``."""
    return torch_arrays.vstack(tup)


@numpys("dstack")
def dstack(tup: Sequence[Like]) -> Value:
    """As ``torch.dstack``."""
    return torch_arrays.dstack(tup)


@numpys("column_stack")
def column_stack(tup: Sequence[Like]) -> Value:
    """As ``torch.column_stack``."""
    return torch_arrays.column_stack(tup)


@numpys("array_split")
@shares("parts")
def array_split(ary: Like, indices_or_sections: Any, axis: int = 0) -> tuple[Value, ...]:
    """As ``torch.tensor_split``."""
    return torch_arrays.tensor_split(ary, indices_or_sections, axis)


@numpys("split")
@shares("parts")
def split(ary: Like, indices_or_sections: Any, axis: int = 0) -> tuple[Value, ...]:
    """``fg.split(x, count, axis)``; parts of several sizes, between places, are made of such."""
    value, count = lift(ary), plain_number(indices_or_sections)
    if not isinstance(count, int):
        return torch_arrays.tensor_split(value, count, axis)
    length = value.shape[axis]
    return split_by_size(value, [length // count if count > 0 else 0] * count, axis)


@numpys("repeat")
def repeat(a: Like, repeats: Any, axis: int | None = None) -> Value:
    """As ``torch.repeat_interleave``; without an axis of the flattened tensor."""
    value = lift(a)
    return torch_arrays.repeat_interleave(torch_arrays.ravel(value) if axis is None else value, repeats, axis or 0)


@numpys("tile")
def tile(A: Like, reps: Any) -> Value:
    """As ``torch.tile``."""
    return torch_arrays.tile(A, reps if isinstance(reps, (tuple, list)) else (reps,))


@numpys("pad")
def pad(array: Like, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0) -> Any:
    """``fg.ops.pad``, whose widths begin with the last dimension."""
    value, widths = lift(array), _widths(pad_width, lift(array).ndim)
    renamed = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}
    number = plain_number(constant_values)
    if mode not in renamed or not isinstance(number, (bool, int, float, Value)):
        given = f"mode={mode!r}" if mode not in renamed else f"constant_values={constant_values!r}"
        raise DeclarationError(
            f"{current().where}, numpy.pad", given=given, expected=f"one number, and a mode of {', '.join(renamed)}",
            fix="compose it of fg.concat",
        )  # fmt: skip
    around = [side for pair in reversed(widths) for side in pair]
    return library("pad")(value, tuple(around), renamed[mode], number if mode == "constant" else None)


def _widths(given: Any, rank: int) -> list[tuple[int, int]]:
    """In front and behind, of each dimension."""
    if isinstance(given, Mapping):
        return [_pair(given.get(at, given.get(at - rank, 0))) for at in range(rank)]
    several = [*given] if isinstance(given, (tuple, list)) else [given]
    if len(several) == 2 and not isinstance(several[0], (tuple, list)):
        return [(several[0], several[1])] * rank
    return [_pair(each) for each in (several * rank if len(several) == 1 else several)]


def _pair(given: Any) -> tuple[int, int]:
    both = [*given] if isinstance(given, (tuple, list)) else [given]
    return both[0], both[-1]


@numpys("meshgrid")
@shares("each")
def meshgrid(*xi: Like, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Value, ...]:
    """As ``torch.meshgrid``, by columns and rows."""
    return torch_arrays.meshgrid(*xi, indexing=indexing)


@numpys("select")
def select(condlist: Sequence[Like], choicelist: Sequence[Like], default: Like = 0) -> Value:
    """``fg.where`` of the first condition that holds."""
    found = lift(default)
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        found = elementwise("where", condition, choice, found)
    return found


# -- diagonals and differences -----------------------------------------------------------------------------------------


@numpys("diag")
def diag(v: Like, k: int = 0) -> Value:
    """As ``torch.diag``."""
    return torch_arrays.diag(v, k)


@numpys("diagonal")
def diagonal(a: Like, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Value:
    """As ``torch.diagonal``."""
    return torch_arrays.diagonal(a, offset, axis1, axis2)


@numpys("trapezoid", "trapz")
def trapezoid(y: Like, x: Like | None = None, dx: Like = 1.0, axis: int = -1) -> Value:
    """As ``torch.trapezoid``."""
    return torch_arrays.trapezoid(y, x, dx=dx, dim=axis)


# -- products ----------------------------------------------------------------------------------------------------------


@numpys("outer")
def outer(a: Like, b: Like) -> Value:
    """``x[:, None] * y`` of both flattened."""
    return torch_algebra.outer(torch_arrays.ravel(a), torch_arrays.ravel(b))


@numpys("einsum")
def einsum(subscripts: str, *operands: Any, optimize: Any = False) -> Value:
    """As ``torch.einsum``; sums of bytes are bytes."""
    found = torch_algebra.einsum(subscripts, *operands)
    return cast(found, functools.reduce(dtypes.join, (lift(value).dtype for value in operands)))


@numpys("cross")
def cross(a: Like, b: Like, axis: int = -1) -> Value:
    """As ``torch.linalg.cross``."""
    return torch_algebra.linalg_cross(a, b, dim=axis)


@numpys("tensordot")
def tensordot(a: Like, b: Like, axes: Any = 2) -> Value:
    """As ``torch.tensordot``."""
    return torch_algebra.tensordot(a, b, axes)


@numpys("corrcoef")
def corrcoef(x: Like) -> Value:
    """As ``torch.corrcoef``."""
    return torch_algebra.corrcoef(x)


@numpys("cov")
def cov(m: Like, bias: bool = False, ddof: int | None = None) -> Value:
    """As ``torch.cov``."""
    return torch_algebra.cov(m, correction=(0 if bias else 1) if ddof is None else ddof)


# -- sums and extrema --------------------------------------------------------------------------------------------------


def _without_nan(kind: str) -> Function:
    start = -math.inf if kind == "max" else math.inf
    of = reductions.amax if kind == "max" else reductions.amin

    def extremum(a: Like, axis: Any = None, keepdims: bool = False) -> Value:
        value = lift(a)
        if not value.dtype.is_float:
            return of(value, axis, keepdims)
        missing = elementwise("isnan", value)
        found = of(elementwise("where", missing, start, value), axis, keepdims)
        return elementwise("where", reductions.all(missing, axis, keepdims), math.nan, found)

    extremum.__doc__ = f"``fg.a{kind}(fg.where(fg.isnan(x), {'-' * (kind == 'max')}inf, x), axis)``."
    return extremum


nanmax, nanmin = numpys("nanmax")(_without_nan("max")), numpys("nanmin")(_without_nan("min"))


@numpys("nanprod")
def nanprod(a: Like, axis: Any = None, keepdims: bool = False) -> Value:
    """``fg.prod(fg.where(fg.isnan(x), 1, x), axis)``."""
    value = lift(a)
    kept = elementwise("where", elementwise("isnan", value), 1, value) if value.dtype.is_float else value
    return reductions.prod(kept, axis, keepdims)


@numpys("ptp")
def ptp(a: Like, axis: Any = None, keepdims: bool = False) -> Value:
    """``fg.amax(x, axis) - fg.amin(x, axis)``."""
    return elementwise("sub", reductions.amax(a, axis, keepdims), reductions.amin(a, axis, keepdims))


@numpys("average")
def average(a: Like, axis: Any = None, weights: Like | None = None, keepdims: bool = False) -> Value:
    """``fg.mean(x, axis)``; with weights ``fg.sum(x * w, axis) / fg.sum(w, axis)``."""
    value = lift(a)
    value = value if value.dtype.is_float else cast(value, dtypes.float64)
    if weights is None:
        return reductions.mean(value, axis, keepdims)
    given = lift(weights)
    if given.ndim == 1 and value.ndim > 1 and isinstance(axis, int):  # one for each element along the axis
        given = expand_dims(given, tuple(at for at in range(value.ndim) if at != axis % value.ndim))
    weighted = reductions.sum(elementwise("mul", value, given), axis, keepdims)
    return elementwise("div", weighted, reductions.sum(given, axis, keepdims))


@numpys("interp")
def interp(x: Like, xp: Like, fp: Like, left: Like | None = None, right: Like | None = None) -> Value:
    """The line between the two of the points ``xp``, in order, that are around ``x``."""
    value, points, values = lift(x), lift(xp), lift(fp)
    behind = torch_algebra.searchsorted(points, value, right=True)
    before = elementwise("clamp", elementwise("sub", behind, 1), 0, max(points.sizes[0] - 2, 0))
    after = elementwise("minimum", elementwise("add", before, 1), points.sizes[0] - 1)
    (x0, y0), (x1, y1) = ([indexing.take(v, at, 0, negative=False) for v in (points, values)] for at in (before, after))
    slope = elementwise("div", elementwise("sub", y1, y0), elementwise("sub", x1, x0))
    found = elementwise("add", elementwise("mul", slope, elementwise("sub", value, x0)), y0)
    first, last = (indexing.take(points, place, 0) for place in (0, -1))
    low = indexing.take(values, 0, 0) if left is None else left
    high = indexing.take(values, -1, 0) if right is None else right
    found = elementwise("where", elementwise("lt", value, first), low, found)
    return elementwise("where", elementwise("ge" if right is None else "gt", value, last), high, found)

"""Functions of torch that the language has under other names or with other arguments, as expressions of it.

Each definition takes torch's arguments, and its docstring is the expression. declare/torch_names puts them into one
table with what has torch's name and arguments already.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.declare import creation, language, products, reductions
from fusegen.declare.language import expand_dims
from fusegen.declare.meeting import met_apart
from fusegen.declare.memory import shares
from fusegen.declare.parts import concat, flatten, merged, pieces, read_anew, split, unflatten
from fusegen.declare.value import (
    Like,
    SizeOf,
    Value,
    broadcast,
    cast,
    current,
    elementwise,
    lift,
    normalize_axes,
    one_axis,
    result_type,
    shape_of,
)

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True)
class TorchFunction:
    """A function of torch, as the language says it.

    Attributes:
        names: below ``torch``: "exp", "special.expit", "nn.functional.gelu", or "Tensor.float" of a method alone.
        function: takes torch's arguments; its docstring is the expression.
        numpy: names below ``numpy`` of functions that are the same; their arguments are told in torch's words.
        own_words: it is NumPy's alone, and takes NumPy's arguments.
    """

    names: tuple[str, ...]
    function: Function
    numpy: tuple[str, ...] = ()
    own_words: bool = False


# -- definitions with torch's arguments ------------------------------------------------------------------------------

DEFINED: list[TorchFunction] = []


def torchs(*names: str, numpy: Sequence[str] = ()) -> Callable[[F], F]:
    """Say that a definition, whose docstring is what it stands for, is torch's function of these names."""

    def add(function: F) -> F:
        DEFINED.append(TorchFunction(names, function, tuple(numpy)))
        return function

    return add


def library(name: str) -> Any:
    """An op of ``fusegen.ops``, which imports what is here."""
    return getattr(importlib.import_module("fusegen.ops"), name)


@torchs("add", numpy=["add"])
def add(input: Like, other: Like, *, alpha: Like = 1) -> Value:
    """``x + y``."""
    return elementwise("add", input, _times(other, alpha, input))


@torchs("sub", "subtract", numpy=["subtract"])
def sub(input: Like, other: Like, *, alpha: Like = 1) -> Value:
    """``x - y``."""
    return elementwise("sub", input, _times(other, alpha, input))


@torchs("rsub")
def rsub(input: Like, other: Like, *, alpha: Like = 1) -> Value:
    """``y - x``."""
    return elementwise("sub", other, _times(input, alpha, other))


def _times(value: Like, alpha: Like, other: Like) -> Like:
    """``alpha * value``, computed in the dtype that the sum with ``other`` has: it may have no room in its own."""
    if isinstance(alpha, (int, float)) and alpha == 1:
        return value
    own = beside(value, other)
    product = elementwise("mul", own, alpha)
    return cast(product, own.dtype) if own.dtype is dtypes.bool_ and not own.weak else product


def beside(value: Like, other: Like) -> Value:
    """``value`` in the dtype that it has where it meets ``other``; Python's numbers have none of their own."""
    own = lift(value)
    return own if own.weak else cast(own, result_type([own, lift(other)]))


@torchs("mul", "multiply", numpy=["multiply"])
def mul(input: Like, other: Like) -> Value:
    """``x * y``."""
    return elementwise("mul", input, other)


@torchs("div", "divide", "true_divide", numpy=["divide", "true_divide"])
def div(input: Like, other: Like, *, rounding_mode: str | None = None) -> Value:
    """``x / y``."""
    if rounding_mode is None:
        return elementwise("div", input, other)
    if rounding_mode == "floor":
        return elementwise("floor_divide", input, other)
    if rounding_mode != "trunc":
        raise DeclarationError(
            f"{current().where}, div", given=f"rounding_mode={rounding_mode!r}", expected='None, "floor" or "trunc"',
            fix="use one of them",
        )  # fmt: skip
    if lift(input).dtype.is_float or lift(other).dtype.is_float:
        return elementwise("trunc", elementwise("div", input, other))
    input, other = beside(input, other), beside(other, input)  # -1 among bytes is 255, and has no sign
    down = elementwise("floor_divide", input, other)
    rest = elementwise("remainder", input, other)  # the quotient times the divisor may have no room
    is_below = elementwise("ne", elementwise("lt", input, 0), elementwise("lt", other, 0))
    is_off = elementwise("logical_and", elementwise("ne", rest, 0), is_below)
    return elementwise("where", is_off, elementwise("add", down, 1), down)


@torchs("neg", "negative", numpy=["negative"])
def neg(input: Like) -> Value:
    """``-x``."""
    return elementwise("neg", input)


@torchs("positive", numpy=["positive"])
@shares("same")
def positive(input: Like) -> Value:
    """``x``."""
    return lift(input)


@torchs("pow", "Tensor.__pow__", numpy=["power"])
def power(input: Like, exponent: Like) -> Value:
    """``x ** y``."""
    return language.pow(input, exponent)


@torchs("square", numpy=["square"])
def square(input: Like) -> Value:
    """``x * x``."""
    return language.square(input)


@torchs("reciprocal", numpy=["reciprocal"])
def reciprocal(input: Like) -> Value:
    """``1 / x``."""
    return language.reciprocal(input)


@torchs("clamp_min")
def clamp_min(input: Like, min: Like) -> Any:
    """``fg.ops.clamp(x, min=low)``."""
    return library("clamp")(input, min=min)


@torchs("clamp_max")
def clamp_max(input: Like, max: Like) -> Any:
    """``fg.ops.clamp(x, max=high)``."""
    return library("clamp")(input, max=max)


@torchs("clip", numpy=["clip"])
def clip(input: Like, min: Like | None = None, max: Like | None = None) -> Any:
    """``fg.ops.clamp(x, low, high)``."""
    return library("clamp")(input, min, max)


@torchs("where", numpy=["where"])
def where(condition: Like, input: Like | None = None, other: Like | None = None) -> Value:
    """``fg.where(condition, x, y)``."""
    if input is None or other is None:
        raise DeclarationError(
            f"{current().where}, where", given="a condition alone", expected="what is taken where it holds, and else",
            fix="positions cannot be counted before there are values: use fg.where(condition, x, y)",
        )  # fmt: skip
    return elementwise("where", condition, input, other)


@torchs("Tensor.where")
def where_of(input: Like, condition: Like, other: Like) -> Value:
    """``fg.where(condition, x, y)``."""
    return elementwise("where", condition, input, other)


@torchs("round", "special.round", numpy=["round", "around", "rint"])
def rounded_to(input: Like, *, decimals: int = 0) -> Value:
    """``fg.round(x)``."""
    if not decimals or not lift(input).dtype.is_float:
        return elementwise("round", input)
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return elementwise("div", elementwise("round", elementwise("mul", input, scale)), scale)
    return elementwise("mul", elementwise("round", elementwise("div", input, scale)), scale)


@torchs("frac")
def frac(input: Like) -> Value:
    """``x - fg.trunc(x)``."""
    return elementwise("sub", input, elementwise("trunc", input))


@torchs("sgn")
def sgn(input: Like) -> Value:
    """``fg.sign(x)``."""
    return elementwise("sign", input)


@torchs("isposinf", numpy=["isposinf"])
def isposinf(input: Like) -> Value:
    """``x == math.inf``."""
    return elementwise("eq", input, math.inf) if lift(input).dtype.is_float else elementwise("ne", input, input)


@torchs("isneginf", numpy=["isneginf"])
def isneginf(input: Like) -> Value:
    """``x == -math.inf``."""
    return elementwise("eq", input, -math.inf) if lift(input).dtype.is_float else elementwise("ne", input, input)


@torchs("nan_to_num", numpy=["nan_to_num"])
def nan_to_num(
    input: Like, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    """``fg.where(fg.isnan(x), nan, ...)``."""
    value = lift(input)
    if not value.dtype.is_float:
        return value
    largest = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
    most = largest.get(value.dtype.name, 1.7976931348623157e308)
    high, low = (most if posinf is None else posinf), (-most if neginf is None else neginf)
    finite = elementwise("where", elementwise("eq", value, math.inf), high, value)
    finite = elementwise("where", elementwise("eq", value, -math.inf), low, finite)
    return elementwise("where", elementwise("isnan", value), 0.0 if nan is None else nan, finite)


@torchs("logit", "special.logit")
def logit(input: Like, eps: float | None = None) -> Value:
    """``fg.log(x) - fg.log1p(-x)``."""
    value = lift(input)
    value = value if value.dtype.is_float else cast(value, dtypes.float32)
    if eps is not None:
        low, high = elementwise("lt", value, eps), elementwise("gt", value, 1 - eps)
        value = elementwise("where", low, eps, elementwise("where", high, 1 - eps, value))
    # Of a quotient the slope at 1 would be zero times infinity, and outside of the domain a number.
    outside = elementwise("logical_or", elementwise("lt", value, 0), elementwise("gt", value, 1))
    odds = elementwise("sub", elementwise("log", value), elementwise("log1p", elementwise("neg", value)))
    return elementwise("where", outside, elementwise("mul", value, math.nan), odds)


@torchs("logaddexp", numpy=["logaddexp"])
def logaddexp(input: Like, other: Like) -> Value:
    """``high + fg.log1p(fg.exp(low - high))``, of the larger and the smaller one."""
    high, apart = higher_and_apart(input, other)
    return elementwise("add", high, elementwise("log1p", elementwise("exp", apart)))


def higher_and_apart(x: Like, y: Like) -> tuple[Value, Value]:
    """The larger of two, and the smaller one less that: 0 where both are one infinity, as if they were no more apart.

    Where they are the same, derivatives of any order are those of what is computed of the two: it is no maximum, whose
    slope changes there.
    """
    first = elementwise("gt", x, y)
    high, low = elementwise("where", first, x, y), elementwise("where", first, y, x)
    alike = elementwise("logical_and", elementwise("eq", x, y), elementwise("isinf", x))
    apart = elementwise("where", alike, 0.0, elementwise("sub", low, high))
    return elementwise("where", alike, elementwise("maximum", x, y), high), apart


@torchs("deg2rad", numpy=["deg2rad", "radians"])
def deg2rad(input: Like) -> Value:
    """``x * (pi / 180)``."""
    return elementwise("mul", input, math.pi / 180)


@torchs("rad2deg", numpy=["rad2deg", "degrees"])
def rad2deg(input: Like) -> Value:
    """``x * (180 / pi)``."""
    return elementwise("mul", input, 180 / math.pi)


@torchs("heaviside", numpy=["heaviside"])
def heaviside(input: Like, values: Like) -> Value:
    """``fg.where(x == 0, y, x > 0)``."""
    value, at_zero = lift(input), lift(values)
    positive = cast(elementwise("gt", value, 0), value.dtype)
    return elementwise("where", elementwise("eq", value, 0), at_zero, positive)


@torchs("special.xlog1py")
def xlog1py(input: Like, other: Like) -> Value:
    """``x * fg.log1p(y)``, and 0 where x is 0 and the logarithm has no number."""
    product = elementwise("mul", input, elementwise("log1p", beside(other, input)))
    none = elementwise("logical_or", elementwise("le", other, -1.0), elementwise("eq", other, math.inf))
    zero = elementwise("logical_and", elementwise("eq", input, 0), none)
    return elementwise("where", zero, 0.0, product)


@torchs("special.entr")
def entr(input: Like) -> Value:
    """``-x * fg.log(x)``."""
    value = lift(input)
    found = elementwise("neg", elementwise("mul", value, elementwise("log", value)))
    found = elementwise("where", elementwise("eq", value, 0), 0.0, found)
    return elementwise("where", elementwise("lt", value, 0), -math.inf, found)


@torchs("special.ndtr")
def ndtr(input: Like) -> Value:
    """``0.5 * fg.erfc(-x / sqrt(2))``."""
    return elementwise("mul", 0.5, elementwise("erfc", elementwise("mul", input, -math.sqrt(0.5))))


@torchs("polygamma", "special.polygamma")
def polygamma(n: int, input: Like) -> Value:
    """``fg.polygamma(n, x)``."""
    if isinstance(n, Value):  # x.polygamma(n)
        n, input = input, n
    return language.polygamma(n, input)


@torchs("zeros_like", "empty_like", numpy=["zeros_like", "empty_like"])
def zeros_like(input: Like, *, dtype: Any = None, **placed: Any) -> Value:
    """0 for each element."""
    return full_like(input, 0, dtype=dtype, **placed)


@torchs("ones_like", numpy=["ones_like"])
def ones_like(input: Like, *, dtype: Any = None, **placed: Any) -> Value:
    """1 for each element."""
    return full_like(input, 1, dtype=dtype, **placed)


@torchs("full_like", numpy=["full_like"])
def full_like(
    input: Like, fill_value: Like, *, dtype: Any = None, device: Any = None, layout: Any = None,
    memory_format: Any = None, pin_memory: bool = False,
) -> Value:  # fmt: skip
    """A number for each element; where it is, and how it lies, is the op's business."""
    value = lift(input)
    filled = cast(fill_value, value.dtype if dtype is None else dtype)
    return Value(filled.expr, filled.dtype, value.dims)


@torchs("nn.functional.pairwise_distance")
def pairwise_distance(x1: Like, x2: Like, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Value:
    """``fg.norm(x - y + eps, p, -1)``."""
    apart = elementwise("add", elementwise("sub", x1, x2), eps)
    return reductions.norm(apart, p, -1, keepdim)


# -- reductions ------------------------------------------------------------------------------------------------------


class Extremum(NamedTuple):
    """What ``max`` and ``min`` along one dimension return."""

    values: Value
    indices: Value


def _extremum(kind: str, input: Like, dim: Any, keepdim: bool) -> Any:
    """torch's four functions of one name: of all elements, along a dimension, and of two tensors."""
    if isinstance(dim, Value):
        return elementwise("maximum" if kind == "max" else "minimum", input, dim)
    best, place = (
        (reductions.amax, reductions.argmax) if kind == "max" else (reductions.amin, reductions.argmin)
    )  # fmt: skip
    if dim is None:
        return best(input)
    return Extremum(best(input, dim, keepdim), place(input, dim, keepdim))


@torchs("max")
def maximum_of(input: Like, dim: Any = None, keepdim: bool = False, *, other: Like | None = None) -> Any:
    """``fg.amax(x)``; of a dimension ``fg.amax(x, axis), fg.argmax(x, axis)``; of two ``fg.maximum(x, y)``."""
    return _extremum("max", input, dim if other is None else lift(other), keepdim)


@torchs("min")
def minimum_of(input: Like, dim: Any = None, keepdim: bool = False, *, other: Like | None = None) -> Any:
    """``fg.amin(x)``; of a dimension ``fg.amin(x, axis), fg.argmin(x, axis)``; of two ``fg.minimum(x, y)``."""
    return _extremum("min", input, dim if other is None else lift(other), keepdim)


class Extrema(NamedTuple):
    """What ``aminmax`` returns."""

    min: Value
    max: Value


@torchs("aminmax")
def aminmax(input: Like, *, dim: Any = None, keepdim: bool = False) -> Extrema:
    """``fg.amin(x, axis), fg.amax(x, axis)``."""
    return Extrema(reductions.amin(input, dim, keepdim), reductions.amax(input, dim, keepdim))


def _with_mean(name: str) -> Function:
    def both(
        input: Like, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
        correction: Like | None = None,
    ) -> tuple[Value, Value]:  # fmt: skip
        if isinstance(dim, bool):  # (x, unbiased)
            dim, unbiased = None, dim
        deviation = library(name)(input, dim, unbiased, keepdim, correction=correction)
        return deviation, reductions.mean(input, dim, keepdim)

    both.__doc__ = f"``fg.{name}(x, axis), fg.mean(x, axis)``."
    return both


for _name in ("var", "std"):
    DEFINED.append(TorchFunction((f"{_name}_mean",), _with_mean(_name)))


@torchs("norm")
def norm(input: Like, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """``fg.norm(x, p, axis)``."""
    return reductions.norm(lift(input) if dtype is None else cast(input, dtype), p, dim, keepdim)


@torchs("count_nonzero", numpy=["count_nonzero"])
def count_nonzero(input: Like, dim: Any = None) -> Value:
    """``fg.sum(x != 0, axis)``."""
    return reductions.sum(elementwise("ne", input, 0), dim)


# -- products --------------------------------------------------------------------------------------------------------


@torchs("matmul", "linalg.matmul", "Tensor.__matmul__", numpy=["matmul"])
def matmul(input: Like, other: Like) -> Value:
    """``x @ y``."""
    return products.matmul(input, other)


def _of_rank(name: str, left: int, right: int) -> Function:
    def multiply(input: Like, other: Like) -> Value:
        """``x @ y``."""
        for value, rank in ((lift(input), left), (lift(other), right)):
            if value.ndim != rank:
                raise ShapeError(
                    f"{current().where}, {name}", given=f"{shape_of(value)}, of rank {value.ndim}",
                    expected=f"rank {rank}", fix="use x @ y, which takes any",
                )  # fmt: skip
        return products.matmul(input, other)

    return multiply


for _name, _left, _right in (("mm", 2, 2), ("bmm", 3, 3), ("mv", 2, 1), ("dot", 1, 1), ("vdot", 1, 1)):
    DEFINED.append(TorchFunction((_name,), _of_rank(_name, _left, _right)))


# -- shapes ----------------------------------------------------------------------------------------------------------


@torchs("unsqueeze", numpy=["expand_dims"])
@shares("view")
def unsqueeze(input: Like, dim: int) -> Value:
    """``fg.expand_dims(x, axis)``."""
    return expand_dims(input, dim)


@torchs("squeeze", numpy=["squeeze"])
@shares("view")
def squeeze(input: Like, dim: Any = None) -> Value:
    """``x`` without dimensions of size one."""
    value = lift(input)
    chosen = range(value.ndim) if dim is None else normalize_axes(value, dim, "squeeze")
    dims = tuple(axis for place, axis in enumerate(value.dims) if axis is not None or place not in chosen)
    return Value(value.expr, value.dtype, dims, value.weak)


@torchs("permute")
@shares("view")
def permute(input: Like, *order: Any, dims: Sequence[int] | None = None) -> Value:
    """``x`` with its dimensions in another order."""
    value = lift(input)
    order = order if dims is None else (*order, dims)
    order = tuple(order[0]) if len(order) == 1 and isinstance(order[0], (tuple, list)) else order
    if len(order) != value.ndim or sorted(one_axis(value, place, "permute") or 0 for place in order) != [
        *range(value.ndim)
    ]:
        raise ShapeError(
            f"{current().where}, permute", given=f"{order} for {shape_of(value)}",
            expected="each dimension once", fix="count dimensions from 0, or from -1 at the end",
        )  # fmt: skip
    return Value(value.expr, value.dtype, tuple(value.dims[place] for place in order), value.weak)


@torchs("movedim", "moveaxis", numpy=["moveaxis"])
@shares("view")
def movedim(input: Like, source: Any, destination: Any) -> Value:
    """``x`` with a dimension at another place."""
    value = lift(input)
    starts, ends = (
        [one_axis(value, place, "movedim") or 0 for place in (given if isinstance(given, (tuple, list)) else [given])]
        for given in (source, destination)
    )
    order = [place for place in range(value.ndim) if place not in starts]
    for end, start in sorted(zip(ends, starts, strict=True)):
        order.insert(end, start)
    return permute(value, order)


@torchs("transpose", "swapaxes", "swapdims", numpy=["swapaxes"])
@shares("view")
def transpose(input: Like, dim0: int, dim1: int) -> Value:
    """``fg.transpose(x, axis, axis)``."""
    return products.transpose(input, dim0, dim1)


@torchs("adjoint")
@shares("view")
def adjoint(input: Like) -> Value:
    """``x.mT``."""
    return transpose(input, -2, -1)


@torchs("t")
@shares("view")
def t(input: Like) -> Value:
    """``x.mT`` of a matrix."""
    value = lift(input)
    return products.T(value) if value.ndim > 1 else value


@torchs("flatten")
@shares("perhaps")
def flatten_dims(input: Like, start_dim: int = 0, end_dim: int = -1) -> Value:
    """``fg.flatten(x, first, last)``."""
    return flatten(input, start_dim, end_dim)


@torchs("unflatten")
@shares("view")
def unflatten_dim(input: Like, dim: int, sizes: Sequence[int]) -> Value:
    """``fg.unflatten(x, axis, sizes)``."""
    value, wanted = lift(input), list(sizes)
    if len(wanted) > 1 and wanted[-1] == -1:
        return unflatten(value, dim, wanted)
    place = one_axis(value, dim, "unflatten")
    length = value.sizes[place] if place is not None else 1
    if wanted.count(-1) == 1:
        known = -math.prod(wanted)
        wanted[wanted.index(-1)] = length // known if known else 0
    if math.prod(wanted) == length == 0 and place is not None:
        return _empty(value, [*value.sizes[:place], *wanted, *value.sizes[place + 1 :]])
    if math.prod(wanted) != length:
        raise ShapeError(
            f"{current().where}, unflatten", given=f"dimension {dim} of {shape_of(value)} as {tuple(sizes)}",
            expected="sizes that make it up", fix="let one of them be -1",
        )  # fmt: skip
    return unflatten(value, dim, (*wanted[:-1], -1)) if len(wanted) > 1 else value


@torchs("Tensor.view")
@shares("view")
def view(input: Like, *given: Any, shape: Any = None, dtype: Any = None) -> Value:
    """``x.reshape(shape)``."""
    if dtype is not None or (len(given) == 1 and not isinstance(given[0], (int, tuple, list))):
        raise DeclarationError(
            f"{current().where}, view", given=f"{(dtype, *given)}", expected="a shape: bits are not seen as others",
            fix="cast with .to(dtype), or view the argument outside the op",
        )  # fmt: skip
    return reshape(input, *given, shape=shape)


@torchs("reshape", numpy=["reshape"])
@shares("perhaps")
def reshape(input: Like, *given: Any, shape: Any = None) -> Value:
    """``fg.unflatten`` and ``fg.flatten``, where dimensions are only taken apart and put together again."""
    value = lift(input)
    given = given if shape is None else (*given, shape)
    shape = tuple(given[0]) if len(given) == 1 and not isinstance(given[0], int) else given
    sizes, total = list(shape), math.prod(value.sizes)
    if sizes.count(-1) == 1 and (known := -math.prod(sizes)):
        sizes[sizes.index(-1)] = total // known
    if math.prod(sizes) != total or min(sizes, default=1) < 0:
        raise ShapeError(
            f"{current().where}, reshape", given=f"{shape_of(value)} as {[*map(int, shape)]}",
            expected=f"{total} elements", fix="let one size be -1",
        )  # fmt: skip
    if total == 0:
        return _empty(value, sizes)
    if 1 in sizes or None in value.dims:  # sizes of one stand where they are wanted
        place_of_ones = [at for at, size in enumerate(sizes) if size == 1]
        found = _reshaped(squeeze(value), [size for size in sizes if size != 1])
        return expand_dims(found, place_of_ones) if place_of_ones else found
    return _reshaped(value, sizes)


def _empty(value: Value, sizes: Sequence[int]) -> Value:
    """What has no elements, in another shape: nothing is read, and the sum of nothing leads gradients to it."""
    if [*value.sizes] == [*sizes]:
        return value
    nothing = creation.zeros(sizes, dtype=value.dtype)
    return elementwise("add", nothing, reductions.sum(value)) if value.dtype.is_float else nothing


def _reshaped(value: Value, sizes: Sequence[int]) -> Value:
    """No size is one: dimensions, from the first on, are taken apart or put together until all are there."""
    place = 0
    while place < len(sizes):
        own, wanted = value.sizes[place], sizes[place]
        if own > wanted and own % wanted == 0:
            try:
                value = unflatten(value, place, (wanted, -1))
            except DeclarationError:  # it is in other groups: elements are counted
                value = unflatten(read_anew(value, place), place, (wanted, -1))
        elif own < wanted:
            value = flatten(value, place, place + 1)
            continue
        elif own != wanted:  # neither makes the other up: elements of both are counted
            value = merged(value, place)
            continue
        place += 1
    return value


@torchs("Tensor.expand", "broadcast_to", numpy=["broadcast_to"])
@shares("read")
def expand(input: Like, *shape: Any) -> Value:
    """``x`` along dimensions that other tensors have, ``x[None].expand(y.shape[0], -1)``, or of so many elements."""
    value = lift(input)
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    dims = [*(None,) * (len(shape) - value.ndim), *value.dims]
    for place, size in enumerate(shape):
        axis = dims[place]
        if size == -1 or size == (axis.find().size if axis else 1):
            continue
        if axis is not None or size < 0:
            raise ShapeError(
                f"{current().where}, expand", given=f"{shape_of(value)} to {[*map(int, shape)]}",
                expected="-1 or its own size, of a dimension of size 1 any", fix="repeat elements: x.repeat(...)",
            )  # fmt: skip
        known = size.axis if isinstance(size, SizeOf) else None
        own = {axis.find() for axis in dims if axis is not None}  # none comes to stand twice: x[None].expand(n, n)
        is_another = known is None or known.find() in own
        dims[place] = creation.axis_of(size, "expand") if is_another else known
    return Value(value.expr, value.dtype, tuple(dims), value.weak)


@torchs("tril", numpy=["tril"])
def tril(input: Like, diagonal: int = 0) -> Value:
    """``fg.where(column - row <= diagonal, x, 0)``."""
    return _triangle("le", input, diagonal)


@torchs("triu", numpy=["triu"])
def triu(input: Like, diagonal: int = 0) -> Value:
    """``fg.where(column - row >= diagonal, x, 0)``."""
    return _triangle("ge", input, diagonal)


def _triangle(kept: str, input: Like, diagonal: int) -> Value:
    value = lift(input)
    if value.ndim < 2:
        raise ShapeError(
            f"{current().where}, tri{'l' if kept == 'le' else 'u'}", given=shape_of(value), expected="matrices",
            fix="it keeps what is on one side of a diagonal",
        )  # fmt: skip
    offset = elementwise("sub", reductions.index(value, -1), reductions.index(value, -2))
    return elementwise("where", elementwise(kept, offset, diagonal), value, cast(0, value.dtype))


@torchs("Tensor.expand_as")
@shares("read")
def expand_as(input: Like, other: Like) -> Value:
    """``x``, broadcast against ``y``."""
    value, like = met_apart([lift(input), lift(other)], "expand_as")
    dims = broadcast([value, like], "expand_as")
    if [dim is None for dim in dims] != [dim is None for dim in like.dims]:
        raise ShapeError(
            f"{current().where}, expand_as", given=f"{shape_of(value)} as {shape_of(like)}", expected="a larger tensor",
            fix="leave it out: operands broadcast",
        )  # fmt: skip
    return Value(value.expr, value.dtype, dims, value.weak)


@torchs("chunk")
@shares("parts")
def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    """``fg.split(x, count, axis)``; the last part may be smaller."""
    value = lift(input)
    place = one_axis(value, dim, "chunk")
    axis = value.dims[place] if place is not None else None
    if place is not None and axis is None and isinstance(chunks, int):
        chunks = min(chunks, 1)  # one element is one part, however many are asked for
    if axis is None or not isinstance(chunks, int) or chunks < 1 or axis.find().size % chunks == 0:
        return split(input, chunks, dim)
    return split_by_size(value, -(-axis.find().size // chunks), dim)


@torchs("split", "Tensor.split")
@shares("parts")
def split_by_size(tensor: Any, split_size_or_sections: Any, dim: int = 0) -> tuple[Value, ...]:
    """``fg.split(x, count, axis)``; parts of several sizes are made of such."""
    value = lift(tensor)
    place = one_axis(value, dim, "split")
    length = value.sizes[place] if place is not None else 1
    sizes = split_size_or_sections
    if not isinstance(sizes, (tuple, list)):
        most = int(sizes)
        if most > 0 and length:
            sizes = [min(most, length - at) for at in range(0, length, most)]
        else:  # no elements are one part, and elements are none of no size
            sizes = [0 if most > 0 else most]
    known = bool(sizes) and all(isinstance(size, int) and size >= 0 for size in sizes)
    if place is None or not known or sum(sizes) != length:
        raise ShapeError(
            f"{current().where}, split", given=f"dimension {dim} of {shape_of(value)} in parts of {list(sizes)}",
            expected="sizes that make up the dimension", fix="count the elements of each part",
        )  # fmt: skip
    return split(tensor, len(sizes), dim) if len(set(sizes)) == 1 else pieces(value, sizes, place)


@torchs("unbind")
@shares("parts")
def unbind(input: Any, dim: int = 0) -> tuple[Value, ...]:
    """``fg.split(x, count, axis)``, its parts without that dimension."""
    value = lift(input)
    place = one_axis(value, dim, "unbind")
    if place is None:
        raise ShapeError(
            f"{current().where}, unbind", given=f"{shape_of(value)}, without dimensions", expected="a dimension",
            fix="leave it out",
        )  # fmt: skip
    return tuple(squeeze(part, place) for part in split(input, value.sizes[place], place))


@torchs("cat", "concat", "concatenate", numpy=["concatenate"])
def cat(tensors: Sequence[Like], dim: int = 0) -> Value:
    """``fg.concat(parts, axis)``."""
    return concat(tensors, dim)


@torchs("stack", numpy=["stack"])
def stack(tensors: Sequence[Like], dim: int = 0) -> Value:
    """``fg.concat`` of parts with a new dimension."""
    return concat([expand_dims(part, dim) for part in tensors], dim)

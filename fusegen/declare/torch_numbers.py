"""torch's functions of one element each, and sums without NaN, that the language has no row of its own for."""

from __future__ import annotations

import math
from typing import Any

from fusegen.core import dtypes
from fusegen.declare import reductions
from fusegen.declare.memory import shares
from fusegen.declare.torch_functions import beside, higher_and_apart, torchs
from fusegen.declare.value import Like, Value, cast, elementwise, lift


def _chosen(condition: Like, a: Like, b: Like) -> Value:
    return elementwise("where", condition, a, b)


def _float(value: Like) -> Value:
    found = lift(value)
    return found if found.dtype.is_float else cast(found, dtypes.float32)


@torchs("fmax", numpy=["fmax"])
def fmax(input: Like, other: Like) -> Value:
    """``fg.where((x >= y) | fg.isnan(y), x, y)``: NaN only where both are."""
    return _of_numbers("maximum", input, other)


@torchs("fmin", numpy=["fmin"])
def fmin(input: Like, other: Like) -> Value:
    """``fg.where((x <= y) | fg.isnan(y), x, y)``: NaN only where both are."""
    return _of_numbers("minimum", input, other)


def _of_numbers(name: str, input: Like, other: Like) -> Value:
    x, y = lift(input), lift(other)
    if not x.dtype.is_float and not y.dtype.is_float:
        return elementwise(name, x, y)
    # At a tie all of the gradient goes to the first one, as torch's does, which maximum() shares evenly.
    is_first = elementwise({"maximum": "ge", "minimum": "le"}[name], x, y)
    return _chosen(elementwise("logical_or", is_first, elementwise("ne", y, y)), x, y)


@torchs("logaddexp2", numpy=["logaddexp2"])
def logaddexp2(input: Like, other: Like) -> Value:
    """``high + fg.log2(1 + fg.exp2(low - high))``, of the larger and the smaller one."""
    high, apart = higher_and_apart(input, other)
    rest = elementwise("mul", elementwise("log1p", elementwise("exp2", apart)), 1 / math.log(2))
    return elementwise("add", high, rest)


@torchs("float_power", numpy=["float_power"])
def float_power(input: Like, exponent: Like) -> Value:
    """``x.to(fg.float64) ** y``."""
    return elementwise("pow", cast(input, dtypes.float64), cast(exponent, dtypes.float64))


@torchs("ldexp")
def ldexp(input: Like, other: Like) -> Value:
    """``x * 2 ** y``."""
    return elementwise("mul", input, elementwise("exp2", beside(other, input)))


@torchs("signbit", numpy=["signbit"])
def signbit(input: Like) -> Value:
    """``x < 0``, and of -0.0 too."""
    value = lift(input)
    if not value.dtype.is_float:
        return elementwise("lt", value, 0) if value.dtype is not dtypes.bool_ else elementwise("ne", value, value)
    return elementwise("lt", elementwise("copysign", 1.0, value), 0)


@torchs("sinc", "special.sinc", numpy=["sinc"])
def sinc(input: Like) -> Value:
    """``fg.sin(pi * x) / (pi * x)``, 1 at 0."""
    turned = elementwise("mul", _float(input), math.pi)
    is_small, squared = elementwise("lt", elementwise("abs", turned), 0.5), elementwise("mul", turned, turned)
    # Near zero the derivative of the quotient is a difference of two numbers of the size of 1 / x.
    series = elementwise("mul", squared, -1 / math.factorial(15))
    for power in range(12, -1, -2):
        sign = -1 if power % 4 else 1
        series = elementwise("add", series, sign / math.factorial(power + 1))
        series = elementwise("mul", series, squared) if power else series
    quotient = elementwise("div", elementwise("sin", turned), _chosen(is_small, 1.0, turned))
    return _chosen(is_small, series, quotient)


@torchs("mvlgamma", "special.multigammaln")
def mvlgamma(input: Like, p: int) -> Value:
    """``p * (p - 1) / 4 * log(pi) + the sum of fg.lgamma(x - i / 2)``."""
    found: Value | float = p * (p - 1) / 4 * math.log(math.pi)
    for i in range(p):
        found = elementwise("add", found, elementwise("lgamma", elementwise("sub", _float(input), i / 2)))
    return lift(found)


@torchs("isclose", numpy=["isclose"])
def isclose(input: Like, other: Like, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Value:
    """``fg.abs(x - y) <= atol + rtol * fg.abs(y)``, or equal."""
    x, y = lift(input), lift(other)
    same = elementwise("eq", x, y)
    if equal_nan:
        both = elementwise("logical_and", elementwise("ne", x, x), elementwise("ne", y, y))
        same = elementwise("logical_or", same, both)
    if x.dtype is dtypes.bool_:
        return same
    near = elementwise("abs", elementwise("sub", x, y))
    allowed = elementwise("add", atol, elementwise("abs", elementwise("mul", rtol, y)))
    within = elementwise("logical_and", elementwise("isfinite", _float(near)), elementwise("le", near, allowed))
    return elementwise("logical_or", same, within)


@torchs("angle")
def angle(input: Like) -> Value:
    """``fg.where(x < 0, pi, 0)``; NaN of NaN."""
    value = _float(input)
    turns = cast(math.pi, value.dtype), cast(0.0, value.dtype)
    return _chosen(elementwise("isnan", value), value, _chosen(elementwise("lt", value, 0), *turns))


@torchs("real", "conj", "conj_physical", "resolve_conj", "resolve_neg")
@shares("same")
def real(input: Like) -> Value:
    """``x``: there are no complex numbers."""
    return lift(input)


@torchs("isreal", numpy=["isreal"])
def isreal(input: Like) -> Value:
    """True everywhere: there are no complex numbers."""
    value = lift(input)
    true = cast(True, dtypes.bool_)
    return Value(true.expr, true.dtype, value.dims)


@torchs("Tensor.is_signed")
def is_signed(input: Value) -> bool:
    """``x.dtype.is_signed``."""
    return input.dtype.is_signed


@torchs("Tensor.element_size")
def element_size(input: Value) -> int:
    """``x.dtype.itemsize``."""
    return input.dtype.itemsize


@torchs("nansum", numpy=["nansum"])
def nansum(input: Like, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """``fg.sum(fg.where(fg.isnan(x), 0, x), axis)``."""
    value = lift(input)
    return reductions.sum(_known(value), None if dim == () else dim, keepdim, dtype)


@torchs("nanmean", numpy=["nanmean"])
def nanmean(input: Like, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """``fg.sum(fg.where(fg.isnan(x), 0, x), axis) / fg.sum(~fg.isnan(x), axis)``."""
    value = lift(input)
    axes = None if dim == () else dim
    count = reductions.sum(elementwise("eq", value, value), axes, keepdim)
    return elementwise("div", reductions.sum(_known(value), axes, keepdim, dtype), count)


def _known(value: Value) -> Value:
    return _chosen(elementwise("ne", value, value), 0, value) if value.dtype.is_float else value

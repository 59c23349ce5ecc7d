"""Random numbers in a declaration: ``fg.dropout`` and its like, ``fg.rand_like``, ``fg.randn_like``, ``fg.bernoulli``.

A random number is a function of the call's seed, of which draw of the declaration it is, and of where its element
stands. Nothing is stored: a backward computes the same numbers again.
"""

from __future__ import annotations

import math
from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError, DtypeError
from fusegen.core.ir import Expr, Index, Size, const
from fusegen.declare.axes import Dims
from fusegen.declare.table import apply
from fusegen.declare.value import (
    Like,
    Tracer,
    Value,
    as_dtype,
    cast,
    convert,
    current,
    elementwise,
    lift,
    plain_number,
)

# Uniform numbers of a half type have as many bits as its fraction, so that none of them rounds to one (as torch's).
_BITS = {dtypes.float16: 11, dtypes.bfloat16: 8}


class drawing:
    """Context manager: what is traced within it draws of ``seed``, from the draw that is number ``first`` on.

    Args:
        seed: an int64 without dimensions; None: nothing can be drawn.
        first: None: go on counting. Behind it what is around goes on as before.
    """

    def __init__(self, tracer: Tracer, seed: Value | None, first: int | None = None) -> None:
        self.tracer, self.seed, self.first = tracer, seed, first

    def __enter__(self) -> int:
        self.outer = self.tracer.seed, self.tracer.draws
        self.tracer.seed = self.seed
        if self.first is not None:
            self.tracer.draws = self.first
        return self.tracer.draws

    def __exit__(self, *_: object) -> None:
        self.tracer.seed, draws = self.outer
        if self.first is not None:
            self.tracer.draws = draws


def _drawn(row: str, like: Value) -> Value:
    """A number for each element of ``like``, by a row of the function table."""
    tracer = current()
    if tracer.seed is None:
        raise DeclarationError(
            tracer.where, given="a random number in an op that does not say that it draws any",
            expected="@fg.op(random=True), which gives the op a seed for each call",
            fix="declare it with @fg.op(random=True), and every op that calls it",
        )  # fmt: skip
    names = [tracer.name_of(dim) for dim in like.dims if dim]
    line: Expr = const(0, dtypes.int64)
    for at, name in enumerate(names[:-1]):
        line = line * Size(name) + Index(name) if at else Index(name)
    column: Expr = Index(names[-1]) if names else const(0, dtypes.int64)
    number = apply(row, convert(tracer.seed.expr, dtypes.int64), const(tracer.draws, dtypes.int64), line, column)
    tracer.draws += 2  # a double takes two
    return Value(number, number.dtype, like.dims)


def _float_dtype(what: str, like: Value, dtype: Any) -> DType:
    found = like.dtype if dtype is None else as_dtype(dtype)
    if not found.is_float:
        raise DtypeError(
            f"{current().where}, {what}", given=str(found), expected="a float dtype", fix="pass dtype=fg.float32"
        )
    return found


def rand_like(x: Like, *, dtype: Any = None) -> Value:
    """A random number for each element of ``x``, evenly distributed in [0, 1), of the dtype of ``x`` or the one given.

    Only in an op that says so: ``@fg.op(random=True)``. No gradient flows through it.

    Raises:
        DeclarationError: the op does not say that it draws random numbers.
        DtypeError: not a float dtype.
    """
    like = lift(x)
    target = _float_dtype("rand_like", like, dtype)
    number = _drawn("uniform_double" if target is dtypes.float64 else "uniform", like)
    if target in _BITS:
        steps = 2.0 ** _BITS[target]
        number = elementwise("mul", elementwise("floor", elementwise("mul", number, steps)), 1 / steps)
    return cast(number, target)


def randn_like(x: Like, *, dtype: Any = None) -> Value:
    """A random number for each element of ``x``, of the normal distribution with mean 0 and deviation 1.

    ``sqrt(-2 log(u)) * cos(2 pi v)`` of two evenly distributed numbers (Box and Muller, 1958). In float32 and the half
    types none is beyond 6.8. Otherwise as ``rand_like``.

    Raises:
        DeclarationError: the op does not say that it draws random numbers.
        DtypeError: not a float dtype.
    """
    like = lift(x)
    target = _float_dtype("randn_like", like, dtype)
    if target is dtypes.float64:
        length = elementwise("sub", 1.0, _drawn("uniform_double", like))
        turn = _drawn("uniform_double", like)
    else:
        length, turn = _drawn("positive_uniform", like), _drawn("uniform", like)
    radius = elementwise("sqrt", elementwise("mul", -2.0, elementwise("log", length)))
    return cast(elementwise("mul", radius, elementwise("cos", elementwise("mul", 2 * math.pi, turn))), target)


def bernoulli(p: Like) -> Value:
    """1 with the probability that each element of ``p`` says, else 0, in its dtype. No gradient flows through it.

    Raises:
        DeclarationError: the op does not say that it draws random numbers.
        DtypeError: not a float dtype.
    """
    chance = lift(p)
    target = _float_dtype("bernoulli", chance, None)
    return cast(elementwise("where", elementwise("lt", _drawn("uniform", chance), chance), 1.0, 0.0), target)


def dropout(x: Like, p: Like = 0.5, training: bool = True) -> Value:
    """``x / (1 - p)`` where a random number is at least ``p``, else 0 (Srivastava et al., 2014).

    The backward draws the same numbers again. What is dropped has no influence, NaN and infinity neither, and a
    gradient of exactly 0.

    Args:
        p: how probable it is that an element is dropped, from 0 to 1.
        training: False: ``x`` as it is.

    Raises:
        DeclarationError: the op does not say that it draws random numbers, or ``p`` is no probability.
        DtypeError: ``x`` is not of floats.
    """
    value = lift(x)
    kept = _kept("dropout", value, p, training, value)
    return value if kept is None else _scaled(value, kept, p)


def feature_dropout(x: Like, p: Like = 0.5, training: bool = True) -> Value:
    """``dropout`` that draws one number for each of the first two dimensions, the samples' channels.

    Raises:
        DeclarationError, DtypeError: as ``dropout``'s.
    """
    value = lift(x)
    kept = _kept("feature_dropout", value, p, training, Value(value.expr, value.dtype, _channels(value.dims)))
    return value if kept is None else _scaled(value, kept, p)


def alpha_dropout(x: Like, p: Like = 0.5, training: bool = False) -> Value:
    """``a * where(kept, x, m) + b``: dropout that keeps mean 0 and variance 1 behind a SELU (Klambauer et al., 2017).

    ``m`` is what a SELU tends to at minus infinity, ``a = 1 / sqrt((1 - p) (1 + p m^2))`` and ``b = -a p m``.

    Raises:
        DeclarationError, DtypeError: as ``dropout``'s.
    """
    value = lift(x)
    kept = _kept("alpha_dropout", value, p, training, value)
    if kept is None:
        return value
    below = -1.7580993408473766
    rest, spread = elementwise("sub", 1.0, p), elementwise("add", 1.0, elementwise("mul", p, below * below))
    scale = elementwise("rsqrt", elementwise("mul", rest, spread))
    shift = elementwise("mul", elementwise("mul", scale, p), -below)
    found = elementwise("add", elementwise("mul", elementwise("where", kept, value, below), scale), shift)
    return cast(found, value.dtype)


def _channels(dims: Dims) -> Dims:
    return tuple(dim if at < 2 else None for at, dim in enumerate(dims))


def _scaled(value: Value, kept: Value, p: Like) -> Value:
    scaled = elementwise("mul", value, elementwise("div", 1.0, elementwise("sub", 1.0, p)))
    return cast(elementwise("where", kept, scaled, 0.0), value.dtype)


def _kept(name: str, value: Value, p: Like, training: Any, like: Value) -> Value | None:
    """Which elements stay, a number being drawn for each of ``like``; None: all of them, without a draw."""
    where, chance = f"{current().where}, {name}", plain_number(p)
    if isinstance(chance, (int, float)) and not 0 <= chance <= 1:
        raise DeclarationError(
            where, given=f"p={chance!r}", expected="a probability, from 0 to 1",
            fix="pass how probable it is that an element is dropped",
        )  # fmt: skip
    if isinstance(training, Value):
        raise DeclarationError(
            where, given="training as a tensor, or a number of the call", expected="a bool",
            fix="annotate the argument `training: fg.Const`",
        )  # fmt: skip
    _float_dtype(name, value, None)
    return elementwise("ge", _drawn("uniform", like), p) if training else None


FUNCTIONS = (alpha_dropout, bernoulli, dropout, feature_dropout, rand_like, randn_like)

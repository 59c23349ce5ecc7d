"""JAX's functions in a declaration: ``jnp.sum(x, axis=-1)``, ``jax.nn.softmax(x)``, ``jax.lax.rsqrt(x)``.

They ask no tensor what they are to be, as torch's and NumPy's do. So while a declaration runs, JAX's modules have
others in their place, which are the language's for symbolic tensors, and JAX's own for all else and in other threads.
``jax.numpy`` has NumPy's names and arguments (declare/torch_names). What is not known, or was taken out of its module
before, is refused.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fusegen.core import dtypes, locks
from fusegen.core.errors import DeclarationError
from fusegen.declare import creation, language, reductions, scans, torch_made
from fusegen.declare.listed import listed
from fusegen.declare.parts import concat, split
from fusegen.declare.torch_functions import Function, library, permute, reshape
from fusegen.declare.value import Like, Value, cast, current, elementwise, is_tracing, lift

# -- jax.nn ------------------------------------------------------------------------------------------------------------


def gelu(x: Like, approximate: bool = True) -> Any:
    """``fg.ops.gelu``, by the tangent unless it is said otherwise."""
    return library("gelu")(x, "tanh" if approximate else "none")


def one_hot(x: Like, num_classes: int, *, dtype: Any = dtypes.float32, axis: int = -1) -> Value:
    """``fg.one_hot(x, num_classes)``, of floats."""
    found = cast(creation.one_hot(x, num_classes), dtype)
    return found if axis == -1 else permute(found, *_with_last_at(found.ndim, axis))


def _with_last_at(rank: int, axis: int) -> list[int]:
    order = list(range(rank - 1))
    order.insert(axis % rank, rank - 1)
    return order


def softmax(x: Like, axis: Any = -1) -> Value:
    """``fg.softmax(x, axis)``."""
    return reductions.softmax(x, axis)


def log_softmax(x: Like, axis: Any = -1) -> Any:
    """``x - fg.logsumexp(x, axis)``."""
    return library("log_softmax")(x, axis)


def logsumexp(a: Like, axis: Any = None, *, keepdims: bool = False) -> Value:
    """``fg.logsumexp(x, axis)``."""
    return reductions.logsumexp(a, axis, keepdims)


def standardize(x: Like, axis: Any = -1, *, epsilon: Like = 1e-5) -> Value:
    """``(x - mean) * fg.rsqrt(variance + epsilon)``."""
    centered = elementwise("sub", x, reductions.mean(x, axis, True))
    variance = reductions.mean(elementwise("mul", centered, centered), axis, True)
    return elementwise("mul", centered, elementwise("rsqrt", elementwise("add", variance, epsilon)))


def squareplus(x: Like, b: Like = 4) -> Value:
    """``(x + fg.sqrt(x * x + b)) / 2``."""
    root = elementwise("sqrt", elementwise("add", elementwise("mul", x, x), b))
    return elementwise("div", elementwise("add", x, root), 2)


def glu(x: Like, axis: int = -1) -> Value:
    """``a * fg.sigmoid(b)`` of the halves of ``x``."""
    first, second = split(lift(x), 2, axis)
    return elementwise("mul", first, elementwise("sigmoid", second))


def _of_library(name: str, *words: str) -> Function:
    """An op of the library, whose further arguments JAX calls so."""

    def call(x: Like, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(words, args, strict=False)) | kwargs
        return library(name)(x, *(given[word] for word in words if word in given))

    call.__doc__ = f"``fg.ops.{name}``."
    return call


NN: dict[str, Function] = {
    "relu": _of_library("relu"), "relu6": _of_library("relu6"), "silu": _of_library("silu"),
    "swish": _of_library("silu"), "mish": _of_library("mish"), "softplus": _of_library("softplus"),
    "soft_sign": _of_library("softsign"), "log_sigmoid": _of_library("logsigmoid"), "selu": _of_library("selu"),
    "elu": _of_library("elu", "alpha"), "celu": _of_library("celu", "alpha"),
    "leaky_relu": _of_library("leaky_relu", "negative_slope"), "hard_sigmoid": _of_library("hardsigmoid"),
    "hard_silu": _of_library("hardswish"), "hard_swish": _of_library("hardswish"),
    "hard_tanh": _of_library("hardtanh"), "gelu": gelu, "one_hot": one_hot, "softmax": softmax,
    "log_softmax": log_softmax, "logsumexp": logsumexp, "standardize": standardize, "squareplus": squareplus,
    "glu": glu, "sigmoid": language.TABLE_FUNCTIONS["sigmoid"], "tanh": language.TABLE_FUNCTIONS["tanh"],
    "identity": lift,
}  # fmt: skip


# -- jax.lax -----------------------------------------------------------------------------------------------------------


def _along_first(of: Callable[..., Any]) -> Function:
    def call(operand: Like, axis: int = 0) -> Any:
        return of(operand, axis)

    return call


def integer_pow(x: Like, y: int) -> Value:
    """``x ** y``."""
    return language.pow(x, y)


def select(pred: Like, on_true: Like, on_false: Like) -> Value:
    """``fg.where(pred, x, y)``."""
    return elementwise("where", pred, on_true, on_false)


def clamp(min: Like, x: Like, max: Like) -> Value:
    """``fg.clamp(x, min, max)``."""
    return elementwise("clamp", x, min, max)


def convert_element_type(operand: Like, new_dtype: Any) -> Value:
    """``x.to(dtype)``."""
    return lift(operand).to(new_dtype)


def concatenate(operands: Any, dimension: int) -> Value:
    """``fg.concat(parts, axis)``."""
    return concat(operands, dimension)


def transposed(operand: Like, permutation: Any) -> Value:
    """``x.permute(...)``."""
    return permute(operand, *permutation)


def reshaped(operand: Like, new_sizes: Any) -> Value:
    """``x.reshape(...)``."""
    return reshape(operand, tuple(new_sizes))


def expand_dims(array: Like, dimensions: Any) -> Value:
    """``fg.expand_dims(x, axes)``."""
    return language.expand_dims(array, tuple(dimensions))


# The table's, under lax's names.
_LAX = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "cos", "cosh", "digamma", "div",
    "eq", "erf", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "le", "lgamma", "log", "log1p", "lt", "mul", "ne",
    "neg", "rsqrt", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "add",
)  # fmt: skip
_LAX_ALIASES = {"max": "maximum", "min": "minimum", "logistic": "sigmoid", "erf_inv": "erfinv", "is_finite": "isfinite"}


def _elementwise(name: str) -> Function:
    def call(*operands: Like) -> Value:
        return elementwise(name, *operands)

    call.__doc__ = f"``fg.{name}``."
    return call


LAX: dict[str, Function] = {
    **{name: _elementwise(name) for name in _LAX},
    **{name: _elementwise(own) for name, own in _LAX_ALIASES.items()},
    "stop_gradient": language.stop_gradient, "square": language.square, "reciprocal": language.reciprocal,
    "pow": language.pow, "integer_pow": integer_pow, "select": select, "clamp": clamp,
    "convert_element_type": convert_element_type, "concatenate": concatenate, "transpose": transposed,
    "reshape": reshaped, "expand_dims": expand_dims, "cumsum": _along_first(scans.cumsum),
    "cumprod": _along_first(scans.cumprod), "cumlogsumexp": _along_first(scans.logcumsumexp),
}  # fmt: skip


# -- jax.numpy ---------------------------------------------------------------------------------------------------------


def _arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Value:
    kind = dtypes.float32 if dtype is None and any(isinstance(v, float) for v in (start, stop, step)) else dtype
    return torch_made.arange(start, stop, 1 if step is None else step, dtype=kind)


def _full(shape: Any, fill_value: Like, dtype: Any = None) -> Value:
    kind = dtypes.float32 if dtype is None and isinstance(fill_value, float) else dtype
    return creation.full(_shape(shape), fill_value, dtype=kind)


def _array(object: Any, dtype: Any = None) -> Value:
    """A tensor itself; numbers, or lists of a few."""
    if isinstance(object, Value) and not object.weak:
        return object if dtype is None else object.to(dtype)
    return listed(object, dtypes.float32, dtype)


MADE: dict[str, Function] = {
    "arange": _arange, "array": _array, "asarray": _array,
    "zeros": lambda shape, dtype=dtypes.float32: creation.zeros(_shape(shape), dtype=dtype),
    "ones": lambda shape, dtype=dtypes.float32: creation.ones(_shape(shape), dtype=dtype),
    "full": _full,
    "eye": lambda N, M=None, dtype=dtypes.float32: torch_made.eye(N, M, dtype=dtype),
    "linspace": lambda start, stop, num=50, dtype=dtypes.float32: torch_made.linspace(start, stop, num, dtype=dtype),
}  # fmt: skip


def _shape(given: Any) -> tuple[int, ...]:
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)


def _of_numpy(name: str, own: Any) -> Function | None:
    """A function of ``jax.numpy``, whose arguments are NumPy's."""
    from fusegen.declare import torch_names  # which is made of all the others

    entry = torch_names.of_numpy(name)
    if entry is None:
        return language.TABLE_FUNCTIONS.get(name)
    numpys: Any = sys.modules["numpy"]
    for part in name.split("."):
        numpys = getattr(numpys, part, own)

    def call(*args: Any, **kwargs: Any) -> Any:
        if isinstance(numpys, sys.modules["numpy"].ufunc):
            return entry.function(*args, **torch_names.spelled(kwargs))
        args, kwargs = torch_names.numpy_arguments(entry, numpys, args, kwargs)
        return entry.function(*args, **kwargs)

    call.__doc__ = entry.function.__doc__
    return call


def _special(name: str) -> Function | None:
    from fusegen.declare import torch_names

    found = [entry for entry in torch_names.table() if f"special.{name}" in entry.names]
    return logsumexp if name == "logsumexp" else found[0].function if found else None


# -- in place of JAX's own ---------------------------------------------------------------------------------------------

# What says nothing of the result.
_IDLE = (
    "precision",
    "preferred_element_type",
    "out_sharding",
    "where",
    "initial",
    "promote_integers",
    "out",
    "optimize",
)


class StandIn:
    """A function of JAX's, that takes symbolic tensors while a declaration runs; all else of it is JAX's own."""

    def __init__(self, where: str, name: str, own: Any, ours: Function | None, makes: bool) -> None:
        functools.update_wrapper(self, own, updated=())
        self.fusegen_of = where, name, own, ours, makes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        where, name, own, ours, makes = self.fusegen_of
        if not is_tracing() or not (makes or _has_symbolic((*args, *kwargs.values()))):
            return own(*args, **kwargs)
        if ours is None:
            raise refused(f"{where}.{name}", name)
        given = {key: value for key, value in kwargs.items() if not (key in _IDLE and value is None)}
        try:
            return ours(*args, **given)
        except TypeError as error:
            if isinstance(error, DeclarationError) or not _misfits(ours, args, given):
                raise
            raise DeclarationError(
                f"{current().where}, {where}.{name}", given=str(error), expected=f"{name}{inspect.signature(ours)}",
                fix="call it so",
            ) from None  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name == "fusegen_of":  # of a copy that is not made yet
            raise AttributeError(name)
        return getattr(self.fusegen_of[2], name)


def _misfits(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return True
    return False


def _has_symbolic(values: Any) -> bool:
    return any(isinstance(v, Value) or (isinstance(v, (tuple, list)) and _has_symbolic(v)) for v in values)


def refused(given: str, name: str) -> DeclarationError:
    """A function of JAX's that the language does not know."""
    from fusegen.declare import foreign

    return DeclarationError(
        current().where, given=f"{given} of a symbolic tensor",
        expected="operators, and functions of fusegen, torch, NumPy and jax.numpy",
        fix=foreign.fix(name),
    )  # fmt: skip


_ROOMS: dict[str, Callable[[str, Any], Function | None]] = {
    "jax.numpy": lambda name, own: MADE.get(name) or _of_numpy(name, own),
    "jax.numpy.linalg": lambda name, own: _of_numpy(f"linalg.{name}", own),
    "jax.nn": lambda name, own: NN.get(name),
    "jax.lax": lambda name, own: LAX.get(name),
    "jax.scipy.special": lambda name, own: _special(name),
}


@functools.cache
def _stand_ins(room: str, module: Any) -> list[tuple[str, Any, StandIn]]:
    """Of a module: a name in it, JAX's own, and what stands in for it."""
    found: list[tuple[str, Any, StandIn]] = []
    for name, own in list(vars(module).items()):
        if not name.startswith("_") and callable(own) and not isinstance(own, type):
            makes = room == "jax.numpy" and name in MADE
            found.append((name, own, StandIn(room, name, own, _ROOMS[room](name, own), makes)))
    return found


class standing_in:
    """Context manager: while some declaration runs, JAX's modules have these in the place of their own functions."""

    lock = locks.lock()
    running: dict[str, int] = {}  # noqa: RUF012

    def __enter__(self) -> None:
        is_there = "jax" in sys.modules and hasattr(sys.modules["jax"], "numpy")  # not half imported
        self.rooms = [(room, sys.modules[room]) for room in _ROOMS if room in sys.modules] if is_there else []
        for room, module in self.rooms:
            with standing_in.lock:
                standing_in.running[room] = standing_in.running.get(room, 0) + 1
                if standing_in.running[room] == 1:
                    for name, _, ours in _stand_ins(room, module):
                        setattr(module, name, ours)

    def __exit__(self, *_: object) -> None:
        for room, module in self.rooms:
            with standing_in.lock:
                standing_in.running[room] -= 1
                if not standing_in.running[room]:
                    for name, jaxs, _ours in _stand_ins(room, module):
                        setattr(module, name, jaxs)

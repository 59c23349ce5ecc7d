"""The functions a declaration can call. Operators on symbolic tensors are attached here too."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.core.ir import Call
from fusegen.declare import creation as _creation
from fusegen.declare import functions as _functions  # fills the table
from fusegen.declare import indexing as _indexing
from fusegen.declare import products as _products
from fusegen.declare import random_numbers as _random
from fusegen.declare import reductions as _reductions
from fusegen.declare import scans as _scans
from fusegen.declare import scattering as _scattering
from fusegen.declare import segments as _segments
from fusegen.declare.foreign import attach, explained
from fusegen.declare.memory import viewing, write
from fusegen.declare.parts import concat, flatten, split, unflatten
from fusegen.declare.table import Function, Kind, register, rows
from fusegen.declare.value import (
    Like,
    Value,
    current,
    elementwise,
    lift,
    plain_number,
    result_type,
    wrong_dtype,
)

assert _functions


def _signature(names: Sequence[str]) -> inspect.Signature:
    """Of a row of the table: arguments have no names that a call could use."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY, annotation="Like") for name in names]
    return inspect.Signature(parameters, return_annotation="Value")


_ONE, _TWO = _signature("x"), _signature("ab")
_OTHER_SIGNATURES = {"where": _signature(("condition", "a", "b")), "clamp": _signature(("x", "low", "high"))}


def _bind(row: Function) -> Callable[..., Value]:
    def function(*args: Like) -> Value:
        return elementwise(row.name, *args)

    usual = _ONE if row.arity == 1 else _TWO if row.arity == 2 else None
    shown = _OTHER_SIGNATURES.get(row.name) or usual or _signature([f"x{i}" for i in range(row.arity)])
    function.__dict__["__signature__"] = shown
    function.__name__ = function.__qualname__ = row.name
    function.__doc__ = row.doc or f"Elementwise {row.name}; arguments broadcast and promote as torch's."
    return function


def _public(functions: Iterable[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    return {function.__name__: explained(function) for function in functions}


NOT_FUNCTIONS = (
    "powi", "int_pow", "cast", "stop_gradient", "factor", "located", "scanned", "recurrence", "declared", "within",
    "polygamma",
    "add", "sub", "mul", "div", "neg", "pow", "add_rn", "sub_rn", "mul_rn", "div_rn", "uniform", "positive_uniform",
    "uniform_double",
)  # fmt: skip
TABLE_FUNCTIONS = _public(_bind(row) for row in rows() if row.name not in NOT_FUNCTIONS)
REDUCTIONS = _public((*_reductions.FUNCTIONS, *_scans.FUNCTIONS))
PRODUCTS = _public(_products.FUNCTIONS)
RANDOM = _public(_random.FUNCTIONS)
INDEXING = _public((*_indexing.FUNCTIONS, *_scattering.FUNCTIONS))
CREATION = _public((*_creation.FUNCTIONS, *_segments.FUNCTIONS))
sys.modules[__name__].__dict__.update(TABLE_FUNCTIONS | REDUCTIONS | PRODUCTS | RANDOM | INDEXING | CREATION)


# As a product x^n is up to n - 1 ulp off. That is no worse than C's function: CUDA's powf may be 4 ulp off, and pow 2
# (CUDA programming guide, Mathematical Functions). A half's ulp is thousands of float32's.
_LARGEST_POWER = {"float64": 3, "float32": 5, "float16": 64, "bfloat16": 64}


def pow(base: Like, exponent: Like) -> Value:
    """``base ** exponent``; small whole exponents become products, 0.5 and -0.5 roots."""
    if isinstance(exponent, (int, float)) and not isinstance(exponent, bool):
        value = lift(base)
        if exponent == 0.5 and value.dtype.is_float:
            return elementwise("sqrt", base)
        if exponent == -0.5 and value.dtype.is_float:
            return elementwise("rsqrt", base)
        if float(exponent).is_integer() and _is_small_power(value.dtype, exponent):
            return _whole_power(value, int(exponent), is_float=isinstance(exponent, float))
        if value.weak and not value.dtype.is_float and exponent < 0:  # Python's own: 2 ** -1 is a float
            return elementwise("div", 1.0, pow(value, -exponent))
    dtype = result_type([lift(base), lift(exponent)])
    if not dtype.is_float and isinstance(exponent, int) and exponent < 0:
        raise wrong_dtype("pow", dtype, "floats under a negative power (as torch)", "cast with .to(fg.float32)")
    if dtype is dtypes.bool_:
        raise wrong_dtype("pow", dtype, "numbers (torch refuses this on bools too)", "cast with .to(fg.int64)")
    return elementwise("pow" if dtype.is_float else "int_pow", base, exponent)


def _is_small_power(dtype: DType, exponent: float) -> bool:
    if dtype.is_float:
        return -2 <= exponent <= _LARGEST_POWER[dtype.name] and exponent != 0
    return isinstance(exponent, int) and exponent >= 1 and dtype is not dtypes.bool_


def _whole_power(value: Value, exponent: int, is_float: bool) -> Value:
    if exponent == 1:
        return elementwise("mul", value, 1.0 if is_float else 1)
    if exponent < 0:
        return elementwise("div", 1.0, _whole_power(value, -exponent, is_float) if exponent < -1 else value)
    return elementwise("powi", value, detail=exponent)


def polygamma(n: int, x: Like) -> Value:
    """The n-th derivative of digamma at ``x``.

    Raises:
        DeclarationError: n is no int from 0 on.
    """
    n = plain_number(n)
    if not isinstance(n, int) or n < 0:
        raise DeclarationError(
            f"{current().where}, polygamma", given=f"n={n!r}", expected="an int from 0 on",
            fix="pass the order first: fg.polygamma(1, x)",
        )  # fmt: skip
    return elementwise("digamma", x) if n == 0 else elementwise("polygamma", x, detail=n)


def stop_gradient(x: Like) -> Value:
    """``x``, through which no gradient flows."""
    value = lift(x)
    return Value(Call("stop_gradient", (value.expr,), value.expr.dtype), value.dtype, value.dims, value.weak)


def square(x: Like) -> Value:
    """``x * x``."""
    return pow(x, 2)


def reciprocal(x: Like) -> Value:
    """``1 / x``."""
    return elementwise("div", 1.0, x)


def expand_dims(x: Like, axis: int | Sequence[int]) -> Value:
    """``x`` with a dimension of size one at each position ``axis`` of the result, as NumPy's; no data moves.

    Raises:
        ShapeError: there is no such position in the result, or one is named twice.
    """
    value = lift(x)
    wanted = [plain_number(a) for a in (axis if isinstance(axis, (tuple, list, range)) else (axis,))]
    rank = value.ndim + len(wanted)
    positions = {a % rank for a in wanted if isinstance(a, int) and -rank <= a < rank}
    if len(positions) != len(wanted):
        raise ShapeError(
            f"{current().where}, expand_dims",
            given=f"axis {axis!r} for a tensor of rank {value.ndim}",
            expected=f"different ints from {-rank} to {rank - 1}",
            fix="count the dimensions of the result from 0, or from -1 at the end",
        )
    rest = iter(value.dims)
    dims = tuple(None if p in positions else next(rest) for p in range(rank))
    return Value(value.expr, value.dtype, dims)


def register_function(
    name: str,
    *,
    cuda: str,
    reference: Callable[..., Any],
    arity: int = 1,
    derivative: Callable[..., Any] | None = None,
    sympy: Callable[..., Any] | None = None,
    header: str = "",
    smooth: bool = True,
    doc: str = "",
) -> Callable[..., Value]:
    """Add a scalar function to the language and return it.

    Args:
        name: a new name.
        cuda: an expression in CUDA, with ``{0}``, ``{1}`` for arguments and ``{f}`` for ``f`` in float32 and nothing in
            float64, for example ``"j0{f}({0})"``. Parentheses around it, and around arguments, are added where it
            needs them. A brace that is meant is doubled.
        reference: ``reference(torch, *args)`` computes it on torch tensors; the oracle of `fusegen check` and `run`.
        derivative: ``derivative(*args, y)`` returns one expression per argument (None for zero), built with ``+ - * /``
            and fusegen's table functions through ``fg.table``.
        sympy: ``sympy(sp, *args)`` instead, for sympy to differentiate.
        smooth: False for a function that is constant between its jumps: its derivative is zero. Without it, and without
            a derivative, asking for one is an error.
        header: CUDA text of device functions that ``cuda`` calls, placed before the kernel.

    Raises:
        DeclarationError: the name is taken, or ``cuda`` asks for what there is not.
    """
    row = Function(
        name, arity, Kind.FLOAT, _closed(name, cuda, arity), reference, partials=derivative, sympy=sympy, header=header,
        cost=16, doc=doc,
        builtin=False,
        smooth=smooth,
    )  # fmt: skip
    return _bind(register(row))


def _closed(name: str, cuda: str, arity: int) -> str:
    """The text of a function that means the same wherever it stands, and whatever its arguments are: each is in
    parentheses unless it is all of an argument of a call, and so is the whole unless it is a call."""
    try:
        cuda.format(*"x" * arity, f="f", d=0, T="float")
    except (IndexError, KeyError, ValueError) as error:
        raise DeclarationError(
            f"register_function({name!r})", given=f"cuda={cuda!r}: {type(error).__name__}: {error}",
            expected=f"text with {', '.join(f'{{{place}}}' for place in range(arity))} for arguments, and {{f}}",
            fix="say arity= if it takes more; write {{ and }} for braces that are meant",
        ) from None  # fmt: skip

    def argument(found: re.Match[str]) -> str:
        before, after = cuda[: found.start()].rstrip(), cuda[found.end() :].lstrip()
        whole = before.endswith(("(", ",")) and after.startswith((")", ","))
        return found[0] if whole else f"({found[0]})"

    text = re.sub(r"(?<!\{)\{\d\}(?!\})", argument, cuda)
    return text if _is_call(text) else f"({text})"


def _is_call(text: str) -> bool:
    """Whether text is a name and one pair of parentheses behind it, as far as parentheses tell."""
    head = re.match(r"(?:[\w:]|\{f\})+\(", text)
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and depth == 0:
            return head is not None and place == len(text) - 1
    return False


def _swap(function: Callable[..., Value]) -> Callable[..., Value]:
    return lambda self, other: function(other, self)


# Methods of torch's that reduce all dimensions where none is named; NumPy's functions, and fusegen's, reduce none then.
ALL_OF_NONE = ("sum", "mean", "amax", "amin", "var", "std", "norm", "logsumexp")


def _over_all(function: Callable[..., Value]) -> Callable[..., Value]:
    @functools.wraps(function)
    def method(x: Value, *args: Any, **kwargs: Any) -> Value:
        def named(value: Any) -> Any:
            return None if isinstance(value, (tuple, list)) and not value else value

        return function(x, *map(named, args), **{key: named(value) for key, value in kwargs.items()})

    return method


INPLACE = ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift", "pow")


def _in_place(name: str, what: str) -> Callable[[Value, Any], Any]:
    """``x += y``: a tensor becomes the result; the name of a number is bound anew."""

    def apply(x: Value, other: Any) -> Any:
        if x.weak:
            return NotImplemented
        return write(x, pow(x, other) if name == "pow" else elementwise(name, x, other), what, to_own=True)

    return apply


def _set_item(x: Value, key: Any, new: Any) -> None:
    importlib.import_module("fusegen.declare.writes").set_item(x, key, new)


def _operators() -> None:
    binary = {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder",
        "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
    }  # fmt: skip
    for python, name in binary.items():
        function: Callable[..., Value] = lambda a, b, _name=name: elementwise(_name, a, b)  # noqa: E731
        setattr(Value, f"__{python}__", function)
        setattr(Value, f"__r{python}__", _swap(function))
    for python in INPLACE:
        setattr(Value, f"__i{python}__", _in_place(binary.get(python, python), f"{python}="))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Value, f"__{name}__", lambda a, b, _name=name: elementwise(_name, a, b))
    operators: dict[str, Callable[..., Any]] = {
        "__pow__": pow,
        "__rpow__": _swap(pow),
        "__neg__": lambda x: elementwise("neg", x),
        "__pos__": lambda x: x,
        "__setitem__": _set_item,
        "__abs__": lambda x: elementwise("abs", x),
        "__invert__": lambda x: elementwise("bitwise_not", x),
    }
    for method, function in operators.items():
        setattr(Value, method, function)
    for name, function in (TABLE_FUNCTIONS | REDUCTIONS).items():
        if name not in NOT_METHODS:  # x.exp(), x.sum(-1), as torch's methods
            setattr(Value, name, _over_all(function) if name in ALL_OF_NONE else function)


# What torch's methods of these names do, or would, is something else.
NOT_METHODS = (
    "where",
    "index",
    "size",
    "linear",
    "sum_exp",
    "ratio",
    "exp_clamped",
    "clamp",
    "round",
    "linear_recurrence",
)
_operators()
expand_dims, flatten = viewing(expand_dims, "view"), viewing(flatten, "perhaps")
split, unflatten = viewing(split, "parts"), viewing(unflatten, "view")
_OTHERS = ("pow", "square", "reciprocal", "concat", "split", "expand_dims", "flatten", "unflatten")
attach((*TABLE_FUNCTIONS, *REDUCTIONS, *PRODUCTS, *RANDOM, *INDEXING, *CREATION, *_OTHERS))

__all__ = [
    *TABLE_FUNCTIONS,
    *REDUCTIONS,
    *PRODUCTS,
    *RANDOM,
    *INDEXING,
    *CREATION,
    "concat",
    "expand_dims",
    "flatten",
    "polygamma",
    "pow",
    "reciprocal",
    "register_function",
    "split",
    "square",
    "stop_gradient",
    "unflatten",
]

"""What a row of the function table is, and the registry that holds the rows.

The rows themselves stand in declare/functions.py. A row carries everything that is known about a scalar function:
how it is typed, its derivative, its CUDA text and its reference, so that nothing about it can be said twice.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import Category, DType
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import Call, Computed, Detail, Expr, Ref, walk

Partials = Callable[..., tuple["Expr | None", ...]]
Reference = Callable[..., Any]


class Kind(Enum):
    """How a function is typed."""

    FLOAT = "arguments become floats; the result is one too"
    NUMERIC = "arguments are promoted together; the result has their dtype"
    COMPARE = "arguments are promoted together; the result is a bool"
    PREDICATE = "a float argument; the result is a bool"
    LOGICAL = "arguments become bools; the result is a bool"
    BITWISE = "integers or bools; the result has their promoted dtype"
    SELECT = "a bool, then two arguments that are promoted together"
    CAST = "the dtype is the node's own"
    DRAW = "int64 arguments; the result is of the row's own float dtype"


@dataclass(frozen=True)
class Function:
    """One scalar function.

    Args:
        name: the name in declarations and in printed ops.
        arity: how many arguments.
        kind: the typing rule.
        cuda: CUDA text of the call. ``{0}``, ``{1}`` are the arguments, ``{f}`` is ``f`` for float and nothing for
            double, ``{d}`` the node's detail, ``{T}`` its C type.
        cuda_half: CUDA text for kernels whose results are rounded to float16 or bfloat16: worth a few float32 ulp,
            because a half ulp is 8192 or 65536 of them. None: the same text.
        fixed: the category whose values it leaves as they are: of those the result is the argument.
        precedence: binding strength of an operator's text (C's levels, larger binds tighter); 0 for a call.
        partials: ``partials(*args, y)`` gives the derivative by each argument as an expression, None where it is zero;
            ``y`` is the function's value, so that a derivative can reuse it. Absent: sympy derives it (``sympy``).
        sympy: ``sympy(sp, *args)`` builds the same function from sympy's own, for sympy to differentiate.
        smooth: False marks a function that is constant between its jumps (sign, floor): derivative zero.
        reference: ``reference(torch, *args)`` computes it on torch tensors; in float64 it is the oracle.
        domain: where the sweep looks, as (low, high) of the first argument.
        draws: the dtype of a random number.
        doc: formula and source.
    """

    name: str
    arity: int
    kind: Kind
    cuda: str
    reference: Reference
    cuda_half: str | None = None
    fixed: Category | None = None
    precedence: int = 0
    partials: Partials | None = None
    sympy: Callable[..., Any] | None = None
    smooth: bool = True
    domain: tuple[float, float] = (-math.inf, math.inf)
    cost: int = 4
    header: str = ""
    builtin: bool = True
    draws: DType | None = None
    doc: str = ""

    def result_dtype(self, args: tuple[Expr, ...]) -> DType:
        """The compute dtype of the result; arguments are already of one dtype where the kind says so."""
        if self.kind in (Kind.COMPARE, Kind.PREDICATE, Kind.LOGICAL):
            return dtypes.bool_
        return self.draws or args[-1].dtype

    def __call__(self, *args: Expr, detail: Detail = None) -> Call:
        """The node; for derivative rows and rewrites, whose arguments need no promotion."""
        return Call(self.name, args, self.result_dtype(args), detail)


# Behind the name of a function: the same one, with the same bits in every kernel (derive/exact).
AS_WRITTEN = "_rn"

_rows: dict[str, Function] = {}
_of_any_kernel: dict[str, Function] = {}  # by their names, which `rows` does not list


def register(row: Function) -> Function:
    """Add a row; a second row of the same name is refused unless it is the same object."""
    if _rows.get(row.name, row) is not row:
        raise DeclarationError(
            f"function {row.name}",
            given="a name that already stands in the function table",
            expected="a new name",
            fix=f"rename it, for example my_{row.name}",
        )
    _rows[row.name] = row
    return row


def lookup(name: str) -> Function:
    """The row called ``name``.

    Raises:
        DeclarationError: there is none; the message suggests the nearest.
    """
    row = _rows.get(name) or _of_any_kernel.get(name)
    if row is None and name.endswith(AS_WRITTEN) and (own := _rows.get(name.removesuffix(AS_WRITTEN))):
        row = _of_any_kernel[name] = replace(own, name=name, cuda_half=None)
    if row is None:
        near = difflib.get_close_matches(name, _rows, n=1)
        raise DeclarationError(
            f"function {name}",
            given=f"{name!r}, which the function table does not have",
            expected="a row of the function table (`fusegen list --functions` prints them)",
            fix=f"did you mean {near[0]!r}?" if near else "add it with fg.register_function",
        )
    return row


def rows() -> tuple[Function, ...]:
    """All rows, in the order they were registered."""
    return tuple(_rows.values())


def apply(name: str, *args: Expr, detail: Detail = None) -> Call:
    """Short for ``lookup(name)(*args)``."""
    return lookup(name)(*args, detail=detail)


def draws(items: Iterable[Computed]) -> bool:
    """Whether a statement or a result has a random number in it."""
    nodes = walk([item.expr for item in items])
    return any(isinstance(node, Call) and lookup(node.function).draws is not None for node in nodes)


def placeholders(count: int, dtype: DType) -> tuple[Ref, ...]:
    """Stand-ins for arguments, for instantiating a row's partials once."""
    return tuple(Ref(f"_arg{i}", dtype) for i in range(count))

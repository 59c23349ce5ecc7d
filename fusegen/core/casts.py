"""Casts: numbers in another dtype, and numbers rounded to a half type.

Both are calls of ``cast``. Half types are computed with in single precision, so no expression has a half type: one that
is rounded to it stays in single precision, and ``detail`` is the half type.
"""

from __future__ import annotations

from fusegen.core.dtypes import DType, bool_, int8, uint8
from fusegen.core.ir import Call, Const, Expr, const, is_call

_IN_HALVES = frozenset({bool_, int8, uint8})
"""Whose numbers every half type has."""


def converted(expr: Expr, dtype: DType) -> Expr:
    """``expr`` in the compute dtype of ``dtype``: itself where it has it, a constant where it is one."""
    dtype = dtype.compute
    if expr.dtype is dtype:
        return expr
    return const(expr.value, dtype) if isinstance(expr, Const) else Call("cast", (expr,), dtype)


def rounded(expr: Expr, dtype: DType) -> Expr:
    """``expr`` as it is after it has been stored as ``dtype``: rounded, if that is a half type that lacks numbers."""
    exact = is_call(expr, "cast") and expr.args[0].dtype in _IN_HALVES
    return Call("cast", (expr,), expr.dtype, dtype) if dtype.is_half and not exact else expr


def unrounded(expr: Expr, dtype: DType) -> Expr:
    """The inverse of ``rounded``."""
    return expr.args[0] if is_call(expr, "cast") and expr.detail is dtype else expr


def is_from_float(node: Call) -> bool:
    """Whether a cast makes an integer or a bool of a float: a step, which has no gradient."""
    return node.function == "cast" and node.args[0].dtype.is_float and not node.dtype.is_float


def is_between_floats(node: Call) -> bool:
    """Whether a cast has a gradient: a float's in another precision."""
    return node.function == "cast" and node.args[0].dtype.is_float and node.dtype.is_float


__all__ = ["converted", "is_between_floats", "is_from_float", "rounded", "unrounded"]

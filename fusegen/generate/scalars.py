"""Scalar-only subexpressions that are costly: a thread computes them once, before its elements."""

from __future__ import annotations

from fusegen.core.dtypes import float64
from fusegen.core.ir import LOCATED, Call, Expr
from fusegen.core.scalar_only import largest_scalar_only
from fusegen.core.subexpressions import safe_name
from fusegen.declare.table import lookup
from fusegen.fuse.kernel import Kernel

# Operations that a compiler computes once by itself: without branches, unlike a double's power or quotient.
_PLAIN = frozenset({"add", "sub", "mul", "neg", "cast"})


def computed_once(kernel: Kernel) -> dict[Expr, str]:
    """The largest costly scalar-only subexpressions, and the names of their variables."""
    numbers = {scalar.ref for scalar in kernel.scalars}
    roots = [item.expr for item in kernel.items]
    found: dict[Expr, str] = {}
    taken = {thing.name for thing in (*kernel.operands, *kernel.scalars, *kernel.items)}
    for node in largest_scalar_only(roots, numbers, lambda node: node.function != LOCATED, _is_costly):
        if node.dtype.is_float:
            found[node] = safe_name("number", {*taken, *found.values()})
    return found


def _is_costly(node: Call) -> bool:
    return node.function not in _PLAIN and (node.dtype is float64 or lookup(node.function).cost > 1)

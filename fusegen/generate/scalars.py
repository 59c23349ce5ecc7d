"""Scalar-only subexpressions that are costly: a thread computes them once, before its elements."""

from __future__ import annotations

from fusegen.core.dtypes import float64
from fusegen.core.ir import LOCATED, Call, Const, Expr, walk
from fusegen.core.subexpressions import safe_name
from fusegen.declare.table import lookup
from fusegen.fuse.kernel import Kernel

# Operations that a compiler computes once by itself: without branches, unlike a double's power or quotient.
_PLAIN = frozenset({"add", "sub", "mul", "neg", "cast"})


def computed_once(kernel: Kernel) -> dict[Expr, str]:
    """The largest costly scalar-only subexpressions, and the names of their variables."""
    scalars = {scalar.ref for scalar in kernel.scalars}
    costly: dict[Expr, bool] = {}  # scalar-only; whether it is costly
    reads: dict[Expr, bool] = {}  # whether it reads a call's numbers, rather than constants alone
    inner: set[Expr] = set()
    roots = [item.expr for item in kernel.items] if scalars else []
    for node in walk(roots):
        if isinstance(node, Const) or node in scalars:
            costly[node], reads[node] = False, node in scalars
        elif isinstance(node, Call) and node.function != LOCATED and all(child in costly for child in node.args):
            reads[node] = any(reads[child] for child in node.args)
            is_costly = node.function not in _PLAIN and (node.dtype is float64 or lookup(node.function).cost > 1)
            costly[node] = (is_costly and reads[node]) or any(costly[child] for child in node.args)
            inner |= set(node.args)
    outside = {child for node in walk(roots) if node not in costly for child in node.children} | set(roots)
    found: dict[Expr, str] = {}
    taken = {thing.name for thing in (*kernel.operands, *kernel.scalars, *kernel.items)}
    for node, is_costly in costly.items():
        if is_costly and node.dtype.is_float and (node not in inner or node in outside):
            found[node] = safe_name("number", {*taken, *found.values()})
    return found

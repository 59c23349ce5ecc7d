"""What a kernel computes of a call's numbers alone: once, before everything else, where it takes long."""

from __future__ import annotations

from fusegen.core.dtypes import float64
from fusegen.core.ir import LOCATED, Call, Const, Expr, walk
from fusegen.core.subexpressions import safe_name
from fusegen.declare.table import lookup
from fusegen.fuse.kernel import Kernel

# Operations that a compiler computes once by itself: without branches, unlike a double's power or quotient.
_PLAIN = frozenset({"add", "sub", "mul", "neg", "cast"})


def computed_once(kernel: Kernel) -> dict[Expr, str]:
    """The largest such expressions, and what their variables are called."""
    scalars = {scalar.ref for scalar in kernel.scalars}
    long: dict[Expr, bool] = {}  # of numbers alone
    reads: dict[Expr, bool] = {}  # one that a call brings
    inner: set[Expr] = set()
    roots = [item.expr for item in kernel.items] if scalars else []
    for node in walk(roots):
        if isinstance(node, Const) or node in scalars:
            long[node], reads[node] = False, node in scalars
        elif isinstance(node, Call) and node.function != LOCATED and all(child in long for child in node.args):
            reads[node] = any(reads[child] for child in node.args)
            is_long = node.function not in _PLAIN and (node.dtype is float64 or lookup(node.function).cost > 1)
            long[node] = (is_long and reads[node]) or any(long[child] for child in node.args)
            inner |= set(node.args)
    outside = {child for node in walk(roots) if node not in long for child in node.children} | set(roots)
    found: dict[Expr, str] = {}
    taken = {thing.name for thing in (*kernel.operands, *kernel.scalars, *kernel.items)}
    for node, is_long in long.items():
        if is_long and node.dtype.is_float and (node not in inner or node in outside):
            found[node] = safe_name("number", {*taken, *found.values()})
    return found

"""What a kernel computes of a call's numbers alone: once, before everything else, where it takes long."""

from __future__ import annotations

from fusegen.core.dtypes import float64
from fusegen.core.ir import LOCATED, Call, Expr
from fusegen.core.lets import safe_name
from fusegen.core.numbers import largest_of_numbers
from fusegen.declare.table import lookup
from fusegen.fuse.kernel import Kernel

# Operations that a compiler computes once by itself: without branches, unlike a double's power or quotient.
_PLAIN = frozenset({"add", "sub", "mul", "neg", "cast"})


def computed_once(kernel: Kernel) -> dict[Expr, str]:
    """The largest such expressions, and what their variables are called."""
    scalars, roots = {scalar.ref for scalar in kernel.scalars}, [item.expr for item in kernel.items]
    taken = {thing.name for thing in (*kernel.operands, *kernel.scalars, *kernel.items)}
    found: dict[Expr, str] = {}
    for node in largest_of_numbers(roots, scalars, lambda node: node.function != LOCATED, _takes_long):
        found[node] = safe_name("number", {*taken, *found.values()})
    return found


def _takes_long(node: Call) -> bool:
    return node.function not in _PLAIN and (node.dtype is float64 or lookup(node.function).cost > 1)

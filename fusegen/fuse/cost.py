"""About how much arithmetic an expression is, in units of `Function.cost`: instructions of a GPU."""

from __future__ import annotations

from collections.abc import Iterable

from fusegen.core import dtypes
from fusegen.core.ir import Call, Expr, walk
from fusegen.declare.table import Kind, lookup
from fusegen.fuse.slots import PARTING

DIVISION = 8
"""What a division costs on a GPU, where it is no instruction."""
# What a compiler computes only where a select takes it, behind a branch, costs at least this.
WORTH_A_BRANCH = 8


def of(nodes: Iterable[Expr]) -> int:
    """What the nodes cost, each by itself."""
    calls = (node for node in nodes if isinstance(node, Call))
    return sum(DIVISION if node.function == "div" else lookup(node.function).cost for node in calls)


def parting(nodes: Iterable[Expr], half: bool) -> bool:
    """Whether threads of a warp may go different ways in one of the nodes: in a function's slow path, or around what a
    select does not take. A compiler moves no read across such a place.

    Args:
        half: results are rounded to a half type.
    """
    for node in nodes:
        if not isinstance(node, Call):
            continue
        way = ("half" if half else "float32") if node.dtype is dtypes.float32 else node.dtype.name
        if way in PARTING.get(node.function, ()):
            return True
        arms = node.args[1:] if lookup(node.function).kind is Kind.SELECT else ()
        if any(of(walk([arm])) >= WORTH_A_BRANCH for arm in arms):
            return True
    return False

"""About how much arithmetic an expression is, in units of `Function.cost`: instructions of a GPU."""

from __future__ import annotations

from collections.abc import Iterable

from fusegen.core.ir import Call, Expr
from fusegen.declare.table import lookup

DIVISION = 8
"""What a division costs on a GPU, where it is no instruction."""


def of(nodes: Iterable[Expr]) -> int:
    """What the nodes cost, each by itself."""
    calls = (node for node in nodes if isinstance(node, Call))
    return sum(DIVISION if node.function == "div" else lookup(node.function).cost for node in calls)

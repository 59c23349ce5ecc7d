"""Scalar-only subexpressions: those of a call's numbers and constants alone, which read no tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fusegen.core.ir import Call, Const, Expr, Ref, walk


def largest_scalar_only(
    roots: Collection[Expr],
    numbers: Collection[Ref],
    allowed: Callable[[Call], bool],
    wanted: Callable[[Call], bool],
) -> list[Expr]:
    """The largest scalar-only subexpressions that hold a wanted call of a number that a call brings.

    One that is part of a larger one is listed as well where something else reads it.

    Args:
        numbers: those that a call brings.
        allowed: which calls may be part of one.
        wanted: which calls make one worth finding; ``2 ** 3``, which reads no number of a call's, never does.
    """
    holds_wanted: dict[Expr, bool] = {}  # of each scalar-only subexpression
    reads_number: dict[Expr, bool] = {}  # of each, whether it is more than constants
    inner: set[Expr] = set()  # part of a larger one
    for node in walk(roots if numbers else ()):
        if isinstance(node, Const) or node in numbers:
            holds_wanted[node], reads_number[node] = False, node in numbers
        elif isinstance(node, Call) and allowed(node) and all(child in holds_wanted for child in node.args):
            reads_number[node] = any(reads_number[child] for child in node.args)
            mine = reads_number[node] and wanted(node)
            holds_wanted[node] = mine or any(holds_wanted[child] for child in node.args)
            inner |= set(node.args)
    readers = [node for node in walk(roots) if node not in holds_wanted] if holds_wanted else []
    outside = {child for node in readers for child in node.children} | set(roots)
    return [node for node, holds in holds_wanted.items() if holds and (node not in inner or node in outside)]


__all__ = ["largest_scalar_only"]

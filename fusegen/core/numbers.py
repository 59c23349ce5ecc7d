"""Which parts of expressions are of a call's numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from fusegen.core.ir import Call, Const, Expr, Ref, walk


def largest_of_numbers(
    roots: Collection[Expr], numbers: Collection[Ref], allowed: Callable[[Call], bool], wanted: Callable[[Call], bool]
) -> list[Expr]:
    """The largest float subexpressions of numbers and constants alone that hold a wanted call of a number.

    Args:
        numbers: those that a call brings.
        allowed: which calls may be part of one.
    """
    holds: dict[Expr, bool] = {}  # of numbers alone
    reads: dict[Expr, bool] = {}  # one that a call brings
    inner: set[Expr] = set()
    for node in walk(roots if numbers else ()):
        if isinstance(node, Const) or node in numbers:
            holds[node], reads[node] = False, node in numbers
        elif isinstance(node, Call) and allowed(node) and all(child in holds for child in node.args):
            reads[node] = any(reads[child] for child in node.args)
            holds[node] = (reads[node] and wanted(node)) or any(holds[child] for child in node.args)
            inner |= set(node.args)
    outside = _read_by_others(roots, holds)
    found = [node for node, is_one in holds.items() if is_one and (node not in inner or node in outside)]
    return [node for node in found if node.dtype.is_float]


def _read_by_others(roots: Iterable[Expr], mine: Collection[Expr]) -> set[Expr]:
    """What is read by an expression that is none of mine, or is a root."""
    return {child for node in walk(roots) if node not in mine for child in node.children} | set(roots)

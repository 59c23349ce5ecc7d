"""Where a value is read only by the branch that a select takes: what guards it.

``where(c, sum(f(x)), 0)`` and its derivatives read the sum where ``c`` holds. Elsewhere its cotangent is zero, but zero
times an infinite derivative of ``f`` is NaN. Inside one op the select goes along with the cotangent (derive/gradient).
What one op keeps for another is a select itself, between a value and the same without a derivative, so that the other's
derivative comes back through it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import partial
from functools import reduce as reduce_by

from fusegen.core.ir import DOT, FACTOR, Axes, Call, Expr, Op, refs, walk
from fusegen.declare.table import apply
from fusegen.derive.simplify import Condition, is_select, is_zero


def guards(op: Op) -> dict[Expr, list[Condition]]:
    """For each node that an op computes, the conditions under all of which alone it is read.

    They vary along no axis that the node does not vary along.
    """
    reduces, outputs = op.expand()
    inner = {reduce.ref: reduce for reduce in reduces}
    along = Axes(op.axes_of())

    def children(node: Expr) -> tuple[Expr, ...]:
        return (inner[node].expr,) if node in inner else node.children

    # A product calls its axes as it likes, so that what holds around it says nothing of its factors.
    def carries(node: Expr) -> bool:
        return inner[node].kind != DOT if node in inner else not (isinstance(node, Call) and node.function == FACTOR)

    roots = [output.expr for output in outputs]
    found: dict[Expr, list[Condition]] = {root: [] for root in roots}
    for node in reversed(list(walk(roots, (), children))):  # each behind all that read it
        mine = found[node] = [c for c in found[node] if along.of(c[0]) <= along.of(node)]
        chosen = (node.children[0], is_zero(node.children[1])) if is_select(node) else None
        for child in children(node):
            under = mine if carries(node) else []
            if chosen and chosen not in under and child is not node.children[0] and not is_zero(child):
                under = [*under, chosen]
            found[child] = _either(found[child], under) if child in found else under
    return found


def _either(some: Sequence[Condition], others: Sequence[Condition]) -> list[Condition]:
    """What holds where the one conditions hold, or the others."""
    both = [condition for condition in some if condition in others]
    rest = [[condition for condition in side if condition not in both] for side in (some, others)]
    if all(rest):
        both.append((apply("logical_or", *map(_all, rest)), False))
    return both


def _all(conditions: Sequence[Condition]) -> Expr:
    holds = [apply("logical_not", c) if zero_first else c for c, zero_first in conditions]
    return reduce_by(partial(apply, "logical_and"), holds)


def guarded(expr: Expr, conditions: Sequence[Condition], told: Set[str]) -> Expr:
    """``expr``, but without a derivative where conditions that are made of what is ``told`` say that nobody reads it.

    Its value is what it was: who reads it computes the conditions anew, and may round them otherwise.
    """
    if not expr.dtype.is_float:
        return expr
    found, fixed = expr, apply("barrier", expr)
    for condition, zero_first in reversed(conditions):
        if told >= {ref.name for ref in refs(condition)}:
            found = apply("where", condition, *((fixed, found) if zero_first else (found, fixed)))
    return found

"""Where a value is read only by the branch that a select takes: what guards it.

``where(c, sum(f(x)), 0)`` and its derivatives read the sum where ``c`` holds. Elsewhere its cotangent is zero, but zero
times an infinite derivative of ``f`` is NaN. Inside one op the select goes along with the cotangent (derive/gradient).
What one op keeps for another is a select itself, between a value and the same without a derivative, so that the other's
derivative comes back through it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from fusegen.core.ir import DOT, Axes, Call, Expr, Factor, Op, refs, walk
from fusegen.declare.table import apply
from fusegen.derive.simplify import Condition, either


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
        return inner[node].kind != DOT if node in inner else not isinstance(node, Factor)

    roots = [output.expr for output in outputs]
    found: dict[Expr, list[Condition]] = {root: [] for root in roots}
    for node in reversed(list(walk(roots, (), children))):  # each behind all that read it
        branches = node.children[1:] if isinstance(node, Call) and node.function == "where" else ()
        for i, child in enumerate(children(node)):
            under = found[node] if carries(node) else []
            if branches and i:
                way: Condition = (node.children[0], i == 2)
                under = under if way in under else [*under, way]
            under = [condition for condition in under if along.of(condition[0]) <= along.of(child)]
            found[child] = either(found[child], under) if child in found else under
    return found


def guarded(expr: Expr, conditions: Sequence[Condition], known: Set[str]) -> Expr:
    """``expr``, but without a derivative where conditions that are made of what is ``known`` say that nobody reads it.

    Its value is what it was: who reads it computes the conditions anew, and may round them otherwise.
    """
    if not expr.dtype.is_float:
        return expr
    found, fixed = expr, apply("stop_gradient", expr)
    for condition, zero_first in reversed(conditions):
        if known >= {ref.name for ref in refs(condition)}:
            found = apply("where", condition, *((fixed, found) if zero_first else (found, fixed)))
    return found

"""Where a value is read only by the branch that a select takes: what guards it.

``where(c, sum(f(x)), 0)`` and its derivatives read the sum where ``c`` holds. Elsewhere its cotangent is zero, but zero
times an infinite derivative of ``f`` is NaN. Inside one op the select goes along with the cotangent (derive/gradient).
What one op keeps for another is a select itself, between a value and the same without a derivative, so that the other's
derivative comes back through it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from fusegen.core.casts import unrounded
from fusegen.core.declared import Declared
from fusegen.core.ir import SCAN, Axes, Call, Expr, Factor, Op, Reduce, Ref, is_call, rebuild, refs, walk
from fusegen.core.products import factors
from fusegen.core.rewriting import rewritten
from fusegen.core.scans import axis_of
from fusegen.declare.table import apply
from fusegen.derive.override import mixed_axes
from fusegen.derive.simplify import Condition, either, fitting


def guards(op: Op) -> dict[Expr, list[Condition]]:
    """For each node that an op computes, the conditions under all of which alone it is read.

    They vary along no axis that the node does not vary along.
    """
    reduces, outputs = op.expand()
    inner = {reduce.ref: reduce for reduce in reduces}
    along = Axes(op.axes_of())

    def children(node: Expr) -> tuple[Expr, ...]:
        return (inner[node].expr,) if node in inner else node.children

    # A product calls its axes as it likes, so that what holds around it need not say anything of its factors.
    def axes(node: Expr, child: Expr) -> frozenset[str]:
        return common_axes(node, along) if isinstance(node, Factor) else along.of(child)

    def along_axes(conditions: Sequence[Condition], own: frozenset[str]) -> list[Condition]:
        return fitting(conditions, lambda condition: along.of(condition[0]) <= own)

    roots = [output.expr for output in outputs]
    found: dict[Expr, list[Condition]] = {root: [] for root in roots}
    for node in reversed(list(walk(roots, (), children))):  # each behind all that read it
        branches = node.children[1:] if isinstance(node, Call) and node.function == "where" else ()
        for i, child in enumerate(children(node)):
            way: list[Condition] = [(node.children[0], i == 2)] if branches and i else []
            own = axes(node, child)
            if node in inner and inner[node].kind == SCAN:  # an element is part of others' sums
                own -= {axis_of(inner[node])}
            if isinstance(node, Declared) and i:  # another element's cotangent may be in its gradient
                own -= mixed_axes(node)
            under = along_axes([*found[node], *way], own)
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


def common_axes(side: Factor, along: Axes) -> frozenset[str]:
    """The axes of a factor that its product calls by the same names."""
    return along.of(side.expr).difference(*side.renames)


def needs_conditions(side: Factor, given: Set[str]) -> bool:
    """Whether a factor of a product may be infinite, or have an infinite derivative, where nobody reads it.

    One that is an argument has the user's numbers, and no derivative before it. It is read as it is, not once more in
    order to leave rows out (those that a loss ignores).

    Args:
        given: names of arguments.
    """
    value = unrounded(side.expr, side.stored)
    return not (isinstance(value, Ref) and value.name in given)


def of_factors(conditions: Sequence[Condition], product: Reduce, given: Set[str], along: Axes) -> list[Condition]:
    """Which conditions on a product's result hold for elements of one of its factors, if it needs them.

    A product's own derivatives are never infinite: only what comes before it has such.
    """
    sides = [common_axes(side, along) for side in factors(product) if needs_conditions(side, given)]
    return fitting(conditions, lambda condition: any(along.of(condition[0]) <= axes for axes in sides))


def without_guards(op: Op) -> Op:
    """``op`` without the selects that `guarded` has put into it, where no derivative is taken any more. Not those of a
    declaration whose condition alone varies along an axis: a reduction over it would have nothing to reduce."""
    if not any(map(same_either_way, walk([item.expr for item in (*op.statements, *op.outputs)]))):
        return op
    done: dict[Expr, Expr] = {}
    along = Axes(op.axes_of())

    def without(root: Expr) -> Expr:
        for node in walk([root], done):
            new = rebuild(node, tuple(done[child] for child in node.children))
            value = same_either_way(new)
            done[node] = value if value is not None and along.of(value) >= along.of(new) else new
        return done[root]

    return rewritten(op, without)


def same_either_way(node: Expr) -> Expr | None:
    """where(c, a, stop_gradient(a)) is a, where no derivative is taken any more."""
    if not is_call(node, "where"):
        return None
    values = [value.args[0] if is_call(value, "stop_gradient") else value for value in node.args[1:]]
    return values[0] if values[0] is values[1] else None

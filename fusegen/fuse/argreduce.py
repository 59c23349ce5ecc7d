"""Where an extremum stands, in one pass.

A declaration says it in two reductions: the extremum, then the first position at which an element equals it. Where a
row stays on chip that is one pass over memory anyway. Elsewhere value and position become one state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusegen.core import dtypes
from fusegen.core.ir import LOCATED, Call, Const, Expr, Output, Place, Reduce, Ref, Size, axis_order, call, names_read
from fusegen.core.monoids import BY_KIND


def in_one_pass(reduces: Sequence[Reduce], outputs: Sequence[Output]) -> list[Reduce]:
    """The reductions, with those that find a position by an earlier one's result told by themselves where it is.

    An extremum that nothing else needs is no reduction of its own any more.
    """
    extrema = {r.name: r for r in reduces if r.kind in ("max", "min")}
    found = [_located(r, extrema) or r for r in reduces]
    needed = names_read([*found, *outputs])
    replaced = {r.name for r, new in zip(reduces, found, strict=True) if r is not new}
    unused = names_read(r for r in reduces if r.name in replaced) & set(extrema) - needed
    return [r for r in found if r.name not in unused]


def _located(reduce: Reduce, extrema: dict[str, Reduce]) -> Reduce | None:
    """``min(where(x == top or x != x, place, last))`` with ``top`` over the same axes: as declare/reductions has it."""
    expr = reduce.expr
    if reduce.kind != "min" or not _is(expr, "where") or not _is(expr.children[0], "logical_or"):
        return None
    hit, place, last = expr.children
    same, unordered = hit.children
    if not (_is(same, "eq") and _is(unordered, "ne") and isinstance(last, Const) and last.value == 2**63 - 1):
        return None
    x, top = same.children
    extremum = extrema.get(top.name) if isinstance(top, Ref) else None
    if extremum is None or extremum.expr is not x or unordered.children != (x, x):
        return None
    kind = f"first_{extremum.kind}"
    if set(extremum.over) != set(reduce.over) or kind not in BY_KIND:
        return None
    axes = sorted(reduce.over, key=axis_order)
    place = Place(*axes) if place is _flattened(axes) else place
    return replace(reduce, kind=kind, expr=call(LOCATED, x, place, dtype=dtypes.int64))


def _is(expr: Expr, function: str) -> bool:
    return isinstance(expr, Call) and expr.function == function


def _flattened(axes: Sequence[str]) -> Expr:
    """The position in a tensor of these axes as one number."""
    total: Expr = Place(axes[0])
    for axis in axes[1:]:
        total = total * Size(axis) + Place(axis)
    return total

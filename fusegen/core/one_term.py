"""Sums of which every result has one term at most in each place: what reads and writes at positions that tensors tell.

    sum[v](where(index(v) == place, table, 0))      a gather: table[place], zero where there is no such element
    sum[n](where(index(v) == place, update, 0))     a scatter: result[place] += update, what has no place is left out

A scatter may also keep the largest or smallest of the updates for a place, or multiply them: then what stands elsewhere
is what that reduction starts from. The place is an integer that does not vary along v. That is all that an Op has of
indexing, so derivatives, forward mode and batches need no rules of their own: the gradient of one is the other. Kernels
read such an element where they need it (fuse/gather), and a scatter is a step of its own (fuse/products).
"""

from __future__ import annotations

import math
from collections.abc import Container

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.ir import Axes, Call, Const, Expr, Index, Op, Place, Reduce, refs, walk


def start(kind: str, dtype: DType) -> float:
    """What combined with anything leaves it as it is, by the kind of a reduction that scatters may be."""
    if kind in ("max", "min"):
        most = math.inf if dtype.is_float else 2 ** (8 * dtype.size - 1)
        return -most if kind == "max" else most if dtype.is_float else most - 1
    return {"sum": 0, "prod": 1}[kind]


# How updates for one place may be combined.
COMBINING = ("sum", "prod", "max", "min")


def _chosen(reduce: Reduce) -> list[tuple[str, Expr, Expr]]:
    """Of a reduction of what stands at one place along an axis: the axis, the place, and what is reduced."""
    match reduce.expr:
        case Call("where", (Call("eq", (a, b)), value, Const(elsewhere))) if (
            a.dtype is dtypes.int64 and reduce.kind in COMBINING and elsewhere == start(reduce.kind, value.dtype)
        ):
            pairs = [(here, place) for here, place in ((a, b), (b, a)) if isinstance(here, (Index, Place))]
            return [(axis, place, value) for here, place in pairs for axis in _one_axis(here)]
    return []


def _one_axis(here: Index | Place) -> tuple[str, ...]:
    if isinstance(here, Index):
        return (here.axis,)
    return here.axes if len(here.axes) == 1 else ()


def gathered(
    reduce: Reduce, along: Axes, free: Container[str], walked: Container[str] | None = None
) -> tuple[str, Expr, Expr] | None:
    """Of a gather: the axis, the place, and what is read there.

    None also where the place leads to no other elements than a row has (a class's score among all of them), if
    something walks over the row: it finds it on its way.

    Args:
        along: the axes that things vary along.
        free: names of what can be read anywhere: operands and scalars.
        walked: names of what something else reads; None: of everything.
    """
    for axis, place, value in _chosen(reduce):
        own, read = along.of(place), refs(value)
        known = all(isinstance(ref, Place) or ref.name in free for ref in (*refs(place), *read))
        tables = [ref for ref in read if not isinstance(ref, Place) and axis in along.of(ref)]
        leads_on = not tables or bool(own - frozenset().union(*map(along.of, tables)))
        alone = walked is not None and not any(ref.name in walked for ref in tables)
        if reduce.kind == "sum" and reduce.over == (axis,) and known and axis not in own and (leads_on or alone):
            return axis, place, value
    return None


def scattered(reduce: Reduce, along: Axes) -> tuple[str, Expr, Expr] | None:
    """Of a scatter: the axis, the place, and what is combined there."""
    for axis, place, value in _chosen(reduce):
        own = along.of(place)
        if axis not in own | along.of(value) and not {axis}.intersection(reduce.over) and own.intersection(reduce.over):
            return axis, place, value
    return None


def scatters(op: Op) -> dict[str, tuple[str, Expr, Expr]]:
    """The scatters of an op, by name, with lets expanded."""
    if not any(isinstance(node, Index) for node in walk([statement.expr for statement in op.statements])):
        return {}
    along = Axes(op.axes_of())
    found = {reduce.name: scattered(reduce, along) for reduce in op.expand()[0]}
    return {name: scatter for name, scatter in found.items() if scatter is not None}

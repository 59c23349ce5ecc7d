"""Sums with one term become reads: ``sum[v](where(index(v) == place, f(table), 0))`` is f of the table's element there.

That is how a declaration says ``table[place]``, so that its derivatives need no rules of their own. A kernel reads the
element where it needs it, like any operand (`Gathered`), and what does not vary along the axis shares its pass.

A sum along which the place does not lead to other elements than the row has (a class's score among all) stays one: a
pass over the row finds it on its way, or picks it (fuse/row_kernel.picked_by).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusegen.core.ir import Axes, Call, Const, Expr, Op, Operand, Output, Place, Reduce, Size, Substitution, call, const, refs
from fusegen.core.subexpressions import safe_name
from fusegen.core import dtypes
from fusegen.fuse.kernel import Gathered


def gathering(op: Op, reduces: Sequence[Reduce], outputs: Sequence[Output], along: Axes) -> tuple[Op, list[Reduce], list[Output]]:
    """The op's reductions and results with reads in place of such sums, and the op that reads so.

    Args:
        reduces, outputs: of the op, expanded, with positions as references.
        along: the axes of what they read.
    """
    gatherer = _Gatherer(op, along)
    values = Substitution({})
    left: list[Reduce] = []
    for reduce in reduces:
        reduce = replace(reduce, expr=values.of(reduce.expr))
        found = gatherer.read(reduce)
        if found is None:
            left.append(reduce)
        else:
            values.put(reduce.ref, found)
    if not gatherer.found:
        return op, list(reduces), list(outputs)
    return (
        replace(op, operands=(*op.operands, *gatherer.found.values())), left,
        [replace(output, expr=values.of(output.expr)) for output in outputs],
    )  # fmt: skip


class _Gatherer:
    """What one op gathers, each element of a table at one place once."""

    def __init__(self, op: Op, along: Axes) -> None:
        self.op, self.along = op, along
        self.operands = {operand.ref: operand for operand in op.operands}
        self.free = {thing.name for thing in (*op.operands, *op.scalars)}
        self.taken = {thing.name for thing in (*op.operands, *op.scalars, *op.statements, *op.outputs)}
        self.found: dict[tuple[str, Expr], Gathered] = {}

    def read(self, reduce: Reduce) -> Expr | None:
        """What a sum with one term is, read where it stands."""
        picked = picked_place(reduce)
        if picked is None:
            return None
        axis, place, value = picked
        known = all(ref.name in self.free or isinstance(ref, Place) for ref in refs(place, value))
        leads_on = self.along.of(place) - self.along.of(value)
        if not known or not leads_on or axis in self.along.of(place):
            return None
        values: dict[Expr, Expr] = {Place(axis): place}
        tables = [ref for ref in refs(value) if ref in self.operands and axis in self.operands[ref].shape]
        if any(isinstance(ref, Place) and axis in ref.axes and len(ref.axes) > 1 for ref in refs(place, value)):
            return None
        for ref in tables:
            values[ref] = self._gathered(self.operands[ref], axis, place).ref
        found = Substitution(values).of(value)
        if value in self.operands and tables:
            return found  # zero by itself where there is no such place
        inside = call("logical_and", call("ge", place, const(0, place.dtype), dtype=dtypes.bool_),
                      call("lt", place, Size(axis), dtype=dtypes.bool_), dtype=dtypes.bool_)
        return call("where", inside, found, const(0, value.dtype), dtype=value.dtype)

    def _gathered(self, table: Operand, axis: str, place: Expr) -> Gathered:
        key = table.name, place
        if key not in self.found:
            name = safe_name(f"{table.name}_at", self.taken)
            self.taken.add(name)
            axes = [a for a in table.shape if a and a != axis]
            axes += sorted(self.along.of(place) - set(axes))
            self.found[key] = Gathered(name, table.dtype, tuple(axes), table=table, axis=axis, place=place)
            self.along.known = {**self.along.known, name: frozenset(axes)}
        return self.found[key]


def picked_place(reduce: Reduce) -> tuple[str, Expr, Expr] | None:
    """Of a sum over one axis with one term: the axis, the place, and what is summed."""
    match reduce.kind, reduce.over, reduce.expr:
        case "sum", (axis,), Call("where", (Call("eq", (a, b)), value, Const(0))):
            for here, place in ((a, b), (b, a)):
                if here is Place(axis) and place.dtype is dtypes.int64:
                    return axis, place, value
    return None

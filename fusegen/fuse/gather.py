"""Sums with one term become reads: ``sum[v](where(index(v) == place, f(table), 0))`` is f of the table's element there.

That is how a declaration says ``table[place]``, so that its derivatives need no rules of their own. A kernel reads the
element where it needs it, like any operand (`Gathered`), and what does not vary along the axis shares its pass.

A sum along which the place does not lead to other elements than the row has (a class's score among all) stays one where
something else walks over the row: it finds it on its way, or picks it (fuse/row_kernel.picked_by).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusegen.core import dtypes
from fusegen.core.intervals import Deciding, conditions, every
from fusegen.core.ir import (
    Axes,
    Call,
    Const,
    Expr,
    Op,
    Operand,
    Output,
    Place,
    Reduce,
    Ref,
    Rewriting,
    Size,
    Substitution,
    axis_order,
    call,
    const,
    is_call,
    names_read,
    own_size,
    refs,
    transform,
)
from fusegen.core.one_term import gathered
from fusegen.core.rewriting import Folding
from fusegen.core.subexpressions import live_reduces, safe_name
from fusegen.fuse.kernel import Gathered

# Numbers of places that are added up. What is not about places (a hash) is left as it is.
MOST_ADDED_UP = 2**31


def gathering(
    op: Op, reduces: Sequence[Reduce], outputs: Sequence[Output], along: Axes
) -> tuple[Op, list[Reduce], list[Output]]:
    """The op's reductions and results with reads in place of such sums, and the op that reads so.

    Args:
        reduces, outputs: of the op, expanded, with positions as references.
        along: the axes of what they read.
    """
    gatherer = _Gatherer(op, along, outputs)
    gatherer.walked = names_read([*(r for r in reduces if not gatherer.picks(r)), *outputs])
    values = Substitution({})
    left: list[Reduce] = []
    for reduce in reduces:
        reduce = gatherer.along_fewer(replace(reduce, expr=values.of(reduce.expr)))
        found = gatherer.read(reduce)
        if found is None and (apart := gatherer.picked_apart(reduce)) is not None:
            picks, found = apart
            left += [pick for pick in picks if pick not in left]
        if found is None:
            left.append(reduce)
        else:
            values.put(reduce.ref, found)
    if left == list(reduces):
        return op, left, list(outputs)
    results = [replace(output, expr=values.of(output.expr)) for output in outputs]
    simple = Rewriting(_Conditions(gatherer.gathered))
    # A place that is added up, and a condition that is decided, may be all that varied.
    folding = Folding(along.known, outputs, gatherer.taken)
    for reduce in left:
        folding.add(replace(reduce, expr=simple.of(reduce.expr)))
    results = [replace(output, expr=folding.values.of(simple.of(output.expr))) for output in results]
    read = live_reduces(folding.reduces, results)  # of what is selected nowhere nothing is computed
    return replace(op, operands=(*op.operands, *gatherer.found.values())), read, results


class _Conditions(Deciding):
    """Conditions of one place are one, those that sizes decide are gone, and so are those that a read asks itself: it
    is zero where there is no such element."""

    def __init__(self, gathered: Mapping[str, Gathered]) -> None:
        super().__init__()
        self.gathered = gathered

    def __call__(self, node: Expr) -> Expr:
        node = super().__call__(_added_up(node))
        match node:
            case Call("where", (condition, Ref(name=name) as value, Const(0))) if name in self.gathered:
                places = self.gathered[name].places
                asked = conditions(condition)
                left = [each for each in asked if not any(_is_within(each, *told) for told in places)]
                if len(left) == len(asked):
                    return node
                return call("where", every(left), value, node.children[2], dtype=node.dtype) if left else value
        return node


def _is_within(condition: Expr, axis: str, place: Expr) -> bool:
    """Whether a condition holds wherever there is an element at this place along an axis."""
    size = own_size(axis)
    match condition:
        case Call("ge", (asked, Const(least))):
            return asked == place and least <= 0
        case Call("lt", (asked, Size(axis=other))):
            return asked == place and other == axis
        case Call("lt", (asked, Const(most))):
            return asked == place and size is not None and size <= most
    return False


class _Gatherer:
    """What one op gathers, each element of a table at one place once."""

    def __init__(self, op: Op, along: Axes, outputs: Sequence[Output]) -> None:
        self.op, self.along, self.outputs = op, along, outputs
        self.operands: dict[Expr, Operand] = {operand.ref: operand for operand in op.operands}
        self.free = {thing.name for thing in (*op.operands, *op.scalars)}
        self.taken = {thing.name for thing in (*op.operands, *op.scalars, *op.statements, *op.outputs)}
        self.found: dict[tuple[str, tuple[tuple[str, Expr], ...]], Gathered] = {}
        self.gathered: dict[str, Gathered] = {}
        self.picks_made: dict[Expr, Reduce] = {}
        self.walked: set[str] = set()

    def picks(self, reduce: Reduce) -> bool:
        """Whether it has one term, as far as it goes."""
        return gathered(reduce, self.along, self.free, ()) is not None

    def along_fewer(self, reduce: Reduce) -> Reduce:
        """A sum over several axes with one term along one of them: the sum over the others of what is read there."""
        if reduce.kind != "sum" or len(reduce.over) < 2:
            return reduce

        def readers(axis: str) -> int:
            return sum(axis in self.along.of(ref) for ref in refs(reduce.expr))

        for axis in sorted(reduce.over, key=readers):
            rest = tuple(other for other in reduce.over if other != axis)
            found = self.read(replace(reduce, over=(axis,)))
            if found is not None and set(rest) <= self.along.of(found):
                return self.along_fewer(replace(reduce, expr=found, over=rest))
        return reduce

    def read(self, reduce: Reduce) -> Expr | None:
        """What a sum with one term is, read where it stands."""
        picked = gathered(reduce, self.along, self.free, self.walked)
        if picked is None:
            return None
        axis, place, value = picked[0], _folded(picked[1]), picked[2]
        found = self._at(value, axis, place)
        if self._is_zero_elsewhere(value, axis):
            return found
        above = call("ge", place, const(0, place.dtype), dtype=dtypes.bool_)
        below = call("lt", place, Size(axis), dtype=dtypes.bool_)
        inside = call("logical_and", above, below, dtype=dtypes.bool_)
        return call("where", inside, found, const(0, value.dtype), dtype=value.dtype)

    def picked_apart(self, reduce: Reduce) -> tuple[list[Reduce], Expr] | None:
        """A sum with one term of what is computed of a row's element, as what picks that element, and what is computed
        of it: once a row. None of other sums, and where it is the element of an operand already. None also where
        results are written all along the row: something walks over it anyway, and the memory may be the row's own."""
        chosen = gathered(reduce, self.along, self.free, ())
        if chosen is None:
            return None
        axis, place, value = chosen
        tables = [ref for ref in refs(value) if not isinstance(ref, Place) and axis in self.along.of(ref)]
        if not tables or value in self.operands or any(ref not in self.operands for ref in tables):
            return None
        if any({axis, *self.along.of(place)} <= {*output.shape} for output in self.outputs):
            return None
        here = call("eq", Place(axis), place, dtype=dtypes.bool_)
        values: dict[Expr, Expr] = {Place(axis): place}
        picks: list[Reduce] = []
        for table in tables:
            expr = call("where", here, table, const(0, table.dtype), dtype=table.dtype)
            if expr not in self.picks_made:
                name = safe_name(f"{table.name}_picked", self.taken)
                self.taken.add(name)
                self.picks_made[expr] = Reduce(name, "sum", expr, (axis,))
                self.along.known = {**self.along.known, name: self.along.of(expr) - {axis}}
            picks.append(self.picks_made[expr])
            values[table] = picks[-1].ref
        inside = [
            call("ge", place, const(0, place.dtype), dtype=dtypes.bool_),
            call("lt", place, Size(axis), dtype=dtypes.bool_),
        ]
        found = Substitution(values).of(value)
        return picks, call("where", every(inside), found, const(0, value.dtype), dtype=value.dtype)

    def _is_zero_elsewhere(self, value: Expr, axis: str) -> bool:
        """Whether it is read along the axis, and so is zero by itself where there is no such place."""
        if isinstance(value, Ref) and value.name in self.gathered:
            return axis in self._left(self.gathered[value.name])
        return value in self.operands and axis in self.operands[value].shape

    def _at(self, value: Expr, axis: str, place: Expr) -> Expr:
        """A value at one place along an axis."""
        values: dict[Expr, Expr] = {Place(axis): place}
        for ref in refs(value):
            if not isinstance(ref, Place) and axis in self.along.of(ref):
                values[ref] = self._element(ref, axis, place)
        return Substitution(values).of(value)

    def _element(self, ref: Ref, axis: str, place: Expr) -> Expr:
        """What the tensor, or what is gathered already, is there."""
        known = self.gathered.get(ref.name)
        if known is None:
            return self._gathered(self.operands[ref], ((axis, place),))
        places = [(other, _folded(self._at(where, axis, place))) for other, where in known.places]
        own = [(axis, place)] if axis in self._left(known) else []
        return self._gathered(known.table, (*places, *own))

    @staticmethod
    def _left(gathered: Gathered) -> set[str]:
        """The axes of the table along which all of it is there still."""
        return {axis for axis in gathered.table.shape if axis} - {axis for axis, _ in gathered.places}

    def _gathered(self, table: Operand, places: tuple[tuple[str, Expr], ...]) -> Expr:
        places = tuple((axis, place) for axis, place in places if place != Place(axis))  # but for its own
        if not places:
            return table.ref
        key = table.name, places
        if key not in self.found:
            name = safe_name(f"{table.name}_at", self.taken)
            self.taken.add(name)
            self.free.add(name)
            told = {axis for axis, _ in places}
            axes = [axis for axis in table.shape if axis and axis not in told]
            varying = frozenset[str]().union(*(self.along.of(place) for _, place in places))
            axes += sorted(varying - set(axes), key=axis_order)
            self.found[key] = Gathered(name, table.dtype, tuple(axes), table=table, places=places)
            self.gathered[name] = self.found[key]
            self.along.known = {**self.along.known, name: frozenset(axes)}
        return self.found[key].ref


def _folded(place: Expr) -> Expr:
    """A place with what is added up in it as one term for each tensor, size or position, and the number last: slices of
    slices then read an element once, however many ways lead to it, at a border that holds places in (clamp) as well."""
    return transform([place], _added_up)[place]


def _added_up(node: Expr) -> Expr:
    """A sum of integers with its terms as above. Anything else as it is."""
    if node.dtype is not dtypes.int64 or not (is_call(node, "add") or is_call(node, "sub")):
        return node
    far, counts, multiplied = 0, dict[Expr, int](), set[Expr]()
    left: list[tuple[Expr, int]] = [(node, 1)]
    while left:
        term, count = left.pop()
        if term.dtype is not dtypes.int64:
            return node
        match term:
            case Const(number):
                far += count * int(number)
            case Call("mul", (Const(number), Const(times))):
                far += count * int(number) * int(times)
            case Call("add", (a, b)):
                left += [(b, count), (a, count)]
            case Call("sub", (a, b)):
                left += [(b, -count), (a, count)]
            case Call("mul", (Const(number), factor)) | Call("mul", (factor, Const(number))):
                counts[factor] = counts.get(factor, 0) + count * int(number)
                multiplied.add(factor)
            case _:
                counts[term] = counts.get(term, 0) + count
    terms = sorted(((term, count) for term, count in counts.items() if count), key=lambda pair: pair[1] < 0)
    if not terms or terms[0][1] < 0 or any(abs(number) > MOST_ADDED_UP for number in (far, *counts.values())):
        return node
    found: Expr | None = None
    for term, count in terms:
        if term in multiplied or abs(count) > 1:
            term = call("mul", term, const(abs(count), dtypes.int64), dtype=dtypes.int64)
        found = term if found is None else call("add" if count > 0 else "sub", found, term, dtype=dtypes.int64)
    assert found is not None
    if far:
        found = call("add" if far > 0 else "sub", found, const(abs(far), dtypes.int64), dtype=dtypes.int64)
    return found

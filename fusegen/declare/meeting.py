"""A tensor that meets itself along another dimension: ``x[:, None] - x[None]``, ``x + x.mT``.

Broadcasting makes two axes one. Where that would leave some tensor with one axis twice, each element would meet only
its mirror image. So what meets itself is read once more, at its own places, along an axis of its own: a sum of one term
(core/one_term) that kernels read like any operand. Derivatives follow from that, each role's own, and add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusegen.core.ir import Ref, walk
from fusegen.declare.axes import AxisVar, Dims, are_same, leaves
from fusegen.declare.indexing import along, another, holds_no_data
from fusegen.declare.value import Value, current, unify


def met_apart(values: Sequence[Value], what: str) -> Sequence[Value]:
    """The values, as they may be broadcast against each other: those that meet themselves along other axes."""
    if sum(bool(value.dims) for value in values) < 2:
        return values
    return _Meeting(values, what).run() if _may_clash(values) else values


def _may_clash(values: Sequence[Value]) -> bool:
    """Whether broadcasting might make two axes one that some tensor has both."""
    rank = max(len(value.dims) for value in values)
    at: dict[AxisVar, int] = {}
    columns: list[set[AxisVar]] = [set() for _ in range(rank)]
    for value in values:
        for position, dim in enumerate(value.dims, start=rank - len(value.dims)):
            if dim is not None:
                columns[position].add(dim.find())
                if any(at.setdefault(axis, position) != position for axis in leaves([dim])):
                    return True
    met = {position for position, column in enumerate(columns) if len(column) > 1}
    if not met:
        return False
    for _, dims in current().tensors():
        found = [at[axis] for axis in leaves(dims) if at.get(axis, -1) in met]
        if len(set(found)) < len(found):
            return True
    return False


class _Meeting:
    """Values that are about to be broadcast against each other; axes become one as they can."""

    def __init__(self, values: Sequence[Value], what: str) -> None:
        self.values, self.what = list(values), what
        self.rank = rank = max(len(value.dims) for value in values)
        self.tracer = current()
        self.dims: list[AxisVar | None] = [None] * rank
        self.placed: list[int] = []
        self.may_read = not self.tracer.multiplies or self.tracer.separate_product_axes

    def run(self) -> Sequence[Value]:
        for number in sorted(range(len(self.values)), key=lambda number: _cost(self.values[number]), reverse=True):
            self.placed.append(number)
            for place in range(-len(self.values[number].dims), 0):
                if not self._place(number, place):
                    return self.values  # which broadcasting refuses, and says why
        return self.values

    def _place(self, number: int, place: int) -> bool:
        """One dimension of one value; whether it could be."""
        dim, position = self.values[number].dims[place], place + self.rank
        if dim is None:
            return True
        others = leaves(own for at, own in enumerate(self.dims) if at != position)
        again = False
        if any(axis in others for axis in leaves([dim])):
            if (dim := self._read_again(number, dim)) is None:
                return False
            again = True
        before = self.dims[position]
        if before is None:
            self.dims[position] = dim
            return True
        if are_same(before, dim):
            return True
        if before.size != dim.size:
            return False
        if not again and not self._may_be_one(before, dim, position):
            dim = self._read_again(number, dim)
        if dim is None:
            return False
        if not self._may_be_one(before, dim, position):  # what was there first is in its way, too
            before = self._all_again(position, number, before)
            if before is None or not self._may_be_one(before, dim, position):
                return False
        unify(before, dim, self.what, [value for value in self.values if value.dims])
        self.dims[position] = before.find()
        return True

    def _may_be_one(self, a: AxisVar, b: AxisVar, position: int) -> bool:
        """Whether no tensor would have one axis twice, were these two the same."""
        first, second = set(leaves([a])), set(leaves([b]))
        first, second = first - second, second - first
        so_far = tuple(dim for at, dim in enumerate(self.dims) if at != position)
        each = (value.dims for value in self.values)  # an expanded one has dimensions that no tensor has
        tensors: Iterable[Dims] = (*(dims for _, dims in self.tracer.tensors()), *each, (*so_far, a), (*so_far, b))
        for dims in tensors:
            axes = set(leaves(dims))
            if axes & first and axes & second:
                return False
        return True

    def _all_again(self, position: int, own: int, dim: AxisVar) -> AxisVar | None:
        """What has been placed so far along another axis than this one of the result."""
        made = None
        for number in self.placed:
            place = position - self.rank
            if number == own or len(self.values[number].dims) < -place or self.values[number].dims[place] is None:
                continue
            found = self._read_again(number, dim, made)
            if found is None:
                return None
            made = found
        self.dims[position] = made
        return made

    def _read_again(self, number: int, dim: AxisVar, made: AxisVar | None = None) -> AxisVar | None:
        """One value along a new axis in the place of ``dim``; None where that is not to be done here."""
        value = self.values[number]
        if not self.may_read and not holds_no_data(value):
            return None
        made = another(dim) if made is None else made
        self.values[number] = along(value, dim, made)
        return made


def _cost(value: Value) -> int:
    """Of two that meet the one of lower cost is read again: nothing for positions; for a tensor, or what is computed of
    one element by element, a read where it stands; for what has been reduced a tensor in memory."""
    if holds_no_data(value):
        return 0
    reduced = {reduce.name for reduce, _ in current().reduces}
    return 2 if any(isinstance(node, Ref) and node.name in reduced for node in walk([value.expr])) else 1

"""What a row kernel is: a pass that keeps each row on chip from its first reduction to its last use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusegen.core.ir import (
    Call,
    Computed,
    Const,
    Expr,
    Let,
    Operand,
    Output,
    Place,
    Reduce,
    Ref,
    Statement,
    expr_axes,
    names_read,
    refs,
    walk,
)
from fusegen.core.locks import cached_property
from fusegen.fuse import cost
from fusegen.fuse.kernel import Kernel

GROUP_AXIS, TILE_AXIS, SHARE_AXIS = "groups", "pieces", "shares"
"""The axes of partial sums, by their names in CUDA text: the group of rows, the tile of a row, or the block's share
of a segment that a partial sum is of."""


@dataclass(frozen=True)
class Stage:
    """One walk over the row: ``lets`` and ``reduces`` at every element, then ``after`` once for the row."""

    lets: tuple[Let, ...]
    reduces: tuple[Reduce, ...]
    after: tuple[Let, ...]


@dataclass(frozen=True)
class RowKernel(Kernel):
    """A kernel whose rows stay on chip.

    ``before`` is computed once a row, then follow the ``stages``, then ``body``, ``pointwise`` and the ``columns``
    (sums over rows) at every element, then ``outputs`` once a row. ``row_tiles``: nothing waits for a row's sums, so a
    block takes a tile of a row. The partial sums of tiles are then stored as ``partials``, like those of the columns.

    ``within``: the axes along which each row adds up partial sums of larger sums; empty where it has none. If these
    axes are not all of a row's, they make up ``segments`` of the row, whose partial sums are stored as ``shares``.

    ``slices``: kept axes that some of the ``columns`` are not summed along. The rows of a block are all at one place
    along these, and so is each partial sum of a column.
    """

    before: tuple[Let, ...] = ()
    stages: tuple[Stage, ...] = ()
    columns: tuple[Reduce, ...] = ()
    row_tiles: bool = False
    within: tuple[str, ...] = ()
    segments: tuple[Reduce, ...] = ()
    shares: tuple[Output, ...] = ()
    slices: tuple[str, ...] = ()

    @property
    def items(self) -> tuple[Let | Reduce | Output, ...]:
        """Everything the kernel computes, in order, each once."""
        found: list[Let | Reduce | Output] = [*self.before]
        for stage in self.stages:
            found += [*stage.lets, *stage.reduces, *stage.after]
        found += [*self.body, *self.pointwise, *self.columns, *self.segments, *self.outputs, *self.shares]
        return tuple(dict.fromkeys(found))

    @property
    def reducing(self) -> tuple[Let | Reduce | Output, ...]:
        """Of a row that is read in chunks: what its one stage computes at each element."""
        (stage,) = self.stages
        lets = (*self.before, *stage.lets)
        return (*Needed(lets).among(lets, stage.reduces), *stage.reduces)

    @property
    def ending(self) -> tuple[Let | Output, ...]:
        """Of a row that is read in chunks: what follows from its one stage."""
        return (*Needed(self.epilogue).among(self.epilogue, self.outputs), *self.outputs)

    @cached_property
    def final_stage(self) -> Stage | None:
        """The last stage, if nothing in the kernel reads its results at its elements: no walk follows it."""
        stage, items = self.stages[-1] if self.stages else None, (*self.pointwise, *self.columns, *self.segments)
        if stage is None or self.row_tiles:
            return stage
        waited_for = {item.name for item in (*stage.reduces, *stage.after)}
        read = names_read([*self.body, *items])
        return stage if items and not (read & waited_for or any(map(coupled, stage.reduces))) else None

    @property
    def is_walked_once(self) -> bool:
        """Whether one walk over a row computes all that it has."""
        return self.final_stage is self.stages[0] if self.stages else self.row_tiles

    @property
    def has_sums_of_rows(self) -> bool:
        """Whether it reduces, and over nothing but its rows."""
        return bool(self.reduces) and all(set(r.over) == set(self.over) for r in self.reduces)

    @property
    def begun(self) -> tuple[Output, ...]:
        """What it leaves of sums that go on over rows."""
        own = {thing.name for thing in (*self.op.outputs, *self.reduces)} if self.within else set()
        return (*(o for o in self.outputs if self.within and o.name not in own), *self.shares)


def as_row_kernel(kernel: Kernel) -> RowKernel | None:
    """A kernel of reductions as one of rows, which share a block if they are short, and are read in chunks if they are
    long: it is cheaper, and more exact, to add chunks of elements to states than one element after the other. None
    where it has one result."""
    if not kernel.reduces or not (kernel.kept or any(map(coupled, kernel.reduces))):
        return None
    axes = {o.name: frozenset(a for a in o.shape if a) for o in kernel.operands}
    axes.update({scalar.name: frozenset() for scalar in kernel.scalars})
    for let in kernel.body:
        axes[let.name] = expr_axes(let.expr, axes)
    each = tuple(let for let in kernel.body if axes[let.name] & set(kernel.over))
    before = tuple(let for let in kernel.body if let not in each)
    return RowKernel(
        kernel.name, kernel.op, kernel.space, kernel.over, kernel.operands, kernel.scalars,
        each if kernel.pointwise else (), kernel.reduces, (*before, *kernel.epilogue), kernel.outputs,
        kernel.pointwise, before=before,
        stages=(Stage(each, kernel.reduces, kernel.epilogue),),
    )  # fmt: skip


def row_cost(kernel: RowKernel) -> int:
    """What a row kernel computes once a row that a kernel without rows computes at every element (`Function.cost`)."""
    nodes = walk([item.expr for item in (*kernel.before, *kernel.body, *kernel.pointwise)])
    return cost.of([node for node in nodes if not kernel.is_of_elements(node)])


def element_cost(kernel: RowKernel) -> int:
    """What it computes at every element, each thing once (`Function.cost`)."""
    return cost.of([node for node in walk([item.expr for item in kernel.items]) if kernel.is_of_elements(node)])


def picked_by(reduce: Reduce, kernel: Kernel) -> tuple[Expr, Operand] | None:
    """Of a sum with one term, ``where(index == place, x, 0)`` with the position along what is summed: the place, and
    the operand x. None where elements are written, be it over the operand: the walk that writes them finds it."""
    if kernel.pointwise:
        return None
    match reduce.kind, reduce.expr:
        case "sum", Call("where", (condition, value, Const(0))):
            if isinstance(condition, Ref):  # which several have in common
                lets = (item for item in kernel.items if isinstance(item, Let))
                condition = next((let.expr for let in lets if let.ref is condition), condition)
            operand = next((o for o in kernel.tensors if o.ref is value), None)
            match condition:
                case Call("eq", (Place() as here, place) | (place, Place() as here)) if operand is not None:
                    return None if isinstance(place, Place) or here.axes != reduce.over else (place, operand)
    return None


def coupled(reduce: Reduce) -> bool:
    """Whether it comes as a pair with another reduction of the same elements."""
    return reduce.kind in ("squared_deviation", "sum_exp")


def levels(reduces: Iterable[Reduce]) -> dict[str, int]:
    """1 for a reduction that needs none of the others, else one more than what it needs; each follows what it needs."""
    found: dict[str, int] = {}
    below: dict[Expr, int] = {}
    for reduce in reduces:
        for node in walk([reduce.expr], below):
            own = found.get(node.name, 0) if isinstance(node, Ref) else 0
            below[node] = max((below[child] for child in node.children), default=own)
        found[reduce.name] = 1 + below[reduce.expr]
    return found


class Needed:
    """Which statements others need, directly or not; each expression is walked once.

    Args:
        statements: each behind those that it reads. A reduction stands for itself, not for what it reads.
    """

    def __init__(self, statements: Iterable[Statement]) -> None:
        self.bits: dict[str, int] = {}  # of each name one, as a set of names is a number
        self.behind: dict[str, int] = {}
        for statement in statements:
            bit = self.bits[statement.name] = 1 << len(self.bits)
            self.behind[statement.name] = bit | (self._read(statement) if isinstance(statement, Let) else 0)

    def among(self, lets: Iterable[Let], items: Iterable[Reduce | Output]) -> tuple[Let, ...]:
        """The lets that the items need, in order."""
        wanted = 0
        for item in items:
            wanted |= self._read(item)
        return tuple(let for let in lets if wanted & self.bits[let.name])

    def _read(self, item: Computed) -> int:
        found = 0
        for ref in refs(item.expr):
            found |= self.behind.get(ref.name, 0)
        return found

"""What a kernel is: statements that share one launch, and what they read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fusegen.core.intervals import Intervals
from fusegen.core.ir import (
    Axes,
    Call,
    Const,
    Expr,
    Let,
    Op,
    Operand,
    Output,
    Place,
    Reduce,
    Ref,
    Scalar,
    Shape,
    axis_order,
    names_read,
    own_size,
    refs,
)
from fusegen.core.locks import cached_property
from fusegen.core.monoids import BY_KIND
from fusegen.core.subexpressions import ascii_name, safe_name
from fusegen.core.within import bare


@dataclass(frozen=True)
class Position(Operand):
    """The position along an axis, or in the tensor that several make up, as kernels read it: like an operand, but from
    no memory."""

    @classmethod
    def of(cls, place: Place) -> Position:
        return cls(place.name, place.dtype, place.axes)

    @property
    def ref(self) -> Place:
        return Place(*filter(None, self.shape))


@dataclass(frozen=True)
class Gathered(Operand):
    """The elements of a tensor at positions along some of its axes that other tensors tell: like an operand of the axes
    that are left and of those that the positions vary along. Zero where there is no such position.

    Attributes:
        table: the tensor.
        places: by axis of the table the position, from 0, in terms of what the kernel reads.
    """

    table: Operand = field(kw_only=True)
    places: tuple[tuple[str, Expr], ...] = field(kw_only=True)

    @cached_property
    def shifts(self) -> Mapping[str, tuple[str | None, int]]:
        """By axis of the table, where its place is a position and a number more, that position's axis and the number:
        there an element lies as far on as elements of an operand do. Of a number alone the axis is None."""
        found = {axis: _shift(place) for axis, place in self.places}
        return {axis: shift for axis, shift in found.items() if shift is not None}

    @cached_property
    def asked(self) -> tuple[tuple[str, Expr], ...]:
        """The places that may be nowhere, as far as sizes tell, and those that must be looked up: without shifts that
        lead to an element from everywhere."""
        known = Intervals()

        def is_there(axis: str, place: Expr) -> bool:
            (least, most), size = known.of(place), own_size(axis)
            return axis in self.shifts and least >= 0 and size is not None and most < size

        return tuple((axis, place) for axis, place in self.places if not is_there(axis, place))

    @property
    def along(self) -> tuple[str | None, ...]:
        """The axes that the table's dimensions lead along in memory: None of what is looked up."""
        told = {axis: self.shifts[axis][0] if axis in self.shifts else None for axis, _ in self.places}
        return tuple(told.get(axis, axis) if axis else None for axis in self.table.shape)

    @property
    def reads(self) -> list[Ref]:
        """What tells the positions."""
        return refs(*(place for _, place in self.asked))

    @property
    def told_by(self) -> list[Ref]:
        """The same without what only reports read: where a place stands."""
        return refs(*(bare(place) for _, place in self.asked))

    def step(self, axis: str) -> str:
        """What the distance in memory of two neighbours along an axis is called among the sizes of axes."""
        return f"{self.name} step along {axis}"


def _shift(place: Expr) -> tuple[str | None, int] | None:
    """The axis of a position, and the number that is added to it; None of any other place."""
    match place:
        case Const(number):
            return None, int(number)
        case Place(axes=(axis,)):
            return axis, 0
        case Call("add", (Place(axes=(axis,)), Const(number))):
            return axis, int(number)
        case Call("sub", (Place(axes=(axis,)), Const(number))):
            return axis, -int(number)
    return None


def with_places(names: Iterable[str], gathered: Sequence[Gathered]) -> set[str]:
    """The names, and those that tell where the gathered ones among them are."""
    found = set(names)
    for operand in reversed(gathered):  # each behind those that tell its places
        found |= {ref.name for ref in operand.reads} if operand.name in found else set()
    return found


@dataclass(frozen=True)
class Kernel:
    """One launch.

    ``body`` is evaluated at every point of ``space``. Without ``reduces`` it ends in ``outputs``; with them, the
    reductions over the axes ``over`` follow, then ``epilogue`` and ``outputs`` at every point of the axes that remain;
    ``pointwise`` outputs are then written on the way, at every point of ``space``. ``partials``: what it leaves for
    later kernels to put together.
    """

    name: str
    op: Op
    space: tuple[str, ...]
    over: tuple[str, ...]
    operands: tuple[Operand, ...]
    scalars: tuple[Scalar, ...]
    body: tuple[Let, ...]
    reduces: tuple[Reduce, ...]
    epilogue: tuple[Let, ...]
    outputs: tuple[Output, ...]
    pointwise: tuple[Output, ...] = ()
    partials: tuple[Output, ...] = ()

    @property
    def items(self) -> tuple[Let | Reduce | Output, ...]:
        """Everything the kernel computes, in order."""
        return (*self.body, *self.pointwise, *self.reduces, *self.epilogue, *self.outputs)

    @cached_property
    def varying(self) -> Axes:
        """The axes that what it computes varies along."""
        axes = defaultdict[str, frozenset[str]](frozenset)
        axes.update({operand.name: frozenset(filter(None, operand.shape)) for operand in self.operands})
        found = Axes(axes)
        for item in self.items:
            if isinstance(item, Let):
                axes[item.name] = found.of(item.expr)
            elif isinstance(item, Reduce):
                axes[item.name] = found.of(item.expr) - frozenset(item.over)
        return found

    def is_of_elements(self, expr: Expr) -> bool:
        """Whether it is computed at every element: not once for a row, a result of a reduction, or all of it."""
        return bool(self.varying.of(expr) & frozenset(self.over or self.space))

    @property
    def reducing(self) -> tuple[Let | Reduce | Output, ...]:
        """What comes before the reductions' results: all that the first stage computes where a second one combines."""
        return (*self.body, *self.pointwise, *self.reduces)

    @property
    def ending(self) -> tuple[Let | Output, ...]:
        """What follows from the reductions' results."""
        return (*self.epilogue, *self.outputs)

    @cached_property
    def partners(self) -> dict[str, Reduce]:
        """Reductions by name that another one's state holds, and which: a sum beside the squared deviations of the
        same elements, a maximum beside their exponentials."""
        named: dict[tuple[str, Expr], list[str]] = {}
        for reduce in self.reduces:
            named.setdefault((reduce.kind, reduce.expr), []).append(reduce.name)
        found: dict[str, Reduce] = {}
        for reduce in self.reduces:
            kind = BY_KIND[reduce.kind].partner
            found.update(dict.fromkeys(named.get((kind, reduce.expr), ()), reduce) if kind else {})
        return found

    @cached_property
    def once(self) -> tuple[Let, ...]:
        """Of the body: what is the same for all elements of a result."""
        over = set(self.over)
        varying = {operand.name for operand in self.operands if not over.isdisjoint(operand.shape)}
        found = []
        for let in self.body:
            if varying.isdisjoint(names_read([let])):
                found.append(let)
            else:
                varying.add(let.name)
        return tuple(found)

    @cached_property
    def held(self) -> tuple[str, ...]:
        """What each element of a result reads of what is the same for all of them, if it differs between results."""
        once = set(self.once)
        along = {operand.name for operand in self.operands if any(operand.shape)}
        for let in self.once:
            along |= {let.name} if along & names_read([let]) else set()
        fixed = [o.name for o in self.operands if set(self.over).isdisjoint(o.shape)] + [let.name for let in self.once]
        each = [*(let for let in self.body if let not in once), *self.reduces, *self.pointwise]
        read = with_places(names_read(each), self.gathered)
        return tuple(name for name in fixed if name in along & read)

    @property
    def states(self) -> tuple[Reduce, ...]:
        """Reductions that have a state of their own."""
        partners = self.partners
        return tuple(r for r in self.reduces if r.name not in partners)

    @property
    def written(self) -> tuple[Output, ...]:
        """Every output."""
        return (*self.pointwise, *self.outputs)

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """Operands that lie in memory, and are read where the kernel is."""
        return tuple(operand for operand in self.operands if not isinstance(operand, (Position, Gathered)))

    @property
    def gathered(self) -> tuple[Gathered, ...]:
        """Operands that are read where others say."""
        return tuple(operand for operand in self.operands if isinstance(operand, Gathered))

    @property
    def streams(self) -> tuple[Operand, ...]:
        """What is read where strides say: tensors, and what is gathered a number of places away."""
        return (*self.tensors, *(o for o in self.gathered if len(o.shifts) == len(o.places)))

    @cached_property
    def memory(self) -> Mapping[str, str]:
        """By what is gathered whose pointer and strides it has: reads of one tensor that lie alike share them."""
        alike = {(o.name, o.shape): o.name for o in self.tensors}
        taken = {o.name for o in self.operands}
        found: dict[str, str] = {}
        for operand in self.gathered:
            table = operand.table.name
            key = table, operand.along
            if key not in alike:
                alike[key] = operand.name if table in taken else table
                taken.add(alike[key])
            found[operand.name] = alike[key]
        return found

    @property
    def kept(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.space if axis not in self.over)

    @property
    def finish(self) -> str:
        """What the kernel is called that combines the partial results of a reduction which this one splits."""
        return f"{self.name}_finish"

    @property
    def barriers(self) -> bool:
        """Whether threads of a block wait for each other."""
        return bool(self.reduces)


def _dtype_name(op: Op) -> str:
    """The dtype in a kernel's name: that of the first float result, else of the first thing there is."""
    things = [*op.outputs, *op.operands]
    return next((t.dtype.short for t in things if t.dtype.is_float), things[0].dtype.short)


def kernel_name(op: Op) -> str:
    """``lerp_backward_f32``."""
    return f"{ascii_name(op.name)}_{op.label.replace(' ', '_')}_{_dtype_name(op)}"


def partial_result(op: Op, reduce: Reduce, by: str, shape: Shape, before: Iterable[str] = ()) -> Output:
    """What a kernel leaves of a sum for a later one, called as nothing of the op's is, nor of the kernels' before it:
    all of them lie in memory."""
    taken = {*before} | {name for thing in (*op.operands, *op.outputs) for name in (thing.name, thing.base)}
    taken |= {thing.name for thing in (*op.scalars, *op.statements)}
    return Output(safe_name(f"{reduce.name}_by_{by}", taken), reduce.ref, reduce.expr.dtype, shape)


def read_by(
    op: Op, stored: Mapping[str, Operand], exprs: Sequence[Expr]
) -> tuple[tuple[Operand, ...], tuple[Scalar, ...]]:
    """What the expressions read: the op's operands, stored results, positions along axes; and scalars."""
    read, every = refs(*exprs), [o for o in op.operands if isinstance(o, Gathered)]
    names = with_places((ref.name for ref in read), every)
    gathered = [o for o in every if o.name in names]
    read += [ref for o in gathered for ref in o.reads]
    operands = [o for o in op.operands if o.name in names and not isinstance(o, Gathered)]
    operands += [o for name, o in stored.items() if name in names]
    positions = dict.fromkeys(Position.of(ref) for ref in read if isinstance(ref, Place))
    operands += sorted(positions, key=lambda p: [axis_order(str(axis)) for axis in p.shape])
    operands += gathered  # behind what says where
    return tuple(operands), tuple(s for s in op.scalars if s.name in names)

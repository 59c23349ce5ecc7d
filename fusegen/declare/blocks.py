"""Takes equal blocks of intermediates out of a trace: what is along an axis that is divided becomes as many things.

An argument in blocks is several operands, views of its memory; so a block of whatever is computed of it is that of its
blocks, and what stands side by side is written to blocks of one result. A sum over the axis is one over a block's, of
all blocks' elements added up; a product that contracts it is a sum of products. What is left is an Op like others, in
which nothing is along the divided axis.

Axes are taken out one by one. A product of matrices ties axes of its factors and of its result together under several
names: where one of these goes, blocks along the others are left behind, which go in their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from functools import reduce as reduce_by

from fusegen.core import dtypes, scans
from fusegen.core.blocks import Joined, Part
from fusegen.core.casts import converted, rounded
from fusegen.core.declared import Declared
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import (
    DOT,
    SCAN,
    Call,
    Const,
    Expr,
    Factor,
    Groups,
    Index,
    Op,
    Operand,
    Output,
    PackedBlock,
    Reduce,
    Ref,
    Size,
    asked_axes,
    axis_name,
    axis_order,
    computed_of,
    const,
    is_call,
    names_read,
    own_size,
    rebuild,
    refs,
    substitute,
    walk,
)
from fusegen.core.products import factors, product, renamed_axes
from fusegen.core.rewriting import folded
from fusegen.core.subexpressions import safe_name
from fusegen.core.views import dims_of
from fusegen.declare.table import apply

# What is along the axis is its blocks; anything else is itself.
Blocks = tuple[Expr, ...]


@dataclass
class Divided:
    """A trace as it becomes an Op, while axes are taken out.

    Attributes:
        where: the declaration, for errors.
        parts: of each axis that may go, how many blocks it has, and their axis (None: of size one).
        fresh: gives an axis name that nothing has.
        names: what the declaration calls intermediates.
        taken: names of the op's that blocks must not have.
        few: axes of a few elements, each of which is better a thing of its own.
        gone: the axes that have been taken out; ``kept`` those that could not be, and need not.
        grouped: the number's axis of each axis of blocks that lie in groups of one product's result.
    """

    where: str
    parts: dict[str, tuple[int, str | None]]
    fresh: Callable[[], str]
    operands: list[Operand]
    reduces: list[Reduce]
    outputs: list[Output]
    names: dict[Expr, str]
    taken: set[str] = field(default_factory=set)
    few: Sequence[str] = ()
    gone: list[str] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)
    grouped: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Take out all axes along which there are blocks of what is not an argument; and those along which arguments
        are read whole and in blocks, if that can be done: it is for their gradients.

        Raises:
            DeclarationError: something along an axis of the former kind cannot be divided.
        """
        while self.parts and (axis := self._next()) is not None:
            before = list(self.operands), dict(self.parts), set(self.taken)
            try:
                _Elimination(self, axis).run()
            except DeclarationError:
                if axis in self._in_blocks():
                    raise
                self.operands, self.parts, self.taken = before
                self.kept.add(axis)
            else:
                self.gone.append(axis)

    def renamed(self, op: Op) -> Op:
        """The Op with axes of blocks called as the axis was that is gone, in whose place they are."""
        left = {*op.axes, *asked_axes((*op.statements, *op.outputs))}
        names: dict[str, str] = {}
        for axis in self.gone:
            part = self.parts[axis][1]
            if part in left and axis not in left and axis_order(axis) < axis_order(part):
                here, there = axis_order(axis)[0], axis_order(part)[0]
                names |= {part: axis_name(here, own_size(part)), axis: axis_name(there, own_size(axis))}
                left = (left - {part}) | {names[part]}
        if self.grouped:  # the number of a group goes right before the elements of one, as they lie
            over = {axis for s in op.statements if isinstance(s, Reduce) for axis in s.over}  # products' own, too
            known: set[str] = {*op.axes, *over, *asked_axes((*op.statements, *op.outputs))} - {*self.grouped.values()}
            order: list[str] = []
            for axis in _in_order(known, names):
                order += [self.grouped[axis], axis] if axis in self.grouped else [axis]
            names |= {axis: axis_name(number, own_size(axis)) for number, axis in enumerate(order)}
        return renamed_axes(op, lambda axis: names.get(axis, axis)) if names else op

    def _next(self) -> str | None:
        """The axis to take out next: none that is a block's of another one that goes as well."""
        found = self._in_blocks() | dict.fromkeys(self._read_in_both_ways())
        found |= dict.fromkeys(axis for axis in self.few if axis not in self.gone)
        inner = {self.parts[axis][1] for axis in found}
        return next((axis for axis in found if axis not in inner and axis not in self.kept), None)

    def _in_blocks(self) -> dict[str, None]:
        """The axes that have to go."""
        nodes = list(walk([item.expr for item in (*self.reduces, *self.outputs)]))
        found = {node.whole: None for node in nodes if isinstance(node, (Part, Joined))}
        # What is put together, and asked for its size alone.
        carried = {axis for thing in (*self.operands, *self.outputs) for axis in thing.shape}
        asked = [node.axis for node in nodes if isinstance(node, Size) and node.axis in self.parts]
        return found | dict.fromkeys(axis for axis in asked if axis not in carried)

    def _read_in_both_ways(self) -> list[str]:
        """The axes along which arguments are read in blocks and whole, not by declared gradients alone."""
        nodes = walk([item.expr for item in (*self.reduces, *self.outputs)], children=computed_of)
        read = {node.name for node in nodes if isinstance(node, Ref)}
        wholes = {o.name: o for o in self.operands if o.packed is None and o.name in read}
        blocks = {o.packed.base: o.packed for o in self.operands if o.packed and o.name in read}
        both = [(wholes[base], block) for base, block in blocks.items() if base in wholes]
        axes = [_axes_of_dim(operand, block.dim) for operand, block in both]
        return [named[0] for named in axes if len(named) == 1 and named[0] in self.parts]

    def operand_at(self, operand: Operand, axis: str, index: int) -> Operand:
        """One block of an operand along an axis."""
        count, part = self.parts[axis]
        place = operand.shape.index(axis)
        packed = self._packed(operand, place, index, count)
        known = next((o for o in self.operands if o.packed == packed), None)
        if known is not None:
            return known
        name = safe_name(f"{operand.name}_{index}", self.taken)
        self.taken.add(name)
        shape = (*operand.shape[:place], part, *operand.shape[place + 1 :])
        made = Operand(name, operand.dtype, shape, packed, operand.groups)
        self.operands.insert(self.operands.index(operand), made)
        return made

    def outputs_at(self, output: Output, axis: str, blocks: Sequence[Expr]) -> list[Output]:
        """A result as blocks of one tensor."""
        count, part = self.parts[axis]
        place, made = output.shape.index(axis), list[Output]()
        for index, expr in enumerate(blocks):
            name = safe_name(f"{output.name}_{index}", self.taken)
            self.taken.add(name)
            shape = (*output.shape[:place], part, *output.shape[place + 1 :])
            packed = self._packed(output, place, index, count)
            made.append(replace(output, name=name, expr=expr, shape=shape, packed=packed))
        return made

    def _packed(self, thing: Operand | Output, place: int, index: int, count: int) -> PackedBlock:
        dim, outer = dims_of(thing)[place], thing.packed
        if outer is not None and outer.dim != dim:
            raise self.refused(f"{thing.base} in blocks along dimension {outer.dim} and along dimension {dim}")
        if any(groups.dim == dim for groups in thing.groups):
            raise self.refused(f"dimension {dim} of {thing.base} in groups, of which blocks are taken")
        if outer is None:
            return PackedBlock(thing.name, dim, index, count)
        return PackedBlock(outer.base, dim, outer.index * count + index, outer.count * count)

    def refused(self, given: str) -> DeclarationError:
        """The error of what has no blocks."""
        return DeclarationError(
            f"{self.where}, split or concat", given=given, expected="what can be divided along with its arguments",
            fix="pass the blocks as arguments of their own, or do this in an op of its own",
        )  # fmt: skip


def _in_order(axes: Iterable[str], names: Mapping[str, str]) -> list[str]:
    """Axes in the order of the names that they will have."""
    return sorted(axes, key=lambda axis: axis_order(names.get(axis, axis)))


def _wins(combine: str, before: Expr, own: Expr) -> Expr:
    """Whether the second of two is the extremum: it is where they tie."""
    wins = apply("ge" if combine == "max" else "le", own, before)
    return apply("logical_or", wins, apply("isnan", own)) if own.dtype.is_float else wins


def _last_winner(combine: str, before: Expr, own: Expr) -> Expr:
    """The extremum of two, of which the second has the gradient where they tie."""
    return apply("where", _wins(combine, before, own), own, before)


def _log_of_both(before: Expr, own: Expr) -> Expr:
    """log(exp(a) + exp(b)), also of infinities (`torch_functions.higher_and_apart`)."""
    first = apply("gt", before, own)
    high, low = apply("where", first, before, own), apply("where", first, own, before)
    alike = apply("logical_and", apply("eq", before, own), apply("isinf", before))
    apart = apply("where", alike, const(0, own.dtype), low - high)
    top = apply("where", alike, apply("maximum", before, own), high)
    return top + apply("log1p", apply("exp", apart))


def _axes_of_dim(thing: Operand, dim: int) -> list[str]:
    return [axis for axis, own in zip(thing.shape, dims_of(thing), strict=True) if own == dim and axis]


class _Along:
    """The axes that expressions of a trace are along, blocks and what is made of blocks among them."""

    def __init__(self, operands: Iterable[Operand]) -> None:
        self.known: dict[str, frozenset[str]] = {}
        self.found: dict[Expr, frozenset[str]] = {}
        for operand in operands:
            self.add(operand)

    def add(self, operand: Operand) -> None:
        """Note the axes of an operand."""
        self.known[operand.name] = frozenset(axis for axis in operand.shape if axis)

    def define(self, reduce: Reduce) -> None:
        """Note those of a reduction's result."""
        self.known[reduce.name] = self.of(reduce.expr) - set(reduce.over)

    def of(self, root: Expr) -> frozenset[str]:
        """The axes of an expression."""
        for node in walk([root], self.found):
            self.found[node] = self._node(node)
        return self.found[root]

    def _node(self, node: Expr) -> frozenset[str]:
        if isinstance(node, Ref):
            return self.known.get(node.name, frozenset())
        if isinstance(node, Index):
            return frozenset({node.axis})
        inner = frozenset[str]().union(*(self.found[child] for child in node.computed_of))
        if isinstance(node, Factor):
            return frozenset(map(node.name_of, inner))
        if isinstance(node, Part):
            return (inner - {node.whole}) | ({node.part} if node.part else set())
        if isinstance(node, Joined):
            return (inner - {node.part or ""}) | {node.whole}
        return inner


def axes_of_pairs(operands: Sequence[Operand], reduces: Sequence[Reduce]) -> set[str]:
    """Axes that something is added up along for each pair of elements, as distances of points are along coordinates:
    nothing that is read has as many elements as there are pairs. Taken apart, what is added up is arithmetic where a
    pair is met, and not a tensor of all pairs in memory."""
    along = _Along(operands)
    found, other = set[str](), set[str]()
    for reduce in reduces:
        axes, over = along.of(reduce.expr), frozenset(reduce.over)
        if len(over) != 1 or reduce.kind not in ("sum", "max", "min", "prod", "sum_exp"):
            other |= over | (axes if reduce.kind in (DOT, SCAN) else frozenset())
        elif len(axes - over) > 1:  # some pair
            sides = [along.of(ref) for ref in refs(reduce.expr)]
            several = len({side for side in sides if over <= side}) > 1
            found |= over if several and not any(axes - over <= side for side in sides) else frozenset()
        along.define(reduce)
    return found - other


def _axes_of(trace: Divided) -> dict[Expr, frozenset[str]]:
    """The axes that each expression of a trace is along."""
    along = _Along(trace.operands)
    for item in (*trace.reduces, *trace.outputs):
        along.of(item.expr)
        if isinstance(item, Reduce):
            along.define(item)
    return along.found


def _total(terms: Iterable[Expr]) -> Expr:
    return reduce_by(Expr.__add__, terms)


class _Elimination:
    """One axis that is taken out."""

    def __init__(self, trace: Divided, axis: str) -> None:
        self.trace, self.axis = trace, axis
        self.count, self.part = trace.parts[axis]
        self.done: dict[Expr, Expr | Blocks] = {}
        self.reduces: list[Reduce] = []
        self.axes = _axes_of(trace)
        self.along = _Along(trace.operands)  # of what is made

    def run(self) -> None:
        trace, read = self.trace, names_read([*self.trace.reduces, *self.trace.outputs])
        for operand in [o for o in trace.operands if self.axis in o.shape and o.name in read]:
            made = [trace.operand_at(operand, self.axis, i) for i in range(self.count)]
            for block in made:
                self.along.add(block)
            self.done[operand.ref] = tuple(block.ref for block in made)
        for reduce in trace.reduces:
            self.done[reduce.ref] = self._product(reduce) if reduce.kind == DOT else self._reduce(reduce)
        outputs: list[Output] = []
        for output in trace.outputs:
            found = self.of(output.expr)
            if self.axis in output.shape:
                blocks = found if isinstance(found, tuple) else (found,) * self.count
                outputs += trace.outputs_at(output, self.axis, blocks)
            else:
                outputs.append(replace(output, expr=self._single(found)))
        names: dict[Expr, str] = {}
        for expr, name in trace.names.items():
            if expr not in self.axes:  # nothing reads it
                continue
            found = self.of(expr)
            several = [(block, f"{name}_{i}") for i, block in enumerate(found)] if isinstance(found, tuple) else []
            for new, called in several or [(self._single(found), name)]:
                if not isinstance(new, Ref):
                    names.setdefault(new, called)
        trace.reduces, trace.outputs, trace.names = self.reduces, outputs, names
        gone = {o.name for o in trace.operands if o.packed and self.axis in o.shape}  # blocks, divided further
        trace.operands = [o for o in trace.operands if o.name not in gone]

    def of(self, root: Expr) -> Expr | Blocks:
        """What an expression becomes."""
        for node in walk([root], self.done):
            self.done[node] = self._node(node)
        return self.done[root]

    def _single(self, found: Expr | Blocks) -> Expr:
        assert not isinstance(found, tuple), "what has no such axis is along it"
        return found

    def _node(self, node: Expr) -> Expr | Blocks:
        if isinstance(node, Index) and node.axis == self.axis:
            size = Size(self.part) if self.part else const(1, dtypes.int64)
            first = Index(self.part) if self.part else const(0, dtypes.int64)
            return tuple(first + size * i if i else first for i in range(self.count))
        if isinstance(node, Size) and node.axis == self.axis:
            return Size(self.part) * self.count if self.part else const(self.count, dtypes.int64)
        children = [self.done[child] for child in node.children]
        if isinstance(node, Part) and node.whole == self.axis:
            (found,) = children
            if not isinstance(found, tuple):
                return found
            several = self.count // node.count
            blocks = found[node.index * several :][:several]
            if several == 1 or node.part is None:
                return blocks[0]
            return Joined(blocks, node.part, self.part)
        if isinstance(node, Joined) and node.whole == self.axis:
            return self._finer(node, [self._single(child) for child in children])
        if not any(isinstance(child, tuple) for child in children):
            return rebuild(node, tuple(map(self._single, children)))
        if isinstance(node, Declared):
            raise self.trace.refused(f"blocks of what {node.gradient.name} computes, whose gradient was declared")
        each = [child if isinstance(child, tuple) else (child,) * self.count for child in children]
        return tuple(rebuild(node, args) for args in zip(*each, strict=True))

    def _finer(self, node: Joined, blocks: Sequence[Expr]) -> Blocks:
        """Blocks that stand side by side, each as several."""
        several, whole = self.count // len(blocks), node.part
        if several == 1 or whole is None:
            return tuple(blocks)
        return tuple(
            Part(block, whole, self.part, index, several) if whole in self.axes[old] else block
            for block, old in zip(blocks, node.children, strict=True)
            for index in range(several)
        )

    # -- reductions -----------------------------------------------------------------------------------------------

    def _made(self, like: Reduce, kind: str, expr: Expr, over: Iterable[str], suffix: str = "") -> Expr:
        """A reduction like another one; over no axis, what it is of one element, and along axes that a block lacks what
        it is of several such."""
        reduce = Reduce(like.name, kind, expr, tuple(sorted(set(over))))
        return folded(reduce, self.along.of(expr), lambda made: self._named(made, suffix))

    def _named(self, reduce: Reduce, suffix: str) -> Expr:
        name = reduce.name if not suffix else safe_name(f"{reduce.name}_{suffix}", self.trace.taken)
        self.trace.taken.add(name)
        return self._added(replace(reduce, name=name))

    def _added(self, reduce: Reduce) -> Expr:
        self.reduces.append(reduce)
        self.along.define(reduce)
        return reduce.ref

    def _reduce(self, reduce: Reduce) -> Expr | Blocks:
        if reduce.kind == SCAN and scans.axis_of(reduce) == self.axis:
            return self._scan(reduce)
        if (read := self._read(reduce)) is not None:
            return read
        found, over = self.of(reduce.expr), set(reduce.over)
        if self.axis not in over:
            if not isinstance(found, tuple):
                return self._made(reduce, reduce.kind, found, over)
            return tuple(self._made(reduce, reduce.kind, e, over, str(i)) for i, e in enumerate(found))
        blocks = found if isinstance(found, tuple) else (found,) * self.count
        over = (over - {self.axis}) | ({self.part} if self.part else set())
        if reduce.kind == "squared_deviation":
            count = self._elements(reduce.over, blocks[0])
            mean = self._made(reduce, "sum", _total(blocks), over, "total") / count
            apart = [block - mean for block in blocks]
            return self._made(reduce, "sum", _total([x * x for x in apart]), over)
        if reduce.kind == "sum_exp":
            top = apply("stop_gradient", self._extremum(reduce, "max", blocks, over))
            return self._made(reduce, "sum", _total(apply("exp", block - top) for block in blocks), over)
        if reduce.kind in ("max", "min"):
            return self._extremum(reduce, reduce.kind, blocks, over)
        if reduce.kind == "prod":
            each = [self._made(reduce, "prod", block, over, str(i)) for i, block in enumerate(blocks)]
            return reduce_by(Expr.__mul__, each)
        assert reduce.kind == "sum", reduce.kind
        return self._made(reduce, "sum", _total(blocks), over)

    def _read(self, reduce: Reduce) -> Expr | None:
        """What is read at one place along the axis: each block at its place, of which one is taken (core/one_term)."""
        match reduce.expr:
            case Call("where", (Call("eq", (Index() as here, place)), value, Const(0))) if (
                reduce.kind == "sum" and here.axis == self.axis and reduce.over == (self.axis,)
            ):
                pass
            case _:
                return None
        if self.axis in self.axes[place]:
            return None
        found, at, zero = self.of(value), self._single(self.of(place)), const(0, value.dtype)
        result: Expr = zero
        for i, block in enumerate(found if isinstance(found, tuple) else (found,) * self.count):
            number = const(i, dtypes.int64)
            if self.part is None:
                result = apply("where", apply("eq", at, number), block, result)
                continue
            first = Size(self.part) * number
            is_here = apply("eq", Index(self.part), at - first if i else at)
            own = self._made(reduce, "sum", apply("where", is_here, block, zero), {self.part}, str(i))
            result = apply("where", apply("ge", at, first), own, result) if i else own
        return result

    def _scan(self, reduce: Reduce) -> Blocks:
        """A block's results are its own, combined with what all blocks before it come to."""
        taken = scans.parts(reduce.expr)
        how, given = taken.how, [self.of(value) for value in taken.values]
        places = self.of(taken.position)
        assert isinstance(places, tuple)
        if how.combine == scans.SEGMENTS:
            raise self.trace.refused("a scan of segments along an axis of which blocks are taken")
        if how.combine == "sum" and not how.exclusive and not isinstance(given[0], tuple):  # so many times the same
            size = self._single(self.of(Size(self.axis)))
            counts = [size - place if how.reverse else place + 1 for place in places]
            return tuple(given[0] * converted(count, given[0].dtype) for count in counts)
        each = [found if isinstance(found, tuple) else (found,) * self.count for found in given]
        if how.combine in scans.PLACES:
            return self._scanned_places(reduce, how, each[0], places)
        combine = self._combine_terms if how.combine == scans.AFFINE else self._combine
        results: dict[int, Expr] = {}
        before: Expr | None = None
        for i in sorted(range(self.count), reverse=how.reverse):
            results[i], before = combine(reduce, how, [blocks[i] for blocks in each], before, i)
        return tuple(results[i] for i in range(self.count))

    def _scanned(self, reduce: Reduce, how: scans.How, values: Sequence[Expr], suffix: str) -> Expr:
        """All partial results of one block."""
        if self.part is None:
            return how.neutral(values[-1].dtype) if how.exclusive else values[-1]
        return self._made(reduce, SCAN, scans.Scanned(tuple(values), Index(self.part), how).expr, (), suffix)

    def _combine(
        self, reduce: Reduce, how: scans.How, values: Sequence[Expr], before: Expr | None, i: int
    ) -> tuple[Expr, Expr]:
        """The results of block ``i`` behind what stands before it, and what both come to: of a scan that folds."""
        own = self._scanned(reduce, how, values, str(i))
        if how.combine in ("max", "min", scans.LOGADDEXP):  # of what ties the last counts, which no reduction tells
            total = self._last(reduce, how, values, own, i)
            both = _log_of_both if how.combine == scans.LOGADDEXP else partial(_last_winner, how.combine)
            return (own, total) if before is None else (both(before, own), both(before, total))
        total = self._made(reduce, how.combine, values[0], {self.part} if self.part else (), f"total_{i}")
        if before is None:
            return own, total
        name = "add" if how.combine == "sum" else "mul"
        return apply(name, own, before), apply(name, before, total)

    def _combine_terms(
        self, reduce: Reduce, how: scans.How, values: Sequence[Expr], before: Expr | None, i: int
    ) -> tuple[Expr, Expr]:
        """The same of factors and terms."""
        own = self._scanned(reduce, how, values, str(i))
        total = self._last(reduce, how, values, own, i)
        if before is None:
            return own, total
        factors = self._scanned(reduce, replace(how, combine="prod"), values[:1], f"factors_{i}")
        product = self._made(reduce, "prod", values[0], {self.part} if self.part else (), f"factor_{i}")
        return factors * before + own, product * before + total

    def _scanned_places(self, reduce: Reduce, how: scans.How, values: Blocks, positions: Blocks) -> Blocks:
        """Where the extremum of all up to each element stands: in its block, or in one of those before."""
        results: dict[int, Expr] = {}
        best: Expr | None = None
        place: Expr = const(0, dtypes.int64)
        of_values = replace(how, combine=scans.PLACES[how.combine])
        for i in sorted(range(self.count), reverse=how.reverse):
            own, top = (self._scanned(reduce, way, [values[i]], f"{way.combine}_{i}") for way in (how, of_values))
            here = substitute(positions[i], {Index(self.part): own}) if self.part else positions[i]
            last, total = (
                self._last(reduce, way, [values[i]], found, i) for way, found in ((how, here), (of_values, top))
            )
            last = last if self.part else here
            results[i] = here if best is None else apply("where", _wins(of_values.combine, best, top), here, place)
            place = last if best is None else apply("where", _wins(of_values.combine, best, total), last, place)
            best = total if best is None else _last_winner(of_values.combine, best, total)
        return tuple(results[i] for i in range(self.count))

    def _last(self, reduce: Reduce, how: scans.How, values: Sequence[Expr], own: Expr, i: int) -> Expr:
        """What a block comes to: the last of its results ``own``, or of those that have all elements."""
        if self.part is None:
            return values[-1]
        inclusive = own
        if how.exclusive:
            inclusive = self._scanned(reduce, replace(how, exclusive=False), values, f"whole_{i}")
        last = const(0, dtypes.int64) if how.reverse else Size(self.part) - const(1, dtypes.int64)
        at_last = apply("where", apply("eq", Index(self.part), last), inclusive, const(0, inclusive.dtype))
        return self._made(reduce, "sum", at_last, {self.part}, f"total_{i}")

    def _extremum(self, reduce: Reduce, kind: str, blocks: Blocks, over: set[str]) -> Expr:
        name = "maximum" if kind == "max" else "minimum"
        each = [self._made(reduce, kind, block, over, f"{kind}_{i}") for i, block in enumerate(blocks)]
        return reduce_by(lambda a, b: apply(name, a, b), each)

    def _elements(self, over: Sequence[str], like: Expr) -> Expr:
        sizes = [self._single(self.of(Size(axis))) for axis in over]
        return converted(reduce_by(Expr.__mul__, sizes), like.dtype)

    # -- matrix products ------------------------------------------------------------------------------------------

    def _product(self, reduce: Reduce) -> Expr | Blocks:
        """A product of which a factor is along the axis: one for each block, added up where the axis is contracted.

        The axes are the product's; a factor may call them otherwise, and both factors the same one differently."""
        sides = factors(reduce)
        found = [self.of(side.expr) for side in sides]
        touched = {side.name_of(self.axis) for side, e in zip(sides, found, strict=True) if isinstance(e, tuple)}
        touched |= {self.axis} & {side.name_of(own) for side in sides for own in self.axes[side.expr]}
        axes = sorted(touched, key=lambda axis: axis != self.axis)
        if axes == [self.axis] and self.axis not in reduce.over:
            together = self._together(reduce, sides, found)
            if together is not None:
                return together

        def built(rest: Sequence[str], chosen: dict[str, int]) -> Expr | Blocks:
            if not rest:
                made = [self._side(side, e, chosen) for side, e in zip(sides, found, strict=True)]
                over = {self._part_of(axis) if axis in chosen else axis for axis in reduce.over} - {None}
                if not over and not any(side.renames for side in made):  # one element is contracted
                    left, right = (rounded(side.expr, side.stored) for side in made)
                    return left * right
                suffix = "_".join(map(str, chosen.values()))
                name = reduce.name if not suffix else safe_name(f"{reduce.name}_{suffix}", self.trace.taken)
                self.trace.taken.add(name)
                return self._added(product(name, made[0], made[1], tuple(sorted(filter(None, over)))))
            axis, *others = rest
            each = [built(others, {**chosen, axis: i}) for i in range(self.count)]
            if axis in reduce.over:
                return _total(map(self._single, each))
            if axis == self.axis:
                return tuple(map(self._single, each))
            return Joined(tuple(map(self._single, each)), axis, self._part_of(axis))

        return built(axes, {})

    def _together(self, reduce: Reduce, sides: Sequence[Factor], found: Sequence[Expr | Blocks]) -> Blocks | None:
        """The blocks of a product that is computed whole, of an argument in groups: all gates of a cell at once.

        None where the argument is in blocks for others too, where not all blocks are read, and where one of them is
        multiplied as it is: that product reads a tensor of its own.
        """
        at = [i for i, blocks in enumerate(found) if isinstance(blocks, tuple)]
        if len(at) != 1 or self.part is None:
            return None
        side, further, other = sides[at[0]], sides[1 - at[0]], self._single(found[1 - at[0]])
        operand = next((o for o in self.trace.operands if o.ref is side.expr), None)
        if operand is None or operand.packed or operand.groups or side.name_of(self.axis) != self.axis:
            return None
        items = (*self.trace.reduces, *self.trace.outputs)
        nodes = list(walk([item.expr for item in items]))
        readers = [node for node in nodes if operand.ref in node.children]
        in_blocks = {o.ref for o in self.trace.operands if o.packed and o.packed.base == operand.name}
        if readers != [side] or any(item.expr is operand.ref for item in items) or in_blocks & {*nodes}:
            return None
        if not self._are_all_read(nodes) or self._is_multiplied(reduce, nodes):
            return None
        if self.part not in self.trace.grouped:
            self.trace.grouped[self.part] = axis_name(axis_order(self.trace.fresh())[0], self.count)
        number = self.trace.grouped[self.part]
        place = operand.shape.index(self.axis)
        shape = (*operand.shape[:place], number, self.part, *operand.shape[place + 1 :])
        whole = replace(operand, shape=shape, groups=(Groups(place, (self.count,)),))
        self.trace.operands[self.trace.operands.index(operand)] = whole
        self.along.add(whole)
        renames = tuple((own, new) for own, new in side.renames if own != self.axis)
        left, right = Factor(operand.ref, side.stored, renames), Factor(other, further.stored, further.renames)
        left, right = (right, left) if at[0] else (left, right)
        result = self._added(product(reduce.name, left, right, reduce.over))
        self.trace.taken.add(reduce.name)
        value = rounded(result, side.stored)  # as which it is read
        blocks = []
        for i in range(self.count):
            is_here = apply("eq", Index(number), const(i, dtypes.int64))
            term = apply("where", is_here, value, const(0, value.dtype))
            blocks.append(self._made(reduce, "sum", term, {number}, str(i)))
        self.done[rounded(reduce.ref, side.stored)] = tuple(blocks)
        return tuple(blocks)

    def _are_all_read(self, nodes: Iterable[Expr]) -> bool:
        """Whether each block along the axis is asked for by something."""
        read = {
            node.index * (self.count // node.count) + i
            for node in nodes if isinstance(node, Part) and node.whole == self.axis
            for i in range(self.count // node.count)
        }  # fmt: skip
        reduced = any(self.axis in reduce.over for reduce in self.trace.reduces)
        return reduced or len(read) == self.count or any(self.axis in output.shape for output in self.trace.outputs)

    def _is_multiplied(self, reduce: Reduce, nodes: Iterable[Expr]) -> bool:
        """Whether a product has a block of this one's result as a factor, perhaps with a bias."""
        for node in nodes:
            if isinstance(node, Factor) and reduce.ref in walk([node.expr]):
                inner = [each for each in walk([node.expr]) if not isinstance(each, (Ref, Part, Const))]
                if all(is_call(each, "add") or is_call(each, "cast") for each in inner):
                    return True
        return False

    def _side(self, side: Factor, found: Expr | Blocks, chosen: dict[str, int]) -> Factor:
        """A factor at these blocks of the product's axes."""
        renames = dict(side.renames)
        expr = found[chosen[side.name_of(self.axis)]] if isinstance(found, tuple) else found
        for axis, index in chosen.items():
            own = side.own_name(axis)
            if side.name_of(own) != axis or own not in self.axes[side.expr]:
                continue
            if own != self.axis:
                expr = Part(expr, own, self._part_of(own), index, self.count)
            renames.pop(own, None)
            own_part, part = self._part_of(own), self._part_of(axis)
            if own_part is not None and part is not None and own_part != part:
                renames[own_part] = part
        return Factor(expr, side.stored, tuple(renames.items()))

    def _part_of(self, axis: str) -> str | None:
        """The axis of a block of an axis that is tied to this one by a product."""
        if axis not in self.trace.parts:
            self.trace.parts[axis] = self.count, self.trace.fresh() if self.part else None
        count, part = self.trace.parts[axis]
        if count != self.count:
            raise self.trace.refused(f"an axis of a matrix product in {count} and in {self.count} blocks")
        return part

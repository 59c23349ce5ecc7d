"""Several reductions and what follows from them, in one pass that reads each row of memory once.

The axes of an iteration space fall in two: the *kept* ones number the rows, those *over* which is reduced make up a
row. A row stays in registers or shared memory while its reductions follow from each other (softmax, the norms and
their backwards), elementwise results are written from there, and sums over the rows (the gradients of a norm's
weights) are computed in the same pass, one for each position in a row; those over some of the kept axes (the gradients
of a scale that each image has) as well, where a block's rows are all of one image. If nothing in the pass reads a row's
sums, each block may take a tile of a row instead, and sums over other axes of the same space share the pass (the
gradients of an interpolation between three broadcast operands). Sums that run over rows and along them are begun in
each row (fuse/segments). The kernel stores partial sums, and kernels like any other add those up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from fusegen.core.ir import (
    Axes,
    Call,
    Expr,
    Let,
    Op,
    Operand,
    Output,
    Reduce,
    Ref,
    Substitution,
    axis_order,
    expr_axes,
    is_call,
    names_read,
    refs,
    walk,
)
from fusegen.core.monoids import BY_KIND
from fusegen.core.regroupable import Regroupable, regroupable
from fusegen.core.subexpressions import introduce_lets, safe_name
from fusegen.fuse import cost
from fusegen.fuse.hoist import Hoist
from fusegen.fuse.kernel import kernel_name, partial_result, read_by
from fusegen.fuse.row_kernel import GROUP_AXIS, SHARE_AXIS, TILE_AXIS, Needed, RowKernel, Stage, coupled, levels
from fusegen.fuse.segments import NO_ROW_PARTIALS, RowPartials, find_row_partials, reduce_in_row

# What something costs at least that is left in memory for others, in place of what it is made of: a logarithm, a root
# and a division.
WORTH_MEMORY = 12


@dataclass(frozen=True)
class Fused:
    """A row kernel, and what of the op it leaves to other kernels.

    ``given``: reductions that have to be there before; ``reduces`` and ``outputs``: what comes after, in which sums
    over partial results stand for those that the kernel began; ``stored``: results that it leaves in memory.
    """

    kernel: RowKernel
    given: tuple[Reduce, ...]
    reduces: tuple[Reduce, ...]
    outputs: tuple[Output, ...]
    stored: tuple[Operand, ...]


@dataclass(frozen=True)
class _Split:
    """Which axes number the rows and which make them up, and the reductions that fit."""

    space: frozenset[str]
    over: frozenset[str]
    rows: tuple[Reduce, ...]
    columns: tuple[Reduce, ...]
    row_tiles: bool
    row_partials: RowPartials = NO_ROW_PARTIALS

    @property
    def kept(self) -> frozenset[str]:
        return self.space - self.over

    @property
    def slices(self) -> frozenset[str]:
        """Kept axes that some column is not summed along."""
        return frozenset[str]().union(*(self.kept - frozenset(r.over) for r in self.columns))


@dataclass(frozen=True)
class Allowed:
    """What a row kernel may do beside its rows: not every layout takes all of it.

    Args:
        row_partials: begin sums that run over rows and along them.
        segments: those of parts of a row as well.
        columns: sum over rows as well, and take tiles of rows.
        slices: sum over some of the axes that number the rows.
        tiles: leave it to a second kernel to add up what tiles of a row have summed. Otherwise rows are whole.
        turn: which of the sets of axes that could make up a row does, by the order of the op's reductions.
    """

    row_partials: bool = True
    segments: bool = True
    columns: bool = True
    slices: bool = True
    tiles: bool = True
    turn: int = 0


def fuse(
    op: Op, reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]],
    allowed: Allowed = Allowed(), before: Mapping[str, Operand] | None = None,
) -> Fused | None:  # fmt: skip
    """The row kernel that saves passes over memory, if there is one.

    Args:
        reduces, outputs: of the op, lets expanded.
        axes: those that each named thing varies along.
        before: results of kernels before it, if it comes behind another row kernel: it then has to be waited for.
    """
    needs = _Needs(reduces)
    splits = _waited_for(reduces, outputs, axes, allowed, needs)
    if before is not None:  # along the axis that is the fast one of most tensors: there would be too many candidates
        splits = (split for split in splits if in_order(split.space)[-1] in split.over)
    split = next(islice(splits, allowed.turn, None), None)
    if split is None and (allowed.turn or before is not None):
        return None
    if split is None:
        split = _side_by_side(reduces, outputs, axes, allowed, needs)
        if split is not None and not allowed.tiles:
            split = (
                replace(split, row_tiles=False) if all(frozenset(r.over) == split.over for r in split.rows) else None
            )
    if split is None:
        split = _alone(reduces, axes, needs) if reduces else _along_rows(op, outputs)
    if split is None or (split.row_tiles and not allowed.columns):
        return None
    split = split if allowed.columns else replace(split, columns=())
    mine = {r.name for r in (*split.rows, *split.columns)}
    given = tuple(r for r in reduces if r.name not in mine and any(r.name in needs.of(m) for m in mine))
    if any(needs.of(r.name) & mine for r in given):
        return None
    ready = {r.name for r in (*split.rows, *given)} if not split.row_tiles else {r.name for r in given}
    own = {r.ref for r in given}  # written by the kernels that compute them
    others = [o for o in outputs if o.expr not in own]
    pointwise = [o for o in others if _axes_of(o) == split.space and needs.direct(o.expr) <= ready]
    ends = [] if split.row_tiles else [
        o for o in others
        if _axes_of(o) == split.kept and needs.direct(o.expr) <= ready and expr_axes(o.expr, axes) <= split.kept
    ]  # fmt: skip
    return _build(op, split, given, pointwise, ends, reduces, outputs, axes, before or {})


class _Needs:
    """Which reductions expressions, and reductions, need."""

    def __init__(self, reduces: Sequence[Reduce]) -> None:
        self.names = {r.name for r in reduces}
        self.read: dict[Expr, frozenset[str]] = {}
        self.known: dict[str, frozenset[str]] = {}
        for reduce in reduces:
            direct = self.direct(reduce.expr)
            self.known[reduce.name] = direct.union(*(self.known.get(n, frozenset()) for n in direct))

    def direct(self, expr: Expr) -> frozenset[str]:
        """Those that the expression reads."""
        for node in walk([expr], self.read):
            own = frozenset({node.name} & self.names) if isinstance(node, Ref) else frozenset[str]()
            self.read[node] = own.union(*(self.read[child] for child in node.children))
        return self.read[expr]

    def of(self, name: str) -> frozenset[str]:
        """Those that a reduction needs, directly or not."""
        return self.known[name]


def _axes_of(output: Output) -> frozenset[str]:
    return frozenset(a for a in output.shape if a)


def _waited_for(
    reduces: Sequence[Reduce],
    outputs: Sequence[Output],
    axes: Mapping[str, frozenset[str]],
    allowed: Allowed,
    needs: _Needs,
) -> Iterator[_Split]:
    """Reductions whose results are needed again at every element of the space that they reduce."""
    along, tried = Axes(axes), set[tuple[frozenset[str], frozenset[str]]]()
    spaces = {r.name: along.of(r.expr) for r in reduces}
    for first in reduces:
        space, over = spaces[first.name], frozenset(first.over)
        if (space, over) in tried or (not space - over and not coupled(first)):
            continue
        tried.add((space, over))
        rows = [r for r in reduces if spaces[r.name] == space and frozenset(r.over) == over]
        names = {r.name for r in rows}
        again = [*(r for r in reduces if spaces[r.name] == space), *outputs]
        waits = any(needs.direct(i.expr) & names for i in again if not isinstance(i, Output) or _axes_of(i) == space)
        if waits or any(coupled(r) for r in rows):
            rows = [r for r in rows if not _foreign(r, names, needs)]
            later = _later(reduces, space, spaces, {r.name for r in rows}, needs)
            columns = _columns(later, space - over, over, allowed)
            rest = [r for r in later if allowed.row_partials and r not in columns]
            begun = find_row_partials(rest, over, segments=allowed.segments and not columns)
            # Fewer sums than one for each position in a row.
            fewer = find_row_partials(later, over, segments=allowed.segments)
            if allowed.row_partials and {r.name for r in columns} <= {
                r.name for r in (*fewer.per_row, *fewer.segments)
            }:
                columns, begun = (), fewer
            yield _Split(space, over, tuple(rows), columns, row_tiles=False, row_partials=begun)


def _columns(
    sums: Sequence[Reduce], kept: frozenset[str], over: frozenset[str], allowed: Allowed
) -> tuple[Reduce, ...]:
    """Sums over rows: over all of them, or over those of a slice, as many as agree on what a slice is."""
    whole = [r for r in sums if kept and kept <= frozenset(r.over)]
    slices = frozenset[str]()
    partly = [r for r in sums if r not in whole and kept & frozenset(r.over) and not over <= frozenset(r.over)]
    for reduce in sorted(partly, key=lambda r: len(kept - frozenset(r.over))) if allowed.slices else ():
        wider = slices | (kept - frozenset(reduce.over))
        if wider < kept:
            slices, whole = wider, [*whole, reduce]
    return tuple(r for r in sums if r in whole)


def _foreign(reduce: Reduce, names: set[str], needs: _Needs) -> bool:
    """Whether a reduction needs one that is neither among ``names`` nor independent of them."""
    return any(n not in names and needs.of(n) & names for n in needs.of(reduce.name))


def _later(
    reduces: Sequence[Reduce], space: frozenset[str], spaces: Mapping[str, frozenset[str]], rows: set[str],
    needs: _Needs,
) -> list[Reduce]:  # fmt: skip
    """Other sums over the same space that can be taken while a row is on chip. Those over all rows are one for each
    position in a row, or for fewer. What a row itself needs has to be there before."""
    before = frozenset[str]().union(*(needs.of(name) for name in rows)) | rows
    return [
        r for r in reduces
        if r.kind == "sum" and r.name not in before and spaces[r.name] == space and needs.of(r.name) <= before
    ]  # fmt: skip


def _side_by_side(
    reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]], allowed: Allowed,
    needs: _Needs,
) -> _Split | None:  # fmt: skip
    """Sums over different axes of one space, which nothing waits for: split so that all of them fit."""
    free = [r for r in reduces if r.kind == "sum" and not needs.direct(r.expr)]
    for first in free:
        space = expr_axes(first.expr, axes)
        sums = [r for r in free if expr_axes(r.expr, axes) == space]
        patterns = {frozenset(r.over) for r in sums}
        written = any(_axes_of(o) == space and not needs.direct(o.expr) for o in outputs)
        if len(patterns) < 2 and not (written and len(space) > 1):
            continue
        order = sorted(space, key=axis_order)
        found = []
        for cut in range(1, len(order)):
            kept, over = frozenset(order[:cut]), frozenset(order[cut:])
            rows = tuple(r for r in sums if over <= frozenset(r.over))
            columns = _columns([r for r in sums if r not in rows], kept, over, allowed)
            if len(rows) + len(columns) == len(sums):
                found.append(_Split(space, over, rows, columns, row_tiles=True))
        if found:  # the fewest sums to keep for every position, of the fewest positions; then the longest rows
            return min(found, key=lambda split: (len(split.columns), len(split.slices), _summed_again(split)))
    return None


def _summed_again(split: _Split) -> int:
    """Along how many axes of a row what the columns leave for each position has to be added up again."""
    return sum(len(split.over & frozenset(r.over)) for r in split.columns)


def _alone(reduces: Sequence[Reduce], axes: Mapping[str, frozenset[str]], needs: _Needs) -> _Split | None:
    """Reductions over the same axes of the same space that nothing waits for: short rows share a block."""
    spaces = {(expr_axes(r.expr, axes), frozenset(r.over)) for r in reduces}
    space, over = next(iter(spaces))
    if len(spaces) > 1 or space == over or any(needs.direct(r.expr) for r in reduces):
        return None
    return _Split(space, over, tuple(reduces), (), row_tiles=False)


def _along_rows(op: Op, outputs: Sequence[Output]) -> _Split | None:
    """Elementwise results of one space in rows: axes that every operand has all or none of make up a row."""
    spaces = {_axes_of(o) for o in outputs}
    if len(spaces) != 1:
        return None
    (space,) = spaces
    order = sorted(space, key=axis_order)
    operands = [frozenset(a for a in o.shape if a) for o in op.operands]
    cut = len(order) - 1
    while cut > 0 and all((order[cut] in own) == (order[cut - 1] in own) for own in operands):
        cut -= 1
    return _Split(space, frozenset(order[cut:]), (), (), row_tiles=True) if cut > 0 else None


def strided_elementwise(op: Op, outputs: Sequence[Output], axes: Mapping[str, frozenset[str]]) -> Fused | None:
    """Elementwise results of one space in rows that lie side by side: along the axes that some operands lack, which
    have the fast one."""
    space = _axes_of(outputs[0])
    if any(_axes_of(o) != space for o in outputs):
        return None
    operands = [frozenset(a for a in o.shape if a) for o in op.operands]
    lacking = {space - own for own in operands if own != space and in_order(space)[-1] in own}
    if len(lacking) != 1:
        return None
    split = _Split(space, lacking.pop(), (), (), row_tiles=False)
    return _build(op, split, (), list(outputs), [], (), outputs, axes, {})


def _build(
    op: Op, split: _Split, given: tuple[Reduce, ...], pointwise: list[Output], ends: list[Output],
    reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]],
    before: Mapping[str, Operand],
) -> Fused:  # fmt: skip
    known = dict(axes)
    begun = (
        *split.columns,
        *(split.rows if split.row_tiles else ()),
        *split.row_partials.per_row,
        *split.row_partials.segments,
    )
    started = {r.name: _partial(op, r, split, before) for r in begun}
    done = {r.name for r in split.rows if r.name not in started}
    written = {o.name for o in (*pointwise, *ends)}
    rest_outputs = tuple(o for o in outputs if o.name not in written)
    rest = [_rest_of(r, split, started) for r in reduces if r.name not in done and r not in given]
    kept, partials = in_order(split.kept), list(started.values())
    known.update({p.name: frozenset(filter(None, p.shape)) for p in partials})
    values = _values_of_rows(op, split, done, [*rest, *rest_outputs], known, {*before, *(p.name for p in partials)})
    substitution = Substitution({o.expr: Ref(o.name, o.dtype) for o in values})
    rest = [replace(r, expr=substitution.of(r.expr)) for r in rest]
    rest_outputs = tuple(replace(o, expr=substitution.of(o.expr)) for o in rest_outputs)
    wanted = names_read([*rest, *rest_outputs])
    stored = [r for r in split.rows if r.name in wanted and r.name in done]
    stores = [Output(r.name, r.ref, r.expr.dtype, kept) for r in stored if r.name not in {o.name for o in ends}]
    ends = [*ends, *values]
    shown = {r.name for r in stored} | names_read(ends)
    there = {**before, **{r.name: Operand(r.name, r.expr.dtype, in_order(known[r.name])) for r in given}}
    kernel = _kernel(op, split, shown, there, pointwise, [*stores, *ends], partials, known)
    operands = [Operand(r.name, r.expr.dtype, kept) for r in stored]
    operands += [Operand(o.name, o.dtype, o.shape) for o in (*values, *partials)]
    return Fused(kernel, given, tuple(rest), rest_outputs, tuple(operands))


def _values_of_rows(
    op: Op, split: _Split, done: set[str], later: Sequence[Reduce | Output], axes: Mapping[str, frozenset[str]],
    taken: set[str],
) -> list[Output]:  # fmt: skip
    """What later kernels make of a row's reductions alone, and would compute at every element: it is left in their
    place, where that takes no more memory.

    Args:
        done: reductions of rows that are known once a row is.
        later: what later kernels compute.
        taken: names that are given away already.
    """
    along, plain = Axes(axes), {o.name for o in op.operands if type(o) is Operand} | {s.name for s in op.scalars}
    items = [item for item in later if _space(item, along) > split.kept]
    if not split.kept or split.row_tiles or not items:
        return []

    known = done | {name for name in plain if axes.get(name, frozenset()) <= split.kept}

    def is_of_a_row(node: Expr) -> bool:
        if not (isinstance(node, Call) and node.dtype.is_float and along.of(node) == split.kept):
            return False
        read = {ref.name for ref in refs(node)}
        return read <= known and not read.isdisjoint(done)

    found: dict[Expr, None] = {}
    stack = [item.expr for item in items]
    seen = set[Expr]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if is_of_a_row(node):
            if cost.of(walk([node])) >= WORTH_MEMORY:
                found[node] = None
            continue
        stack += node.children
    taken = taken | {thing.name for thing in (*op.operands, *op.outputs, *op.scalars, *op.statements)}
    values, kept, names = list[Output](), in_order(split.kept), op.names()
    for node in found:
        values.append(Output(safe_name(names.get(node, "row_value"), taken), node, node.dtype, kept))
        taken.add(values[-1].name)
    instead = Substitution({o.expr: Ref(o.name, o.dtype) for o in values})
    before = names_read(later) & done
    after = names_read([replace(item, expr=instead.of(item.expr)) for item in later]) & done
    return values if len(values) + len(after) <= len(before) else []


def _space(item: Reduce | Output, along: Axes) -> frozenset[str]:
    """The axes along which an item is computed."""
    return along.of(item.expr) if isinstance(item, Reduce) else _axes_of(item)


def in_order(axes: Iterable[str]) -> tuple[str, ...]:
    """Axes as the op has them, slow to fast."""
    return tuple(sorted(axes, key=axis_order))


def _partial(op: Op, reduce: Reduce, split: _Split, before: Iterable[str]) -> Output:
    """Where the kernel leaves what it has of a sum: a number for each group of rows, each tile of a row, each row, or
    each block's share of a segment."""
    if reduce in split.columns:
        by, shape = "group", (GROUP_AXIS, *in_order(split.slices), *in_order(split.over))
    elif reduce in split.row_partials.per_row:
        by, shape = "row", in_order(split.kept)
    elif reduce in split.row_partials.segments:
        by, shape = "share", (SHARE_AXIS, *in_order(split.space - split.row_partials.within))
    else:
        by, shape = "piece", (TILE_AXIS, *in_order(split.kept))
    return partial_result(op, reduce, by, shape, before)


def _rest_of(reduce: Reduce, split: _Split, started: Mapping[str, Output]) -> Reduce:
    """The sum of partial results that stands for a sum which the kernel began."""
    if reduce.name not in started:
        return reduce
    partial = started[reduce.name]
    own = [a for a in partial.shape if a]
    over = (*(a for a in own if a not in split.space), *(a for a in reduce.over if a in own))
    return replace(reduce, expr=Ref(partial.name, partial.dtype), over=over)


def _factors_outside(
    rows: Sequence[Reduce], over: frozenset[str], axes: Mapping[str, frozenset[str]], shown: set[str]
) -> tuple[list[Reduce], dict[Expr, Expr]]:
    """Sums without the factors that are the same for the whole row, and what now stands for each.

    A factor may be made of earlier sums, so that each sum is taken in terms of what stands for those before it. A sum
    whose elements another reduction shares (a variance's mean) stays what it is: they are one state.

    Args:
        rows: in an order in which each follows those that it needs.
        shown: sums that leave the kernel, which stay what they are.
    """
    found: list[Reduce] = []
    substitution, varying = Substitution({}), Axes(axes)
    shared = {(BY_KIND[r.kind].partner, r.expr) for r in rows}
    for reduce in rows:
        stays = reduce.kind != "sum" or reduce.name in shown or (reduce.kind, reduce.expr) in shared
        reduce = replace(reduce, expr=substitution.of(reduce.expr))
        match reduce.expr:
            case Regroupable("mul", (along, factor)) | Call("neg", (Regroupable("mul", (along, factor)),)) if (
                not stays and not varying.of(factor) & over and varying.of(along) >= over
            ):
                scaled = regroupable("mul", reduce.ref, factor)
                substitution.put(reduce.ref, -scaled if is_call(reduce.expr, "neg") else scaled)
                reduce = replace(reduce, expr=along)
        found.append(reduce)
    return found, substitution.values


def _kernel(
    op: Op, split: _Split, shown: set[str], there: Mapping[str, Operand], pointwise: list[Output],
    ends: list[Output], partials: list[Output], axes: dict[str, frozenset[str]],
) -> RowKernel:  # fmt: skip
    along = Axes(axes)
    computed = (*split.rows, *split.columns, *pointwise, *ends)
    hoist = Hoist.among([item.expr for item in computed], along, split.over, rounded=op.is_half)
    rows = [replace(r, expr=hoist.one(r.expr)) for r in split.rows]
    within, segments = in_order(split.row_partials.within), tuple[Reduce, ...]()
    if not split.row_tiles:
        rows, values = _factors_outside(rows, split.over, axes, shown)
        rows = [replace(r, expr=hoist.one(r.expr)) for r in rows]
        substitution = Substitution(values)
        pointwise = [replace(o, expr=substitution.of(o.expr)) for o in pointwise]
        split = replace(split, columns=tuple(replace(r, expr=substitution.of(r.expr)) for r in split.columns))
        begun = reduce_in_row(split.row_partials, rows, values, in_order(split.over), within, hoist)
        rows, segments = [*rows, *begun.per_row], begun.segments
        partials = [replace(p, expr=begun.values.get(p.expr, p.expr)) for p in partials]
    ends = [*ends, *(p for p in partials if p.shape == in_order(split.kept))]
    shares = [p for p in partials if SHARE_AXIS in p.shape]
    columns = [replace(r, expr=hoist.one(r.expr)) for r in split.columns]
    pointwise = [replace(o, expr=hoist.one(o.expr)) for o in pointwise]
    exprs = [item.expr for item in (*rows, *columns, *segments, *pointwise)]
    shared = hoist.shared(exprs, op.operands)
    rows, columns = ([replace(r, expr=shared[r.expr]) for r in group] for group in (rows, columns))
    segments = tuple(replace(r, expr=shared[r.expr]) for r in segments)
    pointwise = [replace(o, expr=shared[o.expr]) for o in pointwise]
    regrouped = {hoist.one(expr): name for expr, name in op.names().items()}
    names = {shared.get(expr, expr): name for expr, name in regrouped.items()}
    items = [*rows, *columns, *segments, *pointwise, *ends, *shares]
    operands, scalars = read_by(op, there, [item.expr for item in items])
    # Names of the op's other reductions as well: a kernel may yet take in sums of what follows (fuse/strided_rows).
    taken = {thing.name for thing in (*operands, *scalars, *rows, *segments)}
    taken |= {s.name for s in op.statements if isinstance(s, Reduce)}
    level = levels(rows)
    ordered = sorted(rows, key=lambda r: level[r.name])
    reduces = [*ordered, *columns, *segments]
    once_a_row = hoist.fixed([item.expr for item in (*reduces, *pointwise)])
    statements, bound = introduce_lets(reduces, [*pointwise, *ends, *shares], names, taken, segments, once_a_row)
    lets = [s for s in statements if isinstance(s, Let)]
    needed = Needed(statements)
    depth: dict[str, int] = {**level}
    for let in lets:
        axes[let.name] = along.of(let.expr)
        depth[let.name] = max((depth.get(ref.name, 0) for ref in refs(let.expr)), default=0)
    once = [let for let in lets if not axes[let.name] & split.over]
    each = [let for let in lets if axes[let.name] & split.over]
    final = {r.name: r for r in statements if isinstance(r, Reduce)}
    stages = []
    for number in range(1, max(level.values(), default=0) + 1):
        own = tuple(final[r.name] for r in ordered if level[r.name] == number)
        after = tuple(let for let in once if depth[let.name] == number)
        stages.append(Stage(needed.among(each, own), own, after))
    sums, cut = (tuple(final[r.name] for r in group) for group in (columns, segments))
    last, later = tuple(bound[: len(pointwise)]), bound[len(pointwise) :]
    shares = later[len(ends) :]
    partials = [*(p for p in partials if GROUP_AXIS in p.shape or TILE_AXIS in p.shape), *shares]
    return RowKernel(
        kernel_name(op), op, in_order(split.space), in_order(split.over),
        operands, scalars, needed.among(each, (*last, *sums, *cut)), tuple(final[r.name] for r in ordered),
        tuple(once), tuple(later[: len(ends)]), last,
        before=tuple(let for let in once if depth[let.name] == 0), stages=tuple(stages), columns=sums,
        row_tiles=split.row_tiles, partials=tuple(partials), within=within, segments=cut, shares=tuple(shares),
        slices=in_order(split.slices),
    )  # fmt: skip

"""Several reductions and what follows from them, in one pass that reads each row of memory once.

The axes of an iteration space fall in two: the *kept* ones number the rows, those *over* which is reduced make up a
row. A row stays in registers or shared memory while its reductions follow from each other (softmax, the norms and
their backwards), elementwise results are written from there, and sums over the rows (the gradients of a norm's
weights) are kept beside it, one for each position in a row. Sums whose result nothing in the pass waits for may also
be taken by pieces of a row, and sums over other axes of the same space share the pass (the gradients of an
interpolation between three broadcast operands). What is left are small sums of partial results, and those are kernels
like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fusegen.core.ir import (
    Call,
    Expr,
    Let,
    Op,
    Operand,
    Output,
    Reduce,
    Ref,
    axis_order,
    expr_axes,
    refs,
    substitute,
    walk,
)
from fusegen.core.lets import introduce_lets
from fusegen.core.monoids import BY_KIND
from fusegen.declare.table import lookup
from fusegen.fuse.hoist import Hoist
from fusegen.fuse.kernel import Kernel, Names, kernel_name, read_by

GROUPS, PIECES = "groups", "pieces"
"""The axes of partial results: which group of rows, or which piece of a row, they are of."""
DIVISION = 8
"""What a division costs on a GPU, in units of `Function.cost`: there it is no instruction."""


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
    (sums over rows) at every element, then ``outputs`` once a row. ``pieces``: nothing waits for a row's sums, which
    may thus be taken in pieces; they then leave as ``partials`` like those of the columns.
    """

    before: tuple[Let, ...] = ()
    stages: tuple[Stage, ...] = ()
    columns: tuple[Reduce, ...] = ()
    pieces: bool = False

    @property
    def items(self) -> tuple[Let | Reduce | Output, ...]:
        """Everything the kernel computes, in order, each once."""
        found: list[Let | Reduce | Output] = [*self.before]
        for stage in self.stages:
            found += [*stage.lets, *stage.reduces, *stage.after]
        found += [*self.body, *self.pointwise, *self.columns, *self.outputs]
        return tuple(dict.fromkeys(found))

    @property
    def reducing(self) -> tuple[Let | Reduce | Output, ...]:
        """Of a row that passes by: what its one stage takes."""
        (stage,) = self.stages
        lets = (*self.before, *stage.lets)
        return (*_needed(lets, stage.reduces, {let.name: let for let in lets}), *stage.reduces)

    @property
    def ending(self) -> tuple[Let | Output, ...]:
        """Of a row that passes by: what follows from its one stage."""
        return (*_needed(self.epilogue, self.outputs, {let.name: let for let in self.epilogue}), *self.outputs)

    @property
    def partners(self) -> dict[str, Reduce]:
        """A sum beside the squared deviations of the same elements, a maximum beside their exponentials."""
        found: dict[str, Reduce] = {}
        for reduce in self.reduces:
            kind = BY_KIND[reduce.kind].partner
            if kind:
                found.update({r.name: reduce for r in self.reduces if (r.kind, r.expr) == (kind, reduce.expr)})
        return found


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
    pieces: bool

    @property
    def kept(self) -> frozenset[str]:
        return self.space - self.over


def fuse(
    op: Op, reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]]
) -> Fused | None:
    """The row kernel that saves passes over memory, if there is one.

    Args:
        reduces, outputs: of the op, lets expanded.
        axes: those that each named thing varies along.
    """
    split = _waited_for(reduces, outputs, axes) or _side_by_side(reduces, outputs, axes)
    if split is None:
        split = _alone(reduces, axes) if reduces else _along_rows(op, outputs)
    if split is None:
        return None
    mine = {r.name for r in (*split.rows, *split.columns)}
    needs = _Needs(reduces)
    given = tuple(r for r in reduces if r.name not in mine and any(r.name in needs.of(m) for m in mine))
    if any(needs.of(r.name) & mine for r in given):
        return None
    ready = {r.name for r in (*split.rows, *given)} if not split.pieces else {r.name for r in given}
    own = {r.ref for r in given}  # written by the kernels that compute them
    others = [o for o in outputs if o.expr not in own]
    pointwise = [o for o in others if _axes_of(o) == split.space and _reduced(o.expr, reduces) <= ready]
    ends = [] if split.pieces else [
        o for o in others
        if _axes_of(o) == split.kept and _reduced(o.expr, reduces) <= ready and expr_axes(o.expr, axes) <= split.kept
    ]  # fmt: skip
    return _build(op, split, given, pointwise, ends, reduces, outputs, axes)


class _Needs:
    """Which reductions each reduction needs, directly or not."""

    def __init__(self, reduces: Sequence[Reduce]) -> None:
        self.names = {r.name: r for r in reduces}
        self.known: dict[str, frozenset[str]] = {}
        for reduce in reduces:
            direct = _reduced(reduce.expr, reduces)
            self.known[reduce.name] = frozenset(direct).union(*(self.known.get(n, frozenset()) for n in direct))

    def of(self, name: str) -> frozenset[str]:
        return self.known[name]


def _reduced(expr: Expr, reduces: Iterable[Reduce]) -> set[str]:
    names = {r.name for r in reduces}
    return {ref.name for ref in refs(expr) if ref.name in names}


def _axes_of(output: Output) -> frozenset[str]:
    return frozenset(a for a in output.shape if a)


def _waited_for(
    reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]]
) -> _Split | None:
    """Reductions whose results are needed again at every element of the space that they reduce."""
    for first in reduces:
        space, over = expr_axes(first.expr, axes), frozenset(first.over)
        if not space - over and not _coupled(first):
            continue
        rows = [r for r in reduces if expr_axes(r.expr, axes) == space and frozenset(r.over) == over]
        names = {r.name for r in rows}
        again = [*(r for r in reduces if expr_axes(r.expr, axes) == space), *outputs]
        waits = any(
            _reduced(i.expr, reduces) & names for i in again if not isinstance(i, Output) or _axes_of(i) == space
        )
        if waits or any(_coupled(r) for r in rows):
            rows = [r for r in rows if not _foreign(r, names, reduces)]
            columns = _columns(reduces, space, over, axes, {r.name for r in rows})
            return _Split(space, over, tuple(rows), tuple(columns), pieces=False)
    return None


def _coupled(reduce: Reduce) -> bool:
    return reduce.kind in ("squared_deviation", "sum_exp")


def _foreign(reduce: Reduce, names: set[str], reduces: Sequence[Reduce]) -> bool:
    """Whether a reduction needs one that is neither among ``names`` nor independent of them."""
    needs = _Needs(reduces)
    return any(n not in names and needs.of(n) & names for n in needs.of(reduce.name))


def _columns(
    reduces: Sequence[Reduce], space: frozenset[str], over: frozenset[str], axes: Mapping[str, frozenset[str]],
    rows: set[str],
) -> list[Reduce]:  # fmt: skip
    """Sums over all rows: one for each position in a row, or for fewer. What a row itself needs has to be there
    before."""
    kept = space - over
    needs = _Needs(reduces)
    names = {r.name for r in reduces}
    before = frozenset[str]().union(*(needs.of(name) for name in rows)) | rows
    return [
        r for r in reduces
        if r.kind == "sum" and r.name not in before and kept and kept <= frozenset(r.over)
        and expr_axes(r.expr, axes) == space and needs.of(r.name) & names <= rows
    ]  # fmt: skip


def _side_by_side(
    reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]]
) -> _Split | None:
    """Sums over different axes of one space, which nothing waits for: split so that all of them fit."""
    names = {r.name for r in reduces}
    free = [r for r in reduces if r.kind == "sum" and not _reduced(r.expr, reduces)]
    for first in free:
        space = expr_axes(first.expr, axes)
        sums = [r for r in free if expr_axes(r.expr, axes) == space]
        patterns = {frozenset(r.over) for r in sums}
        written = any(_axes_of(o) == space and not {ref.name for ref in refs(o.expr)} & names for o in outputs)
        if len(patterns) < 2 and not (written and len(space) > 1):
            continue
        order = sorted(space, key=axis_order)
        found = []
        for cut in range(1, len(order)):
            kept, over = frozenset(order[:cut]), frozenset(order[cut:])
            rows = tuple(r for r in sums if over <= frozenset(r.over))
            columns = tuple(r for r in sums if r not in rows and kept <= frozenset(r.over))
            if len(rows) + len(columns) == len(sums):
                found.append(_Split(space, over, rows, columns, pieces=True))
        if found:  # the fewest sums to keep for every position, then the longest rows
            return min(found, key=lambda split: len(split.columns))
    return None


def _alone(reduces: Sequence[Reduce], axes: Mapping[str, frozenset[str]]) -> _Split | None:
    """Reductions over the same axes of the same space that nothing waits for: short rows share a block."""
    spaces = {(expr_axes(r.expr, axes), frozenset(r.over)) for r in reduces}
    space, over = next(iter(spaces))
    if len(spaces) > 1 or space == over or any(_reduced(r.expr, reduces) for r in reduces):
        return None
    return _Split(space, over, tuple(reduces), (), pieces=False)


def _along_rows(op: Op, outputs: Sequence[Output]) -> _Split | None:
    """Elementwise results of one space in rows: axes that every operand has all or none of make up a row."""
    space = _axes_of(outputs[0])
    if any(_axes_of(o) != space for o in outputs):
        return None
    order = sorted(space, key=axis_order)
    operands = [frozenset(a for a in o.shape if a) for o in op.operands]
    cut = len(order) - 1
    while cut > 0 and all((order[cut] in own) == (order[cut - 1] in own) for own in operands):
        cut -= 1
    return _Split(space, frozenset(order[cut:]), (), (), pieces=True) if cut > 0 else None


def _build(
    op: Op, split: _Split, given: tuple[Reduce, ...], pointwise: list[Output], ends: list[Output],
    reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]],
) -> Fused:  # fmt: skip
    known = dict(axes)
    started = {r.name: r for r in split.columns} | ({r.name: r for r in split.rows} if split.pieces else {})
    done = {r.name for r in split.rows if r.name not in started}
    written = {o.name for o in (*pointwise, *ends)}
    rest_outputs = tuple(o for o in outputs if o.name not in written)
    rest = [_rest_of(r, split, started) for r in reduces if r.name not in done and r not in given]
    wanted = {ref.name for item in (*rest, *rest_outputs) for ref in refs(item.expr)}
    kept = in_order(split.kept)
    stored = [r for r in split.rows if r.name in wanted and r.name in done]
    stores = [Output(r.name, r.ref, r.expr.dtype, kept) for r in stored if r.name not in {o.name for o in ends}]
    partials = [_partial(r, split) for r in (*split.columns, *(split.rows if split.pieces else ()))]
    shown = {r.name for r in stored} | {ref.name for o in ends for ref in refs(o.expr)}
    kernel = _kernel(op, split, shown, given, pointwise, [*stores, *ends], partials, known)
    operands = [Operand(r.name, r.expr.dtype, kept) for r in stored]
    operands += [Operand(p.name, p.dtype, p.shape) for p in partials]
    return Fused(kernel, given, tuple(rest), rest_outputs, tuple(operands))


def passing(kernel: Kernel) -> RowKernel | None:
    """A kernel of coupled reductions as one whose rows pass by: chunks of elements are cheaper to take, and more exact,
    than one after the other. None where it has no such reductions, or writes elements on the way."""
    if kernel.pointwise or not any(map(_coupled, kernel.reduces)):
        return None
    axes = {o.name: frozenset(a for a in o.shape if a) for o in kernel.operands}
    axes.update({scalar.name: frozenset() for scalar in kernel.scalars})
    for let in kernel.body:
        axes[let.name] = expr_axes(let.expr, axes)
    each = tuple(let for let in kernel.body if axes[let.name] & set(kernel.over))
    before = tuple(let for let in kernel.body if let not in each)
    return RowKernel(
        kernel.name, kernel.op, kernel.space, kernel.over, kernel.operands, kernel.scalars, (), kernel.reduces,
        (*before, *kernel.epilogue), kernel.outputs, before=before,
        stages=(Stage(each, kernel.reduces, kernel.epilogue),),
    )  # fmt: skip


def row_cost(kernel: RowKernel) -> int:
    """What a row kernel computes once a row that a kernel without rows computes at every element (`Function.cost`)."""
    axes = {o.name: frozenset(a for a in o.shape if a) for o in kernel.operands}
    axes.update({scalar.name: frozenset() for scalar in kernel.scalars})
    for let in (*kernel.before, *kernel.body):
        axes[let.name] = expr_axes(let.expr, axes)
    nodes = walk([item.expr for item in (*kernel.before, *kernel.body, *kernel.pointwise)])
    once = {n for n in nodes if isinstance(n, Call) and not expr_axes(n, axes) & set(kernel.over)}
    return sum(DIVISION if node.function == "div" else lookup(node.function).cost for node in once)


def in_order(axes: Iterable[str]) -> tuple[str, ...]:
    """Axes as the op has them, slow to fast."""
    return tuple(sorted(axes, key=axis_order))


def _partial(reduce: Reduce, split: _Split) -> Output:
    """Where the kernel leaves what it has of a sum: a number for each group of rows, or each piece of a row."""
    column = reduce in split.columns
    axes = in_order(split.over if column else split.kept)
    name = f"{reduce.name}_by_{'group' if column else 'piece'}"
    return Output(name, reduce.ref, reduce.expr.dtype, (GROUPS if column else PIECES, *axes))


def _rest_of(reduce: Reduce, split: _Split, started: Mapping[str, Reduce]) -> Reduce:
    """The sum of partial results that stands for a sum which the kernel began."""
    if reduce.name not in started:
        return reduce
    partial = _partial(reduce, split)
    own = {a for a in partial.shape if a}
    over = (str(partial.shape[0]), *(a for a in reduce.over if a in own))
    return replace(reduce, expr=Ref(partial.name, partial.dtype), over=over)


def _factors_outside(
    rows: Sequence[Reduce], over: frozenset[str], axes: Mapping[str, frozenset[str]], shown: set[str]
) -> tuple[list[Reduce], dict[Expr, Expr]]:
    """Sums without the factors that are the same for the whole row, and what now stands for each.

    ``shown``: sums that leave the kernel, which stay what they are.
    """
    found: list[Reduce] = []
    values: dict[Expr, Expr] = {}
    for reduce in rows:
        expr, sign = reduce.expr, 1
        if isinstance(expr, Call) and expr.function == "neg":
            expr, sign = expr.args[0], -1
        if reduce.kind == "sum" and reduce.name not in shown and isinstance(expr, Call) and expr.function == "mul":
            along, factor = expr.args
            if not expr_axes(factor, axes) & over and expr_axes(along, axes) >= over:
                found.append(replace(reduce, expr=along))
                scaled = reduce.ref * factor
                values[reduce.ref] = scaled if sign > 0 else -scaled
                continue
        found.append(reduce)
    return found, values


def _kernel(
    op: Op, split: _Split, shown: set[str], given: Sequence[Reduce], pointwise: list[Output], ends: list[Output],
    partials: list[Output], axes: dict[str, frozenset[str]],
) -> RowKernel:  # fmt: skip
    floats = [o.dtype for o in op.outputs if o.dtype.is_float]
    hoist = Hoist(axes, split.over, bool(floats) and all(dtype.is_half for dtype in floats))
    rows = [replace(r, expr=hoist.one(r.expr)) for r in split.rows]
    if not split.pieces:
        rows, values = _factors_outside(rows, split.over, axes, shown)
        rows = [replace(r, expr=hoist.one(substitute(r.expr, values))) for r in rows]
        pointwise = [replace(o, expr=substitute(o.expr, values)) for o in pointwise]
        split = replace(split, columns=tuple(replace(r, expr=substitute(r.expr, values)) for r in split.columns))
    columns = [replace(r, expr=hoist.one(r.expr)) for r in split.columns]
    pointwise = [replace(o, expr=hoist.one(o.expr)) for o in pointwise]
    names = {hoist.one(expr): name for expr, name in op.names().items()}
    items = [*rows, *columns, *pointwise, *ends]
    stored = {r.name: Operand(r.name, r.expr.dtype, in_order(axes[r.name])) for r in given}
    operands, scalars = read_by(op, stored, [item.expr for item in items])
    taken = {thing.name for thing in (*operands, *scalars, *rows, *split.columns)}
    levels = _levels(rows)
    ordered = sorted(rows, key=lambda r: levels[r.name])
    statements, bound = introduce_lets([*ordered, *columns], [*pointwise, *ends], names, taken)
    lets = [s for s in statements if isinstance(s, Let)]
    named: Names = {s.name: s for s in statements}
    depth: dict[str, int] = {**levels}
    for let in lets:
        axes[let.name] = expr_axes(let.expr, axes)
        depth[let.name] = max((depth.get(ref.name, 0) for ref in refs(let.expr)), default=0)
    once = [let for let in lets if not axes[let.name] & split.over]
    each = [let for let in lets if axes[let.name] & split.over]
    final = {r.name: r for r in statements if isinstance(r, Reduce)}
    stages = []
    for level in range(1, max(levels.values(), default=0) + 1):
        own = tuple(final[r.name] for r in ordered if levels[r.name] == level)
        after = tuple(let for let in once if depth[let.name] == level)
        stages.append(Stage(_needed(each, own, named), own, after))
    sums = tuple(final[r.name] for r in columns)
    last = tuple(bound[: len(pointwise)])
    return RowKernel(
        kernel_name(op), op, in_order(split.space), in_order(split.over),
        operands, scalars, _needed(each, (*last, *sums), named), tuple(final[r.name] for r in ordered),
        tuple(once), tuple(bound[len(pointwise):]), last,
        before=tuple(let for let in once if depth[let.name] == 0), stages=tuple(stages), columns=sums,
        pieces=split.pieces, partials=tuple(partials),
    )  # fmt: skip


def _levels(rows: Sequence[Reduce]) -> dict[str, int]:
    """1 for a reduction that needs no other, else one more than what it needs."""
    levels: dict[str, int] = {}
    pending = list(rows)
    names = {r.name for r in rows}
    while pending:
        for reduce in list(pending):
            needs = {ref.name for ref in refs(reduce.expr)} & names
            if needs <= set(levels):
                levels[reduce.name] = 1 + max((levels[n] for n in needs), default=0)
                pending.remove(reduce)
    return levels


def _needed(each: Sequence[Let], items: Iterable[Reduce | Output], named: Names) -> tuple[Let, ...]:
    """The lets among ``each`` that the items read, directly or not, in order."""
    wanted: set[str] = set()
    stack = [item.expr for item in items]
    while stack:
        for ref in refs(stack.pop()):
            if ref.name not in wanted and ref.name in named:
                wanted.add(ref.name)
                stack += [named[ref.name].expr] if isinstance(named[ref.name], Let) else []
    return tuple(let for let in each if let.name in wanted)

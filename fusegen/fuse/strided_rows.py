"""Reductions of strided rows: threads own neighbouring results and hold their elements in registers.

Where the reduced axes are slow ones (the channels of an image), the elements of a row are strided, and rows lie side by
side: neighbouring threads read elements of neighbouring rows. A row that a block of a row kernel reduces (fuse/rows) is
reduced here by one thread, or by a few threads of a block. Sums over all results, such as a loss, are computed in the
same pass; sums over positions are kernels of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import ClassVar

from fusegen.core.ir import Let, Op, Operand, Output, Reduce, Ref, expr_axes, names_read, refs
from fusegen.core.monoids import BY_KIND
from fusegen.core.subexpressions import introduce_lets
from fusegen.fuse.choices import KernelChoices, powers
from fusegen.fuse.kernel import partial_result, read_by
from fusegen.fuse.reuse import Reuse
from fusegen.fuse.row_kernel import GROUP_AXIS, RowKernel
from fusegen.fuse.rows import Allowed, Fused, fuse, strided_elementwise
from fusegen.fuse.rows_schedule import MOST_REGISTERS, MULTIPROCESSORS, REGISTERS, STATIC
from fusegen.fuse.schedule import (
    LARGEST_VECTOR,
    TILE,
    VECTOR_BYTES,
    Access,
    Buffer,
    Launch,
    Loop,
    Placement,
    Schedule,
    buffer_names,
    faster,
    index_type,
    merged,
    moves,
    needed_sizes,
    ordered,
    positions,
    settled,
)

# Threads of a block; the narrowest block, and the narrowest where there would be too few blocks; most threads that
# share a result.
THREADS, BLOCK_WIDTH, LEAST_BLOCK_WIDTH, MOST_ROWS = 128, 16, 8, 32
# So many threads that share a result wait for one another longer than they work.
MANY_ROWS = 16
# Bytes of neighbouring elements that a thread reads at least: a warp then reads whole cache lines. And what it reads
# where as many threads share a result as can, and there is room.
LEAST_READ_BYTES, WIDE_READ_BYTES = 4, 8
# Most bytes of elements that a thread holds in registers: if it has a result to itself, if threads share a result, if
# no more threads can share it, and if its vectors are wider than LEAST_READ_BYTES. Many threads with few elements each
# hide more latency than few threads with many.
MOST_BYTES_ALONE, MOST_BYTES_SHARED, MOST_BYTES, MOST_BYTES_WIDE = 160, 96, 192, 96
MOST_ELEMENTS, SHARED_ELEMENTS = 24, 16
# Least blocks for wider vectors; and most blocks on a multiprocessor that add up over all results: each leaves a
# partial sum, and one block of a second kernel adds up those.
WIDE_BLOCKS, SUMMING_BLOCKS = 4 * MULTIPROCESSORS, 7
# Registers that a thread needs besides those for elements and states: fewer where it holds at most FEW_WORDS words of
# elements, all of which the compiler then loads with little else live.
OVERHEAD, OVERHEAD_OF_FEW_WORDS, FEW_WORDS = 56, 40, 16
MOST_THREADS = 2048
# Words of elements and states that a thread of a large block may hold for two such blocks to be resident: one works
# while the other waits for some of its threads.
TWICE_HELD = 40


@dataclass(frozen=True)
class StridedRowKernel(RowKernel):
    """A row kernel whose rows lie side by side.

    ``totals``: sums over all rows of what follows from a row's reductions by way of ``summing``; they leave as
    ``partials``, a number for each block.
    """

    summing: tuple[Let, ...] = ()
    totals: tuple[Reduce, ...] = ()

    @property
    def items(self) -> tuple[Let | Reduce | Output, ...]:
        """Everything the kernel computes, in order, each once."""
        return tuple(dict.fromkeys((*super().items, *self.summing, *self.totals)))


def fuse_strided_rows(
    op: Op, reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]]
) -> Fused | None:
    """The same as `rows.fuse` for rows side by side; None where a kernel a reduction reads as little."""
    if not reduces:
        fused = strided_elementwise(op, outputs, axes)
        return fused and _with_totals(op, fused, ())
    fused = fuse(op, reduces, outputs, axes, Allowed(segments=False, columns=False))
    if fused is None or not fused.kernel.stages:
        return None
    kernel, totals = fused.kernel, _totals(fused, axes)
    coupled = any(BY_KIND[r.kind].partner for r in kernel.reduces)
    if not (totals or coupled or len(kernel.stages) > 1 or _waits(kernel)):
        return None
    return _with_totals(op, fused, totals)


def _waits(kernel: RowKernel) -> bool:
    """Whether elementwise results follow from a row's reductions."""
    known = {item.name for stage in kernel.stages for item in (*stage.reduces, *stage.after)}
    return not known.isdisjoint(names_read([*kernel.body, *kernel.pointwise]))


def _totals(fused: Fused, axes: Mapping[str, frozenset[str]]) -> list[Reduce]:
    """Sums over all results of what is known once a row is; none where no row is needed for any."""
    kept, rows = set(fused.kernel.kept), {r.name for r in fused.kernel.reduces}
    later = {r.name for r in fused.reduces} | {operand.name for operand in fused.stored} - rows
    found = [
        r for r in fused.reduces
        if r.kind == "sum" and kept and not {ref.name for ref in refs(r.expr)} & later
        and kept == set(r.over) == expr_axes(r.expr, axes)
    ]  # fmt: skip
    return [] if rows.isdisjoint(names_read(found)) else found


def _with_totals(op: Op, fused: Fused, totals: Sequence[Reduce]) -> Fused:
    """The kernel with these sums, and what it need not leave in memory for others any more."""
    kernel = fused.kernel
    values = {f.name: getattr(kernel, f.name) for f in fields(RowKernel)}
    if not totals:
        return replace(fused, kernel=StridedRowKernel(**values))
    given = {r.name: next(o for o in kernel.operands if o.name == r.name) for r in fused.given}
    operands, scalars = read_by(op, given, [item.expr for item in (*kernel.items, *totals)])
    taken = {thing.name for thing in (*operands, *scalars, *kernel.items, *totals)}
    statements, _ = introduce_lets(list(totals), [], op.names(), taken)
    partials = [partial_result(op, r, "group", (GROUP_AXIS,)) for r in totals]
    left = {r.name: p for r, p in zip(totals, partials, strict=True)}
    rest = tuple(
        replace(r, expr=Ref(left[r.name].name, r.expr.dtype), over=(GROUP_AXIS,)) if r.name in left else r
        for r in fused.reduces
    )
    wanted = {o.name for o in op.outputs} | names_read([*rest, *fused.outputs])
    outputs = tuple(o for o in kernel.outputs if o.name in wanted)
    values.update(operands=operands, scalars=scalars, outputs=outputs, partials=tuple(partials))
    summing = tuple(s for s in statements if isinstance(s, Let))
    final = tuple(s for s in statements if isinstance(s, Reduce))
    stored = [o for o in fused.stored if o.name in wanted]
    stored += [Operand(p.name, p.dtype, p.shape) for p in partials]
    return Fused(
        StridedRowKernel(**values, summing=summing, totals=final), fused.given, rest, fused.outputs, tuple(stored)
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StridedRowSchedule(Schedule):
    """A thread holds elements of neighbouring results in registers.

    Args:
        vectors_per_thread: elements of each result that a thread holds.
        filled: every thread has as many.
        exact: besides, every thread has a result.
        block_width: blockDim.x, the threads of a block that have different results.
        rows: threads that share each result.
        persistent: a block goes on to further results, and keeps sums over them.
        reused: intermediates that a thread keeps from one traversal to the next.
        resident: blocks that a multiprocessor should have registers for.
    """

    template: ClassVar[str] = "strided_rows"

    vectors_per_thread: int = 1
    filled: bool
    exact: bool
    block_width: int
    rows: int
    persistent: bool
    reused: tuple[str, ...] = ()
    resident: int = 1


@dataclass(frozen=True)
class _Shape:
    """How a block is divided.

    Args:
        vector: neighbouring results of a thread.
        vectors_per_thread: elements of each result that a thread holds.
        block_width: threads with different results.
        rows: threads that share each result.
    """

    vector: int
    vectors_per_thread: int
    block_width: int
    rows: int

    def blocks(self, m: int) -> int:
        """Blocks for ``m`` results."""
        return -(-m // (self.block_width * self.vector))


def schedule_strided_rows(
    kernel: StridedRowKernel, sizes: Mapping[str, int], given: Mapping[str, Buffer], choices: KernelChoices
) -> tuple[StridedRowSchedule, Launch] | None:
    """How to walk, or None where rows do not lie side by side, or are too long for registers."""
    buffers = {**given, **positions(kernel, sizes)}
    leading = sorted(
        [buffers[thing.name] for thing in (*kernel.streams, *kernel.written)],
        key=lambda b: -sum(1 for stride in b.strides.values() if stride),
    )
    kept_order, over_order = ordered(kernel.kept, leading), ordered(kernel.over, leading)
    kept, over = merged(kept_order, sizes, buffers), merged(over_order, sizes, buffers)
    loops = [*kept, *over]
    m, n = prod(loop.size for loop in kept), prod(loop.size for loop in over)
    if not kept or not over or m * n == 0 or not faster(kept[-1], over[-1], kernel):
        return None
    found = {name: moves([loop.strides[name] for loop in loops]) for name in buffers}
    streams = [o.name for o in kernel.tensors if _is_stream(found[o.name], len(kept))]
    shape = _shape(kernel, loops, len(kept), buffers, streams, m, n, choices) if streams else None
    if shape and shape.rows >= MANY_ROWS and not kernel.pointwise and len(kernel.stages) == 1 and not kernel.totals:
        return None  # a column kernel reads as little, and its threads wait for one another at its end only
    if shape is None or not (kernel.stages or _reads_again(kernel, found, len(kept), buffers, streams)):
        return None
    plan = StridedRowSchedule(
        loops=len(kept), inner=len(over), vector=shape.vector, threads=shape.block_width * shape.rows,
        index=index_type(loops, buffers),
        placements=_placed(kernel, loops, len(kept) - 1, buffers, shape.vector),
        vectors_per_thread=shape.vectors_per_thread, filled=n == shape.vectors_per_thread * shape.rows,
        exact=_is_exact(kernel, shape, m, n), block_width=shape.block_width, rows=shape.rows,
        persistent=bool(kernel.totals),
    )  # fmt: skip
    moved = sum(buffers[name].dtype.size for name in {*streams, *(o.name for o in kernel.pointwise)})
    room = min(MOST_REGISTERS, REGISTERS // plan.threads) - registers(kernel, plan)
    kept_on = Reuse(kernel).kept(moved, plan.vector * plan.vectors_per_thread, room, {})
    plan = replace(plan, reused=kept_on if kept_on and choices.ask("keep", True) else ())
    blocks, most = shape.blocks(m), SUMMING_BLOCKS if plan.persistent else MOST_THREADS
    own = min(most, resident(kernel, plan))
    if plan.threads == MOST_THREADS // 4 and own == 1 and _held(kernel, plan) + _states(kernel, plan) <= TWICE_HELD:
        own = 2
    plan = replace(plan, resident=choices.take("resident", own, range(1, min(2 * SUMMING_BLOCKS, 2 * own + 1))))
    if plan.persistent:
        blocks = min(blocks, MULTIPROCESSORS * plan.resident)
    launch = Launch(
        tuple(loop.size for loop in loops), {name: tuple(loop.strides[name] for loop in loops) for name in buffers},
        needed_sizes(kernel, sizes, buffers), (blocks, 1, 1), block=(shape.block_width, shape.rows, 1),
        partial_sizes={GROUP_AXIS: blocks} if kernel.partials else {}, order=(*kept_order, *over_order),
    )  # fmt: skip
    return plan, launch


def _is_exact(kernel: StridedRowKernel, shape: _Shape, m: int, n: int) -> bool:
    """Whether every thread has a result, and as many elements as it has room for."""
    together = shape.rows > 1 or bool(kernel.totals)  # else threads without results have ended
    return n == shape.vectors_per_thread * shape.rows and not (together and m % (shape.block_width * shape.vector))


def _reads_again(
    kernel: StridedRowKernel, found: Mapping[str, Sequence[str]], kept: int, buffers: Mapping[str, Buffer],
    streams: Sequence[str],
) -> bool:  # fmt: skip
    """Whether an elementwise kernel would read as many bytes again for each element of a result as it moves."""
    again = [o.name for o in kernel.tensors if o.name not in streams and found[o.name][kept - 1] != "0"]
    moved = [*streams, *(o.name for o in kernel.pointwise)]
    return sum(buffers[n].dtype.size for n in again) >= sum(buffers[n].dtype.size for n in moved)


def _is_stream(move: Sequence[str], kept: int) -> bool:
    return move[kept - 1] != "0" and any(step != "0" for step in move[kept:])


def streams_of(kernel: StridedRowKernel, plan: StridedRowSchedule) -> list[Operand]:
    """The operands whose elements a thread keeps: it reads several, and no thread of another result any of them."""
    return [o for o in kernel.tensors if _is_stream(plan.placement(o.name).moves, plan.loops)]


def resident(kernel: StridedRowKernel, plan: StridedRowSchedule) -> int:
    """How many blocks the registers of a multiprocessor hold."""
    return max(1, min(MOST_THREADS // plan.threads, REGISTERS // (plan.threads * registers(kernel, plan))))


def _held(kernel: StridedRowKernel, plan: StridedRowSchedule) -> int:
    """Words that a thread holds of a row's elements and of what it keeps from them."""
    raw = sum(max(1, o.dtype.size * plan.vector // 4) for o in streams_of(kernel, plan)) * plan.vectors_per_thread
    kept = sum(i.expr.dtype.size for i in kernel.items if isinstance(i, Let) and i.name in plan.reused)
    return raw + kept * plan.vector * plan.vectors_per_thread // 4


def _states(kernel: StridedRowKernel, plan: StridedRowSchedule) -> int:
    """Words of the states of its reductions."""
    return sum(BY_KIND[r.kind].fields * r.expr.dtype.size for r in kernel.reduces) * plan.vector // 4


def registers(kernel: StridedRowKernel, plan: StridedRowSchedule) -> int:
    """How many a thread needs, about."""
    held = _held(kernel, plan)
    return held + _states(kernel, plan) + (OVERHEAD_OF_FEW_WORDS if held <= FEW_WORDS else OVERHEAD)


def _shape(
    kernel: StridedRowKernel, loops: Sequence[Loop], kept: int, buffers: Mapping[str, Buffer], streams: Sequence[str],
    m: int, n: int, choices: KernelChoices,
) -> _Shape | None:  # fmt: skip
    """How many threads share a result, and with it the order of additions, follows from its elements alone."""
    width, least = sum(buffers[name].dtype.size for name in streams), min(buffers[n].dtype.size for n in streams)
    narrow = max(1, LEAST_READ_BYTES // least)
    rows, per_thread = 1, n
    if not _fits(per_thread, narrow * width, MOST_BYTES_ALONE):
        shared = MOST_BYTES_SHARED, SHARED_ELEMENTS
        while rows < MOST_ROWS and not (rows > 1 and _fits(per_thread, narrow * width, *shared)):
            rows *= 2
            per_thread = _elements(n, rows)
        if not _fits(per_thread, narrow * width, MOST_BYTES):
            return None
    fitting = [
        r
        for r in powers(1, MOST_ROWS)
        if _fits(n if r == 1 else _elements(n, r), narrow * width, MOST_BYTES) and r <= n
    ]
    rows = choices.take("rows", rows, fitting)
    per_thread = n if rows == 1 else _elements(n, rows)

    def possible(vector: int) -> bool:
        placed = {p.name: p for p in _placed(kernel, loops, kept - 1, buffers, vector)}
        return loops[kept - 1].size % vector == 0 and all(placed[name].access is Access.ROW for name in streams)

    vector = narrow
    while vector > 1 and not possible(vector):
        vector //= 2
    shape = _Shape(vector, per_thread, max(BLOCK_WIDTH, THREADS // rows), rows)
    while 2 * shape.vector <= min(LARGEST_VECTOR, VECTOR_BYTES // least) and possible(2 * shape.vector):
        wider = replace(shape, vector=2 * shape.vector)
        if rows > 1 or not _fits(per_thread, wider.vector * width, MOST_BYTES_WIDE) or wider.blocks(m) < WIDE_BLOCKS:
            break
        shape = wider
    wider = replace(shape, vector=2 * shape.vector)
    fits = wider.vector * least <= WIDE_READ_BYTES and _fits(per_thread, wider.vector * width, MOST_BYTES)
    fits = fits and _exchanged(kernel, wider) <= STATIC
    # Half as many blocks, twice as long each: not where that leaves more multiprocessors idle at the end.
    takes_no_longer = 2 * -(-wider.blocks(m) // MULTIPROCESSORS) <= -(-shape.blocks(m) // MULTIPROCESSORS)
    if rows == MOST_ROWS and fits and possible(wider.vector) and takes_no_longer:
        shape = wider
    widest = min(LARGEST_VECTOR, VECTOR_BYTES // least)
    vectors = [v for v in powers(1, widest) if possible(v) and _fits(per_thread, v * width, MOST_BYTES)]
    shape = replace(shape, vector=choices.take("vector", shape.vector, vectors))
    while shape.block_width > max(LEAST_BLOCK_WIDTH, TILE // rows) and shape.blocks(m) < MULTIPROCESSORS:
        shape = replace(shape, block_width=shape.block_width // 2)
    widths = powers(max(LEAST_BLOCK_WIDTH, TILE // rows), 2 * THREADS // rows)
    shape = replace(shape, block_width=choices.take("block_width", shape.block_width, widths))
    return shape if rows == 1 or _exchanged(kernel, shape) <= STATIC else None


def _elements(n: int, rows: int) -> int:
    """Elements that each of several threads has room for: few different numbers, so that few texts serve all sizes.

    A thread with a result to itself has a text for each number: without branches between elements it is faster.
    """
    each = -(-n // rows)
    return each if each <= 2 else -(-each // 4) * 4


def _fits(per_thread: int, width: int, most: int, elements: int = MOST_ELEMENTS) -> bool:
    return per_thread <= elements and per_thread * width <= most


def _exchanged(kernel: StridedRowKernel, shape: _Shape) -> int:
    """Bytes of shared memory through which threads exchange what they have of a result."""
    state_bytes = sum(BY_KIND[r.kind].fields * r.expr.dtype.size for r in kernel.reduces)
    groups = 5 if shape.rows > 8 else 0  # fg::combine_column
    return state_bytes * shape.vector * shape.block_width * (shape.rows + 1 + groups)


def _placed(
    kernel: StridedRowKernel, loops: Sequence[Loop], fast: int, buffers: Mapping[str, Buffer], vector: int
) -> tuple[Placement, ...]:
    """How everything is found: as vectors along the loop ``fast`` where it lies so."""
    placements = []
    visited = {thing.name for thing in (*kernel.tensors, *kernel.written)}
    for name in buffer_names(kernel):
        own = [loop.strides[name] for loop in loops]
        access = Access.STRIDED if any(own) else Access.SINGLE
        wide = min(VECTOR_BYTES, vector * buffers[name].dtype.size)
        apart = all(stride % vector == 0 for position, stride in enumerate(own) if position != fast)
        if vector > 1 and name in visited and own[fast] == 1 and apart and buffers[name].alignment % wide == 0:
            access = Access.ROW
        placements.append(Placement(name, access, moves(own)))
    return settled(kernel, loops, placements, buffers, vector, fast)

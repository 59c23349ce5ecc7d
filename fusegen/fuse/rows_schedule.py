"""How many threads, vectors and blocks share a row of a row kernel, and how many rows a block takes.

A row is kept on chip from its one read to its last use. So the sizes follow from the length of a row and from what
a thread can hold, never from the number of rows. The numbers below were measured on an H200 (docs/performance.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from fusegen.core.ir import Let
from fusegen.core.monoids import BY_KIND
from fusegen.fuse.choices import KernelChoices, powers
from fusegen.fuse.finish import finish_of
from fusegen.fuse.reuse import BOUND_BY_ARITHMETIC, Reuse
from fusegen.fuse.row_kernel import GROUP_AXIS, SHARE_AXIS, TILE_AXIS, RowKernel, element_cost, row_cost
from fusegen.fuse.schedule import (
    VECTOR_BYTES,
    WANTED_BLOCKS,
    Access,
    Buffer,
    Launch,
    Loop,
    Placement,
    Schedule,
    buffer_names,
    faster,
    index_type,
    is_serial,
    merged,
    moves,
    needed_sizes,
    ordered,
    positions,
    settled,
    vector_placements,
)

WARP = 32
# Threads of a block that takes several short rows at a time: of one that ends after these rows, and of a persistent
# one, whose sums over rows are then combined by fewer threads.
SHORT_BLOCK, SHORT_PERSISTENT_BLOCK = 128, 256
# Bytes of a row that a thread reads before it uses the first of them: enough loads in flight, few enough registers.
# Of bytes and bools, elements.
BYTES_AHEAD, ELEMENTS_AHEAD = 64, 32
# A row is staged in shared memory if each thread holds at least STAGED_FROM bytes of it; of rows so short that a block
# takes several and ends, SHORT_STAGED_FROM: such a block waits for its loads once, staged or not. STATIC: bytes of
# shared memory for rows that a kernel can declare. EXCHANGED: bytes that it needs for exchanging partial results.
STAGED_FROM, SHORT_STAGED_FROM, STATIC, EXCHANGED = 64, 96, 44 * 1024, 4 * 1024
# Bytes that the L2 cache hands over at once.
SECTOR = 32
# Where alignment would leave vectors of fewer bytes than this, rows are read in full vectors instead, which begin at
# each row's first aligned address (`RowSchedule.unaligned`).
NARROW_VECTOR_BYTES = 8
# Bytes of a row whose only reductions are uncoupled ones with nothing behind them. Shorter ones are reduced by a thread
# each if they are many, longer ones by many blocks (fuse/schedule).
SIMPLE_ROW_BYTES = (32, 16 * 1024)
# Rows of more bytes than CHUNKED_FROM are read in chunks, where nothing needs their elements again. The threads of such
# a block: fewer where there are several blocks for each multiprocessor. And the bytes of a row above which blocks of a
# cluster share it.
CHUNKED_FROM, CHUNKED_THREADS, CHUNKED_BLOCK_BYTES = 16 * 1024, 512, 256 * 1024
# Elementwise kernels go by rows where that saves so much arithmetic at every element (`Function.cost`).
ROW_COST = 16
# The most blocks that a grid can have in y and in z.
MOST_ROW_TILES = MOST_SLICES = 65535
# Rows of a slice for each that a block takes at a time: fewer are not worth a partial sum for each position in a row.
FEWEST_IN_SLICE = 8
# Registers of a multiprocessor; those that a thread needs beside what it keeps of a row, and where rows are staged and
# summed over; and the most that it has where it keeps intermediates. Threads of a multiprocessor.
REGISTERS, OVERHEAD, STAGED_OVERHEAD, MOST_REGISTERS = 65536, 48, 40, 128
MOST_THREADS = 2048
# Positions of a row for which a thread keeps sums over rows.
SUMS_PER_THREAD = 16
# Bytes of sums over rows above which a thread rather keeps those of fewer positions, if a block has threads for that.
SUMS_IN_REGISTERS = 128
# Most bytes of raw operands and of column sums that a thread holds.
MOST_RAW, MOST_SUMS = 256, 256
# Most threads of a block that has a row to itself, of one in a cluster, and where even the largest cluster needs more.
ONE_BLOCK_THREADS, CLUSTER_BLOCK_THREADS = 256, 256
MOST_BLOCK_THREADS = 1024
# Most threads of a cluster that is chosen instead of a schedule's own: its blocks must fit one GPC together.
MOST_CLUSTER_THREADS = 16 * CLUSTER_BLOCK_THREADS
# Most threads of a persistent block that keeps sums over rows and stages rows in shared memory: one block on each
# multiprocessor.
PERSISTENT_BLOCK_THREADS = 512
# Threads of persistent blocks on each multiprocessor, and the multiprocessors of a large GPU. CLUSTERED: those that
# clusters of more than two blocks can use, by the cluster's size, because a cluster lies within one GPC. Fixed numbers,
# so that the order of additions does not depend on the machine.
PERSISTENT_THREADS, MULTIPROCESSORS, CLUSTERED = 768, 132, {4: 120, 8: 120, 16: 112}
# Bytes of rows that the threads of a multiprocessor should have under way: if each has few, there are more threads.
BYTES_UNDER_WAY = 24 * 1024
# Elements of the shortest segment of a row: shorter ones would leave too many partial sums.
SHORTEST_SEGMENT = 32
# How many times as many threads smaller blocks must have on a multiprocessor.
MORE_THREADS = 1.5
# How many of a row's threads, times their vectors, must be spared before each has a vector more: a few lengths of rows
# do not come out even, and each that has another shape compiles anew.
FEWER_IDLE = 0.75
# How many of its steps a row must spare before it goes without vectors.
FEWER_STEPS = 0.85
# Instructions of each thread that take as long as a warp's read of vectors' elements, one at a time: it touches four
# times as many lines of the first cache as it reads. A read of neighbours takes as many as each has bytes.
ASKEW = 16
# Blocks that take row tiles.
ROW_TILE_BLOCKS = 264


@dataclass(frozen=True)
class Chip:
    """What of a GPU a row kernel depends on.

    Args:
        cluster: most blocks that can share a row (distributed shared memory); 1 before compute capability 9.0.
        shared: bytes of shared memory that a block can have.
    """

    cluster: int = 16
    shared: int = 227 * 1024

    @property
    def starts_early(self) -> bool:
        """Whether a kernel may start while the one before it drains: possible since there are clusters."""
        return self.cluster > 1


@dataclass(frozen=True, kw_only=True)
class RowSchedule(Schedule):
    """A row is read once and stays on chip until nothing needs it.

    Args:
        vectors_per_thread: vectors of a row that a thread holds of each operand.
        exact: every thread has elements in all of them.
        rows: rows that a block takes at a time (blockDim.y).
        cluster: blocks that share a row.
        slices: the loops that number slices. A block's rows are all of one slice, which blockIdx.z tells.
        persistent: a block loops over several rows, and keeps sums over them.
        prefetch: it reads the next row before it computes the present one.
        staged: rows are staged in shared memory, rather than in registers.
        dynamic: bytes of shared memory that the kernel is launched with.
        unaligned: rows need not begin at an aligned address: single elements before the first vector and behind the
            last.
        chunked: a row is read in chunks, and no chunk is kept.
        split: blocks that share a row leave parts of its sums for a second kernel.
        reused: intermediates that a thread keeps from one traversal of a row to the next.
        resident: blocks that a multiprocessor's registers must hold.
        threads_per_segment: threads that add up one segment of a row (fuse/segments).
    """

    template: ClassVar[str] = "rows"

    exact: bool
    vectors_per_thread: int = 1
    rows: int
    cluster: int = 1
    slices: int
    persistent: bool
    prefetch: bool = False
    staged: bool = False
    dynamic: int = 0
    unaligned: bool
    chunked: bool
    split: bool = False
    finish: str = "thread"
    reused: tuple[str, ...] = ()
    resident: int = 1
    threads_per_segment: int


@dataclass(frozen=True)
class _Shape:
    """Threads, vectors a thread, and blocks for one row; rows side by side in a block.

    ``splits``: blocks that share a row without knowing of each other, for a second kernel to put together.
    """

    threads: int
    vectors_per_thread: int
    cluster: int
    rows: int
    splits: int = 1


@dataclass(frozen=True)
class _Keeping:
    """What intermediates cost that a thread computes once, or again in each traversal.

    Args:
        cost: `Function.cost` of all traversals of an element, for a shape.
        least: of a thread that has room for all of them; 0 of a kernel in which none is worth keeping.
    """

    cost: Callable[[_Shape], int]
    least: int


def schedule_rows(
    kernel: RowKernel, sizes: Mapping[str, int], given: Mapping[str, Buffer], chip: Chip, choices: KernelChoices
) -> tuple[RowSchedule, Launch] | None:
    """How to walk, or None where a row does not lie side by side in memory, or not on the chip."""
    buffers = {**given, **positions(kernel, sizes)}
    reads = [buffers[o.name] for o in kernel.streams]
    leading = sorted([*reads, *(buffers[o.name] for o in kernel.written)], key=_breadth)
    kept_order, over_order = ordered(kernel.kept, leading), ordered(kernel.over, leading)
    kept_order.sort(key=lambda axis: axis not in kernel.slices)
    slices = prod(sizes[axis] for axis in kernel.slices)
    apart = len(kernel.slices) if slices > 1 else 0
    outer, over = merged(kept_order[:apart], sizes, buffers), merged(over_order, sizes, buffers)
    kept, sliced = [*outer, *merged(kept_order[apart:], sizes, buffers)], len(outer)
    if not over or prod(loop.size for loop in (*kept, *over)) == 0 or (kept and faster(kept[-1], over[-1], kernel)):
        return None
    loops = [*kept, *over]
    vector, placements = vector_placements(kernel, loops, len(loops) - 1, buffers)
    m, n = prod(loop.size for loop in kept), prod(loop.size for loop in over)
    streams = _streams(kernel, placements, sliced, len(kept))
    if not streams or any(p.moves[-1] == "s" for p in streams):
        return None
    segment, reuse = prod(sizes[axis] for axis in kernel.within), Reuse(kernel)
    if kernel.within and segment < SHORTEST_SEGMENT:  # which no shape is looked for, either: it has no thread
        return None

    def planned(shape: _Shape, choices: KernelChoices) -> RowSchedule:
        return _schedule(
            kernel, reuse, loops, sliced, len(kept), buffers, placements, streams, vector, shape, n, unaligned, segment,
            chip, choices,
        )  # fmt: skip

    unaligned, narrow = False, vector * min(buffers[p.name].dtype.size for p in streams) < NARROW_VECTOR_BYTES
    if narrow and slices > 1:  # of rows that begin anywhere, a block's must begin at the same place between vectors
        return None
    if narrow:
        wider, aligned = _unaligned(kernel, loops, len(kept), buffers, streams)
        if wider > vector:
            shape = _shape(kernel, n // wider, _width(streams, buffers) * wider, wider, chip, choices, least=2 * wider)
            if shape is not None and (shape.rows == 1 or not kernel.columns):
                unaligned = not _better_one_by_one(kernel, shape, n, wider, streams, buffers, chip)
    if unaligned:
        vector, placements = wider, aligned
        streams = _streams(kernel, placements, sliced, len(kept))
    else:
        every = reuse.kept(_moved(kernel, streams, buffers), 1, REGISTERS, {})
        keeping = _Keeping(
            lambda shape: reuse.cost(planned(shape, KernelChoices({})).reused, {}),
            reuse.cost(every, {}) if every else 0,
        )
        width = _width(streams, buffers) * vector
        shape = _shape(kernel, n // vector, width, vector, chip, choices, keeping=keeping)
    length = n * _width(streams, buffers)
    shortest = SIMPLE_ROW_BYTES[0] if is_serial(m, n) else 0
    if is_read_once(kernel) and not is_coupled(kernel) and not shortest <= length <= SIMPLE_ROW_BYTES[1]:
        return None
    if is_read_once(kernel) and length > CHUNKED_FROM:
        shape = _chunked_shape(m, n, _width(streams, buffers), vector, chip, choices)
    elementwise = not (kernel.reduces or kernel.columns)
    if shape is None or (elementwise and row_cost(kernel) < ROW_COST):
        return None
    if kernel.row_tiles:
        tiles = -(-n // (shape.threads * shape.vectors_per_thread * vector))
        if tiles > MOST_ROW_TILES or (tiles == 1 and kernel.has_sums_of_rows):  # another candidate ends these sums
            return None
    if slices > 1 and not _in_slices(slices, m, shape):
        return None
    if kernel.segments and (unaligned or segment % vector or not _in_runs(kernel, sizes, over_order, shape)):
        return None
    found = planned(shape, choices)
    if found.persistent and not (unaligned or kernel.segments or kernel.slices) and "rows" in choices.made:
        rows = choices.take("rows", _fitting_rows(kernel, found), choices.made["rows"].options)
        if rows != shape.rows:
            shape = replace(shape, rows=rows)
            found = planned(shape, choices)
    found = replace(found, resident=_side_by_side(kernel, found, _width(streams, buffers), chip))
    return found, _launch(
        kernel, sizes, loops, buffers, shape, found, m, n, segment, (*kept_order, *over_order), slices, choices
    )


def _in_slices(slices: int, m: int, shape: _Shape) -> bool:
    """Whether a slice has rows enough for a block to go on from row to row, and a grid as many blocks as slices."""
    return slices <= MOST_SLICES and m // slices >= FEWEST_IN_SLICE * shape.rows


def _in_runs(kernel: RowKernel, sizes: Mapping[str, int], order: Sequence[str], shape: _Shape) -> bool:
    """Whether a segment's elements follow each other in a row whose axes, slow to fast, are in this order, and there is
    room for what threads have of it."""
    inside = [axis in kernel.within for axis in order if sizes[axis] > 1]
    return inside == sorted(inside) and _of_segments(kernel, shape) <= STATIC - EXCHANGED


def _of_segments(kernel: RowKernel, shape: _Shape) -> int:
    """Bytes of shared memory in which threads leave what their vectors add to segments."""
    return sum(r.expr.dtype.size for r in kernel.segments) * shape.threads * shape.rows * shape.vectors_per_thread


def _width(streams: list[Placement], buffers: Mapping[str, Buffer]) -> int:
    return sum(buffers[p.name].dtype.size for p in streams)


def _unaligned(
    kernel: RowKernel, loops: list[Loop], kept: int, buffers: Mapping[str, Buffer], streams: list[Placement]
) -> tuple[int, tuple[Placement, ...]]:
    """Vector width and placements where rows begin anywhere, but all streams at the same place between two vectors.

    Vectors then begin at a row's first aligned address, and single elements are left at its ends. Sums over rows need
    the same distance to that address for all rows of a block: see `_launch`.
    """
    if len(loops) - kept != 1 or (kernel.columns and kept > 1):
        return 1, ()
    first = min(streams, key=lambda p: buffers[p.name].dtype.size)
    size = buffers[first.name].dtype.size
    vector = VECTOR_BYTES // size
    if loops[-1].size < 2 * vector or (kept and not any(loop.strides[first.name] for loop in loops[:kept])):
        return 1, ()

    def begins(name: str) -> tuple[int, ...]:
        buffer = buffers[name]
        where = buffer.alignment // size if buffer.dtype.size == size or not buffer.alignment else -1
        return (where, *(loop.strides[name] % vector for loop in loops[:kept]))

    visited = {*(o.name for o in kernel.tensors), *(o.name for o in kernel.pointwise)}
    placements = []
    for name in buffer_names(kernel):
        own = [loop.strides[name] for loop in loops]
        alike = name in visited and own[-1] == 1 and (any(own[:-1]) or not kept) and begins(name) == begins(first.name)
        access = Access.ROW if alike else Access.STRIDED if any(own) else Access.SINGLE
        placements.append(Placement(name, access, moves(own)))
    fits = all(buffers[p.name].dtype.size <= VECTOR_BYTES // 2 for p in streams)
    return vector if fits else 1, settled(kernel, loops, placements, buffers)


def _better_one_by_one(
    kernel: RowKernel, unaligned: _Shape, n: int, wider: int, streams: list[Placement],
    buffers: Mapping[str, Buffer], chip: Chip,
) -> bool:  # fmt: skip
    """Whether a kernel that arithmetic bounds, and that walks over a row once, does better without vectors where rows
    begin anywhere: a short row fills few of its threads' last vectors, and single elements at its ends take as long as
    one of each thread's."""
    moved = _width(streams, buffers) + sum(output.dtype.size for output in kernel.pointwise)
    if (
        not (kernel.reduces and kernel.is_walked_once)
        or kernel.columns
        or element_cost(kernel) < BOUND_BY_ARITHMETIC * moved
    ):
        return False
    shape = _own_shape(kernel, n, _width(streams, buffers), 1, 0, MOST_RAW // _width(streams, buffers), chip, 1)
    if shape is None or shape.cluster > 1:
        return False
    in_vectors = unaligned.threads * (unaligned.vectors_per_thread * wider + 1)
    return shape.threads * shape.vectors_per_thread <= FEWER_STEPS * in_vectors


def _breadth(buffer: Buffer) -> int:
    return -sum(1 for stride in buffer.strides.values() if stride)


def _streams(kernel: RowKernel, placements: tuple[Placement, ...], sliced: int, kept: int) -> list[Placement]:
    """The operands that are as large as the space, or nearly: they come from memory, not from a cache."""
    names = {o.name for o in kernel.tensors}
    own = [p for p in placements if p.name in names and any(move != "0" for move in p.moves[kept:])]
    wide = [p for p in own if any(move != "0" for move in p.moves[sliced:kept])]
    along = [p for p in wide if p.moves[-1] != "0"]  # a group's weights are the same for all pixels
    return along or wide or own


def kept_in_registers(kernel: RowKernel, schedule: RowSchedule) -> list[str]:
    """The operands that a thread reads before all else and keeps: those that move along rows and from row to row."""
    names = {o.name for o in kernel.tensors}
    return [
        p.name for p in schedule.placements
        if p.name in names and p.access is not Access.SINGLE
        and any(move != "0" for move in p.moves[schedule.loops:])
        and (schedule.loops == 0 or any(move != "0" for move in p.moves[schedule.slices : schedule.loops]))
        and (p.access is Access.ROW or (schedule.vector == 1 and p.moves[-1] != "0"))
    ]  # fmt: skip


def kept_for_all(kernel: RowKernel, schedule: RowSchedule) -> list[str]:
    """The operands that all rows of a block have in common: one that goes on from row to row reads them once."""
    kept, fast = schedule.loops, schedule.loops + schedule.inner - 1
    names = {o.name for o in kernel.tensors}
    return [
        p.name for p in schedule.placements
        if schedule.persistent and p.name in names
        and any(move != "0" for move in p.moves[kept:])
        and not any(move != "0" for move in p.moves[schedule.slices : kept])
        and (p.access is Access.ROW or schedule.vector == 1 or (schedule.unaligned and p.moves[fast] == "1"))
    ]  # fmt: skip


def _shape(
    kernel: RowKernel, vectors: int, width: int, vector: int, chip: Chip, choices: KernelChoices, least: int = 1,
    keeping: _Keeping | None = None,
) -> _Shape | None:  # fmt: skip
    """``vectors``: in a row; ``width``: bytes of all streams for one of them; ``least``: threads of a row."""
    sums = sum(r.expr.dtype.size for r in kernel.columns) * vector
    most = max(1, min(MOST_RAW // width, MOST_SUMS // sums if sums else MOST_RAW))
    own = _own_shape(kernel, vectors, width, vector, sums, most, chip, least)
    if own is None or kernel.row_tiles:
        return own
    if keeping is not None and keeping.least:
        own = _keeping_more(kernel, own, vectors, least, keeping)
    return _chosen_shape(own, vectors, width + sums, most, chip, choices, least)


def _keeping_more(kernel: RowKernel, own: _Shape, vectors: int, least: int, keeping: _Keeping) -> _Shape:
    """The shape, or one of fewer vectors a thread, where that leaves room for intermediates which a kernel that
    arithmetic bounds would compute again."""
    found, cost = own, keeping.cost(own)
    for per_thread in range(own.vectors_per_thread - 1, 0, -1) if own.cluster == 1 else ():
        threads = _threads(vectors, per_thread, 1, least)
        if cost <= keeping.least or threads > ONE_BLOCK_THREADS:
            break
        shape = _Shape(threads, per_thread, 1, max(1, own.threads * own.rows // threads))
        if keeping.cost(shape) < cost:
            found, cost = shape, keeping.cost(shape)
    return found


def _chosen_shape(
    own: _Shape, vectors: int, width: int, most: int, chip: Chip, choices: KernelChoices, least: int
) -> _Shape:
    """What is chosen in place of a shape: blocks that share a row, vectors a thread, rows a block.

    Args:
        width: bytes that a thread has for a vector, of all streams and of sums over rows.
    """

    def threads(per_thread: int, cluster: int) -> int:
        return _threads(vectors, per_thread, cluster, least)

    def fits(per_thread: int, cluster: int) -> bool:
        needed = threads(per_thread, cluster)
        if cluster > 1 and cluster * needed > MOST_CLUSTER_THREADS:
            return False
        return needed <= MOST_BLOCK_THREADS and needed * per_thread * width <= MOST_BLOCK_THREADS * MOST_RAW // 2

    wide = powers(1, chip.cluster) if own.threads >= WARP else ()
    cluster = choices.take("cluster", own.cluster, [c for c in wide if any(fits(p, c) for p in range(1, most + 1))])
    numbers = [p for p in range(1, min(most, 2 * SUMS_PER_THREAD) + 1) if fits(p, cluster)]
    # As many vectors as so many threads need, and not more.
    numbers = [p for p in numbers if p == 1 or threads(p, cluster) < threads(p - 1, cluster)] or numbers[:1]
    if cluster == own.cluster:
        per_thread = choices.take("vectors_per_thread", own.vectors_per_thread, numbers)
    else:
        near = min(numbers, key=lambda p: (abs(p - own.vectors_per_thread), p))
        per_thread = choices.take("vectors_per_thread", near, numbers)
    same = (per_thread, cluster) == (own.vectors_per_thread, own.cluster)
    shape = own if same else _Shape(threads(per_thread, cluster), per_thread, cluster, 1)
    if cluster > 1:
        return shape
    side = own.threads * own.rows
    rows = own.rows if same else max(1, side // shape.threads)
    several = [r for r in powers(1, MOST_BLOCK_THREADS // 2 // shape.threads) if r * shape.threads % WARP == 0]
    return replace(shape, rows=choices.take("rows", rows, several))


def _threads(vectors: int, per_thread: int, cluster: int, least: int) -> int:
    """Threads of a block for a row, if each has so many vectors."""
    if cluster == 1 and (fewest := -(-vectors // per_thread)) <= WARP:
        return max(least, 1 << max(0, fewest - 1).bit_length())
    return _whole_warps(-(-vectors // cluster), per_thread)


def _own_shape(
    kernel: RowKernel, vectors: int, width: int, vector: int, sums: int, most: int, chip: Chip, least: int
) -> _Shape | None:
    """``sums``: bytes of sums over rows for a vector; ``most``: vectors that a thread has room for."""
    ahead = min(BYTES_AHEAD // width, max(1, ELEMENTS_AHEAD // vector))
    wanted = max(1, min(most, SUMS_PER_THREAD // vector if sums else ahead))
    side = SHORT_PERSISTENT_BLOCK if sums else SHORT_BLOCK
    if kernel.row_tiles:
        return _row_tile(vectors, wanted if vector == 1 else 2, side, least)
    alone = max(1, min(most, ahead))
    if vectors <= WARP * alone:
        # At least two, where each has several vectors: those of a single one would lie apart in memory.
        fewest = max(least, 2 if vector > 1 and vectors > (1 if sums else 2) else 1)
        threads = max(fewest, 1 << max(0, math.ceil(math.log2(max(1, -(-vectors // alone))))))
        return _Shape(threads, -(-vectors // threads), 1, max(1, side // threads))
    cluster = 1
    while cluster <= chip.cluster:
        per_block = -(-vectors // cluster)
        limit = ONE_BLOCK_THREADS if cluster == 1 else CLUSTER_BLOCK_THREADS
        repeats = wanted + (least > 1) if sums and vector > 1 else min(most, 2 * wanted)
        fewest = min(wanted, max(1, SUMS_IN_REGISTERS // sums)) if sums and cluster == 1 else wanted
        first = next((p for p in range(fewest, repeats + 1) if _whole_warps(per_block, p) <= limit), None)
        if first is not None:
            threads, more = _whole_warps(per_block, first), _whole_warps(per_block, first + 1)
            if cluster == 1 and first < repeats and more * (first + 1) <= FEWER_IDLE * threads * first:
                threads, first = more, first + 1
            if sums and vector == 1:  # many each, of which some would be for nothing: in fours, for few texts
                first = min(first, 4 * math.ceil(-(-per_block // threads) / 4))
            return _Shape(threads, first, cluster, max(1, side // threads) if cluster == 1 else 1)
        cluster *= 2
    for cluster in (max(1, chip.cluster // 2), chip.cluster) if sums and vector > 1 else ():
        for per_thread in range(1, most + 1):
            threads = _whole_warps(-(-vectors // cluster), per_thread)
            if threads <= PERSISTENT_BLOCK_THREADS and threads * per_thread * width <= chip.shared - EXCHANGED:
                return _Shape(threads, per_thread, cluster, 1)
    per_block = -(-vectors // chip.cluster)
    for limit in (CLUSTER_BLOCK_THREADS, 2 * CLUSTER_BLOCK_THREADS, MOST_BLOCK_THREADS):
        for per_thread in range(1, most + 1):
            threads = _whole_warps(per_block, per_thread)
            if threads <= limit and threads * per_thread * (width + sums) <= MOST_BLOCK_THREADS * MOST_RAW // 2:
                return _Shape(threads, per_thread, chip.cluster, 1)
    return None


def is_read_once(kernel: RowKernel) -> bool:
    """Whether nothing needs a row's elements again once its sums are known."""
    return len(kernel.stages) == 1 and not (kernel.row_tiles or kernel.pointwise or kernel.columns or kernel.segments)


def is_coupled(kernel: RowKernel) -> bool:
    """Whether a row's elements are better seen all before the first is taken."""
    return any(BY_KIND[r.kind].partner for r in kernel.reduces)


def _chunked_shape(m: int, n: int, width: int, vector: int, chip: Chip, choices: KernelChoices) -> _Shape:
    """A block a row, or for very long ones a few; as many as fill a GPU where such rows leave multiprocessors idle, or
    are so long that a second wave of a few clusters would take as long as the first."""
    cluster, per_thread = 1, max(1, BYTES_AHEAD // (width * vector))
    per_thread = choices.take("vectors_per_thread", per_thread, powers(1, max(1, 2 * per_thread)))
    while cluster < chip.cluster and n * width // cluster > CHUNKED_BLOCK_BYTES:
        cluster *= 2
    own = CHUNKED_THREADS if m * cluster <= 2 * MULTIPROCESSORS else CHUNKED_THREADS // 2
    threads = choices.take("threads", own, powers(CHUNKED_THREADS // 4, MOST_BLOCK_THREADS))
    chunks = n // (threads * per_thread * vector)
    enough = MULTIPROCESSORS * (2 if n * width > CHUNKED_BLOCK_BYTES * chip.cluster else 1)
    many = n * width > CHUNKED_BLOCK_BYTES and m * cluster < enough and chunks > 1
    splits = choices.take("splits", min(max(2, WANTED_BLOCKS // m), chunks) if many else 1, powers(1, chunks))
    if splits > 1:
        return _Shape(threads, per_thread, 1, 1, splits)
    most = min(chip.cluster, MOST_CLUSTER_THREADS // threads)
    return _Shape(threads, per_thread, choices.take("cluster", cluster, powers(1, most)), 1)


def _row_tile(vectors: int, wanted: int, side: int, least: int) -> _Shape:
    """A block's share of a row where nothing waits for the whole: the one that leaves the fewest threads idle."""
    if vectors <= WARP * wanted:
        threads = max(least, 1 << max(0, math.ceil(math.log2(max(1, -(-vectors // wanted))))))
        return _Shape(threads, -(-vectors // threads), 1, max(1, side // threads))

    def idle(shape: _Shape) -> tuple[int, int]:
        per_block = shape.threads * shape.vectors_per_thread
        return -(-vectors // per_block) * per_block, -per_block

    shapes = []
    for per_thread in range(wanted, 2 * wanted + 1):
        for row_tiles in range(1, -(-vectors // WARP) + 1):
            threads = _whole_warps(-(-vectors // row_tiles), per_thread)
            if threads <= 256:
                shapes.append(_Shape(threads, per_thread, 1, max(1, side // threads)))
                if len(shapes) % 4 == 0:
                    break
    return min(shapes, key=idle)


def _whole_warps(vectors: int, per_thread: int) -> int:
    return -(-vectors // (per_thread * WARP)) * WARP


def _schedule(
    kernel: RowKernel, reuse: Reuse, loops: list[Loop], sliced: int, kept: int, buffers: Mapping[str, Buffer],
    placements: tuple[Placement, ...], streams: list[Placement], vector: int, shape: _Shape, n: int, unaligned: bool,
    segment: int, chip: Chip, choices: KernelChoices,
) -> RowSchedule:  # fmt: skip
    reach = shape.threads * shape.vectors_per_thread * shape.cluster * vector
    chunked = is_read_once(kernel) and n // vector * vector > reach
    even = n % (reach // shape.cluster) == 0 if kernel.row_tiles else n % reach == 0 if chunked else n == reach
    exact = not unaligned and shape.rows == 1 and even
    raw = sum(buffers[p.name].dtype.size for p in streams) * vector * shape.vectors_per_thread
    sums = sum(r.expr.dtype.size for r in kernel.columns) * vector * shape.vectors_per_thread
    # What all rows have in common, a block that goes on from row to row reads once.
    persistent = bool(kernel.columns)
    whole = all(p.access is Access.ROW and 4 <= vector * buffers[p.name].dtype.size <= 16 for p in streams)
    plain = RowSchedule(
        loops=kept, inner=len(loops) - kept, vector=vector, threads=shape.threads, index=index_type(loops, buffers),
        placements=placements, exact=exact, slices=sliced,
        vectors_per_thread=shape.vectors_per_thread, rows=shape.rows, cluster=shape.cluster,
        persistent=persistent, unaligned=unaligned, chunked=chunked, split=shape.splits > 1,
        finish=finish_of(shape.splits, 1),
        threads_per_segment=(
            min(WARP, shape.threads, 1 << (segment // vector).bit_length() - 1) if kernel.segments else 0
        ),
    )  # fmt: skip
    places = shape.vectors_per_thread * shape.threads * shape.rows
    row = raw // shape.vectors_per_thread * places
    of_a_row = vector * shape.vectors_per_thread * shape.threads
    sizes = [of_a_row * buffers[name].dtype.size for name in kept_for_all(kernel, plain)]
    common = sum(-(-size // VECTOR_BYTES) * VECTOR_BYTES for size in sizes)  # as fg::behind lays them out
    # Measured: row tiles, and float32 that no persistent block prefetches, are better off in registers than in more
    # shared memory than a kernel can declare.
    asks = not kernel.row_tiles and (persistent or all(buffers[p.name].dtype.size < 4 for p in streams))
    static = STATIC - _of_segments(kernel, shape)
    most = chip.shared - STATIC + static - EXCHANGED - common if asks else static
    once = is_read_once(kernel) or kernel.is_walked_once
    unstaged = chunked or (once and not is_coupled(kernel) and not kernel.columns)
    # What is staged comes past the L1 cache: where a row's threads ask for half a sector at a time, each is read twice.
    whole = whole and all(shape.threads * vector * buffers[p.name].dtype.size >= SECTOR for p in streams)
    staged = whole and (row if asks or not persistent else 2 * row) <= most and not unstaged
    ends_soon = shape.rows > 1 and not persistent
    staged = staged and choices.ask("staged", raw >= (SHORT_STAGED_FROM if ends_soon else STAGED_FROM))
    held = 2 * row if persistent and 2 * row <= most else row
    prefetch = held > row if staged else (2 * raw + sums) // 4 + 64 <= REGISTERS // (2 * shape.threads * shape.rows)
    # What is gathered of the next row is not known before its place is.
    if persistent and not kernel.gathered and (held > row or not staged):
        prefetch = choices.ask("prefetch", prefetch)
    found = replace(plain, prefetch=persistent and prefetch and not kernel.gathered, staged=staged)
    if staged and (held > static or (common and held + common <= most and _crowded(kernel, found))):
        found = replace(found, dynamic=held + common)
    kept_on = () if found.split else _reused(kernel, reuse, found, streams, buffers)
    return replace(found, reused=kept_on if kept_on and choices.ask("keep", True) else ())


def _reused(
    kernel: RowKernel, reuse: Reuse, plan: RowSchedule, streams: Sequence[Placement], buffers: Mapping[str, Buffer]
) -> tuple[str, ...]:
    """What a thread keeps of its elements beside what it has read, as far as a block's registers go."""
    room = min(MOST_REGISTERS, REGISTERS // (plan.threads * plan.rows)) - registers(kernel, plan)
    reads = _read_anew(kernel, plan)
    return reuse.kept(_moved(kernel, streams, buffers), plan.vector * plan.vectors_per_thread, room, reads)


def _read_anew(kernel: RowKernel, plan: RowSchedule) -> dict[str, int]:
    """What a thread reads in each traversal, and the instructions that it could issue meanwhile, for an element."""
    known, found = {*kept_in_registers(kernel, plan), *kept_for_all(kernel, plan)}, dict[str, int]()
    for operand in kernel.tensors:
        placement = plan.placement(operand.name)
        if operand.name not in known and any(move != "0" for move in placement.moves[plan.loops :]):
            askew = plan.vector > 1 and placement.access is Access.STRIDED
            found[operand.name] = ASKEW if askew else 1 if placement.access is Access.SPLAT else operand.dtype.size
    return found


def _moved(kernel: RowKernel, streams: Sequence[Placement], buffers: Mapping[str, Buffer]) -> int:
    """Bytes of all operands and results for an element."""
    return sum(buffers[name].dtype.size for name in {*(p.name for p in streams), *(o.name for o in kernel.pointwise)})


def _crowded(kernel: RowKernel, plan: RowSchedule) -> bool:
    """Whether a thread has more than its registers take, with its part of what all rows have in common."""
    size = {o.name: o.dtype.size for o in kernel.tensors}
    common = sum(size[name] for name in kept_for_all(kernel, plan)) * plan.vector * plan.vectors_per_thread // 4
    return registers(kernel, plan) + common > MOST_REGISTERS


def registers(kernel: RowKernel, plan: RowSchedule) -> int:
    """How many a thread needs, about."""
    size = {o.name: o.dtype.size for o in kernel.tensors}
    ahead = kept_in_registers(kernel, plan)
    common = [name for name in kept_for_all(kernel, plan) if name not in ahead]
    held = sum(r.expr.dtype.size for r in kernel.columns)
    held += sum(item.expr.dtype.size for item in kernel.items if isinstance(item, Let) and item.name in plan.reused)
    if not plan.dynamic:
        held += sum(size[name] for name in common)
    if not plan.staged:
        held += sum(size[name] for name in ahead) * (2 if plan.prefetch else 1)
    overhead = STAGED_OVERHEAD if plan.staged and kernel.columns and not plan.dynamic else OVERHEAD
    return held * plan.vector * plan.vectors_per_thread // 4 + overhead


def _fitting_rows(kernel: RowKernel, plan: RowSchedule) -> int:
    """Rows side by side in a block that goes on from row to row: fewer than a schedule takes at first, where registers
    have no room for a second such block, and for many more threads in smaller ones."""

    def threads(rows: int) -> int:
        return rows * plan.threads * resident(kernel, replace(plan, rows=rows))

    fewer = [rows for rows in powers(1, plan.rows - 1) if rows * plan.threads % WARP == 0]
    return max((rows for rows in fewer if threads(rows) >= MORE_THREADS * threads(plan.rows)), default=plan.rows)


def _side_by_side(kernel: RowKernel, plan: RowSchedule, width: int, chip: Chip) -> int:
    """Blocks of a multiprocessor: as many as its registers and its shared memory should hold, and of persistent ones no
    more than there are.

    A thread may have the registers that blocks would need which nobody launches. ``width``: bytes of all streams.
    """
    fitting = resident(kernel, plan)
    if plan.dynamic:
        fitting = max(1, min(fitting, chip.shared // plan.dynamic))
    if not plan.persistent:
        return fitting
    if kernel.row_tiles:
        return min(fitting, ROW_TILE_BLOCKS // MULTIPROCESSORS)
    block, few = plan.threads * plan.rows, BYTES_UNDER_WAY // (width * plan.vector * plan.vectors_per_thread)
    wanted = PERSISTENT_THREADS // block if plan.staged else -(-max(PERSISTENT_THREADS // 2, few) // block)
    return max(1, min(wanted, fitting))


def resident(kernel: RowKernel, plan: RowSchedule) -> int:
    """How many blocks the registers of a multiprocessor could hold.

    Each of its four parts has a quarter of them, which matters where a grid has no more blocks than that.
    """
    threads = plan.threads * plan.rows
    wanted, warps, found = registers(kernel, plan), -(-threads // WARP), 1
    if not plan.persistent:
        return max(1, min(MOST_THREADS // threads, REGISTERS // (threads * wanted)))
    while (found + 1) * threads <= MOST_THREADS and -(-(found + 1) * warps // 4) * WARP * wanted <= REGISTERS // 4:
        found += 1
    return found


def _launch(
    kernel: RowKernel, sizes: Mapping[str, int], loops: list[Loop], buffers: Mapping[str, Buffer], shape: _Shape,
    found: RowSchedule, m: int, n: int, segment: int, order: tuple[str, ...], slices: int, choices: KernelChoices,
) -> Launch:  # fmt: skip
    per_block = shape.threads * shape.vectors_per_thread * found.vector
    row_tiles = -(-n // per_block) if kernel.row_tiles else 1
    groups = -(-(m // slices) // shape.rows)
    if found.persistent:
        fitting = MOST_THREADS // (shape.threads * shape.rows)
        side_by_side = choices.take("resident", found.resident, range(1, fitting + 1))
        places = CLUSTERED.get(shape.cluster, MULTIPROCESSORS) // shape.cluster
        blocks = ROW_TILE_BLOCKS // row_tiles if kernel.row_tiles else places * side_by_side
        if found.unaligned:  # a block's rows begin at the same place between two vectors
            blocks = max(1, blocks // found.vector) * found.vector
        groups = max(1, min(groups, blocks // slices))
    shares = 1
    if shape.cluster > 1 and per_block % segment:  # blocks begin within segments
        shares = -(-segment // per_block) + (segment % per_block > 0)
    # Of its own partial results alone: others may still wait for the kernel that puts them together.
    left = {axis for partial in kernel.partials for axis in partial.shape}
    counts = {GROUP_AXIS: groups, TILE_AXIS: row_tiles, SHARE_AXIS: shares}
    return Launch(
        tuple(loop.size for loop in loops), {name: tuple(loop.strides[name] for loop in loops) for name in buffers},
        needed_sizes(kernel, sizes, buffers), (groups * shape.cluster, max(row_tiles, shape.splits), slices),
        splits=shape.splits,
        block=(shape.threads, shape.rows, 1),
        partial_sizes={axis: count for axis, count in counts.items() if axis in left}, order=order, segment=segment,
    )  # fmt: skip

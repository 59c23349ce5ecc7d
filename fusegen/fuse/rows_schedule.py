"""How many threads, vectors and blocks share a row of a row kernel, and how many rows a block takes.

A row is kept on chip from its one read to its last use. So the sizes follow from the length of a row and from what
a thread can hold, never from the number of rows. The numbers below were measured on an H200 (docs/performance.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from fusegen.fuse.rows import GROUPS, PIECES, RowKernel
from fusegen.fuse.schedule import (
    Access,
    Buffer,
    Launch,
    Loop,
    Placement,
    Schedule,
    faster,
    index_type,
    lanes,
    merged,
    needed_sizes,
    ordered,
    positions,
)

WARP = 32
# Threads of a block where rows are short enough for several to lie side by side in it; and where it goes on from row to
# row, with sums that are then put together by fewer threads.
SHORT_BLOCK, SHORT_SWEEP = 128, 256
# Bytes of a row that a thread reads before it uses the first: enough loads in flight, few enough registers.
BYTES_AHEAD = 64
# Bytes of a row a thread from which on they are staged in shared memory, and the most that a block can have there.
STAGED_FROM, MOST_STAGED = 64, 44 * 1024
# Registers of a multiprocessor.
REGISTERS = 65536
# Positions of a row for which a thread keeps sums.
SUMMED = 16
# Most bytes of raw operands and of column sums that a thread holds.
MOST_RAW, MOST_SUMS = 256, 256
# Threads to which a block grows before more blocks share a row, and after.
WIDE, WIDE_SHARED = 256, 256
WIDEST = 1024
# Threads that go from row to row on each multiprocessor, and how many of those a large GPU has: in all, and in clusters
# of 16, which lie within a part of the chip. Fixed numbers, so that the order of additions does not depend on the
# machine.
SWEEPING, MULTIPROCESSORS, CLUSTERED = 768, 132, 112
# Blocks that take pieces of rows.
PIECE_BLOCKS = 264


@dataclass(frozen=True)
class Chip:
    """What of a GPU a row kernel depends on.

    Args:
        cluster: most blocks that can share a row (distributed shared memory); 1 before compute capability 9.0.
    """

    cluster: int = 16


@dataclass(frozen=True)
class _Shape:
    """Threads, vectors a thread, and blocks for one row; rows side by side in a block."""

    threads: int
    repeat: int
    cluster: int
    rows: int


def schedule_rows(
    kernel: RowKernel, sizes: Mapping[str, int], given: Mapping[str, Buffer], chip: Chip
) -> tuple[Schedule, Launch] | None:
    """How to walk, or None where a row does not lie side by side in memory, or not on the chip."""
    buffers = {**given, **positions(kernel)}
    reads = [buffers[o.name] for o in kernel.tensors]
    leading = sorted([*reads, *(buffers[o.name] for o in kernel.written)], key=_breadth)
    kept_order, over_order = ordered(kernel.kept, leading, sizes), ordered(kernel.over, leading, sizes)
    kept, over = merged(kept_order, sizes, buffers), merged(over_order, sizes, buffers)
    if not over or prod(loop.size for loop in (*kept, *over)) == 0 or (kept and faster(kept[-1], over[-1], kernel)):
        return None
    loops = [*kept, *over]
    vector, placements = lanes(kernel, loops, len(loops) - 1, buffers)
    m, n = prod(loop.size for loop in kept), prod(loop.size for loop in over)
    streams = _streams(kernel, placements, len(kept), buffers)
    if not streams or any(p.moves[-1] == "s" for p in streams):
        return None
    width = sum(buffers[p.name].dtype.size for p in streams) * vector
    shape = _shape(kernel, n // vector, width, vector, chip)
    if shape is None:
        return None
    found = _schedule(kernel, loops, len(kept), buffers, placements, streams, vector, shape, n)
    return found, _launch(kernel, sizes, loops, buffers, shape, found, m, n, (*kept_order, *over_order))


def _breadth(buffer: Buffer) -> int:
    return -sum(1 for stride in buffer.strides.values() if stride)


def _streams(
    kernel: RowKernel, placements: tuple[Placement, ...], kept: int, buffers: Mapping[str, Buffer]
) -> list[Placement]:
    """The operands that are as large as the space, or nearly: they come from memory, not from a cache."""
    names = {o.name for o in kernel.tensors}
    own = [p for p in placements if p.name in names and any(move != "0" for move in p.moves[kept:])]
    wide = [p for p in own if any(move != "0" for move in p.moves[:kept])]
    return wide or own


def kept_in_registers(kernel: RowKernel, schedule: Schedule) -> list[str]:
    """The operands that a thread reads before all else and keeps: those that move along rows and from row to row."""
    names = {o.name for o in kernel.tensors}
    return [
        p.name for p in schedule.placements
        if p.name in names and p.access is not Access.SINGLE
        and any(move != "0" for move in p.moves[schedule.loops:])
        and (schedule.loops == 0 or any(move != "0" for move in p.moves[: schedule.loops]))
        and (p.access is Access.ROW or (schedule.vector == 1 and p.moves[-1] != "0"))
    ]  # fmt: skip


def _shape(kernel: RowKernel, vectors: int, width: int, vector: int, chip: Chip) -> _Shape | None:
    """``vectors``: in a row; ``width``: bytes of all streams that one vector stands for."""
    sums = sum(r.expr.dtype.size for r in kernel.columns) * vector
    most = max(1, min(MOST_RAW // width, MOST_SUMS // sums if sums else MOST_RAW))
    wanted = max(1, min(most, SUMMED // vector if sums else BYTES_AHEAD // width))
    side = SHORT_SWEEP if sums else SHORT_BLOCK
    if kernel.pieces:
        return _piece(vectors, wanted if vector == 1 else 2, side)
    alone = max(1, min(most, BYTES_AHEAD // width))
    if vectors <= WARP * alone:
        threads = 1 << max(0, math.ceil(math.log2(max(1, -(-vectors // alone)))))
        return _Shape(threads, -(-vectors // threads), 1, max(1, side // threads))
    cluster = 1
    while cluster <= chip.cluster:
        per_block = -(-vectors // cluster)
        limit = WIDE if cluster == 1 else WIDE_SHARED
        for repeat in range(wanted, (wanted if sums and vector > 1 else min(most, 2 * wanted)) + 1):
            threads = _whole_warps(per_block, repeat)
            if threads <= limit:
                return _Shape(threads, repeat, cluster, max(1, side // threads) if cluster == 1 else 1)
        cluster *= 2
    per_block = -(-vectors // chip.cluster)
    for limit in (WIDE_SHARED, 2 * WIDE_SHARED, WIDEST):
        for repeat in range(1, most + 1):
            threads = _whole_warps(per_block, repeat)
            if threads <= limit and threads * repeat * (width + sums) <= WIDEST * MOST_RAW // 2:
                return _Shape(threads, repeat, chip.cluster, 1)
    return None


def _piece(vectors: int, wanted: int, side: int) -> _Shape:
    """A block's share of a row where nothing waits for the whole: the one that leaves the fewest threads idle."""
    if vectors <= WARP * wanted:
        threads = 1 << max(0, math.ceil(math.log2(max(1, -(-vectors // wanted)))))
        return _Shape(threads, -(-vectors // threads), 1, max(1, side // threads))

    def idle(shape: _Shape) -> tuple[int, int]:
        per_block = shape.threads * shape.repeat
        return -(-vectors // per_block) * per_block, -per_block

    shapes = []
    for repeat in range(wanted, 2 * wanted + 1):
        for pieces in range(1, -(-vectors // WARP) + 1):
            threads = _whole_warps(-(-vectors // pieces), repeat)
            if threads <= 256:
                shapes.append(_Shape(threads, repeat, 1, max(1, side // threads)))
                if len(shapes) % 4 == 0:
                    break
    return min(shapes, key=idle)


def _whole_warps(vectors: int, repeat: int) -> int:
    return -(-vectors // (repeat * WARP)) * WARP


def _schedule(
    kernel: RowKernel, loops: list[Loop], kept: int, buffers: Mapping[str, Buffer], placements: tuple[Placement, ...],
    streams: list[Placement], vector: int, shape: _Shape, n: int,
) -> Schedule:  # fmt: skip
    reach = shape.threads * shape.repeat * shape.cluster * vector
    exact = shape.rows == 1 and (n % (shape.threads * shape.repeat * vector) == 0 if kernel.pieces else n == reach)
    raw = sum(buffers[p.name].dtype.size for p in streams) * vector * shape.repeat
    sums = sum(r.expr.dtype.size for r in kernel.columns) * vector * shape.repeat
    buffered = 2 if kernel.columns else 1
    whole = all(p.access is Access.ROW and 4 <= vector * buffers[p.name].dtype.size <= 16 for p in streams)
    block = raw * buffered * shape.threads * shape.rows
    staged = whole and raw >= STAGED_FROM and block <= MOST_STAGED and not (kernel.pieces and not kernel.columns)
    prefetch = staged or (2 * raw + sums) // 4 + 64 <= REGISTERS // (2 * shape.threads * shape.rows)
    return Schedule(
        "rows", kept, len(loops) - kept, vector, shape.threads, index_type(loops, buffers), False, placements,
        exact=exact, repeat=shape.repeat, rows=shape.rows, cluster=shape.cluster, sweep=bool(kernel.columns),
        prefetch=bool(kernel.columns) and prefetch, staged=staged,
    )  # fmt: skip


def _launch(
    kernel: RowKernel, sizes: Mapping[str, int], loops: list[Loop], buffers: Mapping[str, Buffer], shape: _Shape,
    found: Schedule, m: int, n: int, order: tuple[str, ...],
) -> Launch:  # fmt: skip
    per_block = shape.threads * shape.repeat * found.vector
    pieces = -(-n // per_block) if kernel.pieces else 1
    groups = -(-m // shape.rows)
    if kernel.columns:
        sweeping = SWEEPING if found.staged else SWEEPING // 2
        side_by_side = max(1, sweeping // (shape.threads * shape.rows))
        places = MULTIPROCESSORS if shape.cluster == 1 else CLUSTERED // shape.cluster
        blocks = PIECE_BLOCKS // pieces if kernel.pieces else places * side_by_side
        groups = max(1, min(groups, blocks))
    return Launch(
        tuple(loop.size for loop in loops), {name: tuple(loop.strides[name] for loop in loops) for name in buffers},
        needed_sizes(kernel, sizes), (groups * shape.cluster, pieces, 1), block=(shape.threads, shape.rows, 1),
        partial_sizes={GROUPS: groups, PIECES: pieces}, order=order,
    )  # fmt: skip

"""How a kernel walks memory: order and merging of axes, vector width, and what each operand needs to be found.

A ``Schedule`` is what the CUDA text depends on; a ``Launch`` is the numbers of one call. Many launches share a
schedule, so a new shape compiles nothing that has a known schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import prod
from typing import ClassVar

from fusegen.core.dtypes import DType
from fusegen.core.ir import Expr, Place, Size, axis_order, walk
from fusegen.core.monoids import BY_KIND
from fusegen.fuse import cost
from fusegen.fuse.choices import KernelChoices, powers
from fusegen.fuse.finish import finish_of
from fusegen.fuse.kernel import Kernel, Position

THREADS = 256
VECTOR_BYTES = 16
LARGEST_VECTOR = 8
TILE = 32
# A thread takes so many bytes side by side of what is read one element at a time: a warp's reads then fill lines.

NEAR_BYTES = 8
FILLED = 132 * 2048  # threads that a GPU has at a time
APART_ELEMENTS = 2**20  # from here on, an elementwise thread without vectors takes several
# Reductions are split into parts of at least this many elements a thread, and into at most this many parts: fixed
# numbers, so that the order of additions, and with it the last bit, does not depend on the machine. Into parts of
# fewer, FEWEST_ELEMENTS, where the blocks would else be so few that large GPUs have multiprocessors with less than two.
REDUCE_ELEMENTS, FEWEST_ELEMENTS, FEW_BLOCKS = 16, 4, 264
MOST_SPLITS = 1056
WANTED_BLOCKS = 1056
# The unroll factor of a column's loop, for columns in which a thread takes at least LONG_COLUMN elements. Terms of
# alternating sign then cancel before they are added to a large sum.
UNROLL, LONG_COLUMN = 4, 64
# Values of a vector of results that a thread of a column kernel has room for, and where vectors stay as they are.
COLUMN_REGISTERS, LEAST_COLUMN_VECTOR = 48, 4
# Arithmetic that a column kernel lays out for the elements that a thread takes at a time (fuse/cost), at most, and what
# adding an element to a state of two reductions counts there.
COLUMN_TEXT, STATE_COST = 1600, 60
# Columns of a thread where vectors of them do not come out even, at most.
MOST_COLUMNS_APART = 4
# The narrowest block of a column kernel: fewer threads side by side would not fill a memory transaction. Rows that lie
# one behind the other fill it together.
LEAST_BLOCK_WIDTH, LEAST_ADJOINING_WIDTH = 8, 2
# Blocks that share a sum over everything: enough for eight on each multiprocessor of the largest GPUs.
FULL_REDUCTION_BLOCKS = 1056
# Columns of at most this many elements are not divided over blocks, if there are so many.
SHORT_COLUMN, SHORT_COLUMN_RESULTS = 512, 1024
# A thread adds up a result by itself where results are many enough to keep a GPU busy and their elements few. Where
# neighbouring results are neighbours in memory, a thread has a vector of results, and so many threads share each as
# keep a GPU busy, up to COLUMN_THREADS of them, with at least COLUMN_ELEMENTS elements each.
SERIAL_RESULTS = 2**16
SERIAL_ELEMENTS = 64
BUSY_THREADS, COLUMN_THREADS, COLUMN_ELEMENTS = 2**17, 8, 4


class Access(Enum):
    """How a kernel finds an operand's elements."""

    DENSE = "at the same linear position as the iteration"
    UNALIGNED = "at the same linear position, element by element: the pointer is not aligned for vectors"
    ROW = "a vector along the fast axis, at an offset from the slower coordinates"
    SPLAT = "one element for the whole vector: it lacks the fast axis"
    SINGLE = "one element for the whole kernel"
    STRIDED = "element by element, at an offset from all coordinates"
    TRANSPOSED = "through a tile in shared memory: its fast axis is another one"


@dataclass(frozen=True)
class Buffer:
    """A tensor as the schedule sees it: strides in elements per axis, address modulo 16 bytes."""

    dtype: DType
    strides: Mapping[str, int]
    alignment: int = VECTOR_BYTES


@dataclass(frozen=True)
class Placement:
    """An operand's or output's way of access, and which loops it moves along ("1": by one, "s": by a stride, "@": to
    where other operands say); of what is gathered also how far apart in memory its places are, "0", "1" or "s"."""

    name: str
    access: Access
    moves: tuple[str, ...]
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What the text of a kernel depends on, beside the kernel itself. Each template has a class of its own.

    Args:
        loops: the merged axes that are walked in parallel.
        inner: those that are reduced.
        vector: elements of an access.
        threads: of a block.
        index: the type of positions.
        placements: how everything in memory is found.
        follows: another kernel of the same op runs before this one.
        fresh: the operands that such kernels wrote.
    """

    template: ClassVar[str]

    loops: int
    inner: int = 0
    vector: int = 1
    threads: int = THREADS
    index: str
    placements: tuple[Placement, ...]
    follows: bool = False
    fresh: tuple[str, ...] = ()

    def placement(self, name: str) -> Placement:
        return next(p for p in self.placements if p.name == name)

    @property
    def kept(self) -> int:
        """How many of the loops walk over results of a reduction."""
        return self.loops

    # What some have as fields of their own, with the same defaults: a dataclass would take these for defaults.

    @property
    def split(self) -> bool:
        """The reduced axes are divided over blocks, and a second kernel adds up the partial results."""
        return False

    @property
    def finish(self) -> str:
        """Who adds them up there (fuse/finish)."""
        return "thread"

    @property
    def table(self) -> bool:
        """One launch for many tensors (generate/table)."""
        return False

    @property
    def vectors_per_thread(self) -> int:
        """How many accesses of each operand a thread has at a time."""
        return 1

    @property
    def cluster(self) -> int:
        """Blocks that share a row (a thread block cluster)."""
        return 1

    @property
    def dynamic(self) -> int:
        """Bytes of dynamic shared memory."""
        return 0

    @property
    def reused(self) -> tuple[str, ...]:
        """Intermediates that a thread keeps from one traversal of a row to the next."""
        return ()


@dataclass(frozen=True, kw_only=True)
class ElementwiseSchedule(Schedule):
    """A thread has a vector of neighbouring elements, or single ones.

    Args:
        whole_rows: vectors lie within rows of the fast loop.
        exact: the vectors come out even. The text then has no branch for the last one, which matters: behind a branch
            the next operand's load waits for this one's data.
        vectors_per_thread: elements of a thread, each a block apart from the last.
    """

    template: ClassVar[str] = "elementwise"

    whole_rows: bool
    exact: bool
    vectors_per_thread: int = 1
    table: bool = False


@dataclass(frozen=True, kw_only=True)
class TransposeSchedule(Schedule):
    """A block has a tile of two axes, which goes through shared memory."""

    template: ClassVar[str] = "tiled_transpose"

    table: bool = False


@dataclass(frozen=True, kw_only=True)
class FullReductionSchedule(Schedule):
    """The elementwise walk by blocks that take turns, with sums over all of it."""

    template: ClassVar[str] = "full_reduction"

    whole_rows: bool
    exact: bool
    split: bool = False
    finish: str = "thread"
    table: bool = False

    @property
    def kept(self) -> int:
        return 0


@dataclass(frozen=True, kw_only=True)
class SerialSchedule(Schedule):
    """A thread a result."""

    template: ClassVar[str] = "serial"


@dataclass(frozen=True, kw_only=True)
class LineSchedule(Schedule):
    """A block a result, along the fast axis.

    Args:
        unroll: of the loop over elements; 0 leaves that to the compiler.
    """

    template: ClassVar[str] = "row"

    split: bool = False
    finish: str = "thread"
    unroll: int = 0


@dataclass(frozen=True, kw_only=True)
class ColumnSchedule(Schedule):
    """Neighbouring results a block; its other threads share their elements.

    Args:
        block_width: blockDim.x, the threads of a block that have different results.
        unroll: of the loop over elements.
        apart: the ``vector`` results of a thread lie a block's width apart, and are read one by one.
        reads_first: what a thread takes at a time is read before any of it is computed with.
    """

    template: ClassVar[str] = "column"

    split: bool = False
    finish: str = "thread"
    block_width: int
    unroll: int
    apart: bool = False
    reads_first: bool = False


# Those that have a form for many tensors (generate/table).
IN_TABLE = (ElementwiseSchedule, TransposeSchedule, FullReductionSchedule)


@dataclass(frozen=True)
class Launch:
    """The numbers of one call: loop sizes (slow to fast, then the reduced ones), strides, sizes of axes, grid."""

    sizes: tuple[int, ...]
    strides: Mapping[str, tuple[int, ...]]
    axis_sizes: Mapping[str, int]
    grid: tuple[int, int, int]
    splits: int = 1
    chunk: int = 0
    block: tuple[int, int, int] = (THREADS, 1, 1)
    # Of template rows: sizes of the axes of partial results, and the order of the space's axes, slow to fast.
    partial_sizes: Mapping[str, int] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    segment: int = 0  # elements of each segment of a row

    @property
    def empty(self) -> bool:
        return 0 in self.grid


@dataclass(frozen=True)
class Loop:
    """Axes that every buffer steps through as through one: elements, and strides by buffer."""

    size: int
    strides: Mapping[str, int]


def merged(axes: Sequence[str], sizes: Mapping[str, int], buffers: Mapping[str, Buffer]) -> list[Loop]:
    """Neighbouring axes become one loop where every buffer steps through both as through one."""
    loops: list[Loop] = []
    for axis in axes:
        if sizes[axis] == 1:
            continue
        strides = {name: buffer.strides.get(axis, 0) for name, buffer in buffers.items()}
        if loops and all(loops[-1].strides[n] == strides[n] * sizes[axis] for n in buffers):
            loops[-1] = Loop(loops[-1].size * sizes[axis], strides)
        else:
            loops.append(Loop(sizes[axis], strides))
    return loops


def ordered(axes: Sequence[str], leading: Sequence[Buffer]) -> list[str]:
    """Slow to fast in memory, by the strides of the buffers that matter most; the declared order breaks ties."""

    def key(axis: str) -> tuple[tuple[int, ...], tuple[int, str]]:
        return tuple(-abs(b.strides.get(axis, 0)) for b in leading), axis_order(axis)

    return sorted(axes, key=key)


def _is_dense(strides: Sequence[int], loops: Sequence[Loop]) -> bool:
    expected = 1
    for stride, loop in zip(reversed(strides), reversed(loops), strict=True):
        if stride != expected:
            return False
        expected *= loop.size
    return True


def index_type(loops: Sequence[Loop], buffers: Mapping[str, Buffer]) -> str:
    """int where every position and offset fits, with room for the last vector's overhang."""
    reach = prod(loop.size for loop in loops)
    for name in buffers:
        reach = max(reach, sum(abs(loop.strides[name]) * (loop.size - 1) for loop in loops))
    return "int" if reach < 2**31 - 4096 * 1024 else "int64_t"


def schedule(
    kernel: Kernel, sizes: Mapping[str, int], buffers: Mapping[str, Buffer], choices: KernelChoices
) -> tuple[Schedule, Launch]:
    """Choose how to walk.

    Args:
        sizes: elements along each axis.
        buffers: every operand and output of the kernel.
        choices: what to do otherwise than by default.
    """
    buffers = {**buffers, **positions(kernel, sizes)}
    leading = [buffers[o.name] for o in kernel.written] + [buffers[o.name] for o in kernel.streams]
    axis_sizes = needed_sizes(kernel, sizes, buffers)
    if kernel.reduces and kernel.kept:
        return _reduction(kernel, sizes, buffers, leading, axis_sizes, choices)
    axes = ordered(kernel.space, leading)
    loops = merged(axes, sizes, buffers)
    if kernel.reduces:
        return _full_reduction(*_elementwise(kernel, loops, buffers, axis_sizes, choices), choices)
    transposed = _transposed_loop(kernel, loops)
    if transposed is not None and choices.ask("tiled", True):
        return _tiled(kernel, loops, buffers, transposed, axis_sizes)
    found, launch = _elementwise(kernel, loops, buffers, axis_sizes, choices)
    return _apart(found, launch, prod(loop.size for loop in loops), leading, choices)


def positions(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, Buffer]:
    """Positions as the tensors whose offsets they are: only axes that they number together are merged."""
    return {o.name: Buffer(o.dtype, contiguous(o.shape, sizes)) for o in kernel.operands if isinstance(o, Position)}


def contiguous(shape: Sequence[str | None], sizes: Mapping[str, int]) -> dict[str, int]:
    """Row-major strides by axis."""
    strides: dict[str, int] = {}
    step = 1
    for axis in reversed(shape):
        if axis:
            strides[axis] = step
            step *= sizes[axis]
    return strides


def needed_sizes(kernel: Kernel, sizes: Mapping[str, int], buffers: Mapping[str, Buffer]) -> dict[str, int]:
    """Sizes of the axes whose size the kernel computes with, and how far apart lies what it gathers."""
    places = [place for gathered in kernel.gathered for _, place in gathered.places]
    found = {n.axis: sizes[n.axis] for n in walk([*(i.expr for i in kernel.items), *places]) if isinstance(n, Size)}
    for gathered in kernel.gathered:
        for axis, _ in gathered.places:
            step = gathered.step(axis)
            found |= {axis: sizes[axis], step: buffers[gathered.name].strides[step]}
    return found


def settled(
    kernel: Kernel, loops: Sequence[Loop], placements: Sequence[Placement], buffers: Mapping[str, Buffer],
    vector: int = 1, fast: int = -1,
) -> tuple[Placement, ...]:  # fmt: skip
    """The placements, where what is gathered moves along all loops along which its place does.

    Args:
        vector: elements of a vector along the loop ``fast``, in which a place that is the same for all has them.
    """
    found = {p.name: p for p in placements}
    in_memory = {operand.name for operand in kernel.tensors}
    for gathered in kernel.gathered:
        own = [loop.strides[gathered.name] for loop in loops]
        reads = [found[ref.name] for ref in gathered.reads if ref.name in found]
        moved = [any(place.moves[at] != "0" for place in reads) for at in range(len(loops))]
        to = tuple("@" if m == "0" and along else m for m, along in zip(moves(own), moved, strict=True))
        buffer = buffers[gathered.name]
        steps = [buffer.strides[gathered.step(axis)] for axis, _ in gathered.places]
        by = [gathered.shifts[axis][1] if axis in gathered.shifts else 1 for axis, _ in gathered.places]
        apart = [step * number for step, number in zip(steps, by, strict=True)]
        apart += [stride for loop, stride in enumerate(own) if loop != fast]
        width = min(VECTOR_BYTES, vector * buffer.dtype.size)
        # What is no tensor as it lies may be read element by element, behind vectors.
        known = all(isinstance(ref, Place) or ref.name in in_memory for ref in gathered.told_by)
        alike = vector > 1 and known and own[fast] == 1 and not moved[fast] and all(s % vector == 0 for s in apart)
        access = Access.ROW if alike and buffer.alignment % width == 0 else Access.STRIDED
        found[gathered.name] = Placement(gathered.name, access, to, moves(steps))
    return tuple(found.values())


def moves(strides: Sequence[int]) -> tuple[str, ...]:
    """How a buffer moves along each loop (see Placement)."""
    return tuple("0" if s == 0 else "1" if s == 1 else "s" for s in strides)


def _elementwise(
    kernel: Kernel, loops: list[Loop], buffers: Mapping[str, Buffer], axis_sizes: Mapping[str, int],
    choices: KernelChoices,
) -> tuple[ElementwiseSchedule, Launch]:  # fmt: skip
    n = prod(loop.size for loop in loops)
    per_buffer = {name: [loop.strides[name] for loop in loops] for name in buffers}
    in_memory = [o.name for o in (*kernel.tensors, *kernel.written)]
    streams = [buffers[name].dtype.size for name in in_memory if loops and per_buffer[name][-1] == 1]
    vector = min(LARGEST_VECTOR, max((VECTOR_BYTES // size for size in streams), default=1))
    if _reads_one_by_one(kernel, loops, buffers, vector):
        near = [buffers[o.name].dtype.size for o in kernel.streams]
        vector = min(vector, max(1, NEAR_BYTES // max(near)))
    while vector > 1 and n < vector * FILLED and _is_told(kernel, loops):
        vector //= 2
    widest, vector = vector, choices.take("vector", vector, powers(1, vector))
    whole_rows = not loops or loops[-1].size % vector == 0
    if vector == 1 < widest:
        whole_rows = False
    if any(_is_scattered(per_buffer[o.name], loops, buffers[o.name], vector, whole_rows) for o in kernel.written):
        vector, whole_rows = 1, False
    placements = []
    for name in buffer_names(kernel):
        strides = per_buffer[name]
        access = _vector_access(strides, loops, buffers[name], vector, whole_rows)
        if name not in in_memory and access is not Access.SINGLE:
            access = Access.STRIDED
        placements.append(Placement(name, access, moves(strides)))
    index = index_type(loops, buffers)
    launch = Launch(
        tuple(loop.size for loop in loops), {k: tuple(v) for k, v in per_buffer.items()}, axis_sizes,
        (-(-n // (vector * THREADS)), 1, 1),
    )  # fmt: skip
    exact, wide = n % vector == 0, vector if whole_rows else 1
    placed = settled(kernel, loops, placements, buffers, wide, len(loops) - 1)
    found = ElementwiseSchedule(
        loops=len(loops), vector=vector, index=index, placements=placed, whole_rows=whole_rows, exact=exact
    )
    return found, launch


def _apart(
    found: ElementwiseSchedule, launch: Launch, n: int, buffers: Sequence[Buffer], choices: KernelChoices
) -> tuple[Schedule, Launch]:
    """Without vectors, several elements a thread where there are many: as many bytes are then under way."""
    if found.vector > 1:
        return found, launch
    most = min(LARGEST_VECTOR, VECTOR_BYTES // min((b.dtype.size for b in buffers), default=VECTOR_BYTES))
    per_thread = choices.take("vectors_per_thread", 1 if n < APART_ELEMENTS else most, powers(1, most))
    if per_thread == 1:
        return found, launch
    return replace(found, vectors_per_thread=per_thread), replace(launch, grid=(-(-n // (per_thread * THREADS)), 1, 1))


def _full_reduction(
    walk: ElementwiseSchedule, launch: Launch, choices: KernelChoices
) -> tuple[Schedule, Launch]:  # fmt: skip
    """The elementwise walk by a fixed number of blocks, each of which adds up its part."""
    most = max(1, launch.grid[0])
    blocks = min(most, FULL_REDUCTION_BLOCKS)
    around = (
        FULL_REDUCTION_BLOCKS // 8,
        FULL_REDUCTION_BLOCKS // 4,
        FULL_REDUCTION_BLOCKS // 2,
        2 * FULL_REDUCTION_BLOCKS,
    )
    blocks = choices.take("blocks", blocks, [number for number in around if number <= most])
    found = FullReductionSchedule(
        loops=walk.loops, vector=walk.vector, index=walk.index, placements=walk.placements, whole_rows=walk.whole_rows,
        exact=walk.exact, split=blocks > 1, finish=finish_of(blocks, 1),
    )  # fmt: skip
    return found, replace(launch, grid=(blocks, 1, 1), splits=blocks)


def _vector_access(
    strides: Sequence[int], loops: Sequence[Loop], buffer: Buffer, vector: int, whole_rows: bool
) -> Access:
    if not any(strides):
        return Access.SINGLE
    aligned = buffer.alignment % min(VECTOR_BYTES, vector * buffer.dtype.size) == 0
    if _is_dense(strides, loops):
        return Access.DENSE if aligned or vector == 1 else Access.UNALIGNED
    if whole_rows and strides[-1] == 0:
        return Access.SPLAT
    if whole_rows and strides[-1] == 1 and aligned and all(s % vector == 0 for s in strides[:-1]):
        return Access.ROW
    return Access.STRIDED


def _reads_one_by_one(
    kernel: Kernel, loops: Sequence[Loop], buffers: Mapping[str, Buffer], vector: int
) -> bool:  # fmt: skip
    """Whether vectors of what is gathered along the fast loop would be read an element at a time: by a shift that no
    vector begins at."""
    if not loops or vector == 1:
        return False
    whole = vector if loops[-1].size % vector == 0 else 1
    placed = {p.name: p for p in settled(kernel, loops, [], buffers, whole, len(loops) - 1)}
    shifted = [o.name for o in kernel.streams if o.name in placed]
    return any(placed[name].access is Access.STRIDED and placed[name].moves[-1] == "1" for name in shifted)


def _is_told(kernel: Kernel, loops: Sequence[Loop]) -> bool:
    """Whether each element of a vector is read at a place of its own, which a tensor tells: one after the other, since
    each looks at its place before. (A thread of a full reduction has many elements in any case.)"""
    told = {ref.name for gathered in kernel.gathered for ref in gathered.reads}
    own = (operand for operand in kernel.tensors if operand.name in told and loops)
    return not kernel.reduces and any(loops[-1].strides[operand.name] for operand in own)


def _is_scattered(strides: Sequence[int], loops: Sequence[Loop], buffer: Buffer, vector: int, whole_rows: bool) -> bool:
    """Whether a result that lies row by row would be written one element of a vector at a time: by a thread each, what
    neighbours write is one transaction."""
    return bool(strides) and strides[-1] == 1 and (
        _vector_access(strides, loops, buffer, vector, whole_rows) is Access.STRIDED
    )  # fmt: skip


def buffer_names(kernel: Kernel) -> list[str]:
    """What the kernel reads and writes, in the order of its placements."""
    return [thing.name for thing in (*kernel.operands, *kernel.written)]


def _transposed_loop(kernel: Kernel, loops: Sequence[Loop]) -> int | None:
    """The loop along which some operand is contiguous while the results are along the fast one, if there is one."""
    if len(loops) < 2 or loops[-1].size < TILE // 2 or any(loops[-1].strides[o.name] != 1 for o in kernel.outputs):
        return None
    for operand in kernel.tensors:
        if loops[-1].strides[operand.name] in (0, 1):
            continue
        for position, loop in enumerate(loops[:-1]):
            if loop.strides[operand.name] == 1 and loop.size >= TILE // 2:
                return position
    return None


def _tiled(
    kernel: Kernel, loops: list[Loop], buffers: Mapping[str, Buffer], transposed: int, axis_sizes: Mapping[str, int]
) -> tuple[Schedule, Launch]:
    loops = [*loops[:transposed], *loops[transposed + 1 : -1], loops[transposed], loops[-1]]
    placements = []
    for name in buffer_names(kernel):
        strides = [loop.strides[name] for loop in loops]
        is_transposed = strides[-2] == 1 and strides[-1] not in (0, 1) and name in {o.name for o in kernel.tensors}
        access = Access.TRANSPOSED if is_transposed else Access.STRIDED if any(strides) else Access.SINGLE
        placements.append(Placement(name, access, moves(strides)))
    sizes = tuple(loop.size for loop in loops)
    tiles = -(-sizes[-1] // TILE) * -(-sizes[-2] // TILE) * prod(sizes[:-2])
    launch = Launch(
        sizes, {name: tuple(loop.strides[name] for loop in loops) for name in buffers}, axis_sizes, (tiles, 1, 1),
        block=(TILE, 8, 1),
    )  # fmt: skip
    index = index_type(loops, buffers)
    placed = settled(kernel, loops, placements, buffers)
    return TransposeSchedule(loops=len(loops), threads=TILE * 8, index=index, placements=placed), launch


def _reduction(
    kernel: Kernel,
    sizes: Mapping[str, int],
    buffers: Mapping[str, Buffer],
    leading: Sequence[Buffer],
    axis_sizes: Mapping[str, int],
    choices: KernelChoices,
) -> tuple[Schedule, Launch]:
    reads = [buffers[o.name] for o in kernel.streams]
    widest = sorted(reads, key=lambda b: -sum(1 for s in b.strides.values() if s))
    kept = merged(ordered(kernel.kept, [*widest, *leading]), sizes, buffers)
    over = merged(ordered(kernel.over, [*widest, *leading]), sizes, buffers)
    m, n = prod(loop.size for loop in kept), prod(loop.size for loop in over)
    along_kept = bool(kept) and bool(over) and faster(kept[-1], over[-1], kernel)
    pairs = n >= LONG_COLUMN and m >= TILE and _meets_in_pairs(kernel)
    along_kept |= pairs
    many = m >= SERIAL_RESULTS
    if not over or choices.ask("serial", is_serial(m, n) and not along_kept):
        return _serial(kernel, kept, over, buffers, axis_sizes)
    loops = [*kept, *over]
    fast = len(kept) - 1 if along_kept else len(loops) - 1
    vector, placements = vector_placements(kernel, loops, fast, buffers)
    uneven = (along_kept and vector == 1) or pairs
    while along_kept and vector > LEAST_COLUMN_VECTOR and _is_too_much(kernel, vector):
        vector, placements = vector_placements(kernel, loops, fast, buffers, vector // 2)
    threads = THREADS if along_kept else min(THREADS, max(TILE, -(-n // (vector * TILE)) * TILE))
    block_width = _column_width(m // vector, n) if along_kept and many else TILE
    # A block that is as wide as one of such rows reads several on end.
    adjoin = along_kept and n > SHORT_COLUMN and _rows_adjoin(kernel, kept, over[-1])
    least, most = (LEAST_ADJOINING_WIDTH, 2 * kept[-1].size - 1) if adjoin else (LEAST_BLOCK_WIDTH, m)
    # A narrower block leaves fewer threads without results.
    while along_kept and block_width > least and block_width * vector > most:
        block_width //= 2
    while along_kept and vector > 1 and block_width * vector > most:
        vector, placements = vector_placements(kernel, loops, fast, buffers, vector // 2)
    is_one_row = adjoin and block_width * vector >= kept[-1].size
    if is_one_row:  # smaller blocks where there would be few
        while threads > 2 * TILE and m * n < FEW_BLOCKS // 2 * threads * vector * FEWEST_ELEMENTS:
            threads //= 2
        uneven = False
    # Few elements for each of many results: rather more threads a result than a second kernel.
    elif along_kept and not many and n <= SHORT_COLUMN and m >= SHORT_COLUMN_RESULTS:
        while vector > 1 and m // (block_width * vector) < WANTED_BLOCKS // 8:
            vector, placements = vector_placements(kernel, loops, fast, buffers, vector // 2)
        threads = min(4 * THREADS, max(THREADS, 1 << (n // 8 * TILE).bit_length()))
        uneven = False
    several = _columns_apart(kernel, loops, fast, buffers, m, n) if uneven else 1
    chosen = choices.take("vector", vector * several, powers(1, vector * several))
    apart = vector == 1 < chosen
    if apart:
        vector, placements = chosen, _by_stride(kernel, loops, buffers)
    elif chosen != vector:
        vector, placements = vector_placements(kernel, loops, fast, buffers, chosen)
    if along_kept:
        block_width = choices.take("block_width", block_width, powers(least, THREADS))
        threads = max(threads, block_width)
        widths = powers(max(min(threads, THREADS // 2), block_width), 4 * THREADS)
    else:
        widths = powers(TILE, 2 * THREADS)
    threads = choices.take("threads", threads, widths)
    blocks = -(-m // (block_width * vector)) if along_kept else m
    at_once = threads // block_width if along_kept else threads * vector
    splits = max(1, min(MOST_SPLITS, WANTED_BLOCKS // max(blocks, 1), n // (at_once * REDUCE_ELEMENTS)))
    if splits == 1 and not along_kept and m < 2 * FEW_BLOCKS:  # too few blocks to be shared out evenly
        splits = max(1, min(WANTED_BLOCKS // max(blocks, 1), n // (at_once * FEWEST_ELEMENTS)))
    while 1 < splits <= FEW_BLOCKS // (2 * max(blocks, 1)) and 2 * splits * at_once * FEWEST_ELEMENTS <= n:
        splits *= 2  # a second kernel runs anyway
    splits = choices.take("splits", splits, powers(1, min(MOST_SPLITS, n // at_once)))
    together = 1 if apart else vector
    chunk = -(-n // (splits * together)) * together
    splits = max(1, -(-n // chunk)) if chunk else 1
    launch = Launch(
        tuple(loop.size for loop in loops), {name: tuple(loop.strides[name] for loop in loops) for name in buffers},
        axis_sizes, (blocks, splits, 1), splits, chunk,
        (block_width, threads // block_width, 1) if along_kept else (threads, 1, 1),
    )  # fmt: skip
    states = [r for r in kernel.states if BY_KIND[r.kind].state]
    finish = finish_of(splits, m, sum(BY_KIND[r.kind].fields * r.expr.dtype.size for r in states))
    index = index_type(loops, buffers)
    if not along_kept:
        return LineSchedule(
            loops=len(kept), inner=len(over), vector=vector, threads=threads, index=index, placements=placements,
            split=splits > 1, finish=finish, unroll=choices.take("unroll", 2 if splits > 1 else 0, (0, 1, 2, 4)),
        ), launch  # fmt: skip
    unrolled = splits > 1 or n >= at_once * LONG_COLUMN
    own = 1 if not unrolled else UNROLL // 2 if is_one_row else UNROLL
    unroll = choices.take("unroll", own, (1, 2, UNROLL, 2 * UNROLL))
    return ColumnSchedule(
        loops=len(kept), inner=len(over), vector=vector, threads=threads, index=index, placements=placements,
        split=splits > 1, finish=finish, block_width=block_width, unroll=unroll, apart=apart,
        reads_first=unroll > 1 and _parts(kernel),
    ), launch  # fmt: skip


def _rows_adjoin(kernel: Kernel, kept: Sequence[Loop], over: Loop) -> bool:
    """Whether rows of results lie one behind the other along what is reduced, in all that varies so.

    And whether blocks as wide as a row have no part of another one, and pay: not for states of several numbers, which
    take long to combine among so many rows of threads, but of the narrowest rows, where a wider block is idle.
    """
    row = kept[-1]
    steps = [(row.strides[o.name], over.strides[o.name]) for o in kernel.streams]
    both = [(one, other) for one, other in steps if one and other]
    is_whole = len(kept) == 1 or row.size.bit_count() == 1
    pays = 2 * row.size <= LEAST_BLOCK_WIDTH or not any(BY_KIND[r.kind].state for r in kernel.states)
    return is_whole and pays and bool(both) and all(one == 1 and other == row.size for one, other in both)


def _columns_apart(
    kernel: Kernel, loops: Sequence[Loop], fast: int, buffers: Mapping[str, Buffer], m: int, n: int
) -> int:
    """Results of a thread where no vectors come out even: several of its reads are then under way at once, and what is
    the same for all columns is computed for several. One where that would leave too few threads."""
    sizes = [buffers[o.name].dtype.size for o in kernel.tensors if loops[fast].strides[o.name] == 1]
    if kernel.pointwise or not (sizes or _meets_in_pairs(kernel)) or not n:
        return 1
    apart, busy = MOST_COLUMNS_APART, FEW_BLOCKS * THREADS * REDUCE_ELEMENTS
    while apart > 1 and (apart * of_each_result(kernel) > COLUMN_REGISTERS or apart * max(busy // n, TILE) > m):
        apart //= 2
    return apart


def _meets_in_pairs(kernel: Kernel) -> bool:
    """Whether all that is read varies along results, or along what is reduced, and nothing along both: each element of
    one side meets each of the other. Then memory is no matter, and what a thread has read serves several results."""
    kept, over = set(kernel.kept), set(kernel.over)
    sides = [(not kept.isdisjoint(o.shape), not over.isdisjoint(o.shape)) for o in (*kernel.streams, *kernel.gathered)]
    return bool(sides) and all(one != other for one, other in sides if one or other) and (True, False) in sides


def _is_too_much(kernel: Kernel, vector: int) -> bool:
    """Whether a vector of results has more values than a thread has room for, or more text than a cache."""
    each = cost.of(walk(_bodies(kernel))) + sum(STATE_COST for r in kernel.states if BY_KIND[r.kind].partner)
    return vector * of_each_result(kernel) > COLUMN_REGISTERS or UNROLL * vector * each > COLUMN_TEXT


def _parts(kernel: Kernel) -> bool:
    """Whether threads of a warp may part at an element: in what is computed there, or where a state takes it in."""
    states = any(BY_KIND[reduce.kind].partner for reduce in kernel.states)
    return states or cost.parting(walk(_bodies(kernel)), kernel.op.is_half)


def _bodies(kernel: Kernel) -> list[Expr]:
    """What a column kernel computes at each element."""
    return [*(let.expr for let in kernel.body if let not in kernel.once), *(r.expr for r in kernel.reduces)]


def of_each_result(kernel: Kernel) -> int:
    """How many values a thread of a column kernel has of each of its results."""
    moving = [operand for operand in kernel.tensors if not set(kernel.over).isdisjoint(operand.shape)]
    whole = [operand for operand in moving if set(kernel.space) <= {*operand.shape, *kernel.over}]
    return len(kernel.held) + len(kernel.states) + len(whole)


def is_serial(m: int, n: int) -> bool:
    """Whether a thread adds up a result by itself, of m results of n elements each."""
    return m >= SERIAL_RESULTS and n <= SERIAL_ELEMENTS


def _column_width(vectors: int, n: int) -> int:
    """Threads side by side in a block, for so many vectors of results of n elements each: the others share these."""
    shared = 1
    while shared < COLUMN_THREADS and vectors * shared < BUSY_THREADS and 2 * shared * COLUMN_ELEMENTS <= n:
        shared *= 2
    return THREADS // shared


def vector_placements(
    kernel: Kernel, loops: Sequence[Loop], fast: int, buffers: Mapping[str, Buffer], most: int = LARGEST_VECTOR
) -> tuple[int, tuple[Placement, ...]]:
    """Vector width along the loop ``fast``, and how each buffer is found.

    A vector lies within the fast loop, whose size it must divide.
    """
    visited = [*(o.name for o in kernel.tensors), *(o.name for o in kernel.pointwise)]
    results = [output.name for output in kernel.outputs]  # of a vector of columns
    strides = {name: [loop.strides[name] for loop in loops] for name in buffer_names(kernel)}
    streams = [buffers[n].dtype.size for n in visited if strides[n][fast] == 1] if fast >= 0 else []
    vector = min(most, max((VECTOR_BYTES // size for size in streams), default=1))
    while vector > 1 and loops[fast].size % vector:
        vector //= 2
    placements = []
    for name, own in strides.items():
        access = Access.STRIDED if any(own) else Access.SINGLE
        width = min(VECTOR_BYTES, vector * buffers[name].dtype.size)
        apart = all(s % vector == 0 for position, s in enumerate(own) if position != fast)
        in_vectors = name in visited or name in results
        if vector > 1 and in_vectors and own[fast] == 1 and apart and buffers[name].alignment % width == 0:
            access = Access.ROW
        placements.append(Placement(name, access, moves(own)))
    if not any(p.access is Access.ROW and p.name in visited for p in placements):
        vector = 1
    return vector, settled(kernel, loops, placements, buffers, vector, fast)


def _by_stride(kernel: Kernel, loops: Sequence[Loop], buffers: Mapping[str, Buffer]) -> tuple[Placement, ...]:
    """Everything found by coordinates and strides."""
    strides = {name: [loop.strides[name] for loop in loops] for name in buffer_names(kernel)}
    placements = [Placement(n, Access.STRIDED if any(s) else Access.SINGLE, moves(s)) for n, s in strides.items()]
    return settled(kernel, loops, placements, buffers)


def _serial(
    kernel: Kernel, kept: list[Loop], over: list[Loop], buffers: Mapping[str, Buffer], axis_sizes: Mapping[str, int]
) -> tuple[Schedule, Launch]:
    loops = [*kept, *over]
    m = prod(loop.size for loop in kept)
    launch = Launch(
        tuple(loop.size for loop in loops), {name: tuple(loop.strides[name] for loop in loops) for name in buffers},
        axis_sizes, (-(-m // THREADS), 1, 1),
    )  # fmt: skip
    index = index_type(loops, buffers)
    placed = _by_stride(kernel, loops, buffers)
    return SerialSchedule(loops=len(kept), inner=len(over), index=index, placements=placed), launch


def faster(a: Loop, b: Loop, kernel: Kernel) -> bool:
    """Whether most operands step through ``a`` in smaller strides than through ``b``."""
    votes = 0
    for operand in kernel.tensors:
        one, other = a.strides[operand.name], b.strides[operand.name]
        if one and other:
            votes += 1 if abs(one) < abs(other) else -1
    return votes > 0

"""How a scan's kernels walk memory (templates/scan.cu.j2).

Where elements of a row are neighbours, the threads of a block, or a few lanes, share a row: each takes vectors of it,
and what they hold is put together in the order of the row. Where rows lie side by side, a thread walks along several of
them, and threads beside it along their neighbours. Few long rows are cut into parts: a first kernel finds what each
part comes to, a second one starts each part from those before it.

The order in which elements are combined follows from sizes and strides alone, so that the bits are the same each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, prod

from fusegen.core.dtypes import DType
from fusegen.core.ir import Expr
from fusegen.core.scans import AFFINE, LOGADDEXP, SEGMENTS, How
from fusegen.fuse.schedule import BUSY_THREADS, LARGEST_VECTOR, VECTOR_BYTES, WANTED_BLOCKS

# Bytes that a thread holds of each vector, as it computes with them.
_VECTOR_HELD = 32
# Words that a thread holds of the vectors that it reads at once, and the most of these.
_WORDS, _MOST_TURNS = 16, 4
_LANES, _LEAST_THREADS, _THREADS = 32, 64, 256
# Rows are cut into parts where there are at most so many, of at least so many tiles of a block.
_FEW_ROWS, _MANY_TILES = 132, 8
# Rows side by side: as many neighbours as fill a memory transaction, or rows so short that it makes no difference.
_NEIGHBOURS, _SHORT = 8, 16
_COLUMN_THREADS, _FEW_COLUMN_THREADS = 128, 32
_COLUMN_WORDS, _MOST_STEPS, _LONG_COLUMN = 32, 8, 64
_LARGEST_INT = 2**30
# What texts call the tensor that is written.
RESULT = "result"


@dataclass(frozen=True)
class ScanTensor:
    """What is read or written, as the text has it.

    Attributes:
        access: "vector" where a vector's elements are neighbours, "same" where they are one, else "strided".
    """

    name: str
    dtype: DType
    access: str


@dataclass(frozen=True)
class ScanSchedule:
    """What the text of a scan's kernels depends on.

    Attributes:
        dtype: what is computed in.
        values: what is combined, made of elements that are called as the tensors are.
        tensors: those that are read, and the result.
        dims: dimensions that number rows.
        columns: a thread walks along ``vector`` neighbouring rows; else ``lanes`` threads share a row, of which each
            takes ``turns`` vectors at a time.
        turns: in columns, steps of which the elements are read before the first is taken.
        even: rows are whole vectors.
        split: rows are cut into parts.
        follows: another kernel of the op runs before.
    """

    how: How
    dtype: DType
    values: tuple[Expr, ...]
    tensors: tuple[ScanTensor, ...]
    dims: int
    columns: bool
    vector: int
    threads: int
    lanes: int
    turns: int
    even: bool
    split: bool
    index: str
    follows: bool

    @property
    def tile(self) -> int:
        """Elements of a row that are read at once."""
        return self.vector * self.turns * self.lanes

    @property
    def fields(self) -> int:
        """Numbers that a partial result has."""
        return 2 if self.how.combine in (LOGADDEXP, AFFINE, SEGMENTS) else 1

    @property
    def stages(self) -> tuple[str, ...]:
        """The kernels, in order."""
        return ("totals", "scan") if self.split else ("scan",)

    def follows_in(self, stage: str) -> bool:
        """Whether another kernel of the op runs before that of a stage."""
        return self.follows or stage != self.stages[0]


@dataclass(frozen=True)
class ScanLaunch:
    """The numbers of one call.

    Attributes:
        n: elements of a row.
        sizes: of the dimensions that number rows, slowest first; ``strides`` of each tensor along these, and behind
            them along the row.
        parts, chunk: of a row, and how many of its elements each has.
    """

    n: int
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    parts: int
    chunk: int
    grid: tuple[int, int, int]

    @property
    def rows(self) -> int:
        return prod(self.sizes)


@dataclass(frozen=True)
class Lying:
    """A tensor as it lies: strides by axis, and its first element's address modulo 16."""

    name: str
    dtype: DType
    strides: Mapping[str, int]
    address: int


def schedule_scan(
    how: How, dtype: DType, values: tuple[Expr, ...], axis: str, sizes: Mapping[str, int], tensors: Sequence[Lying],
    follows: bool,
) -> tuple[ScanSchedule, ScanLaunch]:  # fmt: skip
    """How a scan with elements runs.

    Args:
        values: what is combined.
        axis: along which.
        sizes: of the result's axes.
        tensors: what is read, and the result.
    """
    n = sizes[axis]
    outer = _merged({a: size for a, size in sizes.items() if a != axis and size > 1}, tensors)
    counts = tuple(size for size, _ in outer)
    strides = tuple(
        (*(step[place] for _, step in outer), tensor.strides.get(axis, 0)) for place, tensor in enumerate(tensors)
    )
    words = sum(max(tensor.dtype.compute.size, 4) // 4 for tensor in tensors[:-1])
    index = "int" if n < _LARGEST_INT and prod(counts) < _LARGEST_INT else "int64_t"
    own, near = strides[-1][-1], strides[-1][-2] if outer else 0
    if outer and n > 1 and 0 < near < own and (counts[-1] >= _NEIGHBOURS or n <= _SHORT):
        vector = _vector(tensors, strides, -2, counts[-1], dtype, whole=True)
        steps = max(2, min(_MOST_STEPS, _COLUMN_WORDS // (vector * words * (len(tensors) - 1))))
        walkers = prod(counts) // vector
        parts = 1
        if n >= _LONG_COLUMN and 2 * walkers <= BUSY_THREADS:
            parts = max(1, min(BUSY_THREADS // walkers, isqrt(n // 2), n // 16))
        chunk = -(-n // parts)
        parts = -(-n // chunk)
        threads = _COLUMN_THREADS if walkers >= _COLUMN_THREADS * WANTED_BLOCKS else _FEW_COLUMN_THREADS
        made = ScanSchedule(
            how, dtype, values, _accesses(tensors, strides, -2), len(outer), True, vector, threads, 1, steps, True,
            parts > 1, index, follows,
        )  # fmt: skip
        return made, ScanLaunch(n, counts, strides, parts, chunk, (-(-walkers // threads), parts, 1))
    vector = _vector(tensors, strides, -1, n, dtype, whole=False)
    lanes, turns, threads = _sharing(-(-n // vector), vector * words)
    padded, tile, rows = -(-n // vector) * vector, vector * turns * lanes, prod(counts)
    parts, chunk = 1, padded
    if lanes == threads and rows <= _FEW_ROWS and padded >= _MANY_TILES * tile:
        tiles = -(-padded // tile)
        chunk = -(-tiles // min(tiles, WANTED_BLOCKS // rows)) * tile
        parts = -(-padded // chunk)
    made = ScanSchedule(
        how, dtype, values, _accesses(tensors, strides, -1), len(outer), False, vector, threads, lanes, turns,
        n % vector == 0, parts > 1, index, follows,
    )  # fmt: skip
    return made, ScanLaunch(n, counts, strides, parts, chunk, (-(-rows // (threads // lanes)) * parts, 1, 1))


def _merged(sizes: Mapping[str, int], tensors: Sequence[Lying]) -> list[tuple[int, tuple[int, ...]]]:
    """The dimensions that number rows, slowest first in the result: of each its size and all strides. Those that are
    one to all tensors are one."""
    result = tensors[-1]
    found: list[tuple[int, tuple[int, ...]]] = []
    for axis in sorted(sizes, key=lambda a: -result.strides.get(a, 0)):
        size, steps = sizes[axis], tuple(tensor.strides.get(axis, 0) for tensor in tensors)
        if found and all(slow == step * size for slow, step in zip(found[-1][1], steps, strict=True)):
            size *= found.pop()[0]
        found.append((size, steps))
    return found


def _accesses(tensors: Sequence[Lying], strides: Sequence[Sequence[int]], along: int) -> tuple[ScanTensor, ...]:
    kinds = {1: "vector", 0: "same"}
    return tuple(
        ScanTensor(tensor.name, tensor.dtype, kinds.get(steps[along], "strided"))
        for tensor, steps in zip(tensors, strides, strict=True)
    )


def _vector(
    tensors: Sequence[Lying], strides: Sequence[Sequence[int]], along: int, count: int, dtype: DType, whole: bool
) -> int:
    """Elements of a vector along a dimension, as many as all tensors that are neighbours there are aligned for.

    Args:
        along: the dimension's place in strides.
        whole: vectors have to come out even.
    """
    if strides[-1][along] != 1:
        return 1
    dense = [(tensor, steps) for tensor, steps in zip(tensors, strides, strict=True) if steps[along] == 1]
    vector = LARGEST_VECTOR
    while vector > 1:
        held = vector * max(dtype.size, *(tensor.dtype.compute.size for tensor in tensors)) <= _VECTOR_HELD
        wide = vector * min(tensor.dtype.size for tensor, _ in dense) <= VECTOR_BYTES
        fits = count % vector == 0 if whole else vector < 2 * count
        if held and wide and fits and all(_is_aligned(tensor, steps, along, vector) for tensor, steps in dense):
            break
        vector //= 2
    return vector


def _is_aligned(tensor: Lying, steps: Sequence[int], along: int, vector: int) -> bool:
    others = [step for place, step in enumerate(steps) if place != len(steps) + along]
    begins = tensor.address % min(VECTOR_BYTES, vector * tensor.dtype.size) == 0
    return begins and all(step % vector == 0 for step in others)


def _sharing(vectors: int, words: int) -> tuple[int, int, int]:
    """Threads that share a row of so many vectors, vectors that each reads at once, and threads of a block.

    Args:
        words: that a thread holds of a vector.
    """
    turns = max(1, min(_MOST_TURNS, _WORDS // words))
    if vectors <= _LANES:
        return 1 << (vectors - 1).bit_length(), 1, _THREADS
    if vectors <= _LANES * turns:
        return _LANES, -(-vectors // _LANES), _THREADS
    wanted = 1 << (-(-vectors // turns) - 1).bit_length()
    threads = min(max(wanted, _LEAST_THREADS), _THREADS)
    return threads, turns, threads

"""How a scan's kernels walk memory (their programs: generate/scan_programs).

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

from fusegen.core.dtypes import DType, int64
from fusegen.core.ir import Expr, Index, Ref, Size, refs, substitute
from fusegen.core.scans import LAST, LOGADDEXP, PLACES, RECURRENCES, How
from fusegen.fuse.scans import neighbour
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
# Bytes of a row's vector, where that is more than one access reads: putting two partial results together takes
# exponentials, and long vectors have fewer to put together.
_BYTES = {LOGADDEXP: 2 * VECTOR_BYTES}
# What texts call the position along the row, and the number of its elements.
HERE, LENGTH = "here", "n"


def result(place: int) -> str:
    """What texts call a tensor that is written."""
    return "result" if not place else f"result_{place}"


def number(place: int) -> str:
    """What texts call a number of the call."""
    return f"number{place}"


@dataclass(frozen=True)
class ScanProgram:
    """What a scan's kernel computes, however its tensors lie.

    Attributes:
        how: what is combined, from which end.
        dtype: what is computed in.
        values: what is combined, made of elements as fuse/scans calls them, `HERE` and `LENGTH`.
        results: the partial results, as the text has them; the first one is that of ``how``.
        outputs: what is written, made of these as well.
        numbers: of the call, by the names that they have in expressions, and their dtypes.
    """

    how: How
    dtype: DType
    values: tuple[Expr, ...]
    results: tuple[How, ...]
    outputs: tuple[Expr, ...]
    numbers: tuple[tuple[str, DType], ...] = ()

    @classmethod
    def of(
        cls, axis: str, how: How, dtype: DType, values: Sequence[Expr], results: Sequence[How],
        outputs: Sequence[Expr], numbers: Sequence[Ref] = (),
    ) -> ScanProgram:  # fmt: skip
        """With an axis and numbers that are called as texts call them."""
        known: dict[Expr, Expr] = {Index(axis): Ref(HERE, int64), Size(axis): Ref(LENGTH, int64)}
        known |= {ref: Ref(number(place), ref.dtype) for place, ref in enumerate(numbers)}
        made, written = ([substitute(expr, known) for expr in exprs] for exprs in (values, outputs))
        called = tuple((number(place), ref.dtype) for place, ref in enumerate(numbers))
        return cls(how, dtype, tuple(made), tuple(results), tuple(written), called)

    @property
    def read(self) -> frozenset[str]:
        """What values are made of."""
        return frozenset(ref.name for ref in refs(*self.values))

    @property
    def read_later(self) -> frozenset[str]:
        """What results are made of."""
        return frozenset(ref.name for ref in refs(*self.outputs))


@dataclass(frozen=True)
class ScanTensor:
    """What is read or written, as the text has it.

    Attributes:
        access: "vector" where a vector's elements are neighbours, "same" where they are one, else "strided".
    """

    name: str
    dtype: DType
    access: str

    @property
    def elements(self) -> tuple[str, str, str]:
        """What expressions call its elements."""
        return self.name, neighbour(self.name, -1), neighbour(self.name, 1)


@dataclass(frozen=True)
class ScanSchedule:
    """What the text of a scan's kernels depends on.

    Attributes:
        program: what is computed.
        tensors: those that are read; ``written`` those that are written.
        dims: dimensions that number rows.
        columns: a thread walks along ``vector`` neighbouring rows; else ``lanes`` threads share a row, of which each
            takes ``turns`` vectors at a time.
        turns: in columns, steps of which the elements are read before the first is taken.
        even: rows are whole vectors.
        split: rows are cut into parts.
        follows: another kernel of the op runs before.
    """

    program: ScanProgram
    tensors: tuple[ScanTensor, ...]
    written: tuple[ScanTensor, ...]
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
    def how(self) -> How:
        return self.program.how

    @property
    def place_type(self) -> str:
        """The C++ type of a position beside a partial result: as wide, so that nothing lies between them."""
        return "int64_t" if self.program.dtype.size == 8 else self.index

    @property
    def state_bytes(self) -> int:
        """What a partial result takes in memory."""
        size = self.program.dtype.size
        if self.how.combine in PLACES:
            return 2 * max(size, 8 if self.place_type == "int64_t" else 4)
        return size * (2 if self.how.combine in (LOGADDEXP, LAST, *RECURRENCES) else 1)

    def reads_in(self, stage: str) -> tuple[ScanTensor, ...]:
        """The tensors that the kernel of a stage reads: what comes to results alone is not of the totals."""
        program = self.program
        read = program.read if stage == "totals" else program.read | program.read_later
        return tuple(tensor for tensor in self.tensors if not read.isdisjoint(tensor.elements))

    def neighbours_in(self, stage: str) -> tuple[tuple[ScanTensor, int], ...]:
        """The same of elements at the next position: a tensor, and which way that is."""
        program = self.program
        read = program.read if stage == "totals" else program.read | program.read_later
        return tuple((tensor, way) for tensor in self.tensors for way in (-1, 1) if neighbour(tensor.name, way) in read)

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
    program: ScanProgram, axis: str, sizes: Mapping[str, int], reads: Sequence[Lying], writes: Sequence[Lying],
    follows: bool,
) -> tuple[ScanSchedule, ScanLaunch]:  # fmt: skip
    """How a scan with elements runs.

    Args:
        axis: along which.
        sizes: of the results' axes.
        reads, writes: its tensors.
    """
    tensors = [*reads, *writes]
    n = sizes[axis]
    outer = _merged({a: size for a, size in sizes.items() if a != axis and size > 1}, tensors, writes[0])
    counts = tuple(size for size, _ in outer)
    strides = tuple(
        (*(step[place] for _, step in outer), tensor.strides.get(axis, 0)) for place, tensor in enumerate(tensors)
    )
    words = sum(max(tensor.dtype.compute.size, 4) // 4 for tensor in reads)
    index = "int" if n < _LARGEST_INT and prod(counts) < _LARGEST_INT else "int64_t"
    written = strides[len(reads)]  # results lie alike, but for those that a call has given
    own, near = written[-1], written[-2] if outer else 0
    if outer and n > 1 and 0 < near < own and (counts[-1] >= _NEIGHBOURS or n <= _SHORT):
        vector = _vector(tensors, strides, len(reads), -2, counts[-1], program, whole=True)
        steps = max(2, min(_MOST_STEPS, _COLUMN_WORDS // (vector * words * len(reads))))
        walkers = prod(counts) // vector
        parts = 1
        if n >= _LONG_COLUMN and 2 * walkers <= BUSY_THREADS:
            parts = max(1, min(BUSY_THREADS // walkers, isqrt(n // 2), n // 16))
        chunk = -(-n // parts)
        parts = -(-n // chunk)
        threads = _COLUMN_THREADS if walkers >= _COLUMN_THREADS * WANTED_BLOCKS else _FEW_COLUMN_THREADS
        made = ScanSchedule(
            program, *_accesses(tensors, strides, -2, len(reads)), len(outer), True, vector, threads, 1, steps, True,
            parts > 1, index, follows,
        )  # fmt: skip
        return made, ScanLaunch(n, counts, strides, parts, chunk, (-(-walkers // threads), parts, 1))
    vector = _vector(tensors, strides, len(reads), -1, n, program, whole=False)
    lanes, turns, threads = _sharing(-(-n // vector), vector * words)
    padded, tile, rows = -(-n // vector) * vector, vector * turns * lanes, prod(counts)
    parts, chunk = 1, padded
    if lanes == threads and rows <= _FEW_ROWS and padded >= _MANY_TILES * tile:
        tiles = -(-padded // tile)
        chunk = -(-tiles // min(tiles, WANTED_BLOCKS // rows)) * tile
        parts = -(-padded // chunk)
    made = ScanSchedule(
        program, *_accesses(tensors, strides, -1, len(reads)), len(outer), False, vector, threads, lanes, turns,
        n % vector == 0, parts > 1, index, follows,
    )  # fmt: skip
    return made, ScanLaunch(n, counts, strides, parts, chunk, (-(-rows // (threads // lanes)) * parts, 1, 1))


def _merged(sizes: Mapping[str, int], tensors: Sequence[Lying], result: Lying) -> list[tuple[int, tuple[int, ...]]]:
    """The dimensions that number rows, slowest first in the result: of each its size and all strides. Those that are
    one to all tensors are one."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for axis in sorted(sizes, key=lambda a: -result.strides.get(a, 0)):
        size, steps = sizes[axis], tuple(tensor.strides.get(axis, 0) for tensor in tensors)
        if found and all(slow == step * size for slow, step in zip(found[-1][1], steps, strict=True)):
            size *= found.pop()[0]
        found.append((size, steps))
    return found


def _accesses(
    tensors: Sequence[Lying], strides: Sequence[Sequence[int]], along: int, reads: int
) -> tuple[tuple[ScanTensor, ...], tuple[ScanTensor, ...]]:
    """Those that are read, of which there are so many, and those that are written."""
    kinds = {1: "vector", 0: "same"}
    found = tuple(
        ScanTensor(tensor.name, tensor.dtype, kinds.get(steps[along], "strided"))
        for tensor, steps in zip(tensors, strides, strict=True)
    )
    return found[:reads], found[reads:]


def _vector(
    tensors: Sequence[Lying], strides: Sequence[Sequence[int]], first: int, along: int, count: int,
    program: ScanProgram, whole: bool,
) -> int:  # fmt: skip
    """Elements of a vector along a dimension, as many as all tensors that are neighbours there are aligned for.

    Args:
        first: the place of the first result.
        along: the dimension's place in strides.
        whole: vectors have to come out even.
    """
    if strides[first][along] != 1:
        return 1
    lying = list(zip(tensors, strides, strict=True))
    dense = [(tensor, steps) for tensor, steps in lying if steps[along] == 1]
    written = [tensor.dtype.size for tensor, steps in lying[first:] if steps[along] == 1]
    vector, most = LARGEST_VECTOR, _BYTES.get(program.how.combine, VECTOR_BYTES) if along == -1 else VECTOR_BYTES
    while vector > 1:
        held = vector * max(program.dtype.size, *(tensor.dtype.compute.size for tensor in tensors)) <= _VECTOR_HELD
        # A result that takes two accesses is written by halves of what memory writes at once.
        wide = vector * max(written) <= most
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

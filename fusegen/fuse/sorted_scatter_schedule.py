"""How the kernels of a scatter walk memory whose updates are sorted by their places first.

``result[b, places[b, i], column] += updates[b, i, column]``, where lines do not fit on the chip, or are too few to have
a thread each. A first kernel makes one key of b and the place. The framework sorts keys, and keeps the order of what is
equal. Then the updates for a place are a *run*: they follow one another. Kernels add up runs. Sorted updates are cut
into parts of equally many. A thread has a column of a run in a part. What lies between the ends of a part is a whole
run, whose sum is written. The first and the last run of a part may go on in others, so a part leaves two sums with
their keys. These are sorted as well, and are added up by another launch, until one part is left. However uneven runs
are, each thread adds up no more than a part has, and sums have the same bits each time. A block reads the updates
of its parts into shared memory at once: they are anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from fusegen.core.dtypes import DType, int16, int32, int64, uint8
from fusegen.fuse.scatter_schedule import NAMES, POSITIONS, positions, wide_of
from fusegen.fuse.schedule import Buffer, Loop, merged, ordered
from fusegen.fuse.steps import Looked

# Updates of a part; threads of a block; how many bytes of columns these read side by side at most; and updates of all
# columns that a block reads at once, if that is no less than a part.
PART, THREADS, WIDEST, AT_ONCE = 128, 256, 128, 2048
_LARGEST_INT = 2**30
# Seconds on an H200, as timed: what takes time however few updates there are, most of it the host's; a key, and each of
# its bytes; the updates of a key, which are anywhere, and each column of them.
_LAUNCHES, _PER_KEY, _PER_BYTE, _PER_ROW, _PER_COLUMN = 150e-6, 8e-12, 10e-12, 16e-12, 4e-12


@dataclass(frozen=True)
class KeysSchedule:
    """What the text of the kernel that makes keys depends on.

    Attributes:
        places, keys: dtypes.
        dims: of the dimensions that number updates.
        lines: there are several b.
        index: C type of positions.
        follows: another kernel runs before it.
        looked: how places are looked at; None where they have been.
    """

    places: DType
    keys: DType
    dims: int
    lines: bool
    index: str
    follows: bool
    looked: Looked | None = None

    @property
    def threads(self) -> int:
        """Threads of a block, an update each."""
        return THREADS


@dataclass(frozen=True)
class RunsSchedule:
    """What the text of a kernel that adds up runs depends on.

    Attributes:
        kind: of the reduction that combines updates: "sum" or "prod".
        keys: their dtype.
        dtypes: of updates and result.
        onto: what is combined is added to what the result holds.
        ordered: updates are read in the order that sorting found; sums of parts lie in order.
        dims: of the dimensions that number updates, places of the result, and columns.
        columns: that a block has side by side; ``tiled``: there are more.
        index: C type of positions.
    """

    kind: str
    keys: DType
    dtypes: tuple[DType, DType]
    onto: bool
    ordered: bool
    dims: tuple[int, int, int]
    columns: int
    tiled: bool
    index: str

    @property
    def wide(self) -> DType:
        """What is computed in."""
        return wide_of(self.dtypes[1])

    @property
    def threads(self) -> tuple[int, int]:
        """Threads of a block: of columns, and of updates."""
        return self.columns, THREADS // self.columns

    @property
    def rows(self) -> int:
        """Updates that a block has: whole parts."""
        return max(AT_ONCE // self.columns, PART)


@dataclass(frozen=True)
class SortedScatter:
    """The kernels and numbers of one call.

    Attributes:
        keys: how keys are made; ``runs``: how runs of updates are added up, and those of the sums of parts.
        updates, places, columns: how many there are; places of all b together.
        size: places of one b.
        loops: dimensions that number updates (by places and by updates), places and columns, slowest first.
    """

    keys: KeysSchedule
    runs: tuple[RunsSchedule, RunsSchedule]
    updates: int
    places: int
    columns: int
    size: int
    loops: tuple[tuple[Loop, ...], tuple[Loop, ...], tuple[Loop, ...], tuple[Loop, ...]]

    @property
    def seconds(self) -> float:
        """What it takes on an H200, about."""
        of_key = _PER_KEY + _PER_BYTE * self.keys.keys.size
        return _LAUNCHES + self.updates * (of_key + _PER_ROW + self.columns * _PER_COLUMN)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of what each launch adds up: updates, then two sums of each part of the launch before."""
        found = [self.updates]
        while found[-1] > PART:
            found.append(2 * -(-found[-1] // PART))
        return tuple(found)


def schedule_sorted_scatter(
    kind: str, onto: bool, line: tuple[str, ...], over: tuple[str, ...], axis: str, sizes: Mapping[str, int],
    tensors: Sequence[Buffer], follows: bool, looked: Looked | None = None,
) -> SortedScatter | None:  # fmt: skip
    """How to sort and walk; None where there is nothing to do.

    Args:
        line: axes of the result without ``axis``, along which it has places; ``over``: of the updates of a line.
        tensors: places, updates and result. What the sum is added to is in the result by then, and ``onto`` is said.
        follows: other steps run before it.
        looked: how places are looked at.
    """
    places, updates, result = (dict(zip(NAMES, tensors, strict=False))[name] for name in NAMES[:3])
    own = own_axes(line, sizes, places)
    shared = ordered([each for each in line if each not in own], [result, updates])
    count, kept = (prod(sizes[each] for each in axes) for axes in ((*own, *over), own))
    columns = prod(sizes[each] for each in shared)
    if not count * kept * columns * sizes[axis]:
        return None
    loops = (
        tuple(merged([*own, *over], sizes, {"places": places, POSITIONS: positions(looked, sizes)})),
        tuple(merged([*own, *over], sizes, {"updates": updates})),
        tuple(merged([*own, axis], sizes, {"result": result})),
        tuple(merged(shared, sizes, {"updates": updates, "result": result})),
    )
    index = "int" if max(count, kept * sizes[axis], columns) < _LARGEST_INT else "int64_t"
    key = next(dtype for dtype in (uint8, int16, int32, int64) if kept * sizes[axis] < _most(dtype))
    bytes_of_one = max(updates.dtype.size, wide_of(result.dtype).size // 2)  # a block's are kept in the wide dtype
    width = min(WIDEST // bytes_of_one, 1 << (columns - 1).bit_length())
    first = RunsSchedule(
        kind, key, (updates.dtype, result.dtype), onto, True, (len(loops[1]), len(loops[2]), len(loops[3])), width,
        columns > width, index,
    )  # fmt: skip
    further = replace(first, dtypes=(first.wide, result.dtype), ordered=False, dims=(0, *first.dims[1:]))
    keys = KeysSchedule(places.dtype, key, len(loops[0]), bool(own), index, follows, looked)
    return SortedScatter(keys, (first, further), count, kept * sizes[axis], columns, sizes[axis], loops)


def own_axes(line: Sequence[str], sizes: Mapping[str, int], places: Buffer) -> list[str]:
    """Axes of a result along which places differ."""
    return [axis for axis in line if sizes[axis] == 0 or (sizes[axis] > 1 and places.strides.get(axis, 0))]


def schedule_places(
    axes: Sequence[str], axis: str, sizes: Mapping[str, int], places: Buffer, looked: Looked, follows: bool
) -> tuple[KeysSchedule, tuple[Loop, ...]]:
    """How to look at the places along an axis that an index with these axes tells, for a routine that does not.

    Each is kept as it is: no key of several lines.
    """
    loops = tuple(merged(axes, sizes, {"places": places, POSITIONS: positions(looked, sizes)}))
    index = "int" if max(prod(sizes[each] for each in axes), sizes[axis]) < _LARGEST_INT else "int64_t"
    return KeysSchedule(places.dtype, int64, len(loops), False, index, follows, looked), loops


def _most(dtype: DType) -> int:
    """The largest key: the places' number itself is the key of what has none."""
    bits = 8 * dtype.size - (dtype is not uint8)
    return (1 << bits) - 1

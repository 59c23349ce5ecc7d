"""How the kernel of a scatter walks memory, where what is for one line of its result fits on the chip.

``result[line, place[line, i]] += update[line, i]``: a line is all places of the result that the same updates may go
to. One thread owns a line. It keeps the line in shared memory and takes the line's updates in their order, so that sums
have the same bits each time, without sorting and without atomics. Threads beside it own the lines beside it. The other
warps of its block read the updates that come next meanwhile, from neighbouring addresses, whichever way these go. All
of them write results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fusegen.core.dtypes import DType, float32, int64
from fusegen.fuse.rows_schedule import MOST_THREADS, MULTIPROCESSORS
from fusegen.fuse.schedule import Buffer, merged, ordered

# Lines for which an owner each is worth it: torch sorts what such lines are told together. And updates of one line that
# are so few that sorting them, whose kernels wait for one another, takes longer in any case.
FEWEST_LINES, FEW_UPDATES = 64, 1024
# Lines of a block; warps that read their updates, and how many updates, of all lines together, these read ahead.
LINES, READERS, AHEAD = (32, 16, 8), 4, 1024
WARP = 32
# Bytes of shared memory on a multiprocessor beyond what one block may have, and those that a block takes by itself.
_MORE, _OWN = 1024, 1024
_LARGEST_INT = 2**30
# What texts and parameters call the tensors.
NAMES = ("places", "updates", "result", "base")


@dataclass(frozen=True)
class ScatterSchedule:
    """What the text of a scatter's kernel depends on.

    Attributes:
        kind: of the reduction that combines updates: "sum", "prod", "max" or "min".
        dtypes: of places, updates and result.
        onto: what is combined is added to what the result holds; ``based``: to a tensor of its dtype.
        lines: of a block, one for each thread.
        places: of a line that there is room for.
        dims: dimensions that number lines.
        along: a line's places lie side by side in the result.
        apart: a line's updates do, those of another line not.
        index: C type of positions.
        follows: another kernel runs before it.
    """

    kind: str
    dtypes: tuple[DType, DType, DType]
    onto: bool
    based: bool
    lines: int
    places: int
    dims: int
    along: bool
    apart: bool
    index: str
    follows: bool

    @property
    def wide(self) -> DType:
        """What is computed in."""
        return _wide(self.dtypes[2])

    @property
    def pitch(self) -> int:
        """Lines that lie side by side in shared memory; one more where threads go along them, to other banks."""
        return self.lines + (self.along or self.apart)

    @property
    def ahead(self) -> int:
        """Updates of each line that are read at once."""
        return AHEAD // self.lines

    @property
    def threads(self) -> int:
        """Threads of a block: one warp has the lines."""
        return WARP * (1 + READERS)

    @property
    def staged(self) -> int:
        """Bytes of shared memory in which updates and their places wait to be taken."""
        return 2 * self.ahead * self.pitch * (4 + self.wide.size)

    @property
    def shared(self) -> int:
        """Bytes of shared memory in which lines are kept."""
        return self.places * self.pitch * self.wide.size


@dataclass(frozen=True)
class ScatterLaunch:
    """The numbers of one call.

    Attributes:
        lines: of the result; ``n`` updates of each, ``size`` places.
        sizes: of the dimensions that number lines, slowest first; ``strides`` of each tensor along these.
        steps: of places and updates from one update to the next, of result and base from one place to the next.
    """

    lines: int
    n: int
    size: int
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]


def schedule_scatter(
    kind: str, onto: bool, line: tuple[str, ...], over: tuple[str, ...], axis: str, sizes: Mapping[str, int],
    tensors: Sequence[Buffer], shared: int, follows: bool,
) -> tuple[ScatterSchedule, ScatterLaunch] | None:  # fmt: skip
    """How to walk; None where lines do not fit on the chip, or are too few.

    Args:
        line: axes of the result without ``axis``, along which it has places; ``over``: of the updates of a line.
        tensors: places, updates and result, and what the sum is added to where that is another tensor.
        shared: bytes of shared memory that a block can have.
    """
    buffers = dict(zip(NAMES, tensors, strict=False))
    kept = merged(ordered(line, [tensors[2], tensors[1], tensors[0]]), sizes, buffers)
    inner = merged(over, sizes, buffers)
    lines, n, size = prod(loop.size for loop in kept), prod(loop.size for loop in inner), sizes[axis]
    own = prod(sizes[each] for each in line if each in tensors[0].strides)
    if len(inner) > 1 or lines * n * size == 0 or (own < FEWEST_LINES and n > FEW_UPDATES):
        return None
    places_step, updates_step = (inner[0].strides[name] if inner else 0 for name in NAMES[:2])
    steps = places_step, updates_step, *(tensor.strides.get(axis, 0) for tensor in tensors[2:])
    fastest = min((abs(loop.strides["result"]) for loop in kept), default=0)
    beside = min((abs(loop.strides["updates"]) for loop in kept), default=0)
    index = "int" if max(lines, n, size) < _LARGEST_INT else "int64_t"
    dtypes = tensors[0].dtype, tensors[1].dtype, tensors[2].dtype
    along, apart = bool(kept) and abs(steps[2]) < fastest, len(kept) == 1 and abs(updates_step) < beside
    options = [
        ScatterSchedule(
            kind, dtypes, onto, len(tensors) > 3, count, _with_room(size), len(kept), along, apart, index, follows
        )
        for count in LINES
    ]

    def at_once(schedule: ScatterSchedule) -> tuple[int, int]:
        """Lines that a multiprocessor has at a time; of several blocks rather than of one, which all read ahead."""
        blocks = min((shared + _MORE) // (schedule.shared + schedule.staged + _OWN), MOST_THREADS // schedule.threads)
        return min(blocks * schedule.lines, -(-lines // MULTIPROCESSORS)), -schedule.lines

    fitting = [schedule for schedule in options if schedule.shared + schedule.staged <= shared]
    if not fitting:
        return None
    strides = tuple(tuple(loop.strides[name] for loop in kept) for name in buffers)
    launch = ScatterLaunch(lines, n, size, tuple(loop.size for loop in kept), strides, steps)
    return max(fitting, key=at_once), launch


def _wide(dtype: DType) -> DType:
    return dtype if dtype.size == 8 else float32 if dtype.is_float else int64


def _with_room(size: int) -> int:
    """So many places, or up to a quarter more: one text serves all such sizes."""
    step = max(1, 1 << max(size.bit_length() - 3, 0))
    return -(-size // step) * step

"""How the kernel of a scatter walks memory, where what is for one line of its result fits on the chip.

``result[line, place[line, i]] += update[line, i]``: a line is all places of the result that the same updates may go
to. One thread owns a line. It keeps the line in shared memory and takes the line's updates in their order, so that sums
have the same bits each time, without sorting and without atomics. Threads beside it own the lines beside it. The other
warps of its block read the updates that come next meanwhile, from neighbouring addresses, whichever way these go. All
of them write results.

Where lines are few, the updates of a line are split: a thread owns a part of them, and a line's places for these. What
parts come to is combined in their order by a reduction like any other (run/owned_scatter_step).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fusegen.core.dtypes import DType, float32, int64
from fusegen.fuse.rows_schedule import MOST_THREADS, MULTIPROCESSORS
from fusegen.fuse.schedule import Buffer, Loop, merged, ordered
from fusegen.fuse.steps import Looked

# Updates of a part of a line, of which no fewer are worth an owner with a line of its own.
FEW_UPDATES = 1024
# Lines of a block; warps that read their updates, and how many updates, of all lines together, these read ahead.
LINES, READERS, AHEAD = (32, 16, 8), 4, 1024
WARP = 32
# Bytes of shared memory on a multiprocessor beyond what one block may have, and those that a block takes by itself.
_MORE, _OWN = 1024, 1024
_LARGEST_INT = 2**30
# Seconds on an H200, as timed: a launch; an update of each owner, and one more where there are many; beginning and
# writing a place; writing and reading what a part holds for one.
_LAUNCH, _PER_TURN, _PER_UPDATE, _PER_PLACE, _PER_ELEMENT = 3e-6, 23e-9, 0.5e-9, 8e-9, 3e-12
# The axis of a line's parts, in the result of a scatter that is split.
PARTS = "parts"
# What texts and parameters call the tensors.
NAMES = ("places", "updates", "result", "base")
POSITIONS = "positions"


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
        split: the first of the dimensions that number lines is that of parts of a line's updates.
        looked: how places are looked at; None where they have been.
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
    split: bool = False
    looked: Looked | None = None

    @property
    def wide(self) -> DType:
        """What is computed in."""
        return wide_of(self.dtypes[2])

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
        lines: of the result; ``n`` updates of each, ``size`` places; ``whole``: updates of a line that is split.
        sizes: of the dimensions that number lines, slowest first; ``strides`` of each tensor along these, and of what a
            report says of where a place stands.
        steps: of places and updates from one update to the next, of result and base from one place to the next; and of
            where a place stands.
    """

    lines: int
    n: int
    size: int
    whole: int
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]


def schedule_scatter(
    kind: str, onto: bool, line: tuple[str, ...], over: tuple[str, ...], axis: str, sizes: Mapping[str, int],
    tensors: Sequence[Buffer], shared: int, follows: bool, parts: int = 1, looked: Looked | None = None,
) -> tuple[ScatterSchedule, ScatterLaunch] | None:  # fmt: skip
    """How to walk; None where lines do not fit on the chip.

    Args:
        line: axes of the result without ``axis``, along which it has places; ``over``: of the updates of a line.
        tensors: places, updates and result, and what the sum is added to where that is another tensor.
        shared: bytes of shared memory that a block can have.
        parts: of the updates of a line: the result has them along the axis `PARTS`.
        looked: how places are looked at.
    """
    buffers = {**dict(zip(NAMES, tensors, strict=False)), POSITIONS: positions(looked, sizes)}
    kept = merged(ordered(line, [tensors[2], tensors[1], tensors[0]]), sizes, buffers)
    inner = merged(over, sizes, buffers)
    lines, whole, size = prod(loop.size for loop in kept), prod(loop.size for loop in inner), sizes[axis]
    if len(inner) > 1 or lines * whole * size == 0:
        return None
    places_step, updates_step = (inner[0].strides[name] if inner else 0 for name in NAMES[:2])
    n = -(-whole // parts)
    if parts > 1:
        steps_of = {"places": n * places_step, "updates": n * updates_step, "result": tensors[2].strides[PARTS]}
        steps_of[POSITIONS] = n * (inner[0].strides[POSITIONS] if inner else 0)
        kept, lines = [Loop(parts, steps_of), *kept], parts * lines
    steps = places_step, updates_step, *(tensor.strides.get(axis, 0) for tensor in tensors[2:])
    steps = *steps, inner[0].strides[POSITIONS] if inner else 0
    fastest = min((abs(loop.strides["result"]) for loop in kept), default=0)
    beside = min((abs(loop.strides["updates"]) for loop in kept), default=0)
    index = "int" if max(lines, whole, size) < _LARGEST_INT else "int64_t"
    dtypes = tensors[0].dtype, tensors[1].dtype, tensors[2].dtype
    along, apart = bool(kept) and abs(steps[2]) < fastest, len(kept) == 1 and abs(updates_step) < beside
    options = [
        ScatterSchedule(
            kind, dtypes, onto, len(tensors) > 3, count, _with_room(size), len(kept), along, apart, index, follows,
            parts > 1, looked,
        )
        for count in LINES
    ]  # fmt: skip

    def at_once(schedule: ScatterSchedule) -> tuple[int, int]:
        """Lines that a multiprocessor has at a time; of several blocks rather than of one, which all read ahead."""
        return min(_at_once(schedule, shared), -(-lines // MULTIPROCESSORS)), -schedule.lines

    fitting = [schedule for schedule in options if schedule.shared + schedule.staged <= shared]
    if not fitting:
        return None
    strides = tuple(tuple(loop.strides[name] for loop in kept) for name in buffers)
    launch = ScatterLaunch(lines, n, size, whole, tuple(loop.size for loop in kept), strides, steps)
    return max(fitting, key=at_once), launch


def positions(looked: Looked | None, sizes: Mapping[str, int]) -> Buffer:
    """Where places stand in their index, as a report counts them: like a tensor of which each element is its offset."""
    axes = looked.axes if looked and looked.site else ()
    return Buffer(int64, {axis: prod(sizes[other] for other in axes[at + 1 :]) for at, axis in enumerate(axes)})


def _at_once(schedule: ScatterSchedule, shared: int) -> int:
    """Lines that a multiprocessor can have at a time."""
    blocks = min((shared + _MORE) // (schedule.shared + schedule.staged + _OWN), MOST_THREADS // schedule.threads)
    return blocks * schedule.lines


def parts_of(schedule: ScatterSchedule, launch: ScatterLaunch, shared: int) -> int:
    """Into how many parts the updates of each line are split, for threads that a GPU has at a time.

    No part has fewer updates than would be worth the line that its thread keeps for them.
    """
    lines = launch.lines
    wanted = MULTIPROCESSORS * _at_once(schedule, shared) // lines
    return max(1, min(wanted, launch.whole // max(FEW_UPDATES, launch.size)))


def seconds_owned(schedule: ScatterSchedule, launch: ScatterLaunch, shared: int) -> float:
    """What it takes on an H200, about: a round after the other of owners that multiprocessors have at a time."""
    owners = min(_at_once(schedule, shared), -(-launch.lines // MULTIPROCESSORS))
    rounds = -(-launch.lines // (owners * MULTIPROCESSORS))
    return _LAUNCH + rounds * (launch.n * max(_PER_TURN, owners * _PER_UPDATE) + launch.size * _PER_PLACE)


def seconds_between(elements: int) -> float:
    """What it takes to write what parts hold, and to combine it."""
    return _LAUNCH + elements * _PER_ELEMENT


def wide_of(dtype: DType) -> DType:
    """What results of a dtype are computed in."""
    return dtype if dtype.size == 8 else float32 if dtype.is_float else int64


def _with_room(size: int) -> int:
    """So many places, or up to a quarter more: one text serves all such sizes."""
    step = max(1, 1 << max(size.bit_length() - 3, 0))
    return -(-size // step) * step

"""How long a kernel takes, about: the longer of its bytes and its instructions, as a large GPU moves and issues them.

What an op is fused into is chosen by it (pipeline.plan_op), so it has no GPU to ask, and is the same everywhere: it
goes by an H200's figures, which inspect/gpus has as well. It knows nothing of latency: what it compares are kernels of
one op, which mostly wait for the same things.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from fusegen.core.ir import Tensorlike
from fusegen.fuse.kernel import Kernel
from fusegen.fuse.rows_schedule import MULTIPROCESSORS
from fusegen.fuse.schedule import Launch, Schedule
from fusegen.fuse.work import Work, work_of_kernel

# Bytes and instructions of threads in a microsecond, of which the special functions unit and the float64 unit take a
# share; and what a launch adds, which begins while the one before it ends.
BANDWIDTH, ISSUED, SPECIAL, DOUBLES, LAUNCH = 4.28e6, 33.5e6, 1 / 8, 1 / 2, 1.5
# How many times its share of the bytes a multiprocessor can move while others have nothing to do.
ALONE = 2


def working(kernel: Kernel, schedule: Schedule, launch: Launch, sizes: Mapping[str, int]) -> float:
    """Microseconds of one kernel, without what a launch adds.

    Args:
        sizes: of all axes of its op.
    """
    things = [*kernel.tensors, *kernel.written]
    moved = sum(thing.dtype.size * elements(thing.name, launch) for thing in things)
    busy = min(1.0, max(1, prod(launch.grid)) / MULTIPROCESSORS)
    issuing = _issuing(work_of_kernel(kernel, schedule, sizes)) / busy
    return max(moved / (BANDWIDTH * min(1.0, ALONE * busy)), issuing)


def launching(schedule: Schedule) -> float:
    """Microseconds that its launch adds, or its two launches."""
    return LAUNCH * (2 if schedule.split else 1)


def at_least(things: Iterable[Tensorlike], work: Work, sizes: Mapping[str, int]) -> float:
    """Microseconds of one kernel that moves each of ``things`` once, and computes nothing twice."""
    moved = sum(thing.dtype.size * prod(sizes[axis] for axis in thing.shape if axis) for thing in things)
    return max(moved / BANDWIDTH, _issuing(work)) + LAUNCH


def elements(name: str, launch: Launch) -> int:
    """How many elements of a tensor a launch visits."""
    steps = launch.strides.get(name, ())
    return prod(size for size, step in zip(launch.sizes, steps, strict=False) if step)


def _issuing(work: Work) -> float:
    return max(work.issued, work.special / SPECIAL, work.doubles / DOUBLES) / ISSUED

"""How long kernels take, about, by how they are scheduled: in which order the tuner measures what it could choose.

Only differences count: between schedules of one op, which mostly move the same bytes. A GPU moves them at full speed
while enough are under way on each multiprocessor; blocks that do not fill its last turn leave multiprocessors idle.
"""

from __future__ import annotations

from math import ceil, prod

from fusegen.fuse.kernel_time import BANDWIDTH, elements, launching
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.rows_schedule import MOST_THREADS, MULTIPROCESSORS, REGISTERS, RowSchedule, registers
from fusegen.fuse.schedule import ColumnSchedule, Launch, Schedule
from fusegen.fuse.strided_rows import StridedRowKernel, StridedRowSchedule
from fusegen.fuse.strided_rows import registers as strided_registers
from fusegen.pipeline import ScheduledKernel, ScheduledOp

# Bytes under way on a multiprocessor that full speed takes.
UNDER_WAY = 32 * 1024
# Registers of a thread of the kernels that do not count them; blocks, and bytes of shared memory, of a multiprocessor.
USUAL_REGISTERS, MOST_BLOCKS, SHARED = 40, 32, 227 * 1024


def microseconds(planned: ScheduledOp) -> float:
    """Of all kernels, one after the other."""
    return sum(map(_of_kernel, planned.kernels))


def _of_kernel(planned: ScheduledKernel) -> float:
    plan, launch = planned.schedule, planned.launch
    things = [*planned.kernel.tensors, *planned.kernel.written]
    moved = sum(thing.dtype.size * elements(thing.name, launch) for thing in things)
    blocks, threads = max(1, prod(launch.grid)), prod(launch.block)
    resident = min(MOST_THREADS // threads, REGISTERS // (threads * _registers(planned)), MOST_BLOCKS)
    resident = max(1, min(resident, SHARED // plan.dynamic if plan.dynamic else resident))
    turns = blocks / (MULTIPROCESSORS * resident)
    busy = min(1.0, blocks / MULTIPROCESSORS) if turns <= 1 else turns / ceil(turns)
    unroll = plan.unroll if isinstance(plan, ColumnSchedule) else 1
    each = sum(thing.dtype.size for thing in planned.kernel.tensors) * plan.vector * plan.vectors_per_thread * unroll
    under_way = each * threads * min(resident, ceil(blocks / MULTIPROCESSORS)) * _used(plan, launch)
    slow = max(1.0, UNDER_WAY / max(under_way, 1))
    return moved / BANDWIDTH * slow / busy + launching(plan)


def _registers(planned: ScheduledKernel) -> int:
    kernel, plan = planned.kernel, planned.schedule
    if isinstance(kernel, StridedRowKernel) and isinstance(plan, StridedRowSchedule):
        return strided_registers(kernel, plan)
    if isinstance(kernel, RowKernel) and isinstance(plan, RowSchedule):
        return registers(kernel, plan)
    return USUAL_REGISTERS


def _used(plan: Schedule, launch: Launch) -> float:
    """The share of a row's threads that have elements of it."""
    if not isinstance(plan, RowSchedule) or plan.chunked:
        return 1.0
    n, reach = prod(launch.sizes[plan.loops :]), plan.threads * plan.vectors_per_thread * plan.vector * plan.cluster
    return min(1.0, n / reach)

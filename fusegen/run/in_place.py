"""Whether a result may be written where an argument lies: its kernels must read each element where they write it.

Threads run in any order. What reads a row backwards, turned, or at places that other tensors tell, would find results
where it expects arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

from fusegen.core.ir import PackedBlock
from fusegen.fuse.row_kernel import RowKernel, picked_by
from fusegen.pipeline import ScheduledKernel


def read_elsewhere(kernels: Iterable[ScheduledKernel]) -> frozenset[tuple[str, str]]:
    """Operands and results of the same kernel, by name, of which it reads one at other elements than it writes the
    other at. Blocks of packed tensors begin at different addresses, which this does not compare."""
    found = set[tuple[str, str]]()
    for planned in kernels:
        kernel, steps = planned.kernel, planned.launch.strides
        results = [output.name for output in (*kernel.outputs, *kernel.pointwise)]
        gathered = {operand.table.name for operand in kernel.gathered}
        if isinstance(kernel, RowKernel):  # a sum with one term is read from memory, by threads that wait for nobody
            picked = [picked_by(reduce, kernel) for reduce in kernel.reduces]
            gathered |= {operand.name for _, operand in filter(None, picked)}
        found |= {(name, result) for name in gathered for result in results}
        found |= {
            (operand.name, result) for operand in kernel.tensors for result in results
            if steps[operand.name] != steps[result]
        }  # fmt: skip
    return frozenset(found)


def are_apart(one: PackedBlock | None, other: PackedBlock | None) -> bool:
    """Whether two blocks of one tensor have no element in common."""
    if one is None or other is None:
        return False
    return (one.dim, one.count) == (other.dim, other.count) and one.index != other.index

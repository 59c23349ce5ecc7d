"""The parameters of a scan's kernels, for their signatures and for their launches; and the type of a partial result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fusegen.core.scans import PLACES
from fusegen.fuse.scan_schedule import ScanSchedule
from fusegen.generate.params import divisor_type
from fusegen.kernel_program.nodes import (
    ScanState,
)

STATES = {
    "sum": "ScanSum", "prod": "ScanProduct", "max": "ScanMaximum", "min": "ScanMinimum", "logaddexp": "ScanLogAddExp",
    "affine": "ScanAffine", "segments": "ScanSegments", "argmax": "ScanPlace", "argmin": "ScanPlace",
    "last": "ScanLast",
}  # fmt: skip
ParamKind = Literal["pointer", "totals", "number", "n", "rows", "divisor", "stride", "parts", "chunk"]


@dataclass(frozen=True)
class ScanParam:
    """One parameter of a scan's kernel.

    Attributes:
        tensor: by its place, of a pointer or a stride; a number's own place.
        dim: of a stride or a divisor; the last one of strides is along the row.
    """

    kind: ParamKind
    name: str
    ctype: str
    tensor: int = 0
    dim: int = 0


def state_type(schedule: ScanSchedule) -> ScanState:
    """The type of a partial result."""
    combine, ctype = schedule.how.combine, schedule.program.dtype.ctype
    place = (schedule.place_type, "true" if combine == "argmax" else "false") if combine in PLACES else ()
    return ScanState(combine, STATES[combine], (ctype, *place))


def scan_parameters(schedule: ScanSchedule, stage: str) -> tuple[ScanParam, ...]:
    """The parameter list of one of the kernels: read by the printer for the signature, by the launcher for values."""
    reads, every = schedule.reads_in(stage), (*schedule.tensors, *schedule.written)
    tensors = (*reads, *schedule.written) if stage == "scan" else reads
    found: list[ScanParam] = []
    for tensor in tensors:
        is_result = tensor in schedule.written
        alone = " __restrict__" if is_result or not schedule.follows else ""
        ctype = f"{'' if is_result else 'const '}{tensor.dtype.ctype}*{alone}"
        found.append(ScanParam("pointer", f"{tensor.name}_ptr", ctype, every.index(tensor)))
    if schedule.split:
        found.append(ScanParam("totals", "totals", f"{'const ' * (stage == 'scan')}{state_type(schedule).text}*"))
    program = schedule.program
    read = program.read | program.read_later if stage == "scan" else program.read
    for place, (name, dtype) in enumerate(program.numbers):
        found += [ScanParam("number", name, dtype.ctype, place)] if name in read else []
    index, divisor = schedule.index, divisor_type(schedule.index)
    found.append(ScanParam("n", "n", index))
    if schedule.columns or schedule.lanes < schedule.threads:
        found.append(ScanParam("rows", "rows", index))
    found += [ScanParam("divisor", f"n{dim}", divisor, dim=dim) for dim in range(1, schedule.dims)]
    for tensor in tensors:
        place, dims = every.index(tensor), range(schedule.dims)
        found += [ScanParam("stride", f"{tensor.name}_stride{d}", "int64_t", place, d) for d in dims]
        if schedule.columns or tensor.access == "strided":
            found.append(ScanParam("stride", f"{tensor.name}_step", "int64_t", place, schedule.dims))
    if schedule.split:
        found += [ScanParam("parts", "parts", "int"), ScanParam("chunk", "chunk", index)]
    return tuple(found)

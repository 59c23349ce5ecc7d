"""A step that combines along an axis, and keeps what it has at each element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from fusegen.core.dtypes import DType, uint8
from fusegen.fuse.scan_schedule import Lying, ScanLaunch, ScanProgram, ScanSchedule, result, schedule_scan
from fusegen.fuse.scans import element
from fusegen.fuse.steps import Scan
from fusegen.generate.rendered import Rendered
from fusegen.generate.scan_params import ScanParam, scan_parameters
from fusegen.generate.scans import render_scan
from fusegen.launch.memo import remember
from fusegen.launch.program import SCALAR_FORMATS, KernelLaunch, Program, Workspace, in_memory
from fusegen.matmul.views import TensorLayout
from fusegen.plan.frameworks import TensorInfo, target_of
from fusegen.run.launched_step import LaunchedStep

_TOTALS = "totals of parts"


@dataclass(frozen=True)
class PlannedScan:
    """A scan with elements: how its kernels walk memory, the numbers of a call, and a text for each stage."""

    schedule: ScanSchedule
    launch: ScanLaunch
    kernels: tuple[Rendered, ...]


def scheduled(
    step: Scan, sizes: Mapping[str, int], tensors: Sequence[tuple[DType, Mapping[str, int], int]], follows: bool
) -> tuple[ScanSchedule, ScanLaunch] | None:
    """How the kernels of a scan walk memory; None where there are no elements.

    Args:
        tensors: of what is read, then of what is written: dtype, strides by axis, address modulo 16.
        follows: other steps run before it.
    """
    own = {axis: sizes[axis] for axis in step.axes}
    if not all(own.values()):
        return None
    reads = [Lying(element(place), *tensor) for place, tensor in enumerate(tensors[: len(step.sources)])]
    writes = [Lying(result(place), *tensor) for place, tensor in enumerate(tensors[len(step.sources) :])]
    program = ScanProgram.of(
        step.axis, step.how, step.dtype.compute, step.values, [how for _, how in step.results],
        [output.expr for output in step.outputs], [scalar.ref for scalar in step.scalars],
    )  # fmt: skip
    return schedule_scan(program, step.axis, own, reads, writes, follows)


def plan_scan(
    step: Scan, sizes: Mapping[str, int], tensors: Sequence[tuple[DType, Mapping[str, int], int]], follows: bool
) -> PlannedScan | None:
    """The kernels of a scan; None where there are no elements. Arguments are those of `scheduled`."""
    found = scheduled(step, sizes, tensors, follows)
    if found is None:
        return None
    schedule, launch = found
    return PlannedScan(schedule, launch, tuple(_rendered(schedule, stage) for stage in schedule.stages))


def scan_step(
    step: Scan, sizes: Mapping[str, int], known: Mapping[str, TensorInfo], layouts: Mapping[str, TensorLayout],
    follows: bool,
) -> LaunchedStep:  # fmt: skip
    """The step for tensors that lie so.

    Args:
        known: the tensors.
        layouts: of what is read and written.
        follows: other steps run before it.
    """
    slots = (*(source.name for source in step.sources), *step.writes)
    lying, tensors = [], []
    for slot in slots:
        layout = layouts[slot]
        info = known[layout.tensor]
        offset = layout.offset * info.dtype.size
        lying.append((info.dtype, layout.strides, info.alignment + offset))
        tensors.append((layout.tensor, offset))
    device = known[layouts[step.result].tensor].device
    planned = plan_scan(step, sizes, lying, follows)
    slots = (*slots, *(scalar.name for scalar in step.scalars))
    program = _program(planned, slots, device) if planned else Program([], [])
    return LaunchedStep(tuple(tensors), step.scalars, slots, program, device)


def _program(planned: PlannedScan, slots: tuple[str, ...], device: str) -> Program:
    target, schedule, launch = target_of(device), planned.schedule, planned.launch
    numbers = len(schedule.tensors) + len(schedule.written)  # whose slots are behind those of tensors

    def slot(param: ScanParam) -> str:
        return _TOTALS if param.kind == "totals" else slots[param.tensor + (numbers if param.kind == "number" else 0)]

    steps = []
    for stage, rendered in zip(schedule.stages, planned.kernels, strict=True):
        loaded = target.load(rendered, rendered.entry, "a scan", schedule.follows_in(stage))
        params = scan_parameters(schedule, stage)
        dynamic = [param for param in params if param.kind in ("pointer", "totals", "number")]
        static = [param for param in params if param not in dynamic]
        places = {param: place for place, param in enumerate((*dynamic, *static))}
        formats = "".join(SCALAR_FORMATS[param.ctype] if param.kind == "number" else "Q" for param in dynamic)
        made = KernelLaunch(
            loaded, launch.grid, (schedule.threads, 1, 1), tuple(map(slot, dynamic)), "<" + formats,
            tuple(in_memory(param.ctype, static_value(param, launch)) for param in static),
            tuple(places[param] for param in params),
        )  # fmt: skip
        steps.append(made)
    size = launch.rows * launch.parts * schedule.state_bytes
    workspaces = [Workspace(_TOTALS, uint8, size)] if schedule.split else []
    return Program(steps, workspaces).bind(slots)


def _rendered(schedule: ScanSchedule, stage: str) -> Rendered:
    parts = (repr(schedule), stage)
    return Rendered.from_fields(remember("scan", parts, lambda: asdict(render_scan(schedule, stage))))


def static_value(param: ScanParam, launch: ScanLaunch) -> int:
    """The value of a parameter that is known before the call: of a divisor, what it divides by."""
    return {
        "n": lambda: launch.n, "rows": lambda: launch.rows, "parts": lambda: launch.parts,
        "divisor": lambda: launch.sizes[param.dim],
        "chunk": lambda: launch.chunk, "stride": lambda: launch.strides[param.tensor][param.dim],
    }[param.kind]()  # fmt: skip

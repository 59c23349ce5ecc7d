"""A step that combines along an axis, and keeps what it has at each element: launches of kernels of its own."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fusegen.core.dtypes import DType
from fusegen.fuse.products import Scan, element
from fusegen.fuse.scan_schedule import RESULT, Lying, ScanLaunch, ScanSchedule, schedule_scan
from fusegen.generate.rendered import Rendered
from fusegen.generate.scans import ScanParam, render_scan, scan_parameters
from fusegen.launch.memo import remember
from fusegen.launch.program import KernelLaunch, Program, Workspace, magic_division
from fusegen.matmul.steps import NativeSteps
from fusegen.matmul.views import TensorLayout
from fusegen.plan.frameworks import Framework, TensorInfo, target_of

_TOTALS = "totals of parts"


@dataclass(frozen=True)
class ScanStep:
    """A scan, planned.

    Attributes:
        tensors: what is read, and the result: each tensor, and how many bytes behind its first element it begins.
        slots: what the native call path calls these.
    """

    tensors: tuple[tuple[str, int], ...]
    slots: tuple[str, ...]
    program: Program
    device: str

    @property
    def uses(self) -> set[str]:
        return {name for name, _ in self.tensors}

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        values = [framework.pointer(tensors[name]) + offset for name, offset in self.tensors]
        stream, device = framework.stream(self.device), self.device
        target_of(device).run(self.program, values, stream, lambda size: framework.workspace(size, device))

    def native_steps(self, place: int) -> NativeSteps | None:
        """Workspaces of several steps may have one name, so they are numbered."""
        names = dict(zip(dict.fromkeys(self.slots), dict.fromkeys(self.slots), strict=True))
        names |= {workspace.name: f"{place}: {workspace.name}" for workspace in self.program.workspaces}
        steps = [replace(s, dynamic=tuple(names[name] for name in s.dynamic)) for s in self.program.steps]
        return NativeSteps(steps, [replace(w, name=names[w.name]) for w in self.program.workspaces])


@dataclass(frozen=True)
class PlannedScan:
    """A scan with elements: how its kernels walk memory, the numbers of a call, and a text for each stage."""

    schedule: ScanSchedule
    launch: ScanLaunch
    kernels: tuple[Rendered, ...]


def plan_scan(
    step: Scan, sizes: Mapping[str, int], tensors: Sequence[tuple[DType, Mapping[str, int], int]], follows: bool
) -> PlannedScan | None:
    """The kernels of a scan; None where there are no elements.

    Args:
        tensors: of what is read and of the result: dtype, strides by axis, address modulo 16.
        follows: other steps run before it.
    """
    own = {axis: sizes[axis] for axis in step.axes}
    if not all(own.values()):
        return None
    names = [*map(element, range(len(step.sources))), RESULT]
    lying = [Lying(name, *tensor) for name, tensor in zip(names, tensors, strict=True)]
    schedule, launch = schedule_scan(step.how, step.dtype, step.values, step.axis, own, lying, follows)
    return PlannedScan(schedule, launch, tuple(_rendered(schedule, stage) for stage in schedule.stages))


def scan_step(
    step: Scan, sizes: Mapping[str, int], known: Mapping[str, TensorInfo], layouts: Mapping[str, TensorLayout],
    follows: bool,
) -> ScanStep:  # fmt: skip
    """The step for tensors that lie so.

    Args:
        known: the tensors.
        layouts: of what is read and of the result.
        follows: other steps run before it.
    """
    slots = (*(source.name for source in step.sources), step.result)
    lying, tensors = [], []
    for slot in slots:
        layout = layouts[slot]
        info = known[layout.tensor]
        offset = layout.offset * info.dtype.size
        lying.append((info.dtype, layout.strides, info.alignment + offset))
        tensors.append((layout.tensor, offset))
    device = known[layouts[step.result].tensor].device
    planned = plan_scan(step, sizes, lying, follows)
    program = _program(planned, slots, device) if planned else Program([], [])
    return ScanStep(tuple(tensors), slots, program, device)


def _program(planned: PlannedScan, slots: tuple[str, ...], device: str) -> Program:
    target, schedule, launch = target_of(device), planned.schedule, planned.launch
    steps = []
    for stage, rendered in zip(schedule.stages, planned.kernels, strict=True):
        loaded = target.load(rendered, rendered.entry, "a scan", schedule.follows_in(stage))
        params = scan_parameters(schedule, stage)
        dynamic = [param for param in params if param.kind in ("pointer", "totals")]
        static = [param for param in params if param not in dynamic]
        places = {param: place for place, param in enumerate((*dynamic, *static))}
        made = KernelLaunch(
            loaded, launch.grid, (schedule.threads, 1, 1),
            tuple(slots[param.tensor] if param.kind == "pointer" else _TOTALS for param in dynamic),
            "<" + "Q" * len(dynamic), tuple(_number(param, launch) for param in static),
            tuple(places[param] for param in params),
        )  # fmt: skip
        steps.append(made)
    elements = launch.rows * launch.parts * schedule.fields
    workspaces = [Workspace(_TOTALS, schedule.dtype, elements)] if schedule.split else []
    return Program(steps, workspaces).bind(slots)


def _rendered(schedule: ScanSchedule, stage: str) -> Rendered:
    parts = (repr(schedule), stage)
    return Rendered.from_fields(remember("scan", parts, lambda: asdict(render_scan(schedule, stage))))


def _number(param: ScanParam, launch: ScanLaunch) -> bytes:
    """A number of the launch as it lies in memory."""
    if param.kind == "divisor":
        size = launch.sizes[param.dim]
        return struct.pack("<q", size) if "64" in param.ctype else struct.pack("<IIi", *magic_division(size))
    value = {
        "n": lambda: launch.n, "rows": lambda: launch.rows, "parts": lambda: launch.parts,
        "chunk": lambda: launch.chunk, "stride": lambda: launch.strides[param.tensor][param.dim],
    }[param.kind]()  # fmt: skip
    return struct.pack("<q" if param.ctype == "int64_t" else "<i", value)

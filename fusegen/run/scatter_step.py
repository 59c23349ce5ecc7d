"""A step that adds rows to a result, or combines them otherwise, at the places that a tensor tells.

Lines of a result that fit on the chip are owned by a thread each (fuse/scatter_schedule). The rest is done by the
framework's routines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fusegen.core.dtypes import bool_
from fusegen.fuse.products import Scatter
from fusegen.fuse.scatter_schedule import READERS, WARP, ScatterLaunch, ScatterSchedule, schedule_scatter
from fusegen.fuse.schedule import Buffer
from fusegen.generate.rendered import Rendered
from fusegen.generate.scatters import ScatterParam, render_scatter, scatter_parameters
from fusegen.launch.memo import remember
from fusegen.launch.program import KernelLaunch, Program, in_memory
from fusegen.matmul.steps import NativeSteps
from fusegen.matmul.views import TensorLayout
from fusegen.plan.frameworks import Framework, TensorInfo, target_of
from fusegen.plan.native_step import View
from fusegen.run.launched_step import LaunchedStep


@dataclass(frozen=True)
class ScatterStep:
    """``result[b, places[b, n], r] += updates[b, n, r]`` for all n, by the framework's own routine.

    Attributes:
        names: the places, the updates, the result, and what the sum is added to if that is another tensor.
        views: of these, with dimensions b, n and r; b, the place and r.
        batch: how many dimensions b has.
        onto: it is added to what the result holds.
        kind: of the reduction that combines updates.
        moves: the n-th update is the n-th place's, and there is no other.
    """

    names: tuple[str, ...]
    views: tuple[View, ...]
    batch: int
    onto: bool
    kind: str
    moves: bool = False

    @property
    def uses(self) -> set[str]:
        return set(self.names)

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        places, updates, result, *base = (
            framework.view(tensors[name], view.shape, view.strides, view.offset)
            for name, view in zip(self.names, self.views, strict=True)
        )
        if self.moves and self.onto:
            result += updates
        elif self.moves:
            result[...] = updates
        elif self.kind == "sum":
            if base:
                result[...] = base[0]
            framework.scatter_add(result, places, updates, self.batch, self.onto or bool(base))
        else:
            framework.scatter_reduce(result, places, updates, self.batch, self.kind)

    def native_steps(self, place: int) -> NativeSteps | None:
        return None


@dataclass(frozen=True)
class PlannedScatter:
    """A scatter whose lines threads own: how its kernel walks memory, the numbers of a call, and its text."""

    schedule: ScatterSchedule
    launch: ScatterLaunch
    kernel: Rendered


def plan_scatter(
    step: Scatter, sizes: Mapping[str, int], tensors: Sequence[Buffer], shared: int, follows: bool
) -> PlannedScatter | None:
    """The kernel of a scatter; None where the framework's routine does it.

    Args:
        tensors: places, updates and result, and what the sum is added to if that is another one.
        shared: bytes of shared memory that a block can have.
        follows: other steps run before it.
    """
    if step.moves or bool_ in (tensors[1].dtype, tensors[2].dtype):
        return None
    line = tuple(axis for axis in step.axes if axis != step.axis)
    found = schedule_scatter(step.kind, step.onto, line, step.over, step.axis, sizes, tensors, shared, follows)
    if found is None:
        return None
    rendered = remember("scatter", (repr(found[0]),), lambda: asdict(render_scatter(found[0])))
    return PlannedScatter(*found, Rendered.from_fields(rendered))


def scatter_step(
    step: Scatter, sizes: Mapping[str, int], known: Mapping[str, TensorInfo], layouts: Mapping[str, TensorLayout],
    follows: bool,
) -> ScatterStep | LaunchedStep:  # fmt: skip
    """The step for tensors that lie so.

    Args:
        known: the tensors.
        layouts: of what is read and written.
        follows: other steps run before it.
    """
    slots = (step.left.name, step.right.name, step.result, *([step.base] if step.base else []))
    lying = [layouts[slot] for slot in slots]
    device = known[lying[2].tensor].device
    tensors, buffers = list[tuple[str, int]](), list[Buffer]()
    for layout in lying:
        info = known[layout.tensor]
        tensors.append((layout.tensor, layout.offset * info.dtype.size))
        buffers.append(Buffer(info.dtype, layout.strides, info.alignment + tensors[-1][1]))
    planned = plan_scatter(step, sizes, buffers, target_of(device).chip.shared, follows)
    if planned is None:
        return _by_framework(step, sizes, lying)
    return LaunchedStep(tuple(tensors), (), slots, _program(planned, slots, device), device)


def _program(planned: PlannedScatter, slots: tuple[str, ...], device: str) -> Program:
    schedule, rendered = planned.schedule, planned.kernel
    loaded = target_of(device).load(rendered, rendered.entry, "a scatter", schedule.follows)
    params = scatter_parameters(schedule)
    static = [param for param in params if param.kind != "pointer"]
    order = [*(param for param in params if param.kind == "pointer"), *static]
    blocks = -(-planned.launch.lines // schedule.lines)
    step = KernelLaunch(
        loaded, (blocks, 1, 1), (WARP, 1 + READERS, 1), slots, "<" + "Q" * len(slots),
        tuple(_number(param, planned.launch) for param in static), tuple(order.index(param) for param in params),
    )  # fmt: skip
    return Program([step], []).bind(tuple(dict.fromkeys(slots)))


def _number(param: ScatterParam, launch: ScatterLaunch) -> bytes:
    """A number of the launch as it lies in memory."""
    value = {
        "lines": lambda: launch.lines, "n": lambda: launch.n, "size": lambda: launch.size,
        "divisor": lambda: launch.sizes[param.dim],
        "stride": lambda: launch.strides[param.tensor][param.dim], "step": lambda: launch.steps[param.tensor],
    }[param.kind]()  # fmt: skip
    return in_memory(param.ctype, value)


def _by_framework(step: Scatter, sizes: Mapping[str, int], lying: Sequence[TensorLayout]) -> ScatterStep:
    places, updates, *results = lying
    batch = [axis for axis in step.axes if axis in places.strides]
    rest = [axis for axis in step.axes if axis not in (*batch, step.axis)]
    inner = list(step.over)

    def view(layout: TensorLayout, axes: list[str]) -> View:
        strides = tuple(layout.strides.get(axis, 0) for axis in axes)
        return View(tuple(sizes[axis] for axis in axes), strides, layout.offset)

    return ScatterStep(
        tuple(layout.tensor for layout in lying),
        (
            view(places, [*batch, *inner]),
            view(updates, [*batch, *inner, *rest]),
            *(view(result, [*batch, step.axis, *rest]) for result in results),
        ),
        len(batch),
        step.onto,
        step.kind,
        step.moves,
    )

"""A scatter whose result has lines that fit on the chip: threads own them (fuse/scatter_schedule).

Few lines are split: a thread owns a part of a line's updates, and parts are combined by a reduction behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod

from fusegen import pipeline
from fusegen.core.casts import converted
from fusegen.core.dtypes import bool_
from fusegen.core.ir import Expr, Op, Operand, Output, Reduce, call
from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.scatter_schedule import (
    FEW_UPDATES,
    PARTS,
    READERS,
    WARP,
    ScatterLaunch,
    ScatterSchedule,
    parts_of,
    schedule_scatter,
    seconds_between,
    seconds_owned,
    wide_of,
)
from fusegen.fuse.schedule import Buffer
from fusegen.fuse.steps import Scatter
from fusegen.generate.rendered import Rendered
from fusegen.generate.scatters import ScatterParam, render_scatter, scatter_parameters, scatter_program
from fusegen.kernel_program.nodes import KernelProgram
from fusegen.launch.memo import remember
from fusegen.launch.program import KernelLaunch, Program, in_memory
from fusegen.plan.frameworks import target_of
from fusegen.plan.layout import row_major
from fusegen.run.launched_step import LaunchedStep

# Lines that lie side by side have owners side by side, which read neighbouring updates. Of fewer, only a single one is
# split.
_SIDE_BY_SIDE = 32
# What the parts of all lines hold is called so where no names of a call are known.
_NAMES = ("parts_of_result", "result", "base")


@dataclass(frozen=True)
class PlannedOwned:
    """A scatter whose lines threads own: how its kernel walks memory, the numbers of a call, and how long it takes on
    an H200, about."""

    schedule: ScatterSchedule
    launch: ScatterLaunch
    seconds: float

    note = "by a kernel of its own, in one pass: a thread for each line of the result, which lies in shared memory"

    @property
    def kernel(self) -> Rendered:
        """Its text."""
        made = remember("scatter", (repr(self.schedule),), lambda: asdict(render_scatter(self.schedule)))
        return Rendered.from_fields(made)

    @property
    def kernels(self) -> tuple[Rendered, ...]:
        """All texts."""
        return (self.kernel,)

    @property
    def programs(self) -> tuple[KernelProgram, ...]:
        """Those of its own kernels, in the order of texts."""
        return (scatter_program(self.schedule),)


@dataclass(frozen=True)
class PlannedSplit:
    """A scatter whose lines are split.

    Attributes:
        scatter: of parts of lines.
        axes: of what it writes, with these ``sizes``.
        combined: what parts come to.
        layout: of what this reads and writes; ``chip``: for which.
    """

    scatter: PlannedOwned
    axes: tuple[str, ...]
    sizes: Mapping[str, int]
    combined: Op
    layout: pipeline.Layout
    chip: Chip

    @property
    def note(self) -> str:
        """How it is done."""
        what = f"a line of the result for one of {self.sizes[PARTS]} parts of its updates, which are combined then"
        return f"by threads that own {what}"

    @property
    def kernels(self) -> tuple[Rendered, ...]:
        """All texts."""
        behind = [item.rendered for item in pipeline.plan(self.combined, self.layout, self.chip)]
        return (self.scatter.kernel, *behind)

    @property
    def programs(self) -> tuple[KernelProgram, ...]:
        """That of the scatter; what combines parts is an op like any other."""
        return self.scatter.programs

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what the scatter writes."""
        return tuple(self.sizes[axis] for axis in self.axes)

    @property
    def seconds(self) -> float:
        """What it takes on an H200, about."""
        return self.scatter.seconds + seconds_between(prod(self.shape))


def plan_owned_scatter(
    step: Scatter, sizes: Mapping[str, int], tensors: Sequence[Buffer], shared: int, follows: bool, parts: int = 1
) -> PlannedOwned | None:
    """The kernel of a scatter; None where lines do not fit.

    Args:
        tensors: places, updates and result, and what the sum is added to if that is another one.
        shared: bytes of shared memory that a block can have.
        follows: other steps run before it.
        parts: into which the updates of each line are split; the result has the axis `PARTS` then.
    """
    if step.moves or bool_ in (tensors[1].dtype, tensors[2].dtype):
        return None
    line = tuple(axis for axis in step.axes if axis != step.axis)
    found = schedule_scatter(
        step.kind, step.onto, line, step.over, step.axis, sizes, tensors, shared, follows, parts, step.looked
    )
    return None if found is None else PlannedOwned(*found, seconds_owned(*found, shared))


def plan_split_scatter(
    step: Scatter, sizes: Mapping[str, int], tensors: Sequence[Buffer], chip: Chip, follows: bool
) -> PlannedSplit | None:
    """The kernels of a scatter whose lines are split; None where they do not fit, are too many, or have few updates.

    Args:
        tensors, follows: as `plan_owned_scatter` has them.
    """
    line = [axis for axis in step.axes if axis != step.axis]
    lines, updates = prod(sizes[axis] for axis in line), prod(sizes[axis] for axis in step.over)
    if step.onto or 1 < lines < _SIDE_BY_SIDE or not lines * sizes[step.axis] or updates < 2 * FEW_UPDATES:
        return None
    axes = (PARTS, step.axis, *line) if lines > 1 else (PARTS, *line, step.axis)
    wide = wide_of(tensors[2].dtype)

    def partial(parts: int) -> tuple[dict[str, int], Buffer]:
        known = {**sizes, PARTS: parts}
        return known, Buffer(wide, dict(zip(axes, row_major([known[axis] for axis in axes]), strict=True)))

    most = updates // FEW_UPDATES
    known, buffer = partial(most)
    first = plan_owned_scatter(step, known, [*tensors[:2], buffer], chip.shared, follows, most)
    if first is None:
        return None
    whole = replace(first.launch, lines=lines)
    parts = parts_of(first.schedule, whole, chip.shared)
    if parts < 2:
        return None
    known, buffer = partial(parts)
    scatter = plan_owned_scatter(step, known, [*tensors[:2], buffer], chip.shared, follows, parts)
    assert scatter is not None
    combined = combined_parts(step, axes, tensors, _NAMES)
    buffers = dict(zip(_NAMES, (buffer, *tensors[2:]), strict=False))
    layout = pipeline.Layout({axis: known[axis] for axis in axes}, buffers, follows=True, fresh=frozenset(_NAMES[:1]))
    return PlannedSplit(scatter, axes, known, combined, layout, chip)


def combined_parts(step: Scatter, axes: tuple[str, ...], tensors: Sequence[Buffer], names: Sequence[str]) -> Op:
    """What the parts of each place come to, added to a tensor if there is one."""
    result = tensors[2].dtype
    parts = Operand(names[0], wide_of(result), axes)
    total = Reduce("combined", step.kind, parts.ref, (PARTS,))
    base = [Operand(names[2], result, step.axes)] if len(tensors) > 3 else []
    value: Expr = total.ref
    if base:
        value = call("add", converted(base[0].ref, total.expr.dtype), value, dtype=total.expr.dtype)
    output = Output(names[1], converted(value, result), result, step.axes)
    return Op("scattered", "parts", (parts, *base), (), (total,), (output,))


def owned_scatter_step(
    planned: PlannedOwned, tensors: Sequence[tuple[str, int]], slots: tuple[str, ...], device: str
) -> LaunchedStep:
    """The step that launches it.

    Args:
        tensors: each tensor that is read and written, and how many bytes behind its first element it begins.
        slots: what the native call path calls these.
    """
    return LaunchedStep(tuple(tensors), (), slots, _program(planned, slots, device), device)


def _program(planned: PlannedOwned, slots: tuple[str, ...], device: str) -> Program:
    schedule, rendered = planned.schedule, planned.kernel
    loaded = target_of(device).load(rendered, rendered.entry, "a scatter", schedule.follows)
    params = scatter_parameters(schedule)
    static = [param for param in params if param.kind != "pointer"]
    order = [*(param for param in params if param.kind == "pointer"), *static]
    blocks = -(-planned.launch.lines // schedule.lines)
    numbers = tuple(in_memory(param.ctype, static_value(param, planned.launch)) for param in static)
    step = KernelLaunch(
        loaded, (blocks, 1, 1), (WARP, 1 + READERS, 1), slots, "<" + "Q" * len(slots),
        numbers, tuple(order.index(param) for param in params),
    )  # fmt: skip
    return Program([step], []).bind(tuple(dict.fromkeys(slots)))


def static_value(param: ScatterParam, launch: ScatterLaunch) -> int:
    """A number of the launch."""
    return {
        "lines": lambda: launch.lines, "n": lambda: launch.n, "size": lambda: launch.size,
        "whole": lambda: launch.whole,
        "divisor": lambda: launch.sizes[param.dim],
        "stride": lambda: launch.strides[param.tensor][param.dim], "step": lambda: launch.steps[param.tensor],
    }[param.kind]()  # fmt: skip

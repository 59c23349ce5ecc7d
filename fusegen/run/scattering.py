"""A scatter planned as the step, or the steps, that do it (run/scatter_step says which way)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from fusegen.fuse.scatter_schedule import wide_of
from fusegen.fuse.schedule import Buffer
from fusegen.fuse.steps import Scatter
from fusegen.matmul.steps import StepSequence
from fusegen.matmul.views import TensorLayout
from fusegen.plan.frameworks import TensorInfo, target_of
from fusegen.plan.layout import row_major
from fusegen.plan.plan import Allocation
from fusegen.run import scatter_step as plans
from fusegen.run.kernel_steps import KernelStep
from fusegen.run.launched_step import LaunchedStep
from fusegen.run.owned_scatter_step import PlannedOwned, PlannedSplit, combined_parts, owned_scatter_step
from fusegen.run.runner import Runner
from fusegen.run.scatter_step import ScatterStep, by_framework
from fusegen.run.sorted_scatter_step import (
    PlannedRoutine,
    PlannedSort,
    SortedScatterStep,
    places_step,
    plan_sorted_scatter,
    sorted_scatter_step,
)


def scatter_step(
    step: Scatter, sizes: Mapping[str, int], known: dict[str, TensorInfo], layouts: Mapping[str, TensorLayout],
    follows: bool,
) -> ScatterStep | LaunchedStep | SortedScatterStep | StepSequence:  # fmt: skip
    """The step for tensors that lie so.

    Args:
        known: the tensors; memory between kernels of a scatter is put among them.
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
    planned = plans.plan_scatter(step, sizes, buffers, target_of(device).chip, follows)
    if isinstance(planned, PlannedSplit) and (
        any(layout.offset for layout in lying[2:]) or len({layout.tensor for layout in lying}) < len(lying)
    ):
        # Kernels know where tensors begin, and each by one name.
        planned = plan_sorted_scatter(step, sizes, buffers, follows) or PlannedRoutine(None)
    if isinstance(planned, PlannedOwned):
        return owned_scatter_step(planned, tensors, slots, device)
    if isinstance(planned, PlannedSplit):
        return split_scatter_step(step, planned, known, lying, buffers, slots, device)
    if isinstance(planned, PlannedSort):
        routine = by_framework(step, sizes, lying)
        _, _, result, *base = zip(routine.names, routine.views, strict=True)
        return sorted_scatter_step(step, planned, tensors, result, base[0] if base else None, device)
    if step.looked is None:
        return by_framework(step, sizes, lying)
    name = next(n for i in count(1) if (n := f"{step.result}_places{i}") not in known)
    look, places, memory = places_step(step, sizes, buffers[0], tensors[0], name, device, follows)
    known[name] = TensorInfo(memory.shape, memory.strides, memory.dtype, 0, device)
    return StepSequence((look, by_framework(step, sizes, [places, *lying[1:]])), (memory,), device)


def split_scatter_step(
    step: Scatter, planned: PlannedSplit, known: dict[str, TensorInfo], lying: Sequence[TensorLayout],
    buffers: Sequence[Buffer], slots: tuple[str, ...], device: str,
) -> StepSequence:  # fmt: skip
    """The steps of a scatter that is split: that of parts, and what these come to.

    Args:
        known: the tensors; that of parts is put among them.
        lying, buffers: places, updates, result and base, as tensors and as kernels see them.
    """
    result, *base = lying[2:]
    name = next(n for i in count(1) if (n := f"{result.tensor}_parts{i}") not in known)
    strides = row_major(planned.shape)
    known[name] = TensorInfo(planned.shape, strides, wide_of(buffers[2].dtype), 0, device)
    tensors = [(layout.tensor, layout.offset * known[layout.tensor].dtype.size) for layout in lying[:2]]
    scatter = owned_scatter_step(planned.scatter, [*tensors, (name, 0)], (*slots[:2], name), device)
    names = (name, result.tensor, *(layout.tensor for layout in base))
    op = combined_parts(step, planned.axes, buffers, names)
    runner = Runner(op, fresh=frozenset({name}))
    shape = tuple(planned.sizes[axis] for axis in step.axes)
    infos = [
        replace(known[layout.tensor], shape=shape, strides=tuple(layout.strides.get(axis, 0) for axis in step.axes))
        for layout in lying[2:]
    ]
    given = {name: known[name], **dict(zip(names[2:], infos[1:], strict=True))}
    behind = KernelStep(runner, runner.plan_for(given, infos[:1]), (result.tensor,))
    memory = Allocation(name, planned.shape, strides, known[name].dtype)
    return StepSequence((scatter, behind), (memory,), device)

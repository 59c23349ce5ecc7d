"""A step that adds rows to a result, or combines them otherwise, at the places that a tensor tells.

Lines of a result that fit on the chip are owned by threads (run/owned_scatter_step). Otherwise, or where that takes
longer, updates are sorted by their places (run/sorted_scatter_step). What is left is done by the framework's routines:
the largest or the smallest of updates for lines that do not fit, and bools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.schedule import Buffer
from fusegen.fuse.steps import Scatter
from fusegen.generate.rendered import Rendered
from fusegen.kernel_program.nodes import KernelProgram
from fusegen.matmul.steps import NativeSteps, StepSequence
from fusegen.matmul.views import TensorLayout
from fusegen.plan.frameworks import Framework, TensorInfo, target_of
from fusegen.plan.native_step import View
from fusegen.run.launched_step import LaunchedStep
from fusegen.run.owned_scatter_step import (
    PlannedOwned,
    PlannedSplit,
    owned_scatter_step,
    plan_owned_scatter,
    plan_split_scatter,
    split_scatter_step,
)
from fusegen.run.sorted_scatter_step import (
    PlannedSort,
    SortedScatterStep,
    looking_kernels,
    places_step,
    plan_sorted_scatter,
    sorted_scatter_step,
)


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


# Seconds on an H200 of the framework's largest or smallest: however few updates there are, and of each.
_LAUNCHES, _PER_ATOMIC = 150e-6, 100e-12


@dataclass(frozen=True)
class PlannedRoutine:
    """A scatter by the framework's routine; what looks at places for it, if anything does."""

    kernels: tuple[Rendered, ...]
    programs: tuple[KernelProgram, ...] = ()
    note = "by the framework's routine: what that moves beside is not counted"


Planned = PlannedOwned | PlannedSplit | PlannedSort | PlannedRoutine


def plan_scatter(
    step: Scatter, sizes: Mapping[str, int], tensors: Sequence[Buffer], chip: Chip, follows: bool
) -> Planned:
    """How a scatter is done.

    Args:
        tensors: places, updates and result, and what the sum is added to if that is another one.
        follows: other steps run before it.
    """
    planned = (
        plan_owned_scatter(step, sizes, tensors, chip.shared, follows),
        plan_split_scatter(step, sizes, tensors, chip, follows),
        plan_sorted_scatter(step, sizes, tensors, follows),
    )
    routine = PlannedRoutine(looking_kernels(step, sizes, tensors[0], follows))
    found = min((plan for plan in planned if plan), key=lambda plan: plan.seconds, default=None)
    if found is None or isinstance(found, PlannedSort):
        return found or routine
    by_atomics = prod(sizes[axis] for axis in {*step.over, *step.axes} - {step.axis}) * _PER_ATOMIC + _LAUNCHES
    return routine if step.kind in ("max", "min") and by_atomics < found.seconds else found


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
    planned = plan_scatter(step, sizes, buffers, target_of(device).chip, follows)
    if isinstance(planned, PlannedSplit) and (
        any(layout.offset for layout in lying[2:]) or len({layout.tensor for layout in lying}) < len(lying)
    ):
        # Kernels know where tensors begin, and each by one name.
        planned = plan_sorted_scatter(step, sizes, buffers, follows) or PlannedRoutine(())
    if isinstance(planned, PlannedOwned):
        return owned_scatter_step(planned, tensors, slots, device)
    if isinstance(planned, PlannedSplit):
        return split_scatter_step(step, planned, known, lying, buffers, slots, device)
    if isinstance(planned, PlannedSort):
        by_framework = _by_framework(step, sizes, lying)
        _, _, result, *base = zip(by_framework.names, by_framework.views, strict=True)
        return sorted_scatter_step(step, planned, tensors, result, base[0] if base else None, device)
    if step.looked is None:
        return _by_framework(step, sizes, lying)
    name = next(n for i in count(1) if (n := f"{step.result}_places{i}") not in known)
    look, places, memory = places_step(step, sizes, buffers[0], tensors[0], name, device, follows)
    known[name] = TensorInfo(memory.shape, memory.strides, memory.dtype, 0, device)
    return StepSequence((look, _by_framework(step, sizes, [places, *lying[1:]])), (memory,), device)


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

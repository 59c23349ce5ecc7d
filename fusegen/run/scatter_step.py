"""A step that adds rows to a result, or combines them otherwise, at the places that a tensor tells.

Lines of a result that fit on the chip are owned by threads (run/owned_scatter_step). Otherwise, or where that takes
longer, updates are sorted by their places (run/sorted_scatter_step). What is left is done by the framework's routines:
the largest or the smallest of updates for lines that do not fit, and bools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.schedule import Buffer
from fusegen.fuse.steps import Scatter
from fusegen.matmul.steps import NativeSteps
from fusegen.matmul.views import TensorLayout
from fusegen.plan.frameworks import Framework
from fusegen.plan.native_step import View
from fusegen.run.owned_scatter_step import PlannedOwned, PlannedSplit, plan_owned_scatter, plan_split_scatter
from fusegen.run.sorted_scatter_step import PlannedRoutine, PlannedSort, plan_routine, plan_sorted_scatter


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
    routine = plan_routine(step, sizes, tensors[0], follows)
    found = min((plan for plan in planned if plan), key=lambda plan: plan.seconds, default=None)
    if found is None or isinstance(found, PlannedSort):
        return found or routine
    by_atomics = prod(sizes[axis] for axis in {*step.over, *step.axes} - {step.axis}) * _PER_ATOMIC + _LAUNCHES
    return routine if step.kind in ("max", "min") and by_atomics < found.seconds else found


def by_framework(step: Scatter, sizes: Mapping[str, int], lying: Sequence[TensorLayout]) -> ScatterStep:
    """The step by the framework's routine, for tensors that lie so."""
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

"""A step that adds rows to a result, or combines them otherwise, at the places that a tensor tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusegen.fuse.products import Scatter
from fusegen.matmul.steps import NativeSteps
from fusegen.matmul.views import TensorLayout
from fusegen.plan.frameworks import Framework
from fusegen.plan.native_step import View


@dataclass(frozen=True)
class ScatterStep:
    """``result[b, places[b, n], r] += updates[b, n, r]`` for all n, by the framework's own routine.

    Attributes:
        names: the places, the updates, the result.
        views: of these, with dimensions b, n and r; b, the place and r.
        batch: how many dimensions b has.
        onto: it is added to what the result holds.
        kind: of the reduction that combines updates.
        moves: the n-th update is the n-th place's, and there is no other.
    """

    names: tuple[str, str, str]
    views: tuple[View, View, View]
    batch: int
    onto: bool
    kind: str
    moves: bool = False

    @property
    def uses(self) -> set[str]:
        return set(self.names)

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        places, updates, result = (
            framework.view(tensors[name], view.shape, view.strides, view.offset)
            for name, view in zip(self.names, self.views, strict=True)
        )
        if self.moves and self.onto:
            result += updates
        elif self.moves:
            result[...] = updates
        elif self.kind == "sum":
            framework.scatter_add(result, places, updates, self.batch, self.onto)
        else:
            framework.scatter_reduce(result, places, updates, self.batch, self.kind)

    def native_steps(self, place: int) -> NativeSteps | None:
        return None


def scatter_step(step: Scatter, sizes: Mapping[str, int], layouts: Mapping[str, TensorLayout]) -> ScatterStep:
    """The step for tensors that lie so."""
    places, updates, result = (layouts[name] for name in (step.left.name, step.right.name, step.result))
    batch = [axis for axis in step.axes if axis in places.strides]
    rest = [axis for axis in step.axes if axis not in (*batch, step.axis)]
    inner = list(step.over)

    def view(layout: TensorLayout, axes: list[str]) -> View:
        strides = tuple(layout.strides.get(axis, 0) for axis in axes)
        return View(tuple(sizes[axis] for axis in axes), strides, layout.offset)

    return ScatterStep(
        (places.tensor, updates.tensor, result.tensor),
        (
            view(places, [*batch, *inner]),
            view(updates, [*batch, *inner, *rest]),
            view(result, [*batch, step.axis, *rest]),
        ),
        len(batch),
        step.onto,
        step.kind,
        step.moves,
    )

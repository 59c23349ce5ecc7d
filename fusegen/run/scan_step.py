"""A step that adds up along an axis, and keeps what it has at each element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusegen.fuse.products import Scan
from fusegen.matmul.steps import NativeSteps
from fusegen.matmul.views import TensorLayout
from fusegen.plan.frameworks import Framework
from fusegen.plan.native_step import View


@dataclass(frozen=True)
class ScanStep:
    """Cumulative sums along one dimension, by the framework's own routine.

    Attributes:
        names: what is added up, and the result.
        views: of these, with the same dimensions.
        dim: along which.
        reverse: from the last element.
    """

    names: tuple[str, str]
    views: tuple[View, View]
    dim: int
    reverse: bool

    @property
    def uses(self) -> set[str]:
        return set(self.names)

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        source, result = (
            framework.view(tensors[name], view.shape, view.strides, view.offset)
            for name, view in zip(self.names, self.views, strict=True)
        )
        framework.cumsum(result, source, self.dim, self.reverse)

    def native_steps(self, place: int) -> NativeSteps | None:
        return None


def scan_step(step: Scan, sizes: Mapping[str, int], layouts: Mapping[str, TensorLayout]) -> ScanStep:
    """The step for tensors that lie so."""

    def view(layout: TensorLayout) -> View:
        shape = tuple(sizes[axis] for axis in step.axes)
        return View(shape, tuple(layout.strides.get(axis, 0) for axis in step.axes), layout.offset)

    source, result = layouts[step.left.name], layouts[step.result]
    names = source.tensor, result.tensor
    return ScanStep(names, (view(source), view(result)), step.axes.index(step.axis), step.reverse)

"""Steps of an op with matrix products, and what they are to the native call path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fusegen.core.dtypes import DType
from fusegen.launch.program import Workspace
from fusegen.plan.frameworks import Framework
from fusegen.plan.native_step import TorchStep, View
from fusegen.plan.plan import Allocation


class Step(Protocol):
    """One thing that a chain does."""

    @property
    def uses(self) -> set[str]: ...
    def run(self, tensors: dict[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None: ...
    def native_steps(self, place: int) -> NativeSteps | None: ...


@dataclass
class NativeSteps:
    """What a step is to the native call path: launches and products, and the memory that they need."""

    steps: list[Any] = field(default_factory=list)
    workspaces: list[Workspace] = field(default_factory=list)
    buffers: list[Allocation] = field(default_factory=list)

    def __iadd__(self, other: NativeSteps) -> NativeSteps:
        self.steps += other.steps
        self.workspaces += other.workspaces
        self.buffers += other.buffers
        return self


@dataclass(frozen=True)
class Fill:
    """A view of a tensor filled with what a view of another one holds, or with zeros where there is no other."""

    names: tuple[str, ...]
    views: tuple[View, ...]
    dtype: DType

    @property
    def uses(self) -> set[str]:
        return set(self.names)

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        target, *source = (
            framework.view(tensors[name], view.shape, view.strides, view.offset)
            for name, view in zip(self.names, self.views, strict=True)
        )
        if source:
            target.copy_(source[0])
        else:
            target.zero_()

    def native_steps(self, place: int) -> NativeSteps | None:
        return NativeSteps([TorchStep(self.names, self.views, self.dtype, "copy" if len(self.names) == 2 else "zero")])


@dataclass(frozen=True)
class StepSequence:
    """Steps that are one to the chain, with memory of their own."""

    steps: tuple[Step, ...]
    buffers: tuple[Allocation, ...]
    device: str

    @property
    def uses(self) -> set[str]:
        found: set[str] = set().union(*(step.uses for step in self.steps))
        return found - {buffer.name for buffer in self.buffers}

    def run(self, tensors: dict[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        mine = {buffer.name: buffer.allocate(framework, self.device) for buffer in self.buffers}
        for step in self.steps:
            step.run({**tensors, **mine}, scalars, framework)

    def native_steps(self, place: int) -> NativeSteps | None:
        found = NativeSteps(buffers=list(self.buffers))
        for step in self.steps:
            piece = step.native_steps(place)
            if piece is None:
                return None
            found += piece
        return found

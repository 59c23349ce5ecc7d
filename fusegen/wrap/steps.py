"""Steps of an op with matrix products, and what they are to the native call path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fusegen.core.dtypes import DType
from fusegen.core.ir import Op, Operand, Output
from fusegen.launch.program import Workspace
from fusegen.wrap.plan import Made, Plan
from fusegen.wrap.run import Runner
from fusegen.wrap.tensors import Framework, TensorInfo
from fusegen.wrap.torch_step import TorchStep, View


class Step(Protocol):
    """One thing that a chain does."""

    @property
    def uses(self) -> set[str]: ...
    def run(self, tensors: dict[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None: ...
    def flat(self, place: int) -> Flat | None: ...


@dataclass
class Flat:
    """What a step is to the native call path: launches and products, and the memory that they need."""

    steps: list[Any] = field(default_factory=list)
    workspaces: list[Workspace] = field(default_factory=list)
    own: list[Made] = field(default_factory=list)

    def __iadd__(self, other: Flat) -> Flat:
        self.steps += other.steps
        self.workspaces += other.workspaces
        self.own += other.own
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

    def flat(self, place: int) -> Flat | None:
        return Flat([TorchStep(self.names, self.views, self.dtype, "copy" if len(self.names) == 2 else "zero")])


@dataclass(frozen=True)
class Part:
    """An op without products, planned; what it writes, by name."""

    runner: Runner
    plan: Plan
    writes: tuple[str, ...]

    @property
    def uses(self) -> set[str]:
        return {*self.runner.arguments, *self.writes}

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        self.runner.launch(self.plan, tensors, scalars, framework, [tensors[name] for name in self.writes])

    def flat(self, place: int) -> Flat | None:
        """Workspaces of several parts may have one name, so they are numbered."""
        program = self.plan.program
        assert program is not None
        names = {workspace.name: f"{place}: {workspace.name}" for workspace in program.workspaces}
        steps = [replace(s, dynamic=tuple(names.get(name, name) for name in s.dynamic)) for s in program.steps]
        return Flat(steps, [replace(workspace, name=names[workspace.name]) for workspace in program.workspaces])


@dataclass(frozen=True)
class Several:
    """Steps that are one to the chain, with memory of their own."""

    steps: tuple[Step, ...]
    own: tuple[Made, ...]
    device: str

    @property
    def uses(self) -> set[str]:
        found: set[str] = set().union(*(step.uses for step in self.steps))
        return found - {made.name for made in self.own}

    def run(self, tensors: dict[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        mine = {made.name: made.make(framework, self.device) for made in self.own}
        for step in self.steps:
            step.run({**tensors, **mine}, scalars, framework)

    def flat(self, place: int) -> Flat | None:
        found = Flat(own=list(self.own))
        for step in self.steps:
            piece = step.flat(place)
            if piece is None:
                return None
            found += piece
        return found


def copied(fill: Fill, known: Mapping[str, TensorInfo], fresh: frozenset[str] | None) -> Step:
    """A copy by a kernel of ours, twice as fast as torch's between rows that are aligned and rows that are not.

    What is filled with zeros stays torch's, and so do parts of packed tensors: kernels know where tensors begin.

    Args:
        known: what the tensors are.
        fresh: of a copy behind other steps, what they have written.
    """
    if len(fill.names) == 1 or any(view.offset for view in fill.views):
        return fill
    (target, source), (into, view) = fill.names, fill.views
    axes = tuple(f"D{d}" for d in range(len(view.shape)))
    operand = Operand(source, fill.dtype, axes)
    op = Op("rounded_up", "copy", (operand,), (), (), (Output(target, operand.ref, fill.dtype, axes),))
    runner = Runner(op, fresh=fresh)
    read, written = (
        replace(known[name], shape=seen.shape, strides=seen.strides) for name, seen in ((source, view), (target, into))
    )
    return Part(runner, runner.plan_for({source: read}, [written]), (target,))

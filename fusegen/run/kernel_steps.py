"""Steps of an op with matrix products that launch kernels of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fusegen.core.ir import Op, Operand, Output
from fusegen.matmul.steps import Fill, NativeSteps, Step
from fusegen.plan.frameworks import Framework, TensorInfo
from fusegen.plan.plan import Plan
from fusegen.run.runner import Runner


@dataclass(frozen=True)
class KernelStep:
    """An op without products, planned; what it writes, by name."""

    runner: Runner
    plan: Plan
    writes: tuple[str, ...]

    @property
    def uses(self) -> set[str]:
        return {*self.runner.arguments, *self.writes}

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        self.runner.launch(self.plan, tensors, scalars, framework, [tensors[name] for name in self.writes])

    def native_steps(self, place: int) -> NativeSteps | None:
        """Workspaces of several parts may have one name, so they are numbered."""
        program = self.plan.program
        assert program is not None
        names = {workspace.name: f"{place}: {workspace.name}" for workspace in program.workspaces}
        steps = [replace(s, dynamic=tuple(names.get(name, name) for name in s.dynamic)) for s in program.steps]
        return NativeSteps(steps, [replace(workspace, name=names[workspace.name]) for workspace in program.workspaces])


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
    return KernelStep(runner, runner.plan_for({source: read}, [written]), (target,))

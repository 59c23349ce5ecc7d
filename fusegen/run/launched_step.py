"""A step between an op's kernels that has kernels of its own: a scan, or a scatter of lines that fit on the chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fusegen.core.ir import Scalar
from fusegen.launch.program import Program, scalar_value
from fusegen.matmul.steps import NativeSteps
from fusegen.plan.frameworks import Framework, target_of


@dataclass(frozen=True)
class LaunchedStep:
    """Launches of kernels of its own, planned.

    Attributes:
        tensors: what is read and written: each tensor, and how many bytes behind its first element it begins.
        scalars: the call's numbers that it reads.
        slots: what the native call path calls these.
    """

    tensors: tuple[tuple[str, int], ...]
    scalars: tuple[Scalar, ...]
    slots: tuple[str, ...]
    program: Program
    device: str

    @property
    def uses(self) -> set[str]:
        return {name for name, _ in self.tensors}

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        values: list[Any] = [framework.pointer(tensors[name]) + offset for name, offset in self.tensors]
        values += [scalar_value(scalar, scalars[scalar.name]) for scalar in self.scalars]
        stream, device = framework.stream(self.device), self.device
        target_of(device).run(self.program, values, stream, lambda size: framework.workspace(size, device))

    def native_steps(self, place: int) -> NativeSteps | None:
        """Workspaces of several steps may have one name, so they are numbered."""
        names = dict(zip(dict.fromkeys(self.slots), dict.fromkeys(self.slots), strict=True))
        names |= {workspace.name: f"{place}: {workspace.name}" for workspace in self.program.workspaces}
        steps = [replace(s, dynamic=tuple(names[name] for name in s.dynamic)) for s in self.program.steps]
        return NativeSteps(steps, [replace(w, name=names[w.name]) for w in self.program.workspaces])

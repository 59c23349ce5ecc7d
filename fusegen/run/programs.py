"""The kernel programs of an op, run without a compiler: its fourth stage (kernel_program/evaluate)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from fusegen import pipeline
from fusegen.core.dtypes import DType
from fusegen.core.ir import Op
from fusegen.core.monoids import BY_KIND
from fusegen.core.views import block_shape
from fusegen.declare.reference import Evaluation, packed
from fusegen.fuse import schedule
from fusegen.fuse.finish import FINISHES
from fusegen.generate.names import Names
from fusegen.generate.params import Param, parameters
from fusegen.generate.render import programs
from fusegen.kernel_program import evaluate
from fusegen.kernel_program.check import check_program
from fusegen.kernel_program.memory import Buffer, StateBuffer
from fusegen.launch.program import static_value

if TYPE_CHECKING:
    import torch

# Threads of a launch that is still run here: larger ones take minutes.
MOST_THREADS = 2**22


def run_programs(
    op: Op, tensors: Mapping[str, Any], numbers: Mapping[str, Any], sizes: Mapping[str, int], floats: Any = None
) -> list[torch.Tensor]:
    """What the kernels of ``op`` write, for tensors that lie row by row.

    Args:
        tensors, numbers, sizes: as `declare.reference.reference` takes them.
        floats: the torch dtype in which floats are computed; float64 if not given.

    Raises:
        LegalityError: a program is not legal, or a thread does what it must not.
        TooManyThreads: there are more than `MOST_THREADS`.
    """
    import torch

    return _Launches(torch, op, tensors, numbers, floats or torch.float64, (), sizes).written()


class TooManyThreads(Exception):
    """A launch is larger than what is run without a compiler."""


class _Launches(Evaluation):
    """Kernels one after the other, and the memory that they share."""

    def written(self) -> list[torch.Tensor]:
        """Run everything."""
        op, layouts = self.op, dict[str, schedule.Buffer]()
        self.memory: dict[str, Any] = {}
        for operand in op.operands:
            own = [axis for axis in operand.shape if axis is not None]
            value = self.named[operand.name].reshape([self.sizes[a] for a in self.axes if a in own])
            value = value.permute([[a for a in self.axes if a in own].index(axis) for axis in own])
            self.memory[operand.name] = self._buffer(operand.name, operand.dtype, value.reshape(-1))
            layouts[operand.name] = schedule.Buffer(operand.dtype, schedule.contiguous(operand.shape, self.sizes))
        for output in op.outputs:
            elements = prod(self.sizes[axis] for axis in output.shape if axis)
            self.memory[output.name] = self._nothing(output.name, output.dtype, elements)
            layouts[output.name] = schedule.Buffer(output.dtype, schedule.contiguous(output.shape, self.sizes))
        planned = pipeline.plan_op(op, pipeline.Layout(self.sizes, layouts))
        for workspace in planned.workspaces:
            self.memory[workspace.name] = self._nothing(workspace.name, workspace.dtype, workspace.elements)
        for item in planned.kernels:
            self._launch(item)
        found = {}
        for output in op.outputs:
            shape = [self.sizes[axis] for axis in output.shape if axis is not None]
            value = self.memory[output.name].values.reshape(shape)
            found[output.name] = value.reshape(block_shape(output, self.sizes))
        return packed(op, found)

    def _buffer(self, name: str, dtype: DType, values: torch.Tensor) -> Buffer:
        return Buffer(name, values, dtype.size, schedule.VECTOR_BYTES)

    def _nothing(self, name: str, dtype: DType, elements: int) -> Buffer:
        """Memory that nothing has written yet."""
        kind = self.dtype(dtype)
        values = self.torch.full(
            (elements,), float("nan") if kind.is_floating_point else 0, dtype=kind, device=self.device
        )
        found = self._buffer(name, dtype, values)
        found.written = self.torch.zeros(elements, dtype=self.torch.int64, device=self.device)
        return found

    def _launch(self, item: pipeline.ScheduledKernel) -> None:
        kernel, plan, launch = item.kernel, item.schedule, item.launch
        if launch.empty:
            return
        m = prod(launch.sizes[: plan.kept])
        states: dict[str, Any] = {}
        for reduce in kernel.states if plan.split else ():
            if BY_KIND[reduce.kind].state:
                states[reduce.name] = StateBuffer(reduce.name)
            else:
                states[reduce.name] = self._nothing(reduce.name, reduce.expr.dtype, launch.splits * m)
        names = Names(kernel)
        grids = [launch.grid, (-(-m // FINISHES[plan.finish][0]), 1, 1)]
        for stage, grid, (_, program) in zip(("main", "finish"), grids, programs(kernel, plan, names), strict=False):
            if prod(grid) * program.threads > MOST_THREADS:
                raise TooManyThreads(f"{prod(grid)} blocks of {program.threads} threads, too many to run one by one")
            check_program(program, kernel.name)

            def argument(param: Param) -> Any:
                if param.kind == "partial":
                    return states[param.source]
                if param.kind in ("in", "out"):
                    return self.memory[param.source]
                if param.kind == "scalar":
                    return self.named[param.source]
                return static_value(param, plan, launch)

            arguments = {p.name: argument(p) for p in parameters(kernel, plan, names, stage)}
            evaluate.run(program, grid, arguments, self.sizes, self.floats)

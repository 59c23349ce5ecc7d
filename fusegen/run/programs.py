"""The kernel programs of an op, run without a compiler: its fourth stage (kernel_program/evaluate)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from fusegen import pipeline
from fusegen.core.dtypes import DType
from fusegen.core.ir import Op
from fusegen.core.monoids import BY_KIND
from fusegen.core.one_term import start
from fusegen.core.views import block_shape
from fusegen.declare.reference import Evaluation, packed
from fusegen.fuse import schedule
from fusegen.fuse.finish import FINISHES
from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.sorted_scatter_schedule import PART
from fusegen.fuse.steps import Scan, Scatter
from fusegen.generate.names import Names
from fusegen.generate.params import Param, parameters
from fusegen.generate.render import programs
from fusegen.generate.scan_params import ScanParam, scan_parameters
from fusegen.generate.scan_programs import scan_program
from fusegen.generate.scatters import scatter_parameters, scatter_program
from fusegen.generate.sorted_scatters import keys_parameters, keys_program, runs_parameters, runs_program
from fusegen.kernel_program import evaluate
from fusegen.kernel_program.check import check_program
from fusegen.kernel_program.memory import Buffer, StateBuffer
from fusegen.kernel_program.nodes import KernelProgram
from fusegen.kernel_program.scan_states import ScanBuffer, ScanStates
from fusegen.launch.program import static_value
from fusegen.run.owned_scatter_step import PlannedOwned, PlannedSplit
from fusegen.run.owned_scatter_step import static_value as scatter_value
from fusegen.run.scan_step import scheduled
from fusegen.run.scan_step import static_value as scan_value
from fusegen.run.scatter_step import plan_scatter
from fusegen.run.sorted_scatter_step import PlannedRoutine, PlannedSort, keys_numbers, runs_numbers
from fusegen.run.sorted_scatter_step import static_value as sorted_value

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


def run_scan(
    step: Scan, tensors: Sequence[tuple[DType, torch.Tensor, Sequence[str]]], numbers: Mapping[str, Any],
    sizes: Mapping[str, int], floats: Any = None,
) -> list[torch.Tensor]:  # fmt: skip
    """What the kernels of a scan write, each with the scan's axes, of tensors that lie row by row.

    Args:
        tensors: what it reads: the dtype that memory has it in, its elements and their axes.
        numbers: the call's.
        floats: the torch dtype in which floats are computed; float64 if not given.

    Raises:
        LegalityError, TooManyThreads: as `run_programs` does.
    """
    import torch

    floats, device = floats or torch.float64, tensors[0][1].device

    def kind(dtype: DType) -> Any:
        return floats if dtype.is_float else getattr(torch, dtype.name)

    shape = [sizes[axis] for axis in step.axes]
    lying = [(dtype, schedule.contiguous(axes, sizes), 0) for dtype, _, axes in tensors]
    lying += [(output.dtype, schedule.contiguous(step.axes, sizes), 0) for output in step.outputs]
    memory = [
        Buffer(name, values.reshape(-1).to(kind(dtype)), dtype.size, schedule.VECTOR_BYTES)
        for name, (dtype, values, _) in zip((source.name for source in step.sources), tensors, strict=True)
    ]
    for output in step.outputs:
        values = torch.zeros(prod(shape), dtype=kind(output.dtype), device=device)
        if output.dtype.is_float:
            values.fill_(float("nan"))
        written = torch.zeros(prod(shape), dtype=torch.int64, device=device)
        memory.append(Buffer(output.name, values, output.dtype.size, schedule.VECTOR_BYTES, written))
    planned = scheduled(step, sizes, lying, follows=False)
    if planned is not None:
        scan, launch = planned
        states = ScanStates.nothing(step.how.combine, (launch.rows * launch.parts,), kind(scan.program.dtype), device)
        totals = ScanBuffer.of("totals", states)

        def argument(param: ScanParam) -> Any:
            if param.kind == "number":
                scalar = step.scalars[param.tensor]
                return torch.tensor(numbers[scalar.name], dtype=kind(scalar.dtype), device=device)
            if param.kind == "totals":
                return totals
            return memory[param.tensor] if param.kind == "pointer" else scan_value(param, launch)

        for stage in scan.stages:
            program = scan_program(scan, stage)
            _few_threads(launch.grid, program)
            check_program(program, f"scan {step.how.text}")
            arguments = {param.name: argument(param) for param in scan_parameters(scan, stage)}
            evaluate.run(program, launch.grid, arguments, {}, floats)
    return [buffer.values.reshape(shape) for buffer in memory[len(tensors) :]]


def run_scatter(
    step: Scatter, tensors: Sequence[tuple[DType, torch.Tensor, Sequence[str]]],
    result: tuple[DType, torch.Tensor | None], sizes: Mapping[str, int], floats: Any = None,
) -> torch.Tensor | None:  # fmt: skip
    """What the kernels of a scatter write, with the scatter's axes, of tensors that lie row by row; None where the
    framework's routine does it.

    Args:
        tensors: places and updates: the dtype that memory has each in, its elements and their axes.
        result: the dtype of the result, and what the sum is added to, along the scatter's axes, if there is anything.
        floats: the torch dtype in which floats are computed; float64 if not given.

    Raises:
        LegalityError, TooManyThreads: as `run_programs` does.
    """
    import torch

    dtype, base = result
    lying = [schedule.Buffer(own, schedule.contiguous(axes, sizes)) for own, _, axes in tensors]
    lying += [schedule.Buffer(dtype, schedule.contiguous(step.axes, sizes))] * (1 if base is None or step.onto else 2)
    planned = plan_scatter(step, sizes, lying, Chip(), follows=False)
    if isinstance(planned, PlannedRoutine):
        return None
    return _Scattered(step, planned, tensors, dtype, base, sizes, floats or torch.float64).written()


@dataclass
class _Scattered:
    """The kernels of one scatter, and the memory that they share."""

    step: Scatter
    planned: PlannedOwned | PlannedSplit | PlannedSort
    tensors: Sequence[tuple[DType, torch.Tensor, Sequence[str]]]
    dtype: DType
    base: torch.Tensor | None
    sizes: Mapping[str, int]
    floats: Any

    def written(self) -> torch.Tensor:
        """Run everything."""
        (places, updates), planned = (self._given(*tensor[:2]) for tensor in self.tensors), self.planned
        shape = [self.sizes[axis] for axis in self.step.axes]
        if isinstance(planned, PlannedSplit):
            parts = self._nothing("parts", planned.scatter.schedule.dtypes[2], prod(planned.shape))
            self._owned(planned.scatter, [places, updates, parts])
            return self._combined(planned, parts.values.reshape(planned.shape))
        result = self._nothing("result", self.dtype, prod(shape))
        if isinstance(planned, PlannedOwned):
            base = [] if self.base is None or self.step.onto else [self._given(self.dtype, self.base)]
            if self.step.onto and self.base is not None:
                result.values.copy_(self.base.reshape(-1))
            self._owned(planned, [places, updates, result, *base])
        else:
            self._sorted(planned, places, updates, result)
        return result.values.reshape(shape)

    def _kind(self, dtype: DType) -> Any:
        import torch

        return self.floats if dtype.is_float else getattr(torch, dtype.name)

    def _given(self, dtype: DType, values: torch.Tensor) -> Buffer:
        return Buffer("given", values.reshape(-1).to(self._kind(dtype)), dtype.size, schedule.VECTOR_BYTES)

    def _nothing(self, name: str, dtype: DType, elements: int) -> Buffer:
        """Memory that nothing has written yet."""
        device = self.tensors[1][1].device
        return _unwritten(name, dtype, elements, self._kind(dtype), device)

    def _run(self, program: KernelProgram, blocks: int, arguments: Mapping[str, Any]) -> None:
        _few_threads((blocks, 1, 1), program)
        check_program(program, f"scatter {self.step.kind}")
        evaluate.run(program, (blocks, 1, 1), arguments, {}, self.floats)

    def _owned(self, planned: PlannedOwned, memory: Sequence[Buffer]) -> None:
        own, launch = planned.schedule, planned.launch
        arguments = {
            param.name: memory[param.tensor] if param.kind == "pointer" else scatter_value(param, launch)
            for param in scatter_parameters(own)
        }
        self._run(scatter_program(own), -(-launch.lines // own.lines), arguments)

    def _combined(self, planned: PlannedSplit, parts: torch.Tensor) -> torch.Tensor:
        op = planned.combined
        tensors = dict(zip((operand.name for operand in op.operands), (parts, self.base), strict=False))
        (found,) = run_programs(op, tensors, {}, {axis: planned.sizes[axis] for axis in planned.axes}, self.floats)
        return found

    def _sorted(self, planned: PlannedSort, places: Buffer, updates: Buffer, result: Buffer) -> None:
        scatter, begins = planned.scatter, start(self.step.kind, planned.scatter.runs[0].wide)
        result.values.copy_(self.base.reshape(-1)) if self.base is not None else result.values.fill_(begins)
        keys = self._nothing("keys", scatter.keys.keys, scatter.updates)
        numbers, lying = keys_numbers(scatter), {"places tensor": places, "keys": keys}
        arguments = {
            param.name: lying[param.kind] if param.pointer else sorted_value(param, numbers, scatter.loops[:1])
            for param in keys_parameters(scatter.keys)
        }
        self._run(keys_program(scatter.keys), -(-scatter.updates // scatter.keys.threads), arguments)
        values, order = keys.values.sort(stable=True)
        lying = {"keys": Buffer("keys", values, keys.size), "order": Buffer("order", order, 8), "updates": updates}
        for level, n in enumerate(scatter.lengths):
            own, following = scatter.runs[level > 0], 2 * -(-n // PART)
            lying |= {
                "result": result, "next keys": self._nothing("keys", own.keys, following),
                "sums": self._nothing("sums", own.wide, following * scatter.columns),
            }  # fmt: skip
            numbers = runs_numbers(scatter, n)
            arguments = {
                param.name: lying[param.kind] if param.pointer else sorted_value(param, numbers, scatter.loops[1:])
                for param in runs_parameters(own)
            }
            self._run(runs_program(own), numbers["tiles"] * -(-n // own.rows), arguments)
            lying |= {"keys": lying["next keys"], "updates": lying["sums"]}


def _unwritten(name: str, dtype: DType, elements: int, kind: Any, device: Any) -> Buffer:
    """Memory that nothing has written yet."""
    import torch

    values = torch.full((elements,), float("nan") if kind.is_floating_point else 0, dtype=kind, device=device)
    written = torch.zeros(elements, dtype=torch.int64, device=device)
    return Buffer(name, values, dtype.size, schedule.VECTOR_BYTES, written)


def _few_threads(grid: Sequence[int], program: KernelProgram) -> None:
    """Raise if a launch has too many threads to be run one by one."""
    if prod(grid) * program.threads > MOST_THREADS:
        raise TooManyThreads(f"{prod(grid)} blocks of {program.threads} threads, too many to run one by one")


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
            _few_threads(grid, program)
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

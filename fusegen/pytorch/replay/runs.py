"""A run that was planned, done again on other tensors of the same layouts: allocation, addresses, launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from fusegen.core.ir import Scalar
from fusegen.launch.program import scalar_value
from fusegen.launch.reports import reports
from fusegen.plan import frameworks
from fusegen.run.runner import Run, Runner

# replay(tensors of the call, their addresses, numbers of the call) -> results
Replay = Callable[[Sequence[Any], Sequence[int], Sequence[Any]], list[Any]]


def replay_of(run: Run, inputs: Sequence[int], numbers: Mapping[str, int], fixed: Mapping[str, Any]) -> Replay:
    """How a run is done again.

    Args:
        inputs: for each tensor that the run reads, which of the call's tensors it is.
        numbers: for each scalar by name, which of the call's numbers it is.
        fixed: the other scalars.
    """
    if type(run.runner) is Runner:
        launches = _Launches(run, inputs, numbers, fixed)
        return _Launch(launches) if launches.is_one else launches
    return partial(_run, run.runner, run.plan, tuple(inputs), dict(numbers), dict(fixed))


def _run(
    runner: Runner, plan: Any, inputs: Sequence[int], numbers: Mapping[str, int], fixed: Mapping[str, Any],
    tensors: Sequence[Any], addresses: Sequence[int], given: Sequence[Any],
) -> list[Any]:  # fmt: skip
    """Steps that are not launches alone take tensors and numbers by name."""
    by_name = {name: tensors[at] for name, at in zip(runner.arguments, inputs, strict=True)}
    scalars = {**fixed, **{name: given[at] for name, at in numbers.items()}}
    return runner.launch(plan, by_name, scalars, frameworks.torch(), None)


class _Launches:
    """A program of launches, with all that does not change from call to call decided."""

    def __init__(self, run: Run, inputs: Sequence[int], numbers: Mapping[str, int], fixed: Mapping[str, Any]) -> None:
        plan, framework = run.plan, frameworks.torch()
        assert plan.program is not None
        self.program, self.target, self.framework, self.device = plan.program, plan.target, framework, plan.device
        self.stream, device = framework.stream_of(plan.device), torch.device(plan.device)
        self.allocations = [
            partial(torch.empty_strided, shape, strides, dtype=framework.back[dtype], device=device)
            for _, shape, strides, dtype in plan.results
        ]
        places = dict(zip(run.runner.arguments, inputs, strict=True))
        bases = [name for name, *_ in plan.results]
        self.inputs = [(places[slot.source], slot.offset) for slot in plan.inputs]
        self.in_order = self.inputs == [(at, 0) for at in range(len(self.inputs))]
        self.outputs = [(bases.index(slot.source), slot.offset) for slot in plan.outputs]
        self.scalars = [_number(scalar, numbers, fixed) for scalar in run.runner.op.scalars]

    @property
    def is_one(self) -> bool:
        """Whether it is one launch, of the call's first tensors, all results and all numbers, in this order."""
        steps = self.program.steps
        if len(steps) != 1 or self.program.workspaces or not self.in_order:
            return False
        count = len(self.inputs) + len(self.outputs) + len(self.scalars)
        return self.outputs == [(at, 0) for at in range(len(self.allocations))] and steps[0].sources == (*range(count),)

    def __call__(self, tensors: Sequence[Any], addresses: Sequence[int], given: Sequence[Any]) -> list[Any]:
        results = [allocate() for allocate in self.allocations]
        if self.in_order and len(addresses) == len(self.inputs):
            values = list(addresses)
        else:
            values = [addresses[at] + offset for at, offset in self.inputs]
        for at, offset in self.outputs:
            values.append(results[at].data_ptr() + offset)
        if self.scalars:
            values += [number(given) for number in self.scalars]
        self.target.run(self.program, values, self.stream(), self._workspace)
        return results

    def _workspace(self, size: int) -> tuple[Any, int]:
        return self.framework.workspace(size, self.device)


class _Launch:
    """One launch, whose argument block gets addresses and numbers as they come. Most ops are one: a call of Python's
    costs as much as it does to write an address."""

    def __init__(self, launches: _Launches) -> None:
        (self.step,) = launches.program.steps
        self.allocations, self.count, self.scalars = launches.allocations, len(launches.inputs), launches.scalars
        self.stream, self.context = launches.stream, launches.target.context

    def __call__(self, tensors: Sequence[Any], addresses: Sequence[int], given: Sequence[Any]) -> list[Any]:
        reports.look()
        step, results, values = self.step, [], [*addresses[: self.count]]
        for allocate in self.allocations:
            result = allocate()
            results.append(result)
            values.append(result.data_ptr())
        for number in self.scalars:
            values.append(number(given))
        try:
            arguments = step.pool.pop()
        except IndexError:
            arguments = step.prepared()
        step.pack(arguments.memory, 0, *values)
        if self.context is None or self.context.is_current():
            arguments.launch(self.stream())
        else:
            with self.context:
                arguments.launch(self.stream())
        step.pool.append(arguments)
        return results


def _number(scalar: Scalar, numbers: Mapping[str, int], fixed: Mapping[str, Any]) -> Callable[[Sequence[Any]], Any]:
    """What gives a launch its scalar, of the call's numbers."""
    if scalar.name not in numbers:
        value = scalar_value(scalar, fixed[scalar.name])
        return lambda given: value
    at = numbers[scalar.name]
    if scalar.dtype.is_float and scalar.dtype.size == 4:
        return lambda given: ctypes.c_float(given[at]).value
    return lambda given: scalar_value(scalar, given[at])

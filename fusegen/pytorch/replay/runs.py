"""A run that was planned, done again on other tensors of the same layouts: allocation, addresses, launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from fusegen.core.ir import Scalar
from fusegen.launch.program import scalar_value
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
        return _Launches(run, inputs, numbers, fixed)
    return partial(_launch, run.runner, run.plan, tuple(inputs), dict(numbers), dict(fixed))


def _launch(
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
        device = torch.device(plan.device)
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
        self.target.run(self.program, values, self.framework.stream(self.device), self._workspace)
        return results

    def _workspace(self, size: int) -> tuple[Any, int]:
        return self.framework.workspace(size, self.device)


def _number(scalar: Scalar, numbers: Mapping[str, int], fixed: Mapping[str, Any]) -> Callable[[Sequence[Any]], Any]:
    """What gives a launch its scalar, of the call's numbers."""
    if scalar.name not in numbers:
        value = scalar_value(scalar, fixed[scalar.name])
        return lambda given: value
    at = numbers[scalar.name]
    if scalar.dtype.is_float and scalar.dtype.size == 4:
        return lambda given: ctypes.c_float(given[at]).value
    return lambda given: scalar_value(scalar, given[at])

"""Registered ops (pytorch/library/registry.py) called again: native kernels before those in Python, which record
plans in them.

The native module registers kernels of its own for CPU and CUDA (native/fusegen_native_kernel.h). They run a call like
an earlier one without Python, and pass other calls to the kernels in Python, which record their plan here. Calls from
Python itself find their plans before torch's dispatcher is asked (native/fusegen_native_fast_path.h).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fusegen.declare.op import Declaration
from fusegen.native import module as native
from fusegen.plan.layout import is_dense
from fusegen.pytorch.calls.cached_call import CachedCall, Parameters
from fusegen.pytorch.calls.native_cache import native_plan
from fusegen.pytorch.replay.reading import FLOATS_VARY, INTEGERS_VARY
from fusegen.run.runner import MOST_PLANS, Run


class RegisteredPlans:
    """The native kernels of one registered op; nothing at all where there is no native module.

    Args:
        name: of the op, which is defined.
        flags: for each argument of its schema, which Python numbers are values of a call (``cached_call.Parameters``).
        is_outdated: whether that is no longer so. Then nothing more is recorded, since kernels keep their flags.
    """

    def __init__(self, name: str, flags: Sequence[int], is_outdated: Callable[[], bool] = lambda: False) -> None:
        self.flags, self.is_outdated = tuple(flags), is_outdated
        self.module = native.awaited()
        self.kernels = None
        if self.module is not None:
            self.kernels = self.module.install(name, self.flags, MOST_PLANS)
            _install_fast_path(self.module, self.kernels, name)

    def __len__(self) -> int:
        """How many calls are known."""
        return 0 if self.module is None else int(self.module.plan_count(self.kernels))

    def has_pending_call(self) -> bool:
        """Whether the native kernels wait for a plan."""
        if self.module is None or self.is_outdated():
            return False
        return bool(self.module.has_pending_call(self.kernels))

    def forget(self) -> None:
        """Every plan."""
        if self.module is not None:
            self.module.forget_kernels(self.kernels)

    def record_call(self, given: Mapping[str, Any], runs: Sequence[Run], result: Any) -> None:
        """Record the plan of a call of an overload. ``given``: its arguments by name, in the order of the schema."""
        if len(runs) != 1:
            return
        (run,) = runs
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        names = list(tensors)
        asked = run.runner.arguments
        if all(run.tensors[name] is tensors.get(name) for name in asked):
            inputs: list[int] | None = [names.index(name) for name in asked]
        else:  # the op looks at its arguments itself, and passed on views of them
            inputs = _places([run.tensors[name] for name in asked], list(tensors.values()))
        varying = [n for (n, v), flag in zip(given.items(), self.flags, strict=True) if _varies(v, flag)]
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        self.record(runs, inputs, {name: i for i, name in enumerate(varying)}, results)

    def record(
        self, runs: Sequence[Run], inputs: Sequence[int] | None, numbers: Mapping[str, int], results: Sequence[Any]
    ) -> None:
        """Record a plan for the call that the native kernels passed on, if all it did is one run on its tensors.

        Args:
            runs: what ran (``run.record_runs``).
            inputs: for each tensor that the run read, which of the call's tensors it is; None if that is not known.
            numbers: for each scalar by name, which of the call's numbers it is.
            results: what the call returns: the run's results, or views of all that they hold.
        """
        if len(runs) != 1 or inputs is None:
            return
        (run,) = runs
        if run.plan.program is None or len(results) != len(run.results):
            return
        if not all(map(_is_all_of, results, run.results)):
            return
        plan = run.plan
        layouts = [
            (name, tuple(result.shape), result.stride(), dtype)
            for (name, _, _, dtype), result in zip(plan.results, results, strict=True)
        ]
        fixed = {name: value for name, value in run.scalars.items() if name not in numbers}
        as_returned = replace(run, plan=replace(plan, results=tuple(layouts)))
        cached = CachedCall(as_returned, tuple(inputs), numbers, fixed, len(results), False, None)
        assert self.module is not None
        self.module.record_kernel(self.kernels, native_plan(self.module, cached))


def _install_fast_path(module: Any, kernels: Any, name: str) -> None:
    """Make calls from Python (``torch.ops.fusegen.NAME``, also compiled ones) look for a plan before they dispatch."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.fusegen, packet), overload or "default")
    if hasattr(op, "_op"):  # not torch's interface: without it, a call goes torch's own way
        op._op = module.fast_path(kernels, f"fusegen::{packet}", overload, op._op)


def flags_of(declaration: Declaration, names: Sequence[str], defaults: Mapping[str, Any]) -> list[int]:
    """``RegisteredPlans``'s flags for a schema with these arguments and defaults.

    A default that the schema has in another type than the declaration (an int as a float) is one number here and
    another there; such an argument is a constant.
    """
    parameters = Parameters.of(declaration)
    flags = dict(zip(parameters.names, parameters.flags, strict=True))
    declared = declaration.signature.parameters
    same = {n for n in names if n not in defaults or type(defaults[n]) is type(declared[n].default)}
    return [flags[name] if name in same else 0 for name in names]


def _varies(value: Any, flag: int) -> bool:
    """Whether an argument is a number that is a value of the call."""
    return isinstance(value, (bool, int, float)) and bool(
        flag & (FLOATS_VARY if isinstance(value, float) else INTEGERS_VARY)
    )


def _is_all_of(result: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether a result is a tensor that was made, or shows all of its memory in another shape."""
    if result is made:
        return True
    same = result.data_ptr() == made.data_ptr() != 0 and result.numel() == made.numel() and result.dtype is made.dtype
    return same and is_dense(result.shape, result.stride()) and is_dense(made.shape, made.stride())


def _places(wanted: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> list[int] | None:
    """Where in ``given`` each tensor is, or the one whose memory it shows; None if that cannot be told."""
    addresses = [(tensor.data_ptr(), tensor.numel(), tensor.dtype) for tensor in given]
    found = [(tensor.data_ptr(), tensor.numel(), tensor.dtype) for tensor in wanted]
    known = set(addresses)
    if len(known) < len(addresses) or not set(found) <= known or any(not address for address, *_ in addresses):
        return None
    return [addresses.index(one) for one in found]

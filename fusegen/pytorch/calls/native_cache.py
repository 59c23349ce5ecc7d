"""Cached calls by the native module: a call's plan, and its backwards', as the fields that the module reads."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from fusegen.core import dtypes
from fusegen.core.errors import DeviceError
from fusegen.core.ir import Scalar
from fusegen.launch.program import Launchable
from fusegen.native import module as native
from fusegen.plan import frameworks
from fusegen.plan.native_step import ADDED, TorchStep
from fusegen.pytorch.calls.cached_call import CachedCall
from fusegen.run.runner import Run, record_runs

_ALIGNED = 256


def native_plan(module: Any, cached: CachedCall, gradient_of: Sequence[int] = ()) -> Any:
    """A cached call as a plan of the native module (its ``make_plan`` reads these fields in this order)."""
    run, op = cached.run, cached.run.runner.op
    plan, intermediates = run.plan, run.plan.intermediates
    assert plan.program is not None
    steps = plan.program.steps
    layout = _Workspaces.of(plan.program.workspaces)
    fixed = [cached.fixed[s.name] for s in op.scalars if s.name not in cached.numbers]
    fields = [*plan.target.native(), layout.size, len(cached.inputs), *cached.inputs]
    for _, shape, strides, _ in plan.results:
        fields += [len(shape), *shape, len(strides), *strides, -1, -1]
    for tensor in intermediates:
        fields += [len(tensor.shape), *tensor.shape, len(tensor.strides), *tensor.strides]
        fields += [tensor.first, tensor.last]
    fields += [cached.visible, int(cached.one), len(gradient_of), *gradient_of, len(fixed)]
    for value in fixed:
        fields += _number(value)
    slots = _slots(cached, op.scalars, layout)
    fields.append(len(steps))
    for step in steps:
        if isinstance(step, TorchStep):
            fields += _product(step, slots)
            continue
        image, offsets = step.image()
        block = struct.unpack(f"={len(image) // 8}q", image[: len(image) // 8 * 8])
        loaded = cast(Launchable, step.loaded)
        fields += [loaded.address, loaded.early, loaded.shared, *step.grid, *step.block, len(step.dynamic)]
        for name, code in zip(step.dynamic, _codes(step.format), strict=True):
            fields += [*slots[name], ord(code)]
        fields += [len(block), *block, len(offsets), *offsets]
    trained = cached.trained
    if trained is not None:
        arguments, kept = trained.saved
        saves = [(0, run.runner.arguments.index(name)) for name in arguments] + [(1, at) for at in kept]
        fields += [len(saves), *(field for save in saves for field in save)]
        fields += [len(trained.differentiable), *trained.differentiable]

    def fail(at: int, code: int, message: str) -> None:
        launched = next((step for step in steps[at:] if not isinstance(step, TorchStep)), None)
        if launched is None:  # there are only products, and their device could not be entered
            raise DeviceError(op.name, given=f"CUDA's error {code}", expected="a working device", fix="see its driver")
        cast(Launchable, launched.loaded).fail(code, message)

    made = [*(dtype for *_, dtype in plan.results), *(tensor.dtype for tensor in intermediates)]
    torch_dtypes = tuple(frameworks.torch().back[dtype] for dtype in made)
    title, backward = (None, None) if trained is None else (f"{op.name}Backward", NativeBackward(module, cached))
    return module.plan(native.serialize_plan(fields), torch_dtypes, fail, title, backward)


_INPUT, _RESULT, _WORKSPACE, _NUMBER = range(4)


@dataclass(frozen=True)
class _Workspaces:
    """One piece of memory for all of a program's workspaces."""

    offsets: Mapping[str, int]
    size: int

    @classmethod
    def of(cls, workspaces: Sequence[Any]) -> _Workspaces:
        offsets, size = {}, 0
        for workspace in workspaces:
            offsets[workspace.name] = size
            size += -(-workspace.elements * workspace.dtype.size // _ALIGNED) * _ALIGNED
        return cls(offsets, size)


def _slots(cached: CachedCall, scalars: Sequence[Scalar], layout: _Workspaces) -> dict[str, tuple[int, int, int]]:
    """(kind, index, byte offset) of everything that a launch's argument block lacks, by name."""
    run = cached.run
    arguments = run.runner.arguments
    bases = [base for base, *_ in run.plan.results]
    found = {name: (_INPUT, index, 0) for index, name in enumerate(arguments)}
    found |= {name: (_RESULT, index, 0) for index, name in enumerate(bases)}
    found |= {slot.name: (_INPUT, arguments.index(slot.source), slot.offset) for slot in run.plan.inputs}
    found |= {slot.name: (_RESULT, bases.index(slot.source), slot.offset) for slot in run.plan.outputs}
    intermediates = {tensor.name: (_RESULT, len(bases) + i, 0) for i, tensor in enumerate(run.plan.intermediates)}
    assert len(intermediates) == len(run.plan.intermediates) and not intermediates.keys() & found.keys(), (
        "two tensors of one name"
    )
    found |= intermediates
    found |= {slot.name: (*intermediates[slot.source][:2], slot.offset) for slot in run.plan.blocks}
    found |= {name: (_WORKSPACE, 0, offset) for name, offset in layout.offsets.items()}
    places = iter(range(len(scalars)))
    for scalar in scalars:
        index = cached.numbers[scalar.name] if scalar.name in cached.numbers else -1 - next(places)
        found[scalar.name] = (_NUMBER, index, 0)
    return found


# torch's numbers of the dtypes that products come in (c10::ScalarType).
_SCALAR_TYPES = {dtypes.float16: 5, dtypes.float32: 6, dtypes.float64: 7, dtypes.bfloat16: 15}
_KINDS = {"": 0, "relu": 1, "gelu": 2, "bias": 3, "zero": 4, "copy": 5, ADDED: 6, "planned": 7, "fused": 8}


def _product(step: TorchStep, slots: Mapping[str, tuple[int, int, int]]) -> list[int]:
    """A matrix product: a null function, and its tensors."""
    fields = [0, _KINDS[step.kind], _SCALAR_TYPES[step.dtype], len(step.names), *step.fields]
    for name, view in zip(step.names, step.views, strict=True):
        kind, index, offset = slots[name]
        offset += view.offset * step.dtype.size
        fields += [kind, index, offset, len(view.shape), *view.shape, len(view.strides), *view.strides]
    return fields


def _codes(form: str) -> list[str]:
    """One letter for each slot of a struct format: "<QQf4xd" has Q, Q, f and d."""
    return [letter for letter in form if letter in "Qfdq?"]


def _number(value: Any) -> tuple[int, int]:
    if isinstance(value, float):
        return ord("f"), struct.unpack("=q", struct.pack("=d", value))[0]
    return ord("b" if isinstance(value, bool) else "i"), int(value)


class NativeBackward:
    """What a native node asks when it has no plan: the gradients, by the same code as without a native path."""

    def __init__(self, module: Any, cached: CachedCall) -> None:
        assert cached.trained is not None
        self.module, self.trained = module, cached.trained
        self.numbers, self.fixed = dict(cached.numbers), dict(cached.fixed)
        self.layout, self.shapes = self.trained.layouts(cached.run.tensors)

    def __call__(
        self, plan: Any, needed: list[bool], saved: list[Any], cotangents: list[Any], numbers: list[Any],
        accumulate_into: list[Any],
    ) -> Sequence[Any]:  # fmt: skip
        """A gradient or None for each argument that the forward reads, in order (``Trained.gradients_of``)."""
        scalars = self.fixed | {name: numbers[at] for name, at in self.numbers.items()}
        names = self.trained.forward.arguments
        wanted = self.trained.training.wanted
        asked = frozenset(name for name, is_needed in zip(names, needed, strict=True) if is_needed and name in wanted)
        with record_runs() as runs:
            gradients = self.trained.gradients_of(
                saved, cotangents, self.layout, self.shapes, scalars, asked, accumulate_into
            )
        pruned = self.trained.pruned(cotangents, asked)
        if not torch.is_grad_enabled():
            computed = [None if name in pruned.shared else g for name, g in zip(names, gradients, strict=True)]
            backward = self._plan(saved, cotangents, computed, accumulate_into, runs) if pruned.op.outputs else None
            if backward is not None or not pruned.op.outputs:
                shared_gradients = [(names.index(n), 0, at) for n, at in pruned.handed_on.items()]
                shared_gradients += [(names.index(n), 1, names.index(other)) for n, other in pruned.shared.items()]
                self.module.insert_backward(
                    plan, needed, saved, cotangents, numbers, accumulate_into, backward, shared_gradients
                )
        return gradients

    def _plan(
        self, saved: list[Any], cotangents: list[Any], gradients: Sequence[Any], accumulate_into: Sequence[Any],
        runs: Sequence[Run],
    ) -> Any:  # fmt: skip
        """The native plan of a backward, by which tensor went where; None where that does not say."""
        if len(runs) != 1 or runs[0].plan.program is None:
            return None
        (run,) = runs
        given, read = self.trained.read_backward(saved, cotangents), run.runner.arguments
        if any(run.tensors[name] is not given.get(name) for name in read):
            return None
        # Negative numbers as in fusegen_native_node.h.
        goes_to = {id(grad): -2 - i for i, grad in enumerate(accumulate_into) if grad is not None}
        goes_to |= {id(gradient): i for i, gradient in enumerate(gradients) if gradient is not None}
        made = [id(result) for result in run.results]
        cached = CachedCall(run, tuple(map(list(given).index, read)), self.numbers, self.fixed, len(made), False, None)
        return native_plan(self.module, cached, [goes_to.get(m, -1) for m in made])

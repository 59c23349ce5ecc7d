"""Calls like an earlier one: what was decided for the first is remembered, and done again without deciding.

A caller stands before an op. It turns a call's arguments into a key of everything that a plan depends on; for a key it
knows, it runs the plan; for others it asks the op, the careful way, and learns what the op did. There are two callers
with the same rules: ``PythonCaller`` here, and the native one of native/fusegen_native.cpp, which takes over when it
is there. A call that neither can judge (``out=``, tensor subclasses, transforms) always goes the careful way.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils._device import DeviceContext

from fusegen.core import dtypes
from fusegen.core.errors import DeviceError
from fusegen.core.ir import Scalar
from fusegen.declare.op import Declaration
from fusegen.launch.program import Launchable
from fusegen.native import module as native
from fusegen.plan import frameworks
from fusegen.plan.native_step import ADDED, TorchStep
from fusegen.run.runner import MOST_PLANS, Run, watch

if TYPE_CHECKING:
    from fusegen.pytorch.autograd.function import Differentiable, Trained

FLOATS_VARY, INTEGERS_VARY = 1, 2
_CONSTANTS = (type(None), bool, int, str, type, FunctionType, torch.dtype)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_ALIGNED = 256


@dataclass(frozen=True)
class Parameters:
    """An op's parameters: names, and which Python numbers are values of a call rather than constants of a plan."""

    names: tuple[str, ...]
    flags: tuple[int, ...]

    @classmethod
    def of(cls, declaration: Declaration) -> Parameters:
        """Where the op looks at its arguments itself (``prepare``), every number is a constant: it may be refused."""
        names = tuple(declaration.signature.parameters)
        varies = declaration.is_runtime_number
        flags = tuple(FLOATS_VARY * varies(n, 0.5) + INTEGERS_VARY * varies(n, 1) for n in names)
        return cls(names, (0,) * len(names) if declaration.prepare else flags)

    def varies(self, name: str, value: Any) -> bool:
        """Whether an argument is a number that is a value of the call."""
        if not isinstance(value, (bool, int, float)):
            return False
        return bool(self.flags[self.names.index(name)] & (FLOATS_VARY if isinstance(value, float) else INTEGERS_VARY))


@dataclass(frozen=True)
class Lesson:
    """What a careful call did.

    Args:
        run: the run that it consisted of.
        inputs: for each tensor that the run reads, which of the call's tensors it is.
        numbers: for each scalar by name, which of the call's numbers it is.
        fixed: scalars that are the same for all such calls.
        visible: how many results the caller sees.
        one: they are handed back as one tensor rather than a tuple.
        trained: what the call's gradients need, or None.
        record: runs the op so that autograd sees it, where there is something to see.
    """

    run: Run
    inputs: tuple[int, ...]
    numbers: Mapping[str, int]
    fixed: Mapping[str, Any]
    visible: int
    one: bool
    trained: Trained | None
    record: Callable[..., Any] | None = None


class Teacher:
    """An op's caller, native where the module is there, and what the op's careful calls teach it.

    Args:
        in_python: stay in Python even where the native module is there.
    """

    def __init__(self, declaration: Declaration, careful: Callable[..., Any], *, in_python: bool = False) -> None:
        self.parameters, self.prepared = Parameters.of(declaration), declaration.prepare is not None
        self.in_python = in_python
        self.module = None if in_python else native.module()
        if self.module is None:
            self.caller: Any = PythonCaller(careful, self.parameters, stays=in_python)
        else:
            places = {name: i for i, name in enumerate(self.parameters.names)}
            self.caller = self.module.Caller(careful, places, self.parameters.flags, MOST_PLANS)

    def is_outdated(self) -> bool:
        """Whether the native module has arrived since."""
        return self.module is None and not self.in_python and native.module() is not None

    def learn(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, Any], scalars: Mapping[str, Any],
        runs: Sequence[Run], one: bool, runner: Differentiable,
    ) -> None:  # fmt: skip
        """Remember a careful call, unless it did other things than run one program on its own tensors.

        Args:
            values: arguments by name as the op's declaration got them.
            scalars: Python numbers among them that are handed over at run time.
            runs: what ran (``run.watch``).
            one: the result is one tensor rather than a tuple.
            runner: what ran it.
        """
        if len(runs) != 1 or any(runs[0].tensors[name] is not values[name] for name in runs[0].runner.arguments):
            return
        (run,) = runs
        if self.module is not None and run.plan.program is None:
            return
        trained = next((t for t in runner.trained.values() if t.forward is run.runner and t.training.wanted), None)
        if trained is not None and self.module is not None and not runner.native_node:
            return
        named = [*zip(self.parameters.names, args, strict=False), *kwargs.items()]
        inputs = self._inputs(run, [(name, value) for name, value in named if type(value) in _TENSORS], values)
        if inputs is None:
            return
        varying = [name for name, value in named if self.parameters.varies(name, value)]
        numbers = {name: i for i, name in enumerate(varying)}
        fixed = {name: value for name, value in scalars.items() if name not in numbers}
        visible = trained.public if trained is not None else len(run.results)
        lesson = Lesson(run, inputs, numbers, fixed, visible, one, trained, runner if trained is not None else None)
        self.caller.learn(args, kwargs, lesson if self.module is None else native_plan(self.module, lesson))

    def _inputs(self, run: Run, given: Sequence[tuple[str, Any]], values: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Which of the call's tensors the run's are. Where the op looks at its arguments itself, what it passed on
        shows only in their identity, so a tensor may not be there twice."""
        wanted = run.runner.arguments
        if not self.prepared:
            names = [name for name, _ in given]
            return tuple(map(names.index, wanted)) if set(wanted) <= set(names) else None
        found = [id(value) for _, value in given]
        asked = [id(values[name]) for name in wanted]
        if len(set(found)) < len(found) or not set(asked) <= set(found):
            return None
        return tuple(map(found.index, asked))


# -- in Python --------------------------------------------------------------------------------------------------------


class PythonCaller:
    """A caller in Python.

    Args:
        careful: the careful way: called with ``args`` and ``kwargs``, it teaches this caller by ``learn``.
        stays: also when the native module is there; otherwise the next call goes the careful way, which changes over.
    """

    def __init__(self, careful: Callable[..., Any], parameters: Parameters, *, stays: bool = False) -> None:
        self.careful, self.parameters, self.stays = careful, parameters, stays
        self.plans: OrderedDict[Any, Lesson] = OrderedDict()
        self.places = {name: i for i, name in enumerate(parameters.names)}

    def __len__(self) -> int:
        return len(self.plans)

    def clear(self) -> None:
        """Forget every plan."""
        self.plans.clear()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The op's results for these arguments."""
        read = self._read(args, kwargs) if self.stays or not native.is_found() else None
        lesson = None if read is None else self.plans.get(read[0])
        if read is None or lesson is None:
            return self.careful(args, kwargs)
        return _again(lesson, read[1], read[2])

    def learn(self, args: tuple[Any, ...], kwargs: dict[str, Any], lesson: Lesson) -> None:
        """What to do from now on for calls like this one."""
        read = self._read(args, kwargs)
        if read is not None:
            self.plans[read[0]] = replace(lesson, run=replace(lesson.run, tensors={}, results=[]))
            if len(self.plans) > MOST_PLANS:
                self.plans.popitem(last=False)

    def _read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], list[Any], list[Any]] | None:
        """(key, tensors, numbers); None for a call that must be judged with care."""
        flags = self.parameters.flags
        if len(args) > len(flags) or not _plain_dispatch():
            return None
        found: list[Any] = []
        numbers: list[Any] = []
        recording = torch.is_grad_enabled()
        key: list[Any] = [frameworks.torch().settings()]
        if torch._C._is_any_autocast_enabled():
            key.append(_autocast())
        places = range(len(args))
        if kwargs:
            if not kwargs.keys() <= self.places.keys():
                return None
            key.append(tuple(kwargs))
            places = [*places, *(self.places[name] for name in kwargs)]  # type: ignore[assignment]
            args = (*args, *kwargs.values())
        try:
            for place, value in zip(places, args, strict=True):
                kind = type(value)
                if kind in _TENSORS:
                    address = value.data_ptr()
                    if value.is_neg() or (not address and value.numel()):
                        return None
                    found.append(value)
                    place_of = address & 15, value.get_device(), recording and value.requires_grad
                    key += value.dtype, value.shape, value.stride(), place_of
                elif kind is float and flags[place] & FLOATS_VARY:
                    numbers.append(value)
                    key.append(float)
                elif (kind is int or kind is bool) and flags[place] & INTEGERS_VARY:
                    if not -(2**63) <= value < 2**63:
                        return None
                    numbers.append(value)
                    key.append(kind)
                else:
                    key.append(_constant(value))
        except (RuntimeError, _Unknown):  # no memory, no strides, no value: the careful way knows
            return None
        return tuple(key), found, numbers


class _Unknown(Exception):
    """A constant that cannot be compared."""


def _constant(value: Any) -> Any:
    kind = type(value)
    if kind is float:
        return float, value.hex()  # tells -0.0 from 0.0, and finds NaN again
    if kind is tuple:
        return tuple, *map(_constant, value)
    if kind not in _CONSTANTS:
        raise _Unknown
    return kind, value


def _autocast() -> tuple[Any, ...]:
    """What torch.autocast says in this thread: an op may compute in another dtype under it."""
    return tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))


def _plain_dispatch() -> bool:
    """No mode and no transform is active in this thread, and no tracer."""
    return (
        torch._C._len_torch_dispatch_stack() == 0
        and only_device_modes()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
        and not torch._C._is_tracing()
    )


def only_device_modes() -> bool:
    """Whether no ``__torch_function__`` mode would look at a call. ``torch.device`` as a context, and
    ``torch.set_default_device``, are modes that only functions without tensors ask."""
    modes = (torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack()))
    return all(type(mode) is DeviceContext for mode in modes)  # a class of the user's may do more


def _again(lesson: Lesson, found: list[Any], numbers: list[Any]) -> Any:
    run = lesson.run
    tensors_by_name = {name: found[at] for name, at in zip(run.runner.arguments, lesson.inputs, strict=True)}
    scalars = {name: numbers[at] for name, at in lesson.numbers.items()}
    scalars.update(lesson.fixed)
    if lesson.record is not None:
        results = lesson.record(tensors_by_name, scalars)
        return results[0] if lesson.one else tuple(results)
    results = run.runner.launch(run.plan, tensors_by_name, scalars, frameworks.torch(), None)
    return results[0] if lesson.one else tuple(results)


# -- natively ---------------------------------------------------------------------------------------------------------


def native_plan(module: Any, lesson: Lesson, gradient_of: Sequence[int] = ()) -> Any:
    """A lesson as a plan of the native module (its ``make_plan`` reads these words in this order)."""
    run, op = lesson.run, lesson.run.runner.op
    plan, between = run.plan, run.plan.between
    assert plan.program is not None
    steps = plan.program.steps
    layout = _Workspaces.of(plan.program.workspaces)
    fixed = [lesson.fixed[s.name] for s in op.scalars if s.name not in lesson.numbers]
    words = [*plan.target.native(), layout.size, len(lesson.inputs), *lesson.inputs]
    for _, shape, strides, _ in plan.results:
        words += [len(shape), *shape, len(strides), *strides, -1, -1]
    for tensor in between:
        words += [len(tensor.shape), *tensor.shape, len(tensor.strides), *tensor.strides]
        words += [tensor.first, tensor.last]
    words += [lesson.visible, int(lesson.one), len(gradient_of), *gradient_of, len(fixed)]
    for value in fixed:
        words += _number(value)
    slots = _slots(lesson, op.scalars, layout)
    words.append(len(steps))
    for step in steps:
        if isinstance(step, TorchStep):
            words += _product(step, slots)
            continue
        image, offsets = step.image()
        block = struct.unpack(f"={len(image) // 8}q", image[: len(image) // 8 * 8])
        loaded = cast(Launchable, step.loaded)
        words += [loaded.address, loaded.early, loaded.shared, *step.grid, *step.block, len(step.dynamic)]
        for name, code in zip(step.dynamic, _codes(step.format), strict=True):
            words += [*slots[name], ord(code)]
        words += [len(block), *block, len(offsets), *offsets]
    trained = lesson.trained
    if trained is not None:
        arguments, kept = trained.saved
        saves = [(0, run.runner.arguments.index(name)) for name in arguments] + [(1, at) for at in kept]
        words += [len(saves), *(word for save in saves for word in save)]
        words += [len(trained.differentiable), *trained.differentiable]

    def fail(at: int, code: int, message: str) -> None:
        launched = next((step for step in steps[at:] if not isinstance(step, TorchStep)), None)
        if launched is None:  # there are only products, and their device could not be entered
            raise DeviceError(op.name, given=f"CUDA's error {code}", expected="a working device", fix="see its driver")
        cast(Launchable, launched.loaded).fail(code, message)

    made = [*(dtype for *_, dtype in plan.results), *(tensor.dtype for tensor in between)]
    torch_dtypes = tuple(frameworks.torch().back[dtype] for dtype in made)
    title, backward = (None, None) if trained is None else (f"{op.name}Backward", Backward(module, lesson))
    return module.plan(native.plan_words(words), torch_dtypes, fail, title, backward)


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


def _slots(lesson: Lesson, scalars: Sequence[Scalar], layout: _Workspaces) -> dict[str, tuple[int, int, int]]:
    """(kind, index, byte offset) of everything that a launch's argument block lacks, by name."""
    run = lesson.run
    arguments = run.runner.arguments
    bases = [base for base, *_ in run.plan.results]
    found = {name: (_INPUT, index, 0) for index, name in enumerate(arguments)}
    found |= {name: (_RESULT, index, 0) for index, name in enumerate(bases)}
    found |= {slot.name: (_INPUT, arguments.index(slot.source), slot.offset) for slot in run.plan.inputs}
    found |= {slot.name: (_RESULT, bases.index(slot.source), slot.offset) for slot in run.plan.outputs}
    between = {tensor.name: (_RESULT, len(bases) + i, 0) for i, tensor in enumerate(run.plan.between)}
    assert len(between) == len(run.plan.between) and not between.keys() & found.keys(), "two tensors of one name"
    found |= between
    found |= {name: (_WORKSPACE, 0, offset) for name, offset in layout.offsets.items()}
    places = iter(range(len(scalars)))
    for scalar in scalars:
        index = lesson.numbers[scalar.name] if scalar.name in lesson.numbers else -1 - next(places)
        found[scalar.name] = (_NUMBER, index, 0)
    return found


# torch's numbers of the dtypes that products come in (c10::ScalarType).
_SCALAR_TYPES = {dtypes.float16: 5, dtypes.float32: 6, dtypes.float64: 7, dtypes.bfloat16: 15}
_CLOSINGS = {"": 0, "relu": 1, "gelu": 2, "bias": 3, "zero": 4, "copy": 5, ADDED: 6, "planned": 7, "fused": 8}


def _product(step: TorchStep, slots: Mapping[str, tuple[int, int, int]]) -> list[int]:
    """A matrix product: a null function, and its tensors."""
    words = [0, _CLOSINGS[step.closing], _SCALAR_TYPES[step.dtype], len(step.names), *step.words]
    for name, view in zip(step.names, step.views, strict=True):
        kind, index, offset = slots[name]
        offset += view.offset * step.dtype.size
        words += [kind, index, offset, len(view.shape), *view.shape, len(view.strides), *view.strides]
    return words


def _codes(form: str) -> list[str]:
    """One letter for each slot of a struct format: "<QQf4xd" has Q, Q, f and d."""
    return [letter for letter in form if letter in "Qfdq?"]


def _number(value: Any) -> tuple[int, int]:
    if isinstance(value, float):
        return ord("f"), struct.unpack("=q", struct.pack("=d", value))[0]
    return ord("b" if isinstance(value, bool) else "i"), int(value)


class Backward:
    """What a native node asks when it has no plan: the gradients, by the same code as without a native path."""

    def __init__(self, module: Any, lesson: Lesson) -> None:
        assert lesson.trained is not None
        self.module, self.trained = module, lesson.trained
        self.numbers, self.fixed = dict(lesson.numbers), dict(lesson.fixed)
        values = lesson.run.tensors
        self.layout = tuple((n, tuple(values[n].shape), values[n].stride()) for n in self.trained.training.wanted)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in values.items()}

    def __call__(
        self, plan: Any, needed: list[bool], saved: list[Any], cotangents: list[Any], numbers: list[Any],
        places: list[Any],
    ) -> Sequence[Any]:  # fmt: skip
        """A gradient or None for each argument that the forward reads, in order (``Trained.gradients_of``)."""
        scalars = self.fixed | {name: numbers[at] for name, at in self.numbers.items()}
        names = self.trained.forward.arguments
        wanted = self.trained.training.wanted
        asked = frozenset(name for name, is_needed in zip(names, needed, strict=True) if is_needed and name in wanted)
        with watch() as runs:
            gradients = self.trained.gradients_of(saved, cotangents, self.layout, self.shapes, scalars, asked, places)
        lean = self.trained.lean(cotangents, asked)
        if not torch.is_grad_enabled():
            computed = [None if name in lean.shared else g for name, g in zip(names, gradients, strict=True)]
            backward = self._plan(saved, cotangents, computed, places, runs) if lean.op.outputs else None
            if backward is not None or not lean.op.outputs:
                elsewhere = [(names.index(n), 0, at) for n, at in lean.handed_on.items()]
                elsewhere += [(names.index(n), 1, names.index(other)) for n, other in lean.shared.items()]
                self.module.learn_backward(plan, needed, saved, cotangents, numbers, places, backward, elsewhere)
        return gradients

    def _plan(
        self, saved: list[Any], cotangents: list[Any], gradients: Sequence[Any], places: Sequence[Any],
        runs: Sequence[Run],
    ) -> Any:  # fmt: skip
        """The native plan of a backward, told by which tensor went where; None where that does not tell."""
        if len(runs) != 1 or runs[0].plan.program is None:
            return None
        (run,) = runs
        given, read = self.trained.read_backward(saved, cotangents), run.runner.arguments
        if any(run.tensors[name] is not given.get(name) for name in read):
            return None
        goes_to = {id(place): -2 - i for i, place in enumerate(places) if place is not None}  # fusegen_native_node.h
        goes_to |= {id(gradient): i for i, gradient in enumerate(gradients) if gradient is not None}
        made = [id(result) for result in run.results]
        lesson = Lesson(run, tuple(map(list(given).index, read)), self.numbers, self.fixed, len(made), False, None)
        return native_plan(self.module, lesson, [goes_to.get(m, -1) for m in made])

"""The whole compiler on one screen.

    declaration --trace--> Op --gradient--> Op --lower--> Op --group--> Kernels --schedule--> --render--> CUDA --load-->

Each stage is a function from one printable thing to the next; ``stages`` shows them all for one op and layout.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusegen.core.check import check_op
from fusegen.core.ir import Op, Output
from fusegen.core.serialize import op_from_json, op_to_json
from fusegen.derive.lower import lower
from fusegen.derive.training import Training, kept_as_op, kept_from_op, train
from fusegen.fuse.group import Kernel, group
from fusegen.fuse.schedule import Buffer, Launch, Schedule, schedule
from fusegen.generate.render import Rendered, render
from fusegen.launch.memo import is_memorable, remember
from fusegen.launch.program import Program, Target, Workspace, make_steps


@dataclass(frozen=True)
class Layout:
    """Where an op's tensors lie: elements along each axis, and strides of every operand and output by axis."""

    sizes: Mapping[str, int]
    buffers: Mapping[str, Buffer]


@dataclass
class Compiled:
    """An op and its kernels. Text is kept per schedule, so that shapes of one pattern share it."""

    op: Op
    lowered: Op
    kernels: tuple[Kernel, ...]
    texts: dict[tuple[int, Schedule], Rendered] = field(default_factory=dict)

    def rendered(self, position: int, plan: Schedule) -> Rendered:
        key = (position, plan)
        if key not in self.texts:
            self.texts[key] = self._render(position, plan)
        return self.texts[key]

    def _render(self, position: int, plan: Schedule) -> Rendered:
        kernel = self.kernels[position]
        if not is_memorable(self.op):
            return render(kernel, plan)

        def texts() -> list[str]:
            made = render(kernel, plan)
            return [made.text, made.entry, made.finish or "", "barriers" if made.barriers else "", *made.headers]

        found = remember("render", (op_to_json(self.op), str(position), repr(plan)), texts)
        return Rendered(found[0], found[1], found[2] or None, bool(found[3]), tuple(found[4:]))


@dataclass(frozen=True)
class Planned:
    """A kernel with its schedule, the numbers of one launch, and its text."""

    kernel: Kernel
    schedule: Schedule
    launch: Launch
    rendered: Rendered


_compiled: dict[Op, Compiled] = {}
_lock = threading.Lock()


def compile_op(op: Op) -> Compiled:
    """Everything about an op that does not depend on sizes."""
    found = _compiled.get(op)
    if found is None:
        check_op(op)
        lowered = lower(op)
        check_op(lowered)
        found = Compiled(op, lowered, group(lowered))
        with _lock:
            found = _compiled.setdefault(op, found)
    return found


def train_op(op: Op, wanted: tuple[str, ...]) -> Training:
    """What ``op`` keeps for its backward (derive/training); the derivation is remembered between processes."""
    if not is_memorable(op):
        return train(op, wanted)

    def texts() -> list[str]:
        training = train(op, wanted)
        return [op_to_json(training.forward), op_to_json(kept_as_op(op, training.kept))]

    forward, kept = remember("train", (op_to_json(op), *wanted), texts)
    return Training(op_from_json(forward), len(op.outputs), wanted, kept_from_op(op_from_json(kept)))


def backward_op(training: Training, given: Sequence[int]) -> Op:
    """The backward for the outputs that have a cotangent; the derivation is remembered between processes."""
    if not isinstance(training, Training) or not is_memorable(training.forward):
        return training.backward(given)
    kept = op_to_json(kept_as_op(training.forward, training.kept))
    parts = (op_to_json(training.forward), kept, *training.wanted, "given", *map(str, given))
    (text,) = remember("backward", parts, lambda: [op_to_json(training.backward(given))])
    return op_from_json(text)


def plan(op: Op, layout: Layout) -> list[Planned]:
    """The kernels of ``op`` for one layout, as text."""
    compiled = compile_op(op)
    buffers = {**layout.buffers, **_temporary_buffers(compiled.kernels, layout)}
    planned = []
    for position, kernel in enumerate(compiled.kernels):
        own = {thing.name: buffers[thing.name] for thing in (*kernel.tensors, *kernel.written)}
        chosen, launch = schedule(kernel, layout.sizes, own)
        planned.append(Planned(kernel, chosen, launch, compiled.rendered(position, chosen)))
    return planned


def build(op: Op, layout: Layout, target: Target) -> Program:
    """The loaded program of ``op`` for one layout on one target."""
    steps, workspaces = [], _temporaries(compile_op(op).kernels, layout)
    for item in plan(op, layout):
        made, needed = make_steps(item.kernel, item.schedule, item.launch, item.rendered, target)
        steps += made
        workspaces += needed
    return Program(steps, workspaces)


def _temporary_outputs(kernels: Sequence[Kernel]) -> dict[str, Output]:
    """Reduction results that one kernel stores and another reads."""
    real = {output.name for kernel in kernels for output in kernel.op.outputs}
    return {o.name: o for kernel in kernels for o in kernel.outputs if o.name not in real}


def _temporary_buffers(kernels: Sequence[Kernel], layout: Layout) -> dict[str, Buffer]:
    return {
        name: Buffer(output.dtype, contiguous(output.shape, layout.sizes))
        for name, output in _temporary_outputs(kernels).items()
    }


def _temporaries(kernels: Sequence[Kernel], layout: Layout) -> list[Workspace]:
    found = []
    for name, output in _temporary_outputs(kernels).items():
        elements = 1
        for axis in output.shape:
            elements *= layout.sizes[axis] if axis else 1
        found.append(Workspace(name, output.dtype, elements))
    return found


def contiguous(shape: Sequence[str | None], sizes: Mapping[str, int]) -> dict[str, int]:
    """Row-major strides by axis."""
    strides: dict[str, int] = {}
    step = 1
    for axis in reversed(shape):
        if axis:
            strides[axis] = step
            step *= sizes[axis]
    return strides


def dense_layout(op: Op, sizes: Mapping[str, int]) -> Layout:
    """Everything row-major and aligned; packed tensors and their parts as they lie."""
    buffers: dict[str, Buffer] = {}
    for thing in (*op.operands, *op.outputs):
        strides = contiguous(thing.shape, sizes)
        if thing.part:
            dim = thing.part.dim
            strides = {
                axis: stride * (thing.part.count if thing.shape.index(axis) < dim else 1)
                for axis, stride in strides.items()
            }
        buffers[thing.name] = Buffer(thing.dtype, strides)
    return Layout(sizes, buffers)

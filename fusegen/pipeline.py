"""The compiler, from a declaration to a loaded kernel.

    declaration --trace--> Op --gradient--> Op --lower--> Op --group--> Kernels
        --schedule--> Schedule, Launch --render--> CUDA --load-->

Each stage is a function from one printable thing to the next; `inspect.passes.show`
prints them all for one op and layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from fusegen.core.ir import Op, Reduce, names_read
from fusegen.core.locks import cached_property
from fusegen.core.recent import Recent
from fusegen.core.serialize import op_from_json, op_to_json, saved_from_json, saved_to_json
from fusegen.core.within import unreported
from fusegen.declare.check import check_op
from fusegen.derive.exact import as_written
from fusegen.derive.gradient import gradient
from fusegen.derive.lower import lower
from fusegen.derive.tangent import tangent
from fusegen.derive.training import Training, train
from fusegen.derive.value_and_grad import value_and_gradient
from fusegen.fuse import kernel_time
from fusegen.fuse.check import check_kernels
from fusegen.fuse.choices import NOTHING_CHOSEN, OF_THE_OP, Choices, Chosen
from fusegen.fuse.group import group, group_by_other_rows, group_by_rows, group_by_strided_rows
from fusegen.fuse.kernel import Gathered, Kernel
from fusegen.fuse.row_kernel import RowKernel, as_row_kernel
from fusegen.fuse.rows_schedule import Chip, schedule_rows
from fusegen.fuse.schedule import IN_TABLE, Buffer, Launch, Schedule, contiguous, schedule
from fusegen.fuse.strided_rows import StridedRowKernel, schedule_strided_rows
from fusegen.fuse.work import work_of_op
from fusegen.generate.rendered import Rendered
from fusegen.launch.memo import is_memorable, remember
from fusegen.launch.program import KernelLaunch, Program, Target, Workspace, make_steps

HOPPER = Chip()
# What is chosen of an op as a whole (fuse/choices): which of the sets of kernels that fit; and of a kernel that could
# do without, whether it goes by rows.
KERNELS, BY_ROWS = "kernels", "by_rows"
# The first candidate that fits is taken unless another one has clearly less to do. Others are not even made where it
# takes hardly more than anything could, or so few microseconds that launches count for more: small sizes share a text.
CLEARLY, WORTH_A_LOOK, SHORT = 0.85, 1.25, 8.0
# Nor of an op of more reductions: there are as many candidates, each of as many kernels.
MOST_COMPARED = 12
# Texts of one op that are kept: one for each schedule, which depends on how tensors lie, and seldom on sizes.
_MOST_TEXTS = 1024


@dataclass(frozen=True)
class Layout:
    """Where an op's tensors lie: elements along each axis, and strides of every operand and output by axis.

    A step behind a matrix product ``follows`` it, and reads ``fresh`` operands that steps before it have written.
    """

    sizes: Mapping[str, int]
    buffers: Mapping[str, Buffer]
    follows: bool = False
    fresh: frozenset[str] = frozenset()


@dataclass
class Compiled:
    """An op and its kernels. Text is kept per schedule, so that shapes of one pattern share it.

    ``by_rows``: the kernels for layouts in which a row of the reductions fits on the chip, the best candidate first.
    ``by_strided_rows``: the same where the elements of a row are strided, and rows lie side by side.
    ``by_other_rows``: those of the first kind with other axes for rows.
    """

    op: Op
    lowered: Op
    texts: Recent[tuple[str, Schedule], Rendered] = field(default_factory=lambda: Recent(_MOST_TEXTS))

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        return self._checked(group(self.lowered))

    @cached_property
    def by_rows(self) -> tuple[tuple[Kernel, ...], ...]:
        return tuple(map(self._checked, group_by_rows(self.lowered)))

    @cached_property
    def by_strided_rows(self) -> tuple[Kernel, ...] | None:
        kernels = group_by_strided_rows(self.lowered) if self.by_rows else None
        return kernels and self._checked(kernels)

    @cached_property
    def by_other_rows(self) -> tuple[tuple[Kernel, ...], ...]:
        found = dict.fromkeys(group_by_other_rows(self.lowered)) if self.by_rows else {}
        return tuple(self._checked(kernels) for kernels in found if kernels not in self.by_rows)

    @cached_property
    def text(self) -> str | None:
        """The op as text, by which kernels' text is remembered between processes, where it may be."""
        return op_to_json(self.op) if is_memorable(self.op) else None

    def _checked(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        check_kernels(self.lowered, kernels)
        return kernels

    def candidates(self) -> Iterator[tuple[Kernel, ...]]:
        """The kernels that the op may be fused into, in the order in which they are tried: the last candidate fits
        every layout. A candidate is made when it is asked for. The last one is costly to make: it has a kernel for
        each reduction, and each kernel computes anew what the others have."""
        yield from self.by_rows
        if self.by_strided_rows:
            yield self.by_strided_rows
        yield from self.by_other_rows
        yield self.kernels

    def least(self, sizes: Mapping[str, int]) -> float:
        """What any candidate takes at least."""
        op = self.lowered
        needed = names_read([*op.statements, *op.outputs])
        things = [*(operand for operand in op.operands if operand.name in needed), *op.outputs]
        return kernel_time.at_least(things, work_of_op(op, sizes), sizes)

    def rendered(self, kernel: Kernel, plan: Schedule, candidate: int) -> Rendered:
        """The text of a kernel of a candidate. Kernels of two candidates may be of one class and name."""
        key = (f"{type(kernel).__name__} {kernel.name} of candidate {candidate}", plan)
        found = self.texts.get(key)
        return found if found is not None else self.texts.setdefault(key, self._render(kernel, plan, key[0]))

    def _render(self, kernel: Kernel, plan: Schedule, which: str) -> Rendered:
        if self.text is None:
            return _render(kernel, plan)
        parts = (self.text, which, repr(plan))
        return Rendered.from_fields(remember("render", parts, lambda: _render(kernel, plan).to_fields()))


def _render(kernel: Kernel, plan: Schedule) -> Rendered:
    from fusegen.generate.render import render  # and with it the printers, which a warm start does not need

    return render(kernel, plan)


@dataclass(frozen=True)
class ScheduledKernel:
    """A kernel with its schedule, the numbers of one launch, and its text."""

    kernel: Kernel
    schedule: Schedule
    launch: Launch
    rendered: Rendered


_compiled: Recent[Op, Compiled] = Recent(2048)
_backwards: Recent[tuple[Training, tuple[int, ...]], Op] = Recent(2048)


def compile_op(op: Op) -> Compiled:
    """Everything about an op that does not depend on sizes."""
    found = _compiled.get(op)
    if found is None:
        check_op(op)
        lowered = as_written(_checked(lower(op)))
        check_op(lowered)
        found = _compiled.setdefault(op, Compiled(op, lowered))
    return found


def train_op(op: Op, wanted: tuple[str, ...]) -> Training:
    """What ``op`` saves for its backward (derive/training); the derivation is remembered between processes."""
    if not is_memorable(op):
        return _checked_training(train(op, wanted))

    derived: list[Op | None] = []  # in this process: the backward is asked for next

    def texts() -> list[str]:
        training = _checked_training(train(op, wanted))
        derived.append(training.derived)
        return [op_to_json(training.forward), saved_to_json(training.saved)]

    forward, saved = remember("train", (op_to_json(op), *wanted), texts)
    found = Training(op_from_json(forward), len(op.outputs), wanted, saved_from_json(saved))
    return replace(found, derived=derived[-1]) if derived else found


def _checked(op: Op) -> Op:
    check_op(op)
    return op


def _checked_training(training: Training) -> Training:
    check_op(training.forward)
    return training


def backward_op(training: Training, given: Sequence[int]) -> Op:
    """The backward for the outputs that have a cotangent; the derivation is remembered between processes.

    A training's first backward is asked for several times, by what is saved and by what is pruned. To find it on disk
    takes the texts of two ops, so this process remembers it too; nothing does where a function is a user's own.
    """
    if not is_memorable(training.forward):
        return _checked(training.backward(given))
    key = training, tuple(given)
    found = _backwards.get(key)
    return found if found is not None else _backwards.setdefault(key, _backward_op(*key))


def _backward_op(training: Training, given: tuple[int, ...]) -> Op:
    parts = (op_to_json(training.forward), saved_to_json(training.saved), *training.wanted, "given", *map(str, given))
    (text,) = remember("backward", parts, lambda: [op_to_json(_checked(training.backward(given)))])
    return op_from_json(text)


def tangent_op(op: Op, wanted: tuple[str, ...]) -> Op:
    """The tangents of ``op``, given those of ``wanted``; the derivation is remembered between processes."""
    return _derived("tangent", op, wanted, lambda: unreported(tangent(op, gradient(op, wanted))))


def gradient_op(op: Op, wanted: tuple[str, ...], given: Sequence[int]) -> Op:
    """The gradients of ``wanted`` by themselves, without what a forward saved; the derivation is remembered between
    processes.
    """
    parts = (*wanted, "given", *map(str, given))
    return _derived("gradient", op, parts, lambda: unreported(gradient(op, wanted, given)))


def value_and_grad_op(op: Op, wanted: tuple[str, ...], given: Sequence[int]) -> Op:
    """``op`` and the gradients of ``wanted`` in one (derive/value_and_grad); the derivation is remembered between
    processes.
    """
    parts = (*wanted, "given", *map(str, given))
    return _derived("value_and_grad", op, parts, lambda: value_and_gradient(op, wanted, given))


def _derived(kind: str, op: Op, parts: tuple[str, ...], derive: Callable[[], Op]) -> Op:
    """What ``derive`` makes of ``op``, remembered by the op's text and ``parts``; not where functions are a user's."""
    if not is_memorable(op):
        return _checked(derive())
    (text,) = remember(kind, (op_to_json(op), *parts), lambda: [op_to_json(_checked(derive()))])
    return op_from_json(text)


@dataclass(frozen=True)
class ScheduledOp:
    """The kernels of an op for one layout, the memory in which they hand each other results, and what was chosen."""

    kernels: tuple[ScheduledKernel, ...]
    workspaces: tuple[Workspace, ...]
    choices: Choices


def plan(op: Op, layout: Layout, chip: Chip = HOPPER) -> list[ScheduledKernel]:
    """The kernels of ``op`` for one layout, as text."""
    return list(plan_op(op, layout, chip).kernels)


def plan_op(op: Op, layout: Layout, chip: Chip = HOPPER, chosen: Chosen = NOTHING_CHOSEN) -> ScheduledOp:
    """The same with what lies between the kernels.

    Args:
        chosen: what to do otherwise than schedules do by themselves (fuse/choices).
    """
    compiled, found, settled = compile_op(op), list[_Sketch](), False
    wanted = chosen.get(OF_THE_OP, {}).get(KERNELS, 0)
    for at, kernels in enumerate(compiled.candidates()):
        sketch = _sketched(compiled, at, kernels, layout, chip, chosen)
        if sketch:
            found.append(sketch)
            if len(found) == 1:
                settled = not compiled.by_rows or _is_good(sketch, compiled)
        if settled and len(found) > wanted:
            break
    own = which = 0 if settled else _best(found)
    if compiled.by_rows:  # how many fit is not known before they are made
        options = range(len(found) + 1)
        which = min(found[own].choices.of(OF_THE_OP).take(KERNELS, own, options), len(found) - 1)
        found[which].choices.made[OF_THE_OP] = found[own].choices.made[OF_THE_OP]
    return found[which].rendered(compiled)


def _is_good(sketch: _Sketch, compiled: Compiled) -> bool:
    """Whether there is little to gain, by what it takes, or much to do to find out."""
    reduces = sum(isinstance(statement, Reduce) for statement in compiled.lowered.statements)
    if reduces > MOST_COMPARED or sketch.working < SHORT:
        return True
    return sketch.microseconds < WORTH_A_LOOK * compiled.least(sketch.sizes)


def _best(sketches: Sequence[_Sketch]) -> int:
    """The first one, in which most is fused, if none has clearly less to do in fewer microseconds."""
    best = min(range(len(sketches)), key=lambda at: sketches[at].microseconds)
    return best if sketches[best].working < CLEARLY * sketches[0].working else 0


def plan_in_table(op: Op, layout: Layout, chip: Chip = HOPPER) -> ScheduledKernel | None:
    """The kernel of ``op`` for one layout, as text whose launches are for many tensors (generate/table). None for what
    takes several kernels, or one of a shape that has no such text."""
    compiled = compile_op(op)
    for at, kernels in enumerate(compiled.candidates()):
        if len(kernels) == 1 and (
            found := _sketched(compiled, at, kernels, layout, chip, NOTHING_CHOSEN, in_table=True)
        ):
            return found.rendered(compiled).kernels[0]
    return None


@dataclass(frozen=True)
class _Sketch:
    """What `ScheduledOp` has, before there is any text: ``candidate`` is the place among those of its op."""

    candidate: int
    scheduled: tuple[tuple[Kernel, Schedule, Launch], ...]
    workspaces: tuple[Workspace, ...]
    choices: Choices
    sizes: Mapping[str, int]

    @cached_property
    def working(self) -> float:
        """Microseconds of its kernels, about, without what launches add."""
        return sum(kernel_time.working(*each, self.sizes) for each in self.scheduled)

    @property
    def microseconds(self) -> float:
        """The same with that: one kernel after the other."""
        return self.working + sum(kernel_time.launching(schedule) for _, schedule, _ in self.scheduled)

    def rendered(self, compiled: Compiled) -> ScheduledOp:
        """With the text of each kernel."""
        kernels = tuple(ScheduledKernel(*each, compiled.rendered(*each[:2], self.candidate)) for each in self.scheduled)
        return ScheduledOp(kernels, self.workspaces, self.choices)


def _sketched(
    compiled: Compiled, candidate: int, kernels: Sequence[Kernel], layout: Layout, chip: Chip, chosen: Chosen,
    in_table: bool = False,
) -> _Sketch | None:  # fmt: skip
    """None where a row kernel does not fit the layout, or a kernel has no text that launches take ``in_table``."""
    choices = Choices(chosen)
    real = {output.name for output in compiled.op.outputs}
    sizes, buffers = dict(layout.sizes), dict(layout.buffers)
    planned: list[tuple[Kernel, Schedule, Launch]] = []
    workspaces: list[Workspace] = []
    for kernel in kernels:
        between = [o for o in kernel.outputs if o.name not in real]
        buffers.update({o.name: Buffer(o.dtype, contiguous(o.shape, sizes)) for o in between})
        own = {thing.name: buffers[thing.name] for thing in (*kernel.tensors, *kernel.written)}
        own |= {gathered.name: _lying(gathered, buffers[gathered.table.name]) for gathered in kernel.gathered}
        scheduled = _scheduled(kernel, sizes, own, chip, choices)
        if scheduled is None:
            return None
        kernel, plan, launch = scheduled
        read = (*kernel.tensors, *(gathered.table for gathered in kernel.gathered))
        fresh = tuple(dict.fromkeys(operand.name for operand in read if operand.name in layout.fresh))
        # A kernel that has nothing to do is not launched, so that none follows it.
        follows = layout.follows or any(not before.empty for _, _, before in planned)
        plan = replace(plan, follows=follows, fresh=fresh)
        if in_table:
            if not isinstance(plan, IN_TABLE):
                return None
            plan = replace(plan, table=True)
        sizes.update(launch.partial_sizes)
        for o in kernel.partials:
            order = sorted((a for a in o.shape if a), key=lambda a: launch.order.index(a) if a in launch.order else -1)
            buffers[o.name] = Buffer(o.dtype, contiguous(order, sizes))
        for o in (*between, *kernel.partials):
            workspaces.append(Workspace(o.name, o.dtype, prod(sizes[a] for a in o.shape if a)))
        planned.append((kernel, plan, launch))
    return _Sketch(candidate, tuple(planned), tuple(workspaces), choices, sizes)


def _scheduled(
    kernel: Kernel, sizes: Mapping[str, int], buffers: Mapping[str, Buffer], chip: Chip, choices: Choices
) -> tuple[Kernel, Schedule, Launch] | None:
    """How to walk, by rows where that is possible; None where a kernel that must go by rows does not fit."""
    row = kernel if isinstance(kernel, RowKernel) else as_row_kernel(kernel)
    own = choices.of(kernel.name)
    fitting: tuple[Schedule, Launch] | None
    if isinstance(row, StridedRowKernel):
        fitting = schedule_strided_rows(row, sizes, buffers, own)
    else:
        fitting = schedule_rows(row, sizes, buffers, chip, own) if row else None
    if row is kernel:
        return (kernel, *fitting) if fitting else None
    if row and fitting and own.ask(BY_ROWS, True):
        return row, *fitting
    own = choices.of(kernel.name)
    if fitting:
        own.ask(BY_ROWS, True)
    return kernel, *schedule(kernel, sizes, buffers, own)


def _lying(gathered: Gathered, table: Buffer) -> Buffer:
    """A table as it is seen at one place along its axes: how far apart places lie are numbers of their own. Where a
    place is a position, shifted, an element lies as far on as places do."""
    told = {axis for axis, _ in gathered.places}
    strides = {gathered.step(axis) if axis in told else axis: stride for axis, stride in table.strides.items()}
    for axis, (along, _) in gathered.shifts.items():
        if along is not None:
            strides[along] = strides.get(along, 0) + table.strides[axis]
    return replace(table, strides=strides)


def build(op: Op, layout: Layout, target: Target, chosen: Chosen = NOTHING_CHOSEN) -> Program:
    """The loaded program of ``op`` for one layout on one target."""
    return loaded(plan_op(op, layout, target.chip, chosen), target)


def loaded(planned: ScheduledOp, target: Target) -> Program:
    """Its kernels compiled and loaded."""
    steps: list[KernelLaunch] = []
    workspaces = list(planned.workspaces)
    for item in planned.kernels:
        made, needed = make_steps(item.kernel, item.schedule, item.launch, item.rendered, target)
        steps += made
        workspaces += needed
    return Program(steps, workspaces)

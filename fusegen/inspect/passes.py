"""Looking inside: every stage of an op as text, and the CUDA of one pass, without running anything.

Arguments are real tensors, whose strides count, or ``TensorSpec`` in their place, which stands for a contiguous tensor.
What is shown is what a call with gradients would run: the backward reads what the forward has saved.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Protocol

from fusegen import pipeline
from fusegen.core.declared import without_declared_gradients
from fusegen.core.errors import DerivativeError
from fusegen.core.ir import Let, Op, Operand, Output, Reduce, Scalar, Tensorlike
from fusegen.core.products import contracted_sizes
from fusegen.core.text import expr_text, op_text, reduce_text, shape_text
from fusegen.declare.op import Declaration
from fusegen.declare.trace import TensorSpec
from fusegen.derive.gradient import GradientNames, operands_read
from fusegen.derive.reach import reached
from fusegen.derive.tangent import tangent_names
from fusegen.fuse.kernel import Kernel
from fusegen.fuse.products import chain
from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.schedule import Buffer, Launch, Placement
from fusegen.fuse.step_text import product_text
from fusegen.fuse.steps import Chain, Product, Scan, Scatter
from fusegen.generate.rendered import Rendered, apart, one_file
from fusegen.generate.scan_programs import scan_program
from fusegen.generate.wording import explain, in_memory, starts_early
from fusegen.kernel_program.nodes import KernelProgram
from fusegen.matmul.padding import padded_strides
from fusegen.plan import entry
from fusegen.plan.backward import prune_backward, result_names
from fusegen.plan.frameworks import TensorInfo
from fusegen.plan.layout import row_major
from fusegen.plan.targets import chip_of
from fusegen.run.libraries import notes
from fusegen.run.runner import Runner
from fusegen.run.scan_step import PlannedScan, plan_scan
from fusegen.run.scatter_step import Planned, plan_scatter

# What a kernel behind a matrix product starts behind: the library's kernel, which has no name here.
THE_PRODUCT = "the matrix product before it"
PASSES = ("forward", "backward", "double-backward", "tangent")


class Inspected(Protocol):
    """A declared op (fused_op), as far as looking at it goes."""

    declaration: Declaration
    runs: str

    @property
    def name(self) -> str: ...
    def trace(self, /, *args: Any, **kwargs: Any) -> Op: ...


@dataclass(frozen=True)
class Pass:
    """One Op with the layout of everything it reads and writes.

    Attributes:
        tensors: arguments and results by name (a packed one by its own name).
        saved: results that the forward writes for its backward only.
        same: gradients that are the tensor of a cotangent, or of another gradient, and which: no kernel writes them.
        chip: what kernels may count on.
        by_torch: torch does the matrix products, which can add a bias before it rounds.
    """

    op: Op
    tensors: Mapping[str, TensorInfo]
    layout: pipeline.Layout
    saved: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    chip: Chip = pipeline.HOPPER
    by_torch: bool = True

    @classmethod
    def of(
        cls, op: Op, given: Mapping[str, TensorInfo], sizes: Mapping[str, int], like: Mapping[str, TensorInfo]
    ) -> Pass:
        """Lay out ``op`` for these arguments as a call would.

        Args:
            like: for a result by name, the tensor whose strides it takes: a gradient's operand.
        """
        strides = {name: (info.shape, info.strides) for name, info in like.items()}
        lies = Runner(op, sizes, strides).lay_out(given)
        made = {name: TensorInfo(shape, steps, dtype, 0, "cpu") for name, shape, steps, dtype in lies.results}
        return cls(op, {**given, **made}, lies.layout)

    @property
    def chain(self) -> Chain | None:
        """The op cut at its matrix products; None where it has none."""
        return chain(self.op, adds_biases=self.by_torch)

    @property
    def kernels(self) -> list[pipeline.ScheduledKernel]:
        return [planned for part in self.fused_passes for planned in pipeline.plan(part.op, part.layout, part.chip)]

    @property
    def fused_passes(self) -> list[Pass]:
        """The pass itself; of an op with matrix products, what runs before, between and behind them."""
        cut = self.chain
        if cut is None:
            return [self] if self.op.outputs else []
        tensors = {**self.tensors, **self._intermediates(cut)}
        found: list[Pass] = []
        fresh: set[str] = set()
        for place, step in enumerate(cut.steps):
            if isinstance(step, Product):
                fresh.add(step.result)
                continue
            given = {operand.base: tensors[operand.base] for operand in step.operands}
            part = Pass.of(step, given, self.layout.sizes, {o.base: tensors[o.base] for o in step.outputs})
            layout = replace(part.layout, follows=place > 0, fresh=frozenset(fresh))
            found.append(replace(part, layout=layout, chip=self.chip))
            fresh |= {output.name for output in step.outputs}
        return found

    def _intermediates(self, cut: Chain) -> dict[str, TensorInfo]:
        """What lies between the steps of an op with matrix products, as on a GPU where torch does them."""
        found: dict[str, TensorInfo] = {}
        for tensor in cut.intermediates:
            shape = tuple(self.layout.sizes[axis] for axis in tensor.shape if axis)
            device = "cuda" if self.by_torch else "cpu"  # where sizes are rounded up
            strides = padded_strides(cut, tensor, self.layout.sizes, device)
            found[tensor.name] = TensorInfo(shape, strides, tensor.dtype, 0, "cpu")
        return found

    def with_intermediates(self, cut: Chain) -> Pass:
        """The same with what lies between steps, and the axes that only products have, laid out as well."""
        tensors = self._intermediates(cut)
        buffers = dict(self.layout.buffers)
        for operand in cut.intermediates:
            steps = zip(filter(None, operand.shape), tensors[operand.name].strides, strict=True)
            buffers[operand.name] = Buffer(operand.dtype, dict(steps))
        layout = replace(self.layout, sizes=contracted_sizes(self.op, self.layout.sizes), buffers=buffers)
        return replace(self, tensors={**self.tensors, **tensors}, layout=layout)

    def bytes_of(self, thing: Tensorlike) -> int:
        """Bytes of the distinct elements of a tensor: those along a stride of zero are one."""
        strides = self.layout.buffers[thing.name].strides
        axes = [axis for axis in thing.shape if axis]
        sizes = [self.layout.sizes[axis] for axis in axes if strides.get(axis, 0) or not self.layout.sizes[axis]]
        return prod(sizes) * thing.dtype.size

    def on(self, archs: Iterable[str]) -> Pass:
        """The same for GPUs of these architectures, such as "sm_80": with what all of them have."""
        chips = [chip_of(arch) for arch in archs]
        return replace(self, chip=Chip(min(c.cluster for c in chips), min(c.shared for c in chips)))

    @property
    def text(self) -> str:
        """The CUDA of all its kernels as one file, and what is done without any."""
        between = self.kernels_between
        remarks = [product_text(step) for step, kernels in between if not kernels]
        remarks += [f"{gradient} = {tensor}, the same tensor" for gradient, tensor in self.same.items()]
        launched = [product_text(step) for step, kernels in between if kernels]
        kinds = {"scans" if isinstance(step, Scan) else "scatters": None for step, kernels in between if kernels}
        title = f"// {self.op.name}, {self.op.label}: "
        comment = "".join([title, "without a kernel\n", *map(_comment, remarks)]) if remarks else ""
        if launched:
            comment += "".join([title, f"{' and '.join(kinds)} by kernels of their own\n", *map(_comment, launched)])
        return one_file(self.launched, comment)

    @property
    def entries(self) -> tuple[str, ...]:
        """The kernels that are in its text."""
        return tuple(entry for kernel in self.launched for entry in (kernel.entry, kernel.finish) if entry)

    @property
    def launched(self) -> list[Rendered]:
        """The texts of its kernels in the order of launches, each once."""
        cut = self.chain
        if cut is None:
            return [item.rendered for item in self.kernels]
        renamed = {kernel.text: own for kernel, own in zip(self._texts_between, self.between, strict=True)}
        fused, between = iter(self.fused_passes), iter(self.kernels_between)
        found: list[Rendered] = []
        for step in cut.steps:
            if isinstance(step, Op):
                part = next(fused)
                found += [item.rendered for item in pipeline.plan(part.op, part.layout, part.chip)]
            else:
                found += [renamed[kernel.text] for kernel in next(between)[1]]
        return list({kernel.text: kernel for kernel in found}.values())

    @property
    def between(self) -> list[Rendered]:
        """The kernels of its scans and scatters, in order, each text once."""
        return apart(self._texts_between)

    @property
    def _texts_between(self) -> list[Rendered]:
        """The same, some of which may have one name."""
        return list({kernel.text: kernel for _, kernels in self.kernels_between for kernel in kernels}.values())

    @property
    def kernels_between(self) -> list[tuple[Product, tuple[Rendered, ...]]]:
        """The steps that are no ops, and the kernels that those have which are no products."""
        return [(step, planned.kernels if planned else ()) for step, planned in self._planned_between]

    @property
    def programs_between(self) -> list[tuple[str, KernelProgram]]:
        """The programs of its scans' and scatters' kernels, each with the name that the kernel has in `text`."""
        names = {own.text: kernel.entry for own, kernel in zip(self._texts_between, self.between, strict=True)}
        found = dict[str, KernelProgram]()  # by name
        for _, planned in self._planned_between:
            if isinstance(planned, PlannedScan):
                for stage, kernel in zip(planned.schedule.stages, planned.kernels, strict=True):
                    found.setdefault(names[kernel.text], scan_program(planned.schedule, stage))
            elif planned is not None:
                for program, kernel in zip(planned.programs, planned.kernels, strict=False):
                    found.setdefault(names[kernel.text], program)
        return list(found.items())

    @property
    def _planned_between(self) -> list[tuple[Product, PlannedScan | Planned | None]]:
        """The steps that are no ops, and what is planned of those that have kernels."""
        cut = self.chain
        if cut is None:
            return []
        layout, found = self.with_intermediates(cut).layout, list[tuple[Product, PlannedScan | Planned | None]]()
        buffers = layout.buffers
        for place, step in enumerate(cut.steps):
            if isinstance(step, Scan):
                names = (*(source.name for source in step.sources), *step.writes)
                lying = [(buffers[name].dtype, buffers[name].strides, buffers[name].alignment) for name in names]
                found.append((step, plan_scan(step, layout.sizes, lying, follows=place > 0)))
            elif isinstance(step, Scatter):
                found.append((step, self.plan_of(cut, step)))
            elif isinstance(step, Product):
                found.append((step, None))
        return found

    def plan_of(self, cut: Chain, step: Scatter) -> Planned:
        """How one of its scatters is done."""
        layout = self.with_intermediates(cut).layout
        names = (step.left.name, step.right.name, step.result, *([step.base] if step.base else []))
        tensors = [layout.buffers[name] for name in names]
        return plan_scatter(step, layout.sizes, tensors, self.chip, follows=cut.steps.index(step) > 0)


def _comment(line: str) -> str:
    """A line of a comment, continued where it is long."""
    lines = textwrap.wrap(line, 112, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "".join(f"//   {line}\n" for line in lines)


# -- the passes of an op ---------------------------------------------------------------------------------------------


def passes(op: Inspected, args: tuple[Any, ...], kwargs: Mapping[str, Any], which: str = "forward") -> list[Pass]:
    """The passes up to ``which``: the forward, the backward, the backward of the backward; or the forward and its
    tangent, the pass of forward mode.

    The derivatives by those tensors are asked for that require one; by all float tensors where none does.

    Raises:
        DerivativeError: there is nothing to differentiate, or no such pass.
    """
    if which not in PASSES:
        raise DerivativeError(
            op.name, given=f"which={which!r}", expected=", ".join(map(repr, PASSES)), fix="pass one of these"
        )
    values = op.declaration.bind(args, kwargs)
    infos = {name: info for name, value in values.items() if (info := _info(name, value)) is not None}
    asked = tuple(name for name, value in values.items() if getattr(value, "requires_grad", False))
    frameworks = [entry.framework_of(value) for value in values.values()]
    by_torch = all(framework is None or framework.name == "torch" for framework in frameworks)
    found = [replace(Pass.of(op.trace(*args, **kwargs), infos, {}, {}), by_torch=by_torch)]
    if which == "tangent":
        return [*found, tangent_of(found[0], asked)]
    for depth in range(PASSES.index(which)):
        found.append(backward_of(found[-1], asked if depth == 0 else ()))
    return found


def _info(name: str, value: Any) -> TensorInfo | None:
    if isinstance(value, TensorSpec):
        return TensorInfo(value.shape, row_major(value.shape), value.dtype, 0, "cpu")
    framework = entry.framework_of(value)
    if framework is None:  # of a library without an adapter, or no tensor
        known = entry.described(value)
        return known and TensorInfo(known[1], row_major(known[1]), known[0], 0, "cpu")
    return framework.info(name, value)


def differentiable(op: Op) -> tuple[str, ...]:
    """The float arguments of ``op``, if a gradient flows into any; empty where nothing can be differentiated."""
    if not reached(op, range(len(op.outputs))):
        return ()
    return tuple(dict.fromkeys(o.base for o in op.operands if o.dtype.is_float))


def backward_of(forward: Pass, wanted: Sequence[str] = ()) -> Pass:
    """The backward that autograd would run after ``forward``, for every float result."""
    op, asked = forward.op, _asked(forward.op, wanted, "backward")
    training = pipeline.train_op(op, asked)
    arguments = {o.base: forward.tensors[o.base] for o in op.operands}
    with_kept = Pass.of(training.forward, arguments, forward.layout.sizes, {})
    floats = {output.base for output in op.outputs if output.dtype.is_float}
    results = result_names(training.forward)
    pruned = prune_backward(training, [i for i, name in enumerate(results) if name in floats], frozenset(asked))
    backward = _without_sizes(pruned.op)
    given = {o.base: with_kept.tensors[o.base] for o in backward.operands if o.base in with_kept.tensors}
    names = GradientNames.of(training.forward)
    given |= {names.results[name]: forward.tensors[name] for name in floats}
    like = {names.arguments[name]: forward.tensors[name] for name in asked}
    saved = tuple(o.name for o in training.forward.outputs[len(op.outputs) :])
    same = {names.arguments[name]: names.results[results[at]] for name, at in pruned.handed_on.items()}
    same |= {names.arguments[name]: names.arguments[other] for name, other in pruned.shared.items()}
    return replace(Pass.of(backward, given, forward.layout.sizes, like), saved=saved, same=same)


def tangent_of(forward: Pass, wanted: Sequence[str] = ()) -> Pass:
    """The pass of forward mode: tangents of every float result."""
    op, asked = forward.op, _asked(forward.op, wanted, "tangent")
    names = tangent_names(op)
    tangent = _without_sizes(pipeline.tangent_op(op, asked))
    given = {**forward.tensors, **{names.arguments[name]: forward.tensors[name] for name in asked}}
    given = {o.base: given[o.base] for o in tangent.operands}
    return Pass.of(tangent, given, forward.layout.sizes, {})


def _asked(op: Op, wanted: Sequence[str], which: str) -> tuple[str, ...]:
    asked = tuple(wanted) or differentiable(op)
    if not asked or not differentiable(op):
        raise DerivativeError(
            f"{op.name}, {which}", given="no float result of a float argument",
            expected="floats from an argument to a result: nothing else has a derivative",
            fix='ask for which="forward" only',
        )  # fmt: skip
    return asked


def _without_sizes(op: Op) -> Op:
    """``op`` without operands that it takes only sizes from."""
    return replace(op, operands=operands_read(op))


# -- text ------------------------------------------------------------------------------------------------------------


def emit(op: Inspected, args: tuple[Any, ...], kwargs: Mapping[str, Any], which: str) -> str:
    """The CUDA text of one pass: "forward", "backward", "double-backward" or "tangent"."""
    return passes(op, args, kwargs, which)[-1].text


def show(op: Inspected, args: tuple[Any, ...], kwargs: Mapping[str, Any], which: str | None = None) -> str:
    """Every stage as text: declared, then for each pass that is shown derived, fused, scheduled and CUDA."""
    sections = [declared(op), *called(op)]
    for item in shown_passes(op, args, kwargs, which):
        sections += stages(item)
    return "\n".join(sections)


def shown_passes(
    op: Inspected, args: tuple[Any, ...], kwargs: Mapping[str, Any], which: str | None = None
) -> list[Pass]:
    """The pass that is asked for; else the forward, and the backward where there is one."""
    if which is not None:
        return passes(op, args, kwargs, which)[-1:]
    found = passes(op, args, kwargs)
    return passes(op, args, kwargs, "backward") if differentiable(found[0].op) else found


def section(title: str, text: str) -> str:
    """``text`` below a heading."""
    return f"{heading(title)}\n{text.rstrip()}\n"


def heading(title: str) -> str:
    """The line that starts a section."""
    return f"== {title} {'=' * (96 - len(title))}\n"


def declared(op: Inspected) -> str:
    """The section with the declaration."""
    return section("declared", source_of(op))


def called(op: Inspected) -> list[str]:
    """The section on how calls run, where they do not run what follows."""
    return [section("called", op.runs)] if op.runs else []


def source_of(op: Inspected) -> str:
    """The text of the declaration, and where it stands."""
    where = f"# {op.declaration.declared}\n" if op.declaration.declared else ""
    try:
        source = inspect.getsource(op.declaration.function)
    except (OSError, TypeError):  # typed at a prompt or on the command line
        source = getattr(op.declaration.function, "source", f"{op.name}{op.declaration.signature}")
    return where + textwrap.dedent(source)


@dataclass(frozen=True)
class Block:
    """A piece of a stage's text, and the op or kernel that it is the text of."""

    text: str
    of: Op | pipeline.ScheduledKernel | None = None


@dataclass(frozen=True)
class Stage:
    """One stage of a pass as text.

    Attributes:
        label: the pass, or the part of it between matrix products.
        kind: "op", "split", "rewritten", "fused", "scheduled" or "CUDA".
        title: what happened at this stage.
    """

    label: str
    kind: str
    title: str
    blocks: tuple[Block, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(block.text for block in self.blocks)


def stages(item: Pass) -> list[str]:
    """The sections of one pass, from the Op to CUDA."""
    return [section(f"{stage.label}: {stage.title}", stage.text) for stage in stages_of(item)]


def stages_of(item: Pass) -> list[Stage]:
    """The stages of one pass, from the Op to CUDA."""
    label = item.op.label
    beside = [f"  saved by the forward: {', '.join(item.saved)}"] if item.saved else []
    beside += [f"  the same tensor: {gradient} = {tensor}" for gradient, tensor in item.same.items()]
    blocks = (Block(op_text(item.op), item.op), *map(Block, beside))
    found = [Stage(label, "op", "traced" if item.op.is_declared else "derived", blocks), *_split(item)]
    for part in item.fused_passes:
        lowered = pipeline.compile_op(part.op).lowered
        if lowered != without_declared_gradients(part.op):
            title = "rewritten to call fewer special functions"
            found.append(Stage(part.op.label, "rewritten", title, (Block(op_text(lowered), lowered),)))
    kernels = item.kernels
    sizes = dict(item.layout.sizes)
    for planned in kernels:  # partial results have axes of their own
        sizes |= planned.launch.partial_sizes
    count = f"{len(kernels)} kernel{'' if len(kernels) == 1 else 's'}"
    fused = tuple(Block(_kernel_text(planned.kernel), planned) for planned in kernels)
    found.append(Stage(label, "fused", f"fused into {count}", fused))
    found.append(Stage(label, "scheduled", "scheduled", tuple(map(Block, _schedule_texts(item, sizes)))))
    found.append(Stage(label, "CUDA", "CUDA", (Block(item.text),)))
    return found


def _split(item: Pass) -> list[Stage]:
    """The stage with the steps of an op that has matrix products."""
    cut = item.chain
    if cut is None:
        return []
    steps: list[Block] = []
    known = notes(item.op) if item.by_torch else {}
    for step in cut.steps:
        steps.append(Block(product_text(step)) if isinstance(step, Product) else Block(op_text(step), step))
        steps += [Block(known[step.result])] if isinstance(step, Product) and step.result in known else []
    return [Stage(item.op.label, "split", f"split at {cut.text}", tuple(steps))]


def things_of(kernel: Kernel) -> tuple[Operand | Scalar | Let | Reduce | Output, ...]:
    """What the lines of a fused kernel's text are about, in order: what it reads, takes, computes and leaves."""
    left = (output for output in kernel.partials if output not in kernel.items)
    return (*kernel.tensors, *kernel.scalars, *kernel.items, *left)


def _kernel_text(kernel: Kernel) -> str:
    over = f", reduced over {_axes(kernel.over)}" if kernel.over else ""
    lines = [f"{kernel.name}: at every point of {_axes(kernel.space)}{over}"]
    lines += [f"  read   {operand.name}{shape_text(operand.shape)}" for operand in kernel.tensors]
    lines += [f"  take   {scalar.name}" for scalar in kernel.scalars]
    lines += _items_text(kernel)
    return "\n".join(lines) + "\n"


def _items_text(kernel: Kernel) -> Iterator[str]:
    """What a kernel computes, in order; what it computes from a reduction is marked."""
    reduced = False
    for item in kernel.items:
        if isinstance(item, Reduce):
            reduced = True
            yield f"  reduce {reduce_text(item)}"
        elif isinstance(item, Output):
            verb = "leave" if item in kernel.partials else "write"
            yield f"  {verb}  {item.name}{shape_text(item.shape)} = {expr_text(item.expr)}"
        else:
            yield f"  {'then' if reduced else 'let':<6} {item.name} = {expr_text(item.expr)}"
    yield from (
        f"  leave  {o.name}{shape_text(o.shape)} for a later kernel" for o in kernel.partials if o not in kernel.items
    )


def _axes(axes: Sequence[str]) -> str:
    return shape_text(tuple(axes))


def _schedule_texts(item: Pass, axis_sizes: Mapping[str, int]) -> Iterator[str]:
    for part in item.fused_passes:
        before = THE_PRODUCT if part.layout.follows else ""
        for planned in part.kernels:
            yield _schedule_text(planned, axis_sizes, before if part.chip.starts_early else "")
            if not planned.launch.empty:
                before = planned.rendered.finish or planned.rendered.entry


def _schedule_text(planned: pipeline.ScheduledKernel, axis_sizes: Mapping[str, int], before: str) -> str:
    kernel, schedule, launch = planned.kernel, planned.schedule, planned.launch
    sizes = ", ".join(f"{axis.upper()} = {axis_sizes[axis]}" for axis in kernel.space) or "a single element"
    lines = [
        f"{kernel.name}: {sizes}",
        f"  {explain(kernel, schedule)}",
        f"  loops  {' x '.join(map(str, launch.sizes)) or '1'}, positions as {schedule.index}",
        f"  launch {_launch_text(launch)}",
        *([f"  {starts_early(before)}"] if before else []),
    ]
    placements = in_memory(kernel, schedule)
    width = max((len(p.name) for p in placements), default=0)
    lines += [f"  {p.name:<{width}}  {_placement_text(p, launch)}" for p in placements]
    return "\n".join(lines) + "\n"


def _launch_text(launch: Launch) -> str:
    if launch.empty:
        return "nothing: no elements"
    across = " x ".join(str(size) for size in launch.grid if size > 1) or "1"
    threads = " x ".join(str(size) for size in launch.block if size > 1) or "1"
    split = f", each result in {launch.splits} pieces of {launch.chunk}" if launch.splits > 1 else ""
    return f"{across} blocks of {threads} threads{split}"


def _placement_text(placement: Placement, launch: Launch) -> str:
    strides = launch.strides[placement.name]
    steps = f" (strides {', '.join(map(str, strides))})" if strides else ""
    return f"{placement.access.value}{steps}"

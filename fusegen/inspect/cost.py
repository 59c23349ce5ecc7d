"""What a pass costs on a GPU that need not be there: bytes, instructions, registers, and a roofline estimate.

Bytes are counted from the very launches that a call makes: of every operand and result its distinct elements, once a
kernel (a broadcast operand counts its own elements, not the result's), and every workspace where it is written and
where it is read; of matrix products their factors and results. Caches may serve some of them; the estimate knows
nothing of that. Instructions are counted as fuse/work has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from fusegen import pipeline
from fusegen.core.errors import CompileError
from fusegen.core.ir import refs
from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.work import Work, work_of_kernel, work_of_op
from fusegen.generate.rendered import Rendered, headers
from fusegen.generate.wording import explain, starts_early
from fusegen.inspect.gpus import Gpu
from fusegen.inspect.passes import THE_PRODUCT, Pass
from fusegen.inspect.product_cost import ProductCost, RoutineCost, steps_of
from fusegen.launch.cache import default_cache
from fusegen.launch.compile import cached_cubin
from fusegen.launch.cubin import Resources, resources
from fusegen.launch.program import Grid, KernelLaunch, Program
from fusegen.plan.targets import chip_of


@dataclass(frozen=True)
class KernelCost:
    """One launch.

    Args:
        entry: the kernel's name.
        why: its shape, and why that one.
        read, written: bytes by name of the tensor or workspace.
        work: instructions; of a kernel that only puts the pieces of sums together, none.
        used: registers and memory, as compiled; None where nothing could be compiled.
    """

    entry: str
    why: str
    grid: Grid
    block: Grid
    read: Mapping[str, int]
    written: Mapping[str, int]
    work: Work
    used: Resources | None

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return sum(self.read.values()) + sum(self.written.values())

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return prod(self.grid)

    def microseconds(self, gpu: Gpu) -> float:
        """Roofline estimate, on the multiprocessors that get a block."""
        return gpu.microseconds(self.moved, self.blocks, self.work)

    def is_bound_by_arithmetic(self, gpu: Gpu) -> bool:
        """Whether its instructions take longer than its bytes."""
        return gpu.arithmetic(self.work) > self.moved / gpu.bandwidth


@dataclass(frozen=True)
class PassCost:
    """One pass.

    Args:
        steps: kernels and matrix products in order.
        floor: the fewest bytes it must move: each input read once, each result written once.
        least: the fewest instructions: each part of its expressions once, without its matrix products.
        uncompiled: why there are no registers to show; empty where there are.
    """

    label: str
    steps: tuple[KernelCost | ProductCost, ...]
    floor: int
    least: Work
    uncompiled: str = ""

    @property
    def kernels(self) -> list[KernelCost]:
        """The steps that are kernels of ours."""
        return [step for step in self.steps if isinstance(step, KernelCost)]

    @property
    def products(self) -> list[ProductCost]:
        """The steps that are matrix products."""
        return [step for step in self.steps if isinstance(step, ProductCost) and not isinstance(step, RoutineCost)]

    @property
    def moved(self) -> int:
        """Bytes that all its steps read and write."""
        return sum(step.moved for step in self.steps)

    def microseconds(self, gpu: Gpu) -> float:
        """Roofline estimate: its steps one after the other."""
        return sum(step.microseconds(gpu) for step in self.steps)


def floor_bytes(item: Pass) -> int:
    """Bytes of the inputs that a pass reads and of the results that it writes, each once."""
    needed = {ref.name for part in (*item.op.statements, *item.op.outputs) for ref in refs(part.expr)}
    things = [*(operand for operand in item.op.operands if operand.name in needed), *item.op.outputs]
    return sum(item.bytes_of(thing) for thing in things)


def least_work(item: Pass) -> Work:
    """Instructions of a pass whose expressions are computed once, whatever its kernels do."""
    parts = (work_of_op(pipeline.compile_op(part.op).lowered, part.layout.sizes) for part in item.fused_passes)
    return sum(parts, Work())


def pass_cost(item: Pass, gpu: Gpu) -> PassCost:
    """The steps of a pass, its kernels compiled for ``gpu`` where NVRTC is installed."""
    compiler = _Compiler(gpu.arch)
    cut = item.chain
    steps = [item] if cut is None else steps_of(item, cut)
    costs: list[KernelCost | ProductCost] = []
    for step in steps:
        costs += [step] if isinstance(step, ProductCost) else _part_cost(step, gpu, compiler)
    return PassCost(item.op.label, tuple(costs), floor_bytes(item), least_work(item), compiler.problem)


def _part_cost(item: Pass, gpu: Gpu, compiler: _Compiler) -> list[KernelCost]:
    recorder = _Recorder(chip_of(gpu.arch))
    program = pipeline.build(item.op, item.layout, recorder)
    planned = pipeline.plan(item.op, item.layout, recorder.chip)
    reasons, sizes = _reasons(planned), item.layout.sizes
    work = {p.rendered.entry: work_of_kernel(p.kernel, p.schedule, sizes) for p in planned}
    traffic = _Traffic.of(item, program)
    costs: list[KernelCost] = []
    for step in program.steps:
        loaded = recorder.loaded[id(step.loaded)]
        read, written = traffic.of_step(step)
        why = reasons.get(loaded.entry, "")
        before = costs[-1].entry if costs else THE_PRODUCT if item.layout.follows else ""
        if before and recorder.chip.starts_early:
            why += f"; {starts_early(before)}"
        instructions = work.get(loaded.entry, Work())
        used = compiler.resources(loaded)
        costs.append(KernelCost(loaded.entry, why, step.grid, step.block, read, written, instructions, used))
    return costs


def _reasons(kernels: Sequence[pipeline.ScheduledKernel]) -> dict[str, str]:
    """Why each kernel has the shape it has, by name."""
    found: dict[str, str] = {}
    for planned in kernels:
        found[planned.rendered.entry] = explain(planned.kernel, planned.schedule)
        if planned.rendered.finish:
            found[planned.rendered.finish] = "finish: puts the pieces of the sum before it together, in order"
    return found


# -- the launches of a call, without a device ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loaded:
    """A kernel that a target would have loaded. It cannot be launched."""

    rendered: Rendered
    entry: str
    declared: str

    def prepared(self, grid: Grid, block: Grid, params: int) -> Callable[[int], None]:
        raise NotImplementedError


@dataclass
class _Recorder:
    """A target that compiles and runs nothing, and notes what was asked of it."""

    chip: Chip
    loaded: dict[int, _Loaded] = field(default_factory=dict)

    def load(self, rendered: Rendered, entry: str, declared: str, follows: bool) -> _Loaded:
        made = _Loaded(rendered, entry, declared)
        self.loaded[id(made)] = made
        return made


@dataclass
class _Traffic:
    """Bytes of each pointer that the launches of a pass take; in launch order, because a result may be read again."""

    sizes: dict[str, int]
    inputs: frozenset[str]
    written: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, item: Pass, program: Program) -> _Traffic:
        sizes = {thing.name: item.bytes_of(thing) for thing in (*item.op.operands, *item.op.outputs)}
        sizes |= {workspace.name: workspace.elements * workspace.dtype.size for workspace in program.workspaces}
        return cls(sizes, frozenset(operand.name for operand in item.op.operands))

    def of_step(self, step: KernelLaunch) -> tuple[dict[str, int], dict[str, int]]:
        """Bytes read and bytes written by name; whoever comes first writes, later kernels read."""
        pointers = [name for name in dict.fromkeys(step.dynamic) if name in self.sizes]
        read = {name: self.sizes[name] for name in pointers if name in self.inputs or name in self.written}
        written = {name: self.sizes[name] for name in pointers if name not in read}
        self.written |= set(written)
        return read, written


@dataclass
class _Compiler:
    """Registers and memory of kernels; after the first that cannot be compiled, only the reason why."""

    arch: str
    problem: str = ""

    def resources(self, loaded: _Loaded) -> Resources | None:
        if self.problem:
            return None
        text, declared = loaded.rendered.text, loaded.declared
        try:
            cubin = cached_cubin(text, arch=self.arch, headers=headers(), declared=declared, cache=default_cache())
        except CompileError as error:
            self.problem = f"{error.given.splitlines()[0]}; to fix it: {error.fix}"
            return None
        return resources(cubin, loaded.entry)

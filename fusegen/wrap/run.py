"""Runs one Op on one framework's tensors: layouts, allocation, launch. Knows nothing of gradients."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import local
from typing import Any

from fusegen import pipeline
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeviceError, ShapeError
from fusegen.core.ir import Op, Operand, Output
from fusegen.core.locks import cached_property
from fusegen.core.products import contracted_sizes, products
from fusegen.core.views import dims_of, view, whole_shape
from fusegen.fuse.schedule import Buffer
from fusegen.launch.program import Program, scalar_value
from fusegen.launch.targets import CpuTarget, GpuTarget
from fusegen.wrap import verify
from fusegen.wrap.tensors import Framework, Settings, TensorInfo, target_of

MOST_PLANS = 4096

# What is known of tensors that results are to be written to; None for one that is to be made.
Infos = Sequence[TensorInfo | None]


@dataclass(frozen=True)
class Slot:
    """A pointer of the program: argument or output ``source``, ``offset`` bytes further on."""

    name: str
    source: str
    offset: int


@dataclass(frozen=True)
class Made:
    """A tensor of the plan's own."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    def make(self, framework: Framework, device: str) -> Any:
        return framework.empty(self.shape, self.strides, self.dtype, device)


@dataclass(frozen=True)
class Between(Made):
    """A tensor between the steps of a plan, and the first and last of those that use it."""

    first: int
    last: int


@dataclass(frozen=True)
class LaidOut:
    """Where everything lies that an op reads and writes.

    ``results``: name, shape, strides and dtype of each tensor that a call returns.
    """

    layout: pipeline.Layout
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    results: tuple[tuple[str, tuple[int, ...], tuple[int, ...], DType], ...]


@dataclass
class Plan:
    """One op for one layout. Its program takes the inputs' addresses, the outputs', and the op's scalars.

    ``program`` is None for a plan that is more than launches and products, ``between`` what lies between its steps.
    ``verified``: what it computed was compared with the reference (wrap/verify).
    """

    program: Program | None
    target: CpuTarget | GpuTarget
    device: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    results: tuple[tuple[str, tuple[int, ...], tuple[int, ...], Any], ...]
    between: tuple[Between, ...] = ()
    verified: bool = False


@dataclass(frozen=True)
class Run:
    """What one call of a runner did."""

    runner: Runner
    plan: Plan
    tensors: Mapping[str, Any]
    scalars: Mapping[str, Any]
    results: list[Any]


class _Watched(local):
    runs: list[Run] | None = None


_watched = _Watched()


@contextmanager
def watch() -> Iterator[list[Run]]:
    """The runs of this thread meanwhile: what a call path learns from."""
    before = _watched.runs
    runs: list[Run] = []
    _watched.runs = runs
    try:
        yield runs
    finally:
        _watched.runs = before
        if before is not None:
            before += runs


@dataclass
class Runner:
    """One Op, called with tensors by argument name.

    Args:
        op: what to run.
        sizes: sizes of axes that no operand carries (a gradient of an operand that need not be read).
        like: for an output by name, (shape, strides) of the tensor whose layout it should have: a gradient's operand.
        fresh: operands that steps of the same op have just written; None: there are no steps before.
    """

    op: Op
    sizes: Mapping[str, int] = field(default_factory=dict)
    like: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    plans: OrderedDict[Any, Plan] = field(default_factory=OrderedDict)
    fresh: frozenset[str] | None = None

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of the tensors to pass, in order."""
        return tuple(dict.fromkeys(o.base for o in self.op.operands))

    def __call__(
        self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework,
        out: Sequence[Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Results in order of the op's outputs (a packed output once), which are written where ``out`` says so."""
        plan = self.planned(tensors, framework, out)
        if out is not None:
            self._check_in_place(plan, tensors, framework, out)
        before = self._to_verify(plan, tensors, out) if verify.is_on() else None
        results = self.launch(plan, tensors, scalars, framework, out)
        if before is not None:
            verify.verify(self.op, before, scalars, self.sizes, results)
            plan.verified = True
        if _watched.runs is not None:
            _watched.runs.append(Run(self, plan, tensors, scalars, results))
        return results

    def _to_verify(self, plan: Plan, tensors: Mapping[str, Any], out: Any) -> verify.Before | None:
        """What the results are to be compared for; None if they were before."""
        if plan.verified:
            return None
        verify.need_torch()
        onto = [place for place, (name, *_) in enumerate(plan.results) if name in self.adds_to]
        return verify.Before.of({name: tensors[name] for name in self.arguments}, out, onto)

    @property
    def adds_to(self) -> frozenset[str]:
        """Results that are not written but added to."""
        return frozenset()

    def planned(self, tensors: Mapping[str, Any], framework: Framework, out: Sequence[Any] | None = None) -> Plan:
        """The plan for tensors of this layout, remembered."""
        infos = {name: framework.info(name, tensors[name]) for name in self.arguments}
        given = None
        if out is not None:
            given = [None if t is None else framework.info(f"out[{i}]", t) for i, t in enumerate(out)]
        key = (tuple(infos.values()), tuple(given) if given else None, self.settings(framework))
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plan_for(infos, given)
            self.plans[key] = plan
            if len(self.plans) > MOST_PLANS:
                self.plans.popitem(last=False)
        return plan

    def _check_in_place(self, plan: Plan, tensors: Mapping[str, Any], framework: Framework, out: Sequence[Any]) -> None:
        """An output that is an argument must not be written by one kernel and read by a later one."""
        assert plan.program is not None
        steps = [set(step.dynamic) for step in plan.program.steps]
        for (base, *_), tensor in zip(plan.results, out, strict=True):
            if tensor is None:
                continue
            address = framework.pointer(tensor)
            mine = {slot.name for slot in plan.outputs if slot.source == base}
            for name in self.arguments:
                if framework.pointer(tensors[name]) != address:
                    continue
                theirs = {slot.name for slot in plan.inputs if slot.source == name}
                first = next((i for i, names in enumerate(steps) if mine & names), len(steps))
                if any(theirs & names for names in steps[first + 1 :]):
                    raise ShapeError(
                        f"{self.op.name}, out=", given=f"argument {name}, which is still read after {base} is written",
                        expected="memory of its own", fix="pass a fresh tensor, or leave out= away",
                    )  # fmt: skip

    def launch(
        self, plan: Plan, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework, out: Any
    ) -> list[Any]:
        """Results of a plan that was made for tensors of this layout."""
        results = results_of(plan, framework, out)
        by_name = {name: tensor for (name, *_), tensor in zip(plan.results, results, strict=True)}
        values: list[Any] = [framework.pointer(tensors[s.source]) + s.offset for s in plan.inputs]
        values += [framework.pointer(by_name[s.source]) + s.offset for s in plan.outputs]
        values += [scalar_value(scalar, scalars[scalar.name]) for scalar in self.op.scalars]
        stream = framework.stream(plan.device)
        program = plan.program
        assert program is not None
        plan.target.run(lambda: program.run(values, lambda size: framework.workspace(size, plan.device), stream))
        return results

    def settings(self, framework: Framework) -> Settings | None:
        """What a plan depends on besides the tensors."""
        return None

    # -- planning -------------------------------------------------------------------------------------------------

    def plan_for(self, infos: Mapping[str, TensorInfo], out: Infos | None) -> Plan:
        """The plan for arguments and, where they are given, results of this layout."""
        device = common_device(self.op, infos, out)
        lies = self.lay_out(infos, out)
        target = target_of(device)
        program = pipeline.build(self.op, lies.layout, target)
        names = [slot.name for slot in (*lies.inputs, *lies.outputs)] + [scalar.name for scalar in self.op.scalars]
        return Plan(program.bind(names), target, device, lies.inputs, lies.outputs, lies.results)

    def lay_out(self, infos: Mapping[str, TensorInfo], out: Infos | None = None) -> LaidOut:
        """How the compiler sees arguments of this layout, and results: those given, or such as a call makes.

        Raises:
            ShapeError: sizes contradict each other, or a result does not fit.
        """
        buffers: dict[str, Buffer] = {}
        sizes = dict(self.sizes)
        inputs: list[Slot] = []
        origin: dict[str, str] = {}
        for operand in self.op.operands:
            info = infos[operand.base]
            shape, strides, offset = view(operand, info.shape, info.strides)
            if 0 in shape:  # no elements, no address: nothing may count as the same for all, to be read before a loop
                strides = row_major(shape)
            self._measure(operand, shape, sizes, origin)
            slot = Slot(operand.name, operand.base, offset * operand.dtype.size)
            buffers[operand.name] = _buffer(operand, strides, info.alignment + slot.offset)
            inputs.append(slot)
        sizes = contracted_sizes(self.op, sizes)
        results, outputs = self._results(infos, sizes, buffers, out)
        layout = pipeline.Layout(sizes, buffers, self.fresh is not None, self.fresh or frozenset())
        return LaidOut(layout, tuple(inputs), tuple(outputs), tuple(results))

    def _measure(self, operand: Operand, shape: Sequence[int], sizes: dict[str, int], origin: dict[str, str]) -> None:
        name = operand.base
        for d, axis, size in zip(dims_of(operand), operand.shape, shape, strict=True):
            if axis is None:
                continue
            if sizes.setdefault(axis, size) != size:
                other = origin.get(axis, "the result")
                raise ShapeError(
                    f"{self.op.name}, argument {name}",
                    given=f"dimension {d} of size {size} against {other} of size {sizes[axis]}",
                    expected="equal sizes, or size 1 on one side",
                    fix="reshape one of them so that trailing dimensions line up (shapes are aligned from the right)",
                )
            origin.setdefault(axis, f"dimension {d} of {name}")

    def _results(
        self, infos: Mapping[str, TensorInfo], sizes: Mapping[str, int], buffers: dict[str, Buffer],
        out: Infos | None,
    ) -> tuple[list[Any], list[Slot]]:  # fmt: skip
        results: list[Any] = []
        slots: list[Slot] = []
        made: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        given: dict[str, TensorInfo | None] = {}  # blocks of one result need not stand together
        for output in self.op.outputs:
            base = output.base
            if base not in made:
                given[base] = None if out is None else out[len(results)]
                made[base] = self._result_layout(output, base, infos, sizes, given[base])
                results.append((base, *made[base], output.dtype))
            info = given[base] or TensorInfo(*made[base], output.dtype, 0, "")
            _, strides, offset = view(output, info.shape, info.strides)
            slot = Slot(output.name, base, offset * output.dtype.size)
            buffers[output.name] = _buffer(output, strides, info.alignment + slot.offset)
            slots.append(slot)
        return results, slots

    def _result_layout(
        self, output: Output, base: str, infos: Mapping[str, TensorInfo], sizes: Mapping[str, int],
        out: TensorInfo | None,
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:  # fmt: skip
        arguments = [infos[name] for name in self.arguments]
        shape, strides = result_layout(
            self.op, output, sizes, arguments, self.like[base][1] if base in self.like else None
        )
        if out is not None:
            _check_out(self.op, output, out, shape)
            strides = out.strides
        return shape, strides


def _buffer(thing: Operand | Output, strides: Sequence[int], address: int) -> Buffer:
    return Buffer(thing.dtype, {axis: strides[d] for d, axis in enumerate(thing.shape) if axis}, address % 16)


def results_of(plan: Plan, framework: Framework, out: Sequence[Any] | None) -> list[Any]:
    """Tensors for a plan's results: those given, and new ones."""
    return [
        given if given is not None else framework.empty(shape, strides, dtype, plan.device)
        for (_, shape, strides, dtype), given in zip(plan.results, out or [None] * len(plan.results), strict=True)
    ]


def common_device(op: Op, infos: Mapping[str, TensorInfo], out: Infos | None) -> str:
    """Where all tensors are.

    Raises:
        DeviceError: in several places.
    """
    found = {name: info.device for name, info in infos.items()}
    found.update({f"out[{i}]": info.device for i, info in enumerate(out or []) if info})
    if len(set(found.values())) > 1:
        raise DeviceError(
            op.name, given=", ".join(f"{name} on {device}" for name, device in found.items()),
            expected="all tensors on one device", fix="move them yourself with .to(device): fusegen never copies",
        )  # fmt: skip
    return next(iter(found.values()))


def _check_out(op: Op, output: Output, out: TensorInfo, shape: tuple[int, ...]) -> None:
    if out.shape != shape or out.dtype is not output.dtype:
        raise ShapeError(
            f"{op.name}, out=", given=f"{out.dtype} of shape {list(out.shape)}",
            expected=f"{output.dtype} of shape {list(shape)}: an output is never broadcast, resized or cast",
            fix="pass a tensor of the result's shape and dtype, or leave out= away",
        )  # fmt: skip
    if overlaps_itself(out.shape, out.strides):
        raise ShapeError(
            f"{op.name}, out=", given=f"a tensor of shape {list(out.shape)} with strides {list(out.strides)}",
            expected="a tensor whose elements lie at different addresses", fix="pass a fresh tensor",
        )  # fmt: skip


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements share an address (or might: steps that interleave count as overlapping)."""
    reach = 0
    for step, size in sorted((abs(st), si) for st, si in zip(strides, shape, strict=True) if si != 1):
        if step <= reach and 0 not in shape:
            return True
        reach += (size - 1) * step
    return False


# -- strides, as torch gives them ------------------------------------------------------------------------------------


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return _dense_in_order(shape, range(len(shape)))


def _dense_in_order(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Dense strides with the dimensions in ``order``, slow to fast."""
    strides = [0] * len(shape)
    step = 1
    for d in reversed(order):
        strides[d] = step
        step *= max(shape[d], 1)
    return tuple(strides)


def dense_like(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Dense strides with the dimensions in the order that ``strides`` have."""
    return _dense_in_order(shape, sorted(range(len(shape)), key=lambda d: -strides[d]))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """No gaps and no overlaps, in whatever order of dimensions."""
    if tuple(strides) == row_major(shape):  # nothing to sort, which for symbolic sizes is guards
        return True
    expected = 1
    for stride, size in sorted((st, si) for st, si in zip(strides, shape, strict=True) if si != 1):
        if size == 0:
            return True
        if stride != expected:
            return False
        expected *= size
    return True


def result_layout(
    op: Op, output: Output, sizes: Mapping[str, int], arguments: Sequence[TensorInfo], like: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a new result: strides as ``like`` has them if those leave no gaps, else torch's."""
    shape = whole_shape(output, sizes)
    if like is None:
        return tuple(shape), _strides_for(op, shape, arguments)
    return tuple(shape), tuple(like) if is_dense(shape, like) else row_major(shape)


def _strides_for(op: Op, shape: Sequence[int], inputs: Sequence[TensorInfo]) -> tuple[int, ...]:
    """The strides of a result: torch's for elementwise ops; row-major behind a matrix product."""
    return row_major(shape) if products(op) else result_strides(shape, inputs)


def result_strides(shape: Sequence[int], inputs: Sequence[TensorInfo]) -> tuple[int, ...]:
    """The strides that torch's TensorIterator gives the result of an elementwise op: dense, dimensions in the order of
    the inputs' strides, the first input that has an opinion deciding."""
    rank = len(shape)
    if all(i.strides == row_major(i.shape) for i in inputs):  # the same answer, without comparing symbolic strides
        return row_major(shape)
    same = [i for i in inputs if i.shape == tuple(shape)]
    alike = bool(same) and len(same) == len(inputs) and all(i.strides == same[0].strides for i in same)
    if alike and is_dense(shape, same[0].strides):
        return _dense_in_order(shape, sorted(range(rank), key=lambda d: (-same[0].strides[d], d))) if rank else ()
    steps = [_broadcast_strides(shape, i) for i in inputs if len(i.shape) <= rank]
    order = list(range(rank - 1, -1, -1))  # fast to slow
    for i in range(1, rank):
        at = i
        for before in range(i - 1, -1, -1):
            verdict = _compare(order[before], order[at], shape, steps)
            if verdict > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif verdict < 0:
                break
    return _dense_in_order(shape, order[::-1])


def _broadcast_strides(shape: Sequence[int], info: TensorInfo) -> tuple[int, ...]:
    missing = len(shape) - len(info.shape)
    own = [0 if size == 1 and shape[missing + d] != 1 else info.strides[d] for d, size in enumerate(info.shape)]
    return (*[0] * missing, *own)


def _compare(a: int, b: int, shape: Sequence[int], steps: Sequence[Sequence[int]]) -> int:
    for strides in steps:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return -1 if strides[a] < strides[b] else 1
        if shape[a] > shape[b]:
            return 1
    return 0

"""Runs one Op on one framework's tensors: layouts, allocation, launch. Knows nothing of gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import local
from typing import Any

from fusegen import pipeline
from fusegen.core.errors import ShapeError
from fusegen.core.ir import Op, Operand, Output
from fusegen.core.locks import cached_property
from fusegen.core.products import contracted_sizes
from fusegen.core.recent import Recent
from fusegen.core.views import dims_of, view
from fusegen.fuse.choices import NOTHING_CHOSEN
from fusegen.fuse.schedule import Buffer
from fusegen.launch.program import scalar_value
from fusegen.plan.frameworks import Framework, Settings, TensorInfo, target_of
from fusegen.plan.layout import check_out, result_layout, row_major
from fusegen.plan.plan import BufferLayout, Infos, Plan, Slot, common_device, results_of
from fusegen.run import verify
from fusegen.run.in_place import are_apart, read_elsewhere
from fusegen.tuning import session as tuning

MOST_PLANS = 4096


@dataclass(frozen=True)
class Run:
    """What one call of a runner did."""

    runner: Runner
    plan: Plan
    tensors: Mapping[str, Any]
    scalars: Mapping[str, Any]
    results: list[Any]


class _Recorded(local):
    runs: list[Run] | None = None


_recorded = _Recorded()


@contextmanager
def record_runs() -> Iterator[list[Run]]:
    """The runs of this thread meanwhile, for a cache of calls (pytorch/calls).

    Autograd's node stands between a call and its run, and hands on tensors alone.
    """
    before = _recorded.runs
    runs: list[Run] = []
    _recorded.runs = runs
    try:
        yield runs
    finally:
        _recorded.runs = before
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
    plans: Recent[Any, Plan] = field(default_factory=lambda: Recent(MOST_PLANS))
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
        if _recorded.runs is not None:
            _recorded.runs.append(Run(self, plan, tensors, scalars, results))
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
        given, in_place = None, False
        if out is not None:
            given = [None if t is None else framework.info(f"out[{i}]", t) for i, t in enumerate(out)]
            read = {framework.pointer(tensors[name]) for name in self.arguments}
            in_place = any(t is not None and framework.pointer(t) in read for t in out)
        key = (tuple(infos.values()), tuple(given) if given else None, in_place, self.settings(framework))
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans.setdefault(key, self.plan_for(infos, given, in_place))
        return plan

    def _check_in_place(self, plan: Plan, tensors: Mapping[str, Any], framework: Framework, out: Sequence[Any]) -> None:
        """An output that is an argument must not be written by one kernel and read by a later one."""
        assert plan.program is not None
        steps = [set(step.dynamic) for step in plan.program.steps]
        for (base, *_), tensor in zip(plan.results, out, strict=True):
            address = 0 if tensor is None else framework.pointer(tensor)
            if not address:  # of no elements, which share no memory
                continue
            mine = {slot.name for slot in plan.outputs if slot.source == base}
            for name in self.arguments:
                if framework.pointer(tensors[name]) != address:
                    continue
                theirs = {slot.name for slot in plan.inputs if slot.source == name}
                if self._reads_elsewhere(plan, name, base):
                    raise ShapeError(
                        f"{self.op.name}, out=",
                        given=f"argument {name}, of which {base} reads other elements than those that it overwrites",
                        expected="an argument that is read element by element, or memory of its own",
                        fix="pass a fresh tensor, or leave out= away",
                    )
                first = next((i for i, names in enumerate(steps) if mine & names), len(steps))
                if any(theirs & names for names in steps[first + 1 :]):
                    raise ShapeError(
                        f"{self.op.name}, out=", given=f"argument {name}, which is still read after {base} is written",
                        expected="memory of its own", fix="pass a fresh tensor, or leave out= away",
                    )  # fmt: skip

    def _reads_elsewhere(self, plan: Plan, argument: str, result: str) -> bool:
        """Whether a kernel that writes a result reads the argument in its memory at other elements."""
        if plan.elsewhere is None:
            assert plan.layout is not None
            plan.elsewhere = read_elsewhere(pipeline.plan_op(self.op, plan.layout, plan.target.chip).kernels)
        operands = {slot.name: slot for slot in plan.inputs if slot.source == argument}
        outputs = {slot.name: slot for slot in plan.outputs if slot.source == result}
        blocks = {thing.name: thing.packed for thing in (*self.op.operands, *self.op.outputs)}
        for one, other in itertools.product(operands.values(), outputs.values()):
            if one.offset == other.offset and (one.name, other.name) in plan.elsewhere:
                return True
            if one.offset != other.offset and not are_apart(blocks[one.name], blocks[other.name]):
                return True
        return False

    def launch(
        self, plan: Plan, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework, out: Any
    ) -> list[Any]:
        """Results of a plan that was made for tensors of this layout."""
        if tuning.is_on() and not plan.is_tuned:
            tuning.tune(plan, self.op, tensors, scalars, framework)
        results = results_of(plan, framework, out)
        by_name = {name: tensor for (name, *_), tensor in zip(plan.results, results, strict=True)}
        values: list[Any] = [framework.pointer(tensors[s.source]) + s.offset for s in plan.inputs]
        values += [framework.pointer(by_name[s.source]) + s.offset for s in plan.outputs]
        values += [scalar_value(scalar, scalars[scalar.name]) for scalar in self.op.scalars]
        stream = framework.stream(plan.device)
        program = plan.program
        assert program is not None
        plan.target.run(program, values, stream, lambda size: framework.workspace(size, plan.device))
        return results

    def settings(self, framework: Framework) -> Settings | None:
        """What a plan depends on besides the tensors."""
        return None

    # -- planning -------------------------------------------------------------------------------------------------

    def plan_for(self, infos: Mapping[str, TensorInfo], out: Infos | None, in_place: bool = False) -> Plan:
        """The plan for arguments and, where they are given, results of this layout.

        Args:
            in_place: a result lies where an argument does. Then kernels are scheduled as by default, whatever was
                tuned: a later kernel of what was tuned may read what an earlier one has overwritten.
        """
        device = common_device(self.op, infos, out)
        lies = self.lay_out(infos, out)
        target = target_of(device)
        chosen = NOTHING_CHOSEN if in_place else tuning.chosen_for(self.op, lies.layout, target.gpu)
        program = pipeline.build(self.op, lies.layout, target, chosen)
        names = [slot.name for slot in (*lies.inputs, *lies.outputs)] + [scalar.name for scalar in self.op.scalars]
        return Plan(
            program.bind(names), target, device, lies.inputs, lies.outputs, lies.results, layout=lies.layout,
            is_tuned=in_place,
        )  # fmt: skip

    def lay_out(self, infos: Mapping[str, TensorInfo], out: Infos | None = None) -> BufferLayout:
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
        return BufferLayout(layout, tuple(inputs), tuple(outputs), tuple(results))

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
            check_out(self.op, output, out, shape)
            strides = out.strides
        return shape, strides


def _buffer(thing: Operand | Output, strides: Sequence[int], address: int) -> Buffer:
    return Buffer(thing.dtype, {axis: strides[d] for d, axis in enumerate(thing.shape) if axis}, address % 16)

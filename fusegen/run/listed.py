"""An op on lists of tensors: what a launch takes of them, and which tensors share one (generate/table)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from fusegen import pipeline
from fusegen.core.declared import without_declared_gradients
from fusegen.core.dtypes import DType
from fusegen.core.ir import Index, Op, Operand, Output, Reduce, Size, axis_name, walk
from fusegen.fuse.cuts import is_cut
from fusegen.fuse.schedule import Buffer, Schedule, contiguous
from fusegen.launch.table_program import Member, TableProgram
from fusegen.plan.frameworks import Framework, TensorInfo, target_of
from fusegen.plan.plan import BufferLayout, common_device
from fusegen.run.in_place import read_elsewhere
from fusegen.run.runner import Runner

# Shape, strides and dtype of a result.
Made = tuple[tuple[int, ...], tuple[int, ...], DType]
_FLAT = axis_name(0)


@dataclass(frozen=True)
class Call:
    """An op's call on one tensor of each list, as far as its plan depends on it.

    Args:
        infos: the tensors that it reads, by argument.
        out: those that it writes; None: they are to be made.
    """

    op: Op
    infos: Mapping[str, TensorInfo]
    out: tuple[TensorInfo, ...] | None


@dataclass
class ListPlan:
    """Calls of one op, all of them in a few launches.

    Args:
        programs: the launches on each device.
        results: what is to be made for each call's results.
        checked: addresses of calls of which it is known that none writes where another one reads or writes.
        lies: of each tensor, the bytes that it reaches from its address, below and above, and its layout.
        elsewhere: arguments and results, by their places, that may not share memory within a call (run/in_place).
    """

    programs: list[tuple[TableProgram, str]]
    results: list[tuple[Made, ...]]
    checked: tuple[int, ...] | None = None
    lies: list[tuple[int, int, Any]] | None = None
    elsewhere: frozenset[tuple[int, int]] = frozenset()

    def run(self, addresses: Sequence[int], numbers: Sequence[Any], framework: Framework) -> None:
        """Launch everything.

        Args:
            addresses: of each argument's tensors, one list after the other, then of each result's.
            numbers: the call's own.
        """
        for program, device in self.programs:
            allocate = functools.partial(framework.workspace, device=device)
            target_of(device).run(program, [*addresses, *numbers], framework.stream(device), allocate)


def plan_calls(calls: Sequence[Call], arguments: Sequence[str], numbers: Sequence[str]) -> ListPlan | None:
    """The launches for all calls. None where one of them has no kernel that is launched for many tensors.

    Args:
        arguments, numbers: tensors and numbers of a call, in the order in which a run gets them.
    """
    places = {name: place for place, name in enumerate(arguments)}
    groups: dict[tuple[str, Op, Schedule], list[Member]] = {}
    scheduled: dict[tuple[str, Op, Schedule], pipeline.ScheduledKernel] = {}
    results = list[tuple[Made, ...]]()
    for i, call in enumerate(calls):
        if is_cut(call.op):
            return None
        device = common_device(call.op, call.infos, call.out)
        lies = Runner(call.op).lay_out(call.infos, call.out)
        op, layout = flattened(call.op, lies.layout)
        found = pipeline.plan_in_table(op, layout, target_of(device).chip)
        if found is None:
            return None
        results.append(tuple((shape, strides, dtype) for _, shape, strides, dtype in lies.results))
        if not found.launch.empty:
            group = device, op, found.schedule
            scheduled[group] = found
            groups.setdefault(group, []).append(Member(found.launch, _sources(lies, places, i, len(calls))))
    given = (len(arguments) + len(results[0])) * len(calls)
    order = {name: given + at for at, name in enumerate(numbers)}
    programs: dict[str, TableProgram] = {}
    for group, members in groups.items():
        device, found = group[0], scheduled[group]
        program = programs.setdefault(device, TableProgram(order, given + len(order)))
        program.add(found.kernel, found.schedule, found.rendered, members, target_of(device))
    return ListPlan(
        [(program, device) for device, program in programs.items()],
        results,
        elsewhere=_elsewhere(calls, places, scheduled),
    )


def _elsewhere(
    calls: Sequence[Call], places: Mapping[str, int], scheduled: Mapping[Any, pipeline.ScheduledKernel]
) -> frozenset[tuple[int, int]]:
    """Arguments and results of which some call reads the one at other elements than it writes the other at."""
    pairs, found = read_elsewhere(scheduled.values()), set[tuple[int, int]]()
    for op in {call.op for call in calls} if pairs else ():
        base = {thing.name: thing.base for thing in (*op.operands, *op.outputs)}
        results = list(dict.fromkeys(output.base for output in op.outputs))
        found |= {
            (places[base[one]], results.index(base[other])) for one, other in pairs if one in base and other in base
        }  # fmt: skip
    return frozenset(found)


def _sources(lies: BufferLayout, places: Mapping[str, int], i: int, count: int) -> dict[str, tuple[int, int]]:
    """Where the addresses of a call's operands and outputs are among those of all calls."""
    found = {slot.name: (places[slot.source] * count + i, slot.offset) for slot in lies.inputs}
    outs = {name: len(places) + place for place, (name, *_) in enumerate(lies.results)}
    return found | {slot.name: (outs[slot.source] * count + i, slot.offset) for slot in lies.outputs}


def flattened(op: Op, layout: pipeline.Layout) -> tuple[Op, pipeline.Layout]:
    """The op on tensors of one dimension, where it sees no difference: its tensors lie alike in memory and without
    gaps, or have one element each, and it asks for no positions and sizes. A list then needs one kernel, however many
    dimensions its tensors have."""
    op = without_declared_gradients(op)
    things, axes = (*op.operands, *op.outputs), set(op.axes)
    nodes = walk([item.expr for item in (*op.statements, *op.outputs)])
    if any(isinstance(node, (Index, Size)) for node in nodes) or any(t.packed or t.groups for t in things):
        return op, layout
    if any(set(s.over) != axes for s in op.statements if isinstance(s, Reduce)):
        return op, layout
    orders = set[tuple[str, ...] | None]()
    for thing in things:
        own = {axis for axis in thing.shape if axis}
        if own:
            orders.add(_dense_order(layout.buffers[thing.name], layout.sizes) if own == axes else None)
    if len(orders) > 1 or None in orders:
        return op, layout
    buffers = {
        thing.name: replace(layout.buffers[thing.name], strides={_FLAT: 1} if any(thing.shape) else {})
        for thing in things
    }
    sizes = {_FLAT: prod(layout.sizes[axis] for axis in axes)} if axes else {}
    return _on_one_axis(op), replace(layout, sizes=sizes, buffers=buffers)


def _on_one_axis(op: Op) -> Op:
    """The op, all of whose axes are one."""

    def shape(thing: Operand | Output) -> tuple[str, ...]:
        return (_FLAT,) if any(thing.shape) else ()

    return replace(
        op,
        operands=tuple(replace(o, shape=shape(o)) for o in op.operands),
        outputs=tuple(replace(o, shape=shape(o)) for o in op.outputs),
        statements=tuple(replace(s, over=(_FLAT,)) if isinstance(s, Reduce) else s for s in op.statements),
    )


def _dense_order(buffer: Buffer, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """The axes of a tensor without gaps, slow to fast; None for one with gaps, or whose elements share memory."""
    order = sorted((axis for axis in buffer.strides if sizes[axis] > 1), key=lambda axis: -buffer.strides[axis])
    dense = contiguous(order, sizes)
    return tuple(order) if all(buffer.strides[axis] == dense[axis] for axis in order) else None

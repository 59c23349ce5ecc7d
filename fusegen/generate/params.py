"""The parameters of a kernel, in order: read by the printer for the signature and by the launcher for the values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fusegen.core.dtypes import DType
from fusegen.core.ir import Computed, Expr, Operand, Output, Reduce, Ref, Scalar, Size, own_size, refs, walk
from fusegen.core.monoids import BY_KIND
from fusegen.core.text import shape_text
from fusegen.fuse.kernel import Gathered, Kernel, Position, with_places
from fusegen.fuse.rows_schedule import RowSchedule
from fusegen.fuse.schedule import (
    Access,
    ElementwiseSchedule,
    FullReductionSchedule,
    Placement,
    Schedule,
    TransposeSchedule,
)
from fusegen.generate.names import Names

ParamKind = Literal[
    "in", "out", "partial", "scalar", "count", "divisor", "extent", "stride", "axis", "chunk", "splits", "segment",
    "shares", "table",
]  # fmt: skip


@dataclass(frozen=True)
class Param:
    """One parameter.

    ``kind``: "in", "out" (pointers to the tensor ``source``), "partial" (workspace), "scalar" (``source`` is its
    name), "count" (product of loop sizes), "divisor" (one loop's size, to divide by), "extent" (one loop's size),
    "stride" (``source`` along loop ``loop``), "axis" (the size of axis ``source``), "chunk" (reduced elements a block
    takes), "splits" (how many blocks share), "segment" (elements of a segment), "shares" (how many blocks leave a
    number for each segment), "table" (all of these for many tensors, generate/table).
    """

    kind: ParamKind
    name: str
    ctype: str
    source: str = ""
    loop: int = 0
    comment: str = ""
    dtype: DType | None = None


def parameters(kernel: Kernel, schedule: Schedule, names: Names, stage: str = "main") -> tuple[Param, ...]:
    """The parameter list of ``kernel`` under ``schedule``; ``stage`` "finish" is the second kernel of a split."""
    if stage == "finish":
        return _finish_parameters(kernel, schedule, names)
    found: list[Param] = []
    split = schedule.split
    found += [_input(operand, kernel, schedule, names) for operand in _main_operands(kernel, split)]
    items = kernel.reducing if split else kernel.items
    gathered = _gathered(kernel, items)
    found += _tables(gathered, _main_operands(kernel, split), kernel, schedule, names)
    found += [_output(o, names) for o in kernel.pointwise]
    if split:
        found += [_partial(r.name, f"{state_type(r)}* __restrict__", names) for r in kernel.states]
    else:
        found += [_output(o, names) for o in (*kernel.outputs, *kernel.partials)]
    found += _numbers(kernel, items, names)
    found += [step for operand in gathered for step in _steps(operand, kernel, schedule, names)]
    found += _extents(schedule)
    for placement in schedule.placements:
        found += _strides(placement, schedule, kernel, names)
    return _each_once(found, kernel)


def _each_once(found: Iterable[Param], kernel: Kernel) -> tuple[Param, ...]:
    """The parameters: what is gathered shares those of a tensor that lies alike. Told by what they are of: a name may
    stand for two things until the text is settled (generate/names)."""
    steps = {o.step(axis): f"{kernel.memory[o.name]} {axis}" for o in kernel.gathered for axis, _ in o.places}
    known: dict[tuple[str, str, int], Param] = {}
    for param in found:
        source = kernel.memory.get(param.source, param.source)
        source = steps.get(param.source, source) if param.kind == "axis" else source
        shared = param.kind in ("stride", "axis")
        known.setdefault((param.kind, source, param.loop) if shared else (param.kind, param.name, len(known)), param)
    return tuple(known.values())


def _main_operands(kernel: Kernel, split: bool) -> list[Operand]:
    if not split:
        return list(kernel.tensors)
    body = {ref for item in kernel.reducing for ref in _reads(item.expr)}
    body = with_places(body, kernel.gathered)
    return [o for o in kernel.tensors if o.name in body]


def _gathered(kernel: Kernel, items: Iterable[Computed]) -> list[Gathered]:
    """What the items gather."""
    read = with_places((name for item in items for name in _reads(item.expr)), kernel.gathered)
    return [operand for operand in kernel.gathered if operand.name in read]


def _steps(operand: Gathered, kernel: Kernel, schedule: Schedule, names: Names) -> list[Param]:
    """How far apart places along its axes are, where that is asked."""
    memory, steps = kernel.memory[operand.name], schedule.placement(operand.name).steps
    return [
        Param("axis", names.step(memory, axis), "int64_t", operand.step(axis))
        for (axis, _), step in zip(operand.places, steps, strict=True)
        if step == "s" and operand.shifts.get(axis, (None, 1))[1]
    ]


def _tables(
    gathered: Iterable[Gathered], given: Iterable[Operand], kernel: Kernel, schedule: Schedule, names: Names
) -> list[Param]:  # fmt: skip
    """The pointers to tensors of which elements are gathered, but for those that are ``given`` already."""
    of = {kernel.memory[operand.name]: operand.table for operand in gathered}
    new = {name: table for name, table in of.items() if all(name != operand.name for operand in given)}
    inputs = [(name, _input(table, kernel, schedule, names)) for name, table in new.items()]
    return [replace(found, name=names.pointer(name)) for name, found in inputs]


def reduced_type(reduce: Reduce) -> str:
    """The type of what a reduction compares or adds up."""
    return reduce.expr.children[0].dtype.ctype if BY_KIND[reduce.kind].located else reduce.expr.dtype.ctype


def state_type(reduce: Reduce) -> str:
    """The type that partial results have in memory."""
    state = BY_KIND[reduce.kind].state
    return f"fg::{state}<{reduced_type(reduce)}>" if state else reduce.expr.dtype.ctype


def _reads(expr: Expr) -> set[str]:
    return {ref.name for ref in refs(expr)}


def _partial(name: str, ctype: str, names: Names) -> Param:
    return Param("partial", f"{names.stem(name)}_partial", ctype, name, 0, "[splits, m]")


def _input(operand: Operand, kernel: Kernel, schedule: Schedule, names: Names) -> Param:
    """Results of an earlier kernel are not __restrict__: see fg::wait_for_previous_kernel."""
    given = operand.name not in schedule.fresh and any(operand.name == o.name for o in kernel.op.operands)
    ctype = f"const {operand.dtype.ctype}*{' __restrict__' if given else ''}"
    return Param("in", names.pointer(operand.name), ctype, operand.name, 0, shape_text(operand.shape))


def _scalar(scalar: Scalar, names: Names) -> Param:
    ctype = scalar.dtype.compute.ctype
    return Param("scalar", names.variable(scalar.name), ctype, scalar.name, dtype=scalar.dtype)


def _output(output: Output, names: Names) -> Param:
    comment = shape_text(output.shape)
    return Param("out", names.pointer(output.name), f"{output.dtype.ctype}* __restrict__", output.name, 0, comment)


def _numbers(kernel: Kernel, items: Iterable[Computed], names: Names) -> list[Param]:
    """The scalars and sizes of axes that the items read."""
    gathered = _gathered(kernel, items)
    places = [pair for operand in gathered for pair in operand.asked]
    nodes = list(walk([*(item.expr for item in items), *(place for _, place in places)]))
    read = {node.name for node in nodes if isinstance(node, Ref)}
    told = {axis for axis, _ in places if own_size(axis) is None}
    axes = sorted({node.axis for node in nodes if isinstance(node, Size)} | told)
    scalars = [_scalar(scalar, names) for scalar in kernel.scalars if scalar.name in read]
    return [*scalars, *(Param("axis", axis.upper(), "int64_t", axis) for axis in axes)]


def _extents(schedule: Schedule) -> list[Param]:
    index = schedule.index
    divisor = divisor_type(index)
    total = schedule.loops + schedule.inner
    if isinstance(schedule, (ElementwiseSchedule, FullReductionSchedule)):
        needs = needs_coordinates(schedule)
        extents = [Param("count", "n", index, "all")]
        return extents + [Param("divisor", f"n{i}", divisor, loop=i) for i in range(1, total) if needs]
    if isinstance(schedule, TransposeSchedule):
        return [Param("divisor", f"n{i}", divisor, loop=i) for i in range(total - 2)] + [
            Param("extent", "rows", "int", loop=total - 2),
            Param("extent", "cols", "int", loop=total - 1),
        ]
    extents = [Param("count", "m", index, "kept"), Param("count", "n", index, "reduced")]
    extents += [Param("divisor", f"n{i}", divisor, loop=i) for i in range(1, total) if i != schedule.loops]
    if not isinstance(schedule, RowSchedule):
        return [*extents, *([Param("chunk", "chunk", index)] if schedule.split else [])]
    if schedule.threads_per_segment:
        extents.append(Param("segment", "segment_size", index))
        extents += [Param("shares", "shares", "int")] if schedule.cluster > 1 else []
    return extents


def needs_coordinates(schedule: Schedule) -> bool:
    """Whether some operand is not simply at the linear position."""
    return any(p.access in (Access.ROW, Access.SPLAT, Access.STRIDED) for p in schedule.placements)


def _strides(placement: Placement, schedule: Schedule, kernel: Kernel, names: Names) -> list[Param]:
    if placement.access in (Access.DENSE, Access.UNALIGNED, Access.SINGLE):
        return []
    if schedule.split:
        others = [o for o in kernel.operands if isinstance(o, Position)] + _gathered(kernel, kernel.reducing)
        if all(o.name != placement.name for o in (*_main_operands(kernel, True), *kernel.pointwise, *others)):
            return []
    return _moving(placement, placement.moves, kernel, schedule, names)


def _moving(
    placement: Placement, moves: Sequence[str], kernel: Kernel, schedule: Schedule, names: Names
) -> list[Param]:
    name, start = placement.name, names.stem(kernel.memory.get(placement.name, placement.name))
    loops = [loop for loop, move in enumerate(moves) if move == "s"]
    return [Param("stride", f"{start}_stride{loop}", schedule.index, name, loop) for loop in loops]


def _finish_parameters(kernel: Kernel, schedule: Schedule, names: Names) -> tuple[Param, ...]:
    read = {name for item in kernel.ending for name in _reads(item.expr)}
    gathered = _gathered(kernel, kernel.ending)
    read = with_places(read, kernel.gathered)
    operands = [o for o in kernel.tensors if o.name in read]
    found = [_partial(r.name, f"const {state_type(r)}*", names) for r in kernel.states]
    found += [_input(o, kernel, schedule, names) for o in operands]
    found += _tables(gathered, operands, kernel, schedule, names)
    found += [_output(o, names) for o in kernel.outputs]
    found += _numbers(kernel, kernel.ending, names)
    found += [step for operand in gathered for step in _steps(operand, kernel, schedule, names)]
    index = schedule.index
    divisor = divisor_type(index)
    found += [Param("count", "m", index, "kept"), Param("splits", "splits", "int")]
    found += [Param("divisor", f"n{i}", divisor, loop=i) for i in range(1, schedule.kept)]
    for thing in (*operands, *gathered, *kernel.outputs):
        placement = schedule.placement(thing.name)
        if placement.access is not Access.SINGLE:
            found += _moving(placement, placement.moves[: schedule.kept], kernel, schedule, names)
    return _each_once(found, kernel)


def divisor_type(index: str) -> str:
    """The C type of what positions of this C type are divided by."""
    return "fg::Divisor" if index == "int" else "fg::Divisor64"

"""A scheduled kernel as a kernel program, and that as CUDA text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusegen.core.ir import Call, Expr, walk
from fusegen.core.within import sites
from fusegen.declare.table import lookup
from fusegen.fuse.kernel import Kernel
from fusegen.fuse.rows_schedule import RowSchedule
from fusegen.fuse.schedule import (
    ColumnSchedule,
    ElementwiseSchedule,
    FullReductionSchedule,
    LineSchedule,
    Schedule,
    SerialSchedule,
    TransposeSchedule,
)
from fusegen.fuse.strided_rows import StridedRowSchedule
from fusegen.generate.builder import Builder
from fusegen.generate.elementwise import Elementwise, FullReduction, TiledTranspose
from fusegen.generate.frame import finish_comment, frame_of, header_of
from fusegen.generate.names import Names, unmarked
from fusegen.generate.rendered import Rendered, file_text
from fusegen.generate.row_loops import Rows
from fusegen.generate.strided_rows import StridedRows
from fusegen.generate.sums import Reduction, Sums
from fusegen.kernel_program.check import check_program, waits
from fusegen.kernel_program.nodes import KernelProgram

# Who makes the program of a kernel, by its schedule.
BUILDERS: Mapping[type[Schedule], Any] = {
    ElementwiseSchedule: Elementwise,
    TransposeSchedule: TiledTranspose,
    FullReductionSchedule: FullReduction,
    SerialSchedule: Reduction,
    LineSchedule: Reduction,
    ColumnSchedule: Reduction,
    RowSchedule: Rows,
    StridedRowSchedule: StridedRows,
}


def programs(kernel: Kernel, schedule: Schedule, names: Names) -> list[tuple[Builder, KernelProgram]]:
    """The programs of a scheduled kernel, each with who made it: one, or two of a split reduction."""
    builder = BUILDERS[type(schedule)](kernel, schedule, names)
    found = [(builder, builder.program())]
    if schedule.split:
        sums = Sums(kernel, schedule, names)
        found.append((sums, sums.finish()))
    return found


def render(kernel: Kernel, schedule: Schedule) -> Rendered:
    """CUDA text of ``kernel`` as ``schedule`` says.

    Raises:
        LegalityError: its program is not legal: a bug in fusegen.
    """
    headers = _extra_headers(kernel)
    names = Names(kernel, headers)
    made = programs(kernel, schedule, names)
    code = _text(made, kernel, schedule, names)
    while not names.settle(code):
        made = programs(kernel, schedule, names)
        code = _text(made, kernel, schedule, names)
    for _, program in made:
        check_program(program, kernel.name)
    finish = kernel.finish if schedule.split else None
    return Rendered(
        file_text(headers, [unmarked(code)]), kernel.name, finish, any(waits(program) for _, program in made), headers,
        schedule.dynamic, schedule.cluster, sites(_exprs(kernel)),
    )  # fmt: skip


def marked(kernel: Kernel, schedule: Schedule, names: Names) -> str:
    """The text, the op's names in it marked (generate/names)."""
    return _text(programs(kernel, schedule, names), kernel, schedule, names)


def _text(made: Sequence[tuple[Builder, KernelProgram]], kernel: Kernel, schedule: Schedule, names: Names) -> str:
    """The text of a kernel's programs."""
    texts = []
    for stage, (builder, program) in zip(("main", "finish"), made, strict=False):
        finishes = stage == "finish"
        frame = frame_of(kernel, schedule, names, kernel.finish if finishes else kernel.name, stage)
        above = [*([finish_comment(schedule)] if finishes else [header_of(kernel, schedule)]), *frame.table]
        texts.append(builder.text(program, above, frame.signature))
    return "\n".join(texts)


def _exprs(kernel: Kernel) -> list[Expr]:
    """Everything that it computes."""
    places = [place for operand in kernel.gathered for _, place in operand.places]
    return [*(item.expr for item in kernel.items), *places]


def _extra_headers(kernel: Kernel) -> tuple[str, ...]:
    names = {node.function for node in walk(_exprs(kernel)) if isinstance(node, Call)}
    texts = [lookup(name).header.strip() for name in sorted(names)]
    return tuple(text for text in texts if text)

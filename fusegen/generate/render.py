"""A scheduled kernel as CUDA text: fills the slots of the template of its shape.

Templates hold loops and slots. Everything in the slots is made here, from the kernel and its schedule, with
expressions printed by cexpr.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
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
from fusegen.generate.elementwise import Elementwise, FullReduction, TiledTranspose
from fusegen.generate.names import Names, unmarked
from fusegen.generate.rendered import Rendered, file_text, template_text
from fusegen.generate.rows import Rows
from fusegen.generate.strided_rows import StridedRows
from fusegen.generate.sums import Reduction, Sums

# What fills the template of a schedule.
FILLERS: Mapping[type[Schedule], Any] = {
    ElementwiseSchedule: Elementwise,
    TransposeSchedule: TiledTranspose,
    FullReductionSchedule: FullReduction,
    SerialSchedule: Reduction,
    LineSchedule: Reduction,
    ColumnSchedule: Reduction,
    RowSchedule: Rows,
    StridedRowSchedule: StridedRows,
}


@cache
def environment() -> Any:
    """What fills templates."""
    import jinja2  # costs 50 ms, which a warm start does not need

    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(template_text), trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    made.filters["nest"] = _nest
    return made


def render(kernel: Kernel, schedule: Schedule) -> Rendered:
    """CUDA text of ``kernel`` as ``schedule`` says."""
    headers = _extra_headers(kernel)
    names = Names(kernel, headers)
    code = marked(kernel, schedule, names)
    while not names.settle(code):
        code = marked(kernel, schedule, names)
    finish = kernel.finish if schedule.split else None
    text = file_text(headers, [unmarked(code)])
    return Rendered(
        text, kernel.name, finish, _barriers(schedule), headers, schedule.dynamic, schedule.cluster,
        sites(_exprs(kernel)),
    )  # fmt: skip


def marked(kernel: Kernel, schedule: Schedule, names: Names) -> str:
    """The text, the op's names in it marked (generate/names)."""
    code = _fill(schedule.template, FILLERS[type(schedule)](kernel, schedule, names).slots())
    if schedule.split:
        code += _fill("finish", Sums(kernel, schedule, names).finish(kernel.finish))
    return code


def _fill(template: str, slots: dict[str, Any]) -> str:
    text: str = environment().get_template(f"{template}.cu.j2").render(slots)
    return text


def _barriers(schedule: Schedule) -> bool:
    if isinstance(schedule, StridedRowSchedule):
        return schedule.rows > 1 or schedule.persistent
    return not isinstance(schedule, (ElementwiseSchedule, SerialSchedule))


def _nest(text: str, columns: int) -> str:
    """Lines moved to the right, but those of the preprocessor, which stay at the margin."""
    lines = text.rstrip("\n").split("\n")
    return "\n".join(line if not line or line.startswith("#") else " " * columns + line for line in lines)


def _exprs(kernel: Kernel) -> list[Expr]:
    """Everything that it computes."""
    places = [place for operand in kernel.gathered for _, place in operand.places]
    return [*(item.expr for item in kernel.items), *places]


def _extra_headers(kernel: Kernel) -> tuple[str, ...]:
    names = {node.function for node in walk(_exprs(kernel)) if isinstance(node, Call)}
    texts = [lookup(name).header.strip() for name in sorted(names)]
    return tuple(text for text in texts if text)

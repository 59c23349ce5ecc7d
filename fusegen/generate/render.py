"""A scheduled kernel as CUDA text: fills the slots of the template of its shape.

Templates hold loops and slots. Everything in the slots is made here, from the kernel and its schedule, with
expressions printed by cexpr.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fusegen.core.ir import Call, walk
from fusegen.declare.table import lookup
from fusegen.fuse.kernel import Kernel
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.schedule import Schedule
from fusegen.fuse.strided_rows import StridedRowKernel
from fusegen.generate.elementwise import Elementwise
from fusegen.generate.names import Names, unmarked
from fusegen.generate.rendered import Rendered, file_text, template_text
from fusegen.generate.rows import Rows
from fusegen.generate.strided_rows import StridedRows
from fusegen.generate.sums import Sums


@cache
def _environment() -> Any:
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
        text, kernel.name, finish, _barriers(kernel, schedule), headers, schedule.dynamic, schedule.cluster
    )  # fmt: skip


def marked(kernel: Kernel, schedule: Schedule, names: Names) -> str:
    """The text, the op's names in it marked (generate/names)."""
    filler: Rows | StridedRows | Elementwise
    if isinstance(kernel, RowKernel) and schedule.template == "rows":
        filler = Rows(kernel, schedule, names)
        code = _fill("rows", filler.rows())
    elif isinstance(kernel, StridedRowKernel):
        filler = StridedRows(kernel, schedule, names)
        code = _fill("strided_rows", filler.strided_rows())
    else:
        filler = Elementwise(kernel, schedule, names)
        fill = {
            "elementwise": filler.elementwise,
            "tiled_transpose": filler.tiled_transpose,
            "full_reduction": filler.full_reduction,
        }
        code = _fill(schedule.template, fill.get(schedule.template, filler.reduction)())
    if schedule.split:
        code += _fill("finish", Sums(kernel, schedule, names).finish(kernel.finish))
    return code


def _fill(template: str, slots: dict[str, Any]) -> str:
    text: str = _environment().get_template(f"{template}.cu.j2").render(slots)
    return text


def _barriers(kernel: Kernel, schedule: Schedule) -> bool:
    if isinstance(kernel, StridedRowKernel):
        return schedule.rows > 1 or schedule.persistent
    return schedule.template not in ("elementwise", "serial")


def _nest(text: str, columns: int) -> str:
    """Lines moved to the right, but those of the preprocessor, which stay at the margin."""
    lines = text.rstrip("\n").split("\n")
    return "\n".join(line if not line or line.startswith("#") else " " * columns + line for line in lines)


def _extra_headers(kernel: Kernel) -> tuple[str, ...]:
    names = {node.function for node in walk([item.expr for item in kernel.items]) if isinstance(node, Call)}
    texts = [lookup(name).header.strip() for name in sorted(names)]
    return tuple(text for text in texts if text)

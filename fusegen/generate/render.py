"""A scheduled kernel as CUDA text: fills the slots of the template of its shape.

Templates hold loops and slots. Everything in the slots is made here, from the kernel and its schedule, with
expressions printed by cexpr.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from fusegen.core.ir import Call, walk
from fusegen.declare.table import lookup
from fusegen.fuse.kernel import Kernel
from fusegen.fuse.lanes import LaneKernel
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.schedule import Schedule
from fusegen.generate.lanes import Lanes
from fusegen.generate.rendered import Rendered, file_text, template_text
from fusegen.generate.rows import Rows
from fusegen.generate.sums import Sums
from fusegen.generate.walks import Walk


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
    if isinstance(kernel, RowKernel) and schedule.template == "rows":
        body = _environment().get_template("rows.cu.j2").render(Rows(kernel, schedule).rows())
        finish = None
        if schedule.split:
            finish = f"{kernel.name}_finish"
            body += _environment().get_template("finish.cu.j2").render(Sums(kernel, schedule).finish(finish))
        return replace(_rendered(kernel, body, finish, True), shared=schedule.dynamic)
    if isinstance(kernel, LaneKernel):
        body = _environment().get_template("lanes.cu.j2").render(Lanes(kernel, schedule).lanes())
        return _rendered(kernel, body, None, schedule.rows > 1 or schedule.sweep)
    view = Walk(kernel, schedule)
    fill = {
        "elementwise": view.elementwise,
        "turned": view.turned,
        "whole": view.whole,
        "serial": view.reduction,
        "row": view.reduction,
        "column": view.reduction,
    }
    body = _environment().get_template(f"{schedule.template}.cu.j2").render(fill[schedule.template]())
    finish = None
    if schedule.split:
        finish = f"{kernel.name}_finish"
        body += _environment().get_template("finish.cu.j2").render(view.finish(finish))
    return _rendered(kernel, body, finish, schedule.template not in ("elementwise", "serial"))


def _rendered(kernel: Kernel, body: str, finish: str | None, barriers: bool) -> Rendered:
    extra = _extra_headers(kernel)
    return Rendered(file_text(extra, [body]), kernel.name, finish, barriers, extra)


def _nest(text: str, columns: int) -> str:
    """Lines moved to the right, but those of the preprocessor, which stay at the margin."""
    lines = text.rstrip("\n").split("\n")
    return "\n".join(line if not line or line.startswith("#") else " " * columns + line for line in lines)


def _extra_headers(kernel: Kernel) -> tuple[str, ...]:
    names = {node.function for node in walk([item.expr for item in kernel.items]) if isinstance(node, Call)}
    texts = [lookup(name).header.strip() for name in sorted(names)]
    return tuple(text for text in texts if text)

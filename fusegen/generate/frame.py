"""What stands around the body of a kernel: its header, its parameters, and how it tells its blocks."""

from __future__ import annotations

from typing import NamedTuple

from fusegen.core.ir import Output, Reduce
from fusegen.core.text import expr_text, reduce_text
from fusegen.fuse.kernel import Kernel
from fusegen.fuse.schedule import Schedule
from fusegen.generate.names import Names
from fusegen.generate.params import parameters
from fusegen.generate.table import Table
from fusegen.generate.wording import comment, explain, signature

# In whose order the second kernel of a split reduction puts pieces together.
_ORDERS = {"thread": "their order", "block": "a fixed order by a block", "tile": "a fixed order by a column of threads"}


class Frame(NamedTuple):
    """What a kernel is called with.

    Attributes:
        signature: its name and parameters.
        table: declares what each of many tensors has, where a launch has many.
    """

    signature: str
    table: list[str]


def frame_of(kernel: Kernel, schedule: Schedule, names: Names, name: str, stage: str) -> Frame:
    """What stands around the body of a kernel; ``stage`` "finish" is the second kernel of a split."""
    params = parameters(kernel, schedule, names, stage)
    if not schedule.table:
        return Frame(signature(name, params), [])
    table = Table.of(params)
    return Frame(signature(name, table.parameters(name)), table.declare(name))


def header_of(kernel: Kernel, schedule: Schedule) -> str:
    """The comment above a kernel: its op, what it computes, and why it has its shape."""
    op = kernel.op
    title = f"{op.name}, {op.label}"
    where = f"declared in {op.declared}" if op.declared else ""
    lines = [f"{title:<60}{where}".rstrip()]
    for item in kernel.items:
        if isinstance(item, Reduce):
            lines.append(f"  {reduce_text(item)}")
        elif not (isinstance(item, Output) and expr_text(item.expr) == item.name):
            lines.append(f"  {item.name} = {expr_text(item.expr)}")
    lines.append(explain(kernel, schedule))
    return "\n".join(piece for line in lines for piece in comment(line))


def finish_comment(schedule: Schedule) -> str:
    """The comment above the second kernel of a split reduction."""
    return f"// The pieces of each result, combined in {_ORDERS[schedule.finish]}."

"""The words around a kernel's arithmetic: its signature, its header and why it has the shape it has."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fusegen.fuse.kernel import Kernel, Position
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.rows_schedule import RowSchedule
from fusegen.fuse.schedule import (
    Access,
    ColumnSchedule,
    ElementwiseSchedule,
    FullReductionSchedule,
    LineSchedule,
    Placement,
    Schedule,
    TransposeSchedule,
)
from fusegen.fuse.strided_rows import StridedRowKernel, StridedRowSchedule
from fusegen.generate.params import Param

WIDTH = 120


def signature(name: str, params: Sequence[Param]) -> str:
    """``name(type a,  // [D0]`` with one parameter a line, numbers together on the last lines.

    Parameters stand below the first one; where the name is too long for that, below the name.
    """
    pointers = [p for p in params if p.kind in ("in", "out", "partial")]
    numbers = [f"{p.ctype} {p.name}" for p in params if p not in pointers]
    lines = []
    for position, p in enumerate(pointers):
        last = position == len(pointers) - 1 and not numbers
        lines.append((f"{p.ctype} {p.name}" + (")" if last else ","), p.comment))
    width = max((len(text) for text, _ in lines), default=0)
    printed = [f"{text:<{width}}  // {comment}" for text, comment in lines]
    indent = " " * (len("void ") + len(name) + 1)
    first = f"{name}("
    if len(indent) + max(map(len, printed), default=0) > WIDTH:
        indent = "    "
        first += "\n" + indent
    if numbers:
        printed += _packed(numbers, WIDTH - len(indent) - len(") {"))
        printed[-1] += ")"
    return first + ("\n" + indent).join(printed) + ("" if numbers else "\n    ")


def filled_signature(name: str, params: Sequence[str]) -> str:
    """``name(type a, type b,`` with as many parameters a line as there is room for, below the first one."""
    indent, lines, line = " " * (len("void ") + len(name) + 1), list[str](), f"{name}("
    for place, param in enumerate(params):
        piece = param + (")" if place == len(params) - 1 else ",")
        if place and len(line) + len(piece) + 8 > 120:
            lines.append(line)
            line = indent + piece
        else:
            line += (" " if place else "") + piece
    return "\n".join([*lines, line])


def _packed(items: Sequence[str], width: int) -> list[str]:
    """The items separated by commas, as many a line as fit."""
    lines = [items[0]]
    for item in items[1:]:
        if len(lines[-1]) + len(item) + 3 > max(width, 40):
            lines[-1] += ","
            lines.append(item)
        else:
            lines[-1] += f", {item}"
    return lines


def comment(line: str) -> list[str]:
    """A comment, continued on further lines, deeper, where it is too long for one."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    pieces = textwrap.wrap(line, WIDTH - 3, subsequent_indent=indent, break_long_words=False, drop_whitespace=True)
    return [f"// {piece}" for piece in pieces] if len(line) > WIDTH - 3 else [f"// {line}"]


def explain(kernel: Kernel, schedule: Schedule) -> str:
    """One line on the kernel's shape and why it was chosen."""
    many = ", of one of the many tensors of a launch" if schedule.table else ""
    return _explain_shape(kernel, schedule) + many


def _explain_shape(kernel: Kernel, schedule: Schedule) -> str:
    if isinstance(schedule, ElementwiseSchedule):
        return f"elementwise: {_explain_elementwise(schedule, in_memory(kernel, schedule))}"
    if isinstance(schedule, TransposeSchedule):
        names = ", ".join(p.name for p in schedule.placements if p.access is Access.TRANSPOSED)
        return f"tiled transpose: {names} is contiguous along another axis, and is read through tiles in shared memory"
    if isinstance(kernel, StridedRowKernel) and isinstance(schedule, StridedRowSchedule):
        return f"strided rows: {_explain_strided_rows(kernel, schedule)}"
    if isinstance(kernel, RowKernel) and isinstance(schedule, RowSchedule):
        return f"rows: {_explain_rows(kernel, schedule)}"
    over = ", ".join(axis.upper() for axis in kernel.over)
    pieces = "; cut into pieces that a second kernel combines in order" if schedule.split else ""
    if isinstance(schedule, FullReductionSchedule):
        along = f", and writes {', '.join(o.name for o in kernel.pointwise)} on the way" if kernel.pointwise else ""
        return f"full reduction: one pass reduces everything{along}{pieces}"
    if isinstance(schedule, LineSchedule):
        return f"row: a block a result, reduced over {over}, along the fast axis{pieces}"
    if isinstance(schedule, ColumnSchedule):
        results = schedule.block_width * schedule.vector
        return f"column: {results} neighbouring results a block, reduced over {over}{pieces}"
    return f"serial: a thread a result, reduced over {over}"


def in_memory(kernel: Kernel, schedule: Schedule) -> list[Placement]:
    """The placements of tensors: a position along an axis has one as well, but is read from nowhere."""
    positions = {operand.name for operand in kernel.operands if isinstance(operand, Position)}
    return [placement for placement in schedule.placements if placement.name not in positions]


def starts_early(before: str) -> str:
    """How a kernel is launched behind another one of its program, where the chip can."""
    return f"starts while {before} drains (programmatic dependent launch)"


def _explain_elementwise(schedule: ElementwiseSchedule, placements: Sequence[Placement]) -> str:
    def named(*accesses: Access) -> list[Placement]:
        return [p for p in placements if p.access in accesses]

    if schedule.vector == 1:
        cut = [p for p in named(Access.STRIDED) if p.moves[-1:] == ("1",)]
        why = f"rows of {_names(cut)} begin between vectors" if cut else "nothing here lies side by side in memory"
        several = f"{schedule.vectors_per_thread} elements a thread, a block apart"
        return f"{several if schedule.vectors_per_thread > 1 else 'one element a thread'}; {why}"
    rows = named(Access.ROW, Access.SPLAT)
    groups = {
        "broadcast": [p for p in rows if "0" in p.moves],
        "in rows that lie apart": [p for p in rows if "0" not in p.moves],
        "gathered element by element": named(Access.STRIDED),
        "the same for all": named(Access.SINGLE),
    }
    notes = [f"{_names(group)} {how}" for how, group in groups.items() if group]
    how = f"{schedule.vector} elements a thread"
    return f"{how}; {'; '.join(notes)}" if notes else f"{how}, everything lies side by side"


def _names(placements: Sequence[Placement]) -> str:
    return ", ".join(placement.name for placement in placements)


def _explain_rows(kernel: RowKernel, schedule: RowSchedule) -> str:
    over = ", ".join(axis.upper() for axis in kernel.over)
    if not kernel.reduces and not kernel.columns:
        return f"elementwise, {over} in pieces: what a row's elements have in common is computed once for each piece"
    sums = ", ".join(r.name for r in kernel.columns)
    along = f"; {sums} added up over the rows of a group, then over groups by a second kernel" if sums else ""
    if kernel.row_tiles:
        return f"{over} in pieces, each read once{along}"
    if schedule.cluster > 1:
        who = f"{schedule.cluster} blocks of {schedule.threads} threads"
    else:
        who = f"{schedule.threads} threads" if schedule.threads > 1 else "a thread"
    if schedule.chunked:
        chunks = "chunks that blocks share and a second kernel combines in order" if schedule.split else "chunks"
        return f"{who} a row over {over}, which is read once, in {chunks}{along}"
    where = "shared memory" if schedule.staged else "registers"
    stays = f"{who} a row over {over}, which stays in {where}"
    return f"{stays}: read once{_explain_reused(schedule)}{along}{_explain_parts(kernel)}"


def _explain_reused(schedule: Schedule) -> str:
    """What a thread computes of an element in one traversal for all."""
    names = schedule.reused
    return f"; {', '.join(names)} kept between its traversals" if names else ""


def _explain_parts(kernel: RowKernel) -> str:
    """What a row leaves of sums that go on over rows."""
    if not kernel.begun:
        return ""
    names = ", ".join(output.name for output in kernel.begun)
    each = (
        f", a number for each run over {', '.join(axis.upper() for axis in kernel.within)}" if kernel.segments else ""
    )
    return f"; leaves {names}{each}, which a second kernel adds up over rows"


def _explain_strided_rows(kernel: StridedRowKernel, schedule: StridedRowSchedule) -> str:
    over = ", ".join(axis.upper() for axis in kernel.over)
    results = f"{schedule.vector} neighbouring results" if schedule.vector > 1 else "a result"
    who = f"{schedule.rows} threads" if schedule.rows > 1 else "a thread"
    sums = ", ".join(r.name for r in kernel.totals)
    along = f"; {sums} added up by blocks, then over blocks by a second kernel" if sums else ""
    stay = f"{who} for {results} over {over}, whose elements stay in registers"
    return f"{stay}: read once{_explain_reused(schedule)}{along}"

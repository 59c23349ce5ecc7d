"""A scan's kernels as CUDA text."""

from __future__ import annotations

from fusegen.core.ir import Expr, refs
from fusegen.core.text import expr_text
from fusegen.fuse.scan_schedule import ScanSchedule
from fusegen.generate.builder import macros
from fusegen.generate.rendered import Rendered, file_text
from fusegen.generate.scan_params import scan_parameters
from fusegen.generate.scan_programs import deepest, scan_program
from fusegen.generate.wording import WIDTH, comment, filled_signature
from fusegen.kernel_program.check import check_program
from fusegen.kernel_program.text import Lines

HEADER = '#include "fusegen_scan.cuh"'
_FORMULAS = {
    "sum": "y[i] = y[i - 1] + a[i]", "prod": "y[i] = y[i - 1] * a[i]", "max": "y[i] = maximum(y[i - 1], a[i])",
    "min": "y[i] = minimum(y[i - 1], a[i])", "logaddexp": "y[i] = log(exp(y[i - 1]) + exp(a[i]))",
    "affine": "y[i] = a[i] * y[i - 1] + b[i]",
    "segments": "y[i] = a[i] ? y[i - 1] + b[i] : b[i]", "argmax": "y[i] = where the maximum of a[0 .. i] stands",
    "argmin": "y[i] = where the minimum of a[0 .. i] stands", "last": "y[i] = a[i]",
}  # fmt: skip
# Characters of an expression that a header does not repeat.
_LONG = 60


def render_scan(schedule: ScanSchedule, stage: str) -> Rendered:
    """The text of one of a scan's kernels.

    Raises:
        LegalityError: its program is not legal: a bug in fusegen.
    """
    name, program = _name(schedule, stage), scan_program(schedule, stage)
    check_program(program, name)
    lines = Lines(macros(), WIDTH - deepest(schedule)).of(program.body)
    params = scan_parameters(schedule, stage)
    signature = filled_signature(name, [f"{param.ctype} {param.name}" for param in params])
    code = str(macros().kernel(_header(schedule, stage), "", program.bounds, signature, lines))
    barriers = not schedule.columns and schedule.lanes > 1
    return Rendered(file_text((HEADER,), [code]), name, None, barriers, (HEADER,))


def _name(schedule: ScanSchedule, stage: str) -> str:
    how, words = schedule.how, ["scan"]
    words += [how.combine, *(["reverse"] if how.reverse else []), *(["exclusive"] if how.exclusive else [])]
    dtypes = dict.fromkeys(tensor.dtype.short for tensor in (*schedule.tensors, *schedule.written))
    return "_".join([*words, *(["totals"] if stage == "totals" else []), *dtypes])


def _said(value: Expr) -> str:
    """What is combined: as it is written, or of what it is made where that is long."""
    text = expr_text(value)
    return f"= {text}" if len(text) <= _LONG else f"of {', '.join(dict.fromkeys(ref.name for ref in refs(value)))}"


def _header(schedule: ScanSchedule, stage: str) -> list[str]:
    """What the kernel computes, and why it has its shape."""
    how, program = schedule.how, schedule.program
    made = [f"{name} {_said(value)}" for name, value in zip("ab", program.values, strict=False)]
    formula = f"{_FORMULAS[how.combine]} with {', '.join(made)}"
    if how.exclusive:
        formula += ", and the result is y[i - 1]"
    if how.reverse:
        formula += ", from the last element"
    if schedule.columns:
        shape = "columns: rows lie side by side, and each is walked along by a thread"
    elif schedule.lanes < schedule.threads:
        shape = f"rows: {schedule.lanes} of a block's threads for each, in vectors of {schedule.vector}"
    else:
        shape = f"rows: a block for each, {schedule.tile} elements at a time"
    if schedule.split:
        does = "what each part comes to" if stage == "totals" else "each part from what those before it come to"
        shape += f"; few and long, so they are cut into parts: {does}"
    return [line for text in (f"scan: {formula}", shape) for line in comment(text)]

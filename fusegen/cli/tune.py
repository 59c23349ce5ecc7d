"""``fusegen tune``: find faster schedules for an op on this machine's GPU; ``--report`` says what was found so far."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING

from fusegen.bench import text_plots
from fusegen.cli.arguments import Request, resolve
from fusegen.cli.bench import number
from fusegen.cli.examples import example_of
from fusegen.cli.inputs import POSITIVE, Case, choose_device, load_torch, sized
from fusegen.cli.progress import Bar
from fusegen.core.errors import DeviceError
from fusegen.fused_op import FusedOp
from fusegen.inspect.passes import differentiable
from fusegen.tuning.session import SHIPPED, own_file, shipped, tuner
from fusegen.tuning.table import Entry, Table

if TYPE_CHECKING:
    from rich.table import Table as Rows

# Schedules that a search measures, about: what a bar is drawn for. Characters of a bar of --report.
USUAL, LONGEST = 40, 30


def tune_op(
    name: str, dtype: Sequence[str], shape: Sequence[str], arg: Sequence[str], seconds: float, again: bool
) -> None:  # fmt: skip
    """Tune every pass of an op, for random tensors like those asked for, and print what was found.

    Raises:
        DeviceError: there is no GPU.
    """
    request = Request.parse(shape, dtype, arg)
    op = resolve(name, request)
    case = _case(op, request, place_of())
    with Bar(total=USUAL) as bar, tuner(seconds=seconds, again=again, tell=lambda what, tried: bar.step(what)) as found:
        call_every_pass(case)
    if not found:
        print(f"nothing to tune: {_why(again)}", file=sys.stderr)
        return
    print_entries(found, f"{op.name} on {case.place}")
    print(f"written to {own_file()}", file=sys.stderr)


def _why(again: bool) -> str:
    return "there is one way to run it" if again else "it was tuned before (--again), or there is one way to run it"


def place_of() -> str:
    """Where kernels are timed.

    Raises:
        DeviceError: there is no GPU.
    """
    if choose_device(None) == "cpu":
        raise DeviceError(
            "fusegen tune", given="no GPU", expected="one: times of the emulator say nothing about a GPU",
            fix="run it where torch sees a GPU; the file that it writes may be used elsewhere (fg.tune.use)",
        )  # fmt: skip
    return "cuda"


def _case(op: FusedOp, request: Request, device: str) -> Case:
    specs = sized(op, request)
    case = Case.random(op, specs, device, 0, POSITIVE if example_of(op.name).positive else None)
    return case.requiring(differentiable(case.trace()))


def call_every_pass(case: Case) -> None:
    """Without gradients, and with all of them."""
    torch = load_torch()
    with torch.no_grad():
        case.call()
    results = [result for result in case.call() if result.requires_grad]
    if results:
        torch.autograd.backward(results, [torch.randn_like(result) for result in results])


def report() -> None:
    """Print the tables of this machine and of fusegen: every entry, how much faster each is, and geometric means."""
    path = own_file()
    _print_table(shipped(), SHIPPED, " (comes with fusegen)")
    if (own := Table.read(path)).entries:
        _print_table(own, path)
    else:
        print(f"nothing was tuned here yet ({path}); fusegen tune OP does", file=sys.stderr)


def _print_table(table: Table, path: Path, note: str = "") -> None:
    for gpu in sorted({entry.gpu for entry in table.entries.values()}):
        print_entries([entry for entry in table.entries.values() if entry.gpu == gpu], f"{gpu}{note}")
    if table.entries:
        print(path, file=sys.stderr)


def print_entries(entries: Sequence[Entry], title: str) -> None:
    """A line for each, by op, pass and size."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(f"{title}: microseconds as scheduled by default and as tuned, all by turns, L2 flushed", markup=False)
    console.print(_rows(entries, "utf" in console.encoding.lower()))
    shares = [log(entry.best / entry.own) for entry in entries if entry.own and entry.best]
    if shares:
        console.print(f"geometric mean of tuned / default: {exp(sum(shares) / len(shares)):.3f}\n", markup=False)


def _rows(entries: Sequence[Entry], blocks: bool) -> Rows:
    from rich.table import Table as RichTable

    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, justify in (
        ("op", "left"),
        ("pass", "left"),
        ("sizes", "left"),
        ("default", "right"),
        ("tuned", "right"),
    ):
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("tuned / default", no_wrap=True)
    table.add_column("tried", justify="right")
    table.add_column("chosen")
    for entry in sorted(entries, key=lambda e: (e.op, e.label, sorted(e.sizes.items()))):
        share = entry.best / entry.own if entry.own else 1.0
        sizes = " ".join(f"{axis}={size}" for axis, size in sorted(entry.sizes.items()))
        table.add_row(
            entry.op, entry.label, sizes, number(entry.own), number(entry.best),
            f"{share:.2f} {text_plots.bar(share, LONGEST, blocks)}", str(entry.tried), chosen_text(entry),
        )  # fmt: skip
    return table


def chosen_text(entry: Entry) -> str:
    """What is done otherwise: by kernel where there are several."""
    if not entry.chosen:
        return "as by default"
    parts = [
        f"{kernel}: {values}" if len(entry.chosen) > 1 else values
        for kernel, values in (
            (kernel, ", ".join(f"{name} {value}" for name, value in sorted(values.items())))
            for kernel, values in sorted(entry.chosen.items())
        )
    ]
    return "; ".join(parts)

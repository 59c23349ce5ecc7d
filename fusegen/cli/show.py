"""``fusegen show``: every stage of an op, and what its kernels cost on a GPU that need not be there."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fusegen.cli.arguments import Request, bind, resolve
from fusegen.core.errors import FusegenError
from fusegen.inspect.cost import KernelCost, PassCost, pass_cost
from fusegen.inspect.gpus import LAUNCH_MICROSECONDS, PRODUCT_SHARE, Gpu, find_gpu
from fusegen.inspect.passes import called, declared, heading, shown_passes, stages
from fusegen.inspect.product_cost import ProductCost
from fusegen.inspect.units import count_text, size_text, time_text
from fusegen.launch.program import Grid

if TYPE_CHECKING:
    from rich.table import Table

    from fusegen.inspect.page import CostTable

PLAIN_WIDTH = 200
COLUMNS = (
    "kernel", "blocks", "threads", "read", "written", "instructions", "registers", "shared", "local", "predicted"
)  # fmt: skip


def show_op(
    name: str, which: str | None, shape: Sequence[str], dtype: Sequence[str], arg: Sequence[str], gpu: str,
    cost_only: bool, print_code: Callable[[str], None], html: Path | None = None, program: bool = False,
) -> None:  # fmt: skip
    """Print the stages of both passes or of one, with their cost before the CUDA; with ``cost_only`` just that.

    Args:
        html: write them to this file as a page instead.
        program: the kernel programs before the CUDA.

    Raises:
        FusegenError: there is no such op, pass or GPU, or the page cannot be written there.
    """
    if html is not None:
        _check_place(html)
    device = find_gpu(gpu)
    request = Request.parse(shape, dtype, arg)
    op = resolve(name, request)
    arguments = bind(op, request)
    if html is not None:
        from fusegen.inspect.page import ShownPass, html_page

        passes = shown_passes(op, (), arguments, which)
        shown = [ShownPass(item, _in_words(pass_cost(item, device), device), not cost_only) for item in passes]
        _write_page(html, html_page(op, arguments, shown))
        return
    sections: list[str | PassCost] = [*([] if cost_only else [declared(op)]), *called(op)]
    for item in shown_passes(op, (), arguments, which):
        *before, cuda = stages(item)
        cost = pass_cost(item, device)
        if program:
            from fusegen.inspect.programs import programs_section

            before.append(programs_section(item))
        sections += [cost] if cost_only else [*before, cost, cuda]
    for number, section in enumerate(sections):
        if number:
            print()
        if isinstance(section, str):
            print_code(section)
        elif sys.stdout.isatty():
            _print_cost(section, device)
        else:
            sys.stdout.write(cost_text(section, device))


def _print_cost(cost: PassCost, gpu: Gpu) -> None:
    """The section for a terminal."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(heading(_title(cost, gpu)), style="bold", markup=False)
    for step in cost.steps:
        console.print(_name(step), style="bold", markup=False)
        console.print("\n".join(_about(step)) + "\n", markup=False)
    console.print(cost_table(cost, gpu), soft_wrap=False)
    console.print("\n" + "\n".join(_remarks(cost, gpu)), style="dim", markup=False)


def cost_text(cost: PassCost, gpu: Gpu) -> str:
    """The section: kernels' shapes and operands, products' candidates, the table, and what the estimate is worth."""
    from rich.console import Console

    printed = io.StringIO()
    Console(file=printed, width=PLAIN_WIDTH, color_system=None, highlight=False).print(cost_table(cost, gpu))
    table = [line.rstrip() for line in printed.getvalue().splitlines()]
    steps = [line for step in cost.steps for line in (_name(step), *_about(step), "")]
    return "\n".join([heading(_title(cost, gpu)), *steps, *table, "", *_remarks(cost, gpu), ""])


def _title(cost: PassCost, gpu: Gpu) -> str:
    return f"{cost.label}: cost on {gpu.name}, {gpu.arch}"


def _name(step: KernelCost | ProductCost) -> str:
    return step.text if isinstance(step, ProductCost) else step.entry


def _about(step: KernelCost | ProductCost) -> list[str]:
    """Why a kernel has its shape, or a product's sizes and candidates; and what either moves."""
    traffic = [f"{word} {_listed(sizes)}" for word, sizes in (("reads", step.read), ("writes", step.written)) if sizes]
    if isinstance(step, KernelCost):
        return [f"  {step.why}", f"  {'; '.join(traffic)}"]
    count = f"{count_text(step.operations)} operations in {step.dtype}"
    return [f"  {step.sizes_text}: {count}", f"  {'; '.join(traffic)}", *(f"  {line}" for line in step.candidates)]


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size_text(size)}" for name, size in sizes.items())


def cost_table(cost: PassCost, gpu: Gpu) -> Table:
    """One line a launch, then the pass against its floor."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(COLUMNS[0], overflow="fold")
    for title in COLUMNS[1:]:
        table.add_column(title, justify="right", no_wrap=True)
    for row in _cost_rows(cost, gpu):
        table.add_row(*row)
    return table


def _cost_rows(cost: PassCost, gpu: Gpu) -> list[list[str]]:
    """The cells of the table."""
    rows = []
    for step in cost.steps:
        shape, compiled, issued = ["-"] * 2, ["-"] * 3, "-"
        if isinstance(step, KernelCost):
            shape, issued = [_across(step.grid), _across(step.block)], count_text(step.work.issued)
            used = step.used
            if used is not None:
                compiled = [str(used.registers), size_text(used.shared_bytes), size_text(used.local_bytes)]
        read, written = (size_text(sum(sizes.values())) for sizes in (step.read, step.written))
        rows.append([_name(step), *shape, read, written, issued, *compiled, time_text(step.microseconds(gpu))])
    read_by_all = sum(sum(step.read.values()) for step in cost.steps)
    sums = size_text(read_by_all), size_text(cost.moved - read_by_all)
    issued = count_text(sum(kernel.work.issued for kernel in cost.kernels)) if cost.kernels else "-"
    return [*rows, ["all", "", "", *sums, issued, "", "", "", time_text(cost.microseconds(gpu))]]


def _in_words(cost: PassCost, gpu: Gpu) -> CostTable:
    """The section for a page."""
    from fusegen.inspect.page import CostTable

    steps = [(_name(step), [line.strip() for line in _about(step)]) for step in cost.steps]
    return CostTable(f"cost on {gpu.name}, {gpu.arch}", steps, COLUMNS, _cost_rows(cost, gpu), _remarks(cost, gpu))


def _remarks(cost: PassCost, gpu: Gpu) -> list[str]:
    """The pass against its floor; then what the numbers are worth."""
    ratio = f", {cost.moved / cost.floor:.2f} of the floor" if cost.floor else ""
    lines = [
        f"moved {size_text(cost.moved)}{ratio}: each input once and each result once is {size_text(cost.floor)}, "
        f"{time_text(cost.floor / gpu.bandwidth)}",
        *([f"computed {_instructions(cost)}"] if cost.kernels else []),
        f"predicted, not measured: of every kernel its bytes over {gpu.bandwidth / 1e6:.2f} TB/s ({gpu.source}), or "
        f"its instructions at {gpu.issued / 1e6:.3g} T a second if they take longer, at least "
        f"{time_text(LAUNCH_MICROSECONDS)} a launch, added up",
    ]
    for kernel in cost.kernels:
        if kernel.is_bound_by_arithmetic(gpu):
            lines.append(
                f"{kernel.entry} is bound by arithmetic: its instructions take "
                f"{time_text(gpu.arithmetic(kernel.work))}, its bytes {time_text(kernel.moved / gpu.bandwidth)}"
            )
    if cost.products:
        dtype = cost.products[0].dtype
        work = sum(product.operations / gpu.operations(product.dtype) for product in cost.products)
        lines.append(
            f"products: their bytes likewise, or {gpu.operations(dtype) / 1e6:.3g} Tflop/s in {dtype} "
            f"({PRODUCT_SHARE:.2f} of the vendor's, what halves reach on the H200) where that takes longer; their "
            f"operations alone take {time_text(work)}"
        )
    if cost.uncompiled:
        lines.append(f"no registers and no shared memory to show: {cost.uncompiled}")
    for kernel in cost.kernels:
        if kernel.blocks < gpu.multiprocessors and kernel.moved / gpu.bandwidth > LAUNCH_MICROSECONDS:
            idle = gpu.multiprocessors - kernel.blocks
            lines.append(
                f"{kernel.entry} leaves {idle} of {gpu.multiprocessors} multiprocessors idle: it is taken to have the "
                "others' share of the bandwidth"
            )
    return lines


def _instructions(cost: PassCost) -> str:
    """Those of the pass beside the fewest."""
    issued, least = sum(kernel.work.issued for kernel in cost.kernels), cost.least.issued
    text = f"{count_text(issued)} instructions, a thread's each, without offsets, loops and exchanges"
    return f"{text}; each part of its expressions once is {count_text(least)}" if issued > 1.02 * least else text


def _across(sizes: Grid) -> str:
    """``16 x 10``; sizes of one are left out."""
    return " x ".join(str(size) for size in sizes if size > 1) or "1"


# -- the page --------------------------------------------------------------------------------------------------------


def _check_place(page: Path) -> None:
    """Before anything is compiled."""
    if not page.parent.is_dir():
        raise FusegenError(
            f"--html {page}", given=f"no folder {page.parent}", expected="a file in a folder that exists",
            fix="make the folder first, or choose another",
        )  # fmt: skip
    if page.exists() and not page.is_file():
        raise FusegenError(
            f"--html {page}", given="a folder, or another thing that is no file", expected="the name of a file",
            fix="name a file in it, such as page.html",
        )  # fmt: skip


def _write_page(page: Path, text: str) -> None:
    """Make the file appear complete or not at all."""
    from rich.console import Console

    place = page.resolve()  # what a link leads to is replaced, not the link
    temporary = place.with_name(f".{place.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        try:
            with temporary.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
            os.replace(temporary, place)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        given = str(error.strerror or error)
        raise FusegenError(
            f"--html {page}", given=given, expected="a file that can be written", fix="choose another"
        ) from None
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"wrote {page}", markup=False)

"""``python -m tools.bench``: the tables of docs/performance.md, measured on this machine's GPU.

While tuning: ``python -m tools.bench --only "layer_norm.*4096" --no-peers``, or ``--only products``. The whole takes
some ten minutes; ``--parts rows,products --write docs/performance.md`` replaces these sections and leaves the others.
``--jobs N`` first runs every row once in N processes, so that none of these waits for torch.compile.
The charts beside the page are drawn of its numbers, with it or later: ``--charts docs/performance.md``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fusegen.bench.baselines import NAMES, choose
from fusegen.core.errors import FusegenError
from fusegen.matmul.libraries.stopwatch import Stopwatch
from fusegen.native import module as native
from tools.bench import charts, cold, filling, host, kernels, linear_model, products, report
from tools.bench.report import PARTS, Page
from tools.bench.rows import fits, matching, matching_products


def main() -> int:
    """Measure, print, and write the page if asked to; 1 if a row failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="rows whose title this regular expression occurs in; "
        "titles of rows with matrix products begin with 'products: '",
    )
    parser.add_argument("--no-peers", action="store_true", help="fusegen and the floor only")
    parser.add_argument("--peers", metavar="NAMES", help=f"some of {', '.join(NAMES)}, separated by commas")
    parser.add_argument("--quick", action="store_true", help="without what compiles: torch.compile and JAX")
    parser.add_argument("--autotune", action="store_true", help="torch.compile's search for kernels as well: minutes")
    parser.add_argument("--repeats", type=int, default=30, help="timed calls of each pass")
    parser.add_argument("--jobs", type=int, default=0, help="processes that fill compilers' caches before")
    parser.add_argument("--parts", metavar="NAMES", help=f"some of {', '.join(PARTS)}, separated by commas")
    parser.add_argument("--write", type=Path, help="put what was measured into this page (docs/performance.md)")
    parser.add_argument("--charts", metavar="PAGE", type=Path, help="measure nothing: draw the charts of this page")
    options = parser.parse_args()
    if options.charts:
        return draw_charts(options.charts)
    few = [part for part in PARTS if part in ("rows", "products", "model") or not (options.only or options.no_peers)]
    parts = options.parts.split(",") if options.parts else few
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts {','.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    if options.write and options.only:
        parser.error("--only measures a part of a table, which is nothing to write down: use --parts")
    wanted = choose("none" if options.no_peers else options.peers)
    if options.quick:
        wanted = tuple(name for name in wanted if name not in ("torch.compile", "JAX"))
    # Training runs on the native call path; its build takes longer than a row.
    os.environ.setdefault(native.VARIABLE, "wait")
    page = Page(options.write)
    failed = measure(parts, page, wanted, options)
    drawn = {"rows", "products"} & set(parts) and "rows" in page.sections
    undrawn = draw_charts(options.write) if options.write and drawn else 0
    for title, error in failed.items():
        print(f"\n{title}\n{error}", file=sys.stderr)
    return 1 if failed or undrawn else 0


def draw_charts(page: Path) -> int:
    """Draw what the page says into the folder ``images`` beside it; 1 if it cannot be drawn."""
    try:
        for path in charts.draw(page.read_text(encoding="utf-8"), page.parent / "images"):
            print(path)
    except (FusegenError, OSError, ValueError) as error:
        print(f"{page}: no charts: {error}", file=sys.stderr)
        return 1
    return 0


def measure(parts: Sequence[str], page: Page, wanted: Sequence[str], options: argparse.Namespace) -> dict[str, str]:
    """One part after the other; rows that failed, with their errors."""
    native.awaited()  # no first step is timed together with its build, which no user's first call waits for
    rows = matching(options.only) if "rows" in parts else []
    layers = matching_products(options.only) if "products" in parts else []
    comparisons = [(row.title, partial(filling.of_row, row.title, wanted), row.passes) for row in rows]
    comparisons += [(layer.title, partial(filling.of_layer, layer.title, wanted), layer.passes) for layer in layers]
    filling.fill_in_parallel(options.jobs, comparisons)
    watch = Stopwatch(options.repeats)
    bandwidth = kernels.copy_bandwidth(watch)
    failed: dict[str, str] = {}
    if "rows" in parts:
        run = kernels.measure(rows, wanted, watch, bandwidth)
        page.put("rows", report.rows(run))
        failed |= run.failed
    if "products" in parts:
        run = products.measure(layers, wanted, watch, bandwidth, autotune=options.autotune)
        page.put("products", products.section(run))
        failed |= run.failed
    if "model" in parts and fits(linear_model.TITLE, options.only):
        table, problem = linear_model.report(watch, "cuda", options.autotune, "torch.compile" in wanted)
        failed |= {linear_model.TITLE: problem} if problem else {}
        page.put("model", linear_model.HEAD + table)
    if "loss" in parts:
        sizes = "8192x4096x128256,8192x768x50257"
        page.put("loss", report.linear_loss(_printed("linear_loss", "--sizes", sizes, "--rows", "2048,8192")))
    if "calls" in parts:
        page.put("calls", report.calls(cold.measure()))
    if "host" in parts:
        page.put("host", report.host(f"{host.report()}\n\n{_printed('compiled', '--only', 'lerp(x, y, w)')}"))
    if "models" in parts:
        page.put("models", report.models(_printed("models")))
    return failed


def _printed(module: str, *arguments: str) -> str:
    """The tables that another module of this folder prints, in a process of its own."""
    command = [sys.executable, "-m", f"tools.bench.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr[-2000:] if done.returncode else "")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

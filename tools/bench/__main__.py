"""``python -m tools.bench``: the tables of docs/performance.md, measured on this machine's GPU.

While tuning: ``python -m tools.bench --only "layer_norm.*4096" --no-peers``, or ``--only products``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusegen.wrap import native
from fusegen.wrap.peers import NAMES, choose
from fusegen.wrap.stopwatch import Stopwatch
from tools.bench import cold, host, kernels, linear_model, products
from tools.bench.report import report
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
    parser.add_argument("--write", type=Path, help="write the report to this file (docs/performance.md)")
    options = parser.parse_args()
    wanted = choose("none" if options.no_peers else options.peers)
    if options.quick:
        wanted = tuple(name for name in wanted if name not in ("torch.compile", "JAX"))
    # Training runs on the native call path; its build takes longer than a row.
    os.environ.setdefault(native.VARIABLE, "wait")
    watch = Stopwatch(options.repeats)
    bandwidth = kernels.copy_bandwidth(watch)
    page = Page(options.write)
    page.run = kernels.measure(matching(options.only), wanted, watch, bandwidth)
    page.write()
    of_products = products.measure(matching_products(options.only), wanted, watch, bandwidth, autotune=options.autotune)
    page.failed |= {**page.run.failed, **of_products.failed}
    page.add(products.section(of_products))
    if fits(linear_model.TITLE, options.only):
        table, problem = linear_model.report(watch, "cuda", options.autotune, "torch.compile" in wanted)
        page.failed |= {linear_model.TITLE: problem} if problem else {}
        page.add(linear_model.HEAD + table)
    if not (options.only or options.no_peers):
        sizes = "8192x4096x128256,8192x768x50257"
        page.add(_LINEAR_LOSS.format(table=_printed("linear_loss", "--sizes", sizes, "--rows", "")))
        page.first_calls = cold.measure()
        page.host = f"{host.report()}\n{_printed('compiled', '--only', 'lerp(x, y, w)')}"
        page.write()
        page.models = _printed("models")
    page.write()
    for title, error in page.failed.items():
        print(f"\n{title}\n{error}", file=sys.stderr)
    return 1 if page.failed else 0


@dataclass
class Page:
    """docs/performance.md as far as it has been measured: a run that is cut off leaves that much."""

    path: Path | None
    run: kernels.Run = field(default_factory=lambda: kernels.Run(0.0))
    products: str = ""
    first_calls: list[Any] = field(default_factory=list)
    host: str = ""
    models: str = ""
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, section: str) -> None:
        """One more section on products."""
        self.products += section
        self.write()

    def write(self) -> None:
        """Write it, if there is a path."""
        if self.path:
            text = report(self.run, self.first_calls, self.host, self.models, self.products)
            self.path.write_text(text, encoding="utf-8")


_LINEAR_LOSS = """
## Cross entropy behind a linear layer

Loss and gradients of input and weight; memory beyond arguments and gradients; errors from float32 products.

```
{table}
```
"""


def _printed(module: str, *arguments: str) -> str:
    """The tables that another module of this folder prints, in a process of its own."""
    command = [sys.executable, "-m", f"tools.bench.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr[-2000:] if done.returncode else "")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

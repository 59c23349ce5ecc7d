"""``python -m tools.bench``: the tables of docs/performance.md, measured on this machine's GPU.

While tuning: ``python -m tools.bench --only "layer_norm.*4096" --no-peers``, or ``--only products``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

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
    watch = Stopwatch(options.repeats)
    bandwidth = kernels.copy_bandwidth(watch)
    run = kernels.measure(matching(options.only), wanted, watch, bandwidth)
    of_products = products.measure(matching_products(options.only), wanted, watch, bandwidth, autotune=options.autotune)
    failed = {**run.failed, **of_products.failed}
    section = products.section(of_products)
    if fits(linear_model.TITLE, options.only):
        table, problem = linear_model.report(watch, "cuda", options.autotune, "torch.compile" in wanted)
        section += linear_model.HEAD + table
        failed |= {linear_model.TITLE: problem} if problem else {}
    tuning = options.only or options.no_peers
    first_calls = [] if tuning else cold.measure()
    host_tables = "" if tuning else f"{host.report()}\n{_printed('compiled', '--only', 'lerp(x, y, w)')}"
    models = "" if tuning else _printed("models")
    if not tuning:
        section += _LINEAR_LOSS.format(
            table=_printed("linear_loss", "--sizes", "8192x4096x128256,8192x768x50257", "--rows", "")
        )
    for title, error in failed.items():
        print(f"\n{title}\n{error}", file=sys.stderr)
    if options.write:
        options.write.write_text(report(run, first_calls, host_tables, models, section), encoding="utf-8")
    return 1 if failed else 0


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

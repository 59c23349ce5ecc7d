"""``python -m tools.bench [--write] [--quick]``: the tables of docs/performance.md, measured on this machine's GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.bench import cold, kernels
from tools.bench.report import report


def main() -> None:
    """Measure, print, and write the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="write the report to this file (docs/performance.md)")
    parser.add_argument("--quick", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    measured = kernels.measure(compiled=not options.quick)
    first_calls = cold.measure()
    if options.write:
        options.write.write_text(report(measured, first_calls), encoding="utf-8")


if __name__ == "__main__":
    main()

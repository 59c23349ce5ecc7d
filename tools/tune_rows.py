"""Tune the ops of the benchmark's rows on this machine's GPU: what fusegen/tuning/shipped.json is made by.

    python -m tools.tune_rows --jobs 14 --write fusegen/tuning/shipped.json
    python -m tools.tune_rows --only "layer_norm" --seconds 20          # prints, and writes nothing

Of each row the forward without gradients, the one that saves, and the backward are tuned (fg.tune). With ``--jobs``
other processes first compile what a search tries to begin with, so that the GPU waits for few compilers. It ends with
the geometric mean of tuned over default times: what the schedules' own choices cost.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import fusegen as fg
from fusegen.cli.tune import print_entries
from fusegen.native import module as native
from fusegen.tuning import session
from fusegen.tuning.table import Entry, Table
from tools.bench.row import Row
from tools.bench.rows import ROWS, matching


class _NoClock:
    """Runs what it is given, and finds nothing faster: a search ends where it began, and what it tried is cached."""

    def turns(self, works: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        """The same time for each."""
        for work in works.values():
            work()
        return dict.fromkeys(works, 1.0)


def tune(row: Row, seconds: float) -> list[Entry]:
    """What is found for a row's passes."""
    tensors = dict(zip(row.names, row.tensors("cuda"), strict=True))
    with fg.tune(seconds=seconds) as found:
        with torch.no_grad():
            row.op(**tensors, **row.options)
        results = row.op(**tensors, **row.options)
        results = [r for r in (results if isinstance(results, tuple) else (results,)) if r.requires_grad]
        if results and row.passes[-1] != "fwd":
            torch.autograd.backward(results, [torch.randn_like(result) for result in results])
    return found


def _compile(title: str) -> None:
    """What a search for a row tries first, in a process of its own. What fails is told where it is tuned."""
    session.clock_for = lambda target, device: _NoClock()  # type: ignore[assignment,return-value]
    os.environ[session.FILE_VARIABLE] = os.path.join(tempfile.mkdtemp(), "tuned.json")
    try:
        tune(next(row for row in ROWS if row.title == title), 20.0)
    except Exception as error:
        print(f"{title}, before it is tuned: {type(error).__name__}: {error}", flush=True)
    finally:
        torch.cuda.empty_cache()


def tune_all(rows: Sequence[Row], seconds: float, end: float) -> list[Entry]:
    """Every row in turn, until time is up; a line a row as it goes."""
    found = list[Entry]()
    for row in rows:
        if time.monotonic() > end:
            print("time is up", flush=True)
            break
        try:
            entries = tune(row, seconds)
            found += entries
            print(row.title, *(f"{e.label} {e.own:.1f} -> {e.best:.1f}" for e in entries), sep=", ", flush=True)
        except Exception as error:  # one row's failure is no reason to tune nothing else
            print(f"{row.title}: FAILED: {type(error).__name__}: {error}", flush=True)
        torch.cuda.empty_cache()
    return found


def main() -> int:
    """Tune, print, and write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", help="rows whose title this regular expression occurs in")
    parser.add_argument("--jobs", type=int, default=0, help="processes that compile before")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each pass, at most")
    parser.add_argument("--minutes", type=float, default=60.0, help="of all rows, at most")
    parser.add_argument("--write", type=Path, help="put what was found into this table, in place of what it has")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures a GPU, and torch sees none")
    end = time.monotonic() + 60 * options.minutes
    os.environ.setdefault(native.VARIABLE, "wait")
    native.awaited()
    rows = matching(options.only)
    if options.jobs:
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            pool.map(_compile, [row.title for row in rows], chunksize=1)
    session.SHIPPED = Path(os.devnull)  # what is tuned begins at the schedules' own choices
    session.state.own[session.SHIPPED] = Table()
    os.environ[session.FILE_VARIABLE] = str(Path(tempfile.mkdtemp()) / "tuned.json")
    found = tune_all(rows, options.seconds, end)
    for gpu in sorted({entry.gpu for entry in found}):
        print_entries([entry for entry in found if entry.gpu == gpu], gpu)
    if options.write:
        table = Table()
        table.add(found)
        options.write.write_text(str(table), encoding="utf-8")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())

"""What other processes run before anything is timed, so that compilers' caches are full: ``--jobs``.

Functions that other processes are told to call have to be in a module that they can import: no ``__main__`` is one.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence

import torch

from fusegen.bench.comparison import Comparison
from tools.bench import kernels, products, rows_products
from tools.bench.rows import ROWS


def fill_caches(title: str, make: Callable[[], Comparison], passes: Sequence[str]) -> None:
    """Run every pass of a row once, in a process of its own. What fails is told where it is measured."""
    try:
        make().run(passes)
    except Exception as error:
        print(f"{title}, before it is timed: {type(error).__name__}", flush=True)
    finally:
        torch.cuda.empty_cache()


def fill_in_parallel(jobs: int, rows: Iterable[tuple[str, Callable[[], Comparison], Sequence[str]]]) -> None:
    """Let this many processes run each of these rows once, so that none that is timed waits for a compiler.

    Args:
        rows: arguments of `fill_caches`, which other processes can unpickle.
    """
    if jobs:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            pool.starmap(fill_caches, rows, chunksize=1)


def of_row(title: str, wanted: Sequence[str]) -> Comparison:
    """The row of this title."""
    (row,) = (row for row in ROWS if row.title == title)
    return kernels.comparison_of(row, wanted)


def of_layer(title: str, wanted: Sequence[str]) -> Comparison:
    """The row with matrix products of this title."""
    (row,) = (row for row in rows_products.ROWS if row.title == title)
    return products.comparison_of(row, wanted, "cuda")

"""What tests of the benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import fusegen as fg
from fusegen.core import dtypes
from tools.bench.row import Input, Row


class CountingClock:
    """A clock that calls the work once and counts microseconds from 1."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, work: Callable[[], Any]) -> float:
        work()
        self.calls += 1
        return float(self.calls)

    def turns(self, works: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        return {name: self(work) for name, work in works.items()}

    def back_to_back(self, work: Any, wait: Any) -> float:
        return self(lambda: wait(work()))


def as_input(given: Any) -> Input:
    return given if isinstance(given, Input) else Input(given)


def specs_of(row: Row) -> dict[str, Any]:
    """The arguments of a row's op, tensors by their shape and dtype."""
    dtype = dtypes.BY_NAME[str(row.dtype).removeprefix("torch.")]
    found: dict[str, Any] = dict(row.options)
    for name, given in zip(row.names, map(as_input, row.inputs), strict=True):
        found[name] = fg.TensorSpec(dtypes.int64 if given.classes else dtype, given.shape)
    return found

"""What tests of the benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tools.bench.row import Input


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

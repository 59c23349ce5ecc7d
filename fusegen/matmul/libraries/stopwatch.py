"""Timing: device time on a GPU, wall-clock time on the CPU, both in microseconds, both the median of many.

On a GPU the L2 cache is flushed before every call and the device sleeps while the host enqueues, so that neither warm
caches nor launch gaps are timed. Frameworks with streams of their own (JAX) do not fit between torch's events; for them
there is ``back_to_back``.

What is compared takes turns, call by call, in another order in every round: a GPU that draws too much power lowers its
clocks for some milliseconds, by a tenth under large matrix products, and whoever comes next pays for it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

# Long enough for the host to enqueue a whole backward pass of one kernel or two while the device sleeps.
SLEEP_CYCLES = 1_500_000
# What takes the host longer than that (several steps from Python) gets half as long again as it took: no GPU's clock
# is faster than this.
CYCLES_A_SECOND = 2_000_000_000
FLUSH_BYTES = 256 * 1024 * 1024
COPIED_ELEMENTS = 2**29
WARM_UP = 3


class Clock(Protocol):
    """A way to time calls."""

    def __call__(self, work: Callable[[], Any]) -> float: ...
    def turns(self, works: Mapping[str, Callable[[], Any]]) -> dict[str, float]: ...
    def back_to_back(self, work: Callable[[], Any], wait: Callable[[Any], Any]) -> float: ...


def back_to_back(work: Callable[[], Any], wait: Callable[[Any], Any], repeats: int) -> float:
    """Mean wall-clock microseconds of calls that follow each other without waiting; no cache is flushed."""
    for _ in range(WARM_UP):
        wait(work())
    start = time.perf_counter()
    for _ in range(repeats):
        result = work()
    wait(result)
    return (time.perf_counter() - start) / repeats * 1e6


def in_turns(
    works: Mapping[str, Callable[[], Any]], repeats: int, once: Callable[[str, Callable[[], Any]], float]
) -> dict[str, float]:
    """Median of ``once(name, work)`` for each by name: every round has all of them, in an order of its own."""
    times: dict[str, list[float]] = {name: [] for name in works}
    order, shuffled = list(works), random.Random(0)
    for _ in range(repeats):
        shuffled.shuffle(order)
        for name in order:
            times[name].append(once(name, works[name]))
    return {name: statistics.median(taken) for name, taken in times.items()}


class Stopwatch:
    """Device time on a GPU, of what runs on torch's current stream there.

    Args:
        repeats: how many calls are timed.
        warm_up: how many come before them and do not count.
        device: the GPU; by default torch's current one. Another one may be current meanwhile.
    """

    def __init__(self, repeats: int = 30, warm_up: int = WARM_UP, device: Any = None) -> None:
        import torch

        self.torch, self.repeats, self.warm_up = torch, max(repeats, 1), warm_up
        self.device = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)

    def __call__(self, work: Callable[[], Any]) -> float:
        """Median time of ``work`` on the device."""
        return self.turns({"": work})[""]

    def turns(self, works: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        """Median time of each on the device."""
        with self.torch.cuda.device(self.device):
            cycles = {}
            for name, work in works.items():
                for _ in range(self.warm_up):
                    work()
                cycles[name] = self._sleep_for(work)
            return in_turns(works, self.repeats, lambda name, work: self._once(work, cycles[name]))

    def _sleep_for(self, work: Callable[[], Any]) -> int:
        """How long the device sleeps while the host enqueues ``work``."""
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        return max(SLEEP_CYCLES, int(1.5 * (time.perf_counter() - start) * CYCLES_A_SECOND))

    def _once(self, work: Callable[[], Any], cycles: int) -> float:
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        self.flush.zero_()
        cuda._sleep(cycles)
        start.record()
        work()
        end.record()
        cuda.synchronize()
        return float(start.elapsed_time(end)) * 1000

    def back_to_back(self, work: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
        """Mean wall-clock time of ``work`` on streams that torch's events do not see."""
        self.torch.cuda.synchronize(self.device)
        return back_to_back(work, wait, self.repeats)

    def copy_bandwidth(self) -> float:
        """Bytes per microsecond of a large device-to-device copy, reads plus writes: what every floor divides by."""
        free, _ = self.torch.cuda.mem_get_info(self.device)
        source = self.torch.randn(min(COPIED_ELEMENTS, free // 16), device=self.device)
        target = self.torch.empty_like(source)
        return 2 * source.numel() * source.element_size() / self(lambda: target.copy_(source))

    def launch_floor(self) -> float:
        """Time of a kernel that has next to nothing to do: no pass is faster than that."""
        value = self.torch.zeros(1, device=self.device)
        return self(lambda: value.add_(1))


class WallClock:
    """Wall-clock time on the CPU: of the emulator, and of whatever runs there beside it.

    Args:
        repeats: how many calls are timed, after one that does not count.
    """

    def __init__(self, repeats: int = 30) -> None:
        self.repeats = max(repeats, 1)

    def __call__(self, work: Callable[[], Any]) -> float:
        """Median time of ``work``."""
        return self.turns({"": work})[""]

    def turns(self, works: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        """Median time of each."""
        for work in works.values():
            work()
        return in_turns(works, self.repeats, lambda _, work: self._once(work))

    @staticmethod
    def _once(work: Callable[[], Any]) -> float:
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e6

    def back_to_back(self, work: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
        """Mean time of ``work``, which returns before it is done."""
        return back_to_back(work, wait, self.repeats)

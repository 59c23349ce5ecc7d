"""Timing on a GPU: the L2 cache flushed before every call, the host ahead of the device, the median of many."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

# Long enough for the host to enqueue a whole backward pass while the device sleeps.
SLEEP_CYCLES = 1_500_000
FLUSH_BYTES = 256 * 1024 * 1024


class Stopwatch:
    """Measures device time in microseconds."""

    def __init__(self) -> None:
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(self, work: Callable[[], Any], repeats: int = 30) -> float:
        """Median time of ``work`` on the device, after three calls that do not count."""
        for _ in range(3):
            work()
        times: list[float] = []
        for _ in range(repeats):
            self.flush.zero_()
            torch.cuda._sleep(SLEEP_CYCLES)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(float(start.elapsed_time(end)) * 1000)
        return statistics.median(times)

    def copy_bandwidth(self) -> float:
        """Bytes per microsecond of a large device-to-device copy, reads plus writes: what every floor divides by."""
        source = torch.randn(2**29, device="cuda")
        target = torch.empty_like(source)
        return 2 * source.numel() * source.element_size() / self(lambda: target.copy_(source), 10)

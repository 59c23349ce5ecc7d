"""Device time of every row beside its peers, as a multiple of the floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from fusegen.bench.baselines import Call, peers
from fusegen.bench.comparison import Comparison, InTorch
from fusegen.inspect.cost import least_work
from fusegen.inspect.gpus import Gpu, gpu_called
from fusegen.inspect.passes import Pass
from fusegen.matmul.libraries.stopwatch import Clock, Stopwatch
from tools.bench.row import Row

OURS = "fusegen"
# What the project aims at (docs/design.md): time over floor.
AIM = 1.10
# Medians of one run differ from those of the next by about this much.
NOISE = 1.02


class Floor(NamedTuple):
    """What a pass takes at least, and whether that is its arithmetic."""

    microseconds: float
    of_arithmetic: bool


def floors(
    floor_bytes: Callable[[str], float], bandwidth: float, passes: Sequence[Pass], gpu: Gpu | None
) -> dict[str, Floor]:
    """What forward and backward take at least, moving their bytes or issuing their instructions; a step takes both.

    Args:
        floor_bytes: of a pass by its name.
        bandwidth: bytes a microsecond.
        passes: the forward, and a backward that computes all that is asked for; others go by bytes alone.
        gpu: what says how many instructions; of one that nobody knows bytes alone count.
    """
    found: dict[str, Floor] = {}
    for number, which in enumerate(("fwd", "bwd")):
        memory = floor_bytes(which) / bandwidth
        issued = gpu.arithmetic(least_work(passes[number])) if gpu and number < len(passes) else 0.0
        found[which] = Floor(max(memory, issued), issued > memory)
    both = list(found.values())
    return {**found, "step": Floor(sum(f.microseconds for f in both), any(f.of_arithmetic for f in both))}


def current_gpu() -> Gpu | None:
    """The row of the table of GPUs for the current one."""
    return gpu_called(torch.cuda.get_device_name()) if torch.cuda.is_available() else None


@dataclass(frozen=True)
class Measured:
    """Microseconds of one pass: the floor, and each implementation by name; whether the floor is its arithmetic."""

    title: str
    which: str
    floor: float
    times: dict[str, float]
    of_arithmetic: bool = field(default=False, kw_only=True)

    @property
    def ratio(self) -> float:
        """fusegen over the floor."""
        return self.times[OURS] / self.floor

    @property
    def slow(self) -> bool:
        """Whether it misses what the project aims at."""
        return self.ratio > AIM

    @property
    def is_behind(self) -> bool:
        """Whether a peer is faster by more than the noise."""
        return bool(self.best) and self.times[self.best] * NOISE < self.times[OURS]

    @property
    def best(self) -> str:
        """The fastest peer; empty if there is none."""
        return min((name for name in self.times if name != OURS), key=lambda name: self.times[name], default="")


@dataclass
class Run:
    """What was measured, and what could not be.

    Attributes:
        bandwidth: of a copy, bytes per microsecond.
        failed: rows that fusegen could not run, with its error.
        left_out: why a peer has no time, by row.
        aim: in words, what is slow that is above it.
    """

    bandwidth: float
    measured: list[Measured] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    aim: str = f"{AIM:.2f} of the floor"

    def summary(self) -> list[str]:
        """How many passes reach the aim, where a peer is ahead, and who could not be measured."""
        slow = [m for m in self.measured if m.slow]
        behind = [m for m in self.measured if m.is_behind]
        lines = [f"{len(self.measured)} passes, {len(slow)} above {self.aim}, {len(behind)} behind a peer"]
        for m in sorted(behind, key=lambda m: m.times[m.best] / m.times[OURS]):
            lines.append(f"  behind {m.best} by {m.times[OURS] / m.times[m.best]:.2f}: {m.title}, {m.which}")
        titles: dict[str, list[str]] = {}
        for title, reasons in self.left_out.items():
            for name, reason in reasons.items():
                titles.setdefault(f"{name} left out: {reason}", []).append(title)
        return lines + [f"  {reason} ({len(rows)} rows: {rows[0]}, ...)" for reason, rows in titles.items()]


def comparison_of(row: Row, wanted: Sequence[str], device: str = "cuda") -> Comparison:
    """fusegen and those of ``wanted`` that the row is measured beside, on its tensors."""
    op, names, inputs = row.op, row.names, row.tensors(device)

    def ours(*tensors: torch.Tensor) -> Any:
        return op(**dict(zip(names, tensors, strict=True)), **row.options)

    arguments = {**dict(zip(names, inputs, strict=True)), **row.options}
    bound = op.declaration.bind((), arguments)
    options = {name: value for name, value in bound.items() if name not in names}
    asked = [name for name in row.peers if name in wanted]
    found, absent = peers(Call(op.trace(**arguments), names, options, row.reference), asked, device == "cuda")
    comparison = Comparison([InTorch(OURS, ours), *found], inputs, absent)
    comparison.admit()
    return comparison


def copy_bandwidth(watch: Stopwatch) -> float:
    """What floors divide by, bytes a microsecond; says so."""
    bandwidth = watch.copy_bandwidth()
    torch.cuda.empty_cache()
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e6:.2f} TB/s", flush=True)
    return bandwidth


def measure(rows: Sequence[Row], wanted: Sequence[str], watch: Clock, bandwidth: float) -> Run:
    """Every row and pass, on the current GPU, beside the peers ``wanted``; a line a row as it goes."""
    run = Run(bandwidth)
    if not rows:
        return run
    print("of each pass: fusegen's microseconds, the same over the floor, and the best peer's", flush=True)
    width = max((len(row.title) for row in rows), default=0)
    for row in rows:
        print(f"{row.title:<{width}}  {_one(row, watch, wanted, run)}", flush=True)
    print("\n".join(run.summary()), flush=True)
    return run


def _one(row: Row, watch: Clock, wanted: Sequence[str], run: Run) -> str:
    """Measure a row; its line."""
    try:
        comparison = comparison_of(row, wanted)
        found, least = [], floors(row.floor_bytes, run.bandwidth, row.whole_passes, current_gpu())
        for which in row.passes:
            floor, of_arithmetic = least[which]
            times = comparison.time(watch, which)
            found.append(Measured(row.title, which, floor, times, of_arithmetic=of_arithmetic))
    except Exception as error:  # one row's failure is no reason to measure nothing else
        run.failed[row.title] = f"{type(error).__name__}: {error}"
        return "FAILED: " + " ".join(run.failed[row.title].split())[:200]
    finally:
        torch.cuda.empty_cache()
    run.measured += found
    run.left_out[row.title] = comparison.left_out
    return "  ".join(_cell(m) for m in found)


def _cell(m: Measured) -> str:
    """One pass: ``fwd   70.1 1.10 (QuACK 70.3)``."""
    beside = f" ({m.best} {m.times[m.best]:.1f})" if m.best else ""
    return f"{m.which:<4} {m.times[OURS]:7.1f} {m.ratio:5.2f}{beside:<23}"

"""Device time of every row, beside torch and torch.compile, as a multiple of the floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tools.bench.measure import Stopwatch
from tools.bench.rows import ROWS, Row


@dataclass(frozen=True)
class Measured:
    """Microseconds of one pass: the floor, and each competitor by name."""

    title: str
    which: str
    floor: float
    times: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.times["fusegen"] / self.floor


def _inputs(row: Row) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, device="cuda").to(row.dtype).requires_grad_() for shape in row.shapes]


def _results(returned: Any) -> tuple[torch.Tensor, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def _passes(function: Callable[..., Any], inputs: Sequence[torch.Tensor], which: str) -> Callable[[], Any]:
    if which == "fwd":
        detached = [t.detach() for t in inputs]
        return lambda: function(*detached)
    outputs = _results(function(*inputs))
    cotangents = [torch.randn_like(o) for o in outputs]
    if which == "bwd":
        return lambda: torch.autograd.grad(outputs, inputs, cotangents, retain_graph=True)
    return lambda: torch.autograd.grad(_results(function(*inputs)), inputs, cotangents)


def measure(rows: Sequence[Row] = ROWS, compiled: bool = True) -> list[Measured]:
    """Every row and pass, on the current GPU."""
    watch = Stopwatch()
    bandwidth = watch.copy_bandwidth()
    found = [Measured("copy bandwidth, TB/s", "", 0.0, {"copy": bandwidth / 1e6})]
    for row in rows:
        torch._dynamo.reset()
        competitors: dict[str, Callable[..., Any]] = {"fusegen": row.ours, "torch": row.reference}
        if compiled:
            competitors["torch.compile"] = torch.compile(row.reference, dynamic=False)
        inputs = _inputs(row)
        for which in row.passes:
            times = {name: watch(_passes(f, inputs, which)) for name, f in competitors.items()}
            found.append(Measured(row.title, which, row.floor_bytes(which) / bandwidth, times))
            print(_line(found[-1]), flush=True)
        del inputs
        torch.cuda.empty_cache()
    return found


def _line(m: Measured) -> str:
    times = "  ".join(f"{name} {time:8.1f}" for name, time in m.times.items())
    return f"{m.title:<55} {m.which:<4} floor {m.floor:7.1f}  {times}  ours/floor {m.ratio:5.2f}"

"""``python -m tools.bench.host``: what a call costs the host, on 16-element tensors, beside torch's own.

Every figure is the median of many short runs of calls, timed on the host alone: the device is waited for between runs,
and a run is too short to fill its queue. Without a GPU the launches are the emulator's, which run the kernel as well.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import fusegen as fg
from fusegen.native import module as native
from fusegen.pytorch.calls import plan_cache
from tools.bench.compiled import race

ELEMENTS = 16
SHAPES = 10_000
# Runs of each function beside its peers, which take turns: a host's speed drifts by more than they differ.
RACE = 101


@fg.op
def lerp(x, y, w):  # type: ignore[no-untyped-def]
    """Linear interpolation between x and y by weight w."""
    return x + w * (y - x)


def eager(x: Any, y: Any, w: Any) -> Any:
    """The same as torch's users write it."""
    return x + w * (y - x)


@dataclass(frozen=True)
class Line:
    """One line of a table: microseconds by column, None where a column does not apply."""

    name: str
    values: tuple[float | None, ...]


def microseconds(work: Callable[[], Any], runs: int = 101, calls: int = 50) -> float:
    """Median host time of one call."""
    for _ in range(calls):
        work()
    times = []
    for _ in range(runs):
        _wait()
        start = time.perf_counter_ns()
        for _ in range(calls):
            work()
        times.append((time.perf_counter_ns() - start) / calls / 1000)
    _wait()
    return statistics.median(times)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peers(compiled: bool = True) -> list[Line]:
    """Forward without gradients, forward that records, forward and backward, for fusegen and torch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    given = [torch.randn(ELEMENTS, device=device) for _ in range(3)]
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    cotangent = torch.ones(ELEMENTS, device=device)
    functions: list[tuple[str, Callable[..., Any]]] = [("fusegen", lerp), ("fusegen, in Python", _in_python())]
    functions += [("torch.lerp", torch.lerp), ("x + w * (y - x), eager", eager)]
    if compiled:
        functions.append(("torch.compile of it", torch.compile(eager)))

    def step(function: Callable[..., Any]) -> None:
        torch.autograd.backward(function(*leaves), cotangent)
        for leaf in leaves:
            leaf.grad = None

    columns = [race([partial(function, *tensors) for _, function in functions], RACE) for tensors in (given, leaves)]
    columns += [race([partial(step, function) for _, function in functions], RACE)]
    return [Line(name, times) for (name, _), times in zip(functions, zip(*columns, strict=True), strict=True)]


def _in_python() -> fg.FusedOp:
    """The op with the call path of a machine that cannot build the native one."""
    op = fg.FusedOp(lerp.declaration)
    op._use(plan_cache.PlanCache(op.declaration, op._slow_path, in_python=True))
    return op


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def parts() -> list[Line]:
    """What a native call spends where: each line is the whole of a call that ends there."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    given: tuple[Any, ...] = tuple(torch.randn(ELEMENTS, device=device) for _ in range(3))
    lerp(*given)
    path = lerp._cached
    lines: list[tuple[str, Callable[[], Any]]] = [("a Python function of three arguments", lambda: _nothing(*given))]
    if hasattr(path, "recognizes"):
        lines += [("+ key: types, sizes, strides, addresses; plan found", lambda: path.recognizes(given, {}))]
        lines += [("+ result allocated, as a Python object", lambda: path.allocates(given, {}))]
        lines += [("+ pointers written, launched (native caller)", lambda: path(given, {}))]
    lines += [("+ the op's __call__ (all of a call)", lambda: lerp(*given))]
    layout = (ELEMENTS,), (1,)
    lines += [("for scale: torch.empty_strided", lambda: torch.empty_strided(*layout, device=device))]
    lines += [("for scale: the slow path, every time", lambda: lerp._slow_path(given, {}))]
    return [Line(name, (microseconds(work),)) for name, work in lines]


def shapes(count: int = SHAPES) -> list[Line]:
    """Calls with ever new shapes of one op: by thousands, microseconds of a first call and of the next, and memory."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    memory = torch.zeros(count, device=device)
    op = fg.FusedOp(lerp.declaration)
    lines, first, again = [], [], []
    order = random.Random(0).sample(range(1, count + 1), count)  # so that each thousand has as much to compute
    for made, size in enumerate(order, 1):
        x = memory[:size]
        start = time.perf_counter_ns()
        op(x, x, 0.5)
        middle = time.perf_counter_ns()
        op(x, x, 0.5)
        first.append((middle - start) / 1000)
        again.append((time.perf_counter_ns() - middle) / 1000)
        if made % max(count // 10, 1) == 0:
            held = float(len(op._cached))
            lines.append(Line(f"{made:,}", (statistics.median(first), statistics.median(again), held, _megabytes())))
            first, again = [], []
    return lines


def _megabytes() -> float:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(title: str, columns: tuple[str, ...], lines: list[Line]) -> str:
    """A markdown table."""
    rows = [f"| {title} | {' | '.join(columns)} |", "|---" + "|---:" * len(columns) + "|"]
    for line in lines:
        cells = ["" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in line.values]
        rows.append(f"| {line.name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def report(count: int = SHAPES, compiled: bool = True) -> str:
    """All tables, as they stand in docs/performance.md."""
    os.environ[native.VARIABLE] = os.environ.get(native.VARIABLE, "wait")
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU; launches are the emulator's"
    kind = "native call path" if native.module() is not None else f"no native call path: {native.problem()}"
    return "\n\n".join([
        f"{ELEMENTS}-element float32 tensors, host microseconds a call, torch {torch.__version__}, {where}; {kind}.",
        table("", ("forward, no gradients", "forward, recorded", "forward + backward"), peers(compiled)),
        table("what a call spends where", ("µs",), parts()),
        table("new shapes so far", ("first call", "next call", "plans held", "RSS, MiB"), shapes(count)),
    ])  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=SHAPES, help="how many different shapes")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    print(report(options.shapes, not options.no_compile))


if __name__ == "__main__":
    main()

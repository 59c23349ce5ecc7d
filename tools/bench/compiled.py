"""Host time of an op inside ``torch.compile``, beside torch.compile's own kernel: ``python -m tools.bench.compiled``.

Tensors have sixteen elements, so what is measured is what a call costs beside its kernel. Calls of both take turns in
short runs, each too short to fill a GPU's queue, and the median run counts. Without a GPU, kernels are fusegen's
emulated ones and Inductor's in C++; the eager columns say what those cost beside torch's own.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import fusegen as fg
from fusegen.native import module as native

ELEMENTS = 16
RUNS, CALLS = 300, 40


@dataclass(frozen=True)
class Case:
    """One function, as fusegen and as torch have it, and its arguments."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    arguments: tuple[Any, ...]


def cases(device: str) -> list[Case]:
    """Functions with one kernel each way in either library's hands."""
    ops, f = fg.ops, torch.nn.functional
    x, y, w = (torch.randn(ELEMENTS, device=device) for _ in range(3))
    rows, weight = torch.randn(2, 8, device=device), torch.randn(8, device=device)
    return [
        Case("lerp(x, y, w)", ops.lerp, torch.lerp, (x, y, w)),
        Case("lerp(x, y, 0.5)", ops.lerp, torch.lerp, (x, y, 0.5)),
        Case("gelu", ops.gelu, f.gelu, (x,)),
        Case("rms_norm", lambda a, b: ops.rms_norm(a, (8,), b), lambda a, b: f.rms_norm(a, (8,), b), (rows, weight)),
        Case("softmax", lambda a: ops.softmax(a, -1), lambda a: f.softmax(a, -1), (rows,)),
    ]  # fmt: skip


def race(calls: Sequence[Callable[[], Any]], runs: int = RUNS) -> list[float]:
    """Microseconds of each call: the median of runs that take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        for _ in range(CALLS):
            call()
    for _ in range(runs):
        for call, taken in zip(calls, times, strict=True):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            taken.append((time.perf_counter_ns() - start) / CALLS / 1000)
    return [statistics.median(taken) for taken in times]


_numbers = itertools.count()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, with code of its own in a real file: Dynamo keeps with it what it compiled, and wraps
    functions from no file in one of its own, which all of them would share."""
    namespace: dict[str, Any] = {"function": function}
    name = f"call_{next(_numbers)}"
    exec(compile(f"def {name}(*arguments): return function(*arguments)", __file__, "exec"), namespace)
    made: Callable[..., Any] = torch.compile(namespace[name], fullgraph=True)
    return made


def backward(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    """Forward, and the gradients of all tensors."""
    given = [a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in arguments]
    leaves = [a for a in given if isinstance(a, torch.Tensor)]
    ones = torch.ones_like(function(*given))
    return lambda: torch.autograd.grad(function(*given), leaves, ones)


def lines(case: Case, runs: int) -> list[tuple[str, list[float]]]:
    """(what is called, microseconds of fusegen's, torch's, fusegen's compiled, torch's compiled)."""
    both = [case.ours, case.theirs]
    functions = [*both, *map(compiled, both)]
    trained = [backward(function, case.arguments) for function in [*both, *map(compiled, both)]]
    plain = [partial(function, *case.arguments) for function in functions]
    return [(case.name, race(plain, runs)), (f"{case.name}, forward and backward", race(trained, runs))]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of {CALLS} calls")
    parser.add_argument("--only", default="", help="functions whose name contains this")
    options = parser.parse_args()
    os.environ.setdefault(native.VARIABLE, "wait")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    kind = "native call path" if native.module() is not None else f"no native call path: {native.problem()}"
    print(f"Host microseconds a call, {ELEMENTS} elements, torch {torch.__version__}, {where}; {kind}.\n")
    print("| | fusegen, eager | torch, eager | fusegen, compiled | torch, compiled | compiled, fusegen / torch |")
    print("|---|---:|---:|---:|---:|---:|")
    for case in cases(device):
        if options.only in case.name:
            for name, times in lines(case, options.runs):
                cells = [f"{value:.1f}" for value in times]
                print(f"| {name} | {' | '.join(cells)} | {times[2] / times[3]:.2f} |", flush=True)


if __name__ == "__main__":
    main()

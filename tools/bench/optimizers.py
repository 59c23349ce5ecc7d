"""Optimizer steps beside torch's: ``python -m tools.bench.optimizers``.

    python -m tools.bench.optimizers --parameters 1.1e9 --tensors 300     # AdamW on bfloat16
    python -m tools.bench.optimizers --kind SGD --dtype float32 --clip

All take turns on tensors of their own with the same gradients. The floor is the time in which a copy moves each tensor
that a step reads, once, and each that it writes. Two of three tensors are matrices of one size, the others vectors, and
one of each begins or ends between two vectors of 16 bytes. Without a GPU, small ones run in the emulator, which shows
that the script works and nothing else.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from fusegen import optim
from fusegen.launch.table_program import TableLaunch
from fusegen.matmul.libraries.stopwatch import Clock, Stopwatch, WallClock
from fusegen.native import module as native
from tools.bench.kernels import copy_bandwidth

VECTOR = 2048
# Tensors that a step reads and writes of each parameter, beside its gradient; float32 with master weights.
MOVED = {"AdamW": 3, "Adam": 3, "SGD": 2, "Lion": 2}


def shapes(parameters: int, tensors: int) -> list[int]:
    """Elements of each tensor."""
    vectors = tensors // 3
    size = max((parameters - vectors * VECTOR) // max(tensors - vectors, 1) // 8 * 8, 8)
    found = [VECTOR if i % 3 == 1 and vectors > i // 3 else size for i in range(tensors)]
    found[0] += 3
    return found


def floor_bytes(kind: str, elements: int, dtype: torch.dtype, master: bool) -> int:
    """What a step has to move."""
    size = dtype.itemsize
    if master:  # the gradient is read, the parameter written
        return elements * (2 * size + 2 * 4 * MOVED[kind])
    return elements * size * (1 + 2 * MOVED[kind])


@contextmanager
def counted() -> Iterator[list[int]]:
    """The grids of the launches meanwhile."""
    found: list[int] = []
    original = TableLaunch.run

    def run(self: TableLaunch, values: Sequence[Any], stream: int) -> None:
        found.append(self.grid[0])
        original(self, values, stream)

    TableLaunch.run = run  # type: ignore[method-assign]
    try:
        yield found
    finally:
        TableLaunch.run = original  # type: ignore[method-assign]


def host_microseconds(work: Callable[[], Any], repeats: int = 10) -> float:
    """What a call takes the host, which does not wait for the device."""
    taken = []
    for _ in range(repeats):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[repeats // 2] * 1e6


def captured(work: Callable[[], Any]) -> Callable[[], Any]:
    """The same as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def contenders(options: argparse.Namespace, grads: Sequence[torch.Tensor]) -> dict[str, torch.optim.Optimizer]:
    """Optimizers of the same parameters, each with its own."""

    def params() -> list[torch.Tensor]:
        torch.manual_seed(1)
        made = []
        for grad in grads:
            made.append(torch.randn(grad.shape, device=grad.device).to(grad.dtype).requires_grad_())
            made[-1].grad = grad
        return made

    given: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.1}
    given |= {"momentum": 0.9} if options.kind == "SGD" else {}
    found = {"fusegen": getattr(optim, options.kind)(params(), **given)}
    if options.master:
        found["fusegen"] = getattr(optim, options.kind)(params(), master_weights=True, **given)
    if hasattr(torch.optim, options.kind):
        theirs = getattr(torch.optim, options.kind)
        found |= {"torch, fused": theirs(params(), fused=True, **given)}
        found |= {"torch, foreach": theirs(params(), foreach=True, **given)}
    return found


def difference(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> float:
    """The largest one between their parameters."""
    pairs = zip(one.param_groups[0]["params"], other.param_groups[0]["params"], strict=True)
    return max(float((p.detach().float() - q.detach().float()).abs().max()) for p, q in pairs)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--kind", default="AdamW", choices=sorted(MOVED))
    parser.add_argument("--parameters", type=float, default=1.1e9 if on_gpu else 2e5)
    parser.add_argument("--tensors", type=int, default=300 if on_gpu else 60)
    parser.add_argument("--dtype", default="bfloat16", help="float32, bfloat16, ...")
    parser.add_argument("--master", action="store_true", help="float32 master weights (fusegen alone has them)")
    parser.add_argument("--clip", action="store_true", help="clip_grad_norm_ as well")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    os.environ.setdefault(native.VARIABLE, "wait")
    dtype, device = getattr(torch, options.dtype), "cuda" if on_gpu else "cpu"
    watch: Clock = WallClock(3)
    bandwidth = 1e4
    if on_gpu:
        stopwatch = Stopwatch(options.repeats)
        watch, bandwidth = stopwatch, copy_bandwidth(stopwatch)
    sizes = shapes(int(options.parameters), options.tensors)
    torch.manual_seed(0)
    grads = [torch.randn(size, device=device).to(dtype) for size in sizes]
    found = contenders(options, grads)
    works: dict[str, Callable[[], Any]] = {name: optimizer.step for name, optimizer in found.items()}
    for work in works.values():
        work()
    apart = {name: difference(found["fusegen"], other) for name, other in found.items() if name != "fusegen"}
    with counted() as launches:
        works["fusegen"]()
    hosts = {name: host_microseconds(work) for name, work in works.items()}
    if on_gpu:
        works["fusegen, CUDA graph"] = captured(works["fusegen"])
    floor = floor_bytes(options.kind, sum(sizes), dtype, options.master) / bandwidth
    print(
        f"{options.kind}, {sum(sizes):,} parameters of {options.dtype} in {len(sizes)} tensors"
        f"{', master weights' if options.master else ''}: floor {floor:,.0f} us, {len(launches)} launches, "
        f"{'native call path' if native.module() is not None else 'no native call path: ' + native.problem()}"
    )
    for name, value in apart.items():
        print(f"largest difference from {name} after a step: {value:.1e}")
    print("\n| | device us | over the floor | host us |\n|---|---:|---:|---:|")
    for name, taken in watch.turns(works).items():
        host = f"{hosts[name]:,.0f}" if name in hosts else ""
        print(f"| {name} | {taken:,.0f} | {taken / floor:.3f} | {host} |", flush=True)
    if options.clip:
        _clip(found, watch, sum(sizes) * dtype.itemsize * 3 / bandwidth)


def _clip(found: dict[str, torch.optim.Optimizer], watch: Clock, floor: float) -> None:
    """Clipping, which reads gradients twice and writes them once."""
    params = found["fusegen"].param_groups[0]["params"]
    works = {
        "fusegen": partial(optim.clip_grad_norm_, params, 1e9),
        "torch": partial(torch.nn.utils.clip_grad_norm_, params, 1e9),
    }
    norms = {name: float(work()) for name, work in works.items()}
    print(
        f"\nclip_grad_norm_: floor {floor:,.0f} us, norms {norms}\n\n| | device us | over the floor |\n|---|---:|---:|"
    )
    for name, taken in watch.turns(works).items():
        print(f"| {name} | {taken:,.0f} | {taken / floor:.3f} |", flush=True)


if __name__ == "__main__":
    main()

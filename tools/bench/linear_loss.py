"""Cross entropy of a language model's head: time, memory beyond arguments and gradients, and errors, beside others.

    python -m tools.bench.linear_loss [--sizes 8192x4096x128256,4096x768x32000] [--rows 2048,8192] [--repeats 20]

A pass is the loss and the gradients of the input and the weight. ``--rows``: chunks of so many, beside our own choice.
Where Liger is not installed its schedule is measured
in its stead, written in torch with fusegen's kernel for the logits (its own is one kernel in place as well): chunks as
Liger chooses them, the weight's gradient added up as it does it (a product, its float32 copy, a sum), or by one addmm.
QuACK runs without its search for tiles.
Errors are relative (root of mean squares), from float32 products of the same numbers.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
from collections.abc import Callable
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen import linear_loss
from fusegen.matmul.libraries.stopwatch import Clock, Stopwatch, WallClock

SIZES = "8192x4096x128256,4096x768x32000"
OURS = "fusegen"
PRODUCTS, ALONE = "the three products alone", f"{OURS}, loss alone"
Step = Callable[..., tuple[torch.Tensor, ...]]


def torch_loss(x: Any, weight: Any, target: Any) -> Any:
    """The loss with all logits."""
    return F.cross_entropy(F.linear(x, weight), target)


def torch_chunked(x: Any, weight: Any, target: Any) -> Any:
    """Torch's own in chunks, where this torch has it."""
    options = torch.nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(x, weight, target, options=options)


def liger(x: Any, weight: Any, target: Any) -> Any:
    """Liger's own."""
    return importlib.import_module("liger_kernel.transformers.functional").liger_fused_linear_cross_entropy(
        x, weight, target
    )


def quack(x: Any, weight: Any, target: Any) -> Any:
    """QuACK's own."""
    module = importlib.import_module("quack.linear_cross_entropy")
    return module.chunked_linear_cross_entropy(x, weight, target, tuned=False)


def gradients_of(loss: Callable[..., Any]) -> Step:
    """A loss as a pass: the loss and both gradients."""

    def step(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = loss(x, weight, target)
        found = found[0] if isinstance(found, tuple) else found
        return (found.detach(), *torch.autograd.grad(found, [x, weight]))

    return step


def liger_schedule(as_released: bool) -> Step:
    """What Liger does, without its kernel and without autograd around it."""

    def step(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight = x.detach(), weight.detach()
        wanted = ceil(len(x) / ceil(len(weight) / x.shape[1]))
        count = 1 << (wanted - 1).bit_length()
        losses = torch.empty(len(x), device=x.device)
        d_x, d_weight = torch.empty_like(x), torch.zeros_like(weight)
        scale = torch.full((len(x),), 1 / len(x), device=x.device)
        rows = fg.ops.linear_cross_entropy.rows
        names = dict.fromkeys(("linear_bias", "weight", "label_smoothing", "z_loss"))
        for begin in range(0, len(x), count):
            part = slice(begin, begin + count)
            logits = x[part] @ weight.mT
            values = {"logits": logits, "target": target[part], "ignore_index": -100, **names}
            joint, cotangent = linear_loss._with_gradient(rows.trace(**values), "logits")
            out = [losses[part], logits]
            linear_loss._launch(joint, {**values, cotangent: scale[part]}, out)
            d_x[part] = logits @ weight
            if as_released:
                d_weight += torch.mm(logits.mT, x[part]).float()
            else:
                torch.addmm(d_weight, logits.mT, x[part], out=d_weight)
        return losses.mean(), d_x, d_weight

    return step


def implementations(device: str) -> dict[str, Step]:
    """Who is measured."""
    found: dict[str, Step] = {OURS: gradients_of(fg.ops.linear_cross_entropy), "torch": gradients_of(torch_loss)}
    if device == "cuda":
        found["torch.compile"] = gradients_of(torch.compile(torch_loss))
    if hasattr(F, "linear_cross_entropy"):
        found["torch, chunked"] = gradients_of(torch_chunked)
    if importlib.util.find_spec("liger_kernel") is not None:
        found["Liger"] = gradients_of(liger)
    else:
        found["Liger's schedule"] = liger_schedule(True)
        found["Liger's schedule, addmm"] = liger_schedule(False)
    if importlib.util.find_spec("quack") is not None:
        found["QuACK"] = gradients_of(quack)
    return found


def products(x: torch.Tensor, weight: torch.Tensor) -> Callable[[], None]:
    """The three products alone, each of all rows at once."""
    x, weight = x.detach(), weight.detach()
    logits = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device).normal_()
    d_x, d_weight = torch.empty_like(x), torch.empty_like(weight)

    def work() -> None:
        torch.mm(x, weight.mT, out=logits)
        torch.mm(logits, weight, out=d_x)
        torch.mm(logits.mT, x, out=d_weight)

    return work


def extra_memory(step: Callable[[], tuple[torch.Tensor, ...]], device: str) -> float:
    """Bytes at the peak of a pass beyond what was there before and what it returns; NaN on the CPU."""
    if device != "cuda":
        return float("nan")
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - sum(r.numel() * r.element_size() for r in results)


def errors(found: tuple[torch.Tensor, ...], exact: tuple[torch.Tensor, ...]) -> list[float]:
    """Relative root mean squares."""
    pairs = zip(found, exact, strict=True)
    return [float((a.float() - b.float()).norm() / b.float().norm()) for a, b in pairs]


def measure(size: tuple[int, int, int], counts: list[int], watch: Clock, device: str) -> None:
    """Print the table of one size."""
    tokens, hidden, classes = size
    generator = torch.Generator(device).manual_seed(0)
    x, weight = (
        (scale * torch.randn(shape, device=device, generator=generator)).bfloat16().requires_grad_()
        for scale, shape in ((1.0, (tokens, hidden)), (hidden**-0.5, (classes, hidden)))
    )
    target = torch.randint(0, classes, (tokens,), device=device, generator=generator)
    wide = [t.detach().float().requires_grad_() for t in (x, weight)]
    exact = gradients_of(fg.ops.linear_cross_entropy)(*wide, target)
    del wide
    print(f"\n{tokens} x {hidden} -> {classes}, bfloat16; all logits take {tokens * classes * 2 / 1e6:.0f} MB")
    print(f"    {'':32s} {'ms':>8s} {'extra MB':>9s} {'of logits':>9s}   errors of loss, d_input, d_weight")
    everyone = implementations(device)
    for count in counts:
        everyone[f"{OURS}, options={count}"] = gradients_of(
            functools.partial(fg.ops.linear_cross_entropy, options=count)
        )
    alone = functools.partial(fg.ops.linear_cross_entropy, x.detach(), weight, target)
    works: dict[str, Callable[[], Any]] = {PRODUCTS: products(x, weight), ALONE: torch.no_grad()(alone)}
    found = {}
    for name, step in everyone.items():
        work = functools.partial(step, x, weight, target)
        try:
            found[name] = extra_memory(work, device), errors(work(), exact)
        except Exception as error:  # the failure of one is no reason to measure nothing else
            print(f"    {name} left out: {type(error).__name__}: {error}", flush=True)
        else:
            works[name] = work
    taken = {name: time / 1000 for name, time in watch.turns(works).items()}
    print(f"    {PRODUCTS:32s} {taken[PRODUCTS]:8.2f}", flush=True)
    for name, (extra, wrong) in found.items():
        share = extra / (tokens * classes * 2)
        print(f"    {name:32s} {taken[name]:8.2f} {extra / 1e6:9.1f} {share:9.1%}   "
              + ", ".join(f"{e:.2e}" for e in wrong), flush=True)  # fmt: skip
    print(f"    {ALONE:32s} {taken[ALONE]:8.2f}")
    if device == "cuda":
        print(f"    in a CUDA graph: {captured(x, weight, target)}")


def captured(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> str:
    """Whether a captured pass, replayed on other targets, gives the eager one's bits."""
    step, target = gradients_of(fg.ops.linear_cross_entropy), target.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(x, weight, target)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(x, weight, target)
    target.copy_(target.flip(0))
    target[::7] = -100
    graph.replay()
    expected = step(x, weight, target)
    return "the same bits" if all(map(torch.equal, results, expected)) else "OTHER NUMBERS"


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rows", default="")
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    watch: Clock = Stopwatch(given.repeats) if device == "cuda" else WallClock(given.repeats)
    counts = [int(count) for count in filter(None, given.rows.split(","))]
    for size in given.sizes.split(","):
        tokens, hidden, classes = map(int, size.split("x"))
        measure((tokens, hidden, classes), counts, watch, device)


if __name__ == "__main__":
    main()

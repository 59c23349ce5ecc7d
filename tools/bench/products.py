"""Device time of rows with matrix products, beside their plain products and peers; the section of the page.

Before anything is timed, fusegen's results and gradients are compared with torch's in the same dtype: a row that is
wrong fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fusegen.bench.baselines import Call, peers
from fusegen.bench.comparison import Comparison, InTorch, results_of
from fusegen.matmul.libraries.stopwatch import Clock
from tools.bench.kernels import NOISE, OURS, Measured, Run
from tools.bench.limits import product_limits
from tools.bench.row_products import Plain, ProductRow

AUTOTUNED = "max-autotune"
PLAIN = "plain"
# The plain products of a pass.
_PARTS = {"fwd": ("fwd",), "train": ("fwd",), "bwd": ("bwd",), "step": ("fwd", "bwd"), "leaves": ("fwd", "bwd")}
# In the order of the columns.
PEERS = ("torch", "torch.compile", AUTOTUNED, "cuBLASLt", "Liger", "QuACK")
# Root of the mean squared difference from torch's results, over that of the results: both round every product to the
# dtype; torch rounds what lies between a product and the result as well.
RESULTS = {torch.float16: 2**-9, torch.bfloat16: 2**-6, torch.float32: 2**-10, torch.float64: 2**-40}
# The same of gradients: near a kink, rounding decides which side an element is on, and its whole gradient with it.
GRADIENTS = 2**-5
# Largest difference over the largest value: what a row or a tile that is wrong all by itself would exceed.
LARGEST = 2**-3
HEAD = "of each pass: fusegen's microseconds, over its plain products, over the target; and the best peer's"


class WrongResult(ArithmeticError):
    """fusegen does not compute what torch does."""


@dataclass(frozen=True)
class MeasuredProduct(Measured):
    """One pass; its floor is that of its plain products. ``target``: microseconds it may take, if anybody said."""

    target: float | None = None

    @property
    def slow(self) -> bool:
        """Whether it misses its target."""
        return self.target is not None and self.times[OURS] > self.target

    @property
    def to_target(self) -> str:
        """fusegen over the target, as text; empty without one."""
        return "" if self.target is None else f"{self.times[OURS] / self.target:.2f}"


def verify(row: ProductRow, inputs: Sequence[torch.Tensor]) -> None:
    """Compare results, and the gradients of a random cotangent, with torch's.

    Raises:
        WrongResult: they are further apart than rounding explains.
    """
    ours, theirs = (results_of(function(*inputs)) for function in (_call(row), row.reference))
    for position, pair in enumerate(zip(ours, theirs, strict=True)):
        compare(f"result {position}", *pair, RESULTS[row.dtype])
    if set(row.passes) & {"bwd", "step"}:
        cotangents = [torch.randn_like(result) for result in theirs]
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        gradients = (torch.autograd.grad(results, wanted, cotangents) for results in (ours, theirs))
        for position, pair in enumerate(zip(*gradients, strict=True)):
            compare(f"gradient {position}", *pair, GRADIENTS)


def compare(what: str, found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Compare one tensor with torch's.

    Raises:
        WrongResult: it differs by more than ``tolerance`` on the whole, or by more than LARGEST somewhere.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise WrongResult(f"{what}: {found.dtype} {list(found.shape)}, not {expected.dtype} {list(expected.shape)}")
    apart, exact = (found - expected).detach().float(), expected.detach().float()
    typical = float(apart.norm() / exact.norm())
    largest = float(apart.abs().max() / exact.abs().max())
    if not (typical <= tolerance and largest <= LARGEST):  # neither holds of a NaN
        raise WrongResult(f"{what}: differs from torch's by {typical:.1e} on the whole, {largest:.1e} at most")


def _call(row: ProductRow) -> Callable[..., Any]:
    return lambda *tensors: row.op(**dict(zip(row.names, tensors, strict=True)), **row.options)


def comparison_of(row: ProductRow, wanted: Sequence[str], device: str, autotune: bool = False) -> Comparison:
    """fusegen and those of ``wanted`` that the row is measured beside.

    Raises:
        WrongResult: fusegen computes something else than torch.
    """
    inputs = row.tensors(device)
    verify(row, inputs)
    asked = [name for name in row.peers if name in wanted and name.startswith("torch")]
    found, absent = peers(Call(row.op.trace(*inputs), row.names, {}, row.reference), asked, device == "cuda")
    if autotune and row.autotune and "torch.compile" in asked:
        found.append(InTorch(AUTOTUNED, autotuned(row.reference)))
    for name, function in {**row.inference, **row.others}.items():
        if name in wanted or (name == "cuBLASLt" and "torch" in wanted):
            found.append(InTorch(name, function))
    comparison = Comparison([InTorch(OURS, _call(row)), *found], inputs, absent)
    comparison.admit()
    return comparison


def autotuned(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` by torch.compile, which tries many kernels for every product; takes minutes."""
    # A function of its own, so that what is compiled for one mode is not taken for the other.
    compiled: Callable[..., Any] = torch.compile(
        lambda *tensors: function(*tensors), mode="max-autotune-no-cudagraphs", dynamic=False
    )
    return compiled


def plain_products(products: Sequence[Plain], dtype: torch.dtype, device: str) -> Callable[[], None]:
    """Does plain products, one after the other."""
    sides = [product.sides(dtype, device) for product in products]

    def work() -> None:
        for left, right in sides:
            torch.matmul(left, right)

    return work


def measure(
    rows: Sequence[ProductRow], wanted: Sequence[str], clock: Clock, bandwidth: float, device: str = "cuda",
    autotune: bool = False,
) -> Run:  # fmt: skip
    """Every row and pass; a line a row as it goes."""
    run = Run(bandwidth, aim="their target")
    if not rows:
        return run
    print(HEAD, flush=True)
    width = max((len(row.title) for row in rows), default=0)
    for row in rows:
        try:
            found = _row(row, comparison_of(row, wanted, device, autotune), clock, run, device)
            line = "  ".join(_cell(m) for m in found)
        except Exception as error:  # one row's failure is no reason to measure nothing else
            run.failed[row.title] = f"{type(error).__name__}: {error}"
            line = "FAILED: " + " ".join(run.failed[row.title].split())[:200]
        if device == "cuda":
            torch.cuda.empty_cache()
        print(f"{row.title:<{width}}  {line}", flush=True)
    print("\n".join(run.summary()), flush=True)
    return run


def _row(row: ProductRow, comparison: Comparison, clock: Clock, run: Run, device: str) -> list[MeasuredProduct]:
    """Measure a row. Each pass takes turns with its plain products: clocks of a busy GPU drift."""
    training = [c for c in comparison.implementations if c.name not in row.inference]
    plain = {which: plain_products(products, row.dtype, device) for which, products in row.products.items()}
    found = []
    for which in row.passes:
        asked = comparison if which == "fwd" else replace(comparison, implementations=training)
        parts = [part for part in _PARTS[which] if part in plain]
        times = asked.time(clock, which, {f"{PLAIN} {part}": plain[part] for part in parts})
        floors = {part: times.pop(f"{PLAIN} {part}") for part in parts}
        target = row.target(which, floors | {"train": floors.get("fwd", 0.0)}, run.bandwidth)
        found.append(MeasuredProduct(row.title, which, sum(floors.values()), times, target))
    run.measured += found
    run.left_out[row.title] = comparison.left_out
    return found


def _cell(m: MeasuredProduct) -> str:
    """One pass: ``fwd   70.1 1.10 0.96 (cuBLASLt 64.3)``."""
    beside = f" ({m.best} {m.times[m.best]:.1f})" if m.best else ""
    return f"{m.which:<5} {m.times[OURS]:7.1f} {m.ratio:5.2f} {m.to_target:>4}{beside:<23}"


# -- the page --------------------------------------------------------------------------------------------------------

_TEXT = """## Matrix products

M x K x N: x is [M, K], a weight [N, K]. The floor is the plain products of the pass, by torch's own routine. What is
compared for a pass takes turns call by call, in an order that changes: at its limit of power a GPU lowers its clocks.
`fwd` saves nothing, `train` is the forward that saves what the backward needs; `leaves` is a step whose gradients go to
`.grad`, as those of parameters do, where torch copies what does not lie like its tensor. The target of a backward is
its plain products and 1.1 times one pass over memory for all the rest; the other targets are those of the project.
cuBLASLt: its own epilogue through torch, which has no backward. QuACK: without its search for tiles. torch.compile and
max-autotune, which compile for seconds and for a minute a row, have some of the rows only. Every result and gradient
was compared with torch's in the same dtype first.

"""


def section(run: Run) -> str:
    """The section of the page."""
    if not run.measured:
        return ""
    columns = [OURS, *(name for name in PEERS if any(name in m.times for m in run.measured))]
    text = _TEXT + f"| work | pass | plain products | target | {' | '.join(columns)} | over products | over target |\n"
    text += "|---" * (len(columns) + 6) + "|\n"
    for m in run.measured:
        assert isinstance(m, MeasuredProduct)
        target = "" if m.target is None else f"{m.target:.1f}"
        times = " | ".join(f"{m.times[name]:.1f}" if name in m.times else "" for name in columns)
        text += f"| {m.title} | {m.which} | {m.floor:.1f} | {target} | {times} | {m.ratio:.2f} | {m.to_target} |\n"
    return text + product_limits(run.measured, _misses)


def _misses(m: Measured) -> bool:
    """Whether a pass misses its target by more than the noise."""
    return isinstance(m, MeasuredProduct) and m.target is not None and m.times[OURS] > NOISE * m.target

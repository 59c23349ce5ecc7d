"""A model of three linear layers, 768 -> 3072 (gelu) -> 768 -> 768 (gelu), trained on 64 x 128 tokens in fp16.

fusegen has all of it in one op. Every variant starts from the same weights and gets the same cotangent for its result,
so that nothing but the model is timed. Printed: device time of forward and backward, and wall-clock time of a training
step with plain SGD, the steps following each other as in training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.bench.comparison import Guarded
from fusegen.matmul.libraries.stopwatch import Clock
from tools.bench.kernels import OURS
from tools.bench.products import AUTOTUNED, GRADIENTS, autotuned, compare

TITLE = "products: model of three linear layers"
HEAD = """## A model of three linear layers

768 -> 3072 (gelu) -> 768 -> 768 (gelu), on 64 x 128 tokens in fp16: forward and backward on the device, and a
training step with plain SGD by the wall clock, steps following each other. For fusegen it is one op. Gradients were
compared with eager torch's first.

"""
STEPS = 50
RATE = 1e-4


@fg.op
def layers(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
    """gelu(linear(linear(gelu(linear(x))))), gelu in its tanh form."""
    hidden = fg.ops.gelu(fg.linear(x, w1, b1), approximate="tanh")
    return fg.ops.gelu(fg.linear(fg.linear(hidden, w2, b2), w3, b3), approximate="tanh")


def torch_layers(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
    """The same in torch."""
    hidden = F.gelu(F.linear(x, w1, b1), approximate="tanh")
    return F.gelu(F.linear(F.linear(hidden, w2, b2), w3, b3), approximate="tanh")


@dataclass(frozen=True)
class Size:
    """How large the model and its batch are."""

    batch: int = 64
    length: int = 128
    width: int = 768
    hidden: int = 3072

    def parameters(self, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
        """Weights and biases, the same in every run."""
        torch.manual_seed(0)
        found = []
        for n, k in ((self.hidden, self.width), (self.width, self.hidden), (self.width, self.width)):
            found += [torch.randn(n, k, device=device) / sqrt(k), torch.randn(n, device=device) / 10]
        return [tensor.to(dtype).requires_grad_() for tensor in found]

    def batch_of(self, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
        """Inputs, and a cotangent for the result: small, but far from float16's subnormal numbers."""
        torch.manual_seed(1)
        found = [torch.randn(self.batch, self.length, self.width, device=device) for _ in range(2)]
        found[1] /= 64
        return [tensor.to(dtype) for tensor in found]


@dataclass(frozen=True)
class Line:
    """One variant: seconds of its first step, microseconds of forward and backward on the device, and of a training
    step."""

    variant: str
    first: float
    step: float
    training: float


@dataclass
class Measured:
    """The lines, eager torch first, and why a variant has none."""

    lines: list[Line] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def measure(
    clock: Clock, device: str = "cuda", autotune: bool = False, compiled: bool = True, size: Size | None = None,
    dtype: torch.dtype = torch.float16,
) -> Measured:  # fmt: skip
    """Every variant."""
    size, found = size or Size(), Measured()
    torch.compiler.reset()
    variants: dict[str, Callable[..., Any]] = {"eager": torch_layers, OURS: layers}
    if compiled:
        variants["torch.compile"] = torch.compile(torch_layers, dynamic=False)
    if compiled and autotune:
        variants[AUTOTUNED] = autotuned(torch_layers)
    x, cotangent = size.batch_of(dtype, device)
    expected: Sequence[torch.Tensor] = ()
    steps: dict[str, Callable[[], Sequence[torch.Tensor]]] = {}
    first: dict[str, float] = {}
    training: dict[str, float] = {}
    for variant, function in variants.items():
        parameters = size.parameters(dtype, device)

        def step(function: Any = function, parameters: Any = parameters) -> Sequence[torch.Tensor]:
            gradients: Sequence[torch.Tensor] = torch.autograd.grad(function(x, *parameters), parameters, cotangent)
            return gradients

        try:
            start = time.perf_counter()
            gradients = step()
            _wait(device)
            first[variant] = time.perf_counter() - start
            expected = expected or gradients
            for position, pair in enumerate(zip(gradients, expected, strict=True)):
                compare(f"gradient {position}", *pair, GRADIENTS)
            trained = [parameter.detach().clone().requires_grad_() for parameter in parameters]
            training[variant] = train(function, trained, x, cotangent, device)
            steps[variant] = step
        except Exception as error:  # one variant's failure is no reason to measure nothing else
            found.left_out[variant] = f"{type(error).__name__}: {error}"
    turns = {variant: Guarded(step) for variant, step in steps.items()}
    for variant, taken in clock.turns(turns).items():
        if problem := turns[variant].problem:
            found.left_out[variant] = problem
        else:
            found.lines.append(Line(variant, first[variant], taken, training[variant]))
    return found


def train(
    function: Callable[..., Any], parameters: Sequence[torch.Tensor], x: torch.Tensor, cotangent: torch.Tensor,
    device: str,
) -> float:  # fmt: skip
    """Microseconds of a training step by the wall clock."""
    optimizer = torch.optim.SGD(parameters, lr=RATE)

    def step() -> None:
        function(x, *parameters).backward(cotangent)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(STEPS // 5):
        step()
    _wait(device)
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    _wait(device)
    return (time.perf_counter() - start) / STEPS * 1e6


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def table(lines: Sequence[Line]) -> str:
    """The variants as Markdown, each compared with eager torch, which is the first."""
    text = "| variant | forward + backward, µs | eager / this | training step, µs | eager / this | first step, s |\n"
    text += "|---|--:|--:|--:|--:|--:|\n"
    for line in lines:
        cells = (line.step, lines[0].step / line.step, line.training, lines[0].training / line.training, line.first)
        digits = (1, 2, 1, 2, 2)
        text += f"| {line.variant} | {' | '.join(f'{c:.{d}f}' for c, d in zip(cells, digits, strict=True))} |\n"
    return text


def report(clock: Clock, device: str = "cuda", autotune: bool = False, compiled: bool = True) -> tuple[str, str]:
    """The table, printed as well, and why fusegen could not be measured; empty if it could."""
    found = measure(clock, device, autotune, compiled)
    text = table(found.lines)
    notes = [f"{variant} left out: {reason}" for variant, reason in found.left_out.items()]
    print("\n".join([f"\n{TITLE}", text, *notes]), flush=True)
    return text, found.left_out.get(OURS, "")

"""What a library does behind a matrix product itself, and when that is better than a product and a kernel.

A bias alone is added by the routine that multiplies. cuBLASLt also applies relu or gelu (its tanh form) before the
product is written, which saves a pass over memory. Which way is faster is measured once for a GPU, a dtype and sizes up
to the next powers of two, and remembered on disk.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fusegen.core.ir import Call, Index, Op, Reduce, Size, const, walk
from fusegen.core.products import contracted_sizes
from fusegen.declare.table import apply
from fusegen.fuse.products import Product, chain
from fusegen.launch.cache import default_cache
from fusegen.launch.memo import compiler_digest
from fusegen.launch.sealed import digest

OWN, LIBRARY = "product and kernel", "cuBLASLt's epilogue"
REPEATS = 7


@dataclass(frozen=True)
class Closing:
    """An epilogue that the library has: ``activation(product + bias)``, or "bias" alone."""

    activation: str
    bias: str

    def run(self, left: Any, right: Any, bias: Any, out: Any) -> None:
        """Compute it on torch tensors of two dimensions, into ``out``."""
        import torch

        if self.activation == "bias":
            torch.addmm(bias, left, right, out=out)
            return
        torch._addmm_activation(bias, left, right, use_gelu=self.activation == "gelu", out=out)


@functools.lru_cache(maxsize=1024)
def closing(product: Product, part: Op) -> Closing | None:
    """What the library could do in the place of ``part``, the op behind a product, if it computes just that."""
    others = [operand for operand in part.operands if operand.name != product.result]
    own = [operand for operand in part.operands if operand.name == product.result]
    (out, *more) = part.outputs
    plain = not (more or part.scalars or out.part or any(isinstance(s, Reduce) for s in part.statements))
    plain = plain and not product.onto  # a sum of products is more than the last of them
    if not plain or out.shape != product.axes or len(product.axes) < 2 or len(others) != 1 or len(own) != 1:
        return None
    bias, result = others[0], own[0]
    if bias.shape != product.axes[-1:] or bias.part or {bias.dtype, result.dtype} != {out.dtype}:
        return None
    (written,) = part.expand()[1]
    total = written.expr
    sums = [apply("add", result.ref, bias.ref), apply("add", bias.ref, result.ref)]
    for before in sums:
        zero = const(0, before.dtype)
        relus = [apply("where", apply(test, before, zero), zero, before) for test in ("le", "lt")]  # NaN passes
        if total is before:
            return Closing("bias", bias.name)
        if total in relus:
            return Closing("relu", bias.name)
    return Closing("gelu", bias.name) if _is_gelu(part, product) else None


# What gelu's tanh form can be written with: analytic functions, so that two which agree on many numbers are one.
_ANALYTIC = frozenset({"add", "sub", "mul", "div", "neg", "powi", "tanh", "sigmoid"})


def _is_gelu(part: Op, product: Product) -> bool:
    """Whether ``part`` is gelu of product + bias in its tanh form, tried on many numbers in double precision."""
    nodes = list(walk([written.expr for written in part.expand()[1]]))
    functions = {node.function for node in nodes if isinstance(node, Call)}
    if not functions <= _ANALYTIC or any(isinstance(node, (Size, Index)) for node in nodes):
        return False
    import torch

    from fusegen.wrap.reference import reference

    far = torch.logspace(-6, 2, 60, dtype=torch.float64, device="cpu")
    numbers = torch.cat([-far.flip(0), torch.zeros_like(far[:1]), far])
    sizes = {axis: len(numbers) if axis == product.axes[-1] else 2 for axis in product.axes}
    given = {operand.name: numbers.expand([sizes[axis] for axis in operand.shape if axis]) for operand in part.operands}
    given[product.result] = given[product.result] * 0.7  # not the bias's
    total = functools.reduce(torch.add, given.values())  # the bias lies along the last axis
    (found,) = reference(part, given)
    wanted = torch.nn.functional.gelu(total, approximate="tanh")
    return bool(torch.allclose(found, wanted, rtol=1e-9, atol=1e-12))


# -- which one ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Microseconds of both ways; a way that is not there, or computes something else, has none."""

    times: Mapping[str, float]

    @property
    def best(self) -> str:
        return min(self.times, key=lambda way: self.times[way])

    def __str__(self) -> str:
        return ", ".join(f"{way} {time:.1f} us" for way, time in self.times.items())


_known: dict[tuple[str, ...], Measured] = {}


def bucket(device: str, dtype: str, sizes: Sequence[int], activation: str) -> tuple[str, ...]:
    """What is measured once: sizes count up to the next power of two."""
    import torch

    rounded = [str(1 << max(size - 1, 0).bit_length()) for size in sizes]
    return (torch.cuda.get_device_name(device), str(torch.version.cuda), torch.__version__, dtype, activation, *rounded)


def remembered(key: tuple[str, ...]) -> Measured | None:
    """What was measured for a bucket, here or in another process."""
    if key not in _known:
        found = default_cache().get(_place(key))
        if found is None:
            return None
        _known[key] = Measured(json.loads(found))
    return _known[key]


def _place(key: tuple[str, ...]) -> str:
    return digest("product", compiler_digest(), *key)


def choose(key: tuple[str, ...], closing: Closing, dtype: Any, ways: Mapping[str, Callable[[], Any]]) -> str:
    """The faster way, measured now if nobody has; while a CUDA graph is captured nothing can be, and it is our own."""
    import torch

    if closing.activation == "bias":  # a pass over memory less, on any machine
        return LIBRARY
    found = remembered(key)
    if found is None:
        if torch.cuda.is_current_stream_capturing():
            return OWN
        try:
            found = _known[key] = _measure(ways, _is_right(closing, dtype))
        except torch.cuda.OutOfMemoryError:  # what measuring needs is no reason to fail; the next call tries again
            return OWN
        default_cache().put(_place(key), json.dumps(dict(found.times)).encode())
    return found.best


def _measure(ways: Mapping[str, Callable[[], Any]], library_is_right: bool) -> Measured:
    from fusegen.wrap.stopwatch import Stopwatch

    clock = Stopwatch(REPEATS)
    return Measured({way: clock(work) for way, work in ways.items() if way == OWN or library_is_right})


@functools.cache
def _is_right(closing: Closing, dtype: Any) -> bool:
    """Whether the library's epilogue passes NaN and infinities on, which not every version does."""
    import torch
    from torch.nn import functional

    x = torch.randn(64, 64, device="cuda", dtype=torch.float32).to(dtype)
    x[3, 5], x[7, 0] = float("nan"), float("inf")
    w, b = torch.randn(64, 64, device="cuda").to(dtype), torch.randn(64, device="cuda").to(dtype)
    out = torch.empty_like(x)
    try:
        closing.run(x, w, b, out)
    except (AttributeError, RuntimeError):  # a torch without it, or a dtype it does not take
        return False
    total = x.float() @ w.float() + b.float()
    wanted = functional.relu(total) if closing.activation == "relu" else functional.gelu(total, approximate="tanh")
    return bool(torch.allclose(out.float(), wanted, rtol=0.05, atol=0.5, equal_nan=True))


def note(product: Product, part: Op) -> str:
    """What may happen in the place of ``part``, the op behind a product; empty where nothing else can."""
    found = closing(product, part)
    if found is None:
        return ""
    if found.activation == "bias":
        return "  in the place of the next step the same routine adds the bias"
    return f"  on a GPU {LIBRARY} ({found.activation}) in the place of the next step, where it is measured to be faster"


def measurements(op: Op, sizes: Mapping[str, int]) -> list[str]:
    """What has been measured on torch's current GPU, if there is one, of the ways an op's products can go."""
    whole, torch = chain(op), sys.modules.get("torch")
    if whole is None or torch is None or not torch.cuda.is_available():
        return []
    sizes = contracted_sizes(op, sizes)
    lines: list[str] = []
    for product, part in zip(whole.steps, whole.steps[1:], strict=False):
        found = closing(product, part) if isinstance(product, Product) and isinstance(part, Op) else None
        if found is None or found.activation == "bias":
            continue
        assert isinstance(product, Product) and isinstance(part, Op)
        *rows, columns = (sizes[axis] for axis in product.axes)
        counts = prod(rows), columns, prod(sizes[axis] for axis in product.over)
        measured = remembered(bucket("cuda", part.outputs[0].dtype.name, counts, found.activation))
        lines.append(f"{product.result} and the step behind it: {measured or 'not measured yet for these sizes'}")
    return lines

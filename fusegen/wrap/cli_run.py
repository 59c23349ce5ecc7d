"""``fusegen run``: an op on random arguments, compared with its float64 reference."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fusegen.core.ir import Op
from fusegen.declare.reference import reference
from fusegen.wrap.cli_case import POSITIVE, Case, choose_device, load_torch
from fusegen.wrap.cli_examples import example_of
from fusegen.wrap.cli_ops import Request, bind, resolve
from fusegen.wrap.inspect import differentiable
from fusegen.wrap.op import FusedOp

if TYPE_CHECKING:
    import torch

# Largest difference that passes, over the largest value of the reference. A kernel computes in float32 or float64 and
# rounds once; what cancels in sums and differences takes the rest.
TOLERANCES = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def run_op(
    name: str, dtype: Sequence[str], shape: Sequence[str], arg: Sequence[str], device: str | None, seed: int
) -> bool:
    """Compare forward and gradients with the float64 reference; print a table; True if all is close."""
    torch = load_torch()
    case = _case(name, Request.parse(shape, dtype, arg), device, seed)
    print(f"{case.op.name} on {case.place}")
    for parameter, tensor in case.tensors.items():
        print(f"  {parameter}: {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}")
    op = case.trace()
    expected = reference(op, case.tensors, case.scalars())
    with torch.no_grad():
        results, first, warm = _timed(torch, case, case.call)
    names = list(dict.fromkeys(o.base for o in op.outputs))
    passed = _compare("forward", first, warm, zip(names, results, expected, strict=True))
    if differentiable(op):
        passed &= _run_backward(torch, case, op)
    print("all close to the float64 reference" if passed else "NOT close to the float64 reference")
    return passed


def _case(name: str, request: Request, device: str | None, seed: int) -> Case:
    """Random arguments. Numbers are normal; where that leaves the op's domain (log, square roots), between 0 and 1."""
    op = resolve(name)
    specs, where = bind(op, request), choose_device(device)
    positive = example_of(op.name).positive
    if op.declaration.prepare is not None:  # the op itself, on what its wrapper would hand it
        specs = op.declaration.bind((), dict(specs))
        op = FusedOp(replace(op.declaration, prepare=None))
    if not positive:
        case = Case.random(op, specs, where, seed, None)
        results = reference(case.trace(), case.tensors, case.scalars())
        floats = [r for r in results if r.is_floating_point() and r.numel()]
        if all(r.isfinite().double().mean() > 0.9 for r in floats):
            return case
    return Case.random(op, specs, where, seed, POSITIVE)


def _run_backward(torch: Any, case: Case, op: Op) -> bool:
    if case.op.declaration.gradient is not None:
        print("  backward  is the declaration's own, which the reference does not know")
        return True
    live = case.requiring(differentiable(op))
    wanted = {n: t for n, t in live.tensors.items() if t.requires_grad}
    exact = {n: t.detach().double().requires_grad_() for n, t in wanted.items()}
    expected = [r for r in reference(op, {**case.tensors, **exact}, case.scalars()) if r.requires_grad]
    results = [r for r in live.call() if r.requires_grad]
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.device, r.dtype) for r in results]
    grads, first, warm = _timed(
        torch, case, lambda: torch.autograd.grad(results, list(wanted.values()), cotangents, retain_graph=True)
    )
    truth = torch.autograd.grad(
        expected, list(exact.values()), [c.double() for c in cotangents], materialize_grads=True, allow_unused=True
    )
    names = [f"d_{name}" for name in wanted]
    return _compare("backward", first, warm, zip(names, grads, truth, strict=True))


def _timed(torch: Any, case: Case, call: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result, seconds of the first call (it compiles) and of a later one."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        result = call()
        if case.device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return result, times[0], times[1]


def _compare(which: str, first: float, warm: float, results: Any) -> bool:
    print(f"  {which:<9} first call {_seconds(first)}, then {_seconds(warm)}")
    passed = True
    for name, found, expected in results:
        error, scale = difference(found, expected)
        limit = TOLERANCES.get(str(found.dtype).removeprefix("torch."), 0.0)
        close = error <= limit * max(scale, 1e-30)
        passed &= close
        verdict = "" if close else "   <-- too large"
        print(f"    {name}: largest error {error:.3g} where values reach {scale:.3g}{verdict}")
    return passed


def difference(found: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Largest absolute difference, and largest finite magnitude expected. NaN and infinities match themselves."""
    a, b = found.detach().double(), expected.detach().double()
    if a.shape != b.shape:
        return math.inf, 1.0
    if not a.numel():
        return 0.0, 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    error = (a - b).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf).max().item()
    return error, b.abs().nan_to_num(nan=0.0, posinf=0.0).max().item()


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1 or unit == "µs":
            return f"{value * factor:.3g} {unit}"
    raise AssertionError

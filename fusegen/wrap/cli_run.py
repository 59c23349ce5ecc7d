"""``fusegen run`` and ``fusegen bench``: an op on what is there, compared with its reference, and timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusegen.core.errors import DeviceError, FusegenError
from fusegen.declare.trace import TensorSpec
from fusegen.wrap.cli_examples import example_of
from fusegen.wrap.cli_ops import Request, bind, resolve
from fusegen.wrap.inspect import differentiable
from fusegen.wrap.op import FusedOp
from fusegen.wrap.reference import reference

if TYPE_CHECKING:
    import torch

# Largest difference that passes, over the largest value of the reference. A kernel computes in float32 or float64 and
# rounds once; what cancels in sums and differences takes the rest.
TOLERANCES = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
# Where logarithms, square roots and probabilities are at home.
POSITIVE = (0.05, 0.95)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise DeviceError(
            "fusegen", given="no torch, whose tensors `fusegen run` and `bench` use", expected="torch",
            fix='pip install "fusegen[torch]"',
        ) from None  # fmt: skip
    return torch


def _device(torch: Any, wanted: str | None) -> str:
    """The device that ``--device`` names; a GPU if there is one and nothing is said."""
    available = torch.cuda.is_available()
    if wanted not in (None, "cpu", "cuda"):
        raise DeviceError("fusegen", given=f"--device {wanted}", expected="cpu or cuda", fix="pass one of these")
    if wanted == "cuda" and not available:
        raise DeviceError(
            "fusegen", given="--device cuda, and torch sees no GPU", expected="a GPU and a CUDA build of torch",
            fix="leave --device away to run on the CPU emulator; see `fusegen doctor`",
        )  # fmt: skip
    return wanted or ("cuda" if available else "cpu")


@dataclass
class _Case:
    """An op with real arguments: tensors by name, and the keyword arguments of a call."""

    op: FusedOp
    tensors: dict[str, torch.Tensor]
    arguments: dict[str, Any]
    device: str

    @property
    def place(self) -> str:
        import torch

        return torch.cuda.get_device_name() if self.device == "cuda" else "the CPU emulator"

    def call(self) -> list[torch.Tensor]:
        """Results of the op, as a list."""
        result = self.op(**self.arguments)
        return list(result) if isinstance(result, tuple) else [result]

    def trace(self) -> Any:
        return self.op.trace(**self.arguments)

    def scalars(self) -> dict[str, Any]:
        names = {scalar.name for scalar in self.trace().scalars}
        bound = self.op.declaration.bind((), self.arguments)
        return {name: value for name, value in bound.items() if name in names}


def _case(name: str, request: Request, device: str | None, seed: int) -> _Case:
    """Random arguments. Numbers are normal; where that leaves the op's domain (log, square roots), between 0 and 1."""
    torch = _torch()
    op = resolve(name)
    specs = bind(op, request)
    where = _device(torch, device)
    case = _Case(op, {}, dict(specs), where)
    for low_high in (POSITIVE,) if example_of(op.name).positive else (None, POSITIVE):
        generator = torch.Generator().manual_seed(seed)
        for parameter, spec in specs.items():
            if isinstance(spec, TensorSpec):
                case.tensors[parameter] = _random(torch, spec, generator, low_high).to(where)
        case.arguments.update(case.tensors)
        results = reference(case.trace(), case.tensors, case.scalars())
        floats = [r for r in results if r.is_floating_point() and r.numel()]
        if all(r.isfinite().double().mean() > 0.9 for r in floats):
            break
    return case


def _random(torch: Any, spec: TensorSpec, generator: Any, low_high: tuple[float, float] | None) -> Any:
    dtype = getattr(torch, spec.dtype.name)
    low, high = low_high or (0.0, 8.0)
    if not spec.dtype.is_float:
        return torch.randint(0, 2 if spec.dtype.name == "bool" else 8, spec.shape, generator=generator).to(dtype)
    if low_high is None:
        return torch.randn(spec.shape, generator=generator, dtype=torch.float64).to(dtype)
    return (low + (high - low) * torch.rand(spec.shape, generator=generator, dtype=torch.float64)).to(dtype)


# -- run -------------------------------------------------------------------------------------------------------------


def run_op(
    name: str, dtype: Sequence[str], shape: Sequence[str], arg: Sequence[str], device: str | None, seed: int
) -> bool:
    """Compare forward and gradients with the float64 reference; print a table; True if all is close."""
    torch = _torch()
    case = _case(name, Request.parse(shape, dtype, arg), device, seed)
    print(f"{case.op.name} on {case.place}")
    for parameter, tensor in case.tensors.items():
        print(f"  {parameter}: {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}")
    op = case.trace()
    expected = reference(op, case.tensors, case.scalars())
    with torch.no_grad():
        results, first, warm = _timed(torch, case, case.call)
    names = list(dict.fromkeys(o.part.base if o.part else o.name for o in op.outputs))
    passed = _compare("forward", first, warm, zip(names, results, expected, strict=True))
    if differentiable(op):
        passed &= _run_backward(torch, case, op)
    print("all close to the float64 reference" if passed else "NOT close to the float64 reference")
    return passed


def _run_backward(torch: Any, case: _Case, op: Any) -> bool:
    if case.op.declaration.gradient is not None:
        print("  backward  is the declaration's own, which the reference does not know")
        return True
    wanted = {n: t.detach().requires_grad_() for n, t in case.tensors.items() if n in differentiable(op)}
    exact = {n: t.detach().double().requires_grad_() for n, t in wanted.items()}
    expected = [r for r in reference(op, {**case.tensors, **exact}, case.scalars()) if r.requires_grad]
    live = _Case(case.op, {**case.tensors, **wanted}, {**case.arguments, **wanted}, case.device)
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


def _timed(torch: Any, case: _Case, call: Callable[[], Any]) -> tuple[Any, float, float]:
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


# -- bench -----------------------------------------------------------------------------------------------------------


def bench_op(
    name: str, dtype: Sequence[str], shape: Sequence[str], arg: Sequence[str], device: str | None, seconds: float
) -> None:
    """Time per call and bytes that the op itself has to move per second; torch's namesake beside it."""
    torch = _torch()
    case = _case(name, Request.parse(shape, dtype, arg), device, 0)
    print(f"{case.op.name} on {case.place}: fewest bytes are those of each argument and result, once")
    with torch.no_grad():
        results = case.call()
        moved = _bytes([*case.tensors.values(), *results])
        _report("forward", _measure(torch, case, case.call, seconds), moved)
        peer = namesake(torch, case)
        if peer is not None:
            _report("  torch", _measure(torch, case, peer, seconds), moved)
    wanted = differentiable(case.trace())
    if wanted:
        _bench_backward(torch, case, wanted, peer, seconds)


def _bench_backward(torch: Any, case: _Case, wanted: Sequence[str], peer: Any, seconds: float) -> None:
    leaves = {n: t.detach().requires_grad_() for n, t in case.tensors.items() if n in wanted}
    live = _Case(case.op, {**case.tensors, **leaves}, {**case.arguments, **leaves}, case.device)
    calls = [("backward", live.call)]
    if peer is not None:
        calls.append(("  torch", lambda: [namesake(torch, live)()]))  # type: ignore[misc]
    for title, forward in calls:
        results = [r for r in forward() if r.requires_grad]
        cotangents = [torch.ones_like(r) for r in results]
        moved = _bytes([*case.tensors.values(), *leaves.values(), *results])

        def backward(results: Any = results, cotangents: Any = cotangents) -> Any:
            return torch.autograd.grad(results, list(leaves.values()), cotangents, retain_graph=True, allow_unused=True)

        _report(title, _measure(torch, case, backward, seconds), moved)


def namesake(torch: Any, case: _Case) -> Callable[[], Any] | None:
    """Torch's function of the op's name, on the same arguments, if it takes them."""
    for module in (torch.nn.functional, torch, torch.special):
        function = getattr(module, case.op.name, None)
        if function is not None:
            args = list(case.tensors.values())
            rest = {n: v for n, v in case.arguments.items() if n not in case.tensors}
            try:
                function(*args, **rest)
            except (TypeError, RuntimeError, ValueError, FusegenError):
                continue
            return lambda: function(*args, **rest)
    return None


def _measure(torch: Any, case: _Case, call: Callable[[], Any], seconds: float) -> float:
    """Median seconds of a call; batches of calls are timed, so that launches overlap as they do in use."""
    _, _, once = _timed(torch, case, call)
    batch = max(1, min(1000, int(0.01 / max(once, 1e-7))))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not times:
        start = time.perf_counter()
        for _ in range(batch):
            call()
        if case.device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / batch)
    return sorted(times)[len(times) // 2]


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _report(title: str, seconds: float, moved: int) -> None:
    print(f"  {title:<9} {_seconds(seconds):>9} a call, {moved / seconds / 1e9:8.1f} GB/s")

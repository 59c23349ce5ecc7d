"""``fusegen run``: an op on random arguments, compared with its float64 reference."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fusegen.cli import blame
from fusegen.cli.arguments import Request, resolve
from fusegen.cli.examples import example_of
from fusegen.cli.inputs import POSITIVE, Case, apart, choose_device, elements, load_torch, size, sized
from fusegen.cli.progress import Bar
from fusegen.cli.several import chosen, is_file, outcome
from fusegen.core.ir import Op
from fusegen.declare.reference import reference
from fusegen.fused_op import FusedOp
from fusegen.inspect.passes import differentiable
from fusegen.pytorch.library.eager import eager

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]

# Largest difference that passes anywhere, over the largest value of the reference. A kernel computes in float32 or
# float64 and rounds once; what cancels in sums and differences takes the rest.
TOLERANCES = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
# What passes beyond that: how far the reference moves where its inputs move by so many rounding errors, as they do
# where a kernel rounds what it computes of them.
ROUNDINGS, DRAWS = 16, 4
# A call that took longer than this many seconds is not timed a second time.
PATIENCE = 10.0
# Elements that the emulator takes long for.
LONG = 2**29


def run_ops(
    name: str, dtype: Sequence[str], shape: Sequence[str], arg: Sequence[str], device: str | None, seed: int,
    stages: bool = False,
) -> bool:  # fmt: skip
    """As ``run_op``, or all ops of a file: one that fails does not keep the others from running."""
    if not is_file(name):
        return run_op(name, dtype, shape, arg, device, seed, stages)
    choose_device(device)  # what is missing for all is said once
    items, failed = chosen([name], Request.parse(shape, dtype, arg)), []
    for item in items:
        try:
            passed = _run(item.op, item.request, device, seed, stages)
        except Exception as error:  # a declaration is a user's Python, and may raise anything
            print(f"{item.title} failed:\n{blame.described(error)}", flush=True)
            passed = False
        failed += [] if passed else [item.title]
        print()
    print(outcome([item.title for item in items], failed, "agree"))
    return not failed


def run_op(
    name: str, dtype: Sequence[str], shape: Sequence[str], arg: Sequence[str], device: str | None, seed: int,
    stages: bool = False,
) -> bool:  # fmt: skip
    """Compare forward and gradients with the float64 reference; print a table; True if all is close.

    Args:
        stages: compare every stage of the compiler instead, in float64 until the last one (cli/stages).
    """
    load_torch()
    request = Request.parse(shape, dtype, arg)
    return _run(resolve(name, request), request, device, seed, stages)


def _run(op: FusedOp, request: Request, device: str | None, seed: int, stages: bool) -> bool:
    torch = load_torch()
    with Bar(total=10) as bar:
        bar.step(f"{op.name}: arguments")
        case = _case(op, request, device, seed)
        print(f"{case.op.name} on {case.place}")
        for parameter, tensor in case.tensors.items():
            print(f"  {parameter}: {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}", flush=True)
        if stages:
            from fusegen.cli.stages import run_stages

            return run_stages(case, case.trace(), bar)
        run = _Run(torch, case, case.trace(), bar)
        passed = run.forward()
        if differentiable(run.op):
            passed &= run.backward()
    print("all close to the float64 reference" if passed else "NOT close to the float64 reference")
    return passed


def _case(op: FusedOp, request: Request, device: str | None, seed: int) -> Case:
    """Random arguments. Numbers are normal; where that leaves the op's domain (log, square roots), between 0 and 1."""
    where = choose_device(device)
    specs = sized(op, request)
    if where == "cpu" and elements(op, specs) > LONG:
        print("the CPU emulator takes minutes for that; a smaller --shape shows as much", file=sys.stderr)
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


@dataclass
class _Run:
    """One op on its arguments: its passes, and what they are compared with."""

    torch: Any
    case: Case
    op: Op
    bar: Bar

    def forward(self) -> bool:
        case, op = self.case, self.op
        self.bar.step("forward, reference")
        expected = reference(op, case.tensors, case.scalars())
        with self.torch.no_grad():
            results = self._timed("forward", case.call)
        moves = _Moves(
            self.torch, case.tensors, lambda: self._rounded(case.tensors),
            lambda tensors: reference(op, tensors, case.scalars()),
        )  # fmt: skip
        return self._compare(list(dict.fromkeys(o.base for o in op.outputs)), results, expected, moves)

    def _rounded(self, tensors: Tensors) -> list[Any]:
        """Results in the op's own dtypes, rounded at every step."""
        found = eager(self.op, list(tensors), self.case.scalars())(*tensors.values())
        return list(found) if isinstance(found, tuple) else [found]

    def backward(self) -> bool:
        torch, op = self.torch, self.op
        if self.case.op.declaration.gradient is not None:
            print("  backward  is the declaration's own, which the reference does not know")
            return True
        live = self.case.requiring(differentiable(op))
        wanted = {n: t for n, t in live.tensors.items() if t.requires_grad}
        self.bar.step("forward, for gradients")
        called = live.call()
        at = [i for i, r in enumerate(called) if r.requires_grad]
        results = [called[i] for i in at]
        generator = torch.Generator().manual_seed(1)
        cotangents = [
            torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.device, r.dtype) for r in results
        ]

        def gradients(tensors: Tensors, outputs: Callable[[Tensors], Any]) -> list[Any]:
            leaves = {n: t.detach().requires_grad_() for n, t in tensors.items() if n in wanted}
            every = outputs({**tensors, **leaves})
            # The reference knows of more results than a call that no gradient reaches them: those of comparisons.
            pairs = [(every[i], c) for i, c in zip(at, cotangents, strict=True) if every[i].requires_grad]
            if not pairs:
                return [torch.zeros_like(leaf) for leaf in leaves.values()]
            given = [c.to(r.dtype) for r, c in pairs]
            return list(torch.autograd.grad(
                [r for r, _ in pairs], list(leaves.values()), given, materialize_grads=True, allow_unused=True
            ))  # fmt: skip

        def exact(tensors: Tensors) -> list[Any]:
            doubles = {n: t.double() if n in wanted else t for n, t in tensors.items()}
            return gradients(doubles, lambda tensors: reference(op, tensors, live.scalars()))

        self.bar.step("backward, reference")
        truth = exact(live.tensors)
        grads = self._timed(
            "backward", lambda: torch.autograd.grad(results, list(wanted.values()), cotangents, retain_graph=True)
        )
        moves = _Moves(torch, live.tensors, lambda: gradients(live.tensors, self._rounded), exact)
        return self._compare([f"d_{name}" for name in wanted], grads, truth, moves)

    def _timed(self, which: str, call: Callable[[], Any]) -> Any:
        """The result; prints the seconds of the first call, which compiles, and of a later one."""
        times: list[float] = []
        for step in (f"{which}, first call", f"{which}, again"):
            self.bar.step(step)
            if times and times[0] > PATIENCE:
                break
            start = time.perf_counter()
            result = call()
            if self.case.device == "cuda":
                self.torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        then = f", then {_seconds(times[1])}" if len(times) > 1 else ""
        print(f"  {which:<9} first call {_seconds(times[0])}{then}", flush=True)
        return result

    def _compare(self, names: Sequence[str], found: Sequence[Any], expected: Sequence[Any], moves: _Moves) -> bool:
        passed = True
        for position, name in enumerate(names):
            error = apart(found[position], expected[position])
            scale = size(expected[position])
            limit = TOLERANCES.get(str(found[position].dtype).removeprefix("torch."), 0.0) * max(scale, 1e-30)
            largest, verdict = error.max().item() if error.numel() else 0.0, ""
            if not largest <= limit:
                self.bar.step("what rounding makes")
                close = bool((error <= limit + moves.of(position, expected[position])).all())
                verdict = ", and rounding makes as much" if close else "   <-- too large"
                passed &= close
            print(f"    {name}: largest error {largest:.3g} where values reach {scale:.3g}{verdict}", flush=True)
        return passed


@dataclass
class _Moves:
    """How far rounding moves results, computed when it is asked for.

    Args:
        tensors: the arguments.
        rounded: the results in the op's own dtypes.
        exact: the results in float64, of other arguments.
    """

    torch: Any
    tensors: Tensors
    rounded: Callable[[], Sequence[Any]]
    exact: Callable[[Tensors], Sequence[Any]]
    found: list[Sequence[Any]] | None = None

    def of(self, position: int, expected: Any) -> Any:
        """For each element of a result what its error may be, beside what any may be."""
        if self.found is None:
            self.found = [self.rounded(), *map(self.exact, self._moved())]
        own, *moved = [apart(results[position], expected) for results in self.found]
        far = self.torch.stack(moved).amax(0)
        if not self.found[0][position].is_floating_point():  # a whole number becomes the next one, or does not
            return self.torch.maximum(far, own)
        finite = own[own.isfinite()]
        return 4 * far + 2 * (finite.max() if finite.numel() else 0.0)

    def _moved(self) -> Iterator[Tensors]:
        """The arguments, all a little larger, all a little smaller, and at random."""
        generator = self.torch.Generator().manual_seed(2)
        for draw in range(2 + DRAWS):
            yield {name: self._near(tensor, draw, generator) for name, tensor in self.tensors.items()}

    def _near(self, tensor: Any, draw: int, generator: Any) -> Any:
        if not tensor.is_floating_point():
            return tensor
        torch, wide = self.torch, tensor.detach().double()
        eps = torch.finfo(torch.promote_types(tensor.dtype, torch.float32)).eps
        signs = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device) * 2 - 1
        return wide * (1 + ROUNDINGS * eps * ((1, -1)[draw] if draw < 2 else signs))


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1 or unit == "µs":
            return f"{value * factor:.3g} {unit}"
    raise AssertionError

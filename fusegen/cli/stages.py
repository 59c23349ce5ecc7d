"""``fusegen run --stages``: an op and what is derived of it, stage by stage, to the one at which numbers part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusegen.cli.inputs import Case, apart, size
from fusegen.cli.progress import Bar
from fusegen.core.errors import LegalityError
from fusegen.core.ir import Op
from fusegen.plan import frameworks
from fusegen.plan.backward import differentiable, result_names
from fusegen.run import evaluate
from fusegen.run.evaluate import Followed
from fusegen.run.programs import TooManyThreads
from fusegen.run.runners import runner_of
from fusegen.run.verify import Bounds, nudged

# Evaluators compute in float64: what they may differ by, where rounding makes no more, is this times the largest value.
TOLERANCE = 1e-12
# How far a number is moved to see what rounding may make, and how much more than that is passed.
NUDGE, ROUNDINGS = 1e-15, 64


def run_stages(case: Case, op: Op, bar: Bar) -> bool:
    """Run every stage, print a line for each, and at the end the first whose numbers are others."""
    compared = _Compared(case, bar)
    numbers = case.scalars()
    doubles = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in case.tensors.items()}
    meaning = Followed("forward", op, dict, lambda roots: evaluate.meaning(op, roots, numbers, {}), doubles, {})
    compared.follow(meaning)
    for followed in _derived(case, op, doubles):
        compared.follow(followed, derived=True)
    if not compared.parted:
        print("the numbers of all stages agree")
        return True
    print(f"numbers part at: {compared.parted[0]}")
    return False


def _derived(case: Case, op: Op, doubles: Mapping[str, Any]) -> Iterator[Followed]:
    """The ops that gradients of all float arguments run, and forward mode."""
    import torch

    floats = tuple(sorted({operand.base for operand in op.operands if operand.dtype.is_float}))
    may = differentiable(op)
    if not floats or not may:
        return
    generator = torch.Generator(case.device).manual_seed(1)

    def draw(like: Any) -> Any:
        if not like.is_floating_point():
            return like
        return torch.randn(like.shape, generator=generator, device=like.device, dtype=torch.float64)

    numbers, sizes = case.scalars(), evaluate.all_sizes(op, doubles, {})
    yield evaluate.trained(op, floats, doubles, numbers, sizes)
    public = tuple(i for i in may if i < len(result_names(op)))
    backward = evaluate.backward(op, floats, public, doubles, numbers, sizes, draw)
    if backward is not None:
        yield backward
    yield evaluate.forward_mode(op, floats, doubles, numbers, sizes, draw)


@dataclass
class _Compared:
    """The stages that were run, and those whose numbers are others.

    Attributes:
        parted: what and at which stage.
    """

    case: Case
    bar: Bar
    parted: list[str] = field(default_factory=list)

    def follow(self, followed: Followed, derived: bool = False) -> None:
        """All stages of one op."""
        print(f"  {followed.label}", flush=True)
        op, numbers, sizes = followed.op, self.case.scalars(), followed.sizes
        given = followed.given(followed.roots)
        self.bar.step(f"{followed.label[:12]}: reference")
        expected, moved = self._expected(followed)
        if not all(bool(value.isfinite().all()) for value in expected if value.is_floating_point()):
            print("    not finite on these arguments: nothing to compare")
            return
        stages: list[tuple[str, evaluate.Evaluate]] = []
        if derived:
            stages.append(("derived, as an expression", evaluate.meaning))
        for name, run in [*stages, *evaluate.stages(op)]:
            self.bar.step(name)
            try:
                results = run(op, given, numbers, sizes)
            except TooManyThreads as error:
                print(f"    {name:<58} not run: {error}", flush=True)
                continue
            except LegalityError as error:
                print(f"    {name:<58} is not legal   <-- {error}", flush=True)
                self.parted.append(f"{followed.label}: {name}")
                continue
            self._line(followed.label, name, self._outside(expected, moved, results), expected, results)
        self._compiled(followed, given)

    def _expected(self, followed: Followed) -> tuple[list[Any], list[list[Any]]]:
        """What the op should compute, and that of numbers which differ in their last bits."""
        values = followed.expected(followed.roots)
        return values, [followed.expected(nudged(followed.roots, NUDGE, seed)) for seed in (1, 2)]

    def _outside(self, expected: Sequence[Any], moved: Sequence[Sequence[Any]], found: Sequence[Any]) -> str:
        """Which result is off by more than rounding explains; nothing if none is."""
        for i, value in enumerate(expected):
            spread = max(float(apart(other[i], value).max()) if value.numel() else 0.0 for other in moved)
            error = float(apart(found[i], value).max()) if value.numel() else 0.0
            if not error <= TOLERANCE * max(size(value), 1e-300) + ROUNDINGS * spread:
                return f"result {i}"
        return ""

    def _line(self, what: str, stage: str, wrong: str, expected: Sequence[Any], found: Sequence[Any]) -> None:
        pairs = [(mine, value) for mine, value in zip(found, expected, strict=True) if value.numel()]
        worst = max((float(apart(mine, value).max()) for mine, value in pairs), default=0.0)
        scale = max((size(value) for value in expected), default=0.0)
        print(
            f"    {stage:<58} largest difference {worst:.2g} where values reach {scale:.3g}"
            f"{f'   <-- {wrong} is wrong' if wrong else ''}", flush=True,
        )  # fmt: skip
        if wrong:
            self.parted.append(f"{what}: {stage}")

    def _compiled(self, followed: Followed, given: Mapping[str, Any]) -> None:
        """The kernels' text, on the device, in the op's own dtypes; beside the op in float64 on the same numbers."""
        import torch

        op, numbers = followed.op, self.case.scalars()
        stage = f"CUDA, on {self.case.place}"
        self.bar.step("compiled")
        own = {
            operand.base: given[operand.base].detach().to(getattr(torch, operand.dtype.name)) for operand in op.operands
        }
        results = runner_of(op, followed.sizes)(own, numbers, frameworks.torch())
        bounds = Bounds.of(op, own, numbers, followed.sizes)
        names = list(result_names(op))
        worst = bounds.worst(names, [result.detach() for result in results])
        self._line(followed.label, stage, worst.result if worst else "", bounds.exact, results)

"""Who computes the same function on the same tensors, and how long each takes for a pass.

An implementation that cannot run, or whose results differ from fusegen's, is left out, and the reason is recorded. So a
failing peer does not end a benchmark, and no benchmark compares different functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fusegen.matmul.libraries.stopwatch import Clock

if TYPE_CHECKING:
    import torch

# fwd: no gradients; bwd: the gradients of every input that requires one; step: both, as training does them.
PASSES = ("fwd", "bwd", "step")
# Largest difference from fusegen's result, over the largest value: peers may compute in the dtype of their tensors,
# and round after every operation.
AGREEMENT = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


class Implementation(Protocol):
    """One way to compute the function. ``time``: microseconds of one pass, measured by itself."""

    @property
    def name(self) -> str: ...
    def results(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]: ...
    def time(self, clock: Clock, inputs: Sequence[torch.Tensor], which: str) -> float: ...


@dataclass(frozen=True)
class InTorch:
    """A function of torch tensors that torch's autograd differentiates.

    Args:
        owns_inputs: it writes into its arguments (or their gradients into them), so it gets copies.
    """

    name: str
    function: Callable[..., Any]
    owns_inputs: bool = False

    def results(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What it computes, without gradients."""
        return tuple(r.detach() for r in results_of(self.function(*[t.detach() for t in self._own(inputs)])))

    def time(self, clock: Clock, inputs: Sequence[torch.Tensor], which: str) -> float:
        """Microseconds of one pass."""
        return clock(self.work(inputs, which))

    def work(self, inputs: Sequence[torch.Tensor], which: str) -> Callable[[], Any]:
        """A call that runs one pass, called once."""
        work = one_pass(self.function, self._own(inputs), which)
        work()
        return work

    def _own(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if not self.owns_inputs:
            return inputs
        return [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]


def results_of(returned: Any) -> tuple[Any, ...]:
    """One result or several, as a tuple."""
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def one_pass(function: Callable[..., Any], inputs: Sequence[torch.Tensor], which: str) -> Callable[[], Any]:
    """A call that runs one pass of ``function``, with everything it needs made before.

    Args:
        which: one of PASSES; "train": the forward that saves what a backward needs; or "leaves": a step that leaves
            its gradients in ``.grad``, where torch lays them out like their tensors.

    Raises:
        ValueError: there is no gradient: no input requires one, or the function's results have none.
    """
    import torch

    if which == "fwd":
        detached = [t.detach() for t in inputs]
        return lambda: function(*detached)
    if which == "train":
        return lambda: function(*inputs)
    wanted = [t for t in inputs if t.requires_grad]

    def forward() -> tuple[torch.Tensor, ...]:
        return tuple(r for r in results_of(function(*inputs)) if r.requires_grad)

    outputs = forward()
    if not wanted or not outputs:
        raise ValueError("it has no backward")
    cotangents = [torch.randn_like(output) for output in outputs]
    if which == "leaves":

        def step() -> None:
            torch.autograd.backward(forward(), cotangents)
            for leaf in wanted:
                leaf.grad = None

        return step
    if which == "bwd":
        return lambda: torch.autograd.grad(outputs, wanted, cotangents, retain_graph=True, allow_unused=True)
    return lambda: torch.autograd.grad(forward(), wanted, cotangents, allow_unused=True)


@dataclass
class Comparison:
    """Implementations on one set of inputs. The results of the first one are the reference for the others.

    Attributes:
        left_out: why an implementation has no time, by name.
    """

    implementations: list[Implementation]
    inputs: Sequence[torch.Tensor]
    left_out: dict[str, str] = field(default_factory=dict)

    def admit(self) -> None:
        """Leave out who cannot run the forward, or computes something else than the first."""
        first, *others = self.implementations
        expected = first.results(self.inputs)
        self.implementations = [first]
        for other in others:
            reason = _attempt(lambda other=other: disagreement(other.results(self.inputs), expected))  # type: ignore[misc]
            if reason:
                self.left_out[other.name] = str(reason)
            else:
                self.implementations.append(other)

    def run(self, passes: Sequence[str]) -> None:
        """Each of these passes once, by every implementation in torch: what these compile is in their caches then."""
        for implementation in self.implementations:
            if isinstance(implementation, InTorch):
                for which in passes:
                    implementation.work(self.inputs, which)

    def time(self, clock: Clock, which: str, extra: Mapping[str, Callable[[], Any]] | None = None) -> dict[str, float]:
        """Microseconds of one pass by implementation. Those in torch take turns; others have streams of their own.

        Args:
            extra: what else takes turns with them, by name.
        """
        works: dict[str, Callable[[], Any]] = {}
        alone: dict[str, Implementation] = {}
        for implementation in self.implementations:
            if not isinstance(implementation, InTorch):
                alone[implementation.name] = implementation
            elif not works:
                works[implementation.name] = implementation.work(self.inputs, which)
            else:
                self._record(works, implementation.name, which, lambda c=implementation: c.work(self.inputs, which))  # type: ignore[misc]
        others = {name: Guarded(work) for name, work in list(works.items())[1:]}
        times = clock.turns({**works, **others, **(extra or {})})
        for name, work in others.items():
            if work.problem:
                del times[name]
                self.left_out[f"{name}, {which}"] = work.problem
        for name, implementation in alone.items():
            self._record(times, name, which, lambda c=implementation: c.time(clock, self.inputs, which))  # type: ignore[misc]
        names = [*(c.name for c in self.implementations), *(extra or {})]
        return {name: times[name] for name in names if name in times}

    def _record(self, found: dict[str, Any], name: str, which: str, attempt: Callable[[], Any]) -> None:
        """Store what an attempt returns, or why it fails."""
        found_or_reason = _attempt(attempt)
        if isinstance(found_or_reason, str):
            self.left_out[f"{name}, {which}"] = found_or_reason
        else:
            found[name] = found_or_reason


@dataclass
class Guarded:
    """Work that takes turns with others'. Once it has failed it does nothing, which its time then says nothing of.

    Attributes:
        problem: why it failed, in words; empty while it has not.
    """

    work: Callable[[], Any]
    problem: str = ""

    def __call__(self) -> None:
        if not self.problem:
            self.problem = _attempt(self._once)

    def _once(self) -> str:
        self.work()
        return ""


def _attempt(work: Callable[[], Any]) -> Any:
    """What ``work`` returns, or in words what it raised."""
    try:
        return work()
    except Exception as error:  # a peer's own bug, a shape it refuses, memory: none of them ends the run
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"[:160]


def disagreement(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str:
    """In what the results differ from what is expected; empty if they agree. A wider dtype is no advantage."""
    if [tuple(r.shape) for r in found] != [tuple(r.shape) for r in expected]:
        return f"other shapes: {[list(r.shape) for r in found]}"
    for one, other in zip(found, expected, strict=True):
        if one.is_floating_point() != other.is_floating_point() or one.itemsize < other.itemsize:
            return f"another dtype: {_dtype(one)} instead of {_dtype(other)}"
        if one.numel() and _distance(one.detach(), other.detach()) > AGREEMENT.get(_dtype(other), 0.0):
            return "other values"
    return ""


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest finite value; 1 where one side is finite and the other is not."""
    if not expected.is_floating_point():
        return float((found != expected).any())
    found = found.to(expected.dtype)
    if bool((found.isfinite() != expected.isfinite()).any()):
        return 1.0
    apart = (found - expected).abs().nan_to_num(0.0, 0.0, 0.0).max()
    scale = expected.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return float(apart) / max(float(scale), 1e-30)


# -- what comes of it ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roof:
    """What this machine was measured to do, in this run: bytes a microsecond of a copy, microseconds of a launch."""

    bandwidth: float
    launch: float

    def microseconds(self, size: float) -> float:
        """The roofline: no pass that moves ``size`` bytes is faster."""
        return max(size / self.bandwidth, self.launch)


@dataclass(frozen=True)
class Measured:
    """One pass of one set of shapes.

    Args:
        moved: the fewest bytes it must move.
        times: microseconds by implementation, fusegen first.
    """

    which: str
    moved: int
    times: Mapping[str, float]

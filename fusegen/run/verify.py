"""Calls that check themselves (``FUSEGEN_CHECK=1``, ``fg.checked``): what kernels computed, beside what the op means.

Every compiled form is compared on its first call: each Op, whether declared or derived, for each layout of tensors. The
reference computes in float64 with torch on the same numbers. How far rounding may take a result is read off the
reference itself: in the dtype that kernels compute in, and on numbers that differ in their last bit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from fusegen.core.declared import declared_calls
from fusegen.core.errors import CheckError, DeviceError, LegalityError, warn
from fusegen.core.ir import Op, walk
from fusegen.core.locks import lock
from fusegen.core.products import products, stored_as
from fusegen.plan import decided

if TYPE_CHECKING:
    import torch

VARIABLE = "FUSEGEN_CHECK"
# Elements of all tensors of a call beyond which its reference, of eight bytes a number, is not computed.
MOST_ELEMENTS = 1 << 28


@dataclass
class _State:
    """Whether calls check themselves: always by the environment, and inside how many ``checked``."""

    always: bool
    inside: int = 0


state = _State(os.environ.get(VARIABLE, "") not in ("", "0"))
_entering = lock()


def is_on() -> bool:
    """Whether compiled forms are compared on their first call."""
    return state.always or state.inside > 0


@contextmanager
def checked() -> Iterator[None]:
    """Inside, each compiled form of an op is compared with its reference on its first call, in every thread.

        with fg.checked():
            loss = model(batch)
            loss.backward()

    A form is what compiles to one program: the op, its backward or another derivative, for dtypes and a layout. What it
    computes is compared with the same op in float64, computed by torch; a gradient also with torch's own automatic
    differentiation of that. The environment variable ``FUSEGEN_CHECK=1`` does the same for a whole process.

    Calls are slow meanwhile, and take several times the memory. What runs in a CUDA graph, or in code that torch has
    compiled before, is as it was.

    Raises:
        CheckError: numbers differ by more than rounding explains. It names the op, the result or gradient, the stage of
            the compiler at which they part, and the largest difference.
    """
    with _entering:
        state.inside += 1
    try:
        with decided.anew():  # what was decided earlier may not have been compared
            yield
    finally:
        with _entering:
            state.inside -= 1


def copied(tensors: Mapping[str, Any], out: Sequence[Any] | None) -> dict[str, Any]:
    """What a call reads as torch's tensors, apart from what it may write."""
    found = {name: _torchs(tensor) for name, tensor in tensors.items()}
    return {name: tensor.clone() for name, tensor in found.items()} if out is not None else found


def _torchs(tensor: Any) -> torch.Tensor:
    import torch

    return tensor.detach() if isinstance(tensor, torch.Tensor) else torch.utils.dlpack.from_dlpack(tensor)


@dataclass(frozen=True)
class Before:
    """What there was before a call.

    Attributes:
        tensors: the arguments as torch's tensors, by name.
        results: those that the call adds to, by their place.
    """

    tensors: Mapping[str, Any]
    results: Mapping[int, Any]

    @classmethod
    def of(cls, tensors: Mapping[str, Any], out: Sequence[Any] | None, onto: Sequence[int] = ()) -> Before:
        """For a call with these, which adds to ``out`` at the places ``onto``."""
        return cls(copied(tensors, out), {place: _torchs(out[place]).clone() for place in onto} if out else {})


def verify(
    op: Op, before: Before, scalars: Mapping[str, Any], sizes: Mapping[str, int], results: Sequence[Any]
) -> None:
    """Compare what kernels have computed with the reference.

    Args:
        sizes: of axes that no tensor has.

    Raises:
        CheckError: they differ.
    """
    import torch

    from fusegen.plan.backward import result_names

    tensors = before.tensors
    count = sum(prod(t.shape) for t in tensors.values()) + sum(prod(r.shape) for r in results)
    if count > MOST_ELEMENTS:
        warn(f"{op.name}, {op.label}: not checked, for its tensors have {count} elements (at most {MOST_ELEMENTS})")
        return
    with torch.no_grad():
        found = [_torchs(result) for result in results]
        bounds = Bounds.of(op, tensors, scalars, sizes).added_to(before.results)
        wrong = bounds.worst(result_names(op), found)
        if wrong is not None:
            raise _error(op, wrong, _stage(op, tensors, scalars, sizes), tensors)


@dataclass(frozen=True)
class Wrong:
    """The largest difference of a result that is off.

    Attributes:
        at: where it is.
    """

    result: str
    at: tuple[int, ...]
    found: float
    expected: float
    allowed: float


@dataclass(frozen=True)
class Bounds:
    """What results may be: the reference's, and what it becomes by rounding.

    Attributes:
        exact: in float64.
        others: in the dtype that kernels compute in, and of numbers changed in their last bit.
        eps: spacing of each result's dtype at 1.
    """

    exact: list[torch.Tensor]
    others: list[list[torch.Tensor]]
    eps: list[float]

    @classmethod
    def of(cls, op: Op, tensors: Mapping[str, Any], scalars: Mapping[str, Any], sizes: Mapping[str, int]) -> Bounds:
        """For an op on these tensors."""
        import torch

        from fusegen.declare.reference import reference

        def run(given: Mapping[str, Any], dtype: torch.dtype) -> list[torch.Tensor]:
            return [r.detach() for r in reference(op, given, scalars, dtype, sizes)]

        exact = run(tensors, torch.float64)
        single = _in_single(op)
        halves = [stored_as(reduce) for reduce in products(op) if stored_as(reduce).is_half]
        step = max([2.0**-24 if single else 2.0**-53, *(_eps(dtype.name) for dtype in halves)])
        others = [run(nudged(tensors, step, seed), torch.float64) for seed in (1, 2)]
        others += [run(tensors, torch.float32)] if single else []
        names = dict.fromkeys(o.base for o in op.outputs)
        dtypes = {o.base: o.dtype.name for o in op.outputs}
        return cls(exact, others, [_eps(dtypes[name]) for name in names])

    def added_to(self, before: Mapping[int, torch.Tensor]) -> Bounds:
        """For results that are added to what was there, by their place."""

        def added(results: list[torch.Tensor]) -> list[torch.Tensor]:
            return [r.double() + before[i].double() if i in before else r for i, r in enumerate(results)]

        return replace(self, exact=added(self.exact), others=list(map(added, self.others))) if before else self

    def worst(self, names: Sequence[str], found: Sequence[torch.Tensor]) -> Wrong | None:
        """The first result that is off, at its largest difference."""
        for i, (name, result) in enumerate(zip(names, found, strict=True)):
            wrong = self._off(name, result, self.exact[i], [other[i] for other in self.others], self.eps[i])
            if wrong is not None:
                return wrong
        return None

    def _off(
        self, name: str, found: torch.Tensor, exact: torch.Tensor, others: Sequence[torch.Tensor], eps: float
    ) -> Wrong | None:
        import torch

        if not found.numel():
            return None
        found, exact = found.double(), exact.double().expand(found.shape)
        candidates = [exact, *(other.double().expand(found.shape) for other in others)]
        # What jumps (a comparison, a rounding) may go either way; what is infinite for one may be large for another.
        same = torch.stack([(found == c) | (found.isnan() & c.isnan()) for c in candidates]).any(0)
        nearest = torch.stack([(found - c).abs().nan_to_num(nan=torch.inf) for c in candidates]).amin(0)
        spread = torch.stack([(c - exact).abs().nan_to_num(nan=0.0, posinf=0.0) for c in candidates]).amax()
        allowed = 4 * eps * exact.abs().nan_to_num(nan=0.0, posinf=0.0) + 32 * spread + 1e-300
        excess = torch.where(same, -torch.inf, nearest - allowed)
        at = int(excess.argmax())
        if excess.flatten()[at] <= 0:
            return None
        place = tuple(int(p) for p in torch.unravel_index(torch.tensor(at), found.shape))
        return Wrong(name, place, float(found[place]), float(exact[place]), float(allowed[place]))


def _in_single(op: Op) -> bool:
    """Whether anything is computed in float32: a cast within an op of doubles, too."""
    nodes = walk([item.expr for items in op.expand() for item in items])
    dtypes = {*(thing.dtype for thing in (*op.operands, *op.outputs)), *(node.dtype for node in nodes)}
    return any(dtype.is_float and dtype.size < 8 for dtype in dtypes)


def _eps(dtype: str) -> float:
    import torch

    kind = getattr(torch, dtype)
    return float(torch.finfo(kind).eps) if kind.is_floating_point else 0.0


def nudged(tensors: Mapping[str, Any], by: float, seed: int) -> dict[str, Any]:
    """Floats moved by up to so much of themselves, at random."""
    import torch

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        generator = torch.Generator(tensor.device).manual_seed(seed)
        unit = torch.rand(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float64) * 2 - 1
        return tensor.double() * (1 + by * unit)

    return {name: changed(tensor) for name, tensor in tensors.items()}


def _stage(op: Op, tensors: Mapping[str, Any], scalars: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    """The first stage behind the op itself whose numbers are not the op's."""
    import torch

    from fusegen.run import evaluate
    from fusegen.run.programs import TooManyThreads

    exact = evaluate.meaning(op, tensors, scalars, sizes)
    for name, run in evaluate.stages(op):
        try:
            found = run(op, tensors, scalars, sizes)
        except TooManyThreads:
            continue
        except LegalityError:
            return name
        for mine, other in zip(exact, found, strict=True):
            if not torch.allclose(mine.double(), other.double(), rtol=1e-6, atol=1e-9, equal_nan=True):
                return name
    return "CUDA: the stages before it agree"


def _error(op: Op, wrong: Wrong, stage: str, tensors: Mapping[str, Any]) -> CheckError:
    given = ", ".join(f"{name}: {str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for name, t in tensors.items())
    at = f"[{', '.join(map(str, wrong.at))}]" if wrong.at else ""
    return CheckError(
        f"{op.name}, {op.label}, result {wrong.result}",
        given=f"{wrong.result}{at} = {wrong.found!r} for {given}",
        expected=f"{wrong.expected!r}, at most {wrong.allowed:.3g} off; numbers part at the stage: {stage}",
        fix="this is a bug in fusegen: please report the declaration and the shapes; until then use torch's functions",
    )


def verify_gradients(
    forward: Op, tensors: Mapping[str, Any], scalars: Mapping[str, Any], sizes: Mapping[str, int],
    cotangents: Mapping[str, Any], gradients: Mapping[str, Any],
) -> None:  # fmt: skip
    """Compare a derived backward's gradients with automatic differentiation of what its forward means.

    Args:
        tensors: the forward's arguments by name.
        cotangents: of its results, by the results' names.
        gradients: what was computed, by the arguments' names.

    Raises:
        CheckError: they differ: the backward that was derived is wrong, for its kernels compute what it says.
    """
    import torch

    from fusegen.declare.reference import reference
    from fusegen.plan.backward import result_names
    from fusegen.run.evaluate import of_results

    if any(len(call.cotangents) > 1 for call in declared_calls(forward)):
        return  # the reference adds up what each result hands on, which need not be what they do together
    wanted, forward = list(gradients), of_results(forward, cotangents)
    names = result_names(forward)

    def differentiated(given: Mapping[str, Any], dtype: torch.dtype) -> list[torch.Tensor]:
        with torch.enable_grad():
            leaves = {name: given[name].detach().to(dtype).requires_grad_() for name in wanted}
            results = dict(zip(names, reference(forward, {**given, **leaves}, scalars, dtype, sizes), strict=True))
            pairs = [(results[name], c.to(dtype)) for name, c in cotangents.items() if results[name].requires_grad]
            if not pairs:
                return [torch.zeros_like(leaf) for leaf in leaves.values()]
            return list(
                torch.autograd.grad(
                    [r for r, _ in pairs], list(leaves.values()), [c.expand(r.shape) for r, c in pairs],
                    allow_unused=True, materialize_grads=True,
                )
            )  # fmt: skip

    single = _in_single(forward)
    steps = [_eps(str(t.dtype).removeprefix("torch.")) for t in tensors.values() if t.is_floating_point()]
    step = max(steps) if products(forward) else 2.0**-24 if single else 2.0**-53
    others = [differentiated(nudged(tensors, step, seed), torch.float64) for seed in (1, 2)]
    others += [differentiated(tensors, torch.float32)] if single else []
    eps = [_eps(str(gradients[name].dtype).removeprefix("torch.")) for name in wanted]
    bounds = Bounds(differentiated(tensors, torch.float64), others, eps)
    wrong = bounds.worst([f"the gradient of {name}" for name in wanted], [g.detach() for g in gradients.values()])
    # A reference that torch cannot differentiate there tells nothing.
    if wrong is not None and all(bool(e.isfinite().all()) for e in bounds.exact):
        raise _error(forward, wrong, "derived: the backward is another function's", tensors)


def need_torch() -> None:
    """What is checked is checked by torch.

    Raises:
        DeviceError: it is not installed.
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        raise DeviceError(
            VARIABLE, given="no torch, which computes the reference", expected="torch beside NumPy or CuPy",
            fix="pip install torch, or leave the check off",
        ) from None  # fmt: skip

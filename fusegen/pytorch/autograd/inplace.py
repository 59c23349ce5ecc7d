"""Gradients that take the memory of the argument they belong to, where a call asks for it (``inplace_backward=True``).

The backward then needs no second tensor of the argument's size. Its kernel reads each element before it writes the
gradient there, in the same thread; gradients of other arguments are computed before. The argument counts as modified:
whoever else saved it gets torch's error instead of wrong numbers.

Where nothing may be overwritten the gradient is an ordinary one: under torch.func's transforms and forward mode, in
what torch traces, and where hooks pack saved tensors (torch.utils.checkpoint, save_on_cpu), which watch no versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch._C import _functorch
from torch.autograd import forward_ad

from fusegen.core.errors import DerivativeError
from fusegen.core.ir import Op, refs
from fusegen.declare.op import INPLACE_BACKWARD
from fusegen.plan import frameworks, overlap
from fusegen.plan.backward import separated
from fusegen.plan.layout import overlaps_itself
from fusegen.pytorch.autograd.function import Differentiable, Node, Trained
from fusegen.pytorch.autograd.legacy_vmap import is_legacy_batched


@dataclass
class Overwriting(Differentiable):
    """An Op of whose argument ``overwritten`` the gradient is written into the argument's memory."""

    overwritten: str = ""
    is_cacheable: ClassVar[bool] = False

    def record(
        self, trained: Trained, scalars: Mapping[str, Any], given: Sequence[Any], transformed: bool
    ) -> Sequence[Any]:
        """Results of the trained op as a node of the graph.

        Raises:
            DerivativeError: the argument's memory cannot be overwritten.
        """
        is_wanted = self.overwritten in trained.training.wanted
        packed = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        if not is_wanted or transformed or packed or forward_ad._current_level >= 0:
            return super().record(trained, scalars, given, transformed)
        self._check(dict(zip(self.runner.arguments, given, strict=True)))
        results: Sequence[Any] = _apply(self.overwritten, trained, scalars, *given)  # type: ignore[no-untyped-call]
        return results

    def _check(self, values: Mapping[str, Any]) -> None:
        argument = values[self.overwritten]
        base = argument._base if argument._is_view() else argument
        shared = _sharing(argument, {n: v for n, v in values.items() if n != self.overwritten})
        if base.is_leaf and base.requires_grad:
            given, expected = "a leaf that requires a gradient (or a view of one)", "a tensor that an op computed"
        elif overlaps_itself(argument.shape, argument.stride()):
            given = f"shape {list(argument.shape)} with strides {list(argument.stride())}"
            expected = "a tensor whose elements lie at different addresses"
        elif shared:
            given, expected = f"memory that argument {shared} uses too", "memory of its own"
        else:
            return
        raise DerivativeError(
            f"{self.runner.op.name}, argument {self.overwritten}, {INPLACE_BACKWARD}=True", given=given,
            expected=f"{expected}: its gradient will be written there",
            fix=f"leave {INPLACE_BACKWARD} away, or pass {self.overwritten}.clone()",
        )  # fmt: skip


def _sharing(argument: Any, others: Mapping[str, Any]) -> str | None:
    """The first of the others that has memory in common with the argument."""
    framework = frameworks.torch()
    start, end = overlap.span(framework, argument)
    for name, other in others.items():
        first, last = overlap.span(framework, other)
        if start < last and first < end:
            return name
    return None


def reads_its_own_elements(backward: Op, argument: str, gradient: str) -> bool:
    """Whether each element of the gradient, the only output, depends on no element of the argument but its own."""
    reduces, outputs = backward.expand()
    read = {operand.name: operand for operand in backward.operands if operand.base == argument}
    if [output.name for output in outputs] != [gradient] or any(o.shape != outputs[0].shape for o in read.values()):
        return False
    return not any(ref.name in read for reduce in reduces for ref in refs(reduce.expr))


class _Node(torch.autograd.Function):
    """forward(overwritten, trained, scalars, *arguments) -> results as Node's."""

    @staticmethod
    def forward(overwritten: str, trained: Trained, scalars: Mapping[str, Any], *arguments: Any) -> tuple[Any, ...]:
        return Node.forward(trained, scalars, *arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.overwritten, ctx.is_spent = inputs[0], False
        Node.setup_context(ctx, inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        trained, name = ctx.trained, ctx.overwritten
        arguments = trained.forward.arguments
        needed = {n for n, needs in zip(arguments, ctx.needs_input_grad[3:], strict=True) if needs}
        given = [cotangent for cotangent in cotangents if cotangent is not None]
        if name in needed and given:
            _check_backward(ctx, given)
        asked = ctx.saved_tensors, cotangents, ctx.layout, ctx.shapes
        others = frozenset(needed - {name})  # first, because they read what is written then
        gradients = trained.gradients_of(*asked, ctx.scalars, others) if others else [None] * len(arguments)
        if name in needed:
            backward, values = trained.asked(*asked, frozenset({name}))
            at = arguments.index(name)
            if backward is None:  # nothing to compute: a cotangent as it is
                gradients[at] = trained.gradients_of(*asked, ctx.scalars, frozenset({name}))[at]
            else:
                gradients[at] = _overwrite(ctx, backward, values)
        return (None, None, None, *separated(gradients, cotangents, ctx.apart))


def _overwrite(ctx: Any, backward: Differentiable, values: dict[str, Any]) -> Any:
    """The gradient, in the argument's memory; in its own where the backward does not read the argument so."""
    op, name = backward.runner.op, ctx.overwritten
    if name not in values or not reads_its_own_elements(op, name, ctx.trained.gradients.arguments[name]):
        return backward(values, ctx.scalars)[0]
    memory = values[name].detach()
    shared = _sharing(memory, {n: v for n, v in values.items() if n != name})
    if shared:
        raise _refusal(ctx, f"{shared} in the memory of {name}", "memory of its own", "pass a copy")
    ctx.is_spent = True
    backward.runner({**values, name: memory}, ctx.scalars, frameworks.torch(), [memory])
    overlap.mark_written([memory], frameworks.torch())
    return memory


def _check_backward(ctx: Any, cotangents: Sequence[Any]) -> None:
    """One ordinary backward is possible, once."""
    fix = f"leave {INPLACE_BACKWARD} away"
    if ctx.is_spent:
        given = f"a second backward, after the first wrote the gradient into {ctx.overwritten}"
        raise _refusal(ctx, given, "one backward", fix)
    if torch.is_grad_enabled():
        raise _refusal(ctx, "a backward that is to be differentiated (create_graph=True)", "a first derivative", fix)
    if any(is_legacy_batched(c) or _functorch.is_functorch_wrapped_tensor(c) for c in cotangents):
        raise _refusal(ctx, "many backwards in one (is_grads_batched, vmap)", "one backward", fix)


def _refusal(ctx: Any, given: str, expected: str, fix: str) -> DerivativeError:
    where = f"{ctx.trained.forward.op.name}, backward with {INPLACE_BACKWARD}=True"
    return DerivativeError(where, given=given, expected=expected, fix=fix)


# What apply does outside of torch.func's transforms, as in pytorch/autograd/function.
_apply = super(torch.autograd.Function, _Node).apply

"""The autograd node of ops that are being traced: forward and backward are calls of registered ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from fusegen.plan import backward as gradients
from fusegen.pytorch.library.derived import Derived

# A kernel that torch traces goes on to the same op below autograd; there is no public name for that.
below_autograd = torch._C._AutoDispatchBelowAutograd


def differentiate(
    registered: Any, node: Derived, given: Sequence[torch.Tensor], scalars: Mapping[str, Any], layout: Sequence[Any]
) -> list[torch.Tensor]:
    """Results of ``node`` for its tensors in order, recorded by autograd."""
    wanted = tuple(n for n, t in zip(node.arguments, given, strict=True) if t.requires_grad)
    trained = node.train(wanted)
    with enable_single_level_autograd_function():
        modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
        results = _Node.apply(registered, trained, scalars, layout, modes, *given)  # type: ignore[attr-defined]
    return list(results[: trained.public])


class _Node(_SingleLevelFunction):
    """forward(registered, trained, scalars, layout, modes, *tensors) -> results, those saved for the backward last.

    A kernel is called with tensors of one level of torch.func's transforms, which Function's own apply would look for.
    This is the autograd kernel of one level of torch.func's transforms. What it calls goes on to the next level out,
    which asks whether gradients are on to know whether to record. torch's own kernels leave that question alone: what
    stops their level from recording itself is ``below_autograd``. But Function's apply switches both modes off around
    ``forward``, and the forward mode around ``jvp``: a level of the same kind further out would record nothing and take
    what it is to differentiate for a constant, without a word. So both are set back to what the caller has.
    """

    @staticmethod
    def forward(
        ctx: Any, registered: Any, trained: Derived, scalars: Mapping[str, Any], layout: Sequence[Any],
        modes: tuple[bool, bool], *given: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        reverse, forward = modes
        with below_autograd(), torch.set_grad_enabled(reverse), forward_ad._set_fwd_grad_enabled(forward):
            results = registered.call_derived(trained, given, scalars, layout)
        values = dict(zip(trained.arguments, given, strict=True))
        names, positions = trained.saved
        ctx.registered, ctx.trained, ctx.scalars, ctx.saved_names = registered, trained, scalars, names
        trained.kept.tell(ctx, given, results)
        ctx.kept_names = [trained.names[i] for i in positions]
        ctx.strides = {trained.gradients.arguments[n]: values[n].stride() for n in trained.training.wanted}
        sizes = gradients.axis_sizes(trained.op, {n: v.shape for n, v in values.items()})
        ctx.sizes = {**trained.unpack(layout)[0], **sizes}
        ctx.save_for_forward(*given)  # what jvp gets as saved_tensors
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        trained: Derived = ctx.trained
        nothing = (None,) * (5 + len(trained.arguments))
        given = tuple(i for i, c in enumerate(cotangents) if c is not None)
        node = trained.back(given) if given else None
        if node is None:
            return nothing
        values = dict(zip((*ctx.saved_names, *ctx.kept_names), ctx.saved_tensors, strict=True))
        values.update({trained.gradients.results[trained.names[i]]: cotangents[i] for i in given})
        layout = node.layout(ctx.sizes, ctx.strides)
        results = ctx.registered.call_derived(node, [values[n] for n in node.arguments], ctx.scalars, layout)
        found = dict(zip(node.names, results, strict=True))
        return (*nothing[:5], *[found.get(trained.gradients.arguments[name]) for name in trained.arguments])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        trained: Derived = ctx.trained
        along = {n: t for n, t in zip(trained.arguments, tangents[5:], strict=True) if t is not None}
        if not any(output.dtype.is_float for output in trained.op.outputs):
            return (None,) * len(trained.names)
        node = trained.tangent(tuple(along))
        values = dict(zip(trained.arguments, ctx.saved_tensors, strict=True))
        with forward_ad._set_fwd_grad_enabled(True):  # it was, else there would be no tangents
            # This level's own tangents would make the call one of this jvp again, without end.
            values.update({name: forward_ad.unpack_dual(values[name], level=0).primal for name in along})
            values.update({trained.tangents.arguments[name]: t for name, t in along.items()})
            given = [values[n] for n in node.arguments]
            results = ctx.registered.call_derived(node, given, ctx.scalars, node.layout(ctx.sizes, {}))
        found = dict(zip(node.names, results, strict=True))
        found = {name: found.get(trained.tangents.results.get(name, "")) for name in trained.names}
        return tuple(result if i in trained.differentiable else None for i, result in enumerate(found.values()))

"""The autograd node of ops that are being traced: forward and backward are calls of registered ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function

from fusegen.wrap import torch_op
from fusegen.wrap.derived import Derived

# A kernel that torch traces goes on to the same op below autograd; there is no public name for that.
below_autograd = torch._C._AutoDispatchBelowAutograd


def differentiate(
    registered: Any, node: Derived, given: Sequence[torch.Tensor], scalars: Mapping[str, Any], layout: Sequence[Any]
) -> list[torch.Tensor]:
    """Results of ``node`` for its tensors in order, recorded by autograd."""
    wanted = tuple(n for n, t in zip(node.arguments, given, strict=True) if t.requires_grad)
    trained = node.train(wanted)
    with enable_single_level_autograd_function():
        results = _apply(registered, trained, scalars, layout, *given)  # type: ignore[no-untyped-call]
    return list(results[: trained.public])


class _Node(torch.autograd.Function):
    """forward(registered, trained, scalars, layout, *tensors) -> results, those kept for the backward last."""

    @staticmethod
    def forward(
        ctx: Any, registered: Any, trained: Derived, scalars: Mapping[str, Any], layout: Sequence[Any], *given: Any
    ) -> tuple[Any, ...]:
        with below_autograd():
            results = registered.call_derived(trained, given, scalars, layout)
        values = dict(zip(trained.arguments, given, strict=True))
        names, positions = trained.saved
        ctx.registered, ctx.trained, ctx.scalars, ctx.saved_names = registered, trained, scalars, names
        ctx.save_for_backward(*[values[n] for n in names], *[results[i] for i in positions])
        ctx.kept_names = [trained.names[i] for i in positions]
        ctx.strides = {trained.gradients.arguments[n]: values[n].stride() for n in trained.training.wanted}
        sizes = torch_op.axis_sizes(trained.op, {n: v.shape for n, v in values.items()})
        ctx.sizes = {**trained.unpack(layout)[0], **sizes}
        ctx.mark_non_differentiable(*[r for r in results if not r.is_floating_point()])
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        trained: Derived = ctx.trained
        nothing = (None,) * (4 + len(trained.arguments))
        given = tuple(i for i, c in enumerate(cotangents) if c is not None)
        node = trained.back(given) if given else None
        if node is None:
            return nothing
        values = dict(zip((*ctx.saved_names, *ctx.kept_names), ctx.saved_tensors, strict=True))
        values.update({trained.gradients.results[trained.names[i]]: cotangents[i] for i in given})
        layout = node.layout(ctx.sizes, ctx.strides)
        results = ctx.registered.call_derived(node, [values[n] for n in node.arguments], ctx.scalars, layout)
        found = dict(zip(node.names, results, strict=True))
        return (*nothing[:4], *[found.get(trained.gradients.arguments[name]) for name in trained.arguments])


# What torch.autograd.Function.apply does below the transforms: a kernel is called with tensors of one level of them.
_apply = super(torch.autograd.Function, _Node).apply

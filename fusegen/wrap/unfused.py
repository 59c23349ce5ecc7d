"""Ops by torch's own functions, one after the other: what calls come to where fusegen does not know torch
(wrap/torch_names). Autograd, modes, transforms and compilers see ordinary functions, which need not be told anything;
of an op with a declared gradient one autograd.Function, which has no forward mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fusegen.core.errors import ShapeError
from fusegen.core.ir import Op
from fusegen.derive.gradient import GradientNames
from fusegen.derive.override import Overridden
from fusegen.wrap import fake, torch_names
from fusegen.wrap.gradients import result_names
from fusegen.wrap.peer_eager import eager


def call(
    op: Op, values: Mapping[str, Any], scalars: Mapping[str, Any], declaration: Any, out: Sequence[Any] | None
) -> list[Any]:
    """Results of an op, written into ``out`` where that is given.

    Args:
        values: arguments by name; ``scalars``: those of them that are Python numbers handed over at run time.
        declaration: whose gradient counts if it has one.
    """
    torch_names.warn_once()
    names = list(dict.fromkeys(operand.base for operand in op.operands))
    given = [values[name] for name in names]
    fake.measure(op, {name: fake.describe(name, values[name]) for name in names}, {})  # refuses sizes that do not fit
    with torch.autocast(given[0].device.type, enabled=False):
        if declaration.gradient is None:
            results = _as_list(eager(op, names, scalars)(*given))
        else:
            results = list(_Declared.apply(op, names, scalars, declaration, *given))  # type: ignore[no-untyped-call]
    return results if out is None else _into(op, results, out)


def _as_list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def _into(op: Op, results: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> list[Any]:
    if [(t.shape, t.dtype) for t in out] != [(t.shape, t.dtype) for t in results]:
        raise ShapeError(
            f"{op.name}, out=", given=", ".join(f"{t.dtype} of shape {list(t.shape)}" for t in out),
            expected=", ".join(f"{t.dtype} of shape {list(t.shape)}" for t in results),
            fix="pass tensors of the results' shapes and dtypes, or leave out= away",
        )  # fmt: skip
    return [target.copy_(value) for target, value in zip(out, results, strict=True)]


class _Declared(torch.autograd.Function):
    """forward(op, names, scalars, declaration, *tensors) -> results, with the gradient that was declared."""

    generate_vmap_rule = True

    @staticmethod
    def forward(op: Op, names: list[str], scalars: Mapping[str, Any], declaration: Any, *given: Any) -> tuple[Any, ...]:
        return tuple(_as_list(eager(op, names, scalars)(*given)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.op, ctx.names, ctx.scalars, ctx.declaration, *given = inputs
        ctx.save_for_backward(*given)
        ctx.mark_non_differentiable(*(result for result in output if not result.is_floating_point()))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        own = GradientNames.of(ctx.op)
        wanted = tuple(n for n, t in zip(ctx.names, ctx.saved_tensors, strict=True) if t.is_floating_point())
        given = [i for i, cotangent in enumerate(cotangents) if cotangent is not None]
        backward = Overridden(ctx.op, wanted, ctx.declaration).backward(given)
        results = result_names(ctx.op)
        values = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        values |= {own.results[results[i]]: cotangents[i] for i in given}
        read = list(dict.fromkeys(operand.base for operand in backward.operands))
        scalars = {scalar.name: ctx.scalars[scalar.name] for scalar in backward.scalars}
        with torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
            gradients = _as_list(eager(backward, read, scalars)(*(values[n] for n in read)))
        found = dict(zip(result_names(backward), gradients, strict=True))
        return (None, None, None, None, *(found.get(own.arguments.get(name, "")) for name in ctx.names))

"""Bias and activation in one pass, and residual, bias and activation in one pass.

``bias_NAME(input, bias, ...)`` is NAME(input + bias, ...), ``residual_bias_NAME(input, bias, residual, ...)`` is
NAME(input + bias + residual, ...), with the activation's own options. ``bias`` broadcasts: [D] for an input [..., D].
With ``dim=1`` a bias [C] lies along that dimension of an input [N, C, ...]. ``bias=None`` is none.
One pass over the gradient gives the input's; the bias's is its sum over the dimensions that the bias lacks.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

from . import activations as act
from ._options import limited


def _along(bias: fg.Tensor, rank: int, dim: int) -> fg.Tensor:
    """``bias``, of rank 1, along dimension ``dim`` of a tensor of ``rank`` dimensions."""
    if not -rank <= dim < max(rank, 1):
        raise fg.ShapeError(
            "bias, option dim", given=f"dim={dim} for an input of rank {rank}",
            expected=f"an int from {-rank} to {rank - 1}", fix="count dimensions from 0, or from -1 at the end",
        )  # fmt: skip
    if bias.dtype is fg.bool_:
        raise fg.DtypeError(
            "argument bias",
            given="a bool",
            expected="a tensor of numbers, or None for no bias",
            fix="pass the bias itself",
        )
    after = rank - 1 - dim % rank if rank else 0
    return fg.expand_dims(bias, tuple(range(1, 1 + after))) if bias.ndim == 1 and after else bias


def _fused(activation: fg.FusedOp[..., fg.Tensor], with_residual: bool) -> Any:
    def biased(
        input: fg.Tensor, bias: fg.Tensor, residual: fg.Tensor = None, dim: int = -1, **options: fg.Tensor
    ) -> fg.Tensor:
        total = bias_add(input, bias, dim=dim)
        return activation(total if residual is None else total + residual, **options)

    signature = activation.declaration.signature
    first, *options = (p for p in signature.parameters.values() if p.name != "inplace")
    tensors = ["bias", "residual"] if with_residual else ["bias"]
    parameters = [first, *(first.replace(name=name) for name in tensors), *options]
    dim = first.replace(name="dim", kind=first.KEYWORD_ONLY, default=-1, annotation="int")
    biased.__dict__["__signature__"] = signature.replace(parameters=[*parameters, dim])
    biased.__name__ = biased.__qualname__ = "_".join([*reversed(tensors), activation.name])
    formula = f"{activation.name}(input + {' + '.join(tensors)})"
    biased.__doc__ = f"{formula}, options as {activation.name}'s. A bias of rank 1 lies along ``dim`` of the input."
    return limited(like=activation)(biased)


@fg.op
def bias_add(input: fg.Tensor, bias: fg.Tensor, *, dim: int = -1) -> fg.Tensor:
    """input + bias. A bias of rank 1 lies along ``dim`` of the input."""
    return input if bias is None else input + _along(bias, input.ndim, dim)


# By name, as `fg.ops` has them.
FUSED = {op.name: op for residual in (False, True) for op in (_fused(each, residual) for each in act.ELEMENTWISE)}
globals().update(FUSED)  # an op is found where it says it is from

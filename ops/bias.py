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


bias_relu = _fused(act.relu, False)
bias_relu6 = _fused(act.relu6, False)
bias_leaky_relu = _fused(act.leaky_relu, False)
bias_elu = _fused(act.elu, False)
bias_celu = _fused(act.celu, False)
bias_selu = _fused(act.selu, False)
bias_gelu = _fused(act.gelu, False)
bias_quick_gelu = _fused(act.quick_gelu, False)
bias_silu = _fused(act.silu, False)
bias_mish = _fused(act.mish, False)
bias_softplus = _fused(act.softplus, False)
bias_softsign = _fused(act.softsign, False)
bias_sigmoid = _fused(act.sigmoid, False)
bias_tanh = _fused(act.tanh, False)
bias_hardtanh = _fused(act.hardtanh, False)
bias_hardsigmoid = _fused(act.hardsigmoid, False)
bias_hardswish = _fused(act.hardswish, False)
bias_logsigmoid = _fused(act.logsigmoid, False)
bias_tanhshrink = _fused(act.tanhshrink, False)
bias_softshrink = _fused(act.softshrink, False)
bias_hardshrink = _fused(act.hardshrink, False)
bias_threshold = _fused(act.threshold, False)
bias_squared_relu = _fused(act.squared_relu, False)

residual_bias_relu = _fused(act.relu, True)
residual_bias_relu6 = _fused(act.relu6, True)
residual_bias_leaky_relu = _fused(act.leaky_relu, True)
residual_bias_elu = _fused(act.elu, True)
residual_bias_celu = _fused(act.celu, True)
residual_bias_selu = _fused(act.selu, True)
residual_bias_gelu = _fused(act.gelu, True)
residual_bias_quick_gelu = _fused(act.quick_gelu, True)
residual_bias_silu = _fused(act.silu, True)
residual_bias_mish = _fused(act.mish, True)
residual_bias_softplus = _fused(act.softplus, True)
residual_bias_softsign = _fused(act.softsign, True)
residual_bias_sigmoid = _fused(act.sigmoid, True)
residual_bias_tanh = _fused(act.tanh, True)
residual_bias_hardtanh = _fused(act.hardtanh, True)
residual_bias_hardsigmoid = _fused(act.hardsigmoid, True)
residual_bias_hardswish = _fused(act.hardswish, True)
residual_bias_logsigmoid = _fused(act.logsigmoid, True)
residual_bias_tanhshrink = _fused(act.tanhshrink, True)
residual_bias_softshrink = _fused(act.softshrink, True)
residual_bias_hardshrink = _fused(act.hardshrink, True)
residual_bias_threshold = _fused(act.threshold, True)
residual_bias_squared_relu = _fused(act.squared_relu, True)

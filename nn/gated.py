"""Modules that torch does not have: what a layer computes between two matrix products, or before one, in one kernel."""

from __future__ import annotations

import torch
from torch import nn

import fusegen as fg


class _Gate(nn.Module):
    """A gated linear unit's gate: [gate, value] along ``dim`` of one tensor, or two tensors."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class SwiGLU(_Gate):
    """silu(gate) value, for ``SwiGLU()(gate, value)`` or for [gate, value] in one tensor along ``dim``.

    No parameters. Source: Shazeer, arXiv 2002.05202.
    """

    def forward(self, gate: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor:
        result: torch.Tensor = fg.ops.swiglu_packed(gate, self.dim) if value is None else fg.ops.swiglu(gate, value)
        return result


class GeGLU(_Gate):
    """gelu(gate, approximate) value, for two tensors or for [gate, value] in one along ``dim``.

    No parameters. ``approximate`` is "none" or "tanh". Source: Shazeer, arXiv 2002.05202.
    """

    def __init__(self, dim: int = -1, approximate: str = "none") -> None:
        super().__init__(dim)
        self.approximate = approximate

    def forward(self, gate: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor:
        result: torch.Tensor = (
            fg.ops.geglu_packed(gate, self.dim, self.approximate)
            if value is None
            else fg.ops.geglu(gate, value, self.approximate)
        )
        return result

    def extra_repr(self) -> str:
        return f"dim={self.dim}, approximate={self.approximate!r}"


class ReGLU(_Gate):
    """relu(gate) value, for two tensors or for [gate, value] in one along ``dim``.

    No parameters. Source: Shazeer, arXiv 2002.05202.
    """

    def forward(self, gate: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor:
        result: torch.Tensor = fg.ops.reglu_packed(gate, self.dim) if value is None else fg.ops.reglu(gate, value)
        return result


class QuickGELU(nn.Module):
    """x sigmoid(1.702 x). Source: Hendrycks and Gimpel, arXiv 1606.08415; used in CLIP."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = fg.ops.quick_gelu(input)
        return result


class SquaredReLU(nn.Module):
    """max(x, 0)^2. Source: So et al., Primer, arXiv 2109.08668."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = fg.ops.squared_relu(input)
        return result


class AddLayerNorm(nn.LayerNorm):
    """(layer_norm(s), s) for s = input + residual: what stands between two layers of a transformer, in one pass.

    Arguments and parameters are torch.nn.LayerNorm's. ``bias``, of the normalized shape, is added to s as well: that
    of the matrix product which gave ``input``.
    """

    def forward(  # type: ignore[override]
        self, input: torch.Tensor, residual: torch.Tensor, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result: tuple[torch.Tensor, torch.Tensor] = fg.ops.residual_bias_layer_norm(
            input, bias, residual, self.normalized_shape, self.weight, self.bias, self.eps, return_sum=True
        )
        return result


class AddRMSNorm(nn.RMSNorm):
    """(rms_norm(s), s) for s = input + residual + bias; see ``AddLayerNorm``."""

    def forward(  # type: ignore[override]
        self, input: torch.Tensor, residual: torch.Tensor, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result: tuple[torch.Tensor, torch.Tensor] = fg.ops.residual_bias_rms_norm(
            input, bias, residual, self.normalized_shape, self.weight, self.eps, return_sum=True
        )
        return result

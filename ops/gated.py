"""Gated linear units: one half of the features gates the other.

Packed forms take both halves in one tensor, [gate, value] along ``dim``, and read them in place (views, no copies).
Only torch's own ``glu`` packs them the other way round, [value, gate].
Source: Dauphin et al., arXiv 1612.08083; Shazeer, arXiv 2002.05202.
"""

from __future__ import annotations

import fusegen as fg

from ._options import floats
from .activations import gelu, relu, silu


@fg.op
def glu(input: fg.Tensor, dim: int = -1) -> fg.Tensor:
    """a sigmoid(b) for the halves a, b of ``input`` along ``dim``. Source: torch.nn.functional.glu."""
    a, b = fg.split(floats("glu", input), 2, dim)
    return a * fg.sigmoid(b)


@fg.op
def swiglu(gate: fg.Tensor, value: fg.Tensor) -> fg.Tensor:
    """silu(gate) value; the two broadcast. Source: Shazeer, arXiv 2002.05202."""
    return silu(gate) * value


@fg.op
def geglu(gate: fg.Tensor, value: fg.Tensor, approximate: str = "none") -> fg.Tensor:
    """gelu(gate, approximate) value; the two broadcast. Source: Shazeer, arXiv 2002.05202."""
    return gelu(gate, approximate) * value


@fg.op
def reglu(gate: fg.Tensor, value: fg.Tensor) -> fg.Tensor:
    """relu(gate) value; the two broadcast. Source: Shazeer, arXiv 2002.05202."""
    return relu(gate) * value


@fg.op
def swiglu_packed(input: fg.Tensor, dim: int = -1) -> fg.Tensor:
    """silu(gate) value for ``input`` = [gate, value] along ``dim``; the result is half as long there."""
    gate, value = fg.split(input, 2, dim)
    return swiglu(gate, value)


@fg.op
def geglu_packed(input: fg.Tensor, dim: int = -1, approximate: str = "none") -> fg.Tensor:
    """gelu(gate, approximate) value for ``input`` = [gate, value] along ``dim``; the result is half as long there."""
    gate, value = fg.split(input, 2, dim)
    return geglu(gate, value, approximate)


@fg.op
def reglu_packed(input: fg.Tensor, dim: int = -1) -> fg.Tensor:
    """relu(gate) value for ``input`` = [gate, value] along ``dim``; the result is half as long there."""
    gate, value = fg.split(input, 2, dim)
    return reglu(gate, value)

"""The rows of the elementwise table: what is computed, by whom, on what, and how many bytes it must move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import fusegen as fg


@fg.op
def lerp(x: Any, y: Any, w: Any) -> Any:
    """Interpolation, exact at both ends (torch.lerp)."""
    d = y - x
    return fg.where(fg.abs(w) < 0.5, x + w * d, y - (1 - w) * d)


@fg.op
def gelu_bias(x: Any, bias: Any) -> Any:
    """gelu (tanh form) of x + bias."""
    u = x + bias
    return 0.5 * u * (1 + fg.tanh(0.7978845608028654 * (u + 0.044715 * u**3)))


@fg.op
def relu_bias(x: Any, bias: Any) -> Any:
    """relu of x + bias."""
    u = x + bias
    return fg.where(u <= 0, 0, u)


@fg.op
def mish_chain(x: Any, y: Any) -> Any:
    """mish(x) sigmoid(y) + softplus(x - y)."""
    return x * fg.tanh(fg.softplus(x)) * fg.sigmoid(y) + fg.softplus(x - y)


@fg.op
def swiglu(x: Any, gate: Any) -> Any:
    """silu(x) * gate."""
    return x * fg.sigmoid(x) * gate


@fg.op
def lstm_cell(gates: Any, c0: Any) -> Any:
    """The pointwise part of an LSTM cell on packed gates (i, f, g, o)."""
    i, f, g, o = fg.split(gates, 4)
    c = c0 * fg.sigmoid(f) + fg.sigmoid(i) * fg.tanh(g)
    m = fg.tanh(c) * fg.sigmoid(o)
    return m, c


def torch_lstm_cell(gates: Any, c0: Any) -> Any:
    """The same in eager torch."""
    i, f, g, o = gates.chunk(4, -1)
    c = c0 * torch.sigmoid(f) + torch.sigmoid(i) * torch.tanh(g)
    return torch.tanh(c) * torch.sigmoid(o), c


def torch_mish_chain(x: Any, y: Any) -> Any:
    """The same in eager torch."""
    return F.mish(x) * torch.sigmoid(y) + F.softplus(x - y)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        title: as printed.
        ours, reference: the same function, called with the tensors.
        dtype, shapes: of the arguments; every argument requires a gradient.
        forward, backward: how many elements of the dtype each pass must move: inputs once, outputs once.
        passes: which passes the table has.
    """

    title: str
    ours: Callable[..., Any]
    reference: Callable[..., Any]
    dtype: torch.dtype
    shapes: Sequence[tuple[int, ...]]
    forward: int
    backward: int
    passes: tuple[str, ...] = ("fwd", "bwd", "step")

    def floor_bytes(self, which: str) -> int:
        """Fewest bytes of a pass; a training step is both."""
        elements = {"fwd": self.forward, "bwd": self.backward, "step": self.forward + self.backward}[which]
        return int(elements * self.dtype.itemsize)


def _full(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _lerp(title: str, dtype: torch.dtype, x: tuple[int, ...], y: tuple[int, ...], w: tuple[int, ...]) -> Row:
    n = _full(torch.broadcast_shapes(x, y, w))
    inputs = _full(x) + _full(y) + _full(w)
    return Row(title, lerp, torch.lerp, dtype, (x, y, w), inputs + n, 2 * inputs + n)


BIG = (8192, 8192)
ROWS: tuple[Row, ...] = (
    _lerp("lerp f32 x,y[16,102400] w[1]", torch.float32, (16, 102400), (16, 102400), (1,)),
    _lerp("lerp f64 x,y[16,204800] w[1]", torch.float64, (16, 204800), (16, 204800), (1,)),
    _lerp("lerp f32 x[16,1,1,1] y[16,3,244,244] w[3,1,244]", torch.float32,
          (16, 1, 1, 1), (16, 3, 244, 244), (3, 1, 244)),
    _lerp("lerp f32 x[256,1,1,1] y[256,64,56,56] w[64,1,56]", torch.float32,
          (256, 1, 1, 1), (256, 64, 56, 56), (64, 1, 56)),
    _lerp("lerp f32 three [8192,8192]", torch.float32, BIG, BIG, BIG),
    Row(
        "gelu_tanh(x[16384,4096] + bias)", gelu_bias, lambda x, b: F.gelu(x + b, approximate="tanh"), torch.bfloat16,
        ((16384, 4096), (4096,)), 2 * 16384 * 4096, 3 * 16384 * 4096,
    ),
    Row(
        "relu(x[256,64,112,112] + b[64,1,1])", relu_bias, lambda x, b: F.relu(x + b), torch.bfloat16,
        ((256, 64, 112, 112), (64, 1, 1)), 2 * 256 * 64 * 112 * 112, 3 * 256 * 64 * 112 * 112,
    ),
    Row("mish(x)*sigmoid(y)+softplus(x-y), [8192,8192]", mish_chain, torch_mish_chain, torch.bfloat16, (BIG, BIG),
        3 * 2**26, 5 * 2**26),
    Row("swiglu [16384,14336] x2", swiglu, lambda x, g: F.silu(x) * g, torch.bfloat16, ((16384, 14336),) * 2,
        3 * 16384 * 14336, 5 * 16384 * 14336),
    Row("LSTM cell f32, gates [8192,4096], c [8192,1024]", lstm_cell, torch_lstm_cell, torch.float32,
        ((8192, 4096), (8192, 1024)), 7 * 2**23, 12 * 2**23),
    Row("LSTM cell f32, gates [128,2048], c [128,512]", lstm_cell, torch_lstm_cell, torch.float32,
        ((128, 2048), (128, 512)), 7 * 2**16, 12 * 2**16),
)  # fmt: skip

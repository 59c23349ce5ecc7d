"""Rows without sums in the forward: their gradients have them where something is broadcast."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import fusegen as fg
from tools.bench.row import BF16, F16, F32, F64, QUICK, Input, Row, Shape, count


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


@fg.op
def lstm_cell_bias(gates: Any, c0: Any, bias: Any) -> Any:
    """The same with a bias [4 H] on the gates."""
    pairs: Any = zip(fg.split(gates, 4), fg.split(bias, 4), strict=True)
    i, f, g, o = (gate + part for gate, part in pairs)
    c = c0 * fg.sigmoid(f) + fg.sigmoid(i) * fg.tanh(g)
    return fg.tanh(c) * fg.sigmoid(o), c


def torch_lstm_cell(gates: Any, c0: Any) -> Any:
    """The cell in eager torch."""
    i, f, g, o = gates.chunk(4, -1)
    c = c0 * torch.sigmoid(f) + torch.sigmoid(i) * torch.tanh(g)
    return torch.tanh(c) * torch.sigmoid(o), c


def torch_mish_chain(x: Any, y: Any) -> Any:
    """The chain in eager torch."""
    return F.mish(x) * torch.sigmoid(y) + F.softplus(x - y)


def _lerp(title: str, dtype: torch.dtype, *shapes: Shape, **rest: Any) -> Row:
    """All three inputs are read in both passes; the backward reads d_out and writes three gradients."""
    n = count(torch.broadcast_shapes(*shapes))
    return Row(f"lerp {title}", lerp, torch.lerp, dtype, shapes, count(*shapes) + n, 2 * count(*shapes) + n, **rest)


def _biased(title: str, op: fg.FusedOp, activation: Any, dtype: torch.dtype, x: Shape, bias: Shape, **rest: Any) -> Row:
    """The backward reads x, d_out and the bias, and writes two gradients."""
    n, b = count(x), count(bias)
    reference = lambda x, b: activation(x + b)  # noqa: E731
    return Row(title, op, reference, dtype, (x, bias), 2 * n + b, 3 * n + 2 * b, **rest)


def _gated(title: str, dtype: torch.dtype, shape: Shape, **rest: Any) -> Row:
    n = count(shape)
    return Row(title, swiglu, lambda x, g: F.silu(x) * g, dtype, (shape, shape), 3 * n, 5 * n, **rest)


def _cell(title: str, rows: int, hidden: int, bias: bool = False) -> Row:
    """Gates and cell in, hidden and cell out; the backward reads all but the hidden, and writes what it read."""
    n, b = rows * hidden, 4 * hidden if bias else 0
    shapes: list[Input | Shape] = [(rows, 4 * hidden), (rows, hidden)]
    if not bias:
        return Row(title, lstm_cell, torch_lstm_cell, F32, shapes, 7 * n, 12 * n)
    reference = lambda gates, c, bias: torch_lstm_cell(gates + bias, c)  # noqa: E731
    return Row(title, lstm_cell_bias, reference, F32, [*shapes, (4 * hidden,)], 7 * n + b, 12 * n + 2 * b)


def _gelu(x: Any) -> Any:
    return F.gelu(x, approximate="tanh")


BIG = (8192, 8192)
ROWS: tuple[Row, ...] = (
    _lerp("f32 x,y[16,102400] w[1]", F32, (16, 102400), (16, 102400), (1,)),
    _lerp("f64 x,y[16,204800] w[1]", F64, (16, 204800), (16, 204800), (1,)),
    _lerp("f32 x[16,1,1,1] y[16,3,244,244] w[3,1,244]", F32, (16, 1, 1, 1), (16, 3, 244, 244), (3, 1, 244)),
    _lerp("f32 x[256,1,1,1] y[256,64,56,56] w[64,1,56]", F32, (256, 1, 1, 1), (256, 64, 56, 56), (64, 1, 56)),
    _lerp("f32 three [8192,8192]", F32, BIG, BIG, BIG),
    _biased("gelu_tanh(x[16384,4096] + bias)", gelu_bias, _gelu, BF16, (16384, 4096), (4096,)),
    _biased("relu(x[256,64,112,112] + b[64,1,1])", relu_bias, F.relu, BF16, (256, 64, 112, 112), (64, 1, 1)),
    Row("mish(x)*sigmoid(y)+softplus(x-y), [8192,8192]", mish_chain, torch_mish_chain, BF16, (BIG, BIG),
        3 * 2**26, 5 * 2**26),
    _gated("swiglu [16384,14336] x2", BF16, (16384, 14336)),
    _cell("LSTM cell f32, gates [8192,4096], c [8192,1024]", 8192, 1024),
    _cell("LSTM cell f32, gates [128,2048], c [128,512]", 128, 512),
    _cell("LSTM cell with bias f32, gates [8192,4096]", 8192, 1024, bias=True),
)  # fmt: skip
ODD: tuple[Row, ...] = (
    _biased("gelu_tanh(x[16383,4097] + bias)", gelu_bias, _gelu, BF16, (16383, 4097), (4097,), peers=QUICK),
    _biased("gelu_tanh(x[100000,1000] + bias) f32", gelu_bias, _gelu, F32, (100000, 1000), (1000,), peers=QUICK),
    _biased("gelu_tanh(x[7,5120] + bias) fp16", gelu_bias, _gelu, F16, (7, 5120), (5120,), peers=QUICK),
    _biased("relu(x[256,512,7,7] + b[512,1,1]) fp16", relu_bias, F.relu, F16, (256, 512, 7, 7), (512, 1, 1),
            peers=QUICK),
    _gated("swiglu fp16 [8191,11008] x2", F16, (8191, 11008), peers=QUICK),
    _lerp("bf16 x[1,50257] y[1000,50257] w[1000,1]", BF16, (1, 50257), (1000, 50257), (1000, 1), peers=QUICK),
)  # fmt: skip

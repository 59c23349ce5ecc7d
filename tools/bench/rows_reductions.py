"""Rows that reduce: sums, a loss, softmax, norms and cross entropy.

The backward of a softmax or norm reads its input (or its result) and the cotangent once, and writes one gradient; the
statistics of a row are counted nowhere: they are few.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import fusegen as fg
from tools.bench.row import BF16, F16, F32, QUICK, SHORT, Input, Row, Shape, count

EPS = 1e-6


@fg.op
def sum_of_all(x: Any) -> Any:
    """The sum of every element."""
    return fg.sum(x)


@fg.op
def sum_of_columns(x: Any) -> Any:
    """The sum over the first axis."""
    return fg.sum(x, axis=0)


@fg.op
def sum_of_rows(x: Any) -> Any:
    """The sum over the last axis."""
    return fg.sum(x, axis=-1)


@fg.op
def sum_around_channels(x: Any) -> Any:
    """The sum over the first and the last axis."""
    return fg.sum(x, axis=(0, 2))


@fg.op
def mean_squared_error(x: Any, y: Any) -> Any:
    """mean((x - y)^2)."""
    d = x - y
    return fg.mean(d * d)


@fg.op
def norm_of_sum(x: Any, bias: Any, residual: Any, weight: Any, shift: Any) -> Any:
    """layer_norm(x + bias + residual): what follows a linear layer in a transformer."""
    return fg.ops.layer_norm(x + bias + residual, (4096,), weight, shift, EPS)


@fg.op
def channel_norm(x: Any, weight: Any, bias: Any) -> Any:
    """Layer norm over the second axis, the channels of images."""
    mean = fg.mean(x, 1, keepdims=True)
    rstd = fg.rsqrt(fg.var(x, 1, correction=0, keepdims=True) + EPS)
    return (x - mean) * rstd * weight + bias


def torch_channel_norm(x: Any, weight: Any, bias: Any) -> Any:
    """The same in torch, as torchvision's LayerNorm2d does it."""
    return F.layer_norm(x.movedim(1, -1), (x.shape[1],), weight.flatten(), bias.flatten(), EPS).movedim(-1, 1)


def torch_norm_of_sum(x: Any, bias: Any, residual: Any, weight: Any, shift: Any) -> Any:
    """The same in torch."""
    return F.layer_norm(x + bias + residual, (4096,), weight, shift, EPS)


def _sum(title: str, op: fg.FusedOp, dims: Any, dtype: torch.dtype, shape: Shape, result: int, **rest: Any) -> Row:
    reference = torch.sum if dims is None else lambda x: torch.sum(x, dims)
    n = count(shape)
    return Row(title, op, reference, dtype, [shape], n + result, n + result, passes=("fwd",), **rest)


def _softmax(rows: int, columns: int, dtype: torch.dtype = BF16, **rest: Any) -> Row:
    n = rows * columns
    title = f"softmax [{rows},{columns}] {SHORT[dtype]}"
    reference = lambda x: torch.softmax(x, -1)  # noqa: E731
    passes = ("fwd", "bwd")
    op, options = fg.ops.softmax, {"dim": -1}
    return Row(title, op, reference, dtype, [(rows, columns)], 2 * n, 3 * n, options, passes, **rest)


def _layer_norm(rows: int, columns: int, dtype: torch.dtype = BF16, **rest: Any) -> Row:
    n = rows * columns
    inputs: list[Input | Shape] = [(rows, columns), (columns,), (columns,)]
    reference = lambda x, w, b: F.layer_norm(x, (columns,), w, b, EPS)  # noqa: E731
    return Row(
        f"layer_norm [{rows},{columns}] {SHORT[dtype]}", fg.ops.layer_norm, reference, dtype, inputs,
        2 * n + 2 * columns, 3 * n + 3 * columns, {"normalized_shape": (columns,), "eps": EPS}, ("fwd", "bwd"), **rest,
    )  # fmt: skip


def _rms_norm(rows: int, columns: int, dtype: torch.dtype = BF16, **rest: Any) -> Row:
    n = rows * columns
    inputs: list[Input | Shape] = [(rows, columns), (columns,)]
    reference = lambda x, w: F.rms_norm(x, (columns,), w, EPS)  # noqa: E731
    return Row(
        f"rms_norm [{rows},{columns}] {SHORT[dtype]}", fg.ops.rms_norm, reference, dtype, inputs,
        2 * n + columns, 3 * n + 2 * columns, {"normalized_shape": (columns,), "eps": EPS}, ("fwd", "bwd"), **rest,
    )  # fmt: skip


def _group_norm(shape: Shape, groups: int, dtype: torch.dtype = BF16, **rest: Any) -> Row:
    """The gradients of its weights are sums over images and pixels, as those of `_instance_norm`."""
    n, channels = count(shape), shape[1]
    inputs: list[Input | Shape] = [shape, (channels,), (channels,)]
    reference = lambda x, w, b: F.group_norm(x, groups, w, b, EPS)  # noqa: E731
    return Row(
        f"group_norm [{','.join(map(str, shape))}] {groups} groups {SHORT[dtype]}", fg.ops.group_norm, reference, dtype,
        inputs, 2 * n + 2 * channels, 3 * n + 3 * channels, {"num_groups": groups, "eps": EPS}, ("fwd", "bwd"), **rest,
    )  # fmt: skip


def _instance_norm(shape: Shape, dtype: torch.dtype = BF16, **rest: Any) -> Row:
    n, channels = count(shape), shape[1]
    inputs: list[Input | Shape] = [shape, (channels,), (channels,)]
    options = {"running_mean": None, "running_var": None, "eps": EPS}
    reference = lambda x, w, b: F.instance_norm(x, None, None, w, b, eps=EPS)  # noqa: E731
    return Row(
        f"instance_norm [{','.join(map(str, shape))}] {SHORT[dtype]}", fg.ops.instance_norm, reference, dtype,
        inputs, 2 * n + 2 * channels, 3 * n + 3 * channels, options, ("fwd", "bwd"), **rest,
    )  # fmt: skip


def _cross_entropy(rows: int, classes: int, dtype: torch.dtype = BF16, **rest: Any) -> Row:
    """The forward reads the logits, the backward reads them again and writes their gradient."""
    n = rows * classes
    inputs: list[Input | Shape] = [(rows, classes), Input((rows,), classes=classes)]
    title = f"cross_entropy [{rows},{classes}] {SHORT[dtype]}"
    return Row(title, fg.ops.cross_entropy, F.cross_entropy, dtype, inputs, n, 2 * n, **rest)


def _softmax_of_channels(*shape: int, dtype: torch.dtype = BF16) -> Row:
    n = count(shape)
    title = f"softmax of channels [{','.join(map(str, shape))}] {SHORT[dtype]}"
    reference = lambda x: torch.softmax(x, 1)  # noqa: E731
    passes = ("fwd", "bwd")
    return Row(title, fg.ops.softmax, reference, dtype, [shape], 2 * n, 3 * n, {"dim": 1}, passes)


def _cross_entropy_of_pixels(*shape: int, dtype: torch.dtype = BF16) -> Row:
    """Segmentation: a class a pixel, in int64; statistics count where they are one in few elements."""
    n, pixels = count(shape), count(shape) // shape[1]
    classes = torch.int64.itemsize * pixels // dtype.itemsize
    statistics = 2 * pixels * F32.itemsize // dtype.itemsize
    inputs: list[Input | Shape] = [shape, Input((shape[0], *shape[2:]), classes=shape[1])]
    title = f"cross_entropy of pixels [{','.join(map(str, shape))}] {SHORT[dtype]}"
    return Row(
        title, fg.ops.cross_entropy, F.cross_entropy, dtype, inputs, n + classes, 2 * n + classes + statistics
    )  # fmt: skip


def _channel_norm(*shape: int) -> Row:
    """Layer norm over the channels of images, as ConvNeXt has it."""
    n, channels = count(shape), shape[1]
    statistics = 2 * (n // channels) * F32.itemsize // BF16.itemsize
    inputs: list[Input | Shape] = [shape, (channels, 1, 1), (channels, 1, 1)]
    return Row(
        f"layer norm of channels [{','.join(map(str, shape))}]", channel_norm, torch_channel_norm, BF16, inputs,
        2 * n + 2 * channels, 3 * n + 3 * channels + statistics, passes=("fwd", "bwd"), peers=QUICK,
    )  # fmt: skip


def _norm_of_sum(rows: int) -> Row:
    n = rows * 4096
    inputs: list[Input | Shape] = [(rows, 4096), (4096,), (rows, 4096), (4096,), (4096,)]
    title = f"layer_norm(x + bias + residual) [{rows},4096]"
    # The gradients of x and of the residual are one tensor.
    return Row(title, norm_of_sum, torch_norm_of_sum, BF16, inputs, 3 * n + 3 * 4096, 4 * n + 5 * 4096)


PIXELS = 2**26
ROWS: tuple[Row, ...] = (
    _sum("sum of 2^28 f32", sum_of_all, None, F32, (2**28,), 1),
    _sum("sum over axis 0 of [65536,4096]", sum_of_columns, 0, BF16, (65536, 4096), 4096),
    _sum("sum over axis 0 of [4194304,64]", sum_of_columns, 0, BF16, (4194304, 64), 64),
    _sum("sum over axes 0,2 of [1024,64,3136]", sum_around_channels, (0, 2), BF16, (1024, 64, 3136), 64),
    Row("mse mean f32 2^26", mean_squared_error, F.mse_loss, F32, [(PIXELS,), Input((PIXELS,), fixed=True)],
        2 * PIXELS, 3 * PIXELS, passes=("fwd", "step")),
    *(_softmax(*size) for size in ((32768, 1024), (16384, 4096), (4096, 32768), (1024, 131072))),
    *(_layer_norm(*size) for size in ((32768, 1024), (16384, 4096), (4096, 32768), (1024, 131072))),
    *(_rms_norm(*size) for size in ((32768, 1024), (16384, 4096), (4096, 32768), (1024, 131072))),
    _group_norm((32, 256, 56, 56), 32),
    _instance_norm((32, 256, 56, 56)),
    _norm_of_sum(16384),
    _cross_entropy(4096, 128256),
    _softmax_of_channels(8, 19, 512, 512),
    _cross_entropy_of_pixels(8, 19, 512, 512),
)  # fmt: skip
ODD: tuple[Row, ...] = (
    _sum("sum over axis 0 of [100000,1000] f32", sum_of_columns, 0, F32, (100000, 1000), 1000, peers=QUICK),
    _sum("sum over axis -1 of [100000,1000]", sum_of_rows, -1, BF16, (100000, 1000), 100000, peers=QUICK),
    _sum("sum over axis -1 of [7,262144] fp16", sum_of_rows, -1, F16, (7, 262144), 7, peers=QUICK),
    _softmax(100000, 1000, F32, peers=QUICK),
    _softmax(16384, 4097, peers=QUICK),
    _softmax(16384, 5120, F16, peers=QUICK),
    _softmax(4096, 50257, peers=QUICK),
    _softmax(512, 262144, peers=QUICK),
    _softmax(7, 262144, F32, peers=QUICK),
    _softmax(1, 50257, peers=QUICK),
    _layer_norm(100000, 1000, peers=QUICK),
    _layer_norm(16384, 4097, peers=QUICK),
    _layer_norm(16384, 5120, F16, peers=QUICK),
    _layer_norm(512, 262144, F32, peers=QUICK),
    _layer_norm(7, 4097, F32, peers=QUICK),
    _layer_norm(1, 5120, peers=QUICK),
    _rms_norm(100000, 1000, F16, peers=QUICK),
    _rms_norm(16384, 4097, F32, peers=QUICK),
    _rms_norm(16384, 5120, peers=QUICK),
    _rms_norm(1024, 50257, peers=QUICK),
    _rms_norm(7, 5120, peers=QUICK),
    _rms_norm(1, 262144, F16, peers=QUICK),
    _group_norm((16, 320, 64, 64), 32, F16, peers=QUICK),
    _group_norm((1000, 96, 15, 15), 12, F32, peers=QUICK),
    _instance_norm((100, 1000, 15, 15), F32, peers=QUICK),
    _cross_entropy(100000, 1000, F32, peers=QUICK),
    _cross_entropy(8192, 50257, peers=QUICK),
    _cross_entropy(16384, 4097, F16, peers=QUICK),
    _cross_entropy(1024, 262144, peers=QUICK),
    _cross_entropy(7, 50257, peers=QUICK),
    _channel_norm(64, 96, 56, 56),
    _channel_norm(64, 384, 14, 14),
)

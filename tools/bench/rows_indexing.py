"""Rows that read and write at places: scatters, an embedding's gradient, gathers; and running sums.

An int64 place is as long as two floats, or as four halves.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import fusegen as fg
from tools.bench.row import BF16, F32, Input, Row, Shape, count

PEERS = ("torch", "torch.compile")


def scatter_add(shape: Shape, dim: int, updates: Shape) -> Row:
    """Sums at places along an axis, one for each element."""
    n, m = count(updates), count(shape)
    into = "" if shape == updates else f" into {_brackets(shape)}"
    return Row(
        f"scatter_add f32 {_brackets(updates)}{into}, axis {dim}",
        fg.ops.scatter_add, lambda x, i, s: torch.scatter_add(x, dim, i, s), F32,
        (shape, Input(updates, classes=shape[dim]), updates), forward=2 * m + 3 * n, backward=4 * n,
        options={"dim": dim}, passes=("fwd",), peers=PEERS,
    )  # fmt: skip


def _brackets(shape: Shape) -> str:
    return str(list(shape)).replace(" ", "")


def taken(rows: int, columns: int, each: int) -> Row:
    """A few elements of each row, and the gradient of that."""
    some = count((rows, each))
    return Row(
        f"gather bf16 {each} of each row [{rows},{columns}]", fg.ops.gather, lambda x, i: torch.gather(x, 1, i), BF16,
        ((rows, columns), Input((rows, each), classes=columns)), forward=6 * some,
        backward=5 * some + count((rows, columns)), options={"dim": 1}, passes=("fwd", "bwd"), peers=PEERS,
    )  # fmt: skip


ROWS = (
    scatter_add((1000, 256, 7, 7), 0, (1000, 256, 7, 7)),
    scatter_add((2**24,), 0, (2**24,)),
    scatter_add((1000,), 0, (2**24,)),
    Row("embedding bf16 8192 of [128256,4096]", fg.ops.embedding, F.embedding, BF16,
        (Input((8192,), classes=128256), (128256, 4096)), forward=2 * 8192 * 4096,
        backward=8192 * 4096 + 128256 * 4096, passes=("fwd", "bwd"), peers=PEERS),
    taken(65536, 256, 8),
    taken(16384, 1024, 1),
    Row("cumsum bf16 [16384,4096]", fg.ops.cumsum, lambda x: torch.cumsum(x, -1), BF16, ((16384, 4096),),
        forward=2 * 16384 * 4096, backward=2 * 16384 * 4096, options={"dim": -1}, passes=("fwd", "bwd"), peers=PEERS),
    Row("logcumsumexp bf16 [16384,4096]", fg.ops.logcumsumexp, lambda x: torch.logcumsumexp(x, -1), BF16,
        ((16384, 4096),), forward=2 * 16384 * 4096, backward=4 * 16384 * 4096, options={"dim": -1},
        passes=("fwd", "bwd"), peers=PEERS),
)  # fmt: skip

"""Persistent row kernels whose threads have no registers for what all rows have in common: it is in shared memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.generate.rendered import headers
from fusegen.inspect.passes import passes
from fusegen.launch.compile import to_cubin
from fusegen.launch.cubin import resources
from tests.support.oracles import check_no_worse, draw

BF16, F32 = torch.bfloat16, torch.float32


@fg.op
def scaled(x, w, b):  # type: ignore[no-untyped-def]
    return fg.ops.layer_norm(x, (x.shape[-1],), w, b)


@fg.op
def columns_of(x, w, b, y):  # type: ignore[no-untyped-def]
    normal = fg.ops.layer_norm(x, (x.shape[-1],), w, b)
    return fg.logsumexp((normal - fg.mean(normal, -1, keepdims=True)) * y, 0)


def torch_columns_of(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    normal = torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)
    return torch.logsumexp((normal - normal.mean(-1, keepdim=True)) * y, 0)


def backward_of(op: Any, *given: torch.Tensor) -> str:
    return list(passes(op, tuple(t.requires_grad_() for t in given), {}, "backward"))[-1].text


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("length", [5120, 12288, 131072, 262144])
def test_vectors_of_more_than_16_bytes_compile(length: int, dtype: torch.dtype, arch: str) -> None:
    """float32 weights beside rows of a half type: eight are 32 bytes, and an asynchronous copy takes 16."""
    rows, weights = torch.empty(64, length, dtype=BF16), torch.empty(2, length, dtype=dtype)
    text = backward_of(scaled, rows, *weights.detach().clone().unbind())
    to_cubin(text, arch=arch, headers=headers(), declared="")


def test_nothing_spills() -> None:
    x, y, w, b = (torch.empty(*shape, 5120, dtype=BF16) for shape in ((4096,), (4096,), (), ()))
    text = backward_of(columns_of, x, w, b, y)
    assert "fg::dynamic_shared<w_rows>()" in text
    built = to_cubin(text, arch="sm_90", headers=headers(), declared="")
    assert resources(built.data, "columns_of_backward_bf16_d_x_and_1_more").local_bytes == 0


def test_results() -> None:
    shapes = (9, 5120), (5120,), (5120,), (9, 5120)
    given = [draw(*shape, dtype=BF16, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    check_no_worse(columns_of, torch_columns_of, given)

"""What tests of kernels for rows share: ops of rows, the kernels that they become, and a comparison with float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

import fusegen as fg
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.rows_schedule import Chip, RowSchedule
from fusegen.inspect.passes import passes

HOPPER = Chip()
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def softmax() -> Any:
    return fg.op(lambda x: fg.softmax(x, -1))


def layer_norm() -> Any:
    @fg.op
    def norm(x, w, b, *, eps=0.1):  # type: ignore[no-untyped-def]
        mean = fg.mean(x, -1, keepdims=True)
        rstd = fg.rsqrt(fg.var(x, -1, correction=0, keepdims=True) + eps)
        return (x - mean) * rstd * w + b

    return norm


def blend() -> Any:
    return fg.op(lambda x, y, w: x + w * (y - x))


def torch_layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b, eps=0.1)  # rows of one or two elements are no puzzle then


def agree(
    ours: Callable[..., Any], theirs: Callable[..., Any], *inputs: torch.Tensor, drawn: torch.dtype = torch.float64
) -> None:
    """Values and all gradients against float64, with cotangents that are not constant (drawn in that dtype)."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    results, truths = ours(*inputs), theirs(*wide)
    results, truths = (found if isinstance(found, tuple) else (found,) for found in (results, truths))
    cotangents = [torch.randn(t.shape, dtype=drawn).to(r.dtype) for r, t in zip(results, truths, strict=True)]
    gradients = torch.autograd.grad(results, inputs, cotangents)
    true_gradients = torch.autograd.grad(truths, wide, [c.double() for c in cotangents])
    for mine, true in zip((*results, *gradients), (*truths, *true_gradients), strict=True):
        scale = true.abs().max().clamp(min=1e-3)
        assert ((mine.double() - true).abs().max() / scale).item() < TOLERANCE[mine.dtype]


def planned(op: Any, *inputs: torch.Tensor, chip: Chip = HOPPER) -> list[Any]:
    """The kernels of the forward."""
    (forward,) = passes(op, inputs, {})
    return replace(forward, chip=chip).kernels


def planned_passes(op: Any, *inputs: torch.Tensor, **options: Any) -> list[list[Any]]:
    """The kernels of the forward, and those of the backward."""
    return [item.kernels for item in passes(op, inputs, options, "backward")]


def row_schedule(op: Any, *inputs: torch.Tensor) -> RowSchedule:
    (kernel,) = planned(op, *inputs)
    assert isinstance(kernel.kernel, RowKernel) and isinstance(kernel.schedule, RowSchedule)
    return kernel.schedule

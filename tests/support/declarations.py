"""Ops that several tests declare, and what torch computes for them."""

from __future__ import annotations

import torch

import fusegen as fg


@fg.op
def lerp(x, y, w):  # type: ignore[no-untyped-def]
    return x + w * (y - x)


@fg.op
def norm(x, weight, *, eps=1e-5):  # type: ignore[no-untyped-def]
    rstd = fg.rsqrt(fg.mean(x * x, -1, keepdims=True) + eps)
    return x * rstd * weight


def torch_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight

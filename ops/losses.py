"""Elementwise losses between numbers, with torch's names and arguments.

``reduction`` is "none", "mean" or "sum"; ``size_average`` and ``reduce`` are torch's deprecated way to say it.
``input``, ``target`` and ``weight`` broadcast.
"""

from __future__ import annotations

import fusegen as fg

from ._options import broadcast_first, floats, limited, numbers, reduced


@fg.op(autocast="float32")
def mse_loss(
    input: fg.Tensor, target: fg.Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", weight: fg.Tensor = None,
) -> fg.Tensor:  # fmt: skip
    """weight (input - target)^2; "mean" divides by the sum of the weights. Source: torch.nn.functional.mse_loss."""
    input, target = broadcast_first(input, target)
    d = floats("mse_loss", input - target)
    loss = d * d if weight is None else d * d * weight
    return reduced("mse_loss", loss, reduction, size_average, reduce, weight)


@fg.op(autocast="float32")
def l1_loss(
    input: fg.Tensor, target: fg.Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", weight: fg.Tensor = None,
) -> fg.Tensor:  # fmt: skip
    """weight |input - target|; "mean" divides by the sum of the weights. Source: torch.nn.functional.l1_loss."""
    input, target = broadcast_first(input, target)
    d = fg.abs(numbers("l1_loss", input) - target)
    loss = d if weight is None else d * weight
    return reduced("l1_loss", loss, reduction, size_average, reduce, weight)


@limited(beta=("a number that is at least 0", lambda beta, **_: beta >= 0), autocast="float32")
def smooth_l1_loss(
    input: fg.Tensor, target: fg.Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", beta: float = 1.0,
) -> fg.Tensor:  # fmt: skip
    """d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, with d = input - target.

    Source: torch.nn.functional.smooth_l1_loss; Girshick, Fast R-CNN, arXiv 1504.08083.
    """
    input, target = broadcast_first(input, target)
    d = floats("smooth_l1_loss", input - target)
    distance = fg.abs(d)
    loss = fg.where(distance >= beta, distance - 0.5 * beta, 0.5 * d * d / beta)
    return reduced("smooth_l1_loss", loss, reduction, size_average, reduce)


@limited(delta=("a number greater than 0", lambda delta, **_: delta > 0), autocast="float32")
def huber_loss(
    input: fg.Tensor, target: fg.Tensor, reduction: str = "mean", delta: float = 1.0, weight: fg.Tensor = None
) -> fg.Tensor:
    """d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), with d = input - target; times weight.

    "mean" divides by the number of elements, weights or not. Source: torch.nn.functional.huber_loss.
    """
    d = floats("huber_loss", input - target)
    distance = fg.abs(d)
    loss = fg.where(distance > delta, delta * (distance - 0.5 * delta), 0.5 * d * d)
    return reduced("huber_loss", loss if weight is None else loss * weight, reduction)

"""Losses that are negative log likelihoods, with torch's names and arguments.

``reduction`` is "none", "mean" or "sum"; ``size_average`` and ``reduce`` are torch's deprecated way to say it.
All tensors broadcast. Values are not looked at, so that nothing waits for the device: a probability outside [0, 1] or a
negative variance, which torch refuses, is no error here.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

from ._functions import log_of_complement, log_of_probability
from ._options import choose, floats, limited, reduced

PI = 3.14159265358979323846
HALF_LOG_2_PI = 0.91893853320467274178


@fg.op(autocast="float32")
def binary_cross_entropy(
    input: fg.Tensor, target: fg.Tensor, weight: fg.Tensor = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> fg.Tensor:  # fmt: skip
    """-weight (t log(p) + (1 - t) log(1 - p)) for probabilities p; logarithms end at -100.

    Source: torch.nn.functional.binary_cross_entropy, whose gradient (p - t) / max(p (1 - p), 1e-12) is kept.
    """
    p, t = floats("binary_cross_entropy", input), target
    loss = (t - 1) * log_of_complement(p) - t * log_of_probability(p)
    loss = loss if weight is None else loss * weight
    return reduced("binary_cross_entropy", loss, reduction, size_average, reduce)


@fg.op(autocast="float32")
def binary_cross_entropy_with_logits(
    input: fg.Tensor, target: fg.Tensor, weight: fg.Tensor = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean", pos_weight: fg.Tensor = None,
) -> fg.Tensor:  # fmt: skip
    """-weight (pos_weight t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))) for logits x.

    Computed as (1 - t) x - (1 + (pos_weight - 1) t) logsigmoid(x).
    Source: torch.nn.functional.binary_cross_entropy_with_logits.
    """
    x, t = floats("binary_cross_entropy_with_logits", input), target
    likely = fg.logsigmoid(x)
    if pos_weight is not None:
        likely = (1 + (pos_weight - 1) * t) * likely
    loss = (1 - t) * x - likely
    loss = loss if weight is None else loss * weight
    return reduced("binary_cross_entropy_with_logits", loss, reduction, size_average, reduce)


@fg.op(autocast="float32")
def sigmoid_focal_loss(
    inputs: fg.Tensor, targets: fg.Tensor, alpha: float = 0.25, gamma: float = 2.0, reduction: str = "none"
) -> fg.Tensor:
    """a (1 - q)^gamma bce, where q = sigmoid(x) if t = 1 and 1 - sigmoid(x) if t = 0, and bce = -log(q).

    a = alpha t + (1 - alpha) (1 - t); a negative ``alpha`` means no such weight.
    Source: torchvision.ops.sigmoid_focal_loss; Lin et al., arXiv 1708.02002.
    """
    x, t = floats("sigmoid_focal_loss", inputs), targets
    missed = fg.sigmoid(x) * (1 - t) + fg.sigmoid(-x) * t
    weight = fg.where(alpha >= 0, alpha * t + (1 - alpha) * (1 - t), 1)
    loss = weight * missed**gamma * ((1 - t) * x - fg.logsigmoid(x))
    return reduced("sigmoid_focal_loss", loss, reduction)


@fg.op(autocast="float32")
def kl_div(
    input: fg.Tensor, target: fg.Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", log_target: bool = False,
) -> fg.Tensor:  # fmt: skip
    """t (log(t) - x) for log-probabilities x; with ``log_target``, exp(t) (t - x).

    ``reduction="batchmean"`` divides the sum by the size of dimension 0: the divergence itself. "mean" divides by the
    number of elements. Source: torch.nn.functional.kl_div.
    """
    x, t = floats("kl_div", input), target
    loss = fg.exp(t) * (t - x) if log_target else fg.xlogy(t, t) - t * x
    choose("kl_div", "reduction", reduction, ("none", "mean", "sum", "batchmean"))
    if reduction == "batchmean" and size_average is None and reduce is None:
        total: fg.Tensor = fg.sum(loss)
        return total / fg.size(x, 0) if x.ndim else total
    return reduced("kl_div", loss, "mean" if reduction == "batchmean" else reduction, size_average, reduce)


@fg.op(autocast="float32")
def poisson_nll_loss(
    input: fg.Tensor, target: fg.Tensor, log_input: bool = True, full: bool = False, size_average: bool | None = None,
    eps: float = 1e-8, reduce: bool | None = None, reduction: str = "mean",
) -> fg.Tensor:  # fmt: skip
    """exp(x) - t x for log-rates x; without ``log_input``, x - t log(x + eps) for rates.

    ``full`` adds Stirling's t log(t) - t + log(2 pi t) / 2 where t > 1. Source: torch.nn.functional.poisson_nll_loss.
    """
    x, t = input, target
    loss = fg.exp(x) - t * x if log_input else x - t * fg.log(x + eps)
    if full:
        loss = loss + fg.where(t <= 1, 0, t * fg.log(t) - t + 0.5 * fg.log(2 * PI * t))
    return reduced("poisson_nll_loss", loss, reduction, size_average, reduce)


@limited(
    eps=("a number greater than 0", lambda eps, **_: eps > 0),
    var=("a number that is at least 0", lambda var, **_: var >= 0),
    autocast="float32",
)
def gaussian_nll_loss(
    input: fg.Tensor, target: fg.Tensor, var: float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> fg.Tensor:
    """(log(v) + (input - target)^2 / v) / 2 with v = max(var, eps); ``full`` adds log(2 pi) / 2.

    ``var`` is a number, or a tensor of the input's shape, with a last dimension of 1, or without the last dimension.
    Its gradient passes the maximum unchanged. Source: torch.nn.functional.gaussian_nll_loss.
    """
    d = input - target
    v = _variance(var, floats("gaussian_nll_loss", input))
    v = v + fg.stop_gradient(fg.where(v < eps, eps - v, 0))
    loss = 0.5 * (fg.log(v) + d * d / v)
    return reduced("gaussian_nll_loss", loss + HALF_LOG_2_PI if full else loss, reduction)


def _variance(var: Any, input: fg.Tensor) -> Any:
    if isinstance(var, (int, float)):
        return var
    if var.weak:  # a number, whose logarithm meets no tensor that would say in what precision it is computed
        return fg.cast(var, input.dtype) if input.dtype is fg.float64 else var
    return fg.expand_dims(var, -1) if var.dims and var.ndim == input.ndim - 1 else var

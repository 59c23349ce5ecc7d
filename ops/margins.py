"""Losses with a margin, with torch's names and arguments.

``reduction`` is "none", "mean" or "sum"; ``size_average`` and ``reduce`` are torch's deprecated way to say it.
Where a loss ends at zero its gradient passes at the end itself, as torch's clamp_min.
"""

from __future__ import annotations

import fusegen as fg

from ._options import floats, limited, reduced

TINY = 1e-12


def _at_least_zero(x: fg.Tensor) -> fg.Tensor:
    return fg.where(x < 0, 0, x)


def _same_rank(name: str, **tensors: fg.Tensor) -> None:
    """Ranks that differ would broadcast to something that nobody meant."""
    if len({tensor.ndim for tensor in tensors.values()}) > 1:
        raise fg.ShapeError(
            name, given=", ".join(f"{key} of rank {tensor.ndim}" for key, tensor in tensors.items()),
            expected="tensors of one rank (as torch)", fix="add the missing dimensions: tensor[None]",
        )  # fmt: skip


@fg.op(autocast="float32")
def margin_ranking_loss(
    input1: fg.Tensor, input2: fg.Tensor, target: fg.Tensor, margin: float = 0.0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> fg.Tensor:  # fmt: skip
    """max(0, margin - target (input1 - input2)) for a target of 1 where input1 should be larger, else -1.

    Source: torch.nn.functional.margin_ranking_loss.
    """
    _same_rank("margin_ranking_loss", input1=input1, input2=input2, target=target)
    loss = _at_least_zero(-target * (input1 - input2) + margin)  # bytes wrap around here, as torch's
    return reduced("margin_ranking_loss", loss, reduction, size_average, reduce)


@fg.op(autocast="float32")
def hinge_embedding_loss(
    input: fg.Tensor, target: fg.Tensor, margin: float = 1.0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> fg.Tensor:  # fmt: skip
    """x where target = 1, max(0, margin - x) where target = -1, and the sum of both elsewhere.

    Source: torch.nn.functional.hinge_embedding_loss.
    """
    x = input
    loss = fg.where(target == -1, 0, x) + fg.where(target == 1, 0, _at_least_zero(margin - x))
    return reduced("hinge_embedding_loss", loss, reduction, size_average, reduce)


@fg.op(autocast="float32")
def soft_margin_loss(
    input: fg.Tensor, target: fg.Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> fg.Tensor:  # fmt: skip
    """log(1 + exp(-target x)), without overflow. Source: torch.nn.functional.soft_margin_loss."""
    loss = -fg.logsigmoid(target * floats("soft_margin_loss", input))
    return reduced("soft_margin_loss", loss, reduction, size_average, reduce)


@fg.op(autocast="float32")
def multilabel_soft_margin_loss(
    input: fg.Tensor, target: fg.Tensor, weight: fg.Tensor = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> fg.Tensor:  # fmt: skip
    """-mean(weight (t log(sigmoid(x)) + (1 - t) log(sigmoid(-x)))) over the last dimension, one class each.

    Source: torch.nn.functional.multilabel_soft_margin_loss.
    """
    x, t = floats("multilabel_soft_margin_loss", input), target
    loss = (1 - t) * x - fg.logsigmoid(x)
    loss = fg.mean(loss if weight is None else loss * weight, -1)
    return reduced("multilabel_soft_margin_loss", loss, reduction, size_average, reduce)


@fg.op(autocast="float32")
def cosine_embedding_loss(
    input1: fg.Tensor, input2: fg.Tensor, target: fg.Tensor, margin: float = 0.0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> fg.Tensor:  # fmt: skip
    """1 - cos where target = 1, max(0, cos - margin) where target = -1, else 0.

    cos = sum(input1 input2) / sqrt((|input1|^2 + 1e-12) (|input2|^2 + 1e-12)) over the last dimension, of inputs [N, D]
    and a target [N], or of inputs [D] and a target of rank 0. Source: torch.nn.functional.cosine_embedding_loss.
    """
    if target.ndim > 1 or {input1.ndim, input2.ndim} != {target.ndim + 1}:
        ranks = [input1.ndim, input2.ndim, target.ndim]
        raise fg.ShapeError(
            "cosine_embedding_loss", given=f"input1, input2 and target of ranks {ranks}",
            expected="ranks 2, 2 and 1, or 1, 1 and 0", fix="flatten the inputs to [N, D]",
        )  # fmt: skip
    square1, square2 = fg.sum(input1 * input1, -1) + TINY, fg.sum(input2 * input2, -1) + TINY
    cos = fg.sum(input1 * input2, -1) * (fg.rsqrt(square1) * fg.rsqrt(square2))
    loss = fg.where(target == 1, 1 - cos, fg.where(target == -1, _at_least_zero(cos - margin), 0))
    return reduced("cosine_embedding_loss", loss, reduction, size_average, reduce)


@limited(margin=("a number greater than 0", lambda margin, **_: margin > 0), autocast="float32")
def triplet_margin_loss(
    anchor: fg.Tensor, positive: fg.Tensor, negative: fg.Tensor, margin: float = 1.0, p: fg.Const = 2.0,
    eps: float = 1e-6, swap: bool = False, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> fg.Tensor:  # fmt: skip
    """max(0, margin + d(anchor, positive) - d(anchor, negative)).

    d(a, b) = |a - b + eps|_p is a distance over the last dimension. With ``swap`` the smaller of d(anchor, negative)
    and d(positive, negative) counts.
    Source: torch.nn.functional.triplet_margin_loss; Balntas et al., BMVC 2016.
    """
    _same_rank("triplet_margin_loss", anchor=anchor, positive=positive, negative=negative)
    near, far = fg.norm(anchor - positive + eps, p, -1), fg.norm(anchor - negative + eps, p, -1)
    if swap:
        far = fg.minimum(far, fg.norm(positive - negative + eps, p, -1))
    loss = _at_least_zero(margin + near - far)
    return reduced("triplet_margin_loss", loss, reduction, size_average, reduce)

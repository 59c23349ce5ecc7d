"""Losses over classes, with torch's names and arguments: negative log likelihood and cross entropy.

Classes lie along dimension 1 of an input [N, C, d1, ...], or are all of an input [C]; a target of class numbers is of
the input's shape without that dimension, in any integer dtype. Targets equal to ``ignore_index`` count for nothing, in
the loss and in its mean. Values are not looked at, so that nothing waits for the device: a class number out of range,
which torch refuses on a CPU, counts for nothing either. The mean of no elements is NaN.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

from ._options import floats, limited, reduced
from ._shapes import same_sizes, sizes, wrong_shape


def _class_dim(x: Any) -> int:
    return 1 if x.ndim > 1 else 0


def _check_classes(op: str, *, input: Any, target: Any, weight: Any, **others: Any) -> None:
    shape, given = sizes(input), sizes(target)
    if not shape or given is None:
        return
    dim = 1 if len(shape) > 1 else 0
    same_sizes(op, "weight", weight, (shape[dim],), "one weight a class")
    indexed = (*shape[:dim], *shape[dim + 1 :])
    if given != indexed and not (op == "cross_entropy" and given == shape):
        either = f", or {list(shape)}: probabilities" if op == "cross_entropy" else ""
        raise wrong_shape(
            op, "target", given, f"shape {list(indexed)}: a class number each{either}",
            "one target per element, without the classes' dimension",
        )  # fmt: skip


def _prepare_nll(op: str, **values: Any) -> dict[str, Any]:
    _check_classes(op, **values)
    return {}


def _prepare_cross_entropy(op: str, **values: Any) -> dict[str, Any]:
    """Options that are zero are left out of the kernel."""
    _check_classes(op, **values)
    return {name: None for name in ("label_smoothing", "z_loss") if values[name] == 0}


def _one_hot(name: str, x: fg.Tensor, target: fg.Tensor, dim: int) -> fg.Tensor:
    """Whether a class is the target's."""
    if target.dtype.is_float or target.dtype is fg.bool_:
        raise fg.DtypeError(
            f"{name}, argument target", given=str(target.dtype), expected="integers: class numbers",
            fix="cast them: target.to(torch.int64)",
        )  # fmt: skip
    if target.ndim != max(x.ndim - 1, 0):
        raise wrong_shape(
            name, "target", f"rank {target.ndim} for an input of rank {x.ndim}",
            f"rank {x.ndim - 1}: the input's shape without the classes' dimension", "pass class numbers of that shape",
        )  # fmt: skip
    return fg.index(x, dim) == fg.expand_dims(target, dim)


def _counted(x: fg.Tensor, target: fg.Tensor, ignore_index: fg.Scalar, dim: int) -> Any:
    """Whether a target is a class, and not the one to ignore."""
    return (target != ignore_index) & (target >= 0) & (target < fg.size(x, dim))


def _along(weight: fg.Tensor, x: fg.Tensor, dim: int) -> fg.Tensor:
    return fg.expand_dims(weight, tuple(range(1, x.ndim - dim)))


def weight_of_target(weight: fg.Tensor, hit: fg.Tensor, counted: Any, dim: int) -> fg.Tensor:
    """The weight of each target that counts, 0 of others."""
    return fg.where(counted, fg.sum(fg.where(hit, weight, 0), dim), 0)


def _times(weight: Any, loss: fg.Tensor) -> fg.Tensor:
    return loss if weight is None else weight * loss


def _is_zero(option: Any) -> bool:
    return option is None or (isinstance(option, (int, float)) and option == 0)


@limited(_prepare_nll, autocast="float32")
def nll_loss(
    input: fg.Tensor, target: fg.Tensor, weight: fg.Tensor = None, size_average: bool | None = None,
    ignore_index: fg.Scalar = -100, reduce: bool | None = None, reduction: str = "mean",
) -> fg.Tensor:  # fmt: skip
    """-weight[target] x[target] for log-probabilities x; "mean" divides by the sum of the weights.

    Source: torch.nn.functional.nll_loss.
    """
    x = floats("nll_loss", input)
    dim = _class_dim(x)
    hit, counted = _one_hot("nll_loss", x, target, dim), _counted(x, target, ignore_index, dim)
    loss = fg.where(counted, -fg.sum(fg.where(hit, x, 0), dim), 0)
    weight = None if weight is None else weight_of_target(_along(weight, x, dim), hit, counted, dim)
    loss = fg.cast(_times(weight, loss), x.dtype)
    return reduced("nll_loss", loss, reduction, size_average, reduce, counted if weight is None else weight)


@fg.op
def class_losses(
    name: str, x: fg.Tensor, target: fg.Tensor, weight: fg.Tensor | None, ignore_index: Any,
    label_smoothing: Any, z_loss: Any, dim: fg.Const,
) -> tuple[fg.Tensor, fg.Tensor | None]:  # fmt: skip
    """The cross entropy of each element, and what a mean over them divides by the sum of; None: by their number."""
    smoothed = not _is_zero(label_smoothing)
    top = fg.stop_gradient(fg.amax(x, dim, keepdims=True))
    spread = fg.log(fg.sum_exp(x, dim, keepdims=True))  # log(sum(exp(x))) - top
    surprise = spread - (x - top)  # -log(softmax(x))
    weight = None if weight is None else _along(weight, x, dim)
    if target.dtype.is_float and target.ndim == x.ndim:
        share = (1 - label_smoothing) * target + label_smoothing / fg.size(x, dim) if smoothed else target
        loss, counted, divisor = fg.sum(_times(weight, share * surprise), dim), True, None
    else:
        hit, counted = _one_hot(name, x, target, dim), _counted(x, target, ignore_index, dim)
        picked = fg.sum(fg.where(hit, x, 0), dim, keepdims=True)
        divisor = counted if weight is None else weight_of_target(weight, hit, counted, dim)
        loss = _times(None if weight is None else divisor, fg.sum(spread - (picked - top), dim))
        if smoothed:
            others = fg.mean(_times(weight, surprise), dim)
            loss = (1 - label_smoothing) * loss + _times(label_smoothing, others)
    if not _is_zero(z_loss):
        loss = loss + _times(z_loss, fg.square(fg.sum(top + spread, dim)))
    loss = loss if counted is True else fg.where(counted, loss, 0)
    return loss, divisor


@limited(
    _prepare_cross_entropy,
    label_smoothing=("a number from 0 to 1", lambda label_smoothing, **_: 0 <= label_smoothing <= 1),
    autocast="float32",
)
def cross_entropy(
    input: fg.Tensor, target: fg.Tensor, weight: fg.Tensor = None, size_average: bool | None = None,
    ignore_index: fg.Scalar = -100, reduce: bool | None = None, reduction: str = "mean",
    label_smoothing: float = 0.0, *, z_loss: float = 0.0, inplace_backward: bool = False,
) -> fg.Tensor:  # fmt: skip
    """-weight[target] log(softmax(x)[target]) for logits x; "mean" divides by the sum of the weights.

    With ``label_smoothing`` s the target's share is 1 - s + s / C and each other class's s / C. A float target of the
    input's shape holds probabilities: -sum(weight target log(softmax(x))) over classes, and "mean" divides by the
    number of elements without the classes' dimension. ``z_loss`` adds z_loss log(sum(exp(x)))^2 to each element's loss.

    With ``inplace_backward`` the backward writes the logits' gradient into the logits' own memory: no second tensor of
    their size exists. They must be what an op computed, in memory that nothing reads afterwards; who saved them gets
    torch's error; a second backward, or one to be differentiated, gets fusegen's. Under torch.compile, torch.func,
    forward mode and activation checkpointing the gradient is an ordinary one.

    Source: torch.nn.functional.cross_entropy; Szegedy et al., arXiv 1512.00567; z_loss: Chowdhery et al., arXiv
    2204.02311.
    """
    x = floats("cross_entropy", input)
    options = ignore_index, label_smoothing, z_loss
    loss, divisor = class_losses("cross_entropy", x, target, weight, *options, _class_dim(x))
    loss = fg.cast(loss, x.dtype)
    return reduced("cross_entropy", loss, reduction, size_average, reduce, divisor)

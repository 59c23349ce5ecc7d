"""Losses of torch that the library has not, as expressions of the language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.declare import indexing, reductions
from fusegen.declare.language import expand_dims
from fusegen.declare.torch_functions import library, pairwise_distance, torchs
from fusegen.declare.value import Like, Value, cast, current, elementwise, lift, shape_of


def _reduced(what: str, loss: Value, reduction: str, deprecated: tuple[Any, Any]) -> Value:
    """All of them, their mean, or their sum."""
    if reduction not in ("none", "mean", "sum") or deprecated != (None, None):
        raise DeclarationError(
            f"{current().where}, {what}",
            given=f"reduction={reduction!r}" if deprecated == (None, None) else "size_average or reduce",
            expected='reduction="none", "mean" or "sum"', fix="pass one of them",
        )  # fmt: skip
    return loss if reduction == "none" else getattr(reductions, reduction)(loss)


@torchs("nn.functional.multi_margin_loss")
def multi_margin_loss(
    input: Like, target: Like, p: int = 1, margin: float = 1.0, weight: Like | None = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean",
) -> Value:  # fmt: skip
    """``fg.sum(fg.relu(margin - x[t] + x) ** p, -1) / x.shape[-1]``, without the class ``t`` itself."""
    x, labels = lift(input), lift(target)
    if x.ndim == 1 and labels.ndim == 1 and labels.dims[0] is None:
        labels = Value(labels.expr, labels.dtype, ())
    if x.ndim not in (1, 2) or labels.ndim != x.ndim - 1 or p not in (1, 2):
        raise ShapeError(
            f"{current().where}, multi_margin_loss", given=f"{shape_of(x)} and {shape_of(labels)}, p={p}",
            expected="a row of numbers for each class label, and p of 1 or 2", fix="give each row one label",
        )  # fmt: skip
    places = expand_dims(labels, -1)
    own = indexing.take_along_axis(x, places, -1)
    over = library("relu")(elementwise("add", elementwise("sub", margin, own), x))
    over = elementwise("mul", over, over) if p == 2 else over
    if weight is not None:
        over = elementwise("mul", over, indexing.take(weight, places, 0))
    over = elementwise("where", elementwise("eq", reductions.index(x, -1), places), 0, over)
    loss = cast(elementwise("div", reductions.sum(over, -1), x.shape[-1]), x.dtype)
    return _reduced("multi_margin_loss", loss, reduction, (size_average, reduce))


@torchs("nn.functional.triplet_margin_with_distance_loss")
def triplet_margin_with_distance_loss(
    anchor: Like, positive: Like, negative: Like, *, distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0, swap: bool = False, reduction: str = "mean",
) -> Value:  # fmt: skip
    """``fg.ops.clamp(d(a, p) - d(a, n) + margin, min=0)``, of any distance."""
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = elementwise("minimum", far, distance(positive, negative))
    loss = library("clamp")(elementwise("add", elementwise("sub", near, far), margin), min=0)
    return _reduced("triplet_margin_with_distance_loss", loss, reduction, (None, None))

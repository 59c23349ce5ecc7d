"""Normalizations, with torch's names, arguments and defaults.

Statistics are the mean and the biased variance, in one pass over the input, without cancellation (squared deviations,
not squares); halves are computed in float32 and rounded once. ``weight`` and ``bias`` may be None and may be of a wider
dtype than the input, whose dtype the result has. A dense input's layout is kept, where torch's answer is row-major.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

from ._options import floats, limited
from ._shapes import same_sizes, trailing

# torch's rms_norm without eps: the spacing at 1 of the dtype it computes in, which for halves is float32.
SPACING, DOUBLE_SPACING = 2.0**-23, 2.0**-52


def standardized(x: fg.Tensor, axes: tuple[int, ...], eps: float) -> fg.Tensor:
    """(x - mean) rstd, with rstd = 1 / sqrt(variance + eps), both over ``axes``."""
    mean = fg.mean(x, axes, keepdims=True)
    rstd = fg.rsqrt(fg.var(x, axes, correction=0, keepdims=True) + eps)
    return (x - mean) * rstd


def scaled(y: fg.Tensor, weight: fg.Tensor | None, bias: fg.Tensor | None = None) -> fg.Tensor:
    """y weight + bias; either may be None."""
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _over_trailing(op: str, *, input: Any, normalized_shape: Any, weight: Any, **others: Any) -> dict[str, Any]:
    """Only the number of normalized dimensions shapes the kernel, so only that is handed on."""
    shape = trailing(op, input, normalized_shape)
    if None not in shape:
        same_sizes(op, "weight", weight, shape, "the normalized shape")
        own_bias = "norm_bias" if "return_sum" in others else "bias"
        same_sizes(op, own_bias, others.get(own_bias), shape, "the normalized shape")
    changed: dict[str, Any] = {"normalized_shape": (None,) * len(shape)}
    if others.get("weight_offset") == 0:
        changed["weight_offset"] = None
    return changed


def _axes(normalized_shape: fg.Const) -> tuple[int, ...]:
    return tuple(range(-len(normalized_shape), 0))


@limited(_over_trailing, autocast="float32")
def layer_norm(
    input: fg.Tensor, normalized_shape: fg.Const, weight: fg.Tensor = None, bias: fg.Tensor = None, eps: float = 1e-5
) -> fg.Tensor:
    """(x - mean) rstd weight + bias, with rstd = 1 / sqrt(variance + eps), over the trailing dimensions.

    ``normalized_shape`` are their sizes; None stands for any size, and inside another op's declaration only their
    number counts. ``weight`` and ``bias`` have that shape. Source: torch.nn.functional.layer_norm; Ba, Kiros, Hinton,
    arXiv 1607.06450.
    """
    x = floats("layer_norm", input)
    return fg.cast(scaled(standardized(x, _axes(normalized_shape), eps), weight, bias), x.dtype)


@limited(_over_trailing, autocast="float32")
def rms_norm(
    input: fg.Tensor, normalized_shape: fg.Const, weight: fg.Tensor = None, eps: float | None = None, *,
    weight_offset: float = 0.0,
) -> fg.Tensor:  # fmt: skip
    """x rrms (weight_offset + weight), with rrms = 1 / sqrt(mean(x^2) + eps), over the trailing dimensions.

    ``normalized_shape`` as layer_norm's. ``eps=None`` is 2^-23, and 2^-52 for float64. ``weight_offset=1`` is Gemma's
    (1 + weight). Source: torch.nn.functional.rms_norm; Zhang and Sennrich, arXiv 1910.07467.
    """
    x = floats("rms_norm", input)
    if eps is None:
        eps = DOUBLE_SPACING if x.dtype is fg.float64 else SPACING
    rrms = fg.rsqrt(fg.mean(x * x, _axes(normalized_shape), keepdims=True) + eps)
    weight = weight if weight is None or weight_offset is None else weight_offset + weight
    return fg.cast(scaled(x * rrms, weight), x.dtype)

"""Reductions, with torch's names, arguments and defaults.

``dim`` is an int, several, or None for all; an empty tuple is all too, but none for any and all, as in torch. Halves
accumulate in float32. The sum and the product of integers and bools are int64. A maximum or minimum over no elements is
refused, as is its position.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

from ._options import floats, limited, numbers
from ._shapes import not_empty


def _cast(input: fg.Tensor, dtype: fg.Const) -> fg.Tensor:
    return input if dtype is None else fg.cast(input, dtype)


def _all(dim: fg.Const) -> fg.Const:
    return None if dim == () or dim == [] else dim


def _something(op: str, *, input: Any, dim: fg.Const, **_: Any) -> dict[str, Any]:
    not_empty(op, input, dim)
    return {}


@fg.op(autocast="float32")
def sum(input: fg.Tensor, dim: fg.Const = None, keepdim: bool = False, *, dtype: fg.Const = None) -> fg.Tensor:
    """Sum of the elements; ``dtype``: the input is cast first. Source: torch.sum."""
    total = fg.sum(_cast(input, dtype), _all(dim), keepdim)
    return _cast(total, dtype)


@fg.op
def mean(input: fg.Tensor, dim: fg.Const = None, keepdim: bool = False, *, dtype: fg.Const = None) -> fg.Tensor:
    """Sum of the elements over their number; ``dtype``: the input is cast first. Source: torch.mean."""
    return fg.mean(floats("mean", _cast(input, dtype)), _all(dim), keepdim)


def _one(op: str, *, dim: fg.Const, **_: Any) -> dict[str, Any]:
    if dim is not None and not isinstance(dim, int):
        raise fg.DeclarationError(
            f"{op}, argument dim", given=f"dim={dim!r}", expected="one int, or None for all (as torch)",
            fix="reduce one after the other",
        )  # fmt: skip
    return {}


@limited(_one, autocast="float32")
def prod(input: fg.Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: fg.Const = None) -> fg.Tensor:
    """Product along one dimension, or of all elements; ``dtype``: the input is cast first. Source: torch.prod.

    First, second and third gradients are right for any zeros; of four in one product the fourth gradient is zero.
    """
    total = fg.prod(_cast(input, dtype), dim, keepdim)
    return _cast(total, dtype)


@limited(_something)
def amax(input: fg.Tensor, dim: fg.Const = (), keepdim: bool = False) -> fg.Tensor:
    """Largest element; NaN wins, elements that tie share the gradient evenly. Source: torch.amax."""
    return fg.amax(input, _all(dim), keepdim)


@limited(_something)
def amin(input: fg.Tensor, dim: fg.Const = (), keepdim: bool = False) -> fg.Tensor:
    """Smallest element; NaN wins, elements that tie share the gradient evenly. Source: torch.amin."""
    return fg.amin(input, _all(dim), keepdim)


@limited(_something)
def argmax(input: fg.Tensor, dim: int | None = None, keepdim: bool = False) -> fg.Tensor:
    """Position of the largest element, the first of several; NaN wins. Source: torch.argmax."""
    return fg.argmax(numbers("argmax", input), dim, keepdim)


@limited(_something)
def argmin(input: fg.Tensor, dim: int | None = None, keepdim: bool = False) -> fg.Tensor:
    """Position of the smallest element, the first of several; NaN wins. Source: torch.argmin."""
    return fg.argmin(numbers("argmin", input), dim, keepdim)


@fg.op
def any(input: fg.Tensor, dim: fg.Const = None, keepdim: bool = False) -> fg.Tensor:
    """Whether an element is not zero, NaN included: a bool, of uint8 a uint8. Source: torch.any."""
    return fg.any(input, dim, keepdim)


@fg.op
def all(input: fg.Tensor, dim: fg.Const = None, keepdim: bool = False) -> fg.Tensor:
    """Whether no element is zero: a bool, of uint8 a uint8. Source: torch.all."""
    return fg.all(input, dim, keepdim)


def _legacy(op: str, *, dim: fg.Const, unbiased: fg.Const, correction: fg.Const, **_: Any) -> dict[str, fg.Const]:
    """``unbiased`` is torch's older way to say correction=1 or 0; var(x, False) says it in place of ``dim``."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise fg.DeclarationError(
            op, given=f"unbiased={unbiased}, correction={correction}", expected="one of the two",
            fix="pass correction= alone: 1 for unbiased=True, 0 for unbiased=False",
        )  # fmt: skip
    if unbiased is not None:
        correction = 1 if unbiased else 0
    return {"dim": dim, "unbiased": None, "correction": 1 if correction is None else correction}


@limited(_legacy)
def var(
    input: fg.Tensor, dim: fg.Const = None, unbiased: fg.Const = None, keepdim: bool = False, *,
    correction: fg.Const = None,
) -> fg.Tensor:  # fmt: skip
    """sum((x - mean(x))^2) / max(n - correction, 0), correction 1 unless given; ``unbiased=False`` says 0.

    In one pass, without cancellation. Source: torch.var.
    """
    return fg.var(floats("var", input), _all(dim), correction, keepdim)


@limited(_legacy)
def std(
    input: fg.Tensor, dim: fg.Const = None, unbiased: fg.Const = None, keepdim: bool = False, *,
    correction: fg.Const = None,
) -> fg.Tensor:  # fmt: skip
    """sqrt(var(x)); no gradient flows where that is 0, as in torch. Arguments as var's. Source: torch.std."""
    return fg.std(floats("std", input), _all(dim), correction, keepdim)

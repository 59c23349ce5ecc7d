"""Small elementwise ops of torch's that other ops are built from."""

from __future__ import annotations

import fusegen as fg

from ._options import among, floats, is_tensor, numbers

INFINITY = float("inf")


@fg.op(autocast="widest")
def addcmul(input: fg.Tensor, tensor1: fg.Tensor, tensor2: fg.Tensor, *, value: fg.Scalar = 1) -> fg.Tensor:
    """input + value tensor1 tensor2; the three broadcast. Integers too. Source: torch.addcmul."""
    return input + value * _beside(tensor1, tensor2, input) * tensor2


@fg.op(autocast="widest")
def addcdiv(input: fg.Tensor, tensor1: fg.Tensor, tensor2: fg.Tensor, *, value: fg.Scalar = 1) -> fg.Tensor:
    """input + value tensor1 / tensor2; the three broadcast. Source: torch.addcdiv."""
    if not tensor1.dtype.is_float:
        floats("addcdiv", tensor2)  # torch divides no integers by integers here
    return input + value * _beside(tensor1, tensor2, input) / _beside(tensor2, tensor1, input)


def _beside(x: fg.Tensor, other: fg.Tensor, input: fg.Tensor) -> fg.Tensor:
    """Integers in the dtype of all three: a number times integers alone is float32, or int64, which would widen what
    the product is added to."""
    return x if x.dtype.is_float else x.to((input + x * other).dtype)


@fg.op
def clamp(input: fg.Tensor, min: fg.Scalar = None, max: fg.Scalar = None) -> fg.Tensor:
    """min(max(x, min), max), max winning where the bounds cross; bounds are numbers or tensors, and broadcast.

    The gradient passes where min <= x <= max, the bounds included. Source: torch.clamp.
    """
    x = _number_of("clamp", input, min, max)
    if min is None and max is None:
        raise fg.DeclarationError(
            "clamp", given="min=None and max=None", expected="at least one bound (as torch)", fix="pass min= or max="
        )
    if min is not None and max is not None:
        return fg.clamp(x, min, max)
    bounded = fg.maximum(x, min) if max is None else fg.minimum(x, max)
    if not bounded.dtype.is_float:
        return bounded
    # minimum and maximum would share a tie's gradient; clamp lets it pass to x.
    # A tensor has the other part of the gradient, where it is infinite too.
    if min is not None and is_tensor(min):
        return fg.where(x >= min, x, _or_nan(x, min))
    if max is not None and is_tensor(max):
        return fg.where(x <= max, x, _or_nan(x, max))
    return fg.clamp(x, min, INFINITY) if max is None else fg.clamp(x, -INFINITY, max)


def _or_nan(x: fg.Tensor, bound: fg.Scalar) -> fg.Tensor:
    return fg.where(fg.isnan(x), fg.stop_gradient(x), bound)


def _number_of(name: str, x: fg.Tensor, *bounds: fg.Scalar) -> fg.Tensor:
    """Truths as numbers of the dtype that they have beside bounds, as torch clamps them; no bools, which have none."""
    if x.dtype is fg.bool_:
        for bound in bounds:
            x = x if bound is None else x.to((x + bound).dtype)
    return numbers(name, x)


@fg.op
def where(condition: fg.Tensor, input: fg.Scalar, other: fg.Scalar) -> fg.Tensor:
    """``input`` where ``condition``, else ``other``; the three broadcast. Source: torch.where."""
    return fg.where(condition, input, other)


@fg.op
def masked_fill(input: fg.Tensor, mask: fg.Tensor, value: fg.Scalar) -> fg.Tensor:
    """``value`` where ``mask``, else ``input``, in the input's dtype. Source: torch.Tensor.masked_fill."""
    return fg.cast(fg.where(mask, among(value, input), input), input.dtype)


@fg.op
def minimum(input: fg.Tensor, other: fg.Tensor) -> fg.Tensor:
    """The smaller of the two; NaN wins, a tie shares the gradient. Source: torch.minimum."""
    return fg.minimum(input, other)


@fg.op
def maximum(input: fg.Tensor, other: fg.Tensor) -> fg.Tensor:
    """The larger of the two; NaN wins, a tie shares the gradient. Source: torch.maximum."""
    return fg.maximum(input, other)

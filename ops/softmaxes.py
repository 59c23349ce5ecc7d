"""Softmax and what belongs to it, with torch's names, arguments and defaults.

``dim=None`` is torch's legacy choice, without its warning: dimension 0 of a tensor of rank 0, 1 or 3, else 1. With
``dtype`` the input is cast first. A slice that is -infinity throughout gives NaN, as in torch, and so does one that
holds +infinity or NaN.
"""

from __future__ import annotations

import fusegen as fg

from ._options import floats


def _cast(name: str, input: fg.Tensor, dtype: fg.Const) -> fg.Tensor:
    return floats(name, input if dtype is None else fg.cast(input, dtype))


def _legacy(dim: int | None, rank: int) -> int:
    return dim if dim is not None else 0 if rank in (0, 1, 3) else 1


@fg.op(autocast="float32")
def softmax(input: fg.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: fg.Const | None = None) -> fg.Tensor:
    """exp(x - max(x)) / sum(exp(x - max(x))) along ``dim``. Source: torch.nn.functional.softmax."""
    x = _cast("softmax", input, dtype)
    return fg.softmax(x, _legacy(dim, x.ndim))


@fg.op(autocast="float32")
def softmin(input: fg.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: fg.Const | None = None) -> fg.Tensor:
    """softmax(-x) along ``dim``. Source: torch.nn.functional.softmin."""
    x = -_cast("softmin", input, dtype)
    return fg.softmax(x, _legacy(dim, x.ndim))


@fg.op(autocast="float32")
def log_softmax(
    input: fg.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: fg.Const | None = None
) -> fg.Tensor:
    """x - max(x) - log(sum(exp(x - max(x)))) along ``dim``. Source: torch.nn.functional.log_softmax."""
    x = _cast("log_softmax", input, dtype)
    return fg.log_softmax(x, _legacy(dim, x.ndim))


@fg.op(autocast="float32")
def logsumexp(input: fg.Tensor, dim: fg.Const, keepdim: bool = False) -> fg.Tensor:
    """log(sum(exp(x))) over ``dim``, an int or several, as max(x) + log(sum(exp(x - max(x)))); integers as floats.

    Infinite where torch's is; no gradient flows there, where torch's is NaN. Source: torch.logsumexp.
    """
    x = input if input.dtype.is_float else fg.cast(input, fg.float32)
    return fg.logsumexp(x, dim, keepdim)

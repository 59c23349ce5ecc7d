"""Running sums, products and extrema, with torch's names, arguments and defaults.

``dim`` is an int. Sums and products of integers and bools are int64. Halves are carried in float32 and rounded once.
"""

from __future__ import annotations

import fusegen as fg

from ._options import floats


@fg.op(autocast="float32")
def cumsum(input: fg.Tensor, dim: fg.Const, *, dtype: fg.Const = None) -> fg.Tensor:
    """x[0] + ... + x[i] along ``dim``; ``dtype``: the input is cast first. Source: torch.cumsum."""
    return fg.cumsum(input, dim, dtype=dtype)


@fg.op(autocast="float32")
def cumprod(input: fg.Tensor, dim: fg.Const, *, dtype: fg.Const = None) -> fg.Tensor:
    """x[0] * ... * x[i] along ``dim``; ``dtype``: the input is cast first. Source: torch.cumprod.

    Gradients of any order divide by nothing, so elements may be zero.
    """
    return fg.cumprod(input, dim, dtype=dtype)


@fg.op
def cummax(input: fg.Tensor, dim: fg.Const) -> tuple[fg.Tensor, fg.Tensor]:
    """The largest of x[0], ..., x[i] along ``dim``, and where it stands: the last of several. NaN wins.

    The gradient goes to that element. Source: torch.cummax.
    """
    values, indices = fg.cummax(input, dim)
    return values, indices


@fg.op
def cummin(input: fg.Tensor, dim: fg.Const) -> tuple[fg.Tensor, fg.Tensor]:
    """The smallest of x[0], ..., x[i] along ``dim``, and where it stands: the last of several. NaN wins.

    The gradient goes to that element. Source: torch.cummin.
    """
    values, indices = fg.cummin(input, dim)
    return values, indices


@fg.op
def logcumsumexp(input: fg.Tensor, dim: fg.Const) -> fg.Tensor:
    """log(exp(x[0]) + ... + exp(x[i])) along ``dim``, relative to the running maximum. Source: torch.logcumsumexp.

    Infinite where torch's is; no gradient flows there, where torch's is NaN.
    """
    return fg.logcumsumexp(floats("logcumsumexp", input), dim)

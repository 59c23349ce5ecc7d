"""Lengths, and angles between vectors, with torch's names, arguments and defaults."""

from __future__ import annotations

import fusegen as fg

from ._options import floats, limited
from ._shapes import not_empty

INFINITY = float("inf")


def _something(op: str, *, x: fg.Tensor, ord: float, dim: fg.Const, **_: fg.Tensor) -> dict[str, fg.Tensor]:
    """Only a sum over nothing has an answer."""
    if ord < 0 or ord == INFINITY:
        not_empty(op, x, dim)
    return {}


@limited(_something, autocast="float32")
def vector_norm(
    x: fg.Tensor, ord: fg.Const = 2, dim: fg.Const = None, keepdim: bool = False, *, dtype: fg.Const = None
) -> fg.Tensor:
    """(sum |x|^ord)^(1 / ord) over ``dim`` (None: over all).

    The largest |x| for infinity, the smallest for -infinity, the number of nonzeros for 0. ``dtype``: the input is cast
    first, to a wider one. Source: torch.linalg.vector_norm.
    """
    given = floats("vector_norm", x)
    x = given if dtype is None else floats("vector_norm", fg.cast(given, dtype))
    if x.dtype is not given.dtype and x.dtype.size <= given.dtype.size:
        raise fg.DtypeError(
            "vector_norm, option dtype", given=f"{x.dtype} for an input of {given.dtype}",
            expected="a wider dtype (as torch)", fix="cast the input yourself",
        )  # fmt: skip
    return fg.norm(x, ord, dim, keepdim)


@fg.op(autocast="float32")
def normalize(input: fg.Tensor, p: fg.Const = 2.0, dim: fg.Const = 1, eps: float = 1e-12) -> fg.Tensor:
    """x / max(|x|_p, eps), the norm over ``dim``; it has no gradient where it is less than eps.

    torch's ``out`` goes by keyword, as every op's does.

    Source: torch.nn.functional.normalize.
    """
    x = floats("normalize", input)
    length = fg.clamp(fg.norm(x, p, dim, keepdims=True), eps, INFINITY)
    return x / length


@fg.op(autocast="float32")
def cosine_similarity(x1: fg.Tensor, x2: fg.Tensor, dim: int = 1, eps: float = 1e-8) -> fg.Tensor:
    """sum(x1 x2) / (max(|x1|, eps) max(|x2|, eps)) along ``dim``; the two broadcast.

    The gradient passes the maxima unchanged. Source: torch.nn.functional.cosine_similarity.
    """
    x1, x2 = floats("cosine_similarity", x1), floats("cosine_similarity", x2)
    rank = max(x1.ndim, x2.ndim)
    x1, x2 = (fg.expand_dims(x, tuple(range(rank - x.ndim))) for x in (x1, x2))
    return fg.sum(x1 * x2, dim) / _length(x1, x2, dim, eps) / _length(x2, x1, dim, eps)


def _length(x: fg.Tensor, other: fg.Tensor, dim: int, eps: float) -> fg.Tensor:
    """max(|x|, eps) of ``x`` as long as ``other``."""
    length: fg.Tensor = fg.norm(x, 2, dim)
    if x.dims and x.dims[dim] is None:
        length = length * fg.sqrt(fg.size(other, dim))
    return length + fg.stop_gradient(fg.where(length < eps, eps - length, 0))

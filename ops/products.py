"""Matrix products with what torch adds to them. Products are the framework's own; all else is fused behind them.

A product is accumulated in float32 for half types and rounded to the dtype of its factors, as torch.matmul does.
float32 factors are rounded to TF32 where torch's settings allow it (docs/pytorch.md).
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

from ._options import floats, is_number, limited
from ._shapes import shapes


@fg.op(autocast="half")
def matmul(input: fg.Tensor, other: fg.Tensor) -> fg.Tensor:
    """input @ other over the last two dimensions, batched over those before, which broadcast.

    A tensor of one dimension is a row on the left and a column on the right. float32 is multiplied in TF32 exactly if
    torch.matmul does so: torch.backends.cuda.matmul.allow_tf32. Source: torch.matmul.
    """
    return floats("matmul", input) @ floats("matmul", other)


def _prepare(op: str, *, beta: fg.Scalar, alpha: fg.Scalar, **_: Any) -> dict[str, Any]:
    """Factors of 1 are left out: what is then a product and a bias libraries compute as one, rounded once."""
    return {name: None for name, factor in (("beta", beta), ("alpha", alpha)) if is_number(factor) and factor == 1}


@limited(_prepare, autocast="half")
def addmm(
    input: fg.Tensor, mat1: fg.Tensor, mat2: fg.Tensor, *, beta: fg.Scalar = 1, alpha: fg.Scalar = 1
) -> fg.Tensor:  # fmt: skip
    """beta input + alpha (mat1 @ mat2) for matrices; ``input`` broadcasts. What has a factor of 0 counts as 0.

    With factors of 1, a bias ``input`` [N] of half type is added before the product is rounded, as torch does. Else the
    product is rounded to the dtype of its factors first, and the result again (torch.addmm rounds once).

    Source: torch.addmm.
    """
    return _added("addmm", 2, input, mat1, mat2, beta, alpha)


@limited(_prepare, autocast="half")
def baddbmm(
    input: fg.Tensor, batch1: fg.Tensor, batch2: fg.Tensor, *, beta: fg.Scalar = 1, alpha: fg.Scalar = 1
) -> fg.Tensor:  # fmt: skip
    """beta input + alpha (batch1 @ batch2) for batches of matrices; see ``addmm``.

    Products of half types are rounded to that dtype before anything is added. Source: torch.baddbmm.
    """
    return _added("baddbmm", 3, input, batch1, batch2, beta, alpha)


def _added(
    name: str, rank: int, input: fg.Tensor, left: fg.Tensor, right: fg.Tensor, beta: fg.Scalar, alpha: fg.Scalar
) -> fg.Tensor:
    names = ("mat1", "mat2") if rank == 2 else ("batch1", "batch2")
    given = shapes(**dict(zip(names, (left, right), strict=True)))
    if left.ndim != rank or right.ndim != rank:
        raise fg.ShapeError(
            name, given=given, expected=f"two tensors of rank {rank} (as torch)",
            fix="fg.ops.matmul takes any ranks, and broadcasts",
        )  # fmt: skip
    if rank == 3 and (left.dims[0] is None) != (right.dims[0] is None):
        raise fg.ShapeError(
            name, given=given, expected="batches of one size (as torch)",
            fix="fg.ops.matmul takes any ranks, and broadcasts",
        )  # fmt: skip
    product = floats(name, left) @ floats(name, right)
    if input.ndim > rank or any(map(_wider, input.dims[::-1], product.dims[::-1])):
        raise fg.ShapeError(
            name, given=f"{shapes(input=input)} for {given}", expected="an input that broadcasts to their product",
            fix="add it outside: input + fg.ops.matmul(...)",
        )  # fmt: skip
    return _times(beta, input) + _times(alpha, product)


def _times(factor: Any, x: fg.Tensor) -> fg.Tensor:
    """factor x, and 0 where the factor is 0, whatever x is; None is 1."""
    if factor is None:
        return x
    if is_number(factor) or factor.weak:
        return fg.where(factor == 0, 0, factor * x)
    # A tensor has a gradient at 0 too: it is that of the product where x is finite.
    scaled: fg.Tensor = factor * fg.where((factor != 0) | fg.isfinite(x), x, 0)
    return scaled


def _wider(mine: Any, theirs: Any) -> bool:
    return mine is not None and theirs is None

"""What a declaration's tensors are called in annotations; tensor.pyi has their operators and methods."""

from __future__ import annotations


class Tensor:
    """A tensor, as an annotation: ``def silu(x: fg.Tensor) -> fg.Tensor``.

    Inside a declaration it is a symbolic tensor: it has operators, the functions of the language as methods, ``dtype``
    and ``ndim``, and no values yet. A caller passes tensors of PyTorch, NumPy, CuPy or JAX, or numbers.
    """

    __slots__ = ()

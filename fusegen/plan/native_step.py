"""What torch does for the native call path: products, copies, zeros (native/fusegen_native_product.h).

Apart from matmul/views, which only ops with products import: a first call imports this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusegen.core.dtypes import DType

# What closes a product that is added to its result.
ADDED = "added"


@dataclass(frozen=True)
class View:
    """Elements of a tensor, ``offset`` elements after its first; ``copied``: the shape that a copy of it gets."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    copied: tuple[int, ...] | None = None

    @property
    def turned(self) -> View:
        """Of a matrix that is no copy, its transpose."""
        return View(self.shape[::-1], self.strides[::-1], self.offset)


@dataclass(frozen=True)
class TorchStep:
    """Something that torch does for the native call path. ``closing`` says what happens behind a product of left and
    right into a result, with a bias if it is not empty; or it is "zero" or "copy", with what is written and read.

    Attributes:
        words: of a closing that is "planned" or "fused", what it is planned with (matmul/libraries/cublaslt,
            matmul/libraries/cudnn).
        keeps: what has to live as long.
    """

    names: tuple[str, ...]
    views: tuple[View, ...]
    dtype: DType
    closing: str = ""
    words: tuple[int, ...] = ()
    keeps: Any = None

"""What torch does for the native call path: products, copies, zeros (native/fusegen_native_product.h).

Apart from matmul/views, which only ops with products import: a first call imports this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fusegen.core.dtypes import DType

StepKind = Literal["zero", "copy", "", "added", "relu", "gelu", "bias", "planned", "fused"]
# The kind of a product that is added to its result.
ADDED: StepKind = "added"


@dataclass(frozen=True)
class View:
    """Elements of a tensor, ``offset`` elements after its first; ``copied``: the shape that a copy of it gets."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    copied: tuple[int, ...] | None = None

    @property
    def transposed(self) -> View:
        """Of a matrix that is no copy, its transpose."""
        return View(self.shape[::-1], self.strides[::-1], self.offset)


@dataclass(frozen=True)
class TorchStep:
    """Something that torch does for the native call path.

    Attributes:
        kind: "zero" or "copy"; or of a product: "", "added", or its epilogue: "relu", "gelu" or "bias"; or "planned" or
            "fused" where a library has planned it (matmul/libraries/cublaslt, matmul/libraries/cudnn).
        fields: the library's plan, serialized.
        keeps: objects that the plan refers to.
    """

    names: tuple[str, ...]
    views: tuple[View, ...]
    dtype: DType
    kind: StepKind = ""
    fields: tuple[int, ...] = ()
    keeps: Any = None

"""One table of dtypes: how torch, NumPy and CUDA name them, and what fusegen computes them in.

``compute`` is the dtype arithmetic happens in: half types are read, widened to float32, and rounded once on the
way out (as torch's own kernels do within one op; a fused chain rounds less often than torch's eager ops).
Promotion follows ``torch.result_type``: category (bool < integer < float) first, then dimension tensors before
0-d tensors before Python numbers inside a category.
Source: https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum


class Category(IntEnum):
    """Promotion categories, weakest first."""

    BOOL = 0
    INTEGER = 1
    FLOAT = 2


@dataclass(frozen=True)
class DType:
    """One row. ``ctype`` is the type in memory, ``compute`` the name of the dtype that arithmetic uses."""

    name: str
    short: str
    ctype: str
    size: int
    category: Category
    compute_name: str

    @property
    def compute(self) -> DType:
        return BY_NAME[self.compute_name]

    @property
    def is_float(self) -> bool:
        return self.category is Category.FLOAT

    @property
    def is_half(self) -> bool:
        """float16 or bfloat16: stored in two bytes, computed in float32."""
        return self.compute_name != self.name

    @property
    def is_floating_point(self) -> bool:
        """torch's name of ``is_float``."""
        return self.is_float

    @property
    def is_complex(self) -> bool:
        """torch's name of what no dtype here is."""
        return False

    @property
    def is_signed(self) -> bool:
        """torch's name of what holds negative numbers."""
        return self.name not in ("bool", "uint8")

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest value; of floats the infinities."""
        if self.is_float:
            return -math.inf, math.inf
        bits = 1 if self.category is Category.BOOL else 8 * self.size - self.is_signed
        return -(1 << bits) if self.is_signed else 0, (1 << bits) - 1

    def holds(self, number: float) -> bool:
        """Whether torch takes this number for an integer dtype's: negative ones of unsigned bytes count from 256."""
        if self.category is not Category.INTEGER:
            return True
        end = 1 << 8 * self.size - self.is_signed
        return -end <= number < end if self.is_signed else -end < number < end

    def wrapped(self, number: int) -> int:
        """What memory of this integer dtype holds of a number."""
        low = -1 << 8 * self.size - 1 if self.is_signed else 0
        return (number - low) % (1 << 8 * self.size) + low

    @property
    def itemsize(self) -> int:
        """torch's name of ``size``, in bytes."""
        return self.size

    def __eq__(self, other: object) -> bool:
        """Whether it is the same, or torch's dtype of the same name: ``x.dtype == torch.float32`` in a declaration."""
        if self is other:
            return True
        if isinstance(other, DType):
            return self.name == other.name
        return type(other).__module__ == "torch" and str(other) == f"torch.{self.name}"

    def __hash__(self) -> int:
        return hash(self.name)  # on every call's path: a string remembers its hash

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


_ROWS = (
    DType("bool", "b1", "bool", 1, Category.BOOL, "bool"),
    DType("uint8", "u8", "uint8_t", 1, Category.INTEGER, "uint8"),
    DType("int8", "i8", "int8_t", 1, Category.INTEGER, "int8"),
    DType("int16", "i16", "int16_t", 2, Category.INTEGER, "int16"),
    DType("int32", "i32", "int32_t", 4, Category.INTEGER, "int32"),
    DType("int64", "i64", "int64_t", 8, Category.INTEGER, "int64"),
    DType("float16", "f16", "half", 2, Category.FLOAT, "float32"),
    DType("bfloat16", "bf16", "bf16", 2, Category.FLOAT, "float32"),
    DType("float32", "f32", "float", 4, Category.FLOAT, "float32"),
    DType("float64", "f64", "double", 8, Category.FLOAT, "float64"),
)

BY_NAME: dict[str, DType] = {row.name: row for row in _ROWS}
BY_SHORT: dict[str, DType] = {row.short: row for row in _ROWS}
# What else people say: torch's other names, and those of papers and flags.
ALIASES = {
    "half": "float16", "float": "float32", "double": "float64", "fp16": "float16", "fp32": "float32", "fp64": "float64",
    "short": "int16", "int": "int32", "long": "int64",
}  # fmt: skip

bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64 = _ROWS


def _join_integers(a: DType, b: DType) -> DType:
    """Smallest integer dtype that holds both: uint8 with a signed type needs at least int16."""
    if a is b:
        return a
    wide = a if a.size >= b.size else b
    if uint8 in (a, b) and wide.size == 1:
        return int16
    return wide


def join(a: DType, b: DType) -> DType:
    """Promotion of two dtypes of equal standing (both dimension tensors), as ``torch.promote_types``."""
    if a.category is not b.category:
        return a if a.category > b.category else b
    if a.category is Category.INTEGER:
        return _join_integers(a, b)
    if {a.name, b.name} == {"float16", "bfloat16"}:
        return float32
    return a if a.size >= b.size else b


def parse(text: str) -> DType | None:
    """The dtype called ``text`` in torch/NumPy ("bfloat16", "half") or in short ("bf16"); None when there is none."""
    name = text.removeprefix("torch.")
    return BY_NAME.get(ALIASES.get(name, name)) or BY_SHORT.get(text)

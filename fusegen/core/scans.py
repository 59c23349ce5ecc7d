"""Scans: all partial results of what is combined along an axis. Reductions of kind "scan", whose result keeps the axis.

    y = scan[](scanned("sum", x, index(d)))             y[i] = x[0] + ... + x[i] along d
    y = scan[](recurrence("affine", a, b, index(d)))    y[i] = a[i] * y[i - 1] + b[i], from zero

What is combined how is part of what a scan takes, as text: "sum", "prod", "max", "min", "logaddexp" (the logarithm of
a sum of exponentials), "argmax", "argmin", "last", "affine" or "segments",
"reverse" where it begins at the last element, "exclusive" where an element's own is not in its result. A scan of
segments is a sum that begins anew where its first operand, a condition, does not hold. "argmax" has the position at
which the running maximum stands, the last of several. "last" has the element itself: exclusive, it is the one before,
and zero at the first. The position says which axis it is, so that whatever renames axes renames this one.

The family is closed: the gradient of each is elementwise arithmetic around others (derive/scans). A scan is a step of
its own (fuse/products), as a matrix product is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.ir import (
    RECURRENCE,
    SCAN,
    SCANNED,
    Call,
    Const,
    Expr,
    Index,
    Number,
    Op,
    Reduce,
    call,
    const,
    is_call,
)

# What combines elements. Recurrences have two operands.
LOGADDEXP, AFFINE, SEGMENTS, LAST = "logaddexp", "affine", "segments", "last"
FOLDS = ("sum", "prod", "max", "min", LOGADDEXP)
RECURRENCES = (AFFINE, SEGMENTS)
# Where an extremum stands, as an int64; and the extremum itself, which such a scan has on its way.
PLACES = {"argmax": "max", "argmin": "min"}


@dataclass(frozen=True)
class How:
    """What a scan does with elements, whatever they are.

    Attributes:
        combine: one of FOLDS, RECURRENCES or PLACES, or LAST.
        reverse: it begins at the last element.
        exclusive: an element's result is what stands before it.
    """

    combine: str = "sum"
    reverse: bool = False
    exclusive: bool = False

    @property
    def text(self) -> str:
        """As a node has it: ``prod reverse exclusive``."""
        return self.combine + " reverse" * self.reverse + " exclusive" * self.exclusive

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, text: str) -> How:
        """What `text` gave."""
        combine, *words = text.split()
        return cls(combine, "reverse" in words, "exclusive" in words)

    @property
    def backwards(self) -> How:
        """The same from the other end."""
        return replace(self, reverse=not self.reverse)

    @property
    def operands(self) -> int:
        """How many values it combines."""
        return 2 if self.combine in RECURRENCES else 1

    def dtype(self, value: DType) -> DType:
        """The dtype of its results, of that of the last value that it combines."""
        return dtypes.int64 if self.combine in PLACES else value

    def neutral(self, dtype: DType) -> Const:
        """What stands before the first element."""
        return const(neutral(self.combine, dtype), dtype)


SUMS = How()


def neutral(combine: str, dtype: DType) -> Number:
    """What a combination starts from."""
    if combine == "prod":
        return 1
    if combine in PLACES:
        return -1
    if combine == LOGADDEXP:
        return float("-inf")
    if combine not in ("max", "min"):
        return 0
    return dtype.limits[combine == "min"]


@dataclass(frozen=True)
class Scanned:
    """What a scan takes: values, the position along its axis, and what it does with them."""

    values: tuple[Expr, ...]
    position: Expr
    how: How

    @property
    def axis(self) -> str:
        assert isinstance(self.position, Index)
        return self.position.axis

    @property
    def expr(self) -> Call:
        """As a node."""
        function = SCANNED if self.how.operands == 1 else RECURRENCE
        dtype = self.how.dtype(self.values[-1].dtype)
        return call(function, *self.values, self.position, dtype=dtype, detail=self.how.text)

    def of(self, *values: Expr) -> Scanned:
        """The same of other values."""
        return replace(self, values=values)


def scanned(value: Expr, position: Expr, how: How) -> Call:
    """What a scan of one operand reduces."""
    return Scanned((value,), position, how).expr


def parts(expr: Expr) -> Scanned:
    """What a scan takes, apart."""
    assert is_call(expr, SCANNED, RECURRENCE) and isinstance(expr.detail, str)
    *values, position = expr.args
    return Scanned(tuple(values), position, How.of(expr.detail))


def axis_of(reduce: Reduce) -> str:
    """The axis of a scan."""
    return parts(reduce.expr).axis


def scans(op: Op) -> list[Reduce]:
    """The scans of an op."""
    return [s for s in op.statements if isinstance(s, Reduce) and s.kind == SCAN]

"""Sums of what stands before each element along an axis: reductions of kind "scan", whose result keeps the axis.

    y = scan[](scanned(x, index(d)))        y[i] = x[0] + ... + x[i] along d; with a detail of 1 x[i] + ... + x[last]

The position says which axis it is, so that whatever renames axes renames this one. Its adjoint is the sum from the
other end. A scan is a step of its own (fuse/products), as a matrix product is.
"""

from __future__ import annotations

from fusegen.core.ir import SCAN, SCANNED, Call, Expr, Index, Op, Reduce, call, is_call


def scanned(value: Expr, position: Expr, reverse: bool) -> Call:
    """What a scan reduces: the value, along the axis of a position, from the first element or from the last."""
    return call(SCANNED, value, position, dtype=value.dtype, detail=int(reverse) or None)


def parts(expr: Expr) -> tuple[Expr, Index, bool]:
    """The value, the position, and whether it begins at the last element."""
    assert is_call(expr, SCANNED)
    value, position = expr.args
    assert isinstance(position, Index)
    return value, position, bool(expr.detail)


def axis_of(reduce: Reduce) -> str:
    """The axis of a scan."""
    return parts(reduce.expr)[1].axis


def scans(op: Op) -> list[Reduce]:
    """The scans of an op."""
    return [s for s in op.statements if isinstance(s, Reduce) and s.kind == SCAN]

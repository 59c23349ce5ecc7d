"""The adjoints of scans: elementwise arithmetic around other scans, so that derivatives of any order are scans.

Let ``g`` be the cotangent of a scan's result and ``lam`` that of what goes on to the next element. All but a sum's obey

    lam[i] = g[i] + a[i + 1] * lam[i + 1]

with ``a`` the factor by which a result enters the next: a recurrence from the other end, exclusive, of which the term
is ``a * g``. A product's factors are its own elements; a maximum goes on where an element is no new maximum, which a
scan of segments says by a condition, so that an infinite cotangent is not multiplied with zero. Of an exclusive scan
the cotangents arrive one element later: then the term is ``g``, and nothing is added.

A logarithm of a sum of exponentials hands on what its last value was of it, exp(y[i] - y[i + 1]), and to an element
what that one is of it. Where it is infinite it hands on nothing.

A product's gradient is what stands before an element times what comes from behind it. It divides by nothing, so it is
right where elements are zero. A maximum's cotangent goes to the last of the elements that tie, as torch.cummax's.

What stands before an element is the result of the one before it, a scan that has the last element alone ("last"): its
kernel reads it there (fuse/scans). Places have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fusegen.core.dtypes import int64
from fusegen.core.ir import Expr, Ref, Size, const
from fusegen.core.scans import AFFINE, LAST, LOGADDEXP, PLACES, SEGMENTS, How, Scanned
from fusegen.declare.table import apply

# Makes the result of a scan.
Scan = Callable[[Scanned], Expr]
Adjoint = Callable[[], Expr]


def scan_adjoints(taken: Scanned, result: Ref, cotangent: Expr, scan: Scan) -> list[tuple[Expr, Adjoint]]:
    """For each value that a scan combines and that may have a gradient: the value, and what makes its gradient."""
    how = taken.how
    if how.combine == "sum":
        return [(taken.values[0], lambda: scan(replace(taken, values=(cotangent,), how=how.backwards)))]
    if how.combine == AFFINE:
        factor, term = taken.values

        def of_factor() -> Expr:
            return _behind(taken, AFFINE, factor, cotangent, scan) * _before(taken, result, scan)

        return [(factor, of_factor), (term, lambda: _behind(taken, AFFINE, factor, cotangent, scan))]
    if how.combine == SEGMENTS:
        goes_on, term = taken.values
        return [(term, lambda: _behind(taken, SEGMENTS, goes_on, cotangent, scan))]
    (value,) = taken.values
    if how.combine in PLACES:
        return []
    if how.combine == LAST:
        return [(value, lambda: scan(replace(taken, values=(cotangent,), how=how.backwards)))]
    if how.combine == "prod":
        return [(value, lambda: _before(taken, result, scan) * _behind(taken, AFFINE, value, cotangent, scan))]

    def to_terms() -> Expr:
        total = result if not how.exclusive else scan(replace(taken, how=replace(how, exclusive=False)))
        is_infinite, zero = apply("isinf", total), const(0, cotangent.dtype)

        def share(part: Expr) -> Expr:
            return apply("where", is_infinite, zero, apply("exp", apply("where", is_infinite, zero, part - total)))

        before = share(_before(taken, result, scan))
        return _behind(taken, AFFINE, before, cotangent, scan) * share(value)

    if how.combine == LOGADDEXP:
        return [(value, to_terms)]

    def to_winners() -> Expr:
        top = scan(replace(taken, how=replace(how, exclusive=False))) if how.exclusive else result
        is_new = apply("logical_or", apply("eq", value, top), apply("isnan", value))
        found = _behind(taken, SEGMENTS, apply("logical_not", is_new), cotangent, scan)
        return apply("where", is_new, found, const(0, found.dtype))

    return [(value, to_winners)]


def _before(taken: Scanned, result: Ref, scan: Scan) -> Expr:
    """What a scan holds before each element: what it begins with, or the result of the one before."""
    how = taken.how
    if how.exclusive:
        return result
    shifted = scan(Scanned((result,), taken.position, How(LAST, how.reverse, exclusive=True)))
    start = how.neutral(result.dtype)
    if not start.value:
        return shifted
    first = Size(taken.axis) - const(1, int64) if how.reverse else const(0, int64)
    return apply("where", apply("eq", taken.position, first), start, shifted)


def _behind(taken: Scanned, combine: str, factor: Expr, cotangent: Expr, scan: Scan) -> Expr:
    """The cotangent of what a scan holds at each element, from all results behind it.

    Args:
        combine: AFFINE, or SEGMENTS where ``factor`` is a condition.
    """
    back = How(combine, not taken.how.reverse, exclusive=True)
    if taken.how.exclusive:
        return scan(Scanned((factor, cotangent), taken.position, back))
    zero = const(0, cotangent.dtype)
    term = factor * cotangent if combine == AFFINE else apply("where", factor, cotangent, zero)
    return cotangent + scan(Scanned((factor, term), taken.position, back))

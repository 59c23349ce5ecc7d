"""One table of reductions: what each computes, starts from, and keeps while it runs.

A reduction is a fold with a state: a sum's state is the sum itself, that of a sum of squared deviations is Welford's
(count, mean, sum). States merge in any grouping, so threads, blocks and kernels can each reduce some elements; the
schedule fixes the grouping, which never depends on timing. Compositions (mean, var, norm, logsumexp, argmax, any) are
written in these by declare/reductions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Monoid:
    """One kind of reduction.

    Attributes:
        kind: its name in printed ops.
        state: the C++ template (fusegen.cuh) that holds and merges partial results; empty: the plain number, added up.
        fields: numbers of the accumulated dtype that a state has.
        result: what its result is called where the declaration has no name for it.
        partner: the kind whose result over the same elements its state also holds.
        verb: what a kernel does with its elements, for headers of generated text.
        located: its elements are pairs of a value and its place (``ir.LOCATED``); the result is the place.
    """

    kind: str
    state: str
    fields: int
    result: str
    verb: str
    partner: str = ""
    located: bool = False


_ROWS = (
    Monoid("sum", "", 1, "total", "sums"),
    # A sum of products of two factors: a matrix product, done by a library (core/products).
    Monoid("dot", "", 1, "product", "multiplies matrices"),
    # All partial results along an axis, which the result keeps: a step of its own (core/scans).
    Monoid("scan", "", 1, "running", "combines along"),
    Monoid("prod", "Product", 1, "product", "multiplies"),
    Monoid("max", "Maximum", 1, "top", "takes the maximum"),
    Monoid("min", "Minimum", 1, "bottom", "takes the minimum"),
    # Where the maximum or minimum stands, the first of several: made by fuse/argreduce of two reductions.
    Monoid("first_max", "FirstMaximum", 2, "place", "finds the maximum", located=True),
    Monoid("first_min", "FirstMinimum", 2, "place", "finds the minimum", located=True),
    # sum((x - mean(x))^2) in one pass, by Welford's update and Chan's merge (Chan, Golub, LeVeque 1983).
    Monoid("squared_deviation", "Moments", 4, "deviation", "sums squared deviations", partner="sum"),
    # sum(exp(x - max(x))) in one pass: the sum is rescaled where the maximum grows (Milakov, Gimelshein 2018) by much.
    Monoid("sum_exp", "SumExp", 3, "sum_exp", "sums exponentials relative to their maximum", partner="max"),
)

BY_KIND: dict[str, Monoid] = {row.kind: row for row in _ROWS}

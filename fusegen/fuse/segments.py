"""Sums that run over rows and along them: what each row adds is taken while the row is on chip.

The gradient of a channel's weight is a sum over images and pixels. Where a row is a channel of an image (instance
norm), its part is a sum over the row like any other, often one that the row takes anyway, and leaves as a number a row.
Where a row is several channels (group norm), it has a part for each, a *segment* of the row. Either way a small tensor
is left, and adding that up over images is a kernel like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fusegen.core.ir import Call, Expr, Reduce, Substitution
from fusegen.core.regroupable import regroupable
from fusegen.fuse.hoist import Hoist


@dataclass(frozen=True)
class RowPartials:
    """Larger sums that are begun in each row: by one partial sum a row (``per_row``), or by one for each segment of a
    row, the run of elements along the axes ``within`` (``segments``)."""

    per_row: tuple[Reduce, ...] = ()
    segments: tuple[Reduce, ...] = ()
    within: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReducedInRow:
    """What a row kernel adds up for `RowPartials`.

    Args:
        per_row, segments: sums without the factors that are the same for the whole row; each once.
        values: for each of the larger sums, its partial sum in terms of these.
    """

    per_row: tuple[Reduce, ...]
    segments: tuple[Reduce, ...]
    values: Mapping[Expr, Expr]


NO_ROW_PARTIALS = RowPartials()


def find_row_partials(sums: Iterable[Reduce], over: frozenset[str], *, segments: bool) -> RowPartials:
    """Of sums that read nothing but what a row has, those that can be begun in each row.

    Segments are those of the first sum that has any: the runs of two sums would have to be told apart.
    """
    along = [r for r in sums if frozenset(r.over) & over]
    per_row = tuple(r for r in along if over <= frozenset(r.over))
    cut = [r for r in along if r not in per_row] if segments else []
    within = frozenset(cut[0].over) & over if cut else over if per_row else frozenset()
    return RowPartials(per_row, tuple(r for r in cut if frozenset(r.over) & over == within), within)


def reduce_in_row(
    row_partials: RowPartials, rows: Sequence[Reduce], values: dict[Expr, Expr], over: Sequence[str],
    within: Sequence[str], hoist: Hoist,
) -> ReducedInRow:  # fmt: skip
    """The sums to compute in each row, besides those that ``rows`` has anyway.

    Args:
        values: what stands for sums of the row that have left a factor outside.
        over, within: the axes of a row and of a segment, in order.
    """
    known = {(r.expr, frozenset(over)): r for r in rows if r.kind == "sum"}
    added: list[Reduce] = []
    found: dict[Expr, Expr] = {}
    earlier = Substitution(values)
    for reduce in (*row_partials.per_row, *row_partials.segments):
        axes = tuple(over if reduce in row_partials.per_row else within)
        expr = earlier.of(reduce.expr)
        # A sum that the row takes anyway is read in place of another one, whatever order its factors are written in.
        along, factor = hoist.apart(expr, Call)
        if (along, frozenset(axes)) not in known:
            along, factor = hoist.apart(expr)
        taken = known.get((along, frozenset(axes)))
        if taken is None:
            taken = known[along, frozenset(axes)] = replace(reduce, expr=along, over=axes)
            added.append(taken)
        found[reduce.ref] = taken.ref if factor is None else regroupable("mul", taken.ref, factor)
    mine = {r.name for r in row_partials.segments}
    return ReducedInRow(tuple(r for r in added if r.name not in mine), tuple(r for r in added if r.name in mine), found)

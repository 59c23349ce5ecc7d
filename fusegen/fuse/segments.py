"""Sums that run over rows and along them: what each row adds is taken while the row is on chip.

The gradient of a channel's weight is a sum over images and pixels. Where a row is a channel of an image (instance
norm), its part is a sum over the row like any other, often one that the row takes anyway, and leaves as a number a row.
Where a row is several channels (group norm), it has a part for each, a *segment* of the row. Either way a small tensor
is left, and adding that up over images is a kernel like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fusegen.core.ir import Expr, Reduce, Substitution
from fusegen.fuse.hoist import Hoist


@dataclass(frozen=True)
class Parts:
    """Sums of which a row has a part: one number a row (``whole``), or one for each run of elements ``within`` which
    the sum goes on (``segments``)."""

    whole: tuple[Reduce, ...] = ()
    segments: tuple[Reduce, ...] = ()
    within: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Taken:
    """What a row kernel takes for the parts of sums.

    Args:
        whole, segments: sums without the factors that are the same for the whole row; each once.
        values: for each sum, its part in terms of these.
    """

    whole: tuple[Reduce, ...]
    segments: tuple[Reduce, ...]
    values: Mapping[Expr, Expr]


NO_PARTS = Parts()


def parts_of(sums: Iterable[Reduce], over: frozenset[str], *, segments: bool) -> Parts:
    """Of sums that need nothing but what a row has, those that a row has a part of.

    Segments are those of the first sum that has any: the runs of two sums would have to be told apart.
    """
    along = [r for r in sums if frozenset(r.over) & over]
    whole = tuple(r for r in along if over <= frozenset(r.over))
    cut = [r for r in along if r not in whole] if segments else []
    within = frozenset(cut[0].over) & over if cut else over if whole else frozenset()
    return Parts(whole, tuple(r for r in cut if frozenset(r.over) & over == within), within)


def take(
    parts: Parts, rows: Sequence[Reduce], values: dict[Expr, Expr], over: Sequence[str], within: Sequence[str],
    hoist: Hoist,
) -> Taken:  # fmt: skip
    """The sums to take beside those that ``rows`` take anyway.

    Args:
        values: what stands for sums of the row that have left a factor outside.
        over, within: the axes of a row and of a segment, in order.
    """
    known = {(r.expr, frozenset(over)): r for r in rows if r.kind == "sum"}
    added: list[Reduce] = []
    found: dict[Expr, Expr] = {}
    told = Substitution(values)
    for reduce in (*parts.whole, *parts.segments):
        axes = tuple(over if reduce in parts.whole else within)
        along, factor = hoist.apart(told.of(reduce.expr))
        taken = known.get((along, frozenset(axes)))
        if taken is None:
            taken = known[along, frozenset(axes)] = replace(reduce, expr=along, over=axes)
            added.append(taken)
        found[reduce.ref] = taken.ref if factor is None else taken.ref * factor
    mine = {r.name for r in parts.segments}
    return Taken(tuple(r for r in added if r.name not in mine), tuple(r for r in added if r.name in mine), found)

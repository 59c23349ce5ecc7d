"""Sums of one thing over more and over fewer axes read it once.

A norm with weights and a gate has ``sum[b, s](x * d_out * rstd)``, a weight's gradient, beside ``sum[s](x * d_out)``, a
gate's: two passes over the largest tensors that there are. Both are sums over ``s`` first, and what does not vary along
``s`` stays outside: ``sum[b](rstd * sum[s](x * d_out))`` reads what one pass has left, which is small.

Factors are taken out of a sum only if deriving has put them there (core/regroupable).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fusegen.core.ir import Axes, Expr, Op, Output, Reduce, Substitution, names_read
from fusegen.core.regroupable import regroupable
from fusegen.core.subexpressions import safe_name
from fusegen.fuse.hoist import Hoist
from fusegen.fuse.row_kernel import levels


@dataclass(frozen=True)
class _Term:
    """A sum as one over the common axes, times what does not vary along them, over the others.

    Attributes:
        inner: what is summed over the common axes.
        factor: what that is multiplied by; None: one.
        rest: the axes that are left to sum over.
    """

    reduce: Reduce
    inner: Expr
    factor: Expr | None
    rest: tuple[str, ...]


def nested(
    op: Op, reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]],
    wanted: Collection[str],
) -> tuple[list[Reduce], list[Output], dict[str, frozenset[str]]]:  # fmt: skip
    """The reductions and results where sums over several sets of axes are sums of sums, and the axes of what is new.

    Args:
        axes: those that what is read varies along, results of the reductions among it.
        wanted: names of results that other kernels need as they are.
    """
    found, known = list(reduces), dict(axes)
    taken = {*axes, *names_read([*reduces, *outputs]), *(thing.name for thing in (*op.statements, *op.outputs))}
    values, level = Substitution({}), levels(reduces)
    for group in _groups(reduces, Axes(axes)):
        terms = _terms(op, group, Axes(known), wanted)
        if terms is None:
            continue
        common = tuple(axis for axis in group[0].over if all(axis in reduce.over for reduce in group))
        sums: dict[Expr, Reduce] = {t.inner: t.reduce for t in terms if not t.rest and t.factor is None}
        made: list[Reduce] = []
        for term in terms:
            if term.inner not in sums:
                name = safe_name(f"{term.reduce.name}_part", taken)
                taken.add(name)
                sums[term.inner] = Reduce(name, "sum", term.inner, common)
                known[name] = Axes(known).of(term.inner) - set(common)
                made.append(sums[term.inner])
        later: dict[str, Reduce | None] = {}
        for term in terms:
            own = sums[term.inner]
            if own is term.reduce:
                continue
            whole = own.ref if term.factor is None else regroupable("mul", own.ref, term.factor)
            if term.rest:
                later[term.reduce.name] = replace(term.reduce, expr=whole, over=term.rest)
            else:
                values.put(term.reduce.ref, whole)
                later[term.reduce.name] = None
        level |= {reduce.name: level[group[0].name] for reduce in made}
        kept = [reduce for reduce in group if reduce.name not in later]
        second = [changed for reduce in group if (changed := later.get(reduce.name)) is not None]
        at, names = found.index(group[0]), {reduce.name for reduce in group}
        rest = [reduce for reduce in found[at:] if reduce.name not in names]
        needed = [reduce for reduce in rest if level[reduce.name] < level[group[0].name]]  # by later ones of the group
        rest = [reduce for reduce in rest if reduce not in needed]
        found = [*found[:at], *needed, *kept, *made, *second, *rest]
    if not values.values and found == list(reduces):
        return found, list(outputs), {}
    return (
        [replace(reduce, expr=values.of(reduce.expr)) for reduce in found],
        [replace(output, expr=values.of(output.expr)) for output in outputs],
        {name: known[name] for name in known.keys() - axes.keys()},
    )


def sharing(op: Op, reduces: Sequence[Reduce], axes: Mapping[str, frozenset[str]]) -> list[set[str]]:
    """Names of sums that read one thing, each set of which can be one pass."""
    along = Axes(axes)
    groups = _groups(reduces, along)
    return [{reduce.name for reduce in group} for group in groups if _terms(op, group, along, ()) is not None]


def _groups(reduces: Sequence[Reduce], along: Axes) -> list[list[Reduce]]:
    """Sums over several sets of axes of one space, which none of them needs another of for."""
    found: dict[tuple[int, frozenset[str]], list[Reduce]] = defaultdict(list)
    level = levels(reduces)
    for reduce in reduces:
        if reduce.kind == "sum" and reduce.expr.dtype.is_float:
            found[level[reduce.name], along.of(reduce.expr)].append(reduce)
    several = [group for group in found.values() if len({frozenset(reduce.over) for reduce in group}) > 1]
    return [group for group in several if frozenset.intersection(*(frozenset(reduce.over) for reduce in group))]


def _terms(op: Op, group: Sequence[Reduce], along: Axes, wanted: Collection[str]) -> list[_Term] | None:
    """The sums of a group, each as one of a sum over the axes that all have in common; None where one is none."""
    common = frozenset.intersection(*(frozenset(reduce.over) for reduce in group))
    hoist = Hoist.among([reduce.expr for reduce in group], along, common, rounded=op.is_half)
    terms: list[_Term] = []
    for reduce in group:
        rest = tuple(axis for axis in reduce.over if axis not in common)
        inner, factor = (reduce.expr, None) if reduce.name in wanted and not rest else hoist.apart(reduce.expr)
        left = along.of(inner) - common | (along.of(factor) if factor is not None else frozenset())
        if not common <= along.of(inner) or not left.issuperset(rest):
            return None
        terms.append(_Term(reduce, inner, factor, rest))
    return terms

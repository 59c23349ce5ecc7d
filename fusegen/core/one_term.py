"""Sums of which every result has one term at most in each place: what reads and writes at positions that tensors tell.

    sum[v](where(index(v) == place, table, 0))      a gather: table[place], zero where there is no such element
    sum[n](where(index(v) == place, update, 0))     a scatter: result[place] += update, what has no place is left out

A scatter may also keep the largest or smallest of the updates for a place, or multiply them: then what stands elsewhere
is what that reduction starts from. The place is an integer that does not vary along v. That is all that an Op has of
indexing, so derivatives, forward mode and batches need no rules of their own: the gradient of one is the other. Kernels
read such an element where they need it (fuse/gather), and a scatter is a step of its own (fuse/products).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import lru_cache
from itertools import islice

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.ir import (
    DOT,
    SCAN,
    STORED,
    Axes,
    Call,
    Const,
    Expr,
    Index,
    Op,
    Place,
    Reduce,
    call,
    const,
    is_call,
    refs,
    transform,
    walk,
)


def start(kind: str, dtype: DType) -> float:
    """What combined with anything leaves it as it is, by the kind of a reduction that scatters may be."""
    if kind in ("max", "min"):
        return dtype.limits[kind == "min"]
    return {"sum": 0, "prod": 1}[kind]


# How updates for one place may be combined.
COMBINING = ("sum", "prod", "max", "min")


def _chosen(reduce: Reduce, along: Axes) -> list[tuple[str, Expr, Expr]]:
    """Of a reduction of what stands at one place along an axis: the axis, the place, and what is reduced. Where the
    place is told by another axis' position, it is the other way round as well."""
    return [
        (axis, place, value)
        for a, b, value in _all_compared(reduce.expr, reduce.kind)
        for here, there in ((a, b), (b, a))
        for axis, place in _solved(here, there, along, value)
    ]


@lru_cache(maxsize=1024)  # every stage asks of each reduction, and those of a whole op for each of its kernels
def _all_compared(expr: Expr, kind: str) -> tuple[tuple[Expr, Expr, Expr], ...]:
    """Each two places that are compared in any way, and what is combined where they are one."""
    compared = list(_compared(expr, kind))
    known = {(a, b) for a, b, _ in compared}
    return *compared, *(_compared_in_terms(expr, known) if kind == "sum" else ())


def _compared(expr: Expr, kind: str) -> Iterator[tuple[Expr, Expr, Expr]]:
    """Each two places that are compared, and what is combined where they are one, perhaps under further conditions."""
    if kind not in COMBINING:
        return
    match expr:
        case Call("where", (condition, value, Const(elsewhere) as other)) if elsewhere == start(kind, value.dtype):
            match condition:
                case Call("eq", (a, b)) if a.dtype is dtypes.int64:
                    yield a, b, value
            for a, b, inner in _compared(value, kind):
                yield a, b, call("where", condition, inner, other, dtype=value.dtype)
        case Call("where", (condition, Const(elsewhere) as other, inside)) if elsewhere == start(kind, inside.dtype):
            for a, b, inner in _compared(inside, kind):
                yield a, b, call("where", condition, other, inner, dtype=inside.dtype)


# Nodes of an expression that are looked at for what they are zero without.
MOST_LOOKED_AT = 256


def _compared_in_terms(expr: Expr, known: Container[tuple[Expr, ...]]) -> Iterator[tuple[Expr, Expr, Expr]]:
    """The same of a sum of terms that are zero each but where two places are one: ``where(index == place, a, 0) -
    where(c, 0, where(index == place, b, 0))``, as gradients of what is selected are. But for what is ``known``."""
    for equal in sorted(_needed(expr), key=str):
        if equal.children not in known:
            yield *equal.children, _where_it_holds(expr, equal)  # type: ignore[misc]


def _needed(root: Expr) -> frozenset[Expr]:
    """The comparisons of places without any one of which an expression is zero."""
    order = list(islice(walk([root], children=_terms), MOST_LOOKED_AT + 1))
    if len(order) > MOST_LOOKED_AT:
        return frozenset()
    found: dict[Expr, frozenset[Expr] | None] = {}  # None: it is zero anyway
    for node in order:
        sides = [found[term] for term in _terms(node)]
        own: frozenset[Expr] = frozenset()
        match node:
            case Const(0):
                found[node] = None
                continue
            case Call("where", (condition, _, Const(0))):
                own = frozenset(each for each in conjuncts(condition) if is_call(each, "eq") and _of_places(each))
        known = [side for side in sides if side is not None]
        common = frozenset.intersection(*known) if known else frozenset()
        found[node] = None if sides and not known else own | common
    return found[root] or frozenset()


def _terms(node: Expr) -> tuple[Expr, ...]:
    """What an expression is zero with."""
    match node:
        case Call("where", (_, a, b)):
            return a, b
        case Call("add" | "sub" | "neg" | "cast", terms):
            return terms
    return ()


def _of_places(equal: Expr) -> bool:
    return equal.children[0].dtype is dtypes.int64


def conjuncts(condition: Expr) -> Iterator[Expr]:
    """The conditions that hold where this one does."""
    match condition:
        case Call("logical_and" | "bitwise_and", (a, b)):
            yield from conjuncts(a)
            yield from conjuncts(b)
        case _:
            yield condition


def _where_it_holds(root: Expr, condition: Expr) -> Expr:
    """An expression where a condition is known to hold."""
    true = const(1, dtypes.bool_)

    def rule(node: Expr) -> Expr:
        match node:
            case Call("logical_and" | "bitwise_and", (a, b)) if true in (a, b):
                return b if a == true else a
            case Call("where", (Const(chosen), a, b)):
                return a if chosen else b
        return true if node == condition else node

    return transform([root], rule)[root]


def _divided(value: Expr) -> dict[tuple[str, Expr, Expr], Expr]:
    """What quotients and remainders of positions are where a value is read, as the selects around it say."""
    found: dict[tuple[str, Expr, Expr], Expr] = {}
    while True:
        match value:
            case Call("where", (condition, inner, Const())):
                match condition:
                    case Call("eq", (Call("floor_divide" | "remainder" as how, (of, by)), known)):
                        found[how, of, by] = known
                    case Call("eq", (known, Call("floor_divide" | "remainder" as how, (of, by)))):
                        found[how, of, by] = known
                value = inner
            case Call("where", (_, Const(), inner)):
                value = inner
            case _:
                return found


# No place: far below all of them, so that what is added to it later, or it is multiplied by, is none either.
NOWHERE = -(2**40)


def _solved(here: Expr, place: Expr, along: Axes, value: Expr) -> list[tuple[str, Expr]]:
    """At which axis' position ``here`` is ``place``: ``here`` is a position, or a multiple of one and a number more, as
    of slices, padding, and what is turned around; or a quotient or a remainder of a position, where conditions around
    the ``value`` that is read tell the other one, as of dimensions that are seen as one."""
    known = _divided(value) if isinstance(here, Call) else {}
    while isinstance(here, Call):
        match here:
            case Call("add", (inner, Const() as by)) | Call("add", (Const() as by, inner)):
                place = _plus(place, -by.value)
            case Call("sub", (inner, Const() as by)):
                place = _plus(place, by.value)
            case Call("add", (inner, by)) | Call("add", (by, inner)) if not along.of(by):
                place = place - by
            case Call("sub", (inner, by)) if not along.of(by):
                place = place + by
            case Call("sub", (by, inner)) if not along.of(by):
                place = by - place
            case Call("neg", (inner,)):
                place = -place
            case Call("mul", (inner, Const(by))) | Call("mul", (Const(by), inner)) if by:
                step = const(by, place.dtype)
                rest = call("remainder", place, step, dtype=place.dtype)
                is_there = call("eq", rest, const(0, place.dtype), dtype=dtypes.bool_)
                quotient = call("floor_divide", place, step, dtype=place.dtype)
                place = call("where", is_there, quotient, const(NOWHERE, place.dtype), dtype=place.dtype)
            case Call("floor_divide", (inner, Const(by) as step)) if by > 0 and ("remainder", inner, step) in known:
                place = place * step + known["remainder", inner, step]
            case Call("remainder", (inner, Const(by) as step)) if by > 0 and ("floor_divide", inner, step) in known:
                place = known["floor_divide", inner, step] * step + place
            case _:
                return []
        here = inner
    return [(axis, place) for axis in _one_axis(here)]


def _plus(place: Expr, by: float) -> Expr:
    number = const(abs(by), place.dtype)
    return place + number if by > 0 else place - number


def _one_axis(here: Expr) -> tuple[str, ...]:
    if isinstance(here, Index):
        return (here.axis,)
    return here.axes if isinstance(here, Place) and len(here.axes) == 1 else ()


def gathered(
    reduce: Reduce, along: Axes, free: Container[str], walked: Container[str] | None = None, *, anywhere: bool = False
) -> tuple[str, Expr, Expr] | None:
    """Of a gather: the axis, the place, and what is read there.

    None also where the place leads to no other elements than a row has (a class's score among all of them), if
    something walks over the row: it finds it on its way.

    Args:
        along: the axes that things vary along.
        free: names of what can be read anywhere: operands and scalars.
        walked: names of what something else reads; None: of everything.
        anywhere: all that it reads is free, a row's sum that does not vary along the axis not being so.
    """
    for axis, place, value in _chosen(reduce, along):
        own, read = along.of(place), refs(value)
        tables = [ref for ref in read if not isinstance(ref, Place) and axis in along.of(ref)]
        told = (*refs(place), *(read if anywhere else tables))
        known = all(isinstance(ref, Place) or ref.name in free for ref in told)
        leads_on = not tables or bool(own - frozenset().union(*map(along.of, tables)))
        alone = walked is not None and not any(ref.name in walked for ref in tables)
        if reduce.kind == "sum" and reduce.over == (axis,) and known and axis not in own and (leads_on or alone):
            return axis, place, value
    return None


def read_elsewhere(reduce: Reduce, along: Axes) -> tuple[Expr, list[Expr]] | None:
    """Of a gather: what it adds up, and what of that it reads at the place, without what does not depend on it."""
    for axis, place, value in _chosen(reduce, along):
        if reduce.over == (axis,):
            found: list[Expr] = []
            told, left = along.of(place), [value]
            while left:
                match left.pop():
                    case Call("where", (_, inner, Const(0)) | (_, Const(0), inner)):  # its condition may be asked anew
                        left.append(inner)
                    case node if axis in along.of(node):
                        if told.isdisjoint(along.of(node)):
                            found.append(node)
                        else:
                            left += node.children
            return value, list(dict.fromkeys(found))
    return None


def of_one_term(reduce: Reduce, along: Axes) -> bool:
    """Whether it may be a gather, as far as it goes: what reads it reads an element of what it is of."""
    return reduce.kind == "sum" and any(axis in reduce.over for axis, _, _ in _chosen(reduce, along))


def scattered(reduce: Reduce, along: Axes) -> tuple[str, Expr, Expr] | None:
    """Of a scatter: the axis, the place, and what is combined there."""
    for axis, place, value in _chosen(reduce, along):
        own = along.of(place)
        if axis not in own | along.of(value) and not {axis}.intersection(reduce.over) and own.intersection(reduce.over):
            return axis, place, value
    return None


def scatters(op: Op) -> dict[str, tuple[str, Expr, Expr]]:
    """The scatters of an op, by name, with lets expanded."""
    if not any(isinstance(node, Index) for node in walk([statement.expr for statement in op.statements])):
        return {}
    return _placed(op)[1]


def reads(op: Op, *, of_rows: bool = False) -> set[str]:
    """The gathers of an op, by name, with lets expanded: of operands, of products' results, and of what is gathered.

    Args:
        of_rows: also those of an operand's row at a place that leads to no other row.
    """
    return _placed(op, of_rows)[0]


def _placed(op: Op, of_rows: bool = False) -> tuple[set[str], dict[str, tuple[str, Expr, Expr]]]:
    """The gathers and the scatters. Of several steps none leaves anything for a gather of another one."""
    reduces = op.expand()[0]
    found = _placed_among(op, reduces, of_rows, anywhere=False)
    if not found[1] and all(reduce.kind not in (DOT, SCAN, STORED) for reduce in reduces):
        return found
    return _placed_among(op, reduces, of_rows, anywhere=True)


def _placed_among(
    op: Op, reduces: list[Reduce], of_rows: bool, *, anywhere: bool
) -> tuple[set[str], dict[str, tuple[str, Expr, Expr]]]:
    along = Axes(op.axes_of())
    free = {thing.name for thing in (*op.operands, *op.scalars)}
    multiplied = {reduce.name for reduce in reduces if reduce.kind in (DOT, STORED)}
    walked = {thing.name for thing in (*(() if of_rows else op.operands), *reduces)} - multiplied  # which are stored
    free |= multiplied
    read, added = set[str](), dict[str, tuple[str, Expr, Expr]]()
    for reduce in reduces:
        is_read = gathered(reduce, along, free, walked, anywhere=anywhere) is not None
        scatter = None if is_read and _is_told_by_positions(reduce, along) else scattered(reduce, along)
        if scatter is not None:
            added[reduce.name] = scatter
        elif is_read:
            read.add(reduce.name)
            free.add(reduce.name)
    return read, added


def _is_told_by_positions(reduce: Reduce, along: Axes) -> bool:
    """Whether reading along one axis is writing along another: any kernel reads, and to write is a step of its own."""
    return len(_chosen(reduce, along)) > 1

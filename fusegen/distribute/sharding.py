"""How an op spreads over processes, read off its axes. Knows neither torch nor processes; pytorch/library/dtensor.py
has both.

One dimension of a mesh of processes is looked at at a time. Along it a tensor is the same in every process
(``Replicate``), cut into consecutive shards along a dimension (``Shard``), or the sum (mean, maximum, minimum) of what
the processes have (``Partial``). If an axis is cut, every operand that has it must be cut there, and

* an operand that lacks it is replicated: it is broadcast,
* an output that has it is cut there,
* an output that is reduced over it is partial; so it stays under what is linear (a scale, a sum over other axes).

A matrix product is a sum over what it contracts. An axis whose reductions feed anything else (softmax, a variance)
cannot be cut in one go, only in stages (distribute/stages). Without a cut, a partial operand may stay partial if every
output is linear in it.

Numbers of elements and positions are those of the whole tensor also where a process has a shard: ``localized`` turns
them into numbers that are handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fusegen.core import dtypes
from fusegen.core.casts import is_from_float
from fusegen.core.ir import (
    SCAN,
    Call,
    Const,
    Expr,
    Factor,
    Index,
    Op,
    Operand,
    Output,
    Reduce,
    Ref,
    Scalar,
    Size,
    Statement,
    own_size,
    transform,
    walk,
)
from fusegen.core.products import KIND as DOT
from fusegen.core.products import factors, products
from fusegen.core.scans import axis_of
from fusegen.core.subexpressions import safe_name
from fusegen.core.views import dims_of


@dataclass(frozen=True)
class Replicate:
    """The same in every process."""


@dataclass(frozen=True)
class Shard:
    """Cut along dimension ``dim``, in shards of ceil(size / processes) elements as long as there are any."""

    dim: int


@dataclass(frozen=True)
class Partial:
    """To be reduced over the processes by ``kind``: "sum", "avg", "max" or "min"."""

    kind: str


@dataclass(frozen=True)
class Other:
    """Laid out in a way that is not known here; to be replicated."""


Placement = Replicate | Shard | Partial | Other
REPLICATE = Replicate()
LINEAR = ("sum", "avg")


# -- one axis -------------------------------------------------------------------------------------------------------


Cut = frozenset[str]
"""Axes that are cut at the same places: one, and those that matrix products contract with it."""
UNCUT: Cut = frozenset()


def tied(op: Op, axis: str) -> Cut:
    """What is cut if ``axis`` is: the sides of a matrix product have names of their own for what it contracts."""
    pairs = [pair for reduce in products(op) for factor in factors(reduce) for pair in factor.renames]
    found = {axis}
    while more := {name for pair in pairs if found & set(pair) for name in pair} - found:
        found |= more
    return frozenset(found)


def cut(things: Iterable[Operand | Output], axes: Cut) -> dict[str, Placement] | None:
    """Where tensors are cut, or must be replicated, if ``axes`` are cut; None if they cannot be: packed, in groups,
    twice in a tensor, not in all parts of one, or of a size that the declaration says."""
    if any(own_size(axis) is not None for axis in axes):
        return None
    found: dict[str, Placement] = {}
    for thing in things:
        dims = [dim for dim, name in zip(dims_of(thing), thing.shape, strict=True) if name in axes]
        made = {*(groups.dim for groups in thing.groups), *([thing.packed.dim] if thing.packed else [])}
        if len(dims) > 1 or made.intersection(dims):
            return None
        place = Shard(dims[0]) if dims else REPLICATE
        if found.setdefault(thing.base, place) != place:
            return None
    return found


def results(op: Op, axes: Cut, partial: Mapping[str, str] | None = None) -> dict[str, Placement] | None:
    """Placements of the results if ``axes`` are cut and the arguments ``partial`` are partial (by kind).

    Returns:
        None if that would compute something else.
    """
    places = cut(op.outputs, axes)
    if places is None or cut(op.operands, axes) is None:
        return None
    known = Meaning(op, axes, partial or {})
    for statement in op.statements:
        known.define(statement)
    found: dict[str, Placement] = {}
    for output in op.outputs:
        kind = known.of(output.expr)
        if kind is None or (kind and axes & set(output.shape)):
            return None
        place = Partial(kind) if kind else places[output.base]
        if found.setdefault(output.base, place) != place:
            return None
    return found


class Meaning:
    """What each name holds: "" a value that is right as it is, "sum" one that is right when added up over the
    processes (and so on), None neither.

    Args:
        all_reduced: reductions over ``cut`` whose results the processes have reduced among all of them.
    """

    def __init__(self, op: Op, cut: Cut, partial: Mapping[str, str], all_reduced: Collection[str] = ()) -> None:
        self.cut, self.all_reduced = cut, all_reduced
        self.axes = op.axes_of()
        self.states: dict[str, str | None] = {scalar.name: "" for scalar in op.scalars}
        self.states.update({operand.name: partial.get(operand.base, "") for operand in op.operands})

    def define(self, statement: Statement) -> None:
        """Note what a statement's name holds."""
        state = self.of(statement.expr)
        if isinstance(statement, Reduce) and state is not None:
            state = self._reduced(statement, state)
            if state and statement.name in self.all_reduced:
                state = ""
        self.states[statement.name] = state

    def _reduced(self, reduce: Reduce, state: str) -> str | None:
        if reduce.kind == SCAN and axis_of(reduce) in self.cut:
            return None
        kind = "sum" if reduce.kind == DOT else reduce.kind
        if state:
            return state if (kind == "sum" and state in LINEAR) or kind == state else None
        if not self.cut & set(reduce.over):
            return ""
        ordered = kind in ("max", "min") and reduce.expr.dtype is not dtypes.bool_
        return kind if kind == "sum" or ordered else None

    def of(self, expr: Expr) -> str | None:
        """What an expression holds."""
        found: dict[Expr, str | None] = {}
        along: dict[Expr, Cut] = {}
        for node in walk([expr]):
            along[node] = self._along(node, along)
            if len(along[node]) > 1:  # of two cut axes a process has shards that meet, and shards that never do
                found[node] = None
            elif isinstance(node, Ref):
                found[node] = self.states[node.name]
            elif isinstance(node, Call):
                found[node] = self._call(node, [found[a] for a in node.args], [along[a] for a in node.args])
            else:
                found[node] = ""
        return found[expr]

    def _along(self, node: Expr, along: Mapping[Expr, Cut]) -> Cut:
        """The cut axes that an expression varies along."""
        if isinstance(node, Ref):
            return self.axes[node.name] & self.cut
        if isinstance(node, Index):
            return self.cut & {node.axis}
        found = UNCUT.union(*(along[child] for child in node.children))
        return frozenset(map(node.name_of, found)) if isinstance(node, Factor) else found

    def _call(self, node: Call, states: list[str | None], along: list[Cut]) -> str | None:
        if None in states:
            return None
        kinds = {state for state in states if state}
        if not kinds:
            return ""
        # A partial value belongs to no shard, so what it meets must be the same in every process.
        same = all(state or not axes for state, axes in zip(states, along, strict=True))
        rule = _RULES.get(node.function)
        if rule is None or not same or len(kinds) > 1:
            return None
        (kind,) = kinds
        if is_from_float(node):
            return None
        return kind if rule(kind, [bool(state) for state in states], node.args) else None


# Whether f of values, of which some are partial, is partial in the same way: (kind, which are, arguments) -> bool.
_RULES: dict[str, Callable[[str, list[bool], Sequence[Expr]], bool]] = {
    "neg": lambda kind, which, args: kind in LINEAR,
    "cast": lambda kind, which, args: True,
    "stop_gradient": lambda kind, which, args: True,
    "factor": lambda kind, which, args: kind in LINEAR,
    "add": lambda kind, which, args: kind in LINEAR if all(which) else kind != "sum",
    "sub": lambda kind, which, args: kind in LINEAR if all(which) else kind == "avg" or (kind != "sum" and which[0]),
    "mul": lambda kind, which, args: kind in LINEAR and not all(which),
    "div": lambda kind, which, args: kind in LINEAR and not which[1],
    "where": lambda kind, which, args: kind in LINEAR and not which[0] and all(map(_is_partial_or_zero, which, args)),
}


def _is_partial_or_zero(is_partial: bool, branch: Expr) -> bool:
    return is_partial or branch.dtype is dtypes.bool_ or (isinstance(branch, Const) and branch.value == 0)


# -- the op that each process runs ----------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def uses_positions(op: Op, axes: Cut) -> bool:
    """Whether the op asks for positions along one of these axes."""
    nodes = walk([item.expr for item in (*op.statements, *op.outputs)])
    return any(isinstance(node, Index) and node.axis in axes for node in nodes)


def numbers(op: Op, axes: Sequence[str]) -> list[tuple[str, str]]:
    """What ``localized`` hands over: ("size" or "offset", axis). Nothing else tells sizes of axes that it lacks."""
    nodes = set(walk([item.expr for item in (*op.statements, *op.outputs)]))
    untold = {node.axis for node in nodes if isinstance(node, Size)} - {*op.axes, *axes}
    kinds: list[tuple[str, type[Size] | type[Index]]] = [("size", Size), ("offset", Index)]
    return [(kind, axis) for axis in (*axes, *sorted(untold)) for kind, node in kinds if node(axis) in nodes]


def localized(op: Op, axes: Sequence[str]) -> Op:
    """The op of one process, which has a shard of ``axes``.

    Sizes of these axes, and where the shard begins, are scalars behind the op's own, in the order of ``numbers``.
    """
    taken = {thing.name for thing in (*op.operands, *op.scalars, *op.statements, *op.outputs)}
    scalars: dict[tuple[str, str], Scalar] = {}
    for kind, axis in numbers(op, axes):
        scalars[kind, axis] = Scalar(safe_name(f"{kind}_{axis}", taken), dtypes.int64)
        taken.add(scalars[kind, axis].name)

    def rule(node: Expr) -> Expr:
        if isinstance(node, Size) and ("size", node.axis) in scalars:
            return scalars["size", node.axis].ref
        if isinstance(node, Index) and ("offset", node.axis) in scalars:
            return node + scalars["offset", node.axis].ref
        return node

    def rewritten(expr: Expr) -> Expr:
        return transform([expr], rule)[expr]

    return replace(
        op,
        scalars=(*op.scalars, *scalars.values()),
        statements=tuple(replace(s, expr=rewritten(s.expr)) for s in op.statements),
        outputs=tuple(replace(o, expr=rewritten(o.expr)) for o in op.outputs),
    )


def local_shard(size: int, cuts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """(elements, first one) of a process's shard of ``size`` elements that are cut once for each (processes, place)."""
    first = 0
    for count, place in cuts:
        step = -(-size // count)
        start = min(size, step * place)
        first, size = first + start, min(size - start, step)
    return size, first

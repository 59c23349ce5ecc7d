"""What an op computes and stores before it is read at other places.

A value that is read at other places than its own (slices, shifts, padding: gathers of what is computed) is computed
where it is read, once for each place: a step of a stencil is a few operations more. Several steps, each of the one
before, have as many ways to an element as they have together: ``x = tanh(x + c * (x[1:] + x[:-1]))``, four times, is a
thousand operations for each result, and its gradient many thousands. So what has grown long is computed once and
stored, and what reads it is another step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from functools import lru_cache

from fusegen.core.ir import (
    STORED,
    Axes,
    Call,
    Expr,
    Factor,
    Index,
    Op,
    Operand,
    Output,
    Reduce,
    Ref,
    Substitution,
    Tensorlike,
    axis_order,
    call,
    refs,
    walk,
)
from fusegen.core.one_term import read_elsewhere, reads, scatters
from fusegen.core.products import products
from fusegen.core.scans import scans
from fusegen.core.subexpressions import introduce_lets, live_reduces, safe_name
from fusegen.fuse.group import prepared
from fusegen.fuse.kernel import Gathered
from fusegen.fuse.work import work_of_op

# Parts of an expression, each counted as often as there are ways to it, that is computed again for each place at which
# it is read, in an op of one kernel. What is longer takes too long to derive and to compile, whatever it costs to run.
MOST_PARTS = 8192
# The same in an op of several kernels, of which the cheapest is taken.
MOST_PARTS_BETWEEN = (64, 16)
# Instructions in which a GPU moves a byte (an H200: 132 SMs issue 128 at 1.75 GHz, and its memory moves 4.3 TB/s): to
# store a float and to read it again costs as much as some fifty.
INSTRUCTIONS_PER_BYTE = 7
# Instructions that take as long as reading one element at another place, which the first cache mostly has.
READ = 5
# Of the costs of one kernel: what is counted is not exact, so that several have to be clearly cheaper.
CLEARLY = 0.8
# Elements along every axis of an op whose costs are compared: what matters is what varies along which of them.
_SIZE = 64


def stores_values(op: Op) -> bool:
    """Whether any value is stored."""
    return any(isinstance(s, Reduce) and s.kind == STORED for s in with_stored_values(op).statements)


@lru_cache(maxsize=256)
def with_stored_values(op: Op) -> Op:
    """``op`` with a reduction over no axis, of the kind `STORED`, for each value that is stored."""
    if not any(isinstance(node, Index) for node in walk([statement.expr for statement in op.statements])):
        return op
    gathers = reads(op, of_rows=True)
    # A gather of a row's sum as well would be none among several steps.
    several = [
        found
        for found in dict.fromkeys(_storing(op, gathers, most) for most in MOST_PARTS_BETWEEN if gathers)
        if found is not op and gathers <= reads(found, of_rows=True)
    ]
    if not several:
        return op
    is_too_long = _storing(op, gathers, MOST_PARTS) is not op
    if not is_too_long and (products(op) or scans(op) or scatters(op)):
        return op
    costs = {found: _cost(found) for found in several}
    best = min(several, key=costs.__getitem__)
    return best if is_too_long or costs[best] < CLEARLY * _cost(op) else op


def _cost(op: Op) -> float:
    """Instructions of an op's kernels, each of which waits for the longer of its arithmetic and its memory."""
    reduces, outputs = op.expand()
    level: dict[str, int] = {}
    kept: dict[int, list[Output]] = {}
    operands = dict[str, Operand]()
    axes = op.axes_of()
    for reduce in reduces:
        mine = max((level.get(ref.name, 0) for ref in refs(reduce.expr)), default=0)
        level[reduce.name] = mine + (reduce.kind == STORED)
        if reduce.kind == STORED:
            factor = reduce.expr.children[0]
            shape = tuple(sorted(axes[reduce.name], key=axis_order))
            operands[reduce.name] = Operand(reduce.name, factor.dtype, shape)
            kept.setdefault(mine, []).append(Output(f"{reduce.name}_out", factor.children[0], factor.dtype, shape))
    for output in outputs:
        mine = max((level.get(ref.name, 0) for ref in refs(output.expr)), default=0)
        kept.setdefault(mine, []).append(output)
    statements = [reduce for reduce in reduces if reduce.kind != STORED]
    cut = replace(op, operands=(*op.operands, *operands.values()))
    return sum(_cost_of_kernels(cut.with_statements(live_reduces(statements, step), step)) for step in kept.values())


def _cost_of_kernels(op: Op) -> float:
    read, reduces, outputs, axes = prepared(op)
    sizes = dict.fromkeys({axis for of in axes.values() for axis in of}, _SIZE)
    needed = {ref.name for ref in refs(*(item.expr for item in (*reduces, *outputs)))}
    tensors, elsewhere = dict[str, Tensorlike](), 0
    for operand in read.operands:
        if operand.name in needed:
            if isinstance(operand, Gathered):
                elsewhere += READ * _elements(axes[operand.name])
            while isinstance(operand, Gathered):
                operand = operand.table
            tensors[operand.base] = operand
    written = {(output.expr, output.dtype): output for output in outputs}  # a result that is stored is stored once
    things = (*tensors.values(), *written.values())
    moved = sum(thing.dtype.size * _elements(filter(None, thing.shape)) for thing in things)
    return max(work_of_op(op, sizes).issued + elsewhere, INSTRUCTIONS_PER_BYTE * moved)


def _elements(axes: Iterable[str]) -> int:
    return int(_SIZE ** len(set(axes)))


def _storing(op: Op, gathers: Set[str], most: int) -> Op:
    """``op`` with such a reduction for each value of more parts that its gathers read."""
    reduces, outputs = op.expand()
    along, names = Axes(op.axes_of()), op.names()
    taken = {thing.name for thing in (*op.operands, *op.scalars, *op.statements, *op.outputs)}
    values, parts = Substitution({}), dict[str, int]()
    made: list[Reduce] = []
    for reduce in reduces:
        found = read_elsewhere(reduce, along) if reduce.name in gathers else None
        if found is not None:
            for value in found[1]:
                expr = values.of(value)
                if isinstance(expr, Call) and _parts(expr, parts) > most:
                    name = safe_name(names.get(value, "stored"), taken)
                    taken.add(name)
                    made.append(Reduce(name, STORED, call(STORED, Factor(expr, expr.dtype), dtype=expr.dtype), ()))
                    values.put(value, made[-1].ref)
            parts[reduce.name] = _parts(values.of(found[0]), parts)
        made.append(replace(reduce, expr=values.of(reduce.expr)))
    if len(made) == len(reduces):
        return op
    stored: dict[Expr, Expr] = {r.ref: r.expr.children[0].children[0] for r in made if r.kind == STORED}
    outputs = [replace(o, expr=stored.get(values.of(o.expr), values.of(o.expr))) for o in outputs]
    called = {values.of(expr): name for expr, name in names.items() if expr not in values.values}
    return op.with_statements(*introduce_lets(made, outputs, called, taken))


def _parts(expr: Expr, parts: Mapping[str, int]) -> int:
    """The parts of an expression and of what it reads elsewhere, which is computed for it."""
    return sum(parts.get(node.name, 1) if isinstance(node, Ref) else 1 for node in walk([expr]))

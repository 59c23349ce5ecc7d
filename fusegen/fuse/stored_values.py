"""What an op computes and stores before it is read at other places.

A value that is read at other places than its own (slices, shifts, padding: gathers of what is computed) is computed
where it is read, once for each place: a step of a stencil is a few operations more. Several steps, each of the one
before, have as many ways to an element as they have together: ``x = tanh(x + c * (x[1:] + x[:-1]))``, four times, is a
thousand operations for each result, and its gradient many thousands. So what has grown long is computed once and
stored, and what reads it is another step.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from functools import lru_cache

from fusegen.core.ir import STORED, Axes, Call, Expr, Factor, Index, Op, Reduce, Ref, Substitution, call, walk
from fusegen.core.one_term import read_elsewhere, reads, scatters
from fusegen.core.products import products
from fusegen.core.scans import scans
from fusegen.core.subexpressions import introduce_lets, safe_name
from fusegen.fuse.group import prepared

# Parts of an expression, each counted as often as there are ways to it, that is computed again for each place at which
# it is read, in an op of one kernel.
MOST_PARTS = 8192
# The same in an op of several kernels: to store an element and to read it costs as much as some fifty operations.
MOST_PARTS_BETWEEN = 64
# From so many parts on it is asked how many operations there are: places that lead back to one element share them.
# Along one dimension nearly all of them do, along two many do not.
PARTS_TO_COUNT = 256
MOST_OPERATIONS = 1536


def stores_values(op: Op) -> bool:
    """Whether any value is stored."""
    return any(isinstance(s, Reduce) and s.kind == STORED for s in with_stored_values(op).statements)


@lru_cache(maxsize=256)
def with_stored_values(op: Op) -> Op:
    """``op`` with a reduction over no axis, of the kind `STORED`, for each value that is stored."""
    if not any(isinstance(node, Index) for node in walk([statement.expr for statement in op.statements])):
        return op
    gathers = reads(op, of_rows=True)
    if not gathers or not _is_long(op, gathers):
        return op
    found = _storing(op, gathers, MOST_PARTS_BETWEEN)
    # A gather of a row's sum as well would be none among several steps.
    return found if gathers <= reads(found, of_rows=True) else op


def _is_long(op: Op, gathers: Set[str]) -> bool:
    """Whether its gathers read too much that is computed for them."""
    if _storing(op, gathers, MOST_PARTS) is not op:
        return True
    is_cut = bool(products(op) or scans(op) or scatters(op))
    if is_cut or _storing(op, gathers, PARTS_TO_COUNT) is op:
        return False
    _, reduces, outputs, _ = prepared(op)
    return sum(1 for _ in walk([item.expr for item in (*reduces, *outputs)])) > MOST_OPERATIONS


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

"""An op over cut axes in stages: where what a reduction found feeds anything but sums, every process must have it.

Each stage reduces the shards; between stages the processes add up (or take the maximum of) what they found, which is
small; the last stage does the rest. Coupled reductions become plain ones first: a sum of squared deviations takes the
mean, a sum of exponentials the maximum, from an earlier stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from fusegen.core.casts import converted
from fusegen.core.ir import (
    Expr,
    Op,
    Operand,
    Output,
    Reduce,
    Size,
    Statement,
    axis_order,
    const,
    names_read,
    refs,
    substitute,
)
from fusegen.core.subexpressions import safe_name
from fusegen.declare.table import apply
from fusegen.distribute.sharding import Cut, Meaning, cut


@lru_cache(maxsize=4096)
def staged(op: Op, axes: Cut) -> tuple[Op, ...]:
    """The stages of ``op`` with ``axes`` cut; () if there are none: it needs none, or they would not help.

    Results that are ready early are results of an early stage. Reductions that later stages read are results too, under
    names that no result of the op has.
    """
    if cut(op.operands, axes) is None or cut(op.outputs, axes) is None:
        return ()
    op = _uncoupled(op, axes)
    wanted = _to_all_reduce(op, axes)
    if not wanted:
        return ()
    ready: dict[str, int] = {thing.name: 0 for thing in (*op.operands, *op.scalars)}
    taken = {thing.name for thing in (*op.operands, *op.scalars, *op.statements, *op.outputs)}
    known = op.axes_of()
    all_reduced: dict[str, Operand] = {}
    for statement in op.statements:
        ready[statement.name] = _ready(statement.expr, ready) + (statement.name in wanted)
        if statement.name in wanted:
            name = safe_name(f"part_{statement.name}", taken)
            taken.add(name)
            shape = tuple(sorted(known[statement.name], key=axis_order))
            all_reduced[statement.name] = Operand(name, statement.expr.dtype, shape)
    count = 1 + max(_ready(output.expr, ready) for output in op.outputs)
    return tuple(_stage(op, i, ready, all_reduced) for i in range(count))


def _ready(expr: Expr, ready: Mapping[str, int]) -> int:
    """The first stage in which everything that an expression reads is there."""
    return max((ready[ref.name] for ref in refs(expr)), default=0)


def _stage(op: Op, number: int, ready: Mapping[str, int], all_reduced: Mapping[str, Operand]) -> Op:
    """The stage ``number``: results that are ready in it, and reductions for the next ones."""
    early: dict[Expr, Expr] = {
        s.ref: all_reduced[s.name].ref for s in op.statements if s.name in all_reduced and ready[s.name] <= number
    }
    outputs = []
    for statement in op.statements:
        if statement.name in all_reduced and ready[statement.name] == number + 1:
            kept = all_reduced[statement.name]
            outputs.append(Output(kept.name, statement.ref, kept.dtype, kept.shape))
    stage_of: dict[str, int] = {}
    for output in op.outputs:
        base = output.base
        stage_of[base] = max(stage_of.get(base, 0), _ready(output.expr, ready))
    outputs += [o for o in op.outputs if stage_of[o.base] == number]
    outputs = [replace(o, expr=substitute(o.expr, early)) for o in outputs]
    needed = names_read(outputs)
    statements: list[Statement] = []
    for statement in reversed(op.statements):
        if statement.name in needed:
            statement = replace(statement, expr=substitute(statement.expr, early))
            needed |= names_read([statement])
            statements.append(statement)
    operands = [o for o in (*op.operands, *all_reduced.values()) if o.name in needed] or list(op.operands[:1])
    scalars = tuple(s for s in op.scalars if s.name in needed)
    return replace(
        op, operands=tuple(operands), scalars=scalars, statements=tuple(reversed(statements)), outputs=tuple(outputs),
        result="tuple",
    )  # fmt: skip


def _to_all_reduce(op: Op, axes: Cut) -> set[str]:
    """Reductions over ``axes`` that every process must have before it can go on; none if that does not help."""
    wanted: set[str] = set()
    while True:
        meaning = Meaning(op, axes, {}, wanted)
        for item in (*op.statements, *op.outputs):
            if isinstance(item, Output):
                state = meaning.of(item.expr)
                wrong = state is None or bool(state and axes & set(item.shape))
            else:
                meaning.define(item)
                wrong = meaning.states[item.name] is None
            if wrong:
                found = _partial_reductions(op, axes, item.expr, meaning)
                if not found:
                    return set()
                wanted |= found
                break
        else:
            return wanted


def _partial_reductions(op: Op, axes: Cut, expr: Expr, meaning: Meaning) -> set[str]:
    """The reductions over ``axes`` that make ``expr`` partial."""
    by_name = {statement.name: statement for statement in op.statements}
    found: set[str] = set()
    stack = [expr]
    while stack:
        for ref in refs(stack.pop()):
            statement = by_name.get(ref.name)
            if statement is None or not meaning.states[ref.name]:
                continue
            if isinstance(statement, Reduce) and axes & set(statement.over):
                found.add(ref.name)
            else:
                stack.append(statement.expr)
    return found


# -- coupled reductions -----------------------------------------------------------------------------------------------


def _uncoupled(op: Op, axes: Cut) -> Op:
    """``op`` whose coupled reductions over ``axes`` are plain sums of what refers to an earlier reduction."""
    taken = {thing.name for thing in (*op.operands, *op.scalars, *op.statements, *op.outputs)}
    statements: list[Statement] = []

    def earlier(kind: str, like: Reduce) -> Expr:
        for statement in statements:
            if isinstance(statement, Reduce) and (statement.kind, statement.expr, statement.over) == (
                kind, like.expr, like.over,
            ):  # fmt: skip
                return statement.ref
        made = Reduce(safe_name(f"{kind}_{like.name}", taken), kind, like.expr, like.over)
        taken.add(made.name)
        statements.append(made)
        return made.ref

    for statement in op.statements:
        if isinstance(statement, Reduce) and axes & set(statement.over):
            if statement.kind == "squared_deviation":
                centered = statement.expr - earlier("sum", statement) / _count(statement)
                statement = replace(statement, kind="sum", expr=centered * centered)
            elif statement.kind == "sum_exp":
                statement = replace(statement, kind="sum", expr=_relative(statement.expr, earlier("max", statement)))
        statements.append(statement)
    return op.with_statements(statements, op.outputs)


def _count(reduce: Reduce) -> Expr:
    total: Expr | None = None
    for axis in reduce.over:
        total = Size(axis) if total is None else total * Size(axis)
    assert total is not None
    return converted(total, reduce.expr.dtype)


def _relative(x: Expr, maximum: Expr) -> Expr:
    """exp(x - maximum), and 0 for minus infinity, also where the maximum is minus infinity."""
    nothing = apply("eq", x, const(float("-inf"), x.dtype))
    return apply("where", nothing, const(0, x.dtype), apply("exp", x - apply("stop_gradient", maximum)))

"""The backward of a softmax in terms of its result, which the forward has written anyway.

With p = e / s, e the exponentials and s their sum: where the backward reads p, it need not compute e, which is p * s;
and what is left of s cancels: d_x = p * (d_p - sum(p * d_p)). That is what torch's derivative reads too. Where s does
not cancel, something reads e by itself, and p, which may have been rounded to zero, does not stand in for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fusegen.core.ir import (
    Call,
    Expr,
    Op,
    Output,
    Reduce,
    Ref,
    Rewriting,
    Substitution,
    expr_axes,
    is_call,
)
from fusegen.core.regroupable import regroupable


def sums_of_exponentials(op: Op) -> frozenset[Ref]:
    """What an op's expressions call a sum of exponentials relative to their maximum: neither zero nor infinite.

    Also where it is written out, as the sum of ``exp(x - m)``, with a maximum that counts as a constant
    (derive/invariance).
    """
    reduces, _ = op.expand()
    elements: dict[Expr, tuple[Expr, tuple[str, ...]]] = {r.ref: (r.expr, r.over) for r in reduces if r.kind == "max"}
    found = [reduce.ref for reduce in reduces if reduce.kind == "sum_exp"]
    for reduce in reduces:
        match reduce.kind, reduce.expr:
            case "sum", Call("exp", (Call("sub", (x, Call("stop_gradient", (m,)))),)):
                found += [reduce.ref] if elements.get(m) == (x, reduce.over) else []
    return frozenset(found)


def is_softmax(expr: Expr, sums: frozenset[Ref]) -> bool:
    """Whether it is something divided by one of ``sums``."""
    return is_call(expr, "div") and expr.args[1] in sums


def recovered_from(expr: Expr, tensor: Expr, sums: frozenset[Ref]) -> dict[Expr, Expr]:
    """What need not be computed where ``tensor`` holds ``expr``: that, and the exponentials it is a quotient of."""
    values = {expr: tensor}
    if is_softmax(expr, sums):
        values[expr.children[0]] = regroupable("mul", tensor, expr.children[1])
    return values


def cancel(
    reduces: Sequence[Reduce], outputs: Sequence[Output], sums: frozenset[Ref], axes: dict[str, frozenset[str]]
) -> tuple[list[Reduce], list[Output]]:
    """A sum of terms that are all divided by one of ``sums`` is divided itself, once, and ``s * x / s`` is x."""
    substitution = Substitution({})
    cancelled = Rewriting(lambda node: _cancelled(node, sums))
    done: list[Reduce] = []

    def rewritten(expr: Expr) -> Expr:
        return cancelled.of(substitution.of(expr))

    for reduce in reduces:
        expr = rewritten(reduce.expr)
        for s in sums if reduce.kind == "sum" else ():
            shorter = _without(expr, s, divided=True)
            if shorter is not None and not expr_axes(s, axes) & set(reduce.over):
                expr = shorter
                substitution.put(reduce.ref, regroupable("div", substitution.values.get(reduce.ref, reduce.ref), s))
        done.append(replace(reduce, expr=expr))
    return done, [replace(output, expr=rewritten(output.expr)) for output in outputs]


def _cancelled(node: Expr, sums: Iterable[Ref]) -> Expr:
    """A product in which one of ``sums`` occurs on both sides of its fraction bar, without."""
    for s in sums:
        while (above := _without(node, s)) and (shorter := _without(above, s, divided=True)):
            node = shorter
    return node


def _without(expr: Expr, factor: Expr, divided: bool = False) -> Expr | None:
    """A product with ``factor`` taken away once, or its divisor of that name; None where there is none."""
    match expr:
        case Call("neg", (a,)):
            shorter = _without(a, factor, divided)
            return shorter and -shorter
        case Call("mul", (a, b)) as product:
            if not divided and factor in (a, b):
                return b if a is factor else a
            if (shorter := _without(a, factor, divided)) is not None:
                return product.of((shorter, b))
            shorter = _without(b, factor, divided)
            return shorter and product.of((a, shorter))
        case Call("div", (a, b)) as quotient:
            if divided and b is factor:
                return a
            if (shorter := _without(a, factor, divided)) is not None:
                return quotient.of((shorter, b))
            shorter = _without(b, factor, not divided)
            return shorter and quotient.of((a, shorter))
    return None

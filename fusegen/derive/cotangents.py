"""A backward for some of its cotangents, made of the one for all.

A backward is linear in its cotangents, so what multiplies one that is zero goes. That is not what deriving for fewer
results would give: what the forward has saved was chosen for all of them, and one for fewer may read something else.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from fusegen.core.ir import Call, Expr, Op, Reduce, Ref, const, names_read, rebuild, walk
from fusegen.core.products import KIND as DOT
from fusegen.core.subexpressions import introduce_lets, live_reduces

# What is zero where its first argument is, and where all of them are.
_ZERO_WITH_FIRST = frozenset({"neg", "cast", "div", "factor"})
_ZERO_WITH_ALL = frozenset({"add", "sub"})


def without_cotangents(backward: Op, missing: Container[str]) -> Op:
    """``backward`` where the cotangents called ``missing`` are zero; it reads none of them."""
    reduces, outputs = backward.expand()
    found = _Zeros(missing)
    kept: list[Reduce] = []
    for item in reduces:
        expr = found.of(item.expr)
        if expr is None and item.kind in ("sum", DOT):
            found.values[item.ref] = None
        else:
            kept.append(replace(item, expr=const(0, item.expr.dtype) if expr is None else expr))
    written = [replace(o, expr=found.of(o.expr) or const(0, o.expr.dtype)) for o in outputs]
    kept = live_reduces(kept, written)
    names: dict[Expr, str] = {
        new: name for expr, name in backward.names().items() if isinstance(new := found.of(expr), Call)
    }
    read = names_read([*kept, *written])
    operands = tuple(o for o in backward.operands if o.name not in missing)
    taken = {thing.name for thing in (*operands, *backward.scalars, *written)}
    statements, bound = introduce_lets(kept, written, names, taken)
    scalars = tuple(s for s in backward.scalars if s.name in read)
    return replace(backward, operands=operands, scalars=scalars, statements=tuple(statements), outputs=tuple(bound))


class _Zeros:
    """Expressions without what is zero; None in place of those that are."""

    def __init__(self, missing: Container[str]) -> None:
        self.missing = missing
        self.values: dict[Expr, Expr | None] = {}

    def of(self, root: Expr) -> Expr | None:
        for node in walk([root], self.values):
            self.values[node] = self._value(node)
        return self.values[root]

    def _value(self, node: Expr) -> Expr | None:
        if isinstance(node, Ref):
            return None if node.name in self.missing else node
        given = [self.values[child] for child in node.children]
        if not isinstance(node, Call) or all(value is not None for value in given):
            return rebuild(node, tuple(value for value in given if value is not None))
        name, zeros = node.function.removesuffix("_rn"), [value is None for value in given]
        if name == "mul" or (name in _ZERO_WITH_FIRST and zeros[0]) or (name in _ZERO_WITH_ALL and all(zeros)):
            return None
        if name in _ZERO_WITH_ALL:
            left, right = given
            return left if right is None else right if name == "add" else Call("neg", (right,), node.dtype)
        if name == "where" and zeros[1] and zeros[2]:
            return None
        filled = (
            const(0, child.dtype) if value is None else value for child, value in zip(node.children, given, strict=True)
        )
        return rebuild(node, tuple(filled))

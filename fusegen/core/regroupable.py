"""Products whose factors may be multiplied in any order: those that deriving has made.

What a declaration says is computed as it is written: in ``x * (1 / m) * x * (1 / m)`` there is room where ``x * x`` has
none. The factors of a derivative stand in an order that nobody chose, so kernels choose it (fuse/hoist). Which products
those are is marked on the products themselves, since a gradient holds both kinds: values of the forward that it
computes again, gradients that were declared, and what deriving has put around them.

Deriving itself knows no marks. It takes them off the op that it is given, and puts them on what it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from fusegen.core.ir import Call, Expr, Factor, Op, call, is_call, rebuild, walk
from fusegen.core.rewriting import rewritten


class Regroupable(Call):
    """A product or quotient of floats that no declaration has written."""

    __slots__ = ()

    def of(self, args: tuple[Expr, ...]) -> Regroupable:
        return Regroupable(self.function, args, self.dtype, self.detail)


def regroupable(function: str, a: Expr, b: Expr) -> Regroupable:
    """The product ("mul") or quotient ("div") of two floats of one dtype."""
    return Regroupable(function, (a, b), a.dtype)


def unmarked(op: Op) -> tuple[Op, set[Expr]]:
    """``op`` with ordinary products, and those of them that were marked."""
    if not any(isinstance(node, Regroupable) for node in walk([item.expr for item in (*op.statements, *op.outputs)])):
        return op, set()
    done: dict[Expr, Expr] = {}
    found: set[Expr] = set()

    def without(root: Expr) -> Expr:
        for node in walk([root], done):
            done[node] = rebuild(node, tuple(done[child] for child in node.children))
            if isinstance(node, Regroupable):
                done[node] = call(node.function, *done[node].children, dtype=node.dtype)
                found.add(done[node])
        return done[root]

    return rewritten(op, without), found


def marked(roots: Iterable[Expr], written: Set[Expr]) -> dict[Expr, Expr]:
    """Each of the expressions and of their parts, with marks on all products but those that are ``written``."""
    done: dict[Expr, Expr] = {}
    for node in walk(roots):
        done[node] = rebuild(node, tuple(done[child] for child in node.children))
        if node.dtype.is_float and is_call(node, "mul", "div") and node not in written:
            a, b = done[node].children
            done[node] = done[node] if isinstance(a, Factor) else regroupable(node.function, a, b)
    return done

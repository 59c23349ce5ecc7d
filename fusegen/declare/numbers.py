"""What a declaration computes of a call's numbers alone (``1 - beta2``), in double precision.

Numbers come as Python's floats, and kernels compute in float32. That rounds 0.999 by 1e-8, of which ``1 - 0.999`` makes
1.3e-5 of its result: Python, and torch's optimizers, compute that in double and round what comes of it. So do sums and
differences of numbers here, with the products and quotients around them: a kernel gets such numbers as double.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fusegen.core.dtypes import float32, float64
from fusegen.core.ir import Call, Const, Expr, Op, Ref, const, rebuild, walk
from fusegen.declare.table import apply

# What rounding is lost in, and what may stand around it.
_CANCELLING = ("add", "sub")
_AROUND = (*_CANCELLING, "mul", "div", "neg")


def in_double(op: Op) -> Op:
    """The op with sums and differences of its numbers in double; the same op where it has none, or is double."""
    numbers = {s.ref: Ref(s.name, float64) for s in op.scalars if s.dtype is float32}
    exprs = [item.expr for item in (*op.statements, *op.outputs)]
    found = _sums(exprs, {*numbers, *(s.ref for s in op.scalars)}) if numbers else {}
    if not found:
        return op
    doubled = {ref for node in found for ref in walk([node]) if ref in numbers}
    known: dict[Expr, Expr] = {node: _cast(_doubled(node, numbers)) for node in found}
    known |= {ref: _cast(numbers[ref]) for ref in doubled if isinstance(ref, Ref)}
    done = _rewritten(exprs, known)
    return replace(
        op,
        scalars=tuple(replace(s, dtype=float64) if s.ref in doubled else s for s in op.scalars),
        statements=tuple(replace(item, expr=done[item.expr]) for item in op.statements),
        outputs=tuple(replace(item, expr=done[item.expr]) for item in op.outputs),
    )


def _cast(expr: Expr) -> Expr:
    return Call("cast", (expr,), float32)


def _sums(exprs: Iterable[Expr], numbers: set[Ref]) -> list[Expr]:
    """The largest subexpressions of numbers alone that add or subtract one."""
    plain: dict[Expr, bool] = {}  # whether it adds any
    inner: set[Expr] = set()
    for node in walk(exprs):
        if isinstance(node, Const) or node in numbers:
            plain[node] = False
        elif isinstance(node, Call) and _is_arithmetic(node) and all(child in plain for child in node.args):
            has_number = any(n in numbers for n in walk([node]))
            plain[node] = (has_number and node.function in _CANCELLING) or any(plain[child] for child in node.args)
            inner |= set(node.args)
    outside = {child for node in walk(exprs) if node not in plain for child in node.children} | set(exprs)
    return [node for node, adds in plain.items() if adds and (node not in inner or node in outside)]


def _is_arithmetic(node: Call) -> bool:
    if node.function == "cast":
        return node.dtype is float32 and not node.args[0].dtype.is_float
    return node.function in _AROUND and node.dtype is float32


def _doubled(root: Expr, numbers: Mapping[Ref, Ref]) -> Expr:
    done: dict[Expr, Expr] = {}
    for node in walk([root]):
        if isinstance(node, Ref):
            done[node] = numbers.get(node, node)
        elif isinstance(node, Const):
            done[node] = const(node.value, float64) if node.dtype is float32 else node
        elif isinstance(node, Call) and node.function == "cast":
            done[node] = Call("cast", (done[node.args[0]],), float64)
        elif isinstance(node, Call):
            done[node] = apply(node.function, *(done[child] for child in node.args))
    return done[root]


def _rewritten(roots: Iterable[Expr], known: Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    """Roots with the outermost of what is ``known`` replaced."""
    done: dict[Expr, Expr] = dict(known)
    for node in walk(roots):
        if node not in done:
            done[node] = rebuild(node, tuple(done[child] for child in node.children))
    return done


__all__ = ["in_double"]

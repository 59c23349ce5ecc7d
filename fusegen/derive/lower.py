"""Algebra before code: rewrites that save calls of special functions, applied just before kernels are formed.

Derivatives are taken of what the declaration says, never of these forms. Every rule holds for every float input of the
dtype it applies to; the sweep over all half-precision inputs and a dense float32 sample (tools/accuracy.py) is run over
ops that trigger each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from fusegen.core import dtypes
from fusegen.core.ir import Call, Const, Expr, Op, const, walk
from fusegen.core.lets import introduce_lets
from fusegen.declare.table import apply
from fusegen.derive.simplify import simplify


def _is_call(expr: Expr, name: str) -> bool:
    return isinstance(expr, Call) and expr.function == name


def _equals(expr: Expr, value: float) -> bool:
    return isinstance(expr, Const) and expr.value == value


def logistic_exponential(u: Expr) -> Call:
    """e^u with u clamped (see the row) far beyond where 1 + e^u equals e^u; NaN passes."""
    return apply("exp_clamped", u)


def tanh_of_softplus(node: Call) -> Expr | None:
    """tanh(log(1 + e^u)) = n / (n + 2) with n = e^u (e^u + 2): one exponential instead of three calls.

    From u = 20 on the value is 1 to the last bit of a double, so the clamp that keeps n finite loses nothing.
    """
    if node.function != "tanh" or not _is_call(node.args[0], "softplus"):
        return None
    e = logistic_exponential(node.args[0].children[0])
    n = e * (e + 2)
    return apply("ratio", n, n + 2)


def sech2_of_softplus(node: Call) -> Expr | None:
    """1 - tanh(log(1 + e^u))^2 = 4 (n + 1) / (n + 2)^2, without the cancellation.

    At the clamp 1 / (n + 2)^2 is zero, as it must be: mish's derivative has it times u, however large.
    """
    if node.function != "sub" or not _equals(node.args[0], 1) or not _is_call(node.args[1], "powi"):
        return None
    power = node.args[1]
    assert isinstance(power, Call)
    ratio = power.args[0]
    if power.detail != "2" or not _is_call(ratio, "ratio"):
        return None
    n, below = ratio.children
    return 4 * (n + 1) * apply("powi", apply("ratio", const(1, node.dtype), below), detail="2")


def constant_plus_tanh(node: Call) -> Expr | None:
    """c + c tanh(z) = 2 c sigmoid(2 z), also among other terms of a sum (gelu and its derivative).

    Without the cancellation for negative z, and cheaper.
    """
    if node.function != "add":
        return None
    terms = _terms(node)
    for constant in terms:
        for term in terms:
            factor, rest = _scale_and_rest(term)
            if rest is None or not _is_call(rest, "tanh") or not _equals(constant, 1.0 if factor is None else factor):
                continue
            doubled = 2.0 if factor is None else 2 * factor
            s = apply("sigmoid", 2 * rest.children[0])
            total: Expr = s if doubled == 1 else doubled * s
            for other in terms:
                if other is not constant and other is not term:
                    total = total + other
            return total
    return None


def _terms(node: Expr) -> list[Expr]:
    """The terms of nested additions, left to right."""
    if isinstance(node, Call) and node.function == "add":
        return [term for arg in node.args for term in _terms(arg)]
    return [node]


def powers_of_two(node: Call) -> Expr | None:
    """2 * (c * x) = (2 c) * x and (0.5 * x) * (2 * y) = x * y: exact, since scaling by a power of two is."""
    if node.function != "mul" or not node.dtype.is_float:
        return None
    (a, x), (b, y) = (_scale_and_rest(arg) for arg in node.args)
    if (a is None and b is None) or (not _is_power_of_two(a) and not _is_power_of_two(b)):
        return None
    factor = (1.0 if a is None else a) * (1.0 if b is None else b)
    if x is None or y is None:
        rest = x if x is not None else y
        if rest is None or (a is None or b is None):
            return None
        return rest if factor == 1 else factor * rest
    return x * y if factor == 1 else None


def _scale_and_rest(expr: Expr) -> tuple[float | None, Expr | None]:
    """(2, x) of ``2 * x``, (2, None) of ``2``, (None, x) of anything else."""
    if isinstance(expr, Const):
        return float(expr.value), None
    if _is_call(expr, "mul") and isinstance(expr.children[0], Const):
        return float(expr.children[0].value), expr.children[1]
    return None, expr


def _is_power_of_two(value: float | None) -> bool:
    return value is not None and value != 0 and abs(math.frexp(value)[0]) == 0.5 and 2**-16 <= abs(value) <= 2**16


RULES: tuple[Callable[[Call], Expr | None], ...] = (
    tanh_of_softplus,
    sech2_of_softplus,
    constant_plus_tanh,
    powers_of_two,
)


def _sharing(roots: list[Expr]) -> tuple[Callable[[Call], Expr | None], ...]:
    """Rules that reuse what is computed anyway."""
    present = set(walk(roots))

    def exponential(node: Call) -> Expr | None:
        """sigmoid(u) = e / (e + 1) where the clamped e = e^u is there already; float32 only."""
        if node.function != "sigmoid" or node.dtype is not dtypes.float32:
            return None
        e = logistic_exponential(node.args[0])
        return apply("ratio", e, e + 1) if e in present else None

    def sigmoid(node: Call) -> Expr | None:
        """1 - tanh(z)^2 = 4 s (1 - s) where s = sigmoid(2 z) is there already."""
        if node.function != "sub" or not _equals(node.args[0], 1) or not _is_call(node.args[1], "powi"):
            return None
        power = node.args[1]
        assert isinstance(power, Call)
        if power.detail != "2" or not _is_call(power.args[0], "tanh"):
            return None
        z2 = 2 * power.args[0].children[0]
        s = apply("sigmoid", simplify([z2], RULES)[z2])
        return 4 * s * (1 - s) if s in present else None

    return exponential, sigmoid


def lower(op: Op) -> Op:
    """``op`` with special functions saved where algebra allows it."""
    reduces, outputs = op.expand()
    items = [*reduces, *outputs]
    first = simplify([item.expr for item in items], RULES)
    roots = [first[item.expr] for item in items]
    sharing = _sharing(roots)
    second = simplify(roots, sharing)
    exprs = [second[root] for root in roots]
    if all(new is item.expr for new, item in zip(exprs, items, strict=True)):
        return op
    names = op.names()
    for output in outputs:
        names.setdefault(output.expr, output.name)
    renamed: dict[Expr, str] = {}
    for expr, name in names.items():
        simple = simplify([expr], RULES)[expr]
        new = simplify([simple], sharing)[simple]
        if isinstance(new, Call):
            renamed[new] = name
    taken = {thing.name for thing in (*op.operands, *op.scalars, *op.outputs)}
    new_reduces = [replace(r, expr=e) for r, e in zip(reduces, exprs, strict=False)]
    new_outputs = [replace(o, expr=e) for o, e in zip(outputs, exprs[len(reduces) :], strict=True)]
    statements, bound = introduce_lets(new_reduces, new_outputs, renamed, taken)
    return op.with_statements(statements, bound)

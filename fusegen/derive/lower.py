"""Algebra before code: rewrites that save calls of special functions, applied just before kernels are formed.

Derivatives are taken of what the declaration says, never of these forms. Every rule holds for every float input of the
dtype it applies to; the sweep over all half-precision inputs and a dense float32 sample (tools/accuracy.py) is run over
ops that trigger each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from fusegen.core import dtypes
from fusegen.core.declared import without_declared_gradients
from fusegen.core.ir import Axes, Call, Const, Expr, Op, Operand, const, is_call, walk
from fusegen.core.subexpressions import introduce_lets, live_reduces
from fusegen.declare.table import apply
from fusegen.derive.guards import same_either_way
from fusegen.derive.invariance import without_idle_extrema
from fusegen.derive.reciprocals import reciprocals_in, times_reciprocal
from fusegen.derive.simplify import simplify


def logistic_exponential(u: Expr) -> Call:
    """e^u with u clamped (see the row) far beyond where 1 + e^u equals e^u; NaN passes."""
    return apply("exp_clamped", u)


def tanh_of_softplus(node: Call) -> Expr | None:
    """tanh(log(1 + e^u)) = n / (n + 2) with n = e^u (e^u + 2): one exponential instead of three calls.

    From u = 20 on the value is 1 to the last bit of a double, so the clamp that keeps n finite loses nothing.
    """
    match node:
        case Call("tanh", (Call("softplus", (u,)),)):
            e = logistic_exponential(u)
            n = e * (e + 2)
            return apply("ratio", n, n + 2)
    return None


def sech2_of_softplus(node: Call) -> Expr | None:
    """1 - tanh(log(1 + e^u))^2 = 4 (n + 1) / (n + 2)^2, without the cancellation.

    At the clamp 1 / (n + 2)^2 is zero, as it must be: mish's derivative has it times u, however large.
    """
    match node:
        case Call("sub", (Const(1), Call("powi", (Call("ratio", (n, below)),), detail=2))):
            return 4 * (n + 1) * apply("powi", apply("ratio", const(1, node.dtype), below), detail=2)
    return None


def constant_plus_tanh(node: Call) -> Expr | None:
    """c + c tanh(z) = 2 c sigmoid(2 z), also among other terms of a sum (gelu and its derivative).

    Without the cancellation for negative z, and cheaper.
    """
    return _constant_plus(node, "tanh", lambda c, z: _scaled(2 * c, apply("sigmoid", 2 * z)))


def constant_plus_erf(node: Call) -> Expr | None:
    """c + c erf(z) = c erfc(-z), which half kernels compute faster, and without the cancellation for negative z."""
    return _constant_plus(node, "erf", lambda c, z: _scaled(c, apply("erfc", -z)))


def _constant_plus(node: Call, function: str, rewritten: Callable[[float, Expr], Expr]) -> Expr | None:
    if node.function != "add":
        return None
    terms = _terms(node)
    if len(terms) > MOST_TERMS:
        return None
    for constant in (term for term in terms if isinstance(term, Const)):
        for term in terms:
            factor, rest = _scale_and_rest(term)
            c = 1.0 if factor is None else factor
            if rest is None or not is_call(rest, function) or constant.value != c:
                continue
            total = rewritten(c, rest.args[0])
            for other in terms:
                if other is not constant and other is not term:
                    total = total + other
            return total
    return None


def _scaled(factor: float, expr: Expr) -> Expr:
    return expr if factor == 1 else factor * expr


def _terms(node: Expr) -> list[Expr]:
    """The terms of nested additions, left to right; of longer sums some more than ``MOST_TERMS``."""
    terms: list[Expr] = []
    stack = [node]
    while stack and len(terms) <= MOST_TERMS:
        top = stack.pop()
        match top:
            case Call("add", (left, right)):
                stack += [right, left]
            case _:
                terms.append(top)
    return terms


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
        return rest if factor == 1 else node.of((const(factor, node.dtype), rest))
    return node.of((x, y)) if factor == 1 else None


def one_division(node: Call) -> Expr | None:
    """where(c, a / t, b / t) = where(c, a, b) / t: one division, of the same bits."""
    match node:
        case Call("where", (chosen, Call("div", (a, below)) as quotient, Call("div", (b, other)))) if below is other:
            return quotient.of((node.of((chosen, a, b)), below))
    return None


def _scale_and_rest(expr: Expr) -> tuple[float | None, Expr | None]:
    """(2, x) of ``2 * x``, (2, None) of ``2``, (None, x) of anything else."""
    match expr:
        case Const(value):
            return float(value), None
        case Call("mul", (Const(value), x)):
            return float(value), x
    return None, expr


def _multiple(expr: Expr) -> tuple[float, Expr]:
    """(-0.5, x) of ``-(x / 2)``, (1, x) of ``x``."""
    match expr:
        case Call("neg", (inner,)):
            factor, x = _multiple(inner)
            return -factor, x
        case Call("mul", (Const(value), x)):
            return float(value), x
        case Call("mul", (x, Const(value))) if value:
            return float(value), x
        case Call("div", (x, Const(value))) if value:
            return 1 / float(value), x
    return 1.0, expr


def _is_power_of_two(value: float | None) -> bool:
    return value is not None and value != 0 and abs(math.frexp(value)[0]) == 0.5 and 2**-16 <= abs(value) <= 2**16


# In longer sums no constant and function that belong together are looked for. A sum of shared sums has as many terms
# as there are paths through it (``a, b = b, a + b``).
MOST_TERMS = 32
RULES: tuple[Callable[[Call], Expr | None], ...] = (
    same_either_way,
    tanh_of_softplus,
    sech2_of_softplus,
    constant_plus_tanh,
    powers_of_two,
    one_division,
)
# Where all results are rounded to half types. In float32 erfc costs more than twice what erf does.
HALF_RULES = (*RULES, constant_plus_erf)


def _sharing(
    roots: list[Expr], operands: Sequence[Operand], *, half: bool
) -> tuple[Callable[[Call], Expr | None], ...]:
    """Rules that reuse what is computed anyway."""
    present = dict.fromkeys(walk(roots))
    reciprocals = reciprocals_in(present, operands)
    complementary = [node.args[0] for node in present if is_call(node, "erfc")]

    def exponential(node: Call) -> Expr | None:
        """sigmoid(u) = e / (e + 1) where the clamped e = e^u is there already; float32 only."""
        if node.function != "sigmoid" or node.dtype is not dtypes.float32:
            return None
        e = logistic_exponential(node.args[0])
        return apply("ratio", e, e + 1) if e in present else None

    def sigmoid(node: Call) -> Expr | None:
        """1 - tanh(z)^2 = 4 s (1 - s) where s = sigmoid(2 z) is there already."""
        match node:
            case Call("sub", (Const(1), Call("powi", (Call("tanh", (z,)),), detail=2))):
                z2 = 2 * z
                s = apply("sigmoid", simplify([z2], RULES)[z2])
                return 4 * s * (1 - s) if s in present else None
        return None

    def normal(node: Call) -> Expr | None:
        """exp(-a x^2) = exp(-z^2) where erfc(z), z = b x with b^2 = a, is there already: it has that exponential."""
        match node:
            case Call("exp", (Call("neg", (inner,)),)):
                scale, square = _scale_and_rest(inner)
                if square is None or not is_call(square, "powi") or square.detail != 2:
                    return None
                of, root = _multiple(square.args[0])
                a = of**2 * (1.0 if scale is None else scale)
                for z in complementary:
                    factor, x = _multiple(z)
                    if root is x and math.isclose(factor**2, a):
                        return apply("exp", -apply("powi", z, detail=2))
        return None

    def reciprocal(node: Call) -> Expr | None:
        """a / b = a * (1 / b) in a derivative where 1 / b is there already."""
        return times_reciprocal(node, reciprocals)

    return (exponential, sigmoid, reciprocal, normal) if half else (exponential, sigmoid, reciprocal)


def lower(op: Op) -> Op:
    """``op`` with special functions saved where algebra allows it."""
    op = without_idle_extrema(without_declared_gradients(op))
    reduces, outputs = op.expand()
    items = [*reduces, *outputs]
    half = op.is_half
    rules = HALF_RULES if half else RULES
    along = Axes(op.axes_of())
    first = simplify([item.expr for item in items], rules, along=along)
    roots = [first[item.expr] for item in items]
    sharing = _sharing(roots, op.operands, half=half)
    second = simplify(roots, sharing)
    exprs = [second[root] for root in roots]
    if all(new is item.expr for new, item in zip(exprs, items, strict=True)):
        return op
    names = op.names()
    for output in outputs:
        names.setdefault(output.expr, output.name)
    simple = simplify(names, rules, along=along)
    shared = simplify(simple.values(), sharing)
    renamed: dict[Expr, str] = {
        new: name for expr, name in names.items() if isinstance(new := shared[simple[expr]], Call)
    }
    taken = {thing.name for thing in (*op.operands, *op.scalars, *op.outputs)}
    new_reduces = [replace(r, expr=e) for r, e in zip(reduces, exprs, strict=False)]
    new_outputs = [replace(o, expr=e) for o, e in zip(outputs, exprs[len(reduces) :], strict=True)]
    statements, bound = introduce_lets(live_reduces(new_reduces, new_outputs), new_outputs, renamed, taken)
    return op.with_statements(statements, bound)

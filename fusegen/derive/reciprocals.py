"""Quotients of derivatives as products with a reciprocal that is computed once: a division takes ten instructions.

``a / b`` is ``a * (1 / b)`` but for its rounding, as long as ``1 / b`` is finite. Of a denormal b it is not: ``0 / b``
is zero, and ``0 * inf`` NaN. So only what stays away from zero, whatever the tensors hold, is inverted: 1 + e^u, the
root of a square and an epsilon, a sum of exponentials. That is read off the expression, from a lower bound of each of
its parts. Zero itself may be inverted: ``a / 0`` and ``a * inf`` are the same for every a.

In kernels of halves, where the rounding does not show, quotients that a declaration has written are such products too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from fusegen.core.ir import Call, Const, Expr, Operand, Ref, call, const, walk
from fusegen.core.regroupable import Regroupable, regroupable

# 1 / b is finite, and no denormal's, in float32 and in float64.
LEAST = 2.0**-126


def _nonnegative(*_: float) -> float:
    return 0.0


def _power(least: float, exponent: int) -> float:
    """Of a power that is not negative; of a large one its base, which is less."""
    return least if least >= 1 else max(least, 0.0) ** exponent


def _product(a: float, b: float) -> float:
    return a * b if a >= 0 and b >= 0 else -math.inf


# The least value of a function, from the least values of its arguments. Functions that grow with each argument round
# as these do: float arithmetic is monotonic.
_BOUNDS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "mul": _product,
    "abs": lambda a: max(a, 0.0),
    "maximum": max,
    "minimum": min,
    "clamp": lambda x, low, high: min(max(x, low), high),
    "where": lambda _, a, b: min(a, b),
    "sqrt": lambda a: math.sqrt(max(a, 0.0)),
    "exp": _nonnegative,
    "exp2": _nonnegative,
    "exp_clamped": _nonnegative,
    "sigmoid": _nonnegative,
    "softplus": _nonnegative,
    "erfc": _nonnegative,
    "cosh": lambda _: 1.0,
    "stop_gradient": lambda a: a,
}


def least_values(roots: Iterable[Expr], operands: Iterable[Operand] = ()) -> dict[Expr, float]:
    """Below which no value of the expressions and of their parts lies, other than NaN; -inf where nothing is known.

    Args:
        operands: what the expressions read, of which something may be known.
    """
    known: dict[Expr, float] = {operand.ref: operand.least for operand in operands}
    least: dict[Expr, float] = {}
    for node in walk(roots):
        match node:
            case Const(value):
                least[node] = float(value)
            case Call("mul", (a, b)) if a is b:
                least[node] = _power(least[a], 2)
            case Call("powi", (a,), detail=int(power)) if power > 0 and (power % 2 == 0 or least[a] >= 0):
                least[node] = _power(least[a], power)
            case Ref():
                least[node] = known.get(node, -math.inf)
            case Call(function, args) if function in _BOUNDS:
                least[node] = _BOUNDS[function](*(least[arg] for arg in args))
            case _:
                least[node] = -math.inf
    return least


def reciprocals_in(nodes: Iterable[Expr], operands: Iterable[Operand] = ()) -> dict[Expr, Expr]:
    """The reciprocals that stand among ``nodes``, by what they are of, if that stays away from zero."""
    quotients = ((b, node) for node in nodes for b in _divisor(node, Call))
    return _finite({b: node for b, node in quotients if node.children[0] is const(1, node.dtype)}, operands)


def shared_reciprocals(
    nodes: Iterable[Expr], operands: Iterable[Operand] = (), kind: type[Call] = Regroupable
) -> dict[Expr, Expr]:
    """Those that stand there, and those by which several quotients can be multiplied.

    Args:
        kind: the quotients in question: those of derivatives; `Call`: what was written as well.
    """
    nodes = list(nodes)
    divisors = Counter(b for node in nodes for b in _divisor(node, kind) if not isinstance(b, Const))
    shared = _finite({b: _reciprocal(b) for b, count in divisors.items() if count > 1}, operands)
    return {**shared, **reciprocals_in(nodes, operands)}


def times_reciprocal(node: Expr, known: Mapping[Expr, Expr], kind: type[Call] = Regroupable) -> Expr | None:
    """a / b as a * (1 / b), if it is such a quotient and that reciprocal is known; else None."""
    match node:
        case kind("div", (a, b)) if b in known and node is not known[b]:
            return regroupable("mul", a, known[b])
    return None


def _finite(reciprocals: Mapping[Expr, Expr], operands: Iterable[Operand]) -> dict[Expr, Expr]:
    least = least_values(reciprocals, operands)
    return {b: reciprocal for b, reciprocal in reciprocals.items() if least[b] >= LEAST}


def _reciprocal(b: Expr) -> Expr:
    """1 / b; that of a square root is one function."""
    match b:
        case Call("sqrt", (inner,)):
            return call("rsqrt", inner, dtype=b.dtype)
    return regroupable("div", const(1, b.dtype), b)


def _divisor(node: Expr, kind: type[Call]) -> tuple[Expr, ...]:
    """What a quotient divides by."""
    return node.args[1:] if isinstance(node, kind) and node.function == "div" else ()

"""Rewrites of expressions: each does what it is for, and none changes what an expression is."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
import torch

import fusegen as fg
from fusegen.core import dtypes
from fusegen.core.ir import Call, Const, Expr, Ref, const, walk
from fusegen.core.text import expr_text
from fusegen.declare.table import apply, lookup
from fusegen.derive import lower
from fusegen.derive.simplify import TIDY, Rule, is_select, selects_apart, simplify

F64 = dtypes.float64
W, X, Y, Z = (Ref(name, F64) for name in "wxyz")
B, C, D = (Ref(name, dtypes.bool_) for name in "bcd")
ZERO, ONE, TWO, THREE, HALF = (const(value, F64) for value in (0, 1, 2, 3, 0.5))


def where(condition: Expr, a: Expr, b: Expr) -> Call:
    return apply("where", condition, a, b)


def call(name: str, *args: Expr) -> Call:
    return apply(name, *args)


def square(x: Expr) -> Call:
    return apply("powi", x, detail=2)


def rewritten(expr: Expr, rules: tuple[Rule, ...]) -> Expr:
    return simplify([expr], rules)[expr]


def value(root: Expr, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """As the reference computes it."""
    found: dict[Expr, torch.Tensor] = {}
    for node in walk([root]):
        if isinstance(node, Const):
            found[node] = torch.tensor(float(node.value), dtype=torch.float64)
        elif isinstance(node, Ref):
            found[node] = values[node.name]
        else:
            assert isinstance(node, Call)
            detail = () if node.detail is None else (node.detail,)
            found[node] = lookup(node.function).reference(torch, *(found[a] for a in node.args), *detail)
    return found[root]


def numbers(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    floats = {name: torch.randn(64, generator=generator, dtype=torch.float64) * 2 for name in "xyz"}
    return {**floats, **{name: torch.rand(64, generator=generator) < 0.5 for name in "cd"}}


TIDIED: dict[str, tuple[Expr, Expr]] = {
    "1 x": (call("mul", ONE, X), X),
    "x 1": (call("mul", X, ONE), X),
    "-1 x": (call("mul", const(-1, F64), X), -X),
    "x -1": (call("mul", X, const(-1, F64)), -X),
    "0 x": (call("mul", ZERO, X), call("mul", ZERO, X)),
    "2 3": (call("mul", TWO, THREE), const(6, F64)),
    "2 (3 x)": (call("mul", TWO, call("mul", THREE, X)), call("mul", const(6, F64), X)),
    "(3 x) 2": (call("mul", call("mul", THREE, X), TWO), call("mul", const(6, F64), X)),
    "(-x) y": (call("mul", -X, Y), -(X * Y)),
    "x (-y)": (call("mul", X, -Y), -(X * Y)),
    "x + 0": (call("add", X, ZERO), X),
    "0 + x": (call("add", ZERO, X), X),
    "x - 0": (call("sub", X, ZERO), X),
    "0 - x": (call("sub", ZERO, X), -X),
    "x + (-y)": (call("add", X, -Y), X - Y),
    "x - (-y)": (call("sub", X, -Y), X + Y),
    "(-x) + y": (call("add", -X, Y), Y - X),
    "(-x) - y": (call("sub", -X, Y), call("sub", -X, Y)),
    "-(-x)": (call("neg", call("neg", X)), X),
    "-(2)": (call("neg", TWO), const(-2, F64)),
    "x / 1": (call("div", X, ONE), X),
    "1 / x": (call("div", ONE, X), call("div", ONE, X)),
    "(-x) / y": (call("div", -X, Y), -(X / Y)),
    "a select of one": (where(C, X, X), X),
    "a cotangent goes inside": (call("mul", Y, where(C, X, ZERO)), where(C, Y * X, ZERO)),
    "from behind": (call("mul", where(C, ZERO, X), Y), where(C, ZERO, X * Y)),
    "a divisor goes inside": (call("div", where(C, X, ZERO), Y), where(C, X / Y, ZERO)),
    "what is divided stays": (call("div", Y, where(C, X, ZERO)), call("div", Y, where(C, X, ZERO))),
    "a select without zero stays": (call("mul", Y, where(C, X, Z)), call("mul", Y, where(C, X, Z))),
    "a sum by one condition": (call("add", where(C, X, ZERO), where(C, Y, ZERO)), where(C, X + Y, ZERO)),
    "a difference by one": (call("sub", where(C, ZERO, X), where(C, ZERO, Y)), where(C, ZERO, X - Y)),
    "by two conditions": (call("add", where(C, X, ZERO), where(D, Y, ZERO)), where(C, X, ZERO) + where(D, Y, ZERO)),
    "two branches": (call("add", where(C, X, ZERO), where(C, ZERO, Y)), where(C, X, Y)),
    "a branch less one": (call("sub", where(C, X, Y), where(C, ZERO, Z)), where(C, X, Y - Z)),
    "of two choices": (call("add", where(C, X, Y), where(C, Y, Z)), where(C, X, Y) + where(C, Y, Z)),
    "a sum of selects": (
        call("mul", call("sub", where(C, X, ZERO), where(D, ZERO, Y)), Z),
        call("sub", where(C, X * Z, ZERO), where(D, ZERO, Y * Z)),
    ),
    "into two branches": (call("mul", Y, where(C, X, where(D, Z, ZERO))), where(C, Y * X, where(D, Y * Z, ZERO))),
    "into many as one": (
        call("mul", W, where(C, X, where(D, Y, where(B, Z, ZERO)))),
        where(call("logical_or", C, call("logical_or", D, B)), W * where(C, X, where(D, Y, Z)), ZERO),
    ),
    "into a sum of many": (
        call("mul", W, where(C, X, ZERO) + where(D, Y, ZERO) + where(B, ZERO, Z)),
        where(
            call("logical_or", call("logical_or", C, D), call("logical_not", B)),
            W * where(call("logical_or", C, D), where(C, X + where(D, Y, ZERO), Y) + where(B, ZERO, Z), Z),
            ZERO,
        ),
    ),
    "what decides is left alone": (
        where(C, where(call("gt", where(C, Y, Z), ZERO), Y, Z), X),
        where(C, where(call("gt", where(C, Y, Z), ZERO), Y, Z), X),
    ),
    "known to be false": (where(C, X, call("abs", where(C, Y, Z))), where(C, X, call("abs", Z))),
    "known to be true": (where(C, call("abs", where(C, Y, Z)), X), where(C, call("abs", Y), X)),
    "known, but in a special function": (where(C, call("sin", where(C, Y, Z)), X),) * 2,
    "of another condition": (where(C, call("sin", where(D, Y, Z)), X), where(C, call("sin", where(D, Y, Z)), X)),
    "a sign goes inside": (call("neg", where(C, X, ZERO)), where(C, -X, ZERO)),
}
SOFT = call("softplus", X)
E = call("exp_clamped", X)
N = E * (E + 2)
LOWERED: dict[str, tuple[Expr, Expr, tuple[Rule, ...]]] = {
    "tanh(softplus(x))": (call("tanh", SOFT), call("ratio", N, N + 2), lower.RULES),
    "tanh(x) stays": (call("tanh", X), call("tanh", X), lower.RULES),
    "1 - tanh(softplus(x))^2": (
        call("sub", ONE, square(call("tanh", SOFT))), 4 * (N + 1) * square(call("ratio", ONE, N + 2)), lower.RULES,
    ),
    "2 - tanh(softplus(x))^2 stays": (
        call("sub", TWO, square(call("tanh", SOFT))), call("sub", TWO, square(call("ratio", N, N + 2))), lower.RULES,
    ),
    "1 + tanh(x)": (call("add", ONE, call("tanh", X)), 2 * call("sigmoid", 2 * X), lower.RULES),
    "tanh(x) + 1": (call("add", call("tanh", X), ONE), 2 * call("sigmoid", 2 * X), lower.RULES),
    "0.5 + (y + 0.5 tanh(x))": (
        call("add", HALF, call("add", Y, HALF * call("tanh", X))), call("sigmoid", 2 * X) + Y, lower.RULES,
    ),
    "2 + tanh(x) stays": (call("add", TWO, call("tanh", X)), call("add", TWO, call("tanh", X)), lower.RULES),
    "1 + erf(x) in halves": (call("add", ONE, call("erf", X)), call("erfc", -X), lower.HALF_RULES),
    "1 + erf(x) else": (call("add", ONE, call("erf", X)), call("add", ONE, call("erf", X)), lower.RULES),
    "2 (3 x)": (call("mul", TWO, THREE * X), const(6, F64) * X, lower.RULES),
    "3 (2 x)": (call("mul", THREE, TWO * X), const(6, F64) * X, lower.RULES),
    "3 (5 x) rounds twice": (
        call("mul", THREE, const(5, F64) * X), call("mul", THREE, const(5, F64) * X), lower.RULES,
    ),
    "(0.5 x) (2 y)": (call("mul", HALF * X, TWO * Y), X * Y, lower.RULES),
    "(2 x) (2 y) stays": (call("mul", TWO * X, TWO * Y), call("mul", TWO * X, TWO * Y), lower.RULES),
    "0.5 (2 x)": (call("mul", HALF, TWO * X), X, lower.RULES),
    "2^17 (0.5 x) stays": (
        call("mul", const(2.0**17, F64), THREE * X), call("mul", const(2.0**17, F64), THREE * X), lower.RULES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TIDIED)
def test_what_derivatives_leave_behind(what: str) -> None:
    given, expected = TIDIED[what]
    found = rewritten(given, TIDY)
    assert found is expected, f"{expr_text(found)}, not {expr_text(expected)}"


@pytest.mark.parametrize("what", LOWERED)
def test_what_saves_special_functions(what: str) -> None:
    given, expected, rules = LOWERED[what]
    found = rewritten(given, rules)
    assert found is expected, f"{expr_text(found)}, not {expr_text(expected)}"
    torch.testing.assert_close(value(found, numbers(1)), value(given, numbers(1)), rtol=1e-12, atol=1e-12)


def test_what_is_there_already_is_used_again() -> None:
    x = Ref("x", dtypes.float32)
    e, s = call("exp_clamped", x), call("sigmoid", 2 * x)
    derivative = call("sub", const(1, dtypes.float32), square(call("tanh", x)))
    normal = call("exp", -square(X))
    cases = [
        (call("sigmoid", x), [e], False, call("ratio", e, e + 1)),
        (call("sigmoid", x), [x], False, call("sigmoid", x)),
        (call("sigmoid", X), [E], False, call("sigmoid", X)),  # double: the clamp is float32's
        (derivative, [s], False, 4 * s * (1 - s)),
        (derivative, [x], False, derivative),
        (normal, [call("erfc", -X)], True, call("exp", -square(-X))),
        (normal, [call("erfc", 2 * X)], True, normal),
        (normal, [call("erfc", -X)], False, normal),
    ]  # fmt: skip
    for given, present, half, expected in cases:
        found = rewritten(given, lower._sharing([given, *present], (), half=half))
        assert found is expected, f"{expr_text(found)}, not {expr_text(expected)}"


def drawn(draw: random.Random, depth: int, functions: tuple[str, ...]) -> Expr:
    """An expression at random, built as it stands: the operators of Python would rewrite some of it."""
    if depth == 0 or draw.random() < 0.15:
        return draw.choice((X, Y, Z, ZERO, ONE, TWO, THREE, HALF, const(-1, F64)))
    name = draw.choice(functions)
    arity = {"where": 2, "add": 2, "sub": 2, "mul": 2, "div": 2}.get(name, 1)
    args = [drawn(draw, depth - 1, functions) for _ in range(arity)]
    if name == "where":
        args[draw.randrange(2)] = ZERO if draw.random() < 0.6 else args[0]
        return where(draw.choice((C, D)), *args)
    return square(args[0]) if name == "powi" else call(name, *args)


PLAIN = ("add", "sub", "mul", "mul", "div", "neg", "where", "where")
SPECIAL = ("add", "add", "sub", "mul", "mul", "neg", "tanh", "softplus", "erf", "powi", "sigmoid", "exp")


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize(("functions", "rules"), [(PLAIN, TIDY), (SPECIAL, lower.HALF_RULES)], ids=["tidy", "lower"])
def test_random_expressions_keep_their_values(functions: tuple[str, ...], rules: tuple[Rule, ...], block: int) -> None:
    draw = random.Random(block)
    for _ in range(40):
        given = drawn(draw, 5, functions)
        found = rewritten(given, rules)
        values = numbers(block)
        before, after = torch.broadcast_tensors(value(given, values), value(found, values))
        finite = before.isfinite()
        assert torch.allclose(after[finite], before[finite], rtol=1e-9, atol=1e-9), expr_text(given)


@pytest.mark.parametrize("block", range(4))
def test_selects_apart_are_the_sum_they_were(block: int) -> None:
    draw = random.Random(block)
    for _ in range(30):
        terms = [drawn(draw, 2, PLAIN) for _ in range(5)]
        given = terms[0]
        for term in terms[1:]:
            given = call(draw.choice(("add", "sub")), given, term)
        parts = selects_apart(given)
        values = numbers(block)
        total = sum(value(part, values) for part in parts.values())
        assert isinstance(total, torch.Tensor)
        before, after = torch.broadcast_tensors(value(given, values), total)
        finite = before.isfinite() & after.isfinite()
        torch.testing.assert_close(after[finite], before[finite])
        for key, part in parts.items():
            if key is not None:
                condition, first = key
                assert part.children[0] is condition
                assert part.children[1 if first else 2] is ZERO
            elif len(parts) > 1:
                assert not any(is_select(term) for term in added(part))


def added(expr: Expr) -> list[Expr]:
    """What a sum adds up."""
    if isinstance(expr, Call) and expr.function in ("add", "sub"):
        return [term for arg in expr.args for term in added(arg)]
    return [expr]


@pytest.mark.parametrize(("dtype", "function"), [(dtypes.float32, "erf"), (dtypes.float16, "erfc")], ids=str)
def test_halves_alone_have_the_complement(dtype: dtypes.DType, function: str) -> None:
    op = lower.lower(fg.op(lambda x: 1 + fg.erf(x), name="tail").trace(fg.TensorSpec(dtype, (4,))))
    exprs = [item.expr for item in (*op.statements, *op.outputs)]
    assert [n.function for n in walk(exprs) if isinstance(n, Call) and "erf" in n.function] == [function]


def test_rules_that_undo_each_other_come_to_an_end() -> None:
    asked: list[Call] = []

    def begins(node: Call) -> Expr | None:
        asked.append(node)
        assert len(asked) < 50
        return call("add", node.args[0], Y) if node.function == "exp" else None

    def there(node: Call) -> Expr | None:
        return call("sub", *node.args) if node.function == "add" else None

    def back(node: Call) -> Expr | None:
        return call("add", *node.args) if node.function == "sub" else None

    assert rewritten(call("exp", X), (begins, there, back)).children == (X, Y)


def test_constants_decide_selects() -> None:
    """The derivative of a power asks whether its exponent is zero."""
    for how, one, other, first in (("eq", HALF, ZERO, False), ("eq", TWO, TWO, True), ("ne", HALF, ZERO, True)):
        assert rewritten(where(apply(how, one, other), X, Y), TIDY) == (X if first else Y)
    nan = const(float("nan"), F64)
    assert rewritten(where(apply("eq", nan, nan), X, Y), TIDY) == Y
    assert rewritten(where(apply("eq", X, ZERO), X, Y), TIDY) == where(apply("eq", X, ZERO), X, Y)

"""What positions lie between, beside every position there is."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest

from fusegen.core import dtypes
from fusegen.core.intervals import Deciding, Intervals
from fusegen.core.ir import Call, Const, Expr, Index, Ref, Size, call, const, transform

SIZES = {"d0n3": 3, "d1n5": 5}
ARITHMETIC: dict[str, Callable[..., int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "abs": abs, "maximum": max,
    "minimum": min, "floor_divide": operator.floordiv, "remainder": operator.mod,
}  # fmt: skip
COMPARED: dict[str, Callable[..., bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


def value(expr: Expr, at: dict[str, int]) -> Any:
    match expr:
        case Const(number):
            return number
        case Index():
            return at[expr.axis]
        case Size():
            return SIZES[expr.axis]
        case Ref(name):
            return name
        case Call("where", (condition, one, other)):
            return value(one if value(condition, at) else other, at)
        case Call("logical_and", (left, right)):
            return value(left, at) and value(right, at)
        case Call("logical_or", (left, right)):
            return value(left, at) or value(right, at)
        case Call("logical_not", (inner,)):
            return not value(inner, at)
        case Call(function, args):
            return {**ARITHMETIC, **COMPARED}[function](*(value(arg, at) for arg in args))
    raise AssertionError(expr)


def drawn(draw: random.Random, depth: int) -> Expr:
    """An integer of positions, sizes and numbers."""
    if depth == 0 or draw.random() < 0.2:
        axis = draw.choice(list(SIZES))
        return draw.choice([Index(axis), Index(axis), Size(axis), const(draw.randint(-4, 6), dtypes.int64)])
    function = draw.choice([*ARITHMETIC, "where"])
    if function == "where":
        condition = compared(draw, depth - 1)
        return call("where", condition, drawn(draw, depth - 1), drawn(draw, depth - 1), dtype=dtypes.int64)
    if function in ("floor_divide", "remainder"):
        by = const(draw.randint(1, 4), dtypes.int64)
        return call(function, drawn(draw, depth - 1), by, dtype=dtypes.int64)
    count = 1 if function in ("neg", "abs") else 2
    return call(function, *(drawn(draw, depth - 1) for _ in range(count)), dtype=dtypes.int64)


def compared(draw: random.Random, depth: int) -> Expr:
    if depth and draw.random() < 0.4:
        function = draw.choice(["logical_and", "logical_or", "logical_not"])
        count = 1 if function == "logical_not" else 2
        return call(function, *(compared(draw, depth - 1) for _ in range(count)), dtype=dtypes.bool_)
    sides = drawn(draw, depth), drawn(draw, depth)
    return call(draw.choice(list(COMPARED)), *sides, dtype=dtypes.bool_)


def positions() -> list[dict[str, int]]:
    return [dict(zip(SIZES, at, strict=True)) for at in itertools.product(*map(range, SIZES.values()))]


@pytest.mark.parametrize("seed", range(20))
def test_every_value_lies_between(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(50):
        expr = drawn(draw, 4)
        least, most = Intervals().of(expr)
        assert all(least <= value(expr, at) <= most for at in positions()), expr


@pytest.mark.parametrize("seed", range(20))
def test_decided_selects_choose_the_same(seed: int) -> None:
    """Of three results, in selects within selects."""
    draw = random.Random(seed)
    names = [Ref(name, dtypes.float32) for name in "abc"]
    for _ in range(50):
        expr: Expr = const(0, dtypes.float32)
        for _ in range(3):
            chosen = call("where", compared(draw, 2), draw.choice(names), draw.choice([expr, const(0, dtypes.float32)]),
                          dtype=dtypes.float32)  # fmt: skip
            expr = call("where", compared(draw, 2), chosen, const(0, dtypes.float32), dtype=dtypes.float32)
        found = transform([expr], Deciding())[expr]
        assert all(value(found, at) == value(expr, at) for at in positions()), expr


def test_sizes_decide() -> None:
    """Every slice of a slice asks this."""
    here, zero = Index("d1n5"), const(0, dtypes.int64)
    above = call("ge", here, zero, dtype=dtypes.bool_)
    below = call("lt", here + const(1, dtypes.int64), Size("d2n6"), dtype=dtypes.bool_)
    one, none = Ref("x", dtypes.float32), const(0, dtypes.float32)
    both = call("logical_and", above, below, dtype=dtypes.bool_)
    expr = call("where", both, one, none, dtype=dtypes.float32)
    assert transform([expr], Deciding())[expr] == one


def test_an_axis_of_any_size_decides_nothing_above() -> None:
    below = call("lt", Index("d1"), const(2**40, dtypes.int64), dtype=dtypes.bool_)
    assert transform([below], Deciding())[below] == below
    assert Intervals(2**31).of(Index("d1")) == (0, 2**31)


def test_what_may_have_wrapped_around_is_anything() -> None:
    """One end of a hash is beyond all integers, and says nothing of the other."""
    hashed = Index("d1n64") * const(2**40, dtypes.int64) * const(2**30, dtypes.int64)
    above = call("ge", hashed, const(0, dtypes.int64), dtype=dtypes.bool_)
    assert transform([above], Deciding())[above] == above
    held = call("minimum", hashed, const(5, dtypes.int64), dtype=dtypes.int64)
    assert Intervals().of(held) == (-(2**63), 5)
    assert Intervals().of(held - const(7, dtypes.int64)) == Intervals().of(hashed)

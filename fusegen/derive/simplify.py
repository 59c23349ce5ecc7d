"""Rewrites of expressions, applied bottom up until nothing changes.

The rules here undo what differentiation leaves behind (times one, minus minus) and move a cotangent into a select, so
that the branch not taken stays exactly zero. What saves special functions stands in derive/lower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from functools import reduce as reduce_by
from typing import Any

from fusegen.core.casts import is_between_floats
from fusegen.core.declared import Declared
from fusegen.core.dtypes import bool_
from fusegen.core.ir import Axes, Call, Const, Expr, const, is_call, rebuild, substitute, walk
from fusegen.declare.table import apply, lookup

Rule = Callable[[Call], "Expr | None"]
# Literals outside are not multiplied: float32 has no more than 2^128.
SMALL, LARGE = 2.0**-96, 2.0**96


def as_literal(value: Any) -> float:
    """As a float. Literals are multiplied as they are written: 0.7071067811865476^2 stands for 0.5."""
    exact = float(value)
    short = float(f"{exact:.6g}")
    return short if math.isclose(exact, short, rel_tol=4e-16) else exact


def _fold_product(node: Call) -> Expr | None:
    """1 * x, -1 * x, 2 * (3 * x), (-a) * b. Not 0 * x, which is NaN where x is infinite."""
    if not node.dtype.is_float:
        return None
    match node:
        case Call("mul", (Const(1), x) | (x, Const(1))):
            return x
        case Call("mul", (Const(-1), x) | (x, Const(-1))):
            return -x
        case Call("mul", (Call("neg", (x,)), y) | (x, Call("neg", (y,)))):
            return -(x * y)
        case Call("mul", (Const(c), Call("mul", (Const(d), x))) | (Call("mul", (Const(d), x)), Const(c))) if (
            not c or not d or SMALL < abs(c * d) < LARGE  # 1e20 * (1e20 * x) may have room where 1e40 has none
        ):
            return const(as_literal(c * d), node.dtype) * x
        case Call("mul", (Const(c), Const(d))):
            return const(c * d, node.dtype)
    return None


def fold_minus(node: Call) -> Expr | None:
    """x + (-y), x - (-y), (-x) + y: exact for floats."""
    if not node.dtype.is_float:
        return None
    match node:
        case Call("add", (x, Call("neg", (y,))) | (Call("neg", (y,)), x)):
            return x - y
        case Call("sub", (x, Call("neg", (y,)))):
            return x + y
    return None


def _fold_sum(node: Call) -> Expr | None:
    """x + 0, 0 - x, and signs."""
    if not node.dtype.is_float:
        return None
    match node:
        case Call("add" | "sub", (x, Const(0))) | Call("add", (Const(0), x)):
            return x
        case Call("sub", (Const(0), x)):
            return -x
    return fold_minus(node)


def _fold_sign(node: Call) -> Expr | None:
    """-(-x), -(2), -(x - y)."""
    if not node.dtype.is_float:
        return None
    match node:
        case Call("neg", (Const(value),)):
            return const(-value, node.dtype)
        case Call("neg", (Call("neg", (x,)),)):
            return x
    return None


def _fold_quotient(node: Call) -> Expr | None:
    """x / 1, (-a) / b."""
    match node:
        case Call("div", (x, Const(1))):
            return x
        case Call("div", (Call("neg", (x,)), y)):
            return -(x / y)
    return None


def is_select(expr: Expr) -> bool:
    """Whether it is zero in one branch of a select."""
    match expr:
        case Call("where", (_, Const(0), _) | (_, _, Const(0))):
            return expr.dtype.is_float
    return False


def _select_outside(node: Call) -> Expr | None:
    """d * where(c, a, 0) becomes where(c, d * a, 0), and where(c, a, 0) / d likewise: zero stays zero even where d is
    infinite, NaN, or zero. So does a sum of such, term by term, and a choice of such, branch by branch, or either as
    one where there are many."""
    if node.function not in ("mul", "div") or not node.dtype.is_float:
        return None
    sides = ((0, 1), (1, 0)) if node.function == "mul" else ((0, 1),)
    for at, beside in sides:
        this, other = node.args[at], node.args[beside]

        def times(value: Expr, at: int = at, other: Expr = other) -> Expr:
            return value if is_zero(value) else apply(node.function, *((value, other) if at == 0 else (other, value)))

        if has_guard(this):
            return behind_guards(this, times, guarded_values(other))
    return None


@lru_cache(maxsize=4096)
def has_guard(expr: Expr) -> bool:
    """Whether conditions say where it is zero: a select that is zero in one branch, a sum of nothing but such, or a
    choice of which a branch is such."""
    match expr:
        case Call("where", (_, *values)):
            return is_select(expr) or any(map(has_guard, values))
        case Call("add" | "sub", terms):
            return all(map(has_guard, terms))
    return False


# Values behind guards that are changed one by one.
FEW = 2


@lru_cache(maxsize=4096)
def guarded_values(expr: Expr) -> int:
    """How many values stand behind its guards, or one more than a few; of what has no guard, 1."""
    values, seen, stack = 0, set[Expr](), [expr]
    while stack and values <= FEW:
        node = stack.pop()
        if node in seen or is_zero(node):
            continue
        seen.add(node)
        if isinstance(node, Call) and has_guard(node):
            stack += node.args[node.function == "where" :]
        else:
            values += 1
    return values


def behind_guards(expr: Expr, change: Callable[[Expr], Expr], ways: int = 1) -> Expr:
    """A value that has guards, changed where it is not zero.

    Few values are changed behind each guard, with what stands beside them in a choice. Many are changed as one, behind
    all that the guards come to: along a chain of choices (a recursion of log(exp(a) + exp(b)), say), values that are
    each multiplied with each of the next would be some times as many each step.

    Args:
        ways: how many values the change makes of one.
    """
    if guarded_values(expr) * ways <= FEW:
        return _behind_each(expr, change, {})
    return selected(change(_unguarded(expr)), _all_guards(expr))


def _behind_each(expr: Expr, change: Callable[[Expr], Expr], known: dict[Expr, Expr]) -> Expr:
    if expr not in known:  # values are shared
        if isinstance(expr, Call) and has_guard(expr):
            values = 1 if expr.function == "where" else 0
            changed = (_behind_each(value, change, known) for value in expr.args[values:])
            known[expr] = apply(expr.function, *expr.args[:values], *changed)
        else:
            known[expr] = change(expr)
    return known[expr]


@lru_cache(maxsize=4096)
def _unguarded(expr: Expr) -> Expr:
    """What it is where its guards hold, without a guard."""
    match expr:
        case Call("where", (_, first, second)) if is_select(expr):
            return _unguarded(second if is_zero(first) else first)
        case Call("where", (condition, *values)) if has_guard(expr):
            return apply("where", condition, *map(_unguarded, values))
        case Call("add" | "sub" as function, (a, b)) if has_guard(expr):
            alone = _unguarded(b) if function == "add" else -_unguarded(b)
            found = apply(function, _unguarded(a), b)
            for condition, zero_first in reversed(_all_guards(a)):
                found = apply("where", condition, *((alone, found) if zero_first else (found, alone)))
            return found
    return expr


def _sum_of_selects(node: Call) -> Expr | None:
    """where(c, a, 0) + where(c, b, 0) is where(c, a + b, 0), so that what it is multiplied with goes inside as well.
    where(c, a, b) + where(c, 0, d) is where(c, a, b + d)."""
    match node:
        case Call("add" | "sub", (Call("where", (condition, *first)) as some, Call("where", (other, *second)) as rest)):
            if condition is other and (is_select(some) or is_select(rest)):
                pairs = zip(first, second, strict=True)
                return apply("where", condition, *(a if is_zero(b) else apply(node.function, a, b) for a, b in pairs))
    return None


def _guard_outside(node: Call) -> Expr | None:
    """where(p, where(c, a, 0), where(c, b, 0)) is where(c, where(p, a, b), 0)."""
    if node.function != "where" or not node.dtype.is_float:
        return None
    condition, *values = node.args
    (some, a), (others, b) = map(conditions_of, values)
    both = [guard for guard in some if guard in others]
    if not both:
        return None
    rest = [[guard for guard in guards if guard not in both] for guards in (some, others)]
    return selected(apply("where", condition, selected(a, rest[0]), selected(b, rest[1])), both)


def _fold_select(node: Call) -> Expr | None:
    """where(c, a, a), a select between equal constants, and one that constants decide: ``x ** 1.5`` has a derivative of
    its own where the exponent is zero."""
    match node:
        case Call("where", (_, a, b)) if a is b:
            return a
        case Call("where", (Call("eq" | "ne" as how, (Const(one), Const(other))), a, b)):
            return a if (one == other) is (how == "eq") else b
    return None


def _select_once(node: Call) -> Expr | None:
    """where(c, a, f(where(c, b, d))) is where(c, a, f(d)): which way the inner one goes is known.

    Only where the inner one is near, and no special function is between: that one would be computed for each way, and
    once more for whoever reads it outside of the select. So would what a condition compares. Of a chain of selects,
    each within the next, the far ones are within both branches of all before them, and each branch would get a chain
    of its own.
    """
    if node.function != "where":
        return None
    condition, *values = node.args
    known = [_decided(value, condition, way) for way, value in enumerate(values)]
    return apply("where", condition, *known) if known != values else None


# Nodes of a branch among which selects by its own condition are looked for.
NEAR = 64


def _decided(root: Expr, condition: Expr, way: int) -> Expr:
    """``root`` where the selects by ``condition`` go one way: their first value or their second."""
    found: dict[Expr, Expr] = {node: node.args[1 + way] for node in _selects_near(root) if node.args[0] is condition}
    return substitute_within(root, found, set(_near(root))) if found else root


@lru_cache(maxsize=4096)  # a branch is looked at again for each condition that it is below
def _selects_near(root: Expr) -> tuple[Call, ...]:
    """The selects among the nearest parts of a branch."""
    if isinstance(root, Declared):
        return ()
    return tuple(node for node in _near(root) if isinstance(node, Call) and node.function == "where")


def _near(root: Expr) -> list[Expr]:
    """A branch and its nearest parts, with no special function between."""
    near: list[Expr] = [root]
    seen = {root}
    for node in near:  # breadth first; it grows meanwhile
        for child in () if is_special(node) else node.children[is_call(node, "where") :]:
            # Elements where the condition is otherwise may be in a declared gradient's sums: its call stays what it is
            # of, though what it is of may be near by another way.
            if child not in seen and len(near) < NEAR and not isinstance(child, Declared):
                seen.add(child)
                near.append(child)
    return near


def substitute_within(root: Expr, values: dict[Expr, Expr], region: set[Expr]) -> Expr:
    """``root`` with those subexpressions replaced that are in ``region``, which it is in itself."""
    outside = {child: child for node in region for child in node.children if child not in region}
    return substitute(root, {**outside, **values})


def _sign_outside_select(node: Call) -> Expr | None:
    """-where(c, a, 0) becomes where(c, -a, 0); so does each of a sum of such."""

    def negative(value: Expr) -> Expr:
        return value if is_zero(value) else -value

    match node:
        case Call("neg", (Call("where", (condition, *values)),)):
            return apply("where", condition, *map(negative, values))
        case Call("neg", (value,)) if has_guard(value):
            return behind_guards(value, negative)
    return None


def _cast_outside(node: Call) -> Expr | None:
    """A cast of where(c, a, 0) becomes where(c, cast of a, 0), from one precision to another."""
    match node:
        case Call("cast", (value,)) if is_between_floats(node) and has_guard(value):
            return behind_guards(value, lambda a: const(0, node.dtype) if is_zero(a) else node.of((a,)))
    return None


TIDY: tuple[Rule, ...] = (
    _fold_product, _fold_sum, _fold_sign, _fold_quotient, _fold_select, _select_once, _guard_outside,
    _sum_of_selects, _select_outside, _sign_outside_select, _cast_outside,
)  # fmt: skip


def simplify(
    roots: Iterable[Expr], rules: tuple[Rule, ...], known: dict[Expr, Expr] | None = None, along: Axes | None = None
) -> dict[Expr, Expr]:
    """Each root rewritten by ``rules`` to a fixed point.

    Args:
        known: results of earlier calls with the same rules, to which those of this one are added.
        along: what values vary along. No value becomes one that lacks an axis of it then: where(c, a, a) stays where
            c alone varies along one, over which there may be a reduction already.
    """
    done = {} if known is None else known
    roots = list(roots)
    for root in roots:
        _simplify(root, rules, done, along)
    return {root: done[root] for root in roots}


def _simplify(root: Expr, rules: tuple[Rule, ...], done: dict[Expr, Expr], along: Axes | None) -> None:
    stack, begun = [root], {root}
    while stack:
        node = stack[-1]
        missing = [child for child in node.children if child not in done]
        if missing and node not in done:
            stack += missing
            begun.update(missing)
            continue
        new = node if node in done else rebuild(node, tuple(done[child] for child in node.children))
        if new not in done and isinstance(new, Call):
            forms = (form for rule in rules if (form := rule(new)) is not None)
            better = next((form for form in forms if along is None or along.of(form) >= along.of(new)), new)
            if better is not new and better not in done and better not in begun:
                stack.append(better)
                begun.add(better)
                continue
            new = better
        done[node] = found = done.get(new, new)
        done.setdefault(found, found)
        stack.pop()


def is_zero(expr: Expr) -> bool:
    """Whether it is the number zero, of a float."""
    match expr:
        case Const(0):
            return expr.dtype.is_float
    return False


# A condition, and whether the first branch is the one that is zero.
Condition = tuple[Expr, bool]


def conditions_of(expr: Expr) -> tuple[list[Condition], Expr]:
    """The conditions without which it is zero, as nested selects say, outermost first, and its value elsewhere."""
    found: list[Condition] = []
    while is_select(expr):
        condition, *values = expr.children
        zero_first = is_zero(values[0])
        found.append((condition, zero_first))
        expr = values[zero_first]
    return found, expr


def selected(expr: Expr, conditions: Iterable[Condition]) -> Expr:
    """``expr``, or zero without the conditions, of which the first becomes the outermost."""
    for condition, zero_first in reversed(list(conditions)):
        zero = const(0, expr.dtype)
        expr = apply("where", condition, *((zero, expr) if zero_first else (expr, zero)))
    return expr


def either(some: Sequence[Condition], others: Sequence[Condition]) -> list[Condition]:
    """What holds where the one conditions hold, or the others."""
    both, rest = _common(some, others)
    for i, side in enumerate(rest):
        if len(side) == 1:  # p, or not p and q, is p or q
            (condition, negative), beside = side[0], 1 - i
            rest[beside] = [other for other in rest[beside] if other != (condition, not negative)] or rest[beside]
    if all(rest):
        parts = [[part for condition in side for part in parts_of(condition)] for side in rest]
        if (shared := _common(*parts))[0]:
            both, rest = [*both, *shared[0]], shared[1]
    if all(rest) and not _is_either_way(*rest):
        both.append((apply("logical_or", *map(_all, rest)), False))
    return both


def _common(some: Sequence[Condition], others: Sequence[Condition]) -> tuple[list[Condition], list[list[Condition]]]:
    """The conditions of both, and what else there is of each."""
    both = [condition for condition in some if condition in others]
    return both, [[condition for condition in side if condition not in both] for side in (some, others)]


def _is_either_way(some: Sequence[Condition], others: Sequence[Condition]) -> bool:
    """Whether they are one condition and its opposite."""
    return len(some) == len(others) == 1 and some[0][0] is others[0][0]


def _all(conditions: Sequence[Condition]) -> Expr:
    holds = [apply("logical_not", c) if zero_first else c for c, zero_first in conditions]
    return reduce_by(partial(apply, "logical_and"), holds)


def parts_of(condition: Condition) -> list[Condition]:
    """The conditions that have to hold, each by itself, for one that is made of them."""
    if condition[0].dtype is not bool_:
        return [condition]
    match condition:
        case Call("logical_and" | "bitwise_and", (a, b)), False:
            return [*parts_of((a, False)), *parts_of((b, False))]
        case Call("logical_or" | "bitwise_or", (a, b)), True:
            return [*parts_of((a, True)), *parts_of((b, True))]
        case Call("logical_not" | "bitwise_not", (a,)), negative:
            return parts_of((a, not negative))
    return [condition]


def fitting(conditions: Iterable[Condition], admitted: Callable[[Condition], bool]) -> list[Condition]:
    """The conditions that are admitted, and of others the parts that are, each once."""
    found: list[Condition] = []
    for condition in conditions:
        parts = [condition] if admitted(condition) else filter(admitted, parts_of(condition))
        found += [part for part in parts if part not in found]
    return found


def guards_of(
    expr: Expr, admitted: Callable[[Condition], bool], known: dict[Expr, list[Condition]] | None = None,
) -> list[Condition]:  # fmt: skip
    """The conditions without which it is zero: of a choice, and of a sum, what holds for all of its parts, or for one
    or another.

    Args:
        admitted: which conditions count; of one that does not, those that it is made of may.
        known: of what has been looked at, since values are shared.
    """
    known = {} if known is None else known
    if expr in known or not has_guard(expr):
        return known.get(expr, [])
    sides = []
    for i, value in enumerate(expr.children):
        way: Condition = (expr.children[0], i == 2)
        inner = guards_of(value, admitted, known)
        if not is_call(expr, "where"):
            sides.append(inner)
        elif i and not is_zero(value):
            sides.append([*(way for way in fitting([way], admitted) if way not in inner), *inner])
    known[expr] = reduce_by(either, sides) if sides else []
    return known[expr]


def _all_guards(expr: Expr) -> list[Condition]:
    return guards_of(expr, lambda condition: True)


def selects_apart(expr: Expr, known: dict[Expr, Expr] | None = None) -> dict[tuple[Expr, bool] | None, Expr]:
    """A sum as the sums of its selects by their condition and which branch is zero, and of all other terms (None).

    Args:
        known: what has been tidied already (`simplify`), to which results are added.
    """
    found: dict[tuple[Expr, bool] | None, Expr] = {}
    stack = [(expr, False)]
    while stack:
        node, negative = stack.pop()
        match node:
            case Call("add" | "sub" as function, (left, right)):
                stack += [(right, negative is not (function == "sub")), (left, negative)]
                continue
        if is_zero(node):
            continue
        key = (node.children[0], is_zero(node.children[1])) if is_select(node) else None
        if key in found:
            found[key] = found[key] - node if negative else found[key] + node
        else:
            found[key] = -node if negative else node
    if found.keys() == {None}:
        return {None: expr}
    parts = {key: part if key is None else simplify([part], TIDY, known)[part] for key, part in found.items()}
    for key in [key for key, part in parts.items() if key is not None and not is_select(part)]:
        part = parts.pop(key)
        if not is_zero(part):  # that is what they cancel to, mostly
            parts[None] = parts[None] + part if None in parts else part
    return parts or {None: const(0, expr.dtype)}


def special_calls(roots: Iterable[Expr]) -> int:
    """How many calls of special functions the roots make, each distinct one counted once."""
    return sum(map(is_special, walk(roots)))


def is_special(node: Expr) -> bool:
    """Whether it calls a special function itself."""
    return isinstance(node, Call) and lookup(node.function).cost >= 16

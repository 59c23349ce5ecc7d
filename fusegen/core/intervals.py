"""What integers of positions and sizes lie between, and the conditions that this decides.

``index(d3n510) + 2 < 512`` holds everywhere: the name of an axis tells its size (``core/ir.axis_name``). Slices,
padding and shifts ask such questions of every element, one for each slice that a slice is of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fusegen.core import dtypes
from fusegen.core.ir import Call, Const, Expr, Index, Place, Size, call, const, own_size, walk

Interval = tuple[float, float]  # the least and the largest value; infinite of positions and sizes that are not known

EVERYTHING: Interval = (-(2**63), 2**63 - 1)

# What is known of an int64 by where it comes from.
_NARROW: dict[dtypes.DType, Interval] = {
    dtype: dtype.limits for dtype in (dtypes.bool_, dtypes.uint8, dtypes.int8, dtypes.int16, dtypes.int32)
}

_TRUE, _FALSE = const(1, dtypes.bool_), const(0, dtypes.bool_)


class Intervals:
    """The intervals of expressions, each found once.

    Args:
        most: no position is larger than this.
        longest: no axis is longer, and no tensor has more elements.
    """

    def __init__(self, most: float = math.inf, longest: float = math.inf) -> None:
        self.found: dict[Expr, Interval] = {}
        self.most, self.longest = most, longest
        self.counts: set[Expr] = set()  # sizes and their products: numbers of elements that there are

    def of(self, expr: Expr) -> Interval:
        """What an expression of int64 lies between."""
        for node in walk([expr], self.found):
            found = self._node(node) if node.dtype is dtypes.int64 else EVERYTHING
            self.found[node] = EVERYTHING if _is_beyond(found) else found
        return self.found[expr]

    def may_wrap(self, expr: Expr) -> bool:
        """Whether an operator's exact result may be none of int64: a hash, and what nothing is known of."""
        for child in expr.children:
            self.of(child)
        return _is_beyond(self._node(expr))

    def below(self, expr: Expr, end: int) -> Intervals:
        """The same where an expression is below a number."""
        low, high = self.of(expr)
        found = Intervals(self.most, self.longest)
        found.found[expr] = low, min(high, end - 1)
        return found

    def _node(self, node: Expr) -> Interval:
        match node:
            case Const():
                return node.value, node.value
            case Index():
                return 0, min(self.most, _length(node.axis) - 1)
            case Place():
                return 0, min(self.most, math.prod(_length(axis) for axis in node.axes) - 1)
            case Size():
                self.counts.add(node)
                size = own_size(node.axis)
                return (0, self.longest) if size is None else (size, size)
            case Call("mul", (left, right)) if {left, right} <= self.counts:
                self.counts.add(node)
                (a, b), (c, d) = self.found[left], self.found[right]
                return a * c, min(self.longest, b * d if b and d else 0)
            case Call("cast", (inner,)) if inner.dtype in _NARROW:
                return _NARROW[inner.dtype]
            case Call(function, children):
                known = [self.found[child] for child in children if child.dtype is dtypes.int64]
                return self._call(function, known) if len(known) == len(children) else self._other(function, known)
        return EVERYTHING

    @staticmethod
    def _call(function: str, of: list[Interval]) -> Interval:
        match function, of:
            case "add", [(a, b), (c, d)]:
                return a + c, b + d
            case "sub", [(a, b), (c, d)]:
                return a - d, b - c
            case "neg", [(a, b)]:
                return -b, -a
            case "abs", [(a, b)]:
                return max(0, a, -b), max(-a, b)
            case "mul", [(a, b), (c, d)] if all(map(math.isfinite, (a, b, c, d))):
                ends = [x * y for x in (a, b) for y in (c, d)]
                return min(ends), max(ends)
            case "maximum", [(a, b), (c, d)]:
                return max(a, c), max(b, d)
            case "minimum", [(a, b), (c, d)]:
                return min(a, c), min(b, d)
            case "floor_divide", [(a, b), (c, d)] if c == d > 0 and math.isfinite(a) and math.isfinite(b):
                return a // c, b // c
            case "remainder", [(a, b), (c, d)] if c == d > 0:
                return (a, b) if a >= 0 and b < c else (0, c - 1)
        return EVERYTHING

    @staticmethod
    def _other(function: str, of: list[Interval]) -> Interval:
        """Of a select, which has a condition beside its values."""
        if function != "where" or len(of) != 2:
            return EVERYTHING
        (a, b), (c, d) = of
        return min(a, c), max(b, d)


def _is_beyond(found: Interval) -> bool:
    """Whether it wraps around, so that neither end says anything. Positions and sizes by themselves never do."""
    return any(not EVERYTHING[0] <= end <= EVERYTHING[1] for end in found if math.isfinite(end))


def _length(axis: str) -> float:
    """The number of positions along an axis, as far as is known; at least one, for without any nothing is asked."""
    size = own_size(axis)
    return math.inf if size is None else max(1, size)


def conditions(expr: Expr) -> list[Expr]:
    """What must hold for a condition to hold, each once."""
    match expr:
        case Call("logical_and" | "bitwise_and", (left, right)):
            return list(dict.fromkeys([*conditions(left), *conditions(right)]))
    return [] if expr == _TRUE else [expr]


def every(found: Iterable[Expr]) -> Expr:
    """The condition that all of these are."""
    whole: Expr = _TRUE
    for each in found:
        whole = each if whole == _TRUE else call("logical_and", whole, each, dtype=dtypes.bool_)
    return whole


class Deciding:
    """A rule for ``core.ir.transform``: conditions that sizes decide are numbers, what is selected by these is gone,
    and selects of the same number in one another are one."""

    def __init__(self) -> None:
        self.intervals = Intervals()

    def __call__(self, node: Expr) -> Expr:
        match node:
            case Call("ge" | "gt" | "le" | "lt" | "eq" | "ne" as how, (left, right)) if left.dtype is dtypes.int64:
                return self._compared(node, how, left, right)
            case Call("logical_and" | "bitwise_and" as how, (left, right)) if node.dtype is dtypes.bool_:
                if how == "bitwise_and" and {_TRUE, _FALSE}.isdisjoint((left, right)):
                    return node  # as it was written
                return _FALSE if _FALSE in (left, right) else every(conditions(node))
            case Call("logical_or" | "bitwise_or", (left, right)) if node.dtype is dtypes.bool_:
                if _TRUE in (left, right):
                    return _TRUE
                return left if right == _FALSE else right if left == _FALSE else node
            case Call("logical_not" | "bitwise_not", (Const(value),)) if node.dtype is dtypes.bool_:
                return _FALSE if value else _TRUE
            case Call("where", (Const(chosen), one, other)):
                return one if chosen else other
            case Call("where", (_, one, other)) if one is other:
                return one
            case Call("where", (outer, Call("where", (inner, value, Const() as zero)), Const() as other)) if (
                zero == other
            ):
                both = self(call("logical_and", outer, inner, dtype=dtypes.bool_))
                return call("where", both, value, zero, dtype=node.dtype)
        return node

    def _compared(self, node: Expr, how: str, left: Expr, right: Expr) -> Expr:
        (a, b), (c, d) = self.intervals.of(left), self.intervals.of(right)
        if how in ("eq", "ne"):
            same = True if a == b == c == d else False if b < c or d < a else None
            decided = same if how == "eq" or same is None else not same
        else:
            holds, fails = {
                "lt": (b < c, a >= d), "le": (b <= c, a > d), "gt": (a > d, b <= c), "ge": (a >= d, b < c)
            }[how]  # fmt: skip
            decided = True if holds else False if fails else None
        if decided is not None:
            return _TRUE if decided else _FALSE
        known = [_number(side) for side in (left, right)]
        return call(how, *known, dtype=dtypes.bool_) if known != [left, right] else node


def _number(side: Expr) -> Expr:
    """A size that a name tells as a number."""
    size = own_size(side.axis) if isinstance(side, Size) else None
    return side if size is None else const(size, dtypes.int64)

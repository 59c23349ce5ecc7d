"""Maxima that results do not depend on have no gradient: a softmax's, a log-sum-exp's, however they are written.

Nothing overflows in ``exp(x - m) / sum(exp(x - m))`` with m the maximum of x, and the quotient is the same for every
m. Derived term by term, the gradient of m is a sum that cancels: what rounding leaves of it would be looked for and
handed to the elements that are the maximum. So m is held constant (`without_idle_extrema`) before gradients are taken.

Whether a result depends on m is a matter of first derivatives. Where m grows by d, a value grows by a * d, or by b * d
times itself, with a and b that do not depend on m (`Change`); or by something else, and then nothing is concluded. The
rules are those of differentiation, so they hold wherever the derivative exists. The same with m that grows by d times
itself: ``norm(x / m) * m``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush

from fusegen.core.ir import Axes, Call, Const, Expr, Op, Output, Reduce, Substitution, walk, whole
from fusegen.core.rewriting import rewritten
from fusegen.declare.table import apply
from fusegen.derive.reach import reached

_EXTREMA = ("max", "min")


@dataclass(frozen=True)
class Change:
    """How a value changes where m grows by d: by ``added`` * d + ``scaled`` * d * itself, one of which is zero; both
    ``times`` factors that do not change: ("mul" or "div", what with)."""

    added: float = 0.0
    scaled: float = 0.0
    times: tuple[tuple[str, Expr], ...] = ()

    def by(self, number: float) -> Change:
        """So many times that."""
        return Change(number * self.added, number * self.scaled, self.times) if number else STAYS

    def plus(self, other: Change) -> Change | None:
        """Both of them; None if they have other factors."""
        if self == STAYS or other == STAYS:
            return other if self == STAYS else self
        found = Change(self.added + other.added, self.scaled + other.scaled, self.times)
        return None if self.times != other.times else found if found.added or found.scaled else STAYS


STAYS, SHIFTED, SCALED = Change(), Change(added=1.0), Change(scaled=1.0)
# Constants that follow others: zero times anything is zero, and infinity and anything is infinity.
_ZERO, _INFINITY = "zero", "infinity"
_Found = Change | str | None


def without_idle_extrema(op: Op) -> Op:
    """``op`` with those of its maxima and minima held constant that none of its results depends on."""
    return _without_idle_extrema(op) if any(isinstance(s, Reduce) and s.kind in _EXTREMA for s in op.statements) else op


@lru_cache(maxsize=1024)
def _without_idle_extrema(op: Op) -> Op:
    reduces, outputs = op.expand()
    changes = _Changes(op.axes_of(), reduces, outputs)
    extrema = [reduce for reduce in reduces if reduce.kind in _EXTREMA and reduce.expr.dtype.is_float]
    idle = [m for m in extrema if changes.vanish(m, SHIFTED) or changes.vanish(m, SCALED)]
    if not idle:
        return op
    found, arguments = _held_constant(op, idle), _arguments(op)
    if _arguments(found) == arguments:
        return found
    # An argument that results read through such extrema alone has a gradient of zeros, not none.
    for m in idle:
        found = _held_constant(op, [m])
        op = found if _arguments(found) == arguments else op
    return op


def _arguments(op: Op) -> list[set[str]]:
    """Those that gradients of each result flow into."""
    return [reached(op, [position]) for position in range(len(op.outputs))]


def _held_constant(op: Op, held: Sequence[Reduce]) -> Op:
    constant = Substitution({reduce.ref: apply("stop_gradient", reduce.ref) for reduce in held})
    return rewritten(op, constant.of)


class _Changes:
    """How the values of an op change with one of its reductions, as if that were an argument: those that do."""

    def __init__(
        self, axes: Mapping[str, frozenset[str]], reduces: Sequence[Reduce], outputs: Sequence[Output]
    ) -> None:  # fmt: skip
        self.axes, self.along = axes, Axes(axes)
        self.results = {output.expr for output in outputs if output.dtype.is_float}
        self.order: dict[Expr, int] = {}  # of nodes, each behind all that it is of
        self.nodes: list[Expr] = []
        self.readers: dict[Expr, list[Expr]] = {}
        self.reduced: dict[Expr, list[Reduce]] = {}
        for reduce in reduces:
            self._add(reduce.expr)
            self._number(reduce.ref)
            self.reduced.setdefault(reduce.expr, []).append(reduce)
        for output in outputs:
            self._add(output.expr)

    def _add(self, root: Expr) -> None:
        for node in walk([root], self.order):
            self._number(node)
            for child in node.children:
                self.readers.setdefault(child, []).append(node)

    def _number(self, node: Expr) -> None:
        if node not in self.order:
            self.order[node] = len(self.nodes)
            self.nodes.append(node)

    def vanish(self, m: Reduce, m_grows: Change) -> bool:
        """Whether something changes with ``m``, and no result. Only what changes is looked at, and nothing behind a
        value of which nothing is known."""
        found: dict[Expr, _Found] = {m.ref: m_grows}
        waiting: list[int] = []
        stack: list[Expr] = [m.ref]
        while True:
            while stack:  # what reads a value that changes
                node = stack.pop()
                if node in self.results:
                    return False
                for reader in self.readers.get(node, ()):
                    heappush(waiting, self.order[reader])
                for reduce in self.reduced.get(node, ()):
                    change = self._reduced(m, reduce, found[node])
                    if change is None:
                        return False
                    if change != STAYS:
                        found[reduce.ref] = change
                        stack.append(reduce.ref)
            if not waiting:
                return any(change != STAYS for node, change in found.items() if node is not m.ref)
            node = self.nodes[heappop(waiting)]
            if node not in found:
                found[node] = change = _call(node, found)
                if change is None:
                    return False
                stack += [node] if change != STAYS else []

    def _reduced(self, m: Reduce, reduce: Reduce, inner: _Found) -> _Found:
        assert isinstance(inner, Change)
        varying = self.axes[m.name].union(*(self.along.of(factor) for _, factor in inner.times))
        if varying & set(reduce.over):  # elements that change otherwise
            return None
        if reduce.kind == "squared_deviation":
            return Change(0.0, 2 * inner.scaled, inner.times) if inner.scaled else STAYS
        return inner if reduce.kind in _EXTREMA or (reduce.kind == "sum" and inner.scaled) else None


def _call(node: Expr, found: Mapping[Expr, _Found]) -> _Found:
    """The change of a call of which some arguments change."""
    if not isinstance(node, Call) or node.function == "stop_gradient" or not node.dtype.is_float:
        return STAYS  # no derivative passes
    args = [found.get(child) or _constant(child) for child in node.args]
    if all(arg in (STAYS, _ZERO, _INFINITY) for arg in args):
        return STAYS
    if node.function == "where":
        return _alike(args[1], args[2])
    return _RULES[node.function](node, args) if node.function in _RULES else None


def _constant(node: Expr) -> _Found:
    """That of a value which does not change."""
    if isinstance(node, Const) and node.dtype.is_float and (node.value == 0 or math.isinf(node.value)):
        return _INFINITY if node.value else _ZERO
    return STAYS


def _alike(a: _Found, b: _Found) -> _Found:
    """What two values have in common of which either may be taken."""
    if isinstance(a, Change) and isinstance(b, Change):
        return a if a == b else None
    constant, change = (a, b) if isinstance(b, Change) else (b, a)
    if not isinstance(change, Change):
        return None if None in (a, b) else STAYS
    follows = (constant == _ZERO and not change.added) or (constant == _INFINITY and not change.scaled)
    return change if follows else None


def _plain(change: _Found) -> Change:
    """That of a constant is none."""
    return change if isinstance(change, Change) else STAYS


def _sum(node: Call, args: Sequence[_Found]) -> _Found:
    a, b = map(_plain, args)
    if a.scaled or b.scaled:
        return _alike(*args)
    return a.plus(b.by(-1 if node.function == "sub" else 1))


def _product(node: Call, args: Sequence[_Found]) -> _Found:
    a, b = map(_plain, args)
    is_quotient = node.function == "div"
    if not (a.added or b.added):
        return a.plus(b.by(-1 if is_quotient else 1))
    if b == STAYS:
        return _multiple(a, node.function, node.args[1])
    return _multiple(b, "mul", node.args[0]) if a == STAYS and not is_quotient else None


def _multiple(change: Change, function: str, factor: Expr) -> Change | None:
    """That of a product with, or quotient by, what does not change."""
    match factor:
        case Const(0):
            return None
        case Const(c):
            return change.by(1 / c if function == "div" else c)
    return replace(change, times=(*change.times, (function, factor)))


def _exponential(node: Call, args: Sequence[_Found]) -> _Found:
    change = _plain(args[0])
    return None if change.scaled else Change(0.0, change.added, change.times)


def _logarithm(node: Call, args: Sequence[_Found]) -> _Found:
    change = _plain(args[0])
    return None if change.added else Change(change.scaled, 0.0, change.times)


def _power(exponent: float, change: _Found) -> _Found:
    return None if _plain(change).added else _plain(change).by(exponent)


# How a function's value changes where its arguments do, some of them: (node, changes of arguments) -> change.
_RULES: Mapping[str, Callable[[Call, Sequence[_Found]], _Found]] = {
    "add": _sum, "sub": _sum, "mul": _product, "div": _product, "exp": _exponential, "log": _logarithm,
    "maximum": lambda node, args: _alike(*args), "minimum": lambda node, args: _alike(*args),
    "neg": lambda node, args: Change(-_plain(args[0]).added, _plain(args[0]).scaled, _plain(args[0]).times),
    "cast": lambda node, args: args[0],
    "abs": lambda node, args: _power(1, args[0]),
    "sqrt": lambda node, args: _power(0.5, args[0]),
    "rsqrt": lambda node, args: _power(-0.5, args[0]),
    "powi": lambda node, args: _power(whole(node), args[0]),
}  # fmt: skip

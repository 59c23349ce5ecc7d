"""Products regrouped so that what is the same for a whole row is computed once a row.

``0.5 * w * (x - mean) * rstd^3 / n`` multiplies four times and divides once at every element; with the row's factors
together, ``w * (x - mean) * (0.5 * rstd^3 / n)``, it multiplies twice. A regrouped product rounds differently in the
last bit, as any order of factors does.

It also overflows elsewhere. So what a declaration says is computed in its own order: ``(x / m) * (x / m)`` is written
so because ``x * x`` has no room. What deriving has made is marked (core/regroupable); but the square of a factor is
taken of none of them: ``x / m / m``.

A derivative divides by one thing again and again. Where that varies along the row, and stays away from zero, its
reciprocal is computed once (derive/reciprocals).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from fusegen.core.dtypes import DType
from fusegen.core.ir import Axes, Call, Const, Expr, Operand, call, const, is_call, rebuild, transform, walk
from fusegen.core.regroupable import Regroupable, regroupable
from fusegen.core.text import Order
from fusegen.derive.reciprocals import shared_reciprocals, times_reciprocal
from fusegen.derive.simplify import fold_minus
from fusegen.fuse import cost
from fusegen.fuse.shared_products import share_products

# Between these a product of constants is as far from float32's ends as its factors are.
LEAST, MOST = 1e-18, 1e18
# Functions that jump, of floats and with floats as values.
STEPS = frozenset({"floor", "ceil", "trunc", "round", "floor_divide", "remainder", "fmod"})
# What an expression costs at least that is kept for a row.
WORTH_A_REGISTER = 3
# Longer products stay as they are. One of shared products has as many factors as there are paths through it
# (``a, b = b, a * b``).
MOST_FACTORS = 32


@dataclass
class _Product:
    """What a chain of products, quotients and signs multiplies and divides by."""

    above: list[Expr] = field(default_factory=list)
    below: list[Expr] = field(default_factory=list)
    negative: bool = False

    @property
    def factors(self) -> list[Expr]:
        return [*self.above, *self.below]

    def take(self, root: Expr, product: type[Call] = Regroupable, whole: Container[Expr] = ()) -> None:
        """The factors of ``root``, left to right; of longer chains some more than ``MOST_FACTORS``.

        Args:
            product: what is taken apart; `Call`: what was written as well.
            whole: what is not.
        """
        stack = [(root, False)]
        while stack and len(self.above) + len(self.below) <= MOST_FACTORS:
            node, inverse = stack.pop()
            match node:
                case _ if node in whole:
                    (self.below if inverse else self.above).append(node)
                case product("mul", (a, b)):
                    stack += [(b, inverse), (a, inverse)]
                case product("div", (a, b)):
                    stack += [(b, not inverse), (a, inverse)]
                case Call("neg", (a,)):
                    self.negative = not self.negative
                    stack.append((a, inverse))
                case _:
                    (self.below if inverse else self.above).append(node)


@dataclass
class Hoist:
    """Regroups expressions of one kernel.

    Args:
        axes: those that expressions vary along.
        over: the axes along a row.
        rounded: results are rounded to a half type, so that a reciprocal may stand for a division.
        compared: what conditions, integers and steps are made of. It stays what it is wherever it is read: 41 / 41 is
            1, 41 times the nearest number to 1 / 41 is less, and so would be its floor. And a value that is regrouped
            for one reader and compared by another would be computed twice.
        across: axes along which a thread has several elements at a time: they share a reciprocal of what does not vary
            along these.
    """

    axes: Axes
    over: frozenset[str]
    rounded: bool
    compared: frozenset[Expr] = frozenset()
    across: frozenset[str] = frozenset()
    done: dict[Expr, Expr] = field(default_factory=dict)
    order: Order = field(default_factory=Order)

    @classmethod
    def among(
        cls, exprs: Iterable[Expr], axes: Axes, over: frozenset[str], *, rounded: bool,
        across: frozenset[str] = frozenset(),
    ) -> Hoist:  # fmt: skip
        """For a kernel that computes these."""
        jumps = [node for node in walk(exprs) if not node.dtype.is_float or is_call(node, *STEPS)]
        compared = frozenset(walk(child for node in jumps for child in node.children))
        return cls(axes, over, rounded, compared, across)

    def all(self, exprs: Iterable[Expr]) -> dict[Expr, Expr]:
        """Each expression, regrouped."""
        return {expr: self.one(expr) for expr in exprs}

    def one(self, node: Expr) -> Expr:
        """The expression, regrouped; children before parents, so that no depth is too much."""
        for inner in walk([node], self.done):
            self.done[inner] = self._regrouped(inner)
        return self.done[node]

    def apart(self, node: Expr, product_type: type[Call] = Regroupable) -> tuple[Expr, Expr | None]:
        """A product as its factors that vary along a row, and those that do not; None where there are none of these.

        Args:
            product_type: what is taken apart, as in `_Product.take`.
        """
        product = _Product()
        product.take(node, product_type, self.compared - {node})
        along = [f for f in product.above if self._along(f)]
        above = [f for f in product.above if not self._along(f)]
        plain = len(product.factors) <= MOST_FACTORS and all(f.dtype is node.dtype for f in product.factors)
        outside = len(along) < len(product.factors) or product.negative
        if not (node.dtype.is_float and plain and along and outside) or any(map(self._along, product.below)):
            return self.one(node), None
        factors = _constants_first(above, node.dtype) if above else []
        factor = _chain(factors) if factors else Const("1.0", node.dtype)
        for divisor in product.below:
            factor = regroupable("div", factor, divisor)
        factor = call("neg", factor, dtype=node.dtype) if product.negative else factor
        return self._product_along(along), factor

    def shared(self, exprs: Iterable[Expr], operands: Iterable[Operand]) -> dict[Expr, Expr]:
        """Each expression with quotients as products with a reciprocal, where several divide by the same thing, which
        varies along the row; and with one product where several have factors in common."""
        exprs = list(exprs)
        kind = Call if self.rounded else Regroupable
        divided = (node for node in walk(exprs) if is_call(node, "div") and node not in self.compared)
        quotients = (node for node in divided if self._along(node.args[1]))
        known = shared_reciprocals(quotients, operands, kind)
        found = transform(exprs, lambda node: times_reciprocal(node, known, kind) or node)
        nodes = list(walk([found[expr] for expr in exprs]) if known else found)
        products = share_products(nodes, self.order, self.compared, lambda node: not self._along(node))
        return {expr: products[value] for expr, value in found.items() if value in products}

    def fixed(self, exprs: Iterable[Expr]) -> list[Expr]:
        """What of the expressions is the same for a whole row, differs between rows, and is worth a register to be
        computed once a row: one division or function, or several cheaper operations."""
        found = dict[Expr, None]()
        for node in walk(exprs):
            own = node.children if self._along(node) else ()
            found |= dict.fromkeys(child for child in own if self.axes.of(child) and not self._along(child))
        return [node for node in found if isinstance(node, Call) and cost.of(walk([node])) >= WORTH_A_REGISTER]

    def _product_along(self, factors: Iterable[Expr]) -> Expr:
        return _chain([*map(self.one, sorted(factors, key=self.order))])

    def _along(self, node: Expr) -> bool:
        return bool(self.axes.of(node) & self.over)

    def _regrouped(self, node: Expr) -> Expr:
        if not isinstance(node, Call) or not node.dtype.is_float or not self._along(node) or node in self.compared:
            return node
        if isinstance(node, Regroupable):
            product = _Product()
            product.take(node, whole=self.compared)
            few = len(product.factors) <= MOST_FACTORS
            if few and all(factor.dtype is node.dtype for factor in product.factors):
                found = self._rebuilt(product, node)
                if found is not None:
                    return found
        elif is_call(node, "div") and self.rounded and self._has_reciprocal(node.args[1]):
            inverse = regroupable("div", Const("1.0", node.dtype), node.args[1])
            return call("mul", self.one(node.args[0]), inverse, dtype=node.dtype)
        node = rebuild(node, tuple(self.one(child) for child in node.args))
        return (fold_minus(node) if isinstance(node, Call) else None) or node

    def _has_reciprocal(self, divisor: Expr) -> bool:
        """Whether several elements share it."""
        along = self.axes.of(divisor)
        return not (along & self.over and (not self.across or along & self.across))

    def _rebuilt(self, product: _Product, node: Call) -> Expr | None:
        above = [f for f in product.above if not self._along(f) and not _is_one(f)]
        below = [f for f in product.below if not self._along(f)]
        constants = [f for f in above if isinstance(f, Const)]
        worthwhile = len(above) > 1 or (below and (len(above) > len(constants) or constants or self.rounded))
        if not worthwhile:
            return None
        one = Const("1.0", node.dtype)
        above, above_again = _repeated(above)
        below, below_again = _repeated(below)
        factors = _constants_first(above, node.dtype)
        for divisor in below:
            if self.axes.of(divisor):
                factors = [regroupable("div", _chain(factors) if factors else one, divisor)]
            else:  # the same for all rows: divided once, and multiplied
                factors.append(regroupable("div", one, divisor))
        along = sorted((f for f in product.above if self._along(f)), key=self.order)
        result = _chain([*map(self.one, along), *([_chain(factors)] if factors else [])] or [one])
        for divisor in (f for f in product.below if self._along(f)):
            result = regroupable("div", result, self.one(divisor))
        for again in above_again:
            result = regroupable("mul", result, again)
        for again in below_again:
            result = regroupable("mul", result, regroupable("div", one, again))
        return call("neg", result, dtype=node.dtype) if product.negative else result


def _repeated(factors: Iterable[Expr]) -> tuple[list[Expr], list[Expr]]:
    """Each factor once, with all numbers; and those that stand there already."""
    first: list[Expr] = []
    again: list[Expr] = []
    for factor in factors:
        (again if factor in first and not isinstance(factor, Const) else first).append(factor)
    return first, again


def _is_one(node: Expr) -> bool:
    return isinstance(node, Const) and float(node.value) == 1


def _constants_first(factors: list[Expr], dtype: DType) -> list[Expr]:
    """The factors with their constants multiplied: 0.5, rstd^3 and 2 are rstd^3."""
    constants = [float(f.value) for f in factors if isinstance(f, Const)]
    product = math.prod(constants)
    if not LEAST < abs(product) < MOST:
        return factors
    rest = [f for f in factors if not isinstance(f, Const)]
    return rest if product == 1 else [const(product, dtype), *rest]


def _chain(factors: list[Expr]) -> Expr:
    result, *rest = factors
    for factor in rest:
        result = regroupable("mul", result, factor)
    return result

"""Between our expressions and sympy's: the only module that imports sympy.

Arithmetic becomes sympy arithmetic. Every function of the table becomes an opaque sympy Function whose derivative is
its row's, so that sympy applies the chain and product rules and simplifies sums and products, but never "simplifies"
a function in a way that is true for real numbers and false for floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sympy as sp
from sympy.core.cache import cacheit

from fusegen.core.casts import converted, is_between_floats
from fusegen.core.dtypes import DType, bool_, float32
from fusegen.core.errors import DerivativeError
from fusegen.core.ir import Call, Const, Detail, Expr, Ref, const, is_call, walk, whole
from fusegen.declare.table import Function, Kind, apply, lookup, placeholders
from fusegen.derive.reciprocals import LEAST, least_values
from fusegen.derive.simplify import as_literal

_ARITHMETIC = frozenset(("add", "sub", "mul", "div", "neg", "powi"))


def partial_rows(row: Function, args: tuple[Expr, ...], value: Expr) -> tuple[Expr | None, ...]:
    """The derivative of ``row`` by each argument, as expressions in ``args`` and the function's ``value``.

    Raises:
        DerivativeError: the row has no derivative.
    """
    if row.name == "polygamma":
        assert isinstance(value, Call)
        return (apply("polygamma", args[0], detail=whole(value) + 1),)
    if row.partials is not None:
        return row.partials(*args, value)
    if not row.smooth or row.kind in (Kind.COMPARE, Kind.PREDICATE, Kind.LOGICAL, Kind.BITWISE):
        return (None,) * row.arity
    if row.sympy is None:
        raise DerivativeError(
            f"function {row.name}",
            given="a gradient through it",
            expected="a derivative in its row",
            fix="pass derivative=lambda x, y: (...,) or sympy=lambda sp, x: ... to fg.register_function",
        )
    return tuple(_from_sympys_own(row, args))


@cache
def _sympys_partials(name: str) -> tuple[Any, ...]:
    row = lookup(name)
    symbols = sp.symbols(f"_arg0:{row.arity}", real=True)
    assert row.sympy is not None
    expr = row.sympy(sp, *symbols)
    return tuple(sp.diff(expr, symbol).replace(sp.polygamma, _polygamma) for symbol in symbols)


def _polygamma(order: Any, x: Any) -> Any:
    return _function("digamma")(x) if order == 0 else _function("polygamma", int(order))(x)


def _from_sympys_own(row: Function, args: tuple[Expr, ...]) -> list[Expr | None]:
    dtype = args[0].dtype
    stand_ins = placeholders(row.arity, dtype)
    bridge = Bridge()
    for stand_in in stand_ins:
        bridge.symbols[sp.Symbol(stand_in.name, real=True)] = stand_in
    found: list[Expr | None] = []
    for partial in _sympys_partials(row.name):
        expr = bridge.to_expr(partial, dtype)
        done: dict[Expr, Expr] = dict(zip(stand_ins, args, strict=True))
        for node in walk([expr]):
            if node not in done:
                done[node] = (
                    Call(node.function, tuple(done[c] for c in node.args), node.dtype, node.detail)
                    if isinstance(node, Call)
                    else node
                )
        found.append(None if partial == 0 else done[expr])
    return found


@cacheit  # type: ignore[untyped-decorator]
def _derivative(expr: Any, symbol: Any) -> Any:
    """What ``expr.diff(symbol)`` is, remembered, since values share operands. Sympy's own also asks of each result
    whether it is zero, which takes it long."""
    return expr._eval_derivative(symbol) if symbol in expr.free_symbols else sp.Integer(0)


class _Opaque(sp.Function):  # type: ignore[misc]
    """A row of the table inside sympy."""

    row: Function
    detail: Detail

    def _eval_derivative(self, symbol: Any) -> Any:
        inner = [_derivative(arg, symbol) for arg in self.args]
        return sp.Add(*(self.fdiff(place) * one for place, one in enumerate(inner, start=1) if one != 0))

    def fdiff(self, argindex: int = 1) -> Any:
        dtype = float32  # only literals take it, and their text does not depend on it
        stand_ins = placeholders(self.row.arity, dtype)
        value = Ref("_value", dtype)
        if self.row.name == "polygamma":
            assert isinstance(self.detail, int)
            return _function("polygamma", self.detail + 1)(*self.args)
        partial = partial_rows(self.row, stand_ins, value)[argindex - 1]
        if partial is None:
            return sp.Integer(0)
        bridge = Bridge()
        given: dict[Expr, Any] = dict(zip(stand_ins, self.args, strict=True))
        given[value] = self
        return bridge.to_sympy(partial, given)


class _OverPower(sp.Function):  # type: ignore[misc]
    """``a / u**n`` of a whole n: a, the power, and u. By u its derivative is -n times its value over u.

    Over the power, and times that one's derivative, it would be zero over zero where u is zero, and infinity over
    infinity where u is infinite. A power of -2 is written so.
    """

    exponent: int

    def _eval_derivative(self, symbol: Any) -> Any:
        a, power, base = self.args
        return _derivative(a, symbol) / power - self.exponent * self / base * _derivative(base, symbol)


class _Where(sp.Function):  # type: ignore[misc]
    """A select. Its derivative selects too, so that the branch not taken never multiplies in."""

    nargs = 3

    @classmethod
    def eval(cls, condition: Any, a: Any, b: Any) -> Any:
        return a if a == b else None

    def _eval_derivative(self, symbol: Any) -> Any:
        condition, a, b = self.args
        return _Slope(condition, _derivative(a, symbol), _derivative(b, symbol))


class _Slope(_Where):
    """A select's derivative. To sympy it is never the value of one: ``where(c, 0, exp(x))`` is its own derivative, and
    their quotient is 1 where c does not hold only."""


class _Kept(sp.Function):  # type: ignore[misc]
    """Arithmetic as a declaration has written it; its derivative is that of its operands.

    To sympy ``0.1 * (x - y)`` is ``0.1 * x - 0.1 * y``, ``(x - z) + b`` is ``x + b - z``, ``(x * s)**4`` is
    ``s**4 * x**4``, and ``(x + 1e8) - 1e8`` is ``x``. In floats the differences of near values are lost by the first
    two, the third overflows, and the last is something else.
    """

    function: str
    operands: tuple[Any, ...]
    exponent: int

    def _eval_derivative(self, symbol: Any) -> Any:
        match self.function, self.operands:
            case "neg", (a,):
                return -_derivative(a, symbol)
            case "powi", (a,):
                return self.exponent * a ** (self.exponent - 1) * _derivative(a, symbol)
            case "add", (a, b):
                return _derivative(a, symbol) + _derivative(b, symbol)
            case "sub", (a, b):
                return _derivative(a, symbol) - _derivative(b, symbol)
            case "mul", (a, b):
                return _derivative(a, symbol) * b + a * _derivative(b, symbol)
            case _, (a, b):
                return _derivative(a, symbol) / b - a * _derivative(b, symbol) / b**2
        raise AssertionError(self.function)


class _Cast(sp.Function):  # type: ignore[misc]
    """A conversion between float dtypes: derivative one."""

    detail: Detail
    target: DType

    def _eval_derivative(self, symbol: Any) -> Any:
        return _derivative(self.args[0], symbol)


@cache
def _function(name: str, detail: Detail = None) -> Any:
    if name == "where":
        return _Where
    return type(name if detail is None else f"{name}_{detail}", (_Opaque,), {"row": lookup(name), "detail": detail})


@cache
def _over_power(exponent: int) -> Any:
    return type(f"over_power{exponent}", (_OverPower,), {"exponent": exponent})


@cache
def _cast(target: DType, detail: Detail) -> Any:
    return type(f"cast_{target.name}_{detail or ''}", (_Cast,), {"target": target, "detail": detail})


class Bridge:
    """Converts expressions to sympy and back, remembering which symbol stands for what.

    ``faithful``: for what a declaration says, as opposed to a row's derivative: conditions stay whole, and arithmetic
    is kept as it is written.
    """

    def __init__(self, faithful: bool = False) -> None:
        self.faithful = faithful
        self.symbols: dict[Any, Expr] = {}
        # What sympy's term came from: on the way back it reads as the declaration wrote it, and so is still the same
        # object as in the forward pass, where it can be shared or saved.
        self.originals: dict[Any, Expr] = {}

    def to_sympy(self, root: Expr, given: dict[Expr, Any] | None = None) -> Any:
        """``root`` in sympy. Subexpressions that are not floats (conditions, sizes) become symbols."""
        done: dict[Expr, Any] = dict(given or {})
        for node in walk([root]):
            if node not in done:
                done[node] = self._node(node, done)
                if isinstance(node, Call):
                    self.originals.setdefault(done[node], node)
        return done[root]

    def _node(self, node: Expr, done: dict[Expr, Any]) -> Any:
        if isinstance(node, Const) and node.dtype.is_float and node.value == node.value and abs(node.value) < 1e300:
            return sp.Rational(repr(node.value))
        if not isinstance(node, Call) or (not node.dtype.is_float and (self.faithful or node.dtype is not bool_)):
            return self._opaque(node)
        args = [done[child] for child in node.args]
        if self.faithful and node.function == "div" and args[1] == 0:  # a number to sympy, but none that divides
            args[1] = self._opaque(node.args[1])
        if self.faithful and node.function == "div" and args[1].free_symbols:
            return self._quotient(node, args, done)
        if node.function in _ARITHMETIC and node.dtype.is_float:
            result = _arithmetic(node, args)
            return self._kept(node, args, result) if self.faithful else result
        if node.function == "cast":
            return _cast(node.dtype, node.detail)(*args) if is_between_floats(node) else self._opaque(node)
        return _function(node.function, node.detail)(*args)

    def _quotient(self, node: Call, args: Sequence[Any], done: Mapping[Expr, Any]) -> Any:
        """A quotient as a declaration has written it."""
        below = node.args[1]
        if is_call(below, "powi") and not least_values([below])[below] >= LEAST:  # else it has a reciprocal
            return _over_power(whole(below))(*args, done[below.children[0]])
        return _function("div")(*args)

    def _kept(self, node: Call, args: Sequence[Any], result: Any) -> Any:
        fields = {"function": node.function, "operands": tuple(args), "exponent": node.detail}
        symbols = sorted(set().union(*(arg.free_symbols for arg in args)), key=lambda symbol: symbol.name)
        if not symbols:  # 0 ** -1 is no number. Of symbols, which are finite, sympy would look for proofs for long
            return self._opaque(node) if result.is_finite is False else result
        kept = type(f"_kept{len(self.originals)}", (_Kept,), fields)(*symbols)
        self.originals[kept] = node
        return kept

    def _opaque(self, node: Expr) -> Any:
        name = node.name if isinstance(node, Ref) else f"_opaque{len(self.symbols)}"
        for symbol, known in self.symbols.items():
            if known is node:
                return symbol
        symbol = sp.Symbol(name, real=True)
        self.symbols[symbol] = node
        return symbol

    def to_expr(self, root: Any, dtype: DType) -> Expr:
        """Back from sympy; literals and powers take ``dtype``."""
        done: dict[Any, Expr] = {}

        def convert(node: Any) -> Expr:
            if node not in done:
                done[node] = self._expr(node, dtype, convert)
            return done[node]

        return convert(root)

    def _expr(self, node: Any, dtype: DType, convert: Any) -> Expr:
        if node in self.symbols:
            return self.symbols[node]
        if node in self.originals and not node.is_Number:
            return self.originals[node]
        if node.is_Number or node.is_NumberSymbol:
            return const(float(node), dtype)
        if node.is_Add:
            return _sum(node, convert)
        if node.is_Mul or node.is_Pow:
            return _product(node, dtype, convert)
        if isinstance(node, _Cast):
            (argument,) = (self.to_expr(arg, self._float_of(arg, dtype)) for arg in node.args)
            return Call("cast", (argument,), node.target, node.detail)
        if isinstance(node, (_Opaque, _Where)):
            name = "where" if isinstance(node, _Where) else node.row.name
            kind = lookup(name).kind
            inner = self._float_of(node, dtype) if kind in (Kind.COMPARE, Kind.PREDICATE, Kind.LOGICAL) else dtype
            args = _alike([self.to_expr(arg, inner) for arg in node.args])
            return apply(name, *args, detail=None if name == "where" else node.detail)
        if isinstance(node, sp.Function) and node.func.__name__ in _SYMPY_NAMES:
            return apply(_SYMPY_NAMES[node.func.__name__], *map(convert, node.args))
        raise DerivativeError(
            "derive",
            given=f"sympy's {node.func}",
            expected="functions of the table",
            fix="write the derivative in the row",
        )

    def _float_of(self, node: Any, default: DType) -> DType:
        """The dtype that the arguments of a comparison have: that of the first symbol or cast inside it."""
        if node in self.symbols:
            return self.symbols[node].dtype
        if isinstance(node, _Cast):
            return node.target
        for arg in node.args:
            found = self._float_of(arg, bool_)
            if found is not bool_:
                return found
        return default


_SYMPY_NAMES = {
    **{name: name for name in ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sign", "erf")}, "Abs": "abs",
}  # fmt: skip


def _arithmetic(node: Call, args: list[Any]) -> Any:
    match node.function, args:
        case "add", (a, b):
            return a + b
        case "sub", (a, b):
            return a - b
        case "mul", (a, b):
            return a * b
        case "div", (a, b):
            return a / b
        case "neg", (a,):
            return -a
    return args[0] ** whole(node)


def _sum(node: Any, convert: Any) -> Expr:
    """Positive terms first, each group in sympy's order of terms: ``1 - w``, ``y - x``."""
    terms = [(term.could_extract_minus_sign(), term) for term in node.as_ordered_terms()]
    positive = [term for minus, term in terms if not minus]
    negative = [-term for minus, term in terms if minus]
    positive.sort(key=lambda term: not term.is_Number)
    if not positive:
        return -_chain("add", [convert(term) for term in negative])
    total = _chain("add", [convert(term) for term in positive])
    for term in negative:
        match total, (taken := convert(term)):
            case Const(value), Call("sub", (Const(other), left)) if value == other:  # 1 - (1 - w)
                total = left
            case _:
                total = _chain("sub", [total, taken])
    return total


def _product(node: Any, dtype: DType, convert: Any) -> Expr:
    above: list[Expr] = []
    below: list[Expr] = []
    coefficient, rest = node.as_coeff_Mul()
    minus = coefficient < 0
    for factor in _ordered_factors(rest):
        base, exponent = factor.as_base_exp()
        if exponent == -2:  # a / b / b: the square of b may overflow, or vanish, where the quotient does neither
            below += [convert(base)] * 2
        elif exponent.is_Integer:
            (above if exponent > 0 else below).append(_whole_power(convert(base), abs(int(exponent))))
        elif exponent.is_Rational and exponent.q == 2:
            root = apply("sqrt" if exponent > 0 else "rsqrt", convert(base))
            above.append(_whole_power(root, abs(int(exponent.p))))
        else:
            above.append(apply("pow", *_alike([convert(base), convert(exponent)])))
    if abs(coefficient) != 1 or not above:
        above.insert(0, const(as_literal(abs(coefficient)), dtype))
    result = _chain("mul", above)
    if below:
        # One divisor may be several bases to sympy: as a declaration wrote it, and as a row's derivative did.
        counts = Counter(below)
        times = [[term for term in counts if counts[term] > k] for k in range(max(counts.values()))]
        result = _chain("div", [result, *(_chain("mul", terms) for terms in times)])
    return -result if minus else result


def _ordered_factors(rest: Any) -> list[Any]:
    return [] if rest == 1 else list(rest.as_ordered_factors()) if rest.is_Mul else [rest]


def _whole_power(base: Expr, exponent: int) -> Expr:
    return base if exponent == 1 else Call("powi", (base,), base.dtype, exponent)


def _chain(name: str, terms: Sequence[Expr]) -> Expr:
    total, *others = _alike(terms)
    for term in others:
        total = Call(name, (total, term), total.dtype)
    return total


def _alike(values: Sequence[Expr]) -> list[Expr]:
    """Floats in the widest dtype that one of them has: sympy does not know how numbers, or a cast, came to theirs."""
    wide = max((value.dtype for value in values if value.dtype.is_float), key=lambda dtype: dtype.size, default=None)
    return [value if wide is None or not value.dtype.is_float else converted(value, wide) for value in values]


def partials(root: Expr, wanted: Sequence[Ref]) -> dict[Ref, Expr]:
    """The partial derivative of ``root`` by each of ``wanted`` that it depends on, simplified by sympy.

    Every other reference in ``root`` counts as a constant.
    """
    bridge = Bridge(faithful=True)
    expr = bridge.to_sympy(root)
    symbols = {known: symbol for symbol, known in bridge.symbols.items()}
    found: dict[Ref, Expr] = {}
    for ref in wanted:
        if ref in symbols:
            derivative = _derivative(expr, symbols[ref])
            if derivative != 0:
                found[ref] = bridge.to_expr(derivative, root.dtype)
    return found

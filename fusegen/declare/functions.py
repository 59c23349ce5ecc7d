"""The table of scalar functions: derivative, CUDA text and reference of each, side by side.

Where no derivative is written, sympy derives it from its own function of that name. Written ones are there because
sympy's form is unstable or wasteful somewhere (``exp(x) / (1 + exp(x))`` overflows), or because torch decides what
happens at a kink or a tie. ``y`` is the function's own value. One test sweeps every row
(tests/declare/test_functions.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import Category
from fusegen.core.ir import Expr, const
from fusegen.declare import philox
from fusegen.declare.table import Function, Kind, apply, lookup, register

_LN2, _LN10 = math.log(2), math.log(10)


def _zero(x: Expr) -> Expr:
    return const(0, x.dtype)


def _where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return apply("where", condition, a, b)


def _either(condition: Expr, a: float, b: float, like: Expr) -> Expr:
    return _where(condition, const(a, like.dtype), const(b, like.dtype))


def _over_square(above: Expr, a: Expr, b: Expr) -> Expr:
    """above / (a^2 + b^2), where the squares may overflow or vanish, and 0 at the origin."""
    length = apply("hypot", a, b)
    return _where(apply("eq", length, _zero(a)), _zero(a), above / length / length)


def _fn(name: str) -> Any:
    return lambda *args: apply(name, *args)


_exp, _log, _sqrt, _sign = _fn("exp"), _fn("log"), _fn("sqrt"), _fn("sign")
_eq, _lt, _le, _gt, _ge, _and = (_fn(n) for n in ("eq", "lt", "le", "gt", "ge", "logical_and"))


def _float(name: str, arity: int = 1, **fields: Any) -> Function:
    fields.setdefault("cuda", name + "{f}(" + ", ".join(f"{{{i}}}" for i in range(arity)) + ")")
    fields.setdefault("reference", lambda t, *a: getattr(t, name)(*a))
    if "partials" not in fields and fields.get("smooth", True):
        fields.setdefault("sympy", lambda sp, *a: getattr(sp, name)(*a))
    return register(Function(name, arity, Kind.FLOAT, cost=fields.pop("cost", 16), **fields))


def _operator(name: str, symbol: str, precedence: int, kind: Kind, **fields: Any) -> Function:
    return register(Function(name, 2, kind, f"{{0}} {symbol} {{1}}", precedence=precedence, cost=1, **fields))


# -- arithmetic ------------------------------------------------------------------------------------------------------
_operator("add", "+", 6, Kind.NUMERIC, reference=lambda t, a, b: a + b)
_operator("sub", "-", 6, Kind.NUMERIC, reference=lambda t, a, b: a - b)
_operator("mul", "*", 7, Kind.NUMERIC, reference=lambda t, a, b: a * b)
_operator("div", "/", 7, Kind.FLOAT, reference=lambda t, a, b: a / b, partials=lambda a, b, y: (1 / b, -y / b))
register(Function("neg", 1, Kind.NUMERIC, "-{0}", precedence=8, cost=1, reference=lambda t, x: -x))
register(
    Function(
        "powi", 1, Kind.NUMERIC, "fg::powi<{d}>({0})", cost=3,
        doc="x to a whole power known at compile time (the node's detail), by repeated multiplication.",
        reference=lambda t, x, n="2": t.pow(x, int(n)),
    )
)  # fmt: skip
register(
    Function(
        "cast", 1, Kind.CAST, "{T}({0})", cost=1, reference=lambda t, x: x,
        doc="Conversion to the node's dtype; with a half type as detail, rounding to that type and back.",
    )
)  # fmt: skip
register(
    Function(
        "stop_gradient", 1, Kind.NUMERIC, "{0}", cost=0, smooth=False, reference=lambda t, x: x.detach(),
        doc="fg.stop_gradient: the identity, with derivative zero.",
    )
)  # fmt: skip
register(
    Function(
        "factor", 1, Kind.NUMERIC, "{0}", cost=0, smooth=False, reference=lambda t, x, detail: x,
        doc="One side of a matrix product (core/products): how it is stored, and what the product calls its axes.",
    )
)  # fmt: skip
register(
    Function(
        "declared", 1, Kind.NUMERIC, "{0}", cost=0, reference=lambda t, value, *rest: value,
        doc="A value whose gradient the user declared (core/declared): no kernel knows of it.",
    )
)  # fmt: skip
register(
    Function(
        "within", 3, Kind.NUMERIC, "fg::within({0}, {1}, {2}, {d})", cost=0, smooth=False,
        header='#include "fusegen_places.cuh"', reference=lambda t, place, size, position: place,
        doc="A place, its axis' size, and where it stands: a place outside is reported (core/within).",
    )
)  # fmt: skip
register(
    Function(
        "located", 2, Kind.NUMERIC, "{0}, {1}", cost=0, smooth=False, reference=lambda t, x, place: place,
        doc="A value and where it stands: what a reduction takes that finds the place of an extremum (fuse/argreduce).",
    )
)  # fmt: skip
register(
    Function(
        "scanned", 2, Kind.NUMERIC, "{0}", cost=0, smooth=False, reference=lambda t, x, position, *detail: x,
        doc="A value and its position along an axis: what a scan combines from one end (core/scans).",
    )
)  # fmt: skip
register(
    Function(
        "recurrence", 3, Kind.NUMERIC, "{1}", cost=0, smooth=False, reference=lambda t, a, b, position, *detail: b,
        doc="The same of two values: factors and terms, or conditions and terms.",
    )
)  # fmt: skip
register(
    Function(
        "int_pow", 2, Kind.NUMERIC, "fg::int_pow({0}, {1})", cost=12, smooth=False,
        reference=lambda t, a, b: t.pow(a, b), doc="a^b among integers; a negative power is 0, or of 1 and -1 itself.",
    )
)  # fmt: skip
# torch's own floor_divide has no derivative.
_REST: dict[str, Callable[..., Any]] = {
    "floor_divide": lambda t, a, b: t.div(a, b, rounding_mode="floor"),
    "remainder": lambda t, a, b: t.remainder(a, b), "fmod": lambda t, a, b: t.fmod(a, b),
}  # fmt: skip
for _name, _reference in _REST.items():
    register(
        Function(
            _name, 2, Kind.NUMERIC, f"fg::{_name}({{0}}, {{1}})", cost=12, smooth=_name != "floor_divide",
            reference=_reference,
            partials=None if _name == "floor_divide" else {
                "remainder": lambda a, b, y: (const(1, a.dtype), -apply("floor_divide", a, b)),
                "fmod": lambda a, b, y: (const(1, a.dtype), -apply("trunc", a / b)),
            }[_name],
            doc="Sign of the divisor (Python's %)." if _name == "remainder" else "",
        )
    )  # fmt: skip

# -- comparison, logic, bits -----------------------------------------------------------------------------------------
_operator("lt", "<", 4, Kind.COMPARE, reference=lambda t, a, b: a < b)
_operator("le", "<=", 4, Kind.COMPARE, reference=lambda t, a, b: a <= b)
_operator("gt", ">", 4, Kind.COMPARE, reference=lambda t, a, b: a > b)
_operator("ge", ">=", 4, Kind.COMPARE, reference=lambda t, a, b: a >= b)
_operator("eq", "==", 3, Kind.COMPARE, reference=lambda t, a, b: a == b)
_operator("ne", "!=", 3, Kind.COMPARE, reference=lambda t, a, b: a != b)
_operator("logical_and", "&&", 2, Kind.LOGICAL, reference=lambda t, a, b: t.logical_and(a, b))
_operator("logical_or", "||", 1, Kind.LOGICAL, reference=lambda t, a, b: t.logical_or(a, b))
_operator("logical_xor", "!=", 3, Kind.LOGICAL, reference=lambda t, a, b: t.logical_xor(a, b))
register(Function("logical_not", 1, Kind.LOGICAL, "!{0}", precedence=8, reference=lambda t, x: t.logical_not(x)))
# Bit operators bind looser than comparisons in C; level 0.x keeps them in parentheses everywhere, as people write them.
_operator("bitwise_and", "&", 0, Kind.BITWISE, reference=lambda t, a, b: a & b)
_operator("bitwise_or", "|", 0, Kind.BITWISE, reference=lambda t, a, b: a | b)
_operator("bitwise_xor", "^", 0, Kind.BITWISE, reference=lambda t, a, b: a ^ b)
for _name, _torch in (("left_shift", "bitwise_left_shift"), ("right_shift", "bitwise_right_shift")):
    register(
        Function(
            _name, 2, Kind.BITWISE, f"fg::{_name}({{0}}, {{1}})", cost=2,
            reference=lambda t, a, b, _t=_torch: getattr(t, _t)(a, b),
        )
    )  # fmt: skip
register(Function("bitwise_not", 1, Kind.BITWISE, "fg::bitwise_not({0})", reference=lambda t, x: ~x))
register(Function("isnan", 1, Kind.PREDICATE, "fg::isnan({0})", cost=1, reference=lambda t, x: t.isnan(x)))
register(Function("isinf", 1, Kind.PREDICATE, "fg::isinf({0})", cost=1, reference=lambda t, x: t.isinf(x)))
register(Function("isfinite", 1, Kind.PREDICATE, "fg::isfinite({0})", cost=1, reference=lambda t, x: t.isfinite(x)))
register(
    Function(
        "where", 3, Kind.SELECT, "{0} ? {1} : {2}", precedence=0, cost=1,
        reference=lambda t, c, a, b: t.where(c, a, b),
        doc="A select: the branch not taken cannot leak a NaN into the value or the gradient.",
    )
)  # fmt: skip

# -- powers, exponentials, logarithms --------------------------------------------------------------------------------
_float("exp", cuda_half="fg::fast_exp({0})")
_float(
    "exp2", cuda_half="fg::fast_exp2({0})", partials=lambda x, y: (y * _LN2,), doc="2^x.",
)  # fmt: skip
_float(
    "expm1",
    cuda_half="fg::fast_expm1({0})",
    partials=lambda x, y: (_exp(x),),
    doc="exp(x) - 1 without cancellation near 0.",
)
_float("log", cuda_half="fg::fast_log({0})", domain=(0, math.inf))
_float("log2", cuda_half="fg::fast_log2({0})", partials=lambda x, y: (1 / (x * _LN2),), domain=(0, math.inf))
_float("log10", cuda_half="fg::fast_log10({0})", partials=lambda x, y: (1 / (x * _LN10),), domain=(0, math.inf))
_float(
    "log1p", cuda_half="fg::fast_log1p({0})", partials=lambda x, y: (1 / (1 + x),), domain=(-1, math.inf),
    doc="log(1 + x) without cancellation.",
)  # fmt: skip
_float(
    "sqrt", cuda="fg::sqrt({0})", cuda_half="fg::fast_sqrt({0})", partials=lambda x, y: (0.5 / y,),
    domain=(0, math.inf), cost=8,
)  # fmt: skip
_float("rsqrt", partials=lambda x, y: (-0.5 * (y * y * y),), domain=(0, math.inf), cost=6)
_float(
    "cbrt", partials=lambda x, y: (1 / (3 * (y * y)),),
    reference=lambda t, x: t.sign(x) * t.pow(t.abs(x), 1 / 3), doc="Real cube root.",
)  # fmt: skip
_float(
    "pow", 2, cuda_half="fg::fast_pow({0}, {1})",
    partials=lambda a, b, y: (
        _where(_eq(b, _zero(b)), _zero(a), b * apply("pow", a, b - 1)),
        _where(_and(_eq(a, _zero(a)), _ge(b, _zero(b))), _zero(a), y * _log(a)),
    ),
    cost=30, doc="a^b; at a = 0 and at b = 0 the derivative follows torch.",
)  # fmt: skip
_float(
    "xlogy", 2, cuda="fg::xlogy({0}, {1})", cuda_half="fg::fast_xlogy({0}, {1})",
    reference=lambda t, a, b: t.xlogy(a, b),
    partials=lambda a, b, y: (_where(_and(_eq(a, _zero(a)), _le(b, _zero(b))), _zero(a), _log(b)), a / b),
    doc="a log(b), and 0 where a = 0 unless b is NaN.",
)  # fmt: skip

# -- trigonometric and hyperbolic ------------------------------------------------------------------------------------
_float("sin", cuda="fg::sin({0})", cuda_half="fg::fast_sin({0})", cost=24)
_float("cos", cuda="fg::cos({0})", cuda_half="fg::fast_cos({0})", cost=24)
_float(
    "tan", cuda="fg::tan({0})", cuda_half="fg::fast_tan({0})", partials=lambda x, y: (1 + y * y,), cost=36,
)  # fmt: skip
_float("asin", partials=lambda x, y: (apply("rsqrt", (1 - x) * (1 + x)),), domain=(-1, 1))
_float("acos", partials=lambda x, y: (-apply("rsqrt", (1 - x) * (1 + x)),), domain=(-1, 1))
_float("atan")
_float(
    "atan2", 2, partials=lambda a, b, y: (_over_square(b, a, b), _over_square(-a, a, b)), cost=24,
    doc="Angle of (b, a); derivative 0 at the origin.",
)  # fmt: skip
_float("sinh", cost=20)
_float("cosh", cost=20)
_float("tanh", cuda_half="fg::fast_tanh({0})", partials=lambda x, y: (1 - y * y,))
_float("asinh", partials=lambda x, y: (1 / apply("hypot", x, const(1, x.dtype)),), cost=24)
_float("acosh", partials=lambda x, y: (apply("rsqrt", x - 1) * apply("rsqrt", x + 1),), domain=(1, math.inf), cost=24)
_float("atanh", partials=lambda x, y: (1 / ((1 - x) * (1 + x)),), domain=(-1, 1), cost=24)
_float("hypot", 2, partials=lambda a, b, y: (a / y, b / y), cost=20, doc="sqrt(a^2 + b^2) without overflow.")

# -- special functions -----------------------------------------------------------------------------------------------
_float("erf", partials=lambda x, y: ((2 / math.sqrt(math.pi)) * _exp(-(x * x)),), cost=20)
_float(
    "erfc", partials=lambda x, y: (-(2 / math.sqrt(math.pi)) * _exp(-(x * x)),), cost=24,
    cuda_half="fg::fast_erfc({0})",
)  # fmt: skip
_float("erfinv", partials=lambda x, y: ((math.sqrt(math.pi) / 2) * _exp(y * y),), domain=(-1, 1), cost=24)
_float(
    "ndtri", cuda="normcdfinv{f}({0})", reference=lambda t, x: t.special.ndtri(x),
    partials=lambda x, y: (math.sqrt(2 * math.pi) * _exp(y * y / 2),), domain=(0, 1), cost=30,
    doc="Where the normal distribution function is x.",
)  # fmt: skip
_float("lgamma", sympy=lambda sp, x: sp.loggamma(x), cost=60, doc="log |gamma(x)|.")
_float("digamma", cuda="fg::digamma({0})", sympy=lambda sp, x: sp.digamma(x), cost=60, doc="d/dx lgamma(x).")
_float(
    "polygamma", cuda="fg::polygamma<{d}>({0})", cost=120,
    reference=lambda t, x, n="1": t.polygamma(int(n), x), partials=lambda x, y: (y,),
    doc="The n-th derivative of digamma (n is the node's detail), by Hurwitz's zeta function.",
)  # fmt: skip

# -- the logistic family ---------------------------------------------------------------------------------------------
_float("sigmoid", cuda="fg::sigmoid({0})", cuda_half="fg::fast_sigmoid({0})", partials=lambda x, y: (y * (1 - y),))
_float(
    "logsigmoid", cuda="fg::logsigmoid({0})", cuda_half="fg::fast_logsigmoid({0})",
    partials=lambda x, y: (apply("sigmoid", -x),), reference=lambda t, x: t.nn.functional.logsigmoid(x),
    doc="log(sigmoid(x)) = min(x, 0) - log1p(exp(-|x|)).",
)  # fmt: skip
_float(
    "softplus", cuda="fg::softplus({0})", cuda_half="fg::fast_softplus({0})",
    partials=lambda x, y: (apply("sigmoid", x),),
    reference=lambda t, x: t.logaddexp(x, t.zeros((), dtype=x.dtype, device=x.device)),
    doc="log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)).",
)  # fmt: skip

# -- arithmetic that nothing contracts or regroups (derive/exact) ----------------------------------------------------
for _name, _partials in (
    ("add", lambda a, b, y: (const(1, a.dtype), const(1, a.dtype))),
    ("sub", lambda a, b, y: (const(1, a.dtype), const(-1, a.dtype))),
    ("mul", lambda a, b, y: (b, a)),
    ("div", lambda a, b, y: (1 / b, -y / b)),
):
    register(
        Function(
            f"{_name}_rn",
            2,
            Kind.FLOAT,
            f"fg::{_name}_rn({{0}}, {{1}})",
            cost=lookup(_name).cost,
            partials=_partials,
            reference=lookup(_name).reference,
            doc=f"{_name}, rounded by itself: the same bits in every kernel.",
        )
    )
# -- random numbers (declare/random_numbers) -------------------------------------------------------------------------
for _name, _dtype, _numbers in (
    ("uniform", dtypes.float32, philox.uniform),
    ("positive_uniform", dtypes.float32, philox.positive_uniform),
    ("uniform_double", dtypes.float64, philox.uniform_double),
):
    register(
        Function(
            _name, 4, Kind.DRAW, f"fg::{_name}({{0}}, {{1}}, {{2}}, {{3}})", smooth=False, draws=_dtype,
            cost=20 if _dtype.size == 4 else 80, reference=_numbers,
            doc="Of a seed, the number of a draw, a row and a column: a random number, evenly distributed between 0 "
            "and 1, by counting (Philox 4x32-10).",
        )
    )  # fmt: skip
# -- steps, kinks and ties (as torch) --------------------------------------------------------------------------------
for _name in ("floor", "ceil", "trunc"):
    _float(_name, smooth=False, cost=1, fixed=Category.INTEGER)
_float("round", cuda="rint{f}({0})", smooth=False, cost=1, fixed=Category.INTEGER, doc="Half to even.")
register(
    Function(
        "sign", 1, Kind.NUMERIC, "fg::sign({0})", smooth=False, cost=2, reference=lambda t, x: t.sign(x),
        fixed=Category.BOOL,
        doc="-1, 0 or 1; 0 at NaN, as torch.",
    )
)  # fmt: skip
register(
    Function(
        "abs", 1, Kind.NUMERIC, "fg::abs({0})", cost=1, reference=lambda t, x: t.abs(x),
        partials=lambda x, y: (_sign(x),), doc="Derivative 0 at 0.",
    )
)  # fmt: skip
register(
    Function(
        "copysign", 2, Kind.FLOAT, "copysign{f}({0}, {1})", cost=2, reference=lambda t, a, b: t.copysign(a, b),
        partials=lambda a, b, y: (_where(_eq(a, _zero(a)), _zero(a), y / a), None),
    )
)  # fmt: skip
register(
    Function(
        "minimum", 2, Kind.NUMERIC, "fg::minimum({0}, {1})", cost=2, reference=lambda t, a, b: t.minimum(a, b),
        partials=lambda a, b, y: (
            _where(_gt(a, b), _zero(a), _either(_eq(a, b), 0.5, 1, a)),
            _where(_lt(a, b), _zero(a), _either(_eq(a, b), 0.5, 1, a)),
        ),
        doc="NaN wins. A tie gives each side half of the gradient.",
    )
)  # fmt: skip
register(
    Function(
        "maximum", 2, Kind.NUMERIC, "fg::maximum({0}, {1})", cost=2, reference=lambda t, a, b: t.maximum(a, b),
        partials=lambda a, b, y: (
            _where(_lt(a, b), _zero(a), _either(_eq(a, b), 0.5, 1, a)),
            _where(_gt(a, b), _zero(a), _either(_eq(a, b), 0.5, 1, a)),
        ),
        doc="NaN wins. A tie gives each side half of the gradient.",
    )
)  # fmt: skip
register(
    Function(
        "clamp", 3, Kind.NUMERIC, "fg::clamp({0}, {1}, {2})", cost=3, reference=lambda t, x, lo, hi: t.clamp(x, lo, hi),
        partials=lambda x, lo, hi, y: (
            _where(_and(_ge(x, lo), _le(x, hi)), const(1, x.dtype), _zero(x)),
            _where(_and(_lt(x, lo), _lt(lo, hi)), const(1, x.dtype), _zero(x)),
            _where(apply("logical_or", _gt(x, hi), _gt(lo, hi)), const(1, x.dtype), _zero(x)),
        ),
        doc="min(max(x, lo), hi); the gradient passes at the bounds.",
    )
)  # fmt: skip
register(
    Function(
        "ratio", 2, Kind.FLOAT, "fg::ratio({0}, {1})", cuda_half="fg::fast_ratio({0}, {1})", cost=6,
        reference=lambda t, a, b: a / b, partials=lambda a, b, y: (1 / b, -y / b),
        doc="a / b where b is known to lie between 1 and 2^120, so that half-precision kernels may use a reciprocal.",
    )
)  # fmt: skip
_float(
    "exp_clamped", cuda="fg::exp_clamped({0})", cuda_half="fg::fast_exp_clamped({0})",
    reference=lambda t, x: t.exp(t.clamp(x, max=350 if x.dtype == t.float64 else 40)),
    partials=lambda x, y: (_where(_gt(x, const(350 if x.dtype.size == 8 else 40, x.dtype)), _zero(x), y),),
    doc="exp(min(x, 40)), 350 in float64: lowering's exponential. Its square is finite, its -4th power zero.",
)  # fmt: skip

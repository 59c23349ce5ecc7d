"""What tools/accuracy.py sweeps: each function of the table and each activation, with torch's and a float64 oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

import fusegen as fg
from fusegen.declare.language import NOT_FUNCTIONS, TABLE_FUNCTIONS
from fusegen.declare.table import Function as Row
from fusegen.declare.table import lookup

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One function: ours as an op, torch's, and what else is needed to judge them.

    Attributes:
        op: the fusegen op.
        torch_op: the same in torch; in float64 it is the oracle.
        arity: how many tensors both take.
        derivative: the derivative in float64, where autograd of ``torch_op`` cancels or overflows there.
        oracle: the value in float64, where ``torch_op`` is not good enough there.
        terms: what is subtracted, where value or derivative are a difference of it (see `TERMS`).
        edges: where an intermediate result leaves float32 (see `EDGES`).
        slope: the bound of the derivative in float32, where it is not FLOAT_BOUND (see `SLOPES`).
        carries: how many parts the derivative changes where the value changes by one (see `CARRIED`).
        reach: only inputs up to this size.
    """

    name: str
    op: Function
    torch_op: Function
    arity: int = 1
    derivative: Function | None = None
    oracle: Function | None = None
    terms: tuple[str, Function] | None = None
    edges: Function | None = None
    slope: float = 4.0
    carries: Function | None = None
    reach: float = math.inf


def _exp_over_square(x: torch.Tensor) -> torch.Tensor:
    """sigmoid'(x) = e / (1 + e)^2 with e = exp(-|x|): nothing cancels."""
    e = torch.exp(-x.abs())
    return e / (1 + e) ** 2


def _sech2(x: torch.Tensor) -> torch.Tensor:
    return 1 / torch.cosh(x) ** 2


def _trigamma(x: torch.Tensor) -> torch.Tensor:
    """By reflection around the nearest whole number: torch's loses every digit left of zero, far from it."""
    rest = x - x.round()
    mirrored = (math.pi / torch.sin(math.pi * rest)) ** 2 - torch.polygamma(1, 1 - x)
    left = torch.where(rest == 0, torch.full_like(x, math.inf), mirrored)
    return torch.where(x <= 0, left, torch.polygamma(1, x))


def _digamma(x: torch.Tensor) -> torch.Tensor:
    """As `_trigamma`: digamma(1 - x) - pi cot(pi x) left of zero."""
    rest = x - x.round()
    mirrored = torch.digamma(1 - x) - math.pi / torch.tan(math.pi * rest)
    left = torch.where(rest == 0, torch.full_like(x, math.nan), mirrored)
    return torch.where(x < 0, left, torch.digamma(x))


def _polygamma(order: int, x: torch.Tensor) -> torch.Tensor:
    """By reflection, as `_trigamma`: pi^(n + 1) P_n(c), P_(k + 1) = -(1 + c^2) P_k', c = cot(pi x), left of 0."""
    rest = x - x.round()
    c = 1 / torch.tan(math.pi * rest)
    polynomial = [0.0, 1.0]
    for _ in range(order):
        slope = [j * p for j, p in enumerate(polynomial)][1:]
        polynomial = [-(a + b) for a, b in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope], strict=True)]
    cotangent = sum((p * c**j for j, p in enumerate(polynomial)), torch.zeros_like(x)) * math.pi ** (order + 1)
    mirrored = (-1) ** order * torch.polygamma(order, 1 - x) - cotangent
    pole = torch.full_like(x, math.inf if order % 2 else -math.inf)
    right = torch.where(x == math.inf, 0 / pole, torch.polygamma(order, x))
    return torch.where(x <= 0, torch.where(rest == 0, pole, mirrored), right)


# Where torch's float64 gradient is not an oracle: 1 - y^2 cancels, and infinity times zero is NaN.
STABLE_DERIVATIVES: dict[str, Function] = {
    "expm1": torch.exp,
    "tanh": _sech2,
    "lgamma": _digamma,
    "digamma": _trigamma,
    "sigmoid": _exp_over_square,
    "softplus": torch.sigmoid,
    "logsigmoid": lambda x: torch.sigmoid(-x),
    "asinh": lambda x: 1 / torch.hypot(x, torch.ones((), dtype=x.dtype)),
    "acosh": lambda x: torch.rsqrt(x - 1) * torch.rsqrt(x + 1),
    "cbrt": lambda x: x.abs().pow(-2 / 3) / 3,
}
ORACLES: dict[str, Function] = {
    "digamma": _digamma,
    "cbrt": lambda x: torch.copysign(x.abs().pow(1 / 3), x),
}
# Differences whose terms are larger than they: 1 - y^2, y (1 - y) and x - tanh(x). They keep the precision that float32
# has for their terms, as torch's do, so rounding is counted at that size: which of the two, and its size.
TERMS: dict[str, tuple[str, Function]] = {
    "tanh": ("derivative", torch.ones_like),
    "sigmoid": ("derivative", torch.sigmoid),
    "tanhshrink": ("value", torch.abs),
}
# Slopes with a factor 1 - y where y is nearly 1 and x, or its cube, a factor as well: what float32 rounds off y counts
# x times. Largest errors that the emulator shows: 8.2, 8.2, 6.1 and 16.4.
SLOPES = {"ops.silu": 10.0, "ops.quick_gelu": 10.0, "ops.mish": 8.0, "ops.gelu, tanh": 20.0}
# Slopes that are computed of their function's value v, which float32 and CUDA's own function round, as torch computes
# them too: exp(v²/2) counts what is off in v v² times, which is 199 at the smallest float.
CARRIED: dict[str, Function] = {"ndtri": lambda x: torch.special.ndtri(x).square()}


def _power_overflows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == 0) | (((b - 1) * a.abs().log2()).abs() >= 126)


def _hypot_overflows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Or is subnormal, and has few digits."""
    size = torch.hypot(a, b)
    return (size > torch.finfo(torch.float32).max) | (size < torch.finfo(torch.float32).tiny)


# Where an intermediate result of a derivative leaves float32 though the derivative does not. Torch's are wrong there
# too, and ours may be as wrong as torch's are somewhere among these inputs.
EDGES: dict[str, Function] = {
    "pow": _power_overflows,  # a^(b - 1)
    "exp2": lambda x: x >= 128,  # 2^x
    "rsqrt": lambda x: x < 2.0**-85,  # x^(-3/2), twice the derivative
    "atan": lambda x: x.abs() >= 2.0**63,  # x^2, whose reciprocal is subnormal
    "atanh": lambda x: x.abs() >= 2.0**63,
    "atan2": _hypot_overflows,
    "hypot": _hypot_overflows,
}
# CUDA's lgammaf has 6 ulp, and more in this interval (CUDA Math API, accuracy of single precision functions).
LGAMMA_UNBOUNDED = (-10.001, -2.264)
# Values that are exact, or the exact one's nearest number.
_ROUNDED_ONCE = (
    "add sub mul div neg fmod sqrt floor ceil trunc round sign abs copysign minimum maximum clamp isnan isinf isfinite "
    "lt le gt ge eq ne ops.relu ops.relu6 ops.hardtanh ops.hardshrink ops.softshrink ops.threshold ops.squared_relu"
)
ROUNDED_ONCE = frozenset(_ROUNDED_ONCE.split())
# Which zero of two is the larger is up to the hardware.
ZERO_TIES = ("minimum", "maximum", "clamp")

# Not functions of floats alone, or the identity; and the two that lowering uses only where their arguments lie in their
# domains: division and the exponential.
_NOT_SWEPT = (
    "cast powi int_pow stop_gradient factor located scanned recurrence declared within polygamma where "
    "logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not left_shift "
    "right_shift ratio exp_clamped "
    "uniform positive_uniform uniform_double "  # random numbers
    "add_rn sub_rn mul_rn div_rn"  # add, sub, mul and div that no compiler contracts
)
NOT_SWEPT = frozenset(_NOT_SWEPT.split())


def _declared(row: Row) -> Callable[..., Any]:
    operators: dict[str, Callable[..., Any]] = {
        "neg": lambda x: -x,
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "pow": lambda a, b: a**b,
    }
    if row.name in operators:
        return operators[row.name]
    function: Callable[..., Any] = getattr(fg, row.name)
    by_arity: dict[int, Callable[..., Any]] = {
        1: lambda x: function(x), 2: lambda a, b: function(a, b), 3: lambda a, b, c: function(a, b, c),
    }  # fmt: skip
    return by_arity[row.arity]


def table_cases() -> Iterator[Case]:
    """One case for each row of the function table that takes floats."""
    for row in map(lookup, (*NOT_FUNCTIONS, *TABLE_FUNCTIONS)):
        if row.name not in NOT_SWEPT:
            yield Case(
                row.name, fg.op(_declared(row), name=f"sweep_{row.name}"),
                lambda *x, _row=row: _row.reference(torch, *x), row.arity,
                STABLE_DERIVATIVES.get(row.name), ORACLES.get(row.name), TERMS.get(row.name), EDGES.get(row.name),
                carries=CARRIED.get(row.name),
            )  # fmt: skip
    for order in (1, 2, 3):
        yield Case(
            f"polygamma({order})", fg.op(lambda x, _n=order: fg.polygamma(_n, x), name=f"sweep_polygamma_{order}"),
            lambda x, _n=order: torch.polygamma(_n, x), oracle=lambda x, _n=order: _polygamma(_n, x),
            derivative=lambda x, _n=order: _polygamma(_n + 1, x), reach=1e4,  # torch adds up a term for each -1
        )  # fmt: skip


# -- activations ----------------------------------------------------------------------------------------------------


def _normal(x: torch.Tensor) -> torch.Tensor:
    """The normal distribution function without 1 + erf, which cancels in the left tail."""
    return 0.5 * torch.erfc(-x * math.sqrt(0.5))


def _gelu_slope(x: torch.Tensor) -> torch.Tensor:
    return _normal(x) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _gelu_tanh_slope(x: torch.Tensor) -> torch.Tensor:
    scale = 2 * math.sqrt(2 / math.pi)
    u = scale * (x + 0.044715 * x**3)
    slope = torch.sigmoid(u) + x * _exp_over_square(u) * scale * (1 + 3 * 0.044715 * x * x)
    return torch.where(x.isinf(), (x > 0).to(x.dtype), slope)  # its limits


def _tanhshrink(x: torch.Tensor) -> torch.Tensor:
    x2 = x * x
    series = x * x2 * (1 / 3 - x2 * (2 / 15 - x2 * (17 / 315 - x2 * (62 / 2835))))
    return torch.where(x.abs() < 0.03, series, x - torch.tanh(x))


# By name: what stands for torch's op, the derivative and the oracle in float64 where torch's cancel, options of both.
_F = torch.nn.functional
ACTIVATIONS: dict[str, tuple[Function, Function | None, Function | None, dict[str, Any]]] = {
    **{
        name: (getattr(_F, name), None, None, {})
        for name in (
            "relu", "relu6", "leaky_relu", "hardtanh", "hardsigmoid", "hardswish", "hardshrink", "softshrink", "elu",
            "celu", "selu", "silu", "mish", "softplus",
        )
    },
    "softsign": (_F.softsign, lambda x: 1 / (1 + x.abs()) ** 2, None, {}),
    "sigmoid": (torch.sigmoid, _exp_over_square, None, {}),
    "tanh": (torch.tanh, _sech2, None, {}),
    "logsigmoid": (_F.logsigmoid, lambda x: torch.sigmoid(-x), None, {}),
    "tanhshrink": (_F.tanhshrink, lambda x: torch.tanh(x) ** 2, _tanhshrink, {}),
    "threshold": (_F.threshold, None, None, {"threshold": 0.5, "value": -1.0}),
    "gelu": (_F.gelu, _gelu_slope, lambda x: x * _normal(x), {}),
    "gelu, tanh": (_F.gelu, _gelu_tanh_slope, _gelu_tanh, {"approximate": "tanh"}),
    "quick_gelu": (lambda x: x * torch.sigmoid(1.702 * x), None, None, {}),
    "squared_relu": (lambda x: torch.square(_F.relu(x)), None, None, {}),
}  # fmt: skip


def activation_cases() -> Iterator[Case]:
    """One case for each activation of the library, after its declaration in ``ops/``."""
    for name, (torch_op, derivative, oracle, options) in ACTIVATIONS.items():
        op = getattr(fg.ops, name.partition(",")[0])
        yield Case(
            f"ops.{name}", lambda x, _op=op, _o=options: _op(x, **_o),
            lambda x, _op=torch_op, _o=options: _op(x, **_o), 1, derivative, oracle, TERMS.get(name),
            slope=SLOPES.get(f"ops.{name}", 4.0),
            reach=1e38 if name == "quick_gelu" else math.inf,  # 1.702 x overflows beyond
        )  # fmt: skip


@cache
def cases() -> tuple[Case, ...]:
    """Everything that is swept, in the order of the page."""
    return (*table_cases(), *activation_cases())

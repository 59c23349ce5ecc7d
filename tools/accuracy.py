"""Sweeps every scalar function and activation: value and derivative, against float64, beside torch's own error.

    python tools/accuracy.py             # on the GPU if there is one, else on the emulator; writes docs/accuracy.md
    python tools/accuracy.py --check     # writes nothing; fails where an error is over its bound
    python tools/accuracy.py tanh mish   # these only, printed

Inputs: all 65,536 float16 and all 65,536 bfloat16 numbers, and a float32 sample that has every exponent, both signs,
subnormals, zeros, infinities and NaN. An error is the distance to the float64 result, in units in the last place of
the result's dtype: 0.5 is correct rounding. tests/test_sweep.py holds every row to `bound`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import fusegen as fg
from fusegen.declare.language import NOT_FUNCTIONS, TABLE_FUNCTIONS
from fusegen.declare.table import Function as Row
from fusegen.declare.table import lookup

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHORT = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
HALVES = (torch.float16, torch.bfloat16)

# What is allowed where torch itself is better. A half result that was computed in float32 and rounded once is off by
# half an ulp and what float32 lost; in float32 itself the bound is what CUDA's own functions and one step of
# cancellation-free algebra around them need.
HALF_BOUND = 0.52
FLOAT_BOUND = 4.0


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
        floor: absolute errors of the derivative up to this do not count (see `FLOORS`).
        cancels: errors of the value up to this fraction of the input do not count.
        reach: only inputs up to this size.
    """

    name: str
    op: Function
    torch_op: Function
    arity: int = 1
    derivative: Function | None = None
    oracle: Function | None = None
    floor: float = 0.0
    cancels: float = 0.0
    reach: float = math.inf


@dataclass(frozen=True)
class Error:
    """The largest error of one function in one dtype, where it is, and where NaN or the sign of zero is another."""

    ulp: float
    at: tuple[float, ...]
    nan_differs: frozenset[tuple[float, ...]]
    zero_differs: frozenset[tuple[float, ...]]


@dataclass(frozen=True)
class Result:
    """Errors of one case in one dtype. None where there is no derivative, or torch does not have the function."""

    case: Case
    dtype: torch.dtype
    value: Error
    torch_value: Error | None
    derivative: Error | None
    torch_derivative: Error | None


# -- cases -----------------------------------------------------------------------------------------------------------


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
# 1 - y^2 and y (1 - y) keep the absolute precision of float32, as torch's do: where the function is saturated, the
# derivative is smaller than that and its digits mean nothing.
# The same holds of activations, whose derivatives change sign somewhere.
FLOORS = {"tanh": 8e-7, "sigmoid": 8e-7}
ACTIVATION_FLOOR = 2.5e-6
# x - tanh(x) keeps what float32's x has left.
CANCELS = {"tanhshrink": 2.5e-7}
# Which zero of two is the larger is up to the hardware.
ZERO_TIES = ("minimum", "maximum", "clamp")

# Not functions of floats alone, or the identity; and the two that lowering uses only where their arguments lie in their
# domains: division and the exponential.
_NOT_SWEPT = (
    "cast powi int_pow barrier polygamma where logical_and logical_or logical_xor logical_not bitwise_and bitwise_or "
    "bitwise_xor bitwise_not left_shift right_shift ratio exp_clamped"
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
                STABLE_DERIVATIVES.get(row.name), ORACLES.get(row.name), FLOORS.get(row.name, 0.0),
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
    return torch.sigmoid(u) + x * _exp_over_square(u) * scale * (1 + 3 * 0.044715 * x * x)


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
            lambda x, _op=torch_op, _o=options: _op(x, **_o), 1, derivative, oracle, ACTIVATION_FLOOR,
            CANCELS.get(name, 0.0), 1e38 if name == "quick_gelu" else math.inf,  # 1.702 x overflows beyond
        )  # fmt: skip


@cache
def cases() -> tuple[Case, ...]:
    """Everything that is swept, in the order of the page."""
    return (*table_cases(), *activation_cases())


# -- inputs ----------------------------------------------------------------------------------------------------------


_SPECIAL = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 10.0, 100.0, math.inf)


@cache
def inputs(dtype: torch.dtype, arity: int = 1) -> Tensors:
    """All numbers of a half dtype, or the float32 sample. Of several arguments: special values and random ones."""
    if arity > 1:
        return _tuples(dtype, arity)
    if dtype in HALVES:
        return (torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype),)
    generator = torch.Generator().manual_seed(0)
    mantissas = torch.cat([torch.tensor([0, 1, 2**22, 2**23 - 1]), torch.randint(2**23, (60,), generator=generator)])
    patterns = ((torch.arange(256) << 23)[:, None] | mantissas).flatten()
    every_exponent = torch.cat([patterns, patterns - 2**31]).to(torch.int32).view(torch.float32)
    where_things_happen = torch.linspace(-24, 24, 2**14 + 1)
    close_to_one = 1 + torch.linspace(-1e-3, 1e-3, 2**11 + 1)
    return (torch.cat([every_exponent, where_things_happen, close_to_one, -close_to_one]),)


def _tuples(dtype: torch.dtype, arity: int) -> Tensors:
    info = torch.finfo(dtype)
    positive = (*_SPECIAL, info.tiny, info.tiny * info.eps, info.max)
    special = torch.tensor([*positive, *(-v for v in positive), math.nan], dtype=torch.float64)
    if arity > 2:
        special = special[::2]
    grid = torch.cartesian_prod(*[special] * arity)
    generator = torch.Generator().manual_seed(0)
    close = torch.rand((4096, arity), generator=generator, dtype=torch.float64) * 16 - 8
    exponents = torch.rand((4096, arity), generator=generator, dtype=torch.float64) * 20 - 10
    spread = torch.copysign(torch.exp2(exponents), close)
    return tuple(t.contiguous() for t in torch.cat([grid, close, spread]).to(dtype).unbind(1))


# -- errors ----------------------------------------------------------------------------------------------------------


def ulp(reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between neighbouring numbers of ``dtype`` at the float64 ``reference``."""
    info = torch.finfo(dtype)
    bits = round(-math.log2(info.eps))
    _, exponent = torch.frexp(reference)
    exponent = torch.clamp(exponent - 1, min=round(math.log2(info.tiny)))
    return torch.ldexp(torch.ones_like(reference), exponent - bits)


def largest_error(
    got: torch.Tensor, reference: torch.Tensor, x: Tensors, floor: torch.Tensor | float = 0.0, nan_too: bool = True
) -> Error:
    """Of ``got`` from the float64 ``reference``. An overflow counts as the next power of two.

    Args:
        floor: absolute errors up to this do not count.
        nan_too: inputs that are NaN count. Derivatives there are torch's on the CPU or torch's on the GPU: not both.
    """
    dtype, got = got.dtype, got.double()
    points = torch.stack([t.double() for t in x], 1)

    def where(mask: torch.Tensor) -> frozenset[tuple[float, ...]]:
        return frozenset(tuple(point) for point in points[mask].tolist())

    if not dtype.is_floating_point:
        wrong = where(got != reference.double())
        return Error(math.inf if wrong else 0.0, next(iter(wrong), ()), frozenset(), frozenset())
    top = 2.0 ** (math.floor(math.log2(torch.finfo(dtype).max)) + 1)
    rounded = reference.to(dtype).double()
    ignored = points.isnan().any(1) & (not nan_too)
    nan_differs = where((got.isnan() != rounded.isnan()) & ~ignored)
    zero_differs = where((got == 0) & (rounded == 0) & (torch.signbit(got) != torch.signbit(rounded)))
    difference = (got.clamp(-top, top) - reference.clamp(-top, top)).abs()
    error = difference / ulp(reference.clamp(-top * 0.75, top * 0.75), dtype)
    error[got.isnan() | rounded.isnan() | ignored | (difference <= floor)] = 0
    worst = int(error.argmax())
    return Error(float(error[worst]), tuple(points[worst].tolist()), nan_differs, zero_differs)


def _with_derivatives(function: Function, x: Tensors) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    leaves = [t.detach().clone().requires_grad_() for t in x]
    y = function(*leaves)
    if not y.requires_grad:
        return y.detach(), [None] * len(leaves)
    try:
        found = torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)
    except RuntimeError as error:
        if "is not implemented" not in str(error):
            raise
        return y.detach(), [None] * len(leaves)  # torch has no derivative of floor_divide
    return y.detach().cpu(), [g if g is None else g.cpu() for g in found]


def _worst(errors: Iterable[Error | None]) -> Error | None:
    """The largest of the errors by each argument."""
    known = [e for e in errors if e is not None]
    if not known:
        return None
    worst = max(known, key=lambda e: e.ulp)
    nan_differs = frozenset[tuple[float, ...]]().union(*(e.nan_differs for e in known))
    zero_differs = frozenset[tuple[float, ...]]().union(*(e.zero_differs for e in known))
    return Error(worst.ulp, worst.at, nan_differs, zero_differs)


def sweep(case: Case, dtype: torch.dtype, device: str = "cpu") -> Result:
    """Largest errors of ``case`` in ``dtype``."""
    x = inputs(dtype, case.arity)
    if case.reach < math.inf:
        x = tuple(t[~(t.abs() > case.reach) | t.isinf()] for t in x)
    exact = tuple(t.double() for t in x)
    oracle, slopes = _with_derivatives(case.torch_op, exact)
    if case.oracle:
        oracle = case.oracle(*exact)
    if case.derivative:
        slopes = [case.derivative(*exact)]

    def errors(function: Function) -> tuple[Error, Error | None]:
        value, derivatives = _with_derivatives(function, tuple(t.to(device) for t in x))
        return largest_error(value.cpu(), oracle, x, case.cancels * exact[0].abs()), _worst(
            None
            if got is None
            else largest_error(got, torch.zeros_like(exact[0]) if s is None else s, x, case.floor, nan_too=False)
            for got, s in zip(derivatives, slopes, strict=True)
        )

    value, derivative = errors(case.op)
    try:
        torch_value, torch_derivative = errors(case.torch_op)
    except (RuntimeError, NotImplementedError):  # torch lacks it for this dtype
        return Result(case, dtype, value, None, derivative, None)
    return Result(case, dtype, value, torch_value, derivative, torch_derivative)


def bound(result: Result, which: str) -> float:
    """The largest error that the value or the derivative of this row may have."""
    own = HALF_BOUND if result.dtype in HALVES else FLOAT_BOUND
    torchs = result.torch_value if which == "value" else result.torch_derivative
    return own if torchs is None else max(own, torchs.ulp * 1.05)


def complaints(result: Result) -> list[str]:
    """What is wrong with a row, as sentences."""
    found = []
    pairs = (
        ("value", result.value, result.torch_value),
        ("derivative", result.derivative, result.torch_derivative),
    )
    for which, error, torchs in pairs:
        if error is None:
            continue
        limit = bound(result, which)
        where = f"{result.case.name}, {SHORT[result.dtype]}, {which}"
        if error.ulp > limit:
            found.append(f"{where}: {error.ulp:.3g} ulp at {error.at}; the bound is {limit:.3g}")
        worse = error.nan_differs - (torchs.nan_differs if torchs else frozenset())
        if worse:
            found.append(f"{where}: NaN where float64 has none, or the other way round, at {sorted(worse)[:5]}")
        if which == "derivative" or result.case.name in ZERO_TIES or result.case.name.startswith("ops."):
            continue
        if error.zero_differs - (torchs.zero_differs if torchs else frozenset()):
            found.append(f"{where}: zero of the other sign at {sorted(error.zero_differs)[:5]}")
    return found


# -- the page --------------------------------------------------------------------------------------------------------

_HEAD = """# Accuracy

Largest error of every scalar function and activation, and of its derivative, beside torch's own op in the same dtype.
{ran}

All 65,536 float16 and all 65,536 bfloat16 inputs, and {sample:,} float32 inputs with every exponent, both signs,
subnormals, zeros, infinities and NaN, against float64. Errors are in units in the last place of the result: 0.5 is
correct rounding; "exact" is no error at all; a dash: no derivative, or torch lacks it. Written by
`python tools/accuracy.py`; `tests/test_sweep.py` holds every row to its bound (torch's own error, or {half} for half
types and {float} for float32).

"""


def page(results: Iterable[Result], ran: str) -> str:
    """``docs/accuracy.md``."""
    lines = [
        _HEAD.format(ran=ran, sample=inputs(torch.float32)[0].numel(), half=HALF_BOUND, float=FLOAT_BOUND).rstrip(),
        "",
    ]
    lines += ["| function | dtype | value, ours | torch | derivative, ours | torch |", "|---|---|--:|--:|--:|--:|"]
    for r in results:
        cells = [_cell(e) for e in (r.value, r.torch_value, r.derivative, r.torch_derivative)]
        lines.append(f"| {r.case.name} | {SHORT[r.dtype]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(error: Error | None) -> str:
    if error is None:
        return "–"
    if error.ulp == 0:
        return "exact"
    return f"{error.ulp:.2f}" if error.ulp < 100 else f"{error.ulp:.1e}"


def main(arguments: list[str]) -> int:
    """The command; 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="functions to sweep; all by default")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a bound is broken")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = [case for case in cases() if not options.names or case.name in options.names]
    results = [sweep(case, dtype, device) for case in wanted for dtype in DTYPES]
    ran = "Run on " + (torch.cuda.get_device_name() + "." if device == "cuda" else "the emulator, on a CPU.")
    text = page(results, ran)
    if options.names or options.check:
        print(text)
    else:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
    wrong = [sentence for result in results for sentence in complaints(result)]
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

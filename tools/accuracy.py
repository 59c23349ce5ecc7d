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
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import fusegen as fg
from fusegen.declare.table import Function, Kind, rows

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHORT = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
HALVES = (torch.float16, torch.bfloat16)

# What is allowed where torch itself is better. A half result that was computed in float32 and rounded once is off by
# half an ulp and what float32 lost; in float32 itself the bound is what CUDA's own functions and one step of
# cancellation-free algebra around them need.
HALF_BOUND = 0.52
FLOAT_BOUND = 4.0


@dataclass(frozen=True)
class Case:
    """One function: ours as an op, torch's, and derivatives where float64 autograd itself would lose digits.

    Attributes:
        op: the fusegen op, of one tensor.
        torch_op: the same in torch; in float64 it is the oracle.
        derivative: the derivative in float64, where autograd of ``torch_op`` cancels or overflows there.
        oracle: the value in float64, where ``torch_op`` is not good enough there.
        limits: (value, derivative) bounds in float32 ulp where the general one does not hold, and `why`.
    """

    name: str
    op: Callable[[torch.Tensor], torch.Tensor]
    torch_op: Callable[[torch.Tensor], torch.Tensor]
    derivative: Callable[[torch.Tensor], torch.Tensor] | None = None
    oracle: Callable[[torch.Tensor], torch.Tensor] | None = None
    limits: tuple[float, float] = (FLOAT_BOUND, FLOAT_BOUND)
    why: str = ""


@dataclass(frozen=True)
class Error:
    """The largest error of one function in one dtype, where it is, and where NaN stands on one side only."""

    ulp: float
    at: float
    nan_differs: tuple[float, ...]
    zero_sign_differs: tuple[float, ...]


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


# Where torch's float64 gradient is not an oracle: 1 - y^2 cancels, and infinity times zero is NaN.
STABLE_DERIVATIVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
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
    "erf": lambda x: (2 / math.sqrt(math.pi)) * torch.exp(-x * x),
    "erfc": lambda x: -(2 / math.sqrt(math.pi)) * torch.exp(-x * x),
}

_ORACLES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"digamma": _digamma}


def unary_rows() -> list[Function]:
    """Rows of the function table with one float argument and a float or bool result."""
    skipped = ("cast", "powi", "polygamma", "barrier", "logical_not", "bitwise_not")
    return [row for row in rows() if row.arity == 1 and row.name not in skipped]


def _declared(name: str) -> Callable[[Any], Any]:
    if name == "neg":
        return lambda x: -x
    if name == "polygamma":
        return lambda x: fg.polygamma(2, x)
    function: Callable[[Any], Any] = getattr(fg, name)

    def body(x: Any) -> Any:
        return function(x)

    return body


def table_cases() -> Iterator[Case]:
    """One case for each row of the function table."""
    for row in unary_rows():
        body = _declared(row.name)

        def torch_op(x: torch.Tensor, _row: Function = row) -> torch.Tensor:
            found: torch.Tensor = _row.reference(torch, x)
            return found

        yield Case(row.name, _op(body, row.name), torch_op, STABLE_DERIVATIVES.get(row.name), _ORACLES.get(row.name))


def _op(body: Callable[[Any], Any], name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return fg.op(lambda x: body(x), name=f"sweep_{name}")  # type: ignore[no-any-return]


@cache
def cases() -> tuple[Case, ...]:
    """Everything that is swept, in the order of the page."""
    return tuple(table_cases())


# -- inputs ----------------------------------------------------------------------------------------------------------


@cache
def inputs(dtype: torch.dtype) -> torch.Tensor:
    """All numbers of a half dtype, or the float32 sample, on the CPU."""
    if dtype in HALVES:
        return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    generator = torch.Generator().manual_seed(0)
    mantissas = torch.cat([torch.tensor([0, 1, 2**22, 2**23 - 1]), torch.randint(2**23, (60,), generator=generator)])
    exponents = torch.arange(256) << 23
    patterns = (exponents[:, None] | mantissas).flatten()
    every_exponent = torch.cat([patterns, patterns - 2**31]).to(torch.int32).view(torch.float32)
    where_things_happen = torch.linspace(-24, 24, 2**14 + 1)
    close_to_one = 1 + torch.linspace(-1e-3, 1e-3, 2**11 + 1)
    return torch.cat([every_exponent, where_things_happen, close_to_one, -close_to_one])


# -- errors ----------------------------------------------------------------------------------------------------------


def ulp(reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between neighbouring numbers of ``dtype`` at the float64 ``reference``."""
    info = torch.finfo(dtype)
    bits = round(-math.log2(info.eps))
    _, exponent = torch.frexp(reference)
    exponent = torch.clamp(exponent - 1, min=round(math.log2(info.tiny)))
    return torch.ldexp(torch.ones_like(reference), exponent - bits)


def largest_error(got: torch.Tensor, reference: torch.Tensor, x: torch.Tensor) -> Error:
    """Of ``got`` from the float64 ``reference``. An overflow counts as the next power of two."""
    dtype = got.dtype
    got, x = got.double(), x.double()
    if not dtype.is_floating_point:
        wrong = got != reference.double()
        return Error(math.inf if wrong.any() else 0.0, _first(x, wrong), (), ())
    top = 2.0 * 2.0 ** math.floor(math.log2(torch.finfo(dtype).max))
    rounded = reference.to(dtype).double()
    nan_differs = got.isnan() != rounded.isnan()
    zeros = (got == 0) & (rounded == 0) & (torch.signbit(got) != torch.signbit(rounded))
    limited, expected = got.clamp(-top, top), reference.clamp(-top, top)
    step = ulp(expected.clamp(-top * 0.75, top * 0.75), dtype)
    error = torch.where(got.isnan() | rounded.isnan(), torch.zeros_like(got), (limited - expected).abs() / step)
    worst = int(error.argmax())
    return Error(float(error[worst]), float(x[worst]), tuple(x[nan_differs].tolist()), tuple(x[zeros].tolist()))


def _first(x: torch.Tensor, mask: torch.Tensor) -> float:
    return float(x[mask][0]) if mask.any() else math.nan


def _with_derivative(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    x = x.detach().clone().requires_grad_()
    y = function(x)
    if not y.requires_grad:
        return y.detach(), None
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return y.detach(), gradient


def sweep(case: Case, dtype: torch.dtype, device: str = "cpu") -> Result:
    """Largest errors of ``case`` in ``dtype``."""
    x = inputs(dtype)
    value, derivative = (t.cpu() if t is not None else None for t in _with_derivative(case.op, x.to(device)))
    assert value is not None
    oracle, slope = _with_derivative(case.torch_op, x.double())
    if case.oracle:
        oracle = case.oracle(x.double())
    if case.derivative:
        slope = case.derivative(x.double())
    torch_value = torch_slope = None
    try:
        torch_value, torch_slope = (
            t.cpu() if t is not None else None for t in _with_derivative(case.torch_op, x.to(device))
        )
    except (RuntimeError, NotImplementedError):  # torch lacks it for this dtype
        pass

    def errors(got: torch.Tensor | None, reference: torch.Tensor | None) -> Error | None:
        if got is None:
            return None
        return largest_error(got, torch.zeros_like(x, dtype=torch.float64) if reference is None else reference, x)

    found = errors(value, oracle)
    assert found is not None
    return Result(
        case, dtype, found, errors(torch_value, oracle), errors(derivative, slope), errors(torch_slope, slope)
    )


def bound(result: Result, which: str) -> float:
    """The largest error that the value or the derivative of this row may have."""
    own = HALF_BOUND if result.dtype in HALVES else result.case.limits[which == "derivative"]
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
            found.append(f"{where}: {error.ulp:.3g} ulp at x = {error.at!r}; the bound is {limit:.3g}")
        worse = set(error.nan_differs) - set(torchs.nan_differs if torchs else ())
        if worse:
            found.append(f"{where}: NaN where float64 has none, or the other way round, at x = {sorted(worse)[:5]}")
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
    lines = [_HEAD.format(ran=ran, sample=inputs(torch.float32).numel(), half=HALF_BOUND, float=FLOAT_BOUND).rstrip(), ""]
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
    for r in results:
        for w, e, t in (("v", r.value, r.torch_value), ("d", r.derivative, r.torch_derivative)):
            if e and (e.nan_differs or e.zero_sign_differs):
                print(r.case.name, SHORT[r.dtype], w, "NAN", e.nan_differs[:4], t and t.nan_differs[:4], "ZERO", e.zero_sign_differs[:4], t and t.zero_sign_differs[:4])
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*non-leaf.*")
    sys.exit(main(sys.argv[1:]))

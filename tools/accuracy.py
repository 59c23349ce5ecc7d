"""Sweeps every scalar function and activation: value and derivative, against float64, beside torch's own error.

    python -m tools.accuracy             # on the GPU if there is one, else on the emulator; writes docs/accuracy.md
    python -m tools.accuracy --check     # writes nothing; fails where an error is over its bound
    python -m tools.accuracy tanh mish   # these only, printed

Inputs: all 65,536 float16 and all 65,536 bfloat16 numbers, and a float32 sample that has every exponent, both signs,
subnormals, zeros, infinities and NaN. An error is the distance to the float64 result, in units in the last place of
the result's dtype: 0.5 is correct rounding. tests/ops/test_sweep.py holds every result to what `Exact.allowed` says.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from tools.accuracy_cases import LGAMMA_UNBOUNDED, ROUNDED_ONCE, ZERO_TIES, Case, Function, Tensors, cases

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHORT = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
HALVES = (torch.float16, torch.bfloat16)

# What is allowed, of each result by itself. In float32 what CUDA's own functions and one step of algebra around them
# need: ulps of the result, once for it and once more for each percent that a percent of the argument changes it by
# (somewhere an intermediate was rounded), and of the terms of a difference. A half result was computed in float32 and
# rounded once: it is off by half an ulp, and what float32 lost.
HALF_BOUND = 0.52
FLOAT_BOUND = 4.0
# The faster functions of half kernels: tanh's is off by up to 6 ulp of float32.
FAST_BOUND = 8.0
# How far arguments are moved to see how much that changes the result, relative: far less than where functions bend.
STEP = 2.0**-20


@dataclass(frozen=True)
class Exact:
    """What a value or a derivative is, in float64, and how well float32 can know it.

    Attributes:
        sensitivity: by how many parts a result changes where an argument changes by one.
        terms: the size of what is subtracted; 0 where nothing is.
        edges: where an intermediate result leaves float32.
        ulps: what is allowed in float32, times 1 + ``sensitivity``.
        own: what is allowed in float32 besides.
    """

    of: torch.Tensor
    sensitivity: torch.Tensor
    terms: torch.Tensor
    edges: torch.Tensor
    ulps: float = FLOAT_BOUND
    own: float = 0.0

    def unit(self, dtype: torch.dtype) -> torch.Tensor:
        """What errors are counted in: an ulp of the result, and of a difference's terms, as float32 has them."""
        return ulp(_capped(self.of, dtype), dtype) + self._of_terms

    def allowed(self, dtype: torch.dtype) -> torch.Tensor:
        """The largest error of each result in ``dtype``."""
        lost = (1 + self.sensitivity) * ulp(self.of, torch.float32) + self._of_terms
        if dtype in HALVES:
            return (self.ulps and max(self.ulps, FAST_BOUND)) * lost + HALF_BOUND * ulp(_capped(self.of, dtype), dtype)
        return self.ulps * lost + self.own * ulp(_capped(self.of, dtype), dtype)

    @property
    def _of_terms(self) -> torch.Tensor:
        return torch.where(self.terms > 0, ulp(self.terms, torch.float32), 0.0)


@dataclass(frozen=True)
class Error:
    """The largest error of one function in one dtype, and where it is, where NaN or the sign of zero is another.

    Attributes:
        over: the largest that an error is of what is allowed there, where, and how large that error is.
        edges: the largest where an intermediate result leaves float32, which `over` leaves out.
    """

    ulp: float
    at: tuple[float, ...]
    nan_differs: frozenset[tuple[float, ...]]
    zero_differs: frozenset[tuple[float, ...]]
    over: tuple[float, tuple[float, ...], float] = (0.0, (), 0.0)
    edges: float = 0.0


@dataclass(frozen=True)
class Result:
    """Errors of one case in one dtype. None where there is no derivative, or torch does not have the function."""

    case: Case
    dtype: torch.dtype
    value: Error
    torch_value: Error | None
    derivative: Error | None
    torch_derivative: Error | None


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


def _top(dtype: torch.dtype) -> float:
    """The power of two behind the largest number: an overflow counts as that."""
    return float(2.0 ** (math.floor(math.log2(torch.finfo(dtype).max)) + 1))


def _capped(reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return reference.nan_to_num(0.0, math.inf, -math.inf).clamp(-_top(dtype) * 0.75, _top(dtype) * 0.75)


def exactly(reference: torch.Tensor) -> Exact:
    """A reference that does not depend on anything."""
    nothing = torch.zeros_like(reference)
    return Exact(reference, nothing, nothing, nothing.bool())


def largest_error(got: torch.Tensor, exact: Exact, x: Tensors, nan_too: bool = True) -> Error:
    """Of ``got`` from the float64 reference. An overflow counts as the next power of two.

    Args:
        nan_too: inputs that are NaN count. Derivatives there are torch's on the CPU or torch's on the GPU: not both.
    """
    dtype, got, reference = got.dtype, got.double(), exact.of
    points = torch.stack([t.double() for t in x], 1)

    def where(mask: torch.Tensor) -> frozenset[tuple[float, ...]]:
        return frozenset(tuple(point) for point in points[mask].tolist())

    if not dtype.is_floating_point:
        wrong = where(got != reference.double())
        first, size = next(iter(wrong), ()), math.inf if wrong else 0.0
        return Error(size, first, frozenset(), frozenset(), (size, first, size))
    top = _top(dtype)
    rounded = reference.to(dtype).double()
    ignored = points.isnan().any(1) & (not nan_too)
    nan_differs = where((got.isnan() != rounded.isnan()) & ~ignored)
    zero_differs = where((got == 0) & (rounded == 0) & (torch.signbit(got) != torch.signbit(rounded)))
    difference = (got.clamp(-top, top) - reference.clamp(-top, top)).abs()
    difference[got.isnan() | rounded.isnan() | ignored] = 0
    error, share = difference / exact.unit(dtype), difference / exact.allowed(dtype)
    edges = float(error[exact.edges].max()) if exact.edges.any() else 0.0
    share[exact.edges] = 0
    worst, over = int(error.argmax()), int(share.argmax())
    most = float(share[over]), tuple(points[over].tolist()), float(error[over])
    return Error(float(error[worst]), tuple(points[worst].tolist()), nan_differs, zero_differs, most, edges)


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
    over = max((e.over for e in known), key=lambda over: over[0])
    return Error(worst.ulp, worst.at, nan_differs, zero_differs, over, max(e.edges for e in known))


def _reference(case: Case, x: Tensors) -> list[torch.Tensor]:
    """The value and the derivative by each argument, for arguments in float64."""
    value, slopes = _with_derivatives(case.torch_op, x)
    if case.oracle:
        value = case.oracle(*x)
    if case.derivative:
        slopes = [case.derivative(*x)]
    return [value, *(torch.zeros_like(x[0]) if s is None else s for s in slopes)]


def references(case: Case, x: Tensors) -> list[Exact]:
    """What `_reference` gives, and how well it can be known. On the smoother side: jumps and kinks forgive nothing."""
    found = [t.double() for t in _reference(case, x)]
    sensitivity = [torch.zeros_like(t) for t in found]
    for i, moved in enumerate(x):
        sides = (_reference(case, (*x[:i], moved * (1 + step), *x[i + 1 :])) for step in (STEP, -STEP))
        for total, reference, up, down in zip(sensitivity, found, *sides, strict=True):
            change = torch.fmin((up.double() - reference).abs(), (down.double() - reference).abs())
            total += (change / STEP / reference.abs()).nan_to_num(0.0)
    nowhere = torch.zeros_like(x[0])
    made = []
    for place, (reference, parts) in enumerate(zip(found, sensitivity, strict=True)):
        which = "derivative" if place else "value"
        if place and case.carries:
            parts = parts + case.carries(x[0]).nan_to_num(0.0, 0.0)
        terms = case.terms[1](x[0]) if case.terms and case.terms[0] == which else nowhere
        edges = case.edges(*x) if case.edges and which == "derivative" else nowhere.bool()
        if case.name == "lgamma" and which == "value":
            edges = (x[0] > LGAMMA_UNBOUNDED[0]) & (x[0] < LGAMMA_UNBOUNDED[1])
        if which == "value" and case.name in ROUNDED_ONCE:
            made.append(Exact(reference, nowhere, terms, edges, ulps=0.0, own=0.5))
        else:
            made.append(Exact(reference, parts, terms, edges, case.slope if place else FLOAT_BOUND))
    return made


def sweep(case: Case, dtype: torch.dtype, device: str = "cpu") -> Result:
    """Largest errors of ``case`` in ``dtype``."""
    x = inputs(dtype, case.arity)
    if case.reach < math.inf:
        x = tuple(t[~(t.abs() > case.reach) | t.isinf()] for t in x)
    exact, *slopes = references(case, tuple(t.double() for t in x))

    def errors(function: Function) -> tuple[Error, Error | None]:
        value, derivatives = _with_derivatives(function, tuple(t.to(device) for t in x))
        return largest_error(value.cpu(), exact, x), _worst(
            None if got is None else largest_error(got, slope, x, nan_too=False)
            for got, slope in zip(derivatives, slopes, strict=True)
        )

    value, derivative = errors(case.op)
    try:
        torch_value, torch_derivative = errors(case.torch_op)
    except (RuntimeError, NotImplementedError):  # torch lacks it for this dtype
        return Result(case, dtype, value, None, derivative, None)
    return Result(case, dtype, value, torch_value, derivative, torch_derivative)


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
        where = f"{result.case.name}, {SHORT[result.dtype]}, {which}"
        share, at, size = error.over
        if share > 1:
            found.append(f"{where}: {size:.3g} ulp at {at}; the bound there is {size / share:.3g}")
        limit = max(FLOAT_BOUND, 1.05 * torchs.edges if torchs else 0.0)
        if error.edges > limit:
            found.append(f"{where}: {error.edges:.3g} ulp where an intermediate leaves float32; torch {limit:.3g}")
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
`python -m tools.accuracy`.

`tests/ops/test_sweep.py` holds each of these results to a bound of its own, whatever torch's error is: {float:g} ulp in
float32 where the result changes by as many percent as its argument, more where it changes by more (next to a zero
of the function, far out in a tail), nothing more at jumps; {half} ulp in a half type, and what float32 may lose.
Four activations have 8 to 20 ulp in their slopes: what float32 rounds off a saturated factor counts x times
(`SLOPES` in `tools/accuracy_cases.py`). A difference whose terms are larger than itself (1 - y² of tanh, y (1 - y)
of sigmoid, x - tanh(x)) has the precision that float32 has for the terms; its errors are counted in ulp of result
and terms together. Errors in the thousands and more stand next to zeros, and where an intermediate result leaves
float32 one step before the result does: 1 / (1 + x²) from |x| = 1.8e19 on, 2^x log 2 at x = 128 (`EDGES`); torch's
stand there as well, and ours may be no larger. Half kernels on the GPU use its approximate exponential, logarithm
and reciprocal; the emulator makes the same instructions as wrong as their manual allows.

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

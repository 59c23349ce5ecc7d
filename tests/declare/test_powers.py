"""Powers and remainders the quick way: all half numbers to many powers, and remainders where one division may err."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.inspect.passes import shown_passes

INF, NAN = math.inf, math.nan
POWERS = (
    0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, 2.5, -2.5, 0.3, 7.0, -7.0, 100.0, -101.0, 1000.0, 2049.0, 0.001, INF,
    -INF, NAN, 60000.0,
)  # fmt: skip
power = fg.op(lambda a, b: a**b, name="power")


def halves(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def ulps(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error in units in the last place of ``found``.

    Infinite where one of the two is zero, infinite, NaN or negative, and the other is not. Half a unit from zero both
    neighbours are as near: (2^-10)^2.5 is such a number of float16, and may become either.
    """
    rounded, limits = exact.to(found.dtype).double(), torch.finfo(found.dtype)
    ours = found.double()
    for told in (torch.isnan, torch.isinf, lambda x: torch.signbit(x) & ~x.isnan()):
        if not torch.equal(told(ours), told(rounded)):
            return INF
    unit = 2.0 ** torch.floor(torch.log2(exact.abs().clamp(limits.tiny))) * limits.eps
    errors = (ours - exact).abs() / unit
    if (errors[(ours == 0) != (rounded == 0)] > 0.52).any():
        return INF
    counted = torch.isfinite(rounded) & (exact != 0)
    return float(errors[counted].max()) if counted.any() else 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("exponent", POWERS)
def test_all_halves_to_a_power(exponent: float, dtype: torch.dtype) -> None:
    a, b = halves(dtype), torch.tensor([exponent], dtype=dtype)
    assert ulps(power(a, b), torch.pow(a.double(), b.double())) < 0.52


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("exponent", [4, 5, 6, 7, 9, 12, 33, 64])
def test_whole_powers(exponent: int, dtype: torch.dtype) -> None:
    raised = fg.op(lambda x: x**exponent, name="raised")
    x = halves(dtype) if dtype.itemsize == 2 else torch.randn(10_000, dtype=torch.float64).to(dtype)
    exact = torch.pow(x.double(), exponent)
    bounds = {torch.float32: 4.0, torch.float64: 2.0}  # float64's own power is what it is compared with
    assert ulps(raised(x), exact) < bounds.get(dtype, 0.52)
    (forward, *_) = shown_passes(raised, (fg.TensorSpec(fg.float16, (64,)),), {}, "forward")
    assert f"powi<{exponent}>" in forward.text and "pow(" not in forward.text


def test_a_whole_powers_gradient() -> None:
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    for exponent in (4, 5, 6, 9):
        op = fg.op(lambda x, n=exponent: x**n, name="raised")
        assert torch.autograd.gradcheck(op, x) and torch.autograd.gradgradcheck(op, x)


@pytest.mark.parametrize("name", ["log1p", "expm1", "log10"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_what_cancels_near_zero_of_all_halves(name: str, dtype: torch.dtype) -> None:
    x = halves(dtype)
    found = fg.op(lambda x: getattr(fg, name)(x), name=f"{name}_of_halves")(x)
    assert ulps(found, getattr(torch, name)(x.double())) < 0.52


BY: dict[str, tuple[Any, Any]] = {
    "fmod": (lambda a, b: fg.fmod(a, b), lambda a, b: math.fmod(a, b)),
    "remainder": (lambda a, b: a % b, lambda a, b: float(torch.remainder(*torch.tensor([a, b], dtype=torch.float64)))),
    "floor_divide": (lambda a, b: a // b, None),
}  # fmt: skip
EDGES = (
    0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-45, 1e-38, 3e38, -3e38, 1e-30, 3e-31, 2.5, -2.5, 2097151.0, 2097152.0,
    8388607.0, 16777216.0, 0.1, 0.3, -0.3, 1e-31, 9e-31,
)  # fmt: skip


def dividends() -> tuple[torch.Tensor, torch.Tensor]:
    """Multiples of the divisor, what is next to them, other numbers of either sign and any size, and edges."""
    generator = torch.Generator().manual_seed(0)
    b = torch.rand(20_000, generator=generator) * 10
    k = torch.randint(1, 3000, b.shape, generator=generator).float()
    far, signs = torch.randint(1, 2**24, b.shape, generator=generator).float(), (-1.0) ** k
    edges = torch.tensor(list(itertools.product(EDGES, EDGES)))
    a = [k * b, torch.nextafter(k * b, torch.tensor(0.0)), -k * b, far * b, k * b * 1e-32, (k - 1500) / 7, edges[:, 0]]
    return torch.cat(a), torch.cat([b, b, b * signs, b, b * 1e-32, b, edges[:, 1]])


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_remainders_are_exact(name: str) -> None:
    """The remainder is a float32, so that of the same numbers in float64 is it; Python's sign, added, rounds once."""
    a, b = dividends()
    ours = fg.op(BY[name][0], name=name)(a, b)
    exact = torch.fmod(a.double(), b.double())
    if name == "remainder":
        turned = (exact != 0) & ((exact < 0) != (b < 0))
        exact = torch.where(turned, exact.float() + b, exact.float()).double()
    torch.testing.assert_close(ours, exact.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(ours[~ours.isnan()]), torch.signbit(exact[~ours.isnan()]))


def test_whole_quotients_are_torchs() -> None:
    a, b = dividends()
    ours, theirs = fg.op(BY["floor_divide"][0], name="whole")(a, b), torch.div(a, b, rounding_mode="floor")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(ours[~ours.isnan()]), torch.signbit(theirs[~ours.isnan()]))

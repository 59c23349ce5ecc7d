"""Quotients and square roots of float32, which kernels compute without C's branches: bits and ends of the range."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fusegen as fg

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@fg.op
def quotient(a, b):
    return a / b


@fg.op
def root(a):
    return fg.sqrt(a)


def numbers() -> np.ndarray:
    """Every exponent, subnormals, both signs; mantissas with few ones, with all, and some at random."""
    generator = np.random.default_rng(0)
    mantissas = np.array([0, 1, 2**22, 2**23 - 1, 2**23 - 2, *generator.integers(0, 2**23, 2)], np.uint32)
    bits = (np.arange(255, dtype=np.uint32)[:, None] << 23 | mantissas).ravel()
    positive = np.concatenate([bits.view(np.float32), np.array([np.inf, np.nan], np.float32)])
    return np.concatenate([positive, -positive])


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Error in units of the last place of the result, those of subnormal numbers at least."""
    place = np.exp2(np.maximum(np.floor(np.log2(np.abs(exact))), -126) - 23)
    return np.abs(got.astype(np.float64) - exact) / place


def test_quotients_of_all_magnitudes() -> None:
    every = numbers()
    divisors = every[:: len(every) // 500]
    a, b = (side.ravel() for side in np.meshgrid(every, divisors))
    got = quotient(*(torch.from_numpy(side).to(DEVICE) for side in (a, b))).cpu().numpy()
    with np.errstate(all="ignore"):
        expected, exact = a / b, a.astype(np.float64) / b
        error = ulps(got, exact)
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    assert np.array_equal(np.signbit(got[got == 0]), np.signbit(expected[got == 0]))
    ends = np.isinf(expected) | (exact == 0)
    assert np.array_equal(got[ends], expected[ends])
    finite = np.isfinite(expected) & (exact != 0)
    small = np.minimum(np.abs(a), np.abs(exact)) < 2.0**-100  # where the correction is subnormal
    assert error[finite & ~small].max() <= 0.500001
    assert (finite & small).any() and error[finite & small].max() <= 1.5


def test_a_quotient_that_is_a_number_of_float32_is_that_number() -> None:
    generator = torch.Generator().manual_seed(1)
    b = torch.randint(1, 2**12, (10**6,), generator=generator)
    whole = torch.randint(-(2**12), 2**12, (10**6,), generator=generator)
    a, b, whole = (x.to(DEVICE, torch.float32) for x in (b * whole, b, whole))
    assert torch.equal(quotient(a, b), whole)
    assert torch.equal(quotient(b, b), torch.ones_like(b))


@pytest.mark.parametrize("scale", [2.0**-100, 1.0, 2.0**100])
def test_quotients_are_torchs(scale: float) -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(10**6, generator=generator).to(DEVICE) for _ in range(2))
    assert (quotient(a * scale, b * scale) != (a * scale) / (b * scale)).sum() <= 2  # ties, nearly


def test_square_roots_of_all_magnitudes() -> None:
    x = numbers()
    got = root(torch.from_numpy(x).to(DEVICE)).cpu().numpy()
    with np.errstate(all="ignore"):
        expected, exact = np.sqrt(x), np.sqrt(x.astype(np.float64))
        error = ulps(got, exact)
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    ends = np.isinf(expected) | (expected == 0)
    assert np.array_equal(got[ends].view(np.int32), expected[ends].view(np.int32))
    assert error[np.isfinite(expected) & ~ends].max() <= 0.500001

"""Sine, cosine and tangent in float32: every exponent, next to zeros and poles, and what the compiler makes of them."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import fusegen as fg
from fusegen.generate.rendered import PREAMBLE, headers
from fusegen.inspect.passes import passes
from fusegen.launch.compile import to_cubin
from fusegen.launch.cubin import resources

Array = np.ndarray[Any, np.dtype[Any]]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Of all 2^32 arguments, 1.23, 1.23 and 1.41 in the emulator.
BOUNDS = {"sin": 1.25, "cos": 1.25, "tan": 1.5}
TINY, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

together = fg.op(lambda x: (fg.sin(x), fg.cos(x), fg.tan(x)), name="together")
alone = {
    "sin": fg.op(lambda x: fg.sin(x), name="only_sin"),
    "cos": fg.op(lambda x: fg.cos(x), name="only_cos"),
    "tan": fg.op(lambda x: fg.tan(x), name="only_tan"),
}


def ulp(exact: Array) -> Array:
    """Distance of float32 numbers around it."""
    _, exponent = np.frexp(exact)
    return np.ldexp(1.0, np.maximum(exponent - 24, -149))


def errors(name: str, found: torch.Tensor, x: Array) -> Array:
    exact = getattr(np, name)(x.astype(np.float64))
    return np.abs(found.cpu().numpy().astype(np.float64) - exact) / ulp(exact)


def both_signs(x: Array) -> Array:
    return np.concatenate([x, -x]).astype(np.float32)


def every_exponent() -> Array:
    """Of each, the ends and some numbers at random; subnormals too."""
    draw = np.random.default_rng(0)
    ends = [0, 1, 2, 0x7FFFFE, 0x7FFFFF]
    mantissas = np.concatenate([draw.integers(0, 1 << 23, (255, 300)), np.tile(ends, (255, 1))], 1)
    bits = (np.arange(255)[:, None] << 23 | mantissas).astype(np.uint32)
    return both_signs(bits.reshape(-1).view(np.float32))


def around_multiples() -> Array:
    """The float nearest to each of the first multiples of pi/2, and its neighbours."""
    nearest = (np.arange(1, 1_000_001) * (math.pi / 2)).astype(np.float32)
    neighbours = [np.nextafter(nearest, np.float32(end)) for end in (0, math.inf)]
    return both_signs(np.concatenate([nearest, *neighbours]))


def around_the_limit() -> Array:
    """Where the one way to reduce an argument begins and the other one ends."""
    bits = np.float32(1e5).view(np.int32) + np.arange(-3000, 3000, dtype=np.int32)
    return both_signs(bits.view(np.float32))


def _fractions(number: Fraction, limit: int) -> Iterator[int]:
    """Denominators of the best rational approximations."""
    before, last = 0, 1
    while last < limit:
        yield last
        rest = number - math.floor(number)
        if not rest:
            return
        number = 1 / rest
        before, last = last, math.floor(number) * last + before


@cache
def hardest() -> Array:
    """Floats nearer to multiples of pi/2 than all smaller whole numbers times the same power of two."""
    found = []
    with mpmath.workprec(400):
        two_over_pi = Fraction(int(mpmath.floor(mpmath.ldexp(2 / mpmath.pi, 380))), 2**380)
    for exponent in range(-23, 105):
        quarter_turns = two_over_pi * Fraction(2) ** exponent
        found += [math.ldexp(whole, exponent) for whole in _fractions(quarter_turns, 1 << 24)]
    return both_signs(np.array(found))


SAMPLES: dict[str, Callable[[], Array]] = {
    "every exponent": every_exponent, "around multiples of pi/2": around_multiples, "at the limit": around_the_limit,
    "the hardest": hardest,
}  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES)
def test_values_are_right_to_little_more_than_an_ulp(sample: str) -> None:
    x = SAMPLES[sample]()
    for name, found in zip(BOUNDS, together(torch.from_numpy(x).to(DEVICE)), strict=True):
        error = errors(name, found, x)
        worst = int(np.nan_to_num(error, nan=math.inf).argmax())
        assert error[worst] < BOUNDS[name], f"{name}({x[worst]!r}) = {found[worst].item()!r}: {error[worst]} ulp"


def test_the_float64_values_themselves_are_right() -> None:
    x = hardest()
    x = x[x > 0][:: max(1, len(x) // 400)].astype(np.float64)
    with mpmath.workprec(400):
        for name in BOUNDS:
            exact = np.array([float(getattr(mpmath, name)(mpmath.mpf(v))) for v in x])
            np.testing.assert_allclose(getattr(np, name)(x), exact, rtol=1e-14)


def test_some_are_as_near_as_floats_come_to_multiples_of_half_pi() -> None:
    near = np.abs(np.cos(hardest().astype(np.float64)))
    assert near.min() < 2e-9 and (near < 1e-7).sum() > 200


@pytest.mark.parametrize("name", BOUNDS)
def test_one_alone_is_what_it_is_beside_the_others(name: str) -> None:
    x = torch.from_numpy(np.concatenate([every_exponent(), around_the_limit()])).to(DEVICE)
    assert torch.equal(alone[name](x), together(x)[list(BOUNDS).index(name)])


def test_signs() -> None:
    x = torch.from_numpy(np.concatenate([every_exponent(), hardest()])).to(DEVICE)
    sine, cosine, tangent = together(x)
    for found, mirrored in zip((-sine, cosine, -tangent), together(-x), strict=True):
        assert torch.equal(found.view(torch.int32), mirrored.view(torch.int32))


def test_what_is_tiny_is_its_own_sine_and_tangent() -> None:
    bits = np.concatenate([np.arange(100), np.arange(0, 0x39000000, 99991)]).astype(np.uint32)
    x = torch.from_numpy(both_signs(bits.view(np.float32))).to(DEVICE)  # up to 2^-13
    sine, cosine, tangent = together(x)
    assert torch.equal(sine.view(torch.int32), x.view(torch.int32)), "zeros keep their sign"
    assert torch.equal(tangent.view(torch.int32), x.view(torch.int32))
    assert (cosine == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_special_numbers(dtype: torch.dtype) -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, -math.nan, 0.0, -0.0] * 9, dtype=dtype, device=DEVICE)
    sine, cosine, tangent = (found.cpu().reshape(9, 6) for found in together(x))
    assert all(found[:, :4].isnan().all() for found in (sine, cosine, tangent))
    for found in (sine, tangent):
        assert (found[:, 4:] == 0).all()
        assert not found[:, 4].signbit().any() and found[:, 5].signbit().all()
    assert (cosine[:, 4:] == 1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_kernels_keep_the_digits_of_a_large_argument(dtype: torch.dtype) -> None:
    """Their arguments are float32 inside, and so may be nearer to a multiple of pi/2 than a half can be."""
    op = fg.op(lambda x, y: (fg.sin(x + y), fg.cos(x + y)), name="of_a_sum")
    x = torch.tensor([100.0, 1000.0, 5000.0, 3e4], dtype=dtype)[:, None]
    y = torch.linspace(-3, 3, 1501).to(dtype)[None]
    exact = (x.float() + y.float()).double()
    size = 2.0**-11 if dtype is torch.float16 else 2.0**-8
    for found, wanted in zip(op(x.to(DEVICE), y.to(DEVICE)), (exact.sin(), exact.cos()), strict=True):
        torch.testing.assert_close(found.double().cpu(), wanted, rtol=1.02 * size, atol=2.0**-25)


def test_derivatives_in_float32() -> None:
    draw = random.Random(1)
    x = torch.tensor([draw.choice((-1, 1)) * draw.uniform(0, 1) * 10 ** draw.uniform(-3, 8) for _ in range(4000)])
    exact = x.double()
    slopes = {"sin": exact.cos(), "cos": -exact.sin(), "tan": 1 + exact.tan() ** 2}
    for name, wanted in slopes.items():
        given = x.to(DEVICE).requires_grad_()
        (found,) = torch.autograd.grad(alone[name](given).sum(), given)
        torch.testing.assert_close(found.double().cpu(), wanted, rtol=2.0**-21, atol=0)


def kernels(op: Any, dtype: torch.dtype) -> Iterator[tuple[str, str]]:
    """Name and text of each kernel of an op's passes."""
    for item in passes(op, (torch.empty(64, 4096, dtype=dtype, requires_grad=True),), {}, "backward"):
        for kernel in item.text.split(PREAMBLE)[1:]:
            (entry,) = re.findall(r"__global__ [^\n]*\n?void (\w+)\(", kernel)
            yield entry, PREAMBLE + kernel


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_no_kernel_has_local_memory(dtype: torch.dtype, arch: str) -> None:
    for op in (together, *alone.values()):
        entries = []
        for entry, text in kernels(op, dtype):
            built = to_cubin(text, arch=arch, headers=headers(), declared=entry)
            assert resources(built.data, entry).local_bytes == 0 and not built.log
            entries.append(entry)
        assert len(entries) == 2


def test_sine_and_cosine_of_one_argument_reduce_it_once() -> None:
    """Compiled code of both is little longer than that of one."""
    both = fg.op(lambda x: fg.sin(x) + 2.0 * fg.cos(x), name="both")
    one = fg.op(lambda x: fg.sin(x) + 2.0 * x, name="one")
    sizes = []
    for op in (one, both):
        entry, text = next(kernels(op, torch.float32))
        sizes.append(len(to_cubin(text, arch="sm_90", headers=headers(), declared=entry).data))
    assert sizes[1] < sizes[0] + 4 * 16 * 16  # 16 instructions an element, of which a thread has four

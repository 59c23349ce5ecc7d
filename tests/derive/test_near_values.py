"""Derivatives of what is written: a difference of near values stays a difference, a power of a product a power of it.

To algebra ``0.1 * (x - y)`` is ``0.1 * x - 0.1 * y``. To floats the first is exact where x and y are near, and the
second is noise. What torch's derivatives are, which read the values as they were computed, is what ours are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg

pytestmark = pytest.mark.emulator


def gradients(function: Callable[..., Any], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    found = function(*leaves)
    cotangent = torch.linspace(0.5, 1.5, found.numel(), dtype=found.dtype).reshape(found.shape)
    return list(torch.autograd.grad(found, leaves, cotangent, allow_unused=True, materialize_grads=True))


def near(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


NEAR = near(1000, 12345.678, -77.5), near(1000.001, 12345.679, -77.500008)
THREE = near(1e4, 2e4, 3e4), near(1e4 + 0.01, 2e4 - 0.02, 3e4 + 0.03), near(1e4 - 0.05, 2e4 + 0.01, 3e4)
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a literal times a square": (lambda x, y: 0.1 * (x - y) ** 2, NEAR),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.3), NEAR),
    "a Lorentzian": (lambda x, y: torch.log1p(((x - y) / 0.3) ** 2), NEAR),
    "a Gaussian": (lambda x, y: torch.exp(-((x - y) ** 2) / 0.3), NEAR),
    "pseudo Huber": (lambda x, y: torch.sqrt(0.3 * (x - y) ** 2 + 1e-6), NEAR),
    "total variation": (lambda x: (x[1:] - x[:-1]) ** 2 / 3, (near(1e4, 10000.002, 10000.003),)),
    "pairwise_distance": (
        lambda x, y: F.pairwise_distance(x, y), (near(100, 50, 30, -70)[None], near(100, 50, 30, -70)[None])
    ),
    "a small term behind a difference": (
        lambda x, z, b: ((x - z) + b) ** 2, (near(1e4, 3e4), near(1e4, 3e4), near(1e-4, 2e-4))
    ),
    "two differences": (lambda a, b, c: a * (b - c) + b * (c - a), THREE),
    "a second difference": (lambda a, b, c: ((a - b) - (b - c)) ** 2, THREE),
    "sums that algebra takes for one": (
        lambda x, y, z: x * ((x + y) - z) + y * ((x - z) + y), (near(1e4), near(1e-4), near(1e4))
    ),
    "a power of a product": (lambda x, s: (x * s) ** 4, (near(1e13, 1e-13), near(1e-13, 1e13))),
    "a power of a multiple": (lambda x: (x * 1e-9) ** 5, (near(1e9, 3e9),)),
    "literals of one product": (lambda x, y: (x * 1e20) * (y * 1e20), (near(1e-20, 2e-20), near(1e-20, 3e-20))),
    "literals in front": (lambda x, y: (1e20 * x) * (1e20 * y), (near(1e-20, 2e-20), near(1e-20, 3e-20))),
    "products of products": (
        lambda a, b, c: (a * b) * (c * a), (near(1e15, 1e-15), near(1e-15, 1e15), near(1e-15, 1e15))
    ),
    "a square of a product with itself": (lambda x: F.silu(x) ** 2, (near(3e19, 1.0),)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_derivatives_read_values_as_they_are_written(name: str) -> None:
    function, given = CASES[name]
    tensors = list(given)
    check(name, function, tensors)


def check(name: str, function: Callable[..., Any], tensors: list[torch.Tensor]) -> None:
    """Ours are no further from double precision than torch's in single precision, but for some last bits."""
    exact = gradients(function, [tensor.double() for tensor in tensors])
    mine, theirs = gradients(fg.op(function, name="near"), tensors), gradients(function, tensors)
    for own, other, true in zip(mine, theirs, exact, strict=True):
        rounding = 8 * torch.finfo(torch.float32).eps * true.abs()
        distance, allowed = (own.double() - true).abs(), 4 * (other.double() - true).abs() + rounding
        assert (distance <= allowed).all(), f"{name}: {own.tolist()}, torch {other.tolist()}, exactly {true.tolist()}"


def test_a_half_power_of_a_multiple() -> None:
    (gradient,) = gradients(fg.op(lambda x: (x * 0.001) ** 16, name="power"), [torch.tensor([1000.0]).half()])
    assert gradient.item() == pytest.approx(0.008, rel=1e-2)  # of a cotangent of 0.5


def drawn(seed: int) -> Callable[..., Any]:
    """A random expression of near values: differences of sums, with factors and powers around them."""
    draw = random.Random(seed)

    def linear(values: list[Any], depth: int) -> Any:
        if depth == 0:
            return draw.choice(values)
        a, b = linear(values, depth - 1), linear(values, draw.randrange(depth))
        return a - b if draw.random() < 0.6 else a + b

    def function(*values: Any) -> Any:
        draw.seed(seed)
        total = None
        for _ in range(draw.randint(1, 3)):
            term = linear(list(values), draw.randint(1, 3))
            term = draw.choice((0.1, 0.3, 3.0, 2.0, -0.7)) * term if draw.random() < 0.7 else term
            term = term**2 if draw.random() < 0.5 else term * draw.choice(values)
            total = term if total is None else total + term if draw.random() < 0.5 else total - term
        return total * draw.choice((1.0, 0.3))

    return function


@pytest.mark.parametrize("block", range(4))
def test_random_expressions_of_near_values(block: int) -> None:
    generator = torch.Generator().manual_seed(block)
    for seed in range(12 * block, 12 * block + 12):
        base = 10 ** (2 + 3 * torch.rand(16, generator=generator))
        tensors = [base + 1e-4 * base * torch.randn(16, generator=generator) for _ in range(4)]
        function = drawn(seed)
        exact = gradients(function, [tensor.double() for tensor in tensors])
        mine, theirs = gradients(fg.op(function, name=f"near_{seed}"), tensors), gradients(function, tensors)
        for own, other, true in zip(mine, theirs, exact, strict=True):
            worst = (other.double() - true).abs().max() + 1e-6 * true.abs().max()
            assert (own.double() - true).abs().max() <= 8 * worst, f"seed {seed}"


EDGES: dict[str, Callable[..., Any]] = {
    "overlap": lambda a, b: torch.sqrt(1 - torch.minimum(a, b) / torch.maximum(a, b)),
    "asin of a quotient": lambda a, b: torch.asin(a / b),
    "asin of a direction": lambda a, b: torch.asin(a / torch.sqrt(a * a + (a - b) ** 2)),
    "sqrt beside a root": lambda a, b: torch.sqrt(torch.sqrt(a * b) - a + 0.0),
    "log of a quotient": lambda a, b: torch.sqrt(torch.log(torch.maximum(a, b) / a)),
    "cosine": lambda a, b: torch.sqrt(1 - torch.sin(a) ** 2) + torch.acos(torch.cos(b)),
    "tanh": lambda a, b: torch.atanh(torch.tanh(a * 0.1)) + torch.log1p(-(torch.tanh(b) ** 2)),
    "an exponential": lambda a, b: torch.sqrt(1 - torch.exp(-a * b * 1e-6)),
    "a cosine similarity": lambda a, b: torch.acos(F.cosine_similarity(a[:, None], b[:, None], dim=-1)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", list(EDGES))
def test_what_is_next_to_an_edge_does_not_cross_it_in_halves(name: str, dtype: torch.dtype) -> None:
    x = (torch.rand(4097, generator=torch.Generator().manual_seed(0)) * 8 + 0.01).to(dtype)
    found, single = fg.op(EDGES[name], name="edge")(x, x.clone()), EDGES[name](x.float(), x.float())
    assert torch.equal(found.isnan(), single.isnan())
    finite = single.isfinite()
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(found.float()[finite], single[finite], rtol=2 * rounding, atol=2 * rounding)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_derivative_of_sinc_near_zero(dtype: torch.dtype) -> None:
    x = torch.cat([torch.logspace(-30, -1, 300), torch.tensor([0.0, 1e-7, 1e-5, 1e-4])]).to(dtype)
    (gradient,) = gradients(fg.op(lambda x: torch.sinc(x), name="sinc"), [x])
    u, cotangent = (x.double() * torch.pi) ** 2, torch.linspace(0.5, 1.5, x.numel(), dtype=torch.float64)
    series = sum((-1) ** k * (2 * k / math.factorial(2 * k + 1)) * u ** (k - 1) for k in range(1, 12))
    exact = cotangent.to(dtype).double() * torch.pi**2 * x.double() * series
    rounding = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(gradient.double(), exact, rtol=rounding, atol=torch.finfo(dtype).smallest_normal)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_powers_of_minus_two_where_the_square_is_zero_or_infinite(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 2.0, -0.5, 1e-24, 1e24], dtype=torch.float64).to(dtype)
    for function in (lambda x: x**-2, lambda x: (x - 0.25) ** -2.0, lambda x: 3 * x**-2 + 1):
        found = []
        for called in (fg.op(function, name="power"), function):
            leaf = x.clone().requires_grad_()
            (first,) = torch.autograd.grad(called(leaf), leaf, torch.full_like(x, 0.5), create_graph=True)
            (second,) = torch.autograd.grad(first, leaf, torch.full_like(x, 0.25))
            found.append((first.detach(), second))
        for mine, theirs in zip(*found, strict=True):
            rounding = 8 * torch.finfo(dtype).eps
            torch.testing.assert_close(mine, theirs, rtol=rounding, atol=0, equal_nan=True)

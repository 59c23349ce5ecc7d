"""Sums and differences of a call's numbers (``1 - beta2``) are computed in double, as Python computes them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core import dtypes
from fusegen.declare.reference import reference
from tests.support.oracles import draw

EPSILON = torch.finfo(torch.float32).eps


@fg.op
def adam(p: Any, g: Any, m: Any, v: Any, lr: float, beta1: float, beta2: float, eps: float = 1e-8) -> Any:
    """One step of Adam, without the corrections for its first steps."""
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    return p - lr * m / (fg.sqrt(v) + eps), m, v


def exactly(p: Any, g: Any, m: Any, v: Any, lr: float, beta1: float, beta2: float, eps: float = 1e-8) -> Any:
    p, g, m, v = (t.double() for t in (p, g, m, v))
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    return p - lr * m / (v.sqrt() + eps), m, v


def worst(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest relative error, in units of float32's rounding."""
    return float(((found.double() - exact) / exact).abs().max()) / EPSILON


@pytest.mark.parametrize("beta2", [0.999, 0.9999, 0.999999])
def test_a_step_of_adam_is_as_exact_as_its_tensors(beta2: float) -> None:
    p, g = (draw(300, dtype=torch.float32, seed=seed).detach() for seed in (1, 2))
    zeros = torch.zeros_like(p)
    for _ in range(3):  # by Python, and natively
        _, m, v = adam(p, g, zeros, zeros, 1e-3, 0.9, beta2)
        _, exact_m, exact_v = exactly(p, g, zeros, zeros, 1e-3, 0.9, beta2)
        assert worst(m, exact_m) < 2 and worst(v, exact_v) < 3


def test_gradients_have_the_same_numbers() -> None:
    g = draw(50, dtype=torch.float32)
    second = fg.op(lambda g, beta: fg.sum((1 - beta) * g * g, -1), name="second_moment")
    second(g, 0.9999).backward()
    assert g.grad is not None
    assert worst(g.grad, 2 * (1 - 0.9999) * g.detach().double()) < 3


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (lambda x, a, b: x * (a - b), lambda x, a, b: x * (a - b)),
        (lambda x, a, b: x * ((a - b) / (a + b)), lambda x, a, b: x * ((a - b) / (a + b))),
        (lambda x, a, b: fg.exp(-(a - b) * 3.0) * x, lambda x, a, b: torch.exp(torch.tensor(-(a - b) * 3.0)) * x),
        (lambda x, a, b: fg.where(x > a - b, a * x, b * x), lambda x, a, b: torch.where(x > a - b, a * x, b * x)),
        (lambda x, a, b: fg.sum((a - b) * x, -1) + a, lambda x, a, b: ((a - b) * x).sum(-1) + a),
        (lambda x, a, b: fg.softmax((a - b) * x, -1), lambda x, a, b: torch.softmax((a - b) * x, -1)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_expression(function: Any, exact: Any, dtype: torch.dtype) -> None:
    op = fg.op(function, name="any")
    x = draw(3, 40, low=0.1, dtype=dtype).detach()
    a, b = 1.0001, 0.9999
    found, expected = op(x, a, b), exact(x.double(), a, b)
    assert found.dtype is dtype and worst(found, expected) < 8
    traced = op.trace(x, a, b)
    (meant,) = reference(traced, {"x": x}, {"a": a, "b": b})
    torch.testing.assert_close(meant.double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (lambda b, t: 1 - b**t, (0.999, 1)),
        (lambda b, t: 1 - b**t, (0.9999, 7.0)),
        (lambda b, t: 1 - b**2, (0.9999, 0)),
        (lambda b, t: (1 + t) / (10 + t) - b, (0.9999, 1_000_000)),
        (lambda b, t: b / t - 1, (10001, 10000)),
        (lambda b, t: t - 0.9999, (0.0, 1)),
        (lambda b, t: 1 - fg.exp(-b), (1e-5, 0)),
        (lambda b, t: 1 - (b**0.5), (0.99999, 0)),
    ],
)
def test_functions_of_numbers_are_double_too(function: Any, numbers: tuple[Any, Any]) -> None:
    op = fg.op(lambda x, b, t: x * function(b, t), name="functions")
    b, t = numbers
    wanted = 1 - math.exp(-b) if b == 1e-5 else function(b, t)
    assert abs(float(op(torch.ones(1), b, t)) / wanted - 1) < EPSILON


def test_ops_called_with_numbers_that_were_computed() -> None:
    inner = fg.op(lambda x, b: (1 - b) * x, name="inner")
    outer = fg.op(lambda x, a: inner(x, a * a), name="outer")
    assert worst(outer(torch.ones(3), 0.9999), torch.full((3,), 1 - 0.9999 * 0.9999, dtype=torch.float64)) < 2


def test_constants_of_a_sum_are_results_too() -> None:
    op = fg.op(lambda x, a: (x * (a - 0.5), 0.5), name="with_constant")
    x = torch.ones(3)
    found, constant = op(x, 0.75)
    torch.testing.assert_close(found, 0.25 * x)
    assert constant.dtype is torch.float32 and constant.item() == 0.5


def test_ints_count_as_numbers() -> None:
    op = fg.op(lambda x, steps, beta: x * (1 - 1 / steps) * (steps - beta), name="corrected")
    x = torch.ones(5)
    assert worst(op(x, 3, 2.9999), (1 - 1 / 3) * (3 - 2.9999) * x.double()) < 4


def test_only_numbers_that_are_added_are_double() -> None:
    x = torch.ones(4)

    def kinds(function: Any) -> dict[str, dtypes.DType]:
        traced = fg.op(function, name="numbers").trace(x, 0.5, 0.25)
        return {scalar.name: scalar.dtype for scalar in traced.scalars}

    single, double = dtypes.float32, dtypes.float64
    assert kinds(lambda x, a, b: a * x + b) == {"a": single, "b": single}
    assert kinds(lambda x, a, b: x * (a * b)) == {"a": single, "b": single}  # products lose nothing
    assert kinds(lambda x, a, b: (x + a) * b) == {"a": single, "b": single}
    assert kinds(lambda x, a, b: a * x + (1 - b) * x) == {"a": single, "b": double}
    assert kinds(lambda x, a, b: x * (a + b) + a) == {"a": double, "b": double}


def test_the_cuda_says_so() -> None:
    text = fg.op(lambda x, beta: (1 - beta) * x, name="scaled").emit(torch.ones(8), 0.9)
    assert "double beta" in text and "float(1.0 - beta)" in text


def test_what_takes_long_is_computed_once() -> None:
    op = fg.op(lambda x, y, b, t: x / (1 - b**t) + y * fg.exp(-b), name="corrected")
    x, y = torch.ones(8), torch.ones(8)
    text = op.emit(x, y, 0.9, 3)
    loop = text[text.index("#pragma unroll") :]
    assert "const float number = float(1.0 - pow(b, double(t)));" in text and "pow(" not in loop and "exp" not in loop
    rows = fg.op(lambda x, b: fg.softmax(x / (1 - b**2.5), -1), name="rows")
    for shape in ((4, 40), (3, 5000), (2, 3, 7)):
        x = draw(*shape, dtype=torch.float32)
        expected = torch.softmax(x.detach().double() / (1 - 0.9**2.5), -1)
        found = rows(x, 0.9)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)
        (gradient,) = torch.autograd.grad(found.square().sum(), x)
        leaf = x.detach().double().requires_grad_()
        torch.softmax(leaf / (1 - 0.9**2.5), -1).square().sum().backward()
        assert leaf.grad is not None
        torch.testing.assert_close(gradient.double(), leaf.grad, rtol=1e-4, atol=1e-6)
    total = fg.op(lambda x, b: fg.sum(x * b**0.5) * (1 - b**3), name="total")
    big = torch.ones(300_000)
    torch.testing.assert_close(float(total(big, 0.25)), 300_000 * 0.5 * (1 - 0.25**3), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("power", [-2, -1, 2, 3, 0.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("shape", [(3,), ()], ids=str)
def test_a_power_of_a_number_is_a_number(power: float, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """In double beside doubles; and it widens nothing: of a half or an integer the result has torch's dtype."""
    x = torch.full(shape, 3, dtype=dtype)
    for number in (0.1, 3):
        function = lambda x, number: x * (number**power / 24)  # noqa: E731
        found, expected = fg.op(function, name="powered")(x, number), function(x, number)
        assert found.dtype is expected.dtype
        torch.testing.assert_close(found, expected, rtol=1e-15 if dtype is torch.float64 else 1e-2, atol=0)
    whole = fg.op(lambda x, n: x * n**2, name="squared")(x, 3)
    assert whole.dtype is (x * 3**2).dtype and torch.equal(whole, x * 9)


def test_a_number_without_gradient_is_a_number() -> None:
    x = torch.ones(2, dtype=torch.float64)
    found = fg.op(lambda x, number: x * (fg.stop_gradient(number) / 24), name="stopped")(x, 0.1)
    torch.testing.assert_close(found, x * (0.1 / 24), rtol=1e-15, atol=0)

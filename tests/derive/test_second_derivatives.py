"""Second derivatives of functions of functions, beside torch's: what the first ones are made of is derived once more.

A derivative has factors of its own and factors that a declaration wrote. They may be one number in two forms.
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
from tools.program_checks import interpreted

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "softsign": lambda x: F.softsign(x), "tan": lambda x: torch.tan(0.5 * x), "tanh": lambda x: torch.tanh(x),
    "over one more": lambda x: x / (1 + torch.abs(x)), "reciprocal": lambda x: 1 / (1 + x * x),
    "root": lambda x: torch.sqrt(x * x + 0.5), "direction": lambda x: x / torch.sqrt(x * x + 0.5),
    "logarithm": lambda x: torch.log(1 + torch.abs(x)), "exponential": lambda x: torch.exp(-x),
    "power": lambda x: (1 + x * x) ** -1.5, "hypot": lambda x: torch.hypot(x, 1 + x),
    "atan2": lambda x: torch.atan2(x, 1 + x * x),
    "sigmoid": lambda x: torch.sigmoid(x), "atanh": lambda x: torch.atanh(0.5 * F.softsign(x)),
}  # fmt: skip
Function = Callable[[Any], Any]


def derivatives(function: Function, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    value = function(x)
    (first,) = torch.autograd.grad(value, x, torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype), create_graph=True)
    (second,) = torch.autograd.grad(first, x, torch.linspace(1.5, -0.5, x.numel(), dtype=x.dtype))
    return [value.detach(), first.detach(), second]


def composed(names: list[str]) -> Function:
    def function(x: Any) -> Any:
        for name in names:
            x = FUNCTIONS[name](x)
        return x

    return function


def check(names: list[str]) -> None:
    x = torch.tensor([-2.3, -1.1, -0.4, 0.3, 0.9, 1.7, 3.1], dtype=torch.float64)
    with interpreted(0):
        found = derivatives(fg.op(composed(names), name="composed"), x)
    for mine, theirs in zip(found, derivatives(composed(names), x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-11, msg=lambda text: f"{names}: {text}")


@pytest.mark.parametrize("inner", list(FUNCTIONS))
def test_of_one_function_of_another(inner: str) -> None:
    for outer in FUNCTIONS:
        check([inner, outer])


@pytest.mark.parametrize("block", range(3))
def test_of_functions_of_functions(block: int) -> None:
    draw = random.Random(block)
    for _ in range(12):
        check(draw.choices(list(FUNCTIONS), k=draw.choice([3, 4])))


# -- where two numbers are one, and where one is where a function has no number -------------------------------------


def at(function: Callable[..., Any], *values: list[float]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Value, first and second derivatives, ours and torch's."""
    found = []
    for call in (fg.op(function), function):
        arguments = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values]
        value = call(*arguments)
        cotangent = torch.linspace(0.5, 1.5, value.numel(), dtype=torch.float64)
        first = torch.autograd.grad(value, arguments, cotangent, create_graph=True)
        weights = [torch.linspace(1.5, i - 0.5, len(values[i]), dtype=torch.float64) for i in range(len(first))]
        second = torch.autograd.grad(first, arguments, weights)
        found.append([each.detach() for each in (value, *first, *second)])
    return list(zip(*found, strict=True))


def check_at(function: Callable[..., Any], *values: list[float]) -> None:
    for ours, theirs in at(function, *values):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_the_logarithm_of_two_equal_exponentials_curves(name: str) -> None:
    def function(x: Any, y: Any) -> Any:
        return getattr(torch, name)(x, y)

    check_at(function, [1.0, 2.0, -3.0, 0.0], [1.0, 2.0, -2.0, 0.0])
    x = torch.tensor([math.inf, -math.inf, math.inf, math.nan], dtype=torch.float64)
    y = torch.tensor([math.inf, -math.inf, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(fg.op(function)(x, y), function(x, y), equal_nan=True)


def test_running_logarithms_in_blocks_curve_at_ties() -> None:
    check_at(lambda x: torch.logcumsumexp(torch.cat([x * 1.0, x * 1.0]), 0), [1.0, 1.0])


def test_a_product_with_a_logarithm_has_its_slope_at_zero() -> None:
    def function(x: Any, y: Any) -> Any:
        return torch.special.xlog1py(x, y)

    check_at(function, [0.0, 0.0, 1.5, -0.5], [0.5, -0.25, 0.5, 2.0])
    x = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    y = torch.tensor([-1.0, -2.0, math.inf, math.nan, math.nan], dtype=torch.float64)
    torch.testing.assert_close(fg.op(function)(x, y), function(x, y), equal_nan=True)

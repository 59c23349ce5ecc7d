"""Every row of the function table and every activation, over all half-precision inputs and a dense float32 sample."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import mpmath
import pytest
import torch

import fusegen as fg
from fusegen.declare.language import NOT_FUNCTIONS, TABLE_FUNCTIONS
from tools import accuracy, accuracy_cases

CASES = {case.name: case for case in accuracy_cases.cases()}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", accuracy.DTYPES, ids=accuracy.SHORT.values())
@pytest.mark.parametrize("name", CASES)
def test_value_and_derivative_stay_within_their_bounds(name: str, dtype: torch.dtype) -> None:
    assert not accuracy.complaints(accuracy.sweep(CASES[name], dtype, DEVICE))


def test_every_row_of_floats_is_swept() -> None:
    assert {*NOT_FUNCTIONS, *TABLE_FUNCTIONS} - set(CASES) <= accuracy_cases.NOT_SWEPT


def test_every_activation_of_the_library_is_swept() -> None:
    public = {name for name, value in vars(fg.ops.activations).items() if isinstance(value, fg.FusedOp)}
    swept = {name.partition(",")[0] for name in accuracy_cases.ACTIVATIONS}
    assert public - swept == {"prelu", "crelu"}, "these two are not functions of one number"


def test_the_inputs_are_what_the_page_says() -> None:
    for dtype in accuracy.HALVES:
        (x,) = accuracy.inputs(dtype)
        assert x.view(torch.int16).unique().numel() == 65536
    (x,) = accuracy.inputs(torch.float32)
    _, exponents = torch.frexp(x[x.isfinite() & (x.abs() >= torch.finfo(x.dtype).tiny)])
    assert exponents.unique().numel() == 254
    for special in (x == 0, x.isinf(), x.isnan(), (x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)):
        assert torch.signbit(x[special]).unique().numel() == 2


def test_errors_are_counted_in_units_of_the_last_place() -> None:
    x = (torch.zeros(4),)
    reference = torch.tensor([1.0, 1.0, 2.0**-149, math.inf], dtype=torch.float64)
    got = torch.tensor([1 + 2**-23, 1.0, 2.0**-148, torch.finfo(torch.float32).max])

    def error(got: torch.Tensor, place: slice, sign: float = 1) -> accuracy.Error:
        return accuracy.largest_error(got, accuracy.exactly(sign * reference[place]), (x[0][: len(got)],))

    assert error(got[:2], slice(2)).ulp == 1
    assert error(got[2:3], slice(2, 3)).ulp == 1
    assert error(got[3:], slice(3, None)).ulp == 1
    assert error(torch.tensor([math.nan]), slice(1)).nan_differs
    assert error(torch.tensor([-0.0]), slice(1), 0).zero_differs


def test_what_is_allowed_is_the_results_own() -> None:
    """A bound that holds of each result: torch's errors, or large ones elsewhere, allow nothing."""
    case = CASES["ops.gelu"]
    x = torch.tensor([-5.0, -0.7517916, 0.5, 1.0, 20.0], dtype=torch.float64)
    value, slope = accuracy.references(case, (x,))
    in_ulp = [exact.allowed(torch.float32) / accuracy.ulp(exact.of, torch.float32) for exact in (value, slope)]
    assert 4 < in_ulp[0][2] < 10 and 90 < in_ulp[0][0] < 130  # x^2 as many in the tail
    assert in_ulp[1][1] > 1e4 and in_ulp[1][3] < 6  # next to the slope's zero; at 1
    floor = accuracy.references(CASES["floor"], (torch.tensor([1.0, -2.0, 2.5], dtype=torch.float64),))[0]
    assert (floor.allowed(torch.float32) / accuracy.ulp(floor.of, torch.float32) == 0.5).all()  # nothing for the jump


@pytest.mark.parametrize("name", ["ops.relu", "ops.elu", "ops.gelu", "ops.silu", "exp", "tanh", "atan", "pow"])
def test_a_derivative_that_is_slightly_off_is_seen(name: str) -> None:
    """By 20 ulp everywhere: that is less than floors of 2.5e-6 let pass where slopes are below 1."""
    case = CASES[name]

    class Off(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, d: torch.Tensor) -> torch.Tensor:
            return d * (1 + 20 * 2**-23)

    broken = replace(case, op=lambda x, *rest: case.torch_op(Off.apply(x), *rest))
    said = accuracy.complaints(accuracy.sweep(broken, torch.float32))
    assert any(f"{name}, fp32, derivative: " in sentence and "bound" in sentence for sentence in said), said


SMOOTH = sorted(accuracy_cases.STABLE_DERIVATIVES)


@pytest.mark.parametrize("name", SMOOTH)
def test_the_float64_derivatives_themselves_are_right(name: str) -> None:
    functions = {
        "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
        "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
        "logsigmoid": lambda x: -mpmath.log1p(mpmath.exp(-x)),
        "lgamma": lambda x: mpmath.loggamma(x).real,
        "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    }
    function = functions.get(name) or getattr(mpmath, name)
    points = [1.5, 2.25, 7.0, 19.75] if name == "acosh" else [-19.75, -5.3, -0.3, 1e-3, 0.5, 2.25, 11.0]
    with mpmath.workdps(40):
        expected = [float(mpmath.diff(function, mpmath.mpf(x))) for x in points]
    got = accuracy_cases.STABLE_DERIVATIVES[name](torch.tensor(points, dtype=torch.float64))
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_float64_polygamma_itself_is_right(order: int) -> None:
    points = [-19.75, -5.3, -0.3, 1e-3, 0.5, 2.25, 11.0]
    with mpmath.workdps(40):
        expected = [float(mpmath.diff(mpmath.digamma, mpmath.mpf(x), order)) for x in points]
    got = accuracy_cases._polygamma(order, torch.tensor(points, dtype=torch.float64))
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)

"""Every row of the function table and every activation, over all half-precision inputs and a dense float32 sample."""

from __future__ import annotations

import math

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
    exact = torch.tensor([1.0, 1.0, 2.0**-149, math.inf], dtype=torch.float64)
    got = torch.tensor([1 + 2**-23, 1.0, 2.0**-148, torch.finfo(torch.float32).max])
    assert accuracy.largest_error(got[:2], exact[:2], (x[0][:2],)).ulp == 1
    assert accuracy.largest_error(got[2:3], exact[2:3], (x[0][:1],)).ulp == 1
    assert accuracy.largest_error(got[3:], exact[3:], (x[0][:1],)).ulp == 1
    assert accuracy.largest_error(torch.tensor([math.nan]), exact[:1], (x[0][:1],)).nan_differs
    assert accuracy.largest_error(torch.tensor([-0.0]), exact[:1] * 0, (x[0][:1],)).zero_differs


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

"""The function table in float64: derivatives against finite differences and mpmath, torch's answers at kinks and ties.

What float32 and the half types make of each row is swept in tests/ops/test_sweep.py.
"""

from __future__ import annotations

import math
import re
from typing import Any

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import fusegen as fg
from fusegen.declare.language import NOT_FUNCTIONS, TABLE_FUNCTIONS
from fusegen.declare.table import Function, lookup

NAMES = (*NOT_FUNCTIONS, *TABLE_FUNCTIONS)
SMOOTH = [
    name
    for name in TABLE_FUNCTIONS
    if lookup(name).smooth and lookup(name).kind.name in ("FLOAT", "NUMERIC") and name not in ("where", "int_pow")
]


def applied(name: str) -> Any:
    """An op of one call. Rows that lowering alone uses are not part of the language, but have a derivative too."""
    arguments = ["a", "b", "c"][: lookup(name).arity]
    space: dict[str, Any] = {"fg": fg}
    exec(f"def applied({', '.join(arguments)}):\n    return fg.{name}({', '.join(arguments)})\n", space)
    return fg.op(space["applied"], name=f"table_{name}")


def points(row: Function) -> list[torch.Tensor]:
    """Arguments inside the domain, away from kinks."""
    low, high = row.domain
    if row.name == "ratio":
        low, high = 1.0, math.inf
    around = torch.tensor([-2.3, -0.8, -0.35, 0.15, 0.45, 0.7, 1.35, 2.6], dtype=torch.float64)
    if high == 1:
        around = around / 3 if low == -1 else 0.5 + around / 6
    elif low > -math.inf:
        around = low + around.abs() + 0.1
    second = torch.tensor([1.7, 2.2, 1.3, 3.1, 2.6, 1.4, 1.9, 2.8], dtype=torch.float64)
    given = [around, second, second + 2][: row.arity]
    return [t.clone().requires_grad_() for t in given]


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_of_first_and_second_order(name: str) -> None:
    op, inputs = applied(name), points(lookup(name))
    assert gradcheck(op, inputs)
    if name != "erfinv":  # its second derivative is too steep for finite differences
        assert gradgradcheck(op, inputs, rtol=1e-2)


@pytest.mark.parametrize("name", TABLE_FUNCTIONS)
def test_values_in_float64_are_the_references(name: str) -> None:
    row = lookup(name)
    if row.kind.name == "BITWISE":
        inputs = [torch.tensor([1, -5, 12, 7]), torch.tensor([3, 1, 2, 0])][: row.arity]
    elif name == "where":
        inputs = [torch.tensor([True, False]), torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    else:
        inputs = [t.detach() for t in points(row)]
    torch.testing.assert_close(applied(name)(*inputs), row.reference(torch, *inputs), rtol=1e-13, atol=1e-13)


POINTS = [-7.25, -1.5, -0.3, 0.01, 0.4, 1.0, 3.5, 10.0, 25.5]


@pytest.mark.parametrize("order", [0, 1, 2, 3, 5])
def test_polygamma_against_mpmath(order: int) -> None:
    op = fg.op(lambda x: fg.polygamma(order, x), name=f"polygamma_{order}")
    expected = [float(mpmath.diff(mpmath.digamma, x, order) if x < 0 else mpmath.polygamma(order, x)) for x in POINTS]
    ours = op(torch.tensor(POINTS, dtype=torch.float64))
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_digamma_and_polygamma_far_left_of_zero_and_at_poles() -> None:
    op = fg.op(lambda x: (fg.digamma(x), fg.polygamma(1, x), fg.polygamma(2, x)), name="poles")
    digamma, first, second = op(torch.tensor([-1e9 - 0.5, -1e15, -3.0, 0.0, -math.inf, math.inf], dtype=torch.float64))
    assert digamma[0].item() == pytest.approx(math.log(1e9)) and first[0].item() == pytest.approx(math.pi**2)
    assert digamma[1:3].isnan().all() and first[1:4].tolist() == [math.inf] * 3
    assert digamma[3].item() == -math.inf and second[3].item() == -math.inf
    assert all(t[4].isnan() for t in (digamma, first, second))
    assert digamma[5].item() == math.inf and first[5].item() == 0


# Where two arguments tie, where a function has a kink, where a limit is passed: (function, arguments).
KINKS: dict[str, tuple[Any, Any, list[tuple[float, ...]]]] = {
    "abs": (lambda x: fg.abs(x), torch.abs, [(0.0,), (-0.0,), (-1.0,), (math.nan,)]),
    "minimum": (fg.minimum, torch.minimum, [(1, 1), (1, 2), (2, 1), (math.nan, 1), (0.0, -0.0), (math.inf, math.inf)]),
    "maximum": (fg.maximum, torch.maximum, [(1, 1), (1, 2), (2, 1), (1, math.nan), (-math.inf, -math.inf)]),
    "clamp": (
        fg.clamp, torch.clamp,
        [(0, -1, 1), (-1, -1, 1), (1, -1, 1), (2, -1, 1), (-2, -1, 1), (0, 1, -1), (1, 1, 1), (0, 1, 1)],
    ),
    "pow": (
        lambda a, b: a**b, torch.pow,
        [(0, 0), (0, 2), (0, 0.5), (0, -1), (-2, 3), (-2, 2), (2, 0), (math.inf, 0), (1, math.inf)],
    ),
    "xlogy": (fg.xlogy, torch.xlogy, [(0, 0), (0, 1), (0, math.inf), (1, 2), (2, 0)]),
    "copysign": (fg.copysign, torch.copysign, [(1, -1), (-1, -1), (0, -1), (2, 0.0), (2, -0.0)]),
    "atan2": (fg.atan2, torch.atan2, [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)]),
    "sign": (fg.sign, torch.sign, [(0.0,), (-3.0,), (math.nan,), (math.inf,)]),
    "fmod": (fg.fmod, torch.fmod, [(5.5, 2), (-5.5, 2), (5.5, -2), (4, 2)]),
    "remainder": (fg.remainder, torch.remainder, [(5.5, 2), (-5.5, 2), (5.5, -2), (0.5, -math.inf), (-4, 2)]),
    "sqrt": (fg.sqrt, torch.sqrt, [(0.0,), (-1.0,), (math.inf,)]),
    "hypot": (fg.hypot, torch.hypot, [(3, 4), (math.inf, 1), (0, 2)]),
    "where": (
        lambda a, b: fg.where(a > 0, a, b), lambda a, b: torch.where(a > 0, a, b), [(0, 1), (1, 2), (math.nan, 3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINKS)
def test_kinks_ties_and_limits_are_torchs(name: str) -> None:
    body, torch_function, where = KINKS[name]
    arity = len(where[0])
    bodies = {1: lambda a: body(a), 2: lambda a, b: body(a, b), 3: lambda a, b, c: body(a, b, c)}
    found = []
    for function in (fg.op(bodies[arity], name=f"kink_{name}"), torch_function):
        inputs = [t.clone().requires_grad_() for t in torch.tensor(where, dtype=torch.float64).unbind(1)]
        result = function(*inputs)
        found.append((result, *torch.autograd.grad(result, inputs, torch.full_like(result, 3.0))))
    for what, ours, theirs in zip(("value", "first", "second", "third"), *found, strict=False):
        torch.testing.assert_close(
            ours, theirs, equal_nan=True, msg=f"{what}: {ours.tolist()} {theirs.tolist()} at {where}"
        )


def test_derivatives_neither_overflow_nor_vanish_on_the_way() -> None:
    """In float32 the squares of these do."""
    op = fg.op(lambda a, b: (a / b, fg.atan2(a, b)), name="extremes")
    for size in (1e-25, 1e25):
        a, b = (torch.tensor([v * size], requires_grad=True) for v in (1.0, 2.0))
        for result, slopes in zip(op(a, b), ((0.5, -0.25), (0.4, -0.2)), strict=True):
            found = torch.autograd.grad(result, (a, b), retain_graph=True)
            assert [g.item() * size for g in found] == pytest.approx(slopes)


def test_mish_is_linear_far_right_however_large() -> None:
    """Lowering's form of 1 - tanh(softplus(x))^2 must be zero there: it is multiplied by x."""
    op = fg.op(lambda x: x * fg.tanh(fg.softplus(x)), name="mish")
    for dtype, largest in ((torch.float32, 3e38), (torch.bfloat16, 3e38), (torch.float64, 1e300)):
        x = torch.tensor(
            [25.0, 45.0, 1e20 if dtype is not torch.float16 else 1e4, largest], dtype=dtype, requires_grad=True
        )
        (gradient,) = torch.autograd.grad(op(x).sum(), x)
        assert gradient.tolist() == pytest.approx([1.0] * 4, abs=1e-6)


def test_half_kernels_of_one_plus_erf_keep_the_left_tail_and_share_the_exponential() -> None:
    op = fg.op(lambda x: x * 0.5 * (1 + fg.erf(x / math.sqrt(2))), name="gelu_by_erf")
    x = torch.linspace(-5, 3, 801).half().requires_grad_()
    y = op(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    exact = x.detach().double()
    normal = 0.5 * torch.erfc(-exact * math.sqrt(0.5))
    density = torch.exp(-exact * exact / 2) / math.sqrt(2 * math.pi)
    torch.testing.assert_close(y.double(), exact * normal, rtol=2**-11 * 1.02, atol=2**-25 * 1.02)
    torch.testing.assert_close(slope.double(), normal + exact * density, rtol=2**-11 * 1.02, atol=2.5e-6)
    backward = op.emit(x, which="backward")
    (argument,) = re.findall(r"fast_erfc\((\w+)\)", backward)
    assert f"fast_exp_below(-({argument} * {argument}))" in backward, "the text that fast_erfc has inside"
    in_float32 = op.emit(x.float(), which="backward")
    assert "erff(" in in_float32 and "erfc" not in in_float32, "which costs twice as much there"


def test_every_row_has_what_a_row_needs() -> None:
    for name in NAMES:
        row = lookup(name)
        assert row.reference is not None and row.cuda
        assert row.partials or row.sympy or not row.smooth or row.kind.name not in ("FLOAT", "NUMERIC") or name in (
            "add", "sub", "mul", "div", "neg", "powi",  # sympy's own
            "declared",  # a gradient that somebody has written
        ), name  # fmt: skip

"""Defects that a reviewer found, each with the smallest case that showed it."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fusegen as fg

INF = math.inf


def _gradients(f: Callable[[Any], Any], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of ``f`` as an op, and of ``f`` in eager torch."""
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    mine = torch.autograd.grad(fg.op(f)(ours).sum(), ours)[0]
    return mine, torch.autograd.grad(f(theirs).sum(), theirs)[0]


@pytest.mark.parametrize(
    ("f", "x"),
    [
        pytest.param(lambda x: (x + 1e8 - 1e8) ** 2 * x, [1.3, 100.0], id="rounding by a large constant"),
        pytest.param(lambda x: (x / x + x) * x, [2.0, -0.5], id="a quotient that sympy cancels"),
        pytest.param(lambda x: abs(x * 0 + x) * x, [3.0, -2.0], id="a product that sympy drops"),
    ],
)
def test_derivatives_use_the_values_that_the_declaration_computes(f: Callable[[Any], Any], x: list[float]) -> None:
    mine, torchs = _gradients(f, torch.tensor(x))
    torch.testing.assert_close(mine, torchs)


def test_conditions_of_derivatives_are_those_of_the_declaration() -> None:
    x = torch.tensor([INF, -INF, 2.0, -0.5], requires_grad=True)
    (mine,) = torch.autograd.grad(fg.op(lambda x: fg.maximum(x, 0 * x))(x).sum(), x)
    y = x.detach().clone().requires_grad_()
    (torchs,) = torch.autograd.grad(torch.maximum(y, 0 * y).sum(), y)
    torch.testing.assert_close(mine, torchs)


def test_an_argument_that_the_result_does_not_depend_on_has_no_gradient() -> None:
    a, b, c = (torch.randn(3, requires_grad=True) for _ in range(3))
    first, _ = fg.op(lambda a, b, c: (a * b, c + 1), name="pair")(a, b, c)
    *found, nothing = torch.autograd.grad(first.sum(), (a, b, c), allow_unused=True)
    torch.testing.assert_close(found, [b.detach(), a.detach()])
    assert nothing is None
    zeros, ones = torch.autograd.grad(fg.op(lambda a, b: fg.floor(a) + b, name="step")(a, b).sum(), (a, b))
    assert zeros.eq(0).all() and ones.eq(1).all()


def test_numbers_beyond_float32_become_infinite() -> None:
    f = fg.op(lambda x, s: x * 0 + s, name="fill")
    assert f(torch.ones(2), 3.5e38).eq(INF).all() and f(torch.ones(2), -1e300).eq(-INF).all()
    assert f(torch.ones(2, dtype=torch.float64), 1e300).eq(1e300).all()


def test_a_forgotten_derivative_is_an_error_not_zero() -> None:
    bessel = fg.register_function("forgotten_j0", cuda="j0{f}({0})", reference=lambda t, x: t.special.bessel_j0(x))
    f = fg.op(lambda x: bessel(x), name="bessel")
    x = torch.rand(4, requires_grad=True)
    torch.testing.assert_close(f(x.detach()), torch.special.bessel_j0(x.detach()))
    with pytest.raises(fg.DerivativeError, match="a derivative in its row"):
        f(x)


def test_constants_are_told_apart_by_value_not_by_text() -> None:
    @fg.op
    def scaled(x: Any, *, how: fg.Const) -> Any:
        return how(x)

    for factor in range(20):
        assert scaled(torch.ones(1), how=lambda x, factor=factor: x * factor).item() == factor


def test_out_counts_as_a_change_of_the_tensor() -> None:
    x = torch.rand(3, requires_grad=True)
    y = x.exp()
    with torch.no_grad():
        fg.ops.relu6(torch.ones(3), out=y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_read_only_array_is_not_written() -> None:
    target = np.zeros(3, np.float32)
    target.flags.writeable = False
    with pytest.raises(fg.FusegenError, match="read-only"):
        fg.op(lambda x: x + 1, name="plus")(np.ones(3, np.float32), out=target)
    assert not target.any()


def test_library_ops_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(fg.ops.gelu)) is fg.ops.gelu
    assert copy.deepcopy(fg.ops.mish) is fg.ops.mish


@pytest.mark.parametrize(
    "name", ["bitand", "xor", "and_eq", "n", "at", "k", "x_ptr", "j0", "half", "float", "expf", "β"]
)
def test_any_name_of_an_argument_compiles(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def f({name}, y): return {name} * y + {name}", scope)
    a, b = (torch.rand(2, 9, requires_grad=True) for _ in range(2))
    result = fg.op(scope["f"], name="named")(a, b)
    torch.testing.assert_close(result, a * b + a)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), (a, b)), (b.detach() + 1, a.detach()))


def test_a_gradient_may_know_an_axis_by_its_size_alone() -> None:
    """The gradient by the weights reads the row's sum, which is kept, and of the row only how long it is."""

    @fg.op
    def weighted(rows: Any, weight: Any) -> Any:
        return weight * fg.mean(rows * rows, axis=-1)

    rows, weight = torch.rand(3, 5, dtype=torch.float64), torch.rand(3, dtype=torch.float64, requires_grad=True)
    weighted(rows, weight).sum().backward()
    torch.testing.assert_close(weight.grad, (rows * rows).mean(-1))
    assert torch.autograd.gradgradcheck(weighted, (rows.requires_grad_(), weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_parts_of_a_packed_argument_that_nothing_reads_have_gradient_zero(dtype: torch.dtype) -> None:
    op = fg.op(lambda x: fg.split(x, 4)[2] * fg.sin(fg.split(x, 4)[0]), name="part")
    x = torch.randn(5, 16).to(dtype).requires_grad_()
    for _ in range(3):
        rubbish = [torch.full_like(x, torch.nan) for _ in range(20)]
        del rubbish  # memory that the gradient may get
        (found,) = torch.autograd.grad((op(x) ** 2).sum(), x, create_graph=dtype is torch.float32)
        parts = x.chunk(4, -1)
        (expected,) = torch.autograd.grad(((parts[2] * parts[0].sin()) ** 2).sum(), x, create_graph=True)
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01)
        if dtype is torch.float32:
            second = [torch.autograd.grad((g**2).sum(), x)[0] for g in (found, expected)]
            torch.testing.assert_close(*second)
    along = torch.func.jvp(op, (x.detach(),), (torch.ones_like(x),))[1]
    wanted = torch.func.jvp(lambda x: x.chunk(4, -1)[2] * x.chunk(4, -1)[0].sin(), (x.detach(),), (torch.ones_like(x),))
    torch.testing.assert_close(along, wanted[1], rtol=0.01, atol=0.01)


def test_an_argument_that_is_split_in_two_ways_is_read() -> None:
    op = fg.op(lambda x: fg.split(x, 4)[2] * fg.sum(fg.split(x, 2, 0)[0]), name="part")
    x = torch.randn(16, 16, dtype=torch.float64, requires_grad=True)
    expected = x.chunk(4, -1)[2] * x.chunk(2, 0)[0].sum()
    torch.testing.assert_close(op(x), expected)
    cotangent = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(out, x, cotangent) for out in (op(x), expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / 0,
        lambda x: 0 / x,
        lambda x: x / (1.0 - 1.0),
        lambda x: x / 0.0 / 0.0,
        lambda x: (x / 0.0) ** 2,
        lambda x: torch.where(x > 10, x / 0.0, x * 2),
        lambda x: torch.exp(x / 0.0),
        lambda x: x / math.inf,
    ],
)
def test_a_number_that_is_zero_divides(function: Any) -> None:
    """As torch's: sympy, which has no infinities of two signs, is not asked what it comes to."""
    x, y = (torch.tensor([-2.0, -0.5, 0.5, 3.0], requires_grad=True) for _ in range(2))
    op = fg.op(function, name="of_zero")
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    ours, theirs = op(x), function(y)
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert x.grad is not None and y.grad is not None
    where = ~y.grad.isnan()  # a branch that is not taken is NaN in torch
    torch.testing.assert_close(x.grad[where], y.grad[where])


def test_a_cotangent_for_one_of_two_results_reads_what_was_saved_for_both() -> None:
    @fg.op
    def both(x, i):  # type: ignore[no-untyped-def]
        y = fg.sin(fg.softmax(x, -1))
        return fg.sum(fg.where(fg.index(y, -1) == i, y, 0.0), -1, keepdims=True), fg.softmax(x, -1)

    def theirs(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.softmax(x, -1).sin()
        return torch.where(torch.arange(y.shape[-1]) == i, y, 0.0).sum(-1, keepdim=True), torch.softmax(x, -1)

    i = torch.tensor([2, 0, 1])
    for given in ((0, 1), (0,), (1,)):
        x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        found, wanted = both(x, i), theirs(x, i)
        cotangents, further = [torch.randn_like(wanted[k]) for k in given], torch.randn_like(x)
        first = [
            torch.autograd.grad([r[k] for k in given], x, cotangents, create_graph=True)[0] for r in (found, wanted)
        ]
        torch.testing.assert_close(*first)
        torch.testing.assert_close(*(torch.autograd.grad(g, x, further)[0] for g in first))

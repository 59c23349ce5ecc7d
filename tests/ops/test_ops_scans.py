"""Running extrema, of which torch returns values and places: torch's sample inputs, ties, NaN and infinities."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import fusegen as fg
from tests.support.opinfo import no_search_for_the_test

__all__ = ["no_search_for_the_test"]  # a fixture

INFOS: dict[str, Any] = {info.name: info for info in op_db if info.name in ("cummax", "cummin", "cumsum", "cumprod")}
PAIRS = ("cummax", "cummin")
INF, NAN = float("inf"), float("nan")
ODD = [
    [1.0, 1.0, 0.5, 2.0, 2.0, 1.0],
    [NAN, 1.0, 3.0, NAN, 2.0, INF],
    [-INF, -INF, INF, INF, 1.0, -INF],
    [INF, -INF, 0.0, -0.0, NAN, NAN],
    [0.0, 2.0, 0.0, -3.0, 0.0, INF],
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_values_and_places(name: str, dtype: torch.dtype) -> None:
    for sample in INFOS[name].sample_inputs("cpu", dtype):
        ours = getattr(fg.ops, name)(sample.input, *sample.args, **sample.kwargs)
        theirs = INFOS[name].op(sample.input, *sample.args, **sample.kwargs)
        for mine, other in zip(ours, theirs, strict=True):
            assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
            assert torch.equal(mine, other)


@pytest.mark.parametrize("name", PAIRS)
def test_gradients_go_where_torch_s_go(name: str) -> None:
    x = torch.tensor(ODD, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(x.shape, dtype=torch.float64)
    cotangent[0, 3], cotangent[4, 2] = INF, NAN  # what other elements must not get
    for axis in (0, 1):
        ours, theirs = getattr(fg.ops, name)(x, axis), getattr(torch, name)(x, axis)
        assert torch.equal(ours[1], theirs[1])
        torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=0, equal_nan=True)
        found, expected = (torch.autograd.grad(result, x, cotangent)[0] for result in (ours[0], theirs[0]))
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
def test_odd_numbers(name: str) -> None:
    x = torch.tensor(ODD, dtype=torch.float64)
    for axis in (0, 1):
        found, expected = getattr(fg.ops, name)(x, axis), getattr(torch, name)(x, axis)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=0, equal_nan=True)


@pytest.mark.parametrize("zeros", [(), (2,), (1, 4), (0, 1, 5)], ids=str)
def test_gradients_of_a_running_product_with_zeros(zeros: tuple[int, ...]) -> None:
    x = torch.randn(3, 6, dtype=torch.float64)
    x[1, list(zeros)] = 0
    x.requires_grad_()
    first, second = torch.randn(2, 3, 6, dtype=torch.float64)
    found = []
    for function in (fg.ops.cumprod, torch.cumprod):
        (once,) = torch.autograd.grad(function(x, 1), x, first, create_graph=True)
        found.append((once, torch.autograd.grad(once, x, second)[0]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_no_gradient_flows_where_a_sum_of_exponentials_is_infinite() -> None:
    x = torch.tensor([[-INF, -INF, 1.0, 2.0], [1.0, 0.5, INF, 3.0]], dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(2, 4, dtype=torch.float64)
    (found,) = torch.autograd.grad(fg.ops.logcumsumexp(x, 1), x, cotangent)
    finite = x.detach()[:, :2].clone().requires_grad_()
    (expected,) = torch.autograd.grad(torch.logcumsumexp(finite[1:], 1), finite, cotangent[1:, :2])
    torch.testing.assert_close(found[1], torch.cat([expected[1], torch.zeros(2).double()]))
    kept = x.detach()[:1, 2:].clone().requires_grad_()
    (expected,) = torch.autograd.grad(torch.logcumsumexp(kept, 1), kept, cotangent[:1, 2:])
    torch.testing.assert_close(found[0], torch.cat([torch.zeros(2).double(), expected[0]]))

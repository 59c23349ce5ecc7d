"""Clipping by the norm of all gradients, and averages of parameters, beside torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen import optim
from tests.support.call_paths import DEVICE
from tests.support.oracles import refused

SHAPES = [(3, 5), (7,), (1,), (), (2, 3, 4), (9000,), (64, 64), (0,)]


def with_gradients(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> list[torch.Tensor]:
    params = [torch.zeros(shape, device=DEVICE, dtype=dtype, requires_grad=True) for shape in SHAPES]
    for param in params:
        param.grad = torch.randn_like(param) * scale
    return params


def doubled(params: list[torch.Tensor]) -> list[torch.Tensor]:
    found = []
    for param in params:
        found.append(param.detach().double().requires_grad_())
        found[-1].grad = None if param.grad is None else param.grad.to(torch.float64, copy=True)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [2.0, 1, 3, 0.5, math.inf])
@pytest.mark.parametrize("most", [0.7, 1e9])
def test_beside_torch(dtype: torch.dtype, kind: float, most: float) -> None:
    ours = with_gradients(dtype)
    ours = ours[:-1] if kind == math.inf else ours  # torch refuses it of an empty tensor
    exact = doubled(ours)
    norm = optim.clip_grad_norm_(ours, most, kind)
    expected = torch.nn.utils.clip_grad_norm_(exact, most, kind)
    assert norm.dtype is (torch.float64 if dtype is torch.float64 else torch.float32) and norm.shape == ()
    torch.testing.assert_close(norm.double(), expected, rtol=2e-5, atol=0)
    eps = torch.finfo(dtype).eps
    for mine, other in zip(ours, exact, strict=True):
        assert mine.grad is not None and other.grad is not None and mine.grad.dtype is dtype
        torch.testing.assert_close(mine.grad.double(), other.grad, rtol=max(2 * eps, 2e-5), atol=1e-7)


def test_of_one_tensor_of_none_and_of_those_without_a_gradient() -> None:
    params = with_gradients()
    (one,), rest = params[:1], params[1:]
    assert one.grad is not None
    expected = one.grad.norm()
    torch.testing.assert_close(optim.clip_grad_norm_(one, 1.0), expected)
    torch.testing.assert_close(one.grad.norm(), torch.ones_like(expected), rtol=1e-5, atol=0)
    for param in rest[1:]:
        param.grad = None
    assert rest[0].grad is not None
    expected = rest[0].grad.norm()
    torch.testing.assert_close(optim.clip_grad_norm_((p for p in rest), torch.tensor(0.5, device=DEVICE)), expected)
    rest[0].grad = None
    rest[-1].grad = torch.empty_like(rest[-1])
    for kind in (2.0, math.inf):
        assert optim.clip_grad_norm_([rest[-1]], 1.0, kind) == 0
    rest[-1].grad = None
    assert optim.clip_grad_norm_(rest, 1.0) == 0


def test_mixed_dtypes() -> None:
    params = [*with_gradients(), *with_gradients(torch.bfloat16), *with_gradients(torch.float64)]
    exact = doubled(params)
    expected = torch.nn.utils.clip_grad_norm_(exact, 1.0)
    torch.testing.assert_close(optim.clip_grad_norm_(params, 1.0), expected)
    for mine, other in zip(params, exact, strict=True):
        assert mine.grad is not None and other.grad is not None
        torch.testing.assert_close(mine.grad, other.grad.to(mine.dtype))


def test_what_is_not_finite() -> None:
    params = with_gradients()
    assert params[1].grad is not None
    params[1].grad[2] = math.nan
    with pytest.raises(RuntimeError, match="non-finite"):
        optim.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    assert params[0].grad is not None and params[0].grad.isfinite().all()
    assert optim.clip_grad_norm_(params, 1.0).isnan()
    assert params[0].grad.isnan().all()
    infinite = with_gradients()
    assert infinite[1].grad is not None and infinite[0].grad is not None
    infinite[1].grad[2] = math.inf
    assert optim.clip_grad_norm_(infinite, 1.0).isinf()
    assert (infinite[0].grad == 0).all() and infinite[1].grad.isnan().sum() == 1  # as torch's
    assert "expected: a positive number" in str(refused(lambda: optim.clip_grad_norm_(params, 1.0, 0.0)))


@pytest.mark.parametrize("kind", ["same", "wide"])
def test_averages(kind: str) -> None:
    params = [torch.randn(shape, device=DEVICE).bfloat16() for shape in SHAPES]
    averages: list[Any] = [torch.randn_like(p, dtype=torch.float32 if kind == "wide" else None) for p in params]
    expected = [a.double() * 0.9 + p.double() * 0.1 for a, p in zip(averages, params, strict=True)]
    optim.ema_update_(averages, params, 0.9)
    for average, exact in zip(averages, expected, strict=True):
        torch.testing.assert_close(
            average,
            exact.to(average.dtype),
            rtol=1e-2 if kind == "same" else 2e-6,
            atol=1e-2 if kind == "same" else 2e-6,
        )
    optim.ema_update_([], [], 0.9)
    found = refused(lambda: optim.ema_update_(averages, params[1:], 0.9))
    assert isinstance(found, fg.ShapeError) and f"{len(params)} averages of {len(params) - 1}" in str(found)

"""torch.autocast reaches an op by its policy alone: what torch's functions do inside a run is decided before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import randn

import fusegen as fg
from fusegen import linear_loss, ops
from tests.support.call_paths import DEVICE

pytest_plugins = ("tests.support.call_paths",)


@fg.op
def one(x, w):  # type: ignore[no-untyped-def]
    return x @ w


@fg.op
def two(x, w, y, v):  # type: ignore[no-untyped-def]
    return x @ w + y @ v


@fg.op
def scaled(x, w, y, v):  # type: ignore[no-untyped-def]
    return fg.tanh(x @ w) * 0.5 + fg.sin(y @ v)


@fg.op
def mlp(x, w, b, v):  # type: ignore[no-untyped-def]
    return fg.ops.relu(fg.linear(x, w, b)) @ v


@fg.op
def attention(q, k, v):  # type: ignore[no-untyped-def]
    return fg.ops.softmax(q @ k.mT, -1) @ v


@fg.op
def gram(x, w):  # type: ignore[no-untyped-def]
    return x @ x.mT @ w


def turned(*shape: int) -> torch.Tensor:
    """Batches that are not one dimension in memory."""
    return torch.randn(shape[1], shape[0], *shape[2:]).transpose(0, 1)


CALLS: dict[str, tuple[Any, Callable[[], list[torch.Tensor]]]] = {
    "2-D": (one, lambda: [randn(4, 5), randn(5, 6)]),
    "3-D": (one, lambda: [randn(3, 4, 5), randn(3, 5, 6)]),
    "3-D by 2-D": (one, lambda: [randn(3, 4, 5), randn(5, 6)]),
    "4-D": (one, lambda: [turned(2, 3, 4, 5), randn(2, 3, 5, 6)]),
    "4-D broadcast": (one, lambda: [turned(2, 3, 4, 5), randn(3, 5, 6)]),
    "5-D": (one, lambda: [turned(2, 3, 2, 4, 5), turned(2, 3, 2, 5, 6)]),
    "2-D, a sum": (two, lambda: [randn(4, 5), randn(5, 6), randn(4, 7), randn(7, 6)]),
    "3-D, a sum": (two, lambda: [randn(3, 4, 5), randn(3, 5, 6), randn(3, 4, 7), randn(3, 7, 6)]),
    "4-D, a sum": (two, lambda: [turned(2, 3, 4, 5), randn(2, 3, 5, 6), turned(2, 3, 4, 7), randn(2, 3, 7, 6)]),
    "4-D, functions": (scaled, lambda: [turned(2, 3, 4, 5), randn(2, 3, 5, 6), turned(2, 3, 4, 7), randn(2, 3, 7, 6)]),
    "an MLP": (mlp, lambda: [randn(8, 5), randn(6, 5), randn(6), randn(6, 3)]),
    "an MLP, 4-D": (mlp, lambda: [turned(2, 3, 4, 5), randn(6, 5), randn(6), randn(6, 3)]),
    "attention": (attention, lambda: [turned(2, 3, 4, 5), turned(2, 3, 6, 5), turned(2, 3, 6, 5)]),
    "a Gram matrix": (gram, lambda: [turned(2, 3, 4, 5), turned(2, 3, 4, 5)]),
}


def results(call: Callable[..., Any], given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of a call without gradients, of one with them, its gradients, and theirs."""
    with torch.no_grad():
        found = [call(*given)]
    leaves = [tensor.detach().requires_grad_() for tensor in given]
    for _ in range(2):
        result = call(*leaves)
        found += [result, *torch.autograd.grad(result.sum(), leaves, retain_graph=True)]
        first = torch.autograd.grad(result.square().sum(), leaves, create_graph=True)
        total = torch.stack([gradient.square().sum() for gradient in first]).sum()
        found += [g for g in torch.autograd.grad(total, leaves, allow_unused=True) if g is not None]
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_an_op_without_a_policy_computes_what_it_did(fresh: Any, name: str, dtype: torch.dtype) -> None:
    op, make = CALLS[name]
    given = [tensor.to(DEVICE) for tensor in make()]
    expected = results(fresh(op), given)
    known = fresh(op)
    for _ in range(2):
        with torch.autocast(DEVICE, dtype):
            found = results(known, given)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        torch.testing.assert_close(results(known, given), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["4-D, a sum", "an MLP, 4-D"])
def test_so_it_does_by_the_dispatcher_and_under_transforms(name: str) -> None:
    op, make = CALLS[name]
    given = [tensor.to(DEVICE) for tensor in make()]
    overload = fg.FusedOp(op.declaration).overload(*given)
    calls: list[Callable[[], Any]] = [
        lambda: overload(*given),
        lambda: torch.func.jvp(op, tuple(given), tuple(given)),
        lambda: torch.func.vmap(op, in_dims=(0, *[None] * (len(given) - 1)))(*given),
        lambda: torch.func.grad(lambda x: op(x, *given[1:]).sum())(given[0]),
    ]
    for call in calls:
        expected = call()
        for _ in range(3):
            with torch.autocast(DEVICE, torch.bfloat16):
                found = call()
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_in_chunks_computes_what_it_did(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_loss, "rows_per_chunk", lambda *_: 3)
    loss = ops.linear_cross_entropy
    monkeypatch.setattr(loss, "declaration", replace(loss.declaration, autocast=None))
    x, weight, target = torch.randn(7, 8), torch.randn(13, 8), torch.randint(13, (7,))
    x, weight, target = (tensor.to(DEVICE) for tensor in (x, weight, target))

    def gradients(**options: bool) -> list[torch.Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in (x, weight)]
        result = loss(*leaves, target, reduction=reduction).float()
        return [result, *torch.autograd.grad(result.sum(), leaves, **options)]

    for create_graph in (False, True):
        expected = gradients(create_graph=create_graph)
        with torch.autocast(DEVICE, torch.bfloat16):
            found = gradients(create_graph=create_graph)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_what_it_says_of_autocast_stays_so(fresh: Any) -> None:
    """The caller's own setting is what it was, also behind an error."""
    known = fresh(one)
    x = torch.randn(4, 4, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        for _ in range(3):
            known(x, x)
            assert torch.is_autocast_enabled(DEVICE) and (x @ x).dtype is torch.bfloat16
        with pytest.raises(fg.ShapeError):
            known(x, torch.randn(5, 4, device=DEVICE))
        assert torch.is_autocast_enabled(DEVICE) and (x @ x).dtype is torch.bfloat16
    assert not torch.is_autocast_enabled(DEVICE)

"""The branch that a select does not take stays out of every derivative, whatever it is there: infinite, NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg

TAKEN = torch.tensor([True, True, False, True])
# Functions that are not finite where they are not taken: in fusegen and in torch.
INNER: dict[str, tuple[Callable[..., Any], Callable[..., Any], float]] = {
    "exp": (lambda u: fg.exp(u), torch.exp, 1e4),
    "log": (lambda u: fg.log(u), torch.log, -1.0),
    "sqrt": (lambda u: fg.sqrt(u), torch.sqrt, 0.0),
    "a quotient": (lambda u: 1 / u, lambda u: 1 / u, 0.0),
    "a product": (lambda u: u * u, lambda u: u * u, float("inf")),
}
OUTER: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "logsumexp": (lambda z: fg.logsumexp(z, -1), lambda z: z.logsumexp(-1)),
    "softmax": (lambda z: fg.softmax(z, -1), lambda z: z.softmax(-1)),
    "rms": (
        lambda z: z * fg.rsqrt(fg.mean(z * z, -1, True) + 0.1),
        lambda z: z * ((z * z).mean(-1, True) + 0.1).rsqrt(),
    ),
    "variance": (lambda z: fg.var(z, -1), lambda z: z.var(-1)),
    "squares": (lambda z: fg.sum(z * z, -1), lambda z: (z * z).sum(-1)),
}


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", INNER)
def test_forward_mode_and_second_gradients(inner: str, outer: str) -> None:
    """Torch needs two selects for that: one outside, one on what goes in."""
    (mine, theirs, poison), (around, torchs) = INNER[inner], OUTER[outer]
    ours = fg.op(lambda x, t, m: around(fg.where(m, mine(x * t), -0.5)), name="masked")

    def exact(x: Any, t: Any, m: Any) -> Any:
        safe = torch.where(m, x, torch.ones_like(x)) * t
        return torchs(torch.where(m, theirs(safe), torch.full_like(x, -0.5)))

    x = torch.tensor([0.5, 1.5, poison, 0.7], dtype=torch.float64)
    t = torch.tensor(1.2, dtype=torch.float64)
    tangents = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)

    def directional(function: Any) -> Any:
        return torch.func.jvp(lambda x, t: function(x, t, TAKEN), (x, t), tangents)

    def second(function: Any) -> list[Any]:
        own = [v.clone().requires_grad_() for v in (x, t)]
        result = function(*own, TAKEN)
        cotangent = torch.linspace(1, 2, result.numel(), dtype=torch.float64).reshape(result.shape)
        first = torch.autograd.grad(result, own, cotangent, create_graph=True)
        total = sum((g * torch.linspace(-1, 2, g.numel()).reshape(g.shape)).sum() for g in first)
        return [*first, *torch.autograd.grad(total, own)]  # type: ignore[arg-type]

    torch.testing.assert_close(directional(ours), directional(exact))
    torch.testing.assert_close(second(ours), second(exact))


def test_a_row_of_which_nothing_is_taken() -> None:
    op = fg.op(lambda x, t, m: fg.softmax(fg.where(m, x * t, -1e4), -1), name="masked")
    x, t = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor(1.0, requires_grad=True)
    first = torch.autograd.grad(op(x, t, torch.tensor([False] * 3))[0], (x, t), create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in first), (x, t))  # type: ignore[arg-type]
    torch.testing.assert_close([*first, *second], [torch.zeros(3), torch.tensor(0.0)] * 2)


@pytest.mark.parametrize("outer", ["log", "rsqrt", "reciprocal"])
def test_an_exponential_that_is_not_taken_has_no_slope(outer: str) -> None:
    """The select by the mask is its own derivative there, and their quotient would be 1 everywhere."""

    def masked(x: Any, mask: Any) -> Any:
        return getattr(torch, outer)(x.exp().masked_fill(mask, 0))

    mask = torch.tensor([True, False])
    found, expected = (
        torch.autograd.grad(function(x, mask), x, torch.tensor([0.5, 2.0], dtype=torch.float64))
        for function in (fg.op(masked), masked)
        for x in [torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)]
    )
    torch.testing.assert_close(found, expected)

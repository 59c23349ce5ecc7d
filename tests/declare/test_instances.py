"""``isinstance(x, torch.Tensor)`` in a declaration: of torch code as it stands, in every module that it calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.declare import instances

X = torch.linspace(-1.0, 2.0, 12).view(4, 3)


def exponential_of_tensors(x: Any, y: Any = 2.0) -> Any:
    return torch.exp(x) * (y if not isinstance(y, torch.Tensor) else y.sin()) if isinstance(x, torch.Tensor) else x


def exponential_of_kinds(x: Any) -> Any:
    return x.exp() if isinstance(x, (int, torch.Tensor)) and isinstance(x, (torch.Tensor, float)) else x


def squashed(mean: Any, log_std: Any, noise: Any) -> Any:
    normal = torch.distributions.Normal(mean, log_std.exp())
    drawn = mean + log_std.exp() * noise
    return normal.log_prob(drawn).sum(-1) - torch.log(1 - torch.tanh(drawn) ** 2 + 1e-6).sum(-1)


def likelihoods(x: Any, y: Any) -> Any:
    d = torch.distributions
    chosen = d.Categorical(logits=x).log_prob((y > 0).long().sum(-1))
    return d.Laplace(x, y.exp()).log_prob(x * y) + d.Bernoulli(logits=x).log_prob((y > 0).to(y.dtype)) + chosen[:, None]


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("function", "count"),
    [
        (exponential_of_tensors, 1),
        (exponential_of_tensors, 2),
        (exponential_of_kinds, 1),
        (squashed, 3),
        (likelihoods, 2),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_symbolic_tensors_are_torchs(function: Callable[..., Any], count: int) -> None:
    theirs = [(torch.randn(4, 3, dtype=torch.float64) * 0.5).requires_grad_() for _ in range(count)]
    ours = [x.detach().clone().requires_grad_() for x in theirs]
    expected, found = function(*theirs), fg.op(function)(*ours)
    torch.testing.assert_close(found, expected)
    for mine, other in zip(
        torch.autograd.grad(found.sum(), ours), torch.autograd.grad(expected.sum(), theirs), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_numbers_and_other_classes_are_what_they_are() -> None:
    seen: list[bool] = []

    @fg.op
    def asking(x: Any, by: fg.Scalar = 2.0) -> Any:
        seen.extend((isinstance(by, torch.Tensor), isinstance(x, torch.nn.Parameter), isinstance(x, str)))
        seen.append(isinstance(torch.float32, torch.dtype))
        return x * by

    asking.trace(X)
    assert seen[-4:] == [False, False, False, True]


def test_modules_have_pythons_behind_it_and_other_threads_what_they_had() -> None:
    told: list[bool] = []

    def elsewhere() -> None:
        told.append(isinstance(X, torch.Tensor) and not isinstance("x", torch.Tensor))

    @fg.op
    def asking(x: Any) -> Any:
        assert globals()["isinstance"] is instances.is_instance
        fg.op(lambda y: y + 1).trace(X)  # a trace within
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return x if isinstance(x, torch.Tensor) else None

    asking.trace(X)
    assert told == [True]
    with pytest.raises(fg.DeclarationError):
        fg.op(lambda x: torch.sort(x)).trace(X)
    assert "isinstance" not in globals()
    assert "isinstance" not in vars(torch.distributions.distribution)
    assert not instances.asked_in.running

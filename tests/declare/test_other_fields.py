"""Torch code of fields that the library does not cover, each an op as it stands: values, gradients, and other modes.

What somebody writes who has read README alone: finance, physics, graphics, astronomy, robotics, audio, hidden Markov
models, recommendation, survival, vision, detection, reinforcement learning, chemistry, fluids, point clouds, signals,
statistics, spiking neurons.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg

pytestmark = pytest.mark.emulator


def black_scholes(spot: Any, strike: Any, rate: float, sigma: Any, time: Any) -> Any:
    spread = sigma * time.sqrt()
    d1 = (torch.log(spot / strike) + (rate + sigma**2 / 2) * time) / spread
    cdf = torch.special.ndtr
    return spot * cdf(d1) - strike * torch.exp(-rate * time) * cdf(d1 - spread)


def lennard_jones(position: Any) -> Any:
    apart = position[:, None] - position[None, :]
    itself = torch.eye(position.shape[0], dtype=position.dtype)
    inverse = (1 / ((apart * apart).sum(-1) + itself)) ** 3
    return (4 * (inverse * inverse - inverse) * (1 - itself)).sum() / 2


def signed_distance(point: Any, center: Any, radius: float) -> Any:
    sphere = (point - center).norm(dim=-1) - radius
    q = point.abs() - 0.5
    box = q.clamp(min=0).norm(dim=-1) + q.max(dim=-1).values.clamp(max=0)
    h = (0.5 + 0.5 * (box - sphere) / 0.3).clamp(0, 1)
    return box * (1 - h) + sphere * h - 0.3 * h * (1 - h)


def kepler(mean: Any, eccentricity: Any) -> Any:
    found = mean
    for _ in range(5):
        found = found - (found - eccentricity * torch.sin(found) - mean) / (1 - eccentricity * torch.cos(found))
    return found


def rodrigues(turn: Any, v: Any) -> Any:
    angle = turn.norm(dim=-1, keepdim=True)
    k = turn / angle
    along = k * (k * v).sum(-1, keepdim=True) * (1 - angle.cos())
    return v * angle.cos() + torch.cross(k, v, dim=-1) * angle.sin() + along


def mu_law(x: Any) -> Any:
    y = torch.sign(x) * torch.log1p(255.0 * x.abs()) / math.log1p(255.0)
    quantized = torch.round((y + 1) / 2 * 255) / 255 * 2 - 1
    return y + (quantized - y).detach()


def markov_likelihood(observed: Any, transition: Any, start: Any) -> Any:
    alpha = start.log_softmax(-1) + observed[0]
    steps = transition.log_softmax(-1)
    for t in range(1, observed.shape[0]):
        alpha = torch.logsumexp(alpha.unsqueeze(-1) + steps, dim=1) + observed[t]
    return torch.logsumexp(alpha, -1)


def ranking(user: Any, liked: Any, other: Any) -> Any:
    loss = -F.logsigmoid((user * liked).sum(1) - (user * other).sum(1)).mean()
    return loss + 1e-3 * (user.pow(2).sum() + liked.pow(2).sum())


def cox(risk: Any, event: Any) -> Any:
    return -((risk - torch.logcumsumexp(risk.flip(0), 0).flip(0)) * event).sum() / event.sum()


def sobel(x: Any) -> Any:
    p = F.pad(x, (1, 1, 1, 1))
    right, left = p[:, :, 2:], p[:, :, :-2]
    across = right[:, :-2] + 2 * right[:, 1:-1] + right[:, 2:] - left[:, :-2] - 2 * left[:, 1:-1] - left[:, 2:]
    return torch.sqrt(across * across + 1e-6)


def overlap(a: Any, b: Any) -> Any:
    (ax, ay, bx, by), (cx, cy, dx, dy) = a.unbind(-1), b.unbind(-1)
    shared = (torch.min(bx, dx) - torch.max(ax, cx)).clamp(min=0) * (torch.min(by, dy) - torch.max(ay, cy)).clamp(min=0)
    union = (bx - ax) * (by - ay) + (dx - cx) * (dy - cy) - shared
    hull = (torch.max(bx, dx) - torch.min(ax, cx)) * (torch.max(by, dy) - torch.min(ay, cy))
    return (1 - (shared / union - (hull - union) / hull)).mean()


def squashed_policy(mean: Any, log_std: Any, noise: Any) -> Any:
    std = log_std.clamp(-5, 2).exp()
    u = mean + std * noise
    likelihood = torch.distributions.Normal(mean, std).log_prob(u).sum(-1)
    return torch.tanh(u), likelihood - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)


def morse(r: Any, width: Any) -> Any:
    energy = (1 - torch.exp(-width * (r - 1.2))) ** 2
    return energy * torch.where(r < 5.0, 0.5 * (torch.cos(math.pi * r / 5.0) + 1), torch.zeros_like(r))


def burgers(u: Any, dt: float) -> Any:
    back, ahead = u - torch.roll(u, 1, -1), torch.roll(u, -1, -1) - u
    return u - dt * torch.where(u > 0, u * back, u * ahead) + dt * 0.1 * (ahead - back)


def chamfer(a: Any, b: Any) -> Any:
    apart = ((a[:, :, None] - b[:, None]) ** 2).sum(-1)
    return apart.min(2).values.mean(1) + apart.min(1).values.mean(1)


def goertzel(x: Any) -> Any:
    n, k = torch.arange(x.shape[-1], dtype=x.dtype), torch.arange(4, dtype=x.dtype)
    phase = 2 * math.pi * k[:, None] * n / x.shape[-1]
    return (x @ phase.cos().T) ** 2 + (x @ phase.sin().T) ** 2


def energy_distance(x: Any, y: Any) -> Any:
    apart = [(a[:, None] - b).abs().mean() for a, b in ((x, y), (x, x), (y, y))]
    return 2 * apart[0] - apart[1] - apart[2]


def integrate_and_fire(current: Any) -> Any:
    v, spikes = torch.zeros_like(current[0]), []
    for t in range(current.shape[0]):
        v = 0.9 * v + current[t]
        spike = torch.sigmoid(5 * (v - 1))
        v = v * (1 - spike)
        spikes.append(spike)
    return torch.stack(spikes)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64) + 0.3


FIELDS: dict[Callable[..., Any], Callable[[], list[Any]]] = {
    black_scholes: lambda: [positive(4, 5), positive(5), 0.02, positive(4, 1), positive(1, 5)],
    lennard_jones: lambda: [normal(6, 3)],
    signed_distance: lambda: [normal(7, 3), normal(3), 0.8],
    kepler: lambda: [normal(9), positive(9) / 2],
    rodrigues: lambda: [normal(4, 3), normal(4, 3)],
    mu_law: lambda: [normal(3, 8)],
    markov_likelihood: lambda: [normal(4, 2, 3), normal(3, 3), normal(3)],
    ranking: lambda: [normal(6, 4), normal(6, 4), normal(6, 4)],
    cox: lambda: [normal(8), torch.arange(8) % 3 > 0],
    sobel: lambda: [normal(2, 14, 14)],
    overlap: lambda: [positive(5, 4).cumsum(-1), positive(5, 4).cumsum(-1)],
    squashed_policy: lambda: [normal(4, 3), normal(4, 3), normal(4, 3)],
    morse: lambda: [positive(3, 5) * 6, positive(5)],
    burgers: lambda: [normal(3, 16), 0.01],
    chamfer: lambda: [normal(2, 5, 3), normal(2, 6, 3)],
    goertzel: lambda: [normal(2, 32)],
    energy_distance: lambda: [normal(6), normal(7)],
    integrate_and_fire: lambda: [normal(6, 4)],
}


def floats(arguments: list[Any]) -> list[torch.Tensor]:
    return [x for x in arguments if isinstance(x, torch.Tensor) and x.is_floating_point()]


def listed(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("function", FIELDS, ids=lambda function: function.__name__)
def test_torch_code_of_another_field_is_an_op_as_it_stands(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    op, arguments = fg.op(function), FIELDS[function]()
    leaves = [x.requires_grad_() for x in floats(arguments)]
    found, expected = listed(op(*arguments)), listed(function(*arguments))
    cotangents = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape) for y in expected]
    torch.testing.assert_close(found, expected)
    theirs = torch.autograd.grad(expected, leaves, cotangents)
    torch.testing.assert_close(torch.autograd.grad(found, leaves, cotangents), theirs)
    # Other strides, and a batch of calls, which is a call of its own kind.
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    strided = [x.mT.contiguous().mT if isinstance(x, torch.Tensor) and x.ndim > 1 else x for x in plain]
    torch.testing.assert_close(listed(op(*strided)), tuple(y.detach() for y in expected))

    def called(given: Callable[..., Any]) -> Callable[..., Any]:
        def call(*own: Any) -> Any:
            filled = iter(own)
            return listed(given(*(next(filled) if any(x is y for y in floats(plain)) else x for x in plain)))

        return call

    batch = [torch.stack([x, x * 0.9]) for x in floats(plain)]
    torch.testing.assert_close(torch.func.vmap(called(op))(*batch), torch.func.vmap(called(function))(*batch))

"""Functions of torch code as people write them: expanded to a tensor's own size, flattened and cut, looped over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg

pytestmark = pytest.mark.emulator


def attention_mask(scores: Any, mask: Any) -> Any:
    b, n = mask.size()
    return scores + mask[:, None, None, :].expand(b, 1, n, n)


def differences(x: Any) -> Any:
    n = x.shape[0]
    return x.unsqueeze(1).expand(n, n, -1) - x.unsqueeze(0).expand(n, n, -1)


def kernel_mean(x: Any) -> Any:
    return (-(differences(x) ** 2).sum(-1)).exp().mean()


def squared_distances(x: Any) -> Any:
    n = x.size(0)
    squares = x.pow(2).sum(1, keepdim=True).expand(n, n)
    return squares + squares.t() - 2 * x @ x.t()


def pairs(x: Any) -> Any:
    n = x.shape[0]
    return torch.cat([x.unsqueeze(1).expand(-1, n, -1), x.unsqueeze(0).expand(n, -1, -1)], -1)


def repeated(x: Any) -> Any:
    n = x.shape[0]
    return (x.unsqueeze(1).repeat(1, n, 1) * x.unsqueeze(0).repeat(n, 1, 1)).sum(-1)


def off_diagonal(x: Any) -> Any:
    n, _ = x.shape
    return x.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


def sources_and_targets(edges: Any) -> Any:
    sources, targets = edges
    return sources * targets.sin()


def shifted(x: Any) -> Any:
    b, n, m = x.shape
    return torch.nn.functional.pad(x, (1, 0)).view(b, m + 1, n)[:, 1:].view(b, n, m)


def heated(u: Any) -> Any:
    new = u.clone()
    new[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    return new


def bounded(u: Any) -> Any:
    u = u * 1
    u[0, :], u[-1, :] = 0, 0
    u[:, 0], u[:, -1] = u[:, 1].clone(), u[:, -2].clone()
    return u


def framed(x: Any) -> Any:
    power = (x.unfold(-1, 8, 4) * torch.hann_window(8, dtype=x.dtype)).pow(2).sum(-1)
    return power * torch.hamming_window(3, periodic=False, dtype=x.dtype)


def diverged(x: Any, y: Any) -> Any:
    of, to = torch.distributions.Normal(x, y.exp()), torch.distributions.Normal(0.0, 1.0)
    chosen = torch.distributions.Categorical(logits=x)
    return torch.distributions.kl_divergence(of, to).sum(-1) + chosen.entropy()


CASES: list[tuple[str, Callable[..., Any], list[tuple[int, ...]]]] = [
    ("attention_mask", attention_mask, [(2, 4, 5, 5), (2, 5)]),
    ("differences", differences, [(5, 3)]),
    ("kernel_mean", kernel_mean, [(5, 3)]),
    ("squared_distances", squared_distances, [(5, 3)]),
    ("pairs", pairs, [(5, 3)]),
    ("repeated", repeated, [(5, 3)]),
    ("off_diagonal in blocks", off_diagonal, [(8, 8)]),
    ("off_diagonal at places", off_diagonal, [(9, 9)]),
    ("half of what was flattened", lambda x: x.flatten(1).chunk(2, -1)[0], [(3, 4, 2)]),
    ("an element of what was flattened", lambda x: x.sin().flatten()[0] * 2, [(3, 4)]),
    ("the front of a view", lambda x: x.view(-1)[:32] * 2, [(8, 8)]),
    ("some of merged dimensions", lambda x: x.view(2, 6, 4)[:, :3], [(2, 2, 3, 4)]),
    ("unpacked", sources_and_targets, [(2, 7)]),
    ("row by row", lambda x: torch.stack([row.softmax(-1) for row in x]), [(3, 7)]),
    ("a shape by its name", lambda x: x.reshape(shape=(x.shape[0] * x.shape[1],)) * 2, [(3, 4)]),
    ("parts beside the whole", lambda a, b: (torch.cat([a, b]).pow(2).sum(-1), a @ b.T), [(3, 4), (5, 4)]),
    ("a bias turned", lambda x, w, b: x @ w.T + b.T, [(3, 4), (5, 4), (5,)]),
    ("a gate", lambda x, h, w: (torch.cat([x, h], 1) @ w).sigmoid() * h, [(2, 3), (2, 5), (8, 5)]),
    ("channels in another order", lambda x: x[:, [2, 1, 0]] * 2, [(2, 3, 4)]),
    ("one of a list", lambda x: x[:, [0]], [(2, 3, 4)]),
    ("from the end", lambda x: x[..., [3, -1, 0]].sin(), [(2, 3, 4)]),
    ("behind a slice", lambda x: x[None, :, 1:, [0, 1]], [(2, 3, 4)]),
    ("of a product", lambda x: (x @ x.mT)[:, [2, 1, 0]], [(2, 3, 4)]),
    ("seen as other rows", shifted, [(2, 4, 6)]),
    ("counted otherwise", lambda x: x.reshape(3, 8).sin() * x.view(8, 3).t(), [(4, 6)]),
    ("a step of heat", heated, [(6, 8)]),
    ("with boundaries", bounded, [(5, 7)]),
    ("framed", framed, [(3, 16)]),
    ("diverged", diverged, [(4, 6), (4, 6)]),
    ("split across", lambda x: torch.hsplit(x, 2)[1] * torch.vsplit(x, [2])[0][0, :3], [(4, 6)]),
    ("elements by two lists", lambda x: x[[0, 1, 3], [2, -1, 0]] * x[range(3), [0, 0, 1]], [(4, 6)]),
    ("of a softmax", lambda x: x.softmax(1)[:, [2, 0]] * x[:, [0, 1]], [(2, 3, 4)]),
]


@pytest.mark.parametrize(("function", "shapes"), [case[1:] for case in CASES], ids=[name for name, *_ in CASES])
def test_it_is_what_torch_makes_of_it(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    found, expected = fg.op(function, name="stands")(*given), function(*given)
    mine, theirs = (list(value) if isinstance(value, tuple) else [value] for value in (found, expected))
    cotangents = [torch.randn(value.shape, generator=generator, dtype=torch.float64) for value in theirs]
    with torch.no_grad():
        inferred = fg.op(function, name="stands")(*given)
    for a, b, c in zip(mine, theirs, inferred if isinstance(inferred, tuple) else [inferred], strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(c, b)
    for a, b in zip(
        torch.autograd.grad(mine, given, cotangents), torch.autograd.grad(theirs, given, cotangents), strict=True
    ):
        torch.testing.assert_close(a, b)

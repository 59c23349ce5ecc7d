"""Parts that are stacked and seen as one dimension: interleaved rotary embeddings, nibbles, matrices of elements."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch

import fusegen as fg
from tests.support.modes import MODES
from tests.support.oracles import draw
from tests.support.rows import planned_passes

Function = Callable[..., Any]


def interleaved(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def every_two(x: Any, cos: Any, sin: Any) -> Any:
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape) * sin


def every_two_in_view(x: Any, angle: Any) -> Any:
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).view(x.shape)
    cos, sin = (wave.repeat_interleave(2, -1) for wave in (angle.cos(), angle.sin()))
    return x * cos + turned * sin


def of_groups(x: Any, cos: Any, sin: Any) -> Any:
    pairs = x.unflatten(-1, (-1, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def positions(place: Any, rate: Any) -> Any:
    angle = place[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


def inverse(x: Any) -> Any:
    a, b, c, d = x[:, 0, 0], x[:, 0, 1], x[:, 1, 0], x[:, 1, 1]
    rows = torch.stack([torch.stack([d, -b], -1), torch.stack([-c, a], -1)], -2)
    return rows / (a * d - b * c + 4)[:, None, None]


def rotation(q: Any) -> Any:
    w, x, y, z = q.unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


FORMS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "rotary": (interleaved, [(2, 5, 8), (5, 4), (5, 4)]),
    "beside what is turned": (every_two, [(2, 5, 8), (5, 8), (5, 8)]),
    "in a view": (every_two_in_view, [(2, 5, 8), (5, 4)]),
    "of groups": (of_groups, [(2, 5, 8), (5, 4), (5, 4)]),
    "in heads": (lambda x, c, s: interleaved(x.view(2, 5, 2, 8).transpose(1, 2), c, s), [(2, 5, 16), (5, 4), (5, 4)]),
    "and a softmax": (lambda x, c, s: interleaved(x, c, s).softmax(-1), [(2, 5, 8), (5, 4), (5, 4)]),
    "sines and cosines": (positions, [(5,), (3,)]),
    "halves": (lambda x: torch.stack(x.chunk(2, -1), -1).flatten(-2).sin(), [(3, 8)]),
    "one behind the other": (lambda x: torch.stack([x.sin(), x.cos()], 0).flatten(0, 1), [(4, 3)]),
    "of any size": (lambda x: x.flatten().sin() * 2, [(4, 3)]),
    "otherwise": (lambda x: x.view(8, 2).sum(1), [(4, 4)]),
    "an inverse": (inverse, [(3, 2, 2)]),
    "a rotation": (lambda q, v: (rotation(q) @ v[..., None])[..., 0], [(3, 4), (3, 3)]),
    "elements of a rotation": (lambda q: rotation(q)[:, 0, 1] * rotation(q)[:, 2].sum(-1), [(3, 4)]),
    "nine elements as a matrix": (lambda x: torch.stack([x, *[x * k for k in range(8)]], -1).view(-1, 3, 3), [(4,)]),
    "heads that are repeated": (lambda x: x[:, :, None].expand(2, 3, 2, 4).reshape(2, 6, 4).sin(), [(2, 3, 4)]),
}


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("compiled", "out")])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_torchs(form: str, mode: str) -> None:
    function, shapes = FORMS[form]
    MODES[mode](fg.op(function, name="stacked"), function, [draw(*shape, seed=i) for i, shape in enumerate(shapes)])


@pytest.mark.parametrize("form", ["rotary", "beside what is turned", "in heads", "halves"])
def test_no_kernel_compares_places_with_each_other(form: str) -> None:
    function, shapes = FORMS[form]
    shapes = [(*shape[:-1], 64 * shape[-1]) if form != "in heads" else shape for shape in shapes]
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    for kernels in planned_passes(fg.op(function, name="stacked"), *given):
        for planned in kernels:
            assert prod(planned.launch.sizes) <= 2 * given[0].numel()


def test_nibbles() -> None:
    packed, scale = torch.arange(48, dtype=torch.uint8).view(3, 16) * 5, torch.randn(3, 1)

    def unpacked(packed: Any, scale: Any) -> Any:
        return (torch.stack([packed & 15, packed >> 4], -1).flatten(-2).float() - 8) * scale

    torch.testing.assert_close(fg.op(unpacked, name="unpacked")(packed, scale), unpacked(packed, scale))
    scale.requires_grad_()
    cotangent = torch.randn(3, 32)
    mine, theirs = (
        torch.autograd.grad(f(packed, scale), scale, cotangent) for f in (fg.op(unpacked, name="unpacked"), unpacked)
    )
    torch.testing.assert_close(mine, theirs)

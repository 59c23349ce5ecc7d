"""A tensor that meets itself along another dimension, as ordinary torch code has it: both roles count."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from tests.support.modes import MODES
from tests.support.oracles import draw
from tests.support.rows import planned_passes

Function = Callable[..., Any]


def n_body(place: Any, mass: Any) -> Any:
    apart = place[None] - place[:, None]
    nearness = ((apart * apart).sum(-1) + 0.1) ** -1.5
    return place + 0.1 * (mass[None, :, None] * apart * nearness[..., None]).sum(1)


def contrastive(z: Any) -> Any:
    z = F.normalize(z, dim=-1)
    near = (z[:, None] * z[None]).sum(-1) / 0.5
    itself = torch.eye(z.shape[0], dtype=torch.bool)
    near = near.masked_fill(itself, -1e9)
    return near.logsumexp(1) - near.mean(0)


def triplets(x: Any) -> Any:
    apart = (x[:, None] - x[None]).pow(2).sum(-1)
    return torch.tanh(apart[:, :, None] - apart[:, None, :] + 0.2).mean()


def centred(x: Any) -> Any:
    apart = (x[:, None] - x[None]).pow(2).sum(-1)
    return apart - apart.mean(0) - apart.mean(1, keepdim=True) + apart.mean()


def of_computed(x: Any, w: Any) -> Any:
    h = torch.tanh(x @ w)
    return (h[:, None] - h[None]).sin().sum(-1).sum(0)


def of_edges(x: Any, w: Any) -> Any:
    """EdgeConv (Wang et al., 2019): neighbours' differences beside the point itself."""
    near = (x[:, None] - x[None]).pow(2).sum(-1).detach()
    neighbours = torch.stack([near.argmin(1), near.argmax(1)], 1)
    found = x[neighbours] - x[:, None]
    return (torch.cat([found, x[:, None].expand_as(found)], -1) @ w).tanh().amax(1)


# Torch's and ours alike, and the arguments' shapes.
FORMS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "differences": (lambda x: x[:, None] - x[None], [(4, 3)]),
    "an outer product": (lambda x: x[:, None] * x, [(5,)]),
    "its transpose": (lambda x: x + x.mT, [(4, 4)]),
    "a kernel over the second role": (lambda x: (-(x[:, None] - x[None]).pow(2).sum(-1)).exp().sum(1), [(5, 3)]),
    "a kernel over the first": (lambda x: (-(x[:, None] - x[None]).pow(2).sum(-1)).exp().sum(0), [(5, 3)]),
    "a kernel over both": (lambda x: (-(x[:, None] - x[None]).pow(2).sum(-1)).exp().mean(), [(5, 3)]),
    "a kernel and a product": (lambda x: (-(x[:, None] - x[None]).pow(2).sum(-1)).exp() @ x, [(5, 3)]),
    "in a batch": (lambda x: (x[:, :, None] - x[:, None]).pow(2).sum(-1).tanh().sum(-1), [(2, 4, 3)]),
    "in groups": (lambda x: (lambda y: (y[:, :, None] - y[:, None]).sin().sum(-1))(x.view(2, 4, 3)), [(2, 12)]),
    "sums of rows": (lambda x: (lambda s: (s[:, None] - s[None]).tanh().sum(1))(x.sin().sum(1)), [(5, 3)]),
    "sums of columns and of rows": (lambda x: x.sum(0)[:, None] + x.sum(1), [(4, 4)]),
    "a vector on both sides": (lambda x, b: (x + b) * (x.mT + b).mT, [(4, 4), (4,)]),
    "side by side": (lambda x: torch.cat([x, x.mT], -1), [(4, 4)]),
    "distances without their means": (centred, [(5, 3)]),
    "what is computed": (of_computed, [(5, 3), (3, 4)]),
    "forces": (n_body, [(4, 3), (4,)]),
    "a contrastive loss": (contrastive, [(5, 3)]),
    "all triplets": (triplets, [(4, 3)]),
    "neighbours": (of_edges, [(5, 3), (6, 2)]),
    "as large as its differences": (lambda x: x[:, None].expand_as(x[None] - x[:, None]) * 2 + x.sin(), [(4, 3)]),
    "at places of its own": (lambda x: x + x[x.detach().argmax(1)], [(4, 4)]),
    "at places that a scan tells": (lambda x: x[((x > 0).cumsum(0) - 1).clamp(min=0)] * x, [(6,)]),
    "at places, added to itself": (lambda x: x.index_add(0, x.detach().argmax(1), x.sin()), [(4, 4)]),
    "at places, put into itself": (lambda x: x.scatter(1, (x[:, :, None] > x[:, None]).sum(2), x.sin()), [(4, 4)]),
    "at places that are expanded": (lambda x: x.sin().gather(1, x.detach().argmax(1)[:, None].expand_as(x)), [(3, 4)]),
    "ones, added to itself": (lambda x: x.sin().index_add(0, x.detach().argmax(1), torch.ones_like(x)), [(4, 4)]),
    "counted": (
        lambda x: x.sum(1) * torch.zeros_like(x[:, 0]).index_add(0, x.detach().argmax(1), torch.ones_like(x[:, 0])),
        [(4, 4)],
    ),
    "expanded": (lambda x, y: x.unsqueeze(1).expand(-1, 4) * y, [(3,), (3, 4)]),
    "expanded by itself": (lambda x: x[:, None].expand(3, 4) * 2, [(3,)]),
}


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("compiled", "out")])
@pytest.mark.parametrize("form", FORMS)
def test_both_roles_count(form: str, mode: str) -> None:
    function, shapes = FORMS[form]
    if form.startswith("at places") and mode == "halves":
        pytest.skip("another element may be the largest")
    MODES[mode](fg.op(function, name="meeting"), function, [draw(*shape, seed=i) for i, shape in enumerate(shapes)])


@pytest.mark.parametrize("form", ["a kernel over the second role", "a kernel and a product", "forces", "its transpose"])
def test_no_kernel_walks_over_more_than_all_pairs(form: str) -> None:
    function, shapes = FORMS[form]
    rows = 200
    given = [torch.randn(rows, *(rows if size == shape[0] else size for size in shape[1:]), requires_grad=True)
             for shape in shapes]  # fmt: skip
    for kernels in planned_passes(fg.op(function, name="meeting"), *given):
        for planned in kernels:
            assert prod(planned.launch.sizes) <= rows * rows * 3


def test_another_size_is_another_trace() -> None:
    op = fg.op(lambda x: (x[:, None] - x[None]).abs().sum(1), name="spread")
    for size in (3, 5, 1, 0):
        x = torch.randn(size, dtype=torch.float64)
        torch.testing.assert_close(op(x), (x[:, None] - x[None]).abs().sum(1))


def test_sizes_that_differ_are_said() -> None:
    with pytest.raises(fg.ShapeError, match=r"of size \d against .* of size \d"):
        fg.op(lambda x: x + x.mT, name="mirrored")(torch.randn(3, 4))
    with pytest.raises(fg.ShapeError, match="expand"):
        fg.op(lambda x: x.expand(6, 4), name="expanded")(torch.randn(3, 4))

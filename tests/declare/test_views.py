"""Blocks of arguments that are seen through views, and products of vectors and of what else is read, beside torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from tests.support.modes import MODES
from tests.support.oracles import draw, refused

Function = Callable[..., Any]


def ordered(blocks: Any) -> Any:
    """Each block counts, and in its place."""
    return blocks[0] * 2 + blocks[1]


# Ours, torch's, and the arguments' shapes.
BLOCKS: dict[str, tuple[Function, Function, list[tuple[int, ...]]]] = {
    "of a transposed argument": (
        lambda x: ordered(fg.split(x.mT, 2, 0)), lambda x: ordered(x.mT.chunk(2, 0)), [(6, 12)],
    ),
    "of a square one": (lambda x: ordered(fg.split(x.mT, 2)), lambda x: ordered(x.mT.chunk(2, -1)), [(6, 6)]),
    "of both views of it": (
        lambda x: fg.split(x.mT, 2)[1] + fg.split(x, 2, 0)[0].mT, lambda x: x.mT.chunk(2, -1)[1] + x.chunk(2, 0)[0].mT,
        [(6, 4)],
    ),
    "behind a new dimension": (
        lambda x: ordered(fg.split(fg.expand_dims(x, 0), 2, -1)), lambda x: ordered(x[None].chunk(2, -1)), [(6, 4)],
    ),
    "before one": (
        lambda x: ordered(fg.split(fg.expand_dims(x, -1), 2, 0)), lambda x: ordered(x[..., None].chunk(2, 0)), [(6, 4)],
    ),
    "beside groups": (
        lambda x: ordered(fg.split(fg.unflatten(x, 1, (3, -1)), 2, 0)),
        lambda x: ordered(x.unflatten(1, (3, -1)).chunk(2, 0)), [(6, 12)],
    ),
    "in groups": (
        lambda x: ordered([fg.unflatten(block, 0, (3, -1)) for block in fg.split(x.mT, 2, 0)]),
        lambda x: ordered([block.unflatten(0, (3, -1)) for block in x.mT.chunk(2, 0)]), [(4, 12)],
    ),
    "multiplied": (
        lambda x: (lambda p: p[0] @ p[1].mT)(fg.split(fg.transpose(x, 0, 1), 2, 0)),
        lambda x: (lambda p: p[0] @ p[1].mT)(x.transpose(0, 1).chunk(2, 0)), [(3, 4, 6)],
    ),
    "by an op of the library": (lambda x: fg.ops.glu(x.mT, 0), lambda x: F.glu(x.mT, 0), [(6, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str, mode: str) -> None:
    ours, theirs, shapes = BLOCKS[name]
    MODES[mode](fg.op(ours, name="blocks"), theirs, [draw(*shape, seed=i) for i, shape in enumerate(shapes)])


def test_a_block_of_a_group_is_no_view_and_is_read() -> None:
    op, x = fg.op(lambda x: fg.split(fg.unflatten(x, 1, (3, -1)), 2, -1)[1], name="within"), draw(6, 12)
    expected = x.unflatten(1, (3, -1)).chunk(2, -1)[1]
    torch.testing.assert_close(op(x), expected)
    cotangent = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(out, x, cotangent) for out in (op(x), expected))
    torch.testing.assert_close(mine, theirs)


def read_twice(total: Function) -> Function:
    """A factor that is a reduction, and read once more behind its product."""

    def function(x: Any, w: Any) -> Any:
        s = total(x)
        return s / (1 + (s @ w) ** 2) + s

    return function


def part_of_a_result(x: Any, w: Any) -> Any:
    s = fg.sin(x)
    return fg.concat([s * x, s]), s @ w


def both_parts_of_one(x: Any, w: Any) -> Any:
    s, t = fg.sin(x), fg.cos(x)
    return fg.concat([s, t], 0), s @ t.mT @ w


FACTORS: dict[str, tuple[Function, Function, list[tuple[int, ...]]]] = {
    "a sum": (read_twice(lambda x: fg.sum(x, -1)), read_twice(lambda x: x.sum(-1)), [(5, 4), (5, 5)]),
    "a maximum": (read_twice(lambda x: fg.amax(x, -1)), read_twice(lambda x: x.amax(-1)), [(5, 4), (5, 5)]),
    "a product of elements": (read_twice(lambda x: fg.prod(x, -1)), read_twice(lambda x: x.prod(-1)), [(5, 4), (5, 5)]),
    "a mean": (read_twice(lambda x: fg.mean(x, -1)), read_twice(lambda x: x.mean(-1)), [(5, 4), (5, 5)]),
    "a row": (
        lambda x, w: (lambda s: x * s + s @ w.mT)(fg.amax(x, 0, keepdims=True)),
        lambda x, w: (lambda s: x * s + s @ w.mT)(x.amax(0, keepdim=True)), [(5, 4), (4, 4)],
    ),
    "two of them": (
        lambda x, w: (lambda s, t: fg.tanh(s @ w) + t @ w + s * t)(fg.sum(x, -1), fg.amax(x, -1)),
        lambda x, w: (lambda s, t: (s @ w).tanh() + t @ w + s * t)(x.sum(-1), x.amax(-1)), [(5, 4), (5, 5)],
    ),
    "a column and a row": (
        lambda x, w: (x @ w) @ fg.sum(w, 0) * fg.expand_dims(x @ fg.sum(w, -1), -1).mT,
        lambda x, w: (x @ w) @ w.sum(0) * (x @ w.sum(-1))[:, None].mT, [(5, 4), (4, 4)],
    ),
    "a part of a result": (
        part_of_a_result, lambda x, w: (torch.cat([x.sin() * x, x.sin()], -1), x.sin() @ w), [(5, 4), (4, 3)],
    ),
    "both parts of one": (
        both_parts_of_one, lambda x, w: (torch.cat([x.sin(), x.cos()]), x.sin() @ x.cos().mT @ w), [(5, 4), (5, 3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FACTORS)
def test_factors_that_are_read_behind_their_product(name: str, mode: str) -> None:
    ours, theirs, shapes = FACTORS[name]
    MODES[mode](fg.op(ours, name="factors"), theirs, [draw(*shape, seed=i) for i, shape in enumerate(shapes)])


def test_a_dimension_is_named_alike_everywhere() -> None:
    x = draw(3, 4).detach()
    assert torch.equal(fg.op(lambda x: fg.transpose(x, np.int64(1), 0), name="turned")(x), x.mT)
    turned = fg.op(lambda x: fg.transpose(x, True, 0), name="turned")
    assert "axis True" in str(refused(lambda: turned(x)))


# -- what blocks cannot say --------------------------------------------------------------------------------------------


def heads_of_a_product(x: Any, w: Any) -> Any:
    """As written in many models: one product, split, and each part in heads."""
    q, k, v = (part.view(2, 4, 2, 3).transpose(1, 2) for part in (x @ w).split(6, dim=2))
    return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(2, 4, 6)


def parts_of_heads(x: Any, w: Any) -> Any:
    together = (x @ w).view(2, 4, 3, 2, 3)
    return together[:, :, 0] * together[:, :, 1] + together[:, :, 2]


def determinant(x: Any) -> Any:
    return x[:, 0, 0] * x[:, 1, 1] - x[:, 0, 1] * x[:, 1, 0]


def shifted_channels(x: Any, w: Any) -> Any:
    return torch.stack([x[:, 0, :-1] * w[0], x[:, 1, 1:] * w[1]], 1)


READ: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "heads of a product's parts": (heads_of_a_product, ((2, 4, 6), (6, 18))),
    "parts of a product's heads": (parts_of_heads, ((2, 4, 6), (6, 18))),
    "elements of small matrices": (determinant, ((3, 2, 2),)),
    "two dimensions of one tensor": (shifted_channels, ((3, 2, 6), (2,))),
    "one group of several": (lambda x: x.view(3, 2, 3)[:, 0] * 2, ((3, 6),)),
    "groups one by one": (lambda x: sum(part.sin() for part in x.view(3, 2, 3).unbind(1)), ((3, 6),)),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_refused_in_blocks_is_read_at_places(name: str) -> None:
    function, shapes = READ[name]
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    op, expected = fg.op(function, name="read"), function(*given)
    plain = [tensor.detach() for tensor in given]
    torch.testing.assert_close(op(*plain), expected)
    cotangent = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(out, given, cotangent) for out in (op(*given), expected))
    torch.testing.assert_close(mine, theirs)
    tangents = tuple(map(torch.randn_like, plain))
    ours, torchs = (torch.func.jvp(f, tuple(plain), tangents)[1] for f in (op, function))
    torch.testing.assert_close(ours, torchs)
    batch = [torch.stack([tensor, 2 * tensor]) for tensor in plain]
    torch.testing.assert_close(torch.vmap(op)(*batch), torch.vmap(function)(*batch))

"""Blocks of a product's result, as gates are: the product is computed once, and its blocks are read where they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from tests.support.modes import MODES
from tests.support.products import halved, steps

# What the sanitizers run as well: the kernels of other modes differ from these in no access to memory.
UNDER_SANITIZERS = ("all", "halves")


def lstm(x: Any, h: Any, c: Any, w: Any, u: Any, b: Any) -> Any:
    i, f, g, o = (F.linear(x, w, b) + F.linear(h, u)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru(x: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
    (i_r, i_z, i_n), (h_r, h_z, h_n) = F.linear(x, w, b).chunk(3, 1), F.linear(h, u).chunk(3, 1)
    r, z = torch.sigmoid(i_r + h_r), torch.sigmoid(i_z + h_z)
    n = torch.tanh(i_n + r * h_n)
    return n + z * (h - n)


def glu(x: Any, w: Any) -> Any:
    a, b = (x @ w).chunk(2, -1)
    return a * torch.sigmoid(b)


def sliced(x: Any, w: Any) -> Any:
    y = x @ w
    return y[:, :4].sum(-1, keepdim=True) * y[:, 4:] + y.mean()


def along_rows(w: Any, x: Any) -> Any:
    a, b = (w @ x).chunk(2, 0)
    return torch.tanh(a) * b.softmax(0)


def backwards(x: Any, w: Any) -> Any:
    a, b, c = (x @ w).chunk(3, -1)
    return torch.cat([c.sin(), a * b, b.cos()], -1)


def batched(x: Any, w: Any) -> Any:
    a, b = (x @ w).chunk(2, -1)
    return a.exp() * b


def some(x: Any, w: Any) -> Any:
    return (x @ w).chunk(4, -1)[1].sin()


def attention(x: Any, w: Any) -> Any:
    q, k, v = F.linear(x, w).chunk(3, -1)
    return (q @ k.transpose(0, 1)).softmax(-1) @ v


def shared(x: Any, y: Any, w: Any) -> Any:
    a, b = (x @ w + (y @ w).tanh()).chunk(2, -1)
    return a * b.sin()


def weight_in_blocks_too(x: Any, w: Any) -> Any:
    a, b = (x @ w).chunk(2, -1)
    v = w.chunk(2, -1)
    return a * b.sin() + v[0].sum(0) * v[1].mean(0)


def computed_weight(x: Any, w: Any) -> Any:
    a, b = (x @ w.tanh()).chunk(2, -1)
    return a * b.sin()


def two_steps(x: Any, w: Any, u: Any) -> Any:
    a, b = F.linear(x, w).chunk(2, -1)
    c, d = F.linear(a * torch.sigmoid(b), u).chunk(2, -1)
    return c * torch.tanh(d)


# Functions of torch code, their arguments' shapes, and products forward and backward.
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int, int]] = {
    "lstm": (lstm, [(3, 5), (3, 4), (3, 4), (16, 5), (16, 4), (16,)], 2, 4),
    "gru": (gru, [(3, 5), (3, 4), (12, 5), (12, 4), (12,)], 2, 4),
    "glu": (glu, [(3, 5), (5, 8)], 1, 2),
    "slices": (sliced, [(3, 5), (5, 8)], 1, 2),
    "along rows": (along_rows, [(8, 5), (5, 3)], 1, 2),
    "put together otherwise": (backwards, [(3, 5), (5, 12)], 1, 2),
    "batches": (batched, [(2, 3, 5), (5, 8)], 1, 2),
    "two layers": (two_steps, [(3, 5), (8, 5), (12, 4)], 2, 4),
    # And where each block has a product of its own:
    "one block": (some, [(3, 5), (5, 16)], 1, 2),
    "blocks that are multiplied": (attention, [(3, 5), (12, 5)], 5, 10),
    "a weight of two products": (shared, [(3, 5), (3, 5), (5, 8)], 4, 8),
    "a weight in blocks": (weight_in_blocks_too, [(3, 5), (5, 8)], 2, 4),
    "a computed weight": (computed_weight, [(3, 5), (5, 8)], 2, 4),
}


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=pytest.mark.emulator) if mode in UNDER_SANITIZERS else mode for mode in MODES]
)
@pytest.mark.parametrize("name", CASES)
def test_in_every_mode(name: str, mode: str) -> None:
    theirs, shapes, _, _ = CASES[name]
    torch.manual_seed(len(name))
    given = [halved(*shape).requires_grad_() for shape in shapes]
    MODES[mode](fg.op(theirs, name="blocks"), theirs, given)


@pytest.mark.parametrize("name", CASES)
def test_products_are_computed_whole(name: str) -> None:
    function, shapes, forward, backward = CASES[name]
    op, given = fg.op(function, name="blocks"), [halved(*shape).requires_grad_() for shape in shapes]
    assert steps(op, given).count("@") == forward
    assert steps(op, given, "backward").count("@") == backward


def test_gates_lie_beside_each_other_and_are_written_by_one_pass() -> None:
    given = [halved(*shape).requires_grad_() for shape in CASES["lstm"][1]]
    op = fg.op(lstm, name="blocks")
    assert [step for step in steps(op, given) if step != "@"] == ["out_0 out_1"]
    written = [step for step in steps(op, given, "backward") if step != "@"]
    assert len(written) == 1 and "d_c" in written[0].split() and "d_b_3" in written[0].split()


@pytest.mark.emulator
@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (7, 5)])
def test_of_any_batch(shape: tuple[int, ...]) -> None:
    op = fg.op(glu, name="blocks")
    x, w = halved(*shape).requires_grad_(), halved(5, 8).requires_grad_()
    for tensor in (w, w.detach().mT.contiguous().mT.requires_grad_()):  # as it lies, and along columns
        MODES["all"](op, glu, [x, tensor])


def test_a_weight_that_does_not_divide_is_an_error() -> None:
    op = fg.op(lambda x, w: fg.split(fg.linear(x, w), 4)[0] * fg.split(fg.linear(x, w), 4)[1], name="blocks")
    with pytest.raises(fg.ShapeError, match="divides"):
        op(halved(3, 5), halved(6, 5))

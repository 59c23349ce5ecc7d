"""``out=`` that is an argument: right where each element is read where it is written, refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg

pytestmark = pytest.mark.emulator

Function = Callable[..., torch.Tensor]


def halves_swapped(x: Any) -> Any:
    first, last = x.chunk(2, -1)
    return torch.cat([last * 2, first], -1)


def rotated(x: Any) -> Any:
    first, last = x.chunk(2, -1)
    return torch.cat([first - last, last + first], -1)


RIGHT: dict[str, tuple[Function, tuple[int, ...]]] = {
    "elementwise": (lambda x: torch.tanh(x) * 2, (4, 6)),
    "a vector's rest": (lambda x: torch.tanh(x) * 2, (3, 7)),
    "rows of a thread": (lambda x: torch.softmax(x, -1), (4, 6)),
    "rows of a block": (lambda x: torch.softmax(x, -1), (4, 4000)),
    "rows of a cluster": (lambda x: torch.softmax(x, -1), (2, 70000)),
    "slow axes": (lambda x: torch.softmax(x, 1), (2, 8, 40)),
    "blocks in each other's place": (halves_swapped, (4, 6)),
    "blocks of both": (rotated, (4, 64)),
    "no elements": (lambda x: x.flip(0) * 2, (0, 5)),
    "a size of one": (lambda x: x * 2 + x.sum(0), (1, 6)),
}
WRONG: dict[str, tuple[Function, tuple[int, ...]]] = {
    "a roll": (lambda x: x.roll(1, 0) + x, (600,)),
    "a flip": (lambda x: x.flip(0) * 2, (600,)),
    "a transpose": (lambda x: x.mT * 2, (40, 40)),
    "a place that is known": (lambda x: x - x[0], (4000,)),
    "a place in each row": (lambda x: x - x[:, :1], (5, 4000)),
    "a place that is computed": (lambda x: x - x.gather(-1, x.argmax(-1, keepdim=True)), (5, 4000)),
    "a scan": (lambda x: x.cumsum(0), (600,)),
    "two passes": (lambda x: x / (x.sum() + 100), (500, 600)),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("turned", [False, True])
def test_a_result_in_its_arguments_place(name: str, turned: bool) -> None:
    function, shape = RIGHT[name]
    x = torch.randn(shape) if not turned else torch.randn(shape[::-1]).permute(*range(len(shape) - 1, -1, -1))
    expected = function(x)
    try:
        fg.op(function, name="inside")(x, out=x)
    except fg.ShapeError:
        assert turned  # another walk may take two passes
        return
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_read_elsewhere_is_refused(name: str) -> None:
    """Or right all the same, where a kernel happens to read everything first."""
    function, shape = WRONG[name]
    x = torch.randn(shape)
    before, expected = x.clone(), function(x)
    try:
        fg.op(function, name="inside")(x, out=x)
    except fg.ShapeError as error:
        assert "argument x" in str(error) and x.equal(before)
    else:
        torch.testing.assert_close(x, expected)


def test_places_that_another_tensor_tells() -> None:
    x, places = torch.randn(6), torch.tensor([5, 4, 3, 2, 1, 0])
    op = fg.op(lambda x, i: x[i] * 2, name="taken")
    with pytest.raises(fg.ShapeError, match="argument x, of which out reads other elements"):
        op(x, places, out=x)


def test_two_arguments_in_one_place() -> None:
    op, x = fg.op(lambda x, y: x + y.mT, name="twice"), torch.randn(4, 4)
    with pytest.raises(fg.ShapeError, match="argument y"):
        op(x, x, out=x)
    expected = x * 2 + x
    fg.op(lambda x, y: x * 2 + y, name="same")(x, x, out=x)
    torch.testing.assert_close(x, expected)


def test_lists_are_refused_as_each_of_their_tensors_is() -> None:
    flipped = fg.op(lambda x: x.flip(0) * 2, name="flipped")
    xs = [torch.randn(600), torch.randn(300)]
    with pytest.raises(fg.ShapeError, match="argument x"):
        fg.foreach(flipped)(xs, out=xs)
    doubled = fg.op(lambda x: x * 2, name="doubled")
    expected = [x * 2 for x in xs]
    fg.foreach(doubled)(xs, out=xs)
    assert all(map(torch.equal, xs, expected))

"""tools/gpu_large.py sees what it is there for; at sizes of a CPU, with gradients that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch

from tools import gpu_large

SHAPES: dict[str, gpu_large.Shapes] = {
    "one weight each": ((1,), (1,), (20011,)),
    "one end each": ((1, 3, 3), (2003, 3, 3), (1, 3, 3)),
}


class Wrong(torch.autograd.Function):
    """The argument as it is; its gradient from another cotangent."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        ctx.change = change  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: object, d: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.change(d), None  # type: ignore[attr-defined]


def wrapped(d: torch.Tensor) -> torch.Tensor:
    """As with an index of too few bits: the last elements are read where the first ones lie."""
    rest = len(d) // 16
    return torch.cat([d[:-rest], d[:rest]])


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a cotangent of ones": torch.ones_like,
    "wraps": wrapped,
    "without its end": lambda d: torch.cat([d[: -len(d) // 16], torch.zeros_like(d[-len(d) // 16 :])]),
}


def test_all_shapes_are_large() -> None:
    for shapes in gpu_large.LARGE:
        assert prod(torch.broadcast_shapes(*shapes)) > 2**31


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_right_gradients_pass(shapes: gpu_large.Shapes) -> None:
    gpu_large.check_large(shapes, "cpu", chunk=1000)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_wrong_gradients_do_not(shapes: gpu_large.Shapes, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def wrong(*inputs: torch.Tensor) -> torch.Tensor:
        return Wrong.apply(torch.lerp(*inputs), change)  # type: ignore[no-untyped-call]

    with pytest.raises(AssertionError, match="close"):
        gpu_large.check_large(shapes, "cpu", wrong, chunk=1000)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_one_wrong_gradient_does_not(shapes: gpu_large.Shapes, place: int) -> None:
    """By five percent, in a sum as well."""

    def wrong(*inputs: torch.Tensor) -> torch.Tensor:
        given = list(inputs)
        given[place] = Wrong.apply(given[place], lambda d: d * 1.05)  # type: ignore[no-untyped-call]
        return torch.lerp(*given)

    with pytest.raises(AssertionError, match="close"):
        gpu_large.check_large(shapes, "cpu", wrong, chunk=1000)

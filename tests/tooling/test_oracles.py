"""The library's oracles see mistakes that are small, or that a single random direction misses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError

from tests.support.oracles import check_derivatives, draw


class Slope(torch.autograd.Function):
    """The gradient of sum(x^3), whose own gradient lacks nothing that shows along ``hidden``."""

    hidden: torch.Tensor

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, d)
        return 3 * x * x * d

    @staticmethod
    def backward(ctx: Any, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, d = ctx.saved_tensors
        along = Slope.hidden / Slope.hidden.norm()
        missing = u - (u * along).sum() * along
        return 6 * x * d * u + 0.01 * missing, 3 * x * x * u


class Cube(torch.autograd.Function):
    """x^3."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        result: torch.Tensor = Slope.apply(x, d)  # type: ignore[no-untyped-call]
        return result


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("seed", [20, 40, 60])
def test_a_second_derivative_that_is_wrong_but_along_one_direction(others: int, seed: int) -> None:
    Slope.hidden = draw(4, seed=seed).detach()

    def function(x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        cubed: torch.Tensor = Cube.apply(x)  # type: ignore[no-untyped-call]
        return sum(more, cubed)

    arguments = [draw(4), *(draw(4, seed=i + 1) for i in range(others))]
    assert torch.autograd.gradcheck(function, arguments)
    with pytest.raises(GradcheckError):
        check_derivatives(function, arguments)
    check_derivatives(lambda x, *more: sum(more, x**3), arguments)

"""Positions along an axis that nothing has which a derivative reads: its size is handed over as a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from tests.support.modes import MODES
from tests.support.oracles import draw

pytestmark = pytest.mark.emulator

Function = Callable[..., Any]


def below(x: Any, count: int) -> Any:
    return fg.index(x, -1) < count


def torchs_below(x: torch.Tensor, count: int) -> torch.Tensor:
    return torch.arange(x.shape[-1]) < count


# Of a matrix, and of a column of which the backward may be all that is asked for.
CASES: dict[str, tuple[Function, Function]] = {
    "a sum": (
        lambda x, s: fg.sum(fg.where(below(x, 3), x + s, s * s), -1),
        lambda x, s: torch.where(torchs_below(x, 3), x + s, s * s).sum(-1),
    ),
    "a mean": (
        lambda x, s: fg.mean(fg.where(below(x, 2), fg.sin(s), x * 0.5), -1),
        lambda x, s: torch.where(torchs_below(x, 2), torch.sin(s), x * 0.5).mean(-1),
    ),
    "positions as numbers": (
        lambda x, s: fg.sum(fg.cast(fg.index(x, -1), "float64") * s * s, -1) + fg.sum(x, -1),
        lambda x, s: (torch.arange(x.shape[-1]).double() * s * s).sum(-1) + x.sum(-1),
    ),
    "beside products": (
        lambda x, s: fg.sum(fg.where(below(x, 2), x @ x.mT @ x, s), -1),
        lambda x, s: torch.where(torchs_below(x, 2), x @ x.mT @ x, s).sum(-1),
    ),
    "before products": (  # a step of the backward sums over positions alone
        lambda x, s: (lambda v: fg.sum(fg.where(below(v, 2), v, 0.0), -1))(x * 3 + s.mT @ s),
        lambda x, s: (lambda v: torch.where(torchs_below(v, 2), v, 0.0).sum(-1))(x * 3 + s.mT @ s),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_every_mode(name: str, mode: str) -> None:
    ours, theirs = CASES[name]
    MODES[mode](fg.op(ours), theirs, [draw(4, 5), draw(4, 1, seed=1)])


@pytest.mark.parametrize("name", CASES)
def test_derivatives_by_the_column_alone(name: str) -> None:
    ours, theirs = CASES[name]
    x, s = draw(4, 5), draw(4, 1, seed=1)
    found = []
    for function in (fg.op(ours), theirs):
        result = function(x, s)
        cotangent = draw(*result.shape, seed=2)
        (first,) = torch.autograd.grad(result, s, cotangent, create_graph=True)
        second = torch.autograd.grad(
            first, (s, cotangent), draw(4, 1, seed=3), create_graph=True, materialize_grads=True
        )
        third = torch.autograd.grad(second[1].square().sum(), s, allow_unused=True, materialize_grads=True)
        found.append((first, *second, *third))
    torch.testing.assert_close(*found)

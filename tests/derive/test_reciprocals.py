"""What derivatives compute once: the reciprocal of what they divide by, and functions of what a select has chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.inspect.passes import passes
from tests.support.modes import MODES
from tests.support.oracles import draw


@fg.op
def chosen(x, y):  # type: ignore[no-untyped-def]
    inner = 1 / (1 + fg.exp(-fg.cos(fg.where(x > 1, x, y))))
    return fg.tanh(inner * y)


def torch_chosen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (1 / (1 + (-torch.where(x > 1, x, y).cos()).exp()) * y).tanh()


@fg.op
def damped(x):  # type: ignore[no-untyped-def]
    share = fg.softmax(x, -1)
    return fg.sqrt(share * share + 1e-3) * 0.85


def torch_damped(x: torch.Tensor) -> torch.Tensor:
    share = x.softmax(-1)
    return (share * share + 1e-3).sqrt() * 0.85


@fg.op
def shares(x, y):  # type: ignore[no-untyped-def]
    return x * y / (fg.sum(x / (fg.abs(y) + 1.0), -1, keepdims=True) * (fg.abs(y) + 1.0))


def torch_shares(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    size = y.abs() + 1.0
    return x * y / ((x / size).sum(-1, keepdim=True) * size)


OPS: dict[str, tuple[Any, Any, tuple[tuple[int, ...], ...]]] = {
    "chosen": (chosen, torch_chosen, ((5, 24), (24,))),
    "damped": (damped, torch_damped, ((6, 24),)),
    "shares": (shares, torch_shares, ((6, 24), (6, 24))),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPS)
def test_every_mode(name: str, mode: str) -> None:
    ours, theirs, shapes = OPS[name]
    given = [draw(*shape, low=0.5, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    MODES[mode](ours, theirs, given)


def backward_of(op: Any, *shapes: tuple[int, ...]) -> str:
    given = tuple(torch.empty(*shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes)
    return list(passes(op, given, {}, "backward"))[-1].text


def test_what_a_select_chose_has_its_functions_once() -> None:
    """Not once for each way, and again for whatever reads it outside of the select."""
    text = backward_of(chosen, (64, 256), (256,))
    assert [text.count(f"fg::fast_{name}(") for name in ("exp", "cos", "sin", "tanh")] == [1, 1, 1, 1]


def test_derivatives_divide_by_one_thing_once() -> None:
    """A root by which two traversals divide is not taken: its reciprocal is a function of its own, and is kept."""
    text = backward_of(damped, (4096, 512))
    assert text.count("rsqrtf(") == 1 and "fg::fast_sqrt(" not in text and "fg::divide(d_out" not in text


def test_what_is_written_is_divided_as_it_is_written() -> None:
    @fg.op
    def both(x, y):  # type: ignore[no-untyped-def]
        return x / y + 1 / y

    (item, *_) = passes(both, (torch.empty(64, 256), torch.empty(64, 256)), {}, "forward")
    assert item.text.count("fg::divide(") == 2

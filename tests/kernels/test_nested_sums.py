"""Sums of one thing over more and over fewer axes read it once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from tests.support.modes import MODES
from tests.support.oracles import draw
from tests.support.rows import planned_passes

Function = Callable[..., Any]


def response_norm(x: Any, g: Any, b: Any) -> Any:
    energy = torch.sqrt((x**2).sum((1, 2), keepdim=True) + 1e-6)
    return g * (x * energy / (energy.mean(-1, keepdim=True) + 1e-6)) + b + x


FORMS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "a norm of responses": (response_norm, [(3, 5, 6, 7), (7,), (7,)]),
    "a gate and a weight": (lambda x, s, w: x * s[:, None] * w, [(3, 50, 7), (3, 7), (7,)]),
    "beside arithmetic": (lambda x, s, w, v: (x * s[:, None] * w).tanh() * v, [(3, 5, 7), (3, 7), (7,), (3, 1, 1)]),
    "sums that are declared": (lambda x: (x.sum((1, 2)), x.sum((0, 1, 2)), (x * x).sum((0, 1))), [(3, 5, 7, 4)]),
    "ties, which later ones need others for": (lambda x: (x * x.amax(0, keepdim=True)).amax((0, 1)), [(3, 5)]),
    "no axis in common": (lambda x, s, w: x * s[:, None] * w[:, None, None], [(3, 5, 7), (3, 7), (3,)]),
}


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("compiled", "out")])
@pytest.mark.parametrize("form", FORMS)
def test_is_torchs(form: str, mode: str) -> None:
    function, shapes = FORMS[form]
    MODES[mode](fg.op(function, name="nested"), function, [draw(*shape, seed=i) for i, shape in enumerate(shapes)])


@pytest.mark.parametrize("form, most", [("a norm of responses", 2), ("sums that are declared", 1)])
def test_what_is_large_is_read_once_for_all_sums(form: str, most: int) -> None:
    """And once more where it is needed element by element."""
    function, _ = FORMS[form]
    given = [torch.empty(16, 28, 28, 64, requires_grad=True)]
    given += [torch.empty(64, requires_grad=True) for _ in range(2)] if form == "a norm of responses" else []
    passes = planned_passes(fg.op(function, name="nested"), *given)
    kernels = passes[1] if form == "a norm of responses" else passes[0]
    readers = [item for item in kernels if any(operand.name == "x" for operand in item.kernel.operands)]
    assert len(readers) <= most

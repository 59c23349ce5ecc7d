"""docs/deviations.md: what it says that torch answers, and what it says that fusegen answers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg

PAGE = Path(__file__).resolve().parents[2] / "docs" / "deviations.md"
Function = Callable[[torch.Tensor], torch.Tensor]
IGNORED = torch.tensor([-100])


@fg.op
def guarded(x: Any) -> Any:
    return fg.where(x > 0, fg.log(x), 0 * x)


def smooth_l1(function: Any) -> Function:
    return lambda x: function(x, torch.zeros(1), reduction="none", beta=0.0)


def of_an_ignored_row(function: Any) -> Function:
    return lambda x: function(x[None], IGNORED, reduction="sum")


# By the first cell: fusegen's and torch's.
OPS: dict[str, tuple[Function, Function]] = {
    "softsign": (fg.ops.softsign, F.softsign),
    "acosh": (fg.op(lambda x: fg.acosh(x), name="acosh"), torch.acosh),
    "polygamma, n 1": (fg.op(lambda x: fg.polygamma(1, x), name="polygamma"), lambda x: torch.polygamma(1, x)),
    "gelu, tanh": (lambda x: fg.ops.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "smooth_l1_loss, beta 0": (smooth_l1(fg.ops.smooth_l1_loss), smooth_l1(F.smooth_l1_loss)),
    "where(x > 0, log(x), 0 * x)": (guarded, lambda x: torch.where(x > 0, x.log(), 0 * x)),
    "amax, cotangent inf": (lambda x: fg.ops.amax(x, 0), lambda x: x.amax(0)),
    "max(dim) in a declaration": (
        fg.op(lambda x: torch.max(x, 0).values, name="highest"), lambda x: torch.max(x, 0).values,
    ),
    "vector_norm, ord inf": (
        lambda x: fg.ops.vector_norm(x, math.inf), lambda x: torch.linalg.vector_norm(x, math.inf),
    ),
    "logsumexp": (lambda x: fg.ops.logsumexp(x, 0), lambda x: x.logsumexp(0)),
    "logsumexp, all -inf": (lambda x: fg.ops.logsumexp(x, 0), lambda x: x.logsumexp(0)),
    "logcumsumexp": (lambda x: fg.ops.logcumsumexp(x, 0), lambda x: x.logcumsumexp(0)),
    "logcumsumexp, all -inf": (lambda x: fg.ops.logcumsumexp(x, 0), lambda x: x.logcumsumexp(0)),
    "cumprod, inf beside 0": (lambda x: fg.ops.cumprod(x, 0), lambda x: x.cumprod(0)),
    "cross_entropy, ignored row": (of_an_ignored_row(fg.ops.cross_entropy), of_an_ignored_row(F.cross_entropy)),
    "prod, inf beside 0": (lambda x: fg.ops.prod(x, 0), lambda x: x.prod(0)),
    "prod, NaN beside 0": (lambda x: fg.ops.prod(x, 0), lambda x: x.prod(0)),
    "prod, inf beside zeros": (lambda x: fg.ops.prod(x, 0), lambda x: x.prod(0)),
}  # fmt: skip


def table() -> dict[str, list[str]]:
    """The cells of each row behind the first."""
    rows = [line.strip("|").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    cells = [[cell.strip().replace("`", "") for cell in row] for row in rows]
    return {name: rest for name, *rest in cells}


def read(cell: str) -> torch.Tensor:
    assert re.fullmatch(r"\[[^]]+\]", cell), cell
    return torch.tensor([float(part) for part in cell[1:-1].split(",")])


def test_the_page_and_this_file_name_the_same() -> None:
    assert list(table()) == list(OPS)
    assert all(len(cells) == 4 and cells[-1] for cells in table().values())  # each has a reason


@pytest.mark.parametrize("name", OPS)
def test_both_answer_what_the_page_says(name: str) -> None:
    given, *answers, _ = table()[name]
    said = [read(cell) for cell in answers]
    assert not torch.equal(*(t.nan_to_num(-7.0) for t in said)), "no difference"
    for function, expected in zip(OPS[name][::-1], said, strict=True):
        x = read(given).requires_grad_()
        value = function(x)
        cotangent = torch.full_like(value, math.inf if "cotangent inf" in name else 1.0)
        (gradient,) = torch.autograd.grad(value, x, cotangent)
        torch.testing.assert_close(gradient, expected, equal_nan=True, rtol=0, atol=0)


# Where torch's loops over vectors and its other loops disagree at NaN.
DISAGREE = {"hardswish", "elu", "celu", "selu", "relu6", "hardtanh", "hardshrink", "softshrink"}
ACTIVATIONS = sorted(
    name for name, op in vars(fg.ops.activations).items()
    if isinstance(op, fg.FusedOp) and hasattr(F, name) and name not in ("prelu", "softsign", "glu", "threshold")
)  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_at_special_numbers_do_not_depend_on_how_many_there_are(name: str) -> None:
    ours, theirs = getattr(fg.ops, name), getattr(F, name)

    def slope(function: Function, special: float, count: int) -> torch.Tensor:
        x = torch.full((count,), special, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(x), x, torch.ones(count))
        return gradient[:1]

    disagree = set()
    for special in (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e30, -1e30):
        one, many = slope(theirs, special, 1), slope(theirs, special, 64)
        disagree |= set() if torch.allclose(one, many, equal_nan=True) else {str(special)}
        for count in (1, 64, 67):
            torch.testing.assert_close(slope(ours, special, count), one, equal_nan=True)
    assert disagree == ({"nan"} if name in DISAGREE else set()), "the page says so"

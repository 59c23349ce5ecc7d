"""Extrema that results do not depend on are held constant, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.core.ir import Reduce, is_call, walk
from fusegen.derive.invariance import without_idle_extrema
from tests.support.modes import MODES
from tests.support.oracles import draw

Function = Callable[..., Any]
OVER: dict[str, Any] = {"axis": -1, "keepdims": True}


def softmax(a: Any, b: Any) -> Any:
    e = fg.exp(a - fg.amax(a, **OVER))
    return e / fg.sum(e, **OVER) * b


def tempered(a: Any, b: Any) -> Any:
    """With a factor of each row, between the maximum and the exponential."""
    t = 1.5 + fg.cos(fg.sum(b, **OVER))
    e = fg.exp((a - fg.amax(a, **OVER)) / t)
    return e / fg.sum(e, **OVER) * b


def torchs_tempered(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(a / (1.5 + torch.cos(b.sum(-1, keepdim=True))), -1) * b


def masked(a: Any, b: Any) -> Any:
    scores = fg.where(b > -1, a, -float("inf"))
    e = fg.exp(scores - fg.amax(scores, **OVER))
    return e / fg.sum(e, **OVER) * b


def torchs_masked(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.where(b > -1, a, -float("inf")), -1) * b


def logsumexp(a: Any, b: Any) -> Any:
    top = fg.amax(a * b, **OVER)
    return fg.log(fg.sum(fg.exp(a * b - top), **OVER)) + top


def scaled(a: Any, b: Any) -> Any:
    """A norm that does not overflow: of what is divided by the largest, times that."""
    most = fg.amax(fg.abs(a), **OVER)
    return fg.sqrt(fg.sum(fg.square(a / most), **OVER)) * most * b


def variance(a: Any, b: Any) -> Any:
    return fg.var(a - fg.amin(a, **OVER), **OVER) * b


INVARIANT: dict[str, tuple[Function, Function]] = {
    "softmax": (softmax, lambda a, b: torch.softmax(a, -1) * b), "tempered": (tempered, torchs_tempered),
    "masked": (masked, torchs_masked), "logsumexp": (logsumexp, lambda a, b: torch.logsumexp(a * b, -1, keepdim=True)),
    "variance": (variance, lambda a, b: a.var(-1, keepdim=True) * b),
    "scaled": (scaled, lambda a, b: a.norm(dim=-1, keepdim=True) * b),
}  # fmt: skip
# Something of the extremum stays: a result depends on it, or a part of one.
DEPENDENT: dict[str, tuple[Function, Function]] = {
    "without the sum": (
        lambda a, b: fg.exp(a - fg.amax(a, **OVER)) * b,
        lambda a, b: torch.exp(a - a.amax(-1, keepdim=True)) * b,
    ),
    "a constant in the sum": (
        lambda a, b: fg.exp(a - fg.amax(a, **OVER)) / (1 + fg.sum(fg.exp(a - fg.amax(a, **OVER)), **OVER)) * b,
        lambda a, b: (lambda e: e / (1 + e.sum(-1, keepdim=True)) * b)(torch.exp(a - a.amax(-1, keepdim=True))),
    ),
    "a result of its own": (
        lambda a, b: (softmax(a, b), fg.amax(a, **OVER)),
        lambda a, b: (torch.softmax(a, -1) * b, a.amax(-1, keepdim=True)),
    ),
    "over other axes": (
        lambda a, b: fg.exp(a - fg.amax(a, **OVER)) / fg.sum(fg.exp(a - fg.amax(a, **OVER)), 0, keepdims=True) * b,
        lambda a, b: (lambda e: e / e.sum(0, keepdim=True) * b)(torch.exp(a - a.amax(-1, keepdim=True))),
    ),
    "a factor that varies": (
        lambda a, b: (lambda e: e / fg.sum(e, **OVER) * b)(fg.exp((a - fg.amax(a, **OVER)) * b)),
        lambda a, b: (lambda e: e / e.sum(-1, keepdim=True) * b)(torch.exp((a - a.amax(-1, keepdim=True)) * b)),
    ),
    "what is read through it alone": (  # a gradient of zeros, not none
        lambda a, b: (lambda m: (m - fg.log(fg.exp(m))) * b)(fg.amax(a, **OVER)),
        lambda a, b: (lambda m: (m - torch.log(torch.exp(m))) * b)(a.amax(-1, keepdim=True)),
    ),
    "not where the gradient stops": (
        lambda a, b: (lambda e: e / fg.stop_gradient(fg.sum(e, **OVER)) * b)(fg.exp(a - fg.amax(a, **OVER))),
        lambda a, b: (lambda e: e / e.sum(-1, keepdim=True).detach() * b)(torch.exp(a - a.amax(-1, keepdim=True))),
    ),
}  # fmt: skip


def held(function: Function) -> int:
    """How many extrema are constant."""
    op = without_idle_extrema(fg.op(function).trace(draw(5, 7), draw(5, 7)))
    nodes = walk([item.expr for item in (*op.statements, *op.outputs)])
    extrema = {s.ref for s in op.statements if isinstance(s, Reduce) and s.kind in ("max", "min")}
    return len({node.args[0] for node in nodes if is_call(node, "stop_gradient")} & extrema)


@pytest.mark.parametrize("name", INVARIANT)
def test_what_no_result_depends_on_is_constant(name: str) -> None:
    assert held(INVARIANT[name][0]) == 1


@pytest.mark.parametrize("name", DEPENDENT)
def test_what_a_result_depends_on_is_not(name: str) -> None:
    assert held(DEPENDENT[name][0]) == 0


@pytest.mark.emulator
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*INVARIANT, *DEPENDENT])
def test_derivatives_are_torchs(name: str, mode: str) -> None:
    ours, theirs = (INVARIANT | DEPENDENT)[name]
    MODES[mode](fg.op(ours), theirs, [draw(5, 7), draw(5, 7, seed=1)])


@pytest.mark.emulator
def test_a_result_that_only_such_an_extremum_leads_to_has_a_gradient() -> None:
    """As the softmax of one element has: zeros."""
    op = fg.op(lambda a: fg.ops.log_softmax(fg.amax(a, **OVER), -1).sin())
    a = draw(5, 7)
    result = op(a)
    assert result.requires_grad
    (found,) = torch.autograd.grad(result, a, draw(5, 1), create_graph=True)
    assert torch.equal(found, torch.zeros_like(a))


def test_a_softmax_is_differentiated_by_its_result() -> None:
    """As the library's is: the backward reads neither what it is of nor how many elements are the maximum."""
    op = fg.op(lambda a: (lambda e: e / fg.sum(e, **OVER))(fg.exp(a - fg.amax(a, **OVER))))
    text = op.emit(draw(64, 300), which="backward")
    assert "exp(" not in text.partition("extern")[2] and " a_ptr" not in text
    a, d = draw(6, 9), draw(6, 9, seed=1)
    (found,) = torch.autograd.grad(op(a), a, d)
    (expected,) = torch.autograd.grad(F.softmax(a, -1), a, d)
    torch.testing.assert_close(found, expected)


@pytest.mark.emulator
def test_rows_that_are_not_finite_are_as_they_would_be() -> None:
    inf = float("inf")
    rows = torch.tensor([[1.0, inf, 2.0], [-inf, -inf, -inf], [-inf, 0.0, 1.0], [float("nan"), 0.0, 1.0]]).double()
    op = fg.op(lambda a: (lambda e: e / fg.sum(e, **OVER))(fg.exp(a - fg.amax(a, **OVER))))

    def theirs(a: torch.Tensor) -> torch.Tensor:
        e = torch.exp(a - a.amax(-1, keepdim=True).detach())
        return e / e.sum(-1, keepdim=True)

    found = []
    for function in (op, theirs):
        a = rows.clone().requires_grad_()
        result = function(a)
        found.append((result.detach(), torch.autograd.grad(result, a, torch.ones_like(rows).cumsum(-1))[0]))
    torch.testing.assert_close(*found, equal_nan=True)

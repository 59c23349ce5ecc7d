"""Slices, shifts and pads beside sums along the same dimension: right in every derivative, and in linear time."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core.ir import walk
from tests.support.rows import planned_passes
from tools.program_checks import interpreted

pytestmark = pytest.mark.emulator

functional = torch.nn.functional
Function = Callable[..., torch.Tensor]


def autocorrelation(x: Any) -> Any:
    centered = x - x.mean(-1, keepdim=True)
    return (centered[:, 1:] * centered[:, :-1]).mean(-1)


def turned(x: Any) -> Any:
    unit = functional.normalize(x, dim=-1)
    return unit * unit.roll(1, -1)


FORMS: dict[str, Function] = {
    "a sum behind a slice": lambda x: x[:, 1:].sum(-1),
    "a mean behind a step": lambda x: x[:, ::2].mean(-1),
    "a sum behind a flip": lambda x: (x.flip(-1) * 2).sum(-1),
    "a sum behind a roll": lambda x: x.roll(3, -1).sum(-1),
    "a sum behind padding": lambda x: functional.pad(x, (2, 3)).sum(-1),
    "differences": lambda x: x.diff().diff().mean(),
    "a slice behind a softmax": lambda x: x.softmax(-1)[:, 1:],
    "a slice behind its logarithm": lambda x: x.log_softmax(-1)[:, :-1],
    "a softmax behind a slice": lambda x: x[:, :-1].softmax(-1),
    "a softmax behind a roll": lambda x: x.roll(3, -1).softmax(-1),
    "a roll behind a softmax": lambda x: x.softmax(-1).roll(3, -1),
    "a flip behind a softmax": lambda x: x.softmax(-1).flip(-1),
    "padding behind a softmax": lambda x: functional.pad(x.softmax(-1), (2, 3)),
    "an element of a softmax": lambda x: x.softmax(-1)[:, -1],
    "a slice behind a norm": lambda x: functional.layer_norm(x, (x.shape[-1],))[:, 5:],
    "a norm of differences from an element": lambda x: functional.layer_norm(x - x[:, -1:], (x.shape[-1],)),
    "a shifted product": turned,
    "autocorrelation": autocorrelation,
}


@pytest.mark.parametrize("size", [12, 97])  # in blocks, if the op is no longer for it, and at places
@pytest.mark.parametrize("form", FORMS)
def test_it_is_torchs_in_every_derivative(form: str, size: int) -> None:
    function = FORMS[form]
    op = fg.op(function, name="sliced")
    x = torch.randn(2, size, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(op(x.detach()), function(x))
    out, expected = op(x), function(x)
    cotangent, again = torch.randn_like(expected), torch.randn_like(x)
    mine, theirs = (torch.autograd.grad(o, x, cotangent, create_graph=True)[0] for o in (out, expected))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(mine, theirs)
    tangent = torch.func.jvp(op, (x.detach(),), (again,))[1]
    torch.testing.assert_close(tangent, torch.func.jvp(function, (x.detach(),), (again,))[1])
    if theirs.requires_grad:
        torch.testing.assert_close(*(torch.autograd.grad(g, x, again)[0] for g in (mine, theirs)))


@pytest.mark.parametrize("form", FORMS)
def test_no_kernel_compares_places_of_a_row_with_each_other(form: str) -> None:
    rows, size = 2, 997
    x = torch.randn(rows, size, requires_grad=True)
    for kernels in planned_passes(fg.op(FORMS[form], name="sliced"), x):
        for planned in kernels:
            assert prod(planned.launch.sizes) <= 2 * rows * size


def length(function: Function, *tensors: torch.Tensor) -> int:
    op = fg.op(function, name="measured").trace(*tensors)
    return sum(1 for _ in walk([item.expr for item in (*op.statements, *op.outputs)]))


def masked(x: Any, y: Any, n: Any) -> Any:
    kept = torch.where(torch.arange(x.shape[1]) < n[:, None], x * y, torch.zeros_like(x))
    sums = kept.cumsum(-1)
    rest = sums[:, -1:] - sums + kept
    mean = kept.mean(-1, keepdim=True)
    return (rest - mean) * torch.rsqrt(((kept - mean) ** 2).mean(-1, keepdim=True) + 1e-3)


@pytest.mark.parametrize("size", [5, 8, 64])
def test_an_op_says_no_more_of_short_rows_than_of_long_ones(size: int) -> None:
    def of(size: int) -> int:
        return length(masked, torch.randn(3, size), torch.randn(3, size), torch.tensor([3, size, 2]))

    assert of(size) <= of(65)
    norm = FORMS["a norm of differences from an element"]
    assert length(norm, torch.randn(3, size)) <= length(norm, torch.randn(3, 65))


def test_steps_of_a_loop_are_blocks() -> None:
    """Of a tensor that is read step by step alone: each gradient is written to its own place."""

    def recurrent(x: Any, w: Any) -> Any:
        state = torch.zeros_like(x[:, 0])
        for step in range(16):
            state = torch.tanh(x[:, step] + state * w)
        return state

    x, w = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 16), (3,)))
    op = fg.op(recurrent)
    assert len({operand.packed for operand in op.trace(x, w).operands if operand.base == "x"}) == 16
    cotangent = torch.randn(3, dtype=torch.float64)
    mine, theirs = (torch.autograd.grad(f(x, w), (x, w), cotangent) for f in (op, recurrent))
    torch.testing.assert_close(mine, theirs)


def test_it_is_right_where_blocks_are_not_taken() -> None:
    x, y = (torch.randn(3, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    n, cotangent = torch.tensor([3, 8, 2]), torch.randn(3, 8, dtype=torch.float64)
    mine, theirs = (torch.autograd.grad(f(x, y, n), (x, y), cotangent) for f in (fg.op(masked), masked))
    torch.testing.assert_close(mine, theirs)


def test_evaluators_put_together_blocks_that_several_steps_write() -> None:
    def function(x: Any, i: Any) -> Any:
        topped = x.scatter_reduce(1, i[:, None], x[:, :1], "amax")
        return torch.cumsum(topped, 0) * topped

    x, i = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.tensor([0, 3, 1])
    cotangent = torch.randn(3, 5, dtype=torch.float64)
    (theirs,) = torch.autograd.grad(function(x, i), x, cotangent)
    for stage in range(3):
        with interpreted(stage):
            (mine,) = torch.autograd.grad(fg.op(function)(x, i), x, cotangent)
        torch.testing.assert_close(mine, theirs)

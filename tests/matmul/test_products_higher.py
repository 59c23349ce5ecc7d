"""Derivatives of the third order, and second ones that are recorded, of ops with matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.functional import hvp

import fusegen as fg
from fusegen import pipeline
from fusegen.core.ir import Size, walk
from tests.support.oracles import draw

Case = tuple[Any, Callable[..., torch.Tensor], Sequence[Sequence[int]]]


def composed(function: Callable[[Any], Any], name: str) -> Any:
    """An op of ``function`` of x w."""
    return fg.op(lambda x, w: function(x @ w), name=name)


def rms(p: torch.Tensor) -> torch.Tensor:
    return p / (p.square().mean(-1, keepdim=True) + torch.finfo(p.dtype).eps).sqrt()


PAIR = ((4, 3), (3, 5))
CASES: dict[str, Case] = {
    "square and sum": (
        composed(lambda p: p * p + fg.sum(p, 0), "square_sum"), lambda x, w: (x @ w) ** 2 + (x @ w).sum(0), PAIR
    ),
    "silu": (composed(fg.ops.silu, "silu_of"), lambda x, w: F.silu(x @ w), PAIR),
    "silu of square sizes": (composed(fg.ops.silu, "silu_of"), lambda x, w: F.silu(x @ w), ((4, 5), (5, 3))),
    "silu of narrow sizes": (composed(fg.ops.silu, "silu_of"), lambda x, w: F.silu(x @ w), ((4, 1), (1, 3))),
    "exp": (composed(fg.exp, "exp_of"), lambda x, w: (x @ w).exp(), PAIR),
    "tanh and mean": (
        composed(lambda p: fg.tanh(p) - fg.mean(p, 0), "tanh_mean"), lambda x, w: (x @ w).tanh() - (x @ w).mean(0), PAIR
    ),
    "rms_norm": (composed(lambda p: fg.ops.rms_norm(p, (5,)), "norm_of"), lambda x, w: rms(x @ w), PAIR),
    "logsumexp": (composed(lambda p: fg.logsumexp(p, -1), "lse_of"), lambda x, w: (x @ w).logsumexp(-1), PAIR),
    "softmax, product": (
        fg.op(lambda x, w, v: fg.softmax(x @ w, -1) @ v, name="attend"), lambda x, w, v: (x @ w).softmax(-1) @ v,
        (*PAIR, (5, 2)),
    ),
    "linear_silu": (fg.ops.linear_silu, lambda x, w, b: F.silu(F.linear(x, w, b)), ((4, 3), (5, 3), (5,))),
    "linear_gelu": (fg.ops.linear_gelu, lambda x, w, b: F.gelu(F.linear(x, w, b)), ((4, 3), (5, 3), (5,))),
    "swiglu_mlp": (
        fg.ops.swiglu_mlp, lambda x, a, b, c: F.linear(F.silu(F.linear(x, a)) * F.linear(x, b), c),
        ((4, 3), (5, 3), (5, 3), (2, 5)),
    ),
}  # fmt: skip


def given(shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def penalty(function: Any, tensors: Sequence[torch.Tensor], again: bool) -> Sequence[torch.Tensor]:
    """Gradients of the sum of squares of gradients; ``again``: of those as well."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    first = torch.autograd.grad(function(*leaves).sin().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves, create_graph=True)  # type: ignore[arg-type]
    if not again:
        return [g.detach() for g in second]
    return torch.autograd.grad(sum(g.square().sum() for g in second), leaves)  # type: ignore[arg-type]


def close(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-9 * float(other.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_third_gradients(name: str) -> None:
    op, reference, shapes = CASES[name]
    tensors = given(shapes)
    for again in (False, True):
        close(penalty(op, tensors, again), penalty(reference, tensors, again))


@pytest.mark.parametrize("name", CASES)
def test_hessians_times_vectors(name: str) -> None:
    op, reference, shapes = CASES[name]
    tensors, along = tuple(given(shapes)), tuple(torch.randn(*shape, dtype=torch.float64) for shape in shapes)
    (_, found), (_, expected) = (
        hvp(lambda *q, f=function: f(*q).sin().sum(), tensors, along) for function in (op, reference)
    )
    close(found, expected)


@pytest.mark.parametrize(("of", "by"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_one_gradient_of_one_gradient_that_is_recorded(of: int, by: int) -> None:
    op, reference, shapes = CASES["square and sum"]
    tensors, found = given(shapes), []
    for function in (op, reference):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        (first,) = torch.autograd.grad(function(*leaves).sin().sum(), leaves[of], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), leaves[by], create_graph=True)[0].detach())
    close(found[:1], found[1:])


def test_axes_of_products_are_not_those_whose_size_alone_is_read() -> None:
    """The backward for w reads what is kept of x, and how many elements that had: no operand has x's axes any more."""

    @fg.op
    def op(x: Any, w: Any) -> Any:
        return fg.std(x, None, correction=1, keepdims=True) @ w

    x, w, along = draw(4, 2), draw(1, 3, seed=1), draw(1, 3, seed=2).detach()
    traced = op.trace(x.detach(), w.detach())
    backward = pipeline.backward_op(pipeline.train_op(traced, ("w",)), (0,))
    again = pipeline.backward_op(pipeline.train_op(backward, ("deviation",)), (0,))
    contracted = {axis for reduce in again.expand()[0] for axis in reduce.over}
    asked = {node.axis for node in walk([o.expr for o in again.expand()[1]]) if isinstance(node, Size)}
    assert contracted and asked and not contracted & asked
    for function in (op, lambda x, w: x.std().reshape(1, 1) @ w):
        first = torch.autograd.grad(function(x, w), w, along, create_graph=True)[0]
        (second,) = torch.autograd.grad(first, x, along)
        values = x.detach()
        expected = (values - values.mean()) / (7 * values.std()) * along.square().sum()
        torch.testing.assert_close(second, expected)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_gradient_that_is_the_same_along_an_axis_is_not_read_as_a_factor_without_it(rows: int) -> None:
    """The bias's gradient of a mean: one number for all columns, and a factor of the other gradients. A backward that
    read the bias's gradient itself would multiply with something that has columns."""
    op = fg.op(lambda x, w, b: fg.mean(x @ w + b, -1, keepdims=True))
    leaves = [draw(rows, 3), draw(3, 2, seed=1), draw(2, seed=2)]
    along = draw(rows, 1, seed=3)
    found = []
    for function in (op, lambda x, w, b: torch.mean(x @ w + b, -1, keepdim=True)):
        first = torch.autograd.grad(function(*leaves), leaves, along, create_graph=True)
        moved = [draw(*gradient.shape, seed=4 + i).detach() for i, gradient in enumerate(first)]
        found.append(torch.autograd.grad(first, [*leaves[:2], along], moved))
    torch.testing.assert_close(*found)


def test_the_size_of_a_product_that_nothing_reads() -> None:
    """Each product has columns of its own where both factors have one axis as rows."""

    @fg.op
    def op(x: Any, y: Any) -> Any:
        return (x @ y.mT + fg.sum(x * y)) / fg.size(x @ y.mT, None)

    x, y, cotangent = draw(2, 7, 8), draw(2, 7, 8, seed=1), draw(2, 7, 7, seed=2)
    found = []
    for function in (op, lambda x, y: (x @ y.mT + (x * y).sum()) / 98):
        result = function(x, y)
        first = torch.autograd.grad(result, (x, y), cotangent, create_graph=True)
        found.append((result, *first, *torch.autograd.grad(first[0].square().sum(), (y, cotangent))))
    torch.testing.assert_close(*found)

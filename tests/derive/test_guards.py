"""A branch of a select that is not taken adds nothing to a derivative of any order, reductions or not.

torch's functions are written as torch's users must: with a value that the branch could take where it is not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from torch.func import hessian, jvp

import fusegen as fg
from fusegen.core.dtypes import float64
from fusegen.core.ir import Ref, const, refs
from fusegen.declare.reference import reference
from fusegen.declare.table import apply
from fusegen.derive.guards import guards
from fusegen.derive.simplify import TIDY, guards_of, has_guard, simplify
from fusegen.run.verify import verify_gradients
from tests.support.modes import MODES
from tests.support.oracles import draw

pytestmark = pytest.mark.emulator

Function = Callable[..., Any]


def extremum(a: Any, b: Any) -> Any:
    """The gradient of an extremum is shared among elements that tie: a sum between select and branch."""
    least = fg.amin(a, -1, keepdims=True)
    root = fg.sqrt(least)
    return fg.where(least > 0.1, root * fg.log(least) + fg.tanh(root * b) * fg.rsqrt(least), 0)


def torchs_extremum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    least = torch.amin(a, -1, keepdim=True)
    taken = least > 0.1
    least = torch.where(taken, least, 1)
    root = torch.sqrt(least)
    return torch.where(taken, root * torch.log(least) + torch.tanh(root * b) * torch.rsqrt(least), 0)


def total(a: Any, b: Any) -> Any:
    """The branch reads a sum, which the forward keeps."""
    mean = fg.mean(a, -1, keepdims=True)
    return fg.where(mean > 0.1, fg.tanh(fg.sum(fg.sqrt(mean) * a * b, -1, keepdims=True) * b), 0)


def torchs_total(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mean = torch.mean(a, -1, keepdim=True)
    taken, safe = mean > 0.1, torch.where(mean > 0.1, mean, 1)
    return torch.where(taken, torch.tanh(torch.sum(torch.sqrt(safe) * a * b, -1, keepdim=True) * b), 0)


def chained(a: Any, b: Any) -> Any:
    """A sum of what a sum is in, guarded by what stands in the other branch of a select."""
    mean = fg.mean(a, -1, keepdims=True)
    inner = fg.sum(fg.log(mean) * b, -1, keepdims=True)
    outer = fg.sum(fg.sin(inner * a) * fg.sqrt(mean), -1, keepdims=True)
    return fg.where(mean <= 0.1, 0, outer * b), fg.where(mean > 0.2, outer, 0)


def torchs_chained(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = torch.mean(a, -1, keepdim=True)
    safe = torch.where(mean > 0.1, mean, 1)
    inner = torch.sum(torch.log(safe) * b, -1, keepdim=True)
    outer = torch.sum(torch.sin(inner * a) * torch.sqrt(safe), -1, keepdim=True)
    return torch.where(mean <= 0.1, 0, outer * b), torch.where(mean > 0.2, outer, 0)


def leaky(a: Any, b: Any) -> Any:
    """The guarded value goes through a choice that has no zeros."""
    found = fg.cos(total(a, b))
    return fg.where(found > 0.7, found, 0.1 * found)


def torchs_leaky(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    found = torch.cos(torchs_total(a, b))
    return torch.where(found > 0.7, found, 0.1 * found)


def either(a: Any, b: Any) -> Any:
    """Each branch reads a sum that has no value where the other is taken."""
    mean = fg.mean(a, -1, keepdims=True)
    above = fg.sum(fg.sqrt(mean - 0.05) * b, -1, keepdims=True)
    below = fg.sum(fg.log(0.2 - mean) * a, -1, keepdims=True)
    return fg.where(mean > 0.1, fg.tanh(above * b), fg.sin(below * b))


def torchs_either(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mean = torch.mean(a, -1, keepdim=True)
    taken = mean > 0.1
    above = torch.sum(torch.sqrt(torch.where(taken, mean - 0.05, 1)) * b, -1, keepdim=True)
    below = torch.sum(torch.log(torch.where(taken, 1, 0.2 - mean)) * a, -1, keepdim=True)
    return torch.where(taken, torch.tanh(above * b), torch.sin(below * b))


def by_element(a: Any, b: Any) -> Any:
    """Elements choose among sums that have a value for some rows only: one guarded, and two of them added."""
    mean = fg.mean(a, -1, keepdims=True)
    above = fg.where(mean > 0.1, fg.tanh(fg.sum(fg.sqrt(mean - 0.05) * b, -1, keepdims=True) * b), 0)
    below = fg.where(mean < 0.15, fg.sin(fg.sum(fg.log(0.2 - mean) * a, -1, keepdims=True) * b), 0)
    return fg.where(b > 0, above * a, fg.where(b > -0.5, above + below, below - 0.5 * above))


def torchs_by_element(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mean = torch.mean(a, -1, keepdim=True)
    high, low = mean > 0.1, mean < 0.15
    roots = torch.sum(torch.sqrt(torch.where(high, mean - 0.05, 1)) * b, -1, keepdim=True)
    logs = torch.sum(torch.log(torch.where(low, 0.2 - mean, 1)) * a, -1, keepdim=True)
    above, below = torch.where(high, torch.tanh(roots * b), 0), torch.where(low, torch.sin(logs * b), 0)
    return torch.where(b > 0, above * a, torch.where(b > -0.5, above + below, below - 0.5 * above))


def apart(a: Any, b: Any) -> Any:
    """Elements choose among branches with other guards: no condition holds for both."""
    mean = fg.mean(a, -1, keepdims=True)
    above = fg.sum(fg.sqrt(mean - 0.05) * b, -1, keepdims=True)
    below = fg.sum(fg.log(0.2 - mean) * a, -1, keepdims=True)
    return fg.where(b > 0, fg.where(mean > 0.1, above * b, 0), fg.where(mean < 0.15, below * a, 0))


def torchs_apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mean = torch.mean(a, -1, keepdim=True)
    high, low = mean > 0.1, mean < 0.15
    above = torch.sum(torch.sqrt(torch.where(high, mean - 0.05, 1)) * b, -1, keepdim=True)
    below = torch.sum(torch.log(torch.where(low, 0.2 - mean, 1)) * a, -1, keepdim=True)
    return torch.where(b > 0, torch.where(high, above * b, 0), torch.where(low, below * a, 0))


def beside(a: Any, b: Any) -> Any:
    """One value has two uses in a choice among guards, and its own derivative has a pole elsewhere."""
    mean = fg.mean(a, -1, keepdims=True)
    root = fg.sum(fg.sqrt(mean) * b, -1, keepdims=True)
    high = fg.mean(b, -1, keepdims=True)
    some = fg.where(fg.logical_and(mean > 0.1, high > 0), root * b, 0)
    return fg.where(b > 0, some, fg.where(mean > 0.12, root * root * a, 0)) * fg.sin(a)


def torchs_beside(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mean = torch.mean(a, -1, keepdim=True)
    root = torch.sum(torch.sqrt(torch.where(mean > 0.1, mean, 1)) * b, -1, keepdim=True)
    some = torch.where((mean > 0.1) & (torch.mean(b, -1, keepdim=True) > 0), root * b, 0)
    return torch.where(b > 0, some, torch.where(mean > 0.12, root * root * a, 0)) * torch.sin(a)


def best(a: Any, b: Any) -> Any:
    """Elements of either branch are compared with their maximum: terms of a derivative cancel, and leave zeros."""
    mean = fg.mean(a, -1, keepdims=True)
    above = fg.sum(fg.sqrt(mean - 0.05) * a, -1, keepdims=True)
    below = fg.sum(fg.log(0.2 - mean) * a, -1, keepdims=True)
    chosen = fg.where(mean > 0.1, above * a, below * b)
    return chosen * fg.amax(chosen, -1, keepdims=True)


def torchs_best(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mean = torch.mean(a, -1, keepdim=True)
    taken = mean > 0.1
    above = torch.sum(torch.sqrt(torch.where(taken, mean - 0.05, 1)) * a, -1, keepdim=True)
    below = torch.sum(torch.log(torch.where(taken, 1, 0.2 - mean)) * a, -1, keepdim=True)
    chosen = torch.where(taken, above * a, below * b)
    return chosen * torch.amax(chosen, -1, keepdim=True)


def nested(a: Any, b: Any) -> Any:
    """A choice of what a choice was made for: each sum is read in every branch, and most of its terms cancel."""

    def chosen(x: Any) -> Any:
        mean = fg.mean(x, -1, keepdims=True)
        above = fg.sum(fg.sqrt(mean) * x, -1, keepdims=True)
        below = fg.sum(fg.log(0.3 - mean) * x, -1, keepdims=True)
        return fg.where(mean > 0.1, fg.tanh(above * x), fg.sin(below * x))

    return chosen(fg.sin(chosen(a))) * fg.sin(b)


def torchs_nested(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        mean = torch.mean(x, -1, keepdim=True)
        taken = mean > 0.1
        above = torch.sum(torch.sqrt(torch.where(taken, mean, 1)) * x, -1, keepdim=True)
        below = torch.sum(torch.log(torch.where(taken, 1, 0.3 - mean)) * x, -1, keepdim=True)
        return torch.where(taken, torch.tanh(above * x), torch.sin(below * x))

    return chosen(torch.sin(chosen(a))) * torch.sin(b)


@fg.op
def straight_through(x: Any) -> Any:
    return fg.round(x)


@straight_through.gradient
def _(d_out: Any, x: Any) -> Any:
    return d_out


@fg.op
def scaled(a: Any, b: Any) -> Any:
    return a * b


@scaled.gradient
def _(d_out: Any, a: Any, b: Any) -> Any:
    return d_out * b, d_out * a


@fg.op
def both(a: Any, b: Any) -> Any:
    """Two results, one of them a sum."""
    return a * b, fg.sum(a * b, -1, keepdims=True)


@both.gradient
def _(d_out0: Any, d_out1: Any, a: Any, b: Any) -> Any:
    d = d_out0 + d_out1
    return fg.sum(d * b, -1, keepdims=True), d * a


@fg.op
def limited(a: Any) -> Any:
    return fg.sin(a)


@limited.gradient
def _(d_out: Any, a: Any) -> Any:
    """Not linear in the cotangent, but zero where that is."""
    return fg.clamp(d_out, -0.5, 0.5) * fg.cos(a)


class Limited(torch.autograd.Function):
    """The same of torch's, which has no tangents since it is not linear."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: torch.Tensor) -> torch.Tensor:
        return torch.sin(a)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> torch.Tensor:
        return torch.clamp(cotangents[0], -0.5, 0.5) * torch.cos(*ctx.saved_tensors)


def torchs_straight_through(x: torch.Tensor) -> torch.Tensor:
    return x + (torch.round(x) - x).detach()


def guarded_mean(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows are taken, and their means with another number in place of those that are not."""
    mean = torch.mean(a, -1, keepdim=True)
    return mean > 0.1, torch.where(mean > 0.1, mean, 1)


def largest(a: Any, b: Any) -> Any:
    """Extrema within the branch: nothing of their elements is read where it is not taken."""
    mean = fg.mean(a, -1, keepdims=True)
    y = fg.sqrt(mean) * b
    top = fg.amax(y, -1, keepdims=True)
    norm = fg.norm(y, ord=float("inf"), axis=-1, keepdims=True)
    first = fg.where(mean > 0.1, fg.tanh(top) * fg.sin(fg.amin(y, -1, keepdims=True)) * b, 0)
    return first, fg.where(mean > 0.1, y / norm, 0), fg.where(mean <= 0.1, 0, fg.sin(y - top))


def torchs_largest(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    taken, safe = guarded_mean(a)
    y = torch.sqrt(safe) * b
    top = torch.amax(y, -1, keepdim=True)
    norm = torch.amax(torch.abs(y), -1, keepdim=True)
    first = torch.where(taken, torch.tanh(top) * torch.sin(torch.amin(y, -1, keepdim=True)) * b, 0)
    return first, torch.where(taken, y / norm, 0), torch.where(taken, torch.sin(y - top), 0)


def largest_of_columns(a: Any, b: Any) -> Any:
    """An extremum over another axis than the condition's, of what is guarded before it, and a choice of extrema."""
    mean = fg.mean(a, -1, keepdims=True)
    y = fg.where(mean > 0.1, fg.sqrt(mean) * b, 0)
    columns = fg.amax(y, 0, keepdims=True)
    rows = fg.where(mean > 0.1, fg.amax(fg.log(mean) * b, -1, keepdims=True), fg.amin(y + a, -1, keepdims=True))
    return y * columns, fg.where(b > 0, fg.where(mean > 0.1, rows * b, 0), rows)


def torchs_largest_of_columns(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    taken, safe = guarded_mean(a)
    y = torch.where(taken, torch.sqrt(safe) * b, 0)
    columns = torch.amax(y, 0, keepdim=True)
    rows = torch.amax(torch.log(safe) * b, -1, keepdim=True)
    rows = torch.where(taken, rows, torch.amin(y + a, -1, keepdim=True))
    return y * columns, torch.where(b > 0, torch.where(taken, rows * b, 0), rows)


def declared(a: Any, b: Any) -> Any:
    """Gradients that were declared, of what lacks an axis of the cotangent."""
    mean = fg.mean(a, -1, keepdims=True)
    root = fg.sqrt(mean)
    first, total = both(root, b)
    return (
        fg.where(mean > 0.1, fg.sin(straight_through(root * 3) * b), 0),
        fg.where(mean > 0.1, fg.tanh(scaled(root, b)), 0),
        fg.where(mean <= 0.1, 0, fg.sin(first) * total),
        fg.where(fg.logical_and(mean > 0.1, b > 0), scaled(fg.log(mean), fg.sqrt(mean)) * b, 0),
    )


def torchs_declared(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    taken, safe = guarded_mean(a)
    root = torch.sqrt(safe)
    return (
        torch.where(taken, torch.sin(torchs_straight_through(root * 3) * b), 0),
        torch.where(taken, torch.tanh(root * b), 0),
        torch.where(taken, torch.sin(root * b) * (root * b).sum(-1, keepdim=True), 0),
        torch.where(taken & (b > 0), torch.log(safe) * torch.sqrt(safe) * b, 0),
    )


def conjunction(a: Any, b: Any) -> Any:
    """A condition that varies along the axis of a sum has a part that does not."""
    mean = fg.mean(a, -1, keepdims=True)
    total = fg.sum(fg.sqrt(mean) * b, -1, keepdims=True)
    top = fg.amax(fg.log(mean) * b, -1, keepdims=True)
    return fg.where((mean > 0.1) & (b > 0), fg.sin(total * b), 0), fg.where((b < 0) | ~(mean > 0.1), 0, top * b)


def torchs_conjunction(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    taken, safe = guarded_mean(a)
    total = torch.sum(torch.sqrt(safe) * b, -1, keepdim=True)
    top = torch.amax(torch.log(safe) * b, -1, keepdim=True)
    return torch.where(taken & (b > 0), torch.sin(total * b), 0), torch.where((b < 0) | ~taken, 0, top * b)


def product(a: Any, b: Any, m: Any) -> Any:
    """A matrix product within the branch: its factor has no value in rows that are not taken."""
    mean = fg.mean(a, -1, keepdims=True)
    made = (fg.sqrt(mean) * b) @ m
    return fg.where(mean > 0.1, fg.sin(made), 0), fg.where(mean <= 0.1, 0, made * fg.amax(made, -1, keepdims=True))


def torchs_product(a: torch.Tensor, b: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, ...]:
    taken, safe = guarded_mean(a)
    made = (torch.sqrt(safe) * b) @ m
    return torch.where(taken, torch.sin(made), 0), torch.where(taken, made * torch.amax(made, -1, keepdim=True), 0)


def products(a: Any, b: Any, m: Any) -> Any:
    """A product of a product, with a bias, and a factor that is divided by a sum."""
    mean = fg.mean(a, -1, keepdims=True)
    total = fg.sum(fg.sqrt(mean) * b * b, -1, keepdims=True)
    inner = fg.tanh(fg.linear(b / total, m.mT, fg.sum(m, 0)))
    outer = (inner * fg.log(mean)) @ fg.sin(m).mT
    return fg.where((mean > 0.1) & (b > -0.5), fg.cos(outer), 0)


def torchs_products(a: torch.Tensor, b: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    taken, safe = guarded_mean(a)
    total = torch.sum(torch.sqrt(safe) * b * b, -1, keepdim=True)
    inner = torch.tanh(torch.where(taken, b / total, 0) @ m + m.sum(0))
    outer = (inner * torch.log(safe)) @ torch.sin(m).mT
    return torch.where(taken & (b > -0.5), torch.cos(outer), 0)


def guarded_twice(a: Any) -> Any:
    """Rows that are chosen, and of these elements: gradients are differences of sums of selects by either condition."""
    mean = fg.mean(a, -1, keepdims=True)
    y = fg.sqrt(mean) * a
    tops = fg.amax(fg.abs(y), -1, keepdims=True) + fg.amax(y, -1, keepdims=True)
    inner = fg.where(mean > 0.1, fg.sin(y - fg.amin(y, -1, keepdims=True)) * a / tops, 0)
    root = fg.sqrt(inner)
    return fg.where(inner > 0.1, root * fg.log(inner) + fg.tanh(root * inner) * fg.rsqrt(inner), 0)


def torchs_guarded_twice(a: torch.Tensor) -> torch.Tensor:
    taken, safe = guarded_mean(a)
    y = torch.sqrt(safe) * a
    tops = torch.amax(torch.abs(y), -1, keepdim=True) + torch.amax(y, -1, keepdim=True)
    inner = torch.where(taken, torch.sin(y - torch.amin(y, -1, keepdim=True)) * a / torch.where(taken, tops, 1), 0)
    above = inner > 0.1
    inner = torch.where(above, inner, 1)
    root = torch.sqrt(inner)
    return torch.where(above, root * torch.log(inner) + torch.tanh(root * inner) * torch.rsqrt(inner), 0)


GUARDED: dict[str, tuple[Function, Function]] = {
    "an extremum": (extremum, torchs_extremum), "a sum that is kept": (total, torchs_total),
    "sums of sums": (chained, torchs_chained), "a choice without zeros": (leaky, torchs_leaky),
    "both branches": (either, torchs_either), "by element": (by_element, torchs_by_element),
    "an extremum of a choice": (best, torchs_best), "other guards": (apart, torchs_apart),
    "one value, two guards": (beside, torchs_beside), "a choice of choices": (nested, torchs_nested),
    "extrema within": (largest, torchs_largest), "extrema of columns": (largest_of_columns, torchs_largest_of_columns),
    "declared gradients": (declared, torchs_declared), "a conjunction": (conjunction, torchs_conjunction),
    "chosen twice": (guarded_twice, torchs_guarded_twice),
    "a product": (product, torchs_product), "products of products": (products, torchs_products),
}  # fmt: skip


def arguments(function: Function = extremum) -> list[torch.Tensor]:
    """Rows of which some are guarded and some are not; and a matrix for who multiplies with one."""
    a = draw(5, 7) * 0.2 + torch.tensor([0.9, -0.6, 0.7, -0.3, 0.16], dtype=torch.float64)[:, None]
    return [a.detach().requires_grad_(), draw(5, 7), draw(7, 4)][: len(signature(function).parameters)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", GUARDED)
def test_a_branch_that_is_not_taken_adds_nothing(name: str, mode: str) -> None:
    ours, theirs = GUARDED[name]
    MODES[mode](fg.op(ours), theirs, arguments(ours))


@pytest.mark.parametrize("name", GUARDED)
def test_forward_over_reverse(name: str) -> None:
    ours, theirs = GUARDED[name]
    declared, (a, *others) = fg.op(ours), (t.detach() for t in arguments(ours))

    def scalar(function: Function) -> Function:
        return lambda x: sum(r.sum() for r in results(function(x, *others)))

    def results(found: Any) -> tuple[torch.Tensor, ...]:
        return found if isinstance(found, tuple) else (found,)

    torch.testing.assert_close(hessian(scalar(declared))(a), hessian(scalar(theirs))(a))
    moved = [jvp(torch.func.grad(scalar(f)), (a,), (a.cos(),))[1] for f in (declared, theirs)]
    torch.testing.assert_close(*moved)


@pytest.mark.parametrize("mode", ["all", "some"])
def test_a_declared_gradient_that_is_not_linear(mode: str) -> None:
    """It is zero where its cotangent is, which is what counts."""

    def ours(a: Any, b: Any) -> Any:
        mean = fg.mean(a, -1, keepdims=True)
        return fg.where(mean > 0.1, limited(fg.sqrt(mean)) * b, 0)

    def theirs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        taken, safe = guarded_mean(a)
        return torch.where(taken, Limited.apply(torch.sqrt(safe)) * b, 0)

    MODES[mode](fg.op(ours), theirs, arguments())


def test_an_extremum_that_is_nan_has_a_gradient_of_nan_where_it_is_read() -> None:
    """As torch's: no element equals it. Not where its select takes the other branch."""
    op = fg.op(lambda x, y: fg.where(y > 0, fg.amax(x, -1, keepdims=True), 0))
    x = torch.tensor([[1.0, float("nan"), 2.0], [float("nan"), 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    (found,) = torch.autograd.grad(op(x, y).sum(), x)
    assert found[0].isnan().all()
    assert found[1].tolist() == [0, 0, 0]
    (found,) = torch.autograd.grad(fg.op(lambda x: fg.amax(x, -1))(x).sum(), x)
    assert found.isnan().all()


@pytest.mark.parametrize("mode", ["no gradients", "all", "some", "second", "jvp", "vmap"])
@pytest.mark.parametrize("name", GUARDED)
def test_the_reference_has_derivatives_of_what_selects_take(name: str, mode: str) -> None:
    """torch's automatic differentiation of it is what derived ops are compared with, in every order."""
    ours, theirs = GUARDED[name]
    given = arguments(ours)
    traced = fg.op(ours).trace(*(t.detach() for t in given))

    def meaning(*values: torch.Tensor) -> Any:
        found = reference(traced, dict(zip((o.name for o in traced.operands), values, strict=True)))
        return tuple(found) if len(found) > 1 else found[0]

    MODES[mode](meaning, theirs, given)


@pytest.mark.parametrize("name", ["extrema within", "a conjunction", "a product"])
def test_a_check_sees_nan_from_a_branch_that_is_not_taken(name: str) -> None:
    ours, theirs = GUARDED[name]
    given = arguments(ours)
    traced = fg.op(ours).trace(*(t.detach() for t in given))
    names = [operand.name for operand in traced.operands]
    results = theirs(*given)
    cotangents = {o.name: torch.ones_like(r) for o, r in zip(traced.outputs, results, strict=True)}
    (right,) = torch.autograd.grad(sum(r.sum() for r in results), given[:1])
    tensors = dict(zip(names, (t.detach() for t in given), strict=True))
    verify_gradients(traced, tensors, {}, {}, cotangents, {names[0]: right})
    wrong = torch.where(given[0].detach().mean(-1, keepdim=True) > 0.1, right, torch.nan)
    with pytest.raises(fg.CheckError, match="derived"):
        verify_gradients(traced, tensors, {}, {}, cotangents, {names[0]: wrong})


def test_a_cast_to_another_precision_hides_no_guard() -> None:
    """What passes through a cast to a half type comes back through casts of single precision."""
    declared = fg.op(lambda a, b: fg.softmax(fg.cast(chained(a, b)[0], "bfloat16"), -1) * b)
    a, b = arguments()
    along = draw(5, 7, seed=1)

    def theirs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        value = torchs_chained(a, b)[0]
        return torch.softmax(value + (value.detach().bfloat16().double() - value.detach()), -1) * b

    def derivatives(function: Function) -> tuple[torch.Tensor, ...]:
        (first,) = torch.autograd.grad(function(a, b), a, along, create_graph=True)
        (second,) = torch.autograd.grad(first, a, along.cos())
        return first, second, jvp(lambda a: function(a, b), (a.detach(),), (along,))[1]

    torch.testing.assert_close(derivatives(declared), derivatives(theirs), rtol=1e-5, atol=1e-5)


def test_what_guards_a_value_varies_along_none_of_its_own_axes() -> None:
    """A condition on elements of a row says nothing of the row's sum."""

    @fg.op
    def op(a: Any, b: Any) -> Any:
        mean = fg.mean(b, -1, keepdims=True)
        rows = fg.sum(a, -1, keepdims=True)
        return fg.where(mean > 0, fg.where(a > 0, rows * b, 0), 0)

    traced = op.trace(draw(3, 4), draw(3, 4))
    reduces, (output,) = traced.expand()
    (rows,) = [reduce for reduce in reduces if {ref.name for ref in refs(reduce.expr)} == {"a"}]
    assert guards(traced)[rows.ref] == [(output.expr.children[0], False)]


def test_what_is_multiplied_with_a_negated_sum_of_choices_is_chosen() -> None:
    """Forward mode of the backward of "chosen twice" along its argument alone has such a product."""
    x, y, z = (Ref(name, float64) for name in "xyz")
    zero = const(0, float64)
    choices = [apply("where", apply("gt", value, zero), value, zero) for value in (x, y)]
    product = -(choices[0] + choices[1]) * apply("log", z)
    found = simplify([product], TIDY)[product]
    assert has_guard(found)
    assert guards_of(found, lambda condition: True) == [
        (apply("logical_or", *(choice.children[0] for choice in choices)), False)
    ]


def test_a_value_without_its_derivative_is_no_choice() -> None:
    """What is kept for a branch is a select for derivatives alone: its conditions may be rounded otherwise later."""
    op = fg.op(lambda x, y: fg.where(y > 0, x * 2, fg.stop_gradient(x * 2)))
    x, y = draw(5), draw(5, seed=1)
    assert "?" not in op.emit(x, y).partition("extern")[2]
    (found,) = torch.autograd.grad(op(x, y).sum(), x)
    assert found.tolist() == [2 * float(value > 0) for value in y]


def test_gradients_of_one_value_in_two_precisions_add_up() -> None:
    """What passes through a cast to a half type comes back in single precision."""

    @fg.op
    def op(x: Any) -> Any:
        std = fg.std(x, -1, correction=1, keepdims=True)
        rounded = fg.cast(fg.cast(std, "bfloat16"), x.dtype)
        return fg.sigmoid(fg.erf(rounded) * fg.erf(rounded) + std)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        std = x.std(-1, keepdim=True)
        rounded = std + (std.detach().bfloat16().double() - std.detach())
        return torch.sigmoid(torch.erf(rounded) ** 2 + std)

    x = draw(6, 4)
    with fg.checked():  # which knows that a part of this is not in double precision
        found = torch.autograd.grad(op(x), x, torch.ones(6, 1, dtype=x.dtype), create_graph=True)[0]
        second = torch.autograd.grad(found, x, found.detach().cos())[0]
    expected = torch.autograd.grad(theirs(x), x, torch.ones(6, 1, dtype=x.dtype), create_graph=True)[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    expected = torch.autograd.grad(expected, x, found.detach().cos())[0]
    torch.testing.assert_close(second, expected, rtol=1e-5, atol=1e-5)

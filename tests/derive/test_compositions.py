"""Ops composed of ops: what was once wrong in some composition, and the class of programs that each belongs to.

Random programs draw all of this (tests/derive/test_programs.py); here stands what is known by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen import pipeline
from fusegen.inspect.passes import passes
from fusegen.run import evaluate
from tests.support.oracles import check_derivatives, check_same, draw, gradients, refused

pytestmark = pytest.mark.emulator

Function = Callable[..., Any]
N = 12


def norm(x: Any, *parameters: Any) -> Any:
    return fg.ops.layer_norm(x, (N,), *parameters)


def rms(x: Any) -> Any:
    return fg.ops.rms_norm(x, (N,), eps=1e-5)


def torchs_rms(x: Any) -> Any:
    return F.rms_norm(x, (N,), eps=1e-5)


COMPOSED: dict[str, tuple[Function, Function]] = {
    "layer_norm(x * 2)": (
        lambda x, w, b, m: norm(x * 2.0, w, b), lambda x, w, b, m: F.layer_norm(x * 2.0, (N,), w, b)
    ),
    "layer_norm twice": (
        lambda x, w, b, m: norm(norm(x)), lambda x, w, b, m: F.layer_norm(F.layer_norm(x, (N,)), (N,))
    ),
    "rms_norm, layer_norm": (
        lambda x, w, b, m: norm(rms(x), w, b), lambda x, w, b, m: F.layer_norm(torchs_rms(x), (N,), w, b)
    ),
    "layer_norm of a scaled product": (
        lambda x, w, b, m: norm((x @ m) * 0.5, w, b), lambda x, w, b, m: F.layer_norm((x @ m) * 0.5, (N,), w, b)
    ),
    "batch_norm(x * 2)": (
        lambda x, w, b, m: fg.ops.batch_norm(x * 2, None, None, w, b, training=True),
        lambda x, w, b, m: F.batch_norm(x * 2, None, None, w, b, training=True),
    ),
    "rms_norm twice": (lambda x, w, b, m: rms(rms(x * 2)), lambda x, w, b, m: torchs_rms(torchs_rms(x * 2))),
    "negated, rms_norm twice": (
        lambda x, w, b, m: rms(rms(-(x * 2))), lambda x, w, b, m: torchs_rms(torchs_rms(-(x * 2)))
    ),
    "one weight by rows and by columns": (
        lambda x, w, b, m: fg.sum(fg.linear(norm(fg.linear(x, m, b) @ m, w, b), m, b), -1),
        lambda x, w, b, m: F.linear(F.layer_norm(F.linear(x, m, b) @ m, (N,), w, b), m, b).sum(-1),
    ),
    "a softmax centered, written out": (
        lambda x, w, b, m: _centered(lambda: fg.softmax(fg.ops.silu(norm(x, w, b) + x), -1)),
        lambda x, w, b, m: _torch_centered(torch.softmax(F.silu(F.layer_norm(x, (N,), w, b) + x), -1)),
    ),
    "a norm centered twice, written out": (
        lambda x, w, b, m: _centered(lambda: _centered(lambda: norm(x, w, b)) * w),
        lambda x, w, b, m: _torch_centered(_torch_centered(F.layer_norm(x, (N,), w, b)) * w),
    ),
}  # fmt: skip


def _centered(y: Function) -> Any:
    """Every use written out anew."""
    return y() - fg.mean(y(), -1, keepdims=True)


def _torch_centered(y: torch.Tensor) -> torch.Tensor:
    return y - y.mean(-1, keepdim=True)


def arguments() -> tuple[torch.Tensor, ...]:
    return draw(5, N, seed=1), draw(N, seed=2), draw(N, seed=3), draw(N, N, seed=4)


@pytest.mark.parametrize("name", COMPOSED)
def test_without_gradients(name: str) -> None:
    ours, theirs = COMPOSED[name]
    given = [tensor.detach() for tensor in arguments()]
    torch.testing.assert_close(fg.op(ours)(*given), theirs(*given), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", COMPOSED)
def test_with_all_gradients(name: str) -> None:
    ours, theirs = COMPOSED[name]
    check_same(fg.op(ours), theirs, arguments(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["layer_norm(x * 2)", "rms_norm twice", "a norm centered twice, written out"])
def test_forward_mode_and_vmap(name: str) -> None:
    ours, theirs = COMPOSED[name]
    given = [tensor.detach() for tensor in arguments()]
    x, rest = given[0], given[1:]
    results = [
        torch.func.jvp(lambda x, f=f: f(x, *rest), (x,), (draw(5, N, seed=7).detach(),)) for f in (fg.op(ours), theirs)
    ]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)
    many = torch.stack([x, x + 1, x * 3])
    results = [torch.func.vmap(lambda x, f=f: f(x, *rest))(many) for f in (fg.op(ours), theirs)]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


# -- squared deviations beside other reductions of the same elements ---------------------------------------------------

BESIDE: dict[str, tuple[Function, Function]] = {
    "sum of squares": (lambda x, a: fg.sum(x * x, a), lambda x, a: (x * x).sum(a)),
    "mean": (lambda x, a: fg.mean(x, a), lambda x, a: x.mean(a)),
    "mean of another": (lambda x, a: fg.mean(fg.abs(x - 1), a), lambda x, a: (x - 1).abs().mean(a)),
    "amax": (lambda x, a: fg.amax(fg.abs(x), a), lambda x, a: x.abs().amax(a)),
    "amin": (lambda x, a: fg.amin(fg.exp(x), a), lambda x, a: x.exp().amin(a)),
    "prod": (lambda x, a: fg.prod(1 + x / 8, a), lambda x, a: (1 + x / 8).prod(a)),
    "norm": (lambda x, a: fg.norm(x, axis=a), lambda x, a: torch.linalg.vector_norm(x, dim=a)),
    "logsumexp": (lambda x, a: fg.logsumexp(x, a), lambda x, a: x.logsumexp(a)),
    "any": (lambda x, a: fg.where(fg.any(x > 1.9, a), 1.0, 0.0), lambda x, a: (x > 1.9).any(a).double()),
    "argmax": (lambda x, a: fg.argmax(x, a) * 1.0, lambda x, a: x.argmax(a).double()),
    "var of another": (lambda x, a: fg.var(x * x, a), lambda x, a: (x * x).var(a)),
    "std": (lambda x, a: fg.std(x * 3, a), lambda x, a: (x * 3).std(a)),
}  # fmt: skip
# Rows by a few threads, by a block and by several; strided rows; a thread a result.
SHAPES = {"short rows": ((5, 4), -1), "rows": ((6, 300), -1), "columns": ((40, 6), 0), "strided rows": ((7, 3, 64), 1)}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_variance_beside_another_reduction(shape: str) -> None:
    (sizes, axis), failed = SHAPES[shape], []
    for name, (ours, theirs) in BESIDE.items():
        x = draw(*sizes, seed=5)
        pair = fg.op(lambda x, ours=ours: fg.var(x, axis) + ours(x, axis))
        expected = x.var(axis) + theirs(x, axis)
        with torch.no_grad():
            found = pair(x)
        kept = pair(x)
        for which, result in (("alone", found), ("with gradients", kept)):
            if not torch.allclose(result, expected, rtol=1e-9, atol=1e-11):
                failed.append(f"{name}, {which}")
    assert failed == []


def test_every_pair_of_reductions_in_every_way_to_fuse_them() -> None:
    x = draw(5, 7, seed=6).detach()
    everything = {**BESIDE, "var": (lambda x, a: fg.var(x, a), lambda x, a: x.var(a))}
    failed = []
    for first, (ours, theirs) in everything.items():
        for second, (others, their_others) in everything.items():
            op = fg.op(lambda x, f=ours, g=others: f(x, -1) * 2 + g(x, -1)).trace(x)
            expected = theirs(x, -1) * 2 + their_others(x, -1)
            for stage, run in evaluate.stages(op):
                (found,) = run(op, {"x": x}, {}, {})
                if not torch.allclose(found, expected, rtol=1e-10, atol=1e-12):
                    failed.append(f"{first}, {second}: {stage}")
    assert failed == []


@pytest.mark.parametrize("axes", [(-1, -1), (-1, 0), (0, -1)], ids=str)
def test_every_reduction_feeds_every_other_in_every_way_to_fuse_them(axes: tuple[int, int]) -> None:
    """Along the same axis, and along the one that the first has left."""
    x, (inner, outer) = draw(5, 7, seed=6).detach(), axes
    everything = {**BESIDE, "var": (lambda x, a: fg.var(x, a), lambda x, a: x.var(a))}
    failed = []
    for first, (ours, theirs) in everything.items():
        for second, (others, their_others) in everything.items():

            def fed(x: Any, f: Function = ours, g: Function = others) -> Any:
                total = f(x, inner)
                return g(x * (fg.expand_dims(total, -1) if inner else total) / 4 + x, outer)

            op = fg.op(fed).trace(x)
            expected = their_others(x * theirs(x, inner).unsqueeze(inner) / 4 + x, outer)
            for stage, run in evaluate.stages(op):
                (found,) = run(op, {"x": x}, {}, {})
                if not torch.allclose(found, expected, rtol=1e-10, atol=1e-12):
                    failed.append(f"{first}, {second}: {stage}")
    assert failed == []


# -- the branch that is not taken --------------------------------------------------------------------------------------


@fg.op
def sphere(o: fg.Tensor, d: fg.Tensor) -> fg.Tensor:
    """A ray's length to a sphere and more, where it hits: long enough to be cut, with sums that lack the axis."""
    a, b = fg.sum(d * d, -1), fg.sum(o * d, -1)
    q = b * b - a * (fg.sum(o * o, -1) - 1)
    return fg.where(q > 0, fg.sin(fg.sqrt(q)) * fg.exp(-a) * fg.cos(b) + fg.tanh(b * q), 0)


@fg.op
def masked(x: fg.Tensor, mask: fg.Tensor) -> fg.Tensor:
    """What is masked along an axis that the root lacks."""
    s = fg.sum(x, -1, keepdims=True)
    root = fg.sqrt(s) * fg.log(s)
    return fg.where(mask, fg.sin(root) * x + fg.cos(root) * fg.tanh(root * x) + fg.exp(-root) * root, 0)


@fg.op
def either(x: fg.Tensor) -> fg.Tensor:
    """Two conditions, and nothing where neither holds."""
    s = fg.sum(x, -1)
    root = fg.sqrt(s)
    long = fg.sin(root) * fg.exp(-root) + fg.cos(root) * fg.tanh(root) + root * fg.log(s)
    return fg.where(s > 1, long, 0) + fg.where(s > 2, long * root, 0)


NOT_TAKEN: dict[str, tuple[fg.FusedOp, tuple[torch.Tensor, ...]]] = {
    "sphere": (sphere, (torch.tensor([[3.0, 0, 0]]), torch.tensor([[0.0, 1, 0]]))),
    "masked": (masked, (torch.tensor([[-3.0, 1, 0]]), torch.zeros(1, 3, dtype=torch.bool))),
    "either": (either, (torch.tensor([[-3.0, 1, 0]]),)),
}


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_no_derivative_comes_from_the_branch_not_taken(name: str) -> None:
    op, given = NOT_TAKEN[name]
    x = given[0].double().requires_grad_()
    rest = [tensor.double() if tensor.is_floating_point() else tensor for tensor in given[1:]]
    (first,) = torch.autograd.grad(op(x, *rest).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * first + first).sum(), x)
    assert torch.equal(first, torch.zeros_like(x)) and torch.equal(second, torch.zeros_like(x))
    _, tangent = torch.func.jvp(lambda x: op(x, *rest), (x.detach(),), (torch.ones_like(x),))
    assert torch.equal(tangent, torch.zeros_like(tangent))


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_derivatives_where_the_branch_is_taken(name: str) -> None:
    op, given = NOT_TAKEN[name]
    x = (given[0].double().abs() + 0.7).requires_grad_()
    rest = [tensor.double() * 0.3 + 0.5 if tensor.is_floating_point() else ~tensor for tensor in given[1:]]
    assert torch.autograd.gradcheck(lambda x: op(x, *rest), (x,))
    assert torch.autograd.gradgradcheck(lambda x: op(x, *rest), (x,))


# -- an extremum of what is computed -----------------------------------------------------------------------------------


def test_an_extremum_is_compared_with_elements_of_its_own_kernel() -> None:
    # mish is computed as one thing where it is written and as another where its derivative is: in the last bit they
    # differ, and an element that is its row's maximum in one of them only would be nobody's.
    @fg.op
    def spread(x: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        y = fg.ops.mish(x)
        top = fg.amax(y, -1, keepdims=True)
        return fg.exp(y - top), top

    x = draw(64, 9, seed=8)
    check_same(spread, lambda x: (torch.exp(F.mish(x) - F.mish(x).amax(-1, True)), F.mish(x).amax(-1, True)), (x,))
    training = pipeline.train_op(spread.trace(x), ("x",))
    assert "top" not in {operand.name for operand in training.backward([0, 1]).operands}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_maximum_that_is_kept_finds_its_elements_again(dtype: torch.dtype) -> None:
    """Of sums a backward may read the result in their place. A half is rounded there, and none would be the maximum."""

    @fg.op
    def largest(x: fg.Tensor, y: fg.Tensor, z: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        v = x + y + z
        return v, fg.amax(v, -1)

    arguments = [draw(64, 48, seed=seed).to(dtype).requires_grad_() for seed in range(3)]
    _, top = largest(*arguments)
    cotangent = draw(64, seed=4).to(dtype)
    for gradient in torch.autograd.grad(top, arguments, cotangent):
        torch.testing.assert_close(gradient.sum(-1), cotangent)  # shared by those that are as large
    training = pipeline.train_op(largest.trace(*arguments), ("x", "y", "z"))
    found = {operand.name for operand in training.backward([0, 1]).operands}
    assert ("top" in found) is (dtype is torch.float32)


def test_a_maximum_of_one_branch_is_taken_again() -> None:
    """What is kept for one branch of a select is zero where the other is taken: nobody's maximum."""

    def root(xp: Any, x: Any, y: Any, c: Any) -> Any:
        top = xp.amax(x * y + 0.1, -1)
        return xp.where(c > 0, xp.log(top) * xp.sqrt(top), 0.0)

    x, y = (draw(9, 7, seed=seed).double().requires_grad_() for seed in (1, 2))
    c = draw(9, seed=3).double()
    op = fg.op(functools.partial(root, fg), name="root")
    check_same(op, functools.partial(root, torch), (x, y, c))
    positive = [tensor.detach().abs().add(0.5).requires_grad_() for tensor in (x, y)]
    assert torch.autograd.gradgradcheck(lambda x, y: op(x, y, c), positive)


# -- shapes, inside as outside -----------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Function, tuple[torch.Tensor, ...], str]] = {
    "layer_norm": (lambda x: fg.ops.layer_norm(x, (7,)), (torch.ones(3, 5),), "[7] for an input of shape [3, 5]"),
    "rms_norm's weight": (lambda x, w: fg.ops.rms_norm(x, (5,), w), (torch.ones(3, 5), torch.ones(1)), "shape [1]"),
    "cross_entropy": (
        lambda x, t: fg.ops.cross_entropy(x * 2, t), (torch.ones(6, 4), torch.tensor([1])), "shape [1]"
    ),
    "batch_norm's weight": (
        lambda x, w: fg.ops.batch_norm(x, None, None, w, training=True), (torch.ones(3, 5), torch.ones(3)), "shape [3]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_shapes_are_refused_inside_an_op(name: str) -> None:
    function, given, text = WRONG[name]
    error = refused(lambda: fg.op(function)(*given))
    assert isinstance(error, fg.ShapeError) and text in str(error)


def test_a_declaration_that_looks_at_sizes_is_asked_for_each_shape() -> None:
    @fg.op
    def five(x: fg.Tensor) -> fg.Tensor:
        return fg.ops.layer_norm(x * 2, (5,))

    assert five(torch.ones(3, 5)).shape == (3, 5)
    error = refused(lambda: five(torch.ones(3, 6)))
    assert "[5] for an input of shape [3, 6]" in str(error)
    assert five(torch.ones(4, 5)).shape == (4, 5)


def test_a_part_of_size_one_broadcasts() -> None:
    @fg.op
    def halved(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        a, b = fg.split(x, 2)
        return a * y + b

    def torchs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return a * y + b

    for columns in (2, 6, 2):
        x, y = draw(3, columns, seed=1), draw(3, 5 if columns == 2 else columns // 2, seed=2)
        assert all(map(torch.allclose, gradients(halved, (x, y))[1], gradients(torchs, (x, y))[1]))


# -- the order of factors ----------------------------------------------------------------------------------------------


def length(x: Any) -> Any:
    """The Euclidean length of rows whose squares have no room in the dtype."""
    top = fg.amax(fg.abs(x), -1, keepdims=True)
    return fg.sqrt(fg.sum((x / top) * (x / top), -1, keepdims=True)) * top


def cubed(x: Any) -> Any:
    y = x / fg.amax(fg.abs(x), -1, keepdims=True)
    return y * y * y


def scaled(x: Any, w: Any, s: Any) -> Any:
    return x * w * s, fg.sum(x * w * s, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_what_is_written_to_fit_fits(dtype: torch.dtype, size: float) -> None:
    x = (draw(4, 64, low=0.1, seed=9).detach() * size).to(dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    eps = torch.finfo(dtype).eps
    expected = exact.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(fg.op(length)(x).double(), expected, rtol=4 * eps, atol=0)
    found, truth = (torch.autograd.grad(y.sum(), a)[0] for y, a in ((fg.op(length)(x), x), (expected, exact)))
    torch.testing.assert_close(found.double(), truth, rtol=0.02 if dtype is torch.bfloat16 else 1e-5, atol=0)
    ratio = exact / exact.abs().amax(-1, keepdim=True)
    torch.testing.assert_close(fg.op(cubed)(x).double(), ratio**3, rtol=8 * eps, atol=1e-9)


@pytest.mark.parametrize("x, w, s", [(1e30, 1e-30, 1e-20), (1e-30, 1e30, 1e20)])
def test_factors_of_a_row_stay_in_their_order(x: float, w: float, s: float) -> None:
    # w * s is nothing, or infinite.
    given = [draw(4, 64).detach() * x, torch.full((4, 1), w), torch.full((4, 1), s)]
    given = [tensor.float() for tensor in given]
    expected = given[0].double() * given[1] * given[2]
    for found, truth in zip(fg.op(scaled)(*given), (expected, expected.sum(-1)), strict=True):
        torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-5 * float(truth.abs().max()))


def test_blocks_of_one_result_that_do_not_stand_together() -> None:
    """Tangents that are zero come last: behind other results, before a matrix product."""

    def op(x: Any, y: Any, w: Any) -> Any:
        return fg.concat([fg.where(x > 0, 0.5, 1.0), x], -1), fg.cos(y), fg.cos(y) @ w

    def same(x: Any, y: Any, w: Any) -> Any:
        return torch.cat([torch.where(x > 0, 0.5, 1.0).double(), x], -1), y.cos(), y.cos() @ w

    x, y, w = draw(4, 6).detach(), draw(4, 3, seed=1).detach(), draw(3, 5, seed=2).detach()
    tangents = torch.ones_like(x), torch.ones_like(y)
    found, expected = (
        torch.func.jvp(lambda x, y, f=f: f(x, y, w), (x, y), tangents)[1] for f in (fg.op(op), same)
    )  # fmt: skip
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_value_that_is_two_results_stays_a_scalar_of_each_lane(axis: int) -> None:
    """What another result reads is named like its own result, and is no vector where reductions end before it."""

    def twice(x: Any) -> Any:
        same = fg.softmax(fg.sin(x), axis)
        return same, same

    x = draw(3, 64).detach().bfloat16()
    expected = torch.softmax(x.float().sin(), axis)
    for found in fg.op(twice)(x):
        torch.testing.assert_close(found.float(), expected, rtol=2**-7, atol=1e-6)


def test_parts_of_a_sum_are_counted_by_the_kernel_that_left_them() -> None:
    """Another kernel of rows may run before the one that puts them together; it has its own number of blocks."""

    def function(x: Any, y: Any, z: Any) -> Any:
        return fg.sum(fg.softmax(x, -1) * fg.log_softmax(y, -1)), fg.ops.group_norm(z, 5, eps=0.01)

    def theirs(x: Any, y: Any, z: Any) -> Any:
        return (F.softmax(x, -1) * F.log_softmax(y, -1)).sum(), F.group_norm(z, 5, eps=0.01)

    op = fg.op(function)
    given = [draw(8, 12).detach(), draw(8, 12, seed=1).detach(), draw(3, 5, 8, 12, seed=2).detach()]
    along = [t.cos() for t in given]
    for wanted in ([0, 2], [1, 2], [0, 1, 2]):
        found, expected = (
            torch.func.jvp(
                lambda *values, call=call, wanted=wanted: call(
                    *(values[wanted.index(i)] if i in wanted else t for i, t in enumerate(given))
                ),
                tuple(given[i] for i in wanted), tuple(along[i] for i in wanted),
            )
            for call in (op, theirs)
        )  # fmt: skip
        torch.testing.assert_close(found, expected)
    planned = passes(op, (given[0], *(t.clone().requires_grad_() for t in given[1:])), {}, "tangent")[1].kernels
    left = {o.name: k.launch.partial_sizes["groups"] for k in planned for o in k.kernel.partials}
    (last,) = (k for k in planned if left.keys() & {o.name for o in k.kernel.tensors})
    assert prod(last.launch.sizes) == prod(left.values()) * 12


# -- a choice between equal values -------------------------------------------------------------------------------------

# The condition alone varies along the axis that is reduced, or that a gradient sums over.
EITHER_WAY: dict[str, tuple[Function, Function]] = {
    "of numbers": (lambda x, y: fg.sum(fg.where(y > 0, 7.0, 7.0), 0) * x, lambda x, y: 7.0 * len(y) * x),
    "of integers": (lambda x, y: fg.sum(fg.where(y > 0, 7, 7), 0) * x, lambda x, y: 7 * len(y) * x),
    "of rows": (lambda x, y: fg.sum(fg.sin(fg.where(y > 0, x[1], x[1])), 0), lambda x, y: x[1].sin() * len(y)),
    "of sums": (
        lambda x, y: fg.var(fg.where(y > 0, fg.sum(x, 0), fg.sum(x, 0)), 0, correction=0) + x,
        lambda x, y: 0 * y.sum(0) + x,
    ),
    "a product of them": (
        lambda x, y: fg.prod(fg.where(y > 0, 0.5, 0.5) * fg.sum(x, 0), 0), lambda x, y: (x.sum(0) * 0.5) ** len(y)
    ),
    "within another choice": (
        lambda x, y: fg.sum(fg.where(x[0] > 0, x[1], fg.where(y > 0, fg.where(x[0] > 0, x[2], x[3]), x[3])), 0),
        lambda x, y: torch.where(x[0] > 0, x[1], x[3]) * len(y),
    ),
    "the other way known": (
        lambda x, y: fg.sum(fg.where(x[0] > 0, x[1], fg.sin(fg.where(x[0] > 0, fg.sin(y), x[2]))), 0),
        lambda x, y: torch.where(x[0] > 0, x[1], x[2].sin()) * len(y),
    ),
    "of places": (
        lambda x, y: fg.sum(fg.sin(fg.take_along_axis(x, fg.where(y > 0, 4, 4), 0)), 0),
        lambda x, y: x[4].sin() * len(y),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EITHER_WAY)
def test_a_choice_between_equal_values_keeps_the_axes_of_its_condition(name: str) -> None:
    ours, theirs = EITHER_WAY[name]
    x, y = draw(5, 4, seed=1), draw(3, 4, seed=2)
    with torch.no_grad():
        torch.testing.assert_close(fg.op(ours)(x, y), theirs(x, y))
    check_same(fg.op(ours), lambda x, y: theirs(x, y) + 0 * y.sum(0), (x, y))
    check_derivatives(fg.op(ours), (x, y))


@pytest.mark.parametrize("axis", [-1, None])
def test_what_told_a_choice_between_equal_values_is_read_by_nobody(axis: int | None) -> None:
    """A reduction that only its condition reads goes with it."""

    def chosen(x: Any, y: Any) -> Any:
        return fg.where(fg.sum(x, axis, keepdims=True) > 0, y, y), fg.amax(y, 0)

    x, y = draw(3, N, seed=1), draw(3, N, seed=2)
    with torch.no_grad():
        torch.testing.assert_close(fg.op(chosen)(x, y), (y, y.amax(0)))
    check_same(fg.op(chosen), lambda x, y: (y + 0 * x, y.amax(0)), (x, y))

"""Ops in torch's autograd: derivatives of every order, what is asked for and what is kept, what is refused."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import fusegen as fg
from fusegen import pipeline
from fusegen.core.ir import Ref, const, refs
from fusegen.core.text import expr_text
from fusegen.declare.table import apply
from fusegen.derive.simplify import TIDY, simplify
from fusegen.derive.symbolic import partials
from tests.support import oracles
from tests.support.call_paths import DEVICE
from tests.support.declarations import lerp, norm


@fg.op
def cell(gates, c0):  # type: ignore[no-untyped-def]
    i, f, g, o = fg.split(gates, 4)
    c = c0 * fg.sigmoid(f) + fg.sigmoid(i) * fg.tanh(g)
    return fg.tanh(c) * fg.sigmoid(o), c


@fg.op
def mixture(x, y):  # type: ignore[no-untyped-def]
    return fg.where(x > y, fg.exp(-x * x), fg.sin(y)) * fg.softplus(x) + fg.log1p(y * y), fg.hypot(x, y + 3)


leaves = functools.partial(oracles.leaves, seed=0)

CASES = {
    "lerp": (lerp, [(2, 3), (3,), (2, 1)]),
    "lerp, other ranks": (lerp, [(2, 3, 4), (2, 2, 3, 4), ()]),
    "cell": (cell, [(3, 8), (3, 2)]),
    "norm": (norm, [(3, 4), (4,)]),
    "mixture": (mixture, [(4,), (3, 1)]),
}


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivatives_against_finite_differences(name: str) -> None:
    op, shapes = CASES[name]
    inputs = leaves(*shapes)
    assert gradcheck(op, inputs, check_batched_grad=False)
    assert gradgradcheck(op, inputs)


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)), ids=str)
def test_any_subset_of_gradients(wanted: tuple[bool, ...]) -> None:
    inputs = [t.detach().requires_grad_(w) for t, w in zip(leaves((4, 5), (5,), (4, 1)), wanted, strict=True)]
    result = lerp(*inputs)
    assert result.requires_grad == any(wanted)
    if not any(wanted):
        return
    cotangent = torch.randn_like(result)
    asked = [t for t in inputs if t.requires_grad]
    ours = torch.autograd.grad(result, asked, cotangent)
    x, y, w = inputs
    theirs = torch.autograd.grad(x + w * (y - x), asked, cotangent)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_nothing_flows_through_a_comparison() -> None:
    """As in torch: what floats are made of it needs no gradient, and what has a step in it has one of zeros."""
    op = fg.op(lambda x, y: ((x > 0).to(torch.float64), torch.floor(x) * y, fg.index(x, 0) * 0.5))
    x, y = (torch.randn(4, dtype=torch.float64, device=DEVICE, requires_grad=True) for _ in range(2))
    for _ in range(2):  # the second call takes what the first has planned
        above, whole, places = op(x, y)
        assert (above.requires_grad, whole.requires_grad, places.requires_grad) == (False, True, False)
        d_x, d_y = torch.autograd.grad(whole, (x, y), torch.ones_like(whole))
        torch.testing.assert_close(d_x, torch.zeros_like(x))
        torch.testing.assert_close(d_y, torch.floor(x.detach()))


def test_unwanted_gradients_cost_nothing() -> None:
    op = lerp.backward(*leaves((4, 5), (5,), (4, 1)), wanted=("x",))
    assert [o.name for o in op.outputs] == ["d_x"]
    assert "y" not in {ref.name for output in op.outputs for ref in refs(output.expr)}


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
def test_results_without_a_cotangent(used: tuple[int, ...]) -> None:
    x, y = leaves((3, 4), (4,))
    results = mixture(x, y)
    expected = (
        torch.where(x > y, torch.exp(-x * x), torch.sin(y)) * torch.nn.functional.softplus(x) + torch.log1p(y * y),
        torch.hypot(x, y + 3),
    )
    ours = torch.autograd.grad(sum(results[i].sum() for i in used), (x, y))
    theirs = torch.autograd.grad(sum(expected[i].sum() for i in used), (x, y))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_third_derivatives_and_beyond() -> None:
    op = fg.op(lambda x: fg.exp(2 * x) * fg.sin(x), name="waves")
    (x,) = leaves((6,))
    ours, theirs = op(x), torch.exp(2 * x) * torch.sin(x)
    for _ in range(4):
        (ours,) = torch.autograd.grad(ours.sum(), x, create_graph=True)
        (theirs,) = torch.autograd.grad(theirs.sum(), x, create_graph=True)
        torch.testing.assert_close(ours, theirs)


def test_the_graph_can_be_walked_twice_only_if_it_is_retained() -> None:
    (x,) = leaves((3,))
    out = lerp(x, x * 2, 0.5)
    first = torch.autograd.grad(out.sum(), x, retain_graph=True)
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], first[0])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(out.sum(), x)


def test_no_graph_where_torch_makes_none() -> None:
    (x,) = leaves((3,))
    with torch.no_grad():
        assert not lerp(x, x, 0.5).requires_grad
    with torch.inference_mode():
        assert lerp(x, x, 0.5).is_inference()
    assert not lerp(x.detach(), x.detach(), 0.5).requires_grad
    with torch.enable_grad():
        assert lerp(x, x, 0.5).requires_grad


def test_gradients_accumulate_and_arguments_may_be_the_same_tensor() -> None:
    (x,) = leaves((3,))
    lerp(x, x * x, x).sum().backward()
    lerp(x, x * x, x).sum().backward()
    expected = torch.autograd.grad((x + x * (x * x - x)).sum(), x)[0]
    torch.testing.assert_close(x.grad, 2 * expected)


def test_results_are_used_again_by_ops_and_by_torch() -> None:
    x, y = leaves((3, 4), (4,))

    def network(first: Any, second: Any) -> torch.Tensor:
        h = first(x, y, 0.25)
        return (second(h) * h + torch.nn.functional.gelu(h)).sum()

    square = fg.op(lambda h: h * h, name="squares")
    ours = torch.autograd.grad(network(lerp, square), (x, y))
    theirs = torch.autograd.grad(network(torch.lerp, torch.square), (x, y))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_integer_arguments_and_results_have_no_gradient() -> None:
    @fg.op
    def scaled(x, n):  # type: ignore[no-untyped-def]
        return x * n, n + 1, x > 0, n * 0.5

    (x,) = leaves((3,))
    n = torch.tensor([1, 2, 3])
    compiled = torch.compile(lambda x, n: scaled(x, n), backend="aot_eager", fullgraph=True)
    for call in (scaled, scaled, scaled.overload(x, n), compiled):
        results = call(x, n)
        assert [r.requires_grad for r in results] == [True, False, False, False]
        (gradient,) = torch.autograd.grad(results[0].sum(), x)
        assert gradient.tolist() == [1, 2, 3]
    with forward_ad.dual_level():
        results = scaled(forward_ad.make_dual(x.detach(), x.detach()), n)
        assert [forward_ad.unpack_dual(r).tangent is None for r in results] == [False, True, True, True]


def test_a_declared_gradient_counts_where_none_would_be_derived() -> None:
    @fg.op
    def rounded(x):  # type: ignore[no-untyped-def]
        return fg.stop_gradient(fg.round(x)), x * 1.0

    rounded.gradient(lambda d_rounded, d_same, x: d_rounded * 2 + d_same)
    (x,) = leaves((3,))
    for call in (rounded, rounded.overload(x)):
        first, second = call(x)
        assert first.requires_grad and second.requires_grad
        assert torch.autograd.grad(first.sum() + second.sum(), x)[0].tolist() == [3, 3, 3]


def test_a_gradient_has_the_dtype_of_its_argument() -> None:
    x = torch.randn(4, dtype=torch.float16).requires_grad_()
    y = torch.randn(3, 1, dtype=torch.float32).requires_grad_()
    w = torch.randn(3, 4, dtype=torch.float64).requires_grad_()
    gradients = torch.autograd.grad(lerp(x, y, w).sum(), (x, y, w))
    theirs = torch.autograd.grad((x + w * (y - x)).sum(), (x, y, w))
    for a, b in zip(gradients, theirs, strict=True):
        assert a.dtype is b.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)


def test_a_constant_result_has_a_gradient_of_zeros() -> None:
    for body in (fg.floor, fg.sign, lambda x: 0 * fg.round(x)):
        (x,) = leaves((2, 3))
        (gradient,) = torch.autograd.grad(fg.op(lambda x, _b=body: _b(x), name="steps")(x).sum(), x)
        assert torch.equal(gradient, torch.zeros(2, 3))


def test_a_derivative_reads_as_one_would_write_it() -> None:
    x = Ref("x", fg.float32)
    zero = apply("eq", x, const(0, fg.float32))
    half = apply("where", zero, const(0, fg.float32), const(0.5, fg.float32))
    root = apply("where", zero, const(1, fg.float32), half / apply("sqrt", x))
    normal = apply("exp", -apply("powi", 0.7071067811865476 * x, detail=2))
    found = [expr_text(simplify([expr], TIDY)[expr]) for expr in (root, partials(normal, [x])[x])]
    assert found == ["where(x == 0, 1, 0.5 / sqrt(x))", "-(x * exp(-(0.7071067811865476 * x)^2))"]


def test_stop_gradient() -> None:
    op = fg.op(lambda x, y: x * fg.stop_gradient(y * x) + fg.stop_gradient(y), name="stopped")
    x, y = leaves((3,), (3,))
    gx, gy = torch.autograd.grad(op(x, y).sum(), (x, y), allow_unused=True)
    torch.testing.assert_close(gx, (x * y).detach())
    assert gy is None  # as of y.detach()


# -- a gradient of one's own -----------------------------------------------------------------------------------------


def test_a_straight_through_estimator() -> None:
    @fg.op
    def rounded(x):  # type: ignore[no-untyped-def]
        return fg.round(x)

    @rounded.gradient
    def _(d_out, x):  # type: ignore[no-untyped-def]
        return fg.where(fg.abs(x) < 1, d_out, 0)

    x = torch.tensor([-2.0, -0.4, 0.6, 3.0], requires_grad=True)
    out = rounded(x)
    assert out.tolist() == [-2, 0, 1, 3]
    (gradient,) = torch.autograd.grad(out, x, torch.tensor([1.0, 2, 3, 4]))
    assert gradient.tolist() == [0, 2, 3, 0]


def test_an_overridden_gradient_is_summed_over_broadcasts_and_differentiated_again() -> None:
    @fg.op
    def product(x, y, *, scale=2.0):  # type: ignore[no-untyped-def]
        return scale * x * y, x + y

    @product.gradient
    def _(d_product, d_sum, x, y, *, scale):  # type: ignore[no-untyped-def]
        return scale * d_product * y + d_sum, scale * d_product * x + d_sum

    inputs = leaves((3, 4), (4,))
    assert gradcheck(lambda x, y: product(x, y, scale=3.0), inputs)
    assert gradgradcheck(lambda x, y: product(x, y, scale=3.0), inputs)
    (gradient,) = torch.autograd.grad(product(*inputs)[1].sum(), inputs[1])
    assert gradient.tolist() == [3.0] * 4


def test_an_overridden_gradient_whose_dimensions_are_in_another_order() -> None:
    """Its axes and the forward's are one, under whatever names each trace gave them."""

    @fg.op
    def sharp(x, w):  # type: ignore[no-untyped-def]
        return fg.round(x @ w)

    @sharp.gradient
    def _(d_out, x, w):  # type: ignore[no-untyped-def]
        return d_out @ w.mT, x.mT @ d_out

    x, w = leaves((3, 4), (4, 5))
    cotangent = torch.randn(3, 5, dtype=torch.float64)
    for wanted in ((x, w), (x,), (w,)):
        found = torch.autograd.grad(sharp(x, w), wanted, cotangent)
        torch.testing.assert_close(found, torch.autograd.grad(x @ w, wanted, cotangent))
    single = torch.func.grad(lambda x, w: (sharp(x, w) * cotangent).sum(), argnums=(0, 1))
    found = torch.func.vmap(single, in_dims=(0, None))(torch.stack([x, 2 * x]), w)
    torch.testing.assert_close(found[1], torch.stack([x.mT @ cotangent, 2 * x.mT @ cotangent]))


def test_an_overridden_gradient_of_a_packed_argument() -> None:
    @fg.op
    def halves(x):  # type: ignore[no-untyped-def]
        a, b = fg.split(x, 2, -1)
        return a * b

    halves.gradient(lambda d_out, x: fg.exp(x))
    (x,) = leaves((3, 4))
    torch.testing.assert_close(torch.autograd.grad(halves(x).sum(), x)[0], x.exp())


def test_an_overridden_gradient_that_does_not_vary() -> None:
    def step(x, y, *, scale=1.0):  # type: ignore[no-untyped-def]
        return fg.floor(x) * scale + y

    constant, along_rows = fg.op(step, name="constant"), fg.op(step, name="along_rows")
    constant.gradient(lambda d_out, x, y, scale: (2.0, d_out))
    along_rows.gradient(lambda d_out, x, y, scale: (fg.mean(d_out, 1, keepdims=True), None))
    x, y = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    cotangent = torch.randn(3, 4)
    rows = cotangent.mean(1, keepdim=True).expand(3, 4)
    for op, expected in ((constant, (torch.full((3, 4), 2.0), cotangent)), (along_rows, (rows, torch.zeros(3, 4)))):
        compiled = torch.compile(lambda x, y, op=op: op(x, y), fullgraph=True, backend="aot_eager")
        for function in (op, op, compiled):
            torch.testing.assert_close(torch.autograd.grad(function(x, y), (x, y), cotangent), expected)
    found = torch.func.vmap(lambda x, y, c: torch.func.vjp(constant, x, y)[1](c))(x, y, cotangent)
    torch.testing.assert_close(found, (torch.full((3, 4), 2.0), cotangent))


def test_wrong_overrides_are_explained() -> None:
    op = fg.op(lambda x, y: x * y, name="wrong")
    op.gradient(lambda d_out, x, y: d_out * y)
    x, y = leaves((3,), (3,))
    with pytest.raises(fg.DerivativeError, match="one for each tensor argument: x, y"):
        op(x, y).sum().backward()
    op.gradient(lambda d_out, x: d_out)
    with pytest.raises(fg.DerivativeError, match=r"d_out, x\): too many positional.*\n.*expected: \(d_out, x, y\)"):
        op(x, y).sum().backward()
    outer = fg.op(lambda x, y: op(x, y) + 1, name="outer")
    with pytest.raises(fg.DerivativeError, match=r"expected: \(d_out, x, y\)"):
        outer(x, y)
    with pytest.raises(fg.DeclarationError, match="for an op that other ops call, which have been traced"):
        op.gradient(lambda d_out, x, y: (d_out * y, d_out * x))


# -- memory ----------------------------------------------------------------------------------------------------------


def saved(op: Any, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What the graph holds on to."""
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        op(*inputs)
    return kept


def test_training_keeps_what_the_backward_reads_and_no_copies() -> None:
    x, y, w = leaves((40, 50), (40, 50), (50,))
    addresses = {t.data_ptr() for t in (x, y, w)}
    assert {t.data_ptr() for t in saved(lerp, x, y, w)} <= addresses
    kept = saved(norm, x, w)
    assert sum(t.numel() for t in kept if t.data_ptr() not in addresses) <= 40, "one number a row"
    assert not saved(fg.op(lambda x: 3 * x + 1, name="affine"), x), "a linear op's gradient reads nothing"
    third = w.detach().requires_grad_()
    assert third.data_ptr() not in {t.data_ptr() for t in saved(lerp, x.detach(), y.detach(), third)}, "not by itself"


def test_a_byte_is_kept_where_the_backward_only_asks_which_branch_was_taken() -> None:
    op = fg.op(lambda x: fg.clamp(x - 0.25, -1, 1) * 3, name="bent")
    x = torch.randn(30, 20, requires_grad=True)
    assert [(t.shape, t.dtype) for t in saved(op, x)] == [((30, 20), torch.bool)]
    cotangent = torch.randn(30, 20)
    (gradient,) = torch.autograd.grad(op(x), x, cotangent)
    inside = (x - 0.25 >= -1) & (x - 0.25 <= 1)
    torch.testing.assert_close(gradient, torch.where(inside, 3 * cotangent, 0), rtol=0, atol=0)
    half = x.detach().bfloat16().requires_grad_()  # of two bytes it would save none
    assert [t.dtype for t in saved(op, half)] == [torch.bfloat16]
    both = fg.op(lambda x: fg.where(x > 0, x * x, x), name="both")  # the backward reads x anyway
    assert [t.dtype for t in saved(both, x)] == [torch.float32]


def test_an_output_is_kept_where_that_replaces_reading_two_inputs() -> None:
    x, y = leaves((30, 20), (30, 20))
    op = fg.op(lambda x, y: fg.sigmoid(x + y), name="gate")
    assert [t.shape for t in saved(op, x, y)] == [(30, 20)]
    assert gradcheck(op, leaves((3, 2), (3, 2)))
    (x, y) = leaves((3,), (3,))
    out = op(x, y)
    gradients = torch.autograd.grad(out.sum(), (x, y))
    torch.testing.assert_close(gradients[0], (out * (1 - out)).detach())


@pytest.mark.parametrize("dim", [0, 1])
def test_a_softmax_keeps_its_result_alone_and_its_backward_has_no_exponentials(dim: int) -> None:
    op = fg.op(lambda x, y: fg.softmax(0.3 * x - y, dim), name="scores")
    given, theirs = leaves((5, 7), (7,)), leaves((5, 7), (7,))
    (kept,) = saved(op, *given)
    out = op(*given)
    torch.testing.assert_close(kept, out.detach(), rtol=0, atol=0)
    code = [line.split("//")[0] for line in op.emit(*given, which="backward").splitlines()]
    assert "d_out" in str(code) and not re.search(r"[^_]exp\w*\(|top_ptr| / ", str(code))
    expected = torch.softmax(0.3 * theirs[0] - theirs[1], dim)
    cotangent = torch.randn_like(expected)
    gradients = torch.autograd.grad(out, given, cotangent)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, theirs, cotangent))
    assert gradcheck(op, given) and torch.autograd.gradgradcheck(op, given)


def test_what_was_divided_is_not_told_by_a_result_that_is_rounded_to_zero() -> None:
    op = fg.op(lambda x, y: (y / fg.sum_exp(x, -1, keepdims=True), y * y), name="both")
    x = torch.zeros(2, 60000).half().requires_grad_()
    y = torch.linspace(1e-4, 1e-3, 120000).view(2, 60000).half().requires_grad_()
    share, square = op(x, y)
    assert share.max() < 1e-7  # a few of float16's smallest steps
    cotangent = torch.rand(2, 60000).half()
    _, gradient = torch.autograd.grad((share, square), (x, y), (torch.zeros_like(share), cotangent))
    torch.testing.assert_close(gradient, (2 * y * cotangent).detach(), rtol=4e-3, atol=1e-6)


def test_a_quotient_by_any_other_sum_is_recomputed() -> None:
    op = fg.op(lambda x: x / fg.sum(x, -1, keepdims=True), name="share")  # the sum may be zero
    (x,) = leaves((4, 6))
    assert {t.data_ptr() for t in saved(op, x) if t.numel() == x.numel()} == {x.data_ptr()}


def test_changing_a_saved_tensor_is_an_error() -> None:
    x, y = leaves((3,), (3,))
    hidden = x * 1
    out = fg.op(lambda x, y: x * y, name="mul")(hidden, y)
    hidden.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_views_are_arguments_like_others_and_results_are_no_views() -> None:
    (x,) = leaves((4, 6))
    view = x.t()[1:4]
    out = lerp(view, view * 2, 0.5)
    assert not out._is_view()
    (gradient,) = torch.autograd.grad(out.sum(), x)
    expected = torch.zeros_like(x)
    expected[:, 1:4] = 1.5
    torch.testing.assert_close(gradient, expected)


def test_cotangents_of_any_layout() -> None:
    x, y = leaves((6, 5), (5,))
    out = lerp(x, y, 0.25)
    for cotangent in (
        torch.ones(()).double().expand(6, 5), torch.randn(5, 6).double().t(), torch.randn(6, 11).double()[:, 1::2],
    ):  # fmt: skip
        ours = torch.autograd.grad(out, (x, y), cotangent, retain_graph=True)
        torch.testing.assert_close(ours[0], 0.75 * cotangent)
        torch.testing.assert_close(ours[1], 0.25 * cotangent.sum(0))
        assert ours[0].stride() == x.stride()


# -- refused before anything is launched -----------------------------------------------------------------------------


def test_wrong_dtypes_and_layouts() -> None:
    x = torch.randn(3)
    with pytest.raises(fg.DtypeError, match=r"argument y\n  given:    a tensor of torch.complex64"):
        lerp(x, x.to(torch.complex64), 0.5)
    with pytest.raises(fg.DtypeError, match=r"layout torch\.sparse_coo"):
        lerp(x, x.to_sparse(), 0.5)


def test_mixed_devices() -> None:
    x = torch.randn(3)
    with pytest.raises(fg.DeviceError, match="meta"):
        lerp(x, x.to("meta"), 0.5)


def test_out_takes_no_part_in_autograd() -> None:
    (x,) = leaves((3,))
    with pytest.raises(fg.DerivativeError, match=r"torch.no_grad\(\), or without out="):
        lerp(x, x, 0.5, out=torch.empty(3, dtype=x.dtype))
    with torch.no_grad():
        lerp(x, x, 0.5, out=torch.empty(3, dtype=x.dtype))


@pytest.mark.cpu
def test_each_backward_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find one among those that are remembered between processes takes the texts of two ops."""
    parts: list[tuple[str, ...]] = []
    original = pipeline.remember
    monkeypatch.setattr(pipeline, "remember", lambda *args: parts.append((args[0], *args[1])) or original(*args))
    op = fg.op(lambda x, w: fg.exp(fg.sum(x * x, -1, keepdims=True)) * x * w, name="asked_for_once")
    x, w = (torch.rand(shape, requires_grad=True) for shape in ((3, 4), (4,)))
    for wanted in ((x, w), (x,)):
        torch.autograd.grad(op(x, w).sum(), wanted)
    backwards = [part for part in parts if part[0] == "backward"]
    assert backwards and len(backwards) == len(set(backwards))

"""Values that are summed and computed again have the same bits (derive/exact), whatever a compiler contracts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen import pipeline
from fusegen.core.ir import Op, walk
from fusegen.declare.table import lookup, rows
from fusegen.derive.exact import as_written
from tests.support.oracles import draw


def traced(function: Callable[..., Any]) -> Op:
    return fg.op(function, name="function").trace(draw(3, 5), draw(5), draw(5))


def marked(op: Op) -> int:
    """How many sums of ``op`` are rounded by themselves."""
    roots = [item.expr for items in as_written(op).expand() for item in items]
    return sum(getattr(node, "function", "") in ("add_rn", "sub_rn") for node in walk(roots))


def ops_of(function: Callable[..., Any]) -> tuple[Op, Op]:
    """The forward that saves for gradients of all arguments, and the backward."""
    op = traced(function)
    training = pipeline.train_op(op, tuple(operand.name for operand in op.operands))
    return training.forward, pipeline.backward_op(training, (0,))


def unit(v: Any) -> Any:
    return v / fg.sqrt(fg.sum(v * v, -1, keepdims=True))


def test_a_norm_of_a_sum_of_products_is_computed_with_the_same_bits() -> None:
    forward, backward = ops_of(lambda x, w, b: unit(x * w + b))
    assert marked(forward) == 1
    assert marked(backward) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: unit(x + b) * w,  # nothing to contract
        lambda x, w, b: fg.sum(x * w + b, -1),  # nothing computes it again
        lambda x, w, b: (x * w + b) * fg.sum(x * w + b, -1, keepdims=True),  # moves as its elements do
        lambda x, w, b: fg.softmax(x + w, -1) * b,
    ],
)
def test_others_are_contracted_as_ever(function: Callable[..., Any]) -> None:
    assert [marked(op) for op in ops_of(function)] == [0, 0]


def test_exponents_of_a_softmax_are_computed_with_the_same_bits() -> None:
    forward, backward = ops_of(lambda x, w, b: fg.softmax(x * w + b, -1))
    assert marked(forward) == 1
    assert marked(backward) == 1
    forward, backward = ops_of(lambda x, w, b: fg.softmax(x * w, -1))  # the maximum is subtracted from a product
    assert marked(forward) == 1
    assert marked(backward) == 1


def test_within_one_op_as_well() -> None:
    op = traced(lambda x, w, b: unit(x * w + b))
    assert marked(pipeline.tangent_op(op, ("x", "w", "b"))) >= 1


class Torch:
    """torch's functions by the names that declarations have."""

    amax = staticmethod(lambda x, axis, keepdims: torch.amax(x, axis, keepdim=keepdims))
    sin, cos, exp, tanh, sigmoid, where = torch.sin, torch.cos, torch.exp, torch.tanh, torch.sigmoid, torch.where
    cummax, cummin, logsumexp = torch.cummax, torch.cummin, torch.logsumexp


def times_top(f: Any, a: Any, w: Any) -> Any:
    return (a * f.amax(f.sin(a) * f.sigmoid(a), -1, keepdims=True)) @ w + a * a


# Elements and their extremum are computed by steps apart here, at least in the backward: some of which write halves.
SPLIT: list[tuple[str, Callable[..., Any]]] = [
    ("before a product", lambda f, x, y, w: f.amax(f.sin(x) * y * f.sigmoid(y), -1, keepdims=True) * x @ w),
    (
        "chosen by a product",
        lambda f, x, y, w: f.where((x @ w) > 0, f.amax(f.exp(x) * f.cos(y), -1, keepdims=True), x @ w),
    ),
    ("behind a product", lambda f, x, y, w: f.amax(f.tanh(x @ w) * y, -1, keepdims=True) * x @ w),
    (
        "compared in the op",
        lambda f, x, y, w: f.where(f.sin(x) * y == f.amax(f.sin(x) * y, -1, keepdims=True), x @ w, 0.0),
    ),
    (
        "written otherwise where a choice takes it",  # of a logarithm that may be infinite
        lambda f, x, y, w: times_top(f, f.logsumexp(x[:, None, :] + w, -1), w),
    ),
    ("running", lambda f, x, y, w: f.cummax(f.sin(f.cos(x) * y) * f.sigmoid(y), -1).values),
    ("running, before a product", lambda f, x, y, w: f.cummin(f.sigmoid(x) * f.sin(y), -1).values @ w),
    ("of windows", lambda f, x, y, w: x.sigmoid().unfold(-1, 3, 1).amax(-1)),
    ("of windows of quotients", lambda f, x, y, w: (x / (y * y + 1).sqrt()).unfold(-1, 3, 1).amax(-1)),
    ("turned around", lambda f, x, y, w: x.sigmoid().flip(0).amax(-1)),
    ("at places", lambda f, x, y, w: (x.sin() * y.sigmoid())[:, [3, 0, 3, 7]].amax(-1)),
    ("at places of places", lambda f, x, y, w: F.pad((x.sin() * y).roll(1, 0), (1, 2)).amin(-1)),
    (
        "compared at places",
        lambda f, x, y, w: f.where(x.sin().flip(1) == x.sin().flip(1).amax(-1, keepdim=True), y, 0.0),
    ),
]


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", [f for _, f in SPLIT], ids=[name for name, _ in SPLIT])
def test_elements_of_another_step_equal_their_extremum(function: Callable[..., Any], dtype: torch.dtype) -> None:
    op = fg.op(lambda x, y, w: function(fg, x, y, w), name="split")
    generator = torch.Generator().manual_seed(0)
    exact = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 12), (5, 12), (12, 12))]
    given = [value.to(dtype).requires_grad_() for value in exact]
    exact = [value.detach().cpu().double().requires_grad_() for value in given]
    found, expected = op(*given), function(Torch, *exact)
    cotangent = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    rounding = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.01}[dtype]
    pairs = [(found, expected)]
    pairs += zip(
        torch.autograd.grad(found, given, cotangent.to(dtype), allow_unused=True, materialize_grads=True),
        torch.autograd.grad(expected, exact, cotangent, allow_unused=True, materialize_grads=True),
        strict=True,
    )
    for mine, theirs in pairs:
        torch.testing.assert_close(
            mine.double(), theirs, rtol=0, atol=rounding * (theirs.detach().abs().max().item() + 1)
        )


EXPONENTS: dict[str, Callable[..., Any]] = {
    "a product": lambda f, x, w, b: 300 * x * w,
    "a sum of a product": lambda f, x, w, b: (x * w + b) * 200,
    "quotients by one thing": lambda f, x, w, b: (x / (f.abs(w) + 1) - f.sin(x / (f.abs(w) + 1) + b)) * 400,
    "a quotient by a literal": lambda f, x, w, b: x / 0.0037 - b / 0.41,
    "a quotient": lambda f, x, w, b: 300 * x / (f.abs(b) + 0.35),
    "functions": lambda f, x, w, b: 500 * f.cos(x * w) * f.sigmoid(x) + 300 * f.tanh(x) * f.sin(b),
    "a norm": lambda f, x, w, b: 300 * x * f.rsqrt(f.mean(x * x, -1)[:, None]) * w + 200 * b,
    "chosen": lambda f, x, w, b: f.where(x > 0, 200 * x * w, 100 * f.sin(x) * b),
    "behind a product": lambda f, x, w, b: 80 * (x @ w) * f.cos(x) * b,
}


@pytest.mark.emulator
@pytest.mark.parametrize("dtypes", ["float64", "float32", "bfloat16", "float16", "float16 float32"])
@pytest.mark.parametrize("written", ["softmax", "log_softmax", "by hand"])
@pytest.mark.parametrize("exponent", list(EXPONENTS))
def test_one_element_has_all_of_a_softmax(exponent: str, written: str, dtypes: str) -> None:
    """Then nothing is left of a softmax's gradient; a logarithm's is what all elements get less what the one has."""
    inner = EXPONENTS[exponent]

    def function(x: Any, w: Any, b: Any, f: Any = fg) -> Any:
        if written == "by hand":
            e = f.exp(inner(f, x, w, b) - f.amax(inner(f, x, w, b), -1)[:, None])
            return e / f.sum(e, -1)[:, None]
        return getattr(f, written)(inner(f, x, w, b), -1)

    of_x, of_others = (getattr(torch, name) for name in (dtypes.split() * 2)[:2])
    generator = torch.Generator().manual_seed(3)
    shapes = ((160, 24), (24, 24) if exponent == "behind a product" else (24,), (24,))
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64).to(of_x) for shape in shapes]
    exact = [value.double().requires_grad_() for value in drawn]
    expected = function(*exact, f=torch)
    exponents = inner(torch, *exact)
    (first, second), top = exponents.topk(2).values.detach().unbind(-1), exponents.argmax(-1)
    alone = first - second > 60 + 0.02 * first  # with room for halves, as products are saved
    assert alone.sum() > 20
    cotangent = torch.randn(expected.shape, generator=generator, dtype=torch.float64) * alone[:, None] / 64
    given = [value.to(of_x if value.ndim == 2 else of_others).requires_grad_() for value in drawn]
    found = fg.op(lambda x, w, b: function(x, w, b), name="saturated")(*given)
    mine = torch.autograd.grad(found, given, cotangent.to(found.dtype), allow_unused=True, materialize_grads=True)
    rounded = cotangent.to(found.dtype).double()
    theirs = torch.autograd.grad(expected, exact, rounded, allow_unused=True, materialize_grads=True)
    # What cancels: as much as the one element's exponent would get by itself, or each of them.
    chosen = torch.nn.functional.one_hot(top, 24) if written != "log_softmax" else torch.ones_like(exponents)
    chosen = chosen * rounded.abs().sum(-1)[:, None]
    alone_each = torch.autograd.grad(exponents, exact, chosen, allow_unused=True, materialize_grads=True)
    for gradient, true, cancelling in zip(mine, theirs, alone_each, strict=True):
        eps = 2.0**-52 if of_x is torch.float64 else 2.0**-23
        eps = torch.finfo(of_x).eps if written == "log_softmax" else eps
        assert (gradient.double() - true).abs().max() <= 8 * eps * (cancelling.abs().max() + 0.1)


def test_functions_have_twins_that_every_kernel_prints_alike() -> None:
    own, twin = lookup("sin"), lookup("sin_rn")
    assert (twin.cuda, twin.cuda_half, twin.reference) == (own.cuda, None, own.reference)
    assert twin not in rows() and lookup("sin_rn") is twin

"""Ops whose gradient the user declared, called by other ops' declarations: beside compositions of autograd.Functions.

The gradients that are declared here differ from what would be derived, so that it shows which one was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, jvp, vmap

import fusegen as fg
from fusegen import pipeline
from fusegen.core.declared import without_declared_gradients
from fusegen.core.ir import DOT, Reduce
from fusegen.core.serialize import op_from_json, op_to_json
from fusegen.core.text import op_text
from fusegen.pytorch.library.identity import identity
from fusegen.run import evaluate
from tests.support.oracles import draw, outputs_of, refused

pytestmark = pytest.mark.emulator

Function = Callable[..., Any]

# -- ops, and autograd.Functions that do the same ----------------------------------------------------------------------


def of_torch(forward: Function, gradient: Function) -> Function:
    """An autograd.Function with this gradient; tangents by transposing it."""

    class Composed(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*given: Any) -> Any:
            return forward(*given)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*[value for value in inputs if isinstance(value, torch.Tensor)])
            ctx.save_for_forward(*[value for value in inputs if isinstance(value, torch.Tensor)])
            ctx.given = [None if isinstance(value, torch.Tensor) else value for value in inputs]
            ctx.zeros = [torch.zeros_like(result) for result in outputs_of(output)]

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            return gradients(ctx, cotangents)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            moved = [i for i, tangent in enumerate(tangents) if tangent is not None]
            found = torch.func.vjp(lambda *c: tuple(gradients(ctx, c)[i] for i in moved), *ctx.zeros)
            results = found[1](tuple(tangents[i] for i in moved))
            return results if len(results) > 1 else results[0]

    def gradients(ctx: Any, cotangents: Any) -> tuple[Any, ...]:
        tensors = iter(ctx.saved_tensors)
        given = [next(tensors) if value is None else value for value in ctx.given]
        found = outputs_of(gradient(*cotangents, *given))
        wide = zip(given, found, strict=False)
        sums = [None if g is None else g.sum_to_size(value.shape) for value, g in wide]
        return (*sums, *[None] * (len(given) - len(sums)))

    return lambda *args: Composed.apply(*args)


def declared(gradient: Function) -> Function:
    """Decorator: an op of this function, with this gradient."""

    def made(function: Function) -> Any:
        op = fg.op(function)
        op.gradient(gradient)
        return op

    return made


@declared(lambda d_out, x: fg.where(fg.abs(x) < 1, d_out * 2, 0))
def straight(x):  # type: ignore[no-untyped-def]
    return fg.round(x)


@declared(lambda d_out, x: 5 * d_out * x * x)
def cube(x):  # type: ignore[no-untyped-def]
    return x * x * x


@declared(lambda d_product, d_total, x, y: (2 * d_product * y + d_total, 3 * d_product * x))
def pair(x, y):  # type: ignore[no-untyped-def]
    return x * y, fg.sum(x, -1, keepdims=True)


@declared(lambda d_out, x: d_out - 2 * fg.mean(d_out * x, -1, keepdims=True) * fg.amax(x, -1, keepdims=True))
def centered(x):  # type: ignore[no-untyped-def]
    return x - fg.mean(x, -1, keepdims=True)


@declared(lambda d_out, x, w: (d_out @ w.mT, 2 * (x.mT @ d_out)))
def sharp(x, w):  # type: ignore[no-untyped-def]
    return fg.tanh(x @ w)


@declared(lambda d_out, x, times, mask: (fg.where(mask, 2 * d_out * times, d_out), None, None))
def masked(x, times, mask):  # type: ignore[no-untyped-def]
    return fg.where(mask, x * times, x)


@declared(lambda d_out, x, by: 3 * d_out * by)
def scaled(x, by):  # type: ignore[no-untyped-def]
    return x * by


@declared(lambda d_out, x: fg.clamp(d_out, -1, 1))
def clipped(x):  # type: ignore[no-untyped-def]
    return x * 1.0


@declared(lambda d_out, x: d_out * cube(x) + straight(d_out * x))
def nested(x):  # type: ignore[no-untyped-def]
    return cube(x) + 1.0


def _sum(x: Any, axis: int, keepdims: bool = False) -> Any:
    return x.sum(axis, keepdim=keepdims)


OURS = SimpleNamespace(
    straight=straight, cube=cube, pair=pair, centered=centered, sharp=sharp, masked=masked, scaled=scaled,
    clipped=clipped, nested=nested, exp=fg.exp, tanh=fg.tanh, sin=fg.sin, sum=fg.sum, where=fg.where,
    layer_norm=lambda x: fg.ops.layer_norm(x, (4,)), softmax=lambda x: fg.softmax(x, -1),
)  # fmt: skip
_straight = of_torch(torch.round, lambda d, x: torch.where(x.abs() < 1, d * 2, 0))
_cube = of_torch(lambda x: x * x * x, lambda d, x: 5 * d * x * x)
THEIRS = SimpleNamespace(
    straight=_straight, cube=_cube,
    pair=of_torch(lambda x, y: (x * y, _sum(x, -1, True)), lambda d, t, x, y: (2 * d * y + t, 3 * d * x)),
    centered=of_torch(
        lambda x: x - x.mean(-1, keepdim=True),
        lambda d, x: d - 2 * (d * x).mean(-1, keepdim=True) * x.amax(-1, keepdim=True),
    ),
    sharp=of_torch(lambda x, w: torch.tanh(x @ w), lambda d, x, w: (d @ w.mT, 2 * (x.mT @ d))),
    masked=of_torch(lambda x, t, m: torch.where(m, x * t, x), lambda d, x, t, m: torch.where(m, 2 * d * t, d)),
    scaled=of_torch(lambda x, by: x * by, lambda d, x, by: 3 * d * by),
    clipped=of_torch(lambda x: x * 1.0, lambda d, x: d.clamp(-1, 1)),
    nested=of_torch(lambda x: x * x * x + 1.0, lambda d, x: d * _cube(x) + _straight(d * x)),
    exp=torch.exp, tanh=torch.tanh, sin=torch.sin, sum=_sum, where=torch.where,
    layer_norm=lambda x: F.layer_norm(x, (4,)), softmax=lambda x: torch.softmax(x, -1),
)  # fmt: skip


# -- compositions of x [3, 4], w [4], m [4, 4] -------------------------------------------------------------------------


def _in_another_order(lib: Any, x: Any, w: Any, m: Any) -> Any:
    product, total = lib.pair(x * w, x)
    late = lib.sum(lib.exp(total * 0.1), 0, True)
    return product * late + total, total * x


def _long(lib: Any, x: Any, w: Any, m: Any) -> Any:
    for _ in range(4):
        x = lib.sin(lib.cube(x * w) * 0.2 + x * 0.5) * w * 0.5 + lib.tanh(x) * x * 0.3 - w * w * x * 0.2 + 0.1 * x * x
    return x


COMPOSED: dict[str, Function] = {
    "of an intermediate": lambda lib, x, w, m: lib.straight(x * 2) * w + x,
    "of an argument": lambda lib, x, w, m: lib.cube(x) * lib.cube(w),
    "several results": lambda lib, x, w, m: (lambda a, b: (a * b, b + w))(*lib.pair(x * w, w)),
    "results in another order": _in_another_order,
    "one result of two": lambda lib, x, w, m: lib.pair(x * 2, w)[1] * w,
    "the other result": lambda lib, x, w, m: lib.pair(x * 2, w)[0] * w,
    "called twice": lambda lib, x, w, m: lib.clipped(x * 3) * w + lib.clipped(x * 3) * w + lib.clipped(w),
    "reductions in its gradient": lambda lib, x, w, m: lib.softmax(lib.centered(lib.cube(x) * w) * w),
    "reductions behind": lambda lib, x, w, m: lib.sum(lib.cube(x * w), -1) * 0.5,
    "a norm behind": lambda lib, x, w, m: lib.layer_norm(lib.cube(x) + w) * w,
    "reductions before": lambda lib, x, w, m: lib.cube(lib.sum(x * w, -1, True)) * x,
    "a vector by a matrix": lambda lib, x, w, m: lib.pair(w, x)[0] * x,
    "products in its gradient": lambda lib, x, w, m: lib.sharp(x * w, m) * w,
    "products around": lambda lib, x, w, m: lib.cube(x @ m) @ lib.cube(m),
    "products everywhere": lambda lib, x, w, m: lib.sharp(lib.sharp(x, m) @ m, m * w),
    "numbers": lambda lib, x, w, m: lib.scaled(x, 0.5) * lib.scaled(w, 2.0),
    "in a condition": lambda lib, x, w, m: lib.where(lib.cube(x) > 0, lib.cube(w) * x, x),
    "within another": lambda lib, x, w, m: lib.nested(x * w) * w,
    "one behind the other": lambda lib, x, w, m: lib.straight(lib.cube(lib.straight(x) * w)),
    "long": _long,
}
NOT_LINEAR = ("called twice", "within another")


def arguments(seed: int = 0) -> tuple[torch.Tensor, ...]:
    return draw(3, 4, seed=seed), draw(4, seed=seed + 1), draw(4, 4, seed=seed + 2)


def both(name: str) -> tuple[Function, Function]:
    """The composition as an op, and of autograd.Functions."""
    function = COMPOSED[name]
    return fg.op(lambda x, w, m: function(OURS, x, w, m), name="composed"), lambda x, w, m: function(THEIRS, x, w, m)


def total(results: Any) -> torch.Tensor:
    return torch.stack([(result * (i + 1)).sin().sum() for i, result in enumerate(outputs_of(results))]).sum()


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(outputs_of(found), outputs_of(expected))


def in_every_mode(function: Function, *, twice: bool) -> Iterator[Any]:
    """What a function computes in every mode that torch knows.

    Args:
        twice: second derivatives too. Where the declared gradient is not linear, it matters which cotangents are added
            up before it is taken, and the backward of a whole op computes again what it reads.
    """
    x, w, m = arguments()
    several = torch.stack([x.detach(), x.detach() * 0.5 + 0.1])
    yield vmap(function, (0, None, None))(several, w.detach(), m.detach())
    yield function(x.detach(), w.detach(), m.detach())
    found = function(x, w, m)
    yield torch.autograd.grad(total(found), (x, w, m), allow_unused=True, materialize_grads=True)
    yield torch.autograd.grad(total(function(x, w.detach(), m.detach())), x)
    if not twice:
        return
    first = torch.autograd.grad(total(function(x, w, m)), (x, w), create_graph=True, materialize_grads=True)
    again = sum((gradient * gradient).sum() for gradient in first)
    yield torch.autograd.grad(again, (x, w, m), allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("name", COMPOSED)
def test_within_an_op_the_declared_gradient_counts(name: str) -> None:
    ours, theirs = both(name)
    twice = name not in NOT_LINEAR
    for mine, expected in zip(in_every_mode(ours, twice=twice), in_every_mode(theirs, twice=twice), strict=True):
        same(mine, expected)


@pytest.mark.parametrize("name", COMPOSED)
def test_torch_func_takes_the_declared_gradient(name: str) -> None:
    ours, theirs = both(name)
    x, w, m = (tensor.detach() for tensor in arguments())
    several = torch.stack([x, x * 0.5 + 0.1])

    def one(function: Function) -> Any:
        return vmap(grad(lambda x, w: total(function(x, w, m)), argnums=(0, 1)), (0, None))(several, w)

    same(one(ours), one(theirs))
    if name in NOT_LINEAR:
        with pytest.raises(fg.DerivativeError, match=r"a declared gradient that is not linear in d_"):
            jvp(lambda x: ours(x, w, m), (x,), (x.cos(),))
        return

    def along(function: Function) -> Any:
        return jvp(lambda x, w: function(x, w, m), (x, w), (x.cos(), w.sin()))

    same(along(ours), along(theirs))


@pytest.mark.parametrize("name", COMPOSED)
def test_every_stage_keeps_the_declared_gradient(name: str) -> None:
    """Without a compiler: forwards that keep, backwards, tangents and batches, beside torch's of the reference."""
    ours, _ = both(name)
    tensors = {key: tensor.detach() for key, tensor in zip("xwm", arguments(), strict=True)}
    op = ours.trace(**tensors)
    sizes = evaluate.sizes_of(op, tensors)
    wide = evaluate.batched(op, frozenset({"x"}), 2, tensors, {}, sizes, torch.randn_like)
    made = [evaluate.trained(op, ("x", "w"), tensors, {}, sizes), wide]
    made += filter(None, [evaluate.backward(op, ("x", "w"), (0,), tensors, {}, sizes, torch.randn_like)])
    if name not in NOT_LINEAR:
        made.append(evaluate.forward_mode(op, ("x", "w"), tensors, {}, sizes, torch.randn_like))
    for step in made:
        expected = step.expected(step.roots)
        given = {key: value.detach() for key, value in step.given(step.roots).items()}
        more = evaluate.all_sizes(step.op, given, step.sizes)
        same(tuple(evaluate.meaning(step.op, given, {}, more)), tuple(expected))
        for _, run in evaluate.stages(step.op):
            same(tuple(run(step.op, given, {}, more)), tuple(expected))


@pytest.mark.parametrize("name", ["of an intermediate", "in a condition", "products in its gradient", "numbers"])
def test_compiled_graphs_take_the_declared_gradient(name: str) -> None:
    ours, theirs = both(name)
    torch._dynamo.reset()

    def training(function: Function) -> Any:
        x, w, m = arguments()
        result = function(x, w, m)
        return result, torch.autograd.grad(total(result), (x, w, m), allow_unused=True, materialize_grads=True)

    def several(function: Function, x: Any, w: Any, m: Any) -> Any:
        return vmap(function, (0, None, None))(torch.stack([x, x.cos()]), w, m)

    compiled = torch.compile(lambda x, w, m: ours(x, w, m), fullgraph=True, backend="aot_eager")
    (mine, gradients), (result, expected) = training(compiled), training(theirs)
    same((mine, *gradients), (result, *expected))
    given = [tensor.detach() for tensor in arguments()]
    compiled = torch.compile(lambda *given: several(ours, *given), fullgraph=True, backend="aot_eager")
    same(compiled(*given), several(theirs, *given))


# -- what kinds of arguments and results there are ---------------------------------------------------------------------


def test_integers_bools_and_no_gradient_at_all() -> None:
    times, mask = torch.tensor([1, 2, 3, 4]), torch.tensor([[True], [False], [True]])
    ours = fg.op(lambda x, times, mask: masked(x * 2, times, mask) * x, name="masking")
    x = draw(3, 4)
    expected = THEIRS.masked(x * 2, times, mask) * x
    same(ours(x, times, mask), expected)
    cotangent = torch.randn(3, 4, dtype=torch.float64)
    same(torch.autograd.grad(ours(x, times, mask), x, cotangent), torch.autograd.grad(expected, x, cotangent))

    none = fg.op(lambda x, y: x * y, name="none")
    none.gradient(lambda d_out, x, y: (None, d_out))
    outer = fg.op(lambda x, y: none(x, y * 2) + y, name="outer")
    y = draw(4, seed=1)
    found = torch.autograd.grad(outer(x, y), (x, y), cotangent)
    same(found, (torch.zeros(3, 4, dtype=torch.float64), 3 * cotangent.sum(0)))


def test_a_result_without_a_cotangent_costs_nothing_and_multiplies_nothing() -> None:
    """Its cotangent is zero, also beside what is infinite, and in products."""
    two = fg.op(lambda x, w: (x @ w, fg.exp(x)), name="two")
    two.gradient(lambda d_product, d_exp, x, w: (d_product @ w.mT + d_exp * fg.exp(x * 1e9), x.mT @ d_product))
    x, w = draw(3, 4, low=1), draw(4, 4, seed=1)
    first = fg.op(lambda x, w: two(x, w)[0] * 2, name="first")
    second = fg.op(lambda x, w: two(x, w)[1] * 2, name="second")
    assert "exp(" not in op_text(first.backward(x, w))
    assert not any(isinstance(s, Reduce) and s.kind == DOT for s in second.backward(x, w).statements)
    same(torch.autograd.grad(first(x, w).sum(), (x, w)), torch.autograd.grad((x @ w).sum() * 2, (x, w)))
    assert torch.autograd.grad(second(x, w).sum(), x)[0].isinf().all()


def test_numbers_of_the_call_reach_the_declared_gradient_in_double() -> None:
    """1 - 0.999 of float32 numbers would be 1.3e-5 off."""
    moment = fg.op(lambda x, *, beta: x * beta, name="moment")
    moment.gradient(lambda d_out, x, beta: d_out * (1 - beta))
    outer = fg.op(lambda x, *, decay: moment(x, beta=decay) * 2, name="decayed")
    x = torch.ones(4, requires_grad=True)
    for op, factor, options in ((moment, 1, {"beta": 0.999}), (outer, 2, {"decay": 0.999})):
        (found,) = torch.autograd.grad(op(x, **options).sum(), x)
        torch.testing.assert_close(found, torch.full((4,), factor * 0.001), rtol=1e-7, atol=0)


def test_halves_round_once() -> None:
    outer = fg.op(lambda x, w: cube(x) * w, name="halves")
    x, w = draw(3, 4, dtype=torch.bfloat16), draw(4, dtype=torch.bfloat16, seed=1)
    found = torch.autograd.grad(outer(x, w).sum(), (x, w))
    wide = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    expected = torch.autograd.grad((THEIRS.cube(wide[0]) * wide[1]).sum(), wide)
    same(found, tuple(gradient.bfloat16() for gradient in expected))


def test_parts_of_a_packed_tensor() -> None:
    gated = fg.op(lambda x: (lambda a, b: cube(a) * fg.tanh(cube(b)))(*fg.split(x, 2, -1)), name="gated")
    x = draw(3, 8)
    a, b = (part for part in x.chunk(2, -1))
    expected = torch.autograd.grad((THEIRS.cube(a) * torch.tanh(THEIRS.cube(b))).sum(), x)
    same(torch.autograd.grad(gated(x).sum(), x), expected)
    packed = fg.op(lambda x: fg.concat([x * 2, x * x]), name="packed")
    packed.gradient(lambda d_first, d_second, x: 7 * d_first + d_second)
    whole = fg.op(lambda x: packed(x * 3), name="whole")
    (found,) = torch.autograd.grad(whole(x), x, torch.cat([torch.ones_like(x), 2 * torch.ones_like(x)], -1))
    same(found, torch.full_like(x, 27))


def test_arrays_and_out_know_nothing_of_gradients() -> None:
    ours, _ = both("several results")
    x, w, m = (tensor.detach() for tensor in arguments())
    expected = ours(x, w, m)
    same(tuple(map(torch.from_numpy, ours(x.numpy(), w.numpy(), m.numpy()))), expected)
    outs = tuple(torch.empty_like(result) for result in expected)
    ours(x, w, m, out=outs)
    same(outs, expected)
    assert all(isinstance(result, np.ndarray) for result in ours(x.numpy(), w.numpy(), m.numpy()))


# -- how it is kept, shown and told apart ------------------------------------------------------------------------------


def test_kernels_do_not_know_of_it_and_what_is_shown_does() -> None:
    ours, _ = both("of an intermediate")
    x, w, m = arguments()
    op = ours.trace(x, w, m)
    text = op_text(without_declared_gradients(op))
    assert text.splitlines()[-1] == "  out  out = round(x_2) * w + x : float64[D0, D1]"
    assert "declared(round(" in ours.show(x, w, m)
    assert "declared(" not in ours.emit(x, w, m)
    assert op_from_json(op_to_json(op)) == op
    again = pipeline.backward_op(pipeline.train_op(op, ("x", "w")), (0,))
    assert again == pipeline.backward_op(pipeline.train_op(op, ("x", "w")), (0,))


def test_equal_calls_are_computed_once() -> None:
    ours, _ = both("called twice")
    (line,) = [line for line in ours.emit(*arguments()).splitlines() if "* 3.0" in line and "const double" in line]
    assert line
    twice = fg.op(lambda x: fg.sum(clipped(x)) + fg.sum(clipped(x)), name="twice")
    assert len(without_declared_gradients(twice.trace(draw(3, 4))).expand()[0]) == 1


def test_an_identity_covers_the_gradients_of_ops_that_are_called() -> None:
    def made(factor: float) -> Any:
        inner = fg.op(lambda x: x * 2, name="inner")
        inner.gradient(lambda d_out, x: d_out * factor)
        return fg.op(lambda x: inner(x) + 1, name="outer")

    two, four = made(2.0), made(4.0)
    assert identity(two.declaration) != identity(four.declaration) == identity(made(4.0).declaration)


def test_its_errors_name_the_op_that_is_called() -> None:
    inner = fg.op(lambda x, y: x * y, name="inner")
    inner.gradient(lambda d_out, x, y: d_out)
    outer = fg.op(lambda x, y: inner(x, y) + 1, name="outer")
    with pytest.raises(
        fg.DerivativeError, match=r"inner, gradient \(.*, line \d+\)\n.*1 gradients returned\n.*tensor argument: x, y"
    ):
        outer(*draw(2, 3, 4).detach())
    with pytest.raises(fg.ShapeError, match="gradient"):
        wrong = fg.op(lambda x: x * 2, name="wrong")
        wrong.gradient(lambda d_out, x: fg.sum(d_out, -1))
        fg.op(lambda x: wrong(x) + 1, name="outer")(draw(3, 4))


def test_a_number_in_an_arguments_place_gets_no_gradient() -> None:
    """What is returned for it goes nowhere; it may as well be left away."""
    for rule in (lambda d, x, b: (d * 2, d * 3), lambda d, x, b: d * 2):
        op = fg.op(lambda x, b: x + b, name="with_a_number")
        op.gradient(rule)
        x = draw(3, 4)
        for call in (lambda x, op=op: op(x, 2.0), fg.op(lambda x, op=op: op(x, 2.0), name="within")):
            assert torch.equal(torch.autograd.grad(call(x).sum(), x)[0], torch.full_like(x, 2.0))
    op = fg.op(lambda x, b: x + b, name="with_a_number")
    op.gradient(lambda d, x, b: (d, d, d))
    assert "for the numbers of this call: b" in str(refused(lambda: op(draw(3), 2.0)))

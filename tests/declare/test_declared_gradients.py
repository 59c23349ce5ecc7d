"""Results that a declared gradient asks for by keyword: ``*, out``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusegen as fg
from tests.support.call_paths import DEVICE
from tests.support.modes import MODES
from tests.support.oracles import leaves


@fg.op
def exponential(x: Any) -> Any:
    return fg.exp(x)


@exponential.gradient
def _(d_out: Any, x: Any, *, out: Any) -> Any:
    return d_out * out


@fg.op
def scaled_softmax(x: Any, *, scale: Any = 1.0) -> Any:
    e = fg.exp(scale * x)
    return e / fg.sum(e, -1, keepdims=True)


@scaled_softmax.gradient
def _(d_out: Any, x: Any, *, scale: Any, out: Any) -> Any:
    return scale * out * (d_out - fg.sum(d_out * out, -1, keepdims=True))


@fg.op
def two_and_a_count(x: Any, y: Any) -> Any:
    return x * y, fg.sum(fg.cast(x > 0, fg.int64)), fg.tanh(x)


@two_and_a_count.gradient
def _(d_out_0: Any, d_out_1: Any, x: Any, y: Any, *, out_1: Any) -> Any:
    """Results are counted as cotangents are: floats alone."""
    return d_out_0 * y + d_out_1 * (1 - out_1 * out_1), d_out_0 * x


@fg.op
def packed(x: Any, y: Any) -> Any:
    return fg.concat([fg.exp(x), y * y])


@packed.gradient
def _(d_out_0: Any, d_out_1: Any, x: Any, y: Any, *, out_0: Any) -> Any:
    return d_out_0 * out_0, 2 * d_out_1 * y


@fg.op
def calls_them(x: Any, y: Any) -> Any:
    return exponential(0.5 * x) * scaled_softmax(y, scale=0.3)


@fg.op
def many(*xs: Any) -> Any:
    return fg.exp(sum(xs[1:], xs[0]))


@many.gradient
def _(d_out: Any, *xs: Any, out: Any) -> Any:
    return tuple(d_out * out for _ in xs)


def _floats(result: Any) -> Any:
    return tuple(r for r in result if r.is_floating_point()) if isinstance(result, tuple) else result


@pytest.mark.parametrize(
    ("op", "count"),
    [(exponential, 1), (scaled_softmax, 1), (two_and_a_count, 2), (packed, 2), (calls_them, 2), (many, 3)],
    ids=["exponential", "softmax", "two", "packed", "called", "list"],
)
def test_a_result_is_handed_over(op: Any, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    given = [torch.randn(3, 5, dtype=torch.float64, generator=generator).to(DEVICE) for _ in range(count)]
    given = [x.requires_grad_() for x in given]

    def run(*xs: Any) -> Any:
        return _floats(op(*xs))

    assert torch.autograd.gradcheck(run, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, given)
    with fg.checked():
        found = run(*given)
        results = found if isinstance(found, tuple) else (found,)
        torch.autograd.grad(results, given, [torch.randn_like(result) for result in results])


@pytest.mark.parametrize("form", ["nothing", "another", "twice", "of a choice"])
def test_a_sum_of_cotangents_reaches_what_is_not_chosen(form: str) -> None:
    """A gradient that sums over an axis is not zero where a select along that axis takes nothing; nor is it the same of
    what the select takes as of what it is given."""

    @fg.op
    def spread(x: fg.Tensor) -> fg.Tensor:
        return x * 2

    @spread.gradient
    def _(d_out: fg.Tensor, x: fg.Tensor) -> fg.Tensor:
        return d_out * fg.cos(x) + fg.mean(d_out * x, -1, keepdims=True)

    class Spread(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, d_out: Any) -> Any:
            (x,) = ctx.saved_tensors
            return d_out * torch.cos(x) + (d_out * x).mean(-1, keepdim=True)

    def written(where: Any, sin: Any, call: Any, x: Any) -> Any:
        chosen = where(x > -0.3, x * 1.5, 0.0) * sin(x)
        y = call(chosen if form == "of a choice" else x)
        if form == "twice":
            y = call(where(x > 0.1, sin(y), 0.0))
        return where((chosen if form == "of a choice" else x) > 0.1, sin(y) * y, y * 0.5 if form == "another" else 0.0)

    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    ours = fg.op(lambda x: written(fg.where, fg.sin, spread, x), name="chosen")(x)
    theirs = written(lambda c, a, b: torch.where(c, a, torch.as_tensor(b)), torch.sin, Spread.apply, x)
    cotangent, second = torch.randn_like(ours), torch.randn_like(ours)
    found = [torch.autograd.grad(out, x, cotangent, create_graph=True)[0] for out in (ours, theirs)]
    torch.testing.assert_close(*found)
    torch.testing.assert_close(*(torch.autograd.grad(g, x, second)[0] for g in found))


def test_an_argument_of_that_name_is_the_argument() -> None:
    @fg.op
    def shifted(x: Any, out: Any) -> Any:
        return x * fg.stop_gradient(out)

    @shifted.gradient
    def _(d_out: Any, x: Any, *, out: Any) -> Any:
        return d_out * out, None

    x = torch.ones(3, device=DEVICE, requires_grad=True)
    shifted(x, torch.full((3,), 7.0, device=DEVICE)).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [7.0, 7.0, 7.0]


def test_another_name_is_refused_with_those_that_there_are() -> None:
    @fg.op
    def plain(x: Any) -> Any:
        return fg.exp(x)

    @plain.gradient
    def _(d_out: Any, x: Any, *, result: Any) -> Any:
        return d_out * result

    with pytest.raises(fg.DerivativeError, match=r"by keyword only, after a \*, also results: out, or out_0"):
        plain(torch.ones(3, device=DEVICE))


# -- arguments that are the same along a dimension -------------------------------------------------------------------


@fg.op
def scaled(x, w):  # type: ignore[no-untyped-def]
    return fg.tanh(x) * w


@scaled.gradient
def _(d_out, x, w):  # type: ignore[no-untyped-def]
    return d_out * w * (1 - fg.tanh(x) ** 2), d_out * fg.tanh(x)


@fg.op
def summed(x, w):  # type: ignore[no-untyped-def]
    return x * fg.sum(w, -1, keepdims=True)


@summed.gradient
def _(d_out, x, w):  # type: ignore[no-untyped-def]
    return d_out * fg.sum(w, -1, keepdims=True), fg.sum(d_out * x, -1, keepdims=True) + 0 * w


SCALED, SUMMED = (lambda x, w: torch.tanh(x) * w), (lambda x, w: x * w.sum(-1, keepdim=True))
EXPANDED: dict[str, tuple[Any, Any, Any]] = {
    "one of two": (scaled, SCALED, lambda f: lambda x, y: f(y[0].expand(3, 4), x) * x),
    "both": (scaled, SCALED, lambda f: lambda x, y: f(x.sum(1, keepdim=True).expand(3, 4), y[:, :1].expand(3, 4)) * y),
    "a filled one": (scaled, SCALED, lambda f: lambda x, y: f(x * y, torch.full((3, 4), 2.0))),
    "along what the gradient sums": (
        summed, SUMMED, lambda f: lambda x, y: f(x * y, x.mean(1, keepdim=True).expand(3, 5)),
    ),
    "of what the result lacks as well": (
        summed, SUMMED, lambda f: lambda x, y: f(y[:, :1].expand(3, 4), x.mean(1, keepdim=True).expand(3, 5)) + x * y,
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", ("no gradients", "all", "some", "second", "jvp", "vmap"))
@pytest.mark.parametrize("kind", EXPANDED)
def test_arguments_that_are_the_same_along_a_dimension(kind: str, mode: str) -> None:
    op, theirs, composed = EXPANDED[kind]
    MODES[mode](fg.op(composed(op)), composed(theirs), leaves((3, 4), (3, 4)))

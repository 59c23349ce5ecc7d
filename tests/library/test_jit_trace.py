"""torch.jit.trace records calls of registered ops, on both call paths, before and after they are cached."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen import nn, ops
from fusegen.pytorch.library import registry
from tests.support.call_paths import DEVICE, both, shifted
from tests.support.declarations import lerp, norm

pytest_plugins = ("tests.support.call_paths",)
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


@fg.op
def mlp(x, w, b):  # type: ignore[no-untyped-def]
    return fg.tanh(fg.linear(x, w, b))


@fg.op
def through(x, y):  # type: ignore[no-untyped-def]
    return fg.round(x) * y


@through.gradient
def _(d_out, x, y):  # type: ignore[no-untyped-def]
    return d_out * y, d_out * x


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE)


def there(number: float) -> Any:
    """Computed of sizes: a tensor in a trace, which torch makes on the CPU, and fusegen moves none."""
    return number.to(DEVICE) if isinstance(number, torch.Tensor) else number


# An op, a call of it by its tensors, and two sets of these.
CALLS: dict[str, tuple[Any, Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "plain": (lerp, lambda op, x, y: op(x, y, 0.5), lambda: (normal(4, 3), normal(3))),
    "by name": (lerp, lambda op, x, y: op(x, w=y, y=2 * x), lambda: (normal(4, 3), normal(3))),
    "several results": (both, lambda op, x, y: op(x, y), lambda: (normal(4), normal(4))),
    "constants": (shifted, lambda op, x: op(x, by=2.0, axes=(0,), scale=3), lambda: (normal(4, 3),)),
    "rows": (norm, lambda op, x, w: op(x, w, eps=1e-3), lambda: (normal(5, 8), normal(8))),
    "a product": (mlp, lambda op, x, w, b: op(x, w, b), lambda: (normal(5, 8), normal(6, 8), normal(6))),
    "twice": (lerp, lambda op, x, y: op(op(x, y, 0.5), y * 2, x), lambda: (normal(4, 3), normal(3))),
    "a declared gradient": (through, lambda op, x, y: op(x, y), lambda: (normal(4, 3), normal(3))),
    "no sizes": (both, lambda op, x, y: op(x, y), lambda: (normal(), normal())),  # those are tensors in a trace
    "a size": (lerp, lambda op, x, y: op(x, y, there(1 / x.shape[0])), lambda: (normal(4, 3), normal(3))),
}


def trace(function: Callable[..., Any], given: tuple[torch.Tensor, ...], **options: Any) -> Any:
    return torch.jit.trace(function, given, **options)  # type: ignore[no-untyped-call]


def as_tuple(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def as_leaves(given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [tensor.detach().requires_grad_() for tensor in given]


def gradients(call: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    found = as_leaves(given)
    result = as_tuple(call(*found))[0]
    return [result, *torch.autograd.grad(result.sum(), found, allow_unused=True)]


@pytest.mark.parametrize("calls", [0, 3])
@pytest.mark.parametrize("name", CALLS)
def test_a_traced_call_is_one_of_a_registered_op(fresh: Any, name: str, calls: int) -> None:
    op, call, make = CALLS[name]
    known = fresh(op)
    given = make()
    for _ in range(calls):
        call(known, *given)
        gradients(lambda *given: call(known, *given), given)
    traced = trace(lambda *given: call(known, *given), given)
    assert f"fusegen::{registry.registered(known).name}" in str(traced.graph)
    assert "empty_strided" not in str(traced.graph), "memory that nothing writes"
    for _ in range(3):
        given = make()
        torch.testing.assert_close(traced(*given), call(op, *given))
        expected = gradients(lambda *given: call(op, *given), given)
        torch.testing.assert_close(gradients(traced, given), expected)
    same = call(known, *given), call(op, *given)
    torch.testing.assert_close(*same, msg="calls behind a trace are what they were")


def test_overloads_that_know_the_call(fresh: Any) -> None:
    """The fast path before torch's dispatcher steps aside."""
    x, y = normal(4, 3), normal(3)
    overload = fresh(lerp).overload(x, y, 0.5)
    for _ in range(3):
        overload(x, y, 0.5)
    traced = trace(lambda x, y: overload(x, y, 0.5), (x, y))
    assert "fusegen::" in str(traced.graph)
    x, y = normal(4, 3), normal(3)
    torch.testing.assert_close(traced(x, y), torch.lerp(x, y.expand(4, 3), 0.5))


def test_out(fresh: Any) -> None:
    known, x, y = fresh(lerp), normal(4, 3), normal(3)

    def into(x: torch.Tensor, y: torch.Tensor) -> Any:
        return known(x, y, 0.5, out=torch.empty_like(x))

    traced = trace(into, (x, y))
    x, y = normal(4, 3), normal(3)
    torch.testing.assert_close(traced(x, y), lerp(x, y, 0.5))


@pytest.mark.parametrize("warm", [False, True])
def test_the_librarys_ops(warm: bool) -> None:
    """Those that look at their arguments, that are declared on views, and that take a chunk of rows at a time."""
    calls: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
        (lambda x, w: ops.group_norm(x, 3, w), (normal(2, 6, 3), normal(6))),
        (lambda x: ops.softplus(x, 2.0), (normal(4, 3),)),
        (lambda x, m, v: ops.batch_norm(x, m, v, training=True)[1], (normal(4, 3), normal(3), normal(3).abs())),
        (lambda x, w: ops.linear_cross_entropy(x, w, torch.zeros(5, dtype=torch.int64, device=DEVICE)),
         (normal(5, 8), normal(6, 8))),
    ]  # fmt: skip
    for call, given in calls:
        if warm:
            call(*given)
        traced = trace(call, given)
        other = tuple(torch.rand_like(tensor) for tensor in given)
        torch.testing.assert_close(traced(*other), call(*other))
        assert "fusegen::" in str(traced.graph)


def test_modules_saved_and_loaded() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), nn.LayerNorm(8), torch.nn.GELU()).to(DEVICE)
    traced = trace(module, (normal(5, 4),))
    file = io.BytesIO()
    torch.jit.save(traced, file)  # type: ignore[no-untyped-call]
    file.seek(0)
    loaded = torch.jit.load(file)  # type: ignore[no-untyped-call]
    x = normal(3, 4)
    torch.testing.assert_close(loaded(x), module(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded(x).sum().backward()
    found = [parameter.grad.clone() for parameter in loaded.parameters()]
    module.zero_grad()
    module(x).sum().backward()
    torch.testing.assert_close(found, [parameter.grad for parameter in module.parameters()])


TRANSFORMED: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "vmap": lambda op, x: torch.func.vmap(lambda x: op(x, x, 0.5))(x),
    "grad": lambda op, x: torch.func.grad(lambda x: op(x, x, 0.5).sum())(x),
    "jvp": lambda op, x: torch.func.jvp(lambda x: op(x, x, 0.5), (x,), (x,))[1],
    "vmap of an overload": lambda op, x: torch.func.vmap(lambda x: op.overload(x, x, x)(x, x, x))(x),
}


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_derivatives_within_a_trace_are_refused(fresh: Any, name: str, is_cached: bool) -> None:
    """What says which sizes were 1, and how large a gradient is, would be a constant of the trace."""
    known, transformed = fresh(lerp), TRANSFORMED[name]
    for _ in range(3 * is_cached):
        transformed(known, normal(4, 3))
    with pytest.raises(fg.DerivativeError, match=r"lerp\n.*torch.jit.trace\n.*\n.*torch.export"):
        trace(lambda x: transformed(known, x.detach()), (normal(4, 3),))
    transformed(known, normal(4, 3))


def test_so_is_one_in_another_thread(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU's backward is, where torch does not know of the trace."""
    known = fresh(lerp)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        total = known(x, x, 0.5).sum()
        with monkeypatch.context() as there:
            there.setattr(torch._C, "_is_tracing", lambda: False)
            return torch.autograd.grad(total, x)[0]

    with pytest.raises(fg.DerivativeError, match=r"lerp[\s\S]*torch.jit.trace[\s\S]*fix:"):
        trace(gradient, (normal(4, 3),))


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_backward_within_a_trace_is_refused(fresh: Any, is_cached: bool) -> None:
    known = fresh(lerp)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(known(x, x, 0.5).sum(), x)[0]

    for _ in range(3 * is_cached):
        gradient(normal(4, 3))
    with pytest.raises(fg.DerivativeError, match=r"lerp, backward[\s\S]*torch.jit.trace[\s\S]*fix:"):
        trace(gradient, (normal(4, 3),))
    gradient(normal(4, 3))

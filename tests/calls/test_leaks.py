"""What is dropped goes: ops with all that they have derived, planned and cached, tensors, and what a call needs."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.native import module as native

pytestmark = pytest.mark.cpu  # which way tensors take to a GPU and back says nothing here


@pytest.fixture(params=["python", "native"], autouse=True)
def call_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both call paths in turn, of ops that are declared within."""
    if request.param == "native" and native.module() is None:
        pytest.skip(f"no native call path: {native.problem()}")
    if request.param == "python":
        monkeypatch.setattr(native, "module", lambda: None)
        monkeypatch.setattr(native, "awaited", lambda: None)
        monkeypatch.setattr(native, "is_found", lambda: False)
    gc.collect()
    gc.freeze()  # for good: what is there already would be gone through again and again, or thawed, once a test
    return str(request.param)


# -- ops --------------------------------------------------------------------------------------------------------------


def plain() -> Any:
    @fg.op
    def kind(x: Any, y: Any) -> Any:
        return fg.sin(x) * y

    return kind


def with_numbers() -> Any:
    @fg.op
    def kind(x: Any, y: Any, s: float = 0.5, *, k: fg.Const = 2) -> Any:
        return fg.sin(x) * y * s * k, x > y

    return kind


def with_a_gradient() -> Any:
    kind = plain()

    @kind.gradient
    def _(d_out: Any, x: Any, y: Any) -> Any:
        return d_out * y, d_out * x

    return kind


def with_a_gradient_that_knows_it() -> Any:
    kind = plain()

    @kind.gradient
    def _(d_out: Any, x: Any, y: Any) -> Any:
        return d_out * y, d_out * x if kind.name else None

    return kind


def with_a_constant_that_knows_it() -> Any:
    @fg.op
    def kind(x: Any, y: Any, act: fg.Const = None) -> Any:
        return act(x) * y

    def call(x: Any, y: Any, **kwargs: Any) -> Any:
        return kind(x, y, act, **kwargs)

    act = lambda x: fg.sin(x) if kind else x  # noqa: E731
    kind.call_with = call
    return kind


def with_products() -> Any:
    @fg.op
    def kind(x: Any, y: Any) -> Any:
        return fg.tanh(x @ y) @ y

    return kind


def of_rows() -> Any:
    @fg.op
    def kind(x: Any, y: Any) -> Any:
        return x * fg.rsqrt(fg.mean(x * x, -1, keepdims=True) + 1e-5) * y

    return kind


def that_looks_at_its_arguments() -> Any:
    made = fg.FusedOp(fg.ops.softplus.declaration)
    made.call_with = lambda x, y, **kwargs: made(x, 2.0, **kwargs)  # type: ignore[attr-defined]
    return made


OPS = [
    plain, with_numbers, with_a_gradient, with_a_gradient_that_knows_it, with_a_constant_that_knows_it, with_products,
    of_rows, that_looks_at_its_arguments,
]  # fmt: skip


def called(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The op's first result."""
    found = getattr(op, "call_with", op)(*args, **kwargs)
    return found[0] if isinstance(found, tuple) else found


# -- calls ------------------------------------------------------------------------------------------------------------


def two_leaves() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, requires_grad=True)


def without_gradients(op: Any) -> list[Any]:
    x, y = two_leaves()
    with torch.no_grad():
        return [x, y, called(op, x, y)]


def backward(op: Any) -> list[Any]:
    x, y = two_leaves()
    result = called(op, x, y)
    result.sum().backward()
    return [x, y, result, x.grad]


def adding(op: Any) -> list[Any]:
    x, y = two_leaves()
    x.grad, y.grad = torch.zeros_like(x), torch.zeros_like(y)
    with fg.accumulate_grad():
        called(op, x, y).sum().backward()
    return [x, y, x.grad, y.grad]


def twice(op: Any) -> list[Any]:
    x, y = two_leaves()
    (gradient,) = torch.autograd.grad(called(op, x, y).sum(), x, create_graph=True)
    if gradient.requires_grad:
        gradient.sum().backward()
    return [x, y, gradient]


def without_a_backward(op: Any) -> list[Any]:
    x, y = two_leaves()
    return [x, y, called(op, x, y)]


def jvp(op: Any) -> list[Any]:
    x, y = (leaf.detach() for leaf in two_leaves())
    return [x, y, *torch.func.jvp(lambda x: called(op, x, y), (x,), (x,))]


def vmap(op: Any) -> list[Any]:
    x, y = (torch.rand(2, 3, 3) for _ in range(2))
    return [x, y, torch.func.vmap(lambda x, y: called(op, x, y))(x, y)]


def gradients_of_each(op: Any) -> list[Any]:
    x, y = torch.rand(2, 3, 3), torch.rand(3, 3)
    return [x, y, torch.func.vmap(torch.func.grad(lambda x: called(op, x, y).sum()))(x)]


def under_autocast(op: Any) -> list[Any]:
    with torch.autocast("cpu", torch.bfloat16):
        return backward(op)


def that_fail(op: Any) -> list[Any]:
    x, y = two_leaves()
    with pytest.raises((fg.FusegenError, TypeError)):
        called(op, x, torch.rand(2, 7), nope=1)
    return [x, y]


CALLS = [
    without_gradients, backward, adding, twice, without_a_backward, jvp, vmap, gradients_of_each, under_autocast,
    that_fail,
]  # fmt: skip


def alive(references: dict[str, list[Any]]) -> list[str]:
    gc.collect()
    return [name for name, watched in references.items() if any(reference() is not None for reference in watched)]


@pytest.mark.parametrize("make", OPS)
def test_an_op_goes_with_all_that_it_learned(make: Callable[[], Any]) -> None:
    """And tensors before it: no plan, no graph and no error holds them."""
    ops: dict[str, list[Any]] = {"op": []}
    for _ in range(3):
        op, tensors = make(), dict[str, list[Any]]()
        for calls in CALLS:
            tensors[calls.__name__] = [weakref.ref(one) for _ in range(3) for one in calls(op)]
        assert alive(tensors) == []
        ops["op"].append(weakref.ref(op))
        del op
    assert alive(ops) == []


@pytest.mark.parametrize("calls", CALLS)
def test_an_op_of_one_call_goes(calls: Callable[[Any], list[Any]]) -> None:
    """Each way of calling by itself: another one's plans keep nothing of it."""
    ops: dict[str, list[Any]] = {}
    for make in OPS:
        op = make()
        for _ in range(3):
            calls(op)
        ops[make.__name__] = [weakref.ref(op)]
        del op
    assert alive(ops) == []


def leaked(work: Callable[[], Any], times: int = 60, rounds: int = 30) -> int:
    """By how many blocks Python's memory grows in so many calls, in the round in which it grows least: free lists and
    caches fill up for some hundred calls, and then stay; what leaks grows in every round."""
    least = times
    for _ in range(rounds):
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(times):
            work()
        gc.collect()
        least = min(least, sys.getallocatedblocks() - before)
        if least < times // 4:
            break
    return least


@pytest.mark.parametrize("calls", CALLS)
def test_calls_leave_nothing(calls: Callable[[Any], list[Any]]) -> None:
    for make in (with_numbers, with_a_gradient, with_products):
        op = make()
        assert leaked(lambda op=op: calls(op)) < 15, make.__name__  # type: ignore[misc]


def by_overload(op: Any) -> Callable[[], list[Any]]:
    x, y = two_leaves()
    overload = op.overload(x, y)

    def call() -> list[Any]:
        x, y = two_leaves()
        result = overload(x, y)
        result = result[0] if isinstance(result, (tuple, list)) else result
        result.sum().backward()
        return [x, y, result, x.grad]

    return call


def compiled(op: Any) -> Callable[[], list[Any]]:
    torch._dynamo.reset()
    call = torch.compile(lambda x, y: called(op, x, y), backend="aot_eager", fullgraph=True)

    def run() -> list[Any]:
        x, y = two_leaves()
        result = call(x, y)
        result.sum().backward()
        return [x, y, result, x.grad]

    return run


@pytest.mark.parametrize("way", [by_overload, compiled])
def test_calls_of_registered_ops_leave_nothing(way: Callable[[Any], Callable[[], list[Any]]]) -> None:
    """Such an op itself stays, as what is registered with torch does: a graph may call it by its name. torch 2.9 keeps
    something of each call that it compiled, of its own functions too."""
    own = max(0, leaked(compiled(lambda x, y: torch.sin(x) * y))) if way is compiled else 0
    for make in (with_numbers, with_a_gradient, with_products):
        call = way(make())
        tensors = {make.__name__: [weakref.ref(one) for _ in range(3) for one in call()]}
        assert alive(tensors) == []
        assert leaked(call) < own + 15, make.__name__


def test_what_leaks_is_seen() -> None:
    kept: list[Any] = []
    assert leaked(lambda: kept.append(object())) >= 60

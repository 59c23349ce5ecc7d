"""Calls that autograd records, recognized (pytorch/calls): backwards give what the slow path gives."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import fusegen as fg
from fusegen.native import module as native
from fusegen.plan import frameworks
from fusegen.pytorch.autograd.function import Trained
from fusegen.pytorch.calls import native_cache, plan_cache
from fusegen.run.runner import Runner
from tests.support.call_paths import DEVICE, Counted, both
from tests.support.declarations import lerp, norm, torch_norm
from tests.support.oracles import leaves

pytestmark = pytest.mark.native

pytest_plugins = ("tests.support.call_paths",)


def test_gradients_again_and_again(fresh: Any) -> None:
    known = fresh(norm)
    for eps in (1e-5, 0.1, 1.0):
        x, weight = leaves((3, 8), (8,))
        ours, theirs = known(x, weight, eps=eps), torch_norm(x, weight, eps)
        cotangent = torch.randn_like(ours)
        for a, b in zip(*(torch.autograd.grad(r, (x, weight), cotangent) for r in (ours, theirs)), strict=True):
            torch.testing.assert_close(a, b)
    assert known.decided == 1


def in_python(op: fg.FusedOp) -> fg.FusedOp:
    """The op with an empty cache in Python, also where the native module is there."""
    made = fg.FusedOp(op.declaration)
    made._use(plan_cache.PlanCache(op.declaration, made._slow_path, in_python=True))
    return made


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[int]:
    """A list that gets an element with each call of a method."""
    calls: list[int] = []
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **named: calls.append(1) or original(*args, **named))
    return calls


@pytest.mark.cpu  # counts calls, which the suite's way of taking tensors to a GPU and back makes more of
def test_backwards_run_natively_from_the_second_on(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.module() is None:
        pytest.skip("no native call path")
    known = Counted(norm.declaration)
    asked = []
    original = native_cache.NativeBackward.__call__
    monkeypatch.setattr(native_cache.NativeBackward, "__call__", lambda *args: asked.append(1) or original(*args))
    with torch.device(DEVICE):
        x, weight = leaves((3, 8), (8,))
    for _ in range(4):
        result = known(x, weight)
        result.backward(torch.ones_like(result))
    assert known.decided == 1 and len(asked) == 1
    known(x, weight).backward(torch.ones((), dtype=torch.float64).expand(3, 8))
    assert len(asked) == 2, "another layout is another plan"


@pytest.mark.cpu
def test_backwards_are_replayed_in_python_from_the_second_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layout of a cotangent is decided once; what is differentiated again, always."""
    known = in_python(norm)
    decided = counted(monkeypatch, Trained, "asked")
    x, weight = leaves((3, 8), (8,))
    cotangents = [torch.randn(3, 8, dtype=x.dtype), torch.randn(8, 3, dtype=x.dtype).t()]

    def gradients(wanted: tuple[torch.Tensor, ...], cotangent: torch.Tensor, **named: Any) -> None:
        ours, theirs = (torch.autograd.grad(f(x, weight), wanted, cotangent, **named) for f in (known, plain))
        torch.testing.assert_close(ours, theirs)

    def plain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch_norm(x, weight, 1e-5)

    known(x, weight)
    for at, cotangent in enumerate(cotangents, 1):
        for wanted in ((x, weight), (x,), (weight,)):
            gradients(wanted, cotangent)
        assert len(decided) == at
    for at in range(2):
        gradients((x, weight), cotangents[0], create_graph=True)
        assert len(decided) == 3 + at


@pytest.mark.cpu
def test_a_backward_that_is_remembered_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of it is what runs: it is not decided a second time."""
    known = in_python(norm)
    x, weight = leaves((3, 8), (8,))
    result, expected = known(x, weight), torch_norm(x, weight, 1e-5)
    cotangent = torch.randn_like(result)
    methods = [(Trained, "asked"), (Runner, "planned"), (frameworks.Torch, "info")]
    asked, planned, read = (counted(monkeypatch, *each) for each in methods)
    found = torch.autograd.grad(result, (x, weight), cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(expected, (x, weight), cotangent))
    assert (len(asked), len(planned)) == (1, 1)
    assert len(read) <= 4, "each tensor that the backward reads, once"


MULTIPLIED = fg.op(lambda x, w: fg.tanh(x @ w), name="multiplied")
WITH_A_PRODUCT = fg.op(lambda x, w: x * fg.sum(w), name="with_a_product")
WITH_A_PRODUCT.gradient(lambda d_out, x, w: (d_out @ w, None))


@pytest.mark.cpu
@pytest.mark.parametrize("op", [norm, MULTIPLIED, WITH_A_PRODUCT])
def test_the_first_call_and_later_ones_share_their_backwards(op: fg.FusedOp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call is recorded by another node, which asks for gradients in the same place."""
    known = in_python(op)
    decided = counted(monkeypatch, Trained, "asked")
    x, w = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    cotangent = torch.randn(3, 3)
    found, counts = [], []
    for _ in range(4):
        found.append(torch.autograd.grad(known(x, w), (x, w), cotangent, allow_unused=True))
        counts.append(len(decided))
        torch.testing.assert_close(found[-1], found[0], rtol=0, atol=0)
    # That a gradient which was declared has products shows when it is planned, and it is planned anew for that.
    assert counts == ([1, 2, 2, 2] if op is WITH_A_PRODUCT else [1] * 4)


@pytest.mark.cpu
def test_a_backward_is_of_calls_with_the_same_arguments() -> None:
    """Those whose saved tensors and cotangents are alike may still differ in what is not read."""
    known = in_python(fg.op(lambda x, y: fg.sum(x, -1) * y, name="of_sums"))
    y = torch.randn(4)
    for x in (torch.randn(4, 3), torch.randn(4, 5), torch.randn(3, 4).t(), torch.randn(4, 3)):
        for _ in range(2):
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(known(leaf, y), leaf, torch.ones(4))
            torch.testing.assert_close(gradient, y[:, None].expand(x.shape))
            assert gradient.stride() == x.stride()


def test_who_needs_gradients_changes(fresh: Any) -> None:
    known = fresh(lerp)
    values = leaves((4, 3), (3,), (4, 1))
    for wanted in [(1, 0, 0), (0, 0, 0), (1, 1, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0), (1, 1, 1)]:
        x, y, w = (v.detach().requires_grad_(bool(flag)) for v, flag in zip(values, wanted, strict=True))
        out = known(x, y, w)
        assert out.requires_grad == any(wanted)
        asked = [t for t in (x, y, w) if t.requires_grad]
        if asked:
            ours = torch.autograd.grad(out.sum(), asked)
            for a, b in zip(ours, torch.autograd.grad((x + w * (y - x)).sum(), asked), strict=True):
                torch.testing.assert_close(a, b)
            with torch.no_grad():
                assert not known(x, y, w).requires_grad
            with torch.inference_mode():
                assert known(x, y, w).is_inference()
            with torch.no_grad(), torch.enable_grad():
                assert known(x, y, w).requires_grad


def test_threads_that_call_at_once_teach_one_thing(fresh: Any) -> None:
    """All of them make a first call: what is cached of one must not lack the gradients that another needs."""
    (x,) = leaves((4, 3))
    found: list[torch.Tensor] = []
    for _ in range(20):
        known, barrier = fresh(lerp), threading.Barrier(8)

        def work(known: Any = known, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            found.extend(known(x, x, 0.5) for _ in range(3))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [result.requires_grad for result in found] == [True] * (20 * 8 * 3)


def test_some_gradients_and_some_cotangents(fresh: Any) -> None:
    known = fresh(both)
    x, y = leaves((3, 4), (4,))
    for _ in range(3):
        first, larger, last = known(x, y)
        assert not larger.requires_grad and first.requires_grad and last.requires_grad
        (gx,) = torch.autograd.grad(last.sum(), x, retain_graph=True)
        (gy,) = torch.autograd.grad(first.sum(), y, retain_graph=True)
        torch.testing.assert_close(gx, y.expand(3, 4))
        torch.testing.assert_close(gy, torch.sin(x).sum(0))
        for a, b in zip(
            torch.autograd.grad(first.sum() + last.sum(), (x, y)), (torch.cos(x) * y + y, (torch.sin(x) + x).sum(0)),
            strict=True,
        ):  # fmt: skip
            torch.testing.assert_close(a, b)


def test_cotangents_of_any_layout(fresh: Any) -> None:
    known = fresh(lerp)
    x, y = leaves((6, 5), (5,))
    for _ in range(2):
        for cotangent in (
            torch.ones(()).double().expand(6, 5), torch.randn(5, 6).double().t(), torch.randn(6, 11).double()[:, 1::2],
        ):  # fmt: skip
            ours = torch.autograd.grad(known(x, y, 0.25), (x, y), cotangent)
            torch.testing.assert_close(ours, (0.75 * cotangent, 0.25 * cotangent.sum(0)))
            assert ours[0].stride() == x.stride()


def test_the_same_tensor_twice_and_then_two(fresh: Any) -> None:
    """A backward must not be cached from a call where two arguments cannot be told apart."""
    known = fresh(fg.op(lambda x, y: x * x * y, name="cubed"))
    (x, y) = leaves((4,), (4,))
    known(x, y)  # so that the next call's backward is the first one that is learnt
    for a, b in [(x, x), (x, y), (y, x), (x, x)]:
        ours = torch.autograd.grad(known(a, b).sum(), (x, y), allow_unused=True)
        theirs = torch.autograd.grad((a * a * b).sum(), (x, y), allow_unused=True)
        for mine, other in zip(ours, theirs, strict=True):
            assert (mine is None) == (other is None)
            if mine is not None:
                torch.testing.assert_close(mine, other)


def test_double_backward_after_plain_ones(fresh: Any) -> None:
    known = fresh(norm)
    x, weight = leaves((3, 8), (8,))
    for _ in range(2):
        torch.autograd.grad(known(x, weight).square().sum(), (x, weight))
    ours, theirs = known(x, weight), torch_norm(x, weight, 1e-5)
    found = []
    for result in (ours, theirs):
        gradients = torch.autograd.grad(result.square().sum(), (x, weight), create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in gradients), (x, weight)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    assert torch.autograd.gradcheck(known, (x, weight), check_batched_grad=False)


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
def test_graphs_are_walked_as_torch_walks_them(fresh: Any) -> None:
    known = fresh(fg.op(lambda x, y: x * y, name="product"))
    x, y = leaves((3,), (3,))
    for _ in range(2):
        out = known(x, y)
        first = torch.autograd.grad(out.sum(), x, retain_graph=True)
        assert torch.equal(torch.autograd.grad(out.sum(), x)[0], first[0])
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            torch.autograd.grad(out.sum(), x)
        hidden = x * 1
        out = known(hidden, y)
        hidden.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
        seen: list[Any] = []
        out = known(x, y)
        out.register_hook(seen.append)
        assert out.grad_fn is not None
        out.grad_fn.register_hook(lambda inputs, outputs, seen=seen: seen.append(inputs))
        out.sum().backward()
        assert len(seen) == 2
        (gx,) = torch.autograd.grad(checkpoint(known, x, y, use_reentrant=False).sum(), x)
        assert torch.equal(gx, y)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone() * 2, lambda t: t / 2):
            out = known(x, y)
        assert torch.equal(torch.autograd.grad(out.sum(), x)[0], y)
        with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="returned nan values"):
            known(x, y * math.nan).sum().backward()


def test_gradients_by_threads(fresh: Any) -> None:
    known = fresh(lerp)
    wrong = []

    def work() -> None:
        for _ in range(20):
            x, y = (torch.ones(4, device=DEVICE).requires_grad_() for _ in range(2))
            known(x, y, 0.25).sum().backward()
            if not (x.grad == 0.75).all() or not (y.grad == 0.25).all():
                wrong.append((x.grad, y.grad))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_overridden_gradient_replaces_what_was_learnt(fresh: Any) -> None:
    known = fresh(fg.op(lambda x: 2 * x, name="doubled"))
    x = torch.ones(3).requires_grad_()
    for _ in range(2):
        assert torch.autograd.grad(known(x).sum(), x)[0].tolist() == [2] * 3
    known.gradient(lambda d_out, x: 5 * d_out)
    for _ in range(2):
        assert torch.autograd.grad(known(x).sum(), x)[0].tolist() == [5] * 3

"""Constants that never end: an op is traced and compiled for each, and what was not asked for longest is forgotten."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen import fused_op as ops
from fusegen import pipeline
from fusegen.core import locks
from fusegen.core.recent import Recent
from fusegen.declare import op as declarations
from fusegen.generate.rendered import Rendered
from fusegen.launch.cache import default_cache
from fusegen.plan import targets
from fusegen.pytorch.library.registry import registered
from fusegen.run.runner import Runner

SMALL = 4


@fg.op
def odd_or_even(x, n: fg.Const = 0):
    """Two kernels for all constants."""
    return fg.exp(x) if n % 2 else fg.exp(-x)


@fg.op
def scaled(x, n: fg.Const = 1):
    """A kernel for each constant."""
    return fg.exp(x) * n


def test_thousands_of_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations, "MOST_TRACES", 100)
    monkeypatch.setattr(ops, "MOST_RUNNERS", 50)
    op = fg.op(odd_or_even.declaration.function)

    @op.gradient
    def _(d_out, x, n):  # type: ignore[no-untyped-def]
        return d_out * (n % 5)

    x = torch.tensor([0.0, 1.0], requires_grad=True)
    for n in (*range(2000), *range(30)):
        out = op(x, n)
        torch.testing.assert_close(out, torch.exp(x if n % 2 else -x))
        (gradient,) = torch.autograd.grad(out.sum(), x)
        assert gradient.tolist() == [n % 5] * 2, (
            "the gradient that was declared is called with the constant of its call"
        )
    assert len(op.declaration.traces) <= 100 and len(op._runners) <= 50


def test_a_declared_gradient_knows_its_call_however_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations, "MOST_TRACES", 3)
    op = fg.op(odd_or_even.declaration.function)
    op.gradient(lambda d_out, x, n: d_out * (n % 5))
    x = torch.ones(2, requires_grad=True)
    outs = [op(x, n) for n in range(12)]
    gradients = [torch.autograd.grad(out.sum(), x)[0].tolist() for out in outs]
    assert gradients == [[n % 5] * 2 for n in range(12)]


def mapped() -> int:
    """How often this process has mapped a file of the cache."""
    maps = Path("/proc/self/maps")
    return maps.read_text().count(str(default_cache().folder)) if maps.exists() else 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table is small."""
    monkeypatch.setattr(declarations, "MOST_TRACES", SMALL)
    monkeypatch.setattr(ops, "MOST_RUNNERS", SMALL)
    monkeypatch.setattr(pipeline, "_compiled", Recent(SMALL))
    monkeypatch.setattr("fusegen.pytorch.calls.plan_cache.MOST_PLANS", SMALL)
    monkeypatch.setattr(targets.cpu(), "_loaded", Recent(SMALL))
    gc.collect()
    gc.freeze()  # what is there already would be gone through for each constant


@pytest.mark.cpu
def test_kernels_are_unloaded(small: None) -> None:
    """Also those that plans of the native call path launched."""
    op = fg.op(scaled.declaration.function)
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    kernels = weakref.WeakSet[Any]()
    counts = []
    for n in (*range(2, 22), *range(2, 8)):
        for _ in range(2):  # on the slow path, and on the call path
            out = op(x, n)
            torch.testing.assert_close(out, torch.exp(x) * n)
            torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], torch.exp(x) * n)
        for loaded in targets.cpu()._loaded._items.values():
            kernels.add(loaded)
        gc.collect()
        counts.append((len(kernels), mapped()))
    assert len(pipeline._compiled) <= SMALL and len(op.declaration.traces) <= SMALL
    # A forward and a backward for each constant that some table still holds.
    assert max(alive for alive, _ in counts) <= 4 * SMALL < 2 * 20
    assert counts[-1][1] <= counts[3 * SMALL][1], "libraries stay mapped"


def test_what_a_graph_names_is_derived_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusegen.pytorch.library.registry.MOST_DERIVED", 2)
    op = fg.op(scaled.declaration.function, name="scaled_by_constants")
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    compiled = [torch.compile(lambda x, n=n: op(x, n), fullgraph=True, backend="aot_eager") for n in range(2, 6)]
    for _ in range(2):
        for n, function in enumerate(compiled, 2):
            out = function(x)
            torch.testing.assert_close(out, torch.exp(x) * n)
            torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], torch.exp(x) * n)
    assert len(registered(op).texts) <= 2 and len(registered(op).calls) <= 2


@pytest.mark.cpu
def test_plans_that_are_asked_for_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that never end push out what nobody asks for, and not what is asked for between them."""
    monkeypatch.setattr("fusegen.run.runner.MOST_PLANS", 3)
    monkeypatch.setattr("fusegen.pytorch.autograd.function._MOST", 3)
    planned: list[tuple[str, Any]] = []
    original = Runner.plan_for

    def watched(self: Runner, infos: Any, *said: Any) -> Any:
        planned.append((self.op.label, next(iter(infos.values())).shape))
        return original(self, infos, *said)

    monkeypatch.setattr(Runner, "plan_for", watched)
    op = fg.op(lambda x: fg.exp(x) * x, name="of_any_size")
    for size in range(3, 12):
        for shape in ((size,), (2,)):
            x = torch.ones(shape, requires_grad=True)
            (gradient,) = torch.autograd.grad(op._slow_path((x,), {}).sum(), x, create_graph=True)
            torch.testing.assert_close(gradient, 2 * torch.exp(x))
    assert len(planned) == len(set(planned)), "nothing was planned twice"
    (runner,) = (op._runners.get(key) for key in op._runners)
    (trained,) = runner.trained.values()
    assert len(trained.forward.plans) == len(trained.calls) == 3


def test_a_table_forgets_what_was_not_asked_for_longest() -> None:
    table: Recent[str, int] = Recent(3)
    for number, key in enumerate("abc"):
        table.put(key, number)
    assert table.get("a") == 0 and table.setdefault("b", 9) == 1 and table.setdefault("d", 3) == 3
    assert list(table) == ["a", "b", "d"] and table.get("c") is None
    table.put("a", 7)
    assert table.get("a") == 7 and len(table) == 3 and table.values() == [1, 3, 7]
    table.clear()
    assert len(table) == 0


def test_a_gpu_that_keeps_many_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "MOST_LOADED", 3)
    gpu = object.__new__(targets.GpuTarget)
    gpu.name, gpu._loaded, gpu._lock = "cuda:0", {}, locks.lock()
    monkeypatch.setattr(gpu, "_load", lambda *_: object(), raising=False)
    with pytest.warns(fg.FusegenWarning, match=r"3 kernels are loaded on cuda:0(.|\n)*fg\.Scalar") as told:
        for n in range(5):
            gpu._found(Rendered(f"kernel {n}", "k", None, False), "k", "an op")
    assert len(told) == 1

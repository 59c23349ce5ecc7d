"""Calls like an earlier one (pytorch/calls) give what the slow path gives, in Python and natively."""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.plan import targets
from fusegen.pytorch.calls import plan_cache
from tests.support.call_paths import CALLS, DEVICE, misaligned, same, shifted, tensors
from tests.support.declarations import lerp, norm

pytestmark = pytest.mark.native

pytest_plugins = ("tests.support.call_paths",)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_again_what_it_gave(fresh: Any, name: str) -> None:
    op, make = CALLS[name]
    known = fresh(op)
    for repeat in range(3):
        args, kwargs = make()
        same(known(*args, **kwargs), fg.FusedOp(op.declaration)(*args, **kwargs))
        assert known.decided == 1, f"call {repeat} was not recognized"


def test_different_calls_are_told_apart(fresh: Any) -> None:
    """All layouts in turn through one op, then again: each finds its own plan and no other."""
    known = fresh(lerp)
    calls = [make for op, make in CALLS.values() if op is lerp]
    for _ in range(2):
        for make in calls:
            args, kwargs = make()
            same(known(*args, **kwargs), fg.FusedOp(lerp.declaration)(*args, **kwargs))
    assert known.decided <= len(calls)


def test_every_property_of_a_tensor_counts(fresh: Any) -> None:
    known = fresh(lerp)
    x = torch.randn(4, 4)
    alike = [x.clone(), x[:, :3].clone().t()[:3, :3], x[:3, :3], x.double(), misaligned(16).view(4, 4), x.view(16)]
    for count, y in enumerate(alike, 1):
        for _ in range(2):
            known(y, y, 0.5)
            assert known.decided == count


def test_tensors_that_an_op_passes_on_are_told_apart(fresh: Any) -> None:
    """The op looks at its arguments itself: which one it passed on where shows only in which tensors they are."""
    known = fresh(fg.ops.batch_norm)
    x, mean, var = torch.randn(4, 3), torch.rand(3), torch.rand(3)
    for one, other in [(var, var), (mean, var), (mean, var)]:
        expected = torch.nn.functional.batch_norm(x, one, other)
        torch.testing.assert_close(known(x, one, other), expected)
    assert known.decided == 2


def test_numbers_are_handed_over_and_constants_are_not(fresh: Any) -> None:
    known = fresh(shifted)
    x = torch.zeros(4)
    for scale in (1.0, 2.0, math.inf, 3.5):
        assert known(x + 1, scale=scale).tolist() == [scale] * 4
    assert known.decided == 1
    for by in (0.0, -0.0, math.nan, -0.0, float("nan"), 0.0, 1.0):
        got = known(-x, by=by)[0].item()
        assert (math.isnan(got) and math.isnan(by)) or (got == by and math.copysign(1, got) == math.copysign(1, by))
    assert known.decided == 1 + 4, "0.0, -0.0, NaN and 1.0 are four constants"
    assert known(x, scale=True).dtype is torch.float32 and known.decided == 6
    assert known(torch.ones(2, 3), axes=(0,)).tolist() == [2] * 3
    assert known(torch.ones(2, 3), axes=(1,)).tolist() == [3] * 2
    assert known(torch.ones(2, 3), axes=(0, 1)).item() == 6


def test_numbers_beyond_64_bits_are_refused_as_ever(fresh: Any) -> None:
    known = fresh(lerp)
    x = torch.ones(4)
    known(x, x, 2)
    with pytest.raises(fg.DeclarationError, match="an int that fits 64 bits"):
        known(x, x, 2**64)


def test_options_that_an_op_checks_are_checked_on_every_call(fresh: Any) -> None:
    known = fresh(fg.ops.softshrink)
    x = torch.randn(8)
    for lambd in (0.5, 1.0, 0.5):
        assert torch.equal(known(x, lambd), torch.nn.functional.softshrink(x, lambd))
    assert known.decided == 2
    with pytest.raises(fg.DeclarationError, match="option lambd"):
        known(x, -1.0)


def message(work: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as caught:
        work()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_errors_are_those_of_a_first_call(fresh: Any) -> None:
    x = torch.randn(4)
    freed = torch.randn(4)
    freed.untyped_storage().resize_(0)
    negated = torch.view_as_complex(torch.randn(4, 2)).conj().imag
    wrong: list[tuple[Any, ...]] = [
        (x, torch.randn(3), 0.5), (x, x.to(torch.complex64), 0.5), (x, x.to_sparse(), 0.5), (x, x.to("meta"), 0.5),
        (x, freed, 0.5), (x, x), (x, x, 0.5, 0.5), (x, [1.0], 0.5), (x, negated, 0.5),
    ]  # fmt: skip
    known = fresh(lerp)
    for _ in range(2):
        known(x, x, 0.5)
    for args in wrong:
        assert message(lambda args=args: known(*args)) == message(lambda args=args: fg.FusedOp(lerp.declaration)(*args))
    assert message(lambda: known(x, x, v=1)) == message(lambda: fg.FusedOp(lerp.declaration)(x, x, v=1))


def test_results_are_written_where_they_are_wanted(fresh: Any) -> None:
    known = fresh(lerp)
    x, y = tensors((4,), (4,))
    expected = known(x, y, 0.25)
    target = torch.empty(4)
    for _ in range(2):
        assert known(x, y, 0.25, out=target) is target
        assert torch.equal(target, expected)
    assert known(x, y, 0.25, out=x) is x and torch.equal(x, expected)


def test_subclasses_and_modes_take_the_slow_path(fresh: Any) -> None:
    known = fresh(lerp)
    x = torch.randn(4)
    known(x, x, 0.5)
    known(torch.nn.Parameter(x, requires_grad=False), x, 0.5)
    assert known.decided == 1, "a parameter is a tensor"

    class Mine(torch.Tensor):
        pass

    known(x.as_subclass(Mine), x, 0.5)  # type: ignore[no-untyped-call]
    before = known.decided
    assert before > 1
    with torch.autograd.forward_ad.dual_level(), contextlib.suppress(fg.FusegenError):
        known(torch.autograd.forward_ad.make_dual(x, x), x, 0.5)
    assert known.decided > before


def test_autocast_is_part_of_what_a_plan_depends_on(fresh: Any) -> None:
    known = fresh(lerp)
    x = torch.ones(4)
    for on in (False, True, False, True):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=on):
            known(x, x, 0.5)
    with torch.autocast(x.device.type, torch.float16):
        known(x, x, 0.5)
    assert known.decided == 3


@pytest.mark.parametrize("count", [3, 4])
def test_cells_with_their_products_are_recognized(fresh: Any, count: int) -> None:
    known = fresh(fg.ops.linear_gru_cell if count == 3 else fg.ops.linear_lstm_cell)
    states = tensors(*[(2, 5)] * (count - 2))
    given = [*tensors((2, 3)), *states, *tensors((5 * count, 3), (5 * count, 5))]
    expected = known(*given)
    for _ in range(2):
        torch.testing.assert_close(known(*given), expected)
        assert known.decided == 1


def test_a_call_path_holds_no_tensors(fresh: Any) -> None:
    known = fresh(norm)
    x, weight = torch.randn(3, 8), torch.randn(8).requires_grad_()
    result = known(x, weight)
    torch.autograd.grad(result.sum(), weight)
    known(x, weight.detach())
    watched = [weakref.ref(x), weakref.ref(result)]
    del x, result
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_an_op_that_its_own_plans_hold_goes(fresh: Any) -> None:
    """tests/calls/test_leaks.py has all kinds of ops and calls; this one the sanitizers see too."""

    def make() -> Any:
        declared = fg.op(lambda x, y: fg.sin(x) * y, name="declared")
        known: Any = fresh(declared)
        declared.gradient(lambda d_out, x, y: (d_out * y, d_out * x if known else None))
        return known

    known = make()
    x = torch.randn(4).requires_grad_()
    for _ in range(3):
        torch.autograd.grad(known(x, x.detach()).sum(), x)
    watched = weakref.ref(known)
    del known
    gc.collect()
    assert watched() is None


def test_the_oldest_plans_go(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MOST_PLANS", 8)
    known = fresh(lerp)
    for size in range(1, 31):
        x = torch.randn(size)
        assert torch.equal(known(x, x, 0.5), x)
        assert len(known._cached) <= 8
    known(torch.randn(30), torch.randn(30), 0.5)
    known(torch.randn(23), torch.randn(23), 0.5)
    assert known.decided == 30
    known(torch.randn(1), torch.randn(1), 0.5)
    assert known.decided == 31


def test_threads_that_call_first_together(fresh: Any) -> None:
    known = fresh(fg.op(lambda x, y: x * y + 1, name="together"))
    start, wrong = threading.Barrier(8), []

    def work(size: int) -> None:
        start.wait()
        for i in range(20):
            x = torch.full((size, 2 + i % 3), 2.0, device=DEVICE)
            if not torch.equal(known(x, x), torch.full_like(x, 5)):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(1 + i % 4,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(known._cached) == 12


def in_a_worker(results: Any) -> None:
    torch.set_num_threads(1)
    x = torch.ones(4).requires_grad_()
    for _ in range(2):
        out = lerp(x, x * 3, 0.5)
    results.put((out.tolist(), torch.autograd.grad(out.sum(), x)[0].tolist()))


@pytest.mark.cpu  # a forked process has no GPU
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes(method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    lerp(torch.ones(4), torch.ones(4), 0.5)
    context = multiprocessing.get_context(method)
    results = context.Queue()
    worker = context.Process(target=in_a_worker, args=(results,))
    worker.start()
    found = results.get(timeout=120)
    worker.join()
    assert found == ([2.0] * 4, [2.0] * 4)


def test_a_default_device_does_not_slow_calls_down(fresh: Any) -> None:
    """``torch.device`` as a context, and ``torch.set_default_device``, are modes that no tensor's function asks."""
    known = fresh(lerp)
    x, y = tensors((4, 3), (4, 3))
    with torch.device(x.device):
        for _ in range(3):
            known(x, y, 0.5)
    assert known.decided == 1


def users_own() -> Any:
    """A mode that happens to be called like torch's."""

    class DeviceContext(torch.overrides.TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += isinstance(func, fg.FusedOp)
            return func(*args, **(kwargs or {}))

    return DeviceContext()


def derived_from_torchs() -> Any:
    class Counting(torch.utils._device.DeviceContext):
        seen = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += isinstance(func, fg.FusedOp)
            return super().__torch_function__(func, types, args, kwargs or {})

    return Counting(torch.device(DEVICE))


@pytest.mark.parametrize("make", [users_own, derived_from_torchs])
def test_a_mode_is_told_by_its_type(fresh: Any, make: Callable[[], Any]) -> None:
    known = fresh(lerp)
    x, y = tensors((4, 3), (4, 3))
    for _ in range(3):
        known(x, y, 0.5)
    mode = make()
    with mode:
        for calls in range(1, 4):
            same(known(x, y, 0.5), x + 0.5 * (y - x))
            assert mode.seen == calls


def test_a_tensor_without_memory_is_not_an_empty_one(fresh: Any) -> None:
    """Neither has an address."""
    known = fresh(lerp)
    empty = torch.empty(0, 4)
    for where in ("cpu", "meta"):
        assert known(*[empty.to(where)] * 3).device.type == where


class Context:
    """A device's context, which is current or not, and who has entered it."""

    def __init__(self) -> None:
        self.current, self.entered = False, 0

    def is_current(self) -> bool:
        return self.current

    def __enter__(self) -> None:
        self.entered += 1

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.cpu
def test_a_single_launch_enters_the_context_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not current already, as in a thread that has done nothing on the device."""
    context = Context()
    monkeypatch.setattr(targets.cpu(), "context", context, raising=False)
    known = fg.FusedOp(lerp.declaration)
    known._use(plan_cache.PlanCache(known.declaration, known._slow_path, in_python=True))
    x, y, w = tensors((5,), (5,), (5,))
    for current, entered in ((False, 0), (False, 1), (True, 1)):  # the first call is the slow path's
        context.current = current
        torch.testing.assert_close(known(x, y, w), torch.lerp(x, y, w))
        assert context.entered == entered

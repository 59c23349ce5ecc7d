"""Where candidates are measured, by one thread at a time, and what becomes of a choice when torch is set otherwise.

The libraries are fakes on the CPU (tests/support/fake_cublaslt.py, tests/support/fake_cudnn.py).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.matmul.epilogue import Epilogue
from fusegen.matmul.libraries import cublaslt_autotune, stopwatch
from fusegen.matmul.task import Factors
from fusegen.native import module as native
from fusegen.run import libraries
from tests.matmul.test_algorithms import FASTER, halves, linear, lt, plain
from tests.matmul.test_cudnn import dnn, linear_silu
from tests.support.call_paths import DEVICE, Counted
from tests.support.fake_cublaslt import Clock, CublasLt
from tests.support.fake_cudnn import Cudnn

pytestmark = pytest.mark.native

pytest_plugins = ("tests.support.call_paths",)
__all__ = ["dnn", "lt"]  # fixtures

TIMES = {**FASTER, libraries.OWN: 90.0, libraries.CUBLASLT: 60.0, libraries.CUDNN: 50.0}


# -- where, and by whom -----------------------------------------------------------------------------------------------


class Watched(Clock):
    """Says where it was when it was made and used, and whether it was alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, TIMES)
        self.seen: list[Any] = []
        self.at_work = self.most_at_work = 0
        self.current: list[Any] = ["elsewhere"]
        monkeypatch.setattr(stopwatch, "Stopwatch", self.made)
        monkeypatch.setattr(torch.cuda, "device_of", self.device_of)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", self.capturing)

    @contextmanager
    def device_of(self, tensor: torch.Tensor) -> Iterator[None]:
        self.current.append(tensor.device)
        yield
        self.current.pop()

    def capturing(self) -> bool:
        self.seen.append(self.current[-1])
        return False

    def made(self, *_: Any, device: Any = "torch's current one", **__: Any) -> Watched:
        self.seen += [device, self.current[-1]]
        return self

    def turns(self, works: Any) -> dict[str, float]:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        time.sleep(0.02)
        found = super().turns(works)
        self.at_work -= 1
        return found


def relu(x: Any, w: Any, b: Any) -> Any:
    return fg.ops.relu(fg.linear(x, w, b))


def test_a_product_is_measured_where_its_tensors_are(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the GPU that is current: whether a graph is captured there, and what is timed."""
    clock = Watched(monkeypatch)
    x, w, b = halves(16, 24), halves(32, 24), halves(32)
    fg.op(linear.declaration.function, name="alone")(x, w, b)
    fg.op(relu, name="with_an_epilogue")(x, w, b)
    assert clock.measured and len(clock.seen) > 6 and set(clock.seen) == {x.device}


def test_one_product_is_measured_at_a_time(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, or with an epilogue: two at once would time each other. What a thread waited for it does not measure."""
    clock = Watched(monkeypatch)
    start, wrong = threading.Barrier(6), list[BaseException]()

    def work(place: int) -> None:
        try:
            op = fg.op(relu if place % 2 else linear.declaration.function, name="layer")
            x, w, b = halves(16, 24 + 8 * (place // 4)), halves(32, 24 + 8 * (place // 4)), halves(32)
            start.wait()
            found, expected = op(x, w, b), F.linear(x, w, b)
            torch.testing.assert_close(found, expected.relu() if place % 2 else expected, rtol=0.01, atol=0.02)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and clock.most_at_work == 1
    epilogues = [names for names in clock.measured if libraries.CUBLASLT in names]
    assert len(epilogues) == 1, "both sizes are in one bucket"


class Torchs:
    """torch.cuda with two GPUs, of which one is current: where each event, and what is timed, took place."""

    def __init__(self) -> None:
        self.now, self.seen = 0, set[tuple[str, int]]()
        self.cuda, self.uint8, self.device = self, torch.uint8, torch.device
        self.Event = lambda **_: self

    def current_device(self) -> int:
        return self.now

    def empty(self, *_: Any, device: torch.device, **__: Any) -> Any:
        self.seen.add(("memory", device.index))
        return self

    @contextmanager
    def entered(self, device: torch.device) -> Iterator[None]:
        before, self.now = self.now, device.index
        yield
        self.now = before

    def __getattr__(self, name: str) -> Callable[..., float]:
        def act(*_: Any) -> float:
            self.seen.add((name, self.now))
            return 1.0

        return act


def test_a_stopwatch_stays_on_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Torchs()
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(torch, "empty", fake.empty)
    watch = stopwatch.Stopwatch(3, device="cuda:1")
    monkeypatch.undo()
    fake.device = fake.entered  # type: ignore[assignment]  # torch.cuda.device, for what is timed
    watch.torch = fake  # type: ignore[assignment]
    assert watch.turns({"one": lambda: fake.work()}) == {"one": 1000.0}
    assert {place for _, place in fake.seen} == {1} and ("work", 1) in fake.seen and ("record", 1) in fake.seen
    assert fake.now == 0


# -- what torch is set to ---------------------------------------------------------------------------------------------


@contextmanager
def sums_of_halves() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_fp16_accumulation = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_fp16_accumulation = False


@contextmanager
def multiprocessors_left_free() -> Iterator[None]:
    torch._C._set_sm_carveout_experimental(8)
    try:
        yield
    finally:
        torch._C._set_sm_carveout_experimental(None)


@contextmanager
def no_cudnn() -> Iterator[None]:
    before = torch.backends.cudnn.enabled
    torch._C._set_cudnn_enabled(False)  # torch's own test helpers forbid to assign to the flag
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(before)


def training(call: Callable[..., Any]) -> Callable[[], None]:
    def run() -> None:
        own = [tensor.requires_grad_() for tensor in (halves(16, 24), halves(32, 24), halves(32))]
        result = call(*own)
        torch.autograd.grad(result, own, torch.ones_like(result))

    return run


def inference(call: Callable[..., Any]) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            call(halves(16, 24), halves(32, 24), halves(32))

    return run


@pytest.mark.parametrize("setting", [sums_of_halves, multiprocessors_left_free])
@pytest.mark.parametrize("work", [training, inference])
@pytest.mark.parametrize("function", [linear.declaration.function, relu])
def test_what_torch_is_told_holds_from_the_next_call_on(
    fresh: Any, lt: CublasLt, monkeypatch: pytest.MonkeyPatch, setting: Any, work: Any, function: Any
) -> None:
    Clock(monkeypatch, TIMES)
    known: Counted = fresh(fg.op(function, name="layer"))
    run = work(known)
    for _ in range(2):
        for _ in range(3):
            run()
        lt.used.clear()
        run()
        assert lt.used, "by cuBLASLt's algorithm"
        lt.used.clear()
        with setting():
            for _ in range(3):
                run()
            assert not lt.used, "as torch is set to"
        careful = known.decided
        run()
        assert lt.used and known.decided == careful, "a plan for each answer stays"


@pytest.mark.parametrize("work", [training, inference])
def test_cudnn_can_be_switched_off_and_on(fresh: Any, dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    Clock(monkeypatch, TIMES)
    (entry,) = libraries.LIBRARIES
    monkeypatch.setattr(libraries, "LIBRARIES", (replace(entry, is_considered=lambda _: torch.backends.cudnn.enabled),))
    run = work(fresh(linear_silu))
    for _ in range(2):
        for _ in range(3):
            run()
        dnn.ran.clear()
        run()
        assert dnn.ran
        dnn.ran.clear()
        with no_cudnn():
            for _ in range(3):
                run()
        assert not dnn.ran
    with sums_of_halves():
        for _ in range(3):
            run()
    assert not dnn.ran, "its kernels add up in float32"


def test_so_it_does_for_registered_ops(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python, where the fast path before torch's dispatcher knows them, and from compiled code of C++."""
    if native.module() is None:
        pytest.skip(f"no native call path: {native.problem()}")
    Clock(monkeypatch, TIMES)
    x, w = halves(16, 24), halves(24, 32)
    overload = fg.FusedOp(plain.declaration).overload(x, w)
    scripted = torch.jit.trace(lambda x, w: overload(x, w), (x, w), check_trace=False)  # type: ignore[no-untyped-call]
    for call in (overload, scripted):
        for _ in range(4):
            call(x, w)
        lt.used.clear()
        call(x, w)
        assert lt.used
        lt.used.clear()
        with sums_of_halves():
            for _ in range(3):
                call(x, w)
            assert not lt.used
        call(x, w)
        assert lt.used


def test_products_with_their_own_loop_ask_each_time(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a loss behind a linear layer."""
    Clock(monkeypatch, TIMES)
    given = Factors(halves(16, 24), halves(24, 32), None, None, halves(16, 32))
    cublaslt_autotune.multiply(given)
    lt.used.clear()
    with multiprocessors_left_free():
        cublaslt_autotune.multiply(given)
        assert not lt.used
    cublaslt_autotune.multiply(given)
    assert lt.used


# -- how exact --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_function_that_a_library_approximates_is_taken_for_halves_only(dtype: torch.dtype) -> None:
    gelu = Epilogue("gelu", "bias")
    short = {torch.float64: 0.7978845608, torch.float32: 0.7979}.get(dtype, 0.79788)  # sqrt(2 / pi), digits missing

    def multiply(coefficient: float) -> Callable[[Epilogue, Factors], None]:
        def run(epilogue: Epilogue, given: Factors) -> None:
            assert given.bias is not None
            total = given.bias.double() + given.left.double() @ given.right.double()
            given.out.copy_(0.5 * total * (1 + (coefficient * (total + 0.044715 * total**3)).tanh()))

        return run

    exact, approximate = (
        replace(libraries.LIBRARIES[0], run=multiply(coefficient)) for coefficient in (math.sqrt(2 / math.pi), short)
    )
    assert libraries._is_right(exact, gelu, dtype, "cpu")
    assert libraries._is_right(approximate, gelu, dtype, "cpu") == (dtype.itemsize == 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_what_is_written_without_gradients_is_as_exact(name: str, dtype: torch.dtype) -> None:
    x, w, b = (torch.randn(*shape, dtype=dtype, device=DEVICE) for shape in ((300, 64), (1000, 64), (1000,)))
    options = {"approximate": "tanh"} if name == "gelu" else {}
    for _ in range(2):  # measured by the first call, chosen in the second
        found = getattr(fg.ops, f"linear_{name}")(x, w / 8, b, **options)
    wanted = getattr(F, name)(F.linear(x.double(), w.double() / 8, b.double()), **options)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), wanted, rtol=64 * eps, atol=64 * eps)

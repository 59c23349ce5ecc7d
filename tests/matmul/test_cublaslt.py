"""cuBLASLt's epilogues: which ops could go that way, which do, and what is kept for the backward.

On the CPU the library is a fake that reads and writes the memory it is given (tests/support/fake_cublaslt.py).
"""

import gc
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import fusegen as fg
from fusegen.cli import doctor
from fusegen.core.products import biases, products
from fusegen.derive.training import train
from fusegen.inspect import passes as inspect
from fusegen.matmul.epilogue import Epilogue
from fusegen.matmul.libraries import cublaslt, cublaslt_api, cublaslt_autotune, cublaslt_epilogues, stopwatch
from fusegen.matmul.libraries.cublaslt import Planned
from fusegen.matmul.task import Factors
from fusegen.native import module as native
from fusegen.run import libraries
from fusegen.run.libraries import CUBLASLT, OWN
from tests.support import fake_cublaslt
from tests.support.fake_cublaslt import Clock, CublasLt

linear_gelu = fg.ops.linear_gelu
KEPT, PLAIN = Epilogue("gelu", "b", "saved"), Epilogue("gelu")


def halves(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def gelu(x: torch.Tensor, w: torch.Tensor, b: Any = None) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh")


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[CublasLt]:
    """The fake, considered on the CPU, with nothing measured or planned."""
    if os.environ.get("FUSEGEN_TEST_DEVICE"):
        pytest.skip("the fake reads the CPU's memory")
    with fake_cublaslt.installed(monkeypatch, str(tmp_path)) as fake:
        yield fake


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("left", "right"), [(False, False), (False, True), (True, False), (True, True)])
def test_factors_bias_and_kept_sum_are_handed_over_as_they_lie(
    lt: CublasLt, left: bool, right: bool, dtype: torch.dtype
) -> None:
    x = halves(24, 16, dtype=dtype).mT if left else halves(16, 24, dtype=dtype)
    w = halves(40, 24, dtype=dtype).mT if right else halves(24, 48, dtype=dtype)[:, :40]
    b, out, preactivation = halves(40, dtype=dtype), halves(16, 40, dtype=dtype), halves(16, 48, dtype=dtype)[:, :40]
    given = Factors(x, w, b, preactivation, out)
    assert cublaslt_epilogues.is_ready(KEPT, given)
    cublaslt_epilogues.run(KEPT, given)
    total = x.float() @ w.float() + b.float()
    torch.testing.assert_close(preactivation, total.to(dtype))
    torch.testing.assert_close(out, F.gelu(total, approximate="tanh").to(dtype))
    assert set(lt.ran) == {"GELU_AUX_BIAS"}


def test_memory_that_is_not_aligned_goes_another_way(lt: CublasLt) -> None:
    x, w, out = halves(16, 24), halves(24, 40), halves(16, 40)
    assert cublaslt_epilogues.is_ready(PLAIN, Factors(x, w, None, None, out))
    for wrong in (
        Factors(halves(16, 25)[:, 1:], w, None, None, out),
        Factors(x, halves(24, 41)[:, :40], None, None, out),
        Factors(x, w, None, None, halves(16, 44)[:, :40]),
        Factors(x, halves(24, 80)[:, ::2], None, None, out),
    ):
        assert not cublaslt_epilogues.is_ready(PLAIN, wrong)
    bias = halves(41)[1:]
    assert not cublaslt_epilogues.is_ready(KEPT, Factors(x, w, bias, halves(16, 40), out))


def test_plans_hold_no_tensor_and_are_destroyed(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt_autotune, "MOST_PLANNED", 2)
    for columns in (8, 16, 24):
        given = Factors(halves(8, 8), halves(8, columns), None, None, halves(8, columns))
        assert cublaslt_epilogues.is_ready(PLAIN, given)
    gc.collect()
    assert len(cublaslt_autotune._planned) == 1 and len(lt.things) == 4  # operation, three layouts


def test_threads_share_a_plan(lt: CublasLt) -> None:
    given = [Factors(halves(8, 8), halves(8, 8), halves(8), halves(8, 8), halves(8, 8)) for _ in range(4)]
    assert cublaslt_epilogues.is_ready(KEPT, given[0])

    def work(mine: Factors) -> None:
        for _ in range(50):
            cublaslt_epilogues.run(KEPT, mine)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine in given:
        total = mine.left.float() @ mine.right.float() + mine.bias.float()
        torch.testing.assert_close(mine.preactivation, total.half())


def test_what_the_library_cannot_do_is_no_way(lt: CublasLt) -> None:
    lt.offered = 0
    given = Factors(halves(8, 8), halves(8, 8), None, None, halves(8, 8))
    assert not cublaslt_epilogues.is_ready(PLAIN, given)
    gc.collect()
    assert not lt.things


def test_without_the_library_products_go_torchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise OSError("libcublasLt.so.13: cannot open shared object file")

    monkeypatch.setattr(cublaslt_api, "library", missing)
    cublaslt.version.cache_clear()
    try:
        assert cublaslt.version() == 0 and not cublaslt_autotune.is_considered("cuda:0")
        assert "torch's own routine" in doctor._cublaslt().found and not doctor._cublaslt().fix
    finally:
        cublaslt.version.cache_clear()


def test_the_doctor_names_the_version(lt: CublasLt) -> None:
    assert doctor._cublaslt().found.startswith("13.1.0: ")


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_a_sum_is_kept_in_the_place_of_its_product() -> None:
    arguments = [halves(3, 4), halves(5, 4), halves(5)]
    op = linear_gelu.trace(*arguments, approximate="tanh")
    (dot,) = products(op)
    assert list(biases(op)) == [dot.name]
    wanted = ("input", "weight", "bias")
    summed = train(op, wanted)
    (_, preactivation) = summed.forward.outputs
    read = {o.name for o in summed.backward([0]).operands}
    assert preactivation.dtype.is_half and preactivation.name in read and not {"bias", dot.name} & read
    assert len(products(summed.backward([0]))) == 2  # none to compute the product again


@pytest.mark.parametrize(
    "function",
    [
        lambda h, b: fg.tanh(h) + b,
        lambda h, b: (h + b) * h,
        lambda h, b: (h, fg.exp(h + b)),
        lambda h, b: fg.exp(h + 1.0) * b,
    ],
)
def test_a_product_that_is_read_otherwise_stays(function: Any) -> None:
    op = fg.op(lambda x, w, b: function(x @ w.mT, b), name="other")
    op = op.trace(halves(3, 4), halves(5, 4), halves(5))
    assert biases(op) == {}


# -- which candidate ---------------------------------------------------------------------------------------------------


def step(op: Any, reference: Any, *arguments: Any, **options: Any) -> None:
    """One training step, against torch's."""
    own = [a.detach().clone().requires_grad_() for a in arguments]
    theirs = [a.detach().clone().requires_grad_() for a in arguments]
    result, expected = op(*own, **options), reference(*theirs)
    cotangent = torch.randn_like(expected)
    found = torch.autograd.grad(result, own, cotangent)
    wanted = torch.autograd.grad(expected, theirs, cotangent)
    for mine, other in zip((result, *found), (expected, *wanted), strict=True):
        torch.testing.assert_close(mine, other, rtol=0.02, atol=0.05)


def test_training_goes_the_fastest_way(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, (300.0, 250.0))
    op, arguments = fg.FusedOp(linear_gelu.declaration), (halves(2, 3, 16), halves(24, 16), halves(24))
    step(op, gelu, *arguments, approximate="tanh")
    first = len(lt.ran)
    step(op, gelu, *arguments, approximate="tanh")
    assert len(clock.measured) == 1 and len(lt.ran) == first + 1 and set(lt.ran) == {"GELU_AUX_BIAS"}
    libraries._known.clear()  # as in another process
    step(op, gelu, *arguments, approximate="tanh")
    assert len(clock.measured) == 1 and len(lt.ran) == first + 2
    step(op, gelu, *(a.float() for a in arguments), approximate="tanh")
    step(op, lambda x, w, b: F.gelu(F.linear(x, w, b)), *arguments)  # the other gelu
    assert len(clock.measured) == 1 and len(lt.ran) == first + 2


def test_calls_like_an_earlier_one_run_no_python(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    if native.module() is None:
        pytest.skip("no native call path")
    Clock(monkeypatch, (300.0, 250.0))
    by_python: list[Any] = []
    run = Planned.run
    monkeypatch.setattr(Planned, "run", lambda self, given: (by_python.append(given), run(self, given))[1])
    for shapes in ([(2, 3, 16), (24, 16), (24,)], [(6, 16), (24, 16)]):
        op, arguments = fg.FusedOp(linear_gelu.declaration), [halves(*shape) for shape in shapes]
        step(op, gelu, *arguments, approximate="tanh")
        lt.ran.clear()
        by_python.clear()
        for _ in range(2):
            arguments = [halves(*shape) for shape in shapes]
            step(op, gelu, *arguments, approximate="tanh")
        assert lt.ran == ["GELU_AUX_BIAS" if len(shapes) == 3 else "GELU_AUX"] * 2 and not by_python
    del op
    made = len(lt.things)
    gc.collect()
    assert len(lt.things) < made  # its plans went with it


def test_training_stays_with_product_and_kernel(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, (240.0, 250.0))
    op, arguments = fg.FusedOp(linear_gelu.declaration), (halves(6, 16), halves(24, 16), halves(24))
    step(op, gelu, *arguments, approximate="tanh")
    first = len(lt.ran)
    step(op, gelu, *arguments, approximate="tanh")
    assert len(clock.measured) == 1 and len(lt.ran) == first


@pytest.mark.parametrize("library", [200.0, 250.0])
def test_what_a_checkpoint_recomputes_is_kept_alike(
    lt: CublasLt, monkeypatch: pytest.MonkeyPatch, library: float
) -> None:
    Clock(monkeypatch, (240.0, library))
    monkeypatch.setattr(native, "module", lambda: None)  # which would do again what it did first
    op = fg.FusedOp(linear_gelu.declaration)

    def checkpointed(*arguments: torch.Tensor) -> Any:
        return checkpoint(lambda *given: op(*given, approximate="tanh"), *arguments, use_reentrant=False)

    step(checkpointed, gelu, halves(6, 16), halves(24, 16), halves(24))
    assert "GELU_AUX_BIAS" in lt.ran


def test_without_memory_to_measure_nothing_changes(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def fails(repeats: int, **_: Any) -> Any:
        tried.append(repeats)
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(stopwatch, "Stopwatch", fails)
    op, arguments = fg.FusedOp(linear_gelu.declaration), (halves(6, 16), halves(24, 16), halves(24))
    for _ in range(2):
        step(op, gelu, *arguments, approximate="tanh")
    assert len(tried) == 2 and not lt.ran  # once a step: the next one may have it


def test_what_is_kept_can_be_differentiated_again(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, (300.0, 250.0))
    arguments = [halves(4, 8) / 2, halves(8, 8) / 2, halves(8) / 2]
    seconds = []
    for function, dtype in ((lambda *a: linear_gelu(*a, approximate="tanh"), torch.float16), (gelu, torch.float32)):
        own = [a.to(dtype).requires_grad_() for a in arguments]
        first = torch.autograd.grad(function(*own).sum(), own, create_graph=True)
        seconds.append([s.float() for s in torch.autograd.grad(sum((g * g).sum() for g in first), own)])
    assert "GELU_AUX_BIAS" in lt.ran
    torch.testing.assert_close(seconds[0], seconds[1], rtol=0.05, atol=0.3)


def test_without_a_bias_the_product_itself_is_kept(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, (300.0, 250.0))
    op, arguments = fg.FusedOp(linear_gelu.declaration), (halves(6, 16), halves(24, 16))
    step(op, gelu, *arguments, approximate="tanh")
    assert set(lt.ran) == {"GELU_AUX"}
    torch.testing.assert_close(op(*arguments, approximate="tanh"), gelu(*arguments), rtol=0.01, atol=0.01)
    assert lt.ran[-1] == "GELU" and len(clock.measured) == 2


def test_an_epilogue_that_loses_nan_is_not_taken(lt: CublasLt, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    Clock(monkeypatch, (300.0, 250.0))
    for drops in (False, True):
        lt.drops_nan = drops
        lt.ran.clear()
        libraries._known.clear()
        libraries._is_right.cache_clear()
        name = f"{tmp_path} {drops}"
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        x, w = halves(6, 16), halves(24, 16)
        x[1, 2] = torch.nan
        op = fg.FusedOp(fg.ops.linear_relu.declaration)
        torch.testing.assert_close(op(x, w), F.linear(x, w).relu(), equal_nan=True, rtol=0.01, atol=0.01)
        lt.ran.clear()
        op(x, w)
        assert len(lt.ran) == (0 if drops else 1)


def test_while_a_graph_is_captured_nothing_is_planned(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, (300.0, 250.0))
    op, arguments = fg.FusedOp(linear_gelu.declaration), (halves(6, 16), halves(24, 16), halves(24))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    step(op, gelu, *arguments, approximate="tanh")
    assert len(clock.measured) == 0 and not lt.ran
    key = libraries.bucket("cpu", "float16", (6, 24, 16), replace(KEPT, bias="bias"))
    monkeypatch.setitem(libraries._known, key, libraries.Measured({OWN: 300.0, CUBLASLT: 250.0}))
    fresh = fg.FusedOp(linear_gelu.declaration)
    step(fresh, gelu, *arguments, approximate="tanh")  # the sum is kept, by a kernel
    assert not lt.ran
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    step(fresh, gelu, *arguments, approximate="tanh")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert set(lt.ran) == {"GELU_AUX_BIAS"}
    lt.ran.clear()
    step(fresh, gelu, *arguments, approximate="tanh")
    assert lt.ran == ["GELU_AUX_BIAS"]


def test_both_layers_of_an_mlp_keep_sums(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, (300.0, 250.0))

    @fg.op
    def two(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        return linear_gelu(linear_gelu(x, w1, b1, approximate="tanh"), w2, b2, approximate="tanh")

    sizes = [(4, 8), (16, 8), (16,), (8, 16), (8,)]
    arguments = [halves(*size) / 2 for size in sizes]
    step(two, lambda x, w1, b1, w2, b2: gelu(gelu(x, w1, b1), w2, b2), *arguments)
    lt.ran.clear()
    step(two, lambda x, w1, b1, w2, b2: gelu(gelu(x, w1, b1), w2, b2), *arguments)
    assert lt.ran == ["GELU_AUX_BIAS"] * 2


def test_layers_with_a_bias_alone_are_measured_beside(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    """What measures runs torch's own routines on leaves that require gradients."""
    Clock(monkeypatch, (300.0, 250.0))

    @fg.op
    def two(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        return fg.linear(linear_gelu(x, w1, b1, approximate="tanh"), w2, b2)

    arguments = [halves(*size) / 2 for size in [(4, 8), (16, 8), (16,), (8, 16), (8,)]]
    step(two, lambda x, w1, b1, w2, b2: F.linear(gelu(x, w1, b1), w2, b2), *arguments)
    assert lt.ran


def test_show_says_what_may_happen_and_what_was_measured(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = tuple(a.requires_grad_() for a in (halves(6, 16), halves(24, 16), halves(24)))
    forward, _ = inspect.passes(linear_gelu, arguments, {"approximate": "tanh"}, "backward")
    stages = inspect.stages_of(forward)
    assert any(f"on a GPU {CUBLASLT} (gelu) in the place of the next step" in stage.text for stage in stages)
    op = train(forward.op, ("input", "weight", "bias")).forward
    assert f"{CUBLASLT} (gelu, its argument saved)" in "".join(libraries.notes(op).values())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    sizes = forward.layout.sizes
    assert "not measured yet" in "".join(libraries.measurements(op, sizes).values())
    key = libraries.bucket("cuda", "float16", (6, 24, 16), KEPT)
    monkeypatch.setitem(libraries._known, key, libraries.Measured({OWN: 300.0, CUBLASLT: 250.0}))
    assert f"300.0 us, {CUBLASLT} 250.0 us; best: {CUBLASLT}" in "".join(libraries.measurements(op, sizes).values())
    assert json.loads(json.dumps(dict(libraries._known[key].times))) == {OWN: 300.0, CUBLASLT: 250.0}


# -- on a GPU ----------------------------------------------------------------------------------------------------------

needs_cublaslt = pytest.mark.skipif(
    not torch.cuda.is_available() or not cublaslt.version(), reason="needs a GPU and cuBLASLt"
)


@pytest.mark.gpu
@needs_cublaslt
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "title", ["gelu, its argument saved", "gelu without bias, its argument saved", "gelu without bias"]
)
def test_cublaslt_computes_what_is_taken_for_granted(title: str, dtype: torch.dtype) -> None:
    (ours,) = (library for library in libraries.LIBRARIES if library.name == CUBLASLT)
    epilogue = next(c for c in (KEPT, replace(KEPT, bias=""), PLAIN) if c.title == title)
    assert libraries._is_right(ours, epilogue, dtype, "cuda")
    for transposed in (False, True):
        x, b = torch.randn(264, 512, device="cuda").to(dtype), torch.randn(1032, device="cuda").to(dtype)
        w = torch.randn(1032, 512, device="cuda").to(dtype)
        right = w.mT if transposed else w.mT.contiguous()
        out, preactivation = (torch.full((264, 1032), torch.nan, device="cuda", dtype=dtype) for _ in range(2))
        given = Factors(x, right, b if epilogue.bias else None, preactivation if epilogue.preactivation else None, out)
        assert cublaslt_epilogues.is_ready(epilogue, given)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            cublaslt_epilogues.run(epilogue, given)
            torch.cuda.current_stream().synchronize()
        total = x.float() @ w.float().mT + (b.float() if epilogue.bias else 0.0)
        torch.testing.assert_close(out.float(), F.gelu(total, approximate="tanh"), rtol=0.01, atol=0.02)
        if epilogue.preactivation:
            torch.testing.assert_close(preactivation.float(), total, rtol=0.01, atol=0.02)


@pytest.mark.gpu
@needs_cublaslt
def test_a_graph_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b = (torch.randn(s, device="cuda").bfloat16() for s in ((256, 512), (1024, 512), (1024,)))
    known = libraries.Measured({OWN: 300.0, CUBLASLT: 250.0})
    monkeypatch.setitem(libraries._known, libraries.bucket("cuda:0", "bfloat16", (256, 1024, 512), KEPT), known)
    ran: list[int] = []
    run = Planned.run
    monkeypatch.setattr(Planned, "run", lambda self, given: (ran.append(1), run(self, given))[1])
    op = fg.FusedOp(linear_gelu.declaration)
    own = [a.clone().requires_grad_() for a in (x, w, b)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(op(*own, approximate="tanh").float().sum(), own)
    stream.synchronize()
    before, graph = len(ran), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = torch.autograd.grad(op(*own, approximate="tanh").float().sum(), own)
    assert before and len(ran) <= before + 1, "by Python, and natively it runs no Python"
    with torch.no_grad():
        own[0].copy_(torch.randn_like(x))
    graph.replay()
    theirs = [a.detach().clone().requires_grad_() for a in own]
    wanted = torch.autograd.grad(gelu(*theirs).float().sum(), theirs)
    for mine, other in zip(found, wanted, strict=True):
        assert (mine - other).norm() < 0.02 * other.norm()

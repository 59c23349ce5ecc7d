"""Where the fastest of cuBLASLt's algorithms multiplies: training steps, sums, chunks of a loss; and on a GPU.

On the CPU the library is a fake that reads and writes the memory it is given (tests/support/fake_cublaslt.py).
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.matmul.libraries import cublaslt, cublaslt_autotune
from fusegen.matmul.libraries.cublaslt import Planned
from fusegen.matmul.task import Factors
from fusegen.native import module as native
from tests.matmul.test_algorithms import FASTER, close, fresh, halves, linear, lt, plain
from tests.support.fake_cublaslt import Clock, CublasLt

__all__ = ["lt"]


def test_a_training_step_takes_all_of_them_natively(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    if native.module() is None:
        pytest.skip("no native call path")
    Clock(monkeypatch, FASTER)
    op, by_python, run = fresh(linear), list[Any](), Planned.run
    monkeypatch.setattr(Planned, "run", lambda self, *given: (by_python.append(given), run(self, *given))[1])
    for call in range(4):
        lt.used.clear()
        lt.ran.clear()
        by_python.clear()
        arguments = [halves(16, 24), halves(32, 24), halves(32)]
        own, theirs = ([a.clone().requires_grad_() for a in arguments] for _ in range(2))
        result, expected = op(*own), F.linear(*theirs)
        cotangent = torch.randn_like(expected)
        found = torch.autograd.grad(result, own, cotangent)
        for mine, other in zip(
            (result, *found), (expected, *torch.autograd.grad(expected, theirs, cotangent)), strict=True
        ):
            close(mine, other)
        if call:
            assert lt.used == [2] * 3 and lt.ran == ["BIAS", "DEFAULT", "DEFAULT"]
    assert not by_python


def test_gradients_are_added_by_it(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    if native.module() is None:
        pytest.skip("fg.accumulate_grad does nothing without the native call path")
    clock = Clock(monkeypatch, FASTER)
    op, w = fresh(plain), halves(24, 32).requires_grad_()
    expected = torch.zeros(24, 32)
    for call in range(4):
        x, cotangent = halves(16, 24), halves(16, 32)
        with fg.accumulate_grad():
            op(x, w).backward(cotangent)
        expected += x.float().mT @ cotangent.float()
        assert w.grad is not None
        torch.testing.assert_close(w.grad.float(), expected, rtol=0.01, atol=0.1)
        if call == 1:
            lt.added.clear()
    measured = len(clock.measured)
    assert measured == 4 and True in lt.added  # what is added is not measured again


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_chunks_of_a_loss_take_it(lt: CublasLt, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    Clock(monkeypatch, FASTER)
    x, w = halves(64, 32, dtype=dtype) / 4, halves(40, 32, dtype=dtype) / 4
    target = torch.randint(0, 40, (64,))
    loss = fg.ops.linear_cross_entropy
    for _ in range(2):
        own, theirs = ([a.clone().requires_grad_() for a in (x, w)] for _ in range(2))
        lt.scales.clear()
        found = torch.autograd.grad(loss(*own, target, options=16), own)
        wanted = torch.autograd.grad(F.cross_entropy(F.linear(*theirs).float(), target), theirs)
        for mine, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine.float(), other.float(), rtol=0.03, atol=2e-4)
    assert set(lt.used) >= {2} and len(lt.scales) == 3 * 4
    assert {True, False} <= set(lt.added)
    assert (min(lt.scales) < 1) == (dtype is torch.float16)


def test_measuring_leaves_what_is_added_to(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that are the first of their sizes."""
    clock = Clock(monkeypatch, FASTER)
    given = Factors(halves(16, 24), halves(24, 32), None, None, halves(16, 64)[:, :32])
    expected = given.out + given.left @ given.right
    cublaslt_autotune.multiply(given, adds=True)
    close(given.out, expected)
    assert len(clock.measured) == 2 and lt.added[-1]
    monkeypatch.setattr(cublaslt_autotune, "MOST_ELSEWHERE", 100)  # no memory for results of this size
    given = Factors(halves(16, 40), halves(40, 32), None, None, halves(16, 32))
    expected, ran = given.out + given.left @ given.right, len(lt.ran)
    for _ in range(2):
        out = given.out.clone()
        cublaslt_autotune.multiply(Factors(given.left, given.right, None, None, out), adds=True)
        close(out, expected)
    assert len(clock.measured) == 2 and len(lt.ran) == ran


def test_a_last_chunk_of_other_rows_is_added(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, FASTER)
    x, w, target = halves(56, 32) / 4, halves(40, 32) / 4, torch.randint(0, 40, (56,))
    own, theirs = ([a.clone().requires_grad_() for a in (x, w)] for _ in range(2))
    found = torch.autograd.grad(fg.ops.linear_cross_entropy(*own, target, options=16), own)
    wanted = torch.autograd.grad(F.cross_entropy(F.linear(*theirs).float(), target), theirs)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.float(), other.float(), rtol=0.03, atol=2e-4)


def test_both_sides_of_a_product_with_itself(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, FASTER)
    gram, x, cotangent = fg.op(lambda x: x @ x.mT, name="gram"), halves(48, 24), halves(48, 48)
    for _ in range(2):
        own, theirs = (x.clone().requires_grad_() for _ in range(2))
        (found,) = torch.autograd.grad(gram(own), own, cotangent)
        (wanted,) = torch.autograd.grad(theirs @ theirs.mT, theirs, cotangent)
        torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.1)


def test_torch_multiplies_where_it_is_told_how(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, x, w = Clock(monkeypatch, FASTER), halves(16, 24), halves(24, 32)
    torch.backends.cuda.matmul.allow_fp16_accumulation = True
    try:
        close(fresh(plain)(x, w), x @ w)
        cublaslt_autotune.multiply(Factors(x, w, None, None, x @ w))
    finally:
        torch.backends.cuda.matmul.allow_fp16_accumulation = False
    assert not clock.measured
    x, w = x.bfloat16(), w.bfloat16()
    torch.testing.assert_close(fresh(plain)(x, w), x @ w)
    assert clock.measured


def test_an_epilogue_is_checked_for_each_size(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusegen.run import libraries

    relu, w, b = fresh(fg.ops.linear_relu), halves(32, 24), halves(32)
    times = {**FASTER, libraries.OWN: 90.0, libraries.CUBLASLT: 60.0}
    Clock(monkeypatch, times)
    for rows in (24, 32):  # of one bucket
        x = halves(rows, 24)
        for _ in range(2):
            close(relu(x, w, b), F.linear(x, w, b).relu())
        assert lt.ran[-1] == "RELU_BIAS"
    for rows, spoil in ((30, "wrong"), (28, "nan")):
        lt.wrong, lt.drops_nan = ({1, 2, 3} if spoil == "wrong" else set()), spoil == "nan"
        x = halves(rows, 24)
        x[3, 4] = torch.nan
        torch.testing.assert_close(relu(x, w, b), F.linear(x, w, b).relu(), equal_nan=True, rtol=0.01, atol=0.02)


def test_show_names_what_no_algorithm_does(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, FASTER)
    lt.offered = 0
    given = Factors(halves(16, 24), halves(24, 32), None, None, halves(16, 32))
    cublaslt_autotune.multiply(given)
    close(given.out, given.left @ given.right)
    (task,) = cublaslt_autotune._planned
    assert "by torch" in str(cublaslt_autotune.remembered(task))


def test_show_says_which_one_and_why(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusegen.inspect import passes as inspect
    from fusegen.inspect import product_cost

    x, w, b = halves(16, 24), halves(32, 24), halves(32)

    def text() -> str:
        (forward,) = inspect.passes(linear, (x, w, b), {}, "forward")
        assert forward.chain is not None
        (cost, *_) = product_cost.steps_of(forward, forward.chain)
        assert isinstance(cost, product_cost.ProductCost)
        return "\n".join(cost.candidates)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "another of cuBLASLt's algorithms" in text()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "not measured yet for these sizes" in text()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    Clock(monkeypatch, FASTER)
    fresh(linear)(x, w, b)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    said = "torch 60.0 us, cuBLASLt's algorithm 2 55.0 us, cuBLASLt's algorithm 1 61.0 us; best: cuBLASLt's algorithm 2"
    assert said in text()


# -- on a GPU ----------------------------------------------------------------------------------------------------------

needs_cublaslt = pytest.mark.skipif(
    not torch.cuda.is_available() or not cublaslt.version(), reason="needs a GPU and cuBLASLt"
)


@pytest.mark.gpu
@needs_cublaslt
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_each_algorithm_gives_the_product(dtype: torch.dtype) -> None:
    """Plain, with a bias and added, for factors that lie either way."""
    m, n, k = 2056, 1544, 1032
    x, w, b = (torch.randn(s, device="cuda").to(dtype) for s in ((m, k), (k, n), (n,)))
    exact = x.double() @ w.double()
    for left, right in ((x, w), (x.mT.contiguous().mT, w), (x, w.mT.contiguous().mT)):
        for bias, adds, scale in ((None, False, 1.0), (b, False, 1.0), (None, True, 1.0), (None, True, 0.25)):
            out = torch.randn(m, n, device="cuda").to(dtype)
            before = out.clone()
            given = Factors(left, right, bias, None, out)
            epilogue = cublaslt.CublasLtEpilogue.DEFAULT if bias is None else cublaslt.CublasLtEpilogue.BIAS
            task = cublaslt_autotune.Task.on(cublaslt.MatmulOptions(epilogue, adds), given)
            assert task is not None
            plan = Planned(task)
            expected = scale * exact + (before.double() if adds else 0) + (0 if bias is None else b.double())
            for algorithm in plan.offers(cublaslt_autotune.MOST_OFFERED):
                out.copy_(before)
                plan.use(algorithm)
                plan.run(given, scale)
                first = out.clone()
                error = (out.double() - expected).abs().max() / expected.abs().max()
                assert error < (1e-3 if dtype is torch.float16 else 8e-3)
                out.copy_(before)
                plan.run(given, scale)
                assert torch.equal(out, first)


@pytest.mark.gpu
@needs_cublaslt
def test_a_large_layer_is_measured_and_replayed_in_a_graph() -> None:
    x, w, b = (torch.randn(s, device="cuda").bfloat16() for s in ((4096, 1024), (4096, 1024), (4096,)))
    op = fresh(linear)
    own = [a.requires_grad_() for a in (x, w, b)]
    cotangent = torch.randn(4096, 4096, device="cuda").bfloat16()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            eager = torch.autograd.grad(op(*own), own, cotangent)
    stream.synchronize()
    assert sum(task.sizes == (4096, 4096, 1024) for task in cublaslt_autotune._planned) >= 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = torch.autograd.grad(op(*own), own, cotangent)
    graph.replay()
    torch.cuda.synchronize()
    for mine, other in zip(found, eager, strict=True):
        assert torch.equal(mine, other)
    wanted = torch.autograd.grad(F.linear(*own), own, cotangent)
    for mine, other in zip(found, wanted, strict=True):
        assert (mine - other).norm() < 0.01 * other.norm()

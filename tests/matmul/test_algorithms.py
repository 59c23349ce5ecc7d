"""Which of cuBLASLt's algorithms multiplies: measured once for exact sizes, beside torch's own routine.

On the CPU the library is a fake that reads and writes the memory it is given (tests/support/fake_cublaslt.py).
"""

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.matmul.libraries import cublaslt_autotune
from fusegen.matmul.libraries.cublaslt import Algorithm, Planned
from fusegen.matmul.libraries.cublaslt_autotune import BY_TORCH, Choice
from fusegen.matmul.task import Factors
from tests.support import fake_cublaslt
from tests.support.fake_cublaslt import Clock, CublasLt

FASTER = {BY_TORCH: 60.0, "1": 61.0, "2": 55.0, "3": 70.0}
SLOWER = {BY_TORCH: 60.0, "1": 60.0, "2": 59.8, "3": 70.0}


def halves(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[CublasLt]:
    """The fake with three algorithms, for products of any size on the CPU."""
    if os.environ.get("FUSEGEN_TEST_DEVICE"):
        pytest.skip("the fake reads the CPU's memory")
    monkeypatch.setattr(cublaslt_autotune, "LEAST_BYTES", 0)
    with fake_cublaslt.installed(monkeypatch, str(tmp_path)) as fake:
        fake.offered = 3
        yield fake


@fg.op
def linear(x: Any, w: Any, b: Any) -> Any:
    """x w^T + b."""
    return fg.linear(x, w, b)


@fg.op
def plain(x: Any, w: Any) -> Any:
    """x w."""
    return x @ w


def fresh(op: Any) -> Any:
    """The same op, which has not been called."""
    return fg.FusedOp(op.declaration)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0.02)


# -- one product -------------------------------------------------------------------------------------------------------


def test_the_fastest_is_taken_and_remembered(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, FASTER)
    x, w, b = halves(16, 24), halves(32, 24), halves(32)
    op = fresh(linear)
    close(op(x, w, b), F.linear(x, w, b))
    # all once, then torch's and the two best; then the run itself
    assert clock.measured == [[BY_TORCH, "1", "2", "3"], [BY_TORCH, "2", "1"]]
    assert set(lt.ran) == {"BIAS"} and lt.used[-1] == 2 and not any(lt.added)
    lt.used.clear()
    close(op(x, w, b), F.linear(x, w, b))
    assert lt.used == [2]
    cublaslt_autotune.forget()  # as in another process
    close(fresh(linear)(x, w, b), F.linear(x, w, b))
    assert lt.used == [2, 2] and len(clock.measured) == 2


def test_torch_keeps_what_it_does_as_well(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, SLOWER)  # 59.8 of 60 is noise
    x, w = halves(16, 24), halves(24, 32)
    op = fresh(plain)
    for _ in range(3):
        close(op(x, w), x @ w)
    tried = len(lt.used)
    cublaslt_autotune.forget()
    close(fresh(plain)(x, w), x @ w)
    assert len(clock.measured) == 2 and len(lt.used) == tried


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("left", ["rows", "columns", "sliced"])
@pytest.mark.parametrize("right", ["rows", "columns", "sliced"])
def test_factors_lie_as_they_do(
    lt: CublasLt, monkeypatch: pytest.MonkeyPatch, left: str, right: str, dtype: torch.dtype
) -> None:
    Clock(monkeypatch, FASTER)

    def lying(kind: str, rows: int, columns: int) -> torch.Tensor:
        if kind == "rows":
            return halves(rows, columns, dtype=dtype)
        return (
            halves(columns, rows, dtype=dtype).mT if kind == "columns" else halves(rows, 64, dtype=dtype)[:, :columns]
        )

    x, w, op = lying(left, 16, 24), lying(right, 24, 40), fresh(plain)
    for _ in range(3):
        torch.testing.assert_close(op(x, w), (x.float() @ w.float()).to(dtype))
    assert lt.used[-3:] == [2] * 3


def test_what_no_algorithm_is_for_goes_torchs_way(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, FASTER)
    cases = [
        (halves(16, 24).float(), halves(24, 32).float()),  # precision is as torch.backends says
        (halves(16, 25), halves(25, 32)),
        (halves(16, 32)[:, 1:25], halves(24, 32)),  # begins elsewhere than at 16 bytes
        (halves(2, 16, 24), halves(2, 24, 32)),
        (halves(0, 24), halves(24, 32)),
        (halves(16, 0), halves(0, 32)),
    ]
    for x, w in cases:
        close(fresh(plain)(x, w), x @ w)
    x, w, bias = halves(16, 24), halves(32, 24), halves(33)[1:]
    close(fresh(linear)(x, w, bias), F.linear(x, w, bias))
    assert not clock.measured and not lt.ran


def test_small_products_are_not_measured(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt_autotune, "LEAST_BYTES", 2**25)
    clock = Clock(monkeypatch, FASTER)
    x, w = halves(16, 24), halves(24, 32)
    close(fresh(plain)(x, w), x @ w)
    assert not clock.measured and not lt.ran
    assert cublaslt_autotune.is_worth((8192, 768, 768)) and cublaslt_autotune.is_worth((1, 14336, 4096))
    assert not cublaslt_autotune.is_worth((512, 512, 512))


def test_only_the_first_of_many_sizes_are_measured(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, FASTER)
    monkeypatch.setattr(cublaslt_autotune, "MOST_ALIKE", 3)
    op, w = fresh(plain), halves(24, 32)
    for rows in (72, 80, 88, 96, 104, 112):  # round up to the same
        x = halves(rows, 24)
        close(op(x, w), x @ w)
    assert len(clock.measured) == 2 * 3
    x = halves(136, 24)
    close(op(x, w), x @ w)
    assert len(clock.measured) == 2 * 4


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_algorithms_that_do_not_run_or_are_wrong_are_not_taken(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, FASTER)
    lt.broken = {2}
    x, w = halves(16, 24), halves(24, 32)
    close(fresh(plain)(x, w), x @ w)
    assert clock.measured == [[BY_TORCH, "1", "3"], [BY_TORCH, "1", "3"]]
    lt.broken, lt.wrong = {1}, {2}
    x = halves(24, 24)
    close(fresh(plain)(x, w), x @ w)
    lt.wrong, lt.broken, ran = set(), {1, 2, 3}, len(lt.ran)
    x = halves(40, 24)
    op = fresh(plain)
    for _ in range(3):
        close(op(x, w), x @ w)
    assert len(lt.ran) == ran


def test_what_was_stored_and_does_not_fit_is_not_taken(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, FASTER)
    x, w = halves(16, 24), halves(24, 32)
    close(fresh(plain)(x, w), x @ w)
    cublaslt_autotune.forget()
    lt.refused, ran = {2}, len(lt.ran)
    op = fresh(plain)
    for _ in range(2):
        close(op(x, w), x @ w)
    assert len(lt.ran) == ran


@pytest.mark.parametrize("failures", [1, 10])
def test_without_memory_the_next_calls_try_again(lt: CublasLt, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    clock, run, failed = Clock(monkeypatch, FASTER), Planned.run, list[int]()

    def runs(self: Planned, given: Factors, scale: float = 1.0) -> None:
        if len(failed) < failures:
            failed.append(1)
            raise torch.cuda.OutOfMemoryError
        run(self, given, scale)

    monkeypatch.setattr(Planned, "run", runs)
    x, w, op = halves(16, 24), halves(24, 32), fresh(plain)
    for _ in range(2 * cublaslt_autotune.MOST_TRIES):
        close(op(x, w), x @ w)
    if failures == 1:
        assert clock.measured and lt.used[-1] == 2
    else:  # it is left to torch, in this process
        assert len(failed) == cublaslt_autotune.MOST_TRIES and not clock.measured and not lt.ran


def test_failures_that_may_pass_are_not_remembered(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, x, w = Clock(monkeypatch, FASTER), halves(16, 24), halves(24, 32)

    def fails(self: Planned, given: Factors, scale: float = 1.0) -> None:
        raise RuntimeError("cuBLASLt's status 3 of cublasLtMatmul")

    with monkeypatch.context() as patch:
        patch.setattr(Planned, "run", fails)
        for _ in range(2):
            close(fresh(plain)(x, w), x @ w)
    assert not clock.measured
    cublaslt_autotune.forget()  # as in another process
    close(fresh(plain)(x, w), x @ w)
    assert clock.measured and lt.used[-1] == 2


def test_while_a_graph_is_captured_nothing_is_measured(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, FASTER)
    x, w, op = halves(16, 24), halves(24, 32), fresh(plain)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    close(op(x, w), x @ w)
    assert not clock.measured and not lt.ran
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    close(op(x, w), x @ w)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    lt.used.clear()
    close(op(x, w), x @ w)
    assert lt.used == [2]


def test_nan_and_infinities_of_the_first_call_are_no_difference(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, FASTER)
    x, w = halves(16, 24), halves(24, 32)
    x[3, 4], x[5, 6] = torch.nan, torch.inf
    torch.testing.assert_close(fresh(plain)(x, w), x @ w, equal_nan=True, rtol=0.01, atol=0.02)
    assert lt.used[-1] == 2


def test_threads_share_what_was_measured(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, FASTER)
    op, wrong = fresh(linear), list[BaseException]()

    def work() -> None:
        try:
            for _ in range(20):
                x, w, b = halves(16, 24), halves(32, 24), halves(32)
                close(op(x, w, b), F.linear(x, w, b))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(clock.measured) == 2


def test_plans_are_destroyed(lt: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, FASTER)
    monkeypatch.setattr(cublaslt_autotune, "MOST_PLANNED", 2)
    for rows in (8, 16, 24):
        given = Factors(halves(rows, 8), halves(8, 8), None, None, halves(rows, 8))
        cublaslt_autotune.multiply(given)
        close(given.out, given.left @ given.right)
    gc.collect()
    assert len(cublaslt_autotune._planned) == 1 and len(lt.things) == 4  # an operation, three layouts


def test_what_is_stored_is_read_as_it_was() -> None:
    for choice in (Choice({"torch": 3.0, "4": 2.5}, Algorithm(bytes(range(64)), 80)), Choice({"torch": 3.0}, None)):
        assert Choice.read(choice.stored()) == choice
    assert str(Choice({"torch": 3.0}, None)) == "torch 3.0 us; best: torch"
    assert "by torch" in str(Choice({}, None))

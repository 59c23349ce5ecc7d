"""cuDNN's kernels for products and activations: which there are, what they compute, and when they are taken.

On the CPU the library is a fake that reads and writes the memory it is given (tests/support/fake_cudnn.py).
"""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.matmul.epilogue import Epilogue
from fusegen.matmul.libraries import cudnn, cudnn_ops
from fusegen.matmul.libraries.cudnn_api import NONDETERMINISTIC, Mode
from fusegen.matmul.task import Factors
from fusegen.native import module as native
from fusegen.run import libraries
from fusegen.run.chain import ChainRunner
from fusegen.run.libraries import CUDNN, OWN
from tests.support import fake_cudnn
from tests.support.fake_cudnn import ACTIVATIONS, STREAM, Clock, Cudnn, quick_gelu

linear_silu = fg.ops.linear_silu
HALVES = [torch.float16, torch.bfloat16]
# Of a result: its own rounding and, where a library's float32 is compared to float64, a little more.
ROUNDED = {torch.float16: 2**-10, torch.bfloat16: 2**-7}


def halves(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def closing_of(function: Callable[[Any], Any], dtype: torch.dtype = torch.float16) -> Epilogue | None:
    """The epilogue of a layer with an activation."""
    op = fg.op(lambda x, w, b: function(fg.linear(x, w, b)), name="layer")
    traced = op.trace(*(halves(*shape, dtype=dtype) for shape in ((3, 4), (5, 4), (5,))))
    found = [known for *_, known in libraries.steps_behind(traced)]
    return found[0] if found else None


def known(function: Callable[[Any], Any]) -> Epilogue:
    found = closing_of(function)
    assert found is not None
    return replace(found, bias="bias" * bool(found.bias), preactivation="")


@pytest.fixture
def dnn(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Cudnn]:
    """The fake, considered on the CPU, with nothing measured or planned."""
    if os.environ.get("FUSEGEN_TEST_DEVICE"):
        pytest.skip("the fake reads the CPU's memory")
    fake = fake_cudnn.install(monkeypatch, str(tmp_path))
    yield fake
    fake_cudnn.forget()
    assert not fake.mistakes


# -- which activations there are ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_made_of_cudnns_operations(dnn: Cudnn, name: str) -> None:
    function, reference, names = ACTIVATIONS[name]
    epilogue = known(function)
    assert cudnn_ops.has(epilogue, "float16") and cudnn_ops.has(epilogue, "bfloat16")
    x, w, b, out = 3 * halves(64, 16), halves(16, 8), 4 * halves(8), halves(64, 8)
    given = Factors(x, w, b, None, out)
    assert cudnn.is_ready(epilogue, given)
    cudnn.run(epilogue, given)
    wanted = reference(x.double() @ w.double() + b.double())
    torch.testing.assert_close(out.double(), wanted, rtol=2**-10, atol=1e-5)
    (ran,) = dnn.ran
    assert ran.split()[:2] == ["MATMUL", "ADD"] and sorted(ran.split()[2:]) == sorted(names.split())


def test_what_overflows_halves_is_no_reason_against_a_kernel(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    op = fg.op(lambda x, w, b: fg.exp(fg.linear(x, w, b)), name="layer")
    op(*given())
    assert dnn.ran[-1] == "MATMUL ADD EXP"


def long(h: Any, operations: int) -> Any:
    for _ in range(operations // 2):
        h = fg.tanh(h) * 0.5
    return h


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (fg.ops.relu, torch.float16),
        (fg.ops.gelu, torch.float32),
        (fg.ops.logsigmoid, torch.float16),  # log1p
        (fg.ops.elu, torch.float16),  # expm1
        (fg.ops.silu, torch.float32),
        (lambda h: fg.ops.gelu(h, approximate="tanh"), torch.float32),
        (lambda h: fg.where(fg.index(h, -1) > 3, fg.sigmoid(h), h), torch.float16),
        (lambda h: fg.where((h > 0) & (h < 1), h, 0.0), torch.float16),
        (lambda h: long(h, cudnn_ops.MOST_OPERATIONS + 2), torch.float16),
        (lambda h: h, torch.float16),
    ],
)
def test_what_cudnn_has_not_is_left_to_others(function: Any, dtype: torch.dtype) -> None:
    found = closing_of(function, dtype)
    assert found is None or not cudnn_ops.has(found, str(dtype).removeprefix("torch."))


def test_as_many_operations_as_were_tried() -> None:
    assert cudnn_ops.has(known(lambda h: long(h, cudnn_ops.MOST_OPERATIONS)), "float16")


def test_only_a_gpu_whose_torch_has_cudnn_is_considered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "version", lambda: 91900)
    assert cudnn.is_considered("cuda:1") and not cudnn.is_considered("cpu")
    with torch.backends.cudnn.flags(enabled=False):
        assert not cudnn.is_considered("cuda")
    monkeypatch.setattr(cudnn, "version", lambda: 8907)
    assert not cudnn.is_considered("cuda")


# -- what it is given --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("left", "right"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(("bias", "preactivation"), [(False, False), (False, True), (True, False), (True, True)])
def test_factors_bias_and_saved_sum_are_handed_over_as_they_lie(
    dnn: Cudnn, left: bool, right: bool, bias: bool, preactivation: bool, dtype: torch.dtype
) -> None:
    x = halves(24, 32, dtype=dtype)[:, :16].mT if left else halves(16, 32, dtype=dtype)[:, :24]
    w = halves(40, 24, dtype=dtype).mT if right else halves(24, 48, dtype=dtype)[:, :40]
    b = halves(40, dtype=dtype) if bias else None
    wide, sums = halves(16, 48, dtype=dtype), halves(16, 56, dtype=dtype)
    beside = wide[:, 40:].clone(), sums[:, 40:].clone()
    given = Factors(x, w, b, sums[:, :40] if preactivation else None, wide[:, :40])
    epilogue = replace(known(fg.ops.quick_gelu), bias="b" * bias, preactivation="saved" * preactivation)
    assert cudnn.is_ready(epilogue, given)
    cudnn.run(epilogue, given)
    total = x.double() @ w.double() + (0 if b is None else b.double())
    wanted, rounded = quick_gelu(total), ROUNDED[dtype]
    torch.testing.assert_close(given.out.double(), wanted, rtol=rounded, atol=1e-5)
    if preactivation:
        torch.testing.assert_close(given.preactivation.double(), total, rtol=rounded, atol=1e-5)
    assert torch.equal(wide[:, 40:], beside[0]) and torch.equal(sums[:, 40:], beside[1])
    assert dnn.ran == ["MATMUL" + " ADD" * bias + ",saved" * preactivation + " SWISH(1.702)"] and dnn.streams == [
        STREAM
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: {"left": halves(16, 25)[:, 1:]},
        lambda: {"right": halves(24, 44)[:, :40]},
        lambda: {"right": halves(24, 80)[:, ::2]},
        lambda: {"out": halves(16, 44)[:, :40]},
        lambda: {"out": halves(16, 80)[:, ::2]},
        lambda: {"preactivation": halves(16, 44)[:, :40]},
        lambda: {"preactivation": halves(641)[1:].view(16, 40)},
        lambda: {"bias": halves(41)[1:]},
        lambda: {"right": halves(961)[1:].view(24, 40)},
    ],
)
def test_memory_that_is_not_aligned_goes_another_way(dnn: Cudnn, wrong: Any) -> None:
    epilogue = replace(known(fg.ops.silu), preactivation="saved")
    right = Factors(halves(16, 24), halves(24, 40), halves(40), halves(16, 40), halves(16, 40))
    assert cudnn.is_ready(epilogue, right) and not cudnn.is_ready(epilogue, replace(right, **wrong()))
    assert dnn.compiled == 1


# -- which candidate ---------------------------------------------------------------------------------------------------


def step(op: Any, reference: Any, *arguments: Any) -> None:
    """One training step: as near to float64 as torch's own in the same dtype."""
    cotangent, found = None, list[list[torch.Tensor]]()
    for function, dtype in ((reference, torch.float64), (reference, arguments[0].dtype), (op, arguments[0].dtype)):
        own = [a.detach().to(dtype).requires_grad_() for a in arguments]
        result = function(*own)
        cotangent = torch.randn_like(result).to(arguments[0].dtype) if cotangent is None else cotangent
        found.append([result, *torch.autograd.grad(result, own, cotangent.to(dtype))])
    for exact, theirs, mine in zip(found[0], found[1], found[2], strict=True):
        limit = 1.5 * (theirs.double() - exact).norm() + 2**-12 * exact.norm()
        assert mine.dtype is theirs.dtype and (mine.double() - exact).norm() <= limit


def layer(x: torch.Tensor, w: torch.Tensor, b: Any = None) -> torch.Tensor:
    return F.silu(F.linear(x, w, b))


def given(*, bias: bool = True, rows: int = 6, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    return [halves(*shape, dtype=dtype) for shape in ((rows, 16), (24, 16), (24,))[: 2 + bias]]


def same(op: Any, *arguments: torch.Tensor) -> None:
    torch.testing.assert_close(op(*arguments), layer(*arguments), rtol=0.01, atol=0.01, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bias", [True, False])
def test_training_goes_the_fastest_way(
    dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, bias: bool, dtype: torch.dtype
) -> None:
    clock, op = Clock(monkeypatch), fg.FusedOp(linear_silu.declaration)
    whole = "MATMUL ADD,saved SWISH" if bias else "MATMUL,saved SWISH"
    step(op, layer, *given(bias=bias, dtype=dtype))
    assert clock.measured == [[OWN, CUDNN]] and set(dnn.ran) == {whole}
    dnn.ran.clear()
    step(op, layer, *given(bias=bias, dtype=dtype))
    libraries._known.clear()  # as in another process
    step(op, layer, *given(bias=bias, dtype=dtype))
    assert len(clock.measured) == 1 and dnn.ran == [whole] * 2
    with torch.no_grad():
        same(op, *given(bias=bias))
    assert dnn.ran[-1] == whole.replace(",saved", "") and clock.measured == [[OWN, CUDNN]] * 2
    step(op, layer, *(a.float() for a in given()))
    assert len(clock.measured) == 2


def test_training_stays_with_product_and_kernel(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, op = Clock(monkeypatch, own=240.0), fg.FusedOp(linear_silu.declaration)
    step(op, layer, *given())
    first = len(dnn.ran)
    step(op, layer, *given())
    assert clock.measured == [[OWN, CUDNN]] and len(dnn.ran) == first


def test_small_results_are_not_worth_a_kernel(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = libraries.LIBRARIES[0]
    for least, measured in ((8 * 32 + 1, 0), (8 * 32, 1)):  # 6 x 24, rounded up as buckets are
        monkeypatch.setattr(libraries, "LIBRARIES", (replace(entry, least=least),))
        clock = Clock(monkeypatch)
        step(fg.FusedOp(linear_silu.declaration), layer, *given())
        assert len(clock.measured) == measured


@pytest.mark.parametrize("name", ["quick_gelu", "tanh", "mish", "relu6"])
def test_other_activations_learn_too(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    Clock(monkeypatch)
    function, reference, _ = ACTIVATIONS[name]
    op = fg.op(lambda x, w, b: function(fg.linear(x, w, b)), name="layer")
    step(op, lambda *a: reference(F.linear(*a)), *given())
    assert dnn.ran and all(("ADD,saved" in ran) != (name == "tanh") for ran in dnn.ran)  # tanh' is of its result


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("trains", [True, False])
def test_calls_like_an_earlier_one_run_no_python(
    dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, bias: bool, trains: bool
) -> None:
    if native.module() is None:
        pytest.skip("no native call path")
    Clock(monkeypatch)
    op = fg.FusedOp(fg.ops.linear_quick_gelu.declaration)

    def once() -> None:
        arguments = given(bias=bias)
        if trains:
            step(op, lambda *a: quick_gelu(F.linear(*a)), *arguments)
        else:
            wanted = quick_gelu(F.linear(*(a.double() for a in arguments)))
            torch.testing.assert_close(op(*arguments).double(), wanted, rtol=2**-9, atol=2**-9)

    once()
    assert set(dnn.streams) == {STREAM}
    dnn.ran.clear()
    dnn.streams.clear()
    made = len(dnn.things)
    for _ in range(3):
        once()
    whole = "MATMUL" + " ADD" * bias + ",saved" * trains + " SWISH(1.702)"
    assert dnn.ran == [whole] * 3 and dnn.streams == [0] * 3  # the CPU has no streams
    assert len(dnn.things) == made and len(dnn.handles) == 2


def at_far_arguments(result: torch.Tensor) -> torch.Tensor:
    return torch.where(result > 10, 1.05 * result, result)


@pytest.mark.parametrize(
    "wrong", [at_far_arguments, torch.nan_to_num, lambda r: r.clamp(max=60000.0), lambda r: r + 0.001, torch.relu]
)
def test_a_kernel_that_computes_something_else_is_not_taken(
    dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    clock = Clock(monkeypatch)
    dnn.wrong = wrong
    for _ in range(2):
        step(fg.FusedOp(linear_silu.declaration), layer, *given())
    assert clock.measured == [[OWN]] and 0 < len(dnn.ran) <= 2


def test_nan_goes_through(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    x, w, b = given()
    x[1, 2] = torch.nan
    same(fg.FusedOp(linear_silu.declaration), x, w, b)
    assert dnn.ran


@pytest.mark.parametrize("how", ["graph", "plan", "nondeterministic", "nothing"])
def test_what_cudnn_cannot_do_goes_another_way(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    clock = Clock(monkeypatch)
    if how == "graph":
        dnn.refuses = {Mode.SWISH}
    elif how == "plan":
        dnn.bad_plans = 1000
    else:
        dnn.notes = [] if how == "nothing" else [[1, NONDETERMINISTIC], [NONDETERMINISTIC]]
    op = fg.FusedOp(linear_silu.declaration)
    for _ in range(2):
        step(op, layer, *given())
    assert clock.measured == [[OWN]] and not dnn.ran and not dnn.compiled
    gc.collect()
    assert not dnn.things


def test_the_first_kernel_that_can_be_had_is_taken(dnn: Cudnn) -> None:
    dnn.notes, dnn.bad_plans = [[NONDETERMINISTIC], [1], [0, 5]], 1
    x, w, out = halves(8, 8), halves(8, 8), halves(8, 8)
    epilogue, factors = replace(known(fg.ops.silu), bias=""), Factors(x, w, None, None, out)
    assert cudnn.is_ready(epilogue, factors) and cudnn.is_ready(epilogue, factors)
    assert dnn.compiled == 1 and not dnn.bad_plans
    cudnn.run(epilogue, factors)
    torch.testing.assert_close(out, F.silu(x.float() @ w.float()).half())


def test_while_a_graph_is_captured_nothing_is_compiled(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, captures = Clock(monkeypatch), [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures[-1])
    step(fg.FusedOp(linear_silu.declaration), layer, *given())
    assert not clock.measured and not dnn.things
    epilogue = replace(known(fg.ops.silu), bias="b", preactivation="saved")
    key = libraries.bucket("cpu", "float16", (6, 24, 16), epilogue)
    monkeypatch.setitem(libraries._known, key, libraries.Measured({OWN: 300.0, CUDNN: 250.0}))
    op = fg.FusedOp(linear_silu.declaration)
    step(op, layer, *given())  # the sum is kept, by a kernel
    assert not dnn.things and not dnn.ran
    captures.append(False)
    step(op, layer, *given())
    captures.append(True)
    step(op, layer, *given())
    assert dnn.ran == ["MATMUL ADD,saved SWISH"] * 2 and dnn.compiled == 1


def test_of_many_sizes_alike_only_the_first_get_kernels(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, op = Clock(monkeypatch), fg.FusedOp(linear_silu.declaration)
    _, w, b = given()
    sizes = [72, 80, 88, 96, 104, 112]  # in one bucket
    first = sizes[: cudnn.MOST_ALIKE]
    same(op, halves(72, 16), w, b)
    dnn.ran.clear()
    compiled = dnn.compiled
    for rows in sizes * 2:
        same(op, halves(rows, 16), w, b)
    with monkeypatch.context() as native_only:  # the others, too, are known to the native call path
        native_only.setattr(ChainRunner, "launch", lambda *_: pytest.fail("Python ran"))
        if native.module() is not None:
            same(op, halves(sizes[-1], 16), w, b)
    assert len(dnn.ran) == 2 * len(first) and dnn.compiled == compiled + len(first) - 1
    same(op, halves(136, 16), w, b)  # of another
    assert dnn.compiled == compiled + len(first) and len(clock.measured) == 2


# -- how it runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native_path", [False, True])
def test_a_kernel_that_does_not_run_says_so(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, native_path: bool) -> None:
    Clock(monkeypatch)
    if not native_path:
        monkeypatch.setattr(native, "module", lambda: None)
    op, arguments = fg.FusedOp(linear_silu.declaration), given()
    same(op, *arguments)
    dnn.fails = 4321
    made = len(dnn.things)
    with pytest.raises(RuntimeError, match="cuDNN's status 4321"):
        op(*arguments)
    assert len(dnn.things) == made and dnn.ran
    dnn.fails = 0
    same(op, *arguments)
    assert dnn.streams[-1] == (0 if native.module() is not None else STREAM)  # natively: the CPU has none


def test_threads_share_a_plan(dnn: Cudnn) -> None:
    epilogue = replace(known(fg.ops.silu), preactivation="saved")
    given = [Factors(halves(8, 8), halves(8, 8), halves(8), halves(8, 8), halves(8, 8)) for _ in range(4)]

    def work(mine: Factors) -> None:
        for _ in range(25):
            assert cudnn.is_ready(epilogue, mine)
            cudnn.run(epilogue, mine)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dnn.compiled == 1 and len(dnn.ran) == 100
    for mine in given:
        total = mine.left.float() @ mine.right.float() + mine.bias.float()
        torch.testing.assert_close(mine.preactivation, total.half())
        torch.testing.assert_close(mine.out, F.silu(total).half())


def test_descriptors_are_destroyed_with_their_plan(dnn: Cudnn) -> None:
    epilogue = replace(known(fg.ops.relu6), bias="")
    for columns in (8, 16, 24):
        factors = Factors(halves(8, 8), halves(8, columns), None, None, halves(8, columns))
        assert cudnn.is_ready(epilogue, factors)
        cudnn.run(epilogue, factors)
    gc.collect()
    kinds = sorted(thing.kind.name for thing in dnn.things.values())
    assert kinds == ["CONFIGURATION"] * 3 + ["PLAN"] * 3  # graphs are compiled, packs have run
    cudnn._kernels.clear()
    gc.collect()
    assert not dnn.things


def test_a_native_plan_keeps_its_kernel(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    if native.module() is None:
        pytest.skip("no native call path")
    Clock(monkeypatch)
    op, arguments = fg.FusedOp(fg.ops.linear_relu6.declaration), given()  # with constants, which lie on the host
    op(*arguments)
    cudnn._kernels.clear()
    gc.collect()
    assert dnn.things
    wanted = F.relu6(F.linear(*(a.float() for a in arguments)))
    torch.testing.assert_close(op(*arguments).float(), wanted, rtol=0.01, atol=0.01)
    assert dnn.streams[-1] == 0
    del op
    gc.collect()
    assert not dnn.things

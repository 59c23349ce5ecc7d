"""When cuDNN's kernels are asked for, and what follows from its answers: on the fake of tests/matmul/test_cudnn.py."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.matmul.epilogue import activate
from fusegen.matmul.libraries import cudnn, cudnn_api, cudnn_ops
from fusegen.run import libraries
from fusegen.run.libraries import CUDNN, LIBRARY, OWN
from tests.matmul.test_cudnn import closing_of, dnn, given, halves, layer, linear_silu, same, step
from tests.support.fake_cudnn import Clock, Cudnn

__all__ = ["dnn"]  # the fixture


def run(function: Callable[..., Any], *arguments: Any) -> torch.Tensor:
    with torch.no_grad():
        return fg.op(function, name="layer")(*arguments)  # type: ignore[no-any-return]


def test_an_operand_called_sum_is_not_the_sum(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    x, w, b = given()
    found = run(lambda x, w, sum: fg.ops.silu(fg.linear(x, w, sum)) * sum, x, w, b)
    wanted = F.silu(F.linear(x.double(), w.double(), b.double())) * b
    torch.testing.assert_close(found.double(), wanted, rtol=2**-7, atol=2**-9)
    assert dnn.ran[-1] == "MATMUL ADD SWISH MUL"


def test_functions_that_use_much_again_are_told_apart_in_short() -> None:
    def repeated(times: int, first: float) -> Callable[[Any], Any]:
        def function(h: Any) -> Any:
            h = h * first
            for _ in range(times):
                h = h * fg.tanh(h)
            return h

        return function

    few, other = (closing_of(repeated(8, first)) for first in (0.5, 0.25))
    assert few is not None and other is not None
    assert few.activation.startswith("a function of 17 operations, ") and few.activation != other.activation
    assert closing_of(repeated(60, 0.5)) is None  # as a tree it would have 2^60 operations


def test_constants_are_float32s(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    arguments = given()
    assert run(lambda x, w, b: fg.where(fg.linear(x, w, b) > -1e9, 1e300, 0.0), *arguments).isinf().all()
    torch.set_default_dtype(torch.bfloat16)  # as inference code does
    try:
        clock = Clock(monkeypatch)
        same(fg.FusedOp(linear_silu.declaration), *arguments)
    finally:
        torch.set_default_dtype(torch.float32)
    assert list(clock.measured[0]) == [OWN, CUDNN]


def test_tests_of_tests_are_left_to_others() -> None:
    found = closing_of(lambda h: fg.where((h > 0) > (h > 1), h, 0.0))
    assert found is None or not cudnn_ops.has(found, "float16")


def test_a_kernel_that_does_not_run_for_these_sizes_is_not_taken(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(libraries, "_is_right", functools.cache(lambda *_: True))
    dnn.fails = 5000
    for _ in range(3):
        step(fg.FusedOp(linear_silu.declaration), layer, *given())
    assert all(list(names) == [OWN] for names in clock.measured)


def test_a_failure_that_may_pass_is_not_remembered(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, make = Clock(monkeypatch), cudnn_api.make_handle

    def fails() -> int:
        raise RuntimeError("cuDNN's status 4004 of cudnnCreate")  # no memory

    monkeypatch.setattr(cudnn_api, "make_handle", fails)
    op, before = fg.FusedOp(linear_silu.declaration), dict(libraries._known)
    same(op, *given())
    assert not clock.measured and libraries._known == before and not cudnn._kernels
    monkeypatch.setattr(cudnn_api, "make_handle", make)
    same(fg.FusedOp(linear_silu.declaration), *given())
    assert list(clock.measured[0]) == [OWN, CUDNN]


def test_where_the_best_way_is_not_ready_the_next_one_is_taken(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes beyond the first few take cuBLASLt where that is better than our own."""
    ran: list[int] = []

    def by_torch(epilogue: Any, factors: Any) -> None:
        ran.append(len(factors.left))
        total = factors.left.float() @ factors.right.float() + (0 if factors.bias is None else factors.bias.float())
        factors.out.copy_(activate(epilogue, total))

    entry = replace(
        libraries.LIBRARIES[0], name=LIBRARY, has=lambda epilogue, _: not epilogue.preactivation,
        is_ready=lambda *_: True, run=by_torch, step=lambda *_: None, is_refused=lambda *_: False,
    )  # fmt: skip
    monkeypatch.setattr(libraries, "LIBRARIES", (*libraries.LIBRARIES, entry))
    times = {OWN: 300.0, LIBRARY: 200.0, CUDNN: 190.0}
    clock = Clock(monkeypatch)
    monkeypatch.setattr(clock, "turns", lambda works: {name: times[name] for name in works})
    op, (_, w, b) = fg.FusedOp(linear_silu.declaration), given()
    sizes = [72, 80, 88, 96, 104, 112]
    for rows in sizes:
        same(op, halves(rows, 16), w, b)
    assert [rows for rows in ran if rows in sizes[cudnn.MOST_ALIKE :]] == sizes[cudnn.MOST_ALIKE :]


def test_sums_are_not_kept_for_sizes_that_are_refused(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    op, (_, w, b) = fg.FusedOp(linear_silu.declaration), given()
    kept = []
    for rows in [72, 80, 88, 96, 104, 112]:
        out = op(halves(rows, 16).requires_grad_(), w.requires_grad_(), b.requires_grad_())
        dnn.ran.clear()
        out.backward(torch.randn_like(out))
        op(halves(rows, 16).requires_grad_(), w, b)
        kept.append(bool(dnn.ran))
    assert kept == [True] * cudnn.MOST_ALIKE + [False] * (6 - cudnn.MOST_ALIKE)


def test_a_kernel_that_loses_nan_of_these_sizes_is_not_taken(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for other sizes, which were tried, may not."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(libraries, "_is_right", functools.cache(lambda *_: True))
    dnn.wrong = torch.nan_to_num
    for _ in range(2):
        step(fg.FusedOp(linear_silu.declaration), layer, *given())
    assert clock.measured == [[OWN]]

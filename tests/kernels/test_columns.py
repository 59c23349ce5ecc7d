"""Sums down columns: several columns a thread where no vectors come out even; reads first, where arithmetic parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core.ir import walk
from fusegen.fuse import cost
from fusegen.fuse import schedule as schedules
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.schedule import ColumnSchedule
from fusegen.run.programs import run_programs
from tests.support.oracles import leaves
from tests.support.rows import agree, planned

pytestmark = pytest.mark.emulator

Function = Callable[..., Any]
F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns lie apart for few elements already."""
    monkeypatch.setattr(schedules, "FEW_BLOCKS", 1)


# fusegen's function, torch's, and shapes whose columns have no vectors that come out even.
APART: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "a sum": (lambda x, w: fg.sum(x * fg.sigmoid(w), 0), lambda x, w: (x * w.sigmoid()).sum(0), ((300, 133), (133,))),
    "of halves of a block": (lambda x: fg.sum(x * x, 0), lambda x: (x * x).sum(0), ((130, 67),)),
    "exponentials": (lambda x: fg.logsumexp(x * 2.0, 0), lambda x: (x * 2.0).logsumexp(0), ((300, 133),)),
    "moments": (lambda x: fg.var(x, 1), lambda x: x.var(1), ((2, 1100, 133),)),
    "over slow and middle axes": (
        lambda x, w: fg.sum(fg.abs(x) * fg.log(w * w + 1.0), (0, 2)),
        lambda x, w: (x.abs() * (w * w + 1.0).log()).sum((0, 2)),
        ((6, 5, 60, 67), (60, 1)),
    ),
    "a root of each row": (
        lambda x, s: fg.sum(fg.where(s > 0.0, x * fg.exp(s), x / (fg.abs(s) + 1.0)), 0),
        lambda x, s: torch.where(s > 0, x * s.exp(), x / (s.abs() + 1)).sum(0),
        ((280, 133), (280, 1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", (F32, F64, BF16, F16))
@pytest.mark.parametrize("kind", APART)
def test_columns_apart_are_torchs(kind: str, dtype: torch.dtype, small: None) -> None:
    ours, theirs, shapes = APART[kind]
    inputs = leaves(*shapes, dtype=dtype)
    forward = planned(fg.op(ours), *inputs)
    assert any(isinstance(k.schedule, ColumnSchedule) and k.schedule.apart for k in forward)
    agree(fg.op(ours), theirs, *inputs)


@pytest.mark.parametrize("kind", APART)
def test_a_last_block_stores_its_own_columns_only(kind: str, small: None) -> None:
    """The evaluator says so if a result is written twice, or an access leaves its tensor."""
    ours, theirs, shapes = APART[kind]
    wide = [torch.randn(shape, dtype=F64) for shape in shapes]
    op = fg.op(ours).trace(*wide)
    sizes = {
        axis: size
        for o, x in zip(op.operands, wide, strict=True)
        for axis, size in zip(o.shape, x.shape, strict=True)
        if axis
    }
    (found,) = run_programs(op, {o.name: x for o, x in zip(op.operands, wide, strict=True)}, {}, sizes)
    torch.testing.assert_close(found, theirs(*wide))


def test_few_elements_keep_a_column_a_thread() -> None:
    (kernel,) = planned(fg.op(lambda x: fg.sum(x, 0)), torch.empty(8192, 160)[:, :159])
    assert isinstance(kernel.schedule, ColumnSchedule) and not kernel.schedule.apart


def column_of(function: Function, *inputs: torch.Tensor) -> ColumnSchedule:
    (found,) = (k.schedule for k in planned(fg.op(function), *inputs) if isinstance(k.schedule, ColumnSchedule))
    return found


def test_reads_come_before_arithmetic_that_may_part() -> None:
    """Across a slow path, and around what a select leaves out, a compiler moves no read."""
    x = torch.empty(4096, 512, dtype=BF16)
    assert column_of(lambda x: fg.sum(fg.cos(x), 0), x).reads_first
    assert not column_of(lambda x: fg.sum(x * x, 0), x).reads_first
    assert column_of(lambda x: fg.sum(fg.where(x > 0.0, x, fg.exp(x)), 0), x).reads_first
    assert not column_of(lambda x: fg.sum(fg.where(x > 0.0, x, -x), 0), x).reads_first


@pytest.mark.parametrize("dtype", (F32, F64, BF16))
@pytest.mark.parametrize("width", (64, 133))
def test_what_is_read_first_is_what_is_summed(width: int, dtype: torch.dtype, small: None) -> None:
    def ours(x: Any, s: Any, w: Any) -> Any:
        return fg.sum(fg.cos(x * w) * fg.where(s > 0.0, fg.exp(-s), s), 0)

    def theirs(x: Any, s: Any, w: Any) -> Any:
        return ((x * w).cos() * torch.where(s > 0, (-s).exp(), s)).sum(0)

    inputs = leaves((2100, width), (2100, 1), (width,), dtype=dtype)
    assert column_of(ours, *inputs).reads_first
    agree(fg.op(ours), theirs, *inputs)


def test_long_texts_take_fewer_columns() -> None:
    x = torch.empty(4096, 4096, dtype=BF16)
    assert column_of(lambda x: fg.sum(x, 0), x).vector == 8
    assert column_of(lambda x: fg.sum(fg.tanh(fg.exp(fg.sin(x)) + fg.log(x * x + 1.0)), 0), x).vector == 4


def test_parting_is_told_by_the_dtype_that_is_computed_in() -> None:
    x = fg.op(lambda x: fg.sum(fg.log1p(x), 0)).trace(torch.empty(4, 4))
    exprs = list(walk([s.expr for s in x.expand()[0]]))
    assert cost.parting(exprs, half=False) and not cost.parting(exprs, half=True)


# -- what later kernels make of a row's reductions -------------------------------------------------------------------


def stable(x: Any, y: Any) -> Any:
    return fg.logsumexp((x - fg.logsumexp(x, -1, keepdims=True)) * y, 0)


def stable_in_torch(x: Any, y: Any) -> Any:
    return ((x - x.logsumexp(-1, keepdim=True)) * y).logsumexp(0)


def test_a_logarithm_of_each_row_is_left_by_the_kernel_that_has_its_sum() -> None:
    rows, column = planned(fg.op(stable), *leaves((300, 200), (300, 200), dtype=F32))
    assert isinstance(rows.kernel, RowKernel) and [o.name for o in rows.kernel.outputs] == ["row_value"]
    loop, _ = column.rendered.body.split("column_merge")
    assert "logf(" not in loop and "row_value" in loop


def test_what_takes_more_memory_is_not_left() -> None:
    def both(x: Any, y: Any) -> Any:
        top = fg.amax(x, -1, keepdims=True)
        return fg.amax(fg.exp(x - fg.log(top * top + 1.0)) * y + fg.sin(x + fg.sqrt(top * top + 2.0)), 0)

    rows, *_ = planned(fg.op(both), *leaves((300, 200), (300, 200), dtype=F32))
    assert [o.name for o in rows.kernel.outputs] == ["top"]


@pytest.mark.parametrize("dtype", (F32, F64, BF16, F16))
@pytest.mark.parametrize("shape", ((300, 200), (70, 16), (5, 40, 33)))
def test_what_is_left_is_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    agree(fg.op(stable), stable_in_torch, *leaves(shape, shape, dtype=dtype))


@pytest.mark.parametrize("value", (float("inf"), float("-inf"), float("nan")))
def test_rows_that_are_infinite_stay_so(value: float) -> None:
    x = torch.randn(40, 64)
    x[3], x[5, 2] = value, value
    y = torch.randn(40, 64)
    torch.testing.assert_close(fg.op(stable)(x, y), stable_in_torch(x, y), equal_nan=True)

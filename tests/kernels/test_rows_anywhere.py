"""Rows that begin at any address, that need more shared memory than a kernel can declare, or are read in chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fusegen as fg
from fusegen.fuse import rows_schedule
from fusegen.fuse.rows_schedule import Chip, RowSchedule
from fusegen.plan.targets import chip_of
from tests.support.oracles import leaves
from tests.support.rows import agree, blend, layer_norm, planned, row_schedule, softmax, torch_layer_norm

pytestmark = pytest.mark.emulator


def logsumexp() -> Any:
    return fg.op(lambda x: fg.logsumexp(x, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows, length", [(5, 33), (9, 257), (4, 1001), (2, 8191)])
def test_rows_of_odd_length(rows: int, length: int, dtype: torch.dtype) -> None:
    assert row_schedule(softmax(), torch.empty(rows, length, dtype=dtype)).unaligned
    agree(softmax(), lambda x: x.softmax(-1), *leaves((rows, length), dtype=dtype))
    agree(layer_norm(), torch_layer_norm, *leaves((rows, length), (length,), (length,), dtype=dtype))


@pytest.mark.parametrize("length", [1001, 1004])
def test_a_sweep_keeps_each_block_at_one_distance_from_an_aligned_address(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums over rows add what lies at the same place of a vector, so a block's rows all begin at the same place."""
    monkeypatch.setattr(rows_schedule, "MULTIPROCESSORS", 3)
    monkeypatch.setattr(rows_schedule, "ROW_TILE_BLOCKS", 3)
    agree(layer_norm(), torch_layer_norm, *leaves((50, length), (length,), (length,), dtype=torch.bfloat16))
    agree(blend(), lambda x, y, w: x + w * (y - x), *leaves((1, length), (37, length), (37, 1), dtype=torch.bfloat16))


def test_views_that_begin_between_vectors() -> None:
    wide = torch.randn(6, 131)
    x, w = wide[:, 1:130].detach().requires_grad_(), torch.randn(140)[3:132].detach().requires_grad_()
    (b,) = leaves((129,), dtype=torch.float32)
    agree(layer_norm(), torch_layer_norm, x, w, b)


def test_a_stream_with_rows_of_its_own_is_read_element_by_element() -> None:
    x = torch.randn(6, 131)[:, :129].detach().requires_grad_()
    (y,) = leaves((6, 129), dtype=torch.float32)
    agree(fg.op(lambda x, y: fg.softmax(x * y, -1)), lambda x, y: (x * y).softmax(-1), x, y)


@pytest.mark.parametrize("shape", [(3, 4, 7, 7), (2, 3, 9, 5)])
def test_short_odd_rows_with_sums_over_other_axes(shape: tuple[int, ...]) -> None:
    op = fg.op(lambda x, b: fg.tanh(x + b))
    agree(op, lambda x, b: torch.tanh(x + b), *leaves(shape, (shape[1], 1, 1), dtype=torch.bfloat16))


def backward_schedule(op: Any, *inputs: torch.Tensor, chip: Chip) -> RowSchedule:
    """Of the kernel that walks over the rows in the backward of a norm."""
    kernels = planned(fg.op(lambda x, w, g: op.declaration.function(x, w, g)), *inputs, chip=chip)
    return next(k.schedule for k in kernels if isinstance(k.schedule, RowSchedule) and k.schedule.persistent)


def two_sums() -> Any:
    """A sum over each row that the row waits for, and a sum over the rows: what a norm's backward is made of."""

    @fg.op
    def two_sums(x, w, g):  # type: ignore[no-untyped-def]
        return g * w - x * fg.mean(g * w * x, -1, keepdims=True), fg.sum(g * x, 0)

    return two_sums


def torch_two_sums(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return g * w - x * (g * w * x).mean(-1, keepdim=True), (g * x).sum(0)


@pytest.mark.parametrize("length", [4096, 4097])
def test_rows_that_need_more_shared_memory_than_a_kernel_can_declare(length: int) -> None:
    inputs = [t.detach() for t in leaves((3, length), (length,), (3, length), dtype=torch.float32)]
    found = backward_schedule(two_sums(), *inputs, chip=Chip())
    assert found.staged and found.dynamic > 48 * 1024 and found.unaligned == (length % 4 != 0)
    wide = torch_two_sums(*(t.double() for t in inputs))
    for mine, true in zip(two_sums()(*inputs), wide, strict=True):
        assert ((mine.double() - true).abs().max() / true.abs().max()).item() < 1e-5


def test_no_block_gets_more_shared_memory_than_its_chip_has() -> None:
    inputs = [torch.empty(3, n) if n else torch.empty(8192) for n in (8192, 0, 8192)]
    for chip in (Chip(16, 227 * 1024), Chip(1, 99 * 1024), Chip(1, 64 * 1024)):
        kernels = planned(two_sums(), *inputs, chip=chip)
        assert all(k.schedule.dynamic <= chip.shared and k.rendered.shared == k.schedule.dynamic for k in kernels)


def test_what_chips_have() -> None:
    assert chip_of("sm_90") == Chip(16, 227 * 1024)
    assert chip_of("sm_80") == Chip(1, 163 * 1024)
    assert chip_of("sm_89") == Chip(1, 99 * 1024)
    assert chip_of("sm_120") == Chip(8, 99 * 1024)


@pytest.mark.parametrize("length", [20000, 20003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_that_nothing_waits_for_pass_by(length: int, dtype: torch.dtype) -> None:
    assert row_schedule(logsumexp(), torch.empty(3, length, dtype=dtype)).chunked
    agree(logsumexp(), lambda x: torch.logsumexp(x, -1), *leaves((3, length), dtype=dtype))
    agree(fg.op(lambda x: fg.var(x, -1)), lambda x: x.var(-1), *leaves((3, length), dtype=dtype))


def test_passing_rows_shared_by_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_schedule, "MULTIPROCESSORS", 1)  # which three rows do not leave idle
    monkeypatch.setattr(rows_schedule, "CHUNKED_BLOCK_BYTES", 32 * 1024)
    for length in (32768, 20003):
        assert row_schedule(logsumexp(), torch.empty(3, length)).cluster > 1
        agree(logsumexp(), lambda x: torch.logsumexp(x, -1), *leaves((3, length), dtype=torch.float32))


def test_passing_rows_keep_extremes() -> None:
    x = torch.full((4, 20000), -torch.inf)
    x[1, 19999], x[2, 7], x[3, 3] = 3.0, torch.inf, torch.nan
    assert torch.equal(logsumexp()(x).nan_to_num(nan=7.5), torch.logsumexp(x, -1).nan_to_num(nan=7.5))


def test_arithmetic_that_is_the_same_for_a_row_is_done_once_a_row() -> None:
    op = fg.op(lambda x, a, b: fg.exp(x - fg.log(a)) / b)
    inputs = [t.detach().abs().add(1).requires_grad_() for t in leaves((5, 300), (5, 1), (5, 1))]
    assert row_schedule(op, *inputs).template == "rows"
    agree(op, lambda x, a, b: torch.exp(x - torch.log(a)) / b, *inputs)
    (plain,) = planned(fg.op(lambda x, a: x + a), *inputs[:2])
    assert plain.schedule.template == "elementwise"


@pytest.mark.parametrize("length", [4099, 4096])
def test_cross_entropy_backward_writes_only_its_rows(length: int) -> None:
    targets = torch.tensor([3, length - 1, 0, -100])
    agree(
        lambda x: fg.ops.cross_entropy(x, targets), lambda x: F.cross_entropy(x, targets),
        *leaves((4, length), dtype=torch.float32),
    )  # fmt: skip


@pytest.mark.parametrize("results", [3, 8, 24, 64, 100])
def test_few_columns_take_few_lanes(results: int) -> None:
    op = fg.op(lambda x: fg.sum(x, 0))
    for dtype in (torch.float32, torch.bfloat16):
        agree(op, lambda x: x.sum(0), *leaves((3000, results), dtype=dtype))
        agree(fg.op(lambda x: fg.amax(x, 0)), lambda x: x.amax(0), *leaves((3000, results), dtype=dtype))


@pytest.mark.parametrize("rows, length", [(2, 1025), (3, 257)])
def test_what_places_tell_of_each_row_is_read_where_the_row_is_known(rows: int, length: int) -> None:
    """Only of rows that there are: the reports of places ask for that."""

    def of(x: Any, table: Any, places: Any) -> Any:
        return table[places] + x.sum(-1)

    op, places = fg.op(of, name="told"), torch.arange(rows) % 2 - 1
    x, table = leaves((rows, length), (4,), dtype=torch.float32)
    assert row_schedule(op, x, table, places).unaligned
    agree(lambda x, table: op(x, table, places), lambda x, table: of(x, table, places), x, table)
    with pytest.raises(fg.PlaceError):
        op(x, table, places + 4)
        fg.check_indices()  # on a GPU errors come later


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("shape", [(5, 33), (64, 64), (2, 33, 7)], ids=str)
def test_one_place_of_all_rows_is_read_before_there_is_a_row(shape: tuple[int, ...], axis: int) -> None:
    def of(x: Any, table: Any) -> Any:
        return (x * table[places]).softmax(axis) + table[places]

    def ours(x: Any, table: Any) -> Any:
        return op(x, table, places)

    op = fg.op(lambda x, table, i: fg.softmax(x * table[i], axis) + table[i], name="at_one_place")
    places = torch.tensor([-2])
    agree(ours, of, *leaves(shape, (4,), dtype=torch.float32))

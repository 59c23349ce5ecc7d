"""Coupled reductions of few long rows: blocks share a row without knowing of each other, a second kernel merges."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.fuse import rows_schedule
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.rows_schedule import Chip
from tests.support.oracles import leaves
from tests.support.rows import agree, planned

pytestmark = pytest.mark.emulator


@pytest.fixture
def small_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a few kilobytes are already read in chunks, and blocks of a warp share them."""
    monkeypatch.setattr(rows_schedule, "CHUNKED_FROM", 1024)
    monkeypatch.setattr(rows_schedule, "CHUNKED_THREADS", 32)
    monkeypatch.setattr(rows_schedule, "CHUNKED_BLOCK_BYTES", 4096)


def moments() -> Any:
    return fg.op(lambda x, w: (fg.var(x * w, -1), fg.mean(x * w, -1)))


@pytest.mark.parametrize("length", [4096, 5000, 4097])
def test_few_long_rows(small_streams: None, length: int) -> None:
    x, w = leaves((3, length), (length,), dtype=torch.float32)
    op = moments()
    (kernel,) = planned(op, x, w)
    assert kernel.schedule.split and kernel.launch.splits >= 8 and kernel.rendered.finish
    assert "total_partial" not in kernel.rendered.text, "the state of squared deviations holds the sum"
    var, mean = op(x, w)
    y = (x * w).double()
    torch.testing.assert_close(var.double(), y.var(-1), rtol=1e-6, atol=0)
    torch.testing.assert_close(mean.double(), y.mean(-1), rtol=0, atol=1e-7)
    again = op(x, w)
    assert torch.equal(var, again[0]) and torch.equal(mean, again[1])


def test_everything_as_one_row(small_streams: None) -> None:
    agree(fg.op(lambda x: fg.std(x)), lambda x: x.std(), *leaves((37, 160)))
    for dtype in (torch.float32, torch.bfloat16):
        agree(fg.op(lambda x: fg.logsumexp(x)), lambda x: x.logsumexp((0, 1)), *leaves((64, 130), dtype=dtype))


def test_infinities_in_pieces_of_a_row(small_streams: None) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.randn(5, 5000)
    x[0, 100:] = -inf
    x[1], x[2, 4000], x[3, 7], x[4, 4999] = -inf, inf, nan, nan
    ours = fg.op(lambda x: fg.logsumexp(x, -1))(x)
    torch.testing.assert_close(ours, x.logsumexp(-1), equal_nan=True)


def test_a_long_row_that_elements_need_again_is_read_in_chunks_first(small_streams: None) -> None:
    """Where a row does not fit on the chip, its statistics come from a pass of their own."""
    inputs = [torch.empty(2, 2**20)]
    first, then = planned(fg.op(lambda x: fg.softmax(x, -1)), *inputs, chip=Chip(cluster=1))
    assert isinstance(first.kernel, RowKernel) and first.schedule.split and then.schedule.template == "elementwise"


@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_variances_far_from_zero(offset: float) -> None:
    """A state's mean keeps what rounding takes off it, from its first elements on."""
    x = offset + torch.randn(8, 4, 2048)
    for dim in ((0, 2), (0, 1, 2), 0):
        ours = fg.op(lambda x, dim=dim: fg.var(x, dim))(x)
        torch.testing.assert_close(ours.double(), x.double().var(dim), rtol=1e-6, atol=0)

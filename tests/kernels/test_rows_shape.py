"""What a row kernel's shape follows from: registers that its blocks have, idle threads, what is worth keeping."""

from __future__ import annotations

import re
from typing import Any

import torch

import fusegen as fg
from fusegen.fuse.rows_schedule import MULTIPROCESSORS, ROW_TILE_BLOCKS, RowSchedule
from fusegen.inspect.passes import passes
from fusegen.pipeline import HOPPER, ScheduledKernel, plan_op
from tests.support.modes import MODES
from tests.support.oracles import draw
from tests.support.rows import planned_passes


@fg.op
def shrunk(x, b):  # type: ignore[no-untyped-def]
    return fg.maximum(1.8 - fg.silu(30.0 * fg.tanh(x / 30.0)), b)


@fg.op
def waves(x, b, c):  # type: ignore[no-untyped-def]
    normal = x * fg.rsqrt(fg.mean(fg.square(x), -1, keepdims=True) + 1e-6)
    wave = x - fg.cos(normal / (fg.abs(b) + 1.0) + 0.35)
    return fg.sum(fg.exp(-fg.abs(fg.where(c > 0.5, wave, 0.1 * wave))), -2)


def planned(op: Any, which: str, *shapes: tuple[int, ...], dtype: Any = fg.bfloat16) -> list[ScheduledKernel]:
    """The kernels of the last pass, as they are launched on a large GPU."""
    specs = tuple(fg.TensorSpec(dtype, shape) for shape in shapes)
    item = list(passes(op, specs, {}, which))[-1]
    return list(plan_op(item.op, item.layout, HOPPER).kernels)


def by_rows(op: Any, which: str, *shapes: tuple[int, ...], dtype: Any = fg.bfloat16) -> tuple[RowSchedule, str]:
    """The first kernel's schedule and text."""
    first = planned(op, which, *shapes, dtype=dtype)[0]
    assert isinstance(first.schedule, RowSchedule)
    return first.schedule, first.rendered.text


def test_no_thread_goes_without_registers_for_blocks_that_nobody_launches() -> None:
    """Each multiprocessor has two blocks of this grid: with a bound of four, threads would spill."""
    first = planned(shrunk, "backward", (2**20, 16), (16,))[0]
    assert first.launch.grid[0] == ROW_TILE_BLOCKS == 2 * MULTIPROCESSORS
    assert "__launch_bounds__(256, 2)" in first.rendered.text


def test_persistent_blocks_are_as_many_as_their_bound_says() -> None:
    for op, shapes in ((waves, ((16384, 1152), (1152,), (1152,))), (shrunk, ((8192, 1024), (1024,)))):
        first = planned(op, "backward", *shapes)[0]
        assert isinstance(first.schedule, RowSchedule) and first.schedule.persistent
        bound = re.search(r"__launch_bounds__\((\d+), (\d+)\)", first.rendered.text)
        assert bound and first.launch.grid[0] <= int(bound[2]) * MULTIPROCESSORS


def test_a_row_of_one_thread_is_not_staged() -> None:
    """Copies past the L1 cache would read each of its sectors twice. Two threads ask for a whole one."""
    alone, text = by_rows(shrunk, "backward", (2**20, 16), (16,))
    assert alone.threads == 1 and not alone.staged and "load_async" not in text
    assert by_rows(shrunk, "backward", (2**17, 128), (128,))[0].threads > 1
    assert by_rows(shrunk, "backward", (2**17, 128), (128,))[0].staged


def test_fewer_vectors_where_that_leaves_room_for_what_is_computed_again() -> None:
    schedule, text = by_rows(waves, "backward", (16384, 1152), (1152,), (1152,))
    assert schedule.vectors_per_thread == 1 and len(schedule.reused) == 3
    assert len(re.findall(r"fg::(?:fast_)?cos\w*\(", text)) == 1


def test_as_many_vectors_as_ever_where_nothing_is_computed_again() -> None:
    norm = fg.ops.rms_norm
    specs = (fg.TensorSpec(fg.bfloat16, (16384, 1152)), fg.TensorSpec(fg.bfloat16, (1152,)))
    item = list(passes(norm, (specs[0], (1152,), specs[1]), {}, "backward"))[-1]
    schedule = plan_op(item.op, item.layout, HOPPER).kernels[0].schedule
    assert isinstance(schedule, RowSchedule) and schedule.vectors_per_thread == 2


def test_few_threads_are_idle() -> None:
    """144 vectors: 64 threads with four each would have 112 too many, 32 with five have 16."""
    schedule, _ = by_rows(fg.ops.normalize, "forward", (4096, 1152))
    assert (schedule.threads, schedule.vectors_per_thread) == (32, 5)


def test_rows_that_a_block_takes_several_of_wait_in_registers() -> None:
    assert not by_rows(fg.ops.softmax, "forward", (65536, 256))[0].staged
    assert by_rows(fg.ops.softmax, "forward", (4096, 4096))[0].staged


def test_chunks_of_long_rows_by_fewer_threads_where_there_are_many_rows() -> None:
    def total(x):  # type: ignore[no-untyped-def]
        return fg.logsumexp(fg.abs(x), -1)

    op = fg.op(total)
    assert [planned(op, "forward", (rows, 32000))[0].launch.block[0] for rows in (64, 4096)] == [512, 256]


def test_few_columns_are_cut_into_more_pieces() -> None:
    """32,000 elements of each of 64 columns: with 16 elements a thread, half of the multiprocessors had no block."""

    def largest(x):  # type: ignore[no-untyped-def]
        return fg.amax(fg.abs(x), -2)

    launch = planned(fg.op(largest), "forward", (2, 32000, 64), dtype=fg.float16)[0].launch
    assert launch.grid[0] * launch.grid[1] in range(MULTIPROCESSORS, 2 * MULTIPROCESSORS + 1)


def test_a_sum_beside_elements_goes_by_rows() -> None:
    """Where reductions along another axis come before: a thread a row would read, and write, what lies far apart."""

    def lifted(x: Any, w: Any) -> Any:
        y = torch.where(w > 0, x.sin(), -w)
        z = y / (y.abs().amax(-2, keepdim=True) + 1)
        return (z + w).abs().sum()

    MODES["all"](fg.op(lifted, name="lifted"), lifted, [draw(4, 70, 40), draw(4, 70, 1, seed=1)])
    large = [torch.empty(64, 4096, 64, requires_grad=True), torch.empty(64, 4096, 1, requires_grad=True)]
    _, backward = planned_passes(fg.op(lifted, name="lifted"), *large)
    assert isinstance(backward[-1].schedule, RowSchedule) and backward[-1].kernel.pointwise

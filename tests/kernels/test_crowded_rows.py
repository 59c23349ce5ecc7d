"""Persistent row kernels whose threads have no registers for what all rows have in common: it is in shared memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.fuse import rows_schedule
from fusegen.generate.rendered import headers
from fusegen.inspect.passes import passes
from fusegen.launch.compile import to_cubin
from fusegen.launch.cubin import resources
from fusegen.pipeline import HOPPER
from tests.support.oracles import check_no_worse, draw
from tests.support.rows import planned_passes

BF16, F32 = torch.bfloat16, torch.float32


@fg.op
def scaled(x, w, b):  # type: ignore[no-untyped-def]
    return fg.ops.layer_norm(x, (x.shape[-1],), w, b)


@fg.op
def columns_of(x, w, b, y):  # type: ignore[no-untyped-def]
    normal = fg.ops.layer_norm(x, (x.shape[-1],), w, b)
    return fg.logsumexp((normal - fg.mean(normal, -1, keepdims=True)) * y, 0)


def torch_columns_of(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    normal = torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)
    return torch.logsumexp((normal - normal.mean(-1, keepdim=True)) * y, 0)


def backward_of(op: Any, *given: torch.Tensor) -> str:
    return list(passes(op, tuple(t.requires_grad_() for t in given), {}, "backward"))[-1].text


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("length", [5120, 12288, 131072, 262144])
def test_vectors_of_more_than_16_bytes_compile(length: int, dtype: torch.dtype, arch: str) -> None:
    """float32 weights beside rows of a half type: eight are 32 bytes, and an asynchronous copy takes 16."""
    rows, weights = torch.empty(64, length, dtype=BF16), torch.empty(2, length, dtype=dtype)
    text = backward_of(scaled, rows, *weights.detach().clone().unbind())
    to_cubin(text, arch=arch, headers=headers(), declared="")


def test_nothing_spills() -> None:
    x, y, w, b = (torch.empty(*shape, 5120, dtype=BF16) for shape in ((4096,), (4096,), (), ()))
    text = backward_of(columns_of, x, w, b, y)
    assert "fg::dynamic_shared<w_rows>()" in text
    built = to_cubin(text, arch="sm_90", headers=headers(), declared="")
    assert resources(built.data, "columns_of_backward_bf16_d_x_and_1_more").local_bytes == 0


def test_results() -> None:
    shapes = (9, 5120), (5120,), (5120,), (9, 5120)
    given = [draw(*shape, dtype=BF16, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    check_no_worse(columns_of, torch_columns_of, given)


# -- what all rows have in common, and what several blocks read -----------------------------------------------------


@fg.op
def weighted(x, w, v, c):  # type: ignore[no-untyped-def]
    """Short rows, several side by side in a block, and sums over rows for two weights and a column."""
    value = fg.maximum(x * x / (fg.abs(w) + 1) / (fg.abs(v) + 1), c)
    return fg.sum(value * value, (-2, -1))


def torch_weighted(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    value = torch.maximum(x * x / (w.abs() + 1) / (v.abs() + 1), c)
    return (value * value).sum((-2, -1))


def kernels_of(op: Any, *given: torch.Tensor) -> list[Any]:
    """Of all passes."""
    leaves = (t.requires_grad_() if t.is_floating_point() else t for t in given)
    return [kernel for kernels in planned_passes(op, *leaves) for kernel in kernels]


def weighted_kernel(rows: int, dtype: torch.dtype) -> Any:
    x, w, v, c = (torch.empty(*shape, dtype=dtype) for shape in ((rows, 128), (128,), (128,), (rows, 1)))
    return next(kernel for kernel in kernels_of(weighted, x, w, v, c) if getattr(kernel.schedule, "dynamic", 0))


@pytest.mark.parametrize("dtype", [torch.float16, F32], ids=str)
def test_a_block_has_what_its_rows_have_in_common_once(dtype: torch.dtype) -> None:
    """Read past the first cache by each row's threads, the same few bytes held up everything: 66 us, and 28 now."""
    kernel = weighted_kernel(65536, dtype)
    plan, text = kernel.schedule, kernel.rendered.text
    assert plan.persistent and plan.rows > 1
    assert f"using w_rows = fg::Raw<{'half' if dtype is torch.float16 else 'float'}, {plan.vector}>" in text
    assert f"[{plan.vectors_per_thread}][{plan.threads}];" in text  # not so for each row
    assert text.index("if (threadIdx.y == 0) {") < text.index("fg::load_async(&w_row") < text.index("__syncthreads();")
    places = plan.vectors_per_thread * plan.threads * plan.vector * dtype.itemsize
    assert plan.dynamic == places * (2 + 2 * plan.rows)  # two weights, and this row and the next of each


@pytest.mark.parametrize("rows", [40, 63, 300])
def test_what_rows_have_in_common_is_there_for_all(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(rows_schedule, "MULTIPROCESSORS", 2)  # so that blocks go on from row to row
    shapes = (rows, 128), (128,), (128,), (rows, 1)
    given = [draw(*shape, dtype=torch.float64, seed=i) for i, shape in enumerate(shapes)]
    assert any("if (threadIdx.y == 0) {" in kernel.rendered.text for kernel in kernels_of(weighted, *given))
    for ours, theirs in zip(
        *(torch.autograd.grad(op(*given), given) for op in (weighted, torch_weighted)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("rows", [5, 300])
def test_of_several_sizes_each_lies_where_its_vectors_may(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Bytes before floats, in shared memory that a kernel has in one piece."""
    monkeypatch.setattr(rows_schedule, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(rows_schedule, "MOST_REGISTERS", 0)  # all are crowded

    @fg.op
    def op(x, y, z, mask, w):  # type: ignore[no-untyped-def]
        value = x * y * z * fg.where(mask > 0, w, 1)
        return value * fg.rsqrt(fg.mean(value * value, -1, keepdims=True) + 1)

    def in_torch(x: Any, y: Any, z: Any, mask: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        value = x * y * z * torch.where(mask > 0, w, 1)
        return value * torch.rsqrt((value * value).mean(-1, keepdim=True) + 1)

    shapes = [*[(rows, 12)] * 3, (12,)]
    *given, w = (draw(*shape, dtype=F32, seed=i).requires_grad_() for i, shape in enumerate(shapes))
    mask = (torch.arange(12) % 3 > 0).to(torch.uint8)
    assert any("fg::Raw<uint8_t, 4>[1][4];" in kernel.rendered.text for kernel in kernels_of(op, *given, mask, w))
    check_no_worse(lambda *all_: op(*all_[:-1], mask, w), lambda *all_: in_torch(*all_[:-1], mask, w), [*given, w])


def test_what_other_rows_read_as_well_comes_through_the_first_cache() -> None:
    """A cotangent that is the same for all of the slower axes beside an input that is read once."""

    @fg.op
    def op(x, w):  # type: ignore[no-untyped-def]
        return fg.sum(fg.abs(fg.tanh(x + w)), (0, 1))

    kernels = kernels_of(op, torch.empty(5, 1000, 256, 16), torch.empty(16))
    text = next(kernel.rendered.text for kernel in kernels if "fg::load_async" in kernel.rendered.text)
    assert "fg::load_async(&x_row" in text and "fg::load_async_cached(&d_out_row" in text


def test_no_more_blocks_are_launched_than_shared_memory_has_room_for() -> None:
    kernels = kernels_of(scaled, *(torch.empty(*shape) for shape in ((16384, 4096), (4096,), (4096,))))
    kernel = next(kernel for kernel in kernels if getattr(kernel.schedule, "dynamic", 0))
    plan = kernel.schedule
    assert plan.persistent and plan.resident * plan.dynamic <= HOPPER.shared
    assert kernel.launch.grid[0] == plan.resident * rows_schedule.MULTIPROCESSORS


@pytest.mark.parametrize("length", [2, 8, 16, 128, 512, 1024, 2048])
def test_blocks_of_many_rows_and_of_few_compile_for_gpus(length: int) -> None:
    """From a thread a row, 256 of them, to a row of several warps, and few of these."""
    rows, weights = torch.empty(70000, length), torch.empty(2, length)
    for kernel in kernels_of(scaled, rows, *weights.detach().clone().unbind()):
        to_cubin(kernel.rendered.text, arch="sm_90", headers=headers(), declared="")

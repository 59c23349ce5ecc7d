"""Rows that lie side by side: reductions over a slow axis and what follows from them, against torch in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fusegen as fg
from fusegen.fuse import strided_rows
from fusegen.fuse.strided_rows import StridedRowKernel
from tests.support import oracles, rows
from tests.support.rows import planned, planned_passes

pytestmark = pytest.mark.emulator

# Drawn in float32.
leaves = functools.partial(oracles.leaves, dtype=torch.float32, drawn=torch.float32)
agree = functools.partial(rows.agree, drawn=torch.float32)


def templates(op: Any, *inputs: torch.Tensor, **options: Any) -> list[list[str]]:
    return [[k.schedule.template for k in kernels] for kernels in planned_passes(op, *inputs, **options)]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return fg.ops.softmax(x, 1)


@fg.op
def channel_norm(x, w, b, *, eps=0.1):  # type: ignore[no-untyped-def]
    """Layer norm over the channels of images."""
    mean = fg.mean(x, 1, keepdims=True)
    rstd = fg.rsqrt(fg.var(x, 1, correction=0, keepdims=True) + eps)
    return (x - mean) * rstd * w + b


def torch_channel_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x.movedim(1, -1), (x.shape[1],), w.flatten(), b.flatten(), eps=0.1).movedim(-1, 1)


# Elements of a result: few, one more than whole vectors of threads, and so many that threads share them.
LENGTHS = [2, 3, 19, 21, 150]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_any_number_of_elements(length: int, dtype: torch.dtype) -> None:
    agree(softmax, lambda x: x.softmax(1), *leaves((3, length, 5, 6), dtype=dtype))
    agree(channel_norm, torch_channel_norm, *leaves((3, length, 5, 6), (length, 1, 1), (length, 1, 1), dtype=dtype))
    (forward, backward) = planned_passes(channel_norm, *leaves((3, length, 5, 6), (length, 1, 1), (length, 1, 1)))
    assert isinstance(forward[0].kernel, StridedRowKernel) and len(forward) == 1
    assert any(isinstance(kernel.kernel, StridedRowKernel) for kernel in backward)


@pytest.mark.parametrize("shape", [(1, 19, 7, 7), (2, 19, 1, 3), (1, 64, 21), (5, 4, 33), (1, 600, 40)])
def test_any_number_of_results(shape: tuple[int, ...]) -> None:
    agree(softmax, lambda x: x.softmax(1), *leaves(shape, dtype=torch.float64))
    agree(softmax, lambda x: x.softmax(1), *leaves(shape, dtype=torch.bfloat16))


def test_who_shares_a_result_follows_from_its_elements_alone() -> None:
    def found(*shape: int) -> tuple[int, int]:
        ((kernel,), _) = planned_passes(
            fg.ops.softmax, torch.empty(shape, dtype=torch.bfloat16, requires_grad=True), dim=1
        )
        return kernel.schedule.rows, kernel.schedule.vectors_per_thread

    assert found(8, 19, 512, 512) == found(1, 19, 8) == (1, 19)
    assert found(8, 150, 512, 512) == found(1, 150, 8) == (16, 12)
    assert found(8, 145, 64, 64) == found(8, 150, 64, 64)  # one text


def test_many_threads_a_result_are_for_what_reads_it_again() -> None:
    """A column kernel reads as little for reductions alone, and its threads wait for one another once."""

    def kinds(function: Callable[..., Any]) -> list[str]:
        return [k.schedule.template for k in planned(fg.op(function), torch.empty(284, 16384, dtype=torch.float16))]

    assert kinds(lambda x: fg.logsumexp(x * 2.0, 0)) == ["column"]
    assert kinds(lambda x: fg.softmax(x * 2.0, 0)) == ["strided_rows"]


def test_threads_that_share_a_result_read_wider_where_blocks_come_out_even() -> None:
    def width(results: int) -> tuple[int, int]:
        (kernel,) = planned(fg.op(lambda x: fg.softmax(x, 0)), torch.empty(384, results, dtype=torch.bfloat16))
        return kernel.schedule.vector, kernel.launch.grid[0]

    assert width(16384) == (4, 256)  # two turns of twice the work, for four
    assert width(12544) == (2, 392)  # three turns, not two of twice the work


def test_images_are_taken_in_vectors_where_there_are_enough() -> None:
    def vector(*shape: int) -> int:
        ((kernel,), _) = planned_passes(
            fg.ops.softmax, torch.empty(shape, dtype=torch.bfloat16, requires_grad=True), dim=1
        )
        return int(kernel.schedule.vector)

    assert vector(8, 4, 512, 512) == 8 and vector(8, 19, 512, 512) == 2 and vector(8, 4, 16, 16) == 2
    assert vector(8, 19, 7, 7) == 1


def test_long_rows_and_empty_ones_take_a_kernel_a_reduction() -> None:
    long = torch.empty(2, 3000, 64, requires_grad=True)
    assert "strided_rows" not in templates(fg.ops.softmax, long, dim=1)[0]
    for shape in ((0, 19, 4), (2, 0, 4), (2, 19, 0)):
        (x,) = leaves(shape)
        softmax(x).backward(torch.empty(shape))
        assert softmax(x).shape == x.grad.shape == shape  # type: ignore[union-attr]
    total = fg.ops.cross_entropy(torch.empty(0, 19, 4), torch.empty(0, 4).long())
    torch.testing.assert_close(total, torch.tensor(float("nan")), equal_nan=True)


def sliced(x: torch.Tensor) -> torch.Tensor:
    return x[:, :, 1::2]


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x.flatten()[1 : 1 + 2 * 19 * 6].view(2, 19, 6)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


@pytest.mark.parametrize("view", [sliced, shifted, channels_last])
def test_wherever_the_elements_lie(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        (x,) = leaves((3, 19, 12), dtype=dtype)
        agree(lambda x: softmax(view(x)), lambda x: view(x).softmax(1), x)


def test_results_and_elements_that_lie_apart() -> None:
    """An operand in vectors, one along other axes, and one of the fast axis alone."""
    op = fg.op(lambda x, y, z: fg.softmax(x * y, 1) * z)
    y = torch.randn(19, 2, requires_grad=True)
    (x, z) = leaves((2, 19, 32), (32,))
    agree(lambda x, z: op(x, y.mT.unsqueeze(-1), z), lambda x, z: (x * y.mT.unsqueeze(-1)).softmax(1) * z, x, z)


@pytest.mark.parametrize("length", [3, 19, 150])
def test_special_values_as_in_torch(length: int) -> None:
    x = torch.randn(length, 12)
    x[0, 0], x[1, 1], x[0, 2], x[:, 3], x[:, 4] = float("nan"), float("inf"), -float("inf"), -float("inf"), 1e4
    x[1, 5], x[2, 5] = float("inf"), -float("inf")
    for mine, true in (
        (fg.ops.softmax(x, 0), x.softmax(0)), (fg.ops.log_softmax(x, 0), x.log_softmax(0)),
        (fg.ops.logsumexp(x, 0), x.logsumexp(0)), (fg.ops.var(x, 0), x.var(0)),
        (fg.ops.normalize(x, dim=0), F.normalize(x, dim=0)),
    ):  # fmt: skip
        torch.testing.assert_close(mine, true, equal_nan=True)


def test_variance_far_from_zero() -> None:
    x = torch.randn(3, 150, 8, dtype=torch.float64) + 1e4
    for length in (19, 150):
        y = x[:, :length].float()
        torch.testing.assert_close(fg.ops.var(y, 1), y.double().var(1).float(), rtol=2e-5, atol=0)


def test_other_reductions() -> None:
    """Products, places, and reductions that feed each other."""

    @fg.op
    def op(x):  # type: ignore[no-untyped-def]
        least, product = fg.amin(x, 1, keepdims=True), fg.prod(x, 1, keepdims=True)
        return (x - least) * product / fg.norm(x, axis=1, keepdims=True)

    for length in (3, 60):
        (x,) = leaves((2, length, 10), dtype=torch.float64)
        agree(op, lambda x: (x - x.amin(1, True)) * x.prod(1, keepdim=True) / x.norm(dim=1, keepdim=True), x)
        assert torch.equal(fg.ops.argmax(x, 1), x.argmax(1))


@pytest.mark.parametrize(
    ("classes", "options"),
    [(3, {}), (19, {"reduction": "none"}), (19, {"label_smoothing": 0.1}), (150, {}), (150, {"reduction": "sum"})],
    ids=str,
)
def test_cross_entropy_of_images(classes: int, options: dict[str, Any]) -> None:
    target = torch.randint(0, classes, (3, 6, 7))
    target[1, 2] = -100
    for dtype in (torch.float32, torch.bfloat16):
        (x,) = leaves((3, classes, 6, 7), dtype=dtype)
        weight = torch.rand(classes).to(dtype) if options else None
        agree(
            lambda x, w=weight: fg.ops.cross_entropy(x, target, w, **options),
            lambda x, w=weight: F.cross_entropy(x, target, w if w is None else w.double(), **options), x,
        )  # fmt: skip


def test_a_loss_is_added_up_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """By blocks that go on to further results; the second kernel needs one block."""
    x, target = torch.empty(8, 19, 512, 512, dtype=torch.bfloat16, requires_grad=True), torch.empty(8, 512, 512).long()
    assert templates(fg.ops.cross_entropy, x, target) == [["strided_rows", "full_reduction"], ["strided_rows"]]
    monkeypatch.setattr(strided_rows, "MULTIPROCESSORS", 1)
    for classes in (5, 70):
        (x,), target = leaves((2, classes, 45, 47)), torch.randint(0, classes, (2, 45, 47))
        kernel, _ = planned_passes(fg.ops.cross_entropy, x, target)[0]
        assert kernel.launch.grid[0] <= strided_rows.SUMMING_BLOCKS
        agree(lambda x, t=target: fg.ops.cross_entropy(x, t), lambda x, t=target: F.cross_entropy(x, t), x)


def test_what_is_the_same_for_all_channels_is_read_once() -> None:
    """Elementwise, where that is as much as what is moved; else neighbouring elements of all channels side by side."""

    @fg.op
    def scaled(x, scale, shift):  # type: ignore[no-untyped-def]
        return x * scale + shift

    for classes, height, width in ((5, 6, 8), (19, 5, 7), (40, 3, 3), (150, 4, 6)):
        inputs = leaves((2, classes, height, width), (2, 1, height, width), (2, 1, height, width))
        agree(scaled, lambda x, scale, shift: x * scale + shift, *inputs)
        with torch.no_grad():
            assert templates(scaled, *(t.detach() for t in inputs))[0] == ["strided_rows"]
    x, scale = torch.empty(2, 5, 6, 8), torch.empty(2, 1, 6, 8)
    assert templates(scaled, x, scale, torch.empty(()))[0] == ["elementwise"]


@pytest.mark.parametrize("index", [-1, 5, 2**62, -(2**63)])
def test_a_class_out_of_range_is_nobodys(index: int) -> None:
    """It is read as one access, which must not leave the tensor, nor overflow on its way to where it would be."""
    (x,), target = leaves((2, 5, 300), dtype=torch.float64), torch.randint(0, 5, (2, 300))
    target[1, 7] = index
    loss = fg.ops.cross_entropy(x, target, reduction="none")
    assert loss[1, 7] == 0
    target[1, 7] = -100
    torch.testing.assert_close(loss, F.cross_entropy(x, target, reduction="none"))


def test_threads_that_share_results_go_on_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One exchange for each of many results: the next overwrites what the one before it left."""
    monkeypatch.setattr(strided_rows, "MULTIPROCESSORS", 1)

    @fg.op
    def op(x):  # type: ignore[no-untyped-def]
        square = fg.sum(x * x, 1, keepdims=True)
        return x / square, fg.mean(fg.log(square))

    (x,) = leaves((2, 150, 301), dtype=torch.float64)
    kernel, _ = planned_passes(op, x)[0]
    assert kernel.schedule.persistent and kernel.schedule.rows > 1 and "__syncthreads" in kernel.rendered.text
    agree(lambda x: op(x)[0], lambda x: x / (x * x).sum(1, True), x)
    torch.testing.assert_close(op(x)[1], (x * x).sum(1).log().mean(), rtol=1e-12, atol=0)


def test_gradcheck() -> None:
    inputs = leaves((2, 5, 3), (5, 1), (5, 1), dtype=torch.float64)
    assert torch.autograd.gradcheck(channel_norm, inputs) and torch.autograd.gradgradcheck(channel_norm, inputs)
    (x,) = leaves((2, 40, 3), dtype=torch.float64)
    assert torch.autograd.gradcheck(softmax, [x])

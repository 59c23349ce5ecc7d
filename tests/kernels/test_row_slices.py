"""Sums over some of the axes that number rows, and rows that other reductions have to be there for: in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fusegen as fg
from fusegen import pipeline
from fusegen.core import dtypes
from fusegen.core.ir import Call, Ref, walk
from fusegen.derive.lower import lower
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.rows_schedule import FEWEST_IN_SLICE
from fusegen.inspect.passes import passes
from tests.support.oracles import leaves
from tests.support.rows import agree, planned_passes

pytestmark = pytest.mark.emulator

Function = Callable[..., Any]
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16


def normed(x: Any) -> Any:
    return (x - fg.mean(x, -1, keepdims=True)) * fg.rsqrt(fg.var(x, -1, correction=0, keepdims=True) + 1e-5)


# The op, torch's, and shapes of which rows of all slices are enough for a block.
MODULATED: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "a norm with a scale and a shift of each image": (
        lambda x, a, b: normed(x) * (1 + a) + b,
        lambda x, a, b: F.layer_norm(x, x.shape[-1:]) * (1 + a) + b,
        ((3, 300, 96), (3, 1, 96), (3, 1, 96)),
    ),
    "and weights of all": (
        lambda x, a, w: normed(x) * w * a,
        lambda x, a, w: F.layer_norm(x, x.shape[-1:]) * w * a,
        ((3, 300, 96), (3, 1, 96), (96,)),
    ),
    "nothing waits for a row": (
        lambda x, a, b, c: fg.sigmoid(x * a + b) * c,
        lambda x, a, b, c: torch.sigmoid(x * a + b) * c,
        ((2, 300, 64), (2, 1, 64), (64,), (2, 300, 1)),
    ),
    "sums over two sets of axes": (
        lambda x, a, b: x * a - fg.mean(x * a * b, -1, keepdims=True),
        lambda x, a, b: x * a - (x * a * b).mean(-1, keepdim=True),
        ((2, 3, 300, 64), (2, 1, 1, 64), (1, 3, 1, 64)),
    ),
    "slices that are not the slowest axis": (
        lambda x, a: normed(x) * a,
        lambda x, a: F.layer_norm(x, x.shape[-1:]) * a,
        ((300, 3, 256), (1, 3, 256)),
    ),
    "several rows at a time": (
        lambda x, a: normed(x) * a, lambda x, a: F.layer_norm(x, x.shape[-1:]) * a, ((3, 600, 16), (3, 1, 16))
    ),
}  # fmt: skip


def kernels_of(function: Function, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> list[Any]:
    """Those of the backward."""
    return planned_passes(fg.op(function), *leaves(*shapes, dtype=dtype))[1]


@pytest.mark.parametrize("dtype", (F32, F64, BF16))
@pytest.mark.parametrize("kind", MODULATED)
def test_sums_over_slices_are_taken_in_the_pass(kind: str, dtype: torch.dtype) -> None:
    ours, theirs, shapes = MODULATED[kind]
    agree(fg.op(ours), theirs, *leaves(*shapes, dtype=dtype))
    if dtype is F64:  # the fewest rows at a time
        (rows,) = (k for k in kernels_of(ours, shapes, dtype) if isinstance(k.kernel, RowKernel) and k.kernel.slices)
        assert rows.schedule.slices and rows.launch.grid[2] > 1
        assert sum("x" in {o.name for o in k.kernel.operands} for k in kernels_of(ours, shapes, dtype)) == 1


def test_what_a_slice_has_in_common_is_read_before_its_rows() -> None:
    ours, _, shapes = MODULATED["a norm with a scale and a shift of each image"]
    (rows,) = (k for k in kernels_of(ours, shapes, F64) if isinstance(k.kernel, RowKernel))
    before, loop = rows.rendered.text.split(" < until; ")
    assert "a_row[part] = " in before and "a_row[part] = " not in loop


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, FEWEST_IN_SLICE - 1, 512), (3, 1, 512)),  # too few rows
        ((3, 300, 259), (3, 1, 259)),  # rows that begin anywhere
        ((1, 300, 64), (1, 1, 64)),  # one slice
        ((3, 1, 64), (3, 1, 64)),
        ((3, 0, 64), (3, 1, 64)),
    ],
    ids=str,
)
def test_other_layouts(shapes: tuple[tuple[int, ...], ...]) -> None:
    ours, theirs, _ = MODULATED["slices that are not the slowest axis"]
    for dtype in (F32, BF16):
        inputs = leaves(*shapes, dtype=dtype)
        if 0 in shapes[0]:
            assert torch.autograd.grad(fg.op(ours)(*inputs).sum(), inputs)[1].eq(0).all()
        else:
            agree(fg.op(ours), theirs, *inputs)
    assert not any(getattr(k.schedule, "slices", 0) for k in kernels_of(ours, shapes, F32))


def test_rows_may_need_reductions_over_other_axes() -> None:
    def largest(x: Any, w: Any) -> Any:
        return fg.amax(fg.abs(normed(x) * w), -2)

    def theirs(x: Any, w: Any) -> Any:
        return (F.layer_norm(x, x.shape[-1:]) * w).abs().amax(-2)

    inputs = leaves((3000, 128), (128,), dtype=F32)
    agree(fg.op(largest), theirs, *inputs)
    kernels = planned_passes(fg.op(largest), *inputs)[1]
    (rows,) = (k.kernel for k in kernels if isinstance(k.kernel, RowKernel))
    assert rows.columns and {"d_x"} == {o.name for o in rows.pointwise}


def test_what_is_kept_for_a_backward_does_not_make_a_forward_of_halves_exact() -> None:
    @fg.op
    def squashed(x):  # type: ignore[no-untyped-def]
        return fg.sigmoid(x - fg.logsumexp(x, -1, keepdims=True))

    op = squashed.trace(torch.empty(8, 64, dtype=BF16))
    forward = pipeline.train_op(op, ("x",)).forward
    assert forward.is_half and any(o.dtype is dtypes.float32 and o.kept for o in forward.outputs)
    given = torch.empty(8, 64, dtype=BF16, requires_grad=True)
    (item, _) = passes(squashed, (given,), {}, "backward")
    assert all("expf" not in kernel.rendered.text for kernel in item.kernels)
    assert not squashed.trace(torch.empty(8, 64)).is_half


def test_a_choice_of_quotients_is_one_quotient() -> None:
    op = fg.op(lambda x, y, t: fg.where(x > y, x / t, y / t)).trace(*[torch.empty(8)] * 3)
    (output,) = lower(op).expand()[1]
    assert sum(isinstance(node, Call) and node.function == "div" for node in walk([output.expr])) == 1
    apart = fg.op(lambda x, y, t: fg.where(x > y, x / t, y / x)).trace(*[torch.empty(8)] * 3)
    assert lower(apart).outputs == apart.outputs
    assert any(isinstance(node, Ref) for node in walk([output.expr]))

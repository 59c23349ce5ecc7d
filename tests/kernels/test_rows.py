"""Rows that stay on chip: every way a row is shared, against torch, and what is left to other kernels."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core.ir import Axes, Call, Ref, const, walk
from fusegen.core.regroupable import marked
from fusegen.core.text import expr_text
from fusegen.declare.reference import reference
from fusegen.derive.lower import lower
from fusegen.derive.value_and_grad import value_and_gradient
from fusegen.fuse import rows_schedule
from fusegen.fuse.group import group, group_by_rows
from fusegen.fuse.hoist import Hoist
from fusegen.fuse.interpret import interpret
from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.schedule import ColumnSchedule
from fusegen.generate.rendered import Rendered
from fusegen.inspect.passes import passes
from fusegen.plan import targets
from tests.support.oracles import leaves
from tests.support.rows import agree, blend, layer_norm, planned, row_schedule, softmax, torch_layer_norm

pytestmark = pytest.mark.emulator

LENGTHS = [1, 2, 5, 8, 33, 64, 100, 256, 1000, 1024, 4097, 5120]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_rows_of_any_length(length: int, dtype: torch.dtype) -> None:
    agree(softmax(), lambda x: x.softmax(-1), *leaves((5, length), dtype=dtype))
    agree(layer_norm(), torch_layer_norm, *leaves((5, length), (length,), (length,), dtype=dtype))


@pytest.mark.parametrize("rows", [1, 3, 16, 300])
def test_any_number_of_rows(rows: int) -> None:
    agree(layer_norm(), torch_layer_norm, *leaves((rows, 72), (72,), (72,)))
    agree(softmax(), lambda x: x.softmax(-1), *leaves((rows, 72)))


def test_who_shares_a_row_follows_from_its_length() -> None:
    def shared(length: int) -> tuple[int, int, int]:
        found = row_schedule(softmax(), torch.empty(8, length, dtype=torch.bfloat16))
        return found.threads, found.rows, found.cluster

    assert shared(8) == (1, 128, 1)  # a thread
    assert shared(16) == (1, 128, 1)
    assert shared(32) == (2, 64, 1)  # two threads, where a single one would have more than two vectors
    assert shared(1024) == (32, 4, 1)  # a warp
    assert shared(8192) == (256, 1, 1)  # a block
    assert shared(32768)[2] > 1  # blocks of a cluster
    assert shared(262144)[2] == 16


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one warp, so that short rows already take clusters."""
    monkeypatch.setattr(rows_schedule, "ONE_BLOCK_THREADS", 32)
    monkeypatch.setattr(rows_schedule, "CLUSTER_BLOCK_THREADS", 32)


@pytest.mark.parametrize("length", [1500, 2048, 4000])
def test_clusters(small_blocks: None, length: int) -> None:
    op = layer_norm()
    inputs = leaves((3, length), (length,), (length,), dtype=torch.float32)
    assert row_schedule(op, *inputs).cluster > 1
    agree(op, torch_layer_norm, *inputs)
    agree(softmax(), lambda x: x.softmax(-1), *leaves((3, length), dtype=torch.float32))


@pytest.mark.parametrize("threads", [32, 64])
def test_persistent_clusters_over_more_rows_than_places(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_schedule, "ONE_BLOCK_THREADS", threads)
    monkeypatch.setattr(rows_schedule, "CLUSTER_BLOCK_THREADS", threads)
    monkeypatch.setattr(rows_schedule, "CLUSTERED", {2: 2, 4: 4})
    monkeypatch.setattr(rows_schedule, "PERSISTENT_THREADS", 32)
    inputs = leaves((9, 2048), (2048,), (2048,), dtype=torch.float32)
    kernel = passes(layer_norm(), inputs, {}, "backward")[-1].kernels[0]
    assert kernel.schedule.persistent and kernel.schedule.threads == threads
    assert kernel.launch.grid[0] == kernel.schedule.cluster > 1  # one cluster, for all rows
    agree(layer_norm(), torch_layer_norm, *inputs)


def test_without_clusters_long_rows_take_a_kernel_a_reduction() -> None:
    inputs = [torch.empty(2, 2**20)]
    kernels = planned(softmax(), *inputs, chip=Chip(cluster=1))
    assert len(kernels) > 1 and all(k.schedule.cluster == 1 for k in kernels)


def test_rows_across_memory_take_a_kernel_a_reduction() -> None:
    def across(x: torch.Tensor) -> torch.Tensor:
        return x.t()

    x = torch.randn(70, 6, dtype=torch.float64, requires_grad=True)
    agree(lambda x: softmax()(across(x)), lambda x: across(x).softmax(-1), x)
    y, w, b = leaves((33, 5), (33,), (33,))
    agree(lambda y, w, b: layer_norm()(across(y), w, b), lambda y, w, b: torch_layer_norm(across(y), w, b), y, w, b)


@pytest.mark.parametrize("dim", [0, 1, (0, 2)])
def test_one_pass_over_what_does_not_lie_in_rows(dim: Any) -> None:
    """Coupled reductions where a row is not at hand: the states of sum_exp and squared_deviation merge."""
    (x,) = leaves((37, 5, 64))
    agree(fg.op(lambda x: fg.var(x, dim)), lambda x: x.var(dim), x)
    agree(fg.op(lambda x: fg.logsumexp(x, dim)), lambda x: x.logsumexp(dim), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_exponentials_down_columns_however_the_maximum_moves(dtype: torch.dtype) -> None:
    """A thread sees one element after the other, and changes what its sum is relative to where one is far above it."""
    n = 2500
    at = torch.arange(n, dtype=torch.float64)
    steep = torch.randn(n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * torch.tensor(
        [0.5, 5, 50, 500], dtype=torch.float64
    )
    none, once = torch.full((n,), -torch.inf, dtype=torch.float64), torch.where(at == 77, 3.0, -torch.inf)
    ends, nan = torch.where(at == 2000, torch.inf, at % 7), torch.where(at == 5, torch.nan, at % 7)
    columns = [at / 2, -at / 2, at % 9, 0 * at - 60000, none, once, ends, nan, at * 8 % 4096, *steep.T]
    x = torch.stack(columns, 1).to(dtype)
    op = fg.op(lambda x: (fg.logsumexp(x, 0), fg.amax(x, 0), fg.sum_exp(x, 0)), name="columns")
    (kernel,) = planned(op, x)
    assert isinstance(kernel.schedule, ColumnSchedule)
    total, top, exponentials = (found.cpu().double() for found in op(x))
    exact = x.cpu().double()
    rounding = {torch.float16: 2e-3, torch.float32: 1e-6, torch.float64: 1e-13}[dtype]
    torch.testing.assert_close(total, exact.logsumexp(0), rtol=rounding, atol=rounding, equal_nan=True)
    torch.testing.assert_close(top, exact.amax(0), rtol=0, atol=0, equal_nan=True)
    expected = (exact - exact.amax(0)).exp().sum(0)
    finite = expected.isfinite()
    torch.testing.assert_close(exponentials[finite], expected[finite], rtol=rounding, atol=0)
    assert exponentials[4] == 0


@pytest.mark.parametrize(
    "shapes",
    [
        ((16, 1, 1, 1), (16, 3, 20, 24), (3, 1, 24)),  # sums over rows and over pieces of them
        ((2, 1, 2, 5, 5), (2, 2, 1, 5, 5), (5,)),
        ((7, 1), (7, 40), (40,)),
        ((64, 1), (64, 130), (1,)),
        ((3, 5, 1), (3, 5, 16), (5, 1)),
    ],
)
def test_sums_over_different_axes_share_a_pass(shapes: tuple[tuple[int, ...], ...]) -> None:
    agree(blend(), lambda x, y, w: x + w * (y - x), *leaves(*shapes))


def test_the_gradients_of_an_interpolation_read_memory_once() -> None:
    op = blend()
    x, y, w = leaves((16, 1, 1, 1), (16, 3, 20, 24), (3, 1, 24))
    text = op.emit(x, y, w, which="backward")
    assert text.count("d_out_ptr,") == 1, "one kernel reads the cotangent"
    assert "sum_d_w_by_group" in text and "sum_d_x_by_piece" not in text  # a block has a whole row
    long = op.emit(*leaves((16, 1, 1, 1), (16, 3, 200, 240), (3, 1, 240)), which="backward")
    assert long.count("d_out_ptr,") == 1 and "sum_d_w_by_group" in long and "sum_d_x_by_piece" in long


def test_rows_that_wait_for_a_sum_over_all_rows() -> None:
    """Such a sum cannot be kept beside the rows: it has to be there before them."""

    def ours(x):  # type: ignore[no-untyped-def]
        centered = x - fg.mean(x, -1, keepdims=True)
        return fg.sum(fg.tanh(centered) * fg.sum(x * x, 0), -1)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x - x.mean(-1, keepdim=True)) * (x * x).sum(0)).sum(-1)

    agree(fg.op(ours), theirs, *leaves((5, 6)))


def test_rows_that_wait_for_a_sum_of_another_tensor_which_is_kept() -> None:
    def ours(x, y):  # type: ignore[no-untyped-def]
        centered = x - fg.mean(x, -1, keepdims=True)
        return fg.sum(fg.tanh(centered * fg.sum(y * y, -1, keepdims=True)), -1)

    def theirs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh((x - x.mean(-1, keepdim=True)) * (y * y).sum(-1, keepdim=True)).sum(-1)

    agree(fg.op(ours), theirs, *leaves((5, 6), (5, 7)))


def test_bias_gradients_of_channels() -> None:
    op = fg.op(lambda x, b: fg.ops.relu(x + b))
    agree(op, lambda x, b: torch.relu(x + b), *leaves((9, 5, 7, 8), (5, 1, 1)))
    agree(op, lambda x, b: torch.relu(x + b), *leaves((40, 96), (96,)))


def test_rows_that_hold_infinities() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[1.0, -inf, 2.0, 0.0], [-inf, -inf, -inf, -inf], [inf, 1.0, 2.0, 3.0], [nan, 1.0, 2.0, 3.0]])
    x = x.repeat(1, 40)
    for dtype in (torch.float32, torch.bfloat16):
        y = x.to(dtype)
        torch.testing.assert_close(softmax()(y), y.softmax(-1), equal_nan=True)
        torch.testing.assert_close(fg.op(lambda x: fg.logsumexp(x, -1))(y), y.logsumexp(-1), equal_nan=True)
        torch.testing.assert_close(fg.op(lambda x: fg.amax(x, -1))(y), y.amax(-1), equal_nan=True)


def test_half_of_a_row_masked_out() -> None:
    """Threads and blocks that see nothing but minus infinity add nothing."""
    x = torch.randn(3, 2048)
    x[:, 700:] = -float("inf")
    torch.testing.assert_close(softmax()(x), x.softmax(-1))


def test_statistics_of_large_offsets() -> None:
    for length in (100, 1000, 5000):
        x = 1e8 + torch.randn(4, length, dtype=torch.float64)
        torch.testing.assert_close(fg.op(lambda x: fg.var(x, -1))(x), x.var(-1), rtol=1e-6, atol=0)
        y = (1e4 + torch.randn(4, length)).float()
        # In float32 a mean near 1e4 is known to 1e-3 only; squares of differences from it still add up right.
        torch.testing.assert_close(fg.op(lambda x: fg.var(x, -1))(y).double(), y.double().var(-1), rtol=2e-4, atol=0)


def test_the_same_bits_every_time() -> None:
    op = layer_norm()
    inputs = leaves((300, 520), (520,), (520,), dtype=torch.float32)
    cotangent = torch.randn(300, 520)

    def run() -> list[torch.Tensor]:
        return list(torch.autograd.grad(op(*inputs), inputs, cotangent))

    first = run()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(run(), first, strict=True))


def test_factors_of_a_row_meet_in_one_number() -> None:
    f32 = fg.float32
    x, w, d, r = (Ref(name, f32) for name in "xwdr")  # r is the same for a whole row
    axes = Axes({name: frozenset({"d0"} if name == "r" else {"d0", "d1"}) for name in "xwdr"})
    hoist = Hoist(axes, frozenset({"d1"}), True)
    cube = Call("powi", (r,), f32, 3)
    regrouped = {
        0.5 * x * cube * 2: "x * r^3",
        0.25 * w * x / r: "w * x * (0.25 / r)",
        x / const(6, f32): "x * (1 / 6)",
        d * w + -(2 * (x * r)): "d * w - x * (2 * r)",
        1e-12 * x * r * const(1e-12, f32): "x * (1e-12 * r * 1e-12)",  # their product is nothing to a float32
    }
    made = marked(regrouped, set())
    assert [expr_text(hoist.one(made[expr])) for expr in regrouped] == list(regrouped.values())
    written = x * r * w * r
    assert hoist.one(written) is written
    around = 2 * (written * r) * d
    assert expr_text(hoist.one(marked([around], set(walk([written])))[around])) == "d * (x * r * w * r) * (2 * r)"


# Between factors of 1e30 of a row that are multiplied with 1e-30 one by one, and have no room together.
LARGE, SMALL = 1e30, 1e-30


def room(columns: int = 70) -> list[torch.Tensor]:
    large = torch.full((3, 1), LARGE)
    return [large.clone(), torch.linspace(1, 2, columns).expand(3, -1) * SMALL, large.clone()]


def test_values_that_a_gradient_computes_again_are_computed_as_they_are_written() -> None:
    op = fg.op(lambda a, x, b, y: fg.softmax(fg.sin(a * x * (b * x)) * y, -1))
    a, x, b = room()
    y = torch.randn(3, 70, requires_grad=True)
    cotangent = torch.randn(3, 70)
    (found,) = torch.autograd.grad(op(a, x, b, y), y, cotangent)
    (expected,) = torch.autograd.grad(((a * x * (b * x)).sin() * y).softmax(-1), y, cotangent)
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected)


def test_a_declared_gradient_is_computed_as_it_is_written() -> None:
    def squares(a, x, b):  # type: ignore[no-untyped-def]
        return fg.sum(x * x, -1, keepdims=True)

    def declared(op: Any) -> Any:
        op.gradient(lambda d_out, a, x, b: (None, d_out * fg.sum(x, -1, keepdims=True) + a * x * b, None))
        return op

    inner = declared(fg.op(squares))
    outer = fg.op(lambda a, x, b: inner(a, x, b) * 2.0)  # which derives a gradient that holds the declared one
    for op, factor in ((declared(fg.op(squares)), 1.0), (outer, 2.0)):
        a, x, b = room()
        x = x.detach().requires_grad_()
        cotangent = torch.tensor([[1.0], [2], [3]])
        (found,) = torch.autograd.grad(op(a, x, b), x, cotangent)
        expected = factor * cotangent * x.sum(-1, keepdim=True) + a * x * b
        assert expected.isfinite().all()
        torch.testing.assert_close(found, expected.detach())


def test_a_value_beside_its_gradient_is_computed_as_it_is_written() -> None:
    op = fg.op(lambda a, x, b, w: fg.sum(fg.logsumexp(a * x * b * SMALL, -1) * w))
    shapes = ((3, 1), (3, 70), (3, 1), (3,))
    joint = lower(value_and_gradient(op.trace(*(fg.TensorSpec(fg.float32, shape) for shape in shapes)), ("w",), (0,)))
    tensors = dict(zip("axbw", [*room(), torch.tensor([1.0, 2, 3])], strict=True)) | {"d_out": torch.tensor(2.0)}
    for kernels in (group(joint), *group_by_rows(joint)):
        found = interpret(kernels, joint, tensors, dtype=torch.float32)
        for result, expected in zip(found, reference(joint, tensors, dtype=torch.float32), strict=True):
            assert expected.isfinite().all()
            torch.testing.assert_close(result, expected)


def test_second_derivatives() -> None:
    x, w, b = leaves((3, 9), (9,), (9,))
    torch.autograd.gradgradcheck(layer_norm(), (x, w, b))
    torch.autograd.gradgradcheck(softmax(), (x,))


def test_text_for_older_gpus_does_without_clusters() -> None:
    (item,) = passes(softmax(), (fg.TensorSpec(fg.bfloat16, (16, 65536)),), {})
    assert "FUSEGEN_CLUSTER" in item.text
    assert "FUSEGEN_CLUSTER" not in item.on(["sm_90", "sm_80"]).text


def test_what_is_launched_as_a_cluster_is_compiled_as_one() -> None:
    """The size of clusters goes by the text and by `Rendered`, which targets read; both are the schedule's."""
    clusters = set()
    for length in (64, 16384, 65536, 2**20):
        (item,) = passes(softmax(), (fg.TensorSpec(fg.bfloat16, (16, length)),), {})
        for kernel in item.kernels:
            found = kernel.rendered
            declared = re.findall(rf"FUSEGEN_CLUSTER\((\d+)\)[^;{{]*void {found.entry}\(", found.text)
            assert declared == ([str(found.cluster)] if found.cluster > 1 else [])
            assert found.cluster_of(found.entry) == found.cluster and found.cluster_of("another") == 1
            clusters.add(found.cluster)
    assert len(clusters) > 1


def test_a_gpu_loads_a_cluster_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes beyond 8 must be allowed when a kernel is loaded. The second kernel of a split reduction has no cluster."""
    asked = []
    monkeypatch.setattr(targets, "cached_cubin", lambda *_, **options: b"")
    monkeypatch.setattr(targets.driver, "Function", lambda _, *what: asked.append(what))
    device = targets.GpuTarget.__new__(targets.GpuTarget)
    device.arch, device.context = "sm_90", nullcontext()  # type: ignore[assignment]
    rendered = Rendered("", "main", "main_finish", barriers=True, shared=4096, cluster=16)
    for entry in ("main", "main_finish"):
        device._load(rendered, entry, "declared")
    assert asked == [("main", 16, 4096), ("main_finish", 1, 0)]


def test_text_from_the_disk_is_what_was_printed() -> None:
    (item,) = passes(softmax(), (fg.TensorSpec(fg.bfloat16, (16, 65536)),), {})
    (planned,) = item.kernels
    for rendered in (planned.rendered, replace(planned.rendered, finish="second", headers=("a", "b"), shared=7)):
        assert Rendered.from_fields(json.loads(json.dumps(rendered.to_fields()))) == rendered

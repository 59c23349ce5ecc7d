"""Every way a kernel walks memory: odd sizes, all kinds of strides, alignment, in place, broadcasts, sums, dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core.dtypes import BY_NAME
from fusegen.fuse.schedule import FILLED, Access
from fusegen.inspect.passes import passes

pytestmark = pytest.mark.emulator

SIZES = [1, 2, 7, 31, 33, 127, 257, 4097]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64]


@fg.op
def blend(x, y):  # type: ignore[no-untyped-def]
    return x * y + x


@fg.op
def blend3(x, y, z):  # type: ignore[no-untyped-def]
    return x * y + z


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Small whole numbers: sums and products of them are exact in every dtype, whatever their order."""
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def agrees(op: Any, function: Callable[..., torch.Tensor], *inputs: torch.Tensor, strides: bool = True) -> None:
    kept = [t.clone() for t in inputs]
    ours, theirs = op(*inputs), function(*inputs)
    assert ours.dtype is theirs.dtype and ours.shape == theirs.shape
    assert torch.equal(ours, theirs)
    if strides and ours.numel():
        steps = [(a, b) for a, b, size in zip(ours.stride(), theirs.stride(), ours.shape, strict=True) if size > 1]
        assert all(a == b for a, b in steps), (ours.stride(), theirs.stride())
    assert all(torch.equal(a, b) for a, b in zip(inputs, kept, strict=True)), "arguments are read only"


def torch_blend(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y + x


def walks(op: Any, *inputs: torch.Tensor) -> set[Access]:
    """The ways of access that the forward's kernels use."""
    (forward,) = passes(op, inputs, {})
    return {placement.access for item in forward.kernels for placement in item.schedule.placements}


# -- elementwise -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dense(dtype: torch.dtype) -> None:
    for size in SIZES:
        x = numbers(size, dtype=dtype)
        agrees(blend, torch_blend, x, x + 1)
    assert walks(blend, x, x.clone()) == {Access.DENSE}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8], ids=str)
def test_unaligned(dtype: torch.dtype) -> None:
    for size, offset in itertools.product(SIZES, (1, 2, 3)):
        base = numbers(size + 4, dtype=dtype)
        agrees(blend, torch_blend, base[offset:][:size], base[:size].clone())
    assert Access.UNALIGNED in walks(blend, base[1:4097], base[:4096].clone())


@pytest.mark.parametrize("columns", [1, 3, 4, 8, 33, 64])
def test_rows_splats_and_single_elements(columns: int) -> None:
    x = numbers(5, columns)
    for other in (numbers(columns), numbers(5, 1), numbers(1, columns), numbers(1, 1)):
        agrees(blend, torch_blend, x, other)
        agrees(blend, torch_blend, other, x)
    agrees(blend, torch_blend, x, torch.tensor(2.0, dtype=x.dtype))
    if columns == 64:
        found = walks(blend3, x, numbers(64), numbers(5, 1)) | walks(blend, x, numbers(1, 1))
        assert {Access.ROW, Access.SPLAT, Access.SINGLE} <= found


@pytest.mark.parametrize("columns", [1, 5, 8, 32, 33])
def test_rows_that_lie_apart_and_elements_that_do(columns: int) -> None:
    wide = numbers(6, 3 * columns + 8)
    dense = numbers(6, columns)
    for view in (wide[:, :columns], wide[:, 8 : 8 + columns], wide[:, ::3][:, :columns], wide[::1, 1 : 1 + columns]):
        agrees(blend, torch_blend, view, dense)
        agrees(blend, torch_blend, view, view)
    assert Access.STRIDED in walks(blend, wide[:, ::3][:, :columns], dense) or columns == 1


@pytest.mark.parametrize("shape", [(40, 33), (33, 40), (16, 257), (100, 17)], ids=str)
def test_turned_tiles(shape: tuple[int, int]) -> None:
    for dtype in (torch.float16, torch.float32, torch.float64, torch.int8):
        x, y = numbers(*shape, dtype=dtype), numbers(*shape[::-1], dtype=dtype).t()
        agrees(blend, torch_blend, x, y)
        agrees(blend, torch_blend, y, x)
        agrees(blend3, lambda x, y, z: x * y + z, x, y, numbers(shape[1], dtype=dtype))
    assert Access.TRANSPOSED in walks(blend, x, y)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_turned_tiles_in_three_dimensions(order: tuple[int, ...]) -> None:
    shape = (17, 35, 20)
    x = numbers(*shape)
    turned = numbers(*(shape[d] for d in order)).permute([order.index(d) for d in range(3)])
    agrees(blend, torch_blend, x, turned)
    agrees(blend, torch_blend, turned, x)
    agrees(blend3, lambda x, y, z: x * y + z, x, turned, numbers(35, 1))
    batch = numbers(3, *shape)
    agrees(blend, torch_blend, batch, turned, strides=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_channels_last_stays_channels_last(dtype: torch.dtype) -> None:
    for shape in ((2, 3, 5, 7), (2, 8, 4, 4), (1, 3, 5, 5), (3, 1, 4, 4)):
        x = numbers(*shape, dtype=dtype).to(memory_format=torch.channels_last)
        agrees(blend, torch_blend, x, x)
        agrees(blend, torch_blend, x, numbers(shape[1], 1, 1, dtype=dtype))
        agrees(blend, torch_blend, x, numbers(*shape, dtype=dtype), strides=False)
        leaf = x.detach().requires_grad_(dtype is torch.float32)
        if leaf.requires_grad:
            out = blend(leaf, numbers(shape[1], 1, 1, dtype=dtype))
            (gradient,) = torch.autograd.grad(out.sum(), leaf)
            assert gradient.stride() == leaf.stride()


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float64])
def test_many_rows_that_begin_between_vectors(dtype: torch.dtype) -> None:
    """A thread then takes several elements a block apart; the last block's take what is left one by one."""
    x, y = numbers(1021, 1033, dtype=dtype), numbers(1021, 1, dtype=dtype)
    into = torch.zeros(1021, 1035, dtype=dtype)
    blend(x, y, out=into[:, 1:1034])
    assert torch.equal(into[:, 1:1034], x * y + x) and not into[:, 0].any() and not into[:, 1034].any()
    agrees(blend, lambda x, y: x * y + x, x[:, ::2], y[::1], strides=False)
    spec = fg.TensorSpec(fg.float64, (2**20,))
    assert "a block apart" not in blend.emit(spec, spec)


def test_expanded_and_overlapping_arguments() -> None:
    row = numbers(33)
    agrees(blend, torch_blend, row.expand(5, 33), numbers(5, 33))
    agrees(blend, torch_blend, numbers(5, 1).expand(5, 33), numbers(5, 33))
    windows = numbers(64).as_strided((20, 8), (1, 1))
    agrees(blend, torch_blend, windows, numbers(20, 8), strides=False)
    agrees(blend, torch_blend, numbers(200).as_strided((10, 16), (3, 2)), numbers(16), strides=False)


def test_reversed_arrays_of_numpy_have_negative_strides() -> None:
    x = numbers(4, 9).numpy()
    assert (blend(x[::-1, ::-2], x[:, ::2]) == x[::-1, ::-2] * x[:, ::2] + x[::-1, ::-2]).all()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 4)], ids=str)
def test_nothing_to_do(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, requires_grad=True)
    out = blend(x, torch.ones(shape[-1:]))
    assert out.shape == shape
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert gradient.shape == shape
    scalar = torch.ones((), requires_grad=True)
    (gradient,) = torch.autograd.grad(blend(torch.ones(shape), scalar).sum(), scalar)
    assert gradient.item() == 0, "a sum over nothing"


def test_no_dimensions() -> None:
    x, y = torch.tensor(3.0, requires_grad=True), torch.tensor(2.0)
    out = blend(x, y)
    assert out.shape == () and out.item() == 9
    (gradient,) = torch.autograd.grad(out, x)
    assert gradient.shape == () and gradient.item() == 3


@pytest.mark.parametrize(
    "pair", list(itertools.combinations(DTYPES, 2)), ids=lambda p: f"{p[0]}-{p[1]}".replace("torch.", "")
)
def test_dtypes_mixed_in_one_kernel(pair: tuple[torch.dtype, torch.dtype]) -> None:
    for size in (7, 64):
        x, y = numbers(5, size, dtype=pair[0]), numbers(5, size, dtype=pair[1])
        agrees(blend, torch_blend, x, y)
        agrees(blend, torch_blend, x, y.t().contiguous().t(), strides=False)
        agrees(blend, torch_blend, x, y[:, :1])


# -- into the caller's memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_out_in_place_and_strided(size: int) -> None:
    x, y = numbers(3, size), numbers(size)
    expected = torch_blend(x, y)
    into = torch.zeros(3, size, dtype=x.dtype)
    assert blend(x, y, out=into) is into
    assert torch.equal(into, expected)
    wide = torch.full((3, 2 * size + 1), 9.0, dtype=x.dtype)
    blend(x, y, out=wide[:, 1::2])
    assert torch.equal(wide[:, 1::2], expected) and bool((wide[:, ::2] == 9).all()), "nothing beside it is written"
    turned = torch.zeros(size, 3, dtype=x.dtype).t()
    blend(x, y, out=turned)
    assert torch.equal(turned, expected)
    blend(x, y, out=x)
    assert torch.equal(x, expected)


# -- sums ------------------------------------------------------------------------------------------------------------


@fg.op
def totals(x, *, axis: fg.Const = None):  # type: ignore[no-untyped-def]
    return fg.sum(x * x + x, axis)


def check_sums(x: torch.Tensor, axes: Any) -> None:
    for axis in axes:
        expected = (x * x + x).sum(tuple(range(x.dim())) if axis is None else axis)
        assert torch.equal(totals(x, axis=axis), expected), (x.shape, x.stride(), axis)


BESIDE: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "left and right": lambda b: (b[:, :5], b[:, 5:]),
    "right and left": lambda b: (b[:, 5:], b[:, :5]),
    "every other column": lambda b: (b[:, ::2], b[:, 1::2]),
    "every other row": lambda b: (b[1:7:2], b[:6:2]),
    "other strides": lambda b: (b[:5, 0], b[7, ::2]),
    "turned": lambda b: (b[:5, :5].t(), b[:5, 5:]),
    "another dtype": lambda b: (b[:, :5].view(torch.int64), b[:, 5:]),
    "one row": lambda b: (b.flatten()[:7].as_strided((1, 7), (99, 1)), b.flatten()[:7].view(1, 7)),
}
ACROSS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "a column": lambda b: (b[:, :5], b[:, 4:9]),
    "a row": lambda b: (b[:7], b[1:]),
    "one element": lambda b: (b[0, :8], b[:, 7]),
    "turned": lambda b: (b[:5, :5].t(), b[:5, :5]),
    "broadcast": lambda b: (b[:1, :5], b[:, :5]),
    "half an element": lambda b: (b.view(torch.float32)[:, 1:6], b[:, :5]),
}


@fg.op
def next_of(x, like):  # type: ignore[no-untyped-def]
    return x + 1 + like * 0


@pytest.mark.parametrize("views", BESIDE)
def test_out_may_lie_between_the_elements_of_an_argument(views: str) -> None:
    memory = numbers(8, 10)
    x, out = BESIDE[views](memory)
    expected, zeros = x.double() + 1, torch.zeros((), dtype=torch.float64)
    others = {*range(80)} - {*BESIDE[views](torch.arange(80.0, dtype=torch.float64).view(8, 10))[1].flatten().tolist()}
    kept = memory.flatten()[[int(i) for i in others]].clone()
    next_of(x, zeros, out=out)
    assert torch.equal(out, expected)
    assert torch.equal(memory.flatten()[[int(i) for i in others]], kept), "only out is written"


@pytest.mark.parametrize("views", ACROSS)
def test_out_may_not_share_some_elements_with_an_argument(views: str) -> None:
    x, out = ACROSS[views](numbers(8, 10))
    with pytest.raises(fg.ShapeError, match="memory that partly overlaps argument x"):
        next_of(x, torch.zeros((), dtype=torch.float64), out=out)


def test_out_that_would_take_long_to_tell_from_an_argument() -> None:
    memory = torch.zeros(20_000)
    x, out = memory.as_strided((900, 900), (7, 5)), memory[3:].as_strided((900, 900), (9, 11))
    with pytest.raises(fg.ShapeError, match="memory that may partly overlap argument x"):
        next_of(x, torch.zeros(()), out=out)


@pytest.mark.parametrize("size", SIZES)
def test_sums_along_rows_columns_and_everything(size: int) -> None:
    for x in (numbers(3, size), numbers(size, 3), numbers(size, 5).t(), numbers(3, 2 * size)[:, ::2], numbers(1, size)):
        check_sums(x, (None, 0, 1))


@pytest.mark.parametrize("shape", [(70_000,), (3, 70_000), (70_000, 3), (300, 300), (40, 64, 30)], ids=str)
def test_sums_that_are_split_over_blocks(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float64, torch.int64):
        check_sums(numbers(*shape, dtype=dtype), [None, *range(len(shape))])


@fg.op
def spread(x):  # type: ignore[no-untyped-def]
    return fg.sum(x, 0), fg.mean((x - fg.mean(x, 0, keepdims=True)) ** 2, 0)


@pytest.mark.parametrize("columns", [1024, 1057])
def test_many_sums_that_are_split_over_blocks(columns: int) -> None:
    x = numbers(2100, columns, dtype=torch.float32)
    (item,) = passes(totals, (x,), {"axis": 0})
    assert [k.schedule.finish for k in item.kernels] == ["tile"]
    check_sums(x, [0])
    found = spread(x)
    assert torch.equal(found[0], x.sum(0))
    torch.testing.assert_close(found[1], x.double().var(0, correction=0).float())


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3], ids=str)
def test_sums_over_any_axes_of_any_order_in_memory(order: tuple[int, ...]) -> None:
    shape = (3, 6, 5, 7)
    x = numbers(*(shape[d] for d in order)).permute([order.index(d) for d in range(4)])
    check_sums(x, [c for n in range(1, 5) for c in itertools.combinations(range(4), n)])


def test_gradients_of_broadcasts_are_sums_in_every_layout() -> None:
    full = (3, 9, 5, 8)
    for shape in ((8,), (5, 1), (9, 1, 1), (3, 1, 1, 1), (1, 9, 1, 8), (3, 1, 5, 1), (), (1,)):
        for memory in (torch.contiguous_format, torch.channels_last):
            x, cotangent = numbers(*full), numbers(*full).to(memory_format=memory)
            leaf = numbers(*shape).requires_grad_() if shape else torch.tensor(2.0, dtype=x.dtype, requires_grad=True)
            (ours,) = torch.autograd.grad(blend(x, leaf), leaf, cotangent)
            (theirs,) = torch.autograd.grad(torch_blend(x, leaf), leaf, cotangent)
            assert torch.equal(ours, theirs), (shape, memory)


def test_sums_of_the_same_numbers_have_the_same_bits() -> None:
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    first = totals(x)
    assert all(torch.equal(first, totals(x)) for _ in range(3))
    assert torch.equal(totals(x.clone()), first)


@pytest.mark.cpu
def test_elements_at_places_of_their_own_fill_a_gpu_before_threads_have_several() -> None:
    """Each waits for the one before, which looks at its place; rows that share a place have vectors in any case."""

    def vector(rows: int, columns: int) -> int:
        tensors = [fg.TensorSpec(BY_NAME[name], (rows, columns)) for name in ("bfloat16", "int64")]
        (found,) = passes(fg.ops.gather, (tensors[0], 1, tensors[1]), {})
        return found.kernels[0].schedule.vector

    assert vector(1000, 8) == 1 and vector(FILLED // 8, 8) == 1 and vector(FILLED // 4, 8) == 2
    assert vector(FILLED, 8) == 8
    rows = fg.TensorSpec(BY_NAME["bfloat16"], (1000, 64)), fg.TensorSpec(BY_NAME["int64"], (10,))
    (found,) = passes(fg.ops.embedding, (rows[1], rows[0]), {})
    assert found.kernels[0].schedule.vector == 8

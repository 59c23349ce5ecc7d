"""Rows at multiples of 16 bytes for matrix products: between steps always, of a caller's tensors where copies pay."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen import pipeline
from fusegen.core.ir import Operand
from fusegen.fuse.products import chain
from fusegen.fuse.schedule import Buffer
from fusegen.generate.render import one_file
from fusegen.wrap import native, pitch
from fusegen.wrap.chain import ChainRunner
from fusegen.wrap.products import View
from fusegen.wrap.tensors import TensorInfo, Torch
from fusegen.wrap.tensors import torch as torch_framework


@fg.op
def layer(x: Any, w: Any, b: Any) -> Any:
    return fg.tanh(fg.linear(x, w, b))


@fg.op
def squared(q: Any, k: Any) -> Any:
    return (q @ k.mT) ** 2


@fg.op
def plain(x: Any, w: Any) -> Any:
    return x @ w


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


def infos(**tensors: torch.Tensor) -> dict[str, TensorInfo]:
    return {name: torch_framework().info(name, tensor) for name, tensor in tensors.items()}


def plan(op: Any, *, out: torch.Tensor | None = None, by_torch: bool = True, **tensors: torch.Tensor) -> Any:
    runner = ChainRunner(op.trace(*tensors.values()), by_torch=by_torch)
    return runner.plan_for(infos(**tensors), None if out is None else [torch_framework().info("out", out)])


def test_between_steps_rows_begin_at_multiples_of_16_bytes() -> None:
    rows = {dtype: torch.zeros(3, 4, dtype=dtype) for dtype in (torch.bfloat16, torch.float32, torch.float64)}
    found = {}
    for dtype, x in rows.items():
        (made, *_) = plan(layer, x=x, w=x.new_zeros(5, 4), b=x.new_zeros(5)).made
        found[dtype] = made[0].strides
    assert found == {torch.bfloat16: (8, 1), torch.float32: (8, 1), torch.float64: (6, 1)}
    (made, *_) = plan(layer, x=half(3, 4), w=half(5, 4), b=half(5), by_torch=False).made
    assert made[0].strides == (5, 1), "other frameworks allocate dense tensors"


def test_axes_that_are_one_dimension_to_a_product_stay_side_by_side() -> None:
    """A batch of 2 on the left alone is rows: [2, 3, 5] is [6, 5] in the product."""
    (made, *_) = plan(layer, x=half(2, 3, 4), w=half(5, 4), b=half(5)).made
    assert made[0].strides == (24, 8, 1)
    (made, *_) = plan(squared, q=half(2, 3, 4), k=half(2, 5, 4)).made
    assert made[0].strides == (24, 8, 1)
    sizes = {"a": 3, "b": 2, "c": 5}
    kinds = {"a": (True, False, False), "b": (False, True, False), "c": (False, True, False)}
    assert pitch.strides("abc", sizes, 2, [kinds]) == (16, 5, 1)
    assert pitch.strides("abc", sizes, 2, []) == (10, 5, 1), "no product reads it"
    assert pitch.strides("abc", {**sizes, "b": 1}, 2, [kinds]) == (8, 5, 1)


@pytest.mark.parametrize(
    ("view", "address", "expected"),
    [
        (View((4, 8), (8, 1), 0), 0, True),
        (View((4, 8), (8, 1), 8), 0, True),
        (View((4, 5), (8, 1), 0), 0, True),  # the size itself may be odd
        (View((4, 5), (5, 1), 0), 0, False),
        (View((5, 4), (1, 5), 0), 0, False),
        (View((1, 5), (5, 1), 0), 0, True),  # one row has no next
        (View((4, 8), (8, 1), 3), 0, False),
        (View((4, 8), (8, 1), 0), 2, False),
        (View((4, 8), (8, 1), 7), 2, True),
        (View((3, 4, 8), (36, 8, 1), 0), 0, False),
        (View((3, 4, 8), (0, 8, 1), 0), 0, True),
        (View((4, 8), (64, 8), 0), 0, False),  # no routine reads every eighth element
        (View((2, 2, 5), (5, 10, 1), 0, (4, 5)), 0, True),  # copied by the framework in any case
    ],
)
def test_what_counts_as_aligned(view: View, address: int, expected: bool) -> None:
    assert pitch.is_aligned(view, 2, address) == expected


def test_copies_are_made_where_they_pay() -> None:
    def rule(m: int, n: int, k: int, device: str = "cuda:0") -> bool:
        return pitch.pays(device, 2 * m * n * k, 4 * (m * k + k * n + m * n), 3)

    assert rule(4097, 4097, 4097) and rule(8192, 4097, 512)
    assert not rule(4097, 4097, 4097, "cpu")
    assert not rule(127, 127, 127) and not rule(65537, 4097, 7)  # the launches, and the bytes, cost more


def test_results_with_such_rows_are_written_side_by_side() -> None:
    """Between vectors of the source: a vector a thread would leave gaps between what neighbouring threads write."""
    whole = chain(plain.trace(half(6, 13), half(13, 11)))
    assert whole is not None
    source = whole.op.operands[0]
    a, b = (axis for axis in source.shape if axis)
    into = Operand("rows", fg.bfloat16, (a, b))
    buffers = {"x": Buffer(fg.bfloat16, {a: 13, b: 1}, 0), "rows": Buffer(fg.bfloat16, {a: 16, b: 1}, 0)}
    (kernel,) = pipeline.plan(pitch.copying(whole, "x", into), pipeline.Layout({a: 6, b: 13}, buffers))
    assert "one element a thread; rows of rows begin between vectors" in one_file([kernel.rendered])


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pitch, "pays", lambda *_: True)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every product that Python runs: whether all three tensors are aligned."""
    found: list[bool] = []
    multiply = Torch.multiply

    def watched(self: Torch, *sides: torch.Tensor) -> None:
        views = [(View(tuple(s.shape), s.stride(), 0), s.data_ptr() % 16) for s in sides]
        found.append(all(pitch.is_aligned(view, 2, address) for view, address in views))
        multiply(self, *sides)

    monkeypatch.setattr(Torch, "multiply", watched)
    return found


ARGUMENTS = {
    "rank 2": (layer, lambda x, w, b: torch.tanh(F.linear(x, w, b)), [(6, 13), (11, 13), (11,)]),
    "rows of two axes": (layer, lambda x, w, b: torch.tanh(F.linear(x, w, b)), [(2, 3, 13), (11, 13), (11,)]),
    "batches": (squared, lambda q, k: (q @ k.mT) ** 2, [(2, 3, 13), (2, 5, 13)]),
    "a result": (plain, torch.matmul, [(6, 13), (13, 11)]),
    "one batch for all": (plain, torch.matmul, [(6, 13), (3, 13, 11)]),
    "a vector": (plain, torch.matmul, [(6, 13), (13,)]),
}


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_products_of_copies_are_torchs(name: str, rows: list[bool]) -> None:
    op, expected, shapes = ARGUMENTS[name]
    own = [half(*shape).requires_grad_() for shape in shapes]
    theirs = [t.detach().requires_grad_() for t in own]
    result, wanted = fg.FusedOp(op.declaration)(*own), expected(*theirs)
    torch.testing.assert_close(result, wanted)
    assert result.is_contiguous()
    cotangent = torch.randn_like(wanted)
    found = torch.autograd.grad(result, own, cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, theirs, cotangent), rtol=0.05, atol=0.05)
    # Summed over batches and columns, which do not lie side by side: the framework copies that factor.
    assert len(rows) == 3 and rows.count(False) == (name == "one batch for all")


@pytest.mark.usefixtures("forced")
def test_slices_transposes_and_expanded_tensors_are_copied_as_they_lie(rows: list[bool]) -> None:
    wide = half(14, 30)
    for x, w in (
        (wide[:6, 1:14], half(13, 16)), (wide[:, :6].mT, wide[:, 7:16]), (half(13).expand(6, 13), half(13, 8)),
        (half(6, 26)[:, ::2], half(13, 8)),
    ):  # fmt: skip
        torch.testing.assert_close(fg.FusedOp(plain.declaration)(x, w), x @ w)
    assert all(rows) and len(rows) == 4


@pytest.mark.usefixtures("forced")
def test_only_what_is_not_aligned_is_copied() -> None:
    def copied(**tensors: torch.Tensor) -> set[str]:
        (step,) = plan(plain, **tensors).steps
        return {tensor.name for tensor in getattr(step, "own", ())}

    assert copied(x=half(6, 16), w=half(16, 8)) == set()
    assert copied(x=half(6, 13), w=half(13, 8)) == {"x_aligned"}
    assert copied(x=half(6, 13), w=half(13, 11)) == {"x_aligned", "w_aligned", "out_aligned"}
    assert copied(x=half(6, 13).float(), w=half(13, 11).float()) == set()


@pytest.mark.usefixtures("forced")
def test_out_is_written_where_it_lies(rows: list[bool]) -> None:
    x, w, memory = half(6, 13), half(13, 11), torch.zeros(6, 12).bfloat16()
    found = plain(x, w, out=memory[:, 1:])
    torch.testing.assert_close(memory[:, 1:], x @ w)
    assert found.data_ptr() == memory[:, 1:].data_ptr() and not memory[:, 0].any() and rows == [True]


@pytest.mark.usefixtures("forced")
def test_copies_take_the_native_path(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.module() is None:
        pytest.skip("no native call path")
    ran: list[str] = []
    launch = ChainRunner.launch
    monkeypatch.setattr(ChainRunner, "launch", lambda self, *args: (ran.append(self.op.label), launch(self, *args))[1])
    op = fg.FusedOp(plain.declaration)
    for _ in range(3):
        x, w = half(6, 13), half(13, 11)
        torch.testing.assert_close(op(x, w), x @ w)
    assert ran == ["forward"]


def test_copies_of_one_tensor_for_two_products_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cotangent is copied for both products of the backward: natively both copies lie in one table."""
    monkeypatch.setattr(pitch, "pays", lambda *_: True)
    op = fg.FusedOp(plain.declaration)
    own, theirs = ([half(5, 3), half(3, 7)] for _ in range(2))
    for mine, other in zip(own, theirs, strict=True):
        other.copy_(mine)
        mine.requires_grad_(), other.requires_grad_()
    for _ in range(3):
        result, expected = op(*own), torch.matmul(*theirs)
        cotangent = half(5, 7)
        found = torch.autograd.grad(result, own, cotangent)
        torch.testing.assert_close(found, torch.autograd.grad(expected, theirs, cotangent))

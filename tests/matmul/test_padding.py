"""Products of halves on sizes rounded up: copies of a caller's tensors where they pay, padded rows between steps."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.fuse.products import chain
from fusegen.matmul import padding
from fusegen.native import module as native
from fusegen.plan.frameworks import TensorInfo, Torch
from fusegen.plan.frameworks import torch as torch_framework
from fusegen.plan.native_step import View
from fusegen.run.chain import ChainRunner


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


def strides(op: Any, device: str, *shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[Any]:
    """Of the tensors between the steps of an op, for arguments of these shapes."""
    traced = op.trace(*(torch.empty(shape, dtype=dtype) for shape in shapes))
    whole, sizes = chain(traced), {}
    for operand, shape in zip(traced.operands, shapes, strict=True):
        sizes.update({axis: size for axis, size in zip(operand.shape, shape, strict=True) if axis})
    assert whole is not None
    return [padding.padded_strides(whole, tensor, sizes, device) for tensor in whole.intermediates]


def test_between_steps_rows_have_room_where_products_are_large() -> None:
    large = (1000, 900), (1001, 900), (1001,)
    assert strides(layer, "cuda:0", *large) == [(1008, 1)]
    assert strides(layer, "cpu", *large) == [(1001, 1)]
    assert strides(layer, "cuda:0", *large, dtype=torch.float32) == [(1001, 1)]
    assert strides(layer, "cuda:0", (7, 900), (1001, 900), (1001,)) == [(1001, 1)]


def test_axes_that_are_one_dimension_to_a_product_stay_side_by_side() -> None:
    """A batch on the left alone is rows: [20, 50, 1001] is [1000, 1001] in the product."""
    assert strides(layer, "cuda:0", (20, 50, 900), (1001, 900), (1001,)) == [(50 * 1008, 1008, 1)]
    assert strides(squared, "cuda:0", (20, 501, 900), (20, 1001, 900)) == [(501 * 1008, 1008, 1)]


def test_memory_has_room_behind_the_last_row_too() -> None:
    assert padding.padded_allocation("p", (3, 5), (8, 1), fg.bfloat16).shape == (24,)
    assert padding.padded_allocation("p", (3, 8), (8, 1), fg.bfloat16).shape == (3, 8)
    assert padding.padded_allocation("p", (0, 5), (8, 1), fg.bfloat16).shape == (0, 5)


@pytest.mark.parametrize(
    ("view", "address", "expected"),
    [
        (View((4, 8), (8, 1), 0), 0, True),
        (View((4, 8), (8, 1), 8), 0, True),
        (View((8, 4), (1, 8), 0), 0, True),
        (View((4, 5), (8, 1), 0), 0, True),  # the size is another question
        (View((4, 5), (5, 1), 0), 0, False),
        (View((5, 4), (1, 5), 0), 0, False),
        (View((1, 5), (5, 1), 0), 0, True),  # one row has no next
        (View((4, 8), (8, 1), 3), 0, False),
        (View((4, 8), (8, 1), 0), 2, False),
        (View((3, 4, 8), (36, 8, 1), 0), 0, False),
        (View((3, 4, 8), (0, 8, 1), 0), 0, True),
        (View((4, 8), (64, 8), 0), 0, False),  # no routine reads every eighth element
    ],
)
def test_what_counts_as_aligned(view: View, address: int, expected: bool) -> None:
    assert padding.suits(view, 2, address) == expected


def test_copies_are_made_where_they_pay() -> None:
    def rule(m: int, n: int, k: int, device: str = "cuda:0") -> bool:
        return padding.pays(device, (m, k, n), 1, 4 * (m * k + k * n + m * n), 5)

    assert rule(4097, 4097, 4097) and rule(8192, 50257, 768) and rule(4097, 1025, 1025)
    assert not rule(4097, 4097, 4097, "cpu")
    assert not rule(127, 127, 127) and not rule(65537, 4097, 17)  # the launches, and the bytes, cost more
    assert not rule(1 << 17, 1, 1 << 17)  # a vector


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are always rounded up, and what nobody has written is not a number."""
    monkeypatch.setattr(padding, "pays", lambda *_: True)
    empty = Torch.empty

    def poisoned(self: Torch, shape: Any, strides: Any, dtype: Any, device: str) -> Any:
        found = empty(self, shape, strides, dtype, device)
        return found.fill_(float("nan")) if dtype.is_float else found

    monkeypatch.setattr(Torch, "empty", poisoned)


@pytest.fixture
def suited(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every product that Python runs: whether sizes and rows of all three tensors suit it."""
    found: list[bool] = []

    def look(*sides: torch.Tensor) -> None:
        views = [View(tuple(s.shape), s.stride(), 0) for s in sides]
        rows = [padding.suits(view, 2, side.data_ptr() % 16) for view, side in zip(views, sides, strict=True)]
        found.append(all(rows) and all(view.shape[padding._along(view) or -1] % 8 == 0 for view in views))

    def watch(name: str) -> None:
        routine = getattr(Torch, name)

        def watched(self: Torch, *sides: torch.Tensor) -> None:
            look(*sides)
            routine(self, *sides)

        monkeypatch.setattr(Torch, name, watched)

    watch("multiply")
    watch("accumulate")
    adding = Torch.multiply_adding

    def watched_adding(self: Torch, bias: torch.Tensor, *sides: torch.Tensor) -> None:
        look(*sides)
        adding(self, bias, *sides)

    monkeypatch.setattr(Torch, "multiply_adding", watched_adding)
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
def test_padded_products_are_torchs(name: str, suited: list[bool]) -> None:
    op, expected, shapes = ARGUMENTS[name]
    own = [half(*shape).requires_grad_() for shape in shapes]
    theirs = [t.detach().requires_grad_() for t in own]
    result, wanted = fg.FusedOp(op.declaration)(*own), expected(*theirs)
    torch.testing.assert_close(result, wanted, rtol=0.02, atol=0.02)
    assert result.is_contiguous()
    cotangent = torch.randn_like(wanted)
    found = torch.autograd.grad(result, own, cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, theirs, cotangent), rtol=0.05, atol=0.05)
    # Summed over batches and columns, which do not lie side by side: the framework copies that factor.
    assert len(suited) == 3 and suited.count(False) == (name == "one batch for all")


@pytest.mark.usefixtures("forced")
def test_slices_transposes_and_expanded_tensors(suited: list[bool]) -> None:
    wide = half(14, 30)
    for x, w in (
        (wide[:6, 1:14], half(13, 16)), (wide[:, :6].mT, wide[:, 7:16]), (half(13).expand(6, 13), half(13, 8)),
        (half(6, 26)[:, ::2], half(13, 8)), (half(2, 6, 13), half(13, 8).expand(2, 13, 8)),
    ):  # fmt: skip
        torch.testing.assert_close(fg.FusedOp(plain.declaration)(x, w), x @ w, rtol=0.02, atol=0.02)
    assert all(suited) and len(suited) == 5


@pytest.mark.usefixtures("forced")
def test_infinite_rows_stay_their_own(suited: list[bool]) -> None:
    x, w = half(6, 13), half(13, 11)
    x[2, 12], w[12, 3] = float("inf"), float("nan")
    torch.testing.assert_close(fg.FusedOp(plain.declaration)(x, w), x @ w, rtol=0.02, atol=0.02, equal_nan=True)
    assert suited == [True]


@pytest.mark.usefixtures("forced")
def test_only_what_does_not_suit_is_copied() -> None:
    def copied(**tensors: torch.Tensor) -> set[str]:
        (step,) = plan(plain, **tensors).steps
        return {tensor.name for tensor in getattr(step, "buffers", ())}

    assert copied(x=half(6, 16), w=half(16, 8)) == set()
    assert copied(x=half(6, 13), w=half(13, 8)) == {"x_2", "w_2"}  # summed over 16
    assert copied(x=half(6, 16), w=half(16, 11)) == {"w_2", "out_2"}
    assert copied(x=half(6, 16), w=half(11, 16).mT) == {"w_2", "out_2"}
    assert copied(x=half(13, 6).mT, w=half(13, 8)) == {"x_2", "out_2"}  # 13 is nobody's width
    assert copied(x=half(6, 13), w=half(13, 11)) == {"x_2", "w_2", "out_2"}
    assert copied(x=half(6, 24)[:, 1:17], w=half(16, 8)) == {"x_2"}
    assert copied(x=half(6, 13).float(), w=half(13, 11).float()) == set()


@pytest.mark.usefixtures("forced")
def test_between_steps_nothing_is_copied(suited: list[bool]) -> None:
    """Their rows are padded: the product writes them in place, and one that adds up over them finds zeros there."""
    x, w, b = half(6, 16), half(11, 16), half(11)
    found = plan(layer, x=x, w=w, b=b)
    assert [{tensor.name for tensor in getattr(step, "buffers", ())} for step in found.steps] == [{"w_2", "b_2"}, set()]
    own, theirs = ([t.clone().requires_grad_() for t in (x, w, b)] for _ in range(2))
    result, expected = fg.FusedOp(layer.declaration)(*own), torch.tanh(F.linear(*theirs))
    cotangent = half(6, 11)
    found = torch.autograd.grad(result, own, cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(expected, theirs, cotangent), rtol=0.05, atol=0.05)
    assert suited == [True] * 3


@pytest.mark.usefixtures("forced")
def test_a_product_is_added_to_what_the_result_holds(suited: list[bool]) -> None:
    for n in (11, 13):
        x, u, v, w = half(6, 13), half(13, n), half(6, 5), half(5, n)
        op = fg.op(lambda x, u, v, w: x @ u + v @ w, name="both")
        torch.testing.assert_close(op(x, u, v, w), x @ u + v @ w, rtol=0.02, atol=0.05)
    assert suited == [True] * 4


@pytest.mark.usefixtures("forced")
def test_out_is_written_where_it_lies(suited: list[bool]) -> None:
    x, w, memory = half(6, 13), half(13, 11), torch.zeros(6, 12).bfloat16()
    found = plain(x, w, out=memory[:, 1:])
    torch.testing.assert_close(memory[:, 1:], x @ w, rtol=0.02, atol=0.02)
    assert found.data_ptr() == memory[:, 1:].data_ptr() and not memory[:, 0].any() and suited == [True]


@pytest.mark.cpu
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
        torch.testing.assert_close(op(x, w), x @ w, rtol=0.02, atol=0.02)
    assert ran == ["forward"]


@pytest.mark.cpu
@pytest.mark.usefixtures("forced")
def test_a_part_of_a_packed_weight_is_copied_from_where_it_lies() -> None:
    """By torch, on both call paths: the second half of the weight begins in the middle of a tensor."""
    op = fg.op(lambda x, w: x @ fg.split(w, 2, axis=1)[1] + 1, name="second")
    for _ in range(3):
        x, w = half(6, 13), half(13, 22)
        torch.testing.assert_close(op(x, w), x @ w[:, 11:] + 1, rtol=0.02, atol=0.05)


def test_copies_of_one_tensor_for_two_products_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cotangent is copied for both products of the backward: natively both copies lie in one table."""
    monkeypatch.setattr(padding, "pays", lambda *_: True)
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

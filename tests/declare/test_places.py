"""Places out of range: an error that names the op, the index, the value and where it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import jvp, vmap
from torch.nn import functional as F

import fusegen as fg
from tests.support.call_paths import DEVICE

Function = Callable[[torch.Tensor, torch.Tensor], Any]


# Each reads or writes rows of x, five of them, at the places i.
WORDS: dict[str, Function] = {
    "x[i]": lambda x, i: x[i] * 2,
    "take": lambda x, i: fg.take(x, i).tanh(),
    "take of columns": lambda x, i: fg.take(x.mT, i, 1),
    "take_along_axis": lambda x, i: fg.take_along_axis(x, i[:, None], 0),
    "index_select": lambda x, i: torch.index_select(x, 0, i),
    "gather": lambda x, i: fg.ops.gather(fg.sum(x, 1, keepdims=True), 0, fg.expand_dims(i, 1)),
    "embedding": lambda x, i: F.embedding(i, x),
    "of a sum": lambda x, i: fg.sum(fg.take(x, i) * 2, -1),
    "softmax behind": lambda x, i: fg.softmax(fg.take(x, i), -1),
    "sum over places": lambda x, i: fg.sum(x[i], 0),
    "index_add": lambda x, i: fg.index_add(x, 0, i, fg.sum(x, 0) + fg.cast(i, fg.float32)[:, None]),
    "index_copy": lambda x, i: fg.index_copy(x, 0, i, fg.sum(x, 0) + fg.cast(i, fg.float32)[:, None]),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "amax": lambda x, i: x.index_reduce(0, i, fg.sum(x, 0) + fg.cast(i, fg.float32)[:, None], "amax"),
    "prod": lambda x, i: x.index_reduce(0, i, fg.sum(x, 0) + fg.cast(i, fg.float32)[:, None], "prod"),
}
NOT_NEGATIVE = ("index_select", "embedding")


def _settle() -> None:
    """Where kernels are not waited for, their errors come later."""
    if DEVICE != "cpu":
        fg.check_indices()


def _refused(call: Callable[[], Any], place: int, position: int) -> fg.PlaceError:
    with pytest.raises(
        fg.PlaceError, match=rf"the place {place}, at position {position}, along an axis of size 5"
    ) as e:
        call()
        _settle()
    assert isinstance(e.value, IndexError)
    return e.value


def _tensors(*places: int, dtype: torch.dtype = torch.int64) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, 20, device=DEVICE).reshape(5, 4)
    return x, torch.tensor(places, device=DEVICE, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("word", WORDS)
def test_a_place_out_of_range_is_an_error_that_names_it(word: str, dtype: torch.dtype) -> None:
    op = fg.op(WORDS[word], name="rows")
    low = -1 if word in NOT_NEGATIVE else -6
    for wrong in (5, low, 2**30, 5):
        for _ in range(2):  # the second call knows the way
            _refused(lambda wrong=wrong: op(*_tensors(0, 4, wrong, 1, dtype=dtype)), wrong, 2)
    good = _tensors(0, 4, 2, 1, dtype=dtype)
    op(*good)  # nothing is left of the errors
    fg.check_indices()
    with_gradient = good[0].requires_grad_()
    out = op(with_gradient, good[1])
    out.backward(torch.ones_like(out).cumsum(0))
    x = with_gradient.detach().requires_grad_()
    _refused(lambda: op(x, _tensors(0, 1, 5, dtype=dtype)[1]), 5, 2)


def test_the_text_of_the_error() -> None:
    op = fg.op(lambda table, tokens: table[tokens + 1].exp(), name="looked_up")
    table, tokens = _tensors(0, 5)
    text = str(_refused(lambda: op(table, tokens), 6, 1))
    assert re.fullmatch(
        r"looked_up, declared in .*test_places.py, take, index tokens\n"
        r"  given:    the place 6, at position 1, along an axis of size 5\n"
        r"  expected: 0 to 4, or -5 to -1 from the end\n"
        r"  fix:      mend the index; clamp it, or put fg.NOWHERE where nothing is meant \(it reads zero, and writes "
        r"nothing\)",
        text,
    ), text


def test_the_position_is_of_the_index_as_one_number() -> None:
    x = torch.randn(5, 4, device=DEVICE)
    for shape, at in (((3, 7), 17), ((2, 3, 5), 29), ((1,), 0), ((), 0)):
        i = torch.zeros(shape, dtype=torch.int64, device=DEVICE)
        i.view(-1)[at] = 9
        op = fg.op(lambda x, i: fg.take(x, i).sin())
        _refused(lambda: op(x, i), 9, at)  # noqa: B023
        if i.ndim > 1:
            apart = torch.zeros(*shape, 2, dtype=torch.int64, device=DEVICE)[..., 0].copy_(i)
            _refused(lambda: op(x, apart), 9, at)  # noqa: B023
            turned = i.mT.contiguous().mT
            _refused(lambda: op(x, turned), 9, at)  # noqa: B023


def test_of_several_the_first_counts_on_the_cpu() -> None:
    if DEVICE != "cpu":
        pytest.skip("a GPU has no first")
    x = torch.randn(5, 4)
    i = torch.arange(4000) % 5
    i[[3999, 2000, 77]] = torch.tensor([7, 8, 9])
    _refused(lambda: fg.ops.index_select(x, 0, i), 9, 77)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 31, 33])
def test_elements_behind_the_last_one_are_nobodys_places(count: int) -> None:
    """A vector that overhangs reads zeros there, of which a place may be made that there is not."""
    x = torch.randn(50, device=DEVICE)
    i = torch.arange(count, device=DEVICE) + 1
    for op in (
        fg.op(lambda x, i: fg.take(x, i - 1, negative=False).exp()),
        fg.op(lambda x, i: fg.sum(fg.take(x, i - 1, negative=False).exp())),
        fg.op(lambda x, i: fg.index_add(x, 0, i - 60 + 59, fg.cast(i, fg.float32))),
    ):
        op(x, i)
        fg.check_indices()
        wrong = i.clone()
        wrong[-1] = 52
        with pytest.raises(fg.PlaceError, match=f"the place 51, at position {count - 1}"):
            op(x, wrong)
            _settle()


def test_nowhere_reads_zero_and_writes_nothing() -> None:
    @fg.op
    def masked(x: Any, i: Any, keep: Any) -> Any:
        at = fg.where(keep, fg.cast(i, fg.int64), fg.NOWHERE)
        return fg.take(x, at), fg.index_add(x, 0, at, fg.cast(i, fg.float32)[:, None] + x[0])

    x, i = _tensors(4, 100, -1)
    keep = torch.tensor([True, False, True], device=DEVICE)
    read, added = masked(x, i, keep)
    fg.check_indices()
    assert torch.equal(read, torch.where(keep[:, None], x[torch.tensor([4, 0, 4], device=DEVICE)], 0))
    expected = x.clone()
    expected[4] += 4 - 1 + 2 * x[0]
    torch.testing.assert_close(added, expected)
    _refused(lambda: masked(x, i, keep.new_ones(3)), 100, 1)


# What the language promises about places that are none, or makes of positions itself.
QUIET: dict[str, tuple[Function, list[int]]] = {
    "segment_sum": (lambda x, i: fg.segment_sum(x, i, 3), [0, -1, 7, 2, 1]),
    "segment_max": (lambda x, i: fg.segment_max(x, i, 3), [0, -1, 7, 2, 1]),
    "segment_softmax": (lambda x, i: fg.segment_softmax(x, i, 3), [0, -1, 7, 2, 1]),
    "bincount": (lambda x, i: fg.bincount(i, 3) + fg.sum(x), [0, -1, 7, 2, 1]),
    "one_hot": (lambda x, i: fg.one_hot(i, 3) + fg.sum(x), [0, -1, 7, 2, 1]),
    "compared": (lambda x, i: fg.sum(fg.where(fg.index(x, 0) == i[:, None, None], x, 0), 1), [0, -1, 7, 2, 1]),
    "padding_idx": (lambda x, i: F.embedding(i, x, padding_idx=2), [0, 2, 2, 4, 1]),
    "ignored class": (lambda x, i: F.nll_loss(x, i), [0, -100, 3, 2, -100]),
    "ignored class of a cross entropy": (lambda x, i: F.cross_entropy(x, i), [0, -100, 3, 2, -100]),
}
OWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "slice": lambda x: x[1::2] * 2,
    "flip": lambda x: torch.flip(x, (0,)),
    "roll": lambda x: torch.roll(x, 2, 0),
    "pad": lambda x: F.pad(x, (1, 2)),
    "reflect": lambda x: F.pad(x, (1, 2), "reflect"),
    "windows": lambda x: x.unfold(0, 3, 1).sum(-1),
    "diagonal": lambda x: torch.diagonal(x, 1),
    "repeat": lambda x: x.repeat(2, 1),
}


@pytest.mark.parametrize("word", QUIET)
def test_what_the_language_promises_of_other_places_is_no_error(word: str) -> None:
    function, places = QUIET[word]
    x, i = _tensors(*places)
    fg.op(function)(x.requires_grad_(), i).sum().backward()
    fg.check_indices()


@pytest.mark.parametrize("word", OWN)
def test_places_of_positions_alone_are_not_looked_at(word: str) -> None:
    x, _ = _tensors()
    op = fg.op(OWN[word])
    assert "fg::within" not in op.emit(x) + op.emit(x, which="backward")


def test_what_is_derived_looks_at_nothing_again() -> None:
    op = fg.op(lambda x, i: fg.take(x, i).sin() + fg.sum(x))
    x, i = _tensors(0, -5, 4)
    assert "fg::within" in op.emit(x, i)
    for which in ("backward", "double-backward", "tangent"):
        assert "fg::within" not in op.emit(x, i, which=which), which


def test_forward_mode_and_second_gradients() -> None:
    op = fg.op(lambda x, i: fg.take(x, i).sin())
    x, bad = _tensors(0, 5, 4)
    _refused(lambda: jvp(lambda x: op(x, bad), (x,), (x.cos(),)), 5, 1)

    def twice() -> None:
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(op(leaf, bad).sum(), leaf, create_graph=True)
        first.sin().sum().backward()

    _refused(twice, 5, 1)


def test_under_vmap() -> None:
    op = fg.op(lambda x, i: fg.take(x, i).sin())
    x, i = _tensors(0, 1, 4)
    for dims, given in (
        ((0, None), (torch.stack([x, x]), i)), ((None, 0), (x, torch.stack([i, i]))),
        ((0, 0), (torch.stack([x, x]), torch.stack([i, i]))),
    ):  # fmt: skip
        found = vmap(op, dims)(*given)
        torch.testing.assert_close(found, torch.stack([x[i].sin()] * 2))
        wrong = given[1].clone()
        wrong[..., 1] = -6
        _refused(lambda dims=dims, table=given[0], wrong=wrong: vmap(op, dims)(table, wrong), -6, 1)

    def of_gradient(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.grad(lambda x: op(x, i).sum())(x)
        return found

    _refused(lambda: vmap(of_gradient, (None, 0))(x, torch.stack([i, i + 3])), 7, 2)


def test_under_compile() -> None:
    op = fg.op(lambda x, i: fg.take(x, i).sin())
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, i: op(x, i) + 1, fullgraph=True, backend="aot_eager")
    x, i = _tensors(0, 1, 4)
    torch.testing.assert_close(compiled(x, i), x[i].sin() + 1)
    for _ in range(2):
        _refused(lambda: compiled(x, i + 1), 5, 2)
    compiled(x.requires_grad_(), i).sum().backward()
    _refused(lambda: compiled(x, i + 1), 5, 2)


def test_arrays_results_given_and_axes_without_elements() -> None:
    op = fg.op(lambda x, i: fg.take(x, i).sin())
    with pytest.raises(fg.PlaceError, match="the place 5, at position 1"):
        op(np.ones((5, 3), np.float32), np.array([0, 5], np.int32))
    x, i = _tensors(0, 5)
    _refused(lambda: op(x, i, out=torch.empty(2, 4, device=DEVICE)), 5, 1)
    op(x[:0], i[:0])
    with pytest.raises(fg.PlaceError, match=r"size 0\n  expected: no place at all"):
        op(x[:0], i)
        _settle()


# What a random program does with what it has read: each has kernels of another shape.
BEHIND: list[Callable[[Any], Any]] = [
    torch.sin,
    lambda y: y.sum(-1),
    lambda y: y.sum(0),
    lambda y: y.sum(),
    lambda y: torch.softmax(y, -1),
    lambda y: torch.softmax(y, 0),
    lambda y: y.mT + 1 if y.ndim > 1 else y + 1,
    lambda y: y - y.mean(-1, keepdim=True),
    lambda y: (y * y).mean(0) + 1,
    lambda y: y.amax(-1),
]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_report_the_place_that_is_wrong_and_no_other(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rank = int(draw.integers(1, 4))
    shape = [int(n) for n in draw.choice([1, 2, 3, 5, 8, 32, 33], rank)]
    axis, places = (
        int(draw.integers(rank)),
        [int(n) for n in draw.choice([1, 3, 4, 7, 16, 65], int(draw.integers(1, 3)))],
    )
    shape[axis] = max(shape[axis], 2)
    shift, behind = int(draw.integers(-2, 3)), BEHIND[int(draw.integers(len(BEHIND)))]
    dtype = (torch.float32, torch.bfloat16, torch.float64)[int(draw.integers(3))]
    x = torch.randn(shape, dtype=dtype, device=DEVICE)
    right = torch.from_numpy(draw.integers(0, shape[axis], places)).to(DEVICE)
    if draw.integers(2):
        x = x.movedim(axis, 0).contiguous().movedim(0, axis)
    if draw.integers(2):
        right = right.mT.contiguous().mT if right.ndim > 1 else right.repeat_interleave(2)[::2]
    op = fg.op(lambda x, i: behind(fg.take(x, i - shift, axis, negative=False)), name="program")
    expected = behind(x.index_select(axis, right.flatten()).unflatten(axis, places))
    for _ in range(2):
        tolerances = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
        torch.testing.assert_close(op(x, right + shift), expected, **tolerances)
        fg.check_indices()
    at = int(draw.integers(right.numel()))
    wrong, value = right.clone(), int(draw.choice([shape[axis], -1, 2**40, -(2**40)]))
    wrong[tuple(int(n) for n in np.unravel_index(at, places))] = value
    with pytest.raises(
        fg.PlaceError, match=f"the place {value}, at position {at}, along an axis of size {shape[axis]}"
    ):
        op(x, wrong + shift)
        _settle()


def test_an_op_that_does_not_look() -> None:
    @fg.op(check_indices=False)
    def rows(x: Any, i: Any) -> Any:
        return x[i] * 2

    x, i = _tensors(0, 5)
    assert "fg::within" not in rows.emit(x, i)
    assert torch.equal(rows(x, i), torch.stack([x[0] * 2, x[0] * 0]))
    assert "fg::within" not in fg.op(lambda x, i: rows(x, i) + 1, name="around").emit(x, i)
    both = fg.op(lambda x, i: (rows(x, i), fg.take(x, i + 0)))
    _refused(lambda: both(x, i), 5, 1)


def test_the_variable_that_leaves_reports_out() -> None:
    code = (
        "import torch, fusegen as fg; x = torch.ones(5, 4); i = torch.tensor([0, 5]); op = fg.op(lambda x, i: x[i]);"
        "assert 'within' not in op.emit(x, i); print(op(x, i).tolist())"
    )
    environment = {**os.environ, "FUSEGEN_CHECK_INDICES": "0", "FUSEGEN_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "[[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]\n"


@pytest.mark.emulator
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("shape", [(5, 12), (3, 7, 40), (70, 3), (1, 9, 300), (130, 33)], ids=str)
def test_a_place_that_the_op_finds_itself_is_no_mistake(shape: tuple[int, ...], axis: int) -> None:
    """Threads behind the last row have no largest element, and nothing to report."""
    op = fg.op(lambda x, y: fg.take_along_axis(y, fg.argmax(fg.sin(x) * y, axis, keepdims=True), axis) * x)
    x, y = (torch.randn(shape, device=DEVICE, dtype=torch.float64, requires_grad=True) for _ in range(2))
    best = (torch.sin(x) * y).argmax(axis, keepdim=True)
    expected = torch.take_along_dim(y, best, axis) * x
    with torch.no_grad():
        torch.testing.assert_close(op(x, y), expected.detach())
    found, cotangent = op(x, y), torch.randn_like(expected)
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, (x, y), cotangent), torch.autograd.grad(expected, (x, y), cotangent), strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    _settle()


def test_numbers_are_counted() -> None:
    x, w = torch.tensor([3, 0, 3, 5]), torch.tensor([0.5, 2.0, 1.0, -1.0])
    op = fg.op(lambda x, w: (torch.bincount(x, minlength=7), x.bincount(w, minlength=6)), name="counted")
    for found, expected in zip(op(x, w), (x.bincount(minlength=7), x.bincount(w, minlength=6)), strict=True):
        torch.testing.assert_close(found, expected)
    assert op(x, w.double())[1].dtype == op(x, x)[1].dtype == torch.float64
    for wrong in (torch.tensor([0, 7, 1, 1]), torch.tensor([0, -1, 1, 1])):
        with pytest.raises(fg.PlaceError):
            op(wrong, w)
            fg.check_indices()  # a GPU is not waited for
    with pytest.raises(fg.DeclarationError, match="say minlength"):
        fg.op(lambda x: torch.bincount(x), name="counted")(x)

"""Intermediates that a thread keeps between the traversals of a row: which, and that the numbers stay what they are."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.inspect.passes import passes
from tests.support.oracles import draw, gradients

pytestmark = pytest.mark.emulator

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
TOLERANCE = {F64: 1e-11, F32: 5e-5, BF16: 3e-2}


def capped_softmax(lib: Any, s: Any, mask: Any, axis: int = -1) -> Any:
    capped = 30.0 * lib.tanh(s / 30.0) + mask
    return lib.softmax(capped, axis)


def standardized(lib: Any, x: Any, w: Any, axis: int = -1) -> Any:
    y = lib.sigmoid(x) * lib.tanh(x)
    centered = y - y.mean(axis, keepdim=True) if lib is torch else y - fg.mean(y, axis, keepdims=True)
    return centered * w


def scaled_by_largest(lib: Any, x: Any, y: Any) -> Any:
    v = lib.sigmoid(x) / (abs(y) + 1.0) if lib is torch else fg.sigmoid(x) / (fg.abs(y) + 1.0)
    largest = v.amax(-1, keepdim=True) if lib is torch else fg.amax(v, -1, keepdims=True)
    return v / (largest + 1e-3)


def logsumexp_of_quotients(lib: Any, x: Any, y: Any) -> Any:
    q = lib.tanh(x) / (lib.exp(y) + 1.0)
    return torch.logsumexp(q, -1) + q.amax(-1) if lib is torch else fg.logsumexp(q, -1) + fg.amax(q, -1)


FUNCTIONS = {f.__name__: f for f in (capped_softmax, standardized, scaled_by_largest, logsumexp_of_quotients)}


def op_of(name: str) -> Any:
    """The declaration as an op: its function reads fusegen's functions."""
    function = FUNCTIONS[name]
    language = fg if name != "capped_softmax" else _Library()

    def declared(a, b):  # type: ignore[no-untyped-def]
        return function(language, a, b)

    return fg.op(declared, name=name)


class _Library:
    """fusegen's functions, softmax among them."""

    softmax = staticmethod(lambda x, axis: fg.ops.softmax(x, axis))

    def __getattr__(self, name: str) -> Any:
        return getattr(fg, name)


# Rows of a warp, of a block, unaligned ones, staged ones, and some that go in chunks or over a cluster.
SHAPES = [(5, 16), (300, 16), (3, 197), (2, 4097), (4, 1152), (2, 2, 640), (2, 20000)]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=str)
def test_values_and_gradients(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given = [draw(*shape, seed=i).detach().to(dtype).requires_grad_() for i in range(2)]
    wide = [x.detach().double().requires_grad_() for x in given]
    ours, theirs = gradients(op_of(name), given), gradients(lambda *a: FUNCTIONS[name](torch, *a), wide)
    for mine, true in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True):
        assert (mine.double() - true).abs().max() <= TOLERANCE[dtype] * true.abs().max().clamp(min=1e-3)
    assert torch.equal(op_of(name)(*given), ours[0][0]) or dtype is BF16  # with and without what a backward needs


def kernels(op: Any, *inputs: torch.Tensor, which: str = "forward") -> list[Any]:
    return [kernel for item in passes(op, inputs, {}, which) for kernel in item.kernels]


def test_what_costs_much_is_computed_once() -> None:
    shape = (64, 1024)
    (kernel,) = kernels(op_of("capped_softmax"), torch.empty(shape, dtype=BF16), torch.empty(shape, dtype=BF16))
    assert kernel.schedule.reused and len(re.findall(r"fast_tanh\(", kernel.rendered.text)) == 1
    (kernel,) = kernels(op_of("standardized"), torch.empty(shape, dtype=F32), torch.empty(shape, dtype=F32))
    assert kernel.schedule.reused and len(re.findall(r"tanhf\(", kernel.rendered.text)) == 1


def test_what_memory_takes_longer_for_is_computed_again() -> None:
    (kernel,) = kernels(fg.op(lambda x: fg.ops.softmax(x, -1), name="plain"), torch.empty(64, 1024, dtype=BF16))
    assert not kernel.schedule.reused


def weighted_twice(x: Any, w: Any) -> Any:
    """A norm of a norm, which has weights."""
    v = torch.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-6)
    return (v - v.mean(-1, keepdim=True)) * torch.rsqrt(v.var(-1, keepdim=True) + 1e-5)


@pytest.mark.parametrize(("columns", "dtype"), [(197, F32), (4097, BF16)], ids=str)
def test_what_all_rows_have_in_common_is_read_once(columns: int, dtype: torch.dtype) -> None:
    """By one traversal, whose products the others take: where rows lie askew to it, that is slow."""
    (kernel,) = kernels(
        fg.op(weighted_twice), torch.empty(512, columns, dtype=dtype), torch.empty(columns, dtype=dtype)
    )
    assert kernel.schedule.reused and len(re.findall(r"auto w_v =", kernel.rendered.text)) == 1
    x, w = draw(5, columns), draw(columns, seed=1)
    ours, theirs = gradients(fg.op(weighted_twice), [x, w]), gradients(weighted_twice, [x, w])
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_strided_rows_keep_them_too() -> None:
    op = fg.op(lambda x: standardized(fg, x, 1.0, 1), name="strided")
    x = torch.empty(2, 19, 64, 64)
    (kernel,) = kernels(op, x)
    assert kernel.schedule.template == "strided_rows" and kernel.schedule.reused
    given = draw(2, 19, 6, 7)
    ours, theirs = gradients(op, [given]), gradients(lambda x: standardized(torch, x, 1.0, 1), [given])
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_registers_bound_what_is_kept() -> None:
    def many(x):  # type: ignore[no-untyped-def]
        values = [fg.tanh(x * (1.0 + i)) / (fg.exp(x) + float(i)) for i in range(12)]
        top = fg.amax(sum(values[1:], values[0]), -1, keepdims=True)
        return fg.sum(sum((v * v for v in values[1:]), values[0]) * (values[3] - top), -1)

    (kernel, *_) = kernels(fg.op(many), torch.empty(512, 8192))
    plan = kernel.schedule
    assert len(plan.reused) * plan.vector * plan.vectors_per_thread <= 128


@pytest.mark.parametrize("width", [16, 24, 64, 512])
def test_sums_over_many_short_rows(width: int) -> None:
    """A persistent block adds up its rows' sums over lanes first, and several numbers at a time."""
    op = fg.op(lambda x, w, b: fg.ops.layer_norm(fg.tanh(x), (width,), w, b), name="normed")
    given = [draw(1200, width, seed=1), draw(width, seed=2), draw(width, seed=3)]
    for dtype, tolerance in ((F64, 1e-11), (F32, 1e-4)):
        inputs = [x.detach().to(dtype).requires_grad_() for x in given]
        ours = gradients(op, inputs)
        theirs = gradients(lambda x, w, b: torch.nn.functional.layer_norm(x.tanh(), (width,), w, b), given)
        for mine, true in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True):
            assert (mine.double() - true).abs().max() <= tolerance * true.abs().max()


# Many results that lie side by side: a thread has a vector of them. Their number is a multiple of a vector, or not; the
# elements are few, or several threads share them.
@pytest.mark.parametrize("shape", [(2, 3, 65536), (130, 65536), (3, 65537), (37, 2**17)], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_many_results_side_by_side(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def op(x, scale):  # type: ignore[no-untyped-def]
        return fg.sum(x * x, 0) * scale + 1.0, fg.amax(x, 0)

    x, scale = draw(*shape, seed=4).detach().to(dtype), draw(shape[-1], seed=5).detach().to(dtype)
    sums, largest = fg.op(op, name="many_results")(x, scale)
    truth = (x.double() ** 2).sum(0) * scale.double() + 1.0
    assert (sums.double() - truth).abs().max() <= (1e-5 if dtype is F32 else 1e-2) * truth.abs().max()
    assert torch.equal(largest, x.amax(0))

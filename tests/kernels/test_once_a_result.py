"""What is the same for all elements of a result is computed once for it; and no value twice, in two spellings."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core.ir import Axes, Let
from fusegen.fuse.hoist import Hoist
from fusegen.fuse.row_kernel import RowKernel
from fusegen.run import evaluate
from tests.support.oracles import leaves
from tests.support.rows import agree, planned_passes

pytestmark = pytest.mark.emulator

Function = Callable[..., Any]
F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


def by_its_size(x: Any, w: Any) -> Any:
    return fg.sigmoid(x / (fg.abs(w) + 1.5)) * fg.exp(w)


def by_its_size_in_torch(x: Any, w: Any) -> Any:
    return torch.sigmoid(x / (w.abs() + 1.5)) * w.exp()


# Of a weight each: columns in vectors, columns of a width that has none, few elements of many results, and a result of
# a block each (the weight is along the slow axis).
SHAPES = {
    "column": ((700, 64), (64,)),
    "column without vectors": ((700, 33), (33,)),
    "serial": ((5, 70_000), (70_000,)),
    "row": ((37, 5000), (37, 1)),
}


@pytest.mark.parametrize("dtype", (F32, F64, BF16, F16))
@pytest.mark.parametrize("kind", SHAPES)
def test_sums_are_torchs(kind: str, dtype: torch.dtype) -> None:
    agree(fg.op(by_its_size), by_its_size_in_torch, *leaves(*SHAPES[kind], dtype=dtype))


def sums_of(function: Function, *shapes: tuple[int, ...], dtype: torch.dtype = F32) -> list[Any]:
    """The kernels of its forward that add up in columns."""
    planned = planned_passes(fg.op(function), *leaves(*shapes, dtype=dtype))[0]
    return [k for k in planned if k.schedule.template == "column" and k.kernel.once]


def test_a_column_divides_before_its_loop() -> None:
    def total(x: Any, w: Any) -> Any:
        return fg.sum(fg.tanh(x / (fg.abs(w) + 1.5)), 0)

    (kernel,) = sums_of(total, (700, 64), (64,), dtype=BF16)
    before, loop = re.split(r"for \((?:int at = |; at )", kernel.rendered.text, maxsplit=1)
    assert "fg::divide(" in before and "_v[k] = " in before
    assert "fg::abs(w)" not in loop and "abs_w" not in loop


def test_a_vector_of_results_is_as_wide_as_its_registers_allow() -> None:
    """Each of a result's constants takes a register for each result."""

    def total(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return fg.sum(fg.tanh(x / (fg.abs(a) + 1.5)) * fg.exp(b) + fg.sin(x * c) / (d * d + 1) + x * fg.cos(d), 0)

    (few,) = sums_of(lambda x, w: fg.sum(fg.tanh(x * fg.exp(w)), 0), (700, 512), (512,), dtype=BF16)
    (many,) = sums_of(total, (700, 512), *[(512,)] * 4, dtype=BF16)
    assert few.schedule.vector == 8 and many.schedule.vector == 4
    agree(
        fg.op(total),
        lambda x, a, b, c, d: (
            torch.tanh(x / (a.abs() + 1.5)) * b.exp() + (x * c).sin() / (d * d + 1) + x * d.cos()
        ).sum(0),
        *leaves((700, 512), *[(512,)] * 4),
    )


def test_what_a_condition_reads_is_not_regrouped_beside_it() -> None:
    """The branch and the value come from one computation."""

    def folded(x: Any, w: Any) -> Any:
        v = fg.tanh(x / 30.0)
        return fg.maximum(fg.tanh(v), w) * w

    def in_torch(x: Any, w: Any) -> Any:
        return torch.maximum(torch.tanh(torch.tanh(x / 30.0)), w) * w

    arguments = leaves((4, 300, 64), (4, 1, 64), dtype=F16)
    agree(fg.op(folded), in_torch, *arguments)
    for kernel in planned_passes(fg.op(folded), *arguments)[1]:
        code = kernel.rendered.text.split('extern "C"', 1)[1]
        if isinstance(kernel.kernel, RowKernel) and "tanh" in code:
            assert code.count("tanh(") == 2


STEPS: dict[str, tuple[Function, Function]] = {
    "floor": (fg.floor, torch.floor),
    "ceil": (fg.ceil, torch.ceil),
    "trunc": (fg.trunc, torch.trunc),
    "integer": (lambda x: fg.cast(x, "int32"), lambda x: x.int()),
    "fmod": (lambda x: fg.fmod(x, 1.0), lambda x: torch.fmod(x, 1.0)),
}


@pytest.mark.parametrize("dtype", (F16, BF16))
@pytest.mark.parametrize("kind", STEPS)
def test_a_step_sees_the_quotient_itself(kind: str, dtype: torch.dtype) -> None:
    """41 / 41 is 1, and 41 times the number nearest to 1 / 41 is not: its floor would be 0."""
    ours, theirs = STEPS[kind]

    def steps(x: Any, s: Any) -> Any:
        v = ours(x / s)
        return v, fg.sum(v, -1)

    size = torch.arange(1, 250).to(dtype)[:, None]
    every = (size * torch.arange(1, 9).to(dtype)).to(dtype)
    found, _ = fg.op(steps)(every, size)
    exact = size.double() * torch.arange(1, 9) == every.double()
    assert exact.sum() > 500
    assert torch.equal(found[exact].double(), theirs(every.double() / size.double())[exact].double())


ROOTS: dict[str, tuple[Function, Function]] = {
    "sqrt": (lambda x: fg.floor(fg.sqrt(x)), lambda k: k * k),
    "pow": (lambda x: fg.cast(x**0.5, "int32"), lambda k: k * k),
    "pow of a tensor": (lambda x: fg.floor(x ** (0 * x + 1.5)), lambda k: k * k),
    "compared": (lambda x: fg.where(fg.sqrt(x) <= 3.0, x, -x), lambda k: k * k),
    "compared with another": (lambda x: fg.where(x**0.5 == fg.round(x**0.5), x, -x), lambda k: k * k),
    "an extremum": (lambda x: fg.where(fg.maximum(fg.log10(x), 2.0) > 2.0, x, -x), lambda k: 10.0 ** (k % 4)),
    "log10": (lambda x: fg.floor(fg.log10(x)), lambda k: 10.0 ** (k % 4)),
    "log2": (lambda x: fg.floor(fg.log2(x)), lambda k: 2.0 ** (k % 16)),
    "exp2": (lambda x: fg.floor(fg.exp2(x)), lambda k: k % 16),
}


@pytest.mark.parametrize("dtype", (F16, BF16))
@pytest.mark.parametrize("kind", ROOTS)
def test_a_step_sees_a_whole_number_of_a_function(kind: str, dtype: torch.dtype) -> None:
    """The root of 16 is 4, and within an ulp of it as kernels of halves compute it: its floor would be 3."""
    function, numbers = ROOTS[kind]
    x = numbers(torch.arange(1.0, 17.0)).to(dtype)
    found, exact = fg.op(function)(x), x.double()
    # By the reference: a GPU's log2 of a double is a last bit off for some powers of two.
    (expected,) = evaluate.meaning(fg.op(function).trace(exact), {"x": exact}, {}, {})
    assert torch.equal(found, expected.to(found.dtype))


# -- results of elements beside sums that come after others --------------------------------------------------


def test_a_gradient_shares_the_pass_of_a_sum_that_waits_for_the_same() -> None:
    """The argument's gradient and the weight's both need the sums of the columns: they are one pass."""

    def scaled(x: Any, w: Any) -> Any:
        v = x * w
        return v / (fg.norm(v, 2, 0, keepdims=True) + 1.0)

    def in_torch(x: Any, w: Any) -> Any:
        v = x * w
        return v / (v.norm(dim=0, keepdim=True) + 1.0)

    for dtype in (F32, F64, BF16):
        agree(fg.op(scaled), in_torch, *leaves((3000, 48), (48,), dtype=dtype))
    shared = planned_passes(fg.op(scaled), *leaves((3000, 48), (48,)))[1]
    assert any({"d_x", "d_w"} <= {o.name for o in kernel.kernel.written} for kernel in shared)


# -- rows behind rows ----------------------------------------------------------------------------------------


def columns_between(x: Any, w: Any, b: Any, f: Any = fg.tanh) -> Any:
    v = f(fg.ops.layer_norm(x, (x.shape[-1],), w, b))
    scaled = v / (fg.amax(fg.abs(v), -1, keepdims=True) + 1e-3)
    return scaled, fg.amax(scaled * scaled, -2)


def columns_between_in_torch(x: Any, w: Any, b: Any, f: Any = torch.tanh) -> Any:
    v = f(torch.nn.functional.layer_norm(x, x.shape[-1:], w, b))
    scaled = v / (v.abs().amax(-1, keepdim=True) + 1e-3)
    return scaled, (scaled * scaled).amax(-2)


@pytest.mark.parametrize("dtype", (F32, F64))
def test_rows_behind_rows_stay_on_chip_too(dtype: torch.dtype) -> None:
    arguments = leaves((200, 96), (96,), (96,), dtype=dtype)
    op = fg.op(lambda x, w, b: columns_between(x, w, b))
    agree(op, lambda x, w, b: columns_between_in_torch(x, w, b), *arguments)
    backward = planned_passes(op, *arguments)[1]
    rows = [kernel.kernel for kernel in backward if isinstance(kernel.kernel, RowKernel)]
    assert len(rows) == 2 and "d_x" in {o.name for o in rows[1].written}
    assert sum(bool(kernel.partials) for kernel in rows) <= 1  # whose axis has one size


@pytest.mark.parametrize("dtype", (F32, F64, BF16))
def test_maxima_that_the_forward_has_found_are_not_taken_again(dtype: torch.dtype) -> None:
    """Their elements are sums and products, which have the same bits in the backward: one row kernel is left."""
    op = fg.op(lambda x, w, b: columns_between(x, w, b, fg.abs))
    arguments = leaves((200, 96), (96,), (96,), dtype=dtype)
    agree(op, lambda x, w, b: columns_between_in_torch(x, w, b, torch.abs), *arguments)
    backward = planned_passes(op, *arguments)[1]
    assert not [reduce for kernel in backward for reduce in kernel.kernel.reduces if reduce.kind == "max"]
    assert sum(isinstance(kernel.kernel, RowKernel) for kernel in backward) == 1


def test_strided_rows_begin_the_sums_that_go_on() -> None:
    """Those of weights over rows and along them: what each row adds is taken while it is there."""

    def largest(x: Any, a: Any, b: Any) -> Any:
        return fg.amax(fg.square(x * a + b), -2)

    def in_torch(x: Any, a: Any, b: Any) -> Any:
        return (x * a + b).square().amax(-2)

    for dtype in (F32, F64):
        agree(fg.op(largest), in_torch, *leaves((4, 300, 24, 16), (16,), (4, 1, 1, 1), dtype=dtype))
    backward = planned_passes(fg.op(largest), *leaves((4, 300, 24, 16), (16,), (4, 1, 1, 1)))[1]
    assert sum("x" in {o.name for o in kernel.kernel.operands} for kernel in backward) == 1


# -- elements at places ------------------------------------------------------------------------------------------


def test_an_element_that_nothing_walks_to_is_read_where_it_is() -> None:
    """A score of each row, by its target: no pass over the rows."""
    x, target = torch.randn(300, 1000, requires_grad=True), torch.randint(0, 1000, (300,))
    forward, _ = planned_passes(fg.ops.nll_loss, x, target)
    assert all(kernel.schedule.template == "full_reduction" for kernel in forward)
    truth = torch.nn.functional.nll_loss(x.detach().double().requires_grad_(), target)
    torch.testing.assert_close(fg.ops.nll_loss(x, target).double(), truth)


def test_gates_of_a_product_are_read_by_what_joins_them() -> None:
    hidden, size = torch.randn(4, 32), 32
    weights = [torch.randn(3 * size, size) for _ in range(2)]
    (forward,) = planned_passes(fg.ops.linear_gru_cell, torch.randn(4, size), hidden, *weights)[:1]
    assert [kernel.schedule.template for kernel in forward] == ["elementwise"]


# -- bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int8))
def test_every_byte_is_its_number(dtype: torch.dtype) -> None:
    every = torch.arange(256).to(dtype)
    for wide in ("float32", "float64", "bfloat16", "float16"):
        found = fg.op(lambda x, wide=wide: fg.cast(x, wide), name=f"byte_to_{wide}")(every)
        assert torch.equal(found, every.to(getattr(torch, wide)))


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int8))
def test_what_is_computed_in_bytes_is_its_number(dtype: torch.dtype) -> None:
    """C computes in int."""
    every = torch.arange(256).to(dtype)
    found = fg.op(lambda x: fg.cast(fg.clamp(x, 3, 100) + x, "float32"), name="bytes")(every)
    assert torch.equal(found, (every.clamp(3, 100) + every).float())


def test_bytes_need_no_rounding_to_halves() -> None:
    op = fg.op(lambda x: fg.cast(x, "bfloat16") / 255.0, name="pixels")
    assert "round_to" not in op.emit(torch.zeros(64, dtype=torch.uint8))
    wide = fg.op(lambda x: fg.cast(x, "bfloat16") / 255.0, name="wide_pixels")
    assert "round_to" in wide.emit(torch.zeros(64, dtype=torch.int16))


# -- rows --------------------------------------------------------------------------------------------------------------


def of_rows(x: Any, w: Any) -> Any:
    scale = fg.sum(fg.abs(x), -1, keepdims=True) + 1.5
    return fg.sigmoid(x / fg.exp(fg.log(scale) * 0.5)) * w


def of_rows_in_torch(x: Any, w: Any) -> Any:
    return torch.sigmoid(x / torch.exp(torch.log(x.abs().sum(-1, keepdim=True) + 1.5) * 0.5)) * w


@pytest.mark.parametrize("dtype", (F32, F64, BF16, F16))
@pytest.mark.parametrize("shape", ((5, 40), (3, 4097), (2, 70000)))
def test_rows_are_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    agree(fg.op(of_rows), of_rows_in_torch, *leaves(shape, shape[-1:], dtype=dtype))


ROWS = {
    "a function of a sum": (fg.op(of_rows), (64, 3072), (3072,)),
    "softmax": (fg.ops.softmax, (64, 3072)),
    "norms": (fg.op(lambda x, w: fg.ops.rms_norm(fg.ops.layer_norm(x, (3072,)), (3072,), w)), (64, 3072), (3072,)),
    "activations behind norms": (fg.op(lambda x: fg.silu(fg.ops.layer_norm(x, (3072,)))), (64, 3072)),
    "channels": (fg.ops.instance_norm, (4, 32, 56, 56)),
}


@pytest.mark.parametrize("name", ROWS)
def test_nothing_of_a_row_is_computed_at_each_element(name: str) -> None:
    """But for what costs less than the register that it would take."""
    op, *shapes = ROWS[name]
    kernels = [k.kernel for kernels in planned_passes(op, *leaves(*shapes)) for k in kernels]
    rows = [kernel for kernel in kernels if isinstance(kernel, RowKernel)]
    assert rows
    for kernel in rows:
        axes = {o.name: frozenset(a for a in o.shape if a) for o in kernel.operands}
        axes |= {s.name: frozenset() for s in kernel.scalars}
        axes |= {r.name: frozenset(kernel.kept) for r in kernel.reduces}
        along = Axes(axes)
        for let in [item for item in kernel.items if isinstance(item, Let)]:
            axes[let.name] = along.of(let.expr)
        hoist = Hoist.among([item.expr for item in kernel.items], along, frozenset(kernel.over), rounded=False)
        assert not hoist.fixed([item.expr for item in kernel.items])


def by_the_batch(x: Any, w: Any, b: Any) -> Any:
    """A batch norm by hand, before an activation."""
    centred = x - fg.mean(x, 0, keepdims=True)
    return fg.silu(centred * fg.rsqrt(fg.var(x, 0, keepdims=True) + 1e-5) * fg.exp(w) + b)


def by_the_batch_in_torch(x: Any, w: Any, b: Any) -> Any:
    centred = x - x.mean(0, keepdim=True)
    return torch.nn.functional.silu(centred * (x.var(0, keepdim=True) + 1e-5).rsqrt() * w.exp() + b)


@pytest.mark.parametrize("dtype", (F32, F64, BF16, F16))
@pytest.mark.parametrize("width", (64, 33))
def test_what_follows_from_sums_is_computed_with_them(dtype: torch.dtype, width: int) -> None:
    """Too long a column to stay on the chip: what its elements need of it is a result of the kernel that adds it up."""
    tensors = leaves((9000, width), (width,), (width,), dtype=dtype)
    op = fg.op(by_the_batch)
    for planned in planned_passes(op, *tensors):
        assert not re.search(r"(rsqrt|exp|fg::divide)f?\(", planned[-1].rendered.text)
    agree(op, by_the_batch_in_torch, *tensors)


def test_what_a_whole_tensor_is_divided_by_is_computed_once() -> None:
    def scaled(x: Any) -> Any:
        return x / fg.sqrt(fg.sum(x * x) + 1.0) + fg.log(fg.sum(fg.abs(x)))

    tensors = leaves((300, 70))
    forward = planned_passes(fg.op(scaled), *tensors)[0]
    assert not re.search(r"(sqrt|log)f?\(", forward[-1].rendered.text)
    agree(fg.op(scaled), lambda x: x / (x.square().sum() + 1).sqrt() + x.abs().sum().log(), *tensors)

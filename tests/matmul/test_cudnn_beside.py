"""cuDNN's kernels of a product and tensors beside it: residuals, masks, derivatives (on a fake of cuDNN)."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.fuse.products import chain
from fusegen.fuse.steps import Product
from fusegen.matmul.epilogue import MAX_AUXILIARY, match_epilogue
from fusegen.matmul.libraries import cudnn_ops
from fusegen.matmul.libraries.cudnn_api import Mode
from fusegen.native import module as native
from fusegen.run import libraries
from fusegen.run.libraries import CUDNN, OWN
from tests.matmul.test_cudnn import HALVES, dnn, halves, step
from tests.support import products
from tests.support.fake_cudnn import Clock, Cudnn

__all__ = ["dnn"]  # the fixture

ROWS, INNER, COLUMNS = 6, 16, 24
Function = Callable[..., Any]

# What cuDNN computes of a product h and a tensor of its shape r, a row v, and a second tensor s; and the same by torch.
BESIDE: dict[str, tuple[Function, Function, str]] = {
    "residual": (lambda h, r, v, s: h + r, lambda h, r, v, s: h + r, "ADD"),
    "bias and residual": (lambda h, r, v, s: h + v + r, lambda h, r, v, s: h + v + r, "ADD ADD"),
    "silu and residual": (
        lambda h, r, v, s: fg.ops.silu(h + v) + r, lambda h, r, v, s: F.silu(h + v) + r, "ADD SWISH ADD"
    ),
    "a scale and a shift": (lambda h, r, v, s: h * v - 2, lambda h, r, v, s: h * v - 2, "MUL SUB"),
    "dropout": (
        lambda h, r, v, s: fg.where(r > 0, h + v, 0.0) * 1.25, lambda h, r, v, s: torch.where(r > 0, h + v, 0.0) * 1.25,
        "ADD GT SELECT MUL",
    ),
    "a gate": (lambda h, r, v, s: r * fg.tanh(h), lambda h, r, v, s: r * h.tanh(), "TANH MUL"),
    "a gate of silu": (lambda h, r, v, s: fg.ops.silu(r) * h, lambda h, r, v, s: F.silu(r) * h, "SWISH MUL"),
    "two tensors": (lambda h, r, v, s: r * h - s * v, lambda h, r, v, s: r * h - s * v, "MUL MUL SUB"),
    "a derivative": (
        lambda h, r, v, s: fg.where(r <= 0, 0.0, h), lambda h, r, v, s: torch.where(r <= 0, 0.0, h), "LE SELECT"
    ),
}  # fmt: skip


def tensors(dtype: torch.dtype, *lead: int) -> list[torch.Tensor]:
    shapes = (*lead, ROWS, INNER), (INNER, COLUMNS), (*lead, ROWS, COLUMNS), (COLUMNS,), (*lead, ROWS, COLUMNS)
    return [halves(*shape, dtype=dtype) for shape in shapes]


def layer(function: Function) -> Any:
    """The function of x @ w as an op of those tensors that it reads."""
    return fg.op(lambda x, w, r, v, s: function(x @ w, r, v, s), name="layer")


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", BESIDE)
def test_inference(
    dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype, lead: tuple[int, ...]
) -> None:
    function, reference, operations = BESIDE[name]
    clock, op = Clock(monkeypatch), layer(function)
    for _ in range(3):
        given = tensors(dtype, *lead)
        x, w, *more = (tensor.double() for tensor in given)
        with torch.no_grad():
            found = op(*given)
        rounded = 2**-10 if dtype is torch.float16 else 2**-7
        torch.testing.assert_close(found.double(), reference(x @ w, *more), rtol=rounded, atol=rounded)
    assert clock.measured == [[OWN, CUDNN]]
    assert sorted(dnn.ran[-1].split()) == sorted(["MATMUL", *operations.split()])
    if native.module() is not None:
        assert dnn.streams[-1] == 0


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", BESIDE)
def test_training(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype) -> None:
    function, reference, _ = BESIDE[name]
    Clock(monkeypatch)
    op = fg.op(lambda x, w, r, v, s: function(x @ w, r, v, s) + 0 * (r + v + s), name="layer")
    step(op, lambda x, w, r, v, s: reference(x @ w, r, v, s) + 0 * (r + v + s), *tensors(dtype))


# -- what follows an activation, backwards -----------------------------------------------------------------------------


LAYERS: dict[str, tuple[Function, Function, str]] = {
    "relu": (fg.ops.relu, F.relu, "LE SELECT"),
    "leaky_relu": (lambda h: fg.where(h > 0, h, 0.1 * h), lambda h: F.leaky_relu(h, 0.1), ""),
    "tanh": (fg.tanh, torch.tanh, "MUL SUB MUL"),
    "squared relu": (fg.ops.squared_relu, lambda h: F.relu(h) ** 2, ""),
    "cubed": (lambda h: h * h * h, lambda h: h**3, "MUL"),
}


def mlp(activation: Function, *, bias: bool) -> Any:
    if bias:
        return fg.op(lambda x, w, b, u, c: fg.linear(activation(fg.linear(x, w, b)), u, c), name="mlp")
    return fg.op(lambda x, w, u: fg.linear(activation(fg.linear(x, w)), u), name="mlp")


def layers(activation: Function, *, bias: bool) -> Function:
    if bias:
        return functools.partial(products.mlp, activation)
    return lambda x, w, u: products.mlp(activation, x, w, None, u, None)


def weights(dtype: torch.dtype, *, bias: bool) -> list[torch.Tensor]:
    shapes = [(40, 16), (24, 16), (24,), (32, 24), (32,)]
    return [halves(*shape, dtype=dtype) for shape in shapes if bias or len(shape) == 2]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_the_derivative_goes_into_the_product_before(
    dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, name: str, bias: bool, dtype: torch.dtype
) -> None:
    activation, reference, operations = LAYERS[name]
    Clock(monkeypatch)
    op = mlp(activation, bias=bias)
    for _ in range(3):
        dnn.ran.clear()
        step(op, layers(reference, bias=bias), *weights(dtype, bias=bias))
    backward = dnn.ran[-1].split()
    assert backward[0] == "MATMUL" and set(backward[1:]) >= set(operations.split()) and len(backward) > 1
    assert len(dnn.ran) <= 2  # relu's forward is cuBLASLt's
    if native.module() is not None:
        assert dnn.streams[-1] == 0


def test_a_bias_gradient_adds_up_what_was_stored(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pass comes after the kernel: as torch's does, it reads what is rounded."""
    clock, op = Clock(monkeypatch), mlp(fg.ops.relu, bias=True)
    x, w, b, u, c = (t.requires_grad_() for t in weights(torch.bfloat16, bias=True))
    for _ in range(2):
        dnn.ran.clear()
        result = op(x, w, b, u, c)
        cotangent = torch.randn_like(result)
        found = torch.autograd.grad(result, (w, b), cotangent)
    assert dnn.ran == ["MATMUL LE SELECT"] and [OWN, CUDNN] in clock.measured
    hidden = F.relu(F.linear(x, w, b))
    d = ((cotangent.float() @ u.float()) * (hidden > 0)).bfloat16()
    torch.testing.assert_close(found[1], d.float().sum(0).bfloat16())
    torch.testing.assert_close(found[0], d.mT @ x, rtol=0.02, atol=0.02)


def test_a_backward_that_is_slower_so_stays(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, op = Clock(monkeypatch, own=240.0), mlp(fg.ops.relu, bias=True)
    for _ in range(2):
        step(op, layers(F.relu, bias=True), *weights(torch.float16, bias=True))
        ran = list(dnn.ran)
    assert clock.measured == [[OWN, CUDNN]] and dnn.ran == ran


def test_second_derivatives(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    op, given = mlp(fg.ops.squared_relu, bias=True), weights(torch.float16, bias=True)
    reference = layers(lambda h: F.relu(h) ** 2, bias=True)
    found = []
    for function, dtype in ((op, torch.float16), (reference, torch.float64)):
        x, *rest = (t.detach().to(dtype) * 0.3 for t in given)
        value = x.requires_grad_()
        total = function(value, *rest).sum()
        for _ in range(2):
            (gradient,) = torch.autograd.grad(total, value, create_graph=True)
            total = (gradient * gradient).sum()
        found.append(gradient)
    torch.testing.assert_close(found[0].double(), found[1], rtol=0.03, atol=0.03 * float(found[1].abs().max()))


def test_products_come_right_before_the_step_that_reads_them() -> None:
    op = fg.op(lambda x, w, u: fg.linear(fg.tanh(fg.linear(x, w)), u), name="mlp")
    backward = op.trace(*weights(torch.float16, bias=False))
    from fusegen.pipeline import backward_op, train_op

    found = chain(backward_op(train_op(backward, ("x", "w", "u")), [0]))
    assert found is not None
    (at,) = (at for at, part in enumerate(found.steps) if at and not isinstance(part, Product))
    before, part = found.steps[at - 1 : at + 1]
    assert isinstance(before, Product) and at == 2
    assert not isinstance(part, Product) and before.result in {operand.name for operand in part.operands}


# -- what is left to our own kernels -----------------------------------------------------------------------------------


def epilogue(function: Function, *shapes: tuple[int, ...], dtypes: Any = None) -> Any:
    given = [halves(ROWS, INNER), halves(INNER, COLUMNS), *(halves(*shape) for shape in shapes)]
    given = [t.to(dtype) for t, dtype in zip(given, dtypes or [torch.float16] * len(given), strict=True)]
    names = ["r", "s", "t", "u"][: len(shapes)]
    source = eval(f"lambda x, w, {', '.join(names)}: function(x @ w, {', '.join(names)})", {"function": function})
    steps = chain(fg.op(source, name="layer").trace(*given)).steps  # type: ignore[union-attr]
    product, part = steps[-2:]
    assert isinstance(product, Product) and not isinstance(part, Product)
    return match_epilogue(product, part)


WHOLE, ROW, COLUMN = (ROWS, COLUMNS), (COLUMNS,), (ROWS, 1)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda h, r: h * r, [COLUMN]),
        (lambda h, r: (h + r, h * r), [WHOLE]),
        (lambda h, r: (h + r, fg.sum(h, axis=0)), [WHOLE]),
        (lambda h, r: (h + r, fg.sum((h + r) * r, axis=0)), [WHOLE]),
        (lambda h, r: h - fg.amax(h + r, axis=-1, keepdims=True), [WHOLE]),
        (lambda h, r, s, t, u: h + r * s + t * u, [WHOLE] * (MAX_AUXILIARY + 1)),
        (lambda h, r: h * fg.index(h, -1) + r, [WHOLE]),
    ],
)
def test_what_no_kernel_is_asked_for(function: Function, shapes: list[tuple[int, ...]]) -> None:
    assert epilogue(function, *shapes) is None


def test_tensors_of_another_dtype_are_left_to_others() -> None:
    half, single = torch.float16, torch.float32
    assert epilogue(lambda h, r: h + r, WHOLE) is not None
    assert epilogue(lambda h, r: h + r, WHOLE, dtypes=[half, half, single]) is None


def test_sums_of_the_result_are_a_step_behind_it() -> None:
    found = epilogue(lambda h, r: (fg.sum(h * r, axis=0), h * r, fg.mean(h * r)), WHOLE)
    assert found.reductions is not None and found.title.endswith(", then sums")
    assert [operand.name for operand in found.reductions.operands] == [found.result] and len(
        found.reductions.outputs
    ) == 2
    assert found.canonical.reductions is None and found.canonical == found.canonical.canonical


@pytest.mark.parametrize("function", [fg.sigmoid, fg.exp, lambda r: fg.ops.silu(r) * fg.sigmoid(r)])
def test_functions_that_are_slow_there_are_left_to_others(function: Function) -> None:
    assert not cudnn_ops.has(epilogue(lambda h, r: h * function(r), WHOLE), "float16")


def test_titles_tell_rows_from_tensors() -> None:
    titles = {
        epilogue(function, *shapes).title
        for function, shapes in [
            (lambda h, r: h + r, [WHOLE]), (lambda h, r: h * r, [ROW]), (lambda h, r: h * r, [WHOLE]),
            (lambda h, r, s: h * r + s, [ROW, WHOLE]), (lambda h, r, s: h * s + r, [ROW, WHOLE]),
            (lambda h, r: (h + r, fg.sum(h + r, axis=0)), [WHOLE]),
        ]
    }  # fmt: skip
    assert len(titles) == 6


@pytest.mark.parametrize("wrong", [lambda r: 1.05 * r, lambda r: torch.where(r < -15, 0.0, r), torch.nan_to_num])
def test_a_kernel_that_computes_something_else_is_not_taken(
    dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    clock = Clock(monkeypatch)
    dnn.wrong = wrong
    x, w, r, v, s = tensors(torch.float16)
    for _ in range(2):
        found = layer(BESIDE["residual"][0])(x, w, r, v, s)
        torch.testing.assert_close(found.float(), x.float() @ w.float() + r.float(), rtol=0.01, atol=0.01)
    assert clock.measured[0] == [OWN]


@pytest.mark.parametrize(
    "lies",
    [
        lambda r: torch.cat([r, r], -1)[:, :COLUMNS],
        lambda r: r.mT.contiguous().mT,
        lambda r: torch.cat([r.flatten(), r.flatten()])[1 : 1 + r.numel()].view(r.shape),
        lambda r: r[:1].expand(r.shape),
    ],
)
def test_tensors_that_lie_otherwise_go_another_way(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch, lies: Function) -> None:
    Clock(monkeypatch)
    x, w, r, v, s = tensors(torch.float16)
    r = lies(r)
    for _ in range(2):
        found = layer(BESIDE["residual"][0])(x, w, r, v, s)
        torch.testing.assert_close(found.float(), x.float() @ w.float() + r.float(), rtol=0.01, atol=0.01)
    assert not dnn.ran


def test_what_cudnn_refuses_goes_another_way(dnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    dnn.refuses = {Mode.SELECT}
    step(mlp(fg.ops.relu, bias=True), layers(F.relu, bias=True), *weights(torch.float16, bias=True))
    assert not dnn.ran and all(names == [OWN] for names in clock.measured)


def test_show_says_what_may_happen() -> None:
    op = fg.op(lambda x, w, r: x @ w + r, name="layer").trace(*tensors(torch.float16)[:3])
    (note,) = libraries.notes(op).values()
    assert CUDNN in note and "sum + matrix" in note

"""Biases of halves are added by the routine that multiplies: a sum is rounded once, as in torch, and kept as that."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.core.products import KIND as DOT
from fusegen.derive.training import train
from fusegen.fuse.products import chain
from fusegen.fuse.steps import Product
from fusegen.matmul import padding
from tests.matmul.test_cudnn import HALVES, halves
from tests.support import products

Function = Callable[..., Any]


def gated(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    return fg.ops.leaky_relu(fg.linear(x, w, b)) * fg.linear(x, v, c)


def both(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    return fg.ops.relu6(fg.linear(x, w, b) + fg.linear(x, v, c))


def torch_both(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    return F.relu6(F.linear(x, w, b) + F.linear(x, v, c))


def normed(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    return fg.softmax(fg.ops.leaky_relu(fg.linear(x, w, b)) * 0.125, -1) + 0 * fg.linear(x, v, c)


def torch_normed(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    return (F.leaky_relu(F.linear(x, w, b)) * 0.125).softmax(-1) + 0 * F.linear(x, v, c)


OPS: dict[str, tuple[Function, Function]] = {
    "leaky_relu": (lambda x, w, b, v, c: fg.ops.leaky_relu(fg.linear(x, w, b)),
                   lambda x, w, b, v, c: F.leaky_relu(F.linear(x, w, b))),
    "relu": (lambda x, w, b, v, c: fg.ops.relu(fg.linear(x, w, b)), lambda x, w, b, v, c: F.relu(F.linear(x, w, b))),
    "hardtanh": (lambda x, w, b, v, c: fg.ops.hardtanh(fg.linear(x, w, b)),
                 lambda x, w, b, v, c: F.hardtanh(F.linear(x, w, b))),
    "gated": (gated, functools.partial(products.gated, F.leaky_relu)),
    "both": (both, torch_both),
    "softmax": (normed, torch_normed),
    "transposed": (lambda x, w, b, v, c: fg.ops.leaky_relu(x @ w.mT + b),
                   lambda x, w, b, v, c: F.leaky_relu(F.linear(x, w, b))),
}  # fmt: skip


def tensors(dtype: torch.dtype, lead: Sequence[int] = (33,), inner: int = 40, columns: int = 24) -> list[torch.Tensor]:
    """Biases nearly cancel some of the products, where a product that was rounded by itself would be of either sign."""
    shapes = (*lead, inner), (columns, inner), (columns,), (columns, inner), (columns,)
    return [halves(*shape, dtype=dtype) * (1 if len(shape) > 1 else 4) for shape in shapes]


def errors(
    function: Function, given: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], cotangent: Any
) -> list[float]:
    return [
        float((mine.double() - true).norm() / true.norm().clamp_min(1e-6))
        for mine, true in zip(results(function, given, cotangent), exact, strict=True)
    ]


def results(function: Function, given: Sequence[torch.Tensor], cotangent: torch.Tensor) -> list[torch.Tensor]:
    own = [tensor.detach().requires_grad_() for tensor in given]
    out = function(*own)
    gradients = torch.autograd.grad(out, own, cotangent.to(out.dtype), allow_unused=True)
    return [out.detach(), *(g for g in gradients if g is not None)]


@pytest.mark.parametrize("lead", [(400,), (20, 30), (1,)])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", OPS)
def test_results_and_gradients_are_as_near_as_torchs(name: str, dtype: torch.dtype, lead: tuple[int, ...]) -> None:
    function, reference = OPS[name]
    used = 3 if name in ("leaky_relu", "relu", "hardtanh", "transposed") else 5
    given = tensors(dtype, lead)
    op = (
        fg.op(lambda x, w, b: function(x, w, b, None, None), name="layer")
        if used == 3
        else fg.op(function, name="layer")
    )
    torchs = (lambda x, w, b: reference(x, w, b, None, None)) if used == 3 else reference
    given = given[:used]
    cotangent = halves(*lead, 24, dtype=dtype)
    exact = results(torchs, [t.double() for t in given], cotangent)
    theirs = errors(torchs, given, exact, cotangent)
    for _ in range(3):
        for mine, limit in zip(errors(op, given, exact, cotangent), theirs, strict=True):
            assert mine <= 1.5 * limit + 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("sizes", [(33, 13, 11), (6, 16, 11)])
@pytest.mark.parametrize("lies", ["dense", "every other", "one for all", "a slice"])
def test_sizes_that_are_rounded_up(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int], lies: str) -> None:
    monkeypatch.setattr(padding, "pays", lambda *_: True)
    rows, inner, columns = sizes
    function, reference = OPS["leaky_relu"]
    x, w, b = tensors(torch.float16, (rows,), inner, columns)[:3]
    lying = {"dense": b, "every other": torch.stack([b, b], 1)[:, 0], "one for all": b[:1].expand(columns),
             "a slice": torch.cat([b, b])[columns:]}  # fmt: skip
    given, cotangent = (x, w, lying[lies]), halves(rows, columns)
    layer = fg.op(lambda x, w, b: function(x, w, b, None, None), name="layer")
    exact = results(lambda x, w, b: reference(x, w, b, None, None), [t.double() for t in given], cotangent)
    for _ in range(3):
        assert max(errors(layer, given, exact, cotangent)) < 1e-3


def biased(op: Any, *arguments: Any) -> list[str]:
    """The biases that products add."""
    whole = chain(op.trace(*arguments))
    assert whole is not None
    return [step.bias for step in whole.steps if isinstance(step, Product) and step.bias]


def test_every_product_of_a_step_adds_its_bias() -> None:
    assert biased(fg.op(gated, name="layer"), *tensors(torch.float16)) == ["b", "c"]
    assert biased(fg.op(both, name="layer"), *tensors(torch.float16)) == ["b", "c"]


def test_what_is_shown_is_what_the_framework_does() -> None:
    arguments = tensors(torch.float16)[:3]
    told = fg.ops.linear_silu.show(*(t.detach().numpy() for t in arguments))
    assert "over [D4] + bias" not in told and "let  x = product + bias" in told and "the same routine" not in told
    assert "over [D4] + bias" in fg.ops.linear_silu.show(*arguments)


def test_a_layer_alone_needs_no_kernel() -> None:
    told = fg.ops.linear.emit(*tensors(torch.float16)[:3])
    assert "without a kernel" in told and told.rstrip().endswith("over [D4] + bias") and "__global__" not in told
    assert fg.ops.linear.emit(*(t.float() for t in tensors(torch.float16)[:3])).count("__global__") == 1


def same(x: Any, w: Any, b: Any) -> Any:
    total = x @ w.mT + b
    return total, total


def packed(x: Any, w: Any, b: Any) -> Any:
    first, second = fg.split(b, 2)
    return fg.ops.leaky_relu(x @ w.mT + second) * (x @ w.mT + first)


def torch_packed(x: Any, w: Any, b: Any) -> Any:
    first, second = b.chunk(2)
    return F.leaky_relu(x @ w.mT + second) * (x @ w.mT + first)


def called_sum(x: Any, w: Any, b: Any) -> Any:
    z = fg.sin(x @ w.mT + b)
    sum = fg.sum(z * z, -1, keepdims=True)
    return z / sum


def torch_called_sum(x: Any, w: Any, b: Any) -> Any:
    z = (x @ w.mT + b).sin()
    return z / (z * z).sum(-1, keepdim=True)


@pytest.mark.parametrize("rounded_up", [False, True])
@pytest.mark.parametrize(
    ("function", "reference", "length"),
    [
        (packed, torch_packed, 2),
        (lambda x, w, b: fg.tanh(x @ w.mT + fg.split(b, 2)[1]), lambda x, w, b: (x @ w.mT + b.chunk(2)[1]).tanh(), 2),
        (lambda x, w, b: x @ w.mT + fg.split(b, 2)[1], lambda x, w, b: x @ w.mT + b.chunk(2)[1], 2),
        (called_sum, torch_called_sum, 1),
    ],
)
def test_parts_and_names(
    function: Function, reference: Function, length: int, rounded_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rounded_up:
        monkeypatch.setattr(padding, "pays", lambda *_: True)
    given = [halves(9, 13), halves(11, 13) / 4, halves(11 * length)]
    op, cotangent = fg.op(function, name="layer"), halves(9, 11)
    exact = results(reference, [t.double() for t in given], cotangent)
    theirs = errors(reference, given, exact, cotangent)
    for _ in range(3):
        for mine, limit in zip(errors(op, given, exact, cotangent), theirs, strict=True):
            assert mine <= 2 * limit + 2 * torch.finfo(torch.float16).eps


def test_one_sum_for_two_results() -> None:
    x, w, b, *_ = tensors(torch.float16)
    op = fg.op(same, name="layer")
    for _ in range(3):
        first, second = op(x, w, b)
        torch.testing.assert_close(first, F.linear(x, w, b))
        assert torch.equal(first, second)


def test_float32_is_rounded_to_what_it_is_anyway() -> None:
    assert not biased(fg.op(gated, name="layer"), *(t.float() for t in tensors(torch.float16)))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda h, b: fg.tanh(h) * h + b, [(24,)]),
        (lambda h, b: fg.tanh(h + b) + h, [(24,)]),
        (lambda h, b: fg.tanh(h - b), [(24,)]),
        (lambda h, b: fg.tanh(h + b), [(33, 1)]),
        (lambda h, b: fg.tanh(h + b), [(33, 24)]),
        (lambda h, b: fg.tanh(h + b), [(1,)]),
    ],
)
def test_what_is_no_bias(function: Function, shapes: list[tuple[int, ...]]) -> None:
    x, w, *_ = tensors(torch.float16)
    op = fg.op(lambda x, w, b: function(x @ w.mT, b), name="layer")
    assert not biased(op, x, w, halves(*shapes[0]))


def test_biases_that_lie_otherwise() -> None:
    function, reference = OPS["leaky_relu"]
    x, w, b, *_ = tensors(torch.float16)
    op = fg.op(lambda x, w, b: function(x, w, b, None, None), name="layer")
    for lying in (torch.stack([b, b], 1)[:, 0], b[:1].expand(24), torch.cat([b, b])[3:27]):
        exact = reference(x.double(), w.double(), lying.double(), None, None)
        theirs = (reference(x, w, lying, None, None).double() - exact).norm()
        for _ in range(3):
            assert (op(x, w, lying).double() - exact).norm() <= 1.5 * theirs


@pytest.mark.parametrize("lead", [(2, 3, 5), (2, 2, 3, 5)])
def test_rows_that_are_no_matrix(lead: tuple[int, ...]) -> None:
    function, reference = OPS["leaky_relu"]
    x, w, b, *_ = tensors(torch.float16, lead)
    op = fg.op(lambda x, w, b: function(x, w, b, None, None), name="layer")
    x = x.transpose(0, -2).contiguous().transpose(0, -2)
    expected = reference(x.double(), w.double(), b.double(), None, None)
    for _ in range(3):
        torch.testing.assert_close(op(x, w, b).double(), expected, rtol=2**-9, atol=2**-9)


@pytest.mark.parametrize("sizes", [(0, 16, 8), (4, 0, 8), (4, 16, 0), (1, 1, 1)])
def test_sizes_without_elements(sizes: tuple[int, int, int]) -> None:
    function, reference = OPS["leaky_relu"]
    rows, inner, columns = sizes
    x, w, b = tensors(torch.float16, (rows,), inner, columns)[:3]
    op = fg.op(lambda x, w, b: function(x, w, b, None, None), name="layer")
    cotangent = halves(rows, columns)
    found = results(op, (x, w, b), cotangent)
    wanted = results(lambda x, w, b: reference(x, w, b, None, None), (x, w, b), cotangent)
    torch.testing.assert_close(found, wanted, rtol=2**-8, atol=2**-8)


def test_another_framework_rounds_the_product() -> None:
    np = pytest.importorskip("numpy")
    x, w, b = (t.float().numpy().astype(np.float16) for t in tensors(torch.float16)[:3])
    op = fg.op(lambda x, w, b: fg.ops.relu(fg.linear(x, w, b)), name="layer")
    expected = np.maximum(x.astype(np.float64) @ w.astype(np.float64).T + b, 0)
    np.testing.assert_allclose(op(x, w, b), expected, rtol=2**-8, atol=2**-6)


def test_batches_of_products_have_their_bias_added_by_the_kernel() -> None:
    op = fg.op(lambda q, k, b: fg.ops.leaky_relu(q @ k.mT + b), name="scores")
    q, k, b = halves(3, 5, 8), halves(3, 7, 8), halves(7)
    exact = results(lambda q, k, b: F.leaky_relu(q @ k.mT + b), [t.double() for t in (q, k, b)], halves(3, 5, 7))
    found = results(op, (q, k, b), halves(3, 5, 7))
    torch.testing.assert_close(found[0].double(), exact[0], rtol=2**-8, atol=2**-8)
    assert not biased(op, q, k, b)


def test_relu_between_layers_keeps_what_the_next_one_multiplies() -> None:
    op = fg.op(lambda x, w, b, u: fg.linear(fg.ops.relu(fg.linear(x, w, b)), u), name="layers")
    x, w, b, u = (halves(*shape) for shape in ((3, 4), (5, 4), (5,), (2, 5)))
    traced = op.trace(x, w, b, u)
    training = train(traced, ("x", "w", "b", "u"))
    (_, hidden) = training.forward.outputs
    backward = training.backward([0])
    assert [o.name for o in backward.operands] == ["x", "w", "u", "d_out", hidden.name]
    b[0] = torch.nan
    own = [a.detach().requires_grad_() for a in (x, w, b, u)]
    theirs = [a.detach().double().requires_grad_() for a in (x, w, b, u)]
    result, expected = op(*own), F.linear(torch.relu(F.linear(*theirs[:3])), theirs[3])
    cotangent = torch.randn_like(expected).half()
    found = torch.autograd.grad(result, own, cotangent, create_graph=True)
    wanted = torch.autograd.grad(expected, theirs, cotangent.double(), create_graph=True)
    near = {"rtol": 0.02, "atol": 0.02, "equal_nan": True, "check_dtype": False}
    torch.testing.assert_close((result, *found), (expected, *wanted), **near)  # type: ignore[call-overload]
    again, exact = ((g[0] * 0.5).sum() for g in (found, wanted))
    torch.testing.assert_close(
        torch.autograd.grad(again, own[1]), torch.autograd.grad(exact, theirs[1]), **near  # type: ignore[call-overload]
    )  # fmt: skip


@pytest.mark.parametrize("function", [
    lambda x, w, b: fg.exp(x @ w + b),
    lambda x, w, b: (x @ w + b) * (x @ w),
    lambda x, w, b: (x @ w + b) ** 2 * (x @ w + b + 1),
    lambda x, w, b: fg.sin(x @ w + b) * fg.cos(x @ w + 2 * b),
])  # fmt: skip
def test_a_backward_has_the_products_of_gradients_and_no_others(function: Function) -> None:
    """Where it needs a product itself, and not what comes of it when a bias is added, the product is what is kept."""
    op = fg.op(function, name="biased").trace(*(fg.TensorSpec(fg.float16, shape) for shape in ((4, 6), (6, 8), (8,))))
    training = train(op, ("x", "w", "b"))
    backward = training.backward((0,))
    multiplied = sum(reduce.kind == DOT for reduce in op.expand()[0])
    assert sum(reduce.kind == DOT for reduce in backward.expand()[0]) == 2 * multiplied

"""The library's layers of several products, cells and convolutions against torch and float64; what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.declare.reference import reference
from fusegen.fuse.products import chain
from tests.support.oracles import check_derivatives, check_no_worse, check_same, refused
from tests.support.products import FLOATS, Function, layer, rand, steps


def lstm(*arguments: torch.Tensor) -> Any:
    x, h, c, *weights = arguments
    return torch.lstm_cell(x, (h, c), *weights)


def gated(act: Function) -> Function:
    def expected(x: Any, gate: Any, up: Any, down: Any, *biases: Any) -> Any:
        g, u, d = biases or (None, None, None)
        return F.linear(act(F.linear(x, gate, g)) * F.linear(x, up, u), down, d)

    return expected


def blocks(dtype: torch.dtype, times: int = 1) -> dict[str, tuple[Function, Function, list[torch.Tensor]]]:
    """Ours, torch's, arguments, whose sizes (but ones) are so many times as large."""

    def r(*shape: int) -> torch.Tensor:
        return rand(*(size if size == 1 else times * size for size in shape), dtype=dtype)

    cell = [r(3, 6), r(3, 4), r(3, 4)], [r(16, 6), r(16, 4), r(16), r(16)]
    weights = [r(12, 6), r(12, 4), r(12), r(12)]
    return {
        "linear_mish": (fg.ops.linear_mish, partial(layer, F.mish), [r(3, 4), r(5, 4), r(5)]),
        "linear_residual": (
            fg.ops.linear_residual, lambda x, w, b, y: y + F.linear(x, w, b), [r(2, 3, 4), r(5, 4), r(5), r(2, 3, 5)],
        ),
        "mlp": (
            partial(fg.ops.mlp, activation="silu"),
            lambda x, w, b, v, c: F.linear(F.silu(F.linear(x, w, b)), v, c), [r(3, 4), r(6, 4), r(6), r(4, 6), r(4)],
        ),
        "swiglu_mlp": (fg.ops.swiglu_mlp, gated(F.silu), [r(3, 4), r(6, 4), r(6, 4), r(4, 6)]),
        "geglu_mlp": (
            fg.ops.geglu_mlp, gated(F.gelu), [r(3, 4), r(6, 4), r(6, 4), r(4, 6), r(6), r(6), r(4)],
        ),
        "reglu_mlp": (fg.ops.reglu_mlp, gated(F.relu), [r(2, 3, 4), r(6, 4), r(6, 4), r(4, 6)]),
        "lstm": (fg.ops.linear_lstm_cell, lstm, [*cell[0], *cell[1]]),
        "gru": (fg.ops.linear_gru_cell, torch.gru_cell, [*cell[0][:2], *weights]),
        "conv1x1": (
            partial(fg.ops.conv1x1, activation="silu"), lambda x, w, b: F.silu(F.conv2d(x, w, b)),
            [r(2, 3, 4, 5), r(6, 3, 1, 1), r(6)],
        ),
        "addmm": (
            partial(fg.ops.addmm, beta=0.5, alpha=-2.0), partial(torch.addmm, beta=0.5, alpha=-2.0),
            [r(5), r(3, 4), r(4, 5)],
        ),
        "baddbmm": (
            partial(fg.ops.baddbmm, beta=2), partial(torch.baddbmm, beta=2), [r(2, 3, 1), r(2, 3, 4), r(2, 4, 5)],
        ),
    }  # fmt: skip


BLOCKS = sorted(blocks(torch.float64))


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_torchs(name: str) -> None:
    ours, theirs, arguments = blocks(torch.float64)[name]
    check_same(ours, theirs, arguments)
    op, options = (ours.func, ours.keywords) if isinstance(ours, partial) else (ours, {})
    given = op.declaration.bind(tuple(arguments), options)
    traced = op.trace(*arguments, **options)
    expected = theirs(*arguments)
    torch.testing.assert_close(
        tuple(reference(traced, given, given)), expected if isinstance(expected, tuple) else (expected,)
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_first_and_second_derivatives(name: str) -> None:
    ours, _, arguments = blocks(torch.float64)[name]
    check_derivatives(ours, arguments)


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
@pytest.mark.parametrize("name", ["linear_residual", "swiglu_mlp", "lstm", "conv1x1"])
def test_blocks_are_as_exact_as_torchs(name: str, dtype: torch.dtype) -> None:
    check_no_worse(*blocks(dtype, 4)[name])


def test_cells_without_biases_and_of_one_sample() -> None:
    cell = torch.nn.LSTMCell(6, 4, bias=False, dtype=torch.float64)
    x, h, c = rand(6), rand(4), rand(4)
    torch.testing.assert_close(fg.ops.linear_lstm_cell(x, h, c, cell.weight_ih, cell.weight_hh), cell(x, (h, c)))


@fg.op
def two_layers(x: Any, h: Any, c: Any, w: Any, u: Any) -> Any:
    """An op that calls cells, on weights that it shares between them."""
    first, state = fg.ops.linear_lstm_cell(x, h, c, w, u)
    return fg.ops.linear_lstm_cell(first, h, state, w, u)


def test_cells_have_one_product_for_all_gates() -> None:
    x, h, c, w, u = rand(3, 4), rand(3, 4), rand(3, 4), rand(16, 4), rand(16, 4)
    for which, products in (("forward", 2), ("backward", 4)):
        assert steps(fg.ops.linear_lstm_cell, [x, h, c, w, u], which).count("@") == products
    whole = chain(fg.ops.linear_lstm_cell.trace(x, h, c, w, u))
    assert whole is not None
    batch, _, feature = whole.intermediates[0].shape  # as torch's [N, 4 H] lies, so that no product needs a copy
    assert (batch, feature) == whole.op.outputs[0].shape
    first, state = lstm(x, h, c, w, u)
    torch.testing.assert_close(two_layers(x, h, c, w, u), lstm(first, h, state, w, u))


def test_convolutions_of_other_ranks_and_layouts() -> None:
    w, b = rand(6, 3), rand(6)
    for x in (rand(2, 3, 5), rand(2, 3, 2, 2, 2), rand(2, 3, 4, 5), rand(2, 4, 5, 3).movedim(-1, 1)):
        conv = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.ndim]
        expected = conv(x, w.view(6, 3, *[1] * (x.ndim - 2)), b)
        found = fg.ops.conv1x1(x, w, b)
        torch.testing.assert_close(found, expected)


def _image(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return rand(*shape, dtype=dtype, grad=False).to(memory_format=torch.channels_last).requires_grad_()


def test_images_that_are_channels_last_stay_so() -> None:
    """Their gradients too, whatever the cotangent's layout."""
    ours, theirs = partial(fg.ops.conv1x1, activation="silu"), lambda x, w, b: F.silu(F.conv2d(x, w, b))
    for shape, weight in (((2, 3, 4, 5), (6, 3, 1, 1)), ((2, 3, 4, 5), (1, 3, 1, 1)), ((1, 3, 4, 4), (6, 3, 1, 1))):
        x, w, b = _image(*shape), rand(*weight), rand(weight[0])
        check_same(ours, theirs, [x, w, b])
        check_no_worse(ours, theirs, [_image(*shape, dtype=torch.float32), w.detach().float(), b.detach().float()])
        out, expected = ours(x, w, b), theirs(x, w, b)
        assert out.is_contiguous(memory_format=torch.channels_last)
        assert expected.is_contiguous(memory_format=torch.channels_last)
        cotangent = rand(*out.shape, grad=False)
        for d in (cotangent, cotangent.to(memory_format=torch.channels_last)):
            (found,) = torch.autograd.grad(out, x, d, retain_graph=True)
            assert found.stride() == torch.autograd.grad(expected, x, d, retain_graph=True)[0].stride() == x.stride()
    assert ours(x.detach().contiguous(), w, b).is_contiguous()
    check_derivatives(ours, [_image(2, 3, 2, 2), rand(4, 3, 1, 1), rand(4)])


@pytest.mark.parametrize("options", [{}, {"activation": "relu"}], ids=str)
def test_images_that_are_channels_last_anywhere(options: dict[str, str]) -> None:
    x, w, b = _image(2, 3, 4, 5), rand(6, 3, 1, 1), rand(6)
    act = F.relu if options else lambda t: t
    expected = act(F.conv2d(x, w, b))

    def call(x: Any) -> Any:
        return fg.ops.conv1x1(bias=b, input=x, weight=w, **options)

    compiled = torch.compile(call, fullgraph=True)(x)
    for found in (call(x), compiled, fg.op(lambda x, w, b: fg.ops.conv1x1(x, w, b, **options), name="inside")(x, w, b)):
        torch.testing.assert_close(found, expected)
    assert compiled.stride() == call(x).stride() == expected.stride()
    cotangent = rand(*expected.shape, grad=False)
    theirs = torch.autograd.grad(expected, (x, w, b), cotangent)
    torch.testing.assert_close(torch.autograd.grad(compiled, (x, w, b), cotangent), theirs)
    plain = x.detach()
    found, pull = torch.func.vjp(call, plain)
    torch.testing.assert_close((found, *pull(cotangent)), (expected, theirs[0]))
    torch.testing.assert_close(torch.func.vmap(call)(torch.stack([plain, 2 * plain]))[0], expected)
    out = torch.empty(2, 6, 4, 5, dtype=torch.float64)
    w, b = w.detach(), b.detach()
    assert fg.ops.conv1x1(plain, w, b, **options, out=out) is out
    torch.testing.assert_close(out, expected.detach())
    arrays = fg.ops.conv1x1(plain.numpy(), w.numpy(), b.numpy(), **options)
    torch.testing.assert_close(torch.from_numpy(arrays), expected.detach())


def test_autocast_is_torchs() -> None:
    x, w, b = (rand(*shape, dtype=torch.float32, grad=False) for shape in ((3, 4), (5, 4), (5,)))
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = fg.ops.linear_gelu(x, w, b), layer(F.gelu, x, w, b)
    assert found.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-2)


# -- refused ---------------------------------------------------------------------------------------------------------

X, W, B = torch.ones(3, 4), torch.ones(5, 4), torch.ones(5)
LABELS = torch.zeros(3, dtype=torch.int64)
REFUSED: dict[str, tuple[Function, tuple[str, ...]]] = {
    "the weight of addmm": (lambda: fg.ops.linear_gelu(X, W.mT, B), ("input[3, 4]", "weight[4, 5]", "in = 4")),
    "the inner sizes": (lambda: fg.ops.matmul(X, W), ("[3, 4]", "[5, 4]", "4 against 5")),
    "the inner sizes of the second layer": (lambda: fg.ops.mlp(X, W, B, W, None), ("[3, 5]", "down[5, 4]", "in = 5")),
    "batches": (lambda: fg.ops.matmul(torch.ones(2, 3, 4), torch.ones(3, 4, 5)), ("input[2, 3, 4]", "other[3, 4, 5]")),
    "a bias of another size": (lambda: fg.ops.linear(X, W, torch.ones(4)), ("weight[5, 4] and bias[4]", "out = 5")),
    "a bias of rank 2": (lambda: fg.ops.linear(X, W, torch.ones(3, 5)), ("bias[3, 5]", "linear_residual")),
    "the bias of the second layer": (lambda: fg.ops.mlp(X, W, B, W.mT, B), ("down[4, 5] and down_bias[5]", "out = 4")),
    "a gate of another size": (
        lambda: fg.ops.swiglu_mlp(X, W, W[:3], W.mT),
        ("[3, 5] (of input[3, 4] and gate[5, 4])", "[3, 3] (of input[3, 4] and up[3, 4])"),
    ),
    "no dimensions": (lambda: fg.ops.linear(X[0, 0], W), ("input[]", "weight[5, 4]")),
    "a bias that is True": (lambda: fg.ops.linear(X, W, torch.tensor(True)), ("bool", "None")),
    "ranks": (lambda: fg.ops.addmm(B, X[None], W.mT), ("mat1[1, 3, 4] and mat2[4, 5]", "rank 2")),
    "an input that is too large": (
        lambda: fg.ops.addmm(torch.ones(2, 3, 5), X, W.mT), ("input[2, 3, 5] for mat1[3, 4] and mat2[4, 5]",),
    ),
    "an input of another size": (lambda: fg.ops.addmm(X, X, W.mT), ("[3, 4] and [3, 5]", "input", "mat2")),
    "a head's bias": (
        lambda: fg.ops.linear_cross_entropy(X, W, LABELS, linear_bias=X[0]),
        ("linear_bias", "[4]", "linear_weight [5, 4]", "pass one of that shape"),
    ),
    "a head's bias that holds as much": (
        lambda: fg.ops.linear_cross_entropy(X, W, LABELS, linear_bias=B[:, None]), ("linear_bias.reshape([5])",),
    ),
    "a head's dtypes": (
        lambda: fg.ops.linear_cross_entropy(X, W.double(), LABELS),
        ("input[3, 4] and linear_weight[5, 4] of float32 and float64",),
    ),
    "a number of rows": (lambda: fg.ops.linear_cross_entropy(X, W, LABELS, options=0), ("a positive number of rows",)),
    "dtypes": (lambda: fg.ops.linear(X, W.double()), ("input[3, 4] and weight[5, 4] of float32 and float64",)),
    "no input": (lambda: fg.ops.linear(None, W), ("linear, argument input\n", "None", "pass a tensor")),
    "no weight": (lambda: fg.ops.linear_gelu(X, None), ("linear_gelu, argument weight\n", "pass a tensor")),
    "no input of a head": (lambda: fg.ops.linear_cross_entropy(None, W, LABELS), ("argument input\n",)),
    "the second layer": (
        lambda: fg.ops.mlp(X, W, B, torch.ones(5, 3), B),
        ("mlp, argument down\n", "hidden[3, 5] and down[5, 3]", "in = 5"),
    ),
    "a bias of rank 2 of the second layer": (
        lambda: fg.ops.mlp(X, W, B, W.mT, torch.ones(3, 4)), ("mlp, argument down_bias\n", "down[4, 5]"),
    ),
    "a weight of rank 3 of the second layer": (
        lambda: fg.ops.swiglu_mlp(X, W, W, W.mT[None]), ("swiglu_mlp, argument down\n", "down[1, 4, 5]"),
    ),
    "integers": (lambda: fg.ops.linear(X.long(), W.long()), ("int64", "float")),
    "an activation": (lambda: fg.ops.mlp(X, W, B, W.mT, None, "gelo"), ("'gelo'", "'gelu'")),
    "a rate": (lambda: fg.ops.linear_residual(X, W, B, torch.ones(3, 5), torch.ones(3, 5), 1.0), ("p=1.0",)),
    "a window": (lambda: fg.ops.conv1x1(torch.ones(2, 3, 4, 4), torch.ones(6, 3, 3, 3)), ("[O, C, 1, ...]",)),
    "a window's rank": (
        lambda: fg.ops.conv1x1(torch.ones(3, 3, 4), torch.ones(5, 3, 1, 1)),
        ("input[3, 3, 4] and weight[5, 3, 1, 1]", "of the input's rank", "image[None]"),
    ),
    "channels": (
        lambda: fg.ops.conv1x1(torch.ones(2, 3, 4, 6), torch.ones(5, 4, 1, 1)),
        ("input[2, 3, 4, 6] and weight[5, 4, 1, 1]", "C = 3", "movedim"),
    ),
    "channels that are last in memory": (
        lambda: fg.ops.conv1x1(_image(2, 3, 4, 6), rand(5, 4)), ("input[2, 3, 4, 6] and weight[5, 4]", "C = 3"),
    ),
    "a convolution's bias": (
        lambda: fg.ops.conv1x1(torch.ones(2, 3, 4, 6), torch.ones(5, 3, 1, 1), B[:4]),
        ("weight[5, 3, 1, 1] and bias[4]", "out = 5"),
    ),
    "a convolution's dtypes": (
        lambda: fg.ops.conv1x1(torch.ones(2, 3, 4, 6), rand(5, 3)),
        ("input[2, 3, 4, 6] and weight[5, 3] of float32 and float64",),
    ),
    "gates": (
        lambda: fg.ops.linear_lstm_cell(X, X, X, torch.ones(15, 4), torch.ones(16, 4)), ("[15, 4]", "4 gates"),
    ),
    "what gates read": (
        lambda: fg.ops.linear_lstm_cell(X, X, X, torch.ones(16, 5), torch.ones(16, 4)), ("[16, 5]", "of shape [3, 4]"),
    ),
    "a gate's bias": (
        lambda: fg.ops.linear_gru_cell(X, X, torch.ones(12, 4), torch.ones(12, 4), torch.ones(9)), ("[9]", "12 = 3 H"),
    ),
    "torch's arguments of a cell": (
        lambda: fg.ops.lstm_cell(X, (X, X), torch.ones(16, 4), torch.ones(16, 4)),
        ("(gates, cell, bias=None)", "linear_lstm_cell"),
    ),
    "torch's arguments of a cell without biases": (
        lambda: fg.ops.gru_cell(X, X, torch.ones(12, 4), torch.ones(12, 4)), ("input_bias[12, 4]", "linear_gru_cell"),
    ),
    "a cell": (
        lambda: fg.ops.linear_lstm_cell(X, X, X[:, :3], torch.ones(16, 4), torch.ones(16, 4)), ("[3, 3]", "[3, 4]"),
    ),
    "states of another batch": (
        lambda: fg.ops.linear_lstm_cell(X[:2], X, X[:2], torch.ones(16, 4), torch.ones(16, 4)),
        ("linear_lstm_cell, argument hidden\n", "hidden[3, 4] and input[2, 4]"),
    ),
    "a cell of another batch": (
        lambda: fg.ops.linear_lstm_cell(X, X, X[:2], torch.ones(16, 4), torch.ones(16, 4)),
        ("linear_lstm_cell, argument cell\n", "cell[2, 4] and input[3, 4]"),
    ),
    "a state of another batch": (
        lambda: fg.ops.linear_gru_cell(X[:2], X, torch.ones(12, 4), torch.ones(12, 4)),
        ("linear_gru_cell, argument hidden\n", "hidden[3, 4] and input[2, 4]"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    call, words = REFUSED[name]
    for _ in range(2):  # before and after the pattern is known
        text = str(refused(call))
        assert all(word in text for word in words), text
        assert "fix:" in text

"""Normalizations and softmax: derivatives, accuracy beside torch's, hard inputs, layouts, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.core.views import view
from tests.support.oracles import check_derivatives, check_no_worse, check_same, draw, refused

INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
MODULES = {"norms", "channels", "softmaxes", "distances"}


def statistics(channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return draw(channels, seed=8).detach(), draw(channels, low=0.5, high=2, seed=9).detach()


# -- derivatives -----------------------------------------------------------------------------------------------------

x23, x234 = draw(2, 3), draw(2, 3, 4)
w3, b3, w34 = draw(3, seed=1), draw(3, seed=2), draw(3, 4, seed=3)
DERIVATIVES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "softmax": (lambda x: fg.ops.softmax(x, 1), [x234]),
    "softmin": (lambda x: fg.ops.softmin(x, -1), [x23]),
    "log_softmax": (lambda x: fg.ops.log_softmax(x, 1), [x234]),
    "logsumexp": (lambda x: fg.ops.logsumexp(x, (0, 2)), [x234]),
    "logsumexp of one": (lambda x: fg.ops.logsumexp(x, 1), [draw(2, 1)]),
    "layer_norm": (lambda *a: fg.ops.layer_norm(a[0], (4,), *a[1:]), [x234, draw(4, seed=1), draw(4, seed=2)]),
    "layer_norm over two": (lambda *a: fg.ops.layer_norm(a[0], (3, 4), *a[1:]), [x234, w34]),
    "rms_norm": (lambda *a: fg.ops.rms_norm(a[0], (3,), a[1], weight_offset=1.0), [x23, w3]),
    "batch_norm": (lambda *a: fg.ops.batch_norm(a[0], None, None, *a[1:], training=True), [x234, w3, b3]),
    "batch_norm eval": (lambda *a: fg.ops.batch_norm(a[0], *statistics(), *a[1:]), [x23, w3, b3]),
    "instance_norm": (lambda *a: fg.ops.instance_norm(a[0], None, None, *a[1:]), [x234, w3, b3]),
    "group_norm": (lambda *a: fg.ops.group_norm(a[0], 2, *a[1:]), [draw(2, 4, 2), draw(4, seed=1), draw(4, seed=2)]),
    "group_norm of long channels": (lambda *a: fg.ops.group_norm(a[0], 1, a[1]), [draw(2, 2, 33), draw(2, seed=1)]),
    "vector_norm": (lambda x: fg.ops.vector_norm(x, 3.0, 1), [x23]),
    "normalize": (fg.ops.normalize, [x23]),
    "cosine_similarity": (fg.ops.cosine_similarity, [x23, draw(2, 3, seed=1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(DERIVATIVES))
def test_first_and_second_derivatives(name: str) -> None:
    check_derivatives(*DERIVATIVES[name])


def test_every_op_is_differentiated() -> None:
    mine = {n for n in fg.ops.__all__ if getattr(fg.ops, n).__module__.rpartition(".")[2] in MODULES}
    assert mine == {name.split()[0] for name in DERIVATIVES}


# -- accuracy --------------------------------------------------------------------------------------------------------


def normal(*shape: int, seed: int = 0, offset: float = 0.0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (values + offset).requires_grad_()


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]] = {
    "softmax": (lambda x: fg.ops.softmax(x, -1), lambda x: F.softmax(x, -1), [normal(6, 200)]),
    "log_softmax": (lambda x: fg.ops.log_softmax(x, 1), lambda x: F.log_softmax(x, 1), [normal(3, 50, 7)]),
    "log_softmax, far from 0": (
        lambda x: fg.ops.log_softmax(x, 1), lambda x: F.log_softmax(x, 1), [normal(6, 200, offset=100.0)],
    ),
    "logsumexp": (lambda x: fg.ops.logsumexp(x, 1), lambda x: torch.logsumexp(x, 1), [normal(6, 200)]),
    "layer_norm": (
        lambda x, w, b: fg.ops.layer_norm(x, (200,), w, b), lambda x, w, b: F.layer_norm(x, (200,), w, b),
        [normal(6, 200), normal(200, seed=1), normal(200, seed=2)],
    ),
    "layer_norm, far from 0": (
        lambda x: fg.ops.layer_norm(x, (200,)), lambda x: F.layer_norm(x, (200,)), [normal(6, 200, offset=30.0)],
    ),
    "rms_norm": (
        lambda x, w: fg.ops.rms_norm(x, (200,), w, 1e-5), lambda x, w: F.rms_norm(x, (200,), w, 1e-5),
        [normal(6, 200), normal(200, seed=1)],
    ),
    "batch_norm": (
        lambda x, w, b: fg.ops.batch_norm(x, None, None, w, b, True),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        [normal(9, 5, 40), normal(5, seed=1), normal(5, seed=2)],
    ),
    "instance_norm": (
        lambda x, w, b: fg.ops.instance_norm(x, None, None, w, b), lambda x, w, b: F.instance_norm(x, None, None, w, b),
        [normal(3, 5, 200), normal(5, seed=1), normal(5, seed=2)],
    ),
    "group_norm": (
        lambda x, w, b: fg.ops.group_norm(x, 4, w, b), lambda x, w, b: F.group_norm(x, 4, w, b),
        [normal(3, 8, 50), normal(8, seed=1), normal(8, seed=2)],
    ),
    "normalize": (fg.ops.normalize, F.normalize, [normal(6, 200)]),
    "cosine_similarity": (fg.ops.cosine_similarity, F.cosine_similarity, [normal(6, 200), normal(6, 200, seed=1)]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", sorted(PAIRS))
def test_no_worse_than_torch(name: str, dtype: torch.dtype) -> None:
    ours, theirs, arguments = PAIRS[name]
    check_no_worse(ours, theirs, [a.detach().to(dtype).requires_grad_() for a in arguments])


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_float32_weights_for_half_inputs(dtype: torch.dtype) -> None:
    x, w, b = (normal(*shape).detach() for shape in ((6, 40), (40,), (40,)))
    x, w, b = x.to(dtype), w.float(), b.flip(0).float()
    for ours, theirs in (
        (fg.ops.layer_norm(x, (40,), w, b), F.layer_norm(x, (40,), w, b)),
        (fg.ops.group_norm(x, 4, w, b), F.group_norm(x, 4, w, b)),
        (fg.ops.batch_norm(x, None, None, w, b, True), F.batch_norm(x, None, None, w, b, True)),
        (fg.ops.batch_norm(x, w, b.abs(), w, b), F.batch_norm(x, w, b.abs(), w, b)),
    ):
        torch.testing.assert_close(ours, theirs)


def test_rms_norms_own_eps() -> None:
    for dtype in (*FLOATS, torch.float64):
        x = (1e-3 * normal(3, 40)).to(dtype)
        torch.testing.assert_close(fg.ops.rms_norm(x, (40,)), F.rms_norm(x, (40,)))


def test_weight_offset() -> None:
    x, w = normal(3, 40), normal(40, seed=1)
    torch.testing.assert_close(fg.ops.rms_norm(x, (40,), w, 1e-6, weight_offset=1.0), F.rms_norm(x, (40,), 1 + w, 1e-6))


# -- hard inputs -----------------------------------------------------------------------------------------------------

ROWS = [
    [1.0, 2, 3, 4], [INF, 1, 2, 3], [-INF, 1, 2, 3], [1, -INF, -INF, 2], [INF, INF, 1, 2], [INF, -INF, 1, 2],
    [-INF] * 4, [INF] * 4, [NAN, 1, 2, 3], [0.0] * 4, [-0.0, 0, -0.0, 0], [3, 3, 3, 1], [1e4, -1e4, 1e4, 9999],
]  # fmt: skip
SPECIALS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (lambda x: fg.ops.softmax(x, 1), lambda x: F.softmax(x, 1)),
    "log_softmax": (lambda x: fg.ops.log_softmax(x, 1), lambda x: F.log_softmax(x, 1)),
    "logsumexp": (lambda x: fg.ops.logsumexp(x, 1), lambda x: torch.logsumexp(x, 1)),
    "layer_norm": (lambda x: fg.ops.layer_norm(x, (4,)), lambda x: F.layer_norm(x, (4,))),
    "rms_norm": (lambda x: fg.ops.rms_norm(x, (4,)), lambda x: F.rms_norm(x, (4,))),
    "normalize": (fg.ops.normalize, F.normalize),
}


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("name", sorted(SPECIALS))
def test_rows_with_infinities_and_nan(name: str, along: str) -> None:
    ours, theirs = SPECIALS[name]
    rows = torch.tensor(ROWS) if along == "rows" else torch.tensor(ROWS).T.contiguous().T
    (value,), (gradient,) = _both(ours, rows)
    (expected,), (their_gradient,) = _both(theirs, rows)
    torch.testing.assert_close(value, expected, equal_nan=True)
    if name == "logsumexp":  # where it is infinite torch's gradient is NaN, and ours is none
        gradient, their_gradient = gradient[expected.isfinite()], their_gradient[expected.isfinite()]
    # Far from 0 torch's gradient of logsumexp has lost digits: it is computed from the rounded result.
    tolerance = {"rtol": 1e-3, "atol": 1e-5} if name == "logsumexp" else {}
    torch.testing.assert_close(gradient, their_gradient, equal_nan=True, **tolerance)


def _both(function: Callable[..., Any], rows: torch.Tensor) -> Any:
    x = rows.detach().requires_grad_()
    value = function(x)
    cotangent = draw(*value.shape, seed=3, dtype=torch.float32).detach()
    return (value.detach(),), torch.autograd.grad(value, [x], cotangent)


@pytest.mark.parametrize("constant", [0.0, 0.1, 2.0**-60, 2.0**20, 1e8, 2.0**100])
def test_a_constant_row_is_normalized_to_nothing(constant: float) -> None:
    x, bias = torch.full((3, 256), constant), torch.arange(256.0)
    rounding = 1e-5 if constant == 0.1 else 0  # its multiples are rounded, and then divided by sqrt(eps)
    assert fg.ops.layer_norm(x, (256,)).abs().max() <= rounding
    torch.testing.assert_close(
        fg.ops.layer_norm(x, (256,), None, bias), bias.expand(3, 256), rtol=0, atol=10 * rounding
    )


def test_layer_norm_far_from_zero() -> None:
    x = (1e8 + 1024 * normal(4, 300)).float()
    exact = F.layer_norm(x.double(), (300,))
    assert (fg.ops.layer_norm(x, (300,)).double() - exact).abs().max() < 0.02  # an ulp of the input is 8


def test_softmax_without_a_dimension() -> None:
    for shape in ((), (4,), (3, 4), (2, 3, 4), (2, 3, 4, 2)):
        x = torch.randn(shape)
        with pytest.warns(UserWarning):
            expected = F.softmax(x)
        torch.testing.assert_close(fg.ops.softmax(x), expected)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 3), (3, 1), (1, 1), (2, 0, 4)])
def test_empty_and_single(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    for ours, theirs in (
        (lambda x: fg.ops.softmax(x, 1), lambda x: F.softmax(x, 1)),
        (lambda x: fg.ops.log_softmax(x, 0), lambda x: F.log_softmax(x, 0)),
        (lambda x: fg.ops.layer_norm(x, shape[1:]), lambda x: F.layer_norm(x, shape[1:])),
        (lambda x: fg.ops.rms_norm(x, shape[1:]), lambda x: F.rms_norm(x, shape[1:])),
        (fg.ops.normalize, F.normalize),
        (lambda x: fg.ops.logsumexp(x, 1), lambda x: torch.logsumexp(x, 1)),
    ):
        check_same(ours, theirs, [x])


# -- layouts and frameworks ------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row-major": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "sliced": lambda x: torch.cat([x, x], 1)[:, ::2, :, 1:],
    "expanded": lambda x: x[:, :, :1].expand(-1, -1, 5, -1),
}
LAID_OUT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "layer_norm of one dimension": (
        lambda x, w: fg.ops.layer_norm(x, x.shape[3:]), lambda x, w: F.layer_norm(x, x.shape[3:]),
    ),
    "softmax": (lambda x, w: fg.ops.softmax(x, 1), lambda x, w: F.softmax(x, 1)),
    "layer_norm": (
        lambda x, w: fg.ops.layer_norm(x, x.shape[2:]), lambda x, w: F.layer_norm(x, x.shape[2:]),
    ),
    "batch_norm": (
        lambda x, w: fg.ops.batch_norm(x, None, None, w, training=True),
        lambda x, w: F.batch_norm(x, None, None, w, training=True),
    ),
    "instance_norm": (lambda x, w: fg.ops.instance_norm(x, weight=w), lambda x, w: F.instance_norm(x, weight=w)),
    "group_norm": (lambda x, w: fg.ops.group_norm(x, 2, w), lambda x, w: F.group_norm(x, 2, w)),
}  # fmt: skip


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("name", sorted(LAID_OUT))
def test_layouts(name: str, layout: str) -> None:
    x = LAYOUTS[layout](normal(2, 6, 5, 4).detach()).requires_grad_()
    ours, theirs = LAID_OUT[name]
    check_same(ours, theirs, [x, normal(6, seed=1)])
    if layout in ("channels last", "transposed"):  # a dense input's layout is kept
        assert ours(x, normal(6)).stride() == x.stride()


def test_group_norm_moves_no_data() -> None:
    x = torch.randn(2, 12, 5, 4)[:, ::2, :, 1:].transpose(2, 3)
    (operand,) = fg.ops.group_norm.trace(x, 3).operands
    shape, strides, offset = view(operand, x.shape, x.stride())
    assert shape == (2, 3, 2, 3, 5)
    assert torch.equal(x.as_strided(shape, strides, x.storage_offset() + offset), x.unflatten(1, (3, 2)))


def test_numpy_arrays() -> None:
    x, mean, var = np.random.randn(2, 6, 5).astype(np.float32), np.zeros(6, np.float32), np.ones(6, np.float32)
    result = fg.ops.group_norm(x, 3)
    assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(result, F.group_norm(torch.from_numpy(x), 3).numpy(), rtol=1e-4, atol=1e-5)
    moved = [torch.zeros(6), torch.ones(6)]
    expected = F.batch_norm(torch.from_numpy(x), *moved, training=True)
    np.testing.assert_allclose(fg.ops.batch_norm(x, mean, var, training=True), expected.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, moved[0].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, moved[1].numpy(), rtol=1e-5)


def test_out() -> None:
    x, out = torch.randn(2, 6, 5), torch.empty(2, 6, 5)
    assert fg.ops.group_norm(x, 3, out=out) is out
    torch.testing.assert_close(out, F.group_norm(x, 3))
    fg.ops.softmax(x, 1, out=out)
    torch.testing.assert_close(out, F.softmax(x, 1))


def test_a_new_shape_compiles_nothing() -> None:
    for op, call in (
        (fg.ops.layer_norm, lambda n: fg.ops.layer_norm(torch.randn(3, n), (n,), torch.randn(n))),
        (fg.ops.group_norm, lambda n: fg.ops.group_norm(torch.randn(2, 4 * n, 5), 2)),
    ):
        call(2)
        before = len(op.declaration.traces)
        call(3), call(5)
        assert len(op.declaration.traces) == before
    two, three = (fg.ops.group_norm.emit(torch.randn(2, 4 * n, 5), n) for n in (2, 3))
    assert two == three  # the number of groups is a constant, and a size to the kernel


# -- running statistics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, -0.5])
@pytest.mark.parametrize("name", ["batch_norm", "instance_norm", "batch_norm_relu"])
def test_running_statistics_move(name: str, momentum: float) -> None:
    x, found = normal(4, 3, 5), []
    for function in (getattr(fg.ops, name), getattr(F, name.removesuffix("_relu"))):
        mean, var = statistics()
        training = {} if name == "instance_norm" else {"training": True}
        result = function(x, mean, var, momentum=momentum, **training)
        if function is F.batch_norm and name == "batch_norm_relu":
            result = F.relu(result)
        found.append((result, *torch.autograd.grad(result, [x], torch.ones_like(result)), mean, var))
    torch.testing.assert_close(*found)


def test_running_statistics_stay_in_evaluation() -> None:
    x, (mean, var), use = normal(4, 3, 5), statistics(), {"use_input_stats": False}
    for ours, theirs in (
        (fg.ops.batch_norm(x, mean, var), F.batch_norm(x, mean, var)),
        (fg.ops.instance_norm(x, mean, var, **use), F.instance_norm(x, mean, var, **use)),
    ):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close((mean, var), statistics(), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0, 3), (2, 3, 0)])
def test_running_statistics_stay_where_there_is_nothing(shape: tuple[int, ...]) -> None:
    mean, var = statistics()
    for function in (fg.ops.batch_norm, fg.ops.batch_norm_relu):
        assert function(torch.empty(shape), mean, var, training=True).shape == shape
    torch.testing.assert_close((mean, var), statistics(), rtol=0, atol=0)


# -- inside an op ---------------------------------------------------------------------------------------------------


def test_a_norm_inside_an_op() -> None:
    @fg.op
    def block(x: fg.Tensor, gate: fg.Tensor, weight: fg.Tensor) -> fg.Tensor:
        return fg.ops.rms_norm(x, (None,), weight, eps=1e-6) * fg.ops.silu(gate)

    x, gate, weight = draw(3, 8), draw(3, 8, seed=1), draw(8, seed=2)
    check_same(block, lambda x, g, w: F.rms_norm(x, (8,), w, 1e-6) * F.silu(g), [x, gate, weight])


# -- what is refused -------------------------------------------------------------------------------------------------


@fg.op
def running(x: fg.Tensor, mean: fg.Tensor, var: fg.Tensor) -> fg.Tensor:
    return fg.ops.batch_norm(x, mean, var, training=True)


REFUSED: list[tuple[Callable[..., Any], str, str]] = [
    (lambda x: fg.ops.layer_norm(x, (6,)), "[6] for an input of shape [2, 6, 5]", "trailing sizes, such as [5]"),
    (lambda x: fg.ops.layer_norm(x, 5), "5", "a tuple of the input's trailing sizes"),
    (lambda x: fg.ops.layer_norm(x, ()), "shape []", "at least one size"),
    (lambda x: fg.ops.layer_norm(x, (5,), x[0]), "shape [6, 5]", "shape [5]: the normalized shape"),
    (lambda x: fg.ops.rms_norm(x, (5,), x[0, 0, :1]), "shape [1]", "shape [5]: the normalized shape"),
    (lambda x: fg.ops.rms_norm(x.long(), (5,)), "int64", "a float dtype"),
    (lambda x: fg.ops.group_norm(x, 4), "4 for an input of shape [2, 6, 5]", "divides 6 channels"),
    (lambda x: fg.ops.group_norm(x, 0), "0 for an input", "divides 6 channels"),
    (lambda x: fg.ops.group_norm(x, 2, x[0, 0]), "shape [5]", "shape [6]: one number a channel"),
    (lambda x: fg.ops.group_norm(x[0, 0], 1), "shape [5]", "at least 2 dimensions"),
    (lambda x: fg.ops.instance_norm(x[:, :, :1]), "shape [2, 6, 1]", "more than one value"),
    (lambda x: fg.ops.batch_norm(x[:1, :, :1], None, None, training=True), "shape [1, 6, 1]", "more than one value"),
    (lambda x: fg.ops.batch_norm(x, None, None), "NoneType", "running_mean and running_var"),
    (lambda x: fg.ops.batch_norm(x, x[0, :, 0], None, training=True), "running_var: NoneType", "or None and None"),
    (lambda x: fg.ops.batch_norm(x, None, None, training=True, eps=-1.0), "eps=-1.0", "at least 0"),
    (lambda x: running(x, x[0, :, 0], x[0, :, 0]), "running_mean: Value", "no memory yet"),
    (lambda x: fg.ops.softmax(x, 3), "axis 3", "from -3 to 2"),
    (lambda x: fg.ops.softmax(x.long(), 1), "int64", "a float dtype"),
    (lambda x: fg.ops.vector_norm(x[:0], INF), "dimension 0 has no elements", "elements in every reduced dimension"),
    (lambda x: fg.ops.vector_norm(x, dtype=torch.float16), "float16 for an input of float32", "a wider dtype"),
]


@pytest.mark.parametrize(("call", "given", "expected"), REFUSED)
def test_what_is_refused(call: Callable[..., Any], given: str, expected: str) -> None:
    error = refused(lambda: call(torch.randn(2, 6, 5)))
    assert given in error.given and expected in error.expected and error.fix

"""The library: bias and residual forms, recurrent cells, packed gates, blends, and what the library exports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from tests.support.oracles import draw, refused

FUSED = {name: getattr(fg.ops, name).__module__.rpartition(".")[2] for name in fg.ops.__all__}
FUSED = {name: module for name, module in FUSED.items() if module in ("bias", "fused_norms", "linear")}
ACTIVATIONS = sorted(n.removeprefix("residual_bias_") for n, m in FUSED.items() if m == "bias" and "residual_" in n)
REQUIRED = {"threshold": {"threshold": 0.1, "value": 7.0}}


# -- bias, cells, blends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_bias_then_activation(name: str) -> None:
    x, bias, residual = (torch.randn(2, 3, 5), torch.randn(5), torch.randn(2, 3, 5))
    activation, options = getattr(fg.ops, name), REQUIRED.get(name, {})
    for op, total, given in (
        (f"bias_{name}", x + bias, (x, bias)),
        (f"residual_bias_{name}", x + bias + residual, (x, bias, residual)),
    ):
        fused = getattr(fg.ops, op)
        assert fused.name == op
        torch.testing.assert_close(fused(*given, **options), activation(total, **options))


# What activations refuse, and in which words: every one that has limits.
REFUSED = {
    "celu": ({"alpha": 0.0}, "other than 0"),
    "hardtanh": ({"min_val": 1.0, "max_val": -1.0}, "at least min_val"),
    "softshrink": ({"lambd": -1.0}, "at least 0"),
}


def test_refused_options_are_those_of_all_that_have_limits() -> None:
    assert set(REFUSED) == {name for name in ACTIVATIONS if getattr(getattr(fg.ops, name), "limits", None)}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_an_activation_refuses_are_refused_where_it_follows_something(name: str) -> None:
    x, weight, bias = torch.ones(3, 4), torch.ones(4, 4), torch.ones(4)
    options, words = REFUSED[name]
    plain = str(refused(lambda: getattr(fg.ops, name)(x, **options)))
    assert words in plain
    for op, given in (
        (f"linear_{name}", (x, weight, bias)), (f"bias_{name}", (x, bias)), (f"residual_bias_{name}", (x, bias, x)),
    ):  # fmt: skip
        fused = getattr(fg.ops, op)
        for wrong in (options, dict.fromkeys(options, "a"), dict.fromkeys(options, (1.0,))):
            own = str(refused(lambda wrong=wrong: getattr(fg.ops, name)(x, **wrong)))
            for _ in range(2):
                found = str(refused(lambda fused=fused, given=given, wrong=wrong: fused(*given, **wrong)))
                assert found == own.replace(f"{name}, option", f"{op}, option")

    def inside(x: fg.Tensor, weight: fg.Tensor) -> fg.Tensor:
        return getattr(fg.ops, f"linear_{name}")(x, weight, **options)

    assert words in str(refused(lambda: fg.op(inside)(x, weight)))


def test_limited_options_may_be_tensors_and_numbers_of_another_op() -> None:
    x, low = draw(3, 5), torch.tensor(-0.5, dtype=torch.float64)
    clamped = fg.op(lambda x, low: fg.ops.hardtanh(x, low, 0.75), name="clamped")
    for result in (fg.ops.hardtanh(x, low, 0.75), clamped(x, -0.5), clamped(x, low)):
        torch.testing.assert_close(result, x.clamp(-0.5, 0.75))
    torch.testing.assert_close(fg.ops.linear_celu(x, x, alpha=np.float32(0.5)), F.celu(x @ x.mT, 0.5))


def test_options_of_a_wrong_type_are_refused_as_numbers_out_of_range() -> None:
    x, weight, out, labels = torch.ones(3, 4), torch.ones(5, 4), torch.ones(3, 5), torch.zeros(3, dtype=torch.int64)
    for call, words in (
        (
            lambda: fg.ops.linear_residual(x, weight, None, out, out, p="a"),
            "linear_residual, option p p='a' 0 to below",
        ),
        (
            lambda: fg.ops.linear_cross_entropy(x, weight, labels, label_smoothing="a"),
            "linear_cross_entropy, option label_smoothing label_smoothing='a' from 0 to 1",
        ),
        (lambda: fg.ops.cross_entropy(x, labels, label_smoothing=[0.1]), "label_smoothing=[0.1] from 0 to 1"),
        (lambda: fg.ops.hardtanh(x, "a", 1.0), "option min_val min_val='a' a number"),
        (lambda: fg.ops.celu(x, 1j), "option alpha alpha=1j other than 0"),
    ):
        error = refused(call)
        assert isinstance(error, fg.DeclarationError)
        assert all(word in str(error) for word in words.split()), error


def test_bias_along_a_channel() -> None:
    x, bias = draw(2, 3, 4, 5), draw(3, seed=1)
    for result, expected in (
        (fg.ops.bias_relu(x, bias, dim=1), torch.relu(x + bias[:, None, None])),
        (fg.ops.bias_relu(x, None), torch.relu(x)),
        (fg.ops.residual_bias_relu(x, bias, x, dim=-3), torch.relu(x + bias[:, None, None] + x)),
        (fg.ops.bias_add(x, bias, dim=1), x + bias[:, None, None]),
    ):
        torch.testing.assert_close(result, expected)
    cotangent = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    ours = torch.autograd.grad(fg.ops.bias_relu(x, bias, dim=1), [x, bias], cotangent)
    theirs = torch.autograd.grad(torch.relu(x + bias[:, None, None]), [x, bias], cotangent)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.emulator
def test_lstm_cell_is_torchs() -> None:
    cell = torch.nn.LSTMCell(6, 4, dtype=torch.float64)
    x, h, c = draw(3, 6), draw(3, 4, seed=1), draw(3, 4, seed=2)
    gates = x @ cell.weight_ih.T + h @ cell.weight_hh.T
    ours = fg.ops.lstm_cell(gates, c, cell.bias_ih + cell.bias_hh)
    theirs = cell(x, (h, c))
    cotangents = [torch.randn(3, 4, dtype=torch.float64) for _ in range(2)]
    leaves = [x, h, c, *cell.parameters()]
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, leaves, cotangents), torch.autograd.grad(theirs, leaves, cotangents)
    )


@pytest.mark.emulator
def test_gru_cell_is_torchs() -> None:
    cell = torch.nn.GRUCell(6, 4, dtype=torch.float64)
    x, h = draw(3, 6), draw(3, 4, seed=1)
    ours = fg.ops.gru_cell(x @ cell.weight_ih.T, h @ cell.weight_hh.T, h, cell.bias_ih, cell.bias_hh)
    theirs = cell(x, h)
    cotangent = torch.randn(3, 4, dtype=torch.float64)
    leaves = [x, h, *cell.parameters()]
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, leaves, cotangent), torch.autograd.grad(theirs, leaves, cotangent)
    )


def test_packed_gates_are_views() -> None:
    op = fg.ops.swiglu_packed.trace(torch.randn(3, 8))
    assert [o.packed.index for o in op.operands] == [0, 1]
    x = torch.randn(3, 8)
    torch.testing.assert_close(fg.ops.swiglu_packed(x), F.silu(x[:, :4]) * x[:, 4:])
    torch.testing.assert_close(fg.ops.geglu_packed(x.T, 0), F.gelu(x.T[:4]) * x.T[4:])
    torch.testing.assert_close(fg.ops.reglu_packed(x), F.relu(x[:, :4]) * x[:, 4:])


def test_crelu_writes_both_halves() -> None:
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(fg.ops.crelu(x), torch.cat([torch.relu(x), torch.relu(-x)], 1))


def test_blends() -> None:
    a, b, alpha = torch.rand(4, 5, 3), torch.rand(4, 5, 3), torch.rand(4, 5, 1)
    torch.testing.assert_close(fg.ops.alpha_blend(a, b, alpha), alpha * a + (1 - alpha) * b)
    colour, out_alpha = fg.ops.alpha_over(a, alpha, b, torch.ones(4, 5, 1))
    torch.testing.assert_close(colour, alpha * a + (1 - alpha) * b)
    torch.testing.assert_close(out_alpha, torch.ones(4, 5, 1))
    nothing = torch.zeros(4, 5, 1)
    assert not fg.ops.alpha_over(a, nothing, b, nothing)[0].any()
    average = a.clone()
    fg.ops.ema_update(average, b, 0.1, out=average)
    torch.testing.assert_close(average, a + 0.1 * (b - a))


# -- what is exported ------------------------------------------------------------------------------------------------


@pytest.mark.emulator
def test_numpy_arrays() -> None:
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    result = fg.ops.bias_gelu(x, np.ones(4, np.float32))
    assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(result, F.gelu(torch.from_numpy(x) + 1).numpy(), rtol=1e-5, atol=1e-6)


def test_every_op_says_its_formula() -> None:
    for name in fg.ops.__all__:
        op = getattr(fg.ops, name)
        assert op.name == name
        assert op.__doc__ and len(op.__doc__) > 20, name
        assert name in FUSED or "Source: " in op.__doc__ or "for ``input`` =" in op.__doc__, name
        assert getattr(__import__(op.__module__, fromlist=[name]), name) is op


def test_ops_call_ops() -> None:
    @fg.op
    def layer(x: fg.Tensor, bias: fg.Tensor) -> fg.Tensor:
        return fg.ops.lerp(x, fg.ops.bias_gelu(x, bias, approximate="tanh"), 0.25)

    x, bias = torch.randn(3, 4), torch.randn(4)
    torch.testing.assert_close(layer(x, bias), torch.lerp(x, F.gelu(x + bias, approximate="tanh"), 0.25))

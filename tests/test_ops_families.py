"""The library: bias and residual forms, recurrent cells, packed gates, blends, and the front door."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fusegen as fg

FUSED = {name: getattr(fg.ops, name).__module__.rpartition(".")[2] for name in fg.ops.__all__}
FUSED = {name: module for name, module in FUSED.items() if module in ("bias", "fused_norms", "linear")}
ACTIVATIONS = sorted(n.removeprefix("residual_bias_") for n, m in FUSED.items() if m == "bias" and "residual_" in n)
REQUIRED = {"threshold": {"threshold": 0.1, "value": 7.0}}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


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
    assert [o.part.index for o in op.operands] == [0, 1]
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


# -- the front door --------------------------------------------------------------------------------------------------


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

"""Normalizations with what stands before and after them: bias, residual, activation, running statistics, the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from tests.support.oracles import check_derivatives, check_no_worse, draw, refused

INF = float("inf")


def statistics() -> tuple[torch.Tensor, torch.Tensor]:
    return draw(3, seed=8).detach(), draw(3, low=0.5, high=2, seed=9).detach()


x23, x234 = draw(2, 3), draw(2, 3, 4)
w3, b3 = draw(3, seed=1), draw(3, seed=2)
DERIVATIVES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "residual_bias_layer_norm": (
        lambda *a: fg.ops.residual_bias_layer_norm(*a[:3], (3,), a[3], return_sum=True), [x23, b3, x23, w3],
    ),
    "residual_bias_batch_norm": (
        lambda x, b, r, w: fg.ops.residual_bias_batch_norm(x, b, r, None, None, w, training=True, return_sum=True),
        [x234, b3, draw(2, 3, 4, seed=1), w3],
    ),
    "residual_bias_batch_norm eval": (
        lambda x, b, w: fg.ops.residual_bias_batch_norm(x, b, x, *statistics(), w), [x23, b3, w3],
    ),
    "residual_bias_instance_norm": (
        lambda x, b, w: fg.ops.residual_bias_instance_norm(x, b, x, weight=w, return_sum=True), [x234, b3, w3],
    ),
    "residual_bias_group_norm_silu": (
        lambda x, b, r: fg.ops.residual_bias_group_norm_silu(x, b, r, 2),
        [draw(2, 4, 2), draw(4, seed=1), draw(2, 4, 2, seed=1)],
    ),
    "residual_bias_softmax": (lambda x, b: fg.ops.residual_bias_softmax(x, b, x, -1), [x23, b3]),
    "layer_norm_gelu": (lambda x, w: fg.ops.layer_norm_gelu(x, (3,), w, residual=x, approximate="tanh"), [x23, w3]),
    "batch_norm_leaky_relu": (
        lambda x, r: fg.ops.batch_norm_leaky_relu(x, None, None, training=True, residual=r),
        [x234, draw(2, 3, 4, seed=1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(DERIVATIVES))
def test_first_and_second_derivatives(name: str) -> None:
    """Of each kind one; the others are of the same factories."""
    check_derivatives(*DERIVATIVES[name])


FUSED = sorted(n for n in fg.ops.__all__ if getattr(fg.ops, n).__module__.endswith("fused_norms"))
OPTIONS: dict[str, dict[str, Any]] = {
    "layer_norm": {"normalized_shape": (4,)}, "rms_norm": {"normalized_shape": (4,)}, "group_norm": {"num_groups": 2},
    "batch_norm": {"running_mean": None, "running_var": None, "training": True}, "instance_norm": {},
}  # fmt: skip


def parts(name: str) -> tuple[str, str]:
    """The norm and the activation in an op's name."""
    norm = next(n for n in OPTIONS if n in name)
    return norm, name.removeprefix(f"{norm}_")


@pytest.mark.parametrize("name", [n for n in FUSED if not n.startswith("residual_")])
def test_activation_after_a_norm(name: str) -> None:
    norm, activation = parts(name)
    x, residual, op = draw(3, 6, 4), draw(3, 6, 4, seed=1), getattr(fg.ops, name)
    assert op.name == name
    weight = draw(4 if norm in ("layer_norm", "rms_norm") else 6, seed=2)
    options = OPTIONS[norm] | {"weight": weight}
    normed = getattr(F, norm)(x, **options)
    then = getattr(F, activation)
    torch.testing.assert_close(op(x, **options), then(normed))
    torch.testing.assert_close(op(x, **options, residual=residual), then(normed + residual))


def test_options_of_both() -> None:
    x = draw(3, 4)
    ours = fg.ops.layer_norm_gelu(x, (4,), eps=0.1, approximate="tanh")
    torch.testing.assert_close(ours, F.gelu(F.layer_norm(x, (4,), eps=0.1), approximate="tanh"))
    ours = fg.ops.batch_norm_leaky_relu(x, None, None, training=True, negative_slope=0.3)
    torch.testing.assert_close(ours, F.leaky_relu(F.batch_norm(x, None, None, training=True), 0.3))


@pytest.mark.parametrize("norm", OPTIONS)
def test_bias_and_residual_before_a_norm(norm: str) -> None:
    op, options = getattr(fg.ops, f"residual_bias_{norm}"), OPTIONS[norm]
    x, residual = draw(3, 6, 4), draw(3, 6, 4, seed=1)
    of_features = norm in ("layer_norm", "rms_norm")
    bias, weight, norm_bias = (draw(4 if of_features else 6, seed=seed) for seed in (2, 3, 4))
    along = bias if of_features else bias[:, None]
    own = {} if norm == "rms_norm" else {"bias": norm_bias}
    renamed = {f"norm_{key}": value for key, value in own.items()}
    for given, total in (
        ((bias, residual), x + along + residual), ((None, residual), x + residual), ((bias, None), x + along),
        ((None, None), x),
    ):  # fmt: skip
        expected = getattr(F, norm)(total, **options, weight=weight, **own)
        torch.testing.assert_close(op(x, *given, **options, weight=weight, **renamed), expected)
        both = op(x, *given, **options, weight=weight, **renamed, return_sum=True)
        torch.testing.assert_close(both, (expected, total))
    for activation in ("relu", "gelu", "silu"):
        then = getattr(F, activation)
        op = getattr(fg.ops, f"residual_bias_{norm}_{activation}")
        expected = then(getattr(F, norm)(x + along + residual, **options, weight=weight, **own))
        torch.testing.assert_close(op(x, bias, residual, **options, weight=weight, **renamed), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm", ["batch_norm", "instance_norm", "softmax"])
def test_no_worse_than_torch(norm: str, dtype: torch.dtype) -> None:
    op, options = getattr(fg.ops, f"residual_bias_{norm}"), OPTIONS.get(norm, {"dim": -1})
    arguments = [draw(6, 50, 4), draw(*(4,) if norm == "softmax" else (50,), seed=1), draw(6, 50, 4, seed=2)]
    arguments = [a.detach().to(dtype).requires_grad_() for a in arguments]
    arguments[1].requires_grad_(norm == "softmax")  # a channel's bias is normalized away: its gradient is rounding
    check_no_worse(
        lambda x, b, r: op(x, b, r, **options),
        lambda x, b, r: getattr(F, norm)(x + (b if norm == "softmax" else b[:, None]) + r, **options),
        arguments,
    )


@pytest.mark.parametrize("name", ["softmax", "softmin", "log_softmax", "logsumexp", "normalize"])
def test_bias_and_residual_before_softmax_and_its_kin(name: str) -> None:
    """Scores of attention: a bias of heads and positions, and a mask, both broadcast."""
    scores, bias, mask = draw(2, 3, 4, 5), draw(3, 4, 5, seed=1), torch.zeros(2, 1, 4, 5, dtype=torch.float64)
    mask[0].masked_fill_(torch.ones(4, 5).triu(1).bool(), {"softmin": INF, "normalize": 3.0}.get(name, -INF))
    op, theirs = getattr(fg.ops, f"residual_bias_{name}"), getattr(F, name, None) or getattr(torch, name)
    total = scores + bias + mask
    torch.testing.assert_close(op(scores, bias, mask, dim=-1), theirs(total, dim=-1))
    torch.testing.assert_close(op(scores, None, mask, dim=1), theirs(scores + mask, dim=1), equal_nan=True)
    torch.testing.assert_close(
        op(scores, bias, None, dim=2, return_sum=True), (theirs(scores + bias, dim=2), scores + bias)
    )


@pytest.mark.parametrize("return_sum", [False, True])
@pytest.mark.parametrize("norm", ["batch_norm", "instance_norm"])
def test_running_statistics_of_a_sum(norm: str, return_sum: bool) -> None:
    """Those of input + bias + residual move in training; in evaluation they are what normalizes, and stay."""
    x, residual, bias = draw(4, 3, 5), draw(4, 3, 5, seed=1), draw(3, seed=2)
    total, option = x + bias[:, None] + residual, "training" if norm == "batch_norm" else "use_input_stats"
    for activation, name in ((lambda t: t, f"residual_bias_{norm}"), (F.silu, f"residual_bias_{norm}_silu")):
        ours, theirs = statistics(), statistics()
        for moves in (True, False):
            given = {option: moves, "momentum": 0.3}
            found = getattr(fg.ops, name)(x, bias, residual, *ours, **given, return_sum=return_sum)
            expected = activation(getattr(F, norm)(total, *theirs, **given))
            torch.testing.assert_close(found, (expected, total) if return_sum else expected)
            torch.testing.assert_close(ours, theirs)
        assert not torch.equal(ours[0], statistics()[0])


REFUSED: list[tuple[Callable[[torch.Tensor], Any], str, str]] = [
    (lambda x: fg.ops.batch_norm_relu(x, None, None, training=True, residual=x[0]), "shape [6, 5]", "the input's"),
    (
        lambda x: fg.ops.residual_bias_batch_norm(x, x[0, 0], x, None, None, training=True),
        "shape [5]",
        "shape [6]: one number a channel",
    ),
    (lambda x: fg.ops.residual_bias_instance_norm_relu(x, None, x[0]), "shape [6, 5]", "the input's"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "given", "expected"), REFUSED)
def test_what_is_refused(call: Callable[[torch.Tensor], Any], given: str, expected: str) -> None:
    error = refused(lambda: call(torch.randn(2, 6, 5)))
    assert given in error.given and expected in error.expected and error.fix

"""The library: derivatives of every op, torch's answers at kinks, NaN and infinities, options, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from tests.support.oracles import check_derivatives, draw

INF, NAN = float("inf"), float("nan")
ACTIVATIONS = {
    "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "quick_gelu", "silu", "mish", "softplus", "softsign",
    "sigmoid", "tanh", "hardtanh", "hardsigmoid", "hardswish", "logsigmoid", "tanhshrink", "softshrink", "hardshrink",
    "squared_relu", "threshold",
}  # fmt: skip
REQUIRED = {"threshold": {"threshold": 0.1, "value": 7.0}}


def probability(*shape: int, seed: int = 0) -> torch.Tensor:
    return draw(*shape, low=0.1, high=0.9, seed=seed)


# -- derivatives -----------------------------------------------------------------------------------------------------

DERIVATIVES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    **{name: (lambda x, n=name: getattr(fg.ops, n)(x, **REQUIRED.get(n, {})), [draw(3, 4)]) for name in ACTIVATIONS},
    **{
        f"bias_{name}": (
            lambda x, b, n=name: getattr(fg.ops, f"bias_{n}")(x, b, **REQUIRED.get(n, {})),
            [draw(3, 4), draw(4, seed=1)],
        )
        for name in ("gelu", "mish", "softshrink")
    },
    "residual_bias_silu": (
        lambda x, b, r: fg.ops.residual_bias_silu(x, b, r, dim=1),
        [draw(2, 3, 2), draw(3, seed=1), draw(2, 3, 2, seed=2)],
    ),
    "gelu tanh": (lambda x: fg.ops.gelu(x, "tanh"), [draw(3, 4)]),
    "prelu": (fg.ops.prelu, [draw(2, 3, 2), draw(3, seed=1)]),
    "crelu": (fg.ops.crelu, [draw(2, 3)]),
    "clamp": (fg.ops.clamp, [draw(3, 4), draw(4, high=-1, seed=1), draw(3, 1, low=1, seed=2)]),
    "addcmul": (fg.ops.addcmul, [draw(3, 4), draw(4, seed=1), draw(3, 1, seed=2)]),
    "addcdiv": (fg.ops.addcdiv, [draw(3, 4), draw(4, seed=1), draw(3, 1, low=1, seed=2)]),
    "lerp": (fg.ops.lerp, [draw(3, 4), draw(4, seed=1), draw(3, 1, seed=2)]),
    "alpha_blend": (fg.ops.alpha_blend, [draw(3, 4), draw(3, 4, seed=1), probability(3, 1)]),
    "alpha_over": (fg.ops.alpha_over, [draw(2, 3), probability(2, 1), draw(2, 3, seed=1), probability(2, 1, seed=1)]),
    "ema_update": (fg.ops.ema_update, [draw(3, 4), draw(3, 4, seed=1)]),
    "lstm_cell": (fg.ops.lstm_cell, [draw(2, 8), draw(2, 2, seed=1), draw(8, seed=2)]),
    "gru_cell": (fg.ops.gru_cell, [draw(2, 6), draw(2, 6, seed=1), draw(2, 2, seed=2), draw(6, seed=3)]),
    "glu": (fg.ops.glu, [draw(3, 4)]),
    "swiglu": (fg.ops.swiglu, [draw(3, 4), draw(4, seed=1)]),
    "geglu": (fg.ops.geglu, [draw(3, 4), draw(3, 4, seed=1)]),
    "reglu": (fg.ops.reglu, [draw(3, 4), draw(3, 4, seed=1)]),
    "swiglu_packed": (fg.ops.swiglu_packed, [draw(3, 4)]),
    "geglu_packed": (lambda x: fg.ops.geglu_packed(x, 0, "tanh"), [draw(4, 3)]),
    "reglu_packed": (fg.ops.reglu_packed, [draw(3, 4)]),
    "mse_loss": (lambda *a: fg.ops.mse_loss(*a[:2], weight=a[2]), [draw(3, 2), draw(3, 2, seed=1), probability(3, 2)]),
    "l1_loss": (fg.ops.l1_loss, [draw(3, 2), draw(3, 2, seed=1)]),
    "smooth_l1_loss": (lambda *a: fg.ops.smooth_l1_loss(*a, beta=0.7), [draw(3, 2), draw(3, 2, seed=1)]),
    "huber_loss": (lambda *a: fg.ops.huber_loss(*a[:2], "sum", 0.7, a[2]), [draw(5), draw(5, seed=1), probability(5)]),
    "binary_cross_entropy": (fg.ops.binary_cross_entropy, [probability(3, 2), probability(3, 2, seed=1)]),
    "binary_cross_entropy_with_logits": (
        lambda *a: fg.ops.binary_cross_entropy_with_logits(*a[:2], pos_weight=a[2], reduction="sum"),
        [draw(3, 2), probability(3, 2, seed=1), probability(2)],
    ),
    "sigmoid_focal_loss": (fg.ops.sigmoid_focal_loss, [draw(3, 2), probability(3, 2, seed=1)]),
    "kl_div": (lambda *a: fg.ops.kl_div(*a, reduction="batchmean"), [draw(3, 2), probability(3, 2)]),
    "kl_div log_target": (lambda *a: fg.ops.kl_div(*a, log_target=True), [draw(3, 2), draw(3, 2, seed=1)]),
    "poisson_nll_loss": (lambda *a: fg.ops.poisson_nll_loss(*a, full=True), [draw(3, 2), draw(3, 2, low=1.5, high=4)]),
    "gaussian_nll_loss": (fg.ops.gaussian_nll_loss, [draw(3, 2), draw(3, 2, seed=1), probability(3)]),
}
NOT_DIFFERENTIATED_HERE = {"where", "masked_fill", "minimum", "maximum", "linear_lstm_cell", "linear_gru_cell"}


# Other test files differentiate the rest.
MODULES = {"activations", "blends", "cells", "gated", "likelihoods", "losses", "pointwise"}


def test_every_op_is_differentiated() -> None:
    declared = {name for name in fg.ops.__all__ if getattr(fg.ops, name).__module__.rpartition(".")[2] in MODULES}
    assert declared - {name.split()[0] for name in DERIVATIVES} - NOT_DIFFERENTIATED_HERE == set()


@pytest.mark.parametrize("name", sorted(DERIVATIVES))
def test_first_and_second_derivatives(name: str) -> None:
    function, arguments = DERIVATIVES[name]
    check_derivatives(function, arguments)


# -- kinks, signed zeros, infinities, NaN ----------------------------------------------------------------------------

POINTS = [-INF, -1e20, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 20.0, 1e20, INF, NAN]
TORCHS: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(F, name) for name in ACTIVATIONS if hasattr(F, name)},
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "threshold": lambda x: F.threshold(x, 0.5, 7.0),
    "clamp": lambda x: torch.clamp(x, -1, 1),
    "clamp min": lambda x: torch.clamp(x, min=0.5),
    "clamp max": lambda x: torch.clamp(x, max=0.5),
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.25, dtype=x.dtype)),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
    "smooth_l1_loss 0": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.0),
    "huber_loss": lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none"),
    "l1_loss": lambda x: F.l1_loss(x, torch.zeros_like(x), reduction="none"),
}
OURS: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(fg.ops, name) for name in TORCHS if hasattr(fg.ops, name)},
    "gelu tanh": lambda x: fg.ops.gelu(x, "tanh"),
    "threshold": lambda x: fg.ops.threshold(x, 0.5, 7.0),
    "clamp": lambda x: fg.ops.clamp(x, -1, 1),
    "clamp min": lambda x: fg.ops.clamp(x, min=0.5),
    "clamp max": lambda x: fg.ops.clamp(x, max=0.5),
    "prelu": lambda x: fg.ops.prelu(x, torch.full((1,), 0.25, dtype=x.dtype)),
    "smooth_l1_loss": lambda x: fg.ops.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
    "smooth_l1_loss 0": lambda x: fg.ops.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.0),
    "huber_loss": lambda x: fg.ops.huber_loss(x, torch.zeros_like(x), reduction="none"),
    "l1_loss": lambda x: fg.ops.l1_loss(x, torch.zeros_like(x), reduction="none"),
}
# Where torch answers NaN (0 times infinity inside its formula) and we answer the limit, for value and gradient; and
# one NaN whose gradient torch says is 0.
LIMITS: dict[str, tuple[dict[float, float], dict[float, float]]] = {
    "gelu": ({INF: INF}, {}),
    "gelu tanh": ({}, {-INF: 0.0, -1e20: 0.0, 1e20: 1.0, INF: 1.0}),
    "softsign": ({}, {-INF: 0.0, INF: 0.0}),
    "smooth_l1_loss 0": ({}, {NAN: NAN}),
}


def one_by_one(function: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """For the gradient at NaN torch's vectorized loops answer 0 where its plain loop and its CUDA kernels answer 1."""
    return lambda x: torch.cat([function(x[i : i + 1]) for i in range(len(x))])


@pytest.mark.parametrize("name", sorted(TORCHS))
def test_kinks_and_specials(name: str) -> None:
    found = []
    for function in (OURS[name], one_by_one(TORCHS[name])):
        x = torch.tensor(POINTS, requires_grad=True)
        value = function(x)
        found.append((value.detach(), *torch.autograd.grad(value, [x], torch.full_like(value, 3.0))))
    for mine, theirs, limits, scale in zip(*found, LIMITS.get(name, ({}, {})), (1, 3), strict=True):
        expected = theirs.clone()
        for point, limit in limits.items():
            expected[POINTS.index(point)] = scale * limit
        torch.testing.assert_close(mine, expected, equal_nan=True, rtol=2e-6, atol=1e-6)


def test_gelu_keeps_its_digits_in_the_negative_tail() -> None:
    x = torch.linspace(-12, -4, 50)
    exact = 0.5 * x.double() * torch.special.erfc(-x.double() * 0.5**0.5)
    torch.testing.assert_close(fg.ops.gelu(x).double(), exact, rtol=2e-5, atol=0)
    assert (F.gelu(x) == 0).any()  # where 1 + erf(x) has none left


def test_the_two_gelus_differ() -> None:
    x = torch.linspace(-3, 3, 50)
    assert (fg.ops.gelu(x) - fg.ops.gelu(x, "tanh")).abs().max() > 1e-4


def test_binary_cross_entropy_saturates_as_torch() -> None:
    p = torch.tensor([0.0, 0.0, 1.0, 1.0, 1e-30, 0.5], requires_grad=True)
    t = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.25], requires_grad=True)
    found = []
    for function in (fg.ops.binary_cross_entropy, F.binary_cross_entropy):
        loss = function(p, t, reduction="none")
        found.append((loss, *torch.autograd.grad(loss.sum(), [p, t])))
    (ours, d_p, d_t), (theirs, their_d_p, their_d_t) = found
    torch.testing.assert_close((ours, d_p), (theirs, their_d_p))
    # The target's gradient is that of the value, which ends at 100; torch's is infinite there.
    torch.testing.assert_close(d_t, their_d_t.clamp(-100, 100))


# -- options ---------------------------------------------------------------------------------------------------------


def compilations(op: Any) -> int:
    return len(op.declaration.traces)


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("leaky_relu", lambda x, v: fg.ops.leaky_relu(x, v)),
        ("elu", lambda x, v: fg.ops.elu(x, alpha=v)),
        ("softplus", lambda x, v: fg.ops.softplus(x, v, 20 * v)),
        ("threshold", lambda x, v: fg.ops.threshold(x, v, -v)),
        ("addcmul", lambda x, v: fg.ops.addcmul(x, x, x, value=v)),
        ("clamp", lambda x, v: fg.ops.clamp(x, -v, v)),
        ("huber_loss", lambda x, v: fg.ops.huber_loss(x, x, delta=v)),
        ("hardtanh", lambda x, v: fg.ops.hardtanh(x, -v, v)),
    ],
)
def test_a_new_number_compiles_nothing(op: str, call: Callable[..., Any]) -> None:
    x = torch.linspace(-3, 3, 7)
    call(x, 0.5)
    before = compilations(getattr(fg.ops, op))
    assert not torch.equal(call(x, 0.25), call(x, 1.5)) or op == "huber_loss"
    assert compilations(getattr(fg.ops, op)) == before


def test_whole_numbers_where_torch_has_floats() -> None:
    x = torch.randn(7)
    torch.testing.assert_close(fg.ops.elu(x, 2), F.elu(x, 2))
    torch.testing.assert_close(fg.ops.softplus(x, 1, 20), F.softplus(x))
    torch.testing.assert_close(fg.ops.hardtanh(x, 0, 1), F.hardtanh(x, 0, 1))


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "mish", "hardtanh", "threshold"])
def test_inplace_writes_into_the_input(name: str) -> None:
    x = torch.randn(4, 6)
    options = REQUIRED.get(name, {})
    expected = getattr(F, name)(x, **options)
    result = getattr(fg.ops, name)(x, **options, inplace=True)
    assert result is x
    torch.testing.assert_close(x, expected)
    positional = torch.randn(3)
    assert fg.ops.relu(positional, True) is positional and (positional >= 0).all()


def test_inplace_is_refused_where_a_gradient_is_needed() -> None:
    with pytest.raises(fg.DerivativeError, match=r"torch\.no_grad"):
        fg.ops.relu(torch.randn(3, requires_grad=True), inplace=True)

    @fg.op
    def inner(x: fg.Tensor) -> fg.Tensor:
        return fg.ops.relu(x, inplace=True)

    with pytest.raises(fg.DeclarationError, match="no memory yet"):
        inner(torch.randn(3))


@pytest.mark.parametrize(
    ("call", "given", "expected"),
    [
        (lambda x: fg.ops.gelu(x, "erf"), "approximate='erf'", "one of 'none', 'tanh'"),
        (lambda x: fg.ops.mse_loss(x, x, reduction="max"), "reduction='max'", "one of 'none', 'mean', 'sum'"),
        (lambda x: fg.ops.kl_div(x, x, reduction="max"), "reduction='max'", "'batchmean'"),
        (lambda x: fg.ops.softshrink(x, -0.5), "lambd=-0.5", "at least 0"),
        (lambda x: fg.ops.hardtanh(x, 1.0, -1.0), "max_val=-1.0", "at least min_val"),
        (lambda x: fg.ops.celu(x, 0.0), "alpha=0.0", "other than 0"),
        (lambda x: fg.ops.huber_loss(x, x, delta=0.0), "delta=0.0", "greater than 0"),
        (lambda x: fg.ops.smooth_l1_loss(x, x, beta=-1.0), "beta=-1.0", "at least 0"),
        (lambda x: fg.ops.clamp(x), "min=None and max=None", "at least one bound"),
        (lambda x: fg.ops.glu(x), "size 5 in 2 parts", "divides by 2"),
        (lambda x: fg.ops.bias_relu(x, True), "a bool", "None for no bias"),
        (lambda x: fg.ops.bias_relu(x, x[0], dim=2), "dim=2", "from -2 to 1"),
        (lambda x: fg.ops.prelu(x, x), "a weight of rank 2", "one per channel"),
        (lambda x: fg.ops.relu(x, slope=1), "slope", "fit the signature"),
    ],
)
def test_wrong_options(call: Callable[..., Any], given: str, expected: str) -> None:
    with pytest.raises(fg.FusegenError) as caught:
        call(torch.randn(4, 5))
    assert given in caught.value.given and expected in caught.value.expected and caught.value.fix


INTEGERS = {  # as torch
    "relu", "relu6", "hardtanh", "threshold", "sigmoid", "tanh", "softsign", "tanhshrink", "squared_relu",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ACTIVATIONS - {"quick_gelu", "squared_relu"}))
def test_integers_as_torch(name: str) -> None:
    x = torch.arange(-4, 5)
    options = {"threshold": 1, "value": 7} if name == "threshold" else {}
    try:
        theirs = getattr(F, name)(x, **options)
    except (RuntimeError, NotImplementedError):
        with pytest.raises(fg.DtypeError, match="float"):
            getattr(fg.ops, name)(x, **options)
        return
    assert name in INTEGERS
    torch.testing.assert_close(getattr(fg.ops, name)(x, **options), theirs)


def test_bools_as_torch() -> None:
    x = torch.tensor([True, False])
    for name in ("relu", "tanhshrink", "softsign", "clamp"):
        with pytest.raises(fg.DtypeError):
            getattr(fg.ops, name)(x, *([False] if name == "clamp" else []))
    torch.testing.assert_close(fg.ops.sigmoid(x), torch.sigmoid(x))
    for bounds in ((0,), (None, 2), (0.5,), (0, 1.5)):  # a number of more than bools is of its own dtype
        torch.testing.assert_close(fg.ops.clamp(x, *bounds), torch.clamp(x, *bounds))


@pytest.mark.parametrize("size_average", [None, True, False])
@pytest.mark.parametrize("reduce", [None, True, False])
def test_deprecated_reductions(size_average: bool | None, reduce: bool | None) -> None:
    x, t = torch.rand(3, 2), torch.rand(3, 2)
    with pytest.warns(UserWarning) if (size_average, reduce) != (None, None) else _nothing():
        theirs = F.mse_loss(x, t, size_average, reduce, "sum")
    torch.testing.assert_close(fg.ops.mse_loss(x, t, size_average, reduce, "sum"), theirs)


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_weighted_losses(reduction: str) -> None:
    x, t, w = torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 2)
    for name in ("mse_loss", "l1_loss", "huber_loss"):
        options = {"reduction": reduction, "weight": w}
        torch.testing.assert_close(getattr(fg.ops, name)(x, t, **options), getattr(F, name)(x, t, **options))


@pytest.mark.parametrize("alpha", [0.25, -1.0])
def test_focal_loss_is_its_formula(alpha: float) -> None:
    x, t = draw(4, 3), torch.tensor([[0.0, 1.0, 1.0]], dtype=torch.float64)
    p = torch.sigmoid(x)
    q = p * t + (1 - p) * (1 - t)
    expected = F.binary_cross_entropy_with_logits(x, t.expand_as(x), reduction="none") * (1 - q) ** 2
    expected = expected * (alpha * t + (1 - alpha) * (1 - t)) if alpha >= 0 else expected
    torch.testing.assert_close(fg.ops.sigmoid_focal_loss(x, t, alpha), expected)


def test_a_variance_given_as_a_number() -> None:
    x, t = torch.rand(3, 2), torch.rand(3, 2)
    torch.testing.assert_close(fg.ops.gaussian_nll_loss(x, t, 0.5), F.gaussian_nll_loss(x, t, 0.5))

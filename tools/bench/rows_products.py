"""Rows with matrix products: linear layers with activations, gated and two-layer MLPs, attention's scores."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F

import fusegen as fg
from tools.bench.kernels import NOISE
from tools.bench.row import BF16, F16, QUICK, SHORT, Input, Shape
from tools.bench.row_products import ONE_PASS, PASSES, Plain, ProductRow, Target


@fg.op
def linear(x: Any, w: Any) -> Any:
    """x w^T."""
    return fg.linear(x, w)


@fg.op
def linear_gelu_tanh(x: Any, w: Any, b: Any) -> Any:
    """gelu (tanh form) of x w^T + b."""
    return fg.ops.gelu(fg.linear(x, w, b), approximate="tanh")


@fg.op
def linear_gelu(x: Any, w: Any, b: Any) -> Any:
    """gelu of x w^T + b."""
    return fg.ops.gelu(fg.linear(x, w, b))


@fg.op
def linear_silu(x: Any, w: Any, b: Any) -> Any:
    """silu of x w^T + b."""
    return fg.ops.silu(fg.linear(x, w, b))


@fg.op
def linear_relu(x: Any, w: Any, b: Any) -> Any:
    """relu of x w^T + b."""
    return fg.ops.relu(fg.linear(x, w, b))


@fg.op
def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """Two linear layers with gelu (tanh form) between them."""
    return fg.linear(fg.ops.gelu(fg.linear(x, w1, b1), approximate="tanh"), w2, b2)


@fg.op
def relu_mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """Two linear layers with relu between them."""
    return fg.linear(fg.ops.relu(fg.linear(x, w1, b1)), w2, b2)


@fg.op
def squared_relu_mlp(x: Any, w1: Any, w2: Any) -> Any:
    """Two linear layers without biases, with the square of relu between them."""
    return fg.linear(fg.ops.squared_relu(fg.linear(x, w1)), w2)


@fg.op
def linear_residual(x: Any, w: Any, b: Any, residual: Any) -> Any:
    """residual + x w^T + b."""
    return fg.linear(x, w, b) + residual


@fg.op
def swiglu_mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """(silu(x gate^T) * (x up^T)) down^T."""
    return fg.linear(fg.ops.silu(fg.linear(x, gate)) * fg.linear(x, up), down)


@fg.op
def attention_scores(q: Any, k: Any) -> Any:
    """softmax of q k^T / 8 along the rows."""
    return fg.softmax((q @ k.mT) * 0.125, -1)


def torch_gelu_tanh(x: Any) -> Any:
    """gelu, tanh form."""
    return F.gelu(x, approximate="tanh")


def torch_mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """The two layers in torch."""
    return F.linear(torch_gelu_tanh(F.linear(x, w1, b1)), w2, b2)


def torch_relu_mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """The same with relu."""
    return F.linear(F.relu(F.linear(x, w1, b1)), w2, b2)


def torch_squared_relu_mlp(x: Any, w1: Any, w2: Any) -> Any:
    """The same with the square of relu, without biases."""
    return F.linear(F.relu(F.linear(x, w1)).square(), w2)


def torch_linear_residual(x: Any, w: Any, b: Any, residual: Any) -> Any:
    """The layer and the sum in torch."""
    return F.linear(x, w, b) + residual


def torch_swiglu_mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """The gated MLP in torch."""
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def liger_swiglu_mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """The gated MLP with Liger's kernel between torch's products."""
    module = importlib.import_module("liger_kernel.transformers.functional")
    return F.linear(module.liger_swiglu(F.linear(x, gate), F.linear(x, up)), down)


def quack_mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """The two layers by QuACK's kernels, without its search for the best of each."""
    module = importlib.import_module("quack.mlp")
    return module.mlp_func(x, w1, w2, "gelu_tanh_approx", bias1=b1, bias2=b2, tuned=False)


def _quack_linear(activation: str) -> Callable[..., Any]:
    """QuACK's linear layer; with an activation it has no backward."""

    def function(x: Any, w: Any, b: Any = None) -> Any:
        module = importlib.import_module("quack.linear")
        if not activation:
            return module.linear_func(x, w, tuned=False)
        return module.linear_act_func(x, w, activation, bias=b, store_preact=False, tuned=False)[1]

    return function


def _epilogue(use_gelu: bool) -> Callable[..., Any]:
    """cuBLASLt's GELU_BIAS (tanh form on a GPU) or RELU_BIAS."""
    return lambda x, w, b: torch._addmm_activation(b, x, w.mT, use_gelu=use_gelu)


# By name: fusegen's op, torch's activation, and who else has the forward.
ACTIVATIONS: dict[str, tuple[fg.FusedOp, Callable[..., Any], dict[str, Callable[..., Any]]]] = {
    "gelu_tanh": (linear_gelu_tanh, torch_gelu_tanh,
                  {"cuBLASLt": _epilogue(True), "QuACK": _quack_linear("gelu_tanh_approx")}),
    "silu": (linear_silu, F.silu, {"QuACK": _quack_linear("silu")}),
    "relu": (linear_relu, F.relu, {"cuBLASLt": _epilogue(False), "QuACK": _quack_linear("relu")}),
    "gelu": (linear_gelu, F.gelu, {}),
}  # fmt: skip
# The same of two layers; that of the square of relu has no biases.
MLPS: dict[str, tuple[fg.FusedOp, Callable[..., Any], dict[str, Callable[..., Any]]]] = {
    "gelu_tanh": (mlp, torch_mlp, {"QuACK": quack_mlp}),
    "relu": (relu_mlp, torch_relu_mlp, {}),
    "squared_relu": (squared_relu_mlp, torch_squared_relu_mlp, {}),
}
# A layer without any: nothing but its products, up to what medians differ by from run to run.
ALONE = {which: Target(NOISE) for which in ("fwd", "train", "bwd")}
# A forward that saves nothing, one that does, the backward: of linear layers with any activation.
LAYER = {"fwd": Target(1.15), "train": Target(1.35), **ONE_PASS}
# The same where products are so long that nothing else may show.
LONG = {"fwd": Target(1.03), "train": Target(1.03), "bwd": Target(1.03)}


def _layer(m: int, k: int, n: int) -> dict[str, tuple[Plain, ...]]:
    """The products of a linear layer [m, k] -> [m, n]: its own; the gradients of x and of the weight."""
    return {
        "fwd": (Plain((m, k), (n, k), "nt"),),
        "bwd": (Plain((m, n), (n, k)), Plain((m, n), (m, k), "tn")),
    }


def _together(*layers: Mapping[str, tuple[Plain, ...]]) -> dict[str, tuple[Plain, ...]]:
    return {which: sum((layer[which] for layer in layers), ()) for which in ("fwd", "bwd")}


def _weight(n: int, k: int) -> Input:
    """Of a layer whose results are about as large as its inputs."""
    return Input((n, k), scale=1 / sqrt(k))


def _title(what: str, dtype: torch.dtype, *sizes: int) -> str:
    return f"{what} {SHORT[dtype]} {'x'.join(map(str, sizes))}"


def _linear(dtype: torch.dtype, m: int, k: int, n: int, **rest: Any) -> ProductRow:
    return ProductRow(
        _title("linear", dtype, m, k, n), linear, F.linear, dtype, [(m, k), _weight(n, k)], 0, 0,
        products=_layer(m, k, n), targets=ALONE,
        others={"QuACK": _quack_linear("")}, **rest,
    )  # fmt: skip


def _activated(name: str, dtype: torch.dtype, m: int, k: int, n: int, **rest: Any) -> ProductRow:
    """The epilogue reads the product, bias included, and writes the result. The backward's pass reads the product (of a
    relu, a bit of each element is enough) and the cotangent, and writes the product's gradient and the bias's, which of
    a single row are the same."""
    op, activation, inference = ACTIVATIONS[name]
    seen = m * n // (8 * dtype.itemsize) if name == "relu" else m * n
    bias = n if m > 1 else 0
    reference = lambda x, w, b: activation(F.linear(x, w, b))  # noqa: E731
    return ProductRow(
        _title(f"linear + {name}", dtype, m, k, n), op, reference, dtype, [(m, k), _weight(n, k), (n,)],
        2 * m * n, 2 * m * n + seen + bias, products=_layer(m, k, n), inference=inference, **rest,
    )  # fmt: skip


def _mlp(name: str, dtype: torch.dtype, m: int, k: int, f: int, **rest: Any) -> ProductRow:
    """Passes over what lies between the layers; the second bias goes with its product, its gradient is a sum."""
    op, reference, others = MLPS[name]
    inputs: list[Input | Shape] = [(m, k), _weight(f, k), (f,), _weight(k, f), (k,)]
    passes = 2 * m * f, 3 * m * f + f + m * k
    if name == "squared_relu":
        inputs = [(m, k), _weight(f, k), _weight(k, f)]
        passes = 2 * m * f, 3 * m * f
    return ProductRow(
        _title(f"mlp {name}", dtype, m, k, f), op, reference, dtype, inputs, *passes,
        products=_together(_layer(m, k, f), _layer(m, f, k)), others=others, **rest,
    )  # fmt: skip


def _residual(dtype: torch.dtype, m: int, k: int, n: int, **rest: Any) -> ProductRow:
    """The epilogue reads the product and the residual; backwards only the bias's gradient is more than products."""
    inputs: list[Input | Shape] = [(m, k), _weight(n, k), (n,), (m, n)]
    return ProductRow(
        _title("linear + residual", dtype, m, k, n), linear_residual, torch_linear_residual, dtype, inputs,
        3 * m * n, m * n + n, products=_layer(m, k, n), **rest,
    )  # fmt: skip


def _swiglu(dtype: torch.dtype, m: int, k: int, f: int, **rest: Any) -> ProductRow:
    """The backward's pass reads both products and the cotangent of what it made of them, and writes two gradients."""
    inputs: list[Input | Shape] = [(m, k), _weight(f, k), _weight(f, k), _weight(k, f)]
    return ProductRow(
        _title("swiglu mlp", dtype, m, k, f), swiglu_mlp, torch_swiglu_mlp, dtype, inputs, 3 * m * f, 5 * m * f,
        products=_together(_layer(m, k, f), _layer(m, k, f), _layer(m, f, k)), others={"Liger": liger_swiglu_mlp},
        **rest,
    )  # fmt: skip


def _scores(dtype: torch.dtype, b: int, m: int, k: int, n: int, **rest: Any) -> ProductRow:
    """The backward's pass reads the result and its cotangent."""
    products = {
        "fwd": (Plain((b, m, k), (b, n, k), "nt"),),
        "bwd": (Plain((b, m, n), (b, n, k)), Plain((b, m, n), (b, m, k), "tn")),
    }
    reference = lambda q, k: torch.softmax((q @ k.mT) * 0.125, -1)  # noqa: E731
    return ProductRow(
        f"softmax(q k^T / 8) {SHORT[dtype]} {b} x {m}x{k}x{n}", attention_scores, reference, dtype,
        [(b, m, k), (b, n, k)], 2 * b * m * n, 3 * b * m * n, products=products, **rest,
    )  # fmt: skip


# M x K x N, as in x [M, K], weight [N, K].
SMALL, MIDDLE, LARGE = (8192, 768, 3072), (16384, 1024, 4096), (8192, 4096, 14336)
ROWS: tuple[ProductRow, ...] = (
    _linear(F16, *SMALL),
    _activated("gelu_tanh", F16, *SMALL, targets=LAYER, autotune=True),
    _activated("silu", F16, *SMALL, targets=LAYER),
    _activated("relu", F16, *SMALL, targets=LAYER, peers=QUICK),
    _activated("gelu", F16, *SMALL, targets=LAYER, peers=QUICK),
    _linear(BF16, *MIDDLE, peers=QUICK),
    _activated("gelu_tanh", BF16, *MIDDLE, targets=LAYER),
    _activated("silu", BF16, *MIDDLE, targets=LAYER, autotune=True),
    _activated("relu", BF16, *MIDDLE, targets=LAYER, peers=QUICK),
    _activated("gelu", BF16, *MIDDLE, targets=LAYER, peers=QUICK),
    _linear(BF16, *LARGE, peers=QUICK),
    _activated("gelu_tanh", BF16, *LARGE, targets=LONG),
    _activated("silu", BF16, *LARGE, targets=LONG, autotune=True),
    _activated("relu", BF16, *LARGE, targets=LONG, peers=QUICK),
    _activated("gelu", BF16, *LARGE, targets=LONG, peers=QUICK),
    _residual(BF16, *MIDDLE),
    _mlp("gelu_tanh", F16, *SMALL),
    _mlp("relu", F16, *SMALL),
    _mlp("squared_relu", BF16, *MIDDLE),
    _swiglu(BF16, *LARGE),
    _scores(BF16, 16, 512, 64, 512),
    _activated("silu", BF16, 1, 4096, 14336),
    _activated("gelu_tanh", F16, 7, 768, 3072),
    _activated("silu", BF16, 4097, 4097, 4097, passes=(*PASSES, "leaves")),
)

"""Linear layers: a product with a weight [out, in], and what follows it in one pass.

``linear_NAME(input, weight, bias, ...)`` is NAME(linear(input, weight, bias), ...), with the activation's own options
as keywords. Its backward is one pass for the pre-activation's gradient, which gives the bias's as well, and a product
for each of the input's and the weight's. ``input`` has any rank from 1 on; ``bias=None`` is none.
"""

from __future__ import annotations

import fusegen as fg

from . import activations as act
from ._options import choose, floats, limited
from ._shapes import shapes

# Those that need nothing but their input.
ACTIVATIONS = (
    act.relu, act.relu6, act.leaky_relu, act.elu, act.celu, act.selu, act.gelu, act.quick_gelu, act.silu, act.mish,
    act.softplus, act.softsign, act.sigmoid, act.tanh, act.hardtanh, act.hardsigmoid, act.hardswish, act.logsigmoid,
    act.tanhshrink, act.softshrink, act.hardshrink, act.squared_relu,
)  # fmt: skip


@fg.op(autocast="half")
def linear(input: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor = None) -> fg.Tensor:
    """input @ weight.mT + bias for a weight [out, in], or [in]. Source: torch.nn.functional.linear.

    float32 is multiplied in TF32 exactly if torch does so: torch.backends.cuda.matmul.allow_tf32.
    """
    return affine("linear", input, weight, bias)


def affine(name: str, input: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor) -> fg.Tensor:
    """linear for the op called ``name``."""
    if weight.ndim not in (1, 2) or not input.ndim:
        raise fg.ShapeError(
            f"{name}, argument weight", given=shapes(input=input, weight=weight),
            expected="an input [..., in] and a weight [out, in] or [in]", fix="fg.ops.matmul takes batches of matrices",
        )  # fmt: skip
    input, weight = floats(name, input), floats(name, weight)
    if bias is None:
        return fg.linear(input, weight)
    if bias.dtype is fg.bool_:
        raise fg.DtypeError(
            f"{name}, argument bias", given="a bool", expected="a tensor of numbers, or None for no bias",
            fix="pass the bias itself",
        )  # fmt: skip
    rank = input.ndim + weight.ndim - 2
    if bias.ndim > min(rank, 1) or (bias.ndim and bias.dims[0] and not (weight if weight.ndim > 1 else input).dims[-2]):
        raise fg.ShapeError(
            f"{name}, argument bias", given=shapes(input=input, weight=weight, bias=bias),
            expected="a bias [out]: one number for each row of the weight",
            fix="linear_residual adds a tensor of the result's shape",
        )  # fmt: skip
    return fg.linear(input, weight, bias)


@limited(p=("a number from 0 to below 1", lambda p, **_: 0 <= p < 1), autocast="half")
def linear_residual(
    input: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor, residual: fg.Tensor, mask: fg.Tensor = None, p: float = 0.0
) -> fg.Tensor:
    """residual + linear(input, weight, bias), or residual + mask linear(...) / (1 - p): after a dropout of rate ``p``.

    ``mask``, of the result's shape, is 1 (or True) for what is kept. What ends the blocks of a transformer.
    Source: Vaswani et al., arXiv 1706.03762.
    """
    made = affine("linear_residual", input, weight, bias)
    return residual + made if mask is None else residual + made * mask * (1 / (1 - p))


@fg.op(autocast="half")
def conv1x1(input: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor = None, *, activation: str = "identity") -> fg.Tensor:
    """activation(sum_c input[n, c, ...] weight[o, c] + bias[o]): a convolution with a window of one element.

    Args:
        input: [N, C, ...]; read as it lies, nothing is unfolded.
        weight: [O, C], or [O, C, 1, ...] as convolutions have it.
        activation: a name of this library, with its default options, or "gelu_tanh".

    Source: torch.nn.functional.conv2d; Lin et al., arXiv 1312.4400.
    """
    if input.ndim < 2 or weight.ndim < 2 or any(weight.dims[2:]):
        raise fg.ShapeError(
            "conv1x1", given=shapes(input=input, weight=weight),
            expected="[N, C, ...] and [O, C], or [O, C, 1, ...]", fix="fg.nn.Conv2dAct takes larger windows",
        )  # fmt: skip
    matrix = fg.sum(weight, tuple(range(2, weight.ndim))) if weight.ndim > 2 else weight
    last = fg.transpose(affine("conv1x1", fg.transpose(input, 1, -1), matrix, bias), 1, -1)
    return by_name("conv1x1", activation)(last)


def by_name(name: str, activation: str) -> fg.Tensor:
    """The activation called so."""
    return NAMED[choose(name, "activation", activation, tuple(NAMED))]


def _then(activation: fg.Tensor) -> fg.Tensor:
    def layer(input: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor = None, **options: fg.Tensor) -> fg.Tensor:
        return activation(affine(layer.__name__, input, weight, bias), **options)

    signature = activation.declaration.signature
    first, *options = (p for p in signature.parameters.values() if p.name != "inplace")
    tensors = [first, first.replace(name="weight"), first.replace(name="bias", default=None)]
    options = [option.replace(kind=option.KEYWORD_ONLY) for option in options]
    layer.__dict__["__signature__"] = signature.replace(parameters=[*tensors, *options])
    layer.__name__ = layer.__qualname__ = f"linear_{activation.name}"
    layer.__doc__ = f"{activation.name}(input @ weight.mT + bias), options as {activation.name}'s."
    return fg.op(layer, autocast="half")


NAMED = {op.name: op for op in ACTIVATIONS} | {
    "gelu_tanh": lambda x: act.gelu(x, "tanh"),
    "identity": lambda x: x,
}

linear_relu = _then(act.relu)
linear_relu6 = _then(act.relu6)
linear_leaky_relu = _then(act.leaky_relu)
linear_elu = _then(act.elu)
linear_celu = _then(act.celu)
linear_selu = _then(act.selu)
linear_gelu = _then(act.gelu)
linear_quick_gelu = _then(act.quick_gelu)
linear_silu = _then(act.silu)
linear_mish = _then(act.mish)
linear_softplus = _then(act.softplus)
linear_softsign = _then(act.softsign)
linear_sigmoid = _then(act.sigmoid)
linear_tanh = _then(act.tanh)
linear_hardtanh = _then(act.hardtanh)
linear_hardsigmoid = _then(act.hardsigmoid)
linear_hardswish = _then(act.hardswish)
linear_logsigmoid = _then(act.logsigmoid)
linear_tanhshrink = _then(act.tanhshrink)
linear_softshrink = _then(act.softshrink)
linear_hardshrink = _then(act.hardshrink)
linear_threshold = _then(act.threshold)
linear_squared_relu = _then(act.squared_relu)

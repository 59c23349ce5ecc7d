"""Activations, with torch's names, arguments and defaults, and torch's answers at kinks, NaN and infinities.

All are elementwise: the result has the input's shape. Options that are numbers are handed over at run time.
"""

from __future__ import annotations

import fusegen as fg

from ._functions import softsign as _softsign
from ._options import among, choose, floats, library_op, limited, numbers

SQRT_HALF = 0.70710678118654752440
SQRT_2_OVER_PI = 0.79788456080286535588
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193352946952


# -- piecewise linear ------------------------------------------------------------------------------------------------


@library_op
def relu(input: fg.Tensor, inplace: bool = False) -> fg.Tensor:
    """max(x, 0); gradient 0 at 0. Integers too. Source: torch.nn.functional.relu."""
    x = numbers("relu", input)
    return fg.where(x <= 0, 0, x)


@library_op
def relu6(input: fg.Tensor, inplace: bool = False) -> fg.Tensor:
    """min(max(x, 0), 6). Source: torch.nn.functional.relu6."""
    x = numbers("relu6", input)
    return fg.where(x <= 0, 0, fg.where(x >= 6, 6, x))


@library_op
def leaky_relu(input: fg.Tensor, negative_slope: float = 0.01, inplace: bool = False) -> fg.Tensor:
    """x where x > 0, else negative_slope x. Source: torch.nn.functional.leaky_relu."""
    x = floats("leaky_relu", input)
    return fg.where(x > 0, x, negative_slope * x)


@fg.op
def prelu(input: fg.Tensor, weight: fg.Tensor) -> fg.Tensor:
    """x where x > 0, else weight x.

    ``weight`` is one number, or one per channel: of size C for an input [N, C, ...]. Source: torch.nn.functional.prelu.
    """
    x = floats("prelu", input)
    single = weight.dims in ((), (None,))
    if weight.ndim > 1 or (x.ndim < 2 and not single):
        raise fg.ShapeError(
            "prelu, argument weight", given=f"a weight of rank {weight.ndim} for an input of rank {x.ndim}",
            expected="one number, or one per channel (dimension 1 of the input)", fix="flatten it: weight.view(-1)",
        )  # fmt: skip
    # One number loses its dimension, so that a 0-d input keeps its shape; channels move to dimension 1.
    weight = fg.sum(weight) if single else fg.expand_dims(weight, tuple(range(1, x.ndim - 1)))
    return fg.where(x > 0, x, weight * x)


@limited(max_val=("at least min_val", lambda min_val, max_val, **_: max_val >= min_val))
def hardtanh(input: fg.Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> fg.Tensor:
    """min(max(x, min_val), max_val); gradient 0 at both ends. Integers too. Source: torch.nn.functional.hardtanh."""
    x = numbers("hardtanh", input)
    low, high = among(min_val, x), among(max_val, x)
    return fg.cast(fg.where(x <= min_val, low, fg.where(x >= max_val, high, x)), x.dtype)


@library_op
def hardsigmoid(input: fg.Tensor, inplace: bool = False) -> fg.Tensor:
    """min(max(x + 3, 0), 6) / 6; gradient 0 at both ends. Source: torch.nn.functional.hardsigmoid."""
    x = floats("hardsigmoid", input)
    inside = (x > -3) & (x < 3)
    return fg.where(inside, x + 3, fg.stop_gradient(fg.clamp(x + 3, 0, 6))) / 6


@library_op
def hardswish(input: fg.Tensor, inplace: bool = False) -> fg.Tensor:
    """x min(max(x + 3, 0), 6) / 6. Source: torch.nn.functional.hardswish; Howard et al., arXiv 1905.02244."""
    x = floats("hardswish", input)
    return fg.where(x <= -3, 0 * x, fg.where(x < 3, x * (x + 3) / 6, x))


@fg.op
def hardshrink(input: fg.Tensor, lambd: float = 0.5) -> fg.Tensor:
    """0 where |x| <= lambd, else x. Source: torch.nn.functional.hardshrink."""
    x = floats("hardshrink", input)
    return fg.where(fg.abs(x) <= lambd, 0, x)


@limited(lambd=("a number that is at least 0", lambda lambd, **_: lambd >= 0))
def softshrink(input: fg.Tensor, lambd: float = 0.5) -> fg.Tensor:
    """0 where |x| <= lambd, else x - sign(x) lambd. Source: torch.nn.functional.softshrink."""
    x = floats("softshrink", input)
    return fg.where(fg.abs(x) <= lambd, 0, x - fg.sign(x) * lambd)


@library_op
def threshold(input: fg.Tensor, threshold: fg.Scalar, value: fg.Scalar, inplace: bool = False) -> fg.Tensor:
    """``value`` where x <= threshold, else x. Integers too. Source: torch.nn.functional.threshold."""
    x = numbers("threshold", input)
    return fg.cast(fg.where(x <= threshold, among(value, x), x), x.dtype)


# -- exponential -----------------------------------------------------------------------------------------------------


@library_op
def elu(input: fg.Tensor, alpha: float = 1.0, inplace: bool = False) -> fg.Tensor:
    """x where x > 0, else alpha (exp(x) - 1). Source: torch.nn.functional.elu; Clevert et al., arXiv 1511.07289."""
    x = floats("elu", input)
    return fg.where(x <= 0, alpha * fg.expm1(x), x)


@limited(alpha=("a number other than 0", lambda alpha, **_: alpha != 0))
def celu(input: fg.Tensor, alpha: float = 1.0, inplace: bool = False) -> fg.Tensor:
    """x where x > 0, else alpha (exp(x / alpha) - 1). Source: torch.nn.functional.celu; Barron, arXiv 1704.07483."""
    x = floats("celu", input)
    return fg.where(x <= 0, alpha * fg.expm1(x / alpha), x)


@library_op
def selu(input: fg.Tensor, inplace: bool = False) -> fg.Tensor:
    """scale elu(x, alpha), alpha = 1.6733, scale = 1.0507. Source: torch.nn.functional.selu; arXiv 1706.02515."""
    x = floats("selu", input)
    return fg.where(x <= 0, SELU_SCALE * SELU_ALPHA * fg.expm1(x), SELU_SCALE * x)


@fg.op(autocast="float32")
def softplus(input: fg.Tensor, beta: float = 1.0, threshold: float = 20.0) -> fg.Tensor:
    """log(1 + exp(beta x)) / beta, and x itself where beta x > threshold. Source: torch.nn.functional.softplus."""
    x = floats("softplus", input)
    return fg.where(beta * x > threshold, x, fg.softplus(beta * x) / beta)


@fg.op
def logsigmoid(input: fg.Tensor) -> fg.Tensor:
    """log(1 / (1 + exp(-x))). Source: torch.nn.functional.logsigmoid."""
    return fg.logsigmoid(floats("logsigmoid", input))


@fg.op
def sigmoid(input: fg.Tensor) -> fg.Tensor:
    """1 / (1 + exp(-x)). Integers become float32. Source: torch.sigmoid."""
    return fg.sigmoid(input)


@fg.op
def tanh(input: fg.Tensor) -> fg.Tensor:
    """(exp(x) - exp(-x)) / (exp(x) + exp(-x)). Integers become float32. Source: torch.tanh."""
    return fg.tanh(input)


@fg.op
def tanhshrink(input: fg.Tensor) -> fg.Tensor:
    """x - tanh(x). Integers become float32. Source: torch.nn.functional.tanhshrink."""
    x = numbers("tanhshrink", input)
    return x - fg.tanh(x)


@fg.op
def softsign(input: fg.Tensor) -> fg.Tensor:
    """x / (1 + |x|). Integers become float32. Source: torch.nn.functional.softsign."""
    return _softsign(numbers("softsign", input))


# -- smooth gates on the input itself --------------------------------------------------------------------------------


@fg.op
def gelu(input: fg.Tensor, approximate: str = "none") -> fg.Tensor:
    """x Phi(x), Phi the normal distribution: two different functions.

    ``approximate="none"``: x erfc(-x / sqrt(2)) / 2, which keeps its digits in the negative tail, where 1 + erf(x)
    cancels. ``approximate="tanh"``: x (1 + tanh(u)) / 2 = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3); from
    |x| = 32 on that sigmoid is 0 or 1 whatever the cube. Source: torch.nn.functional.gelu; arXiv 1606.08415.
    """
    x = floats("gelu", input)
    if choose("gelu", "approximate", approximate, ("none", "tanh")) == "none":
        return 0.5 * x * fg.erfc(-SQRT_HALF * x)
    near = fg.clamp(x, -32, 32)
    return x * fg.sigmoid(2 * SQRT_2_OVER_PI * (near + 0.044715 * near**3))


@fg.op
def quick_gelu(input: fg.Tensor) -> fg.Tensor:
    """x sigmoid(1.702 x). Source: Hendrycks and Gimpel, arXiv 1606.08415; used in CLIP."""
    x = floats("quick_gelu", input)
    return x * fg.sigmoid(1.702 * x)


@library_op
def silu(input: fg.Tensor, inplace: bool = False) -> fg.Tensor:
    """x sigmoid(x). Source: torch.nn.functional.silu; also called swish, arXiv 1710.05941."""
    x = floats("silu", input)
    return x * fg.sigmoid(x)


@library_op
def mish(input: fg.Tensor, inplace: bool = False) -> fg.Tensor:
    """x tanh(log(1 + exp(x))). Source: torch.nn.functional.mish; Misra, arXiv 1908.08681."""
    x = floats("mish", input)
    return x * fg.tanh(fg.softplus(x))


@fg.op
def squared_relu(input: fg.Tensor) -> fg.Tensor:
    """max(x, 0)^2. Source: So et al., Primer, arXiv 2109.08668."""
    x = numbers("squared_relu", input)
    return fg.where(x <= 0, 0, x * x)


@fg.op
def crelu(input: fg.Tensor, dim: int = 1) -> fg.Tensor:
    """[max(x, 0), max(-x, 0)] side by side along ``dim``, which doubles. Source: Shang et al., arXiv 1603.05201."""
    x = numbers("crelu", input)
    return fg.concat([fg.where(x <= 0, 0, x), fg.where(x >= 0, 0, -x)], dim)


# With a result in the shape of their one tensor: bias_NAME, residual_bias_NAME (bias) and linear_NAME (linear) follow.
ELEMENTWISE: tuple[fg.FusedOp[..., fg.Tensor], ...] = (
    relu, relu6, leaky_relu, elu, celu, selu, gelu, quick_gelu, silu, mish, softplus, softsign, sigmoid, tanh, hardtanh,
    hardsigmoid, hardswish, logsigmoid, tanhshrink, softshrink, hardshrink, threshold, squared_relu,
)  # fmt: skip

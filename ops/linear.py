"""Linear layers: a product with a weight [out, in], and what follows it in one pass.

``linear_NAME(input, weight, bias, ...)`` is NAME(linear(input, weight, bias), ...), with the activation's own options
as keywords. Its backward is one pass for the pre-activation's gradient, which gives the bias's as well, and a product
for each of the input's and the weight's. ``input`` has any rank from 1 on; ``bias=None`` is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusegen as fg

from . import activations as act
from ._options import LibraryOp, choose, floats, limited
from ._shapes import needed, shapes, size


@fg.op(autocast="half")
def linear(input: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor = None) -> fg.Tensor:
    """input @ weight.mT + bias for a weight [out, in], or [in]. Source: torch.nn.functional.linear.

    float32 is multiplied in TF32 exactly if torch does so: torch.backends.cuda.matmul.allow_tf32.
    """
    return affine("linear", input=input, weight=weight, bias=bias)


def affine(op: str, **named: Any) -> fg.Tensor:
    """linear for ``op``, of its input, weight and bias: in this order, by the names that messages call them."""
    (name, input), (weight_name, weight), (bias_name, bias) = named.items()
    factors = {name: input, weight_name: weight}
    needed(op, **factors)
    if weight.ndim not in (1, 2) or not input.ndim:
        raise fg.ShapeError(
            f"{op}, argument {weight_name}", given=shapes(**factors),
            expected="an input [..., in] and a weight [out, in] or [in]", fix="fg.ops.matmul takes batches of matrices",
        )  # fmt: skip
    _check_dtypes(op, shapes(**factors), factors)
    inner = size(input.dims[-1])
    if size(weight.dims[-1]) != inner:
        turned = weight.ndim == 2 and size(weight.dims[0]) == inner
        raise fg.ShapeError(
            f"{op}, argument {weight_name}", given=shapes(**factors), expected=f"a weight [out, in] with in = {inner}",
            fix="transpose it with .mT if it is [in, out]" if turned else "pass a weight of that shape",
        )  # fmt: skip
    if bias is None:
        return fg.linear(input, weight)
    _check_bias(op, (*input.dims[:-1], *weight.dims[:-1]), **{weight_name: weight, bias_name: bias})
    return fg.linear(input, weight, bias)


def _check_bias(op: str, result: tuple[Any, ...], **named: Any) -> None:
    """A bias has a number for each row of the weight: along the last of the ``result``'s dimensions."""
    name, bias = list(named.items())[1]
    where = f"{op}, argument {name}"
    if bias.dtype is fg.bool_:
        raise fg.DtypeError(
            where, given="a bool", expected="a tensor of numbers, or None for no bias", fix="pass the bias itself"
        )
    if bias.ndim > min(len(result), 1):
        raise fg.ShapeError(
            where, given=shapes(**named), expected="a bias [out]: one number for each row of the weight",
            fix="add a tensor of the result's shape behind it, as linear_residual does",
        )  # fmt: skip
    if bias.ndim and size(bias.dims[0]) not in (1, size(result[-1])):
        raise fg.ShapeError(
            where, given=shapes(**named), expected=f"a bias [out] with out = {size(result[-1])}",
            fix="pass one number for each row of the weight",
        )  # fmt: skip


def _check_dtypes(op: str, given: str, factors: dict[str, Any]) -> None:
    """Both factors of a product are of one float dtype; ``given``: their shapes as the caller knows them."""
    left, right = (floats(f"{op}, argument {name}", factor).dtype for name, factor in factors.items())
    if left is not right:
        raise fg.DtypeError(
            f"{op}, matmul", given=f"{given} of {left} and {right}", expected="one dtype (as torch)",
            fix="cast one with .to()",
        )  # fmt: skip


@limited(p=("a number from 0 to below 1", lambda p, **_: 0 <= p < 1), autocast="half")
def linear_residual(
    input: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor, residual: fg.Tensor, mask: fg.Tensor = None, p: float = 0.0
) -> fg.Tensor:
    """residual + linear(input, weight, bias), or residual + mask linear(...) / (1 - p): after a dropout of rate ``p``.

    ``mask``, of the result's shape, is 1 (or True) for what is kept. What ends the blocks of a transformer.
    Source: Vaswani et al., arXiv 1706.03762.
    """
    made = affine("linear_residual", input=input, weight=weight, bias=bias)
    return residual + made if mask is None else residual + made * mask * (1 / (1 - p))


class Convolution(LibraryOp):
    """An op on channels, dimension 1 of its input and its result. Where those lie last in memory (torch's
    channels_last), so do the result's, and those of the input's gradient.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        input, *others = args or (kwargs.get("input"),)
        if "out" in kwargs or fg.is_symbolic(args, kwargs) or not _channels_are_last(input):
            return super().__call__(*args, **kwargs)
        options = kwargs if args else {name: value for name, value in kwargs.items() if name != "input"}
        return _of_last(input.movedim(1, -1), *others, **options).movedim(-1, 1)


def _channels_are_last(input: Any) -> bool:
    """Whether this is an image of torch's that lies in memory channels_last, and not row-major as well."""
    if not hasattr(input, "is_contiguous") or input.ndim not in (4, 5):
        return False
    return not input.is_contiguous() and bool(input.movedim(1, -1).is_contiguous())


@fg.op(name="conv1x1_channels_last", autocast="half")
def _of_last(input: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor = None, *, activation: str = "identity") -> fg.Tensor:
    """conv1x1 of an input [N, ..., C]. Source: conv1x1."""
    matrix = _matrix((input.dims[0], input.dims[-1], *input.dims[1:-1]), input, weight, bias)
    return by_name("conv1x1", activation)(affine("conv1x1", input=input, weight=matrix, bias=bias))


@limited(kind=Convolution, autocast="half")
def conv1x1(input: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor = None, *, activation: str = "identity") -> fg.Tensor:
    """activation(sum_c input[n, c, ...] weight[o, c] + bias[o]): a convolution with a window of one element.

    Args:
        input: [N, C, ...]; read as it lies, nothing is unfolded. Images that are channels_last have such results.
        weight: [O, C], or [O, C, 1, ...] of the input's rank, as convolutions have it.
        activation: a name of this library, with its default options, or "gelu_tanh".

    Source: torch.nn.functional.conv2d; Lin et al., arXiv 1312.4400.
    """
    needed("conv1x1", input=input)
    matrix = _matrix(input.dims, input, weight, bias)
    last = fg.transpose(affine("conv1x1", input=fg.transpose(input, 1, -1), weight=matrix, bias=bias), 1, -1)
    return by_name("conv1x1", activation)(last)


def _matrix(dims: tuple[Any, ...], input: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor | None) -> fg.Tensor:
    """The weight as [O, C], if all fits an input whose dimensions are ``dims`` to the caller: [N, C, ...]."""
    needed("conv1x1", weight=weight)
    given = f"input{list(map(size, dims))} and {shapes(weight=weight)}"
    if len(dims) < 2 or weight.ndim < 2 or any(weight.dims[2:]):
        raise fg.ShapeError(
            "conv1x1", given=given, expected="[N, C, ...] and [O, C], or [O, C, 1, ...]",
            fix="fg.nn.Conv2dAct takes larger windows",
        )  # fmt: skip
    if weight.ndim not in (2, len(dims)):
        raise fg.ShapeError(
            "conv1x1, argument weight", given=given, expected="a weight of the input's rank, or [O, C]",
            fix="pass the weight as [O, C]; give an image without a batch one: image[None]",
        )  # fmt: skip
    _check_dtypes("conv1x1", given, {"input": input, "weight": weight})
    if size(weight.dims[1]) != size(dims[1]):
        raise fg.ShapeError(
            "conv1x1, argument weight", given=given,
            expected=f"a weight [O, C] with C = {size(dims[1])}: the input's dimension 1 are its channels",
            fix="pass a weight of that shape, or move channels that come last: input.movedim(-1, 1)",
        )  # fmt: skip
    if bias is not None:
        _check_bias("conv1x1", weight.dims[:1], weight=weight, bias=bias)
    return fg.sum(weight, tuple(range(2, weight.ndim))) if weight.ndim > 2 else weight


def by_name(name: str, activation: str) -> Callable[[fg.Tensor], fg.Tensor]:
    """The activation called so."""
    return NAMED[choose(name, "activation", activation, tuple(NAMED))]


def _then(activation: fg.FusedOp[..., fg.Tensor]) -> Any:
    def layer(input: fg.Tensor, weight: fg.Tensor, bias: fg.Tensor = None, **options: fg.Tensor) -> fg.Tensor:
        return activation(affine(layer.__name__, input=input, weight=weight, bias=bias), **options)

    signature = activation.declaration.signature
    first, *options = (p for p in signature.parameters.values() if p.name != "inplace")
    tensors = [first, first.replace(name="weight"), first.replace(name="bias", default=None)]
    options = [option.replace(kind=option.KEYWORD_ONLY) for option in options]
    layer.__dict__["__signature__"] = signature.replace(parameters=[*tensors, *options])
    layer.__name__ = layer.__qualname__ = f"linear_{activation.name}"
    layer.__doc__ = f"{activation.name}(input @ weight.mT + bias), options as {activation.name}'s."
    return limited(autocast="half", like=activation)(layer)


NAMED: dict[str, Callable[[fg.Tensor], fg.Tensor]] = {
    # Those that need nothing but their input.
    **{op.name: op for op in act.ELEMENTWISE if op is not act.threshold},
    "gelu_tanh": lambda x: act.gelu(x, "tanh"),
    "identity": lambda x: x,
}

# By name, as `fg.ops` has them.
FUSED = {op.name: op for op in map(_then, act.ELEMENTWISE)}
globals().update(FUSED)  # an op is found where it says it is from

"""Layers of several products: what lies between two of them is one pass, which reads and writes each number once.

Weights are [out, in], as torch.nn.Linear has them; biases may be None.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

from . import gated
from ._options import limited
from .linear import affine, by_name


@fg.op(autocast="half")
def mlp(
    input: fg.Tensor, up: fg.Tensor, up_bias: fg.Tensor, down: fg.Tensor, down_bias: fg.Tensor,
    activation: str = "gelu",
) -> fg.Tensor:  # fmt: skip
    """linear(activation(linear(input, up, up_bias)), down, down_bias): the block of a transformer.

    ``activation`` is a name of this library, with its default options, or "gelu_tanh".
    Source: Vaswani et al., arXiv 1706.03762.
    """
    hidden = by_name("mlp", activation)(affine("mlp", input=input, up=up, up_bias=up_bias))
    return affine("mlp", hidden=hidden, down=down, down_bias=down_bias)


def _gated(gate_op: Any) -> Any:
    def layer(
        input: fg.Tensor, gate: fg.Tensor, up: fg.Tensor, down: fg.Tensor, gate_bias: fg.Tensor = None,
        up_bias: fg.Tensor = None, down_bias: fg.Tensor = None, **options: fg.Tensor,
    ) -> fg.Tensor:  # fmt: skip
        name = layer.__name__
        hidden = gate_op(
            affine(name, input=input, gate=gate, gate_bias=gate_bias),
            affine(name, input=input, up=up, up_bias=up_bias), **options,
        )  # fmt: skip
        return affine(name, hidden=hidden, down=down, down_bias=down_bias)

    signature = gate_op.declaration.signature
    first, _, *options = signature.parameters.values()
    names = ["input", "gate", "up", "down"]
    tensors = [first.replace(name=name) for name in names]
    tensors += [first.replace(name=f"{name}_bias", default=None) for name in names[1:]]
    options = [option.replace(kind=option.KEYWORD_ONLY) for option in options]
    layer.__dict__["__signature__"] = signature.replace(parameters=[*tensors, *options])
    layer.__name__ = layer.__qualname__ = f"{gate_op.name}_mlp"
    layer.__doc__ = (
        f"linear({gate_op.name}(linear(input, gate), linear(input, up)), down), options as {gate_op.name}'s.\n\n"
        "    Biases follow the weights that they belong to. Source: Shazeer, arXiv 2002.05202."
    )
    return limited(autocast="half", like=gate_op)(layer)


swiglu_mlp = _gated(gated.swiglu)
geglu_mlp = _gated(gated.geglu)
reglu_mlp = _gated(gated.reglu)

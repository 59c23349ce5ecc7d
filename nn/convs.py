"""Convolutions followed by an activation: torch's convolution without its bias, and one pass for all that follows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import fusegen as fg

from ._forward import fused


class _ConvAct:
    """What the three have in common; ``activation`` is a name of torch.nn.functional, ``options`` its keywords."""

    def __init__(
        self, *arguments: Any, activation: str = "relu", options: dict[str, Any] | None = None, **others: Any
    ) -> None:
        super().__init__(*arguments, **others)
        names = [name.removeprefix("bias_") for name in fg.ops.__all__ if name.startswith("bias_")]
        known = sorted(name for name in names if hasattr(F, name))
        if activation not in known:
            raise fg.DeclarationError(
                f"{type(self).__name__}, option activation", given=repr(activation), expected=", ".join(known),
                fix="choose one of these",
            )  # fmt: skip
        self.activation, self.options = activation, dict(options or {})

    def extra_repr(self) -> str:
        own: str = super().extra_repr()  # type: ignore[misc]
        return f"{own}, activation={self.activation!r}, options={self.options}"


def _theirs(self: Any, input: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
    made = self._conv_forward(input, self.weight, self.bias)
    return getattr(F, self.activation)(made if residual is None else made + residual, **self.options)


def _ours(self: Any, input: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
    made, channels = self._conv_forward(input, self.weight, None), 1 - self.weight.ndim
    if residual is None:
        return getattr(fg.ops, f"bias_{self.activation}")(made, self.bias, dim=channels, **self.options)
    op = getattr(fg.ops, f"residual_bias_{self.activation}")
    return op(made, self.bias, residual, dim=channels, **self.options)


def _made(base: type[nn.Module]) -> type[nn.Module]:
    name = f"{base.__name__}Act"
    made = type(name, (_ConvAct, base), {"forward": fused(_ours, _theirs), "__module__": "fusegen.nn"})
    made.__doc__ = (
        f"activation(conv(input) + bias + residual) for torch.nn.{base.__name__}'s arguments, parameters, state.\n\n"
        "``residual``, the second argument of a call, may be left out. The convolution is torch's; what follows it is\n"
        'one pass, and so is its backward with the bias\'s gradient. ``activation`` is a name such as "silu", and\n'
        "``options`` are its keywords."
    )
    return made


CONVS = tuple(map(_made, (nn.Conv1d, nn.Conv2d, nn.Conv3d)))

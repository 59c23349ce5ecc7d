"""A line of the table: what is computed, by whom, on what, and how many bytes it must move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

import fusegen as fg
from fusegen.bench.baselines import NAMES
from fusegen.core import dtypes
from fusegen.inspect.passes import Pass, shown_passes

Shape = tuple[int, ...]
F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
SHORT = {F32: "f32", F64: "f64", F16: "fp16", BF16: "bf16"}
# Peers of the sizes that nobody tunes for: those that compile nothing per shape that takes seconds.
QUICK = ("torch", "Liger", "QuACK")


@dataclass(frozen=True)
class Input:
    """A tensor: normal numbers that require a gradient, unless something else is said.

    Args:
        classes: if not 0, int64 indices below it instead.
        fixed: no gradient is wanted.
        scale: standard deviation of the numbers.
    """

    shape: Shape
    classes: int = 0
    fixed: bool = False
    scale: float = 1.0

    def tensor(self, dtype: torch.dtype, device: str) -> torch.Tensor:
        """Random, of the row's dtype unless it holds indices."""
        if self.classes:
            return torch.randint(0, self.classes, self.shape, device=device)
        numbers = torch.randn(self.shape, device=device).mul_(self.scale)
        return numbers.to(dtype).requires_grad_(not self.fixed)


@dataclass(frozen=True)
class Row:
    """One line.

    Args:
        title: as printed.
        op: fusegen's.
        reference: the same function in torch, of the tensors alone.
        dtype, inputs: the tensors, in the op's order; a bare shape stands for ``Input(shape)``.
        forward, backward: elements of the dtype that each pass must move: inputs once, outputs once.
        options: the op's other arguments, by name.
        passes: which passes the table has.
        peers: who is measured beside fusegen.
    """

    title: str
    op: fg.FusedOp
    reference: Callable[..., Any]
    dtype: torch.dtype
    inputs: Sequence[Input | Shape]
    forward: int
    backward: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    passes: tuple[str, ...] = ("fwd", "bwd", "step")
    peers: tuple[str, ...] = NAMES

    def floor_bytes(self, which: str) -> int:
        """Fewest bytes of a pass; a training step is both."""
        elements = {"fwd": self.forward, "bwd": self.backward, "step": self.forward + self.backward}[which]
        return int(elements * self.dtype.itemsize)

    @property
    def whole_passes(self) -> list[Pass]:
        """Its forward, and its backward where that computes the gradient of every input."""
        fixed = any(isinstance(given, Input) and given.fixed for given in self.inputs)
        return shown_passes(self.op, (), self.specs)[: 1 if fixed else None]

    @property
    def specs(self) -> dict[str, Any]:
        """Its op's arguments, tensors by their shape and dtype."""
        dtype, found = dtypes.BY_NAME[str(self.dtype).removeprefix("torch.")], dict[str, Any](self.options)
        for name, given in zip(self.names, self.inputs, strict=True):
            tensor = given if isinstance(given, Input) else Input(given)
            found[name] = fg.TensorSpec(dtypes.int64 if tensor.classes else dtype, tensor.shape)
        return found

    @property
    def names(self) -> list[str]:
        """Which of the op's parameters each tensor is."""
        free = [name for name in self.op.declaration.signature.parameters if name not in self.options]
        return free[: len(self.inputs)]

    def tensors(self, device: str) -> list[torch.Tensor]:
        """Its inputs, the same in every run."""
        torch.manual_seed(0)
        return [(i if isinstance(i, Input) else Input(i)).tensor(self.dtype, device) for i in self.inputs]


def count(*shapes: Shape) -> int:
    """Elements of all of them together."""
    return sum(prod(shape) for shape in shapes)

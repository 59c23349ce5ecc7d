"""A line of the table of matrix products: the plain products that it contains are what it is measured against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tools.bench.row import Row, Shape

# What the forward costs where nothing is differentiated; where it keeps what the backward needs; then as elsewhere.
PASSES = ("fwd", "train", "bwd", "step")


@dataclass(frozen=True)
class Plain:
    """A plain product, by torch's own routine.

    Args:
        left, right: shapes of the sides as they lie in memory.
        layout: for each side "n", as it lies, or "t", transposed.
    """

    left: Shape
    right: Shape
    layout: str = "nn"

    @property
    def operations(self) -> int:
        """Multiplications."""
        *batch, a, b = self.left
        m, k = (a, b) if self.layout[0] == "n" else (b, a)
        n = self.right[-1] if self.layout[1] == "n" else self.right[-2]
        return torch.Size(batch).numel() * m * n * k

    def sides(self, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
        """Random factors."""
        found = [torch.randn(shape, device=device).to(dtype) for shape in (self.left, self.right)]
        return [side.mT if turn == "t" else side for side, turn in zip(found, self.layout, strict=True)]


@dataclass(frozen=True)
class Target:
    """What a pass may cost: so many times its plain products, and so many passes over memory."""

    products: float
    passes: float = 0.0


# Where nothing else is asked for: the backward is its products, and one pass at the speed that elementwise passes have.
ONE_PASS = {"bwd": Target(1.0, 1.1)}


@dataclass(frozen=True, kw_only=True)
class ProductRow(Row):
    """One line. ``forward`` and ``backward``, of Row: elements that the rest must move in a single pass over memory.

    Args:
        products: the plain products of the forward ("fwd") and of the backward ("bwd").
        targets: what a pass may cost, by pass.
        others: the same by kernels of others, by their name; whatever they need is imported when they are called.
        inference: the same of those that have no backward.
        autotune: worth the minutes that torch.compile takes to look for the best kernel.
    """

    products: Mapping[str, tuple[Plain, ...]]
    targets: Mapping[str, Target] = field(default_factory=lambda: ONE_PASS)
    others: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    inference: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    autotune: bool = False
    passes: tuple[str, ...] = PASSES

    def target(self, which: str, products: Mapping[str, float], bandwidth: float) -> float | None:
        """Microseconds that a pass may take; None where nobody said. A training step may take what its parts may.

        Args:
            products: microseconds of the plain products by pass.
            bandwidth: bytes a microsecond.
        """
        if which == "step":
            forward, backward = (self.target(part, products, bandwidth) for part in ("train", "bwd"))
            return None if forward is None or backward is None else forward + backward
        if which not in self.targets:
            return None
        rest = self.floor_bytes("fwd" if which == "train" else which) / bandwidth
        return self.targets[which].products * products[which] + self.targets[which].passes * rest

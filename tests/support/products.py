"""What tests of ops with matrix products share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from fusegen.fuse.products import chain
from fusegen.fuse.steps import Product
from fusegen.inspect import passes as inspect

Function = Callable[..., Any]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def rand(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = True) -> torch.Tensor:
    """In [-0.5, 0.5), as the pull request draws."""
    return (torch.rand(shape, dtype=torch.float64) - 0.5).to(dtype).requires_grad_(grad)


def halved(*shape: int) -> torch.Tensor:
    """Normal numbers of standard deviation one half."""
    return torch.randn(*shape, dtype=torch.float64) / 2


def layer(act: Function, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    result: torch.Tensor = act(F.linear(x, w, b))
    return result


def mlp(act: Function, x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    """Two layers, biases of which may be None."""
    return F.linear(layer(act, x, w, b), v, c)


def gated(act: Function, x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    """A layer times another, biases of which may be None."""
    return layer(act, x, w, b) * F.linear(x, v, c)


def steps(function: Any, arguments: Sequence[Any], which: str = "forward") -> list[str]:
    """The steps of an op: "@" for a product, else the results of a pass."""
    passes = inspect.passes(function, tuple(arguments), {}, "backward")
    whole = chain(passes[which == "backward"].op)
    assert whole is not None
    return ["@" if isinstance(s, Product) else " ".join(o.name for o in s.outputs) for s in whole.steps]

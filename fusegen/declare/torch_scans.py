"""torch's running sums, products and extrema (see declare/scans)."""

from __future__ import annotations

from typing import Any

from fusegen.core.errors import DeclarationError
from fusegen.declare import scans
from fusegen.declare.torch_functions import torchs
from fusegen.declare.value import Like, Value, current, lift, shape_of


def _along(name: str, input: Like, dim: int | None) -> tuple[Value, int]:
    """NumPy's scans take a tensor as flat where no axis is said."""
    value = lift(input)
    if dim is None and value.ndim > 1:
        raise DeclarationError(
            f"{current().where}, {name}", given=f"no axis of {shape_of(value)}",
            expected="an axis: a tensor is not seen as flat here", fix="say axis=, or flatten first: fg.flatten(x)",
        )  # fmt: skip
    return value, dim or 0


@torchs("cumsum", numpy=["cumsum"])
def cumsum(input: Like, dim: int | None = None, *, dtype: Any = None) -> Value:
    """``fg.cumsum(x, axis)``."""
    return scans.cumsum(*_along("cumsum", input, dim), dtype=dtype)


@torchs("cumprod", numpy=["cumprod"])
def cumprod(input: Like, dim: int | None = None, *, dtype: Any = None) -> Value:
    """``fg.cumprod(x, axis)``."""
    return scans.cumprod(*_along("cumprod", input, dim), dtype=dtype)


@torchs("cummax")
def cummax(input: Like, dim: int) -> scans.Cumulative:
    """``fg.cummax(x, axis)``: ``values`` and ``indices``."""
    return scans.cummax(input, dim)


@torchs("cummin")
def cummin(input: Like, dim: int) -> scans.Cumulative:
    """``fg.cummin(x, axis)``: ``values`` and ``indices``."""
    return scans.cummin(input, dim)


@torchs("logcumsumexp")
def logcumsumexp(input: Like, dim: int) -> Value:
    """``fg.logcumsumexp(x, axis)``."""
    return scans.logcumsumexp(input, dim)

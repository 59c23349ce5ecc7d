"""What scans mean, by torch's own differentiable functions (see declare/reference)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusegen.core.dtypes import BY_NAME
from fusegen.core.scans import LAST, LOGADDEXP, PLACES, SEGMENTS, How, neutral

if TYPE_CHECKING:
    import torch


def scanned(t: Any, how: How, values: Sequence[torch.Tensor], dim: int) -> Any:
    """All partial results of values of one shape along a dimension."""
    if how.reverse:
        values = [value.flip(dim) for value in values]
    size = values[0].shape[dim]
    found = _inclusive(t, how.combine, values, dim) if size else values[-1]
    if how.combine in PLACES:
        found = size - 1 - found.long() if how.reverse else found.long()
    if how.exclusive:
        start = neutral(how.combine, BY_NAME[str(found.dtype).removeprefix("torch.")])
        first = t.full_like(found.narrow(dim, 0, min(found.shape[dim], 1)), start)
        found = t.cat([first, found.narrow(dim, 0, max(found.shape[dim] - 1, 0))], dim)
    return found.flip(dim) if how.reverse else found


def _inclusive(t: Any, combine: str, values: Sequence[torch.Tensor], dim: int) -> Any:
    if combine == "sum":
        return t.cumsum(values[0], dim, dtype=values[0].dtype)
    if combine == "prod":
        return t.cumprod(values[0], dim, dtype=values[0].dtype)
    if combine == LOGADDEXP:
        return _logcumsumexp(t, values[0], dim)
    if combine in ("max", "min"):
        return (t.cummax if combine == "max" else t.cummin)(values[0], dim).values
    if combine in PLACES:
        return (t.cummax if combine == "argmax" else t.cummin)(values[0], dim).indices
    if combine == LAST:
        return values[0]
    return _recurrence(t, combine, values[0], values[1], dim)


def _logcumsumexp(t: Any, term: torch.Tensor, dim: int) -> Any:
    """By doubling, as recurrences below: the forward mode of torch's own loses half of the digits, or all."""
    size, distance = term.shape[dim], 1
    while distance < size:
        a, b = term.narrow(dim, distance, size - distance), term.narrow(dim, 0, size - distance)
        none = (a == -t.inf) & (b == -t.inf)  # whose derivative would be NaN
        both = t.where(none, -t.inf, t.logaddexp(t.where(none, 0, a), t.where(none, 0, b)))
        term = t.cat([term.narrow(dim, 0, distance), both], dim)
        distance *= 2
    return term


def _recurrence(t: Any, combine: str, factor: torch.Tensor, term: torch.Tensor, dim: int) -> Any:
    """A recurrence by doubling: in each round an element takes in as many before it as it has taken in so far."""
    size, distance = term.shape[dim], 1
    while distance < size:
        kept, rest = term.narrow(dim, 0, distance), size - distance
        before = term.narrow(dim, 0, rest)
        goes_on = factor.narrow(dim, distance, rest)
        added = t.where(goes_on, before, 0) if combine == SEGMENTS else goes_on * before
        term = t.cat([kept, term.narrow(dim, distance, rest) + added], dim)
        both = goes_on & factor.narrow(dim, 0, rest) if combine == SEGMENTS else goes_on * factor.narrow(dim, 0, rest)
        factor = t.cat([factor.narrow(dim, 0, distance), both], dim)
        distance *= 2
    return term

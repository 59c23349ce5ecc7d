"""Rows added or combined at places, with torch's routines: rounded once, nothing outside the result.

What floats would add up to in one order or another is not asked for here on a GPU (run/scatter_step): sums of integers
and bools, and extrema, are the same in any.
"""

from __future__ import annotations

from typing import Any

from fusegen.core.dtypes import BY_NAME
from fusegen.core.one_term import start


def scatter_add(out: Any, places: Any, updates: Any, batch: int, onto: bool) -> None:
    """``out[b, places[b, n], r] += updates[b, n, r]``, from zeros unless ``onto``.

    Places out of range are left out.

    Args:
        batch: how many dimensions b has; n and r have those that are left of places and of ``out``.
    """
    import torch

    rows, columns, size = out.shape[:batch].numel(), out.shape[batch + 1 :].numel(), out.shape[batch]
    places = places.reshape(rows, places.shape[batch:].numel()).long()
    inside = ((places >= 0) & (places < size)).flatten()
    places = (places + size * torch.arange(rows, device=out.device)[:, None]).flatten()
    updates = updates.reshape(len(places), columns)
    wide = out.dtype if out.dtype.itemsize == 8 else torch.float32 if out.dtype.is_floating_point else torch.int64
    found = torch.zeros(rows * size + 1, columns, dtype=wide, device=out.device)
    places = torch.where(inside, places, rows * size)  # the last row takes what has no place
    found.index_add_(0, places, updates.to(wide))
    found = found[:-1].reshape(out.shape)
    out.copy_(out + found if onto else found)


def scatter_reduce(out: Any, places: Any, updates: Any, batch: int, kind: str) -> None:
    """``out[b, place, r]`` is the product, maximum or minimum of the updates for it; of none what that starts from.

    Places out of range are left out.

    Args:
        batch: as `scatter_add`.
        kind: "prod", "max" or "min".
    """
    import torch

    rows, columns, size = out.shape[:batch].numel(), out.shape[batch + 1 :].numel(), out.shape[batch]
    places = places.reshape(rows, places.shape[batch:].numel()).long()
    inside = (places >= 0) & (places < size)
    places = torch.where(inside, places + size * torch.arange(rows, device=out.device)[:, None], rows * size).flatten()
    wide = out.dtype if out.dtype.itemsize == 8 else torch.float32 if out.dtype.is_floating_point else torch.int64
    begin = start(kind, BY_NAME[str(wide).removeprefix("torch.")])
    updates = updates.reshape(len(places), columns).to(wide)
    found = torch.full((rows * size + 1, columns), begin, dtype=wide, device=out.device)
    how = {"prod": "prod", "max": "amax", "min": "amin"}[kind]
    found.scatter_reduce_(0, places[:, None].expand_as(updates), updates, how)
    found = found[:-1].reshape(out.shape)
    out.copy_(found + 0.0 if wide.is_floating_point else found)  # of both zeros either may be the maximum

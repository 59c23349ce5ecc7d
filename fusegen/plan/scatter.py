"""Rows added or combined at places, with torch's routines: in one order, rounded once, nothing outside the result."""

from __future__ import annotations

from typing import Any

from fusegen.core.dtypes import BY_NAME
from fusegen.core.one_term import start


def scatter_add(out: Any, places: Any, updates: Any, batch: int, onto: bool) -> None:
    """``out[b, places[b, n], r] += updates[b, n, r]``, from zeros unless ``onto``.

    Places out of range are left out. On a GPU places are sorted, so that the bits are the same each time: additions in
    any order (torch.Tensor.index_add_) are not.

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
    sorts = out.device.type == "cuda"
    if sorts and not onto and 2 * len(places) <= rows * size and out.is_contiguous():
        _few(out.view(rows * size, columns), places, inside, updates, wide)
        return
    found = torch.zeros(rows * size + 1, columns, dtype=wide, device=out.device)
    places = torch.where(inside, places, rows * size)  # the last row takes what has no place
    if sorts:
        found.index_put_((places,), updates.to(wide), accumulate=True)
    else:
        found.index_add_(0, places, updates.to(wide))
    found = found[:-1].reshape(out.shape)
    out.copy_(out + found if onto else found)


def _few(out: Any, places: Any, inside: Any, updates: Any, wide: Any) -> None:
    """Fewer rows than the result has: only those that are added to are held in the wide dtype."""
    import torch

    out.zero_()
    if not len(places):
        return
    places, order = torch.sort(torch.where(inside, places, 0), stable=True)  # zeros are added where there is no place
    updates = torch.where(inside[:, None], updates, 0)[order]
    number = torch.zeros_like(places)
    torch.cumsum(places[1:] != places[:-1], 0, out=number[1:])
    sums = torch.zeros(updates.shape, dtype=wide, device=out.device)
    sums.index_put_((number,), updates.to(wide), accumulate=True)
    out.index_put_((places,), sums[number].to(out.dtype))  # who writes a row twice writes the same


def _products(places: Any, updates: Any, count: int) -> Any:
    """For each of so many places the product of the updates for it, in their order."""
    import torch

    order = torch.sort(places, stable=True).indices
    lengths = torch.zeros(count, dtype=torch.int64, device=places.device)
    lengths.scatter_add_(0, places, torch.ones_like(places))  # torch.bincount would wait for the device
    return torch.segment_reduce(updates[order], "prod", lengths=lengths, initial=1, unsafe=True)


def scatter_reduce(out: Any, places: Any, updates: Any, batch: int, kind: str) -> None:
    """``out[b, place, r]`` is the product, maximum or minimum of the updates for it; of none what that starts from.

    The largest and the smallest are so in any order. Products are of sorted places on a GPU, for the same bits each
    time. Places out of range are left out.

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
    if kind == "prod" and out.device.type == "cuda" and wide.is_floating_point:
        found = _products(places, updates, rows * size + 1)
    else:
        found = torch.full((rows * size + 1, columns), begin, dtype=wide, device=out.device)
        how = {"prod": "prod", "max": "amax", "min": "amin"}[kind]
        found.scatter_reduce_(0, places[:, None].expand_as(updates), updates, how)
    found = found[:-1].reshape(out.shape)
    out.copy_(found + 0.0 if wide.is_floating_point else found)  # of both zeros either may be the maximum

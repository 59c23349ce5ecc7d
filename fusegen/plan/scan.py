"""Cumulative sums with torch's routines, in one order, rounded once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# As many elements of a vector are added up at a time: torch's own way for a whole one, on a GPU, is in no fixed order.
BLOCK = 1024


def cumsum(out: Any, source: Any, dim: int, reverse: bool) -> None:
    """``out[i] = source[0] + ... + source[i]`` along ``dim``; from the last element if ``reverse``.

    Halves are added up in float32.
    """
    import torch

    wide = out.dtype if out.dtype.itemsize == 8 else torch.float32 if out.dtype.is_floating_point else torch.int64
    values = source.to(wide)
    values = values.flip(dim) if reverse else values
    with _unwarned():
        if values.device.type == "cuda" and wide.is_floating_point and values.numel() == values.shape[dim]:
            found = _of_vector(values.flatten()).view(values.shape)
        else:
            found = torch.cumsum(values, dim)
    out.copy_(found.flip(dim) if reverse else found)


@contextmanager
def _unwarned() -> Iterator[None]:
    """torch warns, or raises, of every cumulative sum on a GPU where it is to be deterministic: also of rows side by
    side, which it does in one order."""
    import torch

    mode = torch.get_deterministic_debug_mode()
    if not mode:
        yield
        return
    torch.set_deterministic_debug_mode(0)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def _of_vector(values: Any) -> Any:
    """Of one vector, block by block."""
    import torch

    count = len(values)
    if count <= BLOCK:
        return torch.cumsum(torch.stack([values, values]), 1)[0]
    padded = torch.nn.functional.pad(values, (0, -count % BLOCK)).view(-1, BLOCK)
    sums = torch.cumsum(padded, 1) if len(padded) > 1 else _of_vector(padded[0])[None]
    before = torch.nn.functional.pad(_of_vector(sums[:, -1])[:-1], (1, 0))
    return (sums + before[:, None]).flatten()[:count]

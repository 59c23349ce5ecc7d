"""The second kernel of a sum that blocks share: who adds up the pieces of a result, in an order that never changes."""

from __future__ import annotations

# Up to so many pieces of a result a thread adds up; beyond, a block does. Where there are many results a block has 32
# neighbouring ones, and 32 of its threads add up each: what neighbouring threads read is then side by side.
FEW_PIECES, TILED_RESULTS = 8, 1024
# By who adds up the pieces of a result: how many results a block has, and its threads.
FINISHES = {"thread": (128, (128, 1, 1)), "block": (1, (128, 1, 1)), "tile": (32, (32, 32, 1))}


def finish_of(pieces: int, results: int, *, sums: bool) -> str:
    """One of FINISHES, for so many pieces of each result.

    ``sums``: all of them are plain sums. The states of other reductions, for 32 x 32 threads, may be more than the 48
    kB of shared memory that a kernel can declare.
    """
    if pieces <= FEW_PIECES:
        return "thread"
    return "tile" if sums and results >= TILED_RESULTS else "block"

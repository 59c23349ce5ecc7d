"""The second kernel of a sum that blocks share: who adds up the partial results, in an order that never changes."""

from __future__ import annotations

# Up to FEW_PARTIALS partial results are added up by one thread, more by a block. Where there are many results, a block
# has 32 neighbouring results and 32 threads for each, so that neighbouring threads read neighbouring addresses.
FEW_PARTIALS, TILED_RESULTS = 8, 1024
# By who adds up the partial results: how many results a block has, and its threads.
FINISHES = {"thread": (128, (128, 1, 1)), "block": (1, (128, 1, 1)), "tile": (32, (32, 32, 1))}


# Bytes of states of one result that a tile has room for: each thread leaves its own in the 48 kB of shared memory that
# a kernel can declare.
TILED_BYTES = 40


def finish_of(partials: int, results: int, state_bytes: int = 0) -> str:
    """One of FINISHES, for so many partial results of each result.

    ``state_bytes``: of what reductions that are no plain sums keep of one result.
    """
    if partials <= FEW_PARTIALS:
        return "thread"
    return "tile" if state_bytes <= TILED_BYTES and results >= TILED_RESULTS else "block"

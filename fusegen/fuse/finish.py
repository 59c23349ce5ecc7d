"""The second kernel of a sum that blocks share: who adds up the pieces of a result, in an order that never changes."""

from __future__ import annotations

# Up to so many pieces of a result a thread adds up; beyond, a block does, or 32 threads of one that has 32 neighbouring
# results where these are many: what threads read is then side by side.
FEW_PIECES, TILED_RESULTS = 8, 1024
# By who adds up the pieces of a result: how many results a block has, and its threads.
FINISHES = {"thread": (128, (128, 1, 1)), "block": (1, (128, 1, 1)), "tile": (32, (32, 32, 1))}


def finish_of(pieces: int, results: int) -> str:
    """One of FINISHES, for so many pieces of each result."""
    return "thread" if pieces <= FEW_PIECES else "tile" if results >= TILED_RESULTS else "block"

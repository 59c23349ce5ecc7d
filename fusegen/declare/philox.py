"""Philox 4x32-10 on integer tensors: what `templates/fusegen_random.cuh` computes, for the reference.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def words(key: Any, counters: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Four words of 32 bits of a key of 64 and four counters of 32, all of them int64 tensors (or ints)."""
    low, high = key & _WORD, (key >> 32) & _WORD
    c0, c1, c2, c3 = counters
    for _ in range(_ROUNDS):
        # Products of two words wrap around in int64, which leaves their bits as they are.
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((b >> 32) & _WORD) ^ c1 ^ low, b & _WORD
        c2, c3 = ((a >> 32) & _WORD) ^ c3 ^ high, a & _WORD
        low, high = (low + _STEPS[0]) & _WORD, (high + _STEPS[1]) & _WORD
    return c0, c1, c2, c3


def bits(torch: Any, seed: Any, draw: Any, row: Any, column: Any) -> Any:
    """The 32 bits of the elements at ``column`` of ``row``, as int64."""
    which = column & 3
    first = column - which
    upper = ((row >> 32) ^ (first >> 32)) & _WORD
    found = words(seed, (first & _WORD, row & _WORD, upper, draw & _WORD))
    pairs = [torch.where((which & 1) == 0, a, b) for a, b in (found[:2], found[2:])]
    return torch.where(which < 2, *pairs)


def uniform(torch: Any, *at: Any) -> Any:
    """In [0, 1): multiples of 2^-24."""
    return (bits(torch, *at) >> 8).to(torch.float64) * 2.0**-24


def positive_uniform(torch: Any, *at: Any) -> Any:
    """In (0, 1]: as a float32 the bits, and half of one more, over 2^32."""
    rounded = bits(torch, *at).to(torch.float32).to(torch.float64)
    return (rounded * 2.0**-32 + 2.0**-33).to(torch.float32).to(torch.float64)


def uniform_double(torch: Any, seed: Any, draw: Any, row: Any, column: Any) -> Any:
    """In [0, 1): multiples of 2^-53, of this draw and the one behind it."""
    high, low = bits(torch, seed, draw, row, column), bits(torch, seed, draw + 1, row, column)
    return ((high << 21) | (low >> 11)).to(torch.float64) * 2.0**-53

"""Whether calls do what was decided for calls like them, or are decided anew: where they are to be checked or tuned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fusegen.core.locks import lock


@dataclass
class _State:
    """How many ``anew`` there are. One attribute, as every call asks."""

    anew: int = 0


state = _State()
_changing = lock()


@contextmanager
def anew() -> Iterator[None]:
    """Inside, every call is decided, whatever is remembered, in every thread."""
    with _changing:
        state.anew += 1
    try:
        yield
    finally:
        with _changing:
            state.anew -= 1

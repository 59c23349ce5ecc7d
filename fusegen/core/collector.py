"""Python's garbage collector, while much is made that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collections meanwhile.

    The collector goes by how much was made since it last looked, and then walks all that the process holds: beside
    torch a tenth of a second, longer than importing fusegen takes. Nothing is kept from it, it only looks later.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

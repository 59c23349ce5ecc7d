"""What a process writes to a terminal that is none."""

from __future__ import annotations

import os


def read_to_end(ours: int) -> bytes:
    """All that comes until the other end is closed.

    A terminal holds back 4 kB, and then its writer waits: read it before anything else that the process writes.
    """
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    return seen

"""All rows: the table that peers were measured on, then sizes that nobody tunes for."""

from __future__ import annotations

import re

from tools.bench import rows_elementwise, rows_reductions
from tools.bench.row import Row

ROWS: tuple[Row, ...] = (
    *rows_elementwise.ROWS,
    *rows_reductions.ROWS,
    *rows_elementwise.ODD,
    *rows_reductions.ODD,
)


def matching(pattern: str | None) -> list[Row]:
    """Rows in whose title the regular expression occurs, whatever the case; all if there is none."""
    return [row for row in ROWS if pattern is None or re.search(pattern, row.title, re.IGNORECASE)]

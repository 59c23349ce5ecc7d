"""All rows: the table that peers were measured on, then sizes that nobody tunes for."""

from __future__ import annotations

import re

from tools.bench import rows_elementwise, rows_indexing, rows_products, rows_reductions
from tools.bench.row import Row
from tools.bench.row_products import ProductRow

ROWS: tuple[Row, ...] = (
    *rows_elementwise.ROWS,
    *rows_reductions.ROWS,
    *rows_indexing.ROWS,
    *rows_elementwise.ODD,
    *rows_reductions.ODD,
)


def matching(pattern: str | None) -> list[Row]:
    """Rows in whose title the regular expression occurs, whatever the case; all if there is none."""
    return [row for row in ROWS if fits(row.title, pattern)]


def matching_products(pattern: str | None) -> list[ProductRow]:
    """The same of the rows with matrix products, by "products: " and the title."""
    return [row for row in rows_products.ROWS if fits(f"products: {row.title}", pattern)]


def fits(title: str, pattern: str | None) -> bool:
    """Whether the regular expression, if there is one, occurs in a title, whatever the case."""
    return pattern is None or re.search(pattern, title, re.IGNORECASE) is not None

"""Which ops are several steps."""

from __future__ import annotations

from fusegen.core.ir import Op
from fusegen.core.one_term import scatters
from fusegen.core.products import products
from fusegen.core.scans import scans


def is_cut(op: Op) -> bool:
    """Whether an op has matrix products, scatters or scans: what a library does between kernels (fuse/products)."""
    return bool(products(op) or scatters(op) or scans(op))

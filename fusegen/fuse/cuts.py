"""Which ops are several steps."""

from __future__ import annotations

from fusegen.core.ir import Op
from fusegen.core.one_term import scatters
from fusegen.core.products import products
from fusegen.core.scans import scans
from fusegen.fuse.stored_values import stores_values


def is_cut(op: Op) -> bool:
    """Whether an op has matrix products, scatters or scans, which are done between kernels, or values that one kernel
    stores for another (fuse/products)."""
    return bool(products(op) or scatters(op) or scans(op)) or stores_values(op)

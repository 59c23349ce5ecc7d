"""The library, ``fg.ops``, as type checkers and editors see it."""

from fusegen._ops import *
from fusegen._ops import __all__ as __all__

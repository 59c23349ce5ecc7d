"""The modules, ``fg.nn``, as type checkers and editors see them."""

from fusegen._nn import *
from fusegen._nn import __all__ as __all__

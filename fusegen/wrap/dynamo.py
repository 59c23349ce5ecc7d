"""What Dynamo traces when compiled code calls an op. Importing this imports Dynamo, so only Dynamo's traces do."""

from __future__ import annotations

import torch

from fusegen.wrap import library
from fusegen.wrap.library import call

# Dynamo runs these as they are, with the kinds of the arguments, and takes the answers for constants.
for function in (library.positional, library.select, library.refuse):
    torch.compiler.assume_constant_result(function)

__all__ = ["call"]

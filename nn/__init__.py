"""Modules with torch's signatures, parameters and state dicts, computed by fusegen: ``fg.nn.LayerNorm``.

Each is a subclass of the class of torch.nn with its name; ``gated.py`` has a few that torch lacks. ``fg.patch`` swaps
them into an existing model. torch is imported with this package, not with fusegen.
"""

from __future__ import annotations

from fusegen.pytorch.library import torch_names

from .cells import CELLS
from .convs import CONVS
from .drop_ins import DROP_INS
from .gated import AddLayerNorm, AddRMSNorm, GeGLU, QuickGELU, ReGLU, SquaredReLU, SwiGLU
from .patching import Patched, patch

torch_names.require(torch_names.MODULES)

_CLASSES = {made.__name__: made for made in (*DROP_INS.values(), *CELLS.values(), *CONVS)}
globals().update(_CLASSES)

__all__ = ["AddLayerNorm", "AddRMSNorm", "GeGLU", "Patched", "QuickGELU", "ReGLU", "SquaredReLU", "SwiGLU", "patch"]
__all__ += sorted(_CLASSES)

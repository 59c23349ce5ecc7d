"""fusegen: declare a GPU operation as a short symbolic expression; get fused CUDA, its gradient, and theirs."""

from typing import TYPE_CHECKING, Any

from fusegen.core import sources as _sources  # first: it notes which files this process is going to run
from fusegen.core.collector import paused

if TYPE_CHECKING:  # what is made at run time, and what is imported when it is first used
    from fusegen import nn as nn
    from fusegen import ops as ops
    from fusegen import optim as optim
    from fusegen._language import *  # noqa: F403
    from fusegen._nn import patch as patch
    from fusegen.pytorch.autograd.accumulate_grad import accumulate_grad as accumulate_grad

_sources.find_beside()

# What is made here stays.
with paused():
    from fusegen.core.dtypes import (
        bfloat16,
        bool_,
        float16,
        float32,
        float64,
        int8,
        int16,
        int32,
        int64,
        uint8,
    )
    from fusegen.core.errors import (
        CheckError,
        CompileError,
        DeclarationError,
        DerivativeError,
        DeviceError,
        DtypeError,
        FusegenError,
        FusegenWarning,
        LegalityError,
        PlaceError,
        ShapeError,
    )
    from fusegen.core.within import NOWHERE
    from fusegen.declare import language, table
    from fusegen.declare.op import Const, Scalar, is_symbolic
    from fusegen.declare.tensor import Tensor
    from fusegen.declare.trace import ScalarSpec, TensorSpec
    from fusegen.foreach_op import ForEach, foreach
    from fusegen.fused_op import FusedOp, RandomOp, op
    from fusegen.launch.reports import check_indices
    from fusegen.linear_loss_op import LinearLossOp
    from fusegen.run.verify import checked
    from fusegen.tuning.session import tuner as tune

    if not TYPE_CHECKING:
        from fusegen.declare.language import *  # noqa: F403
        from fusegen.declare.value import cast

# The only place that says it: packages are built with it, and a release is refused whose tag is another.
__version__ = "0.1.0"

__all__ = [
    "NOWHERE",
    "CheckError",
    "CompileError",
    "Const",
    "DeclarationError",
    "DerivativeError",
    "DeviceError",
    "DtypeError",
    "ForEach",
    "FusedOp",
    "FusegenError",
    "FusegenWarning",
    "LegalityError",
    "LinearLossOp",
    "PlaceError",
    "RandomOp",
    "Scalar",
    "ScalarSpec",
    "ShapeError",
    "Tensor",
    "TensorSpec",
    "bfloat16",
    "bool_",
    "cast",
    "check_indices",
    "checked",
    "float16",
    "float32",
    "float64",
    "foreach",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_symbolic",
    "op",
    "register",
    "table",
    "tune",
    "uint8",
]
__all__ += language.__all__


def register(*ops: FusedOp[..., Any]) -> list[str]:
    """Register ops (all of fusegen.ops if none are named) with torch before anything calls them.

    A traced call registers what it needs by itself. Loading a saved graph (``torch.export.load``) does not, and
    ``torch.ops.fusegen.lerp`` is there only then.

    Returns:
        Their names below ``torch.ops.fusegen``.
    """
    from fusegen.pytorch.library import registry

    return registry.register(*ops)


# Imported when they are first used: the library is declared with fusegen itself, and modules need torch.
_LATER = {
    "accumulate_grad": "fusegen.pytorch.autograd.accumulate_grad",
    "nn": "fusegen.nn",
    "ops": "fusegen.ops",
    "optim": "fusegen.optim",
    "patch": "fusegen.nn",
}


def _missing(name: str) -> AttributeError:
    from difflib import get_close_matches

    near = [f"fg.{found}" for found in get_close_matches(name, __all__, n=1, cutoff=0.8)]
    advice = f": did you mean {near[0]}?" if near else "; `fusegen list --functions` names what declarations may call"
    return AttributeError(f"module 'fusegen' has no attribute {name!r}{advice}", name=name)


if not TYPE_CHECKING:  # which would take any name to be there

    def __getattr__(name: str) -> Any:
        """``fusegen.ops`` and what is in it, ``fusegen.nn``, and functions that need torch."""
        import importlib

        if name not in _LATER:
            found = importlib.import_module("fusegen.ops").__dict__.get(name) if name[:1].isalpha() else None
            if isinstance(found, FusedOp):
                return found
            raise _missing(name)
        module = importlib.import_module(_LATER[name])
        return module if _LATER[name] == f"fusegen.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})

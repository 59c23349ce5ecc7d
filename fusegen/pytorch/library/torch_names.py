"""torch's private names that fusegen asks, in one table, and what becomes of calls where a torch lacks some of them.

What a call needs to know (is a mode active, is somebody tracing, which stream is current) torch often says by private
names alone. A version that renamed one would end every call in an AttributeError. So all of them are here, by what they
are for; tests/library/test_torch_names.py finds every use in the source. They are looked for once, before the first
call.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any, NoReturn

from fusegen.core.errors import DeviceError, warn

CALLS, TRACING, SHARDING, MODULES, GRAPHS = "calls", "tracing", "sharding", "modules", "whole graphs"
# What fusegen does that needs them; without those of calls there is nothing but torch's own functions
# (pytorch/library/unfused). Names that torch exchanged for each other stand in one entry.
NAMES: dict[str, tuple[str, ...]] = {
    CALLS: (
        "torch._C._TorchDispatchModeKey.FAKE",
        "torch._C._TorchDispatchModeKey.FUNCTIONAL",
        "torch._C._TorchDispatchModeKey.PROXY",
        "torch._C._are_functorch_transforms_active",
        "torch._C._autograd._top_saved_tensors_default_hooks",
        "torch._C._dispatch_key_parse",
        "torch._C._dispatch_keys",
        "torch._C._dispatch_tls_is_dispatch_key_included",
        "torch._C._functorch.get_unwrapped",
        "torch._C._functorch.is_functorch_wrapped_tensor",
        "torch._C._functorch.peek_interpreter_stack",
        "torch._C._functorch.unwrap_if_dead",
        "torch._C._get_cublas_allow_fp16_accumulation",
        "torch._C._get_cudnn_enabled",
        "torch._C._get_dispatch_mode",
        "torch._C._get_function_stack_at",
        "torch._C._get_sm_carveout_experimental",
        "torch._C._is_any_autocast_enabled",
        "torch._C._is_tracing",
        "torch._C._len_torch_dispatch_stack",
        "torch._C._len_torch_function_stack",
        "torch._C._vmapmode_decrement_nesting",
        "torch._C._vmapmode_increment_nesting",
        "torch._add_batch_dim",
        "torch._addmm_activation",
        "torch._remove_batch_dim",
        "torch.Tensor._base",
        "torch.Tensor._is_view",
        "torch.Tensor._is_zerotensor",
        "torch.Tensor._version",
        "torch.autograd.forward_ad._current_level",
        "torch.cuda._sleep",
        "torch.utils._device.DeviceContext",
    ),
    TRACING: (
        "torch._C._AutoDispatchBelowAutograd",
        "torch._C._is_fwd_grad_enabled",
        "torch._check",
        "torch._functorch.autograd_function.custom_function_call_vmap_helper",
        "torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter",
        "torch._functorch.utils.enable_single_level_autograd_function",
        "torch.autograd.forward_ad._set_fwd_grad_enabled",
        "torch.autograd.function._SingleLevelFunction",
        "torch.fx.experimental.symbolic_shapes.guard_or_false",
        "torch.fx.experimental.symbolic_shapes.guard_or_true",
        "torch.fx.experimental.symbolic_shapes.optimization_hint|hint_int",
        "torch.ops.aten.add.Tensor._schema",
    ),
    SHARDING: (
        "torch.distributed._functional_collectives.AsyncCollectiveTensor",
        "torch.distributed.tensor.DTensor._local_tensor",
        "torch.distributed.tensor.DTensor._op_dispatcher._allow_implicit_replication",
        "torch.distributed.tensor.DTensor._spec",
        "torch.distributed.tensor._dtensor_spec.DTensorSpec",
        "torch.distributed.tensor._redistribute.redistribute_local_tensor",
    ),
    MODULES: (
        "torch.nn.BatchNorm1d._check_input_dim",
        "torch.nn.Conv2d._conv_forward",
        "torch.nn.Module._backward_hooks",
        "torch.nn.Module._backward_pre_hooks",
        "torch.nn.Module._forward_hooks",
        "torch.nn.Module._forward_pre_hooks",
        "torch.nn.modules.module._has_any_global_hook",
    ),
    GRAPHS: ("torch._dynamo.symbolic_convert.InstructionTranslator.current_tx",),  # looked for where Dynamo traces
}
# The same where torch was built for GPUs.
ON_GPUS: tuple[str, ...] = ("torch._C._cuda_getCurrentRawStream",)
_FIX = "update fusegen, or use a torch that it knows; fusegen doctor lists what is missing"


def _has(name: str) -> bool:
    """Whether torch has a name, or one of those that stand for it."""
    *path, last = name.split(".")
    return any(_is_there([*path, spelled]) for spelled in last.split("|"))


def _is_there(path: Sequence[str]) -> bool:
    found: Any = importlib.import_module(path[0])
    for place, name in enumerate(path[1:], 1):
        try:
            found = getattr(found, name)
            continue
        except AttributeError:
            # What objects of a class get when they are made is annotated there.
            if any(name in getattr(base, "__annotations__", ()) for base in getattr(found, "__mro__", ())):
                return place == len(path) - 1
        try:
            found = importlib.import_module(".".join(path[: place + 1]))
        except ImportError:
            return False
    return True


@functools.cache
def missing(use: str = CALLS) -> tuple[str, ...]:
    """Names that this torch lacks, of those for a use."""
    import torch

    names = NAMES[use] + (ON_GPUS if use == CALLS and torch.backends.cuda.is_built() else ())
    return tuple(name for name in names if not _has(name))


def _said(names: Sequence[str]) -> str:
    import torch

    return f"torch {torch.__version__}, which lacks {', '.join(names)}"


def require(*uses: str) -> None:
    """Nothing where torch has what these uses need.

    Raises:
        DeviceError: it has not.
    """
    lacking = [name for use in uses for name in missing(use)]
    if lacking:
        refuse(f"fusegen's {uses[-1]}", lacking)


def refuse(what: str, lacking: Sequence[str] = ()) -> NoReturn:
    """Say that ``what`` cannot be with this torch.

    Raises:
        DeviceError: always.
    """
    raise DeviceError(
        what, given=_said(lacking or missing()), fix=_FIX,
        expected="a torch whose private names are those that fusegen asks",
    )  # fmt: skip


@functools.cache
def warn_once() -> None:
    """Say what calls come to."""
    warn(f"it does not know {_said(missing())}: ops run as torch's own functions, unfused. To mend it, {_FIX}")


def report() -> str:
    """What ``fusegen doctor`` says.

    Raises:
        DeviceError: some are missing.
    """
    import torch

    uses = [use for use in NAMES if use != SHARDING or torch.distributed.is_available()]
    lacking = {use: missing(use) for use in uses if missing(use)}
    if lacking:
        names_text = "; ".join(f"{use}: {', '.join(names)}" for use, names in lacking.items())
        effect = (
            "ops run as torch's own functions, unfused" if CALLS in lacking else "ops run, but not all uses of them"
        )
        raise DeviceError(
            "torch's private names", given=f"torch {torch.__version__} lacks some that fusegen asks ({names_text}): "
            f"{effect}",
            expected="all of them", fix="update fusegen, or use a torch that it knows",
        )  # fmt: skip
    return f"all {sum(len(NAMES[use]) for use in uses)} that fusegen asks are there"

"""What of torch wants to see a call before it runs: dispatch modes, tensor subclasses, transforms, autograd."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusegen.core.errors import DerivativeError


def is_traced(op: str, values: Sequence[Any]) -> bool:
    """Whether torch has to see a call: it traces, or a tensor has no memory (fake, meta) or a class of its own.

    Raises:
        DerivativeError: it traces in a way that cannot see what is derived.
    """
    if "torch" not in sys.modules:
        return False
    import torch

    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        from fusegen.plan.backward import check_no_jit_trace

        check_no_jit_trace(op)
        return is_recorded()  # what runs has transforms of its own (pytorch/autograd/function), with fewer steps
    given = [value for value in values if isinstance(value, torch.Tensor)]
    if any(t.is_nested for t in given):
        return False  # refused, by an error of ours
    if any(type(t) not in (torch.Tensor, torch.nn.Parameter) or t.is_meta for t in given):
        return True
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()


def is_recorded() -> bool:
    """Whether torch makes a graph of calls (make_fx, a fake mode), or functions of tensors that it copied."""
    from torch import _C

    modes = _C._TorchDispatchModeKey
    return _C._len_torch_dispatch_stack() > 0 and any(
        _C._get_dispatch_mode(key) is not None for key in (modes.PROXY, modes.FUNCTIONAL, modes.FAKE)
    )


def dispatcher() -> Callable[..., Any]:
    """What calls an op through torch's dispatcher."""
    from fusegen.pytorch.library.dispatch import call

    return call


def compiled_call() -> Callable[..., Any]:
    """The same for code that Dynamo traces."""
    from fusegen.pytorch.library.dynamo import call

    return call


def torch_is_unknown() -> bool:
    """Whether torch is there and lacks names that calls ask (pytorch/library/torch_names)."""
    if "torch" not in sys.modules:
        return False
    from fusegen.pytorch.library import torch_names

    return bool(torch_names.missing())


def torch_function(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a tensor subclass, or a mode, makes of the call through ``__torch_function__``; NotImplemented: nothing."""
    if "torch" not in sys.modules or sys.modules["torch"].compiler.is_dynamo_compiling():
        return NotImplemented
    from torch import Tensor
    from torch.nn import Parameter
    from torch.overrides import handle_torch_function, has_torch_function

    from fusegen.pytorch.replay.modes import only_device_modes

    outs = kwargs.get("out")
    given = (*args, *kwargs.values(), *(outs if isinstance(outs, (tuple, list)) else ()))
    relevant = tuple(value for value in given if isinstance(value, Tensor))
    if not relevant or not has_torch_function(relevant):
        return NotImplemented
    if all(type(value) in (Tensor, Parameter) for value in relevant) and only_device_modes():
        return NotImplemented
    return handle_torch_function(op, relevant, *args, **kwargs)


def check_no_gradient(op: str, values: Sequence[Any]) -> None:
    """``out=`` has no place in autograd's graph, nor under torch.func's transforms."""
    import torch
    from torch.autograd import forward_ad

    given = [value for value in values if isinstance(value, torch.Tensor)]
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    dual = forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in given)
    transformed = any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in given)
    if recorded or dual or transformed:
        what = "an argument that requires a gradient" if recorded else "a tensor of torch.func or of forward mode"
        raise DerivativeError(
            f"{op}, out=", given=what, expected="no derivatives (as torch's out=)",
            fix="call under torch.no_grad(), or without out=" if recorded else "call without out=",
        )  # fmt: skip

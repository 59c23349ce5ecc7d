"""What of torch may look at a call of plain tensors in this thread: modes, transforms, a tracer."""

from __future__ import annotations

import torch
from torch._C import (
    _functorch,
    _get_function_stack_at,
    _is_tracing,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

_transform = _functorch.peek_interpreter_stack


def nobody_looks() -> bool:
    """Whether no mode, no transform and no tracer is active, but ``torch.device`` as a context."""
    return not (
        _len_torch_dispatch_stack()
        or _transform() is not None
        or forward_ad._current_level >= 0
        or _is_tracing()
        or (_len_torch_function_stack() and not only_device_modes())
    )


def only_device_modes() -> bool:
    """Whether no ``__torch_function__`` mode would look at a call. ``torch.device`` as a context, and
    ``torch.set_default_device``, are modes that only functions without tensors ask."""
    modes = (_get_function_stack_at(i) for i in range(_len_torch_function_stack()))
    return all(type(mode) is DeviceContext for mode in modes)  # a class of the user's may do more


def autocast() -> tuple[tuple[bool, torch.dtype], ...]:
    """What torch.autocast says in this thread: an op may compute in another dtype under it."""
    return tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))

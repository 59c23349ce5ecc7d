"""Clipping by the norm of all gradients."""

from __future__ import annotations

import math
from typing import Any

import torch

from fusegen.core.errors import DeclarationError
from fusegen.foreach_op import foreach as foreach_op
from fusegen.optim import rules
from fusegen.optim.stepping import local, run


@torch.no_grad()
def clip_grad_norm_(
    parameters: Any, max_norm: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    """Clip gradients by their common norm, in place: ``torch.nn.utils.clip_grad_norm_``, in a few launches.

    ``norm = (sum |grad|^norm_type)^(1 / norm_type)`` over all gradients, the largest ``|grad|`` for ``inf``; each
    gradient is multiplied by ``min(1, max_norm / (norm + 1e-6))``. Gradients are read twice and written once. Nothing
    waits for the device, so that it can be captured into a CUDA graph.

    Args:
        parameters: tensors or one tensor; those without a gradient are left out. DTensors count as a whole.
        max_norm: a number, or a tensor with one element.
        norm_type: 1, 2, another positive number, or ``inf``.
        error_if_nonfinite: raise RuntimeError where the norm is NaN or infinite, which waits for the device.
        foreach: as torch's; it is not looked at.

    Returns:
        The norm, on the device of the first gradient. Of halves it is float32, where torch rounds it to the half type.

    Raises:
        DeclarationError: ``norm_type`` is not positive.
    """
    params = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    norm_type = float(norm_type)
    if not norm_type > 0:
        raise DeclarationError(
            "fusegen.optim.clip_grad_norm_", given=f"norm_type={norm_type}", expected="a positive number, or inf",
            fix="pass 2.0",
        )  # fmt: skip
    grads = [param.grad for param in params if param.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    power = None if math.isinf(norm_type) else norm_type
    sums = _sums(grads, power)
    norm: torch.Tensor
    norm, factor = rules.norm_of_sums(sums, max_norm, power)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be "
            "clipped. To scale by it anyway, set `error_if_nonfinite=False`"
        )
    devices = {grad.device for grad in grads}
    for device in devices:
        there = [grad for grad in grads if grad.device == device]
        run(rules.scale, there, factor.to(device), out=(there,))
    return norm


def _sums(grads: list[Any], power: float | None) -> torch.Tensor:
    """What each gradient adds to the norm, on the first one's device."""
    dtype = torch.float64 if any(grad.dtype is torch.float64 for grad in grads) else torch.float32
    sums = torch.empty(len(grads), dtype=dtype, device=grads[0].device)
    there = [
        place if grad.device == sums.device else torch.empty((), dtype=dtype, device=grad.device)
        for place, grad in zip(sums.unbind(0), grads, strict=True)
    ]
    foreach_op(rules.power_sum)(local(grads), power, dtype is torch.float64, out=there)
    for i, grad in enumerate(grads):
        if grad.device != sums.device:
            sums[i].copy_(there[i], non_blocking=True)
    _add_processes(sums, grads, power)
    return sums


def _add_processes(sums: torch.Tensor, grads: list[Any], power: float | None) -> None:
    """What other processes' parts of DTensors add: an exchange for all that are placed alike."""
    placed: dict[Any, list[int]] = {}
    for i, grad in enumerate(grads):
        if hasattr(grad, "_local_tensor"):
            placed.setdefault((grad.device_mesh, tuple(grad.placements)), []).append(i)
    if not placed:
        return
    from torch.distributed.tensor import DTensor, Partial, Replicate

    how = "max" if power is None else "sum"
    for (mesh, placements), some in placed.items():
        summed = [Replicate() if placement.is_replicate() else Partial(how) for placement in placements]
        sums[some] = DTensor.from_local(sums[some], mesh, summed).full_tensor()

"""The forward of every module here: fusegen's op where it can run, torch's own forward where it cannot."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch

import fusegen as fg

Compute = Callable[..., Any]

# What an op says before anything is launched: dtypes, layouts, devices and transforms that it does not take, and calls
# that torch refuses too. Errors of the compiler are not among them.
REFUSALS = (fg.DeclarationError, fg.DerivativeError, fg.DeviceError, fg.DtypeError, fg.ShapeError)

_LOG = logging.getLogger("fusegen.nn")


@functools.lru_cache(maxsize=1024)
def tell(name: str, reason: str) -> None:
    """Log, once, why torch's forward ran."""
    _LOG.info("%s ran torch's own forward: %s", name, reason)


def taken_over(input: Any) -> bool:
    """Whether torch is tracing or compiling the call, or autocast would choose the dtypes: then torch's forward runs.

    torch.compile fuses these functions itself, into what surrounds them.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return True
    if not isinstance(input, torch.Tensor):  # torch.fx
        return True
    kind = input.device.type
    return kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)


def fused(compute: Compute, own: Compute) -> Compute:
    """The method that calls ``compute``, and ``own`` (torch's) where torch takes over or an op refuses the arguments.

    A call that is wrong for both raises torch's error, with fusegen's as its context.
    """

    @functools.wraps(own)
    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        if named:
            bound = inspect.signature(own).bind(self, *inputs, **named)
            bound.apply_defaults()
            inputs = bound.args[1:]
        if not taken_over(inputs[0] if inputs else None):
            try:
                return compute(self, *inputs)
            except REFUSALS as refusal:
                tell(type(self).__name__, str(refusal))
                return own(self, *inputs)
        return own(self, *inputs)

    return forward


def drop_in(base: type[torch.nn.Module], compute: Compute, says: str, method: str = "forward") -> type[torch.nn.Module]:
    """A subclass of torch's ``base`` of the same name, whose ``method`` computes with ``compute``."""
    pieces = {method: fused(compute, getattr(base, method)), "fusegen_base": base}
    made = type(base.__name__, (base,), pieces)
    made.__module__ = "fusegen.nn"
    made.__doc__ = (
        f"torch.nn.{base.__name__}, computed by {says}\n\n"
        "Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse\n"
        "or nested tensors, autocast, torch.compile, ...) is computed by torch's own forward."
    )
    return made

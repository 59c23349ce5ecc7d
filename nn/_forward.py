"""The forward of every module here: fusegen's op where it can run, torch's own forward where it cannot."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
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


# Dtypes of an input for which a module's results have the dtypes that torch.autocast gives torch's forward on a GPU.
ANY = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FLOAT32 = (torch.float32,)
NONE = ()


def taken_over(input: Any) -> bool:
    """Whether torch is tracing or compiling the call, or the input is a nested tensor: then torch's forward runs.

    torch.compile fuses these functions itself, into what surrounds them.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return True
    return not isinstance(input, torch.Tensor) or input.is_nested  # the first: torch.fx


def autocast_decides(input: Any, agrees: Sequence[torch.dtype] = ANY) -> bool:
    """Whether torch.autocast would choose other dtypes than the op's policy: then torch's forward runs.

    The policies are those of torch's ops on CUDA; on the CPU autocast has others.
    """
    kind = input.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return False
    return kind == "cpu" or input.dtype not in agrees


def fused(compute: Compute, own: Compute, agrees: Sequence[torch.dtype] = ANY) -> Compute:
    """The method that calls ``compute``, and ``own`` (torch's) where torch takes over or an op refuses the arguments.

    A call that is wrong for both raises torch's error, with fusegen's as its context.

    Args:
        agrees: see ``autocast_decides``.
    """

    @functools.wraps(own)
    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        if named:
            bound = inspect.signature(own).bind(self, *inputs, **named)
            if bound.kwargs:  # what has no position
                return own(self, *inputs, **named)
            bound.apply_defaults()
            inputs = bound.args[1:]
        first = inputs[0] if inputs else None
        if not taken_over(first) and not autocast_decides(first, agrees):
            try:
                return compute(self, *inputs)
            except REFUSALS as refusal:
                tell(type(self).__name__, str(refusal))
                return own(self, *inputs)
        return own(self, *inputs)

    return forward


def drop_in(
    base: type[torch.nn.Module], compute: Compute, says: str, method: str = "forward",
    agrees: Sequence[torch.dtype] = ANY,
) -> type[torch.nn.Module]:  # fmt: skip
    """A subclass of torch's ``base`` of the same name, whose ``method`` computes with ``compute``."""
    pieces = {method: fused(compute, getattr(base, method), agrees), "fusegen_base": base}
    made = type(base.__name__, (base,), pieces)
    made.__module__ = "fusegen.nn"
    made.__doc__ = (
        f"torch.nn.{base.__name__}, computed by {says}\n\n"
        "Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse\n"
        "or nested tensors, torch.compile, ...) is computed by torch's own forward."
    )
    return made

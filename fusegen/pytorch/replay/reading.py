"""What a call is given, read once: a key that tells which plan it takes, tensors, their addresses, and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import Any

import torch

FLOATS_VARY, INTEGERS_VARY = 1, 2
# The classes of plain tensors: others may define what a call means.
TENSORS = (torch.Tensor, torch.nn.Parameter)
_CONSTANTS = (type(None), bool, int, str, type, FunctionType, torch.dtype)


def read_into(
    values: Sequence[Any], flags: Iterable[int], recording: bool, key: list[Any], tensors: list[Any],
    addresses: list[int], numbers: list[Any],
) -> bool:  # fmt: skip
    """Read each value, once, into a key, and its tensors, their addresses and its numbers into lists of their own.

    Args:
        flags: which numbers are values of the call (see ``Parameters``).

    Returns:
        False for what only the slow path can judge: elements that are not in memory as they are, unknown constants.
    """
    try:
        for value, flag in zip(values, flags, strict=False):
            kind = type(value)
            if kind in TENSORS:
                address = value.data_ptr()
                if value.is_neg() or (not address and (value.numel() or value.is_meta)):
                    return False
                tensors.append(value)
                addresses.append(address)
                # Where it is, whether its gradient is wanted, and its alignment, in one number.
                bits = (value.get_device() << 5) + (address & 15) + (16 if recording and value.requires_grad else 0)
                key += (value.dtype, value.shape, value.stride(), bits)
            elif kind is float and flag & FLOATS_VARY:
                numbers.append(value)
                key.append(float)
            elif (kind is int or kind is bool) and flag & INTEGERS_VARY:
                if not -(2**63) <= value < 2**63:
                    return False
                numbers.append(value)
                key.append(kind)
            else:
                key.append(_constant(value))
    except (RuntimeError, _Unknown):  # no memory, no strides, no value: the slow path says so
        return False
    return True


class _Unknown(Exception):
    """A constant that cannot be compared."""


def _constant(value: Any) -> Any:
    kind = type(value)
    if kind is float:
        return float, value.hex()  # tells -0.0 from 0.0, and finds NaN again
    if kind is tuple:
        return tuple, *map(_constant, value)
    if kind not in _CONSTANTS:
        raise _Unknown
    return kind, value

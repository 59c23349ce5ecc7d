"""The vmap that torch had before torch.func, and still uses: torch.autograd.grad(is_grads_batched=True),
torch.autograd.functional with vectorize=True, gradcheck(check_batched_grad=True).

It asks no autograd.Function what to do, and autograd records what happens below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fusegen.derive.batch import is_wide


def legacy_level() -> int:
    """How many of these are nested here; 0 for none."""
    torch._C._vmapmode_increment_nesting()
    return torch._C._vmapmode_decrement_nesting()


def is_legacy_batched(tensor: Any) -> bool:
    """Whether a tensor stands for many, one for each call."""
    return bool(torch._C._dispatch_keys(tensor).has("Batched"))


def legacy_vmap(
    batched: Callable[[frozenset[str], int], Any], values: Mapping[str, Any], scalars: Mapping[str, Any]
) -> list[Any]:
    """Results of all calls at once, as tensors that stand for many.

    Args:
        batched: from names of arguments and the number of calls the op that makes these in one
            (pytorch/autograd/function).
    """
    return _at_level(batched, values, scalars, legacy_level())


def _at_level(
    batched: Callable[[frozenset[str], int], Any], values: Mapping[str, Any], scalars: Mapping[str, Any], level: int
) -> list[Any]:
    """Innermost level first. A tensor that is the same for all calls of a level comes with a size of one."""
    fronts = {name: torch._remove_batch_dim(tensor, level, 1, 0) for name, tensor in values.items()}
    count = next((tensor.shape[0] for tensor in fronts.values() if tensor.shape[0] != 1), 1)
    wide = {name: tensor for name, tensor in fronts.items() if tensor.shape[0] == count}
    calls, inner = batched(frozenset(wide), count), {**values, **wide}
    if level > 1 and any(map(is_legacy_batched, inner.values())):
        results = _at_level(calls.trained_for(()).batched, inner, scalars, level - 1)
    else:
        results = calls(inner, scalars)
    marks = is_wide(calls.runner.op).values()
    return [torch._add_batch_dim(t, 0, level) if mark else t for t, mark in zip(results, marks, strict=True)]

"""Ops by torch's own functions, one after the other: what calls come to where fusegen does not know torch
(pytorch/library/torch_names). Autograd, modes, transforms and compilers see ordinary functions, which need not be told
anything, and for a declared gradient an autograd.Function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fusegen.core.declared import declared_calls
from fusegen.core.errors import ShapeError
from fusegen.core.ir import Op
from fusegen.pytorch.library import fake, torch_names
from fusegen.pytorch.library.eager import eager


def call(op: Op, values: Mapping[str, Any], scalars: Mapping[str, Any], out: Sequence[Any] | None) -> list[Any]:
    """Results of an op, written into ``out`` where that is given.

    Args:
        values: arguments by name; ``scalars``: those of them that are Python numbers handed over at run time.

    Raises:
        DeviceError: the op has a declared gradient of several float results, which torch would ask for one by one.
    """
    if any(len(found.cotangents) > 1 for found in declared_calls(op)):
        torch_names.refuse(f"{op.name}, with a declared gradient of several results")
    torch_names.warn_once()
    names = list(dict.fromkeys(operand.base for operand in op.operands))
    given = [values[name] for name in names]
    fake.measure(op, {name: fake.describe(name, values[name]) for name in names}, {})  # refuses sizes that do not fit
    with torch.autocast(given[0].device.type, enabled=False):
        found = eager(op, names, scalars)(*given)
    results = list(found) if isinstance(found, tuple) else [found]
    return results if out is None else _into(op, results, out)


def _into(op: Op, results: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> list[Any]:
    if [(t.shape, t.dtype) for t in out] != [(t.shape, t.dtype) for t in results]:
        raise ShapeError(
            f"{op.name}, out=", given=", ".join(f"{t.dtype} of shape {list(t.shape)}" for t in out),
            expected=", ".join(f"{t.dtype} of shape {list(t.shape)}" for t in results),
            fix="pass tensors of the results' shapes and dtypes, or leave out= away",
        )  # fmt: skip
    return [target.copy_(value) for target, value in zip(out, results, strict=True)]

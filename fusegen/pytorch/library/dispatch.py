"""A call of an op as a call of a registered one: what becomes of it where torch traces. Dynamo reads this file.

Each name that Dynamo meets between the call and the registered op is checked on every compiled call, so there are few.
What needs no tensor (``select`` and its like) it runs as it stands, and takes the answer for a constant
(pytorch/library/dynamo).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import SymBool, SymFloat, SymInt, Tensor, dtype

from fusegen.core.errors import ShapeError
from fusegen.declare.value import plain_number
from fusegen.pytorch.library import schema
from fusegen.pytorch.library.handles import find
from fusegen.pytorch.library.registry import dispatched, registered

_ops = torch.ops.fusegen


def kind_of(value: Any) -> str:
    """What pytorch/library/schema.py calls an argument."""
    if isinstance(value, Tensor):
        return "Tensor"
    if value is None:
        return "none"
    if isinstance(value, (bool, SymBool)):
        return "bool"
    if isinstance(value, (int, SymInt)):
        return "int"
    if isinstance(value, (float, SymFloat)):
        return "float"
    if isinstance(value, str):
        return "str"
    if isinstance(value, dtype):
        return "dtype"
    if isinstance(value, (tuple, list)):
        for item in value:
            if isinstance(item, bool) or not isinstance(item, (int, SymInt)):
                return "other"
        return "ints"
    return "other"


def call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], compiled: bool = False) -> Any:
    """The op called through torch's dispatcher. Dynamo traces this function, and sees one call of a registered op.

    Args:
        compiled: the call becomes a part of a graph that torch may keep on disk.
    """
    kwargs = {**kwargs}
    out = kwargs.pop("out", None)
    name, given = resolve(op, args, kwargs, compiled)
    packet, _, overload = name.partition(".")
    result = getattr(getattr(_ops, packet), overload)(**given)
    if isinstance(result, (list, tuple)):
        is_one = isinstance(result, list) and len(result) == 1 and not says_tuple(op.token)
        result = result[0] if is_one else tuple(result)
    return result if out is None else into(op, result, out)


def resolve(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], compiled: bool = False
) -> tuple[str, dict[str, Any]]:
    """The overload for a call, ``lerp.default``, and the arguments it takes, by name."""
    names = positional(op.token, len(args))
    values = {}
    for i in range(len(args)):
        values[names[i]] = args[i]
    values.update(kwargs)
    kinds = []
    fixed = []
    for name, value in values.items():
        kind = kind_of(value)
        if kind == "other":
            value = from_numpy(value, values)
            kind = kind_of(value)
            values[name] = value
        kinds.append((name, kind))
        if kind == "other":
            fixed.append((name, value))
    overload, passed, more = select(op.token, len(args), tuple(kinds), tuple(fixed), compiled)
    given = {}
    for name, spelled in passed:
        given[spelled] = values[name]
    for name, value in more:
        given[name] = value
    return overload, given


def from_numpy(value: Any, values: dict[str, Any]) -> Any:
    """A NumPy scalar as the number that it is; anything else as it is.

    To Dynamo it is an array without dimensions, whose value may change from call to call: a tensor beside the others.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        for other in values.values():
            if isinstance(other, Tensor):
                return torch.as_tensor(value, device=other.device)
    return plain_number(value) if isinstance(value, np.generic) else value


def overload(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch._ops.OpOverload:
    """The registered op of a call."""
    packet, _, name = resolve(op, args, kwargs)[0].partition(".")
    return dispatched(packet, name)


def into(op: Any, result: Any, out: Any) -> Any:
    """``out=`` of a traced call: the result is copied; what is traced decides whether a copy is made."""
    results = result if isinstance(result, tuple) else (result,)
    outs = out if isinstance(out, (tuple, list)) else (out,)
    for target, value in zip(outs, results, strict=True):
        if target.shape != value.shape or target.dtype != value.dtype:
            refuse(op.token, target.dtype, list(target.shape), value.dtype, list(value.shape))
        target.copy_(value)
    return out


def refuse(token: str, given: torch.dtype, given_shape: list[int], expected: torch.dtype, shape: list[int]) -> None:
    """The error of an ``out=`` that does not fit."""
    raise ShapeError(
        f"{find(token).name}, out=", given=f"{given} of shape {given_shape}", expected=f"{expected} of shape {shape}",
        fix="pass a tensor of the result's shape and dtype, or leave out= away",
    )  # fmt: skip


def says_tuple(token: str) -> bool:
    """Whether the op says that it returns a tuple, also of one result."""
    return schema.says_tuple(find(token).declaration)


def positional(token: str, count: int) -> tuple[str, ...]:
    """Names of the first ``count`` parameters.

    Raises:
        DeclarationError: there are fewer that can be passed by position.
    """
    declaration = find(token).for_call((None,) * count).declaration
    parameters = declaration.signature.parameters.values()
    names = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
    if count > len(names):
        declaration.bind((0,) * count, {})
    return names[:count]


def select(
    token: str, count: int, kinds: tuple[tuple[str, str], ...], fixed: tuple[tuple[str, Any], ...], compiled: bool
) -> tuple[str, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """The registered overload for a call with ``count`` positional arguments, ``lerp.default``; the arguments it takes,
    with its names for them; what it gets beside them.

    What is compiled says what the op is, for torch's caches. An exported program does not: it may outlive a fusegen.
    """
    entry = registered(find(token).for_call((None,) * count))
    overload = entry.overload(dict(kinds), dict(fixed))
    keyed = compiled and not torch.compiler.is_exporting()
    spelled = schema.spelled(entry.declaration.signature.parameters)
    names = [name for name, kind in kinds if kind != "other" and name not in schema.HIDDEN]
    passed = tuple((name, spelled.get(name, name)) for name in names)
    return overload, passed, (((schema.IDENTITY, entry.identity),) if keyed else ())

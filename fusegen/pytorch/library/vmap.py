"""vmap of registered ops: many calls are one call of another registered op, with one more axis (derive/batch.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch

from fusegen.core.dtypes import DType
from fusegen.core.ir import Op
from fusegen.core.views import whole_shape
from fusegen.derive.batch import NEW, is_wide, shifted_sizes
from fusegen.plan import backward
from fusegen.pytorch.library import fake
from fusegen.pytorch.library.derived import Derived
from fusegen.pytorch.library.schema import Schema

# What a rule gives: results, and along which dimension each has a value for every call (None: it has only one).
Answer = tuple[Any, Any]


def of_call(
    registered: Any, overload: Any, schema: Schema, autocast: DType | None, args: Any, kwargs: Mapping[str, Any]
) -> Any:
    """The kernel of an overload under vmap."""

    def call(given: Mapping[str, Any]) -> Any:
        return overload(**schema.theirs(given))

    def rule(info: Any, in_dims: Any, given: Mapping[str, Any]) -> Answer:
        backward.check_no_jit_trace(registered.op.name)
        dims = {name: dim for name, dim in in_dims[0].items() if isinstance(dim, int)}
        tensors = {name: value.movedim(dims[name], 0) if name in dims else value for name, value in given.items()}
        one = {name: value[0] if name in dims else value for name, value in tensors.items()}
        values = registered.declaration.bind((), one)
        op, specs, scalars, read = fake.trace_call(registered.declaration, values, autocast)
        if any(read[name] is not one.get(name) for name in read):  # the op is declared on views of its arguments
            return _one_by_one(call, tensors, dims, info.batch_size)
        root = registered.root(op, specs, autocast)
        node = root.batch(tuple(sorted(dims)))
        layout = node.layout({NEW: info.batch_size}, {})
        results = registered.call_derived(node, [tensors[name] for name in node.arguments], scalars, layout)
        return _packed(registered, op, results, _out_dims(node))

    return _vmapped(rule, call, schema.named(args, kwargs))


def _packed(registered: Any, op: Op, results: list[Any], dims: list[int | None]) -> Answer:
    if op.result == "one" and registered.count == 0:
        return results[0], dims[0]
    return registered.packed(tuple(results)), list(dims) if registered.count < 0 else tuple(dims)


def _one_by_one(call: Callable[..., Any], tensors: Mapping[str, Any], dims: Mapping[str, int], count: int) -> Answer:
    """As torch's fallback."""
    calls = [call({n: value[i] if n in dims else value for n, value in tensors.items()}) for i in range(count)]
    if isinstance(calls[0], torch.Tensor):
        return torch.stack(calls), 0
    kind = type(calls[0])
    return kind(torch.stack(results) for results in zip(*calls, strict=True)), kind([0] * len(calls[0]))


def of_derived(registered: Any, name: str, given: Any, numbers: Any, layout: Any, text: str) -> Any:
    """The kernel of ``NAME_forward`` and ``NAME_backward`` under vmap."""
    node: Derived = registered.node(text)

    def call(given: Sequence[Any]) -> Any:
        return getattr(torch.ops.fusegen, name)(list(given), numbers, layout, text)

    def rule(info: Any, in_dims: Any, given: Sequence[Any]) -> Answer:
        dims = dict(zip(node.arguments, in_dims[0], strict=True))
        wide = tuple(sorted(n for n, dim in dims.items() if dim is not None))
        tensors = [t if dims[n] is None else t.movedim(dims[n], 0) for n, t in zip(node.arguments, given, strict=True)]
        calls = node.batch(wide)
        sizes, strides = node.unpack(layout)
        shapes = {name: tuple(tensor.shape) for name, tensor in zip(node.arguments, tensors, strict=True)}
        known = {NEW: info.batch_size, **shifted_sizes(sizes), **backward.axis_sizes(calls.op, shapes)}
        has_calls = is_wide(calls.op)
        like = {
            name: (prod(_shape(calls.op, name, known)[1:]), *strides[name]) if has_calls[name] else strides[name]
            for name, _ in node.like
        }
        scalars = dict(zip((scalar.name for scalar in node.op.scalars), numbers, strict=True))
        return registered.call_derived(calls, tensors, scalars, calls.layout(known, like)), _out_dims(calls)

    return _vmapped(rule, call, list(given))


def _shape(op: Op, name: str, sizes: Mapping[str, Any]) -> list[Any]:
    """The shape of a result, a packed one's as a whole."""
    output = next(o for o in op.outputs if o.base == name)
    return whole_shape(output, sizes)


def _out_dims(node: Derived) -> list[int | None]:
    has_calls = is_wide(node.op)
    return [0 if has_calls[name] else None for name in node.names]


def _vmapped(rule: Callable[..., Answer], call: Callable[..., Any], given: Any) -> Any:
    from torch._functorch.autograd_function import custom_function_call_vmap_helper  # slow to import
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    interpreter: Any = retrieve_current_functorch_interpreter()
    return custom_function_call_vmap_helper(interpreter, rule, call, given)

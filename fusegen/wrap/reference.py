"""The eager meaning of an Op on torch tensors: its statements one by one, with the function table's references.

In float64 it is the oracle that kernels are compared with. It is written with nothing but torch's own differentiable
functions, so torch's autograd over it is the oracle of gradients. It fuses nothing and is not meant to be fast.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import LegalityError
from fusegen.core.ir import Call, Const, Expr, Index, Op, Operand, Output, Part, Reduce, Ref, Size, expr_axes, walk
from fusegen.core.products import KIND as DOT
from fusegen.core.products import contracted_sizes, factors
from fusegen.declare.table import lookup

if TYPE_CHECKING:
    import torch


def _extremum(t: Any, x: torch.Tensor, dims: tuple[int, ...], largest: bool) -> Any:
    """The maximum or minimum; of nothing (which torch refuses) what adds nothing to it."""
    if all(x.shape[d] for d in dims):
        return (t.amax if largest else t.amin)(x, dims, keepdim=True)
    if x.is_floating_point():
        nothing: float = -math.inf if largest else math.inf
    else:
        limits = t.iinfo(t.uint8 if x.dtype is t.bool else x.dtype)
        nothing = limits.min if largest else limits.max
    return x.new_full([1 if d in dims else size for d, size in enumerate(x.shape)], nothing)


# Reductions over dimensions that stay with size one, and what they are for tensors of any dtype.
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda t, x, dims: t.sum(x, dims, keepdim=True, dtype=x.dtype),
    "prod": lambda t, x, dims: functools.reduce(lambda y, d: t.prod(y, d, keepdim=True, dtype=y.dtype), dims, x),
    "max": lambda t, x, dims: _extremum(t, x, dims, largest=True),
    "min": lambda t, x, dims: _extremum(t, x, dims, largest=False),
    "squared_deviation": lambda t, x, dims: t.square(x - x.mean(dims, keepdim=True)).sum(dims, keepdim=True),
    "sum_exp": lambda t, x, dims: t.exp(x - _extremum(t, x, dims, largest=True).detach()).sum(dims, keepdim=True),
}


def reference(
    op: Op, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, Any] | None = None, dtype: Any = None
) -> list[torch.Tensor]:
    """What ``op`` computes, with every float in one dtype.

    Args:
        tensors: by argument name; a packed argument once, by its own name.
        scalars: Python numbers of runtime scalars, by name.
        dtype: torch dtype of all floats, float64 by default. It is also the dtype of float results: nothing is rounded
            but where the declaration casts. Integers and bools keep the op's own dtypes.

    Returns:
        The results, a packed output once.
    """
    import torch

    return _Evaluation(torch, op, tensors, scalars or {}, dtype or torch.float64).run()


class _Evaluation:
    """One call. Every value has one dimension per axis of the op, in order, of size one where it lacks the axis."""

    def __init__(self, torch: Any, op: Op, tensors: Mapping[str, Any], scalars: Mapping[str, Any], floats: Any) -> None:
        self.torch, self.op, self.floats = torch, op, floats
        self.axes = op.axes
        self.sizes: dict[str, int] = {}
        self.device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
        self.named: dict[str, Any] = {}
        for operand in op.operands:
            self.named[operand.name] = self._aligned(operand, tensors[operand.base])
        self.sizes = contracted_sizes(op, self.sizes)
        for scalar in op.scalars:
            self.named[scalar.name] = self._number(scalars[scalar.name], scalar.dtype)

    def run(self) -> list[Any]:
        for statement in self.op.statements:
            if isinstance(statement, Reduce) and statement.kind == DOT:
                value = self._multiply(statement)
            else:
                value = self._evaluate(statement.expr)
                if isinstance(statement, Reduce):
                    value = self._reduce(statement, value)
            self.named[statement.name] = value
        results: dict[str, Any] = {}
        packed: dict[str, list[tuple[Part, Any]]] = {}
        for output in self.op.outputs:
            value = self._placed(output)
            if output.part is None:
                results[output.name] = value
            else:
                packed.setdefault(output.part.base, []).append((output.part, value))
                results[output.part.base] = None
        for base, blocks in packed.items():
            ordered = sorted(blocks, key=lambda block: block[0].index)
            results[base] = self.torch.cat([value for _, value in ordered], dim=ordered[0][0].dim)
        return list(results.values())

    # -- in and out -----------------------------------------------------------------------------------------------

    def _dtype(self, dtype: DType) -> Any:
        return self.floats if dtype.is_float else getattr(self.torch, dtype.name)

    def _number(self, value: Any, dtype: DType) -> Any:
        return self.torch.tensor(value, dtype=self._dtype(dtype), device=self.device)

    def _aligned(self, operand: Operand, tensor: Any) -> Any:
        part = operand.part
        if part is not None:
            size = tensor.shape[part.dim] // part.count
            tensor = tensor.narrow(part.dim, part.index * size, size)
        tensor = tensor.to(self._dtype(operand.dtype))
        for dim, axis in enumerate(operand.shape):
            if axis is not None:
                self.sizes[axis] = tensor.shape[dim]
        own = [axis for axis in operand.shape if axis is not None]
        tensor = tensor.reshape([self.sizes[axis] for axis in own])
        tensor = tensor.permute([own.index(axis) for axis in self.axes if axis in own])
        return tensor.reshape([self.sizes[axis] if axis in own else 1 for axis in self.axes])

    def _placed(self, output: Output) -> Any:
        """The output with its own dimensions, broadcast to its shape."""
        value = self._evaluate(output.expr)
        own = [axis for axis in output.shape if axis is not None]
        value = value.expand([self.sizes[axis] if axis in own else 1 for axis in self.axes])
        value = value.reshape([self.sizes[axis] for axis in self.axes if axis in own])
        kept = [axis for axis in self.axes if axis in own]
        value = value.permute([kept.index(axis) for axis in own])
        value = value.reshape([self.sizes[axis] if axis else 1 for axis in output.shape])
        return value.to(self._dtype(output.dtype))

    # -- expressions ----------------------------------------------------------------------------------------------

    def _evaluate(self, root: Expr) -> Any:
        values: dict[Expr, Any] = {}
        for node in walk([root]):
            values[node] = self._node(node, values)
        return values[root]

    def _node(self, node: Expr, values: Mapping[Expr, Any]) -> Any:
        if isinstance(node, Const):
            return self._number(node.value, node.dtype)
        if isinstance(node, Ref):
            return self.named[node.name]
        if isinstance(node, Size):
            return self._number(self.sizes[node.axis], node.dtype)
        if isinstance(node, Index):
            positions = self.torch.arange(self.sizes[node.axis], device=self.device)
            return positions.reshape([-1 if axis == node.axis else 1 for axis in self.axes])
        assert isinstance(node, Call)
        args = [values[arg] for arg in node.args]
        if node.function == "cast":
            return self._cast(node, args[0])
        detail = (node.detail,) if node.detail else ()
        return lookup(node.function).reference(self.torch, *args, *detail)

    def _cast(self, node: Call, value: Any) -> Any:
        if node.detail:  # rounds to a half type, in whatever dtype the floats are computed
            value = value.to(getattr(self.torch, node.detail))
        if node.args[0].dtype.is_float and node.dtype.category is dtypes.Category.INTEGER:
            value = value.detach()
        return value.to(self._dtype(node.dtype))

    def _multiply(self, reduce: Reduce) -> Any:
        """A matrix product. Its factors are as exact as everything else: only what the op casts is rounded."""
        known = self.op.axes_of()
        result = [axis for axis in self.axes if axis in known[reduce.name]]
        numbers: dict[str, int] = {}
        terms: list[Any] = []
        for side in factors(reduce):
            own = [axis for axis in self.axes if axis in expr_axes(side.expr, known)]
            value = self._evaluate(side.expr)
            value = value.expand([self.sizes[axis] if axis in own else 1 for axis in self.axes])
            value = value.reshape([self.sizes[axis] for axis in own])
            terms += [value, [numbers.setdefault(side.name_of(axis), len(numbers)) for axis in own]]
        value = self.torch.einsum(*terms, [numbers[axis] for axis in result])
        return value.reshape([self.sizes[axis] if axis in result else 1 for axis in self.axes])

    def _reduce(self, reduce: Reduce, value: Any) -> Any:
        rule = _REDUCTIONS.get(reduce.kind)
        if rule is None:
            raise LegalityError(
                f"{self.op.name}, reference", given=f"a reduction of kind {reduce.kind!r}",
                expected=", ".join(_REDUCTIONS), fix="add its rule to wrap/reference.py",
            )  # fmt: skip
        dims = tuple(position for position, axis in enumerate(self.axes) if axis in reduce.over)
        full = [self.sizes[axis] if position in dims else -1 for position, axis in enumerate(self.axes)]
        return rule(self.torch, value.expand(full), dims)

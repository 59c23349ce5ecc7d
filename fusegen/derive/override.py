"""A gradient that the user declared in place of the derived one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from fusegen.core.errors import DerivativeError
from fusegen.core.ir import Expr, Op, Operand, Output, Part, Shape, expr_axes
from fusegen.core.products import contracted_sizes, free_axis, renamed_axes
from fusegen.declare.op import Declaration
from fusegen.declare.reductions import reduce
from fusegen.declare.trace import TensorSpec, trace
from fusegen.declare.value import Value, broadcast, cast, lift
from fusegen.derive.batch import batch
from fusegen.derive.gradient import GradientNames


@dataclass(frozen=True)
class Overridden:
    """Stands in for a ``Training``: the forward keeps nothing, the backward is traced from the user's function."""

    forward: Op
    wanted: tuple[str, ...]
    declaration: Declaration
    kept: tuple[tuple[Expr, Operand], ...] = ()

    @property
    def public(self) -> int:
        return len(self.forward.outputs)

    def backward(self, given: Sequence[int]) -> Op:
        """The user's gradient as an Op; outputs without a cotangent are passed as 0.0."""
        op, declaration = self.forward, self.declaration
        arguments = self._arguments
        sizes = _axis_sizes(op, arguments)
        outputs = [(i, o) for i, o in enumerate(op.outputs) if o.dtype.is_float]
        names = GradientNames.of(op)
        specs = {i: TensorSpec(o.dtype, tuple(sizes[a] if a else 1 for a in o.shape)) for i, o in outputs}
        cotangents = {names.results[o.name]: specs[i] if i in given else 0.0 for i, o in outputs}

        def function(**values: Any) -> Any:
            return self._summed(self._called({name: values[name] for name in (*cotangents, *arguments)}), values)

        function.__doc__ = declaration.function.__doc__
        codes = {getattr(declaration.gradient, "__code__", None)}
        traced, _ = trace(function, op.name, op.declared, {**cotangents, **arguments}, codes)
        traced = _named_as(traced, op, {names.results[o.name]: o.shape for _, o in outputs})
        shapes, known = {o.name: o.shape for o in op.operands if o.part is None}, traced.axes_of()
        gradients = [
            replace(o, name=names.arguments[n], part=None, shape=_as_known(o, shapes.get(n, ()), known))
            for o, n in zip(traced.outputs, self._order(), strict=True)
        ]
        return replace(traced, label="backward", result="tuple", outputs=tuple(gradients))

    def _called(self, values: dict[str, Any]) -> Any:
        """What the user's function returns. It takes values in order, and by name what it says to take so only."""
        function = self.declaration.gradient
        assert function is not None
        signature = inspect.signature(function)
        named = {
            p.name: values[p.name]
            for p in signature.parameters.values()
            if p.kind is p.KEYWORD_ONLY and p.name in values
        }
        ordered = [value for name, value in values.items() if name not in named]
        try:
            signature.bind(*ordered, **named)
        except TypeError as error:
            raise DerivativeError(
                f"{self.forward.name}, gradient", given=f"{function.__name__}{signature}: {error}",
                expected=f"({', '.join(values)})",
                fix="take the cotangent of each float result, then all of the op's own arguments, options too",
            ) from None  # fmt: skip
        return function(*ordered, **named)

    @property
    def _arguments(self) -> Mapping[str, Any]:
        assert self.forward.given is not None
        return self.forward.given.arguments

    def _order(self) -> list[str]:
        return [n for n, spec in self._arguments.items() if isinstance(spec, TensorSpec) and n in self.wanted]

    def _summed(self, returned: Any, values: dict[str, Any]) -> tuple[Value, ...]:
        """Per wanted argument its gradient, summed over the dimensions along which the argument was broadcast."""
        names = [n for n, spec in self._arguments.items() if isinstance(spec, TensorSpec)]
        grads = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if len(grads) != len(names):
            raise DerivativeError(
                f"{self.forward.name}, gradient", given=f"{len(grads)} gradients returned",
                expected=f"one for each tensor argument: {', '.join(names)}", fix="return None where there is none",
            )  # fmt: skip
        result = []
        for name, grad in zip(names, grads, strict=True):
            if name in self.wanted:
                argument = values[name]
                value = lift(0.0 if grad is None else grad)
                result.append(cast(_sum_to(value, argument), argument.dtype))
        return tuple(result)


@dataclass(frozen=True)
class Batched:
    """An overridden gradient of many calls in one: that of one call, for each.

    Args:
        wide: arguments that have a value for each call. Every result has one, so that a cotangent belongs to one call.
    """

    single: Overridden | Batched
    wide: frozenset[str]
    kept: tuple[tuple[Expr, Operand], ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        return self.single.wanted

    @property
    def public(self) -> int:
        return self.single.public

    @property
    def forward(self) -> Op:
        return batch(self.single.forward, self.wide | set(GradientNames.of(self.single.forward).results))

    def backward(self, given: Sequence[int]) -> Op:
        """The user's gradient for each call, added up for arguments that are the same for all."""
        names = GradientNames.of(self.single.forward)
        per_call = {*self.wide, *names.results.values(), *(names.arguments[n] for n in self.wide)}
        common = {names.arguments[n] for n in self.wanted if n not in self.wide}
        return batch(self.single.backward(given), frozenset(per_call), frozenset(common))


def _sum_to(value: Value, like: Value) -> Value:
    broadcast([value, like], "gradient")  # their axes are one from here on
    extra = value.ndim - like.ndim
    if extra > 0:
        value = reduce("sum", value, tuple(range(extra)))
    over = tuple(
        d for d in range(value.ndim) if value.dims[d] is not None and like.dims[like.ndim - value.ndim + d] is None
    )
    if over:
        value = reduce("sum", value, over, keepdims=True)
    return Value(value.expr, value.dtype, like.dims)


def _named_as(traced: Op, forward: Op, cotangents: Mapping[str, Shape]) -> Op:
    """``traced`` with the forward's names for the forward's axes, whose sizes are known by these, and new ones for all
    others. Two axes that are one in the forward, or one that is two there, have one of the names."""
    shapes: dict[tuple[str, Part | None], Shape] = {(name, None): shape for name, shape in cotangents.items()}
    for operand in forward.operands:
        shapes[operand.name, operand.part] = operand.shape
        if operand.part:  # of a packed argument as a whole, all axes but one are known
            dim = operand.part.dim
            shapes[operand.part.base, None] = (*operand.shape[:dim], None, *operand.shape[dim + 1 :])
    found: dict[str, str] = {}
    for operand in traced.operands:
        for own, theirs in zip(operand.shape, shapes.get((operand.name, operand.part), ()), strict=False):
            if own and theirs and own not in found and theirs not in found.values():
                found[own] = theirs
    fresh = count(free_axis(forward))
    return renamed_axes(traced, lambda axis: found.get(axis) or found.setdefault(axis, f"d{next(fresh)}"))


def _as_known(output: Output, argument: Shape, known: Mapping[str, frozenset[str]]) -> Shape:
    """The shape of a gradient with its argument's axes where it is the same all along: a constant, or what lacks one of
    the argument's axes. Nothing else might tell their sizes."""
    own = expr_axes(output.expr, known)
    free = [theirs if axis not in own else axis for axis, theirs in zip(output.shape, argument, strict=False)]
    named = [axis for axis in free if axis]
    return tuple(free) if len(free) == len(output.shape) and len(set(named)) == len(named) else output.shape


def _axis_sizes(op: Op, arguments: Mapping[str, Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for operand in op.operands:
        part = operand.part
        for d, axis in enumerate(operand.shape):
            if axis:
                size = arguments[part.base if part else operand.name].shape[d]
                sizes[axis] = size // part.count if part and part.dim == d else size
    return contracted_sizes(op, sizes)

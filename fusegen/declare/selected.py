"""Elements where a mask holds, ``x[mask]``: how many these are, only values tell, so they are no tensor.

What may be done with them needs no number of them: element by element with numbers and with others of the same mask,
added up, and put back where they were (``y[mask] = x[mask] * 2``, ``y[mask] += 1``, ``loss[mask].mean()``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.declare import reductions
from fusegen.declare.value import Value, broadcast, cast, current, elementwise, lift, shape_of


class Selected:
    """Elements of a tensor where a mask of its first dimensions holds.

    Attributes:
        value: the whole tensor; what it is where the mask does not hold says nothing.
        mask: of bools.
    """

    __slots__ = ("mask", "value")

    def __init__(self, value: Value, mask: Value) -> None:
        self.value, self.mask = value, mask

    def where_it_holds(self) -> Value:
        """The mask with as many dimensions as the tensor."""
        more = self.value.ndim - self.mask.ndim
        return Value(self.mask.expr, self.mask.dtype, (*self.mask.dims, *[None] * more))

    def is_of(self, mask: Value) -> bool:
        """Whether they are those of this mask."""
        axes = [[dim and dim.find() for dim in each.dims] for each in (mask, self.mask)]
        return mask.expr is self.mask.expr and axes[0] == axes[1]

    def _with(self, other: Any) -> Any:
        """What meets the whole tensor where ``other`` meets these elements."""
        if isinstance(other, Selected):
            if other.is_of(self.mask):
                return other.value
        elif lift(other).ndim <= self.value.ndim - self.mask.ndim:
            return other
        raise self.refused("what is computed with elements where another mask holds, or with a tensor")

    def each(self, function: Callable[..., Value], *args: Any, **kwargs: Any) -> Selected:
        """A function of each element."""
        found = function(self.value, *map(self._with, args), **kwargs)
        if found.ndim != self.value.ndim:
            raise self.refused("what is no function of each element")
        return Selected(found, self.mask)

    def become(self, other: Selected) -> Selected:
        """What ``+=`` makes of them, under all their names."""
        self.value = other.value
        return self

    def sum(self, *dims: Any, **options: Any) -> Value:
        """All of them added up."""
        if dims or options:
            raise self.refused(".sum along a dimension, or in another dtype")
        kept = elementwise("where", self.where_it_holds(), self.value, cast(0, self.value.dtype))
        return reductions.sum(kept)

    def mean(self, *dims: Any, **options: Any) -> Value:
        """Their mean: NaN of none."""
        if dims or options:
            raise self.refused(".mean along a dimension, or in another dtype")
        spread = Value(self.mask.expr, dtypes.bool_, broadcast([self.where_it_holds(), self.value], "mean"))
        return elementwise("div", self.sum(), reductions.sum(cast(spread, dtypes.int64)))

    def refused(self, given: str) -> DeclarationError:
        """The error of what cannot be told without values."""
        return DeclarationError(
            f"{current().where}, x[mask]", given=f"{given}, of {shape_of(self.value)}",
            expected="operators, functions of each element, sum and mean: how many there are, only values tell",
            fix="keep all elements: fg.where(mask, x, 0), or index outside the op",
        )  # fmt: skip

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(getattr(function, "__name__", function))
        first = next(value for value in (*args, *(kwargs or {}).values()) if isinstance(value, cls))
        if first is not args[0]:
            raise first.refused(f"torch.{name}")
        return getattr(first, name)(*args[1:], **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # other libraries look for their protocols
            raise AttributeError(name)
        table = importlib.import_module("fusegen.declare.language").TABLE_FUNCTIONS
        methods = importlib.import_module("fusegen.declare.torch_names")
        if name in table or name in _OF_EACH:
            function = methods.method_of(name).function if methods.method_of(name) else table[name]
            return lambda *args, **kwargs: self.each(function, *args, **kwargs)
        raise self.refused(f".{name}")


# torch's functions of each element that the language has under other names.
_OF_EACH = ("add", "sub", "mul", "div", "neg", "pow", "square", "reciprocal", "clamp", "clamp_min", "detach", "float")


def _operators() -> None:
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
        for side in (f"__{name}__", f"__r{name}__"):
            operator = lambda x, other, side=side: x.each(getattr(Value, side), other)  # noqa: E731
            setattr(Selected, side, operator)
        in_place = lambda x, other, side=f"__{name}__": x.become(x.each(getattr(Value, side), other))  # noqa: E731
        setattr(Selected, f"__i{name}__", in_place)
    for name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert"):
        operator = lambda x, *others, name=name: x.each(getattr(Value, f"__{name}__"), *others)  # noqa: E731
        setattr(Selected, f"__{name}__", operator)
    Selected.__hash__ = object.__hash__  # type: ignore[method-assign]


_operators()


def selected(x: Value, mask: Value) -> Selected:
    """``x[mask]``.

    Raises:
        ShapeError: the mask is of other dimensions.
    """
    if not 0 < mask.ndim <= x.ndim:
        raise ShapeError(
            f"{current().where}, x[mask]", given=f"{shape_of(mask)} for {shape_of(x)}",
            expected="a mask of its first dimensions", fix="add dimensions of size one to the tensor",
        )  # fmt: skip
    front = Value(x.expr, x.dtype, x.dims[: mask.ndim])
    broadcast([front, mask], "x[mask]")  # their axes are one from here on
    if any((a is None) != (b is None) for a, b in zip(front.dims, mask.dims, strict=True)):
        raise ShapeError(
            f"{current().where}, x[mask]", given=f"{shape_of(mask)} for {shape_of(x)}",
            expected="a mask of the same sizes", fix="expand it: mask.expand_as(x)",
        )  # fmt: skip
    return Selected(Value(x.expr, x.dtype, x.dims), mask)

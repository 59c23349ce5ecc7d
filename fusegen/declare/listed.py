"""Tensors of a few numbers that a declaration writes down: ``torch.tensor([0.5, 2.0])``, ``x[[0, 2], [1, 1]]``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError
from fusegen.declare import creation
from fusegen.declare.value import Value, as_dtype, cast, current, elementwise, lift, plain_number

# How many numbers a list may have that is compiled into the op.
MOST_LISTED = 64


def listed(data: Any, default: DType, dtype: Any = None) -> Value:
    """A number, or lists of some, as a tensor.

    Args:
        default: the dtype of floats, if no other is wanted.

    Raises:
        DeclarationError: they are no numbers, too many, or lists of several lengths.
    """
    sizes, numbers = _taken_apart(data)
    if len(numbers) > MOST_LISTED or not all(_is_number(number) for number in numbers):
        raise DeclarationError(
            f"{current().where}, torch.tensor", given=f"{data!r:.60}",
            expected=f"a number, or lists of {MOST_LISTED} numbers at most",
            fix="pass the tensor as an argument; positions are torch.arange(n), tensors side by side torch.stack",
        )  # fmt: skip
    values = [lift(number) for number in numbers]
    kind = functools.reduce(dtypes.join, (value.dtype for value in values)) if values else default
    kind = default if kind.is_float else kind
    kind = kind if dtype is None else as_dtype(dtype)  # of the numbers themselves: 0.1 in double, or a long of a float
    one = cast(0, kind) if not values else _chosen(values, _places(sizes), kind)
    dims = tuple(creation.axis_of(size, "tensor") for size in sizes) if not values else one.dims
    return Value(one.expr, one.dtype, dims)


def _taken_apart(data: Any) -> tuple[list[int], list[Any]]:
    """The shape of lists within lists, and what is in them.

    Raises:
        DeclarationError: they are of several lengths.
    """
    if not isinstance(data, (list, tuple, range)):
        return [], [plain_number(data)]
    each = [_taken_apart(item) for item in data]
    if any(shape != each[0][0] for shape, _ in each):
        raise DeclarationError(
            f"{current().where}, torch.tensor", given=f"{data!r:.60}", expected="lists of one length",
            fix="fill the shorter ones up",
        )  # fmt: skip
    return [len(each), *(each[0][0] if each else [])], [number for _, numbers in each for number in numbers]


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, Value) and value.weak)


def _places(sizes: Sequence[int]) -> Value:
    """The number of each element of a tensor of this shape."""
    place = Value(lift(0).expr, dtypes.int64, (None,) * len(sizes))
    for at, size in enumerate(sizes):
        found = creation.arange(size)
        own = Value(found.expr, found.dtype, (*found.dims, *[None] * (len(sizes) - at - 1)))
        place = elementwise("add", elementwise("mul", place, size), own) if at else own
    return place


def _chosen(values: Sequence[Value], place: Value, kind: DType) -> Value:
    """One of several numbers, by their place: halves are told from each other, and halves of these."""
    found = [cast(value, kind) for value in values]

    def among(start: int, end: int) -> Value:
        if end - start == 1:
            return found[start]
        middle = (start + end) // 2
        return elementwise("where", elementwise("lt", place, middle), among(start, middle), among(middle, end))

    made = among(0, len(found))
    return Value(made.expr, kind, place.dims)


def positions(key: range | Sequence[int]) -> Value:
    """Places that a list or a range names."""
    if isinstance(key, range):
        return creation.arange(key.start, key.stop, key.step)
    return listed(key, dtypes.int64)

"""Tensors that a declaration makes of sizes alone: positions, one number everywhere, and classes told apart.

Each has an axis of its own, of so many elements, which becomes that of what it meets. Where no argument has it, its
name tells its size (core/ir, ``axis_name``). Such sizes are a part of the compiled op, which is why a declaration that
makes one is traced for each shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, DtypeError
from fusegen.core.ir import Index, const
from fusegen.declare.axes import AxisVar
from fusegen.declare.value import Like, Value, cast, convert, current, elementwise, lift, plain_number, shape_of


def arange(start: int, end: int | None = None, step: int = 1, *, dtype: Any = None) -> Value:
    """Positions ``start, start + step, ...`` below ``end``; with one argument 0, 1, ..., ``start - 1``.

    A vector of int64, or of ``dtype``, that no tensor stores. Numbers are ints, or sizes of a tensor (``x.shape[1]``).
    Source: torch.arange.

    Raises:
        DeclarationError: a number is no int when the op is traced, the step is 0, or the end lies before the start.
    """
    given = (0, start, step) if end is None else (start, end, step)
    first, last, by = (whole(number, "arange", from_zero=False) for number in given)
    if not by or (last - first) * by < 0:
        raise DeclarationError(
            f"{current().where}, arange", given=f"from {first} to {last} by {by}",
            expected="a step that leads from the start to the end (as torch)", fix="choose another one",
        )  # fmt: skip
    count = -(-(last - first) // by)
    axis = axis_of(count, "arange")
    place = const(0, dtypes.int64) if axis is None else Index(current().name_of(axis))
    found = Value(place, dtypes.int64, (axis,))
    if by != 1:
        found = elementwise("mul", found, by)
    if first:
        found = elementwise("add", found, first)
    return found if dtype is None else cast(found, dtype)


def full(shape: int | Sequence[int], value: Like, *, dtype: Any = None) -> Value:
    """``value``, a number, everywhere in a tensor of this shape; of ``dtype``, or of the number's own.

    Sizes are ints, or those of a tensor (``x.shape[1]``). Source: torch.full.

    Raises:
        DeclarationError: a size is no int from 0 on when the op is traced.
    """
    return _filled("full", shape, value, dtype)


def zeros(shape: int | Sequence[int], *, dtype: Any = dtypes.float32) -> Value:
    """0 everywhere in a tensor of this shape; see ``full``. Source: torch.zeros.

    Raises:
        DeclarationError: a size is no int from 0 on when the op is traced.
    """
    return _filled("zeros", shape, 0, dtype)


def ones(shape: int | Sequence[int], *, dtype: Any = dtypes.float32) -> Value:
    """1 everywhere in a tensor of this shape; see ``full``. Source: torch.ones.

    Raises:
        DeclarationError: a size is no int from 0 on when the op is traced.
    """
    return _filled("ones", shape, 1, dtype)


def one_hot(x: Like, num_classes: int) -> Value:
    """1 where the last dimension's position is ``x``, else 0: ``(x[..., None] == arange(num_classes))`` in int64.

    For ``x`` of shape [...] it is of shape [..., num_classes]. No tensor of it is stored unless the op returns it. A
    class that is out of range is all zeros (torch raises on some devices). Source: torch.nn.functional.one_hot.

    Raises:
        DtypeError: ``x`` is not of integers.
        DeclarationError: ``num_classes`` is no int from 0 on when the op is traced.
    """
    value = lift(x)
    if value.dtype.category is not dtypes.Category.INTEGER:
        raise DtypeError(
            f"{current().where}, one_hot", given=f"{value.dtype} of shape {shape_of(value)}",
            expected="integers: the numbers of classes", fix="cast with .to(fg.int64)",
        )  # fmt: skip
    classes = arange(whole(num_classes, "one_hot"))
    given = Value(convert(value.expr, dtypes.int64), dtypes.int64, (*value.dims, None))
    return cast(elementwise("eq", given, classes), dtypes.int64)


def _filled(what: str, shape: int | Sequence[int], value: Like, dtype: Any) -> Value:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    dims = tuple(axis_of(whole(size, what), what) for size in sizes)
    number = lift(value)
    if number.ndim:
        raise DeclarationError(
            f"{current().where}, {what}", given=shape_of(number), expected="one number",
            fix="expand the tensor: it broadcasts against what it meets",
        )  # fmt: skip
    filled = cast(number, number.dtype if dtype is None else dtype)
    return Value(filled.expr, filled.dtype, dims)


def axis_of(size: int, what: str) -> AxisVar | None:
    """An axis of so many elements, which no argument need have."""
    current().reads_sizes = True
    return AxisVar(size, what, fixed=True, made=True) if size != 1 else None


def whole(given: Any, what: str, *, from_zero: bool = True) -> int:
    """A size, which is known when the op is traced.

    Raises:
        DeclarationError: it is no int.
    """
    number = plain_number(given)
    if not isinstance(number, int) or isinstance(number, bool) or (from_zero and number < 0):
        raise DeclarationError(
            f"{current().where}, {what}", given=f"a size of {given!r}",
            expected=f"an int{' from 0 on' * from_zero} that is known when the op is traced",
            fix="annotate the argument `: fg.Const`, or take the size of a tensor: x.shape[1]",
        )  # fmt: skip
    return int(number)


FUNCTIONS = (arange, full, one_hot, ones, zeros)

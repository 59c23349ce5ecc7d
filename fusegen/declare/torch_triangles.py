"""torch's lists of what is above or below a diagonal, and of pairs: ``torch.triu_indices``, ``F.pdist``."""

from __future__ import annotations

from typing import Any

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.declare import creation, indexing, reductions
from fusegen.declare.torch_functions import stack, torchs, unbind
from fusegen.declare.value import Like, Value, cast, current, elementwise, lift, plain_number, shape_of


def upper(row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Value:
    """``[2, n]``: rows and columns of what ``torch.triu`` keeps of a matrix, row by row.

    Rows that are whole come first; each of the others has an element less than the one before.
    """
    rows, columns, offset = _sizes("triu_indices", row, col, offset)
    whole = min(rows, max(0, 1 - offset))
    first, longest = whole + offset, max(0, columns - whole - offset)
    count = min(rows - whole, longest)
    place = creation.arange(whole * columns + count * longest - count * (count - 1) // 2)
    behind = _plus(place, -whole * columns)
    # Row j begins at j * longest - j * (j - 1) / 2, where what the root is taken of is a square.
    under = elementwise("sub", (2 * longest + 1) ** 2, elementwise("mul", behind, 8))
    at = _whole(elementwise("mul", elementwise("sub", float(2 * longest + 1), _root(under)), 0.5))
    start = elementwise("sub", elementwise("mul", at, longest), _pairs(at))
    along = _plus(elementwise("add", at, elementwise("sub", behind, start)), first)
    is_whole = elementwise("lt", place, whole * columns)
    return _both(is_whole, _in_rows(place, columns), (_plus(at, whole), along), dtype)


def lower(row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Value:
    """``[2, n]``: rows and columns of what ``torch.tril`` keeps of a matrix, row by row.

    Each row has an element more than the one before, until they are whole.
    """
    rows, columns, offset = _sizes("tril_indices", row, col, offset)
    none = min(rows, max(0, -offset))
    shortest = min(columns, none + offset + 1)
    count = min(rows - none, columns - shortest)
    longer = count * shortest + count * (count - 1) // 2
    place = creation.arange(longer + (rows - none - count) * columns)
    under = _plus(elementwise("mul", place, 8), (2 * shortest - 1) ** 2)
    at = _whole(elementwise("mul", elementwise("sub", _root(under), float(2 * shortest - 1)), 0.5))
    start = elementwise("add", elementwise("mul", at, shortest), _pairs(at))
    in_row, column = _in_rows(_plus(place, -longer), columns)
    whole = (_plus(in_row, none + count), column)
    is_whole = elementwise("ge", place, longer)
    return _both(is_whole, whole, (_plus(at, none), elementwise("sub", place, start)), dtype)


def _sizes(what: str, row: int, col: int, offset: int) -> tuple[int, int, int]:
    rows, columns = creation.whole(row, what), creation.whole(col, what)
    return rows, columns, creation.whole(offset, what, from_zero=False)


def _plus(value: Value, number: int) -> Value:
    return elementwise("add", value, number) if number else value


def _root(value: Value) -> Value:
    """Of an integer below zero, of which nobody asks, that of zero."""
    return elementwise("sqrt", cast(elementwise("maximum", value, 0), dtypes.float64))


def _whole(value: Value) -> Value:
    return cast(elementwise("floor", value), dtypes.int64)


def _pairs(count: Value) -> Value:
    return elementwise("floor_divide", elementwise("mul", count, _plus(count, -1)), 2)


def _in_rows(place: Value, columns: int) -> tuple[Value, Value]:
    return elementwise("floor_divide", place, max(columns, 1)), elementwise("remainder", place, max(columns, 1))


def _both(is_whole: Value, whole: tuple[Value, Value], others: tuple[Value, Value], dtype: Any) -> Value:
    """Rows and columns as one tensor: in rows that are whole, and in others."""
    found = (elementwise("where", is_whole, *each) for each in zip(whole, others, strict=True))
    return stack([cast(each, dtypes.int64 if dtype is None else dtype) for each in found])


@torchs("pdist", "nn.functional.pdist")
def pdist(input: Like, p: float = 2.0) -> Value:
    """``fg.norm(x[i] - x[j], p, -1)`` of each pair of rows, ``i, j = torch.triu_indices(n, n, 1)``."""
    value = lift(input)
    if value.ndim != 2:
        raise ShapeError(
            f"{current().where}, pdist", given=shape_of(value), expected="rows of a matrix",
            fix="use torch.cdist(x, x) of batches",
        )  # fmt: skip
    return reductions.norm(elementwise("sub", *_each_pair(value, 1)), p, -1)


@torchs("combinations")
def combinations(input: Like, r: int = 2, with_replacement: bool = False) -> Value:
    """Pairs of elements, ``torch.stack((x[i], x[j]), -1)`` with ``i, j = torch.triu_indices(n, n, 1)``."""
    value, count = lift(input), plain_number(r)
    if value.ndim != 1 or count != 2:
        raise DeclarationError(
            f"{current().where}, combinations", given=f"r={count!r} of {shape_of(value)}", expected="pairs of a vector",
            fix="build them of torch.arange and comparisons, or outside the op",
        )  # fmt: skip
    return stack(_each_pair(value, 0 if with_replacement else 1), -1)


def _each_pair(value: Value, offset: int) -> tuple[Value, Value]:
    places = upper(value.sizes[0], value.sizes[0], offset)
    first, second = unbind(places)
    return indexing.take(value, first, 0, negative=False), indexing.take(value, second, 0, negative=False)

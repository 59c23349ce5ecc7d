"""torch's functions that put tensors side by side, repeat them, and take differences, diagonals and windows of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.declare import creation, indexing, reductions, scans
from fusegen.declare.language import expand_dims
from fusegen.declare.meeting import met_apart
from fusegen.declare.memory import shares
from fusegen.declare.parts import concat, flatten, pieces, read
from fusegen.declare.torch_functions import Function, library, movedim, reshape, torchs, transpose
from fusegen.declare.value import (
    Like,
    Value,
    broadcast,
    cast,
    current,
    elementwise,
    lift,
    one_axis,
    plain_number,
    shape_of,
)


def _place(what: str, value: Value, dim: int) -> int:
    found = one_axis(value, dim, what)
    if found is None:
        raise ShapeError(
            f"{current().where}, {what}", given=f"{shape_of(value)}, without dimensions", expected="a dimension",
            fix="leave it out",
        )  # fmt: skip
    return found


def _along(value: Value, place: int, key: slice) -> Value:
    """A slice that is read at its places, since blocks are of one kind, and of one dimension."""
    current().reads_sizes = True
    return read(value, place, *key.indices(value.sizes[place]))


# -- side by side ------------------------------------------------------------------------------------------------------


def _each(of: Callable[[Value], Value], tensors: Sequence[Any]) -> Value | tuple[Value, ...]:
    """Of one tensor its own, of several, or a list of them, all."""
    if len(tensors) == 1 and not isinstance(tensors[0], (list, tuple)):
        return of(lift(tensors[0]))
    return tuple(of(lift(value)) for value in (tensors if len(tensors) > 1 else tensors[0]))


def _vector(value: Like) -> Value:
    value = lift(value)
    return value if value.ndim else expand_dims(value, 0)


def _matrix(value: Like) -> Value:
    value = _vector(value)
    return value if value.ndim > 1 else expand_dims(value, 0)


def _solid(value: Like) -> Value:
    value = _matrix(value)
    return value if value.ndim > 2 else expand_dims(value, -1)


@torchs("atleast_1d", numpy=["atleast_1d"])
@shares("each")
def atleast_1d(*tensors: Any) -> Value | tuple[Value, ...]:
    """``x``, with a dimension; of several each."""
    return _each(_vector, tensors)


@torchs("atleast_2d", numpy=["atleast_2d"])
@shares("each")
def atleast_2d(*tensors: Any) -> Value | tuple[Value, ...]:
    """``x``, a vector as a row; of several each."""
    return _each(_matrix, tensors)


@torchs("atleast_3d")
@shares("each")
def atleast_3d(*tensors: Any) -> Value | tuple[Value, ...]:
    """``x``, a matrix with one dimension more behind; of several each."""
    return _each(_solid, tensors)


@torchs("hstack")
def hstack(tensors: Sequence[Like]) -> Value:
    """``fg.concat(parts, 1)``, of vectors 0."""
    values = [_vector(part) for part in tensors]
    return concat(values, 0 if values[0].ndim == 1 else 1)


@torchs("vstack", "row_stack")
def vstack(tensors: Sequence[Like]) -> Value:
    """``fg.concat(parts, 0)``, of vectors as rows."""
    return concat([_matrix(part) for part in tensors], 0)


@torchs("dstack")
def dstack(tensors: Sequence[Like]) -> Value:
    """``fg.concat(parts, 2)``."""
    return concat([_solid(part) for part in tensors], 2)


@torchs("column_stack")
def column_stack(tensors: Sequence[Like]) -> Value:
    """``fg.concat(parts, 1)``, of vectors as columns."""
    values = [_vector(part) for part in tensors]
    return concat([value if value.ndim > 1 else expand_dims(value, -1) for value in values], 1)


@torchs("tensor_split")
@shares("parts")
def tensor_split(input: Like, indices_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    """``fg.split(x, count, axis)``, or parts between places; the first ones may be larger."""
    value = lift(input)
    place, given = _place("tensor_split", value, dim), plain_number(indices_or_sections)
    size = value.sizes[place]
    if isinstance(given, int):
        each, more = divmod(size, given)
        lengths = [each + (at < more) for at in range(given)]
        ends = [sum(lengths[: at + 1]) for at in range(given - 1)]
    else:
        ends = [int(end) for end in given]
    edges = [0, *ends, size]
    if all(a < b for a, b in itertools.pairwise(edges)):
        return pieces(value, [b - a for a, b in itertools.pairwise(edges)], place)
    return tuple(_along(value, place, slice(a, b)) for a, b in itertools.pairwise(edges))


def _split_along(name: str, place: int) -> Function:
    @shares("parts")
    def split_at(input: Like, indices_or_sections: int | Sequence[int], dim: int = place) -> tuple[Value, ...]:
        return tensor_split(input, indices_or_sections, dim % max(lift(input).ndim, 1))

    split_at.__doc__ = f"``torch.tensor_split(x, parts, {place})``."
    return torchs(name)(split_at)


hsplit, vsplit, dsplit = (_split_along(f"{letter}split", place) for letter, place in (("h", 1), ("v", 0), ("d", 2)))


@torchs("broadcast_tensors", numpy=["broadcast_arrays"])
@shares("each")
def broadcast_tensors(*tensors: Like) -> tuple[Value, ...]:
    """Each with the dimensions of all."""
    values = [lift(value) for value in tensors]
    values = [*met_apart(values, "broadcast_tensors")]
    dims = broadcast(values, "broadcast_tensors")
    return tuple(Value(value.expr, value.dtype, dims) for value in values)


@torchs("meshgrid")
@shares("each")
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Value, ...]:
    """Each along a dimension of its own."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    values = [_vector(value) for value in given]
    grid = [expand_dims(value, tuple(i for i in range(len(values)) if i != at)) for at, value in enumerate(values)]
    found = broadcast_tensors(*grid)
    return tuple(transpose(value, 0, 1) for value in found) if indexing == "xy" and len(found) > 1 else found


@torchs("cartesian_prod")
@shares("same")
def cartesian_prod(*tensors: Like) -> Value:
    """All combinations of elements of vectors, a row each: ``torch.meshgrid``, flattened and stacked."""
    values = [lift(value) for value in tensors]
    if any(value.ndim != 1 for value in values):
        raise ShapeError(
            f"{current().where}, cartesian_prod", given=" and ".join(map(shape_of, values)), expected="vectors",
            fix="flatten them first: x.flatten()",
        )  # fmt: skip
    if len(values) == 1:
        return values[0]
    return concat([expand_dims(flatten(value), -1) for value in meshgrid(*values)], -1)


@torchs("block_diag")
def block_diag(*tensors: Like) -> Value:
    """Matrices along the diagonal of a larger one, 0 elsewhere; vectors are rows."""
    blocks = [_matrix(value) for value in tensors]
    columns = [block.sizes[1] for block in blocks]
    rows, before = [], 0
    for block, width in zip(blocks, columns, strict=True):
        sides = (before, sum(columns) - before - width)
        zeros = [creation.zeros((block.sizes[0], side), dtype=block.dtype) for side in sides]
        parts = [part for part, side in ((zeros[0], sides[0]), (block, 1), (zeros[1], sides[1])) if side]
        rows.append(concat(parts, 1) if len(parts) > 1 else block)
        before += width
    return concat(rows, 0) if len(rows) > 1 else rows[0]


# -- repeated, and turned ----------------------------------------------------------------------------------------------


@torchs("Tensor.repeat")
def repeat(input: Like, *repeats: Any) -> Value:
    """``fg.take(x, fg.arange(k * n) % n, axis)``."""
    counts = list(repeats[0] if len(repeats) == 1 and isinstance(repeats[0], (tuple, list)) else repeats)
    value = lift(input)
    if len(counts) < value.ndim:
        raise ShapeError(
            f"{current().where}, repeat", given=f"{counts} for {shape_of(value)}",
            expected="a number for each dimension", fix="pass 1 for those that stay",
        )  # fmt: skip
    value = expand_dims(value, tuple(range(len(counts) - value.ndim)))
    for place, count in enumerate(counts):
        size = value.sizes[place]
        if count != 1:
            at = elementwise("remainder", creation.arange(count * size), max(size, 1))
            value = indexing.take(value, at, place, negative=False)
    return value


@torchs("tile")
def tile(input: Like, *dims: Any) -> Value:
    """As ``x.repeat``; dimensions that are not named stay."""
    counts = list(dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims)
    return repeat(input, *[1] * (lift(input).ndim - len(counts)), *counts)


@torchs("repeat_interleave")
def repeat_interleave(input: Like, repeats: Any, dim: int | None = None, *, output_size: int | None = None) -> Value:
    """``fg.take(x, fg.arange(k * n) // k, axis)``, for an int."""
    value, count = lift(input), plain_number(repeats)
    if not isinstance(count, int) or (dim is None and value.ndim > 1):
        given = f"no dim of {shape_of(value)}" if isinstance(count, int) else f"{shape_of(lift(count))} repeats"
        raise DeclarationError(
            f"{current().where}, repeat_interleave", given=given,
            expected="an int, and a dimension: a size that data tell is not known, nor is a tensor seen as flat",
            fix="name dim=, or use fg.take(x, fg.segment_ids(offsets, n), axis)",
        )  # fmt: skip
    place = _place("repeat_interleave", _vector(value), dim or 0)
    value = _vector(value)
    at = elementwise("floor_divide", creation.arange(count * value.sizes[place]), max(count, 1))
    return indexing.take(value, at, place, negative=False)


@torchs("fliplr", numpy=["fliplr"])
def fliplr(input: Like) -> Any:
    """``torch.flip(x, (1,))``."""
    return library("flip")(input, 1)


@torchs("flipud", numpy=["flipud"])
def flipud(input: Like) -> Any:
    """``torch.flip(x, (0,))``."""
    return library("flip")(input, 0)


@torchs("rot90", numpy=["rot90"])
def rot90(input: Like, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """Turned in a plane: two dimensions exchanged, one of them in the other order."""
    first, second = dims
    turns = k % 4
    if turns == 2:
        return library("flip")(input, (first, second))
    if turns == 1:
        return transpose(library("flip")(input, second), first, second)
    return library("flip")(transpose(input, first, second), second) if turns else lift(input)


@torchs("ravel", numpy=["ravel"])
@shares("perhaps")
def ravel(input: Like) -> Value:
    """``fg.flatten(x)``."""
    value = _vector(input)
    return flatten(value) if value.ndim > 1 else value


@torchs("Tensor.view_as")
@shares("view")
def view_as(input: Like, other: Like) -> Value:
    """``x.view(y.shape)``."""
    return reshape(input, lift(other).shape)


@torchs("Tensor.reshape_as")
@shares("perhaps")
def reshape_as(input: Like, other: Like) -> Value:
    """``x.reshape(y.shape)``."""
    return reshape(input, lift(other).shape)


# -- differences, diagonals, windows -----------------------------------------------------------------------------------


@torchs("diff", numpy=["diff"])
def diff(input: Like, n: int = 1, dim: int = -1, prepend: Like | None = None, append: Like | None = None) -> Value:
    """``x[..., 1:] - x[..., :-1]``, ``n`` times."""
    # Of no differences nothing is put beside: torch hands back the tensor.
    beside = [lift(part) for part in ((prepend, input, append) if n else (input,)) if part is not None]
    value = concat(beside, dim) if len(beside) > 1 else beside[0]
    place = _place("diff", value, dim)
    for _ in range(n):
        after, before = _along(value, place, slice(1, None)), _along(value, place, slice(None, -1))
        is_bool = value.dtype.name == "bool"
        value = elementwise("logical_xor" if is_bool else "sub", after, before)
    return value


@torchs("gradient")
def gradient(
    input: Like, *, spacing: Any = 1, dim: int | Sequence[int] | None = None, edge_order: int = 1
) -> tuple[Value, ...]:  # fmt: skip
    """``(x[..., 2:] - x[..., :-2]) / 2`` along each dimension, and one-sided differences at both ends."""
    value = lift(input)
    value = value if value.dtype.is_float else cast(value, dtypes.float32)
    dims = [*range(value.ndim)] if dim is None else [dim] if isinstance(dim, int) else [*dim]
    places = [_place("gradient", value, each) for each in dims]
    spacing = 1 if spacing is None else spacing
    steps = [*spacing] if isinstance(spacing, (tuple, list)) else [spacing] * len(places)
    if len(steps) != len(places) or plain_number(edge_order) not in (1, 2):
        raise DeclarationError(
            f"{current().where}, gradient", given=f"{len(steps)} spacings, edge_order={edge_order!r}",
            expected=f"a number, or one or coordinates for each of {len(places)} dimensions; an order of 1 or 2",
            fix="choose others",
        )  # fmt: skip
    return tuple(_slope(value, at, lift(step), edge_order) for at, step in zip(places, steps, strict=True))


def _slope(value: Value, place: int, spacing: Value, order: int) -> Value:
    """Differences along one dimension: of second order within, of ``order`` at both ends."""
    size = value.sizes[place]
    if size <= order:
        raise ShapeError(
            f"{current().where}, gradient", given=f"{size} elements along dimension {place} of {shape_of(value)}",
            expected=f"{order + 1} or more", fix="name other dimensions: dim=",
        )  # fmt: skip
    there = (1,) * (value.ndim - place - 1)
    steps = diff(spacing) if spacing.ndim else spacing

    def step(start: int | None, end: int | None) -> Value:
        if not steps.ndim:
            return steps
        part = _along(steps, 0, slice(start, end))
        return Value(part.expr, part.dtype, (*part.dims, *[None] * len(there)))

    def of(start: int | None, end: int | None) -> Value:
        return _along(value, place, slice(start, end))

    def three(parts: Sequence[Value], before: Value, behind: Value, at: int) -> Value:
        """The slope of the parabola through three points, at one of them."""
        both = elementwise("add", before, behind)
        first = elementwise("div", elementwise("sub", parts[1], parts[0]), before)
        second = elementwise("div", elementwise("sub", parts[2], parts[1]), behind)
        bend = elementwise("div", elementwise("sub", second, first), both)
        moved = (elementwise("neg", before), before, elementwise("add", both, behind))[at]
        return elementwise("add", first, elementwise("mul", bend, moved))

    def end(at: int) -> Value:
        if order == 1:
            pair = (of(0, 1), of(1, 2), step(0, 1)) if at == 0 else (of(-2, -1), of(-1, None), step(-1, None))
            return elementwise("div", elementwise("sub", pair[1], pair[0]), pair[2])
        if at == 0:
            return three([of(0, 1), of(1, 2), of(2, 3)], step(0, 1), step(1, 2), 0)
        return three([of(-3, -2), of(-2, -1), of(-1, None)], step(-2, -1), step(-1, None), 2)

    if size == 2:
        return concat([end(0), end(2)], place)
    within = three([of(None, -2), of(1, -1), of(2, None)], step(None, -1), step(1, None), 1)
    return concat([end(0), within, end(2)], place)


@torchs("trapezoid", "trapz")
def trapezoid(y: Like, x: Like | None = None, *, dx: Like = 1, dim: int = -1) -> Value:
    """``fg.sum((y[..., 1:] + y[..., :-1]) / 2 * dx, -1)``."""
    return reductions.sum(_trapezoids("trapezoid", y, x, dx, dim), dim)


@torchs("cumulative_trapezoid")
def cumulative_trapezoid(y: Like, x: Like | None = None, *, dx: Like = 1, dim: int = -1) -> Value:
    """``fg.cumsum((y[..., 1:] + y[..., :-1]) / 2 * dx, -1)``."""
    return scans.cumsum(_trapezoids("cumulative_trapezoid", y, x, dx, dim), dim)


def _trapezoids(what: str, y: Like, x: Like | None, dx: Like, dim: int) -> Value:
    value = lift(y)
    place = _place(what, value, dim)
    pair = elementwise("add", _along(value, place, slice(1, None)), _along(value, place, slice(None, -1)))
    step = dx
    if x is not None:
        edges = lift(x)
        step = diff(edges, dim=0) if edges.ndim == 1 else diff(edges, dim=dim)
        step = expand_dims(step, tuple(range(1, value.ndim - place))) if edges.ndim == 1 else step
    return elementwise("div", elementwise("mul", pair, step), 2)


@torchs("diagonal_scatter")
def diagonal_scatter(input: Like, src: Like, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """``x`` with ``y`` in place of ``torch.diagonal(x)``."""
    value = movedim(lift(input), (dim1, dim2), (-2, -1))
    start = max(-offset, 0)
    rows, columns = creation.arange(value.sizes[-2]), creation.arange(value.sizes[-1])
    at = elementwise("sub", rows, start) if start else rows
    size = lift(src).sizes[-1]
    new = expand_dims(indexing.take(src, at, -1, negative=False), -1)
    inside = elementwise("logical_and", elementwise("ge", at, 0), elementwise("lt", at, size))
    here = elementwise("eq", elementwise("add", expand_dims(rows, -1), offset), columns)
    here = elementwise("logical_and", here, expand_dims(inside, -1))
    found = elementwise("where", here, cast(new, value.dtype), value)
    return movedim(found, (-2, -1), (dim1, dim2))


def _linalg_diagonal_back(x: Value, new: Value, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    return diagonal_scatter(x, new, offset, dim1, dim2)


@torchs("linalg.diagonal")
@shares("read", _linalg_diagonal_back)
def linalg_diagonal(A: Like, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    """As ``torch.diagonal``, of the last two dimensions."""
    return diagonal(A, offset, dim1, dim2)


@torchs("diagonal")
@shares("read", diagonal_scatter)
def diagonal(input: Like, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """``fg.take_along_axis`` at the place of each row; the diagonal is the last dimension."""
    value = lift(input)
    value = movedim(value, (dim1, dim2), (-2, -1))
    rows, columns = value.sizes[-2:]
    start = max(-offset, 0)
    count = max(min(rows - start, columns - max(offset, 0)), 0)
    if start or count != rows:
        value = _along(value, value.ndim - 2, slice(start, start + count))
    at = elementwise("add", creation.arange(count), start + offset)
    found = indexing.take_along_axis(value, expand_dims(at, (*range(value.ndim - 2), -1)), -1)
    return Value(found.expr, found.dtype, found.dims[:-1])


@torchs("diagflat")
def diagflat(input: Like, offset: int = 0) -> Value:
    """``torch.diag_embed`` of a tensor that is seen as flat."""
    return diag_embed(ravel(input), offset)


@torchs("diag_embed")
def diag_embed(input: Like, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    """``fg.where(row == column, x[..., None], 0)``."""
    value = _vector(input)
    size = value.sizes[-1] + abs(offset)
    rows, columns = creation.arange(size), creation.arange(size)
    at = elementwise("sub", rows, max(-offset, 0))  # the element of a row
    found = indexing.take(value, at, -1, negative=False) if offset else value
    same = elementwise("eq", elementwise("add", expand_dims(rows, -1), offset), columns)
    placed = elementwise("where", same, expand_dims(found, -1), cast(0, value.dtype))
    return movedim(placed, (-2, -1), (dim1, dim2))


@torchs("diag")
def diag(input: Like, diagonal: int = 0) -> Value:
    """The diagonal of a matrix; of a vector, the matrix with it."""
    value = lift(input)
    if value.ndim == 1:
        return diag_embed(value, diagonal)
    if value.ndim != 2:
        raise ShapeError(
            f"{current().where}, diag", given=shape_of(value), expected="a vector or a matrix",
            fix="use torch.diagonal, or torch.diag_embed",
        )  # fmt: skip
    return _diagonal(value, diagonal)


_diagonal = diagonal


@torchs("Tensor.unfold")
@shares("read")
def unfold(input: Like, dimension: int, size: int, step: int) -> Value:
    """``fg.take(x, step * fg.arange(windows)[:, None] + fg.arange(size), axis)``."""
    value = lift(input)
    place = _place("unfold", value, dimension)
    length = value.sizes[place]
    if not 0 < size <= length or step < 1:
        raise ShapeError(
            f"{current().where}, unfold", given=f"windows of {size} by {step} of {shape_of(value)}",
            expected=f"from 1 to {length} elements, and a step from 1 on", fix="choose smaller windows",
        )  # fmt: skip
    starts = elementwise("mul", creation.arange((length - size) // step + 1), step)
    at = elementwise("add", expand_dims(starts, -1), creation.arange(size))
    return movedim(indexing.take(value, at, place, negative=False), place + 1, -1)


@torchs("slice_scatter")
def slice_scatter(
    input: Like, src: Like, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:  # fmt: skip
    """``x`` with ``y`` in place of ``x[..., start:end:step]``."""
    value = lift(input)
    place = _place("slice_scatter", value, dim)
    length = value.sizes[place]
    first, last, by = slice(start, end, step).indices(length)
    row = expand_dims(creation.arange(length), tuple(range(1, value.ndim - place)))
    away = elementwise("sub", row, first)
    inside = elementwise("logical_and", elementwise("ge", away, 0), elementwise("lt", row, last))
    inside = elementwise("logical_and", inside, elementwise("eq", elementwise("remainder", away, by), 0))
    at = elementwise("floor_divide", elementwise("sub", creation.arange(length), first), by)
    return elementwise("where", inside, cast(indexing.take(src, at, place, negative=False), value.dtype), value)


@torchs("select_scatter")
def select_scatter(input: Like, src: Like, dim: int, index: int) -> Value:
    """``x`` with ``y`` in place of ``x[..., i]``."""
    value = lift(input)
    place = _place("select_scatter", value, dim)
    at = index % value.sizes[place] if value.sizes[place] else index
    row = expand_dims(creation.arange(value.sizes[place]), tuple(range(1, value.ndim - place)))
    return elementwise("where", elementwise("eq", row, at), cast(expand_dims(src, place), value.dtype), value)

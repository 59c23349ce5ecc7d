"""Arguments as equal blocks, results put together of them, and dimensions in groups: views, no data moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.core.ir import Operand, PackedBlock
from fusegen.core.subexpressions import safe_name
from fusegen.declare.axes import AxisVar, NotNested, divided, grouped
from fusegen.declare.tensor import Tensor
from fusegen.declare.value import (
    Like,
    Value,
    broadcast,
    convert,
    current,
    lift,
    not_nested,
    one_axis,
    plain_number,
    result_type,
    shape_of,
)


def split(x: Value, count: int, axis: int = -1) -> tuple[Value, ...]:
    """``count`` equal blocks of an *argument* of the op along ``axis``: views, no data moves.

    As torch.chunk and numpy.split count; torch.split's number is the size of a block.

    Raises:
        DeclarationError: ``x`` is an intermediate, or split in another way as well.
        ShapeError: the dimension does not divide by ``count``.
    """
    tracer, x, count = current(), lift(x), plain_number(count)
    whole = ((o, dims) for o, dims in tracer.operands if o.ref is x.expr and o.packed is None)
    base, own = next(whole, (None, ()))
    if base is None:
        raise DeclarationError(
            f"{tracer.where}, split",
            given="an intermediate result",
            expected="an argument of the op: a split is a view of its memory",
            fix="split the argument first and compute on the parts; for a declared gradient, pass them as arguments",
        )
    dim = one_axis(x, axis, "split")
    if dim is None or not isinstance(count, int) or count < 1:
        raise ShapeError(
            f"{tracer.where}, split", given=f"{count!r} parts of {base.name} of rank {x.ndim}",
            expected="a positive int, and a tensor with dimensions", fix="use fg.split(x, count, axis)",
        )  # fmt: skip
    axis_var = x.dims[dim]
    length = axis_var.size if axis_var else 1
    if length % count:
        raise ShapeError(
            f"{tracer.where}, split",
            given=f"dimension {dim} of {base.name} of size {length} in {count} parts",
            expected=f"a size that divides by {count}",
            fix="check the packing of the argument",
        )
    if count == 1 or axis_var is None:
        return (x,)
    # ``x`` may be a view of the argument: its dimensions in another order, in groups, or others between them.
    place = next((p for p, var in enumerate(own) if var and var.find() is axis_var.find()), None)
    if place is None:
        raise DeclarationError(
            f"{tracer.where}, split", given=f"dimension {dim} of {shape_of(x)}, which is none of {base.name}'s",
            expected="one dimension of an argument: a split is a view of its memory",
            fix="pass the parts as arguments of their own",
        )  # fmt: skip
    key = (base.name, place, count)
    if other := next((found for found in tracer.blocks if found[0] == base.name and found != key), None):
        raise DeclarationError(
            f"{tracer.where}, split", given=f"{base.name} in {count} parts along dimension {place}",
            expected=f"the {other[2]} parts along dimension {other[1]} that it is split in already",
            fix="split it in one way, into the smallest parts that are needed",
        )  # fmt: skip
    if key not in tracer.blocks:
        origin = f"a part of {base.name}'s dimension {place}"
        part_axis = AxisVar(length // count, origin) if length != count else None  # of size one it broadcasts
        dims = (*own[:place], part_axis, *own[place + 1 :])
        made = []
        for index in range(count):
            name = safe_name(f"{base.name}_{index}", {*tracer.arguments, *(o.name for o, _ in tracer.operands)})
            operand = Operand(name, base.dtype, (), PackedBlock(base.name, place, index, count))
            tracer.operands.append((operand, dims))
            made.append(Value(operand.ref, x.dtype, dims))
        tracer.blocks[key] = tuple(made)
    blocks = ((part, (*x.dims[:dim], part.dims[place], *x.dims[dim + 1 :])) for part in tracer.blocks[key])
    return tuple(Value(part.expr, part.dtype, dims) for part, dims in blocks)


@dataclass(frozen=True)
class Packed(Tensor):
    """Equal blocks to be written side by side into one output tensor; only returned, never computed with."""

    parts: tuple[Value, ...]
    place: int


def concat(parts: Sequence[Like], axis: int = -1) -> Packed:
    """One output made of equally shaped ``parts`` along ``axis``; each kernel writes its block in place.

    A number is a whole part; along other dimensions parts broadcast.

    Raises:
        DeclarationError: the parts are no list.
        ShapeError: there is no dimension, or parts differ along ``axis``.
    """
    if isinstance(parts, Value):
        raise DeclarationError(
            f"{current().where}, concat", given="parts side by side" if isinstance(axis, Value) else "one tensor",
            expected="a list or tuple of parts", fix="write fg.concat([a, b], axis)",
        )  # fmt: skip
    values = [lift(part) for part in parts]
    if not values or all(value.ndim == 0 for value in values):
        raise ShapeError(
            f"{current().where}, concat", given=f"{len(values)} parts, none with a dimension",
            expected="tensors with a dimension to stand side by side in", fix="use fg.expand_dims(x, 0) for one number",
        )  # fmt: skip
    widest = max(values, key=lambda value: value.ndim)
    dim = one_axis(widest, axis, "concat")
    assert dim is not None
    place = dim - widest.ndim
    along = [value.dims[place] for value in values if value.ndim >= -place]
    if len({var.size if var else 1 for var in along}) > 1:
        raise ShapeError(
            f"{current().where}, concat",
            given=f"{' and '.join(map(shape_of, values))}, which differ along axis {axis}",
            expected="parts of one size", fix="return several results, and let the caller put them together",
        )  # fmt: skip
    dims = broadcast(values, "concat")
    dtype = result_type(values)
    full = tuple(Value(convert(value.expr, dtype), dtype, dims) for value in values)
    return Packed(full, dim)


def unflatten(x: Like, axis: int, sizes: Sequence[int]) -> Value:
    """``x`` with dimension ``axis`` in groups: ``sizes`` are their number, perhaps that of groups in each, and behind
    them -1 for the elements of a group. Source: torch.unflatten.

    Of a value of any kind; ``flatten`` is the inverse. What else meets the dimension is seen in the same groups.

    Raises:
        ShapeError: there is no such dimension, or it does not divide so.
        DeclarationError: no such sizes, or the dimension is in other groups already, which are none of these.
    """
    value, tracer = lift(x), current()
    counts = _counts(sizes)
    position = one_axis(value, axis, "unflatten")
    dim = value.dims[position] if position is not None else None
    length, groups = dim.size if dim else 1, prod(counts)
    if position is None or length % groups:
        raise ShapeError(
            f"{tracer.where}, unflatten", given=f"dimension {axis} of {shape_of(value)} in {groups} groups",
            expected="a dimension whose size divides by their number", fix="choose a divisor",
        )  # fmt: skip
    found: list[AxisVar | None] = []
    for count in counts:
        first = None
        if dim is not None and count > 1:
            whole = dim
            try:
                first, dim = divided(whole, count)
            except NotNested:
                raise not_nested(f"unflatten in {count} groups", [whole]) from None
        found.append(first)
    dims = (*value.dims[:position], *found, dim, *value.dims[position + 1 :])
    return Value(value.expr, value.dtype, dims, value.weak)


def _counts(sizes: Sequence[int]) -> list[int]:
    given = [plain_number(size) for size in sizes] if isinstance(sizes, (tuple, list)) else []
    if len(given) < 2 or given[-1] != -1 or not all(isinstance(n, int) and n > 0 for n in given[:-1]):
        raise DeclarationError(
            f"{current().where}, unflatten", given=f"sizes {sizes!r}",
            expected="numbers of groups, and -1 for what is left: the size of a group",
            fix="write fg.unflatten(x, axis, (groups, -1))",
        )  # fmt: skip
    return given[:-1]


def flatten(x: Like, first: int = 0, last: int = -1) -> Value:
    """``x`` with the dimensions from ``first`` to ``last`` as one. Source: torch.flatten.

    All but the last must be numbers of groups (``unflatten``), or of size one: sizes that are the same in every call.

    Raises:
        ShapeError: there are no such dimensions.
        DeclarationError: they are of any size.
    """
    value, where = lift(x), f"{current().where}, flatten"
    start, end = (one_axis(value, axis, "flatten") for axis in (first, last))
    if start is None or end is None or start > end:
        raise ShapeError(
            where, given=f"dimensions {first} to {last} of {shape_of(value)}", expected="the first of them first",
            fix="count dimensions from 0, or from -1 at the end",
        )  # fmt: skip
    dims = value.dims[start : end + 1]
    free = [p for p, dim in enumerate(dims[:-1], start=start) if dim and not dim.find().fixed]
    if free and any(dims[free[0] - start + 1 :]):
        raise DeclarationError(
            where, given=f"dimension {free[0]} of {shape_of(value)}, of any size, in front of another one",
            expected="dimensions that fg.unflatten made, the number of groups in front of a group",
            fix="flatten the argument, or the result, outside the op: that is a view of its memory",
        )  # fmt: skip
    dims = (*value.dims[:start], grouped(dims), *value.dims[end + 1 :])
    return Value(value.expr, value.dtype, dims, value.weak)

"""Arguments as equal blocks, and results put together of them: views, no data moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.core.ir import Operand, Part
from fusegen.core.lets import safe_name
from fusegen.declare.value import (
    AxisVar,
    Like,
    Value,
    broadcast,
    convert,
    current,
    lift,
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
    base = next((operand for operand, _ in tracer.operands if operand.ref is x.expr and operand.part is None), None)
    if base is None:
        raise DeclarationError(
            f"{tracer.where}, split",
            given="an intermediate result",
            expected="an argument of the op: a split is a view of its memory",
            fix="split the argument first and compute on the parts",
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
    if count == 1:
        return (x,)
    key = (base.name, dim, count)
    if other := next((found for found in tracer.parts if found[0] == base.name and found != key), None):
        raise DeclarationError(
            f"{tracer.where}, split", given=f"{base.name} in {count} parts along dimension {dim}",
            expected=f"the {other[2]} parts along dimension {other[1]} that it is split in already",
            fix="split it in one way, into the smallest parts that are needed",
        )  # fmt: skip
    if key not in tracer.parts:
        origin = f"a part of {base.name}'s dimension {dim}"
        part_axis = AxisVar(length // count, origin) if length > count else None  # of size one it broadcasts
        dims = (*x.dims[:dim], part_axis, *x.dims[dim + 1 :])
        made = []
        for index in range(count):
            name = safe_name(f"{base.name}_{index}", {*tracer.arguments, *(o.name for o, _ in tracer.operands)})
            operand = Operand(name, base.dtype, (), Part(base.name, dim, index, count))
            tracer.operands.append((operand, dims))
            made.append(Value(operand.ref, x.dtype, dims))
        tracer.parts[key] = tuple(made)
    return tracer.parts[key]


@dataclass(frozen=True)
class Packed:
    """Equal blocks to be written side by side into one output tensor; only returned, never computed with."""

    parts: tuple[Value, ...]
    dim: int


def concat(parts: Sequence[Like], axis: int = -1) -> Packed:
    """One output made of equally shaped ``parts`` along ``axis``; each kernel writes its block in place.

    A number is a whole part; along other dimensions parts broadcast.

    Raises:
        ShapeError: there is no dimension, or parts differ along ``axis``.
    """
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

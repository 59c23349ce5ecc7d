"""Where operands and outputs lie in the tensors that a call takes and returns.

Most are such a tensor. Some are a block of a packed one (``PackedBlock``), some have dimensions that together are one
of its (``Groups``). Both are views: they follow from the tensor's shape and strides, sizes of which may be symbolic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from fusegen.core.errors import ShapeError
from fusegen.core.ir import Op, Tensorlike, own_size

View = tuple[tuple[Any, ...], tuple[Any, ...], Any]


def view(thing: Tensorlike, shape: Sequence[Any], strides: Sequence[Any]) -> View:
    """(shape, strides, element offset) of a thing in a tensor of this shape and these strides.

    Raises:
        ShapeError: a dimension cannot be divided so.
    """
    shape, strides, offset = list(shape), list(strides), 0
    packed = thing.packed
    if packed is not None:
        shape[packed.dim] = _divided(thing, packed.dim, shape[packed.dim], packed.count, "parts")
        offset = packed.index * shape[packed.dim] * strides[packed.dim]
    for groups in sorted(thing.groups, key=lambda groups: -groups.dim):
        d = groups.dim
        sizes = [*groups.counts, _divided(thing, d, shape[d], prod(groups.counts), "groups")]
        shape[d : d + 1] = sizes
        strides[d : d + 1] = [prod(sizes[at + 1 :]) * strides[d] for at in range(len(sizes))]
    return tuple(shape), tuple(strides), offset


def _divided(thing: Tensorlike, dim: int, size: Any, count: int, into: str) -> Any:
    if size % count:
        raise ShapeError(
            f"argument {thing.base}", given=f"dimension {dim} of size {size} in {count} {into}",
            expected=f"a size that divides by {count}", fix="check the packing of the argument",
        )  # fmt: skip
    return size // count


def view_shape(thing: Tensorlike, shape: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes of a thing's dimensions in a tensor of this shape."""
    return view(thing, shape, [0] * len(shape))[0]


def axis_sizes(op: Op, shapes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Sizes of the axes that an op's operands have, from the shapes of its arguments."""
    found: dict[str, Any] = {}
    for operand in op.operands:
        sizes = zip(operand.shape, view_shape(operand, shapes[operand.base]), strict=True)
        found.update({axis: size for axis, size in sizes if axis})
    return found


def dims_of(thing: Tensorlike) -> list[int]:
    """For each of a thing's dimensions which of the tensor's it belongs to."""
    further = {groups.dim: len(groups.counts) for groups in thing.groups}
    found: list[int] = []
    while len(found) < len(thing.shape):
        dim = found[-1] + 1 if found else 0
        found += [dim] * (1 + further.get(dim, 0))
    return found


def block_shape(thing: Tensorlike, sizes: Mapping[str, Any]) -> list[Any]:
    """The shape of a thing as the tensor has it, or of a block of a packed one, for sizes of axes, or their own."""
    shape: list[Any] = []
    for dim, axis in zip(dims_of(thing), thing.shape, strict=True):
        size = 1 if axis is None else sizes[axis] if axis in sizes else own_size(axis)
        if dim < len(shape):
            shape[dim] = shape[dim] * size
        else:
            shape.append(size)
    return shape


def whole_shape(thing: Tensorlike, sizes: Mapping[str, Any]) -> list[Any]:
    """The shape of the tensor that a thing lies in, for these sizes of axes."""
    shape = block_shape(thing, sizes)
    if thing.packed:
        shape[thing.packed.dim] = shape[thing.packed.dim] * thing.packed.count
    return shape


def rank_of(thing: Tensorlike) -> int:
    """How many dimensions the tensor has."""
    return len(set(dims_of(thing)))

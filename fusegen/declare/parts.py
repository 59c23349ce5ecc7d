"""Equal blocks, what is put together of them, and dimensions in groups: no data moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, prod
from typing import Any

from fusegen.core import dtypes
from fusegen.core.blocks import Joined, Part
from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.core.ir import SCAN, Expr, Index, Operand, PackedBlock, call, const
from fusegen.core.subexpressions import safe_name
from fusegen.declare.axes import AxisVar, Dims, NotNested, divided, grouped, leaves
from fusegen.declare.meeting import met_apart
from fusegen.declare.memory import got, is_plain
from fusegen.declare.value import (
    FEW_BLOCKS,
    MOST_BLOCKS,
    Like,
    Value,
    broadcast,
    cast,
    convert,
    current,
    elementwise,
    lift,
    not_nested,
    one_axis,
    plain_number,
    result_type,
    shape_of,
)


def split(x: Like, count: int, axis: int = -1) -> tuple[Value, ...]:
    """``count`` equal blocks of ``x`` along ``axis``: views of an argument, or each computed of such views.

    No data moves. As torch.chunk and numpy.split count; torch.split's number is the size of a block. An argument that
    is split in another way as well, and what cannot be divided along with the arguments that it is made of, is read at
    its places instead.

    Raises:
        ShapeError: the dimension does not divide by ``count``.
    """
    tracer, x, count = current(), lift(x), plain_number(count)
    whole = ((o, dims) for o, dims in tracer.operands if o.ref is x.expr and o.packed is None)
    base, own = next(whole, (None, ()))
    dim = one_axis(x, axis, "split")
    if dim is None or not isinstance(count, int) or count < 1:
        raise ShapeError(
            f"{tracer.where}, split", given=f"{count!r} parts of {shape_of(x)} of rank {x.ndim}",
            expected="a positive int, and a tensor with dimensions", fix="use fg.split(x, count, axis)",
        )  # fmt: skip
    axis_var = x.dims[dim]
    length = axis_var.size if axis_var else 1
    if length % count:
        raise ShapeError(
            f"{tracer.where}, split",
            given=f"dimension {dim} of {shape_of(x)} of size {length} in {count} parts",
            expected=f"a size that divides by {count}",
            fix="check how it is packed",
        )
    if count == 1 or axis_var is None:
        return (x,)
    if not tracer.most_blocks:
        block = length // count
        return tuple(read(x, dim, block * part, block * (part + 1), 1) for part in range(count))
    # ``x`` may be a view of the argument: its dimensions in another order, in groups, or others between them.
    place = next((p for p, var in enumerate(own) if var and var.find() is axis_var.find()), None)
    if base is None or place is None:
        return _blocks_of(x, dim, axis_var, count)
    key = (base.name, place, count)
    other = next((found for found in tracer.blocks if found[0] == base.name and found != key), None)
    if other and other[1] != place:
        raise DeclarationError(
            f"{tracer.where}, split", given=f"{base.name} in {count} parts along dimension {place}",
            expected=f"parts along dimension {other[1]}, as it has already", fix="pass it twice, as two arguments",
        )  # fmt: skip
    if other:
        return _blocks_of(x, dim, axis_var, count)
    if key not in tracer.blocks:
        part_axis = _divided(axis_var, count, f"a part of {base.name}'s dimension {place}")
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


def _divided(whole: AxisVar, count: int, origin: str) -> AxisVar | None:
    """The axis of one of so many blocks of an axis; None where it has one element, which broadcasts."""
    tracer = current()
    check_count(whole, count)
    for axis, part, known in tracer.divisions:
        if axis.find() is whole.find() and known == count:
            return part
    made = whole.find().made
    part = AxisVar(whole.size // count, origin, fixed=made, made=made) if whole.size != count else None
    tracer.divisions.append((whole, part, count))
    return part


def check_count(whole: AxisVar, count: int) -> None:
    """Whether so many blocks are not too many.

    Raises:
        DeclarationError: they are.
    """
    if count > MOST_BLOCKS:
        raise DeclarationError(
            f"{current().where}, blocks", given=f"{whole.origin} of size {whole.size} in {count} blocks",
            expected=f"at most {MOST_BLOCKS}, such that all parts are made of them: each is computed by itself",
            fix="slice or put together outside the op, or select with fg.where(fg.index(x, axis) < n, a, b)",
        )  # fmt: skip


def _blocks_of(x: Value, dim: int, whole: AxisVar, count: int) -> tuple[Value, ...]:
    """Blocks of an intermediate."""
    tracer = current()
    if len(whole.entries) > 1:
        tracer.wants_blocks = True
        raise DeclarationError(
            f"{tracer.where}, split", given=f"dimension {dim} of {shape_of(x)}, which is in groups",
            expected="a dimension that is not: a block of groups is none of an argument's memory",
            fix="split before fg.unflatten, or pass the parts as arguments of their own",
        )  # fmt: skip
    part = _divided(whole, count, f"a part of {whole.origin}")
    dims = (*x.dims[:dim], part, *x.dims[dim + 1 :])
    if whole.find() not in tracer.axes_of(x.expr):  # broadcast along it
        return tuple(Value(x.expr, x.dtype, dims) for _ in range(count))
    names = tracer.name_of(whole), tracer.name_of(part) if part else None
    return tuple(Value(Part(x.expr, *names, index, count), x.dtype, dims) for index in range(count))


def item(x: Value, key: Any) -> Value:
    """``x[key]``: new dimensions of size one (None), whole ones, blocks of equal size, and single elements.

    A slice ``a:b`` is made of blocks of the largest size that divides ``a``, ``b`` and the dimension's, where that has
    64 of them at most: then it may meet what it is sliced of. Other slices, with a step too, are read at their places
    (declare/indexing). A declaration that slices is traced for each shape.

    Raises:
        DeclarationError: another key.
        ShapeError: more keys than dimensions, or an element that is not there.
    """
    keys = key if isinstance(key, tuple) else (key,)
    keys = tuple(plain_number(k) for k in keys)
    if Ellipsis not in [k for k in keys if k is None or k is Ellipsis]:
        keys = (*keys, Ellipsis)
    if sum(isinstance(k, (list, range, Value)) for k in keys) > 1:
        keys = tuple(_positions(k) for k in keys)
    places = [k for k in keys if isinstance(k, Value) and not k.weak and k.dtype.category is dtypes.Category.INTEGER]
    if places:
        return _at_places(x, keys, places)
    chosen = [k for k in keys if isinstance(k, list) and 0 < len(k) <= MOST_BLOCKS and all(map(is_position, k))]
    if len(chosen) == 1 and not places and not any(map(is_position, keys)):
        return _at_list(x, keys, chosen[0])
    taking = [k for k in keys if isinstance(k, slice) or is_position(k)]
    known = len(taking) + sum(k is None or k is Ellipsis for k in keys) == len(keys)
    if not known or sum(k is Ellipsis for k in keys) > 1:
        raise _unknown_key(x, key)
    if len(taking) > x.ndim:
        raise ShapeError(
            f"{current().where}, [{shown_key(key)}]", given=f"{len(taking)} keys for {shape_of(x)}",
            expected=f"at most {x.ndim}", fix="leave some away",
        )  # fmt: skip
    dim, dims = 0, list[tuple[int | None, bool]]()  # of the result: which dimension of x, and whether it stays
    for k in keys:
        if k is None:
            dims.append((None, True))
        elif k is Ellipsis:
            count = x.ndim - len(taking)
            dims += [(dim + i, True) for i in range(count)]
            dim += count
        else:
            x = _taken(x, dim, k, key)
            dims.append((dim, isinstance(k, slice)))
            dim += 1
    kept = tuple(x.dims[d] if d is not None else None for d, stays in dims if stays)
    return Value(x.expr, x.dtype, kept, x.weak)


def _unknown_key(x: Value, key: Any) -> DeclarationError:
    return DeclarationError(
        f"{current().where}, [{shown_key(key)}]", given=f"x[{shown_key(key)}] of {shape_of(x)}",
        expected="ints, slices, None and ..., tensors of integers, or lists of ints",
        fix="compare positions, fg.where(fg.index(x, axis) == i, a, b), or index outside the op",
    )  # fmt: skip


def _at_places(x: Value, keys: tuple[Any, ...], places: Sequence[Value]) -> Value:
    """``x`` at the other keys, and then at tensors of positions, each in one dimension. What several tell stands where
    these dimensions did; in front, if they were not side by side."""
    from fusegen.declare.indexing import take_each  # which needs sums, and they these

    x = item(x, tuple(slice(None) if isinstance(key, Value) else key for key in keys))
    if any(isinstance(key, Value) and all(key is not place for place in places) for key in keys):
        raise _unknown_key(x, keys)
    rest = [key for key in keys if not is_position(key)]
    first = next((number for number, key in enumerate(rest) if key is Ellipsis), len(rest))
    found = [n if n < first else x.ndim - len(rest) + n for n, key in enumerate(rest) if isinstance(key, Value)]
    return take_each(x, found, places)


def _positions(key: Any) -> Any:
    """A list of ints, or a range, as the positions that it names; other keys as they are."""
    from fusegen.declare.listed import positions  # which are made of arange, and that of sums

    is_one = isinstance(key, range) or (isinstance(key, list) and bool(key) and all(map(is_position, key)))
    return positions(key) if is_one else key


def _at_list(x: Value, keys: tuple[Any, ...], chosen: list[int]) -> Value:
    """``x`` at the other keys, and then some elements of one dimension side by side: ``x[:, [2, 1, 0]]``."""
    at = next(number for number, key in enumerate(keys) if key is chosen)
    x = item(x, (*keys[:at], slice(None), *keys[at + 1 :]))
    from_end = any(key is Ellipsis for key in keys[:at])
    dim = x.ndim - 1 - len(keys[at + 1 :]) if from_end else at
    whole = (slice(None),) * dim
    return concat([item(x, (*whole, slice(place, place + 1 or None))) for place in chosen], dim)


def is_position(key: Any) -> bool:
    """Whether a key is an int."""
    return isinstance(key, int) and not isinstance(key, bool)


def _taken(x: Value, dim: int, key: Any, whole: Any) -> Value:
    """One dimension at one key; of a position it is of size one."""
    if isinstance(key, slice) and key.start is key.stop is key.step is None:
        return x
    where, axis = f"{current().where}, [{shown_key(whole)}]", x.dims[dim]
    current().reads_sizes = True
    length = axis.find().size if axis else 1
    if is_position(key):
        if not -length <= key < length:
            raise ShapeError(
                where, given=f"element {key} of dimension {dim} of {shape_of(x)}",
                expected=f"from {-length} to {length - 1}", fix="check the size",
            )  # fmt: skip
        first, last, step = key % length, key % length + 1, 1
    else:
        try:
            first, last, step = key.indices(length)
        except TypeError:
            raise DeclarationError(
                where, given=f"x[{shown_key(whole)}] of {shape_of(x)}", expected="ints in slices",
                fix="annotate an argument that says where to slice `: fg.Const`",
            ) from None  # fmt: skip
        except ValueError:
            raise DeclarationError(
                where, given=f"x[{shown_key(whole)}] of {shape_of(x)}, a step of 0",
                expected="a step to other elements",
                fix="leave it out",
            ) from None  # fmt: skip
    size = len(range(first, last, step))
    if size == length and (step == 1 or not size):
        return x
    block = gcd(length, first, last)
    count = length // block
    if step != 1 or not size or not _in_blocks(count) or _is_divided(x, dim, count):
        return read(x, dim, first, last, step)
    blocks = split(x, count, dim)[first // block : last // block]
    current().sliced += len(blocks) if len(blocks) > 1 else 0
    return concat(blocks, dim) if len(blocks) > 1 else blocks[0]


def _in_blocks(count: int) -> bool:
    """Whether a slice takes a dimension apart in so many blocks."""
    tracer = current()
    tracer.has_fine_blocks |= FEW_BLOCKS < count <= MOST_BLOCKS
    return count <= tracer.most_blocks


def _is_divided(x: Value, dim: int, count: int) -> bool:
    """Whether what it is made of is in blocks already, of other sizes or along another axis: in those it is one way."""
    whole, axes = x.dims[dim], {axis.find() for axis in x.dims if axis} | current().axes_of(x.expr)
    known = [(axis.find(), number) for axis, _, number in current().divisions]
    return whole is not None and any(
        axis in axes and (axis is not whole.find() or number != count) for axis, number in known
    )


def read(x: Value, dim: int, first: int, last: int, step: int) -> Value:
    """Elements that are no equal blocks, or of too many: each is read at its place."""
    from fusegen.declare.creation import arange  # which need sums, and they these
    from fusegen.declare.indexing import take

    return take(x, arange(first, last if (last - first) * step > 0 else first, step), dim, negative=False)


def shown_key(key: Any) -> str:
    """A key as it is written."""
    if isinstance(key, tuple):
        return ", ".join(map(shown_key, key))
    if isinstance(key, slice):
        parts = ["" if part is None else shown_key(part) for part in (key.start, key.stop, key.step)]
        return ":".join(parts if parts[2] else parts[:2])
    return "..." if key is Ellipsis else "a tensor" if isinstance(key, Value) else f"{key}"


def _get_item(x: Value, key: Any) -> Any:
    """``x[key]``, in the memory of ``x`` where torch's is."""
    is_mask = isinstance(key, Value) and key.dtype is dtypes.bool_ and not key.weak
    masked = (x, key) if is_mask else masked_part(x, key)
    if masked is None:
        return got(x, key, item)
    from fusegen.declare.selected import selected  # which adds up, and sums need these

    return selected(*masked)


def masked_part(x: Value, key: Any) -> tuple[Value, Value, int] | None:
    """What ``x[:, mask, 0]`` is a mask of, ``x[:, :, 0]``, the mask, and how many dimensions are in front of it. None
    of other keys."""
    keys = key if isinstance(key, tuple) else (key,)
    masks = [at for at, k in enumerate(keys) if isinstance(k, Value) and k.dtype is dtypes.bool_ and not k.weak]
    others = tuple(k for at, k in enumerate(keys) if at not in masks)
    if len(masks) != 1 or not keys[masks[0]].ndim or any(k is None for k in others) or not is_plain(others):
        return None
    mask, before = keys[masks[0]], keys[: masks[0]]
    behind, left_out = keys[masks[0] + 1 :], x.ndim - mask.ndim - sum(k is not Ellipsis for k in others)
    if left_out < 0:
        return None
    front, rest = ([all_of for k in side for all_of in _told(k, left_out)] for side in (before, behind))
    part = got(x, (*front, *[slice(None)] * mask.ndim, *rest), item)
    return part, mask, sum(not is_position(k) for k in front)


def _told(key: Any, left_out: int) -> list[Any]:
    return [slice(None)] * left_out if key is Ellipsis else [key]


Value.__getitem__ = _get_item  # type: ignore[method-assign,assignment]


def are_few(sizes: Iterable[int]) -> bool:
    """Whether a dimension of parts of these sizes is made of so few equal blocks that each is computed by itself."""
    known = [*sizes]
    return sum(known) <= (MOST_BLOCKS if current().most_blocks else 0) * gcd(*known)


def pieces(x: Value, sizes: Sequence[int], dim: int) -> tuple[Value, ...]:
    """``x`` in pieces of these sizes, which make up the dimension."""
    current().reads_sizes = True
    block, at, found = gcd(*sizes), 0, list[Value]()
    if 0 in sizes or not are_few(sizes) or (len({*sizes}) > 1 and not _in_blocks(sum(sizes) // block)):
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        return tuple(read(x, dim, start, start + size, 1) for start, size in zip(starts, sizes, strict=True))
    blocks = split(x, sum(sizes) // block, dim)
    for size in sizes:
        own = blocks[at : at + size // block]
        at += size // block
        found.append(concat(own, dim) if len(own) > 1 else own[0])
    return tuple(found)


def packed(parts: Sequence[Value], place: int) -> Value:
    """Equal blocks side by side. Returned, each is written to its place of one result; computed with, each is computed
    with by itself."""
    tracer, first = current(), parts[0]
    part = first.dims[place]
    whole = AxisVar((part.size if part else 1) * len(parts), f"{len(parts)} parts side by side")
    tracer.divisions.append((whole, part, len(parts)))
    names = tracer.name_of(whole), tracer.name_of(part) if part else None
    dims = (*first.dims[:place], whole, *first.dims[place + 1 :])
    joined = Joined(tuple(value.expr for value in parts), *names)
    return Value(joined, first.dtype, dims, packed=(tuple(parts), place))


def concat(parts: Sequence[Like], axis: int = -1) -> Value:
    """``parts`` side by side along ``axis``. As a result, each kernel writes its block in place; what is computed with
    it is computed with each part.

    A number is a whole part; along other dimensions parts broadcast. Parts of several sizes are made of blocks of the
    largest size that divides all of them, 64 at most; then the declaration is traced for each shape.

    Raises:
        DeclarationError: the parts are no list; they cannot be divided along with what they meet; too many blocks.
        ShapeError: there is no dimension, or a number stands beside parts of several sizes.
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
    sizes = [var.find().size if var else 1 for var in along]
    # Parts without elements are as long as what they make up, and meet it: none is a block of another thing then.
    if len(set(sizes)) > 1 or not current().most_blocks or 0 in sizes:
        if len(along) < len(values) and len(set(sizes)) > 1:
            raise ShapeError(
                f"{current().where}, concat",
                given=f"{' and '.join(map(shape_of, values))}, which differ along axis {axis}",
                expected="tensors with that dimension", fix="give each the size that it is to have",
            )  # fmt: skip
        current().reads_sizes = True
        if 0 in sizes or not are_few(sizes):
            return _side_by_side(values, sizes, place)
        block = gcd(*sizes)
        blocks = [split(value, size // block, place) for value, size in zip(values, sizes, strict=True)]
        return concat([part for several in blocks for part in several], place)
    values = list(met_apart(values, "concat"))
    dims = broadcast(values, "concat")
    dtype = result_type(values)
    full = tuple(Value(convert(value.expr, dtype), dtype, dims) for value in values)
    return packed(full, dim) if len(full) > 1 else full[0]


def _side_by_side(values: Sequence[Value], sizes: Sequence[int], place: int) -> Value:
    """Parts that are no equal blocks, or of too many: each element is read in the part that it is of."""
    from fusegen.declare.creation import arange  # which need sums, and they these
    from fusegen.declare.indexing import take

    dtype, at = result_type(values), arange(sum(sizes))
    along = Value(at.expr, at.dtype, (*at.dims, *[None] * (-1 - place)))
    found, start = None, 0
    if len(sizes) < len(values):  # a number is a whole part, of the one size there is
        sizes = [sizes[0]] * len(values)
        at = arange(sum(sizes))
        along = Value(at.expr, at.dtype, (*at.dims, *[None] * (-1 - place)))
    for value, size in zip(values, sizes, strict=True):
        has_part = value.ndim >= -place
        part = take(value, elementwise("sub", at, start) if start else at, place, negative=False) if has_part else value
        part = Value(convert(part.expr, dtype), dtype, part.dims)
        if size == 1:  # which tells where an element of all of them is
            found = elementwise(
                "where", elementwise("eq", along, start), part, cast(0, dtype) if found is None else found
            )
        else:
            found = part if found is None else elementwise("where", elementwise("ge", along, start), part, found)
        start += size
    assert found is not None
    return found


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
    if dim is not None and groups > 1 and _is_scanned(dim):  # which must stay as it is
        value = read_anew(value, position)
        dim = value.dims[position]
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


def _is_scanned(dim: AxisVar) -> bool:
    """Whether something is added up along it, step by step."""
    tracer = current()
    places = (node.expr.children[-1] for node, _ in tracer.reduces if node.kind == SCAN)
    return any(isinstance(at, Index) and tracer.sizes[at.axis].find() is dim.find() for at in places)


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
    """``x`` with the dimensions from ``first`` to ``last`` as one; a number as a vector of one. Source: torch.flatten.

    Dimensions that the declaration has made itself, or of which it takes blocks, are read at their places as one; all
    others are groups of one (``unflatten``). Unless they were before, the declaration is traced for each shape.

    Raises:
        ShapeError: there are no such dimensions.
    """
    value, where = lift(x), f"{current().where}, flatten"
    start, end = (one_axis(value, axis, "flatten") for axis in (first, last))
    if not value.ndim:  # a number is a vector of one
        return Value(value.expr, value.dtype, (None,))
    if start is None or end is None or start > end:
        raise ShapeError(
            where, given=f"dimensions {first} to {last} of {shape_of(value)}", expected="the first of them first",
            fix="count dimensions from 0, or from -1 at the end",
        )  # fmt: skip
    dims = value.dims[start : end + 1]
    found = [dim for dim in dims if dim]
    if len(found) > 1 and any(dim.size == 0 or _is_no_group(dim) for dim in found):  # no groups have a size to tell
        return _read_as_one(value, start, end)
    for dim in found[:-1]:
        if not dim.find().fixed:
            current().reads_sizes = True
            for axis in leaves([dim]):
                axis.fixed = True
    dims = (*value.dims[:start], grouped(dims), *value.dims[end + 1 :])
    return Value(value.expr, value.dtype, dims, value.weak)


def _is_no_group(dim: AxisVar) -> bool:
    """Whether it is no part of an argument's dimension, or is in blocks: none of these lie in groups."""
    divided = {whole.find() for whole, _, _ in current().divisions}
    return any((axis.made and not axis.is_group) or axis in divided for axis in leaves([dim]))


def merged(value: Value, first: int) -> Value:
    """A dimension and the next as one, of which any others may be made: each element is read at its place."""
    return _read_as_one(value, first, first + 1)


def read_anew(value: Value, place: int) -> Value:
    """A dimension that may be seen in any groups, whatever groups it is in: each element is read at its place."""
    return _read_as_one(value, place, place)


def _read_as_one(value: Value, start: int, end: int) -> Value:
    """Dimensions as one of its own, each of whose elements is read at its place."""
    from fusegen.declare.creation import axis_of  # which need sums, and they these
    from fusegen.declare.indexing import picked

    tracer = current()
    inner = leaves(value.dims[start : end + 1])
    whole = axis_of(prod(axis.size for axis in inner), "flatten")
    assert whole is not None
    rest: Expr = Index(tracer.name_of(whole))
    places = list[Expr]()
    for axis in reversed(inner):  # quotients of quotients, so that all remainders tell where an element is
        size = const(max(axis.size, 1), dtypes.int64)
        is_first = len(places) + 1 == len(inner)
        places.insert(0, rest if is_first else call("remainder", rest, size, dtype=dtypes.int64))
        rest = call("floor_divide", rest, size, dtype=dtypes.int64)
    for at, (axis, place) in enumerate(zip(inner, places, strict=True)):  # what is stacked last, each part by itself
        dims: Dims = (*value.dims[:start], whole, *inner[at + 1 :], *value.dims[end + 1 :])
        if axis.find() in tracer.axes_of(value.expr):
            made = picked(value, place, axis, dims, "flatten")
            value = Value(made.expr, made.dtype, value.dims)
    return Value(value.expr, value.dtype, (*value.dims[:start], whole, *value.dims[end + 1 :]), value.weak)

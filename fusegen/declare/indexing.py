"""Elements at positions that a tensor tells, read: ``fg.take``, ``fg.take_along_axis``. Written: declare/scattering.

Each is a sum of one term, over a comparison with the position along an axis (core/one_term), so that its gradients,
forward mode and batches are those of sums. An element that there is none of counts as zero; where a tensor tells the
place, it is reported (core/within).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fusegen.core import dtypes
from fusegen.core.blocks import Joined, Part
from fusegen.core.errors import DtypeError, ShapeError
from fusegen.core.ir import Call, Expr, Index, Ref, Size, Substitution, call, const, refs, walk
from fusegen.core.within import Within, linear
from fusegen.declare.axes import AxisVar, Dims, grouped, leaves
from fusegen.declare.reductions import reduce
from fusegen.declare.value import (
    Like,
    Tracer,
    Value,
    broadcast,
    cast,
    current,
    elementwise,
    lift,
    one_axis,
    shape_of,
)

# Unset or 1: places out of range are errors. 0: kernels do not tell them.
VARIABLE = "FUSEGEN_CHECK_INDICES"
_REPORTS = os.environ.get(VARIABLE, "") != "0"


def take(x: Like, index: Like, axis: int = 0, *, negative: bool = True) -> Value:
    """``x`` at ``index`` along ``axis``: rows of a table, ``x[index]`` for axis 0.

    The result has the dimensions of the index in the place of that one. Negative positions count from the end, unless
    it is said that there are none (``negative``); one that is out of range is an error (``fg.PlaceError``). Source:
    numpy.take.

    Raises:
        DtypeError: the index is not of integers.
        ShapeError: there is no such dimension.
        DeclarationError: the index varies along the axis itself, or along another one of ``x``.
    """
    value, places, position, axis_of = sides("take", x, index, axis, negative)
    value, axis_of = _apart(value, places, position, axis_of)
    before, behind = value.dims[:position], value.dims[position + 1 :]
    dims: Dims = (*before, *places.dims, *behind)
    if axis_of is None:
        first = Value(places.expr, dtypes.int64, (*places.dims, *[None] * len(behind)))
        spread = Value(value.expr, value.dtype, (*before, *[None] * places.ndim, *behind))
        return cast(elementwise("where", elementwise("eq", first, 0), spread, 0), value.dtype)
    return picked(value, places.expr, axis_of, dims, "take")


def take_each(x: Value, axes: Sequence[int], indices: Sequence[Value]) -> Value:
    """``x[rows, columns]``: one position in each of several dimensions, told by tensors that broadcast.

    Raises:
        DtypeError, ShapeError, DeclarationError: as ``take``.
    """
    if len(indices) == 1:
        return take(x, indices[0], axes[0])
    first, count = axes[0], len(axes)
    if [*axes] != [*range(first, first + count)]:  # what they tell is in front of what is left, as torch has it
        others = [place for place in range(x.ndim) if place not in axes]
        x, first = Value(x.expr, x.dtype, tuple(x.dims[place] for place in (*axes, *others))), 0
    indices = current().apart(indices, "[]")
    found, told = x, broadcast(indices, "[]")
    for index in indices:  # what has been told stands in front of the dimension that comes next
        place = first if found is x else first + len(told)
        value, at, position, axis_of = sides("[]", found, index, place)
        value, axis_of = _apart(value, at, position, axis_of)
        dims: Dims = (*value.dims[:first], *told, *value.dims[position + 1 :])
        if axis_of is None:
            spread = Value(value.expr, value.dtype, dims)
            here = Value(at.expr, dtypes.int64, (*told, *[None] * (len(dims) - first - len(told))))
            found = cast(elementwise("where", elementwise("eq", here, 0), spread, 0), value.dtype)
        else:
            found = picked(value, at.expr, axis_of, dims, "[]")
    return found


def take_along_axis(x: Like, index: Like, axis: int = -1) -> Value:
    """``x`` at ``index`` along ``axis``; both have as many dimensions, of which the others are the same or broadcast.

    Negative positions count from the end; one that is out of range is an error (``fg.PlaceError``). Source:
    numpy.take_along_axis.

    Raises:
        DtypeError: the index is not of integers.
        ShapeError: another number of dimensions, sizes that do not fit, or no such dimension.
        DeclarationError: the index varies along the axis itself.
    """
    value, places, position, axis_of = sides("take_along_axis", x, index, axis)
    same_rank("take_along_axis", value, places)
    value, axis_of = _apart(value, places, position, axis_of)
    others = Value(value.expr, value.dtype, (*value.dims[:position], None, *value.dims[position + 1 :]))
    dims = broadcast([others, places], "take_along_axis")
    if axis_of is None:
        return cast(elementwise("where", elementwise("eq", places, 0), others, 0), value.dtype)
    return picked(value, places.expr, axis_of, dims, "take_along_axis")


def sides(
    what: str, x: Like, index: Like, axis: int, negative: bool = True, source: Like | None = None
) -> tuple[Value, Value, int, AxisVar | None]:
    """``x``, the positions from 0, the dimension, and its axis.

    Args:
        source: what is put there.
    """
    value, places = lift(x), lift(index)
    where = f"{current().where}, {what}"
    if places.dtype.category is not dtypes.Category.INTEGER:
        raise DtypeError(
            where, given=f"an index of {places.dtype}", expected="integers",
            fix="select with fg.where(mask, x, 0)" if places.dtype is dtypes.bool_ else "cast with .to(fg.int64)",
        )  # fmt: skip
    if value.weak or not value.ndim:
        raise ShapeError(
            where, given=f"{shape_of(value)}, without dimensions", expected="a tensor with one to index along",
            fix="pass one",
        )  # fmt: skip
    position = one_axis(value, axis, what)
    assert position is not None
    dim = value.dims[position]
    others = [places] if source is None else [places, lift(source)]
    if dim is not None and any(_has(other, dim) for other in others):  # along an axis of its own: x[x.argsort()]
        value = along_another(value, dim)
        dim = value.dims[position]
    size: Expr = Size(current().name_of(dim)) if dim is not None else const(1, dtypes.int64)
    place, length = cast(places, dtypes.int64), Value(size, dtypes.int64)
    wrapped = elementwise("where", elementwise("lt", place, 0), elementwise("add", place, length), place)
    wraps = negative and places.dtype is not dtypes.uint8
    found = wrapped if wraps else place
    told = any(isinstance(node, Ref) for node in walk([places.expr]))  # by a tensor, not by positions alone
    if told and _REPORTS and not current().own_places:
        found = _looked_at(what, found, length.expr, wraps)
    return value, found, position, dim


def _has(value: Value, dim: AxisVar) -> bool:
    """Whether it is of this dimension, be it the same all along it: what is expanded, ``zeros_like(x)``."""
    return dim.find() in current().axes_of(value.expr) or not {*leaves([dim])}.isdisjoint(leaves(value.dims))


@contextmanager
def own_places() -> Iterator[None]:
    """Within it places are the language's own: some may be nowhere, and none is looked at."""
    tracer = current()
    outer, tracer.own_places = tracer.own_places, True
    try:
        yield
    finally:
        tracer.own_places = outer


def _looked_at(what: str, place: Value, size: Expr, wraps: bool) -> Value:
    """Places that report themselves where they are out of range (core/within)."""
    tracer = current()
    told = ", ".join(dict.fromkeys(ref.name for ref in refs(place.expr) if not ref.name.startswith("@")))
    text = f"{tracer.where}, {what}" + f", index {told}" * bool(told)
    number = tracer.sites.setdefault((text, wraps), len(tracer.sites))
    names = [tracer.name_of(dim) for dim in place.dims if dim]
    where = linear([Index(name) for name in names], [Size(name) for name in names])
    position = const(0, dtypes.int64) if where is None else where
    return Value(Within((place.expr, size, position), number, text, wraps), dtypes.int64, place.dims)


def same_rank(what: str, value: Value, places: Value) -> None:
    """Raise a ShapeError if the index has another number of dimensions."""
    if places.ndim != value.ndim:
        raise ShapeError(
            f"{current().where}, {what}", given=f"{shape_of(places)} for {shape_of(value)}",
            expected="an index of as many dimensions", fix="add dimensions of size one with fg.expand_dims",
        )  # fmt: skip


def _apart(value: Value, places: Value, position: int, axis: AxisVar | None) -> tuple[Value, AxisVar | None]:
    """``value`` along an axis of its own, where positions alone tell the places: what is read may then meet what it is
    read of, ``x + x[::-1]``. Both reads are one in a kernel (fuse/gather)."""
    if axis is None or any(isinstance(node, Ref) for node in walk([places.expr])):
        return value, axis
    tracer = current()
    tracer.reads_sizes = True
    tracer.told.append(axis)
    made = AxisVar(axis.find().size, f"places along {axis.origin}", fixed=True, made=True)
    dims = (*value.dims[:position], made, *value.dims[position + 1 :])
    return picked(value, Index(tracer.name_of(made)), axis, dims, "take"), made


def picked(value: Value, place: Expr, axis: AxisVar, dims: Dims, what: str) -> Value:
    """What a table has at a place along an axis."""
    tracer = current()
    tracer.distinct.append((f"what {what} gives", dims))
    here = call("eq", Index(tracer.name_of(axis)), place, dtype=dtypes.bool_)
    chosen = Call("where", (here, value.expr, const(0, value.expr.dtype)), value.expr.dtype)
    return reduce("sum", Value(chosen, value.dtype, (axis, *dims)), 0, dtype=value.dtype)


def another(dim: AxisVar) -> AxisVar:
    """A new axis as long as a dimension, in groups where that is."""
    made = [
        axis and AxisVar(axis.size, f"places along {axis.origin}", fixed=True, made=True) for axis in dim.entries
    ]  # which no argument need have
    found = grouped(tuple(made))
    assert found is not None
    return found


def along(value: Value, dim: AxisVar, made: AxisVar) -> Value:
    """A value along a new axis in the place of one of its dimensions: what holds no data at other positions, and what
    does read once more."""
    tracer = current()
    tracer.reads_sizes = True
    without_data = holds_no_data(value)
    for own, new in zip(leaves([dim]), leaves([made]), strict=True):
        tracer.told.append(own)
        dims = tuple(_with(other, own, new) for other in value.dims)
        if without_data:
            value = Value(_at_others(tracer, value.expr, own, new), value.dtype, dims, value.weak)
        elif own.find() in tracer.axes_of(value.expr):
            value = picked(value, Index(tracer.name_of(new)), own, dims, "a tensor that meets itself")
        else:
            value = Value(value.expr, value.dtype, dims, value.weak)
    return value


def _with(dim: AxisVar | None, own: AxisVar, new: AxisVar) -> AxisVar | None:
    """A dimension with a new axis in the place of one that it is, or is made of."""
    if dim is None or own.find() not in leaves([dim]):
        return dim
    return grouped(tuple(new if axis is not None and axis is own.find() else axis for axis in dim.entries))


def _at_others(tracer: Tracer, expr: Expr, own: AxisVar, new: AxisVar) -> Expr:
    """Positions along another axis. Of a dimension in groups positions are told as one number."""
    nodes = [node for node in walk([expr]) if isinstance(node, Index)]
    found: dict[Expr, Expr] = {}
    for node in nodes:
        entries = tracer.sizes[node.axis].entries
        if own.find() in leaves([tracer.sizes[node.axis]]):
            axis = grouped(tuple(new if entry is not None and entry is own.find() else entry for entry in entries))
            assert axis is not None
            found[node] = Index(tracer.name_of(axis))
    return Substitution(found).of(expr)


def holds_no_data(value: Value) -> bool:
    """Whether it is made of positions, and numbers that are the same everywhere."""
    tracer = current()
    return bool(value.dims) and not any(
        (isinstance(node, Ref) and tracer.axes_of(node)) or isinstance(node, (Part, Joined))
        for node in walk([value.expr])
    )


def along_another(value: Value, axis: AxisVar) -> Value:
    """A value along a new axis in the place of one of its dimensions."""
    return along(value, axis, another(axis))


FUNCTIONS = (take, take_along_axis)

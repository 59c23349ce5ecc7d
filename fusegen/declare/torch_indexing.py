"""Functions of torch that read and add at positions, as expressions of the language (declare/indexing)."""

from __future__ import annotations

from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.declare import creation, indexing, language, scattering
from fusegen.declare.axes import AxisVar
from fusegen.declare.torch_functions import torchs
from fusegen.declare.value import Like, Value, current, elementwise, lift, one_axis, shape_of


@torchs("index_select")
def index_select(input: Like, dim: int, index: Like) -> Value:
    """``fg.take(x, i, axis)``."""
    places = lift(index)
    if places.ndim > 1:
        raise ShapeError(
            f"{current().where}, index_select", given=shape_of(places), expected="an index of one dimension",
            fix="use fg.take(x, index, axis)",
        )  # fmt: skip
    found = indexing.take(_as_vector(input), _as_vector(places), dim, negative=False)
    return found if lift(input).ndim else _number(found)


@torchs(numpy=["take"])
def numpy_take(input: Like, indices: Like, dim: int | None = None) -> Value:
    """``fg.take(x, i, axis)``."""
    if dim is None and lift(input).ndim != 1:
        raise DeclarationError(
            f"{current().where}, take", given=f"no axis of {shape_of(lift(input))}",
            expected="an axis: positions in a tensor that is seen as flat are not told here",
            fix="say axis=, or flatten first: fg.flatten(x)",
        )  # fmt: skip
    return indexing.take(input, indices, dim or 0)


@torchs("nn.functional.embedding")
def embedding(
    input: Like, weight: Like, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Value:  # fmt: skip
    """``fg.take(weight, i, 0)``; the row ``padding_idx`` has no gradient."""
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise DeclarationError(
            f"{current().where}, embedding", given="max_norm, scale_grad_by_freq or sparse",
            expected="neither: a table as it is, and its whole gradient",
            fix="scale rows before, or count positions and divide the gradient after",
        )  # fmt: skip
    rows, places = indexing.take(weight, input, 0, negative=False), lift(input)
    if padding_idx is None:
        return rows
    padding_idx = padding_idx if padding_idx >= 0 else padding_idx + lift(weight).shape[0]
    is_padding = language.expand_dims(elementwise("eq", places, padding_idx), -1)
    return elementwise("where", is_padding, language.stop_gradient(rows), rows)


@torchs("nn.functional.one_hot")
def one_hot(tensor: Like, num_classes: int = -1) -> Value:
    """``fg.one_hot(x, num_classes)``; the number must be told."""
    if isinstance(num_classes, int) and num_classes == -1:
        raise DeclarationError(
            f"{current().where}, one_hot", given="no num_classes",
            expected="the number of classes: the largest one of a tensor is not known before it is read",
            fix="say num_classes=, a number that the op is traced for",
        )  # fmt: skip
    return creation.one_hot(tensor, num_classes)


@torchs("gather")
def gather(input: Like, dim: int, index: Like) -> Value:
    """``fg.take_along_axis(x, i, axis)``."""
    value, places = _as_vector(input), _as_vector(index)
    _check("gather", value, places, dim)
    found = indexing.take_along_axis(value, places, dim)
    return found if lift(index).ndim else _number(found)


@torchs("take_along_dim", numpy=["take_along_axis"])
def take_along_dim(input: Like, indices: Like, dim: int | None = None) -> Value:
    """``fg.take_along_axis(x, i, axis)``."""
    if dim is None:
        raise DeclarationError(
            f"{current().where}, take_along_dim", given=f"no dim of {shape_of(lift(input))}",
            expected="a dimension: positions in a tensor that is seen as flat are not told here", fix="say dim=",
        )  # fmt: skip
    return indexing.take_along_axis(input, indices, dim)


@torchs("index_add")
def index_add(input: Like, dim: int, index: Like, source: Like, *, alpha: Like = 1) -> Value:
    """``fg.index_add(x, axis, i, source)``."""
    found = scattering.index_add(_as_vector(input), dim, index, _as_vector(source), alpha)
    return found if lift(input).ndim else _number(found)


@torchs("scatter_add")
def scatter_add(input: Like, dim: int, index: Like, src: Like) -> Value:
    """``fg.scatter_add(x, axis, i, source)``."""
    value, places, source = _as_vector(input), _as_vector(index), _as_vector(src)
    _check("scatter_add", value, places, dim)
    _check("scatter_add", source, places, None)
    found = scattering.scatter_add(value, dim, places, source)
    return found if lift(input).ndim else _number(found)


@torchs("scatter")
def scatter(
    input: Like, dim: int, index: Like, src: Like | None = None, *, value: Like | None = None, reduce: str | None = None
) -> Value:  # fmt: skip
    """``fg.scatter(x, axis, i, source)``; with ``reduce`` it is combined: "add" or "multiply"."""
    if (src is None) == (value is None):
        raise DeclarationError(
            f"{current().where}, scatter", given="no source" if src is None else "src and value",
            expected="one of them", fix="pass src=, a tensor, or value=, a number",
        )  # fmt: skip
    given = lift(src if value is None else value)
    into, places = _as_vector(input), _as_vector(index)
    _check("scatter", into, places, dim)
    source = given if value is not None or given.weak else _as_vector(given)
    if source.ndim:
        _check("scatter", source, places, None)
    if reduce is not None and reduce not in ("add", "multiply"):
        raise DeclarationError(
            f"{current().where}, scatter", given=f"reduce={reduce!r}", expected="add or multiply",
            fix="use scatter_reduce for another one",
        )  # fmt: skip
    if reduce is None:
        found = scattering.scatter(into, dim, places, source)
    else:
        found = scattering.scatter_reduce(into, dim, places, source, {"add": "sum", "multiply": "prod"}[reduce])
    return found if lift(input).ndim else _number(found)


@torchs("scatter_reduce")
def scatter_reduce(
    input: Like, dim: int, index: Like, src: Like, reduce: str, *, include_self: bool = True
) -> Value:  # fmt: skip
    """``fg.scatter_reduce(x, axis, i, source, "amax")``."""
    value, places, source = _as_vector(input), _as_vector(index), _as_vector(src)
    _check("scatter_reduce", value, places, dim)
    _check("scatter_reduce", source, places, None)
    found = scattering.scatter_reduce(value, dim, places, source, reduce, include_self=include_self)
    return found if lift(input).ndim else _number(found)


@torchs("index_copy")
def index_copy(input: Like, dim: int, index: Like, source: Like) -> Value:
    """``fg.index_copy(x, axis, i, source)``."""
    found = scattering.index_copy(_as_vector(input), dim, index, _as_vector(source))
    return found if lift(input).ndim else _number(found)


@torchs("index_fill")
def index_fill(input: Like, dim: int, index: Like, value: Like) -> Value:
    """``fg.scatter(x, axis, i, value)``, with ``i`` of one dimension."""
    into, places = _as_vector(input), _as_vector(index)
    if lift(value).ndim:
        raise ShapeError(
            f"{current().where}, index_fill", given=shape_of(lift(value)), expected="a number",
            fix="use index_copy for several numbers",
        )  # fmt: skip
    found = scattering.scatter(into, dim, _along(places, into, dim, "index_fill"), value)
    return found if lift(input).ndim else _number(found)


@torchs("index_reduce")
def index_reduce(
    input: Like, dim: int, index: Like, source: Like, reduce: str, *, include_self: bool = True
) -> Value:  # fmt: skip
    """``fg.scatter_reduce(x, axis, i, source, "amax")``, with ``i`` of one dimension."""
    into, places, of = _as_vector(input), _as_vector(index), _as_vector(source)
    along = _along(places, into, dim, "index_reduce")
    found = scattering.scatter_reduce(into, dim, along, of, reduce, include_self=include_self)
    return found if lift(input).ndim else _number(found)


def _along(places: Value, value: Value, dim: int, what: str) -> Value:
    """Places of one dimension, as a tensor of as many as ``value``."""
    position = one_axis(value, dim, what)
    assert position is not None
    if places.ndim > 1:
        raise ShapeError(
            f"{current().where}, {what}", given=shape_of(places), expected="an index of one dimension",
            fix="use scatter_reduce",
        )  # fmt: skip
    dims: list[AxisVar | None] = [None] * value.ndim
    dims[position] = places.dims[0]
    return Value(places.expr, places.dtype, tuple(dims))


def _as_vector(given: Like) -> Value:
    """A tensor without dimensions as one of a single element, as torch sees it here."""
    value = lift(given)
    return value if value.ndim or value.weak else Value(value.expr, value.dtype, (None,))


def _number(value: Value) -> Value:
    return Value(value.expr, value.dtype, ())


def _check(what: str, value: Value, index: Value, dim: int | None) -> None:
    """That the index has the sizes of a tensor, where torch would take the first elements of it alone."""
    if index.ndim != value.ndim:
        return  # an error of its own
    along = one_axis(value, dim, what) if dim is not None else None
    sizes = [n for place, n in enumerate(value.sizes) if place != along]
    if sizes != [n for place, n in enumerate(index.sizes) if place != along]:
        raise ShapeError(
            f"{current().where}, {what}", given=f"{shape_of(index)} for {shape_of(value)}",
            expected="the same sizes, but along the dimension that is indexed",
            fix="slice the tensor to the sizes of the index, x[:n], or expand the index",
        )  # fmt: skip

"""Elements at places that an index tells, read, written and added, with torch's names and arguments.

An index is of integers of any kind. One that is out of range is an error (``fg.PlaceError``), which a GPU tells later:
nothing waits for the device. Negative numbers count from the end, but for embeddings and ``index_select``. As in torch,
an index may have fewer elements than the tensor along the other dimensions: then it is of the first ones.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

from ._options import among, choose, is_number, limited
from ._shapes import is_symbolic, needed, product, shapes, size, sizes, view


def _vector(x: fg.Tensor) -> fg.Tensor:
    """A tensor without dimensions as one of a single element, as torch sees it here."""
    return fg.expand_dims(x, () if x.ndim else 0)


def _like(input: fg.Tensor, found: fg.Tensor) -> fg.Tensor:
    """A result with as many dimensions as the tensor that it is to be like."""
    return found if input.ndim else found[0]


def _axis(op: str, x: fg.Tensor, dim: Any) -> int:
    """A dimension, counted from 0."""
    rank = x.ndim
    if not rank:
        raise fg.ShapeError(
            f"{op}, argument dim", given=f"{dim!r} of a tensor without dimensions", expected="one of its dimensions",
            fix="leave it away",
        )  # fmt: skip
    if not isinstance(dim, int) or isinstance(dim, bool) or not -rank <= dim < rank:
        raise fg.ShapeError(
            f"{op}, argument dim", given=f"{dim!r} of a tensor of rank {rank}",
            expected=f"an int from {-rank} to {rank - 1}", fix="count dimensions from 0, or from -1 at the end",
        )  # fmt: skip
    return dim % rank


def _sizes(x: fg.Tensor) -> list[int]:
    return list(map(size, x.dims))


def _first(x: fg.Tensor, count: int, axis: int) -> fg.Tensor:
    """The first elements along an axis; where there are not as many, zeros behind them."""
    return fg.take(x, fg.arange(count), axis, negative=False)


def _check_rank(op: str, index: fg.Tensor, **others: fg.Tensor) -> None:
    """Each of them has as many dimensions as the index."""
    for name, tensor in others.items():
        if tensor.ndim != index.ndim:
            raise fg.ShapeError(
                op, given=shapes(index=index, **{name: tensor}), expected=f"an index of as many dimensions as {name}",
                fix="add dimensions of size one with unsqueeze",
            )  # fmt: skip


def _check_dtype(op: str, name: str, x: fg.Tensor, source: fg.Tensor) -> None:
    if source.dtype != x.dtype:
        raise fg.DtypeError(
            op, given=f"{name} of {source.dtype} for an input of {x.dtype}", expected="one dtype (as torch)",
            fix=f"cast one of them: {name}.to(input.dtype)",
        )  # fmt: skip


def _too_large(op: str, index: fg.Tensor, name: str, tensor: fg.Tensor) -> fg.FusegenError:
    return fg.ShapeError(
        op, given=shapes(index=index, **{name: tensor}),
        expected=f"no more elements in the index than in {name}, but along the dimension that is indexed",
        fix="slice the index, or expand the tensor",
    )  # fmt: skip


def _placed(op: str, x: fg.Tensor, axis: int, index: fg.Tensor, source: fg.Tensor | None) -> tuple[fg.Tensor, Any]:
    """An index and a source with the sizes of the tensor that they are put into, but along the axis; what they lack is
    put nowhere. Of the source the first elements count."""
    _check_rank(op, index, input=x)
    if source is not None:
        _check_rank(op, index, src=source)
        _check_dtype(op, "src", x, source)
        if any(theirs < mine for mine, theirs in zip(_sizes(index), _sizes(source), strict=True)):
            raise _too_large(op, index, "src", source)
    for at, (mine, theirs) in enumerate(zip(_sizes(index), _sizes(x), strict=True)):
        if at == axis:
            wanted = mine
        elif mine > theirs:
            raise _too_large(op, index, "input", x)
        else:
            wanted = theirs
        if source is not None and _sizes(source)[at] != wanted:
            source = _first(source, wanted, at)
        if mine != wanted:
            is_there = fg.expand_dims(fg.arange(wanted) < mine, tuple(range(1, x.ndim - at)))
            index = fg.where(is_there, fg.cast(_first(index, wanted, at), fg.int64), fg.NOWHERE)
    return index, source


@fg.op
def gather(input: fg.Tensor, dim: fg.Const, index: fg.Tensor, *, sparse_grad: bool = False) -> fg.Tensor:
    """out[i][j][k] = input[index[i][j][k]][j][k] for dim 0, in the shape of the index; likewise along other dimensions.

    Source: torch.gather.
    """
    if sparse_grad:
        raise fg.DeclarationError(
            "gather, option sparse_grad", given="sparse_grad=True", expected="False: gradients are dense",
            fix="leave it away",
        )  # fmt: skip
    if index.ndim != input.ndim and 0 in index.shape:  # which torch takes
        return fg.cast(fg.where(index == 0, fg.sum(input), 0), input.dtype)
    x, places = _vector(input), _vector(index)
    _check_rank("gather", places, input=x)
    axis = _axis("gather", x, dim)
    for at, (mine, theirs) in enumerate(zip(_sizes(places), _sizes(x), strict=True)):
        if at != axis and mine > theirs:
            raise _too_large("gather", places, "input", x)
        if at != axis and mine < theirs:
            x = _first(x, mine, at)
    return _like(index, fg.take_along_axis(x, places, axis))


def _flat_without_dim(op: str, *, input: Any, indices: Any, dim: Any) -> dict[str, Any]:
    """Without a dimension both are seen as flat: outside of a declaration that is a view, or a copy."""
    if dim is not None or is_symbolic(input) or is_symbolic(indices):
        return {}
    flat = {name: view(x, (product(sizes(x)),)) for name, x in (("input", input), ("indices", indices))}
    return {**flat, "dim": 0}


@limited(_flat_without_dim)
def take_along_dim(input: fg.Tensor, indices: fg.Tensor, dim: fg.Const = None) -> fg.Tensor:
    """input at a place for each element along ``dim``; the other dimensions broadcast.

    Without ``dim`` both are seen as flat, and so is the result. Source: torch.take_along_dim.
    """
    if dim is None:
        return fg.take_along_axis(fg.flatten(_vector(input)), fg.flatten(_vector(indices)), 0)
    return fg.take_along_axis(input, indices, dim)


@fg.op
def index_select(input: fg.Tensor, dim: fg.Const, index: fg.Tensor) -> fg.Tensor:
    """input at the places of a vector along ``dim``. Source: torch.index_select."""
    if index.ndim > 1:
        raise fg.ShapeError(
            "index_select, argument index", given=shapes(index=index), expected="an index of one dimension",
            fix="use gather, or take_along_dim, for a place for each element",
        )  # fmt: skip
    x = _vector(input)
    return _like(input, fg.take(x, _vector(index), _axis("index_select", x, dim), negative=False))


def _without_one(op: str, *, alpha: Any, **_: Any) -> dict[str, Any]:
    """A factor of 1 is left out."""
    return {"alpha": None} if is_number(alpha) and alpha == 1 else {}


@limited(_without_one)
def index_add(
    input: fg.Tensor, dim: fg.Const, index: fg.Tensor, source: fg.Tensor, *, alpha: fg.Scalar = 1
) -> fg.Tensor:  # fmt: skip
    """input with alpha source[i] added at index[i] along ``dim``, for dim 0; in one order, the same bits each time.

    Source: torch.index_add.
    """
    x, added = _vector(input), _vector(source)
    _check_dtype("index_add", "source", x, added)
    added = added if alpha is None else alpha * added
    return _like(input, fg.index_add(x, _axis("index_add", x, dim), index, added))


@fg.op
def index_copy(input: fg.Tensor, dim: fg.Const, index: fg.Tensor, source: fg.Tensor) -> fg.Tensor:
    """input with source[i] in place of what is at index[i] along ``dim``, for dim 0.

    Of several for one place the last one counts, and has the gradient. Source: torch.index_copy.
    """
    x, put = _vector(input), _vector(source)
    _check_dtype("index_copy", "source", x, put)
    return _like(input, fg.index_copy(x, _axis("index_copy", x, dim), index, put))


@fg.op(autocast="widest")
def scatter_add(input: fg.Tensor, dim: fg.Const, index: fg.Tensor, src: fg.Tensor) -> fg.Tensor:
    """input with src[i][j] added at [index[i][j]][j], for dim 0; in one order, the same bits each time.

    Source: torch.scatter_add.
    """
    x = _vector(input)
    axis = _axis("scatter_add", x, dim)
    places, source = _placed("scatter_add", x, axis, _vector(index), _vector(src))
    return _like(input, fg.scatter_add(x, axis, places, source))


@fg.op
def scatter(
    input: fg.Tensor, dim: fg.Const, index: fg.Tensor, src: fg.Scalar = None, *, value: fg.Scalar = None,
    reduce: str | None = None,
) -> fg.Tensor:  # fmt: skip
    """input with src[i][j] in place of what is at [index[i][j]][j], for dim 0; ``src`` is a tensor, or a number.

    Of several for one place the last one counts, and has the gradient. With ``reduce`` they are added ("add") or
    multiplied ("multiply") with what is there. ``value`` is another name of a number. Source: torch.scatter.
    """
    if (src is None) == (value is None):
        raise fg.DeclarationError(
            "scatter", given="no source" if src is None else "src and value", expected="one of them",
            fix="pass src=, a tensor, or value=, a number",
        )  # fmt: skip
    given: Any = src if value is None else value
    kinds = {"add": "sum", "multiply": "prod"}
    choose("scatter", "reduce", reduce, (None, *kinds))  # type: ignore[arg-type]
    x = _vector(input)
    axis = _axis("scatter", x, dim)
    number = value is not None or is_number(given) or given.weak
    places, source = _placed("scatter", x, axis, _vector(index), None if number else _vector(given))
    put = among(given, x) if source is None else source
    if reduce is None:
        return _like(input, fg.scatter(x, axis, places, put))
    return _like(input, fg.scatter_reduce(x, axis, places, put, kinds[reduce]))


@fg.op
def scatter_reduce(
    input: fg.Tensor, dim: fg.Const, index: fg.Tensor, src: fg.Tensor, reduce: str, *, include_self: bool = True
) -> fg.Tensor:  # fmt: skip
    """input combined with src[i][j] at [index[i][j]][j], for dim 0, by "sum", "mean", "prod", "amax" or "amin".

    Without ``include_self`` what the input has there does not count. Elements that tie share an extremum's gradient.
    Source: torch.scatter_reduce.
    """
    x = _vector(input)
    axis = _axis("scatter_reduce", x, dim)
    places, source = _placed("scatter_reduce", x, axis, _vector(index), _vector(src))
    return _like(input, fg.scatter_reduce(x, axis, places, source, reduce, include_self=include_self))


# -- embeddings ------------------------------------------------------------------------------------------------------


def _check_table(op: str, weight: fg.Tensor, max_norm: Any, scale_grad_by_freq: Any, sparse: Any) -> None:
    needed(op, weight=weight)
    if weight.ndim != 2:
        raise fg.ShapeError(
            f"{op}, argument weight", given=shapes(weight=weight), expected="a matrix: a row for each number",
            fix="use index_select for tables of other ranks",
        )  # fmt: skip
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise fg.DeclarationError(
            op, given="max_norm, scale_grad_by_freq or sparse",
            expected="neither: a table as it is, and its whole gradient",
            fix="scale rows before, or count positions and divide the gradient after",
        )  # fmt: skip


def _is_padding(index: fg.Tensor, weight: fg.Tensor, padding_idx: Any) -> fg.Tensor | None:
    """Which places are of the row that does not count."""
    if padding_idx is None:
        return None
    row: Any = padding_idx if padding_idx >= 0 else padding_idx + weight.shape[0]
    found: fg.Tensor = index == row
    return found


@fg.op
def embedding(
    input: fg.Tensor, weight: fg.Tensor, padding_idx: fg.Const = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> fg.Tensor:  # fmt: skip
    """weight[input]: a row of the table for each number; the row ``padding_idx`` has no gradient.

    Neither ``max_norm``, ``scale_grad_by_freq`` nor ``sparse``. Source: torch.nn.functional.embedding.
    """
    _check_table("embedding", weight, max_norm, scale_grad_by_freq, sparse)
    rows = fg.take(weight, input, 0, negative=False)
    padding = _is_padding(input, weight, padding_idx)
    return rows if padding is None else fg.where(fg.expand_dims(padding, -1), fg.stop_gradient(rows), rows)


@fg.op
def embedding_bag(
    input: fg.Tensor, weight: fg.Tensor, offsets: fg.Tensor = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: fg.Tensor = None, include_last_offset: bool = False, padding_idx: fg.Const = None,
) -> fg.Tensor:  # fmt: skip
    """The sum, mean or maximum of the rows weight[input] of each bag; 0 of a bag of none.

    The rows of a matrix ``input`` are bags. Those of a vector begin at ``offsets``; with ``include_last_offset`` the
    last of these is where the last bag ends. A sum may be weighted. The row ``padding_idx`` counts for nothing. Rows
    that tie share a maximum's gradient. Neither ``max_norm``, ``scale_grad_by_freq`` nor ``sparse``.

    Source: torch.nn.functional.embedding_bag.
    """
    op = "embedding_bag"
    _check_table(op, weight, max_norm, scale_grad_by_freq, sparse)
    choose(op, "mode", mode, ("sum", "mean", "max"))
    if input.ndim not in (1, 2) or (input.ndim == 1) is (offsets is None):
        given = shapes(input=input) + (" without offsets" if offsets is None else " with offsets")
        raise fg.ShapeError(
            op, given=given, expected="a matrix of bags, or a vector and offsets", fix="pass offsets= of a vector alone"
        )
    if per_sample_weights is not None and (mode != "sum" or per_sample_weights.ndim != input.ndim):
        raise fg.DeclarationError(
            f"{op}, argument per_sample_weights", given=f"{shapes(weights=per_sample_weights)} and mode={mode!r}",
            expected='a weight for each number, and mode="sum"', fix="scale the table's rows before",
        )  # fmt: skip
    rows = fg.take(weight, input, 0, negative=False)
    if per_sample_weights is not None:
        rows = rows * fg.expand_dims(per_sample_weights, -1)
    padding = _is_padding(input, weight, padding_idx)
    if input.ndim == 2:
        return _bags_of_a_matrix(rows, padding, mode)
    assert offsets is not None
    bags = offsets.shape[0] - int(include_last_offset)
    ids = fg.segment_ids(offsets, input.shape[0])
    ids = ids if padding is None else fg.where(padding, -1, ids)
    if mode == "max":
        return fg.where(fg.bincount(ids, bags)[:, None] > 0, fg.segment_max(rows, ids, bags), 0)
    return (fg.segment_sum if mode == "sum" else fg.segment_mean)(rows, ids, bags)


def _bags_of_a_matrix(rows: fg.Tensor, padding: fg.Tensor | None, mode: str) -> fg.Tensor:
    """[bags, count, width] to [bags, width]."""
    if mode == "max":
        left = rows if padding is None else fg.where(fg.expand_dims(padding, -1), -float("inf"), rows)
        largest = fg.amax(left, 1)
        return fg.where(largest == -float("inf"), 0, largest)
    left = rows if padding is None else fg.where(fg.expand_dims(padding, -1), 0, rows)
    total = fg.sum(left, 1)
    if mode == "sum":
        return total
    count: Any = fg.size(rows, 1) if padding is None else fg.sum(~padding, 1)[:, None]
    return total / fg.maximum(count, 1)


# -- other orders ----------------------------------------------------------------------------------------------------


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (tuple, list)) else [given]


@fg.op
def flip(input: fg.Tensor, dims: fg.Const) -> fg.Tensor:
    """input in the other order along these dimensions. Source: torch.flip."""
    x = _vector(input)
    axes = [_axis("flip", x, dim) for dim in _listed(dims)]
    if len(set(axes)) < len(axes):
        raise fg.ShapeError(
            "flip, argument dims", given=f"{dims}", expected="each dimension once", fix="remove the repeated one"
        )
    for axis in axes:
        count = x.shape[axis]
        x = fg.take(x, int(count) - 1 - fg.arange(count), axis, negative=False)
    return _like(input, x)


@fg.op
def roll(input: fg.Tensor, shifts: fg.Const, dims: fg.Const = None) -> fg.Tensor:
    """out[i] = input[(i - shift) mod n] along each of these dimensions.

    Without ``dims`` the input must be a vector: torch sees others as flat. Source: torch.roll.
    """
    x, by = input, _listed(shifts)
    along = _listed(dims) if dims is not None else [0] if x.ndim else [None]
    if (dims is None and x.ndim > 1) or len(by) != len(along):
        raise fg.DeclarationError(
            "roll", given=f"shifts={shifts!r}, dims={dims!r} of {shapes(input=input)}",
            expected="a shift for each dimension: tensors are not seen as flat here", fix="name the dimensions",
        )  # fmt: skip
    for shift, dim in zip(by, along, strict=True):
        if dims is None and not x.ndim:
            return x
        axis = _axis("roll", x, dim)
        count = int(x.shape[axis])
        last = shift % count if count else 0
        if last:
            place = fg.arange(count)
            is_front = fg.expand_dims(place < last, tuple(range(1, x.ndim - axis)))
            front = fg.take(x, place + (count - last), axis, negative=False)
            x = fg.where(is_front, front, fg.take(x, place - last, axis, negative=False))
    return x


def _without_zero(op: str, *, value: Any, **_: Any) -> dict[str, Any]:
    """Zeros are there anyway."""
    return {"value": None} if is_number(value) and value == 0 else {}


@limited(_without_zero)
def pad(input: fg.Tensor, pad: fg.Const, mode: str = "constant", value: fg.Scalar = None) -> fg.Tensor:
    """input with ``pad[0]`` elements in front of its last dimension and ``pad[1]`` behind, and so on for those before.

    They are the number ``value``, or the input's: turned around its ends ("reflect"), its ends ("replicate"), or what
    follows if it goes on anew ("circular"). Negative widths cut off. Source: torch.nn.functional.pad.
    """
    widths = _listed(pad)
    choose("pad", "mode", mode, ("constant", "reflect", "replicate", "circular"))
    known = all(isinstance(width, int) and not isinstance(width, bool) for width in widths)
    if not known or len(widths) % 2 or len(widths) > 2 * input.ndim:
        raise fg.ShapeError(
            "pad, argument pad", given=f"{pad!r} of {shapes(input=input)}",
            expected="two widths for each of the last dimensions", fix="pass ints, the last dimension's first",
        )  # fmt: skip
    x: Any = input
    is_there: Any = None
    for at, (front, back) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
        if not front and not back:
            continue
        count = int(x.shape[-1 - at])
        _check_widths(mode, count, front, back, x)
        place = fg.arange(front + count + back) - front if front else fg.arange(count + back)
        ends = max(-front, 0), count + min(back, 0)  # of the elements that are left
        x = fg.take(x, _padded(mode, place, count, ends), -1 - at, negative=False)
        if value is not None and mode == "constant":
            inside = fg.expand_dims((place >= 0) & (place < count), tuple(range(1, at + 1)))
            is_there = inside if is_there is None else is_there & inside
    return x if is_there is None or value is None else fg.cast(fg.where(is_there, x, among(value, x)), input.dtype)


def _check_widths(mode: str, count: int, front: int, back: int, x: fg.Tensor) -> None:
    most = {"reflect": count - 1, "circular": count + min(front, 0) + min(back, 0)}.get(mode)
    enough = front + count + back >= 0 and (mode == "constant" or count > 0)
    if not enough or (most is not None and max(front, back) > most):
        raise fg.ShapeError(
            "pad, argument pad", given=f"{front} and {back} of {count} elements of {shapes(input=x)}, mode={mode!r}",
            expected="elements that are left" if most is None or not enough else f"{most} at most", fix="pass less",
        )  # fmt: skip


def _padded(mode: str, place: Any, count: int, ends: tuple[int, int]) -> fg.Tensor:
    """Where in the input an element is from, given the place that it would have.

    What goes on anew are the elements between the ``ends``: those that a negative width cuts off are gone before. The
    other modes look at all of the input.
    """
    if mode == "reflect":
        return (count - 1) - fg.abs((count - 1) - fg.abs(place))
    if mode == "replicate":
        return fg.clamp(place, 0, count - 1)
    if mode == "circular":
        first, last = ends
        left = last - first
        return fg.where(place < first, place + left, fg.where(place >= last, place - left, place))
    found: fg.Tensor = place
    return found

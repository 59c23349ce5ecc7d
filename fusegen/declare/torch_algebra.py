"""torch's functions of vectors and matrices, as products and sums of the language (declare/products, reductions)."""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Sequence
from typing import Any

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, DtypeError, ShapeError
from fusegen.declare import creation, products, reductions
from fusegen.declare.language import expand_dims
from fusegen.declare.parts import concat, flatten, split
from fusegen.declare.torch_arrays import diagonal, repeat_interleave
from fusegen.declare.torch_functions import permute, power, torchs, transpose
from fusegen.declare.value import (
    Like,
    Value,
    cast,
    current,
    elementwise,
    lift,
    one_axis,
    plain_number,
    result_type,
    shape_of,
)


def _of_rank(what: str, value: Value, rank: int, instead: str) -> None:
    if value.ndim != rank:
        raise ShapeError(
            f"{current().where}, {what}", given=f"{shape_of(value)}, of rank {value.ndim}", expected=f"rank {rank}",
            fix=instead,
        )  # fmt: skip


@torchs("outer", "ger")
def outer(input: Like, vec2: Like) -> Value:
    """``x[:, None] * y``."""
    for value in (lift(input), lift(vec2)):
        _of_rank("outer", value, 1, "use x[:, None] * y")
    return elementwise("mul", expand_dims(input, -1), vec2)


@torchs("inner", numpy=["inner"])
def inner(input: Like, other: Like) -> Value:
    """``x @ y.mT``; of vectors ``x @ y``."""
    x, y = lift(input), lift(other)
    if not x.ndim or not y.ndim:
        return elementwise("mul", x, y)
    if y.ndim > 2:
        _of_rank("inner", y, 2, "flatten the dimensions in front of the last one outside the op")
    return products.matmul(x, y if y.ndim == 1 else transpose(y, 0, 1))


@torchs(numpy=["dot"])
def dot(input: Like, other: Like) -> Value:
    """``x @ y``, of vectors and matrices; with a number the product."""
    x, y = lift(input), lift(other)
    if not x.ndim or not y.ndim:
        return elementwise("mul", x, y)
    if y.ndim > 2:  # NumPy's puts the other dimensions side by side where x @ y broadcasts them
        _of_rank("numpy.dot", y, 2, "use np.matmul, which broadcasts what is in front of the matrices, or np.einsum")
    return products.matmul(x, y)


@torchs("kron", numpy=["kron"])
def kron(input: Like, other: Like) -> Value:
    """Each element of ``x`` times all of ``y``, in its place."""
    x, y = lift(input), lift(other)
    rank = max(x.ndim, y.ndim)
    x, y = (expand_dims(value, tuple(range(rank - value.ndim))) if value.ndim < rank else value for value in (x, y))
    product = elementwise(
        "mul", expand_dims(x, tuple(range(1, 2 * rank, 2))), expand_dims(y, tuple(range(0, 2 * rank, 2)))
    )
    for place in range(rank):
        product = flatten(product, place, place + 1)
    return product


@torchs("nn.functional.bilinear")
def bilinear(input1: Like, input2: Like, weight: Like, bias: Like | None = None) -> Value:
    """``fg.sum((x @ w[k]) * y, -1)`` for each ``k``: ``torch.einsum("...i,kij,...j->...k", x, w, y)``."""
    found = einsum("...i,kij,...j->...k", input1, weight, input2)
    return found if bias is None else elementwise("add", found, bias)


@torchs("renorm")
def renorm(input: Like, p: float, dim: int, maxnorm: float) -> Value:
    """``x`` divided by what the norm of a part along ``dim`` is too large by."""
    value = lift(input)
    place = one_axis(value, dim, "renorm")
    others = tuple(at for at in range(value.ndim) if at != place)
    length = reductions.norm(value, p, others, keepdims=True)
    scale = elementwise("div", maxnorm, elementwise("add", length, 1e-7))
    return elementwise("mul", value, elementwise("where", elementwise("gt", length, maxnorm), scale, 1))


@torchs("linalg.vecdot")
def vecdot(x: Like, y: Like, *, dim: int = -1) -> Value:
    """``fg.sum(x * y, axis)``."""
    product = elementwise("mul", x, y)
    return cast(reductions.sum(product, dim), product.dtype)


@torchs("addmv")
def addmv(input: Like, mat: Like, vec: Like, *, beta: Like = 1, alpha: Like = 1) -> Value:
    """``beta * x + alpha * (m @ v)``."""
    return _scaled_sum(input, products.matmul(mat, vec), beta, alpha)


@torchs("addbmm")
def addbmm(input: Like, batch1: Like, batch2: Like, *, beta: Like = 1, alpha: Like = 1) -> Value:
    """``beta * x + alpha * s``, with the sum ``s`` of products: ``torch.einsum("bij,bjk->ik", a, b)``."""
    return _scaled_sum(input, einsum("bij,bjk->ik", batch1, batch2), beta, alpha)


@torchs("addr")
def addr(input: Like, vec1: Like, vec2: Like, *, beta: Like = 1, alpha: Like = 1) -> Value:
    """``beta * x + alpha * v[:, None] * w``."""
    return _scaled_sum(input, outer(vec1, vec2), beta, alpha)


def _scaled_sum(input: Like, product: Value, beta: Like, alpha: Like) -> Value:
    """What has a factor of 0 counts as 0, whatever it is, and is of its shape. Factors say nothing of the dtype: of
    bools they are bools."""
    value = lift(input)
    dtype = result_type([value, product])

    def times(factor: Like, value: Value) -> Value:
        if isinstance(factor, (int, float)) and factor in (0, 1):
            return value if factor else Value(cast(0, value.dtype).expr, value.dtype, value.dims)
        return elementwise("mul", cast(factor, dtype) if dtype is dtypes.bool_ else factor, value)

    added = elementwise("add", times(beta, value), times(alpha, product))
    return added if added.dtype.is_float else cast(added, dtype)


@torchs("linalg.multi_dot", "chain_matmul")
def multi_dot(tensors: Sequence[Like]) -> Value:
    """``a @ b @ c``, from the left."""
    first, *others = tensors
    found = lift(first)
    for other in others:
        found = products.matmul(found, other)
    return found


@torchs("matrix_power", "linalg.matrix_power", numpy=["linalg.matrix_power"])
def matrix_power(input: Like, n: int) -> Value:
    """``x @ x @ ...``, by squares; of none the identity."""
    value, count = lift(input), plain_number(n)
    if value.ndim < 2 or value.sizes[-1] != value.sizes[-2]:
        raise ShapeError(
            f"{current().where}, matrix_power", given=shape_of(value), expected="square matrices", fix="use x @ y",
        )  # fmt: skip
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise DeclarationError(
            f"{current().where}, matrix_power", given=f"n={n!r}",
            expected="an int from 0 on that is known when the op is traced",
            fix="annotate the argument `: fg.Const`; invert outside the op",
        )  # fmt: skip
    if not count:
        kept = elementwise("eq", reductions.index(value, -1), reductions.index(value, -2))
        none = elementwise("mul", elementwise("sign", value), cast(0, value.dtype))  # with a gradient of zeros
        return elementwise("where", kept, cast(1, value.dtype), none)
    found: Value | None = None
    square = value
    while True:
        if count % 2:
            found = square if found is None else products.matmul(found, square)
        count //= 2
        if not count:
            assert found is not None
            return found
        square = products.matmul(square, square)


@torchs("vander")
def vander(x: Like, N: int | None = None, increasing: bool = False) -> Value:
    """``x[:, None] ** fg.arange(N)``, the highest power first."""
    return _powers(x, N, up=increasing)


@torchs("linalg.vander")
def linalg_vander(x: Like, *, N: int | None = None) -> Value:
    """``x[..., None] ** fg.arange(N)``."""
    return _powers(x, N, up=True)


def _powers(x: Like, count: int | None, *, up: bool) -> Value:
    value = lift(x)
    value = value if value.ndim else expand_dims(value, 0)
    size = value.sizes[-1] if count is None else creation.whole(count, "vander")
    powers = creation.arange(size) if up else creation.arange(size - 1, -1, -1)
    return power(expand_dims(value, -1), powers)


@torchs("cross")
def cross(input: Like, other: Like, dim: int | None = None) -> Value:
    """``fg.concat`` of differences of products of parts; without an axis the first of three elements."""
    x, y = lift(input), lift(other)
    if dim is None:
        sizes = x.sizes
        dim = next((place for place, size in enumerate(sizes) if size == 3), -1)
    return _cross(x, y, dim)


@torchs("linalg.cross")
def linalg_cross(input: Like, other: Like, *, dim: int = -1) -> Value:
    """``fg.concat`` of differences of products of parts."""
    return _cross(lift(input), lift(other), dim)


def _cross(x: Value, y: Value, dim: int) -> Value:
    places = [one_axis(value, dim, "cross") for value in (x, y)]
    if x.ndim != y.ndim or any(p is None or v.sizes[p] != 3 for p, v in zip(places, (x, y), strict=True)):
        raise ShapeError(
            f"{current().where}, cross", given=f"{shape_of(x)} and {shape_of(y)} along dimension {dim}",
            expected="two tensors of as many dimensions, with three elements along that one", fix="name another: dim=",
        )  # fmt: skip
    (a0, a1, a2), (b0, b1, b2) = split(x, 3, dim), split(y, 3, dim)
    pairs = ((a1, b2, a2, b1), (a2, b0, a0, b2), (a0, b1, a1, b0))
    return concat([elementwise("sub", elementwise("mul", a, b), elementwise("mul", c, d)) for a, b, c, d in pairs], dim)


# -- lengths and statistics --------------------------------------------------------------------------------------------


def matrix_norm(value: Value, ord: Any, axes: Sequence[int], keepdim: bool) -> Value:
    """Of matrices along two axes: "fro", 1, -1, inf and -inf; others need singular values.

    Raises:
        DeclarationError: another one.
    """
    first, second = axes
    if ord in (None, "fro"):
        return reductions.norm(value, 2, (first, second), keepdim)
    if ord not in (1, -1, math.inf, -math.inf):
        raise DeclarationError(
            f"{current().where}, linalg.matrix_norm", given=f"ord={ord!r}",
            expected='"fro", 1, -1, inf or -inf: the others are of singular values', fix="compute it outside the op",
        )  # fmt: skip
    added, left = (first, second) if abs(ord) == 1 else (second, first)
    sums = reductions.sum(elementwise("abs", value), added, keepdims=True)
    found = (reductions.amax if ord > 0 else reductions.amin)(sums, left, keepdims=True)
    found = elementwise("maximum", found, 0) if ord > 0 else found  # of no sums at all it would be -inf
    return found if keepdim else squeezed(found, (first, second))


def squeezed(value: Value, axes: Sequence[int]) -> Value:
    """Without these dimensions, of which each is of size one."""
    gone = {axis % value.ndim for axis in axes}
    return Value(value.expr, value.dtype, tuple(dim for at, dim in enumerate(value.dims) if at not in gone))


@torchs("linalg.matrix_norm")
def linalg_matrix_norm(
    A: Like, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Value:  # fmt: skip
    """``fg.norm(x, 2, (-2, -1))``; 1 and infinity: the largest of the sums of columns, of rows."""
    value = lift(A) if dtype is None else cast(A, dtype)
    if not value.dtype.is_float:
        raise DtypeError(
            f"{current().where}, linalg.matrix_norm", given=f"{value.dtype}", expected="floats", fix="cast the tensor"
        )
    return matrix_norm(value, ord, tuple(dim), keepdim)


@torchs("linalg.norm", numpy=["linalg.norm"])
def linalg_norm(input: Like, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """``fg.norm(x, ord, axis)``; with an order and two dimensions that of matrices."""
    value = lift(input) if dtype is None else cast(input, dtype)
    axes = tuple(range(value.ndim)) if dim is None else tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    if ord is None or len(axes) == 1:
        return reductions.norm(value, ord, dim, keepdim)
    if len(axes) != 2:
        _of_rank("linalg.norm", value, 2, "name the vectors' dimension, or both of the matrices': dim=(-2, -1)")
    return matrix_norm(value, ord, axes, keepdim)


@torchs("dist")
def dist(input: Like, other: Like, p: float = 2) -> Value:
    """``fg.norm(x - y, p)``."""
    return reductions.norm(elementwise("sub", input, other), p)


@torchs("cdist")
def cdist(x1: Like, x2: Like, p: float = 2.0, compute_mode: str | None = None) -> Value:
    """``fg.norm(x[:, None] - y, p, -1)``: each pair in one pass, without a matrix product."""
    apart = elementwise("sub", expand_dims(x1, -2), expand_dims(x2, -3))
    return reductions.norm(apart, p, -1)


@torchs("cov")
def cov(input: Like, *, correction: int = 1, fweights: Like | None = None, aweights: Like | None = None) -> Value:
    """``c @ c.mT / (n - 1)``, of rows without their means; with weights of the columns."""
    rows, count, weights = _variables("cov", input), lift(0), None
    count = elementwise("sub", rows.shape[-1] if rows.ndim else 1, correction)
    if fweights is not None or aweights is not None:
        given = [lift(w) for w in (fweights, aweights) if w is not None]
        rows = cast(rows, functools.reduce(dtypes.join, (value.dtype for value in (rows, *given))))
        weights = cast(given[0] if len(given) == 1 else elementwise("mul", *given), rows.dtype)
        total = reductions.sum(weights)
        beside = total
        if aweights is not None:
            beside = elementwise("div", reductions.sum(elementwise("mul", weights, aweights)), total)
            count = elementwise("sub", total, elementwise("mul", beside, correction))
        else:
            count = elementwise("sub", total, correction)
        mean = elementwise("div", reductions.sum(elementwise("mul", rows, weights), -1, keepdims=True), total)
    else:
        mean = reductions.mean(rows, -1 if rows.ndim else None, keepdims=True)
    centred = elementwise("sub", rows, mean)
    weighted = centred if weights is None else elementwise("mul", centred, weights)
    return elementwise("div", _with_itself(weighted, centred), elementwise("maximum", cast(count, rows.dtype), 0))


def _variables(what: str, input: Like) -> Value:
    """Variables as the rows of a matrix; of a single one, a vector."""
    value = lift(input)
    if value.ndim > 2:
        _of_rank(what, value, 2, "put the observations of each variable into a row")
    value = value if value.dtype.is_float else cast(value, dtypes.float32)
    return squeezed(value, (0,)) if value.ndim == 2 and value.dims[0] is None else value


def _with_itself(x: Value, y: Value) -> Value:
    """Each row times each; of vectors a number."""
    if x.ndim < 2:
        return reductions.sum(elementwise("mul", x, y))
    return products.matmul(x, transpose(y, 0, 1))


@torchs("corrcoef")
def corrcoef(input: Like) -> Value:
    """``c @ c.mT``, of rows without their means, of length one; within [-1, 1]."""
    value = _variables("corrcoef", input)
    centred = elementwise("sub", value, reductions.mean(value, -1 if value.ndim else None, keepdims=True))
    rows = elementwise("div", centred, reductions.norm(centred, 2, -1 if value.ndim else None, keepdims=True))
    return elementwise("clamp", _with_itself(rows, rows), -1, 1)


@torchs("trace", numpy=["trace"])
def trace(input: Like) -> Value:
    """``fg.sum(fg.where(row == column, x, 0))``."""
    value = lift(input)
    _of_rank("trace", value, 2, "use fg.sum of where(row == column, x, 0)")
    same = elementwise("eq", reductions.index(value, -1), reductions.index(value, -2))
    return reductions.sum(elementwise("where", same, value, cast(0, value.dtype)))


@torchs("bucketize")
def bucketize(input: Like, boundaries: Like, *, out_int32: bool = False, right: bool = False) -> Value:
    """How many boundaries are below ``x``: ``fg.sum(boundaries < x[..., None], -1)``."""
    return _searched("bucketize", lift(boundaries), lift(input), out_int32, right)


@torchs("searchsorted")
def searchsorted(
    sorted_sequence: Like, input: Like, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Any = None,
) -> Value:  # fmt: skip
    """How many of a sorted vector are below ``x``: ``fg.sum(sorted < x[..., None], -1)``."""
    if sorter is not None or side not in (None, "left", "right"):
        raise DeclarationError(
            f"{current().where}, searchsorted", given=f"side={side!r}" if sorter is None else "a sorter",
            expected='"left" or "right", and what is sorted', fix="sort before",
        )  # fmt: skip
    return _searched("searchsorted", lift(sorted_sequence), lift(input), out_int32, right or side == "right")


def _searched(what: str, edges: Value, value: Value, out_int32: bool, right: bool) -> Value:
    """Each number is compared with each of a vector, or of its own row."""
    if edges.ndim > 1 and edges.ndim != value.ndim:
        _of_rank(what, edges, 1, "give each row of numbers a row of boundaries")
    rows = expand_dims(edges, -2) if edges.ndim > 1 else edges
    each = expand_dims(value, -1)
    is_nan = elementwise("ne", each, each)  # behind all, as torch has it
    below = elementwise("logical_or", elementwise("le" if right else "lt", rows, each), is_nan)
    found = reductions.sum(below, -1)
    return cast(found, dtypes.int32) if out_int32 else found


@torchs("isin", numpy=["isin"])
def isin(elements: Like, test_elements: Like, *, assume_unique: bool = False, invert: bool = False) -> Value:
    """``fg.any(x[..., None] == y, -1)``, of a vector ``y``."""
    value, tests = lift(elements), lift(test_elements)
    if tests.ndim > 1:
        _of_rank("isin", tests, 1, "flatten it outside the op")
    found = (
        reductions.any(elementwise("eq", expand_dims(value, -1), tests), -1)
        if tests.ndim
        else elementwise("eq", value, tests)
    )
    return elementwise("logical_not", found) if invert else found


# -- einsum ------------------------------------------------------------------------------------------------------------


@torchs("einsum")
def einsum(equation: str, *operands: Any) -> Value:
    """``x @ y`` where indices are added up of two tensors and each has one of its own, or one of them several and they
    share no other; else ``fg.sum(x * y)``; several tensors from the left. A letter twice in one is its diagonal."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    values = [lift(value) for value in operands]
    inputs, output = _letters(equation, values)
    each = [_diagonals(value, letters) for value, letters in zip(values, inputs, strict=True)]
    wide = {letter for value, letters in each for letter, axis in zip(letters, value.dims, strict=True) if axis}
    each = [_without_ones(value, letters, wide) for value, letters in each]
    values, inputs = [value for value, _ in each], [letters for _, letters in each]
    found, own = values[0], inputs[0]
    found, own = _summed(found, own, {*output, *"".join(inputs[1:])})
    for at, (value, letters) in enumerate(zip(values[1:], inputs[1:], strict=True), start=1):
        later = {*output, *"".join(inputs[at + 1 :])}
        value, letters = _summed(value, letters, {*later, *own})
        found, own = _summed(found, own, {*later, *letters})
        found, own = _contracted(found, own, value, letters, later)
    return permute(found, *(own.index(letter) for letter in output)) if output else found


@torchs("tensordot")
def tensordot(a: Like, b: Like, dims: Any = 2) -> Value:
    """``torch.einsum``, with the same letters where dimensions are added up."""
    x, y, given = lift(a), lift(b), plain_number(dims)
    if isinstance(given, int):
        given = range(x.ndim - given, x.ndim), range(given)
    sides = [[side] if isinstance(side, int) else [*side] for side in given]
    first, second = ([one_axis(v, place, "tensordot") or 0 for place in s] for v, s in zip((x, y), sides, strict=True))
    if len(first) != len(second):
        raise ShapeError(
            f"{current().where}, tensordot", given=f"dims={dims!r}", expected="as many dimensions of each",
            fix="name them in pairs",
        )  # fmt: skip
    for mine, theirs in zip(first, second, strict=True):  # of size one against another: that one is added up
        if x.dims[mine] is None and y.dims[theirs] is not None:
            y = reductions.sum(y, theirs, True, y.dtype)
        elif y.dims[theirs] is None and x.dims[mine] is not None:
            x = reductions.sum(x, mine, True, x.dtype)
    left, right = string.ascii_letters[: x.ndim], [*string.ascii_letters[x.ndim : x.ndim + y.ndim]]
    for mine, theirs in zip(first, second, strict=True):
        right[theirs] = left[mine]
    kept = [c for place, c in enumerate(left) if place not in first] + [c for c in right if c not in left]
    return einsum(f"{left},{''.join(right)}->{''.join(kept)}", x, y)


def _letters(equation: str, values: Sequence[Value]) -> tuple[list[str], str]:
    """The letters of each tensor and of the result; those of an ellipsis are upper case, from its end.

    Raises:
        DeclarationError: they do not fit the tensors.
    """
    text = "".join(str(equation).split())
    sides = text.split("->")
    inputs = sides[0].split(",")
    known = len(sides) <= 2 and len(inputs) == len(values)
    left = [value.ndim - len(part.replace("...", "")) for value, part in zip(values, inputs, strict=False)]
    fits = known and all(n == 0 if "..." not in part else n >= 0 for n, part in zip(left, inputs, strict=True))
    dots = "".join(map(chr, range(0x3B1, 0x3B1 + max([0, *left]))))[::-1] if fits else ""
    spread = [part.replace("...", dots[len(dots) - n :] if n else "") for n, part in zip(left, inputs, strict=False)]
    every = "".join(spread)
    if len(sides) == 2:
        output = sides[1].replace("...", dots)
    else:
        output = dots + "".join(sorted(c for c in {*every} - {*dots} if every.count(c) == 1))
    if not fits or not {*output} <= {*every} or len({*output}) < len(output):
        raise DeclarationError(
            f"{current().where}, einsum", given=f"{equation!r} of {' and '.join(map(shape_of, values))}",
            expected="a letter for each dimension of each tensor, and those of the result among them",
            fix="check the equation",
        )  # fmt: skip
    return spread, output


def _diagonals(value: Value, letters: str) -> tuple[Value, str]:
    """The tensor with each letter once: of several dimensions that have one, the diagonal, which comes last.

    Raises:
        ShapeError: they are of several sizes.
    """
    for letter in [c for c in dict.fromkeys(letters) if letters.count(c) > 1]:
        while letters.count(letter) > 1:
            first, second = letters.index(letter), letters.rindex(letter)
            if value.sizes[first] != value.sizes[second]:
                raise ShapeError(
                    f"{current().where}, einsum", given=f"{letter!r} twice in {shape_of(value)}",
                    expected="dimensions of one size, of which the diagonal is taken", fix="check the equation",
                )  # fmt: skip
            value = diagonal(value, 0, first, second)
            letters = letters[:first] + letters[first + 1 : second] + letters[second + 1 :] + letter
    return value, letters


def _without_ones(value: Value, letters: str, wide: set[str]) -> tuple[Value, str]:
    """The tensor without dimensions of size 1 that broadcast: what it has none of is the same for all elements."""
    ones = [at for at, axis in enumerate(value.dims) if axis is None and letters[at] in wide]
    if not ones:
        return value, letters
    return squeezed(value, ones), "".join(letter for at, letter in enumerate(letters) if at not in ones)


def _summed(value: Value, letters: str, needed: set[str]) -> tuple[Value, str]:
    """The tensor added up along what nothing else has: a sum like others, so that integers become int64."""
    gone = tuple(at for at, letter in enumerate(letters) if letter not in needed)
    if gone:
        value = reductions.sum(value, gone)
    return value, "".join(letter for letter in letters if letter in needed)


def _contracted(x: Value, of_x: str, y: Value, of_y: str, later: set[str]) -> tuple[Value, str]:
    """Two tensors, multiplied and added up along what neither the result nor later tensors have."""
    shared = [c for c in of_x if c in of_y]
    added, batch = [c for c in shared if c not in later], [c for c in shared if c in later]
    rows, columns = ([c for c in mine if c not in theirs] for mine, theirs in ((of_x, of_y), (of_y, of_x)))
    multiplied = len(added) > 0 and x.dtype == y.dtype and x.dtype.is_float and min(len(rows), len(columns)) == 1
    if multiplied and len(columns) > 1 and not batch:  # the matrix on the right, whatever stands in front on the left
        return _contracted(y, of_y, x, of_x, later)
    if multiplied and len(columns) == 1 and (len(rows) == 1 or not batch):
        left = permute(x, *(of_x.index(c) for c in (*batch, *rows, *added)))
        right = permute(y, *(of_y.index(c) for c in (*batch, *added, *columns)))
        if len(added) > 1:  # as one dimension: of arguments in this order, a view
            left, right = flatten(left, -len(added), -1), flatten(right, len(batch), len(batch) + len(added) - 1)
        return products.matmul(left, right), "".join((*batch, *rows, *columns))
    every = "".join((*batch, *rows, *columns, *added))

    def along(value: Value, own: str) -> Value:
        order = permute(value, *(own.index(c) for c in every if c in own)) if own else value
        return expand_dims(order, tuple(at for at, c in enumerate(every) if c not in own))

    product = elementwise("mul", along(x, of_x), along(y, of_y))
    found, left_over = _summed(product, every, {*batch, *rows, *columns})
    return cast(found, product.dtype), left_over  # as a product of matrices


@torchs("nn.functional.scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Like, key: Like, value: Like, attn_mask: Like | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    """``fg.softmax(q @ k.mT * scale) @ v``: products that pass through memory, no flash attention; 0 where a mask
    leaves nothing."""
    from fusegen.declare.random_numbers import dropout

    q, k = lift(query), lift(key)
    if attn_mask is not None and is_causal:
        raise DeclarationError(
            f"{current().where}, scaled_dot_product_attention", given="a mask, and is_causal", expected="one of them",
            fix="put both into the mask",
        )  # fmt: skip
    if enable_gqa:
        k, value = (_for_heads(each, q) for each in (k, lift(value)))
    factor = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
    scores = elementwise("mul", products.matmul(q, transpose(k, -2, -1)), factor)
    if is_causal:
        seen = elementwise("ge", expand_dims(creation.arange(q.shape[-2]), -1), creation.arange(k.shape[-2]))
        scores = elementwise("where", seen, scores, -math.inf)
    if attn_mask is not None:
        mask = lift(attn_mask)
        is_kept = mask.dtype == dtypes.bool_
        scores = elementwise("where", mask, scores, -math.inf) if is_kept else elementwise("add", scores, mask)
    weights = reductions.softmax(scores, -1) if attn_mask is None else _softmax_or_zero(scores)
    weights = dropout(weights, dropout_p) if dropout_p else weights
    return products.matmul(cast(weights, q.dtype), value)


def _for_heads(shared: Value, query: Value) -> Value:
    """Keys or values for as many heads as there are queries, of which several share one."""
    heads, wanted = (each.sizes[-3] if each.ndim > 2 else 1 for each in (shared, query))
    if query.ndim < 3 or not heads or wanted % heads:
        raise ShapeError(
            f"{current().where}, scaled_dot_product_attention", given=f"{shape_of(shared)} for {shape_of(query)}",
            expected="heads in front of the last two dimensions, a whole multiple of the keys'", fix="check them",
        )  # fmt: skip
    return repeat_interleave(shared, wanted // heads, -3) if wanted > heads else shared


def _softmax_or_zero(scores: Value) -> Value:
    """0 in rows of nothing but -inf, in which a softmax is NaN: padding looks at nothing, and says nothing."""
    nothing = elementwise("eq", reductions.amax(scores, -1, True), -math.inf)
    weights = reductions.softmax(elementwise("where", nothing, 0, scores), -1)
    return elementwise("where", nothing, 0, weights)

"""Matrix products as a declaration writes them: ``x @ w``, ``fg.linear(x, w, b)``, and the transposes they need.

A product is computed by the framework's own routine (cuBLAS on a GPU), accumulated in float32 for half types, and
rounded to the dtype of its factors, as torch.matmul does. What the declaration does with it is fused behind it, and
what it does to a factor in front of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fusegen.core.casts import rounded
from fusegen.core.errors import DeclarationError, DtypeError, ShapeError
from fusegen.core.ir import Factor
from fusegen.core.products import product
from fusegen.declare import reductions
from fusegen.declare.axes import AxisVar, Dims, are_same, leaves
from fusegen.declare.memory import shares, viewing
from fusegen.declare.value import (
    Like,
    Tracer,
    Value,
    broadcast,
    check_sizes,
    current,
    elementwise,
    lift,
    one_axis,
    shape_of,
    wrong_dtype,
)


def matmul(a: Like, b: Like) -> Value:
    """``a @ b``: the matrix product of the last two dimensions, batched over the others, which broadcast.

    A tensor of one dimension is a row on the left and a column on the right. Source: torch.matmul.

    The framework's routine multiplies, with its settings: float32 in TF32 if torch.backends.cuda.matmul.allow_tf32.

    Raises:
        DtypeError: not floats, or of two dtypes.
        ShapeError: the inner dimensions differ, or a side has no dimension.
        DeclarationError: a Python number on one side.
    """
    left, right = lift(a), lift(b)
    shapes = f"{shape_of(left)} @ {shape_of(right)}"
    _check_side(left, "left", shapes)
    _check_side(right, "right", shapes)
    tracer = current()
    if left.dtype is not right.dtype:
        raise DtypeError(
            f"{tracer.where}, matmul", given=f"{shapes} of {left.dtype} and {right.dtype}",
            expected="one dtype (as torch)", fix="cast one with .to()",
        )  # fmt: skip
    row: Dims = left.dims if left.ndim > 1 else (None, *left.dims)
    column: Dims = right.dims if right.ndim > 1 else (*right.dims, None)
    inner, other = row[-1], column[-2]
    if _size(inner) != _size(other):
        fits = right.ndim > 1 and _size(column[-1]) == _size(inner)
        fits |= left.ndim > 1 and _size(row[-2]) == _size(other)
        raise ShapeError(
            f"{tracer.where}, matmul", given=shapes,
            expected=f"equal inner dimensions: {_size(inner)} against {_size(other)}",
            fix="transpose one side with .mT" if fits else "pass matrices [m, k] and [k, n]",
        )  # fmt: skip
    if inner is not None and other is not None and not (_varies(left, inner) or _varies(right, other)):
        return _of_numbers(left, right, row, column)
    if tracer.separate_product_axes:
        return _with_separate_axes(left, right, row, column, shapes)
    batch = broadcast([_only(left, row[:-2]), _only(right, column[:-2])], "matmul", shapes)
    m, n = row[-2], column[-1]
    over: tuple[AxisVar, ...] = ()
    renames: list[Renames] = [[], []]
    if inner is not None and other is not None:
        over = (AxisVar(inner.size, inner.origin),)
        renames = [[_renamed(tracer, dim, over[0])] for dim in (inner, other)]
    if m is not None and n is not None and are_same(m, n):  # x @ x.mT: the columns get an axis of their own
        n = AxisVar(m.size, m.origin, fixed=m.find().fixed)
        renames[1].append(_renamed(tracer, m, n))
    return _multiplied(left, right, renames, over, (*batch, m, n), (row, column), shapes)


def _varies(value: Value, dim: AxisVar) -> bool:
    return not current().axes_of(value.expr).isdisjoint(leaves([dim]))


def _of_numbers(left: Value, right: Value, row: Dims, column: Dims) -> Value:
    """The product of factors each of which is the same all along what is contracted: no routine's."""
    terms = elementwise("mul", _only(left, (*row, None)), _only(right, (*column[:-2], None, *column[-2:])))
    total = reductions.sum(terms, -2)
    *batch, m, n = total.dims
    result: Dims = (*batch, *((m,) if left.ndim > 1 else ()), *((n,) if right.ndim > 1 else ()))
    return Value(rounded(total.expr, left.dtype), left.dtype, result)


Renames = list[tuple[str, str]]


def _multiplied(
    left: Value, right: Value, renames: Sequence[Renames], over: tuple[AxisVar, ...], full: Dims,
    sides: tuple[Dims, Dims], shapes: str,
) -> Value:  # fmt: skip
    """The product with the dimensions ``full``, of which a vector's is not there."""
    tracer = current()
    factors = [Factor(v.expr, v.dtype, tuple(moved)) for v, moved in zip((left, right), renames, strict=True)]
    reduce = product(tracer.new_name("r"), factors[0], factors[1], ())
    *batch, m, n = full
    result: Dims = (*batch, *((m,) if left.ndim > 1 else ()), *((n,) if right.ndim > 1 else ()))
    varying = _varying(zip((left, right), renames, strict=True))
    tracer.varying[reduce.name] = frozenset(dim for dim in full if dim is not None and dim.find() in varying)
    tracer.reduces.append((reduce, over))
    tracer.distinct += [(shapes, dims) for dims in (*sides, full)]
    return Value(rounded(reduce.ref, left.dtype), left.dtype, result)


def _varying(sides: Iterable[tuple[Value, Renames]]) -> set[AxisVar]:
    """The dimensions, as a product calls them, along which its factors are not the same throughout."""
    tracer, found = current(), set[AxisVar]()
    for value, renames in sides:
        named = {tracer.sizes[own].find(): tracer.sizes[new].find() for own, new in renames}
        found |= {named.get(dim.find(), dim.find()) for dim in value.dims if dim is not None and _varies(value, dim)}
    return found


def _with_separate_axes(left: Value, right: Value, row: Dims, column: Dims, shapes: str) -> Value:
    """The product with axes of its own along every dimension: what its result meets is nothing to its factors."""
    tracer = current()
    renames: list[Renames] = [[], []]

    def fresh(*dims: tuple[int, AxisVar | None]) -> AxisVar | None:
        own = [(side, dim.find()) for side, dim in dims if dim is not None]
        if not own:
            return None
        axis = AxisVar(own[0][1].size, own[0][1].origin, fixed=any(dim.fixed for _, dim in own))
        for side, dim in own:
            renames[side].append(_renamed(tracer, dim, axis))
        return axis

    rank = max(len(row), len(column)) - 2
    padded = [(None,) * (rank + 2 - len(dims)) + dims for dims in (row, column)]
    for a, b in zip(*(dims[:rank] for dims in padded), strict=True):
        if a is not None and b is not None:
            check_sizes(a, b, "matmul", shapes)
    batch = [fresh((0, padded[0][d]), (1, padded[1][d])) for d in range(rank)]
    inner = fresh((0, row[-1]), (1, column[-2]))
    full = (*batch, fresh((0, row[-2])), fresh((1, column[-1])))
    return _multiplied(left, right, renames, (inner,) if inner else (), full, (row, column), shapes)


def linear(x: Like, weight: Like, bias: Like | None = None) -> Value:
    """``x @ weight.mT + bias`` with a weight [out, in]. Source: torch.nn.functional.linear. TF32: see ``matmul``.

    Raises:
        ShapeError: the weight's last dimension is not the input's, or its first one not the bias's; see ``matmul`` for
            the rest.
    """
    value, matrix = lift(x), lift(weight)
    if value.ndim and matrix.ndim and _size(value.dims[-1]) != _size(matrix.dims[-1]):
        raise ShapeError(
            f"{current().where}, linear", given=f"{shape_of(value)} and {shape_of(matrix)}",
            expected=f"a weight [out, in] with in = {_size(value.dims[-1])}",
            fix="transpose the weight with .mT if it is [in, out]",
        )  # fmt: skip
    made = matmul(value, mT(matrix) if matrix.ndim > 1 else matrix)
    if bias is None:
        return made
    added = lift(bias)
    if matrix.ndim > 1 and added.ndim and _size(added.dims[-1]) not in (1, _size(matrix.dims[-2])):
        raise ShapeError(
            f"{current().where}, linear", given=f"{shape_of(matrix)} and {shape_of(added)}",
            expected=f"a bias [out] with out = {_size(matrix.dims[-2])}", fix="pass one number for each of its rows",
        )  # fmt: skip
    return elementwise("add", made, added)


@shares("view")
def transpose(x: Like, axis0: int, axis1: int) -> Value:
    """``x`` with two dimensions exchanged; no data moves. Source: torch.transpose.

    Raises:
        ShapeError: there is no such dimension.
    """
    value = lift(x)
    first, second = (one_axis(value, axis, "transpose") for axis in (axis0, axis1))
    dims = list(value.dims)
    if first is not None and second is not None:
        dims[first], dims[second] = dims[second], dims[first]
    return Value(value.expr, value.dtype, tuple(dims), value.weak)


def mT(x: Value) -> Value:
    """``x`` with its last two dimensions exchanged.

    Raises:
        ShapeError: it has fewer.
    """
    if x.ndim < 2:
        raise ShapeError(
            f"{current().where}, mT", given=f"{shape_of(x)}, of rank {x.ndim}", expected="two dimensions or more",
            fix="leave it out: a vector is a row on the left of a product and a column on the right",
        )  # fmt: skip
    return transpose(x, -2, -1)


def T(x: Value) -> Value:
    """A matrix transposed; a vector or a number as it is. Of more dimensions torch's reverses all, which is not meant.

    Raises:
        ShapeError: more than a matrix.
    """
    if x.ndim < 2:
        return x
    if x.ndim > 2:
        raise ShapeError(
            f"{current().where}, T", given=f"{shape_of(x)}, of rank {x.ndim}", expected="a matrix",
            fix="use .mT to exchange the last two dimensions",
        )  # fmt: skip
    return mT(x)


def _check_side(value: Value, which: str, shapes: str) -> None:
    where = f"{current().where}, matmul"
    if value.weak:
        raise DeclarationError(where, given=f"a number on the {which}", expected="a tensor", fix="multiply with *")
    if not value.dtype.is_float:
        raise wrong_dtype("matmul", value.dtype, "floats", "cast with .to(fg.float32)")
    if value.ndim == 0:
        raise ShapeError(
            where, given=f"{shapes}: a tensor without dimensions on the {which}", expected="one or more",
            fix="multiply with *",
        )  # fmt: skip


def _only(value: Value, dims: Dims) -> Value:
    return Value(value.expr, value.dtype, dims)


def _size(dim: AxisVar | None) -> int:
    return 1 if dim is None else dim.size


def _renamed(tracer: Tracer, own: AxisVar, new: AxisVar) -> tuple[str, str]:
    """A factor's axis, and what the product calls it, which is in groups where that is."""
    tracer.mirrored.append((own, new))
    return tracer.name_of(own), tracer.name_of(new)


_METHODS: dict[str, Any] = {
    "__matmul__": matmul, "__rmatmul__": lambda self, other: matmul(other, self), "matmul": matmul,
    "mT": property(viewing(mT, "view")), "T": property(viewing(T, "view")),
}  # fmt: skip
for _name_of, _method in _METHODS.items():
    setattr(Value, _name_of, _method)
FUNCTIONS = (linear, matmul, transpose)

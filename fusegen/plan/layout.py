"""Shapes and strides of results, as torch gives them; whether a layout has gaps or overlaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusegen.core.errors import ShapeError
from fusegen.core.ir import Op, Output
from fusegen.core.products import products
from fusegen.core.views import whole_shape
from fusegen.plan.frameworks import TensorInfo


def check_out(op: Op, output: Output, out: TensorInfo, shape: tuple[int, ...]) -> None:
    """A tensor to write a result to is as the result would be.

    Raises:
        ShapeError: it has another shape or dtype, or elements that share an address.
    """
    if out.shape != shape or out.dtype is not output.dtype:
        raise ShapeError(
            f"{op.name}, out=", given=f"{out.dtype} of shape {list(out.shape)}",
            expected=f"{output.dtype} of shape {list(shape)}: an output is never broadcast, resized or cast",
            fix="pass a tensor of the result's shape and dtype, or leave out= away",
        )  # fmt: skip
    if overlaps_itself(out.shape, out.strides):
        raise ShapeError(
            f"{op.name}, out=", given=f"a tensor of shape {list(out.shape)} with strides {list(out.strides)}",
            expected="a tensor whose elements lie at different addresses", fix="pass a fresh tensor",
        )  # fmt: skip


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements share an address (or might: steps that interleave count as overlapping)."""
    reach = 0
    for step, size in sorted((abs(st), si) for st, si in zip(strides, shape, strict=True) if si != 1):
        if step <= reach and 0 not in shape:
            return True
        reach += (size - 1) * step
    return False


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return _dense_in_order(shape, range(len(shape)))


def _dense_in_order(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Dense strides with the dimensions in ``order``, slow to fast."""
    strides = [0] * len(shape)
    step = 1
    for d in reversed(order):
        strides[d] = step
        step *= max(shape[d], 1)
    return tuple(strides)


def dense_like(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Dense strides with the dimensions in the order that ``strides`` have."""
    return _dense_in_order(shape, sorted(range(len(shape)), key=lambda d: -strides[d]))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """No gaps and no overlaps, in whatever order of dimensions."""
    if tuple(strides) == row_major(shape):  # nothing to sort, which for symbolic sizes is guards
        return True
    expected = 1
    for stride, size in sorted((st, si) for st, si in zip(strides, shape, strict=True) if si != 1):
        if size == 0:
            return True
        if stride != expected:
            return False
        expected *= size
    return True


def result_layout(
    op: Op, output: Output, sizes: Mapping[str, int], arguments: Sequence[TensorInfo], like: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a new result: strides as ``like`` has them if those leave no gaps, else torch's."""
    shape = whole_shape(output, sizes)
    if like is None:
        return tuple(shape), _strides_for(op, shape, arguments)
    return tuple(shape), tuple(like) if is_dense(shape, like) else row_major(shape)


def _strides_for(op: Op, shape: Sequence[int], inputs: Sequence[TensorInfo]) -> tuple[int, ...]:
    """The strides of a result: torch's for elementwise ops; row-major behind a matrix product."""
    return row_major(shape) if products(op) else result_strides(shape, inputs)


def result_strides(shape: Sequence[int], inputs: Sequence[TensorInfo]) -> tuple[int, ...]:
    """The strides that torch's TensorIterator gives the result of an elementwise op: dense, dimensions in the order of
    the inputs' strides, the first input that has an opinion deciding."""
    rank = len(shape)
    if all(i.strides == row_major(i.shape) for i in inputs):  # the same answer, without comparing symbolic strides
        return row_major(shape)
    same = [i for i in inputs if i.shape == tuple(shape)]
    alike = bool(same) and len(same) == len(inputs) and all(i.strides == same[0].strides for i in same)
    if alike and is_dense(shape, same[0].strides):
        return _dense_in_order(shape, sorted(range(rank), key=lambda d: (-same[0].strides[d], d))) if rank else ()
    steps = [_broadcast_strides(shape, i) for i in inputs if len(i.shape) <= rank]
    order = list(range(rank - 1, -1, -1))  # fast to slow
    for i in range(1, rank):
        at = i
        for before in range(i - 1, -1, -1):
            verdict = _compare(order[before], order[at], shape, steps)
            if verdict > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif verdict < 0:
                break
    return _dense_in_order(shape, order[::-1])


def _broadcast_strides(shape: Sequence[int], info: TensorInfo) -> tuple[int, ...]:
    missing = len(shape) - len(info.shape)
    own = [0 if size == 1 and shape[missing + d] != 1 else info.strides[d] for d, size in enumerate(info.shape)]
    return (*[0] * missing, *own)


def _compare(a: int, b: int, shape: Sequence[int], steps: Sequence[Sequence[int]]) -> int:
    for strides in steps:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return -1 if strides[a] < strides[b] else 1
        if shape[a] > shape[b]:
            return 1
    return 0

"""What a library's routine for a product and its epilogue is given: tensors, and how they lie."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from fusegen.core import locks
from fusegen.matmul.padding import ALIGNMENT, MULTIPLE
from fusegen.plan.native_step import View

# Whoever measures is the only one in this process who does: two at once would time each other.
MEASURING = locks.reentrant_lock()


class TransientFailure(RuntimeError):
    """A library failed for a reason that may pass: nothing is concluded from it."""


@dataclass(frozen=True)
class Factors:
    """Torch tensors of two dimensions, but the bias; ``bias`` and ``preactivation`` may be None.

    ``auxiliary``: what else the activation reads, rows of the result's columns and tensors as large as the result.
    """

    left: Any
    right: Any
    bias: Any
    preactivation: Any
    out: Any
    auxiliary: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Task:
    """All that a multiplication is planned for; each factor's rows as it is stored, and whether that is transposed.

    ``auxiliary``: for each auxiliary input, the elements from one row to the next.
    """

    device: int
    dtype: str
    epilogue: Hashable
    sizes: tuple[int, int, int]
    left: tuple[int, bool]
    right: tuple[int, bool]
    pitches: tuple[int, int]
    auxiliary: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, epilogue: Hashable, dtype: str, device: int, factors: Sequence[View], results: Sequence[View],
        auxiliary: Sequence[View] = (),
    ) -> Task | None:  # fmt: skip
        """None where rows are not as fast routines want them.

        Args:
            factors: left and right.
            results: the activation's, and its argument's where that is saved.
            auxiliary: what else the activation reads.
        """
        left, right = (_stored(view) for view in factors)
        if left is None or right is None or any(view.strides[-1] != 1 for view in (*results, *auxiliary)):
            return None
        pitches, more = [view.strides[0] for view in results], [_pitch(view) for view in auxiliary]
        if any(pitch % MULTIPLE for pitch in (left[0], right[0], *pitches, *more)):
            return None
        (rows, inner), (_, columns) = factors[0].shape, factors[1].shape
        sizes, written = (rows, columns, inner), (pitches[0], pitches[-1])
        return cls(device, dtype, epilogue, sizes, left, right, written, tuple(more))

    @classmethod
    def on(cls, epilogue: Hashable, given: Factors) -> Task | None:
        """The same of tensors; None where one of them is not aligned either."""
        results = [tensor for tensor in (given.out, given.preactivation) if tensor is not None]
        tensors = [given.left, given.right, *results, *([] if given.bias is None else [given.bias]), *given.auxiliary]
        if any(tensor.data_ptr() % ALIGNMENT for tensor in tensors):
            return None
        dtype, device = str(given.out.dtype).removeprefix("torch."), given.out.device.index or 0
        factors, written, auxiliary = (
            [View(tuple(tensor.shape), tensor.stride(), 0) for tensor in some]
            for some in ((given.left, given.right), results, given.auxiliary)
        )
        return cls.of(epilogue, dtype, device, factors, written, auxiliary)


def _pitch(view: View) -> int:
    """From one row to the next; of a row, to where the next would be."""
    return view.strides[0] if len(view.shape) == 2 else view.shape[0]


def _stored(factor: View) -> tuple[int, bool] | None:
    """Elements from one row to the next as a matrix is stored, and whether its columns are these rows."""
    (rows, columns), (down, across) = factor.shape, factor.strides
    if across == 1 and (down >= columns or rows == 1):
        return max(down, columns), False
    if down == 1 and (across >= rows or columns == 1):
        return max(across, rows), True
    return None

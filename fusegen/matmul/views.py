"""Matrix products on tensors: as which dimensions of which views the framework's routine can do one.

No tensor is copied where the routine can read it as it lies: axes that lie side by side become one dimension, and an
axis of one side that does not becomes a batch in which the other side repeats. The rest is left to the framework,
which copies what its own matmul would. Halves of sizes that suit no fast routine are another matter (matmul/padding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fusegen.core.dtypes import DType
from fusegen.core.errors import ShapeError
from fusegen.core.ir import Op
from fusegen.core.products import mismatch
from fusegen.fuse.steps import Product, Source
from fusegen.plan.frameworks import Framework
from fusegen.plan.native_step import StepKind, TorchStep, View

Strides = Mapping[str, int]


@dataclass(frozen=True)
class MatmulViews:
    """A product as [..., m, k] @ [..., k, n] -> [..., m, n]: the names of the three tensors, and views of them."""

    names: tuple[str, str, str]
    views: tuple[View, View, View]

    def multiply(self, dtype: DType, kind: StepKind = "", bias: tuple[str, View] | None = None) -> TorchStep | None:
        """The same as a step of the native call path; None where a factor has to be copied first."""
        if any(view.copied for view in self.views):
            return None
        names, views = self.names, self.views
        if bias is None:
            return TorchStep(names, views, dtype, kind)
        return TorchStep((*names, bias[0]), (*views, bias[1]), dtype, kind)

    @property
    def row_major(self) -> MatmulViews:
        """The same product, transposed where its result lies along columns: out^T = right^T @ left^T."""
        (left, right, result), (a, b, c) = self.names, self.views
        if len(c.shape) != 2 or c.strides[1] == 1 or c.strides[0] != 1 or a.copied or b.copied:
            return self
        return MatmulViews((right, left, result), (b.transposed, a.transposed, c.transposed))

    def sides(self, tensors: Mapping[str, Any], framework: Framework) -> tuple[Any, Any, Any]:
        """The two factors and the result, as the routine takes them."""
        left, right, result = (
            _seen(framework, tensors[name], view) for name, view in zip(self.names, self.views, strict=True)
        )
        return left, right, result


def _seen(framework: Framework, tensor: Any, view: View) -> Any:
    found = framework.view(tensor, view.shape, view.strides, view.offset)
    return found if view.copied is None else found.reshape(view.copied)


@dataclass(frozen=True)
class TensorLayout:
    """The layout of a tensor: strides by the product's names of its axes, and the offset of its first element."""

    tensor: str
    strides: Strides
    offset: int = 0


def matmul_views(
    product: Product, sizes: Mapping[str, int], left: TensorLayout, right: TensorLayout, result: TensorLayout
) -> MatmulViews:
    """The views of a product."""
    everywhere = (left.strides, right.strides, result.strides)
    wide = [a for a in product.axes if sizes[a] != 1]
    wide.sort(key=lambda axis: -result.strides[axis])
    batch = [a for a in wide if a in left.strides and a in right.strides]
    rows, apart = _merged([a for a in wide if a not in right.strides], (left.strides, result.strides), sizes)
    columns, aside = _merged([a for a in wide if a not in left.strides], (right.strides, result.strides), sizes)
    batch = sorted([*batch, *apart, *aside], key=lambda axis: -result.strides[axis])
    groups = _side_by_side(batch, everywhere, sizes)
    inner = [a for a in product.over if sizes[a] != 1]
    inner.sort(key=lambda axis: -left.strides.get(axis, 0))
    return MatmulViews(
        (left.tensor, right.tensor, result.tensor),
        (
            _view(left, groups, [rows, inner], sizes),
            _view(right, groups, [inner, columns], sizes),
            _view(result, groups, [rows, columns], sizes),
        ),
    )


def _merged(axes: list[str], where: Sequence[Strides], sizes: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """The fastest axes that are one dimension in every tensor, and the rest."""
    for first in range(len(axes)):
        if len(_side_by_side(axes[first:], where, sizes)) == 1:
            return axes[first:], axes[:first]
    return [], []


def _side_by_side(axes: Sequence[str], where: Sequence[Strides], sizes: Mapping[str, int]) -> list[list[str]]:
    """``axes``, slow to fast, in groups that are one dimension in every tensor."""
    groups: list[list[str]] = []
    for axis in axes:
        if groups and all(s.get(groups[-1][-1], 0) == s.get(axis, 0) * sizes[axis] for s in where):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _view(layout: TensorLayout, batch: list[list[str]], last: list[list[str]], sizes: Mapping[str, int]) -> View:
    shape, strides = [], []
    groups = [*batch, *last]
    whole = all(len(_side_by_side(group, [layout.strides], sizes)) <= 1 for group in groups)
    for group in groups:
        if whole or not group:
            shape.append(prod(sizes[a] for a in group))
            strides.append(layout.strides.get(group[-1], 0) if group else 1)
        else:
            shape += [sizes[axis] for axis in group]
            strides += [layout.strides.get(axis, 0) for axis in group]
    if len(last) == 2 and not last[0] and whole:  # cuBLAS gets a stride of a single row too, and wants a whole one
        strides[-2] = max(1, shape[-1] * strides[-1])
    copied = None if whole else tuple(prod(sizes[a] for a in group) for group in groups)
    return View(tuple(shape), tuple(strides), layout.offset, copied)


def named(source: Source, by_axis: Strides) -> dict[str, int]:
    """Strides by the product's axes, of a tensor's by its own."""
    return {source.name_of(axis): stride for axis, stride in by_axis.items()}


def check_factors(op: Op, sizes: Mapping[str, int]) -> None:
    """The inner dimensions of products are equal.

    Raises:
        ShapeError: they are not.
    """
    wrong = mismatch(op, sizes)
    if wrong is not None:
        _, left, right = wrong
        raise ShapeError(
            f"{op.name}, matmul", given=f"inner dimensions of sizes {left} and {right}", expected="equal sizes",
            fix="transpose one side, or pass tensors that fit",
        )  # fmt: skip

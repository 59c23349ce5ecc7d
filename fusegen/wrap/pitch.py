"""Rows that suit matrix products: each begins at a multiple of 16 bytes.

cuBLAS's fast kernels read 16 bytes at a time, so they ask that of addresses and of the distance from row to row, while
the sizes themselves may be odd. A product of halves without it takes kernels that are four times slower: on an H200,
bf16 4097 x 4097 x 4097 takes 1211 us, where torch.compile, which pads, takes 291.

So tensors between steps have such rows from the start, which costs a few bytes. A caller's tensors of a half type are
the one thing that is ever copied: where the copies cost less than what they save (``pays``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fusegen.core.ir import Op, Operand, Output
from fusegen.core.lets import safe_name
from fusegen.fuse.products import Chain, Product
from fusegen.wrap.products import View

ALIGNMENT = 16

Kinds = Mapping[str, tuple[bool, bool, bool]]


def pays(device: str, work: int, moved: int, copies: int) -> bool:
    """Whether copies with aligned rows cost less than a product without them.

    An H200 does 8e14 operations a second on halves, and three quarters of an unaligned product's time are lost; copies
    move 4e12 bytes a second, and take 2 us each however small.

    Args:
        work: multiplications and additions of the product.
        moved: bytes that the copies read and write.
    """
    return device != "cpu" and 3 * work / 8e14 > moved / 4e12 + 2e-6 * copies


def is_aligned(view: View, size: int, address: int) -> bool:
    """Whether the rows of a factor or a result are aligned; ``size`` of an element, ``address`` modulo 16."""
    if view.copied is not None:  # the framework's own copy
        return True
    steps = [stride for extent, stride in zip(view.shape, view.strides, strict=True) if extent != 1]
    dense = 1 in steps[-2:] or not steps
    return dense and all(step * size % ALIGNMENT == 0 for step in steps if step != 1) and (
        (address + view.offset * size) % ALIGNMENT == 0
    )  # fmt: skip


def kinds(product: Product, axes: Mapping[str, Sequence[str]], name: str) -> list[Kinds]:
    """For each place of a tensor in a product: of its axes, whether the left, the right, and the sum have them.

    Axes of one kind are one dimension to the product, if they lie side by side.
    """
    sources = (product.left, product.right)
    sides = [{source.name_of(axis): axis for axis in axes[source.name]} for source in sources]

    def kind(axis: str) -> tuple[bool, bool, bool]:
        return axis in sides[0], axis in sides[1], axis in product.over

    found: list[Kinds] = [
        {own: kind(axis) for axis, own in side.items()}
        for source, side in zip(sources, sides, strict=True)
        if source.name == name
    ]
    return [*found, {axis: kind(axis) for axis in product.axes}] if product.result == name else found


def strides(axes: Sequence[str], sizes: Mapping[str, int], size: int, places: Sequence[Kinds]) -> tuple[int, ...]:
    """Dense strides of a tensor with ``axes``, slow to fast, but for rows that are rounded up.

    Between axes that are one dimension to a product there is no room.
    """
    found, step, inner = [0] * len(axes), 1, ""
    for d in reversed(range(len(axes))):
        axis = axes[d]
        if inner and places and sizes[axis] != 1 and all(kind[axis] != kind[inner] for kind in places):
            step = -(-step * size // ALIGNMENT) * ALIGNMENT // size
        found[d] = step
        step *= max(sizes[axis], 1)
        inner = axis if sizes[axis] != 1 else inner
    return tuple(found)


def strides_between(whole: Chain, tensor: Operand, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Strides of a tensor between the steps of a chain."""
    axes = axes_of(whole)
    products = [step for step in whole.steps if isinstance(step, Product)]
    places = [place for product in products for place in kinds(product, axes, tensor.name)]
    return strides(axes[tensor.name], sizes, tensor.dtype.size, places)


def axes_of(whole: Chain) -> dict[str, list[str]]:
    """The axes of everything that a product of a chain can read or write."""
    return {
        thing.name: [axis for axis in thing.shape if axis]
        for thing in (*whole.op.operands, *whole.op.outputs, *whole.between)
    }


def copy_of(
    whole: Chain, product: Product, name: str, sizes: Mapping[str, int], lies: Mapping[str, int], taken: Iterable[str]
) -> tuple[Operand, tuple[int, ...]]:
    """The tensor for a copy with aligned rows, its axes in the order in which those of ``name`` lie; its strides."""
    axes = axes_of(whole)
    order = tuple(sorted(axes[name], key=lambda axis: -(lies[axis] or math.inf)))  # what is expanded: slowest
    copy = Operand(safe_name(f"{name}_aligned", taken), _thing(whole, name).dtype, order)
    return copy, strides(order, sizes, copy.dtype.size, kinds(product, axes, name))


def copying(whole: Chain, source: str | Operand, target: str | Operand) -> Op:
    """The op that copies a tensor of the chain, or to one."""
    read = source if isinstance(source, Operand) else _thing(whole, source)
    write = target if isinstance(target, Operand) else _thing(whole, target)
    operand = Operand(read.name, read.dtype, read.shape, read.part)
    output = Output(write.name, operand.ref, write.dtype, write.shape)
    return replace(
        whole.op, label=f"{whole.op.label} copy", operands=(operand,), scalars=(), statements=(), outputs=(output,)
    )


def _thing(whole: Chain, name: str) -> Operand | Output:
    things: tuple[Operand | Output, ...] = (*whole.op.operands, *whole.op.outputs, *whole.between)
    return next(thing for thing in things if thing.name == name)

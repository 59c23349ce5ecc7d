"""Sizes that suit matrix products of halves: multiples of 8.

cuBLAS's fast kernels read 16 bytes at a time along the dimension in which a matrix lies in memory, and want the size of
that dimension, for each of the three matrices, to be a multiple of as much. That rows begin at such addresses is not
enough. Without it a product takes about five times as long: on an H200, bf16 4097 x 4097 x 4097 takes 1033 us as it is
and as long with aligned rows, 197 us with both dimensions that lie in memory rounded up, and 8192 x 768 @ 768 x 50257
6621 us and 893.

So such a product is done on padded copies, with zeros along the contracted dimension, where that pays (``pays``).
Intermediate buffers are allocated with padded rows, and are not copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod

from fusegen.core.dtypes import DType
from fusegen.core.ir import Operand
from fusegen.core.products import contracted_sizes
from fusegen.fuse.steps import Chain, Product, Scan, Scatter
from fusegen.matmul.steps import Fill
from fusegen.matmul.views import MatmulViews
from fusegen.plan.native_step import View
from fusegen.plan.plan import Allocation

# What a fast kernel reads at once, in bytes and in halves.
ALIGNMENT, MULTIPLE = 16, 8
# Below this a dimension belongs to products of vectors, which are as fast as memory.
LEAST = 16

# [..., m, k] @ [..., k, n] -> [..., m, n]
DIMENSIONS = ("mk", "kn", "mn")

Kinds = Mapping[str, tuple[bool, bool, bool]]


def up(size: int) -> int:
    """The next multiple."""
    return -(-size // MULTIPLE) * MULTIPLE


def pays(device: str, sizes: Sequence[int], batch: int, moved: int, launches: int) -> bool:
    """Whether copies that are rounded up cost less than a product that is not.

    An H200 does 7e14 operations a second on halves, and 1.3e14 where sizes do not suit it; copies between rows that are
    aligned and rows that are not move 2.6e12 bytes a second. A launch takes 3 us.

    Args:
        sizes: m, k and n; ``batch``: how many such products.
        moved: bytes that the copies read and write.
        launches: copies, and strips that are set to zero.
    """
    saved = 2 * batch * prod(sizes) * (1 / 1.3e14 - 1 / 7e14)
    return device != "cpu" and min(sizes) >= LEAST and saved > moved / 2.6e12 + 3e-6 * launches


# -- how a matrix lies -------------------------------------------------------------------------------------------------


def _along(view: View) -> int | None:
    """In which of the last two dimensions (-1 or -2) a matrix lies in memory."""
    return next((d for d in (-1, -2) if view.strides[d] == 1 and view.shape[d] != 1), None)


def suits(view: View, size: int, address: int) -> bool:
    """Whether a matrix lies in memory so that its rows are aligned; ``size`` of an element, ``address`` modulo 16."""
    along, rank = _along(view), len(view.shape)
    steps = [s for d, s in enumerate(view.strides) if view.shape[d] != 1 and d - rank != along]
    starts = [*steps, view.offset]
    return along is not None and address % ALIGNMENT == 0 and all(start * size % ALIGNMENT == 0 for start in starts)


def _has_padding(view: View, wide: Sequence[int]) -> bool:
    """Whether a tensor whose rows are padded holds matrices of size ``wide``."""
    along = _along(view)
    if along is None:
        return False
    across = -3 - along
    return wide[across] == view.shape[across] and wide[along] <= view.strides[across]


def _buffer(view: View, wide: Sequence[int]) -> View:
    """A dense view for the elements of ``view`` and more; batches that are one in memory stay one."""
    rows, columns = wide
    strides = [1, rows] if _along(view) == -2 else [columns, 1]
    step = rows * columns
    for size, stride in zip(reversed(view.shape[:-2]), reversed(view.strides[:-2]), strict=True):
        strides.insert(0, step if stride else 0)
        step *= size if stride else 1
    return View((*view.shape[:-2], *wide), tuple(strides), 0)


def _once(view: View) -> View:
    """A view that sees what it repeats for several batches one time."""
    batches = zip(view.shape[:-2], view.strides[:-2], strict=True)
    return View((*(size if stride else 1 for size, stride in batches), *view.shape[-2:]), view.strides, view.offset)


def _elements(view: View) -> int:
    """How many elements lie from a view's first one to its last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))


def _strip(view: View, dimension: int, size: int) -> View:
    """What a view has beyond ``size`` in a dimension (-1 or -2)."""
    shape = list(view.shape)
    shape[dimension] -= size
    return View(tuple(shape), view.strides, view.offset + size * view.strides[dimension])


# -- a product ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Padded:
    """A product on padded sizes: the copies before and after it, and the buffers that they need."""

    before: tuple[Fill, ...]
    product: MatmulViews
    after: tuple[Fill, ...]
    buffers: tuple[Allocation, ...]

    @property
    def fills(self) -> tuple[Fill, ...]:
        """Copies, and strips that are set to zero."""
        return (*self.before, *self.after)


def padded(
    product: MatmulViews, dtype: DType, alignments: Sequence[int], device: str, paddable: Collection[str],
    taken: Collection[str], *, adds: bool,
) -> Padded | None:  # fmt: skip
    """A product of halves on sizes rounded up; None where its sizes suit as they are, or where that does not pay.

    Args:
        alignments: of the three tensors' addresses, modulo 16.
        paddable: names of tensors whose rows are padded already (``padded_strides``).
        taken: names that tensors have.
        adds: the product is added to what its result holds.
    """
    if not dtype.is_half or any(view.copied is not None for view in product.views):
        return None
    (*_, m, k), (*batch, _, n) = product.views[0].shape, product.views[2].shape
    sizes = {"m": m, "k": k, "n": n}
    contiguous = [dims[_along(view) or -1] for dims, view in zip(DIMENSIONS, product.views, strict=True)]
    rounded = {dim: up(size) if dim in contiguous else size for dim, size in sizes.items()}
    before: list[Fill] = []
    after: list[Fill] = []
    buffers: list[Allocation] = []
    names: list[str] = []
    views: list[View] = []
    for place, (name, view, dims) in enumerate(zip(product.names, product.views, DIMENSIONS, strict=True)):
        wide = (rounded[dims[0]], rounded[dims[1]])
        fits = wide == view.shape[-2:] or (name in paddable and _has_padding(view, wide))
        if fits and suits(view, dtype.size, alignments[place]):
            used, whole = name, View((*view.shape[:-2], *wide), view.strides, view.offset)
        else:
            used_names = {*taken, *(tensor.name for tensor in buffers)}
            used = next(title for i in count(2) if (title := f"{name}_{i}") not in used_names)
            whole = _buffer(view, wide)
            buffers.append(Allocation(used, (_elements(whole),), (1,), dtype))
            inside = _once(View(view.shape, whole.strides, 0))
            if place == 2:
                after.append(Fill((name, used), (view, inside), dtype))
            if place < 2 or adds:
                before.append(Fill((used, name), (inside, _once(view)), dtype))
        if place < 2 and rounded["k"] != k:
            before.append(Fill((used,), (_once(_strip(whole, dims.index("k") - 2, k)),), dtype))
        names.append(used)
        views.append(whole)
    fills = [*before, *after]
    moved = sum(2 * dtype.size * prod(fill.views[0].shape) for fill in fills)
    if not (fills or rounded != sizes) or not pays(device, (m, k, n), prod(batch), moved, len(fills)):
        return None
    matmul = MatmulViews((names[0], names[1], names[2]), (views[0], views[1], views[2]))
    return Padded(tuple(before), matmul, tuple(after), tuple(buffers))


# -- intermediate buffers ----------------------------------------------------------------------------------------------


def _kinds(product: Product, axes: Mapping[str, Sequence[str]], name: str) -> list[Kinds]:
    """For each place of a tensor in a product: of its axes, whether the left, the right, and the sum have them.

    Axes of one kind are one dimension to the product, if they lie side by side.
    """
    sources = (product.left, product.right)
    sides = [{source.name_of(axis): axis for axis in axes[source.name]} for source in sources]

    def kind(axis: str) -> tuple[bool, bool, bool]:
        return axis in sides[0], axis in sides[1], axis in product.over

    found: list[Kinds] = [
        {name_there: kind(axis) for axis, name_there in side.items()}
        for source, side in zip(sources, sides, strict=True)
        if source.name == name
    ]
    return [*found, {axis: kind(axis) for axis in product.axes}] if product.result == name else found


def _strides(axes: Sequence[str], sizes: Mapping[str, int], places: Sequence[Kinds]) -> tuple[int, ...]:
    """Dense strides of a tensor with ``axes``, slow to fast, but for rows that are rounded up.

    Axes that are one dimension to a product get no padding between them.
    """
    found, step, inner = [0] * len(axes), 1, ""
    for d in reversed(range(len(axes))):
        axis = axes[d]
        if inner and places and sizes[axis] != 1 and all(kind[axis] != kind[inner] for kind in places):
            step = up(step)
        found[d] = step
        step *= max(sizes[axis], 1)
        inner = axis if sizes[axis] != 1 else inner
    return tuple(found)


def padded_allocation(name: str, shape: Sequence[int], strides: Sequence[int], dtype: DType) -> Allocation:
    """The allocation of an intermediate buffer. The last row is padded as the others are."""
    elements = _elements(View(tuple(shape), tuple(strides), 0))
    is_pitched = elements != prod(shape) > 0
    return (
        Allocation(name, (up(elements),), (1,), dtype)
        if is_pitched
        else Allocation(name, tuple(shape), tuple(strides), dtype)
    )


def padded_strides(cut: Chain, tensor: Operand, sizes: Mapping[str, int], device: str) -> tuple[int, ...]:
    """Strides of an intermediate buffer of a chain. Rows are padded where a product may run on rounded sizes."""
    axes = {
        thing.name: [axis for axis in thing.shape if axis]
        for thing in (*cut.op.operands, *cut.op.outputs, *cut.intermediates)
    }
    sizes = contracted_sizes(cut.op, sizes)
    products = [step for step in cut.steps if isinstance(step, Product) and not isinstance(step, (Scan, Scatter))]
    places: list[Kinds] = []
    for product in products:
        work = prod(sizes[axis] for axis in (*product.axes, *product.over))
        if tensor.dtype.is_half and pays(device, (work // LEAST**2, LEAST, LEAST), 1, 0, 1):
            places += _kinds(product, axes, tensor.name)
    return _strides(axes[tensor.name], sizes, places)

"""What the matrix products of a pass cost on a GPU that need not be there, and the candidates to run them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from fusegen.core.dtypes import DType
from fusegen.core.ir import Op
from fusegen.fuse.step_text import product_text
from fusegen.fuse.steps import Chain, Product, Scan, Scatter
from fusegen.inspect.gpus import Gpu
from fusegen.inspect.passes import Pass
from fusegen.matmul.libraries import cublaslt_autotune
from fusegen.matmul.padding import ALIGNMENT, Padded, padded
from fusegen.matmul.views import MatmulViews, TensorLayout, matmul_views, named
from fusegen.plan.native_step import View
from fusegen.run.libraries import OWN, adds_bias, current_gpu, has_gpu, measurements, notes, steps_behind


@dataclass(frozen=True)
class ProductCost:
    """One matrix product, [batch, m, k] @ [batch, k, n], by the framework's routine.

    Args:
        text: ``out = left @ right``; ``+=`` where it is added to products before it.
        read, written: bytes by name of the tensor; copies on sizes rounded up are both.
        candidates: for each candidate to run it and what follows, a line of text: what it is, and its measured time.
    """

    text: str
    dtype: DType
    batch: int
    m: int
    n: int
    k: int
    read: Mapping[str, int]
    written: Mapping[str, int]
    candidates: tuple[str, ...]

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return sum(self.read.values()) + sum(self.written.values())

    @property
    def sizes_text(self) -> str:
        """Its sizes."""
        return f"m = {self.m}, n = {self.n}, k = {self.k}" + (f", {self.batch} of them" if self.batch > 1 else "")

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k

    def microseconds(self, gpu: Gpu) -> float:
        """Roofline estimate: its bytes or its operations, whichever takes longer."""
        return max(gpu.microseconds(self.moved), self.operations / gpu.operations(self.dtype))


@dataclass(frozen=True)
class RoutineCost(ProductCost):
    """What is no product, by the framework's routine: ``m`` times ``n`` numbers are combined."""

    @property
    def operations(self) -> int:
        """One for each number."""
        return self.m * self.n

    def microseconds(self, gpu: Gpu) -> float:
        """Roofline estimate of its bytes."""
        return gpu.microseconds(self.moved)


class _Bytes:
    """Bytes by name, and sizes, of a pass with what lies between its steps."""

    def __init__(self, item: Pass, cut: Chain) -> None:
        self.item, self.sizes = item, item.layout.sizes
        self.things = {thing.name: thing for thing in (*item.op.operands, *item.op.outputs, *cut.intermediates)}

    def of(self, *names: str) -> dict[str, int]:
        return {name: self.item.bytes_of(self.things[name]) for name in names}

    def count(self, axes: Iterable[str]) -> int:
        return prod(self.sizes[axis] for axis in axes)


@dataclass(frozen=True)
class ScatterCost(RoutineCost):
    """``m`` updates of ``n`` numbers."""

    @classmethod
    def of(cls, item: Pass, cut: Chain, step: Scatter) -> ScatterCost:
        """``item``: with what lies between the steps."""
        known = _Bytes(item, cut)
        read, written = known.of(*(source.name for source in step.reads)), known.of(step.result)
        if step.onto:
            read |= written
        places = {axis for axis in known.things[step.left.name].shape if axis}
        count = known.count({*step.over, *places})
        columns = known.count(axis for axis in step.axes if axis not in {step.axis, *places})
        dtype = known.things[step.result].dtype
        note = item.plan_of(cut, step).note
        return cls(product_text(step), dtype, 1, count, columns, 1, read, written, (note,))

    @property
    def sizes_text(self) -> str:
        """How many updates there are."""
        return f"{self.m} updates of {self.n}"


@dataclass(frozen=True)
class ScanCost(RoutineCost):
    """``m`` rows of ``n`` numbers, combined along the row."""

    @classmethod
    def of(cls, item: Pass, cut: Chain, step: Scan) -> ScanCost:
        """``item``: with what lies between the steps."""
        known, length = _Bytes(item, cut), item.layout.sizes[step.axis]
        rows = known.count(axis for axis in step.axes if axis != step.axis)
        note = "by a kernel of its own, in one pass; few long rows, and rows side by side that are few, are read twice"
        dtype = known.things[step.result].dtype
        read, written = known.of(*(source.name for source in step.sources)), known.of(*step.writes)
        return cls(product_text(step), dtype, 1, rows, length, 1, read, written, (note,))

    @property
    def sizes_text(self) -> str:
        """How many rows there are."""
        return f"{self.m} rows of {self.n}"


def steps_of(item: Pass, cut: Chain) -> list[ProductCost | Pass]:
    """The steps of a pass with matrix products, in order; a bias that the routine that multiplies adds is none."""
    merging = {product: part for product, part, known in steps_behind(item.op) if adds_bias(known)}
    remarks, measured = notes(item.op), measurements(item.op, item.layout.sizes)
    laid_out, passes = item.with_intermediates(cut), iter(item.fused_passes)
    found: list[ProductCost | Pass] = []
    intermediates = {operand.name for operand in cut.intermediates}
    is_merged = False
    for step in cut.steps:
        if isinstance(step, Op):
            fused = next(passes)
            found += [] if is_merged else [fused]
            is_merged = False
            continue
        if isinstance(step, Scatter):
            found.append(ScatterCost.of(laid_out, cut, step))
            continue
        if isinstance(step, Scan):
            found.append(ScanCost.of(laid_out, cut, step))
            continue
        planned = _PlannedProduct.of(laid_out, cut, step)
        behind = merging.get(step) if planned.is_plain else None
        is_merged = behind is not None
        says = remarks.get(step.result, "").strip(), measured.get(step.result, "")
        candidates = _candidates(step, planned, step.result in intermediates, *says)
        found.append(planned.cost(step, behind, candidates))
    return found


def _candidates(step: Product, planned: _PlannedProduct, is_read: bool, remarks: str, measured: str) -> tuple[str, ...]:
    """The candidates as text, and what was measured of them."""
    lines: list[str] = []
    if step.onto:
        lines.append("added to what is there by the routine that multiplies (beta = 1)")
    if planned.rounded is not None:
        sizes = " x ".join(map(str, _sizes(planned.rounded.product)[1:]))
        count = len(planned.rounded.fills)
        lines.append(
            f"on m x n x k = {sizes}, rounded up with {count} copies and strips of zeros, which pays for halves"
        )
    elif remarks and planned.is_plain:
        lines += filter(None, [remarks, measured])
    elif is_read:
        lines.append(f"{OWN}: no library does at once what follows, so nothing is measured")
    elif not step.onto:
        lines.append("the product alone, by the framework's routine")
    return (*lines, *planned.algorithms(step.onto))


def _sizes(matmul: MatmulViews) -> tuple[int, int, int, int]:
    """batch, m, n, k."""
    left, right = ((view.copied or view.shape) for view in matmul.views[:2])
    return prod(left[:-2]), left[-2], right[-1], left[-1]


@dataclass(frozen=True)
class _PlannedProduct:
    """A product as it is done for this layout.

    Attributes:
        bytes_of: of every tensor that a product may read or write, by name.
        rounded: what happens where it is done on sizes rounded up.
        alignments: addresses of left, right and result, modulo 16, and of a bias.
        bias: how it lies, where the product adds one.
    """

    matmul: MatmulViews
    dtype: DType
    bytes_of: Mapping[str, int]
    rounded: Padded | None
    alignments: tuple[int, ...]
    bias: View | None

    @property
    def is_plain(self) -> bool:
        """Whether a library could do what follows: one product, as it lies."""
        return self.rounded is None and all(len(v.shape) == 2 and not v.copied for v in self.matmul.views)

    @classmethod
    def of(cls, item: Pass, cut: Chain, step: Product) -> _PlannedProduct:
        """``item``: with what lies between the steps."""
        buffers = item.layout.buffers
        things = {thing.name: thing for thing in (*item.op.operands, *item.op.outputs, *cut.intermediates)}
        left, right = (TensorLayout(s.name, named(s, buffers[s.name].strides)) for s in (step.left, step.right))
        result = TensorLayout(step.result, buffers[step.result].strides)
        matmul = matmul_views(step, item.layout.sizes, left, right, result)
        dtype = things[step.result].dtype
        alignments = [buffers[name].alignment % ALIGNMENT for name in matmul.names]
        intermediates = {operand.name for operand in cut.intermediates}
        rounded = padded(matmul, dtype, alignments, "cuda", intermediates, things, adds=step.onto)
        sizes = {name: item.bytes_of(thing) for name, thing in things.items()}
        bias = None
        if step.bias:
            bias = View((item.layout.sizes[step.axes[-1]],), tuple(buffers[step.bias].strides.values()), 0)
            alignments.append(buffers[step.bias].alignment % ALIGNMENT)
        return cls(matmul, dtype, sizes, rounded, tuple(alignments), bias)

    def algorithms(self, adds: bool) -> tuple[str, ...]:
        """Which of cuBLASLt's algorithms does it, where that may be another than torch's."""
        product, alignments = self.matmul, list(self.alignments)
        if self.rounded is not None:
            product, alignments = self.rounded.product, [0] * len(alignments)
        matmul = product.row_major
        if matmul is not product:
            alignments[:2] = reversed(alignments[:2])
        has_bias = self.bias is not None
        device = f"cuda:{current_gpu()}"
        bias = View(matmul.views[2].shape[-1:], (1,), 0) if has_bias and self.rounded else self.bias
        arguments = (matmul, self.dtype, device, alignments, bias, adds)
        task = None if has_bias and matmul is not product else cublaslt_autotune.task_of(*arguments)
        if task is None:
            return ()
        if not has_gpu() or not cublaslt_autotune.is_considered(device):
            return ("on a GPU by torch or another of cuBLASLt's algorithms, whichever is measured to be faster",)
        found = cublaslt_autotune.remembered(task)
        return (f"the product itself: {found or 'not measured yet for these sizes'}",)

    def cost(self, step: Product, part: Op | None, candidates: tuple[str, ...]) -> ProductCost:
        """Its numbers; ``part``: what the same routine does at once."""
        names, result = [step.left.name, step.right.name, *filter(None, [step.bias])], step.result
        if part is not None:
            names += [operand.name for operand in part.operands if operand.name != result]
            result = part.outputs[0].name
        read = {name: self.bytes_of[name] for name in names}
        written = {result: self.bytes_of[result]}
        if step.onto:
            read[result] = self.bytes_of[result]
        if self.rounded is not None:
            fills = [(self.dtype.size * prod(fill.views[0].shape), len(fill.views)) for fill in self.rounded.fills]
            read["copies"] = sum(size for size, views in fills if views > 1)
            written["copies"] = sum(size for size, _ in fills)
        text = f"{result} {'+=' if step.onto else '='} {step.left.name} @ {step.right.name}" + f" + {step.bias}" * bool(
            step.bias
        )
        return ProductCost(text, self.dtype, *_sizes(self.matmul), read, written, candidates)

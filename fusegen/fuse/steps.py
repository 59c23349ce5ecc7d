"""An op as steps: ops without products, scatters and scans, and these between them (fuse/products makes them)."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from fusegen.core.dtypes import DType, float32
from fusegen.core.ir import Expr, Op, Operand, Output, Ref, Scalar, refs, substitute
from fusegen.core.scans import SUMS, How
from fusegen.core.within import Site
from fusegen.fuse.scans import element, neighbour, running


@dataclass(frozen=True)
class Source:
    """A factor as a tensor: an operand or an earlier step's result, and what the product calls its axes."""

    name: str
    renames: tuple[tuple[str, str], ...]

    def name_of(self, axis: str) -> str:
        """What the product calls an axis of the tensor's own."""
        return dict(self.renames).get(axis, axis)


@dataclass(frozen=True)
class Product:
    """One matrix product: ``result[axes] = sum over ``over`` of left * right``.

    Attributes:
        onto: it is added to what earlier products have left in ``result``.
        bias: the operand that is added to each row before the result is rounded; empty where there is none.
    """

    result: str
    left: Source
    right: Source
    axes: tuple[str, ...]
    over: tuple[str, ...]
    onto: bool = False
    bias: str = ""

    @property
    def adds(self) -> bool:
        """Whether the result is a sum, which may be added to what there is already."""
        return True

    @property
    def reads(self) -> tuple[Source, ...]:
        """The tensors that it reads, but for a bias."""
        return self.left, self.right

    @property
    def writes(self) -> tuple[str, ...]:
        """The tensors that it writes."""
        return (self.result,)


@dataclass(frozen=True)
class Looked:
    """How a scatter looks at the places that an index tells, where it reads them.

    Attributes:
        wraps: those below 0 are counted from the end.
        site: what reports those that are out of range (core/within); None: nothing does.
        axes: of the index, in the order in which a report counts its elements.
    """

    wraps: bool
    site: Site | None
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Scatter(Product):
    """``result[axis at left] += right``, added up over ``over``: a product with a matrix of which each row has a single
    one, which is never made. Or combined otherwise.

    Attributes:
        left: the places, integers. What has no place in the result is left out.
        axis: of the result.
        kind: of the reduction that combines what is for one place.
        moves: each is for the place of its own number, and there are as many: what a tensor that meets itself has in
            its second role is moved to the first.
        base: what the sum is added to, of the result's dtype and axes; empty where that is nothing.
        looked: how places are looked at where they are read; None where a step before has done that.
    """

    axis: str = ""
    kind: str = "sum"
    moves: bool = False
    base: str = ""
    looked: Looked | None = None

    @property
    def adds(self) -> bool:
        return self.kind == "sum" and not self.base

    @property
    def reads(self) -> tuple[Source, ...]:
        return self.left, self.right, *([Source(self.base, ())] if self.base else [])


@dataclass(frozen=True)
class Scan(Product):
    """All partial results of ``values`` along an axis, and what is computed of them and of other tensors' elements.

    Attributes:
        result: the first of ``outputs``.
        left, right: the first and the last of ``sources``.
        axis: along which.
        how: what is combined, from which end.
        dtype: what it is computed in.
        sources: the tensors that are read.
        values: what is combined, made of elements of these (fuse/scans says how they are called).
        results: what the op calls its partial results, and how each is combined; the first one is that of ``how``.
        outputs: the tensors that are written, made of elements and partial results.
        scalars: the call's numbers that are read.
    """

    axis: str = ""
    how: How = SUMS
    dtype: DType = float32
    sources: tuple[Source, ...] = ()
    values: tuple[Expr, ...] = ()
    results: tuple[tuple[str, How], ...] = ()
    outputs: tuple[Output, ...] = ()
    scalars: tuple[Scalar, ...] = ()

    @property
    def reads(self) -> tuple[Source, ...]:
        return self.sources

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(output.name for output in self.outputs)

    def named(self, expr: Expr) -> Expr:
        """An expression of elements that are called as their tensors."""
        names = {element(place): source.name for place, source in enumerate(self.sources)}
        names |= {
            neighbour(element(place), way): f"{source.name}[{self.axis} {'-+'[way > 0]} 1]"
            for place, source in enumerate(self.sources) for way in (-1, 1)
        }  # fmt: skip
        names |= {running(how): name for name, how in self.results}
        return substitute(expr, {ref: Ref(names.get(ref.name, ref.name), ref.dtype) for ref in refs(expr)})

    @property
    def adds(self) -> bool:
        return False


def names_of(step: Op | Product) -> set[str]:
    """What a step reads and writes."""
    if isinstance(step, Product):
        return {*step.writes, *(source.name for source in step.reads), *filter(None, [step.bias])}
    return {name for thing in (*step.operands, *step.outputs) for name in (thing.name, thing.base)}


@dataclass(frozen=True)
class Chain:
    """The steps of an op with products, in order.

    Attributes:
        intermediates: results of steps that are no results of the op, by name.
    """

    op: Op
    steps: tuple[Op | Product, ...]
    intermediates: tuple[Operand, ...]

    @property
    def text(self) -> str:
        """``2 matrix products and 1 scatter``."""
        others = [("scatter", self._count(Scatter)), ("scan", self._count(Scan))]
        counts = [("matrix product", self._count(Product) - sum(count for _, count in others)), *others]
        return " and ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts if count)

    def _count(self, kind: type[Product]) -> int:
        return sum(isinstance(step, kind) for step in self.steps)

    @property
    def fused_ops(self) -> list[Op]:
        """The steps that are ops."""
        return [step for step in self.steps if isinstance(step, Op)]

    @property
    def summable(self) -> frozenset[str]:
        """Results of the op that products alone write and no step reads: what is there already may be added to."""
        ops, multiplied = self.fused_ops, [step for step in self.steps if isinstance(step, Product)]
        used = {thing.name for op in ops for thing in (*op.operands, *op.outputs)}
        used |= {source.name for step in multiplied for source in step.reads}
        adding = {step.result for step in multiplied if step.adds and not step.bias}
        return frozenset(adding & {output.name for output in self.op.outputs} - used)

    def adding(self, names: Container[str]) -> Chain:
        """The same, but that products into ``names`` are added to what is there already."""
        steps = [replace(s, onto=True) if isinstance(s, Product) and s.result in names else s for s in self.steps]
        return replace(self, steps=tuple(steps))

"""Kernels on torch tensors, without a compiler: what fusion has made of an Op, statement by statement.

Each kernel sees what its threads would: what it reads, its scalars, and what it has computed before, at the points
where it computes it. What kernels leave for later ones they leave in as many partial results as they are asked to. So a
wrong answer of a kernel's text is told from a wrong kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusegen.core.ir import LOCATED, Call, Let, Op, Output, Place, Reduce, refs
from fusegen.declare.reference import Evaluation, packed
from fusegen.fuse.kernel import Gathered, Kernel, Position
from fusegen.fuse.row_kernel import GROUP_AXIS, SHARE_AXIS, TILE_AXIS, RowKernel
from fusegen.fuse.strided_rows import StridedRowKernel

if TYPE_CHECKING:
    import torch


def interpret(
    kernels: Sequence[Kernel], op: Op, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, Any] | None = None,
    dtype: Any = None, sizes: Mapping[str, int] | None = None, *, partials: int = 3,
) -> list[torch.Tensor]:  # fmt: skip
    """What the kernels of ``op`` write.

    Args:
        kernels: of one way to fuse the op, in launch order.
        tensors, scalars, dtype, sizes: as `declare.reference.reference` takes them.
        partials: into how many groups of rows, tiles of a row and shares of a segment sums are cut.

    Raises:
        KeyError: a kernel reads what it has not, or what no kernel before it has written.
    """
    import torch

    counts = dict.fromkeys((GROUP_AXIS, TILE_AXIS, SHARE_AXIS), partials)
    run = _Launches(
        torch, op, tensors, scalars or {}, dtype or torch.float64, (*counts, *op.axes), {**(sizes or {}), **counts}
    )
    for kernel in kernels:
        run.launch(kernel)
    return packed(op, run.written)


class _Launches(Evaluation):
    """Kernels one after the other, over the op's axes and those of partial results."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.memory = dict(self.named)  # arguments, and what kernels have written, by name
        self.written: dict[str, Any] = {}

    def launch(self, kernel: Kernel) -> None:
        """Run one kernel: its names are its own."""
        self.named = {thing.name: self.memory[thing.name] for thing in (*kernel.tensors, *kernel.scalars)}
        asked = {
            Position.of(p) for o in kernel.gathered for _, at in o.places for p in refs(at) if isinstance(p, Place)
        }
        asked |= {p for p in kernel.operands if isinstance(p, Position)}  # and where shifts start from
        self.named |= {p.name: self._position(p) for p in asked}
        for gathered in kernel.gathered:
            self.named[gathered.name] = self._gathered(gathered)
        if isinstance(kernel, RowKernel):
            self._row_kernel(kernel)
        else:
            self._lets(kernel.body)
            self._write(kernel.pointwise)
            self._reduce(kernel.reduces)
            self._lets(kernel.epilogue)
            self._write(kernel.outputs)

    def _row_kernel(self, kernel: RowKernel) -> None:
        self._lets(kernel.before)
        for stage in kernel.stages:
            known = dict(self.named)
            self._lets(stage.lets)
            if kernel.row_tiles:
                self._leave(kernel, stage.reduces, kernel.over, TILE_AXIS)
            else:
                self._reduce(stage.reduces)
                known |= {reduce.name: self.named[reduce.name] for reduce in stage.reduces}
            self.named = known  # what is known of elements ends with a walk
            self._lets(stage.after)
        self._lets(kernel.body)
        self._write(kernel.pointwise)
        self._leave(kernel, kernel.columns, [a for a in kernel.kept if a not in kernel.slices], GROUP_AXIS)
        for segment in kernel.segments:
            self.named[segment.name] = self._cut(segment, kernel.within, SHARE_AXIS)
        self._write(kernel.outputs)
        self._write(kernel.shares)
        if isinstance(kernel, StridedRowKernel):
            self._lets(kernel.summing)
            self._leave(kernel, kernel.totals, kernel.kept, GROUP_AXIS)

    def _lets(self, lets: Iterable[Let]) -> None:
        for let in lets:
            self.state(let)

    def _reduce(self, reduces: Sequence[Reduce]) -> None:
        """Reductions of one walk: none sees another's result."""
        found = {reduce.name: self.reduced(reduce, reduce.expr) for reduce in reduces}
        self.named |= found

    def _write(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            self.written[output.name] = self.placed(output)
            if output.packed is None:
                self.memory[output.name] = self._at(output)

    def _at(self, output: Output) -> Any:
        """What was written, as a value."""
        value = self.evaluate(output.expr).expand([self.sizes[a] if a in output.shape else 1 for a in self.axes])
        return value.to(self.dtype(output.dtype))

    def _leave(self, kernel: Kernel, reduces: Iterable[Reduce], axes: Sequence[str], into: str) -> None:
        """Sums over ``axes`` as partial results along the axis ``into``."""
        left = {partial.expr: partial for partial in kernel.partials}
        for reduce in reduces:
            self.memory[left[reduce.ref].name] = self._cut(reduce, axes, into)

    def _cut(self, reduce: Reduce, axes: Sequence[str], into: str) -> Any:
        """A sum over ``axes``, cut into as many parts as the axis ``into`` has: every n-th term is a part's."""
        value, count = self.over(reduce.expr, axes), self.sizes[into]
        dims = [self.axes.index(axis) for axis in axes]
        kept = [d for d in range(len(self.axes)) if d not in dims]
        terms = value.permute(*dims, *kept)
        terms = terms.reshape(math.prod(terms.shape[: len(dims)]), *terms.shape[len(dims) :])
        parts = self.torch.stack([terms[part::count].sum(0, dtype=terms.dtype) for part in range(count)])
        parts = parts.reshape(count, *(1 if d in dims else value.shape[d] for d in range(len(self.axes))))
        return parts.transpose(0, 1 + self.axes.index(into)).squeeze(0)

    def _gathered(self, gathered: Gathered) -> Any:
        """The elements of a tensor at the positions that the kernel's other operands tell; zero where there is none."""
        found = self.memory[gathered.table.name]
        places = {self.axes.index(axis): (self.sizes[axis], self.evaluate(where)) for axis, where in gathered.places}
        if not all(size for size, _ in places.values()):
            found = found.sum([*places], keepdim=True)
            return found + sum(0 * place for _, place in places.values())
        # All at once: a place may vary along the axis that it leads along, or along one that another leads along.
        at, is_there = [], self.torch.ones((), dtype=self.torch.bool, device=self.device)
        for dim, own in enumerate(found.shape):
            if dim in places:
                size, place = places[dim]
                is_there = is_there & (place >= 0) & (place < size)
                at.append(place.clamp(0, size - 1))
            else:
                shape = [own if d == dim else 1 for d in range(found.ndim)]
                at.append(self.torch.arange(own, device=self.device).reshape(shape))
        element = found[tuple(self.torch.broadcast_tensors(*at))]
        return self.torch.where(is_there, element, self.torch.zeros_like(element))

    def _position(self, position: Position) -> Any:
        """The position in the tensor that these axes make up, slow to fast."""
        total: Any = 0
        for axis in filter(None, position.shape):
            along = self.torch.arange(self.sizes[axis], device=self.device)
            total = total * self.sizes[axis] + along.reshape([-1 if a == axis else 1 for a in self.axes])
        return total

    def reduced(self, reduce: Reduce, expr: Any) -> Any:
        if not (isinstance(expr, Call) and expr.function == LOCATED):
            return super().reduced(reduce, expr)
        value, place = (self.over(arg, reduce.over) for arg in expr.args)
        dims = tuple(self.axes.index(axis) for axis in reduce.over)
        best = (self.torch.amax if reduce.kind == "first_max" else self.torch.amin)(value, dims, keepdim=True)
        hit = (value == best) | (value != value)
        last = self.torch.full_like(place, 2**63 - 1)
        return self.torch.amin(
            self.torch.where(hit, place.expand(hit.shape), last.expand(hit.shape)), dims, keepdim=True
        )

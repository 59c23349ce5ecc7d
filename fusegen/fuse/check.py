"""What is legal of kernels: runs on every compile, before any text is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusegen.core.declared import Declared
from fusegen.core.errors import LegalityError
from fusegen.core.ir import LOCATED, Axes, Call, Expr, Factor, Index, Let, Op, Output, Reduce, Ref, walk
from fusegen.core.monoids import BY_KIND
from fusegen.fuse.kernel import Kernel
from fusegen.fuse.row_kernel import GROUP_AXIS, SHARE_AXIS, TILE_AXIS, RowKernel
from fusegen.fuse.strided_rows import StridedRowKernel

# Axes of partial results, which an op's own axes are not.
_PARTIAL = frozenset({GROUP_AXIS, TILE_AXIS, SHARE_AXIS})


def check_kernels(op: Op, kernels: Sequence[Kernel]) -> None:
    """A kernel reads what was there or what kernels before it have written, as it was written; each of its names is
    defined before it is read, where it is read; what it computes once a row does not vary along the row, and is
    complete; one kernel at most leaves partial results along an axis; together the kernels write every output of ``op``
    once.

    Raises:
        LegalityError: one of these does not hold: a bug in fusegen.
    """
    memory = {o.name: (o.dtype, frozenset(filter(None, o.shape))) for o in op.operands}
    written: list[str] = []
    cut = set[str]()
    names = [kernel.name for kernel in kernels]
    _require(op, "", len(set(names)) == len(names), "two kernels of one name", str(names))
    for kernel in kernels:
        for operand in kernel.tensors:
            found, given = memory.get(operand.name), (operand.dtype, frozenset(filter(None, operand.shape)))
            _require(op, kernel.name, found == given, "a tensor that is not there, or another one", operand.name)
        _Scope(op, kernel).run()
        left = {partial.name: partial for partial in kernel.partials}
        along = {axis for partial in left.values() for axis in partial.shape if axis} & _PARTIAL
        _require(op, kernel.name, not along & cut, "a second size of an axis of partial results", str(sorted(along)))
        cut |= along
        for output in {**{o.name: o for o in kernel.written}, **left}.values():
            is_new = output.name not in memory
            _require(op, kernel.name, is_new, "a tensor that is there already is written", output.name)
            memory[output.name] = output.dtype, frozenset(filter(None, output.shape))
            written.append(output.name)
    missing = {o.name for o in op.outputs} - set(written)
    _require(op, "", not missing, "results that no kernel writes", str(sorted(missing)))


def _require(op: Op, kernel: str, holds: bool, what: str, given: str) -> None:
    if not holds:
        raise LegalityError(
            f"{op.name}, {op.label}" + (f", kernel {kernel}" if kernel else ""), given=f"{what} ({given})",
            expected="what fuse/check.py lists", fix="this is a bug in fusegen: please report the declaration",
        )  # fmt: skip


class _Scope:
    """The names of one kernel as its threads come to know them."""

    def __init__(self, op: Op, kernel: Kernel) -> None:
        self.op, self.kernel = op, kernel
        self.known: dict[str, Expr] = {
            operand.name: operand.ref for operand in kernel.operands
        }  # what can be read here
        self.known |= {scalar.name: scalar.ref for scalar in kernel.scalars}
        self.taken = set(self.known)  # also names of walks that have ended
        self.axes = {o.name: frozenset(filter(None, o.shape)) for o in kernel.operands}
        self.axes |= {scalar.name: frozenset() for scalar in kernel.scalars}
        self.along = Axes(self.axes)
        self.read: dict[tuple[Expr, bool], list[Ref]] = {}  # walks that repeat what others compute read the same

    def run(self) -> None:
        """The kernel's items, in the order in which they are computed."""
        kernel, kept = self.kernel, frozenset(self.kernel.kept)
        space = frozenset(kernel.space)
        self.require(set(kernel.over) <= space, "axes that are reduced but not walked", str(kernel.over))
        if not isinstance(kernel, RowKernel):
            self._lets(kernel.body, space)
            self._write(kernel.pointwise, space)
            self._reduce(kernel.reduces, frozenset(kernel.over))
            self._lets(kernel.epilogue, kept if kernel.reduces else space)
            self._write(kernel.outputs, kept if kernel.reduces else space)
            return
        self._lets(kernel.before, kept)
        for stage in kernel.stages:
            known = dict(self.known)
            self._lets(stage.lets, space, again=True)
            self._reduce(stage.reduces, frozenset(kernel.over))
            self.known = {**known, **({} if kernel.row_tiles else {r.name: r.ref for r in stage.reduces})}
            self._lets(stage.after, kept)
        ended = dict(self.known)
        self._lets(kernel.body, space, again=True)
        self._write(kernel.pointwise, space)
        self._reduce(kernel.columns, kept - frozenset(kernel.slices))
        self._reduce(kernel.segments, frozenset(kernel.within))
        self.known = ended
        self._write(kernel.outputs, kept)
        self.known |= {r.name: r.ref for r in kernel.segments}
        self._write(kernel.shares, space - frozenset(kernel.within))
        if isinstance(kernel, StridedRowKernel):
            self._lets(kernel.summing, kept)
            self._reduce(kernel.totals, kept)
        sums = {r.ref for r in (*kernel.reduces, *kernel.columns, *kernel.segments)}
        sums |= {r.ref for r in kernel.totals} if isinstance(kernel, StridedRowKernel) else set()
        for partial in kernel.partials:
            begun = partial in kernel.shares or partial.expr in sums
            self.require(begun, "a partial result of no sum", partial.name)

    def require(self, holds: bool, what: str, given: str) -> None:
        _require(self.op, self.kernel.name, holds, what, given)

    def _read(self, expr: Expr, located: bool = False) -> None:
        if (expr, located) not in self.read:
            self.read[expr, located] = self._refs(expr, located)
        unknown = [ref.name for ref in self.read[expr, located] if self.known.get(ref.name) is not ref]
        self.require(not unknown, "a name that is not known here", ", ".join(unknown))

    def _refs(self, expr: Expr, located: bool) -> list[Ref]:
        """What an expression reads; all of it has text of its own, but for a value that is told with its place."""
        found = []
        for node in walk([expr]):
            if isinstance(node, Ref):
                found.append(node)
            elif isinstance(node, Index):
                self.require(False, "a position that is no operand", repr(node))
            elif isinstance(node, Call):
                plain = not isinstance(node, (Declared, Factor)) and node.function != LOCATED
                is_place = located and node.function == LOCATED and node is expr
                self.require(plain or is_place, "what has no text of its own", node.function)
        return found

    def _define(self, name: str, ref: Ref, axes: frozenset[str], again: bool = False) -> None:
        """``again``: another walk may have computed the same before."""
        is_new = name not in self.taken or (again and self.axes.get(name) == axes and name not in self.known)
        self.require(is_new, "a name defined twice", name)
        self.known[name], self.axes[name] = ref, axes
        self.taken.add(name)

    def _lets(self, lets: Iterable[Let], within: frozenset[str], again: bool = False) -> None:
        for let in lets:
            self._read(let.expr)
            axes = self.along.of(let.expr)
            self.require(axes <= within, "a value that varies along other axes", f"{let.name}: {sorted(axes - within)}")
            self._define(let.name, let.ref, axes, again)

    def _reduce(self, reduces: Iterable[Reduce], over: frozenset[str]) -> None:
        reduces, space = list(reduces), frozenset(self.kernel.space)
        for reduce in reduces:
            self._read(reduce.expr, BY_KIND[reduce.kind].located)
            axes = self.along.of(reduce.expr)
            wrong = not over <= axes <= space
            self.require(not wrong, "a reduction of what does not vary so", f"{reduce.name}: {sorted(axes)}")
        for reduce in reduces:
            axes = self.along.of(reduce.expr) - over
            self._define(reduce.name, reduce.ref, axes)

    def _write(self, outputs: Iterable[Output], within: frozenset[str]) -> None:
        for output in outputs:
            self._read(output.expr)
            axes, own = self.along.of(output.expr), frozenset(filter(None, output.shape))
            fits = axes <= own and own - _PARTIAL == within
            self.require(fits, "an output of other axes", f"{output.name}: {sorted(axes)}")
            given = output.expr.dtype
            self.require(given is output.dtype.compute, "an output of another dtype", f"{output.name}: {given}")

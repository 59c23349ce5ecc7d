"""How much arithmetic a pass and its kernels are: instructions that threads issue, counted without a GPU.

Of every expression each distinct part counts once at every point of the axes it varies along, as a compiler would have
it: a multiplication in an addition is one instruction with it, a sign or an absolute value is none, a function takes
what its text was counted to take (fuse/slots, which tools/slots.py writes). Reading and writing an element counts
its share of an access of 16 bytes, and its conversion. What is left out is whatever has to do with places: offsets,
loops, exchanges between threads. So a kernel issues more than this, never much less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fusegen.core import dtypes
from fusegen.core.dtypes import Category, DType
from fusegen.core.ir import DOT, SCAN, Axes, Call, Const, Expr, Let, Op, Output, Reduce, Tensorlike, walk, whole
from fusegen.core.monoids import BY_KIND
from fusegen.declare.table import Kind, lookup
from fusegen.fuse.group import prepared
from fusegen.fuse.kernel import Kernel, Position
from fusegen.fuse.reuse import still_needed, traversals
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.schedule import VECTOR_BYTES, Schedule
from fusegen.fuse.slots import REDUCTIONS, SLOTS

# Sums are additions, which take a multiplication in.
_ADDITIONS = frozenset({"add", "sub"})
_SINGLE = _ADDITIONS | {"mul"}
_ON_WORDS = (Kind.COMPARE, Kind.LOGICAL, Kind.SELECT, Kind.BITWISE)
# Part of another instruction, or no instruction at all.
_FREE = frozenset({"neg", "abs", "stop_gradient", "factor", "declared", "within", "located", "scanned", "recurrence"})


@dataclass(frozen=True)
class Work:
    """Instructions of all threads together.

    Attributes:
        issued: all of them.
        special: those for the special functions unit (exponentials, reciprocals, sines).
        doubles: those for the float64 unit.
    """

    issued: float = 0.0
    special: float = 0.0
    doubles: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.issued + other.issued, self.special + other.special, self.doubles + other.doubles)

    def times(self, points: float) -> Work:
        """So many times."""
        return Work(self.issued * points, self.special * points, self.doubles * points)


def work_of_op(op: Op, sizes: Mapping[str, int]) -> Work:
    """The least that computes an op: every part of its expressions once. Sums with one term are reads.

    Args:
        op: as kernels are made of it (lowered).
        sizes: of its axes.
    """
    _, reduces, outputs, axes = prepared(op)
    counter = _Counter(op.is_half, Axes(axes), sizes, lambda _: True)
    partners = {(BY_KIND[reduce.kind].partner, reduce.expr, reduce.over) for reduce in reduces}
    counter.reduced |= {r.name for r in reduces if (r.kind, r.expr, r.over) in partners}
    counter.walk([*reduces, *outputs])
    for thing in (*op.operands, *op.outputs):
        counter.access(thing)
    return counter.found


def instructions(call: Call, half: bool, each: Callable[[Expr], bool]) -> float:
    """What one call alone is, without its arguments.

    Args:
        half: results are rounded to a half type, so the faster texts of functions do.
        each: whether something is computed at every element.
    """
    return _Counter(half, Axes({}), {}, each).call(call).issued


def work_of_kernel(kernel: Kernel, schedule: Schedule, sizes: Mapping[str, int]) -> Work:
    """What a kernel computes: each walk over a row computes anew what none before it has kept.

    Args:
        sizes: of all axes of its op.
    """
    counter = _Counter(kernel.op.is_half, kernel.varying, sizes, kernel.is_of_elements)
    counter.reduced |= kernel.partners.keys()  # the state of another one holds them
    if isinstance(kernel, RowKernel):
        counter.walk([*kernel.before, *(let for stage in kernel.stages for let in stage.after)])
        known = set[str]()
        for step in traversals(kernel):
            lets = still_needed(step, known)
            counter.walk([*(let for let in lets if let.name not in known), *step.items])
            known |= {let.name for let in lets if let.name in schedule.reused}
        counter.walk([*kernel.outputs, *kernel.shares])
    else:
        counter.walk(kernel.items)
    for thing in (*kernel.tensors, *kernel.written):
        counter.access(thing)
    return counter.found


class _Counter:
    """Adds up what is computed.

    Args:
        half: results are rounded to a half type.
        axes: what expressions vary along.
        sizes: how many elements axes have.
        each: whether an expression is computed at every element: only there texts for halves are used.
    """

    def __init__(self, half: bool, axes: Axes, sizes: Mapping[str, int], each: Callable[[Expr], bool]) -> None:
        self.half, self.axes, self.sizes, self.each = half, axes, sizes, each
        self.found = Work()
        self.reduced = set[str]()

    def walk(self, items: Iterable[Let | Reduce | Output]) -> None:
        """Count what one walk computes of them, each part once."""
        items = list(items)
        taken = set[Expr]()  # multiplications that are part of an addition
        for node in walk([item.expr for item in items]):
            if isinstance(node, Call) and node.function in _ADDITIONS and node.dtype.is_float:
                product = next((a for a in node.args if _is_product(a) and a not in taken), None)
                taken |= {product} if product is not None else set()
        for item in items:
            if isinstance(item, Reduce) and item.kind not in (DOT, SCAN) and item.name not in self.reduced:
                self._count(item.expr, self._reduction(item, taken))
                self.reduced.add(item.name)  # one that walks twice is counted with both
        for node in walk([item.expr for item in items]):
            if isinstance(node, Call) and node not in taken:
                self._count(node, self.call(node))

    def access(self, thing: Tensorlike) -> None:
        """Reading or writing each element of a tensor once."""
        if not isinstance(thing, Position):
            each = Work(thing.dtype.size / VECTOR_BYTES + (1.0 if thing.dtype.is_half else 0.0))
            self.found += each.times(self._points(axis for axis in thing.shape if axis))

    def _count(self, expr: Expr, each: Work) -> None:
        self.found += each.times(self._points(self.axes.of(expr)))

    def _points(self, axes: Iterable[str]) -> int:
        return math.prod(self.sizes.get(axis, 1) for axis in axes)

    def _way(self, expr: Expr, dtype: DType) -> str:
        if dtype is dtypes.float32:
            return "half" if self.half and self.each(expr) else "float32"
        if dtype.is_float:
            return "float64"
        return "int64" if dtype is dtypes.int64 else "int32"

    def _reduction(self, reduce: Reduce, taken: set[Expr]) -> Work:
        value = reduce.expr.children[0] if reduce.expr.dtype is dtypes.int64 and reduce.expr.children else reduce.expr
        if reduce.kind in REDUCTIONS:
            return Work(*REDUCTIONS[reduce.kind][self._way(reduce.expr, value.dtype)])
        if _is_product(reduce.expr):
            taken.add(reduce.expr)
        return _of_words(reduce.expr.dtype)

    def call(self, node: Call) -> Work:
        """One call alone, at one point."""
        if node.function in _FREE or not any(not isinstance(n, Const) for n in node.args):
            return Work()
        argument = node.args[-1]
        if node.function == "powi":
            order = abs(whole(node))
            return _of_words(node.dtype).times(max(order.bit_length() + order.bit_count() - 2, 0))
        if node.function == "cast":
            return self._cast(node, argument)
        if node.function == "div" and isinstance(argument, Const) and node.dtype is dtypes.float32:
            one = abs(math.frexp(argument.value)[0]) == 0.5 or self._way(node, node.dtype) == "half"
            if one:
                return Work(1.0)
        way = self._way(node, argument.dtype)
        if node.function in SLOTS and way in SLOTS[node.function]:
            return Work(*SLOTS[node.function][way])
        row = lookup(node.function)
        if row.kind in (Kind.COMPARE, Kind.LOGICAL, Kind.SELECT, Kind.BITWISE) or node.function in (
            "add",
            "sub",
            "mul",
        ):
            return _of_words(argument.dtype)
        return Work(float(row.cost))

    def _cast(self, node: Call, argument: Expr) -> Work:
        """Between two dtypes; where only the name changes it is none."""
        if isinstance(node.detail, DType):
            return Work(2.0)  # to a half type and back
        kinds = (argument.dtype, node.dtype)
        if argument.dtype is node.dtype or all(d.category is Category.INTEGER and d.size == 4 for d in kinds):
            return Work()
        return Work(float(max(dtype.size for dtype in kinds) // 4 or 1))


def _is_product(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.function == "mul" and expr.dtype.is_float


def _of_words(dtype: DType) -> Work:
    """An instruction on a number, or on each word of one of 64 bits."""
    if dtype is dtypes.float64:
        return Work(1.0, 0.0, 1.0)
    return Work(2.0 if dtype.size == 8 else 1.0)

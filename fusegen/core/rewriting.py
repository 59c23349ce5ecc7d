"""Ops with other expressions in place of theirs, legal as before.

What a reduction goes over varies along every axis of it: kernels walk what is there to be walked. Of what does not, the
reduction is that of one element, as often as there are elements: ``sum[n](a) = a * size(n)``. A declaration makes no
other, and no rewrite leaves one behind: ``0 * index`` and the condition of a select may be all that varied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace

from fusegen.core.casts import converted
from fusegen.core.ir import DOT, SCAN, Axes, Call, Expr, Op, Output, Reduce, Size, Substitution, call
from fusegen.core.subexpressions import introduce_lets, live_reduces, safe_name


def of_one(kind: str, expr: Expr) -> Expr:
    """The fold of one element."""
    if kind == "squared_deviation":
        return expr - expr
    if kind == "sum_exp":
        return call("exp", expr - call("stop_gradient", expr, dtype=expr.dtype), dtype=expr.dtype)
    return expr


def repeated(kind: str, expr: Expr, count: Expr) -> Expr:
    """The fold of ``count`` equal elements, given that of one."""
    if kind in ("max", "min"):
        return expr
    if kind == "prod":
        return Call("pow" if expr.dtype.is_float else "int_pow", (expr, count), expr.dtype)
    return expr * count


def folded(reduce: Reduce, varying: Set[str], fold: Callable[[Reduce], Expr]) -> Expr:
    """The result of a reduction of what may lack some of the axes.

    Args:
        varying: the axes that it has.
        fold: the result of one over axes that are all there.
    """
    if reduce.kind in (DOT, SCAN):
        return fold(reduce)
    over = tuple(axis for axis in reduce.over if axis in varying)
    result = fold(replace(reduce, over=over)) if over else of_one(reduce.kind, reduce.expr)
    for axis in reduce.over:
        if axis not in varying:
            result = repeated(reduce.kind, result, converted(Size(axis), result.dtype))
    return result


class Folding:
    """The reductions of an op after a rewrite, one after another.

    Args:
        axes: those that each named thing varied along before.
        outputs: the results of the op, of which some have the names of reductions.
        taken: names that nothing new may have.

    Attributes:
        reduces: those that are left.
        values: what stands for results of those before that are others now.
    """

    def __init__(self, axes: Mapping[str, frozenset[str]], outputs: Iterable[Output], taken: set[str]) -> None:
        self.along, self.taken = Axes(dict(axes)), taken
        self.written = {output.name: frozenset(filter(None, output.shape)) for output in outputs}
        self.values = Substitution({})
        self.reduces: list[Reduce] = []

    def add(self, reduce: Reduce) -> None:
        """Take in one whose expression has been rewritten, and reads results as they were called before."""
        reduce = replace(reduce, expr=self.values.of(reduce.expr))
        varying = self.along.of(reduce.expr)
        before, left = reduce.ref, varying - set(reduce.over)
        if reduce.kind not in (DOT, SCAN):
            # What is written may be the same along an axis now, along which it is written: that is another tensor.
            if self.written.get(reduce.name, left) != left:
                reduce = replace(reduce, name=safe_name(f"{reduce.name}_once", self.taken))
                self.taken.add(reduce.name)
            self.along.known = {**self.along.known, reduce.name: left}
        found = folded(reduce, varying, self._kept)
        if found is not before:
            self.values.put(before, found)

    def _kept(self, reduce: Reduce) -> Expr:
        self.reduces.append(reduce)
        return reduce.ref


def rewritten(op: Op, rewrite: Callable[[Expr], Expr]) -> Op:
    """``op`` with what ``rewrite`` makes of each (expanded) expression, under the names that the op has for it, without
    the reductions that nothing reads any more."""
    reduces, outputs = op.expand()
    taken = {thing.name for thing in (*op.operands, *op.scalars, *op.statements, *op.outputs)}
    folding = Folding(op.axes_of(), outputs, taken)
    for reduce in reduces:
        folding.add(replace(reduce, expr=rewrite(reduce.expr)))
    values = folding.values
    names = {values.of(rewrite(expr)): name for expr, name in op.names().items()}
    taken = {thing.name for thing in (*op.operands, *op.scalars, *op.outputs)}
    outputs = [replace(o, expr=values.of(rewrite(o.expr))) for o in outputs]
    called: dict[Expr, str] = {expr: name for expr, name in names.items() if isinstance(expr, Call)}
    return op.with_statements(*introduce_lets(live_reduces(folding.reduces, outputs), outputs, called, taken))

"""Which elements of a value anybody reads, for the numbers at hand: those that selects take.

Where a select takes its other branch, the derivative of this one may be infinite, and torch's automatic differentiation
multiplies it by zero, which is NaN. So the reference computes a branch of other numbers where it is not taken, as
torch's users write it (``where(c, f(where(c, x, 1)), 0)``). Nothing that is read changes, and derivatives of any order
are those of what is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from fusegen.core.declared import Declared
from fusegen.core.ir import (
    SCAN,
    Expr,
    Factor,
    Let,
    Op,
    Reduce,
    Ref,
    expr_axes,
    is_call,
    walk,
)
from fusegen.core.products import KIND as DOT
from fusegen.core.products import factors
from fusegen.core.scans import axis_of, parts

# What stands where nobody reads: within the domains of most functions, not that it mattered.
HARMLESS = 0.5


@lru_cache(maxsize=1024)
def chooses(op: Op) -> bool:
    """Whether there is a select in an op, so that it may have values that nobody reads."""
    nodes = walk([item.expr for item in (*op.statements, *op.outputs)])
    return any(is_call(node, "where") and node.dtype.is_float for node in nodes)


class Reads:
    """Of each value of an op the elements that are read. None stands for all; a value that nothing reads has no entry.

    Args:
        axes: of values, one a dimension.
        known: axes of the op's named things.
        shapes: of each expression's value.
        fixed: values through which no derivative goes: conditions, positions, what is held constant.
    """

    def __init__(
        self, op: Op, axes: Sequence[str], known: Mapping[str, frozenset[str]], shapes: Mapping[Expr, Sequence[int]],
        fixed: Mapping[Expr, Any],
    ) -> None:  # fmt: skip
        self.axes, self.known, self.shapes, self.fixed = axes, known, shapes, fixed
        self.statements = {statement.name: statement for statement in op.statements}
        self.found: dict[Expr, Any] = {}
        for output in op.outputs:
            self._add(output.expr, None)
        self._go([output.expr for output in op.outputs])
        for statement in reversed(op.statements):
            if self.is_read(statement):
                for root, mask in self.of_statement(statement):
                    self._add(root, mask)
                    self._go([root])

    def is_read(self, statement: Let | Reduce) -> bool:
        """Whether anything reads a statement's value that has a derivative."""
        return statement.ref in self.found and statement.expr.dtype.is_float

    def of_statement(self, statement: Let | Reduce) -> list[tuple[Expr, Any]]:
        """Which elements a statement reads of its expression, or of its factors."""
        mask = self.found[statement.ref]
        if isinstance(statement, Reduce) and statement.kind == DOT:
            return [(side.expr, self._of_factor(side, statement, mask)) for side in factors(statement)]
        if isinstance(statement, Reduce) and statement.kind == SCAN:
            taken = parts(statement.expr)
            return [(value, self._like(mask, value, frozenset({taken.axis}))) for value in taken.values]
        return [(statement.expr, self._like(mask, statement.expr))]

    def _go(self, roots: Iterable[Expr]) -> None:
        """From expressions to what they read."""
        for node in reversed(list(walk(roots))):  # each behind all in these expressions that read it
            if node in self.found and node not in self.fixed:
                for child, mask in zip(node.children, self.of_children(node), strict=True):
                    self._add(child, mask)

    def _add(self, node: Expr, mask: Any) -> None:
        before = self.found.get(node, False)
        if before is False:
            self.found[node] = mask
        else:
            self.found[node] = None if before is None or mask is None else before | mask

    def of_children(self, node: Expr) -> list[Any]:
        """Which elements a node reads of its children."""
        mask = self.found.get(node)
        if isinstance(node, Declared):
            inner = self._mixed(node)
            return [self._like(mask, node.value), *(self._like(mask, child, inner) for child in node.inputs)]
        if is_call(node, "where") and node.dtype.is_float:
            condition = self.fixed[node.children[0]]
            taken = [condition, ~condition]
            masks = taken if mask is None else [mask & side for side in taken]
            return [None, *(self._like(m, child) for m, child in zip(masks, node.children[1:], strict=True))]
        return [self._like(mask, child) for child in node.children]

    def _like(self, mask: Any, child: Expr, mixed: frozenset[str] = frozenset()) -> Any:
        """For a value that lacks axes, whether any element along them is read; so along axes that are ``mixed``."""
        if mask is None or not child.dtype.is_float or not (shape := self.shapes[child]):  # of numbers
            return None
        dims = [d for d, size in enumerate(mask.shape) if size != 1 and (shape[d] == 1 or self.axes[d] in mixed)]
        return mask.any(dims, keepdim=True) if dims else mask

    def _mixed(self, node: Declared) -> frozenset[str]:
        """Axes along which an element of a call's result may depend on others of its inputs: those of reductions in
        the function and in its gradient, and all where one is a matrix product."""
        reduces = [statement for statement in node.gradient.statements if isinstance(statement, Reduce)]
        known: set[Expr] = set(node.inputs)
        pending: list[Expr] = [node.value]
        while pending:
            for inner in list(walk([pending.pop()], known)):
                known.add(inner)
                statement = self.statements.get(inner.name) if isinstance(inner, Ref) else None
                if statement is not None:
                    pending.append(statement.expr)
                    reduces += [statement] if isinstance(statement, Reduce) else []
        if any(reduce.kind == DOT for reduce in reduces):
            return frozenset(self.axes)
        along = (frozenset({axis_of(reduce)}) if reduce.kind == SCAN else reduce.over for reduce in reduces)
        return frozenset[str]().union(*along)

    def _of_factor(self, side: Factor, product: Reduce, mask: Any) -> Any:
        """Of a factor's elements those that are part of an element of the product which is read."""
        if mask is None or not mask.dim():  # all of them, or as numbers alone say
            return mask
        result = self.known[product.name]
        own = {side.name_of(axis): axis for axis in expr_axes(side.expr, self.known)}
        lacking = [d for d, axis in enumerate(self.axes) if axis in result and axis not in own]
        mask = mask.any(lacking, keepdim=True) if lacking else mask
        places = {self.axes.index(own[axis]): self.axes.index(axis) for axis in own if axis in result}
        rest = iter(d for d in range(len(self.axes)) if d not in places.values())
        return mask.permute([places[d] if d in places else next(rest) for d in range(len(self.axes))])

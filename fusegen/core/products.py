"""Matrix products: reductions of kind "dot" over the product of two factors.

    P = dot[d3](factor(x, d1 -> d3) * factor(w, d0 -> d3))

A factor is a tensor as the product reads it: stored in the product's dtype, its axes under the names they have in the
product. Axes of both factors that are reduced are contracted; axes of both that are not number a batch; the rest are
the rows and columns of the result. Contracted axes have names that nothing else has, so that what is contracted here
may be a column elsewhere (``x + x @ w``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from fusegen.core.casts import rounded
from fusegen.core.declared import Declared
from fusegen.core.dtypes import DType
from fusegen.core.ir import (
    DOT,
    Call,
    Expr,
    Factor,
    Index,
    Op,
    Operand,
    Reduce,
    Shape,
    Size,
    Statement,
    asked_axes,
    axis_order,
    call,
    is_call,
    own_size,
    transform,
    walk,
)

KIND = DOT


def product(name: str, left: Factor, right: Factor, over: tuple[str, ...]) -> Reduce:
    """``left @ right``, contracted over the axes ``over`` (names of the product)."""
    return Reduce(name, KIND, call("mul", left, right, dtype=left.dtype), over)


def factors(reduce: Reduce) -> tuple[Factor, Factor]:
    """The two sides of a product."""
    left, right = reduce.expr.children
    assert isinstance(left, Factor) and isinstance(right, Factor)
    return left, right


def stored_as(reduce: Reduce) -> DType:
    """The dtype that a product's result is rounded to: its factors'."""
    return factors(reduce)[0].stored


def products(op: Op) -> list[Reduce]:
    """The matrix products of an op."""
    return [s for s in op.statements if isinstance(s, Reduce) and s.kind == KIND]


def biases(op: Op) -> dict[str, tuple[Call, str]]:
    """Products of halves that the op reads only as ``product + bias``, by name: that sum, and what the bias is called.

    A bias is an operand of the product's dtype with one axis, the result's last, which only the right factor has; and
    the right factor has no other axis of the result.
    """
    found: dict[str, tuple[Call, str]] = {}
    operands: dict[Expr, Operand] = {operand.ref: operand for operand in op.operands}
    reduces, outputs = op.expand()
    exprs = [item.expr for item in (*reduces, *outputs)]
    nodes, known = list(walk(exprs)), op.axes_of()
    for dot in (reduce for reduce in reduces if reduce.kind == KIND and stored_as(reduce).is_half):
        dtype = stored_as(dot)
        value = rounded(dot.ref, dtype)
        uses = [node for node in nodes if node is not value and {value, dot.ref} & set(node.children)]
        if len(uses) != 1 or value in exprs or dot.ref in exprs:
            continue
        (total,) = uses
        if not is_call(total, "add"):
            continue
        others = [operands[node] for node in total.children if node in operands]
        left, right = (side.axes(known) for side in factors(dot))
        *rest, last = sorted(known[dot.name], key=axis_order) or [""]
        is_column = last in right - left and not right & set(rest)
        if len(others) == 1 and others[0].dtype is dtype and others[0].shape == (last,) and is_column:
            found[dot.name] = total, others[0].name
    return found


def free_axis(op: Op) -> int:
    """The first number such that it and all after it name no axis of the op, nor one whose size it only asks for."""
    nodes = walk([item.expr for item in (*op.statements, *op.outputs)])
    asked = [node.axis for node in nodes if isinstance(node, (Size, Index))]
    used = [*op.axes, *asked, *(axis for reduce in products(op) for axis in reduce.over)]
    return 1 + max((axis_order(axis)[0] for axis in used), default=-1)


def renamed_axes(op: Op, name: Callable[[str], str]) -> Op:
    """``op`` with other names for its axes, products' own among them; different ones must stay different."""

    def rule(node: Expr) -> Expr:
        if isinstance(node, Factor):
            return Factor(node.expr, node.stored, tuple((name(own), name(new)) for own, new in node.renames))
        if isinstance(node, Declared):
            return node.with_gradient(renamed_axes(node.gradient, name))
        return type(node)(name(node.axis)) if isinstance(node, (Size, Index)) else node

    def expr(root: Expr) -> Expr:
        return transform([root], rule)[root]

    def shape(dims: Shape) -> Shape:
        return tuple(name(axis) if axis else None for axis in dims)

    def statement(old: Statement) -> Statement:
        new = replace(old, expr=expr(old.expr))
        return replace(new, over=tuple(sorted(map(name, new.over)))) if isinstance(new, Reduce) else new

    return replace(
        op,
        operands=tuple(replace(o, shape=shape(o.shape)) for o in op.operands),
        statements=tuple(map(statement, op.statements)),
        outputs=tuple(replace(o, expr=expr(o.expr), shape=shape(o.shape)) for o in op.outputs),
    )


def contracted_sizes(op: Op, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the axes that no operand has: those that their names tell, and of products' own those of the factors.

    Factors whose sizes differ are left to whoever looks for them (``mismatch``).
    """
    found = {**sizes, **_own_sizes(op)}
    for reduce in products(op):
        for factor in factors(reduce):
            found.update({new: found[own] for own, new in factor.renames if own in found})
    return found


@lru_cache(maxsize=1024)
def _own_sizes(op: Op) -> dict[str, int]:
    """Sizes of the axes of an op whose names tell them."""
    over = [axis for s in op.statements if isinstance(s, Reduce) for axis in s.over]
    named = {*op.axes, *over, *asked_axes((*op.statements, *op.outputs))}
    return {axis: size for axis in named if (size := own_size(axis)) is not None}


def mismatch(op: Op, sizes: Mapping[str, int]) -> tuple[Reduce, int, int] | None:
    """A product of which an axis has two sizes, and these: its factors differ in what is contracted, or what meets the
    result differs from a factor whose axis has a name of its own there.

    ``sizes`` may be those of an op that this one is a gradient of, where another axis had a name that only products
    have here.
    """
    carried = {axis for thing in (*op.operands, *op.outputs) for axis in thing.shape if axis}
    made = {new for reduce in products(op) for factor in factors(reduce) for _, new in factor.renames}
    found = {axis: size for axis, size in sizes.items() if axis in carried or axis not in made}
    for reduce in products(op):
        for own, new in (pair for factor in factors(reduce) for pair in factor.renames):
            if own in found and found.setdefault(new, found[own]) != found[own]:
                return reduce, found[new], found[own]
    return None

"""One more axis: the Op that computes many calls at once (vmap).

The absence of an axis is broadcast, so an operand that is the same for all calls stays as it is, and so does a result
that depends on no other operand. Nothing else changes: reductions remove the axes they removed before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from fusegen.core.ir import Op, Operand, Output, Reduce, axis_name, axis_order, expr_axes, own_size
from fusegen.core.products import renamed_axes
from fusegen.core.subexpressions import safe_name

T = TypeVar("T", bound=Operand | Output)
NEW = "d0"


def shifted(axis: str) -> str:
    """The name of ``axis`` behind one more leading axis: d0 becomes d1."""
    return axis_name(axis_order(axis)[0] + 1, own_size(axis))


def shifted_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of axes, under the names that ``batch`` gives them."""
    return {shifted(axis): size for axis, size in sizes.items()}


@lru_cache(maxsize=1024)
def batch(op: Op, wide: frozenset[str], summed: frozenset[str] = frozenset()) -> Op:
    """Many calls of ``op`` in one.

    Args:
        wide: operands that have a value for each call, along a new leading dimension (a packed one by its own name);
            and outputs that have one whatever they depend on.
        summed: outputs that are added up over the calls: gradients of arguments that are the same for all.

    Returns:
        The Op in which these operands, and the outputs that depend on them, have the new dimension.
    """
    op = renamed_axes(op, shifted)
    op = replace(op, operands=tuple(_widened(o, wide) for o in op.operands))
    axes = op.axes_of()
    outputs = list(op.outputs)
    varying = {o.base for o in outputs if NEW in expr_axes(o.expr, axes)}
    taken = {*axes, *(o.name for o in outputs)}
    sums = []
    for i, output in enumerate(outputs):
        if output.base in summed & varying:
            total = Reduce(safe_name(f"sum_{output.name}", taken), "sum", output.expr, (NEW,))
            taken.add(total.name)
            sums.append(total)
            output = replace(output, expr=total.ref)
        outputs[i] = _widened(output, (wide | varying) - summed)
    return replace(op, statements=(*op.statements, *sums), outputs=tuple(outputs))


def is_wide(op: Op) -> dict[str, bool]:
    """Whether each result of an op that ``batch`` made has the new dimension (a packed one by its own name)."""
    return {o.base: o.shape[:1] == (NEW,) for o in op.outputs}


def _widened(thing: T, wide: frozenset[str]) -> T:
    if thing.base not in wide:
        return thing
    packed = replace(thing.packed, dim=thing.packed.dim + 1) if thing.packed else None
    groups = tuple(replace(groups, dim=groups.dim + 1) for groups in thing.groups)
    return replace(thing, shape=(NEW, *thing.shape), packed=packed, groups=groups)

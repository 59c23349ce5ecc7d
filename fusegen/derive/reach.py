"""Which arguments of an op gradients flow into."""

from __future__ import annotations

from collections.abc import Sequence

from fusegen.core.declared import differentiated
from fusegen.core.ir import Expr, Op, is_call


def reached(op: Op, positions: Sequence[int]) -> set[str]:
    """The float operands that gradients of the outputs at ``positions`` flow into."""
    reduces, outputs = op.expand()
    inner = {reduce.ref: reduce.expr for reduce in reduces}
    operands = {operand.ref: operand.name for operand in op.operands}
    found: set[str] = set()
    seen: set[Expr] = set()
    stack: list[Expr] = [outputs[position].expr for position in positions]
    while stack:
        node = stack.pop()
        if node in seen or is_call(node, "stop_gradient") or not node.dtype.is_float:
            continue  # nothing flows through a comparison or an integer
        seen.add(node)
        if node in operands:  # of floats, as all that is looked at
            found.add(operands[node])
        stack += [inner[node]] if node in inner else differentiated(node)
    return found

"""A value and its gradient in one Op: what both need is computed once, and inputs are read once.

For a loss whose cotangent is known before it is computed (one of a sum has 1), there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusegen.core.ir import Op
from fusegen.core.subexpressions import introduce_lets
from fusegen.derive.gradient import gradient


def value_and_gradient(op: Op, wanted: tuple[str, ...], given: Sequence[int]) -> Op:
    """``op``, and behind its outputs the gradients of ``wanted``.

    Args:
        given: positions of the outputs that have a cotangent, which is an operand of the result.
    """
    backward = gradient(op, wanted, given)
    reduces, outputs = op.expand()
    further, gradients = backward.expand()
    known = {reduce.name: reduce for reduce in reduces}
    assert all(known.get(reduce.name, reduce) == reduce for reduce in further)
    reduces = [*reduces, *(reduce for reduce in further if reduce.name not in known)]
    operands = {operand.name: operand for operand in (*op.operands, *backward.operands)}
    outputs = [*outputs, *gradients]
    taken = {thing.name for thing in (*operands.values(), *op.scalars, *outputs)}
    statements, bound = introduce_lets(reduces, outputs, {**backward.names(), **op.names()}, taken)
    return replace(
        op, label="value and gradient", operands=tuple(operands.values()), statements=tuple(statements),
        outputs=tuple(bound), result="tuple",
    )  # fmt: skip

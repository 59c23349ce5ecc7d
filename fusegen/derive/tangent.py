"""The forward-mode derivative of an Op, as an Op.

The gradient g(u) = J^T u is linear in the cotangents u, so its own gradient with respect to u, given a cotangent v, is
J v: the tangents of the results for those of the arguments. Every reduction, every tie, and a gradient that the user
declared need no second rule.
"""

from __future__ import annotations

from dataclasses import replace

from fusegen.core.errors import DerivativeError
from fusegen.core.ir import Op, names_read
from fusegen.derive.gradient import GradientNames, gradient


def tangent_names(op: Op) -> GradientNames:
    """What the tangent op of ``op`` calls the tangents of its results and arguments: usually ``t_x``."""
    return GradientNames.of(op, "t_")


def tangent(op: Op, backward: Op) -> Op:
    """The tangents of the float outputs of ``op``, given those of the arguments whose gradients ``backward`` computes.

    Args:
        backward: a gradient of ``op`` for every float output: derived, or declared by the user.

    Returns:
        An Op labelled ``"tangent"`` that reads operands of ``op`` and ``t_<argument>``, and writes ``t_<output>``:
        zeros for an output that depends on no such argument.

    Raises:
        DerivativeError: ``backward`` is not linear in the cotangents, so it transposes no derivative.
    """
    gradients, tangents = GradientNames.of(op), tangent_names(op)
    cotangents = [gradients.cotangent(output) for output in op.outputs if output.dtype.is_float]
    given = {operand.name: operand for operand in (*op.operands, *backward.operands, *cotangents)}
    names = GradientNames(
        results={gradients.arguments[name]: tangents.arguments[name] for name in gradients.arguments},
        arguments={gradients.results[name]: tangents.results[name] for name in gradients.results},
    )
    wanted = tuple(dict.fromkeys(c.base for c in cotangents))
    outputs = tuple(o for o in backward.outputs if o.name in names.results)  # not of blocks that the op does not read
    found = gradient(replace(backward, operands=tuple(given.values()), outputs=outputs), wanted, names=names)
    read = names_read([*found.statements, *found.outputs])
    nonlinear = sorted(read & {cotangent.name for cotangent in cotangents})
    if nonlinear:
        raise DerivativeError(
            f"{op.name}, forward-mode derivative",
            given=f"a declared gradient that is not linear in {', '.join(nonlinear)}",
            expected="gradient(a * d_out) = a * gradient(d_out): then it can be transposed",
            fix="use reverse mode, or declare a gradient that is linear in the cotangent",
        )
    return replace(found, label="tangent" if op.is_declared else f"tangent of {op.label}")

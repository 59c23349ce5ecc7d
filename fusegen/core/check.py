"""What is legal after each stage. Runs on every compile: a stage that breaks its contract fails here, by name."""

from __future__ import annotations

from fusegen.core.errors import LegalityError
from fusegen.core.ir import Call, Expr, Index, Op, Reduce, Ref, expr_axes, walk
from fusegen.core.monoids import BY_KIND


def check_op(op: Op) -> None:
    """Names are unique and defined before use, dtypes agree, reductions reduce axes that exist.

    Raises:
        LegalityError: one of these does not hold: a bug in fusegen.
    """
    known: dict[str, Expr] = {operand.name: operand.ref for operand in op.operands}
    known.update({scalar.name: scalar.ref for scalar in op.scalars})
    _require(op, len(known) == len(op.operands) + len(op.scalars), "two arguments of one name", str(list(known)))
    axes = op.axes_of()
    for statement in op.statements:
        _check_expr(op, statement.expr, known)
        _require(op, statement.name not in known, "a name defined twice", statement.name)
        if isinstance(statement, Reduce):
            _require(op, statement.kind in BY_KIND, "a reduction of an unknown kind", statement.kind)
            missing = set(statement.over) - expr_axes(statement.expr, axes)
            what = f"{statement.name}: {sorted(missing)}"
            _require(op, not missing, "a reduction over an axis that its expression lacks", what)
        known[statement.name] = statement.ref
    for output in op.outputs:
        _check_expr(op, output.expr, known)
        extra = expr_axes(output.expr, axes) - {a for a in output.shape if a}
        _require(op, not extra, "an output that lacks an axis of its expression", f"{output.name}: {sorted(extra)}")
        wrong = output.expr.dtype is not output.dtype.compute
        _require(op, not wrong, "an output whose expression has another dtype", f"{output.name}: {output.expr.dtype}")


def _check_expr(op: Op, expr: Expr, known: dict[str, Expr]) -> None:
    for node in walk([expr]):
        if isinstance(node, Ref):
            _require(op, known.get(node.name) is node, "a name that is not defined, or with another dtype", node.name)
        elif isinstance(node, Index):  # of an axis's size a number is enough: the gradient of w * mean(x) by w
            _require(op, node.axis in op.axes, "an axis that no operand has", node.axis)
        elif isinstance(node, Call):
            _require(op, bool(node.args), "a call without arguments", node.function)


def _require(op: Op, holds: bool, what: str, given: str) -> None:
    if not holds:
        raise LegalityError(
            f"{op.name}, {op.label}", given=f"{what} ({given})", expected="what core/check.py lists",
            fix="this is a bug in fusegen: please report the declaration",
        )  # fmt: skip

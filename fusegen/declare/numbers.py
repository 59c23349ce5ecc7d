"""What a declaration computes of a call's numbers alone (``1 - beta2``), in double precision.

Numbers come as Python's floats, and kernels compute in float32. That rounds 0.999 by 1e-8, of which ``1 - 0.999``
makes 1.3e-5 of its result: Python, and torch's optimizers, compute that in double and round what comes of it. So are
sums and differences of numbers here, with all functions of numbers in them and around them (``1 - beta2 ** step``): a
kernel gets such numbers as double.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusegen.core.dtypes import float32, float64
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import Call, Const, Expr, Output, Reduce, Ref, Scalar, const, substitute, transform, walk
from fusegen.core.numbers import largest_of_numbers
from fusegen.declare.table import lookup


def in_double(
    scalars: Sequence[Scalar], reduces: Sequence[Reduce], outputs: Sequence[Output], names: Mapping[Expr, str]
) -> tuple[list[Scalar], list[Reduce], list[Output], dict[Expr, str]]:
    """What an op is made of, with sums and differences of its numbers in double; unchanged where there are none.

    Args:
        names: of subexpressions.
    """
    exprs = [item.expr for item in (*reduces, *outputs)]
    sums = [
        node for node in largest_of_numbers(exprs, {s.ref for s in scalars}, _is_function, _is_sum)
        if node.dtype is float32
    ]  # fmt: skip
    if not sums:
        return list(scalars), list(reduces), list(outputs), dict(names)
    numbers: dict[Expr, Expr] = {s.ref: Ref(s.name, float64) for s in scalars if s.dtype is float32}
    numbers = {ref: numbers[ref] for ref in walk(sums) if ref in numbers}
    doubled = transform(sums, lambda node: _in_double(node, numbers))
    known: dict[Expr, Expr] = {node: Call("cast", (doubled[node],), float32) for node in (*sums, *numbers)}
    done = {node: substitute(node, known) for node in (*exprs, *names)}
    double = {ref.name for ref in numbers if isinstance(ref, Ref)}
    return (
        [replace(s, dtype=float64) if s.name in double else s for s in scalars],
        [replace(reduce, expr=done[reduce.expr]) for reduce in reduces],
        [replace(output, expr=done[output.expr]) for output in outputs],
        {done[node] if node in known else doubled.get(node, done[node]): name for node, name in names.items()},
    )


def _is_sum(node: Call) -> bool:
    """Where rounding is lost."""
    return node.function in ("add", "sub") and node.dtype is float32


def _is_function(node: Call) -> bool:
    """Whether it can be computed in double as well: a row of the function table, or a cast from other numbers."""
    if node.function == "cast":
        return not node.args[0].dtype.is_float
    try:
        lookup(node.function)
    except DeclarationError:
        return False
    return True


def _in_double(node: Expr, numbers: Mapping[Expr, Expr]) -> Expr:
    """A node whose children are double already."""
    if node.dtype is not float32:
        return node
    if isinstance(node, Const):
        return const(node.value, float64)
    return Call(node.function, node.args, float64, node.detail) if isinstance(node, Call) else numbers[node]


__all__ = ["in_double"]

"""Scalar-only subexpressions, which read a call's numbers and no tensor (``1 - beta2``), in double precision.

Numbers come as Python's floats, and kernels compute in float32. That rounds 0.999 by 1e-8, of which ``1 - 0.999``
makes 1.3e-5 of its result: Python, and torch's optimizers, compute that in double and round the result. So does a
kernel: it gets such numbers as double, and computes in double each scalar-only subexpression that adds or subtracts
(``1 - beta2 ** step``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fusegen.core.casts import converted
from fusegen.core.dtypes import float32, float64
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import Call, Const, Expr, Output, Reduce, Ref, Scalar, const, is_call, rebuild, walk
from fusegen.core.scalar_only import largest_scalar_only
from fusegen.declare.table import lookup

# What rounding is lost in.
_CANCELLING = ("add", "sub")


def in_double(
    scalars: Sequence[Scalar], reduces: Sequence[Reduce], outputs: Sequence[Output], names: Mapping[Expr, str]
) -> tuple[list[Scalar], list[Reduce], list[Output], dict[Expr, str]]:
    """What an op is made of, with sums and differences of its numbers in double; unchanged where there are none.

    Args:
        names: of subexpressions.
    """
    exprs = [item.expr for item in (*reduces, *outputs)]
    sums = _sums(exprs, {s.ref for s in scalars})
    if not sums:
        return list(scalars), list(reduces), list(outputs), dict(names)
    numbers: dict[Expr, Expr] = {s.ref: Ref(s.name, float64) for s in scalars if s.dtype is float32}
    numbers = {ref: numbers[ref] for ref in walk(sums) if ref in numbers}
    doubled = _doubled(sums, numbers)
    known = {node: converted(doubled[node], node.dtype) for node in (*sums, *numbers)}
    done = _rewritten([*exprs, *names], known)
    double = {ref.name for ref in numbers if isinstance(ref, Ref)}
    return (
        [replace(s, dtype=float64) if s.name in double else s for s in scalars],
        [replace(reduce, expr=done[reduce.expr]) for reduce in reduces],
        [replace(output, expr=done[output.expr]) for output in outputs],
        {done[node] if node in known else doubled.get(node, done[node]): name for node, name in names.items()},
    )


def _sums(exprs: Sequence[Expr], numbers: set[Ref]) -> list[Expr]:
    """The largest float scalar-only subexpressions that add or subtract a call's number, or are declared as double."""
    found = largest_scalar_only(exprs, numbers, _is_function, _loses_digits)
    return [node for node in found if node.dtype is float32 or _is_widening(node)]


def _loses_digits(node: Call) -> bool:
    return (node.function in _CANCELLING and node.dtype is float32) or _is_widening(node)


def _is_widening(node: Expr) -> bool:
    """Whether it is a number in double of one in single precision."""
    return is_call(node, "cast") and node.dtype is float64 and node.args[0].dtype is float32


def _is_function(node: Call) -> bool:
    """Whether it can be computed in double as well: a row of the function table, or a cast from other numbers."""
    if node.function == "cast":
        return not node.args[0].dtype.is_float or _is_widening(node)
    try:
        lookup(node.function)
    except DeclarationError:
        return False
    return True


def _doubled(roots: Iterable[Expr], numbers: Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    done: dict[Expr, Expr] = {}
    for node in walk(roots):
        if isinstance(node, Ref):
            done[node] = numbers.get(node, node)
        elif isinstance(node, Const):
            done[node] = const(node.value, float64) if node.dtype is float32 else node
        elif isinstance(node, Call):
            children = tuple(done[child] for child in node.args)
            if _is_widening(node):
                done[node] = children[0]
                continue
            done[node] = Call(node.function, children, float64 if node.dtype is float32 else node.dtype, node.detail)
    return done


def _rewritten(roots: Iterable[Expr], known: Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    """Each node with the outermost of what is ``known`` replaced."""
    done: dict[Expr, Expr] = dict(known)
    for node in walk(roots):
        if node not in done:
            done[node] = rebuild(node, tuple(done[child] for child in node.children))
    return done


__all__ = ["in_double"]

"""The adjoint of a matrix product: two matrix products.

With P = L @ R and its adjoint A, that of L is A @ R^T and that of R is L^T @ A. Written over axes there is no
transposing and no difference between the sides: a factor's adjoint is A times the other factor, contracted over the
axes of the product that this factor lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusegen.core.ir import Expr, Factor, Reduce, axis_order, expr_axes
from fusegen.core.products import product


def adjoint(
    wanted: Factor, other: Factor, cotangent: Expr, name: str, known: Mapping[str, frozenset[str]],
    fresh: Callable[[], str], *, first: bool,
) -> Reduce:  # fmt: skip
    """The adjoint of ``wanted``, over its own axes.

    Args:
        cotangent: the product's adjoint, over the product's axes.
        fresh: a name for an axis that nothing else has.
        first: ``wanted`` is the left side.
    """
    own = wanted.axes(known)
    names = {axis: wanted.own_name(axis) for axis in own}
    result_axes, other_axes = expr_axes(cotangent, known), other.axes(known)
    lacking = sorted((result_axes | other_axes) - own, key=axis_order)
    names.update({axis: fresh() for axis in lacking})
    arriving = Factor(cotangent, wanted.stored, _moved({axis: names[axis] for axis in result_axes}))
    others = {axis: names[other.name_of(axis)] for axis in expr_axes(other.expr, known)}
    across = Factor(other.expr, other.stored, _moved(others))
    over = tuple(names[axis] for axis in lacking)
    return product(name, *((arriving, across) if first else (across, arriving)), over)


def _moved(names: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((own, new) for own, new in sorted(names.items(), key=lambda n: axis_order(n[0])) if own != new)

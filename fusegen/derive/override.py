"""Gradients that the user declared, in place of derived ones: what they are for the cotangents and inputs of a call.

A result that nothing differentiable reads has no cotangent. It is zero, and exactly so: what is multiplied with it is
left out, as where a gradient is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from fusegen.core import scans
from fusegen.core.declared import Declared
from fusegen.core.ir import SCAN, Call, Const, Expr, Op, Reduce, Ref, const, expr_axes, rebuild, substitute, walk
from fusegen.core.products import KIND as DOT
from fusegen.core.products import factors, products, renamed_axes
from fusegen.core.rewriting import folded
from fusegen.derive.simplify import is_zero

Fold = Callable[[Reduce], Ref]
# Zero where an argument is.
_NOTHING_OF_NOTHING = ("neg", "cast", "stop_gradient", "mul", "factor")
# Zero at zero, of one argument, as what counts a gradient's sign or bends it.
_ZERO_AT_ZERO = frozenset({
    "abs", "sign", "round", "floor", "ceil", "trunc", "sqrt", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh",
    "atanh", "erf", "expm1", "log1p",
})  # fmt: skip


def declared_gradients(
    call: Declared, cotangents: Mapping[int, Expr], axes: Mapping[str, frozenset[str]], fresh_axis: Callable[[], str],
    fold: Fold, names: dict[Expr, str], written: set[Expr],
) -> Iterator[tuple[Expr, Expr, frozenset[str] | None]]:  # fmt: skip
    """For each input of a call that has a gradient: the input, its gradient, and the axes along which that has sums of
    cotangents in it: it is zero where the cotangents are that are alike in all other axes. None: it never need be zero.

    Args:
        cotangents: of the call's float results by position; of some there may be none.
        axes: those that each named thing varies along; ``fold`` adds the reductions that it makes.
        fresh_axis: names for axes that only the gradient's products have.
        fold: a reduction's result.
        names: what the gradient calls intermediates is added to it.
        written: what the gradient says is added to it: its expressions and their parts.
    """
    gradient = _with_own_axes(call.gradient, fresh_axis)
    values = call.placeholders()
    nothing: set[Expr] = {operand.ref for operand in call.cotangents}  # what is zero without any
    summed: dict[Expr, frozenset[str]] = {}  # of what is zero without any, the axes that are summed over in it
    absent: set[Expr] = set()
    for position, operand in enumerate(call.cotangents):
        found = cotangents.get(position)
        if found is None:
            absent.add(operand.ref)
        else:
            values[operand.ref] = found
    reduces, outputs = gradient.expand()
    called = gradient.names()

    def said(expr: Expr) -> Expr:
        expr = substitute(expr, values)
        written.update(walk([expr], set(values.values())))
        return expr

    for reduce in reduces:
        if reduce.kind != "sum_exp" and _without(reduce.expr, nothing) is None:
            nothing.add(reduce.ref)
            summed[reduce.ref] = _mixed(reduce).union(*(summed.get(node, ()) for node in walk([reduce.expr])))
        expr = _without(reduce.expr, absent)
        if expr is None and reduce.kind in ("sum", DOT, SCAN):
            absent.add(reduce.ref)
        else:
            expr = const(0, reduce.expr.dtype) if expr is None else said(expr)
            values[reduce.ref] = folded(replace(reduce, expr=expr), expr_axes(expr, axes), fold)
    for expr, name in called.items():
        given = _without(expr, absent)
        if isinstance(given, Call):
            names.setdefault(substitute(given, values), name)
    for output, target in zip(outputs, call.targets, strict=True):
        expr = _without(output.expr, absent)
        if expr is not None:
            axes_summed = frozenset[str]().union(*(summed.get(node, ()) for node in walk([output.expr])))
            vanishes = _without(output.expr, nothing) is None
            yield call.inputs[target], said(expr), axes_summed if vanishes else None


def _mixed(reduce: Reduce) -> frozenset[str]:
    """The axes along which elements of a reduction's result are of others of what it reduces."""
    if reduce.kind == SCAN:
        return frozenset({scans.axis_of(reduce)})
    if reduce.kind != DOT:
        return frozenset(reduce.over)
    pairs = [pair for side in factors(reduce) for pair in side.renames]  # what is called otherwise is another element
    return frozenset(reduce.over).union(*pairs)


def mixed_axes(call: Declared) -> frozenset[str]:
    """The axes along which an input's gradient has sums in it, of the cotangents of other elements."""
    return frozenset[str]().union(*map(_mixed, call.gradient.expand()[0]))


def is_linear(call: Declared) -> bool:
    """Whether the gradient of a call is linear in its cotangents, element by element or in sums: as it is of a sum of
    cotangents, it is the sum of what it is of each."""
    reduces, outputs = call.gradient.expand()
    degrees: dict[Expr, int | None] = {operand.ref: 1 for operand in call.cotangents}
    for item in (*reduces, *outputs):
        for node in walk([item.expr], degrees):
            degrees[node] = _degree(node, [degrees[child] for child in node.children])
        if isinstance(item, Reduce):
            degree = degrees[item.expr]
            degrees[item.ref] = degree if item.kind in ("sum", SCAN) or not degree else None
            degrees[item.ref] = None if item.kind == DOT else degrees[item.ref]
    return all(degrees[output.expr] == 1 or is_zero(output.expr) for output in outputs)


def _degree(node: Expr, args: Sequence[int | None]) -> int | None:
    """How often a value has a cotangent as a factor, of its arguments' degrees; None where that is no number."""
    if None in args:
        return None
    if not any(args):
        return 0
    match node, args:
        case Call("neg" | "stop_gradient"), _:
            return 1
        case Call("scanned" | "recurrence"), _:
            is_linear = node.function == "recurrence" or scans.parts(node).how.combine in ("sum", scans.LAST)
            return 1 if is_linear and not any(args[:-2]) else None
        case Call("cast"), _:
            return None if node.detail else 1
        case Call("add" | "sub"), (1, 1):
            return 1
        case Call("mul"), (0, 1) | (1, 0):
            return 1
        case Call("div"), (1, 0):
            return 1
        case Call("where"), (0, *values):
            zero = all(degree or is_zero(value) for degree, value in zip(values, node.children[1:], strict=True))
            return 1 if zero else None
    return None


def _with_own_axes(gradient: Op, fresh_axis: Callable[[], str]) -> Op:
    """The gradient with names for what its products contract that nothing else has, however often it is used."""
    carried = {axis for thing in (*gradient.operands, *gradient.outputs) for axis in thing.shape if axis}
    made = [new for reduce in products(gradient) for side in factors(reduce) for _, new in side.renames]
    own = {axis: fresh_axis() for axis in dict.fromkeys(made) if axis not in carried}
    return renamed_axes(gradient, lambda axis: own.get(axis, axis)) if own else gradient


def _without(root: Expr, absent: set[Expr]) -> Expr | None:
    """An expression without what is zero because some cotangents are; None if all of it is."""
    done: dict[Expr, Expr | None] = dict.fromkeys(absent)
    for node in walk([root]):
        if node not in done:
            done[node] = _left(node, [done[child] for child in node.children])
    return done[root]


def _is_zero_at_zero(node: Call, args: Sequence[Expr | None]) -> bool:
    """Whether a function is zero where its arguments are that are None: one that is so of zero, or a limit to what is
    on either side of zero."""
    signs = {"minimum": (1, 1), "maximum": (-1, -1), "clamp": (0, -1, 1)}.get(node.function)
    if signs is None:
        return args == [None] and (
            node.function in _ZERO_AT_ZERO
            or (node.function == "powi" and isinstance(node.detail, int) and node.detail > 0)
        )
    if node.function == "clamp" and args[0] is not None:
        return False
    limits = zip(signs, args, strict=True)
    return all(arg is None or (isinstance(arg, Const) and sign * float(arg.value) >= 0) for sign, arg in limits)


def _is_zero_of_zeros(scanned: Call) -> bool:
    """Whether a scan of zeros is zeros. An exclusive product begins with one; places and logarithms are never so."""
    how = scans.parts(scanned).how
    if how.combine in scans.PLACES or how.combine == scans.LOGADDEXP:
        return False
    return how.combine not in ("prod", "max", "min") or not how.exclusive


def _left(node: Expr, args: list[Expr | None]) -> Expr | None:
    """What is left of ``node`` if some of its arguments are zero (None)."""
    if isinstance(node, Call) and None in args:
        if node.function in _NOTHING_OF_NOTHING or (node.function == "div" and args[0] is None):
            return None
        if node.function in ("scanned", "recurrence") and args[-2] is None and _is_zero_of_zeros(node):
            return None
        if _is_zero_at_zero(node, args) or (isinstance(node, Declared) and args[0] is None):
            return None
        if node.function in ("add", "sub"):
            first, second = args
            return first if second is None else second if node.function == "add" else -second
        if node.function == "where" and args[1:] == [None, None]:
            return None
    pairs = zip(args, node.children, strict=True)
    return rebuild(node, tuple(const(0, child.dtype) if arg is None else arg for arg, child in pairs))

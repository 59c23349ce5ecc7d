"""Save or recompute: what the forward pass saves for the backward pass, chosen by bytes moved over both.

Saved always: results of reductions that the backward needs (they are small, and recomputing one is a pass over memory).
Saved instead of inputs: an output, where reading it replaces reading more bytes of inputs (``sigmoid(x + y)``). A
softmax also where it replaces as many: the op that reads it saves it anyway, and its backward then computes no
exponentials. Written additionally: an intermediate, where one write and one read move less than reading its inputs
again. Never otherwise: what can be recomputed from operands that are read anyway costs no memory at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusegen.core import dtypes
from fusegen.core.casts import rounded, unrounded
from fusegen.core.ir import (
    SCAN,
    Axes,
    Call,
    Expr,
    Factor,
    Op,
    Operand,
    Output,
    Reduce,
    Ref,
    Substitution,
    axis_order,
    const,
    expr_axes,
    names_read,
    refs,
    substitute_all,
    walk,
)
from fusegen.core.one_term import reads, scatters
from fusegen.core.products import KIND as DOT
from fusegen.core.products import biases, factors, stored_as
from fusegen.core.rewriting import rewritten
from fusegen.core.subexpressions import introduce_lets, live_reduces, safe_name
from fusegen.core.within import unreported
from fusegen.derive.exact import compared_extrema, elements_of, same_bits, summed_for_another
from fusegen.derive.gradient import gradient
from fusegen.derive.guards import guarded, guards, of_factors
from fusegen.derive.invariance import without_idle_extrema
from fusegen.derive.quotients import cancel, is_softmax, recovered_from, sums_of_exponentials

# An operand that lacks axes of the result is lighter by this for each: sizes are not known when this is decided.
LIGHTER_PER_AXIS = 1000
# Saving something has to move at least this much less, or recomputing (which is more exact) wins.
WORTH_SAVING = 0.9


@dataclass(frozen=True)
class Training:
    """A forward that saves tensors for its backward, and how that reads them.

    Attributes:
        forward: the op, which writes what is saved behind its own outputs.
        public: number of its own outputs, which the caller gets.
        wanted: arguments whose gradients will be asked for.
        saved: expressions of the backward, and the operands that hold their values.
        derived: the gradient for all outputs that may have a cotangent, where that of the op is the forward's.
    """

    forward: Op
    public: int
    wanted: tuple[str, ...]
    saved: tuple[tuple[Expr, Operand], ...]
    derived: Op | None = field(default=None, compare=False, repr=False)

    def backward(self, given: Sequence[int]) -> Op:
        """The backward for the outputs that have a cotangent (positions in ``forward.outputs``)."""
        floats = [i for i, output in enumerate(self.forward.outputs[: self.public]) if output.dtype.is_float]
        found = self.derived if sorted(given) == floats else None
        if found is None:
            found = gradient(self.forward, self.wanted, given)
        return unreported(_reading_saved(found, self.saved, sums_of_exponentials(self.forward)))


def train(op: Op, wanted: tuple[str, ...]) -> Training:
    """Decide what ``op`` saves when the gradients of ``wanted`` will be asked for.

    Where a product of halves is read only in a sum with a bias, that sum is saved in the product's place: the
    routine that multiplies adds the bias, so that both are rounded once.
    """
    op = without_idle_extrema(op)
    backward = gradient(op, wanted)
    extrema = _compared(backward)
    alike = same_bits(op, extrema) if extrema and _is_of_one_kind(op, backward) else None
    if alike is not None:
        kept = _train(op, wanted, backward, {}, frozenset(), alike)
        if _has_their_elements(op, kept, extrema):
            return kept
    plain = _train(op, wanted, backward, {}, extrema)
    sums = {name: total for name, (total, _) in biases(op).items()}
    if sums and any(reduce.name in sums for reduce, _ in plain.saved if isinstance(reduce, Ref)):
        return _train(op, wanted, backward, sums, extrema)
    return plain


def _train(
    op: Op, wanted: tuple[str, ...], backward: Op, with_bias: Mapping[str, Expr], again: frozenset[str],
    alike: Callable[[Expr], Expr] | None = None,
) -> Training:  # fmt: skip
    """The same.

    Args:
        with_bias: sums by the names of their products.
        again: maxima and minima that the backward takes again of its own elements.
        alike: what gives the elements of the others the same bits in both.
    """
    saved: list[tuple[Expr, Operand]] = []
    extra: list[Output] = []
    op_reduces = {r.name: r for r in op.expand()[0]}
    taken = {thing.name for thing in (*op.operands, *op.scalars, *op.outputs, *op_reduces.values())}
    axes = op.axes_of()
    again |= _gathered_again(op)
    for reduce in backward.expand()[0]:
        if reduce.name in op_reduces and reduce.name not in again:
            shape = tuple(sorted(axes[reduce.name], key=axis_order))
            dtype = stored_as(reduce) if reduce.kind == DOT else reduce.expr.dtype
            if reduce.name in with_bias:
                expr = with_bias[reduce.name]
                name = safe_name(op.names().get(expr, "sum"), {*taken, *(o.name for o in extra)})
                saved.append((expr, Operand(name, dtype, shape)))
                extra.append(Output(saved[-1][1].name, expr, dtype, shape, kept=True))
                continue
            # The largest exponential of a sum, relative to the largest, is 1.
            least = 1.0 if reduce.kind == "sum_exp" else -math.inf
            saved.append((reduce.ref, Operand(reduce.name, dtype, shape, least=least)))
            if reduce.name not in {o.name for o in op.outputs}:  # this forward is differentiated under vmap
                extra.append(Output(reduce.name, reduce.ref, dtype, shape, kept=True))
    theirs = {thing.name for thing in (*backward.operands, *backward.outputs, *backward.expand()[0])}
    multiplied = _saved_factors(op, backward, {*taken, *theirs, *(o.name for o in extra)})
    for operand, expr in multiplied:
        saved.append((expr, operand))
        if operand.name not in {o.name for o in op.outputs}:
            extra.append(Output(operand.name, expr, operand.dtype, operand.shape, kept=True))
    saved += _saved_signs(op, backward, multiplied)
    stored = {rounded(r.ref, stored_as(r)): r.ref for r in op.expand()[0] if r.kind == DOT}
    exponentials = sums_of_exponentials(op)
    choice = _best_cut(op, _reading_saved(backward, saved, exponentials), axes, stored)
    if choice is not None:
        expr, operand, is_output = choice
        saved.append((expr, operand))
        if not is_output:
            extra.append(Output(operand.name, expr, operand.dtype, operand.shape, kept=True))
    reading = _reading_saved(backward, saved, exponentials)
    if any(reduce.name in with_bias for reduce in reading.expand()[0]):  # the backward needs the product itself
        return _train(op, wanted, backward, {}, again)
    read = {operand.name for operand in reading.operands}
    saved = [(expr, operand) for expr, operand in saved if operand.name in read]
    extra = [output for output in extra if output.name in read]
    saved, extra = _guarded(op, backward, saved, extra, exponentials)
    forward = _with_outputs(op, extra)
    summed = summed_for_another(op, backward, reading, of_one_kind=_is_of_one_kind(op, backward))
    for as_written in filter(None, (summed, alike)):
        forward, saved = rewritten(forward, as_written), [(as_written(expr), operand) for expr, operand in saved]
    derived = backward if _is_derived_alike(forward, op) else None
    return Training(forward, len(op.outputs), wanted, tuple(saved), derived)


def _is_derived_alike(forward: Op, op: Op) -> bool:
    """Whether the gradient of a forward is that of the op: it says what the op does, and else writes nothing but
    results of reductions. (What else it writes would be cut and named, and not be regrouped, in its gradient.)"""
    (reduces, outputs), count = forward.expand(), len(op.outputs)
    says = forward.operands, forward.scalars, (reduces, outputs[:count]), forward.names()
    return says == (op.operands, op.scalars, op.expand(), op.names()) and all(
        isinstance(output.expr, Ref) for output in outputs[count:]
    )


def _guarded(
    op: Op, backward: Op, saved: Sequence[tuple[Expr, Operand]], extra: Sequence[Output], exponentials: frozenset[Ref]
) -> tuple[list[tuple[Expr, Operand]], list[Output]]:
    """What is saved for a branch of a select, without a derivative where the other is taken: see derive/guards."""
    found, known = guards(backward), {thing.name for thing in (*op.operands, *op.scalars, *op.expand()[0])}
    theirs = (*backward.operands, *backward.expand()[0], *backward.outputs)
    taken = {*known, *(thing.name for thing in (*op.outputs, *extra, *theirs))}
    dots = {reduce.ref: reduce for reduce in op.expand()[0] if reduce.kind == DOT}
    along = Axes({**op.axes_of(), **backward.axes_of()})
    values: dict[str, Output] = {}
    for output in extra:
        expr, conditions = output.expr, found.get(output.expr, [])
        if expr in dots:
            conditions = of_factors(conditions, dots[expr], {operand.name for operand in op.operands}, along)
        if not is_softmax(expr, exponentials):  # that one is read as the exponentials as well
            expr = guarded(expr, conditions, known)
        values[output.name] = output
        if expr is not output.expr:
            values[output.name] = replace(output, name=safe_name(f"guarded_{output.name}", taken), expr=expr)
            taken.add(values[output.name].name)
    renamed = [(expr, replace(o, name=values[o.name].name) if o.name in values else o) for expr, o in saved]
    return renamed, list(values.values())


def _compared(backward: Op) -> frozenset[str]:
    """Maxima and minima that the backward compares with their elements (derive/exact), which it computes anew."""
    reduces, outputs = backward.expand()
    return frozenset(reduce.name for reduce in compared_extrema(reduces, outputs, backward.axes_of()))


def _has_their_elements(op: Op, training: Training, extrema: frozenset[str]) -> bool:
    """Whether a backward that reads these maxima computes the elements that the forward has found them of: nothing
    rounded stands for a part of these, and none of the maxima is saved for one branch of a select alone."""
    kept = [(expr, operand) for expr, operand in training.saved if isinstance(expr, Ref) and expr.name in extrema]
    if any(operand.name != expr.name for expr, operand in kept):  # derive/guards
        return False
    rounds = {expr for expr, operand in training.saved if operand.dtype.is_half}
    return rounds.isdisjoint(elements_of(training.forward, extrema))


def _is_of_one_kind(op: Op, backward: Op) -> bool:
    """Whether the kernels of a forward and of its backward, whichever gradients are asked for, call the same functions,
    so that elements which the forward has found a maximum of have the same bits in the backward. Otherwise the backward
    takes that maximum again, of its own elements.

    Kernels that round to halves call others; and what is behind a matrix product may be of another step, or of a
    product that is saved in another form. What a scatter adds up is written in a wider type than halves. (What algebra
    would compute otherwise in one of them: derive/exact.)
    """
    halves = {output.dtype.is_half for output in (*op.outputs, *backward.outputs) if output.dtype.is_float}
    if len(halves) > 1 or any(isinstance(s, Reduce) and s.kind in (DOT, SCAN) for s in op.statements):
        return False
    return not scatters(op) and not scatters(backward)


def _gathered_again(op: Op) -> set[str]:
    """What is read where a tensor says: the backward reads it there as well, rather than a copy of it."""
    return reads(op)


def _readable(op: Op) -> list[Output]:
    """Results that a backward may read in place of what they are computed of.

    Not parts; and no result that is the same along one of its axes: what reads it would vary along that axis then.
    """
    axes = op.axes_of()
    return [o for o in op.expand()[1] if o.packed is None and {a for a in o.shape if a} == expr_axes(o.expr, axes)]


def _saved_factors(op: Op, backward: Op, taken: set[str]) -> list[tuple[Operand, Expr]]:
    """Factors of products that the forward writes, and that the backward multiplies with as well."""
    axes, names = op.axes_of(), op.names()
    outputs = {o.expr: o for o in _readable(op)}
    read = {side.expr for reduce in backward.expand()[0] if reduce.kind == DOT for side in factors(reduce)}
    found: dict[Expr, Operand] = {}
    for reduce in op.expand()[0]:
        for side in factors(reduce) if reduce.kind == DOT else ():
            if side.expr not in read or side.expr in found or not _is_written(side):
                continue
            shape = tuple(sorted(expr_axes(side.expr, axes), key=axis_order))
            output = outputs.get(side.expr)
            if output is not None and output.dtype is side.stored:
                found[side.expr] = Operand(output.name, output.dtype, output.shape, groups=output.groups)
            else:
                found[side.expr] = Operand(safe_name(names.get(side.expr, "factor"), taken), side.stored, shape)
                taken.add(found[side.expr].name)
    return [(operand, expr) for expr, operand in found.items()]


def _saved_signs(op: Op, backward: Op, multiplied: Sequence[tuple[Operand, Expr]]) -> list[tuple[Expr, Operand]]:
    """Outputs, and saved factors, that are relu of what a product is part of, where the backward asks only for
    its sign.

    ``x <= 0`` exactly where ``where(x <= 0, 0, x) <= 0``, for NaN too; and so with ``x > 0``
    and ``where(x > 0, x, 0)``. What is too small for the dtype counts as zero, as it does in torch.

    Args:
        multiplied: the factors, which the backward reads where it would compute them.
    """
    dots = {reduce.ref for reduce in op.expand()[0] if reduce.kind == DOT}
    found: list[tuple[Expr, Operand]] = []
    values: dict[Expr, Expr] = {expr: operand.ref for operand, expr in multiplied}
    substitution = Substitution(values)
    nodes = list(walk([substitution.of(item.expr) for items in backward.expand() for item in items]))
    written = [(o.expr, Operand(o.name, o.dtype, o.shape, groups=o.groups)) for o in _readable(op)]
    for chosen, operand in [*written, *((unrounded(expr, o.dtype), o) for o, expr in multiplied)]:
        match chosen:
            case Call("where", (Call("le", (x, zero)) as test, a, b)) | Call(
                "where", (Call("gt", (x, zero)) as test, b, a)
            ):
                uses = [node for node in nodes if x in node.children]
                is_relu = a is zero and b is x and zero is const(0, x.dtype)
                if is_relu and uses == [test] and dots & set(refs(x)):
                    found.append((x, operand))
    return found


def _is_written(side: Factor) -> bool:
    """Whether a factor is computed, rather than an argument or another product's result as it is."""
    expr = side.expr
    return not isinstance(unrounded(expr, side.stored), Ref)


def _with_outputs(op: Op, extra: Sequence[Output]) -> Op:
    """``op`` that also writes ``extra``; a saved reduction and the output that carries it have one name."""
    if not extra:
        return op
    reduces, outputs = op.expand()
    taken = {thing.name for thing in (*op.operands, *op.scalars, *op.outputs)}
    statements, bound = introduce_lets(reduces, [*outputs, *extra], op.names(), taken)
    return op.with_statements(statements, bound)


def _reading_saved(backward: Op, saved: Sequence[tuple[Expr, Operand]], exponentials: frozenset[Ref]) -> Op:
    """``backward`` reading saved tensors where it would recompute them."""
    values: dict[Expr, Expr] = {}
    for expr, operand in saved:
        values |= {} if isinstance(expr, Ref) else recovered_from(expr, operand.ref, exponentials)
    named = {expr.name for expr, _ in saved if isinstance(expr, Ref)}
    values.update({rounded(o.ref, o.dtype): o.ref for expr, o in saved if isinstance(expr, Ref) and o.dtype.is_half})
    reduces, outputs = backward.expand()
    substitution = Substitution(values)
    reduces = [replace(r, expr=substitution.of(r.expr)) for r in reduces if r.name not in named]
    outputs = [replace(o, expr=substitution.of(o.expr)) for o in outputs]
    if any(is_softmax(expr, exponentials) for expr, _ in saved):
        reduces, outputs = cancel(reduces, outputs, exponentials, backward.axes_of())
    reduces = live_reduces(reduces, outputs)
    if left := exponentials.intersection(refs(*(item.expr for item in (*reduces, *outputs)))):
        # Something reads an exponential by itself, which a result that was rounded to zero would not tell.
        return _reading_saved(backward, saved, exponentials - left)
    renamed = Substitution({expr: o.ref for expr, o in saved if isinstance(expr, Ref) and expr.name != o.name})
    reduces = [replace(r, expr=renamed.of(r.expr)) for r in reduces]
    outputs = [replace(o, expr=renamed.of(o.expr)) for o in outputs]
    read = names_read([*reduces, *outputs])
    # One tensor may stand for several things: a relu for itself and for the sign of what it is of.
    given = {o.name: o for o in (*backward.operands, *(operand for _, operand in saved))}
    operands = [o for o in given.values() if o.name in read]
    taken = {thing.name for thing in (*operands, *backward.scalars, *outputs)}
    called = backward.names()
    saved_names = substitute_all(called, values)
    names: dict[Expr, str] = {new: name for expr, name in called.items() if isinstance(new := saved_names[expr], Call)}
    statements, bound = introduce_lets(reduces, outputs, names, taken)
    scalars = tuple(s for s in backward.scalars if s.name in read)
    return replace(
        backward, operands=tuple(operands), scalars=scalars, statements=tuple(statements), outputs=tuple(bound)
    )


def _best_cut(
    op: Op, backward: Op, axes: dict[str, frozenset[str]], stored: Mapping[Expr, Expr]
) -> tuple[Expr, Operand, bool] | None:
    """The output or intermediate that is most worth saving, if any is.

    Args:
        stored: products as they are after rounding, to what reads them where they are saved.
    """
    reduces, outputs = backward.expand()
    exponentials = sums_of_exponentials(op)
    exprs = [item.expr for item in (*reduces, *outputs) if not (isinstance(item, Reduce) and item.kind == DOT)]
    forward = {new: node for node, new in substitute_all([item.expr for item in op.expand()[1]], stored).items()}
    known = {**axes, **backward.axes_of()}
    operands = {o.name: o for o in op.operands}
    products = {o.name: o for o in backward.operands if o.ref in stored.values()}
    operands |= products

    def weight(size: int, along: frozenset[str]) -> int:
        return int(size * LIGHTER_PER_AXIS ** len(along))

    weights: dict[Expr, int] = {
        o.ref: weight(o.dtype.size, known[name]) * (2 if name in products else 1) for name, o in operands.items()
    }
    total, avoided = sum(weights.get(ref, 0) for ref in refs(*exprs)), _read_only_by_way_of(exprs, weights)
    by_expr = {o.expr: o for o in _readable(op) if isinstance(o.expr, Call)}
    dtype = next((o.dtype for o in op.outputs if o.dtype.is_float), op.outputs[0].dtype)
    along_of, own_names = Axes(known), op.names()
    taken = set(known) | {o.name for o in op.outputs}
    given = {operand.ref for operand in op.operands}
    best: tuple[float, Expr, Operand, bool] | None = None
    limit = WORTH_SAVING * total if dtype.is_float else 0.0
    for node in walk(exprs):
        is_mask = node.dtype is dtypes.bool_ and given.issuperset(refs(node))
        if not isinstance(node, Call) or not (is_mask or (node in forward and node.dtype is dtype.compute)):
            continue
        kept = dtypes.bool_ if is_mask else dtype
        along = along_of.of(node)
        own = forward.get(node, node)
        output = by_expr.get(own) if isinstance(own, Call) else None
        if output is not None:
            operand = Operand(output.name, output.dtype, output.shape, groups=output.groups)
        else:
            shape = tuple(sorted(along, key=axis_order))
            operand = Operand(safe_name(own_names.get(own, "mask" if is_mask else "kept"), taken), kept, shape)
        moved = weight(kept.size, along) * (1 if output is not None else 2)
        # Of a softmax the exponentials need not be computed either (recovered_from): it is read by way of these.
        cost = total - avoided[node.children[0] if is_softmax(node, exponentials) else node] + moved
        as_good = output is not None and best is None and is_softmax(own, exponentials) and cost <= total
        if cost < limit or as_good:
            limit, best = min(cost, limit), (cost, own, operand, output is not None)
    return best[1:] if best else None


def _read_only_by_way_of(roots: Sequence[Expr], weights: Mapping[Expr, int]) -> dict[Expr, int]:
    """For each node the weight of what is read only in order to compute it: of the leaves that it dominates.

    A node's immediate dominator is where all ways to it from the roots meet last (Cooper, Harvey, Kennedy 2001).
    Shortcuts make the steps up to there the logarithm of the depth (Myers 1983).
    """
    order = list(walk(roots))
    depth: dict[Expr | None, int] = {None: 0}
    above: dict[Expr | None, Expr | None] = {None: None}  # immediate dominators; None: the roots themselves
    shortcut: dict[Expr | None, Expr | None] = {None: None}  # as far up from all nodes of one depth
    meeting: dict[Expr, Expr | None] = dict.fromkeys(roots)

    def meet(a: Expr | None, b: Expr | None) -> Expr | None:
        while a is not b:
            if depth[a] < depth[b]:
                a, b = b, a
            if depth[a] > depth[b]:
                a = shortcut[a] if depth[shortcut[a]] >= depth[b] else above[a]
            elif shortcut[a] is shortcut[b]:
                a, b = above[a], above[b]
            else:
                a, b = shortcut[a], shortcut[b]
        return a

    for node in reversed(order):  # each after all that read it
        dominator = above[node] = meeting[node]
        depth[node] = depth[dominator] + 1
        near = shortcut[dominator]
        as_far = depth[dominator] - depth[near] == depth[near] - depth[shortcut[near]]
        shortcut[node] = shortcut[near] if as_far else dominator
        for child in node.children:
            meeting[child] = meet(meeting[child], node) if child in meeting else node
    found = {node: weights.get(node, 0) for node in order}
    for node in order:  # each before its dominator
        dominator = above[node]
        if dominator is not None:
            found[dominator] += found[node]
    return found

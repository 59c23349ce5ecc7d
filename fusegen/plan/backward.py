"""What autograd asks of an Op: what its forward has to save, and which part of its backward a call needs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusegen import pipeline
from fusegen.core import views
from fusegen.core.errors import DerivativeError
from fusegen.core.ir import Expr, Op, Output, expr_axes, is_call, refs, walk
from fusegen.core.products import contracted_sizes
from fusegen.derive.cotangents import without_cotangents
from fusegen.derive.gradient import GradientNames, operands_read
from fusegen.derive.reach import reached
from fusegen.derive.training import Training


def saved_by(training: Training, arguments: Sequence[str]) -> tuple[list[str], list[int]]:
    """Arguments, and results of the forward by position, that a backward reads.

    One for cotangents of what is kept as well may read less of what is kept, and more of the arguments.
    """
    names = result_names(training.forward)
    reads = [o.base for each in _foreseen(training) for o in operands_read(pipeline.backward_op(training, each))]
    kept = {operand.name for _, operand in training.saved}
    own = set(arguments) - kept
    saved = [n for n in dict.fromkeys(reads) if n in own]
    return saved, [names.index(n) for n in dict.fromkeys(reads) if n in kept]


def _foreseen(training: Training) -> tuple[list[int], list[int]]:
    """The sets of outputs with a cotangent that a forward saves for: all of them, and its own."""
    floats = [i for i, o in enumerate(training.forward.outputs) if o.dtype.is_float]
    return floats, [i for i in floats if i < training.public]


def _backward_for(training: Training, given: Sequence[int]) -> Op:
    """The backward for the outputs that have a cotangent, which reads nothing but what is saved for it.

    Where one derived for them would read more (a softmax that is saved instead of its argument may do for all
    cotangents together), it is one for more of them, without the others.
    """
    found, foreseen = pipeline.backward_op(training, given), _foreseen(training)
    if list(given) in foreseen:
        return found
    outputs, names = training.forward.outputs, GradientNames.of(training.forward)
    of = {names.cotangent(outputs[i]).name for i in foreseen[0]}
    saved = {o.base for each in foreseen for o in operands_read(pipeline.backward_op(training, each))}
    if all(o.base in saved or o.name in of for o in operands_read(found)):
        return found
    more = foreseen[1] if set(given) <= set(foreseen[1]) else foreseen[0]
    return without_cotangents(
        pipeline.backward_op(training, more), {names.cotangent(outputs[i]).name for i in more if i not in given}
    )


@dataclass(frozen=True)
class Saved:
    """What nodes of an op keep for their backwards: arguments and results by position.

    Attributes:
        constant: results that have no gradient.
    """

    arguments: tuple[int, ...]
    results: tuple[int, ...]
    constant: tuple[int, ...]

    @classmethod
    def of(cls, op: Op, arguments: Sequence[str], saved: tuple[Sequence[str], Sequence[int]]) -> Saved:
        """Of a forward that has these arguments, whose backward reads what is ``saved`` (``saved_by``)."""
        names, results = saved
        has_gradient = differentiable(op)
        constant = tuple(i for i in range(len(result_names(op))) if i not in has_gradient)
        return cls(tuple(map(list(arguments).index, names)), tuple(results), constant)

    def tell(self, node: Any, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        """Tell torch's node of a call what its backward reads, and which results have no gradient."""
        read = [arguments[at] for at in self.arguments]
        node.save_for_backward(*read, *[results[at] for at in self.results])
        if self.constant:
            node.mark_non_differentiable(*[results[at] for at in self.constant])
        node.set_materialize_grads(False)


@dataclass(frozen=True)
class PrunedBackward:
    """A backward without the operands and results that nothing needs.

    Attributes:
        given: results (by position) that have a cotangent.
        wanted: arguments whose gradients are needed.
        handed_on: arguments that are terms of a result, as a residual is, and the position of that result. Their
            gradient is its cotangent; nothing computes or copies it.
        shared: arguments that are terms of one sum, and another term of it. Both have the same gradient: it is
            computed once, and autograd gets one tensor for both, as from torch's own additions.
    """

    op: Op
    given: tuple[int, ...]
    wanted: frozenset[str]
    handed_on: Mapping[str, int]
    shared: Mapping[str, str]

    def fill(self, found: dict[str, Any], cotangents: Sequence[Any]) -> None:
        """Add to gradients by argument those that are not computed."""
        found.update({name: cotangents[at] for name, at in self.handed_on.items()})
        found.update({name: found[other] for name, other in self.shared.items()})


def prune_backward(
    training: Training, given: Sequence[int], wanted: frozenset[str], *, sharing: bool = True
) -> PrunedBackward:
    """The backward for the results (by position) that have a cotangent, and the gradients that are needed.

    ``sharing``: gradients may be a cotangent or each other's tensor. A graph cannot look where its gradients go
    (``views_a_leaf``), and a registered op must not return what it was given.
    """
    names = result_names(training.forward)
    chosen = {names[i] for i in given}
    positions = [i for i, o in enumerate(training.forward.outputs) if o.base in chosen]
    op = _backward_for(training, positions)
    gradients = GradientNames.of(training.forward)
    reached = _reached(training.forward, positions) & wanted
    cotangents = {gradients.results[names[i]]: i for i in given}
    forward = _pruned(training.forward, chosen)
    sums, results = _sums(forward) if sharing else {}, {o.name: o.expr for o in forward.expand()[1]}
    handed = {output.base: cotangents.get(_handed_on(op, output) or "") for output in op.outputs}
    handed_on = {
        n: at for n in sorted(reached & sums.keys())
        if (at := handed.get(gradients.arguments[n])) is not None and sums[n] is results[names[at]]
    }  # fmt: skip
    own = {gradients.arguments[name]: name for name in sorted(reached - handed_on.keys())}
    shared = _shared({own[o.base]: o for o in op.outputs if o.base in own and o.packed is None}, sums)
    pruned = _pruned(op, {name for name, argument in own.items() if argument not in shared})
    if given and not pruned.operands:  # a gradient of zeros reads nothing; a cotangent still says on which device
        pruned = replace(pruned, operands=(gradients.cotangent(training.forward.outputs[positions[0]]),))
    return PrunedBackward(pruned, tuple(given), wanted, handed_on, shared)


def _handed_on(backward: Op, gradient: Output) -> str | None:
    """The tensor, not a part of one, that a gradient is without any change; None if it is computed."""
    for operand in backward.operands:
        whole = gradient.packed is None and operand.packed is None
        theirs = operand.ref, operand.dtype, operand.shape, operand.groups
        if whole and theirs == (gradient.expr, gradient.dtype, gradient.shape, gradient.groups):
            return operand.name
    return None


def _shared(gradients: Mapping[str, Output], sums: Mapping[str, Expr]) -> dict[str, str]:
    """Arguments whose gradient is that of an earlier one, as terms of one sum, and which."""
    first: dict[Any, str] = {}
    found = [(n, (o.expr, o.dtype, o.shape, o.groups, sums[n])) for n, o in gradients.items() if n in sums]
    return {name: first[what] for name, what in found if first.setdefault(what, name) != name}


def _sums(op: Op) -> dict[str, Expr]:
    """For each argument that is a term of one sum, has its shape and is read nowhere else, the sum; of one that is a
    result, itself. What something else is taken off is a term as well; what no gradient flows through reads nothing."""
    reduces, outputs = op.expand()
    axes = op.axes_of()
    roots = [output.expr for output in outputs]
    flowing = {reduce.ref: reduce.expr for reduce in reduces}
    readers: dict[Expr, list[Expr]] = {}
    for node in walk(roots, children=lambda node: (flowing[node],) if node in flowing else _flowing_of(node)):
        if node in flowing:
            roots.append(flowing[node])
        for child in set(_flowing_of(node)):
            readers.setdefault(child, []).append(node)

    def above(node: Expr) -> Expr | None:
        """The addition that alone reads it."""
        only = readers.get(node, [])
        if len(only) != 1 or node in roots:
            return None
        (reader,) = only
        is_term = is_call(reader, "add") or (is_call(reader, "sub") and reader.args[1] is not node)
        return reader if is_term else None

    found = {}
    for operand in op.operands:
        total: Expr = operand.ref
        while (larger := above(total)) is not None:
            total = larger
        is_one = total is not operand.ref or total in roots
        if is_one and expr_axes(total, axes) == axes[operand.name]:
            found[operand.name] = total
    return found


def _flowing_of(node: Expr) -> tuple[Expr, ...]:
    """What a gradient flows on to."""
    return () if is_call(node, "stop_gradient") else node.children


def separated(gradients: Sequence[Any], cotangents: Sequence[Any], apart: Sequence[bool]) -> list[Any]:
    """Gradients, of which those that are said to lie apart share their tensor with no other and no cotangent."""
    found = list(gradients)
    for i, gradient in enumerate(found):
        if apart[i] and gradient is not None:
            others = (*cotangents, *found[:i], *found[i + 1 :])
            found[i] = gradient.clone() if any(other is gradient for other in others) else gradient
    return found


def views_a_leaf(tensor: Any) -> bool:
    """Whether a tensor is a view of a leaf. Of two that get one gradient both leaves would take it for their ``.grad``:
    torch looks who holds a tensor, and not who holds its memory."""
    return bool(tensor.requires_grad and tensor._is_view() and tensor._base.is_leaf)


def result_names(op: Op) -> list[str]:
    """Names of an op's results, a packed one once."""
    return list(dict.fromkeys(o.base for o in op.outputs))


def reading(op: Op, otherwise: Sequence[Any]) -> Op:
    """The op with the operands that it reads; one of zeros reads nothing, and needs one to say on which device."""
    return replace(op, operands=operands_read(op) or tuple(otherwise))


def _pruned(op: Op, names: set[str]) -> Op:
    """Only the outputs called ``names``, and only operands that are read: sizes are handed over as numbers."""
    outputs = tuple(o for o in op.outputs if o.base in names)
    needed = {ref.name for output in outputs for ref in refs(output.expr)}
    statements = []
    for statement in reversed(op.statements):
        if statement.name in needed:
            needed |= {ref.name for ref in refs(statement.expr)}
            statements.append(statement)
    op = replace(op, outputs=outputs, statements=tuple(reversed(statements)))
    return replace(op, operands=operands_read(op))


def differentiable(op: Op) -> list[int]:
    """Results (by position) that have a gradient: float ones that a float argument reaches."""
    floats = {operand.base for operand in op.operands if operand.dtype.is_float}
    parts = {name: [i for i, o in enumerate(op.outputs) if o.base == name] for name in result_names(op)}
    found = [all(op.outputs[i].dtype.is_float for i in each) for each in parts.values()]
    arrived = [bool(_reached(op, each) & floats) for each in parts.values()]
    return [at for at, both in enumerate(zip(found, arrived, strict=True)) if all(both)]


def _reached(op: Op, positions: Sequence[int]) -> set[str]:
    """Arguments that the outputs at ``positions`` are computed from by functions of floats. Others have no gradient
    (None), as in torch; those reached only through steps (floor) have a gradient of zeros."""
    names = reached(op, positions)
    return {operand.base for operand in op.operands if operand.name in names}


def axis_sizes(op: Op, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Sizes of the op's axes, products' own among them, from its arguments' shapes."""
    return contracted_sizes(op, views.axis_sizes(op, shapes))


def is_jit_traced() -> bool:
    """Whether torch.jit.trace is at work, which a backward on a GPU cannot ask torch: it runs in a thread of its own,
    that has the dispatch keys of the thread which asked for it, and not its tracer."""
    import torch

    return torch._C._is_tracing() or torch._C._dispatch_tls_is_dispatch_key_included(_tracer_key())


@functools.lru_cache(maxsize=1)
def _tracer_key() -> Any:
    import torch

    return torch._C._dispatch_key_parse("Tracer")


def check_no_jit_trace(op: str) -> None:
    """What is derived says in words and numbers what was derived, of which sizes. Other graphs have guards on these;
    torch.jit.trace would take them for constants.

    Raises:
        DerivativeError: torch.jit.trace is at work.
    """
    if is_jit_traced():
        raise DerivativeError(
            op, given="a derivative, or torch.func's vmap, inside torch.jit.trace",
            expected="calls alone: such a trace keeps sizes as the constants that they were",
            fix="differentiate what was traced, or use torch.compile, torch.export or make_fx",
        )  # fmt: skip

"""Steps that a scatter does in its own kernels: what its sum is added to."""

from __future__ import annotations

from dataclasses import replace

from fusegen.core.ir import Call, Op, Operand, Output, names_read, refs
from fusegen.core.subexpressions import introduce_lets, live_reduces
from fusegen.fuse.steps import Chain, Product, Scatter, names_of


def with_bases(cut: Chain) -> Chain:
    """Where all that is made of a scatter's sum is what it is added to, in a step behind it, the scatter adds it."""
    steps, intermediates = list(cut.steps), list(cut.intermediates)
    for at, step in enumerate(cut.steps):
        between = next((o for o in intermediates if isinstance(step, Scatter) and o.name == step.result), None)
        if between is None or not isinstance(step, Scatter) or step.kind != "sum" or step.moves or step.onto:
            continue
        readers = [place for place, other in enumerate(steps) if place != at and step.result in names_of(other)]
        found = _base_of(between, steps[readers[0]]) if len(readers) == 1 and readers[0] > at else None
        earlier = set().union(*map(names_of, steps[:at])) | {operand.name for operand in cut.op.operands}
        if found is None or found[0].name not in earlier:
            continue
        base, output, rest = found
        steps[at] = replace(step, result=output.name, base=base.name)
        steps[readers[0]] = rest
        intermediates.remove(between)
    kept = [step for step in steps if isinstance(step, Product) or step.outputs]
    return replace(cut, steps=tuple(kept), intermediates=tuple(intermediates))


def _base_of(between: Operand, behind: Op | Product) -> tuple[Operand, Output, Op] | None:
    """What a step adds to a sum, the result that this is, and the step without it; None where it does anything else."""
    if not isinstance(behind, Op):
        return None
    mine = [item for item in (*behind.statements, *behind.outputs) if between.ref in refs(item.expr)]
    match mine:
        case [Output(expr=Call("add", (one, other))) as output] if output.packed is None and not output.groups:
            base = next((o for o in behind.operands if o.ref == (other if one == between.ref else one)), None)
            alone = base is not None and base.packed is None and not base.groups and base is not between
            if alone and base is not None and (base.shape, base.dtype) == (output.shape, output.dtype):
                axes = {axis for axis in between.shape if axis}
                if between.ref in (one, other) and axes == {axis for axis in output.shape if axis}:
                    return base, output, _without(behind, output)
    return None


def _without(op: Op, output: Output) -> Op:
    """An op without one of its results, and without what only that reads."""
    reduces, outputs = op.expand()
    left = [item for item in outputs if item.name != output.name]
    live = live_reduces(reduces, left)
    read = names_read([*live, *left])
    operands = tuple(operand for operand in op.operands if operand.name in read)
    taken = {thing.name for thing in (*operands, *op.scalars, *left)}
    statements, bound = introduce_lets(live, left, op.names(), taken)
    return replace(op, operands=operands, statements=tuple(statements), outputs=tuple(bound))

"""What a scatter does in its own kernels: it looks at places, and adds its sum to what it is added to."""

from __future__ import annotations

from dataclasses import replace

from fusegen.core.casts import converted
from fusegen.core.dtypes import Category, bool_, int64
from fusegen.core.ir import Call, Expr, Index, Op, Operand, Output, Size, call, const, is_call, names_read, refs, walk
from fusegen.core.subexpressions import introduce_lets, live_reduces
from fusegen.core.within import Within, linear
from fusegen.fuse.steps import Chain, Looked, Product, Scatter, Source, names_of


def with_places(cut: Chain) -> Chain:
    """Where a step looks at the places of an index for scatters alone, these read the index, and look themselves.

    Unless columns share a place, which each of them would look at.
    """
    steps, intermediates = list(cut.steps), list(cut.intermediates)
    for name in dict.fromkeys(step.left.name for step in steps if isinstance(step, Scatter)):
        between = next((operand for operand in intermediates if operand.name == name), None)
        using = [place for place, step in enumerate(steps) if name in names_of(step)]
        if between is None or len(using) < 2:
            continue
        (first, *others), written = using, steps[using[0]]
        readers = [
            step for place in others if isinstance(step := steps[place], Scatter) and _is_of_places(step, between)
        ]
        if not isinstance(written, Op) or len(readers) < len(others):
            continue
        output = next((item for item in written.expand()[1] if item.name == name), None)
        found = output and _looked_at(written, output, readers[0].axis)
        if output is None or not found or len({reader.axis for reader in readers}) > 1:
            continue
        for place, reader in zip(others, readers, strict=True):
            steps[place] = replace(reader, left=Source(found[0].name, ()), looked=found[1])
        steps[first] = _without(written, output)
        intermediates.remove(between)
    kept = [step for step in steps if isinstance(step, Product) or step.outputs]
    return replace(cut, steps=tuple(kept), intermediates=tuple(intermediates))


def _is_of_places(step: Scatter, between: Operand) -> bool:
    """Whether a step reads a tensor for its places alone, by their own names, one for each update."""
    own = {*step.over, *step.axes} - {step.axis} <= set(between.shape)
    is_other = between.name not in (step.right.name, step.base)
    return own and step.left == Source(between.name, ()) and not step.moves and is_other


def _looked_at(op: Op, output: Output, axis: str) -> tuple[Operand, Looked] | None:
    """The index whose places along an axis a step writes, and how it looks at them; None for any other expression."""
    place, reports, axes = output.expr, None, tuple[str, ...]()
    if isinstance(place, Within):
        reports, place = place, place.args[0]
        axes = tuple(dict.fromkeys(node.axis for node in walk([reports.position]) if isinstance(node, Index)))
        where = linear([Index(name) for name in axes], [Size(name) for name in axes])
        if reports.args[1] != Size(axis) or (where or const(0, int64)) != reports.position:
            return None
    wraps = is_call(place, "where")
    index = place.args[2] if is_call(place, "where") else place
    raw = index.args[0] if is_call(index, "cast") else index
    operand = next((each for each in op.operands if each.ref == raw), None)
    if operand is None or operand.dtype.category is not Category.INTEGER or operand.packed or operand.groups:
        return None
    if converted(operand.ref, int64) != index or (wraps and place != _from_either_end(index, Size(axis))):
        return None
    return operand, Looked(wraps, reports.site if reports else None, axes)


def _from_either_end(index: Expr, size: Expr) -> Expr:
    """A place that is counted from the end where it is negative."""
    negative = call("lt", index, const(0, int64), dtype=bool_)
    return call("where", negative, call("add", index, size, dtype=int64), index, dtype=int64)


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

"""Statements that share a pass over memory become one kernel.

Elementwise outputs over the same axes share a kernel. Reductions over the same axes of the same space share one; what
only needs their results is computed in their epilogue, and results that another kernel reads are stored on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, count

from fusegen.core.dtypes import DType
from fusegen.core.ir import (
    DOT,
    SCAN,
    Axes,
    Call,
    Expr,
    Index,
    Let,
    Op,
    Operand,
    Output,
    Place,
    Reduce,
    Ref,
    Substitution,
    names_read,
    refs,
    transform,
    walk,
)
from fusegen.core.subexpressions import ascii_name, describe, introduce_lets, safe_name
from fusegen.core.within import merged, sites
from fusegen.fuse import cost
from fusegen.fuse.argreduce import in_one_pass
from fusegen.fuse.gather import gathering
from fusegen.fuse.hoist import WORTH_A_REGISTER, Hoist
from fusegen.fuse.kernel import Gathered, Kernel, kernel_name, read_by
from fusegen.fuse.nested_sums import nested, sharing
from fusegen.fuse.row_kernel import GROUP_AXIS, SHARE_AXIS, TILE_AXIS, RowKernel, levels
from fusegen.fuse.rows import WORTH_MEMORY, Allowed, Fused, fuse, in_order
from fusegen.fuse.strided_rows import fuse_strided_rows

# Row kernels of an op that follow from each other.
MOST_ROW_KERNELS = 3


@dataclass
class _Pass:
    """Reductions that can share a kernel: the same space and axes, and none needs another's result."""

    level: int
    space: frozenset[str]
    over: frozenset[str]
    reduces: list[Reduce]
    outputs: list[Output]
    pointwise: list[Output] = field(default_factory=list)


def group(op: Op) -> tuple[Kernel, ...]:
    """The kernels of ``op``, in launch order: one for each level of reductions that follow from each other."""
    op, reduces, outputs, axes = prepared(op)
    reduces = in_one_pass(reduces, outputs)
    axes |= {ref.name: frozenset(ref.axes) for ref in refs(*(r.expr for r in reduces)) if isinstance(ref, Place)}
    return _named(_kernels(op, reduces, outputs, axes, {}, set()))


def group_by_rows(op: Op) -> tuple[tuple[Kernel, ...], ...]:
    """The kernels of ``op`` where rows stay on chip from reduction to reduction, the best candidate first; none where
    nothing is gained. Not every layout allows to begin sums in rows that go on over rows, or to take slices."""
    found = [*_around(op, fuse)]
    rows = [kernel for kernels in found for kernel in kernels if isinstance(kernel, RowKernel)]
    if any(kernel.slices for kernel in rows):
        found += _around(op, partial(fuse, allowed=Allowed(slices=False)))
    if any(kernel.row_tiles and kernel.has_sums_of_rows for kernel in rows):
        found += _around(op, partial(fuse, allowed=Allowed(tiles=False)))
    if not found or any(kernel.within for kernel in rows):
        found += _around(op, partial(fuse, allowed=Allowed(row_partials=False, slices=False)))
    return tuple(dict.fromkeys(found))


def group_by_other_rows(op: Op) -> Iterator[tuple[Kernel, ...]]:
    """The same with other axes for rows, where reductions over several sets of axes are waited for: kernels before
    take those that the rows need."""
    for turn in count(1):
        for allowed in (Allowed(turn=turn), Allowed(turn=turn, row_partials=False, slices=False)):
            found = [*_around(op, partial(fuse, allowed=allowed))]
            yield from found
            if not found and allowed.slices:
                return


def group_by_strided_rows(op: Op) -> tuple[Kernel, ...] | None:
    """The kernels where rows lie side by side; None where nothing is gained."""
    return next(_around(op, fuse_strided_rows, alone=True), None)


def _around(op: Op, fuse: Callable[..., Fused | None], *, alone: bool = False) -> Iterator[tuple[Kernel, ...]]:
    """The kernel that ``fuse`` makes, with what comes before it and after: where that has rows of its own, in kernels
    by rows first, unless the kernel is to be ``alone``."""
    op, reduces, outputs, axes = prepared(op)
    fused = fuse(op, reduces, outputs, axes)
    if fused is not None and not _is_read_again(op, fused, reduces, axes):
        for kernels in _with_rest(op, fused, axes, {}, 1 if alone else MOST_ROW_KERNELS):
            yield _named(kernels)


def _is_read_again(
    op: Op, fused: Fused, reduces: Sequence[Reduce], axes: Mapping[str, frozenset[str]]
) -> bool:  # fmt: skip
    """Whether a row kernel that writes nothing but sums leaves some to a pass over the same tensors, which could take
    all of them (fuse/nested_sums)."""
    if fused.kernel.pointwise:
        return False
    own = {item.name for item in fused.kernel.items if isinstance(item, Reduce)}
    left = {reduce.name for reduce in (*fused.given, *fused.reduces)}
    return any(names & own and names & left for names in sharing(op, reduces, axes))


def _with_rest(
    op: Op, fused: Fused, axes: dict[str, frozenset[str]], before: Mapping[str, Operand], most: int
) -> Iterator[list[Kernel]]:
    """A row kernel with the kernels of what it leaves.

    Args:
        before: results of the kernels before it.
        most: row kernels.
    """
    axes = dict(axes)
    needed = {operand.name for operand in fused.kernel.operands}
    own = {r.ref for r in fused.given}
    early = [output for output in fused.outputs if output.expr in own]  # results that are kept for a backward
    late = [output for output in fused.outputs if output not in early]
    first = _kernels(op, list(fused.given), early, axes, before, needed)
    axes.update({operand.name: frozenset(a for a in operand.shape if a) for operand in fused.stored})
    given = {r.name: Operand(r.name, r.expr.dtype, in_order(axes[r.name])) for r in fused.given}
    stored = {**before, **given, **{operand.name: operand for operand in fused.stored}}
    # An axis of partial sums has one size: that of the one row kernel that leaves any.
    begins = not any(_is_partial(operand) for operand in stored.values())
    for turn in count() if most > 1 else ():
        allowed = Allowed(turn=turn, row_partials=begins, columns=begins, slices=begins)
        then = fuse(op, fused.reduces, late, axes, allowed, stored)
        if then is None:
            break
        yield from ([*first, fused.kernel, *rest] for rest in _with_rest(op, then, axes, stored, most - 1))
    yield [*first, fused.kernel, *_kernels(op, list(fused.reduces), late, axes, stored, set())]


def _is_partial(operand: Operand) -> bool:
    return not {GROUP_AXIS, TILE_AXIS, SHARE_AXIS}.isdisjoint(operand.shape)


def prepared(op: Op) -> tuple[Op, list[Reduce], list[Output], dict[str, frozenset[str]]]:
    """The expanded op as kernels read it, and the axes of what they read."""
    read, reduces, outputs, axes = _prepared(op)
    return read, list(reduces), list(outputs), dict(axes)


@lru_cache(maxsize=16)  # every way to group an op begins here
def _prepared(op: Op) -> tuple[Op, list[Reduce], list[Output], dict[str, frozenset[str]]]:
    axes = _all_axes(op)
    op, reduces, outputs = _with_merged_positions(*gathering(op, *_with_positions(op), Axes(axes)))
    axes |= _axes_of_positions(op, reduces, outputs)
    axes |= {o.name: frozenset(filter(None, o.shape)) for o in op.operands}
    along = Axes(axes)
    for reduce in reduces:  # of which some pick an element, and some vary along fewer axes now
        if reduce.name not in axes or reduce.kind not in (DOT, SCAN):
            axes[reduce.name] = along.of(reduce.expr) - set(reduce.over)
    return op, reduces, outputs, axes


def _all_axes(op: Op) -> dict[str, frozenset[str]]:
    return {**op.axes_of(), **{Place(axis).name: frozenset({axis}) for axis in op.axes}}


def _kernels(
    op: Op, reduces: list[Reduce], outputs: list[Output], axes: dict[str, frozenset[str]],
    given: Mapping[str, Operand], wanted: set[str],
) -> list[Kernel]:  # fmt: skip
    """Kernels for these reductions and outputs.

    Args:
        given: results of kernels before these, by name.
        wanted: names of results that other kernels need.
    """
    reduces, outputs, made = nested(op, reduces, outputs, axes, wanted)
    axes.update(made)
    passes = _passes(reduces, axes)
    elementwise: dict[frozenset[str], list[Output]] = {}
    for output in outputs:
        home = _epilogue_home(output, passes, axes)
        space = frozenset(a for a in output.shape if a)
        (home.outputs if home else elementwise.setdefault(space, [])).append(output)
    _take_along(passes, elementwise)
    names = op.names()
    once = _compute_once(op, passes, elementwise, axes, given)
    stored = {**given, **once, **_stored(passes, elementwise, wanted)}
    kernels = [_reduce_kernel(op, *_regrouped(op, p, names, {**axes, **_axes_of(stored)}), stored) for p in passes]
    for p in passes:
        axes.update({r.name: p.space - p.over for r in p.reduces})
    kernels += [_elementwise_kernel(op, space, outs, names, stored) for space, outs in elementwise.items()]
    return kernels


def _named(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The kernels, and the second ones of split sums, under names of their own."""
    if len(kernels) == 1:
        return tuple(kernels)
    named: list[Kernel] = []
    for kernel in kernels:
        taken = {name for other in named for name in (other.name, other.finish)}
        wanted = f"{kernel.name}_{_suffix(kernel)}"
        numbered = (replace(kernel, name=f"{wanted}_{number}") for number in count(2))
        tries = chain([replace(kernel, name=wanted)], numbered)
        named.append(next(k for k in tries if not {k.name, k.finish} & taken))
    return tuple(named)


def _with_positions(op: Op) -> tuple[list[Reduce], list[Output]]:
    """The expanded op with positions along axes as references, and results that storing them rounds."""
    reduces, outputs = op.expand()
    outputs = [replace(output, expr=_unrounded(output)) for output in outputs]
    exprs = [item.expr for item in (*reduces, *outputs)]
    found: dict[Expr, Expr] = {n: Place(n.axis) for n in walk(exprs) if isinstance(n, Index)}
    if not found:
        return reduces, outputs
    positions = Substitution(found)
    replaced = [replace(r, expr=positions.of(r.expr)) for r in reduces]
    return replaced, [replace(o, expr=positions.of(o.expr)) for o in outputs]


def _unrounded(output: Output) -> Expr:
    """What a result is rounded of where its own dtype rounds it once more."""
    match output.expr:
        case Call("cast", (inner,), detail=DType() as dtype) if dtype is output.dtype:
            return inner
    return output.expr


def _with_merged_positions(
    op: Op, reduces: list[Reduce], outputs: list[Output]
) -> tuple[Op, list[Reduce], list[Output]]:
    """The same with one number for where a place stands that is looked at (core/within)."""
    gathered = [o for o in op.operands if isinstance(o, Gathered)]
    exprs = [*(item.expr for item in (*reduces, *outputs)), *(place for o in gathered for _, place in o.places)]
    if not sites(exprs):
        return op, reduces, outputs
    new = transform(exprs, merged)
    operands = [
        replace(o, places=tuple((axis, new[place]) for axis, place in o.places)) if isinstance(o, Gathered) else o
        for o in op.operands
    ]
    reduces = [replace(r, expr=new[r.expr]) for r in reduces]
    return replace(op, operands=tuple(operands)), reduces, [replace(o, expr=new[o.expr]) for o in outputs]


def _axes_of_positions(op: Op, reduces: Sequence[Reduce], outputs: Sequence[Output]) -> dict[str, frozenset[str]]:
    places = [place for o in op.operands if isinstance(o, Gathered) for _, place in o.places]
    found = refs(*(item.expr for item in (*reduces, *outputs)), *places)
    return {ref.name: frozenset(ref.axes) for ref in found if isinstance(ref, Place)}


def _take_along(passes: list[_Pass], elementwise: dict[frozenset[str], list[Output]]) -> None:
    """A sum takes the elementwise outputs over the same space along, where what these read is there before: one pass
    over memory instead of two."""
    level = {r.name: p.level for p in passes for r in p.reduces}
    for p in passes:
        outputs = [] if p.pointwise else elementwise.pop(p.space, [])
        for output in outputs:
            ready = all(level.get(name, 0) < p.level for name in names_read([output]))
            (p.pointwise if ready else elementwise.setdefault(p.space, [])).append(output)


def _compute_once(
    op: Op, passes: list[_Pass], elementwise: dict[frozenset[str], list[Output]], axes: dict[str, frozenset[str]],
    given: Mapping[str, Operand],
) -> dict[str, Operand]:  # fmt: skip
    """What elements need of a reduction's results, and what is the same for all elements of one, is computed with them:
    a mean's ``rsqrt(var + eps)`` once a column, not at each of its elements. What of that is worth it becomes a result
    of the reduction's kernel, by name the operand that it is for others."""
    along, names = Axes(axes), op.names()
    plain = {o.name for o in (*op.operands, *given.values()) if not isinstance(o, Gathered)}
    known = plain | {scalar.name for scalar in op.scalars} | {r.name for p in passes for r in p.reduces}
    taken = {*axes, *known, *(thing.name for thing in (*op.operands, *op.statements, *op.outputs))}
    found, values = dict[str, Operand](), dict[Expr, Expr]()

    def ready(root: Expr, space: frozenset[str], before: list[_Pass]) -> Expr:
        read = {ref.name for ref in refs(root)}
        homes = [p for p in before if not read.isdisjoint(r.name for r in p.reduces)]
        if not homes:
            return root
        stack, seen = [root], set[Expr]()
        while stack:
            node = stack.pop()
            if node in seen or node in values:
                continue
            seen.add(node)
            home = _home_of(node, space, homes, before)
            if home is None:
                stack += node.children
                continue
            name = safe_name(
                names.get(node) or describe(node.children, node.function if isinstance(node, Call) else ""), taken
            )
            taken.add(name)
            kept = in_order(home.space - home.over)
            home.outputs.append(Output(name, node, node.dtype, kept))
            found[name] = Operand(name, node.dtype, kept)
            axes[name] = frozenset(kept)
            values[node] = Ref(name, node.dtype)
        return Substitution(values).of(root) if values else root

    def _home_of(node: Expr, space: frozenset[str], homes: list[_Pass], before: list[_Pass]) -> _Pass | None:
        if not isinstance(node, Call) or not node.dtype.is_float or not along.of(node) < space:
            return None
        needs = {ref.name for ref in refs(node)}
        kept = frozenset(along.of(node))
        # One number takes no memory.
        if not needs <= known or cost.of(walk([node])) < (WORTH_MEMORY if kept else WORTH_A_REGISTER):
            return None
        own = [p for p in before if not needs.isdisjoint(r.name for r in p.reduces)] or homes
        home = own[-1]
        return home if kept == home.space - home.over and all(axes[n] <= kept for n in needs if n in axes) else None

    for at, p in enumerate(passes):
        before = [other for other in passes[:at] if other.level < p.level]
        p.reduces[:] = [replace(r, expr=ready(r.expr, p.space, before)) for r in p.reduces]
        p.pointwise[:] = [replace(o, expr=ready(o.expr, p.space, before)) for o in p.pointwise]
    for space, outputs in elementwise.items():
        outputs[:] = [replace(o, expr=ready(o.expr, space, passes)) for o in outputs]
    return found


def _suffix(kernel: Kernel) -> str:
    """The results tell the kernels of one pass apart: lerp_backward_f32_d_x."""
    names = [ascii_name(output.name) for output in (kernel.written or kernel.partials)]
    return names[0] if len(names) == 1 else f"{names[0]}_and_{len(names) - 1}_more"


def _passes(reduces: Sequence[Reduce], axes: dict[str, frozenset[str]]) -> list[_Pass]:
    level_of, along = levels(reduces), Axes(axes)
    passes: dict[tuple[int, frozenset[str], frozenset[str]], _Pass] = {}
    for reduce in reduces:
        key = level_of[reduce.name], along.of(reduce.expr), frozenset(reduce.over)
        passes.setdefault(key, _Pass(*key, [], [])).reduces.append(reduce)
    return sorted(passes.values(), key=lambda p: p.level)


def _epilogue_home(output: Output, passes: list[_Pass], axes: dict[str, frozenset[str]]) -> _Pass | None:
    """The pass in whose epilogue ``output`` can be computed: it needs its reductions and nothing with more axes."""
    needs = {ref.name for ref in refs(output.expr)}
    shape = frozenset(a for a in output.shape if a)
    for home in reversed(passes):
        own = {r.name for r in home.reduces}
        if needs & own:
            if shape == home.space - home.over and all(axes[name] <= shape for name in needs):
                later = {r.name for p in passes if p.level >= home.level and p is not home for r in p.reduces}
                return None if needs & later else home
            return None
    return None


def _stored(
    passes: list[_Pass], elementwise: dict[frozenset[str], list[Output]], wanted: set[str]
) -> dict[str, Operand]:
    """Reduction results that another kernel reads, as the operands they will be there."""
    # What a pass reduces, and writes on the way, needs none of its own results.
    needed = wanted | names_read(item for p in passes for item in (*p.reduces, *p.pointwise))
    needed |= names_read(chain.from_iterable(elementwise.values()))
    for p in passes:
        needed |= names_read(p.outputs) - {r.name for r in p.reduces}
    found: dict[str, Operand] = {}
    for p in passes:
        kept = in_order(p.space - p.over)
        found.update({r.name: Operand(r.name, r.expr.dtype, kept) for r in p.reduces if r.name in needed})
    return found


def _elementwise_kernel(
    op: Op, space: frozenset[str], outputs: list[Output], names: dict[Expr, str], stored: dict[str, Operand]
) -> Kernel:
    operands, scalars = read_by(op, stored, [o.expr for o in outputs])
    taken = {thing.name for thing in (*operands, *scalars)}
    lets, bound = introduce_lets([], outputs, names, taken)
    body = tuple(let for let in lets if isinstance(let, Let))
    axes = in_order(space)
    return Kernel(kernel_name(op), op, axes, (), operands, scalars, body, (), (), tuple(bound))


def _axes_of(operands: Mapping[str, Operand]) -> dict[str, frozenset[str]]:
    return {name: frozenset(filter(None, operand.shape)) for name, operand in operands.items()}


def _regrouped(
    op: Op, p: _Pass, names: dict[Expr, str], axes: Mapping[str, frozenset[str]]
) -> tuple[_Pass, dict[Expr, str], list[Expr]]:
    """The pass with the factors together that are the same for all elements of a result, the names of what it now
    computes, and of that what is computed once a result."""
    exprs = [item.expr for item in (*p.reduces, *p.pointwise)]
    hoist = Hoist.among(exprs, Axes(axes), p.over, rounded=op.is_half, across=p.space - p.over)
    one = hoist.all(exprs)
    shared = hoist.shared(one.values(), op.operands)
    found = {expr: shared[one[expr]] for expr in exprs}
    reduces = [replace(r, expr=found[r.expr]) for r in p.reduces]
    pointwise = [replace(o, expr=found[o.expr]) for o in p.pointwise]
    named = {hoist.done.get(expr, expr): name for expr, name in names.items()}
    named = {shared.get(expr, expr): name for expr, name in named.items()}
    return replace(p, reduces=reduces, pointwise=pointwise), named, hoist.fixed(found.values())


def _reduce_kernel(
    op: Op, p: _Pass, names: dict[Expr, str], once: Sequence[Expr], stored: dict[str, Operand]
) -> Kernel:
    kept = in_order(p.space - p.over)
    written = {o.name for o in p.outputs}  # a reduction that the op keeps for its backward is an output already
    wanted = [r for r in p.reduces if r.name in stored and r.name not in written]
    stores = [Output(r.name, r.ref, r.expr.dtype, kept) for r in wanted]
    own = {r.name for r in p.reduces}
    others = {name: operand for name, operand in stored.items() if name not in own}
    operands, scalars = read_by(op, others, [item.expr for item in (*p.reduces, *p.outputs, *p.pointwise)])
    taken = {thing.name for thing in (*operands, *scalars, *p.reduces)}
    taken |= written - {output.name for output in op.outputs}  # what is left for other kernels, named as it is there
    statements, pointwise = introduce_lets(p.reduces, p.pointwise, names, taken, apart=once)
    body = tuple(s for s in statements if isinstance(s, Let))
    reduces = tuple(s for s in statements if isinstance(s, Reduce))
    lets, bound = introduce_lets([], p.outputs, names, taken | {let.name for let in body})
    return Kernel(
        kernel_name(op), op, in_order(p.space), in_order(p.over), operands,
        scalars, body, reduces, tuple(let for let in lets if isinstance(let, Let)), (*stores, *bound), tuple(pointwise),
    )  # fmt: skip

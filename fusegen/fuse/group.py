"""Statements that share a pass over memory become one kernel.

Elementwise outputs over the same axes share a kernel. Reductions over the same axes of the same space share one; what
only needs their results is computed in their epilogue, and results that another kernel reads are stored on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fusegen.core import dtypes
from fusegen.core.ir import (
    Expr,
    Index,
    Let,
    Op,
    Operand,
    Output,
    Reduce,
    Scalar,
    axis_order,
    expr_axes,
    refs,
    substitute,
    walk,
)
from fusegen.core.lets import introduce_lets


@dataclass(frozen=True)
class Position(Operand):
    """The position along an axis, as kernels read it: like an operand, but from no memory."""

    @classmethod
    def along(cls, axis: str) -> Position:
        return cls(f"@index_{axis}", dtypes.int64, (axis,))


@dataclass(frozen=True)
class Kernel:
    """One launch.

    ``body`` is evaluated at every point of ``space``. Without ``reduces`` it ends in ``outputs``; with them, the
    reductions over the axes ``over`` follow, then ``epilogue`` and ``outputs`` at every point of the axes that remain;
    ``pointwise`` outputs are then written on the way, at every point of ``space``.
    """

    name: str
    op: Op
    space: tuple[str, ...]
    over: tuple[str, ...]
    operands: tuple[Operand, ...]
    scalars: tuple[Scalar, ...]
    body: tuple[Let, ...]
    reduces: tuple[Reduce, ...]
    epilogue: tuple[Let, ...]
    outputs: tuple[Output, ...]
    pointwise: tuple[Output, ...] = ()

    @property
    def written(self) -> tuple[Output, ...]:
        """Every output."""
        return (*self.pointwise, *self.outputs)

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """Operands that lie in memory."""
        return tuple(operand for operand in self.operands if not isinstance(operand, Position))

    @property
    def kept(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.space if axis not in self.over)

    @property
    def barriers(self) -> bool:
        """Whether threads of a block wait for each other."""
        return bool(self.reduces)


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
    """The kernels of ``op``, in launch order."""
    axes = op.axes_of()
    reduces, outputs = _with_positions(op)
    axes.update({Position.along(axis).name: frozenset({axis}) for axis in op.axes})
    passes = _passes(reduces, axes)
    elementwise: dict[frozenset[str], list[Output]] = {}
    for output in outputs:
        home = _epilogue_home(output, passes, axes, op)
        space = frozenset(a for a in output.shape if a)
        (home.outputs if home else elementwise.setdefault(space, [])).append(output)
    _take_along(passes, elementwise)
    names = op.names()
    stored = _stored(passes, elementwise, axes)
    kernels = [_reduce_kernel(op, p, names, stored) for p in passes]
    for p in passes:
        axes.update({r.name: p.space - p.over for r in p.reduces})
    kernels += [_elementwise_kernel(op, space, outs, names, stored) for space, outs in elementwise.items()]
    if len(kernels) == 1:
        return tuple(kernels)
    return tuple(replace(k, name=f"{k.name}_{_suffix(k)}") for k in kernels)


def _with_positions(op: Op) -> tuple[list[Reduce], list[Output]]:
    """The expanded op with positions along axes as references."""
    reduces, outputs = op.expand()
    exprs = [item.expr for item in (*reduces, *outputs)]
    found: dict[Expr, Expr] = {n: Position.along(n.axis).ref for n in walk(exprs) if isinstance(n, Index)}
    if not found:
        return reduces, outputs
    replaced = [replace(r, expr=substitute(r.expr, found)) for r in reduces]
    return replaced, [replace(o, expr=substitute(o.expr, found)) for o in outputs]


def _take_along(passes: list[_Pass], elementwise: dict[frozenset[str], list[Output]]) -> None:
    """A sum takes the elementwise outputs over the same space along: one pass over memory instead of two."""
    sums = {r.name for p in passes for r in p.reduces}
    for p in passes:
        outputs = elementwise.get(p.space, [])
        if outputs and not any(ref.name in sums for o in outputs for ref in refs(o.expr)):
            p.pointwise = elementwise.pop(p.space)


def _suffix(kernel: Kernel) -> str:
    """The results tell the kernels of one pass apart: lerp_backward_f32_d_x."""
    names = [output.name for output in kernel.written]
    return names[0] if len(names) == 1 else f"{names[0]}_and_{len(names) - 1}_more"


def _passes(reduces: Sequence[Reduce], axes: dict[str, frozenset[str]]) -> list[_Pass]:
    passes: list[_Pass] = []
    level_of: dict[str, int] = {}
    for reduce in reduces:
        level = 1 + max((level_of[r.name] for r in refs(reduce.expr) if r.name in level_of), default=0)
        level_of[reduce.name] = level
        space, over = expr_axes(reduce.expr, axes), frozenset(reduce.over)
        home = next((p for p in passes if (p.level, p.space, p.over) == (level, space, over)), None)
        if home is None:
            home = _Pass(level, space, over, [], [])
            passes.append(home)
        home.reduces.append(reduce)
    return sorted(passes, key=lambda p: p.level)


def _epilogue_home(output: Output, passes: list[_Pass], axes: dict[str, frozenset[str]], op: Op) -> _Pass | None:
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
    passes: list[_Pass], elementwise: dict[frozenset[str], list[Output]], axes: dict[str, frozenset[str]]
) -> dict[str, Operand]:
    """Reduction results that another kernel reads, as the operands they will be there."""
    needed: set[str] = set()
    for p in passes:
        own = {r.name for r in p.reduces}
        items = [*p.reduces, *p.outputs, *p.pointwise]
        needed |= {ref.name for item in items for ref in refs(item.expr)} - own
    needed |= {ref.name for outputs in elementwise.values() for o in outputs for ref in refs(o.expr)}
    found: dict[str, Operand] = {}
    for p in passes:
        kept = tuple(sorted(p.space - p.over, key=axis_order))
        found.update({r.name: Operand(r.name, r.expr.dtype, kept) for r in p.reduces if r.name in needed})
    return found


def _dtype_name(op: Op) -> str:
    """The dtype in a kernel's name: that of the first float result, else of the first thing there is."""
    things = [*op.outputs, *op.operands]
    return next((t.dtype.short for t in things if t.dtype.is_float), things[0].dtype.short)


def kernel_name(op: Op) -> str:
    """``lerp_backward_f32``."""
    return f"{op.name}_{op.label.replace(' ', '_')}_{_dtype_name(op)}"


def _read(op: Op, stored: dict[str, Operand], exprs: Sequence[Expr]) -> tuple[tuple[Operand, ...], tuple[Scalar, ...]]:
    names = {ref.name for ref in refs(*exprs)}
    operands = [o for o in op.operands if o.name in names]
    operands += [o for name, o in stored.items() if name in names]
    operands += [p for p in map(Position.along, op.axes) if p.name in names]
    return tuple(operands), tuple(s for s in op.scalars if s.name in names)


def _elementwise_kernel(
    op: Op, space: frozenset[str], outputs: list[Output], names: dict[Expr, str], stored: dict[str, Operand]
) -> Kernel:
    operands, scalars = _read(op, stored, [o.expr for o in outputs])
    taken = {thing.name for thing in (*operands, *scalars)}
    lets, bound = introduce_lets([], outputs, names, taken)
    body = tuple(let for let in lets if isinstance(let, Let))
    axes = tuple(sorted(space, key=axis_order))
    return Kernel(kernel_name(op), op, axes, (), operands, scalars, body, (), (), tuple(bound))


def _reduce_kernel(op: Op, p: _Pass, names: dict[Expr, str], stored: dict[str, Operand]) -> Kernel:
    kept = tuple(sorted(p.space - p.over, key=axis_order))
    written = {o.name for o in p.outputs}  # a reduction that the op keeps for its backward is an output already
    wanted = [r for r in p.reduces if r.name in stored and r.name not in written]
    stores = [Output(r.name, r.ref, r.expr.dtype, kept) for r in wanted]
    own = {r.name for r in p.reduces}
    others = {name: operand for name, operand in stored.items() if name not in own}
    operands, scalars = _read(op, others, [item.expr for item in (*p.reduces, *p.outputs, *p.pointwise)])
    taken = {thing.name for thing in (*operands, *scalars, *p.reduces)}
    statements, pointwise = introduce_lets(p.reduces, p.pointwise, names, taken)
    body = tuple(s for s in statements if isinstance(s, Let))
    reduces = tuple(s for s in statements if isinstance(s, Reduce))
    lets, bound = introduce_lets([], p.outputs, names, taken | {let.name for let in body})
    return Kernel(
        kernel_name(op), op, tuple(sorted(p.space, key=axis_order)), tuple(sorted(p.over, key=axis_order)), operands,
        scalars, body, reduces, tuple(let for let in lets if isinstance(let, Let)), (*stores, *bound), tuple(pointwise),
    )  # fmt: skip

"""Builds the Op of a finished trace: axes, reductions and results get names, and only what is needed stays."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm
from typing import Any, overload

from fusegen.core import dtypes
from fusegen.core.blocks import Joined, Part
from fusegen.core.declared import Declared, Recorded
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import (
    SCAN,
    Expr,
    Factor,
    Groups,
    Index,
    Op,
    Operand,
    Output,
    PackedBlock,
    Reduce,
    Ref,
    Rewriting,
    Scalar,
    Shape,
    Size,
    Substitution,
    axis_name,
    axis_order,
    const,
    names_read,
    own_size,
    refs,
    shaped_axes,
    walk,
    with_carriers,
)
from fusegen.core.monoids import BY_KIND
from fusegen.core.products import contracted_sizes, renamed_axes
from fusegen.core.subexpressions import Renaming, introduce_lets, live_reduces, safe_name
from fusegen.declare.axes import AxisVar, Dims, NotNested, leaves, mirror, unite
from fusegen.declare.blocks import Divided, axes_of_pairs
from fusegen.declare.memory import check_written
from fusegen.declare.parts import check_count
from fusegen.declare.scalars import in_double
from fusegen.declare.scans import in_groups
from fusegen.declare.selected import Selected
from fusegen.declare.value import (
    CalledWith,
    Tracer,
    Value,
    check_distinct,
    convert,
    lift,
    not_nested,
    plain_number,
    tracing,
)

Result = tuple[Value, PackedBlock | None]
# Of so many elements at most, each that is added up for a pair of others is a thing of its own.
FEW_ELEMENTS = 4


def build_op(tracer: Tracer, name: str, declared: str, scalars: Sequence[Scalar], returned: Any, doc: str) -> Op:
    """The Op of a declaration that was traced by ``tracer`` and ``returned`` this.

    Raises:
        DeclarationError: it returned what is no result.
    """
    with tracing(tracer):
        results, kind = _results(tracer, returned)
        counts = _unite_blocks(tracer)
        check_distinct(tracer.where, [*tracer.tensors(), *(("a result", value.dims) for value, _ in results)])
    builder = _Builder(tracer, [value.dims for value, _ in results])
    arguments = {operand.name for operand, _ in tracer.operands if operand.packed is None} | {s.name for s in scalars}
    taken = arguments | {f"d_{name}" for name in arguments}  # what their gradients will be called
    blocks = {operand.name for operand, _ in tracer.operands if operand.packed}
    names = _reduce_names(tracer.reduces, tracer.names, blocks, taken)
    final = Renaming(names)
    operands = [
        replace(o, name=names.get(o.name, o.name), shape=builder.shape(dims), groups=_groups(dims))
        for o, dims in tracer.operands
    ]
    reduces = builder.reduces(tracer.reduces, final)
    outputs = builder.outputs(results, kind, final, taken)
    local_names = {builder.expr(e, final): n for e, n in tracer.names.items() if not isinstance(e, Ref)}
    parts = {builder.names[whole]: (count, builder.names[part] if part else None) for whole, part, count in counts}
    made = {*taken, *names.values(), *(o.name for o in outputs), *(o.name for o in operands)}
    live = live_reduces(reduces, outputs)
    paired = axes_of_pairs(operands, live)
    tracer.meets_in_pairs = bool(paired)
    few = {builder.names[axis]: axis.size for axis in builder.names if 1 < axis.size <= FEW_ELEMENTS}
    parts |= {axis: (few[axis], None) for axis in sorted(paired & few.keys() - parts.keys())}
    divided = Divided(tracer.where, parts, builder.fresh, operands, live, outputs, local_names, made)
    divided.few = [axis for axis in parts if axis in paired and parts[axis][1] is None]
    divided.run()
    _check_blocks_distinct(tracer, results, [d for d in counts if builder.names[d[0]] in divided.gone])
    operands, reduces, outputs, local_names = divided.operands, divided.reduces, divided.outputs, divided.names
    taken |= divided.taken if divided.gone else set()
    found, reduces, outputs, local_names = in_double(scalars, reduces, outputs, local_names)
    for output in outputs:
        local_names.pop(output.expr, None)
    taken |= {output.name for output in outputs}
    live = live_reduces(reduces, outputs)
    statements, bound = introduce_lets(live, outputs, local_names, taken | set(names.values()))
    used = tuple(_used_operands(operands, statements, bound))
    op = Op(name, "forward", used, tuple(found), tuple(statements), tuple(bound), kind, declared, doc)
    return divided.renamed(_with_own_sizes(_with_known_sizes(op, builder.mirrors(), builder.wholes()), builder.names))


def _check_blocks_distinct(
    tracer: Tracer, results: Sequence[Result], divisions: Sequence[tuple[AxisVar, AxisVar | None, int]]
) -> None:
    """No tensor has an axis of which there are blocks beside that of a block: taken out, the one is the other.

    Raises:
        DeclarationError: one has.
    """
    roots: dict[AxisVar, AxisVar] = {}

    def root(axis: AxisVar) -> AxisVar:
        while axis in roots:
            axis = roots[axis]
        return axis

    for whole, part, _ in divisions:
        if part is not None and root(part.find()) is not root(whole.find()):
            roots[root(part.find())] = root(whole.find())
    for what, dims in [*tracer.tensors(), *(("a result", value.dims) for value, _ in results)]:
        found = [root(axis.find()) for axis in leaves(dims)]
        if len(set(found)) < len(found):
            tracer.met_itself = True
            raise DeclarationError(
                tracer.where, given=f"{what}, of which one dimension is a part of another",
                expected="dimensions that are independent of each other",
                fix="pass the tensor twice, as two arguments of the op, and take the part of one of them",
            )  # fmt: skip


def _unite_blocks(tracer: Tracer) -> list[tuple[AxisVar, AxisVar | None, int]]:
    """The axes of which there are blocks, each once. Where two of them have become one, so do their blocks' axes; an
    axis in blocks of several sizes is in such as make up all of them, and so are its larger blocks.

    Raises:
        DeclarationError: that would be too many blocks.
    """
    found: dict[AxisVar, dict[int, AxisVar | None]] = {}
    for whole, part, count in tracer.divisions:
        known = found.setdefault(whole.find(), {})
        other = known.setdefault(count, part)
        if other is not None and part is not None:
            unite(other, part)
    divisions: list[tuple[AxisVar, AxisVar | None, int]] = []
    for whole, parts in found.items():
        least = lcm(*parts)
        if least not in parts:
            check_count(whole, least)
            size, origin = whole.size // least, f"a part of {whole.origin}"
            parts[least] = AxisVar(size, origin, fixed=whole.made, made=whole.made) if size != 1 else None
            tracer.divisions.append((whole, parts[least], least))
        smallest = parts[least]
        divisions.append((whole, smallest, least))
        divisions += [(part, smallest, least // n) for n, part in parts.items() if n != least and part is not None]
    single = [(leaves([whole]), leaves([part]), count) for whole, part, count in divisions]
    # In groups: arguments' blocks, or an error when met.
    return [(w[0], p[0] if p else None, count) for w, p, count in single if len(w) == 1 and len(p) < 2]


def _with_known_sizes(op: Op, mirrors: Mapping[str, str], wholes: Mapping[str, Expr]) -> Op:
    """The op, where it asks for the size of an axis that no operand has: of one that only a product had, which nothing
    reads, that of the factor's axis which it mirrors; of an argument that is read in blocks, that of all of them."""
    named = contracted_sizes(op, dict.fromkeys(op.axes, 1)).keys()
    items = (*op.statements, *op.outputs)
    values: dict[Expr, Expr] = {}
    for node in walk([item.expr for item in items]):
        if isinstance(node, Size) and node.axis not in named:
            axis = node.axis
            while axis not in named and axis in mirrors:
                axis = mirrors[axis]
            values[node] = Size(axis) if axis in named else wholes.get(axis, Size(axis))
    if not values:
        return op
    known = Substitution(values)
    statements = [replace(s, expr=known.of(s.expr)) for s in op.statements]
    return op.with_statements(statements, [replace(o, expr=known.of(o.expr)) for o in op.outputs])


def _with_own_sizes(op: Op, names: Mapping[AxisVar, str]) -> Op:
    """The op, where a result has an axis that nothing else has any more (a part of an intermediate, all of it one
    number): its name tells its size, as that of an axis which the declaration made."""
    carried = {axis for operand in op.operands for axis in operand.shape if axis}
    known = contracted_sizes(op, dict.fromkeys(carried, 1)).keys()
    lost = {axis for axis in shaped_axes(op.outputs) - known if own_size(axis) is None}
    if not lost:
        return op
    sizes = {name: axis.size for axis, name in names.items() if name in lost}
    own = {axis: axis_name(axis_order(axis)[0], size) for axis, size in sizes.items()}
    return renamed_axes(op, lambda axis: own.get(axis, axis))


def _results(tracer: Tracer, returned: Any) -> tuple[list[Result], str]:
    many = isinstance(returned, (tuple, list))
    items = list(returned) if many else [returned]
    if not items:
        raise _nothing(tracer, returned)
    outputs: list[Result] = []
    for position, item in enumerate(items):
        if isinstance(item, Value) and item.packed is not None:
            base, (parts, place) = f"out_{position}" if many else "out", item.packed
            outputs += [(value, PackedBlock(base, place, index, len(parts))) for index, value in enumerate(parts)]
        elif isinstance(item, Selected):
            raise item.refused("elements that are returned")
        elif isinstance(plain_number(item), (Value, bool, int, float)):
            outputs.append((lift(item), None))
        else:
            raise _nothing(tracer, item, among=many)
    check_written(tracer, [value.expr for value, _ in outputs])
    return outputs, "tuple" if many else "one"


def _nothing(tracer: Tracer, given: Any, among: bool = False) -> DeclarationError:
    if isinstance(given, Mapping):
        fix = "return a tuple of its values, and put them under their names where the op is called"
    elif isinstance(given, (tuple, list)) and among:
        fix = "return one tuple of all results"
    elif given is None and among:
        fix = "leave None away, and put it beside the results where the op is called"
    else:
        fix = "return the expression that the op computes"
    is_nothing = given is None or (isinstance(given, (tuple, list)) and not given)
    said = "nothing" if is_nothing else f"a {type(given).__name__}"
    return DeclarationError(
        f"{tracer.where}{tracer.left_at}", given=f"{'None' if given is None and among else said} returned",
        expected="a symbolic tensor, or a tuple of them", fix=fix,
    )  # fmt: skip


def _reduce_names(
    reduces: Sequence[tuple[Reduce, tuple[AxisVar, ...]]], names: Mapping[Expr, str], blocks: set[str], taken: set[str]
) -> dict[str, str]:
    """What reductions and packed blocks are called from here on: as the declaration calls them, if it does.

    Args:
        taken: other names; these are added.
    """
    final: dict[str, str] = {}
    own = {*blocks, *(reduce.name for reduce, _ in reduces)}
    called = [(e, n) for e, n in names.items() if isinstance(e, Ref)]
    kept = blocks - {ref.name for ref, _ in called}  # which are called so already
    taken |= kept
    for ref, local in called:
        if ref.name in own:
            final[ref.name] = safe_name(local, taken)
            taken.add(final[ref.name])
    for reduce, _ in reduces:
        if reduce.name not in final:
            final[reduce.name] = safe_name(BY_KIND[reduce.kind].result, taken)
            taken.add(final[reduce.name])
    return final


class _Builder:
    """The names of a trace's axes, and the parts of an Op in terms of these names."""

    def __init__(self, tracer: Tracer, results: Sequence[Dims]) -> None:
        self.tracer = tracer
        _mirror(tracer)
        self.names = _axis_names(tracer, results)
        self.gradients: dict[int, tuple[Op, list[str]]] = {}
        self.renamed = Rewriting(self._renamed)

    def mirrors(self) -> dict[str, str]:
        """For axes that products have made, those that they are as long as."""
        pairs = [zip(leaves([new]), leaves([own]), strict=True) for own, new in self.tracer.mirrored]
        return {self.names[new]: self.names[own] for pair in pairs for new, own in pair}

    def wholes(self) -> dict[str, Expr]:
        """The sizes of axes of arguments that are read in blocks."""
        whole = {operand.name: dims for operand, dims in self.tracer.operands if operand.packed is None}
        found: dict[str, Expr] = {}
        for (base, place, count), blocks in self.tracer.blocks.items():
            axes = leaves([whole[base][place]])
            if len(axes) == 1 and axes[0] in self.names:
                size: Expr = const(count, dtypes.int64)
                for axis in leaves([blocks[0].dims[place]]):
                    size = size * Size(self.names[axis])
                found[self.names[axes[0]]] = size
        return found

    def fresh(self) -> str:
        """A name for one more axis."""
        return self._named(AxisVar(1, "blocks"))

    def _named(self, axis: AxisVar) -> str:
        """The axis's name, which it gets here where only values have it that nothing reads."""
        if axis not in self.names:
            number = 1 + max((axis_order(name)[0] for name in self.names.values()), default=-1)
            self.names[axis] = axis_name(number, axis.size if axis.made else None)
        return self.names[axis]

    def shape(self, dims: Dims) -> Shape:
        """Names of the axes, of a dimension in groups those that it is made of."""
        return tuple(self._named(axis) if axis else None for axis in _entries(dims))

    def expr(self, expr: Expr, final: Renaming) -> Expr:
        """An expression with names for its axes, and with the ``final`` names of other things."""
        return final.of(self.renamed.of(expr))

    def _axes(self, name: str) -> list[str]:
        return [self._named(axis) for axis in leaves([self.tracer.sizes[name]])]

    @overload
    def _axis(self, name: str) -> str: ...
    @overload
    def _axis(self, name: str | None) -> str | None: ...
    def _axis(self, name: str | None) -> str | None:
        """One axis that is not in groups."""
        if name is None:
            return None
        found = self._axes(name)
        if len(found) != 1:
            raise DeclarationError(
                self.tracer.where, given=f"blocks of {self.tracer.sizes[name].origin}, which is in groups",
                expected="an axis that is not: blocks of groups are none of an argument's memory",
                fix="split before fg.unflatten, or pass the parts as arguments of their own",
            )  # fmt: skip
        return found[0]

    def _renamed(self, node: Expr) -> Expr:
        if isinstance(node, Size) and node.axis in self.tracer.sizes:
            sizes: list[Expr] = [Size(axis) for axis in self._axes(node.axis)]
            return functools.reduce(Expr.__mul__, sizes) if sizes else const(1, dtypes.int64)
        if isinstance(node, Index):
            places: list[tuple[Expr, Expr]] = [(Index(axis), Size(axis)) for axis in self._axes(node.axis)]
            place, _ = functools.reduce(lambda before, here: (before[0] * here[1] + here[0], here[1]), places)
            return place
        if isinstance(node, Factor):
            pairs = [p for own, new in node.renames for p in zip(self._axes(own), self._axes(new), strict=True)]
            return Factor(node.expr, node.stored, tuple(pair for pair in pairs if pair[0] != pair[1]))
        if isinstance(node, Recorded):
            return self._declared(node)
        if isinstance(node, Part):
            return Part(node.args[0], self._axis(node.whole), self._axis(node.part), node.index, node.count)
        if isinstance(node, Joined):
            return Joined(node.args, self._axis(node.whole), self._axis(node.part))
        return node

    def reduces(self, recorded: Sequence[tuple[Reduce, tuple[AxisVar, ...]]], final: Renaming) -> list[Reduce]:
        found = [
            Reduce(
                final.names[r.name], r.kind, self.expr(r.expr, final), tuple(sorted(self.names[a] for a in leaves(o)))
            )
            for r, o in recorded
        ]
        if any(reduce.kind == SCAN and not isinstance(reduce.expr.children[-1], Index) for reduce in found):
            raise in_groups(self.tracer.where)
        return found

    def outputs(self, results: Sequence[Result], kind: str, final: Renaming, taken: set[str]) -> list[Output]:
        outputs: list[Output] = []
        names = set(taken)
        base = ""
        for position, (value, packed) in enumerate(results):
            wanted = "out" if kind == "one" else f"out_{position}"
            local = self.tracer.names.get(value.expr)
            if local and local not in names and not isinstance(value.expr, Ref):
                wanted = local
            if packed:
                if packed.index == 0:
                    base = safe_name(packed.base, names)
                packed = replace(packed, base=base)
                wanted = f"{base}_{packed.index}"
            wanted = safe_name(wanted, names)
            names.add(wanted)
            expr = self.expr(convert(value.expr, value.dtype), final)
            outputs.append(Output(wanted, expr, value.dtype, self.shape(value.dims), packed, _groups(value.dims)))
        return outputs

    # -- declared gradients -------------------------------------------------------------------------------------------

    def _declared(self, node: Recorded) -> Declared:
        """A result with a declared gradient: until here the node names its call, and has all of the call's inputs."""
        call = self.tracer.calls[node.call]
        if node.call not in self.gradients:
            self.gradients[node.call] = self._gradient(call)
        gradient, names = self.gradients[node.call]
        value, *given = node.args
        known = dict(zip(call.inputs, given, strict=True))
        inputs = [known[name] for name in names]
        for i, scalar in enumerate(gradient.scalars, start=len(inputs) - len(gradient.scalars)):
            inputs[i] = convert(inputs[i], scalar.dtype)
        targets = tuple(names.index(name) for name in call.gradients)
        return Declared((value, *inputs), gradient, targets, node.call, node.result)

    def _gradient(self, call: CalledWith) -> tuple[Op, list[str]]:
        """The gradient of a call, and the inputs that it concerns: float tensors, and what it reads."""
        exprs = [value.expr for value in call.gradients.values()] + [reduce.expr for reduce, _ in call.reduces]
        read = set(refs(*exprs))
        tensors = {n: v for n, v in call.inputs.items() if not v.weak and (v.dtype.is_float or v.expr in read)}
        numbers = {n: v for n, v in call.inputs.items() if v.weak and v.expr in read}
        taken = {*tensors, *numbers}
        final = {_name(value): name for name, value in (tensors | numbers).items()}
        for name, value in call.cotangents.items():
            final[_name(value)] = safe_name(name, taken)
            taken.add(final[_name(value)])
        results = {name: safe_name(f"d_{name}", taken) for name in call.gradients}
        taken |= set(results.values())
        final |= _reduce_names(call.reduces, call.names, set(), taken)
        renaming = Renaming(final)
        outputs = [
            Output(results[name], self.expr(value.expr, renaming), value.dtype, self.shape(value.dims))
            for name, value in call.gradients.items()
        ]
        scalars = [Scalar(name, value.expr.dtype) for name, value in numbers.items()]
        names = {self.expr(e, renaming): n for e, n in call.names.items() if not isinstance(e, Ref)}
        scalars, reduces, outputs, names = in_double(scalars, self.reduces(call.reduces, renaming), outputs, names)
        statements, bound = introduce_lets(live_reduces(reduces, outputs), outputs, names, taken)
        operands = [
            Operand(final[_name(value)], value.dtype, self.shape(value.dims))
            for value in (*call.cotangents.values(), *tensors.values())
        ]
        gradient = Op(
            call.name, "backward", tuple(operands), tuple(scalars), tuple(statements), tuple(bound), "tuple",
            call.declared,
        )  # fmt: skip
        return gradient, [*tensors, *numbers]


def _name(value: Value) -> str:
    """What a symbol is called while it is traced."""
    assert isinstance(value.expr, Ref)
    return value.expr.name


def _axis_names(tracer: Tracer, results: Sequence[Dims]) -> dict[AxisVar, str]:
    """d0, d1, ... in the order of the results, and of the widest operands: what lies in memory between two steps lies
    in the order of these names, so that whoever writes results, and reads operands, goes along them."""
    operands = [_entries(dims) for _, dims in tracer.operands]
    written = sorted(map(_entries, results), key=len, reverse=True)
    several = [dims for dims in written if len(leaves(dims)) > 1]  # a single axis says nothing about an order
    shapes = [*several, *sorted(operands, key=len, reverse=True), *written]
    names: dict[AxisVar, str] = {}
    carried = set(leaves(dim for _, dims in tracer.operands for dim in dims))
    told = set(leaves(tracer.told))
    rank = max((len(dims) for dims in shapes), default=0)
    order: list[AxisVar] = []
    least: dict[AxisVar, int] = {}
    for dims in sorted(shapes, key=len, reverse=True):
        for position, dim in enumerate(dims, start=rank - len(dims)):
            if dim is not None:
                least.setdefault(dim, position)
    for dims in shapes:
        _merge(order, [dim for dim in dims if dim is not None])
    numbers: set[int] = set()

    def name(dim: AxisVar, number: int) -> None:
        if dim not in names:
            numbers.add(number)
            says = dim in told or (dim.made and dim not in carried)
            names[dim] = axis_name(number, dim.size if says else None)

    for dim in order:
        name(dim, max(least[dim], max(numbers, default=-1) + 1))
    recorded = [tracer.reduces, *(call.reduces for call in tracer.calls)]
    for _, over in (reduce for reduces in recorded for reduce in reduces):  # what only a product has
        for axis in leaves(over):
            name(axis, max(rank, max(numbers, default=-1) + 1))
    for _, dims in tracer.distinct:  # of products' results: what nothing else has
        for axis in leaves(dims):
            name(axis, max(rank, max(numbers, default=-1) + 1))
    for whole, part, _ in tracer.divisions:
        for axis in leaves([whole, part]):
            name(axis, max(rank, max(numbers, default=-1) + 1))
    return names


def _merge(order: list[AxisVar], dims: Sequence[AxisVar]) -> None:
    """Put what is not there yet where ``dims`` have it: right before what follows it there, else at the end."""
    following = len(order)
    for dim in reversed(dims):
        if dim in order:
            following = order.index(dim)
        else:
            order.insert(following, dim)


def _entries(dims: Dims) -> Dims:
    """Dimensions with those in groups as what they are made of."""
    return tuple(entry for dim in dims for entry in (dim.entries if dim else (None,)))


def _groups(dims: Dims) -> tuple[Groups, ...]:
    """Which dimensions are in groups."""
    made = [(at, dim.entries) for at, dim in enumerate(dims) if dim]
    return tuple(
        Groups(at, tuple(entry.size if entry else 1 for entry in entries[:-1]))
        for at, entries in made
        if len(entries) > 1
    )


def _mirror(tracer: Tracer) -> None:
    """See to it that what a product calls otherwise than its factors do is in the same groups there.

    Raises:
        DeclarationError: it cannot be.
    """
    changed = True
    while changed:
        changed = False
        for own, new in tracer.mirrored:
            try:
                changed |= mirror(own, new)
            except NotNested:
                with tracing(tracer):
                    raise not_nested("matmul", (own, new)) from None


def _used_operands(operands: list[Operand], statements: Sequence[Any], outputs: Sequence[Output]) -> list[Operand]:
    """Operands that are read, and arguments that nothing reads (they still are arguments). Not a packed tensor whose
    parts are read instead, nor parts that are not; but what alone tells the size of a result's axis.
    """
    read = names_read([*statements, *outputs])
    packed = {operand.packed.base for operand in operands if operand.packed}
    used = [o for o in operands if o.name in read or (o.packed is None and o.name not in packed)]
    return with_carriers(used, operands, {axis for axis in shaped_axes(outputs) if own_size(axis) is None})

"""An op with matrix products, as steps: products, and between them ops without any.

A product reads tensors, so what the op computes for a factor is written to memory by the step before it; what the op
does with a product is the epilogue, an op like any other that reads the product. Everything is computed in the first
step that can: reductions of a cotangent, for instance, share the pass that prepares a factor. Products that are only
added up need no epilogue: each but the first adds to what those before it left.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from fusegen.core import dtypes
from fusegen.core.casts import rounded, unrounded
from fusegen.core.declared import without_declared_gradients
from fusegen.core.dtypes import DType
from fusegen.core.ir import (
    SCAN,
    STORED,
    Call,
    Const,
    Expr,
    Factor,
    Index,
    Op,
    Operand,
    Output,
    PackedBlock,
    Reduce,
    Ref,
    Size,
    asked_axes,
    call,
    const,
    expr_axes,
    is_call,
    names_read,
    own_size,
    refs,
    shaped_axes,
    substitute,
    transform,
    walk,
    with_carriers,
)
from fusegen.core.one_term import reads, scatters
from fusegen.core.products import KIND, biases, stored_as
from fusegen.core.subexpressions import introduce_lets, live_reduces, safe_name
from fusegen.derive.exact import as_written
from fusegen.derive.guards import without_guards
from fusegen.fuse.cuts import is_cut
from fusegen.fuse.rows import in_order
from fusegen.fuse.scans import (
    MOST_READ,
    MOST_TOUCHED,
    ScanGroup,
    Shift,
    element,
    grouped,
    leaves_of,
    neighbour,
    running,
    shifted,
    touched,
)
from fusegen.fuse.scatter_steps import with_bases, with_places
from fusegen.fuse.steps import Chain, Product, Scan, Scatter, Source
from fusegen.fuse.stored_values import with_stored_values

# The kind of a scatter's reduction, as steps have it; and what op are cut at.
SCATTER = "scatter"
_CUT = (KIND, SCATTER, SCAN, STORED)
# More blocks than these of one factor are not written one by one.
MOST_BLOCKS = 16


def sides(reduce: Reduce) -> tuple[Factor, ...]:
    """What a step that is no kernel reads."""
    return tuple(node for node in reduce.expr.children if isinstance(node, Factor))


@lru_cache(maxsize=1024)
def chain(op: Op, *, adds_biases: bool = True) -> Chain | None:
    """``op`` as steps; None where it has no products.

    Args:
        adds_biases: whether the routine that multiplies halves can add a bias before it rounds.
    """
    if not is_cut(op):
        return None
    # Before elements and their extremum come apart.
    op = with_stored_values(as_written(without_guards(without_declared_gradients(op)), split=True))
    known = biases(op) if adds_biases else {}
    shifts = shifted(op)
    while True:
        splitter = _Splitter(op, known, shifts)
        found = splitter.split()
        if not splitter.astray:
            return with_places(with_bases(found))
        shifts = {ref: shift for ref, shift in shifts.items() if ref.name not in splitter.astray}


class _Splitter:
    """State of one ``chain``: after how many rounds of products a thing can be computed, and where it is then."""

    def __init__(self, op: Op, biases: Mapping[str, tuple[Expr, str]], shifts: Mapping[Ref, Shift]) -> None:
        self.op, self.biases, self.shifts = op, biases, shifts
        self.numbers = {scalar.ref for scalar in op.scalars}
        self.astray: set[str] = set()  # shifts that other kernels than scans read
        self.axes, self.names = op.axes_of(), op.names()
        self.stored: dict[Expr, Operand] = {}
        self.into: dict[Expr, Operand] = {}  # where products go, which for one of a sum is where the sum is
        self.multiplied: set[Expr] = set()  # what products leave: their results, and sums of them
        reduces, self.outputs = op.expand()
        self.scatters, self.again = scatters(op), reads(op, of_rows=True)  # each step reads them anew
        self.combining = {r.name: r.kind for r in reduces if r.name in self.scatters}
        groups = grouped([r for r in reduces if r.kind == SCAN and r.ref not in shifts])
        self.scans = {reduce.name: group for group in groups for reduce in group.reduces}
        self.scanned: dict[str, tuple[Expr, ...]] = {}
        self.attached: dict[str, list[Output]] = {group.name: [] for group in groups}  # what scans' kernels write
        reduces = [self._scatter(r) if r.name in self.scatters else r for r in reduces]
        reduces = [self._scan(r) if r.name in self.scans else r for r in reduces]
        self.dots = [r for r in reduces if r.kind in _CUT and r.ref not in shifts]
        self.reduces = [r for r in reduces if r.kind not in _CUT]
        self.taken = {thing.name for thing in (*op.operands, *op.scalars, *op.outputs, *self.reduces)}
        self.level: dict[str, int] = {}
        for reduce in reduces:
            is_step = reduce.kind in _CUT and reduce.ref not in shifts
            self.level[reduce.name] = self._level(reduce.expr) + is_step

    def split(self) -> Chain:
        direct = self._place_sums() | self._place_products()
        written = self._place_factors()
        results = [o for o in self.outputs if o.name not in direct] + written
        self._attach(results)
        attached = {output.name for outputs in self.attached.values() for output in outputs}
        steps: list[Op | Product] = []
        begun: set[str] = set()
        last = max(self.level.values(), default=0)
        multiplied: list[Product] = []
        for level in range(last + 1):
            mine = [o for o in results if self._level(o.expr) == level and o.name not in attached]
            mine += self._hand_on(level, results)
            part = [self._part(level, last, mine)] if mine else []
            steps += [*_read_last(multiplied, part), *part]
            multiplied = []
            for dot in self.dots:
                if dot.kind == STORED:  # by the step before
                    continue
                if self.level[dot.name] == level + 1 and dot.name not in self.scans:
                    multiplied.append(self._product(dot, begun))
                    begun.add(self.into[dot.ref].name)
                elif self.level[dot.name] == level + 1 and dot.name == self.scans[dot.name].name:
                    multiplied.append(self._scan_step(dot))
        steps += multiplied
        own = {output.name for output in self.outputs}
        between = dict.fromkeys(o for o in self.stored.values() if o.name not in own)
        return Chain(self.op, tuple(steps), tuple(between))

    def _scatter(self, reduce: Reduce) -> Reduce:
        """A scatter as a product is: of the places, and of what is combined there."""
        _, place, value = self.scatters[reduce.name]
        operands = {operand.ref: operand for operand in self.op.operands}
        given = place.args[0] if is_call(place, "cast") and place.args[0] in operands else place
        places = Factor(given, operands[given].dtype if given in operands else place.dtype)
        updates = Factor(value, operands[value].dtype if value in operands else value.dtype)
        return replace(reduce, kind=SCATTER, expr=call(SCATTER, places, updates, dtype=reduce.expr.dtype))

    def _scan(self, reduce: Reduce) -> Reduce:
        """A scan as a product is, of the tensors that its values are made of."""
        operands = {operand.ref: operand for operand in self.op.operands}
        taken, tensors = self.scans[reduce.name].taken, dict[Expr, int]()
        values = []
        for value in taken.values:
            leaves = self._read_on_the_way(value, taken.axis)
            values.append(substitute(value, self._elements(leaves or [value], taken.axis, tensors)))
        self.scanned[reduce.name] = tuple(values)
        sources = [Factor(of, operands[of].dtype if of in operands else of.dtype) for of in tensors]
        return replace(reduce, expr=call(SCAN, *sources, dtype=reduce.expr.dtype))

    def _read_on_the_way(self, value: Expr, axis: str) -> list[Expr] | None:
        """The leaves of which a scan computes a value as it reads elements; None where that is no such value."""
        leaves = self._leaves(value, axis)
        return leaves if leaves and len(touched(leaves, self.shifts) - self.numbers) <= MOST_READ else None

    def _leaves(self, expr: Expr, axis: str) -> list[Expr] | None:
        """Those that a scan along an axis computes an expression of, element by element; None where it cannot."""
        totals = {total for total, _ in self.biases.values()}  # where there are no such products without their bias
        leaves = leaves_of(expr, axis, self.numbers, totals)
        turned = any(leaf in self.shifts and self._shift(leaf, axis) is None for leaf in leaves or ())
        return None if turned else leaves

    def _shift(self, leaf: Expr, axis: str) -> Shift | None:
        """The shift that a leaf is for a scan along an axis, whose kernel has no neighbours along others."""
        shift = self.shifts.get(leaf) if isinstance(leaf, Ref) else None
        return shift if shift is not None and shift.axis == axis else None

    def _elements(self, leaves: Iterable[Expr], axis: str, tensors: dict[Expr, int]) -> dict[Expr, Expr]:
        """What expressions of a scan along an axis call leaves.

        Args:
            tensors: the places of those that are read, to which new ones are added.
        """
        found: dict[Expr, Expr] = {}
        for leaf in leaves:
            if leaf in self.numbers:
                continue
            shift = self._shift(leaf, axis)
            tensor = shift.of if shift else leaf
            tensor = self.stored[tensor].ref if tensor in self.stored else tensor
            place = tensors.setdefault(tensor, len(tensors))
            found[leaf] = Ref(neighbour(element(place), shift.way) if shift else element(place), leaf.dtype)
        return found

    def _attach(self, results: Sequence[Output]) -> None:
        """Say which results the kernels of scans write, made of what they have of each element: all that follow from
        one, where no other kernel reads what it leaves, or else those that read nothing new. Also results for which a
        kernel before would read what this one does, where that kernel has no others."""
        for group in dict.fromkeys(self.scans.values()):
            own, level = set(group.refs), self.level[group.name]
            behind = [o for o in results if self._level(o.expr) == level and not own.isdisjoint(refs(o.expr))]
            others = [r.expr for r in self.reduces if self.level[r.name] == level]
            others += [o.expr for o in behind if self._leaves_behind(o, group) is None]
            self._attach_to(group, behind, only_read=not own.isdisjoint(refs(*others)))
        for group in dict.fromkeys(self.scans.values()):
            alone, beside = self._left_alone(results, self.level[group.name] - 1), self._read_beside(group)
            if alone and all(o.name not in beside and self._leaves_behind(o, group) is not None for o in alone):
                self._attach_to(group, alone, only_read=False)
        self._forget_unread(results)

    def _attach_to(self, group: ScanGroup, results: Sequence[Output], only_read: bool) -> None:
        """Let a scan's kernel write these results if it can, and if it has room for what they read.

        Args:
            only_read: those alone that read nothing which it does not read anyway.
        """
        own = {*group.refs, *self.numbers}
        dot = next(dot for dot in self.dots if dot.name == group.name)
        read: set[Expr] = {side.expr for side in sides(dot)}
        found = list(self.attached[group.name])
        for output in results:
            leaves = self._leaves_behind(output, group)
            if leaves is not None and (not only_read or touched(leaves, self.shifts) <= read | own):
                found.append(output)
        for output in found:
            read |= touched(self._leaves_behind(output, group) or (), self.shifts) - own
        if len(read) + len(found) <= MOST_TOUCHED:
            self.attached[group.name] = found

    def _left_alone(self, results: Sequence[Output], level: int) -> list[Output]:
        """The results that kernels of a step compute, where they are results of the op and all that the step does."""
        attached = {output.name for outputs in self.attached.values() for output in outputs}
        mine = [o for o in results if self._level(o.expr) == level and o.name not in attached]
        own = {output.name for output in self.outputs}
        does_more = any(self.level[reduce.name] == level for reduce in self.reduces)
        return mine if not does_more and all(o.name in own for o in mine) else []

    def _read_beside(self, group: ScanGroup) -> set[str]:
        """The tensors that steps of a scan's round read, itself among them: its kernel may write none of them, as
        another step may come first."""
        found = [self._found(side) for dot in self.dots if self._is_beside(dot, group) for side in sides(dot)]
        return {tensor.name for tensor in found if tensor is not None}

    def _is_beside(self, dot: Reduce, group: ScanGroup) -> bool:
        return self.level[dot.name] == self.level[group.name]

    def _leaves_behind(self, output: Output, group: ScanGroup) -> list[Expr] | None:
        """What a result is made of that a scan's kernel can write: of its own results, and of what was there before."""
        level = self.level[group.name]
        shape = {axis for axis in output.shape if axis}
        if output.packed is not None or shape != self.axes[group.name]:
            return None
        leaves = self._leaves(output.expr, group.taken.axis)
        for leaf in leaves or ():
            is_there = isinstance(leaf, Ref) and leaf.name not in self.again and self.level.get(leaf.name, 0) < level
            if leaf not in group.refs and not is_there:
                return None
        return leaves

    def _forget_unread(self, results: Sequence[Output]) -> None:
        """Do not store what scans leave where nothing but what they compute of it is read."""
        attached = {name: {output.name for output in outputs} for name, outputs in self.attached.items()}
        alone = set[str]().union(*attached.values())
        own = {output.name for output in self.outputs}
        exprs = [o.expr for o in results if o.name not in alone] + [reduce.expr for reduce in self.reduces]
        exprs += [side.expr for dot in self.dots for side in sides(dot) if isinstance(side.expr, Ref)]
        for group in dict.fromkeys(self.scans.values()):
            elsewhere = [o.expr for name, outputs in self.attached.items() if name != group.name for o in outputs]
            read = touched(refs(*exprs, *elsewhere), self.shifts)
            for ref in group.refs:
                if ref not in read and self.stored[ref].name not in own:
                    del self.stored[ref]

    def _stored_as(self, dot: Reduce) -> DType:
        """The dtype in which a product's result lies in memory: a scatter's is rounded to that of the result of the op
        that it alone makes up."""
        if dot.kind == KIND:
            return stored_as(dot)
        exprs = [item.expr for item in (*self.reduces, *self.dots, *self.outputs)]
        alone = [o.dtype for o in self.outputs if o.expr is dot.ref and o.packed is None]
        is_read = sum(dot.ref in refs(expr) for expr in exprs) > len(alone)
        return alone[0] if len(set(alone)) == 1 and not is_read else dot.expr.dtype

    def _level(self, expr: Expr) -> int:
        return max((self.level[ref.name] for ref in refs(expr) if ref.name in self.level), default=0)

    def _intermediate(self, wanted: str, dtype: DType, axes: Iterable[str]) -> Operand:
        """A tensor between steps."""
        name = safe_name(wanted, self.taken)
        self.taken.add(name)
        return Operand(name, dtype, in_order(axes))

    def _home(self, exprs: Container[Expr], dtype: DType, axes: frozenset[str]) -> Operand | None:
        """An output that is just this tensor."""
        for o in self.outputs:
            if o.expr in exprs and o.packed is None and o.dtype is dtype and set(o.shape) - {None} == axes:
                return Operand(o.name, dtype, o.shape, groups=o.groups)
        return None

    def _place_products(self) -> set[str]:
        """Say where each product goes: into an output that is nothing else, or between steps. Returns such outputs."""
        alone = [dot for dot in self.dots if dot.ref not in self.into and dot.kind != STORED]
        found: set[str] = set()
        for dot in alone:
            total, _ = self.biases.get(dot.name, (dot.ref, ""))
            found |= self._place(total, [dot], dot.name if total is dot.ref else self.names.get(total, "sum"))
        return found

    def _place(self, expr: Expr, dots: Sequence[Reduce], name: str) -> set[str]:
        """Say where ``dots``, which add up to ``expr``, go; the name of the output if they go into one."""
        dtype, axes = self._stored_as(dots[0]), self.axes[dots[0].name]
        home = self._home({expr, rounded(expr, dtype)}, dtype, axes)
        self.stored[expr] = home or self._intermediate(name, dtype, axes)
        self.into.update({dot.ref: self.stored[expr] for dot in dots})
        self.multiplied.add(expr)
        return {home.name} if home else set()

    def _place_sums(self) -> set[str]:
        """The same for outputs and factors that are sums of products which nothing else reads."""
        direct: set[str] = set()
        found = [(o.expr, o.dtype) for o in self.outputs if o.packed is None]
        found += [(side.expr, side.stored) for dot in self.dots for side in sides(dot)]
        for expr, dtype in found:
            total = unrounded(expr, dtype)
            dots = self._summands(total, dtype)
            if dots and total not in self.stored and not self._reads_besides(total, dtype, dots):
                direct |= self._place(total, dots, self.names.get(total, "total"))
        return direct

    def _summands(self, total: Expr, dtype: DType) -> list[Reduce]:
        """The products that add up to ``total``, all of its shape and dtype; none if it is anything else."""
        dots: dict[Expr, Reduce] = {dot.ref: dot for dot in self.dots if dot.kind == KIND and stored_as(dot) is dtype}
        axes, terms = expr_axes(total, self.axes), [total]
        found: list[Reduce] = []
        while terms:
            term = terms.pop()
            dot = dots.pop(unrounded(term, dtype), None)
            if dot is not None and self.axes[dot.name] == axes:
                found.append(dot)
            elif is_call(term, "add"):
                terms += term.args
            else:
                return []
        return found if len(found) > 1 else []

    def _reads_besides(self, total: Expr, dtype: DType, dots: Sequence[Reduce]) -> bool:
        """Whether one of a sum's products is read by anything but the sum, as it is after it has been stored."""
        written = [(o.expr, o.dtype) for o in self.outputs]
        written += [(side.expr, side.stored) for dot in self.dots for side in sides(dot)]
        exprs = [expr for expr, kind in written if expr is not total or kind is not dtype]
        exprs += [reduce.expr for reduce in self.reduces]
        stored: dict[Expr, Expr] = {rounded(total, dtype): const(0, total.dtype)}
        return not {dot.ref for dot in dots}.isdisjoint(refs(*(substitute(expr, stored) for expr in exprs)))

    def _place_factors(self) -> list[Output]:
        """Factors that have to be computed first, as results."""
        written: list[Output] = []
        for each, side in ((dot, side) for dot in self.dots for side in sides(dot)):
            key = _key(side)
            if self._found(side) is not None:
                continue
            axes = expr_axes(side.expr, self.axes)
            home = self._home({side.expr}, side.stored, axes)
            if home is None:
                wanted = each.name if each.kind == STORED else self.names.get(side.expr, "factor")
                home = self._intermediate(wanted, side.stored, axes)
                written += self._in_blocks(Output(home.name, side.expr, home.dtype, home.shape))
            self.stored[key] = home
        for dot in self.dots:
            if dot.kind == STORED and (value := self._found(*sides(dot))) is not None:
                self.stored[dot.ref] = value
                self.multiplied.add(dot.ref)
        return written

    def _in_blocks(self, output: Output) -> list[Output]:
        """An output as its blocks along an axis of constant size, each element of which says what it is by its number:
        so the gradients of gates are written side by side by the pass that computes them."""
        for place, axis in enumerate(output.shape):
            count = own_size(axis) if axis else None
            if axis and count and 1 < count <= MOST_BLOCKS and _is_numbered(output.expr, axis, self.axes):
                shape = (*output.shape[:place], None, *output.shape[place + 1 :])
                blocks = []
                for index in range(count):
                    packed = PackedBlock(output.name, place, index, count)
                    name = safe_name(f"{output.name}_{index}", self.taken)
                    self.taken.add(name)
                    expr = at_number(output.expr, axis, index)
                    blocks.append(replace(output, name=name, expr=expr, shape=shape, packed=packed))
                return blocks
        return [output]

    def _found(self, side: Factor) -> Operand | None:
        """The tensor that a factor is: an argument, a product's result, or one that a step has written."""
        argument = next((o for o in self.op.operands if o.ref is side.expr), None)
        if argument is not None and argument.dtype is side.stored:
            return argument
        product = self.stored.get(unrounded(side.expr, side.stored))
        return product if product is not None and product.dtype is side.stored else self.stored.get(_key(side))

    def _hand_on(self, level: int, results: Sequence[Output]) -> list[Output]:
        """Reductions of this step that later steps read, as results."""
        later = [o.expr for o in results if self._level(o.expr) > level]
        later += [r.expr for r in self.reduces if self.level[r.name] > level]
        needed = {ref.name for ref in refs(*later)}
        found = []
        for reduce in self.reduces:
            if reduce.ref in self.stored or reduce.name in self.again:  # it is a product's factor, and written as such
                continue
            if self.level[reduce.name] == level and reduce.name in needed:
                shape = in_order(self.axes[reduce.name])
                self.stored[reduce.ref] = Operand(reduce.name, reduce.expr.dtype, shape)
                if all(o.name != reduce.name for o in results):  # the forward keeps it anyway
                    found.append(Output(reduce.name, reduce.ref, reduce.expr.dtype, shape))
        return found

    def _read_at(self, level: int, *, multiplied: bool = True) -> dict[Expr, Expr]:
        """What kernels read rather than compute.

        Args:
            multiplied: what products leave for this step is among it.
        """
        values: dict[Expr, Expr] = {}
        for expr, operand in self.stored.items():
            if self._level(expr) < level + (multiplied and expr in self.multiplied):
                values[expr] = values[rounded(expr, operand.dtype)] = operand.ref
        return values

    def _part(self, level: int, last: int, results: Sequence[Output]) -> Op:
        """The op of one step."""
        values = self._read_at(level)
        outputs = [replace(o, expr=substitute(o.expr, values)) for o in results]
        here = [r for r in self.reduces if self.level[r.name] == level or r.name in self.again]
        mine = [replace(r, expr=substitute(r.expr, values)) for r in here if self.level[r.name] <= level]
        mine = live_reduces(mine, outputs)
        read = names_read([*mine, *outputs]) - {reduce.name for reduce in mine}
        self.astray |= read & {ref.name for ref in self.shifts}
        given = {o.name: o for o in (*self.op.operands, *self.stored.values())}.values()
        needed = asked_axes([*mine, *outputs]) - shaped_axes(outputs)
        operands = with_carriers([o for o in given if o.name in read], self.op.operands, needed)
        names = {substitute(expr, values): name for expr, name in self.names.items()}
        names = {expr: name for expr, name in names.items() if isinstance(expr, Call)}
        scalars = tuple(s for s in self.op.scalars if s.name in read)
        taken = {thing.name for thing in (*operands, *scalars, *outputs)}
        statements, bound = introduce_lets(mine, outputs, names, taken)
        place = "prologue" if level == 0 else "epilogue" if level == last else f"between {level}"
        return replace(
            self.op, label=f"{self.op.label} {place}", operands=tuple(operands), scalars=scalars,
            statements=tuple(statements), outputs=tuple(bound), result="tuple",
        )  # fmt: skip

    def _scan_step(self, dot: Reduce) -> Scan:
        """A scan, with all that its kernel writes."""
        group, tensors = self.scans[dot.name], dict[Expr, int]()
        for place, side in enumerate(sides(dot)):
            found = self._found(side)
            assert found is not None
            tensors[found.ref] = place
        own: dict[Expr, Expr] = {ref: Ref(running(how), ref.dtype) for ref, how in group.refs.items()}
        outputs = []
        for ref in own:
            if ref in self.stored:
                home = self.stored[ref]
                outputs.append(Output(home.name, own[ref], home.dtype, home.shape, groups=home.groups))
        # What kernels of this round's scans write is in memory only behind them: each makes it anew.
        written = {
            o.name for other in self.scans.values() if self._is_beside(dot, other) for o in self.attached[other.name]
        }
        before = self._read_at(self.level[dot.name], multiplied=False)
        before = {expr: ref for expr, ref in before.items() if not (isinstance(ref, Ref) and ref.name in written)}
        for output in self.attached[dot.name]:
            expr = substitute(output.expr, before)
            leaves = [leaf for leaf in self._leaves(expr, group.taken.axis) or () if leaf not in own]
            outputs.append(
                replace(output, expr=substitute(expr, {**own, **self._elements(leaves, group.taken.axis, tensors)}))
            )
        sources = tuple(Source(tensor.name, ()) for tensor in tensors if isinstance(tensor, Ref))
        pairs = zip(group.reduces, group.hows, strict=True)
        results = tuple({how: (reduce.name, how) for reduce, how in pairs}.values())
        read = names_read(outputs) | {ref.name for ref in refs(*self.scanned[dot.name])}
        return Scan(
            outputs[0].name, sources[0], sources[-1], in_order(self.axes[dot.name]), (), axis=group.taken.axis,
            how=group.taken.how, dtype=group.taken.values[-1].dtype, sources=sources, values=self.scanned[dot.name],
            results=results, outputs=tuple(outputs),
            scalars=tuple(scalar for scalar in self.op.scalars if scalar.name in read),
        )  # fmt: skip

    def _product(self, dot: Reduce, begun: Container[str]) -> Product:
        result = self.into[dot.ref]
        sources = []
        for side in sides(dot):
            found = self._found(side)
            assert found is not None
            sources.append(Source(found.name, side.renames))
        axes = tuple(axis for axis in result.shape if axis)
        if dot.name in self.scatters:
            axis = self.scatters[dot.name][0]
            kind = self.combining[dot.name]
            onto = result.name in begun
            moves = kind == "sum" and _is_own_place(sides(dot)[0].expr, dot.over, axis)
            return Scatter(result.name, sources[0], sources[1], axes, dot.over, onto, axis=axis, kind=kind, moves=moves)
        bias = self.biases[dot.name][1] if dot.name in self.biases else ""
        return Product(result.name, sources[0], sources[1], axes, dot.over, result.name in begun, bias)


def _is_own_place(place: Expr, over: tuple[str, ...], axis: str) -> bool:
    """Whether the places of a scatter over one axis are that axis' positions, and lead to as many of another."""
    size = own_size(axis)
    return size is not None and over[1:] == () and place == Index(over[0]) and own_size(over[0]) == size


def _is_numbered(expr: Expr, axis: str, axes: Mapping[str, frozenset[str]]) -> bool:
    """Whether an expression varies along an axis because it compares its position with constants, and not otherwise."""
    nodes = list(walk([expr]))
    asking = [node for node in nodes if Index(axis) in node.children]
    along = [node for node in nodes if isinstance(node, Ref) and axis in axes.get(node.name, ())]
    compares = all(is_call(node, "eq") and any(isinstance(e, Const) for e in node.children) for node in asking)
    return bool(asking) and compares and not along and Size(axis) not in nodes


def at_number(expr: Expr, axis: str, number: int) -> Expr:
    """An expression at one position of an axis with which it compares constants, without what is not chosen there."""

    def rule(node: Expr) -> Expr:
        match node:
            case Index() if node.axis == axis:
                return const(number, dtypes.int64)
            case Call("eq", (Const() as a, Const() as b)):
                return const(a.value == b.value, dtypes.bool_)
            case Call("where", (Const() as condition, a, b)):
                return a if condition.value else b
            case Call("add", (Const() as zero, other)) | Call("add", (other, Const() as zero)) if not zero.value:
                return other
        return node

    return transform([expr], rule)[expr]


def _key(side: Factor) -> Expr:
    """What a computed factor is known by: the expression, as it is after it has been stored."""
    return rounded(unrounded(side.expr, side.stored), side.stored)


def _read_last(multiplied: Sequence[Product], ops: Sequence[Op]) -> list[Product]:
    """Products of which none reads another's result, right before the step that reads theirs, where there is one: what
    they leave may still be in a cache, and a library's routine may do both."""
    read = {operand.name for op in ops for operand in op.operands}
    return sorted(multiplied, key=lambda product: not read.isdisjoint(product.writes))

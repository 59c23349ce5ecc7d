"""Row kernels: what a thread computes of a row's elements, the stages of a row, and the sums over rows.

What stands around that, from where a row lies to the loops over its parts: generate/row_loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fusegen.core.ir import Let, Operand, Output, Reduce, Ref, Tensorlike, refs
from fusegen.fuse.kernel import Gathered, Position
from fusegen.fuse.row_kernel import Stage, picked_by
from fusegen.fuse.schedule import Access
from fusegen.generate.accumulators import Accumulator, plus
from fusegen.generate.names import Names
from fusegen.generate.row_reads import PART, RowReads
from fusegen.generate.segments import Segments
from fusegen.generate.traversal import Traversal
from fusegen.kernel_program.nodes import (
    AUTO,
    BLOCK_Y,
    THREAD,
    AddressOf,
    Assign,
    Binary,
    Convert,
    Declare,
    Do,
    For,
    If,
    Number,
    Plain,
    Statement,
    Symbol,
    Term,
    Value,
    Vector,
    every,
    invoke,
    total,
)

K = Symbol("k")
READ_AGAIN = Do(invoke("fg::read_again"))


@dataclass
class StageOfRow:
    """One stage of a row, as statements.

    Attributes:
        accumulators: declares what is kept of all its elements.
        chunks: the same of the elements of a chunk, where a row is read in chunks.
        traversal: the walk.
        settle: what the walk leads to, before another one.
        again: the other walk, if there is one.
        merges: a chunk's state into that of the row.
        combine: what the threads have, put together, and results.
        after: once a row.
    """

    traversal: Traversal
    accumulators: list[Statement] = field(default_factory=list)
    chunks: list[Statement] = field(default_factory=list)
    settle: list[Statement] = field(default_factory=list)
    again: Traversal | None = None
    merges: list[Statement] = field(default_factory=list)
    combine: list[Statement] = field(default_factory=list)
    after: list[Statement] = field(default_factory=list)


@dataclass
class RowParts(RowReads):
    """The statements of a row kernel, without the loops that they stand in."""

    indent: int = len("          ")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sites = 0
        if self.schedule.rows > 1:  # behind the last row threads have no elements, and sums of none
            self.printer = replace(self.printer, inside="end > 0")
        self.segments = Segments(self.kernel, self.schedule, self.names, self.value)

    def row_coordinates(self, things: Sequence[Tensorlike], position: str) -> list[Statement]:
        """Where a row is."""
        used = self.moving([thing.name for thing in things], self.kept_loops)
        return self.coordinates(0, self.schedule.loops - 1, Symbol(position), used)

    def row_reads(self, operands: Sequence[Operand]) -> list[Statement]:
        """What a row has once: constants, or what the next row will find."""
        found = list[Statement]()
        for o in operands:
            offset = self.offset(o.name, self.kept_loops)
            if self.schedule.prefetch:
                value = offset if isinstance(o, Position) else invoke("fg::load", self.pointer(o.name, offset))
                assert value is not None
                found.append(Assign(Symbol(f"{self.stem(o.name)}_next"), value))
            else:
                found += self.read(o, offset)
        return found

    # -- one traversal of the row ---------------------------------------------------------------------------------

    def _traversal(self, lets: Sequence[Let], items: Sequence[Reduce | Output], last: bool = False) -> Traversal:
        """What the lets and items read at an element, and the lets. Behind the last traversal nothing needs them."""
        plan, lets = self.schedule, self.still_needed(lets, items)
        needed = self.needed((*(let for let in lets if not self.is_known(let)), *items))
        found, loaded = Traversal(), []
        for operand in self.kernel.operands:
            if operand.name not in needed or not self.moving([operand.name], self.over_loops):
                continue
            if operand in (*self.ahead, *self.shared):
                self._take(operand, found)
            else:
                loaded.append(operand.name)
                self._load(operand, found)
        written = [item.name for item in items if isinstance(item, Output)]
        found.coordinates = self._element_coordinates([*loaded, *written])
        if plan.unaligned and (loaded or written):
            found.edge.insert(0, self._at_edge_coordinate())
        at_edges = plan.unaligned and not plan.chunked

        def held(stem: str) -> Term:
            return Symbol(f"{stem}_row").at(PART, *([K] if plan.vector > 1 else []))

        found.inner += self.element_lets(lets, held, not last)
        found.edge += self.element_lets(lets, lambda stem: Symbol(f"{stem}_edge"), at_edges and not last)
        kept = [] if last else self.keep(lets)
        found.kept = [self.declare_row(let) for let in kept]
        if at_edges:
            found.kept += [
                Declare(Plain(let.expr.dtype.ctype), f"{self.stem(let.name)}_edge", Number(0)) for let in kept
            ]
        return found

    def _take(self, operand: Operand, found: Traversal) -> None:
        """An element of what was read ahead."""
        name, ctype = self.stem(operand.name), Plain(operand.dtype.compute.ctype)

        def declared(place: Term) -> Statement:
            return Declare(ctype, self.variable(operand.name), invoke("fg::load", AddressOf(place)), constant=True)

        found.edge.append(declared(Symbol(f"{name}_edge")))
        if self.schedule.vector > 1:
            wide = invoke("fg::widen", self._held(operand))
            found.reads.append(Declare(AUTO, f"{name}_v", wide, constant=True))
            found.inner.append(self.vector_element(operand))
        else:
            found.inner.append(declared(Symbol(f"{name}_row").at(PART)))

    def _load(self, operand: Operand, found: Traversal) -> None:
        """An element from memory; short operands come from a cache after the first row."""
        name, offset = operand.name, self.offset(operand.name, range(self.fast + 1))
        access = self.schedule.placement(name).access
        found.edge += self.read(operand, offset)
        if self.schedule.vector == 1:
            found.inner += self.read(operand, offset)
        elif access is Access.ROW:
            found.reads += self.read_vector(operand, offset)
            found.inner.append(self.vector_element(operand))
        elif (
            self.schedule.unaligned
            and self.schedule.placement(name).moves[self.fast] == "1"
            and not isinstance(operand, (Gathered, Position))
        ):
            wide = invoke("fg::widen", self._across(name))
            found.reads.append(Declare(AUTO, f"{self.stem(name)}_v", wide, constant=True))
            found.inner.append(self.vector_element(operand))
        elif self.moving([name], [self.fast]):
            found.inner += self.read(operand, self.element_offset(name, offset, self.fast))
        else:
            found.reads += self.read(operand, offset)

    def stage(self, stage: Stage) -> StageOfRow:
        """The traversals of a stage. Where nothing waits for it, everything else is done in the same one."""
        kernel, split, chunked = self.kernel, self.schedule.split, self.schedule.chunked
        partners = {r.name: kernel.partners[r.name] for r in stage.reduces if r.name in kernel.partners}
        moments = [r for r in stage.reduces if r.kind == "squared_deviation"]
        alone = len(moments) == 1 and all(r in moments or r.name in partners for r in stage.reduces)
        if alone and self.schedule.cluster == 1 and not chunked:
            return self._in_two_steps(stage, moments[0], next(iter(partners), None))
        direct = not (kernel.row_tiles or split)
        picks = {r.name: pick for r in stage.reduces if direct and (pick := self._pick(r))}
        own = [r for r in stage.reduces if r.name not in picks]
        accumulators = [Accumulator(r, self.names) for r in own if r.name not in partners]
        coupled = [a for a in accumulators if a.is_coupled]
        if stage is kernel.final_stage:
            lets = list(dict.fromkeys([*stage.lets, *kernel.body]))
            walk = self._traversal(lets, [*kernel.pointwise, *kernel.columns, *kernel.segments, *own], last=True)
            self._end_of_traversal(walk)
        else:
            walk = self._traversal(stage.lets, own)
        values = {a.name: self.value(a.reduce.expr) for a in accumulators}
        held: dict[str, Symbol] = {a.name: Symbol(f"{a.stem}_chunk" if chunked else a.variable) for a in coupled}
        counted = [a for a in coupled if a.counts]
        walk.inner += [
            Do(held[a.name].call("see", values[a.name])) if a in coupled else a.add(values[a.name])
            for a in accumulators
        ]
        walk.writes += [Do(held[a.name].call("saw", Number(self.schedule.vector))) for a in counted]
        once = [] if chunked else coupled
        walk.edge += [
            Do(a.state().call("see", values[a.name])) if a in once else a.add(values[a.name]) for a in accumulators
        ]
        walk.edge += [Do(a.state().call("saw", Number(1))) for a in once if a.counts]
        again = None
        if coupled:
            again = self._traversal(stage.lets, [a.reduce for a in coupled])
            takes = ["take_fast" if self.printer.is_faster(a.reduce.expr.dtype) else "take" for a in coupled]
            again.each([Do(held[a.name].call(take, values[a.name])) for a, take in zip(coupled, takes, strict=True)])
        found = StageOfRow(walk, [a.declare() for a in accumulators], again=again)
        (found.chunks if chunked else found.accumulators).extend(walk.kept)
        found.chunks[:0] = [Declare(a.type, held[a.name].name) for a in coupled] if chunked else []
        for a in coupled if chunked else ():
            found.merges += [Do(held[a.name].call("finish")), Do(a.state().call("merge", held[a.name]))]
        found.settle = [Do(held[a.name].call("settle")) for a in coupled]
        found.settle += [READ_AGAIN] if coupled and self.schedule.staged else []
        found.combine = [Do(a.state().call("finish")) for a in coupled if not chunked]
        found.combine += self._combine(accumulators)
        if not split:
            found.combine += [Accumulator(of, self.names).partner(name) for name, of in partners.items()]
        found.combine += [line for pick in picks.values() for line in pick]
        found.after = [] if split else self.lets(stage.after)
        return found

    def _in_two_steps(self, stage: Stage, deviation: Reduce, partner: str | None) -> StageOfRow:
        """The sum, then squared deviations from the mean: two exchanges of numbers are less work than one of states.

        Where more than half types depend on it, deviations also say what rounding took off the mean.
        """
        exact, ctype = not self.printer.is_faster(deviation.expr.dtype), Plain(deviation.expr.dtype.ctype)
        value, stem = self.value(deviation.expr), self.stem(deviation.name)
        squares, sum_ = self.variable(deviation.name), self.variable(partner) if partner else f"{stem}_total"
        mean, compensation, away = Symbol(f"{stem}_mean"), Symbol(f"{stem}_rest"), Symbol("away")
        first, again = self._traversal(stage.lets, [deviation]), self._traversal(stage.lets, [deviation])
        first.each([Assign(Symbol(sum_), value, "+=")])
        again.each([
            Declare(ctype, "away", value - mean, constant=True),
            Assign(Symbol(squares), away * away, "+="),
            *([Assign(compensation, away, "+=")] if exact else []),
        ])  # fmt: skip
        sums = [squares, compensation.name] if exact else [squares]

        def share(of: Term) -> Term:
            return invoke("fg::divide_by_count", of, Convert(ctype.ctype, Symbol("n")))

        found = StageOfRow(first, [Declare(ctype, sum_, Number(0)), *first.kept], again=again)
        found.settle = [
            *self._exchange("sum", [sum_]),
            Declare(ctype, mean.name, share(Symbol(sum_)), constant=True),
            *(Declare(ctype, name, Number(0)) for name in sums),
            *([READ_AGAIN] if self.schedule.staged else []),
        ]
        found.combine = self._exchange("sum", sums)
        if exact:
            found.combine += [
                Assign(Symbol(squares), compensation * share(compensation), "-="),
                Assign(Symbol(sum_), compensation, "+="),
            ]
        found.after = self.lets(stage.after)
        return found

    def _pick(self, reduce: Reduce) -> list[Statement] | None:
        """A sum with one term, ``where(index == place, x, 0)``, as one access: the element at ``place``, if any."""
        picked, plan = picked_by(reduce, self.kernel), self.schedule
        if picked is None or plan.inner != 1:
            return None
        place, operand = picked
        if any(self._along(ref) for ref in refs(place)):
            return None
        at, name, ctype = Symbol(f"{self.stem(reduce.name)}_at"), operand.name, Plain(reduce.expr.dtype.ctype)
        value = Symbol(self.variable(reduce.name))
        stride = self.stride(name, self.fast)
        step = {"1": at, "s": at * stride}.get(plan.placement(name).moves[self.fast])
        if step is None:
            return None
        offset = total(each for each in (self.offset(name, self.kept_loops), step) if each is not None)

        def read(pointer: Term) -> Statement:
            is_there = every([Number(0) <= at, at < Symbol("n")])
            return If(is_there, (Assign(value, invoke("fg::load", pointer)),), brief=True)

        return [
            Declare(Plain("int64_t"), at.name, self.value(place), constant=True),
            Declare(ctype, value.name, Number(0)),
            *self.access(read, name, offset, called=f"{self.stem(reduce.name)}_offset"),
        ]

    def _along(self, ref: Ref) -> bool:
        """Whether a value changes within a row."""
        if any(ref.name == o.name for o in self.kernel.operands):
            return bool(self.moving([ref.name], self.over_loops))
        lets = {let.name for stage in self.kernel.stages for let in stage.lets} | {let.name for let in self.kernel.body}
        return ref.name in lets

    def _combine(self, accumulators: Sequence[Accumulator]) -> list[Statement]:
        """The states of the threads that share a row; states of one type share the exchange."""
        found = list[Statement]()
        for type_ in dict.fromkeys(a.type for a in accumulators):
            own = [a for a in accumulators if a.type == type_]
            found += self._exchange("sum" if own[0].is_sum else "merge", [a.variable for a in own])
        return found + [line for a in accumulators for line in a.result() if not self.schedule.split]

    def _exchange(self, how: str, names: Sequence[str]) -> list[Statement]:
        """What the threads that share a row have, put together, in all of them."""
        plan, site = self.schedule, self.sites
        self.sites += 1
        values = map(Symbol, names)
        if plan.cluster > 1:
            return [Do(invoke(f"fg::cluster_{how}", Symbol("link"), *values, of=(plan.threads, site)))]
        return [Do(invoke(f"fg::row_{how}", *values, of=(plan.threads, plan.rows, site)))]

    def last(self) -> Traversal | None:
        """The walk behind all stages, if there is one."""
        kernel = self.kernel
        items: list[Reduce | Output] = [*kernel.pointwise, *kernel.columns, *kernel.segments]
        if not items or kernel.final_stage:
            return None
        walk = self._traversal(kernel.body, items, last=True)
        self._end_of_traversal(walk)
        return walk

    def _end_of_traversal(self, walk: Traversal) -> None:
        for output in self.kernel.pointwise:
            self._write(output, walk)
        for reduce in self.kernel.columns:
            value = self.value(reduce.expr)
            walk.inner.append(self.column(reduce).add(value))
            walk.edge.append(plus(Symbol(f"{self.stem(reduce.name)}_edge"), value))
        self.segments.take(walk)

    def _write(self, output: Output, walk: Traversal) -> None:
        name, vector = output.name, self.schedule.vector
        offset = self.offset(name, range(self.fast + 1))
        walk.edge += self.store(output, offset)
        if vector > 1 and self.schedule.placement(name).access is Access.ROW:
            walk.declarations.append(Declare(Vector(output.dtype.compute.ctype, vector), f"{self.stem(name)}_v"))
            walk.inner.append(Assign(Symbol(f"{self.stem(name)}_v").at(K), self.value(output.expr)))
            walk.writes += self.write_vector(output, offset)
        else:
            at = self.element_offset(name, offset, self.fast) if vector > 1 else offset
            walk.inner += self.store(output, at)

    # -- the end of a row, and of all rows ------------------------------------------------------------------------

    def writer(self) -> Term:
        """Whether a thread is the one that writes a row's results."""
        terms = [THREAD.equals(0)]
        terms += [Symbol("end") > 0] if self.schedule.rows > 1 else []
        terms += [invoke("fg::cluster_rank").equals(0)] if self.schedule.cluster > 1 else []
        return every(terms)

    def ending(self) -> list[Statement]:
        """What that thread writes."""
        kernel, found = self.kernel, list[Statement]()
        position = Convert(self.schedule.index, BLOCK_Y) * Symbol("m") + Symbol("row")
        if self.schedule.split:
            return [line for r in kernel.states for line in Accumulator(r, self.names).store(position)]
        if kernel.row_tiles:
            reduces = kernel.stages[0].reduces if kernel.stages else ()
            return [Assign(self.partial(r).at(position), Symbol(self.variable(r.name))) for r in reduces]
        for output in kernel.outputs:
            found += self.store(output, self.offset(output.name, self.kept_loops))
        return found

    def partial(self, reduce: Reduce) -> Symbol:
        """The pointer to where later kernels find what this one has of a sum."""
        return Symbol(self.names.pointer(next(p.name for p in self.kernel.partials if p.expr is reduce.ref)))

    def row_end(self) -> list[Statement]:
        """Before the next row overwrites what threads exchange, all must have read it."""
        plan = self.schedule
        if not plan.persistent or not self.kernel.reduces:
            return []
        if plan.threads <= 32 or self.sites >= 2:
            return []
        several = plan.rows > 1
        return [Do(invoke("fg::row_barrier", of=(plan.threads, plan.rows)) if several else invoke("__syncthreads"))]

    def column(self, reduce: Reduce) -> Column:
        """What is kept of a sum over rows."""
        return Column(reduce, self.names, self.schedule.vector, self.schedule.unaligned)


@dataclass(frozen=True)
class Column:
    """The sums that a thread keeps of its positions in a row."""

    reduce: Reduce
    names: Names
    vector: int
    unaligned: bool

    @property
    def variable(self) -> Symbol:
        """What holds them."""
        return Symbol(f"{self.names.stem(self.reduce.name)}_{'v' if self.vector > 1 else 'sums'}")

    def declare(self, vectors_per_thread: int) -> list[Statement]:
        """Sums of nothing."""
        ctype = self.reduce.expr.dtype.ctype
        element = Vector(ctype, self.vector) if self.vector > 1 else Plain(ctype)
        edge = Declare(Plain(ctype), f"{self.names.stem(self.reduce.name)}_edge", Number(0))
        sums = Declare(element, self.variable.name, None, (vectors_per_thread,), zeros=True)
        return [sums, *([edge] if self.unaligned else [])]

    def add(self, value: Value) -> Statement:
        """One more row's element."""
        return plus(self.variable.at(PART, *([K] if self.vector > 1 else [])), value)

    def store(self, target: Term) -> list[Statement]:
        """The sums to the place of this group of rows in ``target``."""
        at = Symbol("group") * Symbol("n") + Symbol("at")
        own = self.variable.at(PART)
        if self.unaligned:
            each = Assign(target.at(Binary("+", at, K)), own.at(K))
            return [For("k", Plain("int"), Number(0), self.vector > K, None, (each,), brief=True)]
        if self.vector > 1:
            return [Do(invoke("fg::store_vector", target + at, own, of=(self.vector,)))]
        return [Assign(target.at(at), own)]

"""Kernels whose rows lie side by side: what a thread keeps of its results, and the traversals of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fusegen.core.ir import Let, Operand, Output, Reduce, Ref, refs
from fusegen.core.monoids import BY_KIND
from fusegen.fuse.kernel import Gathered, Position
from fusegen.fuse.row_kernel import Stage, picked_by
from fusegen.fuse.schedule import Access
from fusegen.fuse.strided_rows import StridedRowKernel, StridedRowSchedule, streams_of
from fusegen.generate.accumulators import Accumulator
from fusegen.generate.builder import Builder
from fusegen.generate.traversal import Traversal
from fusegen.kernel_program.nodes import (
    AUTO,
    BLANK,
    BLOCK,
    BREAK,
    GRID,
    RETURN,
    THREAD,
    THREAD_ROW,
    AddressOf,
    Assign,
    Choice,
    Comment,
    Convert,
    Declare,
    Do,
    Field,
    For,
    If,
    KernelProgram,
    Number,
    Plain,
    Statement,
    Symbol,
    Term,
    Type,
    Value,
    Vector,
    count,
    every,
    invoke,
    total,
)

AT, END, FIRST, K, M, N, PART, RESULT = map(Symbol, ("at", "end", "first", "k", "m", "n", "part", "result"))


class _Value(NamedTuple):
    """What each of a thread's results has one of: its variable, or where there are several what their vector's name
    begins with."""

    variable: str
    stem: str


@dataclass
class _Results:
    """What is done once for each of a thread's results.

    Attributes:
        declarations: before it.
        each: for the k-th of them.
        writes: behind it.
    """

    declarations: list[Statement] = field(default_factory=list)
    each: list[Statement] = field(default_factory=list)
    writes: list[Statement] = field(default_factory=list)


@dataclass
class _Stage:
    """One stage: a traversal, its exchange, what that settles, perhaps another traversal, and results."""

    traversal: Traversal
    again: Traversal | None
    declarations: list[Statement] = field(default_factory=list)
    exchange: list[Statement] = field(default_factory=list)
    settle: _Results = field(default_factory=_Results)
    combine: list[Statement] = field(default_factory=list)
    results: _Results = field(default_factory=_Results)
    # What is exchanged at the end, by how and of which type.
    late: dict[tuple[str, str], list[Term]] = field(default_factory=dict)


@dataclass
class StridedRows(Builder):
    """Makes the program of strided rows. A thread's results are numbered by k. Where there are several, each value that
    a thread has for a result is a vector, and expressions read its k-th element."""

    kernel: StridedRowKernel
    schedule: StridedRowSchedule
    indent: int = len("        ")

    def __post_init__(self) -> None:
        super().__post_init__()
        plan, kernel = self.schedule, self.kernel
        self.sites = 0
        # Behind the last result threads have no elements, and sums of none.
        self.guards = [] if plan.exact or not (plan.persistent or plan.rows > 1) else [END > 0]
        self.printer = replace(self.printer, inside="end > 0" if self.guards else "")
        self.kept_loops, self.fast = range(plan.loops), plan.loops - 1
        self.over_loops = range(plan.loops, plan.loops + plan.inner)
        self.streams = streams_of(kernel, plan)
        own = [*kernel.before, *(let for stage in kernel.stages for let in stage.after), *kernel.reduces]
        varying = [o for o in self._fixed() if self._varies(o)]
        if plan.vector > 1:
            self.in_vectors = {thing.name for thing in (*own, *varying)}

    def _fixed(self) -> list[Operand]:
        """Operands that are the same for all elements of a result."""
        return [o for o in self.kernel.operands if not self.moving([o.name], self.over_loops)]

    def _varies(self, operand: Operand) -> bool:
        """Whether neighbouring results have different elements of it."""
        return bool(self.moving([operand.name], [self.fast]))

    def program(self) -> KernelProgram:
        """All of it."""
        plan = self.schedule
        singles = [o for o in self._fixed() if not self.moving([o.name], self.kept_loops)]
        own = f"{plan.vector} neighbouring results" if plan.vector > 1 else "a result"
        if plan.rows > 1:
            words = f"{plan.rows} threads own {own} and share the elements, which stay in registers."
        else:
            words = f"A thread owns {own}, whose elements stay in registers."
        body = [*self.located(), *self.start(plan.follows), *self.read_once(singles)]
        body.append(Comment(words))
        row = self._row(singles)
        if not plan.persistent:
            results = Number(plan.block_width * plan.vector)
            if plan.rows > 1:
                body.append(self.constant(FIRST, results * Convert(plan.index, BLOCK)))
            body += [*self._located_result(), *row]
        else:
            results = Number(plan.block_width * plan.vector)
            totals = [a.declare() for a in self._totals()]
            first, step = results * Convert(plan.index, BLOCK), results * Convert(plan.index, GRID)
            every_result = (*self._located_result(), *row)
            body += [
                *totals,
                For("first", Plain(plan.index), first, FIRST < M, step, every_result),
                *self._sums(),
                BLANK,
            ]
            writer = every([THREAD.equals(0), *([THREAD_ROW.equals(0)] if plan.rows > 1 else [])])
            body.append(If(writer, tuple(self._left())))
        return self.made((plan.block_width, plan.rows), tuple(body), plan.resident)

    def _located_result(self) -> list[Statement]:
        """Which results a thread has."""
        plan = self.schedule
        mine: Term = plan.vector * THREAD if plan.vector > 1 else THREAD
        if not (plan.persistent or plan.rows > 1):
            number = Convert(plan.index, BLOCK) * plan.block_width + THREAD
            return [
                self.constant(RESULT, plan.vector * number if plan.vector > 1 else number),
                If(RESULT >= M, (RETURN,), brief=True),
            ]
        if plan.exact:
            return [self.constant(RESULT, FIRST + mine)]
        own = Convert(plan.index, FIRST + mine)
        return [
            self.constant(RESULT, invoke("fg::at_most", own, M - plan.vector)),
            self.constant(END, Choice(FIRST + mine < M, N, Number(0))),
        ]

    def _row(self, singles: list[Operand]) -> list[Statement]:
        """What is done with a thread's results."""
        kernel, plan = self.kernel, self.schedule
        things = [o.name for o in (*kernel.operands, *kernel.written)]
        opening = self._fixed_reads([o for o in self._fixed() if o not in singles])
        declarations, reads = self._raw()
        found = [*self.coordinates(0, self.fast, RESULT, self.moving(things, self.kept_loops)), *self._once(opening)]
        found += [*declarations, *self._elements(reads, True, plan.filled, is_read=True)]
        before = _Results()
        self._results_of(kernel.before, before)
        found += [BLANK, *self._once(before)] if before.each else []
        for stage in [self._stage(stage) for stage in kernel.stages]:
            found += [BLANK, *stage.declarations, *self._walk(stage.traversal, plan.filled), *stage.exchange]
            found += [*self._once(stage.settle), *(self._walk(stage.again, plan.filled) if stage.again else [])]
            found += [*stage.combine, *self._once(stage.results)]
        if kernel.pointwise:
            last = self._traversal(kernel.body, kernel.pointwise, last=True)
            for output in kernel.pointwise:
                self._write(output, self.offset(output.name, range(plan.loops + plan.inner)), last)
            found += [BLANK, *self._walk(last, plan.exact)]
        if end := self._end():
            writer = [*([THREAD_ROW.equals(0)] if plan.rows > 1 else []), *self.guards]
            done = self._once(end)
            found += [BLANK, *([If(every(writer), tuple(done))] if writer else done)]
        if plan.persistent and plan.rows > 1 and self.sites < 2:
            found.append(Do(invoke("__syncthreads"), note="before the next results overwrite what threads exchange"))
        return found

    def _once(self, results: _Results | Traversal) -> list[Statement]:
        """Once for each of a thread's results."""
        plan, each = self.schedule, results.each if isinstance(results, _Results) else results.inner
        found = [count("k", plan.vector, each)] if plan.vector > 1 and each else each
        return [*results.declarations, *found, *results.writes]

    def _walk(self, walk: Traversal, sure: bool) -> list[Statement]:
        """Once for each element that a thread keeps."""
        return self._elements([*walk.reads, *self._once(walk)], bool(walk.coordinates), sure)

    def _elements(self, body: list[Statement], located: bool, sure: bool, is_read: bool = False) -> list[Statement]:
        """``sure``: every thread has all of them. Reads have no branches between them, which would come one after
        another."""
        plan, found = self.schedule, list[Statement]()
        end, name = END if plan.persistent or plan.rows > 1 else N, "part" if plan.rows > 1 else "at"
        if plan.rows > 1 and (located or not sure):
            found.append(self.constant(AT, plan.rows * PART + THREAD_ROW))
        if not sure and is_read:
            body = [If(AT < end, tuple(body))]
        elif not sure:
            found.append(If(AT >= end, (BREAK,), brief=True))
        index = Plain("int") if plan.rows > 1 else Plain(plan.index)
        until = Symbol(name) < plan.vectors_per_thread
        return [For(name, index, Number(0), until, None, (*found, *body), 0)]

    # -- values that a thread has once a result -------------------------------------------------------------------

    def _of(self, name: str) -> _Value:
        """What goes by a name of the op's."""
        return _Value(self.names.variable(name), self.stem(name))

    def _intermediate(self, reduce: Reduce, what: str) -> _Value:
        """What is needed on the way to a reduction."""
        name = f"{self.stem(reduce.name)}_{what}"
        return _Value(name, name)

    def _kept(self, kept: _Value) -> Term:
        """The value of one result."""
        return Symbol(f"{kept.stem}_v").at(K) if self.schedule.vector > 1 else Symbol(kept.variable)

    def _whole(self, kept: _Value) -> Term:
        """The value of all the thread's results."""
        return Symbol(f"{kept.stem}_v" if self.schedule.vector > 1 else kept.variable)

    def _variable(self, ctype: str, kept: _Value, start: bool = False) -> Statement:
        """The declaration of a value that changes; ``start``: from zero."""
        vector = self.schedule.vector
        if vector > 1:
            return Declare(Vector(ctype, vector), f"{kept.stem}_v", zeros=start)
        return Declare(Plain(ctype), kept.variable, Number(0) if start else None)

    def _define(self, results: _Results, ctype: str, kept: _Value, value: Term) -> None:
        """One that does not change."""
        if self.schedule.vector == 1:
            results.each.append(Declare(Plain(ctype), kept.variable, value, constant=True))
        else:
            results.declarations.append(self._variable(ctype, kept))
            results.each.append(Assign(self._kept(kept), value))

    def _results_of(self, lets: Sequence[Let], results: _Results) -> None:
        """What follows from what is known of a result."""
        for let in lets:
            self._define(results, let.expr.dtype.ctype, self._of(let.name), self.value(let.expr))

    def _fixed_reads(self, operands: Sequence[Operand]) -> _Results:
        found = _Results()
        for o in operands:
            offset = self.offset(o.name, self.kept_loops)
            if self.schedule.vector == 1 or not self._varies(o):
                found.declarations += self.read(o, offset)
            elif self.schedule.placement(o.name).access is Access.ROW:
                found.declarations += self.read_vector(o, offset)
            else:
                at = self.element_offset(o.name, offset, self.fast)
                pointer = self.pointer(o.name, at)
                load = self.gathered(o, pointer) if isinstance(o, Gathered) else invoke("fg::load", pointer)
                value = at if isinstance(o, Position) and at is not None else load
                self._define(found, o.dtype.compute.ctype, self._of(o.name), value)
        return found

    # -- elements -------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> Symbol:
        return PART if self.schedule.rows > 1 else AT

    def _raw(self) -> tuple[list[Statement], list[Statement]]:
        """Everything is read before anything is used: where it will be, and the reads."""
        plan, declarations = self.schedule, list[Statement]()
        reads = self._coordinates([o.name for o in self.streams])
        for o in self.streams:
            name, ctype = self.stem(o.name), o.dtype.ctype
            element: Type = Vector(ctype, plan.vector, raw=True) if plan.vector > 1 else Plain(ctype)
            declarations.append(Declare(element, f"{name}_row", None, (plan.vectors_per_thread,)))
            load, width = ("fg::load_raw", (plan.vector,)) if plan.vector > 1 else ("*", ())
            place = Symbol(f"{name}_row").at(self._place)

            def read(pointer: Term, place: Term = place, load: str = load, of: tuple[int, ...] = width) -> Statement:
                return Assign(place, invoke(load, pointer, of=of))

            reads += self.access(read, o.name, self.offset(o.name, range(self.over_loops.stop)))
        return declarations, reads

    def _coordinates(self, names: Sequence[str]) -> list[Statement]:
        used = self.moving(names, self.over_loops)
        return self.coordinates(self.over_loops.start, self.over_loops.stop - 1, AT, used)

    def _traversal(self, lets: Sequence[Let], items: Sequence[Reduce | Output], last: bool = False) -> Traversal:
        """What the lets and items read at an element, and the lets. Behind the last traversal nothing needs them."""
        lets = self.still_needed(lets, items)
        needed = self.needed((*(let for let in lets if not self.is_known(let)), *items))
        found, vector = Traversal(), self.schedule.vector
        from_memory = [item.name for item in items if isinstance(item, Output)]
        for o in self.kernel.operands:
            if o.name not in needed or not self.moving([o.name], self.over_loops):
                continue
            offset, held = (
                self.offset(o.name, range(self.over_loops.stop)),
                Symbol(f"{self.stem(o.name)}_row").at(self._place),
            )
            if o in self.streams and vector > 1:
                found.reads.append(Declare(AUTO, f"{self.stem(o.name)}_v", invoke("fg::widen", held), constant=True))
                found.inner.append(self.vector_element(o))
            elif o in self.streams:
                load, ctype = invoke("fg::load", AddressOf(held)), Plain(o.dtype.compute.ctype)
                found.inner.append(Declare(ctype, self.variable(o.name), load, constant=True))
            else:
                from_memory.append(o.name)
                varying = vector > 1 and self._varies(o)
                at = self.element_offset(o.name, offset, self.fast) if varying else offset
                # Behind what tells its place, which may be an element of a stream.
                late = varying or isinstance(o, Gathered)
                (found.inner if late else found.reads).extend(self.read(o, at))
        found.coordinates = self._coordinates(from_memory)
        found.reads[:0] = found.coordinates

        def held_of(stem: str) -> Term:
            return Symbol(f"{stem}_row").at(self._place, *([K] if vector > 1 else []))

        found.inner += self.element_lets(lets, held_of, not last)
        found.kept = [] if last else [self.declare_row(let) for let in self.keep(lets)]
        return found

    # -- reductions -----------------------------------------------------------------------------------------------

    def _stage(self, stage: Stage) -> _Stage:
        """The traversal of the elements; coupled reductions have another one, when their mean or maximum is known."""
        partners = {r.name: self.kernel.partners[r.name] for r in stage.reduces if r.name in self.kernel.partners}
        own = [r for r in stage.reduces if r.name not in partners]
        coupled = [r for r in own if BY_KIND[r.kind].partner]
        picks = {r.name: pick for r in own if (pick := self._pick(r))}
        walk = self._traversal(stage.lets, [r for r in own if r.name not in picks])
        found = _Stage(walk, self._traversal(stage.lets, coupled) if coupled else None, list(walk.kept))
        for reduce in own:
            if reduce.name in picks:
                found.results.declarations.append(self._variable(reduce.expr.dtype.ctype, self._of(reduce.name), True))
                found.results.each += picks[reduce.name]
                continue
            partner = next((name for name, of in partners.items() if of is reduce), None)
            if reduce.kind == "squared_deviation":
                self._deviation(reduce, partner, found)
            elif reduce.kind == "sum_exp":
                self._exponentials(reduce, partner, found)
            else:
                accumulator = Accumulator(reduce, self.names, self.schedule.vector)
                found.declarations.append(accumulator.declare())
                walk.inner.append(accumulator.add(self.value(reduce.expr)))
                how = "sum" if accumulator.is_sum else "merge"
                found.late.setdefault((how, accumulator.type.text), []).append(accumulator.state())
                if not accumulator.is_sum:
                    result = self._state(reduce).call("result")
                    self._define(found.results, accumulator.ctype, self._of(reduce.name), result)
        found.combine = [s for (how, _), values in found.late.items() for s in self._exchange(how, values)]
        self._results_of(stage.after, found.results)
        return found

    def _pick(self, reduce: Reduce) -> list[Statement] | None:
        """A sum with one term, ``where(index == place, x, 0)``, as one access, which finds in a cache what was read."""
        picked, plan = picked_by(reduce, self.kernel), self.schedule
        if picked is None or plan.rows > 1 or plan.inner != 1:
            return None
        place, operand = picked
        fast, known = self.over_loops.start, {o.name for o in self._fixed()}
        if operand not in self.streams or any(ref.name not in known for ref in refs(place)):
            return None
        start, name = self.stem(reduce.name), operand.name
        at, where, has = Symbol(f"{start}_at"), Symbol(f"{start}_place"), Symbol(f"has_{start}")
        stride = self.stride(name, fast)
        step = {"1": at, "s": at * stride}[plan.placement(name).moves[fast]]
        offset = total(term for term in (self.offset(name, self.kept_loops), step) if term is not None)
        offset = self.element_offset(name, offset, self.fast) if plan.vector > 1 else offset
        target = self._kept(self._of(reduce.name))

        def load(pointer: Term) -> Statement:
            return If(has, (Assign(target, invoke("fg::load", pointer)),), brief=True)

        return [
            Declare(Plain("int64_t"), where.name, self.value(place), constant=True),
            Declare(Plain("bool"), has.name, every([Number(0) <= where, where < N]), constant=True),
            self.constant(at, Choice(has, Convert(plan.index, where), Number(0))),
            *self.access(load, name, offset, called=f"{start}_offset"),
        ]

    def _state(self, reduce: Reduce) -> Term:
        state = Symbol(f"{self.stem(reduce.name)}_state")
        return state.at(K) if self.schedule.vector > 1 else state

    def _deviation(self, reduce: Reduce, partner: str | None, found: _Stage) -> None:
        """The sum, then squared deviations from the mean. Where more than half types depend on it, deviations also say
        what rounding took off the mean (a compensation)."""
        exact, value = not self.printer.is_faster(reduce.expr.dtype), self.value(reduce.expr)
        ctype = reduce.expr.dtype.ctype
        sum_ = self._of(partner) if partner else self._intermediate(reduce, "total")
        squares, mean, rest = (
            self._of(reduce.name), self._intermediate(reduce, "mean"), self._intermediate(reduce, "rest")
        )  # fmt: skip
        found.declarations += [self._variable(ctype, sum_, True), self._variable(ctype, squares, True)]
        found.declarations += [self._variable(ctype, rest, True)] if exact else []
        found.traversal.inner.append(Assign(self._kept(sum_), value, "+="))
        found.exchange += self._exchange("sum", [self._whole(sum_)])

        def share(of: _Value) -> Term:
            return invoke("fg::divide_by_count", self._kept(of), Convert(ctype, N))

        self._define(found.settle, ctype, mean, share(sum_))
        away = Symbol(f"{squares.stem}_away")
        assert found.again is not None
        found.again.inner += [
            Declare(Plain(ctype), away.name, value - self._kept(mean), constant=True),
            Assign(self._kept(squares), away * away, "+="),
            *([Assign(self._kept(rest), away, "+=")] if exact else []),
        ]
        sums = [squares, rest] if exact else [squares]
        found.late.setdefault(("sum", ctype), []).extend(map(self._whole, sums))
        if exact:
            found.results.each += [
                Assign(self._kept(squares), self._kept(rest) * share(rest), "-="),
                Assign(self._kept(sum_), self._kept(rest), "+="),
            ]

    def _exponentials(self, reduce: Reduce, partner: str | None, found: _Stage) -> None:
        """The maximum, then the sum of exponentials relative to it."""
        accumulator, state = Accumulator(reduce, self.names, self.schedule.vector), self._state(reduce)
        value: Value = self.value(reduce.expr)
        found.declarations.append(accumulator.declare())
        found.traversal.inner.append(Do(state.call("see", value)))
        found.exchange += self._exchange("maximum", [Field(accumulator.state(), "top")])
        found.settle.each.append(Do(state.call("settle")))
        assert found.again is not None
        take = "take_fast" if self.printer.is_faster(reduce.expr.dtype) else "take"
        found.again.inner.append(Do(state.call(take, value)))
        found.late.setdefault(("sum", accumulator.ctype), []).append(Field(accumulator.state(), "sum"))
        self._define(found.results, accumulator.ctype, self._of(reduce.name), state.call("result"))
        if partner:
            self._define(found.results, accumulator.ctype, self._of(partner), state.call("partner"))

    def _exchange(self, how: str, values: Sequence[Term]) -> list[Statement]:
        """What the threads that share a result have, put together, in all of them."""
        plan = self.schedule
        if plan.rows == 1:
            return []
        each = [self._at(value, k) for value in values for k in range(plan.vector)] if plan.vector > 1 else values
        site = (plan.rows, plan.block_width, self.sites)
        self.sites += 1
        return [Do(invoke(f"fg::columns_{how}", *each, of=site))]

    @staticmethod
    def _at(value: Term, k: int) -> Term:
        return Field(value.of.at(k), value.name) if isinstance(value, Field) else value.at(k)

    # -- results --------------------------------------------------------------------------------------------------

    def _write(self, output: Output, offset: Term | None, found: _Results | Traversal) -> None:
        name, vector, expr = output.name, self.schedule.vector, output.expr
        each = found.each if isinstance(found, _Results) else found.inner
        if vector > 1 and self.schedule.placement(name).access is Access.ROW:
            is_one = isinstance(expr, Ref) and expr.name == name and name in self.in_vectors
            if not is_one:
                own = Symbol(f"{self.stem(name)}_v")
                found.declarations.append(Declare(Vector(output.dtype.compute.ctype, vector), own.name))
                each.append(Assign(own.at(K), self.value(expr)))
            found.writes += self.write_vector(output, offset)
        else:
            each += self.store(output, self.element_offset(name, offset, self.fast) if vector > 1 else offset)

    def _end(self) -> _Results | None:
        """What is done once a result: its own outputs, and its share in sums over all results."""
        kernel, found = self.kernel, _Results()
        if not (kernel.outputs or kernel.totals):
            return None
        for output in kernel.outputs:
            self._write(output, self.offset(output.name, self.kept_loops), found)
        found.each += self.lets(kernel.summing)
        found.each += [a.add(self.value(a.reduce.expr)) for a in self._totals()]
        for accumulator in self._totals():
            before, behind = accumulator.iteration()
            found.declarations += before
            found.writes += behind
        return found

    def _totals(self) -> list[Accumulator]:
        return [Accumulator(reduce, self.names, per_iteration=self.schedule.vector) for reduce in self.kernel.totals]

    def _sums(self) -> list[Statement]:
        """The sums of the block's threads."""
        found, by_type, plan = list[Statement](), dict[str, list[str]](), self.schedule
        for a in self._totals():
            if a.in_chains:
                found.append(Declare(Plain(a.ctype), a.name, Symbol(f"{a.stem}_chains").call("total")))
            by_type.setdefault(a.ctype, []).append(a.name)
        for names in by_type.values():
            site = (plan.block_width, plan.rows, self.sites)
            self.sites += 1
            found.append(Do(invoke("fg::row_sum", *map(Symbol, names), of=site)))
        return found

    def _left(self) -> list[Statement]:
        """This block's share of the sums, left for a later kernel."""
        pairs = zip(self.kernel.totals, self.kernel.partials, strict=True)
        return [Assign(Symbol(self.names.pointer(p.name)).at(BLOCK), self._whole_sum(r)) for r, p in pairs]

    def _whole_sum(self, reduce: Reduce) -> Term:
        return Symbol(self._of(reduce.name).variable)

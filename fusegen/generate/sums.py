"""Kernels that add up: rows by a block, columns, results by a thread each, and the second stage of a split sum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from fusegen.core.ir import Let, Operand, Output, Ref
from fusegen.fuse.finish import FINISHES
from fusegen.fuse.schedule import TILE, Access, ColumnSchedule, LineSchedule, SerialSchedule, of_each_result
from fusegen.generate.accumulators import Accumulator
from fusegen.generate.builder import AtPointer, Builder
from fusegen.generate.traversal import Traversal
from fusegen.kernel_program.nodes import (
    AUTO,
    BLANK,
    BLOCK,
    BLOCK_Y,
    RETURN,
    THREAD,
    THREAD_ROW,
    Assign,
    Comment,
    Convert,
    Declare,
    For,
    If,
    KernelProgram,
    Number,
    Plain,
    Statement,
    Symbol,
    Term,
    Vector,
    count,
    either,
    every,
    invoke,
    negated,
)

AT, BEGIN, CHUNK, END, FIRST, INSIDE, M, N = map(Symbol, ("at", "begin", "chunk", "end", "first", "inside", "m", "n"))
K, PIECE, PLACE, RESULT, SPLITS = map(Symbol, ("k", "piece", "i", "result", "splits"))


class Sums(Builder):
    """What kernels that add up have in common, and the second stage of a split sum."""

    def _add_iterations(self, walk: Traversal) -> None:
        for accumulator in self._accumulators():
            before, behind = accumulator.iteration()
            walk.declarations += before
            walk.writes += behind

    def _late_operands(self) -> list[str]:
        needed = self.needed(self.kernel.ending)
        return [o.name for o in self.kernel.operands if o.name in needed]

    def _accumulators(self) -> list[Accumulator]:
        return [Accumulator(reduce, self.names, per_iteration=self.schedule.vector) for reduce in self.kernel.states]

    def _combine(self) -> list[Statement]:
        """The states of a block's threads put together."""
        return [a.combine("block", (self.schedule.threads,)) for a in self._accumulators()]

    def _partials(self, position: Term) -> list[Statement]:
        return [s for a in self._accumulators() for s in a.store(position)]

    def _epilogue(self, already: set[str]) -> list[Statement]:
        """What follows the reductions, for one result."""
        kept = range(self.schedule.kept)
        late = [o for o in self.kernel.operands if o.name in self._late_operands() and o.name not in already]
        found = [s for r in self.kernel.states for s in Accumulator(r, self.names).result()]
        found += [Accumulator(of, self.names).partner(name) for name, of in self.kernel.partners.items()]
        found += [s for o in late for s in self.read(o, self.offset(o.name, kept))]
        found += self.lets([item for item in self.kernel.ending if isinstance(item, Let)])
        for output in self.kernel.outputs:
            found += self.store(output, self.offset(output.name, kept))
        return found

    def finish(self) -> KernelProgram:
        """The second stage, which combines the partial results of each result."""
        kernel, kept, by = self.kernel, range(self.schedule.kept), self.schedule.finish
        late = [*self._late_operands(), *(o.name for o in kernel.outputs)]
        merged = [Accumulator(reduce, self.names) for reduce in kernel.states]
        results, (block_width, rows, _) = FINISHES[by]
        block = Convert(self.schedule.index, self.block) if by != "block" else self.block
        body = [*self.located("finish"), *self.start(True)]
        body.append(self.constant(RESULT, block if by == "block" else block * results + THREAD))
        if by == "thread":
            body.append(If(RESULT >= M, (RETURN,), brief=True))
        elif by == "tile":
            body.append(Declare(Plain("bool"), "inside", RESULT < M, constant=True))
        body += self.coordinates(0, self.schedule.kept - 1, RESULT, self.moving(late, kept))
        body += [a.declare() for a in merged]
        first, step = {
            "thread": (Number(0), None),
            "block": (THREAD, Number(block_width * rows)),
            "tile": (THREAD_ROW, Number(rows)),
        }[by]  # fmt: skip
        there = PIECE < SPLITS
        merges = tuple(a.merge(PIECE * M + RESULT) for a in merged)
        condition = every([INSIDE, there]) if by == "tile" else there
        body.append(For("piece", Plain(self.schedule.index), first, condition, step, merges))
        if by != "thread":
            over, threads = ("column", rows) if by == "tile" else ("block", block_width)
            body += [a.combine(over, (threads,)) for a in merged]
            others = either(negated(INSIDE), THREAD_ROW > 0) if by == "tile" else THREAD > 0
            body.append(If(others, (RETURN,), brief=True))
        return self.made((block_width, rows), (*body, *self._epilogue(set())), stage="finish")


@dataclass
class _Once:
    """What is the same for all elements of a thread's results.

    Attributes:
        reads: reads it, for all of a vector of results.
        held: declares what each of these has of its own.
        each: computes that.
    """

    reads: list[Statement] = field(default_factory=list)
    held: list[Statement] = field(default_factory=list)
    each: list[Statement] = field(default_factory=list)

    def all(self, vector: int) -> list[Statement]:
        """In this order."""
        return [*self.reads, *self.held, *([count("k", vector, self.each)] if self.each else [])]


@dataclass
class _Ahead:
    """What a thread reads of several places before it computes with any of it.

    Attributes:
        declarations: where it will be found.
        coordinates: where the i-th place is.
        reads: reads there, for all of a vector of results.
        each: reads there for each of these.
        words: registers that all of it takes.
    """

    declarations: list[Statement] = field(default_factory=list)
    coordinates: list[Statement] = field(default_factory=list)
    reads: list[Statement] = field(default_factory=list)
    each: list[Statement] = field(default_factory=list)
    words: int = 0

    def all(self, places: int, vector: int) -> list[Statement]:
        """In this order."""
        if not self.declarations:
            return []
        each = [count("k", vector, self.each)] if self.each and vector > 1 else self.each
        return [*self.declarations, count("i", places, [*self.coordinates, *self.reads, *each])]


class Reduction(Sums):
    """A block or a thread a result, or neighbouring results (or vectors of them) a block."""

    schedule: LineSchedule | ColumnSchedule | SerialSchedule

    @property
    def _vector_along_results(self) -> bool:
        """A column kernel's vector lies along its results, a row kernel's along what is summed."""
        return isinstance(self.schedule, ColumnSchedule) and self.schedule.vector > 1

    @property
    def _is_apart(self) -> bool:
        """Whether the results of a thread are no neighbours."""
        return isinstance(self.schedule, ColumnSchedule) and self.schedule.apart

    def _own_result(self, names: Iterable[str]) -> list[Statement]:
        """Where the k-th result of a thread is, whose results lie apart, and with it what ``names`` have of it. Behind
        the last result a thread takes that one again, and stores nothing."""
        moving = self.moving(names, range(self.schedule.loops)) if self._is_apart else set[int]()
        if not moving:
            return []
        last = self.constant(RESULT, invoke("fg::at_most", self._kth_result(), M - 1))
        return [last, *self.coordinates(0, self.schedule.loops - 1, RESULT, moving)]

    def _kth_result(self) -> Term:
        assert isinstance(self.schedule, ColumnSchedule)
        return FIRST + self.schedule.block_width * K

    def program(self) -> KernelProgram:
        """All of it."""
        plan, kernel = self.schedule, self.kernel
        kept, over = range(plan.loops), range(plan.loops, plan.loops + plan.inner)
        read = [o for o in kernel.operands if o.name in self.read_in_body]
        moving = [o for o in read if self.moving([o.name], over)]
        fixed = [o for o in read if o not in moving]
        once, ahead = _Once(), _Ahead()
        walk = self._walk(fixed, moving, AT, once)
        near = walk
        if isinstance(plan, ColumnSchedule) and plan.unroll > 1:
            near = self._walk(fixed, moving, AT + PLACE, _Once(), ahead if plan.reads_first else None)
        late = [] if plan.split else [*(o.name for o in kernel.outputs), *self._late_operands()]
        names = [*(o.name for o in read), *(o.name for o in kernel.pointwise), *late]
        already = set() if isinstance(plan, ColumnSchedule) else {o.name for o in fixed}
        across = set[int]() if self._is_apart else self.moving(names, kept)
        coordinates = self.coordinates(0, plan.loops - 1, RESULT, across)
        accumulators = [a.declare() for a in self._accumulators()]
        start = [*self.located(), *self.start(plan.follows)]
        ending = self._end(already)
        if isinstance(plan, SerialSchedule):
            body = [
                Comment("A thread owns one result and adds up its elements by itself."),
                self.constant(RESULT, Convert(plan.index, BLOCK) * plan.threads + THREAD),
                If(RESULT >= M, (RETURN,), brief=True),
                *coordinates, *once.reads,
                BLANK,
                *accumulators,
                For("at", Plain(plan.index), Number(0), AT < N, None, (*walk.coordinates, *walk.inner)),
                BLANK,
                *ending,
            ]  # fmt: skip
            return self.made((plan.threads, 1), (*start, *body))
        if isinstance(plan, LineSchedule):
            body = [*self._line(coordinates, once), *accumulators, self._loop_of_line(walk), *self._combine(), BLANK]
            body.append(If(THREAD.equals(0), tuple(ending)))
            return self.made((plan.threads, 1), (*start, *body), self.resident(0))
        rows = plan.threads // plan.block_width
        body = [*self._column(coordinates, rows), *accumulators]
        body.append(If(INSIDE, (*once.all(plan.vector), *self._loop_of_column(walk, near, ahead, rows))))
        writer = every([INSIDE, THREAD_ROW.equals(0)]) if rows > 1 else INSIDE
        body += [*self._combine(), BLANK, If(writer, tuple(ending))]
        values = plan.vector * of_each_result(kernel) + ahead.words // 2  # read ones make room for computed ones
        at_a_time = self.resident(values)
        return self.made((plan.block_width, rows), (*start, *body), at_a_time)

    def _walk(
        self, fixed: Sequence[Operand], moving: Sequence[Operand], at: Term, once: _Once, ahead: _Ahead | None = None
    ) -> Traversal:
        """What is done with the elements at one place along the reduced axes.

        Args:
            fixed, moving: the operands that are the same at all of them, and the others.
            at: the place.
            once: takes what is done before all of them.
            ahead: takes what reads tensors, for all places that a thread takes at a time.
        """
        plan, kernel, walk = self.schedule, self.kernel, Traversal()
        over = range(plan.loops, plan.loops + plan.inner)
        first = [o for o in moving if type(o) is Operand] if ahead else []
        later = [o for o in moving if o not in first]
        in_loop = self.moving([*(o.name for o in later), *(o.name for o in kernel.pointwise)], over)
        walk.coordinates = self.coordinates(over.start, over.stop - 1, at, in_loop)
        held = self._held(fixed)
        walk.inner += self._own_result([*(o.name for o in fixed if o.name in held), *(o.name for o in later)])
        self._read_fixed(fixed, walk, once)
        if ahead:
            ahead.coordinates = self.coordinates(
                over.start, over.stop - 1, at, self.moving([o.name for o in first], over)
            )
            for operand in first:
                self._read_ahead(operand, self.offset(operand.name, range(over.stop)), ahead, walk)
            names = [o.name for o in first if self._differs_in_vector([o.name])]
            ahead.each = [*self._own_result(names), *ahead.each] if ahead.each else []
        for operand in later:
            self._read_element(operand, self.offset(operand.name, range(over.stop)), walk.reads, walk.inner)
        walk.inner += self.lets([let for let in kernel.body if let not in kernel.once])
        for output in kernel.pointwise:
            self._write_element(output, self.offset(output.name, range(over.stop)), walk)
        walk.inner += [
            a.add(self.value(a.reduce.expr), self.printer.is_faster(a.reduce.expr.dtype)) for a in self._accumulators()
        ]
        self._add_iterations(walk)
        return walk

    def _read_ahead(self, operand: Operand, offset: Term | None, ahead: _Ahead, walk: Traversal) -> None:
        """Read for all places that a thread takes at a time; where the element is needed, take it from there."""
        plan, name, ctype = self.schedule, self.stem(operand.name), operand.dtype.compute.ctype
        assert isinstance(plan, ColumnSchedule)
        row = Symbol(f"{name}_row")

        def read(target: Term, load: str = "fg::load", of: tuple[int, ...] = ()) -> AtPointer:
            return lambda pointer: Assign(target, invoke(load, pointer, of=of))

        if plan.vector > 1 and plan.placement(operand.name).access is Access.ROW:
            ahead.words += plan.unroll * max(1, plan.vector * operand.dtype.size // 4)
            ahead.declarations.append(
                Declare(Vector(operand.dtype.ctype, plan.vector, raw=True), row.name, None, (plan.unroll,))
            )
            ahead.reads += self.access(read(row.at(PLACE), "fg::load_raw", (plan.vector,)), operand.name, offset)
            walk.reads.append(Declare(AUTO, f"{name}_v", invoke("fg::widen", row.at(PLACE)), constant=True))
            walk.inner.append(self.vector_element(operand))
            return
        differs = self._differs_in_vector([operand.name])
        element = row.at(PLACE, K) if differs else row.at(PLACE)
        dims = (plan.unroll, plan.vector) if differs else (plan.unroll,)
        ahead.words += prod(dims) * max(1, operand.dtype.compute.size // 4)
        ahead.declarations.append(Declare(Plain(ctype), row.name, None, dims))
        into = ahead.each if differs else ahead.reads
        into += self.access(read(element), operand.name, self._element_at(operand.name, offset) if differs else offset)
        taken = Declare(Plain(ctype), self.variable(operand.name), element, constant=True)
        (walk.inner if differs or plan.vector == 1 else walk.reads).append(taken)

    def _piece(self) -> list[Statement]:
        """Which piece of its results a block has."""
        begin = self.constant(BEGIN, Convert(self.schedule.index, BLOCK_Y) * CHUNK)
        return [begin, self.constant(END, invoke("fg::at_most", BEGIN + CHUNK, N))] if self.schedule.split else []

    def _line(self, coordinates: list[Statement], once: _Once) -> list[Statement]:
        """The result of a block."""
        what = "a piece of one result's" if self.schedule.split else "one result and its"
        return [
            Comment(f"A block owns {what} n elements."), self.constant(RESULT, BLOCK), *coordinates, *once.reads,
            *self._piece(), BLANK,
        ]  # fmt: skip

    def _loop_of_line(self, walk: Traversal) -> Statement:
        plan = self.schedule
        assert isinstance(plan, LineSchedule)
        first: Term = plan.vector * THREAD if plan.vector > 1 else THREAD
        first, end = (BEGIN + first, END) if plan.split else (first, N)
        body, step = self._element(walk, walk.coordinates), Number(plan.vector * plan.threads)
        return For("at", Plain(plan.index), first, AT < end, step, tuple(body), plan.unroll or None)

    def _column(self, coordinates: list[Statement], rows: int) -> list[Statement]:
        """The results of a thread."""
        plan = self.schedule
        assert isinstance(plan, ColumnSchedule)
        vector, results = plan.vector, plan.block_width * plan.vector
        of_piece = " of one piece" if plan.split else ""
        if plan.apart:
            share = f"; {rows} rows of threads share each" if rows > 1 else ""
            words = f"A block owns {results} neighbouring results, a thread {vector} that lie apart{share}."
        elif rows > 1:
            words = (
                f"A block owns {results} neighbouring results; its {rows} rows of threads share the elements{of_piece}."
            )
        elif vector > 1:
            words = f"A thread owns {vector} neighbouring results and adds up their elements{of_piece} by itself."
        else:
            words = f"A thread owns one result and adds up its elements{of_piece} by itself."
        first, own = Convert(plan.index, BLOCK) * results, FIRST if plan.apart else RESULT
        return [
            Comment(words), self.constant(own, first + (vector * THREAD if vector > 1 and not plan.apart else THREAD)),
            Declare(Plain("bool"), "inside", own < M, constant=True), *coordinates, *self._piece(), BLANK,
        ]  # fmt: skip

    def _loop_of_column(self, walk: Traversal, near: Traversal, ahead: _Ahead, rows: int) -> list[Statement]:
        """The elements of a thread's results, in what order it takes them.

        Args:
            walk: what is done at a single place.
            near: what is done at one of several places, of which some is read ``ahead``.
        """
        plan = self.schedule
        assert isinstance(plan, ColumnSchedule)
        index, several, end = Plain(plan.index), plan.unroll, END if plan.split else N
        if several == 1:
            first: Term = THREAD_ROW if rows > 1 else Number(0)
            if plan.split:
                first = BEGIN + THREAD_ROW if rows > 1 else BEGIN
            body = tuple(self._element(walk, walk.coordinates))
            return [For("at", index, first, AT < end, Number(rows) if rows > 1 else None, body, 4)]
        first = several * THREAD_ROW
        each = [*ahead.all(several, plan.vector), count("i", several, self._element(near, near.coordinates))]
        return [
            Comment(
                "Neighbouring elements go to one thread, where terms of opposite signs meet before they are large."
            ),
            Declare(index, "at", BEGIN + first if plan.split else first),
            For("at", None, None, AT + (several - 1) < end, Number(several * rows), tuple(each)),
            For("at", None, None, AT < end, None, tuple(self._element(walk, walk.coordinates)), 1),
        ]

    def _element(self, walk: Traversal, coordinates: list[Statement]) -> list[Statement]:
        """What is done at one place along the reduced axes."""
        vector = self.schedule.vector
        if vector == 1:
            return [*coordinates, *walk.inner]
        return [*coordinates, *walk.reads, *walk.declarations, count("k", vector, walk.inner), *walk.writes]

    def _read_fixed(self, fixed: Sequence[Operand], walk: Traversal, once: _Once) -> None:
        """What is the same for all elements of a result, before the loop over them; where a thread has a vector of
        results, in vectors."""
        kernel, kept = self.kernel, range(self.schedule.loops)
        in_once, each = self.needed(kernel.once), self._held(fixed)
        once.each += self._own_result(o.name for o in fixed if o.name in in_once)
        for operand in fixed:
            inner = list[Statement]()
            self._read_element(operand, self.offset(operand.name, kept), once.reads, inner, once=True)
            walk.inner += inner if operand.name in each else []
            once.each += inner if operand.name in in_once else []
        vectors = {operand.name for operand in fixed if self._differs_in_vector([operand.name])}
        for let in kernel.once:
            if not (self.needed([let]) & vectors):
                once.reads += self.lets([let])
                continue
            vectors.add(let.name)
            once.each += self.lets([let])
            if let.name in each:
                held, ctype = Symbol(f"{self.stem(let.name)}_v"), let.expr.dtype.ctype
                once.held.append(Declare(Vector(ctype, self.schedule.vector), held.name))
                once.each.append(Assign(held.at(K), Symbol(self.variable(let.name))))
                walk.inner.append(Declare(Plain(ctype), self.variable(let.name), held.at(K), constant=True))

    def _held(self, fixed: Sequence[Operand]) -> set[str]:
        """What each element reads of what is the same for all of them. So is a tensor that is expanded along what is
        reduced, which only this layout tells."""
        return {*self.kernel.held, *(o.name for o in fixed if not set(self.kernel.over).isdisjoint(o.shape))}

    def _differs_in_vector(self, names: Sequence[str]) -> bool:
        """Whether neighbouring results of a thread read different elements of one of these."""
        along = range(self.schedule.loops) if self._is_apart else [self._fast()]
        return self._vector_along_results and bool(self.moving(names, along))

    def _element_at(self, name: str, offset: Term | None) -> Term | None:
        """Where the k-th element of a vector lies that is no vector in memory."""
        return offset if self._is_apart else self.element_offset(name, offset, self._fast())

    def _fast(self) -> int:
        """The loop along which the vector lies."""
        return self.schedule.loops - 1 if self._vector_along_results else self.schedule.loops + self.schedule.inner - 1

    def _read_element(
        self, operand: Operand, offset: Term | None, whole: list[Statement], inner: list[Statement], once: bool = False
    ) -> None:
        """Read for a ``whole`` vector at once where its elements lie side by side or are one element; else one by one.

        Args:
            once: before the elements, where there is no vector of these.
        """
        name, vector = operand.name, self.schedule.vector
        access = self.schedule.placement(name).access
        if vector == 1:
            (whole if once else inner).extend(self.read(operand, offset))
        elif access is Access.ROW:
            whole += self.read_vector(operand, offset)
            inner.append(self.vector_element(operand))
        elif access is Access.STRIDED and (self._differs_in_vector([name]) or self.moving([name], [self._fast()])):
            inner += self.read(operand, self._element_at(name, offset))
        else:
            whole += self.read(operand, offset)

    def _write_element(self, output: Output, offset: Term | None, walk: Traversal) -> None:
        name, vector = output.name, self.schedule.vector
        if vector > 1 and self.schedule.placement(name).access is Access.ROW:
            own = Symbol(f"{self.stem(name)}_v")
            walk.declarations.append(Declare(Vector(output.dtype.compute.ctype, vector), own.name))
            walk.inner.append(Assign(own.at(K), self.value(output.expr)))
            walk.writes += self.write_vector(output, offset)
            return
        at = self.element_offset(name, offset, self._fast()) if vector > 1 else offset
        walk.inner += self.store(output, at)

    def _accumulators(self) -> list[Accumulator]:
        results = self.schedule.vector if self._vector_along_results else 1
        per_iteration = self.schedule.vector if isinstance(self.schedule, LineSchedule) else 0
        return [Accumulator(reduce, self.names, results, per_iteration) for reduce in self.kernel.states]

    def _combine(self) -> list[Statement]:
        """The states of a block's threads put together; a thread by itself has nothing to combine."""
        plan = self.schedule
        if isinstance(plan, LineSchedule):
            return super()._combine()
        if isinstance(plan, SerialSchedule) or plan.threads == plan.block_width:
            return []
        threads = (plan.threads // plan.block_width, *(() if plan.block_width == TILE else (plan.block_width,)))
        return [a.combine("column", threads) for a in self._accumulators()]

    def _end(self, already: set[str]) -> list[Statement]:
        """What the thread that holds the reductions does with them."""
        if self.schedule.split and self._is_apart:
            position = Convert(self.schedule.index, BLOCK_Y) * M + self._kth_result()
            return [self._each_apart([a.store_one(position) for a in self._accumulators()])]
        if self.schedule.split:
            return self._partials(Convert(self.schedule.index, BLOCK_Y) * M + RESULT)
        if not self._vector_along_results:
            return self._epilogue(already)
        reads, each, writes = list[Statement](), list[Statement](), list[Statement]()
        self._end_of_vector(reads, each, writes)
        if self._is_apart:
            names = [*self._late_operands(), *(o.name for o in self.kernel.outputs)]
            return [*reads, self._each_apart([*self._own_result(names), *each])]
        return [*reads, *([count("k", self.schedule.vector, each, unroll=None)] if each else []), *writes]

    def _each_apart(self, each: Sequence[Statement]) -> Statement:
        """What is done with those of a thread's results that there are."""
        return count("k", self.schedule.vector, [If(self._kth_result() < M, tuple(each))])

    def _end_of_vector(self, reads: list[Statement], each: list[Statement], writes: list[Statement]) -> None:
        """What follows the reductions, for each of a vector of results; vectors are read and written as such."""
        kernel, late = self.kernel, self._late_operands()
        sums = {a.name: a for a in self._accumulators() if a.is_sum}
        as_they_are = {
            o.name: sums[self.variable(o.expr.name)].state() for o in kernel.outputs
            if isinstance(o.expr, Ref) and self.variable(o.expr.name) in sums and self._in_vectors(o.name)
        }  # fmt: skip
        read = self.needed(item for item in kernel.ending if item.name not in as_they_are)
        wanted = [a for a in self._accumulators() if a.reduce.name in read or not a.is_sum]
        each += [s for a in wanted for s in a.result(in_vector=True)]
        held = {a.reduce.name: a for a in self._accumulators()}
        each += [held[of.name].partner(name, in_vector=True) for name, of in kernel.partners.items()]
        for operand in kernel.operands:
            if operand.name in late:
                self._read_late(operand, reads, each)
        each += self.lets([item for item in kernel.ending if isinstance(item, Let)])
        for output in kernel.outputs:
            name, offset = output.name, self.offset(output.name, range(self.schedule.kept))
            if not self._in_vectors(name):
                each += self.store(output, self._element_at(name, offset))
                continue
            own: Term = Symbol(f"{self.stem(name)}_v")
            if name not in as_they_are:
                ctype = output.dtype.compute.ctype
                reads.append(Declare(Vector(ctype, self.schedule.vector), f"{self.stem(name)}_v"))
                each.append(Assign(own.at(K), self.value(output.expr)))
            writes += self.store_vector(as_they_are.get(name, own), name, offset)

    def _in_vectors(self, name: str) -> bool:
        gathered = any(name == operand.name for operand in self.kernel.gathered)  # by a place that is not known before
        return self.schedule.placement(name).access is Access.ROW and not gathered

    def _read_late(self, operand: Operand, reads: list[Statement], each: list[Statement]) -> None:
        offset = self.offset(operand.name, range(self.schedule.kept))
        if self._in_vectors(operand.name):
            reads += self.read_vector(operand, offset)
            each.append(self.vector_element(operand))
        else:
            each += self.read(operand, self._element_at(operand.name, offset))

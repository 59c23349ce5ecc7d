"""The kernel program of rows: who takes which rows and elements, in what order, around what `RowParts` computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fusegen.core.ir import Operand, Tensorlike
from fusegen.generate.rows import RowParts, StageOfRow
from fusegen.generate.traversal import Traversal
from fusegen.kernel_program.nodes import (
    BLANK,
    BLOCK,
    BLOCK_Y,
    BLOCK_Z,
    BREAK,
    GRID,
    GRID_Y,
    GRID_Z,
    RETURN,
    THREAD,
    THREAD_ROW,
    Assign,
    Binary,
    Choice,
    Comment,
    Convert,
    Declare,
    Do,
    For,
    If,
    KernelProgram,
    Link,
    Number,
    Plain,
    Scope,
    Statement,
    Symbol,
    Term,
    count,
    invoke,
    total,
)

AT, BEGIN, END, EDGE, FIRST, HEAD = map(Symbol, ("at", "begin", "end", "edge", "first", "head"))
M, N, PART, SLICE, TURN, UNTIL = map(Symbol, ("m", "n", "part", "slice", "turn", "until"))
NOBODYS = Number(-1)
RANK = invoke("fg::cluster_rank")
LINK_READY = Do(Symbol("link").call("ready"), note="all blocks of the cluster have begun")
AWAIT_LOADS = Do(invoke("fg::await_loads"))


class _Operands(NamedTuple):
    """What a kernel reads, by how often: once, once a row; and all that is found by where a row is."""

    singles: list[Operand]
    by_row: list[Operand]
    moving: list[Tensorlike]


@dataclass
class Rows(RowParts):
    """Makes the program of a row kernel.

    A block takes a row, or several side by side; a piece of one, where blocks of a cluster or of a grid share it; or
    one row after the other, and then it keeps sums over rows. Vectors of a row are its threads' in turn.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        plan = self.schedule
        self.index = Plain(plan.index)
        self.per_block = plan.threads * plan.vectors_per_thread * plan.vector
        self.until = UNTIL if plan.slices else M
        # What counts rows: of several side by side, the first.
        self.counter = FIRST if plan.rows > 1 else Symbol("row")
        self.raw_ahead = self._raw(self.ahead, plan.prefetch, plan.staged) if self.ahead else None
        self.ends_ahead = self._ends(self.ahead, plan.prefetch)
        # What all rows have in common, and lies in shared memory once: threads of one row read it for all.
        self.is_read_by_one_row = bool(self.shared) and plan.dynamic > 0 and plan.rows > 1

    def program(self) -> KernelProgram:
        """All of it."""
        plan, operands = self.schedule, self._operands()
        stages = [self.stage(stage) for stage in self.kernel.stages]
        row = self._row(stages)
        body = [*self._beginning(), *self._once(operands)]
        if plan.persistent:
            body += self._all_rows(operands, row)
        else:
            opening = [
                *self._placed("row", self.counter), *self._to_be_read(), *self._loads(operands),
            ]  # fmt: skip
            body += [
                self.constant(self.counter, self._first(BLOCK)),
                *opening,
                *([AWAIT_LOADS] if plan.staged else []),
                *([LINK_READY] if plan.cluster > 1 else []),
                *row,
            ]
        return self.made((plan.threads, plan.rows), (*body, *self._sums_over_rows()), plan.resident, plan.cluster)

    # -- before the first row -------------------------------------------------------------------------------------

    def _operands(self) -> _Operands:
        kernel, plan = self.kernel, self.schedule
        read = self.needed(kernel.reducing) if plan.split else {o.name for o in kernel.operands}
        operands = [o for o in kernel.operands if o.name in read]
        written = () if plan.split else kernel.written
        fixed = [o for o in operands if not self.moving([o.name], self.over_loops)]
        singles = [o for o in fixed if not self.moving([o.name], self.kept_loops)]
        by_row = [o for o in fixed if o not in singles]
        moving = [o for o in (*operands, *written) if o not in (by_row if plan.prefetch else ())]
        return _Operands(singles, by_row, moving)

    def _beginning(self) -> list[Statement]:
        """Numbers of the kernel, and which part of a row the block has."""
        plan, found = self.schedule, self.start(self.schedule.follows)
        if plan.cluster > 1:
            found += [
                Comment(f"{plan.cluster} blocks of {plan.threads} threads share a row."),
                Declare(Link(plan.cluster), "link"),
            ]
            if not plan.chunked:
                found.append(self.constant(BEGIN, Convert(plan.index, RANK) * self.per_block))
        elif self.kernel.row_tiles:
            found += [
                Comment(f"{plan.threads} threads take {self.per_block} elements of a row."),
                self.constant(BEGIN, Convert(plan.index, BLOCK_Y) * self.per_block),
            ]
        if plan.staged:
            found.append(
                Declare(
                    Plain("int"),
                    "thread",
                    plan.threads * THREAD_ROW + THREAD if plan.rows > 1 else THREAD,
                    constant=True,
                )
            )
        return found

    def _once(self, operands: _Operands) -> list[Statement]:
        """What is the same for all rows of a block."""
        columns = [s for r in self.kernel.columns for s in self.column(r).declare(self.schedule.vectors_per_thread)]
        return [*self.read_once(operands.singles), *columns, *self.segments.declare()]

    # -- one row --------------------------------------------------------------------------------------------------

    def _row(self, stages: Sequence[StageOfRow]) -> list[Statement]:
        """What is done with a row once its elements are on their way."""
        kernel, plan = self.kernel, self.schedule
        found = self.lets([let for let in kernel.before if not plan.split or let in kernel.reducing])
        for stage in stages:
            found += [BLANK, *stage.accumulators]
            found += self._in_chunks(stage) if plan.chunked else self._in_one(stage)
            found += [*stage.combine, *stage.after]
        if last := self.last():
            found += [BLANK, *self._walk(last)]
        if ending := self.ending():
            found += [BLANK, If(self.writer(), tuple(ending))]
        return [*found, *self.segments.sums(), *self.row_end()]

    def _in_one(self, stage: StageOfRow) -> list[Statement]:
        """A stage of a row whose elements the threads hold."""
        return [*self._walk(stage.traversal), *stage.settle, *(self._walk(stage.again) if stage.again else [])]

    def _in_chunks(self, stage: StageOfRow) -> list[Statement]:
        """A stage of a row that is longer than what the threads hold: one chunk after the other."""
        plan, raw, body = self.schedule, self.raw_ahead, list[Statement]()
        rank = Convert(plan.index, BLOCK_Y) if plan.split else RANK
        step = self.per_block * Convert(plan.index, GRID_Y) if plan.split else Number(plan.cluster * self.per_block)
        begin = self.per_block * rank if plan.split or plan.cluster > 1 else Number(0)
        if raw:
            body += [*raw.declarations, *self._parts(self._where_elements_are([*raw.coordinates, *raw.reads]), True)]
        body += [*stage.chunks, *self._walk(stage.traversal), *stage.settle]
        body += [*(self._walk(stage.again) if stage.again else []), *stage.merges]
        chunks = For("begin", self.index, begin, BEGIN < (N if plan.exact else END), step, tuple(body))
        return [chunks, *self._at_edge(stage.traversal.edge)]

    def _walk(self, walk: Traversal) -> list[Statement]:
        """All elements of a row that a thread has."""
        plan = self.schedule
        body: list[Statement] = [] if plan.exact else [If(AT >= END, (BREAK,), brief=True)]
        body += [*walk.coordinates, *walk.reads, *walk.declarations]
        body += [count("k", plan.vector, walk.inner)] if plan.vector > 1 else walk.inner
        parts = self._parts([*body, *walk.writes], not plan.exact or bool(walk.coordinates))
        return [*parts, *([] if plan.chunked else self._at_edge(walk.edge))]

    def _parts(self, body: Iterable[Statement], located: bool) -> list[Statement]:
        """Each of a thread's vectors; ``located``: something asks where it is."""
        plan = self.schedule
        at = [self.constant(AT, self._at())] if located else []
        # A row that is staged and read once from there: two vectors at a time keep the registers few.
        unroll = 2 if plan.staged and not plan.persistent and not plan.reused else 0
        parts = For("part", Plain("int"), Number(0), plan.vectors_per_thread > PART, None, (*at, *body), unroll)
        return [parts]

    def _at(self) -> Term:
        """Where a thread's vector lies in a row."""
        plan = self.schedule
        terms: list[Term] = [HEAD] if plan.unaligned else []
        terms += [BEGIN] if plan.cluster > 1 or self.kernel.row_tiles or plan.chunked else []
        number: list[Term] = [plan.threads * PART, THREAD] if plan.vectors_per_thread > 1 else [THREAD]
        if plan.vector > 1:
            vectors = total(number)
            assert vectors is not None
            number = [plan.vector * vectors]
        at = total([*terms, *number])
        assert at is not None
        return at

    def _where_elements_are(self, statements: list[Statement], end: Term = END) -> list[Statement]:
        """The statements, guarded if some threads have no elements."""
        return statements if self.schedule.exact else [If(AT < end, tuple(statements))]

    def _at_edge(self, statements: Sequence[Statement]) -> list[Statement]:
        """The thread's single element at one of the ends of a row that begins anywhere."""
        return [If(EDGE >= 0, tuple(statements))] if statements and self.schedule.unaligned else []

    # -- where a row is, and what is read of it before all else ---------------------------------------------------

    def _placed(self, name: str, first: Term) -> list[Statement]:
        """The row that starts at ``first``, or where several lie side by side this thread's, and how far it goes."""
        plan, found = self.schedule, list[Statement]()
        if plan.rows > 1:
            own = Convert(plan.index, first + THREAD_ROW)
            found.append(self.constant(Symbol(name), invoke("fg::at_most", own, self.until - 1)))
        elif Symbol(name) != first:
            found.append(self.constant(Symbol(name), first))
        if plan.rows > 1 and not plan.unaligned:
            found.append(self.constant(END, Choice(first + THREAD_ROW < self.until, N, Number(0))))
        elif not plan.unaligned and not plan.exact:
            found.append(self.constant(END, N))
        return found

    def _ends_of_rows(self, exists: Term | None) -> list[Statement]:
        """Rows that begin anywhere: where the vectors of a row begin and end, and which single element this thread
        takes; ``exists``: the row does, where it may not."""
        plan = self.schedule
        end: Term = invoke("fg::last_vector_end", HEAD, N, of=(plan.vector,))
        edge: Term = invoke("fg::end_element", THREAD, HEAD, END, N)
        if exists is not None:
            end, edge = Choice(exists, end, Number(0)), Choice(exists, edge, NOBODYS)
        # One of the blocks that share a row takes its ends.
        if plan.split:
            edge = Choice(BLOCK_Y > 0, NOBODYS, edge)
        if plan.chunked and plan.cluster > 1:
            edge = Choice(RANK > 0, NOBODYS, edge)
        elif plan.cluster > 1 or self.kernel.row_tiles:
            edge = Choice(BEGIN > 0, NOBODYS, edge)
        head = Declare(Plain("int"), "head", self._head(), constant=True)
        return [head, self.constant(END, end), self.constant(EDGE, edge)]

    def _to_be_read(self) -> list[Statement]:
        """Where what is read ahead will be found."""
        plan, raw, ends = self.schedule, self.raw_ahead, self.ends_ahead
        declared = raw.declarations if raw and not (plan.chunked and not plan.persistent) else []
        return [*declared, *(ends.declarations if ends else [])]

    def _loads(self, operands: _Operands) -> list[Statement]:
        """Everything that is read before anything is computed: of the row, or where rows are prefetched of the next."""
        plan = self.schedule
        things, row = ([*operands.by_row, *self.ahead], "next") if plan.prefetch else (operands.moving, "row")
        found = self.row_coordinates(things, row)
        if plan.unaligned and not plan.persistent:
            found += self._ends_of_rows(FIRST + THREAD_ROW < M if plan.rows > 1 else None)
        found += self.row_reads(operands.by_row)  # which ask whether there is a row, where places tell them
        if self.raw_ahead and not plan.chunked:
            reads = [*self.raw_ahead.coordinates, *self.raw_ahead.reads]
            found += self._parts(self._where_elements_are(reads), True)
        return [*found, *(self._at_edge(self.ends_ahead.reads) if self.ends_ahead else [])]

    # -- one row after the other ----------------------------------------------------------------------------------

    def _all_rows(self, operands: _Operands, row: list[Statement]) -> list[Statement]:
        """A block that goes on from row to row."""
        plan, counter = self.schedule, self.counter
        first, stride = self._first(BLOCK), self._first(GRID)
        found = list[Statement]()
        if plan.slices:
            slice_of_block = self.constant(UNTIL, SLICE * (Convert(plan.index, BLOCK_Z) + 1))
            found += [
                Comment("A block's rows are all of one slice."),
                self.constant(SLICE, M // Convert(plan.index, GRID_Z)), slice_of_block,
                *self._slice_coordinates(),
            ]  # fmt: skip
            first = Binary("+", UNTIL - SLICE, first)
        if plan.unaligned:
            found.append(
                Comment("Rows begin anywhere, but a block's all at the same distance from an aligned address.")
            )
            found += self._ends_of_rows(None)
        found += self._common()
        begin = Declare(self.index, counter.name, first)
        ready = [AWAIT_LOADS, Do(invoke("__syncthreads"))] if self.is_read_by_one_row else []
        ready += [LINK_READY] if plan.cluster > 1 else []
        if not plan.prefetch:
            body = [*self._placed("row", counter), *self._to_be_read(), *self._loads(operands)]
            body += [AWAIT_LOADS] if plan.staged else []
            return [*found, begin, *ready, self._rows(stride, [*body, *row])]
        found += [
            Comment("The next row is read while the present one is worked on."),
            *self._next_of(operands),
            *self._to_be_read(),
        ]
        found += [Declare(Plain("int"), "turn", Number(1))] if plan.staged else []
        found += [begin, Scope((*self._placed("next", counter), *self._loads(operands))), *ready]
        body = [*self._placed("row", counter), *self._arrived(operands)]
        after = [*self._placed("next", Binary("+", counter, stride)), *self._loads(operands)]
        body.append(If(Binary("+", counter, stride) < self.until, tuple(after)))
        return [*found, self._rows(stride, [*body, *row])]

    def _rows(self, stride: Term, body: Iterable[Statement]) -> Statement:
        return For(self.counter.name, None, None, self.counter < self.until, stride, tuple(body))

    def _slice_coordinates(self) -> list[Statement]:
        """Where the slice of a block is."""
        plan = self.schedule
        used = self.moving([o.name for o in self.shared], range(plan.slices))
        return self.coordinates(0, plan.loops - 1, UNTIL - SLICE, used)

    def _common(self) -> list[Statement]:
        """What all rows have in common, read once."""
        plan = self.schedule
        if not self.shared:
            return []
        raw, ends = self._raw(self.shared, False, plan.dynamic > 0), self._ends(self.shared)
        reads = self._where_elements_are([*raw.coordinates, *raw.reads], END if plan.unaligned else N)
        found: list[Statement] = [Comment(f"All {'its ' if plan.slices else ''}rows have these in common.")]
        parts = self._parts(reads, True)
        if self.is_read_by_one_row:
            parts = [If(THREAD_ROW.equals(0), tuple(parts))]
        found += [*raw.declarations, *parts]
        found += [*ends.declarations, *self._at_edge(ends.reads)] if ends else []
        return [*found, BLANK]

    def _next_of(self, operands: _Operands) -> list[Statement]:
        """What the next row has once."""
        return [Declare(Plain(o.dtype.compute.ctype), f"{self.stem(o.name)}_next") for o in operands.by_row]

    def _arrived(self, operands: _Operands) -> list[Statement]:
        """What was the next row's is the present one's."""
        plan, raw, ends = self.schedule, self.raw_ahead, self.ends_ahead
        found = self.row_coordinates(operands.moving, "row")
        for o in operands.by_row:
            value = Symbol(f"{self.stem(o.name)}_next")
            found.append(Declare(Plain(o.dtype.compute.ctype), self.variable(o.name), value, constant=True))
        found += [*(raw.present if raw else []), *(ends.arrivals if ends else [])]
        if plan.staged:
            return [*found, self._other_turn(), AWAIT_LOADS]
        return [*found, *(self._parts(raw.arrivals, False) if raw else [])]

    @staticmethod
    def _other_turn() -> Statement:
        """The row that was the next one is the present one now."""
        return Assign(TURN, Number(1), "^=")

    def _sums_over_rows(self) -> list[Statement]:
        """What a block has of sums over rows, to where a later kernel puts them together."""
        kernel, plan = self.kernel, self.schedule
        stores = [s for r in kernel.columns for s in self.column(r).store(self.partial(r))]
        if not stores:
            return []
        found: list[Statement] = [BLANK, Comment("What this group of rows adds to each position.")]
        if plan.rows > 1:
            found += [
                Do(invoke("fg::rows_sum", self.column(r).variable, of=(plan.threads, plan.rows)))
                for r in kernel.columns
            ]
            found.append(If(THREAD_ROW > 0, (RETURN,), brief=True))
        group = self._group(BLOCK)
        found.append(self.constant(Symbol("group"), group * GRID_Z + BLOCK_Z if plan.slices else group))
        end = [] if plan.exact else [If(AT >= (END if plan.unaligned else N), (BREAK,), brief=True)]
        body = (self.constant(AT, self._at()), *end, *stores)
        found.append(For("part", Plain("int"), Number(0), plan.vectors_per_thread > PART, None, body, 0))
        edges = [
            Assign(self.partial(r).at(Symbol("group") * N + EDGE), Symbol(f"{self.stem(r.name)}_edge"))
            for r in kernel.columns
        ]
        return [*found, *self._at_edge(edges)]

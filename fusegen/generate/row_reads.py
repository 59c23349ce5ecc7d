"""How a row kernel reads: what a thread takes of each row before anything else, and where it keeps that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusegen.core.ir import Operand
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.rows_schedule import RowSchedule, kept_for_all, kept_in_registers
from fusegen.generate.builder import Builder
from fusegen.generate.traversal import Ahead
from fusegen.kernel_program.nodes import (
    BLOCK,
    THREAD,
    THREAD_ROW,
    AddressOf,
    Assign,
    Binary,
    Convert,
    Declare,
    Do,
    Number,
    Plain,
    Shared,
    Statement,
    Symbol,
    Term,
    Vector,
    invoke,
)

PART, TURN = Symbol("part"), Symbol("turn")


@dataclass
class RowReads(Builder):
    """The part of `Rows` that is about memory.

    ``ahead``: operands that a thread reads before all else and keeps for the row; ``shared``: those that all rows have
    in common, kept by a persistent block for all of them.
    """

    kernel: RowKernel
    schedule: RowSchedule

    def __post_init__(self) -> None:
        super().__post_init__()
        plan = self.schedule
        self.kept_loops = range(plan.loops)
        self.over_loops = range(plan.loops, plan.loops + plan.inner)
        self.fast = plan.loops + plan.inner - 1
        ahead, common = kept_in_registers(self.kernel, plan), kept_for_all(self.kernel, plan)
        self.ahead = [o for o in self.kernel.tensors if o.name in ahead]
        self.shared = [o for o in self.kernel.tensors if o.name in common and o not in self.ahead]

    def _raw_type(self, operand: Operand) -> Vector | Plain:
        """A vector as it lies in memory."""
        ctype, vector = operand.dtype.ctype, self.schedule.vector
        return Vector(ctype, vector, raw=True) if vector > 1 else Plain(ctype)

    def _raw(self, operands: Sequence[Operand], double_buffered: bool, staged: bool) -> Ahead:
        """Reading a row ahead: the present one, or where rows are ``double_buffered`` the next.

        ``staged``: into shared memory, where the present row and the next have a place each; else into registers.
        """
        plan = self.schedule
        found = Ahead(coordinates=self._element_coordinates([o.name for o in operands]))
        for operand in operands:
            if staged:
                found.declarations.append(self._in_shared_memory(operand, double_buffered))
                self._read_staged(operand, double_buffered, found)
                continue
            name, element = self.stem(operand.name), self._raw_type(operand)
            held = f"{name}_{'next' if double_buffered else 'row'}"
            found.declarations.append(Declare(element, held, None, (plan.vectors_per_thread,)))
            if double_buffered:
                found.present.append(Declare(element, f"{name}_row", None, (plan.vectors_per_thread,)))
                found.arrivals.append(Assign(Symbol(f"{name}_row").at(PART), Symbol(held).at(PART)))
            target = Symbol(held).at(PART)
            if plan.unaligned and operand in self.shared:
                found.reads.append(Assign(target, self._across(operand.name)))
                continue
            load, width = ("fg::load_raw", (plan.vector,)) if plan.vector > 1 else ("*", ())

            def read(pointer: Term, target: Term = target, load: str = load, of: tuple[int, ...] = width) -> Statement:
                return Assign(target, invoke(load, pointer, of=of))

            found.reads += self.access(read, operand.name, self.offset(operand.name, range(self.fast + 1)))
        return found

    def _in_shared_memory(self, operand: Operand, double_buffered: bool) -> Statement:
        """The place of a staged operand."""
        plan, name = self.schedule, self.stem(operand.name)
        turns = (2,) if double_buffered else ()
        rows = 1 if operand in self.shared else plan.rows
        dims = (*turns, plan.vectors_per_thread, plan.threads * rows)
        if not plan.dynamic:
            return Shared(self._raw_type(operand), f"{name}_row", dims, alias=f"{name}_element")
        placed = [*self.shared, *self.ahead]
        earlier, alias = placed[: placed.index(operand)], f"{name}_rows"
        place = invoke("fg::dynamic_shared", of=(alias,))
        if earlier:
            place = invoke("fg::behind", Symbol(f"{self.stem(earlier[-1].name)}_row"), of=(alias,))
        return Shared(self._raw_type(operand), f"{name}_row", dims, place, alias)

    def _read_staged(self, operand: Operand, double_buffered: bool, found: Ahead) -> None:
        row: Term = Symbol(f"{self.stem(operand.name)}_row")
        row = row.at(Binary("^", TURN, Number(1))) if double_buffered else row
        place = row.at(PART, self._place_of(operand))
        if self.schedule.unaligned and operand in self.shared:
            found.reads.append(Assign(place, self._across(operand.name)))
            return

        own = all(move != "0" for move in self.schedule.placement(operand.name).moves[: self.schedule.loops])
        load = "fg::load_async" if own or operand in self.shared else "fg::load_async_cached"

        def read(pointer: Term) -> Statement:
            return Do(invoke(load, AddressOf(place), pointer))

        found.reads += self.access(read, operand.name, self.offset(operand.name, range(self.fast + 1)))

    def _head(self) -> Term:
        """Elements of a row before its first aligned vector; of a block's first row, where that goes on."""
        plan = self.schedule
        name = min(self.ahead, key=lambda o: o.dtype.size).name
        instead: Mapping[int, Term] = {}
        if plan.persistent:
            first = self._first(BLOCK)
            instead = {0: first + THREAD_ROW if plan.rows > 1 else first}
        offset = self.offset(name, self.kept_loops, instead)
        return invoke("fg::to_aligned", self.pointer(name, offset), of=(plan.vector,))

    def _ends(self, operands: Sequence[Operand], double_buffered: bool = False) -> Ahead | None:
        """Reading the single elements at the ends of rows that begin anywhere, a thread one: as `_raw` does vectors."""
        if not self.schedule.unaligned or not operands:
            return None
        found = Ahead(reads=[self._at_edge_coordinate()])
        for operand in operands:
            name, ctype = self.stem(operand.name), Plain(operand.dtype.ctype)
            held = Symbol(f"{name}_{'edge_next' if double_buffered else 'edge'}")
            found.declarations.append(Declare(ctype, held.name))
            if double_buffered:
                found.arrivals.append(Declare(ctype, f"{name}_edge", held, constant=True))

            def read(pointer: Term, held: Term = held) -> Statement:
                return Assign(held, invoke("*", pointer))

            found.reads += self.access(read, operand.name, self.offset(operand.name, range(self.fast + 1)))
        return found

    def _at_edge_coordinate(self) -> Statement:
        """Where the single element of a thread is."""
        return Declare(Plain(self.schedule.index), f"j{self.fast}", Symbol("edge"), constant=True)

    def _across(self, name: str) -> Term:
        """A vector of an operand that lies across those of the row, if it moves along the row by one."""
        row = self.pointer(name, self.offset(name, range(self.fast)))
        return invoke("fg::load_raw_across", row, Symbol(f"j{self.fast}"), Symbol("n"), of=(self.schedule.vector,))

    def _held(self, operand: Operand) -> Term:
        """Where a thread finds what it has read of an operand."""
        plan, row = self.schedule, Symbol(f"{self.stem(operand.name)}_row")
        if operand in self.shared:
            return row.at(PART, *([self._place_of(operand)] if plan.dynamic else []))
        if not plan.staged:
            return row.at(PART)
        return row.at(*([TURN] if plan.prefetch else []), PART, Symbol("thread"))

    def _place_of(self, operand: Operand) -> Term:
        """Which of a staged operand's vectors are a thread's: each row has its own but of what all have in common."""
        return THREAD if operand in self.shared and self.schedule.rows > 1 else Symbol("thread")

    def _element_coordinates(self, names: Sequence[str]) -> list[Statement]:
        return self.coordinates(self.over_loops.start, self.fast, Symbol("at"), self.moving(names, self.over_loops))

    def _first(self, block: Term) -> Term:
        """The first row of a group: blocks that share a row make a group, and so does a block with several rows."""
        rows = self.schedule.rows
        return rows * self._group(block) if rows > 1 else self._group(block)

    def _group(self, block: Term) -> Term:
        plan = self.schedule
        group = Convert(plan.index, block)
        return group // plan.cluster if plan.cluster > 1 else group

"""Kernels that visit every element once: elementwise, full reduction, tiled transpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusegen.core.ir import Operand, Output, Place
from fusegen.declare.table import draws
from fusegen.fuse.schedule import TILE, Access, ElementwiseSchedule, FullReductionSchedule, TransposeSchedule
from fusegen.generate.builder import Builder
from fusegen.generate.params import needs_coordinates
from fusegen.generate.sums import Sums
from fusegen.generate.traversal import Traversal
from fusegen.kernel_program.nodes import (
    AUTO,
    BLANK,
    RETURN,
    THREAD,
    THREAD_ROW,
    Assign,
    Comment,
    Convert,
    Declare,
    Do,
    For,
    Function,
    If,
    KernelProgram,
    Number,
    Plain,
    Shared,
    Statement,
    Symbol,
    Term,
    Vector,
    count,
    every,
    invoke,
)

AT, FIRST, K, N, STRIDE = map(Symbol, ("at", "first", "k", "n", "stride"))
COL, COL0, COLS, LINE, ROW, ROW0, ROWS = map(Symbol, ("col", "col0", "cols", "line", "row", "row0", "rows"))
_BY_COORDINATES = (Access.ROW, Access.SPLAT, Access.STRIDED)
TILE_ROWS = 8  # rows of threads of a block that takes a tile


class _Vectors(Builder):
    """Vectors of neighbouring elements: how they are read, computed and written."""

    schedule: ElementwiseSchedule | FullReductionSchedule

    def _vector(self) -> Traversal:
        """What is done with a vector, and what goes on to its next element."""
        if not self.schedule.exact:  # elements behind the last one read as zero
            self.printer = replace(self.printer, inside="at + k < n")
        found = self._vector_parts()
        self.printer = replace(self.printer, inside="")
        return found

    def _vector_parts(self) -> Traversal:
        found, plan = Traversal(), self.schedule
        offset_names = [p.name for p in plan.placements if p.access in _BY_COORDINATES]
        last = plan.loops - 1
        used = self.moving(offset_names, range(last + 1))
        if offset_names and plan.whole_rows:
            found.coordinates = self.coordinates(0, last, AT, used)
            if last in used and last > 0 and draws(self.kernel.items):
                # Four neighbours share the work for their numbers, if it is known which of the four is which.
                found.coordinates.append(Do(invoke("fg::assume_multiple", Symbol(f"j{last}"), of=(plan.vector,))))
        elif used:  # what is read may be at one place for all
            found.coordinates = self.coordinates(0, last, AT, set(range(min(used), last + 1)), constant=False)
        whole = bool(self.kernel.reduces)
        for operand in self.kernel.operands:
            if not whole or operand.name in self.read_in_body:
                self._vector_read(operand, found)
        found.inner += self.lets(self.kernel.body)
        for output in self.kernel.pointwise if whole else self.kernel.outputs:
            self._vector_write(output, found)
        if used and not plan.whole_rows:
            found.next = self.next_coordinates(last, used, Symbol("true") if plan.exact else AT + K < N - 1)
        return found

    def _vector_read(self, operand: Operand, found: Traversal) -> None:
        name, vector = operand.name, self.schedule.vector
        access = self.schedule.placement(name).access
        everywhere = range(self.schedule.loops)
        if access is Access.SINGLE:
            found.reads += self.read(operand, None)
        elif access is Access.SPLAT or name in self._read_for_vectors():
            found.reads += self.read(operand, self.offset(name, everywhere))
        elif access is Access.STRIDED:
            found.inner += self.read(operand, self._strided_offset(name))
        else:
            if access is Access.ROW:
                found.reads += self.read_vector(operand, self.offset(name, everywhere))
            elif access is Access.DENSE and self.schedule.exact:
                found.reads += self.read_vector(operand, AT)
            else:
                kind = "_unaligned" if access is Access.UNALIGNED else ""
                load = invoke(f"fg::load{kind}", Symbol(self.names.pointer(name)), AT, N, of=(vector,))
                found.reads.append(Declare(AUTO, f"{self.stem(name)}_v", load, constant=True))
            found.inner.append(self.vector_element(operand))

    def _read_for_vectors(self) -> set[str]:
        """Where places stand that vectors are read at: the same for a whole vector."""
        vectors = [o for o in self.kernel.gathered if self.schedule.placement(o.name).access is Access.ROW]
        return {ref.name for operand in vectors for ref in operand.reads if isinstance(ref, Place)}

    def _strided_offset(self, name: str) -> Term | None:
        """Element k of the vector; where rows are whole the fast coordinate is that of the vector's first element."""
        offset = self.offset(name, range(self.schedule.loops))
        return self.element_offset(name, offset, self.schedule.loops - 1) if self.schedule.whole_rows else offset

    def _vector_write(self, output: Output, found: Traversal) -> None:
        name, vector, plan = output.name, self.schedule.vector, self.schedule
        access = plan.placement(name).access
        if access is Access.STRIDED:
            *named, store = self.store(output, self._strided_offset(name))
            found.inner += [*named, store if plan.whole_rows else If(AT + K < N, (store,), brief=True)]
            return
        own = Symbol(f"{self.stem(name)}_v")
        found.declarations.append(Declare(Vector(output.dtype.compute.ctype, vector), own.name))
        found.inner.append(Assign(own.at(K), self.value(output.expr)))
        if access is Access.ROW:
            found.writes += self.write_vector(output, self.offset(name, range(plan.loops)))
        elif access is Access.DENSE and plan.exact:
            found.writes += self.write_vector(output, AT)
        else:
            kind = "_unaligned" if access is Access.UNALIGNED else ""
            pointer = Symbol(self.names.pointer(name))
            found.writes.append(Do(invoke(f"fg::store{kind}", pointer, AT, N, own, of=(vector,))))


class Elementwise(_Vectors):
    """A thread has a vector of elements, or one, or several that lie a block apart."""

    schedule: ElementwiseSchedule

    def program(self) -> KernelProgram:
        """All of it."""
        if self.schedule.vector > 1:
            body = self._of_vectors()
        elif self.schedule.vectors_per_thread > 1:
            body = self._apart()
        else:
            body = self._of_elements()
        start = [*self.located(), *self.start(self.schedule.follows)]
        return self.made((self.schedule.threads, 1), (*start, *body))

    def _own(self) -> Term:
        """The number of a thread in the grid."""
        return Convert(self.schedule.index, self.block) * self.schedule.threads + THREAD

    def _of_vectors(self) -> list[Statement]:
        plan, walk = self.schedule, self._vector()
        reads = [BLANK, *walk.reads] if walk.reads else []
        return [
            Comment(f"Locate: each thread owns {plan.vector} consecutive elements."),
            self.constant(AT, plan.vector * self._own()),
            If(AT >= N, (RETURN,), brief=True),
            *walk.coordinates, *reads, *walk.declarations,
            BLANK,
            count("k", plan.vector, [*walk.inner, *walk.next]), *walk.writes,
        ]  # fmt: skip

    def _of_elements(self) -> list[Statement]:
        coordinates, _, inner = self._scalar()
        return [self.constant(AT, self._own()), If(AT >= N, (RETURN,), brief=True), *coordinates, BLANK, *inner]

    def _apart(self) -> list[Statement]:
        """As many bytes are under way as with vectors."""
        plan, (coordinates, reads, inner) = self.schedule, self._scalar()
        several, index = plan.vectors_per_thread, Plain(plan.index)
        first = Convert(plan.index, self.block) * (several * plan.threads) + THREAD
        take = Do(invoke("element", AT))
        return [
            Comment(
                f"Each thread takes {several} elements, a block apart: neighbours take neighbours, and all are under "
                "way at once."
            ),
            self.constant(FIRST, first),
            *([BLANK, *reads] if reads else []),
            BLANK,
            Function("element", index, "at", (*coordinates, *inner)),
            If(
                FIRST + (several - 1) * plan.threads < N,
                (count("k", several, [Do(invoke("element", FIRST + plan.threads * K))], brief=True),),
                otherwise=(For("at", index, FIRST, AT < N, Number(plan.threads), (take,), brief=True),),
            ),
        ]

    def _scalar(self) -> tuple[list[Statement], list[Statement], list[Statement]]:
        """Of single elements where each is, what is read once, and what is done with each."""
        plan = self.schedule
        names = [*(o.name for o in self.kernel.operands), *(o.name for o in self.kernel.outputs)]
        at = {name: self._scalar_offset(name) for name in names}
        apart = plan.vectors_per_thread > 1
        singles = [o for o in self.kernel.operands if apart and plan.placement(o.name).access is Access.SINGLE]
        coordinates = list[Statement]()
        if needs_coordinates(plan):
            names = [p.name for p in plan.placements if p.access in _BY_COORDINATES]
            last = plan.loops - 1
            coordinates = self.coordinates(0, last, AT, self.moving(names, range(last + 1)))
        reads = [s for o in singles for s in self.read(o, at[o.name])]
        inner = [s for o in self.kernel.operands if o not in singles for s in self.read(o, at[o.name])]
        inner += self.lets(self.kernel.body)
        for output in self.kernel.outputs:
            inner += self.store(output, at[output.name])
        return coordinates, reads, inner

    def _scalar_offset(self, name: str) -> Term | None:
        access = self.schedule.placement(name).access
        if access is Access.SINGLE:
            return None
        if access in (Access.DENSE, Access.UNALIGNED):
            return AT
        return self.offset(name, range(self.schedule.loops))


class FullReduction(_Vectors, Sums):
    """Every element once, by blocks that take turns, with sums on the way."""

    schedule: FullReductionSchedule

    def program(self) -> KernelProgram:
        """All of it."""
        kernel, plan, walk = self.kernel, self.schedule, self._vector()
        singles = [o for o in kernel.operands if plan.placement(o.name).access is Access.SINGLE]
        once = [s for o in singles if o.name in self.read_in_body for s in self.read(o, None)]
        for a in self._accumulators():
            added = a.add(self.value(a.reduce.expr), self.printer.is_faster(a.reduce.expr.dtype))
            walk.inner.append(added if plan.exact else If(AT + K < N, (added,), brief=True))
        self._add_iterations(walk)
        index, blocks = plan.index, Convert(plan.index, self.blocks)
        reads = [*walk.coordinates, *(s for s in walk.reads if s not in once), *walk.declarations]
        loop = [*reads, count("k", plan.vector, [*walk.inner, *walk.next]), *walk.writes]
        already = {o.name for o in singles if o.name in self.read_in_body}
        ending = self._partials(self.block) if plan.split else self._epilogue(already)
        body = [
            *self.located(), *self.start(plan.follows), *once, *(a.declare() for a in self._accumulators()),
            BLANK,
            Comment(f"The blocks take turns; each thread owns {plan.vector} consecutive elements at a time."),
            self.constant(FIRST, plan.vector * (Convert(index, self.block) * plan.threads + THREAD)),
            self.constant(STRIDE, plan.vector * blocks * plan.threads),
            For("at", Plain(index), FIRST, AT < N, STRIDE, tuple(loop)),
            *self._combine(),
            BLANK,
            If(THREAD.equals(0), tuple(ending)),
        ]  # fmt: skip
        return self.made((plan.threads, 1), tuple(body), self.resident(0))


class TiledTranspose(Builder):
    """Tiles of two axes through shared memory."""

    schedule: TransposeSchedule

    def program(self) -> KernelProgram:
        """All of it."""
        plan = self.schedule
        outer = plan.loops - 2
        transposed = [o for o in self.kernel.operands if plan.placement(o.name).access is Access.TRANSPOSED]
        inner = list[Statement]()
        for operand in self.kernel.operands:
            offset = self._tile_offset(operand.name, outer)
            if operand in transposed:
                ctype = Plain(operand.dtype.compute.ctype)
                element = self._tile(operand).at(THREAD, LINE)
                inner.append(Declare(ctype, self.variable(operand.name), element, constant=True))
            else:
                inner += self.read(operand, offset)
        inner += self.lets(self.kernel.body)
        for output in self.kernel.outputs:
            inner += self.store(output, self._tile_offset(output.name, outer))
        fill = [Assign(self._tile(o).at(LINE, THREAD), self._load(o, outer)) for o in transposed]
        body = [
            *self.located(), *self.start(plan.follows), *self._where(outer),
            BLANK,
            Comment("What lies along the rows is read along them, a warp a row, and transposed in shared memory."),
            *(Shared(Plain(o.dtype.compute.ctype), self._tile(o).name, (TILE, TILE + 1)) for o in transposed),
            self._lines(THREAD, LINE, fill),
            Do(invoke("__syncthreads")),
            BLANK,
            self._lines(LINE, THREAD, inner),
        ]  # fmt: skip
        return self.made((TILE, TILE_ROWS), tuple(body))

    def _tile(self, operand: Operand) -> Symbol:
        return Symbol(f"{self.stem(operand.name)}_tile")

    def _load(self, operand: Operand, outer: int) -> Term:
        return invoke("fg::load", self.pointer(operand.name, self._tile_offset(operand.name, outer)))

    def _where(self, outer: int) -> list[Statement]:
        """The tile of a block."""
        order = "the tiles of one matrix follow each other, then the next matrix" if outer else "row by row of tiles"
        rest, across, down, int_ = Symbol("rest"), Symbol("tiles_across"), Symbol("tiles_down"), Plain("int")
        found: list[Statement] = [
            Comment(f"A block owns a tile of {TILE} x {TILE} elements: {order}."),
            Declare(int_, across.name, (COLS + (TILE - 1)) // TILE, constant=True),
            Declare(int_, down.name, (ROWS + (TILE - 1)) // TILE, constant=True),
            Declare(Plain(self.schedule.index), rest.name, self.block),
            Declare(int_, COL0.name, TILE * Convert("int", rest % across), constant=True),
            Assign(rest, across, "/="),
            Declare(int_, ROW0.name, TILE * Convert("int", rest % down), constant=True),
        ]
        if outer:
            names = [p.name for p in self.schedule.placements]
            found += [
                Assign(rest, down, "/="),
                *self.coordinates(0, outer - 1, rest, self.moving(names, range(outer)), "matrix"),
            ]
        return found

    def _lines(self, row: Term, col: Term, body: Sequence[Statement]) -> Statement:
        """The lines of a tile that a thread takes."""
        inside = every([ROW < ROWS, COL < COLS])
        statements = [self.constant(ROW, ROW0 + row), self.constant(COL, COL0 + col), If(inside, tuple(body))]
        return For("line", Plain("int"), THREAD_ROW, LINE < TILE, Number(TILE_ROWS), tuple(statements), 0)

    def _tile_offset(self, name: str, outer: int) -> Term | None:
        return self.offset(name, range(outer + 2), {outer: ROW, outer + 1: COL})

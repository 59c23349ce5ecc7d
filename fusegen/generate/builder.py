"""What the builders of kernel programs share: names, offsets, coordinates, reads and stores, as statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fusegen.core.ir import Call, Expr, Let, Operand, Output, Reduce, axis_order, names_read, own_size, walk
from fusegen.fuse.kernel import Gathered, Kernel, Position, with_places
from fusegen.fuse.reuse import Traversal, still_needed
from fusegen.fuse.schedule import THREADS, FullReductionSchedule, Schedule
from fusegen.generate.cexpr import Printer
from fusegen.generate.names import Names
from fusegen.generate.params import parameters
from fusegen.generate.scalars import computed_once
from fusegen.generate.table import Table
from fusegen.generate.templates import template
from fusegen.generate.wording import WIDTH
from fusegen.kernel_program.nodes import (
    AUTO,
    BLOCK,
    GRID,
    Assign,
    Binary,
    Comment,
    Declare,
    Do,
    KernelProgram,
    Number,
    Plain,
    Statement,
    Symbol,
    Term,
    Together,
    Value,
    Vector,
    invoke,
    total,
)
from fusegen.kernel_program.text import Lines

# Blocks of 256 threads that kernels with a loop are compiled to keep on a multiprocessor: 64 registers a thread. Left
# to choose, the compiler aims at more blocks, and to save registers loads one operand only when done with another.
RESIDENT = 4
# The same for threads that have more values than these at a time: 80 registers, and 128.
RESIDENT_WITH = {32: 3, 48: 2}
# Statements that read or write at a pointer, made once it is known.
AtPointer = Callable[[Term], Statement]


@cache
def macros() -> Any:
    """What prints statements."""
    return template("kernel_program").module


@dataclass
class Builder:
    """Makes the statements of one kernel under its schedule."""

    kernel: Kernel
    schedule: Schedule
    names: Names
    indent: int = len("      ")  # of the deepest lines

    def __post_init__(self) -> None:
        half = self.kernel.op.is_half
        # Names whose values a thread has several of, side by side: the present one is the k-th.
        self.in_vectors = set[str]()
        self.lines = Lines(macros(), WIDTH - self.indent)
        # A split kernel's two stages do not have all numbers each.
        self.numbers = {} if self.schedule.split else computed_once(self.kernel)
        few = self.schedule.index == "int"
        self.number_printer = Printer(half, self.variable)
        self.printer = Printer(half, self.variable, self.numbers, self.kernel.is_of_elements, few=few)
        self._read: dict[Let | Reduce | Output, set[str]] = {}
        self._lets: dict[Let, Statement] = {}
        # What earlier traversals of a row have kept.
        self._known: set[str] = set()
        self.read_in_body = self.needed((*self.kernel.body, *self.kernel.reduces, *self.kernel.pointwise))

    def made(
        self,
        block: tuple[int, int],
        body: Iterable[Statement],
        resident: int = 0,
        cluster: int = 1,
        stage: str = "main",
    ) -> KernelProgram:
        """The program of these statements; ``stage``: "finish" is the second kernel of a split reduction."""
        things = (*self.kernel.operands, *self.kernel.scalars, *self.kernel.items)
        variables = {thing.name: self.current(thing.name) for thing in things}
        params = [p.name for p in parameters(self.kernel, self.schedule, self.names, stage)]
        if self.schedule.table:
            params = [p.name for p in Table.of(parameters(self.kernel, self.schedule, self.names, stage)).shared]
        return KernelProgram(tuple(params), variables, block, cluster, tuple(body), resident)

    def current(self, name: str) -> Term:
        """What holds the present value of a name of the op's."""
        of_vector = Symbol(f"{self.stem(name)}_v").at(Symbol("k"))
        return of_vector if name in self.in_vectors else Symbol(self.names.variable(name))

    def text(self, program: KernelProgram, above: Sequence[str], signature: str) -> str:
        """A program in CUDA; ``above``: the lines in front of it."""
        cluster = f"FUSEGEN_CLUSTER({program.cluster}) " if program.cluster > 1 else ""
        found: str = macros().kernel(above, cluster, program.bounds, signature, self.lines.of(program.body))
        return found

    @property
    def block(self) -> Term:
        """Which of its tensor's blocks a block is: of the grid, unless that is of many tensors."""
        return Symbol("block") if self.schedule.table else BLOCK

    @property
    def blocks(self) -> Term:
        """How many blocks its tensor has."""
        return Symbol("blocks") if self.schedule.table else GRID

    def located(self, stage: str = "main") -> list[Statement]:
        """Finds a block's tensor, where a launch has many."""
        if not self.schedule.table:
            return []
        table = Table.of(parameters(self.kernel, self.schedule, self.names, stage))
        first, member, int_ = Symbol("table.first_block"), Symbol("member"), Plain("int")
        found: list[Statement] = [
            Comment("Find the tensor that this block is one of, and which one of its blocks it is."),
            Declare(int_, "member", invoke("fg::member_of", first, BLOCK), constant=True),
            Declare(int_, "block", BLOCK - first.at(member), constant=True),
        ]
        if isinstance(self.schedule, FullReductionSchedule) and stage == "main":
            found.append(Declare(int_, "blocks", first.at(member + 1) - first.at(member), constant=True))
        for position, param in enumerate(table.fields):
            own = Symbol(f"table.{param.name}").at(member)
            found.append(Declare(Plain(param.ctype), param.name, own, constant=position >= table.pointers))
        return found

    def resident(self, values: int) -> int:
        """Blocks that a multiprocessor should hold; ``values``: what a thread has at a time."""
        if self.schedule.threads != THREADS:
            return 0
        return min((n for more, n in RESIDENT_WITH.items() if values > more), default=RESIDENT)

    def constant(self, name: Symbol, value: Term) -> Declare:
        """A position that does not change."""
        return Declare(Plain(self.schedule.index), name.name, value, constant=True)

    def needed(self, items: Iterable[Let | Reduce | Output]) -> set[str]:
        """Names that the items read."""
        found: set[str] = set()
        for item in items:
            if item not in self._read:
                self._read[item] = names_read([item])
            found |= self._read[item]
        return with_places(found, self.kernel.gathered) if self.kernel.gathered else found

    def value(self, expr: Expr, printer: Printer | None = None) -> Value:
        """An expression of the op."""
        return Value(expr, *(printer or self.printer).printed(expr))

    def start(self, follows: bool) -> list[Statement]:
        """How a kernel begins: what it computes once, and how it waits for one of its op before it."""
        found: list[Statement] = [
            Declare(Plain(expr.dtype.ctype), name, self.value(expr, self.number_printer), constant=True)
            for expr, name in self.numbers.items()
        ]
        return [*found, *([Do(invoke("fg::wait_for_previous_kernel"))] if follows else [])]

    def variable(self, name: str) -> str:
        """What holds the current element of ``name``."""
        return f"{self.stem(name)}_v[k]" if name in self.in_vectors else self.names.variable(name)

    def stem(self, name: str) -> str:
        """The start of names that are made from ``name``."""
        return self.names.stem(name)

    # -- intermediates --------------------------------------------------------------------------------------------

    def lets(self, lets: Sequence[Let]) -> list[Statement]:
        """Intermediates as constants."""
        for let in lets:
            if let not in self._lets:
                ctype, name = Plain(let.expr.dtype.ctype), self.variable(let.name)
                self._lets[let] = Declare(ctype, name, self.value(let.expr), constant=True)
        return [self._lets[let] for let in lets]

    def still_needed(self, lets: Sequence[Let], items: Sequence[Reduce | Output]) -> list[Let]:
        """The lets of a traversal, but for those that only others need which earlier traversals have kept."""
        return list(still_needed(Traversal(tuple(lets), tuple(items)), self._known)) if self._known else list(lets)

    def is_known(self, let: Let) -> bool:
        """Whether an earlier traversal has kept it."""
        return let.name in self._known

    def element_lets(self, lets: Sequence[Let], held: Callable[[str], Term], keep: bool) -> list[Statement]:
        """Lets at an element, those that are kept read from where they are or stored there.

        Args:
            held: where the present element is, of a stem.
            keep: whether later traversals read what this one computes.
        """
        found = list[Statement]()
        for let in lets:
            place = held(self.stem(let.name))
            if self.is_known(let):
                found.append(Declare(Plain(let.expr.dtype.ctype), self.variable(let.name), place, constant=True))
                continue
            found += self.lets([let])
            if keep and let.name in self.schedule.reused:
                found.append(Assign(place, Symbol(self.variable(let.name))))
        return found

    def keep(self, lets: Sequence[Let]) -> list[Let]:
        """Note what a traversal has kept, and return it: it needs a declaration."""
        kept = [let for let in lets if let.name in self.schedule.reused and not self.is_known(let)]
        self._known.update(let.name for let in kept)
        return kept

    def declare_row(self, let: Let) -> Statement:
        """Where a thread keeps the elements of an intermediate."""
        plan = self.schedule
        return Declare(
            self.vector_of(let.expr.dtype.ctype), f"{self.stem(let.name)}_row", None, (plan.vectors_per_thread,)
        )

    def vector_of(self, ctype: str) -> Vector | Plain:
        """A vector of the schedule's width, or a number where there is none."""
        return Vector(ctype, self.schedule.vector) if self.schedule.vector > 1 else Plain(ctype)

    # -- where things are -----------------------------------------------------------------------------------------

    def offset(self, name: str, loops: Iterable[int], instead: Mapping[int, Term] | None = None) -> Term | None:
        """The element that ``name`` has at the current coordinates, along the given loops; None is the first.

        Args:
            instead: other coordinates, of loops.
        """
        terms = list[Term]()
        for loop in loops:
            move, at = self.schedule.placement(name).moves[loop], (instead or {}).get(loop, Symbol(f"j{loop}"))
            if move in ("1", "s"):
                terms.append(at if move == "1" else at * self.stride(name, loop))
        return total(terms)

    def stride(self, name: str, loop: int) -> Term:
        """How far apart in memory neighbours along a loop are."""
        return Symbol(f"{self.stem(self.kernel.memory.get(name, name))}_stride{loop}")

    def pointer(self, name: str, offset: Term | None) -> Term:
        """``x_ptr + offset``."""
        start = Symbol(self.names.pointer(self.kernel.memory.get(name, name)))
        return start if offset is None else add(start, offset)

    def element_offset(self, name: str, offset: Term | None, fast: int) -> Term | None:
        """``offset``, k elements further along the loop ``fast``."""
        k, move = Symbol("k"), self.schedule.placement(name).moves[fast]
        step = {"1": k, "s": k * self.stride(name, fast)}.get(move)
        return total(each for each in (offset, step) if each is not None)

    def coordinates(
        self, first: int, last: int, position: Term, used: set[int], rest: str = "rest", *, constant: bool = True
    ) -> list[Statement]:
        """Takes the coordinates of loops ``first`` to ``last`` off a linear position."""
        index = Plain(self.schedule.index)
        if not used:
            return []
        if last == first:
            return [Declare(index, f"j{first}", position, constant=constant)]
        found: list[Statement] = [Declare(index, rest, position)]
        lowest = min(used)
        for loop in range(last, max(first, lowest - 1), -1):
            take = invoke("fg::take", Symbol(rest), Symbol(f"n{loop}"))
            found.append(Declare(index, f"j{loop}", take, constant=constant) if loop in used else Do(take))
        if lowest == first:
            found.append(Declare(index, f"j{first}", Symbol(rest), constant=constant))
        return found

    def next_coordinates(self, last: int, used: set[int], more: Term) -> list[Statement]:
        """Goes on by one element, if there are ``more``, with the loops from the slowest in ``used``."""
        for loop in range(last, max(min(used), 1) - 1, -1):
            more = invoke("fg::advance", Symbol(f"j{loop}"), Symbol(f"n{loop}"), more)
        return [Do(more) if min(used) else Assign(Symbol("j0"), more, "+=")]

    def moving(self, names: Iterable[str], loops: Iterable[int]) -> set[int]:
        """The loops among ``loops`` along which some of ``names`` moves."""
        wanted = set(loops)
        return {
            loop
            for name in names
            for loop, move in enumerate(self.schedule.placement(name).moves)
            if move != "0" and loop in wanted
        }

    # -- reads and stores -----------------------------------------------------------------------------------------

    def read_once(self, operands: Iterable[Operand]) -> list[Statement]:
        """Elements that a whole kernel has in common, read before it knows where it is: there always are such."""
        printer, self.printer = self.printer, replace(self.printer, inside="")
        found = [s for o in operands for s in self.read(o, None)]
        self.printer = printer
        return found

    def read(self, operand: Operand, offset: Term | None) -> list[Statement]:
        """One element as a constant."""

        def declared(value: Term) -> Declare:
            ctype = Plain(operand.dtype.compute.ctype)
            return Declare(ctype, self.variable(operand.name), value, constant=True)

        if isinstance(operand, Position):
            return [declared(Number(0) if offset is None else offset)]
        if isinstance(operand, Gathered):
            places, gather = self.gather(operand, declared)
            return [*places, *self.access(gather, operand.name, offset)]
        return self.access(lambda pointer: declared(invoke("fg::load", pointer)), operand.name, offset)

    def gather(
        self, operand: Gathered, statement: Callable[[Term], Statement], vector: tuple[int, ...] = ()
    ) -> tuple[list[Statement], AtPointer]:
        """``statement`` of an element of what is gathered, given the pointer to where its places are zero; and what
        tells these places in front of it, where there is no room for them."""
        stem = self.stem(operand.name)
        values: dict[str, Term] = {axis: self.value(place) for axis, place in operand.asked}
        whole = statement(self._gathered(operand, self.pointer(operand.name, Symbol(f"{stem}_at")), values, vector))
        found = list[Statement]()
        if not self.lines.fits(whole):
            for axis, place in operand.asked:
                name = f"{stem}_place{axis_order(axis)[0]}"
                found += self._named(place, name)
                values[axis] = Symbol(name)
        return found, lambda pointer: statement(self._gathered(operand, pointer, values, vector))

    def gathered(self, operand: Gathered, pointer: Term) -> Term:
        """An element of what is gathered, given the pointer to where its places are zero."""
        return self._gathered(operand, pointer, {axis: self.value(place) for axis, place in operand.asked}, ())

    def _gathered(self, operand: Gathered, pointer: Term, places: Mapping[str, Term], vector: tuple[int, ...]) -> Term:
        """Shifts are added to the pointer; what they do not say is looked up, or compared."""
        told, asked = list[Term](), list[tuple[Term, Term]]()
        for (axis, _), step in zip(operand.places, self.schedule.placement(operand.name).steps, strict=True):
            apart = self._step(operand, axis, step)
            is_shift = axis in operand.shifts
            by = operand.shifts[axis][1] if is_shift else 0
            if by:
                far = Number(abs(by)) if apart == Number(1) else apart if abs(by) == 1 else Number(abs(by)) * apart
                pointer = Binary("+" if by > 0 else "-", pointer, far)
            if axis in places:
                size = own_size(axis)
                length = Symbol(axis.upper()) if size is None else Number(size)
                if is_shift:
                    asked.append((places[axis], length))
                else:
                    told += [places[axis], length, apart]
        if told:  # the pointer is where a shift leads already
            further = [term for place, length in asked for term in (place, length, Number(0))]
            return invoke("fg::gather", pointer, *told, *further, of=vector)
        if asked:
            return invoke("fg::load_within", pointer, *(term for pair in asked for term in pair), of=vector)
        return invoke("fg::load_vector" if vector else "fg::load", pointer, of=vector)

    def _step(self, operand: Gathered, axis: str, step: str) -> Term:
        """How far apart two places along an axis are."""
        if step in ("0", "1"):
            return Number(int(step))
        return Symbol(self.names.step(self.kernel.memory[operand.name], axis))

    def _named(self, expr: Expr, name: str) -> list[Statement]:
        """An expression as a constant, in front of it those of its parts that would make the line too long."""
        found, known = list[Statement](), dict(self.numbers)
        while True:
            printer = replace(self.printer, known=known)

            def declared(node: Expr, called: str, printer: Printer = printer) -> Statement:
                return Declare(Plain(node.dtype.ctype), called, self.value(node, printer), constant=True)

            def length(node: Expr, declared: Callable[[Expr, str], Statement] = declared) -> int:
                return len(self.lines.plain(declared(node, "")))

            room = self.lines.room - len(name)
            calls = [n for n in walk([expr]) if isinstance(n, Call)]
            parts = [n for n in calls if n is not expr and n not in known and length(n) <= room]
            if length(expr) <= room or not parts:
                return [*found, declared(expr, name)]
            widest = max(parts, key=length)
            called = f"{name}_{len(found) + 2}"
            found.append(declared(widest, called))
            known[widest] = called

    def read_vector(self, operand: Operand, offset: Term | None) -> list[Statement]:
        """A vector of elements as ``x_v``."""

        def declared(value: Term) -> Declare:
            return Declare(AUTO, f"{self.stem(operand.name)}_v", value, constant=True)

        width, places = (self.schedule.vector,), list[Statement]()
        if isinstance(operand, Gathered):
            places, make = self.gather(operand, declared, width)
            return [*places, *self.access(make, operand.name, offset)]
        return self.access(lambda p: declared(invoke("fg::load_vector", p, of=width)), operand.name, offset)

    def vector_element(self, operand: Operand) -> Statement:
        """Element k of a vector as a constant."""
        ctype, element = Plain(operand.dtype.compute.ctype), Symbol(f"{self.stem(operand.name)}_v").at(Symbol("k"))
        return Declare(ctype, self.variable(operand.name), element, constant=True)

    def write_vector(self, output: Output, offset: Term | None) -> list[Statement]:
        """``out_v`` to memory. The offset is one term: where a pointer grows term by term, the compiler may fail to put
        the words of a vector into one store."""
        vector = Symbol(f"{self.stem(output.name)}_v")
        return self.store_vector(vector, output.name, offset)

    def store_vector(self, vector: Term, name: str, offset: Term | None) -> list[Statement]:
        """A vector to memory, as `write_vector` does it."""
        width = (self.schedule.vector,)
        return self.access(
            lambda pointer: Do(invoke("fg::store_vector", pointer, vector, of=width)), name, offset, one_term=True
        )

    def store(self, output: Output, offset: Term | None) -> list[Statement]:
        """The value's name first where both do not fit one line."""
        value = self.value(output.expr)
        whole = Do(invoke("fg::store", self.pointer(output.name, offset), value))
        if self.lines.fits(whole):
            return [whole]
        name, ctype = self.names.variable(output.name), Plain(output.expr.dtype.ctype)
        named = [] if value.text == name else [Declare(ctype, name, value, constant=True)]
        return [
            *named,
            *self.access(lambda pointer: Do(invoke("fg::store", pointer, Symbol(name))), output.name, offset),
        ]

    def access(
        self, make: AtPointer, name: str, offset: Term | None, *, one_term: bool = False, called: str = ""
    ) -> list[Statement]:
        """A statement with the pointer to ``offset``; the offset in a line of its own where both are long, ``called``
        so where the tensor is read elsewhere in the same scope.

        Args:
            one_term: a sum is added to the pointer as one number.
        """
        together = one_term and isinstance(offset, Binary) and offset.operator == "+"
        whole = make(self.pointer(name, Together(offset) if together and offset is not None else offset))
        if offset is None or self.lines.fits(whole):
            return [whole]
        at = called or f"{self.stem(name)}_at"
        declared = Declare(Plain(self.schedule.index), at, offset, constant=True)
        return [declared, make(self.pointer(name, Symbol(at)))]


def add(first: Term, second: Term) -> Term:
    """The sum, term by term from the left, as C adds what has no parentheses."""
    if isinstance(second, Binary) and second.operator == "+":
        return Binary("+", add(first, second.left), second.right)
    return first + second

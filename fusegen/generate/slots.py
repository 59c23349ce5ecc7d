"""What every kernel shape needs for its slots: names, offsets, coordinates, reads and stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fusegen.core.ir import Call, Expr, Let, Operand, Output, Reduce, names_read, walk
from fusegen.core.text import expr_text, reduce_text
from fusegen.fuse.kernel import Gathered, Kernel, Position, with_places
from fusegen.fuse.reuse import Traversal, still_needed
from fusegen.fuse.schedule import THREADS, FullReductionSchedule, Schedule
from fusegen.generate.cexpr import Printer
from fusegen.generate.names import Names
from fusegen.generate.params import parameters
from fusegen.generate.scalars import computed_once
from fusegen.generate.table import Table
from fusegen.generate.wording import WIDTH, comment, explain, signature

# Blocks of 256 threads that kernels with a loop are compiled to keep on a multiprocessor: 64 registers a thread. Left
# to choose, the compiler aims at more blocks, and to save registers loads one operand only when done with another.
RESIDENT = 4
# The same for threads that have more values than these at a time: 80 registers, and 128.
RESIDENT_WITH = {32: 3, 48: 2}


@dataclass
class SlotFiller:
    """Makes the contents of the slots for one kernel and schedule."""

    kernel: Kernel
    schedule: Schedule
    names: Names
    indent: ClassVar[int] = len("      ")  # of the deepest lines

    def __post_init__(self) -> None:
        half = self.kernel.op.is_half
        # A split kernel's two stages do not have all numbers each.
        self.numbers = {} if self.schedule.split else computed_once(self.kernel)
        self.number_printer = Printer(half, self.variable)
        self.printer = Printer(half, self.variable, self.numbers, self.kernel.is_of_elements)
        self._read: dict[Let | Reduce | Output, set[str]] = {}
        self._lines: dict[Let, list[str]] = {}
        # What earlier traversals of a row have kept.
        self._known: set[str] = set()
        self.read_in_body = self.needed((*self.kernel.body, *self.kernel.reduces, *self.kernel.pointwise))

    def needed(self, items: Iterable[Let | Reduce | Output]) -> set[str]:
        """Names that the items read."""
        found: set[str] = set()
        for item in items:
            if item not in self._read:
                self._read[item] = names_read([item])
            found |= self._read[item]
        return with_places(found, self.kernel.gathered) if self.kernel.gathered else found

    def common(self) -> dict[str, Any]:
        """The slots that every template has."""
        return {
            **(frame := self.frame(self.kernel.name, "main")),
            "header": "\n".join([self._header(), *frame["table"]]),
            "threads": self.schedule.threads,
            "index": self.schedule.index,
            "vector": self.schedule.vector,
            "bounds": self.bounds(0),
            "start": [*frame["locate"], *self.start(self.schedule.follows)],
        }

    def bounds(self, values: int) -> str:
        """Threads of a block, and how many blocks a multiprocessor should hold; ``values``: what a thread has at a
        time."""
        if self.schedule.threads != THREADS:
            return str(self.schedule.threads)
        return f"{THREADS}, {min((n for more, n in RESIDENT_WITH.items() if values > more), default=RESIDENT)}"

    def frame(self, name: str, stage: str) -> dict[str, Any]:
        """What a kernel is called with, and how it tells its blocks: by the grid, or by a table of many tensors."""
        params = parameters(self.kernel, self.schedule, self.names, stage)
        if not self.schedule.table:
            grid = {"block": "blockIdx.x", "blocks": "gridDim.x", "table": [], "locate": []}
            return {**grid, "signature": signature(name, params)}
        table = Table.of(params)
        counted = isinstance(self.schedule, FullReductionSchedule) and stage == "main"
        return {
            "block": "block", "blocks": "blocks", "table": table.declare(name), "locate": table.locate(counted),
            "signature": signature(name, table.parameters(name)),
        }  # fmt: skip

    def start(self, follows: bool) -> list[str]:
        """How a kernel begins: what it computes once, and how it waits for one of its op before it."""
        lines = []
        for expr, name in self.numbers.items():
            declared, value = f"const {expr.dtype.ctype} {name} =", self.number_printer.text(expr)
            fits = len(declared) + len(value) + 2 + self.indent <= WIDTH
            lines += [f"{declared} {value};"] if fits else [declared, f"    {value};"]
        return [*lines, *(["fg::wait_for_previous_kernel();"] if follows else [])]

    def _header(self) -> str:
        kernel, op = self.kernel, self.kernel.op
        title = f"{op.name}, {op.label}"
        where = f"declared in {op.declared}" if op.declared else ""
        lines = [f"{title:<60}{where}".rstrip()]
        for item in kernel.items:
            if isinstance(item, Reduce):
                lines.append(f"  {reduce_text(item)}")
            elif not (isinstance(item, Output) and expr_text(item.expr) == item.name):
                lines.append(f"  {item.name} = {expr_text(item.expr)}")
        lines.append(explain(kernel, self.schedule))
        return "\n".join(piece for line in lines for piece in comment(line))

    def variable(self, name: str) -> str:
        """The variable that holds the current element of ``name``."""
        return self.names.variable(name)

    def stem(self, name: str) -> str:
        """The start of names that are made from ``name``."""
        return self.names.stem(name)

    def lets(self, lets: Sequence[Let]) -> list[str]:
        """Intermediates as constants."""
        for let in lets:
            if let not in self._lines:
                self._lines[let] = self._let(let)
        return [line for let in lets for line in self._lines[let]]

    def _let(self, let: Let) -> list[str]:
        declared, value = f"const {let.expr.dtype.ctype} {self.variable(let.name)} =", self.printer.text(let.expr)
        if len(declared) + len(value) + 2 + self.indent <= WIDTH:
            return [f"{declared} {value};"]
        return [declared, f"    {value};"]

    def still_needed(self, lets: Sequence[Let], items: Sequence[Reduce | Output]) -> list[Let]:
        """The lets of a traversal, but for those that only others need which earlier traversals have kept."""
        return list(still_needed(Traversal(tuple(lets), tuple(items)), self._known)) if self._known else list(lets)

    def is_known(self, let: Let) -> bool:
        """Whether an earlier traversal has kept it."""
        return let.name in self._known

    def element_lets(self, lets: Sequence[Let], held: Callable[[str], str], keep: bool) -> list[str]:
        """Lets at an element, those that are kept read from where they are or stored there.

        Args:
            held: where the present element is, of a stem.
            keep: whether later traversals read what this one computes.
        """
        lines = list[str]()
        for let in lets:
            place = held(self.stem(let.name))
            if self.is_known(let):
                lines.append(f"const {let.expr.dtype.ctype} {self.variable(let.name)} = {place};")
                continue
            lines += self.lets([let])
            lines += [f"{place} = {self.variable(let.name)};"] if keep and let.name in self.schedule.reused else []
        return lines

    def keep(self, lets: Sequence[Let]) -> list[Let]:
        """Note what a traversal has kept, and return it: it needs a declaration."""
        kept = [let for let in lets if let.name in self.schedule.reused and not self.is_known(let)]
        self._known.update(let.name for let in kept)
        return kept

    def declare_row(self, let: Let) -> str:
        """Where a thread keeps the elements of an intermediate."""
        plan, ctype = self.schedule, let.expr.dtype.ctype
        element = f"fg::Vec<{ctype}, {plan.vector}>" if plan.vector > 1 else ctype
        return f"{element} {self.stem(let.name)}_row[{plan.vectors_per_thread}];"

    def offset(self, name: str, loops: Iterable[int]) -> str:
        """The element that ``name`` has at the current coordinates, along the given loops."""
        terms = []
        for loop in loops:
            move = self.schedule.placement(name).moves[loop]
            if move in ("1", "s"):
                terms.append(f"j{loop}" if move == "1" else f"j{loop} * {self.stem(name)}_stride{loop}")
        return " + ".join(terms)

    def pointer(self, name: str, offset: str) -> str:
        """``x_ptr + offset``."""
        return f"{self.names.pointer(name)} + {offset}" if offset else self.names.pointer(name)

    def element_offset(self, name: str, offset: str, fast: int) -> str:
        """``offset``, k elements further along the loop ``fast``."""
        move = self.schedule.placement(name).moves[fast]
        step = {"0": "", "@": "", "1": "k", "s": f"k * {self.stem(name)}_stride{fast}"}[move]
        return " + ".join(term for term in (offset, step) if term)

    def coordinates(
        self, first: int, last: int, position: str, used: set[int], rest: str = "rest", *, constant: bool = True
    ) -> list[str]:
        """Lines that take the coordinates of loops ``first`` to ``last`` off a linear position."""
        index = self.schedule.index
        kind = f"const {index}" if constant else index
        if not used:
            return []
        if last == first:
            return [f"{kind} j{first} = {position};"]
        lines = [f"{index} {rest} = {position};"]
        lowest = min(used)
        for loop in range(last, max(first, lowest - 1), -1):
            take = f"fg::take({rest}, n{loop});"
            lines.append(f"{kind} j{loop} = {take}" if loop in used else take)
        if lowest == first:
            lines.append(f"{kind} j{first} = {rest};")
        return lines

    def next_coordinates(self, last: int, used: set[int], more: str) -> list[str]:
        """The line that goes on by one element, if there are ``more``, with the loops from the slowest in ``used``."""
        for loop in range(last, max(min(used), 1) - 1, -1):
            more = f"fg::advance(j{loop}, n{loop}, {more})"
        return [f"{more};" if min(used) else f"j0 += {more};"]

    def moving(self, names: Iterable[str], loops: Iterable[int]) -> set[int]:
        """The loops among ``loops`` along which some of ``names`` moves."""
        wanted = set(loops)
        return {
            loop
            for name in names
            for loop, move in enumerate(self.schedule.placement(name).moves)
            if move != "0" and loop in wanted
        }

    def read(self, operand: Operand, offset: str) -> list[str]:
        """One element as a constant."""
        declared = f"const {operand.dtype.compute.ctype} {self.variable(operand.name)}"
        if isinstance(operand, Position):
            return [f"{declared} = {offset or 0};"]
        if isinstance(operand, Gathered):
            places, line = self.gather(operand, declared)
            return [*places, *self.access(line, operand.name, offset)]
        return self.access(f"{declared} = fg::load({{}});", operand.name, offset)

    def gather(self, operand: Gathered, declared: str, vector: str = "") -> tuple[list[str], str]:
        """``declared`` as an element of what is gathered, given the pointer to where its places are zero; and lines in
        front of it that tell these places, where there is no room for them."""
        stem, lines = self.stem(operand.name), list[str]()
        line = f"{declared} = {self.gathered(operand, self.places(operand), vector)};"
        if self.indent + len(line.format(self.pointer(operand.name, f"{stem}_at"))) > WIDTH:
            named = {axis: f"{stem}_place{axis.lstrip('d')}" for axis, _ in operand.places}
            lines = [text for axis, place in operand.places for text in self._named(place, named[axis])]
            line = f"{declared} = {self.gathered(operand, named, vector)};"
        return lines, line

    def _named(self, expr: Expr, name: str) -> list[str]:
        """An expression as a constant, in front of it those of its parts that would make the line too long."""
        lines, known = list[str](), dict(self.numbers)
        while True:
            printer = replace(self.printer, known=known)
            calls = [n for n in walk([expr]) if isinstance(n, Call)]
            texts: dict[Expr, str] = {n: f"const {n.dtype.ctype} {{}} = {printer.text(n)};" for n in calls}
            room = WIDTH - self.indent - len(name)
            parts = [n for n, text in texts.items() if n is not expr and n not in known and len(text) <= room]
            whole = texts.get(expr, f"const {expr.dtype.ctype} {{}} = {printer.text(expr)};")
            if len(whole) <= room or not parts:
                return [*lines, whole.format(name)]
            widest = max(parts, key=lambda n: len(texts[n]))
            known[widest] = f"{name}_{len(lines) + 2}"
            lines.append(texts[widest].format(known[widest]))

    def places(self, operand: Gathered) -> dict[str, str]:
        """Where it is read, by axis of its table."""
        return {axis: self.printer.text(place) for axis, place in operand.places}

    def gathered(self, operand: Gathered, places: Mapping[str, str], vector: str = "") -> str:
        """An element at these places, given the pointer to where they are zero."""
        told = [f"{text}, {axis.upper()}, {self.names.step(operand.name, axis)}" for axis, text in places.items()]
        return f"fg::gather{vector}({{}}, {', '.join(told)})"

    def read_vector(self, operand: Operand, offset: str) -> list[str]:
        """A vector of elements as ``x_v``."""
        width = f"<{self.schedule.vector}>"
        declared, places = f"const auto {self.stem(operand.name)}_v", list[str]()
        line = f"{declared} = fg::load_vector{width}({{}});"
        if isinstance(operand, Gathered):
            places, line = self.gather(operand, declared, width)
        return [*places, *self.access(line, operand.name, offset)]

    def write_vector(self, output: Output, offset: str) -> list[str]:
        """``out_v`` to memory. The offset is one term: where a pointer grows term by term, the compiler may fail to put
        the words of a vector into one store."""
        store = f"fg::store_vector<{self.schedule.vector}>({{}}, {self.stem(output.name)}_v);"
        return self.access(store, output.name, offset, one_term=" + " in offset)

    def access(self, line: str, name: str, offset: str, *, one_term: bool = False, called: str = "") -> list[str]:
        """``line`` with the pointer to ``offset`` in its place; the offset in a line of its own where both are long,
        ``called`` so where the tensor is read elsewhere in the same scope."""
        whole = line.format(self.pointer(name, f"({offset})" if one_term else offset))
        if len(whole) + self.indent <= WIDTH or not offset:
            return [whole]
        at = called or f"{self.stem(name)}_at"
        return [
            *self._sum(f"const {self.schedule.index} {at} = ", offset),
            *self._arguments(line.format(self.pointer(name, at))),
        ]

    def _arguments(self, line: str) -> list[str]:
        """A call whose arguments go on below the first one, where there is no room beside it."""
        lines, start = list[str](), line.find("(") + 1
        while len(line) + self.indent > WIDTH and (cut := line.rfind(", ", start, WIDTH - self.indent)) > 0:
            lines.append(line[: cut + 1])
            line = " " * start + line[cut + 2 :]
        return [*lines, line]

    def _sum(self, start: str, terms: str) -> list[str]:
        """A sum, continued on further lines below its first term."""
        lines = [start]
        for position, term in enumerate(terms.split(" + ")):
            room = WIDTH - self.indent - len(" +;")
            if position and len(lines[-1]) + len(f" + {term}") > room:
                lines[-1] += " +"
                lines.append(" " * len(start) + term)
            else:
                lines[-1] += f" + {term}" if position else term
        lines[-1] += ";"
        return lines

    def vector_element(self, operand: Operand) -> str:
        """Element k of a vector as a constant."""
        return f"const {operand.dtype.compute.ctype} {self.variable(operand.name)} = {self.stem(operand.name)}_v[k];"

    def store(self, output: Output, offset: str) -> list[str]:
        """The value's name first where both do not fit one line."""
        value = self.printer.text(output.expr)
        line = f"fg::store({self.pointer(output.name, offset)}, {value});"
        if len(line) + self.indent <= WIDTH:
            return [line]
        name = self.names.variable(output.name)
        named = [] if value == name else [f"const {output.expr.dtype.ctype} {name} = {value};"]
        return [*named, *self.access(f"fg::store({{}}, {name});", output.name, offset)]

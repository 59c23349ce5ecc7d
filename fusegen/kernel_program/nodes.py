"""The grammar of kernel programs: one launch as its threads run it, between a scheduled kernel and its CUDA text.

    Term      = Number | Symbol | Value(expr) | Binary | Not | Choice | Convert
              | Item | Field | AddressOf | Together | Invoke | Method
    Statement = Declare | Shared | Assign | Do | If | For | Scope | Function | Leave | Comment | Blank
    Program   = parameters, statements

Terms are what CUDA computes with; the arithmetic of an op is one term, `Value`, whose expression stays as fusion made
it and prints as everywhere (generate/cexpr). Memory, exchanges between threads and barriers are functions that are
invoked: one table says what each needs and changes (kernel_program/functions). So there are few kinds of nodes, and a
new schedule needs none.

A program is made by a schedule's builder (generate/), says what is legal of it (kernel_program/check), runs in lockstep
on torch tensors (kernel_program/evaluate), and is printed node by node (kernel_program/text).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from fusegen.core.ir import Expr

# -- terms ------------------------------------------------------------------------------------------------------------


class Term:
    """Something that has a value. Operators make terms, so that builders read like the text they make."""

    def __add__(self, other: Term | int) -> Term:
        return Binary("+", self, term(other))

    def __sub__(self, other: Term | int) -> Term:
        return Binary("-", self, term(other))

    def __mul__(self, other: Term | int) -> Term:
        return Binary("*", self, term(other))

    def __rmul__(self, other: int) -> Term:
        return Binary("*", term(other), self)

    def __floordiv__(self, other: Term | int) -> Term:
        return Binary("/", self, term(other))

    def __mod__(self, other: Term | int) -> Term:
        return Binary("%", self, term(other))

    def __lt__(self, other: Term | int) -> Term:
        return Binary("<", self, term(other))

    def __le__(self, other: Term | int) -> Term:
        return Binary("<=", self, term(other))

    def __gt__(self, other: Term | int) -> Term:
        return Binary(">", self, term(other))

    def __ge__(self, other: Term | int) -> Term:
        return Binary(">=", self, term(other))

    def equals(self, other: Term | int) -> Term:
        """``a == b``."""
        return Binary("==", self, term(other))

    def differs(self, other: Term | int) -> Term:
        """``a != b``."""
        return Binary("!=", self, term(other))

    def at(self, *indices: Term | int) -> Term:
        """``a[i][j]``."""
        found: Term = self
        for index in indices:
            found = Item(found, term(index))
        return found

    def call(self, method: str, *args: Term) -> Method:
        """``a.method(args)``."""
        return Method(self, method, args)


@dataclass(frozen=True)
class Number(Term):
    """A literal of the schedule's."""

    value: int


@dataclass(frozen=True)
class Symbol(Term):
    """What has a name: a parameter, a variable, one of CUDA's own such as ``threadIdx.x``."""

    name: str


@dataclass(frozen=True)
class Value(Term):
    """The value of an op's expression at the present element.

    Attributes:
        expr: what is computed; its names are the op's.
        text, level: how it prints, and how tightly its outermost operator binds (generate/cexpr).
    """

    expr: Expr
    text: str = field(compare=False)
    level: int = field(compare=False)


@dataclass(frozen=True)
class Binary(Term):
    """An operator of C between two terms."""

    operator: str
    left: Term
    right: Term


@dataclass(frozen=True)
class Not(Term):
    """``!condition``."""

    condition: Term


@dataclass(frozen=True)
class Choice(Term):
    """``condition ? chosen : otherwise``."""

    condition: Term
    chosen: Term
    otherwise: Term


@dataclass(frozen=True)
class Item(Term):
    """An element of an array or a vector."""

    of: Term
    index: Term


@dataclass(frozen=True)
class Field(Term):
    """A number that a state has."""

    of: Term
    name: str


@dataclass(frozen=True)
class Convert(Term):
    """``int(value)``."""

    ctype: str
    value: Term


@dataclass(frozen=True)
class AddressOf(Term):
    """``&value``."""

    of: Term


@dataclass(frozen=True)
class Together(Term):
    """In parentheses though it need not be: a sum that is added to a pointer as one number."""

    of: Term


@dataclass(frozen=True)
class Invoke(Term):
    """A device function of the table, with its template's arguments and its own."""

    function: str
    template: tuple[int | str, ...]
    args: tuple[Term, ...]


@dataclass(frozen=True)
class Method(Term):
    """A member function of a state."""

    of: Term
    function: str
    args: tuple[Term, ...]


def term(value: Term | int) -> Term:
    """``value``, a number as a term."""
    return Number(value) if isinstance(value, int) else value


def invoke(function: str, *args: Term | int, of: tuple[int | str, ...] = ()) -> Invoke:
    """``function<of>(args)``."""
    return Invoke(function, of, tuple(map(term, args)))


def total(terms: Iterable[Term]) -> Term | None:
    """The terms added up; None where there are none."""
    found: Term | None = None
    for each in terms:
        found = each if found is None else found + each
    return found


def every(conditions: Iterable[Term]) -> Term:
    """All conditions."""
    first, *others = conditions
    for condition in others:
        first = Binary("&&", first, condition)
    return first


def either(one: Term, other: Term) -> Term:
    """One of two conditions, or both."""
    return Binary("||", one, other)


def negated(condition: Term) -> Term:
    """The opposite of a condition."""
    return Not(condition)


THREAD, THREAD_ROW = Symbol("threadIdx.x"), Symbol("threadIdx.y")
BLOCK, BLOCK_Y, BLOCK_Z = Symbol("blockIdx.x"), Symbol("blockIdx.y"), Symbol("blockIdx.z")
GRID, GRID_Y, GRID_Z = Symbol("gridDim.x"), Symbol("gridDim.y"), Symbol("gridDim.z")
BUILTIN = (THREAD, THREAD_ROW, BLOCK, BLOCK_Y, BLOCK_Z, GRID, GRID_Y, GRID_Z)

# -- types ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """A number, by its name in C."""

    ctype: str

    @property
    def text(self) -> str:
        return self.ctype


AUTO = Plain("auto")


@dataclass(frozen=True)
class Vector:
    """Neighbouring numbers; ``raw``: as they lie in memory, in words."""

    ctype: str
    size: int
    raw: bool = False

    @property
    def text(self) -> str:
        return f"fg::{'Raw' if self.raw else 'Vec'}<{self.ctype}, {self.size}>"


@dataclass(frozen=True)
class State:
    """What a reduction keeps while it runs (core/monoids).

    Attributes:
        kind: of reduction.
        name: the struct of fusegen.cuh.
    """

    kind: str
    name: str
    ctype: str

    @property
    def text(self) -> str:
        return f"fg::{self.name}<{self.ctype}>"


@dataclass(frozen=True)
class ScanState:
    """What a scan holds while it runs (core/scans).

    Attributes:
        combine: what is combined.
        name: the struct of fusegen_scan.cuh.
        ctypes: its template's arguments; the first one is that of its values.
    """

    combine: str
    name: str
    ctypes: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"fg::{self.name}<{', '.join(self.ctypes)}>"


@dataclass(frozen=True)
class Link:
    """What the blocks of a cluster exchange partial results through."""

    cluster: int

    @property
    def text(self) -> str:
        return f"fg::Link<{self.cluster}>"


Type = Plain | Vector | State | ScanState | Link

# -- statements -------------------------------------------------------------------------------------------------------


class Statement:
    """One step of a thread."""

    node: ClassVar[str]  # the macro that prints it


@dataclass(frozen=True)
class Declare(Statement):
    """A variable of a thread's own, or an array of them.

    Attributes:
        value: what it is at first; None leaves it open, or a state as that of nothing.
        zeros: all of an array is zero at first.
        note: why, behind it.
    """

    node: ClassVar[str] = "declare"

    type: Type
    name: str
    value: Term | None = None
    dims: tuple[int, ...] = ()
    constant: bool = False
    zeros: bool = False
    note: str = ""


@dataclass(frozen=True)
class Shared(Statement):
    """An array in shared memory.

    Attributes:
        place: where it lies in what the launch asks for; None where the text declares it.
        alias: the element's type has a name of its own, because it has a comma.
    """

    node: ClassVar[str] = "shared"

    type: Type
    name: str
    dims: tuple[int, ...]
    place: Term | None = None
    alias: str = ""


@dataclass(frozen=True)
class Assign(Statement):
    """``target = value``, or with another of C's assignments."""

    node: ClassVar[str] = "assign"

    target: Term
    value: Term
    operator: str = "="


@dataclass(frozen=True)
class Do(Statement):
    """A function that is called for what it does; ``note``: why, behind it."""

    node: ClassVar[str] = "do"

    what: Term
    note: str = ""


@dataclass(frozen=True)
class If(Statement):
    """``brief``: on one line."""

    node: ClassVar[str] = "branch"

    condition: Term
    body: tuple[Statement, ...]
    brief: bool = False
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class For(Statement):
    """A loop.

    Attributes:
        name: of what counts.
        type: None where it counts in a variable that is there already.
        condition: under which it goes on.
        step: None: by one.
        unroll: None leaves that to the compiler; 0 is all of it.
        brief: on one line.
    """

    node: ClassVar[str] = "loop"

    name: str
    type: Plain | None
    first: Term | None
    condition: Term
    step: Term | None
    body: tuple[Statement, ...]
    unroll: int | None = None
    brief: bool = False


@dataclass(frozen=True)
class Scope(Statement):
    """Statements whose names end with them."""

    node: ClassVar[str] = "scope"

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Function(Statement):
    """A function of the kernel's own, of one position; what is around it is known in it."""

    node: ClassVar[str] = "function"

    name: str
    type: Plain
    parameter: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Leave(Statement):
    """``break``, ``continue`` or ``return``."""

    node: ClassVar[str] = "leave"

    how: str


@dataclass(frozen=True)
class Comment(Statement):
    """For the reader."""

    node: ClassVar[str] = "comment"

    text: str


@dataclass(frozen=True)
class Blank(Statement):
    """An empty line."""

    node: ClassVar[str] = "blank"


BREAK, CONTINUE, RETURN, BLANK = Leave("break"), Leave("continue"), Leave("return"), Blank()


def count(name: str, until: int, body: Iterable[Statement], unroll: int | None = 0, brief: bool = False) -> For:
    """``for (int name = 0; name < until; ++name)``, unrolled."""
    return For(name, Plain("int"), Number(0), Symbol(name) < until, None, tuple(body), unroll, brief)


# -- programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelProgram:
    """One launch.

    Attributes:
        parameters: what it is called with, by name.
        variables: what holds the present value of each name of the op.
        block: threads of a block along x and y.
        cluster: blocks that run together and reach each other's shared memory.
        body: what each thread does.
        resident: blocks that a multiprocessor should have registers for; 0 leaves that to the compiler.
    """

    parameters: tuple[str, ...]
    variables: Mapping[str, Term]
    block: tuple[int, int]
    cluster: int
    body: tuple[Statement, ...]
    resident: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1]

    @property
    def bounds(self) -> str:
        """What the compiler is told of launches."""
        return f"{self.threads}, {self.resident}" if self.resident else f"{self.threads}"


def terms_of(statement: Statement) -> Iterator[Term]:
    """The terms of a statement itself, not of those in it."""
    for name in _names(statement.__class__):
        value = getattr(statement, name)
        if isinstance(value, Term):
            yield value


def walk_terms(roots: Iterable[Term]) -> Iterator[Term]:
    """The terms and all that they are made of, each in front of what it is made of."""
    stack = list(roots)[::-1]
    while stack:
        node = stack.pop()
        yield node
        for name in _names(node.__class__)[::-1]:
            value = getattr(node, name)
            if isinstance(value, Term):
                stack.append(value)
            elif name == "args":
                stack += value[::-1]


_known: dict[type, tuple[str, ...]] = {}


def _names(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a kind of node."""
    if kind not in _known:
        _known[kind] = tuple(each.name for each in fields(kind))
    return _known[kind]


def inside(statement: Statement) -> tuple[Statement, ...]:
    """The statements of a statement."""
    found = statement.body if isinstance(statement, (If, For, Scope, Function)) else ()
    return (*found, *statement.otherwise) if isinstance(statement, If) else found


def returns(statement: Statement) -> bool:
    """Whether a thread may leave the kernel in it."""
    return statement == RETURN or any(map(returns, inside(statement)))

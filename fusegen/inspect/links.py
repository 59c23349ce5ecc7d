"""Which line of a kernel's CUDA computes which of its statements.

A kernel's text says so itself: names of the op reach it marked (generate/names), so that a line which assigns, adds to
or stores a marked name computes what has that name. No op, template or device function is known here by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from fusegen.core.ir import Expr, Let, Operand, Output, Reduce, Scalar, names_read, walk
from fusegen.fuse.kernel import Kernel
from fusegen.generate.names import Names, unmarked
from fusegen.generate.params import parameters
from fusegen.generate.render import marked
from fusegen.generate.scalars import computed_once
from fusegen.inspect.passes import things_of
from fusegen.pipeline import ScheduledKernel

# Code without comments and lines of the preprocessor. Marked letters are the only ones that are not ASCII.
_TOKEN = re.compile(r'//.*|#.*|"[^"]*"|(?:\w|[^\x00-\x7f])+|<<=|>>=|[=!<>]=|[-+*/%&|^]?=|\S')
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="})
_CONDITIONS = ("if", "for", "while", "switch")
_NO_EFFECT = ("return", "break", "continue", "using")


@dataclass(frozen=True)
class Link:
    """What a line of CUDA is for.

    Attributes:
        things: positions among the kernel's `things_of` (inspect/passes).
        computes: whether it computes, reads or writes them; else it only declares where their values are kept.
    """

    things: tuple[int, ...] = ()
    computes: bool = False


def links_of(planned: ScheduledKernel) -> list[Link]:
    """What each line of a kernel's CUDA is for (`Rendered.body`)."""
    kernel, headers = planned.kernel, planned.rendered.headers
    names = Names(kernel, headers)
    code = marked(kernel, planned.schedule, names)
    while not names.settle(code):
        code = marked(kernel, planned.schedule, names)
    assert unmarked(code) == planned.rendered.body, f"{kernel.name}: the text is not that of its schedule"
    return Reader(planned, names).read(code)


def folded(kernel: Kernel, links: Sequence[Link]) -> dict[int, str]:
    """The statements that no line computes by themselves, and where they went instead."""
    computed = {at for link in links if link.computes for at in link.things}
    found: dict[int, str] = {}
    for at, thing in enumerate(things_of(kernel)):
        if at not in computed and not isinstance(thing, (Operand, Scalar)):
            found[at] = _reason(thing, kernel)
    return found


def _reason(thing: Let | Reduce | Output, kernel: Kernel) -> str:
    readers = [item.name for item in kernel.items if item is not thing and thing.name in names_read([item])]
    if readers:
        return f"folded into {', '.join(dict.fromkeys(readers))}, which reads it"
    return "no result of this kernel reads it"


@dataclass(frozen=True)
class _Token:
    text: str
    line: int

    @property
    def mark(self) -> str:
        """The part of an identifier that is a name of the op, marked."""
        return "".join(letter for letter in self.text if not letter.isascii())


class Reader:
    """Reads the marked text of one kernel, and of the one that combines what it splits."""

    def __init__(self, planned: ScheduledKernel, names: Names) -> None:
        kernel, schedule = planned.kernel, planned.schedule
        self.things = things_of(kernel)
        self.index = schedule.index
        self.owners: dict[str, str] = {}  # by mark, the op's name
        self.pointers: set[str] = set()
        for thing in (*self.things, *kernel.operands):
            for mark in (names.variable(thing.name), names.stem(thing.name)):
                self.owners[mark] = thing.name
            self.pointers.add(names.pointer(thing.name))
        stages = ("main", "finish") if schedule.split else ("main",)
        given = [p for stage in stages for p in parameters(kernel, schedule, names, stage)]
        self.given = {p.name for p in given if p.kind in ("in", "out", "partial", "scalar")}
        self.once = self._once({} if schedule.split else computed_once(kernel))
        self.floats = {t.expr.dtype.ctype for t in kernel.items if t.expr.dtype.is_float}
        # Variables of the kernel's own that were assigned: theirs are the lines of what reads them.
        self.own: dict[str, list[_Token]] = {}

    def _once(self, numbers: Mapping[Expr, str]) -> dict[str, tuple[int, ...]]:
        """The things that need what a thread computes once, by its variable."""
        nodes = {at: set(walk([t.expr])) for at, t in enumerate(self.things) if not isinstance(t, (Operand, Scalar))}
        return {name: tuple(at for at in nodes if expr in nodes[at]) for expr, name in numbers.items()}

    def read(self, code: str) -> list[Link]:
        """What each line is for."""
        lines = [Link() for _ in code.removesuffix("\n").split("\n")]
        for tokens in _statements(code):
            for part, link in self._linked(tokens):
                for line in range(part[0].line, part[-1].line + 1):
                    things = dict.fromkeys((*lines[line].things, *link.things))
                    lines[line] = Link(tuple(things), lines[line].computes or link.computes)
        return lines

    def link(self, line: str) -> Link:
        """What a line of a kernel program as people read it (kernel_program/outline) is for."""
        tokens = [_Token(word, 0) for word in _TOKEN.findall(line) if not word.startswith("#")]
        if not tokens or tokens[0].text in (*_CONDITIONS, *_NO_EFFECT, "else") or tokens[-1].text == ":":
            return Link()
        return self._link(tokens)

    def _linked(self, tokens: Sequence[_Token]) -> Iterator[tuple[Sequence[_Token], Link]]:
        """The parts of a statement that are for something."""
        if tokens[0].text == "extern":  # the parameters, each in its line
            for token in tokens:
                if token.text in self.given and (things := self._things([token])):
                    yield [token], Link(things)
            return
        tokens = _without_conditions(tokens)
        if not tokens or tokens[0].text in _NO_EFFECT:
            return
        link = self._link(tokens)
        if not link.things:
            return
        yield tokens, link
        for token in tokens:
            if token.text in self.own:
                yield self.own[token.text], link

    def _link(self, tokens: Sequence[_Token]) -> Link:
        assigned = next((at for at, token in enumerate(tokens) if token.text in _ASSIGNMENTS), None)
        if assigned is not None:
            return self._assignment(tokens, assigned)
        named = [token for token in tokens if token.mark]
        if not named:
            return Link()
        shared = tokens[0].text == "FUSEGEN_SHARED"
        if shared or not any(token.text == "(" for token in tokens):
            return Link(self._things(named[:1]))
        first = self._things(named[:1])
        stored = named[0].text in self.pointers or any(isinstance(self.things[at], Operand) for at in first)
        if tokens[0].mark or stored:  # a method of a state; what is written comes first, and what it is after it
            return Link(first, True)
        return Link(self._things(named), True)  # threads exchange what each has of these

    def _assignment(self, tokens: Sequence[_Token], assigned: int) -> Link:
        left = tokens[:assigned]
        named = [token for token in left if token.mark]
        words = [token.text for token in left]
        if not named:
            if words[-1] in self.once:
                return Link(self.once[words[-1]], True)
            if words[:1] == ["const"] and words[1] in self.floats:
                self.own[words[-1]] = list(tokens)
            return Link()
        if words[:2] == ["const", self.index] and named[0].mark != named[0].text:
            return Link()  # where an element lies: no value
        return Link(self._things(named[:1]), "&" not in words)  # another name for memory is no value either

    def _things(self, tokens: Sequence[_Token]) -> tuple[int, ...]:
        """What the identifiers stand for: a pointer for what lies in memory, others for the value of that name."""
        found: list[int] = []
        for token in tokens:
            name = self.owners.get(token.mark)
            same = [at for at, thing in enumerate(self.things) if thing.name == name]
            in_memory = token.text in self.pointers
            same.sort(key=lambda at: isinstance(self.things[at], (Operand, Output)) != in_memory)
            found += same[:1]
        return tuple(dict.fromkeys(found))


def _statements(code: str) -> Iterator[list[_Token]]:
    """The statements of CUDA text; heads of functions, loops and branches are statements of their own."""
    tokens: list[_Token] = []
    depth = 0
    for line, text in enumerate(code.split("\n")):
        for word in _TOKEN.findall(text):
            if word.startswith(("//", "#")):
                continue
            depth += {"(": 1, ")": -1}.get(word, 0)
            if depth or word not in (";", "{", "}"):
                tokens.append(_Token(word, line))
            elif tokens:
                yield tokens
                tokens = []


def _without_conditions(tokens: Sequence[_Token]) -> Sequence[_Token]:
    """A statement without what decides whether, or how often, it runs."""
    while tokens and tokens[0].text in (*_CONDITIONS, "else"):
        depths = list(accumulate({"(": 1, ")": -1}.get(token.text, 0) for token in tokens))
        closed = depths.index(0, 1) if tokens[0].text in _CONDITIONS else 0
        tokens = tokens[closed + 1 :]
    return tokens

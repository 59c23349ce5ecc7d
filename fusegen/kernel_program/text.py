"""Kernel programs as CUDA text: terms by C's precedence, statements by one macro of kernel_program.cu.j2 each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from fusegen.kernel_program.nodes import (
    AddressOf,
    Assign,
    Binary,
    Choice,
    Comment,
    Convert,
    Declare,
    Do,
    Field,
    For,
    Function,
    If,
    Invoke,
    Item,
    Leave,
    Method,
    Not,
    Number,
    Scope,
    Shared,
    Statement,
    Symbol,
    Term,
    Together,
    Value,
)

ATOM = 10
# How tightly operators bind, as the function table has it (declare/table).
_LEVELS = {
    "*": 7, "/": 7, "%": 7, "+": 6, "-": 6, "<": 5, "<=": 5, ">": 5, ">=": 5, "==": 4, "!=": 4, "^": 4, "&&": 3,
    "||": 2,
}  # fmt: skip


# How an op's expression prints, and how tightly its outermost operator binds.
Printed = Callable[[Value], tuple[str, int]]


def text(term: Term, of_op: Printed = lambda value: (value.text, value.level)) -> str:
    """A term in C, with the fewest parentheses.

    Args:
        of_op: prints the op's expressions; as CUDA if not given.
    """
    return _print(term, of_op)[0]


def _print(term: Term, of_op: Printed) -> tuple[str, int]:
    match term:
        case Number(value):
            return str(value), ATOM
        case Symbol(name):
            return name, ATOM
        case Value():
            return of_op(term)
        case Binary(operator, left, right):
            level = _LEVELS[operator]
            return f"{_wrap(left, level, of_op)} {operator} {_wrap(right, level + 1, of_op)}", level
        case Not(condition):
            return f"!{_wrap(condition, 8, of_op)}", 8
        case Choice(condition, chosen, otherwise):
            return f"{_wrap(condition, 1, of_op)} ? {_wrap(chosen, 1, of_op)} : {_wrap(otherwise, 0, of_op)}", 0
        case Item(of, index):
            return f"{_wrap(of, ATOM, of_op)}[{text(index, of_op)}]", ATOM
        case Field(of, name):
            return f"{_wrap(of, ATOM, of_op)}.{name}", ATOM
        case Convert(ctype, value):
            return f"{ctype}({text(value, of_op)})", ATOM
        case AddressOf(of):
            return f"&{_wrap(of, ATOM, of_op)}", 8
        case Together(of):
            return f"({text(of, of_op)})", ATOM
        case Invoke(function, template, args):
            own = f"<{', '.join(map(str, template))}>" if template else ""
            return f"{function}{own}({', '.join(text(arg, of_op) for arg in args)})", ATOM
        case Method(of, function, args):
            return f"{_wrap(of, ATOM, of_op)}.{function}({', '.join(text(arg, of_op) for arg in args)})", ATOM
    raise TypeError(f"a term of no kind that is known: {type(term).__name__}")


def _wrap(term: Term, least: int, of_op: Printed) -> str:
    printed, level = _print(term, of_op)
    return printed if level >= least else f"({printed})"


@dataclass(frozen=True)
class Lines:
    """Prints statements.

    Args:
        macros: the module of kernel_program.cu.j2.
        room: columns that a line may have; what is longer goes on below.
    """

    macros: Any
    room: int
    _known: dict[int, tuple[Statement, str]] = field(default_factory=dict)  # by the statement itself, which is kept

    def fits(self, statement: Statement) -> bool:
        """Whether a statement has room on one line."""
        return len(self.plain(statement)) <= self.room

    def of(self, statements: Iterable[Statement]) -> list[str]:
        """The lines of statements, without an indentation of their own."""
        return [line for statement in statements for line in self.one(statement)]

    def plain(self, statement: Statement) -> str:
        """A statement as it is, however long its lines are."""
        if id(statement) not in self._known:
            printed = getattr(self.macros, statement.node)(*self._parts(statement))
            self._known[id(statement)] = statement, str(printed)
        return self._known[id(statement)][1]

    def _parts(self, statement: Statement) -> tuple[Any, ...]:
        """What a statement's macro puts together."""
        match statement:
            case Declare(type=type_, name=name, value=value, dims=dims, constant=constant, note=note):
                start = "{}" if statement.zeros else "" if value is None else text(value)
                return constant, type_.text, name, _dims(dims), start, note
            case Shared(type=type_, name=name, dims=dims, place=place, alias=alias):
                return type_.text, name, _dims(dims), "" if place is None else text(place), alias
            case Assign(target=target, value=value, operator=operator):
                return text(target), operator, text(value)
            case Do(what=what, note=note):
                return text(what), note
            case If(condition=condition, body=body, otherwise=otherwise):
                return text(condition), *self._bodies(body, statement.brief, self._nested(otherwise))
            case For(name=name, condition=condition, step=step, body=body, unroll=unroll):
                first = "" if statement.first is None or statement.type is None else (
                    f"{statement.type.text} {name} = {text(statement.first)}"
                )  # fmt: skip
                step_ = f"++{name}" if step is None else f"{name} += {text(step)}"
                return unroll, first, text(condition), step_, *self._bodies(body, statement.brief)
            case Scope(body=body):
                return (self._nested(body),)
            case Function(name=name, type=type_, parameter=parameter, body=body):
                return name, type_.text, parameter, self._nested(body)
            case Leave(how=how):
                return (how,)
            case Comment(text=words):
                return (words,)
        return ()

    def _bodies(self, body: tuple[Statement, ...], brief: bool, *more: str) -> tuple[str, ...]:
        """Statements below a condition, and what stands beside it instead where that is brief."""
        return ("", *more, self.plain(body[0])) if brief else (self._nested(body), *more, "")

    def _nested(self, body: tuple[Statement, ...]) -> str:
        return "\n".join(nested(self.of(body), 2))

    def one(self, statement: Statement) -> list[str]:
        """The lines of one statement."""
        lines = self.plain(statement).split("\n")
        if len(lines) > 1 or len(lines[0]) <= self.room:
            return lines
        match statement:
            case Declare(value=Value()) | Assign(value=Value()):
                start, sign, value = lines[0].partition("= ")
                return [f"{start}{sign.rstrip()}", f"    {value}"]
            case If(brief=True, body=(Assign(value=Value()) as only,)) if len(self.plain(only)) > self.room:
                value = self.plain(only).partition("= ")[2]  # which may have no comma where it could go on below
                return [lines[0].removesuffix(value).rstrip(), f"    {value}"]
            case Declare(value=Binary()):
                return self._sum(lines[0])
            case Declare(value=Invoke()) | Assign(value=Invoke()) | Do(what=Invoke()) | If(brief=True):
                return self._arguments(lines[0])
        return lines

    def _arguments(self, line: str) -> list[str]:
        """A call whose arguments go on below the first one, where there is no room beside it."""
        lines, start = list[str](), line.find("(") + 1
        while len(line) > self.room and (cut := line.rfind(", ", start, self.room)) > 0:
            lines.append(line[: cut + 1])
            line = " " * start + line[cut + 2 :]
        return [*lines, line]

    def _sum(self, line: str) -> list[str]:
        """A sum, continued on further lines below its first term."""
        declared, terms = line.removesuffix(";").split(" = ", 1)
        start = f"{declared} = "
        lines = [start]
        for position, each in enumerate(terms.split(" + ")):
            if position and len(lines[-1]) + len(f" + {each}") > self.room - len(" +;"):
                lines[-1] += " +"
                lines.append(" " * len(start) + each)
            else:
                lines[-1] += f" + {each}" if position else each
        lines[-1] += ";"
        return lines


def _dims(sizes: tuple[int, ...]) -> str:
    return "".join(f"[{size}]" for size in sizes)


def nested(lines: Iterable[str], columns: int) -> list[str]:
    """Lines moved to the right, but those of the preprocessor, which stay at the margin."""
    return [line if not line or line.startswith("#") else " " * columns + line for line in lines]

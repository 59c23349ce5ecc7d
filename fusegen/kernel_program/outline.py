"""Kernel programs for people: what each thread does, with expressions as ops print them, and who waits where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusegen.core.text import expr_text
from fusegen.kernel_program.functions import FUNCTIONS, TOGETHER, Threads
from fusegen.kernel_program.nodes import (
    Assign,
    Comment,
    Declare,
    Do,
    For,
    Function,
    If,
    Invoke,
    KernelProgram,
    Leave,
    Method,
    Scope,
    Shared,
    Statement,
    Term,
    terms_of,
    walk_terms,
)
from fusegen.kernel_program.text import text


def outline(program: KernelProgram) -> str:
    """A program, a statement a line; what is within another one stands deeper."""
    across, rows = program.block
    threads = f"{across} x {rows} threads a block" if rows > 1 else f"{across} thread{'s' * (across > 1)} a block"
    of_cluster = f", clusters of {program.cluster} blocks" if program.cluster > 1 else ""
    resident = f", {program.resident} blocks a multiprocessor" if program.resident else ""
    return "\n".join([f"{threads}{of_cluster}{resident}", *(f"  {line}" for line in _lines(program.body))])


def _lines(statements: Sequence[Statement]) -> Iterator[str]:
    for statement in statements:
        for position, line in enumerate(_of(statement)):
            yield line if position or not (waits := _waits(statement)) else f"{line}  # {waits} come here together"


def _of(statement: Statement) -> Iterator[str]:
    match statement:
        case Declare(type=type_, name=name, value=value, dims=dims):
            if value is None:
                yield f"{name}: {_type(type_.text)}{_dims(dims)}{' = 0' if statement.zeros else ''}"
            else:
                yield f"{name} = {_term(value)}"
        case Shared(type=type_, name=name, dims=dims):
            yield f"{name}: {_type(type_.text)}{_dims(dims)} in shared memory"
        case Assign(target=target, value=value, operator=operator):
            yield f"{_term(target)} {operator} {_term(value)}"
        case Do(what=what):
            yield _term(what)
        case If(condition=condition, body=body, otherwise=otherwise):
            yield f"if {_term(condition)}:"
            yield from (f"  {line}" for line in _lines(body))
            if otherwise:
                yield "else:"
                yield from (f"  {line}" for line in _lines(otherwise))
        case For(name=name, first=first, condition=condition, step=step, body=body):
            start = "" if first is None else f" from {_term(first)}"
            by = "" if step is None else f", by {_term(step)}"
            yield f"for {name}{start} while {_term(condition)}{by}:"
            yield from (f"  {line}" for line in _lines(body))
        case Scope(body=body):
            yield from _lines(body)
        case Function(name=name, parameter=parameter, body=body):
            yield f"{name}({parameter}):"
            yield from (f"  {line}" for line in _lines(body))
        case Leave(how=how):
            yield how
        case Comment(text=words):
            yield f"# {words}"


def _term(term: Term) -> str:
    return _type(text(term, lambda value: (expr_text(value.expr), value.level)))


def _type(words: str) -> str:
    return words.replace("fg::", "")


def _dims(sizes: tuple[int, ...]) -> str:
    return "".join(f"[{size}]" for size in sizes)


def _waits(statement: Statement) -> str:
    """The threads that must come to a statement together, if any must."""
    if isinstance(statement, (If, For, Scope, Function)):
        return ""
    for node in walk_terms(terms_of(statement)):
        row = FUNCTIONS.get(node.function) if isinstance(node, Invoke) else None
        together = row.together if row else TOGETHER.get(node.function) if isinstance(node, Method) else None
        if together not in (None, Threads.ANY):
            assert together is not None
            return str(together.value)
    return ""

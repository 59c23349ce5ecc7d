"""Commands that take several ops: which these are, and what of the command line is for which of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusegen.cli.arguments import Request, named, of_request, ops_of_file
from fusegen.fused_op import FusedOp, ListOp


@dataclass(frozen=True)
class Chosen:
    """An op as the user would name it alone, and what is asked of it."""

    title: str
    op: FusedOp
    request: Request


def is_file(name: str) -> bool:
    """Whether ``name`` is a file of ops, all of which are meant."""
    return name.endswith(".py")


def chosen(names: Sequence[str], request: Request) -> list[Chosen]:
    """The named ops, each once; of a file all that it declares.

    What is said by name (``--shape y=4,5``) is for the ops that have an argument of that name. What no op has stays:
    each then says by itself that it does not know it, or takes it for one of its own.

    Raises:
        DeclarationError: there is no such op, or the file cannot be imported.
    """
    ops: dict[str, FusedOp] = {}
    for name in names:
        ops.update(_ops_of(name))
    asked = {name for name in (*request.shapes, *request.dtypes, *request.arguments) if name}
    taken = {name for name in asked if any(_has(op, name) for op in ops.values())}
    found = []
    for title, op in ops.items():
        own = _without(request, {name for name in taken if not _has(op, name)})
        found.append(Chosen(title, of_request(op, own), own))
    return found


def outcome(titles: Iterable[str], failed: Iterable[str], passed: str) -> str:
    """The last line of a command: how many ops failed and which, or that all passed: the verb, of several ops."""
    every, bad = list(titles), list(failed)
    if bad:
        return f"{len(bad)} of {len(every)} {_ops(len(every))} failed: {', '.join(bad)}"
    return f"all {len(every)} ops {passed}" if len(every) != 1 else f"the op {passed}s"


def _ops(count: int) -> str:
    return "op" if count == 1 else "ops"


def _ops_of(name: str) -> dict[str, FusedOp]:
    if not is_file(name):
        return {name: named(name)}
    return {f"{name}:{own}": op for own, op in ops_of_file(name).items()}


def _has(op: FusedOp, name: str) -> bool:
    listed = f"{op.declaration.tensors}_" if isinstance(op, ListOp) else None
    return name in op.declaration.signature.parameters or (listed is not None and name.startswith(listed))


def _without(request: Request, names: set[str]) -> Request:
    def rest(given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name not in names}

    return Request(rest(request.shapes), rest(request.dtypes), rest(request.arguments))

"""What is legal of a kernel program.

- A name is declared before it is read, where it is read, and once in its scope.
- What is declared as constant is not assigned, and neither is a parameter.
- Only functions of the table are invoked (kernel_program/functions), and the kernel's own.
- Threads that wait for each other all come there: no barrier or exchange stands where some threads of the block, or
  some blocks of the cluster, may have gone another way.
- No two exchanges share a place in shared memory, and one that is repeated is not overtaken by its own next turn.
- ``break`` and ``continue`` stand in a loop.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fusegen.core.errors import LegalityError
from fusegen.core.ir import Expr, Size, refs, walk
from fusegen.kernel_program.functions import CHANGING, FUNCTIONS, MEMBERS, TOGETHER, Threads
from fusegen.kernel_program.nodes import (
    BLOCK,
    BUILTIN,
    THREAD,
    THREAD_ROW,
    Assign,
    Binary,
    Convert,
    Declare,
    Field,
    For,
    Function,
    If,
    Invoke,
    Item,
    KernelProgram,
    Leave,
    Method,
    Number,
    Scope,
    Shared,
    Statement,
    Symbol,
    Term,
    Value,
    inside,
    returns,
    terms_of,
    walk_terms,
)

# Among which threads a value is the same, and which threads come to a statement together: those of a cluster, those of
# a block, or none for sure.
_CLUSTER, _BLOCK, _NONE = range(3)
_WARP = 32
_BARRIERS = ("__syncthreads", "fg::row_barrier")


def check_program(program: KernelProgram, what: str) -> None:
    """Raise if a program is not legal.

    Args:
        what: the kernel, for the error.

    Raises:
        LegalityError: what the module says does not hold: a bug in fusegen.
    """
    _Check(program, what).run()


@dataclass(frozen=True)
class _Variable:
    """What is known of a name: whether it may be assigned, and among which threads it is the same."""

    constant: bool
    same: int


class _Check:
    """One walk through a program, as a thread goes."""

    def __init__(self, program: KernelProgram, what: str) -> None:
        self.program, self.what = program, what
        parameters = {name: _Variable(True, _CLUSTER) for name in program.parameters}
        builtin = {name.name: _Variable(True, self._of_builtin(name)) for name in BUILTIN}
        self.scope: ChainMap[str, _Variable] = ChainMap({}, {**builtin, **parameters})
        self.functions = dict[str, Function]()
        self.together = _CLUSTER  # the threads that are sure to come here together
        self.loops = 0
        self.sites = set[tuple[str, object]]()
        self.sizes = dict[Expr, list[str]]()  # of axes that an expression reads
        self.parts = dict[int, tuple[Term, list[Term]]]()  # what decides of a term, by its identity
        self.outermost = 0  # depth of the scopes in which a variable came to be the same among fewer threads
        self.quiet = False  # a first walk through a loop, which finds out what changes in it

    def run(self) -> None:
        """All of it."""
        self._all(self.program.body)

    def _of_builtin(self, name: Symbol) -> int:
        if name in (THREAD, THREAD_ROW):
            return _NONE
        return _BLOCK if name == BLOCK and self.program.cluster > 1 else _CLUSTER

    def _require(self, holds: bool, what: str, given: object) -> None:
        if not holds and not self.quiet:
            raise LegalityError(
                f"kernel program of {self.what}", given=f"{what} ({given})",
                expected="what kernel_program/check.py lists", fix="this is a bug in fusegen: please report the op",
            )  # fmt: skip

    # -- statements -----------------------------------------------------------------------------------------------

    def _all(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            self._one(statement)

    @contextmanager
    def _nested(self) -> Iterator[None]:
        self.scope = self.scope.new_child()
        try:
            yield
        finally:
            self.scope = self.scope.parents

    def _one(self, statement: Statement) -> None:
        if isinstance(statement, Declare):
            same = self._read(statement.value) if statement.value is not None else _CLUSTER
            self._declare(statement.name, _Variable(statement.constant, max(same, self.together)))
        elif isinstance(statement, Shared):
            if statement.place is not None:
                self._read(statement.place)
            self._declare(statement.name, _Variable(False, _NONE))
        elif isinstance(statement, Assign):
            self._change(statement.target, self._read(statement.value))
        elif isinstance(statement, If):
            self._branch(statement)
        elif isinstance(statement, For):
            self._loop(statement)
        elif isinstance(statement, Scope):
            with self._nested():
                self._all(statement.body)
        elif isinstance(statement, Function):
            self.functions[statement.name] = statement
            with self._nested():
                self._declare(statement.parameter, _Variable(True, _NONE))
                self._all(statement.body)
        elif isinstance(statement, Leave):
            self._require(
                statement.how == "return" or self.loops > 0, f"a {statement.how} outside of a loop", "no loop"
            )
        else:
            for term in terms_of(statement):
                self._read(term)

    def _declare(self, name: str, variable: _Variable) -> None:
        here = self.scope.maps[0]
        self._require(name not in here or self.quiet, "a name declared twice in a scope", name)
        here[name] = variable

    def _change(self, target: Term, same: int) -> None:
        """A variable, or a part of it, gets another value."""
        root = target
        while isinstance(root, Item):
            self._read(root.index)
            root = root.of
        if not isinstance(root, Symbol):
            self._require(False, "an assignment to what is no variable", target)
            return
        found = self._known(root.name)
        in_memory = isinstance(target, Item) and root.name in self.program.parameters
        self._require(found is not None, "a name that is not declared here", root.name)
        self._require(in_memory or (found is not None and not found.constant), "a constant that is assigned", root.name)
        if found is not None and not in_memory:
            same = max(same, self.together)
            if same > found.same:
                scopes = self.scope.maps
                at = next(at for at, scope in enumerate(scopes) if root.name in scope)
                scopes[at][root.name] = replace(found, same=same)
                self.outermost = min(self.outermost, len(scopes) - at)

    def _branch(self, statement: If) -> None:
        same, before = self._read(statement.condition), self.together
        for body in (statement.body, statement.otherwise):
            self.together = max(before, same)
            with self._nested():
                self._all(body)
        # Where some threads have left, the others go on alone.
        left = any(isinstance(s, Leave) for s in (*statement.body, *statement.otherwise))
        self.together = max(before, same) if left else before

    def _loop(self, statement: For) -> None:
        """A loop begins with what its turns have changed: two walks find that out before the one that counts. One does
        where nothing changes that is declared outside of the loop."""
        before, quiet, outermost, depth = self.together, self.quiet, self.outermost, len(self.scope.maps)
        self._alone(statement)
        self.outermost, has_looked = depth + 1, False
        for looks_ahead in (True,) if quiet else (True, True, False):
            if looks_ahead and has_looked and self.outermost > depth:
                continue
            self.quiet, has_looked = looks_ahead, True
            self.together = before
            with self._nested():
                if statement.type is not None:
                    assert statement.first is not None
                    self._declare(statement.name, _Variable(False, max(self._read(statement.first), before)))
                self.together = max(before, self._read(statement.condition))
                if statement.step is not None:
                    self._change(Symbol(statement.name), self._read(statement.step))
                self.loops += 1
                with self._nested():
                    self._all(statement.body)
                self.loops -= 1
        self.quiet, self.outermost = quiet, min(outermost, self.outermost)
        returned = any(returns(s) for s in statement.body)
        self.together = self.together if returned else before

    def _alone(self, loop: For) -> None:
        """A repeated exchange: the threads that come to its next turn must know that all have read the last one. A
        barrier exchanges nothing by itself."""
        if self.program.cluster > 1 or self.quiet:
            return
        waiting = [node for node in _invoked(loop.body) if _waits(node)]
        exchanges = any(node.function not in _BARRIERS and not FUNCTIONS[node.function].alternates for node in waiting)
        self._require(len(waiting) != 1 or not exchanges, "an exchange that its own next turn may overtake", loop.name)

    # -- terms ----------------------------------------------------------------------------------------------------

    def _read(self, term: Term) -> int:
        """Among which threads a term is the same."""
        if isinstance(term, Symbol):
            return self._symbol(term.name)
        same = _CLUSTER
        for node in self._parts(term):
            if isinstance(node, Symbol):
                same = max(same, self._symbol(node.name))
            elif isinstance(node, Value):
                same = max(same, self._value(node.expr))
            elif isinstance(node, Invoke):
                same = max(same, self._invoke(node))
            elif isinstance(node, Method):
                same = max(same, self._method(node))
        return same

    def _parts(self, term: Term) -> list[Term]:
        """What decides among which threads a term is the same. The walks through a loop ask for each again."""
        _, found = self.parts.get(id(term), (None, None))
        if found is None:
            if not isinstance(term, Binary):
                found = [node for node in walk_terms([term]) if isinstance(node, (Symbol, Value, Invoke, Method))]
            elif term == Binary("/", Convert(_ctype(term), BLOCK), Number(self.program.cluster)):
                found = []  # the number of a cluster, also where it is a part of a sum
            else:
                found = [*self._parts(term.left), *self._parts(term.right)]
            self.parts[id(term)] = term, found
        return found

    def _symbol(self, name: str) -> int:
        if name == "true" or name == "table" or name.startswith("table."):
            return _CLUSTER
        found = self._known(name)
        self._require(found is not None, "a name that is not declared here", name)
        return found.same if found is not None else _NONE

    def _known(self, name: str) -> _Variable | None:
        """As ``self.scope.get``, which asks each scope twice."""
        for scope in self.scope.maps:
            if name in scope:
                return scope[name]
        return None

    def _value(self, expr: Expr) -> int:
        """An expression of the op reads the variables that hold its names."""
        same = _CLUSTER
        if expr not in self.sizes:
            self.sizes[expr] = [node.axis.upper() for node in walk([expr]) if isinstance(node, Size)]
        for ref in refs(expr):
            variable = self.program.variables.get(ref.name)
            self._require(variable is not None, "a name of the op that nothing holds", ref.name)
            if variable is not None:
                same = max(same, self._read(variable))
        return max([same, *map(self._symbol, self.sizes[expr])])

    def _invoke(self, node: Invoke) -> int:
        if node.function in self.functions:
            return _NONE
        row = FUNCTIONS.get(node.function)
        self._require(row is not None, "a function that the table does not have", node.function)
        if row is None:
            return _NONE
        self._come_together(row.together, node.function)
        if row.site is not None:
            place = (node.function, node.template)
            self._require(place not in self.sites, "two exchanges at one place", place)
            if not self.quiet:
                self.sites.add(place)
        if row.changes is not None:
            for arg in node.args[row.changes : None if row.on else row.changes + 1]:
                self._changed(arg)
        if node.function == "fg::cluster_rank":
            return _BLOCK
        return _CLUSTER if row.pure else _NONE  # what its arguments are the same among, the walk over terms says

    def _changed(self, arg: Term) -> None:
        root = arg
        while isinstance(root, (Item, Field)):
            root = root.of
        self._change(root, _NONE)

    def _method(self, node: Method) -> int:
        known = node.function in MEMBERS or node.function in CHANGING
        self._require(known, "a member that states do not have", node.function)
        if node.function in TOGETHER:
            self._come_together(TOGETHER[node.function], node.function)
        return _NONE

    def _come_together(self, threads: Threads, what: str) -> None:
        # What is the same among a warp alone is not known.
        least = {Threads.ANY: _NONE, Threads.WARP: _BLOCK, Threads.BLOCK: _BLOCK, Threads.CLUSTER: _CLUSTER}[threads]
        self._require(self.together <= least, "threads that wait for others which may not come", what)


def _ctype(term: Term) -> str:
    return term.left.ctype if isinstance(term, Binary) and isinstance(term.left, Convert) else ""


def _invoked(statements: Iterable[Statement]) -> Iterator[Invoke]:
    """All that statements invoke."""
    for statement in statements:
        yield from (node for node in walk_terms(terms_of(statement)) if isinstance(node, Invoke))
        yield from _invoked(inside(statement))


def _waits(node: Invoke) -> bool:
    """Whether the threads of a block wait for each other in it: one warp exchanges without."""
    row = FUNCTIONS.get(node.function)
    if row is None or row.together is not Threads.BLOCK:
        return False
    by_row = node.function in ("fg::row_sum", "fg::row_merge")
    return not (by_row and isinstance(node.template[0], int) and node.template[0] <= _WARP)


def waits(program: KernelProgram) -> bool:
    """Whether threads of a block wait for each other, or exchange anything."""
    for node in _invoked(program.body):
        row = FUNCTIONS.get(node.function)
        if row is not None and row.together is not Threads.ANY:
            return True
    return False

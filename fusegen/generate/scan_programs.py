"""A scan's kernels as kernel programs: what each thread does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from fusegen.core.dtypes import DType, bool_
from fusegen.core.ir import Expr, Let, Output, Reduce, Ref, refs, walk
from fusegen.core.scans import PLACES
from fusegen.core.subexpressions import introduce_lets
from fusegen.fuse.scan_schedule import HERE, LENGTH, ScanSchedule, ScanTensor
from fusegen.fuse.scans import neighbour, running
from fusegen.generate.cexpr import Printer
from fusegen.generate.scan_params import scan_parameters, state_type
from fusegen.generate.wording import WIDTH
from fusegen.kernel_program.nodes import (
    BLANK,
    BLOCK,
    BLOCK_Y,
    CONTINUE,
    RETURN,
    THREAD,
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
    KernelProgram,
    Number,
    Plain,
    Statement,
    Symbol,
    Term,
    Together,
    Value,
    Vector,
    count,
    either,
    invoke,
    terms_of,
    total,
    walk_terms,
)
from fusegen.kernel_program.text import text

# What kernels call variables, beside those that no intermediate is ever called.
_VARIABLES = (
    "a b i j0 u here running place own before held carry found state rows parts totals padded position column earlier "
    "step read take"
)
_TAKEN = frozenset(_VARIABLES.split())


def scan_program(schedule: ScanSchedule, stage: str) -> KernelProgram:
    """What each thread of one of a scan's kernels does."""
    return _builder(schedule)(schedule, stage).program()


def deepest(schedule: ScanSchedule) -> int:
    """Columns in front of its program's deepest statements."""
    return _builder(schedule).deepest


def _builder(schedule: ScanSchedule) -> type[_Builder]:
    return _Columns if schedule.columns else _Rows


def _broken(words: str, column: int, room: int) -> str:
    """An expression that begins in a column, with its outermost choice on lines of its own where it is too long for
    one: four columns behind where the condition begins, as clang-format has it."""
    if column + len(words) < room:
        return words
    depth, begins, choices = 0, {0: 0}, list[tuple[int, int, int]]()
    for at, letter in enumerate(words):
        depth += (letter == "(") - (letter == ")")
        if letter == "(" or words[at : at + 2] == ", ":
            begins[depth] = at + (1 if letter == "(" else 2)
        if words[at : at + 3] in (" ? ", " : "):
            choices.append((depth, at, begins[depth]))
    if not choices:
        return words
    outermost, _, begin = min(choices)
    pieces, start = list[str](), 0
    for at in (at for level, at, _ in choices if level == outermost):
        pieces.append(words[start:at])
        start = at + 1
    return f"\n{' ' * (column + begin + 4)}".join([*pieces, words[start:]])


class _Builder:
    """What the programs of both shapes share: where things are, and what is computed of an element."""

    deepest: ClassVar[int]  # columns in front of the deepest statements

    def __init__(self, schedule: ScanSchedule, stage: str) -> None:
        self.schedule, self.stage = schedule, stage
        self.how, self.values = schedule.how, schedule.program.values
        self.index, self.vector, self.state = Plain(schedule.index), schedule.vector, state_type(schedule)
        self.reads, self.neighbours = schedule.reads_in(stage), schedule.neighbours_in(stage)
        self.written = schedule.written if stage == "scan" else ()
        # What holds the present value of each name of expressions.
        self.variables: dict[str, Term] = {LENGTH: Convert("int64_t", Symbol("n")), HERE: Symbol(HERE)}
        self.variables |= {name: Symbol(name) for name, _ in schedule.program.numbers}
        self.variables |= {t.name: Symbol(f"{t.name}_read").at(Symbol("u"), Symbol("k")) for t in schedule.tensors}

    def program(self) -> KernelProgram:
        """All of it."""
        waits = [Do(invoke("fg::wait_for_previous_kernel"))] if self.schedule.follows_in(self.stage) else []
        body = (*waits, *self._located(), BLANK, *self._scanned())
        parameters = tuple(param.name for param in scan_parameters(self.schedule, self.stage))
        return KernelProgram(parameters, self.variables, (self.schedule.threads, 1), 1, body)

    def _located(self) -> list[Statement]:
        """Which row a thread has, or which rows, and which part of it."""
        raise NotImplementedError

    def _scanned(self) -> list[Statement]:
        """What it does there."""
        raise NotImplementedError

    # -- where things are ---------------------------------------------------------------------------------------------

    def _part(self, part: Term, length: Term) -> list[Statement]:
        """Which elements are a part's, where rows are cut into parts."""
        if not self.schedule.split:
            return []
        begin = Symbol("part") * Symbol("chunk")
        end = invoke("fg::at_most", Symbol("begin") + Symbol("chunk"), length)
        nothing_behind: list[Statement] = [
            Comment("Nothing comes behind the last part."),
            If(Symbol("part").equals(Symbol("parts") - 1), (RETURN,), brief=True),
        ]
        return [
            Declare(Plain("int"), "part", part, constant=True),
            *(nothing_behind if self.stage == "totals" else []),
            Declare(self.index, "begin", begin, constant=True),
            Declare(self.index, "end", end, constant=True),
        ]

    def _begin(self) -> Term:
        return Symbol("begin") if self.schedule.split else Number(0)

    def _end(self, length: Term) -> Term:
        return Symbol("end") if self.schedule.split else length

    def _pointers(self, row: Term) -> list[Statement]:
        """The coordinates of a row, fastest first, and where it begins in each tensor."""
        found, dims = list[Statement](), self.schedule.dims
        if dims > 1:
            found.append(Declare(self.index, "position", row))
            for dim in range(dims - 1, 0, -1):
                taken = invoke("fg::take", Symbol("position"), Symbol(f"n{dim}"))
                found.append(Declare(self.index, f"j{dim}", taken, constant=True))
            row = Symbol("position")
        if dims:
            found.append(Declare(self.index, "j0", row, constant=True))
        for tensor in (*self.reads, *self.written):
            start: Term = Symbol(f"{tensor.name}_ptr")
            offset = total(Symbol(f"j{dim}") * Symbol(f"{tensor.name}_stride{dim}") for dim in range(dims))
            if offset is not None:
                start = start + (Together(offset) if dims > 1 else offset)
            ctype = f"{'' if tensor in self.written else 'const '}{tensor.dtype.ctype}*"
            found.append(Declare(Plain(ctype), tensor.name, start))
        return found

    def _vectors(self, tensor: ScanTensor, end: str, turns: int | None = None) -> Statement:
        """A vector of a tensor's elements, or one for each turn."""
        ctype = Vector(tensor.dtype.compute.ctype, self.vector)
        return Declare(ctype, f"{tensor.name}_{end}", dims=() if turns is None else (turns,))

    def _declare_state(self, name: str, *dims: int) -> Statement:
        return Declare(self.state, name, dims=dims)

    def _each(self, statement: Statement, guard: Term | None = None) -> Statement:
        """A statement for each element of a vector; ``guard``: under which there is one."""
        if guard is not None:
            statement = If(guard, (statement,), brief=True)
        return count("k", self.vector, [statement])

    # -- what is computed of an element -------------------------------------------------------------------------------

    @property
    def _is_shared(self) -> bool:
        """Whether several threads have elements of a row."""
        return self.schedule.lanes > 1

    @property
    def _is_made(self) -> bool:
        """Whether values are kept where elements are combined twice, for a vector's total and for its results."""
        return self._is_shared and not all(isinstance(value, Ref) for value in self.values)

    def _added_to(self, state: Term, values: Sequence[Expr], outputs: Sequence[Expr], place: Term) -> list[Statement]:
        """What is done with one element, where ``state`` has what stands before it.

        Args:
            values: what is added, if that has to be computed.
            outputs: what is written.
            place: where the element is.
        """
        names = [*"ab"[: len(values)], *(tensor.name for tensor in self.written[: len(outputs)])]
        exprs = zip(names, (*values, *outputs), strict=True)
        items = [Output(f"{name}_here", expr, expr.dtype, ()) for name, expr in exprs]
        elements = {name for tensor in self.schedule.tensors for name in tensor.elements}
        lets, bound = introduce_lets([], items, {}, {*_TAKEN, *elements})
        values, outputs = ([item.expr for item in some] for some in (bound[: len(values)], bound[len(values) :]))
        self.variables |= {let.name: Symbol(let.name) for let in lets}
        of_results = _depending(lets, {running(how) for how in self.schedule.program.results})
        found = self._positions([item.expr for item in (*lets, *bound)], place)
        found += [self._let(let) for let in lets if let.name not in of_results]
        added: list[Term] = []
        for name, value in zip("ab", values, strict=False):
            kept = Symbol(name).at(Symbol("u"), Symbol("k"))
            if self._is_made:
                found.append(Assign(kept, self._value(value, len(f"{name}[u][k] = "))))
            added.append(kept if self._is_made else self._value(value, len(f"{text(state)}.add(")))
        if self._is_made and not values:
            added = [Symbol(name).at(Symbol("u"), Symbol("k")) for name in "ab"[: len(self.values)]]
        if self.how.combine in PLACES:
            added.append(place)
        add = [Do(state.call("add", *added))]
        later = [let for let in lets if let.name in of_results]
        results = self._results(state, [item.expr for item in (*later, *bound)])
        results += [self._let(let) for let in later]
        for tensor, expr in zip(self.written, outputs, strict=False):
            target = Symbol(f"{tensor.name}_found").at(Symbol("k"))
            results.append(Assign(target, self._value(expr, len(f"{text(target)} = "), tensor.dtype)))
        return [*found, *results, *add] if self.how.exclusive else [*found, *add, *results]

    def _value(self, expr: Expr, column: int, dtype: DType | None = None) -> Value:
        """An expression, which begins in a column of its line; ``dtype``: that of the result that it is."""
        printer = Printer(dtype is not None and dtype.is_half, lambda name: text(self.variables[name]))
        printed, level = printer.printed(expr)
        return Value(expr, _broken(printed, column, WIDTH - self.deepest - len(");")), level)

    def _let(self, let: Let | Reduce) -> Statement:
        dtype = let.expr.dtype.compute
        start = f"const {dtype.ctype} {let.name} = "
        return Declare(Plain(dtype.ctype), let.name, self._value(let.expr, len(start)), constant=True)

    def _positions(self, exprs: Sequence[Expr], place: Term) -> list[Statement]:
        """The position of an element, where something is made of it."""
        read = {ref.name for ref in refs(*exprs)}
        return [Declare(Plain("int64_t"), HERE, place, constant=True)] if HERE in read else []

    def _results(self, state: Term, exprs: Sequence[Expr]) -> list[Statement]:
        """The partial results at an element, where they are read more than once."""
        found = list[Statement]()
        nodes = [*exprs, *(child for node in walk(exprs) for child in node.children)]
        for how in self.schedule.program.results:
            name, is_first = running(how), how == self.schedule.program.how
            result: Term = state.call("result") if is_first else Field(state, "value")
            uses = sum(isinstance(node, Ref) and node.name == name for node in nodes)
            self.variables[name] = result if uses == 1 else Symbol(name)
            if uses > 1:
                ctype = Plain("int64_t" if how.combine in PLACES else self.schedule.program.dtype.ctype)
                found.append(Declare(ctype, name, result, constant=True))
        return found


class _Rows(_Builder):
    """Elements of a row are neighbours: threads of a block share it."""

    deepest = 8

    def __init__(self, schedule: ScanSchedule, stage: str) -> None:
        super().__init__(schedule, stage)
        # Elements beside others stand in registers, but for those beside a whole vector.
        self.variables |= {neighbour(t.name, way): Symbol(neighbour(t.name, way)) for t, way in self.neighbours}
        self.length = Symbol("n" if schedule.even else "padded")

    def _located(self) -> list[Statement]:
        schedule, index, block = self.schedule, self.index, Convert(self.schedule.index, BLOCK)
        found = list[Statement]()
        if self._is_shared and not schedule.even:
            padded = (Symbol("n") + (self.vector - 1)) // self.vector * self.vector
            found.append(Declare(index, "padded", padded, constant=True))
        if schedule.lanes < schedule.threads:
            lanes = schedule.lanes
            of_thread = THREAD // lanes if lanes > 1 else THREAD
            found += [
                Comment(f"Locate: {lanes} thread{'s' if lanes > 1 else ''} for each row."),
                Declare(index, "row", block * (schedule.threads // lanes) + of_thread, constant=True),
            ]
            if lanes > 1:
                found.append(Declare(Plain("int"), "lane", THREAD % lanes, constant=True))
            row: Term = invoke("fg::at_most", Symbol("row"), Symbol("rows") - 1)
        else:
            whose = "row"
            of_block: Term = BLOCK
            if schedule.split:
                whose, of_block = "row's parts", BLOCK // Symbol("parts")
            found += [
                Comment(f"Locate: a block for each {whose}."),
                Declare(index, "row", of_block, constant=True),
                Declare(Plain("int"), "lane", THREAD, constant=True),
            ]
            row = Symbol("row")
        return [*found, *self._part(BLOCK % Symbol("parts"), self.length), *self._pointers(row)]

    def _scanned(self) -> list[Statement]:
        schedule, tile = self.schedule, Symbol("tile")
        found: list[Statement] = [self._declare_state("carry")] if self._is_shared else []
        if self._warps > 1:
            found.append(Declare(Plain("int"), "place", Number(0)))
        if schedule.split and self.stage == "scan":
            found += self._before_the_part()
        body = self._reading()
        if self._is_shared:
            body += [BLANK, *self._combining()]
        if self.stage == "scan":
            body += [BLANK, *self._writing()]
        if not self._is_shared:
            return body
        end = self._end(self.length)
        found.append(For("tile", self.index, self._begin(), tile < end, Number(schedule.tile), tuple(body)))
        if self.stage == "totals":
            left = Assign(self._total(Symbol("part")), Symbol("carry"))
            found.append(If(Symbol("lane").equals(0), (left,), brief=True))
        return found

    @property
    def _warps(self) -> int:
        """Those that share a row, where it takes more than one."""
        return 1 if self.schedule.lanes < self.schedule.threads else self.schedule.threads // 32

    def _total(self, part: Term) -> Term:
        """What a part of the row comes to."""
        return Symbol("totals").at(Symbol("row") * Convert("int64_t", Symbol("parts")) + part)

    def _scan(self, turns: int) -> Statement:
        """Put together what threads hold."""
        args = map(Symbol, ("own", "before", "carry"))
        if self._warps > 1:
            return Do(invoke("fg::scan_block", *args, Symbol("place"), of=(self._warps, turns)))
        return Do(invoke("fg::scan_lanes", *args, of=(self.schedule.lanes, turns)))

    def _before_the_part(self) -> list[Statement]:
        first, lane = Symbol("first"), Symbol("lane")
        own = Assign(Symbol("own").at(0), self._total(first + lane))
        body = (
            self._declare_state("own", 1),
            self._declare_state("before", 1),
            If(first + lane < Symbol("part"), (own,), brief=True),
            self._scan(1),
        )
        return [
            Comment("What all parts before this one come to."),
            For("first", Plain("int"), Number(0), first < Symbol("part"), Number(self.schedule.threads), body),
        ]

    def _each_turn(self, body: Sequence[Statement], has_place: bool = True, writes: bool = False) -> Statement:
        """A loop over the vectors that a thread has, as far as the row goes: its element ``i`` is the first of one.

        Args:
            has_place: whether something is done with that.
            writes: of those threads alone whose row there is.
        """
        schedule, u, lane = self.schedule, Symbol("u"), Symbol("lane")
        if not self._is_shared:
            behind = If(Symbol("row") >= Symbol("rows"), (CONTINUE,), brief=True)
            first = Declare(self.index, "i", Number(0), constant=True)
            return count("u", 1, [*([behind] if writes else []), first, *body])
        thread = u * schedule.lanes + lane if schedule.turns > 1 else lane
        at = Symbol("tile") + (self.vector * thread if self.vector > 1 else _as_one(thread))
        name = "at" if self.how.reverse else "i"
        is_behind = Symbol(name) >= self._end(self.length)
        if writes and schedule.lanes < schedule.threads:
            is_behind = either(is_behind, Symbol("row") >= Symbol("rows"))
        found: list[Statement] = [Declare(self.index, name, at, constant=True), If(is_behind, (CONTINUE,), brief=True)]
        if self.how.reverse and has_place:
            place = self.length - self.vector - Symbol("at")
            found.append(Declare(self.index, "i", place, constant=True))
        return count("u", schedule.turns, [*found, *body])

    def _each_element(self, body: Sequence[Statement]) -> Statement:
        """A loop over the elements of a vector, in the order in which they are combined."""
        guard = [] if self.schedule.even else [If(Symbol("i") + Symbol("k") >= Symbol("n"), (CONTINUE,), brief=True)]
        if not self.how.reverse:
            return count("k", self.vector, [*guard, *body])
        k = Declare(Plain("int"), "k", Number(self.vector - 1) - Symbol("step"), constant=True)
        return count("step", self.vector, [k, *guard, *body])

    @property
    def _place(self) -> Term:
        """Where an element is along the row."""
        return Symbol("i") if self.vector == 1 else Symbol("i") + Symbol("k")

    # -- read, combine, write -----------------------------------------------------------------------------------------

    def _reading(self) -> list[Statement]:
        turns = self.schedule.turns
        several = ", several of them at once" if turns > 1 else ""
        body = [self._load(tensor) for tensor in self.reads]
        edges = list[Statement]()
        for tensor, way in self.neighbours:
            ctype, name = tensor.dtype.compute.ctype, f"{neighbour(tensor.name, way)}_edge"
            edges.append(Declare(Plain(ctype), name, dims=(turns,)))
            i = Symbol("i")
            at, there = (i - 1, i > 0) if way < 0 else (i + self.vector, i + self.vector < Symbol("n"))
            value = Choice(there, invoke("fg::load", self._address(tensor, at)), Convert(ctype, Number(0)))
            body.append(Assign(Symbol(name).at(Symbol("u")), value))
        return [
            Comment(f"Read: neighbouring threads take neighbouring vectors{several}."),
            *(self._vectors(tensor, "read", turns) for tensor in self.reads),
            *edges,
            self._each_turn(body),
        ]

    def _combining(self) -> list[Statement]:
        turns, own = self.schedule.turns, Symbol("own").at(Symbol("u"))
        body = self._added_to(own, self.values, (), self._place)
        has_place = not self.schedule.even or any(
            isinstance(term, Symbol) and term.name == "i"
            for statement in body
            for term in walk_terms(terms_of(statement))
        )
        # A condition that outlives a barrier is no predicate: as bytes, those of a vector would lie in memory.
        types = ["int" if value.dtype is bool_ else value.dtype.compute.ctype for value in self.values]
        made = [Declare(Plain(c), name, dims=(turns, self.vector)) for name, c in zip("ab", types, strict=False)]
        return [
            Comment("Combine: a vector, then those of all threads in the order of the row."),
            self._declare_state("own", turns),
            self._declare_state("before", turns),
            *(made if self._is_made else []),
            self._each_turn([self._each_element(body)], has_place),
            self._scan(turns),
        ]

    def _writing(self) -> list[Statement]:
        before, outputs = Symbol("before").at(Symbol("u")), self.schedule.program.outputs
        values = () if self._is_made else self.values
        body = [
            *(self._vectors(tensor, "found") for tensor in self.written),
            self._each_element(self._added_to(before, values, outputs, self._place)),
            *map(self._store, self.written),
        ]
        if not self._is_shared:
            what = "Combine and write: a vector is a whole row, so nothing stands before it."
            return [Comment(what), self._declare_state("before", 1), self._each_turn(body, writes=True)]
        what = "Write: each element on top of what stands before its vector."
        return [Comment(what), self._each_turn(body, writes=True)]

    def _positions(self, exprs: Sequence[Expr], place: Term) -> list[Statement]:
        """The position of an element and those next to it, where something is made of these."""
        found, read = super()._positions(exprs, place), {ref.name for ref in refs(*exprs)}
        k, u = Symbol("k"), Symbol("u")
        for tensor, way in self.neighbours:
            name, of = neighbour(tensor.name, way), Symbol(f"{tensor.name}_read").at(u)
            if name in read:
                value: Term = Symbol(f"{name}_edge").at(u)
                if self.vector > 1:
                    value = (
                        Choice(k, of.at(k - 1), value) if way < 0 else Choice(k < self.vector - 1, of.at(k + 1), value)
                    )
                found.append(Declare(Plain(tensor.dtype.compute.ctype), name, value, constant=True))
        return found

    # -- memory -------------------------------------------------------------------------------------------------------

    def _address(self, tensor: ScanTensor, at: Term | None = None) -> Term:
        """Where element k of a vector is; ``at``: its position along the row, if that is another one."""
        start, at = Symbol(tensor.name), at or self._place
        if tensor.access == "same":
            return start
        return start + (at * Symbol(f"{tensor.name}_step") if tensor.access == "strided" else _as_one(at))

    def _load(self, tensor: ScanTensor) -> Statement:
        name, i, n, into = Symbol(tensor.name), Symbol("i"), Symbol("n"), Symbol(f"{tensor.name}_read").at(Symbol("u"))
        if self.vector == 1:
            return Assign(into.at(0), invoke("fg::load", self._address(tensor)))
        if tensor.access != "vector":
            one = Assign(into.at(Symbol("k")), invoke("fg::load", self._address(tensor)))
            return self._each(one, None if self.schedule.even else i + Symbol("k") < n)
        if self.schedule.even:
            return Assign(into, invoke("fg::load_vector", name + i, of=(self.vector,)))
        return Assign(into, invoke("fg::load", name, i, n, of=(self.vector,)))

    def _store(self, tensor: ScanTensor) -> Statement:
        name, i, n, found = Symbol(tensor.name), Symbol("i"), Symbol("n"), Symbol(f"{tensor.name}_found")
        if self.vector == 1:
            return Do(invoke("fg::store", self._address(tensor), found.at(0)))
        if tensor.access != "vector":
            one = Do(invoke("fg::store", self._address(tensor), found.at(Symbol("k"))))
            return self._each(one, None if self.schedule.even else i + Symbol("k") < n)
        if self.schedule.even:
            return Do(invoke("fg::store_vector", name + i, found, of=(self.vector,)))
        return Do(invoke("fg::store", name, i, n, found, of=(self.vector,)))


class _Columns(_Builder):
    """Rows lie side by side: a thread walks along several of them."""

    deepest = 6

    def __init__(self, schedule: ScanSchedule, stage: str) -> None:
        super().__init__(schedule, stage)
        for tensor, way in self.neighbours:
            name = neighbour(tensor.name, way)
            self.variables[name] = Symbol(f"{name}_read").at(Symbol("u"), Symbol("k"))

    def _located(self) -> list[Statement]:
        thread = Convert(self.schedule.index, BLOCK) * self.schedule.threads + THREAD
        column = Symbol("column")
        what = "a column" if self.vector == 1 else f"{self.vector} neighbouring columns"
        return [
            Comment(f"Locate: a thread walks along {what}."),
            Declare(self.index, "column", thread if self.vector == 1 else self.vector * thread, constant=True),
            If(column >= Symbol("rows"), (RETURN,), brief=True),
            *self._part(BLOCK_Y, Symbol("n")),
            *self._pointers(column),
        ]

    def _scanned(self) -> list[Statement]:
        schedule, u, at, end = self.schedule, Symbol("u"), Symbol("at"), self._end(Symbol("n"))
        steps, part = schedule.turns, Symbol("part")
        held = Symbol("held").at(Symbol("k"))
        found: list[Statement] = [self._declare_state("held", self.vector)]
        if schedule.split and self.stage == "scan":
            earlier = Do(held.call("append", self._total(Symbol("earlier"))))
            loop = For("earlier", Plain("int"), Number(0), Symbol("earlier") < part, None, (self._each(earlier),))
            found += [Comment("What all parts before this one come to."), loop]
        found += [
            Declare(self.index, "at", self._begin()),
            *(self._vectors(tensor, "read", steps) for tensor in self.reads),
            *(self._vectors(replace(t, name=neighbour(t.name, way)), "read", steps) for t, way in self.neighbours),
            Function("read", Plain("int"), "u", (self._step(), *self._reading())),
            Function("take", Plain("int"), "u", (self._step(), *self._taking())),
            Comment("Several steps are read before the first is taken."),
            For("at", None, None, at + steps <= end, Number(steps), (
                count("u", steps, [Do(invoke("read", u))], brief=True),
                count("u", steps, [Do(invoke("take", u))], brief=True),
            )),
            For("at", None, None, at < end, None, (Do(invoke("read", 0)), Do(invoke("take", 0)))),
        ]  # fmt: skip
        if self.stage == "totals":
            found.append(self._each(Assign(self._total(part), held)))
        return found

    def _total(self, part: Term) -> Term:
        """What a part of column k comes to."""
        return Symbol("totals").at(part * Convert("int64_t", Symbol("rows")) + Symbol("column") + Symbol("k"))

    def _step(self) -> Statement:
        """Where a step is along the rows."""
        at, u = Symbol("at"), Symbol("u")
        return Declare(self.index, "i", Symbol("n") - 1 - at - u if self.how.reverse else at + u, constant=True)

    def _reading(self) -> list[Statement]:
        found, i = (
            [self._load(tensor, Symbol(f"{tensor.name}_read"), Symbol("i")) for tensor in self.reads],
            Symbol("i"),
        )
        for tensor, way in self.neighbours:
            into = Symbol(f"{neighbour(tensor.name, way)}_read")
            at, there = (i - 1, i > 0) if way < 0 else (i + 1, i + 1 < Symbol("n"))
            loaded = self._load(tensor, into, at)
            found.append(self._element(into.at(Symbol("u")), Number(0)))
            found.append(If(there, (loaded,), brief=not isinstance(loaded, For)))
        return found

    def _taking(self) -> list[Statement]:
        outputs = self.schedule.program.outputs if self.stage == "scan" else ()
        body = self._added_to(Symbol("held").at(Symbol("k")), self.values, outputs, Symbol("i"))
        return [
            *(self._vectors(tensor, "found") for tensor in self.written),
            count("k", self.vector, body),
            *map(self._store, self.written),
        ]

    # -- memory -------------------------------------------------------------------------------------------------------

    def _element(self, into: Term, value: Term) -> Statement:
        """Each element of a vector, or the only one."""
        return Assign(into.at(0), value) if self.vector == 1 else self._each(Assign(into.at(Symbol("k")), value))

    def _row(self, tensor: ScanTensor, at: Term) -> Term:
        """The first column of a thread, at a position along it."""
        return Symbol(tensor.name) + at * Symbol(f"{tensor.name}_step")

    def _load(self, tensor: ScanTensor, into: Term, at: Term) -> Statement:
        """A step's elements, into one of several vectors."""
        into = into.at(Symbol("u"))
        if self.vector > 1 and tensor.access == "vector":
            return Assign(into, invoke("fg::load_vector", self._row(tensor, at), of=(self.vector,)))
        return self._element(into, invoke("fg::load", self._address(tensor, at)))

    def _address(self, tensor: ScanTensor, at: Term) -> Term:
        """Where column k is."""
        found, k = self._row(tensor, at), Symbol("k")
        if self.vector == 1 or tensor.access == "same":
            return found
        return found + (k if tensor.access == "vector" else k * Symbol(f"{tensor.name}_stride{self.schedule.dims - 1}"))

    def _store(self, tensor: ScanTensor) -> Statement:
        name = Symbol(f"{tensor.name}_found")
        if self.vector == 1:
            return Do(invoke("fg::store", self._address(tensor, Symbol("i")), name.at(0)))
        if tensor.access != "vector":
            return self._each(Do(invoke("fg::store", self._address(tensor, Symbol("i")), name.at(Symbol("k")))))
        return Do(invoke("fg::store_vector", self._row(tensor, Symbol("i")), name, of=(self.vector,)))


def _as_one(at: Term) -> Term:
    """A position as one number, which is added to a pointer."""
    return Together(at) if isinstance(at, Binary) and at.operator == "+" else at


def _depending(statements: Sequence[Let | Reduce], names: set[str]) -> set[str]:
    """The lets that follow from things that are called so."""
    known = set(names)
    for let in statements:
        if not known.isdisjoint(ref.name for ref in refs(let.expr)):
            known.add(let.name)
    return known - names

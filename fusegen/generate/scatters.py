"""A scatter's kernel as a kernel program, and that as CUDA text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fusegen.core.ir import const
from fusegen.core.one_term import start
from fusegen.fuse.scatter_schedule import AHEAD, NAMES, ScatterSchedule
from fusegen.generate.builder import macros
from fusegen.generate.cexpr import literal
from fusegen.generate.rendered import Rendered, file_text
from fusegen.generate.wording import WIDTH, comment
from fusegen.kernel_program.check import check_program
from fusegen.kernel_program.nodes import (
    BLANK,
    BLOCK,
    BREAK,
    RETURN,
    THREAD,
    Assign,
    Comment,
    Convert,
    Declare,
    Do,
    For,
    If,
    KernelProgram,
    Number,
    Plain,
    Shared,
    Statement,
    Symbol,
    Term,
    Value,
    count,
    every,
    invoke,
    total,
)
from fusegen.kernel_program.text import ATOM, Lines

_COMBINED = {"sum": "fg::plus", "prod": "fg::times", "max": "fg::maximum", "min": "fg::minimum"}
_OPERATORS = {"sum": "+=", "prod": "*="}  # of floats; integers wrap around
_VERBS = {"sum": "adds up", "prod": "multiplies", "max": "takes the maximum of", "min": "takes the minimum of"}
_PLACES, _UPDATES, _RESULT = map(Symbol, NAMES)
_LINES, _N, _SIZE, _HELD, _LINE = (Symbol(name) for name in ("lines", "n", "size", "held", "line"))
ParamKind = Literal["pointer", "lines", "n", "size", "divisor", "stride", "step"]


@dataclass(frozen=True)
class ScatterParam:
    """One parameter of a scatter's kernel.

    Attributes:
        tensor: by its place among places, updates and result, of a pointer, a stride or a step.
        dim: of a stride or a divisor.
    """

    kind: ParamKind
    name: str
    ctype: str
    tensor: int = 0
    dim: int = 0


def scatter_parameters(schedule: ScatterSchedule) -> tuple[ScatterParam, ...]:
    """The parameter list: read by the printer for the signature, by the launcher for values."""
    found = list[ScatterParam]()
    for place, (name, dtype) in enumerate(zip(NAMES, schedule.dtypes, strict=True)):
        is_result, alone = name == "result", "" if schedule.follows else " __restrict__"
        found.append(
            ScatterParam("pointer", f"{name}_ptr", f"{'' if is_result else 'const '}{dtype.ctype}*{alone}", place)
        )
    found += [ScatterParam(kind, kind, schedule.index) for kind in ("lines", "n", "size")]
    divisor = "fg::Divisor" if schedule.index == "int" else "fg::Divisor64"
    found += [ScatterParam("divisor", f"n{dim}", divisor, dim=dim) for dim in range(1, schedule.dims)]
    for place, name in enumerate(NAMES):
        found += [ScatterParam("stride", f"{name}_stride{d}", "int64_t", place, d) for d in range(schedule.dims)]
        found.append(ScatterParam("step", f"{name}_step", "int64_t", place))
    return tuple(found)


def render_scatter(schedule: ScatterSchedule) -> Rendered:
    """The text of a scatter's kernel.

    Raises:
        LegalityError: its program is not legal: a bug in fusegen.
    """
    name = "_".join(
        ["scatter", schedule.kind, *(["onto"] if schedule.onto else []), *(d.short for d in schedule.dtypes)]
    )
    parameters = scatter_parameters(schedule)
    program = KernelProgram(
        tuple(param.name for param in parameters), {}, (schedule.lines, 1), 1, tuple(_Builder(schedule).body())
    )
    check_program(program, name)
    lines = Lines(macros(), WIDTH - len("      ")).of(program.body)
    code = str(macros().kernel(_header(schedule), "", program.bounds, _signature(name, parameters), lines))
    return Rendered(file_text((), [code]), name, None, schedule.along, (), schedule.shared)


def _header(schedule: ScatterSchedule) -> list[str]:
    what = (
        f"result[line, places[line, i]]: each of a block's {schedule.lines} threads {_VERBS[schedule.kind]} the updates"
    )
    what += " of a line, in their order, in shared memory"
    return list(comment(f"scatter: {what}"))


def _signature(name: str, parameters: Iterable[ScatterParam]) -> str:
    indent = " " * (len("void ") + len(name) + 1)
    lines, line = list[str](), f"{name}("
    for place, param in enumerate(parameters):
        piece = f"{param.ctype} {param.name}"
        if place and len(line) + len(piece) + 9 > 120:
            lines.append(f"{line},")
            line = indent + piece
        else:
            line += (", " if place else "") + piece
    return "\n".join([*lines, f"{line})"])


class _Builder:
    """What a thread does."""

    def __init__(self, schedule: ScatterSchedule) -> None:
        self.schedule = schedule
        self.index, self.wide = Plain(schedule.index), schedule.wide.ctype

    def body(self) -> list[Statement]:
        """All of it."""
        schedule = self.schedule
        first = Symbol("first")
        found: list[Statement] = [Do(invoke("fg::wait_for_previous_kernel"))] if schedule.follows else []
        begin = Convert(schedule.index, BLOCK) * schedule.lines
        if schedule.along:
            found.append(Declare(self.index, "first", begin, constant=True))
            own = invoke("fg::at_most", Convert(schedule.index, first + THREAD), _LINES - 1)
            found.append(Declare(self.index, "line", own, constant=True))
        else:
            found += [Declare(self.index, "line", begin + THREAD, constant=True)]
            found.append(If(_LINE >= _LINES, (RETURN,), brief=True))
        found += self._coordinates("line")
        found += [self._pointer(0), self._pointer(1), *([] if schedule.along else [self._pointer(2)])]
        found += [
            Shared(Plain(self.wide), "held", (schedule.places, schedule.pitch),
                   invoke("fg::dynamic_shared", of=("Held",)), "Held"),
            BLANK,
            self._for("place", _SIZE, [Assign(self._own(Symbol("place")), self._start())]),
            BLANK,
            Comment("Several updates are read before the first is taken."),
            Declare(self.index, "at", Number(0)),
            self._ahead(),
            self._one_by_one(),
            BLANK,
        ]  # fmt: skip
        return [*found, *(self._written_together() if schedule.along else [self._written()])]

    # -- where things are ---------------------------------------------------------------------------------------------

    def _coordinates(self, line: str) -> list[Statement]:
        """Of a line, fastest first."""
        dims = self.schedule.dims
        if not dims:
            return []
        if dims == 1:
            return [Declare(self.index, "j0", Symbol(line), constant=True)]
        found: list[Statement] = [Declare(self.index, "rest", Symbol(line))]
        for dim in range(dims - 1, 0, -1):
            found.append(
                Declare(self.index, f"j{dim}", invoke("fg::take", Symbol("rest"), Symbol(f"n{dim}")), constant=True)
            )
        return [*found, Declare(self.index, "j0", Symbol("rest"), constant=True)]

    def _pointer(self, tensor: int) -> Statement:
        """Where a line begins in a tensor."""
        name, dtype = NAMES[tensor], self.schedule.dtypes[tensor]
        terms = [Symbol(f"j{dim}") * Symbol(f"{name}_stride{dim}") for dim in range(self.schedule.dims)]
        start = total([Symbol(f"{name}_ptr"), *terms])
        assert start is not None
        return Declare(Plain(f"{'' if name == 'result' else 'const '}{dtype.ctype}*"), name, start)

    def _for(self, name: str, until: Term, body: Iterable[Statement], first: Term | int = 0, step: int = 1) -> For:
        begin = Number(first) if isinstance(first, int) else first
        return For(name, self.index, begin, Symbol(name) < until, None if step == 1 else Number(step), tuple(body))

    def _own(self, place: Term) -> Term:
        """What is held for a place of the thread's line."""
        return _HELD.at(place, THREAD)

    # -- what is combined ---------------------------------------------------------------------------------------------

    def _start(self) -> Term:
        """What a place holds that nothing was combined into."""
        nothing = const(start(self.schedule.kind, self.schedule.wide), self.schedule.wide)
        return Value(nothing, literal(nothing), ATOM)

    def _ahead(self) -> For:
        """Most updates, many at once."""
        place, update = self.schedule.dtypes[0].compute.ctype, self.schedule.dtypes[1].compute.ctype
        at, u = Symbol("at"), Symbol("u")
        reads = [
            Assign(Symbol("place").at(u), self._read(_PLACES, (at + u) * Symbol("places_step"))),
            Assign(Symbol("update").at(u), self._read(_UPDATES, (at + u) * Symbol("updates_step"))),
        ]
        body: list[Statement] = [
            Declare(Plain(place), "place", dims=(AHEAD,)),
            Declare(Plain(update), "update", dims=(AHEAD,)),
            count("u", AHEAD, reads),
            count("u", AHEAD, [self._taken(Symbol("place").at(u), Symbol("update").at(u))]),
        ]
        return For("at", None, None, at + AHEAD <= _N, Number(AHEAD), tuple(body))

    def _one_by_one(self) -> For:
        """What is left of them."""
        at = Symbol("at")
        place = self._read(_PLACES, at * Symbol("places_step"))
        update = self._read(_UPDATES, at * Symbol("updates_step"))
        body: list[Statement] = [
            Declare(Plain(self.schedule.dtypes[0].compute.ctype), "place", place, constant=True),
            Declare(Plain(self.schedule.dtypes[1].compute.ctype), "update", update, constant=True),
            self._taken(Symbol("place"), Symbol("update")),
        ]
        return For("at", None, None, at < _N, None, tuple(body))

    @staticmethod
    def _read(tensor: Symbol, offset: Term) -> Term:
        return invoke("fg::load", tensor + offset)

    def _taken(self, place: Term, update: Term) -> Statement:
        """An update goes to its place; what has none is left out."""
        inside = every([Number(0) <= place, place < _SIZE])
        kind, wide = self.schedule.kind, self.schedule.wide
        if self.schedule.dtypes[1].compute is not wide:
            update = Convert(self.wide, update)
        if wide.is_float and kind in _OPERATORS:
            return If(inside, (Assign(self._own(place), update, _OPERATORS[kind]),), brief=True)
        combined = invoke(_COMBINED[kind], self._own(place), update)
        return If(inside, (Assign(self._own(place), combined),))

    # -- results ------------------------------------------------------------------------------------------------------

    def _stored(self, place: Term, line: Term) -> Statement:
        address = _RESULT + place * Symbol("result_step")
        value = _HELD.at(place, line)
        if self.schedule.onto:
            value = invoke("fg::load", address) + value
        elif self.schedule.kind != "sum" and self.schedule.wide.is_float:
            value = value + 0  # of both zeros either may be the maximum
        dtype = self.schedule.dtypes[2].compute
        return Do(invoke("fg::store", address, value if dtype is self.schedule.wide else Convert(dtype.ctype, value)))

    def _written(self) -> Statement:
        """By each thread its own line."""
        return self._for("place", _SIZE, [self._stored(Symbol("place"), THREAD)])

    def _written_together(self) -> list[Statement]:
        """By all threads one line after the other."""
        place, k = Symbol("place"), Symbol("k")
        body: list[Statement] = [
            If(Symbol("first") + k >= _LINES, (BREAK,), brief=True),
            Declare(self.index, "there", Symbol("first") + k, constant=True),
            *self._coordinates("there"),
            self._pointer(2),
            self._for("place", _SIZE, [self._stored(place, k)], THREAD, self.schedule.lines),
        ]
        return [Do(invoke("__syncthreads")), count("k", self.schedule.lines, body, unroll=None)]

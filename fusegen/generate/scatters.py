"""A scatter's kernel as a kernel program, and that as CUDA text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fusegen.core.dtypes import DType
from fusegen.core.ir import const
from fusegen.core.one_term import start
from fusegen.core.within import Site
from fusegen.fuse.scatter_schedule import NAMES, READERS, WARP, ScatterSchedule
from fusegen.fuse.steps import Looked
from fusegen.generate.builder import macros
from fusegen.generate.cexpr import literal
from fusegen.generate.params import divisor_type
from fusegen.generate.rendered import Rendered, file_text
from fusegen.generate.wording import WIDTH, comment, filled_signature
from fusegen.kernel_program.check import check_program, waits
from fusegen.kernel_program.nodes import (
    BLANK,
    BLOCK,
    BREAK,
    THREAD,
    THREAD_ROW,
    AddressOf,
    Assign,
    Choice,
    Convert,
    Declare,
    Do,
    For,
    Function,
    If,
    KernelProgram,
    Number,
    Plain,
    Shared,
    Statement,
    Symbol,
    Term,
    Together,
    Value,
    count,
    every,
    invoke,
    total,
)
from fusegen.kernel_program.text import ATOM, Lines

HEADER, PLACES_HEADER = '#include "fusegen_scatter.cuh"', '#include "fusegen_places.cuh"'
COMBINED = {"sum": "fg::Added", "prod": "fg::Multiplied", "max": "fg::Largest", "min": "fg::Smallest"}
VERBS = {"sum": "adds up", "prod": "multiplies", "max": "takes the maximum of", "min": "takes the minimum of"}
_PLACES, _UPDATES, _RESULT = map(Symbol, NAMES[:3])
_LINES, _N, _SIZE, _HELD, _FIRST = (Symbol(name) for name in ("lines", "n", "size", "held", "first"))
ParamKind = Literal["pointer", "lines", "n", "size", "whole", "divisor", "stride", "step"]


@dataclass(frozen=True)
class ScatterParam:
    """One parameter of a scatter's kernel.

    Attributes:
        tensor: by its place among places, updates, result and base, of a pointer, a stride or a step.
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
    for place, (name, dtype) in enumerate(_tensors(schedule)):
        is_result, alone = name == "result", "" if schedule.follows else " __restrict__"
        found.append(
            ScatterParam("pointer", f"{name}_ptr", f"{'' if is_result else 'const '}{dtype.ctype}*{alone}", place)
        )
    kinds: tuple[ParamKind, ...] = ("lines", "n", "size", *(("whole",) if schedule.split else ()))
    found += [ScatterParam(kind, kind, schedule.index) for kind in kinds]
    divisor = divisor_type(schedule.index)
    found += [ScatterParam("divisor", f"n{dim}", divisor, dim=dim) for dim in range(1, schedule.dims)]
    for place, (name, _) in enumerate(_tensors(schedule)):
        found += [ScatterParam("stride", f"{name}_stride{d}", "int64_t", place, d) for d in range(schedule.dims)]
        found.append(ScatterParam("step", f"{name}_step", "int64_t", place))
    if schedule.looked and schedule.looked.site:
        place = len(_tensors(schedule))
        found += [ScatterParam("stride", f"position_stride{d}", "int64_t", place, d) for d in range(schedule.dims)]
        found.append(ScatterParam("step", "position_step", "int64_t", place))
    return tuple(found)


def _tensors(schedule: ScatterSchedule) -> list[tuple[str, DType]]:
    """What the kernel reads and writes, by name: what sums are added to, if that is a tensor, is last."""
    dtypes = (*schedule.dtypes, *([schedule.dtypes[2]] if schedule.based else []))
    return list(zip(NAMES, dtypes, strict=False))


def scatter_program(schedule: ScatterSchedule) -> KernelProgram:
    """What each thread of a scatter's kernel does."""
    parameters = tuple(param.name for param in scatter_parameters(schedule))
    return KernelProgram(parameters, {}, (WARP, 1 + READERS), 1, tuple(_Builder(schedule).body()))


def render_scatter(schedule: ScatterSchedule) -> Rendered:
    """The text of a scatter's kernel.

    Raises:
        LegalityError: its program is not legal: a bug in fusegen.
    """
    name = "_".join(
        [
            "scatter",
            *(["parts"] if schedule.split else []),
            schedule.kind,
            *(["onto"] if schedule.onto or schedule.based else []),
            *(d.short for d in schedule.dtypes),
        ]
    )
    parameters = [f"{param.ctype} {param.name}" for param in scatter_parameters(schedule)]
    return finished(name, _says(schedule), parameters, scatter_program(schedule), schedule.looked, schedule.shared)


def finished(
    name: str, says: str, parameters: Sequence[str], program: KernelProgram, looked: Looked | None = None,
    shared: int = 0,
) -> Rendered:  # fmt: skip
    """The text of one of a scatter's kernels.

    Args:
        says: what it does, for the reader.
        parameters: as the signature has them.
        shared: bytes of shared memory that launches ask for.

    Raises:
        LegalityError: its program is not legal: a bug in fusegen.
    """
    check_program(program, name)
    lines = Lines(macros(), WIDTH - len("      ")).of(program.body)
    code = str(macros().kernel(list(comment(says)), "", program.bounds, filled_signature(name, parameters), lines))
    headers = (HEADER, PLACES_HEADER) if sites_of(looked) else (HEADER,)
    return Rendered(file_text(headers, [code]), name, None, waits(program), headers, shared, sites=sites_of(looked))


def coordinates(position: Term, dims: int, index: Plain, name: str, size: str, rest: str = "rest") -> list[Statement]:
    """Of a position along so many dimensions, fastest first.

    Args:
        name, size: what the coordinate along a dimension and its size are called, with {} for the dimension's number.
        rest: what is left of the position is called so meanwhile.
    """
    if dims < 2:
        return [Declare(index, name.format(0), position, constant=True)] if dims else []
    found: list[Statement] = [Declare(index, rest, position)]
    for dim in range(dims - 1, 0, -1):
        taken = invoke("fg::take", Symbol(rest), Symbol(size.format(dim)))
        found.append(Declare(index, name.format(dim), taken, constant=True))
    return [*found, Declare(index, name.format(0), Symbol(rest), constant=True)]


def sites_of(looked: Looked | None) -> tuple[Site, ...]:
    """What they report."""
    return (looked.site,) if looked and looked.site else ()


def looked_at(looked: Looked | None, place: Term, size: Term, position: Term) -> Term:
    """A place as it is read: counted from 0, and reported if it is out of range.

    Args:
        position: where it stands in the index.
    """
    if looked and looked.wraps:
        place = Choice(place < 0, place + size, place)
    return invoke("fg::within", place, size, position, looked.site[0]) if looked and looked.site else place


def _says(schedule: ScatterSchedule) -> str:
    what = f"each of {schedule.lines} threads {VERBS[schedule.kind]} the updates of its line in shared memory,"
    how = f"in the order of i; {READERS} more warps read ahead"
    if schedule.split:
        how += "; a line here has one part of the updates of a line of the result"
    return f"scatter: result[line, places[line, i]]: {what} {how}"


class _Builder:
    """What a thread does."""

    def __init__(self, schedule: ScatterSchedule) -> None:
        self.schedule = schedule
        self.index, self.wide = Plain(schedule.index), schedule.wide.ctype

    def body(self) -> list[Statement]:
        """All of it."""
        schedule, ahead = self.schedule, self.schedule.ahead
        begin, staged = Symbol("begin"), (2, ahead, schedule.pitch)
        own = invoke("fg::at_most", _FIRST + Symbol("lane"), _LINES - 1)
        x = Convert("int", THREAD)
        lane = x % schedule.lines if schedule.lines < WARP else x
        found: list[Statement] = [Do(invoke("fg::wait_for_previous_kernel"))] if schedule.follows else []
        found += [
            Declare(self.index, "first", Convert(schedule.index, BLOCK) * schedule.lines, constant=True),
            Declare(Plain("int"), "lane", lane, constant=True),
            Declare(self.index, "line", own, constant=True),
            *self._coordinates("line"),
            *(self._updates_of(Symbol("j0")) if schedule.split and not schedule.apart else ()),
            *(self._pointer(tensor) for tensor in range(2 if schedule.along else len(_tensors(schedule)))),
            Shared(Plain(self.wide), "held", (schedule.places, schedule.pitch),
                   invoke("fg::dynamic_shared", of=("Held",)), "Held"),
            Shared(Plain("int"), "place", staged),
            Shared(Plain(self.wide), "update", staged),
            *([] if schedule.apart else self._position(*(Symbol(f"j{d}") for d in range(schedule.dims)))),
            *self._read_ahead(),
            BLANK,
            Declare(Plain("int"), "own", self._own, constant=True, note="among places"),
            *self._begun(),
            If(THREAD_ROW > 0, (Do(invoke("read", Number(0))),), brief=True),
            Do(invoke("__syncthreads")),
            self._for("begin", _N, [
                If(THREAD_ROW.equals(0), (self._for_lines(self._taken(begin)),),
                   otherwise=(If(begin + ahead < _N, (Do(invoke("read", begin + ahead)),), brief=True),)),
                Do(invoke("__syncthreads")),
            ], 0, ahead),
            BLANK,
        ]  # fmt: skip
        return [*found, self._written()]

    @property
    def _own(self) -> Term:
        """The first of the places that a thread begins and writes, of a line or of all."""
        rows = WARP // self.schedule.lines
        if self.schedule.along:
            return Convert("int", THREAD_ROW)
        return Convert("int", THREAD_ROW) * rows + Convert("int", THREAD) // self.schedule.lines

    def _for_lines(self, statement: Statement) -> Statement:
        """For threads of a warp that have a line each."""
        return If(THREAD < self.schedule.lines, (statement,)) if self.schedule.lines < WARP else statement

    # -- where things are ---------------------------------------------------------------------------------------------

    def _coordinates(self, line: str) -> list[Statement]:
        """Of a line, fastest first."""
        return coordinates(Symbol(line), self.schedule.dims, self.index, "j{}", "n{}")

    def _updates_of(self, part: Term) -> list[Statement]:
        """How many updates a part of a line has: the last ones have fewer, or none."""
        own = invoke("fg::at_most", _N, Symbol("whole") - part * _N)
        return [Declare(self.index, "own_n", own, constant=True)]

    def _pointer(self, tensor: int) -> Statement:
        """Where a line begins in a tensor."""
        name, dtype = _tensors(self.schedule)[tensor]
        terms = [Symbol(f"j{dim}") * Symbol(f"{name}_stride{dim}") for dim in range(self.schedule.dims)]
        start = total([Symbol(f"{name}_ptr"), *terms])
        assert start is not None
        return Declare(Plain(f"{'' if name == 'result' else 'const '}{dtype.ctype}*"), name, start)

    def _position(self, *coordinates: Term) -> list[Statement]:
        """Where the first place of a line stands in the index."""
        if not sites_of(self.schedule.looked):
            return []
        terms = [j * Symbol(f"position_stride{dim}") for dim, j in enumerate(coordinates)]
        return [Declare(Plain("int64_t"), "position", total(terms) or Number(0), constant=True)]

    def _for(self, name: str, until: Term, body: Iterable[Statement], first: Term | int = 0, step: int = 1) -> For:
        begin = Number(first) if isinstance(first, int) else first
        return For(name, self.index, begin, Symbol(name) < until, None if step == 1 else Number(step), tuple(body))

    def _kept(self, place: Term) -> Term:
        """What is kept for a place of the line that the thread has in its warp."""
        return _HELD.at(place, THREAD)

    # -- what is combined ---------------------------------------------------------------------------------------------

    def _begun(self) -> list[Statement]:
        """What a place holds before the first update: what the sum is added to, or what combining starts from."""
        schedule, held = self.schedule, _HELD.at(Symbol("at"), self._of_places)
        nothing = const(start(schedule.kind, schedule.wide), schedule.wide)
        value: Term = Value(nothing, literal(nothing), ATOM)
        if schedule.onto or schedule.based:
            name = "base" if schedule.based else "result"
            value = invoke("fg::load", Symbol(name) + Symbol("at") * Symbol(f"{name}_step"))
            if schedule.dtypes[2].compute is not schedule.wide:
                value = Convert(self.wide, value)
        return [self._over_places([Assign(held, value)], bool(schedule.onto or schedule.based))]

    def _over_places(self, body: list[Statement], reads: bool) -> Statement:
        """A loop over the places ``at`` of each of a block's lines: neighbouring threads have what lies side by side.

        Args:
            reads: in the result, or in what the sum is added to.
        """
        at, schedule, lane = Symbol("at"), self.schedule, self._of_places
        if not schedule.along:
            rows = WARP // schedule.lines * (1 + READERS)
            return For("at", self.index, Symbol("own"), at < _SIZE, Number(rows), tuple(body), 4)
        places: list[Statement] = [For("at", self.index, THREAD, at < _SIZE, Number(WARP), tuple(body), 4)]
        if reads:
            places = [
                If(_FIRST + lane >= _LINES, (BREAK,), brief=True),
                Declare(self.index, "there", _FIRST + lane, constant=True),
                *self._coordinates("there"),
                *(self._pointer(tensor) for tensor in range(2, len(_tensors(schedule)))),
                *places,
            ]
        step = Number(1 + READERS)
        return For("k", Plain("int"), Symbol("own"), lane < schedule.lines, step, tuple(places))

    @property
    def _of_places(self) -> Term:
        """Whose places a thread begins and writes: of the line that it has, or of one after the other."""
        return Symbol("k") if self.schedule.along else Symbol("lane")

    def _read_ahead(self) -> list[Statement]:
        """A function of the first of several updates of each line: warps read them, and put them where they wait."""
        schedule, readers, k = self.schedule, WARP * READERS, Symbol("k")
        each, thread, at = schedule.ahead * schedule.lines // readers, Symbol("thread"), Symbol("at")
        tensors: list[Term] = [_PLACES, _UPDATES]
        if schedule.apart:  # neighbours read neighbouring updates of one line
            u, lane = thread % schedule.ahead, thread // schedule.ahead + k * (readers // schedule.ahead)
            line = Symbol("of_line")
            tensors = [Symbol(f"{name}_ptr") + line * Symbol(f"{name}_stride0") for name in NAMES[:2]]
        else:
            u, lane = thread // schedule.lines + k * (readers // schedule.lines), Symbol("lane")
        where = [Declare(Plain("int"), "u", u, constant=True)]
        if schedule.apart:
            where.append(Declare(Plain("int"), "of", lane, constant=True))
            lane = Symbol("of")
        here = at < (Symbol("own_n") if schedule.split else _N)
        there, value = Symbol("there").at(k), Symbol("value").at(k)
        addresses = [tensor + at * Symbol(f"{name}_step") for tensor, name in zip(tensors, NAMES, strict=False)]
        waits = [Symbol(name).at(Symbol("into"), Symbol("u"), lane) for name in ("place", "update")]
        types = [dtype.compute.ctype for dtype in schedule.dtypes[:2]]
        looked, chosen = schedule.looked, Symbol("chosen") if schedule.looked else there
        nothing: Term = invoke("fg::no_place") if looked else Number(-1)
        inside = every([Number(0) <= chosen, chosen < _SIZE])
        of_line = Declare(self.index, "of_line", invoke("fg::at_most", _FIRST + lane, _LINES - 1), constant=True)
        look: list[Statement] = []
        if looked:
            look += [of_line, *self._position(Symbol("of_line"))] if sites_of(looked) and schedule.apart else []
            position = Symbol("position") + Together(Symbol("begin") + Symbol("u")) * Symbol("position_step")
            place = looked_at(looked, there, _SIZE, position)
            look.append(Declare(Plain("int64_t"), "chosen", place, constant=True))
        body: list[Statement] = [
            Declare(Plain("int"), "into", Symbol("begin") // schedule.ahead % 2, constant=True),
            Declare(Plain("int64_t" if looked else types[0]), "there", dims=(each,)),
            Declare(Plain(types[1]), "value", dims=(each,)),
            count("k", each, [
                *where,
                *([of_line] if schedule.apart else []),
                Declare(self.index, "at", Symbol("begin") + Symbol("u"), constant=True),
                *(self._updates_of(Symbol("of_line")) if schedule.split and schedule.apart else ()),
                Assign(there, Choice(here, invoke("fg::load", addresses[0]), nothing)),
                Assign(value, Choice(here, invoke("fg::load", addresses[1]), Number(0))),
            ]),
            count("k", each, [
                *where,
                *look,
                Assign(waits[0], Choice(inside, Convert("int", chosen), Number(-1))),
                Assign(waits[1], value if types[1] == self.wide else Convert(self.wide, value)),
            ]),
        ]  # fmt: skip
        own = Together(Convert("int", THREAD_ROW) - 1) * WARP + Convert("int", THREAD)
        return [
            Declare(Plain("int"), "thread", own, constant=True, note="among those that read"),
            Function("read", self.index, "begin", tuple(body)),
        ]

    def _taken(self, begin: Term) -> Statement:
        """Those that wait."""
        waits = [Symbol(name).at(begin // self.schedule.ahead % 2, 0, THREAD) for name in ("place", "update")]
        of = (COMBINED[self.schedule.kind], self.schedule.ahead, self.schedule.pitch)
        args = [AddressOf(self._kept(Number(0))), *map(AddressOf, waits)]
        return Do(invoke("fg::take_updates", *args, of=of))

    # -- results ------------------------------------------------------------------------------------------------------

    def _written(self) -> Statement:
        """What each place holds in the end."""
        schedule, at, lane = self.schedule, Symbol("at"), self._of_places
        value = _HELD.at(at, lane)
        if schedule.kind != "sum" and schedule.wide.is_float:
            value = value + 0  # of both zeros either may be the maximum
        dtype = schedule.dtypes[2].compute
        value = value if dtype is schedule.wide else Convert(dtype.ctype, value)
        stored = Do(invoke("fg::store", _RESULT + at * Symbol("result_step"), value))
        if schedule.along:
            return self._over_places([stored], reads=True)
        return self._over_places([If(_FIRST + lane < _LINES, (stored,), brief=True)], reads=True)

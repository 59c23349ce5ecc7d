"""The kernels of a scatter whose updates are sorted, as kernel programs, and these as CUDA text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fusegen.core.ir import const
from fusegen.core.one_term import start
from fusegen.fuse.sorted_scatter_schedule import PART, KeysSchedule, RunsSchedule
from fusegen.generate.cexpr import literal
from fusegen.generate.params import divisor_type
from fusegen.generate.rendered import Rendered
from fusegen.generate.scatters import COMBINED, VERBS, coordinates, finished, looked_at, sites_of
from fusegen.kernel_program.nodes import (
    BLANK,
    BLOCK,
    BREAK,
    RETURN,
    THREAD,
    THREAD_ROW,
    Assign,
    Choice,
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
    Together,
    Value,
    count,
    either,
    every,
    invoke,
    total,
)
from fusegen.kernel_program.text import ATOM

ParamKind = Literal[
    "keys", "order", "updates", "result", "next keys", "sums", "places tensor",
    "n", "each", "places", "size", "columns", "tiles", "divisor", "stride", "position",
]  # fmt: skip
# What numbers updates, places and columns, as names of their coordinates have it.
_UPDATES, _PLACES, _COLUMNS = 0, 1, 2
_LETTERS = "upc"
# Updates of a run that are read from shared memory at once.
_AT_ONCE = 4
_N, _P, _FROM, _ROW, _COLUMN = (Symbol(name) for name in ("n", "p", "first", "row", "column"))


@dataclass(frozen=True)
class SortedParam:
    """One parameter of a kernel.

    Attributes:
        pointer: it is a tensor of the call's, or what lies between launches.
        loops: of a divisor or a stride: of updates, places or columns (of keys: of updates by their places).
        dim: of these.
        of_result: a column's stride in the result, not in updates.
    """

    kind: ParamKind
    name: str
    ctype: str
    pointer: bool = False
    loops: int = 0
    dim: int = 0
    of_result: bool = False


def keys_parameters(schedule: KeysSchedule) -> tuple[SortedParam, ...]:
    """The parameter list of the kernel that makes keys."""
    index, divisor = schedule.index, divisor_type(schedule.index)
    alone = "" if schedule.follows else " __restrict__"
    found = [
        SortedParam("places tensor", "places_ptr", f"const {schedule.places.ctype}*{alone}", True),
        SortedParam("keys", "keys_ptr", f"{schedule.keys.ctype}*{alone}", True),
        SortedParam("n", "n", index),
        SortedParam("size", "size", index),
    ]
    found += [SortedParam("each", "each", divisor), SortedParam("places", "count", index)] if schedule.lines else []
    found += [SortedParam("divisor", f"n{dim}", divisor, dim=dim) for dim in range(1, schedule.dims)]
    found += [SortedParam("stride", f"stride{dim}", "int64_t", dim=dim) for dim in range(schedule.dims)]
    if sites_of(schedule.looked):
        found += [SortedParam("position", f"position_stride{dim}", "int64_t", dim=dim) for dim in range(schedule.dims)]
    return tuple(found)


def runs_parameters(schedule: RunsSchedule) -> tuple[SortedParam, ...]:
    """The parameter list of a kernel that adds up runs."""
    keys, (updates, result), index = schedule.keys.ctype, schedule.dtypes, schedule.index
    divisor = divisor_type(index)
    found = [SortedParam("keys", "keys_ptr", f"const {keys}*", True)]
    found += [SortedParam("order", "order_ptr", "const int64_t*", True)] if schedule.ordered else []
    found += [
        SortedParam("updates", "updates_ptr", f"const {updates.ctype}*", True),
        SortedParam("result", "result_ptr", f"{result.ctype}*", True),
        SortedParam("next keys", "next_keys_ptr", f"{keys}*", True),
        SortedParam("sums", "sums_ptr", f"{schedule.wide.ctype}*", True),
        *(SortedParam(kind, kind, index) for kind in ("n", "places", "columns")),
    ]
    found += [SortedParam("tiles", "tiles", divisor)] if schedule.tiled else []
    for loops, dims in enumerate(schedule.dims):
        found += [
            SortedParam("divisor", f"{_LETTERS[loops]}{d}_size", divisor, False, loops, d) for d in range(1, dims)
        ]
    for loops, dims in enumerate(schedule.dims):
        for tensor in ("updates", "result"):
            if _reads(schedule, loops, tensor):
                found += [
                    SortedParam(
                        "stride", f"{tensor}_stride_{_LETTERS[loops]}{dim}", "int64_t", False, loops, dim,
                        tensor == "result",
                    ) for dim in range(dims)
                ]  # fmt: skip
    return tuple(found)


def _reads(schedule: RunsSchedule, loops: int, tensor: str) -> bool:
    """A tensor has a stride along these loops that is a parameter: sums of parts lie side by side."""
    return loops == {"updates": _UPDATES, "result": _PLACES}[tensor] or (
        loops == _COLUMNS and (tensor == "result" or schedule.ordered)
    )


def _coordinates(position: Term, dims: int, letter: str, index: str, size: str) -> list[Statement]:
    """Of a position, named by its loops, fastest first."""
    return coordinates(position, dims, Plain(index), letter + "{}", size, f"rest_{letter}")


def _signature(parameters: tuple[SortedParam, ...]) -> list[str]:
    return [f"{param.ctype} {param.name}" for param in parameters]


def render_keys(schedule: KeysSchedule) -> Rendered:
    """The text of the kernel that makes keys.

    Raises:
        LegalityError: its program is not legal: a bug in fusegen.
    """
    name = f"scatter_keys_{schedule.places.short}_{schedule.keys.short}"
    says = "keys of places, to sort updates by: the place among those of all lines; of what has none, their number"
    return finished(name, says, _signature(keys_parameters(schedule)), keys_program(schedule), schedule.looked)


def keys_program(schedule: KeysSchedule) -> KernelProgram:
    """What a thread does that makes a key."""
    index, keys = Plain(schedule.index), schedule.keys.ctype
    place, size, row = Symbol("place"), Symbol("size"), Symbol("line")
    terms = [Symbol(f"u{dim}") * Symbol(f"stride{dim}") for dim in range(schedule.dims)]
    where = total([Symbol("places_ptr"), *terms])
    assert where is not None
    waits: list[Statement] = [Do(invoke("fg::wait_for_previous_kernel"))] if schedule.follows else []
    body: list[Statement] = [
        *waits,
        Declare(index, "p", Convert(schedule.index, BLOCK) * schedule.threads + THREAD, constant=True),
        If(_P >= _N, (RETURN,), brief=True),
        *_coordinates(_P, schedule.dims, "u", schedule.index, "n{}"),
    ]
    loaded: Term = invoke("fg::load", where)
    if schedule.looked:
        stands = [Symbol(f"u{dim}") * Symbol(f"position_stride{dim}") for dim in range(schedule.dims)]
        body.append(Declare(Plain("int64_t"), "given", loaded, constant=True))
        loaded = looked_at(schedule.looked, Symbol("given"), size, total(stands) or Number(0))
    ctype = "int64_t" if schedule.looked else schedule.places.ctype
    body.append(Declare(Plain(ctype), "place", loaded, constant=True))
    key: Term = Convert(schedule.index, place)
    if schedule.lines:
        each = [Declare(index, "line", _P), Do(invoke("fg::take", row, Symbol("each")))]
        body += each
        key = row * size + key
    none = Symbol("count") if schedule.lines else size
    inside = Choice(every([Number(0) <= place, place < size]), key, none)
    body.append(Do(invoke("fg::store", Symbol("keys_ptr") + _P, Convert(keys, inside))))
    parameters = tuple(param.name for param in keys_parameters(schedule))
    return KernelProgram(parameters, {}, (schedule.threads, 1), 1, tuple(body))


def render_runs(schedule: RunsSchedule) -> Rendered:
    """The text of a kernel that adds up runs.

    Raises:
        LegalityError: its program is not legal: a bug in fusegen.
    """
    onto = ["onto"] if schedule.onto else []
    shorts = (dtype.short for dtype in (schedule.keys, *schedule.dtypes))
    name = "_".join(["scatter", "runs" if schedule.ordered else "sums", schedule.kind, *onto, *shorts])
    what = "updates" if schedule.ordered else "sums of parts"
    says = f"scatter: {VERBS[schedule.kind]} {what} with the same key, which follow one another, in their order: those"
    says += f" of {PART} at most, a thread for each column"
    return finished(name, says, _signature(runs_parameters(schedule)), runs_program(schedule))


def runs_program(schedule: RunsSchedule) -> KernelProgram:
    """What a thread does that adds up a column of runs."""
    parameters = tuple(param.name for param in runs_parameters(schedule))
    return KernelProgram(parameters, {}, schedule.threads, 1, tuple(_Runs(schedule).body()))


class _Runs:
    """What a thread does that adds up a column of a run."""

    def __init__(self, schedule: RunsSchedule) -> None:
        self.schedule = schedule
        self.index, self.wide = Plain(schedule.index), schedule.wide.ctype

    def body(self) -> list[Statement]:
        """All of it: a block reads its updates at once, from wherever they are, and then adds up what it has."""
        schedule, sync = self.schedule, Do(invoke("__syncthreads"))
        waits: list[Statement] = [Do(invoke("fg::wait_for_previous_kernel"))]
        step = Number(schedule.threads[1])
        begun = [If(_FROM + _ROW >= _N, (BREAK,), brief=True), *self._run()]
        loop = For("row", Plain("int"), Convert("int", THREAD_ROW), _ROW < schedule.rows, step, tuple(begun))
        summed: Statement = If(_COLUMN < Symbol("columns"), (loop,)) if self._has_idle else loop
        return [*waits, *self._whose(), *self._read(), sync, BLANK, *self._place(), summed]

    @property
    def _has_idle(self) -> bool:
        """Threads of a block may have no column."""
        return self.schedule.columns > 1

    def _whose(self) -> list[Statement]:
        """Where a block's updates begin, and a thread's column."""
        columns, block, column = self.schedule.columns, Symbol("block"), Convert("int", THREAD)
        rows = self.schedule.rows
        if not self.schedule.tiled:
            return [
                Declare(self.index, "first", Convert(self.schedule.index, BLOCK) * rows, constant=True),
                Declare(self.index, "column", column, constant=True),
            ]
        tile = invoke("fg::take", block, Symbol("tiles"))
        return [
            Declare(self.index, "block", BLOCK),
            Declare(self.index, "tile", tile, constant=True),
            Declare(self.index, "first", block * rows, constant=True),
            Declare(self.index, "column", Symbol("tile") * columns + THREAD, constant=True),
        ]

    def _start(self) -> Term:
        nothing = const(start(self.schedule.kind, self.schedule.wide), self.schedule.wide)
        return Value(nothing, literal(nothing), ATOM)

    def _read(self) -> list[Statement]:
        """The block's updates, and their keys. Threads without an update read another one's, so that none branches."""
        schedule, k, p, at, dims = self.schedule, Symbol("k"), Symbol("p"), Symbol("at"), self.schedule.dims
        updates, each = schedule.dtypes[0], schedule.rows // schedule.threads[1]
        row = Declare(Plain("int"), "row", k * schedule.threads[1] + THREAD_ROW, constant=True)
        own = Declare(self.index, "p", invoke("fg::at_most", _FROM + _ROW, _N - 1), constant=True)
        read: list[Statement] = [row, own]
        if schedule.ordered:
            order = invoke("fg::load", Symbol("order_ptr") + p)
            before = [
                Declare(Plain("int64_t"), "at", dims=(each,)), count("k", each, [row, own, Assign(at.at(k), order)]),
            ] if dims[_UPDATES] else []  # fmt: skip
            read = _coordinates(Convert(schedule.index, at.at(k)), dims[_UPDATES], "u", schedule.index, "u{}_size")
            terms = [Symbol(f"u{dim}") * Symbol(f"updates_stride_u{dim}") for dim in range(dims[_UPDATES])]
            columns = [Symbol(f"c{dim}") * Symbol(f"updates_stride_c{dim}") for dim in range(dims[_COLUMNS])]
        else:
            before, terms, columns = [], [Convert("int64_t", p) * Symbol("columns")], [Symbol("own_column")]
        first, whole = total([Symbol("updates_ptr"), *columns]), total([Symbol("updates"), *terms])
        assert first is not None and whole is not None
        value = Symbol("value").at(k)
        as_wide = value if updates.compute.ctype == self.wide else Convert(self.wide, value)
        key: Statement = Assign(Symbol("key").at(_ROW), invoke("fg::load", Symbol("keys_ptr") + p))
        if schedule.columns > 1:
            key = If(THREAD.equals(0), (key,), brief=True)
        last = Symbol("columns") - 1
        return [
            Shared(Plain(schedule.keys.ctype), "key", (schedule.rows,)),
            Shared(Plain(self.wide), "update", (schedule.rows, schedule.columns)),
            Declare(self.index, "own_column", invoke("fg::at_most", _COLUMN, last), constant=True),
            *_coordinates(Symbol("own_column"), dims[_COLUMNS], "c", schedule.index, "c{}_size"),
            Declare(Plain(f"const {updates.ctype}*"), "updates", first),
            *before,
            Declare(Plain(updates.compute.ctype), "value", dims=(each,)),
            count("k", each, [*read, Assign(value, invoke("fg::load", whole))]),
            count("k", each, [row, own, Assign(Symbol("update").at(_ROW, THREAD), as_wide), key]),
        ]

    def _run(self) -> list[Statement]:
        """A run that begins at a row, in its order, up to its end or that of the part."""
        end, until, begin, own, key = (Symbol(name) for name in ("end", "until", "begin", "own", "key"))
        found, schedule = Symbol("found"), self.schedule
        further = If(key.at(end).differs(own), (BREAK,), brief=True)
        combined = invoke("fg::combine", found, Symbol("update").at(Symbol("i"), THREAD), of=(COMBINED[schedule.kind],))
        begins = either(_ROW.equals(begin), key.at(_ROW - 1).differs(own))
        length = Convert("int", _N - _FROM) if schedule.index != "int" else _N - _FROM
        body = [
            Declare(Plain("int"), "until", invoke("fg::at_most", begin + PART, length), constant=True),
            Declare(Plain("int"), "end", Choice(key.at(until - 1).equals(own), until, _ROW + 1)),
            For("end", None, None, end < until, None, (further,)),
            Declare(Plain(self.wide), "found", self._start()),
            For("i", Plain("int"), _ROW, Symbol("i") < end, None, (Assign(found, combined),), _AT_ONCE),
            BLANK,
            *self._written(),
        ]
        return [
            Declare(Plain("int"), "begin", _ROW - _ROW % PART, constant=True, note="of its part"),
            Declare(Plain(schedule.keys.ctype), "own", key.at(_ROW), constant=True),
            If(begins, tuple(body)),
        ]

    def _written(self) -> list[Statement]:
        """A whole run's sum for its place, others for the next launch."""
        schedule, is_first, is_last = self.schedule, Symbol("is_first"), Symbol("is_last")
        part, found, own = Symbol("part"), Symbol("found"), Symbol("own")

        def left(second: int, value: Term) -> tuple[Statement, ...]:
            at = part * 2 + second if second else part * 2
            kept = Do(invoke("fg::store", Symbol("next_keys_ptr") + at, own))
            into = Symbol("sums_ptr") + Convert("int64_t", at) * Symbol("columns") + _COLUMN
            return Do(invoke("fg::store", into, value)), If(_COLUMN.equals(0), (kept,), brief=True)

        further = (
            Declare(self.index, "part", Together(_FROM + _ROW) // PART, constant=True),
            If(is_first, left(0, found)),
            If(is_last, left(1, Choice(is_first, self._start(), found))),
        )
        stored = If(Convert(schedule.index, own) < Symbol("places"), tuple(self._stored()))
        return [
            Declare(Plain("bool"), "is_first", _ROW.equals(Symbol("begin")), constant=True, note="of its part"),
            Declare(Plain("bool"), "is_last", Symbol("end").equals(Symbol("until")), constant=True),
            If(every([_N > PART, either(is_first, is_last)]), further, otherwise=(stored,)),
        ]

    def _stored(self) -> list[Statement]:
        schedule = self.schedule
        terms = [Symbol(f"p{dim}") * Symbol(f"result_stride_p{dim}") for dim in range(schedule.dims[_PLACES])]
        where = total([Symbol("result"), *terms])
        assert where is not None
        value: Term = Symbol("found")
        result = schedule.dtypes[1]
        if schedule.kind != "sum" and schedule.wide.is_float:
            value = value + 0  # of both zeros either may be a product
        if schedule.onto:
            held = invoke("fg::load", Symbol("there"))
            value = (held if result.compute is schedule.wide else Convert(self.wide, held)) + value
        value = value if result.compute is schedule.wide else Convert(result.compute.ctype, value)
        own = Convert(schedule.index, Symbol("own"))
        return [
            *_coordinates(own, schedule.dims[_PLACES], "p", schedule.index, "p{}_size"),
            Declare(Plain(f"{result.ctype}*"), "there", where),
            Do(invoke("fg::store", Symbol("there"), value)),
        ]

    def _place(self) -> list[Statement]:
        """Where the column is in the result."""
        terms = [Symbol(f"c{dim}") * Symbol(f"result_stride_c{dim}") for dim in range(self.schedule.dims[_COLUMNS])]
        first = total([Symbol("result_ptr"), *terms])
        assert first is not None
        return [Declare(Plain(f"{self.schedule.dtypes[1].ctype}*"), "result", first)]

"""What kernel programs compute with when they run without a compiler: tensors in memory, shared memory, states.

Every access is checked as a GPU would have it or worse: within the tensor, at an address that suits a vector, results
written once, shared memory read where a barrier lies behind its write, copies awaited. What nothing has written is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fusegen.core.errors import LegalityError

if TYPE_CHECKING:
    import torch

_SEVERAL = -2  # of readers
_NOBODY = -1


def require(holds: Any, what: str, given: object = "") -> None:
    """Raise if a program does what it must not."""
    if not holds:
        raise LegalityError(
            "a kernel program", given=f"{what}{f' ({given})' if given else ''}",
            expected="what kernel_program/memory.py says", fix="this is a bug in fusegen: please report the op",
        )  # fmt: skip


@dataclass
class Buffer:
    """A tensor in memory, flat.

    Attributes:
        values: all of its elements.
        size: bytes of one.
        alignment: of its address, in bytes.
        written: how often each was written; None for what a kernel only reads.
    """

    name: str
    values: torch.Tensor
    size: int
    alignment: int = 16
    written: torch.Tensor | None = None

    def read(self, at: torch.Tensor) -> torch.Tensor:
        """Elements at these places."""
        self._inside(at, "reads")
        return self.values[at]

    def write(self, at: torch.Tensor, value: torch.Tensor) -> None:
        """Elements at these places, each for the first time."""
        self._inside(at, "writes")
        require(self.written is not None, "a write to what is only read", self.name)
        assert self.written is not None
        flat = at.reshape(-1)
        self.written.index_put_((flat,), self.written.new_ones(len(flat)), accumulate=True)
        require((self.written[flat] == 1).all(), "an element that is written twice", self.name)
        self.values[flat] = value.expand(at.shape).reshape(-1).to(self.values.dtype)

    def suits(self, at: torch.Tensor, elements: int) -> None:
        """Raise where the addresses do not suit vectors of so many elements."""
        width = min(16, elements * self.size)
        aligned = (self.alignment + at * self.size) % width == 0
        require(aligned.all(), f"a vector of {elements} at an address that does not suit it", self.name)

    def _inside(self, at: torch.Tensor, does: str) -> None:
        outside = at[(at < 0) | (at >= len(self.values))]
        require(not len(outside), f"a kernel {does} outside of a tensor", f"{self.name}[{outside[:1].tolist()}]")


@dataclass(frozen=True)
class Pointer:
    """Where in a tensor each thread is."""

    buffer: Any  # a Buffer, or a StateBuffer
    at: Any  # of each thread, or one for all


@dataclass
class SharedArray:
    """An array that each block has, and who has accessed each of its elements since the block last met."""

    values: torch.Tensor  # [blocks, *dims] or [blocks, *dims, vector]
    dims: int
    writer: torch.Tensor
    reader: torch.Tensor
    written_in: torch.Tensor  # the number of the block's meetings before the write
    read_in: torch.Tensor
    awaited: torch.Tensor

    @classmethod
    def of(cls, values: torch.Tensor, dims: int) -> SharedArray:
        """One that nobody has accessed."""
        import torch

        shape = values.shape[: 1 + dims]
        nobody = torch.full(shape, _NOBODY, device=values.device)
        return cls(
            values,
            dims,
            nobody,
            nobody.clone(),
            nobody.clone(),
            nobody.clone(),
            torch.ones_like(nobody, dtype=torch.bool),
        )

    def read(self, index: tuple[Any, ...], thread: torch.Tensor, meeting: torch.Tensor) -> torch.Tensor:
        """Elements of the threads' blocks, to be read by these threads."""
        writer, own = self.writer[index], thread
        since = self.written_in[index] == meeting
        require((~since | (writer == own)).all(), "shared memory is read before a barrier lies behind its write")
        require(self.awaited[index].all(), "a copy into shared memory is read before it is awaited")
        again = self.read_in[index] == meeting
        known = self.reader[index]
        several = own.new_full((), _SEVERAL)
        self.reader[index] = own.where(~again | (known == own), several)
        self.reader[index] = self.reader[index].where(self.reader[index] == own, several)  # of those who read it now
        self.read_in[index] = meeting
        return self.values[index]

    def write(
        self, index: tuple[Any, ...], thread: torch.Tensor, meeting: torch.Tensor, value: torch.Tensor, copied: bool
    ) -> None:
        """Elements of the threads' blocks; ``copied``: they arrive when they are awaited."""
        read = (self.read_in[index] == meeting) & (self.reader[index] != thread)
        require(not read.any(), "shared memory is written before a barrier lies behind its read")
        other = (self.written_in[index] == meeting) & (self.writer[index] != thread)
        require(not other.any(), "two threads write one element of shared memory")
        self.values[index] = value.to(self.values.dtype)
        self.writer[index], self.written_in[index] = thread, meeting
        require((self.writer[index] == thread).all(), "two threads write one element of shared memory")
        self.awaited[index] = not copied

    def arrive(self, blocks: torch.Tensor, threads: torch.Tensor, meetings: torch.Tensor) -> None:
        """What these threads have copied is there: for themselves, and for others once their block has met again.

        Args:
            meetings: how often each block has met.
        """
        import torch

        waits = torch.zeros(len(self.values), int(threads.max()) + 1, dtype=torch.bool, device=threads.device)
        waits[blocks, threads] = True
        own = self.writer.reshape(len(self.values), -1)
        known = (own >= 0) & (own < waits.shape[1])
        arrived = (waits.gather(1, own.clamp(0, waits.shape[1] - 1)) & known).reshape(self.awaited.shape)
        arrived &= ~self.awaited
        now = meetings.reshape(-1, *[1] * self.dims).expand(self.awaited.shape)
        self.written_in[arrived] = now[arrived]
        self.awaited |= arrived


@dataclass(frozen=True)
class Place:
    """An element of a shared array, of each thread."""

    array: SharedArray
    index: tuple[Any, ...]


Columns = tuple["torch.Tensor", ...]
"""Values, their places if they have some, and whether a row has one: each a tensor of rows by elements."""


@dataclass
class Elements:
    """Elements that threads have: some of its own each, or a group all of its threads'.

    Attributes:
        owner: of each thread the row that has them.
    """

    owner: torch.Tensor
    columns: list[Columns] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Threads, or groups of them."""
        return int(self.owner.max()) + 1 if len(self.owner) else 0

    def put(self, threads: torch.Tensor, values: Columns) -> None:
        """One more element of each of these threads, or a few."""

        require(self.rows == len(self.owner), "an element is added to what threads have exchanged already")
        columns = []
        for value in values:
            value = value.unsqueeze(1) if value.ndim == 1 else value
            column = value.new_zeros(self.rows, value.shape[1])
            column[threads] = value
            columns.append(column)
        self.columns.append(tuple(columns))

    def exchange(self, groups: torch.Tensor) -> None:
        """What the threads of a group have is all of theirs from here on. ``groups``: the group of each thread."""
        self.columns = [_joined(self.whole(), self.owner, groups)] if self.columns else []
        self.owner = groups.clone()

    def whole(self) -> Columns:
        """All of them."""
        import torch

        return tuple(torch.cat(parts, 1) for parts in zip(*self.columns, strict=True))

    def of(self, threads: torch.Tensor) -> Columns:
        """Those of these threads."""
        return tuple(column[self.owner[threads]] for column in self.whole())


class Bag:
    """The elements that a reduction has taken. What it computes of them is asked only at the end, so that every
    grouping gives the same.

    Args:
        kind: of reduction (core/monoids).
        threads: how many have one.

    Attributes:
        taken: its elements.
        seen: those of a first walk, which must be the same.
        counted: how many of these threads are told that they have seen.
        settled, finished: what stands between a first walk and another one has been done, and what comes behind that.
    """

    def __init__(self, kind: str, threads: int, device: Any) -> None:
        import torch

        self.kind = kind
        self.taken, self.seen = (Elements(torch.arange(threads, device=device)) for _ in range(2))
        self.counted: torch.Tensor | None = None
        self.settled = self.finished = False

    def count(self, threads: torch.Tensor, elements: int) -> None:
        """These threads say that they have seen so many more."""
        if self.counted is None:
            self.counted = self.seen.owner.new_zeros(self.seen.rows)
        self.counted[threads] += elements

    def exchange(self, groups: torch.Tensor, seen: bool = True, taken: bool = True) -> None:
        """What the threads of a group have is all of theirs from here on."""
        if seen and taken:
            require(self.finished or not self.seen.columns, "a state is exchanged before it is finished", self.kind)
        if seen and self.counted is not None:
            total = self.counted.new_zeros(int(groups.max()) + 1)
            first = _first_of_rows(self.seen.owner)
            self.counted = total.index_add(0, groups[first], self.counted[self.seen.owner[first]])
        for elements in ([self.seen] if seen else []) + ([self.taken] if taken else []):
            elements.exchange(groups)

    def merge(self, other: Bag) -> None:
        """What another state of the same threads has taken."""
        require(self.taken.rows == other.taken.rows, "a thread's state is merged with a block's")
        require(other.finished or not other.seen.columns, "a state is merged before it is finished", self.kind)
        self.finished = self.finished or other.finished
        self.taken.columns += other.taken.columns
        self.seen.columns += other.seen.columns
        if other.counted is not None:
            self.counted = other.counted if self.counted is None else self.counted + other.counted

    def result(self, threads: torch.Tensor, floats: Any, partner: bool = False) -> torch.Tensor:
        """What these threads' states come to, or what else the state holds."""

        if not self.taken.columns:
            nothing = threads.new_zeros(len(threads), 0)
            columns: Columns = (nothing.to(floats), nothing, nothing.bool())
            return _folded(self.kind, columns[:-1], columns[-1], partner)
        require(self.seen.columns or not self.settled, "a second walk takes what no first one saw", self.kind)
        *values, has = self.taken.of(threads)
        if self.seen.columns:
            self._are_those_seen(threads, values[0], has)
        return _folded(self.kind, values, has, partner)

    def _are_those_seen(self, threads: torch.Tensor, values: torch.Tensor, has: torch.Tensor) -> None:
        seen, have = self.seen.of(threads)
        require((has.sum(1) == have.sum(1)).all(), "a second walk takes other elements than the first saw", self.kind)
        one, other = _sum(values, has), _sum(seen, have)
        close = (one - other).abs() <= 1e-6 * (one.abs() + other.abs() + 1)
        require(close.all(), "a second walk takes other values than the first saw", self.kind)
        if self.counted is not None:
            counted = self.counted[self.seen.owner[threads]]
            require(
                (counted == have.sum(1)).all(), "a state is told another number of elements than it sees", self.kind
            )


@dataclass
class StateBuffer:
    """The states of a reduction in memory, by where each was left."""

    name: str
    states: dict[int, list[list[Any]]] = field(default_factory=dict)

    def write(self, at: torch.Tensor, columns: Columns) -> None:
        """The states of some threads."""
        for row, place in enumerate(at.tolist()):
            require(place not in self.states, "a state that is written twice", self.name)
            has = columns[-1][row] if columns else None
            self.states[place] = [column[row][has].tolist() for column in columns[:-1]]

    def read(self, at: torch.Tensor, dtypes: list[Any]) -> Columns:
        """The elements of the states at these places."""
        import torch

        rows = [self.states.get(place) for place in at.tolist()]
        require(None not in rows, "a state is read that nothing has left", self.name)
        found = [row for row in rows if row is not None]
        width = max((len(row[0]) for row in found if row), default=0)
        count = max(map(len, found), default=0)
        columns = [at.new_zeros(len(found), width, dtype=dtypes[number]) for number in range(count)]
        has = at.new_zeros(len(found), width, dtype=torch.bool)
        for number, row in enumerate(found):
            for column, values in zip(columns, row, strict=False):
                column[number, : len(values)] = column.new_tensor(values)
            has[number, : len(row[0]) if row else 0] = True
        return (*columns, has)


def _first_of_rows(owner: torch.Tensor) -> torch.Tensor:
    """Of each row the first thread that it belongs to."""
    import torch

    rows = owner.unique()
    return torch.stack([(owner == row).nonzero()[0, 0] for row in rows])


def _joined(columns: Columns, owner: torch.Tensor, groups: torch.Tensor) -> Columns:
    """Columns of rows, as those of groups of threads: each row once in its group."""

    rows: dict[int, list[int]] = {}
    for group, row in dict.fromkeys(zip(groups.tolist(), owner.tolist(), strict=True)):
        rows.setdefault(group, []).append(row)
    most = max(map(len, rows.values()))
    found = []
    for column in columns:
        whole = column.new_zeros(int(groups.max()) + 1, most * column.shape[1])
        for group, own in rows.items():
            whole[group, : len(own) * column.shape[1]] = column[own].reshape(-1)
        found.append(whole)
    return tuple(found)


def _sum(values: torch.Tensor, has: torch.Tensor) -> torch.Tensor:
    """The sums of the finite values that rows have."""
    return values.where(has & values.isfinite(), values.new_zeros(())).sum(1)


def _folded(kind: str, values: Sequence[torch.Tensor], has: torch.Tensor, partner: bool) -> torch.Tensor:
    """The elements that rows have, reduced."""
    import torch

    x, *places = values
    if not x.shape[1]:  # so that extrema are of something
        x, has, *places = (each.new_zeros(len(x), 1) for each in (x, has, *places))
    if kind == "prod":
        return x.where(has, torch.ones_like(x)).prod(1)
    low = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min if x.dtype is not torch.bool else 0
    high = math.inf if x.is_floating_point() else torch.iinfo(x.dtype).max if x.dtype is not torch.bool else 1
    if kind == "max":
        return x.where(has, torch.full_like(x, low)).amax(1)
    if kind == "min":
        return x.where(has, torch.full_like(x, high)).amin(1)
    if kind in ("first_max", "first_min"):
        start = torch.full_like(x, low if kind == "first_max" else high)
        best = (torch.amax if kind == "first_max" else torch.amin)(x.where(has, start), 1, keepdim=True)
        hit = has & ((x == best) | (x != x))
        return places[0].where(hit, torch.full_like(places[0], 2**63 - 1)).amin(1)
    zero, count = x.new_zeros(()), has.sum(1, keepdim=True)
    if kind == "squared_deviation":
        total = x.where(has, zero).sum(1)
        if partner:
            return total
        away = (x - (total.unsqueeze(1) / count.clamp(min=1))).where(has, zero)
        away = (away - away.sum(1, keepdim=True) / count.clamp(min=1)).where(has, zero)
        return away.square().sum(1)
    require(kind == "sum_exp", "a reduction of a kind that is not known", kind)
    top = x.where(has, torch.full_like(x, low)).amax(1)
    if partner:
        return top
    base = top.clamp(min=torch.finfo(x.dtype).min).unsqueeze(1)
    return torch.exp(x - base).where(has, zero).sum(1)

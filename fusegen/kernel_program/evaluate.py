"""Runs kernel programs on torch tensors, without a compiler: all threads of a launch in lockstep, each where it may be.

A variable is a tensor with one row for each thread of the grid. A statement runs for the threads that are active: those
that a condition has taken in, and that have not left. Threads that exchange see what the others of their group have;
whoever waits for a thread that is not there is an error, as is every access that memory forbids
(kernel_program/memory). What an op's expression is, the reference says (declare/reference).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusegen.core.within import NOWHERE
from fusegen.kernel_program.memory import Place, Pointer, SharedArray, require
from fusegen.kernel_program.nodes import AddressOf, Invoke, Item, KernelProgram, Symbol, Term
from fusegen.kernel_program.threads import WARP, Grid, Lockstep, Range, name_of

if TYPE_CHECKING:
    import torch

# Threads that run in lockstep, more or less: what they hold is in memory at a time.
THREADS_AT_ONCE = 2**16


def run(
    program: KernelProgram, grid: Grid, arguments: Mapping[str, Any], sizes: Mapping[str, int], floats: Any
) -> None:
    """One launch.

    Args:
        grid: blocks along x, y and z.
        arguments: of each parameter a `Buffer` (or `StateBuffer`), or a number.
        sizes: of the op's axes.
        floats: the torch dtype in which floats are computed.

    Raises:
        LegalityError: a thread does what a program must not.
    """
    blocks = math.prod(grid)
    # Blocks of a cluster run together; others know nothing of each other.
    at_once = max(1, THREADS_AT_ONCE // (program.threads * program.cluster)) * program.cluster
    for first in range(0, blocks, at_once):
        some = range(first, min(first + at_once, blocks))
        _Machine(program, grid, some, arguments, sizes, floats).run()


class _Machine(Lockstep):
    """Threads, with the device functions that programs invoke. Each is what that of its name in templates/*.cuh is."""

    def _pointer(self, term: Term) -> Pointer:
        found = self._read(term)
        assert isinstance(found, Pointer), found
        return found

    def _load(self, term: Invoke) -> Any:
        first = term.args[0]
        if isinstance(first, AddressOf):
            return self._element(first.of) if isinstance(first.of, Item) else self._read(first.of)
        pointer = self._pointer(first)
        if not term.template:
            return pointer.buffer.read(self._all_of(pointer.at))
        return self._overhanging(term, aligned=True)

    def _load_unaligned(self, term: Invoke) -> Any:
        return self._overhanging(term, aligned=False)

    def _lanes(self, term: Invoke, first: Any) -> Any:
        """The places of a vector's elements."""
        return self._all_of(first).unsqueeze(1) + self.torch.arange(_int(term.template[0]), device=self.device)

    def _overhanging(self, term: Invoke, aligned: bool) -> Any:
        """A vector of which the elements behind the last one are zero."""
        pointer, i, n = self._pointer(term.args[0]), self._read(term.args[1]), self._read(term.args[2])
        at = self._lanes(term, i)
        there = at < n
        if aligned:
            whole = there.all(1)
            pointer.buffer.suits((self._all_of(pointer.at) + at[:, 0])[whole], at.shape[1])
        found = pointer.buffer.values.new_zeros(at.shape)
        found[there] = pointer.buffer.read((self._all_of(pointer.at).unsqueeze(1) + at)[there])
        return found

    def _load_vector(self, term: Invoke) -> Any:
        pointer = self._pointer(term.args[0])
        at = self._lanes(term, pointer.at)
        pointer.buffer.suits(at[:, 0], at.shape[1])
        return pointer.buffer.read(at)

    _load_raw = _load_vector

    def _load_raw_across(self, term: Invoke) -> Any:
        pointer, i, n = self._pointer(term.args[0]), self._read(term.args[1]), self._read(term.args[2])
        at = self._lanes(term, i)
        there = at < n
        found = pointer.buffer.values.new_zeros(at.shape)
        found[there] = pointer.buffer.read((self._all_of(pointer.at).unsqueeze(1) + at)[there])
        return found

    def _widen(self, term: Invoke) -> Any:
        return self._read(term.args[0])

    def _gather(self, term: Invoke) -> Any:
        pointer, told = self._pointer(term.args[0]), term.args[1:]
        at, there = (
            self._all_of(pointer.at).clone(),
            self.torch.ones(len(self.active), dtype=self.torch.bool, device=self.device),
        )
        for place, size, step in zip(told[::3], told[1::3], told[2::3], strict=True):
            index = self._all_of(self._read(place))
            there &= (index >= 0) & (index < self._read(size))
            at += index * self._read(step)
        if not term.template:
            found = pointer.buffer.values.new_zeros(len(at))
            found[there] = pointer.buffer.read(at[there])
            return found
        lanes = self._lanes(term, at)
        pointer.buffer.suits(at[there], lanes.shape[1])
        whole = pointer.buffer.values.new_zeros(lanes.shape)
        whole[there] = pointer.buffer.read(lanes[there])
        return whole

    def _load_within(self, term: Invoke) -> Any:
        pointer, asked = self._pointer(term.args[0]), term.args[1:]
        at = self._all_of(pointer.at)
        there = self.torch.ones(len(self.active), dtype=self.torch.bool, device=self.device)
        for place, size in zip(asked[::2], asked[1::2], strict=True):
            index = self._all_of(self._read(place))
            there &= (index >= 0) & (index < self._read(size))
        lanes = self._lanes(term, at) if term.template else at
        if term.template:
            pointer.buffer.suits(at[there], lanes.shape[1])
        found = pointer.buffer.values.new_zeros(lanes.shape)
        found[there] = pointer.buffer.read(lanes[there])
        return found

    def _load_async(self, term: Invoke) -> None:
        target, source = term.args
        assert isinstance(target, AddressOf) and isinstance(target.of, Item)
        place, pointer = self._place(target.of), self._pointer(source)
        values = place.array.values
        if values.ndim > 1 + place.array.dims:
            at = self._all_of(pointer.at).unsqueeze(1) + self.torch.arange(values.shape[-1], device=self.device)
            pointer.buffer.suits(at[:, 0], at.shape[1])
        else:
            at = self._all_of(pointer.at)
        self._into_shared(place, pointer.buffer.read(at), copied=True)

    _load_async_cached = _load_async

    def _await_loads(self, term: Invoke) -> None:
        for scope in self.scope.maps:
            for found in scope.values():
                if isinstance(found, SharedArray):
                    found.arrive(self.block[self.active], self.thread[self.active], self.meeting)

    def _read_again(self, term: Invoke) -> None:
        """A hint to the compiler."""

    def _store(self, term: Invoke) -> None:
        pointer = self._pointer(term.args[0])
        if term.template:
            self._store_overhanging(term, aligned=True)
            return
        pointer.buffer.write(self._all_of(pointer.at), self._all_of(self._read(term.args[1])))

    def _store_unaligned(self, term: Invoke) -> None:
        self._store_overhanging(term, aligned=False)

    def _store_overhanging(self, term: Invoke, aligned: bool) -> None:
        pointer, i, n = self._pointer(term.args[0]), self._read(term.args[1]), self._read(term.args[2])
        at = self._lanes(term, i)
        there = at < n
        if aligned:
            pointer.buffer.suits((self._all_of(pointer.at) + at[:, 0])[there.all(1)], at.shape[1])
        pointer.buffer.write((self._all_of(pointer.at).unsqueeze(1) + at)[there], self._read(term.args[3])[there])

    def _store_vector(self, term: Invoke) -> None:
        pointer = self._pointer(term.args[0])
        at = self._lanes(term, pointer.at)
        pointer.buffer.suits(at[:, 0], at.shape[1])
        pointer.buffer.write(at, self._read(term.args[1]))

    def _store_share(self, term: Invoke) -> None:
        pointer = self._pointer(term.args[0])
        apart, share, following, value = (self._all_of(self._read(arg)) for arg in term.args[1:])
        pointer.buffer.write(pointer.at + share * apart, value)
        empty = share + 1
        while (more := empty < following).any():
            at = (pointer.at + empty * apart)[more]
            pointer.buffer.write(at, value.new_zeros(len(at)))
            empty = empty + 1

    def _take(self, term: Invoke) -> Any:
        rest, n = self._read(term.args[0]), self._read(term.args[1])
        self._assign(term.args[0], rest // n)
        return rest % n

    def _advance(self, term: Invoke) -> Any:
        target, n, more = term.args
        moved = self._all_of(self._read(target)) + self._all_of(self._read(more)).to(self.torch.int64)
        wraps = moved == self._read(n)
        self._assign(target, moved.where(~wraps, self.torch.zeros_like(moved)))
        return wraps

    def _assume_multiple(self, term: Invoke) -> None:
        holds = self._all_of(self._read(term.args[0])) % _int(term.template[0]) == 0
        require(holds.all(), "a position that is no multiple of what the compiler is told")

    def _at_most(self, term: Invoke) -> Any:
        i, last = self._all_of(self._read(term.args[0])), self._all_of(self._read(term.args[1]))
        return self.torch.minimum(i, last)

    def _to_aligned(self, term: Invoke) -> Any:
        pointer, vector = self._pointer(term.args[0]), _int(term.template[0])
        elements = self._all_of(pointer.at) + pointer.buffer.alignment // pointer.buffer.size
        return (vector - elements % vector) % vector

    def _last_vector_end(self, term: Invoke) -> Any:
        head, n, vector = self._all_of(self._read(term.args[0])), self._read(term.args[1]), _int(term.template[0])
        return self.torch.where(n <= head, self.torch.full_like(head, n), n - (n - head) % vector)

    def _end_element(self, term: Invoke) -> Any:
        i, head, end = (self._all_of(self._read(arg)) for arg in term.args[:3])
        at = i.where(i < head, i - head + end)
        return at.where(at < self._read(term.args[3]), self.torch.full_like(at, -1))

    def _part_of_segment(self, term: Invoke) -> Range:
        segment, size, begin, end = (self._all_of(self._read(arg)) for arg in term.args)
        vector = _int(term.template[0])
        first, last = segment * size - begin, self.torch.minimum(segment * size + size, end) - begin
        return Range(first.clamp(min=0) // vector, self.torch.div(last, vector, rounding_mode="trunc"))

    def _no_place(self, term: Invoke) -> Any:
        return NOWHERE

    def _within(self, term: Invoke) -> Any:
        """What is out of range is reported on a GPU; here the caller looks."""
        return self._read(term.args[0])

    def _combine(self, term: Invoke) -> Any:
        now, update = (self._all_of(self._read(arg)) for arg in term.args)
        return self._combined(term.template[0], now, update)

    def _combined(self, how: int | str, now: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """What an update and what is there come to."""
        functions = {
            "fg::Added": self.torch.add, "fg::Multiplied": self.torch.mul, "fg::Largest": self.torch.maximum,
            "fg::Smallest": self.torch.minimum,
        }  # fmt: skip
        found: torch.Tensor = functions[str(how)](now, update)
        return found

    def _take_updates(self, term: Invoke) -> None:
        """One update of each thread after the other, for a place of the line that it owns."""
        how, count, _ = term.template
        line, places, updates = (self._first_of(arg) for arg in term.args)
        thread, meeting = self.thread[self.active], self.meeting[self.block[self.active]]
        turns = self.torch.arange(_int(count), device=self.device).unsqueeze(1)

        def of_turns(of: Place) -> tuple[torch.Tensor, ...]:
            *block, row, lane = of.index
            return tuple(self.torch.broadcast_tensors(*block, row + turns, lane))

        # What all turns read, and none of them writes, is read at once.
        at = places.array.read(of_turns(places), thread, meeting)
        there = at >= 0
        own, when = (each.expand(at.shape)[there] for each in (thread, meeting))
        update = updates.array.values.new_zeros(at.shape)
        update[there] = updates.array.read(tuple(index[there] for index in of_turns(updates)), own, when)
        for i in there.any(1).nonzero().flatten().tolist():
            taken = there[i]
            own, when = thread[taken], meeting[taken]
            where = line.index[0][taken], at[i][taken], line.index[-1][taken]
            now = line.array.read(where, own, when)
            line.array.write(where, own, when, self._combined(how, now, update[i][taken]), copied=False)

    def _first_of(self, term: Term) -> Place:
        """Where the first of several elements of shared memory is."""
        assert isinstance(term, AddressOf) and isinstance(term.of, Item)
        found = self._place(term.of)
        assert isinstance(found, Place)
        return found

    def _segment_sum(self, term: Invoke) -> Any:
        part = self._read(term.args[1])
        sums = self.torch.zeros(len(self.active), dtype=self.floats, device=self.device)
        array = term.args[0]
        for i in range(int((part.last - part.first).clamp(min=0).max())):
            there = part.first + i < part.last
            with self._only(self.active[there]):
                self.scope["@element"] = self._everywhere((part.first + i)[there])
                sums[there] += self._element(Item(array, Symbol("@element")))
        return sums

    def _cluster_rank(self, term: Invoke) -> Any:
        return self.rank[self.active]

    def _divide_by_count(self, term: Invoke) -> Any:
        return self._read(term.args[0]) / self._read(term.args[1])

    def _syncthreads(self, term: Invoke) -> None:
        """The table says that they wait."""

    _row_barrier = _syncthreads

    def _wait_for_previous_kernel(self, term: Invoke) -> None:
        """Kernels run one after the other here."""

    def _block_sum(self, term: Invoke) -> Any:
        return self._summed(self._read(term.args[0]), self.block)

    def _column_sum(self, term: Invoke) -> Any:
        return self._summed(self._read(term.args[0]), self.column)

    def _merged_in_place(self, term: Invoke, groups: torch.Tensor) -> Any:
        self._exchange("merge", term.args, groups)
        return self._read(term.args[0])

    def _block_merge(self, term: Invoke) -> Any:
        return self._merged_in_place(term, self.block)

    def _column_merge(self, term: Invoke) -> Any:
        return self._merged_in_place(term, self.column)

    def _row_sum(self, term: Invoke) -> None:
        self._exchange("sum", term.args, self.row)

    def _row_merge(self, term: Invoke) -> None:
        self._exchange("merge", term.args, self.row)

    def _cluster_sum(self, term: Invoke) -> None:
        self._exchange("sum", self._through_link(term), self.cluster)

    def _cluster_merge(self, term: Invoke) -> None:
        self._exchange("merge", self._through_link(term), self.cluster)

    def _through_link(self, term: Invoke) -> Sequence[Term]:
        """What is exchanged with other blocks, which must have begun."""
        link, *values = term.args
        require(self.scope[name_of(link)].ready, "blocks exchange before all are known to have begun")
        return values

    def _columns_sum(self, term: Invoke) -> None:
        self._exchange("sum", term.args, self.column)

    def _columns_maximum(self, term: Invoke) -> None:
        self._exchange("maximum", term.args, self.column)

    def _columns_merge(self, term: Invoke) -> None:
        self._exchange("merge", term.args, self.column)

    def _scan_lanes(self, term: Invoke) -> None:
        lanes, turns = map(_int, term.template)
        self._scanned(term.args, lanes, turns)

    def _scan_block(self, term: Invoke) -> None:
        warps, turns = map(_int, term.template)
        require(warps * WARP == self.program.threads, "a block of other warps than those that scan", warps)
        place, block = self._all_of(self._read(term.args[3])), self.block[self.active]
        read = self.totals_read.setdefault(term.template, self.torch.full((2, self.blocks), -1, device=self.device))
        # The block has met once since it began to write totals at this place.
        require((read[place, block] < self.meeting[block] - 1).all(), "totals are written while others read them")
        read[place, block] = self.meeting[block]
        self._scanned(term.args[:3], self.program.threads, turns)
        self._assign(term.args[3], 1 - place)

    def _scanned(self, args: Sequence[Term], threads: int, turns: int) -> None:
        """What stands before each thread's elements: all threads of a row have some of a turn before any has one of the
        next turn."""
        own, before, carry = (self.scope[name_of(arg)] for arg in args)
        rows = self.active.reshape(-1, threads)
        held = carry.at((rows[:, 0],))
        for turn in range(turns):
            for lane in range(threads):
                before.put((rows[:, lane], turn), held)
                held = held.append(own.at((rows[:, lane], turn)))
        for lane in range(threads):
            carry.put((rows[:, lane],), held)

    def _rows_sum(self, term: Invoke) -> None:
        """In the first row of threads; the others have something else."""
        (name,) = term.args
        total = self._summed(self._read(name), self.column)
        first = self.thread[self.active] < self.program.block[0]
        others = total.new_full((), math.nan if total.is_floating_point() else -1)
        self._put(name_of(name), total.where(first.reshape(-1, *[1] * (total.ndim - 1)), others))


def _int(value: int | str) -> int:
    assert isinstance(value, int)
    return value

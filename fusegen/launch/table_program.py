"""Launches for many tensors: the tables of pointers, sizes and strides that a kernel gets (generate/table)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from fusegen.core.ir import Scalar
from fusegen.core.monoids import BY_KIND
from fusegen.fuse.finish import FINISHES
from fusegen.fuse.kernel import Kernel
from fusegen.fuse.schedule import Launch, Schedule
from fusegen.generate.names import OpNames
from fusegen.generate.params import parameters
from fusegen.generate.rendered import Rendered
from fusegen.generate.table import Table
from fusegen.launch.program import (
    SCALAR_FORMATS,
    Allocate,
    Arguments,
    Grid,
    KernelLaunch,
    Loaded,
    Target,
    partial_results,
    scalar_value,
    static_bytes,
)

MOST_BLOCKS = 2**31 - 1

# An address that a call brings: which of its values it is, and how many bytes further on.
Source = tuple[int, int]


@dataclass(frozen=True)
class Member:
    """One tensor of a list: the numbers of its launch, and where a call's values have what it reads and writes."""

    launch: Launch
    sources: Mapping[str, Source]


@dataclass
class TableLaunch(KernelLaunch):
    """One launch for several members. ``pointers`` packs their addresses, which stand first in the table."""

    pointers: struct.Struct = field(default_factory=lambda: struct.Struct(""))
    addresses: tuple[Source, ...] = ()
    scalars: tuple[Scalar, ...] = ()

    def run(self, values: Sequence[Any], stream: int) -> None:
        """Launch it with a call's addresses and numbers."""
        try:
            arguments: Arguments = self.pool.pop()
        except IndexError:
            arguments = self.prepared()
        numbers = [scalar_value(scalar, values[i]) for scalar, i in zip(self.scalars, self.sources, strict=True)]
        self.pack(arguments.memory, 0, *numbers)
        self.pointers.pack_into(arguments.memory, 8 * len(numbers), *[values[i] + o for i, o in self.addresses])
        arguments.launch(stream)
        self.pool.append(arguments)


@dataclass
class TableProgram:
    """Launches in order.

    Args:
        numbers: which of a call's values a scalar is, by name.
        given: how many values a call brings; addresses of workspaces stand behind them.
        partials: bytes of each workspace.
    """

    numbers: Mapping[str, int]
    given: int
    steps: list[TableLaunch] = field(default_factory=list)
    partials: list[int] = field(default_factory=list)

    def run(self, values: list[Any], allocate: Allocate, stream: int) -> None:
        """Launch everything on ``stream``; ``values`` are addresses and numbers, as members' sources count them."""
        owners = []
        for size in self.partials:
            owner, address = allocate(size)
            owners.append(owner)
            values.append(address)
        for step in self.steps:
            step.run(values, stream)

    def add(
        self, kernel: Kernel, schedule: Schedule, rendered: Rendered, members: Sequence[Member], target: Target
    ) -> None:
        """Append the launches of one kernel for its members."""
        declared = f"{kernel.op.name}, declared in {kernel.op.declared}" if kernel.op.declared else kernel.op.name
        loaded = target.load(rendered, rendered.entry, declared, schedule.follows)
        members = self._with_partials(kernel, schedule, members)
        table = Table.of(parameters(kernel, schedule, OpNames()))
        finish = last = None
        if rendered.finish:
            last = target.load(rendered, rendered.finish, declared, True)
            finish = Table.of(parameters(kernel, schedule, OpNames(), "finish"))
        capacity = min(table.capacity, finish.capacity if finish else table.capacity)
        for some in _in_launches(members, capacity):
            blocks = [prod(member.launch.grid) for member in some]
            self._add(loaded, some[0].launch.block, table, kernel, schedule, some, blocks)
            if last is not None and finish is not None:
                _, block = FINISHES[schedule.finish]
                self._add(last, block, finish, kernel, schedule, some, [1] * len(some))

    def _add(
        self, loaded: Loaded, block: Grid, table: Table, kernel: Kernel, schedule: Schedule, members: Sequence[Member],
        blocks: Sequence[int],
    ) -> None:  # fmt: skip
        pointers, numbers = table.fields[: table.pointers], table.fields[table.pointers :]
        names = [partial_results(p.source) if p.kind == "partial" else p.source for p in pointers]
        rest = table.numbers([[static_bytes(p, schedule, m.launch) for p in numbers] for m in members], blocks)
        each = f"{len(members)}Q{8 * (table.capacity - len(members))}x"
        shared, scalars = len(table.shared), {scalar.name: scalar for scalar in kernel.scalars}
        step = TableLaunch(
            loaded, (sum(blocks), 1, 1), block,
            tuple(p.source for p in table.shared),
            "<" + "".join(SCALAR_FORMATS[p.ctype] for p in table.shared),
            (bytes(8 * table.capacity * len(pointers)) + rest,),
            (shared, *range(shared)),
            tuple(self.numbers[p.source] for p in table.shared),
            pointers=struct.Struct("<" + each * len(pointers)),
            addresses=tuple(m.sources[name] for name in names for m in members),
            scalars=tuple(scalars[p.source] for p in table.shared),
        )  # fmt: skip
        self.steps.append(step)

    def _with_partials(self, kernel: Kernel, schedule: Schedule, members: Sequence[Member]) -> Sequence[Member]:
        """The members, each with its part of the memory in which blocks leave what a second kernel combines."""
        if not schedule.split:
            return members
        for state in kernel.states:
            name, place, size = partial_results(state.name), self.given + len(self.partials), 0
            each = state.expr.dtype.size * BY_KIND[state.kind].fields
            placed = []
            for member in members:
                placed.append(replace(member, sources={**member.sources, name: (place, size)}))
                size += -(-member.launch.splits * each // 16) * 16
            members = placed
            self.partials.append(size)
        return members


def _in_launches(members: Sequence[Member], capacity: int) -> list[list[Member]]:
    """As many members a launch as its table and the grid have room for."""
    found: list[list[Member]] = []
    blocks = 0
    for member in members:
        own = prod(member.launch.grid)
        if not found or len(found[-1]) == capacity or blocks + own > MOST_BLOCKS:
            found.append([])
            blocks = 0
        found[-1].append(member)
        blocks += own
    return found

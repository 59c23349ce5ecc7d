"""Intermediates of a row that a thread computes once and keeps in registers for the traversals that read them again.

A row is traversed once for each level of its reductions and once for its results, and what a traversal reads of an
element is computed anew: memory has been read, so that mostly costs nothing. Where it is much (a division, a hyperbolic
tangent), each traversal but the first is spent on numbers that the thread has had before. So it is where a traversal
reads again what all rows have in common (a norm's weights): the first cache answers a warp in as many cycles as four
instructions of each of its threads take, and in four times as many where a row lies askew to it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusegen.core.ir import Axes, Call, Let, Output, Reduce, names_read, walk
from fusegen.fuse import cost
from fusegen.fuse.row_kernel import RowKernel, coupled

# `Function.cost` of all traversals of an element, for each byte that moves, from which a kernel is bound by arithmetic.
BOUND_BY_ARITHMETIC = 4
# What an intermediate has to save at each element to be worth its register.
LEAST_SAVED = 8
# Intermediates that are looked at, those that cost most: each is tried beside those that are kept already.
CANDIDATES = 12


@dataclass(frozen=True)
class Traversal:
    """One walk over a row: the lets that it needs, and what it computes of them."""

    lets: tuple[Let, ...]
    items: tuple[Reduce | Output, ...]


def traversals(kernel: RowKernel) -> list[Traversal]:
    """The traversals of a row in order. Coupled reductions have two: one finds the mean or the maximum."""
    found = list[Traversal]()
    ending: tuple[Reduce | Output, ...] = (*kernel.pointwise, *kernel.columns, *kernel.segments)
    for stage in kernel.stages:
        own = tuple(r for r in stage.reduces if r.name not in kernel.partners)
        if stage is kernel.final_stage:
            found.append(Traversal(tuple(dict.fromkeys((*stage.lets, *kernel.body))), (*ending, *own)))
            continue
        found.append(Traversal(stage.lets, own))
        if any(map(coupled, own)):
            found.append(Traversal(stage.lets, tuple(r for r in own if coupled(r))))
    if ending and not kernel.final_stage:
        found.append(Traversal(kernel.body, ending))
    return found


def still_needed(step: Traversal, known: Container[str]) -> tuple[Let, ...]:
    """The lets that a traversal needs, in order, known ones among them; not those that only these need."""
    wanted, found = names_read(step.items), list[Let]()
    for let in reversed(step.lets):
        if let.name in wanted:
            found.append(let)
            wanted |= names_read([let]) if let.name not in known else set()
    return tuple(reversed(found))


class Reuse:
    """Which intermediates of a kernel a thread keeps, and what all of them cost then."""

    def __init__(self, kernel: RowKernel) -> None:
        self.kernel, self.passes = kernel, traversals(kernel)
        self._known: dict[tuple[tuple[str, int], ...], _Costs] = {}

    def _costs(self, reads: Mapping[str, int]) -> _Costs:
        found = self._known.get(tuple(reads.items()))
        if found is None:
            found = self._known[tuple(reads.items())] = _Costs(self.kernel, self.passes, reads)
        return found

    def kept(self, bytes_moved: int, elements: int, room: int, reads: Mapping[str, int]) -> tuple[str, ...]:
        """The names of intermediates that a thread keeps.

        Args:
            bytes_moved: of all operands and results, for one element of the space.
            elements: of a row that a thread has.
            room: registers that it can have for intermediates.
            reads: operands that each traversal reads anew, and what it costs.
        """
        if len(self.passes) < 2 or room < elements:
            return ()
        costs = self._costs(reads)
        work, kept = costs.of(0), list[str]()
        if work < BOUND_BY_ARITHMETIC * bytes_moved:
            return ()
        names = costs.candidates()
        while names:
            fitting = [name for name, words in names.items() if name not in kept and words * elements <= room]
            tried = {name: costs.of(costs.bits(kept) | costs.bit[name]) for name in fitting}
            best = min(fitting, key=tried.__getitem__, default="")
            if not best or work - tried[best] < LEAST_SAVED:
                break
            kept.append(best)
            work, room = tried[best], room - names[best] * elements
        return tuple(kept)

    def cost(self, kept: Iterable[str], reads: Mapping[str, int]) -> int:
        """`Function.cost` of all traversals of an element, where a thread keeps these."""
        costs = self._costs(reads)
        return costs.of(costs.bits(kept))


class _Costs:
    """What all traversals compute at an element, by which intermediates are kept: a set of these is a number."""

    def __init__(self, kernel: RowKernel, passes: Sequence[Traversal], reads: Mapping[str, int]) -> None:
        self.lets = list(dict.fromkeys([let for step in passes for let in step.lets]))
        self.bit = {name: 1 << number for number, name in enumerate([*(let.name for let in self.lets), *reads])}
        self.cost = {**_own_costs(kernel, self.lets), **reads}
        self.reads = {**{let.name: self.bits(names_read([let])) for let in self.lets}, **dict.fromkeys(reads, 0)}
        # Of each traversal what its items read, and its lets, the last first, and then what these read.
        self.steps = [
            (
                self.bits(names_read(step.items)),
                [
                    (self.bit[name], self.reads[name], self.cost[name])
                    for name in (*(let.name for let in reversed(step.lets)), *reads)
                ],
            )
            for step in passes
        ]

    def bits(self, names: Iterable[str]) -> int:
        found = 0
        for name in names:
            found |= self.bit.get(name, 0)
        return found

    def of(self, kept: int) -> int:
        """`Function.cost` at an element where these are kept."""
        total = known = 0
        for wanted, lets in self.steps:
            computed = 0
            for bit, reads, price in lets:
                if wanted & bit and not known & bit:
                    total += price
                    wanted |= reads
                    computed |= bit
            known |= computed & kept
        return total

    def candidates(self) -> dict[str, int]:
        """Floats that more than one traversal needs and that cost something, and how many registers each takes."""
        counts = dict.fromkeys(self.bit, 0)
        for wanted, lets in self.steps:
            for bit, reads, _ in lets:
                wanted |= reads if wanted & bit else 0
            for name, bit in self.bit.items():
                counts[name] += bool(wanted & bit)
        behind: dict[str, int] = {}
        for let in self.lets:
            behind[let.name] = self.cost[let.name]
            for name in names_read([let]):
                behind[let.name] += behind.get(name, self.cost.get(name, 0))
        saved = {let: (counts[let.name] - 1) * behind[let.name] for let in self.lets if let.expr.dtype.is_float}
        best = sorted([let for let in saved if saved[let] >= LEAST_SAVED], key=lambda let: -saved[let])
        return {let.name: -(-let.expr.dtype.size // 4) for let in best[:CANDIDATES]}


def _own_costs(kernel: RowKernel, lets: Sequence[Let]) -> dict[str, int]:
    """`Function.cost` of each intermediate's own expression, but for what is the same along the row."""
    axes = {o.name: frozenset(a for a in o.shape if a) for o in kernel.operands}
    axes.update({scalar.name: frozenset() for scalar in kernel.scalars})
    axes.update({reduce.name: frozenset() for reduce in kernel.reduces})
    over, varying = frozenset(kernel.over), Axes(axes)
    for let in (*kernel.before, *[let for stage in kernel.stages for let in stage.after]):
        axes.setdefault(let.name, frozenset())
    found: dict[str, int] = {}
    for let in lets:
        axes[let.name] = varying.of(let.expr)
        nodes = [n for n in walk([let.expr]) if isinstance(n, Call) and not over.isdisjoint(varying.of(n))]
        found[let.name] = cost.of(nodes)
    return found

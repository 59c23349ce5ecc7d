"""Row kernels that take sums of segments of their rows: each thread leaves what its vectors add in shared memory, where
a few threads at a time add up a segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fusegen.core.ir import Expr, Reduce
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.rows_schedule import RowSchedule
from fusegen.generate.accumulators import plus
from fusegen.generate.names import Names
from fusegen.generate.traversal import Traversal
from fusegen.kernel_program.nodes import (
    AUTO,
    BLANK,
    THREAD,
    THREAD_ROW,
    Assign,
    Choice,
    Comment,
    Convert,
    Declare,
    Do,
    For,
    If,
    Number,
    Plain,
    Shared,
    Statement,
    Symbol,
    Term,
    Value,
    every,
    invoke,
)


@dataclass(frozen=True)
class Segments:
    """The statements about segments of one kernel.

    Args:
        value: an expression of the op as a term.
    """

    kernel: RowKernel
    plan: RowSchedule
    names: Names
    value: Callable[[Expr], Value]

    @property
    def _per_block(self) -> int:
        """Elements of a row that a block has."""
        return self.plan.threads * self.plan.vectors_per_thread * self.plan.vector

    def declare(self) -> list[Statement]:
        """Where threads leave what they have: the vectors of a row, or of a block's part of it, side by side."""
        rows = (self.plan.rows,) if self.plan.rows > 1 else ()
        dims = (*rows, self.plan.threads * self.plan.vectors_per_thread)
        return [
            Shared(Plain(r.expr.dtype.ctype), f"{self.names.stem(r.name)}_parts", dims) for r in self.kernel.segments
        ]

    def _parts(self, reduce: Reduce) -> Term:
        parts = Symbol(f"{self.names.stem(reduce.name)}_parts")
        return parts.at(THREAD_ROW) if self.plan.rows > 1 else parts

    def take(self, traversal: Traversal) -> None:
        """What a vector adds, in the last traversal of the row."""
        several = self.plan.vectors_per_thread > 1
        number = self.plan.threads * Symbol("part") + THREAD if several else THREAD
        for reduce in self.kernel.segments:
            target, value = self._parts(reduce).at(number), self.value(reduce.expr)
            if self.plan.vector == 1:
                traversal.inner.append(Assign(target, value))
                continue
            part = f"{self.names.stem(reduce.name)}_part"
            traversal.declarations.append(Declare(Plain(reduce.expr.dtype.ctype), part, Number(0)))
            traversal.inner.append(plus(Symbol(part), value))
            traversal.writes.append(Assign(target, Symbol(part)))

    def sums(self) -> list[Statement]:
        """The traversal of segments, once all threads have left what they have."""
        plan, kernel, threads = self.plan, self.kernel, self.plan.threads_per_segment
        if not kernel.segments:
            return []
        index, n, size, shared = Plain(plan.index), Symbol("n"), Symbol("segment_size"), plan.cluster > 1
        groups, several = plan.threads // threads, plan.threads > threads
        segment, segments, turn, begin, until = map(Symbol, ("segment", "segments", "turn", "begin", "until"))
        first, last = (
            (begin, until) if shared else (Convert(plan.index, Number(0)), Symbol("end") if plan.rows > 1 else n)
        )
        of_block = ", each block its share of it" if shared else ""
        part = invoke("fg::part_of_segment", segment, size, first, last, of=(plan.vector,))
        body: list[Statement] = [
            Declare(index, "segment", turn + THREAD // threads if several else turn, constant=True),
            Declare(AUTO, "part", part, constant=True),
            *(self._sum(reduce) for reduce in kernel.segments),
            If(
                every([(THREAD % threads if several else THREAD).equals(0), Symbol("part").call("any")]),
                tuple(self._stores()),
            ),
        ]
        condition = turn * size < until if shared else turn < segments
        return [
            BLANK,
            Comment(f"{threads} threads at a time add up a segment of the row{of_block}."),
            Do(invoke("__syncthreads")),
            Declare(index, "segments", n // size, constant=True),
            *(
                [Declare(index, "until", invoke("fg::at_most", begin + self._per_block, n), constant=True)]
                if shared
                else []
            ),
            For("turn", index, begin // size if shared else Number(0), condition, Number(groups), tuple(body)),
        ]

    def _sum(self, reduce: Reduce) -> Statement:
        own = invoke("fg::segment_sum", self._parts(reduce), Symbol("part"), of=(self.plan.threads_per_segment,))
        return Declare(Plain(reduce.expr.dtype.ctype), self.names.variable(reduce.name), own, constant=True)

    def _stores(self) -> list[Statement]:
        """What the first thread of a segment does with the sums."""
        plan, at, segment = self.plan, Symbol("at"), Symbol("segment")
        found: list[Statement] = [
            Declare(Plain(plan.index), "at", Symbol("row") * Symbol("segments") + segment, constant=True)
        ]
        share, int_ = Symbol("share"), Plain("int")
        if plan.cluster > 1:
            size = Symbol("segment_size")
            first = Convert("int", segment * size // self._per_block)
            beyond = (segment + 1) * size > Symbol("until")
            found += [
                Declare(int_, "share", invoke("fg::cluster_rank") - first, constant=True),
                Declare(
                    int_,
                    "next",
                    Choice(beyond, share + 1, Symbol("shares")),
                    constant=True,
                    note="the last block: others have none",
                ),
            ]
        for output in self.kernel.shares:
            target, value = Symbol(self.names.pointer(output.name)), self.value(output.expr)
            if plan.cluster == 1:
                found.append(Assign(target.at(at), value))
                continue
            apart = Symbol("m") * Symbol("segments")
            found.append(Do(invoke("fg::store_share", target + at, apart, share, Symbol("next"), value)))
        return found

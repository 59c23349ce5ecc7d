"""The slots of row kernels that take sums of segments of their rows: each thread leaves what its vectors add in shared
memory, where a few threads at a time add up a segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusegen.core.ir import Expr, Reduce
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.rows_schedule import RowSchedule
from fusegen.generate.names import Names


@dataclass(frozen=True)
class Segments:
    """The lines about segments of one kernel.

    Args:
        text: the printer of expressions.
    """

    kernel: RowKernel
    plan: RowSchedule
    names: Names
    text: Callable[[Expr], str]

    @property
    def _vectors(self) -> str:
        """Vectors of a row, or of a block's part of it, as numbers side by side."""
        return f"[{self.plan.threads * self.plan.vectors_per_thread}]"

    def declare(self) -> list[str]:
        """Where threads leave what they have."""
        rows = f"[{self.plan.rows}]" if self.plan.rows > 1 else ""
        return [
            f"FUSEGEN_SHARED({r.expr.dtype.ctype}, {self.names.stem(r.name)}_parts, {rows}{self._vectors});"
            for r in self.kernel.segments
        ]

    def _parts(self, reduce: Reduce) -> str:
        return f"{self.names.stem(reduce.name)}_parts" + ("[threadIdx.y]" if self.plan.rows > 1 else "")

    def take(self, slots: dict[str, Any]) -> None:
        """What a vector adds, in the last traversal of the row."""
        number = f"{self.plan.threads} * part + threadIdx.x" if self.plan.vectors_per_thread > 1 else "threadIdx.x"
        for reduce in self.kernel.segments:
            target, value = f"{self._parts(reduce)}[{number}]", self.text(reduce.expr)
            if self.plan.vector == 1:
                slots["inner"].append(f"{target} = {value};")
                continue
            part = f"{self.names.stem(reduce.name)}_part"
            slots["declarations"].append(f"{reduce.expr.dtype.ctype} {part} = 0;")
            slots["inner"].append(f"{part} += {value};")
            slots["writes"].append(f"{target} = {part};")

    def slots(self) -> dict[str, Any] | None:
        """The traversal of segments."""
        plan, kernel, of, threads = self.plan, self.kernel, self.names.variable, self.plan.threads_per_segment
        if not kernel.segments:
            return None
        several = plan.threads > threads
        member = f"threadIdx.x % {threads}" if several else "threadIdx.x"
        return {
            "threads": threads, "groups": plan.threads // threads,
            "number": "turn" + (f" + threadIdx.x / {threads}" if several else ""),
            "until": "end" if plan.rows > 1 else "n",
            "sums": [
                f"const {r.expr.dtype.ctype} {of(r.name)} = fg::segment_sum<{threads}>({self._parts(r)}, part);"
                for r in kernel.segments
            ],
            "writer": f"{member} == 0 && part.any()",
            "stores": [self._store(self.names.pointer(s.name), self.text(s.expr)) for s in kernel.shares],
        }  # fmt: skip

    def _store(self, target: str, value: str) -> str:
        if self.plan.cluster == 1:
            return f"{target}[at] = {value};"
        return f"fg::store_share({target} + at, m * segments, share, next, {value});"

"""How a row kernel reads: what a thread takes of each row before anything else, and where it keeps that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusegen.core.ir import Operand
from fusegen.fuse.row_kernel import RowKernel
from fusegen.fuse.rows_schedule import RowSchedule, kept_for_all, kept_in_registers
from fusegen.generate.slots import SlotFiller


@dataclass
class RowReads(SlotFiller):
    """The part of `Rows` that is about memory.

    ``ahead``: operands that a thread reads before all else and keeps for the row; ``shared``: those that all rows have
    in common, kept by a persistent block for all of them.
    """

    kernel: RowKernel
    schedule: RowSchedule

    def __post_init__(self) -> None:
        super().__post_init__()
        plan = self.schedule
        self.kept_loops = range(plan.loops)
        self.over_loops = range(plan.loops, plan.loops + plan.inner)
        self.fast = plan.loops + plan.inner - 1
        ahead, common = kept_in_registers(self.kernel, plan), kept_for_all(self.kernel, plan)
        self.ahead = [o for o in self.kernel.tensors if o.name in ahead]
        self.shared = [o for o in self.kernel.tensors if o.name in common and o not in self.ahead]

    def _raw(self, operands: Sequence[Operand], double_buffered: bool, staged: bool) -> dict[str, Any]:
        """Reading a row ahead: the present one, or where rows are ``double_buffered`` the next.

        ``staged``: into shared memory, where the present row and the next have a place each; else into registers.
        """
        plan = self.schedule
        slots: dict[str, Any] = {"declarations": [], "reads": [], "arrivals": [], "present": []}
        slots["coordinates"] = self._element_coordinates([o.name for o in operands])
        for operand in operands:
            name, ctype = self.stem(operand.name), operand.dtype.ctype
            element = f"fg::Raw<{ctype}, {plan.vector}>" if plan.vector > 1 else ctype
            offset = self.offset(operand.name, range(self.fast + 1))
            if staged:
                threads = plan.threads * plan.rows
                extent = f"{'[2]' if double_buffered else ''}[{plan.vectors_per_thread}][{threads}]"
                if plan.dynamic:
                    placed = [*self.shared, *self.ahead]
                    earlier = placed[: placed.index(operand)]
                    after = f"fg::behind<{name}_rows>({self.stem(earlier[-1].name)}_row)" if earlier else ""
                    value = after or f"fg::dynamic_shared<{name}_rows>()"
                    slots["declarations"] += [
                        f"using {name}_rows = {element}{extent};", f"{name}_rows& {name}_row = {value};"
                    ]  # fmt: skip
                else:
                    slots["declarations"] += [
                        f"using {name}_element = {element};",
                        f"FUSEGEN_SHARED({name}_element, {name}_row, {extent});",
                    ]
                place = f"{name}_row{'[turn ^ 1]' if double_buffered else ''}[part][thread]"
                if plan.unaligned and operand in self.shared:
                    slots["reads"].append(f"{place} = {self._across(operand.name)};")
                else:
                    slots["reads"] += self.access(f"fg::load_async(&{place}, {{}});", operand.name, offset)
                continue
            slots["declarations"].append(
                f"{element} {name}_{'next' if double_buffered else 'row'}[{plan.vectors_per_thread}];"
            )
            if double_buffered:
                slots["present"].append(f"{element} {name}_row[{plan.vectors_per_thread}];")
                slots["arrivals"].append(f"{name}_row[part] = {name}_next[part];")
            load = f"fg::load_raw<{plan.vector}>({{}})" if plan.vector > 1 else "*({})"
            if plan.unaligned and operand in self.shared:
                load = self._across(operand.name)
            target = f"{name}_{'next' if double_buffered else 'row'}[part]"
            slots["reads"] += self.access(f"{target} = {load};", operand.name, offset)
        return slots

    def _head(self) -> str | None:
        """Elements of a row before its first aligned vector; of a block's first row, where that goes on."""
        plan = self.schedule
        if not plan.unaligned:
            return None
        name = min(self.ahead, key=lambda o: o.dtype.size).name
        offset = self.offset(name, self.kept_loops)
        if plan.persistent:
            first = self._first("blockIdx.x") + (" + threadIdx.y" if plan.rows > 1 else "")
            offset = offset.replace("j0", f"({first})" if " " in first else first)
        return f"fg::to_aligned<{plan.vector}>({self.pointer(name, offset)})"

    def _ends(self, operands: Sequence[Operand], double_buffered: bool = False) -> dict[str, list[str]] | None:
        """Reading the single elements at the ends of rows that begin anywhere, a thread one: as `_raw` does vectors."""
        if not self.schedule.unaligned or not operands:
            return None
        slots: dict[str, list[str]] = {
            "declarations": [],
            "arrivals": [],
            "reads": [f"const {self.schedule.index} j{self.fast} = edge;"],
        }
        for operand in operands:
            name, ctype = self.stem(operand.name), operand.dtype.ctype
            slots["declarations"].append(f"{ctype} {name}_{'edge_next' if double_buffered else 'edge'};")
            slots["arrivals"] += [f"const {ctype} {name}_edge = {name}_edge_next;"] if double_buffered else []
            load = f"{name}_{'edge_next' if double_buffered else 'edge'} = *({{}});"
            slots["reads"] += self.access(load, operand.name, self.offset(operand.name, range(self.fast + 1)))
        return slots

    def _across(self, name: str) -> str:
        """A vector of an operand that lies across those of the row, if it moves along the row by one."""
        row = self.pointer(name, self.offset(name, range(self.fast)))
        return f"fg::load_raw_across<{self.schedule.vector}>({row}, j{self.fast}, n)"

    def _held(self, operand: Operand) -> str:
        """Where a thread finds what it has read of an operand."""
        plan, name = self.schedule, self.stem(operand.name)
        if operand in self.shared:
            return f"{name}_row[part]{'[thread]' if plan.dynamic else ''}"
        if not plan.staged:
            return f"{name}_row[part]"
        return f"{name}_row{'[turn]' if plan.prefetch else ''}[part][thread]"

    def _element_coordinates(self, names: Sequence[str]) -> list[str]:
        return self.coordinates(self.over_loops.start, self.fast, "at", self.moving(names, self.over_loops))

    def _first(self, block: str) -> str:
        """The first row of a group: blocks that share a row make a group, and so does a block with several rows."""
        rows = self.schedule.rows
        return f"{rows} * {self._group(block)}" if rows > 1 else self._group(block)

    def _group(self, block: str) -> str:
        plan = self.schedule
        return f"{plan.index}({block})" + (f" / {plan.cluster}" if plan.cluster > 1 else "")

"""The slots of kernels that add up: row, column and serial, and the second stage of a split sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusegen.core.ir import Let, Operand, Output, Ref
from fusegen.fuse.finish import FINISHES
from fusegen.fuse.schedule import TILE, Access, ColumnSchedule, LineSchedule, SerialSchedule, of_each_result
from fusegen.generate.accumulators import Accumulator
from fusegen.generate.slots import SlotFiller


class Sums(SlotFiller):
    """What kernels that add up have in common. Fills finish.cu.j2, the second stage of a split sum."""

    def _add_iterations(self, slots: dict[str, Any]) -> None:
        for accumulator in self._accumulators():
            before, behind = accumulator.iteration()
            slots["declarations"] += before
            slots["writes"] += behind

    def _late_operands(self) -> list[str]:
        needed = self.needed(self.kernel.ending)
        return [o.name for o in self.kernel.operands if o.name in needed]

    def _accumulators(self) -> list[Accumulator]:
        return [Accumulator(reduce, self.names, per_iteration=self.schedule.vector) for reduce in self.kernel.states]

    def _combine(self) -> list[str]:
        """The states of a block's threads put together."""
        return [a.combine("block", str(self.schedule.threads)) for a in self._accumulators()]

    def _partials(self, position: str) -> list[str]:
        return [line for a in self._accumulators() for line in a.store(position)]

    def _epilogue(self, already: set[str]) -> list[str]:
        """What follows the reductions, for one result."""
        kept = range(self.schedule.kept)
        late = [o for o in self.kernel.operands if o.name in self._late_operands() and o.name not in already]
        lines = [line for r in self.kernel.states for line in Accumulator(r, self.names).result()]
        lines += [Accumulator(of, self.names).partner(name) for name, of in self.kernel.partners.items()]
        lines += [line for o in late for line in self.read(o, self.offset(o.name, kept))]
        lines += self.lets([item for item in self.kernel.ending if isinstance(item, Let)])
        for output in self.kernel.outputs:
            lines += self.store(output, self.offset(output.name, kept))
        return lines

    def finish(self, name: str) -> dict[str, Any]:
        """The second stage, which combines the partial results of each result."""
        kernel, kept = self.kernel, range(self.schedule.kept)
        late = [*self._late_operands(), *(o.name for o in kernel.outputs)]
        merged = [Accumulator(reduce, self.names) for reduce in kernel.states]
        results, (block_width, rows, _) = FINISHES[self.schedule.finish]
        over, count = ("column", rows) if self.schedule.finish == "tile" else ("block", block_width)
        return {
            **(frame := self.frame(name, "finish")),
            "by": self.schedule.finish,
            "results": results,
            "rows": rows,
            "threads": block_width * rows,
            "start": [*frame["locate"], *self.start(True)],
            "index": self.schedule.index,
            "kept_coordinates": self.coordinates(0, self.schedule.kept - 1, "result", self.moving(late, kept)),
            "accumulators": [a.declare() for a in merged],
            "merges": [a.merge("piece * m + result") for a in merged],
            "combine": [a.combine(over, str(count)) for a in merged],
            "ending": self._epilogue(set()),
        }


class Reduction(Sums):
    """Fills row.cu.j2, column.cu.j2 and serial.cu.j2."""

    schedule: LineSchedule | ColumnSchedule | SerialSchedule

    @property
    def _vector_along_results(self) -> bool:
        """A column kernel's vector lies along its results, a row kernel's along what is summed."""
        return isinstance(self.schedule, ColumnSchedule) and self.schedule.vector > 1

    def slots(self) -> dict[str, Any]:
        """A block or a thread a result, or 32 results (or vectors of them) a block."""
        schedule, kernel = self.schedule, self.kernel
        kept, over = range(schedule.loops), range(schedule.loops, schedule.loops + schedule.inner)
        read = [o for o in kernel.operands if o.name in self.read_in_body]
        moving = [o for o in read if self.moving([o.name], over)]
        fixed = [o for o in read if o not in moving]
        in_loop = [*(o.name for o in moving), *(o.name for o in kernel.pointwise)]
        slots: dict[str, Any] = {"kept_reads": [], "reads": [], "declarations": [], "inner": [], "writes": []}
        slots["coordinates"] = self.coordinates(over.start, over.stop - 1, "at", self.moving(in_loop, over))
        slots["near_coordinates"] = self.coordinates(over.start, over.stop - 1, "at + i", self.moving(in_loop, over))
        slots |= {"held": [], "once": []}
        self._read_fixed(fixed, slots)
        for operand in moving:
            self._read_element(operand, self.offset(operand.name, range(over.stop)), slots, "reads")
        slots["inner"] += self.lets([let for let in kernel.body if let not in kernel.once])
        for output in kernel.pointwise:
            self._write_element(output, self.offset(output.name, range(over.stop)), slots)
        slots["inner"] += [a.add(self.printer.text(a.reduce.expr), self.printer.half) for a in self._accumulators()]
        self._add_iterations(slots)
        late = [] if schedule.split else [*(o.name for o in kernel.outputs), *self._late_operands()]
        names = [*(o.name for o in read), *(o.name for o in kernel.pointwise), *late]
        already = set() if isinstance(schedule, ColumnSchedule) else {o.name for o in fixed}
        return {
            **self.common(),
            **slots,
            **self._block(),
            "split": schedule.split,
            "kept_coordinates": self.coordinates(0, schedule.loops - 1, "result", self.moving(names, kept)),
            "accumulators": [a.declare() for a in self._accumulators()],
            "combine": self._combine(),
            "ending": self._end(already),
        }  # fmt: skip

    def _block(self) -> dict[str, Any]:
        """How the threads of a column kernel's block are divided."""
        schedule = self.schedule
        if not isinstance(schedule, ColumnSchedule):
            return {}
        values = schedule.vector * of_each_result(self.kernel)
        return {
            "rows": schedule.threads // schedule.block_width, "block_width": schedule.block_width,
            "unroll": schedule.unroll, "bounds": self.bounds(values),
        }  # fmt: skip

    def _read_fixed(self, fixed: Sequence[Operand], slots: dict[str, Any]) -> None:
        """What is the same for all elements of a result, before the loop over them; where a thread has a vector of
        results, in vectors."""
        kernel, kept = self.kernel, range(self.schedule.loops)
        once, each = self.needed(kernel.once), set(kernel.held)
        for operand in fixed:
            lines: dict[str, Any] = {"kept_reads": slots["kept_reads"], "inner": []}
            self._read_element(operand, self.offset(operand.name, kept), lines, "kept_reads")
            slots["inner"] += lines["inner"] if operand.name in each else []
            slots["once"] += lines["inner"] if operand.name in once else []
        vectors = {operand.name for operand in fixed if self._differs_in_vector([operand.name])}
        for let in kernel.once:
            if not (self.needed([let]) & vectors):
                slots["kept_reads"] += self.lets([let])
                continue
            vectors.add(let.name)
            slots["once"] += self.lets([let])
            if let.name in each:
                held, ctype = f"{self.stem(let.name)}_v", let.expr.dtype.ctype
                slots["held"].append(f"fg::Vec<{ctype}, {self.schedule.vector}> {held};")
                slots["once"].append(f"{held}[k] = {self.variable(let.name)};")
                slots["inner"].append(f"const {ctype} {self.variable(let.name)} = {held}[k];")

    def _differs_in_vector(self, names: Sequence[str]) -> bool:
        """Whether neighbouring results of a thread read different elements of one of these."""
        return self._vector_along_results and bool(self.moving(names, [self._fast()]))

    def _fast(self) -> int:
        """The loop along which the vector lies."""
        return self.schedule.loops - 1 if self._vector_along_results else self.schedule.loops + self.schedule.inner - 1

    def _read_element(self, operand: Operand, offset: str, slots: dict[str, Any], where: str) -> None:
        """Read for a whole vector at once where its elements lie side by side or are one element; else one by one."""
        name, vector = operand.name, self.schedule.vector
        access = self.schedule.placement(name).access
        if vector == 1:
            slots["inner" if where == "reads" else where] += self.read(operand, offset)
        elif access is Access.ROW:
            slots[where] += self.read_vector(operand, offset)
            slots["inner"].append(self.vector_element(operand))
        elif access is Access.STRIDED and self.moving([name], [self._fast()]):
            slots["inner"] += self.read(operand, self.element_offset(name, offset, self._fast()))
        else:
            slots[where] += self.read(operand, offset)

    def _write_element(self, output: Output, offset: str, slots: dict[str, Any]) -> None:
        name, vector = output.name, self.schedule.vector
        if vector > 1 and self.schedule.placement(name).access is Access.ROW:
            slots["declarations"].append(f"fg::Vec<{output.dtype.compute.ctype}, {vector}> {self.stem(name)}_v;")
            slots["inner"].append(f"{self.stem(name)}_v[k] = {self.printer.text(output.expr)};")
            slots["writes"] += self.write_vector(output, offset)
            return
        at = self.element_offset(name, offset, self._fast()) if vector > 1 else offset
        slots["inner"] += self.store(output, at)

    def _accumulators(self) -> list[Accumulator]:
        results = self.schedule.vector if self._vector_along_results else 1
        per_iteration = self.schedule.vector if isinstance(self.schedule, LineSchedule) else 0
        return [Accumulator(reduce, self.names, results, per_iteration) for reduce in self.kernel.states]

    def _combine(self) -> list[str]:
        """The states of a block's threads put together; a thread by itself has nothing to combine."""
        schedule = self.schedule
        if isinstance(schedule, LineSchedule):
            return super()._combine()
        if isinstance(schedule, SerialSchedule) or schedule.threads == schedule.block_width:
            return []
        count = f"{schedule.threads // schedule.block_width}"
        count += "" if schedule.block_width == TILE else f", {schedule.block_width}"
        return [a.combine("column", count) for a in self._accumulators()]

    def _end(self, already: set[str]) -> list[str]:
        """What the thread that holds the reductions does with them."""
        if self.schedule.split:
            return self._partials(f"{self.schedule.index}(blockIdx.y) * m + result")
        if not self._vector_along_results:
            return self._epilogue(already)
        slots = {"reads": list[str](), "each": list[str](), "writes": list[str]()}
        self._end_of_vector(slots)
        each = [f"for (int k = 0; k < {self.schedule.vector}; ++k) {{", *(f"  {x}" for x in slots["each"]), "}"]
        return [*slots["reads"], *(each if slots["each"] else []), *slots["writes"]]

    def _end_of_vector(self, slots: dict[str, list[str]]) -> None:
        """What follows the reductions, for each of a vector of results; vectors are read and written as such."""
        kernel, late = self.kernel, self._late_operands()
        sums = {a.name: a for a in self._accumulators() if a.is_sum}
        as_they_are = {
            o.name: sums[self.variable(o.expr.name)].variable for o in kernel.outputs
            if isinstance(o.expr, Ref) and self.variable(o.expr.name) in sums and self._in_vectors(o.name)
        }  # fmt: skip
        read = self.needed(item for item in kernel.ending if item.name not in as_they_are)
        wanted = [a for a in self._accumulators() if a.reduce.name in read or not a.is_sum]
        slots["each"] += [line for a in wanted for line in a.result(in_vector=True)]
        held = {a.reduce.name: a for a in self._accumulators()}
        slots["each"] += [held[of.name].partner(name, in_vector=True) for name, of in kernel.partners.items()]
        for operand in kernel.operands:
            if operand.name in late:
                self._read_late(operand, slots)
        slots["each"] += self.lets([item for item in kernel.ending if isinstance(item, Let)])
        for output in kernel.outputs:
            self._write_result(output, as_they_are.get(output.name), slots)

    def _in_vectors(self, name: str) -> bool:
        gathered = any(name == operand.name for operand in self.kernel.gathered)  # by a place that is not known before
        return self.schedule.placement(name).access is Access.ROW and not gathered

    def _read_late(self, operand: Operand, slots: dict[str, list[str]]) -> None:
        offset = self.offset(operand.name, range(self.schedule.kept))
        if self._in_vectors(operand.name):
            slots["reads"] += self.read_vector(operand, offset)
            slots["each"].append(self.vector_element(operand))
        else:
            slots["each"] += self.read(operand, self.element_offset(operand.name, offset, self._fast()))

    def _write_result(self, output: Output, sums: str | None, slots: dict[str, list[str]]) -> None:
        """A vector of results, in a variable of its own if it is not one of ``sums`` already."""
        name, offset = output.name, self.offset(output.name, range(self.schedule.kept))
        if not self._in_vectors(name):
            slots["each"] += self.store(output, self.element_offset(name, offset, self._fast()))
            return
        if sums is None:
            slots["reads"].append(f"fg::Vec<{output.dtype.compute.ctype}, {self.schedule.vector}> {self.stem(name)}_v;")
            slots["each"].append(f"{self.stem(name)}_v[k] = {self.printer.text(output.expr)};")
        store = f"fg::store_vector<{self.schedule.vector}>({{}}, {sums or f'{self.stem(name)}_v'});"
        slots["writes"] += self.access(store, name, offset, one_term=" + " in offset)

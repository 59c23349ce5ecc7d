"""The slots of kernels that add up: row, column and serial, and the second stage of a split sum."""

from __future__ import annotations

from typing import Any

from fusegen.core.ir import Operand, Output
from fusegen.fuse.schedule import Access
from fusegen.generate.params import parameters
from fusegen.generate.view import View
from fusegen.generate.wording import signature

FINISH_THREADS = 128


class Sums(View):
    """Fills row.cu.j2, column.cu.j2, serial.cu.j2 and finish.cu.j2."""

    @property
    def _lanes_are_results(self) -> bool:
        """A column kernel's vector lies along its results, a row kernel's along what is summed."""
        return self.schedule.template == "column" and self.schedule.vector > 1

    def reduction(self) -> dict[str, Any]:
        """A block or a thread a result, or 32 results (or vectors of them) a block."""
        schedule, kernel = self.schedule, self.kernel
        kept, over = range(schedule.loops), range(schedule.loops, schedule.loops + schedule.inner)
        read = [o for o in kernel.operands if o.name in self.read_in_body]
        moving = [o for o in read if self.moving([o.name], over)]
        fixed = [o for o in read if o not in moving]
        in_loop = [*(o.name for o in moving), *(o.name for o in kernel.pointwise)]
        view: dict[str, Any] = {"kept_reads": [], "reads": [], "declarations": [], "inner": [], "writes": []}
        view["coordinates"] = self.coordinates(over.start, over.stop - 1, "at", self.moving(in_loop, over))
        for operand in fixed:
            self._read_lane(operand, self.offset(operand.name, kept), view, "kept_reads")
        for operand in moving:
            self._read_lane(operand, self.offset(operand.name, range(over.stop)), view, "reads")
        view["inner"] += self.lets(kernel.body)
        for output in kernel.pointwise:
            self._write_lane(output, self.offset(output.name, range(over.stop)), view)
        lane = "_v[k]" if self._lanes_are_results else ""
        view["inner"] += [f"{r.name}{lane} += {self.printer.text(r.expr)};" for r in kernel.reduces]
        late = [] if schedule.split else [*(o.name for o in kernel.outputs), *self._late_operands()]
        names = [*(o.name for o in read), *(o.name for o in kernel.pointwise), *late]
        already = set() if schedule.template == "column" else {o.name for o in fixed}
        return {
            **self.common(),
            **view,
            "split": schedule.split,
            "rows": schedule.threads // 32,
            "kept_coordinates": self.coordinates(0, schedule.loops - 1, "result", self.moving(names, kept)),
            "accumulators": self._accumulators(),
            "sums": [f"{r.name}_v" if lane else r.name for r in kernel.reduces],
            "finish": self._end(already),
        }

    def _fast(self) -> int:
        """The loop along which the vector lies."""
        return self.schedule.loops - 1 if self._lanes_are_results else self.schedule.loops + self.schedule.inner - 1

    def _read_lane(self, operand: Operand, offset: str, view: dict[str, Any], where: str) -> None:
        """Read for all lanes at once where they lie side by side or share one element; else lane by lane."""
        name, vector = operand.name, self.schedule.vector
        access = self.schedule.placement(name).access
        if vector == 1:
            view["inner" if where == "reads" else where] += self.read(operand, offset)
        elif access is Access.ROW:
            view[where] += self.read_vector(operand, offset)
            view["inner"].append(self.lane(operand))
        elif access is Access.STRIDED and self.moving([name], [self._fast()]):
            view["inner"] += self.read(operand, self.lane_offset(name, offset, self._fast()))
        else:
            view[where] += self.read(operand, offset)

    def _write_lane(self, output: Output, offset: str, view: dict[str, Any]) -> None:
        name, vector = output.name, self.schedule.vector
        if vector > 1 and self.schedule.placement(name).access is Access.ROW:
            view["declarations"].append(f"fg::Vec<{output.dtype.compute.ctype}, {vector}> {name}_v;")
            view["inner"].append(f"{name}_v[k] = {self.printer.text(output.expr)};")
            view["writes"] += self.write_vector(output, offset)
            return
        at = self.lane_offset(name, offset, self._fast()) if vector > 1 else offset
        view["inner"] += self.store(output, at)

    def _late_operands(self) -> list[str]:
        needed = self.needed((*self.kernel.epilogue, *self.kernel.outputs))
        return [o.name for o in self.kernel.operands if o.name in needed]

    def _accumulators(self) -> list[str]:
        if self._lanes_are_results:
            width = self.schedule.vector
            return [f"fg::Vec<{r.expr.dtype.ctype}, {width}> {r.name}_v = {{}};" for r in self.kernel.reduces]
        return [f"{r.expr.dtype.ctype} {r.name} = 0;" for r in self.kernel.reduces]

    def _end(self, already: set[str]) -> list[str]:
        """What the thread that holds the sums does with them."""
        schedule = self.schedule
        if not self._lanes_are_results:
            position = f"{schedule.index}(blockIdx.y) * m + result"
            return self._partials(position) if schedule.split else self._epilogue(already)
        if schedule.split:
            position = f"{schedule.index}(blockIdx.y) * m + result"
            return [
                f"fg::store_vector<{schedule.vector}>({r.name}_partial + {position}, {r.name}_v);"
                for r in self.kernel.reduces
            ]
        lines = [f"const {r.expr.dtype.ctype} {r.name} = {r.name}_v[k];" for r in self.kernel.reduces]
        lines += self._epilogue(already, lanes=True)
        return [f"for (int k = 0; k < {schedule.vector}; ++k) {{", *(f"  {x}" for x in lines), "}"]

    def _partials(self, position: str) -> list[str]:
        return [f"{r.name}_partial[{position}] = {r.name};" for r in self.kernel.reduces]

    def _epilogue(self, already: set[str], lanes: bool = False) -> list[str]:
        """What follows the reductions, for one result; with ``lanes``, for the k-th of a vector of results."""
        kept = range(self.schedule.kept)

        def place(name: str) -> str:
            offset = self.offset(name, kept)
            return self.lane_offset(name, offset, self._fast()) if lanes else offset

        late = [o for o in self.kernel.operands if o.name in self._late_operands() and o.name not in already]
        lines = [line for o in late for line in self.read(o, place(o.name))]
        lines += self.lets(self.kernel.epilogue)
        for output in self.kernel.outputs:
            lines += self.store(output, place(output.name))
        return lines

    def finish(self, name: str) -> dict[str, Any]:
        """The second stage: the pieces of each result added up."""
        kernel, kept = self.kernel, range(self.schedule.kept)
        late = [*self._late_operands(), *(o.name for o in kernel.outputs)]
        return {
            "signature": signature(name, parameters(kernel, self.schedule, "finish")),
            "threads": FINISH_THREADS,
            "wide": self.schedule.wide_finish,
            "index": self.schedule.index,
            "kept_coordinates": self.coordinates(0, self.schedule.kept - 1, "result", self.moving(late, kept)),
            "accumulators": [f"{r.expr.dtype.ctype} {r.name} = 0;" for r in kernel.reduces],
            "sums": [r.name for r in kernel.reduces],
            "finish": self._epilogue(set()),
        }

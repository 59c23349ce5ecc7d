"""The slots of kernels that visit every element once: elementwise, full reduction, tiled transpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fusegen.core.ir import Operand, Output, Place
from fusegen.declare.table import draws
from fusegen.fuse.schedule import Access, ElementwiseSchedule, FullReductionSchedule, TransposeSchedule
from fusegen.generate.params import needs_coordinates
from fusegen.generate.slots import SlotFiller
from fusegen.generate.sums import Sums


class _Vectors(SlotFiller):
    """Vectors of neighbouring elements: how they are read, computed and written."""

    schedule: ElementwiseSchedule | FullReductionSchedule

    def _vector(self) -> dict[str, Any]:
        """Slots, and what goes on to the vector's next element ("next")."""
        if not self.schedule.exact:  # elements behind the last one read as zero
            self.printer = replace(self.printer, inside="at + k < n")
        slots = self._vector_slots()
        self.printer = replace(self.printer, inside="")
        return slots

    def _vector_slots(self) -> dict[str, Any]:
        slots: dict[str, Any] = {
            "coordinates": [], "reads": [], "declarations": [], "inner": [], "writes": [], "next": [],
        }  # fmt: skip
        offset_names = [
            p.name for p in self.schedule.placements if p.access in (Access.ROW, Access.SPLAT, Access.STRIDED)
        ]
        last = self.schedule.loops - 1
        used = self.moving(offset_names, range(last + 1))
        if offset_names and self.schedule.whole_rows:
            slots["coordinates"] = self.coordinates(0, last, "at", used)
            if last in used and last > 0 and draws(self.kernel.items):
                # Four neighbours share the work for their numbers, if it is known which of the four is which.
                slots["coordinates"].append(f"fg::assume_multiple<{self.schedule.vector}>(j{last});")
        elif used:  # what is read may be at one place for all
            slots["coordinates"] = self.coordinates(0, last, "at", set(range(min(used), last + 1)), constant=False)
        whole = bool(self.kernel.reduces)
        for operand in self.kernel.operands:
            if not whole or operand.name in self.read_in_body:
                self._vector_read(operand, slots)
        slots["inner"] += self.lets(self.kernel.body)
        for output in self.kernel.pointwise if whole else self.kernel.outputs:
            self._vector_write(output, slots)
        if used and not self.schedule.whole_rows:
            slots["next"] = self.next_coordinates(last, used, "true" if self.schedule.exact else "at + k < n - 1")
        return slots

    def _vector_read(self, operand: Operand, slots: dict[str, Any]) -> None:
        name, vector = operand.name, self.schedule.vector
        access = self.schedule.placement(name).access
        everywhere = range(self.schedule.loops)
        if access is Access.SINGLE:
            slots["reads"] += self.read(operand, "")
        elif access is Access.SPLAT or name in self._read_for_vectors():
            slots["reads"] += self.read(operand, self.offset(name, everywhere))
        elif access is Access.STRIDED:
            slots["inner"] += self.read(operand, self._strided_offset(name))
        else:
            if access is Access.ROW:
                slots["reads"] += self.read_vector(operand, self.offset(name, everywhere))
            elif access is Access.DENSE and self.schedule.exact:
                slots["reads"] += self.read_vector(operand, "at")
            else:
                kind = "_unaligned" if access is Access.UNALIGNED else ""
                load = f"fg::load{kind}<{vector}>({self.names.pointer(name)}, at, n)"
                slots["reads"].append(f"const auto {self.stem(name)}_v = {load};")
            slots["inner"].append(self.vector_element(operand))

    def _read_for_vectors(self) -> set[str]:
        """Where places stand that vectors are read at: the same for a whole vector."""
        vectors = [o for o in self.kernel.gathered if self.schedule.placement(o.name).access is Access.ROW]
        return {ref.name for operand in vectors for ref in operand.reads if isinstance(ref, Place)}

    def _strided_offset(self, name: str) -> str:
        """Element k of the vector; where rows are whole the fast coordinate is that of the vector's first element."""
        offset = self.offset(name, range(self.schedule.loops))
        return self.element_offset(name, offset, self.schedule.loops - 1) if self.schedule.whole_rows else offset

    def _vector_write(self, output: Output, slots: dict[str, Any]) -> None:
        name, vector, value = output.name, self.schedule.vector, self.printer.text(output.expr)
        access = self.schedule.placement(name).access
        if access is Access.STRIDED:
            lines = self.store(output, self._strided_offset(name))
            lines[-1] = lines[-1] if self.schedule.whole_rows else f"if (at + k < n) {lines[-1]}"
            slots["inner"] += lines
            return
        slots["declarations"].append(f"fg::Vec<{output.dtype.compute.ctype}, {vector}> {self.stem(name)}_v;")
        slots["inner"].append(f"{self.stem(name)}_v[k] = {value};")
        if access is Access.ROW:
            slots["writes"] += self.write_vector(output, self.offset(name, range(self.schedule.loops)))
        elif access is Access.DENSE and self.schedule.exact:
            slots["writes"] += self.write_vector(output, "at")
        else:
            kind = "_unaligned" if access is Access.UNALIGNED else ""
            slots["writes"].append(
                f"fg::store{kind}<{vector}>({self.names.pointer(name)}, at, n, {self.stem(name)}_v);"
            )


class Elementwise(_Vectors):
    """Fills elementwise.cu.j2."""

    schedule: ElementwiseSchedule

    def slots(self) -> dict[str, Any]:
        """A vector of elements a thread, or one."""
        if self.schedule.vector == 1:
            return {**self.common(), **self._scalar()}
        slots = self._vector()
        slots["inner"] += slots.pop("next")
        return {**self.common(), **slots, "vectors_per_thread": 1}

    def _scalar(self) -> dict[str, Any]:
        """Single elements: one a thread, or several that lie a block apart."""
        schedule = self.schedule
        names = [*(o.name for o in self.kernel.operands), *(o.name for o in self.kernel.outputs)]
        at = {name: self._scalar_offset(name) for name in names}
        apart = schedule.vectors_per_thread > 1
        singles = [o for o in self.kernel.operands if apart and schedule.placement(o.name).access is Access.SINGLE]
        coordinates = []
        if needs_coordinates(schedule):
            names = [p.name for p in schedule.placements if p.access is Access.STRIDED]
            last = schedule.loops - 1
            coordinates = self.coordinates(0, last, "at", self.moving(names, range(last + 1)))
        reads = [line for o in singles for line in self.read(o, at[o.name])]
        inner = [line for o in self.kernel.operands if o not in singles for line in self.read(o, at[o.name])]
        inner += self.lets(self.kernel.body)
        for output in self.kernel.outputs:
            inner += self.store(output, at[output.name])
        slots = {"coordinates": coordinates, "reads": reads, "declarations": [], "inner": inner, "writes": []}
        return {**slots, "vectors_per_thread": schedule.vectors_per_thread}

    def _scalar_offset(self, name: str) -> str:
        access = self.schedule.placement(name).access
        if access is Access.SINGLE:
            return ""
        if access in (Access.DENSE, Access.UNALIGNED):
            return "at"
        return self.offset(name, range(self.schedule.loops))


class FullReduction(_Vectors, Sums):
    """Fills full_reduction.cu.j2."""

    schedule: FullReductionSchedule

    def slots(self) -> dict[str, Any]:
        """Every element once, in a loop, with sums on the way."""
        kernel, schedule, slots = self.kernel, self.schedule, self._vector()
        singles = [o for o in kernel.operands if schedule.placement(o.name).access is Access.SINGLE]
        lines = [line for o in singles if o.name in self.read_in_body for line in self.read(o, "")]
        slots["reads"] = [line for line in slots["reads"] if line not in lines]
        inside = "" if schedule.exact else "if (at + k < n) "
        half = self.printer.half
        slots["inner"] += [inside + a.add(self.printer.text(a.reduce.expr), half) for a in self._accumulators()]
        slots["inner"] += slots.pop("next")
        self._add_iterations(slots)
        read = {o.name for o in singles if o.name in self.read_in_body}
        return {
            **self.common(),
            **slots,
            "singles": lines,
            "accumulators": [a.declare() for a in self._accumulators()],
            "combine": self._combine(),
            "ending": self._partials("block" if schedule.table else "blockIdx.x")
            if schedule.split
            else self._epilogue(read),
        }


class TiledTranspose(SlotFiller):
    """Fills tiled_transpose.cu.j2."""

    schedule: TransposeSchedule

    def slots(self) -> dict[str, Any]:
        """Tiles through shared memory."""
        schedule = self.schedule
        outer = schedule.loops - 2
        names = [p.name for p in schedule.placements]
        tiles, inner = [], []
        for operand in self.kernel.operands:
            ctype = operand.dtype.compute.ctype
            if schedule.placement(operand.name).access is Access.TRANSPOSED:
                offset = self._tile_offset(operand.name, outer)
                tiles.append({"name": self.stem(operand.name), "ctype": ctype, "offset": offset})
                tile = f"{self.stem(operand.name)}_tile[threadIdx.x][line]"
                inner.append(f"const {ctype} {self.variable(operand.name)} = {tile};")
            else:
                inner += self.read(operand, self._tile_offset(operand.name, outer))
        inner += self.lets(self.kernel.body)
        for output in self.kernel.outputs:
            inner += self.store(output, self._tile_offset(output.name, outer))
        coordinates = (
            self.coordinates(0, outer - 1, "rest", self.moving(names, range(outer)), "matrix") if outer else []
        )
        return {**self.common(), "loops": schedule.loops, "tiles": tiles, "inner": inner, "coordinates": coordinates}

    def _tile_offset(self, name: str, outer: int) -> str:
        moves = self.schedule.placement(name).moves
        terms = [self.offset(name, range(outer))]
        for loop, at in ((outer, "row"), (outer + 1, "col")):
            if moves[loop] in ("1", "s"):
                terms.append(at if moves[loop] == "1" else f"{at} * {self.stem(name)}_stride{loop}")
        return " + ".join(term for term in terms if term)

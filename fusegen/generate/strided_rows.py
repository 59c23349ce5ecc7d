"""The slots of kernels whose rows lie side by side: what a thread keeps of its results, and the traversals of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from fusegen.core.ir import Let, Operand, Output, Reduce, Ref, refs
from fusegen.core.monoids import BY_KIND
from fusegen.fuse.kernel import Gathered, Position
from fusegen.fuse.row_kernel import Stage, picked_by
from fusegen.fuse.schedule import Access
from fusegen.fuse.strided_rows import StridedRowKernel, StridedRowSchedule, resident, streams_of
from fusegen.generate.accumulators import Accumulator
from fusegen.generate.slots import SlotFiller
from fusegen.generate.wording import WIDTH


class _Value(NamedTuple):
    """What each of a thread's results has one of: its variable, or where there are several what their vector's name
    begins with."""

    variable: str
    stem: str


@dataclass
class StridedRows(SlotFiller):
    """Fills strided_rows.cu.j2. A thread's results are numbered by k. Where there are several, each value that a
    thread has for a result is a vector, and expressions read its k-th element."""

    kernel: StridedRowKernel
    schedule: StridedRowSchedule
    indent: ClassVar[int] = len("        ")

    def __post_init__(self) -> None:
        super().__post_init__()
        plan, kernel = self.schedule, self.kernel
        self.sites = 0
        # Behind the last result threads have no elements, and sums of none.
        self.guards = [] if plan.exact or not (plan.persistent or plan.rows > 1) else ["end > 0"]
        self.printer = replace(self.printer, inside=" && ".join(self.guards))
        self.kept_loops, self.fast = range(plan.loops), plan.loops - 1
        self.over_loops = range(plan.loops, plan.loops + plan.inner)
        self.streams = streams_of(kernel, plan)
        own = [*kernel.before, *(let for stage in kernel.stages for let in stage.after), *kernel.reduces]
        varying = [o for o in self._fixed() if self._varies(o)]
        self.in_vectors = {thing.name for thing in (*own, *varying)} if plan.vector > 1 else set()

    def variable(self, name: str) -> str:
        return f"{self.stem(name)}_v[k]" if name in self.in_vectors else super().variable(name)

    def _fixed(self) -> list[Operand]:
        """Operands that are the same for all elements of a result."""
        return [o for o in self.kernel.operands if not self.moving([o.name], self.over_loops)]

    def _varies(self, operand: Operand) -> bool:
        """Whether neighbouring results have different elements of it."""
        return bool(self.moving([operand.name], [self.fast]))

    def slots(self) -> dict[str, Any]:
        """All slots."""
        kernel, plan = self.kernel, self.schedule
        things = [o.name for o in (*kernel.operands, *kernel.written)]
        stages = [self._stage(stage) for stage in kernel.stages]
        last = self._traversal(kernel.body, kernel.pointwise, last=True) if kernel.pointwise else None
        if last:
            for output in kernel.pointwise:
                self._write(output, self.offset(output.name, range(plan.loops + plan.inner)), last)
        row_end = ["__syncthreads();  // before the next results overwrite what threads exchange"]
        singles = [o for o in self._fixed() if not self.moving([o.name], self.kept_loops)]
        by_row = [o for o in self._fixed() if o not in singles]
        opening = self._fixed_reads(by_row)
        return {
            **self.common(),
            "bounds": f"{plan.threads}, {resident(kernel, plan)}",
            "block_width": plan.block_width, "rows": plan.rows, "vectors_per_thread": plan.vectors_per_thread,
            "persistent": plan.persistent, "exact": plan.exact,
            "whole": plan.filled,
            "singles": [line for o in singles for line in self.read(o, "")],
            "totals": [a.declare() for a in self._totals()],
            "kept_coordinates": self.coordinates(0, self.fast, "result", self.moving(things, self.kept_loops)),
            "opening": opening,
            "raw": self._raw(),
            "before": self._lets(kernel.before),
            "stages": stages,
            "last": last,
            "end_of_result": self._end(),
            "writer": " && ".join([*(["threadIdx.y == 0"] if plan.rows > 1 else []), *self.guards]),
            "row_end": row_end if plan.persistent and plan.rows > 1 and self.sites < 2 else [],
            "sums": self._sums(),
            "partials": self._left(),
        }  # fmt: skip

    # -- values that a thread has once a result -------------------------------------------------------------------

    def _of(self, name: str) -> _Value:
        """What goes by a name of the op's."""
        return _Value(self.names.variable(name), self.stem(name))

    def _intermediate(self, reduce: Reduce, what: str) -> _Value:
        """What is needed on the way to a reduction."""
        name = f"{self.stem(reduce.name)}_{what}"
        return _Value(name, name)

    def _kept(self, kept: _Value) -> str:
        """The value of one result."""
        return f"{kept.stem}_v[k]" if self.schedule.vector > 1 else kept.variable

    def _variable(self, ctype: str, kept: _Value, start: str = "") -> str:
        """The declaration of a value that changes."""
        vector = self.schedule.vector
        if vector > 1:
            return f"fg::Vec<{ctype}, {vector}> {kept.stem}_v{' = {}' if start else ''};"
        return f"{ctype} {kept.variable}{f' = {start}' if start else ''};"

    def _define(self, slots: dict[str, list[str]], ctype: str, kept: _Value, value: str) -> None:
        """One that does not change."""
        if self.schedule.vector == 1:
            declared = f"const {ctype} {kept.variable} ="
        else:
            slots["declarations"].append(self._variable(ctype, kept))
            declared = f"{self._kept(kept)} ="
        slots["each"] += self._assignment(f"{declared} {value};")

    def _assignment(self, line: str) -> list[str]:
        """The line, or where it is too long what is assigned in a line of its own."""
        if len(line) + self.indent <= WIDTH or "= " not in line:
            return [line]
        target, _, value = line.partition("= ")
        return [f"{target}=", f"    {value}"]

    def _lets(self, lets: Sequence[Let], slots: dict[str, list[str]] | None = None) -> dict[str, list[str]]:
        """What follows from what is known of a result."""
        slots = {"declarations": [], "each": [], "writes": []} if slots is None else slots
        for let in lets:
            self._define(slots, let.expr.dtype.ctype, self._of(let.name), self.printer.text(let.expr))
        return slots

    def _fixed_reads(self, operands: Sequence[Operand]) -> dict[str, list[str]]:
        slots: dict[str, list[str]] = {"declarations": [], "each": [], "writes": []}
        for o in operands:
            offset = self.offset(o.name, self.kept_loops)
            if self.schedule.vector == 1 or not self._varies(o):
                slots["declarations"] += self.read(o, offset)
            elif self.schedule.placement(o.name).access is Access.ROW:
                slots["declarations"] += self.read_vector(o, offset)
            else:
                at = self.element_offset(o.name, offset, self.fast)
                load = self.gathered(o, self.places(o)) if isinstance(o, Gathered) else "fg::load({})"
                value = at if isinstance(o, Position) else load.format(self.pointer(o.name, at))
                self._define(slots, o.dtype.compute.ctype, self._of(o.name), value)
        return slots

    # -- elements -------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        return "part" if self.schedule.rows > 1 else "at"

    def _raw(self) -> dict[str, list[str]]:
        """Everything is read before anything is used."""
        plan, slots = self.schedule, {"declarations": list[str](), "reads": list[str]()}
        slots["reads"] += self._coordinates([o.name for o in self.streams])
        for o in self.streams:
            name, ctype = self.stem(o.name), o.dtype.ctype
            element = f"fg::Raw<{ctype}, {plan.vector}>" if plan.vector > 1 else ctype
            slots["declarations"].append(f"{element} {name}_row[{plan.vectors_per_thread}];")
            load = f"fg::load_raw<{plan.vector}>({{}})" if plan.vector > 1 else "*({})"
            offset = self.offset(o.name, range(self.over_loops.stop))
            slots["reads"] += self.access(f"{name}_row[{self._place}] = {load};", o.name, offset)
        return slots

    def _coordinates(self, names: Sequence[str]) -> list[str]:
        used = self.moving(names, self.over_loops)
        return self.coordinates(self.over_loops.start, self.over_loops.stop - 1, "at", used)

    def _traversal(
        self, lets: Sequence[Let], items: Sequence[Reduce | Output], last: bool = False
    ) -> dict[str, Any]:  # fmt: skip
        """What the lets and items read at an element, and the lets. Behind the last traversal nothing needs them."""
        lets = self.still_needed(lets, items)
        needed = self.needed((*(let for let in lets if not self.is_known(let)), *items))
        slots: dict[str, Any] = {"reads": [], "declarations": [], "each": [], "writes": []}
        from_memory = [item.name for item in items if isinstance(item, Output)]
        for o in self.kernel.operands:
            if o.name not in needed or not self.moving([o.name], self.over_loops):
                continue
            offset = self.offset(o.name, range(self.over_loops.stop))
            if o in self.streams and self.schedule.vector > 1:
                slots["reads"].append(
                    f"const auto {self.stem(o.name)}_v = fg::widen({self.stem(o.name)}_row[{self._place}]);"
                )
                slots["each"].append(self.vector_element(o))
            elif o in self.streams:
                declared = f"const {o.dtype.compute.ctype} {self.variable(o.name)}"
                slots["each"].append(f"{declared} = fg::load(&{self.stem(o.name)}_row[{self._place}]);")
            else:
                from_memory.append(o.name)
                varying = self.schedule.vector > 1 and self._varies(o)
                at = self.element_offset(o.name, offset, self.fast) if varying else offset
                # Behind what tells its place, which may be an element of a stream.
                late = varying or isinstance(o, Gathered)
                slots["each" if late else "reads"] += self.read(o, at)
        coordinates = self._coordinates(from_memory)
        slots["reads"], slots["located"] = coordinates + slots["reads"], bool(coordinates)
        element = f"_row[{self._place}]{'[k]' if self.schedule.vector > 1 else ''}"
        slots["each"] += self.element_lets(lets, lambda stem: f"{stem}{element}", not last)
        slots["kept"] = [] if last else [self.declare_row(let) for let in self.keep(lets)]
        return slots

    # -- reductions -----------------------------------------------------------------------------------------------

    def _stage(self, stage: Stage) -> dict[str, Any]:
        """The traversal of the elements; coupled reductions have another one, when their mean or maximum is known."""
        partners = {r.name: self.kernel.partners[r.name] for r in stage.reduces if r.name in self.kernel.partners}
        own = [r for r in stage.reduces if r.name not in partners]
        coupled = [r for r in own if BY_KIND[r.kind].partner]
        slots: dict[str, Any] = {"declarations": [], "settle": {"declarations": [], "each": [], "writes": []}}
        picks = {r.name: pick for r in own if (pick := self._pick(r))}
        slots["traversal"] = traversal = self._traversal(stage.lets, [r for r in own if r.name not in picks])
        slots["again"] = self._traversal(stage.lets, coupled) if coupled else None
        slots["declarations"] += traversal["kept"]
        slots["exchange"], slots["combine"] = [], []
        results: dict[str, list[str]] = {"declarations": [], "each": [], "writes": []}
        slots["results"] = results
        late: dict[tuple[str, str], list[str]] = {}  # what is exchanged at the end, by how and of which type
        for reduce in own:
            if reduce.name in picks:
                results["declarations"] += [self._variable(reduce.expr.dtype.ctype, self._of(reduce.name), "0")]
                results["each"] += picks[reduce.name]
                continue
            partner = next((name for name, of in partners.items() if of is reduce), None)
            if reduce.kind == "squared_deviation":
                self._deviation(reduce, partner, slots, late)
            elif reduce.kind == "sum_exp":
                self._exponentials(reduce, partner, slots, late)
            else:
                accumulator = Accumulator(reduce, self.names, self.schedule.vector)
                slots["declarations"].append(accumulator.declare())
                traversal["each"] += self._assignment(accumulator.add(self.printer.text(reduce.expr)))
                how = "sum" if accumulator.is_sum else "merge"
                late.setdefault((how, accumulator.state_type), []).append(accumulator.variable)
                if not accumulator.is_sum:
                    state = self._state(reduce)
                    self._define(results, accumulator.ctype, self._of(reduce.name), f"{state}.result()")
        slots["combine"] = [line for (how, _), names in late.items() for line in self._exchange(how, names)]
        self._lets(stage.after, results)
        return slots

    def _pick(self, reduce: Reduce) -> list[str] | None:
        """A sum with one term, ``where(index == place, x, 0)``, as one access, which finds in a cache what was read."""
        picked = picked_by(reduce, self.kernel)
        if picked is None or self.schedule.rows > 1 or self.schedule.inner != 1:
            return None
        place, operand = picked
        fast, known = self.over_loops.start, {o.name for o in self._fixed()}
        if operand not in self.streams or any(ref.name not in known for ref in refs(place)):
            return None
        start, name = self.stem(reduce.name), operand.name
        at, where, has, index = f"{start}_at", f"{start}_place", f"has_{start}", self.schedule.index
        step = {"1": at, "s": f"{at} * {self.stem(name)}_stride{fast}"}[self.schedule.placement(name).moves[fast]]
        offset = " + ".join(term for term in (self.offset(name, self.kept_loops), step) if term)
        offset = self.element_offset(name, offset, self.fast) if self.schedule.vector > 1 else offset
        return [
            f"const int64_t {where} = {self.printer.text(place)};",
            f"const bool {has} = 0 <= {where} && {where} < n;",
            f"const {index} {at} = {has} ? {index}({where}) : 0;",
            *self.access(
                f"if ({has}) {self._kept(self._of(reduce.name))} = fg::load({{}});",
                name,
                offset,
                called=f"{start}_offset",
            ),
        ]

    def _state(self, reduce: Reduce) -> str:
        return f"{self.stem(reduce.name)}_state{'[k]' if self.schedule.vector > 1 else ''}"

    def _deviation(
        self, reduce: Reduce, partner: str | None, slots: dict[str, Any], late: dict[tuple[str, str], list[str]]
    ) -> None:
        """The sum, then squared deviations from the mean. Where more than half types depend on it, deviations also say
        what rounding took off the mean (a compensation)."""
        exact, ctype, text = not self.printer.half, reduce.expr.dtype.ctype, self.printer.text(reduce.expr)
        total = self._of(partner) if partner else self._intermediate(reduce, "total")
        squares, mean, compensation = (
            self._of(reduce.name),
            self._intermediate(reduce, "mean"),
            self._intermediate(reduce, "rest"),
        )
        slots["declarations"] += [self._variable(ctype, total, "0"), self._variable(ctype, squares, "0")]
        slots["declarations"] += [self._variable(ctype, compensation, "0")] if exact else []
        slots["traversal"]["each"] += self._assignment(f"{self._kept(total)} += {text};")
        slots["exchange"] += self._exchange("sum", [self._whole(total)])
        self._define(slots["settle"], ctype, mean, f"fg::divide_by_count({self._kept(total)}, {ctype}(n))")
        centered = f"{squares.stem}_away"
        slots["again"]["each"] += [
            *self._assignment(f"const {ctype} {centered} = {self.printer.term(reduce.expr)} - {self._kept(mean)};"),
            f"{self._kept(squares)} += {centered} * {centered};",
            *([f"{self._kept(compensation)} += {centered};"] if exact else []),
        ]
        late.setdefault(("sum", ctype), []).extend(map(self._whole, [squares, compensation] if exact else [squares]))
        if exact:
            share = f"fg::divide_by_count({self._kept(compensation)}, {ctype}(n))"
            slots["results"]["each"] += [
                f"{self._kept(squares)} -= {self._kept(compensation)} * {share};",
                f"{self._kept(total)} += {self._kept(compensation)};",
            ]

    def _exponentials(
        self, reduce: Reduce, partner: str | None, slots: dict[str, Any], late: dict[tuple[str, str], list[str]]
    ) -> None:
        """The maximum, then the sum of exponentials relative to it."""
        accumulator, state, text = (
            Accumulator(reduce, self.names, self.schedule.vector), self._state(reduce), self.printer.text(reduce.expr)
        )  # fmt: skip
        slots["declarations"].append(accumulator.declare())
        slots["traversal"]["each"].append(f"{state}.see({text});")
        slots["exchange"] += self._exchange("maximum", [f"{accumulator.variable}.top"])
        slots["settle"]["each"].append(f"{state}.settle();")
        slots["again"]["each"].append(f"{state}.{'take_fast' if self.printer.half else 'take'}({text});")
        late.setdefault(("sum", accumulator.ctype), []).append(f"{accumulator.variable}.sum")
        self._define(slots["results"], accumulator.ctype, self._of(reduce.name), f"{state}.result()")
        if partner:
            self._define(slots["results"], accumulator.ctype, self._of(partner), f"{state}.partner()")

    def _whole(self, kept: _Value) -> str:
        """The value of all the thread's results."""
        return f"{kept.stem}_v" if self.schedule.vector > 1 else kept.variable

    def _exchange(self, how: str, names: Sequence[str]) -> list[str]:
        """What the threads that share a result have, put together, in all of them."""
        plan = self.schedule
        if plan.rows == 1:
            return []
        values = []
        for name in names:
            base, dot, field = name.partition(".")
            values += [f"{base}[{k}]{dot}{field}" for k in range(plan.vector)] if plan.vector > 1 else [name]
        start = f"fg::columns_{how}<{plan.rows}, {plan.block_width}, {self.sites}>("
        self.sites += 1
        lines = [start]
        for position, value in enumerate(values):
            text = f"{value}{');' if position == len(values) - 1 else ','}"
            if position and len(lines[-1]) + 1 + len(text) + self.indent > WIDTH:
                lines.append(" " * len(start) + text)
            else:
                lines[-1] += (" " if position else "") + text
        return lines

    # -- results --------------------------------------------------------------------------------------------------

    def _write(self, output: Output, offset: str, slots: dict[str, Any]) -> None:
        name, vector, expr = output.name, self.schedule.vector, output.expr
        if vector > 1 and self.schedule.placement(name).access is Access.ROW:
            if not (isinstance(expr, Ref) and expr.name == name and name in self.in_vectors):  # else it is one already
                slots["declarations"].append(f"fg::Vec<{output.dtype.compute.ctype}, {vector}> {self.stem(name)}_v;")
                slots["each"] += self._assignment(f"{self.stem(name)}_v[k] = {self.printer.text(expr)};")
            slots["writes"] += self.write_vector(output, offset)
        else:
            slots["each"] += self.store(output, self.element_offset(name, offset, self.fast) if vector > 1 else offset)

    def _end(self) -> dict[str, list[str]] | None:
        """What is done once a result: its own outputs, and its share in sums over all results."""
        kernel, slots = self.kernel, {"declarations": list[str](), "each": list[str](), "writes": list[str]()}
        if not (kernel.outputs or kernel.totals):
            return None
        for output in kernel.outputs:
            self._write(output, self.offset(output.name, self.kept_loops), slots)
        slots["each"] += self.lets(kernel.summing)
        for accumulator in self._totals():
            slots["each"] += self._assignment(accumulator.add(self.printer.text(accumulator.reduce.expr)))
        for accumulator in self._totals():
            before, behind = accumulator.iteration()
            slots["declarations"] += before
            slots["writes"] += behind
        return slots

    def _totals(self) -> list[Accumulator]:
        return [Accumulator(reduce, self.names, per_iteration=self.schedule.vector) for reduce in self.kernel.totals]

    def _sums(self) -> list[str]:
        """The sums of the block's threads."""
        lines, by_type = [], dict[str, list[str]]()
        for a in self._totals():
            lines += [f"{a.ctype} {a.name} = {a.stem}_chains.total();"] if a.in_chains else []
            by_type.setdefault(a.ctype, []).append(a.name)
        for names in by_type.values():
            site, plan = self.sites, self.schedule
            self.sites += 1
            lines.append(f"fg::row_sum<{plan.block_width}, {plan.rows}, {site}>({', '.join(names)});")
        return lines

    def _left(self) -> list[str]:
        """This block's share of the sums, left for a later kernel."""
        pairs = zip(self.kernel.totals, self.kernel.partials, strict=True)
        return [f"{self.names.pointer(p.name)}[blockIdx.x] = {self._of(r.name).variable};" for r, p in pairs]

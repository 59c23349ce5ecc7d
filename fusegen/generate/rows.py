"""The slots of row kernels: what is read ahead, the stages of a row, and the sums over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fusegen.core.ir import Let, Operand, Output, Reduce, Ref, Tensorlike, refs
from fusegen.fuse.kernel import Gathered, Position
from fusegen.fuse.row_kernel import RowKernel, Stage, picked_by
from fusegen.fuse.schedule import Access
from fusegen.generate.accumulators import Accumulator
from fusegen.generate.names import Names
from fusegen.generate.row_reads import RowReads
from fusegen.generate.segments import Segments


@dataclass
class Rows(RowReads):
    """Fills rows.cu.j2."""

    kernel: RowKernel
    indent: ClassVar[int] = len("          ")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sites = 0
        if self.schedule.rows > 1:  # behind the last row threads have no elements, and sums of none
            self.printer = replace(self.printer, inside="end > 0")
        self.segments = Segments(self.kernel, self.schedule, self.names, self.printer.text)

    def slots(self) -> dict[str, Any]:
        """All slots."""
        kernel, plan = self.kernel, self.schedule
        read = self.needed(kernel.reducing) if plan.split else {o.name for o in kernel.operands}
        operands = [o for o in kernel.operands if o.name in read]
        written = () if plan.split else kernel.written
        fixed = [o for o in operands if not self.moving([o.name], self.over_loops)]
        singles = [o for o in fixed if not self.moving([o.name], self.kept_loops)]
        by_row = [o for o in fixed if o not in singles]
        stages = [self._stage(stage) for stage in kernel.stages]
        loaded = "next" if plan.prefetch else "row"
        every: list[Tensorlike] = [o for o in (*operands, *written) if o not in (by_row if plan.prefetch else ())]
        return {
            **self.common(),
            "bounds": self._bounds(),
            "cluster": plan.cluster, "row_tiles": kernel.row_tiles, "rows": plan.rows, "persistent": plan.persistent,
            "prefetch": plan.prefetch,
            "staged": plan.staged, "chunked": plan.chunked, "split": plan.split, "reused": plan.reused,
            "vectors_per_thread": plan.vectors_per_thread, "exact": plan.exact,
            "per_block": plan.threads * plan.vectors_per_thread * plan.vector,
            "slices": plan.slices, "until": "until" if plan.slices else "m",
            "slice_coordinates": self.coordinates(
                0, plan.loops - 1, "until - slice", self.moving([o.name for o in self.shared], range(plan.slices))
            ),
            "first": self._first("blockIdx.x"), "stride": self._first("gridDim.x"),
            "singles": [line for o in singles for line in self.read(o, "")],
            "columns": [line for r in kernel.columns for line in self._column(r).declare(plan.vectors_per_thread)],
            "parts": self.segments.declare(),
            "load_coordinates": self._row_coordinates([*by_row, *self.ahead] if plan.prefetch else every, loaded),
            "body_coordinates": self._row_coordinates(every, "row") if plan.prefetch else [],
            "row_reads": self._row_reads(by_row),
            "ahead": [f"{o.dtype.compute.ctype} {self.stem(o.name)}_next;" for o in by_row] if plan.prefetch else [],
            "arrivals": [
                f"const {o.dtype.compute.ctype} {self.variable(o.name)} = {self.stem(o.name)}_next;" for o in by_row
            ] if plan.prefetch else [],
            "head": self._head(),
            "ends": self._ends(self.ahead, plan.prefetch),
            "shared_ends": self._ends(self.shared),
            "raw": self._raw(self.ahead, plan.prefetch, plan.staged) if self.ahead else None,
            "shared": self._raw(self.shared, False, plan.dynamic > 0) if self.shared else None,
            "unaligned": plan.unaligned,
            "before": self.lets([let for let in kernel.before if not plan.split or let in kernel.reducing]),
            "stages": stages,
            "last": self._last(),
            "segments": self.segments.slots(),
            "ending": self._ending(),
            "ending_condition": self._writer(),
            "row_end": self._row_end(),
            "column_combine": self._column_combine(),
            "edge_ends": [
                f"{self._partial(r)}[group * n + edge] = {self.stem(r.name)}_edge;" for r in kernel.columns
            ] if plan.unaligned else [],
            "column_ends": [line for r in kernel.columns for line in self._column(r).store(self._partial(r))],
            "group": self._group("blockIdx.x"),
        }  # fmt: skip

    def _row_coordinates(self, things: Sequence[Tensorlike], position: str) -> list[str]:
        used = self.moving([thing.name for thing in things], self.kept_loops)
        return self.coordinates(0, self.schedule.loops - 1, position, used)

    def _row_reads(self, operands: Sequence[Operand]) -> list[str]:
        """What a row has once: constants, or what the next row will find."""
        lines = []
        for o in operands:
            offset = self.offset(o.name, self.kept_loops)
            if self.schedule.prefetch:
                value = offset if isinstance(o, Position) else f"fg::load({self.pointer(o.name, offset)})"
                lines.append(f"{self.stem(o.name)}_next = {value};")
            else:
                lines += self.read(o, offset)
        return lines

    def _bounds(self) -> str:
        """Threads of a block, and how many blocks the registers of a multiprocessor should hold."""
        plan = self.schedule
        return f"{plan.threads * plan.rows}, {plan.resident}"

    # -- one traversal of the row ---------------------------------------------------------------------------------

    def _traversal(
        self, lets: Sequence[Let], items: Sequence[Reduce | Output], last: bool = False
    ) -> dict[str, Any]:  # fmt: skip
        """What the lets and items read at an element, and the lets. Behind the last traversal nothing needs them."""
        plan, lets = self.schedule, self.still_needed(lets, items)
        needed = self.needed((*(let for let in lets if not self.is_known(let)), *items))
        slots: dict[str, Any] = {"reads": [], "declarations": [], "inner": [], "writes": [], "edge": []}
        loaded = []
        for operand in self.kernel.operands:
            if operand.name not in needed or not self.moving([operand.name], self.over_loops):
                continue
            if operand in (*self.ahead, *self.shared):
                self._take(operand, slots)
            else:
                loaded.append(operand.name)
                self._load(operand, slots)
        written = [item.name for item in items if isinstance(item, Output)]
        slots["coordinates"] = self._element_coordinates([*loaded, *written])
        if self.schedule.unaligned and (loaded or written):
            slots["edge"].insert(0, f"const {self.schedule.index} j{self.fast} = edge;")
        at_edges = plan.unaligned and not plan.chunked
        slots["inner"] += self.element_lets(lets, lambda stem: f"{stem}_row[part]{'[k]' * (plan.vector > 1)}", not last)
        slots["edge"] += self.element_lets(lets, lambda stem: f"{stem}_edge", at_edges and not last)
        kept = [] if last else self.keep(lets)
        slots["kept"] = [self.declare_row(let) for let in kept]
        slots["kept"] += [f"{let.expr.dtype.ctype} {self.stem(let.name)}_edge = 0;" for let in kept if at_edges]
        return slots

    def _each(self, slots: dict[str, Any], lines: Sequence[str]) -> None:
        """What is done with every element: those of vectors, and those at the ends of rows that begin anywhere."""
        slots["inner"] += lines
        slots["edge"] += lines

    def _take(self, operand: Operand, slots: dict[str, Any]) -> None:
        """An element of what was read ahead."""
        name = self.stem(operand.name)
        slots["edge"].append(
            f"const {operand.dtype.compute.ctype} {self.variable(operand.name)} = fg::load(&{name}_edge);"
        )
        if self.schedule.vector > 1:
            slots["reads"].append(f"const auto {name}_v = fg::widen({self._held(operand)});")
            slots["inner"].append(self.vector_element(operand))
        else:
            declared = f"const {operand.dtype.compute.ctype} {self.variable(operand.name)}"
            slots["inner"].append(f"{declared} = fg::load(&{name}_row[part]);")

    def _load(self, operand: Operand, slots: dict[str, Any]) -> None:
        """An element from memory; short operands come from a cache after the first row."""
        name, offset = operand.name, self.offset(operand.name, range(self.fast + 1))
        access = self.schedule.placement(name).access
        slots["edge"] += self.read(operand, offset)
        if self.schedule.vector == 1:
            slots["inner"] += self.read(operand, offset)
        elif access is Access.ROW:
            slots["reads"] += self.read_vector(operand, offset)
            slots["inner"].append(self.vector_element(operand))
        elif (
            self.schedule.unaligned
            and self.schedule.placement(name).moves[self.fast] == "1"
            and not isinstance(operand, (Gathered, Position))
        ):
            slots["reads"].append(f"const auto {self.stem(name)}_v = fg::widen({self._across(name)});")
            slots["inner"].append(self.vector_element(operand))
        elif self.moving([name], [self.fast]):
            slots["inner"] += self.read(operand, self.element_offset(name, offset, self.fast))
        else:
            slots["reads"] += self.read(operand, offset)

    def _stage(self, stage: Stage) -> dict[str, Any]:
        """The traversals of a stage. Where nothing waits for it, everything else is done in the same one."""
        kernel, split = self.kernel, self.schedule.split
        partners = {r.name: kernel.partners[r.name] for r in stage.reduces if r.name in kernel.partners}
        moments = [r for r in stage.reduces if r.kind == "squared_deviation"]
        alone = len(moments) == 1 and all(r in moments or r.name in partners for r in stage.reduces)
        if alone and self.schedule.cluster == 1 and not self.schedule.chunked:
            return self._in_two_steps(stage, moments[0], next(iter(partners), None))
        direct = not (kernel.row_tiles or split)
        picks = {r.name: pick for r in stage.reduces if direct and (pick := self._pick(r))}
        own = [r for r in stage.reduces if r.name not in picks]
        accumulators = [Accumulator(r, self.names) for r in own if r.name not in partners]
        coupled = [a for a in accumulators if a.is_coupled]
        if stage is kernel.final_stage:
            lets = list(dict.fromkeys([*stage.lets, *kernel.body]))
            slots = self._traversal(lets, [*kernel.pointwise, *kernel.columns, *kernel.segments, *own], last=True)
            self._end_of_traversal(slots)
        else:
            slots = self._traversal(stage.lets, own)
        texts = {a.name: self.printer.text(a.reduce.expr) for a in accumulators}
        held = {a.name: f"{a.stem}_chunk" if self.schedule.chunked else a.variable for a in coupled}
        counted = [held[a.name] for a in coupled if a.counts]
        slots["inner"] += [
            f"{held[a.name]}.see({texts[a.name]});" if a in coupled else a.add(texts[a.name]) for a in accumulators
        ]
        slots["writes"] += [f"{name}.saw({self.schedule.vector});" for name in counted]
        once = [] if self.schedule.chunked else coupled
        slots["edge"] += [
            f"{a.variable}.see({texts[a.name]});" if a in once else a.add(texts[a.name]) for a in accumulators
        ]
        slots["edge"] += [f"{a.variable}.saw(1);" for a in once if a.counts]
        again = None
        if coupled:
            take = "take_fast" if self.printer.half else "take"
            again = self._traversal(stage.lets, [a.reduce for a in coupled])
            self._each(again, [f"{held[a.name]}.{take}({texts[a.name]});" for a in coupled])
        chunked = self.schedule.chunked
        return {
            "accumulators": [a.declare() for a in accumulators] + ([] if chunked else slots["kept"]),
            "chunks": [f"{a.state_type} {held[a.name]};" for a in coupled] + (slots["kept"] if chunked else []),
            "merges": [
                line for a in coupled for line in (f"{held[a.name]}.finish();", f"{a.variable}.merge({held[a.name]});")
            ],
            "traversal": slots,
            "settle": [f"{held[a.name]}.settle();" for a in coupled]
            + (["fg::read_again();"] if coupled and self.schedule.staged else []),
            "again": again,
            "combine": [f"{a.variable}.finish();" for a in coupled if not self.schedule.chunked]
            + self._combine(accumulators)
            + ([] if split else [Accumulator(of, self.names).partner(name) for name, of in partners.items()])
            + [line for pick in picks.values() for line in pick],
            "after": [] if split else self.lets(stage.after),
        }

    def _in_two_steps(self, stage: Stage, deviation: Reduce, partner: str | None) -> dict[str, Any]:
        """The sum, then squared deviations from the mean: two exchanges of numbers are less work than one of states.

        Where more than half types depend on it, deviations also say what rounding took off the mean.
        """
        exact, ctype = not self.printer.half, deviation.expr.dtype.ctype
        text, squares, start = (
            self.printer.text(deviation.expr),
            self.variable(deviation.name),
            self.stem(deviation.name),
        )
        total = self.variable(partner) if partner else f"{start}_total"
        mean, compensation = f"{start}_mean", f"{start}_rest"
        first, again = self._traversal(stage.lets, [deviation]), self._traversal(stage.lets, [deviation])
        self._each(first, [f"{total} += {text};"])
        self._each(again, [
            f"const {ctype} away = {self.printer.term(deviation.expr)} - {mean};",
            f"{squares} += away * away;", *([f"{compensation} += away;"] if exact else []),
        ])  # fmt: skip
        sums = [squares, compensation] if exact else [squares]
        return {
            "accumulators": [f"{ctype} {total} = 0;", *first["kept"]], "chunks": [], "merges": [],
            "traversal": first,
            "settle": [
                *self._exchange("sum", [total]),
                f"const {ctype} {mean} = fg::divide_by_count({total}, {ctype}(n));",
                *(f"{ctype} {name} = 0;" for name in sums),
                *(["fg::read_again();"] if self.schedule.staged else []),
            ],
            "again": again,
            "combine": [
                *self._exchange("sum", sums),
                *([
                    f"{squares} -= {compensation} * fg::divide_by_count({compensation}, {ctype}(n));",
                    f"{total} += {compensation};",
                ] if exact else []),
            ],
            "after": self.lets(stage.after),
        }  # fmt: skip

    def _pick(self, reduce: Reduce) -> list[str] | None:
        """A sum with one term, ``where(index == place, x, 0)``, as one access: the element at ``place``, if any."""
        picked, plan = picked_by(reduce, self.kernel), self.schedule
        if picked is None or plan.inner != 1:
            return None
        place, operand = picked
        if any(self._along(ref) for ref in refs(place)):
            return None
        at, name, ctype = f"{self.stem(reduce.name)}_at", operand.name, reduce.expr.dtype.ctype
        value = self.variable(reduce.name)
        step = {"1": at, "s": f"{at} * {self.stem(name)}_stride{self.fast}"}.get(plan.placement(name).moves[self.fast])
        if step is None:
            return None
        offset = " + ".join(term for term in (self.offset(name, self.kept_loops), step) if term)
        return [
            f"const int64_t {at} = {self.printer.text(place)};",
            f"{ctype} {value} = 0;",
            *self.access(
                f"if (0 <= {at} && {at} < n) {value} = fg::load({{}});",
                name,
                offset,
                called=f"{self.stem(reduce.name)}_offset",
            ),
        ]

    def _along(self, ref: Ref) -> bool:
        """Whether a value changes within a row."""
        if any(ref.name == o.name for o in self.kernel.operands):
            return bool(self.moving([ref.name], self.over_loops))
        lets = {let.name for stage in self.kernel.stages for let in stage.lets} | {let.name for let in self.kernel.body}
        return ref.name in lets

    def _combine(self, accumulators: Sequence[Accumulator]) -> list[str]:
        """The states of the threads that share a row; states of one type share the exchange."""
        types = list(dict.fromkeys(a.state_type for a in accumulators))
        lines = []
        for state_type in types:
            own = [a for a in accumulators if a.state_type == state_type]
            lines += self._exchange("sum" if own[0].is_sum else "merge", [a.variable for a in own])
        return lines + [line for a in accumulators for line in a.result() if not self.schedule.split]

    def _exchange(self, how: str, names: Sequence[str]) -> list[str]:
        """What the threads that share a row have, put together, in all of them."""
        plan, site = self.schedule, self.sites
        self.sites += 1
        if plan.cluster > 1:
            return [f"fg::cluster_{how}<{plan.threads}, {site}>(link, {', '.join(names)});"]
        return [f"fg::row_{how}<{plan.threads}, {plan.rows}, {site}>({', '.join(names)});"]

    def _last(self) -> dict[str, Any] | None:
        kernel = self.kernel
        items: list[Reduce | Output] = [*kernel.pointwise, *kernel.columns, *kernel.segments]
        if not items or kernel.final_stage:
            return None
        slots = self._traversal(kernel.body, items, last=True)
        self._end_of_traversal(slots)
        return slots

    def _end_of_traversal(self, slots: dict[str, Any]) -> None:
        for output in self.kernel.pointwise:
            self._write(output, slots)
        for reduce in self.kernel.columns:
            text = self.printer.text(reduce.expr)
            slots["inner"].append(self._column(reduce).add(text))
            slots["edge"].append(f"{self.stem(reduce.name)}_edge += {text};")
        self.segments.take(slots)

    def _write(self, output: Output, slots: dict[str, Any]) -> None:
        name, vector = output.name, self.schedule.vector
        offset = self.offset(name, range(self.fast + 1))
        slots["edge"] += self.store(output, offset)
        if vector > 1 and self.schedule.placement(name).access is Access.ROW:
            slots["declarations"].append(f"fg::Vec<{output.dtype.compute.ctype}, {vector}> {self.stem(name)}_v;")
            slots["inner"].append(f"{self.stem(name)}_v[k] = {self.printer.text(output.expr)};")
            slots["writes"] += self.write_vector(output, offset)
        else:
            at = self.element_offset(name, offset, self.fast) if vector > 1 else offset
            slots["inner"] += self.store(output, at)

    # -- the end of a row, and of all rows ------------------------------------------------------------------------

    def _writer(self) -> str:
        """The thread that writes a row's results."""
        terms = ["threadIdx.x == 0"]
        terms += ["end > 0"] if self.schedule.rows > 1 else []
        terms += ["fg::cluster_rank() == 0"] if self.schedule.cluster > 1 else []
        return " && ".join(terms)

    def _ending(self) -> list[str]:
        kernel = self.kernel
        if self.schedule.split:
            position = f"{self.schedule.index}(blockIdx.y) * m + row"
            return [line for r in kernel.states for line in Accumulator(r, self.names).store(position)]
        if kernel.row_tiles:
            reduces = kernel.stages[0].reduces if kernel.stages else ()
            position = f"{self.schedule.index}(blockIdx.y) * m + row"
            return [f"{self._partial(r)}[{position}] = {self.variable(r.name)};" for r in reduces]
        lines = []
        for output in kernel.outputs:
            lines += self.store(output, self.offset(output.name, self.kept_loops))
        return lines

    def _partial(self, reduce: Reduce) -> str:
        """The pointer to where later kernels find what this one has of a sum."""
        return self.names.pointer(next(p.name for p in self.kernel.partials if p.expr is reduce.ref))

    def _row_end(self) -> list[str]:
        """Before the next row overwrites what threads exchange, all must have read it."""
        plan = self.schedule
        if not plan.persistent or not self.kernel.reduces:
            return []
        return ["__syncthreads();"] if plan.threads > 32 and self.sites < 2 else []

    def _column(self, reduce: Reduce) -> _Column:
        return _Column(reduce, self.names, self.schedule.vector, self.schedule.unaligned)

    def _column_combine(self) -> list[str]:
        plan = self.schedule
        if plan.rows == 1 or not self.kernel.columns:
            return []
        return [f"fg::rows_sum<{plan.threads}, {plan.rows}>({self._column(r).variable});" for r in self.kernel.columns]


@dataclass(frozen=True)
class _Column:
    """The sums that a thread keeps of its positions in a row."""

    reduce: Reduce
    names: Names
    vector: int
    unaligned: bool

    @property
    def variable(self) -> str:
        return f"{self.names.stem(self.reduce.name)}_{'v' if self.vector > 1 else 'sums'}"

    def declare(self, vectors_per_thread: int) -> list[str]:
        ctype = self.reduce.expr.dtype.ctype
        element = f"fg::Vec<{ctype}, {self.vector}>" if self.vector > 1 else ctype
        edge = [f"{ctype} {self.names.stem(self.reduce.name)}_edge = 0;"] if self.unaligned else []
        return [f"{element} {self.variable}[{vectors_per_thread}] = {{}};", *edge]

    def add(self, value: str) -> str:
        return f"{self.variable}[part]{'[k]' if self.vector > 1 else ''} += {value};"

    def store(self, target: str) -> list[str]:
        """The sums to the place of this group of rows in ``target``."""
        group = "group * n + at"
        if self.unaligned:
            return [f"for (int k = 0; k < {self.vector}; ++k) {target}[{group} + k] = {self.variable}[part][k];"]
        if self.vector > 1:
            return [f"fg::store_vector<{self.vector}>({target} + ({group}), {self.variable}[part]);"]
        return [f"{target}[{group}] = {self.variable}[part];"]

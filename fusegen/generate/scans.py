"""A scan's kernels as CUDA text: fills the slots of templates/scan.cu.j2."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fusegen.core.dtypes import DType, bool_
from fusegen.core.ir import Expr, Let, Output, Ref, Statement, refs, walk
from fusegen.core.scans import PLACES
from fusegen.core.subexpressions import introduce_lets
from fusegen.core.text import expr_text
from fusegen.fuse.scan_schedule import HERE, LENGTH, ScanSchedule, ScanTensor
from fusegen.fuse.scans import neighbour, running
from fusegen.generate.cexpr import Printer
from fusegen.generate.rendered import Rendered, file_text
from fusegen.generate.wording import comment, filled_signature

HEADER = '#include "fusegen_scan.cuh"'
STATES = {
    "sum": "ScanSum", "prod": "ScanProduct", "max": "ScanMaximum", "min": "ScanMinimum", "logaddexp": "ScanLogAddExp",
    "affine": "ScanAffine", "segments": "ScanSegments", "argmax": "ScanPlace", "argmin": "ScanPlace",
    "last": "ScanLast",
}  # fmt: skip
_FORMULAS = {
    "sum": "y[i] = y[i - 1] + a[i]", "prod": "y[i] = y[i - 1] * a[i]", "max": "y[i] = maximum(y[i - 1], a[i])",
    "min": "y[i] = minimum(y[i - 1], a[i])", "logaddexp": "y[i] = log(exp(y[i - 1]) + exp(a[i]))",
    "affine": "y[i] = a[i] * y[i - 1] + b[i]",
    "segments": "y[i] = a[i] ? y[i - 1] + b[i] : b[i]", "argmax": "y[i] = where the maximum of a[0 .. i] stands",
    "argmin": "y[i] = where the minimum of a[0 .. i] stands", "last": "y[i] = a[i]",
}  # fmt: skip
# What the template calls variables, beside those that no intermediate is ever called.
_VARIABLES = (
    "a b i j0 u here running place own before held carry found state rows parts totals padded position column earlier "
    "step"
)
_TAKEN = frozenset(_VARIABLES.split())
# Characters of an expression that a header does not repeat.
_LONG = 60
ParamKind = Literal["pointer", "totals", "number", "n", "rows", "divisor", "stride", "parts", "chunk"]


@dataclass(frozen=True)
class ScanParam:
    """One parameter of a scan's kernel.

    Attributes:
        tensor: by its place, of a pointer or a stride; a number's own place.
        dim: of a stride or a divisor; the last one of strides is along the row.
    """

    kind: ParamKind
    name: str
    ctype: str
    tensor: int = 0
    dim: int = 0


def state_type(schedule: ScanSchedule) -> str:
    """The C++ type of a partial result."""
    combine, ctype = schedule.how.combine, schedule.program.dtype.ctype
    if combine in PLACES:
        return f"fg::ScanPlace<{ctype}, {schedule.place_type}, {'true' if combine == 'argmax' else 'false'}>"
    return f"fg::{STATES[combine]}<{ctype}>"


def scan_parameters(schedule: ScanSchedule, stage: str) -> tuple[ScanParam, ...]:
    """The parameter list of one of the kernels: read by the printer for the signature, by the launcher for values."""
    reads, every = schedule.reads_in(stage), (*schedule.tensors, *schedule.written)
    tensors = (*reads, *schedule.written) if stage == "scan" else reads
    found: list[ScanParam] = []
    for tensor in tensors:
        is_result = tensor in schedule.written
        alone = " __restrict__" if is_result or not schedule.follows else ""
        ctype = f"{'' if is_result else 'const '}{tensor.dtype.ctype}*{alone}"
        found.append(ScanParam("pointer", f"{tensor.name}_ptr", ctype, every.index(tensor)))
    if schedule.split:
        found.append(ScanParam("totals", "totals", f"{'const ' * (stage == 'scan')}{state_type(schedule)}*"))
    program = schedule.program
    read = program.read | program.read_later if stage == "scan" else program.read
    for place, (name, dtype) in enumerate(program.numbers):
        found += [ScanParam("number", name, dtype.ctype, place)] if name in read else []
    index, divisor = schedule.index, "fg::Divisor" if schedule.index == "int" else "fg::Divisor64"
    found.append(ScanParam("n", "n", index))
    if schedule.columns or schedule.lanes < schedule.threads:
        found.append(ScanParam("rows", "rows", index))
    found += [ScanParam("divisor", f"n{dim}", divisor, dim=dim) for dim in range(1, schedule.dims)]
    for tensor in tensors:
        place, dims = every.index(tensor), range(schedule.dims)
        found += [ScanParam("stride", f"{tensor.name}_stride{d}", "int64_t", place, d) for d in dims]
        if schedule.columns or tensor.access == "strided":
            found.append(ScanParam("stride", f"{tensor.name}_step", "int64_t", place, schedule.dims))
    if schedule.split:
        found += [ScanParam("parts", "parts", "int"), ScanParam("chunk", "chunk", index)]
    return tuple(found)


def render_scan(schedule: ScanSchedule, stage: str) -> Rendered:
    """The text of one of a scan's kernels."""
    name = _name(schedule, stage)
    code: str = _template().render(_Slots(schedule, stage, name).all())
    barriers = not schedule.columns and schedule.lanes > 1
    return Rendered(file_text((HEADER,), [code]), name, None, barriers, (HEADER,))


def _template() -> Any:
    from fusegen.generate.templates import template

    return template("scan")


def _name(schedule: ScanSchedule, stage: str) -> str:
    how, words = schedule.how, ["scan"]
    words += [how.combine, *(["reverse"] if how.reverse else []), *(["exclusive"] if how.exclusive else [])]
    dtypes = dict.fromkeys(tensor.dtype.short for tensor in (*schedule.tensors, *schedule.written))
    return "_".join([*words, *(["totals"] if stage == "totals" else []), *dtypes])


def _said(value: Expr) -> str:
    """What is combined: as it is written, or of what it is made where that is long."""
    text = expr_text(value)
    return f"= {text}" if len(text) <= _LONG else f"of {', '.join(dict.fromkeys(ref.name for ref in refs(value)))}"


def _broken(text: str, column: int) -> str:
    """An expression that begins in a column, with its outermost choice on lines of its own where it is too long for
    one: four columns behind where the condition begins, as clang-format has it."""
    if column + len(text) < 118:
        return text
    depth, begins, choices = 0, {0: 0}, list[tuple[int, int, int]]()
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "(" or text[at : at + 2] == ", ":
            begins[depth] = at + (1 if letter == "(" else 2)
        if text[at : at + 3] in (" ? ", " : "):
            choices.append((depth, at, begins[depth]))
    if not choices:
        return text
    outermost, _, begin = min(choices)
    pieces, start = list[str](), 0
    for at in (at for level, at, _ in choices if level == outermost):
        pieces.append(text[start:at])
        start = at + 1
    return f"\n{' ' * (column + begin + 4)}".join([*pieces, text[start:]])


@dataclass
class _Slots:
    schedule: ScanSchedule
    stage: str
    name: str

    def all(self) -> dict[str, Any]:
        """What the template asks for."""
        schedule, how = self.schedule, self.schedule.how
        vector, uneven = schedule.vector, not schedule.even
        combined = [] if schedule.columns else self._combined()
        return {
            "header": self._header(), "signature": self._signature(), "start": self._start(),
            "threads": schedule.threads, "columns": schedule.columns, "vector": vector, "index": schedule.index,
            "lanes": schedule.lanes, "split": schedule.split, "stage": self.stage, "dims": schedule.dims,
            "places": self._places(), "pointers": self._pointers(), "length": "padded" if uneven else "n",
            "even": schedule.even, "state": state_type(schedule),
            "unroll": schedule.turns, "tile": schedule.tile,
            "warps": 1 if schedule.lanes < schedule.threads else schedule.threads // 32,
            "place_of_turn": "n - 1 - at - u" if how.reverse else "at + u",
            "place_of_vector": f"{'padded' if uneven else 'n'} - {vector} - at" if how.reverse else "at",
            "lane_of_step": f"{vector - 1} - step" if how.reverse else "step",
            "guard": "if (i + k >= n) continue;" if uneven else "",
            "made": self._made(), "combined": combined, "element": self._written(),
            "needs_place": uneven or any(re.search(r"\bi\b", line) for line in combined),
            "tensors": [
                {"name": tensor.name, "type": tensor.dtype.compute.ctype, "read": self._read(tensor)}
                for tensor in schedule.reads_in(self.stage)
            ],
            "edges": [self._edge(tensor, way) for tensor, way in schedule.neighbours_in(self.stage)],
            "results": [
                {"name": tensor.name, "type": tensor.dtype.compute.ctype, "write": self._write(tensor)}
                for tensor in schedule.written
            ],
        }  # fmt: skip

    def _header(self) -> str:
        schedule, how, program = self.schedule, self.schedule.how, self.schedule.program
        made = [f"{name} {_said(value)}" for name, value in zip("ab", program.values, strict=False)]
        formula = f"{_FORMULAS[how.combine]} with {', '.join(made)}"
        if how.exclusive:
            formula += ", and the result is y[i - 1]"
        if how.reverse:
            formula += ", from the last element"
        if schedule.columns:
            shape = "columns: rows lie side by side, and each is walked along by a thread"
        elif schedule.lanes < schedule.threads:
            shape = f"rows: {schedule.lanes} of a block's threads for each, in vectors of {schedule.vector}"
        else:
            shape = f"rows: a block for each, {schedule.tile} elements at a time"
        if schedule.split:
            does = (
                "what each part comes to" if self.stage == "totals" else "each part from what those before it come to"
            )
            shape += f"; few and long, so they are cut into parts: {does}"
        return "\n".join(line for text in (f"scan: {formula}", shape) for line in comment(text))

    def _signature(self) -> str:
        params = scan_parameters(self.schedule, self.stage)
        return filled_signature(self.name, [f"{param.ctype} {param.name}" for param in params])

    def _start(self) -> list[str]:
        """What comes first: the wait for the kernel before, and how long rows are with their last vector."""
        vector, index = self.schedule.vector, self.schedule.index
        padded = f"const {index} padded = (n + {vector - 1}) / {vector} * {vector};"
        waits = ["fg::wait_for_previous_kernel();"] if self.schedule.follows_in(self.stage) else []
        return [*waits, *([] if self.schedule.even else [padded])]

    def _places(self) -> list[str]:
        """The coordinates of a row, fastest first."""
        index, dims = self.schedule.index, self.schedule.dims
        found = [f"const {index} j{dim} = fg::take(position, n{dim});" for dim in range(dims - 1, 0, -1)]
        return [*found, f"const {index} j0 = position;"]

    def _pointers(self) -> list[str]:
        """Where a row begins in each tensor."""
        found = []
        schedule = self.schedule
        for tensor in (*schedule.reads_in(self.stage), *(schedule.written if self.stage == "scan" else ())):
            terms = [f"j{dim} * {tensor.name}_stride{dim}" for dim in range(schedule.dims)]
            const = "" if tensor in schedule.written else "const "
            added = f"({' + '.join(terms)})" if len(terms) > 1 else "".join(terms)
            start = f"{tensor.name}_ptr + {added}" if terms else f"{tensor.name}_ptr"
            found.append(f"{const}{tensor.dtype.ctype}* {tensor.name} = {start};")
        return found

    # -- what is computed of an element -------------------------------------------------------------------------------

    @property
    def _is_made(self) -> bool:
        """Whether values are kept where elements are combined twice, for a vector's total and for its results."""
        return not self.schedule.columns and not all(isinstance(v, Ref) for v in self.schedule.program.values)

    def _made(self) -> list[dict[str, str]]:
        """The arrays that keep them."""
        # A condition that outlives a barrier is no predicate: as bytes, those of a vector would lie in memory.
        types = {bool_: "int"}
        pairs = zip("ab", self.schedule.program.values, strict=False)
        made = [{"name": name, "type": types.get(v.dtype, v.dtype.compute.ctype)} for name, v in pairs]
        return made if self._is_made else []

    def _combined(self) -> list[str]:
        """What adds an element to the total of its vector."""
        return self._added_to("own[u]", self.schedule.program.values, ())

    def _written(self) -> list[str]:
        """What adds an element to what stands before it, and makes results of that."""
        program = self.schedule.program
        outputs = program.outputs if self.stage == "scan" else ()
        if self.schedule.columns:
            return self._added_to("held[k]", program.values, outputs)
        return self._added_to("before[u]", () if self._is_made else program.values, outputs)

    def _added_to(self, state: str, values: Sequence[Expr], outputs: Sequence[Expr]) -> list[str]:
        """The lines for one element, where ``state`` has what stands before it.

        Args:
            values: what is added, if that has to be computed.
            outputs: what is written.
        """
        schedule, program, exclusive = self.schedule, self.schedule.program, self.schedule.how.exclusive
        names = [*"ab"[: len(values)], *(tensor.name for tensor in schedule.written[: len(outputs)])]
        exprs = zip(names, (*values, *outputs), strict=True)
        items = [Output(f"{name}_here", expr, expr.dtype, ()) for name, expr in exprs]
        statements, bound = introduce_lets([], items, {}, {*_TAKEN, *self._elements})
        made = [item.expr for item in bound]
        values, outputs = made[: len(values)], made[len(values) :]
        of_results = _depending(statements, {running(how) for how in program.results})
        lines = self._located([*statements, *bound])
        lines += [self._let(let) for let in statements if let.name not in of_results]
        texts = [_broken(self._text(value), 18) for value in values]
        if self._is_made:
            kept = [f"{array['name']}[u][k]" for array in self._made()]
            lines += [f"{name} = {text};" for name, text in zip(kept, texts, strict=False)]
            texts = kept
        if schedule.how.combine in PLACES:
            texts.append("i" if schedule.columns or schedule.vector == 1 else "i + k")
        add = [f"{state}.add({', '.join(texts)});"]
        found, known = self._results(state, [*(let for let in statements if let.name in of_results), *bound])
        found += [self._let(let, known) for let in statements if let.name in of_results]
        for tensor, expr in zip(schedule.written, outputs, strict=False):
            start = f"{tensor.name}_found[k] = "
            found.append(f"{start}{_broken(self._text(expr, known, tensor.dtype), 8 + len(start))};")
        return [*lines, *found, *add] if exclusive else [*lines, *add, *found]

    @property
    def _elements(self) -> set[str]:
        """What expressions call elements."""
        return {name for tensor in self.schedule.tensors for name in tensor.elements}

    def _text(self, expr: Expr, known: Mapping[str, str] | None = None, dtype: DType | None = None) -> str:
        """An expression of elements, and of what is ``known``, for a result of some dtype."""

        def variable(name: str) -> str:
            if name in self._elements and (self.schedule.columns or name in self._tensors):
                return name + ("_here[k]" if self.schedule.columns else "_read[u][k]")
            return (known or {}).get(name, "int64_t(n)" if name == LENGTH else name)

        return Printer(half=dtype is not None and dtype.is_half, variable=variable).text(expr)

    @property
    def _tensors(self) -> set[str]:
        return {tensor.name for tensor in self.schedule.tensors}

    def _let(self, let: Statement, known: Mapping[str, str] | None = None) -> str:
        dtype = let.expr.dtype.compute
        start = f"const {dtype.ctype} {let.name} = "
        return f"{start}{_broken(self._text(let.expr, known), 8 + len(start))};"

    def _located(self, items: Sequence[Let | Output | Statement]) -> list[str]:
        """The position of an element and those next to it, where something is made of these."""
        schedule, vector = self.schedule, self.schedule.vector
        read = {ref.name for ref in refs(*(item.expr for item in items))}
        place = "i" if schedule.columns or vector == 1 else "i + k"
        lines = [f"const int64_t {HERE} = {place};"] if HERE in read else []
        for tensor, way in schedule.neighbours_in(self.stage) if not schedule.columns else ():
            name = neighbour(tensor.name, way)
            inner = (
                f"k ? {tensor.name}_read[u][k - 1]" if way < 0 else f"k < {vector - 1} ? {tensor.name}_read[u][k + 1]"
            )
            text = f"{inner} : {name}_edge[u]" if vector > 1 else f"{name}_edge[u]"
            lines += [f"const {tensor.dtype.compute.ctype} {name} = {text};"] if name in read else []
        return lines

    def _results(self, state: str, items: Sequence[Let | Output | Statement]) -> tuple[list[str], dict[str, str]]:
        """What binds the partial results at an element, and what is read instead of those that are read once."""
        program, lines, known = self.schedule.program, list[str](), dict[str, str]()
        nodes = [child for node in walk([item.expr for item in items]) for child in node.children]
        nodes += [item.expr for item in items]
        for how in program.results:
            name, is_first = running(how), how == program.how
            text = f"{state}.result()" if is_first else f"{state}.value"
            uses = sum(isinstance(node, Ref) and node.name == name for node in nodes)
            if uses == 1:
                known[name] = text
            elif uses:
                ctype = "int64_t" if how.combine in PLACES else program.dtype.ctype
                lines.append(f"const {ctype} {name} = {text};")
        return lines, known

    # -- memory -------------------------------------------------------------------------------------------------------

    def _address(self, tensor: ScanTensor, at: str = "") -> str:
        """Where element k of a vector is.

        Args:
            at: its position along the row, if that is another one.
        """
        name, is_one = tensor.name, self.schedule.vector == 1
        if self.schedule.columns:
            there = f"{name} + {at or 'i'} * {name}_step"
            near = {"vector": "k", "same": "", "strided": f"k * {name}_stride{self.schedule.dims - 1}"}[tensor.access]
            return there if is_one or not near else f"{there} + {near}"
        at = at or ("i" if is_one else "(i + k)")
        return {"vector": f"{name} + {at}", "same": name, "strided": f"{name} + {at} * {name}_step"}[tensor.access]

    def _read(self, tensor: ScanTensor, into: str = "", at: str = "") -> list[str]:
        """The lines that read a vector.

        Args:
            into: a variable, if it is another one.
            at: of columns, another position along them.
        """
        vector, into, name = self.schedule.vector, into or f"{tensor.name}_read[u]", tensor.name
        if tensor.access == "vector" and vector > 1:
            if self.schedule.columns:
                return [f"{into} = fg::load_vector<{vector}>({name} + {at or 'i'} * {name}_step);"]
            if self.schedule.even:
                return [f"{into} = fg::load_vector<{vector}>({name} + i);"]
            return [f"{into} = fg::load<{vector}>({name}, i, n);"]
        if vector == 1:
            return [f"{into}[0] = fg::load({self._address(tensor, at)});"]
        loop = ["#pragma unroll", f"for (int k = 0; k < {vector}; ++k) {{"]
        guard = "" if self.schedule.even else "if (i + k < n) "
        return [*loop, f"  {guard}{into}[k] = fg::load({self._address(tensor, at)});", "}"]

    def _edge(self, tensor: ScanTensor, way: int) -> dict[str, Any]:
        """How elements next to others are read: beside a vector one more, beside columns as many."""
        vector, name = self.schedule.vector, neighbour(tensor.name, way)
        if self.schedule.columns:
            at = "(i - 1)" if way < 0 else "(i + 1)"
            inside = "i > 0" if way < 0 else "i + 1 < n"
            into = f"{name}_read[u]"
            lines = self._read(tensor, into, at)
            if len(lines) == 1:
                lines = [f"if ({inside}) {lines[0]}"]
            else:
                lines = [f"if ({inside}) {{", *(f"  {line}" if line[0] != "#" else line for line in lines), "}"]
            return {"name": name, "type": tensor.dtype.compute.ctype, "read": lines}
        at = "(i - 1)" if way < 0 else f"(i + {vector})"
        inside = "i > 0" if way < 0 else f"i + {vector} < n"
        line = f"{name}_edge[u] = {inside} ? fg::load({self._address(tensor, at)}) : {tensor.dtype.compute.ctype}(0);"
        return {"name": name, "type": tensor.dtype.compute.ctype, "read": [line]}

    def _write(self, tensor: ScanTensor) -> list[str]:
        vector, name = self.schedule.vector, tensor.name
        if vector == 1:
            return [f"fg::store({self._address(tensor)}, {name}_found[0]);"]
        if tensor.access != "vector":
            loop = ["#pragma unroll", f"for (int k = 0; k < {vector}; ++k) {{"]
            guard = "" if self.schedule.even else "if (i + k < n) "
            return [*loop, f"  {guard}fg::store({self._address(tensor)}, {name}_found[k]);", "}"]
        if self.schedule.columns:
            return [f"fg::store_vector<{vector}>({name} + i * {name}_step, {name}_found);"]
        if self.schedule.even:
            return [f"fg::store_vector<{vector}>({name} + i, {name}_found);"]
        return [f"fg::store<{vector}>({name}, i, n, {name}_found);"]


def _depending(statements: Sequence[Statement], names: set[str]) -> set[str]:
    """The lets that follow from things that are called so."""
    known = set(names)
    for let in statements:
        if not known.isdisjoint(ref.name for ref in refs(let.expr)):
            known.add(let.name)
    return known - names

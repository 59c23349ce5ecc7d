"""A scan's kernels as CUDA text: fills the slots of templates/scan.cu.j2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fusegen.core.dtypes import bool_
from fusegen.core.ir import Ref
from fusegen.core.text import expr_text
from fusegen.fuse.scan_schedule import ScanSchedule, ScanTensor
from fusegen.generate.cexpr import Printer
from fusegen.generate.rendered import Rendered, file_text, template_text
from fusegen.generate.wording import comment

HEADER = '#include "fusegen_scan.cuh"'
STATES = {
    "sum": "ScanSum", "prod": "ScanProduct", "max": "ScanMaximum", "min": "ScanMinimum", "logaddexp": "ScanLogAddExp",
    "affine": "ScanAffine", "segments": "ScanSegments",
}  # fmt: skip
_FORMULAS = {
    "sum": "y[i] = y[i - 1] + a[i]", "prod": "y[i] = y[i - 1] * a[i]", "max": "y[i] = maximum(y[i - 1], a[i])",
    "min": "y[i] = minimum(y[i - 1], a[i])", "logaddexp": "y[i] = log(exp(y[i - 1]) + exp(a[i]))",
    "affine": "y[i] = a[i] * y[i - 1] + b[i]",
    "segments": "y[i] = a[i] ? y[i - 1] + b[i] : b[i]",
}  # fmt: skip
ParamKind = Literal["pointer", "totals", "n", "rows", "divisor", "stride", "parts", "chunk"]


@dataclass(frozen=True)
class ScanParam:
    """One parameter of a scan's kernel.

    Attributes:
        tensor: by its place, of a pointer or a stride.
        dim: of a stride or a divisor; the last one of strides is along the row.
    """

    kind: ParamKind
    name: str
    ctype: str
    tensor: int = 0
    dim: int = 0


def state_type(schedule: ScanSchedule) -> str:
    """The C++ type of a partial result."""
    return f"fg::{STATES[schedule.how.combine]}<{schedule.dtype.ctype}>"


def scan_parameters(schedule: ScanSchedule, stage: str) -> tuple[ScanParam, ...]:
    """The parameter list of one of the kernels: read by the printer for the signature, by the launcher for values."""
    tensors = schedule.tensors if stage == "scan" else schedule.tensors[:-1]
    found: list[ScanParam] = []
    for place, tensor in enumerate(tensors):
        is_result = place == len(schedule.tensors) - 1
        alone = " __restrict__" if is_result or not schedule.follows else ""
        ctype = f"{'' if is_result else 'const '}{tensor.dtype.ctype}*{alone}"
        found.append(ScanParam("pointer", f"{tensor.name}_ptr", ctype, place))
    if schedule.split:
        found.append(ScanParam("totals", "totals", f"{'const ' * (stage == 'scan')}{state_type(schedule)}*"))
    index, divisor = schedule.index, "fg::Divisor" if schedule.index == "int" else "fg::Divisor64"
    found.append(ScanParam("n", "n", index))
    if schedule.columns or schedule.lanes < schedule.threads:
        found.append(ScanParam("rows", "rows", index))
    found += [ScanParam("divisor", f"n{dim}", divisor, dim=dim) for dim in range(1, schedule.dims)]
    for place, tensor in enumerate(tensors):
        found += [ScanParam("stride", f"{tensor.name}_stride{d}", "int64_t", place, d) for d in range(schedule.dims)]
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
    from fusegen.generate.render import environment

    return environment().from_string(template_text("scan.cu.j2"))


def _name(schedule: ScanSchedule, stage: str) -> str:
    how, words = schedule.how, ["scan"]
    words += [how.combine, *(["reverse"] if how.reverse else []), *(["exclusive"] if how.exclusive else [])]
    dtypes = dict.fromkeys(tensor.dtype.short for tensor in schedule.tensors)
    return "_".join([*words, *(["totals"] if stage == "totals" else []), *dtypes])


def _broken(text: str, column: int) -> str:
    """An expression that begins in a column, with its choice on lines of its own where it is too long for one."""
    if column + len(text) < 118:
        return text
    depth, pieces, start = 0, list[str](), 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth and text[at : at + 3] in (" ? ", " : "):
            pieces.append(text[start:at])
            start = at + 1
    return f"\n{' ' * (column + 4)}".join([*pieces, text[start:]])


@dataclass
class _Slots:
    schedule: ScanSchedule
    stage: str
    name: str

    def all(self) -> dict[str, Any]:
        """What the template asks for."""
        schedule, how = self.schedule, self.schedule.how
        vector, uneven = schedule.vector, not schedule.even
        return {
            "header": self._header(), "signature": self._signature(), "start": self._start(),
            "threads": schedule.threads, "columns": schedule.columns, "vector": vector, "index": schedule.index,
            "lanes": schedule.lanes, "split": schedule.split, "stage": self.stage, "dims": schedule.dims,
            "places": self._places(), "pointers": self._pointers(), "length": "padded" if uneven else "n",
            "even": schedule.even, "exclusive": how.exclusive, "state": state_type(schedule),
            "unroll": schedule.turns, "tile": schedule.tile,
            "warps": 1 if schedule.lanes < schedule.threads else schedule.threads // 32,
            "result_type": schedule.tensors[-1].dtype.compute.ctype, "write": self._write(),
            "place_of_turn": "n - 1 - at - u" if how.reverse else "at + u",
            "place_of_vector": f"{'padded' if uneven else 'n'} - {vector} - at" if how.reverse else "at",
            "lane_of_step": f"{vector - 1} - step" if how.reverse else "step",
            "guard": "if (i + k < n) " if uneven else "", "element": self._element(), "made": self._made(),
            "tensors": [
                {"name": tensor.name, "type": tensor.dtype.compute.ctype, "read": self._read(tensor)}
                for tensor in schedule.tensors[:-1]
            ],
        }  # fmt: skip

    def _header(self) -> str:
        schedule, how = self.schedule, self.schedule.how
        made = [f"{name} = {expr_text(value)}" for name, value in zip("ab", schedule.values, strict=False)]
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
        params = [f"{param.ctype} {param.name}" for param in scan_parameters(self.schedule, self.stage)]
        indent = " " * (len("void ") + len(self.name) + 1)
        lines, line = list[str](), f"{self.name}("
        for place, param in enumerate(params):
            piece = param + (")" if place == len(params) - 1 else ",")
            if place and len(line) + len(piece) + 8 > 120:
                lines.append(line)
                line = indent + piece
            else:
                line += (" " if place else "") + piece
        return "\n".join([*lines, line])

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
        tensors = self.schedule.tensors if self.stage == "scan" else self.schedule.tensors[:-1]
        for place, tensor in enumerate(tensors):
            terms = [f"j{dim} * {tensor.name}_stride{dim}" for dim in range(self.schedule.dims)]
            const = "" if place == len(self.schedule.tensors) - 1 else "const "
            added = f"({' + '.join(terms)})" if len(terms) > 1 else "".join(terms)
            start = f"{tensor.name}_ptr + {added}" if terms else f"{tensor.name}_ptr"
            found.append(f"{const}{tensor.dtype.ctype}* {tensor.name} = {start};")
        return found

    def _texts(self) -> list[str]:
        """What is combined, of the elements that a thread has read."""
        at = "_here[k]" if self.schedule.columns else "_read[u][k]"
        printer = Printer(half=False, variable=lambda name: name + at)
        return list(map(printer.text, self.schedule.values))

    def _made(self) -> list[dict[str, str]]:
        """What is computed once of elements that are combined twice, for a vector's total and for its results."""
        if self.schedule.columns or all(isinstance(value, Ref) for value in self.schedule.values):
            return []
        pairs = zip("ab", self.schedule.values, self._texts(), strict=False)
        # A condition that outlives a barrier is no predicate: as bytes, those of a vector would lie in memory.
        types = {bool_: "int"}
        return [
            {"name": name, "type": types.get(value.dtype, value.dtype.compute.ctype), "text": _broken(text, 18)}
            for name, value, text in pairs
        ]

    def _element(self) -> str:
        """An element, as it is combined."""
        made = self._made()
        return ", ".join([f"{value['name']}[u][k]" for value in made] or [_broken(t, 18) for t in self._texts()])

    def _at(self, tensor: ScanTensor) -> str:
        """Where element k of a vector is."""
        name, is_one = tensor.name, self.schedule.vector == 1
        if self.schedule.columns:
            there = f"{name} + i * {name}_step"
            near = {"vector": "k", "same": "", "strided": f"k * {name}_stride{self.schedule.dims - 1}"}[tensor.access]
            return there if is_one or not near else f"{there} + {near}"
        at = "i" if is_one else "(i + k)"
        return {"vector": f"{name} + {at}", "same": name, "strided": f"{name} + {at} * {name}_step"}[tensor.access]

    def _read(self, tensor: ScanTensor) -> list[str]:
        vector, into, name = self.schedule.vector, f"{tensor.name}_read[u]", tensor.name
        if tensor.access == "vector" and vector > 1:
            if self.schedule.columns:
                return [f"{into} = fg::load_vector<{vector}>({name} + i * {name}_step);"]
            if self.schedule.even:
                return [f"{into} = fg::load_vector<{vector}>({name} + i);"]
            return [f"{into} = fg::load<{vector}>({name}, i, n);"]
        if vector == 1:
            return [f"{into}[0] = fg::load({self._at(tensor)});"]
        loop = ["#pragma unroll", f"for (int k = 0; k < {vector}; ++k) {{"]
        guard = "" if self.schedule.even else "if (i + k < n) "
        return [*loop, f"  {guard}{into}[k] = fg::load({self._at(tensor)});", "}"]

    def _write(self) -> list[str]:
        tensor, vector = self.schedule.tensors[-1], self.schedule.vector
        if vector == 1:
            return [f"fg::store({self._at(tensor)}, found[0]);"]
        if self.schedule.columns:
            return [f"fg::store_vector<{vector}>(result + i * result_step, found);"]
        if self.schedule.even:
            return [f"fg::store_vector<{vector}>(result + i, found);"]
        return [f"fg::store<{vector}>(result, i, n, found);"]

"""A scheduled kernel as CUDA text: fills the slots of the template of its shape.

Templates hold loops and slots. Everything in the slots is made here, from the kernel and its schedule, with
expressions printed by cexpr.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fusegen.core.ir import Call, Let, Operand, Output, Reduce, refs, walk
from fusegen.core.text import expr_text, reduce_text
from fusegen.declare.table import lookup
from fusegen.fuse.group import Kernel
from fusegen.fuse.schedule import Access, Schedule
from fusegen.generate.cexpr import Printer
from fusegen.generate.params import needs_coordinates, parameters
from fusegen.generate.wording import WIDTH, comment, explain, signature

PREAMBLE = '#include "fusegen.cuh"\n\n'
FINISH_THREADS = 128


@dataclass(frozen=True)
class Rendered:
    """CUDA text of one kernel, complete for a compiler.

    Attributes:
        finish: the entry of the second stage, if any.
        headers: device functions of users' own rows of the function table, with which ``text`` starts.
    """

    text: str
    entry: str
    finish: str | None
    barriers: bool
    headers: tuple[str, ...] = ()

    @property
    def body(self) -> str:
        """The kernel without what it includes and needs."""
        return self.text.removeprefix(_file_text(self.headers, []))


@cache
def _environment() -> Any:
    import jinja2  # costs 50 ms, which a warm start does not need

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(template_text), trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip


@cache
def template_text(name: str) -> str:
    """The text of a file that is shipped in ``templates/``."""
    return resources.files("fusegen.templates").joinpath(name).read_text(encoding="utf-8")


def headers() -> dict[str, str]:
    """What generated code includes when NVRTC compiles it."""
    return {"fusegen.cuh": template_text("fusegen.cuh")}


def render(kernel: Kernel, schedule: Schedule) -> Rendered:
    """CUDA text of ``kernel`` as ``schedule`` says."""
    view = _View(kernel, schedule)
    fill = {
        "elementwise": view.elementwise,
        "turned": view.turned,
        "whole": view.whole,
        "serial": view.reduction,
        "row": view.reduction,
        "column": view.reduction,
    }
    body = _environment().get_template(f"{schedule.template}.cu.j2").render(fill[schedule.template]())
    finish = None
    if schedule.split:
        finish = f"{kernel.name}_finish"
        body += _environment().get_template("finish.cu.j2").render(view.finish(finish))
    extra = _extra_headers(kernel)
    text = _file_text(extra, [body])
    return Rendered(text, kernel.name, finish, schedule.template not in ("elementwise", "serial"), extra)


def one_file(kernels: Sequence[Rendered]) -> str:
    """The kernels of a pass as one file, in launch order."""
    return _file_text(tuple(dict.fromkeys(text for k in kernels for text in k.headers)), [k.body for k in kernels])


def _file_text(headers: Sequence[str], bodies: Sequence[str]) -> str:
    return PREAMBLE + "".join(f"{text}\n\n" for text in headers) + "\n".join(bodies)


def _extra_headers(kernel: Kernel) -> tuple[str, ...]:
    names = {node.function for node in walk([item.expr for item in _items(kernel)]) if isinstance(node, Call)}
    texts = [lookup(name).header.strip() for name in sorted(names)]
    return tuple(text for text in texts if text)


def _items(kernel: Kernel) -> list[Let | Reduce | Output]:
    """Everything the kernel computes, in order."""
    return [*kernel.body, *kernel.pointwise, *kernel.reduces, *kernel.epilogue, *kernel.outputs]


@dataclass
class _View:
    """Makes the contents of the slots."""

    kernel: Kernel
    schedule: Schedule

    def __post_init__(self) -> None:
        floats = [o.dtype for o in self.kernel.op.outputs if o.dtype.is_float]
        self.printer = Printer(half=bool(floats) and all(dtype.is_half for dtype in floats))
        self.read_in_body = self._needed((*self.kernel.body, *self.kernel.reduces, *self.kernel.pointwise))

    @staticmethod
    def _needed(items: Iterable[Let | Reduce | Output]) -> set[str]:
        return {ref.name for item in items for ref in refs(item.expr)}

    # -- what every template has ----------------------------------------------------------------------------------

    def _common(self) -> dict[str, Any]:
        return {
            "header": self._header(),
            "signature": signature(self.kernel.name, parameters(self.kernel, self.schedule)),
            "threads": self.schedule.threads,
            "index": self.schedule.index,
        }

    def _header(self) -> str:
        kernel, op = self.kernel, self.kernel.op
        title = f"{op.name}, {op.label}"
        where = f"declared in {op.declared}" if op.declared else ""
        lines = [f"{title:<60}{where}".rstrip()]
        for item in _items(kernel):
            if isinstance(item, Reduce):
                lines.append(f"  {reduce_text(item)}")
            elif not (isinstance(item, Output) and expr_text(item.expr) == item.name):
                lines.append(f"  {item.name} = {expr_text(item.expr)}")
        lines.append(explain(kernel, self.schedule))
        return "\n".join(piece for line in lines for piece in comment(line))

    def _lets(self, lets: Sequence[Let]) -> list[str]:
        return [f"const {let.expr.dtype.ctype} {let.name} = {self.printer.text(let.expr)};" for let in lets]

    def _offset(self, name: str, loops: Iterable[int], coordinate: str = "j{}") -> str:
        """The element that ``name`` has at the current coordinates, along the given loops."""
        terms = []
        for loop in loops:
            move = self.schedule.placement(name).moves[loop]
            at = coordinate.format(loop)
            if move != "0":
                terms.append(at if move == "1" else f"{at} * {name}_stride{loop}")
        return " + ".join(terms)

    def _pointer(self, name: str, offset: str) -> str:
        return f"{name}_ptr + {offset}" if offset else f"{name}_ptr"

    def _coordinates(self, first: int, last: int, position: str, used: set[int], rest: str = "rest") -> list[str]:
        """Lines that take the coordinates of loops ``first`` to ``last`` off a linear position."""
        index = self.schedule.index
        if not used:
            return []
        if last == first:
            return [f"const {index} j{first} = {position};"]
        lines = [f"{index} {rest} = {position};"]
        lowest = min(used)
        for loop in range(last, max(first, lowest - 1), -1):
            take = f"fg::take({rest}, n{loop});"
            lines.append(f"const {index} j{loop} = {take}" if loop in used else take)
        if lowest == first:
            lines.append(f"const {index} j{first} = {rest};")
        return lines

    def _moving(self, names: Iterable[str], loops: Iterable[int]) -> set[int]:
        wanted = set(loops)
        return {
            loop
            for name in names
            for loop, move in enumerate(self.schedule.placement(name).moves)
            if move != "0" and loop in wanted
        }

    # -- elementwise ----------------------------------------------------------------------------------------------

    def elementwise(self) -> dict[str, Any]:
        schedule = self.schedule
        return {
            **self._common(),
            "vector": schedule.vector,
            **(self._scalar() if schedule.vector == 1 else self._vector()),
        }

    def _scalar(self) -> dict[str, Any]:
        """One element a thread: no vectors, no inner loop."""
        names = [*(o.name for o in self.kernel.operands), *(o.name for o in self.kernel.outputs)]
        at = {name: self._scalar_offset(name) for name in names}
        inner = [self._read(o, at[o.name]) for o in self.kernel.operands] + self._lets(self.kernel.body)
        for output in self.kernel.outputs:
            inner += self._store(self._pointer(output.name, at[output.name]), output)
        coordinates = []
        if needs_coordinates(self.schedule):
            names = [p.name for p in self.schedule.placements if p.access is Access.STRIDED]
            last = self.schedule.loops - 1
            coordinates = self._coordinates(0, last, "i", self._moving(names, range(last + 1)))
        return {"coordinates": coordinates, "reads": [], "declarations": [], "inner": inner, "writes": []}

    def _scalar_offset(self, name: str) -> str:
        access = self.schedule.placement(name).access
        if access is Access.SINGLE:
            return ""
        if access in (Access.DENSE, Access.UNALIGNED):
            return "i"
        return self._offset(name, range(self.schedule.loops))

    def _store(self, pointer: str, output: Output) -> list[str]:
        """The value's name first where both do not fit one line."""
        value = self.printer.text(output.expr)
        line = f"fg::store({pointer}, {value});"
        if len(line) + len("      ") <= WIDTH:
            return [line]
        return [f"const {output.expr.dtype.ctype} {output.name} = {value};", f"fg::store({pointer}, {output.name});"]

    def _read(self, operand: Operand, offset: str) -> str:
        return f"const {operand.dtype.compute.ctype} {operand.name} = fg::load({self._pointer(operand.name, offset)});"

    def _vector(self) -> dict[str, Any]:
        view: dict[str, Any] = {"coordinates": [], "reads": [], "declarations": [], "inner": [], "writes": []}
        offset_names = [
            p.name for p in self.schedule.placements if p.access in (Access.ROW, Access.SPLAT, Access.STRIDED)
        ]
        last = self.schedule.loops - 1
        used = self._moving(offset_names, range(last + 1))
        if offset_names and self.schedule.whole_rows:
            view["coordinates"] = self._coordinates(0, last, "i", used)
        elif offset_names:
            view["inner"] = self._coordinates(0, last, "fg::at_most(i + k, n - 1)", used)
        whole = bool(self.kernel.reduces)
        for operand in self.kernel.operands:
            if not whole or operand.name in self.read_in_body:
                self._vector_read(operand, view)
        view["inner"] += self._lets(self.kernel.body)
        for output in self.kernel.pointwise if whole else self.kernel.outputs:
            self._vector_write(output, view)
        return view

    def whole(self) -> dict[str, Any]:
        """The elementwise walk in a loop, with sums on the way."""
        kernel, schedule, view = self.kernel, self.schedule, self._vector()
        singles = [o for o in kernel.operands if schedule.placement(o.name).access is Access.SINGLE]
        lines = [self._read(o, "") for o in singles if o.name in self.read_in_body]
        view["reads"] = [line for line in view["reads"] if line not in lines]
        inside = "" if schedule.exact else "if (i + k < n) "
        view["inner"] += [f"{inside}{r.name} += {self.printer.text(r.expr)};" for r in kernel.reduces]
        read = {o.name for o in singles if o.name in self.read_in_body}
        return {
            **self._common(),
            **view,
            "vector": schedule.vector,
            "singles": lines,
            "accumulators": self._accumulators(),
            "sums": [r.name for r in kernel.reduces],
            "finish": self._partials("blockIdx.x") if schedule.split else self._epilogue(read),
        }

    def _vector_read(self, operand: Operand, view: dict[str, Any]) -> None:
        name, vector = operand.name, self.schedule.vector
        access, ctype = self.schedule.placement(name).access, operand.dtype.compute.ctype
        everywhere = range(self.schedule.loops)
        if access is Access.SINGLE:
            view["reads"].append(self._read(operand, ""))
        elif access is Access.SPLAT:
            view["reads"].append(self._read(operand, self._offset(name, everywhere)))
        elif access is Access.STRIDED:
            view["inner"].append(self._read(operand, self._strided_offset(name)))
        else:
            if access is Access.ROW:
                load = f"fg::load_vector<{vector}>({self._pointer(name, self._offset(name, everywhere))})"
            elif access is Access.DENSE and self.schedule.exact:
                load = f"fg::load_vector<{vector}>({name}_ptr + i)"
            else:
                load = f"fg::load{'_unaligned' if access is Access.UNALIGNED else ''}<{vector}>({name}_ptr, i, n)"
            view["reads"].append(f"const auto {name}_v = {load};")
            view["inner"].append(f"const {ctype} {name} = {name}_v[k];")

    def _strided_offset(self, name: str) -> str:
        """Element k of the vector; where rows are whole the fast coordinate is that of the vector's first element."""
        offset = self._offset(name, range(self.schedule.loops))
        fast = self.schedule.placement(name).moves[-1]
        if self.schedule.whole_rows and fast != "0":
            step = "k" if fast == "1" else f"k * {name}_stride{self.schedule.loops - 1}"
            return f"{offset} + {step}"
        return offset

    def _vector_write(self, output: Output, view: dict[str, Any]) -> None:
        name, vector, value = output.name, self.schedule.vector, self.printer.text(output.expr)
        access = self.schedule.placement(name).access
        if access is Access.STRIDED:
            store = f"fg::store({self._pointer(name, self._strided_offset(name))}, {value});"
            view["inner"].append(store if self.schedule.whole_rows else f"if (i + k < n) {store}")
            return
        view["declarations"].append(f"fg::Vec<{output.dtype.compute.ctype}, {vector}> {name}_v;")
        view["inner"].append(f"{name}_v[k] = {value};")
        if access is Access.ROW:
            offset = self._offset(name, range(self.schedule.loops))
            view["writes"].append(f"fg::store_vector<{vector}>({self._pointer(name, offset)}, {name}_v);")
        elif access is Access.DENSE and self.schedule.exact:
            view["writes"].append(f"fg::store_vector<{vector}>({name}_ptr + i, {name}_v);")
        else:
            kind = "_unaligned" if access is Access.UNALIGNED else ""
            view["writes"].append(f"fg::store{kind}<{vector}>({name}_ptr, i, n, {name}_v);")

    # -- turned ---------------------------------------------------------------------------------------------------

    def turned(self) -> dict[str, Any]:
        schedule = self.schedule
        outer = schedule.loops - 2
        names = [p.name for p in schedule.placements]
        tiles, inner = [], []
        for operand in self.kernel.operands:
            ctype = operand.dtype.compute.ctype
            if schedule.placement(operand.name).access is Access.TURNED:
                offset = self._tile_offset(operand.name, outer)
                tiles.append({"name": operand.name, "ctype": ctype, "offset": offset})
                inner.append(f"const {ctype} {operand.name} = {operand.name}_tile[threadIdx.x][line];")
            else:
                inner.append(self._read(operand, self._tile_offset(operand.name, outer)))
        inner += self._lets(self.kernel.body)
        for output in self.kernel.outputs:
            pointer = self._pointer(output.name, self._tile_offset(output.name, outer))
            inner += self._store(pointer, output)
        coordinates = (
            self._coordinates(0, outer - 1, "rest", self._moving(names, range(outer)), "matrix") if outer else []
        )
        return {**self._common(), "loops": schedule.loops, "tiles": tiles, "inner": inner, "coordinates": coordinates}

    def _tile_offset(self, name: str, outer: int) -> str:
        moves = self.schedule.placement(name).moves
        terms = [self._offset(name, range(outer))]
        for loop, at in ((outer, "row"), (outer + 1, "col")):
            if moves[loop] != "0":
                terms.append(at if moves[loop] == "1" else f"{at} * {name}_stride{loop}")
        return " + ".join(term for term in terms if term)

    # -- row and column -------------------------------------------------------------------------------------------

    def reduction(self) -> dict[str, Any]:
        schedule, kernel = self.schedule, self.kernel
        kept, total = range(schedule.loops), schedule.loops + schedule.inner
        names = [o.name for o in kernel.operands if o.name in self.read_in_body]
        per_element = [n for n in names if self._moving([n], range(schedule.loops, total))]
        inner = self._coordinates(
            schedule.loops, total - 1, "i", self._moving(per_element, range(schedule.loops, total))
        )
        kept_reads = []
        for operand in kernel.operands:
            if operand.name in per_element:
                inner.append(self._read(operand, self._offset(operand.name, range(total))))
            elif operand.name in names:
                kept_reads.append(self._read(operand, self._offset(operand.name, kept)))
        inner += self._lets(kernel.body)
        inner += [f"{r.name} += {self.printer.text(r.expr)};" for r in kernel.reduces]
        late = [] if schedule.split else [o.name for o in kernel.outputs] + self._late_operands()
        return {
            **self._common(),
            "split": schedule.split,
            "rows": schedule.threads // 32,
            "kept_coordinates": self._coordinates(0, schedule.loops - 1, "result", self._moving([*names, *late], kept)),
            "kept_reads": kept_reads,
            "accumulators": self._accumulators(),
            "inner": inner,
            "sums": [r.name for r in kernel.reduces],
            "finish": self._partials(f"{schedule.index}(blockIdx.y) * m + result")
            if schedule.split
            else self._epilogue(set(names) - set(per_element)),
        }

    def _late_operands(self) -> list[str]:
        needed = self._needed((*self.kernel.epilogue, *self.kernel.outputs))
        return [o.name for o in self.kernel.operands if o.name in needed]

    def _accumulators(self) -> list[str]:
        return [f"{r.expr.dtype.ctype} {r.name} = 0;" for r in self.kernel.reduces]

    def _partials(self, position: str) -> list[str]:
        return [f"{r.name}_partial[{position}] = {r.name};" for r in self.kernel.reduces]

    def _epilogue(self, already: set[str]) -> list[str]:
        """What follows the reductions; in a column kernel the reads of the loop are out of scope by now."""
        if self.schedule.template == "column":
            already = set()
        kept = range(self.schedule.kept)
        late = [o for o in self.kernel.operands if o.name in self._late_operands() and o.name not in already]
        lines = [self._read(o, self._offset(o.name, kept)) for o in late]
        lines += self._lets(self.kernel.epilogue)
        for output in self.kernel.outputs:
            pointer = self._pointer(output.name, self._offset(output.name, kept))
            lines += self._store(pointer, output)
        return lines

    def finish(self, name: str) -> dict[str, Any]:
        kernel, kept = self.kernel, range(self.schedule.kept)
        late = [*self._late_operands(), *(o.name for o in kernel.outputs)]
        return {
            "signature": signature(name, parameters(kernel, self.schedule, "finish")),
            "threads": FINISH_THREADS,
            "wide": self.schedule.wide_finish,
            "index": self.schedule.index,
            "kept_coordinates": self._coordinates(0, self.schedule.kept - 1, "result", self._moving(late, kept)),
            "accumulators": self._accumulators(),
            "sums": [r.name for r in kernel.reduces],
            "finish": self._epilogue(set()),
        }

"""A compiled program: the launches of one op for one layout, ready to be handed pointers.

A program knows sizes and strides; what varies from call to call are pointers, Python scalars and the stream.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from fusegen.core.dtypes import DType
from fusegen.core.ir import Scalar
from fusegen.core.monoids import BY_KIND
from fusegen.fuse.finish import FINISHES
from fusegen.fuse.kernel import Kernel
from fusegen.fuse.row_kernel import SHARE_AXIS
from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.schedule import Launch, Schedule
from fusegen.generate.names import OpNames
from fusegen.generate.params import Param, parameters
from fusegen.generate.rendered import Rendered

Grid = tuple[int, int, int]
# Gives an object that owns so many bytes, and their address.
Allocate = Callable[[int], tuple[Any, int]]


class Loaded(Protocol):
    """A kernel in the memory of the device that will run it.

    ``prepared`` gives what enqueues it on a stream. ``params`` is the address of a table of argument addresses. Two
    threads must not use one at once.
    """

    def prepared(self, grid: Grid, block: Grid, params: int) -> Callable[[int], None]: ...


class Launchable(Loaded, Protocol):
    """One that the native call path can launch: ``address`` is what it launches, with ``shared`` bytes of shared
    memory, ``early`` or not (driver.EarlyFunction); ``fail`` raises what a code means."""

    shared: int
    early: bool

    @property
    def address(self) -> int: ...

    def fail(self, code: int, message: str) -> None: ...


class Target(Protocol):
    """Where kernels run: the CPU emulator or a GPU.

    ``load``: ``follows`` says that another kernel of its program precedes it: it may then start before that one ends.
    """

    @property
    def chip(self) -> Chip: ...

    def load(self, rendered: Rendered, entry: str, declared: str, follows: bool) -> Loaded: ...


class Runnable(Protocol):
    """Launches that take a call's pointers and numbers (see ``Program.run``)."""

    def run(self, values: list[Any], allocate: Allocate, stream: int) -> None: ...


@dataclass(frozen=True)
class Workspace:
    """Memory of one call: results that a later kernel reads, or the partial results of a split reduction."""

    name: str
    dtype: DType
    elements: int


def magic_division(value: int) -> tuple[int, int, int]:
    """(magic, shift, value) of ``fg::Divisor``: ``i // value == (i * magic) >> shift`` for 0 <= i < 2^31."""
    value = max(value, 1)  # an axis without elements is never divided by, but has a parameter
    shift = (value - 1).bit_length()
    return -(-(1 << (31 + shift)) // value), 31 + shift, value


class Arguments:
    """The argument block of a launch: eight bytes a slot, and a table of the slots' addresses as the driver wants it.

    Blocks are pooled, because another thread may call the same program meanwhile; and so are their launches.
    """

    launch: Callable[[int], None]

    def __init__(self, static: Sequence[bytes], dynamic: int) -> None:
        offsets = [8 * i for i in range(dynamic)]
        position = 8 * dynamic
        for piece in static:
            offsets.append(position)
            position += -(-len(piece) // 8) * 8
        self.memory = ctypes.create_string_buffer(max(position, 8))
        base = ctypes.addressof(self.memory)
        for offset, piece in zip(offsets[dynamic:], static, strict=True):
            ctypes.memmove(base + offset, piece, len(piece))
        self.table = (ctypes.c_void_p * max(len(offsets), 1))(*(base + offset for offset in offsets))
        self.address = ctypes.addressof(self.table)


# A number of a call in its slot of eight bytes.
SCALAR_FORMATS = {"float": "f4x", "double": "d", "int64_t": "q", "bool": "?7x"}


@dataclass
class KernelLaunch:
    """One launch. ``dynamic`` are the names of pointers and scalars that each call brings, in slot order; ``sources``
    says where a call's values have them (``Program.bind``); ``pack`` puts them into an argument block's memory."""

    loaded: Loaded
    grid: Grid
    block: Grid
    dynamic: tuple[str, ...]
    format: str
    static: tuple[bytes, ...]
    order: tuple[int, ...]
    sources: tuple[int, ...] = ()
    pool: list[Arguments] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pack = struct.Struct(self.format).pack_into

    def run(self, values: Sequence[Any], stream: int) -> None:
        try:
            arguments = self.pool.pop()
        except IndexError:
            arguments = self.prepared()
        self.pack(arguments.memory, 0, *[values[source] for source in self.sources])
        arguments.launch(stream)
        self.pool.append(arguments)

    def prepared(self) -> Arguments:
        """An argument block for the pool, and what launches it."""
        arguments = self._new()
        arguments.launch = self.loaded.prepared(self.grid, self.block, arguments.address)
        return arguments

    def image(self) -> tuple[bytes, list[int]]:
        """The argument block without what calls bring, and where in it each kernel argument is."""
        arguments = self._new()
        base = ctypes.addressof(arguments.memory)
        return arguments.memory.raw, [(address or 0) - base for address in arguments.table[: len(self.order)]]

    def _new(self) -> Arguments:
        arguments = Arguments(self.static, len(self.dynamic))
        slots = list(arguments.table)
        for position, slot in enumerate(self.order):
            arguments.table[position] = slots[slot]
        return arguments


@dataclass
class Program:
    """Launches in order, and the workspace they need."""

    steps: list[KernelLaunch]
    workspaces: list[Workspace]

    def bind(self, names: Sequence[str]) -> Program:
        """Say in which order calls bring pointers and scalars; workspaces follow them."""
        places = {name: i for i, name in enumerate((*names, *(w.name for w in self.workspaces)))}
        for step in self.steps:
            step.sources = tuple(places[name] for name in step.dynamic)
        return self

    def run(self, values: list[Any], allocate: Allocate, stream: int) -> None:
        """Launch everything on ``stream``.

        Args:
            values: pointers of operands and outputs and values of scalars, in the order of the names that ``bind`` got.
            allocate: gives memory that is valid on ``stream``.
        """
        owners = []
        for workspace in self.workspaces:
            owner, address = allocate(workspace.elements * workspace.dtype.size)
            owners.append(owner)
            values.append(address)
        for step in self.steps:
            step.run(values, stream)


def make_steps(
    kernel: Kernel, schedule: Schedule, launch: Launch, rendered: Rendered, target: Target
) -> tuple[list[KernelLaunch], list[Workspace]]:
    """The launches of one scheduled kernel: one, or two of a split reduction, or none where there is nothing to do."""
    if launch.empty:
        return [], []
    declared = f"{kernel.op.name}, declared in {kernel.op.declared}" if kernel.op.declared else kernel.op.name
    loaded = target.load(rendered, rendered.entry, declared, schedule.follows)
    names = OpNames()  # the signature's are in the text
    steps = [_step(loaded, launch.grid, launch.block, parameters(kernel, schedule, names), schedule, launch)]
    workspaces: list[Workspace] = []
    if rendered.finish:
        m = prod(launch.sizes[: schedule.kept])
        workspaces = [
            Workspace(partial_results(r.name), r.expr.dtype, launch.splits * m * BY_KIND[r.kind].fields)
            for r in kernel.states
        ]
        loaded = target.load(rendered, rendered.finish, declared, True)
        results, block = FINISHES[schedule.finish]
        params = parameters(kernel, schedule, names, "finish")
        steps.append(_step(loaded, (-(-m // results), 1, 1), block, params, schedule, launch))
    return steps, workspaces


def partial_results(name: str) -> str:
    """The partial results of a split reduction, by a name that no argument can have."""
    return f"partial results of {name}"


def _step(
    loaded: Loaded, grid: Grid, block: Grid, params: Sequence[Param], schedule: Schedule, launch: Launch
) -> KernelLaunch:
    dynamic = [p for p in params if p.kind in ("in", "out", "partial", "scalar")]
    static = [p for p in params if p not in dynamic]
    slots = {id(p): position for position, p in enumerate((*dynamic, *static))}
    formats = "".join(SCALAR_FORMATS[p.ctype] if p.kind == "scalar" else "Q" for p in dynamic)
    return KernelLaunch(
        loaded, grid, block,
        tuple(partial_results(p.source) if p.kind == "partial" else p.source for p in dynamic),
        "<" + formats,
        tuple(static_bytes(p, schedule, launch) for p in static),
        tuple(slots[id(p)] for p in params),
    )  # fmt: skip


def static_bytes(param: Param, schedule: Schedule, launch: Launch) -> bytes:
    """What a parameter is that the layout of a call tells, as it lies in memory."""
    return in_memory(param.ctype, static_value(param, schedule, launch))


def in_memory(ctype: str, value: int) -> bytes:
    """A number as a parameter of this C type: as it is, or as what divides by it (``fg::Divisor``)."""
    if ctype == "fg::Divisor":
        return struct.pack("<IIi", *magic_division(value))
    return struct.pack("<q" if ctype in ("int64_t", "fg::Divisor64") else "<i", value)


def static_value(param: Param, schedule: Schedule, launch: Launch) -> int:
    """What a parameter is that the layout of a call tells."""
    ranges = {"all": launch.sizes, "kept": launch.sizes[: schedule.kept], "reduced": launch.sizes[schedule.kept :]}
    return {
        "count": lambda: prod(ranges[param.source]),
        "divisor": lambda: launch.sizes[param.loop],
        "extent": lambda: launch.sizes[param.loop],
        "stride": lambda: launch.strides[param.source][param.loop],
        "axis": lambda: launch.axis_sizes[param.source],
        "chunk": lambda: launch.chunk,
        "splits": lambda: launch.splits,
        "segment": lambda: launch.segment,
        "shares": lambda: launch.partial_sizes[SHARE_AXIS],
    }[param.kind]()


def scalar_value(scalar: Scalar, value: Any) -> Any:
    """A Python number as the kernel's scalar wants it; beyond float32 it is infinite, as in torch."""
    if not scalar.dtype.is_float:
        return value
    return float(value) if scalar.dtype.size == 8 else ctypes.c_float(value).value

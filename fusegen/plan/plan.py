"""What is known of a call before its tensors have addresses: where everything lies, and the program that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusegen import pipeline
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeviceError
from fusegen.core.ir import Op
from fusegen.launch.program import Program
from fusegen.plan.frameworks import Framework, TensorInfo
from fusegen.plan.targets import CpuTarget, GpuTarget

# What is known of tensors that results are to be written to; None for one that is to be made.
Infos = Sequence[TensorInfo | None]


@dataclass(frozen=True)
class Slot:
    """A pointer of the program: argument or output ``source``, ``offset`` bytes further on."""

    name: str
    source: str
    offset: int


@dataclass(frozen=True)
class Allocation:
    """A tensor that a plan allocates for itself."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    def allocate(self, framework: Framework, device: str) -> Any:
        return framework.empty(self.shape, self.strides, self.dtype, device)


@dataclass(frozen=True)
class IntermediateBuffer(Allocation):
    """A tensor that one step of a plan writes and a later one reads: the first and the last step that use it."""

    first: int
    last: int


@dataclass(frozen=True)
class BufferLayout:
    """The layout of every buffer that an op reads and writes.

    ``results``: name, shape, strides and dtype of each tensor that a call returns.
    """

    layout: pipeline.Layout
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    results: tuple[tuple[str, tuple[int, ...], tuple[int, ...], DType], ...]


@dataclass
class Plan:
    """One op for one layout. Its program takes the inputs' addresses, the outputs', and the op's scalars.

    ``program`` is None for a plan that is more than launches and products. ``intermediates``: the
    buffers between its steps, of which ``blocks`` are written one by one. ``verified``: what it computed was compared
    with the reference (run/verify). ``layout``: what the program was made for, where that is known; ``is_tuned``: other
    schedules were measured beside its own (tuning/session), or are not to be. ``elsewhere``: operands and results of
    the same kernel that may not share memory (run/in_place), once that was asked.
    """

    program: Program | None
    target: CpuTarget | GpuTarget
    device: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    results: tuple[tuple[str, tuple[int, ...], tuple[int, ...], Any], ...]
    intermediates: tuple[IntermediateBuffer, ...] = ()
    blocks: tuple[Slot, ...] = ()
    verified: bool = False
    layout: pipeline.Layout | None = None
    is_tuned: bool = False
    elsewhere: frozenset[tuple[str, str]] | None = None


def results_of(plan: Plan, framework: Framework, out: Sequence[Any] | None) -> list[Any]:
    """Tensors for a plan's results: those given, and new ones."""
    return [
        given if given is not None else framework.empty(shape, strides, dtype, plan.device)
        for (_, shape, strides, dtype), given in zip(plan.results, out or [None] * len(plan.results), strict=True)
    ]


def common_device(op: Op, infos: Mapping[str, TensorInfo], out: Infos | None) -> str:
    """Where all tensors are.

    Raises:
        DeviceError: in several places.
    """
    found = {name: info.device for name, info in infos.items()}
    found.update({f"out[{i}]": info.device for i, info in enumerate(out or []) if info})
    if len(set(found.values())) > 1:
        raise DeviceError(
            op.name, given=", ".join(f"{name} on {device}" for name, device in found.items()),
            expected="all tensors on one device", fix="move them yourself with .to(device): fusegen never copies",
        )  # fmt: skip
    return next(iter(found.values()))

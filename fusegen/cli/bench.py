"""``fusegen bench``: time of every pass compared with the floor and the peers, as a table, as plots and as text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusegen.bench.baselines import NAMES, Call, choose, namesake, peers
from fusegen.bench.comparison import PASSES, Comparison, InTorch, Measured, Roof
from fusegen.cli.arguments import Request, resolve
from fusegen.cli.examples import example_of
from fusegen.cli.inputs import POSITIVE, Case, choose_device, load_torch, sized
from fusegen.cli.progress import Bar
from fusegen.core.ir import Op
from fusegen.core.views import dims_of
from fusegen.declare.trace import TensorSpec
from fusegen.fused_op import FusedOp
from fusegen.inspect.cost import floor_bytes
from fusegen.inspect.passes import differentiable, shown_passes
from fusegen.inspect.units import size_text
from fusegen.matmul.libraries.stopwatch import Clock, Stopwatch, WallClock

if TYPE_CHECKING:
    from rich.table import Table

OURS = "fusegen"
# The folder of --plot that stands for the terminal; what a bare --plot means.
TERMINAL = Path("-")
# Sizes of a sweep: bytes that the forward must move, from the launch to well beyond the caches. The emulator is slow:
# from SLOW bytes on whoever waits for it is told so.
SLOW = 2**22
SWEEP = {"cuda": [2**bits for bits in range(16, 31, 2)], "cpu": [2**bits for bits in range(12, 21, 2)]}


@dataclass
class Bench:
    """One op, its peers and a clock.

    Attributes:
        roof: None on the emulator, of which no such claim is made.
        left_out: why a peer has no time, by its name and perhaps a pass.
        tell: called with the name of what is timed.
    """

    op: FusedOp
    device: str
    wanted: tuple[str, ...]
    clock: Clock
    roof: Roof | None
    left_out: dict[str, str] = field(default_factory=dict)
    tell: Callable[[str], None] = lambda what: None

    @classmethod
    def of(cls, op: FusedOp, device: str, wanted: tuple[str, ...], repeats: int) -> Bench:
        """With what this machine can do measured first."""
        if device == "cpu":
            return cls(op, device, wanted, WallClock(repeats), None)
        clock = Stopwatch(repeats)
        return cls(op, device, wanted, clock, Roof(clock.copy_bandwidth(), clock.launch_floor()))

    def measure(self, specs: Mapping[str, Any]) -> list[Measured]:
        """Every pass that the op has, for arguments like ``specs``."""
        case = self._case(specs)
        floors = [floor_bytes(item) for item in shown_passes(self.op, (), case.arguments)]
        moved = dict(zip(PASSES, [*floors, sum(floors)], strict=False))
        if len(floors) == 1:
            del moved["bwd"]
        comparison = self._comparison(case)
        found = []
        for which, size in moved.items():
            self.tell(f"{which}, {size_text(size)}")
            found.append(Measured(which, size, comparison.time(self.clock, which)))
        self.left_out |= comparison.left_out
        return found

    def _case(self, specs: Mapping[str, Any]) -> Case:
        """Random arguments, between 0 and 1 where normal ones leave the op's domain; floats require gradients."""
        torch = load_torch()
        case = Case.random(self.op, specs, self.device, 0, POSITIVE if example_of(self.op.name).positive else None)
        with torch.no_grad():
            floats = [r for r in case.call() if r.is_floating_point() and r.numel()]
        if not all(r.isfinite().float().mean() > 0.9 for r in floats):
            case = Case.random(self.op, specs, self.device, 0, POSITIVE)
        return case.requiring(differentiable(case.trace()))

    def _comparison(self, case: Case) -> Comparison:
        names = list(case.tensors)
        given = {name: value for name, value in case.arguments.items() if name not in case.tensors}
        bound = self.op.declaration.bind((), case.arguments)
        options = {name: value for name, value in bound.items() if name not in case.tensors}
        inputs = list(case.tensors.values())
        ours = InTorch(OURS, lambda *tensors: self.op(**dict(zip(names, tensors, strict=True)), **given))
        in_torch = namesake(self.op.name, names, given, inputs, ours.results(inputs)) if self.wanted else None
        found, absent = peers(Call(case.trace(), names, options, in_torch), self.wanted, self.device == "cuda")
        comparison = Comparison([ours, *found], inputs, absent)
        comparison.admit()
        return comparison


def bench_op(
    name: str, dtype: Sequence[str], shape: Sequence[str], arg: Sequence[str], device: str | None, repeats: int,
    among: str | None, plot: Path | None,
) -> None:  # fmt: skip
    """Print the table; with ``plot``, sweep sizes as well and draw two pictures.

    Args:
        plot: the folder of the pictures; TERMINAL: draw them as text.
    """
    request = Request.parse(shape, dtype, arg)
    op, where = resolve(name, request), choose_device(device)
    wanted = choose(among) if among is not None or where == "cuda" else ("torch",)
    if plot not in (None, TERMINAL):
        from fusegen.bench.plots import load_matplotlib

        load_matplotlib()  # before anything is measured
    specs = sized(op, request)
    tensors = [spec for spec in specs.values() if isinstance(spec, TensorSpec)]
    size = sum(prod(spec.shape) * spec.dtype.size for spec in tensors)
    if where == "cpu" and size > SLOW:
        print(f"the CPU emulator takes minutes for {size_text(size)}; a smaller --shape shows as much", file=sys.stderr)
    sweeping = sweep_specs(op, specs, SWEEP[where]) if plot is not None else []
    with Bar(total=1 + len(PASSES) * (1 + len(sweeping))) as bar:
        bar.step("what this machine can do")
        bench = Bench.of(op, where, wanted, repeats)
        bench.tell = bar.step
        measured = bench.measure(specs)
        print_table(bench, specs, measured)
        known = set(bench.left_out)
        sweep = [bench.measure(scaled) for scaled in sweeping]
    for who, why in bench.left_out.items():
        if who not in known:
            print(f"{who} left out of some sizes: {why}", file=sys.stderr)
    if plot == TERMINAL:
        from rich.console import Console

        from fusegen.bench.text_plots import print_plots

        print_plots(Console(highlight=False), measured, sweep, bench.roof)
    elif plot is not None:
        from fusegen.bench.plots import write_plots

        for path in write_plots(plot, op.name, place(where), measured, sweep, bench.roof):
            print(f"wrote {path}", file=sys.stderr)


def place(device: str) -> str:
    """What the times are of."""
    return str(load_torch().cuda.get_device_name()) if device == "cuda" else "the CPU emulator"


# -- the sweep -------------------------------------------------------------------------------------------------------


def sweep_specs(op: FusedOp, specs: Mapping[str, Any], targets: Sequence[int]) -> list[dict[str, Any]]:
    """Arguments whose forward moves about so many bytes, by scaling the first axis wherever it occurs.

    An axis keeps at least two elements: with one, it would be broadcast.
    """
    traced = op.trace(**specs)
    axis = _first_axis(traced)
    now = floor_bytes(shown_passes(op, (), specs)[0])
    found: list[dict[str, Any]] = []
    for target in targets:
        scaled = {**specs, **_scaled(traced, specs, axis, target / max(now, 1))}
        if scaled not in found:
            found.append(scaled)
    return found


def _first_axis(op: Op) -> str | None:
    """The slowest axis of the operand with the most of them."""
    widest = max(op.operands, key=lambda operand: sum(axis is not None for axis in operand.shape))
    return next((axis for axis in widest.shape if axis), None)


def _scaled(op: Op, specs: Mapping[str, Any], axis: str | None, factor: float) -> dict[str, TensorSpec]:
    found: dict[str, TensorSpec] = {}
    for operand in op.operands:
        base = operand.base
        if axis is None or axis not in operand.shape:
            continue
        dim = dims_of(operand)[operand.shape.index(axis)]
        spec = specs[base]
        parts = operand.packed.count if operand.packed and operand.packed.dim == dim else 1
        parts *= prod(count for groups in operand.groups for count in groups.counts if groups.dim == dim)
        size = max(2, round(spec.shape[dim] // parts * factor)) * parts
        found[base] = TensorSpec(spec.dtype, (*spec.shape[:dim], size, *spec.shape[dim + 1 :]))
    return found


# -- the table -------------------------------------------------------------------------------------------------------


def print_table(bench: Bench, specs: Mapping[str, Any], measured: Sequence[Measured]) -> None:
    """What was measured, how, and who is missing."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    tensors = [f"{n} {s.dtype.short}{list(s.shape)}" for n, s in specs.items() if isinstance(s, TensorSpec)]
    console.print(f"{bench.op.name} on {place(bench.device)}: {', '.join(tensors)}", markup=False)
    console.print(_method(bench) + "\n", markup=False)
    width = None if sys.stdout.isatty() else 200
    Console(highlight=False, width=width).print(_table(bench, measured))
    notes = [f"{name} left out: {reason}" for name, reason in bench.left_out.items()]
    if any("JAX" in m.times for m in measured):
        notes.insert(0, "JAX: calls back to back by the wall clock, caches not flushed")
    if notes:
        console.print("\n" + "\n".join(notes), markup=False, style="dim")


def _method(bench: Bench) -> str:
    if bench.roof is None:
        return "Emulator times, by the wall clock on the CPU: they say nothing about a GPU. Microseconds, median."
    return (
        "Microseconds on the device: L2 flushed before every call, host ahead of the device, median. In this run a "
        f"copy moves {bench.roof.bandwidth / 1e6:.2f} TB/s and a launch takes {bench.roof.launch:.1f}; floor: the "
        "fewest bytes at that bandwidth."
    )


def _table(bench: Bench, measured: Sequence[Measured]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("pass", no_wrap=True)
    columns = [name for name in (OURS, *NAMES) if any(name in m.times for m in measured)]
    claims = ["floor", "fusegen / floor", "best peer / fusegen"] if bench.roof else []
    for title in ("bytes", *claims[:1], *columns, *claims[1:]):
        table.add_column(title, justify="right", no_wrap=True)
    for m in measured:
        times = [number(m.times[name]) if name in m.times else "" for name in columns]
        floor, *ratios = _claims(bench.roof, m) if bench.roof else [""]
        table.add_row(m.which, size_text(m.moved), *([floor] if bench.roof else []), *times, *ratios)
    return table


def _claims(roof: Roof, m: Measured) -> list[str]:
    """The floor, fusegen over the floor, and the best peer over fusegen: what only a GPU's times say."""
    floor, best = m.moved / roof.bandwidth, best_peer(m.times)
    beside = f"{best} {m.times[best] / m.times[OURS]:.2f}" if best else ""
    return [number(floor), f"{m.times[OURS] / floor:.2f}" if floor else "", beside]


def best_peer(times: Mapping[str, float]) -> str:
    """The fastest peer; empty where there is none."""
    others = {name: time for name, time in times.items() if name != OURS}
    return min(others, key=lambda name: others[name], default="")


def number(microseconds: float) -> str:
    """One decimal below a thousand."""
    return f"{microseconds:.1f}" if microseconds < 999.95 else f"{microseconds:.0f}"

"""A step that adds up updates, or multiplies them, which the framework has sorted by their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from fusegen.core.dtypes import BY_NAME, bool_, int64
from fusegen.core.one_term import start
from fusegen.fuse.scatter_schedule import POSITIONS
from fusegen.fuse.schedule import Buffer, Loop
from fusegen.fuse.sorted_scatter_schedule import (
    KeysSchedule,
    SortedScatter,
    own_axes,
    schedule_places,
    schedule_sorted_scatter,
)
from fusegen.fuse.steps import Scatter
from fusegen.generate.rendered import Rendered
from fusegen.generate.sorted_scatters import (
    SortedParam,
    keys_parameters,
    keys_program,
    render_keys,
    render_runs,
    runs_parameters,
    runs_program,
)
from fusegen.kernel_program.nodes import KernelProgram
from fusegen.launch.memo import remember
from fusegen.launch.program import KernelLaunch, Program, Workspace, in_memory
from fusegen.matmul.steps import NativeSteps
from fusegen.matmul.views import TensorLayout
from fusegen.plan.frameworks import Framework, target_of
from fusegen.plan.layout import row_major
from fusegen.plan.native_step import View
from fusegen.plan.plan import Allocation
from fusegen.run.launched_step import LaunchedStep

_SORTED_KINDS = ("sum", "prod")  # the largest and the smallest are so in any order


@dataclass(frozen=True)
class PlannedSort:
    """How kernels of a scatter walk memory."""

    scatter: SortedScatter
    note = "sorted by their places, which the framework does, and added up in order: what sorting moves is not counted"

    @property
    def kernels(self) -> tuple[Rendered, ...]:
        """Their texts: of keys, of runs, and of the sums of parts if there are several."""
        scatter = self.scatter
        runs = [
            remember("runs of a scatter", (repr(run),), lambda run=run: asdict(render_runs(run)))  # type: ignore[misc]
            for run in scatter.runs[: len(scatter.lengths)]
        ]
        return _keys_text(scatter.keys), *map(Rendered.from_fields, runs)

    @property
    def programs(self) -> tuple[KernelProgram, ...]:
        """Those of its kernels, in the order of texts."""
        scatter = self.scatter
        return keys_program(scatter.keys), *map(runs_program, scatter.runs[: len(scatter.lengths)])

    @property
    def seconds(self) -> float:
        """What it takes on an H200, about."""
        return self.scatter.seconds


def plan_sorted_scatter(
    step: Scatter, sizes: Mapping[str, int], tensors: Sequence[Buffer], follows: bool
) -> PlannedSort | None:
    """The kernels of a scatter whose updates are sorted; None where the framework's routine does it.

    Args:
        tensors: places, updates and result, and what the sum is added to if that is another one.
        follows: other steps run before it.
    """
    if step.moves or step.kind not in _SORTED_KINDS or bool_ in (tensors[1].dtype, tensors[2].dtype):
        return None
    line = tuple(axis for axis in step.axes if axis != step.axis)
    onto = step.onto or len(tensors) > 3
    found = schedule_sorted_scatter(
        step.kind, onto, line, step.over, step.axis, sizes, tensors[:3], follows, step.looked
    )
    return None if found is None else PlannedSort(found)


@dataclass(frozen=True)
class SortedScatterStep:
    """Kernels around the framework's sorting.

    Attributes:
        tensors: places, updates and result: each tensor, and how many bytes behind its first element it begins.
        result, base: views of the result and of what the sum is added to, if that is another tensor, by name.
        begins: what a place of the result holds without updates; None: what it holds already.
        keys: makes keys; ``runs`` adds up what has the same one.
    """

    tensors: tuple[tuple[str, int], ...]
    result: tuple[str, View]
    base: tuple[str, View] | None
    begins: int | float | None
    planned: PlannedSort
    keys: Program
    runs: Program
    device: str

    @property
    def uses(self) -> set[str]:
        return {name for name, _ in self.tensors} | ({self.base[0]} if self.base else set())

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        def view(name: str, of: View) -> Any:
            return framework.view(tensors[name], of.shape, of.strides, of.offset)

        if self.base:
            view(*self.result)[...] = view(*self.base)
        elif self.begins is not None:
            view(*self.result)[...] = self.begins
        scatter, device, stream = self.planned.scatter, self.device, framework.stream(self.device)

        def launch(program: Program, *values: int) -> None:
            target_of(device).run(program, [*values], stream, lambda size: framework.workspace(size, device))

        places, updates, result = (framework.pointer(tensors[name]) + offset for name, offset in self.tensors)
        keys = framework.empty((scatter.updates,), (1,), BY_NAME[scatter.keys.keys.name], device)
        launch(self.keys, places, framework.pointer(keys))
        keys, order = framework.sorted_keys(keys)
        launch(self.runs, framework.pointer(keys), framework.pointer(order), updates, result)

    def native_steps(self, place: int) -> NativeSteps | None:
        return None


def sorted_scatter_step(
    step: Scatter, planned: PlannedSort, tensors: Sequence[tuple[str, int]], result: tuple[str, View],
    base: tuple[str, View] | None, device: str,
) -> SortedScatterStep:  # fmt: skip
    """The step for tensors that lie so: see `SortedScatterStep`."""
    begins = None if step.onto or base else start(step.kind, planned.scatter.runs[0].wide)
    return SortedScatterStep(
        tuple(tensors[:3]), result, base, begins, planned, _keys_program(planned, device),
        _runs_program(planned, device), device,
    )  # fmt: skip


@dataclass(frozen=True)
class PlannedRoutine:
    """A scatter by the framework's routine; how a kernel looks at places for it, if one has to."""

    looking: KeysSchedule | None
    note = "by the framework's routine: what that moves beside is not counted"

    @property
    def kernels(self) -> tuple[Rendered, ...]:
        """The text of what looks at places."""
        return (_keys_text(self.looking),) if self.looking else ()

    @property
    def programs(self) -> tuple[KernelProgram, ...]:
        """What its threads do."""
        return (keys_program(self.looking),) if self.looking else ()


def plan_routine(step: Scatter, sizes: Mapping[str, int], places: Buffer, follows: bool) -> PlannedRoutine:
    """A scatter by the framework's routine.

    Args:
        places: what is known of the index.
        follows: other steps run before it.
    """
    axes = _axes_of_places(step, sizes, places)
    if step.looked is None or not prod(sizes[axis] for axis in axes):
        return PlannedRoutine(None)
    return PlannedRoutine(schedule_places(axes, step.axis, sizes, places, step.looked, follows)[0])


def _axes_of_places(step: Scatter, sizes: Mapping[str, int], places: Buffer) -> list[str]:
    return [*own_axes([axis for axis in step.axes if axis != step.axis], sizes, places), *step.over]


def places_step(
    step: Scatter, sizes: Mapping[str, int], places: Buffer, tensor: tuple[str, int], name: str, device: str,
    follows: bool,
) -> tuple[LaunchedStep, TensorLayout, Allocation]:  # fmt: skip
    """What looks at the places of a scatter that the framework's routine does, and where it puts them.

    Args:
        places: what is known of the index; ``tensor``: it, and how many bytes behind its first element it begins.
        name: of what is written.
        follows: other steps run before it.
    """
    assert step.looked is not None
    axes = _axes_of_places(step, sizes, places)
    shape = tuple(sizes[axis] for axis in axes)
    schedule, loops = schedule_places(axes, step.axis, sizes, places, step.looked, follows)
    program = Program([], []).bind(("places", "keys"))
    if prod(shape):
        program = _places_program(schedule, loops, {"n": prod(shape), "size": sizes[step.axis]}, device)
    strides = row_major(shape)
    launched = LaunchedStep((tensor, (name, 0)), (), ("places", "keys"), program, device)
    return launched, TensorLayout(name, dict(zip(axes, strides, strict=True))), Allocation(name, shape, strides, int64)


def keys_numbers(scatter: SortedScatter) -> dict[str, int]:
    """The numbers of the launch that makes keys, by kind."""
    return {
        "n": scatter.updates, "size": scatter.size, "places": scatter.places,
        "each": scatter.updates // (scatter.places // scatter.size),
    }  # fmt: skip


def runs_numbers(scatter: SortedScatter, n: int) -> dict[str, int]:
    """The numbers of a launch that adds up runs of so many, by kind."""
    tiles = -(-scatter.columns // scatter.runs[0].columns)
    return {"n": n, "places": scatter.places, "columns": scatter.columns, "tiles": tiles}


def static_value(param: SortedParam, numbers: Mapping[str, int], loops: Sequence[Sequence[Loop]]) -> int:
    """A number of a launch.

    Args:
        numbers: those that are no sizes and strides.
        loops: those that its parameters are of.
    """
    if param.kind not in ("divisor", "stride", "position"):
        return numbers[param.kind]
    loop = loops[param.loops][param.dim]
    if param.kind == "divisor":
        return loop.size
    name = "result" if param.of_result else "updates" if "updates" in loop.strides else "places"
    return loop.strides[POSITIONS if param.kind == "position" else name]


def _keys_program(planned: PlannedSort, device: str) -> Program:
    scatter = planned.scatter
    return _places_program(scatter.keys, scatter.loops[0], keys_numbers(scatter), device)


def _places_program(schedule: KeysSchedule, loops: Sequence[Loop], numbers: Mapping[str, int], device: str) -> Program:
    blocks, names = -(-numbers["n"] // schedule.threads), {"places tensor": "places", "keys": "keys"}
    kernel, params, block = _keys_text(schedule), keys_parameters(schedule), (schedule.threads, 1, 1)
    step = _launch(kernel, params, names, numbers, (loops,), (blocks, 1, 1), block, schedule.follows, device)
    return Program([step], []).bind(("places", "keys"))


def _keys_text(schedule: KeysSchedule) -> Rendered:
    made = remember("keys of a scatter", (repr(schedule),), lambda: asdict(render_keys(schedule)))
    return Rendered.from_fields(made)


def _runs_program(planned: PlannedSort, device: str) -> Program:
    """A launch for updates, then those for sums of parts, which lie in workspaces with their keys."""
    scatter, (_, *kernels), steps, workspaces = planned.scatter, planned.kernels, [], list[Workspace]()
    for level, n in enumerate(scatter.lengths):
        schedule, kernel = scatter.runs[level > 0], kernels[level > 0]
        keys, sums = (f"{what} {level}" if level else own for what, own in (("keys", "keys"), ("sums", "updates")))
        is_last = level + 1 == len(scatter.lengths)
        # The last launch leaves nothing: it has one part.
        names = {
            "keys": keys, "order": "order", "updates": sums, "result": "result",
            "next keys": keys if is_last else f"keys {level + 1}", "sums": sums if is_last else f"sums {level + 1}",
        }  # fmt: skip
        if level:
            workspaces.append(Workspace(keys, schedule.keys, n))
            workspaces.append(Workspace(sums, schedule.wide, n * scatter.columns))
        numbers = runs_numbers(scatter, n)
        params, grid = runs_parameters(schedule), (numbers["tiles"] * -(-n // schedule.rows), 1, 1)
        steps.append(
            _launch(kernel, params, names, numbers, scatter.loops[1:], grid, (*schedule.threads, 1), True, device)
        )
    return Program(steps, workspaces).bind(("keys", "order", "updates", "result"))


def _launch(
    kernel: Rendered, params: Sequence[SortedParam], names: Mapping[str, str], numbers: Mapping[str, int],
    loops: Sequence[Sequence[Loop]], grid: tuple[int, int, int], block: tuple[int, int, int], follows: bool,
    device: str,
) -> KernelLaunch:  # fmt: skip
    loaded = target_of(device).load(kernel, kernel.entry, "a scatter", follows)
    pointers = [param for param in params if param.pointer]
    static = [param for param in params if not param.pointer]
    order = [*pointers, *static]
    return KernelLaunch(
        loaded, grid, block, tuple(names[param.kind] for param in pointers), "<" + "Q" * len(pointers),
        tuple(in_memory(param.ctype, static_value(param, numbers, loops)) for param in static),
        tuple(order.index(param) for param in params),
    )  # fmt: skip

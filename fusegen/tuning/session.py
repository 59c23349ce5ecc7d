"""Tuning as users ask for it: ``fg.tune``, and what calls and plans ask of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusegen import pipeline
from fusegen.core.errors import FusegenError, warn
from fusegen.core.ir import Op
from fusegen.core.locks import lock
from fusegen.fuse.choices import NOTHING_CHOSEN, Chosen
from fusegen.launch.cache import default_cache
from fusegen.launch.program import Program, scalar_value
from fusegen.matmul.libraries.stopwatch import Clock, Stopwatch
from fusegen.plan import decided
from fusegen.plan.frameworks import Framework
from fusegen.plan.plan import Plan, results_of
from fusegen.plan.targets import CpuTarget, GpuTarget
from fusegen.tuning.search import Search
from fusegen.tuning.table import Entry, Table, add_to, key_of

if TYPE_CHECKING:
    import torch

# What fusegen's own ops are given to choose where nobody has tuned them: tools/tune_rows.py measured it.
SHIPPED = Path(__file__).with_name("shipped.json")
# Tune always; and the file that is read and written in place of the one in the cache folder.
VARIABLE, FILE_VARIABLE = "FUSEGEN_TUNE", "FUSEGEN_TUNED"
# How long the search for one op and layout takes at most; how many calls of each schedule are timed.
SECONDS, REPEATS = 20.0, 11
# By how much results may differ from those of the schedules' own choices, over the largest of them: other orders of
# additions round otherwise.
AGREEMENT = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass
class _State:
    """What ``fg.tune`` was told.

    Attributes:
        always: by the environment.
        inside: the searches that are on, the innermost one last: how long each may take, and what it found.
        frozen: how many ``frozen`` there are.
        used: entries of files that were named (``use``).
        own: those of the process's own file, and of others that are read on their own, once read.
    """

    always: bool
    inside: list[_Asked] = field(default_factory=list)
    frozen: int = 0
    used: Table = field(default_factory=Table)
    own: dict[Path, Table] = field(default_factory=dict)
    has_warned: bool = False


@dataclass
class _Asked:
    """One ``fg.tune``."""

    seconds: float
    again: bool
    tell: Callable[[str, int], None]
    found: list[Entry] = field(default_factory=list)


def _tell_nobody(what: str, tried: int) -> None:
    """Of whoever did not ask to be told."""


state = _State(os.environ.get(VARIABLE, "") not in ("", "0"))
_changing = lock()


def is_on() -> bool:
    """Whether plans are tuned on their first call."""
    return (state.always or bool(state.inside)) and not state.frozen


def own_file() -> Path:
    """Where what is found is kept: ``$FUSEGEN_TUNED``, else a file in the cache folder."""
    named = os.environ.get(FILE_VARIABLE)
    return Path(named).expanduser() if named else default_cache().folder / "tuned.json"


def _own_table() -> Table:
    return _read(own_file())


def shipped() -> Table:
    """What comes with fusegen."""
    return _read(SHIPPED)


def _read(path: Path) -> Table:
    if path not in state.own:
        try:
            state.own[path] = Table.read(path)
        except FusegenError as error:
            warn(f"{error.where}: {error.given}. Nothing in it counts until it is mended or removed.")
            state.own[path] = Table()
    return state.own[path]


def chosen_for(op: Op, layout: pipeline.Layout, gpu: str) -> Chosen:
    """What was found for an op, how its tensors lie, and a GPU; nothing where it was not tuned. What this machine has
    found itself comes first, then files that were named, then what comes with fusegen."""
    if not gpu:
        return NOTHING_CHOSEN
    tables = [state.used, shipped()] if state.frozen else [_own_table(), state.used, shipped()]
    if not any(table.entries for table in tables):
        return NOTHING_CHOSEN
    key = key_of(op, layout)
    entries = (table.find(gpu, key) for table in tables)
    return next((entry.chosen for entry in entries if entry is not None), NOTHING_CHOSEN)


class Tuner:
    """``fg.tune``: measure what schedules could do otherwise, and remember what is faster.

    Every kernel is scheduled by rules that were made on a few GPUs (``fusegen show`` prints what they chose). For the
    sizes and the GPU at hand something else may be faster. ``with fg.tune():`` finds it and writes it to a file; every
    later call, in this process and in others, does as the file says.

    The file holds a line for each op, layout of its tensors, sizes up to the next powers of two, and GPU. It is
    ``tuned.json`` in the cache folder, or what the environment variable FUSEGEN_TUNED names. It can be shipped with a
    package, which then calls ``fg.tune.use("tuned.json")``.
    """

    @contextmanager
    def __call__(
        self, *, seconds: float = SECONDS, again: bool = False, tell: Callable[[str, int], None] | None = None
    ) -> Iterator[list[Entry]]:
        """Inside, each form of an op that was not tuned before is tuned on its first call.

            with fg.tune() as found:
                loss = model(batch)
                loss.backward()

        A form is what compiles to one program: the op, its backward or another derivative, for dtypes and a layout. Its
        kernels are timed on the call's own tensors, with the L2 cache flushed, all candidates by turns. Arguments are
        read only, and results go to memory of their own. What computes other numbers than the schedules' own choice is
        not taken. FUSEGEN_TUNE=1 does the same for a whole process.

        What runs in a CUDA graph, in code that torch compiled before, and on the CPU, is as it was: times of the
        emulator say nothing about a GPU. Tensors must be torch's. Products are not tuned here: their routines are
        measured on their first call anyway.

        Args:
            seconds: how long one form may take.
            again: also tune what was tuned before.
            tell: called with what is being tuned, and how many schedules of it were measured so far.

        Yields:
            What was found so far: a list of entries with the op, the pass, microseconds before and after, and what was
            chosen.

        Raises:
            FusegenError: the file cannot be written.
        """
        asked = _Asked(seconds, again, tell or _tell_nobody)
        with _changing:
            state.inside.append(asked)
        try:
            with decided.anew():  # what was decided earlier may not have been tuned
                yield asked.found
        finally:
            with _changing:
                state.inside.remove(asked)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside, nothing is measured, and only files that were named count (``use``) and what comes with fusegen, not
        this machine's own.

        New plans are then the same on every machine with such a GPU, and so are the orders of additions. Plans that
        were made before stay as they are.
        """
        with _changing:
            state.frozen += 1
        try:
            yield
        finally:
            with _changing:
                state.frozen -= 1

    def use(self, path: str | os.PathLike[str]) -> int:
        """Do as a file says, where this machine has not found something itself.

        Returns:
            How many entries it has.

        Raises:
            FusegenError: there is no such file, or it is something else.
        """
        if not Path(path).is_file():
            raise FusegenError(
                f"fg.tune.use({os.fspath(path)!r})", given="no file", expected="one that fusegen tune has written",
                fix="run `fusegen tune OP`, or name the file by its whole path",
            )  # fmt: skip
        table = Table.read(Path(path))
        with _changing:
            state.used.add(table.entries.values())
        return len(table.entries)


# -- one plan ----------------------------------------------------------------------------------------------------------


def tune(
    plan: Plan, op: Op, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework
) -> None:  # fmt: skip
    """Let a plan do what is fastest, which is measured now if that was not done before."""
    if plan.layout is None or plan.program is None or not plan.program.steps or not _can_measure(plan, framework):
        return
    from fusegen.matmul.task import MEASURING  # a call that is not tuned needs nothing of products

    asked = state.inside[-1] if state.inside else _Asked(SECONDS, False, _tell_nobody)
    gpu, key = plan.target.gpu, key_of(op, plan.layout)
    if asked.again or not (_own_table().find(gpu, key) or state.used.find(gpu, key)):
        with MEASURING:
            entry = _measured(plan, op, tensors, scalars, framework, asked, key)
        if entry is not None:
            asked.found.append(entry)
            with _changing:
                add_to(own_file(), [entry])
                _own_table().add([entry])
    plan.is_tuned = True


def _measured(
    plan: Plan, op: Op, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework, asked: _Asked,
    key: str,
) -> Entry | None:  # fmt: skip
    """What a search finds, which from now on is what the plan does; None where there is nothing to choose."""
    measuring = _Measuring(plan, op, tensors, scalars, framework)
    tell = partial(asked.tell, f"{op.name}, {op.label}")
    try:
        found = Search(measuring.plan_with, measuring.times, asked.seconds, tell).run()
    except measuring.out_of_memory:
        warn(f"{op.name}, {op.label}: not tuned, for there is no memory for more results")
        return None
    if found is None or plan.layout is None:
        return None
    chosen = found.best.choices.taken
    plan.program = measuring.program(found.best)
    times = round(found.own_time, 2), round(found.best_time, 2)
    return Entry(plan.target.gpu, op.name, op.label, key, dict(plan.layout.sizes), chosen, *times, found.tried)


def _can_measure(plan: Plan, framework: Framework) -> bool:
    """Whether there is a clock for such a call, now."""
    if not plan.target.gpu:
        if not state.has_warned and state.inside:
            state.has_warned = True
            warn("fg.tune: calls on the CPU are not tuned: times of the emulator say nothing about a GPU")
        return False
    if framework.name != "torch":
        if not state.has_warned:
            state.has_warned = True
            warn(
                f"fg.tune: calls with {framework.name}'s arrays are not tuned: pass torch's tensors once to tune an op"
            )
        return False
    return not _is_capturing()


def _is_capturing() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def clock_for(target: CpuTarget | GpuTarget, device: str) -> Clock:
    """What times kernels there."""
    return Stopwatch(REPEATS, device=device)


class _Measuring:
    """Schedules of one call's op, run on the call's tensors."""

    def __init__(
        self, plan: Plan, op: Op, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework
    ) -> None:
        import torch

        assert plan.layout is not None
        self.plan, self.op, self.framework, self.layout = plan, op, framework, plan.layout
        self.out_of_memory = torch.cuda.OutOfMemoryError
        self.tensors, self.scalars = tensors, scalars
        self.clock = clock_for(plan.target, plan.device)
        self.names = [slot.name for slot in (*plan.inputs, *plan.outputs)] + [scalar.name for scalar in op.scalars]
        self.expected: list[torch.Tensor] | None = None

    def plan_with(self, chosen: Chosen) -> pipeline.ScheduledOp:
        return pipeline.plan_op(self.op, self.layout, self.plan.target.chip, chosen)

    def program(self, planned: pipeline.ScheduledOp) -> Program:
        """Compiled, loaded, and bound to the op's names."""
        return pipeline.loaded(planned, self.plan.target).bind(self.names)

    def times(self, planned: Sequence[pipeline.ScheduledOp]) -> dict[int, float]:
        """Microseconds of those that compute what the first one that was ever measured did, by their place."""
        runs = {str(place): run for place, item in enumerate(planned) if (run := self._right(item)) is not None}
        return {int(place): time for place, time in self.clock.turns(runs).items()}

    def _right(self, planned: pipeline.ScheduledOp) -> Callable[[], Any] | None:
        """A call of a schedule, if it computes what the first one did."""
        run = _Candidate(self, self.program(planned)).run
        results = run()
        if self.expected is None:
            self.expected = [result.clone() for result in results]
        return run if all(map(agree, results, self.expected)) else None


class _Candidate:
    """One program with results of its own."""

    def __init__(self, measuring: _Measuring, program: Program) -> None:
        self.measuring, self.program = measuring, program
        plan, framework = measuring.plan, measuring.framework
        self.results = results_of(plan, framework, None)
        for result in self.results:
            result.zero_()
        by_name = {name: tensor for (name, *_), tensor in zip(plan.results, self.results, strict=True)}
        self.values: list[Any] = [framework.pointer(measuring.tensors[s.source]) + s.offset for s in plan.inputs]
        self.values += [framework.pointer(by_name[s.source]) + s.offset for s in plan.outputs]
        self.values += [scalar_value(scalar, measuring.scalars[scalar.name]) for scalar in measuring.op.scalars]

    def run(self) -> list[Any]:
        plan, framework = self.measuring.plan, self.measuring.framework
        stream = framework.stream(plan.device)
        values = list(self.values)  # behind which a program puts the addresses of its workspaces
        plan.target.run(self.program, values, stream, lambda size: framework.workspace(size, plan.device))
        return self.results


def agree(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two results are the same but for rounding."""
    import torch

    if not result.is_floating_point():
        return bool((result == expected).all())
    bound = AGREEMENT[str(result.dtype).removeprefix("torch.")]
    a, b = result.double(), expected.double()
    finite = b.isfinite()
    if not torch.equal(a[~finite].nan_to_num(nan=0.0), b[~finite].nan_to_num(nan=0.0)) or not finite.equal(
        a.isfinite()
    ):
        return False
    scale = b[finite].abs().max() if finite.any() else b.new_zeros(())
    return bool(((a - b)[finite].abs() <= bound * scale + torch.finfo(b.dtype).tiny).all())


tuner = Tuner()

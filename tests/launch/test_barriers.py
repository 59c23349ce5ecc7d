"""Every barrier in headers and kernel programs is needed, and the emulator says so where it is missing.

The sites are read from the files and programs. One after the other is left out, and kernels that have it must end in a
report.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fusegen as fg
from fusegen import generate, pipeline
from fusegen.core.errors import CompileError
from fusegen.fuse import rows_schedule, strided_rows
from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.scan_schedule import ScanSchedule
from fusegen.generate import render, scans
from fusegen.generate.builder import Builder
from fusegen.generate.rendered import Rendered, template_text
from fusegen.kernel_program.nodes import (
    Do,
    For,
    Function,
    If,
    Invoke,
    KernelProgram,
    Method,
    Scope,
    Statement,
    inside,
)
from fusegen.launch.emulator import build as emulator
from fusegen.launch.emulator.build import Mode
from fusegen.plan.targets import CpuTarget
from fusegen.run import runner, scan_step
from tests.support.emulated import HEADERS, ROOT, Racing, kernel, launch

pytestmark = pytest.mark.cpu

# A statement that makes a thread wait for others, or for what it has asked for.
WAITS = re.compile(
    r"(?<![\w:.])(?:fg::|link\.)?"
    r"(?:__sync\w+|fusegen_sync_row|row_barrier(?:<[^<>]*>)?|cluster_arrive|cluster_wait|ready|receive|await_loads|"
    r"wait_for_previous_kernel)\([^;{}]*\);"
)
# The functions of kernel programs that do nothing else.
WAITING = {"__syncthreads", "fg::row_barrier", "fg::await_loads", "fg::wait_for_previous_kernel", "ready"}
SCANS = "scans"  # whose programs no Builder makes
FUNCTION = re.compile(r"^\s*(?:template <[^;]*?> *)?(?:static )?FG_DEVICE [^;=]*?(\w+)\(", re.MULTILINE)
FOLDER = ROOT / "templates"
TEMPLATES = sorted(path.name for path in FOLDER.glob("*.j2"))
DEVICE_HEADERS = sorted(name for name in HEADERS if name.endswith(".cuh"))
ROOTS = (
    "fusegen.cuh",
    "fusegen_scan.cuh",
    "fusegen_scatter.cuh",
)  # what kernels include; the others are parts of the first


def report(work: Callable[[], None]) -> str:
    """What the emulator says of a running kernel; nothing where it has nothing to say."""
    try:
        work()
    except CompileError as error:
        assert ", on the CPU emulator" in str(error), error  # not the compiler of its text
        return str(error)
    return ""


# ---- device headers ----------------------------------------------------------------------------------------------


@cache
def lines_for_the_emulator() -> set[tuple[str, int]]:
    """The lines of the headers that are compiled here, not for a GPU alone."""
    include = f"-I{Path(emulator.__file__).parent}"
    command = [emulator.compiler(), "-std=c++17", "-E", "-DFUSEGEN_EMULATOR", include, "-x", "c++"]
    done = emulator.run_compiler([*command, "-include", *(str(FOLDER / header) for header in ROOTS)])
    assert done.returncode == 0, done.stderr
    found, name, row = set(), "", 0
    for line in done.stdout.splitlines():
        marker = re.match(r'# (\d+) "(.*?)"', line)
        if marker:
            name, row = Path(marker[2]).name, int(marker[1])
            continue
        found.add((name, row))
        row += 1
    return found


@dataclass(frozen=True)
class HeaderSite:
    """The n-th wait in a function of a header."""

    header: str
    start: int
    end: int
    function: str
    number: int
    row: int

    def __str__(self) -> str:
        return f"{self.function}:{self.number}"


def header_sites() -> list[HeaderSite]:
    found: list[HeaderSite] = []
    for header in DEVICE_HEADERS:
        text = HEADERS[header]
        for wait in WAITS.finditer(text):
            function = [match[1] for match in FUNCTION.finditer(text, 0, wait.start())][-1]
            number = sum(site.function == function and site.header == header for site in found)
            row = text.count("\n", 0, wait.start()) + 1
            found.append(HeaderSite(header, *wait.span(), function, number, row))
    return found


def without(site: HeaderSite) -> str:
    """The headers with all parts in them, but for one wait."""
    texts = {header: HEADERS[header] for header in DEVICE_HEADERS}
    text = texts[site.header]
    texts[site.header] = text[: site.start] + ";" + text[site.end :]
    parts = {header: text.replace("#pragma once", "") for header, text in texts.items()}
    whole = "\n".join(parts[header] for header in ROOTS)
    return re.sub(r'#include "(fusegen_\w+\.cuh)"', lambda match: parts[match[1]], whole)


HERE = [site for site in header_sites() if (site.header, site.row) in lines_for_the_emulator()]
# What stands for a GPU alone is executed by none of these tests, but by compute-sanitizer's racecheck on one.
ON_GPUS = {"Link:1", "cluster_arrive:0", "Link:2", "receive:0", "receive:1"}
# The last read of `states` lies before the barrier of the loop's last turn: nobody reads when the next call begins.
UNNEEDED = {"column_merge:0"}

TWICE = """extern "C" __global__ void k(float* y) {{
  const int i = threadIdx.x + blockDim.x * threadIdx.y;
  {declare}
  for (int turn = 0; turn < 3; ++turn) {{
    {body}
  }}
  y[blockIdx.x * blockDim.x * blockDim.y + i] = value;
}}"""
VALUE = "float value = float(i);"
MERGED = "fg::Maximum<float> state; state.add(value); value = fg::{}(state).result();"
CLUSTER = TWICE.replace("void k", "FUSEGEN_CLUSTER(2) void k").replace(
    "{declare}", "{declare} fg::Link<2> link; link.ready();"
)
SCAN = f"{VALUE} fg::ScanSum<float> carry; int place = 0;"
SCANNED = (
    "fg::ScanSum<float> own[1], before[1]; own[0].add(value); fg::scan_block<2, 1>(own, before, carry, place); "
    "value = before[0].result();"
)
# A kernel that calls a function again and again, and its block: by the site that it needs, or by the function.
HEADER_KERNELS: dict[str, tuple[str, tuple[int, int, int]]] = {
    "block_sum": (TWICE.format(declare=VALUE, body="value = fg::block_sum<64>(value);"), (64, 1, 1)),
    "block_merge": (TWICE.format(declare=VALUE, body=MERGED.format("block_merge<64>")), (64, 1, 1)),
    "column_sum": (TWICE.format(declare=VALUE, body="value = fg::column_sum<8>(value);"), (32, 8, 1)),
    "column_merge": (TWICE.format(declare=VALUE, body=MERGED.format("column_merge<8>")), (32, 8, 1)),
    "rows_sum": (
        TWICE.format(declare=VALUE, body="float of[] = {value}; fg::rows_sum<64, 4>(of); value = of[0];"), (64, 4, 1),
    ),
    "combine_block": (TWICE.format(declare=VALUE, body="fg::row_sum<64, 2, 0>(value); __syncthreads();"), (64, 2, 1)),
    **{
        f"row_barrier:{n}": (
            TWICE.format(declare=VALUE, body=f"fg::row_sum<64, {n + 1}, 0>(value); __syncthreads();"), (64, n + 1, 1),
        )
        for n in range(2)
    },
    "combine_column": (
        TWICE.format(declare=VALUE, body="fg::columns_sum<8, 32, 0>(value); __syncthreads();"), (32, 8, 1),
    ),
    "combine_column:1": (
        TWICE.format(declare=VALUE, body="fg::columns_sum<16, 32, 0>(value); __syncthreads();"), (32, 16, 1),
    ),
    "scan_block": (TWICE.format(declare=SCAN, body=SCANNED), (64, 1, 1)),
    "combine_cluster:0": (CLUSTER.format(declare=VALUE, body="fg::cluster_sum<32, 0>(link, value);"), (32, 1, 1)),
    **{
        name: (CLUSTER.format(declare=VALUE, body="fg::cluster_sum<64, 0>(link, value); __syncthreads();"), (64, 1, 1))
        for name in ("Link", "ready", "combine_cluster")
    },
}  # fmt: skip


def run_header_kernel(name: str, header: str) -> None:
    source, block = HEADER_KERNELS[name]
    y = np.zeros(2 * 1024, np.float32)
    cluster = 2 if "FUSEGEN_CLUSTER(2)" in source else 1
    launch(kernel(f"{header}\n{source}", races=True, cluster=cluster), 2, block, y, mode=Mode(races=True))


def test_all_waits_of_headers_are_known() -> None:
    assert {str(site) for site in header_sites() if site not in HERE} == ON_GPUS
    assert {site.function for site in HERE} == {name.partition(":")[0] for name in HEADER_KERNELS}


@pytest.mark.parametrize("name", HEADER_KERNELS)
def test_functions_of_headers_have_no_races(name: str) -> None:
    run_header_kernel(name, "\n".join(f'#include "{header}"' for header in ROOTS))


@pytest.mark.parametrize("site", HERE, ids=str)
def test_each_wait_of_a_header_is_needed(site: HeaderSite) -> None:
    name = str(site) if str(site) in HEADER_KERNELS else site.function
    found = report(lambda: run_header_kernel(name, without(site)))
    assert bool(found) == (str(site) not in UNNEEDED)


# ---- kernel programs ---------------------------------------------------------------------------------------------


class Noting(CpuTarget):
    """Runs nothing, and keeps the texts that it would run."""

    def __init__(self, chip: Chip | None) -> None:
        super().__init__()
        self.chip = chip or self.chip
        self.texts: list[str] = []

    def load(self, rendered: Rendered, entry: str, declared: str, follows: bool, *rest: Any) -> Any:
        self.texts.append(rendered.text)
        return self

    def prepared(self, *_: Any) -> Callable[[int], None]:
        return lambda stream: None


@contextmanager
def on(target: CpuTarget, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ops run there, and are printed anew."""
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "_compiled", {})
        original = pipeline.remember

        def remember(kind: str, parts: Any, make: Callable[[], Any]) -> Any:
            return make() if kind in ("render", "scan") else original(kind, parts, make)

        for module in (runner, scan_step):
            patch.setattr(module, "target_of", lambda device: target)
        for module in (pipeline, scan_step):
            patch.setattr(module, "remember", remember)
        yield


@dataclass(frozen=True)
class ProgramSite:
    """The n-th wait of a name in the programs of a builder, or in those of scans."""

    builder: str
    function: str
    number: int

    def __str__(self) -> str:
        return f"{self.builder}, {self.function}:{self.number}"

    @contextmanager
    def left_out(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        made = Builder.made

        def without(builder: Builder, *given: Any, **named: Any) -> KernelProgram:
            program = made(builder, *given, **named)
            if type(builder).__name__ != self.builder:
                return program
            return replace(program, body=without_one(program.body, self.function, self.number, count()))

        scan_program = scans.scan_program

        def scan_without(schedule: ScanSchedule, stage: str) -> KernelProgram:
            program = scan_program(schedule, stage)
            return replace(program, body=without_one(program.body, self.function, self.number, count()))

        with monkeypatch.context() as patch:
            if self.builder == SCANS:
                patch.setattr(scans, "scan_program", scan_without)
            else:
                patch.setattr(Builder, "made", without)
            for module in (render, scans):
                patch.setattr(module, "check_program", lambda program, what: None)  # which would refuse some of these
            yield


def wait_of(statement: Statement) -> str:
    """What a statement waits for: the name of a function that does nothing else."""
    match statement:
        case Do(what=Invoke(function=name) | Method(function=name)) if name in WAITING:
            return name
    return ""


def without_one(
    body: tuple[Statement, ...], function: str, number: int, numbers: Iterator[int]
) -> tuple[Statement, ...]:
    """The statements but for one wait."""
    found = []
    for statement in body:
        if wait_of(statement) == function and next(numbers) == number:
            continue
        if isinstance(statement, (If, For, Scope, Function)):
            statement = replace(statement, body=without_one(statement.body, function, number, numbers))
        found.append(statement)
    return tuple(found)


def all_statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        yield from all_statements(inside(statement))


def program_sites(monkeypatch: pytest.MonkeyPatch) -> list[ProgramSite]:
    """Those of all cases."""
    made, scan_program, found = Builder.made, scans.scan_program, dict[ProgramSite, None]()

    def note(builder: str, program: KernelProgram) -> KernelProgram:
        numbers = Counter[str]()
        for name in filter(None, map(wait_of, all_statements(program.body))):
            found[ProgramSite(builder, name, numbers[name])] = None
            numbers[name] += 1
        return program

    def noted(builder: Builder, *given: Any, **named: Any) -> KernelProgram:
        return note(type(builder).__name__, made(builder, *given, **named))

    with monkeypatch.context() as patch:
        patch.setattr(Builder, "made", noted)
        patch.setattr(scans, "scan_program", lambda schedule, stage: note(SCANS, scan_program(schedule, stage)))
        for case in CASES:
            _complete[case] = texts(case, patch)
    return list(found)


class Forgetful(fg.FusedOp):
    """Prepares nothing for calls to come."""

    def _remember(self, *_: Any) -> None:
        pass


def fresh(op: fg.FusedOp) -> fg.FusedOp:
    return Forgetful(op.declaration)


def softmax(x: torch.Tensor) -> None:
    fresh(fg.ops.softmax)(x, -1)


def norm_gradients(rows: int, length: int, dtype: torch.dtype = torch.float32) -> None:
    x, w, b = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((rows, length), (length,), (length,)))
    y = fresh(fg.ops.layer_norm)(x, (length,), w, b)
    y.backward(torch.randn_like(y))


def group_norm_gradients() -> None:
    x, w, b = (torch.randn(shape, requires_grad=True) for shape in ((4, 8, 16, 16), (8,), (8,)))
    y = fresh(fg.ops.group_norm)(x, 2, w, b)
    y.backward(torch.randn_like(y))


def scan(x: torch.Tensor) -> None:
    """One kernel behind another."""
    fresh(fg.op(lambda x: fg.cumsum(fg.cumsum(x, -1), -1)))(x)


def scaled(x: Any) -> Any:
    """One exchange a pixel, and a sum over all of them."""
    total = fg.sum(x * x, 1, keepdims=True)
    return x * fg.rsqrt(total), fg.sum(fg.sqrt(total))


# Calls that between them have every wait, and need it.
CASES: dict[str, Callable[[], Any]] = {
    "tiled transpose": lambda: fresh(fg.op(lambda x, y: x + y))(torch.randn(40, 70), torch.randn(70, 40).t()),
    "row": lambda: softmax(torch.randn(3, 1000)),
    "cluster": lambda: softmax(torch.randn(3, 5120)),
    "persistent rows": lambda: norm_gradients(40, 1000),
    "persistent short rows": lambda: norm_gradients(40, 100),
    "persistent clusters": lambda: norm_gradients(40, 2048),
    "persistent halves": lambda: norm_gradients(40, 2048, torch.bfloat16),
    "persistent clusters, each row once the last is done": lambda: norm_gradients(40, 2048),
    "segments": group_norm_gradients,
    "scan": lambda: scan(torch.randn(3, 1000)),
    "pixels": lambda: fresh(fg.op(scaled))(torch.randn(2, 90, 40)),  # of more channels threads exchange in two steps
}
CHIPS = {"persistent clusters, each row once the last is done": Chip(16, 16 * 1024)}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few blocks of few threads, which loop over several rows."""
    monkeypatch.setattr(rows_schedule, "ONE_BLOCK_THREADS", 64)
    monkeypatch.setattr(rows_schedule, "CLUSTER_BLOCK_THREADS", 64)
    monkeypatch.setattr(rows_schedule, "PERSISTENT_THREADS", 64)
    monkeypatch.setattr(rows_schedule, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(rows_schedule, "CLUSTERED", {})
    monkeypatch.setattr(strided_rows, "MULTIPROCESSORS", 1)
    monkeypatch.setattr(strided_rows, "SUMMING_BLOCKS", 1)


def run_case(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with on(Racing(CHIPS.get(case)), monkeypatch):
        CASES[case]()


def texts(case: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    target = Noting(CHIPS.get(case))
    with on(target, monkeypatch):
        CASES[case]()
    return target.texts


_complete: dict[str, list[str]] = {}


@pytest.mark.parametrize("case", CASES)
def test_cases_have_no_races(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_case(case, monkeypatch)


def test_programs_alone_have_waits() -> None:
    """Neither a template nor a text in a module of the generator."""
    sources = [template_text(name) for name in TEMPLATES]
    sources += [path.read_text(encoding="utf-8") for path in Path(generate.__path__[0]).glob("*.py")]
    assert not any(map(WAITS.search, sources))


def test_all_waits_of_programs_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that a module of the generator makes is in a program of some case."""
    made = {site.function for site in program_sites(monkeypatch)}
    sources = [path.read_text(encoding="utf-8") for path in Path(generate.__path__[0]).glob("*.py")]
    assert made == WAITING & {name for source in sources for name in re.findall(r'"([\w:]+)"', source)}
    assert made == WAITING


def check_needed(site: ProgramSite, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: dict[str, str] = {}
    for case in CASES:
        complete = _complete.get(case) or texts(case, monkeypatch)
        _complete[case] = complete
        with site.left_out(monkeypatch):
            if texts(case, monkeypatch) != complete:
                reports[case] = report(lambda case=case: run_case(case, monkeypatch))  # type: ignore[misc]
    assert reports, f"{site}: no case has it: add one"
    assert all(reports.values()), (str(site), {case for case, text in reports.items() if not text})


def test_each_wait_of_a_program_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = program_sites(monkeypatch)
    assert len(sites) >= 7
    for site in sites:
        check_needed(site, monkeypatch)

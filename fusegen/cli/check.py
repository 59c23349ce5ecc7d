"""``fusegen check``: everything that the library would launch compiles, shown without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from fusegen.cli.arguments import Request, bind, library, resolve
from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import FusegenError
from fusegen.fused_op import FusedOp
from fusegen.generate.rendered import headers
from fusegen.inspect.passes import Pass, differentiable, passes
from fusegen.launch.cache import default_cache
from fusegen.launch.compile import cached_cubin, supported_architectures
from fusegen.launch.cubin import resources

DEFAULT_DTYPES = (dtypes.float32, dtypes.bfloat16, dtypes.float16, dtypes.float64)
DEFAULT_ARCH = "sm_90"


@dataclass(frozen=True)
class _Job:
    """One file to compile for one architecture."""

    title: str
    text: str
    declared: str
    entries: tuple[str, ...]
    arch: str


@dataclass
class _Tally:
    """What came out: kernels, the most registers any takes, those that spill, and failures by title."""

    kernels: int = 0
    registers: tuple[int, str] = (0, "")
    spills: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def check_ops(
    names: Sequence[str], arch: str | None, dtype: Sequence[str], shape: Sequence[str], arg: Sequence[str]
) -> bool:
    """Compile forward and backward of the named ops (all of the library) in several dtypes; print a summary."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    request = Request.parse(shape, dtype, arg)
    wanted = (request.dtypes[""],) if "" in request.dtypes else DEFAULT_DTYPES
    archs = _architectures(arch)
    ops = {name: resolve(name, request) for name in names} or library()
    console = Console(highlight=False, soft_wrap=True)
    tally = _Tally()
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress, ThreadPoolExecutor() as pool:
        task = progress.add_task("check", total=len(ops) * len(wanted))
        for name, op in ops.items():
            progress.update(task, description=name[:24])
            for kind in wanted:
                jobs = list(_jobs(name, op, request, kind, archs, tally))
                for job, result in zip(jobs, pool.map(_compile, jobs), strict=True):
                    _record(tally, job, result)
                progress.advance(task)
    for line in _summary(tally, ops, wanted, archs):
        console.print(line, markup=False)
    return not tally.failures


def _architectures(arch: str | None) -> list[str]:
    """What ``--arch`` says, checked before anything is compiled."""
    wanted = [text.strip() for text in (arch or DEFAULT_ARCH).split(",") if text.strip()]
    known = supported_architectures()
    for text in wanted:
        if text.rstrip("af") not in known:
            raise FusegenError(
                "fusegen check", given=f"--arch {text}", expected=", ".join(known), fix="pass one of these, or several"
            )
    return wanted


def _jobs(
    name: str, op: FusedOp, request: Request, dtype: DType, archs: Sequence[str], tally: _Tally
) -> Iterator[_Job]:
    """The passes of one op in one dtype as compile jobs; what cannot even be printed is a failure."""
    try:
        arguments = bind(op, request, dtype)
        (forward,) = passes(op, (), arguments)
        wanted = ["forward", "backward"] if differentiable(forward.op) else ["forward"]
    except FusegenError as error:
        tally.failures.append(f"{name}, {dtype}:\n{error}")
        return
    for which in wanted:
        title = f"{name} {which} {dtype}"
        try:
            last = passes(op, (), arguments, which)[-1].on(archs)
            text, entries = last.text, _entries(last)
        except FusegenError as error:
            tally.failures.append(f"{title}:\n{error}")
            continue
        declared = f"{op.name}, declared in {op.declaration.declared}" if op.declaration.declared else op.name
        for arch in archs:
            yield _Job(f"{title} {arch}", text, declared, entries, arch)


def _entries(item: Pass) -> tuple[str, ...]:
    return tuple(e for k in item.kernels for e in (k.rendered.entry, k.rendered.finish) if e)


def _compile(job: _Job) -> bytes | FusegenError:
    try:
        return cached_cubin(job.text, arch=job.arch, headers=headers(), declared=job.declared, cache=default_cache())
    except FusegenError as error:
        return error


def _record(tally: _Tally, job: _Job, result: bytes | FusegenError) -> None:
    if isinstance(result, FusegenError):
        tally.failures.append(f"{job.title}:\n{result}")
        return
    for entry in job.entries:
        used = resources(result, entry)
        tally.kernels += 1
        tally.registers = max(tally.registers, (used.registers, f"{entry} on {job.arch}"))
        if used.local_bytes:
            tally.spills.append(f"{entry} on {job.arch}: {used.local_bytes} bytes of local memory")


def _summary(tally: _Tally, ops: dict[str, FusedOp], wanted: Sequence[DType], archs: Sequence[str]) -> Iterator[str]:
    count = f"{len(ops)} {'op' if len(ops) == 1 else 'ops'}"
    yield f"{count} in {', '.join(map(str, wanted))} for {', '.join(archs)}: {tally.kernels} kernels compile"
    if tally.kernels:
        yield f"most registers: {tally.registers[0]} ({tally.registers[1]})"
        yield f"local memory (spills, or arrays that stay out of registers): {len(tally.spills) or 'none'}"
    yield from (f"  {line}" for line in sorted(tally.spills))
    if tally.failures:
        yield f"\n{len(tally.failures)} failed:"
    yield from (f"\n{text}" for text in tally.failures)

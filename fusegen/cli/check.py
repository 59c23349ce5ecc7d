"""``fusegen check``: everything that the library would launch compiles, shown without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from fusegen.cli import blame
from fusegen.cli.arguments import Request, bind, library
from fusegen.cli.progress import Bar
from fusegen.cli.several import Chosen, chosen, outcome
from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import FusegenError
from fusegen.generate.rendered import headers
from fusegen.inspect.passes import differentiable, passes
from fusegen.launch.cache import default_cache
from fusegen.launch.compile import cached_cubin, supported_architectures
from fusegen.launch.cubin import resources

DEFAULT_DTYPES = (dtypes.float32, dtypes.bfloat16, dtypes.float16, dtypes.float64)
DEFAULT_ARCH = "sm_90"


@dataclass(frozen=True)
class _Job:
    """One file to compile for one architecture."""

    op: str
    title: str
    text: str
    declared: str
    entries: tuple[str, ...]
    arch: str


@dataclass
class _Tally:
    """What came out: kernels, the most registers any takes, those that spill, and what went wrong.

    Attributes:
        failures: an error's op and text to what it happened in: an op that fails says so once, not in every dtype.
    """

    kernels: int = 0
    registers: tuple[int, str] = (0, "")
    spills: list[str] = field(default_factory=list)
    failures: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def fail(self, op: str, what: str, error: Exception) -> None:
        """``what`` of the op called ``op`` ended in an error."""
        self.failures.setdefault((op, blame.described(error)), []).append(what)

    @property
    def failed(self) -> list[str]:
        """The ops of which anything failed."""
        return list(dict.fromkeys(op for op, _ in self.failures))


def check_ops(
    names: Sequence[str], arch: str | None, dtype: Sequence[str], shape: Sequence[str], arg: Sequence[str]
) -> bool:
    """Compile forward and backward of the named ops (all of a file, or of the library) in several dtypes; print a
    summary. An op that fails does not keep the others from being checked."""
    from rich.console import Console

    request = Request.parse(shape, dtype, arg)
    wanted = (request.dtypes[""],) if "" in request.dtypes else DEFAULT_DTYPES
    archs = _architectures(arch)
    items = chosen(names or list(library()), request)
    tally = _Tally()
    with Bar(total=len(items) * len(wanted)) as bar, ThreadPoolExecutor() as pool:
        for item in items:
            for kind in wanted:
                bar.step(f"{item.op.name} {kind}")
                jobs = list(_jobs(item, kind, archs, tally))
                for job, result in zip(jobs, pool.map(_compile, jobs), strict=True):
                    _record(tally, job, result)
    console = Console(highlight=False, soft_wrap=True)
    for line in _summary(tally, [item.title for item in items], wanted, archs):
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


def _jobs(item: Chosen, dtype: DType, archs: Sequence[str], tally: _Tally) -> Iterator[_Job]:
    """The passes of one op in one dtype as compile jobs; what cannot even be printed is a failure."""
    name, op = item.title, item.op
    try:
        arguments = bind(op, item.request, dtype)
        (forward,) = passes(op, (), arguments)
        wanted = ["forward", "backward"] if differentiable(forward.op) else ["forward"]
    except Exception as error:  # a declaration is a user's Python, and may raise anything
        tally.fail(name, str(dtype), error)
        return
    for which in wanted:
        title = f"{which} {dtype}"
        try:
            last = passes(op, (), arguments, which)[-1].on(archs)
            text, entries = last.text, last.entries
        except Exception as error:
            tally.fail(name, title, error)
            continue
        declared = f"{op.name}, declared in {op.declaration.declared}" if op.declaration.declared else op.name
        for arch in archs:
            yield _Job(name, f"{title} {arch}", text, declared, entries, arch)


def _compile(job: _Job) -> bytes | Exception:
    try:
        return cached_cubin(job.text, arch=job.arch, headers=headers(), declared=job.declared, cache=default_cache())
    except Exception as error:
        return error


def _record(tally: _Tally, job: _Job, result: bytes | Exception) -> None:
    if isinstance(result, Exception):
        tally.fail(job.op, job.title, result)
        return
    for entry in job.entries:
        used = resources(result, entry)
        tally.kernels += 1
        tally.registers = max(tally.registers, (used.registers, f"{entry} on {job.arch}"))
        if used.local_bytes:
            tally.spills.append(f"{entry} on {job.arch}: {used.local_bytes} bytes of local memory")


def _summary(tally: _Tally, titles: Sequence[str], wanted: Sequence[DType], archs: Sequence[str]) -> Iterator[str]:
    count = f"{len(titles)} {'op' if len(titles) == 1 else 'ops'}"
    yield f"{count} in {', '.join(map(str, wanted))} for {', '.join(archs)}: {tally.kernels} kernels compile"
    if tally.kernels:
        yield f"most registers: {tally.registers[0]} ({tally.registers[1]})"
        yield f"local memory (spills, or arrays that stay out of registers): {len(tally.spills) or 'none'}"
    yield from (f"  {line}" for line in sorted(tally.spills))
    if tally.failures:
        yield f"\n{len(tally.failures)} failed:"
    for (op, text), where in tally.failures.items():
        yield f"\n{op}, {', '.join(where)}:\n{text}"
    yield ("\n" if tally.failures else "") + outcome(titles, tally.failed, "compile")

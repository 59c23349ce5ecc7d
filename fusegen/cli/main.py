"""The command line: look at ops before running them.

Every command imports what it needs when it runs, so that ``fusegen --help`` answers at once. Errors are the text of a
FusegenError and exit code 2; a check or comparison that fails exits with 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusegen.cli import blame
from fusegen.core.errors import FusegenError

if TYPE_CHECKING:
    from rich.console import Console

    from fusegen.inspect.passes import Pass

app = typer.Typer(
    name="fusegen", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Short symbolic declarations of GPU operations, turned into fused CUDA: forward, every gradient, and theirs.",
    epilog='OP: a name of the library (lerp), path/file.py:op, package.module:op, or a formula ("x * sigmoid(y) + b").',
)  # fmt: skip

OpName = Annotated[str, typer.Argument(metavar="OP", help='lerp, file.py:op, package.module:op or "x * sigmoid(y)"')]
OpOrFile = Annotated[str, typer.Argument(metavar="OP|FILE", help="an op, as of show; or a file: all ops in it")]
OpNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OP|FILE ...]", help="ops, and files with all ops in them; all of the library if left out"),
]
Shapes = Annotated[list[str] | None, typer.Option("--shape", metavar="NAME=16,3,244", help="size of each dimension")]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", metavar="[NAME=]bf16", help="of one tensor, or of all")]
Arguments = Annotated[list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="a number or option")]
Which = Annotated[str, typer.Option("--which", metavar="PASS", help="forward, backward, double-backward or tangent")]
Arch = Annotated[str | None, typer.Option("--arch", metavar="sm_80,sm_90", help="GPU architectures to compile for")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """What holds for every command; ``main`` handles both."""


def console(stderr: bool = False) -> Console:
    """A rich console; plain text where the stream is no terminal."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def print_code(text: str, lexer: str = "cuda") -> None:
    """Highlighted on a terminal; exactly these bytes in a pipe."""
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from rich.syntax import Syntax

    console().print(Syntax("", lexer, theme="ansi_dark").highlight(text), end="")


@app.command("list")
def list_ops(
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="name the ops that this file declares")] = None,
    functions: Annotated[bool, typer.Option("--functions", help="Print what declarations may call instead.")] = False,
) -> None:
    """Name the ops of the library or of a file, or the functions that declarations may call."""
    from rich.table import Table

    from fusegen.cli import arguments as cli_ops

    if functions and file is not None:
        raise FusegenError("fusegen list", given="a file and --functions", expected="one of them", fix="leave one away")
    if functions:
        lines = cli_ops.functions()
    else:
        ops = cli_ops.library() if file is None else cli_ops.ops_of_file(file)
        lines = [(name, cli_ops.signature_text(op), cli_ops.summary(op)) for name, op in ops.items()]
    if not sys.stdout.isatty():
        sys.stdout.writelines("\t".join(line) + "\n" for line in lines)
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, given, doc in lines:
        table.add_row(f"[bold]{name}[/bold]", f"[dim]{_escape(given)}[/dim]", _escape(doc))
    console().print(table, soft_wrap=False)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@app.command()
def show(
    op: OpName,
    which: Annotated[
        str | None,
        typer.Option("--which", metavar="PASS", help="one pass, as of emit; else forward and backward"),
    ] = None,
    shape: Shapes = None,
    dtype: Dtypes = None,
    arg: Arguments = None,
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME", help="whose cost to predict: h200, a100, ...")] = "h200",
    cost: Annotated[bool, typer.Option("--cost", help="only kernels, why, bytes, registers, predicted time")] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="PAGE.html", help="write a page that links lines of CUDA to expressions"),
    ] = None,
    program: Annotated[bool, typer.Option("--program", help="also what each thread of a kernel does")] = False,
) -> None:
    """Print every stage: declared, derived, fused, scheduled, cost, CUDA."""
    from fusegen.cli.show import show_op

    show_op(op, which, shape or (), dtype or (), arg or (), gpu, cost, print_code, html, program)


@app.command()
def emit(
    op: OpName,
    which: Which = "forward",
    dtype: Dtypes = None,
    shape: Shapes = None,
    arg: Arguments = None,
    arch: Arch = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="write the file, and the header it includes")
    ] = None,
) -> None:
    """Print the CUDA of one pass; with --arch, compile it as well."""
    from fusegen.cli.arguments import Request, bind, resolve
    from fusegen.inspect.passes import passes

    request = Request.parse(shape or (), dtype or (), arg or ())
    found = resolve(op, request)
    arguments = bind(found, request)
    last = passes(found, (), arguments, which)[-1]
    if arch is not None:
        last = last.on(arch.split(","))
    cubins = {} if arch is None else _compiled(last, arch)  # first: what does not compile is not printed
    if output is None:
        print_code(last.text)
        return
    name = file_name(found.name, which, last)
    _write(output, name, last.text)
    for target, cubin in cubins.items():
        (output / f"{name}.{target}.cubin").write_bytes(cubin)


def file_name(op: str, which: str, item: Pass) -> str:
    """``lerp_backward.bfloat16``: the name of an emitted file, after its first float result, or what it reads."""
    dtypes = [*(o.dtype for o in item.op.outputs), *(info.dtype for info in item.tensors.values())]
    dtype = next((dtype for dtype in dtypes if dtype.is_float), dtypes[0])
    return f"{op}_{which.replace('-', '_')}.{dtype}"


def _write(folder: Path, name: str, text: str) -> None:
    from fusegen.generate.rendered import headers

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in {f"{name}.cu": text, **headers()}.items():
            (folder / file).write_text(content, encoding="utf-8", newline="\n")
    except OSError as error:
        raise _no_folder(folder, error) from None
    console(stderr=True).print(f"wrote {folder / name}.cu", markup=False)


def _no_folder(folder: Path, error: OSError) -> FusegenError:
    given = str(error.strerror or error)
    return FusegenError(f"-o {folder}", given=given, expected="a folder that can be written to", fix="choose another")


def _compiled(item: Pass, arch: str) -> dict[str, bytes]:
    """The cubin for each architecture; what each takes is printed."""
    from fusegen.generate.rendered import headers
    from fusegen.launch.compile import to_cubin
    from fusegen.launch.cubin import resources

    cubins: dict[str, bytes] = {}
    for target in arch.split(","):
        declared = f"{item.op.name}, declared in {item.op.declared}" if item.op.declared else item.op.name
        cubins[target] = cubin = to_cubin(item.text, arch=target, headers=headers(), declared=declared).data
        for entry in item.entries:
            used = resources(cubin, entry)
            text = f"{target} {entry}: {used.registers} registers, {used.local_bytes} bytes of spills and stack"
            console(stderr=True).print(text, markup=False)
    return cubins


@app.command()
def check(
    ops: OpNames = None,
    arch: Arch = None,
    dtype: Dtypes = None,
    shape: Shapes = None,
    arg: Arguments = None,
) -> None:
    """Compile forward and backward for GPUs, without needing one."""
    from fusegen.cli.check import check_ops

    raise typer.Exit(0 if check_ops(ops or [], arch, dtype or [], shape or [], arg or []) else 1)


@app.command()
def run(
    op: OpOrFile,
    dtype: Dtypes = None,
    shape: Shapes = None,
    arg: Arguments = None,
    device: Annotated[str | None, typer.Option("--device", metavar="cpu|cuda", help="a GPU if there is one")] = None,
    seed: Annotated[int, typer.Option("--seed", help="of the random arguments")] = 0,
    stages: Annotated[bool, typer.Option("--stages", help="say at which stage of the compiler numbers part")] = False,
) -> None:
    """Run on random arguments and compare results and gradients with the float64 reference."""
    from fusegen.cli.run import run_ops

    raise typer.Exit(0 if run_ops(op, dtype or [], shape or [], arg or [], device, seed, stages) else 1)


@app.command()
def bench(
    op: OpName,
    dtype: Dtypes = None,
    shape: Shapes = None,
    arg: Arguments = None,
    device: Annotated[str | None, typer.Option("--device", metavar="cpu|cuda", help="a GPU if there is one")] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="timed calls of each pass")] = 30,
    peers: Annotated[
        str | None, typer.Option("--peers", metavar="torch,JAX", help="all that are installed, if left out; or none")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="[DIR]",
            help="sweep sizes and draw bandwidth and time over floor: pictures in DIR, or text without one",
        ),
    ] = None,
) -> None:
    """Time every pass beside the floor and beside torch, torch.compile, JAX, Liger and QuACK."""
    from fusegen.cli.bench import bench_op

    bench_op(op, dtype or [], shape or [], arg or [], device, repeats, peers, plot)


@app.command()
def tune(
    op: Annotated[str | None, typer.Argument(metavar="[OP]", help="an op, as of show; none with --report")] = None,
    dtype: Dtypes = None,
    shape: Shapes = None,
    arg: Arguments = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="of each pass, at most")] = 20.0,
    again: Annotated[bool, typer.Option("--again", help="also what was tuned before")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="print what was found so far, on any GPU, with a bar for each")
    ] = False,
) -> None:
    """Measure what schedules could do otherwise, on this machine's GPU, and remember what is faster."""
    from fusegen.cli import tune as command

    if report == (op is not None):
        raise FusegenError(
            "fusegen tune", given="an op and --report" if report else "neither an op nor --report",
            expected="one of them",
            fix="fusegen tune softmax --shape input=8192,4096, and then fusegen tune --report",
        )  # fmt: skip
    if report:
        command.report()
    else:
        command.tune_op(op or "", dtype or [], shape or [], arg or [], seconds, again)


@app.command()
def cache(clear: Annotated[bool, typer.Option("--clear", help="Remove every entry.")] = False) -> None:
    """Show, or clear, the cache of compiled kernels."""
    from fusegen.cli.progress import Bar
    from fusegen.launch.cache import default_cache

    found = default_cache()
    if clear:
        with Bar(total=1) as bar:  # a full cache has tens of thousands
            bar.step("removing entries")
            count = found.clear()
        typer.echo(f"removed {count} {'entry' if count == 1 else 'entries'} from {found.folder}")
        return
    state = found.describe()
    typer.echo(f"folder   {state.folder}")
    size, limit = state.size_bytes / 2**20, state.limit_bytes / 2**20
    typer.echo(f"entries  {state.entries}, {size:.1f} MiB of at most {limit:.0f}")
    if state.problem:
        typer.echo(f"problem  {state.problem}; kernels are kept in memory only")


@app.command()
def doctor(
    build: Annotated[bool, typer.Option("--build", help="Build the native call path now, or try again.")] = False,
) -> None:
    """Say what was found on this machine, and what to do about what is missing."""
    from fusegen.cli.doctor import build_call_path, report

    if build:
        build_call_path()
    raise typer.Exit(0 if report() else 1)


def main(arguments: list[str] | None = None) -> None:
    """The entry point ``fusegen``. ``--debug`` may stand anywhere."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = _bare_plot([argument for argument in given if argument != "--debug"])
    blame.with_tracebacks = debug
    if given == ["--version"]:
        from fusegen.cli.doctor import installed_version

        print(f"fusegen {installed_version()}")
        return
    try:
        app(args=given, prog_name="fusegen")
    except FusegenError as error:
        if debug:
            raise
        _fail(str(error))
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        _fail(blame.described(error))


def _bare_plot(given: list[str]) -> list[str]:
    """``--plot`` without a folder means ``--plot -``, the terminal: typer has no option whose value may be left out."""
    following = [*given, "--"][1:]
    bare = [
        one == "--plot" and after.startswith("-") and after != "-" for one, after in zip(given, following, strict=True)
    ]
    return ["--plot=-" if alone else one for one, alone in zip(given, bare, strict=True)]


def _fail(text: str) -> None:
    console(stderr=True).print(f"[bold red]error:[/bold red] {_escape(text)}")
    sys.exit(2)

"""The command line as people use it: what it prints, where, and with which exit code."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fusegen as fg
from fusegen.cli.arguments import Request, bind, library, resolve
from fusegen.cli.formula import formula_op
from fusegen.cli.main import main
from fusegen.core.errors import DeclarationError, FusegenError
from fusegen.declare.reference import reference
from tests.support.terminals import read_to_end

DECLARATIONS = '''
import fusegen as fg

@fg.op
def blend(x, y, w):
    """x to y by w."""
    return x + w * (y - x)

@fg.op
def scaled(x, factor: fg.Scalar, power: fg.Const = 2, mode="plain"):
    return x ** power * factor if mode == "plain" else x

broken = fg.register_function("broken_in_cli_tests", cuda="no_such_function({0})", reference=lambda t, x: x)
wrong = fg.register_function("wrong_in_cli_tests", cuda="({0} + 1)", reference=lambda t, x: x,
    derivative=lambda x, y: (y / y,))

@fg.op
def does_not_compile(x):
    return broken(x)

@fg.op
def computes_something_else(x):
    return wrong(x)

not_an_op = 1
'''


@dataclass
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def fusegen(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Done:
        code = 0
        try:
            main(list(arguments))
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="module")
def ops_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ops") / "declared_for_cli.py"
    path.write_text(DECLARATIONS, encoding="utf-8")
    return path


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fusegen", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# -- looking ---------------------------------------------------------------------------------------------------------


def test_help_needs_none_of_the_slow_imports() -> None:
    code = """
import sys
from fusegen.cli.main import main
try:
    main(["--help"])
except SystemExit as leaving:
    assert not leaving.code
slow = {"torch", "sympy", "jinja2", "numpy", "cupy", "cupy_backends"} & set(sys.modules)
assert not slow, slow
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("list", "show", "emit", "check", "run", "bench", "tune", "cache", "doctor"):
        assert re.search(rf"\b{name}\b", done.stdout)


def test_list_names_the_library_with_a_line_each(fusegen: Any) -> None:
    lines = fusegen("list").out.splitlines()
    assert [line.split("\t")[0] for line in lines] == sorted(library())
    assert all(line.split("\t")[2] for line in lines), "an op without a docstring"
    assert any(line.startswith("lerp\t") for line in lines)


def test_list_functions_prints_the_table(fusegen: Any) -> None:
    lines = fusegen("list", "--functions").out.splitlines()
    assert "log1p\t(x)\tlog(1 + x) without cancellation." in lines
    names = [line.split("\t")[0] for line in lines]
    assert {"mean", "where", "split", "matmul", "softmax", "stop_gradient"} <= set(names)
    assert all(hasattr(fg, name) for name in names), "a name that declarations cannot call"


def test_the_command_of_the_issue(fusegen: Any) -> None:
    shapes = ["--shape", "x=16,1,1,1", "--shape", "y=16,3,244,244", "--shape", "w=3,1,244"]
    done = fusegen("emit", "lerp", "--which", "backward", *shapes)
    assert done.code == 0
    specs = [fg.TensorSpec(fg.float32, s) for s in ((16, 1, 1, 1), (16, 3, 244, 244), (3, 1, 244))]
    assert done.out == fg.ops.lerp.emit(*specs, which="backward")
    assert "= sum[d1, d2, d3](" in done.out


@pytest.mark.parametrize("how", ["file", "module", "formula"])
def test_the_ways_to_name_an_op(how: str, ops_file: Path, fusegen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ops_file.parent)
    names = {"file": f"{ops_file}:blend", "module": "declared_for_cli:blend", "formula": "x + w*(y - x)"}
    if how == "module":  # the functions that the file registers are registered once in a process
        done = command("emit", names[how], "--dtype", "bf16", PYTHONPATH=os.environ.get("PYTHONPATH", ""))
        assert done.returncode == 0, done.stderr
        out = done.stdout
    else:
        out = fusegen("emit", names[how], "--dtype", "bf16").out
    assert "const bf16* __restrict__ x_ptr" in out
    assert "x + w * (y - x)" in out


def test_show_prints_all_stages_plainly_in_a_pipe(fusegen: Any) -> None:
    out = fusegen("show", "swiglu_packed", "--shape", "64,128").out
    assert "\x1b" not in out
    assert re.findall(r"^== (\w+)", out, re.MULTILINE) == ["declared", *["forward"] * 5, *["backward"] * 5]


@pytest.mark.parametrize("which", ["forward", "backward", "double-backward", "tangent"])
def test_show_prints_the_stages_of_one_pass(which: str, fusegen: Any) -> None:
    arguments = ("lerp", "--which", which, "--shape", "64,128")
    out, emitted = fusegen("show", *arguments).out, fusegen("emit", *arguments).out
    label = "double backward" if which == "double-backward" else which
    titles = [
        f"{label}: {what}" for what in ("traced" if which == "forward" else "derived", "fused", "scheduled", "CUDA")
    ]
    found = re.findall(r"^== (.*?) (?:into .*|on .*)?=+$", out, re.MULTILINE)
    assert [title for title in found if "rewritten" not in title and "cost" not in title] == ["declared", *titles]
    assert out.endswith(emitted) and f"{label}: cost" in out
    specs = [fg.TensorSpec(fg.float32, (64, 128))] * 3
    assert fg.ops.lerp.show(*specs, which=which).endswith(emitted)
    assert f"{label}: cost" in fusegen("show", *arguments, "--cost").out


def test_show_knows_the_passes(fusegen: Any) -> None:
    done = fusegen("show", "lerp", "--which", "sideways")
    assert done.code == 2 and "'forward', 'backward', 'double-backward', 'tangent'" in done.err


def test_a_terminal_gets_colours_and_a_pipe_the_same_bytes_without() -> None:
    ours, theirs = pty.openpty()
    code = "from fusegen.cli.main import main; main()"
    arguments = [sys.executable, "-c", code, "emit", "silu"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(arguments, stdout=theirs, env=environment)
    os.close(theirs)
    seen = read_to_end(ours)
    assert process.wait() == 0
    text = seen.decode().replace("\r\n", "\n")
    assert "\x1b[" in text
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == command("emit", "silu").stdout


def test_emit_writes_a_file_that_compiles_where_it_lies(fusegen: Any, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    done = fusegen("emit", "silu", "--which", "backward", "-o", str(folder), "--arch", "sm_90,sm_75")
    assert (done.code, done.out) == (0, "")
    assert sorted(path.name for path in folder.iterdir()) == [
        "fusegen.cuh", "fusegen_math.cuh", "fusegen_places.cuh", "fusegen_random.cuh", "fusegen_reduce.cuh",
        "fusegen_rows.cuh", "fusegen_scan.cuh", "fusegen_scatter.cuh", "fusegen_trig.cuh", "fusegen_vector.cuh",
        "silu_backward.float32.cu",
        "silu_backward.float32.sm_75.cubin", "silu_backward.float32.sm_90.cubin",
    ]  # fmt: skip
    assert re.search(r"sm_90 silu_backward_f32: \d+ registers, 0 bytes of spills", done.err)
    text = (folder / "silu_backward.float32.cu").read_text(encoding="utf-8")
    assert text == fg.ops.silu.emit(fg.TensorSpec(fg.float32, (512, 3072)), which="backward")


def test_a_folder_that_cannot_be_written_to(fusegen: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = fusegen("emit", "silu", "-o", str(tmp_path / "file"))
    assert done.code == 2
    assert "expected: a folder that can be written to" in done.err


def test_options_and_numbers_reach_the_op(ops_file: Path, fusegen: Any) -> None:
    name = f"{ops_file}:scaled"
    assert "x^5" in fusegen("show", name, "--arg", "power=5").out.replace("pow(x, 5)", "x^5")
    assert "pow" not in fusegen("emit", name, "--arg", "mode=other").out
    assert "float factor" in fusegen("emit", name, "--arg", "factor=0.5").out
    assert "erfc" in fusegen("emit", "gelu").out
    assert "erfc" not in fusegen("emit", "gelu", "--arg", "approximate=tanh").out


# -- doing -----------------------------------------------------------------------------------------------------------


def test_check_compiles_and_summarizes(fusegen: Any) -> None:
    done = fusegen("check", "silu", "x*y", "--arch", "sm_80,sm_90", "--dtype", "f32")
    assert done.code == 0
    assert "2 ops in float32 for sm_80, sm_90: 8 kernels compile" in done.out
    assert "most registers: " in done.out


def test_check_lists_what_fails_and_exits_with_one(ops_file: Path, fusegen: Any) -> None:
    done = fusegen("check", "silu", f"{ops_file}:does_not_compile", "--dtype", "f32")
    assert done.code == 1
    assert "1 failed:" in done.out or "2 failed:" in done.out
    assert 'identifier "no_such_function" is undefined' in done.out
    assert "declared in" in done.out
    assert "kernels compile" in done.out


@pytest.mark.emulator
@pytest.mark.parametrize("name", ["lerp", "swiglu_packed", "binary_cross_entropy", "x - mean(x * y, axis=0)"])
def test_run_compares_with_the_reference(name: str, fusegen: Any) -> None:
    done = fusegen("run", name, "--shape", "6,64", "--device", "cpu")
    assert done.code == 0, done.out + done.err
    assert "on the CPU emulator" in done.out
    assert re.search(r"backward  first call .*\n    d_\w+: largest error", done.out)
    assert done.out.endswith("all close to the float64 reference\n")


@pytest.mark.emulator
def test_run_notices_a_wrong_result(ops_file: Path, fusegen: Any) -> None:
    done = fusegen("run", f"{ops_file}:computes_something_else", "--shape", "64", "--device", "cpu")
    assert done.code == 1
    assert re.search(r"out: largest error 1 .*<-- too large", done.out)
    assert done.out.endswith("NOT close to the float64 reference\n")


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64"])
def test_run_in_other_dtypes(dtype: str, fusegen: Any) -> None:
    assert fusegen("run", "gelu", "--shape", "32,32", "--dtype", dtype, "--device", "cpu").code == 0


def test_the_cache_is_shown_and_cleared(fusegen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_CACHE_DIR", str(tmp_path / "cache"))
    fusegen("check", "silu", "--dtype", "f32")
    shown = fusegen("cache").out
    assert f"folder   {tmp_path / 'cache'}" in shown
    count = int(re.search(r"entries  (\d+), [\d.]+ MiB of at most", shown)[1])  # type: ignore[index]
    assert count >= 2
    assert f"removed {count} entries" in fusegen("cache", "--clear").out
    assert "entries  0, 0.0 MiB" in fusegen("cache").out


# -- the doctor ------------------------------------------------------------------------------------------------------


def test_the_doctor_looks_at_everything(fusegen: Any) -> None:
    out = fusegen("doctor").out
    for name in ("fusegen", "GPU", "CuPy", "NVRTC", "torch", "C++ compiler", "cache folder"):
        assert re.search(rf"^(ok|--) +{re.escape(name)} ", out, re.MULTILINE), name


def test_the_doctor_works_where_everything_is_missing(tmp_path: Path) -> None:
    code = """
import ctypes, sys
for name in ("torch", "cupy", "cupy_backends", "cuda", "numpy"):
    sys.modules[name] = None
def refuse(*_, **__): raise OSError("no library")
ctypes.CDLL = refuse
from fusegen.cli.main import main
main(["doctor"])
"""
    blocked = tmp_path / "not_a_folder"
    blocked.write_text("")
    environment = {**os.environ, "PATH": str(tmp_path), "CXX": "", "FUSEGEN_CACHE_DIR": str(blocked)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    for name in ("GPU", "CuPy", "NVRTC", "torch", "C\\+\\+ compiler", "cache folder"):
        assert re.search(rf"^-- +{name} +\S.*\n +fix: \S", done.stdout, re.MULTILINE), (name, done.stdout)
    assert "apt install g++" in done.stdout
    assert "Ops do not run here yet" in done.stdout


# -- errors ----------------------------------------------------------------------------------------------------------

WRONG = {
    "unknown op": (["emit", "lerpp"], "did you mean lerp"),
    "no op in a file": (["emit", "FILE:blendd"], "did you mean blend"),
    "not an op": (["emit", "FILE:not_an_op"], "'not_an_op' there is no op"),
    "no file": (["show", "missing.py:op"], "no such file"),
    "a file alone": (["show", "missing.py"], "name the op: missing.py:op"),
    "two shapes for all": (["emit", "lerp", "--shape", "3", "--shape", "4"], "two without a name"),
    "two shapes for one": (["emit", "lerp", "--shape", "end=3", "--shape", "end=4"], "two for end"),
    "no module": (["show", "no.such.module:op"], "ModuleNotFoundError: No module named 'no'"),
    "unknown dtype": (["emit", "silu", "--dtype", "bfloat"], "did you mean bfloat16?"),
    "unknown short dtype": (["emit", "silu", "--dtype", "b16"], "did you mean bfloat16?"),
    "bad shape": (["emit", "silu", "--shape", "input=16,x"], "expected: sizes separated by commas"),
    "negative size": (["emit", "silu", "--shape", "input=-3"], "expected: sizes separated by commas"),
    "unknown argument": (["emit", "lerp", "--shape", "inptu=3"], "did you mean input?"),
    "argument without value": (["emit", "silu", "--arg", "inplace"], "expected: NAME=VALUE"),
    "shapes that do not fit": (["emit", "lerp", "--shape", "x=3,4", "--shape", "y=5", "--shape", "w=1"], "given:    "),
    "unknown pass": (["emit", "silu", "--which", "sideways"], "'double-backward'"),
    "unknown architecture": (["check", "silu", "--arch", "sm_12"], "expected: sm_75"),
    "unknown device": (["run", "silu", "--device", "tpu"], "expected: cpu or cuda"),
    "unknown GPU": (["show", "silu", "--gpu", "h20"], "did you mean h200?"),
    "unknown peer": (["bench", "silu", "--device", "cpu", "--peers", "torch,ligre"], "did you mean Liger?"),
    "no gradient": (["emit", "x + 1", "--which", "backward", "--dtype", "int32"], "no float result"),
    "a formula's typo": (["emit", "sigmoif(x)"], "did you mean sigmoid?"),
    "unknown option": (["emit", "silu", "--shapes", "3"], "No such option"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_say_what_is_wrong_and_exit_with_two(case: str, ops_file: Path, fusegen: Any) -> None:
    arguments, expected = WRONG[case]
    done = fusegen(*[argument.replace("FILE", str(ops_file)) for argument in arguments])
    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert "Traceback" not in done.err


def test_a_file_that_does_not_import_is_named_with_its_error(tmp_path: Path, fusegen: Any) -> None:
    path = tmp_path / "fails.py"
    path.write_text("1 / 0\n")
    done = fusegen("show", f"{path}:anything")
    assert done.code == 2
    assert "importing " in done.err
    assert "ZeroDivisionError: division by zero" in done.err.replace("\n", "")
    with pytest.raises(FusegenError) as caught:
        main(["--debug", "show", f"{path}:anything"])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# -- formulas --------------------------------------------------------------------------------------------------------

MEANT = {
    "x * sigmoid(y) + b": lambda x, y, b: x * torch.sigmoid(y) + b,
    "-x ** 2 / (1 + abs(y))": lambda x, y: -(x**2) / (1 + abs(y)),
    "2 ** 0.5 * x - 1 / 3": lambda x: 2**0.5 * x - 1 / 3,
    "x if 0 <= x < 1 else exp(x) - 1": lambda x: torch.where((x >= 0) & (x < 1), x, torch.exp(x) - 1),
    "where(x > 0 and not y > 0, x, y)": lambda x, y: torch.where((x > 0) & ~(y > 0), x, y),
    "x - mean(x, axis=-1, keepdims=True)": lambda x: x - x.mean(-1, keepdim=True),
    "sum(x * y, axis=(0, 1))": lambda x, y: (x * y).sum(),
    "sum(x, 0) + pi": lambda x: x.sum(0) + torch.pi,
    "x % y + x // y": lambda x, y: x % y + x // y,
    "maximum(x, 0.5) ** -1": lambda x: 1 / x.clamp(min=0.5),
    "x*2 @ exp(transpose(y, 0, 1))": lambda x, y: x * 2 @ y.exp().mT,
}


@pytest.mark.parametrize("text", MEANT)
def test_what_formulas_mean(text: str) -> None:
    op = formula_op(text)
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in op.declaration.signature.parameters]
    (found,) = reference(op.trace(*tensors), dict(zip(op.declaration.signature.parameters, tensors, strict=True)))
    torch.testing.assert_close(found, MEANT[text](*tensors))


def test_a_formula_has_several_results_and_keeps_the_order_of_its_names() -> None:
    op = formula_op("b * a, a + c")
    assert list(op.declaration.signature.parameters) == ["b", "a", "c"]
    assert len(op.trace(**bind(op, Request())).outputs) == 2


REFUSED = {
    "__import__('os').system('touch pwned')": "a call of",
    "x.__class__": "Attribute",
    "(lambda: x)()": "a call of",
    "[x for x in y]": "ListComp",
    "x[0]": "Subscript",
    "f'{x}' + y": "JoinedStr",
    "'text' * x": "the literal",
    "1j * x": "the literal",
    "(y := x)": "NamedExpr",
    "max(x, key=y)": "the function 'max'",
    "exp(x, axis=0)": "keywords: none",
    "sum(x, axis=exec)": "as an option",
    "exp(*x)": "Starred",
    "exp(x, y)": "too many positional arguments",
    "square(x, y)": "expected: square(x)",
    "exp + x": "the function exp without arguments",
    "__x + 1": "the name '__x'",
    "x +": "invalid syntax",
    "import os": "invalid syntax",
    "1 + 2": "0 tensors",
    "": "invalid syntax",
    "x is y": "Compare",
    "(x, (y, x))": "Tuple",
    "x + 1e999": "the literal",
    "x + 99999999999999999999": "the literal",
    "x + 1 / 0": "a constant that does not exist",
    "x + 10.0 ** 400": "a constant that does not exist",
    "x + " * 300 + "x": "at most 400",
    "(" * 60 + "x" + "+1)" * 60: "at most 400, 40 deep",
    "x" * 3000: "a formula of 3000 characters",
    "-" * 1500 + "x": "deep",
    "é + 1": "the name",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_formulas_refuse(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeclarationError) as caught:
        op = formula_op(text)
        op.trace(**bind(op, Request()))
    assert REFUSED[text] in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=300)
@given(st.text(alphabet="xy1.5+-*/%()<>=!&|^~,[]{}'\"\\:; \n_abcdefsinumgoldt@", max_size=40))
@example("self")
def test_any_text_is_a_formula_or_a_clear_error(text: str) -> None:
    try:
        op = formula_op(text)
        op.trace(**bind(op, Request()))
    except FusegenError as error:
        assert error.fix


def test_names_of_the_library_win_over_formulas() -> None:
    assert resolve("leaky-relu") is fg.ops.leaky_relu
    assert resolve("leaky_relu") is fg.ops.leaky_relu
    assert resolve("x-y").name == "formula"


@pytest.mark.parametrize("name", sorted(library()))
def test_every_op_has_arguments_to_show_it_with(name: str) -> None:
    op = library()[name]
    traced = op.trace(**bind(op, Request()))
    assert traced.operands
    assert traced.outputs


@pytest.mark.parametrize("name", ["group_norm", "layer_norm", "cross_entropy"])
def test_run_checks_ops_whose_wrapper_prepares_their_arguments(fusegen: Any, name: str) -> None:
    done = fusegen("run", name)
    assert done.code == 0, done.err
    assert "all close to the float64 reference" in done.out

"""Commands that take all ops of a file; errors that name the user's line; bars for whoever waits."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import fusegen as fg
from fusegen.cli.main import main
from tests.support.terminals import read_to_end

GOOD = '''
import fusegen as fg
from fusegen.ops import silu
from factory_of_cli_files import of_a_factory

@fg.op
def doubled(x):
    """Twice."""
    return x * 2

@fg.op
def product(a, b):
    return a @ b.mT

made = of_a_factory(3.0)
again = doubled
'''
FACTORY = """
import fusegen as fg

def of_a_factory(number):
    return fg.op(lambda x: x + number, name="added")
"""
MIXED = """
import fusegen as fg

@fg.op
def misspelt(x):
    return x + undefined_name

@fg.op
def images(x):
    n, c, h, w = x.shape
    return x * 2

@fg.op
def product(a, b):
    return a @ b

@fg.op
def fine(x):
    return x * 3
"""


@pytest.fixture
def fusegen(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(list(arguments))
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files of ops in it."""
    for name, text in {"good": GOOD, "mixed": MIXED, "factory_of_cli_files": FACTORY}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "factory_of_cli_files", raising=False)
    return tmp_path


# -- all ops of a file -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("folder")
def test_list_names_what_a_file_declares(fusegen: Any) -> None:
    """Not what it imports; what it makes by a factory; and each op once."""
    code, out, _ = fusegen("list", "good.py")
    assert (code, out.splitlines()) == (0, ["doubled\t(x)\tTwice.", "product\t(a, b)\t", "made\t(x)\t"])
    assert fusegen("list", "good.py", "--functions")[0] == 2


@pytest.mark.usefixtures("folder")
def test_check_takes_all_ops_of_a_file(fusegen: Any) -> None:
    code, out, _ = fusegen("check", "good.py", "--dtype", "f32")
    assert code == 0, out
    assert out.startswith("3 ops in float32 for sm_90: ")
    assert out.splitlines()[-1] == "all 3 ops compile"


@pytest.mark.usefixtures("folder")
def test_an_op_that_fails_does_not_keep_others_from_being_checked(fusegen: Any) -> None:
    code, out, err = fusegen("check", "mixed.py")
    assert (code, err) == (1, "")
    assert "4 ops in float32, bfloat16, float16, float64 for sm_90: 8 kernels compile" in out
    assert "NameError: name 'undefined_name' is not defined\n  at:       mixed.py, line 6: return x + undefined" in out
    assert "mixed.py:misspelt, float32, bfloat16, float16, float64:\n" in out and out.count("NameError") == 1
    assert out.splitlines()[-1] == "3 of 4 ops failed: mixed.py:misspelt, mixed.py:images, mixed.py:product"


@pytest.mark.usefixtures("folder")
def test_shapes_that_cannot_be_guessed_are_asked_for(fusegen: Any) -> None:
    code, out, _ = fusegen("check", "mixed.py", "--dtype", "f32")
    assert code == 1
    assert (
        "images, declared in" in out and "mixed.py, line 10\n  given:    ValueError: not enough values to unpack" in out
    )
    assumed = "say --shape NAME=16,3 with sizes that fit: where nothing was said, this is assumed: "
    assert f"{assumed}x=512,3072" in out and f"{assumed}a=512,3072, b=512,3072" in out
    # Each op takes what it has a name for, and an op alone does not take what it has none for.
    shapes = ["--shape", "x=2,3,8,8", "--shape", "a=8,3", "--shape", "b=3,5"]
    code, out, _ = fusegen("check", "mixed.py", "--dtype", "f32", *shapes)
    assert (code, out.splitlines()[-1]) == (1, "1 of 4 ops failed: mixed.py:misspelt")
    assert "an argument 'a'" in fusegen("check", "mixed.py:images", "--dtype", "f32", *shapes)[1]
    code, out, _ = fusegen("check", "mixed.py", "--dtype", "f32", "--arg", "nobodys=3")
    assert out.splitlines()[-1].startswith("4 of 4 ops failed") and "an argument 'nobodys'" in out


def test_dtypes_that_cannot_be_guessed_are_asked_for(folder: Path, fusegen: Any) -> None:
    (folder / "masked.py").write_text(
        "import fusegen as fg\n\n\n@fg.op\ndef masked(x, mask):\n    return fg.where(mask, x, 0)\n"
    )
    code, _, err = fusegen("show", "masked.py:masked")
    assert code == 2
    assert "--dtype NAME=bool of a mask" in err and "x, mask are float32 since nothing was said" in err
    assert fusegen("show", "masked.py:masked", "--dtype", "mask=bool")[0] == 0


@pytest.mark.emulator
@pytest.mark.usefixtures("folder")
def test_run_takes_all_ops_of_a_file(fusegen: Any) -> None:
    code, out, err = fusegen("run", "mixed.py", "--shape", "4,4", "--device", "cpu")
    assert (code, err) == (1, "")
    assert "mixed.py:misspelt failed:\nNameError" in out
    assert out.count("all close to the float64 reference\n") == 2, "what comes behind a failure runs too"
    assert out.splitlines()[-1] == "2 of 4 ops failed: mixed.py:misspelt, mixed.py:images"
    code, out, _ = fusegen("run", "good.py", "--shape", "4,4", "--device", "cpu")
    assert (code, out.splitlines()[-1]) == (0, "all 3 ops agree")


@pytest.mark.emulator
def test_run_counts_wrong_numbers_as_failures(folder: Path, fusegen: Any) -> None:
    (folder / "off.py").write_text(
        "import fusegen as fg\n"
        'off = fg.register_function("off_in_cli_files", cuda="({0} + 1)", reference=lambda t, x: x, smooth=False)\n'
        "one_more = fg.op(lambda x: off(x), name='one_more')\n"
    )
    code, out, _ = fusegen("run", "off.py", "--shape", "4", "--device", "cpu")
    assert (code, out.splitlines()[-1]) == (1, "1 of 1 op failed: off.py:one_more")


def test_a_file_without_ops(folder: Path, fusegen: Any) -> None:
    (folder / "none.py").write_text("from fusegen.ops import silu\n")
    for command in ("list", "check", "run"):
        code, out, err = fusegen(command, "none.py")
        assert (code, out) == (2, "") and "a file that declares no op" in err
        assert "no such file" in fusegen(command, "missing.py")[2]


# -- the line that is to blame ---------------------------------------------------------------------------------------

# What a file says, what is printed of it, and where.
BROKEN = {
    "an exception": ("import fusegen\n\n1 / 0\n", "ZeroDivisionError: division by zero", "broken.py, line 3"),
    "a missing module": ("\nimport no_such_module_anywhere\n", "ModuleNotFoundError", "broken.py, line 2"),
    "within the library": ("import json\n\njson.loads('{')\n", "JSONDecodeError", "broken.py, line 3"),
    "a module beside it": ("import beside_broken\n", "KeyError: 'none'", "beside_broken.py, line 2"),
    "syntax": ("import fusegen\ndef f(:\n", "SyntaxError", "broken.py, line 2"),
    "a script": ("import sys\n\n\nsys.exit(3)\n", "a file that ends Python (SystemExit: 3)", "broken.py, line 4"),
    "an error of fusegen's": (
        "import fusegen as fg\n\nfg.register_function('sin', cuda='{0}', reference=None)\n",
        "a name that already stands in the function table", "broken.py, line 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_an_import_that_fails_names_the_line(case: str, folder: Path, fusegen: Any) -> None:
    text, given, at = BROKEN[case]
    (folder / "broken.py").write_text(text)
    (folder / "beside_broken.py").write_text("x = {}\nx['none']\n")
    for arguments in (("show", "broken.py:op"), ("check", "broken.py"), ("emit", "broken:op")):
        code, out, err = fusegen(*arguments)
        assert (code, out) == (2, "")
        assert f", at {at}" in err and given in err.replace("\n", ""), err
        assert "Traceback" not in err


def test_what_failed_to_import_is_imported_anew(folder: Path, fusegen: Any) -> None:
    """What was made of a file before it failed is not all of it."""
    path = folder / "broken.py"
    path.write_text(
        "import fusegen as fg\nop = fg.op(lambda x: x + 1)\nraise fg.ShapeError('a', given='', expected='', fix='')\n"
    )
    assert fusegen("list", "broken.py")[0] == 2
    assert fusegen("list", "broken.py")[0] == 2
    assert fusegen("emit", "broken.py:op")[0] == 2


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["show", "emit", "run"])
def test_a_trace_that_fails_names_the_line(command: str, fusegen: Any) -> None:
    code, out, err = fusegen(command, "mixed.py:misspelt")
    assert (code, out) == (2, "")
    assert "error: NameError: name 'undefined_name' is not defined" in err
    assert "  at:       mixed.py, line 6: return x + undefined_name" in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("folder")
def test_debug_shows_how_python_came_there(fusegen: Any) -> None:
    with pytest.raises(NameError):
        main(["--debug", "emit", "mixed.py:misspelt"])
    out = fusegen("check", "mixed.py:misspelt", "--dtype", "f32", "--debug")[1]
    assert "Traceback (most recent call last)" in out
    assert "Traceback" not in fusegen("check", "mixed.py:misspelt", "--dtype", "f32")[1]


def test_fusegens_own_lines_are_not_the_users(fusegen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("fusegen.cli.arguments.functions", lambda: 1 / 0)  # a line of this file is to blame
    assert "at:       " in fusegen("list", "--functions")[2]
    monkeypatch.undo()
    monkeypatch.setattr("fusegen.cli.arguments.getattr", fails, raising=False)
    monkeypatch.setattr("fusegen.cli.arguments.language", None)  # and a line of fusegen's
    err = fusegen("list", "--functions")[2]
    assert err.startswith("error: AttributeError") and "at:       " not in err and "--debug and report it" in err


# -- the version -----------------------------------------------------------------------------------------------------


def test_the_version_is_that_of_the_code(fusegen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", lambda name: fg.__version__)
    assert fusegen("--version")[1] == f"fusegen {fg.__version__}\n"
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1")  # a clone that was updated since
    assert fusegen("--version")[1] == f"fusegen {fg.__version__} (installed as 0.0.1: run pip install again)\n"
    monkeypatch.setattr(metadata, "version", missing)
    assert fusegen("--version")[1] == f"fusegen {fg.__version__}, from a source tree\n"


# -- bars ------------------------------------------------------------------------------------------------------------


def apart(code: str, *arguments: str, is_terminal: bool = True, **environment: str) -> tuple[str, str]:
    """What a command writes to a pipe, and to its standard error, which is a terminal or a pipe."""
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    given = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **environment}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=theirs, env=given, text=True
    )
    os.close(theirs)
    assert process.stdout is not None
    # Of what a command prints a pipe holds back enough.
    seen = read_to_end(ours)
    out = process.stdout.read()
    assert process.wait() in (0, 1)
    return out, seen.decode()


PLAIN = "from fusegen.cli.main import main; main()"
CLEARS = """
import time
from fusegen.launch import cache
cache.Cache.clear = lambda self: time.sleep(0.3) or 3
from fusegen.cli.main import main; main()
"""
BUILDS = """
import time
from fusegen.cli import doctor
from fusegen.native import module as native
native.recipe = lambda: None
native.build = lambda recipe, again: time.sleep(0.3)
from fusegen.cli.main import main; main()
"""
COMMANDS = {
    "check": (PLAIN, ["check", "silu", "--dtype", "f32"], ["silu float32", "0/1", "0:00:0"], "1 op in float32"),
    "doctor": (BUILDS, ["doctor", "--build"], ["building the call path", "compiler", "0/1"], "C++ compiler"),
    "cache": (CLEARS, ["cache", "--clear"], ["removing entries", "0/1"], "removed 3 entries from"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_bars_are_for_terminals(name: str) -> None:
    code, arguments, steps, printed = COMMANDS[name]
    out, seen = apart(code, *arguments)
    assert all(step in seen for step in steps), seen
    assert printed in out and "\x1b" not in out and printed not in seen
    # Where colours are forced on, a pipe is no terminal either.
    out, seen = apart(code, *arguments, is_terminal=False, FORCE_COLOR="1")
    assert printed in out and seen == ""

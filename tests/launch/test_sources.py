"""What is kept on disk is named by the code that made it, also where that code changes under a running process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fusegen.core import sources
from fusegen.launch.memo import compiler_digest

ROOT = Path(__file__).resolve().parents[2]
# A process of its own, of a copy of fusegen that it may change.
BEGIN = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("always")
copy = Path(sys.argv[1])

def change(name, old, new):
    path = copy / name
    text = path.read_text()
    assert text.count(old) == 1, (name, text.count(old))
    path.write_text(text.replace(old, new))

import fusegen as fg
from fusegen import pipeline
from fusegen.core.serialize import op_to_json
from fusegen.core.text import expr_text
from fusegen.launch.memo import compiler_digest

@fg.op
def bent(x):
    return fg.tanh(x)

def gradient(op=bent):
    training = pipeline.train_op(op.trace(fg.TensorSpec(fg.float32, (3,))), ("x",))
    (output,) = pipeline.backward_op(training, (0,)).expand()[1]
    return expr_text(output.expr).replace(" ", "")
"""
RIGHT, WRONG = "partials=lambda x, y: (1 - y * y,)", "partials=lambda x, y: (1 - y,)"


class Copy:
    """A copy of fusegen, and processes that run it with one cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder / "copy", folder / "cache"
        for name in ("fusegen", *sources.BESIDE):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def run(self, code: str) -> tuple[list[str], str]:
        """What a process prints, and what it says beside."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "FUSEGEN_CACHE_DIR": str(self.cache)}
        code = BEGIN + textwrap.dedent(code)
        command = [sys.executable, "-c", code, str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=self.folder.parent)
        assert done.returncode == 0, done.stderr
        return done.stdout.split(), done.stderr

    def write(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        path.write_text(path.read_text().replace(old, new))


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


CALL = """
import torch
def called():
    x = torch.full((1,), 0.5, requires_grad=True)
    return round(torch.autograd.grad(bent(x).sum(), x)[0].item(), 4)
"""


def test_sources_that_change_before_the_first_call(copy: Copy) -> None:
    """What was imported has a bug, which is mended before the first call."""
    copy.write("fusegen/declare/functions.py", RIGHT, WRONG)
    change = f"{CALL}change('fusegen/declare/functions.py', {WRONG!r}, {RIGHT!r})\n"
    printed, said = copy.run(f"{change}print(called(), called())")
    assert printed == ["0.5379"] * 2
    assert said.count("functions.py has changed since this process imported fusegen") == 1
    printed, said = copy.run(f"{CALL}print(called())")
    assert printed == ["0.7864"] and "changed" not in said


def test_what_is_in_the_cache_is_not_for_a_process_that_runs_other_code(copy: Copy) -> None:
    (right,) = copy.run("print(gradient())")[0]
    copy.write("fusegen/declare/functions.py", RIGHT, WRONG)
    change = f"change('fusegen/declare/functions.py', {WRONG!r}, {RIGHT!r})\n"
    assert copy.run(f"{change}print(gradient())")[0] == ["d_out*(1-tanh(x))"] != [right]
    assert copy.run("print(gradient())")[0] == [right]


def test_a_module_that_changes_before_it_is_imported(copy: Copy) -> None:
    """The digest has been taken, of all files."""
    symbolic = "fusegen/derive/symbolic.py"
    wrong = """
        compiler_digest()
        assert "fusegen.derive.symbolic" not in sys.modules
        with open(copy / "fusegen/derive/symbolic.py", "a") as file:
            file.write("_right = partials\\npartials = lambda *a: {r: p + 1 for r, p in _right(*a).items()}\\n")
        print(gradient(), gradient())
    """
    printed, said = copy.run(wrong)
    assert len(set(printed)) == 1 and said.count("symbolic.py has changed") == 1
    shutil.copy(ROOT / symbolic, copy.folder / symbolic)
    assert copy.run("print(gradient())")[0] != printed[:1]


def test_a_module_that_is_loaded_again(copy: Copy) -> None:
    again = f"""
        import importlib
        compiler_digest()
        change('fusegen/declare/functions.py', {RIGHT!r}, {WRONG!r})
        fg.declare.table._rows.clear()
        importlib.reload(fg.declare.functions)
        print(gradient())
        change('fusegen/declare/functions.py', {WRONG!r}, {RIGHT!r})
    """
    printed, said = copy.run(again)
    assert printed == ["d_out*(1-tanh(x))"] and said.count("functions.py has changed") == 1
    assert copy.run("print(gradient())")[0] == ["d_out*(1-tanh(x)^2)"]


def test_templates_are_those_that_the_digest_names(copy: Copy) -> None:
    """Read once and together, for what is rendered and for what is compiled."""
    late = """
        import numpy as np
        compiler_digest()
        emulator = "fusegen/launch/emulator/fusegen_emulator.h"
        for path in ("templates/rows.cu.j2", "templates/row.cu.j2", "templates/fusegen.cuh", emulator):
            (copy / path).write_text("#error another version\\n")
        rows = fg.op(lambda x: fg.sum(x, -1) * 2.0, name="rows")
        x = np.ones((3, 5), np.float32)
        print(rows(x).tolist(), "error" in rows.emit(x))
    """
    printed, said = copy.run(late)
    assert "".join(printed) == "[10.0,10.0,10.0]False" and "changed" not in said


def test_torchs_graphs_are_known_by_what_is_run(copy: Copy) -> None:
    identity = "from fusegen.pytorch.library.identity import identity\n"
    change = f"change('fusegen/declare/functions.py', {WRONG!r}, {RIGHT!r})\n"
    of_bent = "print(identity(bent.declaration))"
    right = copy.run(identity + of_bent)[0]
    assert right == copy.run(identity + of_bent)[0]
    copy.write("fusegen/declare/functions.py", RIGHT, WRONG)
    wrong = copy.run(identity + of_bent)[0]
    changed = [copy.run(identity + change + of_bent)[0]]
    copy.write("fusegen/declare/functions.py", RIGHT, WRONG)
    changed += [copy.run(identity + change + of_bent)[0]]
    assert len({*right, *wrong, *changed[0], *changed[1]}) == 4


def test_a_change_to_the_library_is_one_of_identity(copy: Copy) -> None:
    change = "(copy / 'ops' / 'blends.py').write_text('')\n"
    of_bent = "from fusegen.pytorch.library.identity import identity\nprint(identity(bent.declaration))"
    printed, said = copy.run(f"{of_bent}\n{change}print(identity(bent.declaration))")
    assert printed[0] == printed[1] and "changed" not in said  # it has been read
    assert len({printed[0], *copy.run(of_bent)[0]}) == 2


def test_every_file_is_looked_at() -> None:
    assert not sources.is_changed()
    files = {path for folder in ("fusegen", *sources.BESIDE) for path in (ROOT / folder).rglob("*.*")}
    no_code = (".pyc", ".pyi", ".typed", ".json")  # what a table says of schedules is asked for by each plan
    files = {str(path) for path in files if path.suffix not in no_code and "__pycache__" not in path.parts}
    assert files == set(sources._imported)
    for name, path in sources._modules.items():
        if name in sys.modules:
            assert sys.modules[name].__file__ == path
    assert {"fusegen", "fusegen.core.ir", "fusegen.ops", "fusegen.ops.blends", "fusegen.nn"} <= set(sources._modules)


def test_a_template_that_is_not_there() -> None:
    with pytest.raises(sources.CompileError, match=r"no nothing.cu.j2 in (.|\n)*restart Python"):
        sources.template("nothing.cu.j2")


def test_the_digest_is_the_same_in_another_process() -> None:
    code = "from fusegen.launch.memo import compiler_digest\nprint(compiler_digest())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == compiler_digest()

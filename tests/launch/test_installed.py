"""fusegen as it is installed from a wheel, and Python started in the root of a clone beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fusegen", "nn", "ops", "templates")
SHOWN = """
import fusegen as fg, fusegen.ops, fusegen.templates, fusegen.launch.cache
import numpy as np
x = np.ones((2, 3), np.float32)
assert fg.ops.softmax(x, -1).shape == x.shape
assert fg.ops.lerp.emit(x, x, 0.5)
import fusegen.nn
assert fg.nn.GELU()
for module in (fusegen, fusegen.ops, fusegen.nn, fusegen.templates, fusegen.launch.cache):
    print(module.__file__)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has fusegen from a wheel, and what it needs from where this one has it."""
    tree, wheels = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheels")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, tree], check=True)
    (wheel,) = wheels.glob("fusegen-*.whl")
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, with_pip=False, symlinks=os.name == "posix")
    found = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(subprocess.run([found, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", site, wheel], check=True)
    # Not as a folder for sites: the editable install in there would find what the wheel does not have.
    (site / "needed.pth").write_text(sysconfig.get_paths()["purelib"])
    return found


def places(python: Path, folder: Path) -> list[Path]:
    """Where the parts of fusegen come from, when Python is started in ``folder``."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # which may name the clone
    done = subprocess.run([python, "-c", SHOWN], capture_output=True, text=True, cwd=folder, env=own)
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.splitlines()]


def test_the_wheel_has_everything(python: Path, tmp_path: Path) -> None:
    found = places(python, tmp_path)
    assert all(ROOT not in path.parents and "site-packages" in path.parts for path in found)
    # What type checkers read.
    package, typed = found[0].parent, ("py.typed", "_language.pyi", "_nn.pyi", "_ops.pyi", "declare/tensor.pyi")
    assert all((package / name).exists() for name in (*typed, "nn/__init__.pyi", "ops/__init__.pyi"))


def test_in_the_root_of_a_clone_all_parts_are_the_clones(python: Path) -> None:
    """As they are wherever Python finds ``fusegen`` in the current folder first."""
    expected = [ROOT / name / "__init__.py" for name in ("fusegen", "ops", "nn", "templates")]
    assert places(python, ROOT) == [*expected, ROOT / "fusegen/launch/cache.py"]


def test_another_clone_than_the_one_that_is_installed(tmp_path: Path) -> None:
    """This Python's editable install has ``fusegen.ops`` too, of this clone."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    assert all(tmp_path in path.parents for path in places(Path(sys.executable), tmp_path))

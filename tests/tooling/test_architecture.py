"""The law of the tree: no circles, files stay short, and nothing names a machine or a day. (Layers: ``make lint``.)"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fusegen"
LONGEST = 800

FOLDERS = ("fusegen", "nn", "ops", "templates", "tests", "tools")
MODULES = sorted(
    path.relative_to(ROOT) for folder in ("fusegen", "nn", "ops") for path in (ROOT / folder).rglob("*.py")
)
# An __init__.py gathers what its folder offers, and a __main__.py calls it, so they may look anywhere.
LAWFUL = [path for path in MODULES if path.name not in ("__init__.py", "__main__.py")]


def dotted(path: Path) -> str:
    """The name a file is imported by: ops/blends.py is fusegen.ops.blends."""
    parts = path.with_suffix("").parts
    parts = parts if parts[0] == "fusegen" else ("fusegen", *parts)
    return ".".join(part for part in parts if part != "__init__")


NAMES = {dotted(path) for path in MODULES} | {"fusegen", "fusegen.templates"}
NAMES |= {name.rpartition(".")[0] for name in NAMES} - {""}


def imports(source: str, importer: str) -> Iterator[tuple[str, int]]:
    """What a module imports, anywhere in it, as (full name, line)."""
    package = importer.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield (full if full in NAMES else base), node.lineno


def ours(path: Path) -> list[tuple[str, int]]:
    found = imports((ROOT / path).read_text(encoding="utf-8"), dotted(path))
    return [(name, line) for name, line in found if name.split(".")[0] == "fusegen"]


def test_no_circles() -> None:
    graph = {dotted(path): sorted({name for name, _ in ours(path)}) for path in LAWFUL}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for imported in graph.get(name, ()):
                visit(imported, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


@pytest.mark.parametrize("path", [path for path in MODULES if path.parts[0] in ("nn", "ops")], ids=str)
def test_ops_and_modules_import_nothing_but_the_front(path: Path) -> None:
    """As people's own ops do. (Modules of nn/ know torch as well, and ask whether torch is known.)"""
    own = f"fusegen.{path.parts[0]}"
    wrong = [name for name, _ in ours(path) if name != "fusegen" and not f"{name}.".startswith(f"{own}.")]
    assert path.name == "__init__.py" or wrong == []


@pytest.mark.parametrize("path", [path for path in MODULES if path.parts[0] == "ops"], ids=str)
def test_ops_import_nothing_but_fusegen(path: Path) -> None:
    found = imports((ROOT / path).read_text(encoding="utf-8"), dotted(path))
    outside = {name for name, _ in found if name not in ("collections.abc", "typing")}
    outside = {name for name in outside if name.split(".")[0] not in ("fusegen", "__future__")}
    assert outside == set()


def test_imports_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "NAMES", {"fusegen.plan", "fusegen.derive.gradient", "fusegen.core.dtypes"})
    source = "import fusegen\nfrom fusegen import plan\nfrom ..derive import gradient\nfrom . import dtypes\n"
    source += "def f():\n    import fusegen.launch.cache as c\n"
    assert list(imports(source, "fusegen.core.ir")) == [
        ("fusegen", 1),
        ("fusegen.plan", 2),
        ("fusegen.derive.gradient", 3),
        ("fusegen.core.dtypes", 4),
        ("fusegen.launch.cache", 6),
    ]


def test_the_map_has_every_module() -> None:
    map_ = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("\n## Map\n")[2]
    rows = [line.split("|")[1] for line in map_.splitlines() if line.startswith("| `")]
    listed = [name for row in rows[1:] for name in re.findall(r"`([\w/]+)`", row)]
    modules = [path.relative_to("fusegen").with_suffix("").as_posix() for path in LAWFUL if path.parts[0] == "fusegen"]
    assert sorted(listed) == sorted(modules)


def test_modules_that_texts_name_exist() -> None:
    rooms = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0].isalpha()))
    named = re.compile(rf"(?<![\w./])((?:{rooms})(?:/[a-z_]+)*)/([a-z_]+)(?![\w/-])")
    wrong = [
        f"{path}: {found[0]}"
        for path, text in texts().items()
        if path.suffix in (".py", ".md", ".j2", ".cuh", ".h", ".cpp")
        for found in named.finditer(text)
        if not list(PACKAGE.glob(f"{found[1]}/{found[2]}*"))
    ]
    assert wrong == []


def test_every_folder_is_installed() -> None:
    listed = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    folders = {".".join(path.relative_to(ROOT).parent.parts) for path in PACKAGE.rglob("*.py")}
    assert {folder for folder in folders if f'"{folder}",' not in listed} == set()


@pytest.mark.parametrize("folder", ["nn", "ops", "templates"])
def test_mapped_folders_are_packages(folder: str) -> None:
    # An editable install finds a folder that lies elsewhere in the tree only by its __init__.py; a wheel hides that.
    assert (ROOT / folder / "__init__.py").exists()


def test_hosted_ci_runs_what_we_run_for_the_oldest_python_and_torch() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    # With no other argument than a Python: all tests, in both.
    ours = re.search(r'^(make .*) PYTHON="\$python"$', (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert ours and ours[1] == "make test" and "          make test PYTHON=python" in workflow
    found = re.findall(r'python: "([\d.]+)", torch: "([\d.]+)"', workflow)
    versions = [tuple(tuple(map(int, version.split("."))) for version in row) for row in found]
    python, torch = (re.search(p, project) for p in (r'requires-python = ">=([\d.]+)"', r'"torch>=([\d.]+)"'))
    assert python and torch and found[0][0] == python[1] and found[0][1].startswith(f"{torch[1]}.")
    assert min(versions) == versions[0] and f"torch=={found[1][1]}" in (ROOT / "Makefile").read_text(encoding="utf-8")


@cache
def texts() -> dict[Path, str]:
    """Every text file that is tracked or about to be; every file of the tree where there is no git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = [str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    found = {}
    for name in sorted(filter(None, listed)):
        try:
            found[Path(name)] = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue  # A picture, or a file that is being replaced.
    return found


def test_files_are_short() -> None:
    kinds = {".py", ".cuh", ".h", ".j2"}
    lengths = {path: text.count("\n") for path, text in texts().items() if path.suffix in kinds}
    assert {str(path): count for path, count in lengths.items() if count > LONGEST} == {}


MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
PERSONAL = {
    "a date": re.compile(rf"\b(?:19|20)\d\d-[01]\d-[0-3]\d\b|\b(?:{MONTHS}) (?:\d{{1,2}}, )?20\d\d\b"),
    "a path of one machine": re.compile(r"(?<![\w.:/])/(?:home|root|work|Users|mnt|scratch)/\w|\b[A-Z]:\\Users\\"),
    "a host": re.compile(r"\b[\w-]+@[\w-]+:|\b[\w-]+\.(?:local|lan|internal|corp)\b(?!\()"),
}


@pytest.mark.parametrize("what", PERSONAL)
def test_no_file_names_a_day_or_a_machine(what: str) -> None:
    found = []
    for path, text in texts().items():
        if path != Path("LICENSE"):
            lines = enumerate(text.splitlines(), 1)
            found += [f"{path}:{number}: {line.strip()}" for number, line in lines if PERSONAL[what].search(line)]
    assert found == []

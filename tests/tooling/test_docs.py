"""Every code block of README and the documentation, run as it stands; and what the pages' words name.

The Python blocks of a page share one namespace and run from the top, in an empty folder, on tensors of the CPU. A block
that begins with a comment ``# name.py`` is also that file there. What a page's reader has already (a model, a batch) is
made by Python in a comment of Markdown: ``<!-- test: ... -->``. Of shell blocks the lines that begin with ``fusegen``
run; those that need a GPU say so in their comment, and their options are read, no more. ``make`` lines name targets.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

import fusegen as fg
from fusegen.cli.arguments import library
from fusegen.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(?P<kind>[^\n`]*)\n(?P<code>.*?)^```$|^<!-- test:\n(?P<hidden>.*?)^-->$", re.M | re.S)
# What a page may hold that nobody runs: output, other languages, and what Sphinx itself reads.
NOT_RUN = {"text", "diff", "yaml", "cuda", "toml"}
# Written by programs whose own tests say that they are what is printed now.
PRINTED = {"mutation.md", "performance.md"}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if "gallery" not in page.parts and page.name not in PRINTED),
    *sorted(ROOT.glob("examples/*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@dataclass(frozen=True)
class Block:
    """A block of a page: its language, its text, and the line of the page that its text begins at."""

    kind: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        part = "hidden" if match["hidden"] is not None else "code"
        kind = "python" if part == "hidden" else match["kind"].strip()
        found.append(Block(kind, match[part], text.count("\n", 0, match.start(part))))
    return found


def run_python(block: Block, page: Path, names: dict[str, Any], folder: Path) -> None:
    """Errors, and declarations that are shown, have the page's own lines."""
    first = block.code.partition("\n")[0]
    if named := re.fullmatch(r"# (\w+\.py)", first):
        (folder / named[1]).write_text(block.code, encoding="utf-8")
    exec(compile("\n" * block.line + block.code, str(page), "exec"), names)


def run_line(line: str, folder: Path) -> None:
    command, _, remark = line.partition(" #")
    words = shlex.split(command)
    if "GPU" in remark and "without" not in remark:
        read_options(words)
        return
    own = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    done = subprocess.run(
        [sys.executable, "-m", "fusegen", *words[1:]], capture_output=True, text=True, cwd=folder, env=own
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def read_options(words: list[str]) -> None:
    """Raises click's UsageError where the command line is none."""
    command = typer.main.get_command(app)
    name, *rest = words[1:]
    command.commands[name].make_context(name, rest)  # type: ignore[attr-defined]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder to be in, whose modules are nobody else's; what a page sets in the environment is gone after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{tmp_path}{os.sep}"):
            del sys.modules[name]


@pytest.mark.cpu
@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_runs(page: Path, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.kind == "python":
            run_python(block, page, names, tmp_path)
        elif block.kind == "sh":
            for line in block.code.splitlines():
                if line.startswith("fusegen "):
                    run_line(line, tmp_path)
                elif line.startswith("make "):
                    assert_target(line)
        else:
            assert block.kind in NOT_RUN or block.kind.startswith("{"), f"{page.name}: a block of {block.kind!r}"


def assert_target(line: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in shlex.split(line.partition(" #")[0])[1:]:
        assert "=" in word or re.search(rf"^{re.escape(word)}:", makefile, re.M), f"no target {word}: {line}"


def test_a_wrong_block_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\n<!-- test:\ny = 2\n-->\n\n```python\nassert x == y\n```\n")
    names: dict[str, Any] = {}
    first, hidden, wrong = blocks(page)
    run_python(first, page, names, tmp_path)
    run_python(hidden, page, names, tmp_path)
    with pytest.raises(AssertionError) as caught:
        run_python(wrong, page, names, tmp_path)
    assert caught.traceback[-1].lineno == 11  # from 0: the line of the page
    with pytest.raises(AssertionError, match="no target"):
        assert_target("make nonsense")
    with pytest.raises(Exception, match="No such option"):
        read_options(["fusegen", "bench", "gelu", "--nonsense"])
    read_options(["fusegen", "bench", "gelu", "--shape", "4,4"])


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "reference").glob("*.md")))
    listed = set(re.findall(r"auto\w+:: fusegen\.(\w+)$", pages, re.M))
    told = set(re.findall(r"`fg\.(\w+)`", pages))
    public = {*fg.__all__, "accumulate_grad", "patch"}
    assert public - listed - told == set()
    assert listed - public - {"nn", "optim"} == set()


def test_links_of_readme_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert link.startswith("http") or (ROOT / link).exists(), f"{page.name}: {link}"


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 120
    assert f"[{len(library())} ops]" in text
    for line in lines:
        for cell in line.split("|")[1:-1] if line.startswith("|") else []:
            assert len(cell.split()) <= 30, f"a cell of {len(cell.split())} words: {cell}"

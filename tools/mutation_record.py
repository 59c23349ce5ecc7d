"""What each test reaches, for tools/mutate: lines of Python, templates, functions of the device headers, and its time.

A plugin of pytest: ``python -m pytest -p tools.mutation_record --reach FILE tests/test_x.py`` writes FILE. A test is
recorded as if it ran alone: what fusegen keeps in memory is forgotten before each, and what is on disk is made anew.
"""

from __future__ import annotations

import functools
import gc
import json
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("derive", "fuse", "generate")
_CALLED = re.compile(r"\bfg::(?:\w+::)?(\w+)")


class Recorder:
    """Keeps what the running test reaches."""

    def __init__(self, target: Path) -> None:
        import coverage

        self.target = target
        self.coverage = coverage.Coverage(
            data_file=None, config_file=False, source=[str(ROOT / "fusegen" / folder) for folder in FOLDERS]
        )
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.templates: set[str] = set()
        self.words: set[str] = set()
        self.reached: dict[str, tuple[list[str], list[str]]] = {}
        self.tables: weakref.WeakSet[Any] = weakref.WeakSet()
        self.coverage.start()
        self._listen()

    def _listen(self) -> None:
        from fusegen import pipeline
        from fusegen.core.recent import Recent
        from fusegen.generate import scans
        from fusegen.generate.builder import Builder
        from fusegen.launch.emulator import build as emulator
        from fusegen.plan import targets

        created, printed, loaded = Recent.__init__, Builder.text, targets.CpuTarget.load
        built = emulator.build
        scan = scans.render_scan
        tables = self.tables

        def create(table: Any, most: int) -> None:
            created(table, most)
            tables.add(table)

        def text(builder: Builder, *given: Any) -> str:
            found = printed(builder, *given)
            self.templates.add("kernel_program")
            self.words.update(_CALLED.findall(found))
            return found

        def render_scan(*given: Any) -> Any:
            self.templates.add("kernel_program")
            return scan(*given)

        def load(target: Any, rendered: Any, *others: Any) -> Any:
            self.words.update(_CALLED.findall(rendered.text))
            return loaded(target, rendered, *others)

        def build(text: str, *others: Any, **options: Any) -> bytes:
            self.words.update(_CALLED.findall(text))
            return built(text, *others, **options)

        changed: list[tuple[Any, str, Any]] = [
            (Recent, "__init__", create), (Builder, "text", text), (scans, "render_scan", render_scan),
            (targets.CpuTarget, "load", load), (emulator, "build", build), (pipeline, "remember", _make_anew),
        ]  # fmt: skip
        for owner, name, by in changed:
            setattr(owner, name, by)
        tables.add(pipeline._compiled)

    def forget(self) -> None:
        """What earlier tests have left in memory."""
        for table in list(self.tables):
            table.clear()
        for item in gc.get_objects():
            if type(item) is functools._lru_cache_wrapper:
                module = str(getattr(item, "__module__", ""))
                if module.startswith(("tests.", *(f"fusegen.{folder}" for folder in FOLDERS))):
                    item.cache_clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test, its fixtures included."""
        self.forget()
        self.templates, self.words = set(), set()
        self.coverage.switch_context(item.nodeid)
        result = yield
        self.coverage.switch_context("")
        self.reached[item.nodeid] = (sorted(self.templates), sorted(self.words))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Each of a test's three parts."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.outcome != "passed":
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """All tests have run."""
        self.coverage.stop()
        data = self.coverage.get_data()
        tests: dict[str, Any] = {
            name: {"seconds": round(seconds, 3), "templates": self.reached[name][0], "words": self.reached[name][1]}
            for name, seconds in self.seconds.items()
            if name not in self.failed
        }
        lines: dict[str, dict[int, list[str]]] = {}
        for file in sorted(data.measured_files()):
            found = data.contexts_by_lineno(file)
            own = {line: sorted(name for name in names if name in tests) for line, names in found.items()}
            lines[Path(file).relative_to(ROOT).as_posix()] = {line: names for line, names in own.items() if names}
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.target.write_text(json.dumps({"tests": tests, "lines": lines}))


def _make_anew(kind: str, parts: tuple[str, ...], make: Callable[[], list[str]]) -> list[str]:
    return make()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file to write."""
    parser.addoption("--reach", metavar="FILE", help="record what each test reaches")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before anything is collected."""
    if target := config.getoption("--reach"):
        config.pluginmanager.register(Recorder(Path(target)), "recorder")

"""How much the tests see: changes the compiler's code at random, a place at a time, and runs the tests that reach it.

python tools/mutate.py --record tests/kernels/test_rows.py ...           which tests reach what (tools/mutation_record)
python tools/mutate.py --sample 200 --seed 1 --jobs 2 --report docs/mutation.md
python tools/mutate.py --seed 1 --again --report docs/mutation.md    those that survived, against the tests of today

Needs the extra ``mutation``. The tree itself is never touched: mutants live in copies below build/mutants. What was
found is kept in build/mutation, so that a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(ROOT)]

from tools import mutants, mutation_report  # noqa: E402
from tools.mutants import Mutant  # noqa: E402
from tools.mutation_reach import Reach  # noqa: E402

BUILD = ROOT / "build" / "mutation"
COPIES = ROOT / "build" / "mutants"
GOLDENS = "tools/generate.py --check"
# Programs at random: they reach nearly everything, and are asked when no test of the place itself has seen anything.
PROGRAMS = "tests/derive/test_programs.py::test_in_every_mode_and_at_every_stage[0]"


@dataclass
class Result:
    """What became of a mutant.

    Attributes:
        outcome: "killed", "survived", or "unfinished": alive when its time was over.
        by: the test that killed it.
        ran: how many tests it met, of ``of`` that reach it.
    """

    key: str
    path: str
    line: int
    operator: str
    folder: str
    old: str
    new: str
    outcome: str = ""
    by: str = ""
    how: str = ""
    ran: int = 0
    of: int = 0
    seconds: float = 0.0

    @classmethod
    def of_mutant(cls, mutant: Mutant) -> Result:
        return cls(mutant.key, mutant.path, mutant.line, mutant.operator, mutant.folder, mutant.old, mutant.new)


# -- copies of the tree ------------------------------------------------------------------------------------------------


class Copy:
    """A copy of the tree, in which one file at a time is another."""

    def __init__(self, number: int) -> None:
        self.root = COPIES / str(number)
        files = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout.split("\0")  # fmt: skip
        shutil.rmtree(self.root, ignore_errors=True)
        for name in filter(None, files):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        # Compiled once, so that each process need not: they write none, which would outlive the mutant.
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", "fusegen", "nn", "ops", "templates", "tests", "tools"],
            cwd=self.root, check=True,
        )  # fmt: skip
        self.original: tuple[Path, bytes, os.stat_result] | None = None

    def put(self, mutant: Mutant) -> None:
        """Change the file."""
        path = self.root / mutant.path
        self.original = path, path.read_bytes(), path.stat()
        path.write_text(mutant.text, encoding="utf-8")
        os.utime(path, (1, 1))  # no compiled file is of that time

    def restore(self) -> None:
        """As it was."""
        if self.original:
            path, data, about = self.original
            path.write_bytes(data)
            os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
            self.original = None


# -- tests in a process of their own, which has imported torch already -------------------------------------------------


class _Watch:
    """A plugin of pytest: runs the tests in a given order until one fails or time is over."""

    def __init__(self, order: Sequence[str], seconds: float, target: Path, stop: bool) -> None:
        self.order = {name: i for i, name in enumerate(order)}
        self.end = time.monotonic() + seconds
        self.target, self.stop = target, stop
        self.found: dict[str, Any] = {"ran": 0, "by": "", "how": "", "current": "", "missing": 0, "failed": []}

    def _note(self) -> None:
        self.target.write_text(json.dumps(self.found))

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])
        self.found["missing"] = len(self.order) - len(items)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.found["current"] = nodeid
        self._note()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.found["failed"].append(report.nodeid)
            if not self.found["by"]:
                self.found.update(by=report.nodeid, how=_last_line(report))
            self._note()
        elif report.when == "call":
            self.found["ran"] += 1

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.found["by"]:
            self.found.update(by=f"{report.nodeid}, as it is imported", how=_last_line(report))
            self._note()

    def pytest_runtest_protocol(self, item: Any) -> None:
        if time.monotonic() > self.end or (self.found["by"] and self.stop):
            item.session.shouldstop = "time is over"

    def pytest_sessionfinish(self) -> None:
        self.found["done"] = True
        self._note()


def _last_line(report: Any) -> str:
    crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
    text = crash.message if crash else str(getattr(report, "longrepr", "")).strip()
    lines = [line for line in text.splitlines() if line.strip()]
    return (lines[0] if crash else lines[-1])[:200] if lines else ""


@dataclass
class Child:
    """A process that runs tests in a copy of the tree."""

    root: Path
    tests: Sequence[str]
    seconds: float
    limit: float
    stop: bool = True
    pid: int = 0
    begun: float = field(default_factory=time.monotonic)

    @property
    def target(self) -> Path:
        return self.root.parent / f"{self.root.name}.json"

    def start(self) -> Child:
        self.target.unlink(missing_ok=True)
        self.pid = os.fork()
        if self.pid == 0:
            self._run()
        return self

    def _run(self) -> None:
        code = 1
        try:
            os.setsid()
            log = os.open(self.target.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(self.root)
            sys.dont_write_bytecode = True
            sys.path[:] = [str(self.root), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
            for name in [name for name in sys.modules if name.partition(".")[0] == "tools"]:
                del sys.modules[name]
            os.environ.update(
                FUSEGEN_CACHE_DIR=str(COPIES / "cache"), OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1",
                TORCHINDUCTOR_CACHE_DIR=str(self.target.with_suffix(".inductor")),
            )  # fmt: skip
            code = self._tests()
        finally:
            os._exit(code)

    def _tests(self) -> int:
        if list(self.tests) == [GOLDENS]:
            from tools import generate

            stale = generate.main(["--check"])
            by = {"by": GOLDENS, "how": "goldens are stale"} if stale else {"by": "", "how": ""}
            self.target.write_text(json.dumps({"ran": 1, "done": True, "failed": [], **by}))
            return 0
        import pytest

        watch = _Watch(self.tests, self.seconds, self.target, self.stop)
        names = list(dict.fromkeys(map(_file, self.tests)))
        names = [name for name in names if Path(name).exists()]
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--assert=plain", "--disable-warnings"]
        return int(pytest.main([*options, *names], plugins=[watch]))

    def finished(self) -> dict[str, Any] | None:
        """What it found, or None while it runs."""
        done, status = os.waitpid(self.pid, os.WNOHANG)
        late = not done and time.monotonic() - self.begun > self.limit
        if late:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        elif not done:
            return None
        found: dict[str, Any] = {"ran": 0, "by": "", "how": "", "current": "", "failed": []}
        if self.target.exists():
            found.update(json.loads(self.target.read_text()))
        if not found["by"] and not found.get("done"):
            how = "no end" if late else f"the process ended with {os.waitstatus_to_exitcode(status)}"
            found.update(by=found["current"] or "what tests import", how=how)
        return found


# -- a mutant's life ---------------------------------------------------------------------------------------------------


@dataclass
class Life:
    """A mutant in a copy, meeting one lot of tests after the other."""

    mutant: Mutant
    copy: Copy
    lots: list[list[str]]
    seconds: float
    result: Result
    child: Child | None = None
    begun: float = field(default_factory=time.monotonic)

    def step(self) -> bool:
        """Go on; True when it is over."""
        if self.child is None:
            if not self.lots:
                return self._over("unfinished" if self.result.ran < self.result.of else "survived")
            tests = self.lots.pop(0)
            left = max(5.0, self.begun + self.seconds - time.monotonic())
            self.child = Child(self.copy.root, tests, left, left + (60 if len(tests) > 1 else 180)).start()
            return False
        found = self.child.finished()
        if found is None:
            return False
        self.child = None
        self.result.ran += found["ran"]
        if found["by"]:
            self.result.by, self.result.how = found["by"], found["how"]
            return self._over("killed")
        return False

    def _over(self, outcome: str) -> bool:
        self.copy.restore()
        self.result.outcome = outcome
        self.result.seconds = round(time.monotonic() - self.begun, 1)
        return True


def lots(
    mutant: Mutant, reach: Reach, usable: Iterable[str], killers: Mapping[str, Counter[str]]
) -> tuple[list[list[str]], int]:
    """The tests that a mutant meets: those that killed others near it; cheap ones, each from another file of tests;
    then programs; goldens at last."""
    tests = reach.tests_of(mutant, killers[mutant.path] + killers[mutant.folder])
    programs = [PROGRAMS] if PROGRAMS in usable else []
    found = [lot for lot in (tests[:12], tests[12:], programs, [GOLDENS]) if lot]
    return found, sum(map(len, found))


def live(
    sample: Sequence[Mutant], reach: Reach, jobs: int, seconds: float, usable: Iterable[str] = (),
    known: Iterable[Result] = (),
) -> Iterator[Result]:  # fmt: skip
    """What becomes of each mutant, as it turns out; ``known``: what has become of others."""
    copies = [Copy(number) for number in range(jobs)]
    waiting = list(sample)
    lives: list[Life] = []
    killers: dict[str, Counter[str]] = defaultdict(Counter)
    for result in known:
        _count(killers, result)
    while waiting or lives:
        while waiting and copies:
            mutant, copy = waiting.pop(0), copies.pop()
            copy.put(mutant)
            result = Result.of_mutant(mutant)
            meets, result.of = lots(mutant, reach, usable, killers)
            lives.append(Life(mutant, copy, meets, seconds, result))
        for life in list(lives):
            if life.step():
                lives.remove(life)
                copies.append(life.copy)
                _count(killers, life.result)
                yield life.result
        time.sleep(0.05)


def _count(killers: dict[str, Counter[str]], result: Result) -> None:
    """Add a result to what has killed mutants of each file and folder: tests, and files of tests."""
    for place in (result.path, result.folder) if result.outcome == "killed" else ():
        killers[place].update({result.by, _file(result.by)})


def preload() -> None:
    """What every test imports, once, for all processes that start from this one; nothing of fusegen's."""
    import hypothesis
    import jinja2
    import numpy
    import pytest
    import sympy
    import torch
    import torch._dynamo
    import torch.utils._pytree

    del hypothesis, jinja2, numpy, pytest, sympy
    torch.set_num_threads(1)


def failing(tests: Iterable[str], seconds: float) -> list[str]:
    """Those of the tests, or of the files with tests, that fail without any mutant: they kill nothing."""
    root = Copy(99).root
    wrong: list[str] = []
    left = sorted({test for test in tests if (root / _file(test)).is_file() and test != GOLDENS})
    while left:
        child = Child(root, left, seconds, seconds + 60, stop=False).start()
        while (found := child.finished()) is None:
            time.sleep(0.2)
        wrong += found["failed"]
        if found.get("done"):
            break
        wrong.append(found["by"])  # it has ended the process
        left = [test for test in left if test not in wrong] if found["by"] in left else []
    return wrong


def _file(test: str) -> str:
    return test.partition("::")[0]


# -- command line ------------------------------------------------------------------------------------------------------


def record(tests: Sequence[str]) -> None:
    """Run test files one by one, and keep what each test reaches."""
    for test in tests:
        name = re.sub(r"\W", "_", Path(test).stem)
        command = ["-m", "pytest", "-p", "tools.mutation_record", "--reach", str(BUILD / "reach" / f"{name}.json")]
        subprocess.run([sys.executable, *command, "-q", "--disable-warnings", test], cwd=ROOT, check=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, whatever survives: the report is for people to judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", nargs="+", metavar="TEST", help="files of tests to run for what they reach")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=150, help="for the tests of one mutant")
    parser.add_argument(
        "--again", action="store_true", help="once more those that are alive, or killed by goldens alone"
    )
    parser.add_argument("--verify", action="store_true", help="run every test that killed without a mutant, too")
    parser.add_argument("--only", default="", help="mutants of paths that have this in them")
    parser.add_argument("--report", type=Path, help="the page to write")
    given = parser.parse_args(arguments)
    if given.record:
        record(given.record)
        return 0
    reach = Reach.read(BUILD / "reach")
    sample = mutants.sample(ROOT, given.sample, given.seed)
    store = BUILD / f"results-{given.seed}.json"
    known = {r["key"]: Result(**r) for r in json.loads(store.read_text())} if store.exists() else {}
    if given.again:
        known = {key: r for key, r in known.items() if r.outcome == "killed" and r.by != GOLDENS}
    preload()
    if given.verify:
        wrong = failing((r.by for r in known.values() if r.outcome == "killed"), 3600)
        print("fail without a mutant:", *wrong or ["none"])
        known = {key: result for key, result in known.items() if result.by not in wrong}
        store.write_text(json.dumps([asdict(r) for r in known.values()], indent=1))
    chosen = [mutant for mutant in sample if given.only in mutant.path and mutant.key not in known]
    wrong = failing((PROGRAMS,), 600) if chosen else []
    for result in live(chosen, reach, given.jobs, given.seconds, {PROGRAMS}.difference(wrong), list(known.values())):
        known[result.key] = result
        store.parent.mkdir(parents=True, exist_ok=True)
        store.write_text(json.dumps([asdict(r) for r in known.values()], indent=1))
        print(f"{result.outcome:10} {result.seconds:6.1f}s {result.path}:{result.line} [{result.operator}] {result.by}")
        print("" if result.outcome == "killed" else f"    - {result.old}\n    + {result.new}", end="\n", flush=True)
    results = [known[mutant.key] for mutant in sample if mutant.key in known]
    page = mutation_report.page(results, given.seed)
    if given.report:
        given.report.write_text(page, encoding="utf-8")
    print(page.partition("## Survivors")[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())

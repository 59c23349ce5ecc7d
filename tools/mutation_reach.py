"""Which tests reach a place, from what tools/mutation_record has written, in the order in which to run them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tools.mutants import Mutant

ROOT = Path(__file__).resolve().parent.parent
# Functions and states of the device headers, by the lines that they begin in.
_DEFINED = re.compile(
    r"^(?:template <.*?> )?(?:struct (\w+)|.*?FG_DEVICE [^;=()]*?(\w+)\(|using (\w+) =|#define (\w+))"
)


@dataclass
class Reach:
    """What each test reaches.

    Attributes:
        tests: seconds, templates and device functions of each test.
        lines: by file and line, the tests that execute it.
    """

    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Reach:
        """Everything that has been recorded."""
        made = cls()
        for path in sorted(folder.glob("*.json")):
            found = json.loads(path.read_text())
            made.tests.update(found["tests"])
            for file, lines in found["lines"].items():
                own = made.lines.setdefault(file, {})
                for line, tests in lines.items():
                    own.setdefault(int(line), []).extend(tests)
        return made

    def tests_of(self, mutant: Mutant, kills: Mapping[str, int] = MappingProxyType({})) -> list[str]:
        """The tests that reach a mutant, cheap ones first, and from many files rather than many from one.

        Args:
            kills: how many mutants nearby tests have killed, and files of tests.
        """
        if mutant.path.endswith(".py"):
            found = self._of_statement(mutant.path, mutant.line)
        elif mutant.path.endswith(".cu.j2"):
            name = Path(mutant.path).name.removesuffix(".cu.j2")
            found = {test for test, about in self.tests.items() if name in about["templates"]}
        else:
            words = self.users(mutant.path, mutant.line)
            found = {test for test, about in self.tests.items() if words.intersection(about["words"])}
        return self.ordered(found, kills)

    def ordered(self, tests: Iterable[str], kills: Mapping[str, int]) -> list[str]:
        """Cheap ones first; the second of a file counts twice its time, the third three times, and less in files that
        have killed mutants."""
        taken: dict[str, int] = {}
        cost: dict[str, float] = {}
        for test in sorted(tests, key=lambda test: (self.tests[test]["seconds"], test)):
            file = test.partition("::")[0]
            taken[file] = taken.get(file, 0) + 1
            cost[test] = (self.tests[test]["seconds"] + 0.05) * taken[file] / (1 + kills.get(file, 0))
        return sorted(cost, key=lambda test: (-kills.get(test, 0), cost[test], test))

    def _of_statement(self, path: str, line: int) -> set[str]:
        own = self.lines.get(path, {})
        span = statement((ROOT / path).read_text(encoding="utf-8"), line)
        if span is None:  # run as the module is imported
            return {test for tests in own.values() for test in tests}
        return {test for number in range(span[0], span[1] + 1) for test in own.get(number, [])}

    def users(self, path: str, line: int) -> set[str]:
        """The device function at a line of a header, and all that call it, also by way of others."""
        bodies = self._bodies
        at = max((start for file, start in bodies if file == path and start <= line), default=0)
        found = {bodies[path, at][0]} if at else set[str]()
        while more := {n for n, text in bodies.values() if n not in found and found & set(re.findall(r"\w+", text))}:
            found |= more
        return found

    @cached_property
    def _bodies(self) -> dict[tuple[str, int], tuple[str, str]]:
        found: dict[tuple[str, int], tuple[str, str]] = {}
        for path in sorted((ROOT / "templates").glob("*.cuh")):
            file, last = path.relative_to(ROOT).as_posix(), 0
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                text = line.partition("//")[0]  # words of comments call nothing
                match = _DEFINED.match(text)
                if match:
                    last = number
                    found[file, last] = next(filter(None, match.groups())), text
                elif last:
                    name, body = found[file, last]
                    found[file, last] = name, f"{body}\n{text}"
        return found


def statement(text: str, line: int) -> tuple[int, int] | None:
    """The lines of the innermost statement at ``line``, of one that has others in it those before them; None outside
    of functions."""
    found: tuple[int, int] | None = None
    inside = False

    def visit(node: ast.AST, within: bool) -> None:
        nonlocal found, inside
        for child in ast.iter_child_nodes(node):
            start, end = getattr(child, "lineno", 0), getattr(child, "end_lineno", 0)
            if isinstance(child, ast.stmt) and start <= line <= end:
                body = getattr(child, "body", None)
                last = body[0].lineno - 1 if body and line < body[0].lineno else end
                found, inside = (start, max(start, last)), within
            visit(child, within or isinstance(child, (ast.FunctionDef, ast.Lambda)))

    visit(ast.parse(text), False)
    return found if inside else None

"""The tables of docs/performance.md as numbers again: what its charts are drawn from, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from tools.bench.kernels import OURS
from tools.bench.report import PARTS

# How the tables begin, by part of the page; and what stands after the times, which are the columns between.
FIRST = {"rows": ("work", "pass", "floor"), "products": ("work", "pass", "plain products", "target")}
LAST = {"rows": ("fusegen / floor",), "products": ("over products", "over target")}
PASSES = ("fwd", "bwd", "step", "train", "leaves")


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Args:
        part: the part of the page, ``rows`` or ``products``.
        floor: microseconds of the fewest bytes or instructions (marked ``a``), or of the plain products.
        ratio: fusegen's time over the floor as it was measured; of short passes the floor is printed too coarsely.
        times: microseconds of each implementation that has some.
    """

    part: str
    work: str
    which: str
    floor: float
    ratio: float
    times: Mapping[str, float]

    @property
    def family(self) -> str:
        """``layer_norm`` of ``layer_norm(x + bias) [16384,4096]``, ``swiglu mlp`` of ``swiglu mlp bf16 8x8x8``."""
        found = re.match(r"\w+(?: (?:cell|mlp|norm)\b)?", self.work)
        return found[0].replace(" norm", "_norm") if found else self.work

    @property
    def shape(self) -> str:
        """What follows the family: the rest of the arguments, dtypes and sizes."""
        return self.work[len(self.family) :].strip(" ,")

    def over_floor(self, name: str) -> float:
        """An implementation's time over the floor."""
        return self.ratio * self.times[name] / self.times[OURS]

    def over_ours(self, name: str) -> float:
        """An implementation's time over fusegen's."""
        return self.times[name] / self.times[OURS]


def read(page: Path) -> list[Row]:
    """All rows of a page.

    Raises:
        OSError: it cannot be read.
        ValueError: as ``rows`` does.
    """
    return rows(page.read_text(encoding="utf-8"))


def rows(text: str) -> list[Row]:
    """The passes over memory, and the matrix products if the page has them.

    Raises:
        ValueError: there is no table of passes over memory, or a line of one cannot be read; the message names the
            line of the page.
    """
    lines = text.splitlines()
    found = _part(lines, "rows")
    return found + (_part(lines, "products") if PARTS["products"] in lines else [])


def machine(text: str) -> str:
    """What the page was measured on: ``NVIDIA H200, torch 2.11.0``.

    Raises:
        ValueError: it does not say.
    """
    found = re.search(r"on one (.+?) with torch (\S+)", text)
    if found is None:
        raise ValueError("the page does not say which GPU it is of")
    return f"{found[1]}, torch {found[2].rstrip('.,')}"


def _part(lines: list[str], part: str) -> list[Row]:
    """The rows of the first table of a section."""
    heading = PARTS[part]
    if heading not in lines:
        raise ValueError(f"the page has no section {heading!r}")
    begin = "| " + " | ".join(FIRST[part]) + " |"
    place = lines.index(heading) + 1
    while place < len(lines) and not lines[place].startswith((begin, "## ")):
        place += 1
    if place == len(lines) or lines[place].startswith("#"):
        raise ValueError(f"no table that begins with {begin!r} below {heading!r}")
    columns = _cells(lines[place])
    found = []
    for number, line in enumerate(lines[place + 2 :], start=place + 3):
        if not line.startswith("|"):
            break
        try:
            found.append(_row(part, columns, _cells(line)))
        except ValueError as error:
            raise ValueError(f"line {number} is no row of the table ({error}): {line}") from None
    if not found:
        raise ValueError(f"line {place + 1} begins a table without rows")
    return found


def _cells(line: str) -> list[str]:
    """The cells of a line of Markdown."""
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip() for cell in inner.split("|")]


def _row(part: str, columns: list[str], cells: list[str]) -> Row:
    """One line. Its last column is what follows from the others, so a cell that slipped is noticed.

    Raises:
        ValueError: it says something else than a row does.
    """
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} cells below {len(columns)} columns")
    named = dict(zip(columns, cells, strict=True))
    which, first, last = named["pass"], FIRST[part], LAST[part]
    if which not in PASSES:
        raise ValueError(f"the pass is {which!r}, not one of {', '.join(PASSES)}")
    floor, ratio = _number(named[first[2]].removesuffix(" a")), _number(named[last[0]])
    times = {name: _number(named[name]) for name in columns[len(first) : -len(last)] if named[name]}
    if OURS not in times:
        raise ValueError(f"no time of {OURS}")
    # Times and floors have one decimal, ratios two: half of the last one is what rounding takes.
    if not (ratio - 0.01) * (floor - 0.05) <= times[OURS] + 0.05 <= (ratio + 0.01) * (floor + 0.05) + 0.1:
        raise ValueError(f"{times[OURS]} over {floor} is not {ratio}")
    return Row(part, named["work"], which, floor, ratio, times)


def _number(text: str) -> float:
    """A time or a ratio.

    Raises:
        ValueError: it is none.
    """
    value = float(text)
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"{text} is no time")
    return value

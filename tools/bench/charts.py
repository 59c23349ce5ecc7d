"""The charts of docs/performance.md, drawn from the numbers on the page, which are the benchmark's own.

    python -m tools.bench --charts docs/performance.md     without measuring anything

What is measured is written down once, as the page's tables; a chart has no numbers of its own. The text of an SVG is
text, and its bytes are the same each time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from fusegen.bench.plots import COLOURS, load_matplotlib

HEADING = "## Passes over memory"
PASSES = ("fwd", "bwd", "step")
PASS_COLOURS = {"fwd": "#0072b2", "bwd": "#d55e00", "step": "#009e73"}  # told apart by the colour-blind
PASS_NAMES = {"fwd": "forward", "bwd": "backward", "step": "training step"}
# The chart of the README: so many families of ops at the most, each beside these.
FAMILIES = 10
BESIDE = ("fusegen", "torch.compile", "torch")
SETTINGS = {
    "svg.hashsalt": "fusegen", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 11,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table: microseconds of each implementation that it has."""

    work: str
    which: str
    floor: float
    times: Mapping[str, float]

    @property
    def family(self) -> str:
        """``layer_norm`` of ``layer_norm(x + bias) [16384,4096]``."""
        found = re.match(r"\w+", self.work)
        return found[0] if found else self.work

    def over_floor(self, name: str) -> float:
        return self.times[name] / self.floor


def rows(page: str) -> list[Row]:
    """The table of passes over memory.

    Raises:
        ValueError: there is none, or a line of it cannot be read; the message names the line of the page.
    """
    lines = page.splitlines()
    if HEADING not in lines:
        raise ValueError(f"the page has no section {HEADING!r}")
    place = lines.index(HEADING) + 1
    while place < len(lines) and not lines[place].startswith(("| work | pass | floor |", "## ")):
        place += 1
    if place == len(lines) or lines[place].startswith("#"):
        raise ValueError(f"no table of passes below {HEADING!r}")
    columns = _cells(lines[place])
    found = []
    for number, line in enumerate(lines[place + 2 :], start=place + 3):
        if not line.startswith("|"):
            break
        cells = dict(zip(columns, _cells(line), strict=False))
        try:
            times = {name: float(cells[name]) for name in columns[3:-1] if cells[name]}
            found.append(Row(cells["work"], cells["pass"], float(cells["floor"]), times))
        except (KeyError, ValueError) as error:
            raise ValueError(f"line {number} is no row of the table ({error}): {line}") from None
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def device(page: str) -> str:
    """The GPU that the page names.

    Raises:
        ValueError: it names none.
    """
    found = re.search(r"on one (.+?) with torch", page)
    if found is None:
        raise ValueError("the page does not say which GPU it is of")
    return found[1]


def draw(page: str, folder: Path) -> list[Path]:
    """Draw all charts into the folder.

    Raises:
        ValueError: the page cannot be read.
        FusegenError: matplotlib is not installed.
    """
    table, gpu = rows(page), device(page)
    pyplot = load_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with pyplot.rc_context(SETTINGS):
        figures = {
            "roofline.svg": roofline(pyplot, table, gpu),
            "peers.svg": peers(pyplot, table, gpu),
            "readme.svg": families(pyplot, table, gpu),
        }
        for name, figure in figures.items():
            figure.savefig(folder / name, metadata={"Date": None, "Creator": None})
            pyplot.close(figure)
            written.append(folder / name)
    return written


def roofline(pyplot: Any, table: Sequence[Row], gpu: str) -> Any:
    """Time over the floor against the floor: a dot for each pass of fusegen's whose floor is not printed as 0.0."""
    figure, axes = pyplot.subplots(figsize=(8.2, 4.8), layout="constrained")
    for which in PASSES:
        some = [row for row in table if row.which == which and "fusegen" in row.times and row.floor]
        axes.scatter(
            [row.floor for row in some], [row.over_floor("fusegen") for row in some], s=26, alpha=0.75, linewidths=0,
            color=PASS_COLOURS[which], label=PASS_NAMES[which],
        )  # fmt: skip
    axes.axhline(1, color="black", linewidth=1, linestyle="--")
    axes.set(
        xscale="log", yscale="log", xlabel="floor: bytes that must move over the bandwidth, microseconds",
        ylabel="time over the floor", title=f"fusegen's passes over memory, {gpu}",
    )  # fmt: skip
    _plain_ticks(axes.yaxis, [1, 1.5, 2, 3, 5, 10, 20, 50, 100])
    _plain_ticks(axes.xaxis, [0.1, 1, 10, 100, 1000])
    axes.text(0.01, 0.03, "memory roofline", transform=axes.get_yaxis_transform(), fontsize=10, va="bottom")
    axes.set_ylim(0.85)
    axes.legend(frameon=False)
    return figure


def peers(pyplot: Any, table: Sequence[Row], gpu: str) -> Any:
    """What others take where fusegen takes 1, in the geometric mean of the rows that both have."""
    figure, axes = pyplot.subplots(figsize=(8.2, 4.8), layout="constrained")
    names = list(dict.fromkeys(name for row in table for name in row.times if name != "fusegen"))
    labels: list[tuple[float, str]] = []
    place = 0.0
    for name in names:
        for which in PASSES:
            found = ratios(table, name, which)
            if not found:
                continue
            mean = geometric_mean(found)
            axes.barh(place, mean, color=PASS_COLOURS[which], height=0.8)
            axes.text(mean, place, f" {mean:.2f}  ({len(found)} rows)", va="center", fontsize=10)
            labels.append((place, name if not any(name in text for _, text in labels) else ""))
            place += 1
        place += 0.6
    axes.axvline(1, color="black", linewidth=1, linestyle="--")
    axes.set_yticks([at for at, _ in labels], [text for _, text in labels])
    axes.invert_yaxis()
    axes.set(xlabel="time over fusegen's, geometric mean", title=f"Others' passes over memory, {gpu}")
    axes.margins(x=0.2)
    bars = [pyplot.Rectangle((0, 0), 1, 1, color=PASS_COLOURS[which]) for which in PASSES]
    axes.legend(bars, [PASS_NAMES[which] for which in PASSES], frameon=False, loc="lower right")
    return figure


def ratios(table: Iterable[Row], name: str, which: str) -> list[float]:
    """Another's time over fusegen's, of each row that has both."""
    return [
        row.times[name] / row.times["fusegen"]
        for row in table
        if row.which == which and name in row.times and "fusegen" in row.times
    ]


def chosen(table: Sequence[Row]) -> list[Row]:
    """Of each family of ops the longest pass that all of ``BESIDE`` have; the families with the longest ones."""
    longest: dict[str, Row] = {}
    for row in table:
        if all(name in row.times for name in BESIDE):
            before = longest.get(row.family)
            if before is None or row.floor > before.floor:
                longest[row.family] = row
    most = sorted(longest.values(), key=lambda row: -row.floor)[:FAMILIES]
    return sorted(most, key=lambda row: row.over_floor("fusegen"))


def families(pyplot: Any, table: Sequence[Row], gpu: str) -> Any:
    """The chart of the README: time over the floor beside torch and torch.compile, an op a family."""
    some = chosen(table)
    figure, axes = pyplot.subplots(figsize=(8.2, 0.78 * len(some) + 1.2), layout="constrained")
    for number, row in enumerate(some):
        top = 4.4 * number
        title = f"{row.work}, {PASS_NAMES[row.which]}"
        axes.text(0, top, title, va="center", fontsize=10, bbox={"facecolor": "white", "linewidth": 0, "pad": 1})
        for place, name in enumerate(BESIDE, start=1):
            ratio = row.over_floor(name)
            axes.barh(top + place, ratio, color=COLOURS[name], height=0.9, label=name if number == 0 else None)
            axes.text(ratio, top + place, f" {ratio:.2f}", va="center", fontsize=10)
    axes.axvline(1, color="black", linewidth=1, linestyle="--")
    axes.set(
        xlabel="time over the memory roofline (dashed); shorter is better", yticks=[], xlim=(0, None),
        title=f"One op of each family, {gpu}",
    )  # fmt: skip
    axes.spines["left"].set_visible(False)
    axes.set_ylim(4.4 * len(some) - 0.6, -1)
    axes.margins(x=0.08)
    axes.legend(frameon=False, loc="lower right")
    return figure


def _plain_ticks(axis: Any, ticks: Sequence[float]) -> None:
    """Ticks of a logarithmic axis as plain numbers, those that lie within the data."""
    low, high = axis.get_data_interval()
    some = [tick for tick in ticks if math.floor(low * 10) / 10 <= tick <= high]
    axis.set_ticks(some, labels=[f"{tick:g}" for tick in some])
    axis.set_ticks([], minor=True)

"""The charts of docs/performance.md and README, drawn from the numbers on the page, which are the benchmark's own.

    python -m tools.bench --charts docs/performance.md     without measuring anything

What is measured is written down once, as the page's tables (tools/bench/tables); a chart has no numbers of its own. The
text of an SVG is text, its bytes are the same each time, and what is drawn of a row has the row's name as its id.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from fusegen.bench.plots import COLOURS, load_matplotlib
from tools.bench.kernels import OURS
from tools.bench.tables import PASSES, Row, machine, rows

WIDTH = 6.8  # inches, of 72 points: 490 of them, which a phone shows without much shrinking
# A launch alone takes 4 to 5 microseconds: what is over sooner is measured against the wrong floor.
LAUNCH = 5.0
BESIDE = ("torch.compile", "torch")  # the chart of README
FEWEST = 3  # rows that a mean is taken of
UNFLUSHED = "JAX: calls back to back, caches not flushed"
PASS_NAMES = {
    "fwd": "forward", "bwd": "backward", "step": "training step", "train": "saving forward", "leaves": "step to .grad",
}  # fmt: skip
# Told apart by their shapes and, by the colour-blind too, by their colours; apart from those of implementations.
PASS_LOOKS = {
    "fwd": ("o", "#332288"), "bwd": ("s", "#cc6677"), "step": ("^", "#117733"), "train": ("D", "#88ccee"),
    "leaves": ("v", "#999933"),
}  # fmt: skip
MARKERS = {
    "torch": "D",
    "torch.compile": "s",
    "max-autotune": "p",
    "JAX": "^",
    "cuBLASLt": "X",
    "Liger": "v",
    "QuACK": "o",
}
TABLES = {"rows": "passes over memory", "products": "matrix products"}
SETTINGS = {
    "svg.hashsalt": "fusegen", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10,
    "axes.titlesize": 11, "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
    "text.parse_math": False,
}  # fmt: skip


def draw(page: str, folder: Path) -> list[Path]:
    """Draw all charts into the folder.

    Raises:
        ValueError: the page cannot be read.
        FusegenError: matplotlib is not installed.
        OSError: the folder cannot be written to.
    """
    table, place = rows(page), machine(page)
    pyplot = load_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context(SETTINGS):
        drawn = {
            "roofline.svg": roofline(pyplot, table, place),
            "peers.svg": peers(pyplot, table, place),
            "means.svg": means(pyplot, table, place),
            "readme.svg": summary(pyplot, table, place),
        }
        for name, figure in drawn.items():
            title = f"{name.removesuffix('.svg')}, {place}"
            figure.savefig(folder / name, metadata={"Date": None, "Creator": None, "Title": title})
            pyplot.close(figure)
    return [folder / name for name in drawn]


# -- time over the floor ---------------------------------------------------------------------------------------------


def roofline(pyplot: Any, table: Sequence[Row], place: str) -> Any:
    """Time over the floor: a mark for each row, in a strip for each family of ops; short passes apart."""
    memory = [row for row in table if row.part == "rows"]
    panels = [
        (f"Passes over memory, floors of {LAUNCH:g} µs and more", [r for r in memory if r.floor >= LAUNCH]),
        (f"Passes over memory, floors below {LAUNCH:g} µs: about a launch", [r for r in memory if r.floor < LAUNCH]),
        ("Matrix products, over the plain products", [row for row in table if row.part == "products"]),
    ]
    panels = [(title, some) for title, some in panels if some]
    lines = [len({row.family for row in some}) * len({row.which for row in some}) for _, some in panels]
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(WIDTH, 0.12 * sum(lines) + 0.85 * len(panels) + 0.9), squeeze=False,
        height_ratios=lines, layout="constrained",
    )  # fmt: skip
    for panel, (title, some) in zip(axes[:, 0], panels, strict=True):
        _strips(panel, some)
        panel.set_title(title)
    axes[-1, 0].set_xlabel("fusegen's time over the floor; dashed: the roofline")
    _legend_of_passes(figure, {row.which for row in table})
    figure.suptitle(f"Against the roofline: {place}", fontsize=12)
    return figure


def _strips(panel: Any, some: Sequence[Row]) -> None:
    """A strip a family, the passes of a family below each other; a logarithmic axis."""
    families = list(dict.fromkeys(row.family for row in some))
    shown = [which for which in PASSES if any(row.which == which for row in some)]
    for place, family in enumerate(families):
        if place % 2:
            panel.axhspan(place - 0.5, place + 0.5, color="#f3f3f3", linewidth=0)
        for number, which in enumerate(shown):
            ratios = [row.ratio for row in some if (row.family, row.which) == (family, which)]
            height = place + 0.8 * ((number + 0.5) / len(shown) - 0.5)
            marker, colour = PASS_LOOKS[which]
            panel.plot(
                ratios, [height] * len(ratios), linestyle="", marker=marker, markersize=4.5, color=colour, alpha=0.75,
                markeredgewidth=0, gid=_name(some[0].part, family, which),
            )  # fmt: skip
    panel.axvline(1, color="black", linewidth=1, linestyle="--", zorder=1)
    low, high = min(1.0, *(row.ratio for row in some)), max(1.0, *(row.ratio for row in some))
    margin = (high / low) ** 0.04
    panel.set(xscale="log", xlim=(low / margin, high * margin), ylim=(len(families) - 0.5, -0.5))
    panel.set_yticks(range(len(families)), families)
    panel.tick_params(axis="y", length=0)
    _plain_ticks(panel, low, high)


def _plain_ticks(panel: Any, low: float, high: float) -> None:
    """Ticks of a logarithmic axis as plain numbers, fewer where the axis is long."""
    ticks = (
        [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7, 10] if high / low < 10 else [0.1, 0.2, 0.5, 1, 2, 5]
    )
    if high / low >= 10:
        ticks += [10, 20, 50, 100, 200, 500, 1000]
    some = [tick for tick in ticks if low <= tick <= high]
    panel.set_xticks(some, labels=[f"{tick:g}" for tick in some])
    panel.set_xticks([], minor=True)


def _legend_of_passes(figure: Any, found: Iterable[str]) -> None:
    from matplotlib.lines import Line2D

    passes = [which for which in PASSES if which in set(found)]
    looks = [PASS_LOOKS[which] for which in passes]
    marks = [Line2D([], [], linestyle="", marker=marker, color=colour) for marker, colour in looks]
    figure.legend(
        marks, [PASS_NAMES[which] for which in passes], loc="outside lower center", ncols=3, frameon=False,
        handletextpad=0.1,
    )  # fmt: skip


# -- beside others ---------------------------------------------------------------------------------------------------


def chosen(table: Sequence[Row], part: str) -> list[Row]:
    """A row for each family that all of BESIDE have: of those that most others have, the one with the longest floor.

    In the order of fusegen's time over the floor.
    """
    best: dict[str, Row] = {}
    for row in table:
        if row.part == part and row.floor and all(name in row.times for name in BESIDE):
            before = best.setdefault(row.family, row)
            if (len(row.times), row.floor) > (len(before.times), before.floor):
                best[row.family] = row
    return sorted(best.values(), key=lambda row: row.ratio)


def peers(pyplot: Any, table: Sequence[Row], place: str) -> Any:
    """Time over the floor, fusegen's as a bar and everybody else's as marks: a row of each family of both tables."""
    names = _others(table)
    return _bars(pyplot, [(part, chosen(table, part)) for part in TABLES], names, f"Beside others: {place}")


def summary(pyplot: Any, table: Sequence[Row], place: str) -> Any:
    """The chart of README: passes over memory, beside torch and torch.compile."""
    return _bars(pyplot, [("rows", chosen(table, "rows"))], BESIDE, f"A pass of each family of ops: {place}")


def _bars(pyplot: Any, parts: Sequence[tuple[str, Sequence[Row]]], names: Sequence[str], title: str) -> Any:
    """A panel for each part of the page that has rows."""
    parts = [(part, some) for part, some in parts if some]
    counts = [len(some) for _, some in parts] or [1]
    figure, axes = pyplot.subplots(
        len(counts), 1, figsize=(WIDTH, 0.44 * sum(counts) + 0.75 * len(counts) + 1.0), squeeze=False,
        height_ratios=counts, layout="constrained",
    )  # fmt: skip
    for panel, (part, some) in zip(axes[:, 0], parts, strict=False):
        _bar_a_row(panel, some, [name for name in names if any(name in row.times for row in some)])
        floor = "the memory roofline" if part == "rows" else "the plain products"
        panel.set_xlabel(f"time over {floor}{_unflushed(names, some)}")
        if len(parts) > 1:
            panel.set_title(TABLES[part][0].upper() + TABLES[part][1:])
    _legend_of_implementations(figure, names, [row for _, some in parts for row in some])
    figure.suptitle(title, fontsize=12)
    return figure


def _bar_a_row(panel: Any, some: Sequence[Row], names: Sequence[str]) -> None:
    """fusegen's time as a bar and as a number, others' as marks upon and behind it."""
    for place, row in enumerate(some):
        panel.barh(place, row.ratio, height=0.56, color=COLOURS[OURS], gid=_name(row.part, row.work, row.which, OURS))
        panel.text(
            1.01, place, f"{row.ratio:.2f}", transform=panel.get_yaxis_transform(), va="center", color=COLOURS[OURS],
            fontweight="bold",
        )  # fmt: skip
        for name in names:
            if name in row.times:
                panel.plot(
                    [row.over_floor(name)], [place], linestyle="", marker=MARKERS.get(name, "P"), markersize=7.5,
                    color=_colour(name), markeredgecolor="white", markeredgewidth=0.8,
                    gid=_name(row.part, row.work, row.which, name),
                )  # fmt: skip
    longest = max(row.over_floor(name) for row in some for name in (OURS, *names) if name in row.times)
    panel.axvline(1, color="black", linewidth=1, linestyle="--")
    panel.set(xlim=(0, longest * 1.04), ylim=(len(some) - 0.5, -0.5))
    panel.set_yticks(range(len(some)), [_label(row) for row in some])
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x", alpha=0.25)
    panel.set_axisbelow(True)


def _label(row: Row) -> str:
    """What the row computes, in lines that leave room for the chart."""
    return "\n".join(textwrap.wrap(f"{row.work}, {PASS_NAMES[row.which]}", 34, break_on_hyphens=False))


def _legend_of_implementations(figure: Any, names: Sequence[str], some: Sequence[Row]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = [name for name in names if any(name in row.times for row in some)]
    looks = [(MARKERS.get(name, "P"), _colour(name)) for name in shown]
    marks = [Line2D([], [], linestyle="", markersize=7.5, marker=marker, color=colour) for marker, colour in looks]
    figure.legend(
        [Patch(color=COLOURS[OURS]), *marks], [OURS, *shown], loc="outside lower center", ncols=4, frameon=False,
        handletextpad=0.4,
    )  # fmt: skip


def _unflushed(names: Iterable[str], some: Iterable[Row]) -> str:
    """What must be known of JAX's times, where there are some."""
    return f"\n{UNFLUSHED}" if "JAX" in names and any("JAX" in row.times for row in some) else ""


def _colour(name: str) -> str:
    """An implementation's; those of the products' table alone are variants of torch's."""
    return COLOURS.get(name, "#444444")


# -- all rows together -----------------------------------------------------------------------------------------------


def means(pyplot: Any, table: Sequence[Row], place: str) -> Any:
    """What others take where fusegen takes 1: geometric means of the rows that both have, a bar a pass."""
    parts = [part for part in TABLES if any(row.part == part for row in table)]
    found = [_means(table, part) for part in parts]
    counts = [max(len(bars), 1) for bars in found]
    figure, axes = pyplot.subplots(
        len(parts), 1, figsize=(WIDTH, 0.235 * sum(counts) + 0.75 * len(counts) + 0.7), squeeze=False,
        height_ratios=counts, layout="constrained",
    )  # fmt: skip
    for panel, part, bars in zip(axes[:, 0], parts, found, strict=True):
        if not bars:
            panel.set_axis_off()
            continue
        for height, (name, which, mean, count) in enumerate(bars):
            panel.barh(height, mean - 1, left=1, height=0.7, color=_colour(name), gid=_name(part, name, which, "mean"))
            where = {"x": max(mean, 1), "y": height}
            panel.text(**where, s=f" {mean:.2f}  ({count} rows)", va="center")
        low, high = (choose(1.0, *(mean for *_, mean, _ in bars)) for choose in (min, max))
        panel.axvline(1, color="black", linewidth=1)
        span = max(high - low, 0.1)  # room for the numbers on the right
        panel.set(xlim=(low - 0.05 * span, high + 0.3 * span), ylim=(len(bars) - 0.4, -0.6))
        panel.set_yticks(range(len(bars)), [f"{name}, {PASS_NAMES[which]}" for name, which, *_ in bars])
        panel.tick_params(axis="y", length=0)
        panel.set_title(TABLES[part][0].upper() + TABLES[part][1:])
        note = _unflushed((name for name, *_ in bars), table)
        panel.set_xlabel(f"time over fusegen's, geometric mean of at least {FEWEST} rows{note}")
    figure.suptitle(f"All rows: {place}", fontsize=12)
    return figure


def _means(table: Sequence[Row], part: str) -> list[tuple[str, str, float, int]]:
    """Implementation, pass, geometric mean of its time over fusegen's, and of how many rows: FEWEST at the least."""
    found = []
    for name in _others(table):
        for which in PASSES:
            ratios = [r.over_ours(name) for r in table if (r.part, r.which) == (part, which) and name in r.times]
            if len(ratios) >= FEWEST:
                found.append((name, which, geometric_mean(ratios), len(ratios)))
    return found


def _others(table: Sequence[Row]) -> list[str]:
    """Everybody but fusegen, in the order of the columns."""
    return list(dict.fromkeys(name for row in table for name in row.times if name != OURS))


def _name(*words: str) -> str:
    """The id of what is drawn of a row: ``row-rows-softmax-fwd``."""
    return "-".join(["row", *(re.sub(r"\W+", "_", word) for word in words)])

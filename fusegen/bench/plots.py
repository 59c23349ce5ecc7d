"""The pictures of ``fusegen bench --plot``: bandwidth against size under the roofline, and time over floor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusegen.bench.comparison import PASSES, Measured, Roof
from fusegen.core.errors import FusegenError

DOTS_PER_INCH = 130
# An implementation has the same colour in every picture; fusegen's stands out, and the colour-blind tell them apart.
COLOURS = {
    "fusegen": "#d55e00", "torch": "#7f7f7f", "torch.compile": "#0072b2", "JAX": "#009e73", "Liger": "#cc79a7",
    "QuACK": "#e69f00",
}  # fmt: skip
WITHOUT_FLOOR = ": plain times, not a GPU's, so without floor and roofline"


def load_matplotlib() -> Any:
    """matplotlib.pyplot, drawing into files only.

    Raises:
        FusegenError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise FusegenError(
            "fusegen bench --plot", given="no matplotlib, which draws the plots", expected="matplotlib",
            fix='pip install "fusegen[plot]"; or --plot without a folder, which draws in the terminal',
        ) from None  # fmt: skip
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def write_plots(
    folder: Path, op: str, place: str, measured: Sequence[Measured], sweep: Sequence[Sequence[Measured]],
    roof: Roof | None,
) -> list[Path]:  # fmt: skip
    """Draw both pictures.

    Args:
        place: what the times are of; on the emulator (``roof`` is None) nothing is said about bandwidth or floors.
        measured: the passes at the shapes that were asked for.
        sweep: the passes at each size.

    Returns:
        The files written.

    Raises:
        FusegenError: the folder cannot be written to.
    """
    pyplot = load_matplotlib()
    stem = re.sub(r"\W+", "_", op)
    pictures = {
        f"{stem}_bandwidth.png": bandwidth_figure(pyplot, f"{op} on {place}", sweep, roof),
        f"{stem}_floor.png": floor_figure(pyplot, f"{op} on {place}", measured, roof),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in pictures.items():
            figure.savefig(folder / name, dpi=DOTS_PER_INCH)
    except OSError as error:
        raise FusegenError(
            f"--plot {folder}", given=str(error.strerror or error), expected="a folder that can be written to",
            fix="choose another",
        ) from None  # fmt: skip
    finally:
        for figure in pictures.values():
            pyplot.close(figure)
    return [folder / name for name in pictures]


def bandwidth_figure(pyplot: Any, title: str, sweep: Sequence[Sequence[Measured]], roof: Roof | None) -> Any:
    """Achieved bandwidth against the bytes a pass must move, a panel a pass; the roofline as a dashed line."""
    passes = [which for which in PASSES if any(m.which == which for size in sweep for m in size)]
    figure, panels = pyplot.subplots(
        1, len(passes), figsize=(5 * len(passes), 4.2), squeeze=False, sharey=True, layout="constrained"
    )
    unit, per_second = ("TB/s", 1e6) if roof else ("GB/s", 1e3)
    for which, panel in zip(passes, panels[0], strict=True):
        points = [m for size in sweep for m in size if m.which == which]
        for name in COLOURS:
            own = [(m.moved, m.moved / m.times[name] / per_second) for m in points if name in m.times]
            if own:
                panel.plot(*zip(*own, strict=True), marker="o", markersize=3, color=COLOURS[name], label=name)
        if roof and points:
            _draw_roof(panel, roof, [m.moved for m in points], per_second)
        panel.set(title=which, xscale="log", xlabel="bytes that must be moved")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylim(bottom=0)  # when all is drawn: it holds for every panel, and fixes the top as well
    panels[0][0].set_ylabel(unit)
    _legend(figure, panels[0][0])
    figure.suptitle(title + ("" if roof else WITHOUT_FLOOR))
    return figure


def _legend(figure: Any, panel: Any) -> None:
    """Below the panels, where it covers nothing."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize="small", frameon=False)


def _draw_roof(panel: Any, roof: Roof, sizes: Sequence[int], per_second: float) -> None:
    low, high = min(sizes), max(sizes)
    steps = [low * (high / low) ** (i / 100) for i in range(101)]
    speeds = [size / roof.microseconds(size) / per_second for size in steps]
    label = f"roofline: copy {roof.bandwidth / 1e6:.2f} TB/s, launch {roof.launch:.1f} µs"
    panel.plot(steps, speeds, linestyle="--", color="black", linewidth=1, label=label)


def floor_figure(pyplot: Any, title: str, measured: Sequence[Measured], roof: Roof | None) -> Any:
    """Time over floor, a group of bars a pass; on the emulator plain time."""
    names = [name for name in COLOURS if any(name in m.times for m in measured)]
    figure, panel = pyplot.subplots(figsize=(2.5 + 2 * len(measured), 4.2), layout="constrained")
    width = 0.8 / max(len(names), 1)
    for position, name in enumerate(names):
        places = [group + (position - (len(names) - 1) / 2) * width for group in range(len(measured))]
        heights = [m.times.get(name, 0.0) / (m.moved / roof.bandwidth if roof else 1000.0) for m in measured]
        bars = panel.bar(places, heights, width * 0.95, color=COLOURS[name], label=name)
        panel.bar_label(bars, labels=[f"{h:.2f}" if h else "" for h in heights], fontsize=7, padding=1)
    if roof:
        label = f"floor: the fewest bytes at {roof.bandwidth / 1e6:.2f} TB/s"
        panel.axhline(1.0, color="black", linestyle="--", linewidth=1, label=label)
    panel.set_xticks(range(len(measured)), [m.which for m in measured])
    panel.set_ylabel("time / floor" if roof else "milliseconds")
    _legend(figure, panel)
    figure.suptitle(title + ("" if roof else WITHOUT_FLOOR))
    return figure

"""The pictures of ``fusegen bench --plot`` as lines of text, for a terminal without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fusegen.bench.comparison import PASSES, Measured, Roof
from fusegen.bench.plots import COLOURS, WITHOUT_FLOOR
from fusegen.inspect.units import size_text, time_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FLOOR = "floor"
# Characters of a bar, and of everything beside it.
LONGEST, BESIDE = 40, 42
_EIGHTHS = " ▏▎▍▌▋▊▉"


def print_plots(
    console: Console, measured: Sequence[Measured], sweep: Sequence[Sequence[Measured]], roof: Roof | None
) -> None:
    """Print both pictures: time over floor, and fusegen's bandwidth against size.

    Args:
        measured: the passes at the shapes that were asked for.
        sweep: the passes at each size.
        roof: None on the emulator, of which nothing is said about bandwidth or floors.
    """
    width = max(10, min(LONGEST, console.width - BESIDE))
    blocks = "utf" in console.encoding.lower()
    over = f"time over the floor: the fewest bytes at {roof.bandwidth / 1e6:.2f} TB/s" if roof else "time"
    speed = f"bandwidth, of a copy's {roof.bandwidth / 1e6:.2f} TB/s" if roof else "bandwidth"
    console.print(f"\n{over if roof else over + WITHOUT_FLOOR}", markup=False, style="bold")
    console.print(floor_bars(measured, roof, width, blocks))
    console.print(f"\nfusegen's {speed}", markup=False, style="bold")
    console.print(bandwidth_bars(sweep, roof, width, blocks))


def bar(part: float, width: int, blocks: bool = True) -> str:
    """``part`` of ``width`` characters, to an eighth of one; whole ones where an encoding has no blocks."""
    eighths = round(max(0.0, min(part, 1.0)) * width * 8)
    if not blocks:
        return "#" * round(eighths / 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def floor_bars(measured: Sequence[Measured], roof: Roof | None, width: int, blocks: bool) -> Table:
    """A bar for each pass and implementation, and one for the floor; on the emulator plain times."""
    table = _table()
    shown = {m.which: _ratios(m, roof) for m in measured}
    longest = max((ratio for ratios in shown.values() for ratio in ratios.values()), default=1.0)
    for which, ratios in shown.items():
        for place, (name, ratio) in enumerate(ratios.items()):
            number = f"{ratio:.2f}" if roof else time_text(ratio)
            number = number if blocks else number.replace("µ", "u")
            colour = COLOURS.get(name, "")
            table.add_row("" if place else which, name, number, _styled(bar(ratio / longest, width, blocks), colour))
    return table


def _ratios(m: Measured, roof: Roof | None) -> Mapping[str, float]:
    """What the bars of a pass are as long as; a pass that moves nothing has no floor."""
    floor = m.moved / roof.bandwidth if roof else 1.0
    over = {name: m.times[name] / floor for name in COLOURS if name in m.times} if floor else {}
    return {FLOOR: 1.0, **over} if roof and over else over


def bandwidth_bars(sweep: Sequence[Sequence[Measured]], roof: Roof | None, width: int, blocks: bool) -> Table:
    """A bar for each pass and size: fusegen's bandwidth, as a part of a copy's, or of the highest on the emulator."""
    table = _table()
    unit, per_second = ("TB/s", 1e6) if roof else ("GB/s", 1e3)
    points = [m for size in sweep for m in size if m.times.get("fusegen")]
    speeds = [m.moved / m.times["fusegen"] for m in points]
    highest = max([roof.bandwidth] if roof else speeds, default=1.0) or 1.0
    for which in PASSES:
        own = [(m.moved, speed) for m, speed in zip(points, speeds, strict=True) if m.which == which]
        for place, (moved, speed) in enumerate(own):
            number = f"{speed / per_second:.3g} {unit}"
            line = _styled(bar(speed / highest, width, blocks), COLOURS["fusegen"])
            table.add_row("" if place else which, size_text(moved), number, line)
    return table


def _table() -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    return table


def _styled(text: str, colour: str) -> str:
    """Blocks and number signs are no markup."""
    return f"[{colour}]{text}[/]" if colour and text else text

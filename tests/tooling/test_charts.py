"""The charts of the performance page: of its numbers alone, the same each time, and those that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.bench import charts
from tools.bench.__main__ import draw_charts
from tools.bench.charts import Row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
SMALL = """# Performance

What `x` last printed, on one Fast GPU with torch 9

## Passes over memory

| work | pass | floor | fusegen | torch | torch.compile | JAX | fusegen / floor |
|---|---|---|---|---|---|---|---|
| lerp [4] | fwd | 2.0 | 3.0 | 6.0 | 4.5 | 9.0 | 1.50 |
| lerp [8] | bwd | 4.0 | 4.0 | 16.0 | 8.0 |  | 1.00 |
| gelu(x + b) | fwd | 0.0 | 2.0 | 8.0 |  |  | 99.00 |

## Another section

| work | pass | floor |
|---|---|---|
| nothing | of | this |
"""


def test_a_page_is_read() -> None:
    table = charts.rows(SMALL)
    assert table[0] == Row("lerp [4]", "fwd", 2.0, {"fusegen": 3.0, "torch": 6.0, "torch.compile": 4.5, "JAX": 9.0})
    assert [row.family for row in table] == ["lerp", "lerp", "gelu"]
    assert charts.ratios(table, "torch", "fwd") == [2.0, 4.0]
    assert charts.ratios(table, "JAX", "bwd") == []
    assert charts.chosen(table) == [table[1]]  # the longest of a family; what somebody has not is none
    assert charts.device(SMALL) == "Fast GPU"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("| 4.0 | 4.0 |", "| 4.0 | fast |", "line 10 is no row"),
        ("## Passes over memory", "## Passes", "no section"),
        ("| work | pass | floor | fusegen", "| what | pass | floor | fusegen", "no table"),
        ("on one Fast GPU", "on some", "which GPU"),
    ],
)
def test_a_page_that_is_none(old: str, new: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(SMALL.replace(old, new))
    assert draw_charts(page) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "images").exists()


def test_bytes_are_the_same_each_time(tmp_path: Path) -> None:
    first, second = (charts.draw(SMALL, tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == ["roofline.svg", "peers.svg", "readme.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_charts_are_those_of_the_page(tmp_path: Path) -> None:
    """What they say; where letters stand is matplotlib's."""
    for path in charts.draw(PAGE.read_text(encoding="utf-8"), tmp_path):
        kept = PAGE.parent / "images" / path.name
        assert _texts(kept) == _texts(path), f"python -m tools.bench --charts {PAGE.name} draws another {path.name}"


def _texts(path: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))

"""The charts of the performance page: of its numbers alone, the same each time, and those that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fusegen.bench.plots import load_matplotlib
from tools.bench import charts, tables
from tools.bench.__main__ import draw_charts
from tools.bench.report import Page
from tools.bench.tables import Row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
SMALL = """# Performance

What `x` last printed, on one Fast GPU with torch 9.1+cu1
(CUDA 1.0).

## Passes over memory

| work | pass | floor | fusegen | torch | torch.compile | JAX | fusegen / floor |
|---|---|---|---|---|---|---|---|
| lerp [4] | fwd | 8.0 | 12.0 | 24.0 | 18.0 | 36.0 | 1.50 |
| lerp [8] | bwd | 16.0 | 16.0 | 64.0 | 32.0 |  | 1.00 |
| lerp [9] | bwd | 32.0 | 40.0 | 60.0 |  |  | 1.25 |
| layer norm of channels [4] | fwd | 0.0 | 2.0 | 8.0 |  |  | 99.00 |

## Matrix products

| work | pass | plain products | target | fusegen | torch | torch.compile | over products | over target |
|---|---|---|---|---|---|---|---|---|
| swiglu mlp bf16 8x8x8 | train | 100.0 | 105.0 | 120.0 | 180.0 | 150.0 | 1.20 | 1.14 |

## Another section

| work | pass | floor |
|---|---|---|
| nothing | of | this |
"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return charts.draw(PAGE.read_text(encoding="utf-8"), tmp_path_factory.mktemp("images"))


def test_a_page_is_read() -> None:
    table = tables.rows(SMALL)
    times = {"fusegen": 12.0, "torch": 24.0, "torch.compile": 18.0, "JAX": 36.0}
    assert table[0] == Row("rows", "lerp [4]", "fwd", 8.0, 1.5, times)
    assert [row.family for row in table] == ["lerp", "lerp", "lerp", "layer_norm", "swiglu mlp"]
    assert (table[4].part, table[4].floor, table[4].ratio) == ("products", 100.0, 1.2)
    assert table[0].over_floor("torch") == 3.0 and table[0].over_ours("torch.compile") == 1.5
    assert table[3].over_floor("torch") == 396.0  # the floor is printed as 0.0; what was measured is the ratio
    assert tables.machine(SMALL) == "Fast GPU, torch 9.1+cu1"
    without = SMALL[: SMALL.index("## Matrix")]
    assert tables.rows(without) == table[:4]


def test_every_row_of_the_page_is_read() -> None:
    """Each line that ends like one of these tables' does: in both tables a title, a pass, and at least five numbers."""
    lines = re.findall(r"^\| [^|]+ \| (?:fwd|bwd|step|train|leaves) \|.*\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(tables.read(PAGE)) == len(lines) > 200


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("| 16.0 | 16.0 |", "| 16.0 | fast |", "line 11 is no row of the table (could not convert"),
        ("| 16.0 | 16.0 |", "| 16.0 | nan |", "line 11 is no row of the table (nan is no time"),
        ("| 16.0 | 16.0 |", "| 16.0 | -16.0 |", "line 11 is no row of the table (-16.0 is no time"),
        ("| 16.0 | 16.0 |", "| 16.0 |  |", "line 11 is no row of the table (no time of fusegen"),
        ("| 32.0 |  | 1.00 |", "| 32.0 | 1.00 |", "line 11 is no row of the table (7 cells below 8 columns"),
        ("| lerp [8] | bwd |", "| lerp [8] | both |", "line 11 is no row of the table (the pass is 'both'"),
        (
            "| 18.0 | 36.0 | 1.50 |",
            "| 18.0 | 36.0 | 1.70 |",
            "line 10 is no row of the table (12.0 over 8.0 is not 1.7",
        ),
        ("| 150.0 | 1.20 |", "| 150.0 | 1.10 |", "line 19 is no row of the table"),
        ("## Passes over memory", "## Passes", "no section '## Passes over memory'"),
        ("| work | pass | floor | fusegen", "| what | pass | floor | fusegen", "no table"),
        ("| work | pass | plain", "| what | pass | plain", "no table"),
        ("on one Fast GPU", "on some", "which GPU"),
    ],
)
def test_a_page_that_is_none(old: str, new: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert old in SMALL
    page = tmp_path / "page.md"
    page.write_text(SMALL.replace(old, new))
    assert draw_charts(page) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "images").exists()


def test_rounding_is_no_mistake() -> None:
    """The last column follows from what was measured, the others are rounded."""
    assert tables.rows(SMALL.replace("| 12.0 | 24.0", "| 12.1 | 24.0"))[0].ratio == 1.5
    assert len(tables.rows(SMALL.replace("| 8.0 | 12.0 |", "| 0.1 | 7.9 |").replace("| 1.50 |", "| 129.34 |"))) == 5


def test_bytes_are_the_same_each_time(tmp_path: Path) -> None:
    first, second = (charts.draw(SMALL, tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == ["roofline.svg", "peers.svg", "means.svg", "readme.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert not any(re.search(rb"dc:date|matplotlib v|Created with", path.read_bytes(), re.IGNORECASE) for path in first)


def test_a_row_of_each_family_is_chosen() -> None:
    table = tables.rows(SMALL)
    assert charts.chosen(table, "rows") == [table[0]]  # more have it than the longer [8]; [9] was not compiled
    assert charts.chosen(table, "products") == [table[4]]
    some = [row for row in tables.read(PAGE) if row.part == "rows"]
    found = charts.chosen(some, "rows")
    assert 10 <= len(found) <= 20 and len({row.family for row in found}) == len(found)
    assert {row.family for row in found} == {row.family for row in some if {"torch", "torch.compile"} <= set(row.times)}


def test_what_is_drawn_of_a_row_are_its_numbers() -> None:
    pyplot, table = load_matplotlib(), tables.read(PAGE)
    figure = charts.roofline(pyplot, table, "a GPU")
    found = [x for panel in figure.axes for line in panel.get_lines() if line.get_gid() for x in line.get_xdata()]
    assert sorted(found) == sorted(row.ratio for row in table)  # nothing is left out
    short, long = (figure.axes[place].get_lines() for place in (1, 0))
    assert min(len(short), len(long)) > 10
    figure = charts.peers(pyplot, table, "a GPU")
    marks = {line.get_gid(): line.get_xdata()[0] for panel in figure.axes for line in panel.get_lines()}
    bars = {bar.get_gid(): bar.get_width() for panel in figure.axes for bar in panel.patches}
    for row in [*charts.chosen(table, "rows"), *charts.chosen(table, "products")]:
        assert bars.pop(charts._name(row.part, row.work, row.which, "fusegen")) == row.ratio
        for name in set(row.times) - {"fusegen"}:
            expected = row.ratio * row.times[name] / row.times["fusegen"]
            assert marks.pop(charts._name(row.part, row.work, row.which, name)) == pytest.approx(expected)
    assert not bars and set(marks) == {None}  # the roofline
    pyplot.close("all")


def test_means_are_of_the_rows_that_both_have() -> None:
    line = "| lerp [{0}] | fwd | 8.0 | 8.0 | {1} |  |  | 1.00 |\n"
    lines = "".join(line.format(*pair) for pair in ((1, "16.0"), (2, "16.0"), (3, "128.0")))
    table = tables.rows(re.sub(r"\| lerp.*\n(\| l.*\n)+", lines, SMALL))
    assert charts._means(table, "rows") == [("torch", "fwd", pytest.approx((2 * 2 * 16) ** (1 / 3)), 3)]
    assert charts._means(table[:2], "rows") == []  # too few
    pyplot = load_matplotlib()
    (first, second) = charts.means(pyplot, table, "a GPU").axes
    assert [bar.get_x() + bar.get_width() for bar in first.patches] == [pytest.approx(4.0)] and not second.patches
    pyplot.close("all")


def test_the_device_is_in_every_chart(drawn: list[Path]) -> None:
    place = tables.machine(PAGE.read_text(encoding="utf-8"))
    assert all(any(place in text for text in _texts(path)) for path in drawn)


def test_charts_fit_a_phone(drawn: list[Path]) -> None:
    for path in drawn:
        text = path.read_text(encoding="utf-8")
        width = re.search(r'width="([\d.]+)pt"', text)
        assert width and float(width[1]) * 4 / 3 <= 900
        sizes = {float(size) for size in re.findall(r"font(?:-size)?: (?:bold )?([\d.]+)px", text)}
        assert sizes and min(sizes) >= 10, path.name


def test_the_page_shows_its_charts(drawn: list[Path]) -> None:
    shown = re.findall(r"!\[(.+)\]\(images/(.+?)\)", PAGE.read_text(encoding="utf-8"))
    assert {name for _, name in shown} == {path.name for path in drawn} - {"readme.svg"}
    assert all(len(words) > 40 for words, _ in shown)


def test_the_charts_are_those_of_the_page(drawn: list[Path]) -> None:
    """What they say and what they draw; where panels lie is matplotlib's, and its fonts'."""
    for path in drawn:
        kept, hint = PAGE.parent / "images" / path.name, "python -m tools.bench --charts docs/performance.md"
        assert _texts(kept) == _texts(path), f"{hint} draws another {path.name}"
        old, new = _shapes(kept), _shapes(path)
        assert len(new) > 10 and old.keys() == new.keys(), f"{hint} draws another {path.name}"
        for name, places in new.items():
            assert old[name] == pytest.approx(places, abs=2e-3), f"{hint} draws another {name} in {path.name}"


def test_another_number_is_another_chart(tmp_path: Path) -> None:
    """Otherwise the comparison above says nothing."""
    wider = SMALL.replace("| 16.0 | 16.0 | 64.0", "| 16.0 | 17.6 | 64.0").replace("|  | 1.00 |", "|  | 1.10 |")
    first, second = (charts.draw(text, tmp_path / name)[0] for name, text in (("a", SMALL), ("b", wider)))
    assert _texts(first) == _texts(second)
    old, new = _shapes(first), _shapes(second)
    changed = [name for name in old if old[name] != pytest.approx(new[name], abs=2e-3)]
    assert any("bwd" in name for name in changed)


def test_charts_are_drawn_with_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.bench import __main__ as bench

    path = tmp_path / "performance.md"

    def measure(parts: Any, page: Page, *others: Any) -> dict[str, str]:
        page.put("rows", "## Passes over memory\n")
        path.write_text(SMALL)
        return {}

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr("sys.argv", ["bench", "--write", str(path), "--parts", "rows"])
    assert bench.main() == 0
    assert len(list((tmp_path / "images").glob("*.svg"))) == 4
    monkeypatch.setattr("sys.argv", ["bench", "--charts", str(tmp_path / "nowhere.md")])
    assert bench.main() == 1


def _texts(path: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))


def _shapes(path: Path) -> dict[str, list[float]]:
    """Where the marks and bars of each row are across their panel, from 0 at the first of them to 1 at the last."""
    found: dict[str, list[float]] = {}
    for panel in ElementTree.parse(path).getroot().iter():
        if re.fullmatch(r"axes_\d+", panel.get("id", "")):
            places = {group.get("id", ""): list(_across(group)) for group in panel.iter() if _is_row(group)}
            every = [x for some in places.values() for x in some] or [0.0]
            low, width = min(every), max(max(every) - min(every), 1e-9)
            for name, some in places.items():
                found[f"{panel.get('id')} {name}"] = [(x - low) / width for x in some]
    return found


def _is_row(group: ElementTree.Element) -> bool:
    return group.get("id", "").startswith("row-")


def _across(group: ElementTree.Element) -> Iterator[float]:
    """Horizontal places of marks, and of the corners of bars."""
    for element in group.iter():
        kind = element.tag.rpartition("}")[2]
        if kind == "use":
            yield float(element.get("x", "nan"))
        elif kind == "path" and not element.get("id"):
            yield from (float(x) for x in re.findall(r"[ML] ([-\d.]+) ", element.get("d", "")))

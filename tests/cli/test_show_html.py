"""`fusegen show OP --html PAGE`: a page that is whole by itself, and whose lines of CUDA lead to what they compute."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fusegen.cli.arguments import Request, bind, resolve
from fusegen.cli.main import main
from fusegen.inspect import page as pages
from fusegen.inspect.links import Link, folded, links_of
from fusegen.inspect.page import CostTable, ShownPass, html_page
from fusegen.inspect.passes import shown_passes, things_of

VOID = ("meta", "br", "img", "link", "input", "hr")
USERS = '''
import fusegen as fg

@fg.op
def standardized(x: fg.Tensor, scale: float) -> fg.Tensor:
    """Rows of mean 0 and variance 1 < scale & so on."""
    centered = x - fg.mean(x, -1, keepdims=True)
    return scale ** 2.5 * centered * fg.rsqrt(fg.mean(centered * centered, -1, keepdims=True))

@fg.op
def hostile(x: fg.Tensor) -> fg.Tensor:
    """</code></li></ol></section><img src=x onerror="alert('2')"> \x0c &amp;"""
    return x + 1
'''


@dataclass
class Line:
    """A line of a panel: its text, what it is for, where its number leads."""

    panel: str
    classes: tuple[str, ...]
    of: tuple[str, ...]
    to: str = ""
    text: str = ""


@dataclass
class Page(HTMLParser):
    """What a page holds; wrong nesting and a second element of an id are errors."""

    lines: dict[str, Line] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    open: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    panel: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in given.items()]
        if tag not in VOID:
            self.open.append(tag)
        if "id" in given:
            assert given["id"] not in self.ids
            self.ids.add(given["id"])
        if tag == "section":
            self.panel = given.get("class", "")
        if tag == "li":
            assert self.open[-2] == "ol"
            line = Line(self.panel, tuple(given.get("class", "").split()), tuple(given.get("data-of", "").split()))
            self.lines[given["id"]] = line
        if tag == "a" and "li" in self.open:
            self._line().to = given["href"].removeprefix("#")
        if tag in ("title", "h1", "dt", "dd", "p", "h3", "td"):
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "li" in self.open and "code" in self.open:
            self._line().text += data
        for tag in self.texts:
            if tag in self.open:
                self.texts[tag][-1] += data

    def _line(self) -> Line:
        return next(reversed(self.lines.values()))

    def said(self, text: str, within: str) -> str:
        """The id of the first line of this text among the ids that start so."""
        return next(name for name, line in self.lines.items() if name.startswith(within) and line.text.strip() == text)

    def computed(self, name: str, within: str = "-cuda") -> list[str]:
        """The lines of CUDA, or of a program, that compute what a line states."""
        found = (line for at, line in self.lines.items() if within in at and name in line.of)
        return [line.text.strip() for line in found if "declares" not in line.classes]


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def left_with(*arguments: str) -> Any:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as left:
        main(["show", *arguments])
    return left.value.code


def written(folder: Path, *arguments: str) -> str:
    path = folder / "page.html"
    assert left_with(*arguments, "--html", str(path)) == 0
    return path.read_bytes().decode("utf-8")


@pytest.fixture
def users(tmp_path: Path) -> str:
    path = tmp_path / "users.py"
    path.write_text(USERS, encoding="utf-8")
    return str(path)


CASES = {
    "lerp": ("lerp", "--which", "backward"),
    "norm": ("rms_norm", "--dtype", "bf16"),
    "softmax": ("softmax",),
    "columns": ("softmax", "--arg", "dim=0"),
    "lstm": ("lstm_cell",),
    "product": ("linear_gelu",),
    "split": ("sum(x, 0)", "--shape", "x=100000,8"),
    "user": ("FILE:standardized",),
}


@pytest.mark.parametrize("case", CASES)
def test_every_statement_has_its_lines_of_cuda(case: str, tmp_path: Path, users: str) -> None:
    name, *options = (text.replace("FILE", users) for text in CASES[case])
    page = parsed(written(tmp_path, name, *options))
    request = Request.parse(*([options[at + 1]] if (at := _at(options, o)) >= 0 else [] for o in OPTIONS))
    op = resolve(name, request)
    which = "backward" if "backward" in options else None
    listed = dict(zip(page.texts["dt"], page.texts["dd"], strict=False))
    for number, item in enumerate(shown_passes(op, (), bind(op, request), which)):
        fused = [n for n in page.lines if n.startswith(f"pass{number}-fused")]
        position = 0
        for planned in item.kernels:
            kernel = planned.kernel
            assert page.lines[fused[position]].text.startswith(kernel.name)
            for thing, line in zip(things_of(kernel), fused[position + 1 :], strict=False):
                assert re.match(rf" +\w+ +{re.escape(thing.name)}\b", page.lines[line].text)
                if thing not in kernel.scalars:  # a number comes as a parameter
                    assert page.computed(line) or listed[f"{kernel.name}: {thing.name}"]
            position += len(things_of(kernel)) + 2
        assert position == len(fused) + 1 or not item.kernels


OPTIONS = ("--shape", "--dtype", "--arg")


def _at(options: list[str], option: str) -> int:
    return options.index(option) if option in options else -1


@pytest.mark.parametrize("case", CASES)
def test_links_lead_to_lines_of_the_page(case: str, tmp_path: Path, users: str) -> None:
    page = parsed(written(tmp_path, *(text.replace("FILE", users) for text in CASES[case])))
    linked = 0
    for name, line in page.lines.items():
        assert ("linked" in line.classes) == bool(line.to)
        assert line.to in page.lines or not line.to
        assert all(of in page.lines and of != name for of in line.of)
        assert not any("-cuda" in of for of in line.of)
        linked += bool(line.of)
    assert linked > 10 or case == "split"


def test_lines_lead_to_what_they_compute(tmp_path: Path) -> None:
    page = parsed(written(tmp_path, "lerp", "--which", "backward"))
    of = {line.text.strip(): line.of for name, line in page.lines.items() if "-cuda" in name}
    difference = page.said("let    d = end - input", "pass0-fused")
    weight = page.said("write  d_weight[D0, D1] = d_out * d", "pass0-fused")
    assert page.computed(difference) == ["const float d = end_ - input;"]
    assert page.computed(weight) == [
        "d_weight_v[k] = d_out * d;",
        "fg::store_vector<4>(d_weight_ptr + at, d_weight_v);",
    ]
    end = page.said("read   end[D0, D1]", "pass0-fused")
    assert page.computed(end) == [
        "const auto end_v = fg::load_vector<4>(end_ptr + at);",
        "const float end_ = end_v[k];",
    ]
    assert page.lines[difference].of == (page.said("let  d = end - input : float32", "pass0-op"),)
    for nothing in (
        "#pragma unroll",
        "}",
        "if (at >= n) return;",
        "for (int k = 0; k < 4; ++k) {",
        '#include "fusegen.cuh"',
    ):
        assert of[nothing] == ()
    assert of["const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);"] == ()
    assert of["//   d = end - input"] == ()


# By statement the lines that compute it, of kernels of several shapes.
COMPUTED = {
    "a variable of the kernel's own": (
        ("layer_norm", "--which", "forward"), "reduce deviation = ",
        ["deviation_mean = ", "deviation = 0", "deviation_rest = 0", "away = input", "deviation +=",
         "deviation_rest += away", "row_sum<192, 1, 1>(deviation, deviation_rest)", "deviation -="],
    ),
    "two sums exchanged at once": (
        ("layer_norm", "--which", "backward", "--dtype", "bf16"), "reduce d_total = ",
        ["float d_total = 0", "d_total +=", "row_sum<192, 1, 0>(d_deviation, d_total)"],
    ),
    "a state, and the kernel that combines pieces": (
        ("sum(x, 0)", "--shape", "x=100000,8", "--which", "forward"), "reduce total = ",
        ["fg::Vec<float, 4> total_v = {}", "total_v[k] += x", "total_v[k] += x", "total_v = fg::column_sum",
         "fg::store_vector<4>(total_partial + ", "float total = 0", "total += total_partial[", "total = fg::block_sum"],
    ),
    "partial sums left for a later kernel": (
        ("rms_norm", "--which", "backward"), "leave  sum_d_weight_by_group",
        ["fg::store_vector<4>(sum_d_weight_by_group_ptr + "],
    ),
    "the result of a later kernel": (
        ("rms_norm", "--which", "backward"), "write  d_weight[", ["fg::store(d_weight_ptr + j0, sum_d_weight);"],
    ),
    "a result that has its value's name": (
        ("lstm_cell", "--which", "forward"), "write  new_cell[", ["fg::store_vector<4>(new_cell_ptr + at, new_cell_v)"],
    ),
    "an argument, not where it lies": (
        ("group_norm", "--which", "forward"), "read   input[",
        ["fg::load_async(&input_row[part][thread], input_ptr + input_at)", *["input_v = ", "input = input_v[k]"] * 3],
    ),
    "memory under another name is no value": (
        ("rms_norm", "--which", "backward"), "read   weight[",
        ["fg::load_async(&weight_row", *["weight_v = ", "weight = weight_v[k]"] * 2],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPUTED)
def test_statements_have_just_the_lines_that_compute_them(case: str, tmp_path: Path) -> None:
    arguments, start, expected = COMPUTED[case]
    page = parsed(written(tmp_path, *arguments))
    statement = next(n for n, line in page.lines.items() if "-fused" in n and line.text.strip().startswith(start))
    found = page.computed(statement)
    assert len(found) == len(expected), found
    assert all(piece in line for piece, line in zip(expected, found, strict=True)), found


def test_parameters_of_both_kernels_say_what_they_bring(tmp_path: Path) -> None:
    page = parsed(written(tmp_path, "sum(x, 0)", "--shape", "x=100000,8", "--which", "forward"))
    parameters = [line for line in page.lines.values() if "_ptr, " in line.text or "_partial, " in line.text]
    of = [page.lines[name].text.split()[:2] for line in parameters for name in line.of]
    assert all("declares" in line.classes for line in parameters)
    assert of == [["read", "x[D0,"], ["reduce", "total"], ["reduce", "total"], ["write", "out[D1]"]]


def test_states_of_reductions_are_theirs(tmp_path: Path) -> None:
    page = parsed(written(tmp_path, "softmax", "--which", "forward"))
    total = page.said("reduce sum_exp = sum_exp[d1](input)", "pass0-fused")
    assert page.computed(total) == [
        "sum_exp_state.see(input);", "sum_exp_state.settle();", "sum_exp_state.take(input);", "sum_exp_state.finish();",
        "fg::row_merge<192, 1, 0>(sum_exp_state);", "const float sum_exp = sum_exp_state.result();",
    ]  # fmt: skip
    top = page.said("reduce top = max[d1](input)", "pass0-fused")
    assert page.computed(top) == ["const float top = sum_exp_state.partner();"]


def test_lines_of_kernel_programs_lead_to_what_they_compute(tmp_path: Path) -> None:
    page = parsed(written(tmp_path, "softmax", "--which", "forward"))
    assert page.texts["h3"][4:6] == ["kernel program", "CUDA"]
    total = page.said("reduce sum_exp = sum_exp[d1](input)", "pass0-fused")
    assert page.computed(total, "-program") == [
        "sum_exp_state.see(input)", "sum_exp_state.settle()", "sum_exp_state.take(input)", "sum_exp_state.finish()",
        "row_merge<192, 1, 0>(sum_exp_state)  # all threads of a block come here together",
        "sum_exp = sum_exp_state.result()",
    ]  # fmt: skip
    read = page.computed(page.said("read   input[D0, D1]", "pass0-fused"), "-program")
    assert read[0].startswith("load_async(&input_row[part][thread], input_ptr + ") and "input = input_v[k]" in read
    assert page.lines[page.said("j0 = row", "pass0-program")].of == ()


def test_what_a_thread_computes_once_belongs_to_what_needs_it(tmp_path: Path, users: str) -> None:
    page = parsed(written(tmp_path, f"{users}:standardized", "--which", "forward"))
    once = next(line for line in page.lines.values() if "powf(" in line.text and "const float" in line.text)
    assert [page.lines[of].text.split()[:1] for of in once.of] == [["write"]]


def _lerp() -> tuple[Any, dict[str, Any]]:
    op, request = resolve("lerp"), Request()
    return op, bind(op, request)


def test_statements_without_a_line_are_listed_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    op, arguments = _lerp()
    (item,) = shown_passes(op, (), arguments, "backward")

    def without_the_difference(planned: Any) -> list[Link]:
        things = things_of(planned.kernel)
        left = next(at for at, thing in enumerate(things) if thing.name == "d")
        return [Link(tuple(at for at in link.things if at != left), link.computes) for link in links_of(planned)]

    monkeypatch.setattr(pages, "links_of", without_the_difference)
    cost = CostTable("cost", [], ["kernel"], [["all"]], [])
    page = parsed(html_page(op, arguments, [ShownPass(item, cost)]))
    assert page.texts["dt"] == ["lerp_backward_f32: d"]
    assert page.texts["dd"] == ["no line of CUDA of its own: folded into d_weight, which reads it"]
    (kernel,) = (planned.kernel for planned in item.kernels)
    assert set(folded(kernel, [])) == {at for at, thing in enumerate(things_of(kernel)) if thing in kernel.items}


def test_what_is_left_of_a_sum_leads_to_the_sum(tmp_path: Path) -> None:
    page = parsed(written(tmp_path, "rms_norm", "--which", "backward"))
    left = next(line for line in page.lines.values() if line.text.startswith("  leave  sum_d_weight_by_group"))
    assert [page.lines[of].text.split()[:2] for of in left.of] == [["red", "sum_d_weight"]]


def test_parts_between_products_lead_to_the_op(tmp_path: Path) -> None:
    page = parsed(written(tmp_path, "linear_gelu", "--which", "forward"))
    part, whole = (
        next(n for n, line in page.lines.items() if n.startswith(start) and line.text.startswith("  let  x = "))
        for start in ("pass0-split", "pass0-op")
    )
    fused = page.said("let    x = product + bias", "pass0-fused")
    assert page.lines[part].of == (whole,) and page.lines[whole].of == ()
    assert page.lines[fused].of == (whole, part)
    assert page.lines[part].to == page.lines[whole].to == fused


def test_products_without_a_kernel_say_so(tmp_path: Path) -> None:
    text = written(tmp_path, "linear_gelu", "--which", "forward")
    assert "<code>product[D0, D1] = input(d2 -&gt; d4) @" in text
    page = parsed(text)
    listed = dict(zip(page.texts["dt"], page.texts["dd"], strict=False))
    assert listed["product"] == "no kernel of its own: a library computes this matrix product"


def test_hostile_docstrings_are_text(tmp_path: Path, users: str) -> None:
    text = written(tmp_path, f"{users}:hostile")
    page = parsed(text)
    assert page.tags.count("script") == 1 and "img" not in page.tags
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    source = "\n".join(line.text for name, line in page.lines.items() if name.startswith("declared"))
    assert """</section><img src=x onerror="alert('2')"> \N{REPLACEMENT CHARACTER} &amp;""" in source
    assert not re.search("[\x00-\x08\x0b-\x1f]", text)


def test_hostile_names_are_text() -> None:
    """Names of ops are identifiers, but the page does not count on it."""
    op, arguments = _lerp()
    (item,) = shown_passes(op, (), arguments, "backward")
    evil = """</title></dl><script>alert('"1&lt;"')</script>"""

    class Hostile:
        declaration, runs, name, trace = op.declaration, evil, evil, op.trace

    cost = CostTable(evil, [(evil, [evil])], [evil], [[evil]], [evil])
    hostile: Any = Hostile()
    item = replace(item, op=replace(item.op, name=evil, label=evil))
    page = parsed(html_page(hostile, {**arguments, evil: evil}, [ShownPass(item, cost, with_stages=False)]))
    assert page.texts["title"] == page.texts["h1"] == [f"{evil}: from declaration to CUDA"]
    assert page.tags.count("script") == page.tags.count("title") == 1
    for tag, times in {"dt": 1, "dd": 1, "td": 1, "h3": 1}.items():
        assert page.texts[tag] == [evil] * times
    assert evil in page.texts["p"]
    assert ("section", "aria-label", evil) in page.attributes


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    text = written(tmp_path, "rms_norm")
    page = parsed(text)
    assert text.startswith("<!DOCTYPE html>") and '<meta name="viewport"' in text
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert all(value.startswith("#") for _, name, value in page.attributes if name in ("href", "src"))
    assert not re.search(r"url\(|@import|https?:", text)
    assert str(tmp_path) not in text
    assert "prefers-color-scheme: dark" in text


def test_a_page_has_all_that_show_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = parsed(written(tmp_path, "rms_norm", "--shape", "64,96"))
    capsys.readouterr()
    assert left_with("rms_norm", "--shape", "64,96") == 0
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    texts = {line.text.strip() for line in page.lines.values()}
    texts |= {" ".join(part.split()) for kind in ("dt", "dd", "p") for part in page.texts[kind]}
    cells = set(page.texts["td"])
    for line in printed:
        a_row = line.startswith(("kernel  ", "rms_norm_backward_f32_", "rms_norm_forward_f32", "all "))
        if a_row and line not in texts:
            assert line.startswith("kernel") or {*re.split(r"  +", line)} <= cells
        else:
            assert not line or line.startswith("==") or line in texts


def test_the_cost_alone(tmp_path: Path) -> None:
    page = parsed(written(tmp_path, "rms_norm", "--cost"))
    assert page.lines == {} and page.texts["h3"] == ["cost on NVIDIA H200, sm_90"] * 2


def test_equal_calls_give_equal_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(tmp_path, "rms_norm")
    out, err = capsys.readouterr()
    assert out == "" and err == f"wrote {tmp_path / 'page.html'}\n"
    assert written(tmp_path, "rms_norm") == first
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_page_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    path = tmp_path / "page.html"
    path.write_text("old", encoding="utf-8")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert left_with("lerp", "--html", str(path)) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "old" and [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_what_a_link_leads_to_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target.html", tmp_path / "page.html"
    link.symlink_to(target)
    assert written(tmp_path, "lerp") == target.read_text(encoding="utf-8") and link.is_symlink()


@pytest.mark.parametrize(
    ("place", "said"), [("none/page.html", "no folder"), (".", "no file")], ids=["no folder", "a folder"]
)
def test_where_no_page_can_be_written(place: str, said: str, tmp_path: Path, capsys: Any) -> None:
    assert left_with("no_such_op", "--html", str(tmp_path / place)) == 2
    error = capsys.readouterr().err
    assert "--html" in error and said in error and "fix:" in error
    assert list(tmp_path.iterdir()) == []

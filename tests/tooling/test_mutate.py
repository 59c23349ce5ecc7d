"""tools/mutate: which changes it makes, to what it makes none, and what becomes of a mutant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import Mutant, Site
from tools.mutation_reach import Reach, statement

ROOT = Path(__file__).resolve().parents[2]


def changed(sites: list[Site], text: str, operator: str) -> set[str]:
    """What the operator makes of a text, in one line each."""
    made = [site.change(text) for site in sites if site.operator == operator]
    return {" ".join(text.split()) for text in made if text is not None}


PYTHON = [
    ("term", "d = a * x + b * y", {"d = a * x", "d = b * y", "d = a + b * y", "d = x + b * y", "d = a * x + b",
                                    "d = a * x + y"}),
    ("term", "left = space - over", {"left = space"}),
    ("swapped operands", "z = a - b", {"z = b - a"}),
    ("swapped operands", "z = apply('where', c, a, b)", {"z = apply('where', a, c, b)", "z = apply('where', c, b, a)"}),
    ("swapped operands", "z = apply('mul', a, b)", set()),
    ("guard", "if a < b:\n    go(a)", {"if True: go(a)", "if False: go(a)"}),
    ("guard", "x = [a for a in b if a.c]", {"x = [a for a in b if True]"}),
    ("element", "x = (a, b, c)", {"x = (b, c)", "x = (a, c)", "x = (a, b)"}),
    ("element", "x = (a, b)", {"x = (b,)", "x = (a,)"}),
    ("statement", "found.append(x)\ntotal += x", {"pass total += x", "found.append(x) pass"}),
    ("axis", "r = reduced(e, over)", {"r = reduced(e, type(over)(sorted(over)[1:]))"}),
    ("early return", "def f(x) -> int | None:\n    return x", {"def f(x) -> int | None: return None return x"}),
    ("early return", "def f(x) -> bool:\n    return x", {
        "def f(x) -> bool: return True return x", "def f(x) -> bool: return False return x"}),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "text", "expected"), PYTHON)
def test_python_of_this_code(operator: str, text: str, expected: set[str]) -> None:
    assert changed(list(mutants._of_python("a.py", text)), text, operator) == expected


@pytest.mark.parametrize("text", [
    '"""A - B."""', "import a, b", "from a import b, c", "@cache(1 - 2)\ndef f() -> int:\n    pass",
    "x: dict[int, str]", "raise SomeError(a - b, given=1 - 2)", "assert a - b", "def f(a: 1 - 2) -> 1 - 2: ...",
    "x = ShapeError('x', given=a - b)", "__all__ = ['a', 'b']",
    "if TYPE_CHECKING:\n    from a import b", "Shape = tuple[int, str]", "Placement = Whole | Partial",
    "x = f'{a - b} threads share a row'",
])  # fmt: skip
def test_what_no_result_depends_on_is_left_alone(text: str) -> None:
    assert list(mutants._of_python("a.py", text)) == []


LIBRARY = [
    ("bound", "x = a < b", {"x = a <= b"}),
    ("negated comparison", "x = a == b", {"x = a != b"}),
    ("negated condition", "if a:\n    go()", {"if not a: go()"}),
    ("constant", "x = 4", {"x = 5", "x = 3"}),
    ("and, or", "x = a and b", {"x = a or b"}),
    ("no iterations", "for x in y:\n    go(x)", {"for x in []: go(x)"}),
    ("operator", "x = a + b", {"x = a - b"}),
    ("constant", "def f(x: L[4]) -> L[5]:\n    raise SomeError(6)", set()),
]


@pytest.mark.parametrize(("operator", "text", "expected"), LIBRARY)
def test_python_by_the_library(operator: str, text: str, expected: set[str]) -> None:
    pytest.importorskip("cosmic_ray", reason="the extra mutation is not installed")
    assert changed(list(mutants._library("a.py", text)), text, operator) == expected


CUDA = [
    ("barrier", "__syncthreads();  // for all", {"; // for all"}),
    ("barrier", "link.ready();", {";"}),
    ("guard", "if (lane == f(0)) go();", {"if (true) go();", "if (false) go();"}),
    ("guard", "{% if exact %}", {"{% if true %}", "{% if false %}"}),
    ("guard", '{% set end = "end" if together else "n" %}', {'{% set end = "end" %}', '{% set end = "n" %}'}),
    ("bound", "for (int i = 0; i < n; ++i) {", {"for (int i = 0; i <= n; ++i) {", "for (int i = 0; i >= n; ++i) {"}),
    ("constant", "x = lane % 32;", {"x = lane % 33;", "x = lane % 31;"}),
    ("term", "const T y = a + b;", {"const T y = b;", "const T y = a;"}),
    ("swapped operands", "const T y = a - b;", {"const T y = b - a;"}),
    ("swapped operands", "y = fmod(a, b);", {"y = fmod(b, a);"}),
    ("swapped operands", "y = maximum(a, b);", set()),
    ("statement", "  total.merge(other);", {";"}),
    ("statement", "  sum += x;", {";"}),
    ("operator", "const T y = a * b;", {"const T y = a / b;"}),
    ("operator", "{{ listed(a + b) }}", set()),
    ("constant", "{{ lines | nest(2) }}", set()),
]


@pytest.mark.parametrize(("operator", "text", "expected"), CUDA)
def test_templates(operator: str, text: str, expected: set[str]) -> None:
    assert changed(list(mutants._of_text("a.cu.j2", text)), text, operator) == expected


@pytest.mark.parametrize("text", [
    "// a < b, 3 threads", "{# a < b, 3 threads #}", "#pragma unroll 2", "#define TWO 2",
    "#ifdef FUSEGEN_EMULATOR\ny = 1;\n#else\nx = 2;\n#endif", "#ifndef FUSEGEN_EMULATOR\nx = 2;\n#endif",
    "#if __CUDA_ARCH__ >= 800\nx = 2;\n#endif",
])  # fmt: skip
def test_what_is_not_run_here_is_left_alone(text: str) -> None:
    assert list(mutants._of_text("a.cuh", text)) == []


def test_what_the_emulator_shares_with_gpus_is_changed() -> None:
    text = "#if defined(FUSEGEN_EMULATOR) || __CUDA_ARCH__ < 800\nx = 2;\n#else\ny = 4;\n#endif\nz = 6;"
    assert len(changed(list(mutants._of_text("a.cuh", text)), text, "constant")) == 4


def test_a_change_that_is_none_is_no_mutant() -> None:
    text = "x = (1)\n"
    same = Site("a.py", 1, "constant", lambda text: "x = 1\n")
    broken = Site("a.py", 1, "constant", lambda text: "x = = 1\n")
    other = Site("a.py", 1, "constant", lambda text: "x = 2\n")
    assert [mutants.apply(site, text) is not None for site in (same, broken, other)] == [False, False, True]


def test_samples_repeat_themselves_and_spare_the_tree() -> None:
    pytest.importorskip("cosmic_ray", reason="the extra mutation is not installed")
    one, two, three = (mutants.sample(ROOT, 12, seed) for seed in (5, 5, 6))
    assert one == two
    assert {m.key for m in one} != {m.key for m in three}
    assert all(m.text != (ROOT / m.path).read_text(encoding="utf-8") for m in one)
    assert len({(m.path, m.line) for m in one}) == 12
    assert mutants.sample(ROOT, 6, 5) == one[:6]


def test_statements() -> None:
    text = "A = 1\ndef f(x):\n    if (x and\n            A):\n        y = (x,\n             A)\n    return y\n"
    assert [statement(text, line) for line in (1, 3, 4, 5, 6, 7)] == [None, (3, 4), (3, 4), (5, 6), (5, 6), (7, 7)]


def test_which_tests_reach_a_place() -> None:
    tests = {
        "tests/test_a.py::cheap": {"seconds": 0.1, "templates": ["rows"], "words": ["block_sum"]},
        "tests/test_a.py::second": {"seconds": 0.2, "templates": [], "words": []},
        "tests/test_b.py::dear": {"seconds": 0.3, "templates": ["rows", "strided_rows"], "words": ["lanes_merge"]},
    }
    path = "fusegen/derive/products.py"
    names = list(tests)
    first = next(i for i, text in enumerate((ROOT / path).read_text().splitlines(), 1) if text.startswith("    return"))
    reach = Reach(tests, {path: {first: names}})

    def reaching(path: str, line: int) -> list[str]:
        return reach.tests_of(Mutant(path, line, "", "", "", ""))

    assert reaching(path, first) == [names[0], names[2], names[1]]  # another file's before a file's second
    assert reaching("templates/strided_rows.cu.j2", 1) == [names[2]]
    header = (ROOT / "templates/fusegen_reduce.cuh").read_text().splitlines()
    inner = next(i for i, text in enumerate(header, 1) if "S shuffle_xor" in text)
    assert reaching("templates/fusegen_reduce.cuh", inner + 1) == [names[2]]  # by way of lanes_merge


TREE = {
    "fusegen/derive/sums.py": "def total(a, b):\n    if a > b:\n        a, b = b, a\n    return a - -b\n",
    "fusegen/fuse/x.py": "", "fusegen/generate/x.py": "", "templates/x.cuh": "",
    "fusegen/__init__.py": "", "fusegen/derive/__init__.py": "", "nn/__init__.py": "", "ops/__init__.py": "",
    "tests/test_sums.py": "from fusegen.derive.sums import total\n\ndef test_sums():\n    assert total(2, 1) == 3\n",
    "tools/generate.py": "def main(arguments):\n    return 0\n",
}  # fmt: skip
RUN = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
from tools import mutants, mutate, mutation_reach
from tools.mutants import apply, sites
root = Path(sys.argv[1])
for module in (mutate, mutation_reach):
    module.ROOT = root
mutate.COPIES = root / "build" / "mutants"
path = "fusegen/derive/sums.py"
text = (root / path).read_text()
chosen = [made for site in mutants._of_python(path, text) if (made := apply(site, text))]
reach = mutation_reach.Reach.read(root / "reach")
for result in mutate.live(chosen, reach, 2, 60):
    print(result.outcome, "|", result.new, "|", result.by, "|", result.ran, result.of)
print("wrong:", mutate.failing(reach.tests, 60))
"""


def test_a_mutant_is_killed_and_one_that_means_the_same_survives(tmp_path: Path) -> None:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    reached = {"tests/test_sums.py::test_sums": {"seconds": 0.1, "templates": [], "words": []}}
    lines = {"fusegen/derive/sums.py": {str(i): list(reached) for i in (2, 3, 4)}}
    (tmp_path / "reach").mkdir()
    (tmp_path / "reach" / "all.json").write_text(json.dumps({"tests": reached, "lines": lines}))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = [sys.executable, "-c", RUN, str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    lines_ = set(done.stdout.splitlines())
    killed, alive = ("tests/test_sums.py::test_sums", "0 2"), ("", "2 2")
    # The order of two numbers is nothing to their sum.
    for text, outcome, (by, ran) in (
        ("if True:", "survived", alive), ("if False:", "survived", alive), ("return a", "killed", killed),
        ("return -b - a", "killed", killed),
    ):  # fmt: skip
        assert f"{outcome} | {text} | {by} | {ran}" in lines_, done.stdout
    assert "wrong: []" in lines_
    assert (tmp_path / "fusegen/derive/sums.py").read_text() == TREE["fusegen/derive/sums.py"]

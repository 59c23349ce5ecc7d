"""Whatever things are called, a kernel is the same but for their names, and compiles: every word of every kind of
kernel as the name of every kind of thing."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen import generate
from fusegen.core.subexpressions import is_reserved
from fusegen.fuse.kernel import Kernel
from fusegen.fused_op import FusedOp
from fusegen.generate import builder
from fusegen.generate.names import Names, _spellings, identifiers, unmarked
from fusegen.generate.render import marked, render
from fusegen.generate.rendered import PREAMBLE, headers
from fusegen.inspect.passes import passes
from fusegen.launch.compile import to_cubin
from fusegen.launch.emulator import build as emulator

TEMPLATES = Path(__file__).parents[2] / "templates"
INCLUDE = (f"-I{TEMPLATES}", f"-I{Path(emulator.__file__).parent}")
F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64
ROLES = ("full", "row", "column", "number", "value", "out")
# Names that no kernel has a use for.
PLAIN = dict(zip(ROLES, ("qa", "qb", "qc", "qd", "qe", "qf"), strict=True))

NORM = "{value} = {full} * {row} + {column} * {number}; {out} = {value} - fg_.mean({value}, -1, keepdims=True)"


def summed(axis: Any, how: str = "sum") -> str:
    return f"{{value}} = {{full}} * {{row}} + {{column}} * {{number}}; {{out}} = fg_.{how}({{value}}, {axis})"


@dataclass(frozen=True)
class Shape:
    """What makes a kind of kernel: a declaration, and what it is called with."""

    body: str
    full: torch.Tensor
    row: tuple[int, ...]
    column: tuple[int, ...]
    which: str = "forward"
    index: torch.dtype | None = None

    def op(self, names: dict[str, str], title: str) -> FusedOp:
        body = self.body.format(**names)
        space: dict[str, Any] = {"fg_": fg}
        signature = f"{names['full']}, {names['row']}, {names['column']}, *, {names['number']}=2.0"
        exec(f"def {title}({signature}):\n    {body}\n    return {names['out']}\n", space)
        return fg.op(space[title])

    def kernels(self, names: dict[str, str], title: str = "shaped") -> list[Any]:
        dtype = self.full.dtype
        row, column = torch.empty(self.row, dtype=dtype), torch.empty(self.column, dtype=self.index or dtype)
        made = passes(self.op(names, title), (self.full, row, column), {}, which=self.which)
        return [kernel for item in made for kernel in item.kernels]

    @property
    @cache  # noqa: B019 - shapes live as long as this module
    def plain(self) -> list[Any]:
        return self.kernels(PLAIN)


def empty(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


PLAIN_BODY = "{value} = {full} * {row} + {column} * {number}; {out} = {value} * {value}"
HOISTED = "{value} = {full} * {row} + {column} * fg_.exp({number}); {out} = fg_.tanh({value}) * {full} * {value}"
PACKED = (
    "{value} = {full} * {row} + {column} * {number}; "
    "{out} = fg_.concat(({value}, {row} * fg_.cast(fg_.index({full}, -1), {full}.dtype)), -1)"
)
SEGMENTS = (
    "{value} = {full} - fg_.mean({full}, (-2, -1), keepdims=True) * {number}; "
    "{out} = {value} * fg_.rsqrt(fg_.mean({value} * {value}, (-2, -1), keepdims=True)) * {row} * {column}"
)
PICKED = (
    "{value} = fg_.where(fg_.index({full}, -1) == {column}, {full} * {number}, 0.0); "
    "{out} = fg_.logsumexp({full} * {row}, -1) - fg_.sum({value}, -1)"
)
SHAPES = {
    "elementwise": Shape(PLAIN_BODY, empty(64, 128), (128,), (64, 1)),
    "elementwise, one by one": Shape(PACKED, empty(64, 33), (33,), (64, 1)),
    "elementwise, apart": Shape(PACKED, empty(6400, 333), (333,), (6400, 1)),
    "tiled transpose": Shape(PLAIN_BODY, empty(40, 64).mT, (64, 40), (64, 1)),
    "tiled transpose, many": Shape(PLAIN_BODY, empty(8, 40, 64).mT, (8, 64, 40), (64, 1)),
    "full reduction": Shape(summed(None), empty(64, 128), (128,), (64, 1)),
    "full reduction, split": Shape(summed(None), empty(4000, 4000), (4000,), (4000, 1)),
    "serial": Shape(summed(0), empty(3, 4, 5).permute(1, 0, 2), (5,), (4, 1, 1), "backward"),
    "row": Shape(summed(-1), empty(6, 4097), (4097,), (6, 1)),
    "row, split": Shape(summed(-1, "amax"), empty(3, 300000), (300000,), (3, 1)),
    "column": Shape(summed(0), empty(64, 128), (128,), (64, 1)),
    "column, split": Shape(summed(0), empty(4000, 4000), (4000,), (4000, 1)),
    "column, places": Shape(summed(0, "argmax"), empty(3000, 64), (64,), (3000, 1)),
    "rows, elementwise": Shape(HOISTED, empty(64, 128), (128,), (64, 1), "backward"),
    "rows": Shape(NORM, empty(64, 128), (128,), (64, 1), "backward"),
    "rows, many": Shape(NORM, empty(4000, 1024), (1024,), (4000, 1), "backward"),
    "rows, unaligned": Shape(NORM, empty(6, 4097, dtype=BF16), (4097,), (6, 1), "backward"),
    "rows, short and unaligned": Shape(NORM, empty(6, 33), (33,), (6, 1), "backward"),
    "rows, clusters": Shape(NORM, empty(6, 131072), (131072,), (6, 1), "backward"),
    "rows, unaligned clusters": Shape(NORM, empty(6, 131071, dtype=BF16), (131071,), (6, 1), "backward"),
    "rows, chunked": Shape(summed(-1, "logsumexp"), empty(500, 131071), (131071,), (500, 1)),
    "rows, split": Shape(summed(-1, "var"), empty(6, 400001), (400001,), (6, 1)),
    "rows, segments": Shape(SEGMENTS, empty(2, 4, 56, 56), (2, 4, 56, 1), (4, 1, 1), "backward"),
    "rows, segments in clusters": Shape(SEGMENTS, empty(2, 4, 112, 112), (2, 4, 112, 1), (4, 1, 1), "backward"),
    "rows, deviations": Shape(summed(-1, "var"), empty(6, 500), (500,), (6, 1)),
    "rows, slices": Shape(NORM, empty(4, 500, 64), (4, 1, 64), (4, 500, 1), "backward"),
    "rows, picked": Shape(PICKED, empty(6, 500), (500,), (6, 1), "backward", I64),
    "strided rows": Shape(NORM.replace("-1", "0"), empty(19, 4096), (4096,), (19, 1), "backward"),
    "strided rows, shared": Shape(NORM.replace("-1", "0"), empty(300, 4096), (4096,), (300, 1), "backward"),
    "strided rows, vectors": Shape(
        NORM.replace("-1", "-2"), empty(64, 4, 65536, dtype=BF16), (65536,), (4, 1), "backward"
    ),
    "strided rows, picked": Shape(PICKED.replace("-1", "0"), empty(19, 4096), (4096,), (4096,), "forward", I64),
}


def code(text: str) -> str:
    """The text without comments, and what it includes."""
    return re.sub(r"//.*", "", text.removeprefix(PREAMBLE))


def words(shape: Shape) -> list[str]:
    """What the kernels call things, but for what they call the op's."""
    found = set().union(*(identifiers(code(kernel.rendered.text)) for kernel in shape.plain))
    own = {word for word in found if not any(name in word for name in PLAIN.values())}
    return sorted(word for word in own if not keyword.iskeyword(word) and "shaped" not in word)


def made_of(shape: Shape, name: str, other: str) -> list[str]:
    """What they call things after ``name``, after ``other`` instead."""
    found = set().union(*(identifiers(code(kernel.rendered.text)) for kernel in shape.plain))
    return sorted(word.replace(name, other) for word in found if name in word and name != word)


def namings(shape: Shape) -> Iterator[dict[str, str]]:
    """Names for all roles, until each has had each word, and each what is made of each other's name."""
    own = words(shape)
    for at in range(len(own)):
        yield dict(zip(ROLES, islice(cycle(own), at, at + len(ROLES)), strict=True))
    for role in ROLES:
        made = made_of(shape, PLAIN[role], "x")
        others = [other for other in ROLES if other != role]
        for at in range(len(made)):
            hostile = zip(others, dict.fromkeys(islice(cycle(made), at, at + len(others))), strict=False)
            yield {**PLAIN, role: "x", **dict(hostile)}


def tokens(text: str) -> list[str]:
    return re.findall(r"(?:\.|::)\w+|[A-Za-z_]\w*|\d[\w.]*|\S", code(text))


class Numbered(Names):
    """Names that collide with nothing, because nobody would choose them."""

    def __init__(self, kernel: Kernel) -> None:
        self.numbers: dict[str, int] = {}

    def variable(self, name: str) -> str:
        return f"variable_{self.numbers.setdefault(name, len(self.numbers))}_of_the_op"

    def stem(self, name: str) -> str:
        return f"start_{self.numbers.setdefault(name, len(self.numbers))}_of_the_op"


def check_names_alone_differ(found: str, numbered: str) -> None:
    """Each identifier of one text stands wherever another one does in the other."""
    there, back = dict[str, str](), dict[str, str]()
    for a, b in zip(tokens(found), tokens(numbered), strict=True):
        assert there.setdefault(a, b) == b and back.setdefault(b, a) == a


def check_compiles(texts: Sequence[str], folder: Path) -> None:
    """By both compilers, up to where all names are known."""
    to_cubin("".join(texts), arch="sm_90", headers=headers(), declared="names", options=("-fdevice-syntax-only",))
    source = folder / "names.cpp"
    source.write_text("".join(['#include "fusegen_emulator.h"\n', *texts]))
    flags = ("-std=c++17", "-DFUSEGEN_EMULATOR", "-fsyntax-only", "-Wno-unknown-pragmas", *INCLUDE)
    done = emulator.run_compiler([emulator.compiler(), *flags, str(source)])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", SHAPES)
def test_every_word_of_a_kernel_is_a_name_for_everything(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shape = SHAPES[kind]
    made = [kernel for at, names in enumerate(namings(shape)) for kernel in shape.kernels(names, f"named_{at}")]
    check_compiles([kernel.rendered.text for kernel in made], tmp_path)
    monkeypatch.setattr(builder, "WIDTH", 10**6)  # names of another length break lines elsewhere
    for kernel in made:
        found = render(kernel.kernel, kernel.schedule).text
        check_names_alone_differ(found, marked(kernel.kernel, kernel.schedule, Numbered(kernel.kernel)))


def test_every_name_of_the_generator_is_among_the_words() -> None:
    known = set().union(*map(words, SHAPES.values()))
    named: set[str] = set()
    for path in Path(generate.__path__[0]).glob("*.py"):
        if path.name in ("scatters.py", "sorted_scatters.py", "scan_programs.py"):  # which have no name of an op's
            continue
        source = path.read_text(encoding="utf-8")
        for found in re.findall(r'\bSymbol\("(\w+)"\)|\b(?:Declare|For|Function)\([^()]*?"(\w+)"', source):
            named |= set(filter(None, found))
        for several in re.findall(r"map\(\s*Symbol,\s*\(([^)]*)\)", source):
            named |= set(re.findall(r'"(\w+)"', several))
    named -= {"member", "block", "blocks"}  # of launches for many tensors (tests/optim)
    named -= set(filter(is_reserved, named))
    assert len(named) > 40 and named <= known, named - known


def test_no_macro_that_the_emulator_knows_is_a_variable(tmp_path: Path) -> None:
    """Nor one of users' own functions."""
    source = tmp_path / "empty.cpp"
    source.write_text(f'#include "fusegen_emulator.h"\n{PREAMBLE}')
    flags = ("-std=c++17", "-DFUSEGEN_EMULATOR", "-dM", "-E", *INCLUDE)
    listed = emulator.run_compiler([emulator.compiler(), *flags, str(source)]).stdout
    macros = re.findall(r"^#define (\w+) ", listed, flags=re.MULTILINE)  # those with arguments need a parenthesis
    assert len(macros) > 400 and all(map(is_reserved, macros))
    for name in ("FUSEGEN_SHARED", "FUSEGEN_CLUSTER"):  # what they expand to within kernels
        for body in re.findall(rf"#define {name}\((?:.*\\\n)*.*", "".join(emulator.headers().values())):
            parameters, _, body = body.partition("(")[2].partition(")")
            for word in identifiers(body) - set(re.findall(r"\w+", parameters)):
                assert is_reserved(word), word
    (kernel,) = SHAPES["elementwise"].plain
    names = Names(kernel.kernel, ["#define qa \\\n  qb"])
    assert not names.settle(f"{names.variable('qa')} = {names.variable('qb')};")
    assert [unmarked(names.variable(name)) for name in ("qa", "qb", "qc")] == ["qa_", "qb_", "qc"]


# -- what lies in memory ---------------------------------------------------------------------------------------------


def check(op: FusedOp, theirs: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Results and gradients."""
    ours, expected = op(*inputs), theirs(*inputs)
    torch.testing.assert_close(ours, expected)
    for found in (ours, expected):
        assert isinstance(found, torch.Tensor)
    cotangent = torch.randn(ours.shape, dtype=ours.dtype)
    found, wanted = (torch.autograd.grad(out, inputs, cotangent) for out in (ours, expected))
    torch.testing.assert_close(found, wanted)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.emulator
def test_arguments_called_as_what_kernels_leave_each_other() -> None:
    @fg.op
    def total(x, total_partial):  # type: ignore[no-untyped-def]
        return fg.sum(x * total_partial)

    check(total, lambda x, w: (x * w).sum(), leaf(64, 128), leaf(64, 128))

    @fg.op
    def norm(x, w, sum_d_w_by_group):  # type: ignore[no-untyped-def]
        y = x * w * sum_d_w_by_group
        return y - fg.mean(y, -1, keepdims=True)

    inputs = leaf(64, 24), leaf(24), leaf(64, 1)
    (_, backward) = passes(norm, inputs, {}, which="backward")
    assert "sum_d_w_by_group_2" in {o.name for k in backward.kernels for o in k.kernel.partials}
    check(norm, lambda x, w, c: (x * w * c) - (x * w * c).mean(-1, keepdim=True), *inputs)


@pytest.mark.emulator
def test_letters_beyond_ascii_are_letters_of_their_own() -> None:
    @fg.op
    def letters(α, u3b1, ß):  # type: ignore[no-untyped-def]
        return α * u3b1 - ß * α

    text = letters.emit(*(torch.empty(8) for _ in range(3)))
    assert all(f"const float* __restrict__ {name}_ptr" in text for name in ("u3b1", "the_u3b1", "udf"))
    check(letters, lambda a, b, c: a * b - c * a, leaf(3, 8), leaf(8), leaf(3, 1))

    @fg.op
    def halves(α, α_0):  # type: ignore[no-untyped-def]
        a, b = fg.split(α, 2)
        return a * α_0 - b

    check(halves, lambda a, b: a[..., :4] * b - a[..., 4:], leaf(3, 8), leaf(3, 4))


def test_kernels_of_an_op_have_names_of_their_own(tmp_path: Path) -> None:
    @fg.op
    def three(x, y):  # type: ignore[no-untyped-def]
        a = fg.exp(x)
        b = fg.sin(x)
        a_and_1_more = fg.cos(y)
        return a, b, a_and_1_more

    check_compiles([three.emit(torch.empty(5, 8), torch.empty(7))], tmp_path)


def test_names_stay_where_nothing_collides() -> None:
    def text(kind: str, **names: str) -> str:
        return "".join(kernel.rendered.text for kernel in SHAPES[kind].kernels({**PLAIN, **names}))

    free, taken = text("elementwise", full="head", row="x"), text("rows, unaligned", column="head")
    assert "const float head = head_v[k];" in free and "const float x = " in free
    assert "const float head_ = fg::load(head_ptr" in taken and "const int head = " in taken


# What Python takes for a name and C++ does not: of the compiler's own kind, of marks alone, of other alphabets.
UNUSUAL = ("_R", "_Reserved", "__X", "_X__y", "_X_ptr", "_", "___", "_1", "x__", "M_PI", "NULL", "_\u039b", "fusegen_x")


@pytest.mark.parametrize("variable", [True, False])
@pytest.mark.parametrize("name", UNUSUAL)
def test_there_is_a_spelling_of_every_name(name: str, variable: bool) -> None:
    """The search for one went on for ever where all of them had two underscores side by side."""
    assert any(not is_reserved(spelled) for spelled in islice(_spellings(name, variable), 10))

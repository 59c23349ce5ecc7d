"""Every stage of an op as one HTML page, in which each line of CUDA is linked to the statement that it computes.

The page needs nothing else: no network, no other file. Equal stages give equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from fusegen.core.ir import Expr, Let, Op, Operand, Output, Reduce, Ref, Scalar, names_read
from fusegen.fuse.steps import Product
from fusegen.inspect.links import Link, folded, links_of
from fusegen.inspect.page_style import SCRIPT, STYLE
from fusegen.inspect.passes import Inspected, Pass, Stage, source_of, stages_of, things_of
from fusegen.inspect.programs import program_lines
from fusegen.pipeline import ScheduledKernel

# Characters that HTML has no place for, escaped or not.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
# The word that starts a line of an op or a kernel, before what it is about.
_VERB = re.compile(r"( +)(in|let|red|out|read|take|reduce|then|write|leave)( +)(.*)")


@dataclass(frozen=True)
class CostTable:
    """What a pass costs, in words.

    Attributes:
        steps: each kernel or product, and what there is to say about it.
        rows: cells by column.
    """

    title: str
    steps: Sequence[tuple[str, Sequence[str]]]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str]


@dataclass(frozen=True)
class ShownPass:
    """A pass on a page. Of one without stages only the cost is shown."""

    item: Pass
    cost: CostTable
    with_stages: bool = True


def html_page(op: Inspected, arguments: Mapping[str, Any], passes: Sequence[ShownPass]) -> str:
    """The page about ``op`` called with ``arguments``."""
    title = f"{op.name}: from declaration to CUDA"
    call = f"{op.name}({', '.join(f'{name}: {_argument(value)}' for name, value in arguments.items())})"
    notes = [f"<p>{_text(line)}</p>" for line in op.runs.splitlines()]
    with_stages = any(shown.with_stages for shown in passes)
    if with_stages:
        notes.append("<p>Point at a line, or tap it: what it computes, and what computes it, lights up.</p>")
    declared = _Panel("declared", _plain(source_of(op), "declared", "python"))
    body = []
    for number, shown in enumerate(passes):
        own = [declared] if with_stages and number == 0 else []
        body.append(_pass_html(shown, f"pass{number}", own))
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(title)}</title>", f"<style>{STYLE}</style>", "</head>", "<body>",
        "<header>", f"<h1>{_text(title)}</h1>", f"<p><code>{_text(call)}</code></p>", *notes, "</header>",
        "<main>", *body, "</main>", '<div id="about" role="status" hidden></div>', f"<script>{SCRIPT}</script>",
        "</body>", "</html>", "",
    ])  # fmt: skip


def _argument(value: Any) -> str:
    """``float32[512, 3072]``, or a number as it is."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return repr(value) if shape is None else f"{dtype}[{', '.join(map(str, shape))}]"


def _text(text: str) -> str:
    return escape(_clean(text))


def _clean(text: str) -> str:
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


# -- lines and panels ------------------------------------------------------------------------------------------------


@dataclass
class _Line:
    """A line of a panel.

    Attributes:
        html: its text, highlighted.
        name: its id.
        of: ids of the lines that this one is for.
        to: the id that its number leads to.
        declares: it only says where values are kept.
    """

    html: str
    name: str
    of: list[str] = field(default_factory=list)
    to: str = ""
    declares: bool = False

    def __str__(self) -> str:
        number = self.name.rpartition("-")[2]
        if not self.to:
            return f'<li id="{self.name}"><span class="no">{number}</span><code>{self.html}</code></li>'
        of = f' data-of="{" ".join(self.of)}"' if self.of else ""
        kind = "linked declares" if self.declares else "linked"
        start = f'<li id="{self.name}" class="{kind}"{of}><a class="no" href="#{self.to}">{number}</a>'
        return f"{start}<code>{self.html}</code></li>"


@dataclass
class _Panel:
    """A stage on the page; ``notes``: things of which something is to be said, and what."""

    title: str
    lines: Sequence[_Line]
    kind: str = "wrapped"
    notes: Sequence[tuple[str, str]] = ()

    def __str__(self) -> str:
        notes = [f"<dt><code>{_text(name)}</code></dt><dd>{_text(note)}</dd>" for name, note in self.notes]
        lines = ["<ol>", *map(str, self.lines), "</ol>"]
        return "\n".join([
            f'<section class="panel {self.kind}">', f"<h3>{_text(self.title)}</h3>",
            f'<div class="code" tabindex="0" role="region" aria-label="{_text(self.title)}">', *lines, "</div>",
            *(["<dl>", *notes, "</dl>"] if notes else []), "</section>",
        ])  # fmt: skip


def _cost_html(cost: CostTable) -> str:
    steps = []
    for name, about in cost.steps:
        steps += [f"<dt><code>{_text(name)}</code></dt>", *(f"<dd>{_text(line)}</dd>" for line in about)]
    head = "".join(f'<th scope="col">{_text(title)}</th>' for title in cost.columns)
    rows = ["".join(f"<td>{_text(cell)}</td>" for cell in row) for row in cost.rows]
    return "\n".join([
        '<section class="panel wide">', f"<h3>{_text(cost.title)}</h3>",
        *(['<dl class="steps">', *steps, "</dl>"] if steps else []),
        f'<div class="numbers" tabindex="0" role="region" aria-label="{_text(cost.title)}">', "<table>",
        f"<thead><tr>{head}</tr></thead>", "<tbody>", *(f"<tr>{row}</tr>" for row in rows), "</tbody>", "</table>",
        "</div>", *(f"<p>{_text(line)}</p>" for line in cost.remarks), "</section>",
    ])  # fmt: skip


def _pass_html(shown: ShownPass, name: str, own: Sequence[_Panel]) -> str:
    panels = _Page(shown.item, name).panels() if shown.with_stages else {}
    columns = [[*own, *panels.get("op", []), *panels.get("split", []), *panels.get("rewritten", [])]]
    columns += [[*panels.get("fused", []), *panels.get("scheduled", []), *panels.get("program", [])]]
    columns += [panels.get("CUDA", [])]
    label = shown.item.op.label
    blocks = []
    for column, kind in zip(columns, ("", "", " cuda"), strict=True):
        if column:
            blocks += [f'<div class="column{kind}">', *map(str, column), "</div>"]
    return "\n".join([
        f'<section aria-label="{_text(label)}">', f"<h2>{_text(label)}</h2>", '<div class="stages">', *blocks,
        _cost_html(shown.cost), "</div>", "</section>",
    ])  # fmt: skip


# -- the stages of a pass --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _KernelLines:
    """A kernel, the lines of its statements, and what the lines of its CUDA are for."""

    planned: ScheduledKernel
    statements: Sequence[_Line]
    links: Sequence[Link]


class _Page:
    """Makes the panels of one pass, and links their lines."""

    def __init__(self, item: Pass, name: str) -> None:
        self.item, self.name = item, name
        self.stages = stages_of(item)
        # The lines of ops that state what has a name: as an argument, a value, or a result.
        self.stated: dict[str, list[tuple[str, _Line]]] = {}
        self.kernels: list[_KernelLines] = []

    def panels(self) -> dict[str, list[_Panel]]:
        """All panels, by the kind of their stage."""
        found: dict[str, list[_Panel]] = {}
        for number, stage in enumerate(self.stages):
            prefix = f"{self.name}-{stage.kind.lower()}{number}"
            lines = self._cuda(stage, prefix) if stage.kind == "CUDA" else self._lines(stage, prefix)
            part = "" if stage.label == self.item.op.label else f"{stage.label}: "
            kind = {"CUDA": "", "fused": "wrapped fused"}.get(stage.kind, "wrapped")
            panel = _Panel(f"{part}{stage.title}", lines, kind)
            found.setdefault(stage.kind, []).append(panel)
        if self.kernels:
            found["program"] = [_Panel("kernel program", self._programs(f"{self.name}-program"), "")]
        self._lead_down()
        found["op"][0].notes = self._unfused()
        found["fused"][0].notes = [note for kernel in self.kernels for note in _folded(kernel)]
        return found

    def _lines(self, stage: Stage, prefix: str) -> list[_Line]:
        """The lines of a stage, those of ops and kernels noted for what is linked to them."""
        found: list[_Line] = []
        for block in stage.blocks:
            texts = block.text.split("\n")
            html = map(_text if block.of is None else _notation, texts)
            lines = [_Line(text, f"{prefix}-{len(found) + at}") for at, text in enumerate(html, 1)]
            found += lines
            if isinstance(block.of, Op):
                op = block.of
                things = (*op.operands, *op.scalars, *op.statements, *op.outputs)
                for thing, line in zip(things, lines[1:], strict=True):
                    self.stated.setdefault(thing.name, []).append((_role(thing), line))
                if stage.kind != "op":
                    self._link_up(zip(things, lines[1:], strict=True), of_kind="op")
            elif block.of is not None:
                kernel = block.of.kernel
                pairs = list(zip(things_of(kernel), lines[1:], strict=False))
                self._link_up(pairs)
                self.kernels.append(_KernelLines(block.of, [line for _, line in pairs], links_of(block.of)))
        while found and not found[-1].html:
            found.pop()
        return found

    def _link_up(
        self, pairs: Iterable[tuple[Operand | Scalar | Let | Reduce | Output, _Line]], of_kind: str = ""
    ) -> None:
        """Link each line to the lines of ops that state the same; with ``of_kind`` only to those of that stage."""
        for thing, line in pairs:
            name = thing.name
            if name not in self.stated and isinstance(thing, Output) and isinstance(thing.expr, Ref):
                name = thing.expr.name  # what a kernel leaves of a sum for a later one
            stated = [(role, other) for role, other in self.stated.get(name, ()) if other is not line]
            if of_kind:
                stated = [(role, other) for role, other in stated if other.name.startswith(f"{self.name}-{of_kind}")]
            same = [other for role, other in stated if role == _role(thing)] or [other for _, other in stated]
            line.of += [other.name for other in same]

    def _cuda(self, stage: Stage, prefix: str) -> list[_Line]:
        text = stage.text.removesuffix("\n")
        lines = [_Line(html, f"{prefix}-{at}") for at, html in enumerate(_highlighted(text, "cuda"), 1)]
        bodies = [kernel.planned.rendered.body for kernel in self.kernels]
        place = stage.text.count("\n") - "\n".join(bodies).count("\n")
        for kernel, body in zip(self.kernels, bodies, strict=True):
            for line, link in zip(lines[place:], kernel.links, strict=False):
                statements = [kernel.statements[at] for at in link.things]
                line.of = [statement.name for statement in statements]
                line.to = line.of[0] if line.of else ""
                line.declares = not link.computes
                for statement in statements if link.computes else ():
                    statement.to = statement.to or line.name
            place += body.count("\n") + 1
        return lines

    def _programs(self, prefix: str) -> list[_Line]:
        """What each thread of each kernel does."""
        found: list[_Line] = []
        for kernel in self.kernels:
            texts, links = zip(*program_lines(kernel.planned), strict=True)
            before = [("", Link())] if found else []
            for text, link in [*before, *zip(texts, links, strict=True)]:
                line = _Line(_highlighted(text, "python")[0], f"{prefix}-{len(found) + 1}")
                line.of = [kernel.statements[at].name for at in link.things]
                line.to, line.declares = next(iter(line.of), ""), not link.computes
                found.append(line)
        return found

    def _lead_down(self) -> None:
        """What the numbers of lines that are no CUDA lead to: nearer to CUDA where there is such a line, else away."""
        fused = [line for kernel in self.kernels for line in kernel.statements]
        stated = [line for found in self.stated.values() for _, line in found]
        for line in stated:
            line.to = next((other.name for other in (*fused, *stated) if line.name in other.of), "")
        for line in (*stated, *fused):
            line.to = line.to or next(iter(line.of), "")

    def _unfused(self) -> list[tuple[str, str]]:
        """The op's statements that no kernel has by their name, and where they went."""
        op = self.item.op
        fused = {name for kernel in self.kernels for line in kernel.statements for name in line.of}
        cut = self.item.chain
        products = {step.result for step in cut.steps if isinstance(step, Product)} if cut else set()
        computed: list[tuple[str, Expr]] = [(s.name, s.expr) for s in (*op.statements, *op.outputs)]
        found = []
        for name in dict(computed):
            lines = [line for _, line in self.stated[name] if line.name.startswith(f"{self.name}-op")]
            if any(line.name in fused for line in lines):
                continue
            readers = [s.name for s in (*op.statements, *op.outputs) if s.name != name and name in names_read([s])]
            if name in products:
                found.append((name, "no kernel of its own: a library computes this matrix product"))
            elif readers:
                found.append(
                    (name, f"no statement of its own in a kernel: part of {', '.join(dict.fromkeys(readers))}")
                )
            else:
                found.append((name, "no kernel of its own: a matrix product, or what is done with one, gives it"))
        return found


def _role(thing: Operand | Scalar | Let | Reduce | Output) -> str:
    """What a name may mean twice in an op: the value, and the result that is this value."""
    return "result" if isinstance(thing, Output) else "value" if isinstance(thing, (Let, Reduce)) else "argument"


def _folded(kernel: _KernelLines) -> Iterator[tuple[str, str]]:
    """The statements of a kernel that no line computes by themselves, and why."""
    fused = kernel.planned.kernel
    for at, reason in folded(fused, kernel.links).items():
        yield f"{fused.name}: {things_of(fused)[at].name}", f"no line of CUDA of its own: {reason}"


# -- highlighting ----------------------------------------------------------------------------------------------------


def _plain(text: str, prefix: str, language: str) -> list[_Line]:
    found = enumerate(_highlighted(text.rstrip(), language), 1)
    return [_Line(html, f"{prefix}-{at}") for at, html in found]


def _notation(line: str) -> str:
    """A line of an op or a kernel: its verb, and an expression in the words of a declaration."""
    match = _VERB.fullmatch(line)
    if match is None:
        return _text(line)
    before, verb, between, rest = match.groups()
    return f'{before}<span class="k">{verb}</span>{between}{_highlighted(rest, "python")[0]}'


def _highlighted(text: str, language: str) -> list[str]:
    """The lines of code as HTML."""
    from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]

    lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    lines = [""]
    for kind, value in lexer.get_tokens(_clean(text)):
        shown = _class(str(kind))
        for number, piece in enumerate(value.split("\n")):
            if number:
                lines.append("")
            if piece:
                lines[-1] += f'<span class="{shown}">{escape(piece)}</span>' if shown else escape(piece)
    return lines


def _class(kind: str) -> str:
    """The class of a token; the most are shown as they are."""
    return next((shown for start, shown in _CLASSES.items() if kind.startswith(start)), "")


# By the beginning of a token's type, the longest first.
_CLASSES = {
    "Token.Keyword.Type": "t", "Token.Keyword": "k", "Token.Operator.Word": "k", "Token.Comment": "c",
    "Token.Literal.String": "s", "Token.Literal.Number": "m", "Token.Name.Function": "f", "Token.Name.Decorator": "f",
}  # fmt: skip

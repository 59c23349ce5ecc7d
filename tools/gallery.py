"""Writes the gallery of the documentation: a page for each op of the library, of what the compiler says of it now.

    python tools/gallery.py [--into docs/gallery] [OP ...]

`make docs` runs it. Pages are not kept in the repository: each is what `fusegen show OP` prints, at the shapes that it
takes where nobody names any.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(ROOT)]

from fusegen.cli.arguments import Request, bind, library, signature_text, summary  # noqa: E402
from fusegen.cli.progress import Bar  # noqa: E402
from fusegen.core.text import shape_text  # noqa: E402
from fusegen.fused_op import FusedOp  # noqa: E402
from fusegen.inspect.cost import pass_cost  # noqa: E402
from fusegen.inspect.gpus import Gpu, find_gpu  # noqa: E402
from fusegen.inspect.passes import Pass, declared, shown_passes, stages  # noqa: E402
from fusegen.inspect.units import count_text, size_text, time_text  # noqa: E402

GALLERY = ROOT / "docs" / "gallery"
DEVICE = "h200"
# What the pages of a module of ops/ stand below in the index.
TITLES = {
    "activations": "Activations",
    "bias": "Bias and activation",
    "blends": "Blends",
    "cells": "Recurrent cells",
    "channels": "Norms of channels",
    "classes": "Losses of classes",
    "distances": "Distances",
    "fused_norms": "Norms with what stands around them",
    "gated": "Gated activations",
    "likelihoods": "Likelihoods",
    "linear": "Linear layers",
    "linear_losses": "Losses behind a linear layer",
    "losses": "Losses",
    "margins": "Margins",
    "mlps": "Multilayer perceptrons",
    "norms": "Norms of rows",
    "pointwise": "Elementwise functions",
    "products": "Matrix products",
    "reductions": "Reductions",
    "softmaxes": "Softmaxes",
}


def write(folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """Write a page for each of the ops (all of the library), and the index of all; other pages there are removed.

    Raises:
        SystemExit: the library has no op of a name.
    """
    ops = library()
    unknown = sorted(set(names) - set(ops))
    if unknown:
        raise SystemExit(f"no op of the library: {', '.join(unknown)}; `fusegen list` has their names")
    folder.mkdir(parents=True, exist_ok=True)
    pages = {folder / "index.md": index(ops)}
    device = find_gpu(DEVICE)
    chosen = names or list(ops)
    with Bar(len(chosen)) as bar:
        for name in chosen:
            bar.step(name)
            pages[folder / f"{name}.md"] = page(name, ops[name], device)
    for path, text in pages.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # Sphinx reads again what is newer
            path.write_text(text, encoding="utf-8")
    if not names:
        for path in set(folder.glob("*.md")) - set(pages):
            path.unlink()
    return sorted(pages)


def page(name: str, op: FusedOp[..., object], device: Gpu) -> str:
    """What there is to say of one op."""
    shown = shown_passes(op, (), bind(op, Request.parse()), None)
    parts = [
        f"# {name}\n",
        f"```{{py:function}} fusegen.ops.{name}{signature_text(op)}\n{prose(op)}\n```\n",
        f"`fusegen show {name}` prints what follows, and every stage between.\n",
        *([f"{op.runs}\n"] if op.runs else []),
        "## Shapes\n",
        "".join(_shapes(shown[0])),
        "## Declaration\n",
        _fenced("python", _text(declared(op))),
    ]
    formulas = ("Formula", "Gradient")
    sections = [[_titled(part) for part in stages(item)] for item in shown]
    for title, of_pass in zip(formulas, sections, strict=False):
        parts += [f"## {title}\n", _fenced("text", of_pass[0][1])]
    parts += [f"## Cost on {device.name}\n", "".join(_costs(shown, device))]
    for of_pass in sections:
        (title, cuda) = of_pass[-1]
        parts += [f"## {title[0].upper()}{title[1:]}\n", _fenced("cuda", cuda)]
    return "\n".join(parts)


def prose(op: FusedOp[..., object]) -> str:
    """The docstring, for Markdown: what is code there is code here, and all else is plain text."""
    text = inspect.cleandoc(op.declaration.function.__doc__ or "")
    return plain(text)


def plain(text: str) -> str:
    """``text`` of a docstring as Markdown that reads the same."""
    pieces = re.split(r"``([^`]*)``", text)
    pieces[::2] = [re.sub(r"([\\*_<>\[\]|$~`])", r"\\\1", piece) for piece in pieces[::2]]
    pieces[1::2] = [f"`{piece}`" for piece in pieces[1::2]]
    return "".join(pieces)


def _shapes(forward: Pass) -> Iterator[str]:
    """A table of arguments and results, with the sizes that the page's figures are for."""
    sizes = forward.layout.sizes
    yield "| | name | shape | here | dtype |\n|---|---|---|---|---|\n"
    for word, things in (("argument", forward.op.operands), ("result", forward.op.outputs)):
        for thing in things:
            here = " x ".join(str(sizes[axis]) if axis else "1" for axis in thing.shape) or "one number"
            yield f"| {word} | `{thing.name}` | `{shape_text(thing.shape) or '[]'}` | {here} | {thing.dtype} |\n"


def _costs(shown: Sequence[Pass], device: Gpu) -> Iterator[str]:
    """A table with a line for each pass, and what its numbers are."""
    yield "| pass | launches | moves | least | share | instructions | predicted |\n" + "|---" * 7 + "|\n"
    for item in shown:
        cost = pass_cost(item, device)
        share = f"{cost.moved / cost.floor:.2f}" if cost.floor else "-"
        yield (
            f"| {item.op.label} | {len(cost.steps)} | {size_text(cost.moved)} | {size_text(cost.floor)} | {share} "
            f"| {count_text(sum(kernel.work.issued for kernel in cost.kernels))} "
            f"| {time_text(cost.microseconds(device))} |\n"
        )
    products = any(pass_cost(item, device).products for item in shown)
    yield (
        "\n*Least* is every input read once and every result written once. *Predicted* is not measured: it is the bytes"
        f" of each launch over {device.bandwidth / 1e6:.2f} TB/s, or its instructions at {device.issued / 1e6:.3g} T a"
        " second where they take longer, and a launch's time where that is more"
        f"{'; of a matrix product its operations, where they take longer' if products else ''}. What was measured is"
        " in [Performance](../performance.md).\n"
    )


def _titled(part: str) -> tuple[str, str]:
    """Heading and text of a section of `fusegen show`."""
    first, _, text = part.partition("\n")
    return first.strip("= "), text.strip("\n")


def _text(part: str) -> str:
    return _titled(part)[1]


def _fenced(language: str, text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}\n"


def index(ops: dict[str, FusedOp[..., object]]) -> str:
    """All ops, by the module that declares them."""
    groups: dict[str, list[str]] = {title: [] for title in TITLES}
    for name, op in ops.items():
        where = Path(op.declaration.declared).stem
        groups.setdefault(where, []).append(name)
    lines = [
        "# Gallery\n",
        "The ops of the library, `fg.ops.NAME`. Each page has the declaration, the formula of its gradient, its cost on"
        f" {find_gpu(DEVICE).name} and the CUDA, as the compiler has printed them for these pages.\n",
    ]
    for module, names in groups.items():
        if not names:
            continue
        lines += [f"## {TITLES.get(module, module)}\n", "| op | what it computes |\n|---|---|"]
        lines += [f"| [{name}]({name}.md) | {plain(summary(ops[name]))} |" for name in names]
        lines.append("")
    tree = "\n".join(ops)
    lines.append(f"```{{toctree}}\n:hidden:\n\n{tree}\n```\n")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ops", nargs="*", metavar="OP", help="pages of these alone")
    parser.add_argument("--into", type=Path, default=GALLERY)
    given = parser.parse_args(arguments)
    written = write(given.into, given.ops)
    print(f"{len(written)} pages in {given.into}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

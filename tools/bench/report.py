"""The measured tables as the Markdown of docs/performance.md, section by section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch

from fusegen.bench.baselines import NAMES
from fusegen.matmul.libraries import cublaslt, cudnn
from tools.bench.kernels import OURS, Run
from tools.bench.limits import behind, limits

_HEAD = """# Performance

What `python -m tools.bench --write docs/performance.md` last printed, on one {gpu} with torch {torch}
(CUDA {cuda}){libraries}. No figure was typed by hand; the reasons
behind rows were. A table is one run, of fusegen and its peers.
"""
_ROWS = """## Passes over memory

The floor is the fewest bytes a pass must move (each input read once, each output written once) over the copy
bandwidth measured in the same run: **{bandwidth:.2f} TB/s**; or the fewest instructions of its expressions (each part
once, as `fusegen/fuse/work.py` counts them) at the vendor's clock, where they take longer: then it is marked `a`.
Times are microseconds on the device: L2 flushed before every call, the host ahead of the device, random data, median
of 30. `fwd` has no gradients, `bwd` computes the gradients of every input, `step` is both as training does them. JAX
launches on streams of its own: its times are those
of calls back to back by the wall clock, without flushing. Rows with fewer peers are sizes that nobody tunes for.

![Time over the floor of every row, a strip for each family of ops, beside the roofline](images/roofline.svg)

![Time over the floor of fusegen as bars and of others as marks, a row of each family](images/peers.svg)

![Times of others over fusegen's, geometric means of all rows by implementation and pass](images/means.svg)

"""
_COLD = """## First calls

A fresh process after `import torch` and a first CUDA operation: forward and backward of a three-line op, in seconds;
`import` is part of the first call. Of the new shape the forward is known; the backward, whose sum over the rows other
blocks share, compiles anew. Medians of three processes.

| | import | first forward + backward | first call of a new shape |
|---|---|---|---|
"""
_LINEAR_LOSS = """## Cross entropy behind a linear layer

Loss and gradients of input and weight; memory beyond arguments and gradients; errors from float32 products.
`options=N` takes N rows at a time: with all 8192 the logits exist in full, as torch's do. By itself fusegen takes a
tenth of that memory, for products of fewer rows and a weight's gradient that is read and written once a chunk.

```
{table}
```
"""
_MODELS = """## Models

Hugging Face's Llama and GPT-2 with random weights, 50 training steps: as they are, with `fg.patch`, and compiled.

{tables}
"""
_HOST = """## Host cost of a call

{tables}
"""

# What peers other than torch are installed as.
_PACKAGES = {"JAX": "jax", "Liger": "liger-kernel", "QuACK": "quack-kernels"}
# Parts of the page, and how their sections begin, in its order.
PARTS = {
    "rows": _ROWS.splitlines()[0],
    "products": "## Matrix products",
    "model": "## A model of three linear layers",
    "loss": _LINEAR_LOSS.splitlines()[0],
    "calls": _COLD.splitlines()[0],
    "host": _HOST.splitlines()[0],
    "models": _MODELS.splitlines()[0],
}


@dataclass
class Page:
    """docs/performance.md as far as it has been measured.

    Sections that no run has measured anew stay, if they are from the same kind of machine; a run that is cut off leaves
    what it had finished.

    Args:
        path: where it is written; None: nowhere.
    """

    path: Path | None
    sections: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path and self.path.exists():
            text = self.path.read_text(encoding="utf-8")
            if text.startswith(head()):
                pieces = ["## " + piece for piece in text.split("\n## ")[1:]]
                self.sections = {
                    part: piece for part, title in PARTS.items() for piece in pieces if piece.startswith(title + "\n")
                }

    def put(self, part: str, text: str) -> None:
        """A section, and the page with it; nothing measured is no section."""
        if text:
            assert text.startswith(PARTS[part] + "\n"), f"a section called {text.splitlines()[0]!r}"
            self.sections[part] = text
        if self.path:
            found = [head(), *(self.sections[part] for part in PARTS if part in self.sections)]
            self.path.write_text("\n".join(piece.strip("\n") + "\n" for piece in found), encoding="utf-8")


def head() -> str:
    """How the page begins on this machine."""
    major, rest = divmod(cudnn.version(), 10000)
    libraries = f", cuDNN {major}.{rest // 100}.{rest % 100}" if major else ""
    whole, small = divmod(cublaslt.version(), 10000)
    libraries += f", cuBLASLt {whole}.{small // 100}.{small % 100}" if whole else ""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return _HEAD.format(gpu=gpu, torch=torch.__version__, cuda=torch.version.cuda, libraries=libraries)


def rows(run: Run) -> str:
    """The table of passes over memory, and why some are slower than they should be."""
    if not run.measured:
        return ""
    columns = [OURS, *(name for name in NAMES if any(name in m.times for m in run.measured))]
    text = _ROWS.format(bandwidth=run.bandwidth / 1e6)
    versions = [f"{name} {metadata.version(_PACKAGES[name])}" for name in columns if name in _PACKAGES]
    text += f"{', '.join(versions)}.\n\n" if versions else ""
    absent = [name for name in NAMES if name not in columns]
    text += f"Not on that machine, and so without a column: {', '.join(absent)}.\n\n" if absent else ""
    text += f"| work | pass | floor | {' | '.join(columns)} | fusegen / floor |\n"
    text += "|---" * (len(columns) + 4) + "|\n"
    for m in run.measured:
        times = [f"{m.times[name]:.1f}" if name in m.times else "" for name in columns]
        floor = f"{m.floor:.1f}{' a' if m.of_arithmetic else ''}"
        text += f"| {m.title} | {m.which} | {floor} | {' | '.join(times)} | {m.ratio:.2f} |\n"
    return text + limits(run.measured) + behind(run.measured)


def linear_loss(table: str) -> str:
    """What tools/bench/linear_loss printed."""
    return _LINEAR_LOSS.format(table=table)


def calls(first: Sequence[tuple[str, float, float, float]]) -> str:
    """First calls (tools/bench/cold)."""
    return _COLD + "".join(f"| {what} | {' | '.join(f'{t:.3f}' for t in times)} |\n" for what, *times in first)


def host(tables: str) -> str:
    """What tools/bench/host and tools/bench/compiled printed."""
    return _HOST.format(tables=tables.strip())


def models(tables: str) -> str:
    """What tools/bench/models printed."""
    return _MODELS.format(tables=tables.strip())

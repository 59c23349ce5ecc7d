"""The measured tables as the Markdown of docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusegen.wrap import cublaslt
from fusegen.wrap.peers import NAMES
from tools.bench.kernels import OURS, Run
from tools.bench.limits import behind, limits

_HEAD = """# Performance

What `python -m tools.bench --write docs/performance.md` last printed, on one {gpu} with torch {torch}
(CUDA {cuda}). Nothing here was typed by hand.

The floor is the fewest bytes a pass must move (each input read once, each output written once) over the copy
bandwidth measured in the same run: **{bandwidth:.2f} TB/s**. Times are microseconds on the device: L2 flushed before
every call, the host ahead of the device, random data, median of 30. `fwd` has no gradients, `bwd` computes the
gradients of every input, `step` is both as training does them. JAX launches on streams of its own: its times are those
of calls back to back by the wall clock, without flushing. Rows with fewer peers are sizes that nobody tunes for.

"""
_COLD = """
## First calls

A fresh process after `import torch` and a first CUDA operation: forward and backward of a three-line op, in seconds;
`import` is part of the first call. A new shape of the same pattern compiles nothing.

| | import | first forward + backward | first call of a new shape |
|---|---|---|---|
"""

_MODELS = """
## Models

Hugging Face's Llama and GPT-2 with random weights, 50 training steps: as they are, with `fg.patch`, and compiled.

{tables}
"""

_HOST = """
## Host cost of a call

{tables}
"""


def report(
    run: Run, first_calls: Sequence[tuple[str, float, float, float]], host: str = "", models: str = "",
    products: str = "",
) -> str:  # fmt: skip
    """The document; ``host`` and ``models``: the tables of tools/bench/host and of tools/bench/models; ``products``:
    the section of tools/bench/products."""
    text = _HEAD.format(
        gpu=torch.cuda.get_device_name(), torch=torch.__version__, cuda=torch.version.cuda,
        bandwidth=run.bandwidth / 1e6,
    )  # fmt: skip
    columns = [OURS, *(name for name in NAMES if any(name in m.times for m in run.measured))]
    if cublaslt.version():
        text += f"fusegen's products may go through nvmath-python {cublaslt.version()}, which is installed there.\n\n"
    absent = [name for name in NAMES if name not in columns]
    text += f"Not on that machine, and so without a column: {', '.join(absent)}.\n\n" if absent else ""
    text += f"| work | pass | floor | {' | '.join(columns)} | fusegen / floor |\n"
    text += "|---" * (len(columns) + 4) + "|\n"
    for m in run.measured:
        times = [f"{m.times[name]:.1f}" if name in m.times else "" for name in columns]
        text += f"| {m.title} | {m.which} | {m.floor:.1f} | {' | '.join(times)} | {m.ratio:.2f} |\n"
    text += products
    text += _COLD if first_calls else ""
    for what, *times_of in first_calls:
        text += f"| {what} | {' | '.join(f'{t:.3f}' for t in times_of)} |\n"
    text += _HOST.format(tables=host) if host else ""
    text += _MODELS.format(tables=models.strip()) if models else ""
    return text + limits(run.measured) + behind(run.measured)

"""The measured tables as the Markdown of docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tools.bench.kernels import Measured

_HEAD = """# Performance

What `python -m tools.bench --write docs/performance.md` last printed, on one {gpu} with torch {torch}
(CUDA {cuda}). Nothing here was typed by hand.

The floor is the fewest bytes a pass must move (each input read once, each output written once) over the copy
bandwidth measured in the same run: **{bandwidth:.2f} TB/s**. Times are microseconds on the device: L2 flushed before
every call, the host ahead of the device, random data, median of 30. `fwd` has no gradients, `bwd` computes the
gradients of every input, `step` is both as training does them.

| work | pass | floor | fusegen | torch | torch.compile | fusegen / floor |
|---|---|---|---|---|---|---|
"""
_COLD = """
## First calls

A fresh process after `import torch` and a first CUDA operation: forward and backward of a three-line op, in seconds;
`import` is part of the first call. A new shape of the same pattern compiles nothing.

| | import | first forward + backward | first call of a new shape |
|---|---|---|---|
"""


def report(measured: Sequence[Measured], first_calls: Sequence[tuple[str, float, float, float]]) -> str:
    """The document."""
    bandwidth = measured[0].times["copy"]
    text = _HEAD.format(
        gpu=torch.cuda.get_device_name(), torch=torch.__version__, cuda=torch.version.cuda, bandwidth=bandwidth
    )
    for m in measured[1:]:
        others = [f"{m.times[name]:.1f}" if name in m.times else "" for name in ("fusegen", "torch", "torch.compile")]
        text += f"| {m.title} | {m.which} | {m.floor:.1f} | {' | '.join(others)} | {m.ratio:.2f} |\n"
    text += _COLD
    for what, *times in first_calls:
        text += f"| {what} | {' | '.join(f'{t:.3f}' for t in times)} |\n"
    return text

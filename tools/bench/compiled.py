"""Host time of a compiled call beside torch's own: ``python -m tools.bench.compiled`` (CPU, or a GPU if there is one).

Sixteen elements: what is measured is what a call costs beside its kernel. On the CPU the kernel is the emulator's, and
the eager call says what that costs.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import torch

import fusegen as fg

CALLS = 2000


def microseconds(call: Callable[[], Any]) -> float:
    """The best of five averages."""
    for _ in range(20):
        call()
    return min(timeit.repeat(call, number=CALLS, repeat=5)) / CALLS * 1e6


def main() -> None:
    """Print a table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y, w = (torch.randn(16, device=device) for _ in range(3))
    leaves = [t.clone().requires_grad_() for t in (x, y, w)]
    ones = torch.ones(16, device=device)
    ours, theirs = fg.ops.lerp, torch.lerp
    overload = ours.overload(x, y, w)

    def backward(function: Any) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(function(*leaves), leaves, ones)

    rows: list[tuple[str, Callable[[], Any]]] = [
        ("eager torch.lerp", lambda: theirs(x, y, w)),
        ("eager fusegen", lambda: ours(x, y, w)),
        ("torch.ops.fusegen.lerp", lambda: overload(x, y, w)),
        ("forward and backward, eager torch.lerp", backward(theirs)),
        ("forward and backward, eager fusegen", backward(ours)),
    ]
    for name, function in (("torch.lerp", theirs), ("fusegen", ours)):
        compiled = torch.compile(lambda a, b, c, f=function: f(a, b, c), fullgraph=True)
        trained = torch.compile(lambda a, b, c, f=function: f(a, b, c), fullgraph=True)
        rows.append((f"compiled {name}", lambda c=compiled: c(x, y, w)))  # type: ignore[misc]
        rows.append((f"forward and backward, compiled {name}", backward(trained)))
    for title, call in rows:
        print(f"{title:45s} {microseconds(call):8.1f} us", flush=True)


if __name__ == "__main__":
    main()

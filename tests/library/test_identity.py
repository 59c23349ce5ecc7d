"""What compiled calls say of an op, so that torch's caches on disk forget graphs of what it was before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import fusegen as fg
from fusegen.pytorch.library import identity
from fusegen.pytorch.library.registry import registered


@fg.op
def halved(x):
    return x * 0.5


def compiled_gradient() -> tuple[list[float], int]:
    """The gradient of ``halved`` as compiled in what might be a new process, and how many graphs were found on disk."""
    torch._dynamo.reset()
    counters.clear()
    registered(halved).forget()
    x = torch.ones(2, requires_grad=True)
    torch.compile(lambda x: halved(x), fullgraph=True)(x).sum().backward()
    assert x.grad is not None
    return x.grad.tolist(), counters["aot_autograd"]["autograd_cache_hit"]


def test_torchs_cache_forgets_graphs_of_another_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert [compiled_gradient() for _ in range(2)] == [([0.5, 0.5], 0), ([0.5, 0.5], 1)]
    halved.gradient(lambda d_out, x: d_out * 3)  # the backward reads other tensors
    assert [compiled_gradient() for _ in range(2)] == [([3.0, 3.0], 0), ([3.0, 3.0], 1)]
    monkeypatch.setattr(identity, "compiler_digest", lambda: "a later fusegen")
    assert compiled_gradient() == ([3.0, 3.0], 0)


# In which NUMBER is 2 or 3.
SOURCES = {
    "its code": "def f(x):\n    return x * NUMBER",
    "a default": "def f(x, y: fg.Const = NUMBER):\n    return x * y",
    "a global": "k = NUMBER\ndef f(x):\n    return x * k",
    "a table": "k = {'a': (NUMBER,)}\ndef f(x):\n    return x * k['a'][0]",
    "a helper": "def g(x):\n    return x + NUMBER\ndef f(x):\n    return g(x)",
    "a helper's closure": "def by(k):\n    return lambda x: x * k\ng = by(NUMBER)\ndef f(x):\n    return g(x)",
    "another op": "@fg.op\ndef g(x):\n    return x + NUMBER\ndef f(x):\n    return g(x)",
    "a module's function": "m = module('return x + NUMBER')\ndef f(x):\n    return m.g(x)",
    "a circle": "def g(x, n):\n    return f(x) if n else x\ndef f(x):\n    return g(x, 0) + NUMBER",
}  # fmt: skip


def declared(source: str, gradient: Callable[..., Any] | None = None, autocast: str | None = None) -> str:
    """The identity of ``f`` of a source."""

    def module(body: str) -> ModuleType:
        made = ModuleType("helpers")
        exec(f"def g(x):\n    {body}", vars(made))
        return made

    namespace: dict[str, Any] = {"fg": fg, "module": module, "__name__": "somewhere"}
    exec(source, namespace)
    op = fg.op(namespace["f"], autocast=autocast)
    if gradient is not None:
        op.gradient(gradient)
    return identity.identity(op.declaration)


@pytest.mark.parametrize("what", SOURCES)
def test_an_identity_covers(what: str) -> None:
    two, three = (SOURCES[what].replace("NUMBER", number) for number in "23")
    assert declared(two) == declared("# further down\n\n" + two) != declared(three)


def test_an_identity_covers_functions_gradient_and_autocasts_policy() -> None:
    source = "def f(x):\n    return fg.exp(x)"
    others = [declared(source.replace("exp", "tanh")), declared(source, autocast="half")]
    others += [declared(source, lambda d, x: d), declared(source, lambda d, x: d * 2)]
    assert len({declared(source), *others}) == 5


def test_exported_programs_name_no_identity() -> None:
    class Block(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return fg.ops.gelu(x)

    for strict in (False, True):
        program = torch.export.export(Block(), (torch.ones(2),), strict=strict)
        (node,) = [node for node in program.graph.nodes if node.target is torch.ops.fusegen.gelu.default]
        assert "_identity" not in node.kwargs

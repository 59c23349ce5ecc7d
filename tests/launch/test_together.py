"""Kernels that are loaded before one is launched are compiled at once for the emulator: each as by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusegen as fg
from fusegen.core.errors import CompileError
from fusegen.generate.rendered import PREAMBLE, Rendered
from fusegen.launch.cache import Cache
from fusegen.launch.emulator import build as emulator
from fusegen.plan import targets
from fusegen.plan.targets import CpuTarget
from tests.support.emulated import Racing, launch

pytestmark = pytest.mark.cpu


def test_kernels_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each is found by itself later, and one that does not compile does not keep the others from it."""
    monkeypatch.setattr(targets, "default_cache", lambda: cache)
    cache = Cache(tmp_path / "cache")
    built: list[list[str]] = []
    original = emulator.build

    def build(source: str, entry: str, **how: Any) -> bytes:
        built.append([entry, *how.get("others", {})])
        return original(source, entry, **how)

    monkeypatch.setattr(emulator, "build", build)

    def rendered(entry: str, line: str) -> Rendered:
        text = f'extern "C" __global__ void {entry}(float* y) {{\n  {line}\n}}\n'
        return Rendered(PREAMBLE + text, entry, None, barriers=False)

    def results(kernels: Sequence[Rendered]) -> list[float]:
        target, found = CpuTarget(), []
        for loaded in [target.load(*pair, "", False) for kernel in kernels for pair in kernel.entries]:
            y = np.zeros(1, np.float32)
            launch(loaded.kernel, 1, 1, y)
            found.append(float(y[0]))
        return found

    one, two = rendered("one", "y[0] = 1;"), rendered("two", "y[0] = 2;")
    assert results([one, two, rendered("one", "y[0] = 3;")]) == [1, 2, 3]
    assert built == [["one", "two"], ["one"]]
    assert results([two]) == [2] and len(built) == 2
    with pytest.raises(CompileError, match=r"wrong\.cu:4: .*nowhere"):
        results([rendered("four", "y[0] = 4;"), rendered("wrong", "y[0] = nowhere;")])
    assert built[2:] == [["four", "wrong"], ["four"], ["wrong"]]


def test_steps_of_a_chain_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one before a product and the one behind it, when the first of them is launched."""
    cache, built = Cache(tmp_path / "cache"), list[list[str]]()
    monkeypatch.setattr(targets, "default_cache", lambda: cache)
    original = emulator.build

    def build(source: str, entry: str, **how: Any) -> bytes:
        built.append([entry, *how.get("others", {})])
        return original(source, entry, **how)

    monkeypatch.setattr(emulator, "build", build)
    # A number that no other test has: the kernels of others are loaded already.
    op = fg.op(lambda x, w, b: fg.tanh((x * 0.2718) @ w + b * 0.3141), name="two_steps")
    x, w, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32), np.ones(5, np.float32)
    np.testing.assert_allclose(op(x, w, b), np.tanh((x * np.float32(0.2718)) @ w + b * np.float32(0.3141)), rtol=1e-6)
    assert len(built) == 1 and len(built[0]) == 2


def test_reports_of_kernels_that_were_compiled_at_once_name_their_own_lines() -> None:
    kernels = [
        Rendered(
            f'{PREAMBLE}extern "C" __global__ void {name}(float* y) {{\n  y[threadIdx.x / 2] = threadIdx.x;\n}}\n',
            name, None, barriers=False,
        )
        for name in ("one", "two")
    ]  # fmt: skip
    target = Racing()
    for kernel, on_cpu in [(kernel, target.load(kernel, kernel.entry, "", False)) for kernel in kernels]:
        loaded = on_cpu.kernel
        with pytest.raises(CompileError, match=rf"{kernel.entry}\.cu:4(.|\n)*>    4 |   y\[threadIdx.x / 2\]"):
            launch(loaded, 1, 4, np.zeros(4, np.float32), mode=target.mode)

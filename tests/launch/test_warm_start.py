"""What a process that has done it all before does not do again: import, derive, print, collect garbage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusegen.core.collector import paused
from fusegen.launch.memo import remember

_CALL = """
import gc, sys, torch
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
{before}
import fusegen as fg
assert gc.isenabled() is {enabled}
print(len([generation for generation in collections if generation > 0]))
@fg.op
def blend(x, y, w):
    return x + w * (y - x)
tensors = [torch.ones(4, 5, requires_grad=True) for _ in range(3)]
blend(*tensors).sum().backward()
late = "sympy", "jinja2", "fusegen.fuse.products", "fusegen.matmul.views", "fusegen.launch.nvrtc_errors"
print([name for name in late if name in sys.modules])
"""


def _lines(before: str, enabled: bool) -> list[str]:
    environment = {**os.environ, "FUSEGEN_NATIVE": "0"}
    code = _CALL.format(before=before, enabled=enabled)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.splitlines()


@pytest.mark.cpu
@pytest.mark.parametrize(("before", "enabled"), [("", True), ("gc.disable()", False)])
def test_imports_little_and_collects_nothing(before: str, enabled: bool) -> None:
    _lines(before, enabled)  # fills the cache
    collections, late = _lines(before, enabled)
    assert late == "[]"
    # The one that follows the import may be of any generation; its start and end are two calls.
    assert int(collections) <= 2


def test_collector_goes_on_after_a_failure() -> None:
    import gc

    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), paused():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_first_derivation_collects_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gc

    monkeypatch.setenv("FUSEGEN_CACHE_DIR", str(tmp_path))
    assert remember("test", (str(tmp_path),), lambda: [str(gc.isenabled())]) == ["False"]
    assert gc.isenabled()

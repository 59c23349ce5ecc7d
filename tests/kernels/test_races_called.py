"""Races in ops that are called: on both call paths, and between the kernels of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen import pipeline
from fusegen.core.errors import CompileError
from fusegen.inspect.passes import passes
from fusegen.run import runner
from tests.support.emulated import Racing

pytestmark = pytest.mark.cpu
pytest_plugins = ("tests.support.call_paths",)

stored_if_large = fg.register_function(
    "stored_if_large", cuda="stored_if_large({0})", reference=lambda t, x: x,
    header="""__device__ __noinline__ float stored_if_large(float x) {
  FUSEGEN_SHARED(float, place, );
  if (x > 5.0f) place = x;
  return x;
}""",
)  # fmt: skip


@fg.op
def racing_if_large(x):  # type: ignore[no-untyped-def]
    return stored_if_large(x) + 1


@fg.op
def tall_sum(x):  # type: ignore[no-untyped-def]
    return fg.sum(x, 0)


@pytest.fixture
def racing(monkeypatch: pytest.MonkeyPatch) -> Racing:
    """Where ops run."""
    target = Racing()
    monkeypatch.setattr(runner, "target_of", lambda device: target)
    return target


def test_later_calls_report_races_as_the_first_one(racing: Racing, fresh: Callable[[Any], Any]) -> None:
    op, x = fresh(racing_if_large), torch.zeros(100)
    assert torch.equal(op(x), x + 1) and torch.equal(op(x), x + 1) and op.decided == 1
    with pytest.raises(CompileError) as caught:
        op(x + 10)
    text = str(caught.value)
    assert op.decided == 1
    assert "kernel racing_if_large_forward_f32, on the CPU emulator" in text
    assert "writes 4 bytes of shared memory, place + 0 at racing_if_large_forward_f32.cu:" in text
    assert "|   if (x > 5.0f) place = x;" in text
    assert torch.equal(op(x), x + 1)


def test_kernels_behind_others_are_launched_as_such(racing: Racing) -> None:
    (item,) = passes(tall_sum, (fg.TensorSpec(fg.float32, (65536, 64)),), {}, "forward")
    first, finish = (step.loaded for step in pipeline.build(item.op, item.layout, racing).steps)
    kernels = {loaded: loaded.kernel for loaded in (first, finish)}  # type: ignore[attr-defined]
    assert first.address == kernels[first].address(early=False)  # type: ignore[attr-defined]
    assert finish.address == kernels[finish].address(early=True)  # type: ignore[attr-defined]
    assert finish.address != kernels[finish].address(early=False)  # type: ignore[attr-defined]

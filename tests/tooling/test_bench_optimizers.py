"""tools/bench/optimizers.py: what it times, against which floor."""

from __future__ import annotations

import sys

import pytest
import torch

from tools.bench import optimizers


@pytest.mark.parametrize(("parameters", "tensors"), [(200_000, 60), (1_100_000_000, 300), (10, 1)])
def test_so_many_parameters_in_so_many_tensors(parameters: int, tensors: int) -> None:
    sizes = optimizers.shapes(parameters, tensors)
    assert len(sizes) == tensors and abs(sum(sizes) - parameters) < 8 * tensors + 3
    assert any(size % 8 for size in sizes)


def test_the_floor_counts_what_is_read_and_written() -> None:
    assert optimizers.floor_bytes("AdamW", 100, torch.bfloat16, False) == 1400
    assert optimizers.floor_bytes("AdamW", 100, torch.bfloat16, True) == 100 * (2 + 2 + 24)
    assert optimizers.floor_bytes("Lion", 100, torch.float32, False) == 2000


@pytest.mark.emulator
@pytest.mark.cpu
def test_a_table_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--kind", "SGD", "--parameters", "3000", "--tensors", "4", "--dtype", "float32", "--clip"]
    monkeypatch.setattr(sys, "argv", ["optimizers", *arguments])
    optimizers.main()
    text = capsys.readouterr().out
    assert "parameters of float32 in 4 tensors: floor" in text
    assert "| torch, fused |" in text and "clip_grad_norm_: floor" in text
    (apart,) = (line for line in text.splitlines() if line.startswith("largest difference from torch, foreach"))
    assert float(apart.split()[-1]) < 1e-6

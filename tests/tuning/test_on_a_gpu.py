"""Tuning with a real clock."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fusegen as fg
from fusegen.tuning import session
from fusegen.tuning.table import Table


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("rows", [4, 512])
def test_what_is_found_is_right_and_no_slower(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session.FILE_VARIABLE, str(tmp_path / "tuned.json"))
    x = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    cotangent = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
    with fg.tune(seconds=5) as found:
        out = fg.ops.softmax(x)
        (gradient,) = torch.autograd.grad(out, x, cotangent)
    expected = torch.softmax(x, -1)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, x, cotangent)[0])
    assert {entry.label for entry in found} == {"forward", "backward"}
    assert all(0 < entry.best <= entry.own and entry.gpu == torch.cuda.get_device_name() for entry in found)
    assert len(Table.read(tmp_path / "tuned.json").entries) == 2
    torch.testing.assert_close(fg.ops.softmax(x), expected)

"""How many processes the tests are spread over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import cores

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("there", "quota", "gigabytes", "processes"),
    [
        (2, {}, 64, 2), (1, {}, 64, 2), (6, {}, 64, 6), (64, {}, 640, 8), (16, {}, 14, 4), (16, {}, 1, 2),
        (16, {"cpu.max": "400000 100000\n"}, 64, 4), (16, {"cpu.max": "max 100000\n"}, 64, 8),
        (16, {"cpu/cpu.cfs_quota_us": "350000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64, 4),
        (16, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64, 8),
    ],
)  # fmt: skip
def test_a_process_for_each_core_that_may_be_used(
    there: int, quota: dict[str, str], gigabytes: int, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(there), raising=False)
    for name, text in quota.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    memory = tmp_path / "meminfo"
    memory.write_text(f"MemTotal:       999 kB\nMemAvailable:   {gigabytes << 20} kB\n")
    assert cores.processes(tmp_path, memory) == processes


def test_where_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.processes(tmp_path, tmp_path / "nothing") == 2


def test_make_asks_for_it() -> None:
    command = [sys.executable, str(ROOT / "tools" / "cores.py")]
    asked = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert 2 <= int(asked) <= 8
    own = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "WORKERS")}
    command = ["make", "-n", "test-plain"]
    planned = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=own).stdout
    assert f"-n {asked.strip()} --dist" in planned

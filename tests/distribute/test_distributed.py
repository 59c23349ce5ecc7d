"""DTensors, DDP and FSDP2 in several processes: the cases of tests/support/distributed_*.py, all in one go."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / "tests" / "support" / f"distributed_{name}.py" for name in ("cases", "models")]
CASES = [
    found for path in SOURCES for found in re.findall(r"@case\((\d)\)\ndef (\w+)", path.read_text(encoding="utf-8"))
]
LIMIT = 200.0


@pytest.mark.timeout(LIMIT + 60)
def test_in_several_processes(tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    worlds = sorted({world for world, _ in CASES})
    log = run(worlds, tmp_path)
    for world in worlds:
        wanted = dict.fromkeys((name for count, name in CASES if count == world), "passed")
        for rank in range(int(world)):
            path = tmp_path / f"{world}.{rank}.txt"
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            found = dict(entry.split("\0") for entry in text.split("\1") if entry)
            failed = "\n".join(f"{name}: {outcome}" for name, outcome in found.items() if outcome != "passed")
            assert found == wanted, f"process {rank} of {world}:\n{failed}\n{log}"


def run(worlds: list[str], folder: Path) -> str:
    """Run all cases; the end of what the processes print. One whose case fails ends, and with it the others."""
    # Loopback: gloo would look up the machine's name, which has no address everywhere.
    environment = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    environment |= {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.support.distributed_run", str(folder), *worlds]
    path = folder / "log"
    with open(path, "wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: it and its forks
            process.wait()
    text = path.read_text(encoding="utf-8", errors="replace")
    print(text)
    return text[-6000:]

"""How many test processes `make test` starts: one for each core that it may use, and has memory for.

python tools/cores.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

# Fewer are no help: two cores are what the tests are made for. More would each make for themselves what tests share.
LEAST, MOST = 2, 8
# What a process grows to, with torch, sympy and all tests in it, and the compilers that it starts.
GIGABYTES_EACH = 3
# What a container may use, in microseconds of a core each so many: of Linux' second and first kind of control groups.
QUOTAS = (("cpu.max", ""), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))


def processes(groups: Path = Path("/sys/fs/cgroup"), memory: Path = Path("/proc/meminfo")) -> int:
    """The number; where the system does not say what there is, it is not asked."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or LEAST)
    for files in QUOTAS:
        numbers = re.findall(r"-?\d+", " ".join(_text(groups / file) for file in files if file))
        if len(numbers) == 2 and int(numbers[0]) > 0 and int(numbers[1]) > 0:
            cores = min(cores, int(numbers[0]) / int(numbers[1]))
    found = re.search(r"MemAvailable: *(\d+) kB", _text(memory))
    room = int(found[1]) // (GIGABYTES_EACH << 20) if found else MOST
    return max(LEAST, min(round(cores), room, MOST))


def _text(file: Path) -> str:
    return file.read_text(encoding="ascii") if file.is_file() else ""


if __name__ == "__main__":
    print(processes())

"""What is left out where time is short (tests/conftest.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, deadline: float) -> str:
    """What pytest says of some of our tests."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**own, "FUSEGEN_TEST_DEADLINE": str(deadline)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", ["0", "1"])
def test_no_test_begins_behind_the_deadline(workers: str) -> None:
    some = ("tests/core/test_intervals.py", "-n", workers)
    late, early = run(*some, deadline=0), run(*some, deadline=time.time() + 3600)
    skipped, passed = re.search(r"^(\d+) skipped in", late, re.M), re.search(r"^(\d+) passed in", early, re.M)
    assert skipped and passed and int(skipped[1]) == int(passed[1]) > 0
    assert f"SKIPPED [{skipped[1]}] " in late and "FUSEGEN_TEST_DEADLINE has passed" in late


def test_random_programs_come_last() -> None:
    listed = run("tests/derive/test_programs.py", "tests/core", "--collect-only", deadline=0)
    names = [line.partition("[")[0] for line in listed.splitlines() if "::" in line]
    found = ["test_programs.py::test_in_every_mode" in name for name in names]
    assert sum(found) == 25
    assert not any("tests/core" in name for name in names[found.index(True) :])

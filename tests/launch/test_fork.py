"""A child that is forked while other threads of fusegen's hold what it needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fusegen.core.locks import cached_property

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# The child traces, derives, compiles, launches and registers an op; it dies of its alarm if it waits.
HELD = """
import os, signal, threading
import torch
import fusegen as fg
from fusegen.core import locks

@fg.op
def known(x):
    return fg.tanh(x)

x = torch.ones(3)
known(x), known.overload(x)
held, enough = threading.Event(), threading.Event()

def hold():
    for lock in list(locks._locks):
        lock.acquire()
    held.set()
    enough.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    new = fg.op(lambda x: fg.sum(fg.exp(x) * 2.0, -1), name="new")
    leaf = torch.zeros(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(new(leaf), leaf)
    again = new.overload(x)(torch.zeros(3))
    os._exit(0 if gradient.tolist() == [2.0] * 3 and again == 6 and known(x).shape == x.shape else 1)
print(os.waitpid(child, 0)[1], len(locks._locks))
enough.set()
thread.join()
"""


@pytest.mark.cpu
@pytest.mark.timeout(120)
def test_a_fork_while_another_thread_holds_every_lock() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    status, count = map(int, done.stdout.split())
    assert status == 0 and count >= 5


COMPUTING = """
import os, signal, threading
from fusegen.core.locks import cached_property

class Thing:
    def __init__(self, slow):
        self.slow = slow

    @cached_property
    def value(self):
        if self.slow:
            begun.set()
            enough.wait()
        return 7

begun, enough = threading.Event(), threading.Event()
thread = threading.Thread(target=lambda: Thing(True).value)
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(Thing(False).value)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
enough.set()
thread.join()
"""


@pytest.mark.timeout(60)
def test_a_fork_while_another_thread_computes_a_property() -> None:
    done = subprocess.run([sys.executable, "-c", COMPUTING], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "7\n"


def test_a_property_is_computed_once() -> None:
    class Thing:
        made = 0

        @cached_property
        def nothing(self) -> None:
            """What it is."""
            Thing.made += 1

    thing = Thing()
    assert thing.nothing is None and thing.nothing is None
    assert Thing.made == 1 and Thing.nothing.__doc__ == "What it is."


def test_nobody_makes_locks_that_stay_held() -> None:
    theirs = re.compile(
        r"threading(\.| import .*)\b(R?Lock|Condition|Semaphore|Event)|functools(\.| import .*)cached_property"
    )
    paths = sorted(path for folder in ("fusegen", "nn", "ops") for path in (ROOT / folder).rglob("*.py"))
    found = [f"{path.name}: {line}" for path in paths for line in path.read_text(encoding="utf-8").splitlines()
             if theirs.search(line) and path.name != "locks.py"]  # fmt: skip
    assert found == []

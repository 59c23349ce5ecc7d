"""How the native call path is built: by a process of its own, of the texts that it is given, and not for ever in vain.

The process that wants the module (native/module.py) says all that there is to know in a ``Job``; the one that builds it
imports nothing of fusegen but this and what stores it, and nothing from the current folder or ``PYTHONPATH``. A build
that failed is remembered for all processes, with a time from which on it is tried again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fusegen.core.errors import FusegenError
from fusegen.core.sources import PACKAGE
from fusegen.launch.cache import Cache
from fusegen.launch.checksummed import digest
from fusegen.launch.emulator.build import run_compiler
from fusegen.launch.emulator.precompiled import folder_with

MODULE = "module.so"
MOST_SECONDS = 1800.0  # for a build, and for somebody else's
MINUTE, DAY = 60.0, 86400.0
INTERRUPTED = "its build was interrupted"
# What stands in messages of compilers and linkers that would have done it another time.
_PASSING = (
    "killed", "terminated", "no space left", "quota exceeded", "out of memory", "cannot allocate", "memory exhausted",
    "resource temporarily", "too many open files", "input/output error", "stale file handle", "internal compiler error",
    "text file busy", "timed out",
)  # fmt: skip
_REASON_LETTERS = 400

# Run isolated: no current folder, no PYTHONPATH, no user's site. Nor any site, so the folder of fusegen is an argument.
_BEGIN = """
import sys, types
front = sys.modules["fusegen"] = types.ModuleType("fusegen")
front.__path__ = [sys.argv[1]]
from fusegen.native.build import main
main()
"""


@dataclass(frozen=True)
class Job:
    """A module to build.

    Args:
        key: what it will be called in the cache.
        command: the compiler and all its options; it writes ``MODULE``.
        sources: text by file name, which the command finds in the current folder.
        marks: time and size of files that ``key`` speaks of, by path: the module is theirs only if they have stayed so.
    """

    key: str
    command: tuple[str, ...]
    sources: Mapping[str, str]
    marks: Mapping[str, tuple[int, int]]

    @property
    def lock(self) -> str:
        """What a process has while it builds the module."""
        return f"native-{self.key[:16]}"

    @property
    def failure_key(self) -> str:
        """What its failure is called in the cache. Headers that were missing and now are there make it another."""
        folders = [part.removeprefix("-I") for part in self.command if part.startswith("-I")]
        return digest("native failure", self.key, [os.path.exists(f"{folder}/Python.h") for folder in folders])


def marks_of(*files: Path) -> dict[str, tuple[int, int]]:
    """Time and size of those files that exist."""
    found = {str(file): file.stat() for file in files if file.exists()}
    return {name: (about.st_mtime_ns, about.st_size) for name, about in found.items()}


@dataclass(frozen=True)
class Failure:
    """Why there is no module, and since when.

    Args:
        passing: the next try may end otherwise, although nobody has changed anything.
        begun: a try has begun of which nobody has said how it ended.
    """

    reason: str
    tries: int
    at: float
    passing: bool
    begun: bool = False

    @classmethod
    def read(cls, cache: Cache, job: Job) -> Failure | None:
        """What is known of the last try; None if there was none or it succeeded."""
        stored = cache.current(job.failure_key)
        return cls(**json.loads(stored)) if stored else None

    def store(self, cache: Cache, job: Job) -> None:
        cache.put(job.failure_key, json.dumps(asdict(self)).encode())

    @property
    def due(self) -> float:
        """From when on it is tried again. A passing reason: at once, then ever later, in the end once a day."""
        wait = 0.0 if self.tries < 2 else MINUTE * 10.0 ** min(self.tries - 2, 9)
        return self.at + (min(wait, DAY) if self.passing else DAY)

    def is_due(self) -> bool:
        """Whether to try again; also where it is said to have been tomorrow, by another clock."""
        return not self.at - DAY <= time.time() < self.due

    def __str__(self) -> str:
        ago, left = time.time() - self.at, self.due - time.time()
        count = f"{self.tries} times, the last" if self.tries > 1 else "once,"
        when = "by the next process" if self.is_due() else f"in {_minutes(left)}"
        return f"{self.reason} (tried {count} {_minutes(ago)} ago; will be again {when})"


def _minutes(seconds: float) -> str:
    minutes = max(round(seconds / MINUTE), 1)
    return f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"


def build(job: Job, cache: Cache, *, again: bool = False) -> None:
    """Compile the module and put it into the cache, or the reason why that is impossible. One process at a time, of
    those that want this module.

    Args:
        again: also where it is not yet time to try again.
    """
    with cache.alone(job.lock, MOST_SECONDS):
        if cache.current(job.key) is not None:
            return
        before = Failure.read(cache, job)
        if before and not again and not before.is_due():
            if before.begun:  # by somebody who is not there any more
                replace(before, begun=False).store(cache, job)
            return
        now = Failure(INTERRUPTED, before.tries + 1 if before else 1, time.time(), passing=True, begun=True)
        now.store(cache, job)
        made, reason, passing = _compiled(job)
        if made is None:
            replace(now, reason=reason[:_REASON_LETTERS], passing=passing, begun=False).store(cache, job)
        else:
            cache.put(job.key, made)
            cache.put(job.failure_key, b"")


def _compiled(job: Job) -> tuple[bytes | None, str, bool]:
    """The module, or None, why, and whether that may pass."""
    try:
        with folder_with(job.sources) as folder:
            done = run_compiler(job.command, folder, MOST_SECONDS)
            if done.returncode == 0:
                if marks_of(*map(Path, job.marks)) != dict(job.marks):
                    return None, "torch was changed while it was built", True
                return Path(folder, MODULE).read_bytes(), "", False
    except (FusegenError, subprocess.TimeoutExpired) as error:
        return None, getattr(error, "given", "") or str(error), True
    lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    lines = lines or done.stderr.splitlines()[-1:] or [f"the compiler ended with {done.returncode}"]
    passing = done.returncode < 0 or any(word in done.stderr.lower() for word in _PASSING)
    return None, lines[0].strip(), passing


def build_elsewhere(job: Job, cache: Cache) -> None:
    """Build in a process of its own, which goes on when this one ends; returns when it is done, or after very long."""
    with tempfile.TemporaryFile() as job_file, tempfile.TemporaryFile() as errors:
        # All of it lies there before the process starts: this one may end at any time.
        job_file.write(json.dumps({**asdict(job), "folder": str(cache.folder), "limit": cache.limit_bytes}).encode())
        job_file.seek(0)
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BEGIN, PACKAGE],
            stdin=job_file, stdout=subprocess.DEVNULL, stderr=errors, cwd=os.sep,
            start_new_session=True, env=environment,
        )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            if process.wait(2 * MOST_SECONDS):
                errors.seek(0)
                lines = errors.read().decode(errors="replace").splitlines() or [f"exit status {process.returncode}"]
                _not_ended(job, cache, f"the process that builds it failed: {lines[-1]}"[:_REASON_LETTERS])


def _not_ended(job: Job, cache: Cache, reason: str) -> None:
    """Record the failure of a process that could not record it."""
    before = Failure.read(cache, job)
    if before is None or not before.begun:
        tries = before.tries + 1 if before else 1
        Failure(reason, tries, time.time(), passing=True).store(cache, job)
    else:
        replace(before, reason=reason, begun=False).store(cache, job)


def main() -> None:
    """Build the job that standard input holds."""
    if hasattr(os, "nice"):
        os.nice(10)
    fields: dict[str, Any] = json.load(sys.stdin)
    cache = Cache(Path(fields.pop("folder")), limit_bytes=fields.pop("limit"))
    marks = {name: (when, size) for name, (when, size) in fields.pop("marks").items()}
    build(Job(command=tuple(fields.pop("command")), marks=marks, **fields), cache)

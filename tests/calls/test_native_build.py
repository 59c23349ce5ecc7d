"""How the native call path is built: of what, beside whom, and how often where it fails. By a compiler that is a shell
script, since what it makes does not matter here."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core import sources
from fusegen.launch.cache import Cache, default_cache
from fusegen.native import build as native_build
from fusegen.native import module as native
from fusegen.native.build import DAY, INTERRUPTED, MINUTE, Failure
from tests.support.call_paths import is_native
from tests.support.declarations import lerp

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(os.name != "posix", reason="shell scripts")]

WAYS = {
    "works": "cat fusegen_native.cpp > module.so",
    "fails": "echo 'x.cpp:1:2: fatal error: Python.h: No such file or directory' >&2; exit 1",
    "fails at length": f"echo 'error: {'é' * 2000}' >&2; exit 1",
    "linker is killed": "echo 'collect2: fatal error: ld terminated with signal 9 [Killed]' >&2; exit 1",
    "disk is full": "echo 'fatal error: error writing to module.o: No space left on device' >&2; exit 1",
    "is killed": "kill -9 $$",
    "is interrupted": "kill -9 $PPID; sleep 1",  # the process that builds
}


class Builder:
    """Processes that want the module, one after the other, with a cache of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.program, self.ran = folder, folder / "compiler", folder / "ran"
        self.recipe = native.Recipe("0" * 64, (str(folder / "include"),), str(folder / "torch" / "lib"), native.FLAGS)
        (folder / "torch" / "lib").mkdir(parents=True)
        (folder / "torch" / "version.py").write_text("2.0")

    def way(self, name: str) -> None:
        """How the compiler goes from now on."""
        self.program.write_text(f"#!/bin/sh\necho >> {self.ran}\n{WAYS.get(name, name)}\n")
        self.program.chmod(0o755)

    @property
    def runs(self) -> int:
        return len(self.ran.read_text().splitlines()) if self.ran.exists() else 0

    def sought(self, way: str = "works") -> Any:
        """What another process knows after it has looked for the module."""
        self.way(way)
        state = native._State()
        state.seek()
        return state

    def failure(self) -> Failure | None:
        return Failure.read(default_cache(), native.job(self.recipe))

    def wait(self, seconds: float) -> None:
        """As if so much time had passed."""
        failure = self.failure()
        assert failure is not None
        replace(failure, at=failure.at - seconds).store(default_cache(), native.job(self.recipe))


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    found = Builder(tmp_path)
    monkeypatch.setenv("FUSEGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(native.VARIABLE, "wait")
    monkeypatch.setattr(native, "recipe", lambda: found.recipe)
    real = native.job

    def job(wanted: native.Recipe) -> native.Job:  # kernels are compiled by the real one
        asked = real(wanted)
        return replace(asked, command=(str(found.program), *asked.command[1:]))

    monkeypatch.setattr(native, "job", job)
    return found


def test_it_is_built_of_what_the_key_names(builder: Builder) -> None:
    """By another process, which reads no file of fusegen's for it."""
    job = native.job(builder.recipe)
    assert dict(job.sources) == {name: sources.text(f"native/{name}") for name in native.SOURCES}
    builder.way("works")
    old = {**job.sources, "fusegen_native.cpp": "// as it was when this process imported fusegen"}
    native_build.build_elsewhere(replace(job, sources=old), default_cache())
    assert default_cache().current(builder.recipe.key) == old["fusegen_native.cpp"].encode()


def test_it_is_not_built_of_another_torch(builder: Builder) -> None:
    """One that was installed after the key was made, or while the compiler ran."""
    builder.way("works")
    job = native.job(builder.recipe)
    assert list(job.marks) == [str(builder.folder / "torch" / "version.py")]
    (builder.folder / "torch" / "version.py").write_text("2.0.1")
    native_build.build_elsewhere(job, default_cache())
    failure = builder.failure()
    assert default_cache().current(builder.recipe.key) is None
    assert failure is not None and failure.passing and "torch was changed while it was built" in failure.reason
    assert builder.sought().key  # with the marks of now


def test_a_hostile_current_folder(builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is imported from where Python was started, nor from where ``PYTHONPATH`` says."""
    for name in ("json", "random", "tempfile", "subprocess", "hashlib", "fusegen", "platformdirs", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\nraise OSError"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}")
    state = builder.sought()
    assert not (tmp_path / "imported").exists() and state.key and not state.problem


def test_a_failure_for_good_is_tried_again_once_a_day(builder: Builder) -> None:
    for _ in range(3):
        state = builder.sought("fails")
        assert not state.key and "Python.h: No such file" in state.problem and builder.runs == 1
    builder.wait(DAY - MINUTE)
    assert not builder.sought().key and builder.runs == 1
    builder.wait(2 * MINUTE)
    assert builder.sought().key == builder.recipe.key and builder.runs == 2
    assert builder.failure() is None


def test_headers_that_have_come_since_are_reason_enough(builder: Builder) -> None:
    assert not builder.sought("fails").key
    (builder.folder / "include").mkdir()
    (builder.folder / "include" / "Python.h").touch()
    assert builder.sought().key and builder.runs == 2


@pytest.mark.parametrize("way", ["linker is killed", "disk is full", "is killed", "is interrupted"])
def test_a_failure_that_may_pass_is_tried_again_at_once(builder: Builder, way: str) -> None:
    state = builder.sought(way)
    failure = builder.failure()
    assert not state.key and state.problem and failure is not None and failure.passing and not failure.begun
    assert builder.sought().key and builder.runs == 2 and builder.failure() is None


def test_tries_become_rare(builder: Builder) -> None:
    """However often it fails for a reason that may pass: in the end once a day."""
    waits = [0.0, MINUTE, 10 * MINUTE, 100 * MINUTE, 1000 * MINUTE, DAY, DAY, DAY]
    for tries, wait in enumerate(waits, 1):
        assert not builder.sought("linker is killed").key and builder.runs == tries
        if wait:
            builder.wait(wait - MINUTE / 2)
            state = builder.sought()
            assert "ld terminated with signal 9" in state.problem and f"tried {tries} times" in state.problem
            assert not state.key and builder.runs == tries
            builder.wait(MINUTE / 2)
    assert builder.sought().key


def test_a_clock_that_goes_wrong_does_not_stop_it(builder: Builder) -> None:
    builder.sought("fails")
    builder.wait(-400 * DAY)
    assert builder.sought().key


def test_a_process_that_was_ended_while_it_built(builder: Builder) -> None:
    """Nobody was there to say so: neither who built nor who asked for it."""
    job = native.job(builder.recipe)
    begun = Failure(INTERRUPTED, 2, time.time(), passing=True, begun=True)
    begun.store(default_cache(), job)
    state = builder.sought()
    assert not state.key and INTERRUPTED in state.problem and builder.runs == 0
    assert builder.failure() == replace(begun, begun=False)
    builder.wait(2 * MINUTE)
    assert builder.sought().key and builder.runs == 1


def test_a_process_waits_for_another_that_builds(builder: Builder) -> None:
    job = native.job(builder.recipe)
    Failure(INTERRUPTED, 1, time.time(), passing=True, begun=True).store(default_cache(), job)
    found = []
    with default_cache().alone(job.lock, 0.0) as has_it:
        assert has_it
        thread = threading.Thread(target=lambda: found.append(builder.sought()))
        thread.start()
        thread.join(1.0)
        assert thread.is_alive()
        default_cache().put(builder.recipe.key, b"by the other")
    thread.join()
    assert found[0].key and builder.runs == 0


def test_it_is_tried_now_where_the_user_says_so(builder: Builder) -> None:
    builder.sought("fails")
    builder.way("works")
    native.build(builder.recipe)
    assert builder.runs == 1
    native.build(builder.recipe, again=True)
    assert builder.runs == 2 and builder.sought().key


def test_reasons_are_cut_between_letters(builder: Builder) -> None:
    state = builder.sought("fails at length")
    assert "\ufffd" not in state.problem and "é" * 300 in state.problem and len(state.problem) < 600


@pytest.mark.parametrize("what", ["sys.executable", "PACKAGE"])
def test_a_builder_that_does_not_start(builder: Builder, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"fusegen.native.build.{what}", str(builder.folder / "nothing"))
    state = builder.sought()
    assert not state.key and ("nothing" in state.problem or "No module named" in state.problem)
    monkeypatch.undo()


def test_no_folder_to_keep_it_in(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    (builder.folder / "cache").mkdir()
    (builder.folder / "cache").chmod(0o777)
    state = builder.sought()
    assert "no folder to keep it in" in state.problem and "FUSEGEN_CACHE_DIR" in state.advice and builder.runs == 0


def test_calls_that_are_slow_say_so_once(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    builder.way("fails")
    monkeypatch.setattr(native, "state", native._State())
    known = fg.FusedOp(lerp.declaration)
    x = torch.ones(3)
    with pytest.warns(fg.FusegenWarning) as told:
        for _ in range(3):
            assert known(x, x, 0.5).tolist() == [1] * 3
        known(torch.ones(4), torch.ones(4), 0.5)
    (one,) = told
    for part in (
        "calls take the slow path, through Python",
        "Python.h: No such file",
        "python3-dev",
        "FUSEGEN_NATIVE=0",
    ):
        assert part in str(one.message)
    assert one.filename == __file__ and not is_native(known)
    with pytest.raises(fg.CompileError, match=r"Python\.h(.|\n)*calls take the Python path(.|\n)*doctor --build"):
        native.report()


def test_calls_of_old_plans_say_so_too(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's build may fail long after the first call, and no call takes the slow path after it."""
    state = native._State()
    state.asked = True
    monkeypatch.setattr(native, "state", state)
    known = fg.FusedOp(lerp.declaration)
    x = torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known(x, x, 0.5)
        known(x, x, 0.5)
    state.problem = "its build failed"
    with pytest.warns(fg.FusegenWarning, match="its build failed"):
        known(x, x, 0.5)


def test_who_does_without_is_told_nothing(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    builder.way("fails")
    monkeypatch.setenv(native.VARIABLE, "0")
    monkeypatch.setattr(native, "state", native._State())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fg.FusedOp(lerp.declaration)(torch.ones(3), torch.ones(3), 0.5)
    assert "off" in native.report() and builder.runs == 0


def test_what_is_stored_is_read_again(builder: Builder) -> None:
    failure, job = Failure("why", 3, 5.0, passing=True), native.job(builder.recipe)
    assert Failure.read(default_cache(), job) is None
    failure.store(default_cache(), job)
    assert Failure.read(Cache(default_cache().folder), job) == failure
    stored: Mapping[str, Any] = json.loads(default_cache().current(job.failure_key) or b"")
    assert stored["reason"] == "why"

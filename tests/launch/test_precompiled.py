"""What emulated kernels share: made once, used by all, and never the reason for another result."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fusegen.core.errors import CompileError
from fusegen.launch.cache import default_cache
from fusegen.launch.emulator import build as emulator
from fusegen.launch.emulator import precompiled
from tests.support.emulated import HEADERS

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not emulator._is_gcc(), reason="only GCC knows .gch files"),
]

SOURCE = """#include "fusegen.cuh"
extern "C" __global__ void k(float* y) { y[threadIdx.x] = fg::block_sum<64>(float(threadIdx.x)); }
"""


class Compiler:
    """Counts what is compiled, and sees whether GCC took the precompiled header."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, command: Sequence[str], folder: str | None = None) -> subprocess.CompletedProcess[str]:
        done = original_run([*command, "-H"], folder)
        if "c++-header" in command:
            self.made.append("header")
        elif any(part.endswith(precompiled.RUNTIME) for part in command):
            self.made.append("runtime")
        elif "kernel.o" in command and "-c" not in command:
            self.made.append("link")
        else:
            # -H marks a precompiled header that is used by "!", one that is not by "x".
            took = any(line.startswith("! ") for line in done.stderr.splitlines())
            self.made.append("kernel with header" if took else "kernel")
        return done


original_run = emulator.run_compiler


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    """A process that has compiled nothing yet, and a cache folder of its own."""
    emulator.compiler_identity()
    found = Compiler()
    monkeypatch.setattr(emulator, "run_compiler", found)
    monkeypatch.setenv("FUSEGEN_CACHE_DIR", str(tmp_path / "cache"))
    as_another_process(monkeypatch)
    return found


def as_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_runtimes", "_headers", "_asked"):
        monkeypatch.setattr(precompiled, name, type(getattr(precompiled, name))())


def build(source: str = SOURCE, headers: Mapping[str, str] = HEADERS, cluster: int = 1) -> bytes:
    return emulator.build(source, "k", headers=headers, barriers=True, cluster=cluster)


def test_it_is_made_once_and_changes_no_byte(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = [build() for _ in range(4)]
    kernels = ["kernel", "kernel", "header", "kernel with header", "kernel with header"]
    assert compiler.made == ["runtime", *kernels]
    as_another_process(monkeypatch)
    libraries.append(build())
    assert compiler.made == ["runtime", *kernels, "kernel with header"]
    assert len(set(libraries)) == 1


def test_a_changed_header_is_another_one(compiler: Compiler) -> None:
    for _ in range(precompiled.KERNELS_BEFORE_HEADER):
        build()
    assert compiler.made[-1] == "kernel with header"
    headers = {**HEADERS, "fusegen.cuh": HEADERS["fusegen.cuh"] + "\nFG_DEVICE int added() { return 1; }"}
    build(SOURCE.replace("{ y", "{ fg::added(); y").replace("fg::added", "added"), headers)
    assert compiler.made[-2:] == ["runtime", "kernel"]


def test_clusters_and_instrumented_kernels_have_their_own(compiler: Compiler) -> None:
    for _ in range(precompiled.KERNELS_BEFORE_HEADER):
        build()
    build(SOURCE.replace("void k", "FUSEGEN_CLUSTER(2) void k"), cluster=2)
    assert compiler.made[-2:] == ["runtime", "kernel"]
    emulator.build(SOURCE, "k", headers=HEADERS, barriers=True, sanitize=True)
    assert compiler.made[-2:] == ["runtime", "kernel"]
    for _ in range(precompiled.KERNELS_BEFORE_HEADER):
        emulator.build(SOURCE, "k", headers=HEADERS, barriers=True, races=True)
    assert compiler.made[-8:] == ["runtime", *["kernel", "link"] * 2, "header", "kernel with header", "link"]


@pytest.mark.parametrize("damage", ["empty", "other", "cut"])
def test_a_damaged_header_is_left_alone(
    compiler: Compiler, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = [build() for _ in range(precompiled.KERNELS_BEFORE_HEADER)]
    (whole,) = precompiled._headers.values()
    damaged = tmp_path / "damaged"
    damaged.write_bytes({"empty": b"", "other": b"no header", "cut": whole.read_bytes()[:100_000]}[damage])
    monkeypatch.setattr(precompiled, "header", lambda *_: damaged)
    assert build() == libraries[0]
    assert compiler.made[-1] == "kernel"


def test_a_header_that_another_process_evicts_is_not_missed(compiler: Compiler) -> None:
    libraries = [build() for _ in range(precompiled.KERNELS_BEFORE_HEADER)]
    default_cache().clear()
    assert build() == libraries[0]
    assert compiler.made[-2:] == ["header", "kernel with header"]  # the next kernels have it again


def test_without_a_cache_no_header_is_made(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_CACHE_LIMIT_MB", "0")
    for _ in range(precompiled.KERNELS_BEFORE_HEADER):
        build()
    assert compiler.made == ["runtime", "kernel", "kernel", "kernel"]


def test_a_runtime_that_does_not_compile_says_so(compiler: Compiler) -> None:
    with pytest.raises(CompileError, match=r"no_such_header\.h(.|\n)*install them"):
        build(headers={**HEADERS, precompiled.RUNTIME: "#include <no_such_header.h>\n"})


def test_without_a_temporary_folder(compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(CompileError, match=r"nowhere(.|\n)*set TMPDIR"):
        build()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_compiler_that_does_not_start(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there can be no more processes, or there is no memory for one."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(CompileError, match=f"does not start: .*{os.strerror(number)}(.|\n)*ulimit -u"):
        emulator.run_compiler([emulator.compiler(), "--version"])

"""A compiler that stays: the same kernels and the same words as without, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from fusegen.core.errors import CompileError
from fusegen.launch.emulator import build as emulator
from fusegen.launch.emulator import compile_server
from fusegen.launch.emulator.compile_server import CompileServer
from fusegen.launch.emulator.kernel import EmulatedKernel
from tests.support.emulated import HEADERS, launch

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(sys.platform != "linux" or not emulator._is_gcc(), reason="a server is GCC's, on Linux"),
]

ROOT = Path(__file__).resolve().parents[2]
RACE = "FUSEGEN_SHARED(int, tile, [64]);\ntile[threadIdx.x] = 1;\ny[threadIdx.x] = tile[63 - threadIdx.x];"


def source(body: str) -> str:
    return f'#include "fusegen.cuh"\nextern "C" __global__ void k(float* y) {{\n{body}\n}}\n'


def build(body: str, *, races: bool = False, cluster: int = 1) -> bytes:
    return emulator.build(source(body), "k", headers=HEADERS, barriers=True, races=races, cluster=cluster)


def run(library: bytes, folder: Path) -> float:
    path = folder / f"{len(list(folder.iterdir()))}.so"
    path.write_bytes(library)
    y = np.zeros(64, np.float32)
    launch(EmulatedKernel(path, "k"), 1, 64, y)
    return float(y.sum())


class Driver:
    """Counts the commands of the driver's that make a library."""

    def __init__(self) -> None:
        self.kernels = 0

    def __call__(
        self, command: Sequence[str], folder: str | None = None, seconds: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        self.kernels += "k.cu" in command
        return run_compiler(command, folder, seconds)


run_compiler = emulator.run_compiler


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A process that has compiled so many kernels that the next one has a server, which ends with the test."""
    for cluster in (1, 2):
        build("y[0] = 1.0f;", cluster=cluster)
    found = Driver()
    monkeypatch.setattr(emulator, "run_compiler", found)
    monkeypatch.setattr(compile_server, "_asked", type(compile_server._asked)())
    servers: dict[compile_server.Recipe, CompileServer] = {}
    monkeypatch.setattr(compile_server, "_servers", servers)
    monkeypatch.setattr(compile_server, "KERNELS_BEFORE_SERVER", 1)
    monkeypatch.setattr(emulator.precompiled, "KERNELS_BEFORE_HEADER", 1)
    yield found
    for server in servers.values():
        server.end()


def the_server() -> CompileServer:
    (found,) = compile_server._servers.values()
    return found


def test_kernels_are_those_of_the_driver(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = range(1, 5)
    found = [build(f"y[threadIdx.x] = {n}.0f * threadIdx.x;") for n in numbers]
    assert driver.kernels == 0 and the_server().is_alive
    assert [run(library, tmp_path) for library in found] == [n * 2016.0 for n in numbers]
    monkeypatch.setattr(compile_server, "build", lambda *_: None)
    assert [build(f"y[threadIdx.x] = {n}.0f * threadIdx.x;") for n in numbers] == found
    assert driver.kernels == len(numbers)


def test_functions_of_the_header_are_those_of_the_driver(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are templates, and calls of others: what the server has instantiated before it saw the kernel."""
    text = (
        "const float x = float(threadIdx.x);\nfg::Vec<float, 2> v = {};\nv[0] = fg::sin(x), v[1] = fg::digamma(x);\n"
        "y[threadIdx.x] = fg::block_sum<64>(v[0] + v[1]) + fg::maximum(x, 3.0f) + fg::remainder(x, 5.0f);"
    )
    symbols, sums = list[list[str]](), list[float]()
    for _ in ("server", "driver"):
        library = build(text)
        path = tmp_path / f"{len(symbols)}.library"
        path.write_bytes(library)
        listed = run_compiler(["nm", "--print-size", "--demangle", str(path)]).stdout.splitlines()
        symbols.append(sorted(line.split(maxsplit=1)[1] for line in listed if line[0] == "0"))
        sums.append(run(library, tmp_path))
        monkeypatch.setattr(compile_server, "build", lambda *_: None)
    assert driver.kernels == 1
    assert sums[0] == sums[1] and symbols[0] == symbols[1] and len(symbols[0]) > 50, symbols


def test_what_is_rejected_is_told_as_by_the_driver(driver: Driver) -> None:
    build("y[0] = 1.0f;")
    with pytest.raises(CompileError, match=r"(?s)k\.cu:3: .*nothing.*was not declared.*>    3 \| y\[0\] = nothing;"):
        build("y[0] = nothing;")
    assert driver.kernels == 2 and the_server().is_alive  # with the precompiled header, and without
    build("y[0] = 2.0f;")
    assert driver.kernels == 2


def test_a_race_is_told_with_its_lines(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for name in ("server", "driver"):
        (tmp_path / name).mkdir()
        with pytest.raises(CompileError) as caught:
            run(build(RACE, races=True), tmp_path / name)
        told.append(str(caught.value))
        monkeypatch.setattr(compile_server, "build", lambda *_: None)
    assert driver.kernels == 1 and told[0] == told[1] and "k.cu:5" in told[0], told


def test_one_that_has_ended_is_not_missed(driver: Driver, tmp_path: Path) -> None:
    build("y[0] = 1.0f;")
    server = the_server()
    server.process.kill()
    server.process.wait()
    assert run(build("y[0] = 2.0f;"), tmp_path) == 2
    assert driver.kernels == 1 and not server.is_alive and not server.folder.exists()
    build("y[0] = 3.0f;")
    assert driver.kernels == 2


def test_one_whose_folder_has_gone_is_not_missed(driver: Driver, tmp_path: Path) -> None:
    build("y[0] = 1.0f;")
    compile_server._removed(os.getpid(), str(the_server().folder))
    assert run(build("y[0] = 2.0f;"), tmp_path) == 2
    assert driver.kernels == 1


def test_one_that_cannot_be_started(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_server, "_KERNEL", "another.cu")  # as where it is not loaded: it waits for nothing
    assert run(build("y[0] = 2.0f;"), tmp_path) == 2
    assert driver.kernels == 1


def test_each_size_of_clusters_has_one_up_to_a_number(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_server, "MOST_SERVERS", 1)
    build("y[0] = 1.0f;")
    first = the_server()
    build("y[0] = 1.0f;", cluster=2)
    assert driver.kernels == 0
    assert the_server() is not first and the_server().is_alive and not first.is_alive and not first.folder.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_it_alone(driver: Driver, tmp_path: Path) -> None:
    build("y[0] = 1.0f;")
    server = the_server()
    child = os.fork()
    if child == 0:
        ended = 1
        try:
            ended = int(server.is_alive or run(build("y[0] = 2.0f;"), tmp_path) != 2)
            for own in compile_server._servers.values():
                own.end()
            server.end()
        finally:
            os._exit(ended)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert server.is_alive and server.folder.exists()
    build("y[0] = 3.0f;")
    assert driver.kernels == 0


MANY = """
from fusegen.launch.emulator import build as emulator, compile_server
for n in range(compile_server.KERNELS_BEFORE_SERVER + 2):
    text = f'#include "fusegen.cuh"\\nextern "C" __global__ void k(float* y) {{ y[0] = {n}.0f; }}'
    emulator.build(text, "k", headers=emulator.headers(), barriers=False)
(server,) = compile_server._servers.values()
print(server.is_alive, server.process.pid)
"""


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    (tmp_path / "with a blank").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "with a blank")}
    command = [sys.executable, "-c", MANY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT)
    is_alive, pid = done.stdout.split()
    assert is_alive == "True"
    assert list((tmp_path / "with a blank").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)

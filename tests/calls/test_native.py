"""The native call path: how it is built and found, how it fails, and what only a GPU shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.launch.cache import default_cache
from fusegen.launch.emulator import build as emulator
from fusegen.native import module as native
from tests.support.call_paths import DEVICE, Counted, is_native
from tests.support.declarations import lerp, norm, torch_norm

pytestmark = pytest.mark.native

pytest_plugins = ("tests.support.call_paths",)


def test_it_builds_where_it_can() -> None:
    """Every other test leaves it out where it is not there."""
    if native.module() is None and not native.problem():
        pytest.skip("switched off")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        pytest.skip("Python came without its headers")
    assert native.module() is not None, native.problem()


@pytest.mark.cpu
def test_a_failed_launch_is_fusegens_error(failing: None) -> None:
    if native.module() is None:
        pytest.skip("no native call path")
    known = fg.FusedOp(lerp.declaration)
    x = torch.ones(4)
    known(x, x, 0.5)
    with pytest.raises(fg.CompileError, match="thread 3: x > 0"):
        known(x, x, 0.5)
    x.requires_grad_()
    square = fg.FusedOp(fg.op(lambda x: x * x, name="squared").declaration)
    out = square(x)
    torch.autograd.grad(out.sum(), x, retain_graph=True)
    with pytest.raises(fg.CompileError, match="thread 3: x > 0"):
        square(x)


_CUT = [
    fg.register_function(f"cut{n}", cuda=f"cut{n}({{0}})", reference=lambda t, x: x, header=(
        f'FG_DEVICE float cut{n}(float x) {{ assert(x > -2 && "{"x" * n}{"é" * 1500}"); return x; }}'))
    for n in range(2)
]  # fmt: skip


@pytest.mark.cpu
@pytest.mark.parametrize("cut", _CUT)
def test_a_message_that_is_cut_is_fusegens_error(cut: Any) -> None:
    """What a launch has to say is longer than the room for it; one of these ends within a letter of two bytes."""
    known = fg.op(lambda x: cut(x), name="cut")
    for _ in range(3):
        assert known(torch.ones(2)).tolist() == [1, 1]
    for _ in range(2):
        with pytest.raises(fg.CompileError, match=r"assertion `x > -2 && .*é{900}"):
            known(-5 * torch.ones(2))


def test_a_module_that_does_not_load_is_a_problem_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_CACHE_DIR", str(tmp_path))
    state = native._State()
    state.asked, state.key = True, "0" * 64
    default_cache().put(state.key, b"no library")
    monkeypatch.setattr(native, "state", state)
    with pytest.warns(fg.FusegenWarning, match="calls take the slow path, through Python"):
        assert native.module() is None and state.problem and not native.is_found()


def test_a_module_that_is_evicted_before_it_is_loaded_is_sought_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEGEN_CACHE_DIR", str(tmp_path))
    state = native._State()
    state.asked, state.key = True, "0" * 64
    monkeypatch.setattr(native, "state", state)
    assert native.module() is None and not state.problem and not state.asked


@pytest.mark.parametrize("message", ["can't start new thread", "can't create new thread at interpreter shutdown"])
def test_where_no_thread_can_start_calls_go_on(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setenv(native.VARIABLE, "1")
    monkeypatch.setattr(native, "state", native._State())
    known = fg.FusedOp(lerp.declaration)
    for size in range(1, native.MOST_STARTS):
        assert known(torch.ones(size), torch.ones(size), 0.5).tolist() == [1] * size
    with pytest.warns(fg.FusegenWarning, match=f"no thread could be started to look for it: {message}") as told:
        for size in range(1, 5 + native.MOST_STARTS):
            known(torch.ones(size + 50), torch.ones(size + 50), 0.5)
    assert len(told) == 1 and not is_native(known)


def test_callers_move_over_when_the_module_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.module() is None:
        pytest.skip("no native call path")
    known = Counted(lerp.declaration)
    x = torch.ones(4, device=DEVICE)
    with monkeypatch.context() as patch:
        patch.setattr(native, "module", lambda: None)
        patch.setattr(native, "is_found", lambda: False)
        for _ in range(2):
            known(x, x, 0.5)
        assert not is_native(known) and known.decided == 1
    for _ in range(3):
        known(x, x, 0.5)
    assert is_native(known) and known.decided == 2


# -- what tells one module from another --------------------------------------------------------------------------------


def test_a_module_is_for_one_build_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its headers and libraries: builds of one version differ in what they export."""
    keys = [native.recipe().key, native.recipe().key]
    assert keys[0] == keys[1]
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "git_version", "0" * 40)
        keys.append(native.recipe().key)
    (tmp_path / "lib").mkdir()
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    library = tmp_path / "lib" / "libtorch_python.so"
    for text, time in (("one", 1), ("other", 1), ("other", 2)):
        library.write_text(text)
        os.utime(library, ns=(time, time))
        keys.append(native.recipe().key)
    (tmp_path / "lib" / "libgomp.so").touch()
    keys.append(native.recipe().key)
    assert len(set(keys)) == len(keys) - 2 and keys[-1] == keys[-2]


def test_with_the_sanitizers_it_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(emulator.SANITIZE_VARIABLE, raising=False)
    plain = native.recipe()
    monkeypatch.setenv(emulator.SANITIZE_VARIABLE, "1")
    for is_loaded in (False, True):
        monkeypatch.setattr(emulator, "sanitizer_is_loaded", lambda is_loaded=is_loaded: is_loaded)
        found = native.recipe()
        assert (found.key != plain.key) == ("-fsanitize=address,undefined" in found.flags) == is_loaded
        assert ("-Werror" in found.flags) == ("-w" not in found.flags) == is_loaded


@pytest.mark.cpu
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_tables_by_themselves(tmp_path: Path, sanitizer: str) -> None:
    """Threads that use one at once, under ThreadSanitizer: without torch, which it would take for full of races."""
    tests = Path(__file__).resolve().parent
    flags = ["-std=c++20", "-O1", "-g1", "-pthread", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    flags += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f"-I{tests.parents[1] / 'fusegen' / 'native'}"]
    program = tmp_path / "tables"
    command = [emulator.compiler(), *flags, str(tests / "native_tables.cpp"), "-o", str(program)]
    built = emulator.run_compiler(command)
    if built.returncode and "cannot find" in built.stderr:
        pytest.skip(f"the compiler came without its sanitizer: {built.stderr.splitlines()[0]}")
    assert built.returncode == 0, built.stderr
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    # ThreadSanitizer wants memory where kernels that put it in more random places do not have it.
    still = [found, os.uname().machine, "-R"] if (found := shutil.which("setarch")) else []
    for before in ([], still):
        done = subprocess.run([*before, str(program)], capture_output=True, text=True, check=False, env=environment)
        if "unexpected memory mapping" not in done.stderr:
            break
    assert (done.returncode, done.stdout) == (0, "all as it should be\n"), done.stderr


# -- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device("cuda")


@pytest.mark.gpu
def test_streams(fresh: Any, cuda: torch.device) -> None:
    """Work goes to the stream that is current, and a backward to its forward's, behind what it waits for."""
    known = fresh(lerp)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    for value in range(6):
        stream = streams[value % 3]
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            x = torch.full((64,), float(value), device=cuda, requires_grad=True)
            out = known(x, x * 3, 0.5)
        torch.cuda.default_stream().wait_stream(stream)
        out.sum().backward()
        torch.cuda.synchronize()
        assert (out == 2 * value).all() and (x.grad == 2).all()


@pytest.mark.gpu
def test_cuda_graphs(fresh: Any, cuda: torch.device) -> None:
    known = fresh(norm)
    x, weight = (torch.randn(size, device=cuda).requires_grad_() for size in ((4, 64), (64,)))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(known(x, weight).sum(), (x, weight))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = known(x, weight)
        gradients = torch.autograd.grad(out.sum(), (x, weight))
    with torch.no_grad():
        x.copy_(torch.randn(4, 64, device=cuda))
    graph.replay()
    expected = torch_norm(x, weight, 1e-5)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.sum(), (x, weight)), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_several_gpus(fresh: Any, cuda: torch.device) -> None:
    """The device that is current does not matter, and stays."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    known, current = fresh(lerp), torch.cuda.current_device()
    for device in (1, 0, 1, 0):
        x = torch.ones(8, device=f"cuda:{device}", requires_grad=True)
        out = known(x, x * 3, 0.5)
        out.sum().backward()
        assert out.get_device() == device and (out == 2).all() and (x.grad == 2).all()
        assert torch.cuda.current_device() == current
    with pytest.raises(fg.DeviceError, match="all tensors on one device"):
        known(torch.ones(8, device="cuda:0"), torch.ones(8, device="cuda:1"), 0.5)


@pytest.mark.gpu
def test_registered_ops(cuda: torch.device) -> None:
    """The same of calls by torch's dispatcher: any stream, and in graphs that Inductor captures."""
    known = fg.FusedOp(lerp.declaration)
    x = torch.full((64,), 2.0, device=cuda)
    overload = known.overload(x, x, 0.5)
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side, side, torch.cuda.current_stream()):
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            out = overload(x, x * 3, 0.5)
        torch.cuda.default_stream().wait_stream(stream)
        assert (out == 4).all()
    compiled = torch.compile(lambda x: known(x, x * 3, 0.5).sum(), mode="reduce-overhead", fullgraph=True)
    for value in (1.0, 2.0, 3.0, 4.0):
        torch.compiler.cudagraph_mark_step_begin()
        leaf = torch.full((64,), value, device=cuda, requires_grad=True)
        total = compiled(leaf)
        total.backward()
        assert total.item() == 128 * value and leaf.grad is not None and (leaf.grad == 2).all()

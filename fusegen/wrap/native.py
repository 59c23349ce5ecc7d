"""The native call path: templates/fusegen_native.cpp, built once by the machine's C++ compiler and then loaded.

No call waits for it: a first call finds the built module in the cache, or has a helper process build it while calls go
the Python way. What torch traces (wrap/library.py) does wait: its kernels are registered once. Whatever is missing (a
compiler, Python's headers, a folder to keep the module in), ops run as before.
``FUSEGEN_NATIVE=0`` never loads it, ``FUSEGEN_NATIVE=wait`` builds it before the first call returns.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fusegen.core.errors import CompileError, FusegenError
from fusegen.generate.rendered import template_text
from fusegen.launch import emulator, sealed
from fusegen.launch.cache import default_cache
from fusegen.launch.sealed import digest

VARIABLE = "FUSEGEN_NATIVE"
NAME = "fusegen_native"
HEADERS = ("_door.h", "_fused.h", "_kernel.h", "_leaf.h", "_node.h", "_plan.h", "_product.h")
SOURCES = tuple(f"{NAME}{part}" for part in (".cpp", *HEADERS))
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
_LIBRARIES = ("-ltorch_python", "-ltorch_cpu", "-lc10")


@dataclass(frozen=True)
class Recipe:
    """How to build the module for one torch and one Python. ``key`` tells it from those for others."""

    key: str
    include: tuple[str, ...]
    libraries: str
    flags: tuple[str, ...]

    @property
    def failure_key(self) -> str:
        return digest("native failed", self.key)


def recipe() -> Recipe:
    """The recipe for the running Python and the torch it imports.

    Raises:
        CompileError: there is no C++ compiler.
    """
    import torch

    root = Path(torch.__file__).parent
    texts = [template_text(name) for name in SOURCES]
    abi = sysconfig.get_config_var("SOABI") or sys.version
    flags = (*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
    key = digest("native", *texts, torch.__version__, abi, emulator.compiler_identity(), *flags)
    folders = (root / "include", root / "include/torch/csrc/api/include", sysconfig.get_paths()["include"])
    return Recipe(key, tuple(map(str, folders)), str(root / "lib"), flags)


def build(wanted: Recipe, *, again: bool = False) -> None:
    """Compile the module and put it into the cache, or the reason why that is impossible. One process at a time.

    Args:
        again: try once more where it failed before.
    """
    cache = default_cache()
    with _alone(cache.folder):
        if cache.get(wanted.key) is not None or (cache.get(wanted.failure_key) and not again):
            return
        with tempfile.TemporaryDirectory(prefix="fusegen-") as folder:
            for name in SOURCES:
                Path(folder, name).write_text(template_text(name), encoding="utf-8")
            command = [
                emulator.compiler(), *wanted.flags, *(f"-I{path}" for path in wanted.include), SOURCES[0],
                "-o", "module.so", f"-L{wanted.libraries}", *_LIBRARIES,
            ]  # fmt: skip
            done = emulator.run_compiler(command, folder)
            if done.returncode == 0:
                cache.put(wanted.key, Path(folder, "module.so").read_bytes())
                cache.put(wanted.failure_key, b"")
            else:
                lines = [line for line in done.stderr.splitlines() if "error" in line] or ["the compiler failed"]
                cache.put(wanted.failure_key, lines[0].encode()[:500])


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process builds. Where files cannot be locked, two may build: the cache takes either's."""
    try:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "native.lock").open("w")
    except (ImportError, OSError):
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back with the file, and by the system when a process dies
        yield


def _build_elsewhere(wanted: Recipe) -> None:
    """Build in a process of its own, which goes on when this one ends; returns when it is done."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, VARIABLE: "0"}
    environment.pop("LD_PRELOAD", None)
    subprocess.run(
        [sys.executable, "-m", "fusegen.wrap.native", json.dumps(asdict(wanted))],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, check=False, env=environment,
    )  # fmt: skip


class _State:
    """What this process knows of the module: not asked for, being looked for, found (a file), loaded, or impossible."""

    def __init__(self) -> None:
        self.asked = False
        self.path: Path | None = None
        self.module: Any = None
        self.problem = ""

    def seek(self) -> None:
        """Find the module, or have it built."""
        try:
            wanted, cache = recipe(), default_cache()
            self.path = cache.path(wanted.key)
            if self.path is None and not cache.get(wanted.failure_key):
                if sealed.untrusted(cache.folder, follow=True) or not sealed.is_writable(cache.folder):
                    self.problem = f"no folder to keep it in: {cache.folder}"
                    return
                _build_elsewhere(wanted)
                self.path = cache.path(wanted.key)
            if self.path is None:
                self.problem = (cache.get(wanted.failure_key) or b"its build did not end").decode(errors="replace")
        except (FusegenError, OSError, ImportError, AttributeError) as error:
            self.problem = getattr(error, "given", "") or str(error)


_state = _State()


def _forget_after_fork() -> None:
    """The thread that waits for the builder is not in the child, which may ask anew."""
    if _state.module is None and _state.path is None:
        _state.asked = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def module() -> Any | None:
    """The loaded module, or None: there is none, or not yet. Never waits, except where ``FUSEGEN_NATIVE=wait``."""
    if _state.module is not None:
        return _state.module
    if not _state.asked:
        _state.asked = True
        if not _is_possible():
            return None
        if os.environ.get(VARIABLE) == "wait":
            _state.seek()
        else:
            threading.Thread(target=_state.seek, name="fusegen-native", daemon=True).start()
    if _state.path is not None and not _state.problem:
        _load(_state.path)
    return _state.module


def awaited() -> Any | None:
    """The loaded module, built first if need be: for what is decided once, and is about to take seconds anyway."""
    if _state.module is None and not _state.problem and _is_possible():
        _state.asked = True
        _state.seek()
    return module()


def _is_possible() -> bool:
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()  # the module's tables rely on it
    return os.environ.get(VARIABLE, "1") != "0" and sys.platform != "win32" and has_gil


def is_found() -> bool:
    """Whether the module is there to be loaded, or loaded already."""
    return _state.path is not None and not _state.problem


def problem() -> str:
    """Why there is no module; empty where nothing is known to be wrong."""
    return _state.problem


def _load(path: Path) -> None:
    try:
        loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
        spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
        assert spec is not None
        made = importlib.util.module_from_spec(spec)
        loader.exec_module(made)
        _state.module = made
    except ImportError as error:
        _state.problem = str(error)


def report() -> str:
    """What ``fusegen doctor`` says; builds nothing.

    Raises:
        CompileError: it cannot be built or loaded here.
    """
    if os.environ.get(VARIABLE, "1") == "0":
        return f"off ({VARIABLE}=0): calls go the Python way"
    wanted, cache = recipe(), default_cache()
    wrong = _state.problem or (cache.get(wanted.failure_key) or b"").decode(errors="replace")
    if wrong:
        raise CompileError(
            "the native call path", given=f"{wrong}: calls go the Python way", expected="a module that builds",
            fix="install Python's headers (apt install python3-dev) and a C++20 compiler, then fusegen doctor --build",
        )  # fmt: skip
    path = cache.path(wanted.key)
    return "built" if path else "not built yet: an op's first call has it built, as does fusegen doctor --build"


def plan_words(words: Sequence[int]) -> bytes:
    """Words as the module reads them."""
    return b"".join((word if word >= 0 else word + 2**64).to_bytes(8, sys.byteorder) for word in words)


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(10)
    told = json.loads(sys.argv[1])
    build(Recipe(told["key"], tuple(told["include"]), told["libraries"], tuple(told["flags"])))

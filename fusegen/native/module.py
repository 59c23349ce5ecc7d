"""The native call path: fusegen_native.cpp, built once by the machine's C++ compiler and then loaded.

No call waits for it: a first call finds the built module in the cache, or has a helper process build it while calls go
the Python path. What torch traces (pytorch/library/registry.py) does wait: its kernels are registered once. Whatever is
missing (a compiler, Python's headers, a folder to keep the module in), ops run as before. ``FUSEGEN_NATIVE=0`` never
loads it, ``FUSEGEN_NATIVE=wait`` builds it before the first call returns.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusegen.core import sources
from fusegen.core.errors import CompileError, warn
from fusegen.launch import checksummed
from fusegen.launch.cache import default_cache
from fusegen.launch.checksummed import digest
from fusegen.launch.emulator import build as emulator
from fusegen.launch.reports import reports
from fusegen.native import build as native_build
from fusegen.native.build import Failure, Job

VARIABLE = "FUSEGEN_NATIVE"
NAME = "fusegen_native"
HEADERS = (
    "_caller.h", "_fast_path.h", "_fused.h", "_kernel.h", "_leaf.h", "_list.h", "_node.h", "_plan.h", "_product.h",
    "_reader.h", "_table.h",
)  # fmt: skip
SOURCES = tuple(f"{NAME}{part}" for part in (".cpp", *HEADERS))
FLAGS = ("-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden")
FAST = ("-O2", "-w")
# Where kernels are sanitized as well (`make test-sanitized`), by all of UBSan: what kernels are spared takes time for
# each of them. Warnings are errors, but of torch's headers. UBSan cannot look at virtual tables: torch does not export
# all of what that takes.
SANITIZED = (
    *emulator.SANITIZE_FLAGS, "-fsanitize=undefined", "-fno-sanitize=vptr", "-D_GLIBCXX_ASSERTIONS",
    "-Wall", "-Wextra", "-Wpedantic", "-Werror",
)  # fmt: skip
_LIBRARIES = ("torch_python", "torch_cpu", "c10")
_INSTALL = "install Python's headers (apt install python3-dev) and a C++20 compiler, then fusegen doctor --build"
# How many calls try to start a thread where there can be no more.
MOST_STARTS = 20


@dataclass(frozen=True)
class Recipe:
    """How to build the module for one torch and one Python. ``key`` tells it from those for others."""

    key: str
    include: tuple[str, ...]
    libraries: str
    flags: tuple[str, ...]


def recipe() -> Recipe:
    """The recipe for the running Python and the torch it imports.

    Raises:
        CompileError: there is no C++ compiler.
    """
    import torch

    root = Path(torch.__file__).parent
    texts = [sources.text(f"native/{name}") for name in SOURCES]
    abi = sysconfig.get_config_var("SOABI") or sys.version
    include = (root / "include", root / "include/torch/csrc/api/include", sysconfig.get_paths()["include"])
    folders = tuple(map(str, include))
    mode_flags: tuple[str, ...] = FAST
    if emulator.mode_from_environment().sanitize and emulator.sanitizer_is_loaded():
        mode_flags = (*SANITIZED, *(f"-isystem{folder}" for folder in folders))
    flags = (*FLAGS, *mode_flags, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    # Builds of one version differ in what they export: to another one's the module would not fit.
    versions = torch.__version__, str(torch.version.git_version), repr(sorted(_marks(root / "lib").items()))
    key = digest("native", *texts, *versions, abi, emulator.compiler_identity(), *flags)
    return Recipe(key, folders, str(root / "lib"), flags)


def _marks(libraries: Path) -> dict[str, tuple[int, int]]:
    """Of torch's files that the module is built for."""
    found = [path for path in libraries.glob("*") if path.name.split(".")[0].removeprefix("lib") in _LIBRARIES]
    return native_build.marks_of(libraries.parent / "version.py", *sorted(found))


def job(wanted: Recipe) -> Job:
    """What a process needs to build the module."""
    command = (
        emulator.compiler(), *wanted.flags, *(f"-I{path}" for path in wanted.include), SOURCES[0],
        "-o", native_build.MODULE, f"-L{wanted.libraries}", *(f"-l{name}" for name in _LIBRARIES),
    )  # fmt: skip
    texts = {name: sources.text(f"native/{name}") for name in SOURCES}
    return Job(wanted.key, command, texts, _marks(Path(wanted.libraries)))


def build(wanted: Recipe, *, again: bool = False) -> None:
    """Compile the module in this process and put it into the cache, or the reason why that is impossible.

    Args:
        again: also where it failed and it is not yet time to try again.
    """
    native_build.build(job(wanted), default_cache(), again=again)


class _State:
    """What this process knows of the module: not asked for, being looked for, found (in the cache), loaded, or
    impossible."""

    def __init__(self) -> None:
        self.asked = False
        self.key = ""
        self.module: Any = None
        self.problem = ""
        self.advice = ""
        self.has_warned = False
        self.starts = 0

    def seek(self) -> None:
        """Find the module, or have it built. Whatever goes wrong is a problem, and no error of a call."""
        try:
            self._seek()
        except Exception as error:
            self.problem = getattr(error, "given", "") or f"{type(error).__name__}: {error}"
            self.advice = getattr(error, "fix", "")

    def _seek(self) -> None:
        wanted, cache = recipe(), default_cache()
        if cache.current(wanted.key) is None:
            asked = job(wanted)
            failure = Failure.read(cache, asked)
            if failure is None or failure.begun or failure.is_due():
                if checksummed.untrusted(cache.folder, follow=True) or not checksummed.is_writable(cache.folder):
                    self.problem = f"there is no folder to keep it in, {cache.folder} being unusable"
                    self.advice = "set FUSEGEN_CACHE_DIR to a folder that you, and only you, can write"
                    return
                native_build.build_elsewhere(asked, cache)
            if cache.current(wanted.key) is None:
                failure = Failure.read(cache, asked)
                self.problem = str(failure) if failure else "its build has not ended, or did not fit the cache"
                self.advice = "" if failure is None or failure.passing else _INSTALL
                return
        self.key = wanted.key

    def start(self) -> None:
        """Look for the module in another thread."""
        try:
            threading.Thread(target=self.seek, name="fusegen-native", daemon=True).start()
        except RuntimeError as error:  # no more threads, or Python is ending
            self.starts += 1
            self.asked = self.starts >= MOST_STARTS  # else by a later call
            self.problem = f"no thread could be started to look for it: {error}" if self.asked else ""

    def load(self) -> None:
        """Load what was found."""
        try:
            self.module = default_cache().load(self.key, _import)
            if self.module is None:  # evicted meanwhile: it is sought anew
                self.key, self.asked = "", False
            else:
                found = self.module
                reports.tell(lambda address: found.watch_reports(address, reports.look))
        except (ImportError, OSError) as error:
            self.problem = str(error)

    def tell(self) -> None:
        """Say once that calls are slow, and why."""
        self.has_warned = True
        fix = self.advice or "see fusegen doctor, and fusegen doctor --build to try again now"
        warn(
            f"calls take the slow path, through Python, as there is no native call path: {self.problem}. Results are "
            f"the same. To mend it: {fix}. To do without: {VARIABLE}=0."
        )


state = _State()


def _import(path: Path) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    loader.exec_module(made)
    return made


def _forget_after_fork() -> None:
    """The thread that waits for the builder is not in the child, which may ask anew."""
    if state.module is None and not state.key:
        state.asked = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def module() -> Any | None:
    """The loaded module, or None: there is none, or not yet. Never waits, except where ``FUSEGEN_NATIVE=wait``."""
    if state.module is not None:
        return state.module
    if not state.asked:
        state.asked = True
        if not _is_possible():
            return None
        if os.environ.get(VARIABLE) == "wait":
            state.seek()
        else:
            state.start()
    if is_found():
        state.load()
    return state.module


def awaited() -> Any | None:
    """The loaded module, built first if need be: for what is decided once, and is about to take seconds anyway."""
    if state.module is None and not state.problem and _is_possible():
        state.asked = True
        state.seek()
    return module()


def _is_possible() -> bool:
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()  # the module's tables rely on it
    return os.environ.get(VARIABLE, "1") != "0" and sys.platform != "win32" and has_gil


def is_found() -> bool:
    """Whether the module is there to be loaded, or loaded already. Where it cannot be, the user gets a warning."""
    if state.problem and not state.has_warned:
        state.tell()
    return bool(state.key) and not state.problem


def problem() -> str:
    """Why there is no module; empty where nothing is known to be wrong."""
    return state.problem


def report() -> str:
    """What ``fusegen doctor`` says; builds nothing.

    Raises:
        CompileError: it cannot be built or loaded here.
    """
    if os.environ.get(VARIABLE, "1") == "0":
        return f"off ({VARIABLE}=0): calls take the Python path"
    wanted, cache = recipe(), default_cache()
    failure = Failure.read(cache, job(wanted))
    wrong = state.problem or str(failure or "")
    if wrong:
        fix = "fusegen doctor --build, to try again now" if failure and failure.passing else _INSTALL
        raise CompileError(
            "the native call path", given=f"{wrong}: calls take the Python path", expected="a module that builds",
            fix=state.advice or fix,
        )  # fmt: skip
    is_there = cache.current(wanted.key) is not None
    return "built" if is_there else "not built yet: an op's first call has it built, as does fusegen doctor --build"


def serialize_plan(fields: Sequence[int]) -> bytes:
    """The fields of a plan as the module reads them."""
    return b"".join((field if field >= 0 else field + 2**64).to_bytes(8, sys.byteorder) for field in fields)

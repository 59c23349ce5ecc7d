"""What emulated kernels have in common, compiled once and kept in the cache: the emulator's runtime and the headers.

Compiling both anew took two thirds of the time of a small kernel. The key of either is all that goes into it: the
command line, the compiler, and the text of every header. The compiler reads these texts, and not what lies somewhere
by then: they are written into the folder that it runs in.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fusegen.core.errors import CompileError
from fusegen.launch.cache import default_cache
from fusegen.launch.checksummed import digest

HEADER = "fusegen.cuh"
RUNTIME = "fusegen_emulator_runtime.cpp"

# Precompiled headers pay for themselves after a few kernels, and many processes compile fewer. Those that another
# process left in the cache are used from the first kernel on.
KERNELS_BEFORE_HEADER = 3

# How to run the compiler: takes a command line and the folder to run it in.
Run = Callable[[Sequence[str], str], "subprocess.CompletedProcess[str]"]

_runtimes: dict[str, bytes] = {}
_headers: dict[str, Path] = {}
_asked: Counter[str] = Counter()


def runtime(command: Sequence[str], identity: str, headers: Mapping[str, str], run: Run) -> bytes:
    """The emulator's runtime as an object file, to be linked to kernels that ``command`` compiles.

    Args:
        command: the compiler and its options, without input and output.
        identity: what tells this compiler from others.
        headers: the texts of the headers, and of the runtime, by name.
        run: runs a command line in a folder.

    Raises:
        CompileError: the compiler rejects it.
    """
    key = _key("runtime", command, identity, headers)
    if key not in _runtimes:
        data = default_cache().get(key)
        if data is None:
            data, messages = _compile([*command, "-O2", "-g0", "-c", RUNTIME], headers, run)
            if data is None:
                raise CompileError(
                    "the CPU emulator's runtime",
                    given=f"{command[0]} rejects {RUNTIME}:\n{messages.strip()[-2000:]}",
                    expected="a C++17 compiler with the headers of the C library",
                    fix="install them: apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora)",
                )
            default_cache().put(key, data)
        _runtimes[key] = data
    return _runtimes[key]


def header(command: Sequence[str], identity: str, headers: Mapping[str, str], run: Run) -> Path | None:
    """``fusegen.cuh`` and all it includes, precompiled by a compiler that knows GCC's ``.gch``; None without.

    GCC ignores one that does not fit its options, and one that has gone. What cannot be kept is not made.
    """
    key = _key("header", command, identity, headers)
    path = _headers.get(key)
    if path is None or not path.exists():
        cache = default_cache()
        path = cache.path(key)
        _asked[key] += 1
        if path is None and _asked[key] >= KERNELS_BEFORE_HEADER and cache.problem is None:
            data, _ = _compile([*command, "-x", "c++-header", HEADER], headers, run)
            if data is not None:
                cache.put(key, data)
                path = cache.path(key)
        if path is not None:
            _headers[key] = path
    return path


def _key(kind: str, command: Sequence[str], identity: str, headers: Mapping[str, str]) -> str:
    return digest("emulator", kind, tuple(command), identity, headers)


def write(folder: str, texts: Mapping[str, str]) -> None:
    """Put these files there."""
    for name, text in texts.items():
        Path(folder, name).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def folder_with(texts: Mapping[str, str]) -> Iterator[str]:
    """A temporary folder with these files, for a compiler to run in: it names them without a path.

    Raises:
        CompileError: it cannot be made, or what is done in it raises ``OSError``.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="fusegen-") as folder:
            write(folder, texts)
            yield folder
    except OSError as error:
        raise CompileError(
            "the C++ compiler", given=f"a temporary folder that it could not work in: {error}",
            expected="one that can be written, on a disk that has room", fix="set TMPDIR to such a folder",
        ) from error  # fmt: skip


def _compile(command: list[str], headers: Mapping[str, str], run: Run) -> tuple[bytes | None, str]:
    with folder_with(headers) as folder:
        done = run([*command, f"-ffile-prefix-map={folder}=.", "-o", "compiled"], folder)
        return (Path(folder, "compiled").read_bytes() if done.returncode == 0 else None), done.stderr

"""The same CUDA on the CPU: the generated text, compiled by the host's C++ compiler.

``fusegen_emulator.h`` in the same folder supplies what the CUDA compiler has built in, and runs the grid. This module
calls the compiler; launch/emulator/kernel loads the library and launches it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from fusegen.core import sources
from fusegen.core.errors import CompileError
from fusegen.generate import rendered
from fusegen.launch.checksummed import digest
from fusegen.launch.emulator import compile_server, precompiled

SANITIZE_VARIABLE = "FUSEGEN_EMULATOR_SANITIZE"
RACES_VARIABLE = "FUSEGEN_EMULATOR_RACES"
SHUFFLE_VARIABLE = "FUSEGEN_EMULATOR_SHUFFLE"
WORKERS_VARIABLE = "FUSEGEN_EMULATOR_WORKERS"
CONTRACT_VARIABLE = "FUSEGEN_EMULATOR_CONTRACT"
DEBUG_VARIABLE = "FUSEGEN_EMULATOR_DEBUG"

# Precision: no contraction and no -ffast-math, so that every machine computes the same bits, with or without fma
# instructions; nvcc contracts a*b+c on its own, which tests against a float64 reference must tolerate anyway, and which
# FUSEGEN_EMULATOR_CONTRACT=1 lets this compiler do too.
# -fno-math-errno and -fno-trapping-math change no value, they only free the compiler to inline sqrtf and vectorize.
# -fno-strict-aliasing: kernels read vectors through pointers to scalars, which nvcc allows.
# Hidden visibility keeps the helpers and shared variables of two loaded kernels apart. Without exceptions, kernels need
# no C++ library, which the linker takes longer to read than all else.
FLAGS = (
    "-std=c++17", "-shared", "-fPIC", "-pthread", "-DFUSEGEN_EMULATOR",
    "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing",
    "-fno-exceptions", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-Wno-unknown-pragmas", "-Wno-psabi",
)  # fmt: skip
# -g1 gives reports their line numbers; -O0 keeps the accesses that an optimizer would prove dead, and compiles in half
# the time. What UBSan says of pointers that are null, past an object or of no alignment, AddressSanitizer and the
# emulator (fusegen_require_aligned) say where they are read: without it kernels compile in half of the time.
SANITIZE_FLAGS = (
    "-fsanitize=address,undefined", "-fno-sanitize=null,object-size,pointer-overflow,alignment",
    "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1", "-O0",
)  # fmt: skip
# Every access to memory becomes a call as well; the functions that are called are our own (fusegen_emulator_races.h).
RACES_FLAGS = ("-fsanitize=thread", "-g1")
# Of AddressSanitizer too, in kernels where races are looked for: then it is its calls that are answered.
SANITIZE_CALLS_GCC = ("--param", "asan-instrumentation-with-call-threshold=0")
SANITIZE_CALLS_CLANG = ("-mllvm", "-asan-instrumentation-with-call-threshold=0")
# The runtime itself is not looked at, and knows what the kernels are that it runs.
RACES_DEFINED, SANITIZED_DEFINED = ("-DFUSEGEN_EMULATOR_RACES",), ("-DFUSEGEN_ASAN=1",)
# One mapping for code and constants, and one for the rest: a process may have only so many (vm.max_map_count), and each
# would take a page or more of each of thousands of kernels.
LINK_FLAGS = ("-Wl,-z,noseparate-code", "-Wl,-z,norelro") if sys.platform == "linux" else ()
# Kernels compile in two thirds of the time with the second, and run several times slower: for tests.
OPTIMIZE, DEBUG = "-O1", "-O0"
# What GCC links kernels with, instead of all that C++ programs may need. On Linux the C library's functions are those
# that the process has (launch/emulator/kernel): to read its tables takes the linker three times as long as all else.
_WITH_C = ("-nodefaultlibs", "-lpthread", "-lm", "-lgcc", "-lc")
GCC_LIBRARIES = ("-nostdlib", "-lgcc") if sys.platform == "linux" else _WITH_C
# A sanitized process has begun with AddressSanitizer and the C++ library, and has all of that too.
GCC_SANITIZE_LIBRARIES = (
    ("-nodefaultlibs", "-lubsan", "-lgcc") if sys.platform == "linux" else (*_WITH_C, "-lasan", "-lubsan", "-lstdc++")
)

# Files in this folder that belong to every kernel.
HEADERS = (
    "fusegen_emulator.h", "fusegen_emulator_shared.h", "fusegen_emulator_fibers.h", "fusegen_emulator_cluster.h",
    "fusegen_emulator_races.h", "fusegen_emulator_hooks.h", "fusegen_emulator_clocks.h", "fusegen_emulator_shadow.h",
    "fusegen_emulator_builtins.h", precompiled.RUNTIME,
)  # fmt: skip

_INSTALL = "install one: apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), xcode-select --install (macOS)"

_FIRST_ERRORS = 3
# File systems allow names of 255 bytes, and a letter may take four of them.
LONGEST_FILE_NAME = 60
_MOST_CLUSTER_BLOCKS = 16  # what the largest GPUs take


@cache
def headers() -> Mapping[str, str]:
    """What an emulated kernel includes, directly or not, by name: device functions, and the emulator's own files."""
    return {**rendered.headers(), **{name: sources.text(f"launch/emulator/{name}") for name in HEADERS}}


@cache
def headers_digest() -> str:
    """Of their text, for keys of kernels."""
    return digest(headers())


@cache
def flags() -> tuple[str, ...]:
    """The compiler's flags; whether it contracts, and how much it optimizes, is asked of the environment once."""
    level = DEBUG if _natural_number(DEBUG_VARIABLE) else OPTIMIZE
    contract = ("-ffp-contract=fast", "-DFUSEGEN_EMULATOR_CONTRACT") if _natural_number(CONTRACT_VARIABLE) else ()
    return *FLAGS, level, *(contract or ("-ffp-contract=off",))


# By whether it is sanitized, and whether races are looked for.
_INSTRUMENTED = {
    (False, False): "", (True, False): "sanitize", (False, True): "races", (True, True): "sanitize, races",
}  # fmt: skip


@dataclass(frozen=True)
class Mode:
    """How to run a kernel.

    Args:
        sanitize: the library is instrumented with AddressSanitizer and UBSan; the first report ends the process.
        races: the library is instrumented to find accesses of two threads that nothing orders. One OS thread runs it.
            With ``sanitize`` it finds both.
        shuffle: seed of a pseudo-random order of blocks and, anew after every barrier, of a block's threads.
            None is the natural order.
        workers: OS threads that blocks are spread over; 0 means every core this process may use.
    """

    sanitize: bool = False
    shuffle: int | None = None
    workers: int = 0
    races: bool = False

    @property
    def instrumented(self) -> str:
        """With what libraries are instrumented, or nothing."""
        return _INSTRUMENTED[self.sanitize, self.races]


def mode_from_environment() -> Mode:
    """The mode that the environment asks for.

    ``FUSEGEN_EMULATOR_SANITIZE=1`` sanitizes (see `sanitizer_environment` for what else must be set),
    ``FUSEGEN_EMULATOR_RACES=1`` looks for races (both may be set), ``FUSEGEN_EMULATOR_SHUFFLE=<seed>`` shuffles,
    ``FUSEGEN_EMULATOR_WORKERS=<n>`` sets the number of OS threads. Unset and empty variables mean the default.
    (`flags` reads one more.)
    """
    shuffle = os.environ.get(SHUFFLE_VARIABLE, "")
    return Mode(
        sanitize=_natural_number(SANITIZE_VARIABLE) != 0,
        races=_natural_number(RACES_VARIABLE) != 0,
        shuffle=_natural_number(SHUFFLE_VARIABLE) if shuffle else None,
        workers=_natural_number(WORKERS_VARIABLE),
    )


def _natural_number(variable: str) -> int:
    text = os.environ.get(variable, "") or "0"
    if not (text.isascii() and text.isdecimal()):
        raise CompileError(
            f"environment variable {variable}", given=repr(text), expected="a number >= 0", fix=f"export {variable}=1"
        )
    return int(text)


@cache
def compiler() -> str:
    """Path of the C++ compiler: ``$CXX`` if set, else the first of g++, clang++ and c++.

    Raises:
        CompileError: there is none.
    """
    wanted = os.environ.get("CXX", "").strip()
    for name in [wanted] if wanted else ["g++", "clang++", "c++"]:
        path = shutil.which(name)
        if path is not None:
            return os.path.abspath(path)
    raise CompileError(
        "CPU emulator",
        given=f"CXX={wanted}, which is not a program on PATH" if wanted else "no g++, clang++ or c++ on PATH",
        expected="a C++17 compiler: without a GPU, kernels run on the CPU",
        fix="unset CXX or set it to one program's path" if wanted else _INSTALL,
    )


def _architecture_flag() -> str:
    # Apple's and older ARM compilers know only the second spelling. Neither changes results: see FLAGS.
    return "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"


@cache
def compiler_identity() -> str:
    """The compiler's version and a digest of our flags and the CPU features it targets, for cache keys.

    The features are part of it because a home directory, with the cache in it, is shared by different machines.
    """
    version = run_compiler([compiler(), "--version"]).stdout.splitlines()
    instrumented = [*SANITIZE_FLAGS, *SANITIZE_CALLS_GCC, *SANITIZE_CALLS_CLANG, *RACES_FLAGS]
    compiled_with = [*flags(), *instrumented, *LINK_FLAGS, *GCC_LIBRARIES, *GCC_SANITIZE_LIBRARIES]
    digest = hashlib.sha256("\0".join([_macros(), *compiled_with]).encode()).hexdigest()
    return f"{version[0] if version else 'unknown'} [{digest[:16]}]"


@cache
def _macros() -> str:
    """What the compiler defines; its version's details and the CPU's features show there."""
    return run_compiler(
        [compiler(), FLAGS[0], OPTIMIZE, _architecture_flag(), "-dM", "-E", "-x", "c++", os.devnull]
    ).stdout


def _is_gcc() -> bool:
    return "__GNUC__" in _macros() and "__clang__" not in _macros()


def run_compiler(
    command: Sequence[str], folder: str | None = None, seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the C++ compiler; its messages come back in English.

    Raises:
        CompileError: it does not start.
        TimeoutExpired: it has not ended after so many seconds.
    """
    environment = {**os.environ, "LC_ALL": "C"}  # messages in English, plain ASCII quotes
    environment.pop("LD_PRELOAD", None)  # a preloaded sanitizer would check, and slow down, the compiler
    environment.pop("DYLD_INSERT_LIBRARIES", None)
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, cwd=folder, check=False,
            timeout=seconds,
        )  # fmt: skip
    except OSError as error:
        raise CompileError(
            "the C++ compiler", given=f"{command[0]} does not start: {error}", expected="a program that can be run",
            fix="see what this machine is short of: memory, processes (ulimit -u), open files (ulimit -n), its folder",
        ) from error  # fmt: skip


def build(
    source: str, entry: str, *, headers: Mapping[str, str], barriers: bool, cluster: int = 1,
    sanitize: bool = False, races: bool = False, others: Mapping[str, bool] = MappingProxyType({}),
) -> bytes:  # fmt: skip
    """Compile CUDA text to a shared library and return its bytes.

    Args:
        source: what NVRTC would get.
        entry: name of the ``extern "C" __global__`` function to launch.
        headers: what the source may include and the runtime consists of, by name: ``fusegen.cuh``,
            ``fusegen_emulator.h`` and what these include.
        barriers: the kernel synchronizes threads (``__syncthreads``, warp collectives).
        cluster: how many blocks a cluster of the kernel has: the n of its ``FUSEGEN_CLUSTER(n)``.
        sanitize: instrument with AddressSanitizer and UBSan.
        races: instrument to find races; with ``sanitize``, both.
        others: more kernels to launch, of clusters of the same size, and whether each synchronizes threads.

    Raises:
        CompileError: a cluster larger than those of any GPU; no compiler, or it rejected the source: the message quotes
            the generated lines.
    """
    if not 1 <= cluster <= _MOST_CLUSTER_BLOCKS:
        raise CompileError(
            f"kernel {entry}", given=f"FUSEGEN_CLUSTER({cluster})",
            expected=f"a cluster of 1 to {_MOST_CLUSTER_BLOCKS} blocks",
            fix="this is a bug in fusegen's schedules: please report it with the declaration",
        )  # fmt: skip
    kernels = {entry: barriers, **others}
    launcher = "".join(f"\nFUSEGEN_EMULATOR_LAUNCHER({name}, {str(kernels[name]).lower()})\n" for name in kernels)
    common = [compiler(), *flags(), _architecture_flag(), f"-DFUSEGEN_EMULATOR_CLUSTER={cluster}"]
    compiling, compiling_runtime = _instrumented(common, sanitize, races)
    runtime = precompiled.runtime(compiling_runtime, compiler_identity(), headers, run_compiler)
    header = precompiled.header(compiling, compiler_identity(), headers, run_compiler) if _is_gcc() else None
    libraries = (GCC_SANITIZE_LIBRARIES if sanitize else GCC_LIBRARIES) if _is_gcc() else ()
    stem = entry[:LONGEST_FILE_NAME]
    # A compiler that links what it has instrumented may add a library of its own.
    linking = common if races and not sanitize else compiling
    # What a precompiled header consists of is not read, and takes a tenth of the time to write.
    apart = [name for name in headers if header is None or (name != precompiled.HEADER and name in source)]
    further = {name: headers[name] for name in apart}
    if header is not None:
        made_with = (*compiling,), (*linking,), (*LINK_FLAGS, *libraries), header, runtime, compiler_identity()
        recipe = compile_server.Recipe(*made_with)
        library = compile_server.build(recipe, f"{stem}.cu", source + launcher, further, run_compiler)
        if library is not None:
            return library
    files = {f"{stem}.cu": source + launcher, **further}
    with precompiled.folder_with(files) as folder:
        Path(folder, "runtime.o").write_bytes(runtime)
        # Run inside the folder: messages and sanitizer reports then name the file without a temporary path.
        text = [f"-ffile-prefix-map={folder}=.", "-x", "c++", f"{stem}.cu", "-x", "none"]
        linked = [*LINK_FLAGS, "runtime.o", *libraries, "-o", f"{stem}.so"]
        commands = [[*compiling, *text, *linked]]
        if linking is not compiling:
            commands = [[*compiling, *text, "-c", "-o", "kernel.o"], [*linking, "kernel.o", *linked]]
        if header is not None:
            Path(folder, f"{precompiled.HEADER}.gch").symlink_to(header)
        done = _run_all(commands, folder)
        if done.returncode != 0 and header is not None:  # a precompiled header never makes the difference
            Path(folder, f"{precompiled.HEADER}.gch").unlink()
            precompiled.write(folder, headers)
            done = _run_all(commands, folder)
        if done.returncode == 0:
            return Path(folder, f"{stem}.so").read_bytes()
    raise CompileError(
        f"kernel {entry}, compiled for the CPU emulator",
        given=_quote_errors(done.stderr, source + launcher, f"{stem}.cu"),
        expected=f"CUDA text that {compiler()} accepts as C++17 with fusegen_emulator.h",
        fix="mend the cuda= or header= of fg.register_function if that text is yours; else this is a bug in fusegen's "
        "code generation: please report it with the text above",
    )


def _instrumented(common: list[str], sanitize: bool, races: bool) -> tuple[list[str], list[str]]:
    """How to compile a kernel, and the runtime that it is linked to."""
    if not races:
        compiling = [*common, *SANITIZE_FLAGS] if sanitize else common
        return compiling, compiling
    common = [*common, *RACES_DEFINED]
    if not sanitize:
        return [*common, *RACES_FLAGS], common
    calls = SANITIZE_CALLS_GCC if _is_gcc() else SANITIZE_CALLS_CLANG
    return [*common, *SANITIZE_FLAGS, *calls], [*common, *SANITIZED_DEFINED]


def _run_all(commands: Sequence[Sequence[str]], folder: str) -> subprocess.CompletedProcess[str]:
    """Up to the first that fails."""
    for command in commands:
        done = run_compiler(command, folder)
        if done.returncode != 0:
            break
    return done


def _quote_errors(messages: str, source: str, name: str) -> str:
    """The compiler's first errors, each followed by the generated lines around it."""
    lines = source.splitlines()
    quoted: list[str] = []
    for match in re.finditer(r"^(.+?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", messages, re.MULTILINE):
        path, number, text = match[1], int(match[2]), match[3]
        quoted.append(f"{path}:{number}: {text}")
        if path == name:
            for row in range(max(1, number - 2), min(len(lines), number + 1) + 1):
                quoted.append(f"  {'>' if row == number else ' '} {row:4d} | {lines[row - 1]}")
        else:  # in a header: name the generated line that led there
            quoted += [f"      required from {name}:{row}: {lines[int(row) - 1].strip()}"
                       for row in re.findall(rf"^{re.escape(name)}:(\d+):", messages, re.MULTILINE)[:1]]  # fmt: skip
        if sum(" | " not in line for line in quoted) >= _FIRST_ERRORS:
            break
    return "\n            ".join(quoted) if quoted else messages.strip()[-2000:] or "the compiler failed silently"


# ---- sanitizers --------------------------------------------------------------------------------------------------


def sanitizer_environment() -> dict[str, str]:
    """The variables with which a Python process must be *started* to load sanitized kernels.

    AddressSanitizer must come first in a process, before Python itself: only then has every buffer of torch and
    NumPy a red zone. Python leaks on purpose at exit, hence no leak check.

    Raises:
        CompileError: the compiler has no such runtime.
    """
    if sys.platform == "darwin":
        names, preload = ["libclang_rt.asan_osx_dynamic.dylib"], "DYLD_INSERT_LIBRARIES"
    else:
        clang = [f"libclang_rt.asan-{platform.machine()}.so", "libclang_rt.asan.so"]
        names, preload = clang if "clang" in compiler_identity() else ["libasan.so"], "LD_PRELOAD"
    # The runtime wraps C++ exceptions only if it meets the C++ library at start; else the first throw ends the process.
    with_exceptions = [path for path in [_compiler_file("libstdc++.so.6")] if path and preload == "LD_PRELOAD"]
    for name in names:
        path = _compiler_file(name)
        if path is not None:
            return {
                preload: ":".join(map(str, [_shared_object(path), *with_exceptions])),
                "ASAN_OPTIONS": "detect_leaks=0:handle_segv=1",
                "UBSAN_OPTIONS": "print_stacktrace=1",
                SANITIZE_VARIABLE: "1",
            }
    raise CompileError(
        "CPU emulator with sanitizers",
        given=f"{compiler()} has none of {', '.join(names)}",
        expected="the compiler's AddressSanitizer runtime as a shared library",
        fix="install it: apt install libgcc-12-dev (g++) or libclang-rt-dev (clang++), dnf install libasan (Fedora)",
    )


def _compiler_file(name: str) -> Path | None:
    path = Path(run_compiler([compiler(), f"-print-file-name={name}"]).stdout.strip())
    return path.resolve() if path.is_absolute() and path.exists() else None


def _shared_object(path: Path) -> Path:
    """Follow the linker script, ``INPUT ( /usr/lib64/libasan.so.8 )``, that some distributions have instead."""
    with path.open("rb") as file:
        if file.read(4) == b"\x7fELF" or sys.platform == "darwin":
            return path
    target = re.search(r"INPUT\s*\(\s*(\S+)", path.read_text(encoding="utf-8", errors="replace"))
    return Path(target[1]) if target else path


@cache
def sanitizer_is_loaded() -> bool:
    """Whether this process was started with AddressSanitizer's runtime."""
    return hasattr(ctypes.CDLL(None), "__asan_init")

"""CUDA text to cubin through NVRTC; needs neither a GPU nor a driver.

We do not use CuPy's own ``RawModule.compile``: it asks the device for its architecture, adds flags of its own
(``-ftz=true``), and its disk cache does not look into included headers.

Flags are few and fixed, so that a kernel means the same everywhere: C++17, IEEE division and square root,
subnormals kept (NVRTC's defaults), fused multiply-add as in torch's own kernels. Headers are handed over in memory
and nothing is read from disk, so whoever calls cannot be surprised by a file in the current folder.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusegen.core.errors import CompileError
from fusegen.launch.cache import Cache, digest
from fusegen.launch.nvrtc import direct, libraries

SOURCE_NAME = "kernel.cu"
DEFAULT_OPTIONS = ("--std=c++17", "--no-source-include")


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel file, and what NVRTC had to say about it (warnings; usually nothing)."""

    data: bytes
    log: str


@functools.cache
def _nvrtc() -> Any:
    """NVRTC's own library where we find it (`nvrtc.libraries`); else the one that CuPy's binding finds."""
    found = direct()
    if found is not None:
        return found
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError, OSError) as error:
        what = "CuPy is not installed" if isinstance(error, ModuleNotFoundError) else f"NVRTC does not load: {error}"
        raise CompileError(
            "compiling CUDA",
            given=what,
            expected="CuPy and NVRTC, which compile without a GPU",
            fix="pip install 'fusegen[cuda13]' (for a CUDA 12 driver: 'fusegen[cuda12]')",
        ) from error
    return nvrtc


@functools.cache
def nvrtc_version() -> tuple[int, int]:
    """Major and minor version of the compiler; CompileError when there is none."""
    major, minor = _nvrtc().getVersion()
    return int(major), int(minor)


def supported_architectures() -> list[str]:
    """What NVRTC can compile for, oldest first: ["sm_75", "sm_80", ...]."""
    return [f"sm_{number}" for number in sorted(_nvrtc().getSupportedArchs())]


def to_cubin(
    source: str, *, arch: str, headers: Mapping[str, str], declared: str, options: tuple[str, ...] = ()
) -> Cubin:
    """Compile ``source`` for one architecture ("sm_90", "sm_90a").

    Args:
        headers: text by the name it is included as; nothing else can be included.
        declared: what the source came from, for error messages: "lerp, declared in ops/blends.py:12".
        options: further NVRTC options.
    """
    nvrtc = _nvrtc()
    _check_arch(arch, declared)
    names = [name.encode() for name in headers]
    program = nvrtc.createProgram(source, SOURCE_NAME, [text.encode() for text in headers.values()], names)
    try:
        nvrtc.compileProgram(program, _all_options(arch, options))
        return Cubin(_whole(nvrtc.getCUBIN(program)), _log(program))
    except nvrtc.NVRTCError as error:
        log = _log(program) or str(error)
        from fusegen.launch.nvrtc_errors import rejected

        texts = {**headers, SOURCE_NAME: source}
        raise rejected(log, texts, SOURCE_NAME, arch, declared, _dotted(nvrtc_version())) from None
    finally:
        nvrtc.destroyProgram(program)


def _whole(cubin: bytes) -> bytes:
    """CuPy's binding cuts the last byte off, as if a cubin were text that ends in a null; disassemblers mind."""
    offset, size, count = (int.from_bytes(cubin[a:b], "little") for a, b in ((32, 40), (54, 56), (56, 58)))
    return cubin + b"\0" if offset + size * count == len(cubin) + 1 else cubin


def cached_cubin(
    source: str,
    *,
    arch: str,
    headers: Mapping[str, str],
    declared: str,
    cache: Cache,
    options: tuple[str, ...] = (),
) -> bytes:
    """``to_cubin``, at most once for the same text, headers, flags, architecture and compiler."""
    key = digest("cubin", source, headers, _all_options(arch, options), compiler_identity())
    found = cache.get(key)
    if found is None:
        found = to_cubin(source, arch=arch, headers=headers, declared=declared, options=options).data
        cache.put(key, found)
    return found


def _all_options(arch: str, options: tuple[str, ...]) -> tuple[str, ...]:
    return (f"-arch={arch}", *DEFAULT_OPTIONS, *options)


@functools.cache
def compiler_identity() -> tuple[str, ...]:
    """What tells one NVRTC from another, without loading it.

    Size and time of every NVRTC library that a search could come upon: a change to any of them is taken for another
    compiler. Where none is found, the version that the loaded library reports.
    """
    found = []
    for name in libraries():
        about = os.stat(name)
        found.append(f"{os.path.basename(name)} {about.st_size} {about.st_mtime_ns}")
    return tuple(found) or tuple(map(str, nvrtc_version()))


def _log(program: int) -> str:
    return str(_nvrtc().getProgramLog(program)).rstrip("\0 \n")


def _check_arch(arch: str, declared: str) -> None:
    known = supported_architectures()
    # sm_90a and sm_100f are variants of a listed architecture.
    if re.sub(r"(?<=\d)[af]$", "", arch) in known:
        return
    newest = "; for an older GPU, fusegen[cuda12]" if "sm_70" not in known else ""
    raise CompileError(
        declared,
        given=f"architecture {arch!r}",
        expected=f"one that NVRTC {_dotted(nvrtc_version())} compiles for: {', '.join(known)}",
        fix=f"pass one of these; for a newer GPU, install a newer nvidia-cuda-nvrtc{newest}",
    )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))

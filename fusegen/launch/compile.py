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
import struct
from collections.abc import Iterator, Mapping
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


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: per thread registers and local (stack and spill) bytes, per block static shared bytes.

    ``constant_bytes`` counts parameters and literals.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    constant_bytes: int


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


# Resources, read from the cubin itself: a cached cubin has no log, and asking the driver takes a GPU.

_SECTION = struct.Struct("<IIQQQQIIQQ")
_ATTRIBUTE = struct.Struct("<BBH")
_WITH_SIZE = 4
_REGISTER_COUNT, _MIN_STACK_SIZE = 0x2F, 0x12
# From sm_90 on, the first KiB of a kernel's shared memory belongs to the system; the section counts it, ptxas does not.
_RESERVED_SHARED = 1024


def resources(cubin: bytes, entry: str) -> Resources:
    """What the kernel called ``entry`` takes, as ``ptxas -v`` would say."""
    sections = _sections(cubin)
    if f".text.{entry}" not in sections:
        raise KeyError(f"no kernel {entry!r} in this cubin, but {sorted(_entries(sections))}")
    shared = _size(sections, f".nv.shared.{entry}")
    if shared and ".nv.shared.reserved.0" in sections:
        shared -= _RESERVED_SHARED
    attributes = dict(_attributes(cubin, sections, entry))
    return Resources(
        registers=attributes.get(_REGISTER_COUNT, 0),
        local_bytes=attributes.get(_MIN_STACK_SIZE, 0),
        shared_bytes=shared,
        constant_bytes=sum(_size(sections, f".nv.constant{bank}.{entry}") for bank in (0, 2)),
    )


def _entries(sections: Mapping[str, tuple[int, int]]) -> list[str]:
    return [name.removeprefix(".text.") for name in sections if name.startswith(".text.")]


def _size(sections: Mapping[str, tuple[int, int]], name: str) -> int:
    return sections.get(name, (0, 0))[1]


def _sections(elf: bytes) -> dict[str, tuple[int, int]]:
    """Offset and size of every section by name (ELF, 64 bit, little endian)."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a cubin")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    count, names_index = struct.unpack_from("<HH", elf, 0x3C)
    headers = [_SECTION.unpack_from(elf, table + number * _SECTION.size) for number in range(count)]
    names = headers[names_index][4]
    return {_text(elf, names + header[0]): (header[4], header[5]) for header in headers}


def _text(elf: bytes, offset: int) -> str:
    return elf[offset : elf.index(b"\0", offset)].decode()


def _attributes(elf: bytes, sections: Mapping[str, tuple[int, int]], entry: str) -> Iterator[tuple[int, int]]:
    """The attributes in ``.nv.info`` that hold one number about this kernel's symbol."""
    offset, size = sections.get(".nv.info", (0, 0))
    symbols, names = sections[".symtab"][0], sections[".strtab"][0]
    end = offset + size
    while offset < end:
        form, attribute, length = _ATTRIBUTE.unpack_from(elf, offset)
        offset += _ATTRIBUTE.size
        if form != _WITH_SIZE:
            continue
        if length == 8:
            symbol, value = struct.unpack_from("<II", elf, offset)
            (name,) = struct.unpack_from("<I", elf, symbols + symbol * 24)
            if _text(elf, names + name) == entry:
                yield attribute, value
        offset += length

"""CUDA text to cubin through NVRTC, by way of CuPy's binding; needs neither a GPU nor a driver.

We do not use CuPy's own ``RawModule.compile``: it asks the device for its architecture, adds flags of its own
(``-ftz=true``), and its disk cache does not look into included headers.

Flags are few and fixed, so that a kernel means the same everywhere: C++17, IEEE division and square root,
subnormals kept (NVRTC's defaults), fused multiply-add as in torch's own kernels. Headers are handed over in memory
and nothing is read from disk, so whoever calls cannot be surprised by a file in the current folder.
"""

from __future__ import annotations

import functools
import glob
import itertools
import os
import re
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusegen.core.errors import CompileError
from fusegen.launch.cache import Cache, digest

SOURCE_NAME = "kernel.cu"
DEFAULT_OPTIONS = ("--std=c++17", "--no-source-include")

_CONTEXT_LINES = 2
_MOST_QUOTED = 3


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
    """CuPy's binding, which finds the library in NVIDIA's wheels, in conda, or in an installed toolkit."""
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
        raise _rejected(log, {**headers, SOURCE_NAME: source}, arch, declared) from None
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
    """What tells one NVRTC from another, without loading it (which imports CuPy, a quarter of a second).

    Size and time of every NVRTC library that CuPy's search could come upon, in the order it looks: a change to any of
    them is taken for another compiler. Where none is found, the version that the loaded library reports.
    """
    folders = [Path(entry) / "nvidia" for entry in sys.path if entry]
    patterns = [str(folder / "*" / "lib" / "libnvrtc*.so*") for folder in folders]
    roots = [os.environ.get(name) for name in ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX")]
    patterns += [f"{root}/lib*/libnvrtc*.so*" for root in [*roots, "/usr/local/cuda"] if root]
    patterns += [f"{entry}/libnvrtc*.so*" for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    found = []
    for pattern in patterns:
        for name in sorted(glob.glob(pattern)):
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


# Errors: NVRTC's words, beside the lines of ours that they are about.


@dataclass(frozen=True)
class _Message:
    """One error of NVRTC. ``column`` is -1 when it drew no caret; ``file`` is empty when it named no place.

    ``notes`` say which use of a template it is about.
    """

    text: str
    file: str = ""
    line: int = 0
    column: int = -1
    notes: tuple[str, ...] = ()


_PLACED = re.compile(r"(?P<file>[^\s()][^()]*)\((?P<line>\d+)\): (?:catastrophic )?error\s*(?:#[\w-]+)?: (?P<text>.*)")
_UNPLACED = re.compile(
    r"(?:At end of source: error: |ptxas (?:error|fatal)\s*: |nvrtc: error: |ptxas .*; error\s*: ).*"
)
_IN_ENTRY = re.compile(r"Entry function '(?P<name>\w+)'")
# NVRTC indents what it quotes of the source, and the caret below it, by this much.
_QUOTE_INDENT = 2


def _messages(log: str) -> Iterator[_Message]:
    lines = log.splitlines()
    for number, line in enumerate(lines):
        placed = _PLACED.fullmatch(line)
        if placed:
            below = list(itertools.takewhile(str.strip, lines[number + 1 :]))
            drawn = next((later for later in below if later.strip() == "^"), "")
            column = drawn.index("^") - _QUOTE_INDENT if drawn else -1
            notes = tuple(later.strip() for later in below if later.lstrip().startswith("detected during"))
            yield _Message(placed["text"], placed["file"], int(placed["line"]), column, notes)
        elif _UNPLACED.fullmatch(line):
            yield _Message(line)


def _locate(message: _Message, source: str) -> _Message:
    """Where in the source a message belongs that only names a kernel, or the end."""
    lines = source.splitlines()
    if message.text.startswith("At end of source"):
        return _Message(message.text, SOURCE_NAME, len(lines))
    entry = _IN_ENTRY.search(message.text)
    for number, line in enumerate(lines, 1):
        if entry and re.search(rf"\b{entry['name']}\s*\(", line):
            return _Message(message.text, SOURCE_NAME, number)
    return message


def _quote(message: _Message, texts: Mapping[str, str]) -> list[str]:
    """The message, the line it is about with its neighbours, and a caret."""
    if not message.file:
        return [message.text]
    quoted = [f"{message.file}:{message.line}: {message.text}"]
    lines = texts.get(message.file, "").splitlines()
    first, last = max(1, message.line - _CONTEXT_LINES), min(len(lines), message.line + _CONTEXT_LINES)
    for number in range(first, last + 1):
        quoted.append(f"{number:>6} | {lines[number - 1]}".rstrip())
        if number == message.line and message.column >= 0:
            # Tabs before the caret stay tabs, so that it stands below its character however wide they are.
            before = re.sub(r"[^\t]", " ", lines[number - 1][: message.column].ljust(message.column))
            quoted.append(f"{'':>6} | {before}^")
    return [*quoted, *message.notes]


def _rejected(log: str, texts: Mapping[str, str], arch: str, declared: str) -> CompileError:
    messages = list(_messages(log)) or [_Message(log)]
    blocks = [_quote(_locate(message, texts[SOURCE_NAME]), texts) for message in messages[:_MOST_QUOTED]]
    if len(messages) > _MOST_QUOTED:
        blocks.append([f"and {len(messages) - _MOST_QUOTED} more"])
    body = "\n".join(f"    {line}" for block in blocks for line in block)
    return CompileError(
        declared,
        given=f"generated CUDA that NVRTC {_dotted(nvrtc_version())} rejects for {arch}\n{body}",
        expected="C++17 device code that includes no header of the system",
        fix=_fix(log),
    )


def _fix(log: str) -> str:
    if "too much shared data" in log:
        return "declare less static shared memory: choose a smaller tile, or a GPU architecture with more of it"
    if "nvrtc: error" in log:
        return "remove the option that NVRTC names"
    return (
        "mend the cuda= or header= of fg.register_function if that text is yours; "
        "else this is a bug in fusegen: report it"
    )


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

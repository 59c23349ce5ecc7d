"""What a kernel takes of a GPU, read from its cubin: a cached one has no log, and to ask the driver takes a GPU."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SECTION = struct.Struct("<IIQQQQIIQQ")
_ATTRIBUTE = struct.Struct("<BBH")
_WITH_SIZE = 4
_REGISTER_COUNT, _MIN_STACK_SIZE = 0x2F, 0x12
# From sm_90 on, the first KiB of a kernel's shared memory belongs to the system; the section counts it, ptxas does not.
_RESERVED_SHARED = 1024
# Bytes of an instruction, and operations: NOP; MUFU; DMUL, DADD, DSETP and DFMA; CALL, and BSSY, where threads that
# part will meet again.
_INSTRUCTION = 16
_IDLE = frozenset({0x118})
_MUFU = 0x108
_DOUBLES = frozenset({0x028, 0x029, 0x02A, 0x02B})
_PARTING = frozenset({0x144, 0x145})


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: per thread registers and local (stack and spill) bytes, per block static shared bytes.

    ``constant_bytes`` counts parameters and literals.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    constant_bytes: int


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


@dataclass(frozen=True)
class Instructions:
    """How many a kernel's text has. They are counted as they stand, each once: what a loop repeats, and what a branch
    leaves out, is not known here.

    Attributes:
        issued: all but those that only fill up.
        special: those of them for the special functions unit (exponentials, reciprocals, sines).
        doubles: those of them for the float64 unit.
        parting: those of them at which threads of a warp may go different ways, and calls.
    """

    issued: int
    special: int
    doubles: int
    parting: int


def instructions(cubin: bytes, entry: str) -> Instructions:
    """What the text of the kernel called ``entry`` has (Volta and later: 16 bytes an instruction, its operation in the
    lowest 9 bits)."""
    offset, size = _sections(cubin)[f".text.{entry}"]
    kinds = [struct.unpack_from("<H", cubin, at)[0] & 0x1FF for at in range(offset, offset + size, _INSTRUCTION)]
    return Instructions(
        issued=sum(kind not in _IDLE for kind in kinds),
        special=kinds.count(_MUFU),
        doubles=sum(kind in _DOUBLES for kind in kinds),
        parting=sum(kind in _PARTING for kind in kinds),
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

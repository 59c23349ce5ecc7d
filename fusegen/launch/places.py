"""Where in its text an emulated kernel does something: reports that name instructions, put in terms of lines.

The emulator knows addresses only. Which line an instruction is of stands in the compiler's tables, which ``addr2line``
reads; it comes with every linker.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

_INSTRUCTION = re.compile(r"instruction 0x([0-9a-f]+)")
_PARAMETER = re.compile(r"parameter (\d+)")
_PLACE = re.compile(r"(?P<file>.*):(?P<row>[1-9]\d*)( .*)?")

# A line of a file, and the function that it is in.
Frame = tuple[str, int, str]
Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def explained(message: str, library: Path, source: str, entry: str, run: Run) -> str:
    """The message with lines for instructions and names for parameters, and below it the kernel's lines that it names.

    Args:
        message: says "instruction 0x1a2b" and "parameter 3".
        library: the kernel's, compiled with ``-g1``.
        source: the CUDA text that it was compiled from, or nothing.
        entry: the kernel's name.
        run: runs a command.
    """
    addresses = dict.fromkeys(_INSTRUCTION.findall(message))
    frames = {address: _frames(library, int(address, 16), run) for address in addresses}
    names = _parameters(source, entry)
    text = _INSTRUCTION.sub(lambda match: _place(frames[match[1]]) or match[0], message)
    text = _PARAMETER.sub(lambda match: names[int(match[1])] if int(match[1]) < len(names) else match[0], text)
    lines = source.splitlines()
    outermost = {found[-1] for found in frames.values() if found}
    rows = sorted({row for file, row, _ in outermost if file.endswith(".cu") and row <= len(lines)})
    return "\n            ".join([text, *(f"> {row:4d} | {lines[row - 1]}" for row in rows)])


def _frames(library: Path, address: int, run: Run) -> list[Frame]:
    """Where an instruction is, and the calls that it was put into the kernel for: the kernel's own line comes last."""
    program = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if program is None:
        return []
    # The address is the one that a call returns to.
    done = run([program, "-f", "-i", "-C", "-e", str(library), hex(address - 1)])
    lines = done.stdout.splitlines()
    found = []
    for function, place in zip(lines[::2], lines[1::2], strict=False):
        at = _PLACE.fullmatch(place)
        if at:
            found.append((Path(at["file"]).name, int(at["row"]), _plain(function)))
    return [frame for frame in found if not frame[0].startswith("fusegen_emulator")] or found


def _plain(function: str) -> str:
    """The name of a C++ function: no result, no arguments, of a template neither."""
    shorter = re.sub(r"<[^<>]*>", "", function)
    while shorter != function:
        function, shorter = shorter, re.sub(r"<[^<>]*>", "", shorter)
    return re.split(r" |::", function.split("(")[0])[-1]


def _place(frames: Sequence[Frame]) -> str:
    """The line of the kernel's text, and where that calls a function of a header, the line there."""
    if not frames:
        return ""
    (file, row, function), (own, own_row, _) = frames[0], frames[-1]
    return f"{own}:{own_row}" + (f", in {function} ({file}:{row})" if len(frames) > 1 else "")


def _parameters(source: str, entry: str) -> list[str]:
    """The names in the kernel's signature."""
    found = re.search(rf"\bvoid\s+{re.escape(entry)}\s*\(([^{{]*)\)\s*{{", source)
    text = re.sub(r"//[^\n]*", "", found[1]) if found else ""
    return re.findall(r"(\w+)\s*(?:,|$)", text.strip())

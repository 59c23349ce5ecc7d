"""NVRTC's errors: its messages, together with the source lines that they are about."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fusegen.core.errors import CompileError

_CONTEXT_LINES = 2
_MOST_QUOTED = 3


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


def _locate(message: _Message, file: str, source: str) -> _Message:
    """Where in the source a message belongs that only names a kernel, or the end."""
    lines = source.splitlines()
    if message.text.startswith("At end of source"):
        return _Message(message.text, file, len(lines))
    entry = _IN_ENTRY.search(message.text)
    for number, line in enumerate(lines, 1):
        if entry and re.search(rf"\b{entry['name']}\s*\(", line):
            return _Message(message.text, file, number)
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


def rejected(log: str, texts: Mapping[str, str], kernel: str, arch: str, declared: str, version: str) -> CompileError:
    """The error for text that NVRTC refuses.

    Args:
        log: what NVRTC had to say.
        texts: by file, what it read.
        kernel: which file is the kernel; the others are headers.
    """
    messages = list(_messages(log)) or [_Message(log)]
    blocks = [_quote(_locate(message, kernel, texts[kernel]), texts) for message in messages[:_MOST_QUOTED]]
    if len(messages) > _MOST_QUOTED:
        blocks.append([f"and {len(messages) - _MOST_QUOTED} more"])
    body = "\n".join(f"    {line}" for block in blocks for line in block)
    return CompileError(
        declared,
        given=f"generated CUDA that NVRTC {version} rejects for {arch}\n{body}",
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

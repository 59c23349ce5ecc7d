"""What was tuned, as a file that people can read, ship, merge and review: a line for each op, layout and GPU.

An entry is found by what a plan depends on: the op, how its tensors lie, and their sizes up to the next powers of two.
It says what to choose (fuse/choices). One of an older fusegen does no harm: what is no option any more is not
taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fusegen.core.errors import FusegenError
from fusegen.core.ir import Op
from fusegen.core.serialize import op_to_json
from fusegen.fuse.choices import Chosen
from fusegen.fuse.schedule import VECTOR_BYTES, Buffer
from fusegen.launch import checksummed
from fusegen.pipeline import Layout

FORMAT = 1
# How long a process waits for another one that writes the same file, in seconds.
WAIT = 10.0


@dataclass(frozen=True)
class Entry:
    """What was found for one op, layout and GPU.

    Args:
        key: of the op and its layout (``key_of``).
        sizes: elements along each axis, as they were when this was measured.
        chosen: what to do otherwise than by default; empty where nothing was faster.
        own, best: microseconds of the schedules' own choices, and of these.
        tried: how many others were measured.
    """

    gpu: str
    op: str
    label: str
    key: str
    sizes: Mapping[str, int]
    chosen: Chosen
    own: float
    best: float
    tried: int

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Entry:
        """From what JSON reads.

        Raises:
            ValueError: it is not what ``asdict`` gives.
        """
        kinds = {"gpu": str, "op": str, "label": str, "key": str, "sizes": dict, "chosen": dict, "tried": int}
        if not isinstance(data, dict) or any(not isinstance(data.get(name), kind) for name, kind in kinds.items()):
            raise ValueError(f"an entry has {', '.join(kinds)}, own and best")
        chosen = data["chosen"]
        if not all(
            isinstance(values, dict) and all(type(v) is int for v in values.values()) for values in chosen.values()
        ):
            raise ValueError("chosen has whole numbers by kernel and name")
        if not all(isinstance(data.get(name), (int, float)) for name in ("own", "best")):
            raise ValueError("own and best are microseconds")
        return cls(**{name: data[name] for name in (*kinds, "own", "best")})


@dataclass
class Table:
    """Entries by GPU and key."""

    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)

    def find(self, gpu: str, key: str) -> Entry | None:
        return self.entries.get((gpu, key))

    def add(self, entries: Iterable[Entry]) -> None:
        """Each in the place of one for the same."""
        self.entries.update({(entry.gpu, entry.key): entry for entry in entries})

    def __str__(self) -> str:
        ordered = sorted(self.entries.values(), key=lambda e: (e.gpu, e.op, e.label, sorted(e.sizes.items()), e.key))
        lines = ",\n".join(json.dumps(asdict(entry)) for entry in ordered)
        return f'{{"fusegen tuned": {FORMAT}, "entries": [\n{lines}\n]}}\n'

    @classmethod
    def read(cls, path: Path) -> Table:
        """Of a file; an empty one where there is none.

        Raises:
            FusegenError: the file is something else.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeDecodeError) as error:
            raise _no_table(path, str(error)) from None
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or data.get("fusegen tuned") != FORMAT:
                raise ValueError(f'it does not begin with "fusegen tuned": {FORMAT}')
            table = cls()
            table.add(map(Entry.of, data.get("entries", ())))
        except (ValueError, TypeError) as error:
            raise _no_table(path, str(error)) from None
        return table


def _no_table(path: Path, why: str) -> FusegenError:
    return FusegenError(
        f"the tuned choices in {path}", given=why, expected="a file that fusegen tune has written",
        fix="remove it, or name another one by FUSEGEN_TUNED",
    )  # fmt: skip


def add_to(path: Path, entries: Iterable[Entry]) -> None:
    """Add entries to a file, in the place of those for the same; other processes may do so at the same time.

    Raises:
        FusegenError: the file is no table, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with checksummed.alone(path.with_name(f"{path.name}.lock"), WAIT):
            table = Table.read(path)
            table.add(entries)
            checksummed.write(path, str(table).encode())
    except OSError as error:
        raise FusegenError(
            f"the tuned choices in {path}", given=error.strerror or str(error), expected="a file that can be written",
            fix="name another one by FUSEGEN_TUNED",
        ) from None  # fmt: skip


def key_of(op: Op, layout: Layout) -> str:
    """What an entry is found by: the op wherever it is declared, how its tensors lie, and sizes in buckets."""
    lies = [f"{name} {_lies(buffer, layout.sizes)}" for name, buffer in sorted(layout.buffers.items())]
    sizes = [f"{axis} {bucket(size)}" for axis, size in sorted(layout.sizes.items())]
    return checksummed.digest(
        "tuned", op_to_json(replace(op, declared="")), *lies, *sizes, str(layout.follows), *sorted(layout.fresh)
    )[:20]


def bucket(size: int) -> str:
    """The next power of two, and whether vectors of eight come out even."""
    return f"{1 << max(size - 1, 0).bit_length()}{'' if size % 8 else ' in eights'}"


def _lies(buffer: Buffer, sizes: Mapping[str, int]) -> str:
    """Axes from slow to fast, a bar where memory has gaps; what lies off the addresses of vectors says so."""
    strides = {axis: stride for axis, stride in buffer.strides.items() if stride and sizes.get(axis, 1) > 1}
    step, text = 1, list[str]()
    for axis in sorted(strides, key=lambda axis: (abs(strides[axis]), axis)):
        text.append(axis if strides[axis] == step else f"{axis} |")
        step = strides[axis] * sizes[axis]
    return f"{buffer.dtype.name} {' '.join(reversed(text))}{' off' if buffer.alignment % VECTOR_BYTES else ''}"

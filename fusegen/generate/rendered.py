"""CUDA text of kernels, rendered; and the files that it includes. How it is made: generate/render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from fusegen.core import sources

PREAMBLE = '#include "fusegen.cuh"\n\n'


@dataclass(frozen=True)
class Rendered:
    """CUDA text of one kernel, complete for a compiler.

    Attributes:
        finish: the entry of the second stage, if any.
        headers: device functions of users' own rows of the function table, with which ``text`` starts.
        shared: bytes of shared memory that launches of ``entry`` ask for, beside what the text declares.
    """

    text: str
    entry: str
    finish: str | None
    barriers: bool
    headers: tuple[str, ...] = ()
    shared: int = 0

    @property
    def body(self) -> str:
        """The kernel without what it includes and needs."""
        return self.text.removeprefix(file_text(self.headers, []))


@cache
def template_text(name: str) -> str:
    """The text of a file that is shipped in ``templates/``."""
    return sources.template(name)


def headers() -> dict[str, str]:
    """What generated code includes when NVRTC compiles it."""
    names = ("fusegen.cuh", "fusegen_math.cuh", "fusegen_reduce.cuh", "fusegen_rows.cuh", "fusegen_vector.cuh")
    return {name: template_text(name) for name in names}


def one_file(kernels: Sequence[Rendered], comment: str = "") -> str:
    """The kernels of a pass as one file, in launch order, below a comment."""
    headers = tuple(dict.fromkeys(text for k in kernels for text in k.headers))
    return file_text(headers, [*([comment] if comment else []), *(k.body for k in kernels)])


def file_text(headers: Sequence[str], bodies: Sequence[str]) -> str:
    """What kernels need from others, and the kernels."""
    return PREAMBLE + "".join(f"{text}\n\n" for text in headers) + "\n".join(bodies)

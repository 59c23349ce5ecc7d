"""CUDA text of kernels, rendered; and the files that it includes. How it is made: generate/render."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from fusegen.core import sources
from fusegen.core.within import Site

PREAMBLE = '#include "fusegen.cuh"\n\n'


@dataclass(frozen=True)
class Rendered:
    """CUDA text of one kernel, complete for a compiler.

    Attributes:
        entry: the kernel.
        finish: the second kernel, which combines the partial results of a split reduction; None where there is none.
        barriers: threads of a block wait for each other.
        headers: device functions of users' own rows of the function table, with which ``text`` starts.
        shared: bytes of shared memory that launches of ``entry`` ask for, beside what the text declares.
        cluster: blocks of a cluster of ``entry``, as the text declares it; that of ``finish`` is one block.
        sites: what may report a place out of range (core/within), by the numbers that the text has.
    """

    text: str
    entry: str
    finish: str | None
    barriers: bool
    headers: tuple[str, ...] = ()
    shared: int = 0
    cluster: int = 1
    sites: tuple[Site, ...] = ()

    @property
    def entries(self) -> list[tuple[Rendered, str]]:
        """Each of the two kernels, with the text that it is in."""
        return [(self, entry) for entry in (self.entry, self.finish) if entry is not None]

    def cluster_of(self, entry: str) -> int:
        """Blocks of a cluster of one of the two kernels."""
        return self.cluster if entry == self.entry else 1

    def shared_of(self, entry: str) -> int:
        """Bytes of shared memory that launches of one of the two kernels ask for."""
        return self.shared if entry == self.entry else 0

    def to_fields(self) -> dict[str, Any]:
        """All of it by name, as JSON has it."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Rendered:
        """What `to_fields` gave, whether or not it was JSON meanwhile."""
        sites = tuple((number, text, wraps) for number, text, wraps in fields["sites"])
        return cls(**{**fields, "headers": tuple(fields["headers"]), "sites": sites})

    @property
    def body(self) -> str:
        """The kernel without what it includes and needs."""
        return self.text.removeprefix(file_text(self.headers, []))

    @property
    def first_line(self) -> int:
        """Of the body, in the text."""
        return 1 + self.text.removesuffix(self.body).count("\n")


@cache
def template_text(name: str) -> str:
    """The text of a file that is shipped in ``templates/``."""
    return sources.template(name)


def headers() -> dict[str, str]:
    """What generated code includes when NVRTC compiles it."""
    names = (
        "fusegen.cuh", "fusegen_math.cuh", "fusegen_places.cuh", "fusegen_random.cuh", "fusegen_reduce.cuh",
        "fusegen_rows.cuh", "fusegen_scan.cuh", "fusegen_scatter.cuh", "fusegen_trig.cuh", "fusegen_vector.cuh",
    )  # fmt: skip
    return {name: template_text(name) for name in names}


def one_file(kernels: Sequence[Rendered], comment: str = "", lines: bool = False) -> str:
    """The kernels of a pass as one file, in launch order, below a comment.

    Args:
        lines: a compiler names the lines that each has as a file of its own.
    """
    headers = tuple(dict.fromkeys(text for k in kernels for text in k.headers))
    bodies = [f'#line {k.first_line} "{k.entry}.cu"\n{k.body}' if lines else k.body for k in kernels]
    return file_text(headers, [*([comment] if comment else []), *bodies])


def apart(kernels: Sequence[Rendered]) -> list[Rendered]:
    """The same kernels, of which no two have one name: for one file."""
    found: list[Rendered] = []
    for kernel in kernels:
        count = sum(kernel.entry == other.entry or kernel.entry + "_" in other.entry for other in found)
        name = f"{kernel.entry}_{count + 1}" if any(kernel.entry == other.entry for other in found) else kernel.entry
        found.append(replace(kernel, entry=name, text=kernel.text.replace(f"{kernel.entry}(", f"{name}(")))
    return found


def file_text(headers: Sequence[str], bodies: Sequence[str]) -> str:
    """What kernels need from others, and the kernels."""
    return PREAMBLE + "".join(f"{text}\n\n" for text in headers) + "\n".join(bodies)

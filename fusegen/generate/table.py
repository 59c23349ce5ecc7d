"""A launch for many tensors: its table, which has for each of them the parameters that are its own.

The table is a parameter of the kernel, by value: nothing is allocated or copied for it, and a CUDA graph keeps it. A
parameter of all tensors (a number of the call) stays one beside it. The text depends on the parameters alone, so one
kernel serves any number of tensors of any sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from fusegen.core.locks import cached_property
from fusegen.generate.params import Param

# What every driver takes of parameters. From CUDA 12.1 on chips take 32,764 bytes, but not every driver does.
PARAMETER_BYTES = 4096
# Bytes and alignment of what is no pointer.
_SIZES = {"int": (4, 4), "int64_t": (8, 8), "fg::Divisor": (12, 4), "fg::Divisor64": (8, 8)}
_POINTER = (8, 8)
_NEVER = 2**31 - 1  # where members begin that a launch does not have


@dataclass(frozen=True)
class Table:
    """Which parameters of a kernel each tensor has of its own (``fields``, in the order of memory), and which are
    ``shared``."""

    fields: tuple[Param, ...]
    shared: tuple[Param, ...]

    @classmethod
    def of(cls, params: Sequence[Param]) -> Table:
        """Numbers of the call are for all; pointers, sizes and strides are a tensor's."""
        own = sorted((p for p in params if p.kind != "scalar"), key=lambda p: -_size(p)[1])
        return cls(tuple(own), tuple(p for p in params if p.kind == "scalar"))

    @cached_property
    def pointers(self) -> int:
        """How many of the fields are pointers; they come first."""
        return sum(_is_pointer(p) for p in self.fields)

    @cached_property
    def capacity(self) -> int:
        """Tensors of a launch, at most."""
        room = PARAMETER_BYTES - 8 * len(self.shared) - 16  # and one more place where blocks begin, aligned
        return room // (sum(_size(p)[0] for p in self.fields) + 4)

    # -- its text -------------------------------------------------------------------------------------------------

    def declare(self, kernel: str) -> list[str]:
        """The struct."""
        lines = [f"struct {kernel}_Table {{  // what each tensor of a launch has of its own"]
        for p in self.fields:
            comment = f"  // {p.comment}" if p.comment else ""
            lines.append(f"  {_plain(p.ctype)} {p.name}[{self.capacity}];{comment}")
        return [*lines, f"  int first_block[{self.capacity + 1}];", "};", ""]

    def parameters(self, kernel: str) -> tuple[Param, ...]:
        """The kernel's parameters."""
        return (Param("table", "table", f"const __grid_constant__ {kernel}_Table"), *self.shared)

    # -- its bytes ------------------------------------------------------------------------------------------------

    def numbers(self, members: Sequence[Sequence[bytes]], blocks: Sequence[int]) -> bytes:
        """The table behind its pointers.

        Args:
            members: of each tensor, the bytes of its fields that are no pointers, in order.
            blocks: of each tensor, how many blocks it has.
        """
        pieces = list[bytes]()
        for position, p in enumerate(self.fields[self.pointers :]):
            given = b"".join(own[position] for own in members)
            pieces.append(given.ljust(self.capacity * _size(p)[0], b"\0"))
        first = [0]
        for count in blocks:
            first.append(first[-1] + count)
        first += [_NEVER] * (self.capacity + 1 - len(first))
        pieces.append(struct.pack(f"<{len(first)}i", *first))
        return b"".join(pieces)


def _is_pointer(p: Param) -> bool:
    return p.kind in ("in", "out", "partial")


def _size(p: Param) -> tuple[int, int]:
    return _POINTER if _is_pointer(p) else _SIZES[p.ctype]


def _plain(ctype: str) -> str:
    """A pointer's type as that of a field: what it promises is said where it is used."""
    return ctype.removesuffix(" __restrict__")

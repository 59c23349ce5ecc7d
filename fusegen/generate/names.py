"""What a kernel calls the things of its op, so that no name collides with one of the kernel's own, nor with another.

A name of the op reaches the text only through `Names`, and marked: in letters of its own, one for one. So the text says
which of its identifiers were made of which name, and which are the kernel's. Where two would be the same in plain
letters, one of the things gets another name, and the kernel is rendered anew (generate/render). Thus nothing has to
know which names the templates use, or what fills their slots.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import count

from fusegen.core.ir import axis_order
from fusegen.core.subexpressions import OF_KERNELS, ascii_name, is_reserved
from fusegen.fuse.kernel import Kernel

# A plane of Unicode that is nobody's: no identifier of Python has its letters.
_PLANE = 0xF0000
_MARK = {letter: _PLANE + letter for letter in range(128)}
_PLAIN = {mark: letter for letter, mark in _MARK.items()}
_MARKS = f"{chr(_PLANE)}-{chr(_PLANE + 127)}"
_MARKED = re.compile(f"[{_MARKS}]+")
# Comments and numbers are no identifiers; what stands behind a dot or two colons is looked up there.
_IDENTIFIER = re.compile(rf"//.*|(?:\.|::) *[\w{_MARKS}]+|\d[\w.]*|([\w{_MARKS}]+)")
_MACRO = re.compile(r"#\s*define\s((?:.*\\\n)*.*)")


def unmarked(text: str) -> str:
    """``text`` with marked names in plain letters."""
    return _MARKED.sub(lambda mark: mark[0].translate(_PLAIN), text)


def identifiers(code: str) -> set[str]:
    """The identifiers of CUDA text that are looked up where they stand."""
    return set(_IDENTIFIER.findall(code)) - {""}


class Names:
    """The names of one kernel's things, marked. Those of two things differ, however they are spelled in the op.

    Args:
        headers: text in front of the kernel, whose macros are in the way as well.
    """

    def __init__(self, kernel: Kernel, headers: Iterable[str] = ()) -> None:
        self._macros = identifiers("\n".join(text for header in headers for text in _MACRO.findall(header)))
        self._chosen: dict[tuple[str, bool], str] = {}  # by name, and whether it is a variable's
        self._left: dict[tuple[str, bool], Iterator[str]] = {}
        self._owners: dict[str, str] = {}
        things = [thing.name for thing in (*kernel.operands, *kernel.scalars, *kernel.items)]
        things.sort(key=str.isascii, reverse=True)  # `u3b1` keeps its name beside `α`
        for of in (self.variable, self.stem):  # and `x` beside `x_`
            for name in things:
                of(name)

    def variable(self, name: str) -> str:
        """What holds the current value of an operand, scalar, intermediate or reduction."""
        return self._marked(name, True)

    def stem(self, name: str) -> str:
        """What other names begin with: ``x_ptr``, ``x_v``, ``total_state``."""
        return self._marked(name, False)

    def pointer(self, name: str) -> str:
        """``x_ptr``."""
        return f"{self.stem(name)}_ptr"

    def step(self, name: str, axis: str) -> str:
        """``table_at_step2``: how far apart two places are of what is gathered."""
        return f"{self.stem(name)}_step{axis_order(axis)[0]}"

    def settle(self, code: str) -> bool:
        """Whether each identifier of rendered text means one thing; else what collides has another name from now on."""
        every = identifiers(code) | self._macros
        marks = {name: len("".join(_MARKED.findall(name))) for name in every}
        taken = {name for name in every if not marks[name]}
        made: dict[str, list[str]] = {}
        for marked in sorted(every - taken, key=lambda marked: (marks[marked], marked)):
            made.setdefault(unmarked(marked), []).append(marked)
        colliding: dict[tuple[str, bool], None] = {}
        for name, spelled in made.items():
            for word in spelled if name in taken or is_reserved(name) else spelled[1:]:  # the shortest name stays
                (mark,) = _MARKED.findall(word)
                colliding[self._owners[unmarked(mark)], mark == word] = None
        for name, variable in colliding:
            self._choose(name, variable, taken | made.keys())
        return not colliding

    def _marked(self, name: str, variable: bool) -> str:
        if (name, variable) not in self._chosen:
            self._choose(name, variable)
        return self._chosen[name, variable]

    def _choose(self, name: str, variable: bool, avoid: Collection[str] = ()) -> None:
        """The next name that is nobody else's."""
        left = self._left.setdefault((name, variable), _spellings(name, variable))
        found = next(n for n in left if self._owners.get(n, name) == name and not is_reserved(n) and n not in avoid)
        self._owners[found] = name
        self._chosen[name, variable] = found.translate(_MARK)


class OpNames(Names):
    """The op's own names, chosen by nobody: for lists of parameters that are not printed. A launch goes by the order of
    parameters, their types, and what they are."""

    def __init__(self) -> None:
        """Of any kernel."""

    def _marked(self, name: str, variable: bool) -> str:
        return name


def _spellings(name: str, variable: bool) -> Iterator[str]:
    """The names that a thing may have, the most pleasant first. A position's begins with @, which is none of C's."""
    base = re.sub("__+", "_", ascii_name(name.removeprefix("@")))
    if variable:
        if base.endswith("_row") or base in OF_KERNELS:
            yield f"{base}_value" if base.endswith("_row") else f"{base}_"
        yield from (base, f"{base}_")
    base = base.rstrip("_") or "value"
    if not (variable or name.startswith("@") or is_reserved(f"{base}_ptr")):
        yield base
    base = base.lstrip("_")  # behind another underscore it would be C++'s, with any number behind it
    yield f"the_{base}"
    for number in count(2):
        yield f"the_{base}_{number}"

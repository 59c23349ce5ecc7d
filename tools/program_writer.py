"""What a random program (tools/programs) is made of: arguments, values, and the state of one that is drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from hypothesis import strategies as st

import fusegen as fg
from tools.program_libraries import Ours, Theirs, words

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Argument:
    """An argument of a program.

    Attributes:
        kind: "f" for a float tensor, "i" and "b" for integers and bools, "s" for a number.
        high: integers are below it.
    """

    name: str
    kind: str
    shape: Shape = ()
    high: int = 5

    def draw(self, generator: torch.Generator) -> Any:
        """A tensor of normal numbers, of integers, of bools; or a number."""
        if self.kind == "s":
            return round(float(torch.rand((), generator=generator)) * 2 - 1, 3)
        if self.kind == "f":
            return torch.randn(self.shape, generator=generator, dtype=torch.float64)
        drawn = torch.randint(0, 2 if self.kind == "b" else self.high, self.shape, generator=generator)
        return drawn.to(torch.bool) if self.kind == "b" else drawn

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}{list(self.shape)}" if self.kind != "s" else f"{self.name}: number"


@dataclass(frozen=True)
class Program:
    """A function as source.

    Attributes:
        body: its lines.
        results: how many tensors it returns.
    """

    body: str
    arguments: tuple[Argument, ...]
    results: int

    @property
    def source(self) -> str:
        """The text of the function ``program``."""
        return f"def program({', '.join(a.name for a in self.arguments)}):\n{self.body}"

    def function(self, lib: Any) -> Callable[..., Any]:
        """The function, with one of the libraries."""
        scope: dict[str, Any] = {"lib": lib}
        exec(compile(self.source, "program.py", "exec"), scope)
        made: Callable[..., Any] = scope["program"]
        return made

    @cached_property
    def theirs(self) -> Callable[..., tuple[Any, ...]]:
        """By torch."""
        function = self.function(Theirs())
        return lambda *values: as_tuple(function(*values))

    def op(self) -> fg.FusedOp:
        """Declared, anew at each call."""
        made: fg.FusedOp = fg.op(self.function(Ours()))
        return made

    @property
    def floats(self) -> list[str]:
        """Names of arguments that have gradients."""
        return [a.name for a in self.arguments if a.kind == "f"]

    def __str__(self) -> str:
        return "\n".join([*(f"# {argument}" for argument in self.arguments), self.source])

    __repr__ = __str__  # what hypothesis prints


def as_tuple(results: Any) -> tuple[Any, ...]:
    """One result or several, as several."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


@dataclass(frozen=True)
class Value:
    """A value of the program: its text, which is a name or an expression, and what is known of it.

    Attributes:
        level: how strongly its outermost operator binds, as Python's do; 10 for names and calls.
    """

    text: str
    kind: str
    shape: Shape
    level: int = 10

    def at(self, level: int) -> str:
        """The text where at least ``level`` is asked for."""
        return self.text if self.level >= level else f"({self.text})"


AND, ADD, MUL, NEG, POWER = 5, 6, 7, 8, 9
# What no axis in blocks is part of: declared gradients, and groups. How blocks of extrema share what ties is our own.
NOT_IN_BLOCKS = words(
    "smooth bent joint guarded_call guarded_extremum within group_norm parts amax amin norm_inf guarded_rows "
    "chosen_rows chosen_joint topped"
)


def broadcast(*shapes: Shape) -> Shape | None:
    """The shape in which they meet; None where they do not."""
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return None


@dataclass
class Writer:
    """The state of one drawn program."""

    draw: st.DrawFn
    sizes: tuple[int, ...]
    most_elements: int
    arguments: list[Argument] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    in_blocks: bool = False
    has_blocks: bool = False

    # -- arguments and values ----------------------------------------------------------------------------------------

    def argument(self, kind: str, shape: Shape, high: int = 5) -> Value:
        name = f"{kind.replace('f', 'x')}{sum(a.kind == kind for a in self.arguments)}"
        self.arguments.append(Argument(name, kind, shape, high))
        self.values.append(Value(name, kind, shape))
        return self.values[-1]

    def of(self, items: Sequence[Any]) -> Any:
        excluded = NOT_IN_BLOCKS if self.in_blocks else ()
        return self.draw(st.sampled_from([item for item in items if item not in excluded]))

    def flip(self) -> bool:
        return self.draw(st.booleans())

    def pick(self, kind: str = "f", where: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value, the last one where hypothesis shrinks."""
        found = [v for v in self.values if v.kind == kind and where(v)]
        return found[-1 - self.draw(st.integers(0, len(found) - 1))] if found else None

    def meeting(self, value: Value, kind: str = "f") -> Value:
        """A value that broadcasts with this one."""

        def meets(other: Value) -> bool:
            shape = broadcast(other.shape, value.shape)
            return shape is not None and math.prod(shape) <= self.most_elements

        return self.pick(kind, meets) or self.argument(kind, value.shape)

    def like(self, value: Value) -> Value:
        """Another value of the same shape."""
        return self.pick(where=lambda v: v.shape == value.shape and v is not value) or self.argument("f", value.shape)

    def vector(self, shape: Shape, level: int = 0) -> str:
        """A value of this shape, as text where at least ``level`` is asked for."""
        return (self.pick(where=lambda v: v.shape == shape) or self.argument("f", shape)).at(level)

    def tensor(self, rank: int = 1) -> Value | None:
        """A float tensor with dimensions."""
        return self.pick(where=lambda v: len(v.shape) >= rank)

    def bind(self, value: Value) -> None:
        """Name the value, or leave it to be written out where it is used."""
        if len(value.text) > 160 or self.flip():
            self.lines.append(f"    v{len(self.lines)} = {value.text}")
            value = replace(value, text=f"v{len(self.lines) - 1}", level=10)
        self.values.append(value)

    def unpack(self, call: str, kind: str, shape: Shape) -> None:
        """Two values of one call."""
        names = [f"{letter}{len(self.lines)}" for letter in "pq"]
        self.lines.append(f"    {', '.join(names)} = {call}")
        self.values += [Value(name, kind, shape) for name in names]

    def axes(self, value: Value) -> tuple[str, Shape, Shape]:
        """Axes to reduce as text, and the shape without them, and with them kept."""
        rank = len(value.shape)
        kind = self.of(["last", "one", "some", "all"])
        if kind == "all":
            chosen, text = tuple(range(rank)), "None"
        elif kind == "some" and rank > 1:
            chosen = tuple(d for d in range(rank) if self.flip()) or (rank - 1,)
            text = str(tuple(d - rank if self.flip() else d for d in chosen))
        else:
            chosen = (rank - 1 if kind == "last" else self.draw(st.integers(0, rank - 1)),)
            text = str(chosen[0] - rank)
        dropped = tuple(s for d, s in enumerate(value.shape) if d not in chosen)
        return text, dropped, tuple(1 if d in chosen else s for d, s in enumerate(value.shape))

    def groups(self, size: int) -> int:
        """A number of groups: one, two, four, or a group for each. Of two, one divides the other."""
        return int(self.of([n for n in (2, 4, 1) if size % n == 0] + [size or 1]))

    @property
    def names(self) -> set[str]:
        return {a.name for a in self.arguments}


def mentions(text: str, name: str) -> bool:
    """Whether a text has this name in it."""
    return re.search(rf"\b{name}\b", text) is not None

"""What a schedule could do otherwise: every choice by name, what it takes by itself, and what else there is.

A schedule asks where it chooses: ``choices.of(kernel).take("threads", 256, (128, 256, 512))``. The answer is what it
would take by itself, unless another value was chosen, as the tuner does, which tries what it finds here (tune/search).
What is not among the options is not taken, so that a choice made for other sizes does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Chosen values by the choice's name, by the kernel's. OF_THE_OP stands for the op as a whole.
Chosen = Mapping[str, Mapping[str, int]]
NOTHING_CHOSEN: Chosen = {}
OF_THE_OP = "op"


@dataclass(frozen=True)
class Choice:
    """One choice.

    Args:
        value: what was taken.
        own: what the schedule takes by itself.
        options: everything that can be taken, in order; the text is right for each of them.
    """

    value: int
    own: int
    options: tuple[int, ...]


@dataclass
class KernelChoices:
    """Those of one kernel, or of the op as a whole."""

    chosen: Mapping[str, int]
    made: dict[str, Choice] = field(default_factory=dict)

    def take(self, name: str, own: int, options: Iterable[int]) -> int:
        """What to do: ``own``, or what was chosen instead."""
        found = tuple(sorted({own, *options}))
        wanted = self.chosen.get(name, own)
        value = wanted if wanted in found else own
        self.made[name] = Choice(value, own, found)
        return value

    def ask(self, name: str, own: bool) -> bool:
        """Whether to do something that can be left."""
        return bool(self.take(name, int(own), (0, 1)))


@dataclass
class Choices:
    """Those of all kernels of an op.

    Args:
        chosen: values that are to be taken instead of a schedule's own.

    Attributes:
        made: what was asked, by kernel.
    """

    chosen: Chosen = field(default_factory=lambda: NOTHING_CHOSEN)
    made: dict[str, KernelChoices] = field(default_factory=dict)

    def of(self, kernel: str) -> KernelChoices:
        """Those of a kernel, which begins to choose: nothing that it has asked before counts."""
        self.made[kernel] = KernelChoices(self.chosen.get(kernel, {}))
        return self.made[kernel]

    @property
    def taken(self) -> dict[str, dict[str, int]]:
        """What differs from the schedules' own, by kernel and name."""
        found = {
            kernel: {name: choice.value for name, choice in choices.made.items() if choice.value != choice.own}
            for kernel, choices in self.made.items()
        }
        return {kernel: values for kernel, values in found.items() if values}

    def neighbours(self) -> list[dict[str, dict[str, int]]]:
        """What is chosen with one choice made otherwise, for each choice and each of its options."""
        taken, found = self.taken, list[dict[str, dict[str, int]]]()
        for kernel, choices in self.made.items():
            for name, choice in choices.made.items():
                rest = {**taken, kernel: {n: v for n, v in taken.get(kernel, {}).items() if n != name}}
                for option in choice.options:
                    if option != choice.value:
                        values = rest[kernel] if option == choice.own else {**rest[kernel], name: option}
                        found.append({k: dict(v) for k, v in {**rest, kernel: values}.items() if v})
        return found


def powers(least: int, most: int) -> list[int]:
    """The powers of two from ``least`` to ``most``."""
    found = []
    while least <= most:
        found.append(least)
        least *= 2
    return found

"""Steps of an op with matrix products, and what they are to the native call path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fusegen.launch.program import Workspace
from fusegen.wrap.run import Made
from fusegen.wrap.tensors import Framework


class Step(Protocol):
    """One thing that a chain does."""

    @property
    def uses(self) -> set[str]: ...
    def run(self, tensors: dict[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None: ...
    def flat(self, place: int) -> Flat | None: ...


@dataclass
class Flat:
    """What a step is to the native call path: launches and products, and the memory that they need."""

    steps: list[Any] = field(default_factory=list)
    workspaces: list[Workspace] = field(default_factory=list)
    own: list[Made] = field(default_factory=list)

    def __iadd__(self, other: Flat) -> Flat:
        self.steps += other.steps
        self.workspaces += other.workspaces
        self.own += other.own
        return self


@dataclass(frozen=True)
class Copying:
    """A product whose factors or result are copied, because their rows are not aligned (wrap/pitch)."""

    steps: tuple[Step, ...]
    own: tuple[Made, ...]
    device: str

    @property
    def uses(self) -> set[str]:
        found: set[str] = set().union(*(step.uses for step in self.steps))
        return found - {copy.name for copy in self.own}

    def run(self, tensors: dict[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        copies = {copy.name: copy.make(framework, self.device) for copy in self.own}
        for step in self.steps:
            step.run({**tensors, **copies}, scalars, framework)

    def flat(self, place: int) -> Flat | None:
        found = Flat(own=list(self.own))
        for step in self.steps:
            piece = step.flat(place)
            if piece is None:
                return None
            found += piece
        return found

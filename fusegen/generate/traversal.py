"""One walk of a thread over its elements of a row, while it is put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusegen.kernel_program.nodes import Statement


@dataclass
class Traversal:
    """What is done with a vector of elements, in this order; without vectors, ``inner`` with the element.

    Attributes:
        coordinates: where the vector is.
        reads: what is read of it at once.
        declarations: what is filled element by element.
        inner: at each element.
        next: goes on to the next element.
        writes: once all elements are done.
        edge: at a single element at one of the ends of a row that begins anywhere.
        kept: declares what a thread keeps of it for later walks.
    """

    coordinates: list[Statement] = field(default_factory=list)
    reads: list[Statement] = field(default_factory=list)
    declarations: list[Statement] = field(default_factory=list)
    inner: list[Statement] = field(default_factory=list)
    next: list[Statement] = field(default_factory=list)
    writes: list[Statement] = field(default_factory=list)
    edge: list[Statement] = field(default_factory=list)
    kept: list[Statement] = field(default_factory=list)

    def each(self, statements: Sequence[Statement]) -> None:
        """What is done with every element: those of vectors, and those at the ends of rows that begin anywhere."""
        self.inner += statements
        self.edge += statements


@dataclass
class Ahead:
    """What a thread reads before it computes anything.

    Attributes:
        declarations: where it will be found.
        coordinates: where each vector is.
        reads: of each vector.
        present: where the present row is found, if the next one is read meanwhile.
        arrivals: what takes the next row's place as the present one.
    """

    declarations: list[Statement] = field(default_factory=list)
    coordinates: list[Statement] = field(default_factory=list)
    reads: list[Statement] = field(default_factory=list)
    present: list[Statement] = field(default_factory=list)
    arrivals: list[Statement] = field(default_factory=list)

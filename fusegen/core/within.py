"""Places that a user gave, looked at where they are read.

    sum[v](where(index(v) == within(tokens, size(v), index(n)), table, 0))

is ``table[tokens]`` (core/one_term). The call is its first argument. A kernel that computes it compares it with the
size, as the read does anyway, and reports a place outside. Places that the language makes itself (slices, padding)
have no such call, so they neither report nor cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from fusegen.core import dtypes
from fusegen.core.errors import PlaceError
from fusegen.core.ir import Call, Expr, Op, Place, Size, refs, transform, walk
from fusegen.core.rewriting import rewritten

# A place that no tensor has, from whichever end it is counted: what is read there is zero, and nothing is reported.
NOWHERE = -(2**62)


class Within(Call):
    """A place along an axis, which reports itself where there is no such place.

    Attributes:
        args: the place, counted from 0; the size of the axis; where the place stands in the tensor that it is from, as
            one number.
        site: which of the declaration's reads or writes it is for: its number, and what an error says of it.
        wraps: places from the end were negative, so that one below 0 is reported less the size.
    """

    __slots__ = ("number", "text", "wraps")
    number: int
    text: str
    wraps: bool

    def __new__(cls, args: tuple[Expr, ...], number: int, text: str, wraps: bool) -> Within:
        return Expr.__new__(cls, args, number, text, wraps)  # type: ignore[return-value]

    def _fill(self, args: tuple[Expr, ...], number: int, text: str, wraps: bool) -> None:  # type: ignore[override]
        self.number, self.text, self.wraps = number, text, wraps
        super()._fill("within", args, dtypes.int64, None)

    @property
    def detail_text(self) -> str:
        return f"{self.number} {int(self.wraps)} {self.text}"

    def of(self, args: tuple[Expr, ...]) -> Within:
        return Within(args, self.number, self.text, self.wraps)

    @property
    def position(self) -> Expr:
        """Where the place stands."""
        return self.args[2]

    @property
    def site(self) -> Site:
        return self.number, self.text, self.wraps


# The number of a read, what an error says of it, and whether places count from the end as well.
Site = tuple[int, str, bool]


def sites(exprs: Iterable[Expr]) -> tuple[Site, ...]:
    """The sites of which expressions report places, by number."""
    return tuple(sorted({node.site for node in walk(exprs) if isinstance(node, Within)}))


def out_of_range(site: Site, place: int, size: int, position: int) -> PlaceError:
    """What is raised for a place that was reported.

    Args:
        place: counted from 0, as the kernel compares it.
        size: of the axis that it is a place along.
        position: of the place among those of its tensor.
    """
    _, text, wraps = site
    given = place - size if wraps and place < 0 else place
    from_end = f", or {-size} to -1 from the end" if wraps and size else ""
    expected = f"0 to {size - 1}{from_end}" if size else "no place at all: the axis has no elements"
    return PlaceError(
        text,
        given=f"the place {given}, at position {position}, along an axis of size {size}",
        expected=expected,
        fix="mend the index; clamp it, or put fg.NOWHERE where nothing is meant (it reads zero, and writes nothing)",
    )


@lru_cache(maxsize=1024)
def unreported(op: Op) -> Op:
    """``op`` without reports: what is derived of an op reads at places that the op itself has looked at before."""
    exprs = [item.expr for item in (*op.statements, *op.outputs)]
    if not sites(exprs):
        return op
    return rewritten(op, bare)


def bare(expr: Expr) -> Expr:
    """An expression without reports."""
    return transform([expr], lambda node: node.args[0] if isinstance(node, Within) else node)[expr]


def linear(places: Sequence[Expr], sizes: Sequence[Expr]) -> Expr | None:
    """Positions along several axes as one number; None of none."""
    total: Expr | None = None
    for place, size in zip(places, sizes, strict=True):
        total = place if total is None else total * size + place
    return total


def merged(node: Expr) -> Expr:
    """A call whose linear position is one `Place`, which kernels count without divisions, where it is one of whole
    axes; for `transform`."""
    if not isinstance(node, Within):
        return node
    axes = [axis for place in refs(node.position) if isinstance(place, Place) for axis in place.axes]
    found = linear([Place(axis) for axis in axes], [Size(axis) for axis in axes])
    return node.of((*node.args[:2], Place(*axes))) if found is node.position else node

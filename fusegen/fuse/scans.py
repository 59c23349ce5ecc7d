"""What the kernel of a scan computes as it goes: what it combines, made of the elements that it reads, and what is made
of its partial results where it has them.

    x = cumsum(a * b) * c + d          reads a, b, c and d, and writes x: the sums themselves never lie in memory

Elements are those at the position itself or right beside it: what stands before an element of a running sum is the sum
one element before (core/scans, "last"). A maximum and where it stands are two results of one scan.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from fusegen.core.ir import SCAN, Call, Const, Expr, Factor, Index, Op, Reduce, Ref, Size, walk
from fusegen.core.scans import LAST, PLACES, How, Scanned, parts
from fusegen.core.within import Within
from fusegen.declare.table import Kind, lookup

# Tensors that a value of a scan is made of as it is read; of more a kernel before makes it.
MOST_READ = 3
# Tensors that a scan's kernel reads and writes, so that a thread has room for their elements.
MOST_TOUCHED = 8


def element(place: int) -> str:
    """What expressions of a scan call the element of a tensor that it reads."""
    return f"x{place}"


def neighbour(name: str, way: int) -> str:
    """What they call the element at the position before (-1) one that is called so, or at the one behind (1)."""
    return f"{name}_{'behind' if way > 0 else 'before'}"


def running(how: How) -> str:
    """What they call a partial result."""
    return "place" if how.combine in PLACES else "running"


@dataclass(frozen=True)
class Shift:
    """A tensor read one position before (-1) or behind (1) along an axis, and zero where there is none."""

    of: Ref
    axis: str
    way: int


@dataclass(frozen=True)
class ScanGroup:
    """Scans that are results of one.

    Attributes:
        reduces: the first has what all need.
        taken: what it combines.
        hows: how each is combined.
    """

    reduces: tuple[Reduce, ...]
    taken: Scanned
    hows: tuple[How, ...]

    @property
    def name(self) -> str:
        """That of the first."""
        return self.reduces[0].name

    @property
    def refs(self) -> dict[Expr, How]:
        """Its results."""
        return {reduce.ref: how for reduce, how in zip(self.reduces, self.hows, strict=True)}


def shifted(op: Op) -> dict[Ref, Shift]:
    """The scans that are a tensor's elements at the next position."""
    reduces = op.expand()[0]
    found: dict[Ref, Shift] = {}
    tensors: set[Expr] = {operand.ref for operand in op.operands}
    tensors |= {reduce.ref for reduce in reduces if reduce.kind == SCAN}
    for reduce in reduces:
        if reduce.kind == SCAN:
            taken = parts(reduce.expr)
            (value, *others), how = taken.values, taken.how
            if how.combine == LAST and how.exclusive and isinstance(value, Ref) and value in tensors and not others:
                found[reduce.ref] = Shift(value, taken.axis, 1 if how.reverse else -1)
    return {ref: shift for ref, shift in found.items() if shift.of not in found}


def grouped(reduces: Sequence[Reduce]) -> list[ScanGroup]:
    """Scans, with those together that are the same, or that others have on their way."""
    by_taken: dict[Scanned, list[Reduce]] = {}
    for reduce in reduces:
        by_taken.setdefault(parts(reduce.expr), []).append(reduce)
    beside = {replace(taken, how=on_the_way(taken.how)) for taken in by_taken if taken.how.combine in PLACES}
    found = []
    for taken, same in by_taken.items():
        if taken not in beside:
            pairs = [(reduce, taken.how) for reduce in same]
            if taken.how.combine in PLACES:
                way = on_the_way(taken.how)
                pairs += [(reduce, way) for reduce in by_taken.get(replace(taken, how=way), ())]
            found.append(ScanGroup(tuple(reduce for reduce, _ in pairs), taken, tuple(how for _, how in pairs)))
    return found


def on_the_way(how: How) -> How:
    """The extremum that a scan of places has beside them."""
    return replace(how, combine=PLACES[how.combine])


def leaves_of(expr: Expr, axis: str, numbers: Container[Expr], whole: Container[Expr]) -> list[Expr] | None:
    """What a scan computes a value of as it reads elements; None where it is no such value.

    Args:
        axis: that of the scan, of which positions may be told.
        numbers: the call's. What follows from them alone is computed once, and in double, by a kernel before.
        whole: expressions that are tensors as a whole.

    Returns:
        Tensors as the op has them, references and what is in ``whole``, and numbers.
    """
    nodes = list(walk([expr], whole))
    inner = [child for node in nodes for child in node.children if child in whole]
    leaves = list(dict.fromkeys([*(node for node in nodes if isinstance(node, Ref)), *inner]))
    if all(leaf in numbers for leaf in leaves):
        return None
    for node in nodes:
        if isinstance(node, Call):
            if not _is_elementwise(node) or _is_of_numbers(node, numbers):
                return None
        elif not isinstance(node, (Ref, Const)) and node not in (Index(axis), Size(axis)):
            return None
    return leaves


def _is_of_numbers(node: Call, numbers: Container[Expr]) -> bool:
    """Whether a value follows from numbers of the call alone."""
    alone = all(child in numbers or isinstance(child, (Const, Size)) for child in node.children)
    return alone and any(child in numbers for child in node.children)


def touched(leaves: Sequence[Expr], shifts: Mapping[Ref, Shift]) -> set[Expr]:
    """The tensors and numbers that are read for these: a shift is another element of its tensor."""
    return {shifts[leaf].of if isinstance(leaf, Ref) and leaf in shifts else leaf for leaf in leaves}


def _is_elementwise(node: Call) -> bool:
    """Whether a function of the table's own is of elements, wherever they stand."""
    row = lookup(node.function)
    return row.builtin and row.kind is not Kind.DRAW and not isinstance(node, (Factor, Within))

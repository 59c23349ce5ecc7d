"""Axes while a declaration is traced: two become one where they meet, and one is several where it is seen in groups.

An axis in groups is made of others, slow to fast: counts of groups, which are the same in every call of the trace, and
the elements of a group. Whoever asks what an expression varies along gets these. Where two axes in groups meet, their
groups are divided further until they are the same: 2 and 4 groups of 12 are 2 times 2 of 3.
"""

from __future__ import annotations

from collections.abc import Iterable


class NotNested(Exception):
    """Two axes meet whose groups are none of each other: 2 and 3 groups of 12."""


class AxisVar:
    """An axis. Broadcasting two dimensions against each other makes their axes one (union-find).

    Attributes:
        parts: what an axis in groups is made of; None stands for what is of size one.
        fixed: the size is the same in every call of the trace.
        made: the declaration made it, of so many elements: it may be that no argument has it.
        is_group: it is the groups of an axis, or what is in a group.
    """

    def __init__(
        self, size: int, origin: str, parts: Entries = (), *, fixed: bool = False, made: bool = False
    ) -> None:  # fmt: skip
        self.size, self.origin, self.parts, self.fixed, self.made = size, origin, parts, fixed, made
        self.is_group = False
        self.parent = self

    def find(self) -> AxisVar:
        """The axis that stands for all that are one with it."""
        node = self
        while node.parent is not node:
            node = node.parent
        return node

    @property
    def entries(self) -> Entries:
        """What it is made of: itself, or what its parts are made of. None is of size one."""
        root = self.find()
        if not root.parts:
            return (root,)
        return tuple(entry for part in root.parts for entry in (part.entries if part else (None,)))


Entries = tuple["AxisVar | None", ...]
Dims = tuple["AxisVar | None", ...]


def leaves(dims: Iterable[AxisVar | None]) -> list[AxisVar]:
    """The axes, none of them in groups, that dimensions are made of."""
    return [entry for dim in dims if dim for entry in dim.entries if entry]


def are_same(a: AxisVar, b: AxisVar) -> bool:
    """Whether two dimensions are one axis."""
    return a.find() is b.find() or leaves([a]) == leaves([b])


def grouped(dims: Dims) -> AxisVar | None:
    """The dimension that these make up."""
    entries = tuple(entry for dim in dims for entry in (dim.entries if dim else (None,)))
    found = [entry for entry in entries if entry]
    if len(found) < 2:
        return found[0] if found else None
    size, fixed = 1, all(entry.fixed for entry in found)
    for entry in found:
        size *= entry.size
    return AxisVar(size, f"groups of {found[-1].origin}", entries, fixed=fixed)


def divided(axis: AxisVar, count: int) -> tuple[AxisVar | None, AxisVar | None]:
    """An axis, which divides by ``count``, as so many groups: their number, and the elements of each.

    Raises:
        NotNested: it is in groups already that are not made of these, and do not make them up.
    """
    _cut(axis, count)
    entries = list(axis.entries)
    first: list[AxisVar | None] = []
    size = 1
    while size < count:
        entry = entries.pop(0)
        first.append(entry)
        size *= entry.size if entry else 1
    return grouped(tuple(first)), grouped(tuple(entries))


def _cut(axis: AxisVar, count: int) -> None:
    """See to it that there is a border behind ``count`` groups."""
    root, before = axis.find(), 1
    if not root.parts:
        rest = root.size // count
        of = f"of {root.origin}"
        inner = AxisVar(rest, f"a group {of}", fixed=root.fixed, made=root.made) if rest != 1 else None
        root.parts = AxisVar(count, f"{count} groups {of}", fixed=True, made=root.made), inner
        for part in filter(None, root.parts):
            part.is_group = True
        return
    for part in filter(None, root.parts):
        if before == count:
            return
        if before * part.size > count or part.size == 0:
            within, left = divmod(count, before)
            if left or part.size % within:
                raise NotNested
            return _cut(part, within)
        before *= part.size


def unite(a: AxisVar, b: AxisVar) -> None:
    """Make one axis of two of the same size.

    Raises:
        NotNested: their groups cannot be made the same.
    """
    a, b = a.find(), b.find()
    if are_same(a, b):
        return
    if _is_within(a, b) or _is_within(b, a):  # nothing, in groups of nothing
        raise NotNested
    if a.parts and b.parts:
        for one, other in _aligned(a, b):
            unite(one, other)
    first, second = (b, a) if b.parts and not a.parts else (a, b)
    second.parent = first
    first.fixed |= second.fixed
    first.made |= second.made
    first.is_group |= second.is_group


def mirror(a: AxisVar, b: AxisVar) -> bool:
    """See to it that two axes of the same size, which are not one, are in the same groups; whether that took anything.

    Raises:
        NotNested: it cannot be done.
    """
    before = len(a.entries), len(b.entries)
    list(_aligned(a, b))
    return (len(a.entries), len(b.entries)) != before


def _aligned(a: AxisVar, b: AxisVar) -> Iterable[tuple[AxisVar, AxisVar]]:
    """What two axes are made of, cut until one's are as long as the other's."""
    ours, theirs = list(a.entries), list(b.entries)
    while ours and theirs:
        if ours[0] is None or theirs[0] is None:
            (ours if ours[0] is None else theirs).pop(0)
            continue
        x, y = ours[0], theirs[0]
        if x.size == y.size:
            yield x, y
            del ours[0], theirs[0]
            continue
        longer, shorter = (ours, y) if y.size and x.size % y.size == 0 else (theirs, x)
        cut = longer[0]
        assert cut is not None
        if not shorter.size or cut.size % shorter.size:
            raise NotNested
        _cut(cut, shorter.size)
        longer[0:1] = cut.entries


def _is_within(a: AxisVar, b: AxisVar) -> bool:
    """Whether ``a`` is one of those that ``b`` is made of."""
    return any(part is not None and (part.find() is a or _is_within(a, part.find())) for part in b.parts)

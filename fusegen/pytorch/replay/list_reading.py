"""What a call with lists of tensors is given, read once: a key that tells which plan it takes, addresses, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusegen.native import module as native
from fusegen.pytorch.replay.reading import TENSORS, read_into


class ListsRead:
    """A call that has been read.

    Args:
        count: the length of each list.
        writes: the call says where results go.

    Attributes:
        lists: the tensors, a list for each argument and then for each result that is given.
        shared: which of the lists are one tensor, over and over.
        addresses: of the tensors, in their order.
        numbers: those that are values of the call.
    """

    def __init__(self, count: int, writes: bool) -> None:
        self.count = count
        self.lists: list[Sequence[Any]] = []
        self.shared: set[int] = set()
        self.addresses: list[int] = []
        self.numbers: list[Any] = []
        self._key: list[Any] = [count, writes]
        self._read: dict[int, tuple[Any, list[int]]] = {}  # a list that is read and written is one object, mostly
        self._native = native.module()

    @property
    def key(self) -> tuple[Any, ...]:
        """What a plan depends on."""
        return tuple(self._key)

    def read_list(self, given: Sequence[Any]) -> bool:
        """Read a tensor for each call; False for what only the op can judge."""
        found = self._read.get(id(given))
        if found is None:
            found = self._native.read_tensors(given) if self._native is not None else _read_tensors(given)
            if found is None:
                return False
            self._read[id(given)] = found
        words, addresses = found
        self._key.append(words)
        self.lists.append(given)
        self.addresses += addresses
        return True

    def read_shared(self, given: Any, flag: int) -> bool:
        """Read what is the same for all calls: a tensor, a number, an option."""
        tensors: list[Any] = []
        addresses: list[int] = []
        self._key.append("shared")
        if not read_into([given], [flag], False, self._key, tensors, addresses, self.numbers):
            return False
        if tensors:
            self.shared.add(len(self.lists))
            self.lists.append(tensors * self.count)
            self.addresses += addresses * self.count
        return True


def _read_tensors(given: Sequence[Any]) -> tuple[Any, list[int]] | None:
    """The native module's function of this name, in Python."""
    key: list[Any] = []
    addresses: list[int] = []
    alike = all(type(tensor) in TENSORS for tensor in given)
    if not alike or not read_into(given, [0] * len(given), False, key, [], addresses, []):
        return None
    return tuple(key), addresses

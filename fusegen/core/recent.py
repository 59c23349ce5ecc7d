"""A table that forgets: what was not asked for longest goes first, so that constants that never end fill no memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from fusegen.core import locks

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most ``most`` values by key; for any number of threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._items: OrderedDict[K, V] = OrderedDict()
        self._lock = locks.reentrant_lock()  # the collector may end things, which may ask, at any time

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._items))

    def get(self, key: K) -> V | None:
        """The value of the key, which now is the last one to go."""
        with self._lock:
            found = self._items.get(key)
            if found is not None:
                self._items.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> None:
        """Keep ``value``, in place of what was there."""
        with self._lock:
            gone = [self._items.pop(key, None)]
            self._items[key] = value
            gone += self._too_many()
        del gone  # not while the lock is held: it may be the end of much

    def setdefault(self, key: K, value: V) -> V:
        """The value of the key, ``value`` if it had none: of threads that make one at once, all get the first one's."""
        with self._lock:
            found = self._items.setdefault(key, value)
            self._items.move_to_end(key)
            gone = self._too_many()
        del gone
        return found

    def values(self) -> list[V]:
        """All values, that of the next one to go first."""
        with self._lock:
            return list(self._items.values())

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            gone, self._items = self._items, OrderedDict()
        del gone

    def _too_many(self) -> list[Any]:
        return [self._items.popitem(last=False)[1] for _ in range(len(self._items) - self.most)]

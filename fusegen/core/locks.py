"""Locks that a forked child can take, and properties that are computed once without one.

Another thread may hold a lock at the moment of a fork. It is not in the child, where the lock would be held for ever.
What our locks guard are entries of tables, which are there or are not, so that a child may go on with what it finds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet

T = TypeVar("T")

_locks: WeakSet[Any] = WeakSet()


def lock() -> threading.Lock:
    """A ``threading.Lock`` that is free in a forked child."""
    made = threading.Lock()
    _locks.add(made)
    return made


def reentrant_lock() -> Any:
    """A ``threading.RLock`` that is free in a forked child."""
    made = threading.RLock()
    _locks.add(made)
    return made


def _free() -> None:
    for one in list(_locks):
        one._at_fork_reinit()  # as Python's own libraries do


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)


class cached_property(Generic[T]):
    """``functools.cached_property`` as it is from Python 3.12 on: before, it holds a lock of all instances while it
    computes, which is held for ever in a child that is forked meanwhile. Two threads at once may both compute."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> cached_property[T] | T:
        if instance is None:
            return self
        found: T = instance.__dict__.setdefault(self.name, self.function(instance))
        return found

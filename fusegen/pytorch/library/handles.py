"""Ops by a string, which Dynamo takes for a constant; an object it does not everywhere (torch 2.11)."""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakValueDictionary

_numbers = itertools.count()
_ops: WeakValueDictionary[str, Any] = WeakValueDictionary()


def token_of(op: Any, name: str) -> str:
    """A string of its own for a new op, by which `find` finds it as long as it lives."""
    token = f"{name} {next(_numbers)}"
    _ops[token] = op
    return token


def find(token: str) -> Any:
    """The op that `token_of` gave the token."""
    return _ops[token]

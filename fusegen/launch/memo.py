"""What the compiler caches on disk in addition to machine code: derived ops and printed text.

A warm start then imports neither sympy nor Jinja. Keys cover the compiler itself: any change to its code, templates or
function table makes them others. Ops that use functions a user registered are not remembered, because what a
registered row means is not visible from its name.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from fusegen.core import sources
from fusegen.core.collector import paused
from fusegen.core.ir import Call, Op, walk
from fusegen.declare.table import lookup
from fusegen.launch.cache import default_cache
from fusegen.launch.checksummed import digest

Json = TypeVar("Json", list[str], dict[str, Any])


def compiler_digest() -> str:
    """A digest of fusegen's own code and templates, as this process runs them.

    Where what lies there has changed since (core/sources) that is no text anywhere: then a name that no other process
    has, so that nothing is found under it and nothing that is kept under it is ever used.
    """
    found = _digest_of_files()
    return f"{_ANOTHER} {os.getpid()}" if sources.is_changed() else found


_ANOTHER = os.urandom(16).hex()


@functools.cache
def _digest_of_files() -> str:
    python = {n: data for n, data in sources.contents("").items() if n.endswith(".py")}
    templates = {n: data for n, data in sources.contents("templates").items() if n.endswith((".j2", ".cuh"))}
    return digest(python, templates)


def is_memorable(op: Op) -> bool:
    """Whether everything in ``op`` is fusegen's own."""
    nodes = walk([item.expr for item in (*op.statements, *op.outputs)])
    return all(lookup(node.function).builtin for node in nodes if isinstance(node, Call))


def remember(kind: str, parts: tuple[str, ...], make: Callable[[], Json]) -> Json:
    """What ``make`` gives for ``parts``, from disk if it was made before. It must be what JSON gives back unchanged."""
    key = digest(kind, compiler_digest(), *parts)
    cache = default_cache()
    found = cache.get(key)
    if found is not None:
        value: Json = json.loads(found)
        return value
    with paused():  # a first derivation imports sympy
        value = make()  # which may have imported more of fusegen
    cache.put(key, json.dumps(value).encode(), on_disk=not sources.is_changed())
    return value

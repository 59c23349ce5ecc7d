"""What the compiler remembers between processes beside machine code: derived ops and printed text.

A warm start then imports neither sympy nor Jinja. Keys cover the compiler itself: any change to its code, templates or
function table makes them others. Ops that use functions a user registered are not remembered, because what a
registered row means is not visible from its name.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from fusegen.core.ir import Call, Op, walk
from fusegen.declare.table import lookup
from fusegen.launch.cache import default_cache
from fusegen.launch.sealed import digest


@functools.cache
def compiler_digest() -> str:
    """A digest of fusegen's own code and templates."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = sorted(_python_files(package))
    parts: list[str | bytes] = [path.removeprefix(package) for path in files]
    parts += [Path(path).read_bytes() for path in files]
    templates = sorted(resources.files("fusegen.templates").iterdir(), key=lambda entry: entry.name)
    texts = [entry for entry in templates if entry.name.endswith((".j2", ".cuh"))]
    for entry in texts:
        parts += [entry.name, entry.read_bytes()]
    return digest(*parts)


def _python_files(folder: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from _python_files(entry.path)
        elif entry.name.endswith(".py"):
            yield entry.path


def is_memorable(op: Op) -> bool:
    """Whether everything in ``op`` is fusegen's own."""
    nodes = walk([item.expr for item in (*op.statements, *op.outputs)])
    return all(lookup(node.function).builtin for node in nodes if isinstance(node, Call))


def remember(kind: str, parts: tuple[str, ...], make: Callable[[], list[str]]) -> list[str]:
    """The texts that ``make`` gives for ``parts``, from disk if they were made before."""
    key = digest(kind, compiler_digest(), *parts)
    cache = default_cache()
    found = cache.get(key)
    if found is not None:
        texts: list[str] = json.loads(found)
        return texts
    texts = make()
    cache.put(key, json.dumps(texts).encode())
    return texts

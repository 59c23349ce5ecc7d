"""What the compiler remembers between processes beside machine code: derived ops and printed text.

A warm start then imports neither sympy nor Jinja. Keys cover the compiler itself: any change to its code, templates or
function table makes them others. Ops that use functions a user registered are not remembered, because what a
registered row means is not visible from its name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from fusegen.core.ir import Call, Op, walk
from fusegen.declare.table import lookup
from fusegen.launch.cache import default_cache
from fusegen.launch.sealed import digest


@functools.cache
def compiler_digest() -> str:
    """A digest of fusegen's own code and templates."""
    package = Path(__file__).resolve().parent.parent
    files = sorted(path for path in package.rglob("*.py"))
    parts = [str(path.relative_to(package)) for path in files] + [path.read_bytes().decode() for path in files]
    templates = sorted(resources.files("fusegen.templates").iterdir(), key=lambda entry: entry.name)
    texts = [entry for entry in templates if entry.name.endswith((".j2", ".cuh"))]
    parts += [entry.name + entry.read_text(encoding="utf-8") for entry in texts]
    return digest(*parts)


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

"""What the compiler makes of its library, as tools/generate.py makes it."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

from fusegen.cli.arguments import library

ROOT = Path(__file__).resolve().parents[2]


def load_tool() -> ModuleType:
    """A tools/generate.py of one's own."""
    spec = importlib.util.spec_from_file_location("fusegen_generate", ROOT / "tools" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def emitted() -> dict[str, str]:
    """The CUDA of the whole library by path, as the compiler makes it now."""
    tool = load_tool()
    return dict(sorted(golden for name in library() for golden in tool.cuda(name)))

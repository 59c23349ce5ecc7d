"""``isinstance(x, torch.Tensor)`` in a declaration, which is True of what stands for a tensor.

A symbolic tensor is of no class of torch's, and must not be: torch's C++ would look for memory in it. So the modules
whose functions run while a declaration is traced have an ``isinstance`` of their own meanwhile. Of everything but
symbolic tensors it says what Python's does.
"""

from __future__ import annotations

import sys
from typing import Any

from fusegen.core import locks
from fusegen.declare.value import Value

# torch's that asks this of what it is given.
_TORCHS = ("torch.distributions.distribution",)


def is_instance(obj: Any, kind: Any, /) -> bool:
    """``isinstance``, that takes symbolic tensors for torch's."""
    if isinstance(obj, Value) and not obj.weak:
        kinds = kind if isinstance(kind, tuple) else getattr(kind, "__args__", (kind,))
        return isinstance(obj, kind) or getattr(sys.modules["torch"], "Tensor", None) in kinds
    return isinstance(obj, kind)


class asked_in:
    """The modules that are ``met`` have it in place of Python's, until they are left."""

    lock = locks.lock()
    running: dict[int, int] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.has: list[dict[str, Any]] = []

    def met(self, module: dict[str, Any], is_library: bool) -> None:
        """The globals of a function that begins to run."""
        self.seen.add(id(module))
        if "torch" not in sys.modules or (is_library and module.get("__name__") not in _TORCHS):
            return
        with asked_in.lock:
            if module.setdefault("isinstance", is_instance) is is_instance:
                asked_in.running[id(module)] = asked_in.running.get(id(module), 0) + 1
                self.has.append(module)

    def leave(self) -> None:
        """They have Python's again."""
        with asked_in.lock:
            for module in self.has:
                asked_in.running[id(module)] -= 1
                if not asked_in.running[id(module)]:
                    del asked_in.running[id(module)]
                    module.pop("isinstance", None)

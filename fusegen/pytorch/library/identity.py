"""What an op is declared as, and by which fusegen, as a short text: a part of the keys of torch's compile caches.

torch keeps a compiled graph on disk under the graph that Dynamo saw, which knows an op by its name alone. So a compiled
call of ours says what the op is beside its arguments (``schema.IDENTITY``): a graph that was compiled for another
declaration, or by another fusegen, which may derive other gradients, is then no graph of this call.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

from fusegen.core import sources
from fusegen.declare.op import Declaration
from fusegen.launch.checksummed import digest
from fusegen.launch.memo import compiler_digest

# Packages that are not looked into: fusegen is digested as a whole, and torch is in torch's keys.
KNOWN = ("fusegen", "torch", "numpy", "math", "builtins")


def identity(declaration: Declaration) -> str:
    """A digest of all that a declaration is made of: its code, fusegen's, and what its code names.

    Names are followed through helpers, other ops, closures, defaults and globals, but not into attributes of objects.
    """
    return digest(_fusegen_digest(), *_described(declaration, {}))[:16]


def _fusegen_digest() -> str:
    """Of all that derives graphs. What of it is imported late is imported now: torch keeps what it compiles after this
    under the identity that it was given."""
    importlib.import_module("fusegen.derive.symbolic")
    library = sources.contents("ops")
    return digest(compiler_digest(), library)


def _described(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """A value as texts that are the same in every process.

    Args:
        seen: by address what has been described; it is kept, so that nothing else comes to lie there.
    """
    if isinstance(value, (bool, int, float, complex, str, bytes)) or type(value).__name__ in ("dtype", "DType"):
        yield f"{type(value).__name__} {value!r}"
        return
    yield type(value).__qualname__
    if isinstance(value, (type, types.FunctionType)):
        yield f"{value.__module__}.{value.__qualname__}"
    if id(value) not in seen:
        seen[id(value)] = value
        for part in _parts(value):
            yield from _described(part, seen)
        yield "end"


def _parts(value: Any) -> list[Any]:
    """What a value consists of, or refers to."""
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, Declaration):
        return [value.name, value.function, value.gradient, value.autocast]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__]
    if isinstance(value, types.CodeType):
        return [value.co_code, value.co_consts, value.co_names, value.co_varnames]
    if isinstance(value, types.FunctionType):
        if _is_known(value.__module__):
            return []
        return [value.__code__, value.__defaults__, value.__kwdefaults__, _cells(value), _globals(value)]
    declaration = inspect.getattr_static(value, "declaration", None)  # of another op
    return [declaration] if isinstance(declaration, Declaration) else []


def _is_known(module: str | None) -> bool:
    return (module or "").partition(".")[0] in KNOWN


def _cells(function: types.FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a name that is not bound yet
            found.append(None)
    return found


def _globals(function: types.FunctionType) -> list[Any]:
    """The globals that code names, and of modules among them what it may mean of theirs."""
    names = sorted(_names(function.__code__))
    found = [function.__globals__.get(name) for name in names]
    modules = [m for m in found if isinstance(m, types.ModuleType) and not _is_known(m.__name__)]
    found += [vars(module).get(name) for module in modules for name in names]
    return [value for value in found if not isinstance(value, types.ModuleType)]


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*inner)

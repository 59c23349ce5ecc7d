"""fusegen's own files: where they lie, and whether this process still runs what lies there.

What is derived and compiled is kept on disk under a digest of the code that made it. That has to be the code which this
process has imported, and a ``git pull`` or an upgrade may have come since. So each file's time, size and inode are
noted here, before anything else of fusegen is imported. A digest is taken of files that are as they were then, and a
module that is imported later on has to be as it was then, too. Templates are all read at once: what is rendered is what
the digest was taken of. A process whose files have changed shares nothing with others from then on, and says so.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from typing import Any

from fusegen.core.errors import CompileError, warn

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Folders that lie at the top of a clone, and in the package when it is installed.
BESIDE = ("nn", "ops", "templates")
_ENDINGS = (".py", ".j2", ".cuh", ".h", ".cpp")

_Mark = tuple[int, int, int]


def folder(name: str) -> str:
    """Where ``fusegen.NAME`` lies; "" is fusegen itself."""
    inside = os.path.join(PACKAGE, name)
    is_beside = name in BESIDE and not os.path.exists(os.path.join(inside, "__init__.py"))
    return os.path.join(os.path.dirname(PACKAGE), name) if is_beside else inside


class Beside:
    """Finds the packages that lie beside fusegen's own folder, where Python was started in the root of a clone.

    An editable install finds them itself, but perhaps those of another clone than fusegen comes from.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As ``importlib`` asks each finder."""
        front, _, last = name.partition(".")
        if front != "fusegen" or last not in BESIDE:
            return None
        return spec_from_file_location(name, os.path.join(folder(last), "__init__.py"))


def find_beside() -> None:
    """From now on ``fusegen.ops`` and its like are those that belong to this fusegen."""
    if folder("ops") != os.path.join(PACKAGE, "ops"):
        sys.meta_path.insert(0, Beside)


# -- what this process runs -------------------------------------------------------------------------------------------


def _mark(path: str) -> _Mark | None:
    """What tells a file from what it was; None where it has gone."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


def _files(top: str) -> Iterator[str]:
    try:
        found = list(os.scandir(top))
    except OSError:
        return
    for entry in found:
        if entry.is_dir():
            yield from () if entry.name == "__pycache__" else _files(entry.path)
        elif entry.name.endswith(_ENDINGS):
            yield entry.path


def _module_name(name: str, path: str) -> str:
    parts = [*filter(None, ["fusegen", name]), *os.path.relpath(path, folder(name))[:-3].split(os.sep)]
    return ".".join(parts if parts[-1] != "__init__" else parts[:-1])


_paths = {name: sorted(_files(folder(name))) for name in BESIDE}
_paths[""] = sorted(set(_files(PACKAGE)).difference(*_paths.values()))
_imported = {path: _mark(path) for paths in _paths.values() for path in paths}
_modules = {_module_name(n, p): p for n, paths in _paths.items() for p in paths if p.endswith(".py")}
_verified: list[Any] = [None] * len(_modules)
_changed = ""


def is_changed() -> bool:
    """Whether this process runs other code than what lay there when it imported fusegen, as far as it was seen."""
    global _verified
    if not _changed:
        loaded = sys.modules
        specs = [getattr(loaded.get(name), "__spec__", None) for name in _modules]  # one loaded again has a new one
        if specs != _verified:
            for path, spec, before in zip(_modules.values(), specs, _verified, strict=True):
                if spec is not None and spec is not before:
                    _check(path)
            _verified = specs
    return bool(_changed)


def _check(path: str) -> None:
    global _changed
    now = _mark(path)
    if _changed or (now is not None and now == _imported[path]):
        return
    _changed = path
    warn(
        f"{path} has changed since this process imported fusegen: what it derives and compiles from now on it keeps to "
        "itself, in memory. Restart it to use what other processes have compiled, and to run the new version."
    )


@functools.cache
def contents(name: str) -> Mapping[str, bytes]:
    """Every file of ``fusegen.NAME`` ("": fusegen's own) by its path in there, as this process runs it, or else after
    ``is_changed`` says so."""
    found = {}
    for path in _paths[name]:
        if os.path.exists(path):
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder(name)).replace(os.sep, "/")] = file.read()
        _check(path)
    return found


def template(name: str) -> str:
    """The text of a file of ``templates/``.

    Raises:
        CompileError: there is no such file.
    """
    return _shipped("templates", name)


def text(path: str) -> str:
    """The text of another file that is no Python, by its path in fusegen's own folder.

    Raises:
        CompileError: there is no such file.
    """
    return _shipped("", path)


def _shipped(where: str, path: str) -> str:
    data = contents(where).get(path)
    if data is None:
        raise CompileError(
            "fusegen's own files", given=f"no {path} in {folder(where)}", expected="the files of an installation",
            fix="restart Python if fusegen was upgraded or removed meanwhile; else install it again",
        )  # fmt: skip
    return data.decode("utf-8")

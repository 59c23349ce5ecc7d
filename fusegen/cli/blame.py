"""Which line of the user's own code an error comes from, so that no traceback has to be read to find it."""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections.abc import Iterator

from fusegen.core import sources
from fusegen.core.errors import FusegenError

# What is imported on the way to a user's line and from there: never the place to look at.
_LIBRARIES = ("click", "cupy", "jinja2", "mpmath", "numpy", "rich", "sympy", "torch", "typer")

# Whether ``described`` ends in the traceback: what --debug says.
with_tracebacks = False


def place(error: BaseException) -> str:
    """``my_ops.py, line 7``: the last line of the user's that was being run; nothing if there is none."""
    found = _line(error)
    return f"{_short(found[0])}, line {found[1]}" if found else ""


def described(error: BaseException) -> str:
    """What to print of an error: its own text if it is one of fusegen's, else its type, and the user's line."""
    text = str(error) if isinstance(error, FusegenError) else _foreign(error)
    if with_tracebacks:
        import traceback

        text += "\n" + "".join(traceback.format_exception(error)).rstrip()
    return text


def _foreign(error: BaseException) -> str:
    found, advice = _line(error), "if it is not the op's own, run again with --debug and report it"
    lines = [f"{type(error).__name__}: {error}".rstrip(": ")]
    if found:
        code = linecache.getline(*found).strip()
        lines.append(f"  at:       {place(error)}{f': {code}' if code else ''}")
        advice = "mend that line; --debug shows how Python came there"
    return "\n".join([*lines, f"  fix:      {advice}"])


def _line(error: BaseException) -> tuple[str, int] | None:
    """File and line. A package that the user installed is the user's only where nothing else is."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return error.filename, error.lineno
    lines = list(_traceback(error))
    installed = [line for line in lines if _is_installed(line[0])]
    own = [line for line in lines if line not in installed]
    return next(reversed(own or installed), None)


def _traceback(error: BaseException) -> Iterator[tuple[str, int]]:
    at = error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if not (file.startswith("<") or _is_known(file)):
            yield file, at.tb_lineno
        at = at.tb_next


def _is_known(file: str) -> bool:
    """Whether it is fusegen's, Python's, or one of a library that fusegen itself calls."""
    if any(_lies_in(file, sources.folder(name)) for name in ("", *sources.BESIDE)):
        return True
    if _is_installed(file):
        return any(_lies_in(file, os.path.join(folder, name)) for folder in _sites() for name in _LIBRARIES)
    return any(_lies_in(file, sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def _is_installed(file: str) -> bool:
    return any(_lies_in(file, folder) for folder in _sites())


def _sites() -> list[str]:
    return [sysconfig.get_path(name) for name in ("purelib", "platlib")]


def _lies_in(file: str, folder: str) -> bool:
    return os.path.realpath(file).startswith(os.path.join(os.path.realpath(folder), ""))


def _short(file: str) -> str:
    """Relative where it lies below the current folder."""
    here = os.path.join(os.path.realpath(os.curdir), "")
    return os.path.realpath(file).removeprefix(here) if _lies_in(file, os.curdir) else file

"""One family of errors. Each says where it happened, what was given, what was expected and how to fix it.

Subclasses name the stage that noticed. They also derive from the built-in exception a Python user would
expect there (``TypeError`` for a wrong dtype, ``ValueError`` for a wrong shape), so that generic handlers work.
"""

from __future__ import annotations

import os
import sys
import warnings


class FusegenError(Exception):
    """Base of every error fusegen raises on purpose.

    Args:
        where: the op, stage or file that noticed, e.g. ``"lerp(x, y, w)"``.
        given: what was passed.
        expected: what would have been right.
        fix: one concrete thing to do about it.
    """

    def __init__(self, where: str, *, given: str, expected: str, fix: str) -> None:
        self.where, self.given, self.expected, self.fix = where, given, expected, fix
        super().__init__(f"{where}\n  given:    {given}\n  expected: {expected}\n  fix:      {fix}")

    def within(self, place: str) -> FusegenError:
        """The same error, said to be in ``place``."""
        return type(self)(f"{place}, {self.where}", given=self.given, expected=self.expected, fix=self.fix)


class DeclarationError(FusegenError, TypeError):
    """The op's Python function says something the language does not have."""


class ShapeError(FusegenError, ValueError):
    """Shapes that do not broadcast, or an axis that does not exist."""


class DtypeError(FusegenError, TypeError):
    """A dtype that the op, the function or the device cannot take."""


class PlaceError(FusegenError, IndexError):
    """A tensor that says where to read or write names a place that is out of range."""


class DeviceError(FusegenError, RuntimeError):
    """Tensors on different devices, or on a device that fusegen cannot reach."""


class DerivativeError(FusegenError, RuntimeError):
    """A gradient was asked for that does not exist."""


class CompileError(FusegenError, RuntimeError):
    """NVRTC or the host compiler rejected generated code, or is missing."""


class LegalityError(FusegenError, AssertionError):
    """A compiler stage produced something its contract forbids: a bug in fusegen, never in the op."""


class CheckError(FusegenError, ArithmeticError):
    """What a kernel computed is not what its op means (``fg.checked``): a bug in fusegen, never in the op."""


class FusegenWarning(UserWarning):
    """What works, but slower than it could or otherwise than one may think."""


_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def warn(text: str) -> None:
    """Tell the user, at the line that called fusegen."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"fusegen: {text}", FusegenWarning, stacklevel=level)

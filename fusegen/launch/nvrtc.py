"""The few functions of NVRTC that compiling needs, straight from its library.

CuPy's binding has them too, but to import it imports half of CuPy: a quarter of a second, of a first call that takes
three. It is still used for an NVRTC that only CuPy finds (`compile._nvrtc`), and has the same functions.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class NVRTCError(RuntimeError):
    """NVRTC's word for what went wrong."""


class Nvrtc:
    """One NVRTC library, with the names of CuPy's binding."""

    NVRTCError = NVRTCError

    def __init__(self, library: Any) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def getVersion(self) -> tuple[int, int]:
        """Major and minor."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def getSupportedArchs(self) -> tuple[int, ...]:
        """Their numbers: 75, 80, ..."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return tuple(numbers)

    def createProgram(self, source: str, name: str, headers: Sequence[bytes], include_names: Sequence[bytes]) -> int:
        """A program of a text, and of those that it includes."""
        program = ctypes.c_void_p()
        texts, names = (_strings(given) for given in (headers, include_names))
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), len(headers), texts, names
        )
        return int(program.value or 0)

    def compileProgram(self, program: int, options: Sequence[str]) -> None:
        """Raises NVRTCError where it does not compile; `getProgramLog` says why."""
        given = _strings([option.encode() for option in options])
        self._call("nvrtcCompileProgram", ctypes.c_void_p(program), len(options), given)

    def getCUBIN(self, program: int) -> bytes:
        """What was compiled."""
        return self._bytes("nvrtcGetCUBIN", program)

    def getProgramLog(self, program: int) -> str:
        """What the compiler said."""
        return self._bytes("nvrtcGetProgramLog", program).decode(errors="replace")

    def destroyProgram(self, program: int) -> None:
        """Frees it."""
        self._call("nvrtcDestroyProgram", ctypes.byref(ctypes.c_void_p(program)))

    def _bytes(self, name: str, program: int) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{name}Size", ctypes.c_void_p(program), ctypes.byref(size))
        found = ctypes.create_string_buffer(size.value)
        self._call(name, ctypes.c_void_p(program), found)
        return found.raw

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = self._library.nvrtcGetErrorString(code) or b"unknown"
            raise NVRTCError(f"{text.decode()} ({code})")


def _strings(given: Sequence[bytes]) -> Any:
    return (ctypes.c_char_p * len(given))(*given)


def libraries() -> list[str]:
    """Every file of NVRTC in NVIDIA's wheels, in an installed toolkit, in conda, or named by LD_LIBRARY_PATH."""
    folders = [Path(entry) / "nvidia" for entry in sys.path if entry]
    patterns = [str(folder / "*" / "lib" / "libnvrtc*.so*") for folder in folders]
    roots = [os.environ.get(name) for name in ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX")]
    patterns += [f"{root}/lib*/libnvrtc*.so*" for root in [*roots, "/usr/local/cuda"] if root]
    patterns += [f"{entry}/libnvrtc*.so*" for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    return [name for pattern in patterns for name in sorted(glob.glob(pattern))]


@functools.cache
def direct() -> Nvrtc | None:
    """The first of `libraries` that loads, of the newest kind that the driver takes; None where none does."""
    newest = _driver_major()
    found = [(int(match[1]), name) for name in libraries() if (match := re.search(r"/libnvrtc\.so\.(\d+)", name))]
    for major, name in sorted(found, key=lambda item: (item[0] > newest, -item[0])):
        try:
            # NVRTC asks for these by name alone, and is found to lie beside them only where nothing wraps dlopen, as
            # AddressSanitizer does. What has been loaded is not looked for.
            for builtins in glob.glob(f"{Path(name).parent}/libnvrtc-builtins.so.{major}.*"):
                ctypes.CDLL(builtins)
            return Nvrtc(ctypes.CDLL(name))
        except (OSError, AttributeError):  # of another machine, or no NVRTC at all: the next one, or CuPy's
            continue
    return None


def _driver_major() -> int:
    """The CUDA that the driver is for: it may refuse what a newer compiler made. Without a driver all will do."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return sys.maxsize
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000

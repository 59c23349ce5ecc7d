"""cuDNN's graph interface by ctypes: what a fused kernel does is given as a graph of operations on tensors.

A matrix product and elementwise operations behind it become one kernel, which cuDNN writes and compiles (in about half
a second). PyTorch for CUDA brings the library and has it loaded, so nothing has to be installed. Names and numbers are
those of ``cudnn_graph.h`` (cuDNN 9), whose enumerations only grow.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

LIBRARY = "libcudnn.so.9"
# The oldest whose numbers these are.
OLDEST = 90000


class Kind(IntEnum):
    """Of descriptors."""

    POINTWISE, ENGINE, CONFIGURATION, HEURISTIC, PLAN = 0, 2, 3, 4, 5
    DO_POINTWISE, GRAPH, PACK, TENSOR, MATMUL, DO_MATMUL = 13, 15, 16, 17, 18, 19


class Type(IntEnum):
    """Of attributes."""

    HANDLE, DATA_TYPE, BOOLEAN, INT64, DOUBLE, POINTER = 0, 1, 2, 3, 5, 6
    HEURISTIC_MODE, NUMERICAL_NOTE, POINTWISE_MODE, DESCRIPTOR = 8, 11, 14, 15


class Data(IntEnum):
    """Of elements."""

    FLOAT, HALF, BFLOAT16, BOOLEAN = 0, 2, 9, 11


class Mode(IntEnum):
    """Of pointwise operations."""

    ADD, MUL, SQRT, DIV, SUB, ABS, EXP, NEG, RSQRT = 0, 1, 4, 6, 9, 10, 13, 16, 17
    TANH, SIGMOID, SOFTPLUS, SWISH, GELU_TANH = 101, 102, 105, 106, 107
    GT, GE, LT, LE, SELECT = 302, 303, 304, 305, 601


class Attribute(IntEnum):
    """Attributes of descriptors."""

    POINTWISE_MODE, POINTWISE_PRECISION, SWISH_BETA = 0, 1, 8
    HEURISTIC_MODE, HEURISTIC_GRAPH, HEURISTIC_RESULTS = 200, 201, 202
    CONFIGURATION_ENGINE = 300
    PLAN_HANDLE, PLAN_CONFIGURATION, PLAN_WORKSPACE = 400, 401, 402
    DO_POINTWISE, POINTWISE_X, POINTWISE_B, POINTWISE_Y, POINTWISE_T = 750, 751, 752, 753, 758
    GRAPH_HANDLE, GRAPH_OPERATIONS = 800, 801
    ALIGNMENT, DATA_TYPE, SIZES, STRIDES, UNIQUE, VIRTUAL, BY_VALUE = 900, 901, 902, 903, 906, 907, 908
    PACK_UNIQUE, PACK_POINTERS, PACK_WORKSPACE = 1000, 1001, 1003
    ENGINE_NOTES = 1303
    MATMUL_PRECISION = 1500
    MATMUL_A, MATMUL_B, MATMUL_C, DO_MATMUL = 1520, 1521, 1522, 1523


# The heuristic that names kernels which do most things.
FALLBACK = 2
NONDETERMINISTIC = 4
_NOTES = 16

_C: Mapping[Type, Any] = {
    Type.HANDLE: ctypes.c_void_p, Type.POINTER: ctypes.c_void_p, Type.DESCRIPTOR: ctypes.c_void_p,
    Type.INT64: ctypes.c_int64, Type.DOUBLE: ctypes.c_double, Type.BOOLEAN: ctypes.c_bool, Type.DATA_TYPE: ctypes.c_int,
    Type.HEURISTIC_MODE: ctypes.c_int, Type.NUMERICAL_NOTE: ctypes.c_int, Type.POINTWISE_MODE: ctypes.c_int,
}  # fmt: skip
FUNCTIONS = (
    "cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute", "cudnnBackendFinalize", "cudnnBackendExecute",
    "cudnnBackendDestroyDescriptor", "cudnnSetStream",
)  # fmt: skip


@functools.cache
def library() -> Any:
    """libcudnn, which torch has loaded.

    Raises:
        OSError: there is none.
    """
    found = ctypes.CDLL(LIBRARY)
    pointer, pointers, count = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
    found.cudnnCreate.argtypes = [pointers]
    found.cudnnSetStream.argtypes = [pointer, pointer]
    found.cudnnBackendCreateDescriptor.argtypes = [ctypes.c_int, pointers]
    found.cudnnBackendDestroyDescriptor.argtypes = [pointer]
    found.cudnnBackendFinalize.argtypes = [pointer]
    found.cudnnBackendSetAttribute.argtypes = [pointer, ctypes.c_int, ctypes.c_int, ctypes.c_int64, pointer]
    found.cudnnBackendGetAttribute.argtypes = [pointer, ctypes.c_int, ctypes.c_int, ctypes.c_int64, count, pointer]
    found.cudnnBackendExecute.argtypes = [pointer, pointer, pointer]
    return found


def addresses() -> tuple[int, ...]:
    """Of FUNCTIONS, for the native call path."""
    return tuple(ctypes.cast(getattr(library(), name), ctypes.c_void_p).value or 0 for name in FUNCTIONS)


class Unsupported(RuntimeError):
    """cuDNN does not support the request in this version or on this GPU. Other failures may be transient."""


# Statuses that are answers: of parameters, of support, and that a kernel does not compile.
_ANSWERS, _UNCOMPILED = range(2000, 4000), 4001


def check(status: int, what: str) -> None:
    """Nothing where a call worked.

    Raises:
        Unsupported: cuDNN cannot do it.
        RuntimeError: it did not do it (memory, say).
    """
    if status:
        kind = Unsupported if status in _ANSWERS or status == _UNCOMPILED else RuntimeError
        raise kind(f"cuDNN's status {status} of {what}")


def make_handle() -> int:
    """A handle for torch's current device, which one thread at a time may use.

    Raises:
        RuntimeError: there is none to be had.
    """
    handle = ctypes.c_void_p()
    check(library().cudnnCreate(ctypes.byref(handle)), "cudnnCreate")
    return handle.value or 0


class Descriptor:
    """A descriptor of cuDNN's backend, destroyed with this object. It keeps the descriptors that it refers to alive.

    Raises:
        RuntimeError: cuDNN cannot make it, or not with these attributes.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind, self.refers = kind, []  # type: tuple[Kind, list[Any]]
        pointer = ctypes.c_void_p()
        check(library().cudnnBackendCreateDescriptor(kind, ctypes.byref(pointer)), kind.name)
        self.pointer = pointer.value or 0
        weakref.finalize(self, library().cudnnBackendDestroyDescriptor, self.pointer).atexit = False

    def set(self, attribute: Attribute, type: Type, *values: Any) -> None:
        """Set an attribute."""
        if type is Type.DESCRIPTOR:
            self.refers += values
            values = tuple(value.pointer for value in values)
        data = (_C[type] * len(values))(*values)
        status = library().cudnnBackendSetAttribute(self.pointer, attribute, type, len(values), data)
        check(status, f"{self.kind.name}, {attribute.name}")

    def finalize(self) -> Descriptor:
        """No attribute can be set after this."""
        check(library().cudnnBackendFinalize(self.pointer), self.kind.name)
        return self

    def get(self, attribute: Attribute, type: Type, most: int = 1) -> list[int]:
        """Get an attribute of plain numbers."""
        found, count = (_C[type] * most)(), ctypes.c_int64()
        status = library().cudnnBackendGetAttribute(self.pointer, attribute, type, most, ctypes.byref(count), found)
        check(status, f"{self.kind.name}, {attribute.name}")
        return list(found)[: count.value]

    def get_descriptors(self, attribute: Attribute, kind: Kind, most: int = 1) -> list[Descriptor]:
        """Get an attribute of descriptors."""
        found = [Descriptor(kind) for _ in range(most)]
        pointers, count = (ctypes.c_void_p * most)(*[one.pointer for one in found]), ctypes.c_int64()
        status = library().cudnnBackendGetAttribute(
            self.pointer, attribute, Type.DESCRIPTOR, most, ctypes.byref(count), pointers
        )
        check(status, f"{self.kind.name}, {attribute.name}")
        return found[: count.value]

    @property
    def is_deterministic(self) -> bool:
        """Of a configuration: whether its engine gives the same bits again."""
        (engine,) = self.get_descriptors(Attribute.CONFIGURATION_ENGINE, Kind.ENGINE)
        return NONDETERMINISTIC not in engine.get(Attribute.ENGINE_NOTES, Type.NUMERICAL_NOTE, _NOTES)

"""cuBLASLt by ctypes: matrix products with an epilogue, by an algorithm of the caller's choice.

PyTorch for CUDA brings the library and has it loaded, so nothing has to be installed. Names and numbers are those of
``cublasLt.h`` and ``library_types.h``, which are the same for CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class CublasLtEpilogue(IntEnum):
    """What happens to sums before they are rounded. GELU is its tanh form, AUX writes what it takes."""

    DEFAULT, RELU, BIAS, RELU_BIAS, GELU, GELU_BIAS, GELU_AUX, GELU_AUX_BIAS = 1, 2, 4, 6, 32, 36, 160, 164


class MatmulDescAttr(IntEnum):
    """``cublasLtMatmulDescAttributes_t``. AUX: the tensor that gets an activation's argument; its pitch."""

    TRANSPOSED_A, TRANSPOSED_B, EPILOGUE, BIAS, AUX, AUX_PITCH = 3, 4, 7, 8, 11, 12


class MatmulPrefAttr(IntEnum):
    """``cublasLtMatmulPreferenceAttributes_t``: what the heuristic is to look for."""

    MOST_WORKSPACE, REDUCTIONS, ALIGNMENT_A, ALIGNMENT_B, ALIGNMENT_C, ALIGNMENT_D = 1, 3, 5, 6, 7, 8


class Kind(IntEnum):
    """What is created and destroyed; their names in C."""

    MatmulDesc, MatrixLayout, MatmulPreference = range(3)


# By the class of the attribute: the numbers of one are those of another.
_TYPES: Mapping[type, Mapping[int, Any]] = {
    MatmulDescAttr: {
        MatmulDescAttr.TRANSPOSED_A: ctypes.c_int32, MatmulDescAttr.TRANSPOSED_B: ctypes.c_int32,
        MatmulDescAttr.EPILOGUE: ctypes.c_uint32, MatmulDescAttr.BIAS: ctypes.c_uint64,
        MatmulDescAttr.AUX: ctypes.c_uint64, MatmulDescAttr.AUX_PITCH: ctypes.c_int64,
    },
    MatmulPrefAttr: {
        **dict.fromkeys(MatmulPrefAttr, ctypes.c_uint32), MatmulPrefAttr.MOST_WORKSPACE: ctypes.c_uint64,
    },
}  # fmt: skip
# cudaDataType_t, by the names of dtypes.
DATA = {"float32": 0, "float16": 2, "bfloat16": 14}
# cublasComputeType_t: factors of halves, sums of float32.
COMPUTED_IN_FLOAT32 = 68
# cublasLtReductionScheme_t: partial sums are added up as they were computed, in order.
REDUCED_AS_COMPUTED = 2
# Of calls that an algorithm, or all of them, cannot do: CUBLAS_STATUS_INVALID_VALUE, _ARCH_MISMATCH, _NOT_SUPPORTED.
_ANSWERS = (7, 8, 15)


class HeuristicResult(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``: an algorithm, which may be stored for as long as the library's version stays
    the same, and the workspace that it takes."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("status", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


class Unsupported(RuntimeError):
    """cuBLASLt does not support the request in this version or on this GPU. Other failures may be transient."""


@functools.cache
def library() -> Any:
    """libcublasLt, which torch has loaded.

    Raises:
        OSError: there is none.
    """
    import torch

    found = ctypes.CDLL(f"libcublasLt.so.{str(torch.version.cuda).partition('.')[0]}")
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    found.cublasLtGetVersion.restype = size
    found.cublasLtCreate.argtypes = [pointer]
    found.cublasLtMatmulDescCreate.argtypes = [pointer, ctypes.c_int, ctypes.c_int]
    found.cublasLtMatrixLayoutCreate.argtypes = [
        pointer, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64
    ]  # fmt: skip
    found.cublasLtMatmulPreferenceCreate.argtypes = [pointer]
    for kind in Kind:
        getattr(found, f"cublasLt{kind.name}Destroy").argtypes = [pointer]
        if kind is not Kind.MatrixLayout:
            getattr(found, f"cublasLt{kind.name}SetAttribute").argtypes = [pointer, ctypes.c_int, pointer, size]
    found.cublasLtMatmulAlgoGetHeuristic.argtypes = [*[pointer] * 7, ctypes.c_int, pointer, pointer]
    found.cublasLtMatmulAlgoCheck.argtypes = [*[pointer] * 8]
    found.cublasLtMatmul.argtypes = [*[pointer] * 14, size, pointer]
    return found


def check(status: int, what: str) -> None:
    """Nothing where a call worked.

    Raises:
        Unsupported: cuBLASLt cannot do it.
        RuntimeError: it did not do it (memory, say).
    """
    if status:
        raise (Unsupported if status in _ANSWERS else RuntimeError)(f"cuBLASLt's status {status} of {what}")


def address(name: str) -> int:
    """Of one of its functions, for the native call path."""
    return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value or 0


@functools.cache
def handle(device: int) -> int:
    """For torch's current device, which is that one; threads may share it, and it lives as long as the process.

    Raises:
        RuntimeError: there is none to be had.
    """
    found = ctypes.c_void_p()
    check(library().cublasLtCreate(ctypes.byref(found)), "cublasLtCreate")
    return found.value or 0


class Descriptor:
    """A descriptor of cuBLASLt, destroyed with this object.

    Args:
        arguments: of the function that creates it.

    Raises:
        RuntimeError: cuBLASLt cannot make it.
    """

    def __init__(self, kind: Kind, *arguments: int) -> None:
        self.name = f"cublasLt{kind.name}"
        found = ctypes.c_void_p()
        check(getattr(library(), f"{self.name}Create")(ctypes.byref(found), *arguments), f"{self.name}Create")
        self.pointer = found.value or 0
        weakref.finalize(self, getattr(library(), f"{self.name}Destroy"), self.pointer).atexit = False

    def set(self, attribute: MatmulDescAttr | MatmulPrefAttr, value: int) -> None:
        """Set an attribute."""
        data = _TYPES[type(attribute)][attribute](value)
        set_attribute = getattr(library(), f"{self.name}SetAttribute")
        check(set_attribute(self.pointer, attribute, ctypes.byref(data), ctypes.sizeof(data)), attribute.name)

"""nvmath-python's bindings as far as fusegen calls them, on CPU memory: descriptors are dictionaries."""

from __future__ import annotations

import ctypes
import enum
import itertools
from types import SimpleNamespace
from typing import Any

import numpy
import torch
import torch.nn.functional as F


class CudaDataType(enum.IntEnum):
    CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF = 0, 2, 14


class ComputeType(enum.IntEnum):
    COMPUTE_32F = 68


class Operation(enum.IntEnum):
    N, T = 0, 1


class Epilogue(enum.IntEnum):
    RELU, GELU, GELU_AUX, GELU_AUX_BIAS = 2, 32, 160, 164


class ReductionScheme(enum.IntEnum):
    COMPUTE_TYPE = 2


class MatmulDescAttribute(enum.IntEnum):
    TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, EPILOGUE_AUX_POINTER, EPILOGUE_AUX_LD = 3, 4, 7, 8, 11, 12


class MatmulPreferenceAttribute(enum.IntEnum):
    MAX_WORKSPACE_BYTES, REDUCTION_SCHEME_MASK = 1, 3
    MIN_ALIGNMENT_A_BYTES, MIN_ALIGNMENT_B_BYTES, MIN_ALIGNMENT_C_BYTES, MIN_ALIGNMENT_D_BYTES = 5, 6, 7, 8


class Error(Exception):
    pass


class Result(SimpleNamespace):
    """What the heuristic found."""

    def __init__(self, count: int) -> None:
        super().__init__(ptr=1000, workspace_size=64)


DTYPES = {CudaDataType.CUDA_R_16F: torch.float16, CudaDataType.CUDA_R_16BF: torch.bfloat16}


class CublasLt(SimpleNamespace):
    """The module ``nvmath.bindings.cublasLt``.

    Attributes:
        things: what has been made and not destroyed, by handle.
        ran: the epilogues that were computed.
        drops_nan: relu makes 0 of NaN, as cuBLASLt's own does.
    """

    Epilogue, ReductionScheme = Epilogue, ReductionScheme
    MatmulDescAttribute, MatmulPreferenceAttribute = MatmulDescAttribute, MatmulPreferenceAttribute
    MatmulHeuristicResult, cuBLASLtError = Result, Error

    def __init__(self) -> None:
        super().__init__(things={}, ran=[], handles=itertools.count(1), drops_nan=False, algorithms=1)

    def _make(self, thing: Any) -> int:
        handle = next(self.handles)
        self.things[handle] = thing
        return handle

    def create(self) -> int:
        return next(self.handles)

    def get_version(self) -> int:
        return 130000

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        assert (compute, scale) == (ComputeType.COMPUTE_32F, CudaDataType.CUDA_R_32F)
        return self._make({})

    def matrix_layout_create(self, kind: int, rows: int, columns: int, pitch: int) -> int:
        assert pitch >= rows and pitch % 8 == 0
        return self._make((DTYPES[CudaDataType(kind)], rows, columns, pitch))

    def matmul_preference_create(self) -> int:
        return self._make({})

    def matmul_desc_destroy(self, handle: int) -> None:
        del self.things[handle]

    matrix_layout_destroy = matmul_preference_destroy = matmul_desc_destroy

    def get_matmul_desc_attribute_dtype(self, attribute: MatmulDescAttribute) -> Any:
        return numpy.int32 if attribute < MatmulDescAttribute.BIAS_POINTER else numpy.int64

    def get_matmul_preference_attribute_dtype(self, attribute: MatmulPreferenceAttribute) -> Any:
        return numpy.uint64 if attribute == MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES else numpy.uint32

    def matmul_desc_set_attribute(self, handle: int, attribute: int, address: int, size: int) -> None:
        kind = {4: ctypes.c_int32, 8: ctypes.c_int64}[size]
        self.things[handle][attribute] = kind.from_address(address).value

    matmul_preference_set_attribute = matmul_desc_set_attribute

    def matmul_algo_get_heuristic(self, *arguments: int) -> None:
        preference, count = arguments[6], arguments[-1]
        assert self.things[preference][MatmulPreferenceAttribute.MIN_ALIGNMENT_D_BYTES] == 16
        ctypes.c_int32.from_address(count).value = self.algorithms

    def _matrix(self, address: int, dtype: torch.dtype, rows: int, columns: int, pitch: int) -> torch.Tensor:
        """Memory as a matrix, columns first."""
        assert address % 16 == 0
        memory = (ctypes.c_uint16 * (pitch * (columns - 1) + rows)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).as_strided((rows, columns), (1, pitch))

    def matmul(
        self, handle: int, operation: int, one: int, a: int, a_layout: int, b: int, b_layout: int, zero: int,
        c: int, c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int, size: int, stream: int,
    ) -> None:  # fmt: skip
        assert ctypes.c_float.from_address(one).value == 1 and ctypes.c_float.from_address(zero).value == 0
        assert algorithm == 1000 and workspace and size >= 64 and (c, c_layout) == (d, d_layout)
        told, attribute = self.things[operation], MatmulDescAttribute
        left, right, out = (
            self._matrix(address, *self.things[layout])
            for address, layout in ((a, a_layout), (b, b_layout), (d, d_layout))
        )
        left, right = (
            factor.mT if told[which] == Operation.T else factor
            for factor, which in ((left, attribute.TRANSA), (right, attribute.TRANSB))
        )
        total = left.float() @ right.float()
        epilogue = Epilogue(told[attribute.EPILOGUE])
        if "BIAS" in epilogue.name:
            total = total + self._matrix(told[attribute.BIAS_POINTER], out.dtype, len(out), 1, len(out)).float()
        if "AUX" in epilogue.name:
            pitch = told[attribute.EPILOGUE_AUX_LD]
            assert pitch % 8 == 0
            self._matrix(told[attribute.EPILOGUE_AUX_POINTER], out.dtype, *out.shape, pitch).copy_(total)
        relu = total.nan_to_num(0.0, torch.inf).relu() if self.drops_nan else total.relu()
        out.copy_(relu if epilogue is Epilogue.RELU else F.gelu(total, approximate="tanh"))
        self.ran.append(epilogue.name)

    def addresses(self) -> tuple[int, int]:
        """Of functions that C calls: those that multiply, and that tell a descriptor something."""

        def matmul(*arguments: Any) -> int:
            self.matmul(*(argument or 0 for argument in arguments))
            self.ran.append("natively")
            return 0

        def tell(*arguments: int) -> int:
            self.matmul_desc_set_attribute(*arguments)
            return 0

        pointer = ctypes.c_void_p
        self.functions = (
            ctypes.CFUNCTYPE(ctypes.c_int, *[pointer] * 14, ctypes.c_size_t, pointer)(matmul),
            ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_int, pointer, ctypes.c_size_t)(tell),
        )
        first, second = (ctypes.cast(function, pointer).value or 0 for function in self.functions)
        return first, second


def modules() -> tuple[CublasLt, dict[str, Any]]:
    """The fake, and what goes into ``sys.modules``."""
    lt, blas = CublasLt(), SimpleNamespace(ComputeType=ComputeType, Operation=Operation)
    bindings = SimpleNamespace(cublasLt=lt, cublas=blas)
    package = SimpleNamespace(CudaDataType=CudaDataType, bindings=bindings)
    return lt, {
        "nvmath": package, "nvmath.bindings": bindings, "nvmath.bindings.cublasLt": lt, "nvmath.bindings.cublas": blas,
    }  # fmt: skip

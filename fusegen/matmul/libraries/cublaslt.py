"""One matrix product by cuBLASLt (matmul/libraries/cublaslt_api), planned: what it is given of the matrices, and an
algorithm.

cuBLASLt counts columns first. A row-major result is the transposed product of the transposed factors to it, and the
bias lies along what it calls rows. A multiplication that has been planned holds no tensor: addresses are handed over
with each run, the bias's and the saved argument's in its descriptor, which is why one thread at a time runs it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from fusegen.core import locks
from fusegen.core.dtypes import DType
from fusegen.matmul.libraries import cublaslt_api as api
from fusegen.matmul.libraries.cublaslt_api import (
    CublasLtEpilogue,
    Descriptor,
    HeuristicResult,
    Kind,
    MatmulDescAttr,
    MatmulPrefAttr,
)
from fusegen.matmul.padding import ALIGNMENT
from fusegen.matmul.task import Factors, Task
from fusegen.plan.native_step import TorchStep, View

# torch's own bound for cuBLASLt on GPUs of this kind. It is taken from torch's allocator for each run.
WORKSPACE = 32 * 2**20
# With an epilogue cuBLASLt writes so many bytes beyond what it asks for; NVIDIA's own nvmath-python adds as much.
_BEYOND = 16


@functools.cache
def version() -> int:
    """Of the library that torch has loaded, 130100 for 13.1; 0 where there is none."""
    try:
        return int(api.library().cublasLtGetVersion())
    except (ImportError, OSError, AttributeError):
        return 0


@dataclass(frozen=True)
class MatmulOptions:
    """How cuBLASLt finishes a product.

    Args:
        adds: they are added to what the result holds, and rounded once.
        workspace: the most bytes that an algorithm may take besides.
    """

    epilogue: CublasLtEpilogue = CublasLtEpilogue.DEFAULT
    adds: bool = False
    workspace: int = WORKSPACE

    @property
    def parts(self) -> list[str]:
        """Of its name: ["GELU", "AUX", "BIAS"]."""
        return self.epilogue.name.split("_")


@dataclass(frozen=True)
class Algorithm:
    """As the library stores it, and the bytes of workspace that it takes."""

    data: bytes
    workspace: int

    @classmethod
    def of(cls, found: HeuristicResult) -> Algorithm:
        """What the library has found."""
        size = int(found.workspace)
        return cls(bytes(found.algorithm), size + _BEYOND if size else 0)


class Planned:
    """A multiplication.

    Args:
        task: its epilogue is a ``MatmulOptions``.
        algorithm: None: the one that the library's heuristic likes best.

    Raises:
        Unsupported: cuBLASLt does not do it, or not by this algorithm.
        RuntimeError: it fails for another reason.
    """

    def __init__(self, task: Task, algorithm: Algorithm | None = None) -> None:
        options, kind = task.epilogue, api.DATA[task.dtype]
        assert isinstance(options, MatmulOptions)
        rows, columns, inner = task.sizes
        self.options, self.lock, self.handle = options, locks.lock(), api.handle(task.device)
        self.operation = Descriptor(Kind.MatmulDesc, api.COMPUTED_IN_FLOAT32, api.DATA["float32"])
        self.operation.set(MatmulDescAttr.TRANSPOSED_A, task.right[1])
        self.operation.set(MatmulDescAttr.TRANSPOSED_B, task.left[1])
        self.operation.set(MatmulDescAttr.EPILOGUE, options.epilogue)
        # In the order of the tensors behind left, right and result.
        self.pointers = [MatmulDescAttr[name] for name in ("BIAS", "AUX") if name in options.parts]
        for attribute in self.pointers:  # the choice of an algorithm depends on whether there is one
            self.operation.set(attribute, ALIGNMENT)
        if MatmulDescAttr.AUX in self.pointers:
            self.operation.set(MatmulDescAttr.AUX_PITCH, task.pitches[1])
        self.layouts = [
            _layout(kind, columns, inner, *task.right),
            _layout(kind, inner, rows, *task.left),
            _layout(kind, columns, rows, task.pitches[0], False),
        ]
        if algorithm is None:
            algorithm = self.offers(1)[0]
        else:
            self._check(algorithm)
        self.use(algorithm)

    def use(self, algorithm: Algorithm) -> None:
        """From now on."""
        self.algorithm, self.data = algorithm, ctypes.create_string_buffer(algorithm.data, len(algorithm.data))

    def offers(self, most: int) -> list[Algorithm]:
        """Algorithms within the workspace, those first that the library's heuristic likes.

        Raises:
            Unsupported: there are none.
        """
        preference = Descriptor(Kind.MatmulPreference)
        for attribute in (
            MatmulPrefAttr.ALIGNMENT_A,
            MatmulPrefAttr.ALIGNMENT_B,
            MatmulPrefAttr.ALIGNMENT_C,
            MatmulPrefAttr.ALIGNMENT_D,
        ):
            preference.set(attribute, ALIGNMENT)
        preference.set(MatmulPrefAttr.MOST_WORKSPACE, max(self.options.workspace - _BEYOND, 0))
        preference.set(MatmulPrefAttr.REDUCTIONS, api.REDUCED_AS_COMPUTED)
        found, count = (HeuristicResult * most)(), ctypes.c_int()
        status = api.library().cublasLtMatmulAlgoGetHeuristic(
            self.handle, self.operation.pointer, *self._pointers(), preference.pointer, most, found, ctypes.byref(count)
        )
        api.check(status, "cublasLtMatmulAlgoGetHeuristic")
        if not count.value:
            raise api.Unsupported("cuBLASLt has no algorithm for this")
        return [Algorithm.of(one) for one in found[: count.value] if not one.status]

    def _check(self, algorithm: Algorithm) -> None:
        data, found = ctypes.create_string_buffer(algorithm.data, len(algorithm.data)), HeuristicResult()
        status = api.library().cublasLtMatmulAlgoCheck(
            self.handle, self.operation.pointer, *self._pointers(), data, ctypes.byref(found)
        )
        api.check(status or found.status, "cublasLtMatmulAlgoCheck")
        if Algorithm.of(found).workspace > algorithm.workspace:
            raise api.Unsupported("an algorithm that was stored for less workspace")

    def _pointers(self) -> list[int]:
        a, b, d = (layout.pointer for layout in self.layouts)
        return [a, b, d, d]

    def run(self, given: Factors, scale: float = 1.0) -> None:
        """Compute ``given.out`` (and ``given.preactivation``) on torch's current stream; ``scale``: times the product.

        Raises:
            RuntimeError: cuBLASLt does not launch it.
        """
        import torch

        out, (a, b, d, _) = given.out, self._pointers()
        workspace = torch.empty(self.algorithm.workspace, dtype=torch.uint8, device=out.device)
        stream = torch._C._cuda_getCurrentRawStream(out.device.index) if out.is_cuda else 0
        alpha, beta = ctypes.c_float(scale), ctypes.c_float(self.options.adds)
        with torch.cuda.device_of(out), self.lock:
            for attribute, tensor in ((MatmulDescAttr.BIAS, given.bias), (MatmulDescAttr.AUX, given.preactivation)):
                if attribute in self.pointers:
                    self.operation.set(attribute, tensor.data_ptr())
            status = api.library().cublasLtMatmul(
                self.handle, self.operation.pointer, ctypes.byref(alpha), given.right.data_ptr(), a,
                given.left.data_ptr(), b, ctypes.byref(beta), out.data_ptr(), d, out.data_ptr(), d, self.data,
                workspace.data_ptr(), self.algorithm.workspace, stream,
            )  # fmt: skip
        api.check(status, "cublasLtMatmul")

    def step(self, names: Sequence[str], views: Sequence[View], dtype: DType) -> TorchStep:
        """The same for the native call path, which has to have it for itself: only one thread at a time can give a
        descriptor addresses.

        Args:
            names: left, right, result, then bias and saved argument where there are any; ``views``: how they lie.
        """
        functions = [api.address(name) for name in ("cublasLtMatmul", "cublasLtMatmulDescSetAttribute")]
        a, b, d, _ = self._pointers()
        addresses = [int(which) if which in self.pointers else 0 for which in (MatmulDescAttr.BIAS, MatmulDescAttr.AUX)]
        fields = (
            *functions, self.handle, self.operation.pointer, a, b, d, ctypes.addressof(self.data),
            self.algorithm.workspace, *addresses, int(self.options.adds),
        )  # fmt: skip
        return TorchStep(tuple(names), tuple(views), dtype, "planned", fields, self)


def _layout(kind: int, rows: int, columns: int, pitch: int, transposed: bool) -> Descriptor:
    """As it is stored: columns first, so that a row of ours is a column."""
    rows, columns = (columns, rows) if transposed else (rows, columns)
    return Descriptor(Kind.MatrixLayout, kind, rows, columns, pitch)

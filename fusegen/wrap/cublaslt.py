"""cuBLASLt through nvmath-python's bindings (the extra ``nvmath``): epilogues that torch has no function for.

GELU_AUX_BIAS writes gelu (its tanh form) of product + bias and, beside it, that sum, rounded to the result's dtype:
what the backward reads. nvmath's own ``Matmul`` allocates both results itself, the second with rows rounded up to eight
elements; a plan's results are ours, so here are the calls beneath it.

cuBLASLt counts columns first. A row-major result is the transposed product of the transposed factors to it, and the
bias lies along what it calls rows. A multiplication that has been planned holds no tensor: addresses are handed over
with each run, the bias's and the kept argument's in its descriptor, which is why one thread at a time runs it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any

from fusegen.core.dtypes import DType
from fusegen.wrap.closing import Closing
from fusegen.wrap.factors import Factors, Task
from fusegen.wrap.padding import ALIGNMENT
from fusegen.wrap.products import Arranged
from fusegen.wrap.torch_step import TorchStep, View

PACKAGE = "nvmath-python"
# torch's own bound for cuBLASLt on GPUs of this kind. It is taken from torch's allocator for each run.
WORKSPACE = 32 * 2**20
MOST_PLANNED = 256
EPILOGUES = {
    "relu without bias": "RELU",
    "gelu without bias": "GELU",
    "gelu without bias, its argument kept": "GELU_AUX",
    "gelu, its argument kept": "GELU_AUX_BIAS",
}


@functools.cache
def version() -> str:
    """Of the installed package, without importing it; empty where there is none."""
    from importlib import metadata

    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return ""


def is_considered(device: str) -> bool:
    """Whether tensors on ``device`` could go this way."""
    return device.startswith("cuda") and bool(version())


@functools.cache
def _bindings() -> tuple[Any, str]:
    """nvmath's bindings of cuBLASLt, or why they cannot be used. Importing them takes seconds, so a product asks."""
    try:
        from nvmath.bindings import cublasLt

        cublasLt.get_version()  # finds the library
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return None, f"{type(error).__name__}: {error}"
    return cublasLt, ""


def problem() -> str:
    """Why nothing goes this way; empty where it can. Imports the package."""
    return _bindings()[1] if version() else f"{PACKAGE} is not installed"


def has(closing: Closing, dtype: str) -> bool:
    """Whether this is the way to an epilogue: torch has the others."""
    return dtype in ("float16", "bfloat16") and closing.title in EPILOGUES


def _task(closing: Closing, given: Factors) -> Task | None:
    return Task.on(EPILOGUES[closing.title], given)


def is_ready(closing: Closing, given: Factors) -> bool:
    """Whether it can run now. What is new is planned, but not while a CUDA graph is captured."""
    task = _task(closing, given)
    if task is None:
        return False
    if task not in _planned:
        import torch

        if torch.cuda.is_current_stream_capturing():
            return False
        with torch.cuda.device_of(given.out), _planning:
            if len(_planned) >= MOST_PLANNED:
                _planned.clear()
            try:
                _planned[task] = _Planned(task)
            except RuntimeError:  # another way does it
                _planned[task] = None
    return _planned.get(task) is not None


def run(closing: Closing, given: Factors) -> None:
    """Compute ``given.out`` and ``given.kept`` on torch's current stream, after ``is_ready``.

    Raises:
        RuntimeError: cuBLASLt does not launch it.
    """
    import torch

    task = _task(closing, given)
    assert task is not None
    planned = _planned.get(task)
    with torch.cuda.device_of(given.out):
        (planned or _Planned(task)).run(given)


def step(closing: Closing, arranged: Arranged, dtype: DType, device: str) -> TorchStep | None:
    """The same for the native call path, after ``is_ready``; None where it has to go through Python.

    It has a plan of its own: a descriptor can be told addresses by one thread at a time.
    """
    result, found = arranged.views[2], _addresses()
    index = int(device.partition(":")[2] or 0)
    task = Task.of(EPILOGUES[closing.title], dtype.name, index, arranged.views[:2], [result] * (1 + bool(closing.kept)))
    if task is None or _planned.get(task) is None or found is None:
        return None
    import torch

    with torch.cuda.device(index if device != "cpu" else -1):
        planned = _Planned(task)
    attributes = planned.lt.MatmulDescAttribute
    pointers = [
        int(attributes[name]) if there else 0
        for name, there in (("BIAS_POINTER", closing.bias), ("EPILOGUE_AUX_POINTER", closing.kept))
    ]
    handles = [planned.handle, planned.operation, *planned.layouts, planned.algorithm.ptr, planned.workspace]
    more = [(closing.bias, View(result.shape[-1:], (1,), 0)), (closing.kept, result)]
    names, views = arranged.names, arranged.views
    return TorchStep(
        (*names, *(name for name, _ in more if name)), (*views, *(view for name, view in more if name)), dtype,
        "planned", (*found, *handles, *pointers), planned,
    )  # fmt: skip


@functools.cache
def _addresses() -> tuple[int, int] | None:
    """Of cuBLASLt's functions that multiply and that tell a descriptor something; None where they are not found."""
    import ctypes

    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        library = ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)  # the one that the bindings have loaded
        functions = library.cublasLtMatmul, library.cublasLtMatmulDescSetAttribute
    except (ImportError, OSError, RuntimeError, AttributeError, TypeError):
        return None
    matmul, tell = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return matmul, tell


_planned: dict[Task, _Planned | None] = {}
_planning = threading.Lock()


class _Planned:
    """One multiplication: descriptors, and the algorithm that cuBLASLt's heuristic likes best."""

    def __init__(self, task: Task) -> None:
        lt, wrong = _bindings()
        if wrong:
            raise RuntimeError(wrong)
        import numpy
        from nvmath import CudaDataType
        from nvmath.bindings import cublas

        self.lt, self.lock, self.numpy = lt, threading.Lock(), numpy
        self.one, self.zero = numpy.ones(1, numpy.float32), numpy.zeros(1, numpy.float32)
        kind = {"float16": CudaDataType.CUDA_R_16F, "bfloat16": CudaDataType.CUDA_R_16BF}[task.dtype]
        rows, columns, inner = task.sizes
        epilogue = str(task.epilogue)
        self.made: list[tuple[Any, int]] = []
        weakref.finalize(self, _destroy, self.made).atexit = False  # the library may be gone by then
        try:
            self.handle = _handle(task.device)
            self.operation = self._own(
                lt.matmul_desc_create(cublas.ComputeType.COMPUTE_32F, CudaDataType.CUDA_R_32F), lt.matmul_desc_destroy
            )
            transposed = [cublas.Operation.T if side[1] else cublas.Operation.N for side in (task.right, task.left)]
            for attribute, value in (
                ("TRANSA", transposed[0]), ("TRANSB", transposed[1]), ("EPILOGUE", lt.Epilogue[epilogue]),
            ):  # fmt: skip
                self._describe(attribute, value)
            if "AUX" in epilogue:
                self._describe("EPILOGUE_AUX_LD", task.pitches[1])
            self.layouts = [
                self._layout(kind, columns, inner, *task.right),
                self._layout(kind, inner, rows, *task.left),
                self._layout(kind, columns, rows, task.pitches[0], False),
            ]
            self.algorithm, self.workspace = self._algorithm(epilogue)
        except lt.cuBLASLtError as error:
            raise RuntimeError(f"cuBLASLt: {error}") from error

    def _own(self, thing: int, destroy: Any) -> int:
        self.made.append((destroy, thing))
        return thing

    def _layout(self, kind: int, rows: int, columns: int, pitch: int, transposed: bool) -> int:
        """As it is stored: columns first, so that a row of ours is a column."""
        rows, columns = (columns, rows) if transposed else (rows, columns)
        return self._own(self.lt.matrix_layout_create(kind, rows, columns, pitch), self.lt.matrix_layout_destroy)

    def _describe(self, attribute: str, value: int) -> None:
        which = self.lt.MatmulDescAttribute[attribute]
        told = self.numpy.array([value], self.lt.get_matmul_desc_attribute_dtype(which))
        self.lt.matmul_desc_set_attribute(self.operation, which, told.ctypes.data, told.nbytes)

    def _algorithm(self, epilogue: str) -> tuple[Any, int]:
        """The best one within the workspace, and how much of that it takes."""
        lt, numpy = self.lt, self.numpy
        preference = self._own(lt.matmul_preference_create(), lt.matmul_preference_destroy)
        wishes = {f"MIN_ALIGNMENT_{matrix}_BYTES": ALIGNMENT for matrix in "ABCD"}
        wishes |= {"MAX_WORKSPACE_BYTES": WORKSPACE, "REDUCTION_SCHEME_MASK": lt.ReductionScheme.COMPUTE_TYPE}
        for name, value in wishes.items():
            which = lt.MatmulPreferenceAttribute[name]
            told = numpy.array([value], lt.get_matmul_preference_attribute_dtype(which))
            lt.matmul_preference_set_attribute(preference, which, told.ctypes.data, told.nbytes)
        for part, pointer in (("BIAS", "BIAS_POINTER"), ("AUX", "EPILOGUE_AUX_POINTER")):
            if part in epilogue:  # that there will be one is part of the question
                self._describe(pointer, ALIGNMENT)
        found, count = lt.MatmulHeuristicResult(1), numpy.zeros(1, numpy.int32)
        a, b, d = self.layouts
        lt.matmul_algo_get_heuristic(
            self.handle, self.operation, a, b, d, d, preference, 1, found.ptr, count.ctypes.data
        )  # fmt: skip
        if not count[0]:
            raise RuntimeError("cuBLASLt has no algorithm for this")
        size = int(found.workspace_size)
        # With an epilogue cuBLASLt writes beyond what it asks for; nvmath's own Matmul adds as much.
        return found, size + 16 if size else 0

    def run(self, given: Factors) -> None:
        import torch

        out = given.out
        workspace = torch.empty(self.workspace, dtype=torch.uint8, device=out.device)
        stream = torch._C._cuda_getCurrentRawStream(out.device.index) if out.is_cuda else 0
        a, b, d = self.layouts
        with self.lock:
            if given.bias is not None:
                self._describe("BIAS_POINTER", given.bias.data_ptr())
            if given.kept is not None:
                self._describe("EPILOGUE_AUX_POINTER", given.kept.data_ptr())
            self._launch(
                self.handle, self.operation, self.one.ctypes.data, given.right.data_ptr(), a, given.left.data_ptr(), b,
                self.zero.ctypes.data, out.data_ptr(), d, out.data_ptr(), d,
                self.algorithm.ptr,  # a result of the heuristic begins with its algorithm
                workspace.data_ptr(), self.workspace, stream,
            )  # fmt: skip

    def _launch(self, *arguments: Any) -> None:
        try:
            self.lt.matmul(*arguments)
        except self.lt.cuBLASLtError as error:
            raise RuntimeError(f"cuBLASLt: {error}") from error


def _destroy(made: list[tuple[Any, int]]) -> None:
    while made:
        destroy, thing = made.pop()
        destroy(thing)


@functools.cache
def _handle(device: int) -> int:
    """cuBLASLt's, which threads may share; it lives as long as the process."""
    return int(_bindings()[0].create())

"""Products with an elementwise activation as one kernel that cuDNN writes and compiles (matmul/libraries/cudnn_api).

cuBLASLt's epilogues are relu and one form of gelu. cuDNN takes the activation as a graph of operations, computed in
float32 like our kernels, and also writes the activation's argument where a backward needs it. A kernel is
for exact sizes and takes half a second to make, so only products large enough to gain from it come here, and of sizes
that differ in every call only the first few.
"""

from __future__ import annotations

import ctypes
import functools
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fusegen.core import locks
from fusegen.core.dtypes import DType
from fusegen.core.ir import Call, Const, Expr
from fusegen.matmul.epilogue import ARGUMENT, AuxiliaryInput, Epilogue
from fusegen.matmul.libraries import cudnn_api
from fusegen.matmul.libraries.cudnn_api import Attribute, Data, Descriptor, Kind, Mode, Type
from fusegen.matmul.libraries.cudnn_ops import COMPARISONS, MODES, TYPES, in_its_operations, power, read, swish
from fusegen.matmul.padding import ALIGNMENT
from fusegen.matmul.task import Factors, Task, TransientFailure
from fusegen.matmul.views import MatmulViews
from fusegen.plan.native_step import TorchStep, View

# Elements of a result from which a pass over it, the one that is saved, takes longer than the differences between
# libraries' products.
LEAST = 2**22
# Kernels for products alike but for their exact sizes, and in all.
MOST_ALIKE, MOST_KERNELS = 4, 256


def is_considered(device: str) -> bool:
    """Whether cuDNN is a candidate for tensors on ``device``: torch has it, and may use it."""
    if not device.startswith("cuda"):
        return False
    import torch

    return torch.backends.cudnn.enabled and version() >= cudnn_api.OLDEST


@functools.cache
def version() -> int:
    """Of the library that torch has loaded; 0 where there is none."""
    import torch

    try:
        found = torch.backends.cudnn.version() or 0
        cudnn_api.library()
    except (OSError, AttributeError, RuntimeError):
        return 0
    return int(found)


@dataclass(frozen=True)
class GraphEpilogue:
    """What happens behind a product. ``function``: None for gelu's tanh form, which cuDNN has as one operation.

    ``auxiliary``: what else it reads.
    """

    function: Expr | None
    bias: bool
    preactivation: bool
    auxiliary: tuple[AuxiliaryInput, ...] = ()


def _graph_epilogue(epilogue: Epilogue) -> GraphEpilogue:
    assert epilogue.function is not None
    is_gelu = epilogue.activation == "gelu"
    auxiliary = tuple(ref for _, ref in epilogue.auxiliary)
    return GraphEpilogue(
        None if is_gelu else in_its_operations(epilogue.function),
        bool(epilogue.bias),
        bool(epilogue.preactivation),
        auxiliary,
    )


_kernels: dict[Task, _Kernel | None] = {}
_alike: Counter[Any] = Counter()
_making = locks.lock()


def is_ready(epilogue: Epilogue, given: Factors) -> bool:
    """Whether it can run now. What is new is compiled, but not while a CUDA graph is captured.

    Raises:
        TransientFailure: it could not be compiled for want of something (memory), and may be another time.
    """
    task = Task.on(_graph_epilogue(epilogue), given)
    if task is None or _has_enough(task):
        return False
    if task not in _kernels:
        import torch

        with torch.cuda.device_of(given.out):
            if torch.cuda.is_current_stream_capturing():
                return False
            with _making:
                if task not in _kernels and not _has_enough(task):
                    _kernels[task] = _made(task)
                    _alike[_bucket(task)] += 1
    return _kernels.get(task) is not None


def _made(task: Task) -> _Kernel | None:
    """None where cuDNN cannot do it."""
    try:
        return _Kernel(task, _handles(task.device)[0])
    except cudnn_api.Unsupported:
        return None
    except RuntimeError as error:
        raise TransientFailure(str(error)) from error


def _has_enough(task: Task) -> bool:
    """Whether a kernel for this is not made any more. Once that is so, it stays so."""
    return task not in _kernels and (_alike[_bucket(task)] >= MOST_ALIKE or len(_kernels) >= MOST_KERNELS)


def _bucket(task: Task) -> tuple[Any, ...]:
    sizes = tuple((size - 1).bit_length() for size in task.sizes)
    return task.device, task.dtype, task.epilogue, task.left[1], task.right[1], sizes


def run(epilogue: Epilogue, given: Factors) -> None:
    """Compute ``given.out`` and ``given.preactivation`` on torch's current stream, after ``is_ready``.

    Raises:
        RuntimeError: cuDNN does not launch it.
    """
    import torch

    task = Task.on(_graph_epilogue(epilogue), given)
    assert task is not None
    kernel = _kernels[task]
    assert kernel is not None
    with torch.cuda.device_of(given.out):
        kernel.run(given)


def step(epilogue: Epilogue, matmul: MatmulViews, dtype: DType, device: str) -> TorchStep | None:
    """The same for the native call path, after ``is_ready``; None where it has to go through Python."""
    result = matmul.views[2]
    task = _matmul_task(epilogue, matmul, dtype, device)
    kernel = None if task is None else _kernels.get(task)
    if task is None or kernel is None:
        return None
    row = View(result.shape[-1:], (1,), 0)
    more = [(epilogue.bias, row), (epilogue.preactivation, result)]
    more += [(name, row if ref.is_row else result) for name, ref in epilogue.auxiliary]
    names, views = matmul.names, matmul.views
    return TorchStep(
        (*names, *(name for name, _ in more if name)), (*views, *(view for name, view in more if name)), dtype,
        "fused", kernel.fields(_handles(task.device)[1]), kernel,
    )  # fmt: skip


def is_refused(epilogue: Epilogue, matmul: MatmulViews, dtype: DType, device: str) -> bool:
    """Whether ``is_ready`` says no about these sizes, and always will."""
    task = _matmul_task(epilogue, matmul, dtype, device)
    return task is None or _has_enough(task) or (task in _kernels and _kernels[task] is None)


def _matmul_task(epilogue: Epilogue, matmul: MatmulViews, dtype: DType, device: str) -> Task | None:
    result, graph_epilogue = matmul.views[2], _graph_epilogue(epilogue)
    index = int(device.partition(":")[2] or 0)
    auxiliary = [View(result.shape[-1:], (1,), 0) if ref.is_row else result for ref in graph_epilogue.auxiliary]
    return Task.of(
        graph_epilogue, dtype.name, index, matmul.views[:2], [result] * (1 + graph_epilogue.preactivation), auxiliary
    )


@functools.cache
def _handles(device: int) -> tuple[int, int]:
    """For all that Python runs on a device, which takes turns, and for the native call path, which has a lock of its
    own; they live as long as the process."""
    return cudnn_api.make_handle(), cudnn_api.make_handle()


_running = locks.lock()


class _Kernel:
    """One kernel.

    Attributes:
        unique: numbers of the tensors that a run is given: left, right, result, bias and argument where there are any,
            what else it reads, and the constants, which it has addresses of.
        constants: on the host.

    Raises:
        RuntimeError: cuDNN has no kernel for it that gives the same bits again.
    """

    def __init__(self, task: Task, handle: int) -> None:
        self.handle = handle
        graph = _Graph(task)
        self.unique, self.constants = [*graph.numbers, *graph.constants], list(graph.constants.values())
        operations = Descriptor(Kind.GRAPH)
        operations.set(Attribute.GRAPH_HANDLE, Type.HANDLE, handle)
        operations.set(Attribute.GRAPH_OPERATIONS, Type.DESCRIPTOR, *graph.operations)
        operations.finalize()
        self.plan = _first_plan(operations, handle)
        (self.workspace,) = self.plan.get(Attribute.PLAN_WORKSPACE, Type.INT64)

    def run(self, given: Factors) -> None:
        import torch

        workspace = torch.empty(self.workspace, dtype=torch.uint8, device=given.out.device)
        operands = (given.left, given.right, given.out, given.bias, given.preactivation, *given.auxiliary)
        tensors = [tensor for tensor in operands if tensor is not None]
        addresses = [tensor.data_ptr() for tensor in tensors] + [ctypes.addressof(c) for c in self.constants]
        pack = Descriptor(Kind.PACK)
        pack.set(Attribute.PACK_UNIQUE, Type.INT64, *self.unique)
        pack.set(Attribute.PACK_POINTERS, Type.POINTER, *addresses)
        pack.set(Attribute.PACK_WORKSPACE, Type.POINTER, workspace.data_ptr())
        pack.finalize()
        library, stream = cudnn_api.library(), torch._C._cuda_getCurrentRawStream(given.out.device.index)
        with _running:
            cudnn_api.check(library.cudnnSetStream(self.handle, stream), "cudnnSetStream")
            status = library.cudnnBackendExecute(self.handle, self.plan.pointer, pack.pointer)
        cudnn_api.check(status, "cudnnBackendExecute")

    def fields(self, handle: int) -> tuple[int, ...]:
        """For the native call path (native/fusegen_native_product.h)."""
        constants = [ctypes.addressof(constant) for constant in self.constants]
        lists = (len(self.unique), *self.unique, len(constants), *constants)
        return (*cudnn_api.addresses(), handle, self.plan.pointer, self.workspace, *lists)


def _first_plan(operations: Descriptor, handle: int) -> Descriptor:
    """The first that compiles of the kernels that do most things: of eleven that were measured for a product and silu,
    they were the fastest or within 1 percent of it; those that cuDNN's heuristic recommends were not."""
    heuristic = Descriptor(Kind.HEURISTIC)
    heuristic.set(Attribute.HEURISTIC_GRAPH, Type.DESCRIPTOR, operations)
    heuristic.set(Attribute.HEURISTIC_MODE, Type.HEURISTIC_MODE, cudnn_api.FALLBACK)
    heuristic.finalize()
    for configuration in heuristic.get_descriptors(Attribute.HEURISTIC_RESULTS, Kind.CONFIGURATION, most=4):
        if not configuration.is_deterministic:
            continue
        plan = Descriptor(Kind.PLAN)
        plan.set(Attribute.PLAN_HANDLE, Type.HANDLE, handle)
        plan.set(Attribute.PLAN_CONFIGURATION, Type.DESCRIPTOR, configuration)
        try:
            return plan.finalize()
        except cudnn_api.Unsupported:
            continue
    raise cudnn_api.Unsupported("cuDNN has no kernel for this")


class _Graph:
    """The operations of a product and what is behind it: [1, m, k] @ [1, k, n] -> [1, m, n]."""

    def __init__(self, task: Task) -> None:
        graph_epilogue = task.epilogue
        assert isinstance(graph_epilogue, GraphEpilogue)
        (rows, columns, inner), data = task.sizes, TYPES[task.dtype]
        self.sizes = (1, rows, columns)
        self.numbers: list[int] = []
        self.constants: dict[int, ctypes.c_float] = {}
        self.operations: list[Descriptor] = []
        self.tensors = 0
        a = self._given(data, (1, rows, inner), *task.left)
        b = self._given(data, (1, inner, columns), *task.right)
        out = self._given(data, self.sizes, task.pitches[0], False)
        bias = self._given(data, (1, 1, columns), columns, False) if graph_epilogue.bias else None
        preactivation = self._given(data, self.sizes, task.pitches[1], False) if graph_epilogue.preactivation else None
        self.known: dict[Expr, Descriptor] = {}
        for ref, pitch in zip(graph_epilogue.auxiliary, task.auxiliary, strict=True):
            sizes = (1, 1, columns) if ref.is_row else self.sizes
            self.known[ref] = self._given(data, sizes, pitch, False)
        total = self._multiplied(a, b, None if bias is not None else preactivation)
        if bias is not None:
            total = self._pointwise(Mode.ADD, [total, bias], preactivation)
        self._compute(graph_epilogue.function, total, out)

    def _tensor(self, data: Data, sizes: tuple[int, ...], strides: tuple[int, ...], **rest: bool) -> Descriptor:
        """One more; ``virtual``: it never lies in memory, ``by_value``: on the host."""
        self.tensors += 1
        found = Descriptor(Kind.TENSOR)
        found.set(Attribute.DATA_TYPE, Type.DATA_TYPE, data)
        found.set(Attribute.SIZES, Type.INT64, *sizes)
        found.set(Attribute.STRIDES, Type.INT64, *strides)
        found.set(Attribute.UNIQUE, Type.INT64, self.tensors)
        found.set(Attribute.ALIGNMENT, Type.INT64, ALIGNMENT)
        for name, value in rest.items():
            found.set(Attribute[name.upper()], Type.BOOLEAN, value)
        return found.finalize()

    def _given(self, data: Data, sizes: tuple[int, int, int], pitch: int, transposed: bool) -> Descriptor:
        """A matrix in memory."""
        _, down, across = sizes
        strides = (across * pitch, 1, pitch) if transposed else (down * pitch, pitch, 1)
        found = self._tensor(data, sizes, strides)
        self.numbers.append(self.tensors)
        return found

    def _virtual(self, data: Data = Data.FLOAT) -> Descriptor:
        _, rows, columns = self.sizes
        return self._tensor(data, self.sizes, (rows * columns, columns, 1), virtual=True)

    def _multiplied(self, a: Descriptor, b: Descriptor, preactivation: Descriptor | None) -> Descriptor:
        how = Descriptor(Kind.MATMUL)
        how.set(Attribute.MATMUL_PRECISION, Type.DATA_TYPE, Data.FLOAT)
        result = preactivation or self._virtual()
        self._do(Kind.DO_MATMUL, (Attribute.DO_MATMUL, how.finalize()), (Attribute.MATMUL_A, a),
                 (Attribute.MATMUL_B, b), (Attribute.MATMUL_C, result))  # fmt: skip
        return result

    def _pointwise(
        self, mode: Mode, inputs: list[Descriptor], result: Descriptor | None = None, beta: float = 1.0
    ) -> Descriptor:
        """An operation of one, two, or (SELECT: of either, by the third) three. ``beta``: SWISH's."""
        how = Descriptor(Kind.POINTWISE)
        how.set(Attribute.POINTWISE_MODE, Type.POINTWISE_MODE, mode)
        how.set(Attribute.POINTWISE_PRECISION, Type.DATA_TYPE, Data.FLOAT)
        if beta != 1.0:
            how.set(Attribute.SWISH_BETA, Type.DOUBLE, beta)
        is_test = mode in {MODES[name] for name in COMPARISONS}
        result = result or self._virtual(Data.BOOLEAN if is_test else Data.FLOAT)
        places = (Attribute.POINTWISE_X, Attribute.POINTWISE_B, Attribute.POINTWISE_T)
        self._do(Kind.DO_POINTWISE, (Attribute.DO_POINTWISE, how.finalize()),
                 *zip(places, inputs, strict=False), (Attribute.POINTWISE_Y, result))  # fmt: skip
        return result

    def _do(self, kind: Kind, *attributes: tuple[Attribute, Descriptor]) -> None:
        operation = Descriptor(kind)
        for attribute, descriptor in attributes:
            operation.set(attribute, Type.DESCRIPTOR, descriptor)
        self.operations.append(operation.finalize())

    def _compute(self, function: Expr | None, total: Descriptor, out: Descriptor) -> None:
        """The activation."""
        if function is None:
            self._pointwise(Mode.GELU_TANH, [total], out)
            return
        known = {**self.known, ARGUMENT: total}
        for node in read(function):
            result = out if node is function else None
            if isinstance(node, Const):
                known[node] = self._constant(float(node.value))
            elif (gated := swish(node)) is not None:
                known[node] = self._pointwise(Mode.SWISH, [known[gated[0]]], result, beta=gated[1])
            elif isinstance(node, Call):
                inputs = [known[argument] for argument in node.args]
                if node.function == "where":
                    inputs = [inputs[1], inputs[2], inputs[0]]
                elif node.function in ("add", "mul") and isinstance(node.args[0], Const):
                    inputs.reverse()
                if power(node):
                    known[node] = self._powered(inputs[0], power(node), result)
                else:
                    known[node] = self._pointwise(MODES[node.function], inputs, result)

    def _powered(self, x: Descriptor, exponent: int, result: Descriptor | None) -> Descriptor:
        found = x
        for left in reversed(range(exponent - 1)):
            found = self._pointwise(Mode.MUL, [found, x], None if left else result)
        return found

    def _constant(self, value: float) -> Descriptor:
        """A tensor of one element on the host."""
        found = self._tensor(Data.FLOAT, (1, 1, 1), (1, 1, 1), by_value=True)
        self.constants[self.tensors] = ctypes.c_float(value)
        return found

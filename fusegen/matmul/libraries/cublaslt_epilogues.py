"""Matrix products of halves with those epilogues that cuBLASLt has: relu and gelu's tanh form, with a bias and
without, and gelu together with its argument. The algorithm is the one that was measured
(matmul/libraries/cublaslt_autotune). It is checked for the sizes that it is for: some of cuBLASLt's kernels make 0 of
NaN in relu.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from fusegen.core.dtypes import DType
from fusegen.matmul.epilogue import Epilogue, activate
from fusegen.matmul.libraries import cublaslt_autotune
from fusegen.matmul.libraries.cublaslt import MatmulOptions, Planned
from fusegen.matmul.libraries.cublaslt_api import CublasLtEpilogue
from fusegen.matmul.libraries.cublaslt_autotune import HALVES, differs, room_like, sample
from fusegen.matmul.task import Factors, Task
from fusegen.matmul.views import MatmulViews
from fusegen.plan.native_step import TorchStep, View

# Which epilogue does what matmul/epilogue calls so.
EPILOGUES = {
    "relu": CublasLtEpilogue.RELU_BIAS,
    "relu without bias": CublasLtEpilogue.RELU,
    "gelu": CublasLtEpilogue.GELU_BIAS,
    "gelu without bias": CublasLtEpilogue.GELU,
    "gelu without bias, its argument saved": CublasLtEpilogue.GELU_AUX,
    "gelu, its argument saved": CublasLtEpilogue.GELU_AUX_BIAS,
}
# By how much all of a result may differ from torch's product and our activation, which round the sum twice.
_APART = 0.05


def has(epilogue: Epilogue, dtype: str) -> bool:
    """Whether cuBLASLt has such an epilogue, for halves."""
    return dtype in HALVES and epilogue.title in EPILOGUES


def is_ready(epilogue: Epilogue, given: Factors) -> bool:
    """Whether it can run now. What is new is planned, but not while a CUDA graph is captured.

    Raises:
        TransientFailure: there is no memory to find out.
    """
    task = Task.on(MatmulOptions(EPILOGUES[epilogue.title]), given)
    return (
        task is not None
        and cublaslt_autotune.planned(task, given, check=partial(_is_right, epilogue, given)) is not None
    )


def run(epilogue: Epilogue, given: Factors) -> None:
    """Compute ``given.out`` and ``given.preactivation`` on torch's current stream, after ``is_ready``.

    Raises:
        RuntimeError: cuBLASLt does not launch it.
    """
    task = Task.on(MatmulOptions(EPILOGUES[epilogue.title]), given)
    plan = None if task is None else cublaslt_autotune.planned(task, given)
    if plan is None:
        raise RuntimeError("cuBLASLt has no plan for this product")
    plan.run(given)


def step(epilogue: Epilogue, matmul: MatmulViews, dtype: DType, device: str) -> TorchStep | None:
    """The same for the native call path, after ``is_ready``; None where it has to go through Python."""
    task, result = _task(epilogue, matmul, dtype, device), matmul.views[2]
    if task is None:
        return None
    more = [(epilogue.bias, View(result.shape[-1:], (1,), 0)), (epilogue.preactivation, result)]
    names = (*matmul.names, *(name for name, _ in more if name))
    return cublaslt_autotune.step(task, names, (*matmul.views, *(view for name, view in more if name)), dtype)


def is_refused(epilogue: Epilogue, matmul: MatmulViews, dtype: DType, device: str) -> bool:
    """Whether ``is_ready`` says no about these sizes, and goes on to."""
    task = _task(epilogue, matmul, dtype, device)
    return task is None or cublaslt_autotune.is_refused(task)


def _task(epilogue: Epilogue, matmul: MatmulViews, dtype: DType, device: str) -> Task | None:
    index, results = int(device.partition(":")[2] or 0), [matmul.views[2]] * (1 + bool(epilogue.preactivation))
    return Task.of(MatmulOptions(EPILOGUES[epilogue.title]), dtype.name, index, matmul.views[:2], results)


def _is_right(epilogue: Epilogue, given: Factors, plan: Planned) -> bool:
    """Whether an algorithm gives what torch's product and the activation do, but for rounding, and lets NaN through."""
    import torch

    plan.run(given)
    total = torch.mm(sample(given.left), given.right).float()
    total = total if given.bias is None else total + given.bias.float()
    pairs = [
        (given.out, activate(epilogue, total)),
        *([] if given.preactivation is None else [(given.preactivation, total)]),
    ]
    if any(differs(sample(out), wanted, _APART) for out, wanted in pairs):
        return False
    name = "left" if given.bias is None else "bias"
    number = getattr(given, name)
    lost: Any = room_like(number).copy_(number)
    lost[(0,) * lost.ndim] = torch.nan  # in the first row, or the first column
    plan.run(replace(given, **{name: lost}))
    met = given.out[:1] if given.bias is None else given.out[:, :1]
    return bool(met.isnan().all())

"""A step that is a matrix product alone, or with its bias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fusegen.core.dtypes import DType
from fusegen.matmul.libraries import cublaslt_autotune
from fusegen.matmul.steps import NativeSteps
from fusegen.matmul.task import Factors, Task
from fusegen.matmul.views import MatmulViews
from fusegen.plan.frameworks import Framework, TensorInfo, Torch
from fusegen.plan.native_step import ADDED, View


@dataclass(frozen=True)
class MatmulStep:
    """A product by the framework's routine, which adds it to its result where it is one of a sum.

    Attributes:
        bias: added to each row before the result is rounded; a tensor, and how it lies there.
        task: what cuBLASLt is given of it, row-major, where one of its algorithms may be faster than torch's
            (matmul/libraries/cublaslt_autotune).
    """

    matmul: MatmulViews
    dtype: DType
    onto: bool
    bias: tuple[str, View] | None = None
    task: Task | None = None

    def tuned(self, known: Mapping[str, TensorInfo]) -> MatmulStep:
        """The same of torch's tensors, with its task."""
        matmul = self.matmul.row_major
        infos = [known[name] for name in (*matmul.names, *([self.bias[0]] if self.bias else []))]
        alignments = [info.alignment for info in infos]
        if not cublaslt_autotune.is_considered(infos[0].device) or (self.bias and matmul is not self.matmul):
            return replace(self, task=None)
        bias = self.bias[1] if self.bias else None
        arguments = matmul, self.dtype, infos[0].device, alignments, bias, self.onto
        return replace(self, task=cublaslt_autotune.task_of(*arguments))

    @property
    def uses(self) -> set[str]:
        return {*self.matmul.names, *([self.bias[0]] if self.bias else [])}

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        matmul, bias = self.matmul if self.task is None else self.matmul.row_major, None
        sides = matmul.sides(tensors, framework)
        if self.bias:
            name, view = self.bias
            bias = framework.view(tensors[name], view.shape, view.strides, view.offset)
        if self.task is not None:
            cublaslt_autotune.multiply(Factors(*sides[:2], bias, None, sides[2]), adds=self.onto, task=self.task)
        elif self.bias:
            assert isinstance(framework, Torch)  # which alone has it
            framework.multiply_adding(bias, *sides)
        else:
            (framework.accumulate if self.onto else framework.multiply)(*sides)

    def native_steps(self, place: int) -> NativeSteps | None:
        if self.bias and len(self.matmul.views[2].shape) != 2:
            return None
        if self.task is not None:
            if not cublaslt_autotune.is_decided(self.task):
                return None
            more = [self.bias] if self.bias else []
            matmul = self.matmul.row_major
            names = (*matmul.names, *(name for name, _ in more))
            views = (*matmul.views, *(view for _, view in more))
            planned = cublaslt_autotune.step(self.task, names, views, self.dtype)
            if planned is not None:
                return NativeSteps([planned])
        kind = "bias" if self.bias else ADDED if self.onto else ""
        found = self.matmul.multiply(self.dtype, kind, self.bias)
        return None if found is None else NativeSteps([found])

"""An Op in plain torch, one operation after the other: what a peer computes where torch has no function of its own.

Unlike the float64 reference, which it is made of, it computes in the dtypes that the kernels compute in (half types in
float32) and rounds its results to the op's own. Constants are made once, so that no call copies them to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusegen.core.dtypes import DType
from fusegen.core.ir import Op, Output
from fusegen.declare.reference import Evaluation

if TYPE_CHECKING:
    import torch


class _Eager(Evaluation):
    """One call, with the constants of earlier ones. Selects are torch's own, as a peer's are."""

    harmless = False

    def __init__(self, op: Op, tensors: Mapping[str, Any], scalars: Mapping[str, Any], constants: dict[Any, Any]):
        import torch

        self.constants = constants
        super().__init__(torch, op, tensors, scalars, None)

    def dtype(self, dtype: DType) -> Any:
        return getattr(self.torch, dtype.compute.name)

    def _number(self, value: Any, dtype: DType) -> Any:
        key = repr(value), dtype
        made = self.constants.get(key)
        if made is None:
            made = self.torch.full((), value, dtype=self.dtype(dtype), device=self.device)
            if not self.torch.compiler.is_compiling():  # where it is a literal of the compiled kernel
                self.constants[key] = made
        return made

    def placed(self, output: Output) -> Any:
        return super().placed(output).to(getattr(self.torch, output.dtype.name))


def eager(op: Op, names: Sequence[str], scalars: Mapping[str, Any]) -> Callable[..., Any]:
    """``op`` as a function of torch tensors.

    Args:
        names: which argument each tensor is, in order.
        scalars: Python numbers of runtime scalars, by name.
    """
    constants: dict[Any, Any] = {}

    def function(*tensors: torch.Tensor) -> Any:
        results = _Eager(op, dict(zip(names, tensors, strict=True)), scalars, constants).run()
        return results[0] if len(results) == 1 else tuple(results)

    return function

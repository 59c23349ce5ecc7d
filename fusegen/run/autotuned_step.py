"""A step with several candidates: a matrix product and a kernel behind it, or one routine of a library for both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fusegen.core.dtypes import DType
from fusegen.matmul.epilogue import Epilogue
from fusegen.matmul.padding import suits
from fusegen.matmul.steps import NativeSteps, Step
from fusegen.matmul.task import Factors
from fusegen.matmul.views import MatmulViews
from fusegen.plan.frameworks import Framework, TensorInfo
from fusegen.plan.layout import row_major
from fusegen.plan.native_step import View
from fusegen.plan.plan import Allocation
from fusegen.run.kernel_steps import KernelStep
from fusegen.run.libraries import Library, bucket, by_torch, choose, in_order, libraries, remembered, torch_step


@dataclass(frozen=True)
class AutotunedStep:
    """A product and the kernel step behind it (see ``AutotunedStep.of``).

    Attributes:
        matmul: the product as if it wrote the activation's result, which is row-major.
        intermediate: the buffer of the product's own result, where nothing else reads it.
        libraries: those that could do both.
        key: what is measured; () for a bias alone, which is always added by the product.
        reductions: what the kernel step computes besides the activation, where a library does only that.
    """

    product: Step
    matmul: MatmulViews
    intermediate: Allocation | None
    kernel_step: Step
    epilogue: Epilogue
    dtype: DType
    device: str
    libraries: tuple[Library, ...] = ()
    key: tuple[str, ...] = ()
    reductions: Step | None = None

    @classmethod
    def of(
        cls, product: Step, matmul: MatmulViews, intermediate: Allocation | None, kernel_step: KernelStep,
        epilogue: Epilogue,
        known: Mapping[str, TensorInfo], device: str,
    ) -> AutotunedStep | None:  # fmt: skip
        """None where no library accepts the layouts of the tensors.

        Args:
            matmul: the product, of two dimensions.
            known: the layouts of all tensors.
        """
        (rows, inner), (_, columns) = matmul.views[0].shape, matmul.views[1].shape
        out = epilogue.result or next(name for name in kernel_step.writes if name != epilogue.preactivation)
        results = [known[name] for name in (out, epilogue.preactivation) if name]
        rows_of = [epilogue.bias, *(name for name, ref in epilogue.auxiliary if ref.is_row)]
        biases = [known[name] for name in rows_of if name]
        whole = [name for name, ref in epilogue.auxiliary if not ref.is_row]
        if any(t.strides != row_major(t.shape) for t in (*results, *biases, *(known[name] for name in whole))):
            return None
        result = View((rows, columns), (columns, 1), 0)
        matrices = list(zip(matmul.views[:2], matmul.names[:2], strict=True))
        matrices += [(result, name) for name in (out, epilogue.preactivation, *whole) if name]
        is_aligned = all(suits(view, known[name].dtype.size, known[name].alignment) for view, name in matrices)
        is_aligned = is_aligned and not any(info.alignment for info in biases)
        (left, right, _), (a, b, _), dtype = matmul.names, matmul.views, results[0].dtype
        matmul = replace(matmul, names=(left, right, out), views=(a, b, result))
        found = cls(product, matmul, intermediate, kernel_step, epilogue, dtype, device)
        if epilogue.activation == "bias":
            return found
        candidates = [
            candidate for candidate in libraries(epilogue, dtype.name, device)
            if (is_aligned or not candidate.needs_alignment) and candidate.gains_from(rows, columns)
        ]  # fmt: skip
        key = bucket(device, dtype.name, (rows, columns, inner), epilogue, candidates) if candidates else ()
        return replace(found, libraries=tuple(candidates), key=key) if candidates else None

    @property
    def uses(self) -> set[str]:
        return (self.product.uses | self.kernel_step.uses) - ({self.intermediate.name} if self.intermediate else set())

    def run(self, tensors: dict[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        left, right, out = self.matmul.sides(tensors, framework)
        bias, preactivation = tensors.get(self.epilogue.bias), tensors.get(self.epilogue.preactivation)
        if preactivation is not None:
            preactivation = framework.view(preactivation, out.shape, out.stride(), 0)
        auxiliary = [
            tensors[name] if ref.is_row else framework.view(tensors[name], out.shape, out.stride(), 0)
            for name, ref in self.epilogue.auxiliary
        ]
        given = Factors(left, right, bias, preactivation, out, tuple(auxiliary))
        if not self.key:
            by_torch(self.epilogue, given)
            return

        def own() -> None:
            mine = tensors
            if self.intermediate is not None:
                mine = {**tensors, self.intermediate.name: self.intermediate.allocate(framework, str(out.device))}
            self.product.run(mine, scalars, framework)
            self.kernel_step.run(mine, scalars, framework)

        def reduce() -> None:
            if self.reductions is not None:
                self.reductions.run(tensors, scalars, framework)

        library = choose(self.key, self.epilogue, given, self.libraries, own, reduce)
        if library is None:
            own()
        else:
            library.run(self.epilogue, given)
            reduce()

    def candidates(self) -> list[Library | None] | None:
        """The candidates for tensors of these sizes, the fastest first; None in the list is our own product and kernel.

        The result is None before they have been measured. The first one that is ready runs.
        """
        measured = remembered(self.key) if self.key else None
        if measured is None:
            return None
        arguments = self.epilogue, self.matmul, self.dtype, self.device
        found = in_order(measured, self.libraries)
        return [library for library in found if library is None or not library.is_refused(*arguments)]

    def native_steps(self, place: int) -> NativeSteps | None:
        arguments = self.epilogue, self.matmul, self.dtype, self.device
        candidates = self.candidates()
        if not self.key:
            step = torch_step(*arguments)
        elif candidates is None:
            return None
        elif candidates[0] is None:
            found, behind = self.product.native_steps(place), self.kernel_step.native_steps(place)
            if found is None or behind is None:
                return None
            found += behind
            found.buffers += [self.intermediate] if self.intermediate is not None else []
            return found
        else:
            step = candidates[0].step(*arguments)
        if step is None:
            return None
        found = NativeSteps([step])
        if self.reductions is not None:
            reductions = self.reductions.native_steps(place)
            if reductions is None:
                return None
            found += reductions
        return found

"""Runs an op with matrix products, step by step: kernels of its own, and products by the framework's own routine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from fusegen.core.errors import ShapeError
from fusegen.core.ir import Op
from fusegen.core.locks import cached_property
from fusegen.core.products import contracted_sizes
from fusegen.core.recent import Recent
from fusegen.core.views import view
from fusegen.fuse.products import chain
from fusegen.fuse.steps import Chain, Product, Scan, Scatter, names_of
from fusegen.launch.program import Program
from fusegen.matmul.epilogue import match_epilogue
from fusegen.matmul.padding import padded, padded_allocation, padded_strides
from fusegen.matmul.steps import Fill, NativeSteps, Step, StepSequence
from fusegen.matmul.views import MatmulViews, TensorLayout, check_factors, matmul_views, named
from fusegen.plan.frameworks import Framework, Settings, TensorInfo, target_of
from fusegen.plan.layout import row_major
from fusegen.plan.native_step import View
from fusegen.plan.plan import Allocation, Infos, IntermediateBuffer, Plan, Slot, common_device, results_of
from fusegen.run.autotuned_step import AutotunedStep
from fusegen.run.kernel_steps import KernelStep, copied
from fusegen.run.matmul_step import MatmulStep
from fusegen.run.runner import MOST_PLANS, Runner
from fusegen.run.scan_step import scan_step
from fusegen.run.scattering import scatter_step

# Addresses from a framework's allocator, modulo 16.
ALIGNED = 0
# Sets of results that products are added to: of a few leaves each either is or is not.
_MOST_VARIANTS = 64


@dataclass
class ChainPlan(Plan):
    """The steps for one layout.

    Attributes:
        allocated: for each step, the intermediate buffers that are allocated before it.
        freed: for each step, the names of the buffers that are freed after it.
    """

    steps: tuple[Step, ...] = ()
    allocated: tuple[tuple[Allocation, ...], ...] = ()
    freed: tuple[tuple[str, ...], ...] = ()

    def build_native_program(self) -> None:
        """Set ``program`` for the native call path, if that can run every step. Uses the timings known by now."""
        native_steps = NativeSteps()
        live: dict[str, tuple[Allocation, int]] = {}
        found: list[IntermediateBuffer] = []
        for place, step in enumerate(self.steps):
            first = len(native_steps.steps)
            piece = step.native_steps(place)
            if piece is None:
                return
            native_steps += piece
            live.update({buffer.name: (buffer, first) for buffer in (*self.allocated[place], *piece.buffers)})
            last = len(native_steps.steps) - 1
            for name in (*self.freed[place], *(buffer.name for buffer in piece.buffers)):
                buffer, start = live.pop(name)
                found.append(IntermediateBuffer(name, buffer.shape, buffer.strides, buffer.dtype, start, last))
        self.intermediates = tuple(found)
        # Set last: other threads take a program as the sign that everything else is set.
        self.program = Program(native_steps.steps, native_steps.workspaces)


@dataclass
class ChainRunner(Runner):
    """A Runner for an op with products (see run/runners).

    Args:
        onto: results that products are added to, which are there already.
    """

    by_torch: bool = True
    onto: frozenset[str] = frozenset()
    variants: Recent[frozenset[str], ChainRunner] = field(default_factory=lambda: Recent(_MOST_VARIANTS))

    @cached_property
    def chain(self) -> Chain:
        found = chain(self.op, adds_biases=self.by_torch)
        assert found is not None
        return found.adding(self.onto) if self.onto else found

    def adding(self, onto: frozenset[str]) -> ChainRunner:
        """The same, but that it adds to the results called ``onto``."""
        found = self.variants.get(onto)
        if found is None:
            made = replace(self, plans=Recent(MOST_PLANS), onto=onto, variants=Recent(_MOST_VARIANTS))
            found = self.variants.setdefault(onto, made)
        return found

    @property
    def adds_to(self) -> frozenset[str]:
        return self.onto

    def launch(
        self, plan: Plan, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework, out: Any
    ) -> list[Any]:
        """Results of a plan that was made for tensors of this layout."""
        assert isinstance(plan, ChainPlan)
        results = results_of(plan, framework, out)
        known = dict(tensors)
        known.update({name: tensor for (name, *_), tensor in zip(plan.results, results, strict=True)})
        with framework.without_autocast(plan.device):
            for step, allocated, freed in zip(plan.steps, plan.allocated, plan.freed, strict=True):
                known.update({buffer.name: buffer.allocate(framework, plan.device) for buffer in allocated})
                step.run(known, scalars, framework)
                for name in freed:
                    del known[name]
        if plan.program is None:
            plan.build_native_program()
        return results

    def settings(self, framework: Framework) -> Settings | None:
        """The framework's current settings for products."""
        return framework.settings()

    def _check_in_place(self, plan: Plan, tensors: Mapping[str, Any], framework: Framework, out: Sequence[Any]) -> None:
        addresses = {framework.pointer(tensors[name]): name for name in self.arguments}
        addresses.pop(0, None)  # of what has no elements
        for tensor in out:
            name = None if tensor is None else addresses.get(framework.pointer(tensor))
            if name is not None:
                raise ShapeError(
                    f"{self.op.name}, out=", given=f"argument {name}, which a later step may still read",
                    expected="memory of its own", fix="pass a fresh tensor, or leave out= away",
                )  # fmt: skip

    def plan_for(self, infos: Mapping[str, TensorInfo], out: Infos | None, in_place: bool = False) -> Plan:
        """The plan for arguments and, where they are given, results of this layout."""
        device = common_device(self.op, infos, out)
        sizes = dict(self.sizes)
        origin: dict[str, str] = {}
        known: dict[str, TensorInfo] = dict(infos)
        layouts: dict[str, TensorLayout] = {}
        inputs = []
        for operand in self.op.operands:
            base = operand.base
            shape, strides, offset = view(operand, infos[base].shape, infos[base].strides)
            self._measure(operand, shape, sizes, origin)
            layouts[operand.name] = _layout(base, operand, strides, offset)
            inputs.append(Slot(operand.name, base, offset * operand.dtype.size))
        check_factors(self.op, sizes)
        sizes = contracted_sizes(self.op, sizes)
        results, outputs = self._results(infos, sizes, {}, out)
        for position, (name, shape, strides, dtype) in enumerate(results):
            given = None if out is None else out[position]
            known[name] = given or TensorInfo(shape, strides, dtype, ALIGNED, device)
        for output in self.op.outputs:
            if output.packed is None:
                info = known[output.name]
                layouts[output.name] = _layout(output.name, output, view(output, info.shape, info.strides)[1])
        for tensor in self.chain.intermediates:
            shape = tuple(sizes[axis] for axis in tensor.shape if axis)
            strides = padded_strides(self.chain, tensor, sizes, device) if self.by_torch else row_major(shape)
            known[tensor.name] = TensorInfo(shape, strides, tensor.dtype, ALIGNED, device)
            layouts[tensor.name] = _layout(tensor.name, tensor, strides)
        between = {tensor.name for tensor in self.chain.intermediates}
        steps: list[Step] = []
        written: set[str] = set()
        for step in self.chain.steps:
            steps.append(self._step(step, sizes, known, layouts, frozenset(written) if steps else None))
            written |= set(step.writes) if isinstance(step, Product) else {o.base for o in step.outputs}
        blocks = [
            slot for step in steps if isinstance(step, KernelStep)
            for slot in (*step.plan.inputs, *step.plan.outputs) if slot.source in between and slot.name != slot.source
        ]  # fmt: skip
        if self.by_torch:
            steps = self._as_torch_does(steps, sizes, known)
        allocated, freed = _lifetimes(self.chain, steps, known)
        return ChainPlan(
            None,
            target_of(device),
            device,
            tuple(inputs),
            tuple(outputs),
            tuple(results),
            blocks=tuple(blocks),
            steps=tuple(steps),
            allocated=allocated,
            freed=freed,
        )

    def _step(
        self, step: Op | Product, sizes: Mapping[str, int], known: dict[str, TensorInfo],
        layouts: Mapping[str, TensorLayout], fresh: frozenset[str] | None,
    ) -> Step:  # fmt: skip
        if isinstance(step, Op):
            runner = Runner(step, sizes, fresh=fresh)
            writes = tuple(dict.fromkeys(o.base for o in step.outputs))
            own = {name: known[name] for name in runner.arguments}
            return KernelStep(runner, runner.plan_for(own, [known[name] for name in writes]), writes)
        if isinstance(step, Scatter):
            return scatter_step(step, sizes, known, layouts, follows=fresh is not None)
        if isinstance(step, Scan):
            return scan_step(step, sizes, known, layouts, follows=fresh is not None)
        sides = [
            TensorLayout(layouts[s.name].tensor, named(s, layouts[s.name].strides), layouts[s.name].offset)
            for s in (step.left, step.right)
        ]
        matmul = matmul_views(step, sizes, sides[0], sides[1], layouts[step.result])
        bias = None
        if step.bias:
            layout, axis = layouts[step.bias], step.axes[-1]
            bias = layout.tensor, View((sizes[axis],), (layout.strides[axis],), layout.offset)
        found = MatmulStep(matmul, known[layouts[step.result].tensor].dtype, step.onto, bias)
        return found.tuned(known) if self.by_torch else found

    def _padded(self, matmul_step: MatmulStep, known: dict[str, TensorInfo]) -> StepSequence | None:
        """The product on sizes that suit it, where its own do not and that pays."""
        product, dtype = matmul_step.matmul, matmul_step.dtype
        infos = [known[name] for name in product.names]
        device, paddable = infos[0].device, {operand.name for operand in self.chain.intermediates}
        alignments = [info.alignment for info in infos]
        if not self.by_torch:
            return None
        found = padded(product, dtype, alignments, device, paddable, known, adds=matmul_step.onto)
        if found is None:
            return None
        buffers, bias, fills = list(found.buffers), matmul_step.bias, list(found.before)
        columns = found.product.views[2].shape[-1]
        if bias and bias[1].shape != (columns,):  # what is added to columns beyond the result's is never read
            taken = {*known, *(buffer.name for buffer in buffers)}
            wide = (next(n for i in count(2) if (n := f"{bias[0]}_{i}") not in taken), View((columns,), (1,), 0))
            buffers.append(Allocation(wide[0], (columns,), (1,), dtype))
            fills.append(Fill((wide[0], bias[0]), (View(bias[1].shape, (1,), 0), bias[1]), dtype))
            bias = wide
        for buffer in buffers:  # so that no other tensor gets the same name
            known[buffer.name] = TensorInfo(buffer.shape, buffer.strides, dtype, ALIGNED, device)
        before = [copied(fill, known, None) for fill in fills]
        after = [copied(fill, known, frozenset({found.product.names[2]})) for fill in found.after]
        suited = replace(matmul_step, matmul=found.product, bias=bias).tuned(known)
        return StepSequence((*before, suited, *after), tuple(buffers), device)

    def _as_torch_does(
        self, steps: Sequence[Step], sizes: Mapping[str, int], known: dict[str, TensorInfo]
    ) -> list[Step]:
        """The steps with products on sizes that suit them, and with a choice where a library can do a product and what
        follows at once."""
        found: list[Step] = []
        for declared, step in zip(self.chain.steps, steps, strict=True):
            if isinstance(step, MatmulStep):
                found.append(self._padded(step, known) or step)
                continue
            before = found[-1] if found else None
            autotuned = None
            if isinstance(step, KernelStep) and isinstance(before, MatmulStep):
                autotuned = self._autotuned(before, declared, step, sizes, known)
            if autotuned is None:
                found.append(step)
            else:
                found[-1] = autotuned
        return found

    def _is_matrix(self, product: Product, matmul: MatmulViews, known: Mapping[str, TensorInfo]) -> bool:
        """Whether a product is one of matrices with elements, with its result's last axis along the columns."""
        if any(len(view.shape) != 2 or view.copied or 0 in view.shape for view in matmul.views):
            return False
        left, right = ({s.name_of(axis) for axis in _axes(self.chain, s.name)} for s in (product.left, product.right))
        *others, last = product.axes
        is_along = last not in left and not right & set(others)
        return is_along and matmul.views[1].shape[1] == known[product.result].shape[-1]

    def _autotuned(
        self, matmul_step: MatmulStep, op: Op | Product, kernel_step: KernelStep, sizes: Mapping[str, int],
        known: dict[str, TensorInfo],
    ) -> AutotunedStep | None:  # fmt: skip
        at = self.chain.steps.index(op)
        product = self.chain.steps[at - 1]
        assert isinstance(product, Product) and isinstance(op, Op)
        is_intermediate = any(operand.name == product.result for operand in self.chain.intermediates)
        is_read_later = any(product.result in names_of(step) for step in self.chain.steps[at + 1 :])
        epilogue, result = match_epilogue(product, op), known[product.result]
        if epilogue is None or not self._is_matrix(product, matmul_step.matmul, known):
            return None
        if matmul_step.bias and matmul_step.bias[0] != product.bias:  # a part of a packed tensor
            return None
        if is_read_later or not is_intermediate:  # the routine may write it too, where it is what the activation takes
            if epilogue.preactivation or (epilogue.bias and not product.bias):
                return None
            epilogue = replace(epilogue, preactivation=product.result)
        intermediate = None
        if is_intermediate and not is_read_later:
            intermediate = padded_allocation(product.result, result.shape, result.strides, result.dtype)
        found = AutotunedStep.of(
            matmul_step, matmul_step.matmul, intermediate, kernel_step, epilogue, known, result.device
        )
        if found is None or epilogue.reductions is None:
            return found
        return replace(
            found, reductions=self._step(epilogue.reductions, sizes, known, {}, frozenset({epilogue.result}))
        )


def _layout(tensor: str, thing: Any, strides: Sequence[int], offset: int = 0) -> TensorLayout:
    return TensorLayout(tensor, {axis: strides[d] for d, axis in enumerate(thing.shape) if axis}, offset)


def _axes(cut: Chain, name: str) -> list[str]:
    """The axes of something that a product reads."""
    things = (*cut.op.operands, *cut.op.outputs, *cut.intermediates)
    return [axis for axis in next(thing for thing in things if thing.name == name).shape if axis]


def _lifetimes(
    cut: Chain, steps: Sequence[Step], known: Mapping[str, TensorInfo]
) -> tuple[tuple[tuple[Allocation, ...], ...], tuple[tuple[str, ...], ...]]:
    """For each step, the intermediate buffers to allocate before it, and the names of those to free after it."""
    names = [operand.name for operand in cut.intermediates]
    uses = [step.uses for step in steps]
    allocated, freed = [], []
    for at, used in enumerate(uses):
        before: set[str] = set().union(*uses[:at])
        after: set[str] = set().union(*uses[at + 1 :])
        first = [name for name in names if name in used - before]
        infos = [(name, known[name]) for name in first]
        allocated.append(tuple(padded_allocation(name, info.shape, info.strides, info.dtype) for name, info in infos))
        freed.append(tuple(name for name in names if name in used - after))
    return tuple(allocated), tuple(freed)

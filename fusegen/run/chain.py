"""Runs an op with matrix products: its parts one after the other, the products by the framework's own routine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from fusegen.core.errors import ShapeError
from fusegen.core.ir import Op
from fusegen.core.locks import cached_property
from fusegen.core.products import contracted_sizes
from fusegen.core.views import view
from fusegen.fuse.products import Chain, Product, chain, names_of
from fusegen.launch.program import Program
from fusegen.matmul.epilogue import closing
from fusegen.matmul.padding import padded, room, strides_between
from fusegen.matmul.steps import Fill, Flat, Several, Step
from fusegen.matmul.views import Arranged, Lying, arrange, check_factors, named
from fusegen.plan.frameworks import Framework, Settings, TensorInfo, target_of
from fusegen.plan.layout import row_major
from fusegen.plan.native_step import View
from fusegen.plan.plan import Between, Infos, Made, Plan, Slot, common_device, results_of
from fusegen.run.autotuned_step import Either
from fusegen.run.kernel_steps import Part, copied
from fusegen.run.matmul_step import Multiplied
from fusegen.run.runner import Runner

# Addresses from a framework's allocator, modulo 16.
ALIGNED = 0


@dataclass
class ChainPlan(Plan):
    """The steps for one layout.

    Attributes:
        made, dropped: tensors between steps that begin and end with each step.
    """

    steps: tuple[Step, ...] = ()
    made: tuple[tuple[Made, ...], ...] = ()
    dropped: tuple[tuple[str, ...], ...] = ()

    def flatten(self) -> None:
        """Say what the native call path does, if it can: what has been measured by now counts."""
        flat = Flat()
        lives: dict[str, tuple[Made, int]] = {}
        found: list[Between] = []
        for place, step in enumerate(self.steps):
            first = len(flat.steps)
            piece = step.flat(place)
            if piece is None:
                return
            flat += piece
            lives.update({made.name: (made, first) for made in (*self.made[place], *piece.own)})
            for name in (*self.dropped[place], *(made.name for made in piece.own)):
                made, start = lives.pop(name)
                found.append(Between(made.name, made.shape, made.strides, made.dtype, start, len(flat.steps) - 1))
        self.between = tuple(found)
        self.program = Program(flat.steps, flat.workspaces)  # last: that it is there says that all is


@dataclass
class ChainRunner(Runner):
    """A Runner for an op with products (see run/runners).

    Args:
        onto: results that products are added to, which are there already.
    """

    by_torch: bool = True
    onto: frozenset[str] = frozenset()
    variants: dict[frozenset[str], ChainRunner] = field(default_factory=dict)

    @cached_property
    def chain(self) -> Chain:
        found = chain(self.op, adds_biases=self.by_torch)
        assert found is not None
        return found.adding(self.onto) if self.onto else found

    def adding(self, onto: frozenset[str]) -> ChainRunner:
        """The same, but that it adds to the results called ``onto``."""
        if onto not in self.variants:
            self.variants[onto] = replace(self, plans=OrderedDict(), onto=onto, variants={})
        return self.variants[onto]

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
            for step, made, dropped in zip(plan.steps, plan.made, plan.dropped, strict=True):
                known.update({tensor.name: tensor.make(framework, plan.device) for tensor in made})
                step.run(known, scalars, framework)
                for name in dropped:
                    del known[name]
        if plan.program is None:
            plan.flatten()
        return results

    def settings(self, framework: Framework) -> Settings | None:
        """What the framework is told of products now."""
        return framework.settings()

    def _check_in_place(self, plan: Plan, tensors: Mapping[str, Any], framework: Framework, out: Sequence[Any]) -> None:
        addresses = {framework.pointer(tensors[name]): name for name in self.arguments}
        addresses.pop(0, None)  # of what has no elements
        for tensor in out:
            name = None if tensor is None else addresses.get(framework.pointer(tensor))
            if name is not None:
                raise ShapeError(
                    f"{self.op.name}, out=", given=f"argument {name}, which a matrix product may still read",
                    expected="memory of its own", fix="pass a fresh tensor, or leave out= away",
                )  # fmt: skip

    def plan_for(self, infos: Mapping[str, TensorInfo], out: Infos | None) -> Plan:
        """The plan for arguments and, where they are given, results of this layout."""
        device = common_device(self.op, infos, out)
        sizes = dict(self.sizes)
        origin: dict[str, str] = {}
        known: dict[str, TensorInfo] = dict(infos)
        lying: dict[str, Lying] = {}
        inputs = []
        for operand in self.op.operands:
            base = operand.base
            shape, strides, offset = view(operand, infos[base].shape, infos[base].strides)
            self._measure(operand, shape, sizes, origin)
            lying[operand.name] = _lying(base, operand, strides, offset)
            inputs.append(Slot(operand.name, base, offset * operand.dtype.size))
        check_factors(self.op, sizes)
        sizes = contracted_sizes(self.op, sizes)
        results, outputs = self._results(infos, sizes, {}, out)
        for position, (name, shape, strides, dtype) in enumerate(results):
            given = None if out is None else out[position]
            known[name] = given or TensorInfo(shape, strides, dtype, ALIGNED, device)
        for output in self.op.outputs:
            if output.part is None:
                info = known[output.name]
                lying[output.name] = _lying(output.name, output, view(output, info.shape, info.strides)[1])
        for between in self.chain.between:
            shape = tuple(sizes[axis] for axis in between.shape if axis)
            strides = strides_between(self.chain, between, sizes, device) if self.by_torch else row_major(shape)
            known[between.name] = TensorInfo(shape, strides, between.dtype, ALIGNED, device)
            lying[between.name] = _lying(between.name, between, strides)
        steps: list[Step] = []
        written: set[str] = set()
        for step in self.chain.steps:
            steps.append(self._step(step, sizes, known, lying, frozenset(written) if steps else None))
            written |= {step.result} if isinstance(step, Product) else {o.name for o in step.outputs}
        if self.by_torch:
            steps = self._as_torch_does(steps, sizes, known)
        made, dropped = _lifetimes(self.chain, steps, known)
        return ChainPlan(
            None,
            target_of(device),
            device,
            tuple(inputs),
            tuple(outputs),
            tuple(results),
            steps=tuple(steps),
            made=made,
            dropped=dropped,
        )

    def _step(
        self, step: Op | Product, sizes: Mapping[str, int], known: dict[str, TensorInfo],
        lying: Mapping[str, Lying], fresh: frozenset[str] | None,
    ) -> Step:  # fmt: skip
        if isinstance(step, Op):
            runner = Runner(step, sizes, fresh=fresh)
            writes = tuple(dict.fromkeys(o.base for o in step.outputs))
            own = {name: known[name] for name in runner.arguments}
            return Part(runner, runner.plan_for(own, [known[name] for name in writes]), writes)
        sides = [
            Lying(lying[s.name].tensor, named(s, lying[s.name].strides), lying[s.name].offset)
            for s in (step.left, step.right)
        ]
        arranged = arrange(step, sizes, sides[0], sides[1], lying[step.result])
        bias = None
        if step.bias:
            lies, axis = lying[step.bias], step.axes[-1]
            bias = lies.tensor, View((sizes[axis],), (lies.strides[axis],), lies.offset)
        found = Multiplied(arranged, known[lying[step.result].tensor].dtype, step.onto, bias)
        return found.tuned(known) if self.by_torch else found

    def _padded(self, multiplied: Multiplied, known: dict[str, TensorInfo]) -> Several | None:
        """The product on sizes that suit it, where its own do not and that pays."""
        product, dtype = multiplied.arranged, multiplied.dtype
        infos = [known[name] for name in product.names]
        device, roomy = infos[0].device, {operand.name for operand in self.chain.between}
        alignments = [info.alignment for info in infos]
        if not self.by_torch:
            return None
        found = padded(product, dtype, alignments, device, roomy, known, adds=multiplied.onto)
        if found is None:
            return None
        own, bias, fills = list(found.own), multiplied.bias, list(found.before)
        columns = found.product.views[2].shape[-1]
        if bias and bias[1].shape != (columns,):  # what is added to columns beyond the result's is never read
            taken = {*known, *(made.name for made in own)}
            wide = (next(n for i in count(2) if (n := f"{bias[0]}_{i}") not in taken), View((columns,), (1,), 0))
            own.append(Made(wide[0], (columns,), (1,), dtype))
            fills.append(Fill((wide[0], bias[0]), (View(bias[1].shape, (1,), 0), bias[1]), dtype))
            bias = wide
        for made in own:  # so that no other tensor is called so
            known[made.name] = TensorInfo(made.shape, made.strides, dtype, ALIGNED, device)
        before = [copied(fill, known, None) for fill in fills]
        after = [copied(fill, known, frozenset({found.product.names[2]})) for fill in found.after]
        suited = replace(multiplied, arranged=found.product, bias=bias).tuned(known)
        return Several((*before, suited, *after), tuple(own), device)

    def _as_torch_does(
        self, steps: Sequence[Step], sizes: Mapping[str, int], known: dict[str, TensorInfo]
    ) -> list[Step]:
        """The steps with products on sizes that suit them, and with a choice where a library can do a product and what
        follows at once."""
        found: list[Step] = []
        for told, step in zip(self.chain.steps, steps, strict=True):
            if isinstance(step, Multiplied):
                found.append(self._padded(step, known) or step)
                continue
            before = found[-1] if found else None
            either = None
            if isinstance(step, Part) and isinstance(before, Multiplied):
                either = self._either(before, told, step, sizes, known)
            if either is None:
                found.append(step)
            else:
                found[-1] = either
        return found

    def _is_matrix(self, product: Product, arranged: Arranged, known: Mapping[str, TensorInfo]) -> bool:
        """Whether a product is one of matrices with elements, with its result's last axis along the columns."""
        if any(len(view.shape) != 2 or view.copied or 0 in view.shape for view in arranged.views):
            return False
        left, right = ({s.name_of(axis) for axis in _axes(self.chain, s.name)} for s in (product.left, product.right))
        *others, last = product.axes
        is_along = last not in left and not right & set(others)
        return is_along and arranged.views[1].shape[1] == known[product.result].shape[-1]

    def _either(
        self, multiplied: Multiplied, op: Op | Product, part: Part, sizes: Mapping[str, int],
        known: dict[str, TensorInfo],
    ) -> Either | None:  # fmt: skip
        at = self.chain.steps.index(op)
        product = self.chain.steps[at - 1]
        assert isinstance(product, Product) and isinstance(op, Op)
        is_between = any(operand.name == product.result for operand in self.chain.between)
        is_read_later = any(product.result in names_of(step) for step in self.chain.steps[at + 1 :])
        closed, result = closing(product, op), known[product.result]
        if closed is None or not self._is_matrix(product, multiplied.arranged, known):
            return None
        if multiplied.bias and multiplied.bias[0] != product.bias:  # a part of a packed tensor
            return None
        if is_read_later or not is_between:  # the routine may write it too, where it is what the activation takes
            if closed.kept or (closed.bias and not product.bias):
                return None
            closed = replace(closed, kept=product.result)
        between = None
        if is_between and not is_read_later:
            between = room(product.result, result.shape, result.strides, result.dtype)
        found = Either.of(multiplied, multiplied.arranged, between, part, closed, known, result.device)
        if found is None or closed.rest is None:
            return found
        return replace(found, rest=self._step(closed.rest, sizes, known, {}, frozenset({closed.result})))


def _lying(tensor: str, thing: Any, strides: Sequence[int], offset: int = 0) -> Lying:
    return Lying(tensor, {axis: strides[d] for d, axis in enumerate(thing.shape) if axis}, offset)


def _axes(whole: Chain, name: str) -> list[str]:
    """The axes of something that a product reads."""
    things = (*whole.op.operands, *whole.op.outputs, *whole.between)
    return [axis for axis in next(thing for thing in things if thing.name == name).shape if axis]


def _lifetimes(
    whole: Chain, steps: Sequence[Step], known: Mapping[str, TensorInfo]
) -> tuple[tuple[tuple[Made, ...], ...], tuple[tuple[str, ...], ...]]:
    """Tensors between steps: those that each step is the first to use, and those that it is the last to use."""
    names = [operand.name for operand in whole.between]
    uses = [step.uses for step in steps]
    made, dropped = [], []
    for at, used in enumerate(uses):
        before: set[str] = set().union(*uses[:at])
        after: set[str] = set().union(*uses[at + 1 :])
        first = [name for name in names if name in used - before]
        infos = [(name, known[name]) for name in first]
        made.append(tuple(room(name, info.shape, info.strides, info.dtype) for name, info in infos))
        dropped.append(tuple(name for name in names if name in used - after))
    return tuple(made), tuple(dropped)

"""Runs an op with matrix products: its parts one after the other, the products by the framework's own routine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from fusegen.core.dtypes import DType
from fusegen.core.errors import ShapeError
from fusegen.core.ir import Op
from fusegen.core.products import contracted_sizes, mismatch, products
from fusegen.fuse.products import Chain, Product, chain
from fusegen.wrap.backends import LIBRARY, OWN, Closing, bucket, choose, closing
from fusegen.wrap.products import Arranged, Lying, arrange, named
from fusegen.wrap.run import Plan, Runner, common_device, part_of, row_major
from fusegen.wrap.tensors import Framework, TensorInfo

# Addresses from a framework's allocator, modulo 16.
ALIGNED = 0


class Step(Protocol):
    """One thing that a chain does."""

    @property
    def uses(self) -> set[str]: ...
    def run(self, tensors: dict[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None: ...


@dataclass(frozen=True)
class _Part:
    """One op of the chain, planned; what it writes, by name."""

    runner: Runner
    plan: Plan
    writes: tuple[str, ...]

    @property
    def uses(self) -> set[str]:
        return {*self.runner.arguments, *self.writes}

    def run(self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        self.runner.launch(self.plan, tensors, scalars, framework, [tensors[name] for name in self.writes])


@dataclass(frozen=True)
class _Either:
    """A product and the part behind it, or the library's own way to do both (wrap/backends)."""

    product: Arranged
    between: Between
    part: _Part
    closing: Closing
    key: tuple[str, ...]

    @property
    def uses(self) -> set[str]:
        return (self.product.uses | self.part.uses) - {self.between.name}

    def run(self, tensors: dict[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        out = tensors[self.part.writes[0]]

        def ours() -> None:
            mine = {**tensors, self.between.name: self.between.make(framework, str(out.device))}
            self.product.run(mine, scalars, framework)
            self.part.run(mine, scalars, framework)

        def library() -> None:
            # The result lies as the product's does: that tensor's view of two dimensions is this one's.
            left, right, result = self.product.sides({**tensors, self.between.name: out}, framework)
            self.closing.run(left, right, tensors[self.closing.bias], result)

        ways = {OWN: ours, LIBRARY: library}
        ways[choose(self.key, self.closing, out.dtype, ways)]()


@dataclass(frozen=True)
class Between:
    """A tensor between steps."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    def make(self, framework: Framework, device: str) -> Any:
        return framework.empty(self.shape, row_major(self.shape), self.dtype, device)


@dataclass(frozen=True)
class ChainPlan:
    """The steps for one layout. ``made`` and ``dropped``: tensors between steps that begin and end with each step."""

    device: str
    results: tuple[tuple[str, tuple[int, ...], tuple[int, ...], DType], ...]
    steps: tuple[Step, ...]
    made: tuple[tuple[Between, ...], ...]
    dropped: tuple[tuple[str, ...], ...]


@dataclass
class ChainRunner(Runner):
    """A Runner for an op with products (see ``runner_of``)."""

    chains: dict[Any, ChainPlan] = field(default_factory=dict)

    @cached_property
    def chain(self) -> Chain:
        found = chain(self.op)
        assert found is not None
        return found

    def __call__(
        self, tensors: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework,
        out: Sequence[Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Results in order of the op's outputs (a packed output once)."""
        infos = {name: framework.info(name, tensors[name]) for name in self.arguments}
        given = None if out is None else [framework.info(f"out[{i}]", t) for i, t in enumerate(out)]
        if out is not None:
            self._check_apart(tensors, framework, out)
        key = (tuple(infos.values()), tuple(given) if given else None)
        plan = self.chains.get(key)
        if plan is None:
            if len(self.chains) >= 1024:
                self.chains.clear()
            plan = self.chains[key] = self._plan_chain(infos, given, by_torch=framework.name == "torch")
        return _run(plan, tensors, scalars, framework, out)

    def _check_apart(self, tensors: Mapping[str, Any], framework: Framework, out: Sequence[Any]) -> None:
        addresses = {framework.pointer(tensor): name for name, tensor in tensors.items()}
        for tensor in out:
            name = addresses.get(framework.pointer(tensor))
            if name is not None:
                raise ShapeError(
                    f"{self.op.name}, out=", given=f"argument {name}, which a matrix product may still read",
                    expected="memory of its own", fix="pass a fresh tensor, or leave out= away",
                )  # fmt: skip

    def _plan_chain(
        self, infos: Mapping[str, TensorInfo], out: list[TensorInfo] | None, *, by_torch: bool
    ) -> ChainPlan:
        device = common_device(self.op, infos, out)
        sizes = dict(self.sizes)
        origin: dict[str, str] = {}
        known: dict[str, TensorInfo] = dict(infos)
        lying: dict[str, Lying] = {}
        for operand in self.op.operands:
            base = operand.part.base if operand.part else operand.name
            shape, strides, offset = part_of(infos[base], operand.part)
            self._measure(operand.shape, shape, base, sizes, origin)
            lying[operand.name] = _lying(base, operand, strides, offset)
        check_factors(self.op, sizes)
        sizes = contracted_sizes(self.op, sizes)
        results, _ = self._results(infos, sizes, {}, out)
        for position, (name, shape, strides, dtype) in enumerate(results):
            strides = strides if out is None else out[position].strides
            known[name] = TensorInfo(shape, strides, dtype, ALIGNED, device)
        for output in self.op.outputs:
            if output.part is None:
                lying[output.name] = _lying(output.name, output, known[output.name].strides)
        for between in self.chain.between:
            shape = tuple(sizes[axis] for axis in between.shape if axis)
            known[between.name] = TensorInfo(shape, row_major(shape), between.dtype, ALIGNED, device)
            lying[between.name] = _lying(between.name, between, row_major(shape))
        steps: list[Step] = []
        written: set[str] = set()
        for step in self.chain.steps:
            steps.append(self._step(step, sizes, known, lying, frozenset(written) if steps else None))
            written |= {step.result} if isinstance(step, Product) else {o.name for o in step.outputs}
        if by_torch and device != "cpu":
            steps = self._with_library(steps, sizes, known, device)
        made, dropped = _lifetimes(self.chain, steps, known)
        return ChainPlan(device, tuple(results), tuple(steps), made, dropped)

    def _step(
        self, step: Op | Product, sizes: Mapping[str, int], known: Mapping[str, TensorInfo],
        lying: Mapping[str, Lying], fresh: frozenset[str] | None,
    ) -> Step:  # fmt: skip
        if isinstance(step, Op):
            runner = Runner(step, sizes, fresh=fresh)
            writes = tuple(dict.fromkeys(o.part.base if o.part else o.name for o in step.outputs))
            own = {name: known[name] for name in runner.arguments}
            return _Part(runner, runner.plan_for(own, [known[name] for name in writes]), writes)
        sides = [
            Lying(lying[s.name].tensor, named(s, lying[s.name].strides), lying[s.name].offset)
            for s in (step.left, step.right)
        ]
        return arrange(step, sizes, sides[0], sides[1], lying[step.result])

    def _with_library(
        self, steps: Sequence[Step], sizes: Mapping[str, int], known: Mapping[str, TensorInfo], device: str
    ) -> list[Step]:
        """The steps, with a choice where the library can do a product and what follows at once."""
        found: list[Step] = []
        for at, step in enumerate(steps):
            before = found[-1] if found else None
            if isinstance(step, _Part) and isinstance(before, Arranged):
                either = self._either(at, before, step, known, device)
                if either is not None:
                    found[-1] = either
                    continue
            found.append(step)
        return found

    def _either(
        self, at: int, arranged: Arranged, part: _Part, known: Mapping[str, TensorInfo], device: str
    ) -> _Either | None:
        product, op = self.chain.steps[at - 1 : at + 1]
        assert isinstance(product, Product) and isinstance(op, Op)
        is_between = any(operand.name == product.result for operand in self.chain.between)
        is_read_later = any(product.result in _names(step) for step in self.chain.steps[at + 1 :])
        if not is_between or is_read_later or any(len(v.shape) != 2 or v.copied for v in arranged.views):
            return None
        closed = closing(product, op)
        if closed is None:
            return None
        (rows, inner), (_, columns) = arranged.views[0].shape, arranged.views[1].shape
        out, bias = known[part.writes[0]], known[closed.bias]
        if out.strides != row_major(out.shape) or bias.strides != (1,) or 0 in (rows, inner, columns):
            return None
        own = Between(product.result, known[product.result].shape, out.dtype)
        key = bucket(device, out.dtype.name, (rows, columns, inner), closed.activation)
        return _Either(arranged, own, part, closed, key)


def _lying(tensor: str, thing: Any, strides: Sequence[int], offset: int = 0) -> Lying:
    return Lying(tensor, {axis: strides[d] for d, axis in enumerate(thing.shape) if axis}, offset)


def check_factors(op: Op, sizes: Mapping[str, int]) -> None:
    """The inner dimensions of products are equal.

    Raises:
        ShapeError: they are not.
    """
    wrong = mismatch(op, sizes)
    if wrong is not None:
        _, left, right = wrong
        raise ShapeError(
            f"{op.name}, matmul", given=f"inner dimensions of sizes {left} and {right}", expected="equal sizes",
            fix="transpose one side, or pass tensors that fit",
        )  # fmt: skip


def _names(step: Op | Product) -> set[str]:
    """What a step reads and writes."""
    if isinstance(step, Product):
        return {step.result, step.left.name, step.right.name}
    return {thing.name for thing in (*step.operands, *step.outputs)}


def _lifetimes(
    whole: Chain, steps: Sequence[Step], known: Mapping[str, TensorInfo]
) -> tuple[tuple[tuple[Between, ...], ...], tuple[tuple[str, ...], ...]]:
    """Tensors between steps: those that each step is the first to use, and those that it is the last to use."""
    names = [operand.name for operand in whole.between]
    uses = [step.uses for step in steps]
    made, dropped = [], []
    for at, used in enumerate(uses):
        before: set[str] = set().union(*uses[:at])
        after: set[str] = set().union(*uses[at + 1 :])
        first = [name for name in names if name in used - before]
        made.append(tuple(Between(name, known[name].shape, known[name].dtype) for name in first))
        dropped.append(tuple(name for name in names if name in used - after))
    return tuple(made), tuple(dropped)


def _run(
    plan: ChainPlan, given: Mapping[str, Any], scalars: Mapping[str, Any], framework: Framework,
    out: Sequence[Any] | None,
) -> list[Any]:  # fmt: skip
    results = list(out) if out is not None else [
        framework.empty(shape, strides, dtype, plan.device) for _, shape, strides, dtype in plan.results
    ]  # fmt: skip
    tensors = dict(given)
    tensors.update({name: tensor for (name, *_), tensor in zip(plan.results, results, strict=True)})
    for step, made, dropped in zip(plan.steps, plan.made, plan.dropped, strict=True):
        tensors.update({between.name: between.make(framework, plan.device) for between in made})
        step.run(tensors, scalars, framework)
        for name in dropped:
            del tensors[name]
    return results


def runner_of(
    op: Op, sizes: Mapping[str, int] | None = None,
    like: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
) -> Runner:  # fmt: skip
    """What runs ``op``, with products or without."""
    return (ChainRunner if products(op) else Runner)(op, sizes or {}, like or {})

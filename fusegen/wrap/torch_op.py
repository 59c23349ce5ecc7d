"""Ops as nodes of torch's autograd graph.

The backward is an Op like any other and runs through the same node, so that its own gradient, and that one's, exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from fusegen import pipeline
from fusegen.core.ir import Call, Expr, Op, refs
from fusegen.derive.gradient import GradientNames
from fusegen.derive.training import Training
from fusegen.wrap import tensors
from fusegen.wrap.run import Runner


@dataclass
class Differentiable:
    """An Op with everything autograd needs, for one set of hints (see ``Runner``)."""

    runner: Runner
    override: Any = None
    trained: dict[tuple[str, ...], _Trained] = field(default_factory=dict)

    def __call__(self, values: Mapping[str, Any], scalars: Mapping[str, Any]) -> list[Any]:
        """Results of the op; recorded by autograd where it is on and an argument requires a gradient."""
        names = self.runner.arguments
        given = [values[name] for name in names]
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in given):
            return self.runner(values, scalars, tensors.torch())
        wanted = tuple(n for n, t in zip(names, given, strict=True) if t.requires_grad)
        trained = self.trained.get(wanted)
        if trained is None:
            trained = self.trained[wanted] = self._train(wanted)
        results = _Node.apply(trained, scalars, *given)  # type: ignore[no-untyped-call]
        return list(results[: trained.public])

    def _train(self, wanted: tuple[str, ...]) -> _Trained:
        if self.override is not None:
            training = self.override(self.runner.op, wanted)
        else:
            training = pipeline.train_op(self.runner.op, wanted)
        runner = Runner(training.forward, self.runner.sizes, self.runner.like)
        return _Trained(training, runner, _packed_count(self.runner.op))


@dataclass
class _Trained:
    """An op together with the forward that keeps what its backward will read."""

    training: Training
    forward: Runner
    public: int
    backwards: dict[Any, Differentiable] = field(default_factory=dict)

    @cached_property
    def names(self) -> list[str]:
        """Names of the forward's results, in order."""
        return _result_names(self.training.forward)

    @cached_property
    def gradients(self) -> GradientNames:
        """What the backward calls the gradients of the forward's results and arguments."""
        return GradientNames.of(self.training.forward)

    @cached_property
    def saved(self) -> tuple[list[str], list[int]]:
        """Arguments and results (by position) that the backward reads."""
        op = self.training.forward
        names = _result_names(op)
        floats = [i for i, o in enumerate(op.outputs) if o.dtype.is_float]
        reads = [o.part.base if o.part else o.name for o in _read_operands(pipeline.backward_op(self.training, floats))]
        own = set(self.forward.arguments)
        kept = {operand.name for _, operand in self.training.kept}
        arguments = [n for n in dict.fromkeys(reads) if n in own and n not in kept]
        return arguments, [names.index(n) for n in dict.fromkeys(reads) if n in kept]

    def backward(self, given: tuple[int, ...], layout: Any, sizes: Mapping[str, int]) -> Differentiable:
        """The backward for the results (by position) that have a cotangent."""
        key = (given, layout, tuple(sizes.items()))
        if key not in self.backwards:
            if len(self.backwards) > 1024:
                self.backwards.clear()
            names = _result_names(self.training.forward)
            chosen = {names[i] for i in given}
            positions = [i for i, o in enumerate(self.training.forward.outputs) if _base(o) in chosen]
            op = pipeline.backward_op(self.training, positions)
            like = {self.gradients.arguments[name]: (shape, strides) for name, shape, strides in layout}
            reached = {self.gradients.arguments[name] for name in _reached(self.training.forward, positions)}
            lean = _lean(op, reached)
            if not lean.operands:  # a gradient of zeros reads nothing; a cotangent still says on which device
                lean = replace(lean, operands=(self.gradients.cotangent(self.training.forward.outputs[positions[0]]),))
            self.backwards[key] = Differentiable(Runner(lean, sizes, like))
        return self.backwards[key]


def _base(thing: Any) -> str:
    return str(thing.part.base if thing.part else thing.name)


def _result_names(op: Op) -> list[str]:
    return list(dict.fromkeys(_base(o) for o in op.outputs))


def _packed_count(op: Op) -> int:
    return len(_result_names(op))


def _read_operands(op: Op) -> list[Any]:
    read = {ref.name for item in (*op.statements, *op.outputs) for ref in refs(item.expr)}
    return [o for o in op.operands if o.name in read]


def _lean(op: Op, names: set[str]) -> Op:
    """Only the outputs called ``names``, and only operands that are read: sizes are handed over as numbers."""
    op = replace(op, outputs=tuple(o for o in op.outputs if _base(o) in names))
    return replace(op, operands=tuple(_read_operands(op)))


def _reached(op: Op, positions: Sequence[int]) -> set[str]:
    """Arguments that the outputs at ``positions`` are computed from. Others have no gradient (None), as in torch; those
    reached only through steps have a gradient of zeros."""
    reduces, outputs = op.expand()
    inner = {reduce.ref: reduce.expr for reduce in reduces}
    arguments = {operand.ref: _base(operand) for operand in op.operands}
    found: set[str] = set()
    seen: set[Expr] = set()
    stack: list[Expr] = [outputs[position].expr for position in positions]
    while stack:
        node = stack.pop()
        if node in seen or (isinstance(node, Call) and node.function == "barrier"):
            continue
        seen.add(node)
        if node in arguments:
            found.add(arguments[node])
        stack += [inner[node]] if node in inner else node.children
    return found


def _axis_sizes(op: Op, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Sizes of the op's axes, from its arguments' shapes."""
    sizes: dict[str, int] = {}
    for operand in op.operands:
        shape = shapes[_base(operand)]
        for d, axis in enumerate(operand.shape):
            if axis:
                count = operand.part.count if operand.part and operand.part.dim == d else 1
                sizes[axis] = shape[d] // count
    return sizes


class _Node(torch.autograd.Function):
    """forward(trained, scalars, *arguments) -> results, those kept for the backward last."""

    @staticmethod
    def forward(ctx: Any, trained: _Trained, scalars: Mapping[str, Any], *arguments: Any) -> tuple[Any, ...]:
        runner = trained.forward
        values = dict(zip(runner.arguments, arguments, strict=True))
        results = runner(values, scalars, tensors.torch())
        names, positions = trained.saved
        ctx.trained, ctx.scalars, ctx.saved_names = trained, scalars, names
        ctx.save_for_backward(*[values[n] for n in names], *[results[i] for i in positions])
        ctx.kept_names = [trained.names[i] for i in positions]
        ctx.layout = tuple((n, tuple(values[n].shape), values[n].stride()) for n in trained.training.wanted)
        ctx.sizes = {**runner.sizes, **_axis_sizes(runner.op, {n: v.shape for n, v in values.items()})}
        ctx.mark_non_differentiable(*[r for r in results if not r.is_floating_point()])
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        trained: _Trained = ctx.trained
        names = trained.names
        given = tuple(i for i, c in enumerate(cotangents) if c is not None)
        arguments = trained.forward.arguments
        if not given:
            return (None, None, *[None] * len(arguments))
        backward = trained.backward(given, ctx.layout, ctx.sizes)
        if not backward.runner.op.outputs:
            return (None, None, *[None] * len(arguments))
        values = dict(zip((*ctx.saved_names, *ctx.kept_names), ctx.saved_tensors, strict=True))
        values.update({trained.gradients.results[names[i]]: cotangents[i] for i in given})
        found = dict(zip(_result_names(backward.runner.op), backward(values, ctx.scalars), strict=True))
        return (None, None, *[found.get(trained.gradients.arguments[name]) for name in arguments])

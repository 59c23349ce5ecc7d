"""Ops as nodes of torch's autograd graph.

The backward is an Op like any other and runs through the same node, so that its own gradient, and that one's, exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from math import prod
from typing import Any, ClassVar, TypeVar

import torch
from torch._C import _functorch
from torch._C import _TorchDispatchModeKey as _Mode
from torch.autograd import forward_ad

from fusegen import pipeline
from fusegen.core.errors import DeviceError
from fusegen.core.ir import Op
from fusegen.core.locks import cached_property
from fusegen.core.products import products
from fusegen.core.recent import Recent
from fusegen.derive.batch import batch, is_wide, shifted_sizes
from fusegen.derive.gradient import GradientNames
from fusegen.derive.tangent import tangent_names
from fusegen.derive.training import Training
from fusegen.plan import decided, frameworks
from fusegen.plan.backward import (
    PrunedBackward,
    Saved,
    axis_sizes,
    check_no_jit_trace,
    differentiable,
    is_jit_traced,
    prune_backward,
    reading,
    result_names,
    saved_by,
    separated,
    views_a_leaf,
)
from fusegen.pytorch.autograd import accumulate_grad
from fusegen.pytorch.autograd.legacy_vmap import is_legacy_batched, legacy_level, legacy_vmap
from fusegen.pytorch.autograd.replayed_backward import ReplayedBackward
from fusegen.pytorch.replay.modes import nobody_looks
from fusegen.pytorch.replay.reading import read_into
from fusegen.run import verify
from fusegen.run.runner import MOST_PLANS, Run, Runner, record_runs
from fusegen.run.runners import runner_of

T = TypeVar("T")
# What an op and what is derived of it keep of each kind. Beyond that, what was not asked for longest goes.
_MOST = 1024


@dataclass
class Differentiable:
    """An Op with everything autograd needs, for one set of hints (see ``Runner``)."""

    runner: Runner
    trained: Recent[tuple[str, ...], Trained] = field(default_factory=lambda: Recent(_MOST))
    is_cacheable: ClassVar[bool] = True  # the node of a cached call does what this one's does

    def __call__(self, values: Mapping[str, Any], scalars: Mapping[str, Any]) -> list[Any]:
        """Results of the op; recorded by autograd and seen by torch.func where these are on."""
        if torch._C._len_torch_dispatch_stack() or is_jit_traced():
            _check_not_traced(self.runner.op)
        names = self.runner.arguments
        # A tensor may have outlived its level of torch.func's transforms: vjp's backward reads such.
        given = [_functorch.unwrap_if_dead(values[name]) for name in names]
        values = dict(zip(names, given, strict=True))
        transformed = torch._C._are_functorch_transforms_active()
        if transformed:
            wanted = tuple(n for n, t in zip(names, given, strict=True) if _requires_grad_somewhere(t))
        elif torch.is_grad_enabled():
            wanted = tuple(n for n, t in zip(names, given, strict=True) if t.requires_grad)
        else:
            wanted = ()
        if not transformed and legacy_level() and any(map(is_legacy_batched, given)):
            return legacy_vmap(self.trained_for(()).batched, values, scalars)
        if not (transformed or wanted or forward_ad._current_level >= 0):
            return self.runner(in_memory(values), scalars, frameworks.torch())
        trained = self.trained_for(wanted)
        results = self.record(trained, scalars, given, transformed)
        return list(results[: trained.public])

    def record(
        self, trained: Trained, scalars: Mapping[str, Any], given: Sequence[Any], transformed: bool
    ) -> Sequence[Any]:
        """Results of the trained op as a node of the graph. ``transformed``: torch.func is to see it."""
        apply = Node.apply if transformed else _apply
        results: Sequence[Any] = apply(trained, scalars, *given)  # type: ignore[no-untyped-call]
        return results

    def trained_for(self, wanted: tuple[str, ...]) -> Trained:
        """The op, ready for gradients of ``wanted``."""
        return _remembered(self.trained, wanted, lambda: self._train(wanted))

    def _train(self, wanted: tuple[str, ...]) -> Trained:
        op = self.runner.op
        if not wanted:
            training: Any = Training(op, len(op.outputs), (), ())
        else:
            training = pipeline.train_op(op, wanted)
        runner = runner_of(training.forward, self.runner.sizes, self.runner.like)
        return Trained(training, runner, len(result_names(op)))


def _check_not_traced(op: Op) -> None:
    """A launch leaves no trace: what make_fx, a fake mode or torch.jit.trace records would lack it without a word."""
    check_no_jit_trace(f"{op.name}, {op.label}")
    modes = [(key, f"{key.name.lower()} mode") for key in (_Mode.PROXY, _Mode.FUNCTIONAL, _Mode.FAKE)]
    found = [name for key, name in modes if torch._C._get_dispatch_mode(key) is not None]
    if found:
        raise DeviceError(
            f"{op.name}, {op.label}", given=f"a launch while torch traces ({found[0]})",
            expected="a call that torch runs", fix="trace the call and its backward together, or neither",
        )  # fmt: skip


def _requires_grad_somewhere(tensor: Any) -> bool:
    """Whether a gradient may be asked for at some level of torch.func's transforms."""
    while not tensor.requires_grad:
        if not _functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = _functorch.get_unwrapped(tensor)
    return bool(tensor.is_floating_point())


def in_memory(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tensors, and a zero for each that has no memory because it is known to be zero: forward mode has such."""
    zeros = {
        name: torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
        for name, tensor in values.items()
        if tensor._is_zerotensor()
    }
    return {**values, **zeros} if zeros else values


@dataclass
class Trained:
    """An op together with the forward that keeps what its backward will read."""

    training: Any
    forward: Runner
    public: int
    calls: Recent[Any, Differentiable] = field(default_factory=lambda: Recent(_MOST))
    pruned_backwards: Recent[Any, PrunedBackward] = field(default_factory=lambda: Recent(_MOST))
    tangents: Recent[Any, Op] = field(default_factory=lambda: Recent(_MOST))
    verified: set[tuple[str, ...]] = field(default_factory=set)
    backwards: Recent[Any, ReplayedBackward] = field(default_factory=lambda: Recent(MOST_PLANS))

    def __post_init__(self) -> None:
        # Whether backwards may have products, whose plans are for one answer to frameworks.Settings. A gradient that a
        # user declared may have some where the forward has none: that shows when it is planned.
        self.has_products = bool(products(self.training.forward))

    @cached_property
    def names(self) -> list[str]:
        """Names of the forward's results, in order."""
        return result_names(self.training.forward)

    @cached_property
    def gradients(self) -> GradientNames:
        """What the backward calls the gradients of the forward's results and arguments."""
        return GradientNames.of(self.training.forward)

    @cached_property
    def saved(self) -> tuple[list[str], list[int]]:
        """Arguments and results (by position) that the backward reads."""
        return saved_by(self.training, self.forward.arguments) if self.training.wanted else ([], [])

    @cached_property
    def kept(self) -> Saved:
        """The same by position, and what else a node tells torch."""
        return Saved.of(self.training.forward, self.forward.arguments, self.saved)

    def layouts(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, tuple[int, ...]]]:
        """How arguments lie, as ``gradients_of`` takes it: ``layout`` and ``shapes``."""
        layout = tuple((name, tuple(values[name].shape), values[name].stride()) for name in self.training.wanted)
        return layout, {name: tuple(values[name].shape) for name in self.forward.arguments}

    def backward(self, pruned: PrunedBackward, layout: Any, sizes: Mapping[str, int]) -> Differentiable:
        """A backward, ready to run for arguments of these sizes."""
        like = {self.gradients.arguments[name]: (shape, strides) for name, shape, strides in layout}

        def make() -> Differentiable:
            return Differentiable(runner_of(pruned.op, sizes, like))

        return _remembered(self.calls, ("backward", pruned.given, pruned.wanted, layout, tuple(sizes.items())), make)

    def pruned(self, cotangents: Sequence[Any], needed: frozenset[str] | None) -> PrunedBackward:
        """What the backward for such gradients computes (see ``gradients_of``)."""
        given = tuple(i for i, cotangent in enumerate(cotangents) if cotangent is not None)
        wanted = frozenset(self.training.wanted) if needed is None else needed
        return _remembered(self.pruned_backwards, (given, wanted), lambda: prune_backward(self.training, given, wanted))

    def gradients_for(
        self, saved: Sequence[Any], cotangents: Sequence[Any], layout: Any, shapes: Mapping[str, Sequence[int]],
        scalars: Mapping[str, Any], needed: Sequence[bool], accumulate_into: Sequence[Any],
    ) -> Sequence[Any]:  # fmt: skip
        """A gradient, or None, for each of the forward's arguments, as ``gradients_of`` has it; what a node asks.

        A backward like an earlier one, of any call with such arguments, is that one done again.

        Args:
            needed: for each argument, whether its gradient is.
        """
        has_products = self.has_products
        key: list[Any] = [needed, layout, *shapes.values()]
        tensors: list[Any] = []
        addresses: list[int] = []
        may_replay = (
            not (accumulate_into or verify.is_on() or torch.is_grad_enabled() or is_jit_traced()) and nobody_looks()
        )
        if may_replay:
            if has_products:
                key.append(frameworks.torch().settings())
            may_replay = read_into((*saved, *cotangents), repeat(0), False, key, tensors, addresses, [])
        found = self.backwards.get(tuple(key)) if may_replay and not decided.state.anew else None
        if found is None:
            named = zip(self.forward.arguments, needed, strict=True)
            asked = frozenset(name for name, is_needed in named if is_needed and name in self.training.wanted)
            backward, values = self.asked(saved, cotangents, layout, shapes, asked)
            pruned = self.pruned(cotangents, asked)
            with record_runs() as runs:
                gradients = self._computed(backward, values, pruned, cotangents, scalars, accumulate_into)
            if may_replay:
                done = self._replayed(backward, pruned, values, tuple(scalars), runs)
                if done is not None and done.has_products and not has_products:
                    self.has_products = True  # this key lacks the settings
                elif done is not None:
                    self.backwards.put(tuple(key), done)
            return gradients
        return found.run(tensors, addresses, scalars, cotangents)

    def _replayed(
        self, backward: Differentiable | None, pruned: PrunedBackward, values: Mapping[str, Any],
        names: tuple[str, ...], runs: Sequence[Run],
    ) -> ReplayedBackward | None:  # fmt: skip
        """A backward as it was just done; None where something else did it, or on other tensors."""
        run = None
        if backward is not None:
            run = next((run for run in runs if run.runner is backward.runner), None)
            if run is None or any(run.tensors[name] is not values[name] for name in run.runner.arguments):
                return None
        own = self.gradients.arguments
        return ReplayedBackward({n: own[n] for n in self.forward.arguments}, pruned, run, values, names)

    def gradients_of(
        self, saved: Sequence[Any], cotangents: Sequence[Any], layout: Any, shapes: Mapping[str, Sequence[int]],
        scalars: Mapping[str, Any], needed: frozenset[str] | None = None, accumulate_into: Sequence[Any] = (),
    ) -> list[Any]:  # fmt: skip
        """A gradient, or None, for each of the forward's arguments.

        Args:
            saved: arguments and results that ``saved`` names, in order.
            cotangents: one, or None, for each result.
            layout: (name, shape, strides) of each argument whose gradient is wanted.
            shapes: of all arguments by name.
            needed: arguments whose gradients are needed now; None: all that are wanted.
            accumulate_into: for each argument a tensor that its gradient may be added to, which then is None, or None.
        """
        backward, values = self.asked(saved, cotangents, layout, shapes, needed)
        return self._computed(
            backward, values, self.pruned(cotangents, needed), cotangents, scalars, accumulate_into
        )  # fmt: skip

    def _computed(
        self, backward: Differentiable | None, values: Mapping[str, Any], pruned: PrunedBackward,
        cotangents: Sequence[Any], scalars: Mapping[str, Any], accumulate_into: Sequence[Any],
    ) -> list[Any]:  # fmt: skip
        """A gradient, or None, for each of the forward's arguments, by a backward that reads these values."""
        arguments, found = self.forward.arguments, dict[str, Any]()
        if backward is not None:
            names, own = result_names(backward.runner.op), self.gradients.arguments
            twice = {*pruned.shared, *pruned.shared.values()}
            added = {
                own[n]: t for n, t in zip(arguments, accumulate_into, strict=False) if t is not None and n not in twice
            }
            run = partial(accumulate_grad.run_adding, backward.runner, names, added=added) if added else backward
            computed = dict(zip(names, run(values, scalars), strict=True))
            found = {name: computed[own[name]] for name in arguments if own[name] in computed}
        pruned.fill(found, cotangents)
        return [found.get(name) for name in arguments]

    def asked(
        self, saved: Sequence[Any], cotangents: Sequence[Any], layout: Any, shapes: Mapping[str, Sequence[int]],
        needed: frozenset[str] | None,
    ) -> tuple[Differentiable | None, dict[str, Any]]:  # fmt: skip
        """The backward for such gradients (see ``gradients_of``), and what it reads by name; None if there is nothing
        to compute."""
        pruned = self.pruned(cotangents, needed)
        if not pruned.op.outputs:
            return None, {}
        return self.backward(pruned, layout, self.sizes(shapes)), self.read_backward(saved, cotangents)

    def read_backward(self, saved: Sequence[Any], cotangents: Sequence[Any]) -> dict[str, Any]:
        """What a backward may read, by name: what was saved, and then the cotangents that there are."""
        names, (read, positions) = self.names, self.saved
        found = dict(zip((*read, *(names[i] for i in positions)), saved, strict=True))
        cotangent = zip(names, cotangents, strict=False)  # natively there are tensors between steps as well
        return found | {self.gradients.results[name]: c for name, c in cotangent if c is not None}

    def sizes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Sizes of all axes, from the arguments' shapes."""
        return {**self.forward.sizes, **axis_sizes(self.forward.op, shapes)}

    @cached_property
    def differentiable(self) -> list[int]:
        """Results (by position) that have a gradient."""
        return differentiable(self.training.forward)

    @cached_property
    def tangent_names(self) -> GradientNames:
        """What the forward-mode derivative calls the tangents of the forward's results and arguments."""
        return tangent_names(self.training.forward)

    def tangent(self, given: tuple[str, ...], sizes: Mapping[str, int]) -> Differentiable:
        """The tangents of all float results, given those of these arguments."""

        def make() -> Differentiable:
            return Differentiable(runner_of(_remembered(self.tangents, given, lambda: self._tangent_op(given)), sizes))

        return _remembered(self.calls, ("tangent", given, tuple(sizes.items())), make)

    def _tangent_op(self, given: tuple[str, ...]) -> Op:
        op = self.training.forward
        return reading(pipeline.tangent_op(op, given), op.operands[:1])

    def batched(self, wide: frozenset[str], count: int) -> Differentiable:
        """``count`` calls in one, of which the arguments ``wide`` have a value each."""

        def make() -> Differentiable:
            made = batch(self.forward.op, wide)
            results = is_wide(made)
            like = {
                name: ((count, *shape), (prod(shape), *strides)) if results.get(name) else (shape, strides)
                for name, (shape, strides) in self.forward.like.items()
            }
            return Differentiable(runner_of(made, shifted_sizes(self.forward.sizes), like))

        return _remembered(self.calls, ("batched", wide, count if self.forward.like else None), make)


def _remembered(table: Recent[Any, T], key: Any, make: Callable[[], T]) -> T:
    """What is there, or what is made: of threads that make it at once, all get the first one's."""
    found = table.get(key)
    return found if found is not None else table.setdefault(key, make())


class Node(torch.autograd.Function):
    """forward(trained, scalars, *arguments) -> results, those kept for the backward last.

    Each level of torch.func's transforms calls this once, with what tensors are at that level.
    """

    @staticmethod
    def forward(trained: Trained, scalars: Mapping[str, Any], *arguments: Any) -> tuple[Any, ...]:
        values = dict(zip(trained.forward.arguments, arguments, strict=True))
        return tuple(trained.forward(in_memory(values), scalars, frameworks.torch()))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        trained, scalars, *arguments = inputs
        values = dict(zip(trained.forward.arguments, arguments, strict=True))
        ctx.trained, ctx.scalars = trained, scalars
        trained.kept.tell(ctx, arguments, output)
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(*arguments)  # what jvp gets as saved_tensors
        ctx.layout, ctx.shapes = trained.layouts(values)
        transformed = torch._C._are_functorch_transforms_active()
        ctx.apart = [not transformed and views_a_leaf(argument) for argument in arguments]
        ctx.unverified = _unverified(values) if verify.is_on() and not transformed else None

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        trained: Trained = ctx.trained
        asked = ctx.needs_input_grad[2:]
        saved, layout, shapes = ctx.saved_tensors, ctx.layout, ctx.shapes
        accumulate_into = accumulate_grad.accumulate_into(ctx, asked, (*saved, *cotangents))
        found = trained.gradients_for(saved, cotangents, layout, shapes, ctx.scalars, asked, accumulate_into)
        if ctx.unverified is not None:
            _verify_gradients(trained, ctx.unverified, cotangents, found, ctx.scalars, shapes)
        return (None, None, *separated(found, cotangents, ctx.apart))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        trained: Trained = ctx.trained
        names = trained.forward.arguments
        along = {n: t for n, t in zip(names, tangents[2:], strict=True) if t is not None}
        op = trained.training.forward
        if not any(output.dtype.is_float for output in op.outputs):
            return (None,) * len(trained.names)
        tangent = trained.tangent(tuple(along), trained.sizes(ctx.shapes))
        values = dict(zip(names, ctx.saved_tensors, strict=True))
        values.update({trained.tangent_names.arguments[name]: t for name, t in along.items()})
        found = dict(zip(result_names(tangent.runner.op), tangent(values, ctx.scalars), strict=True))
        results = [found.get(trained.tangent_names.results[name]) for name in trained.names]
        return tuple(result if i in trained.differentiable else None for i, result in enumerate(results))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], trained: Trained, scalars: Any, *arguments: Any) -> tuple[Any, Any]:
        names, dims = trained.forward.arguments, in_dims[2:]
        wide = frozenset(n for n, d in zip(names, dims, strict=True) if d is not None)
        values = {n: a if d is None else a.movedim(d, 0) for n, a, d in zip(names, arguments, dims, strict=True)}
        calls = trained.batched(wide, info.batch_size)
        has_calls = is_wide(calls.runner.op).values()
        return tuple(calls(values, scalars)), tuple(0 if wide else None for wide in has_calls)


def _unverified(values: Mapping[str, Any]) -> dict[str, tuple[Any, int]]:
    """Arguments that a backward is to be compared for, and their versions."""
    return {name: (tensor.detach(), tensor._version) for name, tensor in values.items()}


def _verify_gradients(
    trained: Trained, given: Mapping[str, tuple[Any, int]], cotangents: Sequence[Any], found: Sequence[Any],
    scalars: Mapping[str, Any], shapes: Mapping[str, Sequence[int]],
) -> None:  # fmt: skip
    """Compare a derived backward with torch's own, once for the same gradients of the same results."""
    if any(tensor._version != version for tensor, version in given.values()):
        return
    tensors = {name: tensor for name, (tensor, _) in given.items()}
    gradients = {n: g for n, g in zip(trained.forward.arguments, found, strict=True) if g is not None}
    own = {name: c.detach() for name, c in zip(trained.names, cotangents, strict=True) if c is not None}
    which = (*own, "for", *gradients)
    if gradients and own and which not in trained.verified:
        op = trained.training.forward
        verify.verify_gradients(op, tensors, scalars, trained.sizes(shapes), own, gradients)
        trained.verified.add(which)


# What torch.autograd.Function.apply does outside of torch.func's transforms, less ten microseconds of inspect.
_apply = super(torch.autograd.Function, Node).apply

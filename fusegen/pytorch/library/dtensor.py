"""Calls on DTensors: each process runs the op on its piece. What is cut, and what is summed, distribute/sharding
decides.

torch asks here (``torch.library.register_torch_dispatch``) where a registered op meets a DTensor, below autograd. So
the forward that saves and every backward has placements of its own, read off its own axes, and gradients of gradients
need nothing more. Importing this imports torch.distributed.tensor, so only calls with DTensors do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch._C import _TorchDispatchModeKey as Mode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import placement_types as placed
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._redistribute import redistribute_local_tensor

from fusegen.core.declared import without_declared_gradients
from fusegen.core.errors import DeclarationError
from fusegen.distribute import placing, sharding
from fusegen.plan.layout import dense_like
from fusegen.pytorch.library import fake
from fusegen.pytorch.library.derived import Derived

MOST_PLANS = 1024
TRACING = (Mode.PROXY, Mode.FUNCTIONAL, Mode.FAKE)


@dataclass(frozen=True)
class ShardStep:
    """One stage of a call.

    Args:
        node: the Op of one process.
        own: scalars that it takes of the op's, by position.
        numbers: those that it takes behind them.
        layout: sizes and strides that no tensor tells, of this process's shards.
        gathered: for results that later stages read, how they are placed, and how they then must be.
    """

    node: Derived
    own: tuple[int, ...]
    numbers: tuple[int, ...]
    layout: tuple[Any, ...]
    gathered: Mapping[str, tuple[tuple[Any, ...], tuple[Any, ...]]]


@dataclass(frozen=True)
class ShardPlan:
    """What a call on DTensors of certain layouts does.

    Args:
        arguments: placements that each tensor must have.
        steps: what runs.
        results: shape, strides, placements and dtype of each result, by name.
    """

    arguments: tuple[tuple[Any, ...], ...]
    steps: tuple[ShardStep, ...]
    results: Mapping[str, tuple[torch.Size, tuple[Any, ...], tuple[Any, ...], torch.dtype]]


class Sharded:
    """The rules of one registered op (pytorch/library/registry).

    Args:
        registered: the op; it is asked for the Op that a text stands for, and to call it.
    """

    def __init__(self, registered: Any, library: torch.library.Library) -> None:
        self.registered, self.library = registered, library
        self.known: set[str] = set()
        self.plans: dict[Any, ShardPlan] = {}
        for which in ("forward", "backward"):
            self._register(f"{registered.name}_{which}", self._derived)

    def register(self) -> None:
        """Tell torch what the overloads there are do with DTensors."""
        for name in self.registered.defined.keys() - self.known:
            self.known.add(name)
            self._register(name, partial(self._overload, name))

    def _register(self, name: str, rule: Any) -> None:
        qualified = f"{self.library.ns}::{name}"
        torch.library.register_torch_dispatch(qualified, DTensor, rule, lib=self.library)

    def _overload(self, name: str, cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.registered.call_as_derived(name, args, kwargs or {})

    def _derived(self, cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> list[torch.Tensor]:
        given, numbers, layout, text = args
        node: Derived = self.registered.node(text)
        mesh, tensors = entered(node, given)
        plan = self._plan(node, tensors, layout, mesh)
        here = {
            name: _piece(tensor, mesh, places)
            for name, tensor, places in zip(node.arguments, tensors, plan.arguments, strict=True)
        }
        if mesh.get_coordinate() is None:  # this process has no part in it
            where = tensors[0].device
            here = {name: torch.empty(0, dtype=dtype, device=where) for name, (*_, dtype) in plan.results.items()}
        else:
            for step in plan.steps:
                here.update(self._run(function, step, here, numbers, mesh))
        return [
            DTensor.from_local(here[name], mesh, places, run_check=False, shape=shape, stride=strides)
            for name, (shape, strides, places, _) in plan.results.items()
        ]

    def _run(
        self, function: Any, step: ShardStep, here: Mapping[str, torch.Tensor], numbers: Sequence[Any], mesh: DeviceMesh
    ) -> dict[str, torch.Tensor]:
        local = step.node
        self.registered.texts.setdefault(local.text, local)
        given = [here[name] for name in local.arguments]
        scalars = [*(numbers[i] for i in step.own), *step.numbers]
        made = dict(zip(local.names, function(given, scalars, list(step.layout), local.text), strict=True))
        for name, (places, wanted) in step.gathered.items():
            made[name] = _piece(DTensor.from_local(made[name], mesh, places, run_check=False), mesh, wanted)
        return made

    def _plan(self, node: Derived, tensors: Sequence[DTensor], layout: Sequence[Any], mesh: DeviceMesh) -> ShardPlan:
        if any(torch._C._get_dispatch_mode(mode) is not None for mode in TRACING):  # sizes may be symbolic
            return plan_of(node, tensors, layout, mesh, positions=False)
        key = node.text, mesh, tuple(layout), tuple((t.shape, t.stride(), t.dtype, t.placements) for t in tensors)
        plan = self.plans.get(key)
        if plan is None:
            if len(self.plans) >= MOST_PLANS:
                self.plans.clear()
            plan = self.plans[key] = plan_of(node, tensors, layout, mesh, positions=True)
        return plan


def entered(node: Derived, given: Sequence[torch.Tensor]) -> tuple[DeviceMesh, list[DTensor]]:
    """The mesh, and all tensors as DTensors: single numbers are the same everywhere, as for torch's own ops.

    Raises:
        DeclarationError: a plain tensor beside DTensors, or DTensors of several meshes.
    """
    named = dict(zip(node.arguments, given, strict=True))
    meshes = {name: t.device_mesh for name, t in named.items() if isinstance(t, DTensor)}
    mesh = next(iter(meshes.values()))
    if any(other != mesh for other in meshes.values()):
        raise DeclarationError(
            node.op.name, given=", ".join(f"{name} on {mesh}" for name, mesh in meshes.items()),
            expected="DTensors on one mesh", fix="distribute them over the same DeviceMesh",
        )  # fmt: skip
    plain = [name for name, t in named.items() if not isinstance(t, DTensor) and t.numel() != 1]
    if plain and not DTensor._op_dispatcher._allow_implicit_replication:
        raise DeclarationError(
            node.op.name, given=f"plain tensors ({', '.join(plain)}) beside DTensors ({', '.join(meshes)})",
            expected="DTensors only",
            fix=f"distribute_tensor({plain[0]}, mesh, [Replicate()]), or to_local() of the others",
        )  # fmt: skip
    everywhere = [placed.Replicate()] * mesh.ndim
    return mesh, [
        t if isinstance(t, DTensor) else DTensor.from_local(t, mesh, everywhere, run_check=False) for t in given
    ]  # fmt: skip


def plan_of(
    node: Derived, tensors: Sequence[DTensor], layout: Sequence[Any], mesh: DeviceMesh, *, positions: bool
) -> ShardPlan:
    """What to do with tensors of these layouts.

    Args:
        positions: whether numbers that differ from process to process may be used.
    """
    given = {
        name: placing.Tensor(
            tuple(map(fake.sample, t.shape)), _bytes(t), tuple(_theirs(p, t.ndim) for p in t.placements)
        )
        for name, t in zip(node.arguments, tensors, strict=True)
    }
    decision = placing.decide(without_declared_gradients(node.op), given, mesh.shape, positions=positions)
    infos = {
        name: replace(fake.describe(name, t), device="meta") for name, t in zip(node.arguments, tensors, strict=True)
    }
    sizes, strides = node.unpack(layout)
    whole = fake.results(node.op, infos, sizes, strides)
    axes = fake.measure(node.op, infos, sizes)
    place = mesh.get_coordinate() or (0,) * mesh.ndim
    shards = {
        axis: sharding.local_shard(
            size, [(mesh.shape[d], place[d]) for d, cut in enumerate(decision.axes) if axis in cut]
        )
        for axis, size in axes.items()
    }
    results, own = {}, {}
    for name, tensor in zip(node.names, whole, strict=True):
        places = decision.results[name]
        results[name] = tensor.shape, tensor.stride(), tuple(map(_ours, places)), tensor.dtype
        if name in strides:
            own[name] = dense_like(_local_shape(tensor.shape, places, mesh.shape, place), tensor.stride())
    steps = tuple(_step(node, decision, stage, axes, shards, own) for stage in range(len(decision.stages)))
    return ShardPlan(tuple(tuple(map(_ours, decision.arguments[name])) for name in node.arguments), steps, results)


def _step(
    node: Derived, decision: placing.Decision, stage: int, axes: Mapping[str, Any],
    shards: Mapping[str, tuple[Any, Any]], strides: Mapping[str, Sequence[Any]],
) -> ShardStep:  # fmt: skip
    op = decision.stages[stage]
    along = tuple(sorted(axis for axis in axes if any(axis in cut for cut in decision.axes)))
    handed = sharding.numbers(op, along)
    in_one_go = decision.through is None and not handed
    local = node if in_one_go else node.local((decision.through, stage, *along))
    names = [scalar.name for scalar in node.op.scalars]
    gathered = {}
    for name in local.names:
        if name not in node.names:
            places = tuple(map(_ours, decision.results[name]))
            gathered[name] = places, tuple(placed.Replicate() if p.is_partial() else p for p in places)
    return ShardStep(
        node=local,
        own=tuple(names.index(scalar.name) for scalar in op.scalars),
        numbers=tuple(axes[axis] if kind == "size" else shards[axis][1] for kind, axis in handed),
        layout=tuple(local.layout({axis: shards[axis][0] for axis in local.axes}, strides)),
        gathered=gathered,
    )


def _local_shape(shape: Sequence[Any], places: Sequence[Any], mesh: Sequence[int], place: Sequence[int]) -> list[Any]:
    cuts: dict[int, list[tuple[int, int]]] = {}
    for d, at in enumerate(places):
        if isinstance(at, sharding.Shard):
            cuts.setdefault(at.dim, []).append((mesh[d], place[d]))
    return [sharding.local_shard(size, cuts.get(d, ()))[0] for d, size in enumerate(shape)]


def _piece(tensor: DTensor, mesh: DeviceMesh, places: Sequence[Any]) -> torch.Tensor:
    """What this process has of a tensor, once it is placed as it must be."""
    local: Any = tensor._local_tensor
    if tensor.placements != tuple(places):  # DTensor.redistribute is for autograd, below which this is
        target = DTensorSpec(mesh, tuple(places), tensor_meta=tensor._spec.tensor_meta)
        local = redistribute_local_tensor(local, tensor._spec, target)
    return local.wait() if isinstance(local, AsyncCollectiveTensor) else local


def _bytes(tensor: torch.Tensor) -> int:
    size = tensor.element_size()
    for extent in tensor.shape:
        size *= fake.sample(extent)
    return size


def _theirs(place: Any, rank: int) -> sharding.Placement:
    """torch's placement as distribute/sharding calls it."""
    if type(place) is placed.Replicate:
        return sharding.REPLICATE
    if type(place) is placed.Shard:
        return sharding.Shard(place.dim % rank)
    if type(place) is placed.Partial and place.reduce_op in (*sharding.LINEAR, "max", "min"):
        return sharding.Partial(place.reduce_op)
    return sharding.Other()


def _ours(place: sharding.Placement) -> Any:
    if isinstance(place, sharding.Shard):
        return placed.Shard(place.dim)
    return placed.Partial(place.kind) if isinstance(place, sharding.Partial) else placed.Replicate()

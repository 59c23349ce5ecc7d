"""Which way of spreading an op over processes moves the fewest bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fusegen.core.ir import Op
from fusegen.core.views import axis_sizes
from fusegen.distribute.sharding import (
    REPLICATE,
    UNCUT,
    Cut,
    Partial,
    Placement,
    Replicate,
    Shard,
    cut,
    results,
    tied,
    uses_positions,
)
from fusegen.distribute.stages import staged

# What starting a collective costs, in bytes that could have been sent meanwhile.
LATENCY = 1 << 16


@dataclass(frozen=True)
class Tensor:
    """What a choice depends on: sizes, bytes, and the placement along each dimension of the mesh."""

    shape: tuple[int, ...]
    bytes: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True)
class Decision:
    """Placements of arguments and results (packed ones by their own names) along each dimension of the mesh.

    Args:
        axes: what is cut along each dimension of the mesh.
        through: an axis of those that the op goes through in stages; None: in one go.
        stages: the ops to run one after the other; what one finds for a later one is among ``results``.
    """

    axes: tuple[Cut, ...]
    through: str | None
    stages: tuple[Op, ...]
    arguments: Mapping[str, tuple[Placement, ...]]
    results: Mapping[str, tuple[Placement, ...]]


def decide(op: Op, given: Mapping[str, Tensor], mesh: Sequence[int], *, positions: bool = True) -> Decision:
    """The cheapest placements: cut where something is cut already, in one go or in stages, or nowhere.

    Args:
        given: the arguments as they are, packed ones by their own names.
        mesh: how many processes along each dimension.
        positions: whether positions within the whole may be handed over (they differ from process to process).
    """
    found = [_spread(op, None, (op,), given, mesh, positions)]
    for axis in _cut_now(op, given, len(mesh)):
        stages = staged(op, tied(op, axis))
        if stages:
            found.append(_spread(op, axis, stages, given, mesh, positions))
    return min(found, key=lambda candidate: candidate[:2])[2]


def _cut_now(op: Op, given: Mapping[str, Tensor], dimensions: int) -> list[str]:
    places = ((o, given[o.base].placements[d]) for d in range(dimensions) for o in op.operands)
    axes = dict.fromkeys(o.shape[p.dim] for o, p in places if isinstance(p, Shard))
    return [axis for axis in axes if axis]


def _spread(
    op: Op, through: str | None, stages: tuple[Op, ...], given: Mapping[str, Tensor], mesh: Sequence[int],
    positions: bool,
) -> tuple[float, int, Decision]:  # fmt: skip
    """Bytes, tensors that must be placed anew, and the placements, of an op in these stages."""
    inner = _bytes_between(op, stages, given)
    axes: list[Cut] = []
    arguments: dict[str, list[Placement]] = {name: [] for name in given}
    made: dict[str, list[Placement]] = {output.base: [] for stage in stages for output in stage.outputs}
    total, moved = 0.0, 0
    for d, count in enumerate(mesh):
        current = {name: tensor.placements[d] for name, tensor in given.items()}
        best: tuple[float, int, Candidate] | None = None
        for candidate in _candidates(op, stages, current, positions):
            _, wanted, found = candidate
            cost = sum(_cost(current[name], wanted[name], given[name].bytes, count) for name in given)
            parts = [name for name in inner if isinstance(found[name], Partial)]
            cost += sum(_cost(found[name], REPLICATE, inner[name], count) for name in parts)
            changed = sum(current[name] != wanted[name] for name in given)
            if best is None or (cost, changed) < best[:2]:
                best = cost, changed, candidate
        assert best is not None
        cost, changed, (together, wanted, found) = best
        total, moved = total + cost, moved + changed
        axes.append(together)
        for name in given:
            arguments[name].append(wanted[name])
        for name in made:
            made[name].append(found[name])
    decision = Decision(
        tuple(axes), through, stages, {n: tuple(p) for n, p in arguments.items()},
        {n: tuple(p) for n, p in made.items()},
    )  # fmt: skip
    return total, moved, decision


Candidate = tuple[Cut, Mapping[str, Placement], Mapping[str, Placement]]


def _candidates(op: Op, stages: Sequence[Op], current: Mapping[str, Placement], positions: bool) -> Iterator[Candidate]:
    """Lawful (cut, arguments, results) along one dimension of the mesh; nothing cut and all replicated always is."""
    axes = dict.fromkeys(o.shape[p.dim] for o in op.operands if isinstance(p := current[o.base], Shard))
    for together in dict.fromkeys(tied(op, axis) for axis in axes if axis):
        places = cut(op.operands, together)
        if places is None or (uses_positions(op, together) and not positions):
            continue
        found = [results(stage, together) for stage in stages]
        if None not in found:
            yield together, places, {name: place for some in found if some for name, place in some.items()}
    partial = {name: place.kind for name, place in current.items() if isinstance(place, Partial)}
    some_partial = [partial, *({name: kind} for name, kind in partial.items())] if len(stages) == 1 else []
    for some in (*some_partial, {}):
        found = [results(stage, UNCUT, some) for stage in stages]
        if None not in found:
            wanted = {name: Partial(some[name]) if name in some else REPLICATE for name in current}
            yield UNCUT, wanted, {name: place for some in found if some for name, place in some.items()}


def _bytes_between(op: Op, stages: Sequence[Op], given: Mapping[str, Tensor]) -> dict[str, int]:
    """Sizes of what stages find for later ones."""
    sizes = axis_sizes(op, {name: tensor.shape for name, tensor in given.items()})
    own = {output.base for output in op.outputs}
    return {
        output.name: output.dtype.size * prod(sizes.get(axis or "", 1) for axis in output.shape)
        for stage in stages
        for output in stage.outputs
        if output.base not in own
    }


def _cost(now: Placement, wanted: Placement, size: int, count: int) -> float:
    """Bytes that each process sends, roughly."""
    if now == wanted or isinstance(now, Replicate) or count == 1:
        return 0.0
    share = size * (count - 1) / count
    if isinstance(now, Shard):
        return LATENCY + (share / count if isinstance(wanted, Shard) else share)
    return LATENCY + (share if isinstance(wanted, Shard) else 2 * share)

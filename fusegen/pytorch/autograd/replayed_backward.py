"""A backward that was planned, done again for cotangents and saved tensors of the same layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusegen.plan import frameworks
from fusegen.plan.backward import PrunedBackward, result_names
from fusegen.pytorch.replay.runs import Replay, replay_of
from fusegen.run.runner import Run


class ReplayedBackward:
    """What one backward computes, and which arguments' gradients that is.

    Args:
        gradients: what each of the forward's arguments' gradients is called, in order.
        run: of what is computed; None if that is nothing.
        values: what it reads, by name, in the order in which later calls pass their tensors.
        names: of the numbers that it reads.
    """

    def __init__(
        self, gradients: Mapping[str, str], pruned: PrunedBackward, run: Run | None, values: Mapping[str, Any],
        names: Sequence[str],
    ) -> None:  # fmt: skip
        arguments = list(gradients)
        self.numbers = tuple(names)
        self.replay: Replay | None = None
        self.has_products = False
        results: list[str] = []
        if run is not None:
            runner = run.runner
            self.has_products = runner.settings(frameworks.torch()) is not None
            places = {name: place for place, name in enumerate(values)}
            numbers = {name: place for place, name in enumerate(names)}
            self.replay = replay_of(run, [places[name] for name in runner.arguments], numbers, {})
            results = result_names(runner.op)
        self.computed = [results.index(n) if n in results else None for n in gradients.values()]
        self.handed_on = [(arguments.index(name), at) for name, at in pruned.handed_on.items()]
        self.shared = [(arguments.index(name), arguments.index(other)) for name, other in pruned.shared.items()]

    def run(
        self, tensors: Sequence[Any], addresses: Sequence[int], scalars: Mapping[str, Any], cotangents: Sequence[Any]
    ) -> list[Any]:
        """A gradient, or None, for each of the forward's arguments."""
        numbers = [scalars[name] for name in self.numbers] if self.numbers else ()
        results = self.replay(tensors, addresses, numbers) if self.replay is not None else []
        found = [None if at is None else results[at] for at in self.computed]
        for argument, at in self.handed_on:
            found[argument] = cotangents[at]
        for argument, other in self.shared:
            found[argument] = found[other]
        return found

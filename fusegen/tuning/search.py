"""The search for the fastest schedule of an op: from the schedules' own choices, one other choice at a time.

What a schedule could choose otherwise it says itself (fuse/choices). All that differ in one choice from the best so far
are put in order by an estimate, and measured a few at a time, beside the best; the fastest one is the next to start
from. What is faster by less than noise is not taken, and what computes other numbers is not even measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusegen.fuse.choices import NOTHING_CHOSEN, Chosen
from fusegen.pipeline import ScheduledOp
from fusegen.tuning.estimate import microseconds

# Schedules that are measured side by side, and how many such groups are tried from one place, at most.
GROUP, GROUPS = 8, 3
# How much less time one has to take.
LEAST_GAIN = 0.02

# Microseconds of each schedule that computes the right numbers, by its place. The first always does.
Measure = Callable[[Sequence[ScheduledOp]], Mapping[int, float]]


@dataclass
class Search:
    """One search.

    Args:
        plan: the op's schedule with such choices.
        measure: by turns, under the same conditions.
        seconds: after how long it ends with what it has.
        tell: called with how many schedules were measured so far.
    """

    plan: Callable[[Chosen], ScheduledOp]
    measure: Measure
    seconds: float
    tell: Callable[[int], None] = lambda tried: None

    def run(self) -> Found | None:
        """The best schedule that was found in time; None where there is nothing to choose, or no time."""
        end = time.monotonic() + self.seconds
        own = best = self.plan(NOTHING_CHOSEN)
        seen, tried, took = {_signature(own)}, 0, None
        while time.monotonic() < end:
            better, least = best, 1 - LEAST_GAIN  # of what the best takes
            for group in self._groups(best, seen):
                tried += len(group)
                times = self.measure([best, *group])
                took = times[0] if best is own else took
                self.tell(tried)
                fastest = min(times, key=lambda place: times[place])
                if times[fastest] < times[0] * least:
                    better, least = group[fastest - 1], times[fastest] / times[0]
                if time.monotonic() > end:
                    break
            if better is best:
                break
            best = better
        if took is None or best is own:
            return None if took is None else Found(own, took, took, tried)
        last = self.measure([own, best])  # by more than noise, once more
        is_faster = 1 in last and last[1] < last[0] * (1 - LEAST_GAIN)
        return Found(best, last[0], last[1], tried) if is_faster else Found(own, last[0], last[0], tried)

    def _groups(self, best: ScheduledOp, seen: set[Hashable]) -> Iterator[list[ScheduledOp]]:
        """What differs in one choice and was not seen before, the most promising first."""
        found = {_signature(planned): planned for planned in map(self.plan, best.choices.neighbours())}
        new = sorted((signature for signature in found if signature not in seen), key=lambda s: microseconds(found[s]))
        for start in range(0, min(len(new), GROUP * GROUPS), GROUP):
            group = new[start : start + GROUP]
            seen.update(group)
            yield [found[signature] for signature in group]


@dataclass(frozen=True)
class Found:
    """What a search has found: the best schedule, microseconds of the schedules' own choices and of it."""

    best: ScheduledOp
    own_time: float
    best_time: float
    tried: int


def _signature(planned: ScheduledOp) -> Hashable:
    """What two plans have in common that are one: their kernels, and how these are launched."""
    return tuple((k.rendered.text, k.launch.grid, k.launch.block, k.launch.chunk) for k in planned.kernels)

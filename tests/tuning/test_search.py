"""The search: from the schedules' own choices to faster ones, in time, past noise, and never to a wrong one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

import fusegen as fg
from fusegen import pipeline
from fusegen.fuse.choices import Chosen
from fusegen.plan import frameworks
from fusegen.run.runner import Runner
from fusegen.tuning.estimate import microseconds
from fusegen.tuning.search import LEAST_GAIN, Found, Search

OP = fg.ops.softmax.trace(input=torch.ones(64, 4096))


def planned(chosen: Chosen) -> pipeline.ScheduledOp:
    info = frameworks.torch().info("input", torch.ones(64, 4096))
    return pipeline.plan_op(OP, Runner(OP).lay_out({"input": info}).layout, chosen=chosen)


def threads(item: pipeline.ScheduledOp) -> int:
    return item.kernels[-1].schedule.threads


def rows(item: pipeline.ScheduledOp) -> int:
    return item.kernels[-1].schedule.rows


def search(
    time_of: Callable[[pipeline.ScheduledOp], float | None], seconds: float = 60.0
) -> tuple[Found | None, list[pipeline.ScheduledOp]]:
    """The search's result, and what it measured; ``time_of``: None for what computes something else."""
    measured = list[pipeline.ScheduledOp]()

    def measure(items: Sequence[pipeline.ScheduledOp]) -> Mapping[int, float]:
        measured.extend(items)
        return {place: took for place, item in enumerate(items) if (took := time_of(item)) is not None}

    return Search(planned, measure, seconds).run(), measured


def test_it_goes_on_from_what_is_faster() -> None:
    """Two choices away: neither is measured before the other was made."""
    own = planned({})

    def time_of(item: pipeline.ScheduledOp) -> float:
        return 100 - 20 * (threads(item) < threads(own)) - 20 * (threads(item) < threads(own) and rows(item) > 1)

    found, _ = search(time_of)
    assert found is not None and (found.own_time, found.best_time) == (100, 60)
    assert threads(found.best) < threads(own) and rows(found.best) > 1
    assert threads(planned(found.best.choices.taken)) == threads(found.best)


def test_noise_is_not_taken() -> None:
    own = planned({})
    found, measured = search(lambda item: 100 * (1 if threads(item) == threads(own) else 1 - LEAST_GAIN / 2))
    assert found is not None and found.best.choices.taken == {} and len(measured) > 5


def test_what_is_faster_only_once_is_not_taken() -> None:
    own, times = planned({}), iter([100.0, *[100 - place for place in range(1, 1000)]])
    last: list[float] = []

    def time_of(item: pipeline.ScheduledOp) -> float:
        last.append(next(times))
        return 100 if threads(item) == threads(own) or len(last) > 12 else 50

    found, _ = search(time_of)
    assert found is None or found.best.choices.taken == {} or found.best_time < found.own_time


def test_what_computes_something_else_is_not_taken() -> None:
    own = planned({})
    found, _ = search(lambda item: 100 if threads(item) == threads(own) else None)
    assert found is not None and threads(found.best) == threads(own)


def test_it_ends_in_time() -> None:
    start = time.monotonic()

    def time_of(item: pipeline.ScheduledOp) -> float:
        time.sleep(0.01)
        return 1000 - (time.monotonic() - start)

    search(time_of, seconds=0.3)
    assert time.monotonic() - start < 5


def test_nothing_is_measured_twice_but_the_best() -> None:
    _, measured = search(lambda item: 100)
    texts = [(item.kernels[0].rendered.text, item.kernels[0].launch.grid) for item in measured]
    others = [text for text in texts if text != texts[0]]
    assert len(others) == len(set(others))


def test_an_estimate_prefers_few_bytes_and_full_blocks() -> None:
    info = frameworks.torch().info("input", torch.ones(4096, 512))
    layout = Runner(OP).lay_out({"input": info}).layout

    def of(chosen: Chosen) -> float:
        return microseconds(pipeline.plan_op(OP, layout, chosen=chosen))

    own = of({})
    assert own < of({"softmax_forward_f32": {"vectors_per_thread": 1}})  # few bytes under way
    assert own < of({"softmax_forward_f32": {"cluster": 16}})  # blocks of a row that have nothing to do
    assert own < of({"op": {"kernels": 1}})  # the input read twice

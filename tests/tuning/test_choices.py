"""What schedules could do otherwise: how they say so, and that kernels are right whatever of it is chosen."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen import pipeline
from fusegen.fuse.choices import Choices, powers
from fusegen.plan import frameworks
from fusegen.plan.frameworks import Framework
from fusegen.plan.plan import Plan
from fusegen.run.runner import Runner
from fusegen.tuning import session

# Schedules of each pass that are tried. FUSEGEN_TUNING_SAMPLED=1000: all of them, in minutes.
SAMPLED = int(os.environ.get("FUSEGEN_TUNING_SAMPLED", "3"))


def test_a_schedule_takes_its_own_value_where_nothing_else_was_chosen() -> None:
    choices = Choices({"a": {"threads": 128}})
    assert choices.of("b").take("threads", 256, (64, 128)) == 256
    assert choices.of("a").take("threads", 256, (64, 128)) == 128
    assert choices.taken == {"a": {"threads": 128}}
    assert choices.made["b"].made["threads"].options == (64, 128, 256)


def test_what_is_no_option_is_not_taken() -> None:
    choices = Choices({"a": {"threads": 96, "colour": 3}})
    assert choices.of("a").take("threads", 256, (64, 128)) == 256
    assert choices.taken == {}


def test_neighbours_differ_in_one_choice() -> None:
    choices = Choices({"a": {"threads": 128}})
    choices.of("a").take("threads", 256, (128,))
    choices.of("b").ask("staged", True)
    assert choices.neighbours() == [{}, {"a": {"threads": 128}, "b": {"staged": 0}}]


def test_powers() -> None:
    assert powers(4, 33) == [4, 8, 16, 32] and powers(4, 3) == []


@fg.op
def bent(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
    return fg.tanh(x) * y + fg.exp(-x * x)


@fg.op
def turned(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
    return x + y.T


@fg.op
def total(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
    return fg.sum(x * y)


@fg.op
def row_sums(x: fg.Tensor) -> fg.Tensor:
    return fg.sum(x * x, -1)


@fg.op
def of_columns(x: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
    return fg.amax(x, 0), fg.var(x, 0)


@fg.op
def column_sums(x: fg.Tensor) -> fg.Tensor:
    return fg.sum(fg.sigmoid(x), 0)


@fg.op
def over_channels(x: fg.Tensor) -> fg.Tensor:
    away = x - fg.mean(x, 1, keepdims=True)
    return away * fg.rsqrt(fg.mean(away * away, 1, keepdims=True) + 1e-5)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, leaf: bool = True) -> torch.Tensor:
    return torch.randn(shape).to(dtype).requires_grad_(leaf)


@fg.op
def modulated(x: fg.Tensor, s: fg.Tensor) -> fg.Tensor:
    return fg.softmax(x * s, -1)


HALF = torch.bfloat16
CASES: Mapping[str, Callable[[], Any]] = {
    "elements": lambda: bent(drawn(64, 64, dtype=HALF), drawn(64, 1, dtype=HALF)),
    "a transpose": lambda: turned(drawn(40, 48), drawn(48, 40)),
    "a sum over everything": lambda: total(drawn(700, 500), drawn(700, 500)),
    "short rows": lambda: row_sums(drawn(70000, 20, leaf=False)),
    "few long rows": lambda: row_sums(drawn(3, 40000)),
    "columns": lambda: column_sums(drawn(3000, 40)),
    "columns that begin anywhere": lambda: column_sums(drawn(3000, 133)),
    "states of columns": lambda: of_columns(drawn(500, 48, leaf=False)),
    "rows of a warp": lambda: fg.ops.softmax(drawn(6, 100, dtype=HALF)),
    "rows of a block": lambda: fg.ops.softmax(drawn(6, 4000, dtype=HALF)),
    "rows that begin anywhere": lambda: fg.ops.softmax(drawn(9, 4097)),
    "rows of a cluster": lambda: fg.ops.softmax(drawn(3, 70000, dtype=HALF, leaf=False)),
    "rows in chunks": lambda: fg.ops.logsumexp(drawn(4, 30000, dtype=HALF, leaf=False), -1),
    "sums over rows": lambda: fg.ops.layer_norm(drawn(30, 768), (768,), drawn(768), drawn(768)),
    "sums over the rows of slices": lambda: modulated(drawn(3, 80, 512), drawn(3, 1, 512)),
    "groups": lambda: fg.ops.group_norm(drawn(3, 16, 10, 10), 4, drawn(16), drawn(16)),
    "strided rows": lambda: over_channels(drawn(4, 32, 100)),
}


class Tried:
    """Every schedule of the plans that run meanwhile, or a sample of them, compared with the schedules' own."""

    def __init__(self, sampled: int) -> None:
        self.sampled, self.count, self.wrong = sampled, 0, list[str]()

    def compare(self, runner: Runner, plan: Plan, tensors: Any, scalars: Any, framework: Framework) -> None:
        measuring = session._Measuring(plan, runner.op, tensors, scalars, framework)
        own = measuring.plan_with({})
        assert measuring._right(own) is not None
        for chosen in self.different(measuring, own):
            self.count += 1
            if measuring._right(measuring.plan_with(chosen)) is None:
                self.wrong.append(f"{runner.op.name}, {runner.op.label}: {chosen}")

    def different(self, measuring: Any, own: pipeline.ScheduledOp) -> Iterator[Any]:
        chosen = own.choices.neighbours()
        for first in random.sample(chosen, min(2, len(chosen))):  # and some that differ in two
            chosen += measuring.plan_with(first).choices.neighbours()
        random.shuffle(chosen)
        seen, count = {signature(own)}, 0
        for one in chosen:
            found = signature(measuring.plan_with(one))
            if found not in seen and count < self.sampled:
                seen.add(found)
                count += 1
                yield one


def signature(planned: pipeline.ScheduledOp) -> Any:
    return tuple((k.rendered.text, k.launch.grid, k.launch.block) for k in planned.kernels)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Tried:
    found = Tried(SAMPLED)
    watch(found, monkeypatch)
    return found


def watch(tried: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Runner.launch

    def watched(runner: Runner, plan: Plan, tensors: Any, scalars: Any, framework: Any, out: Any) -> Any:
        if plan.layout is not None and plan.program is not None and not plan.is_tuned:
            plan.is_tuned = True
            tried.compare(runner, plan, tensors, scalars, framework)
        return launch(runner, plan, tensors, scalars, framework, out)

    monkeypatch.setattr(Runner, "launch", watched)
    monkeypatch.setattr(session, "clock_for", lambda target, device: None)


@pytest.mark.parametrize("columns", [8, 40, 48, 133, 512])
def test_a_block_of_columns_has_the_threads_of_its_width(columns: int) -> None:
    """Whatever is chosen of it, and of one thing more: small blocks beside a width that is chosen had no rows."""
    x = torch.zeros(3000, columns)
    op = column_sums.trace(x)
    layout = Runner(op).lay_out({"x": frameworks.torch().info("x", x)}).layout

    def planned(chosen: Any) -> pipeline.ScheduledOp:
        return pipeline.plan_op(op, layout, chosen=chosen)

    chosen = planned({}).choices.neighbours()
    assert len(chosen) > 10
    for one in [*chosen, *(more for first in chosen for more in planned(first).choices.neighbours())]:
        for kernel in planned(one).kernels:
            assert prod(kernel.launch.block) == kernel.schedule.threads >= 32, one


@pytest.mark.emulator
@pytest.mark.parametrize("case", CASES)
def test_whatever_is_chosen_is_right(case: str, tried: Tried) -> None:
    results = CASES[case]()
    results = [r for r in (results if isinstance(results, tuple) else (results,)) if r.requires_grad]
    if results:
        torch.autograd.backward(results, [torch.randn_like(result) for result in results])
    assert tried.count and not tried.wrong

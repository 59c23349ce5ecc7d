"""What compiling costs grows with a declaration as the declaration does: what is counted is work, not seconds."""

from __future__ import annotations

import cProfile
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen import pipeline
from fusegen.core.ir import Op, Ref, Substitution
from fusegen.core.recent import Recent
from fusegen.derive import training
from fusegen.derive.training import train
from fusegen.fuse.schedule import Buffer, contiguous
from fusegen.pipeline import Layout, compile_op, plan_op

SIZES = {"d0": 16, "d1": 64}
# Folders of what is made of expressions.
COUNTED = ("core", "declare", "derive", "fuse", "generate")
# Twice as many steps may be this many times the work. (To look at all before for each step is four times.) Printed is
# more than the double: each walk over a row computes its elements anew.
MOST = {"traced": 2.2, "derived": 2.4, "fused": 2.5}


def normed(x: Any) -> Any:
    centered = x - fg.mean(x, -1, keepdims=True)
    return centered * fg.rsqrt(fg.mean(centered * centered, -1, keepdims=True) + 1e-5)


STEPS: Mapping[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda x, w: fg.softmax(x * w, -1),
    "norm": lambda x, w: normed(x * w),
    "sum": lambda x, w: x * w + fg.sum(x, -1, keepdims=True),
    "maximum": lambda x, w: x * w + fg.amax(fg.tanh(x), -1, keepdims=True),
    "select": lambda x, w: fg.maximum(0.0, x * w) + fg.sum(x, -1, keepdims=True),
    "elementwise": lambda x, w: fg.tanh(x * w),
}


def repeated(step: Callable[[Any, Any], Any], times: int) -> Op:
    """An op of so many steps, each of which takes the one before."""

    def chain(x: Any, w: Any) -> Any:
        for _ in range(times):
            x = step(x, w)
        return x

    op = fg.op(chain, name="chain").trace(fg.TensorSpec(fg.float32, (16, 64)), fg.TensorSpec(fg.float32, (64,)))
    assert isinstance(op, Op)
    return op


def calls(work: Callable[[], object]) -> int:
    """How many calls of functions of the compiler, steps of generators among them, ``work`` makes."""
    root, profile = Path(fg.__file__).parent, cProfile.Profile(builtins=False)
    profile.enable()
    try:
        work()
    finally:
        profile.disable()
    files = {str(path) for folder in COUNTED for path in (root / folder).rglob("*.py")}
    entries = [entry for entry in profile.getstats() if not isinstance(entry.code, str)]  # of functions in Python
    return sum(entry.callcount for entry in entries if entry.code.co_filename in files)


def derived(op: Op) -> list[Op]:
    found = train(op, ("x", "w"))
    return [found.forward, found.backward((0,))]


def fused(ops: Sequence[Op]) -> None:
    for op in ops:
        things = (*op.operands, *op.outputs)
        buffers = {o.name: Buffer(o.dtype, contiguous([a for a in o.shape if a], SIZES)) for o in things}
        assert plan_op(op, Layout(SIZES, buffers)).kernels


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "remember", lambda kind, parts, make: make())
    monkeypatch.setattr(pipeline, "_compiled", Recent(8))


def work(step: Callable[[Any, Any], Any], times: int) -> tuple[int, int, int]:
    """Calls to trace so many steps, to derive what is kept and the backward, and to fuse and print all three."""
    ops: list[Op] = []
    traced = calls(lambda: ops.append(repeated(step, times)))
    deriving = calls(lambda: ops.extend(derived(ops[0])))
    return traced, deriving, calls(lambda: fused(ops))


@pytest.mark.parametrize("name", STEPS)
def test_twice_as_many_steps_are_about_twice_the_work(name: str) -> None:
    work(STEPS[name], 2)  # what is done once
    few, many = work(STEPS[name], 16), work(STEPS[name], 32)
    grown = {stage: after / before for stage, before, after in zip(MOST, few, many, strict=True)}
    assert not {stage: ratio for stage, ratio in grown.items() if ratio > MOST[stage]}


def test_a_chain_of_choices_is_derived_in_steps() -> None:
    """What the gradient of a choice is multiplied with went to each of its branches: there were 3.6 times as many terms
    each step, and a forward algorithm of five steps took two minutes."""

    def work(times: int) -> int:
        op = repeated(lambda x, w: torch.logaddexp(x * 1.5, w), times)
        return calls(lambda: derived(op))

    work(2)  # what is done once
    assert work(8) <= 4 * work(4)


DERIVED: Mapping[str, Callable[[Any, Any], Any]] = {
    "elementwise": lambda x, w: fg.tanh(x * w),
    "a softmax": lambda x, w: fg.softmax(x * w, -1),
    "a sum of roots": lambda x, w: fg.sqrt(fg.sum(fg.exp(x * w), -1, keepdims=True)) * x,
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_gradient_is_derived_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved is chosen by it, and it is what reads that."""
    derived = list[Op]()
    derive = training.gradient

    def counted(op: Op, *given: Any) -> Op:
        derived.append(derive(op, *given))
        return derived[-1]

    monkeypatch.setattr(training, "gradient", counted)
    found = train(repeated(DERIVED[name], 1), ("x", "w"))
    found.backward((0,))
    assert len(derived) == 1
    assert derive(found.forward, ("x", "w"), (0,)) == derived[0]


def test_slices_of_larger_images_are_no_more_work() -> None:
    """They were blocks along both dimensions, and a Sobel filter of 100 x 120 pixels took half a minute."""

    def filtered(x: Any) -> Any:
        return x[:-2, 2:] + 2 * x[1:-1, 2:] + x[2:, 2:] - x[:-2, :-2] - 2 * x[1:-1, :-2] - x[2:, :-2]

    def traced(size: int) -> int:
        made = fg.op(lambda x: filtered(fg.ops.pad(x, (1, 1, 1, 1))), name="filtered")
        return calls(lambda: made.trace(fg.TensorSpec(fg.float32, (size, size))))

    traced(62)  # what is done once
    assert traced(126) <= 1.5 * traced(62)


def test_what_is_not_needed_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    # A kernel for each reduction computes anew what those before it have: they grow as the square of the steps.
    (op,) = ops = [repeated(STEPS["softmax"], 4)]
    fused(ops)
    assert "by_rows" in vars(compile_op(op)) and "kernels" not in vars(compile_op(op))


def test_what_is_read_only_by_way_of_something_is_found_in_few_steps() -> None:
    def lines(times: int) -> int:
        exprs = [item.expr for items in repeated(STEPS["elementwise"], times).expand() for item in items]
        weights = {Ref(name, fg.float32): 1 for name in ("x", "w")}
        seen, before = 0, sys.gettrace()

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal seen
            if frame.f_code.co_filename != training.__file__:
                return None
            seen += event == "line"
            return trace

        sys.settrace(trace)
        try:
            found = training._read_only_by_way_of(exprs, weights)
        finally:
            sys.settrace(before)
        assert found[exprs[0]] == 2 and sorted(found.values())[-3:] == [1, 2, 2]  # of w the last product
        return seen

    assert lines(256) <= 2.4 * lines(128)


def test_what_is_put_later_stands_in_what_was_asked_for_before() -> None:
    a, b, c = (Ref(name, fg.float32) for name in "abc")
    known = Substitution({})
    assert known.of(a * b + a) is a * b + a
    known.put(a * b, c)
    assert known.of(a * b + a) is c + a

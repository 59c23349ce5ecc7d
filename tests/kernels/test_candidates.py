"""Which of the sets of kernels that an op fits into is taken: the one that has clearly less to do."""

from __future__ import annotations

from typing import Any

import fusegen as fg
from fusegen import pipeline
from fusegen.core import dtypes
from fusegen.inspect.passes import shown_passes


def planned(
    function: Any, *shapes: tuple[int, ...], dtype: dtypes.DType = dtypes.float16
) -> list[pipeline.ScheduledOp]:
    """The forward's kernels and the backward's."""
    specs = tuple(fg.TensorSpec(dtype, shape) for shape in shapes)
    parts = (part for item in shown_passes(fg.op(function), specs, {}) for part in item.fused_passes)
    return [pipeline.plan_op(part.op, part.layout) for part in parts]


def chosen(op: pipeline.ScheduledOp) -> tuple[int, int]:
    """The candidate's number, and how many were asked for."""
    made = op.choices.made["op"].made["kernels"]
    return made.own, len(made.options) - 1


def gate(x: Any, a: Any, b: Any) -> Any:
    """Its gradient by ``a`` and ``b`` adds up over rows what a sum over columns has begun."""
    value = x - (b - fg.where(a > 0.0, fg.tanh(x), -a))
    return fg.sum(fg.abs(fg.rsqrt(value * value + 1.0)), -1)


def test_a_pass_that_does_not_go_by_rows_is_taken_where_rows_have_more_to_do() -> None:
    """Few long rows: what they leave for another kernel to add up is half of what they read."""
    backward = planned(gate, (1024, 8192), (8192,), (8192,))[-1]
    assert chosen(backward)[0] == 1 and len(backward.kernels) == 1
    rows = planned(gate, (65536, 512), (512,), (512,))[-1]
    assert chosen(rows)[0] == 0 and len(rows.kernels) > 1


def test_what_is_good_enough_is_compared_with_nothing() -> None:
    forward, backward = planned(lambda x: fg.softmax(x, -1), (4096, 4096))
    assert chosen(forward) == chosen(backward) == (0, 1)


def test_small_sizes_take_the_first() -> None:
    assert chosen(planned(gate, (16, 64), (64,), (64,))[-1]) == (0, 1)


def test_what_is_asked_for_is_taken() -> None:
    """And what is taken by itself is told beside it, whichever that is."""
    specs = tuple(fg.TensorSpec(dtypes.float16, shape) for shape in ((1024, 8192), (8192,), (8192,)))
    (part,) = shown_passes(fg.op(gate), specs, {})[-1].fused_passes
    own = pipeline.plan_op(part.op, part.layout)
    other = pipeline.plan_op(part.op, part.layout, chosen={"op": {"kernels": 0}})
    assert len(own.kernels) == 1 and len(other.kernels) == 2
    assert own.choices.taken.get("op") is None and other.choices.taken["op"] == {"kernels": 0}

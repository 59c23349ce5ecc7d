"""Values that are summed and computed again have the same bits (derive/exact), whatever a compiler contracts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusegen as fg
from fusegen import pipeline
from fusegen.core.ir import Op, walk
from fusegen.derive.exact import as_written
from tests.support.oracles import draw


def traced(function: Callable[..., Any]) -> Op:
    return fg.op(function, name="function").trace(draw(3, 5), draw(5), draw(5))


def marked(op: Op) -> int:
    """How many sums of ``op`` are rounded by themselves."""
    roots = [item.expr for items in as_written(op).expand() for item in items]
    return sum(getattr(node, "function", "") in ("add_rn", "sub_rn") for node in walk(roots))


def ops_of(function: Callable[..., Any]) -> tuple[Op, Op]:
    """The forward that saves for gradients of all arguments, and the backward."""
    op = traced(function)
    training = pipeline.train_op(op, tuple(operand.name for operand in op.operands))
    return training.forward, pipeline.backward_op(training, (0,))


def unit(v: Any) -> Any:
    return v / fg.sqrt(fg.sum(v * v, -1, keepdims=True))


def test_a_norm_of_a_sum_of_products_is_computed_with_the_same_bits() -> None:
    forward, backward = ops_of(lambda x, w, b: unit(x * w + b))
    assert marked(forward) == 1
    assert marked(backward) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: unit(x + b) * w,  # nothing to contract
        lambda x, w, b: fg.sum(x * w + b, -1),  # nothing computes it again
        lambda x, w, b: (x * w + b) * fg.sum(x * w + b, -1, keepdims=True),  # moves as its elements do
        lambda x, w, b: fg.softmax(x * w + b, -1),
    ],
)
def test_others_are_contracted_as_ever(function: Callable[..., Any]) -> None:
    assert [marked(op) for op in ops_of(function)] == [0, 0]


def test_within_one_op_as_well() -> None:
    op = traced(lambda x, w, b: unit(x * w + b))
    assert marked(pipeline.tangent_op(op, ("x", "w", "b"))) >= 1

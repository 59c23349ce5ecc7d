"""The random ops that are timed beside torch.compile: the same in every run, and one function in both hands."""

from __future__ import annotations

import math

import pytest
import torch

from fusegen.bench.comparison import PASSES
from fusegen.matmul.libraries.stopwatch import WallClock
from tools.bench import random_ops
from tools.bench.random_ops import RandomOp

SMALL = 2**9, 2**13


def test_a_seed_is_one_op() -> None:
    first, again = ([RandomOp.drawn(seed) for seed in range(50)] for _ in range(2))
    assert first == again
    assert len({str(op.program) for op in first}) == len(first)
    for op in first:
        elements = math.prod(op.program.arguments[0].shape)
        assert random_ops.FEWEST // 4 <= elements <= random_ops.MOST
    assert {op.dtype for op in first} == {torch.bfloat16, torch.float16, torch.float32}
    assert any(len(op.program.arguments[0].shape) == 4 for op in first)


@pytest.mark.emulator
def test_torch_computes_the_same() -> None:
    for seed in range(12):
        comparison = RandomOp.drawn(seed, *SMALL).comparison("cpu", ("torch",))
        assert not comparison.left_out, f"seed {seed}: {comparison.left_out}"


@pytest.mark.emulator
def test_the_table_says_what_was_measured_and_what_failed() -> None:
    ops = [RandomOp.drawn(seed, *SMALL) for seed in range(2)]
    broken = RandomOp(
        7, type(ops[0].program)("    return lib.no_such_function(x0)", ops[0].program.arguments[:1], 1), ops[0].dtype
    )
    table = random_ops.measure([*ops, broken], ("torch",), WallClock(1), 1e3, "cpu")
    assert [(op.seed, which) for op, which, _, _ in table.found] == [(op.seed, which) for op in ops for which in PASSES]
    assert set(table.failed) == {7}
    text = "\n".join(table.summary())
    assert "over torch: " in text and "in the geometric mean" in text and "seed 7 FAILED" in text
    ((first, second),) = [[ratio for ratio, _ in table.ratios("fwd", "torch")]]
    assert first >= second


def test_floors_count_each_tensor_once() -> None:
    op = RandomOp.drawn(0, *SMALL)
    own = sum(math.prod(a.shape) * (1 if a.kind == "u" else op.dtype.itemsize) for a in op.program.arguments)
    grads = sum(math.prod(a.shape) * op.dtype.itemsize for a in op.program.arguments if a.kind == "f")
    result = torch.empty(3, dtype=torch.float32)
    assert op.floor_bytes("fwd", [result]) == own + 12
    assert op.floor_bytes("bwd", [result]) == own + grads + 12
    assert op.floor_bytes("step", [result]) == 2 * own + grads + 24

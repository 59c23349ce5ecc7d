"""What a new shape compiles: nothing of elementwise passes and of more rows, little of rows of another length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

import fusegen as fg
from fusegen.inspect.passes import passes

Shape = tuple[int, ...]
# From 16 to 65,537, as many that are whole vectors as are not.
LENGTHS = [2**i + more for i in range(4, 17) for more in (0, 1)]
ROWS = [2, 3, 7, 64, 65, 1000, 10000, 100000]


def texts(op: Any, which: str, shapes: Sequence[Sequence[Shape]], **options: Any) -> dict[str, int]:
    """How many different texts the passes up to ``which`` have in all these shapes, by pass."""
    found: dict[str, set[str]] = {}
    for given in shapes:
        for item in passes(op, tuple(fg.TensorSpec(fg.float32, shape) for shape in given), options, which):
            found.setdefault(item.op.label, set()).update(kernel.rendered.text for kernel in item.kernels)
    return {label: len(seen) for label, seen in found.items()}


@fg.op
def blend(x: Any, y: Any, w: Any) -> Any:
    return x + w * (y - x)


def test_an_elementwise_pass_compiles_nothing_new() -> None:
    """But where vectors do not come out even, once."""
    for op, count in ((fg.ops.gelu, 1), (blend, 3)):
        shapes = [[(rows, length)] * count for rows in (3, 64) for length in LENGTHS]
        assert max(texts(op, "backward", shapes).values()) <= 2
        even = [given for given in shapes if given[0][1] % 4 == 0]
        assert set(texts(op, "backward", even).values()) == {1}


ALONG_ROWS = {name: getattr(fg.ops, name) for name in ("softmax", "sum", "logsumexp", "normalize")}


@pytest.mark.parametrize("name", ALONG_ROWS)
def test_more_rows_of_a_length_compile_nothing_new(name: str) -> None:
    for length in (100, 4096):
        once = texts(ALONG_ROWS[name], "backward", [[(ROWS[0], length)]], dim=-1)
        assert texts(ALONG_ROWS[name], "backward", [[(rows, length)] for rows in ROWS], dim=-1) == once


@pytest.mark.parametrize("name", ALONG_ROWS)
def test_rows_of_another_length_compile_a_few_times_each_power_of_two(name: str) -> None:
    """What the documentation says of softmax: it is shared by other threads, or begins elsewhere."""
    lengths = sorted(random.Random(0).sample(range(1024, 2048), 40))
    found = texts(ALONG_ROWS[name], "backward", [[(64, length)] for length in lengths], dim=-1)
    assert 1 < found["forward"] <= 8 and found["backward"] <= 16

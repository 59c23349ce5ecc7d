"""How many instructions a pass is counted to take: beside the text that NVRTC makes of it, and by the rules."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest

import fusegen as fg
from fusegen import pipeline
from fusegen.core.ir import Op
from fusegen.core.monoids import BY_KIND
from fusegen.declare.table import lookup
from fusegen.fuse.slots import PARTING, REDUCTIONS, SLOTS
from fusegen.fuse.work import Work, work_of_kernel, work_of_op
from fusegen.generate.rendered import headers
from fusegen.inspect.cost import least_work, pass_cost
from fusegen.inspect.gpus import GPUS, UNITS, gpu_called
from fusegen.inspect.passes import Pass, shown_passes
from fusegen.launch.cache import default_cache
from fusegen.launch.compile import cached_cubin
from fusegen.launch.cubin import instructions

pytestmark = pytest.mark.cpu
H200 = GPUS["h200"]


def spec(*shape: int, dtype: Any = fg.float32) -> fg.TensorSpec:
    return fg.TensorSpec(dtype, shape)


def work(function: Any, *specs: fg.TensorSpec) -> Work:
    """Of a forward, without what reading and writing takes."""
    (item, *_) = shown_passes(fg.op(function), specs, {}, "forward")
    op = pipeline.compile_op(item.op).lowered
    found = work_of_op(op, item.layout.sizes)
    moved = sum(item.bytes_of(thing) / 16 for thing in (*op.operands, *op.outputs))
    halves = [thing for thing in (*op.operands, *op.outputs) if thing.dtype.is_half]
    return Work(found.issued - moved - sum(item.bytes_of(thing) / 2 for thing in halves), found.special, found.doubles)


def test_the_rules() -> None:
    n = 4096
    x = spec(n)
    assert work(lambda x, y: x * y + x, x, x).issued == pytest.approx(n)  # one fused multiply and add
    assert work(lambda x, y: x * y + y * y * x, x, x).issued == pytest.approx(3 * n)  # it takes in one of the products
    assert work(lambda x: -fg.abs(x) + 1, x).issued == pytest.approx(n)
    assert work(lambda x: x**3, x).issued == pytest.approx(2 * n)
    assert work(lambda x: fg.sin(x) * fg.sin(x), x).issued == pytest.approx(n * (SLOTS["sin"]["float32"][0] + 1))
    assert work(lambda x: x / 4.0, x).issued == pytest.approx(n)
    assert work(lambda x: x / 3.0, x).issued == pytest.approx(n * SLOTS["div"]["float32"][0])
    assert work(lambda x: x / 3.0, spec(n, dtype=fg.float16)).issued == pytest.approx(n)
    assert work(lambda x, y: x / y, x, x).special == pytest.approx(n)
    doubles = work(lambda x, y: x * y - fg.exp(x), *[spec(n, dtype=fg.float64)] * 2)
    assert doubles.doubles == pytest.approx(n * (1 + SLOTS["exp"]["float64"][2]))
    assert work(lambda x: fg.cast(x, "int64") % 7, x).issued > n * SLOTS["remainder"]["int64"][0]


def test_what_is_the_same_for_many_counts_once() -> None:
    rows, width = 64, 128
    wide, row = spec(rows, width), spec(rows, 1)
    assert work(lambda x, r: x * fg.exp(r), wide, row).issued == pytest.approx(
        rows * width + rows * SLOTS["exp"]["float32"][0]
    )
    assert work(lambda x: fg.sum(x * x, -1), wide).issued == pytest.approx(rows * width)
    assert work(lambda x: fg.amax(x, -1), wide).issued == pytest.approx(rows * width * REDUCTIONS["max"]["float32"][0])


def test_what_is_read_elsewhere_is_no_sum() -> None:
    """A slice of a long row takes no comparison with each place of the row."""
    n = 4096
    assert work(lambda x: x[1:] * x[:-1], spec(n)).issued == pytest.approx(n, rel=1e-3)
    assert work(lambda x: x[2:] - 2 * x[1:-1] + x[:-2], spec(n)).issued == pytest.approx(2 * n, rel=1e-3)
    assert work(lambda x: (x[:, 1:] - x[:, :-1]).sum(), spec(64, n)).issued == pytest.approx(2 * 64 * n, rel=1e-3)


def test_a_walk_computes_what_none_before_it_has_kept() -> None:
    (item, *_) = shown_passes(fg.op(lambda x: fg.softmax(fg.erf(x), -1)), (spec(512, 1024),), {}, "forward")
    (planned,) = item.kernels
    sizes = item.layout.sizes
    once = work_of_op(pipeline.compile_op(item.op).lowered, sizes)
    found = work_of_kernel(planned.kernel, planned.schedule, sizes)
    assert once.issued <= found.issued
    again = work_of_kernel(planned.kernel, _keeping_nothing(planned.schedule), sizes)
    assert again.issued >= found.issued + (512 * 1024 * 15 if planned.schedule.reused else 0)


def test_a_reduction_that_walks_twice_counts_once() -> None:
    """A row's maximum is found in one walk, and its exponentials are added up in another: the table has both."""
    (item, *_) = shown_passes(fg.op(lambda x: fg.logsumexp(x, -1)), (spec(512, 1024),), {}, "forward")
    (planned,) = item.kernels
    found = work_of_kernel(planned.kernel, planned.schedule, item.layout.sizes)
    assert found.issued == pytest.approx(512 * 1024 * (REDUCTIONS["sum_exp"]["float32"][0] + 0.25), rel=0.05)


def test_every_function_is_counted() -> None:
    slots = importlib.import_module("tools.slots")
    assert set(SLOTS) == {row.name for row in slots.counted()}
    assert set(REDUCTIONS) == {kind for kind, monoid in BY_KIND.items() if monoid.state}


def _keeping_nothing(schedule: Any) -> Any:
    return replace(schedule, reused=()) if schedule.reused else schedule


# Elementwise passes, whose text each thread runs through once.
PASSES = {
    "gelu": lambda x, y: fg.gelu(x) * y, "tanh": lambda x, y: fg.tanh(x + y) * fg.sigmoid(y),
    "quotients": lambda x, y: x / (fg.abs(y) + 1.0) + fg.rsqrt(y * y + 1.0),
    "selects": lambda x, y: fg.where(x > y, fg.minimum(x, 1.0), 0.1 * y) + fg.clamp(y, -2.0, 2.0),
    "logarithms": lambda x, y: fg.log(fg.abs(x) + 1.0) - fg.softplus(y), "cosine": lambda x, y: fg.cos(x) * y + x,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [fg.float32, fg.bfloat16, fg.float16], ids=str)
@pytest.mark.parametrize("name", PASSES)
def test_it_is_about_what_the_compiler_makes_of_it(name: str, dtype: Any) -> None:
    """Mostly within a tenth; a third more where the compiler knows that a divisor or an argument is no tiny number."""
    pytest.importorskip("cupy")
    for item in shown_passes(fg.op(PASSES[name]), (spec(2**20, dtype=dtype), spec(2**20, dtype=dtype)), {}):
        (planned,) = item.kernels
        text, elements = planned.rendered.text, planned.schedule.vector
        cubin = cached_cubin(text, arch="sm_90", headers=headers(), declared=name, cache=default_cache())
        there = instructions(cubin, planned.rendered.entry)
        counted = work_of_kernel(planned.kernel, planned.schedule, item.layout.sizes)
        about = 24 / elements  # offsets, the test for the last one, accesses
        assert counted.issued / 2**20 == pytest.approx(there.issued / elements - about, rel=0.45, abs=3)
        assert counted.special / 2**20 == pytest.approx(there.special / elements, abs=1)


def test_the_table_is_what_is_compiled_here() -> None:
    """A few of its rows, with room for another compiler's choices; tools/slots.py counts them all."""
    pytest.importorskip("cupy")
    slots = importlib.import_module("tools.slots")
    for name in ("exp", "div", "tanh", "sqrt", "sigmoid"):
        for way in ("float32", "half", "float64"):
            found, parts = slots.call(lookup(name), *slots.WAYS[way])
            assert parts == (way in PARTING.get(name, ())), (name, way)
            assert found[0] == pytest.approx(SLOTS[name][way][0], rel=0.3, abs=1), (name, way)
    found = slots.reduced(BY_KIND["sum_exp"], *slots.WAYS["float32"])
    assert found[0] == pytest.approx(REDUCTIONS["sum_exp"]["float32"][0], rel=0.3)


def test_what_is_bound_by_arithmetic_is_predicted_so() -> None:
    size = 2**26
    (cheap, *_) = shown_passes(fg.op(lambda x: x * 2.0), (spec(size),), {})
    (dear, *_) = shown_passes(fg.op(lambda x: fg.digamma(x)), (spec(size),), {})
    (kernel,) = pass_cost(cheap, H200).kernels
    assert not kernel.is_bound_by_arithmetic(H200)
    assert kernel.microseconds(H200) == pytest.approx(8 * size / 4.28e6)
    found = pass_cost(dear, H200)
    (kernel,) = found.kernels
    assert kernel.is_bound_by_arithmetic(H200)
    slots, _, doubles = SLOTS["digamma"]["float32"]
    least = max(slots, 2 * doubles) * size / (67e6 / 2)
    assert found.microseconds(H200) == pytest.approx(least, rel=0.02)
    assert H200.arithmetic(least_work(dear)) == pytest.approx(least, rel=0.02)


def test_units_of_gpus() -> None:
    assert {gpu.arch for gpu in GPUS.values()} <= set(UNITS)
    work = Work(issued=33.5e6, special=33.5e6)
    assert H200.arithmetic(Work(issued=33.5e6)) == pytest.approx(1)
    assert H200.arithmetic(work) == pytest.approx(8)  # sixteen lanes of 128
    assert H200.arithmetic(Work(issued=33.5e6, doubles=33.5e6)) == pytest.approx(2)
    names = {
        "NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA H100 PCIe": "h100-pcie", "Tesla T4": "t4",
        "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA GeForce RTX 4090": "rtx4090",
    }  # fmt: skip
    assert {name: gpu_called(name) for name in names} == {name: GPUS[key] for name, key in names.items()}
    assert gpu_called("a GPU of another time") is None


def test_products_are_none_of_it() -> None:
    (item, *_) = shown_passes(fg.op(lambda x, w: fg.relu(x @ w)), (spec(64, 32), spec(32, 48)), {}, "forward")
    assert isinstance(item, Pass) and isinstance(item.op, Op)
    assert least_work(item).issued < 64 * 48 * 4

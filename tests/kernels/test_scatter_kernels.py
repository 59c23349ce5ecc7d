"""Scatters whose lines threads own: every layout and kind, what has no place, and which scatters have such a kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core.dtypes import BY_NAME
from fusegen.core.errors import CompileError
from fusegen.core.one_term import start
from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.steps import Scatter, Source
from fusegen.inspect.passes import shown_passes
from fusegen.matmul.views import TensorLayout
from fusegen.plan.frameworks import Torch
from fusegen.run import launched_step, owned_scatter_step, scattering
from fusegen.run import scatter_step as steps
from fusegen.run.launched_step import LaunchedStep
from tests.support.emulated import Racing

BF16, F16, F32, F64, I32, I64 = (
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32, torch.int64,
)  # fmt: skip
KINDS = ("sum", "prod", "max", "min")
# Lines, updates of each and places: fewer updates than are read ahead, as many and more, one line more than a block
# has, and lines of which a block has room for fewer.
SIZES = ((70, 5, 9), (129, 67, 7), (3, 32, 1), (300, 1, 40), (65, 40, 130), (33, 150, 700), (12, 140, 2000))


def run(
    kind: str, places: torch.Tensor, updates: torch.Tensor, out: torch.Tensor, onto: bool = False, along: bool = False
) -> LaunchedStep | steps.ScatterStep:
    """``out[line, places[line, i]] += updates[line, i]`` of [lines, updates] tensors, as a step does it.

    Args:
        along: the result is [lines, places]; it is [places, lines] otherwise.
    """
    tensors = {"i": places, "v": updates, "y": out}
    axes = {"i": ("d0", "d1"), "v": ("d0", "d1"), "y": ("d0", "d2") if along else ("d2", "d0")}
    known = {name: Torch().info(name, tensor) for name, tensor in tensors.items()}
    layouts = {n: TensorLayout(n, dict(zip(axes[n], t.stride(), strict=True))) for n, t in tensors.items()}
    sizes = {"d0": places.shape[0], "d1": places.shape[1], "d2": out.shape[1 if along else 0]}
    step = Scatter("y", Source("i", ()), Source("v", ()), axes["y"], ("d1",), onto, axis="d2", kind=kind)
    planned = scattering.scatter_step(step, sizes, known, layouts, follows=False)
    planned.run(tensors, {}, Torch())
    return planned


def exactly(kind: str, places: torch.Tensor, updates: torch.Tensor, size: int, wide: torch.dtype) -> torch.Tensor:
    """[lines, places], one update after the other."""
    name = str(wide).removeprefix("torch.")
    found = torch.full((places.shape[0], size), start(kind, BY_NAME[name]), dtype=wide)
    for line in range(places.shape[0]):
        for at in range(places.shape[1]):
            place, update = int(places[line, at]), updates[line, at].to(wide)
            if 0 <= place < size:
                old = found[line, place]
                combined = {"sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum}[kind]
                found[line, place] = combined(old, update)
    return found


def drawn(lines: int, n: int, size: int, dtype: torch.dtype, outside: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(lines * n + size)
    places = torch.randint(-outside, size + outside, (lines, n))
    values = torch.randint(-3, 4, (lines, n)) if not dtype.is_floating_point else torch.randn(lines, n)
    return places, values.to(dtype)


def compare(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = {BF16: 1e-2, F16: 2e-3, F32: 1e-5}.get(found.dtype, 1e-12)
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.emulator
@pytest.mark.parametrize("along", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [F32, F64, BF16, I32, I64], ids=str)
def test_values(kind: str, size: tuple[int, int, int], dtype: torch.dtype, along: bool) -> None:
    """What has no place among them is left out; a place without updates has what combining starts from."""
    lines, _, count = size
    places, updates = drawn(*size, dtype)
    out = torch.full((lines, count) if along else (count, lines), 7, dtype=dtype)
    planned = run(kind, places, updates, out, along=along)
    assert isinstance(planned, LaunchedStep)
    wide = dtype if dtype.itemsize == 8 else F64 if dtype.is_floating_point else I64
    expected = exactly(kind, places, updates, count, wide)
    if not dtype.is_floating_point:
        expected = expected.to(dtype)
    compare(out if along else out.T, expected)


@pytest.mark.emulator
@pytest.mark.parametrize("index", [I32, I64], ids=str)
def test_strided_tensors_and_what_is_the_same_for_all_lines(index: torch.dtype) -> None:
    places, updates = drawn(66, 42, 12, F32)
    places, updates = places[:, :21].to(index).T.contiguous().T, updates[:, ::2]
    out = torch.full((12, 132), 3.0)
    assert isinstance(run("sum", places, updates, out[:, ::2]), LaunchedStep)
    compare(out[:, ::2].T, exactly("sum", places, updates, 12, F64))
    assert bool((out[:, 1::2] == 3).all())
    row, scalar = places[:1].expand(66, 21), updates[:, :1].expand(66, 21)
    out = torch.empty(12, 66)
    run("sum", row, scalar, out)
    compare(out.T, exactly("sum", row, scalar, 12, F64))


@pytest.mark.emulator
@pytest.mark.parametrize("along", [False, True])
def test_onto_what_is_there(along: bool) -> None:
    places, updates = drawn(70, 20, 9, BF16)
    before = torch.randn((70, 9) if along else (9, 70)).to(BF16)
    out = before.clone()
    run("sum", places, updates, out, onto=True, along=along)
    expected = exactly("sum", places, updates, 9, F64) + (before if along else before.T).double()
    compare(out if along else out.T, expected)


@pytest.mark.emulator
def test_integers_wrap_around() -> None:
    places, updates = torch.zeros(64, 20, dtype=I64), torch.full((64, 20), 2**62)
    out = torch.empty(2, 64, dtype=I64)
    run("sum", places, updates, out)
    assert torch.equal(out[0], (updates.sum(1))) and not out[1].any()


@pytest.mark.emulator
@pytest.mark.parametrize("kind", ["max", "min", "prod"])
def test_nan_wins_and_zeros_are_positive(kind: str) -> None:
    updates = torch.tensor([[1.0, float("nan"), 2.0], [-0.0, -0.0, -0.0]]).repeat(40, 1)
    out = torch.empty(1, 80)
    run(kind, torch.zeros(80, 3, dtype=I64), updates, out)
    assert out[0, 0::2].isnan().all() and torch.equal(out[0, 1::2].signbit(), torch.zeros(40, dtype=torch.bool))


@pytest.mark.emulator
def test_the_same_bits_each_time() -> None:
    places, updates = drawn(200, 500, 3, F32)
    results = []
    for _ in range(5):
        out = torch.empty(3, 200)
        run("sum", places, updates, out)
        results.append(out)
    assert all(torch.equal(out, results[0]) for out in results)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", [F32, BF16, I32], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_what_the_sum_is_added_to_is_read_by_the_same_kernel(dim: int, dtype: torch.dtype) -> None:
    """There is no pass behind it, unless anything else is made of the sum."""
    torch.manual_seed(dim)
    x, s = ((torch.randn(70, 70) * 4).to(dtype) for _ in range(2))
    i = torch.randint(0, 70, (70, 70))
    op = fg.op(lambda x, i, s: torch.scatter_add(x, dim, i, s), name="added")
    compare(op(x, i, s), torch.scatter_add(x.double(), dim, i, s.double()))
    (shown, *_) = shown_passes(op, (x, i, s), {})
    assert len(shown.entries) == 1  # which looks at the places, too
    both = fg.op(lambda x, i, s: (torch.scatter_add(x, dim, i, s), torch.zeros_like(x).scatter_add(dim, i, s)))
    for found, base in zip(both(x, i, s), (x.double(), torch.zeros(70, 70, dtype=F64)), strict=True):
        compare(found, torch.scatter_add(base, dim, i, s.double()))


def test_which_scatters_have_such_a_kernel() -> None:
    def planned(lines: int, n: int, size: int, kind: str = "sum") -> type:
        buffers = [
            steps.Buffer(BY_NAME[name], {"d0": 1, axis: lines}) for name, axis in
            (("int64", "d1"), ("float32", "d1"), ("float32", "d2"))
        ]  # fmt: skip
        step = Scatter("y", Source("i", ()), Source("v", ()), ("d2", "d0"), ("d1",), axis="d2", kind=kind)
        sizes = {"d0": lines, "d1": n, "d2": size}
        return type(steps.plan_scatter(step, sizes, buffers, Chip(), follows=False))

    assert planned(10000, 1000, 100) is steps.PlannedOwned
    assert planned(1, 1000, 100) is steps.PlannedOwned
    assert planned(1, 10**6, 100) is steps.PlannedSplit and planned(64, 10**6, 100) is steps.PlannedSplit
    assert planned(1, 10**6, 10**6) is steps.PlannedSort and planned(5, 10**6, 100) is steps.PlannedSort
    assert planned(1000, 10, 6144) is steps.PlannedOwned and planned(1000, 10, 6145) is steps.PlannedSort  # of floats
    assert (
        planned(1, 10**6, 100, "max") is steps.PlannedSplit and planned(1, 10**6, 10**6, "max") is steps.PlannedRoutine
    )
    assert planned(1000, 0, 5) is steps.PlannedRoutine and planned(0, 10, 5) is steps.PlannedRoutine


def test_few_texts_serve_all_numbers_of_places() -> None:
    texts = set()
    for size in range(1000, 2001, 50):
        shapes = [fg.TensorSpec(dtype, (size, 4096)) for dtype in (BY_NAME["float32"], BY_NAME["int64"])]
        op = fg.op(lambda x, i, s: torch.scatter_add(x, 0, i, s), name="put")
        (shown, *_) = shown_passes(op, (shapes[0], shapes[1], shapes[0]), {})
        texts |= {kernel.text for kernel in shown.between}
    assert len(texts) <= 5


@pytest.mark.emulator
@pytest.mark.cpu
@pytest.mark.parametrize("which", ["first", "second"])
def test_both_barriers_are_needed(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, render = Racing(), owned_scatter_step.render_scatter
    monkeypatch.setattr(owned_scatter_step, "remember", lambda what, key, make: make())
    for module in (scattering, owned_scatter_step):
        monkeypatch.setattr(module, "target_of", lambda device: target)
    monkeypatch.setattr(launched_step, "target_of", lambda device: target)
    places, updates = drawn(70, 20, 9, F32)
    out = torch.empty(70, 9)
    run("sum", places, updates, out, along=True)
    compare(out, exactly("sum", places, updates, 9, F64))

    def without(schedule: Any) -> Any:
        rendered = render(schedule)
        assert rendered.text.count("__syncthreads();") == 2
        before, between, after = rendered.text.split("__syncthreads();")
        text = (
            f"{before}{between}__syncthreads();{after}"
            if which == "first"
            else f"{before}__syncthreads();{between}{after}"
        )
        return replace(rendered, text=text)

    monkeypatch.setattr(owned_scatter_step, "render_scatter", without)
    with pytest.raises(CompileError, match="lies between"):
        run("sum", places, updates, torch.empty(70, 9), along=True)

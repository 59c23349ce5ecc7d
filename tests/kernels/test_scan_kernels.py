"""The kernels of scans: every shape that they have, in the emulator; their texts by NVRTC."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fusegen.core.dtypes import BY_NAME, DType, bool_, float32, int64
from fusegen.core.ir import Expr, Index, Output, Ref, call, const, substitute
from fusegen.core.scans import AFFINE, FOLDS, LAST, LOGADDEXP, PLACES, SEGMENTS, How
from fusegen.declare.scan_reference import scanned
from fusegen.declare.table import apply
from fusegen.fuse.scan_schedule import HERE, Lying, ScanProgram, ScanSchedule, result, schedule_scan
from fusegen.fuse.scans import element, neighbour, running
from fusegen.fuse.steps import Scan, Source
from fusegen.generate.rendered import headers
from fusegen.generate.scans import render_scan
from fusegen.launch.cache import default_cache
from fusegen.launch.compile import cached_cubin
from fusegen.launch.cubin import resources
from fusegen.matmul.views import TensorLayout
from fusegen.plan.frameworks import Torch
from fusegen.run import scan_step as steps
from fusegen.run.launched_step import LaunchedStep
from tests.support.emulated import ROOT, Racing

COMBINES = (*FOLDS, AFFINE, SEGMENTS, LAST, *PLACES)
AXES = "abcd"
# What is read, made of a tensor of this shape: how it lies.
Lies = Callable[[torch.Tensor], torch.Tensor]


def dense(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous()


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


def every_second(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x], -1).flatten(-2)[..., ::2]


def behind_others(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[..., :1], x], -1)[..., 1:]


# A shape, an axis, how tensors lie, and what the schedule should be then.
SHAPES: dict[str, tuple[tuple[int, ...], int, Lies, dict[str, Any]]] = {
    "a thread a row": ((300, 4), 1, dense, {"columns": False, "lanes": 1, "vector": 4}),
    "lanes": ((5, 3, 40), 2, dense, {"columns": False, "lanes": 16, "vector": 4}),
    "a warp": ((9, 300), 1, dense, {"columns": False, "lanes": 32, "turns": 3}),
    "a block": ((7, 9000), 1, dense, {"columns": False, "lanes": 256, "split": False}),
    "a vector that ends early": ((1001,), 0, dense, {"columns": False, "even": False}),
    "parts": ((2, 70000), 1, dense, {"columns": False, "split": True}),
    "elements": ((6, 333), 1, dense, {"columns": False, "vector": 1}),
    "apart": ((4, 200), 1, every_second, {"columns": False, "vector": 4}),
    "unaligned": ((4, 64), 1, behind_others, {"columns": False, "vector": 1}),
    "columns": ((2, 50, 16), 1, dense, {"columns": True, "vector": 4, "split": False}),
    "columns in parts": ((3, 300, 8), 1, dense, {"columns": True, "split": True}),
    "columns of elements": ((33, 9), 0, dense, {"columns": True, "vector": 1}),
    "few columns": ((300, 3), 0, dense, {"columns": False, "vector": 1}),
    "outer dimensions": ((3, 2, 4, 20), 1, dense, {"columns": True, "dims": 2}),
    "turned": ((48, 40), 1, turned, {"columns": True}),
}
HOWS = [How("sum", reverse, exclusive) for reverse in (False, True) for exclusive in (False, True)]


def drawn(combine: str, shape: Sequence[int], lies: Lies, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if combine == "prod":
        x = x.sign() * (1 + x / 100)
    values = [x.to(dtype)]
    if combine == AFFINE:
        values.insert(0, torch.rand(shape, generator=generator).to(dtype))
    if combine == SEGMENTS:
        values.insert(0, torch.rand(shape, generator=generator) < 0.9)
    return [lies(value) for value in values]


def read_as_they_are(how: How, dtype: DType) -> tuple[Expr, ...]:
    kinds = [dtype] * how.operands
    if how.combine == SEGMENTS:
        kinds[0] = bool_
    return tuple(Ref(element(place), kind) for place, kind in enumerate(kinds))


def dtype_of(tensor: torch.Tensor) -> DType:
    return BY_NAME[str(tensor.dtype).removeprefix("torch.")]


def program_of(how: How, dtype: DType) -> ScanProgram:
    """Of tensors that are read as they are, and a result that is written so."""
    values = read_as_they_are(how, dtype)
    return ScanProgram.of("", how, dtype, values, [how], [Ref(running(how), how.dtype(dtype))])


def step_of(program: ScanProgram, axis: int, values: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> Scan:
    """A program of a kernel as a step that reads v0, v1 and so on, and writes y0, y1 and so on."""
    axes = tuple(AXES[: outs[0].ndim])
    sources = tuple(Source(f"v{i}", ()) for i in range(len(values)))
    here: dict[Expr, Expr] = {Ref(HERE, int64): Index(axes[axis])}
    outputs = tuple(
        Output(f"y{i}", substitute(expr, here), dtype_of(out), axes)
        for i, (expr, out) in enumerate(zip(program.outputs, outs, strict=True))
    )
    return Scan(
        "y0", sources[0], sources[-1], axes, (), axis=axes[axis], how=program.how, dtype=program.dtype,
        sources=sources, values=program.values, results=tuple((running(how), how) for how in program.results),
        outputs=outputs,
    )  # fmt: skip


def run_program(
    program: ScanProgram, axis: int, values: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
) -> LaunchedStep:
    """A program of a kernel on these tensors."""
    step = step_of(program, axis, values, outs)
    tensors = dict(zip([*(source.name for source in step.sources), *step.writes], [*values, *outs], strict=True))
    known = {name: Torch().info(name, tensor) for name, tensor in tensors.items()}
    layouts = {n: TensorLayout(n, dict(zip(step.axes, t.stride(), strict=True))) for n, t in tensors.items()}
    planned = steps.scan_step(step, dict(zip(step.axes, outs[0].shape, strict=True)), known, layouts, follows=False)
    planned.run(tensors, {}, Torch())
    return planned


def run(how: How, axis: int, values: Sequence[torch.Tensor], out: torch.Tensor) -> LaunchedStep:
    """A scan of these tensors into another one."""
    return run_program(program_of(how, dtype_of(values[-1]).compute), axis, values, [out])


def exactly(how: How, axis: int, values: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    wide = [value.double() if value.is_floating_point() else value for value in values]
    result: torch.Tensor = scanned(torch, how, wide, axis).to(like.dtype)
    return result


def schedule_of(how: How, axis: int, values: Sequence[torch.Tensor], out: torch.Tensor) -> ScanSchedule:
    axes = tuple(AXES[: out.ndim])
    names = [*map(element, range(len(values))), result(0)]
    lying = [
        Lying(name, dtype_of(t), dict(zip(axes, t.stride(), strict=True)), t.data_ptr() % 16)
        for name, t in zip(names, [*values, out], strict=True)
    ]
    sizes = dict(zip(axes, out.shape, strict=True))
    program = program_of(how, dtype_of(out).compute)
    return schedule_scan(program, axes[axis], sizes, lying[:-1], lying[-1:], False)[0]


@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape(shape: str, combine: str) -> None:
    sizes, axis, lies, expected = SHAPES[shape]
    values = drawn(combine, sizes, lies, torch.float32)
    out = turned(torch.empty(sizes)) if lies is turned else torch.empty(sizes)
    if combine == "sum":
        schedule = schedule_of(How(), axis, values, out)
        assert {name: getattr(schedule, name) for name in expected} == expected
    for how in HOWS:
        how = replace(how, combine=combine)
        out = out.long() if combine in PLACES else out
        run(how, axis, values, out)
        torch.testing.assert_close(out, exactly(how, axis, values, out), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("combine", COMBINES)
def test_every_dtype(combine: str, dtype: torch.dtype) -> None:
    if combine in (LOGADDEXP, AFFINE, SEGMENTS) and not dtype.is_floating_point:
        pytest.skip("logarithms and recurrences are of floats")
    for shape in ("a block", "columns in parts", "elements"):
        sizes, axis, lies, _ = SHAPES[shape]
        values = drawn(combine, sizes, lies, dtype if dtype.is_floating_point else torch.float64)
        values = values if dtype.is_floating_point else [(3 * value).to(dtype) for value in values]
        out, how = torch.empty(sizes, dtype=torch.int64 if combine in PLACES else dtype), How(combine, reverse=True)
        run(how, axis, values, out)
        tolerance = {torch.float64: 1e-10, torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(dtype, 0)
        torch.testing.assert_close(out, exactly(how, axis, values, out), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", ["lanes", "a block", "columns", "parts"])
def test_an_operand_that_lacks_axes(shape: str) -> None:
    sizes, axis, lies, _ = SHAPES[shape]
    factors, terms = drawn(AFFINE, sizes, lies, torch.float32)
    for dim in range(len(sizes)):
        few = factors.narrow(dim, 0, 1).expand(sizes)
        out = torch.empty(sizes)
        run(How(AFFINE), axis, [few, terms], out)
        torch.testing.assert_close(out, exactly(How(AFFINE), axis, [few, terms], out), rtol=2e-4, atol=2e-4)


def around(reverse: bool) -> ScanProgram:
    """Sums of a product, and what is made of them, of positions, and of elements next to one another."""
    x, y, z = (Ref(element(place), float32) for place in range(3))
    before, behind = (Ref(neighbour(element(place), way), float32) for place, way in ((0, -1), (2, 1)))
    how, here = How("sum", reverse), Index("b")
    total, here_of = Ref(running(how), float32), call("cast", here, dtype=float32)
    odd = apply("where", apply("eq", here, const(0, int64)), total, total * z + before)
    return ScanProgram.of("b", how, float32, [x * y], [how], [total, odd, behind - here_of])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_in_front_of_a_scan_and_behind_it(shape: str, reverse: bool) -> None:
    sizes, axis, lies, _ = SHAPES[shape]
    x, y = drawn("sum", sizes, lies, torch.float32)[0], drawn("sum", sizes, lies, torch.float32)[0].cos()
    z = torch.arange(sizes[axis], dtype=torch.float32).sin().reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    z = z.expand(sizes)  # which lacks the other axes
    outs = [
        lies(torch.zeros(sizes)),
        torch.zeros(sizes),
        turned(torch.zeros(sizes)) if x.ndim > 1 else torch.zeros(sizes),
    ]
    run_program(around(reverse), axis, [x, y, z], outs)
    wide = [t.double() for t in (x, y, z)]
    total = scanned(torch, How("sum", reverse), [wide[0] * wide[1]], axis)
    before = scanned(torch, How(LAST, exclusive=True), [wide[0]], axis)
    behind = scanned(torch, How(LAST, reverse=True, exclusive=True), [wide[2]], axis)
    here = torch.arange(sizes[axis]).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    expected = [total, torch.where(here == 0, total, total * wide[2] + before), behind - here]
    for found, exact in zip(outs, expected, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("shape", ["a block", "parts", "columns in parts", "elements"])
@pytest.mark.parametrize("reverse", [False, True])
def test_an_extremum_and_where_it_stands(shape: str, reverse: bool) -> None:
    sizes, axis, lies, _ = SHAPES[shape]
    x = lies(drawn("max", sizes, lies, torch.float32)[0].round())  # which ties
    x.view(-1)[::97] = float("-inf")
    x.view(-1)[1300::1501] = float("nan")
    how, value = How("argmax", reverse), How("max", reverse)
    refs = [Ref(running(how), int64), Ref(running(value), float32)]
    program = ScanProgram.of("b", how, float32, [Ref(element(0), float32)], [how, value], refs)
    outs = [torch.zeros(sizes, dtype=torch.int64), torch.zeros(sizes)]
    run_program(program, axis, [x], outs)
    given = x.flip(axis) if reverse else x
    expected = torch.cummax(given, axis)
    places = sizes[axis] - 1 - expected.indices if reverse else expected.indices
    assert torch.equal(outs[0], places.flip(axis) if reverse else places)
    top = expected.values.flip(axis) if reverse else expected.values
    torch.testing.assert_close(outs[1], top, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", ["a block", "parts", "columns in parts"])
def test_nothing_races_and_bits_are_the_same(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, axis, lies, _ = SHAPES[shape]
    values, how = drawn(AFFINE, sizes, lies, torch.float32), How(AFFINE)
    first, again = torch.empty(sizes), torch.empty(sizes)
    run(how, axis, values, first)
    racing = Racing()
    monkeypatch.setattr(steps, "target_of", lambda device: racing)
    run(how, axis, values, again)
    assert torch.equal(first, again)


def test_an_overflow_of_factors_beside_nothing_counts_for_nothing() -> None:
    factors, terms = torch.full((1, 4096), 1e10), torch.zeros(1, 4096)
    terms[0, -3] = 1
    out = torch.empty_like(terms)
    run(How(AFFINE), 1, [factors, terms], out)
    expected = torch.zeros_like(terms)
    expected[0, -3:] = torch.tensor([1, 1e10, 1e20])
    torch.testing.assert_close(out, expected)


def test_segments_keep_what_is_infinite_to_themselves() -> None:
    goes_on, terms = torch.ones(1, 3000, dtype=torch.bool), torch.ones(1, 3000)
    goes_on[0, ::100] = False
    terms[0, 50], terms[0, 1250] = float("inf"), float("nan")
    out = torch.empty_like(terms)
    run(How(SEGMENTS), 1, [goes_on, terms], out)
    torch.testing.assert_close(out[0].view(30, 100), terms.view(30, 100).cumsum(1), equal_nan=True)


def planned(how: How, dtype: DType, sizes: dict[str, int], axis: str) -> ScanSchedule:
    """Of dense tensors."""
    strides, step = dict[str, int](), 1
    for name in reversed(sizes):
        strides[name] = step
        step *= sizes[name]
    values = read_as_they_are(how, dtype.compute)
    kinds = [bool_ if value.dtype is bool_ else dtype for value in values]
    lying = [Lying(element(place), kind, strides, 0) for place, kind in enumerate(kinds)]
    written = [Lying(result(0), how.dtype(dtype), strides, 0)]
    return schedule_scan(program_of(how, dtype.compute), axis, sizes, lying, written, False)[0]


@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_texts_compile_and_nothing_is_spilled(dtype: str, combine: str) -> None:
    for axis, sizes in (("b", {"a": 16384, "b": 4096}), ("a", {"a": 4096, "b": 1024}), ("a", {"a": 2**24})):
        schedule = planned(How(combine, reverse=True), BY_NAME[dtype], sizes, axis)
        for stage in schedule.stages:
            text = render_scan(schedule, stage)
            for arch in ("sm_75", "sm_90"):
                cubin = cached_cubin(text.text, arch=arch, headers=headers(), declared="", cache=default_cache())
                used = resources(cubin, text.entry)
                assert used.local_bytes == 0 and used.registers <= (96 if arch == "sm_90" else 128)


def test_a_long_row_of_halves_is_read_in_vectors_by_a_full_multiprocessor() -> None:
    schedule = planned(How(), BY_NAME["bfloat16"], {"a": 16384, "b": 4096}, "b")
    assert (schedule.vector, schedule.tile, schedule.threads) == (8, 4096, 256)
    text = render_scan(schedule, "scan")
    cubin = cached_cubin(text.text, arch="sm_90", headers=headers(), declared="", cache=default_cache())
    blocks = 65536 // (256 * (-(-resources(cubin, text.entry).registers // 8) * 8))
    assert blocks * 256 * schedule.turns * 16 >= 40 * 1024  # bytes under way in a multiprocessor


def test_no_template_has_a_lambda_of_types_to_be_deduced() -> None:
    """NVRTC 13.0 takes such a one for a function of the host; later ones do not."""
    for path in (ROOT / "templates").glob("*.cu*"):
        lambdas = re.findall(r"\[&\]\s*\(([^)]*)\)", path.read_text(encoding="utf-8"))
        assert not any("auto" in parameters for parameters in lambdas), path.name

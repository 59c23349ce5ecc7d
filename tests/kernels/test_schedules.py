"""How kernels walk memory, at the sizes where it changes: tests/kernels/schedules.txt holds what was chosen for each
case.

Results are the same whichever way is taken, and only a GPU shows what a wrong choice costs. So a change of a choice has
to show here: measure it, then write the page anew with ``python -m tests.kernels.test_schedules``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fusegen as fg
from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.schedule import Launch, Schedule
from fusegen.inspect.passes import Pass, backward_of
from fusegen.pipeline import HOPPER, plan_op
from fusegen.plan.frameworks import TensorInfo
from fusegen.plan.layout import row_major

PAGE = Path(__file__).parent / "schedules.txt"
OLD, SMALL = Chip(1, 48 * 1024), Chip(1, 99 * 1024)
Shape = tuple[int, ...]


@fg.op
def scaled(x: Any, y: Any) -> Any:
    return x * y


@fg.op
def exponential(x: Any) -> Any:
    return fg.exp(x)


@fg.op
def row_sum(x: Any) -> Any:
    return fg.sum(x, -1)


@fg.op
def column_sum(x: Any) -> Any:
    return fg.sum(x, 0)


@fg.op
def column_max(x: Any) -> Any:
    return fg.amax(x, 0)


@fg.op
def row_variance(x: Any) -> Any:
    return fg.var(x, -1)


@fg.op
def all_sum(x: Any) -> Any:
    return fg.sum(x)


@fg.op
def softmax(x: Any) -> Any:
    return fg.softmax(x, -1)


@fg.op
def softmax_of_channels(x: Any) -> Any:
    return fg.softmax(x, 1)


@fg.op
def norm(x: Any, w: Any, b: Any) -> Any:
    centred = x - fg.mean(x, -1, keepdims=True)
    return centred * fg.rsqrt(fg.var(x, -1, keepdims=True, correction=0) + 1e-5) * w + b


@fg.op
def scaled_rows(x: Any, r: Any) -> Any:
    return x * fg.exp(fg.tanh(r)) + fg.log(fg.cosh(r))


@fg.op
def grouped(x: Any, w: Any) -> Any:
    centred = x - fg.mean(x, (-2, -1), keepdims=True)
    return centred * fg.rsqrt(fg.mean(centred * centred, (-2, -1), keepdims=True) + 1e-5) * w


@fg.op
def whole_norm(x: Any, w: Any) -> Any:
    centred = x - fg.mean(x, (-3, -2, -1), keepdims=True)
    return centred * fg.rsqrt(fg.mean(centred * centred, (-3, -2, -1), keepdims=True) + 1e-5) * w


@fg.op
def two_quotients(x: Any, r: Any) -> Any:
    return x * (1 / r + r / 3)


@fg.op
def two_spaces(a: Any, b: Any) -> Any:
    return fg.sum(a, -1), fg.sum(b * b, 0), fg.sum(b * b, -1)


Case = tuple[Any, tuple[Shape, ...], str, dict[int, Shape], int, Chip, bool]


def case(
    op: Any, *shapes: Shape, dtype: str = "float32", strides: dict[int, Shape] | None = None, off: int = 0,
    chip: Chip = HOPPER, backward: bool = False,
) -> Case:  # fmt: skip
    return op, shapes, dtype, strides or {}, off, chip, backward


def cases() -> Iterator[Case]:
    for n in (1, 4, 1023, 1024, 1025, 4096):
        yield case(exponential, (n,))
    for dtype in ("float64", "float16", "int8"):
        yield case(scaled, (64, 64), (64,), dtype=dtype)
    for n in (6, 8, 2**31 - 4096 * 1024 - 1, 2**31 - 4096 * 1024):
        yield case(exponential, (n,), off=4)
    for n in (2**19 - 1, 2**19):
        yield case(scaled, (2, n), (2, n), strides={0: (2 * n, 2), 1: (2 * n, 2)})
        yield case(scaled, (2, n), (2, n), strides={0: (2 * n, 2), 1: (2 * n, 2)}, dtype="float64")
    for rows, columns in ((15, 64), (16, 64), (64, 15), (64, 16), (33, 65)):
        yield case(scaled, (rows, columns), (rows, columns), strides={1: (1, rows)})
    yield case(scaled, (4, 40, 40), (4, 40, 40), strides={1: (1, 4, 160)})
    for n in (1, 1000, 2**20, 2**21):
        yield case(all_sum, (n,))
    for m, n in ((4, 127), (4, 128), (4, 4096), (4, 4100), (2, 2**20), (300, 2**17), (140, 2**17), (1, 2**24)):
        yield case(row_sum, (m, n))
    for m, n in ((2**16 - 1, 64), (2**16, 64), (2**16, 65), (3, 40000), (1, 131)):
        yield case(row_sum, (m, n))
        yield case(row_variance, (m, n))
    for n, m in ((100, 8), (100, 7), (512, 1024), (513, 1024), (512, 1020), (4096, 32), (2**17, 64), (70, 2**16)):
        yield case(column_sum, (n, m))
    for n, m in ((2**17, 2**16), (40, 20), (2000, 2**14), (300, 2**12), (5000, 3)):
        yield case(column_sum, (n, m))
        yield case(column_max, (n, m), dtype="bfloat16")
    lengths = (7, 32, 33, 64, 100, 129, 512, 1000, 1024, 2048, 4096, 4097, 8192, 12288, 32768, 65536, 131072, 400000)
    for n in lengths:
        for dtype in ("float32", "bfloat16"):
            yield case(softmax, (64, n), dtype=dtype)
            yield case(norm, (8192, n), (n,), (n,), dtype=dtype, backward=True)
        yield case(softmax, (64, n), chip=OLD, backward=True)
        yield case(norm, (40, n), (n,), (n,), dtype="bfloat16", chip=SMALL, backward=True)
    for n in (64, 1000, 4096):
        yield case(norm, (8192, n), (n,), (n,), dtype="float64", backward=True)
        yield case(softmax, (3, n), off=8)
    for n, m in ((19, 512), (256, 64), (1000, 49), (100, 4097), (3, 5), (64, 1024), (2000, 64)):
        yield case(softmax_of_channels, (8, n, m))
        yield case(softmax_of_channels, (8, n, m), dtype="bfloat16", backward=True)
    for m, n in ((64, 30), (64, 2048), (2000, 2**15), (3, 2**17)):
        yield case(scaled_rows, (m, n), (m, 1))
        yield case(scaled_rows, (m, n), (m, 1), dtype="bfloat16", backward=True)
    yield case(two_quotients, (64, 2048), (64, 1))
    for n in (65535 * 4096, 65536 * 4096):  # blocks of a grid in y
        yield case(two_quotients, (2, n), (2, 1))
    yield case(two_spaces, (5, 40, 512), (40, 512))
    for size in (5, 6, 8, 32, 64, 160):
        yield case(grouped, (4, 8, size, size), (8, 1, 1), backward=True)
    for size in (4, 16):
        channels_first = {0: (6 * size * size, size, 1, size * size)}
        yield case(whole_norm, (4, size, size, 6), (6,), strides=channels_first, backward=True)
        yield case(whole_norm, (4, 6, size, size), (6, 1, 1), dtype="bfloat16", backward=True)
    yield case(grouped, (4, 8, 4, size, size), (4, 1, 1), dtype="bfloat16", backward=True)


@cache
def passes(item: int) -> list[Pass]:
    op, shapes, dtype, strides, off, chip, backward = LISTED[item]
    names = list(op.declaration.signature.parameters)
    kind = getattr(fg, dtype)
    infos = {
        name: TensorInfo(shape, strides.get(i, row_major(shape)), kind, 0 if i else off, "cpu")
        for i, (name, shape) in enumerate(zip(names, shapes, strict=True))
    }
    traced = op.trace(**{name: fg.TensorSpec(kind, info.shape) for name, info in infos.items()})
    forward = Pass.of(traced, infos, {}, {})
    found = [forward, backward_of(forward)] if backward else [forward]
    return [Pass(p.op, p.tensors, p.layout, chip=chip) for p in found]


def schedule_text(schedule: Schedule, launch: Launch) -> str:
    """Everything that was chosen."""
    possible = ("exact", "split", "whole_rows", "filled", "persistent", "prefetch", "staged", "unaligned", "chunked")
    flags = [name for name in possible if getattr(schedule, name, False)]
    usual = (
        ("block_width", 32),
        ("unroll", 1),
        ("vectors_per_thread", 1),
        ("rows", 1),
        ("cluster", 1),
        ("dynamic", 0),
        ("threads_per_segment", 0),
    )
    special = [
        f"{name} {value}" for name, standard in usual if (value := getattr(schedule, name, standard)) != standard
    ]
    finish = [f"finish by {schedule.finish}"] if schedule.split else []
    places = " ".join(p.access.name.lower() for p in schedule.placements)
    chosen = [
        f"{schedule.template} {schedule.loops}+{schedule.inner}", f"vector {schedule.vector}",
        f"threads {schedule.threads}", schedule.index, *flags, *special, *finish,
    ]  # fmt: skip
    sizes = {"grid": launch.grid, "block": launch.block, "splits": launch.splits, "chunk": launch.chunk}
    numbers = [f"{name} {value}" for name, value in sizes.items() if value not in (0, 1)]
    partial = [f"{name} {size}" for name, size in launch.partial_sizes.items() if size != 1]
    return f"{', '.join(chosen)}; {', '.join(numbers + partial)}; {places}"


def entry(item: int) -> str:
    op, shapes, dtype, strides, off, chip, _ = LISTED[item]
    what = [op.name, " ".join(str(list(shape)) for shape in shapes), dtype]
    what += [f"strides {strides}"] if strides else []
    what += [f"{off} bytes off"] if off else []
    what += [f"clusters of {chip.cluster}, {chip.shared} bytes"] if chip is not HOPPER else []
    lines = [", ".join(what)]
    for part in passes(item):
        for planned in plan_op(part.op, part.layout, part.chip).kernels:
            lines.append(f"    {part.op.label}: {schedule_text(planned.schedule, planned.launch)}")
    return "\n".join(lines)


LISTED = list(cases())


@cache
def page() -> list[str]:
    return PAGE.read_text(encoding="utf-8").split("\n\n")


@pytest.mark.parametrize("item", range(len(LISTED)))
def test_what_is_chosen_is_what_was_measured(item: int) -> None:
    assert len(page()) == len(LISTED)
    assert entry(item) == page()[item].rstrip("\n")


if __name__ == "__main__":
    PAGE.write_text("\n\n".join(map(entry, range(len(LISTED)))) + "\n", encoding="utf-8")

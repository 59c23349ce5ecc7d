"""`fusegen bench` and tools/bench: who is measured beside whom, against which floor, and what is said of it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

import fusegen as fg
from fusegen import pipeline
from fusegen.bench.baselines import LIGER, NAMES, Call, choose, namesake, peers
from fusegen.bench.comparison import Comparison, InTorch, Measured, Roof, disagreement, one_pass
from fusegen.bench.plots import bandwidth_figure, floor_figure, load_matplotlib
from fusegen.bench.text_plots import bar, print_plots
from fusegen.cli.arguments import Request, bind, library, resolve
from fusegen.cli.bench import Bench, print_table, sweep_specs
from fusegen.cli.main import _bare_plot, main
from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, FusegenError
from fusegen.declare.reference import reference
from fusegen.fuse.rows_schedule import Chip
from fusegen.inspect.cost import _Recorder, floor_bytes, least_work
from fusegen.inspect.gpus import GPUS
from fusegen.inspect.passes import shown_passes
from fusegen.matmul.libraries.stopwatch import WallClock
from fusegen.pytorch.library.eager import eager
from tests.support.benches import CountingClock, as_input
from tests.support.emulated import ROOT
from tools.bench import kernels, report, rows_elementwise, rows_indexing, rows_reductions
from tools.bench.row import F32, Row
from tools.bench.rows import ROWS, matching


def leaf(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_()


# -- comparisons -------------------------------------------------------------------------------------------------------


def test_who_disagrees_or_fails_is_left_out_with_a_word() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of\nmemory")

    def fails_later(x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            raise RuntimeError("no backward here")
        return x * 2

    calls = iter(range(5))

    def fails_in_the_end(x: torch.Tensor) -> torch.Tensor:
        next(calls)
        return x * 2

    late = Comparison([InTorch("ours", lambda x: x * 2), InTorch("late", fails_in_the_end)], [leaf(5, 7)])
    assert list(late.time(WallClock(9), "fwd")) == ["ours"] and late.left_out == {"late, fwd": "StopIteration: "}

    implementations = [
        InTorch("ours", lambda x: x * 2), InTorch("same", lambda x: x + x), InTorch("other", lambda x: x * 2.5),
        InTorch("wrong shape", lambda x: x.sum()), InTorch("narrower", lambda x: (x * 2).half()),
        InTorch("wider", lambda x: x.double() * 2), InTorch("fails", fails), InTorch("fails later", fails_later),
    ]  # fmt: skip
    comparison = Comparison(list(implementations), [leaf(5, 7)])
    comparison.admit()
    assert list(comparison.time(CountingClock(), "fwd")) == ["ours", "same", "wider", "fails later"]
    assert list(comparison.time(CountingClock(), "bwd")) == ["ours", "same", "wider"]
    assert comparison.left_out == {
        "other": "other values", "wrong shape": "other shapes: [[]]",
        "narrower": "another dtype: float16 instead of float32", "fails": "RuntimeError: out of",
        "fails later, bwd": "RuntimeError: no backward here",
    }  # fmt: skip


def test_the_first_implementation_may_not_fail() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Comparison([InTorch("ours", fails)], [leaf(3)]).admit()


def test_implementations_that_write_into_their_inputs_get_copies() -> None:
    x = leaf(4)
    before = x.detach().clone()
    greedy = InTorch("greedy", lambda t: t.data.mul_(0) + t, owns_inputs=True)
    greedy.results([x])
    greedy.time(CountingClock(), [x], "bwd")
    assert torch.equal(x, before)


def test_passes_are_what_they_are_called() -> None:
    seen: list[bool] = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append(False)
            return x * 2

        @staticmethod
        def backward(ctx: Any, d: torch.Tensor) -> torch.Tensor:
            seen.append(True)
            return d * 2

    runs = {}
    for which in ("fwd", "train", "bwd", "step"):
        work = one_pass(Watched.apply, [leaf(3), torch.tensor([1, 2])][:1], which)
        seen.clear()
        work()
        runs[which] = list(seen)
    assert runs == {"fwd": [False], "train": [False], "bwd": [True], "step": [False, True]}
    assert [one_pass(Watched.apply, [leaf(3)], which)().requires_grad for which in ("fwd", "train")] == [False, True]
    with pytest.raises(ValueError, match="no backward"):
        one_pass(lambda x: x.detach(), [leaf(3)], "bwd")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_agreement_survives_rounding_but_not_a_difference(dtype: Any) -> None:
    x = leaf(1000, dtype=dtype).detach()
    assert not disagreement([x.float()], [x])
    assert not disagreement([torch.where(x > 1, torch.nan, x)], [torch.where(x > 1, torch.nan, x)])
    assert disagreement([x + x.abs().max() / 4], [x]) == "other values"
    assert disagreement([x, x], [x])
    assert disagreement([torch.where(x > 1, torch.nan, x)], [x]) == "other values"
    assert disagreement([x > 0], [x <= 0]) == "other values"


# -- peers -----------------------------------------------------------------------------------------------------------

SOME = ["lerp", "gelu", "swiglu_packed", "lstm_cell", "mse_loss", "binary_cross_entropy", "softmax", "layer_norm"]


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize("name", SOME)
def test_eager_torch_computes_the_op_in_its_own_dtypes(name: str, dtype: Any) -> None:
    op = library()[name]
    arguments = bind(op, Request({"": (8, 16)}), dtype)
    tensors = {n: leaf(*s.shape).sigmoid().to(getattr(torch, s.dtype.name))
               for n, s in arguments.items() if isinstance(s, fg.TensorSpec)}  # fmt: skip
    arguments |= tensors
    traced = op.trace(**arguments)
    options = {n: v for n, v in op.declaration.bind((), arguments).items() if n not in tensors}
    found = eager(traced, list(tensors), options)(*tensors.values())
    found = found if isinstance(found, tuple) else (found,)
    exact = reference(traced, tensors, options)
    assert {r.dtype for r in found} == {getattr(torch, dtype.name)}
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2**-7 if dtype.is_half else 1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_jax_computes_the_op(name: str) -> None:
    pytest.importorskip("jax")
    from fusegen.bench.peer_jax import in_jax

    op = library()[name]
    arguments = bind(op, Request({"": (8, 16)}))
    tensors = {n: leaf(*s.shape).sigmoid().detach().requires_grad_()
               for n, s in arguments.items() if isinstance(s, fg.TensorSpec)}  # fmt: skip
    arguments |= tensors
    options = {n: v for n, v in op.declaration.bind((), arguments).items() if n not in tensors}
    implementation = in_jax(op.trace(**arguments), list(tensors), options)
    expected = reference(op.trace(**arguments), tensors, options)
    assert not disagreement(implementation.results(list(tensors.values())), [r.float() for r in expected])
    for which in ("fwd", "bwd", "step"):
        assert implementation.time(WallClock(1), list(tensors.values()), which) > 0


def test_torch_is_asked_for_a_function_of_the_same_name_and_meaning() -> None:
    x = leaf(4, 8).detach()
    found = namesake("gelu", ["input"], {"approximate": "tanh"}, [x], [F.gelu(x, approximate="tanh")])
    assert found is not None and torch.equal(found(x), F.gelu(x, approximate="tanh"))
    assert namesake("gelu", ["x"], {}, [x], [F.gelu(x)]) is not None  # by position, where names differ
    assert namesake("gelu", ["input"], {}, [x], [F.silu(x)]) is None
    assert namesake("no_such_function", ["input"], {}, [x], [x]) is None


def test_packages_are_called_if_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(liger_swiglu=lambda gate, value: F.silu(gate) * value)
    gate, value = leaf(4, 8), leaf(8, 4).T
    call = Call(fg.ops.swiglu.trace(gate, value), ["gate", "value"], {})
    found, absent = peers(call, ["Liger", "QuACK"], on_gpu=True)
    assert (found, absent) == ([], {"Liger": "liger_kernel is not installed", "QuACK": "has no swiglu"})
    monkeypatch.setitem(sys.modules, "liger_kernel", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", SimpleNamespace())
    monkeypatch.setitem(sys.modules, LIGER.module, module)
    (liger,), absent = peers(call, ["Liger"], on_gpu=True)
    assert torch.equal(liger.results([gate, value])[0], F.silu(gate) * value)
    assert peers(call, ["Liger"], on_gpu=False) == ([], {"Liger": "runs on GPUs only"})


def test_which_peers_are_asked_for() -> None:
    assert choose(None) == NAMES
    assert choose("none") == ()
    assert choose("jax, torch") == ("torch", "JAX")
    with pytest.raises(DeclarationError, match=r"did you mean torch\.compile"):
        choose("torch.compil")


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.emulator
@pytest.mark.cpu
def test_the_emulator_makes_no_claims_about_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = [
        "bench",
        "silu",
        "--shape",
        "16,64",
        "--repeats",
        "2",
        "--device",
        "cpu",
        "--plot",
        str(tmp_path / "a"),
    ]
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert not left.value.code
    out, err = capsys.readouterr()
    assert "Emulator times" in out and "nothing about a GPU" in out
    assert re.search(r"^pass +bytes +fusegen +torch$", out, re.MULTILINE)
    assert re.findall(r"^(\w+) +([\d.]+ kB) +[\d.]+ +[\d.]+$", out, re.MULTILINE) == [
        ("fwd", "8.19 kB"), ("bwd", "12.3 kB"), ("step", "20.5 kB"),
    ]  # fmt: skip
    for name in ("silu_bandwidth.png", "silu_floor.png"):
        assert (tmp_path / "a" / name).read_bytes().startswith(b"\x89PNG")
        assert f"wrote {tmp_path / 'a' / name}" in err


def test_on_a_gpu_the_table_has_the_floor_and_the_best_peer(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(resolve("silu"), "cpu", (), WallClock(1), Roof(4e6, 2.0), {"Liger": "has no silu"})
    times = {"fwd": {"fusegen": 110.0, "torch": 240.0, "JAX": 99.0}, "bwd": {"fusegen": 1600.0}}
    print_table(bench, {"input": fg.TensorSpec(fg.bfloat16, (8, 4))},
                [Measured(which, 4 * 10**8, own) for which, own in times.items()])  # fmt: skip
    title, method, _, head, fwd, bwd, _, *notes = capsys.readouterr().out.splitlines()
    assert title == "silu on the CPU emulator: input bf16[8, 4]"
    assert "a copy moves 4.00 TB/s and a launch takes 2.0" in method
    assert re.split(" {2,}", head) == [
        "pass", "bytes", "floor", "fusegen", "torch", "JAX", "fusegen / floor", "best peer / fusegen",
    ]  # fmt: skip
    assert re.split(" {2,}", fwd) == ["fwd", "400 MB", "100.0", "110.0", "240.0", "99.0", "1.10", "JAX 0.90"]
    assert re.split(" {2,}", bwd.strip()) == ["bwd", "400 MB", "100.0", "1600", "16.00"]
    assert notes == [
        "JAX: calls back to back by the wall clock, caches not flushed", "Liger left out: has no silu",
    ]  # fmt: skip


@pytest.mark.emulator
@pytest.mark.cpu
def test_ops_without_gradients_have_a_forward_only(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--dtype", "int32", "--shape", "8,8", "--repeats", "1", "--device", "cpu", "--peers", "none"]
    with pytest.raises(SystemExit):
        main(["bench", "x * 2 + y", *arguments])
    out = capsys.readouterr().out
    assert re.findall(r"^(fwd|bwd|step) ", out, re.MULTILINE) == ["fwd"]
    assert re.search(r"^pass +bytes +fusegen$", out, re.MULTILINE)


def test_plots_without_matplotlib_name_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(FusegenError, match=r'pip install "fusegen\[plot\]"'):
        load_matplotlib()


def test_pictures_show_every_implementation_under_the_roof() -> None:
    pyplot = load_matplotlib()
    roof = Roof(4e6, 2.0)
    sweep = [[Measured("fwd", 2**b, {"fusegen": 2**b / 3e6 + 3, "torch": 2**b / 1e6 + 6})] for b in range(16, 31, 2)]
    figure = bandwidth_figure(pyplot, "op on a GPU", sweep, roof)
    (panel,) = figure.axes
    lines = {line.get_label(): line.get_ydata() for line in panel.get_lines()}
    assert list(lines) == ["fusegen", "torch", "roofline: copy 4.00 TB/s, launch 2.0 µs"]
    assert len(lines["fusegen"]) == 8 and lines["fusegen"][-1] == pytest.approx(3, rel=0.02)
    assert max(lines["roofline: copy 4.00 TB/s, launch 2.0 µs"]) == pytest.approx(4)
    bars = floor_figure(pyplot, "op on a GPU", [Measured("fwd", 4 * 10**6, {"fusegen": 1.5, "torch": 3.0})], roof)
    assert [patch.get_height() for patch in bars.axes[0].patches] == [1.5, 3.0]
    assert "floor: the fewest bytes at 4.00 TB/s" in [text.get_text() for text in bars.legends[0].get_texts()]
    plain = floor_figure(pyplot, "op on the CPU emulator", [Measured("fwd", 10**6, {"fusegen": 1.5})], None)
    assert "without floor and roofline" in plain.get_suptitle() and not plain.axes[0].get_lines()
    pyplot.close("all")


def test_no_panel_cuts_off_what_another_has_no_room_for() -> None:
    pyplot = load_matplotlib()
    speeds = {"fwd": 1e3, "bwd": 9e3, "step": 3e3}
    sweep = [[Measured(which, 2**b, {"fusegen": 2**b / speed}) for which, speed in speeds.items()] for b in (16, 18)]
    figure = bandwidth_figure(pyplot, "op on the CPU emulator", sweep, None)
    assert all(panel.get_ylim()[0] == 0 and panel.get_ylim()[1] > 9 for panel in figure.axes)
    pyplot.close("all")


def test_bars_are_as_long_as_their_part() -> None:
    assert [bar(part, 4) for part in (0, 0.25, 0.5 + 1 / 32, 1 / 8, 1, 3)] == ["", "█", "██▏", "▌", "████", "████"]
    assert [bar(part, 4, blocks=False) for part in (0, 0.25, 0.3, 1)] == ["", "#", "#", "####"]


def printed(measured: Any, sweep: Any, roof: Roof | None, encoding: str = "utf-8") -> list[str]:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding), width=62, highlight=False, force_terminal=False)
    print_plots(console, measured, sweep, roof)
    console.file.flush()
    return [line.rstrip() for line in raw.getvalue().decode(encoding).splitlines()]


def test_text_shows_what_the_pictures_show() -> None:
    """On a line 62 wide a bar has 20 characters; what is longest has them all."""
    measured = [Measured("fwd", 4 * 10**6, {"fusegen": 1.5, "torch": 3.0}), Measured("bwd", 0, {"fusegen": 2.0})]
    sweep = [[Measured("fwd", 4 * 10**6, {"fusegen": 2.0})], [Measured("fwd", 8 * 10**8, {"fusegen": 200.0})]]
    assert printed(measured, sweep, Roof(4e6, 2.0), "ascii") == [
        "", "time over the floor: the fewest bytes at 4.00 TB/s",
        "fwd  floor    1.00  #######",
        "     fusegen  1.50  ##########",
        "     torch    3.00  ####################",
        "", "fusegen's bandwidth, of a copy's 4.00 TB/s",
        "fwd  4 MB    2 TB/s  ##########",
        "     800 MB  4 TB/s  ####################",
    ]  # fmt: skip
    assert "     fusegen  1.50  ██████████" in printed(measured, sweep, Roof(4e6, 2.0))


def test_text_makes_no_claims_about_a_gpu_either() -> None:
    measured = [Measured("fwd", 10**6, {"fusegen": 1500.0, "torch": 750.0})]
    lines = printed(measured, [measured], None, "ascii")
    assert "without floor and roofline" in lines[1]
    assert lines[2:4] == ["fwd  fusegen  1.5 ms  ####################", "     torch    750 us  ##########"]
    assert lines[5:] == ["fusegen's bandwidth", "fwd  1 MB  0.667 GB/s  ####################"]


def test_plot_without_a_folder_is_the_terminal() -> None:
    assert _bare_plot(["bench", "silu", "--plot"]) == ["bench", "silu", "--plot=-"]
    assert _bare_plot(["bench", "--plot", "--shape", "4", "silu"]) == ["bench", "--plot=-", "--shape", "4", "silu"]
    for given in (["bench", "silu", "--plot", "folder"], ["bench", "silu", "--plot", "-"], ["bench", "silu"], []):
        assert _bare_plot(given) == given


@pytest.mark.emulator
@pytest.mark.cpu
def test_text_needs_no_matplotlib(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("fusegen.cli.bench.SWEEP", {"cpu": [2**12, 2**14]})
    arguments = ["silu", "--shape", "16,64", "--repeats", "1", "--device", "cpu", "--peers", "none"]
    with pytest.raises(SystemExit) as left:
        main(["bench", *arguments, "--plot"])
    assert not left.value.code
    out, _ = capsys.readouterr()
    assert re.findall(r"^(\w+) +fusegen +[\d.]+ (?:µs|ms)  [█▉▊▋▌▍▎▏]+", out, re.MULTILINE) == ["fwd", "bwd", "step"]
    assert re.findall(r"^fwd +4.1 kB .*\n +16.4 kB +[\d.]+ GB/s  ", out, re.MULTILINE)
    with pytest.raises(SystemExit) as left:  # and pictures say so before anything is measured
        main(["bench", *arguments, "--plot", "folder"])
    out, err = capsys.readouterr()
    assert left.value.code == 2 and not out and "--plot without a folder" in err


def test_sizes_are_swept_along_the_first_axis() -> None:
    lerp = resolve("lerp")
    specs = bind(lerp, Request({"input": (8, 1, 1), "end": (8, 16, 64), "weight": (16, 1)}))
    now = floor_bytes(shown_passes(lerp, (), specs)[0])
    half, same, twice = sweep_specs(lerp, specs, [now // 2, now, 2 * now])
    assert same == specs
    assert [s["input"].shape for s in (half, twice)] == [(4, 1, 1), (16, 1, 1)]
    assert [s["end"].shape for s in (half, twice)] == [(4, 16, 64), (16, 16, 64)]
    assert {s["weight"].shape for s in (half, twice)} == {(16, 1)}
    assert sweep_specs(lerp, specs, [1])[0]["end"].shape == (2, 16, 64)


def test_packed_arguments_keep_their_parts_while_they_grow() -> None:
    op = resolve("swiglu_packed")
    specs = bind(op, Request({"input": (64,)}))
    now = floor_bytes(shown_passes(op, (), specs)[0])
    sizes = [s["input"].shape for s in sweep_specs(op, specs, [now // 4, round(now * 0.52), now * 2])]
    assert sizes == [(16,), (34,), (128,)]  # 33 would not divide


# -- tools/bench -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [row for row in ROWS if row not in rows_indexing.ROWS], ids=lambda row: row.title)
def test_the_floors_of_the_table_are_those_of_the_derived_passes(row: Row) -> None:
    """Counted by hand in the rows, and by fusegen from what it derives: each would notice a mistake of the other.

    But for rows that read at places: fusegen counts the whole of what they read a part of.
    """
    floors = dict(zip(("fwd", "bwd"), map(floor_bytes, shown_passes(row.op, (), row.specs)), strict=False))
    for given in map(as_input, row.inputs):
        if given.fixed:  # a gradient that the row does not ask for
            floors["bwd"] -= torch.Size(given.shape).numel() * row.dtype.itemsize
    floors["step"] = floors["fwd"] + floors.get("bwd", 0)
    for which in row.passes:
        assert row.floor_bytes(which) == pytest.approx(floors[which], rel=0.01), which


def test_a_floor_is_the_longer_of_bytes_and_instructions() -> None:
    passes = shown_passes(fg.op(lambda x: fg.digamma(x)), (fg.TensorSpec(fg.float32, (2**20,)),), {})
    moved, gpu = {"fwd": 8 * 2**20, "bwd": 12 * 2**20}, GPUS["h200"]
    dear = kernels.floors(moved.__getitem__, gpu.bandwidth, passes, gpu)
    assert dear["fwd"] == (gpu.arithmetic(least_work(passes[0])), True)
    assert dear["step"].microseconds == pytest.approx(dear["fwd"].microseconds + dear["bwd"].microseconds)
    # Without the backward's instructions, and without a GPU that the table knows.
    assert kernels.floors(moved.__getitem__, gpu.bandwidth, passes[:1], gpu)["bwd"].of_arithmetic is False
    plain = kernels.floors(moved.__getitem__, 4e6, passes, None)
    assert plain["step"] == (pytest.approx(20 * 2**20 / 4e6), False)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_every_workspace_has_a_name_of_its_own(row: Row) -> None:
    for item in shown_passes(row.op, (), row.specs):
        program = pipeline.build(item.op, item.layout, _Recorder(Chip()))
        names = [workspace.name for workspace in program.workspaces]
        names += [thing.name for thing in (*item.op.operands, *item.op.outputs)]
        assert sorted(set(names)) == sorted(names)


SMALL = [
    rows_elementwise._cell("lstm", 4, 8), rows_elementwise._cell("lstm with bias", 4, 8, bias=True),
    rows_elementwise._gated("swiglu", F32, (4, 8)),
    rows_elementwise._biased("gelu", rows_elementwise.gelu_bias, rows_elementwise._gelu, F32, (4, 8), (8,)),
    rows_reductions._sum("sum", rows_reductions.sum_of_columns, 0, F32, (40, 8), 8),
    rows_reductions._sum("sum around", rows_reductions.sum_around_channels, (0, 2), F32, (3, 4, 8), 4),
    rows_reductions._softmax(4, 40), rows_reductions._layer_norm(4, 40), rows_reductions._rms_norm(4, 40),
    rows_reductions._cross_entropy(4, 40), rows_reductions._group_norm((2, 8, 8, 8), 2),
    rows_reductions._instance_norm((2, 8, 8, 8)),
    rows_reductions._softmax_of_channels(2, 5, 3, 4),
    rows_reductions._cross_entropy_of_pixels(2, 5, 3, 4), rows_reductions._channel_norm(2, 5, 3, 4),
]  # fmt: skip


@pytest.mark.emulator
@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.title)
def test_rows_and_their_references_compute_the_same(row: Row) -> None:
    comparison = kernels.comparison_of(row, ("torch",), "cpu")
    times = comparison.time(CountingClock(), "fwd")
    assert (list(times), comparison.left_out) == (["fusegen", "torch"], {})


def test_a_row_is_a_line_and_its_failure_another(monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows_elementwise._gated("swiglu", F32, (1000, 1000))
    run = kernels.Run(bandwidth=4e6)
    fixed = {"fwd": {"fusegen": 3.3, "torch": 9.0, "JAX": 3.0}, "bwd": {"fusegen": 5.0}, "step": {"fusegen": 8.0}}
    comparison = SimpleNamespace(time=lambda watch, which: fixed[which], left_out={"Liger": "other values"})
    monkeypatch.setattr(kernels, "comparison_of", lambda row, wanted: comparison)
    line = kernels._one(row, CountingClock(), ("torch",), run)
    assert re.split(r" {2,}", line.strip()) == [
        "fwd",
        "3.3",
        "1.10 (JAX 3.0)",
        "bwd",
        "5.0",
        "1.00",
        "step",
        "8.0",
        "1.00",
    ]
    assert run.summary() == [
        "3 passes, 0 above 1.10 of the floor, 1 behind a peer", "  behind JAX by 1.10: swiglu, fwd",
        "  Liger left out: other values (1 rows: swiglu, ...)",
    ]  # fmt: skip

    def fails(row: Row, wanted: Any) -> Any:
        raise RuntimeError("no\n  kernel")

    monkeypatch.setattr(kernels, "comparison_of", fails)
    assert kernels._one(row, CountingClock(), (), run) == "FAILED: RuntimeError: no kernel"
    assert list(run.failed) == ["swiglu"] and len(run.measured) == 3


def test_rows_are_found_by_a_pattern_and_named_once() -> None:
    titles = [row.title for row in ROWS]
    assert len(titles) == len(set(titles)) >= 60
    assert {row.title for row in matching("LAYER_norm.*4096")} == {title for title in titles if
        title.startswith("layer_norm") and "4096" in title}  # fmt: skip
    assert matching(None) == list(ROWS)
    assert all("torch.compile" not in row.peers for row in (*rows_elementwise.ODD, *rows_reductions.ODD))


def test_a_page_keeps_the_sections_that_are_not_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "performance.md"
    page = report.Page(path)
    page.put("models", report.models("| a | b |"))
    page.put("loss", report.linear_loss("first"))
    report.Page(path).put("loss", report.linear_loss("second"))
    report.Page(path).put("rows", "")  # nothing was measured
    text = path.read_text()
    assert text.index("# Performance") < text.index("second") < text.index("## Models\n") < text.index("| a | b |")
    assert "first" not in text and text.count("\n## ") == 2
    path.write_text(text.replace(torch.__version__, "1.0"))  # another torch's numbers do not stand beside these
    report.Page(path).put("host", report.host("| c |"))
    assert "## Models" not in path.read_text() and "| c |" in path.read_text()


@pytest.mark.cpu
@pytest.mark.skipif(torch.cuda.is_available(), reason="there it would measure")
@pytest.mark.parametrize("pattern", ["^lerp f64", "products: linear fp16"])
def test_other_processes_find_what_they_are_to_run(pattern: str) -> None:
    """Without a GPU each row fails there, which is told, and not for want of a function."""
    command = [sys.executable, "-m", "tools.bench", "--jobs", "1", "--no-peers", "--only", pattern]
    environment = {**os.environ, "FUSEGEN_NATIVE": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=ROOT, timeout=300)
    assert "before it is timed: " in done.stdout and "Can't get attribute" not in done.stderr, done.stderr

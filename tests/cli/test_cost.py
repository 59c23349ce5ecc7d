"""What `fusegen show` says a pass costs: bytes against the floor, registers and memory, and a predicted time."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Any

import pytest

import fusegen as fg
from fusegen.cli.arguments import Request, bind, library
from fusegen.cli.main import main
from fusegen.cli.show import cost_text
from fusegen.core.errors import CompileError, DeviceError
from fusegen.generate.rendered import headers
from fusegen.inspect import cost as costing
from fusegen.inspect.cost import PassCost, floor_bytes, pass_cost
from fusegen.inspect.gpus import COPY_SHARE, GPUS, LAUNCH_MICROSECONDS, PRODUCT_SHARE, find_gpu
from fusegen.inspect.passes import shown_passes
from fusegen.inspect.units import count_text, size_text, time_text
from fusegen.launch import compile as compiling
from fusegen.launch.compile import to_cubin
from fusegen.launch.cubin import resources

H200 = GPUS["h200"]


@fg.op
def shifted(x: Any, b: Any) -> Any:
    return fg.exp(x) + b


@fg.op
def added_up(x: Any) -> Any:
    return fg.sum(x)


@fg.op
def over_rows(x: Any) -> Any:
    return fg.sum(x, axis=0)


def spec(*shape: int, dtype: Any = fg.float32) -> fg.TensorSpec:
    return fg.TensorSpec(dtype, shape)


def costs(op: fg.FusedOp, *args: Any, gpu: Any = H200) -> list[PassCost]:
    return [pass_cost(item, gpu) for item in shown_passes(op, args, {})]


def test_broadcast_operands_count_their_own_elements() -> None:
    forward, backward = costs(shifted, spec(64, 1000), spec(1000))
    (kernel,) = forward.kernels
    assert kernel.read == {"x": 4 * 64000, "b": 4 * 1000}
    assert kernel.written == {"out": 4 * 64000}
    assert forward.floor == forward.moved == 4 * (64000 + 1000 + 64000)
    # The bias is not needed, its gradient is: d_out and what the forward saw of x in, two gradients out.
    assert backward.floor == 4 * (2 * 64000 + 64000 + 1000)


def test_what_is_expanded_is_one_element() -> None:
    torch = pytest.importorskip("torch")
    forward, *_ = costs(shifted, torch.zeros(1, 1).expand(64, 1000), torch.zeros(1000))
    assert forward.kernels[0].read == {"x": 4, "b": 4000}


def test_packed_operands_are_counted_once_by_their_parts() -> None:
    forward, backward = costs(fg.ops.swiglu_packed, spec(16, 256, dtype=fg.bfloat16))
    assert forward.moved == forward.floor == 2 * 16 * (256 + 128)
    assert backward.moved == backward.floor == 2 * 16 * (256 + 128 + 256)


def test_workspaces_count_where_they_are_written_and_where_they_are_read() -> None:
    n = 2**22
    forward, _ = costs(added_up, spec(n))
    first, *_, last = forward.kernels
    assert len(forward.kernels) > 1
    pieces = set(first.written) & set(last.read)
    assert pieces, "no workspace between the first kernel and the last"
    between = sum(first.written[name] for name in pieces)
    assert 0 < between < 0.01 * 4 * n
    assert first.read == {"x": 4 * n}
    assert last.written == {"out": 4}
    assert forward.floor == 4 * n + 4
    assert forward.moved == forward.floor + 2 * between


def test_every_kernel_of_a_pass_says_why_it_has_its_shape() -> None:
    for item in costs(over_rows, spec(100000, 512)):
        assert item.kernels
        for kernel in item.kernels:
            assert re.match(r"[a-z]+: \w", kernel.why), kernel


def test_registers_are_those_of_the_cubin() -> None:
    (item, *_) = shown_passes(shifted, (spec(64, 1024), spec(1024)), {})
    (kernel,) = pass_cost(item, H200).kernels
    built = to_cubin(item.text, arch="sm_90", headers=headers(), declared="")
    assert kernel.used == resources(built.data, kernel.entry)
    assert kernel.used is not None and kernel.used.registers > 8


def test_a_pass_over_nothing_has_no_kernels_and_no_ratio() -> None:
    (forward, *_) = costs(shifted, spec(0, 8), spec(0, 1))
    assert (forward.steps, forward.floor) == ((), 0)
    assert "moved 0 B: each input once and each result once is 0 B, 0 µs" in cost_text(forward, H200)


@fg.op
def layer(x: Any, w: Any, b: Any) -> Any:
    return fg.tanh(x @ w + b)


def test_products_count_among_what_a_pass_moves() -> None:
    forward, backward = costs(layer, spec(64, 48), spec(48, 32), spec(32))
    (product,), (kernel,) = forward.products, forward.kernels
    assert (product.batch, product.m, product.n, product.k) == (1, 64, 32, 48)
    assert product.operations == 2 * 64 * 32 * 48
    assert product.read == {"x": 4 * 64 * 48, "w": 4 * 48 * 32} and product.written == {"product": 4 * 64 * 32}
    assert forward.moved == product.moved + kernel.moved == forward.floor + 2 * product.written["product"]
    assert [step.text for step in backward.products] == ["d_x = prod_d_out @ w", "d_w = x @ prod_d_out"]
    assert all(item.moved >= item.floor for item in (forward, backward))


@pytest.mark.parametrize(
    "name", ["swiglu_mlp", "mlp", "linear_cross_entropy", "baddbmm", "conv1x1", "linear_lstm_cell"]
)
def test_nothing_moves_less_than_its_floor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costing._Compiler, "resources", lambda *_: None)
    for item in shown_passes(library()[name], (), bind(library()[name], Request())):
        assert pass_cost(item, H200).moved >= floor_bytes(item)


def test_a_bias_alone_needs_no_kernel() -> None:
    forward, *_ = costs(fg.ops.linear, spec(64, 48), spec(32, 48), spec(32))
    assert [step.text for step in forward.products] == ["out = input @ weight"] and not forward.kernels
    assert forward.moved == forward.floor
    assert "the same routine adds the bias" in cost_text(forward, H200)


def test_products_that_are_added_read_what_is_there() -> None:
    op = fg.op(lambda x, w, y, v: x @ w + y @ v, name="two_products")
    forward, *_ = costs(op, *[spec(64, 64) for _ in range(4)])
    first, second = forward.products
    assert second.text == "out += y @ v" and set(second.read) == {"y", "v", "out"} and "out" not in first.read
    assert forward.moved == forward.floor + 2 * 4 * 64 * 64


def test_products_on_sizes_rounded_up_count_their_copies() -> None:
    matrix, row = spec(4097, 4097, dtype=fg.bfloat16), spec(4097, dtype=fg.bfloat16)
    (forward, *_) = costs(layer, matrix, matrix, row)
    (product,) = forward.products
    assert product.read["copies"] >= 2 * 2 * 4097 * 4097
    assert any("rounded up" in text for text in product.candidates)


def test_a_product_is_as_slow_as_its_operations() -> None:
    for dtype, rate in ((fg.bfloat16, 989), (fg.float32, 67), (fg.float64, 67)):
        (forward, *_) = costs(
            layer, spec(2048, 2048, dtype=dtype), spec(2048, 2048, dtype=dtype), spec(2048, dtype=dtype)
        )
        (product,) = forward.products
        assert product.microseconds(H200) == pytest.approx(2 * 2048**3 / (PRODUCT_SHARE * rate * 1e6))
    assert GPUS["t4"].operations(fg.bfloat16) == GPUS["t4"].operations(fg.float32) < GPUS["t4"].operations(fg.float16)


def test_the_ways_of_a_product_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = spec(8, 16, dtype=fg.float16), spec(24, 16, dtype=fg.float16), spec(24, dtype=fg.float16)
    (forward, *_) = costs(fg.ops.linear_relu, *shapes)
    text = cost_text(forward, H200)
    assert "x = input @ weight + bias" in text and "m = 8, n = 24, k = 16: 6.14 k operations in float16" in text
    candidates = "cuBLASLt's epilogue or its fastest algorithm with the epilogue"
    assert f"on a GPU {candidates} (relu) in the place of the next step" in text
    assert "not measured on this machine" in text or torch_sees_a_gpu()
    (silu, *_) = costs(fg.ops.linear_silu, *shapes)
    assert "on a GPU cuDNN's kernel, for 4,194,304 results or more, (sum * sigmoid(sum)) in the" in cost_text(
        silu, H200
    )
    (exact, *_) = costs(fg.ops.linear_logsigmoid, *shapes)
    assert "product and kernel: no library does at once what follows" in cost_text(exact, H200)


def torch_sees_a_gpu() -> bool:
    return bool(pytest.importorskip("torch").cuda.is_available())


def test_show_says_that_calls_of_a_chunked_loss_go_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["show", "linear_cross_entropy", "--cost", "--shape", "64,128"])
    assert "a chunk of rows at a time" in capsys.readouterr().out


def test_the_prediction_is_a_roofline() -> None:
    assert H200.microseconds(1) == LAUNCH_MICROSECONDS
    assert H200.microseconds(4.28e9) == pytest.approx(1000)
    (large, *_) = costs(shifted, spec(2**14, 2**12), spec(2**12))
    assert large.microseconds(H200) == pytest.approx(large.moved / 4.28e6)
    forward, _ = costs(added_up, spec(1024, 1024))
    assert forward.microseconds(H200) == sum(H200.microseconds(k.moved, k.blocks) for k in forward.kernels)


def test_the_table_of_gpus() -> None:
    for gpu in GPUS.values():
        assert re.fullmatch(r"sm_\d+", gpu.arch)
        assert gpu.bandwidth < gpu.memory * 1e6
        assert 0.1 < gpu.memory < 10 and 20 < gpu.multiprocessors < 300
    assert GPUS["a100"].bandwidth == pytest.approx(2.039e6 * COPY_SHARE)
    assert "measured" in H200.source and "vendor's" in GPUS["a100"].source
    assert find_gpu(" H200 ") is H200
    with pytest.raises(DeviceError, match="did you mean h100"):
        find_gpu("h1000")


def test_older_gpus_are_shown_the_kernels_that_they_would_run() -> None:
    (forward, *_) = costs(fg.ops.softmax, spec(1024, 131072, dtype=fg.bfloat16), -1, gpu=GPUS["a100"])
    assert not forward.uncompiled
    assert all("blocks of" not in kernel.why for kernel in forward.kernels), "a cluster, which this GPU does not have"


def test_without_a_compiler_the_rest_is_still_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("FUSEGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", None)
    monkeypatch.setattr(compiling, "direct", lambda: None)
    compiling._nvrtc.cache_clear()
    try:
        with pytest.raises(CompileError):
            compiling._nvrtc()
        (forward, *_) = costs(shifted, spec(64, 1000), spec(1000))
    finally:
        compiling._nvrtc.cache_clear()
    text = cost_text(forward, H200)
    assert forward.kernels[0].used is None
    assert "no registers and no shared memory to show: CuPy is not installed" in text
    assert "pip install 'fusegen[cuda13]'" in text
    assert re.search(r"^shifted_forward_f32 +\d+ +256 +260 kB +256 kB +[\d.]+ k? +- +- +- +3.1 µs$", text, re.MULTILINE)


def test_few_blocks_are_remarked_upon() -> None:
    (forward, *_) = costs(shifted, spec(2**12, 2**12), spec(2**12))
    blocks = forward.kernels[0].grid[0]
    assert "idle" not in cost_text(forward, replace(H200, multiprocessors=blocks))
    assert "shifted_forward_f32 leaves 5 of " in cost_text(forward, replace(H200, multiprocessors=blocks + 5))
    halved = replace(H200, multiprocessors=2 * blocks)
    assert forward.microseconds(halved) == pytest.approx(2 * forward.microseconds(H200))
    (small, *_) = costs(shifted, spec(8, 8), spec(8))  # bound by its launch, however few its blocks
    assert "idle" not in cost_text(small, H200)


def test_the_cost_sections_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(
            [
                "show",
                "lerp",
                "--shape",
                "x=16,1",
                "--shape",
                "y=16,5000",
                "--shape",
                "w=5000",
                "--cost",
                "--gpu",
                "a100",
            ]
        )
    out = capsys.readouterr().out
    assert re.findall(r"^== (.*?) =+$", out, re.MULTILINE) == [
        "forward: cost on NVIDIA A100 80 GB SXM, sm_80", "backward: cost on NVIDIA A100 80 GB SXM, sm_80",
    ]  # fmt: skip
    assert "#include" not in out
    assert re.search(r"^  reads input 64 B, end 320 kB, weight 20 kB; writes out 320 kB$", out, re.MULTILINE)
    assert "moved 660 kB, 1.00 of the floor" in out
    assert "predicted, not measured" in out
    assert "\x1b" not in out


def test_the_floor_of_an_op_leaves_out_what_nothing_reads() -> None:
    @fg.op
    def ignores(x: Any, y: Any) -> Any:
        return x + 1

    (forward, *_) = shown_passes(ignores, (spec(100), spec(100)), {})
    assert floor_bytes(forward) == 800


@pytest.mark.parametrize(
    "size, text", [(0, "0 B"), (64, "64 B"), (999, "999 B"), (11430000, "11.4 MB"), (999600, "1 MB"), (3e12, "3000 GB")]
)
def test_sizes_as_text(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    "time, text", [(5.3369, "5.34 µs"), (62.71, "62.7 µs"), (491.2, "491 µs"), (1234.5, "1.23 ms")]
)
def test_times_as_text(time: float, text: str) -> None:
    assert time_text(time) == text


@pytest.mark.parametrize(
    "count, text", [(0, "0"), (864, "864"), (6144, "6.14 k"), (2.416e9, "2.42 G"), (5e15, "5000 T")]
)
def test_counts_as_text(count: float, text: str) -> None:
    assert count_text(count) == text

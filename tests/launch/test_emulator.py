"""The CPU emulator: CUDA's meaning of threads, barriers, shuffles and rounding, and the bugs it must find."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from fusegen.core.errors import CompileError
from fusegen.launch.emulator import build as emulator
from fusegen.launch.emulator.build import Mode
from tests.support.emulated import MODES, ROOT, failure, kernel, launch

pytestmark = pytest.mark.emulator

# ---- grids, shared memory, collectives ---------------------------------------------------------------------------


@pytest.mark.parametrize("barriers", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_every_thread_of_every_block_runs_once_with_its_own_indices(mode: Mode, barriers: bool) -> None:
    function = kernel(
        """KERNEL(int* count) {
          const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
          const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
          count[block * 30 + thread] += 1 + thread;
        }""",
        barriers,
    )
    count = np.zeros((7 * 3 * 2, 30), np.int32)
    launch(function, (7, 3, 2), (5, 3, 2), count, mode=mode)
    assert (count == 1 + np.arange(30)).all()


@pytest.mark.parametrize("barriers", [False, True])
def test_a_kernel_has_more_arguments_than_a_compiler_follows_templates_deep(barriers: bool) -> None:
    names = [f"a{i}" for i in range(1500)]
    given = ", ".join(f"int {name}" for name in names)
    function = kernel(f"KERNEL(int* out, {given}) {{ out[threadIdx.x] = {' + '.join(names)}; }}", barriers)
    out = np.zeros(2, np.int32)
    launch(function, 1, 2, out, *(ctypes.c_int(i) for i in range(1500)))
    assert (out == sum(range(1500))).all()


BLOCK_SUM = """
template <class T> __device__ __forceinline__ T warp_sum(T value) {
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
template <class T> __device__ T block_sum(T value) {
  FUSEGEN_SHARED(T, partial, [32]);
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : T(0));
}
KERNEL(const float* x, float* y, double* z, int n) {
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  const float total = block_sum(sum);
  const double squared = block_sum(double(sum) * sum);
  if (threadIdx.x == 0) y[blockIdx.x] = total, z[blockIdx.x] = squared;
}"""


def test_a_block_sum_has_the_same_bits_in_every_order() -> None:
    x = np.random.default_rng(0).random((50, 777), dtype=np.float32)
    results = []
    for mode in MODES:
        y, z = np.zeros(50, np.float32), np.zeros(50)
        launch(kernel(BLOCK_SUM), 50, 256, x, y, z, ctypes.c_int(777), mode=mode)
        results.append((y, z))
        assert np.allclose(y, x.astype(float).sum(1)) and (y == results[0][0]).all() and (z == results[0][1]).all()


TRANSPOSE = """
KERNEL(const float* x, float* y, int n) {
  FUSEGEN_SHARED(float, tile, [32][33]);
  const int column = blockIdx.x * 32, row = blockIdx.y * 32;
  for (int r = threadIdx.y; r < 32; r += 8) tile[r][threadIdx.x] = x[(row + r) * n + column + threadIdx.x];
  __syncthreads();
  for (int r = threadIdx.y; r < 32; r += 8) y[(column + r) * n + row + threadIdx.x] = tile[threadIdx.x][r];
}"""


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_barrier_is_found(mode: Mode) -> None:
    x, y = np.random.default_rng(0).random((96, 96), dtype=np.float32), np.zeros((96, 96), np.float32)
    launch(kernel(TRANSPOSE), (3, 3, 1), (32, 8, 1), x, y, ctypes.c_int(96), mode=mode)
    assert (y == x.T).all()
    launch(kernel(TRANSPOSE.replace("__syncthreads();", "")), (3, 3, 1), (32, 8, 1), x, y, ctypes.c_int(96), mode=mode)
    assert np.isnan(y).any()  # poison, not the last block's values


def test_a_missing_barrier_between_reading_and_overwriting_is_found_by_shuffling() -> None:
    source = """KERNEL(int* y) {
      FUSEGEN_SHARED(int, cell, );
      for (int turn = 0; turn < 4; ++turn) {
        if (threadIdx.x == turn) cell = turn;
        __syncthreads();
        y[turn * 64 + threadIdx.x] = cell;
        __syncthreads();  // second
      }
    }"""
    for text, correct in ((source, True), (source.replace("__syncthreads();  // second", ""), False)):
        y = np.zeros((4, 64), np.int32)
        launch(kernel(text), 1, 64, y, mode=Mode(shuffle=1))
        assert (y == np.arange(4)[:, None]).all() == correct


def test_shared_memory_is_poisoned_before_every_block() -> None:
    source = """KERNEL(uint32_t* y) {
      FUSEGEN_SHARED(uint32_t, cell, );
      uint32_t* dynamic = reinterpret_cast<uint32_t*>(fusegen_dynamic_shared());
      y[blockIdx.x] = cell & dynamic[4];
      cell = dynamic[4] = 7;
    }"""
    for barriers in (False, True):
        y = np.zeros(20, np.uint32)
        launch(kernel(source, barriers), 20, 1, y, shared_bytes=20, mode=Mode(workers=1))
        assert (y == 0xFFFFFFFF).all()


@pytest.mark.parametrize("width", [32, 8, 2])
@pytest.mark.parametrize("ctype", ["float", "double", "int", "unsigned", "int64_t", "uint64_t"])
def test_shuffles_follow_cuda(ctype: str, width: int) -> None:
    source = f"""KERNEL({ctype}* y) {{
      const int i = threadIdx.x;
      const {ctype} v = {ctype}(i * 3) * {ctype}(1 << 20);
      y[i] = __shfl_sync(~0u, v, 13, {width});
      y[32 + i] = __shfl_up_sync(~0u, v, 3, {width});
      y[64 + i] = __shfl_down_sync(~0u, v, 3, {width});
      y[96 + i] = __shfl_xor_sync(~0u, v, 5, {width});
    }}"""
    names = {"float": "float32", "double": "float64", "int": "int32", "unsigned": "uint32"}
    dtype = np.dtype(names.get(ctype, ctype.removesuffix("_t")))
    y = np.zeros((4, 32), dtype)
    launch(kernel(source), 1, 32, y, mode=Mode(shuffle=5))
    i = np.arange(32)
    first, last = i // width * width, i // width * width + width - 1
    xor = np.where((i ^ 5) <= last, i ^ 5, i)
    sources = [first + 13 % width, np.where(i - 3 < first, i, i - 3), np.where(i + 3 > last, i, i + 3), xor]
    assert (y == (np.stack(sources) * 3 * (1 << 20)).astype(dtype)).all()


def test_votes_and_lanes_that_have_exited_or_stay_away() -> None:
    source = """KERNEL(unsigned* y, float* z) {
      const int i = threadIdx.x;
      if (i >= 40) return;  // the second warp keeps 8 of its 16 lanes
      y[i] = __ballot_sync(~0u, i % 2);
      y[48 + i] = __any_sync(~0u, i == 3) + 2 * __all_sync(~0u, i < 32);
      __syncthreads();
      if (i < 8) z[i] = __shfl_sync(0x000000ffu, float(i), i + 4);
      else if (i < 16) z[i] = __shfl_sync(0x0000ff00u, float(i), 8);
      __syncwarp();
    }"""
    y, z = np.zeros(96, np.uint32), np.zeros(16, np.float32)
    for mode in MODES:
        launch(kernel(source), 1, 48, y, z, mode=mode)
        assert (y[:32] == 0xAAAAAAAA).all() and (y[32:40] == 0xAA).all()
        assert (y[48:80] == 3).all() and (y[80:88] == 0).all()
        assert (z[:4] == [4, 5, 6, 7]).all() and np.isnan(z[4:8]).all() and (z[8:] == 8).all()


def test_atomics_across_workers() -> None:
    source = """KERNEL(int* sum, double* total, unsigned* most) {
      atomicAdd(sum, 1); atomicAdd(total, 0.5); atomicMax(most, blockIdx.x * blockDim.x + threadIdx.x);
    }"""
    cells = np.zeros(1, np.int32), np.zeros(1), np.zeros(1, np.uint32)
    launch(kernel(source, False), 1000, 32, *cells, mode=Mode(workers=4))
    assert [cell[0] for cell in cells] == [32000, 16000.0, 31999]


# ---- what goes wrong ---------------------------------------------------------------------------------------------


def test_divergence_is_an_error_that_names_the_threads() -> None:
    text = failure("KERNEL() {\n  if (threadIdx.x % 2) __syncwarp();\n  else __shfl_sync(~0u, 1, 0);\n}")
    assert "lane 0 in __shfl_sync() at k.cu:4, lane 1 in __syncwarp() at k.cu:3" in text
    text = failure("KERNEL() {\n  if (threadIdx.x != 5) __syncwarp();\n  __syncthreads();\n}")
    assert "deadlock: 0 of 64 threads have exited" in text and "31 at __syncwarp() (k.cu:3)" in text
    assert "the first is thread (5, 0, 0)" in text and "divergent branch" in text
    text = failure("KERNEL() {\n  if (threadIdx.x < 9)\n    __syncthreads();\n  else\n    __syncthreads();\n}")
    assert "thread (0, 0, 0) at k.cu:4, thread (9, 0, 0) at k.cu:6" in text
    assert "which leaves it out" in failure("KERNEL() { __syncwarp(0xff); }")
    assert "width 3" in failure("KERNEL() { __shfl_sync(~0u, 1, 0, 3); }")


def test_exited_threads_do_not_block_a_barrier() -> None:
    y = np.zeros(64, np.int32)
    launch(kernel("KERNEL(int* y) { if (threadIdx.x % 3) return; __syncthreads(); y[threadIdx.x] = 1; }"), 1, 64, y)
    assert y.sum() == 22


@pytest.mark.parametrize("barriers", [False, True])
def test_assertions_raise_and_the_kernel_can_run_again(barriers: bool) -> None:
    source = "KERNEL(int limit) { assert(int(threadIdx.x) < limit); }"
    for mode in MODES:
        text = failure(source, ctypes.c_int(63), barriers=barriers, mode=mode)
        assert "thread (63, 0, 0): assertion `int(threadIdx.x) < limit` failed at k.cu:2" in text
        launch(kernel(source, barriers), 100, 64, ctypes.c_int(64), mode=mode)


@pytest.mark.parametrize("letter", "é€😀")
def test_a_message_is_cut_between_two_letters(letter: str) -> None:
    """Here and on the native call path, for which anything else is no text at all."""
    lengths = set()
    for shift in range(len(letter.encode())):
        text = failure(f'KERNEL() {{ assert(threadIdx.x < 0 && "{"x" * shift}{letter * 1500}"); }}')
        assert "\ufffd" not in text and letter * 400 in text
        lengths.add(text.count(letter))
    assert len(lengths) <= 2


def test_a_barrier_needs_barriers() -> None:
    assert "barriers=False" in failure("KERNEL() { __syncthreads(); }", barriers=False)
    assert "0 bytes" in failure("KERNEL() { *fusegen_dynamic_shared() = 1; }", barriers=False)


def test_launches_that_a_gpu_refuses() -> None:
    for options in ({"block": 1025}, {"block": 0}, {"shared_bytes": 1 << 20}):
        assert "what the GPU takes" in failure("KERNEL() {}", **options)  # type: ignore[arg-type]
    assert "sanitize=True" in failure("KERNEL() {}", mode=Mode(sanitize=True))


def test_compile_errors_quote_the_generated_lines() -> None:
    with pytest.raises(CompileError) as caught:
        kernel("KERNEL(float* y) {\n  const float scale = 2.0f;\n  y[0] = scael;\n}")
    assert "k.cu:4: 'scael' was not declared" in str(caught.value) or "undeclared" in str(caught.value)
    assert ">    4 |   y[0] = scael;" in str(caught.value) and "3 |   const float scale" in str(caught.value)
    with pytest.raises(CompileError, match="FUSEGEN_SHARED"):
        kernel("KERNEL() { __shared__ float tile[32]; }")


VARIABLES = (
    emulator.SANITIZE_VARIABLE, emulator.RACES_VARIABLE, emulator.SHUFFLE_VARIABLE, emulator.WORKERS_VARIABLE,
)  # fmt: skip


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert emulator.mode_from_environment() == Mode()
    monkeypatch.setenv("FUSEGEN_EMULATOR_SHUFFLE", "0")
    monkeypatch.setenv("FUSEGEN_EMULATOR_SANITIZE", "1")
    monkeypatch.setenv("FUSEGEN_EMULATOR_WORKERS", "2")
    assert emulator.mode_from_environment() == Mode(sanitize=True, shuffle=0, workers=2)
    monkeypatch.setenv("FUSEGEN_EMULATOR_RACES", "1")
    assert emulator.mode_from_environment() == Mode(sanitize=True, races=True, shuffle=0, workers=2)
    monkeypatch.setenv("FUSEGEN_EMULATOR_SANITIZE", "0")
    assert emulator.mode_from_environment() == Mode(races=True, shuffle=0, workers=2)
    monkeypatch.setenv("FUSEGEN_EMULATOR_WORKERS", "many")
    with pytest.raises(CompileError, match="FUSEGEN_EMULATOR_WORKERS"):
        emulator.mode_from_environment()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match="unset CXX"):
        emulator.compiler.__wrapped__()


# ---- arithmetic --------------------------------------------------------------------------------------------------


def test_half_and_bfloat16_round_once_as_torch() -> None:
    source = """KERNEL(const float* x, const double* d, uint16_t* to, float* from) {
      const uint32_t i = blockIdx.x * 256 + threadIdx.x, n = gridDim.x * 256;
      to[i] = fusegen_float_to_half_bits(x[i]);
      to[n + i] = fusegen_float_to_bfloat16_bits(x[i]);
      to[2 * n + i] = fusegen_double_to_half_bits(d[i]);
      to[3 * n + i] = fusegen_double_to_bfloat16_bits(d[i]);
      from[i] = fusegen_half_bits_to_float(uint16_t(i));
      from[n + i] = fusegen_bfloat16_bits_to_float(uint16_t(i));
    }"""
    every = np.arange(65536, dtype=np.uint32)
    random = np.random.default_rng(0).integers(0, 2**32, 1 << 18, dtype=np.uint32)
    ties = [every << 16 | 0x8000, every << 16 | 0x7FFF, every << 16 | 0x8001, every << 13 | 0x38001000, every << 13]
    halves = torch.from_numpy(every.astype(np.uint16).view(np.int16)).view(torch.float16).float().numpy()
    x = np.concatenate([random, *ties, halves.view(np.uint32)]).astype(np.uint32).view(np.float32)
    n = x.size
    # A hair above or below a float: rounding twice, through float, would see a tie that is none.
    with np.errstate(invalid="ignore"):
        d = np.nextafter(x.astype(np.float64), np.where(random[np.arange(n) % random.size] % 2, np.inf, -np.inf))
    to, back = np.zeros((4, n), np.uint16), np.zeros((2, n), np.float32)
    launch(kernel(source, False), n // 256, 256, x, d, to, back)
    for row, dtype in enumerate((torch.float16, torch.bfloat16)):
        got = torch.from_numpy(to[row].view(np.int16)).view(dtype)
        assert torch.equal(got.nan_to_num(9), torch.from_numpy(x).to(dtype).nan_to_num(9))
        assert torch.equal(got.isnan(), torch.from_numpy(np.isnan(x)))
        table = torch.from_numpy(every.astype(np.uint16).view(np.int16)).view(dtype).float().numpy()
        assert (np.isnan(table) == np.isnan(back[row, :65536])).all()
        assert (np.nan_to_num(table).view(np.uint32) == np.nan_to_num(back[row, :65536]).view(np.uint32)).all()
    with np.errstate(over="ignore"):
        expected = d.astype(np.float16)  # NumPy rounds double to half once
    assert (np.nan_to_num(expected) == np.nan_to_num(to[2].view(np.float16))).all()
    # One rounding: round to odd in float first, which keeps the sticky bit.
    with np.errstate(over="ignore", invalid="ignore"):
        f = d.astype(np.float32)
        away = (np.abs(f.astype(np.float64)) > np.abs(d)) & np.isfinite(d)
        toward = np.where(away, np.nextafter(f, np.float32(0)), f)
    odd = toward.view(np.uint32) | (toward.astype(np.float64) != d) & np.isfinite(d)
    expected_b = torch.from_numpy(odd.astype(np.uint32).view(np.float32)).bfloat16().nan_to_num(9)
    assert torch.equal(torch.from_numpy(to[3].view(np.int16)).view(torch.bfloat16).nan_to_num(9), expected_b)


@pytest.mark.parametrize(
    ("call", "reference", "low", "high"),
    [
        ("rsqrt", torch.rsqrt, 1e-6, 1e6), ("rcbrt", lambda x: x.abs().pow(-1 / 3) * x.sign(), -50, 50),
        ("erfinv", torch.special.erfinv, -1, 1), ("normcdfinv", torch.special.ndtri, 0, 1),
        ("exp10", lambda x: torch.pow(10.0, x), -30, 30),
        ("log1p", torch.log1p, -1, 10), ("cbrt", lambda x: x.abs().pow(1 / 3) * x.sign(), -9, 9),
    ],
)  # fmt: skip
def test_functions_that_libm_lacks(call: str, reference: Any, low: float, high: float) -> None:
    source = f"""KERNEL(const double* x, double* y, float* z) {{
      const int i = threadIdx.x + 256 * blockIdx.x;
      y[i] = {call}(x[i]); z[i] = {call}f(float(x[i]));
    }}"""
    x = np.linspace(low, high, 2048)
    y, z = np.zeros(2048), np.zeros(2048, np.float32)
    launch(kernel(source, False), 8, 256, x, y, z)
    expected = reference(torch.from_numpy(x))
    torch.testing.assert_close(torch.from_numpy(y), expected, rtol=1e-13, atol=1e-300)
    rounded = torch.from_numpy(x.astype(np.float32)).double()
    torch.testing.assert_close(torch.from_numpy(z), reference(rounded).float(), rtol=1e-6, atol=1e-30)


def test_integers_bits_and_extrema() -> None:
    source = """KERNEL(double* y) {
      int i = 0;
      y[i++] = __umulhi(0xffffffffu, 0xfffffffeu); y[i++] = __mulhi(-5, 1 << 30);
      y[i++] = __mul64hi(-1LL, 5); y[i++] = __umul64hi(1ULL << 63, 6);
      y[i++] = __popc(0xf0f0u); y[i++] = __clz(1); y[i++] = __clz(0); y[i++] = __ffs(8); y[i++] = __ffs(0);
      y[i++] = max(NAN, 2.0f); y[i++] = min(3.0, double(NAN)); y[i++] = min(-1, 2); y[i++] = max(int64_t(7), 9);
      y[i++] = __uint_as_float(0x40490fdbu); y[i++] = __float_as_int(1.0f);
      float s, c; sincosf(0.5f, &s, &c); y[i++] = s * s + c * c;
      y[i++] = erfinvf(1.0f); y[i++] = erfinv(-1.0); y[i++] = erfinv(1.5); y[i++] = __fdividef(1.0f, 4.0f);
    }"""
    y = np.zeros(20)
    launch(kernel(source, False), 1, 1, y)
    expected = [0xFFFFFFFD, -2, -1, 3, 8, 31, 32, 4, 0, 2, 3, -1, 9, np.float32(np.pi), 0x3F800000, 1]
    assert np.allclose(y, np.array([*expected, np.inf, -np.inf, np.nan, 0.25], float), rtol=1e-6, equal_nan=True)


# ---- sanitizers --------------------------------------------------------------------------------------------------

OFF_BY = """KERNEL(float* y, int n) {{
  FUSEGEN_SHARED(float, tile, [64]);
  float* dynamic = reinterpret_cast<float*>(fusegen_dynamic_shared());
  const int i = threadIdx.x + blockIdx.x * blockDim.x;
  float* flat = tile;
  flat[int(threadIdx.x){shared}] = dynamic[threadIdx.x{dynamic}] = float(i);
  __syncthreads();
  tile[threadIdx.x{array}] = float(i);
  __syncthreads();
  const float next = __shfl_down_sync(~0u, tile[63 - threadIdx.x], 1);
  if (i < n{global}) y[i] = next;
  if (i == 0) y[0] = float(n << {shift});
}}"""
# Not this module: it imports torch, which takes seconds under AddressSanitizer.
SANITIZED = """
import ctypes, sys, numpy as np
from tests.support.emulated import Mode, kernel, launch
y = np.zeros(100, np.float32)
races = sys.argv[2] == "True"
function = kernel(sys.argv[1], sanitize=True, races=races)
for shuffle in (None, 3):
    mode = Mode(sanitize=True, races=races, shuffle=shuffle)
    launch(function, 2, 64, y, ctypes.c_int(100), shared_bytes=256, mode=mode)
print("passed", y[1])
"""


@pytest.mark.parametrize(
    ("slot", "report"),
    [
        ("shift=1", "passed 61.0"), ("shift=40", "shift exponent 40"), ("array=+1", "index 64 out of bounds"),
        ("shared=+1", "use-after-poison"), ("shared=-1", "use-after-poison"), ("dynamic=+1", "AddressSanitizer"),
        ("global=+1", "heap-buffer-overflow"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("races", [False, True])
def test_sanitizers_find_accesses_out_of_bounds(slot: str, report: str, races: bool) -> None:
    environment = {**os.environ, **emulator.sanitizer_environment(), "PYTHONPATH": str(ROOT)}
    slots = {"array": "", "shared": "", "dynamic": "", "global": "", "shift": "1"} | dict([slot.split("=")])
    command = [sys.executable, "-c", SANITIZED, OFF_BY.format(**slots), str(races)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert report in done.stdout + done.stderr
    assert (done.returncode == 0) == (slot == "shift=1")
    assert done.returncode == 0 or "k.cu:" in done.stderr  # the generated line


@pytest.mark.skipif(emulator.sanitizer_is_loaded(), reason="this process has the runtime")
def test_sanitized_kernels_need_the_runtime() -> None:
    with pytest.raises(CompileError, match="AddressSanitizer runtime"):
        kernel("KERNEL() {}", sanitize=True)


RACE_OR_NOT = """KERNEL(float* y) {{
  FUSEGEN_SHARED(float, tile, [64]);
  tile[threadIdx.x] = float(threadIdx.x);
  {barrier}
  if (blockIdx.x == 0) y[threadIdx.x] = tile[63 - threadIdx.x];
}}"""


@pytest.mark.parametrize("barrier", ["__syncthreads();", ""])
def test_sanitized_kernels_are_searched_for_races_as_well(barrier: str) -> None:
    environment = {**os.environ, **emulator.sanitizer_environment(), "PYTHONPATH": str(ROOT)}
    code = SANITIZED.replace("ctypes.c_int(100), ", "")
    command = [sys.executable, "-c", code, RACE_OR_NOT.format(barrier=barrier), "True"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ("passed" if barrier else "no __syncthreads() that both take part in") in done.stdout + done.stderr


@pytest.mark.parametrize("races", [False, True])
def test_vectors_at_addresses_that_a_gpu_refuses(races: bool) -> None:
    body = "y[0] = fg::load_vector<4>(y + n)[0];" if not races else "*reinterpret_cast<double*>(y + n) = 1;"
    function = kernel(f'#include "fusegen.cuh"\nKERNEL(float* y, int n) {{ {body} }}', False, races=races)
    y, mode = np.zeros(64, np.float32), Mode(races=races)
    first = -y.ctypes.data // 4 % 4
    launch(function, 1, 1, y, ctypes.c_int(first), mode=mode)
    with pytest.raises(CompileError, match="a multiple of what is accessed at once") as caught:
        launch(function, 1, 1, y, ctypes.c_int(first + 1), mode=mode)
    assert ("8 bytes of global memory, y + " if races else "at no multiple of 16 bytes") in str(caught.value)

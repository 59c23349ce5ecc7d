"""Clusters in the emulator: blocks that share a row, and the mistakes with them that it must find."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusegen.core.errors import CompileError
from fusegen.launch.emulator import build as emulator
from fusegen.launch.emulator.build import Mode
from tests.support.emulated import MODES, ROOT, kernel, launch

pytestmark = pytest.mark.emulator

# Every row is a cluster's: its blocks sum pieces, tell each other, and divide by the total.
NORMALIZE = """#include "fusegen.cuh"
extern "C" __global__ __launch_bounds__(64)
FUSEGEN_CLUSTER(4)
void k(const float* x, float* y, int n) {
  FUSEGEN_SHARED(float, parts, [4]);
  fg::cluster_arrive();  // first
  const int rank = fg::cluster_rank(), row = blockIdx.x / 4 + gridDim.x / 4 * blockIdx.y;
  float part = 0.0f;
  for (int i = rank * 64 + threadIdx.x; i < n; i += 256) part += x[row * n + i];
  part = fg::block_sum<64>(part);
  fg::cluster_wait();  // all blocks have started
  for (int other = 0; other < 4 && threadIdx.x == 0; ++other) fg::store_remote(&parts[rank], other, part);
  fg::cluster_arrive();
  fg::cluster_wait();  // all parts have come
  const float total = parts[0] + parts[1] + parts[2] + parts[3];
  for (int i = rank * 64 + threadIdx.x; i < n; i += 256) y[row * n + i] = x[row * n + i] / total;
}"""


def normalize(source: str, **options: Any) -> tuple[Any, Any]:
    """What the kernel makes of 15 rows, and what is right."""
    x = np.random.default_rng(0).random((15, 777), dtype=np.float32)
    y = np.zeros_like(x)
    sanitize = options["mode"].sanitize
    launch(kernel(source, sanitize=sanitize, cluster=4), (12, 5, 1), 64, x, y, ctypes.c_int(777), **options)
    return y, x / x.sum(1, dtype=np.float64, keepdims=True)


def cluster_failure(source: str, cluster: int = 2, clusters: int = 1, mode: Mode = MODES[0]) -> str:
    """The error of a kernel without arguments, whose body and parameter list are ``source``."""
    text = f'#include "fusegen.cuh"\nextern "C" __global__ FUSEGEN_CLUSTER({cluster}) void k{source}'
    with pytest.raises(CompileError) as caught:
        launch(kernel(text, cluster=cluster), cluster * clusters, 64, mode=mode)
    return str(caught.value)


def test_a_cluster_sums_a_row_with_the_same_bits_in_every_order() -> None:
    results = []
    for mode in MODES:
        y, expected = normalize(NORMALIZE, mode=mode)
        results.append(y)
        assert np.allclose(y, expected, rtol=1e-5, atol=0) and (y == results[0]).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_cluster_barrier_is_found(mode: Mode) -> None:
    first = [line + "\n" for line in NORMALIZE.splitlines() if "first" in line or "started" in line]
    last = "  fg::cluster_arrive();\n  fg::cluster_wait();  // all parts have come\n"
    total = next(line + "\n" for line in NORMALIZE.splitlines() if "total =" in line)
    y, _ = normalize(NORMALIZE.replace(last + total, total + last), mode=mode)
    assert np.isnan(y).any()  # poison, not the parts of another row
    for broken, message in (
        (NORMALIZE.replace(last, ""), "store_remote() at k.cu:13"),  # one block has returned, or returns
        (NORMALIZE.replace(last, last.splitlines()[0]), "returns and has not waited since cluster_arrive() at k.cu:14"),
        (NORMALIZE.replace(first[0], "").replace(first[1], ""), "k.cu:11 before a first cluster barrier: block"),
    ):
        with pytest.raises(CompileError) as caught:
            normalize(broken, mode=mode)
        assert message in str(caught.value) and "let no block return before" in str(caught.value)


@pytest.mark.parametrize("threads", [40, 256])
@pytest.mark.parametrize("mode", MODES)
def test_blocks_of_a_cluster_have_their_own_indices_and_shared_memory(mode: Mode, threads: int) -> None:
    source = """#include "fusegen.cuh"
    struct Message { int block; short thread; char rank; };
    struct Pair { double a; int64_t b; };
    extern "C" __global__ FUSEGEN_CLUSTER(3) void k(int* y) {
      FUSEGEN_SHARED(Message, messages, [256]);
      FUSEGEN_SHARED(int, turn, );
      Pair* pairs = reinterpret_cast<Pair*>(fusegen_dynamic_shared());
      const int block = blockIdx.x + gridDim.x * blockIdx.y, i = threadIdx.x, rank = fg::cluster_rank();
      assert(turn == -1 && messages[i].block == -1 && rank == blockIdx.x % 3);
      fg::cluster_arrive();
      __syncthreads();
      if (i == 0) turn = block;
      __syncthreads();
      fg::cluster_wait();
      assert(turn == block && block == blockIdx.x + gridDim.x * blockIdx.y && i == threadIdx.x);
      fg::store_remote(&messages[i], (rank + 1) % 3, Message{block, short(i), char(rank)});
      fg::store_remote(&pairs[i], (rank + 2) % 3, Pair{double(block), i});
      const int lane_sum = fg::warp_sum(i % 32 < 8 ? block : 0);
      fg::cluster_arrive();
      fg::cluster_wait();
      assert(messages[i].thread == i && messages[i].rank == (rank + 2) % 3 && pairs[i].b == i);
      int* out = y + (block * blockDim.x + i) * 3;
      out[0] += messages[i].block, out[1] += int(pairs[i].a), out[2] += lane_sum;
    }"""
    y = np.zeros((12, threads, 3), np.int32)
    launch(kernel(source, cluster=3), (6, 2, 1), threads, y, shared_bytes=16 * threads, mode=mode)
    block = np.arange(12)[:, None]
    first = block - block % 3
    assert (y[..., 0] == first + (block + 2) % 3).all() and (y[..., 1] == first + (block + 1) % 3).all()
    assert (y[:, :32, 2] == 8 * block).all() if threads == 40 else (y[..., 2] == 8 * block).all()


def test_the_largest_cluster() -> None:
    source = """#include "fusegen.cuh"
    extern "C" __global__ FUSEGEN_CLUSTER(16) void k(int* y) {
      FUSEGEN_SHARED(int, cells, [16]);
      fg::cluster_arrive();
      fg::cluster_wait();
      if (threadIdx.x < 16) fg::store_remote(&cells[fg::cluster_rank()], threadIdx.x, int(blockIdx.x));
      fg::cluster_arrive();
      fg::cluster_wait();
      atomicAdd(y + blockIdx.x, cells[threadIdx.x % 16]);
    }"""
    y = np.zeros(32, np.int32)
    launch(kernel(source, cluster=16), 32, 1024, y)
    assert (y.reshape(2, 16) == [[64 * 120], [64 * 376]]).all()


def test_threads_that_return_count_as_arrived() -> None:
    source = """#include "fusegen.cuh"
    extern "C" __global__ FUSEGEN_CLUSTER(4) void k(int* y) {
      if (blockIdx.x == 1 || threadIdx.x >= 50) return;
      fg::cluster_arrive();
      fg::cluster_wait();
      y[blockIdx.x] = 1;
    }"""
    for mode in MODES:
        y = np.zeros(8, np.int32)
        launch(kernel(source, cluster=4), 8, 64, y, mode=mode)
        assert (y == [1, 0, 1, 1, 1, 1, 1, 1]).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_thread_runs_on_between_the_halves_of_a_barrier(mode: Mode) -> None:
    source = """#include "fusegen.cuh"
    extern "C" __global__ FUSEGEN_CLUSTER(2) void k(int* count, int* own, int* seen) {
      const int i = blockIdx.x * 64 + threadIdx.x;
      own[i] = atomicAdd(count, 1) + 1;
      fg::cluster_arrive();
      seen[i] = *count;
      fg::cluster_wait();
      assert(*count == 128);
    }"""
    count, own, seen = np.zeros(1, np.int32), np.zeros(128, np.int32), np.zeros(128, np.int32)
    launch(kernel(source, cluster=2), 2, 64, count, own, seen, mode=mode)
    assert (seen < 128).any()
    assert (seen > own).any() == (mode.shuffle is not None)  # others have overtaken it


def test_a_kernel_without_clusters_is_a_cluster_of_one() -> None:
    source = """#include "fusegen.cuh"
    KERNEL(int* y) {
      FUSEGEN_SHARED(int, cell, );
      fg::cluster_arrive();
      if (threadIdx.x == 0) fg::store_remote(&cell, fg::cluster_rank(), 7);
      __syncthreads();
      fg::cluster_wait();
      y[blockIdx.x] = cell;
    }"""
    for mode in MODES:
        y = np.zeros(5, np.int32)
        launch(kernel(source), 5, 64, y, mode=mode)
        assert (y == 7).all()


@pytest.mark.parametrize("mode", MODES)
def test_misuse_of_clusters_is_an_error_that_names_the_place(mode: Mode) -> None:
    barrier, cell = "fg::cluster_arrive(); fg::cluster_wait();", "FUSEGEN_SHARED(int, cell, );"
    for body, *messages in (
        ("fg::cluster_arrive();\n fg::cluster_arrive();",
         "cluster_arrive() at k.cu:4: thread (", "has not waited since cluster_arrive() at k.cu:3"),
        ("fg::cluster_arrive();", "returns and has not waited since cluster_arrive() at k.cu:3"),
        ("\n fg::cluster_wait();", "cluster_wait() at k.cu:4: thread (", "has not called cluster_arrive() before"),
        ("if (threadIdx.x % 2) fg::cluster_arrive();\n else fg::cluster_arrive();\n fg::cluster_wait();",
         "lanes of one warp meet in different cluster barriers: cluster_arrive() at k.cu:"),
        ("fg::cluster_arrive();\n if (threadIdx.x % 2) fg::cluster_wait();\n else fg::cluster_wait();",
         "lanes of one warp meet in different cluster barriers: cluster_wait() at k.cu:"),
        ("if (threadIdx.x < 32) fg::cluster_arrive(), fg::cluster_wait();\n __syncthreads();",
         "deadlock: 0 of 128 threads", "64 at cluster_wait() (k.cu:3), the first is thread (0, 0, 0) of the cluster's"),
        (f"{cell} {barrier}\n if (blockIdx.x == 0) return;\n __syncthreads();\n fg::store_remote(&cell, 0, 1);",
         "store_remote() at k.cu:6"),
        (f"{cell} {barrier}\n fg::store_remote(&cell, 2, 1);", "k.cu:4: to block 2 of a cluster of 2"),
        (f"{cell} {barrier} fg::store_remote(&cell + 1, 0, 1);", "not the address of 4 bytes in this block's"),
        (f"int own; {barrier} fg::store_remote(&own, 0, 1);", "not the address of 4 bytes in this block's"),
        ("assert(fg::cluster_rank() == 0);", "block (1, 0, 0): thread ("),
    ):  # fmt: skip
        text = cluster_failure("() { " + body + " }", mode=mode)
        assert all(message in text for message in messages), (body, text)


def test_a_block_returns_before_a_remote_store_into_it_or_right_after() -> None:
    source = """() {{
      FUSEGEN_SHARED(int, cell, );
      fg::cluster_arrive();
      fg::cluster_wait();
      if (blockIdx.x == {target}) {{
        __syncthreads();
        return;
      }}
      {wait}
      fg::store_remote(&cell, {target}, 1);
    }}"""
    # The others' barrier counts the threads that have returned as arrived.
    text = cluster_failure(source.format(target=0, wait="fg::cluster_arrive(); fg::cluster_wait();"))
    assert "block (1, 0, 0): store_remote() at k.cu:12: block 0 of the cluster has returned" in text
    text = cluster_failure(source.format(target=1, wait=""))
    assert "block (1, 0, 0): it returns while store_remote() at k.cu:12 into it may be on its way" in text


def test_every_cluster_needs_a_first_barrier_of_its_own() -> None:
    barrier = "if (blockIdx.x < 2) { fg::cluster_arrive(); fg::cluster_wait(); }"
    store = "FUSEGEN_SHARED(int, cell, ); fg::store_remote(&cell, 1 - fg::cluster_rank(), 1);"
    text = cluster_failure(f"() {{ {barrier} if (blockIdx.x > 1) {{ {store} }} }}", clusters=2, mode=Mode(workers=1))
    assert "block (2, 0, 0): store_remote() at k.cu:3 before a first cluster barrier: block 1" in text


def test_cluster_sizes_and_grids_that_a_gpu_refuses() -> None:
    text = cluster_failure("() {}", cluster=17)
    assert "FUSEGEN_CLUSTER(17)" in text and "a cluster of 1 to 16 blocks" in text
    with pytest.raises(CompileError) as caught:
        launch(kernel(NORMALIZE, cluster=4), 6, 64, *[np.zeros(1, np.float32)] * 2, ctypes.c_int(0))
    assert "grid (6, 1, 1), whose x is no multiple of 4" in str(caught.value) and "round x up to 8" in str(caught.value)


SANITIZED_CLUSTER = f"""
import sys, numpy as np
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from tests.launch.test_emulator_clusters import NORMALIZE, Mode, normalize
for mode in (Mode(sanitize=True), Mode(sanitize=True, shuffle=3, workers=1)):
    y, expected = normalize(NORMALIZE.replace("parts[3]", sys.argv[1]), mode=mode)
    assert np.allclose(y, expected, rtol=1e-5, atol=0)
print("passed")
"""


@pytest.mark.parametrize(
    ("access", "report"), [("parts[3]", "passed"), ("(parts + (rank == 2))[3]", "use-after-poison")]
)
def test_sanitizers_watch_every_block_of_a_cluster(access: str, report: str) -> None:
    environment = {**os.environ, **emulator.sanitizer_environment(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SANITIZED_CLUSTER, access]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert report in done.stdout + done.stderr
    assert done.returncode == 0 or "k.cu:16" in done.stderr  # the generated line

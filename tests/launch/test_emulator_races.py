"""Races in the emulator: which pairs of accesses it reports, which it leaves alone, and what it says."""

from __future__ import annotations

import ctypes
import re
import threading
from typing import Any

import numpy as np
import pytest

from fusegen.core.errors import CompileError
from fusegen.launch.emulator.build import Mode
from tests.support.emulated import kernel, launch

pytestmark = pytest.mark.cpu

MODES = [Mode(races=True), Mode(races=True, shuffle=0), Mode(races=True, shuffle=12345)]
BARRIER = "__syncthreads();"
OF_A_WARP = "and neither __syncwarp() nor __syncthreads() lies between (shuffles and votes order no memory)"
OF_A_BLOCK = "and no __syncthreads() that both take part in lies between"
OF_A_CLUSTER = "and neither a cluster barrier nor a message lies between"
OF_BLOCKS = "and nothing orders the blocks of a launch but atomics between calls of __threadfence()"


def outcome(
    body: str, *arguments: Any, parameters: str = "int* y", grid: int = 1, block: int = 64, barriers: bool = True,
    cluster: int = 1, mode: Mode = MODES[0], early: bool = False, shared_bytes: int = 0,
) -> str:  # fmt: skip
    """What is said of a kernel with this body; nothing where it has no race. ``y`` has 4096 elements."""
    head = f'#include "fusegen.cuh"\nextern "C" __global__ FUSEGEN_CLUSTER({cluster}) void k({parameters}) {{'
    given = arguments or (np.zeros(4096, np.int32),)
    source = f"{head} const int i = threadIdx.x, b = blockIdx.x;\n{body}\n}}"
    function = kernel(source, barriers, races=True, cluster=cluster)
    try:
        launch(function, grid, block, *given, mode=mode, early=early, shared_bytes=shared_bytes)
    except CompileError as error:
        assert ", on the CPU emulator" in str(error), error
        return str(error)
    return ""


def check(body: str, missing: str, **options: Any) -> None:
    """The body has no race. Without its line that says ``// needed``, ``missing`` is reported. In any order."""
    without = "\n".join(line for line in body.splitlines() if "// needed" not in line)
    assert without != body
    for mode in MODES:
        assert outcome(body, mode=mode, **options) == ""
        assert missing in outcome(without, mode=mode, **options), without


# ---- blocks ------------------------------------------------------------------------------------------------------

TILE = "FUSEGEN_SHARED(int, tile, [64]);"


def test_reading_what_another_warp_writes() -> None:
    check(
        f"""{TILE}
        tile[i] = i;
        __syncthreads();  // needed
        y[i] = tile[63 - i];""",
        OF_A_BLOCK,
    )


def test_overwriting_what_others_may_still_read() -> None:
    check(
        f"""{TILE}
        for (int turn = 0; turn < 2; ++turn) {{
          if (i == 40) tile[0] = turn;
          __syncthreads();
          y[turn * 64 + i] = tile[0];
          __syncthreads();  // needed
        }}""",
        "lies between",
    )


@pytest.mark.parametrize("value", ["i", "7"], ids=["different values", "the same value"])
def test_writing_the_same_bytes(value: str) -> None:
    text = outcome(f"{TILE}\ntile[i / 2] = {value};")
    assert "thread (1, 0, 0) writes 4 bytes of shared memory, tile + 0 at k.cu:5; " in text
    assert f"thread (0, 0, 0) writes them at k.cu:5, {OF_A_WARP}" in text
    assert outcome(f"{TILE}\nif (i % 2 == 0) tile[i / 2] = {value};") == ""


@pytest.mark.parametrize("late", [5, 63])
def test_each_of_many_readers_counts(late: int) -> None:
    """All read, and all but one have met the writer since."""
    check(
        f"""{TILE}
        if (i == 0) tile[9] = 1;
        __syncthreads();
        if (i != {late}) y[i] = tile[9];
        __syncthreads();
        if (i == {late}) y[i] = tile[9];
        __syncthreads();  // needed
        if (i == 20) tile[9] = 2;""",
        f"thread ({late}, 0, 0) reads",
    )


def test_shared_memory_of_another_block_is_another_one() -> None:
    assert outcome(f"{TILE} tile[i] = i; y[64 * b + i] = tile[i];", grid=9) == ""


def test_dynamic_shared_memory() -> None:
    body = "int* tile = reinterpret_cast<int*>(fusegen_dynamic_shared()); tile[i] = i; {wait} y[i] = tile[63 - i];"
    assert outcome(body.format(wait=BARRIER), shared_bytes=256) == ""
    assert "4 bytes of dynamic shared memory + 128" in outcome(body.format(wait=""), shared_bytes=256)


def test_a_thread_that_returns_takes_no_part_in_barriers() -> None:
    body = f"""{TILE}
        if (i == 0) tile[3] = 5;
        {{wait}}
        if (i == 0) return;
        __syncthreads();
        if (i == 32) y[0] = tile[3];"""
    assert outcome(body.format(wait=BARRIER)) == ""
    assert "thread (0, 0, 0) writes them" in outcome(body.format(wait=""))


# ---- warps -------------------------------------------------------------------------------------------------------


def test_lanes_of_a_warp() -> None:
    check(
        f"""{TILE}
        tile[i] = i;
        __syncwarp();  // needed
        y[i] = tile[i ^ 1];""",
        OF_A_WARP,
    )


@pytest.mark.parametrize("collective", ["__shfl_xor_sync(~0u, i, 1);", "__ballot_sync(~0u, i);", "__any_sync(~0u, i);"])
def test_shuffles_and_votes_order_no_memory(collective: str) -> None:
    assert OF_A_WARP in outcome(f"{TILE} tile[i] = i; {collective} y[i] = tile[i ^ 1];")


def test_a_mask_orders_its_own_lanes_alone() -> None:
    body = f"{TILE} tile[i] = i; __syncwarp(i % 32 < 16 ? 0xffffu : 0xffff0000u); y[i] = tile[i ^ {{flip}}];"
    assert outcome(body.format(flip=15)) == ""
    assert OF_A_WARP in outcome(body.format(flip=16))


def test_what_a_thread_has_been_told_it_tells_others() -> None:
    """The writer does not come to the barrier, but somebody who has met it."""
    body = f"""{TILE}
        if (i == 1) tile[0] = 1;
        __syncwarp({{lanes}});
        if (i == 1) return;
        __syncthreads();
        if (i == 33) y[33] = tile[0];"""
    assert outcome(body.format(lanes="~0u")) == ""
    assert "thread (1, 0, 0) writes them" in outcome(body.format(lanes="1u << i % 32"))


def test_a_warp_does_not_order_other_warps() -> None:
    """The writer has met the last readers, which are of its own warp."""
    text = outcome(f"""{TILE}
        if (i == 0) tile[0] = 1;
        __syncthreads();
        y[i] = tile[0];
        __syncwarp();
        if (i == 63) tile[0] = 2;""")
    assert OF_A_BLOCK in text


# ---- global memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("barriers", [False, True])
def test_elements_of_global_memory(barriers: bool) -> None:
    def said(body: str) -> str:
        return outcome(body, grid=3, barriers=barriers)

    assert said("y[64 * b + i] += 1;") == ""
    assert said("y[64 * b + i] = y[4000];") == ""  # all read it
    assert said("y[64 * b + i] = y[64 * b + i] + y[64 * b + i];") == ""
    assert OF_BLOCKS in said("y[i] = b;")
    assert "4 bytes of global memory, y + 252 at k.cu:4; thread (62, 0, 0) writes them" in said(
        "y[64 * b + i + (i == 62)] = i;"
    )
    for writer in ("b == 0 && i == 0", "b == 2 && i == 63", "b == 1 && i == 40"):
        assert "4 bytes of global memory, y + 4000" in said(f"y[64 * b + i] = y[1000]; if ({writer}) y[1000] = 1;")
    assert "thread (0, 0, 0) of block (0, 0, 0) reads them" in said(
        "y[1000 + 64 * b + i] = y[64]; if (b == 1) y[64 + i] = 0;"
    )


def test_barriers_order_global_memory_within_a_block() -> None:
    check(
        """y[64 * b + i] = i;
        __syncthreads();  // needed
        y[1000 + 64 * b + i] = y[64 * b + 63 - i];""",
        OF_A_BLOCK,
        grid=5,
    )


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_neighbours_in_a_word(bits: int) -> None:
    """In memory that one thread has accessed in wider pieces before."""
    body = f"""using T = uint{bits}_t;
        T* z = reinterpret_cast<T*>(y);
        auto* v = reinterpret_cast<fg::Vec<int, 4>*>(y);
        if (i == 0) v[0] = v[1];
        {{wait}}
        z[i {{to}}] = 1;"""
    assert outcome(body.format(wait=BARRIER, to="")) == ""
    pair = outcome(body.format(wait=BARRIER, to="/ 2"))
    assert f"writes {bits // 8} bytes of global memory, y + " in pair and "writes them at k.cu:9" in pair
    vector = outcome(body.format(wait="", to=""))
    assert f"thread (1, 0, 0) writes {bits // 8} bytes of global memory, y + {bits // 8} at k.cu:9" in vector
    assert "thread (0, 0, 0) writes them at k.cu:7" in vector


@pytest.mark.parametrize("reader", [0, 7, 63])
def test_a_word_of_two_halves(reader: int) -> None:
    """Elements 6 and 7 make up the word."""
    body = f"uint16_t* z = reinterpret_cast<uint16_t*>(y);\nz[i] = 1;\n{{wait}}\nif (i == {reader}) y[100] = y[3];"
    assert outcome(body.format(wait=BARRIER)) == ""
    text = outcome(body.format(wait=""))
    expected = "writes 2 bytes of global memory, y + 12" if reader == 0 else "reads 4 bytes of global memory, y + 12"
    assert expected in text and "lies between" in text


@pytest.mark.parametrize("wide", [0, 1])
def test_vectors_and_their_elements(wide: int) -> None:
    """One warp writes vectors, the other one numbers."""
    body = f"""auto* v = reinterpret_cast<fg::Vec<int, 4>*>(y);
        if (i / 32 == {wide}) v[i % 32] = v[100];
        WAIT
        if (i / 32 != {wide}) y[64 + i % 32] = i;"""
    assert outcome(body.replace("WAIT", BARRIER)) == ""
    first, second = ("4 bytes of global memory, y + 256", "k.cu:5") if wide == 0 else ("16 bytes of", "k.cu:7")
    text = outcome(body.replace("WAIT", ""))
    assert f"writes {first}" in text and f"writes them at {second}, {OF_A_BLOCK}" in text


@pytest.mark.parametrize("count", [3, 12, 32, 100])
def test_what_memcpy_copies(count: int) -> None:
    body = (
        f"char* z = reinterpret_cast<char*>(y);\nmemcpy(z + {count} * ({{to}}), z + 8000 + {count} * {{of}}, {count});"
    )
    assert outcome(body.format(to="i", of="i"), block=32) == ""
    assert outcome(body.format(to="i", of="0"), block=32) == ""
    pair = outcome(body.format(to="i / 2", of="i"), block=32)
    assert f"thread (1, 0, 0) writes {count} bytes of global memory, y + 0 at k.cu:5; thread (0, 0, 0)" in pair
    chain = outcome(body.format(to="i", of="i").replace("8000", str(count)), block=31)
    assert f"thread (1, 0, 0) writes {count} bytes of global memory, y + {count} at k.cu:5" in chain
    assert "thread (0, 0, 0) reads them at k.cu:5" in chain


# ---- atomics -----------------------------------------------------------------------------------------------------


def test_atomics_go_with_each_other() -> None:
    assert outcome("atomicAdd(y, 1); atomicMax(y, i); atomicExch(y, 3); atomicCAS(y, 1, 2);", grid=4) == ""
    assert outcome("atomicAdd(y, 1); __syncthreads(); y[i + 1] = y[0];") == ""
    for other in ("y[i + 1] = y[0];", "y[0] = 1;"):
        assert "updates 4 bytes of global memory, y + 0 at k.cu:4" in outcome(
            f"if (i == 0) {{ {other} }} else atomicAdd(y, 1);"
        )
        for reader in (1, 63):  # others have updated it, others will
            assert " updates " in outcome(f"atomicAdd(y, 1); if (i == {reader}) {{ {other} }}")


LAST_BLOCK = """FUSEGEN_SHARED(bool, last, );
  y[100 + 64 * b + i] = i;
  __syncthreads();
  if (i == 0) {
    __threadfence();  // release
    last = atomicAdd(y, 1) == int(gridDim.x) - 1;
    __threadfence();  // acquire
  }
  __syncthreads();
  if (!last) return;
  int sum = 0;
  for (int block = 0; block < int(gridDim.x); ++block) sum += y[100 + 64 * block + 63 - i];
  y[2000 + i] = sum;"""


def test_blocks_are_ordered_by_atomics_between_fences() -> None:
    for mode in MODES:
        assert outcome(LAST_BLOCK, grid=7, mode=mode) == ""
        for side in ("release", "acquire"):
            text = outcome(LAST_BLOCK.replace(f"__threadfence();  // {side}", ""), grid=7, mode=mode)
            assert " of block (" in text and OF_BLOCKS in text
        alone = LAST_BLOCK.replace(BARRIER, "", 1)  # what the block's other threads have stored is not behind the fence
        assert OF_BLOCKS in outcome(alone, grid=7, mode=mode)


# ---- clusters ----------------------------------------------------------------------------------------------------

BOTH_HALVES = "fg::cluster_arrive(); fg::cluster_wait();"
CELLS = f"FUSEGEN_SHARED(int, cell, [4]); {BOTH_HALVES} const int rank = fg::cluster_rank();"


def test_remote_stores_are_seen_behind_a_cluster_barrier() -> None:
    check(
        f"""{CELLS}
        if (i == 0) fg::store_remote(&cell[rank], (rank + 1) % 4, b);
        {BOTH_HALVES}  // needed
        y[64 * b + i] = cell[(rank + 3) % 4];
        {BOTH_HALVES}""",
        OF_A_CLUSTER,
        cluster=4, grid=8,
    )  # fmt: skip


def test_what_lies_between_the_halves_of_a_cluster_barrier_is_not_ordered() -> None:
    body = f"""{CELLS}
        {{before}} fg::cluster_arrive();
        {{between}} fg::cluster_wait();
        y[64 * b + i] = cell[2];
        {BOTH_HALVES}"""
    store = "if (i == 0 && rank == 3) fg::store_remote(&cell[2], 1, b);"
    for mode in MODES:
        assert outcome(body.format(before=store, between=""), cluster=4, grid=4, mode=mode) == ""
        assert OF_A_CLUSTER in outcome(body.format(before="", between=store), cluster=4, grid=4, mode=mode)


def test_a_thread_that_arrives_later_brings_along_what_it_has_been_told() -> None:
    """What the first warp does between the halves of the barrier; the second one may know of it when it arrives."""
    body = f"""{CELLS}
        if (i < 32) fg::cluster_arrive();
        if (i < 32 && rank == 0) y[i] = 7;
        {{wait}}
        if (i >= 32) fg::cluster_arrive();
        fg::cluster_wait();
        if (rank == 1) y[64 + i] = y[i % 32];"""
    assert outcome(body.format(wait=BARRIER), cluster=2, grid=2) == ""
    assert OF_A_CLUSTER in outcome(body.format(wait=""), cluster=2, grid=2)


LINK = """FUSEGEN_SHARED(fg::Stored<int>, of_blocks, [2][2]);
  FUSEGEN_SHARED(int, mine, [64]);
  fg::Link<2> link;
  link.ready();
  for (int round = 0; round < 6; ++round) {
    mine[i] = round;
    __syncthreads();  // before sending
    const int turn = link.round & 1;
    if (i < 2) {
      fg::Stored<int> own;
      own.put(mine[63]);
      link.send(&of_blocks[turn][fg::cluster_rank()], i, own);
    }
    link.receive(int(sizeof(of_blocks[0])));
    y[64 * b + i] += of_blocks[turn][0].get() + of_blocks[turn][1].get();
    __syncthreads();  // before the next round
  }"""


def test_messages_between_blocks() -> None:
    for mode in MODES:
        y = np.zeros(4096, np.int32)
        assert outcome(LINK, y, cluster=2, grid=6, mode=mode) == ""
        assert (y[:384] == 30).all()
        for wait in ("before sending", "before the next round"):
            text = outcome(LINK.replace(f"__syncthreads();  // {wait}", ""), cluster=2, grid=6, mode=mode)
            assert "lies between" in text
        # One buffer where two have to take turns.
        text = outcome(LINK.replace("turn = link.round & 1", "turn = 0"), cluster=2, grid=6, mode=mode)
        assert OF_A_CLUSTER in text and "in send (fusegen_rows.cuh:" in text


def test_a_message_is_no_barrier() -> None:
    """A thread that has received knows what senders have done, not what other threads of its block still do."""
    body = """FUSEGEN_SHARED(fg::Stored<int>, cell, [2]);
      FUSEGEN_SHARED(int, mine, [64]);
      fg::Link<2> link;
      link.ready();
      mine[i] = i;
      if (i < 2) {
        fg::Stored<int> own;
        own.put(i);
        link.send(&cell[fg::cluster_rank()], i, own);
      }
      link.receive(int(sizeof cell));
      y[64 * b + i] = mine[OTHER];"""
    for mode in MODES:
        for other in ("i", "0"):  # a sender
            assert outcome(body.replace("OTHER", other), cluster=2, grid=2, mode=mode) == ""
        assert OF_A_BLOCK in outcome(body.replace("OTHER", "63 - i"), cluster=2, grid=2, mode=mode)


def test_messages_that_do_not_come_or_are_not_received() -> None:
    text = outcome(LINK.replace("i < 2", "i < 1"), cluster=2, grid=2)
    assert "deadlock" in text and "at Link::receive() (k.cu:" in text
    one = "link.receive(int(sizeof(of_blocks[0])));"
    never = LINK.replace(one, f"if (round < 5) {one}").replace("y[64 * b + i] +=", "if (round < 5) y[64 * b + i] +=")
    text = outcome(never, cluster=2, grid=2)
    assert "it returns while messages, the last of Link::send() at k.cu:15, may be on their way" in text


# ---- copies, kernels ---------------------------------------------------------------------------------------------

AWAIT = "fg::await_loads();"


def copied(first: str, second: str, reader: str = "i") -> str:
    """Each thread copies 16 bytes, and reads those that `reader` has copied."""
    return outcome(f"""using Four = fg::Raw<int, 4>;
        FUSEGEN_SHARED(Four, tile, [64]);
        fg::load_async(&tile[i], y + 4 * i);
        {first}
        {second}
        y[1000 + i] = tile[{reader}].word[0];""")


def test_copies_arrive_when_they_are_awaited() -> None:
    assert copied(AWAIT, "") == ""
    assert copied(AWAIT, BARRIER, "63 - i") == ""
    own = copied("", "")
    assert "thread (0, 0, 0) copies into them at k.cu:6, in load_async (fusegen_vector.cuh:" in own
    assert "and has not called fg::await_loads() since" in own
    assert "and has not called fg::await_loads() since" in copied(BARRIER, "", "63 - i")
    assert OF_A_BLOCK in copied(AWAIT, "", "63 - i")
    # A barrier before a copy has come says nothing about it.
    assert copied(BARRIER, AWAIT) == ""
    assert "await_loads" in copied(BARRIER, AWAIT, "63 - i")
    assert OF_A_BLOCK in copied(BARRIER, AWAIT, "i < 32 ? 63 - i : i")


def test_copies_read_until_they_are_awaited() -> None:
    assert copied(AWAIT, "y[4 * i] = 0;") == ""
    text = copied("y[4 * i] = 0;", AWAIT)
    assert "copies from 16 bytes of global memory, y + 0 at k.cu:6" in text and "writes them at k.cu:7" in text
    assert "copies from" in copied(f"{BARRIER} y[4 * (63 - i)] = 0;", f"{BARRIER} {AWAIT}")


def test_copies_into_what_others_may_still_read() -> None:
    check(
        """using Four = fg::Raw<int, 4>;
        FUSEGEN_SHARED(Four, tile, [64]);
        for (int turn = 0; turn < 3; ++turn) {
          fg::load_async(&tile[i], y + 4 * i);
          fg::await_loads();
          __syncthreads();
          y[1000 + i] += tile[63 - i].word[0];
          __syncthreads();  // needed
        }""",
        "lies between",
    )


@pytest.mark.parametrize("barriers", [False, True])
def test_a_kernel_that_starts_early_waits_for_the_one_before(barriers: bool) -> None:
    y = np.zeros(4096, np.int32)
    wait, writes, reads = "fg::wait_for_previous_kernel();", "y[i] = 1;", "y[100 + i] = y[i];"

    def said(before: str, body: str, early: bool = True) -> str:
        assert outcome(before, y, barriers=barriers) == ""
        return outcome(body, y, barriers=barriers, early=early)

    assert said(writes, wait + reads) == ""
    assert said(writes, reads, early=False) == ""
    assert said(writes, "y[200 + i] = y[1000 + i];") == ""
    text = said(writes, reads)
    assert "reads 4 bytes of global memory, y + 0 at k.cu:4; the kernel before it, k, writes them as well" in text
    assert "and fg::wait_for_previous_kernel() has not been called" in text
    assert "the kernel before it, k, reads them" in said(reads, writes)
    assert "the kernel before it, k, writes them" in said(writes, writes)
    assert "thread (0, 0, 0) reads" in said(writes, f"if (i) {wait} {reads}")
    # A kernel that does not touch it has ended, and those before it as well.
    assert (
        said(writes, wait + "y[500 + i] = 1;") == "" and outcome(wait + reads, y, barriers=barriers, early=True) == ""
    )


def test_one_thread_waits_for_all_that_it_meets() -> None:
    y = np.zeros(4096, np.int32)
    body = "if (i == 0) fg::wait_for_previous_kernel(); {wait} y[100 + i] = y[i];"
    for wait, races in ((BARRIER, False), ("__syncwarp();", True), ("", True)):
        assert outcome("y[i] = 1;", y) == ""
        assert bool(outcome(body.format(wait=wait), y, early=True)) == races


# ---- what is said ------------------------------------------------------------------------------------------------


def test_a_report_names_kernel_threads_lines_and_memory() -> None:
    y = np.zeros(64, np.float32)
    source = """#include "fusegen.cuh"
    KERNEL(int64_t n,  // (a number), and a comma
           float* const __restrict__ result) {
      const float sum = fg::block_sum<64>(float(threadIdx.x));
      result[threadIdx.x / 2] = sum;
    }"""
    with pytest.raises(CompileError) as caught:
        launch(kernel(source, races=True), (1, 2, 1), 64, ctypes.c_int64(3), y, mode=MODES[0])
    text = str(caught.value)
    assert text.startswith("kernel k, on the CPU emulator")
    writer = r"block \(0, 0, 0\): thread \(\d+, 0, 0\) writes 4 bytes of global memory, result \+ \d+ at k.cu:6; "
    assert re.search(writer + r"thread \(\d+, 0, 0\) writes them at k.cu:6, and neither __syncwarp\(\)", text)
    assert "\n            >    6 |       result[threadIdx.x / 2] = sum;\n" in text
    assert "put the missing barrier or wait between the two" in text


def test_a_report_of_a_header_names_the_line_that_calls_it() -> None:
    text = outcome("FUSEGEN_SHARED(fg::Stored<float>, cell, );\ncell.put(1.0f);")
    assert "at k.cu:5, in put (fusegen_reduce.cuh:" in text and ">    5 | cell.put(1.0f);" in text


def test_without_a_reader_of_tables_a_report_says_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "at k.cu:4" in outcome("y[i / 2] = 1;")
    monkeypatch.setenv("PATH", "")
    assert "at instruction 0x" in outcome("y[i / 2] = 1;")


# ---- what is not in the way --------------------------------------------------------------------------------------


@pytest.mark.parametrize("barriers", [False, True])
def test_local_variables_and_constants_are_nobody_elses(barriers: bool) -> None:
    source = f"""__constant__ const int table[4] = {{1, 2, 3, 4}};
    int local[40];
    for (int k = 0; k < 40; ++k) local[(k * i) % 40] = k;
    int* volatile hidden = local;
    {BARRIER if barriers else ""}
    y[64 * b + i] = hidden[i % 40] + table[i % 4];"""
    assert outcome(source, grid=3, barriers=barriers) == ""


def test_memory_that_is_used_again_for_something_else() -> None:
    """In other pieces, by other threads, as shared and as global memory."""
    y = np.zeros(4096, np.int32)
    for turn in range(5):
        assert outcome("reinterpret_cast<char*>(y)[i] = 1;", y) == ""
        assert outcome("reinterpret_cast<fg::Vec<int, 4>*>(y)[i] = {};", y) == ""
        assert outcome("y[63 - i] = i;", y, barriers=False) == ""
        assert outcome(f"{TILE} tile[63 - i] = {turn}; y[i] = tile[63 - i];", y) == ""
        assert "writes them" in outcome("y[i / 2] = 1;", y)


def test_threads_of_python_have_launches_of_their_own() -> None:
    said: list[str] = []

    def run() -> None:
        y = np.zeros(4096, np.int32)
        for _ in range(30):
            said.append(outcome("y[64 * b + i] += 1;", y, grid=20))
            said.append(outcome("fg::wait_for_previous_kernel(); y[i] += y[i + 64];", y, early=True, block=32))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [""] * 360


def test_more_launches_than_stamps_can_count() -> None:
    source = '#include "fusegen.cuh"\nKERNEL(int* y) { fg::wait_for_previous_kernel(); y[threadIdx.x] += 1; }'
    function, y = kernel(source, False, races=True), np.zeros(4, np.int32)
    pointer = ctypes.c_void_p(y.ctypes.data)
    params = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
    for turn in range(70_000):
        function.launch((1, 1, 1), (4, 1, 1), ctypes.addressof(params), mode=MODES[0], early=turn % 2 > 0)
    assert (y == 70_000).all()


def test_a_block_that_meets_for_long() -> None:
    """Clocks that nobody has any more make room for others."""
    body = f"""{TILE}
      for (int turn = 0; turn < 100000; ++turn) {{
        tile[i] = turn;
        __syncthreads();
        y[i] = tile[63 - i];
        __syncthreads();
      }}
      """
    assert outcome(body) == ""
    assert "lies between" in outcome(body + "tile[i] = 1; y[i] = tile[63 - i];")


def test_modes_that_do_not_fit() -> None:
    with pytest.raises(CompileError, match=r"Mode\(races=True\) and a library built without"):
        launch(kernel("KERNEL() {}"), 1, 1, mode=Mode(races=True))

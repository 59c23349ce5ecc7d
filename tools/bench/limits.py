"""Why a row misses 1.10 of the floor: what was tried and what the counters showed, printed below the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tools.bench.kernels import AIM, NOISE, OURS, Measured

UNKNOWN = "Not looked into."

# (rows by title, passes, why). The first that fits a row counts. Counters are Nsight Compute's.
LIMITS = (
    (r"(?<!bf16 x)\[(7|1|128),|x,y\[16,102400\]|\[16,3,244,244\]", "fwd bwd step",
     "A launch alone takes 4 to 5 us here, and a pass that needs sums over several axes takes two or three; the "
     "floor of these rows is below or near that. The second stage of a split sum is a kernel of its own, so that "
     "results do not depend on timing. Kernels of one program start while the one before drains."),
    (r"group_norm", "fwd bwd",
     "Two blocks of 224 threads share a row, which stays in shared memory. Instructions issue in 71 percent of "
     "cycles, at 56 percent of the warps that fit, and DRAM is at 44 to 46 percent of its peak: every vector looks "
     "up its channel (a division), weight and bias, and blocks wait for a row's statistics. Backward leaves a sum "
     "for each image and channel, which a second kernel of 5 us adds up. The float32 row was not looked into."),
    (r"instance_norm", "fwd bwd",
     "Instructions issue in 85 to 87 percent of cycles, at 87 to 89 percent of the warps that fit; DRAM is at 50 "
     "and 71 percent of its peak. Backward's second kernel takes 4 us."),
    (r"of channels|of pixels", "fwd bwd step",
     "A thread keeps its elements in 80 to 90 registers, so that a third of the warps fit. Softmax: DRAM at 67 and "
     "81 percent of its peak; cross entropy: 49 and 72, instructions issue in 60 to 64 percent of cycles, and the "
     "loss's second kernel takes 3 us. The layer norm's backward reads everything again for the weights' gradients "
     "(1.67 of the floor in bytes), and its tensors of 38 and 10 MB are bound by launches."),
    (r"lerp f32 x\[256,1,1,1\]", "bwd",
     "The pass over memory itself is at 1.02 of the floor (85 percent of DRAM's peak); two small sums over what "
     "its blocks left follow, 4 us each as kernels, of which their early start hides about two."),
    (r"x,y\[16,204800\]", "fwd bwd step",
     "27 MB a tensor: launch, first loads and the last blocks take 5 us whatever the bandwidth is."),
    (r"\[32768,1024\]|\[100000,1000\]", "fwd bwd",
     "Short passes: launch, first loads and the last wave are 4 to 5 us. Room for more blocks on a multiprocessor (by "
     "24, 32 and 40 registers a thread instead of 48) came within one microsecond. Summing the mean and the deviations "
     "separately, where layer_norm forward had issued instructions in 80 percent of all cycles, brought one."),
    (r"layer_norm .*(32768|131072|262144)\]|rms_norm .*(131072|262144)\]|softmax .*262144\]", "fwd",
     "Rows shared by clusters: every row waits for an exchange between blocks. Weight and bias come from L2 for every "
     "row, as many bytes again as the row. Keeping them in shared memory while blocks go on from row to row was slower "
     "(150 to 210 us at 32768), at 768, 1024, 1536 and 2048 threads a multiprocessor. float32 rows of 262144 "
     "need 64 KB of each of 16 blocks."),
    (r"(layer_norm|rms_norm).*(131072|262144)\]", "bwd",
     "Both operands of a row stay in shared memory, twice, and the column sums in registers: one block of 512 threads "
     "on a multiprocessor, in clusters of 8 that fit on 120 of 132 multiprocessors (of 16: on 112). With nobody "
     "else there, an exchange between blocks is not hidden: instructions issue in 54 percent of cycles, memory runs "
     "at 52 percent. Clusters for 128 or 132 multiprocessors take a second wave (454 us). float32 rows of 262144 do "
     "not fit twice, so that loads wait for the row before."),
    (r"(layer_norm|rms_norm|softmax|cross_entropy).*(4097|50257)\]|lerp bf16|\[16383,4097\]", "fwd bwd step",
     "Rows begin anywhere: vectors start at the first aligned address, single elements are left at both ends, and "
     "weights lie across the vectors (two loads and a shift each). A persistent block takes only rows that begin at "
     "the same place between two vectors, so 16 of 21 clusters run at 50257. Vectors with a mask for every element "
     "instead of single elements at the ends: softmax [16384,4097] forward 85 us, layer_norm backward 258, gelu "
     "backward 221."),
    (r"layer_norm|rms_norm", "bwd step",
     "Bound by the number of instructions and the barrier a row: 71 to 76 percent of issue slots at 33 percent "
     "occupancy, 80 registers a thread, of which 32 are column sums. More threads a multiprocessor (1024) spill or "
     "starve (135 us at 4096); fewer (512) wait (116 us). The sums over groups take another 3 to 5 us."),
    (r"softmax .*262144\]", "bwd",
     "Both operands of a row fill the shared memory of 16 blocks, one on a multiprocessor: a third of the warps "
     "that fit, and memory at 70 percent of its peak where shorter rows reach 86."),
    (r"softmax", "fwd",
     "Two exponentials and twelve other instructions an element: instructions issue in 88 percent of cycles, the "
     "unit for exponentials is busy in 70. Subtracting the maximum and scaling in one multiply-add instead of two "
     "would save two of the twelve, and loses the last bits where maxima are large."),
    (r"rms_norm .*32768\]", "fwd",
     "Two blocks share a row: warps wait for memory (17 cycles of every instruction), at 75 percent of DRAM's peak "
     "and 86 of L2's, of which the weight is a third."),
    (r"layer_norm", "fwd",
     "Instructions issue in 70 to 76 percent of cycles and L2 is at 86 to 90 percent of its peak: weight and bias come "
     "from there for every row. DRAM is at 76 to 82."),
    (r"cross_entropy", "bwd",
     "L2 at 86 percent of its peak, DRAM at 79, 40 percent of the warps that fit (64 registers a thread)."),
    (r"cross_entropy", "fwd step",
     "Rows pass by in chunks, one block of 512 threads a row, and a second kernel takes the mean (3 us). Instructions "
     "issue in 73 to 80 percent of cycles: maximum and sum of a chunk are two walks through registers. In clusters, "
     "with the row kept in shared memory, took 368 us forward at 128256."),
    (r"LSTM cell with bias", "fwd bwd step",
     "Backward keeps four column sums a position beside five operands: 185 registers a thread, an eighth of the warps "
     "that fit, DRAM at 76 percent of its peak; the sums over groups are 32 blocks and take 7 us more."),
    (r"gelu_tanh|relu", "fwd bwd step",
     "Backward adds a second kernel for the bias, 3 to 4 us. Planes of 7 x 7 halves are rows of 49 elements: up to 6 "
     "vectors, and single elements at both ends."),
    (r"sum over", "fwd",
     "A second kernel adds up the pieces, 3 to 5 us. Rows of 2 KB: a warp each."),
)  # fmt: skip


# Of rows with matrix products (rows by title, passes, why they miss their target or a peer).
PRODUCTS = (
    (r"softmax|1x4096|7x768", "fwd train bwd step",
     "Bound by launches: each product and each pass is a kernel of 3 to 6 us."),
    (r"4097x4097x4097", "fwd train bwd step",
     "Sizes that do not suit cuBLAS are rounded up in copies (matmul/padding) of 22 to 25 us for 34 MB each: both "
     "factors, and in the backward both results as well, because gradients lie like what they are gradients of: "
     "torch.compile hands out views of rounded results, and copies 35 us less. Torch then copies those that go to "
     ".grad, with a slower kernel (see leaves)."),
    (r"\+ residual", "bwd step",
     "The bias's gradient is a sum over columns, at 0.9 of the copy's bandwidth, and a second kernel of 3 us that adds "
     "up its pieces in order."),
    (r"\+ gelu ", "fwd train",
     "cuBLASLt has only gelu's tanh form. cuDNN's kernel with the exact one, its erf made of multiplications and a "
     "tanh, takes a third more than the plain product at fp16 8192x768x3072 (with its own erf 1.8 of it), and more "
     "than product and kernel where it keeps the argument: it computes 19 operations after the product rather than "
     "beside it."),
    (r"\+ .*8192x4096x14336", "fwd train",
     "cuDNN's products of this size take 1.10 of cuBLAS's, so its kernel with the activation gains nothing over "
     "product and pass; and the plain product drifts by a tenth with the clocks of a GPU at its limit of power."),
    (r"8192x4096x14336", "fwd train bwd step",
     "The plain products are 0.9 and more of the time, and drift by a tenth with the clocks of a GPU at its limit of "
     "power, whoever runs them; one pass between them takes 0.07 of it at the copy's bandwidth."),
    (r"^linear (fp16|bf16) ", "fwd train bwd step",
     "The fastest of eight algorithms that cuBLASLt offers. QuACK's own product is as fast or faster at some sizes "
     "forward, and slower backward."),
    (r"\+ |mlp", "bwd step",
     "One pass reads two tensors and writes one, at 0.85 to 0.9 of the copy's bandwidth, and adds up the bias's "
     "gradient in groups of rows, which a second kernel of 4 us finishes."),
)  # fmt: skip


# (rows by title, passes, the faster peer, why).
BEHIND = (
    (r"softmax \[16384,4096\]", "bwd", "torch.compile",
     "DRAM at 88 percent of its peak, instructions issue in 42 percent of cycles: 3 us beyond that, which are not "
     "understood."),
    (r"lerp f32 three|swiglu|mish", "bwd", "torch.compile",
     "Its forward writes an intermediate (y - x) that its backward reads in the place of two inputs: less in the "
     "backward, more in the forward. fusegen keeps what moves least over both; the step is the one to compare."),
    (r"mse|sum of 2\^28", "fwd", "JAX",
     "A second kernel adds up what the blocks left, in a fixed order: 3 to 5 us."),
    (r".", "step", "JAX",
     "A JAX step is one program that knows what becomes of the result: forward and backward of the pass meet in one "
     "kernel, and less is moved than separate passes must, which is what the floor counts."),
    (r"\[(7|1|128),|\[16,3,244,244\]|x,y\[16,", "fwd bwd step", "",
     "Bound by launches; see above."),
)  # fmt: skip


def behind(measured: Sequence[Measured]) -> str:
    """The part of a section: passes in which a peer is faster by more than the noise, by reason."""
    found: dict[str, list[str]] = {}
    for m in measured:
        if m.is_behind:
            by = m.times[OURS] / m.times[m.best]
            found.setdefault(_why_behind(m), []).append(f"{m.title} {m.which}: {m.best}, by {by:.2f}")
    text = f"\n### Behind a peer by more than {NOISE - 1:.0%}\n" if found else ""
    for reason, rows in found.items():
        text += f"\n{reason}\n\n" + "".join(f"- {row}\n" for row in rows)
    return text


def _why_behind(m: Measured) -> str:
    for pattern, passes, peer, reason in BEHIND:
        if m.which in passes.split() and m.best.startswith(peer) and re.search(pattern, m.title):
            return reason
    reason = _reason(m)
    return "Not understood." if reason == UNKNOWN else "What limits it stands above."


def limits(measured: Sequence[Measured]) -> str:
    """The part of a section: rows above the aim, by reason."""
    found: dict[str, list[str]] = {}
    for m in measured:
        if m.ratio > AIM:
            found.setdefault(_reason(m), []).append(f"{m.title} {m.which} ({m.ratio:.2f})")
    text = f"\n### Above {AIM:.2f} of the floor, and why\n" if found else ""
    for reason, rows in found.items():
        text += f"\n{reason}\n\n" + "".join(f"- {row}\n" for row in rows)
    return text


def product_limits(measured: Sequence[Measured], is_slow: Callable[[Measured], bool]) -> str:
    """The paragraph on rows with products: passes that miss their target, or are behind a peer, by reason.

    Args:
        is_slow: whether a pass misses its target by more than noise.
    """
    found: dict[str, list[str]] = {}
    for m in measured:
        notes = ["above its target"] if is_slow(m) else []
        notes += [f"behind {m.best} by {m.times[OURS] / m.times[m.best]:.2f}"] if m.is_behind else []
        if notes:
            found.setdefault(_reason(m, PRODUCTS), []).append(f"{m.title} {m.which}: {', '.join(notes)}")
    text = "\nAbove their target, or behind a peer, by more than 2 percent, and why.\n" if found else ""
    for reason, rows in found.items():
        text += f"\n{reason}\n\n" + "".join(f"- {row}\n" for row in rows)
    return text


def _reason(m: Measured, among: Sequence[tuple[str, str, str]] = LIMITS) -> str:
    for pattern, passes, reason in among:
        if m.which in passes.split() and re.search(pattern, m.title):
            return reason
    return UNKNOWN

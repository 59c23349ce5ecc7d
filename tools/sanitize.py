"""One launch of every kernel shape and way of access on the GPU, checked against torch: what compute-sanitizer watches.

Run through tools/gpu_check.sh, which starts it under memcheck, racecheck, initcheck and synccheck.

    python tools/sanitize.py [--clusters 8] [--dtypes float32 ...] [--no-half-products]
    FUSEGEN_EMULATOR_RACES=1 python tools/sanitize.py --device cpu   # the same kernels in the emulator: minutes a dtype

Under synccheck any kernel with clusters of more than the portable 8 blocks ends in an illegal access, without an error
of the tool's own, whatever the kernel does; the other tools take 16. Under racecheck the whole may end in the tool's
own "failed to handle a hardware exception" at the first cluster (seen with float32), though that kernel alone is clean
there, and the whole is with --clusters 1, and under memcheck. Under racecheck torch's products of halves fail by
themselves (CUBLAS_STATUS_EXECUTION_FAILED in a program that has nothing else), and initcheck does not see what they
write: it reports ``(x @ w) + 1`` in torch alone, in bfloat16 but not in float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import fusegen as fg
from fusegen.plan import targets


@fg.op
def blend(x: Any, y: Any, w: Any) -> Any:
    """Interpolation, exact at both ends."""
    d = y - x
    return fg.where(fg.abs(w) < 0.5, x + w * d, y - (1 - w) * d)


@fg.op
def mean_square(x: Any, y: Any) -> Any:
    """Mean squared difference."""
    d = x - y
    return fg.mean(d * d)


@fg.op
def rms(x: Any, weight: Any, *, eps: Any = 1e-6) -> Any:
    """Root-mean-square normalization over the last axis."""
    rstd = fg.rsqrt(fg.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * rstd * weight


@fg.op
def channel_norm(x: Any, weight: Any, bias: Any) -> Any:
    """Layer norm over the second axis."""
    mean = fg.mean(x, 1, keepdims=True)
    rstd = fg.rsqrt(fg.var(x, 1, correction=0, keepdims=True) + 1e-2)
    return (x - mean) * rstd * weight + bias


def torch_channel_norm(x: Any, weight: Any, bias: Any) -> Any:
    """The same in torch."""
    normal = torch.nn.functional.layer_norm(x.mT, (x.shape[1],), weight.flatten(), bias.flatten(), 1e-2)
    return normal.mT


@fg.op
def cell(gates: Any, c0: Any) -> Any:
    """The pointwise part of an LSTM cell."""
    i, f, g, o = fg.split(gates, 4)
    c = c0 * fg.sigmoid(f) + fg.sigmoid(i) * fg.tanh(g)
    return fg.tanh(c) * fg.sigmoid(o), c


def torch_cell(gates: Any, c0: Any) -> Any:
    """The same in torch."""
    i, f, g, o = gates.chunk(4, -1)
    c = c0 * f.sigmoid() + i.sigmoid() * g.tanh()
    return c.tanh() * o.sigmoid(), c


@fg.op
def attention(x: Any, w: Any, y: Any) -> Any:
    """Weights of attention: a reduction of rows behind a product."""
    return fg.ops.softmax(x @ w.mT + y, -1)


@fg.op
def gated(x: Any, w: Any, u: Any, d: Any) -> Any:
    """A gated pair of layers."""
    return (fg.ops.silu(x @ w.mT) * (x @ u.mT)) @ d.mT


# Rows that a thread, a warp, a block, and clusters of 2 to 16 blocks share; more rows than persistent blocks.
ROWS = ((5, 7), (300, 100), (900, 256), (2000, 1024), (33, 4097), (700, 8192), (40, 20000), (20, 50257), (9, 262144))

DEVICE = "cuda"
DTYPES = ("float32", "bfloat16", "float16", "float64")

# Rows side by side, which a thread has for itself, and which up to 32 share; in vectors, and not.
CHANNELS = ((4, 500), (21, 500), (21, 33), (150, 500), (600, 49))

# Rows that are read in chunks: even, odd, and shared by blocks.
PASSING = ((7, 32768), (9, 20003), (3, 600000))


# Images of channels, and groups of channels: rows of a warp, a block and a cluster, whose blocks share channels.
IMAGES = (((5, 24, 8, 8), 3), ((3, 6, 7, 7), 2), ((2, 8, 33, 40), 2), ((2, 20, 56, 56), 2), ((1, 3, 4097), 1))

# Rows, contracted, columns of a matrix product: what vectors fit, and what they do not.
PRODUCTS = ((64, 96, 128), (33, 17, 41), (300, 64, 1000), (0, 8, 8))


# Rows whose costly intermediates are kept between traversals: a thread's, a block's, unaligned, staged, in chunks.
COSTLY = ((300, 16), (40, 256), (5, 197), (9, 4097), (7, 1152), (3, 20003))


def costly(x: Any, w: Any) -> Any:
    """A norm of what costs much, in fusegen's functions."""
    y = fg.sigmoid(x) * fg.tanh(x) / (fg.abs(w) + 1.0) + fg.cos(x)
    return (y - fg.mean(y, -1, keepdims=True)) / fg.sqrt(fg.var(y, -1, correction=0, keepdims=True) + 0.1)


def torch_costly(x: Any, w: Any) -> Any:
    """The same in torch."""
    y = x.sigmoid() * x.tanh() / (w.abs() + 1.0) + x.cos()
    return (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 0.1).sqrt()


def check_costly(dtype: torch.dtype) -> int:
    """Kept intermediates, rows side by side among them; many results side by side, which take vectors; short rows."""
    for m, n in COSTLY:
        check(fg.op(costly, name="costly"), torch_costly, *(_tensor(s, dtype, "dense") for s in ((m, n), (n,))))
    side_by_side = fg.op(lambda x: costly(x.mT, 1.0), name="costly_side_by_side")
    check(side_by_side, lambda x: torch_costly(x.mT, x.new_ones(())), _tensor((5, 21, 500), dtype, "dense"))
    for shape in ((3, 2**17), (70, 2**16), (3, 2**16 + 1)):
        check(lambda x: fg.ops.sum(x * x, 0), lambda x: (x * x).sum(0), _tensor(shape, dtype, "dense"))
    for shape in ((70000, 16), (70000, 33), (3000, 128)):
        check(lambda x: fg.ops.sum(x * x, -1), lambda x: (x * x).sum(-1), _tensor(shape, dtype, "dense"))
    return len(COSTLY) + 7


# Rows of a table, its columns, and how many places there are: in vectors, and not; more places than rows, and none.
SCANS = ((33, 20), (5, 3000), (3, 40000), (700, 3))
# Threads own lines, parts of lines, or updates are sorted.
PLACES = ((300, 256, 700), (7, 33, 70), (50, 1030, 9), (5, 64, 0), (40, 64, 8000), (20000, 5, 700))


def embedded(i: Any, t: Any, y: Any) -> Any:
    """Rows at places, element by element."""
    return torch.tanh(t[i] * y)


def normed(i: Any, t: Any, y: Any) -> Any:
    """Rows at places, each with its own mean square."""
    x = t[i] + y
    return x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()


def along(i: Any, t: Any, y: Any) -> Any:
    """A softmax over places."""
    return (t[i] * y).softmax(0)


def added(i: Any, t: Any, y: Any) -> Any:
    """Rows added at places."""
    return torch.index_add(t, 0, i, y * y)


def combined(i: Any, t: Any, y: Any) -> Any:
    """The larger of a table's rows and of those that are put at places, and one row in place of others."""
    return t.scatter_reduce(0, i[:, None].expand(-1, t.shape[1]), y, "amax") * 0.5, t.exp().index_fill(0, i, 0.5)


def check_places(dtype: torch.dtype) -> int:
    """Rows that are read, and added, at places that a tensor tells."""
    for rows, columns, count in PLACES:
        table, other = (_tensor(shape, dtype, "dense") for shape in ((rows, columns), (count, columns)))
        places = torch.randint(0, rows, (count,), device=DEVICE)
        for function in (embedded, normed, along, added, combined):
            ours = fg.op(function)
            check(
                lambda t, y, op=ours, i=places: op(i, t, y),
                lambda t, y, torchs=function, i=places: torchs(i, t, y), table, other,
            )  # fmt: skip
    out_of_range = torch.tensor([5, -9, 2**40, -1], device=DEVICE)
    try:
        fg.op(embedded)(out_of_range, _tensor((5, 64), dtype, "dense"), _tensor((4, 64), dtype, "dense"))
        fg.check_indices()
    except fg.PlaceError:
        return 5 * len(PLACES) + 1
    raise AssertionError("no error for places out of range")


def running(x: Any) -> Any:
    """Sums and products along the last axis, and sums of what is scaled, from the end of the first one."""
    return torch.cumsum(x, -1), torch.cumprod(x / 2, -1), torch.cumsum((x * 0.5).flip(0), 0).flip(0)


def largest(x: Any) -> Any:
    """The largest so far, and the logarithm of what exponentials add up to."""
    return torch.cummax(x, -1)[0], torch.logcumsumexp(x, 0)


def smallest(x: Any) -> Any:
    """The smallest so far, and where it stands."""
    (rows, in_rows), (columns, in_columns) = torch.cummin(x, -1), torch.cummin(x, 0)
    return rows + in_rows.to(x.dtype), columns + in_columns.to(x.dtype)


def around(x: Any, y: Any) -> Any:
    """Elements in front of scans and behind them, and elements next to one another in their gradients."""
    return torch.cumsum(x * y, -1) * y + x, torch.cumprod(1 + x / 8, 0) * y, torch.logcumsumexp(x, -1) - x


def check_scans(dtype: torch.dtype) -> int:
    """Rows of lanes, of a block and of parts, and columns."""
    for shape in SCANS:
        x, y = (_tensor(shape, dtype, "dense") / 8 for _ in range(2))
        for function in (running, largest, smallest):
            check(fg.op(function), function, x)
        check(fg.op(around), around, x, y)
    return 4 * len(SCANS)


def check_lists(dtype: torch.dtype) -> int:
    """Many tensors in one launch, by a table of their addresses."""
    op = fg.op(lambda x, y: fg.sin(x) * y + x, name="bent")
    total = fg.op(lambda x: fg.sum(x * x), name="squares")
    xs = [_tensor(shape, dtype, "dense") for shape in ((3, 5), (1,), (4096,), (), (1001,))]
    found, sums = fg.foreach(op)(xs, xs), fg.foreach(total)(xs)
    for x, mine, square in zip(xs, found, sums, strict=True):
        wide, eps = x.double(), 20 * torch.finfo(dtype).eps
        torch.testing.assert_close(mine.double(), wide.sin() * wide + wide, rtol=eps, atol=eps)
        torch.testing.assert_close(square.double(), (wide * wide).sum(), rtol=eps, atol=eps)
    return 2


def gates(x: Any, w: Any) -> Any:
    """Blocks of a product, whose gradients are written side by side."""
    a, b = torch.nn.functional.linear(x, w).chunk(2, -1)
    return torch.sigmoid(a) * torch.tanh(b) + a


def check_products(dtype: torch.dtype) -> int:
    """What comes before and behind matrix products, and the passes of their backward."""
    functional = torch.nn.functional
    for m, k, n in PRODUCTS:
        x, w, u = (_tensor(shape, dtype, "dense") for shape in ((m, k), (n, k), (n, k)))
        b, d, y = (_tensor(shape, dtype, "dense") for shape in ((n,), (k, n), (m, n)))
        w, u, d = w / 8, u / 8, d / 8
        check(
            lambda x, w, b: fg.ops.linear_gelu(x, w, b, approximate="tanh"),
            lambda x, w, b: functional.gelu(functional.linear(x, w, b), approximate="tanh"), x, w, b,
        )  # fmt: skip
        check(attention, lambda x, w, y: torch.softmax(x @ w.mT + y, -1), x, w, y)
        check(
            gated, lambda x, w, u, d: (functional.silu(x @ w.mT) * (x @ u.mT)) @ d.mT, x, w, u, d,
        )  # fmt: skip
        if n % 2 == 0:
            check(fg.op(gates), gates, x, w)
        # A chunked loss is computed with its gradient.
        targets = torch.randint(0, n, (m,), device=DEVICE)
        check(
            lambda x, w, t=targets: fg.ops.linear_cross_entropy(x, w, t, reduction="sum"),
            lambda x, w, t=targets: functional.cross_entropy(x @ w.mT, t, reduction="sum"), x, w,
        )  # fmt: skip
    return 4 * len(PRODUCTS)


def check_rows(dtype: torch.dtype) -> int:
    """Norms and softmax over rows of every size, and sums over several sets of axes in one pass."""
    for m, n in ROWS:
        x, w, b = (_tensor(shape, dtype, "dense") for shape in ((m, n), (n,), (n,)))
        check(
            lambda x, w, b: fg.ops.layer_norm(x, (x.shape[-1],), w, b),
            lambda x, w, b: torch.nn.functional.layer_norm(x, (x.shape[-1],), w, b), x, w, b,
        )  # fmt: skip
        check(lambda x: fg.ops.softmax(x, -1), lambda x: torch.softmax(x, -1), x)
    x, y, w = (_tensor(shape, dtype, "dense") for shape in ((16, 1, 1, 1), (16, 3, 40, 52), (3, 1, 52)))
    check(blend, torch.lerp, x, y, w)
    for channels, pixels in CHANNELS:
        x, t = _tensor((7, channels, pixels), dtype, "dense"), torch.randint(0, channels, (7, pixels), device=DEVICE)
        check(lambda x: fg.ops.softmax(x, 1), lambda x: torch.softmax(x, 1), x)
        check(lambda x, t=t: fg.ops.cross_entropy(x, t), lambda x, t=t: torch.nn.functional.cross_entropy(x, t), x)
        w, b = (_tensor((channels, 1), dtype, "dense") for _ in range(2))
        check(channel_norm, torch_channel_norm, x, w, b)
    for m, n in PASSING:
        x, targets = _tensor((m, n), dtype, "dense"), torch.randint(0, n, (m,), device=DEVICE)
        check(lambda x: fg.ops.logsumexp(x, -1), lambda x: torch.logsumexp(x, -1), x)
        check(
            lambda x, t=targets: fg.ops.cross_entropy(x, t),
            lambda x, t=targets: torch.nn.functional.cross_entropy(x, t), x,
        )  # fmt: skip
    for shape, groups in IMAGES:
        x, w, b = (_tensor(size, dtype, "dense") for size in (shape, shape[1:2], shape[1:2]))
        check(
            lambda x, w, b, groups=groups: fg.ops.group_norm(x, groups, w, b),
            lambda x, w, b, groups=groups: torch.nn.functional.group_norm(x, groups, w, b), x, w, b,
        )  # fmt: skip
        check(
            lambda x, w, b: fg.ops.instance_norm(x, None, None, w, b),
            lambda x, w, b: torch.nn.functional.instance_norm(x, None, None, w, b), x, w, b,
        )  # fmt: skip
    for m in (3, 24, 64, 1000, 1030):
        # Torch's own sum over columns reads memory that it has not written, which initcheck reports.
        check(lambda x: fg.ops.sum(x, 0), lambda x: x.new_ones(3000) @ x, _tensor((3000, m), dtype, "dense"))
    return 2 * len(ROWS) + 1 + 3 * len(CHANNELS) + 2 * len(PASSING) + 2 * len(IMAGES) + 5


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> torch.Tensor:
    if layout == "turned":
        return torch.randn(shape[::-1], device=DEVICE).to(dtype).permute(*range(len(shape))[::-1])
    if layout == "sliced":
        return torch.randn((*shape[:-1], 2 * shape[-1]), device=DEVICE).to(dtype)[..., ::2]
    if layout == "unaligned":
        return torch.randn(torch.Size(shape).numel() + 1, device=DEVICE).to(dtype)[1:].view(shape)
    return torch.randn(shape, device=DEVICE).to(dtype)


def check(ours: Callable[..., Any], theirs: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Value, gradients and tangents of both on the same inputs: they differ by no more than the dtype explains."""
    mine = [t.detach().requires_grad_() for t in inputs]
    reference = [t.detach().double().requires_grad_() for t in inputs]
    a, b = (r if isinstance(r, tuple) else (r,) for r in (ours(*mine), theirs(*reference)))
    cotangents = [torch.randn_like(r) for r in a]
    found = [*a, *torch.autograd.grad(a, mine, cotangents)]
    wanted = [*b, *torch.autograd.grad(b, reference, [c.double() for c in cotangents])]
    # Forward mode has kernels of its own, which compute the values once more beside the tangents.
    tangents = tuple(torch.randn_like(t) for t in inputs)
    for function, given, along, into in (
        (ours, inputs, tangents, found),
        (theirs, [t.double() for t in inputs], tuple(t.double() for t in tangents), wanted),
    ):
        for results in torch.func.jvp(function, tuple(given), along):
            into += results if isinstance(results, tuple) else (results,)
    tolerance = 20 * torch.finfo(inputs[0].dtype).eps
    for f, w in zip(found, wanted, strict=True):
        if w.numel():
            scale = float(w.detach().abs().max()) + 1
            error = float((f.detach().double() - w.detach()).abs().max()) / scale
            assert error < tolerance * max(1, inputs[0].numel() ** 0.5 / 16), (ours, error)


def smaller_clusters(most: int) -> None:
    """Let no cluster have more blocks."""
    real = targets.chip_of

    def chip_of(arch: str) -> Any:
        chip = real(arch)
        return replace(chip, cluster=min(chip.cluster, most))

    targets.chip_of = chip_of


def main() -> None:
    """Every shape, layout and dtype once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=16, help="blocks of the largest clusters")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="all of them, if left out")
    parser.add_argument("--no-half-products", action="store_true", help="none of torch's products of halves")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: the emulator")
    options = parser.parse_args()
    global DEVICE
    DEVICE = options.device
    torch.manual_seed(0)
    smaller_clusters(options.clusters)
    count = 0
    for dtype in (getattr(torch, name) for name in options.dtypes):
        for layout in ("dense", "turned", "sliced", "unaligned"):
            for x, y, w in (
                ((64, 96), (64, 96), (1,)), ((33, 37), (33, 37), (37,)), ((5, 1, 7), (5, 67, 7), (67, 1)),
                ((3, 40, 50), (3, 40, 50), (40, 1)), ((1000,), (1000,), ()), ((70000, 3), (70000, 3), (70000, 1)),
                ((0, 4), (0, 4), (4,)),
            ):  # fmt: skip
                inputs = [_tensor(x, dtype, layout), _tensor(y, dtype, "dense"), _tensor(w, dtype, "dense")]
                check(blend, torch.lerp, *inputs)
                count += 1
        check(mean_square, lambda a, b: ((a - b) ** 2).mean(), *(_tensor((301, 77), dtype, "dense") for _ in range(2)))
        check(
            rms, lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w,
            _tensor((33, 1000), dtype, "dense"), _tensor((1000,), dtype, "dense"),
        )  # fmt: skip
        count += check_rows(dtype) + check_costly(dtype) + check_places(dtype)
        count += check_scans(dtype) + check_lists(dtype)
        if dtype.itemsize > 2 or not options.no_half_products:
            count += check_products(dtype)
        check(cell, torch_cell, _tensor((17, 128), dtype, "dense"), _tensor((17, 32), dtype, "dense"))
        count += 3
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    print(f"{count} checks passed")


if __name__ == "__main__":
    main()

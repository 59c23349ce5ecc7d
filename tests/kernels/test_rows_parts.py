"""Sums over rows and along them, begun while a row is on chip: the gradients of channels' weights beside a norm's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fusegen as fg
from fusegen.fuse import rows_schedule
from fusegen.fuse.row_kernel import SHARE_AXIS
from fusegen.inspect.passes import passes
from tests.support.oracles import check_no_worse, draw, leaves
from tests.support.rows import HOPPER, agree

pytestmark = pytest.mark.emulator

Function = Callable[..., torch.Tensor]
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16


def backward(op: Any, *inputs: torch.Tensor, **options: Any) -> list[Any]:
    """The kernels of the backward."""
    _, found = passes(op, inputs, options, "backward")
    return list(replace(found, chip=HOPPER).kernels)


def once(kernels: list[Any], name: str = "d_out") -> bool:
    """Whether one kernel alone reads an operand."""
    return sum(name in {o.name for o in k.kernel.operands} for k in kernels) == 1


def group_norm(groups: int) -> tuple[Function, Function]:
    return (
        lambda x, w=None, b=None: fg.ops.group_norm(x, groups, w, b),
        lambda x, w=None, b=None: F.group_norm(x, groups, w, b),
    )


def weighted(shape: tuple[int, ...], dtype: torch.dtype, bias: bool = True) -> list[torch.Tensor]:
    """An input, and weights of its channels."""
    return leaves(shape, *[(shape[1],)] * (2 if bias else 1), dtype=dtype)


GROUPED = {
    "odd pixels": ((3, 6, 7, 7), 2, F32, True),  # one element a thread
    "a block a row": ((2, 8, 16, 16), 1, BF16, True),
    "rows side by side": ((5, 24, 8, 8), 3, F64, True),
    "a thread a row": ((3, 4, 4, 8), 4, BF16, True),
    "channels no power of two": ((2, 20, 56, 56), 2, BF16, True),
    "one image": ((1, 4, 8, 8), 2, F32, True),
    "no bias": ((2, 6, 5, 8), 2, F32, False),
    "all channels": ((2, 3, 4097), 1, F32, True),
    "a channel a group": ((2, 3, 41), 3, F64, True),
    "too few pixels": ((3, 6, 2, 3), 2, F32, True),
    "one pixel": ((3, 6, 1, 1), 2, F32, True),
}


@pytest.mark.parametrize(("shape", "groups", "dtype", "bias"), GROUPED.values(), ids=GROUPED)
def test_group_norm(shape: tuple[int, ...], groups: int, dtype: torch.dtype, bias: bool) -> None:
    agree(*group_norm(groups), *weighted(shape, dtype, bias))


INSTANCES = {
    "odd": ((3, 5, 7, 7), F32, True),
    "long": ((2, 3, 4097), BF16, True),
    "no bias": ((2, 3, 8, 8), F64, False),
    "too few pixels": ((2, 4, 5, 5), F32, True),
}


@pytest.mark.parametrize(("shape", "dtype", "bias"), INSTANCES.values(), ids=INSTANCES)
def test_instance_norm(shape: tuple[int, ...], dtype: torch.dtype, bias: bool) -> None:
    def ours(x: torch.Tensor, w: Any, b: Any = None) -> torch.Tensor:
        return fg.ops.instance_norm(x, None, None, w, b)

    agree(ours, lambda x, w, b=None: F.instance_norm(x, None, None, w, b), *weighted(shape, dtype, bias))


def test_channels_last() -> None:
    """There a channel's elements are no run."""
    x, w, b = weighted((2, 16, 6, 8), F32)
    x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    agree(*group_norm(2), x, w, b)
    agree(lambda x, w: fg.ops.instance_norm(x, None, None, w), lambda x, w: F.instance_norm(x, None, None, w), x, w)
    kernels = backward(fg.ops.group_norm, x, num_groups=2, weight=w, bias=b)
    assert not any(getattr(k.schedule, "threads_per_segment", 0) for k in kernels)


def test_vectors_across_the_ends_of_runs() -> None:
    """Without a weight, a group's channels are walked as one: vectors of four lie across channels of 49 pixels."""
    x, b = leaves((3, 8, 7, 7), (8,), dtype=F32)
    theirs = lambda x, b: F.group_norm(x, 2) + b[:, None, None]  # noqa: E731 - torch's backward has no bias alone
    agree(lambda x, b: fg.ops.group_norm(x, 2, None, b), theirs, x, b)


def test_gradients_are_no_less_accurate_than_torchs() -> None:
    """Float32 and bfloat16, with inputs far from zero."""
    for dtype in (F32, BF16):
        x = (3 + draw(3, 4, 40, 40)).to(dtype).detach().requires_grad_()
        check_no_worse(*group_norm(2), [x, draw(4, seed=1, dtype=dtype), draw(4, seed=2, dtype=dtype)])


# -- what the kernels are ---------------------------------------------------------------------------------------------


def test_a_rows_own_sums_are_not_taken_twice() -> None:
    """The gradients of instance_norm's weights are what its input's gradient needs anyway."""
    x, w, b = (torch.empty(shape) for shape in ((2, 256, 56, 56), (256,), (256,)))
    rows, columns = kernels = backward(fg.ops.instance_norm, x, None, None, w, b)
    assert once(kernels) and len(rows.kernel.reduces) == 2
    assert [o.name for o in rows.kernel.begun] == ["sum_d_weight_by_row", "sum_d_bias_by_row"]
    assert "leaves sum_d_weight_by_row" in rows.rendered.text and columns.kernel.over == ("d0",)


def test_segments_of_a_group() -> None:
    x, w, b = (torch.empty(shape) for shape in ((2, 256, 56, 56), (256,), (256,)))
    rows, columns = kernels = backward(fg.ops.group_norm, x, num_groups=32, weight=w, bias=b)
    assert once(kernels) and (rows.schedule.threads_per_segment, rows.launch.segment) == (32, 3136)
    assert "shares" in columns.kernel.over
    assert "a number for each run over D3, D4" in rows.rendered.text
    rows, _ = backward(fg.ops.group_norm, x[:, :16], num_groups=1, weight=w[:16], bias=b[:16])
    assert rows.schedule.threads_per_segment
    assert not rows.kernel.columns, "all channels: no sums for each position in a row"


def test_short_runs_are_left_to_another_kernel() -> None:
    """A row would leave as much as there is to read."""
    x, w = torch.empty(64, 8, 4, 4), torch.empty(8)
    kernels = backward(fg.ops.group_norm, x, num_groups=2, weight=w)
    assert not once(kernels) and not any(k.kernel.partials for k in kernels)
    assert not once(backward(fg.ops.instance_norm, x, None, None, w))
    x = torch.empty(64, 8, 4, 8)
    assert once(backward(fg.ops.group_norm, x, num_groups=2, weight=w))
    assert once(backward(fg.ops.instance_norm, x, None, None, w))


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 20, 24), (7, 5, 16)])
def test_segments_shorter_than_a_vector(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Of few images, rows in all of them: how many threads add one up was asked before it was refused."""

    def both(x: Any) -> Any:
        gate = x.sigmoid()
        return gate - gate.mean((0, 2), keepdim=True), (x * gate).sum((0, 1))

    x = draw(*shape, dtype=dtype).detach()
    expected = both(x.double())
    for mine, theirs in zip(fg.op(both)(x), expected, strict=True):
        tolerance = 1e-2 if dtype is torch.float16 else 1e-5
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("shape", "shares"), [((2, 6, 16, 24), 1), ((2, 6, 16, 20), 2), ((2, 4, 32, 40), 5)], ids=["whole", "two", "more"]
)
def test_blocks_share_segments(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], shares: int) -> None:
    """Where blocks begin within a segment, each leaves what it has of it; places that none has are zeros."""
    monkeypatch.setattr(rows_schedule, "ONE_BLOCK_THREADS", 32)
    monkeypatch.setattr(rows_schedule, "CLUSTER_BLOCK_THREADS", 32)
    x, w, b = weighted(shape, F32)
    rows, *_ = backward(fg.ops.group_norm, x, num_groups=2, weight=w, bias=b)
    assert rows.schedule.cluster > 1 and rows.launch.partial_sizes[SHARE_AXIS] == shares
    agree(*group_norm(2), x, w, b)


def test_the_same_bits_every_time() -> None:
    x, w, b = weighted((3, 6, 40, 40), F32)
    cotangent = torch.randn(x.shape)

    def run() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(fg.ops.group_norm(x, 2, w, b), (x, w, b), cotangent)

    first = run()
    assert all(torch.equal(a, b) for a, b in zip(run(), first, strict=True))


# -- other ops: it is about axes --------------------------------------------------------------------------------------


def centered(x: Any, over: tuple[int, ...]) -> Any:
    return x - fg.mean(x, over, keepdims=True)


def test_a_norm_over_the_last_two_axes() -> None:
    def ours(x, w, b):  # type: ignore[no-untyped-def]
        c = centered(x, (2, 3))
        return c * fg.rsqrt(fg.mean(c * c, (2, 3), keepdims=True) + 0.1) * w + b

    def theirs(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = x - x.mean((2, 3), keepdim=True)
        return c * torch.rsqrt((c * c).mean((2, 3), keepdim=True) + 0.1) * w + b

    op, inputs = fg.op(ours), leaves((3, 5, 6, 8), (5, 1, 1), (5, 1, 1))
    agree(op, theirs, *inputs)
    assert once(backward(op, *inputs))


def test_a_bias_before_a_norm() -> None:
    """Its gradient's sum is taken on the row's last walk, which then comes to no further one."""

    def ours(x, b):  # type: ignore[no-untyped-def]
        y = centered(fg.tanh(x + b), (2,))
        return y * y

    def theirs(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x + b)
        return (y - y.mean(2, keepdim=True)) ** 2

    op, inputs = fg.op(ours), leaves((3, 5, 70), (5, 1))
    agree(op, theirs, *inputs)
    rows, *_ = kernels = backward(op, *inputs)
    assert once(kernels) and rows.rendered.text.count("fg::tanh") <= 2 and rows.kernel.final_stage


def test_weights_of_each_image_and_channel() -> None:
    """A sum that goes on over no rows is a segment's alone; one over a row's channels and images a row's."""

    def ours(x, w, s):  # type: ignore[no-untyped-def]
        c = centered(x, (2, 3))
        return c * fg.rsqrt(fg.mean(c * c, (2, 3), keepdims=True) + 0.1) * w * s

    def theirs(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        c = x - x.mean((2, 3), keepdim=True)
        return c * torch.rsqrt((c * c).mean((2, 3), keepdim=True) + 0.1) * w * s

    op, inputs = fg.op(ours), leaves((3, 2, 4, 48), (3, 2, 4, 1), (2, 1, 1))
    agree(op, theirs, *inputs)
    rows, *_ = kernels = backward(op, *inputs)
    assert once(kernels) and rows.kernel.segments and len(rows.kernel.begun) == 2


def test_names_that_the_kernel_takes() -> None:
    def ours(segment, share):  # type: ignore[no-untyped-def]
        until = centered(segment, (1, 2))
        return until * until * share

    def theirs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x - x.mean((1, 2), keepdim=True)) ** 2 * w

    agree(fg.op(ours), theirs, *leaves((3, 2, 40), (2, 1)))


def test_two_elements_are_picked_from_one_tensor() -> None:
    # The offset gets a line of its own where names are long, and a variable for each of them.
    long = "values_of_a_tensor_whose_name_is_as_long_as_any_that_people_write"
    space: dict[str, Any] = {"fg": fg}
    picked = f"fg.sum(fg.where(fg.index({long}, -1) == {{place}}, {long}, 0.0), -1)"
    body = f"fg.logsumexp({long}, -1) - {picked.format(place='p')} * {picked.format(place='q')}"
    exec(f"def chosen({long}, p, q): return {body}", space)
    for length in (40, 3000):
        x = draw(3, 2, length).transpose(0, 1).requires_grad_()  # of no two axes that could be one
        p, q = torch.randint(length, (2, 3, 1)), torch.randint(length, (2, 3, 1))

        def theirs(x: torch.Tensor, p: torch.Tensor = p, q: torch.Tensor = q) -> torch.Tensor:
            return x.logsumexp(-1) - x.gather(-1, p)[..., 0] * x.gather(-1, q)[..., 0]

        op = fg.op(space["chosen"])
        agree(lambda x, p=p, q=q, op=op: op(x, p, q), theirs, x)

"""Random numbers in a declaration: the counter that they come from, what they look like, and every mode of an op of
them. The same seed is the same numbers wherever they are computed, which most of these tests go by."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fusegen as fg
from fusegen.cli.arguments import Request, bind
from fusegen.cli.inputs import Case
from fusegen.core.errors import DeclarationError, DtypeError, ShapeError
from fusegen.declare import philox
from tests.support.call_paths import DEVICE


@fg.op(random=True)
def uniform(x: fg.Tensor) -> fg.Tensor:
    return fg.rand_like(x)


@fg.op(random=True)
def normal(x: fg.Tensor) -> fg.Tensor:
    return fg.randn_like(x)


@fg.op(random=True)
def chances(p: fg.Tensor) -> fg.Tensor:
    return fg.bernoulli(p)


@fg.op(random=True)
def dropped(x: fg.Tensor, p: float = 0.5, training: fg.Const[bool] = True) -> fg.Tensor:
    return fg.dropout(x, p, training)


@fg.op(random=True)
def block(x: fg.Tensor, residual: fg.Tensor, weight: fg.Tensor, p: float) -> fg.Tensor:
    """What follows a transformer's layer: two draws, a norm behind them."""
    added = fg.dropout(x, p) + residual
    return fg.ops.rms_norm(added, (x.shape[-1],), weight) * fg.dropout(fg.tanh(x), p)


def eager_block(x: Any, residual: Any, weight: Any, first: Any, second: Any, p: float) -> Any:
    added = x * first / (1 - p) + residual
    return F.rms_norm(added, (x.shape[-1],), weight, torch.finfo(x.dtype).eps) * (torch.tanh(x) * second / (1 - p))


def draws(shape: tuple[int, ...], seed: int, draw: int) -> torch.Tensor:
    """The numbers of one draw, as declare/random_numbers counts them."""
    line = torch.arange(math.prod(shape[:-1])).reshape(*shape[:-1], 1)
    return philox.uniform(torch, seed, torch.tensor(2 * draw), line, torch.arange(shape[-1])).to(DEVICE)


def randn(*shape: int, dtype: Any = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7)).to(DEVICE, dtype)


# -- the counter -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "counters", "words"),
    [  # those that come with Random123, the authors' own library
        (0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (-1, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x299F31D0A4093822, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)  # fmt: skip
def test_philox_answers_what_is_known(key: int, counters: Any, words: Any) -> None:
    assert philox.words(key, counters) == words


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(64,), (5, 7), (3, 4, 8), (2, 129), (1, 1), (6, 1), (1, 40)])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**40 + 3, -(2**63), 2**63 - 1])
def test_kernels_count_as_the_reference_does(shape: tuple[int, ...], seed: int, dtype: Any) -> None:
    """All bits, in vectors and one by one."""
    x = torch.zeros(shape, device=DEVICE, dtype=dtype)
    long = [size for size in shape if size > 1] or [1]
    line = torch.arange(math.prod(long[:-1])).reshape(*long[:-1], 1)
    row = philox.uniform if dtype is torch.float32 else philox.uniform_double
    expected = row(torch, seed, torch.tensor(0), line, torch.arange(long[-1])).reshape(shape)
    assert torch.equal(uniform(x, seed=seed).cpu(), expected.to(dtype))


def test_layout_does_not_count() -> None:
    """Numbers belong to the element, whatever its memory looks like."""
    expected = uniform(torch.zeros(24, 40, device=DEVICE), seed=3)
    for x in (torch.zeros(40, 24, device=DEVICE).mT, torch.zeros(24, 80, device=DEVICE)[:, ::2]):
        assert torch.equal(uniform(x, seed=3), expected)
    assert torch.equal(uniform(torch.zeros(1, device=DEVICE).expand(24, 40), seed=3), expected)


def test_a_seed_is_an_int_or_a_tensor() -> None:
    x = torch.zeros(6, 8, device=DEVICE)
    expected = uniform(x, seed=5)
    assert torch.equal(uniform(x, seed=torch.tensor(5, device=DEVICE)), expected)
    assert torch.equal(uniform(x, seed=np.int64(5)), expected)
    assert torch.equal(uniform(x, seed=5 + 2**64), expected)  # 64 bits of it
    assert not torch.equal(uniform(x, seed=6), expected)


def test_draws_of_one_op_differ() -> None:
    @fg.op(random=True)
    def twice(x: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        return fg.rand_like(x), fg.rand_like(x)

    first, second = twice(torch.zeros(40, 40, device=DEVICE), seed=1)
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.1


# -- what the numbers look like ----------------------------------------------------------------------------------------


def kolmogorov(numbers: torch.Tensor, distribution: Any) -> float:
    """The largest distance between two distributions, times the root of the count: beyond 1.95 once in a thousand."""
    ordered = distribution(numbers.double().flatten().sort().values)
    count = ordered.numel()
    steps = torch.arange(count + 1, dtype=torch.float64, device=ordered.device) / count
    return float(torch.maximum((ordered - steps[:-1]).abs().max(), (steps[1:] - ordered).abs().max())) * count**0.5


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_distributions(seed: int) -> None:
    x = torch.zeros(256, 257, device=DEVICE)
    numbers = uniform(x, seed=seed)
    assert kolmogorov(numbers, lambda u: u) < 1.95
    assert kolmogorov(normal(x, seed=seed), torch.special.ndtr) < 1.95
    for along in (numbers[:, 1:] * numbers[:, :-1], numbers[1:] * numbers[:-1]):  # neighbours have nothing in common
        assert abs(float(along.mean()) - 0.25) < 5 * 0.22 / along.numel() ** 0.5
    again = uniform(x, seed=seed + 1)
    assert abs(float((numbers * again).mean()) - 0.25) < 5 * 0.22 / x.numel() ** 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bounds(dtype: Any) -> None:
    x = torch.zeros(256, 256, device=DEVICE, dtype=dtype)
    numbers = uniform(x, seed=4)
    assert numbers.dtype is dtype and float(numbers.min()) >= 0 and float(numbers.max()) < 1
    assert abs(float(numbers.double().mean()) - 0.5) < 0.01
    found = normal(x, seed=4)
    assert found.dtype is dtype and found.isfinite().all() and abs(float(found.double().std()) - 1) < 0.02
    assert not chances(torch.zeros_like(x)).any() and chances(torch.ones_like(x)).all()
    share = float(chances(torch.full_like(x, 0.25), seed=3).double().mean())
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / x.numel()) ** 0.5


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout(p: float, dtype: Any) -> None:
    x = randn(300, 64, dtype=dtype).requires_grad_()
    found = dropped(x, p, seed=2)
    kept = draws((300, 64), 2, 0) >= p
    exact = torch.where(kept, x.double() / (1 - p), 0.0)
    torch.testing.assert_close(found.double(), exact, rtol=1e-6 if dtype is torch.float32 else 4e-3, atol=0)
    cotangent = randn(300, 64, dtype=dtype)
    (gradient,) = torch.autograd.grad(found, x, cotangent)
    torch.testing.assert_close(
        gradient.double(), torch.where(kept, cotangent.double() / (1 - p), 0.0), rtol=4e-3, atol=0
    )


def test_what_is_dropped_has_no_influence() -> None:
    x = torch.full((4, 64), torch.nan, device=DEVICE, requires_grad=True)
    found = dropped(x, seed=0)
    kept = draws((4, 64), 0, 0) >= 0.5
    assert (found[~kept] == 0).all() and found[kept].isnan().all()
    (gradient,) = torch.autograd.grad(found, x, torch.full_like(found, torch.inf))
    assert (gradient[~kept] == 0).all()


# -- modes -------------------------------------------------------------------------------------------------------------


def given(dtype: Any = torch.float64) -> list[torch.Tensor]:
    x, residual, weight = randn(6, 48), randn(6, 48).sin(), randn(48).cos()
    return [tensor.to(dtype).requires_grad_() for tensor in (x, residual, weight)]


def masks(p: float, seed: int) -> list[torch.Tensor]:
    return [(draws((6, 48), seed, draw) >= p).double() for draw in (0, 1)]


@pytest.mark.emulator
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1, 2), (0, 2)])
def test_gradients(wanted: tuple[int, ...]) -> None:
    inputs = given()
    out, expected = block(*inputs, 0.25, seed=9), eager_block(*inputs, *masks(0.25, 9), 0.25)
    torch.testing.assert_close(out, expected)
    cotangent, asked = randn(6, 48).cos(), [inputs[i] for i in wanted]
    found = torch.autograd.grad(out, asked, cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(expected, asked, cotangent))


def test_second_gradients_and_forward_mode() -> None:
    inputs = given()
    assert gradcheck(lambda *given: block(*given, 0.25, seed=9), inputs, check_forward_ad=True)
    assert gradgradcheck(lambda *given: block(*given, 0.25, seed=9), inputs)


def test_a_call_without_seed_is_repeated_by_manual_seed_alone() -> None:
    inputs = given(torch.float32)
    torch.manual_seed(1)
    first, second = block(*inputs, 0.25), block(*inputs, 0.25)
    torch.manual_seed(1)
    assert torch.equal(block(*inputs, 0.25), first) and not torch.equal(first, second)
    # what a call was is kept with it: its backward has the same numbers, however many calls came between
    torch.manual_seed(1)
    out = block(*inputs, 0.25)
    block(*inputs, 0.25)
    (gradient,) = torch.autograd.grad(out, inputs[0], torch.ones_like(out))
    torch.manual_seed(1)
    again = block(*inputs, 0.25)
    assert torch.equal(torch.autograd.grad(again, inputs[0], torch.ones_like(out))[0], gradient)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    def run(kept: bool) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(3)
        inputs = given(torch.float32)
        out = block(*inputs, 0.25) if kept else checkpoint(block, *inputs, 0.25, use_reentrant=reentrant)
        out.square().sum().backward()
        return out, *(tensor.grad for tensor in inputs if tensor.grad is not None)

    for left, right in zip(run(True), run(False), strict=True):
        assert torch.equal(left, right)


def test_vmap_follows_its_randomness() -> None:
    x = randn(5, 4, 32, dtype=torch.float32)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(dropped)(x)
    same = torch.vmap(dropped, randomness="same")(torch.ones_like(x))
    assert all(torch.equal(same[0], other) for other in same[1:])
    different = torch.vmap(dropped, randomness="different")(torch.ones_like(x))
    assert not torch.equal(different[0], different[1])
    given_seed = torch.vmap(lambda row: dropped(row, seed=8))(x)
    assert torch.equal(given_seed, torch.stack([dropped(row, seed=8) for row in x]))
    seeds = torch.arange(5, device=DEVICE)
    each = torch.vmap(lambda row, seed: dropped(row, seed=seed))(x, seeds)
    assert torch.equal(each, torch.stack([dropped(row, seed=seed) for row, seed in zip(x, seeds, strict=True)]))
    gradients = torch.vmap(torch.func.grad(lambda row: dropped(row, seed=8).square().sum()))(x)
    assert torch.equal(gradients == 0, given_seed == 0)


def test_compiled() -> None:
    torch._dynamo.reset()

    def step(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return block(x, residual, weight, 0.25).square().sum()

    inputs = given(torch.float32)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.manual_seed(5)
    expected = torch.autograd.grad(step(*inputs), inputs)
    torch.manual_seed(5)
    found = torch.autograd.grad(compiled(*inputs), inputs)
    assert all(torch.equal(left, right) for left, right in zip(found, expected, strict=True))
    assert float(compiled(*inputs)) != float(compiled(*inputs))
    fixed = torch.compile(lambda x: dropped(x, seed=3), fullgraph=True, backend="aot_eager")
    assert torch.equal(fixed(inputs[0]), dropped(inputs[0], seed=3))


@pytest.mark.cpu
def test_arrays() -> None:
    x = np.ones((16, 32), np.float32)
    np.random.seed(0)
    first = dropped(x)
    np.random.seed(0)
    assert (dropped(x) == first).all() and (dropped(x) != first).any()
    expected = dropped(torch.ones(16, 32), seed=5).numpy()
    assert (dropped(x, seed=5) == expected).all() and (dropped(x, seed=np.array(5)) == expected).all()


@pytest.mark.cpu
def test_jax_needs_a_seed() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones((16, 32), "float32")
    with pytest.raises(DeclarationError, match="pass seed="):
        dropped(x)
    assert (np.asarray(dropped(x, seed=5)) == dropped(torch.ones(16, 32), seed=5).numpy()).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.gpu
def test_graphs_replay_other_numbers() -> None:
    x = torch.ones(64, 64, device="cuda")
    dropped(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = dropped(x)
    graph.replay()
    first = out.clone()
    graph.replay()
    assert not torch.equal(first, out)


# -- within other ops --------------------------------------------------------------------------------------------------


@fg.op(random=True)
def outer(x: fg.Tensor, p: float) -> fg.Tensor:
    return fg.concat([dropped(x, p), dropped(x, p)], -1)


def test_a_random_op_in_another_one_draws_of_its_seed() -> None:
    x = torch.ones(8, 32, device=DEVICE)
    found = outer(x, 0.5, seed=4)
    kept = torch.cat([draws((8, 32), 4, draw) >= 0.5 for draw in (0, 1)], -1)
    assert torch.equal(found != 0, kept)


def test_a_seed_within_a_declaration() -> None:
    @fg.op(random=True)
    def both(x: fg.Tensor, other: fg.Tensor) -> fg.Tensor:
        return dropped(x, seed=other) * 2 + dropped(x, seed=3)

    @fg.op
    def one(x: fg.Tensor, key: fg.Tensor) -> fg.Tensor:
        return dropped(x, seed=key)

    x, key = torch.ones(8, 32, device=DEVICE), torch.tensor(11, device=DEVICE)
    assert torch.equal(one(x, key) != 0, draws((8, 32), 11, 0) >= 0.5)
    found = both(x, key)
    expected = 4.0 * (draws((8, 32), 11, 0) >= 0.5) + 2.0 * (draws((8, 32), 3, 0) >= 0.5)  # as calls outside
    assert torch.equal(found.double(), expected)


def test_a_list_of_tensors() -> None:
    @fg.op(random=True)
    def noisy(*xs: fg.Tensor) -> tuple[fg.Tensor, ...]:
        return tuple(x + fg.rand_like(x) for x in xs)

    xs = [torch.zeros(4, 8, device=DEVICE) for _ in range(3)]
    found = noisy(*xs, seed=6)
    assert all(torch.equal(out.double(), draws((4, 8), 6, draw)) for draw, out in enumerate(found))
    torch.manual_seed(2)
    first = noisy(*xs)
    torch.manual_seed(2)
    assert torch.equal(noisy(*xs)[2], first[2])


def test_torchs_own_functions() -> None:
    @fg.op(random=True)
    def all_of_them(x: fg.Tensor, p: fg.Tensor) -> tuple[fg.Tensor, ...]:
        return (
            F.dropout(x, 0.25), torch.rand_like(x), torch.randn_like(x), torch.bernoulli(p), x.bernoulli(0.5),
            F.dropout2d(x, 0.5), F.alpha_dropout(x, 0.25, training=True), F.dropout(x, 0.25, training=False),
            torch.dropout(x, 0.5, train=True),
        )  # fmt: skip

    x, p = torch.ones(8, 6, 5, 4, device=DEVICE), torch.full((8, 6, 5, 4), 0.5, device=DEVICE)
    kept, numbers, normals, coins, fair, channels, alpha, same, half = all_of_them(x, p, seed=1)
    assert torch.equal(kept == 0, kept.detach() < 1) and torch.allclose(kept.max(), torch.tensor(1 / 0.75))
    assert float(numbers.min()) >= 0 and float(numbers.max()) < 1 and abs(float(normals.mean())) < 0.2
    assert set(coins.unique().tolist()) == set(fair.unique().tolist()) == {0.0, 1.0}
    assert set(channels.mean((2, 3)).unique().tolist()) == {0.0, 2.0}
    assert alpha.unique().numel() == 2 and torch.equal(same, x) and set(half.unique().tolist()) == {0.0, 2.0}


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    @fg.op(random=True)
    def alpha(x: fg.Tensor, p: float) -> fg.Tensor:
        return fg.alpha_dropout(x, p, True)

    found = alpha(randn(400, 400, dtype=torch.float32), 0.3, seed=2)
    assert abs(float(found.mean())) < 0.02 and abs(float(found.std()) - 1) < 0.02


def test_a_declared_gradient_sees_the_same_numbers() -> None:
    @fg.op(random=True)
    def straight(x: fg.Tensor) -> fg.Tensor:
        return fg.dropout(x, 0.5) * 3

    @straight.gradient
    def _(d_out: fg.Tensor, x: fg.Tensor, *, out: fg.Tensor) -> fg.Tensor:
        return d_out * fg.where(out == 0, 7.0, 1.0)

    @fg.op(random=True)
    def around(x: fg.Tensor) -> fg.Tensor:
        return fg.dropout(x, 0.25) + straight(x)

    x = torch.ones(8, 32, device=DEVICE, requires_grad=True)
    (found,) = torch.autograd.grad(straight(x, seed=3), x, torch.ones_like(x))
    assert torch.equal(found == 1, draws((8, 32), 3, 0) >= 0.5)
    (both,) = torch.autograd.grad(around(x, seed=3), x, torch.ones_like(x))
    expected = (draws((8, 32), 3, 0) >= 0.25) / 0.75 + torch.where(draws((8, 32), 3, 1) >= 0.5, 1.0, 7.0)
    torch.testing.assert_close(both.double(), expected.double())


def test_products_and_packed_arguments() -> None:
    @fg.op(random=True)
    def feed(x: fg.Tensor, w: fg.Tensor, p: float) -> fg.Tensor:
        gate, up = fg.split(x, 2, -1)
        return fg.dropout(fg.ops.silu(gate) * up, p) @ w

    x, w = randn(6, 32).requires_grad_(), randn(16, 8).requires_grad_()
    kept = (draws((6, 16), 5, 0) >= 0.25).double() / 0.75
    found, expected = feed(x, w, 0.25, seed=5), (F.silu(x[:, :16]) * x[:, 16:] * kept) @ w
    torch.testing.assert_close(found, expected)
    cotangent = randn(6, 8)
    torch.testing.assert_close(
        torch.autograd.grad(found, (x, w), cotangent), torch.autograd.grad(expected, (x, w), cotangent)
    )


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_an_op_says_that_it_draws() -> None:
    @fg.op
    def silent(x: fg.Tensor) -> fg.Tensor:
        return F.dropout(x, 0.5)

    with pytest.raises(DeclarationError, match=r"random=True"):
        silent(torch.ones(4))

    @fg.op
    def caller(x: fg.Tensor) -> fg.Tensor:
        return dropped(x)

    with pytest.raises(DeclarationError, match=r"random=True"):
        caller(torch.ones(4))
    with pytest.raises(DeclarationError, match="call yours otherwise"):
        fg.op(lambda x, seed: x, random=True)


def test_arguments() -> None:
    x = torch.ones(4, device=DEVICE)
    with pytest.raises(DeclarationError, match="a probability"):
        fg.op(lambda x: fg.dropout(x, 1.5), random=True)(x)
    with pytest.raises(DtypeError, match="a float dtype"):
        uniform(torch.ones(4, dtype=torch.int64, device=DEVICE))
    with pytest.raises(DtypeError, match="int64"):
        uniform(x, seed=torch.tensor(1.0, device=DEVICE))
    with pytest.raises(ShapeError, match="without dimensions"):
        uniform(x, seed=torch.tensor([1, 2], device=DEVICE))
    with pytest.raises(DtypeError, match="an int"):
        uniform(x, seed="one")
    with pytest.raises(DeclarationError, match=r"fg\.Const"):
        fg.op(lambda x, training: fg.dropout(x, 0.5, training), random=True)(x, True)
    with pytest.raises(DeclarationError, match="no tensor"):
        uniform(3.0)


def test_without_training_nothing_changes() -> None:
    x = randn(4, 8)
    state = torch.random.get_rng_state()
    assert torch.equal(dropped(x, 0.5, training=False), x) and torch.equal(dropped(x, 0.5, False), x)
    assert torch.equal(torch.random.get_rng_state(), state)
    if torch.cuda.is_available():
        state = torch.cuda.get_rng_state()
        assert torch.equal(dropped(x, 0.5, False), x) and torch.equal(torch.cuda.get_rng_state(), state)
    assert (dropped(x) == 0).any()


def test_the_command_line_draws_a_seed_for_any_op() -> None:
    case = Case.random(dropped, bind(dropped, Request.parse(["6,8"], [], [])), "cpu", 0, None)
    assert case.arguments["seed"].dtype is torch.int64 and not case.arguments["seed"].shape
    assert torch.equal(case.call()[0], case.call()[0])


def test_every_stage_shows_the_draw() -> None:
    text = dropped.show(torch.ones(64, 64), 0.25)
    assert "uniform(seed, 0, index(d0), index(d1))" in text and "fg::assume_multiple<4>(j1);" in text


def test_a_gumbel_softmax_is_a_softmax_of_noise_and_hard_the_largest_of_it() -> None:
    @fg.op(random=True)
    def sampled(x: Any, hard: fg.Const = False) -> Any:
        return F.gumbel_softmax(x, tau=0.5, hard=hard)

    x = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    noise = -torch.log(-torch.log(uniform(x.detach(), seed=3)))
    expected = ((x + noise) / 0.5).softmax(-1)
    soft, hard = sampled(x, seed=3), sampled(x, True, seed=3)
    torch.testing.assert_close(soft, expected)
    assert torch.equal(hard.round(), F.one_hot(expected.argmax(-1), 5).double())
    weight = torch.rand_like(x)
    found, wanted = (torch.autograd.grad(y, x, weight)[0] for y in (hard, expected))
    torch.testing.assert_close(found, wanted)

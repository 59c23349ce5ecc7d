"""Bias gradients as sums over what the bias lacks, at the sizes at which people missed them (Flux 558, CUDA.jl).

What is large for an emulator runs at its real size on a GPU alone; without one it is planned at that size, compiled,
and run with fewer rows of the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.generate.rendered import headers
from fusegen.inspect.passes import Pass, passes
from fusegen.launch.cache import default_cache
from fusegen.launch.compile import cached_cubin
from tests.support.oracles import check_derivatives, draw, refused

GPU = torch.cuda.is_available()
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a GPU")]
Shape = tuple[int, ...]
# [N, C, H, W]
IMAGES = [(n, *rest) for n, rest in product((32, 100, 1000), [(32, 26, 26), (32, 24, 24), (16, 10, 10), (10, 3, 3)])]
LARGE = {(1000, 32, 26, 26), (1000, 32, 24, 24)}
SMALLER = [(8, *shape[1:]) if shape in LARGE else shape for shape in IMAGES]
# threads x multiprocessors + 5 elements (of an H100), so that their last block had five.
THREADS = 1024 * 132 + 5
# The last square on a GPU alone.
SQUARES = [500, 1000, 2500, 10000]


@fg.op
def biased(x: Any, b: Any, *, act: fg.Const) -> Any:
    """act(x + b), of any function."""
    return act(x + b)


def relu(v: Any) -> Any:
    return fg.maximum(v, 0)


def curve(v: Any) -> Any:
    """Nobody's activation."""
    return v * fg.tanh(fg.log1p(v * v)) - fg.where(v < 0, 0.1 * v, 0)


def torch_curve(v: torch.Tensor) -> torch.Tensor:
    return v * torch.tanh(torch.log1p(v * v)) - torch.where(v < 0, 0.1 * v, 0)


def numbers(*shape: int, seed: int = 0, device: str = "cpu", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def assert_summed(found: torch.Tensor, terms: torch.Tensor, dims: Sequence[int]) -> None:
    """``found`` is the sum of the float64 ``terms``, but for what adding them up in float32 rounds.

    Some hundred additions in a row leave about 1.6 times a random walk's step, and in one of ten thousand sums five
    times that. One term left out, or counted twice, is far more.
    """
    exact = terms.sum(dims)
    eps = torch.finfo(torch.float32).eps
    near = 8 * eps * (exact.abs() + terms.square().sum(dims).sqrt())
    assert found.shape == exact.shape
    excess = (found.double() - exact).abs() - near
    assert bool((excess <= 0).all()), f"{float(excess.max()):.3g} too far, where {float(near.max()):.3g} is allowed"


def check_bias(shape: Shape, device: str = "cpu") -> None:
    """relu(x + b) of a bias [C], its value and both gradients."""
    x = numbers(*shape, device=device).requires_grad_()
    b = numbers(shape[1], 1, 1, seed=1, device=device).requires_grad_()
    cotangent = numbers(*shape, seed=2, device=device)
    result = biased(x, b, act=relu)
    assert torch.equal(result, torch.relu(x + b))
    d_x, d_b = torch.autograd.grad(result, (x, b), cotangent)
    expected = torch.where(result > 0, cotangent, 0)
    assert torch.equal(d_x, expected)
    assert_summed(d_b.flatten(), expected.double(), (0, 2, 3))


@pytest.mark.parametrize("shape", SMALLER, ids=str)
def test_a_bias_of_channels(shape: Shape) -> None:
    check_bias(shape)


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_a_bias_of_channels_on_a_gpu(shape: Shape) -> None:
    check_bias(shape, "cuda")


def compiled_passes(op: Any, options: dict[str, Any], *shapes: Shape) -> list[Pass]:
    """Forward and backward for these sizes, which a GPU's compiler takes."""
    found = passes(op, tuple(fg.TensorSpec(fg.float32, shape) for shape in shapes), options, "backward")
    for item in found:
        cached_cubin(item.text, arch="sm_90", headers=headers(), declared=op.name, cache=default_cache())
    return found


@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_one_kernel_forward_and_one_pass_back(shape: Shape) -> None:
    forward, backward = compiled_passes(biased, {"act": relu}, shape, (shape[1], 1, 1))
    assert len(forward.kernels) == 1
    first, *rest = ({operand.name for operand in item.kernel.operands} for item in backward.kernels)
    assert {"x", "b", "d_out"} >= first >= {"x", "d_out"}
    assert len(rest) <= 1 and not {"x", "d_out"} & set().union(*rest)  # what adds up the parts of sums
    assert forward.layout.sizes["d0"] == shape[0]


DIMS: list[tuple[int, ...]] = [(0, 2, 3), (0, 2), (0,), (1,), (1, 2)]


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("shape", [(100, 32, 26, 26), (1000, 16, 10, 10)], ids=str)
def test_sums_over_some_dimensions(shape: Shape, dims: tuple[int, ...]) -> None:
    x = numbers(*shape)
    assert_summed(fg.ops.sum(x, dims), x.double(), dims)


def check_long(device: str) -> None:
    """Their sizes, one element of which was lost: over the rows, and the same numbers the other way round."""
    x = numbers(THREADS, 31, device=device)
    assert_summed(fg.ops.sum(x, 1), x.double(), (1,))
    assert_summed(fg.ops.sum(x, 0), x.double(), (0,))
    turned = x.t().contiguous()
    assert_summed(fg.ops.sum(turned, 1), turned.double(), (1,))
    assert_summed(fg.ops.sum(turned, 0), turned.double(), (0,))
    whole = (x * 100).to(torch.int32)
    for dim in (0, 1):
        assert torch.equal(fg.ops.sum(whole, dim), whole.sum(dim))
        assert torch.equal(fg.ops.sum(whole.t().contiguous(), dim), whole.sum(1 - dim))


def test_long_sums() -> None:
    check_long("cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_long_sums_on_a_gpu() -> None:
    check_long("cuda")


def check_squares(rows: int, columns: int, device: str = "cpu") -> None:
    x = numbers(rows, columns, device=device)
    for dims in ((0,), (1,), (0, 1)):
        assert_summed(fg.ops.sum(x, dims), x.double(), dims)
    assert_summed(fg.ops.sum(x * x, (0, 1)), x.double().square().float().double(), (0, 1))


@pytest.mark.parametrize("size", SQUARES[:-1])
def test_squares(size: int) -> None:
    check_squares(size, size)


@pytest.mark.parametrize("shape", [(10000, 24), (24, 10000)], ids=str)
def test_parts_of_the_largest_square(shape: Shape) -> None:
    check_squares(*shape)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("size", SQUARES)
def test_squares_on_a_gpu(size: int) -> None:
    check_squares(size, size, "cuda")


DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_tall_sum(device: str) -> None:
    """torch's went from 138 to 6.9 microseconds."""
    x = numbers(32768, 32, device=device)
    assert_summed(fg.ops.sum(x, 0), x.double(), (0,))


@pytest.mark.parametrize("device", DEVICES)
def test_ones_summed_into_a_view(device: str) -> None:
    whole = torch.full((3, 4), -1.0, device=device)
    assert fg.ops.sum(torch.ones(4096, device=device), out=whole[1, 2]).item() == 4096
    assert fg.ops.sum(torch.ones(4096, 4, device=device), 0, out=whole[2]).tolist() == [4096.0] * 4
    assert whole.tolist() == [[-1.0] * 4, [-1.0, -1.0, 4096.0, -1.0], [4096.0] * 4]


@pytest.mark.parametrize("device", DEVICES)
def test_a_sum_of_float64_in_float32(device: str) -> None:
    """Added up in float64: torch casts each term first."""
    x = (1 + 1e-9 * numbers(4096, seed=3, device=device).double()).requires_grad_()
    total = fg.ops.sum(x, dtype=torch.float32)
    assert total.dtype is torch.float32 and abs(total.item() - 4096) < 1e-3
    (gradient,) = torch.autograd.grad(total, x)
    assert gradient.dtype is torch.float64 and bool((gradient == 1).all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(10, 100), (512,), (4096,)], ids=str)
def test_additions_of_a_bias(shape: Shape, device: str) -> None:
    x = numbers(*shape, device=device).requires_grad_()
    b, cotangent = (numbers(*s, seed=4, device=device) for s in (shape[-1:], shape))
    b.requires_grad_()
    result = fg.ops.bias_add(x, b)
    assert torch.equal(result, x + b)
    d_x, d_b = torch.autograd.grad(result, (x, b), cotangent)
    assert torch.equal(d_x, cotangent)
    assert_summed(d_b, cotangent.double().reshape(-1, shape[-1]), (0,))


@fg.op
def normalise(x: Any, *, over: fg.Const) -> Any:
    """x without its mean, over its deviation."""
    return (x - fg.mean(x, over, keepdims=True)) / (fg.std(x, over, keepdims=True) + 1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("over", [(0, 1), (0, 1, 2), (0, 1, 2, 3)], ids=str)
def test_pictures_are_normalised(over: tuple[int, ...], device: str) -> None:
    """84 x 84 x 1 x 16."""

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(over, keepdim=True)) / (x.std(over, keepdim=True) + 1e-5)

    x, cotangent = (numbers(84, 84, 1, 16, seed=seed, device=device) for seed in (5, 6))
    x = (3 + 2 * x).requires_grad_()
    wide = x.detach().double().requires_grad_()
    found, exact = normalise(x, over=over), theirs(wide)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=2e-6)
    d_x, expected = (torch.autograd.grad(r, v, c)[0] for r, v, c in (
        (found, x, cotangent), (exact, wide, cotangent.double())))  # fmt: skip
    torch.testing.assert_close(d_x.double(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_any_function_as_the_activation(device: str) -> None:
    for shape in ((32, 16, 10, 10), (100, 10, 3, 3)):
        x, b = numbers(*shape, device=device), numbers(shape[1], 1, 1, seed=1, device=device)
        wide = [t.double().requires_grad_() for t in (x, b)]
        own = [t.requires_grad_() for t in (x, b)]
        cotangent = numbers(*shape, seed=2, device=device)
        found, exact = biased(*own, act=curve), torch_curve(wide[0] + wide[1])
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6)
        gradients = torch.autograd.grad(found, own, cotangent)
        d_x, d_b = torch.autograd.grad(exact, wide, cotangent.double())
        torch.testing.assert_close(gradients[0].double(), d_x, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradients[1].double(), d_b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("act", [curve, lambda v: v * v * v, lambda v: fg.exp(-v * v) * fg.sin(v)], ids=range(3))
def test_second_derivatives_of_any_function(act: Callable[[Any], Any]) -> None:
    check_derivatives(lambda x, b: biased(x, b, act=act), [draw(2, 3, 2, 2), draw(3, 1, 1, seed=1)])


def test_a_bias_that_is_absent_has_no_gradient() -> None:
    x, cotangent = numbers(32, 16, 10, 10).requires_grad_(), numbers(32, 16, 10, 10, seed=2)
    result = fg.ops.bias_relu(x, None, dim=1)
    assert torch.equal(result, torch.relu(x))
    (d_x,) = torch.autograd.grad(result, x, cotangent)
    assert torch.equal(d_x, torch.where(x > 0, cotangent, 0))
    spec = fg.TensorSpec(fg.float32, (32, 16, 10, 10))
    (backward,) = passes(fg.ops.bias_relu, (spec, None), {"dim": 1}, "backward")[1:]
    assert len(backward.kernels) == 1 and [output.name for output in backward.op.outputs] == ["d_input"]


@pytest.mark.parametrize("name", ["bias_relu", "bias_add", "residual_bias_relu"])
def test_a_bias_that_is_true_is_an_error(name: str) -> None:
    x = numbers(4, 3, 2, 2)
    more = (x,) if name.startswith("residual") else ()
    for bias in (True, torch.tensor(True)):
        said = str(refused(lambda bias=bias: getattr(fg.ops, name)(x, bias, *more, dim=1)))
        assert "bias" in said and "bool" in said and "fix:" in said, said

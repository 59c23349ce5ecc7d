"""Equal blocks of intermediates: split, concatenations that are computed with, slices. The functions are torch code,
run as they stand and as an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

import fusegen as fg
from fusegen.core.errors import DeclarationError, ShapeError
from tests.support.call_paths import DEVICE

CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {}


def case(*shapes: tuple[int, ...]) -> Callable[..., Any]:
    """A function of torch, and shapes of its arguments."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__] = function, list(shapes)
        return function

    return add


@case((2, 3, 5, 8), (5, 8), (5, 8))
def rotary(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


@case((2, 3, 8), (8,), (3, 8), (3, 8))
def rotary_behind_a_norm(x: Any, weight: Any, cos: Any, sin: Any) -> Any:
    x = F.rms_norm(x, (8,), weight, 1e-6)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


@case((5, 6), (8, 6), (8,))
def gated_product(x: Any, weight: Any, bias: Any) -> Any:
    value, gate = F.linear(x, weight, bias).chunk(2, -1)
    return value * torch.sigmoid(gate)


@case((5, 6), (5, 4), (5, 4), (16, 6), (16, 4), (16,))
def lstm_cell(x: Any, hidden: Any, cell: Any, of_x: Any, of_hidden: Any, bias: Any) -> Any:
    i, f, g, o = (F.linear(x, of_x, bias) + F.linear(hidden, of_hidden)).chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


@case((4, 6), (4, 6))
def a_block_that_is_the_same_all_along(x: Any, y: Any) -> Any:
    both = torch.cat([x.mean(1, keepdim=True) + 0 * y, y.sin()], 1)
    return both.amax(1), both.sum(1), both.prod(1), both.var(1), torch.softmax(both, 1)


@case((4, 6), (4, 6), (4, 1))
def norm_of_a_concatenation(a: Any, b: Any, c: Any) -> Any:
    return F.layer_norm(torch.cat([a * c, b], -1), (12,))


@case((4, 6), (4, 6), (12,))
def softmax_of_a_concatenation(a: Any, b: Any, c: Any) -> Any:
    return torch.softmax(torch.cat([a, b * 2], -1) + c, -1)


@case((4, 6), (4, 6))
def parts_of_a_softmax(a: Any, b: Any) -> Any:
    first, second = torch.softmax(a * b, -1).chunk(2, -1)
    return first * second


@case((3, 4, 6), (6, 5))
def product_of_a_concatenation(x: Any, weight: Any) -> Any:
    first, second = torch.tanh(x).chunk(2, -1)
    return torch.cat([second * 2, first], -1) @ weight


@case((4, 6), (6, 4))
def blocks_of_rows_of_a_product(x: Any, weight: Any) -> Any:
    first, second = (x @ weight).chunk(2, 0)
    return first - second.exp()


@case((4, 1), (4, 6))
def one_element_is_one_part(x: Any, y: Any) -> Any:
    (whole,), (total,) = x.chunk(2, -1), y.sum(-1, keepdim=True).chunk(3, 1)
    return torch.stack(y.sin().sum(0, keepdim=True).chunk(2, 0)) * whole + total


@case((4, 6))
def product_with_its_own_transpose(x: Any) -> Any:
    gram = x @ x.mT
    first, second = gram.chunk(2, -1)
    return first * second


@case((4, 6), (4, 6))
def rows_one_behind_the_other(a: Any, b: Any) -> Any:
    return torch.cat([a, b.sin()], 0).softmax(0)


@case((4, 6))
def blocks_of_blocks(x: Any) -> Any:
    first, second = torch.tanh(x).chunk(2, 0)
    a, b = (first * second).chunk(2, 0)
    return a + b.exp()


@case((4, 8))
def quarters_of_a_half(x: Any) -> Any:
    first, second = x.exp().chunk(2, -1)
    a, b = (first - second).chunk(2, -1)
    return a * b + x.sum(-1, keepdim=True)


@case((4, 8))
def halves_that_are_put_together_the_other_way(x: Any) -> Any:
    first, second = (x * x).chunk(2, -1)
    return torch.cat([second, first], -1)


@case((4, 8))
def slices(x: Any) -> Any:
    y = torch.tanh(x)
    return y[..., :4] * y[..., 4:] + x[:, 4:]


@case((4, 8), (2,))
def a_slice_of_an_argument(x: Any, w: Any) -> Any:
    return x[:, 2:4] * w


@case((3, 12), (6,), (6,))
def partly_rotary(x: Any, cos: Any, sin: Any) -> Any:
    x = F.rms_norm(x, (12,), None, 1e-6)
    turned, rest = x[..., :6], x[..., 6:]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, rest], -1)


@case((4, 12), (4, 4))
def several_sizes(x: Any, b: Any) -> Any:
    small, large, last = torch.tanh(x).split([2, 6, 4], -1)
    return torch.cat([large, small], -1).softmax(-1), last * b


@case((4, 7))
def differences(x: Any) -> Any:
    return x[:, 1:] - x[:, :-1].exp()


@case((4, 8), (4, 4))
def halves_and_quarters(x: Any, b: Any) -> Any:
    first, second = x.chunk(2, -1)
    a, _, c, d = x.chunk(4, -1)
    return first * second.exp() * b + torch.cat([a * c, d], -1)


@case((4, 6), (4, 2), (8,))
def of_several_sizes(a: Any, b: Any, c: Any) -> Any:
    both = torch.cat([a.sin(), b], -1)
    return both * c / both.square().sum(-1, keepdim=True)


@case((5, 4))
def uneven_chunks(x: Any) -> Any:
    a, b, c = (x * 2).chunk(3, 0)
    return a * b.exp() + c


@case((4, 6), (6, 4))
def rows_of_a_product(x: Any, weight: Any) -> Any:
    y = x @ weight
    return y[0] * y[-1] + y[1:3].sum(0)


@case((3, 2), (3, 2))
def sizes_of_what_is_put_together(a: Any, b: Any) -> Any:
    first, second = a.chunk(2, -1)
    return torch.cat([first, b], -1) / torch.cat([a, b], -1).numel() + torch.cat([second, b], -1).shape[-1]


@case((4, 8), (4, 8))
def rolled(x: Any, b: Any) -> Any:
    return torch.roll(x.exp(), 2, -1) * b + torch.roll(b.cos(), (-1,), (1,))


@case((3, 5), (3, 5))
def flipped(x: Any, b: Any) -> Any:
    return x.sin().flip(-1) * b + torch.flip(b.exp(), (1,))


@case((3, 4), (3, 6))
def padded(x: Any, b: Any) -> Any:
    return F.pad(x.exp(), (1, 1), value=0.5) * b


@case((3, 6), (3,))
def narrowed(x: Any, b: Any) -> Any:
    return x.tanh().narrow(1, 2, 2) * x.select(1, 5)[:, None] + b[:, None]


@case((3, 6), (3, 6))
def stacked(a: Any, b: Any) -> Any:
    both = torch.stack([a, b.exp()], -1)
    return both / both.sum(-1, keepdim=True)


@case((3, 6))
def unbound(x: Any) -> Any:
    a, b, c = torch.tanh(x).unbind(0)
    return a * b - c


@case((4, 6), (4, 6))
def extrema(a: Any, b: Any) -> Any:
    both = torch.cat([a, b], -1)
    return both.amax(-1), both.amin(-1), both.prod(-1), both.var(-1), both.logsumexp(-1), both.mean(-1)


@case((4, 6), (4, 6))
def whole_and_in_blocks(a: Any, b: Any) -> Any:
    first, second = a.chunk(2, -1)
    return first * second + (a * b).sum(-1, keepdim=True)


@case((4, 3))
def a_result_as_long_as_what_is_read_in_blocks(x: Any) -> Any:
    return x.chunk(2, 0)[1].sin(), torch.zeros_like(x) + 2


@case((4, 6), (4, 6))
def two_results(a: Any, b: Any) -> Any:
    both = torch.cat([a.tanh(), b], -1) * 2
    return both, both.chunk(2, -1)[0]


NAMES = list(CASES)


def given(name: str, dtype: Any = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = CASES[name][1]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(DEVICE, dtype) for s in shapes]


def all_of(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.emulator
@pytest.mark.parametrize("name", NAMES)
def test_as_torch(name: str) -> None:
    """Without gradients, with all of them, with each by itself."""
    function = CASES[name][0]
    op, inputs = fg.op(function, name=name), given(name)
    expected = all_of(function(*inputs))
    torch.testing.assert_close(all_of(op(*inputs)), expected)
    cotangents = [torch.randn_like(result) for result in expected]
    for wanted in [range(len(inputs)), *([i] for i in range(len(inputs)))]:
        leaves = [tensor.clone().requires_grad_(i in wanted) for i, tensor in enumerate(inputs)]
        asked = [leaves[i] for i in wanted]
        ours, theirs = all_of(op(*leaves)), all_of(function(*leaves))
        reached = [i for i, result in enumerate(theirs) if result.requires_grad]
        found, right = (
            torch.autograd.grad([r[i] for i in reached], asked, [cotangents[i] for i in reached])
            for r in (ours, theirs)
        )
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("name", NAMES)
def test_second_gradients_and_forward_mode(name: str) -> None:
    op, inputs = fg.op(CASES[name][0], name=name), [tensor.requires_grad_() for tensor in given(name)]
    assert gradcheck(op, inputs, check_forward_ad=True)
    assert gradgradcheck(op, inputs, rtol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_vmap(name: str) -> None:
    function = CASES[name][0]
    op, inputs = fg.op(function, name=name), given(name)
    wide = [torch.stack([tensor, tensor.sin()]) for tensor in inputs]
    torch.testing.assert_close(torch.vmap(op)(*wide), torch.vmap(function)(*wide))
    dims = (0, *[None] * (len(inputs) - 1))
    mixed = [wide[0], *inputs[1:]]
    torch.testing.assert_close(torch.vmap(op, dims)(*mixed), torch.vmap(function, dims)(*mixed))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(name: str, dtype: Any) -> None:
    """No further from float64 than a few times torch's own function of the dtype."""
    function = CASES[name][0]
    op, inputs = fg.op(function, name=name), given(name, dtype)
    wide = all_of(function(*(tensor.double() for tensor in inputs)))
    for ours, theirs, exact in zip(all_of(op(*inputs)), all_of(function(*inputs)), wide, strict=True):
        assert ours.dtype is theirs.dtype
        size = float(exact.abs().max()) * torch.finfo(dtype).eps
        error, torchs = (float((found.double() - exact).abs().max()) for found in (ours, theirs))
        assert error <= 3 * torchs + 2 * size


def test_compiled() -> None:
    torch._dynamo.reset()
    function = CASES["rotary_behind_a_norm"][0]
    op, inputs = (
        fg.op(function, name="compiled_rotary"),
        [t.float().requires_grad_() for t in given("rotary_behind_a_norm")],
    )
    compiled = torch.compile(lambda *given: op(*given), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    found = torch.autograd.grad(compiled(*inputs).square().sum(), inputs)
    torch.testing.assert_close(found, torch.autograd.grad(function(*inputs).square().sum(), inputs))


def test_what_is_computed_with_blocks_is_one_kernel() -> None:
    """A rotary embedding behind a norm reads its input once and writes each block of the result in place."""
    op = fg.op(CASES["rotary_behind_a_norm"][0], name="rotary_behind_a_norm")
    shapes = [(2, 64, 8), (8,), (64, 8), (64, 8)]
    text = op.emit(*(fg.TensorSpec(fg.bfloat16, shape) for shape in shapes))
    assert text.count("__global__") == 1 and text.count("x_0_ptr +") == text.count("x_1_ptr +") == 1
    assert text.count("out_0_ptr +") == text.count("out_1_ptr +") == 1


def test_sizes_decide_slices() -> None:
    """Blocks of another size are another op."""

    @fg.op
    def first_half(x: fg.Tensor) -> fg.Tensor:
        y = fg.exp(x)
        return y[..., : x.shape[-1] // 2]

    for size in (8, 12, 2, 8):
        x = torch.randn(3, size, device=DEVICE)
        torch.testing.assert_close(first_half(x), x.exp()[..., : size // 2])


@pytest.mark.parametrize(
    ("function", "shape", "message"),
    [
        (lambda x: fg.split(fg.exp(x), 4), (4, 6), "divides by 4"),
        (lambda x: fg.concat([fg.exp(x), fg.exp(x)[:, :1], 2.0]), (4, 6), "differ along axis"),
    ],
)
def test_what_is_refused(function: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises((DeclarationError, ShapeError), match=message):
        fg.op(function, name="refused")(torch.ones(shape, device=DEVICE))


def test_blocks_of_a_declared_gradient() -> None:
    @fg.op
    def own(x: fg.Tensor) -> fg.Tensor:
        return x * 2

    @own.gradient
    def _(d_out: fg.Tensor, x: fg.Tensor) -> fg.Tensor:
        return d_out * 3

    x = torch.ones(4, 6, device=DEVICE, requires_grad=True)
    for function in (lambda x: own(fg.split(x, 2)[0]), lambda x: fg.split(own(x), 2)[0]):  # in blocks, and at places
        halves = fg.op(function, name="halves")
        (gradient,) = torch.autograd.grad(halves(x), x, torch.ones(4, 3, device=DEVICE))
        assert torch.equal(gradient, torch.tensor([3.0, 3, 3, 0, 0, 0], device=DEVICE).expand(4, 6))


def test_whole_and_in_blocks_beside_a_declared_gradient() -> None:
    """What cannot be divided is read whole, and its part at its places, so that its gradient is one tensor."""

    @fg.op
    def own(x: fg.Tensor) -> fg.Tensor:
        return x * 2

    @own.gradient
    def _(d_out: fg.Tensor, x: fg.Tensor) -> fg.Tensor:
        return d_out * 3

    both = fg.op(lambda x: fg.split(x, 2)[0] * fg.sum(own(x), -1, keepdims=True), name="both")
    x = torch.randn(4, 6, device=DEVICE)
    torch.testing.assert_close(both(x), x[:, :3] * (2 * x).sum(-1, keepdim=True))
    cotangent = torch.randn(4, 3, device=DEVICE)
    (gradient,) = torch.autograd.grad(both(x.requires_grad_()), x, cotangent)
    expected = 3 * (cotangent * x[:, :3]).sum(-1, keepdim=True).expand(4, 6)
    expected = expected + torch.nn.functional.pad(cotangent * (2 * x).sum(-1, keepdim=True), (0, 3))
    torch.testing.assert_close(gradient, expected.detach())


OUTER = {
    "of rows": lambda x: (x[:, None] * x[:4]).exp().sum(1),
    "as it is": lambda x: (x[:, None] * x[:4]).exp(),
    "of a concatenation": lambda x: (torch.cat([x[4:], x[:4]])[:, None] * x[:4]).exp().sum(0),
}


@pytest.mark.parametrize("name", OUTER)
def test_an_axis_meets_a_part_of_itself_at_places(name: str) -> None:
    """Taken apart, the axis is the part's, and each element would meet its own kind alone: so the part is read."""
    x = torch.randn(8, dtype=torch.float64, device=DEVICE, requires_grad=True)
    out, expected = fg.op(OUTER[name], name="outer")(x), OUTER[name](x)
    torch.testing.assert_close(out, expected)
    cotangent, again = torch.randn_like(expected), torch.randn_like(x)
    mine, theirs = (torch.autograd.grad(o, x, cotangent, create_graph=True)[0] for o in (out, expected))
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(g, x, again)[0] for g in (mine, theirs)))


@pytest.mark.parametrize("inner", [3, 2, 1])
def test_a_product_with_a_part_of_itself(inner: int) -> None:
    """One element is contracted as several are, and so are blocks of one element."""
    for function in (
        lambda x: (x @ x[:4].mT).exp(),
        lambda x: (x @ x[:4].mT).exp().sum(-1),
        lambda x: (x @ (x[:4].tanh() * x.mean()).mT, x[4:].sum())[0],
        lambda x: ((x + torch.cat([-x[4:], x[:4]])) @ x[:4].mT).tanh(),
        lambda x: x.tanh() @ x.roll(1, -1).cos().mT,
        lambda x: x.exp()[:, :1] @ x.exp()[:, -1:].mT,
    ):
        x = torch.randn(8, inner, dtype=torch.float64, device=DEVICE, requires_grad=True)
        found, expected = fg.op(function, name="product")(x), function(x)
        torch.testing.assert_close(found, expected)
        weight = torch.randn_like(expected)
        ours, theirs = (torch.autograd.grad(out, x, weight)[0] for out in (found, expected))
        torch.testing.assert_close(ours, theirs)


def test_two_arguments_meet_part_by_part() -> None:
    """What the error says to do instead."""
    op = fg.op(lambda x, y: (x[:, None] * y[:4]).exp().sum(1))
    x = torch.randn(8, dtype=torch.float64, device=DEVICE)
    torch.testing.assert_close(op(x, x), OUTER["of rows"](x))


@pytest.mark.emulator
@pytest.mark.parametrize("take", [torch.argmax, torch.argmin, lambda x, dim: x.max(dim)[1]], ids=["max", "min", "both"])
def test_the_place_of_an_extremum_beside_a_part(take: Callable[..., Any]) -> None:
    """It is the least of the blocks' places: a block without one had the place 2^63, as a float."""
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    found = fg.op(lambda image: (take(image, 1), image[:, 1] - image[:, 2]), name="colour")(x)
    torch.testing.assert_close(found, (take(x, 1), x[:, 1] - x[:, 2]))

"""The cases that made people write this by hand: lerp and its gradient (Paddle PR 45946), and the groups that Paddle's
fusion pass was tested with (fusion_group). Against torch and float64, with cotangents that are not constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest
import torch

import fusegen as fg
from tests.support.oracles import randn

Shapes = tuple[Sequence[int], Sequence[int], Sequence[int]]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 1e-1, torch.float32: 1e-5, torch.float64: 1e-12}


def seeded(
    shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float64, requires_grad: bool = True
) -> torch.Tensor:
    return randn(*shape, dtype=dtype, seed=seed).requires_grad_(requires_grad)


def check_wide(ours: Callable[..., Any], theirs: Callable[..., Any], arguments: Sequence[torch.Tensor]) -> None:
    """Values and gradients of ``ours`` against ``theirs`` in float64."""
    wide = [a.detach().double().requires_grad_(a.requires_grad) for a in arguments]
    result, expected = ours(*arguments), theirs(*wide)
    results, expecteds = (r if isinstance(r, tuple) else (r,) for r in (result, expected))
    near = TOLERANCE[arguments[0].dtype]
    for mine, other in zip(results, expecteds, strict=True):
        torch.testing.assert_close(mine, other.to(mine.dtype), rtol=near, atol=near)
    wanted = [i for i, a in enumerate(arguments) if a.requires_grad]
    if not wanted:
        return
    cotangents = [seeded(r.shape, 7 + i, r.dtype, False) for i, r in enumerate(results)]
    mine_d = torch.autograd.grad(results, [arguments[i] for i in wanted], cotangents)
    other_d = torch.autograd.grad(
        expecteds, [wide[i] for i in wanted], [c.to(e.dtype) for c, e in zip(cotangents, expecteds, strict=True)]
    )
    for a, b in zip(mine_d, other_d, strict=True):
        scale = max(1.0, float(b.abs().max()) if b.numel() else 1.0)  # a sum of many terms rounds with their size
        torch.testing.assert_close(a / scale, (b / scale).to(a.dtype), rtol=near, atol=near)


# -- lerp ------------------------------------------------------------------------------------------------------------

SAME_SHAPE = [(100,), (2, 50), (2, 2, 25), (2, 2, 5, 5), (2, 1, 2, 5, 5), (2, 1, 2, 5, 1, 5)]
LERP: list[Shapes] = [
    *((shape, shape, (1,)) for shape in SAME_SHAPE),
    ((2, 1, 2, 5, 5), (2, 2, 1, 5, 5), (1,)),
    ((2, 1, 2, 50), (2, 2, 1, 50), (1,)),
    ((2, 2, 5, 5), (2, 2, 5, 5), (5,)),
    ((50, 2, 2, 3), (50, 2, 2, 3), (3,)),
    ((2, 2, 5), (3, 2, 1, 5), (1,)),
    ((2, 5), (2, 2, 5), (2, 2, 2, 5)),
    ((16, 1, 1, 1), (16, 3, 24, 24), (3, 1, 24)),
    ((), (), ()),
    ((), (64, 64), ()),
    ((64, 64), (), ()),
    ((64, 64), (64, 64), (64, 64)),
    ((0,), (0,), (1,)),
    ((0, 3), (1, 3), (3,)),
    ((2, 0, 4), (4,), ()),
]


@pytest.mark.parametrize("shapes", LERP, ids=str)
def test_lerp(shapes: Shapes) -> None:
    arguments = [seeded(shape, seed) for seed, shape in enumerate(shapes)]
    check_wide(fg.ops.lerp, torch.lerp, arguments)


@pytest.mark.emulator
def test_lerp_sums_over_the_axis_that_is_missing() -> None:
    # The merged kernel took the first slab: trailing dimensions match, ranks differ.
    x, y, w = (seeded(shape, seed) for seed, shape in enumerate([(2, 3, 4), (2, 2, 3, 4), (1,)]))
    cotangent = seeded((2, 2, 3, 4), 3, requires_grad=False)
    (d_x,) = torch.autograd.grad(fg.ops.lerp(x, y, w), [x], cotangent)
    torch.testing.assert_close(d_x, ((1 - w) * cotangent).sum(0))
    check_wide(fg.ops.lerp, torch.lerp, [x, y, w])


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_lerp_dtypes(dtype: torch.dtype) -> None:
    arguments = [seeded(shape, seed, dtype) for seed, shape in enumerate([(3, 8), (3, 8), (8,)])]
    assert fg.ops.lerp(*arguments).dtype is dtype
    check_wide(fg.ops.lerp, torch.lerp, arguments)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_lerp_weight_as_a_number(dtype: torch.dtype) -> None:
    x, y = seeded((), 0, dtype), seeded((), 1, dtype)
    for weight in (0.25, 0.75, -1.5):
        check_wide(lambda a, b, w=weight: fg.ops.lerp(a, b, w), lambda a, b, w=weight: torch.lerp(a, b, w), [x, y])


@pytest.mark.parametrize("rank", range(7))
def test_lerp_ranks(rank: int) -> None:
    full = (2, 3, 1, 2, 3, 2)[:rank]
    check_wide(fg.ops.lerp, torch.lerp, [seeded(full, 0), seeded(full[1:], 1), seeded((1,) * rank, 2)])


def subsets() -> Iterable[tuple[int, ...]]:
    return [wanted for count in range(4) for wanted in combinations(range(3), count)]


@pytest.mark.parametrize("wanted", subsets(), ids=str)
def test_lerp_any_subset_of_gradients(wanted: tuple[int, ...]) -> None:
    shapes = [(2, 1, 4), (3, 4), (4,)]
    arguments = [seeded(shape, seed, requires_grad=seed in wanted) for seed, shape in enumerate(shapes)]
    check_wide(fg.ops.lerp, torch.lerp, arguments)
    names = ["input", "end", "weight"]
    if wanted:
        op = fg.ops.lerp.backward(*arguments, wanted=[names[i] for i in wanted])
        assert [o.name for o in op.outputs] == [f"d_{names[i]}" for i in wanted]


def test_lerp_an_unwanted_gradient_costs_nothing() -> None:
    x, y, w = seeded((2, 4), 0), seeded((2, 4), 1), seeded((1,), 2)
    only_x = fg.ops.lerp.backward(x, y, w, wanted=["input"])
    assert sorted(o.name for o in only_x.operands) == ["d_out", "weight"]
    assert not [s for s in only_x.statements if type(s).__name__ == "Reduce"]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_lerp_ends_are_exact(dtype: torch.dtype) -> None:
    x, y = (1e3 * seeded((257,), seed, dtype, False) for seed in (0, 1))
    for weight in (0.0, torch.zeros(1, dtype=dtype)):
        assert torch.equal(fg.ops.lerp(x, y, weight), x)
    for weight in (1.0, torch.ones(1, dtype=dtype)):
        assert torch.equal(fg.ops.lerp(x, y, weight), y)


@pytest.mark.emulator
def test_lerp_in_place() -> None:
    x, y, w = (seeded(shape, seed, torch.float32, False) for seed, shape in enumerate([(3, 5), (3, 5), (5,)]))
    expected = torch.lerp(x, y, w)
    assert fg.ops.lerp(x, y, w, out=x) is x
    torch.testing.assert_close(x, expected)


def test_lerp_in_place_does_not_broadcast() -> None:
    x, y = torch.zeros(3), torch.ones(2, 3)
    with pytest.raises(fg.ShapeError, match="never broadcast"):
        fg.ops.lerp(x, y, 0.5, out=x)
    assert not x.any()


# -- groups that become one kernel -----------------------------------------------------------------------------------


@fg.op
def mul_add_sub_relu_sigmoid(a: fg.Tensor, b: fg.Tensor, c: fg.Tensor, d: fg.Tensor) -> fg.Tensor:
    """sigmoid(relu(a b + c - d))."""
    return fg.sigmoid(fg.ops.relu(a * b + c - d))


@fg.op
def lstm_gate(x0: fg.Tensor, x1: fg.Tensor, x2: fg.Tensor, x3: fg.Tensor) -> fg.Tensor:
    """sigmoid(x0) x1 + tanh(x2) x3."""
    return fg.sigmoid(x0) * x1 + fg.tanh(x2) * x3


@fg.op
def relu_of_fma(a: fg.Tensor, b: fg.Tensor, c: fg.Tensor) -> fg.Tensor:
    """relu(a b + c)."""
    return fg.ops.relu(a * b + c)


@fg.op
def sum_sqrt_square(a: fg.Tensor, b: fg.Tensor, c: fg.Tensor) -> fg.Tensor:
    """sqrt((a + b + c)^2 + 1)."""
    total = a + b + c
    return fg.sqrt(total * total + 1)


@fg.op
def casts_in_the_middle(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
    """A float16 product of float32 arguments, back in float32."""
    return (a.to(fg.float16) * b.to(fg.float16)).to(fg.float32) + a


@fg.op
def chain_of_casts(a: fg.Tensor) -> fg.Tensor:
    """Through float16, bfloat16 and float64."""
    return a.to(fg.float16).to(fg.bfloat16).to(fg.float64).to(fg.float32) * 2


@fg.op
def constants_and_scales(a: fg.Tensor, scale: float = 0.5) -> fg.Tensor:
    """scale (a + 3) - 1."""
    return scale * (a + 3) - 1


@fg.op
def relu_then_product(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
    """relu(a) b, whose backward is relu_grad and mul_grad in one."""
    return fg.ops.relu(a) * b


GROUPS: list[tuple[Any, Callable[..., torch.Tensor], int]] = [
    (mul_add_sub_relu_sigmoid, lambda a, b, c, d: torch.sigmoid(torch.relu(a * b + c - d)), 4),
    (lstm_gate, lambda a, b, c, d: torch.sigmoid(a) * b + torch.tanh(c) * d, 4),
    (relu_of_fma, lambda a, b, c: torch.relu(a * b + c), 3),
    (sum_sqrt_square, lambda a, b, c: torch.sqrt((a + b + c) ** 2 + 1), 3),
    (constants_and_scales, lambda a: 0.5 * (a + 3) - 1, 1),
    (relu_then_product, lambda a, b: torch.relu(a) * b, 2),
]


def kernels(op: Any) -> int:
    from fusegen.pipeline import compile_op

    return len(compile_op(op).kernels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("op", "theirs", "count"), GROUPS, ids=[op.name for op, *_ in GROUPS])
def test_a_group_is_one_kernel(op: Any, theirs: Callable[..., Any], count: int, dtype: torch.dtype) -> None:
    for shape in [(32, 64), (32, 128)] if dtype is torch.float16 else [(32, 64)]:
        arguments = [seeded(shape, seed, dtype) for seed in range(count)]
        check_wide(op, theirs, arguments)
    assert kernels(op.trace(*arguments)) == kernels(op.backward(*arguments)) == 1


def test_groups_broadcast() -> None:
    # Their pass refused unequal shapes.
    a, b, c = seeded((8, 16), 0), seeded((16,), 1), seeded((8, 1), 2)
    check_wide(relu_of_fma, lambda a, b, c: torch.relu(a * b + c), [a, b, c])


@pytest.mark.emulator
def test_casts_round_where_they_stand() -> None:
    a, b = seeded((32, 64), 0, torch.float32), seeded((32, 64), 1, torch.float32)

    def theirs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        # A cast rounds; the product of two halves is not rounded again before it is widened, nor is the gradient.
        rounded = [v + (v.detach().float().half().to(v.dtype) - v.detach()) for v in (a, b)]
        return rounded[0] * rounded[1] + a

    check_wide(casts_in_the_middle, theirs, [a, b])
    x = seeded((32, 64), 2, torch.float32, False)
    assert torch.equal(chain_of_casts(x), x.half().bfloat16().double().float() * 2)
    assert kernels(chain_of_casts.trace(x)) == kernels(casts_in_the_middle.trace(a, b)) == 1


@pytest.mark.parametrize("name", ["minimum", "maximum"])
def test_ties_share_the_gradient(name: str) -> None:
    # Their min/max sent a tie's whole gradient to y.
    a, b = (torch.tensor([1.0, 2.0, 3.0], requires_grad=True) for _ in range(2))
    ours = torch.autograd.grad(getattr(fg.ops, name)(a, b).sum(), [a, b])
    theirs = torch.autograd.grad(getattr(torch, name)(a, b).sum(), [a, b])
    torch.testing.assert_close(ours, theirs)


@pytest.mark.emulator
def test_lstm_backward_writes_packed_gates_and_bias() -> None:
    gates, cell, bias = seeded((128, 64), 0), seeded((128, 16), 1), seeded((64,), 2)

    def theirs(gates: torch.Tensor, cell: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        i, f, g, o = (gates + bias).chunk(4, -1)
        c = cell * torch.sigmoid(f) + torch.sigmoid(i) * torch.tanh(g)
        return torch.tanh(c) * torch.sigmoid(o), c

    check_wide(fg.ops.lstm_cell, theirs, [gates, cell, bias])
    assert kernels(fg.ops.lstm_cell.trace(gates, cell, bias)) == 1
    packed = {o.packed.base for o in fg.ops.lstm_cell.backward(gates, cell, bias).outputs if o.packed}
    assert packed == {"d_gates", "d_bias"}

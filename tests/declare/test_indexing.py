"""Elements at positions that a tensor tells, read and added. The functions are torch code, run as they stand and as an
op."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

import fusegen as fg
from fusegen.core.errors import DeclarationError, DtypeError, ShapeError
from fusegen.fuse.products import chain
from fusegen.fuse.steps import Scatter
from fusegen.inspect.passes import passes
from fusegen.inspect.product_cost import ScatterCost, steps_of
from fusegen.plan import scatter
from tests.support.call_paths import DEVICE
from tests.support.modes import MODES
from tests.support.oracles import draw

Case = tuple[Callable[..., Any], list[tuple[int, tuple[int, ...]]], list[tuple[int, ...]]]
CASES: dict[str, Case] = {}
DISTINCT: dict[str, int] = {}


def case(
    indices: list[tuple[int, tuple[int, ...]]], *shapes: tuple[int, ...], distinct: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of torch, of indices (how many places there are, and their shape), and of float tensors. Along the
    dimension ``distinct`` no place comes twice."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__] = function, indices, list(shapes)
        if distinct is not None:
            DISTINCT[function.__name__] = distinct
        return function

    return add


@case([(5, (7,))], (5, 4))
def rows(i: Any, x: Any) -> Any:
    return torch.sin(x[i])


@case([(4, (7,))], (5, 4))
def columns(i: Any, x: Any) -> Any:
    return torch.sin(x[:, i])


@case([(4, (3, 2))], (2, 4, 3))
def places_of_two_dimensions(i: Any, x: Any) -> Any:
    return torch.sin(x[:, i])


@case([(5, ())], (5, 4))
def one_row(i: Any, x: Any) -> Any:
    return torch.sin(x[i])


@case([(6, (2, 3))], (6, 4))
def embedding(i: Any, table: Any) -> Any:
    return F.embedding(i, table).tanh()


@case([(6, (2, 3))], (6, 8), (3, 8), (8,), (8,))
def norm_of_an_embedding(i: Any, table: Any, position: Any, weight: Any, bias: Any) -> Any:
    return F.layer_norm(F.embedding(i, table) + position, position.shape[-1:], weight, bias)


@case([(6, (9,))], (6, 8), (8, 4))
def embedding_before_a_product(i: Any, table: Any, weight: Any) -> Any:
    return torch.tanh(F.embedding(i, table) @ weight)


@case([(4, (7,))], (5, 4))
def index_select(i: Any, x: Any) -> Any:
    return torch.index_select(x, 1, i) ** 2


@case([(4, (3, 6))], (3, 4))
def gather(i: Any, x: Any) -> Any:
    return torch.gather(x, 1, i) ** 2


@case([(3, (2, 5, 4))], (2, 3, 4))
def gather_along_the_middle(i: Any, x: Any) -> Any:
    return x.gather(1, i) * 2


@case([(4, (3, 6))], (5, 4))
def gather_of_the_first(i: Any, x: Any) -> Any:
    return torch.gather(x.exp(), 1, i) ** 2


@case([], (3, 130))
def slices_with_steps(x: Any) -> Any:
    return torch.sin(x[:, 1::2]) * x[:, ::2] + x[:, 5:6]


@case([], (3, 70))
def neighbours(x: Any) -> Any:
    return (x[:, 1:] - x[:, :-1]) ** 2


@case([], (3, 90), (3, 2))
def side_by_side(x: Any, y: Any) -> Any:
    return torch.cat([x.exp(), y, x[:, 3:3]], -1) ** 2


@case([], (3, 70))
def turned_and_padded(x: Any) -> Any:
    return F.pad(torch.flip(x, (1,)).exp(), (3, 1)) * torch.roll(F.pad(x, (0, 4), "reflect"), 5, -1)


@case([(4, (1, 6))], (3, 4))
def take_along_dim(i: Any, x: Any) -> Any:
    return torch.take_along_dim(x, i, -1).exp()


@case([(4, (5, 1))], (5, 4))
def cross_entropy(i: Any, x: Any) -> Any:
    return -x.log_softmax(-1).gather(1, i)[:, 0]


@case([(6, (5,)), (3, (5,))], (6, 4), (3, 4))
def two_tables(i: Any, j: Any, users: Any, items: Any) -> Any:
    return (users[i] * items[j]).sum(-1)


@case([(6, (5,)), (6, (5,))], (6, 4))
def one_table_twice(i: Any, j: Any, table: Any) -> Any:
    return torch.sigmoid((table[i] * table[j]).sum(-1))


@case([(5, (7,))], (5, 4), (7, 4))
def index_add(i: Any, x: Any, source: Any) -> Any:
    return torch.index_add(x, 0, i, source) ** 2


@case([(4, (7,))], (5, 4), (5, 7))
def index_add_of_columns(i: Any, x: Any, source: Any) -> Any:
    return torch.index_add(x, 1, i, source, alpha=2).tanh()


@case([(5, (7, 4))], (5, 4), (7, 4))
def scatter_add(i: Any, x: Any, source: Any) -> Any:
    return x.scatter_add(0, i, source.exp()) ** 2


@case([(5, (7, 3))], (5, 4), (7, 3))
def scatter_add_of_the_first(i: Any, x: Any, source: Any) -> Any:
    return x.scatter_add(0, i, source.exp()) ** 2


@case([(4, (5, 7))], (5, 4), (5, 7))
def scatter_add_along_rows(i: Any, x: Any, source: Any) -> Any:
    return torch.scatter_add(x, 1, i, source) ** 2


@case([(5, (9,)), (5, (9,))], (5, 4), (9,))
def messages(of: Any, to: Any, x: Any, weight: Any) -> Any:
    return torch.index_add(torch.zeros_like(x), 0, to, torch.relu(x[of]) * weight[:, None])


@case([(5, (9,)), (5, (9,))], (5, 4), (9,))
def graph_attention(of: Any, to: Any, x: Any, score: Any) -> Any:
    score = score.exp()
    total = torch.index_add(torch.zeros_like(x[:, 0]), 0, to, score)
    return torch.index_add(torch.zeros_like(x), 0, to, x[of] * (score / total[to])[:, None])


@case([(5, (6,))], (5, 4))
def of_what_is_computed(i: Any, x: Any) -> Any:
    return torch.sin(x * 2)[i] + x.softmax(-1)[i]


@case([(5, (6,))], (5, 4), (6, 4))
def sum_over_rows(i: Any, x: Any, y: Any) -> Any:
    return (x[i] * y).sum(0)


@case([(5, (6,))], (5, 4), (6, 4))
def softmax_over_rows(i: Any, x: Any, y: Any) -> Any:
    return torch.softmax(x[i] * y, 0).mT


@case([(4, (6, 3))], (4, 3))
def groups_of_places(i: Any, x: Any) -> Any:
    return torch.softmax(torch.gather(x.sin(), 0, i).unflatten(0, (2, -1)), 1).flatten(0, 1)


@case([(5, (6,)), (6, (4,))], (5, 8))
def places_in_places(i: Any, j: Any, x: Any) -> Any:
    return torch.softmax(x[i][j], -1)


@case([(5, (6,)), (4, (3,))], (5, 8))
def along_two_dimensions(i: Any, j: Any, x: Any) -> Any:
    return torch.sin(x[i][:, j])


@case([(5, (6,))], (5, 4))
def two_results(i: Any, x: Any) -> Any:
    taken = x[i]
    return taken.exp(), taken.mean(-1)


@case([(6, (4, 3))], (6, 3), (4, 3), distinct=0)
def scatter_rows(i: Any, x: Any, source: Any) -> Any:
    return torch.scatter(x, 0, i, source.exp()) ** 2


@case([(4, (5, 7))], (5, 4))
def scatter_a_number(i: Any, x: Any) -> Any:
    return torch.scatter(x.sin(), 1, i, value=2.5) * x


@case([(6, (4,))], (3, 6), (3, 4), distinct=0)
def index_copy(i: Any, x: Any, source: Any) -> Any:
    return x.index_copy(1, i, source).tanh()


@case([(6, (4,))], (6, 3))
def index_fill(i: Any, x: Any) -> Any:
    return torch.index_fill(x.exp(), 0, i, -1.5).sin()


@case([(4, (9,))], (4, 3), (9, 3), (9,))
def softmax_of_segments(i: Any, x: Any, values: Any, score: Any) -> Any:
    nothing = torch.zeros_like(x[:, 0])
    top = nothing.scatter_reduce(0, i, score, "amax", include_self=False)
    weight = torch.exp(score - top[i])
    weight = weight / nothing.index_add(0, i, weight)[i]
    return torch.index_add(x, 0, i, weight[:, None] * values)


def _combining(how: str, include_self: bool) -> None:
    def along_rows(i: Any, x: Any, source: Any) -> Any:
        return torch.scatter_reduce(x, 1, i, source.sin(), how, include_self=include_self).sin()

    def by_row(i: Any, x: Any, source: Any) -> Any:
        return x.index_reduce(0, i, source, how, include_self=include_self).sin()

    kind = f"{how}_{'with' if include_self else 'without'}_self"
    along_rows.__name__, by_row.__name__ = f"scatter_{kind}", f"index_{kind}"
    case([(4, (5, 7))], (5, 4), (5, 7))(along_rows)
    if how != "sum":
        case([(6, (5,))], (6, 3), (5, 3))(by_row)


for _how in ("sum", "prod", "mean", "amax", "amin"):
    for _include_self in (True, False):
        _combining(_how, _include_self)


def drawn(
    name: str, dtype: torch.dtype = torch.float64, device: Any = DEVICE
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Indices, and leaves."""
    _, indices, shapes = CASES[name]
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    if (dim := DISTINCT.get(name)) is not None:
        sizes = [(*shape[:dim], n, *shape[dim + 1 :]) for n, shape in indices]
        orders = [torch.rand(size, generator=generator).argsort(dim) for size in sizes]
        places = [order.narrow(dim, 0, shape[dim]) for order, (_, shape) in zip(orders, indices, strict=True)]
    else:
        places = [torch.randint(0, n, shape, generator=generator) for n, shape in indices]
    places = [place.to(device) for place in places]
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return places, [leaf.to(device, dtype).requires_grad_() for leaf in leaves]


def bound(function: Callable[..., Any], places: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """The function at these places, which are arrays where the leaves are."""

    def call(*leaves: Any, **options: Any) -> Any:
        given = places if isinstance(leaves[0], torch.Tensor) else [place.cpu().numpy() for place in places]
        return function(*given, *leaves, **options)

    return call


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_every_mode(name: str, mode: str) -> None:
    if mode == "jvp" and re.match(r"scatter_prod|index_(?!add|copy|fill|select)", name):
        pytest.skip("torch has no forward mode of it; test_gradcheck has ours")
    with_cotangents = mode in ("all", "compiled", "halves", "arrays")  # which the modes have on the CPU
    places, leaves = drawn(name, device="cpu" if with_cotangents else DEVICE)
    function = CASES[name][0]
    MODES[mode](bound(fg.op(function), places), bound(function, places), leaves)


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name: str) -> None:
    places, leaves = drawn(name)
    op = bound(fg.op(CASES[name][0]), places)
    fast = sum(leaf.numel() for leaf in leaves) > 100  # along directions, not along each element
    assert gradcheck(op, leaves, check_forward_ad=True, fast_mode=fast)
    assert gradgradcheck(op, leaves, fast_mode=fast)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_lower_precision(name: str, dtype: torch.dtype) -> None:
    places, leaves = drawn(name, dtype)
    function, rtol = CASES[name][0], 4 * torch.finfo(dtype).eps
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    found, expected = fg.op(function)(*places, *leaves), function(*places, *wide)
    pairs = list(zip(found, expected, strict=True)) if isinstance(found, tuple) else [(found, expected)]
    weights = [torch.randn_like(result) for _, result in pairs]
    ours = torch.autograd.grad([result for result, _ in pairs], leaves, [w.to(dtype) for w in weights])
    theirs = torch.autograd.grad([result for _, result in pairs], wide, [w.to(dtype).double() for w in weights])
    for result, other in [*pairs, *zip(ours, theirs, strict=True)]:
        scale = other.abs().max().item()
        torch.testing.assert_close(result.double(), other, rtol=rtol, atol=8 * rtol * (1 + scale))


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_integers_of_every_kind_tell_places(kind: torch.dtype) -> None:
    (places,), (table,) = drawn("rows", torch.float32)
    found = fg.op(rows)(places.to(kind), table)
    torch.testing.assert_close(found, rows(places, table))
    found.sum().backward()
    other = table.detach().clone().requires_grad_()
    rows(places, other).sum().backward()
    torch.testing.assert_close(table.grad, other.grad)


def tables(rows: int, columns: int) -> list[torch.Tensor]:
    """As they lie: along rows, along columns, with gaps, from an address that no vector has."""
    flat = torch.randn(rows * columns + 1, device=DEVICE)
    return [
        torch.randn(rows, columns, device=DEVICE),
        torch.randn(columns, rows, device=DEVICE).mT,
        torch.randn(rows, 2 * columns, device=DEVICE)[:, ::2],
        flat[1:].view(rows, columns),
    ]


@pytest.mark.parametrize("shape", [(5, 1), (1, 16), (300, 33), (64, 256), (7, 1030)], ids=str)
@pytest.mark.parametrize("count", [1, 6, 1000])
def test_sizes_and_layouts(shape: tuple[int, int], count: int) -> None:
    """Elementwise and by rows; rows in vectors, and not."""
    places = torch.randint(0, shape[0], (count,), device=DEVICE)
    other, weight = (torch.randn(count, shape[1], device=DEVICE) for _ in range(2))

    def scaled(i: Any, x: Any, y: Any) -> Any:
        return torch.tanh(F.embedding(i, x) * y)

    def normal(i: Any, x: Any, y: Any) -> Any:
        x = F.embedding(i, x) + y
        return x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()

    for function in (scaled, normal):
        op = fg.op(function)
        for table in tables(*shape):
            ours, theirs = (table.detach().requires_grad_() for _ in range(2))
            found, expected = op(places, ours, other), function(places, theirs, other)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            gradients = [torch.autograd.grad((out * weight).sum(), x) for out, x in ((found, ours), (expected, theirs))]
            torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)


def test_what_there_is_no_place_for() -> None:
    """Without reports, too, it reads zero, and is left out of what is added: no other memory is touched."""
    table, places = torch.randn(3, 4, dtype=torch.float64, device=DEVICE), torch.tensor([5, -4, 1, -1], device=DEVICE)
    table.requires_grad_()
    found = fg.op(lambda i, x: x[i] * 2, check_indices=False)(places, table)
    expected = torch.stack([0 * table[0], 0 * table[0], table[1] * 2, table[2] * 2])
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    torch.testing.assert_close(table.grad, torch.tensor([0.0, 2.0, 2.0], device=DEVICE).double()[:, None].expand(3, 4))
    rows_of = torch.ones(4, 4, device=DEVICE)
    adding = fg.op(lambda x, i, s: fg.index_add(x, 0, i, s), check_indices=False)
    added = adding(torch.zeros(3, 4, device=DEVICE), places, rows_of)
    torch.testing.assert_close(added[:, 0], torch.tensor([0.0, 1.0, 1.0], device=DEVICE))


def test_nothing_of_other_rows_is_read() -> None:
    """Not even multiplied by zero."""
    table = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf], [3.0, 4.0]], device=DEVICE, requires_grad=True)
    places = torch.tensor([2, 0, 0], device=DEVICE)
    found = fg.op(lambda i, x: torch.exp(x[i]))(places, table)
    torch.testing.assert_close(found, table.detach()[places].exp())
    (gradient,) = torch.autograd.grad(found.sum(), table)
    torch.testing.assert_close(gradient[1], torch.zeros(2, device=DEVICE))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_tables_that_are_no_floats(dtype: torch.dtype) -> None:
    table = torch.randint(0, 2 if dtype is torch.bool else 100, (5, 4), device=DEVICE).to(dtype)
    places = torch.randint(0, 5, (7,), device=DEVICE)
    assert torch.equal(fg.op(lambda i, x: x[i])(places, table), table[places])
    if dtype is not torch.bool:
        total = fg.op(lambda x, i, s: x.index_add(0, i, s))(table, places, table[places] // 50)
        assert torch.equal(total, table.index_add(0, places, table[places] // 50))


@pytest.mark.parametrize("padding", [2, -3])
def test_a_padding_row_has_no_gradient(padding: int) -> None:
    def squares(i: Any, x: Any) -> Any:
        return F.embedding(i, x, padding_idx=padding) ** 2

    table = torch.randn(5, 4, device=DEVICE, requires_grad=True)
    places = torch.tensor([0, 2, 2, 4], device=DEVICE)
    (found,) = torch.autograd.grad(fg.op(squares)(places, table).sum(), table)
    (expected,) = torch.autograd.grad(squares(places, table).sum(), table)
    torch.testing.assert_close(found, expected)


def test_the_last_for_a_place_counts_and_has_the_gradient() -> None:
    x, source = (torch.randn(n, 2, device=DEVICE, dtype=torch.float64, requires_grad=True) for n in (3, 4))
    places = torch.tensor([1, 1, -3, 5], device=DEVICE)[:, None].expand(4, 2)  # the last one is outside
    found = fg.op(lambda i, x, s: fg.scatter(x, 0, i, s), name="put", check_indices=False)(places, x, source)
    torch.testing.assert_close(found, torch.stack([source[2], source[1], x[2]]))
    weight = torch.randn_like(found)
    d_x, d_source = torch.autograd.grad(found, (x, source), weight)
    nothing = torch.zeros_like(weight[0])
    torch.testing.assert_close(d_x, torch.stack([nothing, nothing, weight[2]]))
    torch.testing.assert_close(d_source, torch.stack([nothing, weight[1], weight[0], nothing]))


@pytest.mark.parametrize("how", ["prod", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_gradients_of_what_ties_or_is_zero(how: str, include_self: bool) -> None:
    """As torch's: elements that tie share, and of one zero the others are the gradient."""
    places = torch.tensor([0, 0, 1, 1, 2, 0, 3], device=DEVICE)
    values = torch.tensor([2.0, 2.0, 0.0, 3.0, 0.0, 1.0, -1.0], device=DEVICE, dtype=torch.float64)
    # Without x, torch counts it among what ties nevertheless; we do not.
    x = torch.tensor([2.0 if include_self else 7.0, 4.0, 0.5, -3.0, 5.0], device=DEVICE, dtype=torch.float64)
    weight = torch.tensor([1.5, -2.0, 0.5, 3.0, 0.25], device=DEVICE, dtype=torch.float64)

    def run(function: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in (x, values)]
        result = function(places, *leaves)
        return result, *torch.autograd.grad(result, leaves, weight)

    def combined(i: Any, x: Any, source: Any) -> Any:
        return torch.scatter_reduce(x, 0, i, source, how, include_self=include_self)

    for found, expected in zip(run(fg.op(combined)), run(combined), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("include_self", [True, False])
def test_products_with_zeros_have_further_derivatives(include_self: bool) -> None:
    """Of one zero, in x or in the source, and of two for one place."""
    places = torch.tensor([0, 0, 1, 2, 2, 3, 3], device=DEVICE)
    values = torch.tensor([2.0, 3.0, 5.0, 0.0, 7.0, 0.0, 0.0], device=DEVICE, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([0.0, 0.0, 4.0, 1.5], device=DEVICE, dtype=torch.float64, requires_grad=True)
    op = fg.op(lambda i, x, s: fg.scatter_reduce(x, 0, i, s, "prod", include_self=include_self))

    def call(x: Any, values: Any) -> Any:
        return op(places, x, values)

    assert gradcheck(call, (x, values), check_forward_ad=True)
    assert gradgradcheck(call, (x, values), check_fwd_over_rev=True)


@pytest.mark.parametrize("how", ["amax", "amin"])
def test_nan_wins_among_gradients_too(how: str) -> None:
    places = torch.tensor([0, 0, 1], device=DEVICE)
    values = torch.tensor([torch.nan, 1.0, 2.0], device=DEVICE, dtype=torch.float64)
    x = torch.zeros(3, device=DEVICE, dtype=torch.float64)
    found = []
    for function in (
        fg.op(lambda i, x, s: x.scatter_reduce(0, i, s, how)),
        lambda i, x, s: x.scatter_reduce(0, i, s, how),
    ):
        leaves = [t.clone().requires_grad_() for t in (x, values)]
        result = function(places, *leaves)
        found.append(torch.autograd.grad(result, leaves, torch.tensor([2.0, 3.0, 5.0], device=DEVICE).double()))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mean_of_more_than_halves_can_count(dtype: torch.dtype) -> None:
    source = torch.full((70001,), 0.5, dtype=dtype, device=DEVICE)
    places = torch.zeros(70001, dtype=torch.int64, device=DEVICE)
    x = torch.full((2,), 3.0, dtype=dtype, device=DEVICE)
    found = fg.op(lambda i, x, s: x.scatter_reduce(0, i, s, "mean", include_self=False))(places, x, source)
    assert found.tolist() == [0.5, 3.0]


def test_no_rows_at_all() -> None:
    x, y = (torch.zeros(0, n, device=DEVICE, requires_grad=True) for n in (4, 3))
    places = torch.zeros(0, 3, dtype=torch.int64, device=DEVICE)
    for function in (
        lambda i, x, y: torch.gather(x, 1, i) * y, lambda i, x, y: torch.scatter_add(x, 1, i, y),
        lambda i, x, y: torch.scatter(x, 1, i, y), lambda i, x, y: torch.scatter_reduce(x, 1, i, y, "prod"),
    ):  # fmt: skip
        result = fg.op(function, name="nothing")(places, x, y)
        assert result.shape == function(places, x, y).shape
        result.sum().backward()
        assert x.grad.shape == x.shape


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("how", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_integers_are_combined(how: str, include_self: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, source = (torch.randint(0, 9, (n, 3), generator=generator).to(DEVICE, dtype) for n in (5, 7))
    places = torch.randint(0, 5, (7, 3), generator=generator).to(DEVICE)

    def combined(i: Any, x: Any, source: Any) -> Any:
        return torch.scatter_reduce(x, 0, i, source, how, include_self=include_self)

    found = fg.op(combined)(places, x, source)
    assert found.dtype is dtype
    torch.testing.assert_close(found, combined(places, x, source))


def test_many_for_one_place_are_added_up_exactly() -> None:
    """In float32 where they are halves, and rounded once: 2,000 times 1 / 512 + 1 is no longer seen by bfloat16."""
    places = torch.zeros(2000, dtype=torch.int64, device=DEVICE)
    table = torch.zeros(3, 8, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    fg.op(lambda i, x: x[i] * 1.0078125)(places, table).sum().backward()
    assert table.grad is not None
    torch.testing.assert_close(table.grad[0], torch.full((8,), 2016.0, dtype=torch.bfloat16, device=DEVICE))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("batch, shape", [(0, (50, 3)), (1, (2, 30, 3)), (0, (40,))], ids=str)
def test_the_routine_for_what_no_kernel_adds(dtype: torch.dtype, batch: int, shape: tuple[int, ...]) -> None:
    """What has no place may be anything."""
    count, rows = 12, 1 if not batch else shape[0]
    places = torch.randint(-3, shape[batch] + 3, (*shape[:batch], count), device=DEVICE)
    updates = torch.randint(-8, 8, (*shape[:batch], count, *shape[batch + 1 :]), device=DEVICE).to(dtype)
    inside = (places >= 0) & (places < shape[batch])
    expected = torch.zeros(shape, dtype=dtype, device=DEVICE)
    flat = (places + shape[batch] * torch.arange(rows, device=DEVICE).reshape(-1, *[1] * batch)).flatten()
    columns = expected.view(rows * shape[batch], -1)
    columns.index_add_(0, flat[inside.flatten()], updates.reshape(rows * count, -1)[inside.flatten()])
    if dtype.is_floating_point:
        updates[~inside] = torch.nan
    again = torch.full(shape, 7, dtype=dtype, device=DEVICE)
    scatter.scatter_add(again, places, updates, batch, onto=False)
    torch.testing.assert_close(again, expected)
    scatter.scatter_add(again, places, updates, batch, onto=True)
    torch.testing.assert_close(again, expected + expected)


def test_the_same_bits_each_time() -> None:
    places = torch.randint(0, 7, (5000,), device=DEVICE)
    table, weight = torch.randn(7, 33, device=DEVICE, requires_grad=True), torch.randn(5000, 33, device=DEVICE)
    op = fg.op(lambda i, x, y: torch.tanh(x[i]) * y)
    found = [torch.autograd.grad(op(places, table, weight).sum(), table)[0] for _ in range(10)]
    assert all(torch.equal(found[0], other) for other in found[1:])


def _put_and_combined(i: Any, x: Any, y: Any) -> Any:
    top = fg.scatter_reduce(x, 0, i, y, "amax")
    return fg.scatter(x, 0, i, y) * top, fg.scatter_reduce(x, 0, i, y * 0.1, "prod", include_self=False)


def test_combined_to_the_same_bits_each_time() -> None:
    places = torch.randint(0, 7, (500, 33), device=DEVICE)
    table, updates = torch.randn(7, 33, device=DEVICE, requires_grad=True), torch.randn(500, 33, device=DEVICE)
    op = fg.op(_put_and_combined)

    def run() -> list[torch.Tensor]:
        results = op(places, table, updates.requires_grad_())
        cotangents = [torch.ones_like(result) for result in results]
        return [*results, *torch.autograd.grad(results, (table, updates), cotangents)]

    first = run()
    assert all(torch.equal(a, b) for _ in range(9) for a, b in zip(first, run(), strict=True))


def test_where_torch_is_to_be_deterministic() -> None:
    places = torch.randint(0, 7, (50, 3), device=DEVICE)
    table, updates = torch.randn(7, 3, device=DEVICE, requires_grad=True), torch.randn(50, 3, device=DEVICE)
    op = fg.op(_put_and_combined)
    expected = op(places, table, updates)
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        found = op(places, table, updates)
        (gradient,) = torch.autograd.grad(found, table, [torch.ones_like(result) for result in found])
    finally:
        torch.set_deterministic_debug_mode(before)
    assert all(map(torch.equal, found, expected)) and gradient.isfinite().all()


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_graph_replays_what_is_combined() -> None:
    places = torch.randint(0, 7, (9, 4), device=DEVICE)
    table, updates = torch.randn(7, 4, device=DEVICE), torch.randn(9, 4, device=DEVICE)
    op = fg.op(_put_and_combined)
    op(places, table, updates)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = op(places, table, updates)
    updates.copy_(torch.randn_like(updates))
    graph.replay()
    for mine, expected in zip(found, op(places, table, updates), strict=True):
        assert torch.equal(mine, expected)


def test_numpy() -> None:
    table, places = np.random.default_rng(0).normal(size=(5, 4)), np.array([[1, 4], [0, 1]])
    op = fg.op(lambda i, x: np.tanh(np.take(x, i, axis=0)))
    np.testing.assert_allclose(op(places, table), np.tanh(table[places]))
    flat = fg.op(lambda i, x: np.take(x * 2, i))
    np.testing.assert_allclose(flat(np.array([[0, 7], [19, -1]]), table), np.take(table * 2, [[0, 7], [19, -1]]))
    along = fg.op(lambda i, x: np.take_along_axis(x, i, axis=1))
    np.testing.assert_allclose(along(np.array([[1, 3]]), table[:1]), table[:1, [1, 3]])
    added = fg.op(lambda x, i, s: fg.index_add(x, 0, i, s))
    np.testing.assert_allclose(added(table, np.array([1, 1]), table[:2])[1], table[1] + table[0] + table[1])


def test_what_follows_reads_rows_itself() -> None:
    """One kernel, that has no sum over the table, and reads rows in vectors."""
    op = fg.op(norm_of_an_embedding)
    shapes = (5000, 256), (64, 256), (256,), (256,)
    given = (torch.zeros(64, dtype=torch.int64), *(torch.empty(*shape, dtype=torch.bfloat16) for shape in shapes))
    (item,) = passes(op, given, {}, "forward")
    assert item.text.count("__global__") == 1
    assert "fg::gather<8>(table_ptr" in item.text and "where(" not in item.text


def test_a_gradient_is_one_scatter_and_keeps_no_rows() -> None:
    places, leaves = drawn("embedding")
    item = list(passes(fg.op(embedding), (*places, *leaves), {}, "backward"))[-1]
    cut = chain(item.op)
    assert cut is not None
    (step,) = [step for step in cut.steps if isinstance(step, Scatter)]
    assert (step.left.name, step.result, step.axis) == ("i", "d_table", next(o for o in item.op.outputs).shape[0])
    assert {operand.name for operand in item.op.operands} == {"i", "table", "d_out"}
    assert cut.text == "1 scatter"
    (cost,) = [step for step in steps_of(item, cut) if isinstance(step, ScatterCost)]
    assert (cost.m, cost.n, cost.operations) == (6, 4, 24)
    assert cost.read == {"i": 6 * 8, step.right.name: 6 * 4 * 8} and cost.written == {"d_table": 6 * 4 * 8}


@pytest.mark.parametrize(
    "function, given, error, says",
    [
        (lambda i, x: fg.take(x, i), (torch.ones(2), torch.ones(3, 4)), DtypeError, "integers"),
        (lambda i, x: fg.take(x, i), (torch.ones(2) > 0, torch.ones(3, 4)), DtypeError, "fg.where"),
        (lambda i, x: fg.take(x, i, 2), (torch.zeros(2, dtype=torch.int64), torch.ones(3, 4)), ShapeError, "axis 2"),
        (lambda i, x: fg.take(x, i), (torch.zeros(2, dtype=torch.int64), torch.ones(())), ShapeError, "dimension"),
        (
            lambda i, x: fg.take_along_axis(x, i),
            (torch.zeros(2, dtype=torch.int64), torch.ones(3, 4)), ShapeError, "as many dimensions",
        ),
        (
            lambda i, x: torch.gather(x, 1, i),
            (torch.zeros(4, 1, dtype=torch.int64), torch.ones(3, 4)), ShapeError, "slice the index",
        ),
        (lambda i, x: x[i, i > 0], (torch.zeros(3, dtype=torch.int64), torch.ones(3, 4)), DeclarationError, "tensors"),
        (
            lambda i, x: fg.index_add(fg.sum(x) + x[:1], 0, i, x),
            (torch.zeros(1, dtype=torch.int64), torch.ones(3, 4)), ShapeError, "as many places",
        ),
        (
            lambda i, x: F.embedding(i, x, max_norm=1.0),
            (torch.zeros(3, dtype=torch.int64), torch.ones(3, 4)), DeclarationError, "max_norm",
        ),
        (
            lambda i, x: fg.scatter_reduce(x, 0, i[:, None], 1.0, "max"),
            (torch.zeros(3, dtype=torch.int64), torch.ones(3, 4)), DeclarationError, "amax",
        ),
        (
            lambda i, x: x.scatter(0, i),
            (torch.zeros(3, 4, dtype=torch.int64), torch.ones(3, 4)), DeclarationError, "no source",
        ),
        (
            lambda i, x: fg.scatter(fg.cast(x, fg.int32), 0, i, 0.5),
            (torch.zeros(3, 4, dtype=torch.int64), torch.ones(3, 4)), DtypeError, "one dtype",
        ),
        (
            lambda i, x: fg.index_copy(x, 0, i[:, None], x),
            (torch.zeros(3, dtype=torch.int64), torch.ones(3, 4)), ShapeError, "fg.scatter",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_explained(function: Any, given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        fg.op(function, name="wrong")(*given)


def same_places(x: Any) -> Any:
    """Everything to one place, and back: along the axis, places look as if they varied."""
    if isinstance(x, torch.Tensor):
        best = x.argmax(-1, keepdim=True).expand(x.shape)
        return torch.zeros(4, dtype=x.dtype).scatter_add(0, best, x).gather(0, best).norm(dim=-1)
    best = fg.argmax(x, -1, keepdims=True) + 0 * fg.index(x, -1)
    return fg.norm(fg.take(fg.segment_sum(x, best, 4, -1), best, -1), axis=-1)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("compiled", "out", "halves", "some")])
def test_sums_along_an_axis_along_which_places_are_the_same(mode: str) -> None:
    MODES[mode](fg.op(same_places, name="same_places"), same_places, [draw(3, seed=1)])

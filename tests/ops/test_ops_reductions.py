"""The library's reductions: derivatives, accuracy beside torch's, ties, empty dimensions, options, what is refused."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.inspect.passes import passes
from tests.support.oracles import check_derivatives, check_no_worse, check_same, draw, gradients, pair, refused

INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
NAMES = ("all", "amax", "amin", "any", "argmax", "argmin", "mean", "prod", "std", "sum", "var")
SMOOTH = ("amax", "amin", "mean", "prod", "std", "sum", "var")


def test_all_are_here() -> None:
    assert tuple(sorted(n for n in fg.ops.__all__ if getattr(fg.ops, n).__module__.endswith(".reductions"))) == NAMES


@pytest.mark.parametrize("name", SMOOTH)
def test_first_and_second_derivatives(name: str) -> None:
    check_derivatives(lambda x: getattr(fg.ops, name)(x, 1), [draw(2, 3, 2)])


@pytest.mark.parametrize("name", ["sum", "mean", "var", "amax"])
def test_derivatives_over_several(name: str) -> None:
    check_derivatives(lambda x: getattr(fg.ops, name)(x, (0, 2), keepdim=True), [draw(2, 3, 2)])


# -- accuracy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SMOOTH)
def test_no_worse_than_torch(name: str, dtype: torch.dtype) -> None:
    x = draw(7, 300, low=0.9 if name == "prod" else 0.0, high=1.1).detach().to(dtype).requires_grad_()
    if name in ("var", "std", "prod") and dtype is torch.float32:
        # torch's CPU keeps float32's variance in float64, which its GPU and ours do not; products round in any order.
        check_same(*pair(name, 1), [x], rtol=5e-6, atol=1e-8)
    else:
        check_no_worse(*pair(name, 1), [x])


@pytest.mark.parametrize(("offset", "off"), [(1e2, 1e-5), (1e4, 1e-3), (1e6, 3e-2), (1e8, 0.1)])
@pytest.mark.parametrize("along", ["rows", "columns"])
def test_variance_far_from_zero(along: str, offset: float, off: float) -> None:
    """Squares of the values would cancel to nothing here: the deviation is 8 ulps of 1e8, and 16 of 1e6."""
    noise = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (offset + noise * max(1.0, 64 * offset / 1e8)).float()
    exact = x.double().var(1)
    laid_out = x if along == "rows" else x.T.contiguous().T
    assert ((fg.ops.var(laid_out, 1).double() - exact).abs() <= off * exact).all()
    assert ((fg.ops.std(laid_out, 1).double() - exact.sqrt()).abs() <= off * exact.sqrt()).all()
    assert (fg.ops.std(torch.full((3, 1000), offset), 1) <= 2.0**-23 * offset).all()


def test_halves_accumulate_in_float32() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.ones(4, 4096, dtype=dtype)
        assert (fg.ops.sum(x, 1) == 4096).all() and (fg.ops.mean(x, 1) == 1).all()
        assert (fg.ops.sum(torch.full((70000,), 0.5, dtype=dtype)) == 35000).all()


# -- ties, NaN, infinities -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_ties_share_the_gradient(name: str) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0], [INF, INF, -INF, -INF]], requires_grad=True)
    check_same(*pair(name, 1), [x])
    check_same(*pair(name, (0, 1)), [x])
    check_same(*pair(name), [x])


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_where_nan_wins_the_gradient_is_nan(name: str) -> None:
    x = torch.tensor([[1.0, NAN, 3.0], [2.0, 2.0, INF], [-INF, 1.0, 2.0], [NAN, NAN, NAN]], requires_grad=True)
    for dim in (1, ()):
        found, expected = (
            torch.autograd.grad(getattr(library, name)(x, dim).sum(), x)[0] for library in (fg.ops, torch)
        )
        torch.testing.assert_close(found, expected, equal_nan=True)
    ours = torch.autograd.grad(getattr(fg.ops, name)(x, 1), x, torch.tensor([1.0, INF, INF, 1.0]))[0]
    assert not ours[1:3].isnan().any(), "an infinite cotangent reaches nobody else, unlike torch's"


ROWS = [[1.0, 2, 3], [INF, 1, 2], [-INF, 1, INF], [NAN, 1, 2], [1, 2, NAN], [0.0, -0.0, 0.0], [-INF] * 3, [3, 1, 3]]


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_with_infinities_and_nan(name: str, along: str) -> None:
    x = torch.tensor(ROWS) if along == "rows" else torch.tensor(ROWS).T.contiguous().T
    torch.testing.assert_close(getattr(fg.ops, name)(x, 1), getattr(torch, name)(x, 1), equal_nan=True)


def test_the_first_of_several() -> None:
    x = torch.tensor([[2.0, 7, 7, 1], [5, 5, 5, 5], [NAN, 9, NAN, 9], [-0.0, 0, 0, -0.0]])
    assert fg.ops.argmax(x, 1).tolist() == [1, 0, 0, 0]
    assert fg.ops.argmin(x, 1).tolist() == [3, 0, 0, 0]
    assert fg.ops.argmax(x).item() == 8
    wide = torch.zeros(3, 5000)
    wide[:, 4321:] = 1
    assert fg.ops.argmax(wide, 1).tolist() == [4321] * 3 and fg.ops.argmax(wide).item() == 4321
    assert fg.ops.argmax(wide.T, 0, keepdim=True).shape == (1, 3)


@pytest.mark.parametrize("dim", [None, 0])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_a_place_that_no_row_on_chip_holds_is_found_in_one_pass(name: str, dim: int | None) -> None:
    ties = torch.randint(-3, 4, (1500, 33)).float()
    ours, theirs = getattr(fg.ops, name), getattr(torch, name)
    for x in (ties, ties.T, ties.where(ties < 3, NAN), ties[:, ::3]):
        assert torch.equal(ours(x, dim), theirs(x, dim))
    (item,) = passes(ours, (fg.TensorSpec(fg.float32, (3000, 1001)), dim), {})
    assert len(item.kernels) == 1 and item.text.count("input_ptr,") == 1


@pytest.mark.parametrize("large", [3e7, 1e4])
def test_sums_of_large_terms_that_alternate(large: float) -> None:
    """Neighbours meet before they are large, along the fast axis, across it, and in everything."""
    x = torch.randn(512, 1024)
    x[:, ::2] += large
    x[:, 1::2] -= large
    across = x.T.contiguous()
    for ours, theirs, exact in (
        (fg.ops.sum(x, 1), x.sum(1), x.double().sum(1)),
        (fg.ops.sum(across, 0), across.sum(0), across.double().sum(0)),
        (fg.ops.sum(x), x.sum(), x.double().sum()),
    ):
        worst = (theirs.double() - exact).abs().max().clamp(min=1e-7 * large)
        assert ((ours.double() - exact).abs().max() <= worst).item()


def test_a_sum_of_one_large_term_and_many_small_ones() -> None:
    x = torch.ones(1 << 24)
    x[0] = 1e8
    assert abs(fg.ops.sum(x).item() - x.double().sum().item()) <= 16


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_the_gradient_of_a_product_with_zeros(zeros: int) -> None:
    x = draw(3, 4).detach()
    x[:, :zeros] = 0
    check_same(*pair("prod", 1), [x.requires_grad_()])
    check_same(*pair("prod"), [x])


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_the_second_gradient_of_a_product_with_zeros(zeros: int) -> None:
    x = draw(3, 4, dtype=torch.float64).detach()
    x[:, :zeros] = 0
    x.requires_grad_()
    ours, theirs = pair("prod", 1)
    assert torch.autograd.gradgradcheck(ours, x)
    cotangent, along = torch.randn(3, dtype=torch.float64), torch.randn_like(x)
    found, expected = (
        torch.autograd.grad(torch.autograd.grad(f(x), x, cotangent, create_graph=True)[0], x, along)[0]
        for f in (ours, theirs)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("zeros", [0, 1, 2, 3, 4])
def test_the_third_gradient_of_a_product_with_zeros(zeros: int) -> None:
    """Of three zeros it is the product of the rest, where all before are zero; of four zeros, zero."""
    x = draw(2, 5, dtype=torch.float64).detach()
    for row in range(2):
        x[row, torch.randperm(5)[:zeros]] = 0
    x.requires_grad_()
    cotangent, *along = (torch.randn(*shape, dtype=torch.float64) for shape in ((2,), (2, 5), (2, 5)))
    found = []
    for function in pair("prod", 1):
        first = torch.autograd.grad(function(x), x, cotangent, create_graph=True)[0]
        second = torch.autograd.grad(first, x, along[0], create_graph=True)[0]
        found.append(torch.autograd.grad(second, x, along[1])[0])
    torch.testing.assert_close(*found)
    assert bool((found[1] != 0).any()) == (zeros < 4)


def test_a_deviation_of_zero_has_no_gradient() -> None:
    x = torch.ones(2, 4, requires_grad=True)
    (value,), (gradient,) = gradients(lambda x: fg.ops.std(x, 1), [x])
    assert not value.any() and not gradient.any()


# -- shapes ----------------------------------------------------------------------------------------------------------


def answer(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result, or None where the call is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*arguments, **options)
        except (RuntimeError, IndexError, fg.FusegenError):
            return None


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1), (3, 1), (2, 0, 3)])
@pytest.mark.parametrize("name", NAMES)
def test_empty_and_single_dimensions(name: str, shape: tuple[int, ...]) -> None:
    x = draw(*shape).detach()
    for dim, keepdim in itertools.product((None, *range(-len(shape), max(len(shape), 1))), (False, True)):
        options = {} if dim is None else {"dim": dim, "keepdim": keepdim}
        ours, theirs = answer(getattr(fg.ops, name), x, **options), answer(getattr(torch, name), x, **options)
        assert (ours is None) == (theirs is None), options
        if ours is not None:
            torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("dim", [(), [], (0, 1), [1], (-1, 0), None])
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "any", "all", "var", "std"])
def test_several_dimensions(name: str, dim: Any) -> None:
    x = draw(3, 4).detach()
    if dim is None and name in ("amax", "amin"):
        dim = ()
    torch.testing.assert_close(getattr(fg.ops, name)(x, dim), getattr(torch, name)(x, dim))


@pytest.mark.parametrize("name", ["sum", "var", "argmin"])
def test_layouts(name: str) -> None:
    x = draw(4, 6, 5, 3).detach()
    for laid_out in (x.to(memory_format=torch.channels_last), x.transpose(0, 2)[:, ::2], x[:, :1].expand(4, 6, 5, 3)):
        for dim in (1, -1):
            ours, theirs = getattr(fg.ops, name)(laid_out, dim), getattr(torch, name)(laid_out, dim)
            torch.testing.assert_close(ours, theirs)


# -- dtypes and options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_dtypes_as_torch(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 0, 3], [2, 2, 2]]).to(dtype)
    ours, theirs = answer(getattr(fg.ops, name), x, 1), answer(getattr(torch, name), x, 1)
    assert (ours is None) == (theirs is None)
    if ours is not None:
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "prod"])
def test_the_option_dtype(name: str, dtype: torch.dtype) -> None:
    for x in (draw(3, 4, low=1).detach(), torch.tensor([[1, 0, 300], [2, 2, 2]])):
        ours, theirs = answer(getattr(fg.ops, name), x, 1, dtype=dtype), answer(getattr(torch, name), x, 1, dtype=dtype)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)


CORRECTIONS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}), ((True,), {}), ((False,), {}), ((0,), {}), ((0, False), {}), ((0, True, True), {}),
    ((), {"correction": 0}), ((0,), {"correction": 2}), ((0,), {"correction": 3}), ((0,), {"correction": 7}),
    ((0,), {"correction": 1.5}), ((0,), {"correction": None}), (((0, 1),), {"correction": 0, "keepdim": True}),
    ((0,), {"unbiased": False}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", ["var", "std"])
def test_the_variance_of_one_element_has_no_number_for_a_gradient(name: str) -> None:
    for shape in ((1,), (3, 1)):
        x = torch.arange(3.0)[: shape[0]].reshape(shape).requires_grad_()
        check_same(*pair(name, -1), [x])
        assert torch.autograd.grad(pair(name, -1)[0](x).sum(), x)[0].isnan().all()


@pytest.mark.parametrize("name", ["var", "std"])
def test_corrections_as_torch(name: str) -> None:
    x = draw(3, 4).detach()
    for arguments, options in CORRECTIONS:
        ours = getattr(fg.ops, name)(x, *arguments, **options)
        torch.testing.assert_close(ours, answer(getattr(torch, name), x, *arguments, **options), equal_nan=True)


REFUSED: list[tuple[Callable[..., Any], str, str]] = [
    (lambda x: fg.ops.amax(x[:0], 0), "shape [0, 4], where dimension 0 has no elements", "every reduced dimension"),
    (lambda x: fg.ops.argmin(x[:, :0]), "where dimension 1 has no elements", "every reduced dimension"),
    (lambda x: fg.ops.sum(x, 2), "axis 2 of a tensor of rank 2", "from -2 to 1"),
    (lambda x: fg.ops.amax(x, (0, 0)), "axes (0, 0)", "each axis once"),
    (lambda x: fg.ops.mean(x.long()), "int64", "a float dtype"),
    (lambda x: fg.ops.var(x.long()), "int64", "a float dtype"),
    (lambda x: fg.ops.argmax(x > 0), "bool", "a float or integer dtype"),
    (lambda x: fg.ops.argmax(x, (0, 1)), "axis=(0, 1)", "one int, or None"),
    (lambda x: fg.ops.prod(x, (0, 1)), "dim=(0, 1)", "one int, or None"),
    (lambda x: fg.ops.var(x, 0, True, correction=1), "unbiased=True, correction=1", "one of the two"),
]


@pytest.mark.parametrize(("call", "given", "expected"), REFUSED)
def test_what_is_refused(call: Callable[..., Any], given: str, expected: str) -> None:
    error = refused(lambda: call(torch.randn(3, 4)))
    assert given in error.given and expected in error.expected and error.fix

"""Lists of what is above or below a diagonal, pairs, powers of matrices, and slopes of what is sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg

pytestmark = pytest.mark.emulator

SIZES = [(4, 6), (6, 4), (1, 5), (5, 1), (0, 3), (3, 0), (3, 3), (1, 1)]


@pytest.mark.parametrize("name", ["triu_indices", "tril_indices"])
def test_indices_are_torchs(name: str) -> None:
    told = [(rows, columns, offset) for rows, columns in SIZES for offset in (-7, -3, -1, 0, 1, 2, 7)]
    found = fg.op(lambda x: tuple(getattr(torch, name)(*each) + x for each in told), name="triangles")
    x = torch.zeros((), dtype=torch.int64)
    for each, mine in zip(told, found(x), strict=True):
        assert torch.equal(mine, getattr(torch, name)(*each)), each


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_places_beside_halves_are_exact(dtype: torch.dtype) -> None:
    """They are computed of a root, in double, whatever else the kernel's functions are rounded to."""

    def pairs(x: Any) -> Any:
        i, j = torch.triu_indices(x.shape[0], x.shape[0], 1)
        return x[i] - x[j]

    x = torch.arange(36.0).view(12, 3).to(dtype)
    assert torch.equal(fg.op(pairs)(x), pairs(x))


@pytest.mark.parametrize("offset", [-3, 1])
def test_long_triangles_are_told_exactly(offset: int) -> None:
    def ends(x: Any) -> Any:
        i, j = torch.triu_indices(20_000, 20_003, offset)
        return i[-3:] + x, j[-3:] + x, i[100_000:100_004] + x, j[100_000:100_004] + x

    found = fg.op(ends, name="ends")(torch.zeros((), dtype=torch.int64))
    rows, columns = torch.triu_indices(10, 20_003, offset)
    assert found[0].tolist() == [19_999] * 3
    assert found[1].tolist() == [20_000, 20_001, 20_002]
    assert torch.equal(found[2], rows[100_000:100_004])
    assert torch.equal(found[3], columns[100_000:100_004])


def interactions(x: Any) -> Any:
    z = torch.bmm(x, x.transpose(1, 2))
    i, j = torch.tril_indices(z.shape[1], z.shape[2], offset=-1)
    return torch.cat([x[:, 0], z[:, i, j]], 1)


def symmetric(v: Any) -> Any:
    matrix = torch.zeros(4, 4, dtype=v.dtype)
    i, j = torch.tril_indices(4, 4)
    matrix[i, j] = v
    return matrix + matrix.T.triu(1)


def grouped(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, is_causal=True)


def at_coordinates(x: Any) -> Any:
    rows, columns = torch.tensor([0.0, 1, 3, 4.5]), torch.tensor([0.0, 1, 3, 4, 6, 9])
    return torch.gradient(x, spacing=(rows.to(x.dtype), columns.to(x.dtype)), edge_order=2)


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "above a diagonal": (lambda x: x[torch.triu_indices(4, 6, 1).unbind()], [(4, 6)]),
    "interactions": (interactions, [(3, 5, 4)]),
    "a symmetric matrix": (symmetric, [(10,)]),
    "distances of pairs": (lambda x: F.pdist(x) + torch.pdist(x.exp(), 1.0), [(5, 3)]),
    "pairs": (lambda x: torch.combinations(x) * 2, [(5,)]),
    "pairs with themselves": (lambda x: torch.combinations(x, with_replacement=True).sin(), [(5,)]),
    "powers": (lambda x: torch.linalg.vander(x, N=3).sin(), [(2, 4)]),
    "powers of matrices": (lambda x: torch.matrix_power(x, 5) + x.matrix_power(1) + x.matrix_power(0), [(2, 3, 3)]),
    "slopes": (lambda x: torch.gradient(x, spacing=0.5), [(4, 6)]),
    "a slope to the second order": (lambda x: torch.gradient(x, dim=1, edge_order=2)[0] * 2, [(4, 3)]),
    "slopes at coordinates": (at_coordinates, [(4, 6)]),
    "a slope of two": (lambda x: torch.gradient(x, dim=0)[0], [(2, 3)]),
    "keys of several heads": (grouped, [(2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_torchs(name: str) -> None:
    function, shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    op = fg.op(function, name="triangles")
    found, expected = op(*given), function(*given)
    mine, theirs = ([*y] if isinstance(y, (tuple, list)) else [y] for y in (found, expected))
    torch.testing.assert_close(mine, theirs)
    with torch.no_grad():
        inferred = op(*given)
    torch.testing.assert_close([*inferred] if isinstance(inferred, tuple) else [inferred], theirs)
    cotangents = [torch.randn(y.shape, generator=generator, dtype=torch.float64) for y in theirs]
    torch.testing.assert_close(
        torch.autograd.grad(mine, given, cotangents), torch.autograd.grad(theirs, given, cotangents)
    )


def test_rows_that_are_the_same_have_no_slope() -> None:
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 5.0]], requires_grad=True)
    op = fg.op(lambda x: F.pdist(x), name="pairs")
    cotangent = torch.tensor([2.0, 0.5, -1.0])
    mine, theirs = (torch.autograd.grad(f(x), x, cotangent) for f in (op, F.pdist))
    torch.testing.assert_close(mine, theirs)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "threes": (lambda x: torch.combinations(x[0], 3), "pairs of a vector"),
    "an inverse": (lambda x: torch.linalg.matrix_power(x[:, :3], -1), "an int from 0 on"),
    "no square": (lambda x: torch.matrix_power(x, 2), "square matrices"),
    "pairs of batches": (lambda x: F.pdist(x[None]), "rows of a matrix"),
    "a slope of one": (lambda x: torch.gradient(x[:1], dim=0)[0], "2 or more"),
    "too few spacings": (lambda x: torch.gradient(x, spacing=(1.0,))[0], "for each of 2 dimensions"),
    "heads that do not divide": (
        lambda x: F.scaled_dot_product_attention(x[:, None], x[:2, None], x[:2, None], enable_gqa=True), "multiple",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_said_is_explained(name: str) -> None:
    function, said = REFUSED[name]
    with pytest.raises(fg.FusegenError, match=said):
        fg.op(function, name="triangles")(torch.randn(3, 4))

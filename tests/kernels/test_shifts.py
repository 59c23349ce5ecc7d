"""Slices, padding and shifts: reads of one tensor, a number of elements apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.core import dtypes
from fusegen.inspect.passes import shown_passes
from tests.support.modes import MODES
from tests.support.oracles import draw
from tests.support.rows import planned_passes

Function = Callable[..., Any]


def sobel(x: Any) -> Any:
    across = x[:, 1:-1, 2:] - x[:, 1:-1, :-2]
    down = x[:, 2:, 1:-1] - x[:, :-2, 1:-1]
    return torch.sqrt(across * across + down * down + 1e-6)


def variation(x: Any) -> Any:
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).square().mean()


def convolved(x: Any, w: Any) -> Any:
    longer = F.pad(x, (3, 0))
    return sum(longer[:, i : i + x.shape[1]] * w[i] for i in range(4))


def token_shift(x: Any, mix: Any) -> Any:
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    return x * mix + before * (1 - mix)


def advected(u: Any, v: Any) -> Any:
    return u - v * (u - torch.roll(u, 1, 1)) + 0.5 * torch.roll(u, -1, 0)


# Rows of 70 are longer than a warp; the shorter ones have fewer elements than a thread takes.
FORMS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "the gradient of an image": (sobel, [(2, 5, 70)]),
    "of vectors that come out even": (sobel, [(2, 4, 34)]),
    "total variation": (variation, [(2, 6, 70)]),
    "one row": (variation, [(1, 2, 5)]),
    "a convolution": (convolved, [(3, 70), (4,)]),
    "a token before": (token_shift, [(2, 6, 40), (40,)]),
    "around": (advected, [(5, 70), (5, 70)]),
    "a second difference, added up": (lambda x: (x[2:] - 2 * x[1:-1] + x[:-2]).tanh().sum(0), [(70, 34)]),
    "of a row's softmax": (lambda x: torch.softmax(x[:, 1:] - x[:, :-1], -1), [(4, 70)]),
    "along rows of a softmax": (lambda x: torch.softmax(x[1:] - x[:-1], -1), [(4, 64)]),
    "down strided rows": (lambda x: torch.softmax(x[:, 1:] * x[:, :-1], 1), [(2, 34, 33)]),
    "a diagonal": (lambda x: (x[:-1, 1:] * x[1:, :-1]).sum(1), [(70, 70)]),
    "of a transpose": (lambda x: (x + x.mT)[:-1, 1:], [(13, 13)]),
    "turned around": (lambda x: x.flip(1)[:, 1:] * x[:, :-1], [(4, 34)]),
    "every second": (lambda x: x[:, ::2] - x[:, 1::2], [(4, 68)]),
    "of a slice of a slice": (lambda x: x[:, 2:][:, :-3][:, 1:].sin() * x[:, :-6], [(3, 70)]),
    "of what is computed": (lambda x: x.sin()[1:] * x.cos()[:-1], [(6, 34)]),
}


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("compiled", "out")])
@pytest.mark.parametrize("form", FORMS)
def test_is_torchs(form: str, mode: str) -> None:
    function, shapes = FORMS[form]
    MODES[mode](fg.op(function, name="shifted"), function, [draw(*shape, seed=i) for i, shape in enumerate(shapes)])


@pytest.mark.parametrize("form", ["the gradient of an image", "total variation", "a convolution", "a token before"])
def test_all_reads_of_a_tensor_share_its_pointer(form: str) -> None:
    """And none asks whether there is such an element, where sizes tell that there is."""
    function, shapes = FORMS[form]
    specs = tuple(fg.TensorSpec(dtypes.float32, shape) for shape in shapes)
    forward, backward = shown_passes(fg.op(function, name="shifted"), specs, {})
    for item in (forward, backward):
        signatures = [part.partition(")")[0] for part in item.text.split("__global__")[1:]]
        assert all(signature.count("x_ptr") <= 1 and "x_at_ptr" not in signature for signature in signatures)
        assert "fg::gather" not in item.text
    if form in ("the gradient of an image", "total variation"):
        assert "fg::load_within" not in forward.text and "? " not in forward.text


def test_no_parameter_is_taken_for_another() -> None:
    """Where names are the kernel's own, or one another in plain letters: pointers are shared by what they are of."""

    def named(n: Any, rows: Any, α: Any, u3b1: Any) -> Any:
        return n[1:] * rows + α[1:] - α[:-1] * u3b1[1:] * u3b1[:-1]

    given = [draw(7, seed=0), 3, draw(7, seed=1), draw(7, seed=2)]
    torch.testing.assert_close(fg.op(named, name="named")(*given), named(*given))


def test_what_lies_side_by_side_is_walked_side_by_side() -> None:
    """A sum over everything of shifted reads alone: the row goes on as in memory, whatever its axis is called."""
    x = torch.empty(2, 40, 64, requires_grad=True)
    (forward, _) = planned_passes(fg.op(lambda x: (x[:, 1:] - x[:, :-1]).abs().sum(), name="apart"), x)
    (planned,) = [item for item in forward if item.kernel.gathered]
    assert all(planned.launch.strides[operand.name][-1] == 1 for operand in planned.kernel.gathered)


def test_positions_become_floats_by_way_of_an_int() -> None:
    """A GPU converts integers of 64 bits at a quarter of the rate."""

    def penalized(s: Any) -> Any:
        place = torch.arange(s.shape[-1], device=s.device)
        return torch.softmax(s - (place[None] - place[:, None]).abs() * 0.5, -1)

    x = torch.randn(40, 40, dtype=torch.float64)
    torch.testing.assert_close(fg.op(penalized, name="penalized")(x), penalized(x))
    spec = (fg.TensorSpec(dtypes.float32, (40, 40)),)
    (item, _) = shown_passes(fg.op(penalized, name="penalized"), spec, {})
    assert "float(fg::abs(int(index_d" in item.text
    far = fg.op(lambda s: s * (torch.arange(s.shape[-1], device=s.device) * 2**40), name="far")
    assert "float(int(" not in shown_passes(far, (fg.TensorSpec(dtypes.float32, (40,)),), {})[0].text
    y = torch.randn(40, dtype=torch.float64)
    torch.testing.assert_close(far(y), y * (torch.arange(40) * 2**40))


def test_vectors_are_read_of_other_rows() -> None:
    """A shift along rows leaves vectors where they are; one along a row takes a few bytes at a time."""
    spec = (fg.TensorSpec(dtypes.float32, (64, 512)),)
    rows, _ = shown_passes(fg.op(lambda x: x[1:] - x[:-1], name="rows"), spec, {})
    assert "fg::load_vector<4>(x_ptr" in rows.text
    columns, _ = shown_passes(fg.op(lambda x: x[:, 1:] - x[:, :-1], name="columns"), spec, {})
    assert "4 elements a thread" not in columns.text


def chosen(x: Any, u: Any) -> Any:
    """All of it is one row, which only sizes tell."""
    return torch.where(torch.arange(5) % 1 == 0, u.expand(4, -1), x)


DECIDED: dict[str, Function] = {
    "an extremum": lambda x, u: F.pad(chosen(x, u), (0, 0, 1, 1))[1:-1].amax(1),
    "beside another": lambda x, u: (chosen(x, u).roll(1, 1).logsumexp(1), chosen(x, u).roll(1, 1).amax(1)),
    "of each pair": lambda x, u: (chosen(x, u).flip(1)[:, None] - chosen(x, u)).abs().sum(-1).amax(1),
    "along it": lambda x, u: (chosen(x, u).roll(1, 0).sum(0), chosen(x, u).roll(1, 0).softmax(0)),
}


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("compiled", "halves")])
@pytest.mark.parametrize("form", DECIDED)
def test_a_result_of_what_is_the_same_along_its_axis(form: str, mode: str) -> None:
    """What a forward keeps for its backward has fewer axes then, which it is written along: a second tensor of one name
    had been written."""
    given = [draw(4, 5, seed=1), draw(5, seed=2)]
    MODES[mode](fg.op(DECIDED[form], name="decided"), DECIDED[form], given)

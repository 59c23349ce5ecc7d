"""Sums over pairs: what is added up for each pair is computed where the pair is met, and no tensor holds all pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core import dtypes
from fusegen.fuse.schedule import ColumnSchedule
from fusegen.fuse.steps import Scatter
from fusegen.inspect.passes import shown_passes
from tests.support.modes import MODES
from tests.support.oracles import draw
from tests.support.rows import planned_passes

Function = Callable[..., Any]


def gaussian(x: Any, y: Any, v: Any) -> Any:
    apart = x[:, None, :] - y[None, :, :]
    return (torch.exp(-(apart * apart).sum(-1)) * v).sum(-1)


def chamfer(a: Any, b: Any) -> Any:
    apart = ((a[:, :, None] - b[:, None]) ** 2).sum(-1)
    return apart.amin(1).mean(-1), apart.amin(2).mean(-1)


def forces(x: Any) -> Any:
    apart = x[:, None, :] - x[None, :, :]
    return (apart / ((apart * apart).sum(-1, keepdim=True) + 0.5)).sum(1)


def farthest(x: Any, y: Any) -> Any:
    return (x[:, None] - y[None]).abs().amax(-1).tanh().sum(1), (x[:, None] * y[None]).prod(-1).sum(0)


FORMS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "a Gaussian kernel": (gaussian, [(70, 3), (90, 3), (90,)]),
    "in a plane": (gaussian, [(5, 2), (70, 2), (70,)]),
    "of quaternions": (gaussian, [(33, 4), (6, 4), (6,)]),
    "of more coordinates than are taken apart": (gaussian, [(5, 7), (6, 7), (6,)]),
    "nearest of two sets": (chamfer, [(2, 33, 3), (2, 40, 3)]),
    "forces": (forces, [(40, 3)]),
    "extrema and products": (farthest, [(20, 3), (70, 3)]),
    "two sides of one axis": (lambda x, y: (x[:, None] / (1 + y[None] ** 2)).sum(1), [(70,), (70,)]),
}


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("compiled", "out")])
@pytest.mark.parametrize("form", FORMS)
def test_is_torchs(form: str, mode: str) -> None:
    function, shapes = FORMS[form]
    MODES[mode](fg.op(function, name="pairs"), function, [draw(*shape, seed=i) for i, shape in enumerate(shapes)])


@pytest.mark.parametrize("form", ["a Gaussian kernel", "in a plane", "forces"])
def test_no_tensor_holds_all_pairs(form: str) -> None:
    function, shapes = FORMS[form]
    given = [torch.randn(200, *shape[1:], requires_grad=True) for shape in shapes]
    for kernels in planned_passes(fg.op(function, name="pairs"), *given):
        for planned in kernels:
            for thing in planned.kernel.written:
                sizes = [200 if axis else 1 for axis in thing.shape]
                assert len([size for size in sizes if size > 1]) < 2 or "n" in str(thing.shape), thing


def test_a_thread_has_several_results() -> None:
    """Each element of the other side that it reads meets all of them."""
    given = [torch.randn(*shape, requires_grad=True) for shape in ((4096, 3), (4096, 3), (4096,))]
    forward, backward = planned_passes(fg.op(gaussian, name="pairs"), *given)
    for planned in (*forward, *backward):
        assert isinstance(planned.schedule, ColumnSchedule) and planned.schedule.vector == 4


def test_what_the_second_role_has_is_moved_to_the_first() -> None:
    """A tensor that meets itself: no places are sorted for a sum of which each place has one term."""
    (_, backward) = shown_passes(fg.op(forces, name="pairs"), (fg.TensorSpec(dtypes.float32, (40, 3)),), {})
    assert backward.chain is not None
    scatters = [step for step in backward.chain.steps if isinstance(step, Scatter)]
    assert scatters and all(step.moves for step in scatters)
    assert "each at the place of its own number along D0N40" in backward.text


def test_few_and_many_coordinates_are_two_traces() -> None:
    """Neither takes the other's, and other numbers of points trace nothing anew."""
    op = fg.op(gaussian, name="pairs")
    for width in (3, 64, 3, 2, 65):
        for points in (5, 9):
            given = [draw(points, width, seed=0), draw(7, width, seed=1), draw(7, seed=2)]
            torch.testing.assert_close(op(*given), gaussian(*given))
    assert len(op.declaration.traces) == 3 if hasattr(op.declaration.traces, "__len__") else True

"""Tensors without elements: programs at random over dimensions of which some are zero, called again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import fusegen as fg
from tests.support.oracles import check_same, draw
from tools.program_checks import Stages
from tools.program_writer import Argument, Program, as_tuple
from tools.programs import programs

pytestmark = pytest.mark.emulator


def results_and_gradients(function: Callable[..., Any], values: Mapping[str, Any]) -> list[torch.Tensor]:
    leaves = {
        n: v.clone().requires_grad_() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for n, v in values.items()
    }
    results = as_tuple(function(*leaves.values()))
    wanted = [leaf for leaf in leaves.values() if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    totals = [(r * r.detach().cos()).sum() for r in results if r.requires_grad]
    if not totals or not wanted:
        return list(results)
    found = torch.autograd.grad(sum(totals), wanted, allow_unused=True, materialize_grads=True)
    return [*results, *found]


def check(program: Program, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    values = {a.name: a.draw(generator) for a in program.arguments}
    try:
        expected = results_and_gradients(program.theirs, values)
    except (RuntimeError, IndexError):  # the maximum of nothing is refused by both, with other errors
        return
    op = program.op()
    for _ in range(3):  # what was planned runs, in Python and natively
        plain = as_tuple(op(*values.values()))
        found = results_and_gradients(op, values)
        for mine, theirs in zip([*plain, *found], [*expected[: len(plain)], *expected], strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("block", range(6))
def test_programs(block: int) -> None:
    sizes = (0, 2, 3, 4) if block < 4 else (0, 3, 9000)  # a long dimension beside nothing is shared out among blocks
    run = given(programs(sizes=sizes, most=4))(lambda program: check(program, block))
    run = settings(
        max_examples=25, database=None, deadline=None, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(run)  # fmt: skip
    seed(block)(run)()


def test_every_stage_adds_up_nothing() -> None:
    """Of a tensor without elements no stage can tell a dimension from the number of elements."""
    arguments = (Argument("a", "f", (0, 1, 3)), Argument("b", "f", (0, 4, 3)))
    assert list(Stages(Program("    return a * b", arguments, 1)).run()) == []


LONG: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(0), "sums": lambda x: (x.sum(0), x.sum()), "amax": lambda x: x.amax(0),
    "mean": lambda x: x.mean(0, keepdim=True) * x, "softmax": lambda x: x.softmax(0), "var": lambda x: x.var(0),
    "any": lambda x: (x > 0).any(0), "part": lambda x: torch.cat([x, x], 1)[:, 1:].sum(0),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_long_columns_of_no_rows(name: str) -> None:
    """So long that several blocks share one, of which there is none."""
    x, function = torch.randn(9000, 0), LONG[name]
    op = fg.op(function)
    for mine, theirs in zip(as_tuple(op(x)), as_tuple(function(x)), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    leaf = x.clone().requires_grad_()
    results = [result.sum() for result in as_tuple(op(leaf)) if result.is_floating_point()]
    if results:
        sum(results).backward()
        assert leaf.grad is not None and leaf.grad.shape == x.shape


def test_a_weight_of_no_columns() -> None:
    """Its gradient is a sum over all rows, of nothing."""
    x, weight = torch.randn(9000, 0), torch.randn(0, requires_grad=True)
    fg.op(lambda x, weight: x * weight, name="scaled")(x, weight).sum().backward()
    assert weight.grad is not None and weight.grad.shape == (0,)


def test_a_sum_of_nothing_beside_another_result() -> None:
    """Its partial results take no memory, and the kernel that adds them up runs nevertheless."""

    def function(x: Any, y: Any) -> Any:
        return fg.ops.kl_div(fg.log_softmax(x, -1), fg.softmax(y, -1), reduction="sum"), x.mT

    def theirs(x: Any, y: Any) -> Any:
        divergence = torch.nn.functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="sum")
        return divergence, x.mT

    op = fg.op(function)
    given = [draw(0, 2).detach(), draw(0, 2, seed=1).detach()]
    for _ in range(3):
        torch.testing.assert_close(op(*given), theirs(*given))
        check_same(op, theirs, [draw(0, 2), draw(0, 2, seed=1)])


@pytest.mark.parametrize("axis", [0, -1])
def test_parts_of_nothing(axis: int) -> None:
    op = fg.op(lambda x: (lambda p: p[0] * 2 + p[1])(fg.split(x, 2, axis)))
    for shape in ((0, 4), (4, 0), (0, 0)):
        check_same(op, lambda x: (lambda p: p[0] * 2 + p[1])(x.chunk(2, axis)), [draw(*shape)])


# Where a dimension has no elements, there is no block that it is made of.
CUT: dict[str, Callable[[Any], Any]] = {
    "a step": lambda x: x[:, ::2].exp(),
    "a step of what is computed": lambda x: x.tanh().cumprod(1)[..., ::2] * 2,
    "parts of a size": lambda x: x.split(2, 1)[0] * 2,
    "parts of no elements": lambda x: x.split([0, x.shape[1]], 1)[1] * 2,
    "chunks": lambda x: x.chunk(2, 1)[0] * 2,
    "parts between places": lambda x: torch.tensor_split(x, 2, 1)[0] + 1,
}


@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("name", CUT)
def test_a_dimension_without_elements_is_cut(name: str, size: int) -> None:
    x = torch.randn(3, size, dtype=torch.float64, requires_grad=True)
    ours, theirs = fg.op(CUT[name], name="cut")(x), CUT[name](x)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.randn_like(theirs)
    mine, wanted = (torch.autograd.grad(result, x, cotangent) for result in (ours, theirs))
    torch.testing.assert_close(mine, wanted)


MEETING: dict[str, Callable[..., Any]] = {
    "a sum": lambda x, y: torch.cat([x, x * 2], 0) + x,
    "a select": lambda x, y: torch.where(torch.cat([x, y], 0) > x, x, 1.0),
    "a mean": lambda x, y: (torch.cat([x, y], 0) * y).sum(1),
    "three": lambda x, y: torch.cat([x, y, x.sin()], 0) * torch.cat([y, x], 0),
}


@pytest.mark.parametrize("name", MEETING)
def test_parts_without_elements_meet_what_they_make_up(name: str) -> None:
    """They were blocks of themselves: an error about a function that is not in the table."""
    function = MEETING[name]
    check_same(fg.op(function, name="joined"), function, [draw(0, 3), draw(0, 3, seed=1)])


def test_an_op_of_parts_without_elements_takes_others() -> None:
    op = fg.op(lambda x, y: torch.cat([x, y], 0).exp(), name="joined")
    for size in (0, 3, 0, 2):
        check_same(op, lambda x, y: torch.cat([x, y], 0).exp(), [draw(size, 3), draw(size, 3, seed=1)])


@pytest.mark.parametrize("size", [0, -1])
def test_parts_of_no_size_are_refused(size: int) -> None:
    with pytest.raises(fg.ShapeError, match="sizes that make up the dimension"):
        fg.op(lambda x: x.split(size, 1)[0] * 2, name="cut")(torch.randn(3, 4))


@pytest.mark.parametrize(("size", "count"), [(0, 2), (4, 2), (5, 2)])
def test_numpys_parts_are_equal(size: int, count: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, size))
    op = fg.op(lambda x: np.split(x, count, axis=1)[1] * 1, name="cut")
    if size % count:
        with pytest.raises(fg.ShapeError, match="sizes that make up the dimension"):
            op(x)
    else:
        np.testing.assert_array_equal(op(x), np.split(x, count, axis=1)[1])


RESHAPED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "a batch of matrices": (lambda x: x.view(-1, 3, 3) * 2, ((0, 9),)),
    "products of them": (lambda x, y: x.view(-1, 3, 3) @ y.tanh().view(-1, 3, 3), ((0, 9), (0, 3, 3))),
    "rows beside others": (lambda x, y: torch.cat([x.reshape(-1, 3), y]), ((0, 3, 3), (2, 3))),
    "other sizes": (lambda x: x.tanh().reshape(5, 0, 1).exp(), ((0, 3),)),
    "flattened": (lambda x: x.tanh().flatten(), ((0, 3),)),
    "flattened, a size of one last": (lambda x: x.flatten(), ((2, 0, 1),)),
    "flattened, nothing between": (lambda x: x.flatten(1) + 1, ((2, 0, 4),)),
    "unflattened": (lambda x: x.unflatten(0, (-1, 2)) * 2, ((0, 3),)),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_what_has_no_elements_is_reshaped(name: str) -> None:
    function, shapes = RESHAPED[name]
    check_same(fg.op(function, name="reshaped"), function, [draw(*shape, seed=i) for i, shape in enumerate(shapes)])

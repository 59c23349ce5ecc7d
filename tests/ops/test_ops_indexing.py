"""torch's ways to index, pad and turn around, as ops, and slices of any kind in declarations: beside torch in every
mode, and what is read where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.fuse.products import chain
from fusegen.fuse.steps import Scatter
from fusegen.inspect.passes import passes
from tests.support.modes import MODES
from tests.support.oracles import draw

Case = tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]


def places(count: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(seed))


def indexed(ours: Callable[..., Any], theirs: Callable[..., Any], *leaves: torch.Tensor, **fixed: Any) -> Case:
    """A case whose indices are no leaves: they are arrays where these are."""

    def call(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **options: Any) -> Any:
            are_arrays = not isinstance(given[0], torch.Tensor)
            own = {k: v.numpy() if are_arrays and isinstance(v, torch.Tensor) else v for k, v in fixed.items()}
            return function(*given, **own, **options)

        return run

    return call(ours), call(theirs), list(leaves)


def bag(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda weight, input, **options: function(input, weight, **options)


def weighted(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda weight, scores, input, **options: function(input, weight, per_sample_weights=scores, **options)


def first(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch's own backward knows no source that is larger than the index."""
    return lambda x, s, index, **o: function(x, index=index, src=s[tuple(map(slice, index.shape))], **o)


ops: Any = fg.ops
DISTINCT = torch.tensor([[2, 0, 1, 4], [1, 3, 4, 0], [0, 2, 3, 1]])
CASES: dict[str, Case] = {
    "gather": indexed(ops.gather, torch.gather, draw(3, 4), dim=1, index=places(4, 3, 6)),
    "gather of the first": indexed(ops.gather, torch.gather, draw(5, 4, 3), dim=1, index=places(4, 2, 6, 1)),
    "take_along_dim": indexed(ops.take_along_dim, torch.take_along_dim, draw(3, 4), indices=places(4, 1, 6), dim=1),
    "take_along_dim flat": indexed(ops.take_along_dim, torch.take_along_dim, draw(3, 4), indices=places(12, 2, 3)),
    "index_select": indexed(ops.index_select, torch.index_select, draw(3, 4), dim=1, index=places(4, 6)),
    "index_add": indexed(
        lambda x, s, **o: ops.index_add(x, source=s, **o), lambda x, s, **o: torch.index_add(x, source=s, **o),
        draw(5, 4), draw(7, 4, seed=1), dim=0, index=places(5, 7), alpha=2.5,
    ),
    "index_copy": indexed(
        lambda x, s, **o: ops.index_copy(x, source=s, **o), lambda x, s, **o: torch.index_copy(x, source=s, **o),
        draw(5, 4), draw(3, 4, seed=1), dim=0, index=torch.tensor([4, 0, 2]),
    ),
    "scatter_add": indexed(
        lambda x, s, **o: ops.scatter_add(x, src=s, **o), first(torch.scatter_add),
        draw(5, 4, 3), draw(6, 4, 2, seed=1), dim=0, index=places(5, 6, 3, 2),
    ),
    "scatter": indexed(
        lambda x, s, **o: ops.scatter(x, src=s, **o), first(torch.scatter),
        draw(4, 5), draw(3, 6, seed=1), dim=1, index=DISTINCT,
    ),
    "scatter a number": indexed(
        ops.scatter, torch.scatter, draw(4, 5), dim=1, index=places(5, 3, 2), value=0.5
    ),
    "scatter_reduce": indexed(
        lambda x, s, **o: ops.scatter_reduce(x, src=s, **o), first(torch.scatter_reduce),
        draw(4, 5), draw(4, 6, seed=1), dim=0, index=places(4, 3, 4), reduce="mean", include_self=False,
    ),
    "embedding": indexed(bag(ops.embedding), bag(F.embedding), draw(6, 4), input=places(6, 2, 3), padding_idx=-2),
    "embedding_bag": indexed(
        bag(ops.embedding_bag), bag(F.embedding_bag), draw(6, 4), input=places(6, 9), padding_idx=1,
        offsets=torch.tensor([0, 2, 2, 7]),
    ),
    "embedding_bag max": indexed(
        bag(ops.embedding_bag), bag(F.embedding_bag), draw(6, 4), input=DISTINCT, mode="max", padding_idx=0
    ),
    "embedding_bag sum": indexed(
        weighted(ops.embedding_bag), weighted(F.embedding_bag), draw(6, 4), draw(9, seed=1), input=places(6, 9),
        offsets=torch.tensor([0, 4, 4, 7, 9]), include_last_offset=True, mode="sum",
    ),
    "flip": (lambda x, **o: ops.flip(x, (0, -1), **o), lambda x: torch.flip(x, (0, -1)), [draw(3, 4, 5)]),
    "roll": (
        lambda x, **o: ops.roll(x, (1, -7), (0, 2), **o), lambda x: torch.roll(x, (1, -7), (0, 2)), [draw(3, 2, 5)],
    ),
    "pad": (
        lambda x, **o: ops.pad(x, (2, -1, 0, 3), value=1.5, **o), lambda x: F.pad(x, (2, -1, 0, 3), value=1.5),
        [draw(2, 3, 4)],
    ),
    **{
        f"pad {mode}": (
            lambda x, mode=mode, **o: ops.pad(x, (2, 3, 1, 0), mode, **o),
            lambda x, mode=mode: F.pad(x, (2, 3, 1, 0), mode), [draw(2, 3, 4)],
        )
        for mode in ("reflect", "replicate", "circular")
    },
}  # fmt: skip
NO_FORWARD_MODE = {"embedding_bag", "embedding_bag max", "embedding_bag sum"}
# torch's batching has no rule for it, or its own forward is no function of two orders.
NO_VMAP = {"embedding_bag", "embedding_bag max", "embedding_bag sum"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(CASES))
def test_every_mode(name: str, mode: str) -> None:
    ours, theirs, leaves = CASES[name]
    if (mode == "jvp" and name in NO_FORWARD_MODE) or (mode in ("vmap", "second") and name in NO_VMAP):
        pytest.skip("torch has none of it; test_derivatives has ours")

    def plainly(*given: Any) -> Any:
        return theirs(*given)

    MODES[mode](ours, plainly, [leaf.clone().requires_grad_() for leaf in leaves])


@pytest.mark.parametrize("name", sorted(CASES))
def test_derivatives(name: str) -> None:
    ours, _, leaves = CASES[name]
    given = [leaf.clone().requires_grad_() for leaf in leaves]
    assert torch.autograd.gradcheck(ours, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(ours, given)


@pytest.mark.parametrize("widths", [(-1, 1), (2, -2), (-1, 3), (-2, -1), (-1, 1, -2, 1)])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_negative_widths_beside_positive_ones(mode: str, widths: tuple[int, ...]) -> None:
    """Of what is cut off, nothing comes again where the rest goes on anew."""
    x = draw(1, 2, 4, 4).requires_grad_()
    x = x if len(widths) > 2 else x[0].detach().requires_grad_()
    ours, theirs = ops.pad(x, widths, mode), F.pad(x, widths, mode)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.randn_like(theirs)
    mine, wanted = (torch.autograd.grad(result, x, cotangent) for result in (ours, theirs))
    torch.testing.assert_close(mine, wanted)


def test_no_more_goes_on_anew_than_is_left() -> None:
    with pytest.raises(fg.ShapeError, match="2 at most"):
        ops.pad(draw(1, 2, 5), (3, -3), "circular")


# -- slices of any kind ------------------------------------------------------------------------------------------------

SLICES: dict[str, Callable[..., Any]] = {
    "a step": lambda x: x[:, 1::2].exp(),
    "two steps": lambda x: x[::2, ::5].sin(),
    "no elements": lambda x: x[:, 3:3] + 1,
    "the sum of no elements": lambda x: x[:, 3:3].sum(-1) + x.sum(-1),
    "many": lambda x: x[:, 1:] - x[:, :-1],
    "one of many": lambda x: x[:, 5] * x[:, -1],
    "one of many and all": lambda x: x * x[:, :1] + x[:, 7:8],
    "of what is reduced": lambda x: x.softmax(-1)[:, ::2],
    "each other one": lambda x: x[:, ::2] * x[:, 1::2],
    "of a product": lambda x: (x @ x.mT)[::2] + x[:, 1::2].sum(-1),
    "with what is empty": lambda x: torch.cat([x[:, 3:3], x[:, 1:4]], -1),
    "side by side": lambda x: torch.cat([x[:, 1:], x[:, :1].exp()], -1) * 2,
    "sections": lambda x: x.split([1, 3, x.shape[1] - 4], -1)[2].exp(),
}


@pytest.mark.parametrize("width", [8, 130])
@pytest.mark.parametrize("name", [name for name in SLICES if name != "of a product"])
def test_slices(name: str, width: int) -> None:
    function, x = SLICES[name], draw(6, width).requires_grad_()
    op = fg.op(function, name="sliced")
    ours, theirs = op(x), function(x)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.randn_like(theirs)
    (found,), (wanted,) = (torch.autograd.grad(result, x, cotangent) for result in (ours, theirs))
    torch.testing.assert_close(found, wanted)


def test_numpys_steps_lead_back_too() -> None:
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(fg.op(lambda x: x[::-1, 2::-1] * 2, name="back")(x), x[::-1, 2::-1] * 2)


# -- what reads, and what is a step of its own -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: fg.ops.flip(x, 1), lambda x: fg.ops.roll(x, 3, 1), lambda x: fg.ops.pad(x, (3, 2)),
        lambda x: x[:, ::3], lambda x: x[:, 7:],
    ],
)  # fmt: skip
def test_what_positions_tell_is_read_forward_and_backward(function: Callable[..., Any]) -> None:
    """Nothing is added at places: the gradient of a slice is another read."""
    op = fg.op(function, name="told")
    for item in passes(op, (draw(4, 130),), {}, "backward"):
        assert chain(item.op) is None or not [s for s in chain(item.op).steps if isinstance(s, Scatter)]


def test_a_place_of_two_elements_is_added_to() -> None:
    """A reflected element has two places: there the gradient is a sum."""
    op = fg.op(lambda x: fg.ops.pad(x, (2, 2), "reflect"), name="told")
    _, backward = passes(op, (draw(4, 130).requires_grad_(),), {}, "backward")
    assert [step for step in chain(backward.op).steps if isinstance(step, Scatter)]


# -- what is refused ---------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], Any], str]] = {
    "rank": (lambda x, i: ops.gather(x, 0, i[0]), "as many dimensions as input"),
    "more than there is": (lambda x, i: ops.gather(x, 0, places(3, 2, 9)), "no more elements in the index"),
    "a sparse gradient": (lambda x, i: ops.gather(x, 0, i, sparse_grad=True), "gradients are dense"),
    "no such dimension": (lambda x, i: ops.gather(x, 2, i), "an int from -2 to 1"),
    "a small source": (lambda x, i: ops.scatter(x, 0, i, x[:1]), "no more elements in the index than in src"),
    "two sources": (lambda x, i: ops.scatter(x, 0, i, x, value=1.0), "src and value"),
    "another way": (lambda x, i: ops.scatter(x, 0, i, x, reduce="max"), "'add', 'multiply'"),
    "two dtypes": (lambda x, i: ops.scatter_add(x, 0, i, x.float()), "one dtype"),
    "a table of one dimension": (lambda x, i: ops.embedding(i, x[0]), "a row for each number"),
    "a norm": (lambda x, i: ops.embedding(i, x, max_norm=1.0), "max_norm"),
    "bags without offsets": (lambda x, i: ops.embedding_bag(i[0], x), "without offsets"),
    "weights of a mean": (lambda x, i: ops.embedding_bag(i, x, per_sample_weights=x), 'mode="sum"'),
    "a dimension twice": (lambda x, i: ops.flip(x, (0, -2)), "each dimension once"),
    "a shift for two": (lambda x, i: ops.roll(x, 1), "name the dimensions"),
    "odd widths": (lambda x, i: ops.pad(x, (1, 2, 3)), "two widths"),
    "reflected too far": (lambda x, i: ops.pad(x, (4, 0), "reflect"), "3 at most"),
    "cut too far": (lambda x, i: ops.pad(x, (-4, -4)), "elements that are left"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_says_why(name: str) -> None:
    call, says = REFUSED[name]
    with pytest.raises(fg.FusegenError, match=says):
        call(draw(3, 4), places(3, 2, 4))


# -- what is read meets what it is read of -----------------------------------------------------------------------------

MEETING: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "turned around": (lambda x: x + ops.flip(x, 1), lambda x: x + x.flip(1)),
    "rolled": (lambda x: x * ops.roll(x, (1, 2), (0, 1)), lambda x: x * x.roll((1, 2), (0, 1))),
    "what is reduced": (lambda x: x - fg.softmax(x)[:, ::-1], lambda x: x - x.softmax(-1).flip(1)),
    "padded": (lambda x: x * ops.pad(x, (1, -1)), lambda x: x * F.pad(x, (1, -1))),
    "beside blocks of it": (
        lambda x: fg.concat([x[:, 4:], x[:, :4]]) * ops.flip(x, 1), lambda x: x.roll(-4, 1) * x.flip(1)
    ),
    "blocks of two kinds": (
        lambda x: x[:, :6].sum(-1) + x[:, 0] * x[0, 1], lambda x: x[:, :6].sum(-1) + x[:, 0] * x[0, 1]
    ),
}  # fmt: skip


@pytest.mark.parametrize("width", [8, 130])
@pytest.mark.parametrize("name", sorted(MEETING))
def test_what_is_read_may_meet_what_it_is_read_of(name: str, width: int) -> None:
    ours, theirs = MEETING[name]
    x = draw(6, width).requires_grad_()
    found, wanted = fg.op(ours, name="meeting")(x), theirs(x)
    torch.testing.assert_close(found, wanted)
    cotangent = torch.randn_like(wanted)
    (mine,), (other,) = (torch.autograd.grad(result, x, cotangent) for result in (found, wanted))
    torch.testing.assert_close(mine, other)

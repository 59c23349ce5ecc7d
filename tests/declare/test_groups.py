"""Dimensions in groups, and norms of groups and channels within ops, beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.core.errors import ShapeError
from fusegen.core.serialize import op_from_json, op_to_json
from fusegen.run import evaluate
from tests.support.modes import MODES
from tests.support.oracles import draw, refused

pytestmark = pytest.mark.emulator

Function = Callable[..., Any]

cube = fg.op(lambda x: x * x * x, name="cube")
cube.gradient(lambda d_out, x: d_out * x)


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return cotangents[0] * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0] * ctx.saved_tensors[0]


OURS = SimpleNamespace(
    group_norm=fg.ops.group_norm, instance_norm=lambda x, w: fg.ops.instance_norm(x, weight=w), silu=fg.ops.silu,
    batch_norm=lambda x, w, b: fg.ops.batch_norm(x, None, None, w, b, training=True), softmax=fg.softmax, tanh=fg.tanh,
    layer_norm=lambda x, n, w: fg.ops.layer_norm(x, (n,), w), relu=fg.ops.relu, linear=fg.linear, cube=cube,
    unflatten=fg.unflatten, flatten=fg.flatten, sum=fg.sum,
    amax=lambda x, d: fg.amax(x, d, keepdims=True), var=lambda x, d: fg.var(x, d, keepdims=True),
)  # fmt: skip
THEIRS = SimpleNamespace(
    group_norm=F.group_norm, instance_norm=lambda x, w: F.instance_norm(x, weight=w), silu=F.silu,
    batch_norm=lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), softmax=torch.softmax, tanh=torch.tanh,
    layer_norm=lambda x, n, w: F.layer_norm(x, (n,), w), relu=F.relu, linear=F.linear, cube=Cube.apply,
    unflatten=torch.unflatten, flatten=torch.flatten, sum=torch.sum, amax=lambda x, d: torch.amax(x, d, keepdim=True),
    var=lambda x, d: torch.var(x, d, keepdim=True),
)  # fmt: skip


def _both_ways(lib: Any, x: Any, w: Any) -> Any:
    """Two groups, four of them within, and the whole; each reads what the others do."""
    two = lib.group_norm(x * w, 2)
    four = lib.group_norm(two + x, 4)
    return lib.softmax(lib.silu(four) + lib.unflatten(x, 1, (2, -1)).flatten(1, 2), -1) * two


def _sums_of_groups(lib: Any, x: Any, w: Any) -> Any:
    groups = lib.unflatten(x * w, 1, (2, 2, -1))
    return lib.sum(groups, (2, 3)), groups * lib.amax(groups, 3)


# Of x [2, 8, 6], w [8, 1], and further weights.
COMPOSED: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "of an intermediate": (
        lambda lib, x, w: lib.silu(lib.group_norm(x * 2 + w, 2)) + x, [(2, 8, 6), (8, 1)],
    ),
    "weighed": (
        lambda lib, x, w, b: lib.sum(lib.silu(lib.group_norm(x.reshape(2, 8, 6) if lib is THEIRS else x, 4, w, b)), 2),
        [(2, 8, 6), (8,), (8,)],
    ),
    "groups in groups": (_both_ways, [(2, 8, 6), (8, 1)]),
    "a group for each channel": (lambda lib, x, w: lib.group_norm(lib.tanh(x), 8, w) * x, [(2, 8, 6), (8,)]),
    "one group": (lambda lib, x, w: lib.group_norm(lib.group_norm(x, 1, w), 1), [(2, 8, 6), (8,)]),
    "without more dimensions": (lambda lib, x, w: lib.relu(lib.group_norm(x + w, 2)), [(3, 8), (8,)]),
    "behind a product": (lambda lib, x, m: lib.silu(lib.group_norm(lib.linear(x, m), 2)), [(3, 5), (8, 5)]),
    "before a product": (lambda lib, x, m, w: lib.linear(lib.group_norm(x * 2, 2, w), m) * 3, [(3, 8), (5, 8), (8,)]),
    "square products": (lambda lib, x, m: lib.group_norm(lib.group_norm(x @ m, 2) @ m, 4) * x, [(3, 8), (8, 8)]),
    "a declared gradient around": (lambda lib, x, w: lib.cube(lib.group_norm(lib.cube(x), 2) * w), [(2, 8, 6), (8, 1)]),
    "of rows of groups": (
        lambda lib, x, w: lib.layer_norm(lib.unflatten(x, -1, (3, -1)), 2, w).flatten(-2, -1) * x, [(2, 8, 6), (2,)],
    ),
    "sums of groups": (_sums_of_groups, [(2, 8, 6), (8, 1)]),
    "variances of groups": (
        lambda lib, x, w: lib.unflatten(x, 2, (2, -1)) / (lib.var(lib.unflatten(x, 2, (2, -1)), 3) + 1) * w,
        [(2, 8, 6), (3,)],
    ),
    "flattened with a dimension of one": (
        lambda lib, x, w: lib.flatten(lib.unflatten(x, 1, (4, -1)), 1, 2) * lib.tanh(w), [(2, 8, 6), (8, 1)],
    ),
    "instance norms": (
        lambda lib, x, w: lib.relu(lib.instance_norm(x + 1, w)) * lib.instance_norm(x, w), [(2, 8, 6), (8,)],
    ),
    "batch norms": (lambda lib, x, w, b: lib.silu(lib.batch_norm(x * x, w, b)) + x, [(3, 8, 6), (8,), (8,)]),
    "norms of norms": (
        lambda lib, x, w: lib.sum(lib.group_norm(lib.instance_norm(lib.batch_norm(x, w, w), w) + x, 2), (1, 2)),
        [(2, 8, 6), (8,)],
    ),
    "packed": (
        lambda lib, x, w: lib.silu(lib.group_norm(_half(lib, x, 0), 2, w)) * lib.group_norm(_half(lib, x, 1), 4),
        [(2, 16, 6), (8,)],
    ),
}  # fmt: skip


def _half(lib: Any, x: Any, at: int) -> Any:
    return (fg.split(x, 2, 1) if lib is OURS else x.chunk(2, 1))[at]


def both(name: str) -> tuple[Function, Function, list[torch.Tensor]]:
    function, shapes = COMPOSED[name]
    names = ", ".join(f"x{i}" for i, _ in enumerate(shapes))
    made = eval(f"lambda {names}: function(OURS, {names})", {"function": function, "OURS": OURS})
    made.__annotations__["return"] = "fg.Tensor | tuple[fg.Tensor, ...]"
    ours, given = fg.op(made, name="composed"), [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    return ours, lambda *given: function(THEIRS, *given), given


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", COMPOSED)
def test_in_every_mode(name: str, mode: str) -> None:
    MODES[mode](*both(name))


@pytest.mark.parametrize("name", COMPOSED)
def test_calls_check_themselves(name: str) -> None:
    ours, _, given = both(name)
    with fg.checked():
        results = ours(*given)
        torch.autograd.grad([r.sum() for r in (results if isinstance(results, tuple) else (results,))], given)


@pytest.mark.parametrize("name", COMPOSED)
def test_every_stage(name: str) -> None:
    """Without a compiler, and by way of JSON."""
    ours, theirs, given = both(name)
    tensors = {f"x{i}": t.detach() for i, t in enumerate(given)}
    op = ours.trace(**tensors)
    assert op_from_json(op_to_json(op)) == op
    expected = theirs(*tensors.values())
    for _, run in evaluate.stages(op):
        found = tuple(run(op, tensors, {}, evaluate.all_sizes(op, tensors, {})))
        torch.testing.assert_close(found, expected if isinstance(expected, tuple) else (expected,))


def test_sizes_may_change_from_call_to_call() -> None:
    """A group of one element, of several, and none of two samples: with and without a call path for each."""
    ours, theirs, _ = both("of an intermediate")
    for n, channels, length in ((2, 2, 6), (2, 8, 6), (2, 2, 6), (1, 4, 1), (2, 8, 7), (2, 2, 6)):
        given = draw(n, channels, length), draw(channels, 1, seed=1)
        torch.testing.assert_close(ours(*given), theirs(*given))
    assert ours(draw(0, 8, 6), draw(8, 1)).shape == (0, 8, 6)


def test_strides_are_the_callers() -> None:
    ours, theirs, _ = both("groups in groups")
    x = draw(2, 6, 4, 8).detach().permute(0, 3, 1, 2)  # channels last
    w = draw(8, 1, 1, seed=1).detach()
    torch.testing.assert_close(ours(x, w), theirs(x, w))
    torch.testing.assert_close(ours(x[:, :, ::2], w), theirs(x[:, :, ::2], w))
    torch.testing.assert_close(ours(x[:1].expand(3, 8, 6, 4), w), theirs(x[:1].expand(3, 8, 6, 4), w))


def test_compiled_for_shapes_that_change() -> None:
    ours, theirs, _ = both("groups in groups")
    torch._dynamo.reset()
    graph = torch.compile(lambda *given: ours(*given), fullgraph=True, dynamic=True, backend="aot_eager")
    for n, length in ((2, 6), (3, 5), (4, 9)):
        x, w = draw(n, 8, length), draw(8, 1, seed=1)
        found, expected = graph(x, w), theirs(x, w)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(f.sin().sum(), (x, w)) for f in (found, expected)))


def unflattened(*sizes: Any, axis: int = -1) -> Function:
    return fg.op(lambda x: fg.unflatten(x, axis, sizes), name="unflattened")


def declared(function: Function) -> Any:
    return fg.op(function, name="declared")


REFUSED: dict[str, tuple[Function, tuple[int, ...], str]] = {
    "does not divide": (unflattened(4, -1), (3, 6), "dimension -1 of x[3, 6] in 4 groups"),
    "no such dimension": (unflattened(2, -1, axis=2), (3, 6), "axis 2"),
    "no rest": (unflattened(2, 3), (3, 6), "fix:      write fg.unflatten(x, axis, (groups, -1))"),
    "the rest in front": (unflattened(-1, 2), (3, 6), "numbers of groups, and -1 for what is left"),
    "groups that are none of each other": (
        declared(lambda x: fg.ops.group_norm(x, 2) + fg.ops.group_norm(x, 3)), (2, 6, 5), "an axis of size 6 as 2 x 3",
    ),
    "channels": (declared(lambda x: fg.ops.group_norm(x * 2, 2)), (2, 7, 5), "2 for an input of shape [2, 7, 5]"),
    "rank": (declared(lambda x: fg.ops.group_norm(x * 2, 2)), (8,), "at least 2 dimensions: [N, C, ...]"),
    "instances": (declared(lambda x: fg.ops.instance_norm(x * 2)), (2, 3), "instance_norm, argument input"),
    "one value": (
        declared(lambda x: fg.ops.batch_norm(x * 2, None, None, training=True)), (1, 3), "more than one value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_uses(what: str) -> None:
    op, shape, said = REFUSED[what]
    assert said in str(refused(lambda: op(draw(*shape))))


def test_a_right_call_does_not_excuse_a_wrong_one() -> None:
    """Of the same pattern: a trace that fits the one knows the other."""
    op = fg.op(lambda x, w: fg.ops.group_norm(x * 2, 2, w), name="again")
    op(draw(2, 8, 5), draw(8))
    assert "2 for an input of shape [2, 7, 5]" in str(refused(lambda: op(draw(2, 7, 5), draw(7))))
    assert "shape [6]" in str(refused(lambda: op(draw(2, 8, 5), draw(6))))
    flat = fg.op(lambda x: fg.unflatten(x, -1, (2, -1)) * 2, name="flat")
    flat(draw(3, 6))
    assert "dimension -1 of x[3, 7] in 2 groups" in str(refused(lambda: flat(draw(3, 7))))


def test_a_number_is_flattened_to_a_vector_of_one() -> None:
    x = torch.tensor(3.0)
    for flat in (lambda x: x.flatten(), lambda x: fg.flatten(x, 0, 0), lambda x: torch.flatten(x)):
        assert torch.equal(fg.op(flat)(x), x.flatten())
    with pytest.raises(ShapeError, match="axis 1 of a tensor of rank 0"):
        fg.op(lambda x: x.flatten(1))(x)
